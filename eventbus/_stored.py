"""
Stored events as events again: their classes, what their fields said, and their lines in the log.

A class is looked up by its channel among those that are registered, and never imported. What JSON could not
hold stays what was stored in its place.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

from . import _registry
from ._emitter import payload_fields
from ._errors import EventbusError
from ._event import Event, EventRoot
from ._lines import Line, body, escape, format_line
from ._reader import StoredEvent
from ._settings import LEVELS
from .catalog import CatalogEvent, HandlerFailedEvent
from .values import Message, ModelResponse, ToolCall, ToolResult

_ERROR: Final = frozenset({"type", "text", "frames", "traceback"})
_VALUES: Final[Mapping[frozenset[str], Callable[..., Any]]] = {
    frozenset(("id", "name", "input")): ToolCall,
    frozenset(("data", "error")): ToolResult,
    frozenset(("content", "tool_calls", "model", "usage", "finish_reason", "raw")): ModelResponse,
    frozenset(("text", "sender", "subject", "thread")): Message,
}
_REVIVED: Final = frozenset({"message", "response", "result", "tool_call", "tool_calls"})
"""The fields of the catalog that hold values of ours."""

_NESTED: Final = frozenset({"tool_calls", "error"})
"""The same, of the values themselves."""

_SHOWN: Final = 6
"""How many fields the line of an event without a line of its own shows."""


class StoredError(EventbusError, RuntimeError):
    """
    An exception as it was stored: its class is named as the first one's, and its text is what that one said.

    Attributes:
        frames: Where the first one was raised, innermost first, as lines show it.
    """

    def __init__(self, text: str, frames: tuple[str, ...] = ()) -> None:
        self.text = text
        self.frames = frames
        self.args = (text,)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=256)
def _error_class(name: str) -> type[StoredError]:
    # Only by its name: nothing is imported, and only exceptions that Python itself has are looked up.
    module, _, short = escape(name).rpartition(".")
    short = short or "Exception"
    known = vars(builtins).get(short) if module == "builtins" else None
    bases: tuple[type, ...] = (StoredError,)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, BaseExceptionGroup):
        bases = (StoredError, known)
    return cast("type[StoredError]", type(short, bases, {"__module__": module, "__qualname__": short}))


def as_dict(value: object) -> dict[str, Any]:
    """
    Return a value that is a dict; else an empty one.
    """
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def call_key(event: StoredEvent) -> tuple[str, str] | None:
    """
    Return the id and name of the tool call that an event is about; None without one.
    """
    call = as_dict(event.payload.get("tool_call"))
    return (str(call.get("id")), str(call.get("name"))) if call else None


def as_list(value: object) -> list[Any]:
    """
    Return a value that is a list; else an empty one.
    """
    found: Any = value
    return found if isinstance(value, list) else []


def as_error(told: object) -> object:
    """
    Make an exception of one that was stored; anything else stays as it is.
    """
    stored = as_dict(told)
    if stored.keys() != _ERROR:
        return told
    frames = tuple(map(str, as_list(stored["frames"])))
    return _error_class(str(stored["type"]))(str(stored["text"]), frames)


def revive(value: Any) -> Any:
    """
    Make a value of ours of one that was stored, told by its keys; anything else stays as it is.
    """
    if isinstance(value, list):
        return [revive(item) for item in cast("Iterable[Any]", value)]
    told = as_dict(value)
    made = _VALUES.get(frozenset(told))
    if made is None:
        return as_error(value)
    return made(**{key: revive(item) if key in _NESTED else item for key, item in told.items()})


def class_of(event: StoredEvent) -> type[Event] | None:
    """
    Return the registered class of a stored event, if there is one: by its channel, and of the same name.
    """
    cls = _registry.state.channels.get(event.channel)
    if cls is None or cls.__name__ != event.event or not issubclass(cls, Event):
        return None
    return cls


def fields_of(event: StoredEvent, cls: type[Event]) -> dict[str, Any]:
    """
    Return what an event said, as its class takes it; without the run that it belonged to.
    """
    fields = {key: as_error(value) for key, value in event.payload.items() if key != "run"}
    if issubclass(cls, CatalogEvent):
        fields = {key: revive(value) if key in _REVIVED else value for key, value in fields.items()}
    if cls is HandlerFailedEvent:
        fields["event"] = _bare_event(fields.get("event"))
    return fields


def _bare_event(value: object) -> EventRoot | None:
    # Only which event it was is stored, so that is all that it tells.
    told = as_dict(value)
    cls: Any = _registry.state.channels.get(str(told.get("channel")))
    if cls is None:
        return None
    event: EventRoot = object.__new__(cls)
    object.__setattr__(event, "timestamp", 0.0)
    for name in ("correlation_id", *(field.name for field in payload_fields(cls))):
        object.__setattr__(event, name, told.get(name))
    return event


def line_of(event: StoredEvent) -> str:
    """
    Write a stored event as a line of the log, those included that have none there: `EVENT OrderPlaced ...`.

    Returns:
        One printable line, which `parse_line` reads back; it has what was stored and was masked then.
    """
    text, error = _body(event)
    frames = error.frames if isinstance(error, StoredError) else ()
    if frames:
        text = f"{text} ({' < '.join(frames)})"
    return format_line(event.timestamp, event.correlation_id, text)


def _body(event: StoredEvent) -> tuple[str, object]:
    line = None
    cls = class_of(event)
    if cls is not None and issubclass(cls, CatalogEvent):
        try:
            line = cls(**fields_of(event, cls))._line()
        except Exception:
            # Stored by a version whose event had other fields, or by hand.
            line = None
    if line is None:
        line = Line(("EVENT",), ("event", event.event), _scalars(event))
    elif cls is HandlerFailedEvent:
        line = line._replace(fields={"on": as_dict(event.payload.get("event")).get("event")})
    return body(line), line.error


def _scalars(event: StoredEvent) -> dict[str, Any]:
    shown: dict[str, Any] = {"agent": event.agent, "tool": event.tool}
    for key, value in event.payload.items():
        if isinstance(value, str | int | float) and key not in {"span_id", "data"} and len(shown) < _SHOWN:
            # Nobody reads what is below a microsecond.
            shown.setdefault(
                key, round(value, 6) if key == "duration" and isinstance(value, float) else value
            )
    return shown


def summary_of(event: StoredEvent) -> str:
    """
    Write what fields of an event say that are one text or number, as `key=value`.
    """
    return body(Line((), None, {key: value for key, value in _scalars(event).items() if key != "agent"}))


def level_of(event: StoredEvent) -> str:
    """
    Return the level of a stored event's line: "debug", "info", "warning" or "error".
    """
    action = event.payload.get("action")
    if event.channel == "eventbus.gate.decision":
        return {"deny": "warning", "error": "error"}.get(str(action), "info")
    cls = class_of(event)
    return "info" if cls is None or cls.log_level not in LEVELS else cls.log_level
