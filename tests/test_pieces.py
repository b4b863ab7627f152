"""
The pieces of a run, for loops owned by somebody else: what each tells, refuses and keeps its books of.
"""

from __future__ import annotations

import asyncio
import gc
import types
from typing import Any

import pytest

from eventbus import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    ApproveToolCallEvent,
    AsyncRun,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    GateDecisionEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    ModelCallFailedEvent,
    ModelCallRefused,
    ModelResponse,
    Run,
    RunEndedError,
    StepFailedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallRefused,
    ToolResult,
)
from eventbus.testing import capture

CALL = ToolCall("call_1", "lookup", {"order": "A1", "rows": [{"n": 1}]})
ANSWER = ModelResponse("done", [CALL])
ANY_ERROR = [ValueError, StopIteration, KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]


def names(recorder):
    """Return the names of what was emitted between the run's first event and its last."""
    return [type(event).__name__.removesuffix("Event") for event in recorder.events[1:-1]]


def only(recorder, event_class):
    """Return the one event of a class."""
    [event] = recorder.of(event_class)
    return event


class Entered:
    """Enters a piece of a plain or an async run with one `async with`, so that one test does for both."""

    def __init__(self, piece):
        self.piece = piece
        self.is_async = hasattr(piece, "__aenter__")

    async def __aenter__(self):
        return await self.piece.__aenter__() if self.is_async else self.piece.__enter__()

    async def __aexit__(self, *raised):
        return await self.piece.__aexit__(*raised) if self.is_async else self.piece.__exit__(*raised)


@pytest.fixture(params=[Run, AsyncRun], ids=["plain", "async"])
def play(request):
    """Return what plays an async function of the run with a Run, or an AsyncRun."""

    def play_with(body, **options):
        async def main():
            async with Entered(request.param("sundae", **options)) as run:
                await body(run)
            return run

        return asyncio.run(main())

    return play_with


class TestToolCall:
    """`with run.tool_call(call) as t`."""

    def test_everything_around_a_call(self, play):
        """The call is told with the result that was set, by whatever form."""

        async def body(run):
            async with Entered(run.tool_call(CALL)) as t:
                assert None is t.answer
                t.set({"total": 1})
                t.set({"total": 12})
            assert ToolResult({"total": 12}) == t.result

        with capture() as recorder:
            play(body)
        assert ["ToolCallStarted", "ToolCallCompleted"] == names(recorder)
        event = only(recorder, ToolCallCompletedEvent)
        assert (CALL, ToolResult({"total": 12}), None) == (event.tool_call, event.result, event.answered_by)

    def test_a_result_is_taken_as_it_is(self, play):
        """A ToolResult, or an object with its attributes, is the result itself."""
        result = types.SimpleNamespace(data=1, error=None)

        async def body(run):
            async with Entered(run.tool_call(CALL)) as t:
                t.set(result)
            assert result is t.result

        play(body)

    def test_nothing_set(self, play):
        """A block that sets nothing has an empty result."""

        async def body(run):
            async with Entered(run.tool_call(CALL)) as t:
                pass
            assert ToolResult(None) == t.result

        play(body)

    def test_arguments_after_the_gates(self, play):
        """`arguments` are what the gates made of them, as plain dicts and lists of one's own."""
        BeforeToolCallEvent.subscribe(
            lambda event: setattr(event, "arguments", {**event.arguments, "limit": 10})
        )

        async def body(run):
            piece = run.tool_call(CALL)
            assert {"order": "A1", "rows": [{"n": 1}]} == piece.arguments
            async with Entered(piece) as t:
                assert {"order": "A1", "rows": [{"n": 1}], "limit": 10} == t.arguments == t.call.input
                t.arguments["rows"][0]["n"] = 2

        with capture() as recorder:
            play(body)
        assert (
            [{"n": 1}] == only(recorder, ToolCallCompletedEvent).tool_call.input["rows"] == CALL.input["rows"]
        )

    @pytest.mark.parametrize("gate", [BeforeToolCallEvent, ApproveToolCallEvent])
    def test_refused(self, play, gate):
        """Refused: entering raises, after its event, with reason and author; the block is not entered."""
        entered = []

        def guard(event):
            setattr(event, "cancel" if gate is BeforeToolCallEvent else "denied", "not today")

        gate.subscribe(guard)

        async def body(run):
            piece = run.tool_call(CALL)
            with pytest.raises(ToolCallRefused, match=r"^not today$") as caught:
                async with Entered(piece):
                    entered.append(1)
            assert "not today" == caught.value.reason
            assert caught.value.by.endswith("guard")
            with pytest.raises(RuntimeError, match="There is nothing to set"):
                piece.set(1)

        with capture() as recorder:
            play(body)
        assert [] == entered
        assert ["GateDecision", "ToolCallDenied"] == names(recorder)
        assert "not today" == only(recorder, ToolCallDeniedEvent).reason

    def test_answered(self, play):
        """Answered: `answer` is set, after the After gates, and `set` is an error."""
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "result", "cached"))
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "result", f"{event.result.data}!"))

        async def body(run):
            async with Entered(run.tool_call(CALL)) as t:
                assert ToolResult("cached!") == t.answer == t.result
                with pytest.raises(RuntimeError, match="a gate has answered"):
                    t.set("mine")

        with capture() as recorder:
            play(body)
        assert ["GateDecision", "GateDecision", "ToolCallCompleted"] == names(recorder)
        assert only(recorder, ToolCallCompletedEvent).answered_by

    def test_a_body_that_raises_although_answered(self, play):
        """What the block of an answered call raises is nothing of the call's."""
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "result", "cached"))

        async def body(run):
            async with Entered(run.tool_call(CALL)):
                raise ValueError("boom")

        with capture() as recorder, pytest.raises(ValueError, match="boom"):
            play(body)
        assert [] == recorder.of(ToolCallFailedEvent)

    def test_a_retry_is_not_applied(self, play):
        """A retry is recorded as not applied: nobody could execute again."""
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "retry", True))

        async def body(run):
            async with Entered(run.tool_call(CALL)) as t:
                t.set(1)
            assert ToolResult(1) == t.result

        with capture() as recorder:
            play(body)
        assert ("retry", False) == (
            only(recorder, GateDecisionEvent).action,
            only(recorder, GateDecisionEvent).applied,
        )

    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_a_body_that_raises(self, kind):
        """An exception of the block is the call's failure, and goes on as it came."""
        error = kind("boom")
        with capture() as recorder, pytest.raises(kind) as caught, Run() as run:
            with run.tool_call(CALL) as t:
                t.set(1)
                raise error
        assert error is caught.value is only(recorder, ToolCallFailedEvent).error
        assert error is only(recorder, InferenceFailedEvent).error
        files = []
        trace = error.__traceback__
        while trace is not None:
            files.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        assert {__file__} == set(files)

    def test_a_body_that_raises_and_a_gate_that_answers(self, play):
        """An After gate may answer a failure; the exception goes on all the same."""
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "result", "sorry"))

        async def body(run):
            piece = run.tool_call(CALL)
            with pytest.raises(ValueError, match="boom"):
                async with Entered(piece):
                    raise ValueError("boom")
            assert ToolResult("sorry") == piece.result

        play(body)

    def test_an_after_gate_that_raises(self, play):
        """What an After gate raises comes out of leaving the block."""
        error = RuntimeError("gate")

        def after(event):
            raise error

        AfterToolCallEvent.subscribe(after)

        async def body(run):
            with pytest.raises(RuntimeError, match="gate") as caught:
                async with Entered(run.tool_call(CALL)) as t:
                    t.set("canary")
            assert error is caught.value

        with capture() as recorder:
            play(body)
        assert None is only(recorder, ToolCallCompletedEvent).result

    def test_a_foreign_call(self, play):
        """An object with a call's attributes works, and gets an id if it has none."""
        foreign = types.SimpleNamespace(id="", name="lookup", input={"order": "A1"})

        async def body(run):
            async with Entered(run.tool_call(foreign)) as t:
                assert ToolCall("call_1", "lookup", {"order": "A1"}) == t.call

        play(body)

    def test_entered_twice(self, play):
        """A piece is for one use."""

        async def body(run):
            piece = run.tool_call(CALL)
            async with Entered(piece):
                with pytest.raises(RuntimeError, match=r"ToolCallPiece was entered already; make a new one"):
                    async with Entered(piece):
                        pass
                piece.set(1)
            assert ToolResult(1) == piece.result
            with pytest.raises(RuntimeError, match="was entered already"):
                async with Entered(piece):
                    pass

        with capture() as recorder:
            play(body)
        assert ["ToolCallStarted", "ToolCallCompleted"] == names(recorder)

    def test_set_outside(self, play):
        """There is nothing to set before the block and after it."""

        async def body(run):
            piece = run.tool_call(CALL)
            with pytest.raises(RuntimeError, match="was not entered"):
                piece.set(1)
            async with Entered(piece):
                pass
            with pytest.raises(RuntimeError, match="was left"):
                piece.set(1)

        play(body)

    def test_left_without_entering(self):
        """A piece that was never entered can be left."""
        with Run() as run:
            run.tool_call(CALL).__exit__(None, None, None)

    def test_overlapping(self, play):
        """Pieces need not be nested: each has its own end."""

        async def body(run):
            first, second = Entered(run.tool_call(CALL)), Entered(run.tool_call(CALL))
            await first.__aenter__()
            await second.__aenter__()
            first.piece.set(1)
            await first.__aexit__(None, None, None)
            second.piece.set(2)
            await second.__aexit__(None, None, None)

        with capture() as recorder:
            play(body)
        assert [1, 2] == [event.result.data for event in recorder.of(ToolCallCompletedEvent)]


class TestModelCall:
    """`with run.model_call(messages, ...) as m`."""

    def test_everything_around_a_call(self, play):
        """The call is told with what was sent and the response that was set, and the calls it asks for."""

        async def body(run):
            messages = [{"role": "user"}]
            async with Entered(run.model_call(messages, tools=["t"], model="m-1", top_k=1)) as m:
                assert ([{"role": "user"}], {"tools": ["t"], "model": "m-1", "top_k": 1}) == (
                    m.messages,
                    m.settings,
                )
                m.messages[0]["role"] = "changed"
                m.set(ANSWER)
            assert ANSWER is m.response
            assert None is m.answer
            assert [{"role": "user"}] == messages

        with capture() as recorder:
            play(body)
        assert ["ModelCallStarted", "InferenceGenerated", "ToolCallsReceived"] == names(recorder)
        event = only(recorder, InferenceGeneratedEvent)
        assert ([{"role": "user"}], ANSWER, "m-1") == (event.request, event.response, event.model)

    def test_what_the_gates_make_of_it(self, play):
        """`messages` and `settings` are those after the gates; the response too."""

        def before(event):
            event.messages = [*event.messages, "more"]
            event.settings = {"model": "cheap"}

        BeforeModelCallEvent.subscribe(before)
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "response", ModelResponse("edited")))

        async def body(run):
            async with Entered(run.model_call(["hello"], model="m-1")) as m:
                assert (["hello", "more"], {"model": "cheap"}) == (m.messages, m.settings)
                m.set(ANSWER)
            assert "edited" == m.response.content

        play(body)

    def test_refused(self, play):
        """Refused: entering raises, with reason and author."""

        def guard(event):
            event.cancel = "budget"

        BeforeModelCallEvent.subscribe(guard)

        async def body(run):
            with pytest.raises(ModelCallRefused, match=r"^budget$") as caught:
                async with Entered(run.model_call([])):
                    raise AssertionError("entered")
            assert caught.value.by.endswith("guard")

        with capture() as recorder:
            play(body)
        assert ["GateDecision"] == names(recorder)

    def test_answered(self, play):
        """Answered: `answer` is set, and `set` is an error."""
        BeforeModelCallEvent.subscribe(lambda event: setattr(event, "response", ANSWER))

        async def body(run):
            async with Entered(run.model_call([])) as m:
                assert ANSWER is m.answer is m.response
                with pytest.raises(RuntimeError, match="a gate has answered"):
                    m.set(ANSWER)

        play(body)

    def test_answered_and_taken_away(self, play):
        """An answer that an After-gate has emptied is an empty one: still nothing is to be called."""
        BeforeModelCallEvent.subscribe(lambda event: setattr(event, "response", ANSWER))
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "response", None))

        async def body(run):
            async with Entered(run.model_call([])) as m:
                assert ModelResponse() == m.answer == m.response

        with capture() as recorder:
            play(body)
        assert ModelResponse() == only(recorder, InferenceGeneratedEvent).response

    def test_a_retry_is_not_applied(self, play):
        """A retry is recorded as not applied."""
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "retry", True))

        async def body(run):
            async with Entered(run.model_call([])) as m:
                m.set(ANSWER)
            assert ANSWER is m.response

        with capture() as recorder:
            play(body)
        assert False is only(recorder, GateDecisionEvent).applied

    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_a_body_that_raises(self, kind):
        """An exception of the block is the call's failure, and goes on as it came."""
        error = kind("boom")
        with capture() as recorder, pytest.raises(kind) as caught, Run() as run:
            with run.model_call([]):
                raise error
        assert error is caught.value is only(recorder, ModelCallFailedEvent).error
        assert error is only(recorder, InferenceFailedEvent).error

    def test_a_body_that_raises_and_a_gate_that_answers(self, play):
        """An After gate may answer a failure; the exception goes on all the same."""
        AfterModelCallEvent.subscribe(lambda event: setattr(event, "response", ANSWER))

        async def body(run):
            piece = run.model_call([])
            with pytest.raises(ValueError, match="boom"):
                async with Entered(piece):
                    raise ValueError("boom")
            assert ANSWER is piece.response

        play(body)


class TestStep:
    """`with run.step(name)`."""

    def test_a_step(self, play):
        """A step is told at its start and its end."""

        async def body(run):
            async with Entered(run.step("compact")):
                run.chunk("c")

        with capture() as recorder:
            play(body)
        assert ["StepStarted", "InferenceChunk", "StepCompleted"] == names(recorder)
        assert {"compact"} == {event.name for event in (recorder.events[1], recorder.events[3])}

    def test_plain_in_an_async_run(self):
        """A step of an async run serves `with` as well."""

        async def main():
            async with AsyncRun() as run:
                with run.step("compact"):
                    pass
                with pytest.raises(ValueError, match="boom"), run.step("compact"):
                    raise ValueError("boom")

        with capture() as recorder:
            asyncio.run(main())
        assert ["StepStarted", "StepCompleted", "StepStarted", "StepFailed"] == names(recorder)

    @pytest.mark.parametrize("kind", ANY_ERROR)
    def test_a_step_that_raises(self, kind):
        """An exception of the block is the step's failure, and goes on as it came."""
        error = kind("boom")
        with capture() as recorder, pytest.raises(kind) as caught, Run() as run, run.step("s"):
            raise error
        assert error is caught.value is only(recorder, StepFailedEvent).error


class TestAbandoned:
    """Pieces that are entered and never left."""

    @pytest.mark.parametrize(
        "piece",
        [lambda run: run.tool_call(CALL), lambda run: run.model_call([]), lambda run: run.step("s")],
        ids=["tool", "model", "step"],
    )
    @pytest.mark.parametrize("in_cycle", [False, True])
    def test_collected_in_a_run_that_never_ends(self, piece, in_cycle):
        """They are collected without a word, whether or not they are in a cycle."""
        run = Run.begin()
        holder: dict[str, Any] = {"piece": piece(run)}
        holder["piece"].__enter__()
        if in_cycle:
            holder["holder"] = holder
        with capture() as recorder:
            del run, holder
            gc.collect()
        assert [] == recorder.events

    @pytest.mark.parametrize(
        "piece",
        [lambda run: run.tool_call(CALL), lambda run: run.model_call([]), lambda run: run.step("s")],
        ids=["tool", "model", "step"],
    )
    def test_the_run_closes_them(self, piece):
        """A run that ends closes them, also when they are gone by then."""
        with capture() as recorder:
            run = Run.begin()
            piece(run).__enter__()
            gc.collect()
            run.end()
        assert names(recorder)[1] in {"ToolCallFailed", "ModelCallFailed", "StepFailed"}
        assert isinstance(recorder.events[2].error, RunEndedError)

    def test_an_async_one(self):
        """The same holds of an async run's."""

        async def main():
            run = await AsyncRun.begin()
            await run.tool_call(CALL).__aenter__()

        with capture() as recorder:
            asyncio.run(main())
            gc.collect()
        assert 2 == len(recorder.events)


class TestFailing:
    """A host that is only told of a failure tells the piece, and no exception leaves the block."""

    def test_a_told_failure_of_a_tool_is_the_events_of_one(self, play):
        """The call ends failed, its after-gates have seen the error, and its text is the answer."""
        error, judged, results = ValueError("no such order"), [], []

        async def body(run):
            async with Entered(run.tool_call(CALL)) as called:
                called.fail(error)
            results.append(called.result)

        with AfterToolCallEvent.subscribe(judged.append), capture() as recorder:
            play(body)

        assert error is only(recorder, ToolCallFailedEvent).error
        assert [error] == [gate.error for gate in judged]
        assert [ToolResult(error="no such order")] == results

    def test_a_told_failure_of_the_model_is_the_events_of_one(self, play):
        """The attempt ends failed, and there is no response."""
        error, responses = ValueError("overloaded"), []

        async def body(run):
            async with Entered(run.model_call(["hi"])) as asked:
                asked.fail(error)
            responses.append(asked.response)

        with capture() as recorder:
            play(body)

        assert error is only(recorder, ModelCallFailedEvent).error
        assert [None] == responses

    def test_a_failure_is_told_with_an_exception(self, play):
        """What is no exception is refused at once."""

        async def body(run):
            async with Entered(run.tool_call(CALL)) as called:
                with pytest.raises(
                    TypeError, match=r"`fail` takes an exception, not 'timeout'; .*\('timeout'\)"
                ):
                    called.fail("timeout")

        play(body)

    def test_what_is_set_last_counts(self, play):
        """A result set after a failure was told is the outcome."""
        results = []

        async def body(run):
            async with Entered(run.tool_call(CALL)) as called:
                called.fail(ValueError("at first"))
                called.set("found")
            results.append(called.result)

        play(body)

        assert [ToolResult("found")] == results
