"""
The trace stores of this process: one for each state of the registry, its beginning, forks and exits.

What works on the database is imported when the first store begins: who has none does not pay for it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from . import _registry
from ._counters import counters, gauge
from ._event import Event
from ._registry import Receiver
from ._report import notice

if TYPE_CHECKING:
    from ._retention import Retention
    from ._schema import Durability
    from ._writer import Store

ENVIRONMENT: Final = "EVENTBUS_TRACE"

NAME: Final = "trace"
"""What a state of the registry calls its store, and the one target of all receivers that feed it."""

FIRST: Final = -(2**30)
"""The priority of the store: before handlers that emit themselves, so that its order is that of the emits."""

FINALIZE_PRIORITY: Final = 90
"""The place among the finalizers of a multiprocessing child: after the bus's own, whose handlers may emit."""


class Entry:
    """
    A store and its place in the bus.

    Args:
        path: The absolute path of its file.
        durability: "batched" or "sync".
        retention: What is deleted in time.
        by_environment: Whether nobody but the environment has asked for it.
    """

    def __init__(
        self, path: str, durability: Durability, retention: Retention | None, *, by_environment: bool
    ) -> None:
        from ._writer import Store

        self.by_environment = by_environment
        self.store: Store = Store(path, durability, retention, self._register_finalizer)
        self.is_open = False
        self._exits: list[Callable[[], object]] = []

    def open(self) -> None:
        """
        Open the file and the ways out of the process.

        Raises:
            TraceFileError: If the file cannot be used.
        """
        self.store.open()
        self.is_open = True
        _entries.append(self)
        # Not `atexit.register`: of what is unregistered there, a place is left in a table.
        self._exits.append(weakref.finalize(self, self.close).detach)

    def close(self) -> None:
        """
        Commit what is waiting, within a time, and leave no thread, file or exit function behind.
        """
        self.is_open = False
        # First: an interrupt of the wait leaves it to the end of the process, or to another call.
        self.store.close()
        for undo in self._exits:
            undo()
        self._exits.clear()
        with contextlib.suppress(ValueError):
            _entries.remove(self)

    def _register_finalizer(self, _store: Store) -> None:
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            # A child of multiprocessing ends without exit functions. Here and not after the fork: what was
            # registered before the child has begun is cleared.
            util = importlib.import_module("multiprocessing.util")
            self._exits.append(util.Finalize(None, self.close, exitpriority=FINALIZE_PRIORITY).cancel)


_entries: list[Entry] = []
_lock = threading.RLock()


def receiver(call: Callable[[Any], Any], accepts: Callable[[type], bool] | None = None) -> Receiver:
    """
    Return a receiver of all observed events that feeds the store; of several only one is ever called.
    """
    order = (_registry.next_order(), 0)
    return Receiver(call, name="eventbus.trace", target=NAME, order=order, priority=FIRST, accepts=accepts)


def start(path: str, durability: Durability, retention: Retention | None, *, by_environment: bool) -> Entry:
    """
    Open a store and have it receive every observed event.

    One that the environment has opened gives way.

    Raises:
        RuntimeError: If one is open already.
        TraceFileError: If the file cannot be used.
    """
    with _lock:
        before = current()
        if before is not None:
            if by_environment:
                return before
            if before.is_open and not before.by_environment:
                msg = f"A trace store is open already, at {before.store.path}; call `trace.stop()` first."
                raise RuntimeError(msg)
        entry = Entry(path, durability, retention, by_environment=by_environment)
        entry.open()
        _registry.state.resources[NAME] = entry
        signal = _registry.signal_of(Event)
        earlier = [other for other in signal.everyone() if other.target == NAME]
        signal.connect(receiver(entry.store.record), weak=False)
        for other in earlier:
            signal.disconnect(other)
        if before is not None:
            before.close()
        return entry


def stop() -> None:
    """
    Close the store that is open, if one is; it goes on counting what it is no longer given the time to store.
    """
    with _lock:
        entry = current()
        if entry is not None:
            entry.close()


def current() -> Entry | None:
    """
    Return the store of the registry's state, open or closed; None if there never was one.
    """
    found = _registry.state.resources.get(NAME)
    return found if isinstance(found, Entry) else None


def _pending() -> int:
    return sum(entry.store.pending() for entry in list(_entries))


gauge("store_pending", _pending)


_forking: list[list[Entry]] = []
"""The stores that each fork under way has stopped; of several, one is in a signal's handler in another."""


def _before_fork() -> None:
    # Until the fork is over: no other thread forks, nor is in the middle of opening a file.
    _lock.acquire()
    stopped: list[Entry] = []
    _forking.append(stopped)
    for entry in list(_entries):
        entry.store.before_fork()
        stopped.append(entry)


def _after_fork_in_parent() -> None:
    for entry in _forking.pop():
        entry.store.after_fork_in_parent()
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - it is held for the parent's fork, and by a start in whose middle it was
    _lock = threading.RLock()
    for entry in _forking.pop():
        entry.store.after_fork_in_child()


# At import, not at the first start: what another thread's fork has begun without, it would end with.
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


class Autostart:
    """
    Stands in a store's place until the first event, if the environment names one.
    """

    def __init__(self) -> None:
        self._refused = False

    def record(self, event: Any) -> None:
        """
        Open the store and give it the event; one that cannot be opened is told once, and its events counted.
        """
        path = named()
        try:
            if not self._refused:
                entry = start(os.path.abspath(path), "batched", None, by_environment=True)
                entry.store.record(event)
                return
        except Exception as error:
            self._refused = True
            notice("error", ("TRACE", "FAIL"), ("store", path), error=error)
        counters.store_dropped += 1


def named() -> str:
    """
    Return the path that the environment names; "" for none.
    """
    return os.environ.get(ENVIRONMENT, "").strip()


# Whether the environment names one is asked when a plan is compiled: otherwise this is in none.
_registry.signal_of(Event).connect(
    receiver(Autostart().record, accepts=lambda _event_class: bool(named())), weak=False
)
