"""
Stateful hooks: one instance per hook and run, one lock per run, and nothing left of a run that has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from eventbus import (
    Event,
    EventLogger,
    HandlerFailedEvent,
    HandlerLockTimeoutError,
    Hook,
    adrain,
    configure,
    correlation,
    drain,
    hooks,
    on,
    stats,
)
from eventbus import _stateful as stateful
from eventbus.testing import capture, isolated


class Placed(Event):
    number: int = 0


class Shipped(Event):
    number: int = 0


class Finished(Event):
    ends_run = True


class Failed(Finished):
    pass


@pytest.fixture(autouse=True)
def nothing_is_kept():
    """Check that a test's runs have gone with its hooks."""
    yield
    for info in list(hooks()):
        info.cls.unregister()
    assert 0 == stateful.kept()


def counting(**settings):
    """Define a stateful hook that counts the Placed events of a run; return the list of (run, count)."""
    seen = []

    class Counting(Hook):
        stateful = True

        def __init__(self):
            self.count = 0

        @on(Placed)
        def add(self, event):
            self.count += 1
            seen.append((event.correlation_id, self.count))

    for name, value in settings.items():
        setattr(Counting, name, value)
    Counting.unregister()
    Counting.register()
    return seen


def in_threads(*functions):
    """Run functions at once, each on a thread of its own."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [False] * len(threads) == [thread.is_alive() for thread in threads]


class TestInstances:
    """One instance per (hook, run)."""

    def test_each_run_has_its_own(self):
        """Events of one run meet one instance, those of another another."""
        seen = counting()
        for cid in ("a", "b", "a", "a"):
            Placed.emit(correlation_id=cid)
        assert [("a", 1), ("b", 1), ("a", 2), ("a", 3)] == seen

    def test_an_event_that_nobody_hears_ends_a_run_only_if_its_class_does(self):
        """Whether nobody listens at all, or to another run only."""
        seen = counting()
        for listener in (None, Shipped.subscribe(print, correlation_id="b"), None):
            Placed.emit(correlation_id="a")
            Shipped.emit(correlation_id="a")
            asyncio.run(Shipped.aemit(correlation_id="a"))
            if listener is not None:
                Finished.subscribe(print, correlation_id="b")
        Finished.emit(correlation_id="a")
        Placed.emit(correlation_id="a")
        assert [("a", 1), ("a", 2), ("a", 3), ("a", 1)] == seen

    def test_each_hook_has_its_own(self):
        """Two hooks of one run do not share an instance."""
        seen = []

        class First(Hook):
            stateful = True

            @on(Placed)
            def look(self):
                seen.append(type(self).__name__)

        class Second(First):
            pass

        class Third(Hook):
            stateful = True

            @on(Placed)
            def look(self):
                seen.append(type(self).__name__)

        Placed.emit(correlation_id="a")
        assert ["Second", "Third"] == seen

    def test_all_handlers_of_a_hook_share_it(self):
        """Different handlers, sync and async, work on the run's instance."""
        seen = []

        class Budget(Hook):
            stateful = True

            @on(Placed)
            def start(self):
                self.tools = 0

            @on(Shipped, when=lambda e: e.number > 0)
            async def count(self, event):
                self.tools += event.number
                seen.append(self.tools)

        with correlation():
            Placed.emit()
            for number in range(3):
                Shipped.emit(number=number)
            assert 0 == drain(10)
            assert [1, 3] == seen
            asyncio.run(Shipped.aemit(number=4))
        assert [1, 3, 7] == seen

    def test_without_an_id_one_instance_serves_one_event(self):
        """All handlers of an event without a run share an instance, which is not that of any other event."""
        seen = []

        class Audit(Hook):
            stateful = True

            def __init__(self):
                self.steps = ""

            @on(Placed)
            def first(self):
                self.steps += "first "

            @on(Placed, when=lambda e: e.number < 2)
            def second(self):
                self.steps += "second"
                seen.append(self.steps)

        Placed.emit()
        Placed.emit(number=2)
        Placed.emit(number=1)
        assert ["first second"] * 2 == seen
        Placed.emit(correlation_id="a")
        Placed.emit(correlation_id="a", number=1)
        assert ["first second", "first secondfirst second"] == seen[2:]
        assert 1 == stateful.kept()

    def test_isolation_leaves_outer_instances_alone(self):
        """An end inside ends nothing outside, though the run has the same id."""
        seen = []

        class Outer(Hook):
            stateful = True

            def __init__(self):
                self.count = 0

            @on(Placed)
            def add(self):
                self.count += 1
                seen.append(self.count)

        Placed.emit(correlation_id="a")
        with isolated():
            assert 0 == stateful.kept()
            Outer.register()
            Placed.emit(correlation_id="a")
            assert 1 == stateful.kept()
            Finished.emit(correlation_id="a")
            assert 0 == stateful.kept()
        assert 1 == stateful.kept()
        Placed.emit(correlation_id="a")
        assert [1, 1, 2] == seen

    def test_a_hook_that_goes_in_the_middle_of_a_delivery(self):
        """What its last deliveries of an ended run keep goes with them, its lock included."""

        class First(Hook):
            priority = 1

            @on(Placed)
            def end(self, event):
                Finished.emit(correlation_id=event.correlation_id)

            @on(Finished)
            def let_go(self, event):
                Going.unregister()

        class Going(Hook):
            stateful = True

            @on(Placed, Finished)
            def handle(self, event): ...

        for cid in ("a", "b"):
            Going.register()
            with correlation(cid):
                Placed.emit()
        assert 0 == stateful.kept()

    def test_without_an_id_nothing_is_kept(self):
        """An event of no run has an instance of its own."""
        seen = counting()
        Placed.emit()
        Placed.emit()
        assert [(None, 1), (None, 1)] == seen
        assert 0 == stateful.kept()

    def test_a_constructor_that_raises_leaves_nothing(self):
        """The failure is reported, no instance or lock is kept, and the next event tries again."""
        attempts = []

        class Flaky(Hook):
            stateful = True

            def __init__(self):
                attempts.append(1)
                if len(attempts) == 1:
                    raise ConnectionError

            @on(Placed)
            def audit(self):
                pass

        with capture(HandlerFailedEvent) as recorder:
            Placed.emit(correlation_id="a")
            assert 0 == stateful.kept()
            Placed.emit(correlation_id="a")
        assert [ConnectionError] == [type(e.error) for e in recorder]
        assert 2 == len(attempts)

    def test_unregistering_drops_the_instances(self):
        """A hook that comes back begins anew."""
        seen = counting()
        Placed.emit(correlation_id="a")
        hook = hooks().get("Counting").cls
        hook.unregister()
        assert 0 == stateful.kept()
        hook.register()
        Placed.emit(correlation_id="a")
        assert [("a", 1), ("a", 1)] == seen

    def test_unregistering_inside_a_handler(self):
        """A hook that takes itself out leaves nothing, not even what its handler still does."""

        class Once(Hook):
            stateful = True

            @on(Placed)
            def audit(self, event):
                Once.unregister()
                Shipped.emit()

            @on(Placed)
            def after(self, event):
                pass

        with correlation():
            Placed.emit()
        assert 0 == stateful.kept()

    def test_isolation_drops_inner_instances(self):
        """What was kept for hooks of an isolated scope goes with it."""
        with isolated():
            counting()
            Placed.emit(correlation_id="a")
            assert 1 == stateful.kept()
        assert 0 == stateful.kept()


class TestEnds:
    """Eviction at the end of the run."""

    def test_a_late_failure_at_the_end_leaves_what_has_begun_since(self):
        """An async handler of the end that fails when its run has gone on keeps what that has."""
        seen = counting()

        @Finished.subscribe
        async def fails(event):
            raise ValueError

        async def main():
            Placed.emit(correlation_id="a")
            Finished.emit(correlation_id="a")
            Placed.emit(correlation_id="a")
            assert 0 == await adrain(10)

        asyncio.run(main())
        Placed.emit(correlation_id="a")
        assert [("a", 1), ("a", 1), ("a", 2)] == seen

    def test_an_end_evicts_after_its_handlers(self):
        """Handlers of the event that ends the run see the run's instance; later events a new one."""
        seen = []

        class Total(Hook):
            stateful = True

            def __init__(self):
                self.count = 0

            @on(Placed)
            def add(self):
                self.count += 1

            @on(Finished)
            def tell(self):
                seen.append(self.count)

        for number in range(3):
            with correlation("a"):
                for _ in range(number):
                    Placed.emit()
                Finished.emit()
        assert [0, 1, 2] == seen
        assert 0 == stateful.kept()

    @pytest.mark.parametrize("subscribed", [False, True])
    @pytest.mark.parametrize("event", [Finished, Failed])
    def test_a_hook_that_handles_no_end(self, event, subscribed):
        """It is evicted as well, whether anybody hears the end or not, and by subclasses of it."""
        seen = counting()
        if subscribed:
            event.subscribe(lambda e: None)
        for _ in range(2):
            Placed.emit(correlation_id="a")
            event.emit(correlation_id="a")
        with correlation("a"):
            Placed.emit()
            event.emit()
        assert [("a", 1)] * 3 == seen
        assert 0 == stateful.kept()

    def test_an_end_of_one_run_leaves_the_others(self):
        """Only the run that ended is let go."""
        seen = counting()
        Placed.emit(correlation_id="a")
        Placed.emit(correlation_id="b")
        Finished.emit(correlation_id="a")
        Placed.emit(correlation_id="b")
        assert [("a", 1), ("b", 1), ("b", 2)] == seen
        Finished.emit()
        assert 1 == stateful.kept()

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_also_when_a_handler_raised(self, error):
        """A handler of the end that raises, whatever it raises, keeps nothing."""
        counting()

        def broken(event):
            raise error

        Finished.subscribe(broken)
        Placed.emit(correlation_id="a")
        try:
            Finished.emit(correlation_id="a")
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
        assert 0 == stateful.kept()

    def test_every_way_of_sending_an_end(self):
        """Awaited, published, and published awaited ends count like emitted ones."""
        seen = counting()
        event = Finished(correlation_id="a")

        async def aemit():
            await Finished.aemit(correlation_id="a")

        async def apublish():
            await event.apublish()

        for end in (lambda: asyncio.run(aemit()), event.publish, lambda: asyncio.run(apublish())):
            Placed.emit(correlation_id="a")
            end()
        assert [("a", 1)] * 3 == seen

    def test_ten_thousand_runs_leave_nothing(self):
        """After ten thousand runs there is no instance, lock or counter of evictions."""
        counting()
        before = stats()["evicted"]
        for _ in range(10_000):
            with correlation():
                Placed.emit()
                Finished.emit()
        assert 0 == stateful.kept()
        assert before == stats()["evicted"]

    def test_what_many_runs_needed_is_given_back(self):
        """After many runs at one time the tables have no more room than for a few."""
        counting()
        ids = [str(number) for number in range(5_000)]
        for cid in ids:
            Placed.emit(correlation_id=cid)
        state = stateful._registry.state
        (table,) = state.tables.values()
        assert stateful.SPARE_BYTES < min(state.locks.__sizeof__(), table.by_run.__sizeof__())
        for cid in ids:
            Finished.emit(correlation_id=cid)
        assert stateful.SPARE_BYTES >= max(state.locks.__sizeof__(), table.by_run.__sizeof__())

    def test_an_end_inside_a_handler(self):
        """A handler that ends its own run goes on with its instance; what it emits then leaves nothing."""
        seen = []

        class Ending(Hook):
            stateful = True

            @on(Placed)
            def end(self, event):
                self.mark = "mine"
                Finished.emit()
                seen.append(self.mark)
                Shipped.emit()

            @on(Shipped)
            def late(self, event):
                seen.append(hasattr(self, "mark"))

        with correlation("a"):
            Placed.emit()
        assert ["mine", False] == seen
        assert 0 == stateful.kept()

    def test_an_end_from_another_thread_while_an_instance_is_made(self):
        """An instance whose run ended while it was being made is let go when its handler is done."""
        making, go_on = threading.Event(), threading.Event()

        class Slow(Hook):
            stateful = True

            def __init__(self):
                making.set()
                go_on.wait(10)

            @on(Placed)
            def audit(self):
                pass

        def end():
            making.wait(10)
            Finished.emit(correlation_id="a")
            go_on.set()

        in_threads(lambda: Placed.emit(correlation_id="a"), end)
        assert 0 == stateful.kept()

    def test_an_end_while_another_handler_waits(self):
        """A handler that waited for the lock of a run that ended meanwhile starts a new instance."""
        seen = []
        inside, go_on = threading.Event(), threading.Event()

        class Slow(Hook):
            stateful = True

            def __init__(self):
                self.count = 0

            @on(Placed)
            def audit(self, event):
                self.count += 1
                seen.append((event.number, self.count))
                if event.number == 0:
                    inside.set()
                    go_on.wait(10)

        def second():
            inside.wait(10)
            Placed.emit(number=1, correlation_id="a")

        def end():
            inside.wait(10)
            Finished.emit(correlation_id="a")
            go_on.set()

        in_threads(lambda: Placed.emit(correlation_id="a"), second, end)
        assert [(0, 1), (1, 1)] == seen
        Finished.emit(correlation_id="a")
        assert 0 == stateful.kept()

    def test_many_threads_and_ends(self):
        """Threads that emit into runs which others end leave nothing behind."""
        counting()

        def work(number):
            for turn in range(150):
                cid = f"run{turn % 5}"
                Placed.emit(correlation_id=cid)
                if (turn + number) % 3 == 0:
                    Finished.emit(correlation_id=cid)

        in_threads(*(lambda n=n: work(n) for n in range(6)))
        for number in range(5):
            Finished.emit(correlation_id=f"run{number}")
        assert 0 == stateful.kept()


class TestCapacity:
    """At most so many runs are kept per hook."""

    def test_the_default(self):
        """Ten thousand, unless the hook or `configure` says otherwise."""
        seen = counting()
        before = stats()["evicted"]
        for number in range(10_001):
            Placed.emit(correlation_id=str(number))
        assert 1 == stats()["evicted"] - before
        Placed.emit(correlation_id="1")
        Placed.emit(correlation_id="0")
        assert [("1", 2), ("0", 1)] == seen[-2:]

    def test_the_least_recently_used_goes_first(self):
        """A run that is used stays; the warning names hook, run and capacity."""
        seen = counting(stateful_capacity=2)
        for cid in ("a", "b", "a", "c", "b", "a"):
            Placed.emit(correlation_id=cid)
        assert [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 1), ("a", 1)] == seen

    def test_a_new_run_is_used_later_than_those_before(self):
        """A run that is used before and after another begins has been used last."""
        seen = counting(stateful_capacity=2)
        for cid in ("a", "b", "a", "c", "a", "d", "a"):
            Placed.emit(correlation_id=cid)
        assert [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3), ("d", 1), ("a", 4)] == seen

    def test_it_is_a_warning_and_a_counter(self, caplog):
        """Each eviction is told in a line with the run's id, and counted."""
        configure(logger=logging.getLogger("bus"))
        EventLogger.register()
        counting(stateful_capacity=1)
        before = stats()["evicted"]
        for cid in ("a", "b", "c"):
            Placed.emit(correlation_id=cid)
        assert [("WARNING", "a"), ("WARNING", "b")] == [(r.levelname, r.cid) for r in caplog.records]
        assert all(r.message.endswith("capacity=1") for r in caplog.records)
        assert all("Counting" in r.message for r in caplog.records)
        assert 2 == stats()["evicted"] - before

    def test_the_setting_counts_for_hooks_that_have_none(self):
        """`configure` sets it for hooks that do not say; lowering it counts at the next run."""
        seen = counting()
        for cid in "abc":
            Placed.emit(correlation_id=cid)
        configure(stateful_capacity=1)
        Placed.emit(correlation_id="d")
        Placed.emit(correlation_id="c")
        assert ("c", 1) == seen[-1]
        assert 1 == stateful.kept()

    def test_an_eviction_leaves_the_run_to_other_hooks(self):
        """What another hook keeps for an evicted run lasts until that run ends."""
        counting(stateful_capacity=1)
        seen = counting()
        for cid in ("a", "b", "a"):
            Placed.emit(correlation_id=cid)
        assert 2 == stateful.kept()
        Finished.emit(correlation_id="a")
        Placed.emit(correlation_id="a")
        assert [("a", 1), ("b", 1), ("a", 2), ("a", 1)] == seen

    def test_an_eviction_from_inside(self):
        """A run evicted while its handler runs leaves nothing once that is done."""
        seen = []

        class Nested(Hook):
            stateful = True
            stateful_capacity = 1

            @on(Placed)
            def audit(self, event):
                self.mark = event.correlation_id
                if event.correlation_id == "outer":
                    Placed.emit(correlation_id="inner")
                seen.append(self.mark)

        Placed.emit(correlation_id="outer")
        assert ["inner", "outer"] == seen
        assert 1 == stateful.kept()

    def test_threads_do_not_exceed_it(self):
        """However many threads come with new runs, no more than the capacity is kept."""
        counting(stateful_capacity=3)
        start = threading.Barrier(8)

        def work(number):
            start.wait()
            for turn in range(50):
                Placed.emit(correlation_id=f"{number}-{turn}")

        in_threads(*(lambda n=n: work(n) for n in range(8)))
        assert stateful.kept() <= 3


class CapacityMachine(RuleBasedStateMachine):
    """Runs that come, are used and end at random, against a plain model of least recently used."""

    @initialize(capacity=st.integers(1, 4))
    def start(self, capacity):
        self.scope = isolated()
        self.scope.__enter__()
        self.capacity = capacity
        self.seen = counting(stateful_capacity=capacity)
        self.model = {}

    def teardown(self):
        if hasattr(self, "scope"):
            self.scope.__exit__(None, None, None)
            assert 0 == stateful.kept()

    @rule(cid=st.sampled_from("abcdef"))
    def use(self, cid):
        count = self.model.pop(cid, 0) + 1
        self.model[cid] = count
        if len(self.model) > self.capacity:
            del self.model[next(iter(self.model))]
        Placed.emit(correlation_id=cid)
        assert (cid, count) == self.seen[-1]

    @rule(cid=st.sampled_from("abcdef"))
    def end(self, cid):
        self.model.pop(cid, None)
        Finished.emit(correlation_id=cid)

    @invariant()
    def exactly_those_are_kept(self):
        if hasattr(self, "model"):
            assert len(self.model) == stateful.kept()


CapacityMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20)
TestLeastRecentlyUsed = CapacityMachine.TestCase


class TestLock:
    """The synchronous handlers of one run's stateful hooks run one at a time."""

    def make(self, **settings):
        """Define two stateful hooks whose handlers note who is inside; return the most at one time."""
        state = {"inside": 0, "most": 0, "calls": 0}
        guard = threading.Lock()

        def handler(self, event):
            with guard:
                state["inside"] += 1
                state["most"] = max(state["most"], state["inside"])
                state["calls"] += 1
            time.sleep(0)
            with guard:
                state["inside"] -= 1

        for name in ("First", "Second"):
            body = {
                "stateful": True,
                "__qualname__": f"<locals>.{name}",
                "look": on(Placed)(handler),
                **settings,
            }
            type(name, (Hook,), body)
        return state

    def test_one_at_a_time_for_one_run(self):
        """Whichever threads emit, and whichever hook handles."""
        state = self.make()
        in_threads(*([lambda: [Placed.emit(correlation_id="a") for _ in range(30)]] * 6))
        assert (1, 360) == (state["most"], state["calls"])

    def test_runs_do_not_wait_for_each_other(self):
        """Handlers of different runs can be inside at one time."""
        both = threading.Barrier(2, timeout=10)
        seen = []

        class Meeting(Hook):
            stateful = True

            @on(Placed)
            def meet(self):
                both.wait()
                seen.append("met")

        in_threads(*(lambda c=c: Placed.emit(correlation_id=c) for c in "ab"))
        assert ["met", "met"] == seen

    def test_hooks_that_emit_to_each_other_from_two_threads(self):
        """One lock per run: no order of emits can make two hooks wait for each other."""
        seen = []

        class First(Hook):
            stateful = True
            lock_timeout = 30

            @on(Placed)
            def first(self, event):
                seen.append("placed")
                if event.number:
                    Shipped.emit(number=event.number - 1)

        class Second(Hook):
            stateful = True
            lock_timeout = 30

            @on(Shipped)
            def second(self, event):
                seen.append("shipped")
                if event.number:
                    Placed.emit(number=event.number - 1)

        def work(event):
            with correlation("a"):
                for _ in range(100):
                    event.emit(number=3)

        with capture(HandlerFailedEvent) as recorder:
            in_threads(lambda: work(Placed), lambda: work(Shipped))
        assert 800 == len(seen)
        assert 0 == len(recorder)

    def test_it_is_re_entrant(self):
        """A handler may emit what its own instance handles."""
        seen = []

        class Nested(Hook):
            stateful = True

            @on(Placed)
            def audit(self, event):
                seen.append((event.number, id(self)))
                if event.number:
                    Placed.emit(number=event.number - 1)

        with correlation("a"):
            Placed.emit(number=2)
        assert [2, 1, 0] == [number for number, _ in seen]
        assert 1 == len({one for _, one in seen})

    @pytest.mark.parametrize("own", [0.01, None])
    def test_who_does_not_get_it_is_skipped_and_told(self, own):
        """After the timeout, the hook's or the setting's, it is skipped; the error names the holder."""
        inside, go_on = threading.Event(), threading.Event()
        configure(lock_timeout=10 if own else 0.01)

        class Holder(Hook):
            stateful = True

            @on(Shipped)
            def hold(self):
                inside.set()
                go_on.wait(10)

        class Waiting(Hook):
            stateful = True
            lock_timeout = own

            @on(Placed)
            def audit(self):
                raise AssertionError

        def wait():
            inside.wait(10)
            Placed.emit(correlation_id="a")
            go_on.set()

        with capture(HandlerFailedEvent) as recorder:
            in_threads(lambda: Shipped.emit(correlation_id="a"), wait)
        (failed,) = recorder
        assert isinstance(failed.error, HandlerLockTimeoutError)
        assert isinstance(failed.error, TimeoutError)
        assert (
            "Waiting.audit did not get the lock of run 'a' within 0.01 s and was skipped for Placed; "
            "Holder.hold holds it. Stateful handlers of one run take turns: let the holder do less."
        ) == str(failed.error)

    def test_a_timeout_beyond_what_a_lock_can_wait(self):
        """An endless timeout is one that never ends."""
        seen = []
        inside, go_on = threading.Event(), threading.Event()

        class Holder(Hook):
            stateful = True
            lock_timeout = float("inf")

            @on(Placed)
            def hold(self, event):
                seen.append(event.number)
                inside.set()
                go_on.wait(10)

        def wait():
            inside.wait(10)
            threading.Timer(0.05, go_on.set).start()
            Placed.emit(number=1, correlation_id="a")

        in_threads(lambda: Placed.emit(correlation_id="a"), wait)
        assert [0, 1] == seen

    def test_it_is_not_held_over_an_await(self):
        """While an async handler waits, handlers of its run get in, from its loop and from other threads."""
        seen = []

        class Slow(Hook):
            stateful = True
            lock_timeout = 0.01

            @on(Placed)
            async def slow(self, event):
                seen.append("begins")
                await asyncio.to_thread(Shipped.emit)
                Shipped.emit()
                seen.append("ends")

            @on(Shipped)
            def audit(self, event):
                seen.append("inside")

        async def main():
            with correlation("a"):
                await Placed.aemit()

        asyncio.run(main())
        assert ["begins", "inside", "inside", "ends"] == seen

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_a_handler_that_raises_gives_it_back(self, error):
        """Another thread gets in at once, whatever was raised."""
        seen = []

        class Broken(Hook):
            stateful = True
            lock_timeout = 0.01

            @on(Placed)
            def broken(self):
                raise error

            @on(Shipped)
            def audit(self):
                seen.append("inside")

        try:
            Placed.emit(correlation_id="a")
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
        in_threads(lambda: Shipped.emit(correlation_id="a"))
        assert ["inside"] == seen


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
class TestFork:
    """A child has nobody of the parent's threads to wait for."""

    def wait_for(self, child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_while_another_thread_holds_the_lock(self):
        """The child gets in, and keeps what the parent's instance knew."""
        inside, go_on = threading.Event(), threading.Event()
        parent = os.getpid()

        class Holder(Hook):
            stateful = True
            lock_timeout = 5

            @on(Placed)
            def hold(self):
                self.mark = "parent's"
                inside.set()
                if os.getpid() == parent:
                    go_on.wait(10)

            @on(Shipped)
            def look(self):
                assert "parent's" == self.mark

        thread = threading.Thread(target=lambda: Placed.emit(correlation_id="a"))
        thread.start()
        inside.wait(10)
        child = os.fork()
        if not child:
            with capture(HandlerFailedEvent) as recorder:
                Shipped.emit(correlation_id="a")
            os._exit(len(recorder))
        go_on.set()
        thread.join()
        assert 0 == self.wait_for(child)

    def test_inside_a_handler(self):
        """A handler that forks ends in the child as in the parent."""
        children = []

        class Forking(Hook):
            stateful = True

            @on(Placed)
            def fork(self):
                children.append(os.fork())

        parent = os.getpid()
        with capture(HandlerFailedEvent) as recorder:
            Placed.emit(correlation_id="a")
            if os.getpid() != parent:
                Finished.emit(correlation_id="a")
                os._exit(len(recorder) + stateful.kept())
        assert 0 == self.wait_for(children[0])
        assert 0 == len(recorder)


def test_a_lock_whose_run_has_ended_is_not_kept(monkeypatch):
    """Who has waited for the lock of a run that has ended meanwhile takes that of the run of now."""

    class Locks(dict):
        """Loses its lock as soon as somebody has it."""

        def get(self, cid):
            return self.pop(cid, None) if self.lost == [] else super().get(cid)

        def pop(self, cid, default=None):
            self.lost.append(found := super().pop(cid, default))
            return found

    class Counter(Hook):
        stateful = True

        @on(Placed)
        def count(self):
            pass

    locks = Locks({"run-1": stateful.RunLock()})
    locks.lost = []
    monkeypatch.setattr(stateful._registry.state, "locks", locks)
    (table,) = stateful._registry.state.tables.values()

    run = table._locked("run-1", "Counter.count", Placed())

    assert [run] != locks.lost
    assert run is dict.get(locks, "run-1")
    assert locks.lost[0].lock.acquire(blocking=False)
    run.lock.release()
