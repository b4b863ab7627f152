"""
Delivery: the order, the snapshot, failures that stay inside, and what is raised nevertheless.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus import (
    Event,
    EventLogger,
    HandlerFailedEvent,
    Hook,
    Priority,
    ProtectedEvent,
    Run,
    configure,
    correlation,
    current_correlation_id,
    drain,
    on,
    stats,
    writable,
)
from eventbus import testing as kit
from eventbus.testing import capture, isolated


class Placed(Event):
    number: int = 0


class Shipped(Event):
    pass


class BeforeRefund(ProtectedEvent):
    amount: int = writable(default=0)


class AfterRefund(ProtectedEvent):
    reverse = True
    amount: int = writable(default=0)


BASE_EXCEPTIONS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, BaseException]


def failures(recorder):
    """Return (hook, handler, error) of each failure recorded."""
    return [(e.hook, e.handler, type(e.error)) for e in recorder.of(HandlerFailedEvent)]


class TestOrder:
    """By priority, then in order of registration, on the emitting thread, before emit returns."""

    def test_priorities_have_names(self):
        """The named places, and the bands around them."""
        assert [50, 150, 250, 300] == [
            Priority.SECURITY,
            Priority.OBSERVABILITY,
            Priority.BUSINESS,
            Priority.DEFAULT,
        ]
        assert isinstance(Priority.SECURITY, int)

    def test_handlers_run_before_emit_returns_on_its_thread(self):
        """A handler is called by the thread that emits, and has ended when emit returns."""
        seen = []
        Placed.subscribe(lambda e: seen.append(threading.get_ident()))
        thread = threading.Thread(target=lambda: (Placed.emit(), seen.append("after")))
        thread.start()
        thread.join()
        assert [thread.ident, "after"] == seen

    def test_security_can_be_first_whatever_was_defined_first(self):
        """A hook of lower priority runs first, though it was defined last."""
        seen = []
        Placed.subscribe(lambda e: seen.append("function"))

        class Business(Hook):
            priority = Priority.BUSINESS

            @on(Placed)
            def audit(self):
                seen.append("business")

        class Guard(Hook):
            priority = Priority.SECURITY

            @on(Placed)
            def audit(self):
                seen.append("guard")

        Placed.emit()
        assert ["guard", "business", "function"] == seen

    @settings(max_examples=60)
    @given(
        plan=st.lists(
            st.tuples(
                st.sampled_from(["function", "hook", "base", "blinker", "run"]),
                st.integers(-1000, 1000) | st.sampled_from(list(Priority)),
            ),
            max_size=12,
        )
    )
    def test_any_mixture_is_sorted_by_priority_then_registration(self, plan):
        """Functions, hooks, base-class and blinker subscriptions stand in one order."""
        with isolated():
            seen: list[int] = []
            expected = []
            keep = []
            for index, (kind, priority) in enumerate(plan):

                def call(event, index=index):
                    seen.append(index)

                if kind == "hook":
                    body = {
                        "audit": on(Placed)(lambda self, e, i=index: seen.append(i)),
                        "priority": int(priority),
                    }
                    type(f"H{index}", (Hook,), {**body, "__qualname__": f"<locals>.H{index}"})
                elif kind == "blinker":
                    keep.append(Placed.signal.connect(call))
                    priority = Priority.DEFAULT
                else:
                    owner = Event if kind == "base" else Placed
                    owner.subscribe(call, priority=priority, correlation_id="r" if kind == "run" else None)
                expected.append((int(priority), index))
            Placed.emit(correlation_id="r")
            assert [index for _, index in sorted(expected)] == seen

    def test_ten_thousand_handlers_keep_their_order(self):
        """The order of registration holds for any number of handlers."""
        seen = []
        for index in range(10_000):
            Placed.subscribe(lambda e, i=index: seen.append(i))
        Placed.emit()
        assert list(range(10_000)) == seen


class TestSnapshot:
    """A handler may change who listens."""

    def test_a_handler_may_subscribe_and_cancel(self):
        """Changes made by a handler count from the next event on."""
        seen = []

        def first(event):
            seen.append("first")
            later.cancel()
            Placed.subscribe(lambda e: seen.append("new"))

        Placed.subscribe(first)
        later = Placed.subscribe(lambda e: seen.append("later"))
        Placed.emit()
        assert ["first", "later"] == seen
        Placed.emit()
        assert ["first", "later", "first", "new"] == seen

    def test_a_handler_may_define_and_unregister_hooks(self):
        """So do hooks that a handler defines, or takes out."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            def audit(self):
                seen.append("audit")

        def first(event):
            Audit.unregister()
            type("Late", (Hook,), {"audit": on(Placed)(lambda self: seen.append("late"))})

        subscription = Placed.subscribe(first, priority=0)
        Placed.emit()
        assert ["audit"] == seen
        subscription.cancel()
        Placed.emit()
        assert ["audit", "late"] == seen

    def test_a_nested_emit_is_delivered_at_once(self):
        """What a handler emits is delivered before it goes on."""
        seen = []

        @Placed.subscribe
        def first(event):
            Shipped.emit()
            seen.append("placed")

        Shipped.subscribe(lambda e: seen.append("shipped"))
        Placed.subscribe(lambda e: seen.append("second"))
        Placed.emit()
        assert ["shipped", "placed", "second"] == seen

    def test_no_lock_is_held_while_a_handler_runs(self):
        """A handler may wait for a thread that subscribes, emits, and defines a hook."""
        seen = []

        def elsewhere():
            Shipped.subscribe(lambda e: seen.append("shipped"))
            Shipped.emit()
            type("Elsewhere", (Hook,), {})

        @Placed.subscribe
        def first(event):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join(5)
            seen.append(thread.is_alive())

        Placed.emit()
        assert ["shipped", False] == seen


class TestFailOpen:
    """An exception of an observer is reported and swallowed."""

    def test_the_others_run_and_the_emitter_goes_on(self):
        """A handler that raises costs nobody else the event."""
        seen = []
        Placed.subscribe(lambda e: 1 / 0)
        Placed.subscribe(lambda e: seen.append("second"))
        assert None is Placed.emit()
        assert ["second"] == seen

    def test_the_report_is_an_event(self):
        """HandlerFailedEvent names hook, handler, event and error, and carries the run."""

        class Audit(Hook):
            @on(Placed)
            def audit(self, event):
                raise ValueError(event.number)

        with capture(Event) as recorder:
            Placed.emit(number=5, correlation_id="c1")
        failed = recorder.assert_emitted(HandlerFailedEvent, hook="Audit", handler="Audit.audit")
        assert "c1" == failed.correlation_id
        assert Placed(number=5, correlation_id="c1") == failed.event
        assert (5,) == failed.error.args
        assert failed.error.__traceback__ is not None

    def test_a_function_has_no_hook(self):
        """For a function the report names the function, and no hook."""

        def broken(event):
            raise KeyError

        Placed.subscribe(broken)
        with capture(Event) as recorder:
            Placed.emit()
        ((hook, handler, error),) = failures(recorder)
        assert (None, KeyError) == (hook, error)
        assert handler.endswith("broken")

    def test_a_predicate_that_raises_is_a_failure(self):
        """An exception of `when` is reported as one of its handler, which is not called."""
        seen = []

        class Audit(Hook):
            @on(Placed, when=lambda e: e.missing)
            def audit(self, event):
                seen.append("never")

        Placed.subscribe(lambda e: seen.append("other"))
        with capture(Event) as recorder:
            Placed.emit()
        assert ["other"] == seen
        assert [("Audit", "Audit.audit", AttributeError)] == failures(recorder)

    def test_a_shared_predicate_that_says_it_is_another_function(self):
        """A proxy, which hands through what it wraps, is asked itself each time."""

        class Negated:
            def __init__(self, wrapped):
                self.wrapped = wrapped

            # As proxies do, for `isinstance` and for whoever looks at the code.
            __class__ = property(lambda self: type(self.wrapped))

            def __getattr__(self, name):
                return getattr(self.wrapped, name)

            def __call__(self, event):
                return not self.wrapped(event)

        seen = []
        when = Negated(lambda event: event.number < 5)
        Placed.subscribe(lambda event: seen.append(("first", event.number)), when=when)
        Placed.subscribe(lambda event: seen.append(("second", event.number)), when=when)
        Placed.emit(number=1)
        Placed.emit(number=9)
        assert [("first", 9), ("second", 9)] == seen

    @pytest.mark.parametrize("wrap", [lambda when: when, functools.partial], ids=["function", "partial"])
    def test_handlers_that_share_a_predicate_are_told_apart(self, wrap):
        """What raises is reported as the handler it belongs to, and each is called with its own."""
        seen = []
        limit = 2

        def may(event, *, least=1):
            return least / (limit - event.number)

        when = wrap(may)

        class First(Hook):
            @on(Placed, when=when)
            def handle(self, event):
                seen.append("first")

        class Second(Hook):
            @on(Placed, when=when)
            def handle(self, event):
                raise ValueError

        with capture(Event) as recorder:
            Placed.emit(number=1)
            Placed.emit(number=2)
        assert ["first"] == seen
        assert [
            ("Second", "Second.handle", ValueError),
            ("First", "First.handle", ZeroDivisionError),
            ("Second", "Second.handle", ZeroDivisionError),
        ] == failures(recorder)

    def test_the_line_has_handler_event_error_and_run(self, caplog):
        """One HOOK FAIL line, with traceback for those who want it."""
        configure(logger=logging.getLogger("bus"))
        EventLogger.register()

        class RefundAuditHook(Hook):
            @on(Placed)
            def audit(self, event):
                raise ValueError("boom")

        Placed.emit(correlation_id="c1")
        (record,) = caplog.records
        assert record.message.startswith("HOOK FAIL RefundAuditHook.audit on=Placed ValueError: boom (")
        assert "c1" == record.cid
        assert ValueError is record.exc_info[0]

    def test_it_is_reported_every_time_at_a_bounded_rate_of_lines(self, caplog):
        """A handler that always fails stays: an event each time, at most ten lines a minute."""
        configure(logger=logging.getLogger("bus"))
        EventLogger.register()
        Placed.subscribe(lambda e: 1 / 0)
        with capture(HandlerFailedEvent) as recorder:
            for _ in range(25):
                Placed.emit()
        assert 25 == len(recorder)
        assert 10 == len(caplog.records)

    def test_a_failure_while_reporting_is_not_reported_again(self):
        """A handler of the report that raises is counted, and the report is not repeated."""
        seen = []

        @HandlerFailedEvent.subscribe
        def broken(event):
            seen.append(event.handler)
            raise RuntimeError("again")

        Placed.subscribe(lambda e: 1 / 0)
        before = stats()["failures"]
        Placed.emit()
        assert 1 == len(seen)
        assert 2 == stats()["failures"] - before

    @pytest.mark.parametrize("error", BASE_EXCEPTIONS)
    def test_what_is_no_exception_propagates(self, error):
        """KeyboardInterrupt and its like end the emit at once, unchanged."""
        raised = error("out")

        def handler(event):
            raise raised

        seen = []
        Placed.subscribe(handler)
        Placed.subscribe(lambda e: seen.append("never"))
        with capture(HandlerFailedEvent) as recorder, pytest.raises(error) as caught:
            Placed.emit()
        assert raised is caught.value
        assert ([], 0) == (seen, len(recorder))

    @pytest.mark.parametrize("error", BASE_EXCEPTIONS)
    def test_it_propagates_out_of_a_predicate_a_nested_emit_and_a_report(self, error):
        """Wherever user code runs, it comes through to the emitter."""

        def handler(event):
            raise error

        with Placed.subscribe(lambda e: None, when=handler), pytest.raises(error):
            Placed.emit()
        with Shipped.subscribe(handler), Placed.subscribe(lambda e: Shipped.emit()), pytest.raises(error):
            Placed.emit()
        with HandlerFailedEvent.subscribe(handler), Placed.subscribe(lambda e: 1 / 0), pytest.raises(error):
            Placed.emit()
        before = stats()["failures"]
        with Placed.subscribe(lambda e: 1 / 0), capture(HandlerFailedEvent) as recorder:
            Placed.emit()
        assert (1, 1) == (len(recorder), stats()["failures"] - before)

    @pytest.mark.parametrize("error", BASE_EXCEPTIONS)
    def test_it_propagates_out_of_an_awaited_emit(self, error):
        """Out of `aemit`, from sync and from async handlers."""

        def raise_it(event):
            raise error

        async def araise(event):
            await asyncio.sleep(0)
            raise error

        def drive(coroutine):
            try:
                while True:
                    coroutine.send(None)
            except StopIteration:
                return

        for handler in (raise_it, araise):
            with Placed.subscribe(handler), pytest.raises(error):
                drive(Placed.aemit())

    @settings(max_examples=40)
    @given(broken=st.lists(st.booleans(), max_size=8), awaited=st.booleans())
    def test_whoever_fails_the_others_get_the_event(self, broken, awaited):
        """Any subset of handlers may fail: each of the others is called once, each failure is told once."""
        with isolated():
            seen = []

            def make(index, fails):
                def handler(event):
                    seen.append(index)
                    if fails:
                        raise ValueError(index)

                return handler

            for index, fails in enumerate(broken):
                Placed.subscribe(make(index, fails))
            with capture(HandlerFailedEvent) as recorder:
                if awaited:
                    asyncio.run(Placed.aemit())
                else:
                    Placed.emit()
            assert list(range(len(broken))) == seen
            assert [i for i, fails in enumerate(broken) if fails] == [e.error.args[0] for e in recorder]


class TestStrict:
    """Reports become raised errors, after all handlers ran."""

    def test_a_single_error_is_raised_as_it_is(self):
        """One failing handler: its own error, with a note that names it."""
        seen = []
        error = ValueError("boom")

        class Audit(Hook):
            @on(Placed)
            def audit(self):
                raise error

        Placed.subscribe(lambda e: seen.append("other"))
        configure(strict=True)
        with capture(HandlerFailedEvent) as recorder, pytest.raises(ValueError, match="boom") as caught:
            Placed.emit()
        assert error is caught.value
        assert ["raised by Audit.audit, for Placed"] == error.__notes__
        assert ["other"] == seen
        assert 0 == len(recorder)

    def test_several_are_raised_as_a_group(self):
        """Two failing handlers: an ExceptionGroup, in the order of the handlers."""
        errors = [ValueError("a"), KeyError("b")]
        for error in errors:
            Placed.subscribe(lambda e, error=error: (_ for _ in ()).throw(error))
        with kit.strict(), pytest.raises(ExceptionGroup) as caught:
            Placed.emit()
        assert errors == list(caught.value.exceptions)

    def test_an_awaited_emit_raises_too(self):
        """`aemit` raises what sync and async handlers raised, after all ran."""
        seen = []

        async def broken(event):
            await asyncio.sleep(0)
            raise ValueError("async")

        def also_broken(event):
            raise KeyError("sync")

        Placed.subscribe(broken)
        Placed.subscribe(also_broken)
        Placed.subscribe(lambda e: seen.append("last"))
        with kit.strict(), pytest.raises(ExceptionGroup) as caught:
            asyncio.run(Placed.aemit())
        assert [ValueError, KeyError] == [type(e) for e in caught.value.exceptions]
        assert ["last"] == seen

    def test_scheduled_handlers_raise_at_the_drain(self):
        """What a scheduled async handler raises is raised by `drain`, once."""

        async def broken(event):
            raise ValueError(event.number)

        Placed.subscribe(broken)
        configure(strict=True)
        Placed.emit(number=1)
        with pytest.raises(ValueError, match="1") as caught:
            drain(10)
        assert caught.value.__notes__[0].endswith("broken, for Placed")
        assert 0 == drain(10)
        for number in range(2):
            Placed.emit(number=number)
        with pytest.raises(ExceptionGroup):
            drain(10)
        assert 0 == drain(10)

    def test_it_ends_with_the_kit_s_scope(self):
        """Outside of `strict()` failures are reported again."""
        Placed.subscribe(lambda e: 1 / 0)
        with kit.strict(), pytest.raises(ZeroDivisionError):
            Placed.emit()
        with capture(HandlerFailedEvent) as recorder:
            Placed.emit()
        assert 1 == len(recorder)


class TestGates:
    """The same loop delivers to gates, which fail closed."""

    def test_the_first_error_of_a_before_event_stops_the_rest(self):
        """What a gate raises propagates unchanged, and the others do not run."""
        seen = []
        error = ValueError("no")

        def refuse(event):
            raise error

        BeforeRefund.subscribe(refuse)
        BeforeRefund.subscribe(lambda e: seen.append("never"))
        with pytest.raises(ValueError, match="no") as caught:
            BeforeRefund.emit()
        assert error is caught.value
        assert [] == seen

    def test_all_handlers_of_an_after_event_run(self):
        """After-events run in the opposite order, all of them, and raise a group."""
        seen = []

        def fail(label):
            def handler(event):
                seen.append(label)
                raise ValueError(label)

            return handler

        for label in "abc":
            AfterRefund.subscribe(fail(label))
        with pytest.raises(ExceptionGroup):
            AfterRefund.emit()
        assert ["c", "b", "a"] == seen

    @pytest.mark.exhausts_stack
    def test_a_recursion_of_a_gate_s_own_is_its_error(self):
        """A gate that recurses without end raises its RecursionError out of the emit."""

        def recurse(event):
            recurse(event)

        BeforeRefund.subscribe(recurse)
        with pytest.raises(RecursionError):
            BeforeRefund.emit()
        with pytest.raises(RecursionError):
            asyncio.run(BeforeRefund.aemit())


class TestAwaiting:
    """`aemit` runs all handlers in order and awaits each."""

    def test_sync_and_async_in_one_order(self):
        """Each handler has ended before the next is called, and all before `aemit` returns."""
        seen = []

        async def slow(event):
            seen.append("slow begins")
            for _ in range(3):
                await asyncio.sleep(0)
            seen.append("slow ends")

        Placed.subscribe(lambda e: seen.append("last"), priority=400)
        Placed.subscribe(slow)
        Placed.subscribe(lambda e: seen.append("first"), priority=0)
        asyncio.run(Placed.aemit())
        assert ["first", "slow begins", "slow ends", "last"] == seen

    def test_what_is_no_awaitable_is_ignored(self):
        """What a sync handler returns is not awaited, in `aemit` as in `emit`."""
        Placed.subscribe(lambda e: "ignored")
        with kit.strict():
            asyncio.run(Placed.aemit())
            Placed.emit()

    def test_async_handlers_are_told_by_their_result(self):
        """Partials, objects with an async call, and functions that return an awaitable are awaited."""
        import functools

        seen = []

        async def function(label, event):
            await asyncio.sleep(0)
            seen.append(label)

        class Callable:
            async def __call__(self, event):
                seen.append("object")

        class Awaitable:
            def __await__(self):
                seen.append("awaitable")
                yield from asyncio.sleep(0).__await__()

        class Audit(Hook):
            @on(Placed)
            async def audit(self, event):
                seen.append("method")

        Placed.subscribe(functools.partial(function, "partial"))
        Placed.subscribe(Callable())
        Placed.subscribe(lambda e: function("lambda", e))
        Placed.subscribe(lambda e: Awaitable())
        Placed.subscribe(lambda e: 5)
        expected = ["method", "partial", "object", "lambda", "awaitable"]
        asyncio.run(Placed.aemit())
        assert expected == seen
        seen.clear()
        Placed.emit()
        assert 0 == drain(10)
        assert sorted(expected) == sorted(seen)

    def test_handlers_of_one_hook_share_an_instance_over_awaits(self):
        """The instance of an event is the same for its sync and async handlers."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            async def first(self):
                await asyncio.sleep(0)
                self.mark = "kept"

            @on(Placed)
            def second(self):
                seen.append(self.mark)

        asyncio.run(Placed.aemit())
        assert ["kept"] == seen

    def test_emits_of_its_handlers_carry_an_explicit_id(self):
        """An explicit correlation id is what the handlers' own emits carry, awaited or not."""
        seen = []

        async def handler(event):
            await asyncio.sleep(0)
            seen.append(current_correlation_id())
            Shipped.emit()

        Placed.subscribe(handler)
        Shipped.subscribe(lambda e: seen.append(e.correlation_id))

        async def main():
            with correlation("outer"):
                await Placed.aemit(correlation_id="explicit")
                await Placed.aemit()
                seen.append(current_correlation_id())

        asyncio.run(main())
        assert ["explicit", "explicit", "outer", "outer", "outer"] == seen

    def test_a_failing_async_handler_is_reported(self):
        """What is raised while awaited is reported, and the next handler runs."""
        seen = []

        async def broken(event):
            await asyncio.sleep(0)
            raise ValueError

        Placed.subscribe(broken)
        Placed.subscribe(lambda e: seen.append("next"))
        with capture(HandlerFailedEvent) as recorder:
            asyncio.run(Placed.aemit())
        assert ["next"] == seen
        assert [ValueError] == [type(e.error) for e in recorder]

    def test_a_predicate_holds_back_an_async_handler(self):
        """`when` is asked in `aemit` as in `emit`."""
        seen = []

        async def handler(event):
            seen.append(event.number)

        Placed.subscribe(handler, when=lambda e: e.number == 2)

        async def main():
            for number in range(4):
                await Placed.aemit(number=number)

        asyncio.run(main())
        assert [2] == seen

    def test_cancelling_it_cancels_the_handler(self):
        """A cancelled `aemit` ends in the handler that it awaits."""
        seen = []

        async def handler(event):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        Placed.subscribe(handler)
        Placed.subscribe(lambda e: seen.append("never"))

        async def main():
            task = asyncio.create_task(Placed.aemit())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert ["cancelled"] == seen


class TestPublishing:
    """An event that exists already goes through the same delivery."""

    def test_publish_and_apublish(self):
        """Both deliver the very object, with its own id in force for the handlers."""
        seen = []
        Placed.subscribe(lambda e: seen.append((e, current_correlation_id())))
        event = Placed(number=3, correlation_id="c3")
        event.publish()
        asyncio.run(event.apublish())
        assert [(event, "c3"), (event, "c3")] == seen
        assert all(one is event for one, _ in seen)


class TestPayloads:
    """What an event carries is handed on as it is."""

    def test_a_payload_that_cannot_be_copied(self):
        """A lock, a socket and a cycle reach sync and async handlers; nothing is deep-copied."""
        seen = []
        cycle = {}
        cycle["self"] = cycle

        async def later(event):
            seen.append(event)

        Placed.subscribe(seen.append)
        Placed.subscribe(later)
        with socket.socket() as sock:
            lock = threading.Lock()
            Placed.emit(lock=lock, sock=sock, cycle=cycle, inner=[{"lock": lock}])
            assert 0 == drain(10)
        assert 2 == len(seen)
        for event in seen:
            assert lock is event["lock"]
            assert sock is event["sock"]
            assert lock is event["inner"][0]["lock"]
            assert event["cycle"]["self"]["self"] == event["cycle"]
        assert [cycle] == list(cycle.values())


class TestThreads:
    """Emits from many threads."""

    def test_each_gets_its_own_events(self):
        """Eight threads emit, subscribe and cancel: those who stay get every event exactly once."""
        seen = []
        Placed.subscribe(lambda e: seen.append(e.number))
        numbers = itertools.count()
        start = threading.Barrier(8)

        def work():
            start.wait()
            for _ in range(200):
                with Placed.subscribe(lambda e: None):
                    Placed.emit(number=next(numbers))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(range(1600)) == sorted(seen)


def test_a_run_that_a_handler_starts_does_not_take_over_the_event_s_run():
    """The id that an explicit one gives to a handler's emits is not for a run begun there."""
    ids = []

    def starts_a_run(event):
        with Run() as run:
            ids.append((run.id, run.parent_id))

    Placed.subscribe(starts_a_run)
    Placed.emit(correlation_id="outer")
    asyncio.run(Placed.aemit(correlation_id="outer"))
    assert ["outer", "outer"] == [parent for _, parent in ids]
    assert "outer" not in {own for own, _ in ids}


def test_an_id_that_is_no_text_is_named():
    """The error names the event and the argument, where somebody listens."""
    Placed.subscribe(lambda event: None)
    with pytest.raises(TypeError, match="Placed: `correlation_id` must be a str or None, not 5; pass str"):
        Placed.emit(correlation_id=5)
