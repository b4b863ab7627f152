"""
From an event to a row of the trace store: redacted, bounded, encoded as JSON. Making a row cannot fail.

It is done when the event is emitted, on the emitting thread, so that what changes later is not recorded.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import time
import traceback
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

from ._emitter import payload_fields
from ._event import EventRoot
from ._frames import error_frames, error_message, error_name
from ._lines import cid_itself
from ._plain import CUT, Limits, _key, plain, type_name
from ._readonly import ReadOnlyDict, ReadOnlyList
from ._redact import MASK, apply, default_redact, is_secret, redact_text
from ._settings import Redact, settings
from .catalog import CatalogEvent, InferenceDeniedEvent, InferenceStartedEvent
from .values import Agent, Message, ModelResponse, RunInfo, ToolCall, ToolResult

Row: TypeAlias = tuple[
    str | None, float, str, str, str | None, str | None, str | None, float | None, int, str
]
"""The columns of `_schema.COLUMNS`."""

LIMITS: Final = Limits()
"""How much is kept of one event's payload."""

MAX_NAME: Final = 256
"""Characters that are kept of an agent's or a tool's name in its column."""

# What the short way takes; the long way does the rest, and has bounds of its own.
_TEXT: Final = 16_384
_NODES: Final = 2_000
_DEPTH: Final = 32
_SMALL_KEY: Final = 128
_INT: Final = 1 << 63

# How much of a chain of errors is kept, and of the stack of each.
_ERRORS: Final = 8
_FRAMES: Final = 32

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

# As it is, but for what type checkers do not know of the type of an Any.
_type_of: Final = cast("Callable[[Any], type]", type)
_dict_items: Final[Callable[[Any], Iterable[tuple[Any, Any]]]] = dict[Any, Any].items
_list_iter: Final[Callable[[Any], Iterable[Any]]] = list[Any].__iter__

_VALUES: Final[dict[type, tuple[str, ...]]] = {
    ToolCall: ("id", "name", "input"),
    ToolResult: ("data", "error"),
    ModelResponse: ("content", "tool_calls", "model", "usage", "finish_reason", "raw"),
    Message: ("text", "sender", "subject", "thread"),
    RunInfo: ("id", "parent_id", "agent", "message", "metadata"),
}

_STAND_INS: Final[dict[str, tuple[str, ...]]] = {
    "tool_call": _VALUES[ToolCall],
    "result": _VALUES[ToolResult],
}
"""What is read of an object in a field of the catalog that stands in for one of ours."""


def _find_orjson() -> Callable[[Any], bytes] | None:
    try:
        found: Callable[[Any], bytes] = importlib.import_module("orjson").dumps
    except ImportError:
        return None
    return found


_fast_dumps = _find_orjson()


class _Unusual(Exception):  # noqa: N818 - no error, and never seen outside
    """
    The short way does not take this value.
    """


class _Shape(NamedTuple):
    """
    What is the same for all events of a class.

    Attributes:
        channel, event: What the class is called.
        fields: Name of each field that is recorded, and whether it names a secret.
        in_dict: Whether the fields are in the instance's dict.
        has_run: Whether what is known of the run is recorded with it.
    """

    channel: str
    event: str
    fields: tuple[tuple[str, bool], ...]
    in_dict: bool
    has_run: bool


@lru_cache(maxsize=1024)
def _shape(cls: Any) -> _Shape:
    has_run = issubclass(cls, InferenceStartedEvent | InferenceDeniedEvent)
    names = [field.name for field in payload_fields(cls)]
    if issubclass(cls, CatalogEvent) and not has_run:
        names.remove("run")
    return _Shape(
        channel=cls.channel,
        event=cls.__name__,
        fields=tuple((name, is_secret(name)) for name in names),
        in_dict=not any(hasattr(getattr(cls, name, None), "__set__") for name in names),
        has_run=has_run,
    )


def encode(event: Any) -> Row:
    """
    Make the row of an event.

    Args:
        event: Any event.

    Returns:
        The row. No Exception is raised while there is stack left for one that says nothing but which event
        it was; a BaseException that is none goes through.
    """
    shape = _shape(cast("Hashable", type(event)))
    redact = settings.redact
    lossy = False
    if redact is None:
        try:
            payload = _short(event, shape)
            text = _dumps(payload)
        except Exception:
            payload, text, lossy = _long(event, shape, default_redact)
    else:
        payload, text, lossy = _long(event, shape, redact)
    cid = event.correlation_id
    moment = event.timestamp
    if type(moment) is not float or not math.isfinite(moment):
        moment, lossy = _moment(moment, lossy)
    call = payload.get("tool_call")
    return (
        cid if cid is None or (type(cid) is str and len(cid) <= MAX_NAME and cid.isascii()) else _id(cid),
        moment,
        shape.channel,
        shape.event,
        _name(payload.get("span_id")),
        _name(payload.get("agent")),
        _name(cast("dict[str, Any]", call).get("name")) if type(call) is dict else None,
        _number(payload.get("duration")),
        1 if lossy else 0,
        text,
    )


def _short(event: Any, shape: _Shape) -> dict[str, Any]:
    state: dict[str, Any] = event.__dict__
    payload: dict[str, Any] = {}
    budget = [_NODES]
    for name, secret in shape.fields:
        value = state[name] if shape.in_dict else getattr(event, name)
        kind = _type_of(value)
        if value is None or kind is bool:
            payload[name] = value
        elif secret:
            payload[name] = _hidden(value)
        elif kind is str:
            if len(value) > _TEXT:
                raise _Unusual
            payload[name] = redact_text(value)
        else:
            payload[name] = _copy(value, 0, budget)
    extra = state.get("_extra")
    if extra is not None:
        more = _copy(
            extra if shape.has_run else {k: v for k, v in _dict_items(extra) if type(v) is not RunInfo},
            0,
            budget,
        )
        if not payload.keys().isdisjoint(more):
            raise _Unusual
        payload.update(more)
    return payload


def _hidden(value: Any) -> Any:
    kind = _type_of(value)
    if kind is str:
        return MASK
    if value is None or kind is bool or (kind is int and -_INT <= value < _INT):
        return value
    raise _Unusual


def _copy(value: Any, depth: int, budget: list[int]) -> Any:
    kind = _type_of(value)
    if kind is str:
        if len(value) > _TEXT:
            raise _Unusual
        return redact_text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if -_INT <= value < _INT:
            return value
        raise _Unusual
    if kind is float:
        if math.isfinite(value):
            return value
        raise _Unusual
    if kind is Agent:
        return _copy(str.__str__(value), depth, budget)
    if depth >= _DEPTH:
        raise _Unusual
    if kind is dict or kind is ReadOnlyDict:
        budget[0] -= len(value)
        if budget[0] < 0:
            raise _Unusual
        result: dict[str, Any] = {}
        for key, item in _dict_items(value):
            if type(key) is not str or len(key) > _SMALL_KEY:
                raise _Unusual
            name, hidden = _key(key)
            if name is not key and name != key:
                raise _Unusual
            result[key] = _hidden(item) if hidden else _copy(item, depth + 1, budget)
        return result
    if kind is list or kind is ReadOnlyList or kind is tuple:
        budget[0] -= len(value)
        if budget[0] < 0:
            raise _Unusual
        items = _list_iter(value) if kind is not tuple else value
        return [_copy(item, depth + 1, budget) for item in items]
    names = _VALUES.get(kind)
    if names is None:
        raise _Unusual
    budget[0] -= len(names)
    return {name: _copy(getattr(value, name), depth + 1, budget) for name in names}


def _long(event: Any, shape: _Shape, redact: Redact) -> tuple[dict[str, Any], str, bool]:
    try:
        copy = plain(_read(event, shape, redact), redact=redact, limits=LIMITS)
        # Where there was no stack left it is no dict, but a mark.
        payload: dict[str, Any] = {CUT: CUT} if isinstance(copy.value, str) else copy.value
        try:
            text, lossy = _dumps(payload), bool(copy.lossy)
        except (TypeError, ValueError):
            # An integer of more than 64 bits, or half of a surrogate pair, which is no text to SQLite.
            text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
            clean = _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)
            text, lossy = clean, bool(copy.lossy) or clean != text
        return payload, text, lossy
    except Exception:
        return {}, "{}", True


def _dumps(payload: dict[str, Any]) -> str:
    if _fast_dumps is not None:
        return _fast_dumps(payload).decode()
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    if not text.isascii() and _SURROGATE.search(text) is not None:
        msg = "half of a surrogate pair"
        raise ValueError(msg)
    return text


def _read(event: Any, shape: _Shape, redact: Redact) -> dict[str, Any]:
    is_ours = isinstance(event, CatalogEvent)
    values: dict[str, Any] = {}
    for name, _ in shape.fields:
        values[name] = _convert(name, getattr(event, name), redact, is_ours=is_ours)
    for name, value in _dict_items(event.__dict__.get("_extra") or {}):
        if type(value) is not RunInfo:
            values[name] = _convert(name, value, redact, is_ours=False)
    return values


def _convert(name: str, value: Any, redact: Redact, *, is_ours: bool) -> Any:
    kind = _type_of(value)
    if issubclass(kind, BaseException):
        return _error(value, name, redact)
    if issubclass(kind, EventRoot):
        # Not what is in it: it may be what a gate was to keep back.
        return {
            "event": kind.__name__,
            "channel": value.channel,
            "correlation_id": value.correlation_id,
            "span_id": value.__dict__.get("span_id"),
        }
    if not is_ours or value is None or issubclass(kind, str | dict):
        return value
    if name == "agent":
        return _attribute(value, "name", value)
    if name == "tool_calls" and issubclass(kind, list | tuple):
        return [_convert("tool_call", one, redact, is_ours=True) for one in islice(value, LIMITS.nodes)]
    wanted = _STAND_INS.get(name)
    if wanted is None or not all(_has(value, one) for one in wanted):
        return value
    read = {one: _attribute(value, one, None) for one in wanted}
    if issubclass(type(read.get("error")), BaseException):
        read["error"] = _error(read["error"], name, redact)
    return read


def _has(value: Any, name: str) -> bool:
    missing = object()
    return _attribute(value, name, missing) is not missing


def _attribute(value: Any, name: str, default: Any) -> Any:
    try:
        return getattr(value, name, default)
    except Exception:
        return default


def _error(error: BaseException, name: str, redact: Redact) -> dict[str, Any]:
    frames = error_frames(error)
    return {
        "type": type_name(type(error)),
        "text": error_message(error),
        "frames": frames,
        "traceback": _traceback(error, name, redact),
    }


def _traceback(error: BaseException, name: str, redact: Redact) -> str:
    chain: list[str] = []
    seen: set[int] = set()
    one: BaseException | None = error
    link = ""
    try:
        while one is not None and id(one) not in seen and len(chain) < _ERRORS:
            seen.add(id(one))
            stack = traceback.StackSummary.extract(traceback.walk_tb(one.__traceback__), limit=-_FRAMES)
            # Its text is looked into for itself, as JSON perhaps, which it is no longer within the whole.
            text = apply(redact, (name, "text"), error_message(one))
            head = "Traceback (most recent call last):\n" if stack else ""
            chain.append(f"{head}{''.join(stack.format())}{error_name(one)}: {text}\n{link}")
            if one.__cause__ is not None:
                one, link = one.__cause__, "\nThe above exception was the direct cause of the following:\n\n"
            elif one.__suppress_context__:
                break
            else:
                one, link = one.__context__, "\nDuring handling of the above, another exception occurred:\n\n"
    except Exception:
        chain.append(f"{CUT}\n")
    return "".join(reversed(chain))


def _id(cid: Any) -> str:
    return _spelt(cid_itself(cid))


def _name(value: Any) -> str | None:
    if value is None or type(value) is not str:
        return None
    if len(value) > MAX_NAME:
        value = value[: MAX_NAME - 1] + CUT
    return _spelt(value)


def _spelt(text: str) -> str:
    # Half of a surrogate pair is no text to SQLite.
    return text if text.isascii() else _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _number(value: Any) -> float | None:
    try:
        return float(value) if type(value) is float or type(value) is int else None
    except OverflowError:
        return None


def _moment(value: Any, lossy: bool) -> tuple[float, bool]:
    try:
        moment = float(value)
        if math.isfinite(moment):
            return moment, lossy
    except Exception:
        # It is told by the mark.
        return time.time(), True
    return time.time(), True
