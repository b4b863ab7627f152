"""
The exceptions that eventbus raises on its own account.

Each is also the built-in that fits, so that code which knows nothing of eventbus can catch it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class AsyncGateError(EventbusError, RuntimeError):
    """
    A plain emit met an async gate on the thread of a running loop, where it cannot wait for it.
    """


class RefusedError(EventbusError, PermissionError):
    """
    A gate has refused.

    Attributes:
        reason: The gate's own words.
        by: The handler that refused, as lines name it; None if nobody in particular did.
    """

    def __init__(self, reason: str, by: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.by = by

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str | None]]:
        return (type(self), (self.reason, self.by))


class RunRefused(RefusedError):  # noqa: N818 - named as what happened, as the contract has it
    """
    A gate has refused the run; raised from entering it.
    """


class ModelCallRefused(RefusedError):  # noqa: N818 - as RunRefused
    """
    A gate has refused to ask the model.
    """


class ToolCallRefused(RefusedError):  # noqa: N818 - as RunRefused
    """
    A gate has refused a tool call; raised from entering the block that would have made it.
    """


class RunEndedError(EventbusError, RuntimeError):
    """
    Something was to begin in a run that has ended, where no gate could judge it any more.
    """


class TraceFileError(EventbusError, OSError):
    """
    A file cannot be used as a trace store; the text says why, and what to do.
    """


class UnknownRunError(EventbusError, LookupError):
    """
    No run of a trace store has an id that is, or begins with, what was asked for.
    """


class AmbiguousRunError(EventbusError, LookupError):
    """
    The ids of several runs begin with what was asked for.

    Attributes:
        candidates: Ids that do, in their order; not all of them, if there are many.
    """

    def __init__(self, text: str, candidates: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.candidates = tuple(candidates)

    def __reduce__(self) -> tuple[type[AmbiguousRunError], tuple[str, tuple[str, ...]]]:
        return (type(self), (str(self), self.candidates))
