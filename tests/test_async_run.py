"""
An async run: what it awaits, in which order its handlers see its events, and how it ends when struck.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import gc
import threading
from contextlib import suppress

import pytest

from eventbus import (
    AfterInvocationEvent,
    AfterToolCallEvent,
    ApproveToolCallEvent,
    AsyncRun,
    BeforeInvocationEvent,
    BeforeToolCallEvent,
    Event,
    GateDecisionEvent,
    HandlerFailedEvent,
    Hook,
    InferenceChunkEvent,
    InferenceCompletedEvent,
    InferenceFailedEvent,
    InferenceStartedEvent,
    ModelCallFailedEvent,
    ModelResponse,
    ProtectedEvent,
    Run,
    RunEndedError,
    RunRefused,
    StepFailedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallFailedEvent,
    ToolCallRefused,
    ToolCallStartedEvent,
    ToolResult,
    TurnCompletedEvent,
    TurnStartedEvent,
    _stateful,
    adrain,
    correlation,
    current_correlation_id,
    on,
    writable,
)
from eventbus.testing import capture, frozen_clock

CALL = ToolCall("call_1", "lookup", {"order": "A1"})
ANSWER = ModelResponse("done")


class Counted(Event):
    """An event of the run's own."""

    number: int = 0


class BeforePayment(ProtectedEvent):
    """A gate of the run's own."""

    amount: int
    limit: int = writable(default=10)


async def lookup(**arguments):
    """An async tool that answers with what it was given."""
    await asyncio.sleep(0)
    return arguments


async def answer(messages, **settings):
    """An async model that has nothing to ask."""
    await asyncio.sleep(0)
    return ANSWER


def names(recorder):
    """Return the names of what was emitted."""
    return [type(event).__name__.removesuffix("Event") for event in recorder.events]


def only(recorder, event_class):
    """Return the one event of a class."""
    [event] = recorder.of(event_class)
    return event


def span_counts(recorder):
    """Return how many events each span has."""
    return set(
        collections.Counter(
            event.span_id for event in recorder.events if event.get("span_id") is not None
        ).values()
    )


class TestAsyncRun:
    """`async with AsyncRun(...)` is the twin of Run."""

    async def script(self, run, model, tool):
        for _ in run.turns(limit=2):
            response = await run.call_model(model, [], model="m-1")
            pairs = await run.call_tools(response.tool_calls, {"lookup": tool})
            run.complete(pairs)
            break

    @pytest.mark.parametrize("is_async", [False, True])
    def test_models_and_tools_sync_or_async(self, is_async):
        """Models and tools may be sync or async; the events are those of a plain run."""

        async def amodel(messages, **settings):
            return ModelResponse("thinking", [CALL])

        def model(messages, **settings):
            return ModelResponse("thinking", [CALL])

        async def main():
            async with AsyncRun("sundae", "hello") as run:
                await self.script(run, amodel if is_async else model, lookup if is_async else dict)

        with capture() as recorder:
            asyncio.run(main())
        with capture() as plain, Run("sundae", "hello") as run:
            for _ in run.turns(limit=2):
                response = run.call_model(model, [], model="m-1")
                run.complete(run.call_tools(response.tool_calls, {"lookup": dict}))
                break
        assert names(plain) == names(recorder)
        assert [(CALL, ToolResult({"order": "A1"}))] == only(recorder, InferenceCompletedEvent).result

    def test_handlers_are_awaited(self):
        """Sync and async handlers see each event once, in the order of the events (CASES 3)."""
        seen: dict[str, list[str]] = {"sync": [], "async": []}

        async def handler(event):
            await asyncio.sleep(0)
            seen["async"].append(type(event).__name__)

        async def main():
            async with AsyncRun() as run:
                with run.step("plain"):
                    run.chunk("c")
                for _ in run.turns(limit=2):
                    run.emit(Counted)
                    await run.aemit(Counted)
                    run.compacted()
                    await run.call_model(answer, [])
                    await run.call_tools([CALL, CALL], {"lookup": lookup}, parallel=2)
                async with run.step("async"):
                    run.chunk("d")
                for _ in run.turns():
                    run.chunk("e")
                    break

        Event.subscribe(lambda event: seen["sync"].append(type(event).__name__), priority=1)
        Event.subscribe(handler)
        asyncio.run(main())
        assert 30 < len(seen["sync"])
        assert seen["sync"] == seen["async"]

    def test_a_turn_s_start_is_seen_before_its_end(self):
        """An async handler sees a turn's start before its end, though a plain loop emits it (CASES 3)."""
        seen = []

        async def handler(event):
            seen.append(type(event))

        TurnStartedEvent.subscribe(handler)
        TurnCompletedEvent.subscribe(handler)

        async def main():
            async with AsyncRun() as run:
                for _ in run.turns():
                    break

        asyncio.run(main())
        assert [TurnStartedEvent, TurnCompletedEvent] == seen

    def test_a_handler_that_acts_in_the_run(self):
        """A handler that tells something of the run does not wait for itself, nor does the run for ever."""
        seen = []

        async def handler(event):
            await run.aemit(Counted, number=1)
            seen.append("chunk")

        async def main():
            async with run:
                run.chunk("c")
                await asyncio.sleep(0)
                run.chunk("d")
                await run.call_model(answer, [])
                assert ["chunk", "chunk"] == seen

        run = AsyncRun()
        InferenceChunkEvent.subscribe(handler)
        with capture(Counted) as recorder:
            asyncio.run(main())
        assert 2 == len(recorder.events)

    def test_a_handler_on_another_loop_is_not_waited_for(self):
        """A handler that is busy with the run's events elsewhere comes when it comes."""
        released = threading.Event()

        async def handler(event):
            if event.chunk == "elsewhere":
                await asyncio.to_thread(released.wait, 10)

        InferenceChunkEvent.subscribe(handler)

        async def main():
            async with AsyncRun() as run:
                # In an empty context there is no scope whose loop it would go to.
                elsewhere = functools.partial(
                    InferenceChunkEvent.emit, chunk="elsewhere", correlation_id=run.id
                )
                await asyncio.to_thread(contextvars.Context().run, elsewhere)
                run.chunk("here")
                await run.call_model(answer, [])
                released.set()
            assert 0 == await adrain(10)

        asyncio.run(main())

    def test_awaited_gates(self):
        """Async gates are awaited, those of one's own with `aemit`."""

        async def guard(event):
            await asyncio.sleep(0)
            event.denied = "no"

        async def limit(event):
            await asyncio.sleep(0)
            event.limit = 5

        ApproveToolCallEvent.subscribe(guard)
        BeforePayment.subscribe(limit)

        async def main():
            async with AsyncRun() as run:
                [(_, result)] = await run.call_tools([CALL], {"lookup": lookup})
                gate = await run.aemit(BeforePayment, amount=7)
                assert ("no", 5, run.id) == (result.error, gate.limit, gate.correlation_id)
                assert None is await run.aemit(Counted)

        with capture(GateDecisionEvent) as recorder:
            asyncio.run(main())
        assert ["deny", "edit"] == [event.action for event in recorder.events]

    def test_emit_takes_keywords(self):
        """`aemit` takes names only, and nothing before the run has begun."""

        async def main():
            with pytest.raises(RuntimeError, match="has not begun"):
                await AsyncRun().aemit(Counted)
            async with AsyncRun() as run:
                with pytest.raises(TypeError, match="keyword arguments only"):
                    await run.aemit(Counted, 1)

        asyncio.run(main())

    def test_refused(self):
        """A refused run raises from entering."""
        BeforeInvocationEvent.subscribe(lambda event: setattr(event, "cancel", "no"))

        async def main():
            with pytest.raises(RunRefused, match="no"):
                async with AsyncRun():
                    raise AssertionError("entered")
            with pytest.raises(RunRefused, match="no"):
                await AsyncRun.begin()
            assert None is current_correlation_id()

        asyncio.run(main())

    def test_what_an_after_gate_raises(self):
        """What an AfterInvocation gate raises comes out of the block."""

        async def after(event):
            raise ValueError("boom")

        AfterInvocationEvent.subscribe(after)

        async def main():
            async with AsyncRun():
                pass

        with capture() as recorder, pytest.raises(ValueError, match="boom"):
            asyncio.run(main())
        assert "boom" == str(only(recorder, InferenceFailedEvent).error)

    def test_a_model_that_raises(self):
        """What an async model raises is its events, then raised."""
        error = ValueError("boom")

        async def model(messages):
            raise error

        async def main():
            async with AsyncRun() as run:
                await run.call_model(model, [])

        with capture() as recorder, pytest.raises(ValueError, match="boom") as caught:
            asyncio.run(main())
        assert error is caught.value is only(recorder, ModelCallFailedEvent).error

    def test_a_retry_waits_on_the_loop(self, monkeypatch):
        """The seconds before a retry are slept on the loop."""
        slept = []

        async def sleeping(seconds):
            slept.append(seconds)
            await asyncio.sleep(0)

        AfterToolCallEvent.subscribe(
            lambda event: setattr(event, "retry", 2.5 if event.attempt == 1 else False)
        )

        async def main():
            async with AsyncRun() as run:
                await run.call_tools([CALL], {"lookup": dict})

        monkeypatch.setattr("eventbus._clock.asleep", sleeping)
        asyncio.run(main())
        assert [2.5] == slept

    def test_runs_side_by_side(self):
        """Runs in tasks of their own have ids of their own, and the request's goes to one of them."""

        async def one():
            async with AsyncRun() as run:
                await asyncio.sleep(0)
                assert run.id == current_correlation_id()
                return run

        async def main():
            with correlation("request-1"):
                return await asyncio.gather(one(), one(), one())

        runs = asyncio.run(main())
        assert 3 == len({run.id for run in runs})
        assert 1 == [run.id for run in runs].count("request-1")
        assert ["request-1"] * 2 == [run.parent_id for run in runs if run.id != "request-1"]


class TestBeginAndEnd:
    """`await AsyncRun.begin(...)` and `await run.end(...)`."""

    def test_in_different_tasks(self):
        """Begun in one task, used in another, ended in a third: no context error, one terminal."""

        async def use(run):
            piece = run.tool_call(CALL)
            await piece.__aenter__()
            return piece

        async def main():
            run = await asyncio.create_task(
                AsyncRun.begin(
                    "sundae", "hello", metadata={"user": 7}, state=1, correlation_id="r", max_retries=0
                )
            )
            piece = await asyncio.create_task(use(run))
            await asyncio.create_task(run.end("done"))
            await asyncio.create_task(run.end("late"))
            await piece.__aexit__(None, None, None)
            await run.aemit(Counted)
            with pytest.raises(RunEndedError):
                await run.call_tools([CALL], {})
            return run

        with capture() as recorder:
            run = asyncio.run(main())
        assert ["InferenceStarted", "ToolCallStarted", "ToolCallFailed", "InferenceCompleted"] == names(
            recorder
        )
        assert ("done", 1, 0, {"user": 7}) == (run.result, run.state, run.max_retries, run.metadata)

    def test_end_inside_a_block(self):
        """A block whose run was ended inside ends no second time."""

        async def main():
            async with AsyncRun() as run:
                await run.end("early")

        with capture() as recorder:
            asyncio.run(main())
        assert ["InferenceStarted", "InferenceCompleted"] == names(recorder)

    def test_failed_and_max_turns(self):
        """`error=` and `max_turns=` choose the terminal."""

        async def main():
            await (await AsyncRun.begin()).end(error=ValueError("boom"))
            await (await AsyncRun.begin()).end(max_turns=True)

        with capture() as recorder:
            asyncio.run(main())
        assert ["InferenceFailed", "InferenceMaxTurnsReached"] == [
            name for name in names(recorder) if name != "InferenceStarted"
        ]

    def test_end_while_something_is_told(self):
        """An end in another task comes after what is being told: nothing is told after the terminal."""
        seen = []

        async def slow(event):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seen.append(type(event).__name__)

        async def main():
            run = await AsyncRun.begin()
            run.chunk("c")
            telling = asyncio.create_task(run.call_tools([CALL], {"lookup": lookup}))
            await asyncio.sleep(0)
            await run.end()
            with pytest.raises(RunEndedError):
                await telling

        Event.subscribe(slow)
        with capture() as recorder:
            asyncio.run(main())
        assert "InferenceCompleted" == names(recorder)[-1]
        assert names(recorder) == [name.removesuffix("Event") for name in seen]

    @pytest.mark.parametrize("parallel", [1, 2])
    def test_what_it_calls_is_within_the_run(self, parallel):
        """Tools, models and blocks of a begun run have its id, and runs started there have it for parent."""
        ids = []

        async def look(*args, **arguments):
            await asyncio.sleep(0)
            async with AsyncRun() as inner:
                ids.append(inner.parent_id)
            ids.append(current_correlation_id())
            return ANSWER

        async def main():
            run = await AsyncRun.begin()
            await run.call_model(look, [])
            await run.call_tools([CALL, CALL], {"lookup": look}, parallel=parallel)
            async with run.model_call([]):
                await look()
            async with run.tool_call(CALL):
                await look()
            async with run.step("s"):
                await look()
            with run.step("s"):
                await look()
            assert None is current_correlation_id()
            return run

        run = asyncio.run(main())
        assert [run.id] * 14 == ids

    def test_a_refused_block(self):
        """A piece that is refused leaves the ambient id as it was."""
        BeforeToolCallEvent.subscribe(lambda event: setattr(event, "cancel", "no"))

        async def main():
            run = await AsyncRun.begin()
            with pytest.raises(ToolCallRefused):
                async with run.tool_call(CALL):
                    raise AssertionError("entered")
            return current_correlation_id()

        assert None is asyncio.run(main())

    @pytest.mark.parametrize("told_by", ["aemit", "call_tools"])
    def test_end_while_an_observer_waits(self, told_by):
        """What another task is telling has reached its last observer before the terminal is told."""
        seen = []
        ended = []

        async def slow(event):
            if not ended:
                ended.append(1)
                asyncio.get_running_loop().call_soon(ends.set)
                for _ in range(50):
                    await asyncio.sleep(0)

        async def main():
            nonlocal ends
            ends = asyncio.Event()
            run = await AsyncRun.begin()
            if told_by == "aemit":
                telling = asyncio.create_task(run.aemit(Counted))
            else:
                telling = asyncio.create_task(run.call_tools([CALL], {"lookup": lookup}))
            await ends.wait()
            await run.end()
            await asyncio.gather(telling, return_exceptions=True)

        ends: asyncio.Event
        Counted.subscribe(slow, priority=1)
        ToolCallStartedEvent.subscribe(slow, priority=1)
        Event.subscribe(lambda event: seen.append(type(event).__name__), priority=2)
        asyncio.run(main())
        assert "InferenceCompletedEvent" == seen[-1]
        assert 3 <= len(seen)


class TestParallel:
    """Tools in tasks."""

    def test_in_call_order(self):
        """Results come in call order, whichever is done first; ids and context variables are there."""
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
        done = []

        async def tool(n):
            for _ in range(5 - n):
                await asyncio.sleep(0)
            done.append(n)
            return (n, variable.get(), current_correlation_id())

        async def main():
            variable.set("mine")
            async with AsyncRun() as run:
                calls = [ToolCall("same", "tool", {"n": n}) for n in range(5)]
                pairs = await run.call_tools(calls, {"tool": tool}, parallel=5)
                assert [(n, "mine", run.id) for n in range(5)] == [result.data for _, result in pairs]
                assert [] == await run.call_tools([], {}, parallel=5)

        with capture() as recorder:
            asyncio.run(main())
        assert [4, 3, 2, 1, 0] == done
        assert {2} == span_counts(recorder)

    def test_each_end_has_its_start_s_span_and_duration(self):
        """Calls of one id that begin in turn, and end in the opposite order, are not mixed up (CASES 18)."""
        may_end = {n: asyncio.Event() for n in range(-1, 5)}

        def begun(event):
            clock.tick()
            if event.tool_call.input["n"] == 4:
                may_end[4].set()

        async def tool(n):
            await may_end[n].wait()
            clock.tick()
            return n

        async def main():
            async with AsyncRun() as run:
                await run.call_tools(calls, {"tool": tool}, parallel=5)

        ToolCallStartedEvent.subscribe(begun)
        ToolCallCompletedEvent.subscribe(lambda event: may_end[event.tool_call.input["n"] - 1].set())
        calls = [ToolCall("call_0", "tool", {"n": n}) for n in range(5)]
        with frozen_clock() as clock, capture() as recorder:
            asyncio.run(asyncio.wait_for(main(), 10))
        started = {event.span_id: event.tool_call for event in recorder.of(ToolCallStartedEvent)}
        ended = [
            (started[event.span_id], event.tool_call, event.result.data, event.duration)
            for event in recorder.of(ToolCallCompletedEvent)
        ]
        assert [(calls[n], calls[n], n, 10.0 - 2 * n) for n in (4, 3, 2, 1, 0)] == ended

    def test_no_more_than_asked_for(self):
        """No more than `parallel` run at once."""
        running = 0
        most = 0

        async def tool():
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        async def main():
            async with AsyncRun() as run:
                await run.call_tools(
                    [ToolCall(str(n), "tool") for n in range(10)], {"tool": tool}, parallel=3
                )

        asyncio.run(main())
        assert 3 == most

    @pytest.mark.parametrize("count", [1, 3])
    def test_cancelling_one(self, count):
        """Cancelling one call leaves its siblings running: it has failed, and they have results."""

        async def tool(n):
            if n == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.sleep(0)
            return n

        async def main():
            async with AsyncRun() as run:
                calls = [ToolCall(f"call_{n}", "tool", {"n": n}) for n in range(count)]
                pairs = await run.call_tools(calls, {"tool": tool}, parallel=3)
                assert [ToolResult(error="cancelled"), ToolResult(1), ToolResult(2)][:count] == [
                    r for _, r in pairs
                ]

        with capture() as recorder:
            asyncio.run(main())
        assert isinstance(only(recorder, ToolCallFailedEvent).error, asyncio.CancelledError)
        assert "InferenceCompleted" == names(recorder)[-1]

    def test_cancelling_the_caller(self):
        """Cancelling the caller cancels all, and waits for them."""
        ended = []

        async def tool():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(1)

        async def main():
            async with AsyncRun() as run:
                await run.call_tools([ToolCall(str(n), "tool") for n in range(3)], {"tool": tool}, parallel=2)

        async def cancelling():
            task = asyncio.create_task(main())
            while len(recorder.of(ToolCallStartedEvent)) < 2:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with capture() as recorder:
            asyncio.run(cancelling())
        assert [1, 1] == ended
        assert ["ToolCallFailed", "ToolCallFailed", "InferenceFailed"] == names(recorder)[-3:]

    def test_a_gate_that_raises(self):
        """A gate's failure is raised once what runs has ended; what has not begun does not begin."""
        error = ValueError("gate")
        executed = []

        async def guard(event):
            if event.tool_call.id == "1":
                raise error

        async def tool():
            executed.append(1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        BeforeToolCallEvent.subscribe(guard)

        async def main():
            async with AsyncRun() as run:
                await run.call_tools([ToolCall(str(n), "tool") for n in range(9)], {"tool": tool}, parallel=2)

        with capture() as recorder, pytest.raises(ValueError, match="gate") as caught:
            asyncio.run(main())
        assert error is caught.value
        assert 1 == len(executed) == len(recorder.of(ToolCallCompletedEvent))

    def test_several_gates_that_raise(self):
        """Several failures are raised as a group."""

        async def guard(event):
            await asyncio.sleep(0)
            raise ValueError(event.tool_call.id)

        BeforeToolCallEvent.subscribe(guard)

        async def main():
            async with AsyncRun() as run:
                await run.call_tools([ToolCall("a", "t"), ToolCall("b", "t")], {}, parallel=2)

        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(main())
        assert ["a", "b"] == [str(error) for error in caught.value.exceptions]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_an_interrupt(self, kind):
        """An interrupt in one call cancels the others, ends the run, and is raised as itself."""
        error = kind("now")

        async def tool(n):
            if n == 1:
                await asyncio.sleep(0)
                raise error
            await asyncio.Event().wait()

        async def main():
            async with AsyncRun() as run:
                calls = [ToolCall(f"call_{n}", "tool", {"n": n}) for n in range(3)]
                await run.call_tools(calls, {"tool": tool}, parallel=3)

        with capture() as recorder, pytest.raises(kind) as caught:
            asyncio.run(main())
        assert error is caught.value is only(recorder, InferenceFailedEvent).error
        assert 3 == len(recorder.of(ToolCallFailedEvent))


class Waits:
    """Awaits a coroutine and does something when it waits for the k-th time."""

    def __init__(self, coroutine, strike, at):
        self.waits = coroutine.__await__()
        self.strike = strike
        self.at = set(at)
        self.count = 0

    def __await__(self):
        todo, value = self.waits.send, None
        while True:
            try:
                waited_for = todo(value)
            except StopIteration as stop:
                return stop.value
            if self.count in self.at and self.strike(self.waits):
                return None
            self.count += 1
            try:
                value, todo = (yield waited_for), self.waits.send
            except BaseException as error:
                value, todo = error, self.waits.throw


class TestStruck:
    """Cancelled or closed wherever it waits."""

    async def body(self):
        async with AsyncRun("sundae") as run:
            for _ in run.turns(limit=1):
                await run.call_model(answer, [])
                await run.call_tools([CALL], {"lookup": lookup})
                await run.call_tools([CALL, CALL], {"lookup": lookup}, parallel=2)
                async with run.tool_call(CALL) as t:
                    await asyncio.sleep(0)
                    t.set(1)
                async with run.step("s"):
                    await asyncio.sleep(0)

    def watch(self):
        async def handler(event):
            await asyncio.sleep(0)

        Event.subscribe(handler)
        AfterInvocationEvent.subscribe(handler)
        ApproveToolCallEvent.subscribe(handler)
        BeforeInvocationEvent.subscribe(handler)

        class Keeper(Hook):
            stateful = True

            # The bus tells of an async handler that is cancelled after the run, too.
            @on(Event, when=lambda event: not isinstance(event, HandlerFailedEvent))
            def keep(self, event):
                self.last = event

    def waits(self):
        """Return how often the body waits, undisturbed."""
        counting = Waits(self.body(), None, [])

        async def main():
            await counting

        asyncio.run(main())
        return counting.count

    def test_cancelled_at_every_await(self):
        """Cancelled wherever it waits, and once more right after: one terminal, an end for each start."""
        self.watch()
        waits = self.waits()
        assert 20 < waits

        async def main(at):
            task = asyncio.current_task()
            await Waits(self.body(), lambda _: not task.cancel(), at)

        for at in range(waits):
            for times in ([at], [at, at + 1], [at, at + 2, at + 3]):
                with capture() as recorder, pytest.raises(asyncio.CancelledError):
                    asyncio.run(main(times))
                terminals = [event for event in recorder.events if event.ends_run]
                assert 1 == len(terminals), at
                assert {2} >= span_counts(recorder), at
                assert 0 == _stateful.kept()

    def test_closed_at_every_await(self):
        """Closed wherever it waits: no coroutine ignores it, and the run has its end."""
        self.watch()

        async def main(at):
            await Waits(self.body(), lambda waits: waits.close() is None, [at])

        for at in range(self.waits()):
            with capture() as recorder:
                asyncio.run(main(at))
                gc.collect()
            assert 1 == len([event for event in recorder.events if event.ends_run]), at
            assert {2} >= span_counts(recorder), at

    def test_a_coroutine_that_is_dropped(self):
        """A run whose coroutine is dropped unfinished, with no loop left, fails without a warning."""

        async def body():
            async with AsyncRun() as run:
                await run.call_tools([CALL], {"lookup": waits})

        async def waits(order):
            await asyncio.Future()

        async def main():
            coroutine = body()
            coroutine.send(None)
            return coroutine

        with capture() as recorder:
            coroutine = asyncio.run(main())
            del coroutine
            gc.collect()
        assert ["InferenceStarted", "ToolCallStarted", "ToolCallFailed", "InferenceFailed"] == names(recorder)
        assert isinstance(only(recorder, InferenceFailedEvent).error, GeneratorExit)

    def test_parallel_tools_closed_after_their_loop(self):
        """Nor do parallel tools mind whose loop is closed by then."""

        async def body():
            async with AsyncRun() as run:
                await run.call_tools([CALL, CALL], {"lookup": lookup}, parallel=2)

        loop = asyncio.new_event_loop()
        coroutine = body()

        async def main():
            coroutine.send(None)

        with capture() as recorder:
            loop.run_until_complete(main())
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what happens here
            loop.close()
            coroutine.close()
            for task in tasks:
                task.get_coro().close()
        assert "InferenceFailed" == names(recorder)[-1]

    def test_cancelled_by_a_timeout(self):
        """A timeout around a run is a TimeoutError outside, and a cancelled run inside."""

        async def main():
            async with asyncio.timeout(0):
                async with AsyncRun() as run:
                    await run.call_model(lambda messages: asyncio.Event().wait(), [])

        with capture() as recorder, pytest.raises(TimeoutError):
            asyncio.run(main())
        assert isinstance(only(recorder, InferenceFailedEvent).error, asyncio.CancelledError)

    def test_cancelled_while_it_fails(self):
        """A cancellation that comes while a failed run ends is not lost."""
        started = []

        async def after(event):
            started.append(1)
            await asyncio.Event().wait()

        AfterInvocationEvent.subscribe(after)

        async def body():
            async with AsyncRun():
                raise ValueError("boom")

        async def main():
            task = asyncio.create_task(body())
            while not started:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with capture() as recorder:
            asyncio.run(main())
        assert "boom" == str(only(recorder, InferenceFailedEvent).error)

    def test_cancelled_while_it_is_refused(self):
        """A run that is cancelled while its gates judge is denied, and the scope restored."""

        async def guard(event):
            await asyncio.Event().wait()

        BeforeInvocationEvent.subscribe(guard)

        async def body():
            async with AsyncRun():
                raise AssertionError("entered")

        async def main():
            task = asyncio.create_task(body())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with capture() as recorder:
            asyncio.run(main())
        assert ["InferenceDenied"] == names(recorder)

    def test_an_async_generator_that_is_closed(self):
        """A run inside an async generator that is closed ends as failed."""

        async def loop():
            async with AsyncRun() as run:
                for turn in run.turns():
                    yield turn

        async def main():
            turns = loop()
            assert 1 == await turns.__anext__()
            await turns.aclose()

        with capture() as recorder:
            asyncio.run(main())
        assert ["InferenceStarted", "TurnStarted", "TurnCompleted", "InferenceFailed"] == names(recorder)
        assert isinstance(only(recorder, InferenceStartedEvent).agent, type(None))


def test_an_end_from_another_task_leaves_no_child_outside_its_parent():
    """What a tool's own task is telling is told before the step around it is closed."""
    ends, told, goes_on = [], asyncio.Event(), asyncio.Event()

    async def slow(event):
        if event.tool_call.id == "B":
            told.set()
            await goes_on.wait()
        else:
            goes_on.set()
            for _ in range(50):
                await asyncio.sleep(0)

    async def tool(which):
        if which == "A":
            await told.wait()
        else:
            await asyncio.Event().wait()
        return which

    async def body(run):
        with suppress(RunEndedError):
            async with run.step("both"):
                calls = [ToolCall(which, "tool", {"which": which}) for which in "AB"]
                await run.call_tools(calls, {"tool": tool}, parallel=2)

    async def main():
        run = await AsyncRun.begin("sundae")
        working = asyncio.ensure_future(body(run))
        while len(run._opened) < 3:
            await asyncio.sleep(0)
        await run.end()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working

    for event_class in (ToolCallCompletedEvent, ToolCallFailedEvent, StepFailedEvent):
        event_class.subscribe(lambda event: ends.append(type(event)), priority=1000)
    for event_class in (ToolCallCompletedEvent, ToolCallFailedEvent):
        event_class.subscribe(slow, priority=1)
    asyncio.run(main())
    assert [ToolCallFailedEvent, ToolCallCompletedEvent, StepFailedEvent] == ends
