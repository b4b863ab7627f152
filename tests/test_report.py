"""
How the core speaks: failures, notices, and handlers that take too long.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import types

import pytest

from eventbus import (
    Event,
    EventLogger,
    HandlerFailedEvent,
    Hook,
    adrain,
    configure,
    drain,
    on,
    stats,
)
from eventbus import _report as report
from eventbus.testing import capture


class Placed(Event):
    number: int = 0


@pytest.fixture
def lines(caplog):
    """Make the logger write to caplog, and give that."""
    configure(logger=logging.getLogger("bus"))
    EventLogger.register()
    return caplog


def slow(seconds):
    """Return a clock that advances by so many seconds at each look."""
    now = iter(range(1_000))
    return types.SimpleNamespace(monotonic=lambda: next(now) * seconds, time=time.time)


def on_placed(caplog):
    """Return the words of the lines about handlers of Placed; the logger is measured as well."""
    return [record.message[:9] for record in caplog.records if " on=Placed" in record.message]


class TestFailures:
    """`report_failure` counts and announces, and goes no further."""

    def test_without_a_listener_it_only_counts(self, monkeypatch):
        """Before the catalog is imported nobody hears of a failure."""
        monkeypatch.setattr(report.listeners, "failure", None)
        before = stats()["failures"]
        report.report_failure(hook=None, handler="h", event=Placed(), error=ValueError())
        assert 1 == stats()["failures"] - before

    def test_a_failure_of_a_report_s_own_event_is_counted_only(self):
        """A handler of HandlerFailedEvent that fails makes no second one, sync or async."""
        seen = []

        def broken(event):
            seen.append("sync")
            raise ValueError

        async def abroken(event):
            seen.append("async")
            raise ValueError

        HandlerFailedEvent.subscribe(broken)
        HandlerFailedEvent.subscribe(abroken)
        Placed.subscribe(lambda e: 1 / 0)
        before = stats()["failures"]
        Placed.emit()
        assert 0 == drain(10)
        assert ["async", "sync"] == sorted(seen)
        assert 3 == stats()["failures"] - before

    def test_what_a_listener_emits_is_not_reported_either(self):
        """Whatever fails on this thread while a failure is told is counted, and told to nobody."""
        seen = []

        class Second(Event):
            pass

        @HandlerFailedEvent.subscribe
        def told(event):
            seen.append(type(event.event).__name__)
            Second.emit()

        Second.subscribe(lambda e: 1 / 0)
        Placed.subscribe(lambda e: 1 / 0)
        Placed.emit()
        Placed.emit()
        assert ["Placed", "Placed"] == seen

    def test_a_report_that_itself_fails(self, monkeypatch):
        """An exception out of the announcement is counted and swallowed."""

        def broken(**kwargs):
            raise OSError

        monkeypatch.setattr(report.listeners, "failure", broken)
        before = stats()["failures"]
        report.report_failure(hook=None, handler="h", event=Placed(), error=ValueError())
        assert 2 == stats()["failures"] - before

    def test_each_thread_reports_for_itself(self):
        """While one thread is telling a failure, another's is told as well."""
        seen = []

        @HandlerFailedEvent.subscribe
        def told(event):
            seen.append(event.event.number)
            if event.event.number == 0:
                thread = threading.Thread(target=lambda: Placed.emit(number=1))
                thread.start()
                thread.join()

        Placed.subscribe(lambda e: 1 / 0)
        Placed.emit(number=0)
        assert [0, 1] == seen


class TestNotices:
    """`notice` says what the bus itself has to say."""

    def test_a_notice_has_its_parts(self, monkeypatch):
        """Level, words, subject, fields, run, error and time reach the listener."""
        heard = []
        monkeypatch.setattr(report.listeners, "notice", heard.append)
        error = ValueError()
        report.notice("warning", ("HOOK", "LEFT"), ("hook", "h"), correlation_id="c", error=error, pending=3)
        (told,) = heard
        assert ("warning", ("HOOK", "LEFT"), ("hook", "h")) == (told.level, told.words, told.subject)
        assert ({"pending": 3}, "c", error) == (told.fields, told.correlation_id, told.error)
        assert told.timestamp > 0

    def test_without_a_listener_nobody_hears(self, monkeypatch):
        """Without a logger a notice is nothing."""
        monkeypatch.setattr(report.listeners, "notice", None)
        assert None is report.notice("info", ("A",), ("b", "c"))


class TestSlow:
    """`configure(slow_handler=seconds)` reports a handler that took longer."""

    def test_a_slow_handler_is_a_warning(self, lines, monkeypatch):
        """The line names handler, event, seconds and run."""
        configure(slow_handler=1)
        monkeypatch.setattr(report, "_clock", slow(2.144))

        class RefundAuditHook(Hook):
            @on(Placed)
            def audit(self):
                pass

        Placed.emit(correlation_id="c1")
        (record,) = lines.records
        assert "HOOK SLOW RefundAuditHook.audit on=Placed seconds=2.14" == record.message
        assert ("WARNING", "c1") == (record.levelname, record.cid)

    def test_one_in_time_is_not(self, lines, monkeypatch):
        """A handler that took no longer than the limit says nothing."""
        configure(slow_handler=2)
        monkeypatch.setattr(report, "_clock", slow(2))
        Placed.subscribe(lambda e: None)
        Placed.emit()
        assert [] == lines.records

    def test_a_slow_handler_that_raises_is_both(self, lines, monkeypatch):
        """It is reported as slow and as failed; what is no Exception goes on."""
        configure(slow_handler=1)
        monkeypatch.setattr(report, "_clock", slow(5))

        def broken(event):
            raise ValueError

        with Placed.subscribe(broken):
            Placed.emit()
        assert ["HOOK SLOW", "HOOK FAIL"] == on_placed(lines)

        def leave(event):
            raise KeyboardInterrupt

        Placed.subscribe(leave)
        with pytest.raises(KeyboardInterrupt):
            Placed.emit()
        assert ["HOOK SLOW", "HOOK FAIL", "HOOK SLOW"] == on_placed(lines)

    @pytest.mark.parametrize("fails", [False, True])
    def test_of_an_async_handler_the_awaiting_counts(self, lines, monkeypatch, fails):
        """Scheduled or awaited, the time from its begin to its end is measured."""
        configure(slow_handler=1)
        seen = []

        async def handler(event):
            await asyncio.sleep(0)
            seen.append("handled")
            if fails:
                raise ValueError

        Placed.subscribe(handler)

        async def main():
            Placed.emit()
            assert 0 == await adrain(10)
            await Placed.aemit()

        monkeypatch.setattr(report, "_clock", slow(3))
        asyncio.run(main())
        assert ["handled"] * 2 == seen
        assert (["HOOK SLOW"] + ["HOOK FAIL"] * fails) * 2 == on_placed(lines)

    def test_an_awaitable_that_is_thrown_away_says_nothing(self):
        """A timed delivery that is dropped leaves no coroutine to complain."""
        configure(slow_handler=1, max_pending=1)
        seen = []

        async def handler(event):
            seen.append(event.number)

        Placed.subscribe(handler)

        async def main():
            Placed.emit(number=0)
            Placed.emit(number=1)
            gc.collect()
            await adrain(10)

        asyncio.run(main())
        assert [0] == seen

    def test_it_is_off_by_default_and_free_then(self, monkeypatch):
        """Without the setting nobody looks at a clock, and handlers are called as they are."""

        def handler(event):
            pass

        def no_clock():
            raise AssertionError

        Placed.subscribe(handler)
        monkeypatch.setattr(report, "_clock", types.SimpleNamespace(monotonic=no_clock))
        Placed.emit()
        assert [handler] == list(Placed._topic.plan())
        configure(slow_handler=1)
        assert [handler] != list(Placed._topic.plan())
        configure(slow_handler=None)
        assert [handler] == list(Placed._topic.plan())

    def test_hooks_are_measured_like_functions(self, lines, monkeypatch):
        """Shared instances, several handlers and predicates change nothing."""
        configure(slow_handler=1)
        monkeypatch.setattr(report, "_clock", slow(2))

        class Audit(Hook):
            @on(Placed)
            def first(self):
                pass

            @on(Placed, when=lambda e: e.number)
            def second(self):
                pass

        with capture(Placed):
            Placed.emit(number=1)
        named = [record.message.split()[2] for record in lines.records]
        assert ["Audit.first", "Audit.second"] == [name for name in named if name.startswith("Audit")]


def test_a_wrapper_awaits_what_is_inside():
    """The plain wrapper changes nothing."""

    async def five():
        return 5

    async def main():
        return await report.AwaitableWrapper(five())

    assert 5 == asyncio.run(main())
