"""
ModelRetryHook: has the model asked again after an empty answer or a transient error.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from random import Random, SystemRandom
from threading import TIMEOUT_MAX
from typing import Any, ClassVar, Final, cast

from . import _clock
from ._hook import on
from ._policy import PolicyHook, flag, listed, misfit, number, setting, warn, whole
from ._scheduler import discard
from .gates import AfterModelCallEvent

_STATUS: Final = ("status_code", "status", "code")
_TRANSIENT: Final = frozenset({408, 409, 429})
_NAMES: Final = frozenset(
    {
        # openai, anthropic and those generated like them
        "APIConnectionError",
        # httpx
        "TimeoutException",
        "NetworkError",
        "RemoteProtocolError",
        # requests
        "ConnectionError",
        "Timeout",
    }
)
"""Errors of connection and time that are not Python's own, by the name of a class of theirs."""

_ABSENT: Final = object()
_LONGEST_DATE: Final = 64


def is_transient(error: BaseException) -> bool:
    """
    Tell whether an error is likely to go away by itself; the default of `ModelRetryHook.transient`.

    These do: TimeoutError, ConnectionError; an error with a `status_code`, `status` or `code`, its own or its
    `response`'s, of 408, 409, 429 or from 500 on; and the connection errors of openai, anthropic, httpx and
    requests, known by the names of their classes. Nothing is imported for it.

    Args:
        error: What the model raised.
    """
    if not isinstance(error, Exception):
        return False
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    status = _status_of(error)
    if status is not None:
        return status in _TRANSIENT or status >= 500
    return any(cls.__name__ in _NAMES for cls in type(error).__mro__)


def _error_types(where: str, value: Any) -> tuple[type[Exception], ...]:
    what = "exception types, as in (TimeoutError, RateLimitError), or a function of the error"
    types = [value] if isinstance(value, type) else listed(value)
    if types is None or not all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
        misfit(where, what, value)
    if not all(issubclass(one, Exception) for one in types):
        misfit(where, f"{what}; cancellation and other interrupts are never retried", value, ValueError)
    return tuple(types)


def _random_source(where: str, value: Any) -> Random:
    if not isinstance(value, Random):
        misfit(where, "a random.Random, as in random.Random(7)", value)
    return value


class ModelRetryHook(PolicyHook):
    """
    Have the model asked again after an empty answer or a transient error.

    It keeps nothing: the gate says which attempt it is. Before retry number n the run waits a random time
    between 0 and `min(max_delay, initial_delay * backoff_factor ** (n - 1))` seconds: "full jitter", as in
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/. If the error says when to come
    back, in `retry_after` or in the header Retry-After, the run waits that long, and `max_delay` at most.
    """

    abstract = True

    max_retries: ClassVar[int] = setting(3, whole(0))
    """How often one call may be retried; `Run(max_retries=5)` limits it as well."""

    initial_delay: ClassVar[float] = setting(1.0, number(0, "seconds"))
    """The most to wait before the first retry, in seconds."""

    max_delay: ClassVar[float] = setting(30.0, number(0, "seconds"))
    """The most to wait before any retry, in seconds, whatever the error says."""

    backoff_factor: ClassVar[float] = setting(2.0, number(1))
    """How the most to wait grows from one retry to the next."""

    retry_on_empty: ClassVar[bool] = setting(default=True, check=flag)
    """Whether an answer without text and tool calls is retried."""

    transient: Any = setting(is_transient, _error_types, arguments=("error",))
    """Which errors are retried: exception types, or a function of the error."""

    random: ClassVar[Random] = setting(SystemRandom(), _random_source)
    """Where the jitter comes from. The default needs no seed, and forked processes differ in it."""

    @on(AfterModelCallEvent)
    def again(self, event: AfterModelCallEvent) -> None:
        """
        Ask for a retry, unless another gate has asked for one already.

        Raises:
            TypeError: If `transient` is async.
        """
        if event.retry:
            return
        error = event.error
        if error is None or event.response is not None:
            reason = "empty answer" if self.retry_on_empty and is_empty(event.response) else None
        else:
            reason = _described(error) if self._is_transient(error) else None
        if reason is None:
            return
        if event.attempt > self.max_retries:
            if self.max_retries:
                warn(self, "again", event, f"{reason}, after {self.max_retries} retries")
            return
        # 0.0 would be no retry.
        event.retry = self._delay(event) or True
        event.reason = reason

    def _is_transient(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):
            return False
        transient: Any = self.transient
        answer: Any = isinstance(error, transient) if type(transient) is tuple else transient(error)
        if inspect.isawaitable(answer):
            discard(answer)
            msg = f"{type(self).__qualname__}.transient must not be async; it is asked and answers at once."
            raise TypeError(msg)
        return bool(answer)

    def _delay(self, event: AfterModelCallEvent) -> float:
        asked = None if event.error is None or event.response is not None else retry_after(event.error)
        # A run takes a longer wait for a mistake.
        cap = min(self.max_delay, TIMEOUT_MAX)
        if asked is not None:
            return min(asked, cap)
        try:
            ceiling = self.initial_delay * self.backoff_factor ** (event.attempt - 1)
        except OverflowError:
            ceiling = cap if self.initial_delay else 0
        return self.random.uniform(0, min(cap, ceiling))


def is_empty(response: Any) -> bool:
    """
    Tell whether a response has neither tool calls nor anything but whitespace to say.

    A text is what it says itself, and one that has no `content` at all says what nobody here can read.
    """
    if response is None or isinstance(response, str):
        return is_blank(response)
    content = _read(response, "content", _ABSENT)
    return content is not _ABSENT and not _read(response, "tool_calls") and is_blank(content)


def is_blank(content: Any) -> bool:
    """
    Tell whether the content of a response, a text or a list of parts, is only whitespace.
    """
    if content is None:
        return True
    if isinstance(content, str):
        return not content.strip()
    if isinstance(content, (list, tuple)):
        return all(is_blank(part) for part in cast("list[Any]", content))
    if isinstance(content, Mapping):
        return "text" in content and is_blank(cast("Any", content["text"]))
    text = _read(content, "text")
    return isinstance(text, str) and is_blank(text)


def retry_after(error: BaseException) -> float | None:
    """
    Return the seconds to wait that an error asks for; None if it does not, or not in a way that makes sense.

    It may say so in `retry_after`, or in a header Retry-After of its own or of its `response`: in seconds, or
    as a date, as in RFC 9110, section 10.2.3.
    """
    asked = _seconds(_read(error, "retry_after"))
    for headers in (_read(_read(error, "response"), "headers"), _read(error, "headers")):
        if asked is None and headers is not None:
            asked = _seconds(_header(headers))
    return asked


def _header(headers: Any) -> Any:
    # Those of a client do not mind the case; a plain dict does.
    for name in ("retry-after", "Retry-After"):
        try:
            found = headers.get(name)
        except Exception:
            return None
        if found is not None:
            return found
    return None


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return _until(str(value))
    except OverflowError:
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None


def _until(date: str) -> float | None:
    if len(date) > _LONGEST_DATE:
        return None
    try:
        then = parsedate_to_datetime(date)
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.fromtimestamp(_clock.time(), UTC)).total_seconds())


def _status_of(error: Exception) -> int | None:
    for holder in (error, _read(error, "response")):
        for name in _STATUS:
            status = _read(holder, name)
            if isinstance(status, int) and 100 <= status <= 599:
                return int(status)
    return None


def _described(error: BaseException) -> str:
    # Its text stands in ModelCallFailed, and may be long.
    status = _status_of(error) if isinstance(error, Exception) else None
    return type(error).__name__ if status is None else f"{type(error).__name__} {status}"


def _read(value: Any, name: str, default: Any = None) -> Any:
    # What an error of somebody else's does when it is looked at must not fail the gate.
    try:
        return getattr(value, name, default)
    except Exception:
        return None
