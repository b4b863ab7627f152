"""
A recorded run is told as the events that it would have emitted, and what is delivered is counted.
"""

from __future__ import annotations

import json
import threading
import time

import pytest
import recordings
from hypothesis import given, settings
from recordings import assistant, call, needs_airline, record, tool, user

import eventbus
from eventbus import (
    Event,
    HandlerFailedEvent,
    Hook,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceStartedEvent,
    Message,
    ModelCallStartedEvent,
    ModelResponse,
    RunInfo,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallsReceivedEvent,
    ToolCallStartedEvent,
    ToolResult,
    TurnCompletedEvent,
    TurnStartedEvent,
    current_correlation_id,
    drain,
    is_replaying,
    on,
)
from eventbus._records import UNANSWERED, Record, ToolError, parse_record, read_records
from eventbus._replay import MAX_REASONS, Summary, ToolCount, replay_record
from eventbus.gates import BeforeInvocationEvent, BeforeModelCallEvent, BeforeToolCallEvent
from eventbus.testing import capture

ENDS = {
    InferenceStartedEvent: InferenceCompletedEvent,
    TurnStartedEvent: TurnCompletedEvent,
    ModelCallStartedEvent: InferenceGeneratedEvent,
    ToolCallStartedEvent: (ToolCallCompletedEvent, ToolCallFailedEvent),
}


def parsed(*messages, **more):
    return parse_record(json.dumps(record(*messages, **more)).encode())


def told(*messages, **more):
    with capture() as recorder:
        replay_record(parsed(*messages, **more))
    return recorder


class TestEvents:
    """What a record is told as."""

    def test_a_turn_with_calls_is_told_in_the_order_of_a_run(self):
        """Each call ends before the next begins, whatever the order of the answers in the record."""
        recorder = told(
            user(),
            assistant(call("a", call_id="x"), call("b", call_id="y")),
            tool("Error: no b", "y"),
            tool("1", "x"),
            assistant(content="Done."),
        )
        assert [
            InferenceStartedEvent,
            TurnStartedEvent,
            ModelCallStartedEvent,
            InferenceGeneratedEvent,
            ToolCallsReceivedEvent,
            ToolCallStartedEvent,
            ToolCallCompletedEvent,
            ToolCallStartedEvent,
            ToolCallFailedEvent,
            TurnCompletedEvent,
            TurnStartedEvent,
            ModelCallStartedEvent,
            InferenceGeneratedEvent,
            TurnCompletedEvent,
            InferenceCompletedEvent,
        ] == [type(event) for event in recorder]

    def test_all_events_carry_the_run(self):
        """The record's id is the correlation id; agent, message and what else it says are the run's."""
        recorder = told(user("Hi"), assistant(call()), tool(), reward=1.0)
        run = RunInfo("run-1", agent="sundae", message=Message("Hi"), metadata={"reward": 1.0})
        assert 9 == len(recorder)
        assert all("run-1" == event.correlation_id and run == event["run"] for event in recorder)
        assert all("sundae" == event["agent"].name for event in recorder)

    def test_the_run_begins_and_ends_with_its_message(self):
        """Start and end carry the first message of the user, the end the model's last answer too."""
        recorder = told(user("Hi"), assistant(content="Hello."), user("Bye"))
        started, completed = recorder[0], recorder[-1]
        assert Message("Hi") == started["message"] == completed["message"]
        assert "Hello." == completed["result"].content

    def test_a_record_that_ends_on_a_tool_completes_without_a_result(self):
        """Such a run has an end as well."""
        completed = told(user(), assistant(call()), tool())[-1]
        assert isinstance(completed, InferenceCompletedEvent)
        assert completed.result is None

    def test_what_was_sent_and_answered_is_told(self):
        """The request is the messages so far, the response the message; usage is told if recorded."""
        first, second = told(
            user(), assistant(call(), usage={"in": 7}), tool(), assistant(content="Done.")
        ).of(InferenceGeneratedEvent)
        assert [user()] == first.request
        assert [user(), assistant(call(), usage={"in": 7}), tool()] == second.request
        assert ([ToolCall("call_0", "lookup")], {"in": 7}) == (first.response.tool_calls, first.usage)
        assert ("Done.", None) == (second.response.content, second.usage)
        assert [("m-1", 1, 1), ("m-1", 2, 1)] == [
            (event.model, event.turn, event.attempt) for event in (first, second)
        ]

    def test_turns_and_model_calls_are_numbered(self):
        """Turns count from 1; a record knows of one attempt each."""
        recorder = told(assistant(), assistant())
        assert [1, 2] == [event.turn for event in recorder.of(TurnStartedEvent)]
        assert [1, 2] == [event.turn for event in recorder.of(TurnCompletedEvent)]
        assert [("m-1", 1, 1), ("m-1", 2, 1)] == [
            (event.model, event.turn, event.attempt) for event in recorder.of(ModelCallStartedEvent)
        ]

    def test_calls_and_results_are_told(self):
        """The calls as received, each with its result or with the error that was its answer."""
        calls = [ToolCall("call_0", "look", {"n": 1}), ToolCall("call_0", "think", {})]
        recorder = told(
            assistant(call("look", '{"n": 1}'), call("think", "")), tool('{"ok": true}'), tool("Error: 42")
        )
        assert calls == recorder.assert_emitted(ToolCallsReceivedEvent).tool_calls
        assert calls == [event.tool_call for event in recorder.of(ToolCallStartedEvent)]
        recorder.assert_emitted(ToolCallCompletedEvent, tool_call=calls[0], result=ToolResult({"ok": True}))
        failed = recorder.assert_emitted(ToolCallFailedEvent, tool_call=calls[1])
        assert isinstance(failed.error, ToolError)
        assert "Error: 42" == str(failed.error)

    def test_a_failure_has_its_line(self):
        """The line of a failed call shows what the tool answered."""
        failed = told(assistant(call("look")), tool("Error: no such order")).of(ToolCallFailedEvent)[0]
        assert "TOOL FAIL look id=call_0 ToolError: Error: no such order" == failed.log_line()

    def test_a_call_that_was_never_answered_fails(self):
        """A record may end with a call; its start has an end all the same."""
        recorder = told(assistant(call()))
        assert UNANSWERED == str(recorder.assert_emitted(ToolCallFailedEvent).error)
        assert isinstance(recorder[-1], InferenceCompletedEvent)

    def test_times_are_those_of_the_emission(self):
        """A record tells no times: timestamps are of now, durations only of the replay."""
        before = time.time()
        recorder = told(user(), assistant(call()), tool())
        times = [before, *(event.timestamp for event in recorder), time.time()]
        assert sorted(times) == times
        assert all(0 <= (event.get("duration") or 0) for event in recorder)

    @given(said=recordings.records())
    @settings(max_examples=50)
    def test_every_start_has_exactly_one_end(self, said):
        """Whatever the record, ends follow their starts with the same span id, which no other start has."""
        with capture() as recorder:
            replay_record(parse_record(json.dumps(said).encode()))
        opened = {}
        for event in recorder:
            span_id = event.get("span_id")
            if type(event) in ENDS:
                assert 16 == len(span_id)
                assert span_id not in opened
                opened[span_id] = event
            elif span_id is not None:
                start = opened[span_id]
                assert isinstance(event, ENDS[type(start)])
                assert start.get("tool_call") == event.get("tool_call")
                opened[span_id] = None
        assert not any(opened.values())

    def test_nothing_is_built_for_nobody(self):
        """Without a listener, a replay builds no event."""
        before = eventbus.stats()["events"]
        replay_record(parsed(user(), assistant(call()), tool()))
        assert before == eventbus.stats()["events"]


class TestHandlers:
    """What handlers see of a replay, and do to it."""

    def test_handlers_know_that_it_is_a_replay(self):
        """`is_replaying()` is true in handlers, async ones included, and false afterwards."""
        seen = []

        class Careful(Hook):
            @on(InferenceStartedEvent)
            def now(self):
                seen.append((is_replaying(), current_correlation_id()))

            @on(InferenceCompletedEvent)
            async def later(self):
                seen.append((is_replaying(), current_correlation_id()))

        replay_record(parsed(user()))
        assert not is_replaying()
        assert current_correlation_id() is None
        drain()
        assert [(True, "run-1")] * 2 == seen

    def test_records_with_one_id_are_two_runs(self):
        """A stateful hook begins anew, for the first run has ended."""
        seen = []

        class Counter(Hook):
            stateful = True

            def __init__(self):
                self.turns = 0

            @on(TurnStartedEvent)
            def count(self):
                self.turns += 1

            @on(InferenceCompletedEvent)
            def tell(self):
                seen.append(self.turns)

        for _ in range(2):
            replay_record(parsed(assistant(), assistant()))
        assert [2, 2] == seen

    def test_a_handler_that_raises_stops_nothing(self):
        """Observers fail open in a replay too."""

        class Broken(Hook):
            @on(TurnStartedEvent)
            def boom(self):
                raise ValueError("boom")

        recorder = told(user(), assistant())
        recorder.assert_emitted(HandlerFailedEvent, handler="Broken.boom")
        assert isinstance(recorder[-1], InferenceCompletedEvent)

    def test_an_interrupt_ends_the_replay_where_it_stands(self):
        """A BaseException comes out, after the ends of what has begun, and the replay is over."""

        class Stop(Hook):
            @on(TurnStartedEvent)
            def stop(self):
                raise KeyboardInterrupt

        with capture() as recorder, pytest.raises(KeyboardInterrupt):
            replay_record(parsed(user(), assistant(), user()))
        assert [InferenceStartedEvent, TurnStartedEvent, TurnCompletedEvent, InferenceFailedEvent] == [
            type(event) for event in recorder
        ]
        assert not is_replaying()
        assert current_correlation_id() is None


class TestGates:
    """Gates judge a record as they would have judged the run."""

    def test_a_refused_call_is_told_and_the_record_goes_on(self):
        """The refused call is not started; what follows is as it was recorded."""

        @BeforeToolCallEvent.subscribe
        def guard(event):
            if event.tool_call.name == "refund":
                event.cancel = "not today"

        recorder = told(
            assistant(call("refund"), call("look")), tool("1"), tool("2"), assistant(content="Done.")
        )
        assert "not today" == recorder.assert_emitted(ToolCallDeniedEvent).reason
        assert ["look"] == [event.tool_call.name for event in recorder.of(ToolCallStartedEvent)]
        assert "Done." == recorder.assert_emitted(InferenceCompletedEvent).result.content

    def test_a_refused_model_call_leaves_its_calls_to_be_judged(self):
        """What the model had asked for is judged all the same."""

        @BeforeModelCallEvent.subscribe
        def guard(event):
            event.cancel = "over budget"

        recorder = told(assistant(call("look")), tool())
        recorder.assert_not_emitted(InferenceGeneratedEvent)
        recorder.assert_emitted(ToolCallCompletedEvent)

    def test_what_a_gate_answers_takes_the_place_of_the_record(self):
        """An answer of a gate is not overwritten by the recorded one, be it of the model or a tool."""

        @BeforeModelCallEvent.subscribe
        def answer(event):
            event.response = ModelResponse("No.")

        @BeforeToolCallEvent.subscribe
        def result(event):
            event.result = "cached"

        recorder = told(assistant(call("look")), tool("Error: gone"))
        assert "No." == recorder.assert_emitted(InferenceGeneratedEvent).response.content
        completed = recorder.assert_emitted(ToolCallCompletedEvent)
        assert "cached" == getattr(completed.result, "data", completed.result)

    def test_gates_see_the_messages_so_far(self):
        """Also when nobody observes what was generated."""
        seen = []

        @BeforeModelCallEvent.subscribe
        def look(event):
            seen.append(len(event.messages))

        replay_record(parsed(user(), assistant(call()), tool(), assistant()))
        assert [1, 3] == seen

    def test_a_gate_that_raises_ends_its_run_and_not_the_replay(self):
        """The run fails, with every start ended; the next record is another run."""

        @BeforeToolCallEvent.subscribe
        def guard(event):
            raise RuntimeError("broken guard")

        recorder = told(assistant(call()), tool())
        assert "broken guard" == str(recorder.assert_emitted(InferenceFailedEvent).error)
        recorder.assert_not_emitted(InferenceCompletedEvent)

    def test_a_refused_run_is_told(self):
        """Nothing else of the record is."""

        @BeforeInvocationEvent.subscribe
        def guard(event):
            event.cancel = "closed"

        recorder = told(user(), assistant())
        assert "closed" == recorder.assert_emitted(InferenceDeniedEvent).reason
        recorder.assert_not_emitted(TurnStartedEvent)

    def test_decisions_are_counted_with_their_reasons(self):
        """By handler, action and subject; what a shadow hook would have done is not applied."""

        class NewGuard(Hook):
            shadow = True

            @on(BeforeToolCallEvent)
            def check(self, event):
                event.cancel = f"over {event.arguments['limit']}"

        with Summary() as summary:
            replay_record(
                parsed(
                    assistant(*(call("refund", {"limit": limit}) for limit in (1, 2, 2))),
                    tool(),
                    tool(),
                    tool(),
                )
            )
        ((decided, decisions),) = summary.decisions.items()
        assert ("NewGuard.check", "deny", "refund", False) == decided
        assert (3, {"over 1": 1, "over 2": 2}) == (decisions.count, decisions.reasons)

    def test_not_every_reason_is_kept(self):
        """A gate that gives a new reason each time does not fill the memory; each of its decisions counts."""

        @BeforeToolCallEvent.subscribe
        def guard(event):
            event.cancel = f"no {event.arguments['n']}"

        calls = [call("refund", {"n": n}) for n in range(MAX_REASONS + 5)]
        with Summary() as summary:
            replay_record(parsed(assistant(*calls), *(tool() for _ in calls)))
        ((_, decisions),) = summary.decisions.items()
        assert (MAX_REASONS + 5, MAX_REASONS) == (decisions.count, len(decisions.reasons))


class Ping(Event):
    """An event that has nothing to do with agents."""


class TestSummary:
    """What was delivered is counted."""

    def test_events_are_counted_by_class(self):
        """All observed events count, whoever emits them, while the summary is open."""
        Ping.emit()
        with Summary() as summary:
            replay_record(parsed(user(), assistant()))
            Ping.emit()
        Ping.emit()
        assert {
            InferenceStartedEvent: 1,
            TurnStartedEvent: 1,
            ModelCallStartedEvent: 1,
            InferenceGeneratedEvent: 1,
            TurnCompletedEvent: 1,
            InferenceCompletedEvent: 1,
            Ping: 1,
        } == summary.events
        assert 7 == summary.total

    def test_tools_are_counted_by_name(self):
        """Each has its calls, and how many of them failed."""
        with Summary() as summary:
            replay_record(parsed(assistant(call("a"), call("b"), call("a")), tool("Error"), tool(), tool()))
        assert {"a": ToolCount(2, 1), "b": ToolCount(1, 0)} == summary.tools

    def test_handlers_that_raise_are_counted(self):
        """How often each raised is known after the lines about it have long been limited."""

        class Broken(Hook):
            @on(TurnStartedEvent)
            def boom(self):
                raise ValueError("boom")

        with Summary() as summary:
            replay_record(parsed(assistant(), assistant()))
        assert {"Broken.boom": 2} == summary.failed_handlers

    def test_runs_are_those_that_began_or_were_refused(self):
        """A run that a gate refused was a run."""
        with Summary() as summary:
            replay_record(parsed())
            InferenceDeniedEvent.emit(reason="not today")
        assert 2 == summary.runs

    def test_an_event_counts_whatever_its_handlers_do(self):
        """An event that a handler leaves with an interrupt was delivered."""
        with Summary() as summary:

            @Ping.subscribe(priority=0)
            def stop(event):
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                Ping.emit()
        assert {Ping: 1} == summary.events

    def test_threads_lose_no_count(self):
        """Events of several threads all count."""
        with Summary() as summary:
            threads = [threading.Thread(target=lambda: [Ping.emit() for _ in range(500)]) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert 2000 == summary.total

    def test_time_runs_while_it_is_open(self):
        """Before it is entered no time has passed, and none passes after it was left."""
        summary = Summary()
        assert (0.0, 0.0) == (summary.seconds, summary.rate)
        with summary:
            Ping.emit()
            assert 0 < summary.seconds <= summary.seconds
        seconds = summary.seconds
        assert seconds == summary.seconds
        assert 1 / seconds == summary.rate

    @needs_airline
    def test_the_recorded_airline_runs_are_told(self):
        """Two hundred real runs make the events that they must have emitted."""
        with Summary() as summary, recordings.AIRLINE.open("rb") as stream:
            for found in read_records(stream):
                assert isinstance(found, Record)
                replay_record(found)
        assert {
            InferenceStartedEvent: 200,
            InferenceCompletedEvent: 200,
            TurnStartedEvent: 2454,
            TurnCompletedEvent: 2454,
            ModelCallStartedEvent: 2454,
            InferenceGeneratedEvent: 2454,
            ToolCallsReceivedEvent: 1164,
            ToolCallStartedEvent: 1164,
            ToolCallCompletedEvent: 1091,
            ToolCallFailedEvent: 73,
        } == summary.events
        assert 200 == summary.runs
        assert 14 == len(summary.tools)
        assert 73 == sum(tool_.failed for tool_ in summary.tools.values())

    def test_the_example_has_what_it_promises(self):
        """The hand-made file has failures, repeated ids, parallel calls and a run that ends on a tool."""
        with recordings.REFUNDS.open("rb") as stream, capture() as recorder, Summary() as summary:
            for found in read_records(stream):
                assert isinstance(found, Record)
                replay_record(found)
        assert (5, 3) == (summary.runs, summary.events[ToolCallFailedEvent])
        assert any(2 == len(event.tool_calls) for event in recorder.of(ToolCallsReceivedEvent))
        assert any(event.result is None for event in recorder.of(InferenceCompletedEvent))
        ids = [(event.correlation_id, event.tool_call.id) for event in recorder.of(ToolCallStartedEvent)]
        assert len(set(ids)) < len(ids)
