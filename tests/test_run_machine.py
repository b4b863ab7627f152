"""
Random scripts of a run, plain and async, and what must hold of whatever they emit.

A script is a tree of actions; `Player` plays it, with gates and observers that misbehave as it says, and with
the task cancelled or closed where it says. `violations` reads what was recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eventbus
from eventbus import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    ApproveToolCallEvent,
    AsyncRun,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    Event,
    GateDecisionEvent,
    HandlerFailedEvent,
    Hook,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    ModelCallFailedEvent,
    ModelCallStartedEvent,
    ModelResponse,
    ProtectedEvent,
    Run,
    RunEndedError,
    RunRefused,
    StepCompletedEvent,
    StepFailedEvent,
    StepStartedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallStartedEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
    _drive,
    _order,
    _run,
    _stateful,
    current_correlation_id,
    drain,
    on,
)
from eventbus._gate import RAISED
from eventbus._readonly import thaw
from eventbus.testing import isolated

GATES = (
    BeforeInvocationEvent,
    AfterInvocationEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    BeforeToolCallEvent,
    ApproveToolCallEvent,
    AfterToolCallEvent,
)

ENDS: dict[type, tuple[type, ...]] = {
    TurnStartedEvent: (TurnCompletedEvent,),
    ModelCallStartedEvent: (InferenceGeneratedEvent, ModelCallFailedEvent),
    ToolCallStartedEvent: (ToolCallCompletedEvent, ToolCallFailedEvent),
    StepStartedEvent: (StepCompletedEvent, StepFailedEvent),
}
"""The starts, and what may end each."""

END_CLASSES = tuple(end for ends in ENDS.values() for end in ends)

CALL_EVENTS: dict[type, str] = {
    BeforeModelCallEvent: "before",
    ModelCallStartedEvent: "start",
    AfterModelCallEvent: "after",
    InferenceGeneratedEvent: "done",
    ModelCallFailedEvent: "failed",
    BeforeToolCallEvent: "before",
    ApproveToolCallEvent: "approve",
    ToolCallStartedEvent: "start",
    AfterToolCallEvent: "after",
    ToolCallCompletedEvent: "done",
    ToolCallFailedEvent: "failed",
    ToolCallDeniedEvent: "denied",
}
"""What each event and gate means to the one call it is about."""

AROUND: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("around", default=())
"""The starts that were told here, and in whatever led here."""

FIRST = -(2**31)

KINDS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("boom"),
    "stop": lambda: RuntimeError("stop"),
    "interrupt": lambda: KeyboardInterrupt("boom"),
    "exit": lambda: SystemExit("boom"),
    "closed": lambda: GeneratorExit("boom"),
    "cancelled": lambda: asyncio.CancelledError("boom"),
}

GATE_KINDS = {**KINDS, "stopiteration": lambda: StopIteration("boom")}
"""What a gate may raise; a coroutine cannot raise a StopIteration, which is why tools here do not."""


@dataclass(frozen=True)
class Fact:
    """
    What the script itself did or saw.

    A model or tool is entered ("body") and left ("left", with what it raised), and who called a tool has
    its "answer". A run is "entered", is completed ("complete"), begins a turn ("turn"), has none left ("used
    up"), is about to be ended ("ending", with its error), was ended in vain ("ended", with what that raised).
    """

    what: str
    of: Any
    value: Any = None


class Told(Event):
    """An event of the script's own."""


class Asked(ProtectedEvent):
    """A gate of the script's own."""

    cancel: bool | str = eventbus.writable(default=False, sticky=True)


@dataclass(frozen=True)
class Turns:
    limit: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Model:
    fate: str
    piece: bool


@dataclass(frozen=True)
class Tool:
    fate: str
    inner: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Tools:
    calls: tuple[Tool, ...]
    parallel: int


@dataclass(frozen=True)
class ToolPiece:
    call: Tool


@dataclass(frozen=True)
class Step:
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Nested:
    body: tuple[Any, ...]
    begun: bool


@dataclass(frozen=True)
class Caught:
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Do:
    what: str


@dataclass(frozen=True)
class Script:
    """What is played: the run's body, what gates and observers do, and where the task is struck."""

    body: tuple[Any, ...]
    gates: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shadow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    observers: tuple[str, ...] = ()
    gated: bool = True
    strikes: tuple[tuple[int, str], ...] = ()


DISTURBANCES = ["chunk", "step", "complete", "nest", "end", "chunk", "step"]
"""What an observer may do in the run it hears of."""


# --- generating ---


class Writer:
    """
    Writes a random script.

    A script is of some size and seed rather than of hypothesis' own choices: those cost more than playing it,
    and seldom have a gate meet a call. A failure shrinks to the smallest size that has it.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.left = size
        # How likely things are to go wrong.
        self.trouble = self.random.choice([0.0, 0.05, 0.15, 0.3])
        self.judging = self.random.choice([0.0, 0.2, 0.6])

    def fate(self) -> str:
        if self.random.random() < self.trouble:
            return self.random.choice(["cancel_self", *KINDS])
        return "ok"

    def body(self, depth: int = 0) -> tuple[Any, ...]:
        actions = []
        while self.left > 0 and len(actions) < 4 and (not actions or self.random.random() < 0.7):
            self.left -= 1
            actions.append(self.action(depth))
        return tuple(actions)

    def action(self, depth: int) -> Any:
        choose = self.random.choice
        kind = choose(
            [Model, Model, Tools, Tools, ToolPiece, Do, Turns, Step, Nested, Caught, Caught][
                : 6 if depth > 3 else None
            ]
        )
        if kind is Model:
            return Model(self.fate(), choose([True, False]))
        if kind is Tools:
            calls = tuple(self.tool(depth) for _ in range(self.random.randrange(4)))
            return Tools(calls, choose([1, 1, 2, 3]))
        if kind is ToolPiece:
            return ToolPiece(self.tool(depth))
        if kind is Do:
            troubles = list(KINDS) if self.random.random() < self.trouble else []
            whats = ["complete", "emit", "ask", "chunk", "break", "end", "end elsewhere", *troubles]
            return Do(choose(whats))
        if kind is Turns:
            return Turns(self.random.randrange(4), self.body(depth + 1))
        if kind is Nested:
            return Nested(self.body(depth + 1), choose([True, False]))
        return kind(self.body(depth + 1))

    def tool(self, depth: int) -> Tool:
        inner = self.body(depth + 1) if depth < 3 and self.random.random() < 0.2 else ()
        return Tool(self.fate(), inner)

    def verdict(self) -> str:
        if self.random.random() < self.trouble:
            return self.random.choice([*GATE_KINDS, *(f"when {kind}" for kind in GATE_KINDS)])
        if self.random.random() < self.judging:
            return self.random.choice(
                ["edit", "edit", "answer", "refuse", "refuse", "retry", "retry", "disarm", "nest"]
            )
        return "pass"

    def plan(self) -> dict[str, tuple[str, ...]]:
        return {gate.__name__: tuple(self.verdict() for _ in range(12)) for gate in (*GATES, Asked)}

    def script(self, *, struck: bool) -> Script:
        some = self.random.random
        whats = self.random.choice([[], [], [], [], [*KINDS], DISTURBANCES, [*KINDS, *DISTURBANCES]])
        faults = tuple(self.random.choice(["pass"] * 15 + whats) for _ in range(30)) if whats else ()
        strikes = [
            (self.random.randrange(60), self.random.choice(["cancel", "cancel", "close"]))
            for _ in range(self.random.randrange(1, 4) if struck else 0)
        ]
        return Script(
            self.body(),
            gates=self.plan(),
            shadow=self.plan() if some() < 0.3 else {},
            observers=faults,
            gated=some() < 0.8,
            strikes=tuple(strikes),
        )


def scripts(*, struck: bool = False) -> st.SearchStrategy[Script]:
    """Return random scripts; if told so, their task is cancelled or closed at random."""
    return st.builds(
        lambda size, seed: Writer(size, seed).script(struck=struck), st.integers(1, 25), st.integers(0, 2**32)
    )


# --- playing ---


class Player:
    """Plays a script once, and keeps what was emitted, asked and executed."""

    def __init__(self, script: Script, *, is_async: bool) -> None:
        self.script = script
        self.is_async = is_async
        self.log: list[Any] = []
        self.awaited: list[Event] = []
        self.problems: list[str] = []
        self.raised: list[ProtectedEvent] = []
        self.verdicts = {
            (name, shadow): itertools.chain(plan, itertools.repeat("pass"))
            for shadow, plans in ((False, script.gates), (True, script.shadow))
            for name, plan in plans.items()
        }
        self.deciding: dict[tuple[int, bool], str] = {}
        self.faults = iter(script.observers)
        self.tools: dict[int, Tool] = {}
        self.in_turns: list[Any] = []
        self.numbers = itertools.count()
        self.outcomes: list[list[Any]] = []
        self.around: dict[str, tuple[str, ...]] = {}
        self.parents: list[tuple[Any, str | None]] = []
        self.elsewhere: list[Any] = []

    # What is noted.

    def note(self, event: Any) -> None:
        """Keep what is told or asked before anybody else sees it, and what is open around a start."""
        if type(event) in ENDS:
            self.around[event.span_id] = AROUND.get()
            AROUND.set((*AROUND.get(), event.span_id))
        self.log.append(event)

    def fact(self, what: str, of: Any, value: Any = None) -> None:
        self.log.append(Fact(what, of, value))

    # What gates and observers do.

    def decide(self, event: ProtectedEvent, *, shadow: bool) -> bool:
        verdict = next(self.verdicts.get((type(event).__name__, shadow), iter(())), "pass")
        self.deciding[id(event), shadow] = verdict
        if verdict.startswith("when "):
            self.throw(event, verdict[5:], shadow=shadow)
        return True

    def throw(self, event: ProtectedEvent, kind: str, *, shadow: bool) -> None:
        error = GATE_KINDS[kind]()
        if not shadow or not isinstance(error, Exception):
            self.raised.append(event)
        raise error

    def judge(self, event: Any, *, shadow: bool) -> None:
        verdict = self.deciding.pop((id(event), shadow))
        if verdict in GATE_KINDS:
            self.throw(event, verdict, shadow=shadow)
        if verdict == "nest":
            self.nest()
        names = type(event)._writable
        if verdict == "edit":
            if "arguments" in names:
                event.arguments = {**event.arguments, "v": event.arguments["v"] + 1}
            elif "messages" in names:
                event.messages = [*event.messages, "more"]
            elif "message" in names:
                event.message = "rewritten"
            elif "response" in names and event.response is not None:
                event.response = ModelResponse("edited")
        elif verdict == "answer":
            if "result" in names:
                event.result = {"by": "gate"}
            elif "response" in names:
                event.response = ModelResponse("by gate")
        elif verdict == "retry" and "retry" in names:
            event.reason = "again"
            event.retry = True
        elif verdict in ("refuse", "disarm"):
            for name in ("cancel", "denied"):
                if name in names:
                    setattr(event, name, "no" if verdict == "refuse" else False)

    def observe(self, event: Event) -> None:
        if isinstance(event, HandlerFailedEvent):
            return
        kind = next(self.faults, "pass")
        if kind in KINDS:
            raise KINDS[kind]()
        run = next(
            (run for run, *_ in self.outcomes if run is not None and run.id == event.correlation_id), None
        )
        if kind == "nest":
            self.nest()
        elif run is not None and kind == "chunk":
            run.chunk("by observer")
        elif run is not None and kind == "complete":
            self.complete(run)
        elif run is not None and kind == "step":
            with run.step("by observer"):
                run.chunk("inside")
        elif run is not None and kind == "end":
            self.end_elsewhere(run)

    def nest(self) -> None:
        """Play a plain run of its own, inside a gate or an observer."""
        entry: list[Any] = [Run("nested"), None]
        self.outcomes.append(entry)
        self.parents.append((entry[0], current_correlation_id()))
        try:
            with self.entering(entry[0]) as run:
                self.inside(run)
        except BaseException as error:
            entry[1] = error
            raise

    @contextlib.contextmanager
    def entering(self, run: Any) -> Iterator[Any]:
        """Enter a plain run, and note how its block is left."""
        manager: Any = run
        manager.__enter__()
        self.fact("entered", run)
        try:
            yield run
        except BaseException as error:
            self.fact("ending", run, error)
            try:
                manager.__exit__(type(error), error, error.__traceback__)
            except BaseException as raised:
                self.fact("ended", run, raised)
                raise
            raise
        self.fact("ending", run)
        try:
            manager.__exit__(None, None, None)
        except BaseException as raised:
            self.fact("ended", run, raised)
            raise

    def inside(self, run: Any) -> None:
        if current_correlation_id() != run.id:
            self.problems.append(f"inside {run} the ambient id is {current_correlation_id()!r}")

    def complete(self, run: Any) -> None:
        self.fact("complete", run)
        run.complete("done")

    def end_elsewhere(self, run: Any) -> None:
        """End a run in another thread or task, which by the time this returns waits for what is told here."""
        if self.is_async and isinstance(run, AsyncRun):

            async def end_it() -> None:
                # What it raises is noted; out of a task, asyncio would stop its loop for an interrupt.
                with contextlib.suppress(BaseException):
                    await self.ending(run, result="elsewhere")

            self.elsewhere.append(asyncio.ensure_future(end_it()))
            return

        def end_there() -> None:
            try:
                self.fact("ending", run)
                run.end(result="elsewhere")
            except BaseException as error:
                self.fact("ended", run, error)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(end_there,))
        self.elsewhere.append(thread)
        thread.start()
        while thread.is_alive() and not run._ending:
            thread.join(0.0001)

    async def ending(self, run: Any, error: BaseException | None = None, result: Any = None) -> None:
        self.fact("ending", run, error)
        try:
            ending = run.end(result=result, error=error)
            if isinstance(error, GeneratorExit) and self.is_async:
                finish(ending)
            else:
                await self.done(ending)
        except BaseException as raised:
            self.fact("ended", run, raised)
            raise

    # What the script does.

    async def checkpoint(self) -> None:
        if self.is_async:
            await asyncio.sleep(0)

    def callable(self, coroutine_function: Any) -> Any:
        """Return a model or tool as the run takes it."""
        if self.is_async:
            return coroutine_function
        return lambda *args, **kwargs: finish(coroutine_function(*args, **kwargs))

    async def within(self, manager: Any, body: Any) -> Any:
        if hasattr(manager, "__aenter__") and self.is_async:
            async with manager as entered:
                return await body(entered)
        with manager as entered:
            return await body(entered)

    async def done(self, value: Any) -> Any:
        return await value if self.is_async else value

    async def meet(self, fate: str) -> None:
        await self.checkpoint()
        if fate in KINDS:
            raise KINDS[fate]()
        if fate == "cancel_self" and self.is_async:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async def run(self, body: tuple[Any, ...], *, begun: bool) -> None:
        before = current_correlation_id()
        kind: Any = AsyncRun if self.is_async else Run
        entry: list[Any] = [None, None]
        self.outcomes.append(entry)
        try:
            if begun:
                run = entry[0] = await self.done(kind.begin("agent", "question"))
                self.parents.append((run, before))
                self.fact("entered", run)
                try:
                    await self.play(run, body)
                except BaseException as error:
                    await self.ending(run, error)
                    raise
                await self.ending(run)
            else:
                run = entry[0] = kind("agent", "question")
                self.parents.append((run, before))
                await self.within(run, lambda _: self.block(run, body))
        except BaseException as error:
            entry[1] = error
            raise
        finally:
            if current_correlation_id() != before:
                self.problems.append(f"the ambient id is {current_correlation_id()!r}, and was {before!r}")

    async def block(self, run: Any, body: tuple[Any, ...]) -> None:
        """Play the block of a `with`, and note how it is left."""
        self.fact("entered", run)
        self.inside(run)
        try:
            await self.play(run, body)
        except BaseException as error:
            self.fact("ending", run, error)
            raise
        self.inside(run)
        self.fact("ending", run)

    async def play(self, run: Any, body: tuple[Any, ...]) -> bool:
        """Play actions; return whether to break out of the turns around."""
        for action in body:
            if await self.play_one(run, action):
                return True
        return False

    async def play_one(self, run: Any, action: Any) -> bool:
        if isinstance(action, Turns):
            if run in self.in_turns:
                # The turns of a run follow one another, and one that was broken out of lasts until the next.
                return await self.play(run, action.body)
            self.in_turns.append(run)
            for _ in run.turns(limit=action.limit):
                self.fact("turn", run)
                if await self.play(run, action.body):
                    return False
            self.fact("used up", run)
            self.in_turns.remove(run)
        elif isinstance(action, Model):
            await self.play_model(run, action)
        elif isinstance(action, Tools):
            await self.play_tools(run, action)
        elif isinstance(action, ToolPiece):
            call = self.call(action.call)

            async def make_call(piece: Any) -> None:
                if piece.answer is None:
                    piece.set(await self.execute(**piece.arguments))

            with contextlib.suppress(eventbus.ToolCallRefused):
                await self.within(run.tool_call(call), make_call)
        elif isinstance(action, Step):
            return bool(await self.within(run.step("step"), lambda _: self.play(run, action.body)))
        elif isinstance(action, Nested):
            await self.run(action.body, begun=action.begun)
        elif isinstance(action, Caught):
            with contextlib.suppress(Exception):
                return await self.play(run, action.body)
        else:
            return await self.do(run, action.what)
        return False

    async def do(self, run: Any, what: str) -> bool:
        if what == "complete":
            self.complete(run)
        elif what == "emit":
            run.emit(Told)
        elif what == "ask":
            await self.done(run.aemit(Asked) if self.is_async else run.emit(Asked))
        elif what == "chunk":
            run.chunk("c", "c")
        elif what == "end":
            await self.ending(run, result="early")
        elif what == "end elsewhere":
            self.end_elsewhere(run)
            await self.checkpoint()
        elif what in KINDS:
            raise KINDS[what]()
        return what == "break"

    async def play_model(self, run: Any, action: Model) -> None:
        number = next(self.numbers)

        async def model(messages: Any, **settings: Any) -> ModelResponse:
            messages.append("answer")
            with self.body(("model", number)):
                await self.meet(action.fate)
            return ModelResponse("hello", [ToolCall("c", "t")])

        async def make_call(piece: Any) -> None:
            if piece.answer is None:
                piece.set(await model(piece.messages))

        # Its number tells the events of this call from those of others.
        messages, name = [number, "question"], str(number)
        if action.piece:
            await self.within(run.model_call(messages, model=name), make_call)
        else:
            await self.done(run.call_model(self.callable(model), messages, model=name))

    @contextlib.contextmanager
    def body(self, key: tuple[str, int], arguments: Any = None) -> Iterator[None]:
        """Note that a model or tool is entered, and how it is left."""
        self.fact("body", key, arguments)
        try:
            yield
        except BaseException as error:
            self.fact("left", key, error)
            raise
        self.fact("left", key)

    def call(self, tool: Tool) -> ToolCall:
        number = next(self.numbers)
        self.tools[number] = tool
        return ToolCall("same", "t", {"n": number, "v": 0, "deep": {"list": [number]}})

    async def execute(self, n: int, v: int, deep: Any) -> Any:
        with self.body(("tool", n), {"n": n, "v": v, "deep": thaw(deep)}):
            deep["list"].clear()
            tool = self.tools[n]
            await self.meet("ok")
            for action in tool.inner:
                await self.run((action,), begun=False)
            await self.meet(tool.fate)
        return {"n": n}

    async def play_tools(self, run: Any, action: Tools) -> None:
        calls = [self.call(tool) for tool in action.calls]
        tools = {"t": self.callable(self.execute)}
        answers = await self.done(run.call_tools(calls, tools, parallel=action.parallel))
        for call, result in answers:
            self.fact("answer", ("tool", call.input["n"]), result)
        numbers = [call.input["n"] for call, _ in answers]
        if numbers != [call.input["n"] for call in calls]:
            self.problems.append(f"results of {numbers} out of order")
        for call, result in answers:
            if result.data is not None and result.data.get("n", call.input["n"]) != call.input["n"]:
                self.problems.append(f"call {call.input} got the result {result}")

    # How it is set going.

    def set_up(self) -> None:
        player = self
        Event.subscribe(self.note, priority=FIRST)
        Event.subscribe(self.observe)

        class Keeper(Hook):
            stateful = True

            # The bus tells of an async handler that fails after the run, too.
            @on(Event, when=lambda event: not isinstance(event, HandlerFailedEvent))
            def keep(self, event: Any) -> None:
                self.seen = event

        if not self.script.gated:
            return

        class Shadow(Hook):
            shadow = True

            @on(*GATES, Asked, when=lambda event: player.decide(event, shadow=True))
            def judge(self, event: Any) -> None:
                player.judge(event, shadow=True)

        def when(event: Any) -> bool:
            return self.decide(event, shadow=False)

        def judge(event: Any) -> None:
            self.judge(event, shadow=False)

        async def ajudge(event: Any) -> None:
            await asyncio.sleep(0)
            self.judge(event, shadow=False)

        for gate in (*GATES, Asked):
            gate.subscribe(self.note, priority=-FIRST if gate.reverse else FIRST)
            gate.subscribe(ajudge if self.is_async else judge, when=when)

    def play_through(self) -> None:
        with isolated():
            self.set_up()
            try:
                contextvars.copy_context().run(self.play_it)
            except BaseException as error:
                self.end = error
            for thread in self.elsewhere:
                if isinstance(thread, threading.Thread):
                    thread.join(10)
                    if thread.is_alive():
                        self.problems.append("an end elsewhere hangs")
            if drain(10):
                self.problems.append("async handlers are left")
            if _stateful.kept():
                self.problems.append(f"{_stateful.kept()} stateful instances are left")

    def play_it(self) -> None:
        if self.is_async:
            asyncio.run(self.main())
        else:
            finish(self.run(self.script.body, begun=False))

    async def main(self) -> None:
        async def watch(event: Event) -> None:
            await asyncio.sleep(0)
            self.awaited.append(event)

        Event.subscribe(watch, priority=1000)
        try:
            await Struck(self.run(self.script.body, begun=False), self.script.strikes)
        finally:
            tasks = [task for task in self.elsewhere if isinstance(task, asyncio.Task)]
            if tasks:
                await asyncio.wait(tasks)


class Struck:
    """Awaits a coroutine, whose task is cancelled, or which is closed, when it waits for the k-th time."""

    def __init__(self, coroutine: Any, strikes: tuple[tuple[int, str], ...]) -> None:
        self._coroutine = coroutine
        self._strikes = dict(strikes)

    def __await__(self) -> Iterator[Any]:
        task = asyncio.current_task()
        assert task is not None
        waits = self._coroutine.__await__()
        todo: Any = waits.send
        value: Any = None
        for count in itertools.count():
            try:
                waited_for = todo(value)
            except StopIteration as stop:
                return stop.value
            strike = self._strikes.get(count)
            if strike == "close":
                waits.close()
                return None
            if strike == "cancel":
                task.cancel()
            try:
                value, todo = (yield waited_for), waits.send
            except BaseException as error:
                value, todo = error, waits.throw


def finish(coroutine: Any) -> Any:
    """Run a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("it waits")


# --- checking ---


def violations(player: Player) -> list[str]:
    """Return what does not hold of a script that was played; nothing, if all does."""
    by_run: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for at, event in enumerate(player.log):
        if isinstance(event, Event) and not isinstance(event, HandlerFailedEvent):
            by_run[event.correlation_id or ""].append((at, event))
    found = list(player.problems)
    for cid, own in by_run.items():
        found += run_violations(player, cid, own)
        found += decision_violations(player, cid, own)
    found += call_violations(player)
    found += identity_violations(player, by_run)
    for run, error in player.outcomes:
        if run is not None and run.id:
            found += outcome_violations(player, run, error, by_run.get(run.id, []))
    if player.is_async and not player.script.strikes and not player.script.observers:
        found += order_violations(player)
    return found


def is_calm(script: Script) -> bool:
    """Tell whether nothing in a script interrupts or cancels."""
    kinds = ("interrupt", "exit", "closed", "cancel")
    return not script.strikes and not any(kind in str(script) for kind in kinds)


def ends_elsewhere(script: Script) -> bool:
    return "end" in script.observers or "elsewhere" in str(script)


def has_raised(player: Player, gate: ProtectedEvent) -> bool:
    mine = any(gate is raised for raised in player.raised)
    return mine or any(edit.field == RAISED and edit.applied for edit in gate.edits)


def refusal(player: Player, gate: ProtectedEvent) -> Any:
    """Return the reason a gate has refused with, falsy if it has not."""
    return not has_raised(player, gate) and (getattr(gate, "cancel", False) or getattr(gate, "denied", False))


def run_violations(player: Player, cid: str, own: list[tuple[int, Any]]) -> list[str]:
    log, found = player.log, []
    terminals = [at for at, event in own if event.ends_run]
    if len(terminals) != 1:
        found.append(f"run {cid} has {len(terminals)} terminals")
    elif own[-1][0] != terminals[0]:
        found.append(f"run {cid} emits {type(own[-1][1]).__name__} after its terminal")
    begun = [at for at, event in own if isinstance(event, InferenceStartedEvent)]
    if len(begun) > 1:
        found.append(f"run {cid} has begun twice")
    opened: dict[str, tuple[int, type]] = {}
    ends: dict[str, int] = {}
    starts: dict[str, tuple[int, type]] = {}
    for at, event in own:
        if type(event) in ENDS:
            if not begun or at < begun[0]:
                found.append(f"{type(event).__name__} before the run began")
            if event.span_id in starts:
                found.append(f"span {event.span_id} begins twice")
            opened[event.span_id] = starts[event.span_id] = (at, type(event))
        elif isinstance(event, END_CLASSES):
            start, kind = opened.pop(event.span_id, (None, None))
            if kind is not None and start is not None and type(event) in ENDS[kind]:
                ends[event.span_id] = at
            elif not is_answer_of_gate(log, at, event):
                found.append(f"{type(event).__name__} ends no start")
            if event.duration is None or event.duration < 0:
                found.append(f"{type(event).__name__} lasted {event.duration}")
    found += [f"{kind.__name__} without an end" for _, kind in opened.values()]

    for span_id, end in ends.items():
        start, kind = starts[span_id]
        if kind is TurnStartedEvent:
            # Its parent is the run; one that was broken out of lasts until the next.
            continue
        turns = [other for other, (_, outer) in starts.items() if outer is TurnStartedEvent]
        for outer in {*player.around[span_id], *turns} & ends.keys():
            if starts[outer][0] < start < ends[outer] < end:
                found.append(f"{kind.__name__} outlives the {starts[outer][1].__name__} around it")
    return found


def is_answer_of_gate(log: list[Any], at: int, event: Any) -> bool:
    if isinstance(event, ToolCallCompletedEvent):
        return event.answered_by is not None
    return isinstance(event, InferenceGeneratedEvent) and any(
        isinstance(item, BeforeModelCallEvent) and item.response is not None for item in log[:at]
    )


def decision_violations(player: Player, cid: str, own: list[tuple[int, Any]]) -> list[str]:
    """What gates decided is told, each decision once, and none that nobody has made."""
    made: Counter[Any] = Counter()
    for gate in player.log:
        if isinstance(gate, ProtectedEvent) and gate.correlation_id == cid:
            for edit in gate.edits:
                if edit.field == RAISED:
                    made[type(gate).__name__, edit.handler, None, "error"] += 1
                elif edit.field in ("cancel", "denied"):
                    if edit.new or edit.old:
                        made[
                            type(gate).__name__, edit.handler, edit.field, "deny" if edit.new else "edit"
                        ] += 1
                elif edit.field == "retry":
                    made[type(gate).__name__, edit.handler, edit.field, "retry"] += 1
                elif edit.field != "reason":
                    is_answer = edit.field in ("result", "response") and not gate.reverse
                    action = "answer" if is_answer and edit.new is not None else "edit"
                    made[type(gate).__name__, edit.handler, edit.field, action] += 1
    told = Counter(
        (event.gate, event.by, event.field, event.action)
        for _, event in own
        if isinstance(event, GateDecisionEvent)
    )
    found = [f"run {cid} tells of a decision nobody made: {told - made}"] if told - made else []
    if made - told and is_calm(player.script) and not ends_elsewhere(player.script):
        found.append(f"run {cid} does not tell what gates decided: {made - told}")
    return found


def call_key(item: Any) -> Any:
    """Return which model or tool call something in the log is about; None if it is about none."""
    if isinstance(item, Fact):
        return item.of if item.what in ("body", "left", "answer") else None
    if type(item) not in CALL_EVENTS:
        return None
    if isinstance(item, (BeforeModelCallEvent, AfterModelCallEvent)):
        return ("model", item.messages[0])
    if isinstance(item, (ModelCallStartedEvent, ModelCallFailedEvent, InferenceGeneratedEvent)):
        return ("model", int(item.model))
    return ("tool", item.tool_call.input["n"])


def call_violations(player: Player) -> list[str]:
    calls: dict[Any, list[tuple[int, str, Any]]] = defaultdict(list)
    closing: dict[str | None, int] = {}
    for at, item in enumerate(player.log):
        key = call_key(item)
        if key is not None:
            calls[key].append((at, item.what if isinstance(item, Fact) else CALL_EVENTS[type(item)], item))
        if isinstance(item, AfterInvocationEvent) or (isinstance(item, Event) and item.ends_run):
            closing.setdefault(item.correlation_id, at)
    found = []
    for key, items in calls.items():
        cid = next((item.correlation_id for _, _, item in items if not isinstance(item, Fact)), None)
        over = closing.get(cid, len(player.log))
        problems = [*refusal_violations(player, items), *end_violations(player, items)]
        problems += execution_violations(player, key, items, over)
        found += [f"{key[0]} {key[1]} {problem}" for problem in problems]
    return found


def refusal_violations(player: Player, items: list[tuple[int, str, Any]]) -> list[str]:
    """A refusal ends the call, and a tool's is told once, and verbatim to the caller; no other is told."""
    found = []
    denials = [item for _, what, item in items if what == "denied"]
    reasons = []
    for number, (_, what, gate) in enumerate(items):
        reason = refusal(player, gate) if what in ("before", "approve") else None
        if reason:
            found += [
                f"went on to {later} after its refusal"
                for _, later, _ in items[number + 1 :]
                if later not in ("denied", "answer")
            ]
            if not isinstance(gate, BeforeModelCallEvent):
                reasons.append(reason)
    answers = [fact.value.error for _, what, fact in items if what == "answer"]
    if reasons and answers and answers != reasons and is_calm(player.script):
        found.append(f"was refused for {reasons}, answered: {answers}")
    quiet = not is_calm(player.script) or ends_elsewhere(player.script)
    if [denial.reason for denial in denials] != reasons and not (quiet and not denials):
        found.append(f"was refused for {reasons}, told: {denials}")
    if any(denial.by is None for denial in denials):
        found.append("was denied by nobody")
    return found


def answer_of(gate: Any) -> Any:
    return gate.response if isinstance(gate, BeforeModelCallEvent) else gate.result


def execution_violations(player: Player, key: Any, items: list[tuple[int, str, Any]], over: int) -> list[str]:
    """Nothing is executed but between start and end, with what gates let pass, and again only on a retry."""
    found = []
    is_open = executed = False
    passed: set[str] = set()
    approved: list[Any] = []
    needed = {"before", "approve"} if key[0] == "tool" else {"before"}
    retry = False
    for number, (at, what, item) in enumerate(items):
        if what in ("before", "approve"):
            answer = answer_of(item) if what == "before" else None
            if not has_raised(player, item) and not refusal(player, item) and answer is None:
                passed.add(what)
            if what == "approve":
                approved.append(thaw(item.arguments))
        elif what == "start":
            if player.script.gated and passed != needed:
                found.append(f"began after {sorted(passed)}")
            if is_open:
                found.append("began twice")
            if key[0] == "model":
                passed = set()
                if executed and not retry:
                    found.append("was asked again without a retry")
                executed = False
            is_open = True
        elif what == "body":
            if not is_open:
                found.append("was executed outside of start and end")
            if executed and not retry:
                found.append("was executed again without a retry")
            if player.script.gated and key[0] == "tool" and item.value not in approved:
                found.append(f"was executed with {item.value}, approved: {approved}")
            executed, retry = True, False
        elif what == "after":
            retry = bool(item.retry) and not has_raised(player, item)
        elif what in ("done", "failed"):
            is_open = False
        if what == "left" and player.script.gated and at < over:
            is_interrupt = item.value is not None and not isinstance(item.value, Exception)
            following = next((later for _, later, _ in items[number + 1 :]), None)
            if not is_interrupt and following != "after":
                found.append(f"was left, and no gate asked about it, but {following} told")
    return found


def end_violations(player: Player, items: list[tuple[int, str, Any]]) -> list[str]:
    """The end that is told is what became of the last execution."""
    found = []
    left: Fact | None = None
    judged = False
    answered: Any = None
    for _, what, item in items:
        if what == "before":
            answered = answer_of(item)
            judged = False
        elif what in ("start", "body"):
            left = None
        elif what == "left":
            left = item
        elif what == "after":
            judged = True
        elif what == "done":
            if left is None and answered is None:
                found.append("is told as done, and was not executed")
            if left is not None and left.value is not None:
                found.append(f"is told as done, and raised {left.value!r}")
            if left is None and not judged and player.script.gated and not ends_elsewhere(player.script):
                found.append("is answered without an after-gate")
        elif what == "failed" and left is not None:
            swept = isinstance(item.error, RunEndedError) or player.script.strikes
            if left.value is None and not (swept and item.error is not None):
                found.append(f"is told as failed with {item.error!r}, and returned")
            if left.value is not None and not is_from(item.error, left.value) and is_calm(player.script):
                found.append(f"is told as failed with {item.error!r}, and raised {left.value!r}")
    return found


def is_from(error: BaseException | None, other: BaseException | None) -> bool:
    """Tell whether two errors are one, perhaps what a generator or coroutine has made of it."""
    if isinstance(error, GeneratorExit) and isinstance(other, GeneratorExit):
        # Each coroutine that is being closed has its own.
        return True
    errors = {id(other)}
    while other is not None and isinstance(other, RuntimeError):
        other = other.__cause__
        errors.add(id(other))
    while error is not None and id(error) not in errors and isinstance(error, RuntimeError):
        error = error.__cause__
    return id(error) in errors


def identity_violations(player: Player, by_run: dict[str, list[tuple[int, Any]]]) -> list[str]:
    """Each run has an id of its own, and that of the run it was begun in as its parent's."""
    found = []
    ids = [run.id for run, _ in player.outcomes if run is not None and run.id]
    if len(ids) != len(set(ids)):
        found.append(f"several runs have one id: {ids}")
    for run, parent in player.parents:
        if not run.id:
            continue
        if (run.parent_id, run.info.parent_id, run.info.id) != (parent, parent, run.id):
            found.append(f"{run} has the parent {run.parent_id!r}, not {parent!r}")
        for _, event in by_run.get(run.id, []):
            said = event.get("run")
            if (said.id, said.parent_id) != (run.id, parent):
                found.append(f"{type(event).__name__} says {said} of a run with the parent {parent!r}")
            if isinstance(event, InferenceStartedEvent) and event.parent_id != parent:
                found.append(f"{run} starts with the parent {event.parent_id!r}, not {parent!r}")
    return found


def outcome_violations(
    player: Player, run: Any, error: BaseException | None, own: list[tuple[int, Any]]
) -> list[str]:
    """The terminal says what the script saw of the run's end."""
    terminal = next((event for _, event in own if event.ends_run), None)
    kind = type(terminal)
    facts = [fact for fact in player.log if isinstance(fact, Fact) and fact.of is run]
    gates = [
        gate for gate in player.log if isinstance(gate, ProtectedEvent) and gate.correlation_id == run.id
    ]
    entered = any(fact.what == "entered" for fact in facts)
    started = any(isinstance(event, InferenceStartedEvent) for _, event in own)
    before = [gate for gate in gates if isinstance(gate, BeforeInvocationEvent)]
    after = [gate for gate in gates if isinstance(gate, AfterInvocationEvent)]
    found = []
    if player.script.gated and (len(before) != 1 or len(after) != started):
        found.append(f"{run} was judged {len(before)} times before, {len(after)} after")
    refused = next((reason for gate in before if (reason := refusal(player, gate))), None)
    if (entered or started) and any(has_raised(player, gate) or refusal(player, gate) for gate in before):
        found.append(f"{run} began although a gate let it not")
    if (kind is InferenceDeniedEvent) == started:
        found.append(f"{kind.__name__} of a run that {'started' if started else 'did not start'}")
    if kind is InferenceDeniedEvent:
        if not before or (terminal.by is None and is_calm(player.script)):
            found.append(f"{run} was denied by nobody")
        if refused is not None and is_calm(player.script):
            if terminal.reason != refused or not isinstance(error, RunRefused) or error.reason != refused:
                found.append(f"{run} was refused for {refused!r}: {terminal}, {error!r}")
        return found
    if not entered:
        return found
    last = next(number for number, fact in enumerate(facts) if fact.what == "ending")
    failure = facts[last].value
    raised = [fact.value for fact in facts if fact.what == "ended"]
    if error is not None:
        raised.append(error)
    several = ends_elsewhere(player.script)
    if kind is InferenceFailedEvent:
        mine = [fact.value for fact in facts if fact.what == "ending"] if several else [failure]
        mine += [] if failure is not None and not several else raised
        # An interrupt that comes after the first failure is what goes on.
        mine += [edit.new for gate in after for edit in gate.edits if edit.field == RAISED and edit.applied]
        if not is_calm(player.script) and any(not isinstance(one, Exception) for one in raised):
            mine.append(terminal.error)
        if not any(one is not None and is_from(terminal.error, one) for one in mine):
            found.append(f"the run failed with {terminal.error!r}, and ended with {mine}")
    elif failure is not None and not several:
        found.append(f"{kind.__name__} of a run that raised {failure!r}")
    elif not several and any(has_raised(player, gate) for gate in after):
        found.append(f"{kind.__name__} of a run whose last gate raised")
    if kind in (InferenceCompletedEvent, InferenceMaxTurnsReachedEvent) and not several:
        whats = [fact.what for fact in facts[:last]]
        turns = [what for what in whats if what in ("turn", "used up")]
        used_up = turns[-1:] == ["used up"] and "complete" not in whats
        if (kind is InferenceMaxTurnsReachedEvent) != used_up:
            found.append(f"{kind.__name__} after {whats}")
        if kind is InferenceCompletedEvent and "complete" in whats and terminal.result is None:
            found.append(f"{kind.__name__} without the result of {whats}")
    return found


def order_violations(player: Player) -> list[str]:
    # Where a gate or a tool is interrupted, the handlers of what is told then may be interrupted as well. The
    # bus itself emits the failure of a handler, from wherever it failed, and waits for nobody.
    if not is_calm(player.script) or any(word in str(player.script) for word in ("elsewhere", "nest")):
        return []

    def names(events: list[Any], cid: str) -> list[str]:
        own = [event for event in events if event.correlation_id == cid]
        return [type(event).__name__ for event in own if not isinstance(event, HandlerFailedEvent)]

    observed = [item for item in player.log if isinstance(item, Event)]
    return [
        f"an async observer saw {names(player.awaited, cid)} of {names(observed, cid)}"
        for cid in {event.correlation_id for event in observed}
        if names(player.awaited, cid) != names(observed, cid)
    ]


def check(script: Script, *, is_async: bool) -> None:
    """Play a script and fail for what does not hold."""
    player = Player(script, is_async=is_async)
    player.play_through()
    found = violations(player)
    shown = "\n".join(str(item) for item in player.log)
    assert [] == found, shown


LIMITS = settings(
    derandomize=True,
    database=None,
    max_examples=800,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@LIMITS
@given(scripts())
def test_a_plain_run_holds_whatever_its_script(script):
    """No script of turns, calls, pieces, gates and exceptions breaks what must hold of a plain run."""
    check(script, is_async=False)


@LIMITS
@given(scripts())
def test_an_async_run_holds_whatever_its_script(script):
    """Nor does any break it of an async run."""
    check(script, is_async=True)


@LIMITS
@given(scripts(struck=True))
def test_an_async_run_holds_wherever_its_task_is_struck(script):
    """Nor does cancelling the task, again and again, or closing the coroutine, wherever it waits."""
    check(script, is_async=True)


# --- the test of the test ---


def _forgets_its_terminal(run, *, error=None, max_turns=False):
    if error is not None and not isinstance(error, Exception):
        run._over = True
        return None
    return (yield from _order_end(run, error=error, max_turns=max_turns))


def _fails_whatever_comes(run, *, error=None, max_turns=False):
    return (yield from _order_end(run, error=error or ValueError("made up"), max_turns=max_turns))


def _fails_with_another_error(run, *, error=None, max_turns=False):
    return (yield from _order_end(run, error=error and ValueError("made up"), max_turns=max_turns))


def _swallows_its_failure(run, *, error=None, max_turns=False):
    return (yield from _order_end(run, max_turns=max_turns))


def _always_uses_up_its_turns(run, *, error=None, max_turns=False):
    return (yield from _order_end(run, error=error, max_turns=True))


def _never_uses_up_its_turns(run, *, error=None, max_turns=False):
    return (yield from _order_end(run, error=error))


def _closes_the_outermost_first(run, *, error=None, max_turns=False):
    run._opened = dict(reversed(run._opened.items()))
    return (yield from _order_end(run, error=error, max_turns=max_turns))


def _skips_approval_after_an_edit(run, gate, *, may_retry=False):
    if isinstance(gate, ApproveToolCallEvent) and gate.arguments != gate.tool_call.input:
        return iter(())
    return _order_judge(run, gate, may_retry=may_retry)


def _never_asks(*classes):
    def never_asks(run, gate, *, may_retry=False):
        return iter(()) if isinstance(gate, classes) else _order_judge(run, gate, may_retry=may_retry)

    return never_asks


def _ignores_refusals_at(*classes):
    def ignores_refusals(gate, field):
        return None if isinstance(gate, classes) else _order_refusal_of(gate, field)

    return ignores_refusals


def _refuses_in_its_own_words(gate, field):
    refused = _order_refusal_of(gate, field)
    return refused and ("not allowed", refused[1])


def _tells_no_denial(run, call, reason, by):
    yield from ()
    return _order.ToolOutcome(_order.ToolResult(error=reason), refused=_order.ToolCallRefused(reason, by))


def _tells_a_denial_twice(run, call, reason, by):
    yield from _order_deny(run, call, reason, by)
    return (yield from _order_deny(run, call, reason, by))


def _tells_no_decision(run, gate, *, may_retry):
    yield from ()


def _ends_with_another_span(run, span, error=None, ends_with=None, **fields):
    if ends_with is ToolCallCompletedEvent and span in run._opened:
        event_class, fields_of_both, *rest = run._opened[span]
        run._opened[span] = (event_class, {**fields_of_both, "span_id": _order.new_span_id()}, *rest)
    return (yield from _order_close(run, span, error, ends_with, **fields))


def _ends_twice(run, span, error=None, ends_with=None, **fields):
    opened = run._opened.get(span)
    yield from _order_close(run, span, error, ends_with, **fields)
    if opened is not None and ends_with is InferenceGeneratedEvent:
        run._opened[span] = opened
        yield from _order_close(run, span, error, ends_with, **fields)


def _leaves_steps_open(run, span, error=None, ends_with=None, **fields):
    if ends_with is not StepCompletedEvent:
        yield from _order_close(run, span, error, ends_with, **fields)


def _fails_what_is_done(*classes):
    def fails_what_is_done(run, span, error=None, ends_with=None, **fields):
        if ends_with in classes:
            ends_with, fields = None, {}
        yield from _order_close(run, span, error, ends_with, **fields)

    return fails_what_is_done


def _completes_what_failed(started, completed):
    def completes_what_failed(run, span, error=None, ends_with=None, **fields):
        opened = run._opened.get(span)
        if ends_with is None and opened is not None and opened[0] is started:
            ends_with = completed
        yield from _order_close(run, span, error, ends_with, **fields)

    return completes_what_failed


def _performs_twice(perform):
    def twice(asked):
        with contextlib.suppress(Exception):
            perform(asked)
        return perform(asked)

    return _drive_refuse_awaitables(twice)


def _turns_results_round(run, calls, tools, *, parallel=1):
    return _run_call_tools(run, calls, tools, parallel=parallel)[::-1]


async def _mixes_results_up(one, calls, parallel):
    return (await _drive_together(one, calls, parallel))[::-1]


def _loses_its_parent(run):
    _run_start(run)
    run.parent_id = None


def _takes_the_id_around_it(run):
    run.id = run.id or current_correlation_id() or ""
    _run_start(run)


def _loses_the_parent_of_a_gates_run(run):
    if run.agent == "nested":
        _loses_its_parent(run)
    else:
        _run_start(run)


def _takes_the_id_around_a_gate(run):
    if run.agent == "nested":
        _takes_the_id_around_it(run)
    else:
        _run_start(run)


def _begins_with_the_id_around_it(agent, message):
    return _run_begin(agent, message, correlation_id=current_correlation_id())


def _begins_without_parent(agent, message):
    run = _run_begin(agent, message)
    run.parent_id = None
    return run


def _answers_a_refusal_with_nothing(run, call, reason, by):
    return (yield from _order_deny(run, call, reason, by))._replace(result=_order.ToolResult())


def _forgets_its_result(run, result=None):
    _run_complete(run)


def _keeps_its_scope_open(run):
    run._scope = None


_order_end, _order_judge, _order_close = _order.end, _order.judge, _order.close
_order_refusal_of, _order_deny = _order.refusal_of, _order.deny_tool
_drive_refuse_awaitables, _drive_together = _drive.refuse_awaitables, _drive.together
_run_call_tools, _run_begin = Run.call_tools, Run.begin
_run_start, _run_complete = _run.RunBase._start, _run.RunBase.complete

BUGS: list[tuple[str, Any, str, bool]] = [
    ("end", _forgets_its_terminal, "has 0 terminals", True),
    ("end", _fails_whatever_comes, "the run failed with", False),
    ("end", _fails_with_another_error, "the run failed with", False),
    ("end", _swallows_its_failure, "of a run that raised", False),
    ("end", _always_uses_up_its_turns, "InferenceMaxTurnsReachedEvent after", False),
    ("end", _never_uses_up_its_turns, "InferenceCompletedEvent after", True),
    ("end", _closes_the_outermost_first, "outlives", False),
    ("end", _closes_the_outermost_first, "outlives", True),
    ("judge", _skips_approval_after_an_edit, "began after ['before']", False),
    ("judge", _skips_approval_after_an_edit, "was executed with", True),
    ("judge", _never_asks(BeforeModelCallEvent), "began after []", False),
    ("judge", _never_asks(BeforeToolCallEvent), "began after ['approve']", False),
    ("judge", _never_asks(ApproveToolCallEvent), "began after ['before']", True),
    ("judge", _never_asks(BeforeInvocationEvent), "was judged 0 times before", False),
    ("judge", _never_asks(AfterModelCallEvent), "no gate asked", False),
    ("judge", _never_asks(AfterToolCallEvent), "no gate asked", True),
    ("judge", _never_asks(AfterInvocationEvent), "0 after", False),
    ("refusal_of", _ignores_refusals_at(BeforeToolCallEvent), "after its refusal", False),
    ("refusal_of", _ignores_refusals_at(ApproveToolCallEvent), "after its refusal", True),
    ("refusal_of", _ignores_refusals_at(BeforeModelCallEvent), "after its refusal", False),
    ("refusal_of", _ignores_refusals_at(BeforeInvocationEvent), "let it not", False),
    ("refusal_of", _refuses_in_its_own_words, "was refused for", False),
    ("deny_tool", _tells_no_denial, "was refused for", False),
    ("deny_tool", _tells_a_denial_twice, "was refused for", True),
    ("_decided", _tells_no_decision, "does not tell what gates decided", False),
    ("close", _ends_with_another_span, "ends no start", True),
    ("close", _ends_twice, "ends no start", False),
    ("close", _leaves_steps_open, "outlives", False),
    ("close", _fails_what_is_done(ToolCallCompletedEvent), "told as failed", False),
    ("close", _fails_what_is_done(InferenceGeneratedEvent), "told as failed", True),
    ("close", _completes_what_failed(ToolCallFailedEvent, ToolCallCompletedEvent), "told as done", False),
    ("close", _completes_what_failed(ModelCallFailedEvent, InferenceGeneratedEvent), "told as done", True),
    ("refuse_awaitables", _performs_twice, "executed again without a retry", False),
    ("together", _mixes_results_up, "got the result", True),
    ("Run.call_tools", _turns_results_round, "out of order", False),
    ("_start", _loses_its_parent, "has the parent None", False),
    ("_start", _loses_its_parent, "has the parent None", True),
    ("_start", _takes_the_id_around_it, "several runs have one id", True),
    ("_start", _loses_the_parent_of_a_gates_run, "has the parent None", False),
    ("_start", _takes_the_id_around_a_gate, "several runs have one id", False),
    ("Run.begin", _begins_with_the_id_around_it, "several runs have one id", False),
    ("Run.begin", _begins_without_parent, "has the parent None", False),
    ("deny_tool", _answers_a_refusal_with_nothing, "answered: [None]", False),
    ("complete", _forgets_its_result, "without the result", False),
    ("_close_scope", _keeps_its_scope_open, "the ambient id is", False),
]


@pytest.mark.parametrize(("name", "bug", "said", "is_async"), BUGS)
def test_a_seeded_bug_is_caught(monkeypatch, name, bug, said, is_async):
    """A library with a bug that breaks what must hold fails the same checks, within a few hundred scripts."""
    kind, _, name = name.rpartition(".")
    for place in (Run,) if kind else (_order, _run, _drive, _run.RunBase):
        if name in vars(place):
            monkeypatch.setattr(place, name, bug)

    assert any(said in violation for violation in hunt(is_async=is_async))


def hunt(*, is_async: bool) -> Iterator[str]:
    """Yield what does not hold of the first few hundred scripts."""
    for seed in range(500):
        player = Player(Writer(seed % 25 + 1, seed).script(struck=False), is_async=is_async)
        player.play_through()
        yield from violations(player)
