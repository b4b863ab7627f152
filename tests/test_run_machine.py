"""
Random scripts of a run, plain and async, and what must hold of whatever they emit.

A script is a tree of actions; `Player` plays it, with gates and observers that misbehave as it says, and with
the task cancelled or closed where it says. `violations` reads what was recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
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
    HandlerFailedEvent,
    Hook,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceStartedEvent,
    ModelCallFailedEvent,
    ModelCallStartedEvent,
    ModelResponse,
    ProtectedEvent,
    Run,
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

FIRST = -(2**31)

KINDS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("boom"),
    "stop": lambda: RuntimeError("stop"),
    "interrupt": lambda: KeyboardInterrupt("boom"),
    "exit": lambda: SystemExit("boom"),
    "closed": lambda: GeneratorExit("boom"),
    "cancelled": lambda: asyncio.CancelledError("boom"),
}


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
            return Do(choose(["complete", "emit", "ask", "chunk", "break", "end", *troubles]))
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
            return self.random.choice([*KINDS, *(f"when {kind}" for kind in KINDS)])
        if self.random.random() < self.judging:
            return self.random.choice(["edit", "edit", "answer", "refuse", "retry", "disarm"])
        return "pass"

    def plan(self) -> dict[str, tuple[str, ...]]:
        return {gate.__name__: tuple(self.verdict() for _ in range(12)) for gate in (*GATES, Asked)}

    def script(self, *, struck: bool) -> Script:
        some = self.random.random
        faults = (
            tuple(self.random.choice(["pass"] * 15 + [*KINDS]) for _ in range(30)) if some() < 0.2 else ()
        )
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
        self.outcomes: list[tuple[Any, BaseException | None]] = []

    # What gates and observers do.

    def decide(self, event: ProtectedEvent, *, shadow: bool) -> bool:
        verdict = next(self.verdicts.get((type(event).__name__, shadow), iter(())), "pass")
        self.deciding[id(event), shadow] = verdict
        if verdict.startswith("when "):
            self.throw(event, verdict[5:], shadow=shadow)
        return True

    def throw(self, event: ProtectedEvent, kind: str, *, shadow: bool) -> None:
        error = KINDS[kind]()
        if not shadow or not isinstance(error, Exception):
            self.raised.append(event)
        raise error

    def judge(self, event: Any, *, shadow: bool) -> None:
        verdict = self.deciding.pop((id(event), shadow))
        if verdict in KINDS:
            self.throw(event, verdict, shadow=shadow)
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
        self.outcomes.append(entry)  # type: ignore[arg-type]  # filled below
        try:
            if begun:
                run = entry[0] = await self.done(kind.begin("agent", "question"))
                try:
                    await self.play(run, body)
                except BaseException as error:
                    ending = run.end(error=error)
                    if isinstance(error, GeneratorExit) and self.is_async:
                        finish(ending)
                    else:
                        await self.done(ending)
                    raise
                await self.done(run.end())
            else:
                entry[0] = kind("agent", "question")
                await self.within(entry[0], lambda run: self.play(run, body))
        except BaseException as error:
            entry[1] = error
            raise
        finally:
            if current_correlation_id() != before:
                self.problems.append(f"the ambient id is {current_correlation_id()!r}, and was {before!r}")

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
                if await self.play(run, action.body):
                    return False
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
            run.complete("done")
        elif what == "emit":
            run.emit(Told)
        elif what == "ask":
            await self.done(run.aemit(Asked) if self.is_async else run.emit(Asked))
        elif what == "chunk":
            run.chunk("c", "c")
        elif what == "end":
            await self.done(run.end(result="early"))
        elif what in KINDS:
            raise KINDS[what]()
        return what == "break"

    async def play_model(self, run: Any, action: Model) -> None:
        async def model(messages: Any, **settings: Any) -> ModelResponse:
            messages.append("answer")
            await self.meet(action.fate)
            return ModelResponse("hello", [ToolCall("c", "t")])

        async def make_call(piece: Any) -> None:
            if piece.answer is None:
                piece.set(await model(piece.messages))

        if action.piece:
            await self.within(run.model_call(["question"], model="m"), make_call)
        else:
            await self.done(run.call_model(self.callable(model), ["question"], model="m"))

    def call(self, tool: Tool) -> ToolCall:
        number = next(self.numbers)
        self.tools[number] = tool
        return ToolCall("same", "t", {"n": number, "v": 0, "deep": {"list": [number]}})

    async def execute(self, n: int, v: int, deep: Any) -> Any:
        self.log.append(("body", n, {"n": n, "v": v, "deep": thaw(deep)}))
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
        numbers = [call.input["n"] for call, _ in answers]
        if numbers != [call.input["n"] for call in calls]:
            self.problems.append(f"results of {numbers} out of order")
        for call, result in answers:
            if result.data is not None and result.data.get("n", call.input["n"]) != call.input["n"]:
                self.problems.append(f"call {call.input} got the result {result}")

    # How it is set going.

    def set_up(self) -> None:
        player = self
        Event.subscribe(self.log.append, priority=FIRST)
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
            gate.subscribe(self.log.append, priority=-FIRST if gate.reverse else FIRST)
            gate.subscribe(ajudge if self.is_async else judge, when=when)

    def play_through(self) -> None:
        with isolated():
            self.set_up()
            try:
                if self.is_async:
                    asyncio.run(self.main())
                else:
                    finish(self.run(self.script.body, begun=False))
            except BaseException as error:
                self.end = error
            if drain(10):
                self.problems.append("async handlers are left")
            if _stateful.kept():
                self.problems.append(f"{_stateful.kept()} stateful instances are left")

    async def main(self) -> None:
        async def watch(event: Event) -> None:
            await asyncio.sleep(0)
            self.awaited.append(event)

        Event.subscribe(watch, priority=1000)
        await Struck(self.run(self.script.body, begun=False), self.script.strikes)


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
    log = player.log
    events = [(at, item) for at, item in enumerate(log) if isinstance(item, Event)]
    by_run: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for at, event in events:
        if not isinstance(event, HandlerFailedEvent):
            by_run[event.correlation_id].append((at, event))
    found = list(player.problems)
    for cid, own in by_run.items():
        found += run_violations(log, cid, own)
    found += tool_violations(player)
    found += outcome_violations(player, by_run)
    if player.is_async and not player.script.strikes and not player.script.observers:
        found += order_violations(player)
    return found


def run_violations(log: list[Any], cid: str, own: list[tuple[int, Any]]) -> list[str]:
    found = []
    terminals = [at for at, event in own if event.ends_run]
    if len(terminals) != 1:
        found.append(f"run {cid} has {len(terminals)} terminals")
    elif own[-1][0] != terminals[0]:
        found.append(f"run {cid} emits {type(own[-1][1]).__name__} after its terminal")
    begun = [at for at, event in own if isinstance(event, InferenceStartedEvent)]
    if len(begun) > 1:
        found.append(f"run {cid} has begun twice")
    opened: dict[str, tuple[int, type]] = {}
    spans: list[tuple[int, int, type]] = []
    for at, event in own:
        if type(event) in ENDS:
            if not begun or at < begun[0]:
                found.append(f"{type(event).__name__} before the run began")
            if event.span_id in opened:
                found.append(f"span {event.span_id} begins twice")
            opened[event.span_id] = (at, type(event))
        elif isinstance(event, END_CLASSES):
            start, kind = opened.pop(event.span_id, (None, None))
            if kind is not None and start is not None and type(event) in ENDS[kind]:
                spans.append((start, at, kind))
            elif not is_answer_of_gate(log, at, event):
                found.append(f"{type(event).__name__} ends no start")
            if event.duration is None or event.duration < 0:
                found.append(f"{type(event).__name__} lasted {event.duration}")
    found += [f"{kind.__name__} without an end" for _, kind in opened.values()]
    for start, end, kind in spans:
        for outer_start, outer_end, outer in spans:
            if outer is TurnStartedEvent and outer_start < start < outer_end < end:
                found.append(f"{kind.__name__} outlives its turn")
    return found


def is_answer_of_gate(log: list[Any], at: int, event: Any) -> bool:
    if isinstance(event, ToolCallCompletedEvent):
        return event.answered_by is not None
    return isinstance(event, InferenceGeneratedEvent) and any(
        isinstance(item, BeforeModelCallEvent) and item.response is not None for item in log[:at]
    )


def tool_violations(player: Player) -> list[str]:
    found = []
    approved: dict[int, list[Any]] = defaultdict(list)
    denied: set[int] = set()
    for item in player.log:
        if isinstance(item, ApproveToolCallEvent):
            passed = not item.denied and not any(item is gate for gate in player.raised)
            if passed and not any(edit.field == RAISED and edit.applied for edit in item.edits):
                approved[item.arguments["n"]].append(thaw(item.arguments))
        elif isinstance(item, ToolCallDeniedEvent):
            denied.add(item.tool_call.input["n"])
        elif isinstance(item, tuple):
            _, number, arguments = item
            if number in denied:
                found.append(f"tool {number} was executed after its refusal")
            if player.script.gated and arguments not in approved[number]:
                found.append(f"tool {number} was executed with {arguments}, approved: {approved[number]}")
    return found


def outcome_violations(player: Player, by_run: dict[str, list[tuple[int, Any]]]) -> list[str]:
    found = []
    for run, error in player.outcomes:
        if run is None or not run.id:
            # `begin` raised, or it was never entered.
            continue
        own = by_run.get(run.id, [])
        terminal = next((event for _, event in own if event.ends_run), None)
        if error is None and isinstance(terminal, (InferenceFailedEvent, InferenceDeniedEvent)):
            if not any(isinstance(terminal.get("error"), kind) for kind in (BaseException,)):
                found.append(f"{terminal} of a run that ended well")
        if isinstance(error, Exception) and isinstance(terminal, InferenceFailedEvent):
            ended = isinstance(error, eventbus.RunEndedError)
            if terminal.error is not error and not ended and not player.script.observers:
                found.append(f"the run failed with {terminal.error!r}, and raised {error!r}")
    return found


def order_violations(player: Player) -> list[str]:
    # Where a gate or a tool is interrupted, the handlers of what is told then may be interrupted as well. The
    # bus itself emits the failure of a handler, from wherever it failed, and waits for nobody.
    if any(kind in str(player.script) for kind in ("interrupt", "exit", "closed", "cancel")):
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
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=1000,
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
        run.over = True
        return None
    return (yield from _order_end(run, error=error, max_turns=max_turns))


def _skips_approval_after_an_edit(run, gate_class, **fields):
    if gate_class is ApproveToolCallEvent and fields["arguments"] != fields["tool_call"].input:
        return None
    return _order_make(run, gate_class, **fields)


def _ends_with_another_span(run, span_id, error=None, ends_with=None, **fields):
    if ends_with is ToolCallCompletedEvent and span_id in run.opened:
        opened = run.opened[span_id]
        run.opened[span_id] = opened._replace(fields={**opened.fields, "span_id": _order.new_span_id()})
    return (yield from _order_close(run, span_id, error, ends_with, **fields))


def _ends_twice(run, span_id, error=None, ends_with=None, **fields):
    opened = run.opened.get(span_id)
    yield from _order_close(run, span_id, error, ends_with, **fields)
    if opened is not None and ends_with is InferenceGeneratedEvent:
        run.opened[span_id] = opened
        yield from _order_close(run, span_id, error, ends_with, **fields)


_order_end, _order_make, _order_close = _order.end, _order.make, _order.close


@pytest.mark.parametrize(
    ("name", "bug", "said", "is_async"),
    [
        ("end", _forgets_its_terminal, "has 0 terminals", True),
        ("make", _skips_approval_after_an_edit, "was executed with", False),
        ("close", _ends_with_another_span, "ends no start", True),
        ("close", _ends_twice, "ends no start", False),
    ],
)
def test_a_seeded_bug_is_caught(monkeypatch, name, bug, said, is_async):
    """A run that forgets its terminal, skips an approval or mixes up its ends fails the same checks."""
    for module in (_order, _run):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, bug)

    caught: list[str] = []

    @settings(LIMITS, phases=[Phase.generate])
    @given(scripts())
    def hunt(script):
        if not caught:
            player = Player(script, is_async=is_async)
            player.play_through()
            caught.extend(violation for violation in violations(player) if said in violation)

    hunt()
    assert caught
