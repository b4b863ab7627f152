"""
What `stats` counts.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from eventbus import Event, Hook, adrain, configure, drain, on, stats
from eventbus import _counters as module
from eventbus.testing import isolated


class Placed(Event):
    pass


def counted(function):
    """Return by how much each number has grown over a call."""
    before = stats()
    function()
    after = stats()
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def test_all_of_them():
    """Events built, failures, drops, pending, evictions, log and store drops; a new, sorted dict of ints."""
    names = [
        "dropped",
        "events",
        "evicted",
        "failures",
        "log_dropped",
        "pending",
        "store_dropped",
        "store_pending",
    ]
    assert set(names) <= set(stats())
    assert sorted(stats()) == list(stats())
    assert {int} == {type(value) for value in stats().values()}
    assert stats() is not stats()


def test_events_are_counted_when_they_are_built():
    """An emit that nobody listens to builds nothing, and counts nothing."""
    assert {} == counted(Placed.emit)
    with Placed.subscribe(lambda e: None):
        assert {"events": 1} == counted(Placed.emit)
    assert {} == counted(Placed.emit)


@given(fails=st.lists(st.booleans(), max_size=6))
def test_failures_are_counted_each(fails):
    """Every exception of a handler is one failure; that nobody hears of it changes nothing."""
    with isolated():
        for one in fails:
            Placed.subscribe(lambda e, one=one: 1 / 0 if one else None)
        expected = {"events": 1 if fails else 0, "failures": sum(fails)}
        assert {name: n for name, n in expected.items() if n} == counted(Placed.emit)


def test_pending_is_what_waits_or_runs_now():
    """It grows with a scheduled delivery, and is back when that is done."""

    async def handler(event):
        await asyncio.sleep(0)

    Placed.subscribe(handler)

    async def main():
        before = stats()["pending"]
        Placed.emit()
        Placed.emit()
        assert 2 == stats()["pending"] - before
        await adrain(10)
        assert before == stats()["pending"]

    asyncio.run(main())


def test_drops_and_evictions():
    """A delivery beyond the limit, and an instance beyond the capacity."""

    async def handler(event):
        pass

    class Kept(Hook):
        stateful = True
        stateful_capacity = 1

        @on(Placed)
        def audit(self):
            pass

    def evict():
        Placed.emit(correlation_id="a")
        Placed.emit(correlation_id="b")

    assert {"events": 2, "evicted": 1} == counted(evict)
    Kept.unregister()
    Placed.subscribe(handler)
    configure(max_pending=1)

    async def overfill():
        Placed.emit()
        Placed.emit()
        await adrain(10)

    assert {"events": 2, "dropped": 1, "failures": 1} == counted(lambda: asyncio.run(overfill()))
    assert 0 == drain(10)


def test_threads_lose_no_count():
    """Counting is one uninterrupted step: as many threads as one likes count every failure."""
    Placed.subscribe(lambda e: 1 / 0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work():
        for _ in range(500):
            Placed.emit()

    def all_of_them():
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    try:
        assert 3_000 == counted(all_of_them)["failures"]
    finally:
        sys.setswitchinterval(interval)


def test_a_gauge_is_read_at_the_moment():
    """What another module counts stands under its name."""
    values = iter([5, 6])
    module.gauge("probe", lambda: next(values))
    try:
        assert [5, 6] == [stats()["probe"], stats()["probe"]]
    finally:
        del module._gauges["probe"]
