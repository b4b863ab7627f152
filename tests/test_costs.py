"""
What an emit, a handler, a line and a run cost, counted: nothing here is timed.

The numbers are what the code does now, the most of any supported Python. Whoever makes one of them smaller
lowers it here; whoever has to raise one says in the commit what the step is for.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from eventbus import (
    Event,
    EventLogger,
    Hook,
    InferenceCompletedEvent,
    InferenceStartedEvent,
    ProtectedEvent,
    Run,
    ToolCall,
    ToolCallCompletedEvent,
    ToolResult,
    configure,
    correlation,
    on,
    trace,
)

WARM_UP = 20

TIMES = 3
MANY = 1_000
KEPT_BYTES = 32
"""How often work is done to see what it leaves, and what each may: the interpreter fills its free lists."""


class Placed(Event):
    order: str
    items: int
    total: float


def emit() -> None:
    Placed.emit(order="A1", items=3, total=9.5)


class Entered:
    """
    Counts the Python functions that this thread enters inside; a generator's each time it goes on.
    """

    def __enter__(self) -> Entered:
        self.calls = 0
        gc.disable()
        self._before = sys.getprofile()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        gc.enable()
        # Leaving is a call too.
        self.calls -= 1

    def _count(self, _frame: object, what: str, _argument: object) -> None:
        self.calls += what == "call"


def calls_of(work: Callable[[], object]) -> int:
    """
    Return how many Python functions a piece of work enters, itself left out.
    """
    for _ in range(WARM_UP):
        work()
    with Entered() as entered:
        work()
    return entered.calls - 1


def calls_of_awaited(work: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """
    Return how many Python functions a piece of async work enters, itself left out.
    """

    async def main() -> int:
        for _ in range(WARM_UP):
            await work()
        with Entered() as entered:
            await work()
        return entered.calls - 1

    return asyncio.run(main())


def bytes_of(work: Callable[[], object]) -> tuple[int, int]:
    """
    Return the bytes that a piece of work has allocated at its peak, and those that each of many leaves.

    The least of a few times: a thread of an earlier test's may be just ending.
    """
    for _ in range(WARM_UP):
        work()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        found = [_traced(work) for _ in range(TIMES)]
    finally:
        tracemalloc.stop()
        gc.enable()
    return min(peak for peak, _ in found), min(left for _, left in found)


def _traced(work: Callable[[], object]) -> tuple[int, int]:
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    for _ in range(MANY - 1):
        work()
    after = tracemalloc.get_traced_memory()[0]
    return peak - before, (after - before) // MANY


def handlers(number: int) -> list[Callable[[Any], None]]:
    """
    Return functions that take the event and do nothing.
    """

    def make() -> Callable[[Any], None]:
        def handle(event: Any) -> None:
            pass

        return handle

    return [make() for _ in range(number)]


def observe(number: int, **options: Any) -> None:
    """
    Subscribe functions.
    """
    for handle in handlers(number):
        Placed.subscribe(handle, **options)


def hooks(number: int, **body: Any) -> None:
    """
    Define hooks with one handler each.
    """
    for count in range(number):

        def handle(self: Any, event: Any) -> None:
            pass

        name = f"<locals>.Hook{count}"
        type(Hook)(name, (Hook,), {"handle": on(Placed)(handle), "__qualname__": name, **body})


def each(set_up: Callable[[int], None]) -> float:
    """
    Return how many calls one more of something costs an emit.
    """
    set_up(10)
    few = calls_of(emit)
    set_up(20)
    return (calls_of(emit) - few) / 20


def test_an_emit_for_nobody_is_one_call() -> None:
    """
    Nothing is built, and nothing looked up.
    """
    assert 1 == calls_of(emit)


def test_an_observer_costs_its_own_call() -> None:
    """
    An emit enters the compiled `emit`, the delivery loop, and each handler once.
    """
    observe(1)
    assert 3 == calls_of(emit)

    observe(9)
    assert 12 == calls_of(emit)


def test_a_predicate_that_says_no_costs_its_own_call() -> None:
    """
    A handler whose `when=` says no is not entered, and nothing else is.
    """
    assert 1 == each(lambda number: observe(number, when=lambda event: False))


def test_a_base_class_subscription_costs_nothing_more() -> None:
    """
    The plan of a class has the receivers of its bases in it.
    """

    class Rushed(Placed):
        pass

    observe(1)

    assert calls_of(emit) == calls_of(lambda: Rushed.emit(order="A1", items=3, total=9.5))


def test_subscriptions_to_other_runs_cost_nothing_more() -> None:
    """
    A thousand subscriptions, each to its own run, cost an emit what one costs.
    """
    Placed.subscribe(handlers(1)[0], correlation_id="run-0")
    with correlation("run-0"):
        one = calls_of(emit)
        for count, handle in enumerate(handlers(1_000)):
            Placed.subscribe(handle, correlation_id=f"run-{count + 1}")

        assert one == calls_of(emit)


def test_a_subscription_to_a_run_keeps_little_of_its_own() -> None:
    """
    Of a thousand handlers that hear every run, with one predicate, it keeps a place each and no more.
    """

    def may(event: Any) -> bool:
        return True

    for handle in handlers(1_000):
        Placed.subscribe(handle, when=may)
    ids = [f"run-{count}" for count in range(20)]
    for cid, handle in zip(ids, handlers(20), strict=True):
        Placed.subscribe(handle, correlation_id=cid)
    emit()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for cid in ids:
            Placed.emit(order="A1", items=3, total=9.5, correlation_id=cid)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert kept < len(ids) * 12_000


HANDLERS: dict[str, tuple[dict[str, Any], int]] = {
    "an instance per event": ({}, 2),
    "shared": ({"shared": True}, 2),
    "stateful": ({"stateful": True}, 2),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_hook_costs_no_more_than_recorded(kind: str) -> None:
    """
    One more hook costs its handler's own call, and those that find its instance.
    """
    body, recorded = HANDLERS[kind]
    with correlation("run-1"):
        assert each(lambda number: hooks(number, **body)) <= recorded


def test_an_awaited_delivery_costs_no_more_than_recorded() -> None:
    """
    Each of ten handlers is called and awaited, on the emitter's own task.
    """
    for _ in range(10):

        async def handle(event: Any) -> None:
            pass

        Placed.subscribe(handle)

    async def work() -> None:
        await Placed.aemit(order="A1", items=3, total=9.5)

    assert calls_of_awaited(work) <= 17


RESULT = ToolResult({"total": 12, "items": ["a", "b"], "name": "vanilla ice"})
CALL = ToolCall("call_0", "lookup_order")

LINES: dict[str, tuple[Callable[[], object], int]] = {
    "INF START": (lambda: InferenceStartedEvent.emit(agent="sundae"), 19),
    "TOOL OK": (lambda: ToolCallCompletedEvent.emit(agent="sundae", tool_call=CALL, result=RESULT), 34),
}


@pytest.mark.parametrize("words", LINES)
def test_a_line_costs_no_more_than_recorded(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """
    The event is built, its line written, redacted and sent.
    """
    configure(log="stderr")
    EventLogger.register()
    work, recorded = LINES[words]
    with correlation("a" * 32):
        assert calls_of(work) <= recorded
    assert words in capsys.readouterr().err


def test_storing_an_event_costs_no_more_than_recorded(tmp_path: Path) -> None:
    """
    The emitting thread encodes the event, puts it into the queue, and wakes the writer if it sleeps.
    """
    trace.start(tmp_path / "runs.db")
    try:
        assert calls_of(emit) <= 25
    finally:
        trace.stop()


CALLS = [ToolCall("call_0", "noop")]
TOOLS = {"noop": lambda: None}


def a_run() -> None:
    with Run(agent="sundae") as run:
        run.call_tools(CALLS, TOOLS)


def test_a_run_that_nobody_hears_costs_no_more_than_recorded() -> None:
    """
    A run with one tool call builds no event where there is no listener.
    """
    assert calls_of(a_run) <= 43


def test_a_run_that_is_heard_costs_no_more_than_recorded() -> None:
    """
    The same with one observer and one gate on everything.
    """
    for event_class in (Event, ProtectedEvent):
        event_class.subscribe(handlers(1)[0])

    assert calls_of(a_run) <= 181


WORK: dict[str, tuple[Callable[[], object], int]] = {"an emit": (emit, 320), "a run": (a_run, 4_096)}


@pytest.mark.skipif("coverage" in sys.modules, reason="a coverage that measures allocates as well")
@pytest.mark.parametrize("what", WORK)
def test_what_it_allocates_is_little_and_goes(what: str) -> None:
    """
    While it lasts it holds no more bytes than recorded, and none when it is over.
    """
    observe(1)
    work, recorded = WORK[what]

    peak, left = bytes_of(work)

    assert peak <= recorded
    assert left <= KEPT_BYTES


@pytest.mark.parametrize("what", WORK)
def test_it_leaves_no_cycle(what: str) -> None:
    """
    Everything goes by its reference count, and the garbage collector has nothing to do.
    """
    observe(1)
    work, _ = WORK[what]
    work()
    gc.collect()
    gc.disable()
    try:
        work()
        assert 0 == gc.collect()
    finally:
        gc.enable()


def test_open_runs_of_a_stateful_hook_are_small() -> None:
    """
    Beside its instance, a run costs a stateful hook at most 300 bytes, and none after its end.
    """
    number = 2_000

    class Counting(Hook):
        stateful = True

        @on(InferenceStartedEvent)
        def begin(self, event: Any) -> None:
            self.began = event.timestamp

    ids = [f"{count:032x}" for count in range(number)]
    instances: list[Any] = [None] * number
    for event_class in (InferenceStartedEvent, InferenceCompletedEvent):
        event_class.emit(agent="sundae", correlation_id=ids[0])
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for count in range(number):
            instances[count] = Counting()
            instances[count].began = float(count)
        alone = tracemalloc.get_traced_memory()[0] - before
        instances.clear()
        before = tracemalloc.get_traced_memory()[0]
        for cid in ids:
            InferenceStartedEvent.emit(agent="sundae", correlation_id=cid)
        during = tracemalloc.get_traced_memory()[0] - before
        for cid in ids:
            InferenceCompletedEvent.emit(agent="sundae", correlation_id=cid)
        after = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert (during - alone) / number <= 300
    assert after / number <= 4
