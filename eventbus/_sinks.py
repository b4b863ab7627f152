"""
Where lines go: stderr, JSON on stderr, a stdlib logger, a structlog logger.

A sink may raise; whoever calls it counts that and goes on.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import structlog

from ._lines import Line, error_text, escape, format_line, stamp
from ._plain import CUT, Limits, plain
from ._redact import default_redact
from ._settings import Redact

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

LEVEL_NUMBERS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

JSON_LINE: Final = 4095
JSON_LIMITS: Final = Limits(depth=32, nodes=512, text=256, total=2048)


class Entry(NamedTuple):
    """
    One thing to log.

    Attributes:
        level: "debug", "info", "warning" or "error".
        timestamp: Seconds since the epoch.
        cid: The correlation id.
        channel: The channel of the event; None for a notice of the bus itself.
        body: The line without timestamp and id, redacted and printable.
        line: Its parts, where they are known; a user's own `log_line` is text only.
        payload: What structured outputs add: argument keys, or a user event's payload.
    """

    level: str
    timestamp: float
    cid: str | None
    channel: str | None
    body: str
    line: Line | None
    payload: Mapping[str, Any]


class Sink(Protocol):
    """
    Takes entries.
    """

    def __call__(self, entry: Entry) -> object:
        """
        Write one; may raise.
        """


class Stderr:
    """
    The end of structlog's chain for lines on stderr: one write each, nothing buffered.

    What is buffered for a stderr that fails is tried again at exit, and turns the exit status to 120; a direct
    write fails here and now. A stderr that was replaced (a test's, a notebook's) is written to as it is.
    """

    def write(self, line: str) -> None:
        """
        Write one line.
        """
        stream = sys.stderr
        if stream is None:
            msg = "there is no stderr"
            raise OSError(msg)
        text = line + "\n"
        if stream is not sys.__stderr__:
            stream.write(text)
            stream.flush()
            return
        data = text.encode(stream.encoding or "utf-8", "backslashreplace")
        descriptor = stream.fileno()
        while data:
            data = data[os.write(descriptor, data) :]


class LineLogger(structlog.BoundLoggerBase):
    """
    A private structlog logger whose processors make one line of an entry.
    """

    def write(self, entry: Entry) -> Any:
        """
        Send one entry through the processors and on to the stream.
        """
        return self._proxy_to_logger("write", None, entry=entry)


def line_logger(render: Callable[[Entry], str]) -> LineLogger:
    """
    Return a private structlog logger on stderr; the global configuration is neither read nor changed.
    """

    def processor(_logger: Any, _method: str, event_dict: MutableMapping[str, Any]) -> str:
        return render(event_dict["entry"])

    return LineLogger(Stderr(), [processor], {})


def stderr_sink() -> Sink:
    """
    Lines on stderr.
    """
    return line_logger(lambda entry: format_line(entry.timestamp, entry.cid, entry.body)).write


def json_sink(redact: Callable[[], Redact]) -> Sink:
    """
    One JSON object per line on stderr.
    """

    def render(entry: Entry) -> str:
        record = {
            "event": event_name(entry),
            "channel": entry.channel,
            "cid": entry.cid,
            "timestamp": stamp(entry.timestamp),
            "level": entry.level,
            **structured(entry, redact()),
        }
        text = _dumps(record)
        if len(text) > JSON_LINE:
            record = {key: _shortened(value) for key, value in record.items()}
            text = _dumps(record)
        return text

    return line_logger(render).write


def _dumps(record: Mapping[str, Any]) -> str:
    # ASCII but for DEL, which JSON lets stand.
    return json.dumps(record, default=str).replace("\x7f", "\\u007f")


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else _dumps({"": value})[5:-1]
    return value if len(text) <= 128 else text[:127] + CUT


def stdlib_sink(logger: logging.Logger | logging.LoggerAdapter[Any], redact: Callable[[], Redact]) -> Sink:
    """
    Records of a stdlib logger: the message is the body, `cid` and one `eventbus` dict are extras.
    """

    def write(entry: Entry) -> None:
        level = LEVEL_NUMBERS[entry.level]
        if not logger.isEnabledFor(level):
            return
        facts = {
            "event": event_name(entry),
            "channel": entry.channel,
            "cid": entry.cid,
            "timestamp": entry.timestamp,
            **structured(entry, redact()),
        }
        error = None if entry.line is None else entry.line.error
        logger.log(
            level,
            "%s",
            entry.body,
            extra={"cid": entry.cid or "--------", "eventbus": facts},
            exc_info=exc_info(error, redact()) if isinstance(error, BaseException) else None,
        )

    return write


def structlog_sink(logger: Any, redact: Callable[[], Redact]) -> Sink:
    """
    The application's own structlog logger: an event and key-values.
    """

    def write(entry: Entry) -> None:
        facts = {"cid": entry.cid, "channel": entry.channel, **structured(entry, redact())}
        facts.pop("event", None)
        getattr(logger, entry.level)(event_name(entry), **facts)

    return write


def event_name(entry: Entry) -> str:
    """
    Return what structured outputs call the entry: its words, or a user's whole line.
    """
    return entry.body if entry.line is None else " ".join(entry.line.words)


def structured(entry: Entry, redact: Redact) -> dict[str, Any]:
    """
    Return the values of an entry by name, redacted and within bounds.
    """
    values: dict[str, Any] = {}
    if entry.line is not None:
        if entry.line.subject is not None:
            name, subject = entry.line.subject
            values[name] = subject
        values.update((key, value) for key, value in entry.line.fields.items() if value is not None)
    values.update(entry.payload)
    safe = {
        key: _printable(plain(value, redact=redact, path=(key,), limits=JSON_LIMITS).value)
        for key, value in values.items()
    }
    if entry.line is not None and entry.line.error is not None:
        safe["error"] = error_text(entry.line.error, redact)
    return safe


def _printable(value: Any) -> Any:
    return escape(value) if isinstance(value, str) else value


def exc_info(error: BaseException, redact: Redact) -> ExcInfo:
    """
    Return what `logging` makes a traceback of; with a masked stand-in where the error's texts hold a secret.
    """
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    if all(_masked(link, redact) == _text(link) for link in chain):
        return (type(error), error, error.__traceback__)
    kind = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    stand_in: Exception = kind(_masked(error, redact))
    return (kind, stand_in, error.__traceback__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _masked(error: BaseException, redact: Redact) -> str:
    value = redact(("error",), _text(error))
    return value if isinstance(value, str) else str(value)


def resolve_redact(redact: Redact | None) -> Redact:
    """
    Return the redaction in force.
    """
    return default_redact if redact is None else redact
