"""
Who is telling something of a run, and how the run's end waits for him.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from eventbus._telling import Telling


class Noticed(list[Any]):
    """A list that says when something is put in."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def append(self, item: Any) -> None:
        super().append(item)
        self.event.set()


@pytest.fixture
def telling():
    """Return the books of a run that waits no longer than a test may take."""
    telling = Telling(seconds=10)
    telling.waiters = Noticed()
    return telling


class TestOnAThread:
    """`wait`, which blocks."""

    def test_nobody_is_telling(self, telling):
        """Without tellers there is nothing to wait for."""
        telling.wait()
        assert 10 == telling.seconds

    def test_its_own_is_not_waited_for(self, telling):
        """What this thread is telling itself would never be done."""
        telling.begin()
        telling.wait()
        assert telling.tickets

    def test_another_task_s_is_not_waited_for(self, telling):
        """Nor what another task of this thread is: blocked, it could not go on."""

        async def tells():
            telling.begin()

        async def main():
            await asyncio.create_task(tells())
            telling.wait()

        asyncio.run(main())
        assert telling.tickets

    def test_another_thread_s_is(self, telling):
        """What another thread is telling is waited for, however late it is done."""
        begun, waited = threading.Event(), []

        def tells():
            ticket = telling.begin()
            begun.set()
            waited.append(telling.waiters.event.wait(10))
            telling.end(telling.begin())
            telling.end(ticket)

        thread = threading.Thread(target=tells)
        thread.start()
        assert begun.wait(10)
        telling.wait()
        assert [True] == waited
        thread.join(10)

    def test_it_is_bounded(self):
        """All waiting together is bounded."""
        telling = Telling(seconds=0.001)
        thread = threading.Thread(target=telling.begin)
        thread.start()
        thread.join(10)
        telling.wait()
        assert 0 >= telling.seconds
        telling.wait()
        assert telling.tickets


class TestOnALoop:
    """`await_others`, which lets the loop go on."""

    def test_nobody_is_telling(self, telling):
        """Without tellers, or beside its own, a task waits for nothing."""

        async def main():
            await telling.await_others()
            telling.begin()
            await telling.await_others()

        asyncio.run(main())
        assert 10 == telling.seconds

    def test_another_task_s_is_waited_for(self, telling):
        """What another task of the loop is telling is waited for."""
        told = []

        async def tells():
            ticket = telling.begin()
            while not telling.waiters:
                await asyncio.sleep(0)
            told.append("told")
            telling.end(telling.begin())
            telling.end(ticket)

        async def main():
            task = asyncio.create_task(tells())
            await asyncio.sleep(0)
            await telling.await_others()
            assert ["told"] == told
            await task

        asyncio.run(main())
        assert not telling.tickets

    def test_another_thread_s_is_waited_for(self, telling):
        """So is what another thread is telling; the loop goes on meanwhile."""
        begun, goes_on = threading.Event(), threading.Event()
        assert not telling.tickets

        def tells():
            ticket = telling.begin()
            begun.set()
            assert goes_on.wait(10)
            telling.end(ticket)

        async def main():
            asyncio.get_running_loop().call_soon(goes_on.set)
            await telling.await_others()

        thread = threading.Thread(target=tells)
        thread.start()
        assert begun.wait(10)
        asyncio.run(main())
        assert not telling.tickets
        thread.join(10)

    def test_it_is_bounded(self):
        """A task that waits for the one that waits goes on in the end."""
        telling = Telling(seconds=0.001)

        async def tells():
            telling.begin()

        async def main():
            await asyncio.create_task(tells())
            await telling.await_others()
            await telling.await_others()

        asyncio.run(main())
        assert 0 >= telling.seconds
        assert telling.tickets

    def test_a_loop_that_is_gone(self, telling):
        """Who has told does not mind that the loop of who waited is closed."""
        loop = asyncio.new_event_loop()
        tickets = []
        thread = threading.Thread(target=lambda: tickets.append(telling.begin()))
        thread.start()
        thread.join(10)
        waits = telling.await_others()

        async def main():
            waits.send(None)

        loop.run_until_complete(main())
        loop.close()
        telling.end(tickets[0])
        waits.close()
        assert not telling.tickets
