"""
The scripts of a run by themselves, driven step by step, and what a gate's edits mean.
"""

from __future__ import annotations

import types
from typing import Any

import pytest

from eventbus import (
    AfterToolCallEvent,
    ApproveToolCallEvent,
    AsyncRun,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    Event,
    InferenceCompletedEvent,
    InferenceFailedEvent,
    ProtectedEvent,
    Run,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallStartedEvent,
    ToolResult,
    writable,
)
from eventbus._order import as_arguments, as_result, call_tool, end, step
from eventbus._steps import Abandoned, Ask, Perform, Quiet, Raised, Tell, ToolOutcome, passed, performed
from eventbus._verdict import decision, refusal_of, seconds_of, shown, text_of

CALL = ToolCall("call_1", "lookup", {"order": "A1"})


class Own(ProtectedEvent):
    """A gate of one's own, with a refusal and a plain field of familiar names."""

    blocked: bool | str = writable(default=False, sticky=True)
    cancel: int = writable(default=0)
    retry: bool = writable(default=False)


class Stepwise(Run):
    """A run whose scripts ask for each step, as an async one's do."""

    _told = AsyncRun._told
    _asked = AsyncRun._asked


def opened():
    """Return a run in which things can begin, without a scope, and to which somebody listens."""
    Event.subscribe(lambda event: None)
    return Stepwise.begin("sundae", correlation_id="run-1")


def done(script, value=None):
    """Answer a script's last step, and return what it returns."""
    try:
        script.send(value)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it goes on")


class TestScripts:
    """A script yields what is to be done, and is sent what came of it."""

    def test_a_tool_call(self):
        """A call without judges is a start, the execution, and an end."""
        script = call_tool(opened(), CALL, max_retries=0)
        started = next(script)
        assert isinstance(started, Tell)
        assert ToolCallStartedEvent is started.event_class
        assert Perform(CALL, {}) == script.send(None)
        ended = script.send(12)
        assert isinstance(ended, Tell)
        assert ToolCallCompletedEvent is ended.event_class
        assert started.fields["span_id"] == ended.fields["span_id"]
        assert ToolOutcome(ToolResult(12)) == done(script)

    def test_what_nobody_hears_is_not_told(self):
        """Without listeners a call is the execution alone, and so is the end of its run."""
        run = Run.begin("sundae", correlation_id="run-1")
        script = call_tool(run, CALL, max_retries=0)
        assert Perform(CALL, {}) == next(script)
        assert 1 == len(run._opened)
        assert ToolOutcome(ToolResult(12)) == done(script, 12)
        assert {} == run._opened
        assert [] == list(end(run))
        assert run._over

    def test_a_judge_is_asked_before(self):
        """With a judge the script asks first."""
        ApproveToolCallEvent.subscribe(lambda event: None)
        script = call_tool(opened(), CALL, max_retries=0)
        asked = next(script)
        assert isinstance(asked, Ask)
        assert isinstance(asked.gate, ApproveToolCallEvent)
        assert [Tell, Perform, Tell] == [type(todo) for todo in script]

    def test_what_a_step_raised_is_raised_in_the_script(self):
        """What came of a step that raised is raised where the script waits for it."""
        error = KeyboardInterrupt()
        script = call_tool(opened(), CALL, max_retries=0)
        next(script)
        failed = script.send(Raised(error))
        assert isinstance(failed, Tell)
        assert error is failed.fields["error"]
        with pytest.raises(KeyboardInterrupt) as caught:
            script.send(None)
        assert error is caught.value

    def test_an_interrupt_while_the_end_waits_for_others(self):
        """An interrupt while the end waits for other threads fails the run, and is what goes on."""
        for error in (None, ValueError("own")):
            run = opened()
            assert run._closes()
            run._telling.begin()
            interrupt = KeyboardInterrupt()
            script = end(run, error=error)
            assert Quiet(run) == next(script)
            assert Quiet(run) == script.send(Raised(interrupt))
            terminal = script.send(Raised(interrupt))
            assert isinstance(terminal, Tell)
            assert InferenceFailedEvent is terminal.event_class
            assert (error or interrupt) is terminal.fields["error"]
            assert interrupt is done(script)

    def test_an_end(self):
        """An end waits for others, closes what is open, waits again, and tells its terminal."""
        run = opened()
        run._telling.begin()
        script = end(run)
        assert Quiet(run) == next(script)
        assert not run._over
        assert Quiet(run) == script.send(None)
        assert run._over
        terminal = script.send(None)
        assert isinstance(terminal, Tell)
        assert InferenceCompletedEvent is terminal.event_class
        assert None is done(script)

    def test_abandoned(self):
        """A script that is thrown away at its Perform says nothing; its start is left to the run's end."""
        run = opened()
        script = step(run, "s")
        next(script)
        assert Perform(None, {}) == script.send(None)
        script.close()
        assert 1 == len(run._opened)
        assert issubclass(Abandoned, GeneratorExit)

    def test_passed(self):
        """What came of a step is returned, or raised."""
        assert 1 == passed(1)
        with pytest.raises(ValueError, match="boom"):
            passed(Raised(ValueError("boom")))

    def test_performed(self):
        """An Exception of a model or tool is returned, an interrupt raised."""
        error = StopIteration("boom")
        assert (1, None) == performed(1)
        assert (None, error) == performed(Raised(error))
        with pytest.raises(KeyboardInterrupt):
            performed(Raised(KeyboardInterrupt()))


def meaning(gate: Any, *, may_retry: bool = True) -> list[tuple[Any, ...]]:
    """Return what a gate's edits mean: action, field, reason, applied."""
    told = [decision(gate, edit, may_retry=may_retry) for edit in gate.edits]
    return [(d["action"], d["field"], d["reason"], d["applied"]) for d in told if d is not None]


class TestDecisions:
    """§8: every edit, answer, refusal, retry and failure of a gate is a GateDecisionEvent."""

    def test_an_edit(self):
        """Writing a field is an edit."""
        gate = BeforeToolCallEvent(tool_call=CALL)
        gate.arguments = {"order": "A2"}
        assert [("edit", "arguments", None, True)] == meaning(gate)

    def test_who_and_where(self):
        """A decision names the gate, its author and the call."""

        def guard(event):
            event.arguments = {}

        BeforeToolCallEvent.subscribe(guard)
        gate = BeforeToolCallEvent.emit(tool_call=CALL)
        told = decision(gate, gate.edits[0], may_retry=False)
        assert told is not None
        assert ("BeforeToolCallEvent", CALL) == (told["gate"], told["tool_call"])
        assert told["by"].endswith("guard")

    def test_an_answer_and_its_withdrawal(self):
        """A result or response of a Before gate is an answer; None takes it back, which is an edit."""
        gate = BeforeToolCallEvent(tool_call=CALL)
        gate.result = 1
        gate.result = None
        model = BeforeModelCallEvent()
        model.response = "hi"
        assert [("answer", "result", None, True), ("edit", "result", None, True)] == meaning(gate)
        assert [("answer", "response", None, True)] == meaning(model)

    def test_a_result_of_an_after_gate_is_an_edit(self):
        """An After gate edits what there is."""
        gate = AfterToolCallEvent(tool_call=CALL, result=1)
        gate.result = 2
        assert [("edit", "result", None, True)] == meaning(gate)

    def test_a_refusal(self):
        """A refusal is a denial with its reason; what comes later is told as not applied."""
        gate = BeforeToolCallEvent(tool_call=CALL)
        gate.cancel = False
        gate.cancel = "no"
        gate.cancel = "never"
        gate.cancel = False
        assert [
            ("deny", "cancel", "no", True),
            ("deny", "cancel", "never", False),
            ("edit", "cancel", None, False),
        ] == meaning(gate)
        assert ("no", None) == refusal_of(gate, "cancel")

    def test_an_answer_to_what_is_refused(self):
        """An answer to a call that is refused all the same is told as not applied."""
        gate = BeforeToolCallEvent(tool_call=CALL)
        gate.result = "cached"
        gate.cancel = "no"
        assert [("answer", "result", None, False), ("deny", "cancel", "no", True)] == meaning(gate)

    def test_a_refusal_without_words_or_author(self):
        """Without words it says who refused; nobody in particular is a gate."""
        gate = BeforeToolCallEvent(tool_call=CALL, cancel=True)
        assert ("refused by a gate", None) == refusal_of(gate, "cancel")
        assert None is refusal_of(BeforeToolCallEvent(tool_call=CALL), "cancel")

    def test_a_refusal_that_is_no_text(self):
        """A truthy value that is no text is a refusal as well."""
        gate = BeforeToolCallEvent(tool_call=CALL)
        gate.cancel = 7  # type: ignore[assignment]  # what hooks do
        assert [("deny", "cancel", "refused by a gate", True)] == meaning(gate)

    def test_a_retry(self):
        """A retry has the reason of the same handler, whichever it wrote first."""
        gate = AfterToolCallEvent(tool_call=CALL)
        gate.reason = "first"
        gate.retry = 2.5
        gate.reason = "empty answer"
        assert [("retry", "retry", "empty answer", True)] == meaning(gate)
        assert [("retry", "retry", "empty answer", False)] == meaning(gate, may_retry=False)

    def test_no_retry(self):
        """`retry = False` is nothing, unless it takes one back."""
        gate = AfterToolCallEvent(tool_call=CALL)
        gate.retry = False
        assert [] == meaning(gate)
        gate.retry = True
        gate.retry = False
        assert [("retry", "retry", None, False), ("edit", "retry", None, True)] == meaning(gate)

    def test_a_reason_alone(self):
        """A reason without a retry is an edit like any other."""
        gate = AfterToolCallEvent(tool_call=CALL)
        gate.reason = "just so"
        assert [("edit", "reason", None, True)] == meaning(gate)

    def test_a_failure(self):
        """A handler that raised is an error, its text the reason; every one of an After gate is told."""
        for text in ("", "boom"):
            AfterToolCallEvent.subscribe(lambda event, text=text: (_ for _ in ()).throw(ValueError(text)))
        gate = AfterToolCallEvent(tool_call=CALL)
        with pytest.raises(ExceptionGroup):
            gate.publish()
        assert [("error", None, "boom", True), ("error", None, "ValueError", True)] == meaning(gate)

    def test_a_gate_of_one_s_own(self):
        """Of a gate of one's own it is the sticky fields that refuse, whatever their names."""
        gate = Own()
        gate.blocked = "no"
        gate.cancel = 3
        gate.retry = True
        assert [
            ("deny", "blocked", "no", True),
            ("edit", "cancel", None, True),
            ("retry", "retry", None, True),
        ] == meaning(gate)


class Unspeakable:
    """A value that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no")


def test_a_value_that_cannot_be_shown():
    """An error that names a value does not fail on it."""
    assert ("1", "a Unspeakable") == (shown(1), shown(Unspeakable()))


class TestValues:
    """What scripts make of what they are given."""

    @pytest.mark.parametrize(
        ("given", "made"),
        [
            (None, {}),
            ({"a": 1}, {"a": 1}),
            (types.MappingProxyType({"a": 1}), {"a": 1}),
            ('{"a": 1}', '{"a": 1}'),
            ([1], [1]),
        ],
    )
    def test_arguments(self, given, made):
        """Mappings become dicts, None an empty one; the rest is for the tool to refuse."""
        assert made == as_arguments(given)

    def test_arguments_are_copied_once(self):
        """Arguments that are read-only already stay what they are; a dict subclass does not."""

        class Mine(dict[str, Any]):
            pass

        assert CALL.input is as_arguments(CALL.input)
        assert dict is type(as_arguments(Mine(a=1)))

    def test_results(self):
        """A result stays what it is; all else is data."""
        result = ToolResult(1)
        assert result is as_result(result)
        assert ToolResult({"data": 1, "error": None}) == as_result({"data": 1, "error": None})

    @pytest.mark.parametrize(("retry", "seconds"), [(True, 0.0), (1, 1.0), (2.5, 2.5), (0, 0.0)])
    def test_seconds(self, retry, seconds):
        """True waits for nothing, a number that many seconds."""
        assert seconds == seconds_of(AfterToolCallEvent(tool_call=CALL, retry=retry))

    def test_text_of(self):
        """An error's text, or its name."""

        class Mute(Exception):
            def __str__(self):
                raise ValueError("no")

        assert ["boom", "ValueError", "Mute"] == [
            text_of(e) for e in (ValueError("boom"), ValueError(), Mute())
        ]
