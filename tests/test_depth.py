"""
Emitting without end: stopped in bounded time, reported once, and told from everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus import (
    EmitLoopError,
    Event,
    HandlerFailedEvent,
    Hook,
    ProtectedEvent,
    drain,
    on,
    writable,
)
from eventbus import _depth as depth
from eventbus import testing as kit
from eventbus.testing import capture, isolated

pytestmark = pytest.mark.exhausts_stack


class Ping(Event):
    n: int = 0


class Pong(Event):
    n: int = 0


class Third(Event):
    pass


class Finished(Event):
    ends_run = True


class BeforeRefund(ProtectedEvent):
    amount: int = writable(default=0)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Check that no trip outlives its chain."""
    yield
    assert {} == depth.trips


def loops(recorder):
    """Return the emit-loop errors reported, and check that nothing else was."""
    assert [EmitLoopError] * len(recorder) == [type(e.error) for e in recorder]
    return [e.error for e in recorder]


def ping_pong(times=1, when=None):
    """Let two handlers emit to each other, several times each; return the list of their calls."""
    calls = []

    def pong(event):
        calls.append("pong")
        for _ in range(times):
            Ping.emit()

    def ping(event):
        calls.append("ping")
        for _ in range(times):
            Pong.emit()

    Ping.subscribe(ping, when=when)
    Pong.subscribe(pong)
    return calls


def deeper(frames, function):
    """Call function with so many frames more on the stack."""
    return function() if frames <= 0 else deeper(frames - 1, function)


def frames_left():
    """Return how many more frames the caller could have on its stack."""
    frame, count = sys._getframe(1), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return sys.getrecursionlimit() - count


def drive(coroutine):
    """Run a coroutine that does not suspend, without the frames of an event loop."""
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


class TestPlain:
    """Emits that nest on the stack."""

    @pytest.mark.parametrize("times", [1, 2, 10])
    def test_ping_pong_ends_with_one_error(self, times):
        """Two handlers that emit to each other are stopped once; work does not double."""
        calls = ping_pong(times)
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert 1 == len(loops(recorder))
        assert 32 <= len(calls) <= sys.getrecursionlimit()

    def test_the_error_shows_the_chain_and_the_fix(self):
        """Events and handlers at both ends of the chain, how deep it was, and what to do."""

        class Table(Hook):
            @on(Ping)
            def ping(self):
                Pong.emit()

            @on(Pong)
            def pong(self):
                Ping.emit()

        with capture(HandlerFailedEvent) as recorder:
            Ping.emit(correlation_id="c1")
        (failed,) = recorder
        text = str(failed.error)
        assert text.startswith("Handlers emit without end; stopped ")
        assert "Ping -> Table.ping -> Pong -> Table.pong -> Ping -> Table.ping" in text
        assert " more ... -> " in text
        assert text.endswith("or subscribe it with a `when=` that ends the chain.")
        assert ("Table", "c1") == (failed.hook, failed.correlation_id)
        assert failed.handler in ("Table.ping", "Table.pong")

    @pytest.mark.parametrize("times", [1, 3])
    def test_an_event_that_leads_to_itself(self, times):
        """The shortest chain is stopped as well."""
        calls = []

        @Ping.subscribe
        def again(event):
            calls.append(1)
            for _ in range(times):
                Ping.emit()

        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert 1 == len(loops(recorder))
        assert len(calls) <= sys.getrecursionlimit()

    def test_three_way(self):
        """A chain of three events, each handler emitting both others."""
        events = [Ping, Pong, Third]
        for index, event in enumerate(events):
            event.subscribe(lambda e, i=index: (events[i - 1].emit(), events[i - 2].emit()))
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert 1 == len(loops(recorder))

    def test_the_other_handlers_run(self):
        """Stopping a chain costs the outermost event none of its handlers."""
        seen = []
        ping_pong()
        Ping.subscribe(lambda e: seen.append(e.n), priority=400)
        Ping.emit(n=7)
        assert 7 == seen[-1]

    def test_emits_after_it_are_delivered(self):
        """Once the outermost emit has returned everything is as before."""
        seen = []
        with capture(HandlerFailedEvent) as recorder:
            subscription = Ping.subscribe(lambda e: Ping.emit())
            Ping.emit()
            subscription.cancel()
            Ping.subscribe(lambda e: (Pong.emit(), seen.append(e.n)))
            Pong.subscribe(lambda e: seen.append("pong"))
            Ping.emit(n=1)
        assert ["pong", 1] == seen
        assert 1 == len(recorder)

    def test_nested_emits_are_refused_until_the_outermost_returns(self):
        """Under a chain that was cut the outermost handlers' own further emits are refused too."""
        seen = []
        ping_pong()
        Ping.subscribe(lambda e: Third.emit(), priority=400, when=lambda e: e.n == 1)
        Third.subscribe(lambda e: seen.append("third"))
        Ping.emit(n=1)
        assert [] == seen
        Third.emit()
        assert ["third"] == seen

    def test_what_ends_a_run_is_let_through(self):
        """An event with `ends_run` is delivered under a chain that was cut."""
        seen = []
        ping_pong()
        Ping.subscribe(lambda e: Finished.emit(), priority=400, when=lambda e: e.n == 1)
        Finished.subscribe(lambda e: seen.append("finished"))
        Ping.emit(n=1)
        assert ["finished"] == seen

    @pytest.mark.parametrize("times", [1, 2])
    def test_what_ends_a_run_can_be_the_chain(self, times):
        """An event with `ends_run` that leads to itself is stopped all the same."""
        calls = []

        @Finished.subscribe
        def again(event):
            calls.append(1)
            for _ in range(times):
                Finished.emit()

        with capture(HandlerFailedEvent) as recorder:
            Finished.emit()
        assert 1 == len(loops(recorder))
        assert len(calls) <= sys.getrecursionlimit()

    def test_what_ends_a_run_can_go_on_as_a_chain(self):
        """An event with `ends_run` that leads to itself is let through once at each place."""
        calls = []
        ping_pong()
        Ping.subscribe(lambda e: (Finished.emit(), Finished.emit()), priority=400, when=lambda e: e.n == 1)

        @Finished.subscribe
        def again(event):
            calls.append(1)
            Finished.emit()
            Finished.emit()

        with capture(HandlerFailedEvent) as recorder:
            Ping.emit(n=1)
        assert 2 == len(calls)
        assert 1 == len(loops(recorder))

    def test_failures_below_it_are_reported(self):
        """Under a chain that was cut, other failures are reported as ever."""
        ping_pong()
        Ping.subscribe(lambda e: 1 / 0, priority=400, when=lambda e: e.n == 1)
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit(n=1)
        assert [ZeroDivisionError, EmitLoopError] == [type(e.error) for e in recorder]

    def test_strict_mode_raises_it(self):
        """In strict mode the outermost emit raises it, once."""
        ping_pong(2)
        with kit.strict(), pytest.raises(EmitLoopError, match="without end"):
            Ping.emit()

    def test_handlers_that_go_deep(self):
        """Handlers that hold a large part of the stack are stopped by fewer levels."""

        @Ping.subscribe
        def again(event):
            deeper(150, Ping.emit)

        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert 1 == len(loops(recorder))

    @pytest.mark.parametrize("frames", [300, 600, 800, 900])
    @pytest.mark.parametrize("times", [1, 2, 10])
    def test_in_an_app_that_is_deep_itself(self, frames, times):
        """However little of the stack the app has left, the work stays bounded and the error is reported."""
        calls = ping_pong(times)
        with capture(HandlerFailedEvent) as recorder:
            deeper(frames, Ping.emit)
        assert len(calls) <= sys.getrecursionlimit()
        assert 1 == len([e for e in recorder if isinstance(e.error, EmitLoopError)])

    @pytest.mark.parametrize("left", range(12, 80, 3))
    def test_near_the_end_of_the_stack(self, left):
        """In the last frames of the stack emits may fail, but neither hang nor leave anything behind."""
        calls = ping_pong(2)

        try:
            deeper(frames_left() - left, Ping.emit)
        except RecursionError:
            calls.append("no room for the emit itself")
        assert len(calls) < 2_000
        Third.subscribe(lambda e: None)
        Third.emit()

    @pytest.mark.parametrize("event", [Ping, BeforeRefund])
    def test_a_handler_without_room(self, event):
        """Wherever the stack ends, in a handler or its report, observers fail open and gates closed."""

        def exhausted(event):
            raise RecursionError

        event.subscribe(exhausted)
        Third.subscribe(lambda e: None)
        assert event.has_receivers()
        outcomes = []
        for left in range(2, 100):
            awaited = event.aemit()
            for emit in (event.emit, lambda: drive(awaited)):
                try:
                    deeper(frames_left() - left, emit)
                except RecursionError:
                    outcomes.append("raised")
                else:
                    outcomes.append("passed")
                Third.emit()
                assert {} == depth.trips
            awaited.close()
        assert "raised" == outcomes[0]
        assert ("passed" if event is Ping else "raised") == outcomes[-1]
        for kind in (outcomes[::2], outcomes[1::2]):
            assert sorted(kind, reverse=True) == kind

    def test_a_handler_that_swallows_everything(self):
        """A chain whose handlers catch what their emits raise is stopped too."""
        calls = []

        @Ping.subscribe
        def again(event):
            calls.append(1)
            try:
                Ping.emit()
            except Exception:
                calls.append("caught")

        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert len(calls) <= 2 * sys.getrecursionlimit()
        assert len(recorder) <= 1

    def test_in_threads_at_once(self):
        """Each thread's chain is stopped and reported by itself."""
        ping_pong(3)
        with capture(HandlerFailedEvent) as recorder:
            start = threading.Barrier(4)

            def work():
                start.wait()
                Ping.emit()

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert 4 == len(loops(recorder))

    def test_another_thread_s_emits_are_not_refused(self):
        """While one thread's chain is cut, nested emits of another are delivered."""
        seen = []
        cut, done = threading.Event(), threading.Event()

        def wait(event):
            cut.set()
            done.wait(10)

        ping_pong()
        Ping.subscribe(wait, priority=400, when=lambda e: e.n == 1)
        Third.subscribe(lambda e: Finished.emit())
        Finished.subscribe(lambda e: seen.append("nested"))
        thread = threading.Thread(target=lambda: Ping.emit(n=1))
        thread.start()
        cut.wait(10)
        Third.emit()
        done.set()
        thread.join()
        assert ["nested"] == seen

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_leaving_by_a_base_exception(self, error):
        """A chain that ends in KeyboardInterrupt leaves nothing, and the chain is reported."""
        ping_pong()

        def leave(event):
            raise error

        Ping.subscribe(leave, priority=400, when=lambda e: e.n == 1)
        with capture(HandlerFailedEvent) as recorder, pytest.raises(error):
            Ping.emit(n=1)
        assert 1 == len(loops(recorder))


class TestOrdinary:
    """What only looks like it."""

    @pytest.mark.parametrize("frames", [0, 300, 800])
    @pytest.mark.parametrize("nested", [0, 1, 5, 20])
    def test_a_recursion_of_a_handler_s_own(self, nested, frames):
        """A handler that recurses without end is an ordinary failure, however its emit was nested."""
        seen = []

        @Ping.subscribe
        def recurse(event):
            if event.n < nested:
                Ping.emit(n=event.n + 1)
            else:
                recurse(event)

        Ping.subscribe(lambda e: seen.append(e.n))
        with capture(HandlerFailedEvent) as recorder:
            deeper(frames if nested < 20 else 0, Ping.emit)
        assert [RecursionError] == [type(e.error) for e in recorder]
        assert list(range(nested, -1, -1)) == seen

    def test_many_recursions_under_one_emit(self):
        """A handler that recurses for each of many nested emits fails for each, and refuses nothing."""

        @Ping.subscribe
        def outer(event):
            for _ in range(10):
                Pong.emit()

        @Pong.subscribe
        def recurse(event):
            recurse(event)

        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert [RecursionError] * 10 == [type(e.error) for e in recorder]

    def test_thirty_levels_are_no_loop(self):
        """A chain that ends by itself is delivered to its end."""
        seen = []

        @Ping.subscribe
        def count(event):
            seen.append(event.n)
            if event.n < 30:
                Ping.emit(n=event.n + 1)

        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert list(range(31)) == seen
        assert 0 == len(recorder)

    def test_an_error_of_the_same_class_raised_by_a_handler(self):
        """An EmitLoopError that is not the bus's own is a failure as any."""
        ping_pong()

        def imitate(event):
            raise EmitLoopError("mine")

        Ping.subscribe(imitate, priority=400, when=lambda e: e.n == 1)
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit(n=1)
        assert "mine" in [str(e.error) for e in recorder]
        assert 2 == len(loops(recorder))

    @settings(max_examples=30)
    @given(fan=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def test_any_finite_tree_is_delivered_in_full(self, fan):
        """Nested emits that end by themselves all arrive, in the order of a walk through the tree."""
        with isolated():
            seen = []

            @Ping.subscribe
            def grow(event):
                seen.append(event.n)
                if event.n < len(fan):
                    for _ in range(fan[event.n]):
                        Ping.emit(n=event.n + 1)

            def walk(n):
                yield n
                if n < len(fan):
                    for _ in range(fan[n]):
                        yield from walk(n + 1)

            Ping.emit()
            assert list(walk(0)) == seen


class TestGates:
    """A refused gate raises it."""

    def test_a_chain_of_gates(self):
        """A gate that emits itself without end raises the error, out of the outermost emit as well."""

        @BeforeRefund.subscribe
        def again(event):
            BeforeRefund.emit()

        with pytest.raises(EmitLoopError, match="without end"):
            BeforeRefund.emit()

    def test_a_gate_under_a_chain_that_was_cut(self):
        """The gate does not let through unjudged: it raises; the chain is still reported once."""
        seen = []
        ping_pong()

        def ask(event):
            with pytest.raises(EmitLoopError, match="without end"):
                BeforeRefund.emit()
            with pytest.raises(EmitLoopError, match="without end"):
                BeforeRefund.emit()
            seen.append("refused")

        Ping.subscribe(ask, priority=400, when=lambda e: e.n == 1)
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit(n=1)
        assert ["refused"] == seen
        assert 1 == len(loops(recorder))

    def test_gate_and_observer_in_turns(self):
        """A chain through gates and observers is reported once."""
        Ping.subscribe(lambda e: BeforeRefund.emit())
        BeforeRefund.subscribe(lambda e: Ping.emit())
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
        assert 1 == len({id(e.error) for e in recorder})
        assert 1 == len([e for e in recorder if e.hook is None and isinstance(e.event, Event)])

    def test_a_failure_on_another_thread_is_its_own_matter(self):
        """While a chain is stopped here, a gate that fails there is recorded and reported as ever."""
        ping_pong()
        raised = []

        def there():
            try:
                BeforeRefund.emit()
            except ZeroDivisionError as error:
                raised.append(error)

        def start(event):
            thread = threading.Thread(target=there)
            thread.start()
            thread.join()

        BeforeRefund.subscribe(lambda e: 1 / 0)
        Ping.subscribe(start, priority=400, when=lambda e: e.n == 1)
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit(n=1)
        assert [ZeroDivisionError, EmitLoopError] == [type(e.error) for e in recorder]
        assert raised == [recorder[0].error]
        assert raised == [edit.new for edit in recorder[0].event.edits]


class TestAwaited:
    """Levels follow `aemit`, also into tasks of its handlers."""

    def make(self, spread, times=1):
        calls = []

        async def again(event):
            calls.append(1)
            await spread(*[Ping.aemit() for _ in range(times)])

        Ping.subscribe(again)
        return calls

    @pytest.mark.parametrize("times", [1, 2, 10])
    def test_awaited_in_turn(self, times):
        """Handlers that await the next emit are stopped."""

        async def spread(*coroutines):
            for coroutine in coroutines:
                await coroutine

        calls = self.make(spread, times)
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Ping.aemit())
        assert 1 == len(loops(recorder))
        assert len(calls) <= 100

    def test_gathered(self):
        """A chain through `asyncio.gather`, whose tasks have stacks of their own, is stopped."""
        calls = self.make(asyncio.gather)
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Ping.aemit())
        assert 1 == len(loops(recorder))
        assert 32 <= len(calls) <= 100

    @pytest.mark.parametrize("times", [2, 10])
    def test_gathered_several_at_a_time(self, times, monkeypatch):
        """Handlers that gather several emits each go on in breadth; they are stopped as well."""
        monkeypatch.setattr(depth, "MAX_RECURSIONS", 500)
        calls = self.make(asyncio.gather, times)
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Ping.aemit())
        assert 1 == len(loops(recorder))
        assert len(calls) <= 4 * depth.MAX_RECURSIONS

    def test_a_crowd_is_no_recursion(self):
        """Any number of emits may run side by side below one."""
        calls = []

        async def inner(event):
            await asyncio.sleep(0)
            calls.append(1)

        async def outer(event):
            await asyncio.gather(*[Pong.aemit() for _ in range(depth.MAX_RECURSIONS + 1)])

        Ping.subscribe(outer)
        Pong.subscribe(inner)
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Ping.aemit())
        assert depth.MAX_RECURSIONS + 1 == len(calls)
        assert 0 == len(recorder)

    def test_the_chain_names_the_handlers(self):
        """The error of awaited emits shows events and handlers too."""

        class Table(Hook):
            @on(Ping)
            async def ping(self):
                await asyncio.gather(Pong.aemit())

            @on(Pong)
            async def pong(self):
                await asyncio.create_task(Ping.aemit())

        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Ping.aemit())
        assert "Ping -> Table.ping -> Pong -> Table.pong -> " in str(recorder[0].error)

    def test_plain_emits_below_are_refused_and_ends_let_through(self):
        """Under an awaited chain that was cut, plain emits are refused, except what ends a run."""
        seen = []

        async def again(event):
            await asyncio.gather(Ping.aemit())
            Third.emit()
            Finished.emit()

        Ping.subscribe(again)
        Third.subscribe(lambda e: seen.append("third"))
        Finished.subscribe(lambda e: seen.append("finished"))
        asyncio.run(Ping.aemit())
        assert {"finished"} == set(seen)

    def test_what_ends_a_run_can_be_the_awaited_chain(self, monkeypatch):
        """An awaited event with `ends_run` that leads to itself is stopped."""
        monkeypatch.setattr(depth, "MAX_RECURSIONS", 500)
        calls = []

        async def again(event):
            calls.append(1)
            await asyncio.gather(Finished.aemit(), Finished.aemit())

        Finished.subscribe(again)
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Finished.aemit())
        assert 1 == len(loops(recorder))
        assert len(calls) <= 4 * depth.MAX_RECURSIONS

    def test_what_ends_a_run_can_go_on_as_an_awaited_chain(self):
        """An awaited event with `ends_run` that is let through, and leads to itself, is let through once."""
        calls = []

        async def again(event):
            await asyncio.gather(Ping.aemit())
            if event.n == 1:
                await Finished.aemit()

        async def finish(event):
            calls.append(1)
            await Finished.aemit()

        Ping.subscribe(again)
        Finished.subscribe(finish)
        asyncio.run(Ping.aemit(n=1))
        assert 1 == len(calls)

    def test_plain_emits_nested_without_end_below_an_awaited_one(self):
        """The awaited emit is the outermost, and reports it."""
        ping_pong(2)

        async def start(event):
            Ping.emit()
            await asyncio.sleep(0)
            Ping.emit()

        Third.subscribe(start)
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Third.aemit())
        assert 1 == len(loops(recorder))

    def test_tasks_that_nobody_waits_for_are_not_nested(self):
        """A chain of tasks, each of which ends before the next emits, goes on as long as it likes."""
        calls = []
        tasks = set()

        async def main():
            done = asyncio.Event()

            async def again(event):
                calls.append(event.n)
                if event.n < 300:
                    task = asyncio.create_task(Ping.aemit(n=event.n + 1))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    done.set()

            Ping.subscribe(again)
            await Ping.aemit()
            await done.wait()
            await asyncio.gather(*tasks)

        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(main())
        assert list(range(301)) == calls
        assert 0 == len(recorder)

    def test_tasks_that_overlap_with_the_next_only(self):
        """Each emit runs until the next has begun: only those that still run count as levels."""
        calls = []
        tasks = []

        async def again(event):
            calls.append(event.n)
            begun = asyncio.Event()
            if event.n:
                event["begun"].set()
            if event.n < 300:
                tasks.append(asyncio.create_task(Ping.aemit(n=event.n + 1, begun=begun)))
                await begun.wait()

        async def main():
            Ping.subscribe(again)
            await Ping.aemit()
            while tasks:
                await tasks.pop()

        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(main())
        assert list(range(301)) == calls
        assert 0 == len(recorder)

    def test_a_task_whose_emit_is_over_is_nested_in_what_still_runs(self):
        """A task started by a handler that is done counts for the emit around it, if that one waits."""
        levels = []
        tasks = []

        async def inner(event):
            tasks.append(asyncio.create_task(Third.aemit()))

        async def outer(event):
            await Pong.aemit()
            await tasks.pop()

        async def look(event):
            levels.append(len(list(depth._active_levels())))

        Ping.subscribe(outer)
        Pong.subscribe(inner)
        Third.subscribe(look)
        asyncio.run(Ping.aemit())
        assert [2] == levels

    def test_a_scheduled_handler_starts_anew(self):
        """A plain emit's async handlers are no level of it: such a chain is never stopped."""
        calls = []

        async def again(event):
            calls.append(event.n)
            if event.n < 500:
                Ping.emit(n=event.n + 1)

        Ping.subscribe(again)
        with capture(HandlerFailedEvent) as recorder:
            Ping.emit()
            assert 0 == drain(10)
        assert list(range(501)) == calls
        assert 0 == len(recorder)

    def test_a_scheduled_handler_of_an_awaited_emit_starts_anew(self):
        """Levels do not follow a plain emit into the handlers that it schedules."""
        levels = []

        async def scheduled(event):
            levels.append(len(list(depth._active_levels())))

        Pong.subscribe(scheduled)
        Ping.subscribe(lambda e: Pong.emit())

        async def main():
            await Ping.aemit()
            from eventbus import adrain

            assert 0 == await adrain(10)

        asyncio.run(main())
        assert [0] == levels

    def test_an_awaited_emit_keeps_no_payload_after_its_end(self):
        """A task that outlives the emit which started it does not keep that event."""
        import gc
        import weakref

        class Big:
            pass

        references = []
        go_on = []

        async def start(event):
            async def linger():
                await go_on[0].wait()

            tasks.append(asyncio.create_task(linger()))

        tasks = []

        async def main():
            go_on.append(asyncio.Event())
            Ping.subscribe(start)
            big = Big()
            references.append(weakref.ref(big))
            await Ping.aemit(big=big)
            del big
            gc.collect()
            assert None is references[0]()
            go_on[0].set()
            await tasks[0]

        asyncio.run(main())

    def test_an_awaited_emit_closed_from_another_context(self):
        """An abandoned `aemit` that is closed elsewhere leaves the levels there alone."""

        async def wait(event):
            await asyncio.sleep(0)

        Ping.subscribe(wait)
        coroutine = Ping.aemit()
        contextvars.copy_context().run(coroutine.send, None)
        coroutine.close()
        assert None is depth.level_var.get()

    def test_strict_mode_raises_it(self):
        """In strict mode the outermost `aemit` raises it."""
        self.make(asyncio.gather)
        with kit.strict(), pytest.raises(EmitLoopError):
            asyncio.run(Ping.aemit())


class TestMarks:
    """What a thread leaves for a look with more room."""

    def overflow(self):
        """Return a RecursionError raised in no delivery at all."""

        def recurse():
            recurse()

        try:
            recurse()
        except RecursionError as error:
            return error

    def frame_that_is_gone(self):
        return sys._getframe()

    def test_a_mark_of_a_chain_that_is_over_is_taken_away(self):
        """Whoever emits next removes it, and reports nothing."""
        seen = []
        Ping.subscribe(lambda e: seen.append("ping"))
        for error in (self.overflow(), RecursionError("never raised")):
            depth.trips[depth.OVERFLOW] = error
            Ping.emit()
            assert {} == depth.trips
        assert ["ping", "ping"] == seen

    def test_a_mark_of_another_thread_is_left_to_it(self):
        """While that thread is in its emit, nobody else takes its mark away."""
        marked, go_on = threading.Event(), threading.Event()

        def mark(event):
            error = self.overflow()
            try:
                raise error.with_traceback(None)
            except RecursionError as caught:
                depth.trips[depth.OVERFLOW] = caught
            marked.set()
            go_on.wait(10)

        Ping.subscribe(mark)
        thread = threading.Thread(target=Ping.emit)
        thread.start()
        marked.wait(10)
        Pong.subscribe(lambda e: None)
        Pong.emit()
        assert [depth.OVERFLOW] == list(depth.trips)
        go_on.set()
        thread.join()

    def test_a_mark_that_another_thread_has_written_over(self):
        """A thread looks into its own error, and leaves the mark that is not of it."""
        mark = depth.trips[depth.OVERFLOW] = self.overflow()
        assert not depth.is_loop(self.overflow())
        assert mark is depth.trips.pop(depth.OVERFLOW)

    def test_a_trip_whose_emit_is_gone_is_told_at_the_thread_s_next(self):
        """Where there was no room even to end a chain, the thread's next emit does it."""
        trip = depth.Trip(self.frame_that_is_gone())
        event = Ping(correlation_id="c")
        trip.cut([(event, None)])
        depth.trips[threading.get_ident()] = trip
        seen = []
        Pong.subscribe(lambda e: seen.append("pong"))
        with capture(HandlerFailedEvent) as recorder:
            Pong.emit()
        assert ["pong"] == seen
        assert 1 == len(loops(recorder))

    def test_a_trip_without_an_error_says_nothing(self):
        """One that only counted is dropped silently."""
        depth.trips[threading.get_ident()] = depth.Trip(self.frame_that_is_gone())
        Pong.subscribe(lambda e: None)
        with capture(HandlerFailedEvent) as recorder:
            Pong.emit()
        assert 0 == len(recorder)


def test_a_higher_recursion_limit():
    """With a limit of a hundred thousand frames the chain is deeper, and is stopped as well."""
    program = """
import sys
from eventbus import *
sys.setrecursionlimit(100_000)
class Ping(Event): pass
calls = []
Ping.subscribe(lambda e: (calls.append(1), Ping.emit(), Ping.emit()))
HandlerFailedEvent.subscribe(lambda e: print(type(e.error).__name__))
configure(log=None)
Ping.emit()
assert len(calls) < 100_000
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ("EmitLoopError\n", "", 0) == (done.stdout, done.stderr, done.returncode)
