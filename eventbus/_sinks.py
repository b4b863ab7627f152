"""
Where lines go: stderr, JSON on stderr, a stdlib logger, a structlog logger.

A sink may raise; whoever calls it counts that and goes on.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, TextIO, TypeAlias, cast

import structlog

from ._event import Event
from ._frames import error_message
from ._lines import NO_CID, Line, cid_itself, error_text, escape, format_line, stamp
from ._plain import CUT, Limits, plain
from ._redact import MASK, apply, mask_text
from ._report import Notice
from ._settings import Redact
from .catalog import CatalogEvent

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]
AnyLogger: TypeAlias = "logging.Logger | logging.LoggerAdapter[Any]"

LEVEL_NUMBERS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

JSON_LINE: Final = 4095
JSON_SHORT: Final = 128
JSON_LIMITS: Final = Limits(depth=32, nodes=512, text=256, total=2048)

ADDED: Final = ("parent_id", "turn", "model", "attempt", "answered_by", "duration", "span_id")
"""What structured outputs add of an event of the catalog, where its line does not have it."""

Entry: TypeAlias = tuple[str, Event | Notice, str, Line | None]
"""
One thing to log: its level, "debug", "info", "warning" or "error"; the event, or a notice of the bus itself;
the line without timestamp and id, redacted and printable; its parts, unless it is a user's own `log_line`.

A plain tuple: of a line on stderr, one with names would be a twentieth of the cost.
"""

TAKEN: Final = frozenset(
    {"channel", "cid", "error", "event", "exc_info", "level", "self", "stack_info", "timestamp"}
)
"""Keys that mean something to an output; the payload of a user's event gets an underscore after them."""


class Sink(Protocol):
    """
    Takes entries.
    """

    def __call__(self, entry: Entry, /) -> object:
        """
        Write one; may raise.
        """


class Stderr:
    """
    The end of structlog's chain for lines on stderr: one write each, nothing buffered.

    What is buffered for a stderr that fails is tried again at exit, and turns the exit status to 120; a
    direct write fails here and now. A stderr that was replaced (a test's, a notebook's) is written to as it
    is.
    """

    def write(self, line: str) -> None:
        """
        Write one line.

        Raises:
            OSError: If there is no stderr, or it does not take the line.
            ValueError: If it is closed.
        """
        stream: TextIO | None = sys.stderr
        original: TextIO | None = sys.__stderr__
        if stream is None:
            msg = "there is no stderr"
            raise OSError(msg)
        text = line + "\n"
        if stream is not original:
            try:
                stream.write(text)
            except UnicodeEncodeError as error:
                stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            if hasattr(stream, "flush"):
                stream.flush()
            return
        data = text.encode(stream.encoding, "backslashreplace")
        descriptor = stream.fileno()
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, data[written:])


class LineLogger(structlog.BoundLoggerBase):
    """
    A private structlog logger whose processors make one line of an entry.

    They are given the entry itself, not an event dict, whose assembly would cost as much as the line.
    """

    def write(self, entry: Entry) -> None:
        """
        Send one entry through the processors and on to the stream.
        """
        line: Any = entry
        for processor in self._processors:
            line = processor(self._logger, "write", line)
        self._logger.write(line)


def line_logger(render: Callable[[Any, str, Any], str]) -> LineLogger:
    """
    Return a private structlog logger on stderr; the global configuration is neither read nor changed.

    Args:
        render: A processor that makes a line of an entry.
    """
    return LineLogger(Stderr(), [render], {})


def stderr_sink() -> Sink:
    """
    Return a sink for lines on stderr.
    """

    def render(_logger: Any, _method: str, entry: Entry) -> str:
        _, source, text, _ = entry
        return format_line(source.timestamp, source.correlation_id, text)

    return line_logger(render).write


def json_sink(redact: Callable[[], Redact]) -> Sink:
    """
    Return a sink for one JSON object per line on stderr, of 4 KiB at most.
    """

    def render(_logger: Any, _method: str, entry: Entry) -> str:
        level, source, text, line = entry
        record: dict[str, Any] = {
            "event": event_name(text, line),
            "channel": channel(source),
            "cid": cid(source),
            "timestamp": stamp(source.timestamp),
            "level": level,
        }
        own = len(record)
        record.update(structured(source, line, redact()))
        text = _dumps(record)
        if len(text) > JSON_LINE:
            record = {key: _shortened(value) for key, value in record.items()}
            text = _dumps(record)
        while len(text) > JSON_LINE and len(record) > own:
            # Half of what can go, so that a thousand keys take ten rounds.
            kept = own + (len(record) - own) // 2
            record = dict(list(record.items())[:kept])
            text = _dumps({**record, CUT: CUT})
        return text

    return line_logger(render).write


def _dumps(record: Mapping[str, Any]) -> str:
    # ASCII but for DEL, which JSON lets stand.
    return json.dumps(record).replace("\x7f", "\\u007f")


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else _dumps({"": value})[5:-1]
    return value if len(text) <= JSON_SHORT else text[: JSON_SHORT - 1] + CUT


def stdlib_sink(logger: AnyLogger, redact: Callable[[], Redact]) -> Sink:
    """
    Return a sink for records of a stdlib logger: body as message, `cid` and one `eventbus` dict as extras.
    """

    def write(entry: Entry) -> None:
        level, source, text, line = entry
        number = LEVEL_NUMBERS[level]
        if not logger.isEnabledFor(number):
            return
        own = cid(source)
        facts = {
            "event": event_name(text, line),
            "channel": channel(source),
            "cid": own,
            "timestamp": source.timestamp,
            "level": level,
            **structured(source, line, redact()),
        }
        extra = {"cid": NO_CID if own is None else escape(own), "eventbus": facts}
        message, target, options = text, logger, dict[str, Any]()
        while isinstance(target, logging.LoggerAdapter):
            # Its own extras would take the place of these: they are put together here instead.
            message, changed = target.process(message, options)
            options, target = dict(changed), target.logger
        options["extra"] = {**(options.get("extra") or {}), **extra}
        error = None if line is None else line.error
        if isinstance(error, BaseException):
            options["exc_info"] = exc_info(error, redact())
        target.log(number, "%s", message, **options)

    return write


def structlog_sink(logger: Any, redact: Callable[[], Redact]) -> Sink:
    """
    Return a sink for the application's own structlog logger: an event and key-values.

    While structlog is not configured, a logger that leaves everything to its configuration would print to
    stdout; until it is, lines go to stderr.
    """
    unconfigured = stderr_sink()
    on_its_own = getattr(logger, "_logger", logger) is not None

    def write(entry: Entry) -> None:
        if on_its_own or structlog.is_configured():
            level, source, text, line = entry
            own = cid(source)
            facts = {
                # A renderer may write texts as they are, to a terminal.
                "cid": None if own is None else escape(own),
                "channel": channel(source),
                **structured(source, line, redact()),
            }
            getattr(logger, level)(event_name(text, line), **facts)
        else:
            unconfigured(entry)

    return write


def event_name(text: str, line: Line | None) -> str:
    """
    Return what structured outputs call an entry: its words, or a user's whole line.
    """
    return text if line is None else " ".join(line.words)


def channel(source: Event | Notice) -> str | None:
    """
    Return the channel of an event; None for a notice.
    """
    return None if isinstance(source, Notice) else type(source).channel


def cid(source: Event | Notice) -> str | None:
    """
    Return the correlation id itself, cut like a value; None if there is none.
    """
    return None if source.correlation_id is None else cid_itself(source.correlation_id)


def structured(source: Event | Notice, line: Line | None, redact: Redact) -> dict[str, Any]:
    """
    Return the values of an entry by name, redacted and within bounds.
    """
    safe: dict[str, Any] = {}
    values: dict[str, Any] = {}
    if line is not None:
        if line.subject is not None:
            values[line.subject[0]] = line.subject[1]
        values.update(line.fields)
    if not isinstance(source, Notice):
        for key, value in extras(source).items():
            values.setdefault(key, value)
    for key, value in values.items():
        if value is not None:
            copy = plain(value, redact=redact, path=(key,), limits=JSON_LIMITS).value
            name = escape(mask_text(key))
            while name in safe:
                name = f"{name}~{len(safe)}"
            safe[name] = escape(copy) if isinstance(copy, str) else copy
    if line is not None and line.error is not None:
        safe["error"] = error_text(line.error, redact)
    return safe


def extras(event: Event) -> Mapping[str, Any]:
    """
    Return what structured outputs add to a line.

    Of the catalog's events, that is numbers and ids, and the argument keys of a tool call; of a user's event
    its payload.
    """
    payload = event.payload
    if not isinstance(event, CatalogEvent):
        return {_free_name(key, payload) if key in TAKEN else key: value for key, value in payload.items()}
    added = {key: payload.get(key) for key in ADDED}
    try:
        arguments = payload["tool_call"].input
        if isinstance(arguments, Mapping):
            added["arguments"] = list(cast("Any", arguments))
    except Exception:
        # There is no call, or it is one of a kind that has no such thing.
        return added
    return added


def _free_name(key: str, payload: Mapping[str, Any]) -> str:
    name = key + "_"
    while name in payload:
        name += "_"
    return name


def exc_info(error: BaseException, redact: Redact) -> ExcInfo:
    """
    Return what `logging` makes a traceback of; with masked stand-ins where the errors' texts hold a secret.

    What the traceback shows of the source is code, and is left alone.
    """
    errors: dict[int, BaseException] = {}
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseException) and id(one) not in errors:
            errors[id(one)] = one
            waiting += [one.__cause__, one.__context__]
            if isinstance(one, BaseExceptionGroup):
                waiting += cast("Any", one).exceptions
    texts = {key: _texts(one) for key, one in errors.items()}
    masked = {key: [_masked(text, redact) for text in own] for key, own in texts.items()}
    if masked == texts:
        return (type(error), error, error.__traceback__)
    stand_ins = {key: _stand_in(one, masked[key]) for key, one in errors.items()}
    for key, one in errors.items():
        stand_in = stand_ins[key]
        stand_in.__cause__ = stand_ins.get(id(one.__cause__))
        stand_in.__context__ = stand_ins.get(id(one.__context__))
        stand_in.__suppress_context__ = one.__suppress_context__
    mine = stand_ins[id(error)]
    return (type(mine), mine, error.__traceback__)


def _texts(error: BaseException) -> list[str]:
    notes: Any = getattr(error, "__notes__", None)
    return [error_message(error), *map(error_message, cast("Any", notes) if isinstance(notes, list) else ())]


def _masked(text: str, redact: Redact) -> str:
    answer = apply(redact, ("error",), text)
    return answer if isinstance(answer, str) else MASK


def _stand_in(error: BaseException, texts: list[str]) -> Exception:
    # Of a group the members are left out, whose texts it would show.
    kind = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    stand_in: Exception = kind(texts[0]).with_traceback(error.__traceback__)
    for note in texts[1:]:
        stand_in.add_note(note)
    return stand_in
