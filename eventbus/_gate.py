"""
The root of protected events: what their handlers write changes the run, and a handler that fails stops it.
"""

from __future__ import annotations

import contextvars
import inspect
import weakref
from collections.abc import Awaitable, Callable
from types import MemberDescriptorType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    overload,
)

import attrs

from ._clock import now
from ._context import current_correlation_id, running_loop
from ._depth import Trip, hook_name, is_loop, refusal, trips
from ._emitter import all_fields
from ._errors import AsyncGateError
from ._event import STICKY, EventRoot, make_root
from ._readonly import freeze
from ._registry import Receiver
from ._report import AwaitableWrapper, report_failure
from ._scheduler import discard, scheduler

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
G = TypeVar("G", bound="ProtectedEvent")


_NOT_THE_ROOT: Final = "ProtectedEvent is the root of gates and is not emitted itself; emit a subclass of it."

RAISED: Final = "raised"
"""The field that an edit names when a handler has raised instead of writing."""


class Edit(NamedTuple):
    """
    One thing that a gate's handler wrote.

    Attributes:
        handler: The handler, as lines name it; None if it was written outside of any.
        field: The field, or "raised" for a handler that raised instead.
        old: The value before.
        new: The value written, or the exception.
        applied: False if it changed nothing: the field had latched, or the hook is a shadow.
    """

    handler: str | None
    field: str
    old: Any
    new: Any
    applied: bool


Turn: TypeAlias = "tuple[weakref.ref[ProtectedEvent], Receiver]"
"""
One handler's turn to judge one event: who is the author of what is written, here and in its tasks.

The event by a weak reference: a task that a handler leaves behind has its turn for as long as it runs.
"""

turn_var: contextvars.ContextVar[Turn | None] = contextvars.ContextVar("eventbus_turn", default=None)


class Judging(AwaitableWrapper):
    """
    Awaits what an async handler returned, in its turn.
    """

    __slots__ = ("turn",)

    def __init__(self, turn: Turn, inner: Awaitable[Any]) -> None:
        super().__init__(inner)
        self.turn = turn

    async def run(self) -> Any:
        """
        Await what is inside, as the author of what it writes.
        """
        outer = turn_var.get()
        turn_var.set(self.turn)
        try:
            return await self.inner
        finally:
            # In another context, where a coroutine may end, there is nothing to go back to.
            if turn_var.get() is self.turn:
                turn_var.set(outer)


@overload
def writable(*, sticky: bool = False) -> Any: ...
@overload
def writable(*, default: T, sticky: bool = False) -> T: ...
@overload
def writable(*, factory: Callable[[], T], sticky: bool = False) -> T: ...
def writable(*, default: Any = attrs.NOTHING, factory: Any = None, sticky: bool = False) -> Any:
    """
    Declare a field of a protected event that its handlers may set.

    Args:
        default: Its value when the emitter gives none; without one it is required.
        factory: A function that makes the default.
        sticky: Let the field latch at its first truthy value: later writes are recorded and change nothing.

    Returns:
        A field specifier for the class body. A validator given with attrs' `@field.validator` judges what
        handlers write, too.

    Raises:
        ValueError: If both `default` and `factory` are given.
    """
    return attrs.field(default=default, factory=factory, metadata={STICKY: sticky})


@dataclass_transform(kw_only_default=True, field_specifiers=(attrs.field, writable))
class _Protected(EventRoot):
    """
    Carries the typing of `ProtectedEvent`, as `_Observed` does for `Event`.
    """

    _hidden = True


class ProtectedEvent(_Protected):
    """
    The root of gates: events that a run asks, and obeys.

    Only fields made with `writable()` can be set. Handlers fail closed: the first exception of a before-event
    stops the rest and reaches the emitter unchanged; of an after-event (`reverse = True`), whose handlers
    run in exactly the opposite order, all run, then the single error or an ExceptionGroup is raised.

    Args:
        correlation_id: The run the event belongs to; by default the id of the enclosing `correlation` scope.
        timestamp: Wall clock, in seconds since the epoch; by default now. Not part of equality.
    """

    reverse: ClassVar[bool] = False
    """Set on an after-event: its handlers run in exactly the opposite order."""

    _fails_open = False
    _returns_event = True
    _writable: ClassVar[dict[str, attrs.Attribute[Any]]] = {}
    _names: ClassVar[frozenset[str]] = frozenset()
    _slotted: ClassVar[frozenset[str]] = frozenset()

    correlation_id: str | None = attrs.field(factory=current_correlation_id)
    timestamp: float = attrs.field(factory=now, eq=False)

    __hash__ = None  # type: ignore[assignment]  # what can be written to has no constant hash

    def __init_subclass__(cls, channel: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(channel=channel, **kwargs)
        _learn(cls)

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        super().__attrs_init_subclass__()
        _learn(cls)

    def _set(self, name: str, value: Any) -> None:
        if self._is_unset(name):
            # By the constructor that attrs has made.
            object.__setattr__(self, name, value)
            return
        field = self._writable.get(name)
        if field is None:
            raise AttributeError(self._read_only(name))
        old = getattr(self, name)
        latched = bool(field.metadata[STICKY] and old)
        if not latched:
            if field.metadata[STICKY] and isinstance(value, str) and not value.strip():
                msg = f"{type(self).__name__}.{name} needs a reason, or True; an empty one says nothing."
                raise ValueError(msg)
            value = attrs.setters.validate(self, field, value)
        value = freeze(value)
        author = self._author_here()
        applied = not latched and not _is_shadow(author)
        if applied:
            object.__setattr__(self, name, value)
        self._record(author, name, old, value, applied=applied)

    def _delete(self, name: str) -> None:
        if name in self._writable:
            msg = f"Cannot delete {name!r} on {type(self).__name__}: it can be set, and not be missing."
            raise AttributeError(msg)
        raise AttributeError(self._read_only(name))

    if not TYPE_CHECKING:  # pragma: no branch - a checker that sees them lets any name be written
        __setattr__ = _set
        __delattr__ = _delete

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # A copy made by a handler is not what the handler judges, and has edits of its own.
        state.pop("_author", None)
        if "_edits" in state:
            state["_edits"] = list(state["_edits"])
        return state

    def _is_unset(self, name: str) -> bool:
        if name not in self._names or name in self.__dict__:
            return False
        return name not in self._slotted or not hasattr(self, name)

    def _read_only(self, name: str) -> str:
        fields = ", ".join(self._writable) or "none"
        return f"Cannot set {name!r} on {type(self).__name__}: read-only. Writable fields: {fields}."

    @property
    def edits(self) -> tuple[Edit, ...]:
        """
        Who wrote what, in order; what was recorded and not applied included.
        """
        return tuple(self.__dict__.get("_edits", ()))

    def _author_here(self) -> Receiver | None:
        turn = turn_var.get()
        if turn is not None and turn[0]() is self:
            return turn[1]
        # A thread that a handler has started knows no more than whose turn it is.
        author: Receiver | None = self.__dict__.get("_author")
        return author

    @staticmethod
    def _authored(call: Callable[[Any], Any], author: Receiver) -> Callable[[Any], Any]:
        """
        Return a handler, or its predicate, that is called as the author of what it writes.
        """

        def judge(event: ProtectedEvent) -> Any:
            event.__dict__["_author"] = author
            turn = (weakref.ref(event), author)
            outer = turn_var.get()
            turn_var.set(turn)
            try:
                result = call(event)
            finally:
                turn_var.set(outer)
            # What nearly all of them return is told without being looked at.
            return Judging(turn, result) if result is not None and inspect.isawaitable(result) else result

        return judge

    def _record(self, author: Receiver | None, field: str, old: Any, new: Any, *, applied: bool) -> None:
        edits: list[Edit] = self.__dict__.setdefault("_edits", [])
        edits.append(Edit(None if author is None else author.name, field, old, new, applied))

    @classmethod  # pyright: ignore[reportArgumentType]  # as below
    def emit(cls: Callable[P, G], *args: P.args, **kwargs: P.kwargs) -> G:  # noqa: ARG003  # pyright: ignore[reportGeneralTypeIssues]  # typed by the constructor
        """
        Build the event, let its handlers judge it on this thread, and return it.

        Async handlers are run on the background loop and waited for.

        Args:
            *args: None: every argument has a name.
            **kwargs: The fields, `correlation_id` and `timestamp`; other keys are kept as raw payload.

        Returns:
            The event, with what its handlers wrote.

        Raises:
            AsyncGateError: If a handler is async and this is the thread of a running loop: use `aemit` there.
            EmitLoopError: If the emit is nested too deep to be judged.
            Exception: What a handler raised.
        """
        raise TypeError(_NOT_THE_ROOT)

    @classmethod  # pyright: ignore[reportArgumentType]  # as below
    async def aemit(cls: Callable[P, G], *args: P.args, **kwargs: P.kwargs) -> G:  # noqa: ARG003  # pyright: ignore[reportGeneralTypeIssues]  # as emit
        """
        Build the event, let its handlers judge it on the running loop, awaiting each, and return it.

        Args:
            *args: None: every argument has a name.
            **kwargs: As for `emit`.

        Returns:
            The event, with what its handlers wrote.

        Raises:
            EmitLoopError: If the emit is nested too deep to be judged.
            Exception: What a handler raised.
        """
        raise TypeError(_NOT_THE_ROOT)

    @classmethod
    def _build(cls, **fields: Any) -> Any:  # noqa: ARG003 - of each class, compiled
        """
        Build the event, to be asked later.
        """
        raise TypeError(_NOT_THE_ROOT)

    def publish(self: G) -> G:
        """
        Let the handlers judge this event, which exists already, as `emit` would.
        """
        try:
            self._deliver()
        finally:
            self.__dict__.pop("_author", None)
        return self

    async def apublish(self: G) -> G:
        """
        Let the handlers judge this event, which exists already, as `aemit` would.
        """
        await self._adeliver()
        return self

    def _returned(self, receiver: Receiver, result: object) -> None:
        if not inspect.isawaitable(result):
            return
        if running_loop() is not None:
            discard(result)
            name = type(self).__qualname__
            msg = (
                f"{receiver.name} is async and cannot be waited for on the running loop; "
                f"use `await {name}.aemit(...)`, or AsyncRun for a run."
            )
            raise AsyncGateError(msg)
        scheduler.run(result)

    def _failed(
        self, receiver: Receiver, error: Exception, errors: list[Exception] | None
    ) -> list[Exception] | None:
        shadow = _is_shadow(receiver)
        is_reported = bool(trips) and is_loop(error)
        if is_reported and not shadow:
            raise refusal(self) or error
        self._record(receiver, RAISED, None, error, applied=not shadow)
        self.__dict__.pop("_author", None)
        if is_reported:
            return errors
        report_failure(
            hook=hook_name(receiver), handler=receiver.name, event=self, error=error, key=receiver.target
        )
        if shadow:
            return errors
        if not self.reverse:
            raise error
        return [*(errors or ()), error]

    def _refused(self, error: Exception) -> NoReturn:
        raise error

    def _settled(self, trip: Trip | None, errors: list[Exception] | None) -> list[Exception] | None:
        self.__dict__.pop("_author", None)
        if trip is not None:
            trip.report()
        return errors


def build(gate_class: type[G], fields: dict[str, Any]) -> G:
    """
    Build a gate without asking it yet; keys that are no field become its raw payload, as with `emit`.
    """
    gate: G = gate_class._build(**fields)
    return gate


def _learn(cls: type[ProtectedEvent]) -> None:
    fields = all_fields(cls)
    cls._names = frozenset(field.name for field in fields)
    cls._writable = {field.name: field for field in fields if STICKY in field.metadata}
    # By hand: `inspect.getattr_static` takes as long as all the rest of a class.
    held = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    cls._slotted = frozenset(name for name in cls._names if isinstance(held.get(name), MemberDescriptorType))
    for name in ("__setattr__", "__delattr__"):
        # An explicit attrs decorator on top has generated its own.
        if getattr(cls, name) is not getattr(ProtectedEvent, name):
            setattr(cls, name, getattr(ProtectedEvent, name))


def _is_shadow(author: Receiver | None) -> bool:
    return author is not None and author.hook is not None and author.hook.cls.shadow


make_root(ProtectedEvent)
# An edit says so of a handler that raised.
ProtectedEvent._reserved |= {RAISED}
