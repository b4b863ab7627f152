"""
A plain run: the order of its events, what its gates decide, and that each start has its end whatever happens.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import gc
import inspect
import itertools
import json
import re
import sys
import threading
import types
import weakref
from typing import Any

import pytest
from logged import lines_of, stderr_lines

import eventbus
from eventbus import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    Agent,
    ApproveToolCallEvent,
    AsyncGateError,
    AsyncRun,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    ContextCompactedEvent,
    Event,
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
    Message,
    ModelCallFailedEvent,
    ModelCallRefused,
    ModelCallStartedEvent,
    ModelResponse,
    Priority,
    ProtectedEvent,
    Run,
    RunEndedError,
    RunRefused,
    StepFailedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallRefused,
    ToolCallsReceivedEvent,
    ToolCallStartedEvent,
    ToolResult,
    TurnCompletedEvent,
    TurnStartedEvent,
    _stateful,
    configure,
    correlation,
    current_correlation_id,
    on,
    writable,
)
from eventbus._telling import Telling, Ticket
from eventbus.testing import capture, frozen_clock

CALL = ToolCall("call_1", "lookup", {"order": "A1"})
ANSWER = ModelResponse("done")

GATES = [
    BeforeInvocationEvent,
    AfterInvocationEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    BeforeToolCallEvent,
    ApproveToolCallEvent,
    AfterToolCallEvent,
]
OUTSIDERS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]
ANY_ERROR = [ValueError, *OUTSIDERS]


class Counted(Event):
    """An event of the run's own."""

    number: int


class BeforePayment(ProtectedEvent):
    """A gate of the run's own."""

    amount: int
    limit: int = writable(default=10)
    blocked: bool | str = writable(default=False, sticky=True)


def lookup(**arguments):
    """A tool that answers with what it was given."""
    return arguments


def answer(messages, **settings):
    """A model that has nothing to ask."""
    return ANSWER


def asking(*calls):
    """Return a model that asks for tools."""
    return lambda messages, **settings: ModelResponse("thinking", list(calls))


def names(recorder):
    """Return the names of what was emitted."""
    return [type(event).__name__.removesuffix("Event") for event in recorder.events]


def watch(log):
    """Have a list filled with the names of events and gates, in their order."""
    Event.subscribe(lambda event: log.append(type(event).__name__.removesuffix("Event")), priority=-1000)
    for gate in GATES:
        gate.subscribe(lambda event: log.append(type(event).__name__.removesuffix("Event")))


def decisions(recorder):
    """Return what gates have decided: action, field, reason, whether it was applied."""
    return [(e.action, e.field, e.reason, e.applied) for e in recorder.of(GateDecisionEvent)]


def only(recorder, event_class):
    """Return the one event of a class."""
    [event] = recorder.of(event_class)
    return event


class TestOrder:
    """§8, Order: what a run asks and tells, from its beginning to its end."""

    def test_a_turn_with_a_model_and_a_tool(self):
        """Gates and events of a whole run come in the contract's order."""
        log: list[str] = []
        watch(log)
        with Run("sundae", "where is A1?") as run:
            for _ in run.turns(limit=2):
                response = run.call_model(asking(CALL), [])
                run.call_tools(response.tool_calls, {"lookup": lookup})
                run.complete(response)
                break
        assert [
            "BeforeInvocation",
            "InferenceStarted",
            "TurnStarted",
            "BeforeModelCall",
            "ModelCallStarted",
            "AfterModelCall",
            "InferenceGenerated",
            "ToolCallsReceived",
            "BeforeToolCall",
            "ApproveToolCall",
            "ToolCallStarted",
            "AfterToolCall",
            "ToolCallCompleted",
            "TurnCompleted",
            "AfterInvocation",
            "InferenceCompleted",
        ] == log

    def test_every_event_has_the_run(self):
        """Each event and gate has the run's id as its own, and says which run, agent and message it is."""
        seen: list[Any] = []
        Event.subscribe(seen.append)
        for gate in GATES:
            gate.subscribe(seen.append)
        with Run("sundae", "hello", metadata={"user": 7}) as run:
            response = run.call_model(asking(CALL), [])
            run.call_tools(response.tool_calls, {"lookup": lookup})
        assert {run.id} == {event.correlation_id for event in seen}
        assert all(run.info == event.run for event in seen)
        assert {"sundae"} == {event.agent.name for event in seen}
        assert ("hello", {"user": 7}) == (run.info.message, run.info.metadata)

    def test_looking_at_a_run_before_it_begins_changes_nothing(self):
        """As a debugger does, which reads all that it has."""
        run = Run("sundae", "hello")
        inspect.getmembers(run)
        with capture() as recorder, run:
            pass
        assert {(run.id, "hello")} == {(event.run.id, event.run.message) for event in recorder.events}

    def test_a_start_and_its_end_have_one_span_id(self):
        """A start and its end carry the same span id, another for each, and the end a duration."""
        with capture() as recorder, Run("sundae") as run:
            for _ in run.turns():
                run.call_model(answer, [])
                run.call_tools([CALL, CALL], {"lookup": lookup})
                with run.step("tidy"):
                    pass
                break
        spans: dict[str, list[Any]] = collections.defaultdict(list)
        for event in recorder.events:
            if event.get("span_id") is not None:
                spans[event.span_id].append(event)
        assert 6 == len(spans)
        assert {2} == {len(pair) for pair in spans.values()}
        assert all(pair[1].duration >= 0 for pair in spans.values())
        assert all(len(span) == 16 and int(span, 16) for span in spans)

    def test_durations_are_monotonic(self, monkeypatch):
        """A wall clock that is set back changes no duration."""
        hour = itertools.count(1_000_000, -3600)
        monkeypatch.setattr("eventbus._clock.time", lambda: next(hour))
        with capture() as recorder, Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        assert 0 <= only(recorder, ToolCallCompletedEvent).duration < 60
        assert 0 <= only(recorder, InferenceCompletedEvent).duration < 60

    def test_without_listeners_no_gate_is_built(self, monkeypatch):
        """Nobody judges: no gate is even built."""
        for gate_class in (
            BeforeModelCallEvent,
            BeforeToolCallEvent,
            ApproveToolCallEvent,
            AfterToolCallEvent,
        ):
            monkeypatch.setattr(gate_class, "_build", None)
        with Run() as run:
            run.call_model(answer, [])
            assert {"order": "A1"} == run.call_tools([CALL], {"lookup": lookup})[0][1].data

    def test_the_log_lines(self):
        """A run's lines are those of the contract."""

        def tell():
            with Run("sundae", correlation_id="run-1") as run:
                response = run.call_model(asking(CALL), [])
                run.call_tools(response.tool_calls, {"lookup": lambda order: {"total": 12}})

        assert [
            "INF START agent=sundae",
            "TOOLS RECV [lookup]",
            "TOOL START lookup id=call_1",
            'TOOL OK lookup id=call_1 data={"total": 12}',
            "INF DONE agent=sundae",
        ] == [line.split(" run-1 ")[1] for line in lines_of(tell)]


class TestTerminals:
    """§8, Terminals: exactly one."""

    def test_complete(self):
        """`complete` gives the terminal its result."""
        with capture() as recorder, Run("sundae", "hello") as run:
            run.complete("a result")
        event = only(recorder, InferenceCompletedEvent)
        assert ("sundae", "hello", "a result") == (event.agent, event.message, event.result)

    def test_a_block_that_ends(self):
        """A block that ends without `complete` has no result."""
        with capture() as recorder, Run():
            pass
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)
        assert None is only(recorder, InferenceCompletedEvent).result

    def test_a_loop_that_breaks(self):
        """A loop that breaks before its limit has not used up its turns."""
        with capture() as recorder, Run() as run:
            for _ in run.turns(limit=1):
                break
        assert "InferenceCompleted" == names(recorder)[-1]

    def test_turns_used_up(self):
        """Turns used up end in MaxTurnsReached, with the last turn's number and the calls left pending."""
        with capture() as recorder, Run("sundae") as run:
            assert [1, 2] == [turn for turn in run.turns(limit=2) if run.call_model(asking(CALL), [])]
        event = only(recorder, InferenceMaxTurnsReachedEvent)
        assert (2, [CALL]) == (event.turn, event.tool_calls)
        assert event.duration >= 0
        assert "InferenceMaxTurnsReached" == names(recorder)[-1]

    def test_no_turns_at_all(self):
        """A limit of 0 is used up at once."""
        with capture() as recorder, Run() as run:
            assert [] == list(run.turns(limit=0))
        assert ["InferenceStarted", "InferenceMaxTurnsReached"] == names(recorder)

    def test_complete_after_the_turns(self):
        """`complete` after the last turn, or in it, is a completion."""
        with capture() as recorder, Run() as run:
            list(run.turns(limit=1))
            run.complete("after all")
        with capture() as second, Run() as run:
            for _ in run.turns(limit=1):
                run.complete("in time")
        assert "after all" == only(recorder, InferenceCompletedEvent).result
        assert "in time" == only(second, InferenceCompletedEvent).result

    def test_turns_again(self):
        """Turns that were used up are forgotten when the run is given more."""
        with capture() as recorder, Run() as run:
            list(run.turns(limit=1))
            for _ in run.turns(limit=2):
                break
        assert None is only(recorder, InferenceCompletedEvent).result

    @pytest.mark.parametrize("limit", [-1, -100])
    def test_a_negative_limit(self, limit):
        """A negative limit is refused by name."""
        with Run() as run, pytest.raises(ValueError, match="`limit` must be 0 or more"):
            run.turns(limit=limit)

    def test_without_a_limit(self):
        """Without a limit there are as many turns as the loop makes."""
        with Run() as run:
            assert [1, 2, 3, 4, 5] == list(itertools.islice(run.turns(), 5))

    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_any_exception(self, kind):
        """Any exception out of the body is the failed event's, and goes on as it is."""
        error = kind("boom")
        with capture() as recorder, pytest.raises(kind) as caught, Run("sundae", "hello"):
            raise error
        event = only(recorder, InferenceFailedEvent)
        assert error is event.error is caught.value
        assert ("sundae", "hello") == (event.agent, event.message)
        assert "InferenceFailed" == names(recorder)[-1]

    def test_a_generator_that_is_closed(self):
        """A run inside a generator that is closed ends as failed."""

        def loop():
            with Run() as run:
                yield from run.turns()

        with capture() as recorder:
            turns = loop()
            assert 1 == next(turns)
            turns.close()
        assert isinstance(only(recorder, InferenceFailedEvent).error, GeneratorExit)
        assert ["InferenceStarted", "TurnStarted", "TurnCompleted", "InferenceFailed"] == names(recorder)

    def test_a_body_that_raises_stop_iteration(self):
        """StopIteration out of the body, or a model, is itself and not turned into something else."""
        error = StopIteration("no more")
        with capture() as recorder, pytest.raises(StopIteration) as caught, Run() as run:
            run.call_model(lambda messages: raise_(error), [])
        assert error is caught.value is only(recorder, InferenceFailedEvent).error
        assert error is only(recorder, ModelCallFailedEvent).error

    def test_what_is_open_is_closed(self):
        """Every start has its end before the terminal, with the error that ended the run."""
        error = ValueError("boom")
        with capture() as recorder, pytest.raises(ValueError, match="boom"), Run() as run:
            for _ in run.turns():
                run.step("never left").__enter__()
                raise error
        assert ["StepFailed", "TurnCompleted", "InferenceFailed"] == names(recorder)[-3:]
        assert error is only(recorder, StepFailedEvent).error

    def test_an_exception_that_is_falsy(self):
        """An exception that counts as false is one all the same."""

        class Empty(ValueError):
            def __len__(self):
                return 0

        error = Empty("boom")
        with capture() as recorder, pytest.raises(Empty), Run() as run:
            run.step("open").__enter__()
            raise error
        assert error is only(recorder, InferenceFailedEvent).error
        assert error is only(recorder, StepFailedEvent).error

    def test_the_last_ends_it_all(self):
        """No stateful instance outlives the run, whatever the terminal."""

        class Keeper(Hook):
            stateful = True

            @on(Event)
            def keep(self):
                pass

        with Run() as run:
            run.chunk("c")
            assert 1 == _stateful.kept()
        assert 0 == _stateful.kept()


def raise_(error):
    raise error


class TestTurns:
    """Turns, and what belongs to one."""

    def test_each_has_its_events(self):
        """Each turn is told at its start and its end, numbered from 1."""
        with capture(TurnStartedEvent, TurnCompletedEvent) as recorder, Run("sundae") as run:
            list(run.turns(limit=2))
        assert [("TurnStarted", 1), ("TurnCompleted", 1), ("TurnStarted", 2), ("TurnCompleted", 2)] == [
            (name, event.turn) for name, event in zip(names(recorder), recorder.events, strict=True)
        ]

    def test_a_second_loop_counts_on(self):
        """A second loop of turns goes on counting."""
        with Run() as run:
            assert [1, 2] == list(run.turns(limit=2))
            assert [3] == list(run.turns(limit=1))

    def test_model_calls_know_their_turn(self):
        """A model call says which turn it is of; None outside of any."""
        with capture(ModelCallStartedEvent) as recorder, Run() as run:
            run.call_model(answer, [])
            for _ in run.turns(limit=1):
                run.call_model(answer, [])
        assert [None, 1] == [event.turn for event in recorder.events]


class TestIds:
    """§8, Ids."""

    def test_a_run_has_an_id_of_its_own(self):
        """Outside of any scope a run has a new id, which is ambient inside and gone after."""
        with Run() as run:
            assert run.id == current_correlation_id()
            assert 32 == len(run.id)
        assert None is run.parent_id
        assert None is current_correlation_id()

    def test_the_first_adopts_the_scope_s(self):
        """The first run in a correlation scope has its id; a second one beside it has its own."""
        with correlation("request-1"):
            with Run() as first:
                pass
            with Run() as second:
                pass
            assert "request-1" == current_correlation_id()
        assert ("request-1", None) == (first.id, first.parent_id)
        assert "request-1" != second.id
        assert "request-1" == second.parent_id

    def test_only_one_thread_adopts(self):
        """Of many threads that begin a run in one scope, one has its id."""
        ids: list[str] = []
        barrier = threading.Barrier(8)

        def begin():
            barrier.wait(10)
            with Run() as run:
                ids.append(run.id)

        with correlation("request-1"):
            threads = [
                threading.Thread(target=contextvars.copy_context().run, args=(begin,)) for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
        assert 1 == ids.count("request-1")
        assert 8 == len(set(ids))

    def test_an_id_may_be_given(self):
        """`correlation_id=` sets it, and the enclosing run is the parent."""
        with Run() as outer, Run(correlation_id="inner") as inner:
            assert "inner" == current_correlation_id()
        assert ("inner", outer.id) == (inner.id, inner.parent_id)

    def test_an_id_given_that_is_the_scope_s(self):
        """Given the scope's own id, a run has adopted it: the next one beside it has another."""
        with correlation("request-1"):
            with Run(correlation_id="request-1") as first:
                pass
            with Run() as second:
                pass
        assert (None, "request-1") == (first.parent_id, second.parent_id)
        assert "request-1" != second.id

    def test_a_nested_run(self):
        """A nested run has its own id and its parent's, also inside a tool on another thread."""
        inner: list[Run] = []

        def ask(order):
            with Run("helper") as run:
                inner.append(run)

        with capture(InferenceStartedEvent) as recorder, Run() as outer:
            outer.call_tools([CALL, CALL], {"lookup": ask}, parallel=2)
            assert outer.id == current_correlation_id()
        assert [outer.id, outer.id] == [run.parent_id for run in inner]
        assert 3 == len({outer.id, *(run.id for run in inner)})
        assert [None, outer.id, outer.id] == [event.parent_id for event in recorder.events]

    def test_a_stateful_hook_sees_two_runs(self):
        """A stateful hook has one instance for a run and another for the nested one."""
        seen: dict[str | None, set[int]] = collections.defaultdict(set)

        class Keeper(Hook):
            stateful = True

            def __init__(self):
                self.number = len(seen) * 100

            @on(InferenceStartedEvent, ToolCallStartedEvent, InferenceCompletedEvent)
            def keep(self, event):
                seen[event.correlation_id].add(id(self))
                self.keeps = event

        with Run() as outer:
            with Run() as inner:
                inner.call_tools([CALL], {"lookup": lookup})
            outer.call_tools([CALL], {"lookup": lookup})
        assert {outer.id, inner.id} == set(seen)
        assert [1, 1] == [len(instances) for instances in seen.values()]
        assert 0 == _stateful.kept()

    def test_the_scope_is_restored_after_a_failure(self):
        """A run that fails, or is refused, leaves no id behind."""
        with pytest.raises(ValueError, match="boom"), Run():
            raise ValueError("boom")
        assert None is current_correlation_id()
        with BeforeInvocationEvent.subscribe(lambda event: setattr(event, "cancel", "no")):
            with pytest.raises(RunRefused), Run():
                pass
        assert None is current_correlation_id()

    def test_a_run_is_for_one_use(self):
        """A run that was entered, or begun, cannot be entered again."""
        run = Run("sundae")
        with run:
            pass
        with pytest.raises(RuntimeError, match="was begun already; make a new run"), run:
            pass
        with pytest.raises(RuntimeError, match="was begun already"), Run.begin():
            pass

    def test_repr(self):
        """Its repr says who runs, under which id, and how far it is."""
        run = Run("sundae", correlation_id="run-1")
        assert "<Run run-1 agent=sundae new>" == repr(run)
        with run:
            assert "<Run run-1 agent=sundae running>" == repr(run)
        assert "<Run run-1 agent=sundae ended>" == repr(run)
        assert "<Run without id agent=None new>" == repr(Run())


class TestInvocation:
    """BeforeInvocation and AfterInvocation."""

    def test_the_message_after_the_gate(self):
        """What a gate makes of the message is the run's, in `run.message`, its events and `run.info`."""
        BeforeInvocationEvent.subscribe(lambda event: setattr(event, "message", f"{event.message}?"))
        with capture() as recorder, Run("sundae", "hello", metadata={"user": 7}) as run:
            pass
        assert "hello?" == run.message == run.info.message
        assert {"hello?"} == {event.message for event in recorder.events if hasattr(event, "message")}
        assert {"user": 7} == run.metadata
        assert [("edit", "message", None, True)] == decisions(recorder)

    def test_state_is_the_caller_s(self):
        """A gate may rewrite the state, and what it writes is the caller's to change; else it is his own."""
        state = {"seen": [1]}
        with Run(state=state) as run:
            assert state is run.state
        BeforeInvocationEvent.subscribe(lambda event: None)
        with Run(state=state, message=state) as run:
            assert state is run.state is run.message
        BeforeInvocationEvent.subscribe(
            lambda event: setattr(event, "state", {"seen": [*event.state["seen"], 2]})
        )
        with Run(state=state) as run:
            run.state["seen"].append(3)
        assert {"seen": [1, 2, 3]} == run.state
        assert {"seen": [1]} == state

    def test_metadata_is_read_only(self):
        """Metadata is a copy that nobody can change."""
        given = {"user": {"id": 7}}
        run = Run(metadata=given)
        with pytest.raises(TypeError, match="read-only"):
            run.metadata["user"] = 8  # type: ignore[index]  # what is refused
        with pytest.raises(TypeError, match="read-only"):
            run.metadata["user"]["id"] = 8
        given["user"] = {"id": 9}
        assert {"user": {"id": 7}} == run.metadata

    def test_refused(self):
        """A refused run is denied, with reason and author, and entering raises; nothing else is told."""

        class Guardrails(Hook):
            @on(BeforeInvocationEvent)
            def prompt(self, event):
                event.cancel = "too long"

        entered = []
        with capture() as recorder, pytest.raises(RunRefused, match=r"^too long$") as caught:
            with Run("sundae", "hello"):
                entered.append(1)
        assert [] == entered
        assert ("too long", "Guardrails.prompt") == (caught.value.reason, caught.value.by)
        assert ["GateDecision", "InferenceDenied"] == names(recorder)
        event = only(recorder, InferenceDeniedEvent)
        assert ("sundae", "hello", "too long", "Guardrails.prompt") == (
            event.agent,
            event.message,
            event.reason,
            event.by,
        )

    def test_refused_without_words(self):
        """`cancel = True` gives the reason who refused."""

        def guard(event):
            event.cancel = True

        BeforeInvocationEvent.subscribe(guard)
        with pytest.raises(RunRefused, match=r"refused by .*guard"), Run():
            pass

    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_a_gate_that_raises(self, kind):
        """A gate that raises denies the run, the error its reason, and the error goes on."""
        error = kind("boom")

        class Guard(Hook):
            @on(BeforeInvocationEvent)
            def check(self, event):
                raise error

        with capture() as recorder, pytest.raises(kind) as caught, Run():
            pass
        assert error is caught.value
        event = only(recorder, InferenceDeniedEvent)
        assert "boom" == event.reason
        assert ("Guard.check" if kind is ValueError else None) == event.by
        assert "InferenceDenied" == names(recorder)[-1]
        assert None is current_correlation_id()

    def test_an_error_without_a_text(self):
        """The reason of an error that has no text, or none that can be had, is its name."""

        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("no")

        for error, said in [(ValueError(), "ValueError"), (Mute(), "Mute")]:
            with BeforeInvocationEvent.subscribe(lambda event, error=error: raise_(error)):
                with capture(InferenceDeniedEvent) as recorder, pytest.raises(type(error)), Run():
                    pass
            assert said == recorder.events[0].reason

    def test_nothing_begins_while_it_is_judged(self):
        """What a gate begins in the run it is judging is refused, and so is what it tells of it."""
        said = []

        def guard(event):
            for begin in (
                lambda: run.call_tools([CALL], {}),
                lambda: run.end(),
                lambda: run.chunk("c"),
                lambda: run.compacted(),
                lambda: run.emit(Counted, number=1),
                lambda: run.emit(BeforePayment, amount=1),
            ):
                with pytest.raises(RuntimeError, match="still being judged") as caught:
                    begin()
                said.append(str(caught.value))

        BeforeInvocationEvent.subscribe(guard)
        run = Run(correlation_id="run-1")
        with capture() as recorder, run:
            pass
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)
        assert 6 == len(said)

    def test_the_result_after_the_gate(self):
        """An AfterInvocation gate replaces the result."""
        AfterInvocationEvent.subscribe(lambda event: setattr(event, "result", [event.result, "checked"]))
        with capture() as recorder, Run() as run:
            run.complete("raw")
        assert ["raw", "checked"] == only(recorder, InferenceCompletedEvent).result == run.result
        assert [("edit", "result", None, True)] == decisions(recorder)

    def test_it_knows_how_the_run_went(self):
        """AfterInvocation tells success, error and result."""
        seen = []
        AfterInvocationEvent.subscribe(lambda event: seen.append((event.success, event.error, event.result)))
        error = ValueError("boom")
        with Run() as run:
            run.complete(1)
        with pytest.raises(ValueError, match="boom"), Run():
            raise error
        with Run() as run:
            list(run.turns(limit=0))
        assert [(True, None, 1), (False, error, None), (False, None, None)] == seen

    def test_an_after_gate_that_raises(self):
        """What an AfterInvocation gate raises fails a run that went well, and is a note to what failed."""
        error = RuntimeError("after")
        AfterInvocationEvent.subscribe(lambda event: raise_(error))
        with capture() as recorder, pytest.raises(RuntimeError, match="after") as caught, Run() as run:
            run.complete("secret")
        assert error is caught.value is only(recorder, InferenceFailedEvent).error
        assert [] == recorder.of(InferenceCompletedEvent)
        own = ValueError("own")
        with capture() as recorder, pytest.raises(ValueError, match="own"), Run():
            raise own
        assert own is only(recorder, InferenceFailedEvent).error
        assert ["meanwhile: RuntimeError: after"] == own.__notes__

    def test_several_after_gates_that_raise(self):
        """Several are raised together."""
        for text in ("one", "two"):
            AfterInvocationEvent.subscribe(lambda event, text=text: raise_(ValueError(text)))
        with pytest.raises(ExceptionGroup) as caught, Run():
            pass
        assert {"one", "two"} == {str(error) for error in caught.value.exceptions}

    @pytest.mark.parametrize("kind", OUTSIDERS)
    def test_an_interrupt_in_the_end(self, kind):
        """An interrupt while the run ends goes on, whatever else did; the terminal is told."""
        interrupt = kind("now")
        AfterInvocationEvent.subscribe(lambda event: raise_(interrupt))
        own = ValueError("own")
        with capture() as recorder, pytest.raises(kind) as caught, Run():
            raise own
        assert interrupt is caught.value
        assert own is only(recorder, InferenceFailedEvent).error is caught.value.__context__


class TestModel:
    """Model calls."""

    def test_an_after_gate_that_only_looks(self):
        """The response is the model's own object, as long as no gate replaces it."""
        response = {"content": "hi"}
        AfterModelCallEvent.subscribe(lambda event: None)
        with Run() as run:
            assert response is run.call_model(lambda messages: response, [])

    @pytest.mark.parametrize("settings", [None, "hot"])
    def test_settings_that_are_no_mapping(self, settings):
        """Settings that are no mapping are the gate's failure, which names it."""

        def hot(event):
            event.settings = settings

        BeforeModelCallEvent.subscribe(hot)
        match = f"hot must set `settings` of BeforeModelCallEvent to a mapping, not to {settings!r}"
        with pytest.raises(TypeError, match=match), Run() as run:
            run.call_model(answer, [])

    def test_what_it_is_given(self):
        """The model gets the caller's own messages and the settings, tools and model among them if given."""
        seen = []
        messages = [{"role": "user"}]

        def model(messages, **settings):
            seen.append((messages, settings))
            return ANSWER

        with Run() as run:
            assert ANSWER is run.call_model(model, messages, tools=["schema"], model="m-1", temperature=0)
            assert ANSWER is run.call_model(model, messages)
        assert [
            (messages, {"tools": ["schema"], "model": "m-1", "temperature": 0}),
            (messages, {}),
        ] == seen
        assert messages is seen[0][0]

    def test_it_is_told(self):
        """InferenceGenerated tells what was sent, what came back and what it cost."""
        response = ModelResponse("hi", model="m-1-2026", usage={"tokens": 3})
        with capture() as recorder, Run("sundae") as run:
            run.call_model(lambda messages, **settings: response, ["hello"], model="m-1", top_k=1)
        event = only(recorder, InferenceGeneratedEvent)
        assert (["hello"], response, "m-1-2026", {"model": "m-1", "top_k": 1}, {"tokens": 3}, 1) == (
            event.request,
            event.response,
            event.model,
            event.settings,
            event.usage,
            event.attempt,
        )
        assert "m-1" == only(recorder, ModelCallStartedEvent).model

    def test_a_foreign_response(self):
        """Any object with a response's attributes works in its place."""
        call = types.SimpleNamespace(id="x", name="lookup", input={})
        foreign = types.SimpleNamespace(content="hi", tool_calls=[call])
        with capture() as recorder, Run() as run:
            assert foreign is run.call_model(lambda messages: foreign, [])
        assert [call] == only(recorder, ToolCallsReceivedEvent).tool_calls

    def test_a_gate_rewrites_what_is_sent(self):
        """The model gets what gates made of messages and settings, plain and its own; the caller's stay."""
        seen = []

        def guard(event):
            event.messages = [*event.messages, {"role": "system"}]
            event.settings = {**event.settings, "model": "cheap"}

        def model(messages, **settings):
            messages.append("mine")
            messages[0]["role"] = "changed"
            seen.append((messages, settings))
            return ANSWER

        BeforeModelCallEvent.subscribe(guard)
        messages = [{"role": "user"}]
        with capture() as recorder, Run() as run:
            run.call_model(model, messages, model="m-1")
        assert [([{"role": "changed"}, {"role": "system"}, "mine"], {"model": "cheap"})] == seen
        assert [{"role": "user"}] == messages
        assert "cheap" == only(recorder, ModelCallStartedEvent).model
        assert [{"role": "user"}, {"role": "system"}] == only(recorder, InferenceGeneratedEvent).request

    def test_a_gate_that_only_looks_changes_nothing(self):
        """Where no gate writes, the model gets the caller's own messages."""
        BeforeModelCallEvent.subscribe(lambda event: None)
        messages: list[Any] = []
        with Run() as run:
            run.call_model(lambda messages: messages.append("mine"), messages)
        assert ["mine"] == messages

    def test_answered_by_a_gate(self):
        """A gate's response is the answer, and the model is not called, nor again by a retry."""
        asked = []
        BeforeModelCallEvent.subscribe(lambda event: setattr(event, "response", ModelResponse("cached")))
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "retry", True))
        with capture() as recorder, Run() as run:
            assert "cached" == run.call_model(asked.append, []).content
        assert [] == asked
        assert [("answer", "response", None, True), ("retry", "retry", None, False)] == decisions(recorder)
        assert "cached" == only(recorder, InferenceGeneratedEvent).response.content
        assert [] == recorder.of(ModelCallStartedEvent)

    def test_refused(self):
        """A refused model call raises, with reason and author; the model is not called."""
        asked = []

        def guard(event):
            event.cancel = "budget used up"

        BeforeModelCallEvent.subscribe(guard)
        with capture() as recorder, Run() as run, pytest.raises(ModelCallRefused) as caught:
            run.call_model(asked.append, [])
        assert [] == asked
        assert "budget used up" == str(caught.value) == caught.value.reason
        assert caught.value.by.endswith("guard")
        assert ["InferenceStarted", "GateDecision", "InferenceCompleted"] == names(recorder)

    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_a_model_that_raises(self, kind):
        """A model that raises is its events, then raises."""
        error = kind("boom")
        with capture() as recorder, pytest.raises(kind) as caught, Run() as run:
            run.call_model(lambda messages: raise_(error), [])
        assert error is caught.value is only(recorder, ModelCallFailedEvent).error
        assert ["ModelCallStarted", "ModelCallFailed", "InferenceFailed"] == names(recorder)[1:]

    def test_retry(self):
        """A retry asks again from the top, each attempt with its own gates, start and end."""
        log: list[str] = []
        watch(log)
        answers = iter([ModelResponse(""), ANSWER])

        class Retry(Hook):
            @on(AfterModelCallEvent)
            def again(self, event):
                if not event.response.content:
                    event.reason = "empty answer"
                    event.retry = True

        with capture() as recorder, Run() as run:
            assert ANSWER is run.call_model(lambda messages: next(answers), [])
        attempt = ["BeforeModelCall", "ModelCallStarted", "AfterModelCall"]
        assert [
            *attempt,
            "GateDecision",
            "InferenceGenerated",
            *attempt,
            "InferenceGenerated",
        ] == log[2:-2]
        assert [1, 2] == [event.attempt for event in recorder.of(InferenceGeneratedEvent)]
        assert 2 == len({event.span_id for event in recorder.of(ModelCallStartedEvent)})
        assert [("retry", "retry", "empty answer", True)] == decisions(recorder)

    def test_retry_after_an_error(self):
        """An error may be retried; the last one is raised when retries are used up."""
        tries = []
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "retry", event.error is not None))

        def model(messages):
            tries.append(1)
            raise ValueError(f"attempt {len(tries)}")

        with capture() as recorder, Run(max_retries=2) as run, pytest.raises(ValueError, match="attempt 3"):
            run.call_model(model, [])
        assert 3 == len(tries) == len(recorder.of(ModelCallFailedEvent))
        assert [True, True, False] == [applied for *_, applied in decisions(recorder)]

    def test_a_gate_answers_in_place_of_an_error(self):
        """A response that an After gate gives to an error is the answer; the failure is told."""
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "response", ANSWER))
        with capture() as recorder, Run() as run:
            assert ANSWER is run.call_model(lambda messages: raise_(ValueError("boom")), [])
        assert "boom" == str(only(recorder, ModelCallFailedEvent).error)

    def test_an_after_gate_that_raises(self):
        """What an After gate raises goes on; the answer is told without its ungated content."""
        AfterModelCallEvent.subscribe(lambda event: raise_(RuntimeError("gate")))
        with capture() as recorder, pytest.raises(RuntimeError, match="gate"), Run() as run:
            run.call_model(lambda messages: ModelResponse("canary"), [])
        assert None is only(recorder, InferenceGeneratedEvent).response
        assert "canary" not in repr([e for e in recorder.events if not isinstance(e, HandlerFailedEvent)])

    def test_an_after_gate_that_raises_on_an_answer_of_a_gate(self):
        """The same holds of a gate's own answer."""
        BeforeModelCallEvent.subscribe(lambda event: setattr(event, "response", ModelResponse("canary")))
        AfterModelCallEvent.subscribe(lambda event: raise_(RuntimeError("gate")))
        with capture() as recorder, pytest.raises(RuntimeError, match="gate"), Run() as run:
            run.call_model(answer, [])
        assert None is only(recorder, InferenceGeneratedEvent).response

    def test_an_after_gate_that_raises_on_an_error(self):
        """The model's own error stays on record when a gate raises as well."""
        own = ValueError("own")
        AfterModelCallEvent.subscribe(lambda event: raise_(RuntimeError("gate")))
        with capture() as recorder, pytest.raises(RuntimeError, match="gate"), Run() as run:
            run.call_model(lambda messages: raise_(own), [])
        assert own is only(recorder, ModelCallFailedEvent).error

    def test_an_async_model_in_a_plain_run(self):
        """A plain run says that it cannot await an async model."""

        async def model(messages):
            return ANSWER

        with pytest.raises(TypeError, match="use AsyncRun"), Run() as run:
            run.call_model(model, [])


class TestTools:
    """Tool calls."""

    def test_pairs_in_call_order(self):
        """`call_tools` returns pairs of call and result in the order of the calls."""
        calls = [ToolCall(f"call_{n}", "lookup", {"n": n}) for n in range(3)]
        with Run() as run:
            pairs = run.call_tools(calls, {"lookup": lookup})
        assert [(call, ToolResult({"n": n})) for n, call in enumerate(calls)] == pairs

    def test_no_calls(self):
        """No calls are an empty list."""
        with Run() as run:
            assert [] == run.call_tools([], {}) == run.call_tools([], {}, parallel=4)

    def test_a_call_without_id_gets_one(self):
        """A call without id gets one, another for each, and the same in all its events."""
        with capture() as recorder, Run() as run:
            pairs = run.call_tools([ToolCall("", "lookup"), ToolCall("", "lookup")], {"lookup": lookup})
        assert ["call_1", "call_2"] == [call.id for call, _ in pairs]
        assert ["call_1", "call_2"] == [event.tool_call.id for event in recorder.of(ToolCallStartedEvent)]

    def test_foreign_calls_and_results(self):
        """Objects with the attributes of calls and results work in their place."""
        call = types.SimpleNamespace(id=7, name="lookup", input=types.MappingProxyType({"order": "A1"}))
        bare = types.SimpleNamespace(id=None, name="lookup", input=None)
        result = types.SimpleNamespace(data=1, error=None)
        given: list[Any] = []

        def tool(**arguments):
            given.append(arguments)
            return result

        with Run() as run:
            pairs = run.call_tools([call, bare], {"lookup": tool})
        assert [ToolCall("7", "lookup", {"order": "A1"}), ToolCall("call_1", "lookup")] == [
            c for c, _ in pairs
        ]
        assert [result, result] == [found for _, found in pairs]
        assert [{"order": "A1"}, {}] == given

    def test_a_foreign_agent(self):
        """Any object with a name serves as the agent; a str becomes an Agent."""
        agent = types.SimpleNamespace(name="Scout")
        with capture() as recorder, Run(agent) as run:
            assert agent is run.agent
        assert agent is recorder.events[0].agent
        assert Agent("sundae") == Run("sundae").agent
        assert "sundae" == Run("sundae").agent.name

    def test_a_tool_has_plain_dicts_and_lists_of_its_own(self):
        """A tool may do with its arguments what it likes: model, events and the next attempt keep theirs."""
        arguments = {"rows": [{"n": 1}]}
        given = []

        def tool(rows):
            given.append((type(rows), type(rows[0]), rows[0]["n"]))
            rows[0]["n"] = 2
            rows.append("more")

        AfterToolCallEvent.subscribe(lambda event: setattr(event, "retry", event.attempt == 1))
        call = ToolCall("call_1", "lookup", arguments)
        with capture() as recorder, Run() as run:
            run.call_tools([call], {"lookup": tool})
        assert [(list, dict, 1), (list, dict, 1)] == given
        assert {"rows": [{"n": 1}]} == arguments == call.input
        assert {"rows": [{"n": 1}]} == only(recorder, ToolCallCompletedEvent).tool_call.input

    def test_one_callable_for_all(self):
        """Tools may be one callable, which is given the call, its input a plain dict of its own."""
        given = []

        def tools(call):
            given.append((call, type(call.input)))
            call.input["more"] = 1
            return call.name

        with Run() as run:
            [(call, result)] = run.call_tools([CALL], tools)
        assert "lookup" == result.data
        assert {"order": "A1"} == call.input
        assert dict is given[0][1]

    @pytest.mark.parametrize("known", [{}, {"other": lookup}])
    def test_an_unknown_tool(self, known):
        """A call of a tool that does not exist is answered with the names of those that do."""
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], known)
        assert f"There is no tool 'lookup'; there are: {'other' if known else 'none'}." == result.error
        assert isinstance(only(recorder, ToolCallFailedEvent).error, LookupError)

    @pytest.mark.parametrize("tool", [None, 5])
    def test_a_tool_that_is_none(self, tool):
        """A tool that cannot be called is said to be that, and is none of those that there are."""
        with Run() as run:
            results = run.call_tools([CALL, ToolCall("call_2", "other")], {"lookup": tool, "third": lookup})
        assert [
            f"The tool 'lookup' is not callable: {tool!r}.",
            "There is no tool 'other'; there are: third.",
        ] == [result.error for _, result in results]

    def test_arguments_that_are_no_mapping(self):
        """Arguments that are no mapping are the tool's failure, not the run's."""
        with Run() as run:
            [(_, result)] = run.call_tools([ToolCall("c", "lookup", '{"a": 1}')], {"lookup": lookup})  # type: ignore[arg-type]  # as models do
        assert "The arguments of 'lookup' must be a mapping" in result.error

    def test_arguments_without_names(self):
        """What Python cannot pass by name is said to be that; a TypeError of the tool's own goes on."""
        with Run() as run:
            numbered = ToolCall("c", "lookup", {1: 2})  # type: ignore[dict-item]  # as models do
            other = ToolCall("d", "count", {"unknown": 2})
            results = run.call_tools([numbered, other], {"lookup": lookup, "count": lambda: 0})
        first, second = (result.error for _, result in results)
        assert "The arguments of 'lookup' must have names for keys, not {1: 2}." == first
        assert "unexpected keyword argument 'unknown'" in second

    @pytest.mark.parametrize("kind", [ValueError, StopIteration, RuntimeError])
    def test_a_tool_that_raises(self, kind):
        """A tool that raises is an event and an answer, not a crash."""
        error = kind("boom")
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lambda order: raise_(error)})
        assert ToolResult(error="boom") == result
        assert error is only(recorder, ToolCallFailedEvent).error
        assert "InferenceCompleted" == names(recorder)[-1]

    @pytest.mark.parametrize("kind", OUTSIDERS)
    def test_a_tool_that_interrupts(self, kind):
        """An interrupt in a tool ends the call and the run, and goes on."""
        error = kind("now")
        with capture() as recorder, pytest.raises(kind) as caught, Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: raise_(error)})
        assert error is caught.value is only(recorder, ToolCallFailedEvent).error
        assert error is only(recorder, InferenceFailedEvent).error

    def test_a_result_that_cannot_be_looked_at(self):
        """An object that raises when it is asked for its attributes is data like any other."""

        class Odd:
            @property
            def data(self):
                raise RuntimeError("no")

        odd = Odd()
        with Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lambda order: odd})
        assert odd is result.data

    def test_an_async_tool_in_a_plain_run(self):
        """A plain run answers for an async tool that it cannot await it."""

        async def tool(order):
            raise AssertionError("never run")

        with Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": tool})
        assert "A plain Run cannot await an async tool or model; use AsyncRun." == result.error

    def test_a_generator_is_data(self):
        """What a generator function returns is data: a plain run does not iterate over it."""

        def tool(order):
            yield order

        with Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": tool})
        assert ["A1"] == list(result.data)

    def test_calls_that_share_an_id(self):
        """Calls with one id are told apart by span ids (CASES 18)."""
        with capture() as recorder, Run() as run:
            run.call_tools([CALL] * 5, {"lookup": lookup}, parallel=5)
        started = [event.span_id for event in recorder.of(ToolCallStartedEvent)]
        ended = [event.span_id for event in recorder.of(ToolCallCompletedEvent)]
        assert 5 == len(set(started))
        assert sorted(started) == sorted(ended)

    def test_many_calls(self):
        """A thousand calls in one list are all executed, in order."""
        calls = [ToolCall(str(n), "lookup", {"n": n}) for n in range(1000)]
        with Run() as run:
            pairs = run.call_tools(calls, {"lookup": lookup}, parallel=8)
        assert list(range(1000)) == [result.data["n"] for _, result in pairs]

    def test_a_tool_calls_tools(self):
        """A tool may call tools of the run, in parallel as well."""

        def outer(order):
            return [result.data for _, result in run.call_tools([CALL, CALL], {"lookup": lookup}, parallel=2)]

        with Run() as run:
            pairs = run.call_tools([CALL, CALL], {"lookup": outer}, parallel=2)
        assert [[{"order": "A1"}] * 2] * 2 == [result.data for _, result in pairs]

    def test_a_later_handler_is_not_broken(self):
        """An observer that writes to the arguments fails alone; the run's own are unchanged (CASES 23)."""
        broken = []
        arguments = {"order": "A1"}

        class Popper(Hook):
            @on(ToolCallStartedEvent)
            def pop(self, event):
                event.tool_call.input.pop("order")

        HandlerFailedEvent.subscribe(lambda event: broken.append((event.handler, type(event.error))))
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([ToolCall("c", "lookup", arguments)], {"lookup": lookup})
        assert {"order": "A1"} == arguments == result.data
        assert [("Popper.pop", TypeError)] == broken
        assert "InferenceCompleted" == names(recorder)[-1]


class TestToolGates:
    """The gates of a tool call."""

    def test_what_is_edited_is_executed_and_approved(self):
        """The last edit is what is approved and executed (CASES 16)."""
        approved = []
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "arguments", {"order": "first"}))
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "arguments", {"order": "last"}))
        ApproveToolCallEvent.subscribe(lambda event: approved.append((event.tool_call, event.arguments)))
        with capture() as recorder, Run() as run:
            [(call, result)] = run.call_tools([CALL], {"lookup": lookup})
        assert [(CALL, {"order": "last"})] == approved
        assert {"order": "last"} == result.data
        assert CALL is call
        assert {"order": "last"} == only(recorder, ToolCallStartedEvent).tool_call.input
        assert [("edit", "arguments", None, True)] * 2 == decisions(recorder)

    def test_a_forbidden_value_put_in_later(self):
        """A later hook that puts a forbidden value into the arguments is refused by security, at Approve."""
        executed = []

        class Guard(Hook):
            priority = Priority.SECURITY

            @on(ApproveToolCallEvent)
            def check(self, event):
                if event.arguments["total"] > 100:
                    event.denied = "over limit"

        class Helpful(Hook):
            @on(BeforeToolCallEvent)
            def more(self, event):
                event.arguments = {**event.arguments, "total": 1000}

        call = ToolCall("c", "refund", {"total": 10})
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([call], {"refund": lambda total: executed.append(total)})
        assert [] == executed
        assert ToolResult(error="over limit") == result
        event = only(recorder, ToolCallDeniedEvent)
        assert ("over limit", "Guard.check", {"total": 1000}) == (
            event.reason,
            event.by,
            event.tool_call.input,
        )

    @pytest.mark.parametrize("gate", [BeforeToolCallEvent, ApproveToolCallEvent])
    def test_a_refusal_stays(self, gate):
        """A refusal stays whatever others write; answer, event and line have its reason and author."""
        field = "cancel" if gate is BeforeToolCallEvent else "denied"
        reason = 'not "today"; a=b\\n é'
        executed = []

        class Disarmed(Hook):
            priority = 1

            @on(gate)
            def first(self, event):
                setattr(event, field, False)

        class Guard(Hook):
            priority = 2

            @on(gate)
            def check(self, event):
                setattr(event, field, reason)

        class Later(Hook):
            @on(gate)
            def pardon(self, event):
                setattr(event, field, False)
                setattr(event, field, "another reason")

        with stderr_lines() as lines, capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
        assert [] == executed
        assert reason == result.error == only(recorder, ToolCallDeniedEvent).reason
        assert "Guard.check" == only(recorder, ToolCallDeniedEvent).by
        denied = eventbus.parse_line(next(line for line in lines if " TOOL DENY " in line))
        assert denied is not None
        assert (reason, "Guard.check") == (denied.fields["reason"], denied.fields["by"])
        assert [
            ("deny", field, reason, True),
            ("edit", field, None, False),
            ("deny", field, "another reason", False),
        ] == decisions(recorder)
        assert [] == recorder.of(ToolCallStartedEvent)

    def test_refused_before_is_not_asked_again(self):
        """A call that is refused at Before is not put to Approve."""
        asked = []
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "cancel", True))
        ApproveToolCallEvent.subscribe(asked.append)
        with Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lookup})
        assert [] == asked
        assert result.error.startswith("refused by ")

    def test_answered_by_a_gate(self):
        """A gate's result is the answer: never approved, never executed, also when a retry is asked for."""
        executed = []
        log: list[str] = []
        watch(log)

        class Cache(Hook):
            @on(BeforeToolCallEvent)
            def hit(self, event):
                event.result = {"total": 1}

            @on(AfterToolCallEvent)
            def again(self, event):
                event.retry = True

        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
        assert [] == executed
        assert ToolResult({"total": 1}) == result
        event = only(recorder, ToolCallCompletedEvent)
        assert ("Cache.hit", ToolResult({"total": 1})) == (event.answered_by, event.result)
        assert [
            "BeforeToolCall",
            "GateDecision",
            "AfterToolCall",
            "GateDecision",
            "ToolCallCompleted",
        ] == log[2:-2]
        assert [("answer", "result", None, True), ("retry", "retry", None, False)] == decisions(recorder)

    def test_an_answer_taken_back(self):
        """An answer that a later gate takes back is none."""
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "result", "cached"))
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "result", None))
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lookup})
        assert {"order": "A1"} == result.data
        assert ["answer", "edit"] == [action for action, *_ in decisions(recorder)]

    def test_the_result_after_the_gates(self):
        """After gates run in the opposite order, and replace the result for caller and event."""
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "result", (event.result, 2)), priority=1)
        AfterToolCallEvent.subscribe(
            lambda event: setattr(event, "result", (event.result.data, 1)), priority=2
        )
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lambda order: "raw"})
        assert ToolResult((("raw", 1), 2)) == result == only(recorder, ToolCallCompletedEvent).result

    def test_an_answer_taken_away(self):
        """A result that an After gate takes away leaves an empty one."""
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "result", None))
        with Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lookup})
        assert ToolResult() == result

    def test_an_error_answered(self):
        """What an After gate writes in place of an error is the answer; the failure is told."""
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "result", f"sorry: {event.error}"))
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lambda order: raise_(ValueError("boom"))})
        assert ToolResult("sorry: boom") == result
        assert "boom" == str(only(recorder, ToolCallFailedEvent).error)

    @pytest.mark.parametrize("gate", [BeforeToolCallEvent, ApproveToolCallEvent])
    @pytest.mark.parametrize("where", ["handler", "when"])
    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_a_gate_that_raises(self, gate, where, kind):
        """A gate, or its `when=`, that raises: the tool is not entered, and the error ends the run."""
        error = kind("boom")
        executed = []
        if where == "handler":
            gate.subscribe(lambda event: raise_(error))
        else:
            gate.subscribe(lambda event: None, when=lambda event: raise_(error))
        with capture() as recorder, pytest.raises(kind) as caught, Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
        assert [] == executed
        assert error is caught.value is only(recorder, InferenceFailedEvent).error
        assert [] == recorder.of(ToolCallStartedEvent)
        expected = [("error", None, "boom", True)] if kind is ValueError else []
        assert expected == decisions(recorder)

    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_an_after_gate_that_raises(self, kind):
        """It cannot undo what the tool did: that is told, but the ungated data in no line or payload."""
        error = kind("gate")
        AfterToolCallEvent.subscribe(lambda event: raise_(error))
        with stderr_lines() as lines, capture() as recorder, pytest.raises(kind) as caught, Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: "canary"})
        assert error is caught.value is only(recorder, InferenceFailedEvent).error
        assert None is only(recorder, ToolCallCompletedEvent).result
        assert [] == recorder.of(ToolCallFailedEvent)
        assert "canary" not in "\n".join(lines)
        # What has failed is the gate's own event, which is handed to its failure's observers as it is.
        told = [event for event in recorder.events if not isinstance(event, HandlerFailedEvent)]
        assert "canary" not in repr(told)

    def test_an_after_gate_that_raises_keeps_data_from_json_lines(self):
        """Nor is the data in a JSON line."""
        configure(log="json")
        AfterToolCallEvent.subscribe(lambda event: raise_(ValueError("gate")))
        with stderr_lines() as lines, pytest.raises(ValueError, match="gate"), Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: {"secret": "canary"}})
        assert "TOOL OK" in [json.loads(line)["event"] for line in lines]
        assert "canary" not in "\n".join(lines)

    def test_an_after_gate_that_raises_on_an_error(self):
        """The tool's own error stays on record."""
        own = ValueError("own")
        AfterToolCallEvent.subscribe(lambda event: raise_(RuntimeError("gate")))
        with capture() as recorder, pytest.raises(RuntimeError, match="gate"), Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: raise_(own)})
        assert own is only(recorder, ToolCallFailedEvent).error

    def test_an_after_gate_that_raises_on_an_answer_of_a_gate(self):
        """An answer of a gate is told without data as well."""
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "result", "canary"))
        AfterToolCallEvent.subscribe(lambda event: raise_(RuntimeError("gate")))
        with capture() as recorder, pytest.raises(RuntimeError, match="gate"), Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        event = only(recorder, ToolCallCompletedEvent)
        assert None is event.result
        assert None is not event.answered_by

    def test_after_gates_that_raise_together(self):
        """Several After gates raise a group; each is told."""
        for text in ("one", "two"):
            AfterToolCallEvent.subscribe(lambda event, text=text: raise_(ValueError(text)))
        with capture() as recorder, pytest.raises(ExceptionGroup) as caught, Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        assert ["two", "one"] == [str(error) for error in caught.value.exceptions]
        assert ["two", "one"] == [reason for _, _, reason, _ in decisions(recorder)]

    def test_retry(self):
        """A retry executes again, once for each asking, with one start and one end in all."""
        executed = []
        seen = []

        def again(event):
            seen.append((event.attempt, event.result, str(event.error)))
            event.retry = event.attempt < 3

        def tool(order):
            executed.append(order)
            if len(executed) == 1:
                raise ValueError("boom")
            return len(executed)

        AfterToolCallEvent.subscribe(again)
        with capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": tool})
        assert [(1, None, "boom"), (2, ToolResult(2), "None"), (3, ToolResult(3), "None")] == seen
        assert ToolResult(3) == result == only(recorder, ToolCallCompletedEvent).result
        assert 1 == len(recorder.of(ToolCallStartedEvent))

    @pytest.mark.parametrize("limit", [0, 1, 5])
    def test_retries_are_bounded(self, limit):
        """There are at most `max_retries`; what is asked beyond is recorded as not applied."""
        executed = []
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "retry", True))
        with capture() as recorder, Run(max_retries=limit) as run:
            run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
        assert limit + 1 == len(executed)
        assert [True] * limit + [False] == [applied for *_, applied in decisions(recorder)]

    def test_retries_are_five_by_default(self):
        """Without a word there are five."""
        executed = []
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "retry", True))
        with Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
        assert 6 == len(executed)

    def test_retry_after_seconds(self, monkeypatch):
        """A number of seconds is waited first."""
        waited: list[float] = []
        monkeypatch.setattr("eventbus._clock.sleep", waited.append)
        AfterToolCallEvent.subscribe(
            lambda event: setattr(event, "retry", {1: 1.5, 2: 2, 3: True}.get(event.attempt))
        )
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "retry", 0.5 if event.attempt == 1 else 0))
        with Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
            run.call_model(answer, [])
        assert [1.5, 2.0, 0.0, 0.5] == waited

    @pytest.mark.parametrize(
        "retry",
        [
            *("soon", -1, float("nan"), float("inf"), [1], 1e300),
            pytest.param(1 << 2000, id="2**2000"),
            pytest.param(1 << 20_000, id="2**20000"),
        ],
    )
    def test_a_retry_that_is_none(self, retry):
        """What is neither True nor seconds is the gate's failure, and named as such."""

        def again(event):
            event.retry = retry

        AfterToolCallEvent.subscribe(again)
        with (
            capture() as recorder,
            pytest.raises(TypeError, match="again must set `retry` to True or"),
            Run() as run,
        ):
            run.call_tools([CALL], {"lookup": lookup})
        assert None is only(recorder, ToolCallCompletedEvent).result

    def test_a_retry_taken_back(self):
        """A retry that another gate takes back is not made."""
        executed = []
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "retry", False), priority=1)
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "retry", True), priority=2)
        with capture() as recorder, Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
        assert 1 == len(executed)
        assert [("retry", "retry", None, False), ("edit", "retry", None, True)] == decisions(recorder)

    def test_what_is_judged_is_what_is_executed(self):
        """Whoever still holds a dict of the arguments cannot change them once they are approved."""
        nested = {"total": 1}

        def approve(event):
            repr(event.arguments)

        def cheat(event):
            nested["total"] = 1000

        ApproveToolCallEvent.subscribe(approve)
        ToolCallStartedEvent.subscribe(cheat)
        with Run() as run:
            [(_, result)] = run.call_tools([ToolCall("c", "lookup", {"deep": nested})], {"lookup": lookup})
        assert {"deep": {"total": 1}} == result.data

    def test_shadow(self):
        """A shadow hook judges and changes nothing, and is told as not applied."""

        class NewGuard(Hook):
            shadow = True

            @on(BeforeToolCallEvent)
            def edit(self, event):
                event.arguments = {}
                event.result = "mine"

            @on(ApproveToolCallEvent)
            def check(self, event):
                event.denied = "over limit"
                raise ValueError("boom")

        with stderr_lines() as lines, capture() as recorder, Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lookup})
        assert {"order": "A1"} == result.data
        assert [
            ("edit", "arguments", None, False),
            ("answer", "result", None, False),
            ("deny", "denied", "over limit", False),
            ("error", None, "boom", False),
        ] == decisions(recorder)
        assert any(
            line.endswith('GATE DENY lookup id=call_1 by=NewGuard.check reason="over limit" applied=no')
            for line in lines
        )

    def test_security_is_first(self):
        """Whoever is defined first, security judges first (CASES 11)."""
        order = []

        class Late(Hook):
            @on(BeforeToolCallEvent)
            def judge(self):
                order.append("late")

        class Guard(Hook):
            priority = Priority.SECURITY

            @on(BeforeToolCallEvent)
            def judge(self):
                order.append("guard")

        with Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        assert ["guard", "late"] == order

    def test_async_gates_are_waited_for(self):
        """A plain run waits for async gates, on a thread without a loop."""

        async def guard(event):
            await asyncio.sleep(0)
            event.denied = "no"

        ApproveToolCallEvent.subscribe(guard)
        with Run() as run:
            assert "no" == run.call_tools([CALL], {"lookup": lookup})[0][1].error

    def test_async_gates_on_the_running_loop(self):
        """On the running loop it raises the error that names `aemit`, and the tool is not entered."""
        executed = []

        async def guard(event):
            pass

        async def main():
            with Run() as run:
                run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})

        ApproveToolCallEvent.subscribe(guard)
        with pytest.raises(AsyncGateError, match="aemit"):
            asyncio.run(main())
        assert [] == executed


class TestParallel:
    """Tools on threads."""

    def test_each_call_has_its_own(self):
        """Each call has its own Before and After, id and span; results come in call order."""
        ids: dict[type, list[str]] = collections.defaultdict(list)
        for gate in (BeforeToolCallEvent, ApproveToolCallEvent, AfterToolCallEvent):
            gate.subscribe(lambda event: ids[type(event)].append(event.tool_call.id))
        barrier = threading.Barrier(4)

        def tool(n):
            barrier.wait(10)
            return n

        calls = [ToolCall(f"call_{n}", "tool", {"n": n}) for n in range(4)]
        with capture() as recorder, Run() as run:
            pairs = run.call_tools(calls, {"tool": tool}, parallel=4)
        assert [0, 1, 2, 3] == [result.data for _, result in pairs]
        assert [sorted(call.id for call in calls)] * 3 == [sorted(found) for found in ids.values()]
        assert 4 == len({event.span_id for event in recorder.of(ToolCallCompletedEvent)})

    @pytest.mark.parametrize("ids", [["call_0"] * 5, list("abcde")], ids=["of one id", "of their own"])
    def test_each_end_has_its_start_s_span_and_duration(self, ids):
        """Calls that begin one after another, and end in the opposite order, are not mixed up (CASES 18)."""
        may_begin = {n: threading.Event() for n in range(5)}
        may_end = {n: threading.Event() for n in range(-1, 5)}

        def begun(event):
            n = event.tool_call.input["n"]
            clock.tick()
            (may_end[n] if n == 4 else may_begin[n + 1]).set()

        def tool(n):
            assert may_end[n].wait(10)
            clock.tick()
            return n

        may_begin[0].set()
        BeforeToolCallEvent.subscribe(lambda event: may_begin[event.tool_call.input["n"]].wait(10))
        ToolCallStartedEvent.subscribe(begun)
        ToolCallCompletedEvent.subscribe(lambda event: may_end[event.tool_call.input["n"] - 1].set())
        calls = [ToolCall(cid, "tool", {"n": n}) for n, cid in enumerate(ids)]
        with frozen_clock() as clock, capture() as recorder, Run() as run:
            run.call_tools(calls, {"tool": tool}, parallel=5)
        started = {event.span_id: event.tool_call for event in recorder.of(ToolCallStartedEvent)}
        ended = [
            (started[event.span_id], event.tool_call, event.result.data, event.duration)
            for event in recorder.of(ToolCallCompletedEvent)
        ]
        assert [(calls[n], calls[n], n, 10.0 - 2 * n) for n in (4, 3, 2, 1, 0)] == ended

    def test_the_context_is_carried(self):
        """Id and context variables are there inside the tools, and what they set stays inside (CASES 5)."""
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
        seen = []

        def tool(order):
            seen.append((current_correlation_id(), variable.get()))
            variable.set("changed")

        variable.set("mine")
        with Run() as run:
            run.call_tools([CALL] * 3, {"lookup": tool}, parallel=2)
        assert [(run.id, "mine")] * 3 == seen
        assert "mine" == variable.get()

    def test_threads_are_used(self):
        """`parallel` is how many run at once; one uses this thread."""
        seen: set[int] = set()
        barrier = threading.Barrier(3)

        def tool(order):
            barrier.wait(10)
            seen.add(threading.get_ident())

        with Run() as run:
            run.call_tools([CALL] * 3, {"lookup": tool}, parallel=3)
            assert 3 == len(seen)
            here: list[int] = []
            run.call_tools([CALL] * 3, {"lookup": lambda order: here.append(threading.get_ident())})
        assert {threading.get_ident()} == set(here)

    def test_a_gate_that_raises(self):
        """A gate's failure is raised after those that run have ended; what has not begun does not begin."""
        executed = []
        error = ValueError("gate")

        def guard(event):
            if event.tool_call.id == "bad":
                raise error

        BeforeToolCallEvent.subscribe(guard)
        calls = [ToolCall("bad", "lookup"), *[ToolCall(str(n), "lookup") for n in range(200)]]
        with capture() as recorder, pytest.raises(ValueError, match="gate") as caught, Run() as run:
            run.call_tools(calls, {"lookup": lambda: executed.append(1)}, parallel=2)
        assert error is caught.value
        assert len(executed) < 200
        assert (
            len(executed)
            == len(recorder.of(ToolCallStartedEvent))
            == len(recorder.of(ToolCallCompletedEvent))
        )

    def test_several_gates_that_raise(self):
        """Several failures are raised as a group."""
        barrier = threading.Barrier(2)

        def guard(event):
            barrier.wait(10)
            raise ValueError(event.tool_call.id)

        BeforeToolCallEvent.subscribe(guard)
        with pytest.raises(ExceptionGroup, match="several tool calls failed") as caught, Run() as run:
            run.call_tools([ToolCall("a", "t"), ToolCall("b", "t")], {}, parallel=2)
        assert {"a", "b"} == {str(error) for error in caught.value.exceptions}

    @pytest.mark.parametrize("kind", OUTSIDERS)
    def test_an_interrupt_in_a_thread(self, kind):
        """An interrupt in a tool's thread is raised as itself, before any other failure."""
        barrier = threading.Barrier(2)

        def guard(event):
            barrier.wait(10)
            if event.tool_call.id == "a":
                raise ValueError("gate")

        def tool():
            raise kind("now")

        BeforeToolCallEvent.subscribe(guard)
        with capture() as recorder, pytest.raises(kind, match="now"), Run() as run:
            run.call_tools([ToolCall("a", "t"), ToolCall("b", "t")], {"t": tool}, parallel=2)
        assert "now" == str(only(recorder, ToolCallFailedEvent).error)


class TestPieces:
    """What a run tells besides."""

    def test_emit(self):
        """An event of one's own is one of the run: with its id, and `run` among its payload."""
        with capture(Counted) as recorder, Run("sundae") as run:
            assert None is run.emit(Counted, number=3)
        event = recorder.events[0]
        assert (3, run.id, run.info) == (event.number, event.correlation_id, event.get("run"))

    def test_emit_a_field_named_run(self):
        """A field of one's own that is called `run` is one's own."""

        class Lap(Event):
            run: int
            event_class: str = ""

        with capture(Lap) as recorder, Run() as run:
            run.emit(Lap, run=4, event_class="x")
        assert (4, "x", run.id) == (
            recorder.events[0].run,
            recorder.events[0].event_class,
            recorder.events[0].correlation_id,
        )

    def test_emit_a_gate(self):
        """A gate of one's own is returned judged, its decisions told as those of the run's gates."""

        class Guard(Hook):
            @on(BeforePayment)
            def check(self, event):
                event.limit = 5
                event.blocked = "too much"

        with capture() as recorder, Run() as run:
            gate = run.emit(BeforePayment, amount=7)
        assert gate is not None
        assert (7, 5, "too much", run.id) == (gate.amount, gate.limit, gate.blocked, gate.correlation_id)
        assert run.info == gate.get("run")
        assert [("edit", "limit", None, True), ("deny", "blocked", "too much", True)] == decisions(recorder)

    def test_emit_a_gate_that_raises(self):
        """What a gate of one's own raises reaches the emitter."""
        BeforePayment.subscribe(lambda event: raise_(ValueError("boom")))
        with capture() as recorder, Run() as run, pytest.raises(ValueError, match="boom"):
            run.emit(BeforePayment, amount=7)
        assert [("error", None, "boom", True)] == decisions(recorder)

    @pytest.mark.parametrize("event_class", [Counted, BeforePayment])
    def test_emit_takes_keywords(self, event_class):
        """Positional arguments, and missing ones, are refused, whether or not anybody listens."""
        with Run() as run:
            with pytest.raises(TypeError, match="keyword arguments only"):
                run.emit(event_class, 7)
            with pytest.raises(TypeError, match=r"number|amount"):
                run.emit(event_class)

    @pytest.mark.parametrize(
        "event_class",
        [
            InferenceStartedEvent,
            InferenceDeniedEvent,
            InferenceCompletedEvent,
            InferenceFailedEvent,
            InferenceMaxTurnsReachedEvent,
        ],
    )
    def test_emit_a_beginning_or_an_end(self, event_class):
        """How a run begins and ends is the run's to tell; the error says how it does."""
        with capture() as recorder, Run() as run:
            with pytest.raises(
                TypeError, match=f"{event_class.__name__} is told by the run itself.*`complete`.*`end`"
            ):
                run.emit(event_class)
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)

    def test_chunk(self):
        """A chunk is told with its decoded text."""
        with capture(InferenceChunkEvent) as recorder, Run("sundae") as run:
            run.chunk({"delta": "he"}, "he", thread="t-1")
        event = recorder.events[0]
        assert ("sundae", {"delta": "he"}, "he", "t-1") == (
            event.agent,
            event.chunk,
            event.chunk_content,
            event.thread,
        )

    def test_compacted(self):
        """A compaction is told with what it measures."""
        with capture(ContextCompactedEvent) as recorder, Run("sundae") as run:
            run.compacted("summary", 100, 10, duration=0.5)
        event = recorder.events[0]
        assert ("sundae", "summary", 100, 10, 0.5) == (
            event.agent,
            event.strategy,
            event.before,
            event.after,
            event.duration,
        )

    @pytest.mark.parametrize(
        "what",
        [
            lambda run: run.chunk("c"),
            lambda run: run.compacted(),
            lambda run: run.emit(Counted, number=1),
            lambda run: run.emit(BeforePayment, amount=1),
            lambda run: run.call_tools([CALL], {}),
            lambda run: run.call_model(answer, []),
            lambda run: run.step("s").__enter__(),
            lambda run: run.end(),
            lambda run: next(run.turns()),
        ],
    )
    def test_before_the_beginning(self, what):
        """Nothing is done in a run that has not begun; the error says what to do first."""
        with capture() as recorder, pytest.raises(RuntimeError, match="has not begun; enter it with `with`"):
            what(Run())
        assert [] == recorder.events


class TestBeginAndEnd:
    """§8: for hosts that only call back."""

    def test_begin_and_end(self):
        """`begin` and `end` tell what a block would; the ambient id stays as it was."""
        with capture() as recorder:
            run = Run.begin("sundae", "hello", metadata={"user": 7}, state=1, max_retries=0)
            assert None is current_correlation_id()
            run.end("a result")
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)
        event = only(recorder, InferenceCompletedEvent)
        assert ("a result", run.id, {"user": 7}) == (event.result, event.correlation_id, event.run.metadata)
        assert (1, 0) == (run.state, run.max_retries)

    def test_it_adopts_the_scope_s_id(self):
        """A run begun in a scope has its id."""
        with correlation("request-1"):
            run = Run.begin()
            run.end()
        assert "request-1" == run.id
        assert "mine" == Run.begin(correlation_id="mine").id

    def test_end_works_once(self):
        """Later ends change nothing, nor does what else comes after."""
        with capture() as recorder:
            run = Run.begin()
            run.end("first")
            run.end("second", ValueError("late"), max_turns=True)
            run.chunk("late")
            run.compacted()
            assert None is run.emit(Counted, number=1)
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)
        assert "first" == run.result

    def test_a_gate_after_the_end(self):
        """A gate of one's own judges nothing after the end, and must not look passed."""
        asked = []
        BeforePayment.subscribe(asked.append)
        run = Run.begin()
        run.end()
        with pytest.raises(RunEndedError, match="has ended"):
            run.emit(BeforePayment, amount=1)
        assert [] == asked

    @pytest.mark.parametrize(
        "begins",
        [
            lambda run: run.call_tools([CALL], {}),
            lambda run: run.call_model(answer, []),
            lambda run: run.tool_call(CALL).__enter__(),
            lambda run: run.model_call([]).__enter__(),
            lambda run: run.step("s").__enter__(),
            lambda run: next(run.turns()),
        ],
    )
    def test_nothing_begins_after_the_end(self, begins):
        """Nothing begins that no gate could judge any more."""
        run = Run.begin()
        run.end()
        with capture() as recorder, pytest.raises(RunEndedError, match="has ended; nothing can begin in it"):
            begins(run)
        assert [] == recorder.events

    def test_failed_and_max_turns(self):
        """`error=` and `max_turns=` choose the terminal."""
        error = ValueError("boom")
        with capture() as recorder:
            Run.begin().end(error=error)
            Run.begin().end(max_turns=True)
            Run.begin().end(error=error, max_turns=True)
            run = Run.begin()
            list(run.turns(limit=0))
            run.end()
        assert [
            "InferenceFailed",
            "InferenceMaxTurnsReached",
            "InferenceFailed",
            "InferenceMaxTurnsReached",
        ] == [name for name in names(recorder) if name != "InferenceStarted"]

    def test_what_is_open_is_closed(self):
        """`end` closes what is open, innermost first; what is left later is silent."""
        with capture() as recorder:
            run = Run.begin()
            next(run.turns())
            call = run.tool_call(CALL)
            call.__enter__()
            run.end()
            call.set("late")
            call.__exit__(None, None, None)
        assert [
            "TurnStarted",
            "ToolCallStarted",
            "ToolCallFailed",
            "TurnCompleted",
            "InferenceCompleted",
        ] == names(recorder)[1:]
        assert isinstance(only(recorder, ToolCallFailedEvent).error, RunEndedError)

    def test_in_another_thread_and_task(self):
        """Begun here, used in a thread, ended in a task of a loop there: no context error, one terminal."""
        with capture() as recorder, correlation("request-1"):
            run = Run.begin("sundae")
            open_call = run.tool_call(CALL)

            def there():
                open_call.__enter__()

                async def end():
                    run.end("done")

                asyncio.run(end())

            thread = threading.Thread(target=there)
            thread.start()
            thread.join(10)
            open_call.__exit__(None, None, None)
            assert "request-1" == current_correlation_id()
        assert ["InferenceStarted", "ToolCallStarted", "ToolCallFailed", "InferenceCompleted"] == names(
            recorder
        )
        assert {"request-1"} == {event.correlation_id for event in recorder.events}

    @pytest.mark.parametrize("parallel", [1, 2])
    def test_what_it_calls_is_within_the_run(self, parallel):
        """Tools and models of a begun run have its id, and runs they start have it for their parent."""
        ids = []

        def look(*args, **arguments):
            with Run() as inner:
                ids.append((inner.parent_id, current_correlation_id() == inner.id != inner.parent_id))
            ids.append(current_correlation_id())
            return ANSWER

        run = Run.begin()
        run.call_model(look, [])
        run.call_tools([CALL, CALL], {"lookup": look}, parallel=parallel)
        assert {run.id, (run.id, True)} == set(ids)
        assert 6 == len(ids)
        assert None is current_correlation_id()

    def test_blocks_are_within_the_run(self):
        """So have the blocks of its pieces, wherever they are entered and however they are left."""
        run = Run.begin()
        for piece in (run.step("s"), run.model_call([]), run.tool_call(CALL)):
            with correlation("elsewhere"):
                with pytest.raises(ValueError, match="boom"), piece:
                    assert run.id == current_correlation_id()
                    with Run() as inner:
                        assert run.id == inner.parent_id
                    raise ValueError("boom")
                assert "elsewhere" == current_correlation_id()
        ApproveToolCallEvent.subscribe(lambda event: setattr(event, "denied", "no"))
        with pytest.raises(ToolCallRefused), run.tool_call(CALL):
            pass
        assert None is current_correlation_id()

    def test_a_scope_of_the_same_id_is_not_the_run_s(self):
        """A scope that somebody else has opened with its id gives it to no run that a tool starts."""
        ids = []

        def tool(order):
            with Run() as inner:
                ids.append(inner.parent_id)
            ids.append(inner.id != run.id)

        run = Run.begin()
        with correlation(run.id):
            run.call_tools([CALL], {"lookup": tool})
        assert [run.id, True] == ids

    def test_a_thread_without_the_context(self):
        """A plain thread that calls a tool of the run does it within the run."""
        seen = []
        with Run() as run:
            thread = threading.Thread(
                target=lambda: run.call_tools(
                    [CALL], {"lookup": lambda order: seen.append(current_correlation_id())}
                )
            )
            thread.start()
            thread.join(10)
        assert [run.id] == seen

    def test_many_threads_end_it(self):
        """Of many ends at once one counts; each start told by then has its end before the terminal."""
        for _ in range(20):
            with capture() as recorder:
                run = Run.begin()
                barrier = threading.Barrier(5)

                def work(run=run, barrier=barrier):
                    barrier.wait(10)
                    try:
                        for _ in range(50):
                            run.call_tools([CALL], {"lookup": lookup})
                            run.chunk("c")
                    except RunEndedError:
                        pass

                def end(run=run, barrier=barrier):
                    barrier.wait(10)
                    run.end()

                threads = [threading.Thread(target=target) for target in (work, work, work, end, end)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(10)
            assert "InferenceCompleted" == names(recorder)[-1]
            assert 1 == len(recorder.of(InferenceCompletedEvent))
            opened: set[str] = set()
            for event in recorder.events[1:-1]:
                if isinstance(event, ToolCallStartedEvent):
                    opened.add(event.span_id)
                elif not isinstance(event, InferenceChunkEvent):
                    opened.remove(event.span_id)
            assert set() == opened

    def test_it_does_not_wait_for_ever(self):
        """An end that waits for a thread that waits for it goes on in the end."""
        run = Run.begin()
        run._telling.seconds = 0.0
        ended = threading.Event()

        def observe(event):
            thread = threading.Thread(target=lambda: (run.end(), ended.set()))
            thread.start()
            assert ended.wait(10)

        ToolCallStartedEvent.subscribe(observe)
        with capture() as recorder, pytest.raises(RunEndedError):
            run.call_tools([CALL], {"lookup": lookup})
        assert ["ToolCallStarted", "ToolCallFailed", "InferenceCompleted"] == names(recorder)

    def test_refused(self):
        """A refused run is not begun."""
        BeforeInvocationEvent.subscribe(lambda event: setattr(event, "cancel", "no"))
        with capture() as recorder, pytest.raises(RunRefused, match="no"):
            Run.begin()
        assert "InferenceDenied" == names(recorder)[-1]

    def test_what_an_after_gate_raises(self):
        """`end` raises what an AfterInvocation gate raised."""
        AfterInvocationEvent.subscribe(lambda event: raise_(ValueError("boom")))
        run = Run.begin()
        with pytest.raises(ValueError, match="boom"):
            run.end()

    def test_left_without_entering(self):
        """A run that was never entered, or only begun, is not ended twice by leaving it."""
        run = Run()
        with capture() as recorder:
            run.__exit__(None, None, None)
        assert [] == recorder.events
        run = Run.begin()
        run.end()
        run.__exit__(None, None, None)

    def test_end_inside_a_block(self):
        """A block whose run was ended inside goes on, and ends no second time."""
        with capture() as recorder:
            with Run() as run:
                run.end("early")
                run.complete("late")
            assert None is current_correlation_id()
            with pytest.raises(ValueError, match="boom"), Run() as run:
                run.end()
                raise ValueError("boom")
        assert ["InferenceStarted", "InferenceCompleted"] * 2 == names(recorder)


class TestReentrancy:
    """Gates and observers that use the run they are told of, or another."""

    def test_a_gate_starts_a_nested_run(self):
        """A gate may run another agent, whose own calls are not put to it again if it says so."""

        class Judge(Hook):
            @on(ApproveToolCallEvent, when=lambda event: event.agent != "judge")
            def ask(self, event):
                with Run("judge") as run:
                    verdict = run.call_model(lambda messages: ModelResponse("no"), [])
                    run.call_tools([CALL], {"lookup": lookup})
                event.denied = verdict.content

        with capture(InferenceStartedEvent) as recorder, Run("sundae") as run:
            assert "no" == run.call_tools([CALL], {"lookup": lookup})[0][1].error
        assert [None, run.id] == [event.parent_id for event in recorder.events]

    def test_an_observer_completes_the_run(self):
        """An observer may complete the run."""
        run = Run()
        ToolCallCompletedEvent.subscribe(lambda event: run.complete(event.result))
        with capture() as recorder, run:
            run.call_tools([CALL], {"lookup": lookup})
        assert ToolResult({"order": "A1"}) == only(recorder, InferenceCompletedEvent).result

    @pytest.mark.parametrize(
        "event_class",
        [
            InferenceStartedEvent,
            TurnStartedEvent,
            ModelCallStartedEvent,
            InferenceGeneratedEvent,
            ToolCallsReceivedEvent,
            ToolCallStartedEvent,
            ToolCallCompletedEvent,
            TurnCompletedEvent,
            InferenceCompletedEvent,
        ],
    )
    def test_an_observer_ends_the_run(self, event_class):
        """Wherever an observer ends it, there is one terminal at the end, and every start has its end."""
        run = Run()
        executed = []

        def end(event):
            run.end()
            run.chunk("late")

        event_class.subscribe(end)
        with capture() as recorder:
            try:
                with run:
                    for _ in run.turns(limit=1):
                        run.call_model(asking(CALL), [])
                        run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
            except RunEndedError:
                pass
        terminals = [event for event in recorder.events if event.ends_run]
        assert [recorder.events[-1]] == terminals
        spans = collections.Counter(
            event.span_id for event in recorder.events if event.get("span_id") is not None
        )
        assert {2} == set(spans.values())
        if event_class is ToolCallStartedEvent:
            assert [] == executed

    @pytest.mark.parametrize("kind", OUTSIDERS)
    def test_an_observer_ends_the_run_and_interrupts(self, kind):
        """An interrupt in the observer that has just ended the run brings no second terminal."""
        run = Run()

        def observe(event):
            run.end("early")
            raise kind

        InferenceStartedEvent.subscribe(observe)
        with capture() as recorder, pytest.raises(kind), run:
            raise AssertionError("entered")
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)

    def test_a_tool_ends_the_run(self):
        """A tool that ends its run has its failed event, and its result is nobody's event."""
        with capture() as recorder, Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: run.end("early")})
        assert ["ToolCallStarted", "ToolCallFailed", "InferenceCompleted"] == names(recorder)[1:]

    def test_a_gate_ends_the_run(self):
        """A gate that ends the run it judges: the tool is not entered, and no later gate is asked."""
        executed = []
        asked = []
        run = Run()
        BeforeToolCallEvent.subscribe(lambda event: run.end())
        ApproveToolCallEvent.subscribe(asked.append)
        with capture() as recorder, pytest.raises(RunEndedError), run:
            run.call_tools([CALL], {"lookup": lambda order: executed.append(order)})
        assert [] == executed == asked
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)

    def test_what_no_after_gate_could_judge_is_held_back(self):
        """What a tool did by the time the run had ended is put to no gate, and given to nobody."""
        asked = []
        AfterToolCallEvent.subscribe(asked.append)
        message = "the tool call 'lookup' \\(call_1\\) came to is held back: AfterToolCallEvent can"
        with capture() as recorder, pytest.raises(RunEndedError, match=message), Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: run.end()})
        assert [] == asked
        assert ["InferenceStarted", "ToolCallStarted", "ToolCallFailed", "InferenceCompleted"] == names(
            recorder
        )

    def test_a_response_that_no_after_gate_could_judge(self):
        """So is a model's response."""
        asked = []
        AfterModelCallEvent.subscribe(asked.append)
        with pytest.raises(RunEndedError, match="what the model call came to is held"), Run() as run:
            run.call_model(lambda messages: run.end() or ANSWER, [])
        assert [] == asked

    def test_an_error_that_no_after_gate_could_judge(self):
        """So is what a tool raised, which is the cause."""
        AfterToolCallEvent.subscribe(lambda event: None)

        def tool(order):
            run.end()
            raise ValueError("a secret")

        with pytest.raises(RunEndedError) as caught, Run() as run:
            run.call_tools([CALL], {"lookup": tool})
        assert "a secret" == str(caught.value.__cause__)

    def test_a_result_after_the_end_without_after_gates(self):
        """Where nobody judges, a result that comes after the end is returned."""
        with Run() as run:
            [(_, result)] = run.call_tools([CALL], {"lookup": lambda order: (run.end(), "late")[1]})
            assert "late" == result.data

    def test_nothing_begins_while_the_run_ends(self):
        """What an AfterInvocation gate begins in the run is refused; what it tells is told."""
        run = Run()

        def after(event):
            run.chunk("last words")
            run.call_tools([CALL], {"lookup": lookup})

        AfterInvocationEvent.subscribe(after)
        with capture() as recorder, pytest.raises(RunEndedError), run:
            pass
        assert [
            "InferenceStarted",
            "InferenceChunk",
            "HandlerFailed",
            "GateDecision",
            "InferenceFailed",
        ] == names(recorder)

    @pytest.mark.exhausts_stack
    def test_runs_without_end(self):
        """An observer that starts a run for each run is stopped, and every run has its terminal."""
        depth = []

        def again(event):
            depth.append(1)
            with Run("again"):
                pass

        InferenceStartedEvent.subscribe(again)
        with capture(HandlerFailedEvent) as recorder, Run():
            pass
        assert 0 < len(recorder.events) < len(depth) < sys.getrecursionlimit()


STOPPED = StopIteration("boom")


class TestStopIteration:
    """One that a gate raises, by a bare `next` say, comes out as any other exception does."""

    @pytest.fixture(
        params=[g for g in GATES if g is not BeforeInvocationEvent], ids=lambda gate: gate.__name__
    )
    def gate(self, request):
        """Have a gate of a run raise it."""
        request.param.subscribe(lambda event: raise_(STOPPED))
        return request.param

    def test_it_comes_out(self, gate):
        """It comes out of the run, and is what the run failed with."""
        with capture() as recorder, pytest.raises(StopIteration) as caught, Run() as run:
            run.call_model(answer, [])
            run.call_tools([CALL], {"lookup": lookup})
        assert STOPPED is caught.value is only(recorder, InferenceFailedEvent).error

    def test_in_threads(self):
        """It comes out of parallel calls too."""
        ApproveToolCallEvent.subscribe(lambda event: raise_(STOPPED))
        with pytest.raises(StopIteration) as caught, Run() as run:
            run.call_tools([CALL, CALL], {"lookup": lookup}, parallel=2)
        assert STOPPED is caught.value

    def test_of_pieces_and_own_gates(self):
        """So it does out of a piece, and of a gate of the run's own."""
        BeforePayment.subscribe(lambda event: raise_(STOPPED))
        AfterToolCallEvent.subscribe(lambda event: raise_(STOPPED))
        run = Run.begin()
        with pytest.raises(StopIteration) as caught:
            run.emit(BeforePayment, amount=1)
        assert STOPPED is caught.value
        with pytest.raises(StopIteration) as caught, run.tool_call(CALL):
            pass
        assert STOPPED is caught.value

    def test_at_the_beginning(self):
        """It refuses the run that it judges."""
        BeforeInvocationEvent.subscribe(lambda event: raise_(STOPPED))
        with capture() as recorder, pytest.raises(StopIteration) as caught, Run():
            pass
        assert STOPPED is caught.value
        assert "boom" == only(recorder, InferenceDeniedEvent).reason

    @pytest.mark.parametrize(
        "told", [InferenceStartedEvent, ToolCallStartedEvent, ToolCallCompletedEvent, InferenceCompletedEvent]
    )
    def test_of_a_strict_observer(self, told):
        """Of an observer that may raise as well."""
        configure(strict=True)
        told.subscribe(lambda event: raise_(STOPPED))
        with pytest.raises(StopIteration) as caught, Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        assert STOPPED is caught.value

    def test_of_the_last_gate_of_a_run_that_is_not_entered(self):
        """Also where the run ends because its start could not be told."""
        configure(strict=True)
        InferenceStartedEvent.subscribe(lambda event: raise_(ValueError("told")))
        AfterInvocationEvent.subscribe(lambda event: raise_(STOPPED))
        with capture() as recorder, pytest.raises(ValueError, match="told") as caught, Run():
            pass
        assert "meanwhile: StopIteration: boom" == caught.value.__notes__[-1]
        assert caught.value is only(recorder, InferenceFailedEvent).error

    def test_with_another(self):
        """What is raised while it goes on is noted at it."""
        configure(strict=True)
        stopped = StopIteration("boom")
        GateDecisionEvent.subscribe(lambda event: raise_(ValueError("told")))
        ApproveToolCallEvent.subscribe(lambda event: raise_(stopped))
        with pytest.raises(StopIteration) as caught, Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        assert stopped is caught.value
        assert "meanwhile: ValueError: told" in stopped.__notes__

    def test_on_a_loop(self):
        """Out of an async run it comes as Python has it come out of a coroutine; its events tell of it."""

        async def main():
            async with AsyncRun():
                pass

        AfterInvocationEvent.subscribe(lambda event: raise_(STOPPED))
        with capture() as recorder, pytest.raises(RuntimeError) as caught:
            asyncio.run(main())
        assert STOPPED is caught.value.__cause__ is only(recorder, InferenceFailedEvent).error

    def test_of_a_call_on_a_loop(self):
        """So it does out of a call."""
        caught = []

        async def main():
            async with AsyncRun() as run:
                with pytest.raises(RuntimeError) as raised:
                    await run.call_tools([CALL], {"lookup": lookup})
                caught.append(raised.value)

        AfterToolCallEvent.subscribe(lambda event: raise_(STOPPED))
        asyncio.run(main())
        assert STOPPED is caught[0].__cause__


class TestInterruptedObservers:
    """BaseException out of an observer, whatever it observes."""

    @pytest.mark.parametrize("kind", OUTSIDERS)
    @pytest.mark.parametrize("at", range(12))
    def test_at_any_event(self, kind, at):
        """Wherever it strikes, it goes on; each start has one end, and there is one terminal."""
        count = itertools.count()
        error = kind("now")

        def observe(event):
            if next(count) == at:
                raise error

        AfterToolCallEvent.subscribe(lambda event: setattr(event, "result", 1))
        with capture() as recorder:
            Event.subscribe(observe)
            try:
                with Run() as run:
                    for _ in run.turns(limit=1):
                        run.call_model(asking(CALL), [])
                        run.call_tools([CALL], {"lookup": lookup})
                        with run.step("s"):
                            pass
            except kind as raised:
                assert error is raised
            else:
                raise AssertionError("it was swallowed")
        assert [recorder.events[-1]] == [event for event in recorder.events if event.ends_run]
        spans = collections.Counter(
            event.span_id for event in recorder.events if event.get("span_id") is not None
        )
        assert {2} == set(spans.values())
        assert None is current_correlation_id()

    def test_while_the_run_is_refused(self):
        """An interrupt in an observer of the denied event goes on in place of the gate's error."""
        BeforeInvocationEvent.subscribe(lambda event: raise_(ValueError("gate")))
        InferenceDeniedEvent.subscribe(lambda event: raise_(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt), Run():
            pass


class TestStrict:
    """Strict mode, with observers that raise."""

    @pytest.fixture(autouse=True)
    def strict(self):
        configure(strict=True)

    @pytest.mark.parametrize(
        "event_class", [InferenceStartedEvent, ToolCallStartedEvent, InferenceCompletedEvent]
    )
    def test_an_observer_s_error_is_raised(self, event_class):
        """What an observer raises ends the run; every start has its end, and there is one terminal."""
        event_class.subscribe(lambda event: raise_(ValueError("observer")))
        with capture() as recorder, pytest.raises(ValueError, match="observer"), Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        assert [recorder.events[-1]] == [event for event in recorder.events if event.ends_run]

    @pytest.mark.parametrize(
        "event_class", [GateDecisionEvent, ToolCallCompletedEvent, InferenceFailedEvent, TurnCompletedEvent]
    )
    def test_it_does_not_replace_what_goes_on(self, event_class):
        """Where another error goes on already, it is a note to that."""
        error = RuntimeError("gate")
        AfterToolCallEvent.subscribe(lambda event: raise_(error))
        event_class.subscribe(lambda event: raise_(ValueError("observer")))
        with pytest.raises(RuntimeError, match="gate") as caught, Run() as run:
            for _ in run.turns():
                run.call_tools([CALL], {"lookup": lookup})
        assert error is caught.value
        assert any("ValueError: observer" in note for note in error.__notes__)

    def test_nor_an_interrupt(self):
        """Least of all an interrupt."""
        ToolCallFailedEvent.subscribe(lambda event: raise_(ValueError("observer")))
        with pytest.raises(KeyboardInterrupt), Run() as run:
            run.call_tools([CALL], {"lookup": lambda order: raise_(KeyboardInterrupt())})

    def test_nor_a_gate_s_refusal_by_error(self):
        """Nor the error of a gate that has refused the run."""
        BeforeInvocationEvent.subscribe(lambda event: raise_(RuntimeError("gate")))
        InferenceDeniedEvent.subscribe(lambda event: raise_(ValueError("observer")))
        with pytest.raises(RuntimeError, match="gate"), Run():
            pass

    def test_all_decisions_are_told(self):
        """An observer that raises at one decision does not keep the others from being told."""
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "arguments", {"order": 1}))
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "arguments", {"order": 2}))
        GateDecisionEvent.subscribe(lambda event: raise_(ValueError("observer")))
        with capture() as recorder, pytest.raises(ValueError, match="observer"), Run() as run:
            run.call_tools([CALL], {"lookup": lookup})
        assert 2 == len(decisions(recorder))

    def test_several_at_the_end(self):
        """Of several observers that raise while the run ends the first is raised, the others noted."""
        TurnCompletedEvent.subscribe(lambda event: raise_(ValueError("first")))
        InferenceFailedEvent.subscribe(lambda event: raise_(ValueError("second")))
        with pytest.raises(ValueError, match="first") as caught, Run() as run:
            for _ in run.turns():
                break
        assert any("second" in note for note in caught.value.__notes__)


class TestWhoComesMeanwhile:
    """Who comes in the middle of a run counts from then on."""

    def test_an_observer_of_the_end(self):
        """Who subscribes while a tool works hears the call's end, with what its start would have said."""
        seen: list[Any] = []

        def work(order):
            Event.subscribe(seen.append)

        with frozen_clock() as clock, Run("sundae", correlation_id="run-1") as run:
            run.call_tools([CALL], {"lookup": lambda order: (clock.tick(2.0), work(order))[1]})
            run.call_tools([CALL], {"lookup": lookup})
        assert [
            ToolCallCompletedEvent,
            ToolCallStartedEvent,
            ToolCallCompletedEvent,
            InferenceCompletedEvent,
        ] == [type(event) for event in seen]
        first = seen[0]
        assert ("run-1", run.info, "sundae", CALL, ToolResult()) == (
            first.correlation_id,
            first.run,
            first.agent,
            first.tool_call,
            first.result,
        )
        assert 2.0 == first.duration
        assert len({event.span_id for event in seen}) == 3
        assert all(re.fullmatch("[0-9a-f]{16}", event.span_id) for event in seen)

    def test_an_observer_of_the_failure(self):
        """The same where the tool fails."""
        seen: list[Any] = []

        def work(order):
            ToolCallFailedEvent.subscribe(seen.append)
            raise ValueError("boom")

        with Run() as run:
            ((_, result),) = run.call_tools([CALL], {"lookup": work})
        assert "boom" == result.error
        assert ["boom"] == [str(event.error) for event in seen]

    def test_a_judge(self):
        """Who subscribes while a tool works judges what it came to, and may have it done again."""

        def again(event):
            event.retry = event.attempt < 3

        calls: list[str] = []

        def work(order):
            calls.append(order)
            AfterToolCallEvent.subscribe(again)
            return len(calls)

        with Run() as run:
            ((_, result),) = run.call_tools([CALL], {"lookup": work})
        assert (3, ["A1"] * 3) == (result.data, calls)

    def test_who_ends_the_run(self):
        """A call that goes on while its run is ended, unheard, is told as failed to who has come by then."""
        seen: list[Any] = []
        run = Run.begin()

        def work(order):
            Event.subscribe(seen.append)
            run.end()

        run.call_tools([CALL], {"lookup": work})
        assert [ToolCallFailedEvent, InferenceCompletedEvent] == [type(event) for event in seen]

    def test_somebody_who_tells_just_then(self):
        """An unheard end waits for what another thread has begun to tell in the same moment."""

        class Late(Telling):
            looks = 0

            @property
            def tickets(self):
                self.looks += 1
                return self._tickets if self.looks == 2 else ()

            @tickets.setter
            def tickets(self, tickets):
                self._tickets = {*tickets, Ticket()}

        with Run() as run:
            run._telling = Late()
        assert run._over
        assert run._telling.looks > 2

    def test_what_is_kept_goes_with_an_unheard_end(self):
        """Where nobody hears the end, what stateful hooks keep for the run goes with it all the same."""

        class Keeper(Hook):
            stateful = True

            @on(ToolCallStartedEvent)
            def keep(self, event):
                self.last = event

        for error in (None, ValueError("boom")):
            with contextlib.suppress(ValueError), Run() as run:
                run.call_tools([CALL], {"lookup": lookup})
                assert 1 == _stateful.kept()
                if error is not None:
                    run.call_tools([CALL], {"lookup": lookup})
                    raise error
            assert 0 == _stateful.kept()

    def test_the_message_is_as_it_was(self):
        """What events say of the run is as it was when the run began, however late the first is told."""
        message = ["hello"]
        with Run(message=message) as run:
            message.append("more")
            assert ["hello"] == run.info.message

    def test_its_span(self):
        """The id that start and end share is the same however often, and by whomever, it is read."""
        seen: list[Any] = []
        Event.subscribe(seen.append)
        with Run() as run:
            span_id = run.span_id
        assert [span_id] * 2 == [event.span_id for event in seen]


class TestMemory:
    """What is left of runs: nothing."""

    def test_a_thousand_runs(self):
        """Nothing is kept for runs that have ended (CASES 20)."""

        class Keeper(Hook):
            stateful = True

            @on(Event)
            def keep(self, event):
                self.last = event

        for _ in range(1000):
            with Run() as run:
                run.call_tools([CALL], {"lookup": lookup})
        assert 0 == _stateful.kept()
        assert {} == run._opened
        assert not run._telling.tickets

    def test_an_error_keeps_nothing_alive(self):
        """What a tool or a model raises is gone with its run, without the help of the collector."""

        class Boom(Exception):
            def __init__(self):
                alive.append(weakref.ref(self))

        alive: list[Any] = []

        def boom(*args, **kwargs):
            raise Boom

        gc.collect()
        gc.disable()
        try:
            with Run() as run:
                run.call_tools([CALL], {"lookup": boom})
                try:
                    run.call_model(boom, [])
                except Boom:
                    pass
            assert [None, None] == [ref() for ref in alive]
        finally:
            gc.enable()


def test_message_objects_are_passed_through():
    """A Message is the run's message as it is."""
    message = Message("hello", sender="ada")
    with capture() as recorder, Run(message=message):
        pass
    assert message is recorder.events[0].message
