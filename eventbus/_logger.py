"""
EventLogger: the hook that writes one line for nearly every event.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import structlog

from . import _registry
from ._counters import counters
from ._event import Event
from ._hook import Hook, on
from ._lines import Line, body, escape
from ._priority import Priority
from ._report import Notice, listeners
from ._settings import LEVELS, OUTPUTS, Redact, Unset, on_change, settings
from ._sinks import Entry, Sink, json_sink, resolve_redact, stderr_sink, stdlib_sink, structlog_sink
from .catalog import CatalogEvent, HandlerFailedEvent, ToolCallsReceivedEvent

ENVIRONMENT: Final = "EVENTBUS_LOG"

FAILURES_PER_MINUTE: Final = 10
MINUTE: Final = 60.0
MAX_LIMITED: Final = 1_000
"""How many handlers the limit of failure lines remembers."""


class EventLogger(Hook):
    """
    Writes the lines of the events that have one, to stderr unless `configure` says otherwise.

    It receives no event that has no line at the level in force. Subclass it to change what it does: that
    retires this class, as everywhere. A sink that fails costs the line, which is counted in `stats()`, and
    never reaches the run.
    """

    priority = Priority.OBSERVABILITY
    shared = True

    @classmethod
    def _accepts(cls, event_class: type[Event]) -> bool:
        return (
            output() != "off"
            and event_class.log_line is not Event.log_line
            and event_class.log_level in levels_in_force()
        )

    @on(Event)
    def write(self, event: Event) -> None:
        """
        Write an event's line.

        Args:
            event: Any event; one without a line is passed over.
        """
        line: Line | None = None
        if isinstance(event, CatalogEvent) and type(event).log_line is CatalogEvent.log_line:
            line = event._line()
            if isinstance(event, HandlerFailedEvent) and line is not None:
                line = limited(line)
            if line is None:
                return
            text = body(line, redact())
        else:
            own = event.log_line()
            if own is None:
                return
            text = escape(str(apply_redact(own)))
        send(
            Entry(
                type(event).log_level,
                event.timestamp,
                event.correlation_id,
                type(event).channel,
                text,
                line,
                extras(event) if line is None or output() != "stderr" else {},
            )
        )


def redact() -> Redact:
    """
    Return the redaction in force.
    """
    return resolve_redact(settings.redact)


def apply_redact(text: str) -> Any:
    """
    Redact a user's own line.
    """
    return redact()(("log_line",), text)


def extras(event: Event) -> Mapping[str, Any]:
    """
    Return what structured outputs add to a line: argument keys of a tool call, the payload of a user's event.
    """
    if not isinstance(event, CatalogEvent):
        return event.payload
    call = event.get("tool_call")
    arguments = getattr(call, "input", None)
    if isinstance(arguments, Mapping) and not isinstance(event, ToolCallsReceivedEvent):
        return {"arguments": sorted(map(str, arguments))}
    return {}


class _Failures:
    """
    How many failure lines each handler has had in this minute, and how many were left out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: OrderedDict[str, list[float]] = OrderedDict()

    def left_out(self, handler: str) -> int | None:
        """
        Count a failure; return how many lines were left out before it, or None if this one is too.
        """
        now = time.monotonic()
        with self._lock:
            row = self._handlers.pop(handler, None)
            left = 0
            if row is None or now - row[0] >= MINUTE:
                left = 0 if row is None else int(row[2])
                row = [now, 0, 0]
            self._handlers[handler] = row
            if len(self._handlers) > MAX_LIMITED:
                self._handlers.popitem(last=False)
            if row[1] >= FAILURES_PER_MINUTE:
                row[2] += 1
                return None
            row[1] += 1
            return left


_failures = _Failures()


def limited(line: Line) -> Line | None:
    """
    Return a failure line, with the number of those left out before it; None if it is one too many.
    """
    assert line.subject is not None  # noqa: S101 - a HOOK FAIL line has one
    left = _failures.left_out(str(line.subject[1]))
    if left is None:
        return None
    return line._replace(fields={**line.fields, "left_out": left}) if left else line


def output() -> str:
    """
    Return where lines go: what `configure` said, else the environment, else stderr.
    """
    if not isinstance(settings.log, Unset):
        return settings.log
    wanted = os.environ.get(ENVIRONMENT, "stderr").strip().lower()
    if wanted == "none":
        return "off"
    return wanted if wanted in OUTPUTS else "stderr"


def levels_in_force() -> tuple[str, ...]:
    """
    Return the levels that are logged.
    """
    return LEVELS[LEVELS.index(settings.level) :]


_sink: Sink | None = None


def sink() -> Sink:
    """
    Return the sink in force, made at the first line.
    """
    global _sink  # noqa: PLW0603 - one bus per process
    found = _sink
    if found is None:
        found = _sink = make_sink()
    return found


def make_sink() -> Sink:
    """
    Make the sink that the settings name.
    """
    kind, logger = output(), settings.logger
    if kind == "json":
        return json_sink(redact)
    if kind == "stdlib":
        return stdlib_sink(logger or logging.getLogger("eventbus"), redact)
    if kind == "structlog" and (logger is not None or structlog.is_configured()):
        return structlog_sink(logger or structlog.get_logger("eventbus"), redact)
    # An application that has not configured structlog would get its lines on stdout.
    return stderr_sink()


def send(entry: Entry) -> None:
    """
    Hand an entry to the sink; one that it does not take is counted.
    """
    try:
        sink()(entry)
    except Exception:
        counters.log_dropped += 1


def _write_notice(notice: Notice) -> None:
    # A notice is a line like any other: it is there while an EventLogger is, at its level.
    if output() == "off" or notice.level not in levels_in_force() or not _is_live():
        return
    line = Line(notice.words, notice.subject, notice.fields, notice.error)
    send(Entry(notice.level, notice.timestamp, notice.correlation_id, None, body(line, redact()), line, {}))


def _is_live() -> bool:
    return any(
        entry.live and issubclass(entry.cls, EventLogger) for entry in list(_registry.state.hooks.values())
    )


def _settings_changed(names: frozenset[str]) -> None:
    global _sink  # noqa: PLW0603 - as above
    if not names.isdisjoint({"log", "logger"}):
        _sink = None


on_change(_settings_changed)
listeners.notice = _write_notice
