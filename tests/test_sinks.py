"""Each output takes the lines in its own form, none shows a secret, and none that fails reaches the run."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys

import logged
import pytest
import strategies
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import AT, CID, FRAMES, HEAD, SECRET, STAMP, Records, lines_of, raised, stdlib_logger
from structlog.testing import CapturingLogger

from eventbus import (
    Event,
    EventLogger,
    InferenceFailedEvent,
    InferenceStartedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallFailedEvent,
    ToolCallsReceivedEvent,
    ToolResult,
    configure,
    stats,
)
from eventbus._report import notice

LOOKUP = ToolCall("call_0", "lookup_order", {"order": "A1", "customer": {"name": "Ada"}})
STARTED = InferenceStartedEvent(agent="sundae", **AT)
FOUND = ToolCallCompletedEvent(
    tool_call=LOOKUP, agent="sundae", result=ToolResult({"total": 12}), duration=0.5, span_id="ab" * 8, **AT
)


class OrderPlaced(Event):
    order_id: str
    total: float = 0.0

    def log_line(self) -> str:
        return f"ORDER PLACED id={self.order_id}"


def to_stdlib(emit, *handlers, logger=None):
    """Return the records that a function's emits make."""
    EventLogger.register()
    records = Records()
    configure(logger=logger or stdlib_logger(records, *handlers))
    emit()
    return records.records


def to_structlog(emit, **options):
    """Return the calls that a function's emits make of a structlog logger."""
    EventLogger.register()
    target = CapturingLogger()
    configure(logger=structlog.wrap_logger(target, processors=[], **options))
    emit()
    return target.calls


def to_json(emit):
    """Return the objects that a function's emits write to stderr."""
    configure(log="json")
    return [json.loads(line) for line in lines_of(emit)]


# stderr


def test_a_stderr_that_was_replaced_is_written_to():
    """Lines go to whatever `sys.stderr` is at that moment."""
    EventLogger.register()
    with contextlib.redirect_stderr(io.StringIO()) as first:
        STARTED.publish()
    with contextlib.redirect_stderr(io.StringIO()) as second:
        STARTED.publish()

    assert f"{HEAD}INF START agent=sundae\n" == first.getvalue() == second.getvalue()


def test_a_stderr_that_cannot_spell_a_character_gets_it_escaped():
    """A replaced stderr in ASCII is written to all the same."""
    EventLogger.register()
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with contextlib.redirect_stderr(stream):
        InferenceStartedEvent(agent="Müsli", **AT).publish()

    assert f"{HEAD}INF START agent=M\\xfcsli\n".encode() == raw.getvalue()


def test_a_stderr_without_flush_is_written_to():
    """A replaced stderr needs no more than `write`."""

    class Writes:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

    EventLogger.register()
    stream = Writes()
    dropped = stats()["log_dropped"]
    with contextlib.redirect_stderr(stream):
        STARTED.publish()

    assert f"{HEAD}INF START agent=sundae\n" == stream.text
    assert dropped == stats()["log_dropped"]


def test_the_real_stderr_is_written_to_past_its_buffer(monkeypatch, tmp_path):
    """A line on the process's own stderr is there as soon as emit returns; nothing is left in the buffer."""
    path = tmp_path / "stderr"
    EventLogger.register()
    with path.open("w", encoding="ascii", buffering=1000) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        InferenceStartedEvent(agent="Müsli", **AT).publish()
        written = path.read_text()
        monkeypatch.undo()

    assert f"{HEAD}INF START agent=M\\xfcsli\n" == written == path.read_text()


def test_a_line_that_is_taken_in_pieces_is_whole(monkeypatch):
    """A pipe that takes a part of a line at a time gets all of it."""
    reading, writing = os.pipe()
    EventLogger.register()
    real = os.write
    with os.fdopen(reading) as received, os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
        STARTED.publish()
        monkeypatch.undo()
        stream.close()

        assert f"{HEAD}INF START agent=sundae\n" == received.read()


def test_no_stderr_costs_the_line_and_is_counted(monkeypatch):
    """Where there is no stderr (`pythonw`), lines are counted as dropped."""
    EventLogger.register()
    dropped = stats()["log_dropped"]
    monkeypatch.setattr(sys, "stderr", None)
    STARTED.publish()

    assert dropped + 1 == stats()["log_dropped"]


EMITS = """
import eventbus
{before}
for _ in range(3):
    eventbus.InferenceStartedEvent.emit(agent="sundae")
print(eventbus.stats()["log_dropped"], eventbus.stats()["failures"])
"""


@pytest.mark.parametrize(
    "before",
    ["import os; os.close(2)", "import sys; sys.stderr.close()", "import sys; sys.stderr = None"],
)
@pytest.mark.parametrize("output", ["stderr", "json"])
def test_a_stderr_that_is_closed_never_reaches_the_run(before, output):
    """A closed stderr costs the lines and nothing else: they are counted, and the exit status stays 0."""
    done = logged.run(EMITS.format(before=before), env={"EVENTBUS_LOG": output})

    assert (0, "3 0\n") == (done.returncode, done.stdout)


def test_a_process_without_stderr_runs_on():
    """A process that was started with no stderr at all runs to its end."""
    done = logged.run(
        "import subprocess, sys; sys.exit(subprocess.call("
        f"['/bin/sh', '-c', 'exec \"$0\" -c \"$1\" 2>&-', sys.executable, {EMITS.format(before='')!r}]))"
    )

    assert (0, "3 0\n") == (done.returncode, done.stdout)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("output", ["stderr", "json"])
def test_a_full_disk_never_reaches_the_run(output):
    """A stderr on a full disk costs the lines and nothing else: they are counted, the exit status stays 0."""
    with open("/dev/full", "w") as full:
        done = logged.run(EMITS.format(before=""), env={"EVENTBUS_LOG": output}, stderr=full)

    assert (0, "3 0\n") == (done.returncode, done.stdout)


@pytest.mark.parametrize("output", ["stderr", "json", "stdlib", "structlog", "off"])
def test_nothing_is_ever_written_to_stdout(output):
    """No output writes to stdout, also when neither logging nor structlog is set up."""
    code = """
import eventbus
eventbus.OrderPlaced = type("OrderPlaced", (eventbus.Event,), {"log_line": lambda self: "ORDER PLACED"})
eventbus.InferenceStartedEvent.emit(agent="sundae")
eventbus.InferenceFailedEvent.emit(agent="sundae", error=ValueError("boom"))
eventbus.OrderPlaced.emit()
eventbus.OrderPlaced.subscribe(lambda event: 1 / 0)
eventbus.OrderPlaced.emit()
"""
    done = logged.run(code, env={"EVENTBUS_LOG": output})

    assert (0, "") == (done.returncode, done.stdout)
    assert ("off" == output) == ("" == done.stderr)


# JSON


def test_json_has_one_object_per_line():
    """A line as JSON has event, channel, cid, timestamp, level and the fields."""
    assert [
        {
            "event": "TOOL OK",
            "channel": "eventbus.tool_call.completed",
            "cid": CID,
            "timestamp": STAMP,
            "level": "info",
            "tool": "lookup_order",
            "id": "call_0",
            "data": {"total": 12},
            "arguments": ["order", "customer"],
            "duration": 0.5,
            "span_id": "ab" * 8,
        }
    ] == to_json(FOUND.publish)


def test_json_has_the_keys_of_arguments_only():
    """Of a tool's arguments the log has the names; of its answer the data, if `log_data` says so."""
    configure(log_data=False)
    [record] = to_json(FOUND.publish)

    assert "Ada" not in json.dumps(record)
    assert ["order", "customer"] == record["arguments"]
    assert "data" not in record


def test_json_has_no_arguments_of_a_call_whose_input_is_no_mapping():
    """A stand-in for a call may have its input as a text, which has no keys to show."""
    [record] = to_json(ToolCallCompletedEvent(tool_call=ToolCall("1", "look", "{}"), **AT).publish)  # type: ignore[arg-type]  # a stand-in's

    assert "arguments" not in record


def test_json_has_the_names_of_the_tools_received():
    """TOOLS RECV as JSON lists the tools by name."""
    [record] = to_json(ToolCallsReceivedEvent(tool_calls=[LOOKUP], **AT).publish)

    assert ["lookup_order"] == record["tools"]


def test_json_has_the_error_as_the_line_does():
    """An error as JSON is its text with its frames."""
    [record] = to_json(
        ToolCallFailedEvent(tool_call=LOOKUP, error=raised(RuntimeError("boom")), **AT).publish
    )

    assert ("error", f"RuntimeError: boom {FRAMES}") == (record["level"], record["error"])


def test_json_of_a_users_event_has_its_payload():
    """A user's event as JSON has its line as `event`, and its payload, raw keys included."""
    [record] = to_json(lambda: OrderPlaced.emit(order_id="A1", extra={"a": [1]}, **AT))

    assert {
        "event": "ORDER PLACED id=A1",
        "channel": "test_sinks.order_placed",
        "cid": CID,
        "timestamp": STAMP,
        "level": "info",
        "order_id": "A1",
        "total": 0.0,
        "extra": {"a": [1]},
    } == record


class Clashing(Event):
    """Has fields with the names that outputs use themselves."""

    level: str = "high"
    event: str = "party"
    cid: int = 7
    error: str = "none"
    exc_info: bool = True

    def log_line(self) -> str:
        return "CLASH"


CLASHES = {"level_": "high", "event_": "party", "cid_": 7, "error_": "none", "exc_info_": True}


def test_a_payload_key_that_an_output_uses_gets_an_underscore():
    """A user's field named `level` or `event` takes nobody's place, in any structured output."""
    [record] = to_json(Clashing(**AT).publish)
    assert {"level": "info", "event": "CLASH", "cid": CID, **CLASHES}.items() <= record.items()

    [record] = to_stdlib(Clashing(**AT).publish)
    assert CLASHES.items() <= record.eventbus.items()

    [call] = to_structlog(Clashing(**AT).publish)
    assert {"event": "CLASH", "cid": CID, **CLASHES}.items() <= call.kwargs.items()


def test_a_payload_key_that_has_the_underscore_already_is_kept():
    """`level` and `level_` of one payload are both there, whichever comes first."""
    for keys in (("level", "level_", "level__"), ("level_", "level__", "level")):
        payload = dict(zip(keys, (1, 2, 3), strict=True))
        [record] = to_json(lambda payload=payload: Wide.emit(**payload))
        assert payload["level"] == record["level___"]
        assert (payload["level_"], payload["level__"]) == (record["level_"], record["level__"])


def masked_keys(emit):
    """Return what each structured output has of a payload with odd keys."""
    [record], [call], [json_record] = to_stdlib(emit), to_structlog(emit), to_json(emit)
    return [
        {key: value for key, value in found.items() if value in (1, 2, 3)}
        for found in (record.eventbus, call.kwargs, json_record)
    ]


def test_a_secret_in_a_payload_key_is_masked():
    """A raw key with a secret in it is masked as nested ones are; keys that masks make equal are all kept."""
    payload = {f"token={SECRET}": 1, "token=other": 2, "plain key": 3}

    expected = {"token=[REDACTED]": 1, "token=[REDACTED]~1": 2, "plain key": 3}
    assert [expected] * 3 == masked_keys(lambda: Wide.emit(**payload, **AT))


def test_keys_that_escapes_make_equal_are_all_kept():
    """A key with a newline and one that spells it are two keys."""
    payload = {"a\nb": 1, r"a\nb": 2, r"a\nb~1": 3}

    expected = {r"a\nb": 1, r"a\nb~1": 2, r"a\nb~1~2": 3}
    assert [expected] * 3 == masked_keys(lambda: Wide.emit(**payload, **AT))


def test_json_of_a_notice_has_no_channel():
    """What the bus itself says is no event, so it has no channel."""
    [record] = to_json(lambda: notice("warning", ("HOOK", "SLOW"), ("hook", "A.b"), seconds=2.14))

    assert (None, "warning", "HOOK SLOW", "A.b", 2.14) == tuple(
        record[key] for key in ("channel", "level", "event", "hook", "seconds")
    )


class Wide(Event):
    def log_line(self) -> str:
        return "WIDE"


@pytest.mark.parametrize(
    "payload",
    [
        {"one": "x" * 100_000},
        {"one": ["é" * 200] * 400},
        {f"k{number}": "x" * 200 for number in range(30)},
        {f"k{number}": number for number in range(2000)},
        {f"k{number}" * 500: "\U0001f600" * 300 for number in range(9)},
    ],
)
def test_a_json_line_is_cut_at_4_kib(payload):
    """An object too long for a line is cut, by its values first, then by its keys; it is never dropped."""
    configure(log="json")
    [line] = lines_of(lambda: Wide.emit(**payload, **AT))
    record = json.loads(line)

    assert len(line.encode()) < 4096
    assert ("WIDE", CID, "info") == (record["event"], record["cid"], record["level"])
    assert "…" in record or any("…" in str(value) for value in record.values())


@settings(max_examples=100)
@given(
    strategies.json_objects(max_leaves=8),
    strategies.text(max_size=20),
    st.sampled_from([object(), float("nan"), b"\xff", {1, 2}, 2**70]),
)
def test_any_payload_is_one_object_on_one_line(payload, cid, odd):
    """Whatever a payload and an id are, the JSON output is one printable line that is one object."""
    configure(log="json")
    payload.pop("self", None)
    dropped = stats()["log_dropped"]
    [line] = lines_of(lambda: Wide.emit(**{**payload, "odd": odd, "correlation_id": cid}))

    assert line.isascii()
    assert line.isprintable()
    assert "WIDE" == json.loads(line)["event"]
    assert dropped == stats()["log_dropped"]


# stdlib logging


def test_a_stdlib_record_has_the_body_as_message():
    """The message of a record is the line without timestamp and id, at the line's level."""
    [record] = to_stdlib(FOUND.publish)

    assert 'TOOL OK lookup_order id=call_0 data={"total": 12}' == record.getMessage()
    assert (logging.INFO, "app") == (record.levelno, record.name)


def test_a_stdlib_record_has_cid_and_eventbus_as_extras():
    """A formatter may use `%(cid)s`; everything else is in one `eventbus` dict."""
    [record] = to_stdlib(FOUND.publish)

    assert f"{CID} TOOL OK" == logging.Formatter("%(cid)s %(message)s").format(record)[: len(CID) + 8]
    assert {
        "event": "TOOL OK",
        "channel": "eventbus.tool_call.completed",
        "cid": CID,
        "timestamp": logged.NOON,
        "level": "info",
        "tool": "lookup_order",
        "id": "call_0",
        "data": {"total": 12},
        "arguments": ["order", "customer"],
        "duration": 0.5,
        "span_id": "ab" * 8,
    } == record.eventbus


def test_a_stdlib_record_without_cid_has_dashes():
    """`%(cid)s` of an event without an id is eight dashes."""
    [record] = to_stdlib(InferenceStartedEvent().publish)

    assert ("--------", None) == (record.cid, record.eventbus["cid"])


@pytest.mark.parametrize("name", ["name", "args", "message", "msg", "levelname", "exc_info", "module"])
def test_a_payload_key_of_any_name_is_no_trouble_to_logging(name):
    """A user's field may be named like an attribute of a record, which logging refuses as an extra."""
    dropped = stats()["log_dropped"]
    records = to_stdlib(lambda: Wide.emit(**{name: "x"}))

    assert 1 == len(records)
    assert "x" in records[0].eventbus.values()
    assert dropped == stats()["log_dropped"]


def test_a_percent_sign_in_a_body_is_text():
    """A body with `%s` in it is a message, not a format."""
    [record] = to_stdlib(InferenceStartedEvent(agent="100%s").publish)

    assert "INF START agent=100%s" == record.getMessage()


@pytest.mark.parametrize("cid", ["run 1", 'a="b"', "--------", "", "x" * 256])
def test_structured_outputs_have_the_id_itself(cid):
    """An id that a line quotes is found by its own text in all others, so that it can be looked up."""
    started = InferenceStartedEvent(correlation_id=cid)
    [record] = to_stdlib(started.publish)

    assert (cid, cid) == (record.cid, record.eventbus["cid"])
    assert [cid] == [call.kwargs["cid"] for call in to_structlog(started.publish)]
    assert [cid] == [record["cid"] for record in to_json(started.publish)]


def test_a_hostile_id_is_one_line_for_logging_too():
    """What a text is made of has an id's unprintables escaped; what is data has the id itself."""
    started = InferenceStartedEvent(correlation_id="a\n\x1bb")
    [record] = to_stdlib(started.publish)

    assert (r"a\n\x1bb", "a\n\x1bb") == (record.cid, record.eventbus["cid"])
    assert [r"a\n\x1bb"] == [call.kwargs["cid"] for call in to_structlog(started.publish)]
    assert ["a\n\x1bb"] == [record["cid"] for record in to_json(started.publish)]


def test_a_long_id_is_cut_like_a_value():
    """No output has more of an id than a line has."""
    [record] = to_json(InferenceStartedEvent(correlation_id="x" * 1000).publish)

    assert "x" * 255 + "…" == record["cid"]


def test_a_failure_has_its_exc_info():
    """A FAIL line is an error record with the exception itself, for tracebacks and error trackers."""
    error = raised(RuntimeError("boom"))
    [record] = to_stdlib(InferenceFailedEvent(error=error, **AT).publish)

    assert logging.ERROR == record.levelno
    assert (RuntimeError, error, error.__traceback__) == record.exc_info


def test_a_line_that_is_no_failure_has_no_exc_info():
    """Records of other lines have no exception, nor have failures that are told in words."""
    records = to_stdlib(
        lambda: [STARTED.publish(), InferenceFailedEvent(error="no words").publish()]  # type: ignore[arg-type]  # a reason
    )

    assert [None, None] == [record.exc_info for record in records]
    assert "INF FAIL no words" == records[1].getMessage()


def test_a_logger_above_the_level_is_not_bothered():
    """A logger that takes no info records gets none, and nothing counts as dropped."""
    dropped = stats()["log_dropped"]
    logger = logging.Logger("app", logging.ERROR)
    records = Records()
    logger.addHandler(records)
    to_stdlib(lambda: [STARTED.publish(), InferenceFailedEvent().publish()], logger=logger)

    assert ["INF FAIL"] == [record.getMessage() for record in records.records]
    assert dropped == stats()["log_dropped"]


class Raises(logging.Handler):
    """Raises instead of handling."""

    def emit(self, record):
        raise RuntimeError("disk full")


class Refuses(logging.Filter):
    """Raises instead of filtering."""

    def filter(self, record):
        raise RuntimeError("cannot say")


def refusing_logger():
    logger = stdlib_logger()
    logger.addFilter(Refuses())
    return logger


@pytest.mark.parametrize("logger", [stdlib_logger(Raises()), refusing_logger()], ids=["handler", "filter"])
def test_a_stdlib_logger_that_raises_never_reaches_the_run(logger):
    """A raising handler or filter costs the line, which is counted; no handler of the bus has failed."""
    before = stats()
    to_stdlib(STARTED.publish, logger=logger)

    assert before["log_dropped"] + 1 == stats()["log_dropped"]
    assert before["failures"] == stats()["failures"]


def test_an_interrupt_in_a_sink_goes_through():
    """KeyboardInterrupt in a logging handler is nobody's to swallow."""

    class Interrupts(logging.Handler):
        def emit(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_stdlib(STARTED.publish, logger=stdlib_logger(Interrupts()))


def test_an_adapter_keeps_its_own_extras():
    """A LoggerAdapter, of another one too, adds its extras and words; the bus's own stay."""

    class Tagged(logging.LoggerAdapter):
        def process(self, msg, kwargs):
            return f"[tag] {msg}", kwargs

    records = Records()
    logger = Tagged(logging.LoggerAdapter(stdlib_logger(records), {"app": "shop"}), {})
    to_stdlib(STARTED.publish, logger=logger)
    [record] = records.records

    assert ("[tag] INF START agent=sundae", "shop", CID) == (record.getMessage(), record.app, record.cid)
    assert "INF START" == record.eventbus["event"]


def test_without_a_logger_stdlib_means_the_logger_eventbus():
    """`configure(log="stdlib")` writes to the logger named `eventbus`."""
    EventLogger.register()
    records = Records()
    logger = logging.getLogger("eventbus")
    logger.addHandler(records)
    try:
        configure(log="stdlib")
        InferenceFailedEvent().publish()
    finally:
        logger.removeHandler(records)

    assert ["INF FAIL"] == [record.getMessage() for record in records.records]


# structlog


def test_structlog_gets_an_event_and_key_values():
    """The app's own logger gets the line's words as event and its values by name, at the line's level."""
    [call] = to_structlog(FOUND.publish)

    assert "info" == call.method_name
    assert {
        "event": "TOOL OK",
        "cid": CID,
        "channel": "eventbus.tool_call.completed",
        "tool": "lookup_order",
        "id": "call_0",
        "data": {"total": 12},
        "arguments": ["order", "customer"],
        "duration": 0.5,
        "span_id": "ab" * 8,
    } == call.kwargs


def test_structlog_gets_errors_at_their_level():
    """A FAIL line is an error with its text."""
    [call] = to_structlog(InferenceFailedEvent(error=raised(RuntimeError("boom")), **AT).publish)

    assert ("error", f"RuntimeError: boom {FRAMES}") == (call.method_name, call.kwargs["error"])


def test_structlog_gets_a_users_line_and_payload():
    """A user's line is the event, and its payload the key-values."""
    [call] = to_structlog(OrderPlaced(order_id="A1", **AT).publish)

    assert ("ORDER PLACED id=A1", "A1") == (call.kwargs["event"], call.kwargs["order_id"])


@pytest.mark.parametrize("given", ["given", "named"])
def test_structlog_that_is_configured_is_used(given):
    """The app's configuration of structlog counts, whether its logger was given or only named as output."""
    EventLogger.register()
    target = CapturingLogger()
    if given == "given":
        configure(logger=structlog.get_logger())
    else:
        configure(log="structlog")
    structlog.configure(processors=[], logger_factory=lambda *_: target, cache_logger_on_first_use=False)
    try:
        STARTED.publish()
    finally:
        structlog.reset_defaults()

    assert ["INF START"] == [call.kwargs["event"] for call in target.calls]


@pytest.mark.parametrize("given", ["given", "named"])
def test_structlog_that_is_not_configured_gets_no_line_to_stdout(given, capsys):
    """Until structlog is configured it would print to stdout: lines go to stderr instead."""
    if given == "given":
        configure(logger=structlog.get_logger())
    else:
        configure(log="structlog")

    assert [f"{HEAD}INF START agent=sundae"] == lines_of(STARTED.publish)
    assert "" == capsys.readouterr().out


def test_a_structlog_logger_that_raises_never_reaches_the_run():
    """A raising processor costs the line, which is counted."""

    def refuse(logger, name, event_dict):
        raise RuntimeError("cannot render")

    EventLogger.register()
    before = stats()
    configure(logger=structlog.wrap_logger(CapturingLogger(), processors=[refuse]))
    STARTED.publish()

    assert before["log_dropped"] + 1 == stats()["log_dropped"]
    assert before["failures"] == stats()["failures"]


@pytest.mark.parametrize("log", ["stdlib", "structlog"])
def test_a_given_logger_decides_its_kind_itself(log):
    """A stdlib logger given with log="structlog", or the reverse, is spoken to in its own way."""
    EventLogger.register()
    records, target = Records(), CapturingLogger()
    configure(log=log, logger=stdlib_logger(records))
    STARTED.publish()
    configure(log=log, logger=structlog.wrap_logger(target, processors=[]))
    STARTED.publish()

    assert (1, 1) == (len(records.records), len(target.calls))


# Redaction


class Login(Event):
    password: str
    nested: object = None
    text: str = ""

    def log_line(self) -> str:
        return f"LOGIN password={self.password} {self.text}"


URL = f"https://api.example/v1?page=2&api_key={SECRET}&x=1"
CAUSE = f"cannot log in: password='{SECRET}'"


def _secretive():
    deep = {
        "user": {"credentials": {"any": [SECRET]}},
        "raw": json.dumps({"access_token": SECRET}),
        "url": URL,
    }
    chained = RuntimeError("could not refund")
    chained.__cause__ = ValueError(CAUSE)
    context = RuntimeError("again")
    context.__context__ = chained
    noted = RuntimeError("noted")
    noted.add_note(f"Authorization: Bearer {SECRET}")
    return [
        ToolCallCompletedEvent(
            tool_call=ToolCall("1", "login", {"password": SECRET}), result=ToolResult(deep)
        ),
        ToolCallCompletedEvent(tool_call=LOOKUP, result=ToolResult(json.dumps(deep))),
        ToolCallCompletedEvent(tool_call=LOOKUP, result=ToolResult(f"see {URL}")),
        Login(password=SECRET, nested=deep, text=URL),
        *(
            cls(error=raised(error), **({"tool_call": LOOKUP} if cls is ToolCallFailedEvent else {}))
            for cls in (InferenceFailedEvent, ToolCallFailedEvent)
            for error in (
                RuntimeError(f"GET {URL} failed"),
                RuntimeError(CAUSE),
                KeyError(json.dumps(deep)),
                chained,
                context,
                noted,
                ExceptionGroup("several", [ValueError(CAUSE), TypeError("other")]),
            )
        ),
    ]


@pytest.mark.parametrize("number", range(len(_secretive())))
def test_one_secret_is_in_no_output(number):
    """A secret under a key, nested, in a JSON string, an error, its causes or a URL is in no output."""
    event = _secretive()[number]
    shown = lines_of(event.publish)
    configure(log="json")
    shown += lines_of(event.publish)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(cid)s %(message)s %(eventbus)s"))
    to_stdlib(event.publish, logger=stdlib_logger(handler))
    shown.append(stream.getvalue())
    shown.append(str(to_structlog(event.publish)))

    assert 4 == len([text for text in shown if text])
    assert [] == [text for text in shown if SECRET in text]


def test_a_traceback_with_a_secret_keeps_everything_else():
    """Where an error's texts, or its causes', are masked, stand-ins have the same names and places."""
    error = RuntimeError("could not refund")
    error.__cause__ = KeyError("order", f"token={SECRET}")
    error.add_note(f"see {URL}")
    [record] = to_stdlib(InferenceFailedEvent(error=raised(error)).publish)
    text = logging.Formatter().formatException(record.exc_info)

    assert "RuntimeError: could not refund" in text
    assert "KeyError" in text
    assert "token=[REDACTED]" in text
    assert "direct cause" in text
    assert 'File "tools.py", line 9, in run' in text
    assert "page=2&api_key=[REDACTED]&x=1" in text
    assert SECRET not in text


def test_a_traceback_that_goes_in_circles_is_no_trouble():
    """Errors that are each other's cause are logged, masked where they must be."""
    first, second = RuntimeError("a"), RuntimeError(f"password={SECRET}")
    first.__cause__, second.__cause__ = second, first
    [record] = to_stdlib(InferenceFailedEvent(error=raised(first)).publish)

    assert SECRET not in logging.Formatter().formatException(record.exc_info)


def test_an_error_that_cannot_say_what_it_is_is_logged():
    """An error whose text or notes raise or are odd has its record."""

    class Mute(Exception):
        def __str__(self):
            raise ValueError

    error = Mute()
    error.__notes__ = 5  # type: ignore[assignment]  # what nobody should do
    [record] = to_stdlib(InferenceFailedEvent(error=error).publish)

    assert "INF FAIL Mute: <unprintable>" == record.getMessage()
    assert error is record.exc_info[1]


def test_configure_redact_is_asked_about_every_value():
    """A function of one's own takes the default's place, with the path to each value."""
    asked = []

    def redact(path, value):
        asked.append((path, value))
        return "***" if value == "Ada" else value

    configure(redact=redact)
    found = ToolCallCompletedEvent(
        tool_call=LOOKUP, result={"customer": {"name": "Ada", "password": "x"}}, **AT
    )
    lines = lines_of(found.publish)

    assert [
        f'{HEAD}TOOL OK lookup_order id=call_0 data={{"customer": {{"name": "***", "password": "x"}}}}'
    ] == lines
    assert (("data", "customer", "name"), "Ada") in asked
    assert (("tool",), "lookup_order") in asked


def test_configure_redact_is_asked_about_a_users_line():
    """A user's `log_line` is redacted as a whole, under the path `log_line`; None leaves it out."""
    answers = iter(["HIDDEN", None])

    def redact(path, value):
        return next(answers) if path == ("log_line",) else value

    configure(redact=redact)

    assert [f"{HEAD}HIDDEN"] == lines_of(
        lambda: [OrderPlaced(order_id="A1", **AT).publish(), OrderPlaced(order_id="A2", **AT).publish()]
    )


def refuse(path, value):
    raise RuntimeError("cannot tell")


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (STARTED, "INF START agent=[REDACTED]"),
        (InferenceFailedEvent(error=ValueError("boom"), **AT), "INF FAIL ValueError: [REDACTED]"),
        (OrderPlaced(order_id="A1", **AT), "[REDACTED]"),
    ],
)
def test_a_redact_function_that_raises_masks(event, body):
    """A function that fails shows nothing, in any output, and costs no line."""
    configure(redact=refuse)

    assert [HEAD + body] == lines_of(event.publish)
    configure(log="json")
    assert 1 == len(lines_of(event.publish))
    [record] = to_stdlib(event.publish)
    assert body == record.getMessage()
    assert "boom" not in str(record.exc_info)


def test_a_redact_function_may_answer_anything_about_an_error():
    """An answer that is no text hides the error's own in a traceback."""
    configure(redact=lambda path, value: 5)
    [record] = to_stdlib(InferenceFailedEvent(error=ValueError("boom")).publish)

    assert "[REDACTED]" == str(record.exc_info[1])


def test_redact_can_be_given_back():
    """`configure(redact=None)` brings the default back."""
    configure(redact=refuse)
    configure(redact=None)

    assert [f"{HEAD}INF START agent=sundae"] == lines_of(STARTED.publish)
