"""
The compiled emit: how an event is built, and what the text is made of.
"""

from __future__ import annotations

import asyncio

import attrs
import pytest

from eventbus import Event, ProtectedEvent, correlation, stats, writable
from eventbus._emitter import is_scalar, needs_freezing, payload_fields
from eventbus.testing import capture


class TestScalars:
    """Which fields need no protection against writing."""

    @pytest.mark.parametrize(
        "annotation",
        [str, int, float, bool, bytes, complex, "str", "int | None", "str|bytes | NoneType", str | None],
    )
    def test_scalars(self, annotation):
        """Built-in scalars and unions of them, as text or as objects."""
        assert is_scalar(annotation)

    @pytest.mark.parametrize(
        "annotation", [dict, "Any", "str | list", list[str], "list[str]", object, str | list]
    )
    def test_what_may_be_written_to(self, annotation):
        """Anything else is looked at when it is given."""
        assert not is_scalar(annotation)

    def test_a_converter_decides_for_itself(self):
        """What a converter makes is looked at, whatever the annotation says."""

        class Converted(Event):
            plain: str
            made: str = attrs.field(converter=list)

        assert [False, True] == [needs_freezing(field) for field in payload_fields(Converted)]


class TestIds:
    """Which id an event carries, and which its handlers' emits."""

    @pytest.mark.parametrize("ends_run", [False, True])
    def test_an_explicit_id_wins(self, ends_run):
        """It is the event's, and what the handlers' own emits carry; the emitter's scope stays."""

        class Inner(Event):
            pass

        Outer = type("Outer", (Event,), {"ends_run": ends_run, "__module__": __name__})
        Outer.subscribe(lambda event: Inner.emit())
        with capture(Outer, Inner) as recorder, correlation("ambient"):
            Outer.emit(correlation_id="explicit")
            Outer.emit()
            Outer.emit(correlation_id="ambient")
            Outer.emit(correlation_id="")
        assert ["explicit"] * 2 + ["ambient"] * 4 + [""] * 2 == [event.correlation_id for event in recorder]

    def test_an_event_of_a_run_that_nobody_hears_is_not_built(self):
        """A subscription to one run has no event of another built, nor one without a run."""

        class Heard(Event):
            pass

        Heard.subscribe(print, correlation_id="run-1")
        before = stats()["events"]
        Heard.emit(correlation_id="run-2")
        asyncio.run(Heard.aemit())
        assert before == stats()["events"]

    def test_an_id_that_is_no_text(self):
        """It is refused where it would be used, with the fix."""
        Event.subscribe(lambda event: None)
        with pytest.raises(TypeError, match=r"`correlation_id` must be a str or None, not 7; pass str"):
            type("Numbered", (Event,), {"__module__": __name__}).emit(correlation_id=7)


class Asked(ProtectedEvent):
    n: int
    answer: str | None = writable(default=None)


class TestGates:
    """The compiled emit of a protected event."""

    def test_it_is_built_and_returned_for_nobody(self):
        """The emitter needs the event, whether or not anybody judges it."""
        before = stats()["events"]
        assert (1, 2) == (Asked.emit(n=1).n, asyncio.run(Asked.aemit(n=2)).n)
        assert 2 == stats()["events"] - before
        with pytest.raises(TypeError, match=r"Asked\.emit\(\) missing 1 required keyword-only argument: 'n'"):
            Asked.emit()

    def test_what_handlers_write_is_recorded_with_its_author(self):
        """Functions of all runs and of one, and predicates, are told apart."""

        def answer(event):
            event.answer = "yes"

        def decide(event):
            event.answer = "no"

        Asked.subscribe(answer, correlation_id="run")
        Asked.subscribe(decide, when=lambda event: event.n > 1)
        event = Asked.emit(n=2, correlation_id="run")
        assert [(answer.__qualname__, "yes"), (decide.__qualname__, "no")] == [
            (edit.handler, edit.new) for edit in event.edits
        ]
        assert (None, "yes") == (Asked.emit(n=1).answer, Asked.emit(n=1, correlation_id="run").answer)

    def test_an_after_event_goes_the_other_way(self):
        """`reverse = True` turns the order round."""
        seen = []

        class After(Asked):
            reverse = True

        for priority in (1, 2, 3):
            After.subscribe(lambda event, priority=priority: seen.append(priority), priority=priority)
        After.emit(n=1)
        assert [3, 2, 1] == seen


@pytest.mark.exhausts_stack
def test_emits_without_end_are_reported_once():
    """A handler that emits its own event is stopped; the emitter goes on."""

    class Endless(Event):
        pass

    Endless.subscribe(lambda event: Endless.emit())
    before = stats()["failures"]
    Endless.emit()
    assert stats()["failures"] > before
