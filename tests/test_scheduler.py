"""
Async handlers of a plain emit: which loop, which order, how one waits for them, and what is lost with a loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus import (
    Event,
    EventLogger,
    HandlerFailedEvent,
    Hook,
    LoopClosedError,
    PendingLimitError,
    ProtectedEvent,
    adrain,
    configure,
    correlation,
    current_correlation_id,
    drain,
    on,
    stats,
    writable,
)
from eventbus import _scheduler as module
from eventbus import testing as kit
from eventbus._scheduler import scheduler
from eventbus._stateful import kept
from eventbus.testing import capture, isolated


class Placed(Event):
    number: int = 0


class Shipped(Event):
    number: int = 0


class Finished(Event):
    ends_run = True


class BeforeRefund(ProtectedEvent):
    amount: int = writable(default=0)


LIMIT = 10
"""Seconds that a drain may take before a test has failed."""


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Check that a test leaves no delivery, chain, loop, waiter or error behind."""
    yield
    assert 0 == drain(LIMIT)
    assert ({}, {}, [], [], []) == (
        scheduler._pending,
        scheduler._chains,
        scheduler._waiters,
        list(scheduler._errors),
        scheduler._draining,
    )
    assert {} == dict(scheduler._loops)


def recording(seen, steps=1):
    """Return an async handler that notes the numbers of its events after some steps of the loop."""

    async def handler(event):
        for _ in range(steps):
            await asyncio.sleep(0)
        seen.append(event.number)

    return handler


def gated():
    """Return an async handler that waits until the event returned with it is set, from any thread."""
    go_on = threading.Event()

    async def handler(event):
        while not go_on.is_set():
            await asyncio.sleep(0.001)

    return handler, go_on


def python(program, *, timeout=60):
    """Run a program with all warnings as errors; return its stdout and stderr."""
    code = "import asyncio, atexit, gc, logging, os, sys, threading\nfrom eventbus import *\n"
    # On a busy machine asyncio says how long it has waited; what it says of mistakes is an error.
    code += "logging.getLogger('asyncio').setLevel(logging.ERROR)\n"
    code += "class Placed(Event):\n    number: int = 0\n" + textwrap.dedent(program)
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert 0 == done.returncode, done.stderr
    return done.stdout, done.stderr


class TestWithoutALoop:
    """Where no loop runs, handlers run on one background loop."""

    def test_a_thousand_emits_survive_the_garbage_collector(self):
        """Every one of a thousand deliveries is made exactly once."""
        seen = []
        Placed.subscribe(recording(seen, 3))
        for number in range(1000):
            Placed.emit(number=number)
        gc.collect()
        assert 0 == drain(LIMIT)
        assert list(range(1000)) == sorted(seen)

    def test_one_background_thread(self):
        """All threads' handlers run on the one thread, started at first need; emit does not wait for them."""
        threads = set()

        async def handler(event):
            threads.add((threading.current_thread().name, threading.get_ident()))

        Placed.subscribe(handler)
        emitters = [threading.Thread(target=Placed.emit) for _ in range(5)]
        for emitter in emitters:
            emitter.start()
        for emitter in emitters:
            emitter.join()
        assert 0 == drain(LIMIT)
        ((name, ident),) = threads
        assert "eventbus" == name
        assert threading.get_ident() != ident

    def test_it_sees_the_emitter_s_context(self):
        """Context variables and the correlation id are those of the emit."""
        variable = contextvars.ContextVar("variable", default="none")
        seen = []

        async def handler(event):
            await asyncio.sleep(0)
            seen.append((variable.get(), current_correlation_id()))
            variable.set("changed")

        Placed.subscribe(handler)
        for value in ("a", "b"):
            variable.set(value)
            with correlation(value):
                Placed.emit()
        assert 0 == drain(LIMIT)
        assert [("a", "a"), ("b", "b")] == sorted(seen)
        assert "b" == variable.get()

    def test_each_of_one_run_sees_its_own_emitter_s_context(self):
        """Also one that waited behind an earlier one of its run, which was emitted in another context."""
        variable = contextvars.ContextVar("variable", default="none")
        seen = []

        async def handler(event):
            await asyncio.sleep(0)
            seen.append((event.number, variable.get(), current_correlation_id()))

        Placed.subscribe(handler)
        with correlation("a"):
            for number, value in enumerate("xyz"):
                variable.set(value)
                Placed.emit(number=number)
        assert 0 == drain(LIMIT)
        assert [(0, "x", "a"), (1, "y", "a"), (2, "z", "a")] == seen

    def test_an_explicit_id_is_what_it_sees(self):
        """An explicit correlation id wins over the ambient one, in the handler's own emits too."""
        seen = []

        async def handler(event):
            await asyncio.sleep(0)
            Shipped.emit()

        Placed.subscribe(handler)
        Shipped.subscribe(lambda e: seen.append(e.correlation_id))
        with correlation("ambient"):
            Placed.emit(correlation_id="explicit")
        assert 0 == drain(LIMIT)
        assert ["explicit"] == seen

    def test_what_a_handler_emits_is_waited_for(self):
        """`drain` waits for what the handlers it waits for have scheduled."""
        seen = []

        async def handler(event):
            await asyncio.sleep(0)
            seen.append(event.number)
            if event.number:
                Placed.emit(number=event.number - 1)

        Placed.subscribe(handler)
        Placed.emit(number=20)
        assert 0 == drain(LIMIT)
        assert list(range(20, -1, -1)) == seen

    def test_sync_and_async_each_get_it_once(self):
        """With both kinds on one event each gets each event exactly once."""
        sync, later = [], []
        Placed.subscribe(lambda e: sync.append(e.number))
        Placed.subscribe(recording(later))
        for number in range(50):
            Placed.emit(number=number)
        assert list(range(50)) == sync
        assert 0 == drain(LIMIT)
        assert list(range(50)) == sorted(later)

    def test_a_failure_is_reported_in_the_emitter_s_context(self):
        """The report carries the run, and is a HandlerFailedEvent as any."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            async def audit(self):
                await asyncio.sleep(0)
                raise ValueError

        HandlerFailedEvent.subscribe(lambda e: seen.append(current_correlation_id()))
        with capture(HandlerFailedEvent) as recorder, correlation("a"):
            Placed.emit()
            assert 0 == drain(LIMIT)
        assert [("Audit", "Audit.audit", "a")] == [(e.hook, e.handler, e.correlation_id) for e in recorder]
        assert ["a"] == seen

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException])
    def test_what_is_no_exception_comes_out_of_the_drain(self, error):
        """It is not swallowed, and costs the other handlers nothing."""
        seen = []
        raised = error("out")

        async def handler(event):
            await asyncio.sleep(0)
            raise raised

        Placed.subscribe(handler)
        Placed.subscribe(recording(seen, 5))
        before = stats()["dropped"]
        for number in range(3):
            Placed.emit(number=number)
        for _ in range(3):
            with pytest.raises(error) as caught:
                while True:
                    assert 0 == drain(LIMIT)
            assert raised is caught.value
        assert [0, 1, 2] == sorted(seen)
        assert before == stats()["dropped"]

    def test_a_cancelled_handler_is_reported(self):
        """A handler that cancels itself was not carried out: it is counted and told."""

        async def handler(event):
            raise asyncio.CancelledError

        Placed.subscribe(handler)
        before = stats()["dropped"]
        with capture(HandlerFailedEvent) as recorder:
            Placed.emit()
            assert 0 == drain(LIMIT)
        assert [LoopClosedError] == [type(e.error) for e in recorder]
        assert 1 == stats()["dropped"] - before

    def test_what_is_awaitable_but_no_coroutine(self):
        """An object with `__await__` is awaited like a coroutine."""
        seen = []

        class Awaitable:
            def __await__(self):
                yield from asyncio.sleep(0).__await__()
                seen.append("awaited")

        Placed.subscribe(lambda e: Awaitable())
        Placed.emit()
        assert 0 == drain(LIMIT)
        assert ["awaited"] == seen


class TestOrder:
    """For one handler and one run, one after another in the order of the events."""

    def test_one_after_another(self):
        """The next delivery of a handler and run begins when the one before has ended."""
        seen = []

        async def handler(event):
            seen.append(("begins", event.number))
            for _ in range(5 - event.number):
                await asyncio.sleep(0)
            seen.append(("ends", event.number))

        Placed.subscribe(handler)
        with correlation():
            for number in range(5):
                Placed.emit(number=number)
        assert 0 == drain(LIMIT)
        assert [(what, n) for n in range(5) for what in ("begins", "ends")] == seen

    def test_an_awaited_emit_comes_after_the_plain_ones_before_it(self):
        """No handler sees the awaited end of a run before its scheduled start."""
        seen = []

        async def handler(event):
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append(type(event).__name__)

        async def main():
            with correlation():
                Placed.emit()
                Shipped.emit()
                await Finished.aemit()

        for event_class in (Placed, Shipped, Finished):
            event_class.subscribe(handler)
        asyncio.run(main())
        assert ["Placed", "Shipped", "Finished"] == seen

    def test_an_awaited_emit_waits_for_no_other_run(self):
        """What is scheduled for another run is none of its business."""
        seen, others = [], asyncio.Event()

        async def handler(event):
            if event.number == 1:
                await others.wait()
            seen.append(event.number)

        async def main():
            Placed.emit(number=1, correlation_id="one")
            await Placed.aemit(number=2, correlation_id="two")
            others.set()
            assert 0 == await adrain(LIMIT)

        Placed.subscribe(handler)
        asyncio.run(main())
        assert [2, 1] == seen

    def test_a_scheduled_handler_that_awaits_an_emit_does_not_wait_for_itself(self):
        """An emit that a handler awaits is delivered before the handler ends, to the handler itself too."""
        seen = []

        async def handler(event):
            if event.number < 3:
                await Placed.aemit(number=event.number + 1)
            seen.append(event.number)

        async def main():
            with correlation():
                Placed.emit(number=1)
                assert 0 == await adrain(LIMIT)

        Placed.subscribe(handler)
        asyncio.run(main())
        assert [3, 2, 1] == seen

    def test_an_awaited_handler_that_awaits_an_emit_does_not_wait_for_what_waits_for_it(self):
        """An emit that an awaited handler awaits is delivered at once, whatever is scheduled before it."""
        seen, others = [], asyncio.Event()

        async def handler(event):
            if event.number == 1:
                await others.wait()
            seen.append(event.number)

        async def outer(event):
            await Placed.aemit(number=2)
            others.set()

        async def main():
            with correlation():
                Placed.emit(number=1)
                await asyncio.wait_for(Shipped.aemit(), LIMIT)
                assert 0 == await adrain(LIMIT)

        Placed.subscribe(handler)
        Shipped.subscribe(outer)
        asyncio.run(main())
        assert [2, 1] == seen

    def test_an_awaited_emit_that_is_cancelled_while_it_waits_leaves_nothing(self):
        """The handler's coroutine is closed, and what was scheduled before goes on."""
        seen, others = [], asyncio.Event()

        async def handler(event):
            await others.wait()
            seen.append(event.number)

        async def main():
            with correlation():
                Placed.emit(number=1)
                task = asyncio.create_task(Placed.aemit(number=2))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                others.set()
                assert 0 == await adrain(LIMIT)

        Placed.subscribe(handler)
        asyncio.run(main())
        gc.collect()
        assert [1] == seen

    def test_handlers_of_a_stateful_instance_too(self):
        """All async handlers of one stateful instance follow one another."""
        seen = []

        class Table(Hook):
            stateful = True

            @on(Placed)
            async def start(self):
                for _ in range(5):
                    await asyncio.sleep(0)
                seen.append("start")

            @on(Shipped)
            async def middle(self):
                seen.append("middle")

            @on(Finished)
            async def end(self):
                seen.append("end")

        with correlation():
            for event in (Placed, Shipped, Finished):
                event.emit()
        assert 0 == drain(LIMIT)
        assert ["start", "middle", "end"] == seen

    def test_different_handlers_interleave(self):
        """A handler does not wait for another's."""
        handler, go_on = gated()
        seen = []

        async def other(event):
            seen.append("other")
            go_on.set()

        Placed.subscribe(handler)
        Placed.subscribe(other)
        with correlation():
            Placed.emit()
        assert 0 == drain(LIMIT)
        assert ["other"] == seen

    def test_different_runs_interleave(self):
        """Nor does a run for another."""
        handler, go_on = gated()
        Placed.subscribe(handler, when=lambda e: e.correlation_id == "a")
        Placed.subscribe(lambda e: go_on.set(), when=lambda e: e.correlation_id == "b")
        Placed.emit(correlation_id="a")
        Placed.emit(correlation_id="b")
        assert 0 == drain(LIMIT)

    def test_without_an_id_only_the_start_is_ordered(self):
        """Deliveries of no run begin in order, and wait for nobody."""
        seen = []
        both = []

        async def handler(event):
            seen.append(event.number)
            both.append(event.number)
            while len(both) < 2:
                await asyncio.sleep(0)

        Placed.subscribe(handler)
        Placed.emit(number=0)
        Placed.emit(number=1)
        assert 0 == drain(LIMIT)
        assert [0, 1] == seen

    def test_a_failing_delivery_does_not_hold_up_the_next(self):
        """After an exception, and after a cancellation, the run goes on."""
        seen = []

        async def handler(event):
            if event.number == 0:
                raise ValueError
            if event.number == 1:
                raise asyncio.CancelledError
            seen.append(event.number)

        Placed.subscribe(handler)
        with correlation():
            for number in range(4):
                Placed.emit(number=number)
        assert 0 == drain(LIMIT)
        assert [2, 3] == seen

    @settings(max_examples=25)
    @given(
        emits=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.booleans()), max_size=25),
        slow=st.integers(0, 3),
    )
    def test_any_order_from_loops_and_threads(self, emits, slow):
        """Whatever of a loop and threads emits, each handler sees each run's events in their order."""
        with isolated():
            seen = {"first": [], "second": []}

            def make(name, steps):
                async def handler(event):
                    for _ in range((event.number * 7 + steps) % 5):
                        await asyncio.sleep(0)
                    seen[name].append((event.correlation_id, event["index"]))

                return handler

            Placed.subscribe(make("first", slow))
            Placed.subscribe(make("second", slow + 1))

            async def main():
                for index, (cid, number, elsewhere) in enumerate(emits):
                    emit = functools.partial(Placed.emit, number=number, index=index, correlation_id=cid)
                    if elsewhere:
                        thread = threading.Thread(target=emit)
                        thread.start()
                        thread.join()
                    else:
                        emit()
                    if number == 4:
                        await asyncio.sleep(0)
                assert 0 == await adrain(LIMIT)

            asyncio.run(main())
            for cid in "abc":
                expected = [(cid, i) for i, (c, _, _) in enumerate(emits) if c == cid]
                for name in seen:
                    assert expected == [pair for pair in seen[name] if pair[0] == cid]


class TestLoops:
    """On the running loop; else on the scope's, while it runs; else on the background one."""

    def test_on_the_running_loop(self):
        """Where a loop runs, the handler runs on it, after the emit."""
        seen = []

        async def handler(event):
            seen.append(asyncio.get_running_loop())

        Placed.subscribe(handler)

        async def main():
            Placed.emit()
            assert [] == seen
            assert 0 == await adrain(LIMIT)
            assert [asyncio.get_running_loop()] == seen

        asyncio.run(main())

    def test_two_loops_in_two_threads(self):
        """No handler runs on the other's loop."""
        seen = []

        async def handler(event):
            await asyncio.sleep(0)
            seen.append((event.number, threading.get_ident()))

        Placed.subscribe(handler)
        expected = []
        start = threading.Barrier(2)

        async def main(number):
            for _ in range(50):
                Placed.emit(number=number)
                await asyncio.sleep(0)
            await adrain(LIMIT)

        def work(number):
            expected.append((number, threading.get_ident()))
            start.wait()
            asyncio.run(main(number))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 100 == len(seen)
        assert set(expected) == set(seen)

    def test_on_the_scope_s_loop(self):
        """A thread that carries a scope opened on a loop schedules there, while that loop runs."""
        seen = []

        async def handler(event):
            seen.append(asyncio.get_running_loop())

        Placed.subscribe(handler)

        async def main():
            with correlation():
                await asyncio.to_thread(Placed.emit)
            assert 0 == await adrain(LIMIT)
            return asyncio.get_running_loop(), contextvars.copy_context()

        async def open_scope():
            scope = correlation()
            scope.__enter__()
            return contextvars.copy_context()

        loop, _ = asyncio.run(main())
        assert [loop] == seen
        context = asyncio.run(open_scope())
        context.run(Placed.emit)
        assert 0 == drain(LIMIT)
        assert "eventbus" == scheduler._thread.name
        assert [scheduler._background] == seen[1:]

    def test_a_chain_across_loops(self):
        """Deliveries of one run follow one another, though each runs where it was emitted."""
        seen = []

        async def handler(event):
            for _ in range(3):
                await asyncio.sleep(0)
            seen.append((event.number, asyncio.get_running_loop() is scheduler._background))

        Placed.subscribe(handler)

        async def main():
            for number in range(6):
                if number % 2:
                    thread = threading.Thread(
                        target=lambda n=number: Placed.emit(number=n, correlation_id="a")
                    )
                    thread.start()
                    thread.join()
                else:
                    Placed.emit(number=number, correlation_id="a")
            assert 0 == await adrain(LIMIT)

        asyncio.run(main())
        assert [(number, bool(number % 2)) for number in range(6)] == seen

    def test_a_task_factory_that_fails(self):
        """A loop whose task factory raises costs the delivery, which is reported, and nothing hangs."""
        seen = []
        Placed.subscribe(recording(seen))
        Placed.subscribe(lambda e: Awaitable())

        class Awaitable:
            def __await__(self):
                raise AssertionError

        def factory(loop, coroutine, **kwargs):
            coroutine.close()
            raise OSError("no more tasks")

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_task_factory(factory)
            Placed.emit(correlation_id="a")
            loop.set_task_factory(None)
            Placed.emit(number=1, correlation_id="b")
            assert 0 == await adrain(LIMIT)

        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(main())
        assert [1] == seen
        assert [OSError, OSError, AssertionError] == [type(e.error) for e in recorder]

    def test_a_hundred_loops_leave_nothing(self):
        """Loops that came and went are not kept, drained or not."""
        handler, go_on = gated()
        Placed.subscribe(recording([]))
        Shipped.subscribe(handler)
        loops = []

        async def main(index):
            loops.append(weakref.ref(asyncio.get_running_loop()))
            Placed.emit()
            if index % 2:
                await adrain(LIMIT)
            else:
                Shipped.emit()

        for index in range(100):
            asyncio.run(main(index))
        go_on.set()
        drain(LIMIT)
        gc.collect()
        assert [None] * 100 == [loop() for loop in loops]


class TestLateFailures:
    """A failure that is told after the run's end, or while somebody interrupts."""

    def test_a_late_failure_begins_no_ended_run_anew(self):
        """A stateful hook that hears of it keeps nothing for a run that has ended."""
        heard = []

        class Keeper(Hook):
            stateful = True

            @on(Event)
            def hear(self, event):
                heard.append(type(event))

        async def late(event):
            raise ValueError(event)

        Finished.subscribe(late)
        Finished.emit(correlation_id="run")
        assert 0 == drain(LIMIT)
        assert [Finished, HandlerFailedEvent] == heard
        assert 0 == kept()

    @pytest.mark.parametrize("fails", [True, False], ids=["failed", "cancelled"])
    def test_an_interrupted_report_leaves_nothing_pending(self, fails):
        """Whoever listens to failures may be interrupted; the delivery is over, and the next begins."""
        seen = []

        async def handler(event):
            seen.append(event.number)
            if event.number == 1:
                if fails:
                    raise ValueError
                asyncio.current_task().cancel()
                await asyncio.sleep(0)

        def interrupted(event):
            raise KeyboardInterrupt

        async def main():
            Placed.emit(number=1, correlation_id="run")
            Placed.emit(number=2, correlation_id="run")
            while stats()["pending"]:
                await asyncio.sleep(0)

        Placed.subscribe(handler)
        with HandlerFailedEvent.subscribe(interrupted):
            with suppress(KeyboardInterrupt):
                asyncio.run(main())
        assert 0 == drain(LIMIT)
        assert 1 == seen[0]


class TestClosing:
    """What is pending when its loop closes is cancelled, reported and counted."""

    def pending(self, count=1, cid="a", handler=None):
        cancelled = []

        async def wait(event):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(event.number)
                raise

        Placed.subscribe(handler or wait)

        async def main():
            for number in range(count):
                Placed.emit(number=number, correlation_id=cid)
            await asyncio.sleep(0)

        before = stats()["dropped"]
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(main())
            assert 0 == drain(LIMIT)
        assert count == stats()["dropped"] - before
        assert [LoopClosedError] * count == [type(e.error) for e in recorder]
        return cancelled, recorder

    def test_a_run_that_ends_with_a_pending_delivery(self):
        """The handler is cancelled by `asyncio.run`, and the loss is told by handler and event."""
        cancelled, recorder = self.pending()
        assert [0] == cancelled
        assert "wait was cancelled before it had handled Placed: its event loop closed" in str(
            recorder[0].error
        )
        assert "a" == recorder[0].correlation_id

    def test_a_chain_of_two_thousand(self):
        """A long chain behind a cancelled delivery is lost one by one."""
        self.pending(2_000)

    def test_two_thousand_of_no_run(self):
        """So are deliveries that wait for nobody."""
        cancelled, _ = self.pending(2_000, None)
        assert list(range(2_000)) == sorted(cancelled)

    @pytest.mark.parametrize("slow", [None, 0.001])
    def test_what_never_began_says_nothing(self, slow):
        """No "never awaited", no "Task was destroyed", also for other awaitables and timed handlers."""
        configure(slow_handler=slow)

        class Awaitable:
            def __await__(self):
                raise AssertionError

        async def wait(event):
            await asyncio.Event().wait()

        for handler in (wait, lambda e: Awaitable(), lambda e: wait(e)):
            Placed.subscribe(handler)
        loop = asyncio.new_event_loop()

        async def main():
            for _ in range(3):
                Placed.emit(correlation_id="a")

        before = stats()["dropped"]
        with capture(HandlerFailedEvent) as recorder:
            loop.run_until_complete(main())
            loop.close()
            Placed.has_receivers()
            assert 0 == drain(LIMIT)
            gc.collect()
        assert 9 == stats()["dropped"] - before
        assert 9 == len(recorder)

    def test_a_handler_that_does_not_end_cleanly(self):
        """What a handler raises while it is thrown away stays inside."""

        async def stubborn(event):
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError("while closing")

        Placed.subscribe(stubborn)
        loop = asyncio.new_event_loop()

        async def main():
            Placed.emit()
            await asyncio.sleep(0)

        with capture(HandlerFailedEvent) as recorder:
            loop.run_until_complete(main())
            loop.close()
            assert 0 == drain(LIMIT)
        assert [LoopClosedError] == [type(e.error) for e in recorder]

    def test_it_is_noticed_at_the_next_emit(self):
        """A loop that closed is noticed without a drain as well."""
        handler, _ = gated()
        Placed.subscribe(handler)
        Shipped.subscribe(recording(seen := []))
        loop = asyncio.new_event_loop()

        async def main():
            Placed.emit(correlation_id="a")
            Placed.emit(correlation_id="a")

        loop.run_until_complete(main())
        assert 2 == stats()["pending"]
        loop.close()
        with capture(HandlerFailedEvent) as recorder:
            Shipped.emit()
            assert 2 == len(recorder)
        assert 0 == drain(LIMIT)
        assert [0] == seen

    def test_an_async_handler_of_the_loss(self):
        """Whoever hears of a loss may be async itself, and hears of each once."""
        handler, _ = gated()
        seen = []

        async def told(event):
            seen.append(event.event.number)

        Placed.subscribe(handler)
        HandlerFailedEvent.subscribe(told)
        loop = asyncio.new_event_loop()

        async def main():
            for number in range(20):
                Placed.emit(number=number, correlation_id="a" if number % 2 else None)

        loop.run_until_complete(main())
        loop.close()
        assert 0 == drain(LIMIT)
        assert list(range(20)) == sorted(seen)

    def test_a_delivery_behind_one_of_another_loop(self):
        """A delivery whose own loop has closed when its turn comes is told then."""
        handler, go_on = gated()
        seen = []

        async def either(event):
            await handler(event) if event.number == 0 else seen.append(event.number)

        Placed.subscribe(either)
        Placed.emit(number=0, correlation_id="a")

        async def main():
            Placed.emit(number=1, correlation_id="a")

        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(main())
            Placed.emit(number=2, correlation_id="a")
            go_on.set()
            assert 0 == drain(LIMIT)
        assert [2] == seen
        assert [1] == [e.event.number for e in recorder]

    def test_a_loop_that_closes_as_the_turn_comes(self):
        """A loop that closed since the last look takes no delivery, which is told at once."""
        seen = []
        loop = asyncio.new_event_loop()

        async def handler(event):
            if event.number == 0:
                while not loop.is_closed():
                    await asyncio.sleep(0.001)
            seen.append(event.number)

        Placed.subscribe(handler)
        Placed.emit(number=0, correlation_id="a")

        async def main():
            for number in (1, 2):
                Placed.emit(number=number, correlation_id="a")

        with capture(HandlerFailedEvent) as recorder:
            loop.run_until_complete(main())
            loop.close()
            while stats()["pending"]:
                time.sleep(0.001)
        assert [0] == seen
        assert [1, 2] == [e.event.number for e in recorder]

    def test_strict_mode_raises_it_at_the_drain(self):
        """A lost delivery is an error of the drain then."""
        handler, _ = gated()
        Placed.subscribe(handler)

        async def main():
            Placed.emit()

        with kit.strict():
            asyncio.run(main())
            with pytest.raises(LoopClosedError):
                drain(LIMIT)


class TestDraining:
    """`drain` and `adrain`."""

    def test_it_says_how_many_are_left(self):
        """0 only when nothing is; at the timeout the number that waits or runs."""
        handler, go_on = gated()
        Placed.subscribe(handler)
        for _ in range(3):
            Placed.emit()
        assert 3 == drain(0)
        assert 3 == drain(0.01)
        assert 3 == stats()["pending"]
        assert 3 == asyncio.run(adrain(0))
        assert 3 == asyncio.run(adrain(0.01))
        go_on.set()
        assert 0 == drain()
        assert 0 == asyncio.run(adrain())

    def test_on_a_loop_it_refuses(self):
        """`drain` would stop the loop, and names what to use."""

        async def main():
            with pytest.raises(
                RuntimeError, match=r"would block the running event loop; use `await adrain\(\)`"
            ):
                drain()

        asyncio.run(main())

    def test_a_loop_that_is_stopped_is_not_waited_for(self):
        """Without a timeout it waits only as long as one of the loops runs."""
        seen = []
        Placed.subscribe(recording(seen))
        loop = asyncio.new_event_loop()

        async def main():
            Placed.emit()

        loop.run_until_complete(main())
        assert 1 == drain()
        assert 1 == asyncio.run(adrain())
        loop.run_until_complete(adrain())
        assert [0] == seen
        loop.close()

    def test_adrain_waits_for_other_loops(self):
        """Deliveries of the background loop count as well."""
        seen = []
        Placed.subscribe(recording(seen, 10))
        Placed.emit()
        assert 0 == asyncio.run(adrain(LIMIT))
        assert [0] == seen

    def test_a_handler_may_await_it(self):
        """It waits for the others, not for itself nor for what waits behind it."""
        seen = []

        async def handler(event):
            if event.number == 0:
                seen.append(("left", await adrain(LIMIT)))
            else:
                seen.append(event.number)

        Placed.subscribe(handler)
        Shipped.subscribe(recording(seen, 10))
        with correlation():
            Shipped.emit(number=5)
            Placed.emit(number=0)
            Placed.emit(number=1)
        assert 0 == drain(LIMIT)
        assert [5, ("left", 0), 1] == seen

    def test_two_handlers_that_await_it(self):
        """They do not wait for each other."""
        seen = []

        def make(name):
            async def handler(event):
                await adrain(LIMIT)
                seen.append(name)

            return handler

        for name in ("first", "second"):
            Placed.subscribe(make(name))
        Shipped.subscribe(recording(seen, 10))
        with correlation():
            Shipped.emit()
            Placed.emit()
        assert 0 == drain(LIMIT)
        assert 0 == seen[0]
        assert ["first", "second"] == sorted(seen[1:])

    def test_from_a_task_or_thread_of_a_handler(self):
        """A handler's own tasks and threads are part of it."""
        seen = []

        async def handler(event):
            seen.extend(await asyncio.gather(adrain(LIMIT), asyncio.to_thread(drain, LIMIT)))

        Placed.subscribe(handler)
        Placed.subscribe(recording([], 10))
        Placed.emit()
        assert 0 == drain(LIMIT)
        assert [0, 0] == seen

    def test_from_a_task_that_outlives_its_handler(self):
        """Such a task waits for all, as anybody."""
        seen = []
        tasks = []
        handler, go_on = gated()
        over = threading.Event()

        async def late():
            while not over.is_set():
                await asyncio.sleep(0.001)
            go_on.set()
            seen.append(await adrain(LIMIT))

        async def starts(event):
            tasks.append(asyncio.create_task(late()))

        Placed.subscribe(starts)
        Shipped.subscribe(handler)
        Shipped.emit()
        Placed.emit()
        while stats()["pending"] > 1:
            time.sleep(0.001)
        over.set()
        while not seen:
            time.sleep(0.001)
        assert [0] == seen

    def test_a_drain_that_goes_on_after_its_handler_has_ended(self):
        """A task that began to wait as part of a handler ends its wait after it."""
        seen = []
        tasks = []

        async def starts(event):
            tasks.append(asyncio.create_task(adrain(LIMIT)))
            await asyncio.sleep(0)

        async def main():
            Placed.subscribe(starts)
            Placed.subscribe(recording(seen, 5))
            Placed.emit(correlation_id="a")
            assert 0 == await adrain(LIMIT)
            assert 0 == await tasks[0]

        asyncio.run(main())
        assert [0] == seen

    def test_in_a_sync_handler(self):
        """A sync handler may drain on a thread without a loop."""
        seen = []
        Placed.subscribe(recording(seen))
        Placed.subscribe(lambda e: seen.append(("left", drain(LIMIT))))
        Placed.emit()
        assert [0, ("left", 0)] == seen

    def test_a_cancelled_adrain_leaves_no_waiter(self):
        """Whoever gives up waiting is forgotten."""
        handler, go_on = gated()
        Placed.subscribe(handler)
        Placed.emit()

        async def main():
            task = asyncio.create_task(adrain())
            while not scheduler._waiters:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert [] == scheduler._waiters
        go_on.set()

    def test_a_waiter_whose_loop_is_gone(self):
        """A drain wakes no loop that has closed, and stumbles over none."""
        loop = asyncio.new_event_loop()
        future = loop.create_future()
        loop.close()
        module.wake(loop, future)
        assert not future.done()

    def test_waking_twice(self):
        """A waiter that is done already is left alone."""

        async def main():
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            module.wake(loop, future)
            module.wake(loop, future)
            await future
            await asyncio.sleep(0)

        asyncio.run(main())

    def test_adrain_raises_strict_errors_too(self):
        """In strict mode what was raised comes out of `adrain`, once."""

        async def broken(event):
            raise ValueError("async")

        Placed.subscribe(broken)

        async def main():
            Placed.emit()
            with pytest.raises(ValueError, match="async"):
                await adrain(LIMIT)
            assert 0 == await adrain(LIMIT)

        with kit.strict():
            asyncio.run(main())


class TestLimit:
    """At most `max_pending` wait."""

    def test_on_a_loop_the_delivery_is_dropped_at_once(self):
        """It is counted and reported; the others are made, and nothing is said of the one not awaited."""
        seen = []
        Placed.subscribe(recording(seen))
        configure(max_pending=3)
        before = stats()["dropped"]

        async def main():
            for number in range(5):
                Placed.emit(number=number)
            assert 3 == stats()["pending"]
            assert 0 == await adrain(LIMIT)

        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(main())
        assert [0, 1, 2] == seen
        assert 2 == stats()["dropped"] - before
        assert [PendingLimitError] * 2 == [type(e.error) for e in recorder]
        text = str(recorder[0].error)
        assert text.startswith("3 async deliveries are pending; that of Placed to ")
        assert text.endswith("was dropped. Let the handler do less, or configure(max_pending=...).")

    def test_a_thread_waits_for_room(self):
        """From a thread an emit waits until there is room."""
        handler, go_on = gated()
        seen = []

        async def both(event):
            await handler(event)
            seen.append(event.number)

        Placed.subscribe(both)
        configure(max_pending=1)
        Placed.emit(number=0)
        waiting = threading.Thread(target=lambda: Placed.emit(number=1))
        waiting.start()
        while not scheduler._waiting_for_room:
            time.sleep(0.001)
        go_on.set()
        waiting.join()
        assert 0 == drain(LIMIT)
        assert [0, 1] == seen

    def test_a_thread_does_not_wait_for_ever(self, monkeypatch):
        """After a second at most the delivery is dropped, counted and reported."""
        assert 1.0 == module.FULL_WAIT_SECONDS
        monkeypatch.setattr(module, "FULL_WAIT_SECONDS", 0.01)
        handler, go_on = gated()
        Placed.subscribe(handler)
        configure(max_pending=1)
        before = stats()["dropped"]
        with capture(HandlerFailedEvent) as recorder:
            Placed.emit()
            Placed.emit()
        assert [PendingLimitError] == [type(e.error) for e in recorder]
        assert 1 == stats()["dropped"] - before
        go_on.set()

    def test_threads_together_do_not_exceed_it(self, monkeypatch):
        """However many threads emit at once, no more than the limit is pending."""
        monkeypatch.setattr(module, "FULL_WAIT_SECONDS", 0.05)
        handler, go_on = gated()
        Placed.subscribe(handler)
        configure(max_pending=5)
        start = threading.Barrier(8)

        def work():
            start.wait()
            Placed.emit()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 5 == stats()["pending"]
        go_on.set()

    def test_strict_mode_raises_it_at_the_drain(self):
        """A dropped delivery is an error of the drain then."""
        Placed.subscribe(recording([]))
        configure(max_pending=1)

        async def main():
            Placed.emit()
            Placed.emit()
            with pytest.raises(PendingLimitError):
                await adrain(LIMIT)

        with kit.strict():
            asyncio.run(main())

    def test_the_default(self):
        """A hundred thousand."""
        from eventbus._settings import Settings

        assert 100_000 == Settings().max_pending


class TestRunning:
    """What a sync emit of a gate uses to wait for an async one."""

    def test_it_returns_what_is_awaited(self):
        """On the background loop, in the caller's context."""
        variable = contextvars.ContextVar("variable")
        variable.set("caller's")

        async def work():
            await asyncio.sleep(0)
            return variable.get(), asyncio.get_running_loop() is scheduler._background

        assert ("caller's", True) == scheduler.run(work())

    @pytest.mark.parametrize(
        "error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]
    )
    def test_what_is_raised_comes_through_unchanged(self, error):
        """Of whatever class it is, and the background loop goes on."""
        raised = error("out")

        async def broken():
            await asyncio.sleep(0)
            raise raised

        async def fine():
            return 5

        with pytest.raises(error) as caught:
            scheduler.run(broken())
        assert raised is caught.value
        assert 5 == scheduler.run(fine())

    def test_a_sync_gate_waits_for_an_async_one(self):
        """A protected event's sync emit has its async handlers done when it returns."""

        async def judge(event):
            await asyncio.sleep(0)
            event.amount = 7

        BeforeRefund.subscribe(judge)
        assert 7 == BeforeRefund.emit().amount

    def test_an_interrupted_wait_cancels_what_is_awaited(self, monkeypatch):
        """A caller that is interrupted does not leave its work behind."""
        cancelled = threading.Event()

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        import concurrent.futures

        monkeypatch.setattr(concurrent.futures.Future, "result", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            scheduler.run(work())
        assert cancelled.wait(LIMIT)


def _interrupt(self, timeout=None):
    while not self.running() and not self.done():
        time.sleep(0.001)
        break
    raise KeyboardInterrupt


class TestAtExit:
    """A bounded drain, and a line naming what was left."""

    def test_pending_handlers_end_first(self):
        """What is pending at the end of the program is carried out."""
        program = """
        async def handler(event):
            await asyncio.sleep(0.05)
            print("done", event.number)
        Placed.subscribe(handler)
        for number in range(3):
            Placed.emit(number=number, correlation_id="a")
        """
        assert ("done 0\ndone 1\ndone 2\n", "") == python(program)

    @pytest.mark.skipif(
        sys.version_info[:2] == (3, 12), reason="Python 3.12 starts no thread any more once it is exiting"
    )
    def test_executors_are_still_there(self):
        """A handler can still use the default executor, as resolving a host's name does."""
        program = """
        async def handler(event):
            await asyncio.sleep(0.05)
            print(await asyncio.to_thread(lambda: "from a thread"))
        Placed.subscribe(handler)
        Placed.emit()
        """
        assert ("from a thread\n", "") == python(program)

    def test_what_is_left_is_named(self):
        """A handler that does not end is waited for a bounded time, then named; nothing else is said."""
        program = """
        import eventbus._scheduler as module
        assert 5.0 == module.scheduler._exit_seconds
        module.scheduler._exit_seconds = 0.05
        async def forever(event):
            await asyncio.Event().wait()
        Placed.subscribe(forever)
        for number in range(3):
            Placed.emit(number=number, correlation_id="a")
        """
        stdout, stderr = python(program)
        assert "" == stdout
        (line,) = stderr.splitlines()
        assert " HOOK LEFT forever " in line
        assert "pending=3" in line

    def test_a_handler_that_cannot_be_cancelled(self):
        """Nor does a handler that swallows its cancellation keep the program from ending."""
        program = """
        import eventbus._scheduler as module
        module.scheduler._exit_seconds = 0.05
        module.CANCEL_SECONDS = 0.05
        async def stubborn(event):
            while True:
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    pass
        Placed.subscribe(stubborn)
        Placed.emit()
        """
        stdout, stderr = python(program)
        assert "" == stdout
        assert 1 == len(stderr.splitlines())

    def test_a_handler_that_blocks_the_loop(self):
        """Nor one that never gives the loop back."""
        program = """
        import time
        import eventbus._scheduler as module
        module.scheduler._exit_seconds = 0.05
        module.CANCEL_SECONDS = 0.05
        inside = threading.Event()
        async def blocking(event):
            inside.set()
            time.sleep(30)
        Placed.subscribe(blocking)
        Placed.emit()
        inside.wait()
        """
        stdout, stderr = python(program, timeout=20)
        assert "" == stdout
        assert 1 == len(stderr.splitlines())

    def test_errors_of_strict_mode_are_a_line(self):
        """What nobody drained is told at exit, and does not change the exit status."""
        program = """
        configure(strict=True)
        async def broken(event):
            raise ValueError("boom")
        Placed.subscribe(broken)
        Placed.emit()
        """
        stdout, stderr = python(program)
        assert "" == stdout
        (line,) = stderr.splitlines()
        assert " HOOK FAIL drain " in line
        assert "ValueError: boom" in line

    def test_an_emit_after_it_is_counted(self):
        """An exit function that runs later cannot start anything; its delivery is dropped."""
        program = """
        def late():
            Placed.emit(number=9)
            print("dropped", stats()["dropped"])
        atexit.register(late)
        async def handler(event):
            print("handled", event.number)
        Placed.subscribe(handler)
        Placed.emit()
        """
        stdout, stderr = python(program)
        assert "handled 0\ndropped 1\n" == stdout
        (line,) = stderr.splitlines()
        assert "LoopClosedError: The interpreter is exiting: Placed was not delivered to " in line

    def test_a_first_emit_in_an_exit_function_is_told(self):
        """Nothing would end it any more: the delivery is dropped, counted, and told in one line."""
        program = """
        def late():
            Placed.emit()
            print("dropped", stats()["dropped"], "pending", stats()["pending"])
        async def handler(event):
            print("handled")
        Placed.subscribe(handler)
        atexit.register(late)
        """
        stdout, stderr = python(program)
        assert "dropped 1 pending 0\n" == stdout
        (line,) = stderr.splitlines()
        assert "LoopClosedError: The interpreter is exiting: Placed was not delivered to " in line

    @pytest.mark.skipif(
        (3, 12) <= sys.version_info < (3, 12, 2), reason="Python starts no thread then, which is told"
    )
    def test_a_first_emit_of_a_thread_that_outlives_the_main_one(self):
        """While the interpreter waits for threads it is not too late: what they emit is carried out."""
        program = """
        async def handler(event):
            await asyncio.sleep(0.05)
            print("handled")
        Placed.subscribe(handler)
        def work():
            threading.main_thread().join()
            Placed.emit()
        threading.Thread(target=work).start()
        """
        assert ("handled\n", "") == python(program)

    def test_a_gate_after_it_refuses(self):
        """A gate that nobody can judge any more raises."""
        program = """
        class Before(ProtectedEvent):
            pass
        def late():
            try:
                Before.emit()
            except LoopClosedError as error:
                print("refused")
        atexit.register(late)
        async def judge(event):
            pass
        Before.subscribe(judge)
        Before.emit()
        configure(log=None)
        """
        assert ("refused\n", "") == python(program)

    def test_an_app_s_loop_in_a_daemon_thread(self):
        """What is pending on a loop that still runs elsewhere is named as well, and not said twice."""
        program = """
        import eventbus._scheduler as module
        module.scheduler._exit_seconds = 0.05
        emitted = threading.Event()
        async def forever(event):
            await asyncio.Event().wait()
        Placed.subscribe(forever)
        async def main():
            Placed.emit()
            await asyncio.sleep(0)
            emitted.set()
            await asyncio.Event().wait()
        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        emitted.wait()
        """
        stdout, stderr = python(program)
        assert "" == stdout
        assert 1 == len(stderr.splitlines())

    def test_a_loop_left_stopped(self):
        """What waits on a loop that was stopped and never closed is named."""
        program = """
        async def forever(event):
            await asyncio.Event().wait()
        Placed.subscribe(forever)
        loop = asyncio.new_event_loop()
        async def main():
            Placed.emit(correlation_id="a")
            Placed.emit(correlation_id="a")
            await asyncio.sleep(0)
        atexit.register(loop.close)
        loop.run_until_complete(main())
        """
        stdout, stderr = python(program)
        assert "" == stdout
        assert " HOOK LEFT forever " in stderr
        assert "pending=2" in stderr

    def test_importing_starts_nothing(self):
        """No thread, loop, exit handler, and no logging configuration, before the first async delivery."""
        program = """
        import logging
        assert [threading.main_thread()] == threading.enumerate()
        assert [] == logging.getLogger().handlers
        import eventbus._scheduler as module
        Placed.subscribe(lambda e: None)
        Placed.emit()
        assert not module.scheduler._exit_registered
        assert None is module.scheduler._background
        assert None is asyncio.get_event_loop_policy()._local._loop
        print(atexit._ncallbacks())
        """
        registered, stderr = python(program)
        assert "" == stderr
        plain = subprocess.run(
            [
                sys.executable,
                "-c",
                "import asyncio, attrs, blinker, structlog, atexit; print(atexit._ncallbacks())",
            ],
            capture_output=True,
            text=True,
        )
        assert plain.stdout == registered


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
class TestFork:
    """What was pending belongs to the parent."""

    def test_a_fork_with_pending_deliveries(self):
        """Parent and child both go on, each delivery is made once, and nobody says anything."""
        program = """
        go_on = threading.Event()
        async def handler(event):
            while not go_on.is_set():
                await asyncio.sleep(0.001)
            os.write(1, f"{event.number}\\n".encode())  # in one piece: two processes write here
        Placed.subscribe(handler)
        for number in range(3):
            Placed.emit(number=number, correlation_id="a")
        Placed.emit(number=3)
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        go_on.set()
        if child:
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert 0 == drain(10)
        else:
            assert 0 == stats()["pending"]
            Placed.emit(number=10)
            gc.collect()
            sys.exit(drain(10))
        """
        stdout, stderr = python(program)
        assert "" == stderr
        assert ["0", "1", "10", "2", "3"] == sorted(stdout.split())
        assert ["0", "1", "2"] == [n for n in stdout.split() if n in "012"]

    @pytest.mark.parametrize("method", ["fork", "forkserver"])
    @pytest.mark.parametrize("has_emitted", [False, True])
    def test_a_child_of_multiprocessing(self, tmp_path, method, has_emitted):
        """It ends without exit functions; all the same it drains, and names what is left."""
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent(f"""
            import asyncio, multiprocessing
            import eventbus._scheduler as module
            from eventbus import *

            class Placed(Event):
                number: int = 0

            @Placed.subscribe
            async def handler(event):
                await asyncio.sleep(0.05)
                if event.number:
                    await asyncio.Event().wait()
                print("handled", flush=True)

            def child(number):
                module.scheduler._exit_seconds = 0.05 if number else 5.0
                Placed.emit(number=number)

            if __name__ == "__main__":
                if {has_emitted}:
                    Placed.emit()
                    drain()
                for number in (0, 1):
                    process = multiprocessing.get_context({method!r}).Process(target=child, args=(number,))
                    process.start()
                    process.join(30)
                    print("exit", process.exitcode, flush=True)
            """)
        )
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
        assert [*["handled"] * has_emitted, "handled", "exit 0", "exit 0"] == done.stdout.splitlines()
        told = [line for line in done.stderr.splitlines() if " HOOK " in line]
        assert 1 == len(told), done.stderr
        assert " HOOK LEFT handler pending=1 " in told[0]

    def test_after_fork_nothing_is_pending(self):
        """A scheduler told that it is in a child is empty, and remembers that its exit is registered."""
        fresh = module.Scheduler()

        async def handler():
            raise AssertionError

        delivery = module.Delivery(handler(), Placed(), _Receiver(), asyncio.new_event_loop(), None)
        begun = module.Delivery(handler(), Placed(), _Receiver(), delivery.loop, None)
        begun.task = delivery.loop.create_task(begun.awaitable)
        fresh._pending.update({delivery: None, begun: None})
        fresh._exit_registered = True
        fresh.after_fork()
        assert (0, True) == (fresh.pending, fresh._exit_registered)
        delivery.loop.close()
        begun.awaitable.close()


class _Receiver:
    name = "handler"
    target = None
    hook = None


class TestScheduling:
    """Corners of the scheduler itself."""

    @pytest.mark.parametrize("is_alive", [True, False])
    def test_when_it_is_too_late_to_begin(self, monkeypatch, is_alive):
        """Exit functions run when the main thread is at its end; one that is registered will be called."""
        main = threading.main_thread()
        monkeypatch.setattr(main, "is_alive", lambda: is_alive)
        fresh = module.Scheduler()
        assert (not is_alive) is fresh._is_too_late()
        monkeypatch.setattr(sys, "_current_frames", dict)
        assert (not is_alive) is fresh._is_too_late()
        fresh._exit_registered = True
        assert not fresh._is_too_late()

    @pytest.mark.parametrize("registered", [False, True])
    def test_a_child_of_multiprocessing_has_a_finalizer(self, monkeypatch, registered):
        """It is registered once in each child, whatever the parent has registered."""
        import multiprocessing.process
        import multiprocessing.util

        finalizers = []
        monkeypatch.setattr(module.atexit, "register", lambda fn: None)
        monkeypatch.setattr(threading, "_register_atexit", lambda fn: None)
        monkeypatch.setattr(
            multiprocessing.util, "Finalize", lambda *args, **kw: finalizers.append((args, kw))
        )
        fresh = module.Scheduler()
        fresh._exit_registered = registered
        fresh._register_exit()
        assert [] == finalizers
        fresh.after_fork()
        monkeypatch.setattr(multiprocessing.process, "_parent_process", object())
        fresh._register_exit()
        fresh._register_exit()
        assert [((None, fresh.close), {"exitpriority": module.FINALIZE_PRIORITY})] == finalizers

    @pytest.mark.parametrize(
        ("owner", "name", "error"),
        [
            (threading.Thread, "start", RuntimeError("can't start new thread")),
            (asyncio, "new_event_loop", OSError("Too many open files")),
        ],
    )
    def test_where_no_thread_or_loop_is_to_be_had(self, monkeypatch, owner, name, error):
        """The delivery is dropped, counted and reported, a gate's waiter is told, and nothing leaks."""

        def fail(*args):
            raise error

        Placed.subscribe(recording(seen := []))
        fresh = module.Scheduler()
        monkeypatch.setattr("eventbus._event.scheduler", fresh)
        before = stats()["dropped"]
        with monkeypatch.context() as patch, capture(HandlerFailedEvent) as recorder:
            patch.setattr(owner, name, fail)
            Placed.emit(number=1)
            with pytest.raises(type(error)):
                fresh.run(recording(seen)(Placed()))
        gc.collect()
        assert [error] == [e.error for e in recorder]
        assert (1, 0) == (stats()["dropped"] - before, fresh.pending)
        Placed.emit(number=2)
        assert 0 == fresh.drain(LIMIT)
        fresh.close()
        assert [2] == seen

    def test_exit_functions_of_another_python(self, monkeypatch):
        """Without CPython's own registration the ordinary one is enough."""
        registered = []
        monkeypatch.setattr(module.atexit, "register", registered.append)
        monkeypatch.delattr(threading, "_register_atexit")
        fresh = module.Scheduler()
        fresh._register_exit()
        fresh._register_exit()
        assert [fresh.close] == registered

    def test_closing_on_a_loop_does_not_wait(self, monkeypatch):
        """At an exit on a running loop nothing can be waited for; what is left is told."""
        told = []
        monkeypatch.setattr(module, "notice", lambda *args, **kwargs: told.append((args, kwargs)))
        fresh = module.Scheduler()
        before = stats()["dropped"]

        async def main():
            loop = asyncio.get_running_loop()

            async def handler():
                raise AssertionError

            delivery = module.Delivery(handler(), Placed(), _Receiver(), loop, None)
            fresh._pending[delivery] = None
            fresh._loops[loop] += 1
            fresh.close()
            # What the loop still does with it changes nothing any more.
            fresh._start_here(delivery)
            assert None is fresh._forget(delivery)
            module.discard(delivery.awaitable)

        asyncio.run(main())
        (((level, words, subject), fields),) = told
        assert ("warning", ("HOOK", "LEFT"), ("hook", "handler")) == (level, words, subject)
        assert {"pending": 1, "handlers": ["handler"]} == fields
        assert 1 == stats()["dropped"] - before

    def test_closing_twice(self):
        """A scheduler that has nothing says nothing."""
        fresh = module.Scheduler()
        fresh.close()
        fresh.close()
        assert None is fresh._background_loop()

    def test_after_closing_nothing_begins(self, monkeypatch):
        """A delivery is dropped, counted and reported, and a gate's waiter is told."""
        Placed.subscribe(recording(seen := []))
        fresh = module.Scheduler()
        fresh.close()
        monkeypatch.setattr("eventbus._event.scheduler", fresh)
        before = stats()["dropped"]
        with capture(HandlerFailedEvent) as recorder:
            Placed.emit()
        assert [LoopClosedError] == [type(e.error) for e in recorder]
        assert 1 == stats()["dropped"] - before
        with pytest.raises(LoopClosedError, match="no loop can be started any more"):
            fresh.run(recording(seen)(Placed()))
        assert [] == seen

    def test_closing_ends_the_background_thread(self):
        """The thread is gone, its loop closed, and tasks that handlers left on it are cancelled."""
        fresh = module.Scheduler()
        cancelled = []

        async def linger():
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append("lingering")

        async def work():
            cancelled.append(asyncio.create_task(linger()))
            await asyncio.sleep(0)

        fresh.run(work())
        thread, loop = fresh._thread, fresh._background
        fresh.close()
        assert not thread.is_alive()
        assert loop.is_closed()
        assert "lingering" == cancelled[1]

    def test_a_line_for_what_exit_cannot_raise(self, caplog):
        """An error at the exit's drain is a line."""
        configure(logger=logging.getLogger("bus"))
        EventLogger.register()
        fresh = module.Scheduler()
        fresh.keep(SystemExit("late"))
        fresh.keep(ValueError("more"))
        fresh.drain_at_exit()
        fresh.drain_at_exit()
        assert 2 == len(caplog.records)

    def test_errors_do_not_pile_up(self):
        """Of errors that nobody drains, the latest thousand are kept."""
        fresh = module.Scheduler()
        for number in range(1_500):
            fresh.keep(ValueError(number))
        with pytest.raises(ExceptionGroup) as caught:
            fresh.drain(0)
        assert 1_000 == len(caught.value.exceptions)
