"""
EventLogger: the hook that writes one line for nearly every event.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Final, cast

import structlog

from . import _registry
from ._counters import counters
from ._event import Event
from ._hook import Hook, on
from ._lines import Line, body, escape
from ._plain import Limits, plain
from ._priority import Priority
from ._redact import default_redact
from ._report import Notice, failing, listeners
from ._settings import LEVELS, OUTPUTS, Redact, Unset, on_change, settings
from ._sinks import Entry, Sink, json_sink, stderr_sink, stdlib_sink, structlog_sink
from .catalog import CatalogEvent, GateDecisionEvent, HandlerFailedEvent

ENVIRONMENT: Final = "EVENTBUS_LOG"

OWN_LINE: Final = Limits(depth=8, nodes=100, text=4095, total=4095)
"""How much is taken of a user's own line: as much as a line holds."""

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
    def _accepts_in_write(cls, event_class: type[Event]) -> bool:
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
        cls = type(event)
        level, line = cls.log_level, None
        if isinstance(event, CatalogEvent) and cls.log_line is CatalogEvent.log_line:
            line = event._line()
            if line is not None and cls is HandlerFailedEvent:
                line = limited(line)
            elif isinstance(event, GateDecisionEvent):
                level = event._level()
                if level not in levels_in_force():
                    return
            if line is None:
                return
            text = body(line, settings.redact or default_redact)
        else:
            own = own_text(event.log_line())
            if own is None:
                return
            text = own
        send((level, event, text, line))


def own_text(line: str | None) -> str | None:
    """
    Return a user's own line redacted, printable and cut; None for no line.
    """
    if line is None:
        return None
    copy = plain(line, redact=redact(), path=("log_line",), limits=OWN_LINE).value
    if copy is None:
        return None
    return escape(copy if isinstance(copy, str) else json.dumps(copy, ensure_ascii=False))


def redact() -> Redact:
    """
    Return the redaction in force.
    """
    return settings.redact or default_redact


class Failures:
    """
    How many failure lines each handler has had in the last minute, and how many were left out.

    Args:
        clock: Gives seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._handlers: OrderedDict[Hashable, Handler] = OrderedDict()
        self.renew_lock()

    def renew_lock(self) -> None:
        """
        Begin with a free lock: a forked child has no thread that could give back the one held elsewhere.
        """
        # Re-entrant, for a signal's handler that fails while this thread counts a failure.
        self._lock = threading.RLock()

    def left_out(self, handler: Hashable) -> int | None:
        """
        Count a failure; return how many lines were left out before it, or None if this one is too.
        """
        now = self._clock()
        with self._lock:
            row = self._handlers.pop(handler, None) or Handler(deque(), 0)
            self._handlers[handler] = row
            if len(self._handlers) > MAX_LIMITED:
                self._handlers.popitem(last=False)
            while row.lines and now - row.lines[0] >= MINUTE:
                row.lines.popleft()
            if len(row.lines) >= FAILURES_PER_MINUTE:
                row.left_out += 1
                return None
            row.lines.append(now)
            left, row.left_out = row.left_out, 0
            return left


class Handler:
    """
    The failure lines of one handler: when they were written, and how many have been left out since.
    """

    __slots__ = ("left_out", "lines")

    def __init__(self, lines: deque[float], left_out: int) -> None:
        self.lines = lines
        self.left_out = left_out


failures = Failures()


def after_fork() -> None:
    """
    Let a forked child write failure lines, whoever was about to write one in its parent.
    """
    failures.renew_lock()


# Not held over the fork, as the registry's lock is: of two such locks each could wait for the other.
os.register_at_fork(after_in_child=after_fork)


def limited(line: Line) -> Line | None:
    """
    Return a failure line, with the number of those left out before it; None if it is one too many.
    """
    handler: object = line.subject and line.subject[1]
    left = failures.left_out((handler if isinstance(handler, str) else "", failing()))
    if left is None:
        return None
    return line._replace(fields={**line.fields, "left_out": left}) if left else line


def output() -> str:
    """
    Return where lines go: what `configure` said, else the logger given, else the environment, else stderr.
    """
    if not isinstance(settings.log, Unset):
        return settings.log
    if settings.logger is not None:
        stdlib = isinstance(settings.logger, (logging.Logger, logging.LoggerAdapter))
        return "stdlib" if stdlib else "structlog"
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
    Make the sink in force, at the first line.
    """
    global _sink  # noqa: PLW0603 - one bus per process
    _sink = made = make_sink()
    return made


def make_sink() -> Sink:
    """
    Make the sink that the settings name; a logger that was given decides itself between its two kinds.
    """
    kind, logger = output(), settings.logger
    if kind == "json":
        return json_sink(redact)
    if kind not in {"stdlib", "structlog"}:
        return stderr_sink()
    if logger is None:
        logger = logging.getLogger("eventbus") if kind == "stdlib" else structlog.get_logger("eventbus")
    if isinstance(logger, logging.Logger | logging.LoggerAdapter):
        return stdlib_sink(cast("Any", logger), redact)
    return structlog_sink(logger, redact)


def send(entry: Entry) -> None:
    """
    Hand an entry to the sink; one that it does not take is counted.
    """
    try:
        (_sink or sink())(entry)
    except Exception:
        counters.log_dropped += 1


def _write_notice(notice: Notice) -> None:
    # A notice is a line like any other: it is there while an EventLogger is, at its level.
    if output() == "off" or notice.level not in levels_in_force() or not _is_live():
        return
    line = Line(notice.words, notice.subject, notice.fields, notice.error)
    send((notice.level, notice, body(line, redact()), line))


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
