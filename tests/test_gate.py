"""
Protected events: what their handlers may write, who wrote it, and what one that fails or is async does.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import gc
import itertools
import pickle
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import attr
import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import stderr_lines

from eventbus import (
    AsyncGateError,
    EmitLoopError,
    Event,
    HandlerFailedEvent,
    Hook,
    Priority,
    ProtectedEvent,
    ToolCall,
    configure,
    correlation,
    current_correlation_id,
    drain,
    hooks,
    on,
    stats,
    writable,
)
from eventbus._gate import RAISED, Edit, build
from eventbus._scheduler import scheduler
from eventbus.testing import capture, isolated

REFUND = ToolCall("call_1", "process_refund", {"total": 12})

BOOM = ValueError("boom")

BLANKS = ["", " ", "\t\n"]
OUTSIDERS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]


class BeforeToolCallEvent(ProtectedEvent):
    """The contract's own example."""

    tool_call: ToolCall
    arguments: Mapping[str, Any] = writable()
    cancel: bool | str = writable(default=False, sticky=True)


class AfterEvent(ProtectedEvent):
    """An after-event."""

    reverse = True

    result: Any = writable(default=None)


class Question(ProtectedEvent):
    """A gate whose fields all have defaults."""

    answer: Any = writable(default=None)
    cancel: bool | str = writable(default=False, sticky=True)


class Told(Event):
    """An observed event that gates emit."""


def refund():
    return BeforeToolCallEvent(tool_call=REFUND, arguments={"total": 12})


def fail(event):
    raise BOOM


def throw(error):
    raise error


def in_thread(fn):
    """Return what `fn` returns or raises on a thread of its own, which has no event loop."""
    outcome: list[Any] = []

    def run():
        try:
            outcome.append((fn(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


class TestWriting:
    def test_writable_fields_are_set(self):
        """What a handler writes to a writable field is what the event says from then on."""
        event = refund()

        event.arguments = {"total": 1}
        event.cancel = "not today"

        assert ({"total": 1}, "not today") == (event.arguments, event.cancel)

    def test_read_only_field(self):
        """Setting a field that is not writable is an AttributeError that names those that are."""
        with pytest.raises(AttributeError) as caught:
            refund().tool_call = REFUND

        assert (
            "Cannot set 'tool_call' on BeforeToolCallEvent: read-only. Writable fields: arguments, cancel."
        ) == str(caught.value)

    @pytest.mark.parametrize(
        "name",
        ["cancelled", "correlation_id", "timestamp", "edits", "emit", "_author", "_edits", "__class__"],
    )
    def test_whatever_else(self, name):
        """So is setting a name that is unknown, or that every event has."""
        event = refund()

        with pytest.raises(AttributeError) as caught:
            setattr(event, name, "x")

        assert (
            f"Cannot set {name!r} on BeforeToolCallEvent: read-only. Writable fields: arguments, cancel."
        ) == str(caught.value)
        assert () == event.edits

    @pytest.mark.parametrize("name", ["tool_call", "cancelled", "timestamp"])
    def test_deletion(self, name):
        """So is deleting one."""
        with pytest.raises(AttributeError) as caught:
            delattr(refund(), name)

        assert (
            f"Cannot set {name!r} on BeforeToolCallEvent: read-only. Writable fields: arguments, cancel."
        ) == str(caught.value)

    def test_deletion_of_a_writable_field(self):
        """A writable field can be set and not deleted, and the error does not call it read-only."""
        with pytest.raises(AttributeError) as caught:
            del refund().cancel

        assert "Cannot delete 'cancel' on BeforeToolCallEvent: it can be set, and not be missing." == str(
            caught.value
        )

    def test_nothing_is_writable(self):
        """A gate without writable fields says so."""

        class Sealed(ProtectedEvent):
            name: str

        with pytest.raises(AttributeError, match=r"on Sealed: read-only\. Writable fields: none\.$"):
            Sealed(name="a").name = "b"

    def test_subclass_adds_a_field(self):
        """A subclass has its base's writable fields, then its own; the rest is read-only in both."""

        class Dearer(BeforeToolCallEvent):
            limit: int = writable(default=0)
            currency: str = "EUR"

        event = Dearer(tool_call=REFUND, arguments={})
        event.limit, event.cancel = 3, "no"

        assert (3, "no") == (event.limit, event.cancel)
        with pytest.raises(
            AttributeError, match=r"on Dearer: read-only\. Writable fields: arguments, cancel, limit\."
        ):
            event.currency = "USD"

    def test_subclass_seals_a_field(self):
        """A subclass can take a field back, by defining it without `writable`."""

        class Approve(BeforeToolCallEvent):
            arguments: Mapping[str, Any] = attrs.field(factory=dict)

        with pytest.raises(AttributeError, match="Cannot set 'arguments' on Approve: read-only"):
            Approve(tool_call=REFUND).arguments = {}

    def test_required(self):
        """`writable()` without a default is required, whether or not anybody listens."""
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'arguments'"):
            BeforeToolCallEvent.emit(tool_call=REFUND)

    def test_factory(self):
        """A factory makes the default anew for each event."""

        class Made(ProtectedEvent):
            seen: Any = writable(factory=object)

        assert Made.emit().seen is not Made.emit().seen

    def test_default_and_factory(self):
        """Both at once are refused."""
        with pytest.raises(ValueError, match="mutually exclusive"):
            writable(default=1, factory=int)  # type: ignore[call-overload]  # the mistake itself

    def test_mutable_default(self):
        """A default that all events would share is a TypeError that names the field and the fix."""
        with pytest.raises(TypeError) as caught:

            class Wrong(ProtectedEvent):
                seen: list[str] = writable(default=[])

        name = f"{type(self).__qualname__}.test_mutable_default.<locals>.Wrong.seen"
        assert (
            f"{name}: the mutable default [] would be shared by all events; "
            "write `seen: list = writable(factory=list)`."
        ) == str(caught.value)

    def test_mutable_default_of_a_read_only_field(self):
        """For a read-only field the fix leaves it one."""
        with pytest.raises(TypeError, match=r"write `seen: dict = attrs\.field\(factory=dict\)`"):

            class Wrong(ProtectedEvent):
                seen: Any = {}

    @pytest.mark.parametrize("name", ["edits", "reverse", "publish", RAISED])
    def test_reserved(self, name):
        """No field takes a name of the base class, nor the word that edits have for an exception."""
        with pytest.raises(TypeError, match=f"`{name}` is a name of the event's base class"):
            type("Wrong", (ProtectedEvent,), {"__annotations__": {name: "int"}})

    def test_private_field(self):
        """A field with a leading underscore is given without, and written with it."""

        class Private(ProtectedEvent):
            _note: str = writable(default="")

        event = Private.emit(note="a")
        event._note = "b"

        assert (Edit(None, "_note", "a", "b", True),) == event.edits


class TestAttrs:
    decorators = {
        "define": attrs.define,
        "define-dict": attrs.define(slots=False),
        "define-no-hooks": attrs.define(on_setattr=attrs.setters.NO_OP),
        "frozen": attrs.frozen,
        "frozen-dict": attrs.frozen(slots=False),
        "attr.s": attr.s(auto_attribs=True, kw_only=True),
        "attr.s-slots": attr.s(auto_attribs=True, kw_only=True, slots=True),
    }

    @pytest.mark.parametrize("decorator", decorators.values(), ids=decorators)
    def test_decorated(self, decorator):
        """An attrs decorator on top of a gate, one that rebuilds it with slots included, changes nothing."""

        @decorator
        class Asked(ProtectedEvent):
            name: str
            arguments: Mapping[str, Any] = writable(factory=dict)
            cancel: bool | str = writable(default=False, sticky=True)

        def check(event):
            event.arguments = {"limit": 10}
            event.cancel = "no"
            event.cancel = False

        Asked.subscribe(check)

        for event in (Asked.emit(name="a"), Asked(name="a").publish()):
            assert ("a", {"limit": 10}, "no") == (event.name, event.arguments, event.cancel)
            assert [True, True, False] == [edit.applied for edit in event.edits]
            with pytest.raises(AttributeError, match=r"read-only\. Writable fields: arguments, cancel\."):
                event.name = "b"
            with pytest.raises(AttributeError, match="read-only"):
                del event.name
            with pytest.raises(TypeError, match="unhashable"):
                hash(event)
            assert event == copy.copy(event)

    @pytest.mark.parametrize("decorator", decorators.values(), ids=decorators)
    def test_subclass_of_decorated(self, decorator):
        """A gate below a decorated one inherits what can be written."""

        @decorator
        class Asked(ProtectedEvent):
            name: str
            cancel: bool | str = writable(default=False, sticky=True)

        class Asked2(Asked):
            limit: int = writable(default=0)

        event = Asked2(name="a")
        event.limit, event.cancel = 3, "no"

        assert (3, "no") == (event.limit, event.cancel)
        with pytest.raises(AttributeError, match=r"Writable fields: cancel, limit\."):
            event.name = "b"

    @pytest.mark.parametrize("slots", [True, False])
    def test_mixin(self, slots):
        """Writable fields may come from a mixin that is an attrs class of its own."""

        @attrs.define(slots=slots, kw_only=True)
        class Refusable:
            cancel: bool | str = writable(default=False, sticky=True)
            limit: int = attrs.field(default=3, validator=attrs.validators.instance_of(int))

        class Asked(Refusable, ProtectedEvent):
            pass

        event = Asked.emit(limit=4)
        event.cancel = "no"
        event.cancel = "yes"

        assert ("no", 4) == (event.cancel, event.limit)
        with pytest.raises(AttributeError, match=r"Writable fields: cancel\."):
            event.limit = 5

    def test_validator(self):
        """A field's validator judges what the emitter gives and what a handler writes."""

        class Limited(ProtectedEvent):
            limit: int = writable(default=1)

            @limit.validator
            def _check(self, attribute, value):
                if value < 0:
                    raise ValueError("negative")

        with pytest.raises(ValueError, match="negative"):
            Limited.emit(limit=-1)
        event = Limited.emit(limit=2)
        with pytest.raises(ValueError, match="negative"):
            event.limit = -1
        event.limit = 3

        assert (Edit(None, "limit", 2, 3, True),) == event.edits

    def test_converter(self):
        """The converter of a read-only field runs once, when the event is built."""

        class Named(ProtectedEvent):
            name: str = attrs.field(converter=str.upper)
            limit: int = writable(default=1)

        event = Named.emit(name="a")
        event.limit = 2

        assert ("A", 2) == (event.name, event.limit)

    def test_post_init(self):
        """What `__attrs_post_init__` sets is an edit of nobody's."""

        class Derived(ProtectedEvent):
            name: str
            limit: int = writable(default=1)

            def __attrs_post_init__(self):
                self.limit = len(self.name)

        assert (Edit(None, "limit", 1, 3, True),) == Derived.emit(name="abc").edits


class TestReadOnlyMappings:
    writes = {
        "setitem": lambda arguments: arguments.__setitem__("limit", 10),
        "delitem": lambda arguments: arguments.__delitem__("total"),
        "pop": lambda arguments: arguments.pop("total"),
        "update": lambda arguments: arguments.update(limit=10),
        "clear": lambda arguments: arguments.clear(),
        "setdefault": lambda arguments: arguments.setdefault("limit", 10),
        "nested": lambda arguments: arguments["order"].update(id="A2"),
        "nested list": lambda arguments: arguments["order"]["lines"].append(3),
    }

    @pytest.mark.parametrize("write", writes.values(), ids=writes)
    def test_given(self, write):
        """A mapping that the emitter gave cannot be changed, and the emitter's own stays as it was."""
        given_ = {"total": 12, "order": {"id": "A1", "lines": [1, 2]}}
        event = BeforeToolCallEvent.emit(tool_call=REFUND, arguments=given_)

        with pytest.raises(TypeError, match="belongs to an event and is read-only"):
            write(event.arguments)

        assert {"total": 12, "order": {"id": "A1", "lines": [1, 2]}} == given_ == event.arguments

    @pytest.mark.parametrize("write", writes.values(), ids=writes)
    def test_written(self, write):
        """Neither can one that a handler wrote, which is a copy of it."""
        event = refund()
        mine = {"total": 12, "order": {"id": "A1", "lines": [1, 2]}}
        event.arguments = mine
        mine["total"] = 13

        with pytest.raises(TypeError, match="belongs to an event and is read-only"):
            write(event.arguments)

        assert {"total": 12, "order": {"id": "A1", "lines": [1, 2]}} == event.arguments

    def test_says_how_to_write(self):
        """The error says how a gate writes."""
        with pytest.raises(TypeError) as caught:
            refund().arguments["limit"] = 10

        assert 'event.arguments = {**event.arguments, "limit": 10}' in str(caught.value)

    def test_as_it_says(self):
        """Written as the error says, the mapping has both."""
        event = refund()

        event.arguments = {**event.arguments, "limit": 10}

        assert {"total": 12, "limit": 10} == event.arguments


class TestSticky:
    @pytest.mark.parametrize("first", [False, None, 0])
    def test_falsy_does_not_disarm(self, first):
        """A falsy value written first latches nothing: the refusal that follows stands."""
        event = Question.emit()

        event.cancel = first
        event.cancel = "no"

        assert "no" == event.cancel

    @pytest.mark.parametrize("later", ["other", True, False, None, 0, "", "  ", {"a": 1}])
    @pytest.mark.parametrize("first", ["no", True])
    def test_latched(self, first, later):
        """After the first truthy value a write of any value changes nothing, and is recorded."""
        event = Question.emit()

        event.cancel = first
        event.cancel = later

        assert first == event.cancel
        assert (
            Edit(None, "cancel", False, first, True),
            Edit(None, "cancel", first, later, False),
        ) == event.edits

    @pytest.mark.parametrize("order", list(itertools.permutations(["first", "second", "off"])))
    def test_all_orders(self, order):
        """Whatever the order of three handlers, the first reason among them stands."""
        values = {"first": "too much", "second": "too late", "off": False}

        def writer(name):
            return lambda event: setattr(event, "cancel", values[name])

        for name in order:
            Question.subscribe(writer(name))

        assert next(values[name] for name in order if values[name]) == Question.emit().cancel

    def test_given_by_the_emitter(self):
        """A field that is truthy from the start has latched."""
        event = Question.emit(cancel="closed")

        event.cancel = False

        assert "closed" == event.cancel

    @pytest.mark.parametrize("blank", BLANKS)
    def test_empty_reason(self, blank):
        """An empty reason is a ValueError, leaves the field as it was, and is no edit."""
        event = Question.emit()

        with pytest.raises(ValueError) as caught:
            event.cancel = blank

        assert "Question.cancel needs a reason, or True; an empty one says nothing." == str(caught.value)
        assert (False, ()) == (event.cancel, event.edits)

    @pytest.mark.parametrize("blank", BLANKS)
    def test_plain_field_may_be_empty(self, blank):
        """A field that is not sticky is no reason, and may be empty."""
        event = Question.emit()

        event.answer = blank

        assert blank == event.answer

    def test_plain_field_keeps_the_last(self):
        """A field that is not sticky has what was written last."""
        event = Question.emit()

        for value in ("a", None, "b"):
            event.answer = value

        assert "b" == event.answer

    def test_validator_after_the_latch(self):
        """A value that will not be applied is not judged by the validator either."""

        class Limited(ProtectedEvent):
            cancel: bool | str = writable(default=False, sticky=True)

            @cancel.validator
            def _check(self, attribute, value):
                if not isinstance(value, bool | str):
                    raise TypeError("a reason is a text")

        event = Limited.emit()
        with pytest.raises(TypeError, match="a reason is a text"):
            event.cancel = 3
        event.cancel = "no"
        event.cancel = 3

        assert "no" == event.cancel


class TestEdits:
    def test_names(self):
        """An edit names its author as lines do: a hook's handler, a function, or None outside of any."""

        class Caps(Hook):
            @on(Question)
            def limit(self, event):
                event.answer = 1

        def raw(event):
            event.answer = 3

        @Question.subscribe
        def function(event):
            event.answer = 2

        Question.signal.connect(raw)
        event = Question.emit()
        event.answer = 4

        function_name = f"{type(self).__qualname__}.test_names.<locals>.function"
        raw_name = f"{type(self).__qualname__}.test_names.<locals>.raw"
        assert (
            Edit("Caps.limit", "answer", None, 1, True),
            Edit(function_name, "answer", 1, 2, True),
            Edit(raw_name, "answer", 2, 3, True),
            Edit(None, "answer", 3, 4, True),
        ) == event.edits

    def test_fields_of_an_edit(self):
        """An edit is (handler, field, old, new, applied)."""
        assert ("handler", "field", "old", "new", "applied") == Edit._fields

    def test_none_at_first(self):
        """An event that nobody wrote to has no edits."""
        assert () == Question.emit().edits

    def test_each_sees_what_earlier_ones_wrote(self):
        """Each handler sees what those before it wrote."""
        seen = []

        def add(event):
            seen.append(event.answer)
            event.answer = (event.answer or 0) + 1

        for _ in range(3):
            Question.subscribe(lambda event: add(event))

        assert 3 == Question.emit().answer
        assert [None, 1, 2] == seen

    def test_of_the_predicate(self):
        """What a predicate writes is recorded as its handler's."""
        Question.subscribe(lambda event: None, when=lambda event: setattr(event, "answer", 1) or True)

        assert [f"{type(self).__qualname__}.test_of_the_predicate.<locals>.<lambda>"] == [
            edit.handler for edit in Question.emit().edits
        ]

    def test_same_value(self):
        """Writing the value that a field has already is an edit as well."""
        event = Question.emit(answer=1)

        event.answer = 1

        assert (Edit(None, "answer", 1, 1, True),) == event.edits

    def test_after_a_failure(self):
        """What is written after a handler has failed is not its own."""
        Question.subscribe(fail)
        event = Question()
        with pytest.raises(ValueError, match="boom"):
            event.publish()

        event.answer = 1

        assert Edit(None, "answer", None, 1, True) == event.edits[-1]

    @pytest.mark.parametrize("error", OUTSIDERS)
    def test_after_an_interrupt(self, error):
        """Nor is what is written after one was interrupted."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            def stop(self, event):
                raise error

        event = Question()
        with pytest.raises(error):
            event.publish()
        event.answer = 1

        assert (Edit(None, "answer", None, 1, True),) == event.edits

    @pytest.mark.parametrize("way", ["emit", "aemit"])
    def test_of_a_task_left_behind(self, way):
        """What a task of a handler writes is its own, also in another's turn and after all of them."""
        tasks = []

        class Hasty(Hook):
            @on(Question)
            async def check(self, event):
                async def write():
                    for answer in (1, 2, 3):
                        await asyncio.sleep(0)
                        event.answer = answer

                tasks.append(asyncio.create_task(write()))

            @on(Question)
            async def finish(self, event):
                await asyncio.wait(tasks)
                event.answer = 4

            @on(Question)
            def sync(self, event):
                event.answer = 5

        event = Question.emit() if way == "emit" else asyncio.run(Question.aemit())
        event.answer = 6

        assert [
            *[("Hasty.check", answer) for answer in (1, 2, 3)],
            ("Hasty.finish", 4),
            ("Hasty.sync", 5),
            (None, 6),
        ] == [(edit.handler, edit.new) for edit in event.edits]

    def test_of_a_thread(self):
        """What a thread of a handler writes is the handler's while its turn lasts."""

        class Threaded(Hook):
            @on(Question)
            def check(self, event):
                in_thread(lambda: setattr(event, "answer", 1))

        assert (Edit("Threaded.check", "answer", None, 1, True),) == Question.emit().edits

    def test_a_task_left_behind_keeps_no_event(self):
        """A task that a handler starts, and that goes on for long, does not keep the event."""

        async def main():
            forever = asyncio.Event()
            tasks = []

            @Question.subscribe
            async def start(event):
                tasks.append(asyncio.create_task(forever.wait()))

            reference = weakref.ref(await Question.aemit())
            gc.collect()
            alive = reference() is not None
            forever.set()
            await asyncio.wait(tasks)
            return alive

        assert False is asyncio.run(main())

    def test_closed_in_another_context(self):
        """An emit that is closed where it was not begun leaves no author there."""

        @Question.subscribe
        async def wait(event):
            event.answer = 1
            await asyncio.sleep(0)

        event = Question()
        asking = event.apublish()
        contextvars.copy_context().run(asking.send, None)
        asking.close()
        event.answer = 2

        assert [f"{type(self).__qualname__}.test_closed_in_another_context.<locals>.wait", None] == [
            edit.handler for edit in event.edits
        ]

    def test_inside_a_nested_gate(self):
        """A handler that asks another gate goes on as the author of its own."""

        class Inner(ProtectedEvent):
            answer: int = writable(default=0)

        class Outer(Hook):
            @on(Question)
            def ask(self, event):
                event.answer = Inner.emit().answer

            @on(Inner)
            def tell(self, event):
                event.answer = 5

        assert (Edit("Outer.ask", "answer", None, 5, True),) == Question.emit().edits


class TestShadow:
    def test_writes(self):
        """What a shadow hook writes is recorded and not applied, and nobody sees it, itself included."""
        seen = []

        class Watching(Hook):
            shadow = True

            @on(Question)
            def check(self, event):
                event.answer = 1
                event.cancel = "no"
                seen.append((event.answer, event.cancel))

        Question.subscribe(lambda event: seen.append((event.answer, event.cancel)))
        event = Question.emit()

        assert [(None, False), (None, False)] == seen
        assert (
            Edit("Watching.check", "answer", None, 1, False),
            Edit("Watching.check", "cancel", False, "no", False),
        ) == event.edits

    def test_does_not_latch(self):
        """A shadow's refusal latches nothing: a real one stands with its own reason."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            def check(self, event):
                event.cancel = "shadow"

        Question.subscribe(lambda event: setattr(event, "cancel", "real"))

        assert "real" == Question.emit().cancel

    def test_raises(self):
        """A shadow that raises is recorded and reported; the others judge, and the emitter goes on."""
        error = ValueError("boom")

        class Watching(Hook):
            shadow = True

            @on(Question)
            def check(self, event):
                raise error

        Question.subscribe(lambda event: setattr(event, "answer", 1))
        with stderr_lines() as lines, capture(HandlerFailedEvent) as failures:
            event = Question.emit()

        assert 1 == event.answer
        assert Edit("Watching.check", RAISED, None, error, False) == event.edits[0]
        assert error is failures[0].error
        assert ["HOOK FAIL Watching.check on=Question ValueError: boom"] == [
            line.split(" ", 2)[2].split(" (")[0] for line in lines
        ]

    def test_predicate_raises(self):
        """So is one whose `when=` raises."""
        error = ValueError("boom")

        class Watching(Hook):
            shadow = True

            @on(Question, when=lambda event: throw(error))
            def check(self, event):
                event.cancel = "no"

        event = Question.emit()

        assert (Edit("Watching.check", RAISED, None, error, False),) == event.edits

    @pytest.mark.parametrize(
        "write",
        [lambda event: setattr(event, "cancel", ""), lambda event: setattr(event, "other", 1)],
        ids=["empty reason", "read-only"],
    )
    def test_wrong_writes(self, write):
        """What would be an error of a real gate is one of the shadow, and stays its own."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            def check(self, event):
                write(event)

        event = Question.emit()

        assert [(RAISED, False)] == [(edit.field, edit.applied) for edit in event.edits]

    @pytest.mark.parametrize("way", ["emit", "aemit"])
    def test_async(self, way):
        """An async shadow is waited for, and applied no more than a sync one."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            async def check(self, event):
                await asyncio.sleep(0)
                event.cancel = "no"
                raise BOOM

        event = Question.emit() if way == "emit" else asyncio.run(Question.aemit())

        assert False is event.cancel
        assert (
            Edit("Watching.check", "cancel", False, "no", False),
            Edit("Watching.check", RAISED, None, BOOM, False),
        ) == event.edits

    def test_async_where_it_cannot_be_waited_for(self):
        """An async shadow that a sync emit cannot wait for is recorded as failed, and stops nobody."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            async def check(self, event):
                event.cancel = "no"

        async def main():
            return Question.emit()

        (edit,) = asyncio.run(main()).edits
        assert (RAISED, False, AsyncGateError) == (edit.field, edit.applied, type(edit.new))

    def test_task_left_behind(self):
        """What a task of a shadow writes is not applied either, in whoever's turn it comes."""
        tasks = []

        class Watching(Hook):
            shadow = True

            @on(Question)
            async def check(self, event):
                async def write():
                    await asyncio.sleep(0)
                    event.cancel = "late"

                tasks.append(asyncio.create_task(write()))

        @Question.subscribe
        async def other(event):
            await asyncio.wait(tasks)

        event = asyncio.run(Question.aemit())

        assert False is event.cancel
        assert (Edit("Watching.check", "cancel", False, "late", False),) == event.edits

    def test_thread(self):
        """Nor is what a thread of it writes while its turn lasts."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            def check(self, event):
                in_thread(lambda: setattr(event, "cancel", "no"))

        assert False is Question.emit().cancel

    def test_after_event(self):
        """An after-event does the same, and raises none of a shadow's errors with the others'."""
        real = ValueError("real")

        class Watching(Hook):
            shadow = True

            @on(AfterEvent)
            def check(self, event):
                event.result = 1
                raise BOOM

        AfterEvent.subscribe(lambda event: throw(real))
        event = AfterEvent()
        with pytest.raises(ValueError) as caught:
            event.publish()

        assert real is caught.value
        assert None is event.result
        assert [("result", False), (RAISED, False)] == [
            (edit.field, edit.applied) for edit in event.edits if edit.handler == "Watching.check"
        ]

    @pytest.mark.parametrize("error", OUTSIDERS)
    def test_interrupt(self, error):
        """What is no Exception goes through a shadow as through any handler."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            def check(self, event):
                raise error

        with pytest.raises(error):
            Question.emit()

    @pytest.mark.exhausts_stack
    def test_without_end(self):
        """A shadow that asks its own gate without end is cut short, reported once, and stops nobody."""

        class Watching(Hook):
            shadow = True

            @on(Question)
            def check(self, event):
                Question.emit()

        Question.subscribe(lambda event: setattr(event, "answer", 1))
        with capture(HandlerFailedEvent) as failures:
            event = Question.emit()

        assert [EmitLoopError] == [type(failure.error) for failure in failures]
        assert 1 == event.answer

    def test_observers_of_a_shadow(self):
        """The observers of a shadow hook are none of its gates: they run as any others."""
        seen = []

        class Watching(Hook):
            shadow = True

            @on(Told)
            def hear(self, event):
                seen.append(event)

        Told.emit()

        assert [Told()] == seen


class TestBefore:
    def test_first_exception(self):
        """The first exception stops the rest and reaches the emitter as the very object it was."""
        error, calls = ValueError("boom"), []
        Question.subscribe(lambda event: calls.append("before"))
        Question.subscribe(lambda event: throw(error))
        Question.subscribe(lambda event: calls.append("after"))

        with pytest.raises(ValueError) as caught:
            Question.emit()

        assert error is caught.value
        assert (None, None, ("boom",)) == (error.__cause__, error.__context__, error.args)
        assert not hasattr(error, "__notes__")
        assert ["before"] == calls

    def test_reported(self):
        """It is reported before it propagates: a line, and an event with handler, event and error."""

        class Guard(Hook):
            @on(Question)
            def check(self, event):
                raise BOOM

        with stderr_lines() as lines, capture(HandlerFailedEvent) as failures, pytest.raises(ValueError):
            with correlation("run-1"):
                Question.emit()

        assert ["run-1 HOOK FAIL Guard.check on=Question ValueError: boom"] == [
            line.split(" ", 1)[1].split(" (")[0] for line in lines
        ]
        (failure,) = failures
        assert ("Guard", "Guard.check", BOOM, "run-1") == (
            failure.hook,
            failure.handler,
            failure.error,
            failure.correlation_id,
        )

    def test_recorded(self):
        """It is recorded as an edit, so that a failure names its author."""

        class Guard(Hook):
            @on(Question)
            def check(self, event):
                raise BOOM

        event = Question()
        with pytest.raises(ValueError):
            event.publish()

        assert (Edit("Guard.check", RAISED, None, BOOM, True),) == event.edits

    def test_predicate_raises(self):
        """An exception of `when=` is one of the handler: it refuses, and stops the rest."""
        calls = []
        Question.subscribe(lambda event: calls.append("guard"), when=lambda event: throw(BOOM))
        Question.subscribe(lambda event: calls.append("rest"))

        with pytest.raises(ValueError) as caught:
            Question.emit()

        assert BOOM is caught.value
        assert [] == calls

    def test_hook_cannot_be_made(self):
        """A guard whose instance cannot be made refuses."""

        class Guard(Hook):
            def __init__(self):
                raise BOOM

            @on(Question)
            def check(self, event):
                """Never called."""

        with pytest.raises(ValueError, match="boom"):
            Question.emit()

    def test_wrong_write(self):
        """A guard that misspells a field refuses, rather than judge nothing."""
        Question.subscribe(lambda event: setattr(event, "cancell", "no"))

        with pytest.raises(AttributeError, match="Cannot set 'cancell' on Question: read-only"):
            Question.emit()

    @pytest.mark.parametrize("error", OUTSIDERS)
    def test_interrupt(self, error):
        """What is no Exception propagates, and is not reported."""
        Question.subscribe(lambda event: throw(error("stop")))

        with capture(HandlerFailedEvent) as failures, pytest.raises(error):
            Question.emit()

        assert [] == list(failures)

    def test_report_fails(self):
        """An observer of failures that fails itself changes nothing of it."""
        HandlerFailedEvent.subscribe(lambda event: throw(RuntimeError("worse")))
        Question.subscribe(fail)

        with pytest.raises(ValueError, match="boom"):
            Question.emit()

    def test_strict(self):
        """Strict mode raises it once, as ever."""
        configure(strict=True)
        Question.subscribe(fail)

        with pytest.raises(ValueError, match="boom"):
            Question.emit()

    @pytest.mark.parametrize("way", ["emit", "aemit", "publish", "apublish"])
    def test_every_way(self, way):
        """Each way to ask a gate fails closed."""
        Question.subscribe(fail)
        ask = {
            "emit": Question.emit,
            "aemit": lambda: asyncio.run(Question.aemit()),
            "publish": lambda: Question().publish(),
            "apublish": lambda: asyncio.run(Question().apublish()),
        }

        with pytest.raises(ValueError, match="boom"):
            ask[way]()


class TestAfter:
    @settings(max_examples=50)
    @given(st.lists(st.integers(-2, 2), max_size=8), st.booleans())
    def test_opposite_order(self, priorities, with_base):
        """Handlers of an after-event run in exactly the opposite order, by priority and by registration."""
        before, after = [], []

        class Before(ProtectedEvent):
            pass

        class After(ProtectedEvent):
            reverse = True

        with isolated():
            for index, priority in enumerate(priorities):
                for event_class, seen in ((Before, before), (After, after)):
                    event_class.subscribe(lambda event, s=seen, i=index: s.append(i), priority=priority)
            if with_base:
                ProtectedEvent.subscribe(lambda event: (after if event.reverse else before).append("base"))
            Before.emit()
            After.emit()

        assert sorted(range(len(priorities)), key=priorities.__getitem__) == [
            i for i in before if i != "base"
        ]
        assert before == after[::-1]

    def test_handlers_of_a_hook(self):
        """Several handlers of one hook run in the opposite of their order of declaration, on one instance."""
        seen = []

        class Twice(Hook):
            @on(AfterEvent)
            def first(self, event):
                seen.append(("first", self))

            @on(AfterEvent)
            def second(self, event):
                seen.append(("second", self))

        AfterEvent.emit()

        assert ["second", "first"] == [name for name, _ in seen]
        assert seen[0][1] is seen[1][1]

    def test_single_error(self):
        """All run, then the single error is raised as the very object it was."""
        error, calls = ValueError("boom"), []
        AfterEvent.subscribe(lambda event: calls.append("last"))
        AfterEvent.subscribe(lambda event: throw(error))
        AfterEvent.subscribe(lambda event: calls.append("first"))

        with pytest.raises(ValueError) as caught:
            AfterEvent.emit()

        assert error is caught.value
        assert ["first", "last"] == calls

    def test_several_errors(self):
        """Several errors are raised as a group, in the order in which they came; each is reported."""
        errors = [ValueError("a"), KeyError("b")]
        for error in reversed(errors):
            AfterEvent.subscribe(lambda event, error=error: throw(error))

        with capture(HandlerFailedEvent) as failures, pytest.raises(ExceptionGroup) as caught:
            AfterEvent.emit()

        assert errors == list(caught.value.exceptions) == [failure.error for failure in failures]

    def test_predicate_raises(self):
        """An exception of `when=` is one of them, and its handler is not called."""
        calls = []
        AfterEvent.subscribe(lambda event: calls.append("other"))
        AfterEvent.subscribe(lambda event: calls.append("guarded"), when=lambda event: throw(BOOM))

        with pytest.raises(ValueError, match="boom"):
            AfterEvent.emit()

        assert ["other"] == calls

    @pytest.mark.parametrize("error", OUTSIDERS)
    def test_interrupt(self, error):
        """What is no Exception propagates at once."""
        AfterEvent.subscribe(fail)
        AfterEvent.subscribe(lambda event: throw(error("stop")))

        with pytest.raises(error):
            AfterEvent.emit()

    def test_async(self):
        """Awaited, they run in the opposite order too, and all of them."""
        calls = []

        async def slow(event):
            await asyncio.sleep(0)
            calls.append("slow")
            raise BOOM

        AfterEvent.subscribe(lambda event: calls.append("last"))
        AfterEvent.subscribe(slow)
        AfterEvent.subscribe(lambda event: calls.append("first"))

        with pytest.raises(ValueError, match="boom"):
            asyncio.run(AfterEvent.aemit())
        with pytest.raises(ValueError, match="boom"):
            AfterEvent.emit()

        assert ["first", "slow", "last"] * 2 == calls

    def test_result_is_kept(self):
        """What the others wrote is in the event, although one of them failed."""
        event = AfterEvent()
        AfterEvent.subscribe(fail)
        AfterEvent.subscribe(lambda event: setattr(event, "result", 1))

        with pytest.raises(ValueError, match="boom"):
            event.publish()

        assert 1 == event.result

    @pytest.mark.exhausts_stack
    def test_without_end(self):
        """One that emits without end is refused with the error that says so, and reported once."""
        AfterEvent.subscribe(lambda event: AfterEvent.emit())

        with capture(HandlerFailedEvent) as failures, pytest.raises(EmitLoopError):
            AfterEvent.emit()

        assert [EmitLoopError] == [type(failure.error) for failure in failures]


class AsyncCall:
    async def __call__(self, event):
        await asyncio.sleep(0)
        event.answer = "judged"


async def judge(event):
    await asyncio.sleep(0)
    event.answer = "judged"


async def judge_more(event, *, value):
    await asyncio.sleep(0)
    event.answer = value


class Awaitable:
    def __init__(self, event):
        self._event = event

    def __await__(self):
        return judge(self._event).__await__()


class TestAsync:
    judges = {
        "function": judge,
        "partial": functools.partial(judge_more, value="judged"),
        "call": AsyncCall(),
        "returns a coroutine": lambda event: judge(event),
        "returns an awaitable": Awaitable,
    }

    @pytest.mark.parametrize("fn", judges.values(), ids=judges)
    @pytest.mark.parametrize("way", ["emit", "aemit"])
    def test_kinds(self, fn, way):
        """Whatever is async is waited for, by `emit` as by `aemit`."""
        Question.subscribe(lambda event: fn(event))

        event = Question.emit() if way == "emit" else asyncio.run(Question.aemit())

        assert "judged" == event.answer

    @pytest.mark.parametrize("way", ["emit", "aemit"])
    def test_order(self, way):
        """Sync and async gates run in one order, each after the other has ended."""
        Question.subscribe(lambda event: setattr(event, "answer", "a"))

        @Question.subscribe
        async def second(event):
            await asyncio.sleep(0)
            event.answer += "b"

        Question.subscribe(lambda event: setattr(event, "answer", event.answer + "c"))

        event = Question.emit() if way == "emit" else asyncio.run(Question.aemit())

        assert "abc" == event.answer

    def test_on_the_background_loop(self):
        """A sync emit on a plain thread has async gates run on the thread of the background loop."""
        names = []

        async def note(event):
            names.append(threading.current_thread().name)

        Question.subscribe(note)
        in_thread(Question.emit)

        assert ["eventbus"] == names

    def test_never_on_the_loop_of_the_scope(self):
        """A scope's loop that waits for the emitting thread is not waited for."""

        async def main():
            loop = asyncio.get_running_loop()

            async def note(event):
                event.answer = asyncio.get_running_loop() is loop

            Question.subscribe(note)
            with correlation("run-1"):
                # The loop is blocked, not merely waiting: nothing of it could run.
                context = contextvars.copy_context()
                return in_thread(lambda: context.run(Question.emit))

        event = asyncio.run(asyncio.wait_for(main(), 30))

        assert (False, "run-1") == (event.answer, event.correlation_id)

    def test_in_a_worker_thread(self):
        """An emit in a thread that the loop awaits is judged as well."""
        Question.subscribe(judge)

        async def main():
            with correlation("run-1"):
                return await asyncio.wait_for(asyncio.to_thread(Question.emit), 30)

        assert "judged" == asyncio.run(main()).answer

    def test_on_a_running_loop(self):
        """On the running loop `emit` raises an error that names `aemit`, and lets nothing through."""
        later = []
        Question.subscribe(judge)
        Question.subscribe(later.append)

        async def main():
            with pytest.raises(AsyncGateError) as caught:
                Question.emit()
            return str(caught.value)

        assert (
            "judge is async and cannot be waited for on the running loop; "
            "use `await Question.aemit(...)`, or AsyncRun for a run."
        ) == asyncio.run(main())
        assert [] == later

    @pytest.mark.parametrize("slow_handler", [None, 60.0])
    def test_closed(self, slow_handler):
        """The coroutine that nobody will await is closed, without a warning."""
        configure(slow_handler=slow_handler)
        Question.subscribe(judge)

        async def main():
            with pytest.raises(AsyncGateError):
                Question.emit()

        asyncio.run(main())
        gc.collect()

    def test_after_event_on_a_running_loop(self):
        """In an after-event the others run, then that error is raised."""
        calls = []

        async def look(event):
            calls.append("async")

        AfterEvent.subscribe(calls.append)
        AfterEvent.subscribe(look)

        async def main():
            with pytest.raises(AsyncGateError, match="aemit"):
                AfterEvent.emit()

        asyncio.run(main())
        assert [AfterEvent()] == calls

    def test_sync_gates_on_a_running_loop(self):
        """Sync gates need no waiting: there `emit` works on a loop too."""
        Question.subscribe(lambda event: setattr(event, "answer", 1))

        async def main():
            return Question.emit().answer

        assert 1 == asyncio.run(main())

    def test_inside_an_async_gate(self):
        """A sync emit from inside an async gate is on the background loop, and told so."""

        class Inner(ProtectedEvent):
            pass

        Inner.subscribe(judge)

        @Question.subscribe
        async def outer(event):
            Inner.emit()

        with pytest.raises(AsyncGateError, match=r"Inner\.aemit"):
            Question.emit()

    @pytest.mark.parametrize("way", ["emit", "aemit"])
    def test_context_variables(self, way):
        """An async gate sees the emitter's context variables, the correlation id among them."""
        color = contextvars.ContextVar("color", default="none")

        @Question.subscribe
        async def look(event):
            await asyncio.sleep(0)
            event.answer = (color.get(), current_correlation_id())

        color.set("red")
        with correlation("run-1"):
            event = Question.emit() if way == "emit" else asyncio.run(Question.aemit())

        assert ("red", "run-1") == event.answer

    @pytest.mark.parametrize("way", ["emit", "aemit"])
    def test_error(self, way):
        """An async gate that raises fails closed: the same object, and the rest does not run."""
        later = []

        async def refuse(event):
            await asyncio.sleep(0)
            raise BOOM

        Question.subscribe(refuse)
        Question.subscribe(later.append)

        with pytest.raises(ValueError) as caught:
            Question.emit() if way == "emit" else asyncio.run(Question.aemit())

        assert BOOM is caught.value
        assert [] == later

    @pytest.mark.parametrize("error", OUTSIDERS)
    def test_interrupt(self, error):
        """What is no Exception reaches the waiting emitter as it is, and the background loop goes on."""
        raised = error("stop")

        async def stop(event):
            raise raised

        with (
            Question.subscribe(stop),
            capture(HandlerFailedEvent) as failures,
            pytest.raises(error) as caught,
        ):
            Question.emit()
        Question.subscribe(judge)

        assert raised is caught.value
        assert [] == list(failures)
        assert "judged" == Question.emit().answer

    def test_gate_is_cancelled(self):
        """A gate that is cancelled while the emitter waits for it ends in the emitter's CancelledError."""
        started, calls = threading.Event(), []

        async def wait(event):
            started.set()
            await asyncio.Event().wait()

        def cancel():
            assert started.wait(30)
            asyncio.run_coroutine_threadsafe(cancel_others(), scheduler._background_loop()).result(30)

        async def cancel_others():
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        Question.subscribe(wait)
        Question.subscribe(calls.append)
        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(asyncio.CancelledError):
            Question.emit()
        canceller.join(30)

        assert [] == calls

    def test_cancelled_aemit(self):
        """Cancelling the emitting task cancels the gate, and propagates."""
        calls = []

        async def main():
            started = asyncio.Event()

            async def wait(event):
                started.set()
                await asyncio.Event().wait()

            Question.subscribe(wait)
            Question.subscribe(calls.append)
            task = asyncio.create_task(Question.aemit())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert [] == calls

    def test_what_gates_emit(self):
        """What an async gate emits to async observers is delivered on a loop, and not lost."""
        seen = []

        async def observe(event):
            seen.append(event)

        @Question.subscribe
        async def tell(event):
            Told.emit()

        Told.subscribe(observe)
        Question.emit()

        assert 0 == drain(30)
        assert [Told()] == seen


class TestAsking:
    asks = {
        "emit": lambda: Question.emit(),
        "aemit": lambda: asyncio.run(Question.aemit()),
        "publish": lambda: Question().publish(),
        "apublish": lambda: asyncio.run(Question().apublish()),
    }

    @pytest.mark.parametrize("ask", asks.values(), ids=asks)
    @pytest.mark.parametrize("listeners", [0, 1])
    def test_returns_the_event(self, ask, listeners):
        """Each way to ask returns the event that was judged, also when nobody judges."""
        seen = []
        for _ in range(listeners):
            Question.subscribe(seen.append)

        event = ask()

        assert type(event) is Question
        assert all(event is one for one in seen)

    def test_built_for_nobody(self):
        """A gate is built although nobody listens: its converters run, and it counts."""

        class Named(ProtectedEvent):
            name: str = attrs.field(converter=str.upper)

        before = stats()["events"]

        assert "A" == Named.emit(name="a").name
        assert 1 == stats()["events"] - before

    def test_published_again(self):
        """An event that is published again is judged again, with its latches and edits kept."""
        event = Question()
        Question.subscribe(lambda event: setattr(event, "cancel", "no"))

        assert event is event.publish().publish()
        assert [True, False] == [edit.applied for edit in event.edits]

    def test_raw_keys(self):
        """Keys that are no field are raw payload, which nobody can write."""
        event = Question.emit(note={"a": 1})

        assert {"a": 1} == event["note"] == event.get("note")
        with pytest.raises(AttributeError, match="Cannot set 'note'"):
            event.note = 1
        with pytest.raises(TypeError, match="read-only"):
            event["note"]["a"] = 2

    def test_what_handlers_return(self):
        """What a handler returns is no verdict."""
        Question.subscribe(lambda event: "no")

        assert (False, ()) == ((event := Question.emit()).cancel, event.edits)

    def test_built_before_it_is_asked(self):
        """A run builds a gate as `emit` would, and asks it later."""
        event = build(Question, {"answer": [1], "note": [2], "correlation_id": "run-1", "timestamp": 1.0})

        assert Question.emit(answer=[1], note=[2], correlation_id="run-1") == event
        assert "extra" not in build(Question, {}).payload
        with pytest.raises(TypeError, match="read-only"):
            event["note"].append(3)

    def test_built_events_are_counted(self):
        """What is built before it is asked counts like what `emit` builds."""
        before = stats()["events"]
        build(Question, {})

        assert 1 == stats()["events"] - before

    def test_positional(self):
        """Every argument has a name."""
        with pytest.raises(TypeError, match="positional"):
            BeforeToolCallEvent.emit(REFUND)
        with pytest.raises(TypeError, match="keyword arguments only"):
            BeforeToolCallEvent(REFUND)

    def test_the_root(self):
        """The root itself is not emitted."""
        with pytest.raises(TypeError, match="ProtectedEvent is the root of gates"):
            ProtectedEvent.emit()
        with pytest.raises(TypeError, match="ProtectedEvent is the root of gates"):
            build(ProtectedEvent, {})
        with pytest.raises(TypeError, match="ProtectedEvent is the root of gates"):
            asyncio.run(ProtectedEvent.aemit())

    def test_base_and_subclass(self):
        """Subscribing to a base judges its subclasses, later ones included, and not the other way round."""
        seen = []
        ProtectedEvent.subscribe(lambda event: seen.append(("root", type(event).__name__)))
        Question.subscribe(lambda event: seen.append(("base", type(event).__name__)))

        class Later(Question):
            pass

        Later.subscribe(lambda event: seen.append(("sub", type(event).__name__)))
        Later.emit()
        Question.emit()

        assert [
            ("root", "Later"),
            ("base", "Later"),
            ("sub", "Later"),
            ("root", "Question"),
            ("base", "Question"),
        ] == seen

    def test_no_observed_event(self):
        """`Event.subscribe` sees observed events, and no gate; the gates' root sees no observed event."""
        seen = []
        Event.subscribe(seen.append)
        ProtectedEvent.subscribe(seen.append)

        Question.emit()
        Told.emit()

        assert [Question, Told] == [type(event) for event in seen]

    def test_has_receivers(self):
        """`has_receivers` tells whether anybody would judge."""
        assert False is Question.has_receivers()
        with Question.subscribe(fail):
            assert True is Question.has_receivers()

    def test_one_function_once(self):
        """A function judges an event once, whichever of its subscriptions match."""
        seen = []
        Question.subscribe(seen.append)
        ProtectedEvent.subscribe(seen.append)

        Question.emit()

        assert 1 == len(seen)

    def test_one_run(self):
        """With `correlation_id=` a function judges one run only; those of others are returned unjudged."""
        seen = []
        Question.subscribe(lambda event: seen.append(event.correlation_id), correlation_id="run-1")

        asked = [Question.emit(correlation_id=cid).correlation_id for cid in ("run-1", "run-2", None)]

        assert ["run-1", "run-2", None] == asked
        assert ["run-1"] == seen

    def test_correlation(self):
        """A gate carries the ambient id, or the one given, and so does what its handlers emit."""
        seen = []
        Told.subscribe(lambda event: seen.append(event.correlation_id))
        Question.subscribe(lambda event: Told.emit())

        with correlation("outer"):
            ambient, given_ = Question.emit(), Question.emit(correlation_id="given")

        assert ("outer", "given") == (ambient.correlation_id, given_.correlation_id)
        assert ["outer", "given"] == seen

    def test_blinker(self):
        """A function connected with blinker's own API judges and fails closed like any other."""

        def raw(sender):
            sender.cancel = "raw"

        Question.signal.connect(raw)
        assert "raw" == Question.emit().cancel
        Question.signal.connect(fail)
        with pytest.raises(ValueError, match="boom"):
            Question.emit()

    @pytest.mark.exhausts_stack
    def test_without_end(self):
        """A gate asked without end is refused with an error that shows the chain, and reported once."""

        class Loop(Hook):
            @on(Question)
            def again(self, event):
                Question.emit()

        with capture(HandlerFailedEvent) as failures, pytest.raises(EmitLoopError) as caught:
            Question.emit()

        assert "Question -> Loop.again -> Question -> Loop.again" in str(caught.value)
        assert [caught.value] == [failure.error for failure in failures]

    @pytest.mark.exhausts_stack
    def test_without_end_awaited(self):
        """So is one that is awaited without end."""

        class Loop(Hook):
            @on(Question)
            async def again(self, event):
                await Question.aemit()

        with capture(HandlerFailedEvent) as failures, pytest.raises(EmitLoopError) as caught:
            asyncio.run(Question.aemit())

        assert "Question -> Loop.again -> Question -> Loop.again" in str(caught.value)
        assert [caught.value] == [failure.error for failure in failures]

    @pytest.mark.exhausts_stack
    def test_asked_by_an_endless_observer(self):
        """A gate inside a chain that was cut is refused: its action does not go on unjudged."""
        outcomes = []

        def ask(event):
            try:
                Question.emit()
            except EmitLoopError as error:
                outcomes.append(error)

        @Told.subscribe
        def again(event):
            Told.emit()
            ask(event)

        with capture(HandlerFailedEvent) as failures:
            Told.emit()

        (failure,) = failures
        assert outcomes
        assert all(failure.error is error for error in outcomes)


class TestValue:
    def test_equality(self):
        """Gates compare by value; who wrote it, and when, is no part of it."""
        written = Question.emit(timestamp=1.0)
        written.answer = 1

        assert Question.emit(answer=1, timestamp=2.0) == written
        assert Question.emit(answer=2) != written
        assert "other" != written

    def test_unhashable(self):
        """What can be written to has no hash, in subclasses neither."""

        class Deeper(Question):
            pass

        for event in (Question.emit(), Deeper.emit()):
            with pytest.raises(TypeError, match="unhashable type"):
                hash(event)

    copies = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda event: pickle.loads(pickle.dumps(event)),
    }

    @pytest.mark.parametrize("make", copies.values(), ids=copies)
    def test_copies(self, make):
        """A copy has the value, the raw payload, the latches and the edits so far, and goes its own way."""
        event = BeforeToolCallEvent.emit(tool_call=REFUND, arguments={"lines": [1]}, note="raw")
        event.cancel = "no"

        other = make(event)
        assert event == other
        assert event.edits == other.edits
        assert "raw" == other["note"]
        other.cancel = "yes"
        other.arguments = {}

        with pytest.raises(TypeError, match="belongs to an event and is read-only"):
            make(event).arguments["lines"] = []
        with pytest.raises(TypeError, match="belongs to an event and is read-only"):
            make(event).arguments["lines"].append(2)
        assert ("no", {}) == (other.cancel, other.arguments)
        assert (1, 3) == (len(event.edits), len(other.edits))
        assert {"lines": [1]} == event.arguments

    @pytest.mark.parametrize("make", copies.values(), ids=copies)
    def test_copied_in_a_handler(self, make):
        """A copy that a handler makes is not what it judges: what is written to it is nobody's edit."""
        made = []

        class Watching(Hook):
            shadow = True

            @on(Question)
            def keep(self, event):
                made.append(make(event))

        Question.emit()
        made[0].answer = 1

        assert (Edit(None, "answer", None, 1, True),) == made[0].edits

    def test_repr(self):
        """The repr has the fields, as for any event."""
        assert "Question(answer=1, cancel=False, correlation_id='run-1', timestamp=2.0)" == repr(
            Question(answer=1, correlation_id="run-1", timestamp=2.0)
        )


class TestHooks:
    def test_retiring_a_guard(self):
        """A subclass retires a hook with gates only if it says `replaces = True`."""

        class Guard(Hook):
            @on(Question)
            def check(self, event):
                event.cancel = "no"

        with pytest.raises(TypeError, match=r"would retire .*Guard, whose gates guard runs; set `replaces"):

            class Looser(Guard):
                check = None

        assert "no" == Question.emit().cancel

        class Stricter(Guard):
            replaces = True

            @on(Question)
            def check(self, event):
                event.cancel = "stricter"

        event = Question.emit()
        assert ("stricter", ["Stricter.check"]) == (event.cancel, [edit.handler for edit in event.edits])

    def test_retiring_a_guard_by_its_shadow(self):
        """That holds for a subclass that is a shadow, which would let through what the guard refuses."""

        class Guard(Hook):
            @on(Question)
            def check(self, event):
                event.cancel = "no"

        with pytest.raises(TypeError, match="set `replaces = True`"):

            class Watching(Guard):
                shadow = True

        assert "no" == Question.emit().cancel

    def test_isolated(self):
        """A guard is silent inside `isolated()` and may be specialised there; outside it guards as before."""

        class Guard(Hook):
            @on(Question)
            def check(self, event):
                event.cancel = "no"

        with isolated():
            assert False is Question.emit().cancel

            class Other(Guard):
                @on(Question)
                def check(self, event):
                    event.cancel = "other"

            assert "other" == Question.emit().cancel

        assert "no" == Question.emit().cancel
        assert ["live"] == [info.state for info in hooks() if info.cls is Guard]

    def test_let_into_isolation(self):
        """A guard that is let in with `register()` is as hard to retire there."""

        class Guard(Hook):
            @on(Question)
            def check(self, event):
                event.cancel = "no"

        with isolated():
            Guard.register()
            with pytest.raises(TypeError, match="set `replaces = True`"):

                class Other(Guard):
                    pass

            assert "no" == Question.emit().cancel

    @pytest.mark.parametrize("order", list(itertools.permutations(["security", "business", "none"])))
    def test_security_first(self, order):
        """A security hook comes first, whichever file is imported first."""
        seen = []

        def define(name):
            class Judge(Hook):
                priority = {"security": Priority.SECURITY, "business": Priority.BUSINESS}.get(
                    name, Priority.DEFAULT
                )

                @on(Question)
                def check(self, event):
                    seen.append(name)

        for name in order:
            define(name)
        Question.emit()

        assert ["security", "business", "none"] == seen

    def test_security_last_of_an_after_event(self):
        """It has the last word on an after-event."""
        seen = []
        for priority in (Priority.BUSINESS, Priority.SECURITY, Priority.DEFAULT):
            AfterEvent.subscribe(lambda event, p=priority: seen.append(p), priority=priority)

        AfterEvent.emit()

        assert [Priority.DEFAULT, Priority.BUSINESS, Priority.SECURITY] == seen

    def test_stateful(self):
        """A stateful gate has one instance per run."""

        class Budget(Hook):
            stateful = True

            def __init__(self):
                self.asked = 0

            @on(Question)
            def check(self, event):
                self.asked += 1
                if self.asked > 1:
                    event.cancel = "enough"

        asked = [Question.emit(correlation_id=cid).cancel for cid in ("a", "b", "a")]

        assert [False, False, "enough"] == asked

    def test_lock_is_not_free(self):
        """A stateful guard that cannot get its run's lock refuses."""
        entered, leave = threading.Event(), threading.Event()

        class Guard(Hook):
            stateful = True
            lock_timeout = 0.01

            @on(Question)
            def check(self, event):
                if not entered.is_set():
                    entered.set()
                    leave.wait(30)

        holder = threading.Thread(target=lambda: Question.emit(correlation_id="run-1"))
        holder.start()
        assert entered.wait(30)
        try:
            with pytest.raises(TimeoutError, match=r"Guard\.check did not get the lock"):
                Question.emit(correlation_id="run-1")
        finally:
            leave.set()
            holder.join(30)


class Ruled(ProtectedEvent):
    """What the property test writes to."""

    plain: Any = writable(default=0)
    latch: Any = writable(default=False, sticky=True)


VALUES = st.sampled_from([False, None, 0, "", "  ", True, "first", "second", 7])
WRITES = st.lists(st.tuples(st.sampled_from(["plain", "latch"]), VALUES), max_size=4)
HANDLERS = st.lists(st.tuples(st.booleans(), st.booleans(), WRITES), max_size=5)


@settings(max_examples=150)
@given(handlers=HANDLERS, initial=st.sampled_from([False, "given"]), outside=WRITES)
def test_rules_of_writing(handlers, initial, outside):
    """
    Whoever writes what, in whatever order: the stated rules hold over the edits.

    The value in force is the last one applied; a latched field never changes; each write is one edit, of its
    author; a shadow's is never applied; a blank reason is refused, and only where it would have counted.
    """
    accepted = []
    refused = []

    def write(event, author, writes):
        for field, value in writes:
            armed = field == "latch" and not event.latch
            try:
                setattr(event, field, value)
            except ValueError:
                refused.append((armed, value))
            else:
                accepted.append((author, field, value))
                assert not (armed and isinstance(value, str) and not value.strip())

    def define(index, shadow_, is_async, writes):
        author = f"Writer{index}.write"

        def plain(self, event):
            write(event, author, writes)

        async def awaited(self, event):
            await asyncio.sleep(0)
            write(event, author, writes)

        fn = awaited if is_async else plain
        type(f"Writer{index}", (Hook,), {"shadow": shadow_, "write": on(Ruled)(fn)})
        return author

    with isolated():
        authors = {define(index, *handler): handler[0] for index, handler in enumerate(handlers)}
        shadows = {author for author, shadow_ in authors.items() if shadow_}
        event = Ruled.emit(latch=initial)
        write(event, None, outside)

    assert accepted == [(edit.handler, edit.field, edit.new) for edit in event.edits]
    assert all(armed and isinstance(value, str) and not value.strip() for armed, value in refused)
    force = {"plain": 0, "latch": initial}
    for edit in event.edits:
        assert force[edit.field] == edit.old
        latched = edit.field == "latch" and bool(edit.old)
        assert (not latched and edit.handler not in shadows) == edit.applied
        if edit.applied:
            force[edit.field] = edit.new
    assert force == {"plain": event.plain, "latch": event.latch}
    truthy = [edit.new for edit in event.edits if edit.field == "latch" and edit.applied and edit.new]
    assert (initial or (truthy or [event.latch])[0]) == event.latch
