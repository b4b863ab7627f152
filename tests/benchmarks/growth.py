"""
How cost grows: with handlers, classes, threads, subscriptions that come and go, and payloads.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from eventbus import (
    EventLogger,
    ToolCall,
    ToolCallCompletedEvent,
    ToolResult,
    configure,
    correlation,
    stats,
    trace,
)
from eventbus.testing import isolated

from .comparisons import ROOT, bare, emitting, observe, scratch, subclass
from .contenders import PEERS, functions
from .measuring import Effort, Timed

STEEP: Final = 0.2
"""A cost whose power of the size is greater than its work's by more than this outgrows it; less is noise."""


@dataclass
class Growth:
    """
    One measurement of growth.

    Attributes:
        key: What `--only` takes, and the name of its chart.
        title: What grows, and what it costs.
        across: What the horizontal axis counts.
        up: What the vertical axis shows.
        series: The seconds for each size, by name.
        power: What a series grows by where its work grows with the size: 1; 0 where it should not grow.
    """

    key: str
    title: str
    across: str
    up: str
    power: float
    series: dict[str, dict[int, float]] = field(default_factory=dict)

    def steepest(self) -> Iterator[tuple[str, float, int, int, bool]]:
        """
        Yield for each series its steepest step: the power of the size that it grew by, and the two sizes.

        The last says whether the cost grew faster than its work.
        """
        for name, points in self.series.items():
            sizes = sorted(points)
            powers = [
                (math.log(points[large] / points[small]) / math.log(large / small), small, large)
                for small, large in itertools.pairwise(sizes)
            ]
            if powers:
                grown, small, large = max(powers)
                yield name, grown, small, large, grown > self.power + STEEP


def sizes(effort: Effort, *wanted: int) -> list[int]:
    """
    Return the sizes that are measured with this effort.
    """
    return [size for size in wanted if size <= effort.limit]


def best(sample: Callable[[], float], effort: Effort) -> float:
    """
    Return the least of a few samples.
    """
    return min(sample() for _ in range(max(3, effort.rounds // 6)))


def handlers(effort: Effort) -> Growth:
    """
    Measure an emit to 1 to 10,000 handlers.
    """
    found = Growth("handlers", "One emit, by the number of its handlers", "handlers", "time of one emit", 1)
    makers: dict[str, Callable[[int], Callable[[], object]]] = {
        "eventbus": _observed,
        "a bare loop": lambda number: bare(functions(number)),
        "pyee": PEERS["pyee"],
        "blinker": PEERS["blinker"],
    }
    for name, make in makers.items():
        try:
            found.series[name] = {
                size: best(Timed(make(size), effort), effort)
                for size in sizes(effort, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
            }
        except ImportError:
            continue
    return found


def _observed(number: int) -> Callable[[], object]:
    event_class = subclass()
    observe(event_class, number)
    return emitting(event_class)


DEFINING: Final = """
import sys, time
from eventbus import Event, EventLogger, Hook, on
EventLogger.unregister()
sizes = [int(size) for size in sys.argv[2:]]
class First(Event):
    a: str
def event(n):
    body = {"__annotations__": {"a": str, "b": int, "c": float}, "__module__": "m", "__qualname__": f"E{n}"}
    return type(Event)(f"E{n}", (Event,), body)
def hook(n):
    body = {"h": on(First)(lambda self, event: None), "__module__": "m", "__qualname__": f"H{n}"}
    return type(Hook)(f"H{n}", (Hook,), body)
define, kept, spent = {"events": event, "hooks": hook}[sys.argv[1]], [], 0.0
for size in sizes:
    begun = time.process_time()
    while len(kept) < size:
        kept.append(define(len(kept)))
    spent += time.process_time() - begun
    begun = time.process_time()
    First.emit(a="x")
    print(size, spent, time.process_time() - begun)
"""


def classes(effort: Effort) -> Growth:
    """
    Measure the definition of 1 to 100,000 event classes and hook classes, each kind in a process of its own.
    """
    found = Growth("classes", "Defining classes", "classes defined", "time in all", 1)
    wanted = [str(size) for size in sizes(effort, 10, 100, 1_000, 10_000, 100_000)]
    for kind in ("events", "hooks"):
        done = subprocess.run(
            [sys.executable, "-c", DEFINING, kind, *wanted],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        points, first = {}, {}
        for line in done.stdout.splitlines():
            size, spent, emitted = line.split()
            points[int(size)], first[int(size)] = float(spent), float(emitted)
        found.series[f"{kind[:-1]} classes"] = points
        if kind == "hooks":
            found.series["the first emit after, to all these hooks"] = first
    return found


def threads(effort: Effort) -> Growth:
    """
    Measure emits from 1 to 64 threads at once, of which one runs at a time.
    """
    found = Growth(
        "threads",
        "Emits from several threads at once",
        "emitting threads",
        "time of one emit, of all threads",
        0,
    )
    number = int(effort.seconds * 10_000_000)
    event_class = subclass()
    observe(event_class, 1)
    makers = {"eventbus": emitting(event_class)}
    try:
        makers["pyee"] = PEERS["pyee"](1)
    except ImportError:
        pass
    for name, call in makers.items():
        found.series[name] = {
            count: min(_together(call, count, number // count) for _ in range(3)) / number
            for count in (1, 2, 4, 8, 16, 32, 64)
        }
    return found


def _together(call: Callable[[], object], count: int, each: int) -> float:
    gate = threading.Barrier(count + 1)

    def work() -> None:
        gate.wait()
        for _ in range(each):
            call()

    ours = [threading.Thread(target=work) for _ in range(count)]
    for one in ours:
        one.start()
    begun = time.process_time()
    gate.wait()
    for one in ours:
        one.join()
    return time.process_time() - begun


CROWD: Final = 100


def subscriptions(effort: Effort) -> Growth:
    """
    Measure a run that subscribes, emits once and cancels, among others that stay, on a crowded event.
    """
    found = Growth(
        "subscriptions",
        f"A run that comes and goes, on an event with {CROWD} observers",
        "runs that are subscribed",
        "time of subscribe, emit and cancel",
        0,
    )
    points: dict[int, float] = {}
    alone: dict[int, float] = {}
    for size in sizes(effort, 1, 10, 100, 1_000, 10_000):
        for crowd, into in ((CROWD, points), (0, alone)):
            event_class = subclass()
            observe(event_class, crowd)
            for count, one in enumerate(functions(size)):
                event_class.subscribe(one, correlation_id=f"run-{count}")
            into[size] = best(Timed(_coming_and_going(event_class), effort), effort)
    found.series[f"with {CROWD} observers"] = points
    found.series["with no others"] = alone
    return found


def _coming_and_going(event_class: Any) -> Callable[[], None]:
    handle = functions(1)[0]
    emit = emitting(event_class)

    def once() -> None:
        with correlation() as cid, event_class.subscribe(handle, correlation_id=cid):
            emit()

    return once


CALL: Final = ToolCall("call_0", "fetch")


def fetched(page: Any) -> None:
    """
    Emit the event of a tool that has returned a page.
    """
    ToolCallCompletedEvent.emit(agent="sundae", tool_call=CALL, result=ToolResult(page))


def payloads(effort: Effort) -> Growth:
    """
    Measure an emit with a payload of 10 B to 10 MB: observed, logged, stored.
    """
    found = Growth(
        "payloads", "One emit, by the size of what a tool returned", "bytes", "time of one emit", 1
    )
    wanted = [
        size
        for size in (10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
        if size <= effort.limit * 100
    ]
    with scratch() as path:
        for name, listen in (
            ("one observer", _observe),
            ("a line in the log", _log),
            ("the trace store", _store),
        ):
            for kind, make in (("text", _text), ("a dict of texts", _dict)):
                with isolated(), ExitStack() as stack:
                    listen(stack, path)
                    points = {}
                    for size in wanted:
                        page = make(size)
                        timed = Timed(lambda page=page: fetched(page), effort, afterwards=trace.flush)
                        points[size] = best(timed, effort) if size < 10**6 else timed()
                    found.series[f"{kind}: {name}"] = points
    assert not stats()["store_dropped"], "the store could not keep up"
    return found


def _text(size: int) -> str:
    return ("all work and no play makes jack a dull boy. " * (size // 44 + 1))[:size]


def _dict(size: int) -> dict[str, Any]:
    return {f"k{number}": _text(min(size, 100)) for number in range(max(1, size // 100))}


def _observe(_stack: ExitStack, _path: Path) -> None:
    ToolCallCompletedEvent.subscribe(functions(1)[0])


def _log(stack: ExitStack, path: Path) -> None:
    kept = os.dup(2)
    file = os.open(path / "lines.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 2)
    os.close(file)
    configure(log="stderr")
    EventLogger.register()
    stack.callback(os.close, kept)
    stack.callback(os.dup2, kept, 2)


def _store(stack: ExitStack, path: Path) -> None:
    trace.start(Path(tempfile.mkdtemp(dir=path)) / "runs.db")
    stack.callback(trace.stop)


GROWTHS: Final[dict[str, Callable[[Effort], Growth]]] = {
    "handlers": handlers,
    "classes": classes,
    "threads": threads,
    "subscriptions": subscriptions,
    "payloads": payloads,
}
