"""
How the core speaks: a failure becomes an event, anything else a notice, and somebody else writes them down.

The core knows neither the catalog nor the logger; both introduce themselves here when they are imported.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Generator, Hashable
from typing import Any, Literal, Protocol, TypeAlias

from . import _clock
from ._counters import counters

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Notice:
    """
    Something that the bus itself has to say: a slow handler, an eviction, a dropped delivery.
    """

    __slots__ = ("correlation_id", "error", "fields", "level", "subject", "timestamp", "words")

    def __init__(
        self,
        level: Level,
        words: tuple[str, ...],
        subject: tuple[str, str],
        fields: dict[str, Any],
        correlation_id: str | None,
        error: BaseException | None,
    ) -> None:
        self.level: Level = level
        self.words = words
        self.subject = subject
        self.fields = fields
        self.correlation_id = correlation_id
        self.error = error
        self.timestamp = _clock.time()


class FailureSink(Protocol):
    """
    Makes an event of a handler's failure.
    """

    def __call__(self, *, hook: str | None, handler: str, event: Any, error: BaseException) -> object:
        """
        Emit it.
        """


class _Listeners:
    __slots__ = ("failure", "notice")

    def __init__(self) -> None:
        self.failure: FailureSink | None = None
        self.notice: Callable[[Notice], object] | None = None


listeners = _Listeners()


class _Reporting(threading.local):
    active = False
    key: Hashable = None


_reporting = _Reporting()


def failing() -> Hashable:
    """
    Return the `key` of the handler whose failure this thread announces at this moment; None without one.
    """
    return _reporting.key


def report_failure(
    *, hook: str | None, handler: str, event: Any, error: BaseException, key: Hashable = None
) -> None:
    """
    Count a handler's failure and announce it; a failure while announcing is counted and goes no further.

    Handlers may share their names; `key` tells them apart, for whoever asks `failing` meanwhile.
    """
    counters.failures += 1
    if _reporting.active or listeners.failure is None or getattr(event, "_is_report", False):
        return
    _reporting.active, _reporting.key = True, key
    try:
        listeners.failure(hook=hook, handler=handler, event=event, error=error)
    except Exception:
        counters.failures += 1
    finally:
        _reporting.active, _reporting.key = False, None


def notice(
    level: Level,
    words: tuple[str, ...],
    subject: tuple[str, str],
    *,
    correlation_id: str | None = None,
    error: BaseException | None = None,
    **fields: Any,
) -> None:
    """
    Say something at `level`; without a logger nobody hears it. Never raises an Exception.
    """
    if listeners.notice is not None:
        listeners.notice(Notice(level, words, subject, fields, correlation_id, error))


class AwaitableWrapper:
    """
    Stands for what an async handler returned, and awaits it in `run`.

    Not a coroutine itself: one that is never begun would leave the handler's, inside it, to complain.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Awaitable[Any]) -> None:
        self.inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.run().__await__()

    async def run(self) -> Any:
        """
        Await what is inside.
        """
        return await self.inner


class TimedAwaitable(AwaitableWrapper):
    """
    Tells how long what it awaits took.
    """

    __slots__ = ("tell",)

    def __init__(self, inner: Awaitable[Any], tell: Callable[[float], None]) -> None:
        super().__init__(inner)
        self.tell = tell

    async def run(self) -> Any:
        """
        Await what is inside, and tell how long that took.
        """
        started = _clock.monotonic()
        try:
            return await self.inner
        finally:
            self.tell(_clock.monotonic() - started)


def timed(call: Callable[[Any], Any], name: str, limit: float) -> Callable[[Any], Any]:
    """
    Wrap a handler so that it is reported when it takes longer than `limit` seconds.
    """

    def tell(event: Any, seconds: float) -> None:
        if seconds > limit:
            notice(
                "warning",
                ("HOOK", "SLOW"),
                ("hook", name),
                correlation_id=event.correlation_id,
                on=type(event).__name__,
                seconds=round(seconds, 2),
            )

    def run(event: Any) -> Any:
        started = _clock.monotonic()
        try:
            result = call(event)
        except BaseException:
            tell(event, _clock.monotonic() - started)
            raise
        if result is not None and inspect.isawaitable(result):
            return TimedAwaitable(result, lambda seconds: tell(event, seconds))
        tell(event, _clock.monotonic() - started)
        return result

    return run
