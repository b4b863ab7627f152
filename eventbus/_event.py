"""
The root of observed events, and what both roots share: fields, channel, signal, emit.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    ParamSpec,
    TypeVar,
    cast,
    dataclass_transform,
    overload,
)

import attrs

from . import _channels, _registry
from ._context import correlation_id_var, current_correlation_id
from ._depth import Trip, hook_name, is_loop, trips
from ._dispatch import adeliver, adeliver_within, deliver, deliver_within
from ._emitter import compile_emit, is_scalar, payload_fields
from ._priority import Priority
from ._readonly import ReadOnlyDict, freeze
from ._registry import EventSignal, Receiver, Topic
from ._report import report_failure
from ._scheduler import scheduler
from ._settings import settings
from ._stateful import end_run
from ._subscribe import Subscription, subscribe

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound="Event")

_OWN = "_eventbus_class"
"""Where a class remembers itself in its namespace: a namespace that attrs has copied is told by it."""

_GENERATED: Final = ("__eq__", "__ne__", "__hash__", "__repr__")


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

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type[EventRoot]) -> Callable[..., Any]:
        with _registry.lock:
            emit = compile_emit(
                _registry.topic_of(owner),
                self._name,
                always=owner._returns_event,
                ends_run=owner.ends_run,
            )
            for root in owner.__mro__:
                if isinstance(root.__dict__.get(self._name), classmethod):
                    emit.__doc__ = root.__dict__[self._name].__doc__
            setattr(owner, self._name, staticmethod(emit))
        return emit


class EventRoot:
    """
    What observed and protected events have in common.
    """

    if TYPE_CHECKING:
        correlation_id: str | None
        timestamp: float

    ends_run: ClassVar[bool] = False
    """Set on a class whose event is the last of its run: what stateful hooks keep for the run goes with it."""

    log_level: ClassVar[str] = "info"
    """The level of the line that `log_line` gives."""

    _fails_open: ClassVar[bool] = True
    _returns_event: ClassVar[bool] = False
    _is_report: ClassVar[bool] = False
    _reserved: ClassVar[frozenset[str]] = frozenset()
    _to_freeze: ClassVar[tuple[str, ...]] = ()
    _compared: ClassVar[tuple[str, ...]] = ()

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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__attrs_init__(*args, **kwargs)  # type: ignore[attr-defined]  # made by attrs in each class
        for name in self._to_freeze:
            value = getattr(self, name)
            frozen = freeze(value)
            if frozen is not value:
                object.__setattr__(self, name, frozen)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._value() == cast("EventRoot", other)._value()

    def __hash__(self) -> int:
        return hash((self.__class__, *self._value()[:-1]))

    def __repr__(self) -> str:
        named = {**self.payload, "correlation_id": self.correlation_id, "timestamp": self.timestamp}
        return f"{type(self).__qualname__}({', '.join(f'{key}={value!r}' for key, value in named.items())})"

    def _value(self) -> tuple[Any, ...]:
        return (*(getattr(self, name) for name in self._compared), self.__dict__.get("_extra"))

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
        return _registry.topic_of(cls).has_receivers()

    def _deliver(self) -> None:
        topic = _registry.topic_of(type(self))
        try:
            plan = topic.plan_for(self.correlation_id)
            if self.correlation_id in (None, correlation_id_var.get()):
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


def _own_annotations(cls: type) -> dict[str, Any]:
    return {
        name: annotation
        for name, annotation in inspect.get_annotations(cls).items()
        if "ClassVar" not in str(annotation)
    }


def _check_fields(cls: type[EventRoot]) -> None:
    for name in _own_annotations(cls):
        where = f"{cls.__qualname__}.{name}"
        if name in cls._reserved or name.startswith("_eb_"):
            msg = f"{where}: `{name}` is a name of the event's base class; give the field another, such as `{name}_`."
            raise TypeError(msg)
        default = cls.__dict__.get(name, attrs.NOTHING)
        default = getattr(default, "_default", default)
        if type(default).__hash__ is None:
            kind = type(default).__name__
            msg = (
                f"{where}: the mutable default {default!r} would be shared by all events; "
                f"write `{name}: {kind} = attrs.field(factory={kind})`."
            )
            raise TypeError(msg)
    if "__init__" in cls.__dict__:
        msg = (
            f"{cls.__qualname__}.__init__: an event class gets its constructor from its fields; "
            "use attrs.field(converter=..., validator=...) or `__attrs_post_init__`."
        )
        raise TypeError(msg)


def _define(cls: type[EventRoot], channel: str | None) -> None:
    _check_fields(cls)
    stated = None if channel is None else _channels.check_stated(cls, channel)
    # attrs takes defaults out of the class body; they are put back for an explicit @attrs.frozen on top.
    defaults = {name: cls.__dict__[name] for name in _own_annotations(cls) if name in cls.__dict__}
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
    for name, default in defaults.items():
        setattr(cls, name, default)
    for name in ("__setattr__", "__delattr__"):
        # The root's own does the same, and attrs refuses to freeze a class that has one.
        if name in cls.__dict__ and cls._reserved:
            delattr(cls, name)
    cls.__attrs_init__.__qualname__ = cls.__qualname__  # type: ignore[attr-defined]  # made by attrs
    setattr(cls, _OWN, cls)
    topic = Topic(cls, stated or _channels.derive(cls), stated=stated is not None)
    _install(cls, topic)


def _adopt(cls: type[EventRoot], first: type[EventRoot]) -> None:
    # attrs has rebuilt the class, to give it slots: the new class takes the place of the first.
    for name in _GENERATED:
        if name in cls.__dict__ and name not in first.__dict__:
            delattr(cls, name)
    if "__init__" in cls.__dict__:
        cls.__attrs_init__ = cls.__dict__["__init__"]  # type: ignore[attr-defined]  # made by attrs
        del cls.__init__
    setattr(cls, _OWN, cls)
    before = _registry.topic_of(first)
    topic = Topic(cls, before.channel, stated=before.stated)
    signal = _registry.state.signals.pop(first, None)
    if signal is not None:
        signal.owner = cls
        _registry.state.signals[cls] = signal
    _install(cls, topic)


def _install(cls: type[EventRoot], topic: Topic) -> None:
    topic.reverse = bool(getattr(cls, "reverse", False))
    topic.protected = not cls._fails_open
    cls._topic = topic  # type: ignore[attr-defined]  # read through topic_of(), from the class's own namespace
    fields = payload_fields(cls)
    cls._to_freeze = tuple(field.name for field in fields if not is_scalar(field.type))
    cls._compared = tuple(field.name for field in attrs.fields(cls) if field.eq)
    for name in ("emit", "aemit"):
        own = cls.__dict__.get(name)
        if own is None or isinstance(own, staticmethod):
            setattr(cls, name, _Uncompiled(name))
    with _registry.lock:
        _registry.state.channels[topic.channel] = cls


def make_root(cls: type[EventRoot]) -> None:
    """
    Finish a root: its names become those that no field may take.
    """
    _registry.roots.append(cls)
    cls._reserved = frozenset(name for name in dir(cls) if not name.startswith("__")) | {
        "correlation_id",
        "timestamp",
    }


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
    timestamp: float = attrs.field(factory=time.time, eq=False)

    @classmethod
    def emit(cls: Callable[P, E], *args: P.args, **kwargs: P.kwargs) -> None:  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]  # typed by the constructor
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
        raise NotImplementedError

    @classmethod
    async def aemit(cls: Callable[P, E], *args: P.args, **kwargs: P.kwargs) -> None:  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]  # as emit
        """
        Build an event and deliver it on the running loop, awaiting each async handler in its turn.

        Args:
            *args: None: every argument has a name.
            **kwargs: As for `emit`.

        Raises:
            TypeError: If a required field is missing.
        """
        raise NotImplementedError

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

    @overload
    @classmethod
    def subscribe(
        cls: type[E],
        fn: Callable[[E], R],
        *,
        priority: int = Priority.DEFAULT,
        when: Callable[[E], object] | None = None,
        correlation_id: str | None = None,
        weak: bool = False,
    ) -> Subscription[[E], R]: ...
    @overload
    @classmethod
    def subscribe(
        cls: type[E],
        fn: None = None,
        *,
        priority: int = Priority.DEFAULT,
        when: Callable[[E], object] | None = None,
        correlation_id: str | None = None,
        weak: bool = False,
    ) -> Callable[[Callable[[E], R]], Subscription[[E], R]]: ...
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
            when: A predicate on the event; the function is called only if it says yes.
            correlation_id: Receive the events of this run only.
            weak: Let the function be garbage collected, and skip it then.

        Returns:
            The subscription, to be cancelled; or, without `fn`, a decorator.

        Raises:
            TypeError: If `fn` does not take exactly the event, or is a generator function.
        """
        return subscribe(cls, fn, priority=priority, when=when, correlation_id=correlation_id, weak=weak)

    def log_line(self) -> str | None:
        """
        Return the event's line in the log, without timestamp and id; None (the default) for no line.
        """
        return None

    def _returned(self, receiver: Receiver, result: object) -> None:
        if isinstance(result, Awaitable):
            scheduler.schedule(result, self, receiver)

    def _failed(
        self, receiver: Receiver, error: Exception, errors: list[Exception] | None
    ) -> list[Exception] | None:
        if trips and is_loop(error):
            return errors
        return self._report(hook_name(receiver), receiver.name, error, errors)

    def _refused(self, error: Exception) -> None:
        """
        Stay silent: the chain that this emit belongs to is reported once, by its outermost emit.
        """

    def _settled(self, trip: Trip | None, errors: list[Exception] | None) -> list[Exception] | None:
        return errors if trip is None else self._report(trip.hook, trip.handler, trip.error, errors)

    def _report(
        self, hook: str | None, handler: str, error: Exception, errors: list[Exception] | None
    ) -> list[Exception] | None:
        if settings.strict:
            error.add_note(f"raised by {handler}, for {type(self).__qualname__}")
            return [*(errors or ()), error]
        report_failure(hook=hook, handler=handler, event=self, error=error)
        return errors


make_root(Event)
