"""
One play of a whole bus: what was done to it, what was registered, and what its handlers logged.

`Play` does to the bus what it is told, and keeps the facts of what is registered and a log of what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import sys
import threading
import traceback
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

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
    fades: bool = False

    def is_async(self) -> bool:
        return self.flavor in ("async", "returns")

    def matches(self, flag: int) -> bool | None:
        """Tell whether some predicate says yes; None if that depends on what is asked, or dies, first."""
        yes = any(when is None or when == ("odd" if flag else "even") for when in self.whens)
        unsure = self.fades or ("broken" in self.whens and None not in self.whens)
        return None if yes and unsure else yes


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
            # What only a play's own facts, or its last call, keep alive may die meanwhile.
            held = function.fn is not None and function in self.functions.values()
            fades = not held and all(isinstance(sub.reference, weakref.ref) for sub in subs)
            found[who] = Candidate(who, name, places, whens, function.flavor, who, fades=fades)
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
                self.in_thread(lambda: self.emit(cls, how="thread", flag=flag, actions=actions))
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
            self.joined(*threads)
        self.meeting = None

    def in_thread(self, work: Callable[[], Any]) -> None:
        """Do something on a thread of its own, with a context of its own, and wait for it."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.joined(thread)

    def joined(self, *threads: threading.Thread) -> None:
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                stack = traceback.format_stack(sys._current_frames()[thread.ident or 0])
                self.problem("no_emit_hangs", "".join(stack[-3:]))

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
        elif verb == "thread" and not emission.is_gate and running() is None and self.scope_loop is None:
            # On a loop it would keep the loop from what the thread needs it for.
            cls, flag = self.pick_event(pick), pick % 2
            self.in_thread(lambda: self.emit(cls, how="thread", flag=flag, parent=emission))
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
