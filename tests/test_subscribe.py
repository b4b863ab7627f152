"""
Subscribing functions: what is accepted, how often a function is called, and when a subscription ends.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import importlib
import inspect
import pickle
import sys
import threading
import weakref
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import (
    Event,
    HandlerFailedEvent,
    Priority,
    ProtectedEvent,
    Subscription,
    _registry,
    carry_context,
    correlation,
    drain,
)
from eventbus.testing import capture, isolated, strict


class Base(Event):
    n: int = 0


class Derived(Base):
    pass


class Other(Event):
    n: int = 0


calls = []


@Other.subscribe
def decorated(event, more=1):
    """Remember the event."""
    calls.append(event)
    return more


class TestForms:
    """How a function is subscribed."""

    def test_as_a_call(self):
        """subscribe(fn) returns a Subscription, active until it is cancelled."""
        seen = []
        subscription = Base.subscribe(seen.append)
        assert isinstance(subscription, Subscription)
        assert subscription.active
        Base.emit(n=1)
        subscription.cancel()
        Base.emit(n=2)
        assert not subscription.active
        assert [1] == [event.n for event in seen]

    def test_cancel_is_idempotent(self):
        """Cancelling again changes nothing, not even for another subscription of the function."""
        seen = []
        first, _second = Base.subscribe(seen.append), Base.subscribe(seen.append)
        first.cancel()
        first.cancel()
        Base.emit()
        assert 1 == len(seen)

    def test_as_a_context_manager(self):
        """It is cancelled when the block is left, also by an exception."""
        seen = []
        with pytest.raises(ZeroDivisionError), Base.subscribe(seen.append) as subscription:
            Base.emit()
            raise ZeroDivisionError
        Base.emit()
        assert (1, False) == (len(seen), subscription.active)

    def test_as_a_decorator(self):
        """With or without arguments; the name then still works as the function."""
        seen = []

        @Base.subscribe
        def plain(event):
            seen.append(("plain", event.n))
            return 7

        @Base.subscribe(priority=Priority.SECURITY, when=lambda event: event.n > 1)
        def first(event, more=None):
            seen.append(("first", event.n))

        Base.emit(n=1)
        Base.emit(n=2)
        assert [("plain", 1), ("first", 2), ("plain", 2)] == seen
        assert 7 == plain(Base(n=3))
        first(Base(n=4), more=1)
        assert [("plain", 3), ("first", 4)] == seen[3:]
        plain.cancel()
        Base.emit(n=1)
        assert 5 == len(seen)

    def test_a_decorated_function_looks_like_itself(self):
        """Name, docstring and attributes are the function's; it pickles by name, as a function does."""
        assert ("decorated", "Remember the event.", __name__) == (
            decorated.__name__,
            decorated.__doc__,
            decorated.__module__,
        )
        assert decorated is pickle.loads(pickle.dumps(decorated))
        assert decorated is copy.copy(decorated)
        decorated.__wrapped__.tag = "x"
        assert "x" == decorated.tag
        with pytest.raises(AttributeError):
            decorated.nothing
        with pytest.raises(AttributeError):
            decorated.__nothing__

    def test_decorators_stack(self):
        """A function may listen to several events; each subscription ends on its own."""
        seen = []

        @Base.subscribe
        @Other.subscribe
        def both(event):
            seen.append(type(event))

        Base.emit()
        Other.emit()
        both.cancel()
        Base.emit()
        Other.emit()
        assert [Base, Other, Other] == seen

    def test_a_subscription_can_be_subscribed(self):
        """It counts as its function, weak or not."""
        seen = []
        append = seen.append
        for weak in (False, True):
            fn = (lambda event: append(event)) if weak else append
            subscription = Base.subscribe(fn, weak=weak)
            with Base.subscribe(subscription):
                Base.signal.connect(subscription)
                Base.emit()
            subscription.cancel()
            Base.signal.disconnect(subscription)
        assert 2 == len(seen)

    def test_the_repr_tells_its_state(self):
        """It names the function, the event and whether it is active."""
        subscription = Base.subscribe(print)
        assert "<subscription of print to Base, active>" == repr(subscription)
        subscription.cancel()
        assert "<subscription of print to Base, cancelled>" == repr(subscription)

    def test_special_names_are_its_own(self):
        """What Python or a library looks for under such a name on a function is not the subscription's."""

        def handle(event):
            pass

        handle.__protocol__ = handle.plain = True
        subscription = Base.subscribe(handle)
        assert (True, False) == (subscription.plain, hasattr(subscription, "__protocol__"))

    def test_attributes_of_a_callable_do_not_disturb(self):
        """An object with attributes of the names a subscription uses is subscribed like any."""

        class Handler:
            def __init__(self):
                self._signal = self._receiver = self._function = self.cancel = None
                self.seen = []

            def __call__(self, event):
                self.seen.append(event)

        handler = Handler()
        subscription = Base.subscribe(handler)
        Base.emit()
        subscription.cancel()
        Base.emit()
        assert 1 == len(handler.seen) == len(subscription.seen)

    def test_a_decorated_async_function(self):
        """Its name still works as the async function, and carries a context as one."""
        seen = []

        @Base.subscribe
        async def handle(event):
            seen.append(event.n)

        asyncio.run(handle(Base(n=1)))
        asyncio.run(carry_context(handle)(Base(n=2)))
        Base.emit(n=3)
        assert 0 == drain(10)
        assert [1, 2, 3] == seen


class TestAccepted:
    """What can be subscribed."""

    def test_callables_of_any_kind(self):
        """Functions, lambdas, bound methods, built-ins, partials, classes, callable objects and mocks."""
        seen, mock = [], Mock()

        class Collects:
            def method(self, event):
                seen.append("method")

            @classmethod
            def class_method(cls, event):
                seen.append("class method")

            @staticmethod
            def static_method(event):
                seen.append("static method")

            def __call__(self, event):
                seen.append("object")

        class Made:
            def __init__(self, event):
                seen.append("class")

        for fn in (
            Collects().method,
            Collects.class_method,
            Collects.static_method,
            Collects(),
            Made,
            lambda event: seen.append("lambda"),
            functools.partial(lambda word, event: seen.append(word), "partial"),
            [].append,
            mock,
            {}.get,
        ):
            Base.subscribe(fn)
        Base.emit()
        assert ["method", "class method", "static method", "object", "class", "lambda", "partial"] == seen
        mock.assert_called_once()

    @pytest.mark.parametrize(
        ("fn", "problem"),
        [
            (3, "must be callable, not 3"),
            (lambda: None, "must take the event"),
            (lambda event, more: None, "needs more arguments than the event: more; give them defaults"),
            (lambda event, *, more: None, "needs more arguments than the event: more"),
            (lambda *, event: None, "needs more arguments than the event: event"),
        ],
    )
    def test_what_does_not_take_the_event(self, fn, problem):
        """It is a TypeError that names the event class, the function and the fix."""
        with pytest.raises(TypeError, match=rf"^Base\.subscribe: .*{problem}"):
            Base.subscribe(fn)

    def test_generator_functions(self):
        """Their bodies would never run."""

        def generator(event):
            yield

        async def async_generator(event):
            yield

        for fn in (generator, async_generator):
            with pytest.raises(TypeError, match="is a generator function, whose body would never run"):
                Base.subscribe(fn)

    def test_callables_that_do_not_tell_their_signature(self):
        """Some built-ins have none; they are taken at their word."""
        seen = []

        class Silent:
            __signature__ = "none"

            def __call__(self, event):
                seen.append(event)

        Base.subscribe(Silent())
        Base.emit()
        assert 1 == len(seen)

    def test_names_are_found_without_harm(self):
        """A callable whose attributes raise, or answer to any name, is subscribed like another."""

        class Hostile:
            def __getattr__(self, name):
                if name == "__qualname__":
                    raise RuntimeError
                if name.startswith("__"):
                    raise AttributeError(name)
                return self

            def __call__(self, event):
                pass

        assert "Hostile" in repr(Base.subscribe(Hostile()))

    @pytest.mark.parametrize("priority", [1.5, "1", None])
    def test_priority_must_be_an_int(self, priority):
        """Anything else is a TypeError."""
        with pytest.raises(TypeError, match=r"^Base\.subscribe: `priority` must be an int, not "):
            Base.subscribe(print, priority=priority)

    def test_when_must_be_a_plain_function(self):
        """No value, and nothing async, whose result would always be true."""

        async def later(event):
            return False

        class Later:
            async def __call__(self, event):
                return False

        with pytest.raises(TypeError, match=r"^`when` of print must be a function of the event, not True"):
            Base.subscribe(print, when=True)
        for when in (later, functools.partial(later), Later()):
            with pytest.raises(TypeError, match=r"^`when` of print is an async function"):
                Base.subscribe(print, when=when)

    def test_correlation_id_must_be_a_str(self):
        """A UUID or a number would match no event."""
        with pytest.raises(
            TypeError, match=r"^Base\.subscribe: `correlation_id` must be a str or None, not 7; pass str"
        ):
            Base.subscribe(print, correlation_id=7)

    def test_weak_as_a_decorator(self):
        """It would leave nothing that holds the function."""
        with pytest.raises(TypeError, match=r"^Base\.subscribe\(weak=True\) as a decorator"):
            Base.subscribe(weak=True)


class TestFilters:
    """Who receives what."""

    def test_when_decides(self):
        """The predicate sees the event; any true value is a yes."""
        seen = []
        Base.subscribe(seen.append, when=lambda event: event.n % 2)
        for n in range(4):
            Base.emit(n=n)
        assert [1, 3] == [event.n for event in seen]

    def test_one_run_only(self):
        """With `correlation_id`, a function receives that run's events, and no event without a run."""
        seen = []
        Base.subscribe(lambda event: seen.append(("a", event.n)), correlation_id="a")
        Base.subscribe(lambda event: seen.append(("all", event.n)))
        with correlation("a"):
            Base.emit(n=1)
            Base.emit(n=2, correlation_id="b")
        Base.emit(n=3)
        Base.emit(n=4, correlation_id="a")
        assert [("a", 1), ("all", 1), ("all", 2), ("all", 3), ("a", 4), ("all", 4)] == seen

    def test_two_users_runs_at_once(self):
        """Each of two interleaved runs is heard by its own listener only."""
        seen = {"a": [], "b": []}
        turn = threading.Barrier(2)

        def run(cid):
            with correlation(cid), Base.subscribe(seen[cid].append, correlation_id=cid):
                for n in range(50):
                    turn.wait(10)
                    Base.emit(n=n)

        threads = [threading.Thread(target=run, args=(cid,)) for cid in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for cid, events in seen.items():
            assert [(cid, n) for n in range(50)] == [(event.correlation_id, event.n) for event in events]

    def test_a_subscription_to_a_run_leaves_nothing_behind(self):
        """Once cancelled, the run is forgotten by the signal and by every plan."""
        for n in range(1000):
            with Base.subscribe(print, correlation_id=f"run-{n}"):
                Derived.emit(correlation_id="another")
        assert {} == Base.signal.keyed
        assert not Base.has_receivers()
        assert not Derived.has_receivers()

    def test_a_base_class_receives_its_subclasses(self):
        """Also those defined later, and the root receives every observed event."""
        seen = []
        Base.subscribe(lambda event: seen.append(("base", type(event).__name__)))
        Event.subscribe(lambda event: seen.append(("root", type(event).__name__)))

        class Later(Derived):
            pass

        for event_class in (Base, Derived, Later, Other):
            event_class.emit()
        assert [
            ("base", "Base"),
            ("root", "Base"),
            ("base", "Derived"),
            ("root", "Derived"),
            ("base", "Later"),
            ("root", "Later"),
            ("root", "Other"),
        ] == seen

    def test_several_bases(self):
        """An event of two event classes reaches the subscribers of both, each once."""

        class Left(Event):
            pass

        class Right(Event):
            pass

        class Both(Left, Right):
            pass

        seen = []
        for event_class in (Left, Right, Event, Both):
            event_class.subscribe(seen.append)
        Left.subscribe(lambda event: seen.append("left"))
        Right.subscribe(lambda event: seen.append("right"))
        Both.emit()
        assert [Both(), "left", "right"] == seen


class TestOnce:
    """An event reaches one function at most once, whichever of its subscriptions match."""

    def test_twice_on_one_event(self):
        """A second subscription changes nothing until the first is cancelled."""
        seen = []
        first, second = Base.subscribe(seen.append), Base.subscribe(seen.append)
        Base.emit(n=1)
        first.cancel()
        Base.emit(n=2)
        second.cancel()
        Base.emit(n=3)
        assert [1, 2] == [event.n for event in seen]

    def test_on_a_class_and_its_base(self):
        """The subclass's event is received once, the base's once."""
        seen = []
        Base.subscribe(seen.append)
        Derived.subscribe(seen.append)
        Event.subscribe(seen.append)
        Derived.emit()
        Base.emit()
        assert [Derived, Base] == [type(event) for event in seen]

    def test_for_two_runs_and_for_all(self):
        """A function may listen to several runs; each event is received once."""
        seen = []
        Base.subscribe(seen.append, correlation_id="a")
        Base.subscribe(seen.append, correlation_id="b")
        for cid in ("a", "b", "c"):
            Base.emit(correlation_id=cid)
        Base.subscribe(seen.append)
        for cid in ("a", "b", "c"):
            Base.emit(correlation_id=cid)
        assert ["a", "b", "a", "b", "c"] == [event.correlation_id for event in seen]

    def test_any_of_the_predicates(self):
        """Of several subscriptions with `when=`, one that says yes is enough; one without says yes to all."""
        seen, small = [], functools.partial(lambda limit, event: event.n < limit, 2)
        Base.subscribe(seen.append, when=small)
        Base.subscribe(seen.append, when=small)
        Base.subscribe(seen.append, when=lambda event: event.n > 4)
        for n in range(7):
            Base.emit(n=n)
        assert [0, 1, 5, 6] == [event.n for event in seen]
        Base.subscribe(seen.append)
        Base.emit(n=3)
        assert 3 == seen[-1].n

    def test_a_predicate_without_a_hash(self):
        """Predicates are told apart by identity: they need no hash, and no sane equality."""

        class Predicate:
            __hash__ = None

            def __eq__(self, other):
                raise AssertionError

            def __call__(self, event):
                return True

        seen = []
        Base.subscribe(seen.append, when=Predicate())
        Base.subscribe(seen.append, when=Predicate())
        Base.emit()
        assert 1 == len(seen)

    def test_bound_methods(self):
        """Each access makes another object; the method of one object is one function, of two it is two."""

        class Counter:
            def __init__(self):
                self.n = 0

            def __eq__(self, other):
                return True

            __hash__ = None

            def count(self, event):
                self.n += 1

        a, b = Counter(), Counter()
        for counter in (a, b, a):
            Base.subscribe(counter.count)
        Base.emit()
        assert (1, 1) == (a.n, b.n)

    def test_through_blinker_as_well(self):
        """A function connected with blinker's API counts as the same function."""
        seen = []

        @Base.subscribe
        def handle(event):
            seen.append(event)

        Base.signal.connect(handle)
        Base.signal.connect(handle.__wrapped__)
        Derived.signal.connect(handle.__wrapped__)
        Derived.emit()
        assert 1 == len(seen)

    @given(
        wanted=st.lists(
            st.tuples(
                st.integers(0, 3),  # which function
                st.sampled_from([Base, Derived, Event, Other]),
                st.integers(-2, 2),  # its priority
                st.sampled_from([None, "a", "b"]),
                st.sampled_from([None, 0, 1]),  # the remainder that `when` asks for
                st.booleans(),  # whether it is cancelled again
            ),
            max_size=8,
        )
    )
    def test_each_function_once_in_order(self, wanted):
        """Whatever is subscribed, an event calls each function once, by priority, then registration."""
        with isolated():
            seen, functions = [], [lambda event, i=i: seen.append(i) for i in range(4)]
            kept = []
            for which, event_class, priority, cid, remainder, cancelled in wanted:
                when = None if remainder is None else lambda event, r=remainder: event.n % 2 == r
                subscription = event_class.subscribe(
                    functions[which], priority=priority, correlation_id=cid, when=when
                )
                if cancelled:
                    subscription.cancel()
                else:
                    kept.append((which, event_class, priority, cid, remainder))
            for event_class in (Base, Derived, Other):
                for cid in (None, "a", "b", "c"):
                    for n in (0, 1):
                        hears = [
                            (priority, place, which, remainder)
                            for place, (which, base, priority, own, remainder) in enumerate(kept)
                            if issubclass(event_class, base) and own in (None, cid)
                        ]
                        expected = []
                        for _, _, which, _ in sorted(hears):
                            wishes = [r for _, _, other, r in hears if other == which]
                            if which not in expected and (None in wishes or n in wishes):
                                expected.append(which)
                        seen.clear()
                        event_class.emit(n=n, correlation_id=cid)
                        assert expected == seen


class TestOrder:
    """By priority, lower first, then in order of registration."""

    def test_ten_thousand_handlers_keep_their_order(self):
        """Through subscribe and through blinker alike."""
        for connect in (Base.subscribe, functools.partial(Other.signal.connect, weak=False)):
            seen = []
            for n in range(10_000):
                connect(lambda event, n=n: seen.append(n))
            (Base if connect == Base.subscribe else Other).emit()
            assert list(range(10_000)) == seen

    def test_security_is_first_whoever_comes_first(self):
        """A priority below the default goes before what was registered earlier."""
        seen = []
        Base.subscribe(lambda event: seen.append("default"))
        Base.subscribe(lambda event: seen.append("business"), priority=Priority.BUSINESS)
        Base.subscribe(lambda event: seen.append("observability"), priority=Priority.OBSERVABILITY)
        Base.subscribe(lambda event: seen.append("security"), priority=Priority.SECURITY)
        Base.subscribe(lambda event: seen.append("any int"), priority=-7)
        Base.emit()
        assert ["any int", "security", "observability", "business", "default"] == seen

    def test_the_named_priorities(self):
        """They are ints, in bands of a hundred."""
        assert {"SECURITY": 50, "OBSERVABILITY": 150, "BUSINESS": 250, "DEFAULT": 300} == {
            priority.name: int(priority) for priority in Priority
        }

    def test_dispatch_works_from_a_snapshot(self):
        """A handler may subscribe and cancel; that counts from the next event on."""
        seen = []

        @Base.subscribe
        def first(event):
            seen.append("first")
            if event.n == 1:
                late.cancel()
                Base.subscribe(lambda event: seen.append("new"))

        late = Base.subscribe(lambda event: seen.append("late"))
        Base.emit(n=1)
        assert ["first", "late"] == seen
        Base.emit(n=2)
        assert ["first", "late", "first", "new"] == seen


class TestReferences:
    """What keeps a function alive, and what does not."""

    def test_strong_by_default(self):
        """A lambda, a closure, a bound method of a temporary and a callable object survive a collection."""
        seen = []

        class Temporary:
            def method(self, event):
                seen.append("method")

            def __call__(self, event):
                seen.append("object")

        def closure(word):
            def inner(event):
                seen.append(word)

            return inner

        Base.subscribe(lambda event: seen.append("lambda"))
        Base.subscribe(closure("closure"))
        Base.subscribe(Temporary().method)
        Base.subscribe(Temporary())
        Base.subscribe(functools.partial(closure("partial")))
        gc.collect()
        Base.emit()
        assert ["lambda", "closure", "method", "object", "partial"] == seen

    def test_cancelling_lets_go(self):
        """What was subscribed strongly can be collected after cancel."""

        class Held:
            def method(self, event):
                pass

        held = Held()
        alive = weakref.ref(held)
        Base.subscribe(held.method).cancel()
        Base.subscribe(held.method, correlation_id="run").cancel()
        Base.emit()
        del held
        gc.collect()
        assert alive() is None

    def test_weak_targets_are_skipped_when_dead(self):
        """A function, a method or an object that is gone receives nothing, and listens no more."""
        seen = []

        class Temporary:
            def method(self, event):
                seen.append("method")

            def __call__(self, event):
                seen.append("object")

        def function(event):
            seen.append("function")

        temporary = Temporary()
        subscriptions = [Base.subscribe(fn, weak=True) for fn in (function, temporary.method, temporary)]
        Base.emit()
        assert ["function", "method", "object"] == seen
        subscriptions[0](None)
        del function, temporary
        gc.collect()
        assert not Base.has_receivers()
        Base.emit()
        assert 4 == len(seen)
        assert [False] * 3 == [subscription.active for subscription in subscriptions]
        with pytest.raises(ReferenceError, match=r"was subscribed with weak=True and is gone"):
            subscriptions[0](None)
        for subscription in subscriptions:
            subscription.cancel()

    def test_a_weak_subscription_to_a_run(self):
        """It is forgotten with its function too."""

        def function(event):
            pass

        subscription = Base.subscribe(function, weak=True, correlation_id="run")
        assert Base.has_receivers()
        del function
        gc.collect()
        assert not Base.has_receivers()
        assert {} == Base.signal.keyed
        assert not subscription.active
        subscription.cancel()

    def test_a_weak_target_that_dies_while_it_is_delivered(self):
        """One that is gone between two handlers of one event is skipped."""
        seen, held = [], []

        def function(event):
            seen.append(event)

        Base.subscribe(lambda event: (held.clear(), gc.collect()))
        Base.subscribe(function, weak=True)
        held.append(function)
        del function
        Base.emit()
        assert [] == seen

    def test_nothing_is_kept_for_a_module_function_that_died(self):
        """The record of where a function was defined goes with it."""
        namespace = {"__name__": "short"}
        exec("def function(event): pass", namespace)
        Base.subscribe(namespace["function"], weak=True)
        assert Base.signal.origins
        namespace.clear()
        gc.collect()
        assert {} == Base.signal.origins


def cell(source, namespace, filename="<cell>"):
    """Execute text as a notebook does: compiled anew each time."""
    exec(compile(source, filename, "exec"), namespace)


class TestDefinedAgain:
    """A reload, or a notebook cell run n times: one call per event."""

    SOURCE = "@Base.subscribe\ndef handle(event):\n    seen.append(event.n)\n"

    def namespace(self):
        return {"__name__": "notebook", "Base": Base, "seen": []}

    def test_a_cell_run_n_times(self):
        """The function defined last is the one that is called, at the place of the first."""
        namespace = self.namespace()
        cell(self.SOURCE, namespace)
        Base.subscribe(lambda event: namespace["seen"].append("after"))
        for _ in range(3):
            cell(self.SOURCE, namespace)
        Base.emit(n=1)
        assert [1, "after"] == namespace["seen"]
        namespace["handle"].cancel()
        Base.emit(n=2)
        assert [1, "after", "after"] == namespace["seen"]

    def test_an_edited_cell(self):
        """A cell with another text, and so another name, replaces what it defined before."""
        namespace = self.namespace()
        cell(self.SOURCE, namespace, "<cell 1>")
        cell("\n\n" + self.SOURCE.replace("event.n", "-event.n"), namespace, "<cell 2>")
        Base.emit(n=1)
        assert [-1] == namespace["seen"]

    def test_the_same_compiled_text_executed_again(self):
        """Code that is compiled once and executed n times defines one function."""
        namespace = self.namespace()
        code = compile(self.SOURCE, "<cell>", "exec")
        for _ in range(3):
            exec(code, namespace)
        Base.emit(n=1)
        assert [1] == namespace["seen"]

    def test_a_cell_that_subscribes_under_several_forms(self):
        """A subclass, a run and a decorator do not multiply it either."""
        namespace = {**self.namespace(), "Derived": Derived, "wraps": functools.wraps}
        source = (
            "def loud(fn):\n    @wraps(fn)\n    def inner(event): return fn(event)\n    return inner\n"
            "@Base.subscribe\n@loud\ndef handle(event): seen.append(event.n)\n"
            "@Derived.subscribe\nasync def later(event): seen.append(-event.n)\n"
        )
        for _ in range(3):
            cell(source, namespace)
        Derived.emit(n=1)
        assert 0 == drain(10)
        assert [1, -1] == namespace["seen"]

    def test_a_reloaded_module(self, tmp_path, monkeypatch):
        """importlib.reload leaves one function, also where its lines have moved."""
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        path = tmp_path / "reloaded_hooks.py"
        body = "from test_subscribe import Base\nseen = globals().get('seen', [])\n"
        path.write_text(body + self.SOURCE)
        module = importlib.import_module("reloaded_hooks")
        try:
            for n in range(1, 4):
                path.write_text(body + "\n" * n + self.SOURCE)
                importlib.reload(module)
            sys.modules["test_subscribe"].Base.emit(n=1)
        finally:
            del sys.modules["reloaded_hooks"]
        assert [1] == module.seen

    def test_functions_of_one_name_in_one_file(self):
        """They are several functions, decorated by the same decorator or not."""
        namespace = {**self.namespace(), "wraps": functools.wraps}
        cell(
            "def loud(fn):\n    @wraps(fn)\n    def inner(event): return fn(event)\n    return inner\n"
            "@Base.subscribe\ndef _(event): seen.append(1)\n"
            "@Base.subscribe\ndef _(event): seen.append(2)\n"
            "@Base.subscribe\n@loud\ndef _(event): seen.append(3)\n"
            "@Base.subscribe\n@loud\ndef _(event): seen.append(4)\n",
            namespace,
        )
        Base.emit()
        assert [1, 2, 3, 4] == namespace["seen"]

    def test_functions_made_by_a_loop(self):
        """One statement in a loop makes several functions, told by their defaults or their decorator."""
        namespace = {**self.namespace(), "wraps": functools.wraps}
        cell(
            "def for_(n):\n    def decorate(fn):\n"
            "        @wraps(fn)\n        def inner(event): seen.append(n)\n"
            "        return inner\n    return decorate\n"
            "for n in 'abc':\n    @Base.subscribe\n    def handle(event, n=n): seen.append(n)\n"
            "for n in 'de':\n    @Base.subscribe\n    def named(event, *, n=n): seen.append(n)\n"
            "for n in 'fg':\n    @Base.subscribe\n    @for_(n)\n    def wrapped(event): pass\n",
            namespace,
        )
        Base.emit()
        assert list("abcdefg") == namespace["seen"]

    def test_the_same_name_in_two_modules(self):
        """They are two functions, and so are those of two namespaces of one name."""
        one, two, again = self.namespace(), {**self.namespace(), "__name__": "other"}, self.namespace()
        for namespace in (one, two, again):
            cell(self.SOURCE, namespace)
        Base.emit(n=1)
        assert [[1], [1], [1]] == [namespace["seen"] for namespace in (one, two, again)]

    def test_local_functions_are_always_new(self):
        """What a function makes is never taken for what it made before."""
        seen = []

        def subscribe(n):
            @Base.subscribe
            def handle(event):
                seen.append(n)

        subscribe(1)
        subscribe(2)
        Base.emit()
        assert [1, 2] == seen

    def test_closures_that_are_named_by_hand(self):
        """What one statement makes again is another function, if it is a closure, whatever it is called."""
        seen = []

        def make(n):
            def handle(event):
                seen.append(n)

            handle.__qualname__ = "handle"
            return handle

        Base.subscribe(make(1))
        Base.subscribe(make(2))
        Base.emit()
        assert [1, 2] == seen

    def test_what_wraps_something_else(self):
        """A function that says it wraps a callable object is told by its own code."""
        namespace = {**self.namespace(), "wraps": functools.wraps, "partial": functools.partial}
        source = (
            "inner = partial(seen.append)\n"
            "@Base.subscribe\n@wraps(inner)\ndef handle(event): seen.append(event.n)\n"
        )
        for _ in range(2):
            cell(source, namespace)
        Base.emit(n=1)
        assert [1] == namespace["seen"]


class TestThreads:
    """Eight threads subscribing, cancelling and emitting."""

    def test_no_error_no_lost_or_doubled_delivery(self):
        """Those who stayed receive every event of every thread once, in each thread's order."""
        per_thread, workers = 300, 8
        stayed, errors = {name: [] for name in ("base", "derived", "root")}, []
        Base.subscribe(lambda event: stayed["base"].append((event.worker, event.n)))
        Shared.subscribe(lambda event: stayed["derived"].append((event.worker, event.n)))
        Event.subscribe(lambda event: stayed["root"].append((event.worker, event.n)))
        own = {worker: [] for worker in range(workers)}
        start = threading.Barrier(workers)

        def work(worker):
            try:
                start.wait(30)
                cid = f"run-{worker}"
                with Shared.subscribe(own[worker].append, correlation_id=cid):
                    for n in range(per_thread):
                        visitor = Base.subscribe(lambda event: None, priority=n % 7)
                        keyed = Shared.subscribe(lambda event: None, correlation_id=f"{cid}-{n}")
                        Shared.signal.connect(ignore)
                        Shared.signal.disconnect(ignore)
                        Shared.emit(worker=worker, n=n, correlation_id=cid)
                        visitor.cancel()
                        keyed.cancel()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert [] == [error for error in errors if isinstance(error, BaseException)]
        expected = [(worker, n) for worker in range(workers) for n in range(per_thread)]
        for received in stayed.values():
            assert expected == sorted(received)
            for worker in range(workers):
                assert list(range(per_thread)) == [n for w, n in received if w == worker]
        assert [list(range(per_thread))] * workers == [
            [event.n for event in events] for events in own.values()
        ]
        assert {} == Shared.signal.keyed
        assert 3 == sum(len(signal.receivers) for signal in _registry.state.signals.values())


class Shared(Base):
    worker: int = 0


def ignore(event):
    """Receive an event, and do nothing."""


def test_a_subscription_of_an_isolated_scope_is_over_with_it():
    """After the scope it is not active, and cancelling it does nothing."""
    with isolated():
        subscription = Base.subscribe(calls.append)
        assert subscription.active
    assert not subscription.active
    subscription.cancel()
    with capture(Base) as recorder:
        Base.emit()
    assert 1 == len(recorder)


class TestSeveralPredicates:
    """One function, subscribed with several predicates."""

    def test_a_broken_predicate_does_not_end_another_subscription(self, recorded_failures):
        """The sound one still delivers, once, and the broken one is told."""
        seen = []
        Other.subscribe(seen.append, when=lambda event: event.missing)
        Other.subscribe(seen.append, when=lambda event: True)
        Other.emit(n=1)
        assert [1] == [event.n for event in seen]
        assert [AttributeError] == [type(event.error) for event in recorded_failures]

    def test_strict_raises_what_a_broken_predicate_raised(self):
        """In strict mode its failure is raised, though another subscription says yes."""
        Other.subscribe(print, when=lambda event: event.missing)
        Other.subscribe(print, when=lambda event: True)
        with strict(), pytest.raises(AttributeError, match="missing"):
            Other.emit(n=1)

    def test_a_broken_predicate_is_told_where_no_other_says_yes(self, recorded_failures):
        """Once, however many break."""
        Other.subscribe(print, when=lambda event: event.missing)
        Other.subscribe(print, when=lambda event: event.absent)
        Other.emit(n=1)
        assert [AttributeError] == [type(event.error) for event in recorded_failures]

    def test_a_gate_fails_closed_at_the_first(self):
        """A broken predicate of a gate refuses, whatever another says."""
        BeforeOrder.subscribe(print, when=lambda event: event.missing)
        BeforeOrder.subscribe(print, when=lambda event: True)
        with pytest.raises(AttributeError, match="missing"):
            BeforeOrder.emit()


class BeforeOrder(ProtectedEvent):
    """A gate without fields."""


@pytest.fixture
def recorded_failures():
    """Return the failures that are told."""
    failures = []
    HandlerFailedEvent.subscribe(failures.append)
    return failures


def test_no_lock_is_held_while_blinker_tells_of_a_subscription():
    """Who listens for connections may wait for another thread that subscribes and emits."""
    done = []

    def listener(signal, **_):
        def work():
            with Base.subscribe(done.append):
                Base.emit()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(30)

    Other.signal.receiver_connected.connect(listener, weak=False)
    Other.subscribe(print)
    assert 1 == len(done)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12 nothing but a function is one")
def test_a_subscribed_coroutine_function_is_still_one():
    """Frameworks that look see what the name stands for."""

    @Other.subscribe
    async def handler(event):
        pass

    assert inspect.iscoroutinefunction(handler)
