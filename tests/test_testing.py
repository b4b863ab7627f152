"""
The testing kit: recording, isolation, strictness.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from eventbus import (
    Event,
    Hook,
    ProtectedEvent,
    Run,
    configure,
    correlation,
    drain,
    find,
    hooks,
    on,
    writable,
)
from eventbus._settings import settings
from eventbus.testing import Recorder, capture, isolated, strict


class Base(Event):
    n: int = 0
    word: str | None = None


class Derived(Base):
    pass


class Other(Event):
    pass


class Gate(ProtectedEvent):
    reason: str = writable(default="")


class TestCapture:
    """Recording events."""

    def test_it_records_the_classes_it_is_given(self):
        """And their subclasses, in order, inside the block only."""
        with capture(Base) as recorder:
            Base.emit(n=1)
            Other.emit()
            Derived.emit(n=2)
        Base.emit(n=3)
        assert [Base(n=1), Derived(n=2)] == recorder.events == list(recorder)
        assert (2, Derived(n=2)) == (len(recorder), recorder[1])

    def test_it_records_gates(self):
        """They show in the end what their handlers have written."""
        Gate.subscribe(lambda event: setattr(event, "reason", "no"))
        with capture(Gate) as recorder:
            Gate.emit()
        assert "no" == recorder.assert_emitted(Gate).reason

    def test_without_classes_it_records_all(self):
        """Every observed event."""
        with capture() as recorder:
            Base.emit()
            Other.emit()
        assert [Base(), Other()] == recorder.events

    def test_an_event_is_recorded_once(self):
        """Though several of the classes match it."""
        with capture(Base, Derived, Event, Base) as recorder:
            Derived.emit()
        assert [Derived()] == recorder.events

    def test_recorders_nest(self):
        """Each records for itself."""
        with capture(Base) as outer, capture(Base) as inner:
            Base.emit()
        assert 1 == len(outer) == len(inner)

    def test_from_any_thread_and_task(self):
        """What other threads and tasks emit is recorded too."""

        async def emit():
            await Base.aemit(n=2)

        with capture(Base) as recorder:
            thread = threading.Thread(target=Base.emit, kwargs={"n": 1})
            thread.start()
            thread.join()
            asyncio.run(emit())
        assert [1, 2] == [event.n for event in recorder]

    def test_a_failing_handler_does_not_hide_the_event(self):
        """A recorder comes before any handler."""

        @Base.subscribe(priority=-1000)
        def fail(event):
            raise KeyboardInterrupt

        with capture(Base) as recorder, pytest.raises(KeyboardInterrupt):
            Base.emit()
        assert 1 == len(recorder)

    @pytest.mark.parametrize("what", ["Base", Base(), object])
    def test_what_is_no_event_class(self, what):
        """A TypeError that shows it."""
        with (
            pytest.raises(TypeError, match="is no event class; name a subclass of Event or Prot"),
            capture(what),
        ):
            raise NotImplementedError

    def test_it_ends_with_an_exception(self):
        """Nothing is recorded after the block, however it is left."""
        with pytest.raises(ZeroDivisionError), capture(Base) as recorder:
            raise ZeroDivisionError
        Base.emit()
        assert [] == recorder.events
        assert not Base.has_receivers()


class TestRecorder:
    """What a recorder can be asked."""

    def recorded(self):
        with capture() as recorder:
            Base.emit(n=1, word="a", raw=[1], correlation_id="run")
            Derived.emit(n=2)
            Other.emit()
        return recorder

    def test_of_gives_the_events_of_a_class(self):
        """Subclasses included."""
        recorder = self.recorded()
        assert [1, 2] == [event.n for event in recorder.of(Base)]
        assert [2] == [event.n for event in recorder.of(Derived)]

    def test_clear_forgets(self):
        """And recording goes on."""
        with capture(Base) as recorder:
            Base.emit(n=1)
            recorder.clear()
            Base.emit(n=2)
        assert [2] == [event.n for event in recorder]

    def test_assert_emitted_returns_the_first(self):
        """Of the class, with the values: fields, raw keys and the correlation id."""
        recorder = self.recorded()
        assert recorder[0] is recorder.assert_emitted(Base)
        assert recorder[1] is recorder.assert_emitted(Base, n=2)
        assert recorder[0] is recorder.assert_emitted(Base, n=1, raw=[1], correlation_id="run")
        assert recorder[1] is recorder.assert_emitted(Derived)

    def test_assert_emitted_tells_what_was(self):
        """The text shows what was asked, the events of the class, what differs, and the nearest first."""
        with pytest.raises(AssertionError) as caught:
            self.recorded().assert_emitted(Base, n=2, word="x")
        head, *lines = str(caught.value).splitlines()
        assert "Base(n=2, word='x') was not emitted; only these of its class were:" == head
        assert ["  Derived(n=2, timesta", "  Base(n=1, word='a', "] == [line[:22] for line in lines]
        assert ["word is None, not 'x'", "n is 1, not 2; word is 'a', not 'x'"] == [
            line.rpartition("): ")[2] for line in lines
        ]

    def test_assert_emitted_tells_which_key_is_missing(self):
        """A key that the nearest event does not have is no value."""
        with pytest.raises(AssertionError, match=r"\): there is no 'raw'$"):
            self.recorded().assert_emitted(Derived, n=2, raw=[1])

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ("x" * 10_000, "n='" + "x" * 990 + "\u2026"),
            (
                type("Odd", (), {"__repr__": lambda self: 1 / 0})(),
                "n=a Odd whose repr raises ZeroDivisionError",
            ),
        ],
    )
    def test_it_shows_any_value(self, value, shown):
        """Cut if it is long, and whatever its `__repr__` does."""
        with capture(Base) as recorder:
            Base.emit(n=value)
        with pytest.raises(AssertionError) as caught:
            recorder.assert_emitted(Base, n=value, word=1)
        assert shown[:100] in str(caught.value)
        assert 4000 > len(str(caught.value))

    def test_what_an_event_says_is_shown(self):
        """Neither readers that are None nor the run, whose id and agent stand there already."""
        with capture() as recorder, Run(agent="sundae", correlation_id="run-1") as run:
            run.emit(Base, n=1)
        with pytest.raises(
            AssertionError, match=r"  Base\(n=1, correlation_id='run-1', timestamp=[0-9.]+\)\n"
        ):
            recorder.assert_emitted(Other)

    def test_a_repr_of_ones_own_is_shown(self):
        """As it is."""

        class Odd(Event):
            def __repr__(self):
                return "<odd>"

        with capture() as recorder:
            Odd.emit()
        with pytest.raises(AssertionError, match=r"these were:\n  <odd>$"):
            recorder.assert_emitted(Other)

    def test_assert_emitted_tells_of_other_classes(self):
        """If there are none of the class, the others are shown."""
        with pytest.raises(AssertionError, match=r"Absent\(\) was not emitted; these were:\n  Base\("):
            self.recorded().assert_emitted(type("Absent", (Event,), {"__module__": __name__}))

    def test_assert_emitted_of_nothing(self):
        """An empty recorder says so."""
        with capture() as recorder:
            pass
        with pytest.raises(AssertionError, match=r"^Base\(\) was not emitted; nothing was\.$"):
            recorder.assert_emitted(Base)

    def test_it_says_what_it_takes(self):
        """A recorder of some classes does not know what else was emitted, and says which it knows of."""
        with capture(Base, Gate) as recorder:
            Other.emit()
        with pytest.raises(AssertionError) as caught:
            recorder.assert_emitted(Base)
        assert "Base() was not emitted; nothing was, of what is recorded here (Base, Gate)." == str(
            caught.value
        )
        with capture(Base, Other) as recorder:
            Other.emit()
        with pytest.raises(
            AssertionError, match=r"; these were, of what is recorded here \(Base, Other\):\n  Oth"
        ):
            recorder.assert_emitted(Base)

    def test_it_cannot_be_made_by_hand(self):
        """It would record nothing, and a test that hopes for nothing would pass."""
        with pytest.raises(
            TypeError, match=r"by hand would record nothing; use `with capture\(\.\.\.\) as rec"
        ):
            Recorder(Base)

    def test_its_repr(self):
        """As a failed `assert len(recorder) == 2` shows it."""
        with capture(Base, Other) as recorder:
            assert "<Recorder of Base, Other: 0 events>" == repr(recorder)
            Base.emit()
        assert "<Recorder of Base, Other: 1 event>" == repr(recorder)

    @pytest.mark.parametrize("error", [ValueError("The truth value is ambiguous"), RuntimeError("no")])
    def test_a_comparison_that_raises_is_no_match(self, error):
        """It is shown as such, and hides no later match; so arrays can be in events."""

        class Answer:
            def __bool__(self):
                raise error

        class Array:
            def __eq__(self, other):
                return Answer()

            __hash__ = None

            def __repr__(self):
                return "array([1, 2])"

        with capture() as recorder:
            Base.emit(n=Array())
            recorder.assert_not_emitted(Base, n=3, word="x")
            with pytest.raises(AssertionError) as caught:
                recorder.assert_emitted(Base, n=3)
            Base.emit(n=3)
        assert f": n is array([1, 2]), and to compare it with 3 raises {error!r}" in str(caught.value)
        assert recorder[1] is recorder.assert_emitted(Base, n=3)
        assert recorder[0] is recorder.assert_emitted(Base, n=recorder[0].n)

    def test_a_comparison_that_raises_may_be_a_match(self):
        """To hope for none then fails, and says why."""

        class Odd:
            def __eq__(self, other):
                raise ValueError("ambiguous")

            __hash__ = None

            def __repr__(self):
                return "odd"

        with capture() as recorder:
            Base.emit(n=Odd(), word="a", timestamp=1.0)
        with pytest.raises(AssertionError) as caught:
            recorder.assert_not_emitted(Base, n=3, word="a")
        assert (
            "whether Base(n=3, word='a') was emitted cannot be told: Base(n=odd, word='a', "
            "timestamp=1.0): n is odd, and to compare it with 3 raises ValueError('ambiguous')"
            == str(caught.value)
        )

    def test_an_error_equals_one_that_says_the_same(self):
        """Of the same type, with the same arguments; Python itself compares them by identity."""
        with capture() as recorder:
            Base.emit(n=ValueError("no", 1))
        recorder.assert_emitted(Base, n=ValueError("no", 1))
        for other in (ValueError("no"), KeyError("no", 1), "no"):
            recorder.assert_not_emitted(Base, n=other)

    def test_what_looks_the_same_and_is_not(self):
        """The difference names the types, or says that it is another one."""

        class Odd:
            def __repr__(self):
                return "1"

        with capture() as recorder:
            Base.emit(n=Odd())
        with pytest.raises(
            AssertionError, match=r": n is 1, not equal to what was asked for, which is another one"
        ):
            recorder.assert_emitted(Base, n=Odd())
        with pytest.raises(
            AssertionError, match=r"which is a builtins.int and not a test_testing.TestRec.*Odd that"
        ):
            recorder.assert_emitted(Base, n=1)

    @pytest.mark.parametrize(("one", "other"), [("a", "b"), ("", "more")])
    def test_long_texts_are_shown_where_they_differ(self, one, other):
        """With something of what is before that, and from which character on."""
        with capture() as recorder:
            Base.emit(word="x" * 5000 + one)
        with pytest.raises(AssertionError) as caught:
            recorder.assert_emitted(Base, word="x" * 5000 + other)
        told = str(caught.value).rpartition("…: ")[2]
        assert f"word is …{'x' * 40}{one}', not …{'x' * 40}{other}' (from character 4961 on)" == told

    def test_a_field_that_there_is_not(self):
        """To hope for none with it is a TypeError that names the fields: it would always pass."""
        with capture() as recorder:
            Derived.emit(raw=1)
        recorder.assert_not_emitted(Base, raw=2, word="x", correlation_id="run", timestamp=0.0)
        with pytest.raises(TypeError) as caught:
            recorder.assert_not_emitted(Base, m=1, n=0)
        assert (
            "Base has no field 'm', and no event of it that was recorded has such a key; "
            "its fields are correlation_id, timestamp, n, word." == str(caught.value)
        )
        with pytest.raises(TypeError, match="Other has no field 'raw'"):
            recorder.assert_not_emitted(Other, raw=2)

    def test_a_long_record_is_cut(self):
        """Twenty events are shown, and how many more there are."""
        with capture(Base) as recorder:
            for n in range(25):
                Base.emit(n=n)
        with pytest.raises(AssertionError) as caught:
            recorder.assert_emitted(Base, n=-1)
        assert (22, "  ... and 5 more") == (
            len(str(caught.value).splitlines()),
            str(caught.value).splitlines()[-1],
        )

    def test_a_missing_key_is_no_match(self):
        """Not even for None."""
        with pytest.raises(AssertionError):
            self.recorded().assert_emitted(Other, raw=None)

    @pytest.mark.parametrize("ask", [Recorder.of, Recorder.assert_emitted, Recorder.assert_not_emitted])
    def test_what_it_does_not_record(self, ask):
        """To ask for it is a TypeError that says how to record it: nothing of it would ever be found."""
        with capture(Derived, Other) as recorder:
            Gate.emit()
        with pytest.raises(TypeError) as caught:
            ask(recorder, Gate)
        assert (
            "Gate is not recorded here, only Derived, Other; record it with capture(Derived, Other, Gate)."
            == str(caught.value)
        )

    @pytest.mark.parametrize("ask", [Recorder.of, Recorder.assert_emitted, Recorder.assert_not_emitted])
    def test_what_is_no_event_class(self, ask):
        """To ask for it is a TypeError that shows it."""
        with pytest.raises(TypeError, match="'Base' is no event class; name a subclass of Event or Prot"):
            ask(self.recorded(), "Base")

    def test_a_base_of_what_is_recorded(self):
        """May be asked for: what is recorded is found."""
        with capture(Derived) as recorder:
            Derived.emit(n=1)
        assert recorder[0] is recorder.assert_emitted(Base, n=1)

    def test_assert_not_emitted(self):
        """It passes if there is none, and shows the one there is."""
        recorder = self.recorded()
        recorder.assert_not_emitted(Base, n=3)
        with pytest.raises(AssertionError, match=r"^Base\(n=2\) was emitted: Derived\(n=2, "):
            recorder.assert_not_emitted(Base, n=2)


class TestIsolated:
    """An empty bus for a block."""

    def test_outer_hooks_and_subscriptions_are_silent(self):
        """Functions, runs' subscribers, blinker's functions and hooks alike."""
        seen = []

        class Outer(Hook):
            @on(Base)
            def handle(self, event):
                seen.append("hook")

        def function(event):
            seen.append("blinker")

        Base.subscribe(lambda event: seen.append("function"))
        Event.subscribe(lambda event: seen.append("root"), correlation_id="run")
        Base.signal.connect(function)
        with isolated():
            assert 0 == len(hooks())
            assert not Base.has_receivers()
            Base.emit(correlation_id="run")
        assert [] == seen
        Base.emit(correlation_id="run")
        assert ["hook", "function", "root", "blinker"] == seen

    def test_inner_ones_vanish(self):
        """Hooks, subscriptions and channels of the block are gone after it."""
        seen = []
        with isolated():

            class Inner(Hook):
                @on(Base)
                def handle(self, event):
                    seen.append("hook")

            class Local(Event, channel="tests.local"):
                pass

            Base.subscribe(lambda event: seen.append("function"))
            Base.emit()
            assert Local is find("tests.local")
        Base.emit()
        assert ["hook", "function"] == seen
        assert hooks().get("Inner") is None
        with pytest.raises(LookupError):
            find("tests.local")

    def test_it_restores_exactly(self):
        """The same hooks in the same order and states, with what they keep for runs, after an error too."""
        seen = []

        class Counting(Hook):
            stateful = True

            @on(Base)
            def count(self, event):
                seen.append(self)

        class Retired(Hook):
            @on(Base)
            def handle(self, event):
                pass

        class Special(Retired):
            pass

        with correlation("run"):
            Base.emit()
            before = [(info.cls, info.state) for info in hooks()]
            with pytest.raises(ZeroDivisionError), isolated():

                class Inner(Retired):
                    pass

                Base.emit()
                Special.unregister()
                raise ZeroDivisionError
            assert before == [(info.cls, info.state) for info in hooks()]
            Base.emit()
        assert 2 == len(seen)
        assert seen[0] is seen[1]

    def test_scopes_nest(self):
        """Each sees its own."""
        seen = []
        with isolated():
            Base.subscribe(lambda event: seen.append("middle"))
            with isolated():
                Base.subscribe(lambda event: seen.append("inner"))
                Base.emit()
            Base.emit()
        Base.emit()
        assert ["inner", "middle"] == seen

    def test_an_outer_hook_can_be_let_in(self):
        """`register()` makes it live inside, and leaves it as it was outside."""
        seen = []

        class Outer(Hook):
            @on(Base)
            def handle(self, event):
                seen.append(event.n)

        with isolated():
            Outer.register()
            Base.emit(n=1)
        Base.emit(n=2)
        assert [1, 2] == seen
        assert "live" == hooks().get("Outer").state

    def test_an_outer_subscription_cancelled_inside_stays_cancelled(self):
        """What is cancelled is cancelled."""
        seen = []
        subscription = Base.subscribe(seen.append)
        with isolated():
            subscription.cancel()
        Base.emit()
        assert [] == seen

    def test_it_is_process_wide(self):
        """Other threads see the empty bus too."""
        seen = []
        Base.subscribe(seen.append)
        with isolated():
            thread = threading.Thread(target=Base.emit)
            thread.start()
            thread.join()
        assert [] == seen

    def test_a_class_compiled_inside_works_outside(self):
        """It does not matter where a class emits first."""

        class Fresh(Event):
            pass

        with isolated():
            Fresh.emit()
        with capture(Fresh) as recorder:
            Fresh.emit()
        assert 1 == len(recorder)

    def test_as_a_decorator(self):
        """A test function can be wrapped."""

        @isolated()
        def run():
            Base.subscribe(print)
            return Base.has_receivers()

        assert run()
        assert not Base.has_receivers()


class TestStrict:
    """Reports become raised errors."""

    def test_a_single_error_is_raised(self):
        """After all handlers ran, with a note that names the handler and the event."""
        seen = []

        @Base.subscribe
        def fail(event):
            raise ZeroDivisionError

        Base.subscribe(seen.append)
        with strict(), pytest.raises(ZeroDivisionError) as caught:
            Base.emit()
        assert 1 == len(seen)
        assert [f"raised by {fail.__qualname__}, for Base"] == caught.value.__notes__

    def test_several_are_a_group(self):
        """An ExceptionGroup of them."""
        for error in (ZeroDivisionError, KeyError):
            Base.subscribe(lambda event, error=error: (_ for _ in ()).throw(error))
        with strict(), pytest.raises(ExceptionGroup) as caught:
            Base.emit()
        assert [ZeroDivisionError, KeyError] == [type(error) for error in caught.value.exceptions]

    def test_async_errors_are_raised_by_drain(self):
        """Those of scheduled handlers."""

        @Base.subscribe
        async def fail(event):
            raise ZeroDivisionError

        with strict():
            Base.emit()
            with pytest.raises(ZeroDivisionError):
                drain(10)

    def test_it_puts_the_setting_back(self):
        """Whatever it was, also after an error."""
        for before in (False, True):
            configure(strict=before)
            with pytest.raises(KeyError), strict():
                assert settings.strict
                raise KeyError
            assert before is settings.strict
