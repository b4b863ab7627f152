"""
What telemetry reads of an event's values: attributes, counts of tokens, times, errors.

Values may be anything; what does not fit is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from . import _semconv as names
from ._frames import error_frames, error_message
from ._messages import get, text
from ._plain import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a signed 64-bit number holds, and with it the wire.
_INT64: Final = 2**63
_LATEST: Final = 9e9
_LONGEST: Final = 1e8


def told(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the attributes that have a value.
    """
    return {key: value for key, value in attributes.items() if value is not None}


def only(attributes: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """
    Return those of the attributes that are named, where there are such.
    """
    return {key: attributes[key] for key in keys if key in attributes}


def agent_name(event: Any) -> str | None:
    """
    Return the name of an event's agent.
    """
    return text(get(event.agent, "name"), "agent")


def call_names(call: Any) -> dict[str, str | None]:
    """
    Return the attributes that name a tool call.
    """
    return {
        names.TOOL_NAME: text(get(call, "name"), "tool"),
        names.TOOL_CALL_ID: text(get(call, "id"), "id"),
    }


def error_type(error: object) -> str:
    """
    Return the class of an error, with its module unless it is built in; `_OTHER` of what is no exception.
    """
    if not isinstance(error, BaseException):
        return names.OTHER
    return text(type_name(type(error)).removeprefix("builtins."), "type") or names.OTHER


def error_text(error: object) -> str | None:
    """
    Return the text of an error, redacted.
    """
    return text(error_message(error) if isinstance(error, BaseException) else error, "error")


def exception(error: object) -> dict[str, Any]:
    """
    Return the attributes of an exception: class, text, innermost frames.
    """
    frames = error_frames(error) if isinstance(error, BaseException) else []
    return {
        names.EXCEPTION_TYPE: error_type(error),
        names.EXCEPTION_MESSAGE: error_text(error),
        names.EXCEPTION_STACKTRACE: text(" < ".join(frames), "frames") if frames else None,
    }


def nanoseconds(seconds: Any) -> int | None:
    """
    Return a time, in seconds since the epoch, in nanoseconds; None if it cannot be one.
    """
    known = isinstance(seconds, int | float) and 0 < seconds < _LATEST
    return int(seconds * 1e9) if known else None


def duration(seconds: Any) -> float | None:
    """
    Return a duration in seconds; None if it cannot be one.
    """
    known = isinstance(seconds, int | float) and 0 <= seconds < _LONGEST
    return float(seconds) if known else None


def whole(value: Any) -> int | None:
    """
    Return a number that 64 bits can hold; None for anything else.
    """
    fits = isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64
    return int(value) if fits else None


def _float(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fits and -_INT64 <= value < _INT64 else None


def _true(value: Any) -> bool | None:
    return True if value is True else None


_READ: Final = {int: whole, float: _float, bool: _true}


def request_settings(options: Any) -> dict[str, Any]:
    """
    Return the attributes of a model call's settings that the conventions know.
    """
    return {
        attribute: _READ[kind](_item(options, key))
        for key, (attribute, kind) in names.REQUEST_SETTINGS.items()
        if _item(options, key) is not None
    }


def tokens(usage: Any) -> dict[str, int]:
    """
    Read a provider's counts of tokens: those of OpenAI's and Anthropic's APIs, as dicts or objects.
    """
    read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    given = _count(usage, "input_tokens", "prompt_tokens")
    # Anthropic's input_tokens leave out what went through the cache; the conventions' do not.
    total = None if given is None else given + (read or 0) + (written or 0)
    inputs = _first(usage, "input_tokens_details", "prompt_tokens_details")
    outputs = _first(usage, "output_tokens_details", "completion_tokens_details")
    return told(
        {
            names.INPUT_TOKENS: total,
            names.OUTPUT_TOKENS: _count(usage, "output_tokens", "completion_tokens"),
            names.CACHE_READ_TOKENS: _count(inputs, "cached_tokens") if read is None else read,
            names.CACHE_WRITE_TOKENS: written,
            names.REASONING_TOKENS: _count(outputs, "reasoning_tokens"),
        }
    )


def _count(usage: Any, *keys: str) -> int | None:
    value = whole(_first(usage, *keys))
    return None if value is None or value < 0 else value


def _first(value: Any, *keys: str) -> Any:
    return next((found for key in keys if (found := _item(value, key)) is not None), None)


def _item(value: Any, key: str) -> Any:
    return cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else get(value, key)
