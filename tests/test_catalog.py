"""The catalog's events: their channels, their readers and what these give, as the contract has them."""

from __future__ import annotations

import attrs
import pytest

from eventbus import (
    Agent,
    Event,
    HandlerFailedEvent,
    Hook,
    InferenceStartedEvent,
    LoopRunStartedEvent,
    RunInfo,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallStartedEvent,
    ToolResult,
    TurnStartedEvent,
    catalog,
    configure,
    find,
    on,
    stats,
)

# event: channel below `eventbus.`, ends_run, readers
TABLE = {
    "InferenceStartedEvent": ("inference.started", False, "agent message parent_id span_id"),
    "InferenceGeneratedEvent": (
        "inference.generated",
        False,
        "agent turn request response model settings usage attempt duration span_id",
    ),
    "InferenceCompletedEvent": ("inference.completed", True, "agent message result duration span_id"),
    "InferenceFailedEvent": ("inference.failed", True, "agent message error duration span_id"),
    "InferenceMaxTurnsReachedEvent": (
        "inference.max_turns_reached",
        True,
        "agent turn tool_calls duration span_id",
    ),
    "InferenceDeniedEvent": ("inference.denied", True, "agent message reason by"),
    "InferenceChunkEvent": ("inference.chunk", False, "agent thread chunk chunk_content"),
    "TurnStartedEvent": ("turn.started", False, "agent turn duration span_id"),
    "TurnCompletedEvent": ("turn.completed", False, "agent turn duration span_id"),
    "ModelCallStartedEvent": ("model_call.started", False, "agent turn model attempt error duration span_id"),
    "ModelCallFailedEvent": ("model_call.failed", False, "agent turn model attempt error duration span_id"),
    "ToolCallsReceivedEvent": ("tool_calls.received", False, "agent tool_calls"),
    "ToolCallStartedEvent": ("tool_call.started", False, "agent tool_call span_id"),
    "ToolCallCompletedEvent": (
        "tool_call.completed",
        False,
        "agent tool_call result answered_by duration span_id",
    ),
    "ToolCallFailedEvent": ("tool_call.failed", False, "agent tool_call error duration span_id"),
    "ToolCallDeniedEvent": ("tool_call.denied", False, "agent tool_call reason by"),
    "GateDecisionEvent": ("gate.decision", False, "gate by action field reason applied tool_call"),
    "StepStartedEvent": ("step.started", False, "name error duration span_id"),
    "StepCompletedEvent": ("step.completed", False, "name error duration span_id"),
    "StepFailedEvent": ("step.failed", False, "name error duration span_id"),
    "ContextCompactedEvent": ("context.compacted", False, "agent strategy before after duration"),
    "LoopRunEnqueuedEvent": ("loop_run.enqueued", False, "name agent_name"),
    "LoopRunStartedEvent": ("loop_run.started", False, "name agent_name"),
    "LoopRunCompletedEvent": ("loop_run.completed", True, "name agent_name error duration"),
    "LoopRunFailedEvent": ("loop_run.failed", True, "name agent_name error duration"),
    "HandlerFailedEvent": ("handler.failed", False, "hook handler event error"),
}
LOOKUP = ToolCall("call_0", "lookup_order", {"order": {"id": "A1"}})


def readers(cls):
    common = {"run", "correlation_id", "timestamp"}
    return {field.name for field in attrs.fields(cls)} - common


def make(name):
    """Make an event with nothing but what it requires."""
    cls = getattr(catalog, name)
    return cls(tool_call=LOOKUP) if name.startswith("ToolCall") and "Calls" not in name else cls()


def test_the_catalog_is_the_table():
    """The module exports exactly the events of the contract's table."""
    assert sorted(TABLE) == sorted(catalog.__all__)


@pytest.mark.parametrize("name", TABLE)
def test_each_event_has_its_channel(name):
    """Each event has the channel that the table states."""
    assert f"eventbus.{TABLE[name][0]}" == getattr(catalog, name).channel


@pytest.mark.parametrize("name", TABLE)
def test_each_event_is_found_by_its_channel(name):
    """`find` gives the class that states a channel."""
    assert find(f"eventbus.{TABLE[name][0]}") is getattr(catalog, name)


@pytest.mark.parametrize("name", TABLE)
def test_each_event_has_its_readers(name):
    """Each event has the readers of the table, and `run`."""
    cls = getattr(catalog, name)

    assert set(TABLE[name][2].split()) == readers(cls)
    assert "run" in {field.name for field in attrs.fields(cls)}


@pytest.mark.parametrize("name", TABLE)
def test_each_event_ends_its_run_or_does_not(name):
    """The events that the table marks end their run, and no others do."""
    assert TABLE[name][1] == getattr(catalog, name).ends_run


@pytest.mark.parametrize("name", TABLE)
def test_readers_default_to_none(name):
    """Whatever was not given is None, `run` included."""
    event = make(name)
    given = {"tool_call"} if event.get("tool_call") is LOOKUP else set()

    assert {None} == {event[reader] for reader in {*readers(type(event)), "run"} - given}


@pytest.mark.parametrize(
    "name", [name for name in TABLE if name.startswith("ToolCall") and "Calls" not in name]
)
def test_the_tool_call_of_a_tool_calls_events_is_required(name):
    """The four ToolCall events cannot be emitted without their call, whether or not anyone listens."""
    cls = getattr(catalog, name)
    with pytest.raises(TypeError, match="tool_call"):
        cls.emit()
    cls.subscribe(lambda event: None)
    with pytest.raises(TypeError, match="tool_call"):
        cls.emit()


@pytest.mark.parametrize("name", TABLE)
def test_each_event_is_an_observed_one(name):
    """All of them are events, frozen."""
    event = make(name)

    assert isinstance(event, Event)
    with pytest.raises(AttributeError):
        event.run = None


def test_a_name_given_as_agent_becomes_an_agent():
    """A plain string as agent has a `name`, whether the event was emitted or made."""
    seen = []
    InferenceStartedEvent.subscribe(seen.append)
    InferenceStartedEvent.emit(agent="sundae")

    for event in (*seen, InferenceStartedEvent(agent="sundae")):
        assert (Agent("sundae"), "sundae") == (event.agent, event.agent.name)


def test_an_object_given_as_agent_stays_itself():
    """Any object with a name serves as agent, and None stays None."""

    class Scoop:
        name = "sundae"

    scoop = Scoop()

    assert scoop is InferenceStartedEvent(agent=scoop).agent
    assert None is InferenceStartedEvent().agent


def test_any_object_with_the_attributes_serves_as_a_value():
    """Stand-ins of ToolCall and ToolResult reach the handlers as they are."""

    class Call:
        id, name, input = "1", "lookup", {}

    class Result:
        data, error = {"total": 1}, None

    seen = []
    ToolCallCompletedEvent.subscribe(seen.append)
    call, result = Call(), Result()
    ToolCallCompletedEvent.emit(tool_call=call, result=result)

    assert seen[0].tool_call is call
    assert seen[0].result is result


def test_an_observer_cannot_write_to_a_calls_input():
    """Writing to `event.tool_call.input` fails in the handler that does it; the run's dict is unchanged."""
    arguments = {"order": {"id": "A1"}}
    errors = []
    HandlerFailedEvent.subscribe(lambda event: errors.append(event.error))

    class Meddler(Hook):
        @on(ToolCallStartedEvent)
        def change(self, event):
            event.tool_call.input["order"]["id"] = "B2"

    ToolCallStartedEvent.emit(tool_call=ToolCall("1", "lookup", arguments))

    assert [TypeError] == [type(error) for error in errors]
    assert {"order": {"id": "A1"}} == arguments


def test_dicts_and_lists_among_the_readers_are_read_only():
    """A result given as a dict is read-only to handlers, and equal to what was given."""
    result = {"items": [1]}
    event = ToolCallCompletedEvent(tool_call=LOOKUP, result=result)

    assert result == event.result
    with pytest.raises(TypeError):
        event.result["items"].append(2)


def test_run_is_what_the_run_says():
    """`run` carries the run's id, parent, agent, message and metadata."""
    run = RunInfo("r1", "r0", Agent("sundae"), "hello", {"user": 7})

    assert {"user": 7} == TurnStartedEvent(run=run, turn=1).run.metadata


def test_run_is_readable_on_any_other_event():
    """A user's event emitted with `run` gives it by `get`."""

    class Scooped(Event):
        pass

    run = RunInfo("r1")
    seen = []
    Scooped.subscribe(seen.append)
    Scooped.emit(run=run)

    assert run is seen[0].get("run")


def test_catalog_events_compare_by_value():
    """Two of one class with one payload are equal, whenever they were made."""
    assert LoopRunStartedEvent(name="a", timestamp=1.0) == LoopRunStartedEvent(name="a", timestamp=2.0)
    assert LoopRunStartedEvent(name="a") != LoopRunStartedEvent(name="b")


def test_a_failing_handler_is_an_event():
    """HandlerFailedEvent names hook and handler, and carries the event, its error, its id and its run."""
    run = RunInfo("r1")
    seen = []
    HandlerFailedEvent.subscribe(seen.append)
    error = ValueError("boom")

    class Audit(Hook):
        @on(TurnStartedEvent)
        def count(self, event):
            raise error

    TurnStartedEvent.emit(turn=1, run=run, correlation_id="c1")
    [failed] = seen

    assert ("Audit", "Audit.count", error, run, "c1") == (
        failed.hook,
        failed.handler,
        failed.error,
        failed.run,
        failed.correlation_id,
    )
    assert TurnStartedEvent(turn=1, run=run, correlation_id="c1") == failed.event


def test_a_failing_function_has_no_hook():
    """Of a function that fails, the event has the name alone."""
    seen = []
    HandlerFailedEvent.subscribe(seen.append)

    def audit(event):
        raise ValueError

    TurnStartedEvent.subscribe(audit)
    TurnStartedEvent.emit()

    assert [(None, audit.__qualname__)] == [(failed.hook, failed.handler) for failed in seen]


def test_a_failure_while_a_failure_is_told_is_counted_only():
    """A handler of HandlerFailedEvent that fails is counted, and told to nobody."""
    seen = []

    def fail(event):
        seen.append(event)
        raise ValueError

    HandlerFailedEvent.subscribe(fail)
    TurnStartedEvent.subscribe(lambda event: 1 / 0)
    before = stats()["failures"]
    TurnStartedEvent.emit()

    assert 1 == len(seen)
    assert before + 2 == stats()["failures"]


def test_log_data_is_of_no_effect_on_events():
    """`configure(log_data=False)` is about lines: handlers have the result."""
    configure(log_data=False)
    seen = []
    ToolCallCompletedEvent.subscribe(seen.append)
    ToolCallCompletedEvent.emit(tool_call=LOOKUP, result=ToolResult({"total": 12}))

    assert {"total": 12} == seen[0].result.data
