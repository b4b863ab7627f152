"""
The exceptions that eventbus raises on its own account.

Each is also the built-in that fits, so that code which knows nothing of eventbus can catch it.
"""

from __future__ import annotations


class EventbusError(Exception):
    """
    The root of every exception defined by eventbus.
    """


class EmitLoopError(EventbusError, RuntimeError):
    """
    Handlers emit without end: each emit leads to the next.

    The text shows the chain of events and handlers. Raised out of a refused gate; for observed events it is
    reported once, when the outermost emit returns.
    """


class HandlerLockTimeoutError(EventbusError, TimeoutError):
    """
    A handler of a stateful hook could not get its run's lock in time; the text names the holder.
    """


class PendingLimitError(EventbusError, RuntimeError):
    """
    More async deliveries wait than `max_pending` allows, and this one was dropped.
    """


class LoopClosedError(EventbusError, RuntimeError):
    """
    An async delivery was still pending when its event loop closed, and was cancelled.
    """


class DiscoveryError(EventbusError, ImportError):
    """
    A module named to `discover` failed to import; the text names it and the cause.
    """


class UnknownChannelError(EventbusError, LookupError):
    """
    No event class has the channel that was looked up.
    """
