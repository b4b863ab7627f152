"""
Event classes: what a class statement makes, what an event holds, and what is refused when the class is made.
"""

from __future__ import annotations

import abc
import asyncio
import copy
import dataclasses
import enum
import functools
import gc
import pickle
import threading
import time
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

import eventbus
from eventbus import Event, correlation, stats
from eventbus._registry import topic_of
from eventbus.testing import capture

T = TypeVar("T")


class OrderPlaced(Event):
    order_id: str
    total: float = 0.0


class Shipped(Event):
    parcels: Any = None


@attrs.frozen
class Slotted(Event):
    order_id: str
    lines: Any = attrs.field(factory=list)


def only(event_class, **fields):
    """Emit one event and return what a handler received."""
    with capture(event_class) as recorder:
        event_class.emit(**fields)
    (event,) = recorder.events
    return event


class TestDefinition:
    """What a class statement makes."""

    def test_annotations_become_fields(self):
        """Subclassing is all it takes: annotated names are fields, with their defaults."""
        event = only(OrderPlaced, order_id="A1")
        assert ("A1", 0.0) == (event.order_id, event.total)
        assert attrs.has(OrderPlaced)
        assert ["correlation_id", "timestamp", "order_id", "total"] == [
            f.name for f in attrs.fields(OrderPlaced)
        ]

    def test_a_class_variable_is_no_field(self):
        """What is annotated as ClassVar stays an attribute of the class, mutable or not."""

        class Counted(Event):
            seen: ClassVar[list[str]] = []
            kept: typing.ClassVar[dict] = {}
            ClassVariant: int = 0

        assert {"ClassVariant": 0} == Counted().payload

    def test_an_event_is_frozen(self):
        """Neither a field nor anything else can be set on, or deleted from, an event."""
        event = only(OrderPlaced, order_id="A1")
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            event.total = 1.0
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            event.other = 1.0
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            del event.total

    def test_arguments_have_names(self):
        """Fields are keyword-only, in emit and in the constructor."""
        with pytest.raises(
            TypeError, match=r"OrderPlaced\.emit\(\) takes 0 positional arguments but 1 was given"
        ):
            OrderPlaced.emit("A1")
        with pytest.raises(TypeError, match=r"^OrderPlaced\(\) takes keyword arguments only"):
            OrderPlaced("A1")

    def test_a_required_field_may_follow_an_optional_one(self):
        """No field has to stand before another, since all have names."""

        class Mixed(Event):
            first: int = 1
            second: str

        assert (1, "x") == (Mixed(second="x").first, Mixed(second="x").second)

    def test_a_subclass_adds_fields_and_replaces_defaults(self):
        """Fields are inherited; a subclass may give one another default, or require it."""

        class Base(Event):
            a: int = 1
            b: int = 2

        class Derived(Base):
            a: int = 10
            b: int
            c: int = 3

        assert {"a": 10, "b": 5, "c": 3} == only(Derived, b=5).payload
        with pytest.raises(TypeError, match="'b'"):
            Derived.emit()

    def test_a_hundred_fields(self):
        """The number of fields is not limited."""
        body = {"__annotations__": {f"f{i}": int for i in range(100)}, **{f"f{i}": i for i in range(50)}}
        Wide = types.new_class("Wide", (Event,), {}, lambda namespace: namespace.update(body))
        event = only(Wide, **{f"f{i}": -i for i in range(50, 100)})
        assert [i if i < 50 else -i for i in range(100)] == list(event.payload.values())

    @pytest.mark.parametrize(
        "name",
        "event plan cls PLAN BUILT KEYED k v name object match type when call receiver args kwargs".split(),
    )
    def test_a_field_may_have_any_name_of_its_own(self, name):
        """A field's name does not meet those that the bus uses in its own code."""
        Named = types.new_class("Named", (Event,), {}, lambda ns: ns.update(__annotations__={name: int}))
        assert {name: 7, "raw": 8} == only(Named, **{name: 7, "raw": 8}).payload
        assert {name: 7} == Named(**{name: 7}).payload

    def test_a_private_field_is_given_without_its_underscore(self):
        """As in attrs, `_secret` is written `secret=`; the payload has it under its own name."""

        class Private(Event):
            _secret: int = 0

        assert {"_secret": 3} == only(Private, secret=3).payload
        assert {"_secret": 3, "other": 4} == only(Private, secret=3, other=4).payload
        Private.subscribe(lambda event: None)
        with pytest.raises(
            TypeError, match=r"Private\.emit\(\) got `_secret`, a field that is given as `secret`"
        ):
            Private.emit(_secret=3)

    def test_a_field_may_have_an_alias(self):
        """`attrs.field(alias=...)` names the argument."""

        class Aliased(Event):
            kind: str = attrs.field(alias="class_")

        assert "x" == only(Aliased, class_="x").kind

    def test_a_field_that_is_not_given(self):
        """A field with `init=False` has its default; to give it is a TypeError."""

        class Stamped(Event):
            version: int = attrs.field(init=False, default=3)
            name: str = ""

        assert {"version": 3, "name": "x"} == only(Stamped, name="x").payload
        Stamped.subscribe(lambda event: None)
        with pytest.raises(
            TypeError, match=r"Stamped\.emit\(\) got `version`, a field that is not to be given"
        ):
            Stamped.emit(version=4)

    def test_converters_validators_and_factories(self):
        """What attrs offers for fields works, whether emit or the constructor builds the event."""

        def positive(event, attribute, value):
            if value <= 0:
                raise ValueError(attribute.name)

        class Checked(Event):
            plain: int = attrs.field(converter=int)
            count: int = attrs.field(converter=int, validator=positive)
            tags: list = attrs.field(factory=list)
            twice: int = attrs.field()

            @twice.default
            def _twice(self):
                return self.count * 2

        for event in (only(Checked, plain="1", count="2"), Checked(plain="1", count="2")):
            assert {"plain": 1, "count": 2, "tags": [], "twice": 4} == event.payload
        with pytest.raises(ValueError, match="count"):
            only(Checked, plain=1, count=0)

    def test_a_converter_that_takes_the_event(self):
        """`attrs.Converter(takes_self=True)` works too."""

        class Scaled(Event):
            factor: int = 2
            value: int = attrs.field(converter=attrs.Converter(lambda v, e: v * e.factor, takes_self=True))

        assert 10 == only(Scaled, value=5).value

    def test_defaults_are_converted(self):
        """A default goes through the converter, as in attrs."""

        class Defaulted(Event):
            value: int = attrs.field(default="3", converter=int)
            made: tuple = attrs.field(factory=list, converter=tuple)

        assert {"value": 3, "made": ()} == only(Defaulted).payload

    def test_post_init_runs(self):
        """`__attrs_post_init__` runs for each event that is built."""
        seen = []

        class Noted(Event):
            n: int

            def __attrs_post_init__(self):
                seen.append(self.n)

        Noted.emit(n=1)
        only(Noted, n=2)
        assert [2] == seen

    def test_a_mixin_that_takes_part_in_construction(self):
        """emit does not go around the `__init__` or `__new__` of a mixin."""
        seen = []

        class Initialised:
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                seen.append("init")

        class Made:
            def __new__(cls, **kwargs):
                seen.append("new")
                return super().__new__(cls)

        class First(Initialised, Event):
            n: int

        class Second(Made, Event):
            n: int

        assert (1, 2) == (only(First, n=1).n, only(Second, n=2).n)
        assert ["init", "new"] == seen

    def test_an_enum_as_default(self):
        """Any hashable default is kept as it is."""

        class Colour(enum.Enum):
            RED = 1

        class Painted(Event):
            colour: Colour = Colour.RED

        assert Colour.RED is only(Painted).colour

    def test_a_generic_event(self):
        """Generic event classes work, plain, subscripted and subclassed."""

        class Box(Event, Generic[T]):
            item: T

        class IntBox(Box[int]):
            pass

        with capture(Box) as recorder:
            Box.emit(item=1)
            Box[int].emit(item=2)
            IntBox.emit(item=3)
        assert [1, 2, 3] == [event.item for event in recorder]

    def test_abstract_classes_and_protocols(self):
        """Mixins from abc and typing.Protocol work on either side of the root."""

        class Priced(Protocol):
            price: int

        class Abstract(Event, abc.ABC):
            @abc.abstractmethod
            def label(self): ...

        class Concrete(Abstract):
            price: int

            def label(self):
                return f"{self.price}"

        class Left(Priced, Event):
            price: int

        class Right(Event, Priced):
            price: int

        assert ["1", 2, 3, 4] == [
            only(Concrete, price=1).label(),
            only(Left, price=2).price,
            only(Right, price=3).price,
            Left(price=4).price,
        ]

    @pytest.mark.parametrize("slots", [True, False])
    @pytest.mark.parametrize("first", [True, False])
    def test_an_attrs_mixin(self, slots, first):
        """The fields of an attrs class that is mixed in are fields; its generated methods are not used."""

        @attrs.define(slots=slots)
        class Located:
            place: str = attrs.field(default="", converter=str)

        bases = (Located, Event) if first else (Event, Located)
        Placed = types.new_class("Placed", bases, {}, lambda ns: ns.update(__annotations__={"n": int}))
        event = only(Placed, n=1, place=2, raw=[3])
        assert {"place": "2", "n": 1, "raw": [3]} == event.payload
        assert {"place": "2", "n": 1, "raw": [3]} == copy.copy(event).payload
        assert Placed(n=1, place="2") == Placed(n=1, place="2")
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            event.place = "x"

    def test_a_cached_property(self):
        """A cached property is computed once, with slots and without."""

        class Plain(Event):
            n: int = 1

            @functools.cached_property
            def double(self):
                return self.n * 2

        class Rebuilt(Plain):
            pass

        event = only(attrs.frozen(Rebuilt), n=4)
        assert (2, 8, 8) == (Plain().double, event.double, event.double)

    def test_a_slot_beside_the_fields(self):
        """An event class may have slots of its own."""

        class Lean(Event):
            __slots__ = ("note",)
            n: int

        assert 1 == only(Lean, n=1).n

    def test_methods_of_its_own(self):
        """A class may define how it looks, compares and hashes."""

        class Odd(Event):
            n: int

            def __repr__(self):
                return f"odd {self.n}"

            def __eq__(self, other):
                return True

            def __hash__(self):
                return 3

        for cls in (
            Odd,
            attrs.frozen(type("Odd2", (Odd,), {})),
            attrs.frozen(slots=False)(type("Odd3", (Odd,), {})),
        ):
            assert ("odd 1", True, 3) == (repr(cls(n=1)), cls(n=1) == cls(n=2), hash(cls(n=1)))

    def test_the_module_defines_events_without_future_annotations(self):
        """Annotations are read as text and as objects alike."""
        namespace = {"Event": Event, "__name__": "elsewhere"}
        exec(
            "class Raw(Event):\n    n: int = 1\n    text: str | None = None\n    rows: list = None", namespace
        )
        raw = only(namespace["Raw"], rows=[[1]])
        with pytest.raises(TypeError):
            raw.rows.append(2)
        assert {"n": 1, "text": None, "rows": [[1]]} == raw.payload


class TestExplicitDecorator:
    """An explicit attrs decorator on top is accepted and changes nothing."""

    DECORATORS: ClassVar = [
        attrs.frozen,
        attrs.define,
        attrs.frozen(slots=False),
        attrs.define(slots=False),
        attrs.frozen(kw_only=True),
        attrs.frozen(eq=False),
        attrs.frozen(order=True),
        attrs.mutable,
        attrs.frozen(init=False),
    ]
    each = pytest.mark.parametrize("decorate", DECORATORS, ids=range(len(DECORATORS)))

    @each
    def test_one_event_type_comes_out(self, decorate):
        """Whoever subscribed to a base, or finds the class by its channel, meets the decorated class."""

        class Base(Event):
            pass

        with capture(Base) as recorder:

            @decorate
            class Decorated(Base, channel=f"tests.decorated.{id(decorate)}"):
                n: int = 1

            Decorated.emit(n=2)
        assert [Decorated] == [type(event) for event in recorder]
        assert Decorated is eventbus.find(Decorated.channel)
        assert f"tests.decorated.{id(decorate)}" == Decorated.channel
        gc.collect()
        assert [Decorated] == Base.__subclasses__()

    @each
    def test_it_behaves_as_without(self, decorate):
        """Constructor, payload, equality, repr, frozenness and read-only values are those of an event."""

        def define():
            class Same(Event):
                a: int = attrs.field(default=1, converter=int, validator=attrs.validators.ge(0))
                b: str
                c: dict = attrs.field(factory=dict)

                def summary(self):
                    return f"{self.a}{self.b}{__class__.__name__}"

            return Same

        bare, decorated = define(), decorate(define())
        for make in (
            lambda cls: cls(b="x", timestamp=1.0),
            lambda cls: only(cls, b="x", timestamp=1.0, raw=[1]),
        ):
            one, other = make(bare), make(decorated)
            assert one.payload == other.payload
            assert repr(one) == repr(other)
            assert one.summary() == other.summary()
            assert copy.copy(other) == other
            assert make(decorated) == other
            assert make(decorated) != one
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                other.a = 2
            with pytest.raises(TypeError):
                other.c["k"] = 1
        with pytest.raises(TypeError, match="takes keyword arguments only"):
            decorated(1)
        with pytest.raises(ValueError, match="must be >= 0"):
            decorated(a=-1, b="x")
        with pytest.raises(TypeError, match=r"Same\.emit\(\) missing 1 required keyword-only argument: 'b'"):
            decorated.emit()
        assert decorated(b="x", timestamp=1) == decorated(b="x", timestamp=2)

    def test_events_of_a_decorated_class_hash(self):
        """A decorated class hashes as an undecorated one does."""
        for decorate in self.DECORATORS:

            @decorate
            class Hashed(Event):
                n: int

            assert hash(Hashed(n=1)) == hash(Hashed(n=1))

    def test_subscriptions_to_the_first_pass_survive(self):
        """A class is known to the bus before the decorator runs; who subscribes then is not lost."""
        seen = []

        def subscribing(cls):
            cls.subscribe(seen.append)
            return cls

        @attrs.frozen
        @subscribing
        class Early(Event):
            n: int

        Early.emit(n=1)
        assert [Early(n=1, timestamp=0.0)] == seen
        assert Early.signal.owner is Early

    def test_a_subclass_of_a_decorated_class(self):
        """Fields in the slots of a base are found by a subclass's events."""

        class Child(Slotted):
            extra: int = 1

        @attrs.frozen
        class Grandchild(Child):
            more: dict = attrs.field(factory=dict)

        assert {"order_id": "A", "lines": [], "extra": 1} == only(Child, order_id="A").payload
        assert {"order_id": "A", "lines": [], "extra": 1, "more": {}} == only(
            Grandchild, order_id="A"
        ).payload

    def test_in_a_module_with_future_annotations(self):
        """Postponed annotations of an executed module are no hindrance, with or without the decorator."""
        source = (
            "from __future__ import annotations\nimport attrs\nfrom eventbus import Event\n"
            "@attrs.frozen\nclass Late(Event):\n"
            "    n: int = attrs.field(default=1, converter=int)\n    tag: Unknown\n"
        )
        namespace = {"__name__": "late_module"}
        exec(source, namespace)
        assert {"n": 2, "tag": None} == only(namespace["Late"], n="2", tag=None).payload


class TestCorrelationIdAndTimestamp:
    """What every event has."""

    def test_every_event_has_them(self):
        """The id is None outside of a run; the timestamp is the wall clock's, in seconds."""
        before = time.time()
        event = only(OrderPlaced, order_id="A1")
        assert event.correlation_id is None
        assert before <= event.timestamp <= time.time()

    def test_they_are_accepted(self):
        """Both can be given, to emit and to the constructor."""
        for event in (
            only(OrderPlaced, order_id="A1", correlation_id="run", timestamp=12.5),
            OrderPlaced(order_id="A1", correlation_id="run", timestamp=12.5),
        ):
            assert ("run", 12.5) == (event.correlation_id, event.timestamp)

    def test_the_enclosing_scope_gives_the_id(self):
        """Inside a correlation scope an event carries its id, however it is made."""
        with correlation("run"):
            assert "run" == only(OrderPlaced, order_id="A1").correlation_id
            assert "run" == OrderPlaced(order_id="A1").correlation_id
            assert "other" == only(OrderPlaced, order_id="A1", correlation_id="other").correlation_id

    def test_they_are_no_payload(self):
        """The payload is what the event says, not when and where."""
        assert {"order_id": "A1", "total": 0.0} == only(OrderPlaced, order_id="A1").payload


class TestPayload:
    """Reading an event by keys."""

    def test_any_key_can_be_read(self):
        """A named field and a raw key are read alike, by subscript and by get."""
        event = only(OrderPlaced, order_id="A1", coupon="X")
        assert ("A1", "X") == (event["order_id"], event["coupon"])
        assert ("A1", "X") == (event.get("order_id"), event.get("coupon"))

    def test_the_payload_has_all_keys(self):
        """Fields come in their order, then the raw keys in theirs."""
        event = only(OrderPlaced, order_id="A1", z=1, a=2)
        assert [("order_id", "A1"), ("total", 0.0), ("z", 1), ("a", 2)] == list(event.payload.items())

    def test_the_payload_is_read_only(self):
        """Nothing can be put into it."""
        payload = only(OrderPlaced, order_id="A1").payload
        with pytest.raises(TypeError):
            payload["total"] = 1
        assert isinstance(payload, Mapping)

    def test_a_missing_key(self):
        """It is a KeyError that names the event and the keys it has; get gives None, or what it is told."""
        event = only(OrderPlaced, order_id="A1", coupon="X")
        with pytest.raises(KeyError) as caught:
            event["totl"]
        assert (
            "OrderPlaced has no payload key 'totl'; its keys: order_id, total, coupon",
        ) == caught.value.args
        assert event.get("totl") is None
        assert 3 == event.get("totl", 3)

    def test_an_event_without_keys_says_so(self):
        """The error of an empty event reads well."""

        class Empty(Event):
            pass

        with pytest.raises(KeyError, match="its keys: none"):
            Empty()["x"]

    def test_an_event_is_no_sequence(self):
        """Having `[...]` does not make an event iterable."""
        with pytest.raises(TypeError):
            iter(OrderPlaced(order_id="A1"))

    def test_a_raw_key_may_have_any_name(self):
        """Raw keys do not meet the names the bus uses."""
        raw = {
            "self": 1,
            "cls": 2,
            "_eb_plan": 3,
            "_eb_extra": 4,
            "payload": 5,
            "_extra": 6,
            "emit": 7,
            "a b": 8,
        }
        event = only(OrderPlaced, order_id="A1", **raw)
        assert raw == {key: event[key] for key in raw}

    @given(raw=st.dictionaries(strategies.text(min_size=1), strategies.json_values(max_leaves=4), max_size=4))
    def test_raw_keys_come_back(self, raw):
        """Whatever the raw keys and values, they are read as they were given."""
        raw = {
            key: value for key, value in raw.items() if key not in {"parcels", "correlation_id", "timestamp"}
        }
        assert {"parcels": None, **raw} == only(Shipped, **raw).payload

    def test_the_constructor_takes_fields_only(self):
        """Raw keys are emit's; to the constructor they are a mistake."""
        with pytest.raises(TypeError, match="coupon"):
            OrderPlaced(order_id="A1", coupon="X")

    @given(value=strategies.containers(max_leaves=6))
    def test_what_handlers_read_is_not_the_emitters(self, value):
        """A dict or list given to emit is equal to what was given, and another."""
        event = only(Shipped, parcels=value, raw=value)
        assert value == event.parcels == event["raw"]
        if isinstance(value, (dict, list)):
            assert event.parcels is not value
            assert event["raw"] is not value

    def test_a_later_handler_is_not_broken_by_an_earlier(self):
        """A handler that pops a key fails alone: the next sees it, and the emitter's dict is unchanged."""
        mine, seen = {"id": 1, "nested": {"x": [1]}}, []
        Shipped.subscribe(lambda event: event.parcels.pop("id"))
        Shipped.subscribe(lambda event: event["raw"]["nested"]["x"].append(2))
        Shipped.subscribe(lambda event: seen.append((event.parcels["id"], event["raw"]["nested"]["x"])))
        before = stats()["failures"]
        Shipped.emit(parcels=mine, raw=mine)
        assert [(1, [1])] == seen
        assert {"id": 1, "nested": {"x": [1]}} == mine
        assert 2 == stats()["failures"] - before

    def test_what_a_converter_makes_is_read_only_too(self):
        """A field annotated as a scalar, whose converter makes a list, is protected."""

        class Split(Event):
            words: str = attrs.field(converter=str.split)

        for event in (only(Split, words="a b"), Split(words="a b")):
            with pytest.raises(TypeError):
                event.words.append("c")

    def test_a_payload_that_cannot_be_copied(self):
        """A lock, a generator or a cycle is handed on as it is."""
        lock, cycle = threading.Lock(), []
        cycle.append(cycle)
        event = only(Shipped, parcels=lock, cycle=cycle)
        assert lock is event.parcels
        assert 1 == len(event["cycle"][0][0])


class TestValue:
    """Events compare by value, timestamp apart."""

    def test_equal_values_are_equal(self):
        """Fields, raw keys and correlation id count; the timestamp does not."""
        a = only(OrderPlaced, order_id="A1", raw=1, timestamp=1.0)
        assert only(OrderPlaced, order_id="A1", raw=1, timestamp=2.0) == a
        assert hash(only(OrderPlaced, order_id="A1", raw=1, timestamp=2.0)) == hash(a)
        assert only(OrderPlaced, order_id="A2", raw=1) != a
        assert only(OrderPlaced, order_id="A1", raw=2) != a
        assert only(OrderPlaced, order_id="A1") != a
        assert only(OrderPlaced, order_id="A1", raw=1, correlation_id="run") != a

    def test_another_class_is_another_event(self):
        """Events of different classes differ, also if one is the other's base; so does what is no event."""

        class Special(OrderPlaced):
            pass

        assert Special(order_id="A1") != OrderPlaced(order_id="A1")
        assert OrderPlaced(order_id="A1") != Special(order_id="A1")
        assert OrderPlaced(order_id="A1") != "A1"

    def test_attrs_settings_of_equality_hold(self):
        """A field can stay out of equality, or be compared by a key."""

        class Fuzzy(Event):
            name: str = attrs.field(eq=str.lower)
            noise: int = attrs.field(default=0, eq=False)

        assert Fuzzy(name="A", noise=1) == Fuzzy(name="a", noise=2)
        assert Fuzzy(name="A") != Fuzzy(name="b")
        assert hash(Fuzzy(name="A", noise=1)) == hash(Fuzzy(name="a", noise=2))

    def test_a_mutable_payload_has_no_hash(self):
        """An event with a list in it compares, and does not hash."""
        event = Shipped(parcels=[1])
        assert Shipped(parcels=[1]) == event
        with pytest.raises(TypeError, match="unhashable"):
            hash(event)

    def test_repr_shows_all(self):
        """The repr names the class, the payload, the id and the time."""
        event = only(OrderPlaced, order_id="A1", raw=1, correlation_id="r", timestamp=2.0)
        assert "OrderPlaced(order_id='A1', total=0.0, raw=1, correlation_id='r', timestamp=2.0)" == repr(
            event
        )

    @pytest.mark.parametrize("event_class", [Shipped, Slotted])
    @given(value=strategies.containers(max_leaves=6))
    def test_copies_are_equal(self, event_class, value):
        """copy, deepcopy and pickle give an equal event of the class, raw keys and times included."""
        field = "parcels" if event_class is Shipped else "lines"
        more = {} if event_class is Shipped else {"order_id": "A"}
        event = only(event_class, **{field: value}, **more, raw=value, correlation_id="r", timestamp=1.0)
        for twin in (copy.copy(event), copy.deepcopy(event), pickle.loads(pickle.dumps(event))):
            assert event == twin
            assert event.payload == twin.payload
            assert (event_class, "r", 1.0) == (type(twin), twin.correlation_id, twin.timestamp)

    def test_a_copied_field_stays_read_only(self):
        """What was read-only in an event is so in its pickled copy."""
        twin = pickle.loads(pickle.dumps(only(Shipped, parcels={"a": 1})))
        with pytest.raises(TypeError):
            twin.parcels["a"] = 2

    def test_evolve_makes_a_changed_event(self):
        """attrs.evolve works; raw keys, which the constructor does not take, stay behind."""
        event = only(OrderPlaced, order_id="A1", raw=1)
        assert {"order_id": "A2", "total": 0.0} == attrs.evolve(event, order_id="A2").payload


class TestRefusedClasses:
    """A TypeError when the class is made, naming the field and the fix."""

    @pytest.mark.parametrize(
        "default", [[], {}, set(), bytearray(b"x"), attrs.field(default=[]), [1]], ids=["list", "dict", "set",
        "bytearray", "field", "filled"]
    )  # fmt: skip
    def test_a_mutable_default(self, default):
        """It would be shared by all events."""
        kind = type(getattr(default, "_default", default)).__name__
        with pytest.raises(TypeError) as caught:
            types.new_class(
                "Bad", (Event,), {}, lambda ns: ns.update(__annotations__={"tags": Any}, tags=default)
            )
        assert str(caught.value).startswith("Bad.tags: the mutable default ")
        assert f"write `tags: {kind} = attrs.field(factory={kind})`" in str(caught.value)

    def test_an_immutable_default_of_mutable_kind(self):
        """A mappingproxy is a fine default, and a tuple, and a frozenset."""

        class Fine(Event):
            options: Mapping[str, int] = types.MappingProxyType({"a": 1})
            pair: tuple[int, ...] = (1, 2)
            kinds: frozenset[str] = frozenset("ab")

        assert {"a": 1} == only(Fine).options

    RESERVED: ClassVar = [
        *(
            "channel",
            "signal",
            "payload",
            "get",
            "publish",
            "apublish",
            "subscribe",
            "log_line",
            "emit",
            "aemit",
        ),
        *("has_receivers", "ends_run", "log_level", "correlation_id", "timestamp"),
        *("_extra", "_topic", "_author", "_instance_of_x"),
    ]

    @pytest.mark.parametrize("name", RESERVED)
    def test_a_field_with_a_name_of_the_base(self, name):
        """It would hide what every event has; also from a subclass of a subclass."""
        with pytest.raises(TypeError) as caught:
            types.new_class("Bad", (OrderPlaced,), {}, lambda ns: ns.update(__annotations__={name: int}))
        assert (
            f"Bad.{name}: `{name}` is a name of the event's base class; "
            f"give the field another, such as `{name}_`."
        ) == str(caught.value)

    @pytest.mark.parametrize("name", ["emit", "aemit", "signal", "channel"])
    def test_what_the_bus_gives_cannot_be_replaced(self, name):
        """An attribute in the body that would stand in its place is refused, with a way out."""
        with pytest.raises(TypeError, match=rf"^Bad\.{name}: the bus gives each event class its `{name}`; "):
            types.new_class("Bad", (Event,), {}, lambda ns: ns.update({name: "x"}))

    def test_a_channel_in_the_body_is_told_where_to_go(self):
        """The channel is stated in the class statement."""
        with pytest.raises(TypeError, match=r"write `class Bad\(\.\.\., channel=\.\.\.\)`"):
            types.new_class("Bad", (Event,), {}, lambda ns: ns.update(channel="a.b"))

    @pytest.mark.parametrize(
        ("name", "alias"),
        [("self", "self"), ("_timestamp", "timestamp"), ("_correlation_id", "correlation_id")],
    )
    def test_a_field_that_emit_takes_as_something_else(self, name, alias):
        """A field whose argument has another meaning already."""
        with pytest.raises(TypeError, match=rf"^Bad\.{name}: emit\(\) takes something else as `{alias}`"):
            types.new_class("Bad", (Event,), {}, lambda ns: ns.update(__annotations__={name: int}))

    @pytest.mark.parametrize("name", ["_", "class", "_eb_x", "a b", "__"])
    def test_a_field_that_emit_cannot_take(self, name):
        """A field whose argument could not be written."""
        extra = {name: attrs.field(alias=name)} if name == "_eb_x" else {}
        with pytest.raises(TypeError, match=r": emit\(\) cannot take a field as `"):
            types.new_class("Bad", (Event,), {}, lambda ns: ns.update(__annotations__={name: int}, **extra))

    def test_two_fields_with_one_argument(self):
        """`_x` and `x` are both given as `x`, in one class or in a class and its base."""

        class Base(Event):
            x: int = 0

        for bases, names in (((Event,), ["x", "_x"]), ((Base,), ["_x"])):
            with pytest.raises(TypeError, match=r"^Bad\._x: emit\(\) takes something else as `x`"):
                types.new_class(
                    "Bad", bases, {}, lambda ns, n=names: ns.update(__annotations__=dict.fromkeys(n, int))
                )

    def test_a_property_with_the_name_of_a_field(self):
        """One of the two would win silently: in the class, in a base, or in its slots."""

        class Base(Event):
            @property
            def total(self):
                return 1

        bodies = [
            (Event, {"total": property(lambda self: 1)}),
            (Event, {"total": functools.cached_property(lambda self: 1)}),
            (Event, {"__slots__": ("total",)}),
            (Base, {}),
            (Base, {"total": 0}),
        ]
        for base, body in bodies:
            with pytest.raises(
                TypeError, match=r"^Bad\.total: a field cannot share its name with a property or a"
            ):
                types.new_class(
                    "Bad", (base,), {}, lambda ns, b=body: ns.update(__annotations__={"total": int}, **b)
                )

    def test_an_init(self):
        """The constructor comes from the fields."""
        with pytest.raises(
            TypeError, match=r"^Bad\.__init__: an event class gets its constructor from its fields"
        ):
            types.new_class("Bad", (Event,), {}, lambda ns: ns.update(__init__=lambda self: None))

    def test_a_refused_class_leaves_nothing_behind(self):
        """Its channel is free for the next, and subscribers of the base are undisturbed."""
        with pytest.raises(TypeError):

            class Taken(Event, channel="tests.taken"):
                emit: int

        class Taken2(Event, channel="tests.taken"):
            pass

        with capture() as recorder:
            Taken2.emit()
        assert [Taken2()] == recorder.events


class TestEmit:
    """Emitting, whether or not anybody listens."""

    def test_nothing_is_built_for_nobody(self):
        """Without a listener no event is built, no factory, converter or validator runs."""

        def fail(*_):
            raise AssertionError

        class Silent(Event):
            a: int = attrs.field(factory=fail)
            b: int = attrs.field(default=1, converter=fail)
            c: int = attrs.field(default=1, validator=fail)

        before = stats()["events"]
        assert Silent.emit() is None
        assert asyncio.run(Silent.aemit()) is None
        assert before == stats()["events"]

    @pytest.mark.parametrize("listening", [False, True])
    @pytest.mark.parametrize("event_class", [OrderPlaced, Slotted])
    def test_a_missing_field_is_the_same_error(self, listening, event_class):
        """Whether or not anybody listens, Python names the class and the field."""
        if listening:
            event_class.subscribe(lambda event: None)
        name = event_class.__name__
        expected = f"{name}.{{}}() missing 1 required keyword-only argument: 'order_id'"
        with pytest.raises(TypeError) as caught:
            event_class.emit(total=1.0)
        assert expected.format("emit") == str(caught.value)
        with pytest.raises(TypeError) as caught:
            asyncio.run(event_class.aemit(total=1.0))
        assert expected.format("aemit") == str(caught.value)

    def test_the_constructor_names_the_class_too(self):
        """A missing field of the constructor reads as any class's."""
        with pytest.raises(
            TypeError, match=r"^OrderPlaced\(\) missing 1 required keyword-only argument: 'order_id'$"
        ):
            OrderPlaced()

    def test_emit_returns_none(self):
        """With a listener as without."""
        OrderPlaced.subscribe(lambda event: "ignored")
        assert OrderPlaced.emit(order_id="A1") is None
        assert asyncio.run(OrderPlaced.aemit(order_id="A1")) is None

    def test_has_receivers(self):
        """It is true while a function would receive an event of some run, of the class or its subclasses."""

        class Special(OrderPlaced):
            pass

        assert (False, False) == (OrderPlaced.has_receivers(), Special.has_receivers())
        with OrderPlaced.subscribe(print):
            assert (True, True) == (OrderPlaced.has_receivers(), Special.has_receivers())
        with Special.subscribe(print, correlation_id="run"):
            assert (False, True) == (OrderPlaced.has_receivers(), Special.has_receivers())
            with Special.signal.muted():
                assert not Special.has_receivers()
        assert (False, False) == (OrderPlaced.has_receivers(), Special.has_receivers())

    def test_from_any_thread_with_and_without_a_loop(self):
        """emit works on the main thread, on another, and under a running loop."""

        async def on_loop():
            OrderPlaced.emit(order_id="loop")

        with capture(OrderPlaced) as recorder:
            OrderPlaced.emit(order_id="main")
            thread = threading.Thread(target=OrderPlaced.emit, kwargs={"order_id": "thread"})
            thread.start()
            thread.join()
            asyncio.run(on_loop())
        assert ["main", "thread", "loop"] == [event.order_id for event in recorder]

    def test_events_built_are_counted(self):
        """Each event that is built counts once, also when its class is gone by now."""
        before = stats()["events"]

        def short_lived():
            class Gone(Event):
                pass

            with capture(Gone):
                Gone.emit()
                Gone.emit()

        short_lived()
        gc.collect()
        assert 2 == stats()["events"] - before

    def test_the_root_is_not_emitted(self):
        """To emit Event itself is a mistake, and says so."""
        with pytest.raises(TypeError, match=r"^Event is the root of events and is not emitted itself"):
            Event.emit()
        with pytest.raises(TypeError, match=r"^Event is the root of events and is not emitted itself"):
            asyncio.run(Event.aemit())

    def test_a_helper_that_emits_a_base(self):
        """`super().emit` in a class method emits the base's event, whichever was used first."""

        class Base(Event):
            pass

        class Derived(Base):
            @classmethod
            def both(cls):
                super().emit()
                cls.emit()

        for _ in range(2):
            with capture() as recorder:
                Derived.both()
            assert [Base, Derived] == [type(event) for event in recorder]

    def test_emit_is_documented(self):
        """The compiled functions carry name, module and docstring."""
        for name in ("emit", "aemit"):
            function = getattr(OrderPlaced, name)
            assert f"OrderPlaced.{name}" == function.__qualname__
            assert __name__ == function.__module__
            assert "Build an event and deliver it" in function.__doc__

    def test_emitting_from_a_finalizer(self):
        """A `__del__` may emit, also while the registry is at work."""
        seen = []

        class Late:
            def __del__(self):
                OrderPlaced.emit(order_id="late")

        OrderPlaced.subscribe(lambda event: seen.append(event.order_id))
        for _ in range(20):
            late = [Late()]
            late.append(late)
            del late
            OrderPlaced.subscribe(lambda event: None)
            OrderPlaced.emit(order_id="now")
        gc.collect()
        assert (20, 20) == (seen.count("late"), seen.count("now"))


class TestPublish:
    """Sending an event that exists already."""

    def test_publish_sends_the_event_itself(self):
        """Handlers receive the very object."""
        event, seen = OrderPlaced(order_id="A1"), []
        OrderPlaced.subscribe(seen.append)
        assert event.publish() is None
        assert event is seen[0]

    def test_apublish_awaits(self):
        """The async twin has awaited every handler when it returns."""
        event, seen = OrderPlaced(order_id="A1"), []

        @OrderPlaced.subscribe
        async def handle(event):
            await asyncio.sleep(0)
            seen.append(event)

        asyncio.run(event.apublish())
        assert [event] == seen

    def test_publish_to_nobody(self):
        """Nothing happens."""
        OrderPlaced(order_id="A1").publish()
        asyncio.run(OrderPlaced(order_id="A1").apublish())

    def test_publish_keeps_the_events_own_id(self):
        """Sent inside another run, the event keeps its id, and handlers' own emits carry it."""
        seen = []
        OrderPlaced.subscribe(lambda event: Shipped.emit())
        Shipped.subscribe(lambda event: seen.append(event.correlation_id))

        async def elsewhere():
            await OrderPlaced(order_id="A1", correlation_id="own").apublish()

        with correlation("other"):
            OrderPlaced(order_id="A1", correlation_id="own").publish()
            OrderPlaced(order_id="A1").publish()
            asyncio.run(elsewhere())
        assert ["own", "other", "own"] == seen

    def test_a_run_that_ends_by_publish(self):
        """A published event of a class with `ends_run` ends its run, as an emitted one does."""

        class Ended(Event):
            ends_run = True

        from eventbus import Hook, on

        seen = []

        class Counting(Hook):
            stateful = True

            @on(OrderPlaced)
            def count(self, event):
                seen.append(self)

        with correlation("run"):
            OrderPlaced.emit(order_id="A1")
            Ended().publish()
            OrderPlaced.emit(order_id="A1")
            asyncio.run(Ended().apublish())
            OrderPlaced.emit(order_id="A1")
        assert 3 == len(set(map(id, seen)))


class TestLogLine:
    """A line of one's own."""

    def test_by_default_there_is_none(self):
        """A user's event has no line."""
        assert OrderPlaced(order_id="A1").log_line() is None

    def test_a_class_may_define_it(self):
        """It is a plain method."""

        class Told(Event):
            n: int

            def log_line(self):
                return f"TOLD n={self.n}"

        assert "TOLD n=3" == only(Told, n=3).log_line()


def test_class_attributes_are_read_through_instances():
    """Channel and signal are the class's, read from an event as well."""
    event = OrderPlaced(order_id="A1")
    assert (OrderPlaced.channel, OrderPlaced.signal) == (event.channel, event.signal)
    assert topic_of(OrderPlaced).channel == event.channel


def test_a_dataclass_on_top_is_told():
    """It takes the constructor over; the first emit says what is wrong, whether or not anybody listens."""

    @dataclasses.dataclass
    class Decorated(Event):
        number: int = 0

    with pytest.raises(TypeError, match="Decorated is decorated with @dataclass; an event class needs no"):
        Decorated.emit(number=1)
