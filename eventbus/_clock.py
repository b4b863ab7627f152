"""
The clock that events are stamped and timed by, and by which a run waits before it tries again.

Whoever uses it looks its functions up here at each use: `eventbus.testing` puts others in their place.
"""

from __future__ import annotations

import asyncio
import time as system
from collections.abc import Awaitable, Callable
from typing import NamedTuple


class Functions(NamedTuple):
    """
    What a clock does; times are in seconds.
    """

    time: Callable[[], float]
    monotonic: Callable[[], float]
    sleep: Callable[[float], object]
    asleep: Callable[[float], Awaitable[object]]


time: Callable[[], float] = system.time
monotonic: Callable[[], float] = system.monotonic
sleep: Callable[[float], object] = system.sleep
asleep: Callable[[float], Awaitable[object]] = asyncio.sleep


def swap(functions: Functions) -> Functions:
    """
    Put a clock in the place of the present one, for the whole process, and return the present one's.
    """
    global time, monotonic, sleep, asleep
    before = Functions(time, monotonic, sleep, asleep)
    time, monotonic, sleep, asleep = functions
    return before


def now() -> float:
    """
    Return the wall clock's time, in seconds since the epoch: the timestamp of an event made just now.
    """
    return time()
