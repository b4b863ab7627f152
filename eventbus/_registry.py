"""
Who listens to what: a blinker signal per event class, and the ordered plan compiled from its receivers.

Blinker is the registry, for what it is good at: connecting, disconnecting, weak references. What it leaves
undefined, the order above all, is settled here once per change instead of once per emit.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import BuiltinMethodType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, cast

from blinker import ANY, Signal
from blinker._utilities import make_id

from ._counters import gauge
from ._priority import Priority
from ._report import timed
from ._settings import on_change, settings

if TYPE_CHECKING:
    from ._hook import Hook, HookEntry
    from ._stateful import Instances, RunLock
    from ._subscribe import Origin

F = TypeVar("F", bound=Callable[..., Any])

Order: TypeAlias = tuple[int, int]
Step: TypeAlias = tuple[Callable[[Any], Any] | None, Callable[[Any], Any], "Receiver"]

PLAN: Final = "_eb_PLAN"
KEYED: Final = "_eb_KEYED"

INSTANCE_OF: Final = "_instance_of_"
"""Begins the key under which a hook's instance rides on an event."""

SPARE_PLACES: Final = 64
"""How many places of gone functions may be left before they are looked for."""

_gone: Final = [0]
"""What classes had counted that are no more, such as those replaced by a reload."""

lock = threading.RLock()
"""Held while the registry changes or a plan is compiled; never while user code runs."""

os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

next_order: Final = itertools.count().__next__


def target_of(fn: Callable[..., Any]) -> Hashable:
    """
    Return what makes two callables the same function: a bound method's function and object, else identity.
    """
    if hasattr(type(fn), "_target"):  # a subscription, which is called as its function
        target: Hashable = cast("Any", fn)._target
        return target
    if isinstance(fn, MethodType):
        return (id(fn.__func__), id(fn.__self__))
    if isinstance(fn, BuiltinMethodType) and not isinstance(fn.__self__, ModuleType):
        return (fn.__qualname__, id(fn.__self__))
    return id(fn)


def name_of(fn: object) -> str:
    """
    Return the name that lines and errors use for a callable; never fails.
    """
    while isinstance(fn, functools.partial):
        fn = cast("object", fn.func)
    try:
        name = getattr(fn, "__qualname__", None)
    except Exception:  # an attribute of somebody else's class may raise anything
        name = None
    return name if isinstance(name, str) else type(fn).__qualname__


class Receiver:
    """
    One handler as the delivery loop sees it.

    Attributes:
        call: Takes the event; what it returns is looked at only to find an awaitable.
        when: The predicate on the event, or None.
        target: What must be called at most once per event, whichever subscriptions match.
        priority, order: The place in the order of delivery.
        name: How lines, errors and edits name the handler: `RefundAuditHook.audit`.
        hook: The entry of the hook class it belongs to, or None for a function.
        correlation_id: The only run it hears, or None for all.
        accepts: Tells at compile time whether an event class is of interest; None for all.
        serial: Async deliveries with the same `serial` and run follow one another.
        per_event: For a handler whose instance lives for one event, in a stateful hook for one without a run:
            `(hook class, method)`; else None.
        origin: Where its function was defined, if that may happen again; else None.
        in_force: Whether it counts while it is connected: those of hooks come and go together, in one step.
    """

    __slots__ = (
        "__weakref__",
        "accepts",
        "call",
        "correlation_id",
        "hook",
        "in_force",
        "name",
        "order",
        "origin",
        "per_event",
        "priority",
        "serial",
        "target",
        "when",
    )

    def __init__(
        self,
        call: Callable[[Any], Any],
        *,
        name: str,
        target: Hashable,
        order: Order,
        priority: int = Priority.DEFAULT,
        when: Callable[[Any], Any] | None = None,
        correlation_id: str | None = None,
        hook: HookEntry | None = None,
        accepts: Callable[[type], bool] | None = None,
        serial: Hashable = None,
        per_event: tuple[type, Callable[[Any, Any], Any]] | None = None,
        origin: Origin | None = None,
        in_force: bool = True,
    ) -> None:
        self.call = call
        self.name = name
        self.target = target
        self.order = order
        self.priority = int(priority)
        self.when = when
        self.correlation_id = correlation_id
        self.hook = hook
        self.accepts = accepts
        self.serial: Hashable = target if serial is None else serial
        self.per_event = per_event
        self.origin = origin
        self.in_force = in_force

    def __repr__(self) -> str:
        return f"<receiver {self.name}>"

    def __call__(self, event: Any, **_: Any) -> Any:
        """
        Receive an event sent by blinker's own `send`, which goes around the promises of delivery.
        """
        if self.when is None or self.when(event):
            return self.call(event)
        return None

    @property
    def place(self) -> tuple[int, Order]:
        """
        What receivers are sorted by.
        """
        return (self.priority, self.order)


class Plan(tuple[Any, ...]):
    """
    What is called for an event, in order: a snapshot, which no change disturbs.

    It has of each handler what takes the event; or, if one of them has a predicate, the whole step of each:
    a loop over what is called alone is the quicker one.

    Attributes:
        receivers: The receiver of each handler, by the id of what is called; None where the steps say it.
    """

    receivers: dict[int, Receiver] | None
    _steps: tuple[Step, ...] | None

    def __new__(cls, steps: Iterable[Step] = ()) -> Plan:
        """
        Make a plan of `(when, call, receiver)` for each handler.
        """
        steps = tuple(steps)
        receivers = {id(call): receiver for _, call, receiver in steps}
        if len(receivers) < len(steps) or any(when is not None for when, _, _ in steps):
            return cls._of(steps, None)
        return cls._of((call for _, call, _ in steps), receivers, steps)

    @classmethod
    def _of(
        cls,
        items: Iterable[Any],
        receivers: dict[int, Receiver] | None,
        steps: tuple[Step, ...] | None = None,
    ) -> Plan:
        plan = super().__new__(cls, items)
        plan.receivers, plan._steps = receivers, steps
        return plan

    def in_order(self) -> Iterable[Step]:
        """
        Return `(when, call, receiver)` for each handler, in order.
        """
        if self.receivers is None:
            return self
        return self._steps or [(None, call, self.receivers[id(call)]) for call in self]

    def with_steps(self, steps: Sequence[Step]) -> Plan:
        """
        Return a plan that has more steps, each at its receiver's place; what both have is there once.
        """
        if self.receivers is None or any(when is not None for when, _, _ in steps):
            every = list(self.in_order())
            for step in steps:
                bisect.insort(every, step, key=lambda other: other[2].place)
            return self._of(every, None)
        receivers = _MoreReceivers(self.receivers)
        calls = list(self)
        for _, call, receiver in steps:
            receivers[id(call)] = receiver
            bisect.insort(calls, call, key=lambda other: receivers[id(other)].place)
        return self._of(calls, receivers)


class _MoreReceivers(dict[int, "Receiver"]):
    """
    The receivers that one plan has beside those of another.
    """

    __slots__ = ("_others",)

    def __init__(self, others: dict[int, Receiver]) -> None:
        super().__init__()
        self._others = others

    def __missing__(self, key: int) -> Receiver:
        return self._others[key]


class EventSignal(Signal):
    """
    The blinker signal of one event class; tells the bus when its receivers change.
    """

    def __init__(self, owner: type) -> None:
        self._muted = False
        super().__init__(doc=f"Sent for every {owner.__qualname__}.")
        self.owner = owner
        self.keyed: dict[str, dict[int, Receiver]] = {}
        self.origins: dict[tuple[str, str], dict[Hashable, Origin]] = {}
        self._places: dict[Hashable, Order] = {}

    def __repr__(self) -> str:
        return f"<signal of {self.owner.__qualname__}>"

    @property
    def is_muted(self) -> bool:
        """
        Whether blinker's `muted()` silences the signal at this moment.
        """
        return self._muted

    @is_muted.setter
    def is_muted(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # tells
        with lock:
            if value != self._muted:
                self._muted = value
                invalidate(self.owner)

    def connect(self, receiver: F, sender: Any = ANY, weak: bool = True) -> F:
        """
        Connect a function that takes the event; weakly unless `weak=False`, as everywhere in blinker.

        Raises:
            TypeError: If `sender` is given: an event is its own sender; filter with `subscribe(when=...)`.
        """
        if sender is not ANY:
            msg = (
                f"{self!r} cannot filter by sender {sender!r}: every event is its own sender. "
                f"Use {self.owner.__qualname__}.subscribe(fn, when=...)."
            )
            raise TypeError(msg)
        ours = cast("object", receiver)
        if not isinstance(ours, Receiver):
            self._place(receiver)
        # Without the lock: blinker tells whoever listens to `receiver_connected`.
        super().connect(receiver, sender, weak)
        with lock:
            if isinstance(ours, Receiver) and ours.correlation_id is not None:
                self.keyed.setdefault(ours.correlation_id, {})[id(ours)] = ours
                rekey(self.owner, ours.correlation_id)
            else:
                invalidate(self.owner)
        return receiver

    def disconnect(self, receiver: Callable[..., Any], sender: Any = ANY) -> None:
        """
        Disconnect a function; one that is not connected is ignored.
        """
        super().disconnect(receiver, sender)
        with lock:
            if not isinstance(receiver, Receiver):
                self._places.pop(make_id(receiver), None)
                invalidate(self.owner)
                return
            if receiver.origin is not None:
                receiver.origin.forget(self, receiver)
            cid = receiver.correlation_id
            if cid is None:
                invalidate(self.owner)
                return
            ours = self.keyed.get(cid)
            if ours is not None:
                ours.pop(id(receiver), None)
                if not ours:
                    del self.keyed[cid]
                rekey(self.owner, cid)

    def _place(self, fn: Callable[..., Any]) -> None:
        # A function connected again keeps its place; of one that died, blinker leaves nothing behind.
        key = make_id(fn)
        with lock:
            if key not in self.receivers:
                self._places[key] = (next_order(), 0)
                if len(self._places) > 2 * len(self.receivers) + SPARE_PLACES:
                    live = {*self.receivers, key}
                    self._places = {one: place for one, place in self._places.items() if one in live}

    def everyone(self) -> Iterator[Receiver]:
        """
        Yield a receiver for each function that hears all runs.
        """
        if self._muted:
            return
        # A copy made in one step: a weak receiver may die, and be taken out, between two of ours.
        for key, value in self.receivers.copy().items():
            if isinstance(value, Receiver):
                if value.correlation_id is None and value.in_force:
                    yield value
                continue
            weak = isinstance(value, weakref.ref)
            fn = cast("Callable[..., Any] | None", value() if weak else value)
            if fn is None:
                continue
            yield Receiver(
                weak_call(fn, lambda: invalidate(self.owner)) if weak else fn,
                name=name_of(fn),
                target=target_of(fn),
                order=self._places.get(key, (0, 0)),
            )


def weak_call(fn: Callable[..., Any], when_dead: Callable[[], object]) -> Callable[[Any], Any]:
    """
    Return a callable that calls `fn` while it lives, and does nothing afterwards.
    """

    def gone(_: object) -> None:
        when_dead()

    kind: Any = weakref.WeakMethod if isinstance(fn, MethodType) else weakref.ref
    reference: Callable[[], Callable[..., Any] | None] = kind(fn, gone)

    def call(event: Any) -> Any:
        live = reference()
        if live is not None:
            return live(event)
        when_dead()  # once more: the plan may have been compiled while it died
        return None

    return call


class Topic:
    """
    What the bus keeps for one event class.

    `namespace` holds the globals of the class's compiled `emit`: `_eb_PLAN` is the plan, or None when it must
    be compiled again; `_eb_KEYED` the subscriptions to single runs, once there is one. `built` counts the
    events.
    """

    __slots__ = ("built", "channel", "cls", "namespace", "protected", "reverse", "stated")

    def __init__(self, cls: type, channel: str, *, stated: bool) -> None:
        self.cls = cls
        self.channel = channel
        self.stated = stated
        self.protected = False
        self.reverse = False
        self.built = 0
        self.namespace: dict[str, Any] = {PLAN: None, KEYED: None}

    # The default is there for the interpreter's exit, when the module's globals may be gone.
    def __del__(self, gone: list[int] = _gone) -> None:
        gone[0] += self.built

    def plan(self) -> Plan:
        """
        Return the receivers of all runs, in order, compiled if need be.
        """
        plan: Plan | None = self.namespace[PLAN]
        return self.renew() if plan is None else plan

    def renew(self) -> Plan:
        """
        Compile the plan anew.
        """
        with lock:
            signals = [state.signals[base] for base in self.cls.__mro__ if base in state.signals]
            plan = compile_plan(self, itertools.chain.from_iterable(s.everyone() for s in signals))
            keyed = self.namespace[KEYED]
            if any(s.keyed for s in signals):
                if keyed is None:
                    self.namespace[KEYED] = Keyed(self)
                else:
                    keyed.plans.clear()
            elif keyed is not None:
                self.namespace[KEYED] = None
            self.namespace[PLAN] = plan
            return plan

    def plan_for(self, cid: str | None) -> Plan:
        """
        Return the receivers of one run's events, in order.
        """
        plan = self.plan()
        keyed: Keyed | None = self.namespace[KEYED]
        return plan if keyed is None else keyed.plan_for(cid, plan)

    def has_receivers(self) -> bool:
        """
        Tell whether anybody would receive an event of some run.
        """
        plan: Plan | None = self.namespace[PLAN]
        if plan or (plan is None and self.renew()):
            return True
        # Where there is no index, nobody has subscribed to a single run.
        return self.namespace[KEYED] is not None and self._has_keyed()

    def _has_keyed(self) -> bool:
        return any(
            state.signals[base].keyed and not state.signals[base].is_muted
            for base in self.cls.__mro__
            if base in state.signals
        )


class Keyed:
    """
    An index of the subscriptions to single runs, so that ten thousand of them cost an emit one look-up.
    """

    __slots__ = ("_common", "_targets", "plans", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.plans: dict[str, Plan] = {}
        self._common = Plan()
        self._targets: frozenset[Hashable] = frozenset()

    def plan_for(self, cid: str | None, common: Plan) -> Plan:
        """
        Return `common`, or what it becomes for a run that somebody subscribed to.
        """
        if cid is None:
            return common
        plan = self.plans.get(cid)
        if plan is not None:
            return plan
        with lock:
            signals = [state.signals[base] for base in self.topic.cls.__mro__ if base in state.signals]
            extra = [r for s in signals if not s.is_muted for r in s.keyed.get(cid, {}).copy().values()]
            if not extra:
                return common
            plan = self.plans[cid] = self._merged(extra) or compile_plan(
                self.topic, [*itertools.chain.from_iterable(s.everyone() for s in signals), *extra]
            )
            return plan

    def _merged(self, extra: list[Receiver]) -> Plan | None:
        # What compiling all of them gives, at the cost of the run's own alone; None where it has to be done.
        common = self.topic.plan()
        if self._common is not common:
            self._common = common
            self._targets = frozenset(receiver.target for _, _, receiver in common.in_order())
        targets = {receiver.target for receiver in extra}
        if self.topic.reverse or not targets.isdisjoint(self._targets):
            return None
        return common.with_steps([*compile_plan(self.topic, extra).in_order()])


class Closeable(Protocol):
    """
    Something that holds threads or files.
    """

    def close(self) -> None:
        """
        Let them go.
        """


class State:
    """
    Everything that is registered; `isolated()` swaps the whole of it.

    `resources` are what must be closed when the state is given up, by name: the trace store. `live_below`
    counts the live subclasses of each hook, also of one that is not registered here. `version` is another
    object after each change: what was found out about who listens holds for as long as it stands.
    """

    __slots__ = (
        "channels",
        "hooks",
        "live_below",
        "locks",
        "resources",
        "signals",
        "stated",
        "tables",
        "version",
    )

    def __init__(self) -> None:
        self.signals: dict[type, EventSignal] = {}
        self.channels: dict[str, type] = {}
        self.stated: dict[str, type] = {}
        self.hooks: dict[Hashable, HookEntry] = {}
        self.live_below: Counter[Hashable] = Counter()
        self.locks: dict[str, RunLock] = {}
        self.tables: dict[int, Instances] = {}
        self.resources: dict[str, Closeable] = {}
        self.version = object()


state = State()
roots: list[type] = []
"""The event roots; every event class is below one of them."""


def swap(new: State) -> State:
    """
    Make `new` what is registered, and return what was.
    """
    global state
    with lock:
        old, state = state, new
        invalidate_all()
    return old


def signal_of(cls: type) -> EventSignal:
    """
    Return the signal of an event class, made at first need.
    """
    signal = state.signals.get(cls)
    if signal is None:
        with lock:
            signal = state.signals.setdefault(cls, EventSignal(cls))
    return signal


def topic_of(cls: type) -> Topic:
    """
    Return what the bus keeps for an event class.
    """
    topic: Topic = cls.__dict__["_topic"]
    return topic


def family(cls: type) -> Iterator[Topic]:
    """
    Yield the topics of an event class and of all its subclasses, each once.
    """
    seen: set[type] = set()
    waiting = [cls]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting.extend(type.__subclasses__(one))
            topic = one.__dict__.get("_topic")
            if topic is not None:
                yield topic


def invalidate(cls: type) -> None:
    """
    Have the plans of an event class and its subclasses compiled again at their next emit.
    """
    for topic in family(cls):
        topic.namespace[PLAN] = None
    state.version = object()


def invalidate_all() -> None:
    """
    Have every plan compiled again.
    """
    for root in roots:
        invalidate(root)


def rekey(cls: type, cid: str) -> None:
    """
    Forget what was compiled for one run, for an event class and its subclasses.
    """
    for topic in family(cls):
        keyed: Keyed | None = topic.namespace[KEYED]
        if keyed is None:
            topic.namespace[PLAN] = None
        else:
            keyed.plans.pop(cid, None)
    state.version = object()


def built() -> int:
    """
    Return how many events were built.
    """
    return _gone[0] + sum(topic.built for root in roots for topic in family(root))


def compile_plan(topic: Topic, receivers: Iterable[Receiver]) -> Plan:
    """
    Put receivers in order, each function once.
    """
    wanted = sorted(
        (r for r in receivers if r.accepts is None or r.accepts(topic.cls)),
        key=lambda receiver: receiver.place,
    )
    groups: dict[Hashable, list[Receiver]] = {}
    per_hook: dict[type, list[Receiver]] = {}
    for receiver in wanted:
        groups.setdefault(receiver.target, []).append(receiver)
    for receiver in (group[0] for group in groups.values()):
        if receiver.per_event is not None:
            per_hook.setdefault(receiver.per_event[0], []).append(receiver)
    steps: list[Step] = []
    for first, *others in groups.values():
        when = _any_of([first, *others], fails_closed=topic.protected) if others else first.when
        call = first.call
        if first.per_event is not None:
            mates = per_hook[first.per_event[0]]
            if len(mates) > 1:
                ends = first is (mates[0] if topic.reverse else mates[-1])
                call = _shared_instance(first, when, ends=ends)
                when = None if ends else when
        if settings.slow_handler is not None:
            call = timed(call, first.name, settings.slow_handler)
        if topic.protected:
            judging: Any = topic.cls
            call = judging._authored(call, first)
            when = None if when is None else judging._authored(when, first)
        steps.append((when, call, first))
    return Plan(reversed(steps) if topic.reverse else steps)


def _any_of(receivers: list[Receiver], *, fails_closed: bool) -> Callable[[Any], Any] | None:
    distinct: dict[int, Callable[[Any], Any]] = {}
    for receiver in receivers:
        if receiver.when is None:
            return None
        distinct[id(receiver.when)] = receiver.when
    predicates = tuple(distinct.values())
    if fails_closed:
        return lambda event: any(predicate(event) for predicate in predicates)

    def when(event: Any) -> bool:
        # One subscription's broken predicate is told, and does not end another's; unless it is to be raised.
        failure: Exception | None = None
        for predicate in predicates:
            try:
                if predicate(event):
                    if failure is not None:
                        if settings.strict:
                            break
                        event._failed(receivers[0], failure, None)
                    return True
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return False

    return when


def _shared_instance(
    receiver: Receiver, when: Callable[[Any], Any] | None, *, ends: bool
) -> Callable[[Any], Any]:
    # Several handlers of one hook for one event work on one instance. It rides on the event, under a key
    # that is no field, and gets off at the last handler, whatever that one's predicate says.
    cls, method = cast("tuple[type[Hook], Callable[[Any, Any], Any]]", receiver.per_event)
    key = f"{INSTANCE_OF}{id(cls)}"
    # A stateful hook has those of runs itself.
    of_run = receiver.call if cls.stateful else None

    def call(event: Any) -> Any:
        if of_run is not None and event.correlation_id is not None:
            return of_run(event)
        instance = event.__dict__.get(key)
        if instance is None:
            instance = event.__dict__[key] = cls()
        return method(instance, event)

    def last(event: Any) -> Any:
        instance = event.__dict__.pop(key, None)
        if when is None or when(event):
            if of_run is not None and event.correlation_id is not None:
                return of_run(event)
            return method(cls() if instance is None else instance, event)
        return None

    return last if ends else call


def _settings_changed(names: frozenset[str]) -> None:
    if not names.isdisjoint({"slow_handler", "log", "logger", "level"}):
        with lock:
            invalidate_all()


on_change(_settings_changed)
gauge("events", built)
