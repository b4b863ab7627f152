"""
Who is telling something of a run just then: its end waits, a bounded time, until what others tell is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ._context import running_loop

OTHERS_SECONDS: Final = 1.0
"""How long the end of a run waits, in all, for what others are telling of it just then."""


class Ticket:
    """
    Something that is being told, and who tells it: this thread, and on a loop the task.
    """

    __slots__ = ("task", "thread")

    def __init__(self) -> None:
        loop = running_loop()
        self.thread = threading.get_ident()
        self.task: asyncio.Task[Any] | None = None if loop is None else asyncio.current_task(loop)


class Telling:
    """
    What is being told of one run, and by whom.

    Attributes:
        seconds: How much longer its end may wait for it.
        tickets: What is just being told.
        waiters: What wakes those who wait just then.
    """

    __slots__ = ("seconds", "tickets", "waiters")

    def __init__(self, seconds: float = OTHERS_SECONDS) -> None:
        self.seconds = seconds
        self.waiters: list[Callable[[], object]] = []
        self.tickets: set[Ticket] = set()

    def begin(self) -> Ticket:
        """
        Note that something is being told from here, and return what `end` takes it back with.
        """
        ticket = Ticket()
        self.tickets.add(ticket)
        return ticket

    def end(self, ticket: Ticket) -> None:
        """
        Note that it has been told, to those who may be waiting for it.
        """
        # Who waits does the reverse: he says so first, and looks again then.
        self.tickets.remove(ticket)
        if self.waiters:
            for wake in list(self.waiters):
                # The loop that it would wake may be closed.
                with contextlib.suppress(RuntimeError):
                    wake()

    def wait(self) -> None:
        """
        Wait on this thread until other threads have told what they are just telling.

        Other tasks of its own loop are not waited for: while it is blocked they cannot go on.
        """
        here = threading.get_ident()
        others = {ticket for ticket in list(self.tickets) if ticket.thread != here}
        if not others:
            return
        told = threading.Event()
        self.waiters.append(told.set)
        begun = time.monotonic()
        until = begun + self.seconds
        try:
            while not others.isdisjoint(self.tickets) and told.wait(max(0.0, until - time.monotonic())):
                told.clear()
        finally:
            self._woken(told.set, begun)

    async def await_others(self) -> None:
        """
        Wait on the running loop until other tasks and threads have told what they are just telling.
        """
        here = Ticket()
        others = {
            ticket
            for ticket in list(self.tickets)
            if ticket.thread != here.thread or ticket.task is not here.task
        }
        if not others:
            return
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()

        def look(*, tired: bool = False) -> None:
            if not told.done() and (tired or others.isdisjoint(self.tickets)):
                told.set_result(None)

        wake = partial(loop.call_soon_threadsafe, look)
        self.waiters.append(wake)
        begun = time.monotonic()
        timer = loop.call_later(max(0.0, self.seconds), partial(look, tired=True))
        try:
            look()
            await told
        finally:
            timer.cancel()
            self._woken(wake, begun)

    def _woken(self, wake: Callable[[], object], begun: float) -> None:
        self.waiters.remove(wake)
        self.seconds -= time.monotonic() - begun
