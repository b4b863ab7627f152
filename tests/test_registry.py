"""
Signals, receivers and plans: blinker's own API, and what is compiled from it.
"""

from __future__ import annotations

import functools
import gc
import operator
import os
import signal
import threading
import weakref

import blinker
import pytest

from eventbus import Event, Hook, Priority, ProtectedEvent, configure, correlation, drain, on, stats
from eventbus._registry import Keyed, Receiver, lock, name_of, signal_of, target_of, topic_of
from eventbus.testing import isolated


class Base(Event):
    n: int = 0


class Derived(Base):
    pass


class After(ProtectedEvent):
    reverse = True


class TestBlinker:
    """A function connected with blinker's own API receives the event like any observer."""

    def test_every_class_has_its_blinker_signal(self):
        """It is a blinker.Signal, the same at every look, another for each class, and says whose it is."""
        assert isinstance(Base.signal, blinker.Signal)
        assert Base.signal is Base.signal
        assert Base.signal is not Derived.signal
        assert "<signal of Base>" == repr(Base.signal)
        assert "Sent for every Base." == Base.signal.__doc__

    def test_connected_functions_receive_the_event(self):
        """Of the class and its subclasses, in order of registration among all others."""
        seen = []

        def first(event):
            seen.append(("first", event.n))

        Base.signal.connect(first)
        Base.subscribe(lambda event: seen.append(("second", event.n)))
        third = Base.signal.connect(lambda event: seen.append(("third", event.n)), weak=False)
        Base.subscribe(lambda event: seen.append(("before", event.n)), priority=Priority.SECURITY)
        Base.emit(n=1)
        assert [("before", 1), ("first", 1), ("second", 1), ("third", 1)] == seen
        Base.signal.disconnect(third)
        Base.signal.disconnect(first)
        seen.clear()
        Derived.emit(n=2)
        assert [("before", 2), ("second", 2)] == seen

    def test_weak_by_default(self):
        """As everywhere in blinker: what is gone is skipped, and nobody listens then."""
        seen = []

        class Temporary:
            def method(self, event):
                seen.append("method")

        def function(event):
            seen.append("function")

        temporary = Temporary()
        Base.signal.connect(function)
        Base.signal.connect(temporary.method)
        Base.emit()
        assert ["function", "method"] == seen
        del function, temporary
        gc.collect()
        Base.emit()
        assert ["function", "method"] == seen
        assert not Base.has_receivers()

    def test_plans_do_not_keep_weak_functions_alive(self):
        """Neither having emitted nor being about to keeps a weakly connected function."""

        def function(event):
            pass

        alive = weakref.ref(function)
        Base.signal.connect(function)
        Base.emit()
        Derived.emit(correlation_id="run")
        del function
        gc.collect()
        assert alive() is None

    def test_a_function_that_dies_before_the_first_emit(self):
        """It is as if it had not been connected."""
        Base.signal.connect(lambda event: None)
        gc.collect()
        assert not Base.has_receivers()

    def test_a_function_that_dies_during_a_delivery(self):
        """The delivery under way skips it, and later ones know."""
        seen, held = [], []

        def function(event):
            seen.append(event)

        Base.subscribe(lambda event: held.clear())
        Base.signal.connect(function)
        held.append(function)
        del function
        Base.emit()
        assert [] == seen
        assert 1 == len(topic_of(Base).plan())

    def test_emitting_while_a_function_dies(self):
        """Whoever emits from the callback of a dying function's reference does not meet it."""

        def function(event):
            raise AssertionError

        seen = []
        Base.signal.connect(function)
        alive = weakref.ref(function, lambda _: (Base.subscribe(seen.append), Base.emit()))
        del function
        assert 1 == len(seen)
        assert alive() is None

    def test_a_failing_function(self):
        """It is reported like any observer, and the others run."""
        seen = []
        Base.signal.connect(operator.itemgetter("missing"), weak=False)
        Base.subscribe(seen.append)
        before = stats()["failures"]
        Base.emit()
        assert (1, 1) == (len(seen), stats()["failures"] - before)

    def test_an_async_function(self):
        """It is scheduled by emit, as any."""
        seen = []

        async def later(event):
            seen.append(event.n)

        Base.signal.connect(later)
        Base.emit(n=4)
        assert 0 == drain(10)
        assert [4] == seen

    def test_connected_to(self):
        """blinker's context manager listens for the time of a block."""
        seen = []
        with Base.signal.connected_to(seen.append):
            Base.emit(n=1)
        Base.emit(n=2)
        assert [1] == [event.n for event in seen]

    def test_muted(self):
        """blinker's muting silences all who listen to the class, single runs and subclasses included."""
        seen = []
        Base.subscribe(seen.append)
        Base.subscribe(lambda event: seen.append(event), correlation_id="run")
        Derived.subscribe(lambda event: seen.append("derived"))
        with Base.signal.muted():
            assert Base.signal.is_muted
            Base.emit()
            Derived.emit(correlation_id="run")
        assert ["derived"] == seen
        Base.emit()
        assert 2 == len(seen)

    def test_senders_are_refused(self):
        """Every event is its own sender: the error names the way to filter."""
        with pytest.raises(
            TypeError, match=r"cannot filter by sender 'x'.*Use Base\.subscribe\(fn, when=\.\.\.\)"
        ):
            Base.signal.connect(print, sender="x")
        with pytest.raises(TypeError):
            Base.signal.connect_via("x")(print)

    def test_connecting_twice_keeps_the_place(self):
        """A function connected again is where it was; connected anew it is last."""
        seen = []
        first, second = (lambda event: seen.append(1)), (lambda event: seen.append(2))
        for fn in (first, second, first):
            Base.signal.connect(fn)
        Base.emit()
        Base.signal.disconnect(first)
        Base.signal.connect(first)
        Base.emit()
        assert [1, 2, 2, 1] == seen

    def test_disconnecting_a_stranger(self):
        """It changes nothing."""
        Base.signal.disconnect(print)
        assert not Base.has_receivers()

    def test_places_of_the_dead_are_given_up(self):
        """However many functions come and go, not much more is kept than for those that are there."""
        functions = [lambda event, n=n: None for n in range(500)]
        for fn in functions:
            Base.signal.connect(fn)
        assert 500 == len(Base.signal._places)
        del functions, fn
        Base.signal.connect(print)
        assert 1 == len(Base.signal._places)

    def test_places_survive_the_tidying(self):
        """Functions that stay keep their order when the places of others are given up."""
        seen = []
        stay = [lambda event, n=n: seen.append(n) for n in range(5)]
        for fn in stay:
            Base.signal.connect(fn)
            for other in [lambda event, n=n: None for n in range(100)]:
                Base.signal.connect(other)
        del other
        Base.emit()
        assert list(range(5)) == seen

    def test_sending_oneself(self):
        """signal.send calls functions and subscriptions alike, around the promises of delivery."""
        seen = []
        Base.subscribe(seen.append, when=lambda event: event.n)
        Base.signal.connect(functools.partial(seen.append), weak=False)
        Base.signal.send(Base(n=1))
        Base.signal.send(Base(n=0))
        assert [1, 1, 0] == [event.n for event in seen]

    def test_who_connects_is_told_without_a_lock(self):
        """A listener to blinker's `receiver_connected` may wait for a thread that subscribes."""
        import threading

        told = []

        def listener(signal, receiver, **_):
            told.append(receiver)
            if len(told) == 1:
                thread = threading.Thread(target=Base.signal.connect, args=(print,))
                thread.start()
                thread.join(10)
                assert not thread.is_alive()

        Base.signal.receiver_connected.connect(listener)
        Base.signal.connect(repr)
        assert [repr, print] == told


class TestTargets:
    """What makes two callables the same function."""

    def test_functions_are_themselves(self):
        """Another function is another target."""
        assert target_of(print) == target_of(print)
        assert target_of(print) != target_of(repr)
        assert target_of(lambda: 1) != target_of(len)

    def test_methods_are_their_function_and_object(self):
        """For Python's and built-in methods alike."""
        a, b = [], []
        assert target_of(a.append) == target_of(a.append)
        assert target_of(a.append) != target_of(b.append)
        assert target_of(a.append) != target_of(a.extend)
        assert target_of(self.test_functions_are_themselves) == target_of(self.test_functions_are_themselves)

    def test_names(self):
        """A function is named as it is qualified, a partial as its function, an object as its class."""
        assert "list.append" == name_of([].append)
        assert "len" == name_of(functools.partial(functools.partial(len)))
        assert "TestTargets" == name_of(TestTargets())
        assert "TestTargets.test_names" == name_of(self.test_names)
        assert "<receiver x>" == repr(Receiver(print, name="x", target=1, order=(0, 0)))


class TestPlans:
    """What is compiled, and when anew."""

    def test_a_plan_is_kept_until_a_receiver_comes_or_goes(self):
        """Emitting compiles nothing as long as nothing changes."""
        with Base.subscribe(print):
            plan = topic_of(Derived).plan()
            assert plan is topic_of(Derived).plan()
            with Base.subscribe(repr):
                assert 2 == len(topic_of(Derived).plan())
        assert () == topic_of(Derived).plan()

    def test_an_unrelated_event_keeps_its_plan(self):
        """A subscription touches the plans of its class and subclasses only."""
        Base.subscribe(print)
        plan = topic_of(Base).plan()
        with Derived.subscribe(repr):
            assert plan is topic_of(Base).plan()

    def test_ten_thousand_runs_are_one_look_up(self):
        """Subscriptions to single runs do not lengthen the plan of the others."""

        def handle(event):
            pass

        subscriptions = [Base.subscribe(handle, correlation_id=f"r{n}") for n in range(10_000)]
        Base.emit(correlation_id="another")
        assert () == topic_of(Base).plan_for("another") == topic_of(Base).plan_for(None)
        assert 1 == len(topic_of(Base).plan_for("r77"))
        for subscription in subscriptions:
            subscription.cancel()
        assert {} == Base.signal.keyed
        keyed = topic_of(Base).namespace["_eb_KEYED"]
        assert keyed is None or {} == keyed.plans

    def test_the_index_of_runs_goes_when_it_is_empty(self):
        """After the next change an emit looks at nothing but the plan."""
        with Base.subscribe(print, correlation_id="run"):
            topic_of(Base).plan()
            assert isinstance(topic_of(Base).namespace["_eb_KEYED"], Keyed)
        Base.subscribe(print).cancel()
        topic_of(Base).plan()
        assert topic_of(Base).namespace["_eb_KEYED"] is None

    def test_a_change_for_all_reaches_the_plans_of_runs(self):
        """A run's plan is compiled anew when somebody subscribes to all runs."""
        seen = []
        Base.subscribe(lambda event: seen.append("run"), correlation_id="run")
        Base.emit(correlation_id="run")
        Base.subscribe(lambda event: seen.append("all"), priority=1)
        Base.emit(correlation_id="run")
        assert ["run", "all", "run"] == seen

    def test_a_run_s_plan_is_in_the_order_of_all(self):
        """What is subscribed to one run stands where its priority and its turn put it, among the others."""
        seen = []
        for name, options in [
            ("2 all", {"priority": 2}),
            ("2 run", {"priority": 2, "correlation_id": "run"}),
            ("3 all", {"priority": 3}),
            ("1 run", {"priority": 1, "correlation_id": "run"}),
            ("2 late", {"priority": 2}),
            ("9 run", {"priority": 9, "correlation_id": "run"}),
        ]:
            Base.subscribe(lambda event, name=name: seen.append(name), **options)
        Base.emit(correlation_id="run")
        assert ["1 run", "2 all", "2 run", "2 late", "3 all", "9 run"] == seen

    def test_the_slow_handler_setting_renews_plans(self):
        """Handlers are timed from the next event on after it is set, and no longer when it is unset."""
        Base.subscribe(print)
        plain = topic_of(Base).plan()[0]
        configure(slow_handler=5)
        assert plain is not topic_of(Base).plan()[0]
        configure(slow_handler=None)
        assert plain is topic_of(Base).plan()[0]
        plan = topic_of(Base).plan()
        configure(strict=False)
        assert plan is topic_of(Base).plan()

    def test_signals_are_made_at_need(self):
        """A class that nobody listens to costs no signal."""

        class Unheard(Event):
            pass

        Unheard.emit()
        from eventbus import _registry

        assert Unheard not in _registry.state.signals
        assert signal_of(Unheard) is Unheard.signal
        assert Unheard in _registry.state.signals

    def test_several_handlers_of_one_hook_share_an_instance(self):
        """By default one instance lives for one event, whichever of its handlers run."""
        seen = []

        class Pair(Hook):
            @on(Base, when=lambda event: event.n != 1)
            def first(self, event):
                seen.append(("first", self))

            @on(Base)
            def second(self, event):
                seen.append(("second", self))

        Base.emit(n=0)
        Base.emit(n=1)
        Base.emit(n=2)
        names = [name for name, _ in seen]
        assert ["first", "second", "second", "first", "second"] == names
        assert seen[0][1] is seen[1][1]
        assert seen[3][1] is seen[4][1]
        assert 3 == len({id(instance) for _, instance in seen})

    def test_three_handlers_and_predicates_share_it_too(self):
        """Whichever of a hook's handlers run, they work on one instance, which goes with the event."""
        seen = []

        class Three(Hook):
            @on(Base)
            def first(self, event):
                seen.append(self)

            @on(Base)
            def second(self, event):
                seen.append(self)

            @on(Base, when=lambda event: event.n)
            def third(self, event):
                seen.append(self)

        event = Base(n=0)
        event.publish()
        event.publish()
        assert [2, 2] == [seen.count(instance) for instance in dict.fromkeys(seen)]
        assert {"n", "correlation_id", "timestamp"} == set(vars(event))

    def test_three_handlers_of_an_after_gate_share_it_too(self):
        """They run the other way, and the instance goes with the one declared first."""
        seen = []

        class Three(Hook):
            @on(After)
            def first(self, event):
                seen.append(self)

            @on(After)
            def second(self, event):
                seen.append(self)

            @on(After)
            def third(self, event):
                seen.append(self)

        event = After.emit().publish()
        assert [3, 3] == [seen.count(instance) for instance in dict.fromkeys(seen)]
        assert {"correlation_id", "timestamp"} == set(vars(event))

    def test_it_goes_with_the_event_when_the_last_handler_is_marked_twice(self):
        """Two `@on` of one method that match one event are one handler."""
        seen = []

        class Twice(Hook):
            @on(Base)
            def first(self, event):
                seen.append(self)

            @on(Base)
            @on(Base, when=lambda event: False)
            def last(self, event):
                seen.append(self)

        event = Base(n=0)
        event.publish()
        event.publish()
        assert [2, 2] == [seen.count(instance) for instance in dict.fromkeys(seen)]

    def test_the_instance_is_no_part_of_the_event(self):
        """A handler that copies or shows the event does not see the hook's instance on it."""
        import pickle

        copies = []

        class Pair(Hook):
            @on(Base)
            def first(self, event):
                copies.append(pickle.loads(pickle.dumps(event)))

            @on(Base)
            def second(self, event):
                copies.append(repr(event))

        Base.emit(n=3, timestamp=1.0, raw=2)
        assert "Base(n=3, raw=2, correlation_id=None, timestamp=1.0)" == repr(copies[0]) == copies[1]
        assert not [key for key in vars(copies[0]) if key.startswith("_instance_of_")]


class TestIsolatedState:
    """What `isolated()` swaps."""

    def test_plans_follow_the_registry(self):
        """A plan compiled outside is not used inside, nor the other way round; runs' plans included."""
        seen = []
        Base.subscribe(lambda event: seen.append("outer"))
        Base.subscribe(lambda event: seen.append("outer run"), correlation_id="run")
        with correlation("run"):
            Base.emit()
            with isolated():
                Base.emit()
                Base.subscribe(lambda event: seen.append("inner run"), correlation_id="run")
                Base.emit()
            Base.emit()
        assert ["outer", "outer run", "inner run", "outer", "outer run"] == seen


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
class TestFork:
    """A child that is forked while the registry changes can go on changing it."""

    def test_while_another_thread_holds_the_lock(self):
        """The child subscribes and emits, though nobody is left in it who could have let go of the lock."""
        held, forked = threading.Event(), threading.Event()

        def hold():
            with lock:
                held.set()
                # The fork waits for the lock, so this thread cannot wait for the fork, only give it time.
                forked.wait(0.2)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(10)
            seen = []
            Derived.subscribe(seen.append)
            Derived.emit()
            os._exit(0 if 1 == len(seen) else 1)
        forked.set()
        thread.join()

        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        Derived.subscribe(lambda event: None).cancel()

    def test_by_the_thread_that_holds_the_lock(self):
        """The thread that forks still holds the lock in both processes, once, and can give it back."""
        with lock:
            child = os.fork()
            if not child:
                signal.alarm(10)
        if not child:
            seen = []
            Derived.subscribe(seen.append)
            thread = threading.Thread(target=Derived.emit)
            thread.start()
            thread.join()
            os._exit(0 if 1 == len(seen) else 1)

        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
