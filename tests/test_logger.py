"""EventLogger writes the lines of the contract, at their levels, for the events that have one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading

import attrs
import logged
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import AT, CID, FRAMES, HEAD, STAMP, line_of, lines_of, raised, stderr_lines

import eventbus
from eventbus import (
    Event,
    EventLogger,
    GateDecisionEvent,
    HandlerFailedEvent,
    Hook,
    InferenceChunkEvent,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    LoopRunCompletedEvent,
    LoopRunEnqueuedEvent,
    LoopRunFailedEvent,
    LoopRunStartedEvent,
    ModelCallFailedEvent,
    ModelCallStartedEvent,
    ProtectedEvent,
    StepCompletedEvent,
    StepFailedEvent,
    StepStartedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallsReceivedEvent,
    ToolCallStartedEvent,
    ToolResult,
    TurnCompletedEvent,
    TurnStartedEvent,
    _logger,
    catalog,
    configure,
    drain,
    on,
    parse_line,
    stats,
)
from eventbus._report import notice

LOOKUP = ToolCall("call_0", "lookup_order", {"order": "A1"})
SEND = ToolCall("call_9", "send_email")
REFUND = ToolCall("call_1", "process_refund")
SUNDAE = {"agent": "sundae"}
REPORT = {"name": "morning_report", "agent_name": "Scout"}


class RefundAudit(Exception):
    """An error with a name of its own."""


def boom():
    return raised(RuntimeError("boom"))


GRAMMAR = {
    "INF START agent=sundae": lambda: InferenceStartedEvent(**SUNDAE, **AT),
    "INF DONE agent=sundae": lambda: InferenceCompletedEvent(**SUNDAE, **AT),
    f"INF FAIL agent=sundae RuntimeError: boom {FRAMES}": (
        lambda: InferenceFailedEvent(**SUNDAE, error=boom(), **AT)
    ),
    'INF DENY agent=sundae by=Guardrails.prompt reason="too long"': (
        lambda: InferenceDeniedEvent(**SUNDAE, by="Guardrails.prompt", reason="too long", **AT)
    ),
    "TOOLS RECV [lookup_order, send_email]": (
        lambda: ToolCallsReceivedEvent(**SUNDAE, tool_calls=[LOOKUP, SEND], **AT)
    ),
    "TOOLS RECV []": lambda: ToolCallsReceivedEvent(**SUNDAE, **AT),
    "TOOL START lookup_order id=call_0": lambda: ToolCallStartedEvent(tool_call=LOOKUP, **AT),
    'TOOL OK lookup_order id=call_0 data={"total": 12}': (
        lambda: ToolCallCompletedEvent(tool_call=LOOKUP, result=ToolResult({"total": 12}), **AT)
    ),
    "TOOL OK lookup_order id=call_0": lambda: ToolCallCompletedEvent(tool_call=LOOKUP, **AT),
    f"TOOL FAIL lookup_order id=call_0 RuntimeError: boom {FRAMES}": (
        lambda: ToolCallFailedEvent(tool_call=LOOKUP, error=boom(), **AT)
    ),
    'TOOL DENY process_refund id=call_1 by=Guardrails.check reason="not today"': (
        lambda: ToolCallDeniedEvent(tool_call=REFUND, by="Guardrails.check", reason="not today", **AT)
    ),
    "GATE EDIT process_refund id=call_1 by=Caps.limit field=arguments": (
        lambda: GateDecisionEvent(
            gate="BeforeToolCallEvent",
            by="Caps.limit",
            action="edit",
            field="arguments",
            applied=True,
            tool_call=REFUND,
            **AT,
        )
    ),
    'GATE RETRY model by=Retry.again reason="empty answer"': (
        lambda: GateDecisionEvent(
            gate="AfterModelCallEvent",
            by="Retry.again",
            action="retry",
            field="retry",
            reason="empty answer",
            applied=True,
            **AT,
        )
    ),
    'GATE DENY process_refund id=call_1 by=NewGuard.check reason="over limit" applied=no': (
        lambda: GateDecisionEvent(
            gate="ApproveToolCallEvent",
            by="NewGuard.check",
            action="deny",
            field="denied",
            reason="over limit",
            applied=False,
            tool_call=REFUND,
            **AT,
        )
    ),
    "GATE ANSWER run by=Cache.look": (
        lambda: GateDecisionEvent(gate="BeforeInvocationEvent", by="Cache.look", action="answer", **AT)
    ),
    "GATE WARN tool by=Guardrails.check reason=pii": (
        lambda: GateDecisionEvent(
            gate="BeforeToolCallEvent", by="Guardrails.check", action="warn", reason="pii", **AT
        )
    ),
    "GATE ERROR DoorEvent by=Guard.check reason=boom": (
        lambda: GateDecisionEvent(gate="DoorEvent", by="Guard.check", action="error", reason="boom", **AT)
    ),
    f"MODEL FAIL agent=sundae TimeoutError: too slow {FRAMES}": (
        lambda: ModelCallFailedEvent(**SUNDAE, error=raised(TimeoutError("too slow")), **AT)
    ),
    "MAX TURNS turn=100 pending=[lookup_order]": (
        lambda: InferenceMaxTurnsReachedEvent(**SUNDAE, turn=100, tool_calls=[LOOKUP], **AT)
    ),
    "LOOP PENDING morning_report agent=Scout": lambda: LoopRunEnqueuedEvent(**REPORT, **AT),
    "LOOP START morning_report agent=Scout": lambda: LoopRunStartedEvent(**REPORT, **AT),
    "LOOP DONE morning_report agent=Scout": lambda: LoopRunCompletedEvent(**REPORT, **AT),
    f"LOOP FAIL morning_report agent=Scout RuntimeError: boom {FRAMES}": (
        lambda: LoopRunFailedEvent(**REPORT, error=boom(), **AT)
    ),
    f"STEP FAIL rank RuntimeError: boom {FRAMES}": lambda: StepFailedEvent(name="rank", error=boom(), **AT),
    f"HOOK FAIL RefundAuditHook.audit on=ToolCallCompletedEvent ValueError: no ledger {FRAMES}": (
        lambda: HandlerFailedEvent(
            hook="RefundAuditHook",
            handler="RefundAuditHook.audit",
            event=ToolCallCompletedEvent(tool_call=LOOKUP),
            error=raised(ValueError("no ledger")),
            **AT,
        )
    ),
}

DEBUG = {
    "TURN START agent=sundae turn=1": lambda: TurnStartedEvent(**SUNDAE, turn=1, **AT),
    "TURN DONE agent=sundae turn=1": lambda: TurnCompletedEvent(**SUNDAE, turn=1, **AT),
    "MODEL START agent=sundae model=m-1 turn=1 attempt=2": (
        lambda: ModelCallStartedEvent(**SUNDAE, model="m-1", turn=1, attempt=2, **AT)
    ),
    "STEP START rank": lambda: StepStartedEvent(name="rank", **AT),
    "STEP DONE rank": lambda: StepCompletedEvent(name="rank", **AT),
    "CONTEXT COMPACTED agent=sundae strategy=summary before=40 after=8": (
        lambda: eventbus.ContextCompactedEvent(**SUNDAE, strategy="summary", before=40, after=8, **AT)
    ),
}


@pytest.fixture(autouse=True)
def no_failures_yet(monkeypatch):
    """Count failure lines from zero in each test."""
    monkeypatch.setattr(_logger, "failures", _logger.Failures())


@pytest.mark.parametrize("body", GRAMMAR)
def test_each_line_of_the_grammar_is_exact(body):
    """Every line of the contract's table is written as it stands there, after its timestamp and id."""
    assert HEAD + body == line_of(GRAMMAR[body]())


@pytest.mark.parametrize("body", DEBUG)
def test_lines_of_debug_level(body):
    """Turns, model starts, steps and compaction have a line at debug, and none at info."""
    assert [] == lines_of(DEBUG[body]().publish)
    configure(level="debug")

    assert HEAD + body == line_of(DEBUG[body]())


@pytest.mark.parametrize("body", [*GRAMMAR, *DEBUG])
def test_each_line_reads_back(body):
    """`parse_line` gives back the timestamp and the id of every line, and words that it begins with."""
    configure(level="debug")
    parsed = parse_line(line_of({**GRAMMAR, **DEBUG}[body]()))

    assert (logged.NOON, CID) == (parsed.timestamp, parsed.cid)
    assert body.startswith(" ".join(parsed.words[:2]))


def test_a_real_handler_that_fails_has_its_line():
    """What a hook raises comes out as a HOOK FAIL line that names the handler, the event and the place."""

    class RefundAuditHook(Hook):
        @on(ToolCallCompletedEvent)
        def audit(self, event):
            logged.raise_in_tools(ValueError("no ledger"))

    lines = lines_of(ToolCallCompletedEvent(tool_call=LOOKUP, **AT).publish)

    assert [
        f"{HEAD}TOOL OK lookup_order id=call_0",
        f"HOOK FAIL RefundAuditHook.audit on=ToolCallCompletedEvent ValueError: no ledger {FRAMES}",
    ] == [lines[0], lines[1].split(" ", 2)[2]]
    assert CID == parse_line(lines[1]).cid


def test_a_real_predicate_that_fails_has_its_line():
    """So does what a `when` raises: as its handler's, with the place in the predicate."""

    class RefundAuditHook(Hook):
        @on(ToolCallCompletedEvent, when=lambda event: logged.raise_in_tools(ValueError("no ledger")))
        def audit(self, event):
            raise NotImplementedError

    lines = lines_of(ToolCallCompletedEvent(tool_call=LOOKUP, **AT).publish)

    failed = f"HOOK FAIL RefundAuditHook.audit on=ToolCallCompletedEvent ValueError: no ledger {FRAMES}"
    assert failed == lines[1].split(" ", 2)[2]
    assert CID == parse_line(lines[1]).cid


def test_a_real_handler_that_is_slow_has_its_line():
    """A handler that took longer than `slow_handler` comes out as a HOOK SLOW line with its seconds."""
    configure(slow_handler=1e-9)

    class RefundAuditHook(Hook):
        @on(ToolCallStartedEvent)
        def audit(self, event):
            pass

    with stderr_lines() as lines:
        EventLogger.unregister()
        EventLogger.register()
        ToolCallStartedEvent.emit(tool_call=LOOKUP, correlation_id=CID)

    slow = [line for line in lines if " RefundAuditHook.audit " in line]
    assert 1 == len(slow)
    assert re.fullmatch(
        rf"\S+ {CID} HOOK SLOW RefundAuditHook\.audit on=ToolCallStartedEvent seconds=0\.\d+", slow[0]
    )


def test_a_slow_handlers_seconds_are_exact():
    """HOOK SLOW is written as in the contract's table."""
    lines = lines_of(
        lambda: notice(
            "warning",
            ("HOOK", "SLOW"),
            ("hook", "RefundAuditHook.audit"),
            correlation_id=CID,
            on="ToolCallCompletedEvent",
            seconds=2.14,
        )
    )

    assert ["HOOK SLOW RefundAuditHook.audit on=ToolCallCompletedEvent seconds=2.14"] == [
        line.split(" ", 2)[2] for line in lines
    ]


def test_the_timestamp_is_the_events_own():
    """A line begins with the time of its event, in UTC with milliseconds, not with the time of writing."""
    assert line_of(InferenceStartedEvent(timestamp=0.0)).startswith("1970-01-01T00:00:00.000Z ")


def test_no_correlation_id_is_eight_dashes():
    """A line of an event without an id has dashes in its place."""
    assert f"{STAMP} -------- INF START agent=sundae" == line_of(
        InferenceStartedEvent(**SUNDAE, timestamp=logged.NOON)
    )


def test_an_agent_is_shown_by_its_name():
    """Of an agent object the line has the name."""

    class Scoop:
        name = "sundae"

    assert f"{HEAD}INF START agent=sundae" == line_of(InferenceStartedEvent(agent=Scoop(), **AT))


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ("INF START", InferenceStartedEvent(**AT)),
        ("INF DENY", InferenceDeniedEvent(**AT)),
        ("INF FAIL", InferenceFailedEvent(**AT)),
        ("MAX TURNS", InferenceMaxTurnsReachedEvent(**AT)),
        ("TOOL DENY process_refund id=call_1", ToolCallDeniedEvent(tool_call=REFUND, **AT)),
        ('LOOP START ""', LoopRunStartedEvent(**AT)),
        ('GATE EDIT ""', GateDecisionEvent(**AT)),
        ('HOOK FAIL ""', HandlerFailedEvent(**AT)),
    ],
)
def test_a_reader_that_is_none_leaves_its_field_out(body, event):
    """What an event does not know, its line does not have; a subject, which has no name, is empty."""
    assert HEAD + body == line_of(event)


def test_data_is_left_out_without_log_data():
    """`configure(log_data=False)` keeps the data of tool results out of the lines."""
    configure(log_data=False)

    assert f"{HEAD}TOOL OK lookup_order id=call_0" == line_of(
        ToolCallCompletedEvent(tool_call=LOOKUP, result=ToolResult({"total": 12}), **AT)
    )


def test_a_result_that_is_no_result_object_is_its_own_data():
    """A plain dict as a result is shown as the data."""
    assert f'{HEAD}TOOL OK lookup_order id=call_0 data={{"total": 12}}' == line_of(
        ToolCallCompletedEvent(tool_call=LOOKUP, result={"total": 12}, **AT)
    )


# Levels


LEVEL_OF = {
    "error": ["INF FAIL", "TOOL FAIL", "MODEL FAIL", "LOOP FAIL", "STEP FAIL", "HOOK FAIL", "GATE ERROR"],
    "warning": ["INF DENY", "TOOL DENY", "GATE DENY", "MAX TURNS"],
}


@pytest.mark.parametrize("body", GRAMMAR)
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_a_line_is_written_from_its_level_on(body, level):
    """FAIL lines are errors; DENY and MAX TURNS are warnings; the others are info."""
    configure(level=level)
    event = GRAMMAR[body]()
    levels = [name for name, words in LEVEL_OF.items() if " ".join(body.split(" ")[:2]) in words] or ["info"]
    written = ["debug", "info", "warning", "error"]

    expected = written.index(levels[0]) >= written.index(level)
    assert expected == bool(lines_of(event.publish))


@pytest.mark.parametrize("level", ["error", "warning"])
def test_a_slow_handler_is_a_warning(level):
    """HOOK SLOW is there at warning and not at error."""
    configure(level=level)
    lines = lines_of(lambda: notice("warning", ("HOOK", "SLOW"), ("hook", "A.b")))

    assert (level == "warning") == bool(lines)


@pytest.mark.parametrize("event_class", [InferenceGeneratedEvent, InferenceChunkEvent])
def test_events_without_a_line_have_no_receiver(event_class):
    """The logger receives no InferenceGenerated and no InferenceChunk, at any level, so nobody builds one."""
    EventLogger.register()
    configure(level="debug")
    before = stats()["events"]
    event_class.emit(agent="sundae")

    assert not event_class.has_receivers()
    assert before == stats()["events"]


def test_events_below_the_level_have_no_receiver():
    """What gets no line at the level in force costs nothing; lowering the level brings its receiver."""
    EventLogger.register()
    receives = [TurnStartedEvent.has_receivers()]
    configure(level="debug")
    receives.append(TurnStartedEvent.has_receivers())
    configure(level="error")
    receives += [TurnStartedEvent.has_receivers(), InferenceStartedEvent.has_receivers()]

    assert [False, True, False, False] == receives


def test_a_gates_decision_is_received_as_long_as_one_may_be_written():
    """A GateDecision is info, warning or error by its action, so its class is received at error too."""
    EventLogger.register()
    configure(level="error")

    assert GateDecisionEvent.has_receivers()


def test_nothing_is_received_when_off():
    """`configure(log=None)` leaves the logger nothing to receive, and `log="stderr"` brings it back."""
    EventLogger.register()
    configure(log=None)
    receives = [InferenceStartedEvent.has_receivers()]
    configure(log="off")
    receives.append(InferenceStartedEvent.has_receivers())
    configure(log="stderr")
    receives.append(InferenceStartedEvent.has_receivers())

    assert [False, False, True] == receives


def test_notices_are_silent_when_off():
    """`configure(log=None)` silences the lines of the bus itself too."""
    configure(log=None)

    assert [] == lines_of(lambda: notice("warning", ("HOOK", "SLOW"), ("hook", "A.b")))


# A user's own events


class OrderPlaced(Event):
    order_id: str
    total: float = 0.0
    said: str | None = "x"

    def log_line(self) -> str | None:
        return None if self.said is None else f"ORDER PLACED id={self.order_id} total={self.total}"


class Quiet(Event):
    order_id: str = "A1"


class Says(Event):
    """Logs whatever it is given."""

    what: object = None
    raises: bool = False

    def log_line(self) -> str | None:
        if self.raises:
            logged.raise_in_tools(ValueError("no line today"))
        return self.what  # type: ignore[return-value]  # what a user may do


class Loud(Event):
    log_level = "error"

    def log_line(self) -> str:
        return "LOUD"


def test_a_users_line_is_written():
    """An event class with `log_line` has that line, which reads back."""
    line = line_of(OrderPlaced(order_id="A1", total=9.5, **AT))

    assert f"{HEAD}ORDER PLACED id=A1 total=9.5" == line
    assert (("ORDER", "PLACED"), {"id": "A1", "total": "9.5"}) == parse_line(line)[2:4]


def test_a_users_event_has_no_line_by_default():
    """An event class without `log_line` is not received by the logger."""
    EventLogger.register()

    assert not Quiet.has_receivers()


def test_a_users_line_that_is_none_is_not_written():
    """A `log_line` that returns None leaves this event without a line."""
    assert [] == lines_of(OrderPlaced(order_id="A1", said=None).publish)


@pytest.mark.parametrize(("level", "count"), [("info", 1), ("error", 1)])
def test_a_users_line_has_the_level_of_its_class(level, count):
    """`log_level` on the class is the level of its line."""
    configure(level=level)

    assert count == len(lines_of(Loud().publish))


@pytest.mark.parametrize("level", ["warn", "WARNING", "", None, 30])
def test_a_log_level_that_is_none_is_refused(level):
    """A class whose lines no level would show is a TypeError that names the levels."""
    with pytest.raises(TypeError, match=r"Loud\.log_level must be one of debug, info, warning, error, not "):
        type("Loud", (Event,), {"log_level": level})


def test_a_users_line_that_raises_is_a_failure_of_the_logger():
    """A `log_line` that raises never reaches the emitter; it is reported, with its place."""
    lines = lines_of(Says(raises=True, **AT).publish)

    assert [f"HOOK FAIL EventLogger.write on=Says ValueError: no line today {FRAMES}"] == [
        line.split(" ", 2)[2] for line in lines
    ]


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("two\nlines", r"two\nlines"),
        ("\x1b[31mred \x85 \u2028 \ud800", r"\x1b[31mred \x85 \u2028 \ud800"),
        ("password=hunter2", "password=[REDACTED]"),
        ("ü" * 10_000, "ü" * 2017 + "…"),
        ({"id": 1}, '{"id": 1}'),
        (b"bytes", "bytes"),
        ("", ""),
    ],
)
def test_a_users_line_is_made_printable_masked_and_cut(what, body):
    """Whatever `log_line` returns is one printable line of 4 KiB at most, without the secrets it names."""
    line = line_of(Says(what=what, **AT))

    assert HEAD + body == line
    assert line.isprintable()
    assert len(line.encode()) < 4096


@settings(max_examples=60)
@given(st.one_of(strategies.text(max_size=40), strategies.json_values()))
def test_any_users_line_is_one_line_and_reads_back(what):
    """A `log_line` of any value is one printable line with its timestamp and id, or none for None."""
    lines = lines_of(Says(what=what, **AT).publish)

    assert (0 if what is None else 1) == len(lines)
    for line in lines:
        assert line.isprintable()
        assert (logged.NOON, CID) == parse_line(line)[:2]


def test_a_user_may_give_a_catalog_event_another_line():
    """A subclass of a catalog event that defines `log_line` has that one."""

    class Scooped(InferenceStartedEvent):
        def log_line(self) -> str:
            return f"SCOOPED {self.agent}"

    assert f"{HEAD}SCOOPED sundae" == line_of(Scooped(agent="sundae", **AT))


def test_a_subclass_of_a_catalog_event_has_its_line():
    """A subclass of a catalog event has the line of its base."""

    class Scooped(InferenceStartedEvent):
        flavour: str

    assert f"{HEAD}INF START agent=sundae" == line_of(Scooped(agent="sundae", flavour="mint", **AT))


def test_log_line_of_a_catalog_event_is_its_body():
    """`log_line()` of a catalog event gives the redacted body, None for an event without a line."""
    assert "INF START agent=sundae" == InferenceStartedEvent(agent="sundae").log_line()
    assert (
        "INF FAIL KeyError: 'api_key=[REDACTED]'"
        == InferenceFailedEvent(error=KeyError("api_key=x")).log_line()
    )
    assert None is InferenceChunkEvent().log_line()
    assert None is catalog.CatalogEvent().log_line()


def test_a_catalog_event_without_a_line_of_its_own_is_passed_over():
    """The common base of the catalog has no line."""
    assert [] == lines_of(catalog.CatalogEvent().publish)


# Any payload


class Hostile:
    """Raises whatever is asked of it."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError("repr")

    def __str__(self):
        raise RuntimeError("str")

    def __eq__(self, other):
        raise RuntimeError("eq")

    def __bool__(self):
        raise RuntimeError("bool")

    __hash__ = object.__hash__


@attrs.frozen
class Call:
    id: object
    name: object
    input: object


def cycle():
    inner: dict[str, object] = {}
    inner["self"] = inner
    return inner


# Named, and made in the test: neither a hostile repr nor a used up iterator is for hypothesis to keep.
ODD = {
    "hostile": Hostile,
    "cycle": cycle,
    "lock": threading.Lock,
    "iterator": lambda: iter([1]),
    "bytes": lambda: b"\xff",
    "long text": lambda: "x" * 100_000,
    "long dict": lambda: {"k": "y" * 100_000},
    "big int": lambda: 2**70,
    "hostile calls": lambda: [Hostile(), Call(Hostile(), Hostile(), Hostile())],
}


@attrs.frozen
class Odd:
    name: str


ANYTHING = st.one_of(
    strategies.json_values(max_leaves=6),
    strategies.text(max_size=40),
    st.sampled_from(list(ODD)).map(Odd),
    strategies.text().map(RuntimeError),
    st.builds(Call, strategies.text(), strategies.text(), strategies.json_values(max_leaves=3)),
    st.lists(st.builds(Call, strategies.text(), strategies.text(), st.none()), max_size=3),
)
WITH_LINE = [
    cls for cls in (getattr(catalog, name) for name in catalog.__all__) if cls.log_line is not Event.log_line
]


def payloads(cls):
    names = {field.name for field in attrs.fields(cls)} - {"correlation_id", "timestamp"}
    return st.tuples(st.just(cls), st.fixed_dictionaries(dict.fromkeys(sorted(names), ANYTHING)))


@settings(max_examples=150)
@given(st.sampled_from(WITH_LINE).flatmap(payloads), strategies.text(max_size=20))
def test_any_payload_of_a_catalog_event_is_one_line_and_reads_back(event, cid):
    """Whatever the fields and the id of a catalog event hold, it is one printable line that reads back."""
    cls, payload = event
    payload = {key: ODD[value.name]() if type(value) is Odd else value for key, value in payload.items()}
    configure(level="debug")
    _logger.failures = _logger.Failures()
    dropped = stats()["log_dropped"]
    lines = lines_of(lambda: cls.emit(**payload, correlation_id=cid, timestamp=logged.NOON))

    assert 1 == len(lines), lines
    assert lines[0].isprintable()
    assert len(lines[0].encode()) < 4096
    parsed = parse_line(lines[0])
    assert (logged.NOON, cid) == (parsed.timestamp, parsed.cid)
    assert dropped == stats()["log_dropped"]


class Unlisted(list):
    """A list that cannot be iterated over."""

    def __iter__(self):
        raise RuntimeError("iter")


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ("INF START agent=<unprintable>", lambda: InferenceStartedEvent(agent=Hostile(), **AT)),
        (
            "TOOL START <unprintable> id=<unprintable>",
            lambda: ToolCallStartedEvent(tool_call=Hostile(), **AT),
        ),
        ('TOOL OK x id=1 data="<unprintable>"', lambda: _completed(Hostile())),
        ("TOOLS RECV [a, <unprintable>]", lambda: ToolCallsReceivedEvent(tool_calls=["a", Hostile()], **AT)),
        ("TOOLS RECV a", lambda: ToolCallsReceivedEvent(tool_calls="a", **AT)),
    ],
)
def test_what_cannot_be_read_is_unprintable(body, event):
    """An agent, a call or a result whose attributes raise costs no line."""
    assert HEAD + body == line_of(event())


def _completed(result):
    return ToolCallCompletedEvent(tool_call=Call("1", "x", None), result=result, **AT)


def test_calls_that_cannot_be_listed_are_unprintable():
    """A sequence that raises when it is iterated over costs no line."""
    event = ToolCallsReceivedEvent(**AT)
    event.__dict__["tool_calls"] = Unlisted()

    assert f"{HEAD}TOOLS RECV <unprintable>" == line_of(event)


def test_an_iterator_of_calls_is_not_used_up():
    """Looking at an iterator would take its items from whom it is for."""
    calls = iter([LOOKUP])
    lines_of(ToolCallsReceivedEvent(tool_calls=calls, **AT).publish)

    assert LOOKUP is next(calls)


# How often


class Clock:
    """Tells the seconds it is set to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Give the limit of failure lines a clock that stands still."""
    clock = Clock()
    monkeypatch.setattr(_logger, "failures", _logger.Failures(clock))
    return clock


def fail(times, handler="A.b"):
    event = HandlerFailedEvent(handler=handler, event=Quiet(), error=ValueError("boom"))
    return [line.split(" ", 2)[2] for line in lines_of(lambda: [event.publish() for _ in range(times)])]


def test_failure_lines_are_ten_a_minute_for_each_handler(clock):
    """A handler that fails all the time has ten lines in a minute; another's are counted for itself."""
    assert 10 == len(fail(25))
    assert [] == fail(1)
    assert 10 == len(fail(11, "C.d"))


def same_named_functions():
    return [lambda event, error=error: fail_with(error) for error in (KeyError, OSError)]


def same_named_hooks():
    def hook(module, error):
        body = {"__module__": module, "check": on(Quiet)(lambda self, event: fail_with(error))}
        return type("Twin", (Hook,), body)

    hook("first", KeyError), hook("second", OSError)
    return []


def same_named_async_functions():
    def function(error):
        async def check(event):
            fail_with(error)

        return check

    return [function(KeyError), function(OSError)]


def fail_with(error):
    raise error


@pytest.mark.parametrize("make", [same_named_functions, same_named_hooks, same_named_async_functions])
def test_handlers_that_share_a_name_have_a_limit_each(clock, make):
    """The limit of failure lines is a handler's own, whatever it is called."""
    for function in make():
        Quiet.subscribe(function)
    lines = lines_of(lambda: [(Quiet.emit(), drain(10)) for _ in range(12)])

    assert [10, 10] == [sum(name in line for line in lines) for name in ("KeyError", "OSError")]


def test_gates_that_share_a_name_have_a_limit_each(clock):
    """Of gates too the limit is each handler's own."""

    class Door(ProtectedEvent):
        """A gate."""

    subscribed = [Door.subscribe(function) for function in same_named_functions()]

    def refused():
        for _ in range(12):
            with contextlib.suppress(Exception):
                Door.emit()

    lines = lines_of(refused)
    subscribed[0].cancel()
    lines += lines_of(refused)
    failures = [line for line in lines if " HOOK FAIL " in line]

    assert [10, 10] == [sum(name in line for line in failures) for name in ("KeyError", "OSError")]


def test_what_was_left_out_is_told_by_the_next_line(clock):
    """The first line after the limit says how many were left out, and the next starts anew."""
    fail(25)
    clock.now = 60.0

    assert [
        "HOOK FAIL A.b on=Quiet left_out=15 ValueError: boom",
        "HOOK FAIL A.b on=Quiet ValueError: boom",
    ] == fail(2)


def test_the_limit_holds_for_any_sixty_seconds(clock):
    """Ten lines just before the turn of a minute leave none for just after it."""
    for second in (50, 51, 52, 53, 54, 55, 56, 57, 58, 59):
        clock.now = second
        fail(1)
    clock.now = 61

    assert [] == fail(1)
    clock.now = 110
    assert 1 == len(fail(2))


def test_the_event_comes_every_time(clock):
    """HandlerFailedEvent is delivered for every failure, whatever the lines' limit."""
    seen = []
    HandlerFailedEvent.subscribe(seen.append)
    Quiet.subscribe(lambda event: 1 / 0)
    lines = lines_of(lambda: [Quiet.emit() for _ in range(30)])

    assert 30 == len(seen)
    assert 10 == len(lines)


def test_the_limit_remembers_a_bounded_number_of_handlers(clock):
    """Failures of ever new handlers are forgotten, the oldest first."""
    failures = _logger.Failures(clock)
    for number in range(_logger.MAX_LIMITED + 5):
        failures.left_out(f"handler {number}")

    assert _logger.MAX_LIMITED == len(failures._handlers)
    assert "handler 4" not in failures._handlers


def held_by_another_thread(lock):
    """Return a function that has another thread let go of the lock, which it holds until then."""
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            let_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return lambda: (let_go.set(), thread.join())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_a_failure_is_counted_counts_its_own():
    """A handler's failure in a forked child has its line, though a thread of the parent held the limit."""
    Quiet.subscribe(lambda event: 1 / 0)
    release = held_by_another_thread(_logger.failures._lock)
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(0 if 1 == len(lines_of(Quiet.emit)) else 1)
    release()

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_after_a_fork_the_limit_is_free():
    """What a forked child is told by Python frees the limit, and what was counted stays counted."""
    release = held_by_another_thread(_logger.failures._lock)
    _logger.after_fork()
    fail(10)
    _logger.after_fork()

    assert [] == fail(1)
    release()


def test_a_failure_may_interrupt_the_counting_of_another():
    """A signal's handler that fails while its thread counts a failure is counted too."""
    with _logger.failures._lock:
        assert 1 == len(fail(1))


# Taking its place


def test_a_subclass_takes_its_place():
    """A subclass of EventLogger retires it: one line per event, the subclass's."""

    class Shorter(EventLogger):
        @on(Event)
        def write(self, event):
            if event.get("agent") != "noisy":
                super().write(event)

    lines = lines_of(
        lambda: [InferenceStartedEvent(agent=name, **AT).publish() for name in ("noisy", "sundae")]
    )

    assert [f"{HEAD}INF START agent=sundae"] == lines
    assert "retired" == eventbus.hooks().get("EventLogger").state


def test_a_subclass_may_handle_events_that_have_no_line():
    """A handler that a subclass adds receives its events, whether or not they have a line."""
    seen = []

    class Counts(EventLogger):
        @on(InferenceGeneratedEvent, TurnStartedEvent)
        def count(self, event):
            seen.append(type(event))

    InferenceGeneratedEvent.emit(turn=1)
    TurnStartedEvent.emit(turn=1)

    assert [InferenceGeneratedEvent, TurnStartedEvent] == seen


def test_notices_are_written_while_a_subclass_is_live():
    """The lines of the bus itself are there while any EventLogger is."""

    class Mine(EventLogger):
        pass

    EventLogger.register()

    assert 1 == len(lines_of(lambda: notice("warning", ("HOOK", "SLOW"), ("hook", "A.b"))))


def test_unregistered_it_writes_nothing():
    """`EventLogger.unregister()` ends all lines, those of the bus itself too."""
    with stderr_lines() as lines:
        EventLogger.unregister()
        InferenceStartedEvent.emit(agent="sundae")
        notice("warning", ("HOOK", "SLOW"), ("hook", "A.b"))

    assert [] == lines
    assert not InferenceStartedEvent.has_receivers()


def test_it_is_registered_on_import_with_the_priority_of_observability():
    """A fresh process has EventLogger live, at the priority of observers of its kind."""
    code = "import eventbus; i = eventbus.hooks().get('EventLogger'); print(i.state, i.priority)"

    assert "live 150\n" == logged.run(code).stdout


# Where lines go


def test_configure_switches_the_output_at_once():
    """The line after `configure(log=...)` goes to the new output, and back."""
    records = logged.Records()
    event = InferenceStartedEvent(agent="sundae", **AT)
    lines = lines_of(
        lambda: [
            event.publish(),
            configure(logger=logged.stdlib_logger(records)),
            event.publish(),
            configure(log="json"),
            event.publish(),
            configure(log="stderr"),
            event.publish(),
        ]
    )

    assert [f"{HEAD}INF START agent=sundae"] == [lines[0]]
    assert ["INF START agent=sundae"] == [record.getMessage() for record in records.records]
    assert "INF START" == json.loads(lines[1])["event"]
    assert lines[0] == lines[2]


EMIT = "import eventbus; eventbus.InferenceStartedEvent.emit(agent='sundae', timestamp=0.0)"
PLAIN = "1970-01-01T00:00:00.000Z -------- INF START agent=sundae\n"


@pytest.mark.parametrize("value", [None, "stderr", " STDERR ", "", "nonsense", "structlog"])
def test_lines_go_to_stderr_by_default(value):
    """Lines go to stderr unless EVENTBUS_LOG names another output; also while structlog is not set up."""
    done = logged.run(EMIT, env={} if value is None else {"EVENTBUS_LOG": value})

    assert (0, "", PLAIN) == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("value", ["off", "none", "None", "OFF"])
def test_the_environment_turns_lines_off(value):
    """EVENTBUS_LOG=off, or none, is silence."""
    done = logged.run(EMIT, env={"EVENTBUS_LOG": value})

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_none_in_the_environment_is_off(monkeypatch):
    """The words `none` and `off` mean the same where the output is chosen."""
    chosen = []
    for word in ("none", " None ", "off"):
        monkeypatch.setenv("EVENTBUS_LOG", word)
        chosen.append(_logger.output())

    assert ["off", "off", "off"] == chosen


def test_the_environment_asks_for_json():
    """EVENTBUS_LOG=json makes a JSON object of each line."""
    done = logged.run(EMIT, env={"EVENTBUS_LOG": "json"})

    assert "" == done.stdout
    assert {"event": "INF START", "agent": "sundae"}.items() <= json.loads(done.stderr).items()


def test_the_environment_asks_for_stdlib():
    """EVENTBUS_LOG=stdlib makes records of the logger `eventbus`."""
    form = "%(name)s %(levelname)s %(cid)s %(message)s"
    setup = f"import logging; logging.basicConfig(level='INFO', format={form!r});"
    done = logged.run(setup + EMIT, env={"EVENTBUS_LOG": "stdlib"})

    assert ("", "eventbus INFO -------- INF START agent=sundae\n") == (done.stdout, done.stderr)


def test_what_was_configured_wins_over_the_environment():
    """`configure(log=...)` is the application's word; EVENTBUS_LOG counts without it."""
    code = EMIT.replace("; ", "; eventbus.configure(log='stderr'); ", 1)

    assert PLAIN == logged.run(code, env={"EVENTBUS_LOG": "off"}).stderr


def test_it_is_silent_until_the_first_event():
    """Importing writes nothing, and leaves logging and structlog as they were."""
    code = (
        "import logging, structlog, eventbus; "
        "print(structlog.is_configured(), logging.root.handlers, sorted(logging.root.manager.loggerDict))"
    )
    done = logged.run(code)

    assert "" == done.stderr
    assert "False []" == done.stdout.split(" [", 1)[0] + " []"
    assert "eventbus" not in done.stdout


def test_lines_leave_logging_and_structlog_unconfigured():
    """Lines on stderr come from a private logger: nothing global is configured by them."""
    code = f"{EMIT}; import logging, structlog; print(structlog.is_configured(), logging.root.handlers)"

    assert "False []\n" == logged.run(code).stdout
