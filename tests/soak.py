"""
A soak, on request: rounds of runs, loops, threads and forks, with an eye on threads, descriptors and memory.

`python tests/soak.py --seconds 180` prints a table and ends with status 1 if something has grown. It is no
test: pytest does not collect it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import NamedTuple

from eventbus import (
    AsyncRun,
    Event,
    EventLogger,
    Hook,
    InferenceCompletedEvent,
    InferenceStartedEvent,
    Run,
    ToolCall,
    ToolCallCompletedEvent,
    configure,
    correlation,
    drain,
    on,
    stats,
)
from eventbus._stateful import kept
from eventbus.testing import ScriptedModel, ScriptedTools, isolated

PAGE = os.sysconf("SC_PAGE_SIZE")
SLACK_BYTES = 256 * 1024
"""How much more Python may hold at the end than after the warm-up: what is cached late."""

SLACK_RSS = 16 * 1024 * 1024
"""How much more the process may take: an allocator gives memory back when it likes."""


class Placed(Event):
    number: int = 0


RELOADED = compile(
    "class Reloaded(Hook):\n    @on(Placed)\n    def handle(self, event): ...", "reloaded.py", "exec"
)


class Sample(NamedTuple):
    """What was counted after a round."""

    seconds: float
    rounds: int
    threads: int
    files: int
    python: int
    rss: int
    objects: int
    runs: int
    pending: int

    @classmethod
    def take(cls, started: float, rounds: int) -> Sample:
        gc.collect()
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[1])
        return cls(
            time.monotonic() - started,
            rounds,
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),
            tracemalloc.get_traced_memory()[0],
            pages * PAGE,
            len(gc.get_objects()),
            kept(),
            stats()["pending"],
        )

    def line(self) -> str:
        """Return it as a row of the table."""
        return (
            f"{self.seconds:8.0f} {self.rounds:7d} {self.threads:7d} {self.files:5d} "
            f"{self.python / 1024:10.0f} {self.rss / 1024:10.0f} {self.objects:8d} {self.runs:5d} "
            f"{self.pending:7d}"
        )


HEAD = " seconds  rounds threads files python KiB    rss KiB  objects  runs pending"


def scripts() -> tuple[ScriptedModel, ScriptedTools]:
    """Return a model that asks for two tools and then answers, and the tools, of which one fails."""
    calls = [ToolCall("a", "lookup", {"order": "A1"}), ToolCall("b", "pay", {"amount": 5})]
    return ScriptedModel(calls, "Done."), ScriptedTools(
        {"lookup": {"total": 12}, "pay": TimeoutError("busy")}
    )


def plain_runs() -> None:
    """Take runs through a loop, with tools on threads."""
    for _ in range(20):
        model, tools = scripts()
        with Run("soak", message="Pay A1.") as run:
            for _ in run.turns(limit=3):
                response = run.call_model(model, [])
                if not response.tool_calls:
                    run.complete(response)
                    break
                run.call_tools(response.tool_calls, tools, parallel=2)


def loops() -> None:
    """Open and close event loops, drained or not, with a run and plain emits in each."""

    async def main(number: int) -> None:
        model, tools = scripts()
        async with AsyncRun("soak") as run:
            response = await run.call_model(model, [])
            await run.call_tools(response.tool_calls, tools, parallel=2)
            Placed.emit(number=number)
        if number % 2:
            Placed.emit(number=number)

    for number in range(10):
        asyncio.run(main(number))


def threads() -> None:
    """Emit, subscribe and define a hook anew, as a reload does, on threads of a round's own."""

    def work() -> None:
        with correlation():
            for number in range(20):
                with Placed.subscribe(lambda event: None):
                    Placed.emit(number=number)
                exec(RELOADED, {"Hook": Hook, "on": on, "Placed": Placed, "__name__": "reloaded"})
            InferenceCompletedEvent.emit(agent="soak")

    started = [threading.Thread(target=work) for _ in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def forks() -> None:
    """Fork while deliveries are pending; the child emits and drains."""
    for number in range(2):
        Placed.emit(number=number)
        child = os.fork()
        if not child:
            Placed.emit(number=number, correlation_id="child")
            os._exit(drain(20))
        if os.waitpid(child, 0)[1]:
            sys.exit("a forked child did not drain")


def handlers() -> None:
    """Subscribe what a run meets: stateful, shared, async and failing handlers, and the log to nowhere."""

    class Counting(Hook):
        stateful = True

        @on(InferenceStartedEvent, ToolCallCompletedEvent, Placed)
        def count(self, event: Event) -> None:
            self.count = event

    class Shared(Hook):
        shared = True

        @on(Event)
        async def handle(self, event: Event) -> None:
            await asyncio.sleep(0)

    @Placed.subscribe
    def fails(event: Placed) -> None:
        if event.number == 3:
            raise ValueError(event.number)


def soak(seconds: float, warm_up: float) -> Iterator[Sample]:
    """Run rounds until the time is over, and yield a sample now and then, the first after the warm-up."""
    started = time.monotonic()
    due, rounds = warm_up, 0
    every = (seconds - warm_up) / 12
    while True:
        for part in (plain_runs, loops, threads, forks):
            part()
        rounds += 1
        passed = time.monotonic() - started
        if passed >= due:
            drain(30)
            yield Sample.take(started, rounds)
            if passed >= seconds:
                return
            due = min(due + every, seconds)


def grown(samples: list[Sample]) -> list[str]:
    """Return what has grown from the first samples to the last."""
    # The lowest of some each: a single sample may catch what is about to go.
    third = max(1, len(samples) // 3)
    first, last = (
        {name: min(getattr(sample, name) for sample in part) for name in Sample._fields}
        for part in (samples[:third], samples[-third:])
    )
    allowed = {"threads": 0, "files": 0, "runs": 0, "pending": 0, "python": SLACK_BYTES, "rss": SLACK_RSS}
    return [
        f"{name} has grown from {first[name]} to {last[name]}"
        for name, slack in allowed.items()
        if last[name] > first[name] + slack
    ]


def main() -> int:
    """Soak, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--seconds", type=float, default=180.0, help="how long, in all (180)")
    seconds = parser.parse_args().seconds
    configure(log="stderr")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    tracemalloc.start()
    samples: list[Sample] = []
    print(HEAD)
    with isolated():
        EventLogger.register()
        handlers()
        for sample in soak(seconds, seconds / 6):
            samples.append(sample)
            print(sample.line(), flush=True)
    faults = grown(samples)
    print("\n".join(faults) or "nothing has grown")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
