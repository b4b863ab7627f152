"""
Scopes of the whole process that overlap: `isolated`, `strict`, `frozen_clock`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest

from eventbus import Event, Hook, _clock, configure, drain, hooks, on
from eventbus._scopes import Scopes
from eventbus._settings import settings
from eventbus.testing import capture, frozen_clock, isolated, strict


class Happened(Event):
    n: int = 0


class Place:
    """Something to be swapped."""

    value = "outer"

    def swap(self, value):
        before, self.value = self.value, value
        return before


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_they_end_in_any_order(order):
    """The one that began last is in force, and the end of all gives back what was there."""
    place = Place()
    scopes = Scopes(place.swap)
    opened = [scopes.scope(number) for number in range(3)]
    for scope in opened:
        scope.__enter__()
    left = [*range(3)]
    for number in order:
        assert left[-1] == place.value
        opened[number].__exit__(None, None, None)
        left.remove(number)
    assert "outer" == place.value


def test_equal_values_are_told_apart():
    """A scope ends itself, and not another that has found the same."""
    place = Place()
    scopes = Scopes(place.swap)
    first, second, third = (scopes.scope(value) for value in (True, False, True))
    for scope in (first, second, third):
        scope.__enter__()
    second.__exit__(None, None, None)
    assert place.value is True
    third.__exit__(None, None, None)
    assert place.value is True
    first.__exit__(None, None, None)
    assert "outer" == place.value


def test_an_error_in_a_scope_beneath_another():
    """It goes through, and the scope has ended."""
    place = Place()
    scopes = Scopes(place.swap)
    lower, upper = scopes.scope("lower"), scopes.scope("upper")
    lower.__enter__()
    upper.__enter__()
    assert not lower.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert "upper" == place.value
    upper.__exit__(None, None, None)
    assert "outer" == place.value


class TestIsolated:
    """Empty buses that overlap."""

    def test_the_outer_bus_returns(self):
        """With its hooks and subscriptions; the bus of the one that began last stands until it ends."""
        seen = []

        class Outer(Hook):
            @on(Happened)
            def handle(self, event):
                seen.append("hook")

        Happened.subscribe(lambda event: seen.append("function"))
        first, second = isolated(), isolated()
        first.__enter__()
        Happened.subscribe(lambda event: seen.append("first"))
        second.__enter__()
        Happened.subscribe(lambda event: seen.append("second"))
        first.__exit__(None, None, None)
        Happened.emit()
        assert ["second"] == seen
        second.__exit__(None, None, None)
        Happened.emit()
        assert ["second", "hook", "function"] == seen
        assert ["live"] == [info.state for info in hooks()]

    def test_in_two_tasks(self):
        """Tasks that are in such a scope at the same time leave none behind."""
        seen = []
        Happened.subscribe(seen.append)

        async def main():
            begun = [asyncio.Event() for _ in range(3)]

            async def one(number):
                with isolated(), strict(), frozen_clock():
                    begun[number].set()
                    for other in begun:
                        await other.wait()

            await asyncio.gather(*map(one, range(3)))

        asyncio.run(main())
        Happened.emit(n=1)
        assert [Happened(n=1)] == seen
        assert not settings.strict

    def test_in_many_threads(self):
        """However they are interleaved."""
        seen = []
        Happened.subscribe(seen.append)
        clock = _clock.time

        def work():
            for _ in range(50):
                with isolated(), strict(), frozen_clock():
                    Happened.emit()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [] == seen
        Happened.emit(n=1)
        assert [Happened(n=1)] == seen
        assert (False, clock) == (settings.strict, _clock.time)

    def test_what_is_pending_at_the_end_still_runs(self):
        """An async handler of the inner bus; what it raises is told to the outer one."""
        done = threading.Event()
        told = []

        async def slow(event):
            await asyncio.to_thread(done.wait)
            raise ValueError("late")

        with isolated():
            Happened.subscribe(slow)
            Happened.emit()
        with capture() as recorder:
            done.set()
            assert 0 == drain(10)
        told = [type(event.error) for event in recorder if event.get("error") is not None]
        assert [ValueError] == told


def test_strict_is_on_until_the_last_has_ended():
    """And then is what it was before the first."""
    for before in (False, True):
        configure(strict=before)
        first, second = strict(), strict()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert settings.strict
        second.__exit__(None, None, None)
        assert before is settings.strict


def test_the_real_clock_returns_after_the_last():
    """Until then it is that of the one that began last."""
    real = _clock.Functions(_clock.time, _clock.monotonic, _clock.sleep, _clock.asleep)
    first, second = frozen_clock(1.0), frozen_clock(2.0)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert 2.0 == Happened().timestamp
    second.__exit__(None, None, None)
    assert real == (_clock.time, _clock.monotonic, _clock.sleep, _clock.asleep)
