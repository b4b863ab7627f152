"""
Measuring costs in turns: samples, rounds, and ratios with their spread.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

Clock = Callable[[], float]
Sample = Callable[[], float]
"""Takes one sample: the seconds that one unit of work costs."""

WARM_UP: Final = 3
"""How often a function is called before it is measured: caches are filled, code is specialised."""


@dataclass
class Effort:
    """
    How much is measured.

    Attributes:
        rounds: How often each contender has its turn.
        seconds: How long one turn takes, about.
        limit: The largest size at which growth is measured.
    """

    rounds: int = 21
    seconds: float = 0.02
    limit: int = 10**9


FULL: Final = Effort()
QUICK: Final = Effort(rounds=7, seconds=0.005, limit=1_000)


@dataclass
class Contender:
    """
    One of those that are compared.

    Attributes:
        name: What the table calls it.
        sample: Takes one sample.
        counts: Whether it may be the one that ours is compared with; others are there to be seen.
    """

    name: str
    sample: Sample
    counts: bool = True


@dataclass
class Spread:
    """
    The median and the quartiles of a number of samples.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Return the spread of some values."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass
class Measured:
    """
    What came of one comparison.

    Attributes:
        costs: The cost of one unit for each contender, ours first, in seconds.
        ratios: Ours to each of the others, taken round by round.
        best: The cheapest of those that count.
    """

    costs: dict[str, Spread] = field(default_factory=dict)
    ratios: dict[str, Spread] = field(default_factory=dict)
    best: str = ""


class Timed:
    """
    A function that is called so often that one sample takes some time.

    Args:
        call: What is measured.
        effort: How long a sample takes.
        clock: Counts the seconds; by default those that this thread computes, so that whatever else the
            machine does counts little.
        afterwards: Called after each sample, unmeasured.
    """

    def __init__(
        self,
        call: Callable[[], object],
        effort: Effort,
        clock: Clock = time.thread_time,
        afterwards: Callable[[], object] | None = None,
    ) -> None:
        self._call = call
        self._clock = clock
        self._afterwards = afterwards
        self._seconds = effort.seconds
        self._number = 0

    def __call__(self) -> float:
        """Take one sample."""
        if not self._number:
            for _ in range(WARM_UP):
                self._call()
            self._number = 1
            while (taken := self._many()) < self._seconds / 2:
                self._number = max(2 * self._number, int(self._number * self._seconds / max(taken, 1e-6) / 2))
        return self._many() / self._number

    def _many(self) -> float:
        call, clock = self._call, self._clock
        with without_collections():
            begun = clock()
            for _ in itertools.repeat(None, self._number):
                call()
            taken = clock() - begun
        if self._afterwards is not None:
            self._afterwards()
        return taken


class AsyncTimed(Timed):
    """
    A coroutine function that is awaited so often, one call after the other, on one loop.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[object]], effort: Effort
    ) -> None:
        super().__init__(lambda: loop.run_until_complete(_awaited(call)), effort)
        self._loop = loop
        self._awaits = call

    def _many(self) -> float:
        return self._loop.run_until_complete(self._await_many())

    async def _await_many(self) -> float:
        call, clock = self._awaits, self._clock
        with without_collections():
            begun = clock()
            for _ in itertools.repeat(None, self._number):
                await call()
            return clock() - begun


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()


class without_collections:
    """
    Let no garbage collection fall into what is measured, as `timeit` does.
    """

    def __enter__(self) -> None:
        gc.collect(0)
        gc.disable()

    def __exit__(self, *_: Any) -> None:
        gc.enable()


def median_of(call: Callable[[], object], number: int, clock: Clock = time.perf_counter) -> float:
    """
    Return the median of what single calls take, and the empty measurement taken off.
    """
    own, empty = [], []
    with without_collections():
        for _ in itertools.repeat(None, number):
            begun = clock()
            ended = clock()
            empty.append(ended - begun)
            begun = clock()
            call()
            ended = clock()
            own.append(ended - begun)
    return statistics.median(own) - statistics.median(empty)


def slope(small: Sample, large: Sample, more: int) -> Sample:
    """
    Return samples of what one more costs, from two sizes.
    """
    return lambda: (large() - small()) / more


def compare(contenders: list[Contender], effort: Effort) -> Measured:
    """
    Measure contenders in turns, in an order that rotates, and ours, the first, against each of the others.
    """
    samples: dict[str, list[float]] = {one.name: [] for one in contenders}
    for one in contenders:
        one.sample()
    for turn in range(effort.rounds):
        first = turn % len(contenders)
        for one in contenders[first:] + contenders[:first]:
            samples[one.name].append(one.sample())
    ours, *others = contenders
    found = Measured({name: Spread.of(taken) for name, taken in samples.items()})
    for other in others:
        pairs = zip(samples[ours.name], samples[other.name], strict=True)
        found.ratios[other.name] = Spread.of([mine / theirs for mine, theirs in pairs])
    counting = [other.name for other in others if other.counts]
    if counting:
        found.best = min(counting, key=lambda name: found.costs[name].median)
    return found
