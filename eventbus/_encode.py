"""
From an event to a row of the trace store: redacted, bounded, encoded as JSON. Making a row cannot fail.

It is done when the event is emitted, on the emitting thread, so that what changes later is not recorded.
"""

from __future__ import annotations

import importlib
import math
import re
import time
import traceback
from collections.abc import Callable, Hashable
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

from ._emitter import payload_fields
from ._event import EventRoot
from ._frames import error_frames, error_message, error_name
from ._lines import cid_itself, make_encode
from ._plain import CUT, Limits, Walk, dict_items, type_name, type_of
from ._redact import apply, default_redact, is_secret
from ._settings import Redact, settings
from .catalog import CatalogEvent, InferenceDeniedEvent, InferenceStartedEvent
from .values import RunInfo, ToolCall, ToolResult

Row: TypeAlias = tuple[
    str | None, float, str, str, str | None, str | None, str | None, float | None, int, str
]
"""The columns of `_schema.COLUMNS`."""

LIMITS: Final = Limits()
"""How much is kept of one event's payload."""

MAX_NAME: Final = 256
"""Characters that are kept of an agent's or a tool's name in its column."""

# How much of a chain of errors is kept, and of the stack of each.
_ERRORS: Final = 8
_FRAMES: Final = 32

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_STAND_INS: Final[dict[str, tuple[str, ...]]] = {
    "tool_call": ("id", "name", "input"),
    "result": ("data", "error"),
}
"""What is read of an object in a field of the catalog that stands in for one of ours."""


def _find_orjson() -> Callable[[Any], bytes] | None:
    try:
        found: Callable[[Any], bytes] = importlib.import_module("orjson").dumps
    except ImportError:
        return None
    return found


_fast_dumps = _find_orjson()
_dumps = make_encode((",", ":"))


class _Shape(NamedTuple):
    """
    What is the same for all events of a class.

    Attributes:
        channel, event: What the class is called.
        fields: The name of each that is recorded, and whether it names a secret.
        is_ours: Whether it is of the catalog, whose fields are known.
    """

    channel: str
    event: str
    fields: tuple[tuple[str, bool], ...]
    is_ours: bool


@lru_cache(maxsize=1024)
def _shape(cls: Any) -> _Shape:
    names = [field.name for field in payload_fields(cls)]
    is_ours = issubclass(cls, CatalogEvent)
    # What is known of the run is recorded with its start.
    if is_ours and not issubclass(cls, InferenceStartedEvent | InferenceDeniedEvent):
        names.remove("run")
    return _Shape(cls.channel, cls.__name__, tuple((name, is_secret(name)) for name in names), is_ours)


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
    try:
        payload, is_cut = _payload(event, shape, settings.redact or default_redact)
        text, lossy = _spell(payload)
        lossy = lossy or is_cut
    except Exception:
        payload, text, lossy = {}, "{}", True
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


def _payload(event: Any, shape: _Shape, redact: Redact) -> tuple[dict[str, Any], bool]:
    payload: dict[str, Any] = {}
    # One walk: what is kept of all fields together is bounded.
    walk = Walk(redact, LIMITS)
    for name, secret in shape.fields:
        value = getattr(event, name)
        kind = type_of(value)
        if walk.default and (value is None or kind is bool):
            payload[name] = value
            continue
        if kind is not str and kind is not int and kind is not float:
            value = _convert(name, value, redact, is_ours=shape.is_ours)
        payload[name] = walk.walk(value, (None, name), secret, 1)
    extra = event.__dict__.get("_extra")
    if extra:
        raw = {
            name: _convert(name, value, redact, is_ours=False)
            for name, value in dict_items(extra)
            if type(value) is not RunInfo
        }
        copy = walk.copy(raw, ())
        # Where there was no room left it is no dict, but a mark.
        more: dict[str, Any] = {CUT: CUT} if copy == CUT else copy
        payload = {**payload, **more, **payload}
    return payload, walk.lossy


def _spell(payload: dict[str, Any]) -> tuple[str, bool]:
    if _fast_dumps is not None:
        try:
            return _fast_dumps(payload).decode(), False
        except (TypeError, ValueError):
            # An integer of more than 64 bits, or half of a surrogate pair.
            pass
    text = _dumps(payload)
    if text.isascii():
        return text, False
    # Half of a surrogate pair is no text to SQLite.
    clean = _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)
    return clean, clean != text


def _convert(name: str, value: Any, redact: Redact, *, is_ours: bool) -> Any:
    kind = type_of(value)
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
    if kind is ToolCall or (kind is ToolResult and not issubclass(type_of(value.error), BaseException)):
        return value
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
