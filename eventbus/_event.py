"""
The root of observed events, and what both roots share: fields, channel, signal, emit.
"""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType, MemberDescriptorType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    ParamSpec,
    TypeVar,
    dataclass_transform,
    overload,
)

import attrs

from . import _channels, _registry
from ._clock import now
from ._context import correlation_id_var, current_correlation_id
from ._depth import Trip, hook_name, is_loop, trips
from ._dispatch import adeliver, adeliver_within, deliver, deliver_within
from ._emitter import BUILD, all_fields, compile_emit, needs_freezing, payload_fields
from ._priority import Priority
from ._readonly import FREEZERS, ReadOnlyDict, freeze
from ._registry import INSTANCE_OF, KEYED, PLAN, EventSignal, Receiver, Topic
from ._report import report_failure
from ._scheduler import scheduler
from ._settings import LEVELS, settings
from ._stateful import end_run
from ._subscribe import Subscription, subscribe

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound="Event")
V = TypeVar("V", bound="EventRoot")

_OWN = "_eventbus_class"
"""Where a class remembers itself in its namespace: a namespace that attrs has copied is told by it."""

_FROM_ROOT: Final = ("__eq__", "__ne__", "__hash__", "__repr__", "__getstate__", "__setstate__")
"""What attrs gives a class, and an event class has from its root."""

_OURS: Final = ("emit", "aemit", "channel", "signal")
"""What the bus gives to each class: nothing in a class body may stand in its place."""

_STATE: Final = frozenset({"_author", "_edits", "_extra"})
"""Where an instance keeps what is no field."""

_NO_ARGUMENT: Final = frozenset({"self", "correlation_id", "timestamp"})
"""What `emit` cannot take a field as."""

STICKY: Final = "eventbus_sticky"
"""Under this key the metadata of a field says that a gate's handlers may write it, and whether it latches."""

_NOT_THE_ROOT: Final = "Event is the root of events and is not emitted itself; emit a subclass of it."

_CLASS_VAR: Final = ("ClassVar", "typing.ClassVar", "t.ClassVar", "typing_extensions.ClassVar")


class _PerClass(Generic[T]):
    """
    A read-only attribute of an event class, computed from the class.
    """

    def __init__(self, read: Callable[[type], T], doc: str) -> None:
        self._read = read
        self.__doc__ = doc

    def __get__(self, instance: object | None, owner: type) -> T:
        return self._read(owner)


class _Uncompiled:
    """
    Stands where a class's compiled `emit` or `aemit` will stand from its first use on.
    """

    def __init__(self, cls: type[EventRoot], name: str) -> None:
        self._class = cls
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Callable[..., Any]:
        cls = self._class
        if "__dataclass_fields__" in cls.__dict__:
            msg = f"{cls.__qualname__} is decorated with @dataclass; an event class needs no decorator."
            raise TypeError(msg)
        root = next(base for base in cls.__mro__ if base in _registry.roots)
        with _registry.lock:
            emit = compile_emit(
                _registry.topic_of(cls),
                self._name,
                always=cls._returns_event,
                ends_run=cls.ends_run,
                custom=cls.__init__ is not EventRoot.__init__ or cls.__new__ is not object.__new__,
            )
            emit.__doc__ = root.__dict__[self._name].__doc__
            setattr(cls, self._name, staticmethod(emit))
        return emit


class EventRoot:
    """
    What observed and protected events have in common.
    """

    if TYPE_CHECKING:
        correlation_id: str | None
        timestamp: float

    ends_run: ClassVar[bool] = False
    """Set on a class whose event is the last of its run: stateful hooks then forget what they kept for it."""

    log_level: ClassVar[str] = "info"
    """The level of the line that `log_line` gives."""

    _fails_open: ClassVar[bool] = True
    _returns_event: ClassVar[bool] = False
    _is_report: ClassVar[bool] = False
    _reserved: ClassVar[frozenset[str]] = frozenset()
    _to_freeze: ClassVar[tuple[str, ...]] = ()
    _compared: ClassVar[tuple[tuple[str, Callable[[Any], Any] | None], ...]] = ()
    _own_methods: ClassVar[frozenset[str]] = frozenset()

    channel: _PerClass[str] = _PerClass(
        lambda cls: _registry.topic_of(cls).channel, "The dotted name of the class."
    )
    signal: _PerClass[EventSignal] = _PerClass(_registry.signal_of, "The blinker signal of the class.")

    def __init_subclass__(cls, channel: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_hidden" in cls.__dict__:
            return
        first = cls.__dict__.get(_OWN)
        if first is None or first.__name__ != cls.__name__:
            _define(cls, channel)
        else:
            _adopt(cls, first)

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        # An explicit decorator on top that keeps the class object, such as @attrs.frozen(slots=False).
        if cls.__dict__.get(_OWN) is cls and "__init__" in cls.__dict__:
            _tidy(cls)
            _install(cls, _registry.topic_of(cls))

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        if args:
            msg = f"{type(self).__qualname__}() takes keyword arguments only."
            raise TypeError(msg)
        self.__attrs_init__(**kwargs)  # type: ignore[attr-defined]  # made by attrs in each class
        for name in self._to_freeze:
            value = getattr(self, name)
            # As `freeze` does, without its call.
            if type(value) in FREEZERS:
                object.__setattr__(self, name, freeze(value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EventRoot) or other.__class__ is not self.__class__:
            return NotImplemented
        return self._value() == other._value()

    def __hash__(self) -> int:
        return hash((self.__class__, *self._value()[:-1]))

    def __repr__(self) -> str:
        named = {**self.payload, "correlation_id": self.correlation_id, "timestamp": self.timestamp}
        return f"{type(self).__qualname__}({', '.join(f'{key}={value!r}' for key, value in named.items())})"

    def _value(self) -> tuple[Any, ...]:
        fields = [(getattr(self, name), key) for name, key in self._compared]
        return (*(value if key is None else key(value) for value, key in fields), self.__dict__.get("_extra"))

    def __getstate__(self) -> dict[str, Any]:
        # Fields may live in slots, and a hook's instance may ride on the event; attrs' own state forgets the
        # raw payload.
        riding = {key: value for key, value in self.__dict__.items() if not key.startswith(INSTANCE_OF)}
        return {**riding, **{field.name: getattr(self, field.name) for field in all_fields(type(self))}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            # A deep copy of a read-only dict is a plain one.
            object.__setattr__(self, key, freeze(value) if key in self._to_freeze else value)

    @property
    def payload(self) -> Mapping[str, Any]:
        """
        The payload as a read-only mapping: the event's own fields, then the raw keys given to `emit`.
        """
        fields = {field.name: getattr(self, field.name) for field in payload_fields(type(self))}
        return ReadOnlyDict({**fields, **self.__dict__.get("_extra", {})})

    def __getitem__(self, key: str) -> Any:
        payload = self.payload
        if key not in payload:
            keys = ", ".join(payload) or "none"
            msg = f"{type(self).__qualname__} has no payload key {key!r}; its keys: {keys}"
            raise KeyError(msg)
        return payload[key]

    def get(self, key: str, default: Any = None) -> Any:
        """
        Return a payload key, named field or not.

        Args:
            key: The name of a field, or of a raw key given to `emit`.
            default: What a missing key gives.

        Returns:
            The value, read-only if it is a dict or a list.
        """
        return self.payload.get(key, default)

    # An event is no sequence: without this, Python would iterate it by its __getitem__.
    __iter__ = None

    @classmethod
    def has_receivers(cls) -> bool:
        """
        Tell whether anybody listens, so that an emitter can skip preparing an expensive payload.

        Returns:
            True if some function or hook would receive the event of some run.
        """
        topic: Topic = cls.__dict__["_topic"]
        # As nearly always where somebody listens at all, without another call.
        return bool(topic.namespace[PLAN]) or topic.has_receivers()

    @overload
    @classmethod
    def subscribe(
        cls: type[V],
        fn: Callable[[V], R],
        *,
        priority: int = Priority.DEFAULT,
        when: Callable[[V], object] | None = None,
        correlation_id: str | None = None,
        weak: bool = False,
    ) -> Subscription[[V], R]: ...
    @overload
    @classmethod
    def subscribe(
        cls: type[V],
        fn: None = None,
        *,
        priority: int = Priority.DEFAULT,
        when: Callable[[V], object] | None = None,
        correlation_id: str | None = None,
        weak: bool = False,
    ) -> Callable[[Callable[[V], R]], Subscription[[V], R]]: ...
    @classmethod
    def subscribe(
        cls,
        fn: Any = None,
        *,
        priority: int = Priority.DEFAULT,
        when: Callable[[Any], object] | None = None,
        correlation_id: str | None = None,
        weak: bool = False,
    ) -> Any:
        """
        Have a function called with every event of this class and its subclasses, later-defined ones included.

        Usable as a decorator, with or without arguments; the name then still works as the function. However
        many of its subscriptions match, an event reaches a function once. A function defined again (a
        reload, a notebook cell run twice) replaces the earlier one.

        Args:
            fn: Takes the event; sync or async. What it returns is ignored, unless it is awaitable.
            priority: Its place in the order, lower first; see `Priority`.
            when: A predicate on the event; the function is called only if it says yes. Of a gate, what it
                raises refuses, as what the function raises does.
            correlation_id: Receive the events of this run only.
            weak: Let the function be garbage collected, and skip it then.

        Returns:
            The subscription, to be cancelled; or, without `fn`, a decorator.

        Raises:
            TypeError: If `fn` does not take exactly the event, or is a generator function.
        """
        return subscribe(cls, fn, priority=priority, when=when, correlation_id=correlation_id, weak=weak)

    def _deliver(self) -> None:
        topic: Topic = type(self).__dict__["_topic"]
        cid = self.correlation_id
        try:
            plan = topic.namespace[PLAN]
            if plan is None or topic.namespace[KEYED] is not None:
                plan = topic.plan_for(cid)
            if cid is None or cid == correlation_id_var.get():
                deliver(plan, self)
            else:
                deliver_within(plan, self)
        finally:
            if self.ends_run:
                end_run(self.correlation_id)

    async def _adeliver(self) -> None:
        topic = _registry.topic_of(type(self))
        try:
            plan = topic.plan_for(self.correlation_id)
            if self.correlation_id in (None, correlation_id_var.get()):
                await adeliver(plan, self)
            else:
                await adeliver_within(plan, self)
        finally:
            if self.ends_run:
                end_run(self.correlation_id)


def _own_fields(cls: type) -> dict[str, Any]:
    # The names that attrs will make fields of, with what the class body assigns to them.
    return {
        name: cls.__dict__.get(name, attrs.NOTHING)
        for name, annotation in inspect.get_annotations(cls).items()
        if not str(annotation).strip("'\"").startswith(_CLASS_VAR)
    }


def _check_fields(cls: type[EventRoot], fields: dict[str, Any]) -> None:
    taken: dict[str, str] = {field.alias: field.name for field in getattr(cls, "__attrs_attrs__", ())}
    for name, assigned in fields.items():
        where = f"{cls.__qualname__}.{name}"
        if name in cls._reserved or name.startswith(INSTANCE_OF):
            msg = (
                f"{where}: `{name}` is a name of the event's base class; "
                f"give the field another, such as `{name}_`."
            )
            raise TypeError(msg)
        alias = getattr(assigned, "alias", None) or name.lstrip("_")
        if not alias.isidentifier() or keyword.iskeyword(alias) or alias.startswith("_eb_"):
            msg = f"{where}: emit() cannot take a field as `{alias}`; give it another name."
            raise TypeError(msg)
        if taken.setdefault(alias, name) != name or alias in _NO_ARGUMENT:
            msg = f"{where}: emit() takes something else as `{alias}`; give the field another name."
            raise TypeError(msg)
        _check_default(cls, name, assigned)
    for name in _OURS:
        if name in cls.__dict__:
            fix = f"write `class {cls.__name__}(..., channel=...)`" if name == "channel" else "rename yours"
            msg = f"{cls.__qualname__}.{name}: the bus gives each event class its `{name}`; {fix}."
            raise TypeError(msg)
    if cls.log_level not in LEVELS:
        msg = f"{cls.__qualname__}.log_level must be one of {', '.join(LEVELS)}, not {cls.log_level!r}."
        raise TypeError(msg)
    if "__init__" in cls.__dict__:
        msg = (
            f"{cls.__qualname__}.__init__: an event class gets its constructor from its fields; "
            "use attrs.field(converter=..., validator=...) or `__attrs_post_init__`."
        )
        raise TypeError(msg)


def _check_default(cls: type[EventRoot], name: str, assigned: object) -> None:
    default: object = getattr(assigned, "_default", assigned)
    where = f"{cls.__qualname__}.{name}"
    inherited = next((base.__dict__[name] for base in cls.__mro__[1:] if name in base.__dict__), None)
    computed = (property, functools.cached_property, MemberDescriptorType)
    if isinstance(default, computed) or isinstance(inherited, property):
        msg = f"{where}: a field cannot share its name with a property or a slot; rename one of them."
        raise TypeError(msg)
    if type(default).__hash__ is None and not isinstance(default, MappingProxyType):
        kind = type(default).__name__
        specifier = "writable" if STICKY in getattr(assigned, "metadata", ()) else "attrs.field"
        msg = (
            f"{where}: the mutable default {default!r} would be shared by all events; "
            f"write `{name}: {kind} = {specifier}(factory={kind})`."
        )
        raise TypeError(msg)


def _define(cls: type[EventRoot], channel: str | None) -> None:
    is_root = not cls._reserved
    fields = _own_fields(cls)
    if not is_root:
        _check_fields(cls, fields)
    stated = None if channel is None else _channels.check_stated(cls, channel)
    cls._own_methods = frozenset(name for name in _FROM_ROOT if name in cls.__dict__)
    attrs.define(
        cls,
        slots=False,
        frozen=cls._fails_open,
        kw_only=True,
        auto_attribs=True,
        init=False,
        eq=False,
        repr=False,
        unsafe_hash=False,
        match_args=False,
    )
    _prepare_for_another(cls, fields)
    if not is_root:
        _put_root_first(cls)
    cls.__attrs_init__.__qualname__ = cls.__qualname__  # type: ignore[attr-defined]  # made by attrs
    setattr(cls, _OWN, cls)
    topic = Topic(cls, stated or _channels.derive(cls), stated=stated is not None)
    _install(cls, topic)


def _prepare_for_another(cls: type[EventRoot], fields: dict[str, Any]) -> None:
    # attrs takes what is assigned to fields out of the class body. An explicit @attrs.frozen on top reads it
    # again, and must not ask for fields with defaults to come last.
    defaulted = False
    for name, assigned in fields.items():
        default = getattr(assigned, "_default", assigned)
        if default is attrs.NOTHING and defaulted:
            again: Any = attrs.field() if assigned is attrs.NOTHING else assigned
            again.kw_only = True
            setattr(cls, name, again)
        elif assigned is not attrs.NOTHING:
            setattr(cls, name, assigned)
        defaulted = defaulted or default is not attrs.NOTHING


def _put_root_first(cls: type[EventRoot]) -> None:
    # What attrs generates for the class, or has for a mixin named before the root, does not reach the class.
    for name in ("__setattr__", "__delattr__"):
        # attrs refuses to freeze a class that has one.
        if name in cls.__dict__:
            delattr(cls, name)
    root = next(base for base in cls.__mro__ if base in _registry.roots)
    for name in ("__init__", "__setattr__", "__delattr__", *_FROM_ROOT):
        source = next(base for base in cls.__mro__ if name in base.__dict__)
        if "__attrs_attrs__" in source.__dict__ and not issubclass(source, EventRoot):
            setattr(cls, name, getattr(root, name))


def _adopt(cls: type[EventRoot], first: type[EventRoot]) -> None:
    # attrs has rebuilt the class, to give it slots: the new class takes the place of the first.
    _tidy(cls)
    setattr(cls, _OWN, cls)
    before = _registry.topic_of(first)
    topic = Topic(cls, before.channel, stated=before.stated)
    with _registry.lock:
        signal = _registry.state.signals.pop(first, None)
        if signal is not None:
            signal.owner = cls
            _registry.state.signals[cls] = signal
        _install(cls, topic)


def _tidy(cls: type[EventRoot]) -> None:
    # What another attrs decorator has generated gives way to what the class has from its root.
    for name in _FROM_ROOT:
        if name in cls.__dict__ and name not in cls._own_methods:
            delattr(cls, name)
    if "__init__" in cls.__dict__:
        cls.__attrs_init__ = cls.__dict__["__init__"]  # type: ignore[attr-defined]  # made by attrs
        cls.__attrs_init__.__qualname__ = cls.__qualname__  # type: ignore[attr-defined]  # made by attrs
        del cls.__init__


def _install(cls: type[EventRoot], topic: Topic) -> None:
    topic.reverse = bool(getattr(cls, "reverse", False))
    topic.protected = not cls._fails_open
    cls._topic = topic  # type: ignore[attr-defined]  # read through topic_of(), from the class's own namespace
    cls._to_freeze = tuple(field.name for field in payload_fields(cls) if needs_freezing(field))
    cls._compared = tuple((field.name, field.eq_key) for field in all_fields(cls) if field.eq)
    for name in ("emit", "aemit") if cls._fails_open else ("emit", "aemit", BUILD):
        if not isinstance(cls.__dict__.get(name), classmethod):
            setattr(cls, name, _Uncompiled(cls, name))
    with _registry.lock:
        _registry.state.channels[topic.channel] = cls
        if topic.stated:
            _registry.state.stated[topic.channel] = cls


def make_root(cls: type[EventRoot]) -> None:
    """
    Finish a root: its names become those that no field may take.
    """
    _registry.roots.append(cls)
    names = {name for name in dir(cls) if not name.startswith("__")}
    cls._reserved = frozenset(names | _STATE | {"correlation_id", "timestamp"})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(attrs.field,))
class _Observed(EventRoot):
    """
    Carries the typing of `Event`, whose own fields would be missing from the constructor otherwise.
    """

    _hidden = True


class Event(_Observed):
    """
    The root of observed events: facts, frozen, told to whoever listens.

    Subclassing it is all it takes: annotations become the fields of a frozen, keyword-only attrs class.
    Dicts and lists in the payload are read-only to handlers, and the emitter's own are left alone. Handlers
    fail open: what they raise is reported and never reaches the emitter.

    Args:
        correlation_id: The run the event belongs to; by default the id of the enclosing `correlation` scope.
        timestamp: Wall clock, in seconds since the epoch; by default now. Not part of equality.
    """

    correlation_id: str | None = attrs.field(factory=current_correlation_id)
    timestamp: float = attrs.field(factory=now, eq=False)

    @classmethod  # pyright: ignore[reportArgumentType]  # typed by the constructor
    def emit(cls: Callable[P, E], *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: ARG003 - for the types
        """
        Build an event and deliver it; without a listener, build nothing.

        Handlers run on this thread, in order, before it returns; async ones are scheduled. Callable from any
        thread, with or without an event loop.

        Args:
            *args: None: every argument has a name.
            **kwargs: The fields, `correlation_id` and `timestamp`; other keys are kept as raw payload.

        Raises:
            TypeError: If a required field is missing, whether or not anybody listens.
        """
        raise TypeError(_NOT_THE_ROOT)

    @classmethod  # pyright: ignore[reportArgumentType]  # typed by the constructor
    async def aemit(cls: Callable[P, E], *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: ARG003 - as emit
        """
        Build an event and deliver it on the running loop, awaiting each async handler in its turn.

        Args:
            *args: None: every argument has a name.
            **kwargs: As for `emit`.

        Raises:
            TypeError: If a required field is missing.
        """
        raise TypeError(_NOT_THE_ROOT)

    def publish(self) -> None:
        """
        Deliver this event, which exists already, as `emit` would.
        """
        self._deliver()

    async def apublish(self) -> None:
        """
        Deliver this event, which exists already, as `aemit` would.
        """
        await self._adeliver()

    def log_line(self) -> str | None:
        """
        Return the event's line in the log, without timestamp and id; None (the default) for no line.
        """
        return None

    def _returned(self, receiver: Receiver, result: Any) -> None:
        if inspect.isawaitable(result):
            scheduler.schedule(result, self, receiver)

    def _failed(
        self, receiver: Receiver, error: Exception, errors: list[Exception] | None
    ) -> list[Exception] | None:
        if trips and is_loop(error):
            return errors
        return self._report(hook_name(receiver), receiver.name, error, errors, receiver.target)

    def _refused(self, error: Exception) -> None:
        """
        Stay silent: the chain that this emit belongs to is reported once, by its outermost emit.
        """

    def _settled(self, trip: Trip | None, errors: list[Exception] | None) -> list[Exception] | None:
        if trip is None or trip.error is None:
            return errors
        return self._report(trip.hook, trip.handler, trip.error, errors)

    def _report(
        self,
        hook: str | None,
        handler: str,
        error: Exception,
        errors: list[Exception] | None,
        key: Hashable = None,
    ) -> list[Exception] | None:
        if settings.strict:
            error.add_note(f"raised by {handler}, for {type(self).__qualname__}")
            return [*(errors or ()), error]
        report_failure(hook=hook, handler=handler, event=self, error=error, key=key)
        return errors


make_root(Event)
