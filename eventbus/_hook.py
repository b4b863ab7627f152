"""
Hooks: classes of handlers that are live as soon as they are defined.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import FrameType, FunctionType
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeAlias, TypeVar, cast, overload

import attrs

from . import _registry
from ._event import EventRoot
from ._priority import Priority
from ._registry import EventSignal, Receiver, invalidate, next_order, signal_of
from ._report import notice
from ._shared import Shared
from ._stateful import Instances
from ._subscribe import check_handler, check_when

H = TypeVar("H")
R = TypeVar("R")
E1 = TypeVar("E1", bound=EventRoot)
E2 = TypeVar("E2", bound=EventRoot)
E3 = TypeVar("E3", bound=EventRoot)
E4 = TypeVar("E4", bound=EventRoot)
E5 = TypeVar("E5", bound=EventRoot)
E6 = TypeVar("E6", bound=EventRoot)
E7 = TypeVar("E7", bound=EventRoot)
E8 = TypeVar("E8", bound=EventRoot)
E_co = TypeVar("E_co", covariant=True)

_MARK: Final = "_eventbus_on"
_OWN: Final = "_eventbus_class"
_KEY: Final = "_eventbus_key"
_PLACE: Final = "_eventbus_place"
_BEFORE: Final = "_eventbus_before"

Place: TypeAlias = tuple[str, int]
Retired: TypeAlias = tuple[str, str]


class OnDecorator(Protocol[E_co]):
    """
    What `on(...)` returns: it takes a handler of the event, or of nothing, and gives it back.

    To a type checker the handler then takes any event: otherwise a second `@on` above it, for another event,
    would find a handler of the first one only.
    """

    @overload
    def __call__(self, fn: Callable[[H, E_co], R], /) -> Callable[[H, Any], R]: ...
    @overload
    def __call__(self, fn: Callable[[H], R], /) -> Callable[[H], R]: ...


@overload
def on(
    e1: type[E1], /, *, priority: int | None = None, when: Callable[[E1], object] | None = None
) -> OnDecorator[E1]: ...
@overload
def on(
    e1: type[E1],
    e2: type[E2],
    /,
    *,
    priority: int | None = None,
    when: Callable[[E1 | E2], object] | None = None,
) -> OnDecorator[E1 | E2]: ...
@overload
def on(
    e1: type[E1],
    e2: type[E2],
    e3: type[E3],
    /,
    *,
    priority: int | None = None,
    when: Callable[[E1 | E2 | E3], object] | None = None,
) -> OnDecorator[E1 | E2 | E3]: ...
@overload
def on(
    e1: type[E1],
    e2: type[E2],
    e3: type[E3],
    e4: type[E4],
    /,
    *,
    priority: int | None = None,
    when: Callable[[E1 | E2 | E3 | E4], object] | None = None,
) -> OnDecorator[E1 | E2 | E3 | E4]: ...
@overload
def on(
    e1: type[E1],
    e2: type[E2],
    e3: type[E3],
    e4: type[E4],
    e5: type[E5],
    /,
    *,
    priority: int | None = None,
    when: Callable[[E1 | E2 | E3 | E4 | E5], object] | None = None,
) -> OnDecorator[E1 | E2 | E3 | E4 | E5]: ...
@overload
def on(
    e1: type[E1],
    e2: type[E2],
    e3: type[E3],
    e4: type[E4],
    e5: type[E5],
    e6: type[E6],
    /,
    *,
    priority: int | None = None,
    when: Callable[[E1 | E2 | E3 | E4 | E5 | E6], object] | None = None,
) -> OnDecorator[E1 | E2 | E3 | E4 | E5 | E6]: ...
@overload
def on(
    e1: type[E1],
    e2: type[E2],
    e3: type[E3],
    e4: type[E4],
    e5: type[E5],
    e6: type[E6],
    e7: type[E7],
    /,
    *,
    priority: int | None = None,
    when: Callable[[E1 | E2 | E3 | E4 | E5 | E6 | E7], object] | None = None,
) -> OnDecorator[E1 | E2 | E3 | E4 | E5 | E6 | E7]: ...
@overload
def on(
    e1: type[E1],
    e2: type[E2],
    e3: type[E3],
    e4: type[E4],
    e5: type[E5],
    e6: type[E6],
    e7: type[E7],
    e8: type[E8],
    /,
    *,
    priority: int | None = None,
    when: Callable[[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8], object] | None = None,
) -> OnDecorator[E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8]: ...
def on(*events: Any, priority: int | None = None, when: Callable[[Any], object] | None = None) -> Any:
    """
    Make a method of a hook handle events.

    Several classes share the handler, which receives the specific event that fired. It may be given several
    times. Mistakes are raised when the class is created, where they can name the hook and the handler.

    Args:
        *events: Event classes, one or more; subclasses of them count.
        priority: The handler's place in the order, lower first; by default the hook's own `priority`.
        when: A predicate on the event; the handler is called only if it says yes.

    Returns:
        A decorator that gives the function back.
    """
    return Mark(events, priority, when)


class Mark:
    """
    What one `@on` says; called with the function under it, it leaves itself there.
    """

    __slots__ = ("events", "priority", "when")

    def __init__(
        self, events: tuple[Any, ...], priority: int | None, when: Callable[[Any], object] | None
    ) -> None:
        self.events = events
        self.priority = priority
        self.when = when

    def __call__(self, fn: Any) -> Any:
        try:
            setattr(fn, _MARK, (*marks_of(fn), self))
        except AttributeError:
            msg = f"@on cannot mark {fn!r}, which takes no attributes; wrap it in a function."
            raise TypeError(msg) from None
        return fn


def marks_of(value: object) -> tuple[Mark, ...]:
    """
    Return what `@on` left on a class attribute.
    """
    for candidate in (value, getattr(value, "__func__", None)):
        marks = getattr(candidate, _MARK, None)
        if isinstance(marks, tuple):
            return cast("tuple[Mark, ...]", marks)
    return ()


class Handler:
    """
    One `@on` of one method of a hook class.
    """

    __slots__ = ("events", "name", "priority", "when")

    def __init__(self, name: str, mark: Mark) -> None:
        self.name = name
        # By identity: what is no event class, and is told so later, may not be hashable.
        self.events: tuple[type[EventRoot], ...] = tuple({id(event): event for event in mark.events}.values())
        self.priority = mark.priority
        self.when = mark.when


@attrs.frozen(eq=False)
class HookInfo:
    """
    One row of `hooks()`.

    Attributes:
        cls: The hook class.
        name: Its name, as lines and errors give it.
        events: The event classes it handles.
        priority: Its place in the order; a handler's own `priority` may differ.
        state: "live", "retired" (a live subclass specialises it), "abstract" or "unregistered".
        file: Where the class was defined, or None.
        line: The line in that file, or None.
    """

    cls: type[Hook]
    name: str
    events: tuple[type[EventRoot], ...]
    priority: int
    state: str
    file: str | None
    line: int | None


class HookEntry:
    """
    What the bus keeps for one hook class, over all its redefinitions.
    """

    def __init__(self, key: Hashable, cls: type[Hook], order: int) -> None:
        self.key = key
        self.cls = cls
        self.order = order
        self.wanted = False
        self.live = False
        self.handlers: list[Handler] = []
        self.receivers: list[Receiver] = []
        self.instances: Instances | None = None

    @property
    def events(self) -> tuple[type[EventRoot], ...]:
        """
        The event classes of all handlers, each once.
        """
        return tuple(dict.fromkeys(event for handler in self.handlers for event in handler.events))

    @property
    def has_gates(self) -> bool:
        """
        Whether some handler's writing can change a run.
        """
        return _has_gates(self.handlers)

    @property
    def state(self) -> str:
        """
        The state that `hooks()` shows.
        """
        if self.live:
            return "live"
        if is_abstract(self.cls):
            return "abstract"
        return "retired" if self.wanted else "unregistered"

    def info(self) -> HookInfo:
        """
        Return the entry as its row of `hooks()`.
        """
        file, line = self.cls.__dict__[_PLACE] or (None, None)
        return HookInfo(
            cls=self.cls,
            name=self.cls.__name__,
            events=self.events,
            priority=int(self.cls.priority),
            state=self.state,
            file=file,
            line=line,
        )

    def connect(self, changes: Changes) -> None:
        """
        Make receivers of the handlers, to be connected with the other changes.
        """
        cls = self.cls
        if cls.stateful:
            self.instances = Instances(cls, cls.stateful_capacity, cls.lock_timeout)
            self.instances.open()
        shared = Shared(cls, cls.lock_timeout) if cls.shared else None
        for index, handler in enumerate(self.handlers):
            method = _method(cls, handler.name)
            name = f"{cls.__name__}.{handler.name}"
            serial: Hashable = None
            per_event: tuple[type, Callable[[Any, Any], Any]] | None = (cls, method)
            if self.instances is not None:
                call, serial = self.instances.bind(method, name), id(self.instances)
            elif shared is not None:
                call, per_event = shared.bind(method, name), None
            else:
                call = _per_event(cls, method)
            receiver = Receiver(
                call,
                name=name,
                target=(id(self), handler.name),
                order=(self.order, index),
                priority=cls.priority if handler.priority is None else handler.priority,
                when=handler.when,
                hook=self,
                accepts=getattr(cls, f"_accepts_in_{handler.name}", None),
                serial=serial,
                per_event=per_event,
                in_force=False,
            )
            self.receivers.append(receiver)
            changes.wiring.extend((self, receiver, signal_of(event)) for event in handler.events)

    def disconnect(self, changes: Changes) -> None:
        """
        Take the receivers out again, with what was kept for them.
        """
        for receiver, handler in zip(self.receivers, self.handlers, strict=True):
            changes.wiring.extend((self, receiver, signal_of(event)) for event in handler.events)
        self.receivers = []
        if self.instances is not None:
            changes.closing.append(self.instances)
            self.instances = None

    def close(self) -> None:
        """
        Drop the instances.
        """
        self.receivers = []
        if self.instances is not None:
            self.instances.close()
            self.instances = None


class Changes:
    """
    What becomes of a change of hooks once the registry is no longer locked.

    Blinker tells listeners of its own when a receiver comes or goes, an instance may have a finalizer, and a
    retirement is a line: all of this is user code.

    Attributes:
        wiring: The receivers that come or go, with the signals to connect them to.
        closing: The instances of stateful hooks to be dropped.
        retired: The names of the classes that were retired, each with that of the class that did it.
    """

    __slots__ = ("closing", "retired", "wiring")

    def __init__(self) -> None:
        self.wiring: list[tuple[HookEntry, Receiver, EventSignal]] = []
        self.closing: list[Instances] = []
        self.retired: list[Retired] = []

    def carry_out(self) -> None:
        """
        Connect what comes, switch over in one step, disconnect what goes, and tell.

        Another thread may change the same hook meanwhile; what its entry says at the end is what holds.
        """
        try:
            for entry, receiver, signal in self.wiring:
                if receiver in entry.receivers:
                    signal.connect(receiver, weak=False)
        finally:
            with _registry.lock:
                for entry, receiver, signal in self.wiring:
                    receiver.in_force = receiver in entry.receivers
                    invalidate(signal.owner)
        for instances in self.closing:
            instances.close()
        for entry, receiver, signal in self.wiring:
            if receiver not in entry.receivers:
                signal.disconnect(receiver)
        for base, by in self.retired:
            notice("debug", ("HOOK", "RETIRED"), ("hook", base), by=by)


def _per_event(cls: type[Hook], method: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda event: method(cls(), event)


def _takes_event(cls: type[Hook], name: str, where: str) -> bool:
    # Whatever kind of attribute the handler is, Python itself knows how to bind it.
    found: object = inspect.getattr_static(cls, name)
    is_bound = isinstance(found, (staticmethod, classmethod)) or not hasattr(found, "__get__")
    arguments = 1 if is_bound else 2
    taken = check_handler(getattr(cls, name), where, arguments=arguments)
    if not taken and not is_bound:
        msg = f"{where} takes no `self`; give it one, or make it a staticmethod."
        raise TypeError(msg)
    return taken == arguments


def _method(cls: type[Hook], name: str) -> Callable[[Any, Any], Any]:
    # A function of (instance, event).
    takes_event = _takes_event(cls, name, name)
    found = inspect.getattr_static(cls, name)
    if isinstance(found, FunctionType):
        return found if takes_event else lambda instance, _: found(instance)
    if takes_event:
        return lambda instance, event: getattr(instance, name)(event)
    return lambda instance, _: getattr(instance, name)()


class Hook:
    """
    A class of handlers. Defining a subclass makes it live; nothing else wires it in.

    By default the bus makes an instance for each event. Handlers run on the emitting thread, async ones on a
    loop; what they raise is reported and never reaches the run, unless they are gates.
    """

    stateful: ClassVar[bool] = False
    """Keep one instance per run, until the event that ends it."""

    shared: ClassVar[bool] = False
    """Keep one instance per process, made at its first event. It is not locked: it must be thread-safe."""

    abstract: ClassVar[bool] = False
    """In a class's own body: keep this class from going live, not its subclasses."""

    replaces: ClassVar[bool] = False
    """In a class's own body: this class may retire a base that has gates."""

    shadow: ClassVar[bool] = False
    """Let gate handlers judge, and record what they would have done without doing it."""

    priority: ClassVar[int] = Priority.DEFAULT
    """The place in the order of delivery, lower first."""

    stateful_capacity: ClassVar[int | None] = None
    """How many runs a stateful hook keeps; None for what `configure` says."""

    lock_timeout: ClassVar[float | None] = None
    """Seconds that a stateful handler waits for its run's lock; None for what `configure` says."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        first: type[Hook] | None = cls.__dict__.get(_OWN)
        if first is not None and first.__name__ != cls.__name__:
            # A class made by hand of the other's namespace, not the other rebuilt by attrs.
            first = None
        handlers = _handlers_of(cls)
        try:
            _check_class(cls, handlers)
        except TypeError:
            if first is not None:
                _undo(first)
            raise
        if first is not None:
            key: Hashable = first.__dict__[_KEY]
        elif "<locals>" in cls.__qualname__:
            key = object()
        else:
            key = (cls.__module__, cls.__qualname__)
        if first is None:
            setattr(cls, _PLACE, _place_of_class_statement(cls))
        changes = Changes()
        with _registry.lock:
            _check_replaces(cls, key, handlers)
            setattr(cls, _OWN, cls)
            setattr(cls, _KEY, key)
            if first is None:
                earlier = _registry.state.hooks.get(key)
                setattr(cls, _BEFORE, None if earlier is None else (weakref.ref(earlier.cls), earlier.wanted))
            _put(cls, handlers, changes)
        changes.carry_out()

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        # Called by attrs for a class that it has not made anew: only now there is the constructor.
        if not is_abstract(cls):
            try:
                _check_constructor(cls, "__init__")
            except TypeError:
                _undo(cls)
                raise

    @classmethod
    def register(cls) -> None:
        """
        Make the class live again after `unregister`; a class that is live stays so.

        One that was defined again since takes the place of the later definition.

        Raises:
            TypeError: If it is abstract, or Hook itself; or if a gate would be retired by this, without
                `replaces = True` in the class that retires it.
        """
        if cls is Hook or is_abstract(cls):
            msg = f"{cls.__qualname__} is abstract and cannot be live; subclass it."
            raise TypeError(msg)
        changes = Changes()
        with _registry.lock:
            key = cls.__dict__[_KEY]
            entry = _registry.state.hooks.get(key)
            if entry is None or entry.cls is not cls:
                handlers = _handlers_of(cls)
                _check_replaces(cls, key, handlers)
                _put(cls, handlers, changes)
            else:
                _check_replaces(cls, key, entry.handlers)
                entry.wanted = True
                _settle(entry, changes)
        changes.carry_out()

    @classmethod
    def unregister(cls) -> None:
        """
        Take the class out of the bus, with the instances kept for it; a base that it retired is live again.
        """
        changes = Changes()
        with _registry.lock:
            entry = _registry.state.hooks.get(cls.__dict__.get(_KEY))
            if entry is not None and entry.cls is cls:
                entry.wanted = False
                _settle(entry, changes)
        changes.carry_out()


def _handlers_of(cls: type[Hook]) -> list[Handler]:
    # Bases first, in the order of declaration; what a subclass overrides keeps its place.
    marked: dict[str, tuple[Mark, ...]] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            marks = marks_of(value)
            if marks:
                marked[name] = marks
            elif name in marked and value is None:
                del marked[name]
    return [Handler(name, mark) for name, marks in marked.items() for mark in marks]


def _check_class(cls: type[Hook], handlers: list[Handler]) -> None:
    for name, value in vars(cls).items():
        if isinstance(value, Mark):
            msg = f"{cls.__qualname__}.{name}: write @on(...) with the event classes, as in @on(OrderPlaced)."
            raise TypeError(msg)
    for handler in handlers:
        _check_handler(cls, handler)
    for name in ("stateful", "shared", "abstract", "replaces", "shadow"):
        value = getattr(cls, name)
        if not isinstance(value, bool):
            _reject_setting(cls, name, "True or False")
    if not isinstance(cast("object", cls.priority), int):
        _reject_setting(cls, "priority", "an int")
    capacity = cast("object", cls.stateful_capacity)
    if capacity is not None and not (type(capacity) is int and capacity > 0):
        _reject_setting(cls, "stateful_capacity", "an int of at least 1, or None")
    timeout = cast("object", cls.lock_timeout)
    if timeout is not None and not (type(timeout) in (int, float) and cast("float", timeout) > 0):
        _reject_setting(cls, "lock_timeout", "more than 0 seconds, or None")
    if cls.stateful and cls.shared:
        msg = f"{cls.__qualname__} is both stateful (one per run) and shared (one per process); choose one."
        raise TypeError(msg)
    if not is_abstract(cls):
        for name in ("__new__", "__init__"):
            _check_constructor(cls, name)


def _reject_setting(cls: type[Hook], name: str, what: str) -> NoReturn:
    msg = (
        f"{cls.__qualname__}.{name} must be {what}, not {getattr(cls, name)!r}; settings are class "
        f"attributes, so write `{name} = ...` without an annotation, which would make it a field."
    )
    raise TypeError(msg)


def _check_constructor(cls: type[Hook], name: str) -> None:
    constructor = getattr(cls, name)
    if constructor is getattr(object, name):
        return
    try:
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
    except ValueError:
        # Some constructors of extension modules do not tell.
        return
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if needed:
        msg = (
            f"{cls.__qualname__}.{name} needs {', '.join(needed)}, but the bus makes instances without "
            "arguments; make settings class attributes, or give them defaults."
        )
        raise TypeError(msg)


def _is_event_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, EventRoot)


def _check_handler(cls: type[Hook], handler: Handler) -> None:
    where = f"{cls.__qualname__}.{handler.name}"
    if not handler.events:
        msg = f"{where}: @on() names no event; name the event classes it handles, as in @on(OrderPlaced)."
        raise TypeError(msg)
    for event in handler.events:
        if not _is_event_class(event):
            msg = f"{where}: @on names {event!r}, which is no event class; name subclasses of Event."
            raise TypeError(msg)
    _takes_event(cls, handler.name, where)
    check_when(handler.when, where)
    if handler.priority is not None and not isinstance(cast("object", handler.priority), int):
        msg = f"{where}: `priority` must be an int, not {handler.priority!r}."
        raise TypeError(msg)


def _has_gates(handlers: list[Handler]) -> bool:
    return any(not event._fails_open for handler in handlers for event in handler.events)


def _check_replaces(cls: type[Hook], key: Hashable, handlers: list[Handler]) -> None:
    if is_abstract(cls):
        return
    if not cls.__dict__.get("replaces"):
        for entry in _entries(_keys_above(cls)):
            if entry.live and entry.has_gates:
                msg = (
                    f"{cls.__qualname__} would retire {entry.cls.__qualname__}, whose gates guard runs; "
                    "set `replaces = True` in its body if it is to take their place."
                )
                raise TypeError(msg)
    if _has_gates(handlers):
        for entry in _live_below(key):
            if not entry.cls.__dict__.get("replaces"):
                msg = (
                    f"{cls.__qualname__} has gates that would not guard: its live subclass "
                    f"{entry.cls.__qualname__} retires it; set `replaces = True` in that body if it is to "
                    "take their place, or unregister it first."
                )
                raise TypeError(msg)


def is_abstract(cls: type) -> bool:
    """
    Tell whether a hook class says in its own body that it is abstract.
    """
    return bool(cls.__dict__.get("abstract"))


def _keys_above(cls: type) -> Iterable[Hashable]:
    # Nearest first. A base that was defined again since is found by its name.
    return dict.fromkeys(base.__dict__[_KEY] for base in cls.__mro__[1:] if _KEY in base.__dict__)


def _entries(keys: Iterable[Hashable]) -> list[HookEntry]:
    hooks_ = _registry.state.hooks
    return [hooks_[key] for key in keys if key in hooks_]


def _live_below(key: Hashable) -> list[HookEntry]:
    # What is live of the subclasses of a hook class, and of its earlier definitions.
    if not _registry.state.live_below[key]:
        return []
    return [
        other
        for other in _registry.state.hooks.values()
        if other.live and any(base.__dict__.get(_KEY) == key for base in other.cls.__mro__[1:])
    ]


def _put(cls: type[Hook], handlers: list[Handler], changes: Changes) -> None:
    key = cls.__dict__[_KEY]
    entry = _registry.state.hooks.get(key)
    if entry is None:
        entry = HookEntry(key, cls, next_order())
        _registry.state.hooks[key] = entry
    _become(entry, cls, handlers, changes, wanted=not is_abstract(cls))


def _become(
    entry: HookEntry, cls: type[Hook], handlers: list[Handler], changes: Changes, *, wanted: bool
) -> None:
    # In one step: a base that comes back in between would retire what lives above it.
    before: Iterable[Hashable] = ()
    if entry.live:
        before = _keys_above(entry.cls)
        entry.live = False
        entry.disconnect(changes)
    entry.cls, entry.handlers, entry.wanted = cls, handlers, wanted
    _settle(entry, changes, before=before)


def _undo(cls: type[Hook]) -> None:
    # The class went live before attrs gave it a constructor that cannot be called; what it took the place of
    # comes back. Its entry stays where live subclasses of an earlier definition are shown below it.
    changes = Changes()
    with _registry.lock:
        key = cls.__dict__[_KEY]
        entry = _registry.state.hooks.get(key)
        if entry is not None and entry.cls is cls:
            reference, wanted = cls.__dict__[_BEFORE] or (lambda: None, False)
            earlier: type[Hook] | None = reference()
            if earlier is not None:
                _become(entry, earlier, _handlers_of(earlier), changes, wanted=wanted)
            else:
                entry.wanted = False
                _settle(entry, changes)
                if not _registry.state.live_below[key]:
                    del _registry.state.hooks[key]
    changes.carry_out()


def _settle(entry: HookEntry, changes: Changes, *, before: Iterable[Hashable] = ()) -> None:
    # Make the entry live or not, as it should be, and with it the classes it specialises; and those `before`
    # that it specialised until now.
    live = entry.wanted and not _registry.state.live_below[entry.key]
    above = dict.fromkeys(before, -1)
    if live != entry.live:
        entry.live = live
        if live:
            entry.connect(changes)
        else:
            entry.disconnect(changes)
        for key in _keys_above(entry.cls):
            above[key] = above.get(key, 0) + (1 if live else -1)
    _registry.state.live_below.update(above)
    for other in _entries(above):
        was_live = other.live
        _settle(other, changes)
        if was_live and not other.live:
            changes.retired.append((other.cls.__name__, entry.cls.__name__))


def _place_of_class_statement(cls: type) -> Place | None:
    # The frame that executes the class statement, whatever metaclass stands between.
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == cls.__module__:
            return (frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


class HooksView:
    """
    What is registered, in the order of delivery; see `hooks`.
    """

    __slots__ = ()

    def _entries(self) -> list[HookEntry]:
        entries = list(_registry.state.hooks.values())
        return sorted(entries, key=lambda entry: (int(entry.cls.priority), entry.order))

    def __iter__(self) -> Iterator[HookInfo]:
        return iter([entry.info() for entry in self._entries()])

    def __len__(self) -> int:
        return len(_registry.state.hooks)

    def __contains__(self, cls: object) -> bool:
        known: list[object] = [entry.cls for entry in list(_registry.state.hooks.values())]
        return any(one is cls for one in known)

    def __repr__(self) -> str:
        return f"<hooks: {', '.join(f'{info.name} ({info.state})' for info in self) or 'none'}>"

    def get(self, name: str) -> HookInfo | None:
        """
        Return the hook with a name, qualified by its module or not; None if there is none.

        Of several with one name the one defined last is returned.
        """
        for entry in reversed(list(_registry.state.hooks.values())):
            cls = entry.cls
            if name in (cls.__name__, cls.__qualname__, f"{cls.__module__}.{cls.__qualname__}"):
                return entry.info()
        return None


_view: Final = HooksView()


def hooks() -> HooksView:
    """
    Return a read-only view of the hooks that are registered, in the order of delivery.

    Returns:
        An iterable of `HookInfo`, with `len`, `in` (for a class) and `.get(name)`. It shows the registry as
        it is when it is looked at.
    """
    return _view
