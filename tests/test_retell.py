"""
A stored run is told again with the same events, ids and times apart, and live gates judge it anew.
"""

from __future__ import annotations

from collections import Counter

import pytest
import traces
from recordings import needs_airline
from traces import row, write

from eventbus import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    ApproveToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    Event,
    Hook,
    InferenceStartedEvent,
    ModelResponse,
    Run,
    StepStartedEvent,
    ToolCall,
    ToolCallFailedEvent,
    ToolResult,
    configure,
    current_correlation_id,
    is_replaying,
    on,
    trace,
)
from eventbus._retell import retell
from eventbus.testing import capture, isolated


def alike(value):
    """Return what was stored without what differs each time: span ids, durations, places in files."""
    if isinstance(value, list):
        return [alike(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"type", "text", "frames", "traceback"}:
        return (value["type"], value["text"])
    return {key: alike(item) for key, item in value.items() if key not in {"span_id", "duration"}}


def stored(path):
    """Return the events of each run of a store, without what differs each time."""
    with trace.open(path) as reader:
        return {
            run.correlation_id: [
                (event.event, event.channel, event.agent, event.tool, alike(event.payload))
                for event in reader.events(run.correlation_id)
            ]
            for run in reader.runs()
        }


def again(path):
    """Tell all runs of a store again, and return what could not be told."""
    skipped = Counter()
    with trace.open(path) as reader:
        for run in sorted(reader.runs(), key=lambda run: run.first_seq):
            retell(list(reader.events(run.correlation_id)), skipped)
    return skipped


def told_again(path, *, into):
    """Store what is told again elsewhere, and return it."""
    return stored(traces.filled(into, lambda: again(path)))


@pytest.fixture
def paths(tmp_path):
    """Return a path for what happened, and one for what is told again."""
    return tmp_path / "first.db", tmp_path / "second.db"


def happened(path, emit):
    """Store what a function emits, on a bus of its own."""
    with isolated():
        configure(log="off")
        return traces.filled(path, emit)


def names(recorder):
    return [type(event).__name__ for event in recorder.events]


def one_run(path, *, model=None, answer=None, tools=None, **more):
    """Store one run with one answer of the model, the calls it asks for, and whatever raises on the way."""

    def emit():
        traces.gates()
        try:
            with Run("sundae", "hi", correlation_id="a", **more) as run:
                for _ in run.turns(limit=1):
                    asked = traces.model(*(model or [answer or traces.calls("lookup")]))
                    run.call_tools(run.call_model(asked, ["q"]).tool_calls, tools or traces.tools())
                run.complete("done")
        except Exception:
            return

    return happened(path, emit)


class TestTheSame:
    """The same events as the first time."""

    def test_everything_without_the_gates_of_then(self, paths):
        """What gates decided is told as it was: nobody is there to decide anew."""
        first, second = paths

        def emit():
            traces.gates()
            traces.everything(traces.order_event())

        happened(first, emit)
        traces.order_event()
        assert stored(first) == told_again(first, into=second)

    def test_everything_with_the_gates_of_then(self, paths):
        """They judge what was executed anew, and nothing is told twice."""
        first, second = paths

        def emit():
            traces.gates()
            traces.everything(traces.order_event())

        happened(first, emit)
        traces.gates()
        traces.order_event()
        assert stored(first) == told_again(first, into=second)

    @needs_airline
    def test_the_recorded_airline_runs(self, paths):
        """All 13,708 events of them, equal one by one."""
        first, second = paths
        before = stored(happened(first, traces.airline))
        assert (200, 13708) == (len(before), sum(map(len, before.values())))
        assert before == told_again(first, into=second)

    def test_a_run_whose_gate_raised(self, paths):
        """Whatever the gate: the failure, what it kept back, and the end are told as they were."""
        first, second = paths
        for number, gate in enumerate(
            [
                BeforeInvocationEvent,
                AfterInvocationEvent,
                BeforeModelCallEvent,
                AfterModelCallEvent,
                BeforeToolCallEvent,
                ApproveToolCallEvent,
                AfterToolCallEvent,
            ]
        ):

            def define(gate=gate):
                class Raises(Hook):
                    @on(gate)
                    def judge(self, event):
                        raise ValueError(f"no {gate.__name__}")

            def emit(define=define, number=number):
                define()
                for tool in ("lookup", "boom"):
                    try:
                        with Run("sundae", "hi", correlation_id=f"{number}-{tool}") as run:
                            for _ in run.turns(limit=2):
                                answer = run.call_model(traces.model(traces.calls(tool)), ["q"])
                                run.call_tools(answer.tool_calls, traces.tools())
                    except Exception:
                        continue

            happened(first, emit)
            with isolated():
                assert stored(first) == told_again(first, into=second), gate
            with isolated():
                define()
                second.unlink()
                assert stored(first) == told_again(first, into=second), gate
            first.unlink()
            second.unlink()

    @pytest.mark.parametrize("live", [False, True])
    def test_a_shadow_that_raised(self, paths, live):
        """It changed nothing then; where it is live, it fails once more, and once only."""
        first, second = paths

        def define():
            class Shadow(Hook):
                shadow = True

                @on(BeforeToolCallEvent, AfterToolCallEvent)
                def judge(self, event):
                    raise ValueError("no")

        def emit():
            define()
            with Run("sundae", correlation_id="a") as run:
                run.call_tools([ToolCall("c1", "lookup")], traces.tools())

        happened(first, emit)
        if live:
            define()
        assert stored(first) == told_again(first, into=second)

    def test_a_model_that_was_refused_or_answered_by_a_gate(self, paths):
        """What it was to be sent is not known, so its gates are not asked again."""
        first, second = paths

        def define():
            class Gate(Hook):
                @on(BeforeModelCallEvent)
                def judge(self, event):
                    if event.messages == ["refuse"]:
                        event.cancel = "not today"
                    else:
                        event.response = traces.calls("lookup")

        def emit():
            define()
            for cid in ("refuse", "answer"):
                try:
                    with Run("sundae", cid, correlation_id=cid) as run:
                        run.call_tools(run.call_model(traces.boom, [cid]).tool_calls, traces.tools())
                except Exception:
                    continue

        happened(first, emit)
        define()
        assert stored(first) == told_again(first, into=second)

    def test_parents_are_kept(self, paths):
        """A nested run tells whose it is."""
        first, _ = paths

        def emit():
            with Run("outer", correlation_id="a"), Run("inner", correlation_id="b"):
                pass

        happened(first, emit)
        with capture(InferenceStartedEvent) as recorder:
            again(first)
        assert [("a", None), ("b", "a")] == [(e.correlation_id, e.parent_id) for e in recorder.events]
        assert recorder.events[1].run.parent_id == "a"

    def test_two_runs_under_one_id(self, paths):
        """Both are told, one after the other; what the first has left open stays open."""
        first, second = paths

        def emit():
            with Run("one", correlation_id="a"):
                pass
            left = Run.begin("two", correlation_id="a")
            next(left.turns())
            with Run("three", correlation_id="a") as run, run.step("work"):
                pass

        happened(first, emit)
        assert stored(first) == told_again(first, into=second)


class TestTold:
    """What handlers see."""

    def test_it_is_a_replay_of_the_run(self, paths):
        """`is_replaying()` is true, the ambient id is the run's, and the events carry the run."""
        first, _ = paths
        one_run(first, metadata={"user": 7})
        seen = []

        @Event.subscribe
        def see(event):
            seen.append((is_replaying(), current_correlation_id(), event.run.agent, event.run.metadata))

        again(first)
        assert {(True, "a", "sundae")} == {entry[:3] for entry in seen}
        assert all({"user": 7} == entry[3] for entry in seen)
        assert not is_replaying()
        assert current_correlation_id() is None

    def test_values_are_values_again(self, paths):
        """Calls, results, answers, messages and errors are what hooks know them as."""
        first, _ = paths
        tools = {"lookup": traces.boom}
        one_run(first, answer=traces.calls("lookup"), tools=tools)
        with capture() as recorder:
            again(first)
        by_name = {type(event).__name__: event for event in recorder.events}
        assert isinstance(by_name["InferenceGeneratedEvent"].response, ModelResponse)
        assert isinstance(by_name["ToolCallsReceivedEvent"].tool_calls[0], ToolCall)
        assert isinstance(by_name["ToolCallFailedEvent"].error, RuntimeError)
        assert "RuntimeError" == type(by_name["ToolCallFailedEvent"].error).__name__

    def test_an_event_that_is_not_registered_is_left_out(self, paths):
        """It is counted by its name; nothing is imported."""
        first, _ = paths

        def emit():
            order = traces.order_event()
            with Run("sundae", correlation_id="a") as run:
                run.emit(order, order_id="A1")
                order.emit(order_id="A2")

        happened(first, emit)
        with capture() as recorder:
            assert {"OrderPlaced": 2} == again(first)
        assert ["InferenceStartedEvent", "InferenceCompletedEvent"] == names(recorder)

    def test_an_event_whose_class_has_changed_is_left_out(self, paths):
        """Of the same channel and name, but with other fields."""
        first, _ = paths
        happened(first, lambda: traces.order_event().emit(order_id="A1", correlation_id="a"))

        class OrderPlaced(Event, channel="shop.order.placed"):
            customer: str

        with capture() as recorder:
            assert {"OrderPlaced": 1} == again(first)
        assert 0 == len(recorder)

    def test_another_class_of_that_channel_is_not_taken_for_it(self, paths):
        """Its name must be the stored one."""
        first, _ = paths
        happened(first, lambda: traces.order_event().emit(order_id="A1", correlation_id="a"))

        class Other(Event, channel="shop.order.placed"):
            order_id: str

        assert {"OrderPlaced": 1} == again(first)

    def test_where_failures_are_strict(self, paths):
        """What an observer raises ends the run, as it would have then."""
        first, _ = paths
        one_run(first)

        @StepStartedEvent.subscribe
        @ToolCallFailedEvent.subscribe
        @InferenceStartedEvent.subscribe
        def boom(event):
            raise ValueError("no")

        configure(strict=True)
        with capture() as recorder:
            again(first)
        assert ["InferenceStartedEvent", "InferenceFailedEvent"] == names(recorder)

    def test_strict_for_an_event_told_as_it_was(self, paths):
        """Outside of a run nothing ends, and the next is told."""
        first, _ = paths
        order = traces.order_event()
        happened(first, lambda: [traces.order_event().emit(order_id=n, correlation_id="a") for n in "12"])
        seen = []

        @order.subscribe
        def boom(event):
            seen.append(event.order_id)
            raise ValueError("no")

        configure(strict=True)
        assert {} == again(first)
        assert ["1"] == seen

    def test_what_no_run_would_have_told(self, paths):
        """Ends without starts, turns without numbers, calls without ids: told as they were."""
        first, second = paths
        call = {"id": "c1", "name": "lookup", "input": {}}
        rows = [
            row("a", "inference.started", agent="sundae", message="hi"),
            row("a", "turn.started", turn=None, span_id="t"),
            row("a", "turn.completed", turn=None, span_id="t"),
            row("a", "tool_call.completed", tool_call=call, result=None, span_id="x"),
            row("a", "tool_call.failed", tool_call=call, error=None, span_id="y"),
            row("a", "step.completed", name="work", span_id="z"),
            row("a", "inference.generated", turn=1, response=None, span_id="m"),
            row("a", "model_call.started", turn=1, attempt=None, span_id="n"),
            row("a", "model_call.failed", turn=1, error="text", span_id="n"),
            row("a", "gate.decision", gate="Unknown", by="Guard.x", action="deny"),
            row("a", "handler.failed", handler="Audit.note", event={"channel": "no.such"}, error=None),
            row("a", "inference.completed", agent="sundae", message="hi"),
        ]
        write(first, rows)
        told = told_again(first, into=second)["a"]
        assert [name for name, *_ in stored(first)["a"]] == [name for name, *_ in told]


class TestLiveGates:
    """What gates that are live now make of a stored run."""

    def gate(self, gate_class):
        """Define a gate by what it does."""

        def define(act):
            class Live(Hook):
                @on(gate_class)
                def judge(self, event):
                    act(event)

            return act

        return define

    def test_a_call_that_was_executed_is_refused(self, paths):
        """Its start, end and what gates decided after it are left out; the run goes on."""
        first, _ = paths

        def emit():
            class After(Hook):
                @on(AfterToolCallEvent)
                def judge(self, event):
                    event.result = ToolResult("other")

            with Run("sundae", correlation_id="a") as run:
                run.call_tools([ToolCall("c1", "lookup"), ToolCall("c1", "lookup")], traces.tools())

        happened(first, emit)
        refused = []

        @self.gate(ApproveToolCallEvent)
        def refuse(event):
            if not refused:
                refused.append(event)
                event.denied = "no"

        with capture() as recorder:
            again(first)
        assert [
            "InferenceStartedEvent",
            "GateDecisionEvent",
            "ToolCallDeniedEvent",
            "ToolCallStartedEvent",
            "GateDecisionEvent",
            "ToolCallCompletedEvent",
            "InferenceCompletedEvent",
        ] == names(recorder)
        assert "Live.judge" == recorder.events[2].by

    def test_a_call_that_was_executed_is_answered(self, paths):
        """The answer takes the place of the stored one."""
        first, _ = paths
        one_run(first)

        @self.gate(BeforeToolCallEvent)
        def answer(event):
            event.result = ToolResult("mine")

        with capture() as recorder:
            again(first)
        (done,) = [event for event in recorder.events if type(event).__name__ == "ToolCallCompletedEvent"]
        assert ("mine", "Live.judge") == (done.result.data, done.answered_by)
        assert "ToolCallStartedEvent" not in names(recorder)

    @pytest.mark.parametrize("tool", ["forbidden", "cached"])
    def test_a_verdict_of_then_is_told_if_its_author_is_silent_now(self, paths, tool):
        """Nobody knows what the tool would have answered: with its decision, as it was."""
        first, second = paths
        one_run(first, answer=traces.calls(tool))
        author = {"forbidden": "Stop", "cached": "Cache"}[tool]
        method = {"forbidden": "stop", "cached": "answer"}[tool]

        def silent(self, event):
            pass

        type(Hook)(author, (Hook,), {method: on(BeforeToolCallEvent)(silent)})
        told = told_again(first, into=second)["a"]
        assert sorted(map(repr, stored(first)["a"])) == sorted(map(repr, told))

    @pytest.mark.parametrize("tool", ["forbidden", "cached", "refund"])
    def test_a_verdict_of_then_gives_way_to_one_of_now(self, paths, tool):
        """A live refusal is told in its place, once."""
        first, _ = paths
        one_run(first, answer=traces.calls(tool, amount=24))

        @self.gate(BeforeToolCallEvent)
        def refuse(event):
            event.cancel = "now"

        with capture() as recorder:
            again(first)
        denied = [event for event in recorder.events if type(event).__name__ == "ToolCallDeniedEvent"]
        assert [("now", "Live.judge")] == [(event.reason, event.by) for event in denied]
        assert "ToolCallCompletedEvent" not in names(recorder)

    def test_approval_is_asked_only_where_it_was_refused(self, paths):
        """A call that a Before-gate refused never came to Approve."""
        first, _ = paths
        one_run(first, answer=traces.calls("forbidden", "refund", amount=24))
        asked = []

        @self.gate(ApproveToolCallEvent)
        def see(event):
            asked.append(event.tool_call.name)

        again(first)
        assert ["refund"] == asked

    def test_a_run_is_refused(self, paths):
        """Nothing else of it is told."""
        first, _ = paths
        one_run(first)

        @self.gate(BeforeInvocationEvent)
        def refuse(event):
            event.cancel = "closed"

        with capture() as recorder:
            again(first)
        assert ["GateDecisionEvent", "InferenceDeniedEvent"] == names(recorder)

    def test_a_run_that_was_refused_then(self, paths):
        """It is told as it was, with its decision, where its author is silent now."""
        first, second = paths

        def emit():
            traces.gates()
            traces.everything(traces.order_event())

        happened(first, emit)

        class Prompt(Hook):
            @on(BeforeInvocationEvent)
            def prompt(self, event):
                pass

        assert stored(first)["deny-1"] == told_again(first, into=second)["deny-1"]

    def test_a_model_call_is_refused(self, paths):
        """Its events are left out, those that it had asked for go on as they were."""
        first, _ = paths
        one_run(first)

        @self.gate(BeforeModelCallEvent)
        def refuse(event):
            event.cancel = "no budget"

        with capture() as recorder:
            again(first)
        assert "InferenceGeneratedEvent" not in names(recorder)
        assert "ToolCallsReceivedEvent" not in names(recorder)
        assert "ToolCallCompletedEvent" in names(recorder)

    def test_a_model_call_is_seen_as_it_was_sent(self, paths):
        """Messages and settings, also for an attempt that failed before the one that told them."""
        first, _ = paths
        one_run(first, model=[TimeoutError("no"), traces.calls("lookup")])
        seen = []

        @self.gate(BeforeModelCallEvent)
        def see(event):
            seen.append((event.turn, list(event.messages)))

        again(first)
        assert [(1, ["q"]), (1, ["q"])] == seen

    @pytest.mark.parametrize("patience", [2, 3, 9])
    @pytest.mark.parametrize("live", [False, True])
    def test_a_tool_that_was_executed_several_times(self, paths, live, patience):
        """Its gates judge the last attempt as such; what they asked for before it is told as it was."""
        first, second = paths

        def define():
            class Again(Hook):
                @on(AfterToolCallEvent)
                def judge(self, event):
                    if event.attempt < patience:
                        event.retry, event.reason = True, f"attempt {event.attempt}"

        def emit():
            define()
            with Run("sundae", correlation_id="a", max_retries=3) as run:
                run.call_tools([ToolCall("c1", "boom"), ToolCall("c1", "lookup")], traces.tools())

        happened(first, emit)
        if live:
            define()
        assert stored(first) == told_again(first, into=second)

    def test_a_retry_that_nobody_made_then_is_not_granted(self, paths):
        """There is no stored answer to it."""
        first, _ = paths
        one_run(first)

        @self.gate(AfterModelCallEvent)
        def retry(event):
            event.retry = True
            event.reason = "once more"

        with capture() as recorder:
            again(first)
        (decided,) = [e for e in recorder.events if getattr(e, "by", None) == "Live.judge"]
        assert ("retry", False) == (decided.action, decided.applied)

    def test_a_gate_that_raises_ends_the_run(self, paths):
        """The rest of it is not told; the next one is."""
        first, _ = paths
        one_run(first)

        @self.gate(BeforeToolCallEvent)
        def refuse(event):
            raise ValueError("broken")

        with capture() as recorder:
            again(first)
        assert "InferenceFailedEvent" == names(recorder)[-1]
        assert "ToolCallCompletedEvent" not in names(recorder)

    def test_edits_of_now_are_seen(self, paths):
        """What runs is what the gate has made of the call."""
        first, _ = paths
        one_run(first, answer=traces.calls("slow", n=2))

        @self.gate(BeforeToolCallEvent)
        def limit(event):
            event.arguments = {"n": 1}

        with capture() as recorder:
            again(first)
        (started,) = [event for event in recorder.events if type(event).__name__ == "ToolCallStartedEvent"]
        assert {"n": 1} == started.tool_call.input
