"""
A whole bus, played at random: what was registered, what its handlers logged, and what must hold of both.

`Play` does to the bus what it is told, keeps the facts of what is registered, and a log of what happened.
Each function in `INVARIANTS` reads facts and log, and yields what breaks one statement of the contract.
`BusMachine` is the hypothesis state machine that draws what is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import random
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from eventbus import (
    Event,
    HandlerFailedEvent,
    Hook,
    ProtectedEvent,
    adrain,
    correlation,
    current_correlation_id,
    drain,
    find,
    hooks,
    on,
    stats,
    writable,
)
from eventbus import _stateful as stateful_runs
from eventbus._errors import AsyncGateError
from eventbus.testing import isolated, strict

EMITTED: contextvars.ContextVar[int] = contextvars.ContextVar("emitted", default=0)
"""The number of the emit around this place: a variable of the emitter's."""

PATIENCE = 10.0
"""Seconds that scheduled handlers may take; a play that needs them all has hung."""

FEW_TURNS = 5
"""How often a loop goes round before what is scheduled may go on."""

MODULE = "machine"
RUNS = ("r1", "r2", "r3")
PRIORITIES = (50, 300, 300, 250)
FLAVORS = ("sync", "async", "returns", "sync", "method", "sync")
FIRST = -(2**31)


class Broken(Exception):
    """What a predicate raises that always does."""


# --- the facts ---


@dataclass(eq=False)
class Function:
    """A function that subscribes: one definition of it."""

    name: str
    generation: int
    flavor: str
    fn: Any

    @property
    def who(self) -> tuple[str, int]:
        return (self.name, self.generation)


@dataclass(eq=False)
class Sub:
    """One subscription of a function."""

    function: Function
    event: type
    priority: int
    order: int
    when: str | None
    cid: str | None
    handle: Any
    reference: Callable[[], Any]

    def hears(self, cls: type, cid: str | None) -> bool:
        return issubclass(cls, self.event) and self.cid in (None, cid) and self.reference() is not None


@dataclass(frozen=True)
class Own:
    """What a class body says of one handler: an `@on`, an override without one, or that it is dropped."""

    kind: str
    events: tuple[type, ...] = ()
    priority: int | None = None
    when: str | None = None
    flavor: str = "sync"


@dataclass(eq=False)
class Entry:
    """
    A name under which a hook class is registered.

    Its twin has the same ancestry, and is no hook: what the class body said is kept there.
    """

    cls: Any
    twin: Any
    order: int
    wanted: bool = False
    period: int = 0


@dataclass(eq=False)
class World:
    """What is registered inside one `isolated()`."""

    subs: list[Sub] = field(default_factory=list)
    hooks: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """Who is to receive an emit if its predicates say yes; with its possible places in the order."""

    who: tuple[str, Any]
    name: str
    places: tuple[tuple[int, int, int], ...]
    whens: tuple[str | None, ...]
    flavor: str
    serial: Any
    life: str = "function"
    period: int = 0
    capacity: int | None = None
    shadow: bool = False

    def is_async(self) -> bool:
        return self.flavor in ("async", "returns")

    def matches(self, flag: int) -> bool | None:
        """Tell whether some predicate says yes; None if that depends on which is asked first."""
        yes = any(when is None or when == ("odd" if flag else "even") for when in self.whens)
        return None if yes and "broken" in self.whens and None not in self.whens else yes


@dataclass(eq=False)
class Emission:
    """One emit, and who was registered for it when it began."""

    n: int
    cls: type
    cid: str | None
    flag: int
    how: str
    actions: Iterator[tuple[str, int]]
    later: Iterator[tuple[str, int]]
    candidates: dict[Any, Candidate]
    thread: int
    loop: Any
    scope_loop: Any
    strict: bool
    world: World
    alone: bool
    outermost: bool
    calm: bool
    event: Any = None
    result: Any = None
    error: BaseException | None = None

    @property
    def is_gate(self) -> bool:
        return issubclass(self.cls, ProtectedEvent)


@dataclass(eq=False)
class Note:
    """
    One line of the log.

    Of a handler: "called", "left", "began" and "finished" (what is awaited of it), "raised", "wrote". Of the
    bus: "failed" (a HandlerFailedEvent), "broken" (a predicate raised). Of an emit: "start", "over". Of a
    run: "ended". Of a hook: "closed", when it is live no more as it was.
    """

    stage: str
    n: int
    who: Any = None
    value: Any = None
    token: Any = None
    event: Any = None
    seen: Any = None
    thread: int = field(default_factory=threading.get_ident)
    cid: str | None = field(default_factory=current_correlation_id)
    emitted: int = field(default_factory=EMITTED.get)
    loop: Any = field(default_factory=lambda: running())


def running() -> Any:
    """Return the running loop, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --- playing ---


class Play:
    """Does things to a bus of its own, and keeps facts and log."""

    def __init__(self) -> None:
        self.log: list[Note] = []
        self.emissions: dict[int, Emission] = {}
        self.problems: list[str] = []
        self.numbers = itertools.count(1)
        self.orders = itertools.count(1)
        self.periods = itertools.count(1)
        self.tokens = itertools.count(1)
        self.functions: dict[int, Function] = {}
        self.twins: dict[Any, Any] = {Hook: type("Twin", (), {})}
        self.worlds: list[World] = []
        self.opened: list[Any] = []
        self.namespace = {"__name__": MODULE, "play": self}
        self.gate_lock = threading.Lock()
        self.is_open = False
        self.waiting: list[tuple[Any, Any]] = []
        self.is_calm = False
        self.is_strict = False
        self.scope_loop: Any = None
        self.meeting: Meeting | None = None
        self.drained: list[BaseException] = []
        self.kept: list[tuple[World, set[int], int, int]] = []
        self.whens = {
            None: None,
            "even": lambda event: event.get("flag") == 0,
            "odd": lambda event: event.get("flag") == 1,
            "broken": self.broken,
        }
        self.told = self.event_class("Told", Event, n=int, flag=int)
        self.asked = self.event_class("Asked", ProtectedEvent, n=int, flag=int, value=int, cancel=Any)
        self.events: dict[str, type] = {
            "Told": self.told,
            "Ended": self.event_class("Ended", self.told, ends_run=True),
            "Asked": self.asked,
            "Answered": self.event_class("Answered", self.asked, reverse=True),
        }
        self.isolate()

    def event_class(self, name: str, base: type, *, ends_run=None, reverse=None, **fields: type) -> Any:
        body: dict[str, Any] = {"__module__": MODULE, "__qualname__": name, "__annotations__": fields}
        if "value" in fields:
            body.update(value=writable(default=0), cancel=writable(default=False, sticky=True))
        if ends_run:
            body["ends_run"] = True
        if reverse:
            body["reverse"] = True
        return type(name, (base,), body)

    @property
    def world(self) -> World:
        return self.worlds[-1]

    def problem(self, name: str, text: str) -> None:
        self.problems.append(f"{name}: {text}")

    def note(self, stage: str, n: int, who: Any = None, **rest: Any) -> Note:
        note = Note(stage, n, who, **rest)
        self.log.append(note)
        return note

    def broken(self, event: Any) -> bool:
        if isinstance(event, HandlerFailedEvent):
            return False
        error = Broken(event.n)
        self.note("broken", event.n, value=error)
        raise error

    def hear(self, failed: HandlerFailedEvent) -> None:
        self.note("failed", failed.event["n"], failed.handler, value=failed.error)

    # Registering.

    def isolate(self) -> None:
        self.drain()
        manager = isolated()
        manager.__enter__()
        self.opened.append(manager)
        self.worlds.append(World())
        HandlerFailedEvent.subscribe(self.hear, priority=FIRST)
        self.look()

    def leave(self) -> None:
        self.drain()
        live = {entry.period for name, entry in self.world.hooks.items() if self.is_live(name)}
        self.kept.append((self.world, live, stateful_runs.kept(), len(self.log)))
        self.opened.pop().__exit__(None, None, None)
        self.worlds.pop()
        if self.worlds:
            self.look()

    def define_event(self, number: int, base: int) -> None:
        """Define a class, or define one again under its name."""
        name = f"E{number}"
        bases = [cls for known, cls in self.events.items() if known < name or not known.startswith("E")]
        self.events[name] = cls = self.event_class(name, bases[base % len(bases)])
        if find(cls.channel) is not cls:
            self.problem("the_latest_definition_is_found", f"{cls.channel} is not its latest class")

    def pick_event(self, pick: int) -> Any:
        classes = list(self.events.values())
        return classes[pick % len(classes)]

    def function(self, number: int, *, again: bool) -> Function:
        known = self.functions.get(number)
        if known is not None and known.fn is not None and not again:
            return known
        name, generation = f"f{number}", 0 if known is None else known.generation + 1
        flavor = FLAVORS[number % len(FLAVORS)]
        call = {"sync": "play.handle", "async": "play.body", "returns": "play.begin"}.get(flavor)
        if flavor == "method":
            fn: Any = Method(self, (name, generation))
        else:
            prefix, wait = ("async ", "await ") if flavor == "async" else ("", "")
            source = f"{prefix}def {name}(event): return {wait}{call}({(name, generation)!r}, event)"
            exec(compile(source, f"<{name}>", "exec"), self.namespace)
            fn = self.namespace.pop(name)
        self.functions[number] = made = Function(name, generation, flavor, fn)
        return made

    def subscribe(
        self,
        number: int,
        cls: type,
        priority: int,
        when: str | None,
        cid: str | None,
        way: str,
        *,
        again: bool,
    ) -> None:
        function = self.function(number, again=again)
        is_method = function.flavor == "method"
        fn = function.fn.call if is_method else function.fn
        subs = self.world.subs
        order = next(self.orders)
        if way == "blinker":
            cls.signal.connect(fn, weak=False)
            if not any(s.function is function and s.event is cls and s.handle is None for s in subs):
                subs.append(Sub(function, cls, 300, order, None, None, None, lambda: fn))
            return
        weak = way == "weak"
        predicate = self.whens[when]
        handle = cls.subscribe(fn, priority=priority, when=predicate, correlation_id=cid, weak=weak)
        if cid is None and not is_method:
            # Defined again: the new function takes the place of the old one.
            for old in [s for s in subs if s.function.name == function.name and s.event is cls]:
                if old.handle is not None and old.cid is None and old.function is not function:
                    subs.remove(old)
                    order = min(order, old.order)
                    self.check_active(old, expected=False)
        kind: Any = weakref.WeakMethod if is_method else weakref.ref
        subs.append(Sub(function, cls, priority, order, when, cid, handle, kind(fn) if weak else lambda: fn))

    def cancel(self, pick: int) -> None:
        subs = self.world.subs
        if not subs:
            return
        sub = subs.pop(pick % len(subs))
        if sub.handle is None:
            fn = sub.reference()
            sub.event.signal.disconnect(fn)
            return
        for _ in range(2):
            sub.handle.cancel()
        self.check_active(sub, expected=False)

    def check_active(self, sub: Sub, *, expected: bool) -> None:
        if sub.handle.active is not expected:
            self.problem("each_subscription_ends_with_its_own_cancel", f"{sub.handle!r}")

    def let_go(self, number: int) -> None:
        if number in self.functions:
            self.functions[number].fn = None

    def define_hook(
        self,
        number: int,
        bases: list[int],
        owns: list[tuple[str, Own]],
        mixin: list[tuple[str, Own]],
        **body: Any,
    ) -> None:
        """Define a hook class, or define it again under its name."""
        name = f"H{number}"
        known = [cls for cls in self.twins if cls is not Hook and int(cls.__name__[1:]) < number]
        above: list[Any] = list(dict.fromkeys(known[pick % len(known)] for pick in bases)) if known else []
        above = [one for one in above if not any(issubclass(two, one) and two is not one for two in above)]
        namespace = {"__module__": MODULE, "__qualname__": name, **body, **self.handlers(owns)}
        extra = [type("Mixin", (), self.handlers(mixin))] if mixin else []
        twins = [type("Mixin", (), {"own": dict(mixin)})] if mixin else []
        try:
            ancestry = (*twins, *(self.twins[cls] for cls in above or [Hook]))
            twin: Any = type(name, ancestry, {"own": dict(owns), "body": body})
        except TypeError:
            # Python itself finds no order of such bases.
            return
        with self.changing(twin):
            cls: Any = type(name, (*extra, *(above or [Hook])), namespace)
            self.twins[cls] = twin
            self.put(cls, wanted=not body["abstract"])

    def handlers(self, owns: list[tuple[str, Own]]) -> dict[str, Any]:
        return {name: None if own.kind == "drop" else self.handler(name, own) for name, own in owns}

    def handler(self, name: str, own: Own) -> Any:
        play = self
        if own.flavor == "returns":

            def fn(self: Any, event: Any) -> Any:
                return play.begin((type(self).__name__, name), event, self)

        elif own.flavor == "bare":

            def fn(self: Any) -> None:
                play.handle((type(self).__name__, name), None, self)

        else:

            def fn(self: Any, event: Any) -> None:
                play.handle((type(self).__name__, name), event, self)

        if own.kind == "on":
            return on(*own.events, priority=own.priority, when=self.whens[own.when])(fn)
        return fn

    def put(self, cls: type[Hook], *, wanted: bool) -> None:
        twin = self.twins[cls]
        entry = self.world.hooks.setdefault(cls.__name__, Entry(cls, twin, next(self.orders)))
        entry.cls, entry.twin, entry.wanted = cls, twin, wanted

    def pick_hook(self, pick: int) -> Any:
        classes = list(self.twins)
        return classes[pick % len(classes)]

    def register(self, pick: int) -> None:
        cls = self.pick_hook(pick)
        twin = self.twins[cls]
        if cls is not Hook and not twin.body["abstract"]:
            with self.changing(twin):
                cls.register()
                self.put(cls, wanted=True)

    def unregister(self, pick: int) -> None:
        cls = self.pick_hook(pick)
        with self.changing(None):
            cls.unregister()
            entry = self.world.hooks.get(cls.__name__)
            if entry is not None and entry.cls is cls:
                entry.wanted = False

    @contextlib.contextmanager
    def changing(self, twin: Any) -> Iterator[None]:
        """Begin a new period for each hook that goes live, or is defined again, inside."""
        entries = self.world.hooks
        before = {name: (entry.cls, entry.period) for name, entry in entries.items() if self.is_live(name)}
        disarms = twin is not None and not twin.body["abstract"] and self.disarms(twin)
        try:
            yield
        except TypeError as error:
            if not disarms:
                self.problem("no_guard_is_switched_off_by_accident", f"{error} without need")
        else:
            if disarms:
                self.problem("no_guard_is_switched_off_by_accident", f"{twin.__name__} may do so")
        for name, entry in entries.items():
            cls, period = before.get(name, (None, 0))
            if cls is not None and not (self.is_live(name) and cls is entry.cls):
                self.note("closed", 0, value=period)
            if self.is_live(name) and cls is not entry.cls:
                entry.period = next(self.periods)
        self.look()

    def is_live(self, name: str) -> bool:
        """Tell whether a hook is live: it is wanted, and has no live subclass."""
        entry = self.world.hooks[name]
        return entry.wanted and not any(self.is_live(other) for other in self.below(name))

    def below(self, name: str) -> list[str]:
        return [other for other, entry in self.world.hooks.items() if name in above(entry.twin)]

    def disarms(self, twin: Any) -> bool:
        """Tell whether a class that went live would retire a live guard that nobody says it replaces."""
        entries = self.world.hooks
        guards = [
            name
            for name in above(twin)
            if name in entries and self.is_live(name) and has_gates(handlers_of(entries[name].twin))
        ]
        below = [
            name
            for name in self.below(twin.__name__)
            if self.is_live(name) and not entries[name].twin.body["replaces"]
        ]
        return bool((guards and not twin.body["replaces"]) or (below and has_gates(handlers_of(twin))))

    def look(self) -> None:
        """Compare what the views of the bus tell with the facts."""
        entries = self.world.hooks
        place = sorted(entries, key=lambda name: (entries[name].cls.priority, entries[name].order))
        expected = [(name, self.state(name)) for name in place]
        told = [(info.name, info.state) for info in hooks()]
        if expected != told:
            self.problem("hooks_shows_what_is_registered", f"{told}, not {expected}")

    def state(self, name: str) -> str:
        entry = self.world.hooks[name]
        if self.is_live(name):
            return "live"
        if entry.twin.body["abstract"]:
            return "abstract"
        return "retired" if entry.wanted else "unregistered"

    def candidates(self, cls: type, cid: str | None) -> dict[Any, Candidate]:
        """Return who is registered for an emit: the functions, and the handlers of live hooks."""
        found: dict[Any, Candidate] = {}
        groups: dict[Any, list[Sub]] = defaultdict(list)
        for sub in self.world.subs:
            if sub.hears(cls, cid):
                groups[sub.function.who].append(sub)
        for who, subs in groups.items():
            places = tuple(sorted((sub.priority, sub.order, 0) for sub in subs))
            whens = tuple(sub.when for sub in subs)
            function = subs[0].function
            name = "Method.call" if function.flavor == "method" else function.name
            found[who] = Candidate(who, name, places, whens, function.flavor, who)
        for hook, entry in self.world.hooks.items():
            if not self.is_live(hook):
                continue
            live: Any = entry.cls
            life = "stateful" if live.stateful else "shared" if live.shared else "fresh"
            for index, (handler, own) in enumerate(handlers_of(entry.twin).items()):
                if not issubclass(cls, own.events):
                    continue
                written = next(
                    vars(c)["own"][handler] for c in entry.twin.__mro__ if handler in vars(c).get("own", ())
                )
                priority = live.priority if own.priority is None else own.priority
                who = (hook, handler)
                found[who] = Candidate(
                    who,
                    f"{hook}.{handler}",
                    ((priority, entry.order, index),),
                    (own.when,),
                    written.flavor,
                    (hook, entry.period) if life == "stateful" else who,
                    life=life,
                    period=entry.period,
                    capacity=live.stateful_capacity,
                    shadow=live.shadow,
                )
        return found

    # Emitting.

    def prepare(
        self, cls: Any, how: str, explicit: str | None, flag: int, actions: Any, parent: Emission | None
    ) -> Emission:
        cid = current_correlation_id() if explicit is None else explicit
        later = iter(()) if parent is None else parent.later
        if parent is None:
            actions, later = iter(actions[::2]), iter(actions[1::2])
        alone = how == "thread" or (parent is not None and parent.alone)
        emission = Emission(
            next(self.numbers),
            cls,
            cid,
            flag,
            how,
            actions,
            later,
            self.candidates(cls, cid),
            threading.get_ident(),
            running(),
            None if alone else self.scope_loop,
            self.is_strict,
            self.world,
            alone=alone,
            outermost=parent is None,
            calm=how == "threads" or (parent is not None and parent.calm),
        )
        listens = any(sub.hears(cls, sub.cid) for sub in self.world.subs)
        if cls.has_receivers() is not (listens or any(c.period for c in emission.candidates.values())):
            self.problem("has_receivers_tells_whether_anybody_listens", f"of {cls.__name__} it does not")
        self.emissions[emission.n] = emission
        self.note("start", emission.n)
        return emission

    @contextlib.contextmanager
    def emitting(self, emission: Emission) -> Iterator[None]:
        token = EMITTED.set(emission.n)
        try:
            yield
        except BaseException as error:
            emission.error = error
        finally:
            with contextlib.suppress(ValueError):
                EMITTED.reset(token)
            if emission.cls.ends_run and emission.cid is not None:
                self.note("ended", emission.n, value=emission.cid)
            self.note("over", emission.n)

    def emit(
        self, cls: Any, *, how="emit", explicit=None, flag=0, actions=(), parent: Emission | None = None
    ) -> Emission:
        """Emit once, on this thread."""
        emission = self.prepare(
            cls, how, explicit, flag, actions if parent is None else parent.actions, parent
        )
        given = {} if explicit is None else {"correlation_id": explicit}
        with self.emitting(emission):
            if how == "publish":
                emission.result = cls(n=emission.n, flag=flag, **given).publish()
            else:
                emission.result = cls.emit(n=emission.n, flag=flag, **given)
        return emission

    async def aemit(
        self, cls: Any, *, explicit=None, flag=0, actions=(), parent: Emission | None = None
    ) -> Emission:
        """Emit once and await the handlers, on this loop."""
        emission = self.prepare(
            cls, "aemit", explicit, flag, actions if parent is None else parent.later, parent
        )
        given = {} if explicit is None else {"correlation_id": explicit}
        with self.emitting(emission):
            if flag:
                emission.result = await cls(n=emission.n, flag=flag, **given).apublish()
            else:
                emission.result = await cls.aemit(n=emission.n, flag=flag, **given)
        return emission

    def top(
        self, cls: Any, way: str, scope: str | None, explicit: str | None, flag: int, actions: Any
    ) -> None:
        """Emit as nobody's handler, in one of many ways."""
        with correlation(scope) if scope else contextlib.nullcontext():
            if way == "strict":
                self.drain()
                self.is_strict = True
                with strict():
                    self.emit(cls, explicit=explicit, flag=flag, actions=actions)
                    self.drain()
                self.is_strict = False
            elif way == "thread":
                in_thread(lambda: self.emit(cls, how="thread", flag=flag, actions=actions))
            elif way == "threads":
                self.threads(cls, explicit or scope or "r1", flag)
            elif way == "loop":
                self.on_loop(lambda: self.on_this_loop(cls, explicit, flag, actions))
            elif way == "aemit":
                self.on_loop(lambda: self.aemit(cls, explicit=explicit, flag=flag, actions=actions))
            elif way == "scope":
                self.on_loop(lambda: self.from_a_thread_of_the_scope(cls, flag, actions), opened=False)
            else:
                self.emit(cls, how=way, explicit=explicit, flag=flag, actions=actions)

    async def on_this_loop(self, cls: Any, explicit: str | None, flag: int, actions: Any) -> None:
        self.emit(cls, explicit=explicit, flag=flag, actions=actions)
        self.emit(cls, explicit=explicit, flag=flag)

    async def from_a_thread_of_the_scope(self, cls: Any, flag: int, actions: Any) -> None:
        # Gates would wait for the background loop.
        cls = self.told if issubclass(cls, ProtectedEvent) else cls
        with correlation("r2"):
            self.scope_loop = running()
            await asyncio.to_thread(lambda: self.emit(cls, flag=flag, actions=actions))
            self.scope_loop = None

    def threads(self, cls: Any, cid: str, flag: int) -> None:
        """Emit from two threads at one time for one run."""
        # Which of two ends comes first nobody knows.
        cls = self.told if cls.ends_run else cls
        self.meeting = meeting = Meeting()
        wait = stateful_runs.Instances._wait

        def waits(*args: Any) -> None:
            meeting.second.set()
            wait(*args)

        def emit() -> None:
            self.emit(cls, how="threads", explicit=cid, flag=flag)
            meeting.second.set()

        threads = [threading.Thread(target=emit, daemon=True) for _ in range(2)]
        with mock.patch.object(stateful_runs.Instances, "_wait", waits):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        self.meeting = None

    def on_loop(self, main: Callable[[], Any], *, opened: bool = True) -> None:
        """Do something on a loop of its own, and wait there for what it schedules."""
        # What waits elsewhere goes on now, and on another thread: it must leave the facts alone.
        self.is_calm = stats()["pending"] > 0

        async def run() -> None:
            task = asyncio.ensure_future(main())
            if opened:
                # Whoever must wait for what is scheduled elsewhere would have begun by then.
                for _ in range(FEW_TURNS):
                    await asyncio.sleep(0)
            else:
                await task
            with self.open():
                await task
                self.is_left(await adrain(PATIENCE))

        asyncio.run(run())
        self.is_calm = False

    def drain(self) -> None:
        """Let what is scheduled go on, and wait for it."""
        with self.open():
            try:
                self.is_left(drain(PATIENCE))
            except Exception as error:
                self.drained.append(error)

    def is_left(self, left: int) -> None:
        if left:
            self.problem("no_async_handler_is_lost", f"{left} left after a drain")

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let scheduled handlers go on."""
        with self.gate_lock:
            self.is_open, waiting, self.waiting = True, self.waiting, []
        for loop, future in waiting:
            loop.call_soon_threadsafe(future.set_result, None)
        try:
            yield
        finally:
            self.is_open = False

    async def turnstile(self) -> None:
        loop = asyncio.get_running_loop()
        with self.gate_lock:
            if self.is_open:
                return
            future = loop.create_future()
            self.waiting.append((loop, future))
        await future

    # Handling.

    def call(self, stage: str, who: Any, event: Any, instance: Any) -> tuple[Emission, Note]:
        emission = self.emissions[EMITTED.get() if event is None else event.n]
        token = None
        if instance is not None:
            token = instance.__dict__.setdefault("token", next(self.tokens))
        if event is not None and emission.event is None:
            emission.event = event
        seen = (event.value, event.cancel) if emission.is_gate and event is not None else None
        return emission, self.note(stage, emission.n, who, token=token, event=event, seen=seen)

    def handle(self, who: Any, event: Any, instance: Any = None) -> None:
        """Be a plain handler."""
        if isinstance(event, HandlerFailedEvent):
            return
        emission, _ = self.call("called", who, event, instance)
        with self.inside(emission, who):
            if self.meeting is not None and emission.how == "threads":
                candidate = emission.candidates.get(who)
                if candidate is not None and candidate.life == "stateful":
                    self.meeting.attend()
            verb, pick = next(emission.actions, ("pass", 0))
            if emission.calm and verb not in ("raise", "edit", "refuse"):
                return
            self.act(verb, pick, emission, event, who)

    def begin(self, who: Any, event: Any, instance: Any = None) -> Any:
        """Be a plain function that returns an awaitable."""
        if isinstance(event, HandlerFailedEvent):
            return None
        emission, _ = self.call("called", who, event, instance)
        self.note("left", emission.n, who)
        return self.body(who, event, instance)

    async def body(self, who: Any, event: Any, instance: Any = None) -> None:
        """Be an async handler."""
        if isinstance(event, HandlerFailedEvent):
            return
        emission, _ = self.call("began", who, event, instance)
        with self.inside(emission, who, "finished"):
            if not emission.is_gate:
                await self.turnstile()
            await asyncio.sleep(0)
            verb, pick = next(emission.later, ("pass", 0))
            if verb == "emit" and not emission.is_gate and not self.is_calm and not emission.calm:
                if pick % 2:
                    await self.nested(await self.aemit(**self.inner(pick, emission), parent=emission))
                else:
                    await self.nested(self.emit(**self.inner(pick, emission), parent=emission))
            elif verb in ("raise", "edit", "refuse", "unlatch", "hush"):
                self.act(verb, pick, emission, event, who)

    async def nested(self, emission: Emission) -> None:
        # An interrupt would end a loop.
        if isinstance(emission.error, Exception):
            raise emission.error

    @contextlib.contextmanager
    def inside(self, emission: Emission, who: Any, end: str = "left") -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            self.note("raised", emission.n, who, value=error)
            raise
        self.note(end, emission.n, who)

    def inner(self, pick: int, emission: Emission) -> dict[str, Any]:
        explicit = None if emission.alone else (None, None, "r1", "r2")[pick // 7 % 4]
        return {"cls": self.pick_event(pick), "explicit": explicit, "flag": pick // 3 % 2}

    def act(self, verb: str, pick: int, emission: Emission, event: Any, who: Any) -> None:
        """Do what a handler of this play is told to do."""
        if verb == "raise":
            raise ValueError(pick)
        if verb == "interrupt":
            raise KeyboardInterrupt(pick)
        if verb == "emit":
            inner = self.emit(**self.inner(pick, emission), parent=emission)
            if inner.error is not None:
                raise inner.error
        elif verb == "thread" and not emission.is_gate:
            in_thread(lambda: self.emit(self.pick_event(pick), how="thread", flag=pick % 2, parent=emission))
        elif verb == "subscribe":
            self.subscribe(
                pick % 6, self.pick_event(pick), PRIORITIES[pick % 4], None, None, "strong", again=False
            )
        elif verb == "cancel":
            self.cancel(pick)
        elif verb == "unregister":
            self.unregister(pick)
        elif verb == "register":
            self.register(pick)
        elif emission.is_gate and event is not None:
            self.write(verb, pick, emission, event, who)

    def write(self, verb: str, pick: int, emission: Emission, event: Any, who: Any) -> None:
        wanted = {
            "edit": ("value", pick),
            "refuse": ("cancel", f"no {pick}"),
            "unlatch": ("cancel", False),
            "hush": ("cancel", ""),
        }.get(verb)
        if wanted is None:
            return
        name, value = wanted
        old = getattr(event, name)
        setattr(event, name, value)
        self.note("wrote", emission.n, who, value=(name, old, value))

    def close(self) -> None:
        """Leave everything as it was before."""
        while self.opened:
            self.leave()


def above(twin: Any) -> list[str]:
    """Return the names of the hooks that a hook specialises."""
    return [base.__name__ for base in twin.__mro__[1:] if "body" in vars(base)]


def handlers_of(twin: Any) -> dict[str, Own]:
    """Return the handlers of a class: bases first, an override in its place, what is dropped left out."""
    marked: dict[str, Own] = {}
    for base in reversed(twin.__mro__):
        for name, own in vars(base).get("own", {}).items():
            if own.kind == "on":
                marked[name] = own
            elif own.kind == "drop":
                marked.pop(name, None)
    return marked


def has_gates(handlers: dict[str, Own]) -> bool:
    return any(issubclass(cls, ProtectedEvent) for own in handlers.values() for cls in own.events)


class Method:
    """An object whose bound method subscribes."""

    def __init__(self, play: Play, who: Any) -> None:
        self.play = play
        self.who = who

    def call(self, event: Any) -> None:
        self.play.handle(self.who, event)


class Meeting:
    """Where a handler waits for the other thread, until that waits for it, or comes in where it must not."""

    def __init__(self) -> None:
        self.first = threading.Lock()
        self.second = threading.Event()

    def attend(self) -> None:
        if self.first.acquire(blocking=False):
            self.second.wait(PATIENCE)
        else:
            self.second.set()


def in_thread(work: Callable[[], Any]) -> None:
    """Do something on a thread of its own, with a context of its own, and wait for it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)


# --- what must hold ---


class Record:
    """A play that is over, as its invariants read it."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.log = [(pos, note) for pos, note in enumerate(play.log) if note.stage != "closed"]
        self.closed = {note.value: pos for pos, note in enumerate(play.log) if note.stage == "closed"}
        self.notes: dict[int, list[tuple[int, Note]]] = defaultdict(list)
        for pos, note in self.log:
            self.notes[note.n].append((pos, note))
        self.emissions = list(play.emissions.values())

    def of(self, emission: Emission, *stages: str) -> list[tuple[int, Note]]:
        return [(pos, note) for pos, note in self.notes[emission.n] if note.stage in stages]

    def pos(self, emission: Emission, stage: str) -> int:
        return self.of(emission, stage)[0][0]

    def reached(self, emission: Emission) -> list[tuple[int, Note]]:
        """Return where each handler was reached: an async function where it began, others where called."""
        found = self.of(emission, "called", "began")
        return [(pos, note) for pos, note in found if (note.stage == "began") == is_begun(emission, note)]

    def errors(self, emission: Emission) -> list[tuple[int, BaseException, bool]]:
        """Return what handlers and predicates raised while the emit waited; and whether it is decisive."""
        if emission.is_gate:
            shadows = {candidate.name for candidate in emission.candidates.values() if candidate.shadow}
            found = [(pos, note.value, note.who not in shadows) for pos, note in self.of(emission, "failed")]
            return found + [
                (pos, note.value, True)
                for pos, note in self.of(emission, "raised")
                if not isinstance(note.value, Exception)
            ]
        return [
            (pos, note.value, True)
            for pos, note in self.of(emission, "raised", "broken")
            if note.stage == "broken" or emission.how == "aemit" or not is_async(emission, note)
        ]

    def interrupt(self, emission: Emission) -> tuple[int, BaseException] | None:
        """Return the first thing raised that is no Exception, with its place."""
        return next(((p, e) for p, e, _ in self.errors(emission) if not isinstance(e, Exception)), None)

    def refusal(self, emission: Emission) -> tuple[int, BaseException] | None:
        """Return what a before-gate's handler raised first, shadows apart."""
        if not emission.is_gate or emission.cls.reverse:
            return None
        return next(((pos, error) for pos, error, decides in self.errors(emission) if decides), None)

    def is_cut(self, emission: Emission) -> bool:
        return self.interrupt(emission) is not None or self.refusal(emission) is not None

    def is_scheduled(self, emission: Emission) -> bool:
        return not emission.is_gate and emission.how != "aemit"


def is_async(emission: Emission, note: Note) -> bool:
    candidate = emission.candidates.get(note.who)
    return candidate is not None and candidate.is_async()


def is_begun(emission: Emission, note: Note) -> bool:
    candidate = emission.candidates.get(note.who)
    return candidate is not None and candidate.flavor == "async"


INVARIANTS: dict[str, Callable[[Record], Iterator[str]]] = {}

VIEWS = {
    "has_receivers_tells_whether_anybody_listens": "§1: lets an emitter skip preparing an expensive payload",
    "the_latest_definition_is_found": "§1: a name looked up finds the latest",
    "each_subscription_ends_with_its_own_cancel": "§2: each subscription ends with its own `cancel`",
    "hooks_shows_what_is_registered": "§3: a view of what is registered, in delivery order",
    "no_guard_is_switched_off_by_accident": "§3: retiring a hook with gates takes `replaces = True`",
}
"""What is checked while playing, when the bus is looked at."""


def invariant(check: Callable[[Record], Iterator[str]]) -> Callable[[Record], Iterator[str]]:
    INVARIANTS[check.__name__] = check
    return check


@invariant
def nobody_is_reached_who_does_not_listen(record: Record) -> Iterator[str]:
    """§2: `when=` is a predicate; `correlation_id=` receives one run only; §3: a retired class is silent."""
    for emission in record.emissions:
        for _, note in record.of(emission, "called", "began"):
            candidate = emission.candidates.get(note.who)
            if candidate is None or candidate.matches(emission.flag) is False:
                yield f"{note.who} was reached by emit {emission.n} of {emission.cls.__name__}"


@invariant
def nobody_is_reached_twice(record: Record) -> Iterator[str]:
    """§2: an event reaches one function at most once, whichever of its subscriptions match."""
    for emission in record.emissions:
        counts = Counter((note.stage, note.who) for _, note in record.of(emission, "called", "began"))
        for (stage, who), count in counts.items():
            if count > 1:
                yield f"{who} was {stage} {count} times by emit {emission.n}"


@invariant
def nobody_is_left_out(record: Record) -> Iterator[str]:
    """§4: dispatch works from a snapshot; the others run, whatever one handler raises."""
    for emission in record.emissions:
        if record.is_cut(emission):
            continue
        reached = {note.who for _, note in record.reached(emission)}
        refuses = emission.is_gate and emission.loop is not None and emission.how != "aemit"
        for who, candidate in emission.candidates.items():
            later = candidate.flavor == "async" and (refuses or record.is_scheduled(emission))
            if candidate.matches(emission.flag) and who not in reached and not later:
                yield f"{who} was not reached by emit {emission.n} of {emission.cls.__name__}"


@invariant
def handlers_run_in_order(record: Record) -> Iterator[str]:
    """§4: by priority (lower first), then in order of registration; §6: after-events the other way."""
    for emission in record.emissions:
        awaits = not record.is_scheduled(emission)
        sequence = [note.who for _, note in record.reached(emission) if awaits or note.stage == "called"]
        if getattr(emission.cls, "reverse", False):
            sequence.reverse()
        # Of several places of one function, any will do that keeps the order.
        last: tuple[int, ...] = (FIRST,)
        for who in sequence:
            candidate = emission.candidates.get(who)
            places = candidate.places if candidate is not None else ()
            following = [place for place in places if place >= last]
            if places and not following:
                yield f"emit {emission.n} of {emission.cls.__name__} reached {sequence}"
                break
            last = following[0] if following else last


@invariant
def handlers_run_on_the_emitting_thread(record: Record) -> Iterator[str]:
    """§4: handlers run on the emitting thread, before `emit` returns."""
    for emission in record.emissions:
        over = record.pos(emission, "over")
        for pos, note in record.of(emission, "called"):
            if note.thread != emission.thread or pos > over:
                yield f"{note.who} was called on another thread, or after emit {emission.n}"


@invariant
def handlers_see_the_emitters_context(record: Record) -> Iterator[str]:
    """§4: they see the emitter's context variables; §5: an explicit id is what the handlers' emits carry."""
    for emission in record.emissions:
        for _, note in record.of(emission, "called", "began"):
            if note.emitted != emission.n:
                yield f"{note.who} saw the context of emit {note.emitted} instead of {emission.n}"
            if note.cid != emission.cid:
                yield f"{note.who} ran in run {note.cid} for emit {emission.n} of run {emission.cid}"


@invariant
def all_receive_the_event_that_fired(record: Record) -> Iterator[str]:
    """§3: the handler receives the specific event that fired; §5: with the id of its run."""
    for emission in record.emissions:
        for _, note in record.of(emission, "called", "began"):
            event = note.event
            if event is not None and (event is not emission.event or type(event) is not emission.cls):
                yield f"{note.who} got {event!r} from emit {emission.n}"
            if event is not None and event.correlation_id != emission.cid:
                yield f"{note.who} got an event of run {event.correlation_id}, not {emission.cid}"


@invariant
def the_emitter_sees_no_failure(record: Record) -> Iterator[str]:
    """§4: observers fail open, the emitter never sees it; `emit` returns None."""
    for emission in record.emissions:
        if emission.is_gate or record.interrupt(emission) is not None or emission.strict:
            continue
        if emission.error is not None or emission.result is not None:
            yield f"emit {emission.n} gave {emission.result!r} and raised {emission.error!r}"


@invariant
def interrupts_propagate_at_once(record: Record) -> Iterator[str]:
    """§4: BaseException always propagates."""
    for emission in record.emissions:
        found = record.interrupt(emission)
        if found is None:
            continue
        pos, error = found
        if emission.error is not error:
            yield f"emit {emission.n} raised {emission.error!r} instead of {error!r}"
        if any(later > pos for later, _ in record.of(emission, "called")):
            yield f"emit {emission.n} went on after {error!r}"


@invariant
def each_failure_is_told_once(record: Record) -> Iterator[str]:
    """§4: the report is a HandlerFailedEvent, with hook, handler, event and error, every time."""
    for emission in record.emissions:
        told = Counter(id(note.value) for _, note in record.of(emission, "failed"))
        errors = {id(note.value): note.value for _, note in record.of(emission, "failed", "raised", "broken")}
        names = {candidate.name for candidate in emission.candidates.values()}
        raised = Counter(
            id(note.value)
            for _, note in record.of(emission, "raised", "broken")
            if isinstance(note.value, Exception) and (emission.is_gate or not emission.strict)
        )
        for key in raised | told:
            extra = emission.is_gate and isinstance(errors[key], AsyncGateError) and not raised[key]
            if told[key] != raised[key] and not extra:
                yield f"{errors[key]!r} was told {told[key]} times for emit {emission.n}"
        for _, note in record.of(emission, "failed"):
            if note.who not in names:
                yield f"{note.value!r} was told of {note.who}, which emit {emission.n} had nothing to do with"


@invariant
def strict_raises_what_would_be_reported(record: Record) -> Iterator[str]:
    """§4: strict turns reports into raised errors after all handlers ran: the single error, or a group."""
    drained = {id(error) for group in record.play.drained for error in members(group)}
    for emission in record.emissions:
        if not emission.strict or emission.is_gate or record.interrupt(emission) is not None:
            continue
        errors = [error for _, error, _ in record.errors(emission)]
        if not is_raised(errors, emission.error):
            yield f"emit {emission.n} raised {emission.error!r} instead of {errors}"
        for _, note in record.of(emission, "raised"):
            if not any(note.value is error for error in errors) and id(note.value) not in drained:
                yield f"drain did not raise {note.value!r} of emit {emission.n}"


def members(error: BaseException | None) -> list[BaseException]:
    """Return an error, and those of the group that it may be."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [*inner] if error is None else [error, *inner]


def is_raised(errors: list[BaseException], error: BaseException | None) -> bool:
    """Tell whether `error` is what becomes of the errors: nothing, the single one, or a group."""
    if len(errors) < 2:
        return error is (errors[0] if errors else None)
    return isinstance(error, ExceptionGroup) and [*map(id, errors)] == [*map(id, error.exceptions)]


@invariant
def nothing_is_judged_after_a_before_gate_raised(record: Record) -> Iterator[str]:
    """§6: the first exception, of a handler or its `when=`, stops the rest and propagates unchanged."""
    for emission in record.emissions:
        found = record.refusal(emission)
        if found is None:
            continue
        pos, error = found
        if any(later > pos for later, _ in record.of(emission, "called", "began")):
            yield f"emit {emission.n} of {emission.cls.__name__} went on after {error!r}"
        if emission.error is not error:
            yield f"emit {emission.n} raised {emission.error!r} instead of {error!r}"


@invariant
def after_gates_all_run_then_raise(record: Record) -> Iterator[str]:
    """§6: of after-events all run, then the single error, or an ExceptionGroup, is raised."""
    for emission in record.emissions:
        if emission.is_gate and emission.cls.reverse and record.interrupt(emission) is None:
            errors = [error for _, error, decides in record.errors(emission) if decides]
            if not is_raised(errors, emission.error):
                yield f"emit {emission.n} raised {emission.error!r} instead of {errors}"


@invariant
def a_gate_returns_its_event(record: Record) -> Iterator[str]:
    """§6: `emit` and `aemit` return the event."""
    for emission in record.emissions:
        if emission.is_gate and emission.error is None:
            result = emission.result
            if type(result) is not emission.cls or (emission.event or result) is not result:
                yield f"emit {emission.n} returned {result!r}"


def writes(record: Record, emission: Emission) -> Iterator[tuple[int, str, str, Any, bool]]:
    """Yield place, author, field, value and whether it applies, for all that was written to a gate."""
    latched = False
    for pos, note in record.of(emission, "wrote", "failed"):
        if note.stage == "failed":
            shadow = any(c.shadow for c in emission.candidates.values() if c.name == note.who)
            yield pos, note.who, "raised", note.value, not shadow
            continue
        author = emission.candidates.get(note.who)
        if author is None:
            continue
        name, _, value = note.value
        applied = not author.shadow and not (name == "cancel" and latched)
        latched = latched or (applied and name == "cancel" and bool(value))
        yield pos, author.name, name, value, applied


@invariant
def edits_tell_who_wrote_what(record: Record) -> Iterator[str]:
    """§6: `event.edits` lists who wrote what; what shadows write, or that they raise, is not applied."""
    for emission in record.emissions:
        event = emission.event if emission.result is None else emission.result
        if emission.is_gate and event is not None:
            told = [(edit.handler, edit.field, edit.new, edit.applied) for edit in event.edits]
            expected = [rest for _, *rest in writes(record, emission)]
            if [list(edit) for edit in told] != expected:
                yield f"emit {emission.n} tells {told} instead of {expected}"


@invariant
def each_gate_sees_what_earlier_ones_wrote(record: Record) -> Iterator[str]:
    """§6: each handler sees what earlier ones wrote; a shadow's writing is not applied."""
    for emission in record.emissions:
        if not emission.is_gate:
            continue
        written = [(pos, name, value) for pos, _, name, value, applied in writes(record, emission) if applied]
        for pos, note in record.of(emission, "called", "began"):
            before = {"value": 0, "cancel": False, **{name: value for at, name, value in written if at < pos}}
            if note.seen is not None and note.seen != (before["value"], before["cancel"]):
                yield f"{note.who} saw {note.seen} instead of {before}"


@invariant
def a_refusal_stands(record: Record) -> Iterator[str]:
    """§6: a sticky field latches at its first truthy value; the first reason stands."""
    for emission in record.emissions:
        event = emission.event if emission.result is None else emission.result
        if emission.is_gate and event is not None:
            reasons = [
                value
                for _, _, name, value, applied in writes(record, emission)
                if applied and name == "cancel" and value
            ]
            if event.cancel != (reasons[0] if reasons else False):
                yield f"emit {emission.n} ended with cancel={event.cancel!r}, after {reasons}"


@invariant
def no_async_handler_is_lost(record: Record) -> Iterator[str]:
    """§4: plain `emit` schedules the async handlers; they are never lost to garbage collection."""
    for emission in record.emissions:
        if not record.is_scheduled(emission) or record.is_cut(emission):
            continue
        for who, candidate in emission.candidates.items():
            if candidate.is_async() and candidate.matches(emission.flag):
                stages = [
                    n.stage for _, n in record.of(emission, "began", "finished", "raised") if n.who == who
                ]
                if stages not in (["began", "finished"], ["began", "raised"]):
                    yield f"{who} has {stages} of emit {emission.n}"


@invariant
def scheduled_handlers_run_on_the_right_loop(record: Record) -> Iterator[str]:
    """§4: on the running loop; else on that of the enclosing scope; else on one background loop."""
    background: set[int] = set()
    others = {id(loop) for e in record.emissions for loop in (e.loop, e.scope_loop) if loop is not None}
    for emission in record.emissions:
        if record.is_scheduled(emission):
            expected = emission.scope_loop if emission.loop is None else emission.loop
            for _, note in record.of(emission, "began"):
                if expected is None:
                    background.add(id(note.loop))
                elif note.loop is not expected:
                    yield f"{note.who} of emit {emission.n} ran on another loop"
    # What is emitted on the background loop itself runs there as well.
    here = {
        id(n.loop)
        for e in record.emissions
        if e.loop is None and e.scope_loop is None
        for _, n in record.of(e, "began")
    }
    if len(background) > 1 or (background & others) - here:
        yield "there is more than one background loop"


@invariant
def scheduled_handlers_of_a_run_follow_one_another(record: Record) -> Iterator[str]:
    """§4: for one handler (or stateful instance) and run one after another, in the order of events."""
    chains: dict[Any, list[tuple[int, int, Emission]]] = defaultdict(list)
    for emission in record.emissions:
        # An emit that is awaited comes after what is scheduled already, unless a handler awaits it.
        if emission.is_gate or emission.cid is None or (emission.how == "aemit" and not emission.outermost):
            continue
        for pos, note in record.of(emission, "began"):
            candidate = emission.candidates.get(note.who)
            ends = [
                at for at, n in record.of(emission, "finished", "raised") if n.who == note.who and at > pos
            ]
            if candidate is not None and candidate.is_async() and ends:
                chains[candidate.serial, emission.cid].append((pos, ends[0], emission))
    for (serial, cid), deliveries in chains.items():
        for one, two in itertools.permutations(deliveries, 2):
            first, second = one[2], two[2]
            both = record.is_scheduled(first) and record.is_scheduled(second)
            if both and one[0] < two[0] < one[1]:
                yield f"two deliveries to {serial} of run {cid} overlap"
            if (
                record.is_scheduled(first)
                and record.pos(first, "over") < record.pos(second, "start")
                and one[1] > two[0]
            ):
                yield f"{serial} of run {cid} began with emit {second.n} before emit {first.n} was done"


@invariant
def aemit_awaits_each_handler(record: Record) -> Iterator[str]:
    """§4: `aemit` runs all handlers in order and awaits each; §6: a sync `emit` waits for async gates."""
    for emission in record.emissions:
        if record.is_scheduled(emission):
            continue
        over, last = record.pos(emission, "over"), -1
        for pos, note in record.reached(emission):
            mine = [at for at, n in record.of(emission, "left", "finished", "raised") if n.who == note.who]
            if pos < last or (mine and max(mine) > over):
                yield f"emit {emission.n} did not wait for a handler before {note.who}"
            last = max([last, *mine])


def instances(record: Record) -> Iterator[tuple[int, Note, Emission, Candidate]]:
    for pos, note in record.log:
        if note.stage in ("called", "began") and note.token is not None:
            emission = record.play.emissions[note.n]
            candidate = emission.candidates.get(note.who)
            if candidate is not None and (note.stage == "began") == (candidate.flavor == "async"):
                yield pos, note, emission, candidate


def is_of_run(emission: Emission, candidate: Candidate) -> bool:
    return candidate.life == "stateful" and emission.cid is not None


@invariant
def one_instance_per_event(record: Record) -> Iterator[str]:
    """§3: how long an instance lives: by default one per event; without a cid nothing is kept."""
    tokens: dict[Any, set[int]] = defaultdict(set)
    owners: dict[Any, set[int]] = defaultdict(set)
    for _, note, emission, candidate in instances(record):
        if candidate.life == "fresh" or (candidate.life == "stateful" and emission.cid is None):
            tokens[candidate.period, emission.n].add(note.token)
        owners[note.token].add(emission.n)
    for (period, n), found in tokens.items():
        if len(found) > 1:
            yield f"emit {n} met {len(found)} instances of one hook"
        if any(len(owners[token]) > 1 for token in found):
            yield f"the instance of emit {n}, period {period}, met another event"


@invariant
def one_instance_per_process(record: Record) -> Iterator[str]:
    """§3: `shared = True`: one per process."""
    tokens: dict[int, set[int]] = defaultdict(set)
    for _, note, _, candidate in instances(record):
        if candidate.life == "shared":
            tokens[candidate.period].add(note.token)
    if any(len(found) > 1 for found in tokens.values()):
        yield f"a shared hook has several instances: {dict(tokens)}"


@invariant
def one_instance_per_run(record: Record) -> Iterator[str]:
    """§3: `stateful = True`: one per (hook, cid), evicted when the run ends, or least recently used first."""
    current: dict[tuple[int, int, str], int] = {}
    used: dict[int, list[tuple[str | None, str]]] = defaultdict(list)
    gone: set[int] = set()
    limbo: set[tuple[int, str]] = set()
    inside: Counter[tuple[int, str]] = Counter()
    for pos, note in record.log:
        emission = record.play.emissions[note.n]
        candidate = emission.candidates.get(note.who)
        world = id(emission.world)
        if note.stage == "ended":
            run = (world, note.value)
            for key in [key for key in current if (key[0], key[2]) == run]:
                gone.add(current.pop(key))
            for uses in used.values():
                uses.append((None, note.value))
            if inside[run]:
                # A handler that is still inside finishes with what it has.
                limbo.add(run)
        elif candidate is None or not is_of_run(emission, candidate):
            continue
        elif note.stage == "called":
            cid = emission.cid or ""
            inside[world, cid] += 1
            key = (world, candidate.period, cid)
            if record.closed.get(candidate.period, pos) < pos:
                # Of a hook that is gone an event under way still makes instances.
                continue
            if (world, cid) in limbo:
                gone.add(note.token)
                continue
            if note.token in gone:
                yield f"{note.who} met an instance of a run that had ended before emit {emission.n}"
            yield from _kept(current.get(key), note, used[candidate.period], cid, candidate.capacity)
            current[key] = note.token
            used[candidate.period].append((cid, cid))
        elif note.stage in ("left", "raised"):
            if note.stage == "raised" and candidate.is_async():
                continue
            inside[world, emission.cid or ""] -= 1
            if not inside[world, emission.cid or ""]:
                limbo.discard((world, emission.cid or ""))


def _kept(
    before: int | None, note: Note, uses: list[tuple[str | None, str]], cid: str, capacity: int | None
) -> Iterator[str]:
    # Between two uses, as many others as there is room for leave it alone; more take its place.
    since: list[tuple[str | None, str]] = []
    for use in reversed(uses):
        if use[0] == cid:
            break
        since.append(use)
    others = {use[0] for use in since if use[0] is not None}
    ended = any(use[0] is None for use in since)
    if before is None:
        return
    if note.token != before and (capacity is None or len(others) < capacity):
        yield f"{note.who} met another instance in run {cid}, in emit {note.n}"
    if note.token == before and capacity is not None and len(others) >= capacity and not ended:
        yield f"{note.who} met an instance beyond the capacity of {capacity}, in emit {note.n}"


@invariant
def stateful_handlers_of_a_run_take_turns(record: Record) -> Iterator[str]:
    """§3: the synchronous handlers of one run's stateful hooks run one at a time, whichever threads emit."""
    inside: dict[Any, list[int]] = defaultdict(list)
    for _, note in record.log:
        emission = record.play.emissions[note.n]
        candidate = emission.candidates.get(note.who)
        if candidate is None or not is_of_run(emission, candidate) or candidate.is_async():
            continue
        threads = inside[id(emission.world), emission.cid]
        if note.stage == "called":
            if any(thread != note.thread for thread in threads):
                yield f"{note.who} ran in run {emission.cid} while another handler did"
            threads.append(note.thread)
        elif note.stage in ("left", "raised"):
            threads.remove(note.thread)


@invariant
def nothing_is_kept_of_an_ended_run(record: Record) -> Iterator[str]:
    """§3: a stateful instance is evicted after the handlers of an event whose class sets `ends_run`."""
    for world, periods, kept, end in record.play.kept:
        used: dict[str | None, set[int]] = defaultdict(set)
        for _, note in [one for one in record.log if one[0] < end]:
            emission = record.play.emissions[note.n]
            candidate = emission.candidates.get(note.who)
            if emission.world is not world:
                continue
            if note.stage == "ended":
                used.pop(note.value, None)
            elif note.stage == "called" and candidate is not None and is_of_run(emission, candidate):
                used[emission.cid].add(candidate.period)
        may = [cid for cid, found in used.items() if found & periods]
        if kept > len(may):
            yield f"{kept} runs are kept where {may} may be"


def violations(play: Play) -> Iterator[str]:
    """Yield what does not hold of a play, each with the name of its invariant."""
    yield from play.problems
    record = Record(play)
    for name, check in INVARIANTS.items():
        for text in check(record):
            yield f"{name}: {text}"


# --- drawing ---

VERBS = ("raise", "emit", "emit")
GATE_VERBS = ("raise", "edit", "refuse", "unlatch", "emit")
WRITES = ("edit", "refuse", "unlatch", "refuse", "unlatch")
CHANGES = ("subscribe", "cancel", "unregister", "register", "thread", "interrupt", "hush")
WAYS = ("emit", "emit", "emit", "loop", "aemit", "aemit", "publish", "scope", "thread", "strict")
WHENS = (None, None, None, None, None, "even", "odd", "even", "odd", "broken")
SEEDS = st.integers(0, 2**24 - 1)


class Hand:
    """
    Does one random thing or another to a play.

    What it does comes from a seed rather than from hypothesis' own choices: those cost more than the play,
    and seldom have an event meet a handler. A failure shrinks to the fewest steps that have it.
    """

    def __init__(self, play: Play, seed: int) -> None:
        self.play = play
        self.random = random.Random(seed)
        self.choose = self.random.choice

    def pick(self) -> int:
        return self.random.randrange(100)

    def may(self, chance: float) -> bool:
        return self.random.random() < chance

    def event(self) -> Any:
        name = self.choose(("Told", "Told", "Ended", "Asked", "Answered", None, None))
        return self.play.events[name] if name else self.play.pick_event(self.pick())

    def actions(self, verbs: tuple[str, ...]) -> list[tuple[str, int]]:
        verbs = verbs if self.may(0.6) else verbs + CHANGES
        trouble = self.choose((0.0, 0.2, 0.4, 0.8))
        return [(self.choose(verbs) if self.may(trouble) else "pass", self.pick()) for _ in range(14)]

    def owns(self) -> list[tuple[str, Own]]:
        owns = []
        for name in self.random.sample("abc", self.choose((1, 2, 3))):
            kind = self.choose(("on", "on", "on", "on", "override", "drop"))
            classes = tuple(self.event() for _ in range(self.choose((1, 1, 2)))) if kind == "on" else ()
            # No async method: when an instance is used is known of a call only.
            flavor = self.choose(("sync", "sync", "sync", "returns", "returns", "bare"))
            priority = self.choose((None, None, None, 50, 300))
            owns.append((name, Own(kind, classes, priority, self.choose(WHENS), flavor)))
        return owns

    def define_hook(self) -> None:
        life = self.choose(("fresh", "stateful", "stateful", "shared"))
        bases = [self.pick() for _ in range(self.choose((0, 0, 1, 1, 2)))]
        self.play.define_hook(
            self.random.randrange(4),
            bases,
            self.owns(),
            self.owns() if self.may(0.2) else [],
            stateful=life == "stateful",
            shared=life == "shared",
            priority=self.choose(PRIORITIES),
            stateful_capacity=self.choose((None, None, 1, 2)),
            abstract=self.may(0.05),
            replaces=self.may(0.5),
            shadow=self.may(0.15),
        )

    def subscribe(self) -> None:
        self.play.subscribe(
            self.random.randrange(8),
            Event if self.may(0.05) else self.event(),
            self.choose(PRIORITIES),
            self.choose(WHENS),
            self.choose((None, None, "r1", "r2")),
            self.choose(("strong", "strong", "strong", "weak", "blinker")),
            again=self.may(0.15),
        )

    def change(self) -> None:
        """Take back, bring back, let go."""
        play = self.play
        self.choose((play.cancel, play.cancel, play.register, play.unregister, play.let_go))(self.pick() % 20)

    def define_event(self) -> None:
        self.play.define_event(self.random.randrange(3), self.pick())

    def emit(self) -> None:
        way = "threads" if self.may(0.05) else self.choose(WAYS)
        scope = self.choose((None, "r1", "r1", "r2"))
        explicit = self.choose((None, None, *RUNS))
        cls = self.event()
        verbs = self.choose((GATE_VERBS, WRITES)) if issubclass(cls, ProtectedEvent) else VERBS
        actions = self.actions(verbs)
        self.play.top(cls, way, scope, explicit, self.random.randrange(2), actions)


class BusMachine(RuleBasedStateMachine):
    """Draws what is done to a bus, and checks it in the end; all that must hold, or one of it."""

    wanted: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.play = Play()

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        for _ in range(4):
            hand.subscribe()
        for _ in range(3):
            hand.define_hook()
        hand.define_event()
        for _ in range(3):
            hand.emit()

    @rule(seed=SEEDS)
    def define(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        hand.choose((hand.define_event, hand.define_hook, hand.define_hook))()
        hand.emit()

    @rule(seed=SEEDS)
    def subscribe(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        hand.subscribe()
        hand.emit()

    @rule(seed=SEEDS)
    def change(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        hand.change()
        hand.emit()

    @rule(seed=SEEDS)
    def emit(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        for _ in range(5):
            hand.emit()

    @rule()
    def drain(self) -> None:
        self.play.drain()

    @rule(leave=st.booleans())
    def isolate(self, leave: bool) -> None:
        if leave and len(self.play.worlds) > 1:
            self.play.leave()
        elif len(self.play.worlds) < 3:
            self.play.isolate()

    def teardown(self) -> None:
        self.play.close()
        found = [text for text in violations(self.play) if self.wanted in (None, text.partition(":")[0])]
        assert [] == found, "\n".join(found)
