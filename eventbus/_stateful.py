"""
Stateful hooks: one instance per hook and run, one lock per run, and the end of both.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from . import _registry
from ._counters import counters
from ._errors import HandlerLockTimeoutError
from ._report import notice
from ._settings import settings

SPARE_BYTES: Final = 1_024
"""What a dict may keep for later keys when it is empty: Python leaves it as large as it has once been."""


class RunLock:
    """
    The lock that the handlers of all stateful hooks take for one run.

    One per run, not per instance: two instances, each locked for itself, would wait for each other as soon
    as they emit to one another from two threads.

    Attributes:
        lock: Re-entrant: a handler may emit to others of its run.
        holder: The innermost handler that has it, by name.
        ended: Whether the run has ended; what its handlers still do leaves nothing behind.
        left: Whether something has left that was kept for the run; its holder then looks what still is.
    """

    __slots__ = ("ended", "holder", "left", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holder: str | None = None
        self.ended = self.left = False


class Instances:
    """
    The instances of one stateful hook, by correlation id, least recently used first.
    """

    __slots__ = ("_capacity", "_closed", "_hook", "_lock_timeout", "_newest", "_state", "by_run")

    def __init__(self, hook: type, capacity: int | None, lock_timeout: float | None) -> None:
        self._hook = hook
        self._capacity = capacity
        self._lock_timeout = lock_timeout
        # Of the registry it was made in, which may be set aside.
        self._state = _registry.state
        self._closed = False
        # The run whose instance has been marked as used last; None if another has come since.
        self._newest: str | None = None
        self.by_run: OrderedDict[str, Any] = OrderedDict()

    def open(self) -> None:
        """
        Take part in the end of runs.
        """
        self._state.tables[id(self)] = self

    def close(self) -> None:
        """
        Drop all instances.
        """
        self._closed = True
        self._state.tables.pop(id(self), None)
        for cid in list(self.by_run):
            self.by_run.pop(cid, None)
            _let_go(self._state, cid)

    def drop(self, cid: str) -> None:
        """
        Drop the instance of a run.
        """
        self.by_run.pop(cid, None)
        _shrink(self.by_run)

    def bind(self, method: Callable[[Any, Any], Any], name: str) -> Callable[[Any], Any]:
        """
        Return a callable that calls `method` on the instance of the event's run, holding the run's lock.
        """
        by_run, locks = self.by_run, self._state.locks

        def call(event: Any) -> Any:
            cid = event.correlation_id
            if cid is None:
                return method(self._hook(), event)
            # As in `_locked`, without its call: nearly always the lock is there, and free.
            try:
                run = locks[cid]
            except KeyError:
                run = None
            if run is None or not run.lock.acquire(False):
                run = self._locked(cid, name, event)
            elif run.left:
                run.lock.release()
                run = self._locked(cid, name, event)
            holder, run.holder = run.holder, name
            try:
                try:
                    instance = by_run[cid]
                    # Until it holds: threads that mark their runs at one time agree in the end.
                    while self._newest is not cid:
                        self._newest = cid
                        by_run.move_to_end(cid)
                except KeyError:
                    instance = None
                if instance is None:
                    instance = self._make(cid, run)
                return method(instance, event)
            finally:
                run.holder = holder
                run.lock.release()
                # After the release: who drops something from now on finds the lock free, and looks himself.
                if run.left:
                    _let_go(self._state, cid)

        return call

    def _make(self, cid: str, run: RunLock) -> Any:
        try:
            instance = self._hook()
            with _registry.lock:
                instance = self.by_run.setdefault(cid, instance)
            self._newest = None
        except BaseException:
            run.left = True
            raise
        self._make_room()
        if self._closed:
            run.left = True
        return instance

    def _locked(self, cid: str, name: str, event: Any) -> RunLock:
        locks = self._state.locks
        while True:
            run = locks.get(cid)
            if run is None:
                run = RunLock()
                with _registry.lock:
                    run = locks.setdefault(cid, run)
            if not run.lock.acquire(blocking=False):
                self._wait(run, name, event)
            if locks.get(cid) is run:
                if self._closed:
                    # What the hook's last deliveries keep is nobody else's to let go.
                    run.left = True
                return run
            # The run ended while we waited, and its lock with it.
            run.lock.release()

    def _wait(self, run: RunLock, name: str, event: Any) -> None:
        timeout = settings.lock_timeout if self._lock_timeout is None else self._lock_timeout
        if not run.lock.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            msg = (
                f"{name} did not get the lock of run {event.correlation_id!r} within {timeout:g} s and was "
                f"skipped for {type(event).__name__}; {run.holder or 'a handler'} holds it. "
                "Stateful handlers of one run take turns: let the holder do less."
            )
            raise HandlerLockTimeoutError(msg)

    def _make_room(self) -> None:
        # After the newcomer is in: however many threads come at once, each leaves at most `capacity`.
        capacity = settings.stateful_capacity if self._capacity is None else self._capacity
        while len(self.by_run) > capacity:
            try:
                oldest, _ = self.by_run.popitem(last=False)
            except KeyError:  # pragma: no cover - another thread has ended all those runs in this moment
                return
            counters.evicted += 1
            notice(
                "warning",
                ("HOOK", "EVICT"),
                ("hook", self._hook.__qualname__),
                correlation_id=oldest,
                capacity=capacity,
            )
            _let_go(self._state, oldest)


def end_run(cid: str | None) -> None:
    """
    Let go of everything that stateful hooks keep for a run.
    """
    if cid is None:
        return
    state = _registry.state
    run = state.locks.get(cid)
    if run is None:
        # Whatever has an instance has a lock.
        return
    # A handler that is still inside finishes with the instance it has, and takes the lock away with it.
    run.ended = True
    for table in list(state.tables.values()):
        table.drop(cid)
    _let_go(state, cid)


def is_kept(cid: str | None) -> bool:
    """
    Tell whether something is kept for a run.
    """
    return cid in _registry.state.locks


def kept() -> int:
    """
    Return how many runs have something kept for them.
    """
    return len(_registry.state.locks)


def _let_go(state: _registry.State, cid: str) -> None:
    # Drop a run's lock if nothing is kept for it; a run that has ended keeps nothing. Who does not get the
    # lock need not wait: its holder comes here when he has let go of it.
    run = state.locks.get(cid)
    if run is None:  # pragma: no cover - another thread has done it just now
        return
    run.left = True
    if not run.lock.acquire(blocking=False):
        return
    try:
        if run.holder is not None:
            return
        run.left = run.ended
        tables = list(state.tables.values())
        if run.ended:
            for table in tables:
                table.drop(cid)
        if not any(cid in table.by_run for table in tables) and state.locks.get(cid) is run:
            # Seen by who has taken it from the dict and not yet acquired it.
            run.left = True
            # Unless a signal handler or a finalizer has come in between, and has done it.
            state.locks.pop(cid, None)
            _shrink(state.locks)
    finally:
        run.lock.release()


def _shrink(table: dict[str, Any]) -> None:
    # Who adds to it holds the lock.
    if not table and table.__sizeof__() > SPARE_BYTES:
        with _registry.lock:
            if not table:  # pragma: no branch - a run may have begun just now
                table.clear()


def _after_fork() -> None:  # pragma: no cover - in a forked child, which ends without a report
    # Threads that held a lock stayed in the parent, and would hold it for ever here.
    for run in _registry.state.locks.values():
        if run.lock.acquire(blocking=False):
            run.lock.release()
        else:
            run.lock, run.holder = threading.RLock(), None


os.register_at_fork(after_in_child=_after_fork)
