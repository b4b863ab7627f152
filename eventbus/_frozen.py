"""
A clock for tests: it stands still, and goes on when the test, or a wait, says so.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, cast

from . import _clock
from ._scopes import Scopes

START: Final = 1767225600.0
"""2026-01-01T00:00:00Z."""


class FrozenClock:
    """
    The clock inside `frozen_clock`. Safe on any thread.

    Args:
        start: Its first time, in seconds since the epoch.

    Raises:
        TypeError: If the start is no number.
        ValueError: If it is not finite.

    Attributes:
        sleeps: The seconds that runs have waited before they tried again, in order; 0.0 where at once.
    """

    def __init__(self, start: float = START) -> None:
        _check("start", start, "seconds since the epoch, as datetime.timestamp() gives them")
        self.sleeps: list[float] = []
        self._start = start
        # Apart from the start, so that durations are exact.
        self._elapsed = 0.0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.time()!r}>"

    def time(self) -> float:
        """
        Return its time, in seconds since the epoch: what events get for a timestamp.
        """
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """
        Return the seconds that it has gone on since its start: what durations are measured by.
        """
        return self._elapsed

    def tick(self, seconds: float = 1.0) -> None:
        """
        Let it go on.

        Args:
            seconds: How long; 0 or more.

        Raises:
            TypeError: If it is no number.
            ValueError: If it is not finite, or the clock would go back.
        """
        _check("seconds", seconds, "a number of seconds")
        if seconds < 0:
            msg = f"`seconds` must be 0 or more, not {seconds!r}: a clock does not go back."
            raise ValueError(msg)
        with self._lock:
            self._elapsed += seconds

    def sleep(self, seconds: float) -> None:
        """
        Go on instead of waiting, and note it in `sleeps`.
        """
        self.tick(seconds)
        self.sleeps.append(seconds)

    async def asleep(self, seconds: float) -> None:
        """
        Go on instead of waiting, and let the loop's other tasks have their turn.
        """
        self.sleep(seconds)
        await asyncio.sleep(0)


def _check(name: str, value: float, what: str) -> None:
    if not isinstance(cast("object", value), (int, float)) or isinstance(value, bool):
        msg = f"`{name}` must be {what}, not {value!r}."
        raise TypeError(msg)
    if not abs(value) <= sys.float_info.max:
        msg = f"`{name}` must be finite, not {value!r}."
        raise ValueError(msg)


_scopes = Scopes(_clock.swap)


@contextmanager
def frozen_clock(start: float = START) -> Generator[FrozenClock]:
    """
    Stamp and time the events of the code inside by a clock that stands still, on all threads.

    Timestamps, durations and the `seconds` of slow handlers follow it, and a run that waits before it tries
    again does not: the clock goes on by as much. Timeouts, and whatever else reads the time, are as ever.

    It is process-wide. Of scopes that overlap, the clock of the one that began last is everybody's; they may
    end in any order, and the end of the last gives back what was there before the first.

    Args:
        start: Its first time, in seconds since the epoch.

    Yields:
        The clock, with `tick(seconds)` and `sleeps`.

    Raises:
        TypeError: If the start is no number.
        ValueError: If it is not finite.
    """
    clock = FrozenClock(start)
    with _scopes.scope(_clock.Functions(clock.time, clock.monotonic, clock.sleep, clock.asleep)):
        yield clock
