"""
The clock that stands still: timestamps, durations, and waits before a retry.
"""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import UTC, datetime

import pytest

from eventbus import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    AsyncRun,
    BeforeToolCallEvent,
    Event,
    Run,
    ToolCall,
    ToolCallCompletedEvent,
    configure,
)
from eventbus import _clock as module
from eventbus._report import listeners
from eventbus.testing import FrozenClock, capture, frozen_clock

NEW_YEAR = 1767225600.0
CALL = ToolCall("call_1", "lookup", {})


class Placed(Event):
    number: int = 0


def test_timestamps_are_its_own():
    """Of events that are emitted, built by hand, or built in a way of their own; of gates too."""

    class Checked(Placed):
        def __attrs_post_init__(self):
            pass

    Placed.emit()
    with frozen_clock() as clock, capture() as recorder:
        Placed.emit()
        clock.tick()
        Checked.emit()
        clock.tick(0.5)
        assert NEW_YEAR + 1.5 == Placed().timestamp
        assert NEW_YEAR + 1.5 == BeforeToolCallEvent(tool_call=CALL, arguments={}).timestamp
    assert [NEW_YEAR, NEW_YEAR + 1] == [event.timestamp for event in recorder]


def test_a_timestamp_that_is_given_stands():
    """As ever."""
    with frozen_clock(), capture() as recorder:
        Placed.emit(timestamp=7.0)
    assert 7.0 == recorder[0].timestamp


def test_it_starts_where_it_is_told_to():
    """In seconds since the epoch; by default with the year 2026."""
    with frozen_clock(start=1000.0) as clock:
        assert 1000.0 == Placed().timestamp
        assert "<FrozenClock at 1000.0>" == repr(clock)
    assert NEW_YEAR == FrozenClock().time()


def test_durations_are_exact():
    """Of calls, turns and the run: what the clock has gone on in them, and 0.0 where it has not."""

    def lookup():
        clock.tick(0.25)

    with frozen_clock() as clock, capture() as recorder, Run() as run:
        clock.tick(0.5)
        for _ in run.turns(limit=1):
            run.call_tools([CALL], {"lookup": lookup})
            run.complete()
    assert {
        "ToolCallCompletedEvent": 0.25,
        "TurnCompletedEvent": 0.25,
        "InferenceCompletedEvent": 0.75,
    } == {type(event).__name__: event.duration for event in recorder if event.get("duration") is not None}


def test_a_wait_before_a_retry_is_none():
    """The clock goes on by as much, and notes it: 0.0 where it is tried again at once."""
    AfterToolCallEvent.subscribe(
        lambda event: setattr(event, "retry", {1: 1.5, 2: True}.get(event.attempt, False))
    )
    with frozen_clock() as clock, capture(ToolCallCompletedEvent) as recorder, Run() as run:
        run.call_tools([CALL], {"lookup": dict})
    assert [1.5, 0.0] == clock.sleeps
    assert [1.5] == [event.duration for event in recorder]


def test_an_async_run_does_not_wait_either():
    """Other tasks have their turn meanwhile."""
    told = []

    def again(event):
        asyncio.get_running_loop().call_soon(told.append, event.attempt)
        event.retry = 3600 if event.attempt == 1 else False

    AfterModelCallEvent.subscribe(again)

    async def main():
        async with AsyncRun() as run:
            await run.call_model(lambda messages: told.append("called") or "answer", [])

    with frozen_clock() as clock:
        asyncio.run(main())
    assert [3600] == clock.sleeps
    assert ["called", 1, "called"] == told[:3]


def test_slow_handlers_are_measured_by_it(monkeypatch):
    """A handler in which it goes on is a slow one, and says by how much."""
    notices = []
    monkeypatch.setattr(listeners, "notice", notices.append)
    configure(slow_handler=1.0)
    with frozen_clock() as clock:
        Placed.subscribe(lambda event: clock.tick(2.5 * event.number))
        Placed.emit()
        Placed.emit(number=1)
    assert [(2.5, NEW_YEAR + 2.5)] == [(notice.fields["seconds"], notice.timestamp) for notice in notices]


def test_the_real_clock_returns():
    """After the block, also after an error; and the outer clock after an inner one."""
    real = module.Functions(module.time, module.monotonic, module.sleep, module.asleep)
    with pytest.raises(ZeroDivisionError), frozen_clock(start=1.0):
        with frozen_clock(start=2.0):
            assert 2.0 == Placed().timestamp
        assert 1.0 == Placed().timestamp
        raise ZeroDivisionError
    assert real == (module.time, module.monotonic, module.sleep, module.asleep)


def test_it_counts_on_all_threads():
    """An event of another thread has its time too, and no tick of any thread is lost."""
    with frozen_clock() as clock, capture() as recorder:

        def work():
            for _ in range(1000):
                clock.tick()
            Placed.emit()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert NEW_YEAR + 4000 == clock.time() == max(event.timestamp for event in recorder)


def test_it_does_not_go_back():
    """A negative tick is an error that says so."""
    with pytest.raises(ValueError, match=r"must be 0 or more, not -1: a clock does not go back"):
        FrozenClock().tick(-1)


@pytest.mark.parametrize("value", ["2026-01-01", "1", None, True, datetime(2026, 1, 1, tzinfo=UTC)])
def test_what_is_no_number(value):
    """Neither for a start nor for a tick: a TypeError at once, which shows it and says what is one."""
    with (
        pytest.raises(
            TypeError, match=r"^`start` must be seconds since the epoch, as datetime.*gives them, not"
        ),
        frozen_clock(value),
    ):
        raise NotImplementedError
    with pytest.raises(
        TypeError, match=rf"^`seconds` must be a number of seconds, not {re.escape(repr(value))}"
    ):
        FrozenClock().tick(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_what_is_not_finite(value):
    """A ValueError, and the clock stands where it stood."""
    with pytest.raises(ValueError, match=r"^`start` must be finite, not"):
        FrozenClock(value)
    clock = FrozenClock()
    with pytest.raises(ValueError, match=r"^`seconds` must be finite, not"):
        clock.sleep(value)
    assert (0.0, []) == (clock.monotonic(), clock.sleeps)
