"""The gates of a run: their channels, their fields and who may write them, as the contract has them."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

import eventbus
from eventbus import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    Agent,
    ApproveToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    Hook,
    Priority,
    ProtectedEvent,
    RunInfo,
    ToolCall,
    catalog,
    find,
    gates,
    on,
)

REFUND = ToolCall("call_1", "process_refund", {"total": 12, "order": {"id": "A1", "lines": [1, 2]}})

# gate: channel below `eventbus.`, the fields in the contract's notation (* writable, ° sticky)
TABLE = {
    BeforeInvocationEvent: ("invocation.before", "message* state* cancel*°"),
    AfterInvocationEvent: ("invocation.after", "success error result*"),
    BeforeModelCallEvent: ("model_call.before", "turn messages* tools settings* response* cancel*°"),
    AfterModelCallEvent: ("model_call.after", "messages response* error attempt retry* reason*"),
    BeforeToolCallEvent: ("tool_call.before", "tool_call arguments* result* cancel*°"),
    ApproveToolCallEvent: ("tool_call.approve", "tool_call arguments denied*°"),
    AfterToolCallEvent: ("tool_call.after", "tool_call arguments error result* attempt retry* reason*"),
}
GATES = pytest.mark.parametrize("gate", TABLE, ids=lambda gate: gate.__name__)
ANY_VALUE = {"retry": 0.5, "reason": "empty answer", "cancel": "no", "denied": "no"}


def ask(gate, **fields: Any):
    """Ask a gate, with the one field that some of them require."""
    required = {field.name for field in attrs.fields(gate) if field.default is attrs.NOTHING}
    return gate.emit(**dict.fromkeys(required, REFUND), **fields)


def fields_of(gate):
    return TABLE[gate][1].split()


def test_they_are_the_tables():
    """The module has the table's gates, no more and no fewer; each is there at the top level too."""
    names = {gate.__name__ for gate in TABLE}

    assert names == set(gates.__all__)
    assert all(getattr(eventbus, name) is getattr(gates, name) for name in names)
    assert not names & set(catalog.__all__)


@GATES
def test_channel(gate):
    """Each gate is found by its channel."""
    channel = f"eventbus.{TABLE[gate][0]}"

    assert channel == gate.channel
    assert gate is find(channel)


@GATES
def test_fields(gate):
    """Each gate has the table's fields, and `agent` and `run`."""
    expected = {field.rstrip("*°") for field in fields_of(gate)}

    assert {"agent", "run", *expected} == set(ask(gate).payload)


@GATES
def test_writable_fields(gate):
    """Just the fields with a star can be written."""
    event = ask(gate)

    for field in ["agent", "run", *fields_of(gate)]:
        name = field.rstrip("*°")
        if "*" in field:
            setattr(event, name, ANY_VALUE.get(name, {"a": 1}))
            assert ANY_VALUE.get(name, {"a": 1}) == getattr(event, name)
        else:
            with pytest.raises(AttributeError, match=f"Cannot set '{name}' on {gate.__name__}: read-only"):
                setattr(event, name, None)


@GATES
def test_sticky_fields(gate):
    """Just the fields with a ring latch."""
    event = ask(gate)
    names = [field for field in fields_of(gate) if "*" in field]

    for field in names:
        name = field.rstrip("*°")
        setattr(event, name, "first")
        setattr(event, name, "second")

    assert ["first" if "°" in field else "second" for field in names] == [
        getattr(event, field.rstrip("*°")) for field in names
    ]


@GATES
def test_order(gate):
    """The After-gates run in the opposite order, the others by priority."""
    seen = []
    gate.subscribe(lambda event: seen.append("business"), priority=Priority.BUSINESS)
    gate.subscribe(lambda event: seen.append("security"), priority=Priority.SECURITY)

    ask(gate)

    in_order = ["security", "business"]
    assert (in_order[::-1] if gate.__name__.startswith("After") else in_order) == seen


@GATES
def test_they_are_protected(gate):
    """Each is a ProtectedEvent, ends no run, and lets the action through when nobody judges."""
    event = ask(gate)

    assert issubclass(gate, ProtectedEvent)
    assert False is gate.ends_run
    assert not any(getattr(event, name, False) for name in ("cancel", "denied", "retry"))
    assert () == event.edits


@GATES
def test_agent_and_run(gate):
    """A name given as agent becomes one; the run is what the run says."""
    run = RunInfo("run-1", metadata={"user": 7})
    event = ask(gate, agent="sundae", run=run)

    assert (Agent("sundae"), "sundae", run) == (event.agent, event.agent.name, event.run)
    with pytest.raises(TypeError, match="read-only"):
        event.run.metadata["user"] = 8


@GATES
def test_tool_call_is_required(gate):
    """`tool_call` is required where there is one."""
    if "tool_call" in fields_of(gate):
        with pytest.raises(TypeError, match="tool_call"):
            gate.emit()
    else:
        gate.emit()


@pytest.mark.parametrize("gate", [BeforeToolCallEvent, ApproveToolCallEvent, AfterToolCallEvent])
def test_arguments_are_read_only(gate):
    """A handler that changes the arguments in place gets a TypeError, and the run's dict is unchanged."""
    given = {"total": 12, "order": {"id": "A1"}}
    event = gate.emit(tool_call=REFUND, arguments=given)

    with pytest.raises(TypeError, match="read-only"):
        event.arguments.pop("total")
    with pytest.raises(TypeError, match="read-only"):
        event.arguments["order"]["id"] = "A2"
    with pytest.raises(TypeError, match="read-only"):
        event.tool_call.input["total"] = 0

    assert {"total": 12, "order": {"id": "A1"}} == given


def test_a_later_handler_is_not_broken_by_an_earlier_one():
    """A handler that takes a key out fails by itself; what it wrote a copy without is what later ones see."""
    seen = []

    class Strip(Hook):
        @on(BeforeToolCallEvent)
        def strip(self, event):
            with pytest.raises(TypeError, match="read-only"):
                event.arguments.pop("total")
            rest = dict(event.arguments)
            rest.pop("total")
            event.arguments = rest

        @on(BeforeToolCallEvent)
        def look(self, event):
            seen.append(dict(event.arguments))

    given = {"total": 12, "order": "A1"}
    event = BeforeToolCallEvent.emit(tool_call=REFUND, arguments=given)

    assert [{"order": "A1"}] == seen
    assert {"total": 12, "order": "A1"} == given
    assert '{"order": "A1"}' == json.dumps(event.arguments)


def test_an_edit_without_a_verdict():
    """Edits without a verdict are applied: the last is what will run, and nothing is refused."""
    for limit in (10, 20):
        BeforeToolCallEvent.subscribe(
            lambda event, limit=limit: setattr(event, "arguments", {**event.arguments, "limit": limit})
        )

    event = BeforeToolCallEvent.emit(tool_call=REFUND, arguments={"total": 12})

    assert {"total": 12, "limit": 20} == event.arguments
    assert False is event.cancel


def test_a_reason_is_kept_verbatim():
    """A refusal has its author's own words, and names him."""
    reason = "  over the limit:\n12 > 10 \u2028"

    class Caps(Hook):
        @on(ApproveToolCallEvent)
        def check(self, event):
            event.denied = reason

    event = ApproveToolCallEvent.emit(tool_call=REFUND)

    assert reason == event.denied
    assert [("Caps.check", reason)] == [(edit.handler, edit.new) for edit in event.edits]


def test_any_object_serves_as_a_call():
    """Any object with the attributes of a call works in its place."""

    class Call:
        id, name, input = "c", "lookup", {"a": 1}

    call = Call()

    assert call is BeforeToolCallEvent.emit(tool_call=call).tool_call
