"""
What the bus counts about itself.
"""

from __future__ import annotations

from collections.abc import Callable

_gauges: dict[str, Callable[[], int]] = {}


class Counters:
    """
    Numbers that only grow. `counters.failures += 1` is one uninterrupted step of the interpreter.
    """

    __slots__ = ("dropped", "evicted", "failures", "log_dropped", "store_dropped")

    def __init__(self) -> None:
        self.failures = 0
        self.dropped = 0
        self.evicted = 0
        self.log_dropped = 0
        self.store_dropped = 0


counters = Counters()


def gauge(name: str, read: Callable[[], int]) -> None:
    """
    Let `stats` report under `name` what `read` returns at that moment.
    """
    _gauges[name] = read


def stats() -> dict[str, int]:
    """
    Return what the bus has counted since the process started.

    Returns:
        A new dict: `events` (built, because somebody listened), `failures` (exceptions of handlers),
        `dropped` (async deliveries that were dropped or cancelled), `pending` (async deliveries that wait or
        run now), `evicted` (stateful instances dropped for `stateful_capacity`), `log_dropped` (lines that
        no sink took), `store_dropped` (events that a trace store could not keep), `store_pending` (events
        that wait to be written to it). Callable from any thread.
    """
    counted = {name: getattr(counters, name) for name in Counters.__slots__}
    return dict(sorted((counted | {name: read() for name, read in _gauges.items()}).items()))
