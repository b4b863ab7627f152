"""
Shared hooks: one instance per process, made at its first event.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ._errors import HandlerLockTimeoutError
from ._settings import settings

_all: weakref.WeakSet[Shared] = weakref.WeakSet()


class Shared:
    """
    The one instance of a shared hook. It is locked while it is made, and not afterwards.
    """

    def __init__(self, hook: type, lock_timeout: float | None) -> None:
        self._hook = hook
        self._lock_timeout = lock_timeout
        self._instance: Any = None
        self._is_being_made = False
        # Re-entrant: an `__init__` that emits to its own class is told so, and does not wait for itself.
        self._lock = threading.RLock()
        _all.add(self)

    def bind(self, method: Callable[[Any, Any], Any], name: str) -> Callable[[Any], Any]:
        """
        Return a callable that calls `method` on the instance.
        """

        def call(event: Any) -> Any:
            instance = self._instance
            if instance is None:
                instance = self._make(name, event)
            return method(instance, event)

        return call

    def _make(self, name: str, event: Any) -> Any:
        where = f"{self._hook.__qualname__}.__init__"
        timeout = settings.lock_timeout if self._lock_timeout is None else self._lock_timeout
        if not self._lock.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            msg = (
                f"{name} was skipped for {type(event).__name__}: {where} has not ended within {timeout:g} s "
                "on another thread; let it do less, or connect at first use."
            )
            raise HandlerLockTimeoutError(msg)
        try:
            if self._is_being_made:
                msg = (
                    f"{name} was skipped for {type(event).__name__}, which {where} has emitted: "
                    "the instance that is to handle it is not made yet."
                )
                raise RuntimeError(msg)
            if self._instance is None:
                self._is_being_made = True
                try:
                    self._instance = self._hook()
                finally:
                    self._is_being_made = False
            return self._instance
        finally:
            self._lock.release()

    def after_fork(self) -> None:  # pragma: no cover - in a forked child, which ends without a report
        """
        Forget a thread that was making the instance in the parent.
        """
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self._is_being_made = threading.RLock(), False


def _after_fork() -> None:  # pragma: no cover - in a forked child, which ends without a report
    for shared in _all:
        shared.after_fork()


os.register_at_fork(after_in_child=_after_fork)
