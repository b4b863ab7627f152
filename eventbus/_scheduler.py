"""
The async handlers of a plain emit: on which loop each runs, in which order, and how one waits for them.

A delivery is scheduled on the loop that runs where the event was emitted; else on the loop of the enclosing
correlation scope, while it runs; else on one background loop, started at first need. Deliveries with the same
`serial` (one handler, or one stateful instance) and run follow one another, on whichever loops they are.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ._context import running_loop, scope_loop
from ._counters import counters, gauge
from ._depth import hook_name, level_var
from ._errors import LoopClosedError, PendingLimitError
from ._report import notice, report_failure
from ._settings import settings

if TYPE_CHECKING:
    from ._registry import Receiver

T = TypeVar("T")

EXIT_DRAIN_SECONDS: Final = 5.0
"""How long the interpreter's exit waits for pending deliveries."""

FULL_WAIT_SECONDS: Final = 1.0
"""How long an emit from a thread waits for room among the pending deliveries."""

NAMED_LEFT: Final = 5
"""How many handlers the line at exit names."""

GLANCE_SECONDS: Final = 0.1
"""How often a waiting drain looks for loops that were stopped or closed, since these wake nobody."""

MAX_KEPT_ERRORS: Final = 1000
"""How many errors of strict mode wait for a drain."""


class Delivery:
    """
    One async handler's run for one event.
    """

    __slots__ = ("awaitable", "context", "done", "event", "key", "loop", "receiver", "started", "task")

    def __init__(
        self,
        awaitable: Awaitable[Any],
        event: Any,
        receiver: Receiver,
        loop: asyncio.AbstractEventLoop,
        key: Hashable,
    ) -> None:
        self.awaitable = awaitable
        self.event = event
        self.receiver = receiver
        self.loop = loop
        self.key = key
        self.context = contextvars.copy_context()
        # A scheduled handler is no longer inside the emit that scheduled it.
        self.context.run(level_var.set, None)
        self.task: asyncio.Task[Any] | None = None
        self.started = False
        self.done = False

    def fail(self, error: Exception) -> None:
        """
        Report an error of this delivery, in the context of its emitter.
        """
        self.context.run(
            report_failure,
            hook=hook_name(self.receiver),
            handler=self.receiver.name,
            event=self.event,
            error=error,
        )

    def discard(self) -> None:
        """
        Make sure that what will never be awaited says nothing about it.
        """
        if self.task is not None and not self.task.done():
            # Its loop is closed: nobody can cancel it any more, and asyncio need not say so as well.
            self.task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather does
        discard(self.awaitable)


class Scheduler:
    """
    All pending deliveries of the process. Every method is safe to call from any thread.
    """

    def __init__(self) -> None:
        # Re-entrant: a finalizer or a signal handler may emit while this thread is in here.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: dict[Delivery, None] = {}
        self._loops: Counter[asyncio.AbstractEventLoop] = Counter()
        self._chains: dict[Hashable, deque[Delivery]] = {}
        self._waiting_for_room = 0
        self._waiters: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._errors: deque[Exception] = deque(maxlen=MAX_KEPT_ERRORS)
        self._background: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._exit_registered = False
        self._of_parent: list[Delivery] = []

    @property
    def pending(self) -> int:
        """
        How many deliveries wait or run.
        """
        return len(self._pending)

    def schedule(self, awaitable: Awaitable[Any], event: Any, receiver: Receiver) -> None:
        """
        Have `awaitable` awaited, behind the earlier deliveries of its handler and run.

        With `max_pending` deliveries waiting, a thread waits for room, a second at most; without room the
        delivery is dropped, counted and reported.
        """
        here = running_loop()
        if self._pending:
            self._reap()
            if len(self._pending) >= settings.max_pending and not self._room(here):
                self._drop(awaitable, event, receiver)
                return
        loop = here or scope_loop() or self._background_loop()
        cid = event.correlation_id
        delivery = Delivery(awaitable, event, receiver, loop, None if cid is None else (receiver.serial, cid))
        with self._lock:
            self._register_exit()
            self._pending[delivery] = None
            self._loops[loop] += 1
            if delivery.key is not None:
                chain = self._chains.setdefault(delivery.key, deque())
                chain.append(delivery)
                if len(chain) > 1:
                    return
            delivery.started = True
        self._start(delivery)

    def _start(self, delivery: Delivery) -> None:
        if running_loop() is delivery.loop:
            self._start_here(delivery)
            return
        try:
            delivery.loop.call_soon_threadsafe(self._start_here, delivery)
        except RuntimeError:
            self._lost(delivery)

    def _start_here(self, delivery: Delivery) -> None:
        coroutine = as_coroutine(delivery.awaitable)
        delivery.task = delivery.loop.create_task(coroutine, context=delivery.context)
        delivery.task.add_done_callback(lambda task: self._finished(delivery, task))

    def _finished(self, delivery: Delivery, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._lost(delivery)
            return
        error = task.exception()
        if isinstance(error, Exception):
            if settings.strict:
                self._errors.append(error)
            else:
                delivery.fail(error)
        self._forget(delivery)

    def _forget(self, delivery: Delivery) -> None:
        following: Delivery | None = None
        with self._lock:
            if delivery.done:
                return
            delivery.done = True
            del self._pending[delivery]
            self._loops[delivery.loop] -= 1
            if not self._loops[delivery.loop]:
                del self._loops[delivery.loop]
            if delivery.key is not None:
                chain = self._chains[delivery.key]
                chain.remove(delivery)
                if not chain:
                    del self._chains[delivery.key]
                elif not chain[0].started:
                    following = chain[0]
                    following.started = True
            if not self._pending or self._waiting_for_room:
                self._changed.notify_all()
            for waiter in [waiter for waiter in self._waiters if len(self._pending) <= waiter[0]]:
                self._waiters.remove(waiter)
                wake(*waiter[1:])
        if following is not None:
            self._start(following)

    def _lost(self, delivery: Delivery) -> None:
        if delivery.done:
            return
        delivery.discard()
        counters.dropped += 1
        msg = (
            f"{delivery.receiver.name} was cancelled before it had handled {type(delivery.event).__name__}: "
            "its event loop closed, or its task was cancelled. `await adrain()` before the loop ends."
        )
        delivery.fail(LoopClosedError(msg))
        self._forget(delivery)

    def _reap(self) -> None:
        # A loop that is closed with deliveries in its queue tells nobody.
        with self._lock:
            closed = {loop for loop in self._loops if loop.is_closed()}
            gone = [delivery for delivery in self._pending if delivery.loop in closed] if closed else []
        for delivery in gone:
            self._lost(delivery)

    def _room(self, here: asyncio.AbstractEventLoop | None) -> bool:
        if here is not None:
            return False
        with self._changed:
            self._waiting_for_room += 1
            try:
                return self._changed.wait_for(
                    lambda: len(self._pending) < settings.max_pending, FULL_WAIT_SECONDS
                )
            finally:
                self._waiting_for_room -= 1

    def _drop(self, awaitable: Awaitable[Any], event: Any, receiver: Receiver) -> None:
        discard(awaitable)
        counters.dropped += 1
        msg = (
            f"{settings.max_pending} async deliveries are pending; that of {type(event).__name__} to "
            f"{receiver.name} was dropped. Let the handler do less, or configure(max_pending=...)."
        )
        report_failure(
            hook=hook_name(receiver), handler=receiver.name, event=event, error=PendingLimitError(msg)
        )

    def _background_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._background is None or not self._background.is_running():
                loop = asyncio.new_event_loop()
                running = threading.Event()
                thread = threading.Thread(target=run_loop, args=(loop, running), name="eventbus", daemon=True)
                thread.start()
                running.wait()
                self._background, self._thread = loop, thread
                self._register_exit()
            return self._background

    def run(self, awaitable: Awaitable[T]) -> T:
        """
        Run `awaitable` on the background loop, in the caller's context, and wait for what it returns.

        The caller must not be on a running loop, which would wait for itself.
        """
        future = asyncio.run_coroutine_threadsafe(as_coroutine(awaitable), self._background_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def drain(self, timeout: float | None = None) -> int:
        """
        Wait until no async delivery is pending; see `eventbus.drain`.
        """
        if running_loop() is not None:
            msg = "drain() would block the running event loop; use `await adrain()` there."
            raise RuntimeError(msg)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._reap()
            with self._changed:
                if not any(loop.is_running() for loop in self._loops):
                    break
                glance = remaining(deadline)
                if glance <= 0:
                    break
                self._changed.wait(glance)
        self._raise_errors()
        return len(self._pending)

    async def adrain(self, timeout: float | None = None) -> int:
        """
        Wait on a loop until no async delivery is pending; see `eventbus.adrain`.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._reap()
            with self._lock:
                own = self._own()
                if len(self._pending) <= own or not any(loop.is_running() for loop in self._loops):
                    break
                glance = remaining(deadline)
                if glance <= 0:
                    break
                future: asyncio.Future[None] = loop.create_future()
                waiter = (own, loop, future)
                self._waiters.append(waiter)
            try:
                await asyncio.wait([future], timeout=glance)
            finally:
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
        self._raise_errors()
        return len(self._pending) - own

    def _own(self) -> int:
        # A handler that waits for the others must not wait for itself, nor for what waits behind it.
        task = asyncio.current_task()
        own = next((delivery for delivery in self._pending if delivery.task is task), None)
        if own is None:
            return 0
        return 1 if own.key is None else len(self._chains[own.key])

    def _raise_errors(self) -> None:
        with self._lock:
            errors = list(self._errors)
            self._errors.clear()
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("async handlers failed", errors)

    def _register_exit(self) -> None:
        if not self._exit_registered:
            self._exit_registered = True
            atexit.register(self.close)

    def close(self) -> None:
        """
        Wait a bounded time for what is pending, say what is left, and end the background thread.
        """
        if running_loop() is None:
            try:
                self.drain(EXIT_DRAIN_SECONDS)
            except Exception as error:
                notice("error", ("HOOK", "FAIL"), ("hook", "drain"), error=error)
        with self._lock:
            left = list(self._pending)
            loop, thread = self._background, self._thread
            self._background = self._thread = None
        if left:
            counters.dropped += len(left)
            names = list(dict.fromkeys(delivery.receiver.name for delivery in left))[:NAMED_LEFT]
            notice("warning", ("HOOK", "LEFT"), ("hook", names[0]), pending=len(left), handlers=names)
        if loop is not None and thread is not None and loop.is_running():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(EXIT_DRAIN_SECONDS)

    def after_fork(self) -> None:
        """
        Start empty in a forked child: what was pending belongs to the parent, and its threads stayed there.
        """
        inherited = [*self._of_parent, *self._pending]
        for delivery in inherited:
            if delivery.task is not None:
                delivery.task._log_destroy_pending = False  # type: ignore[attr-defined]  # as in discard()
            elif inspect.iscoroutine(delivery.awaitable):
                delivery.awaitable.close()
        registered = self._exit_registered
        Scheduler.__init__(self)
        self._of_parent = inherited
        self._exit_registered = registered


def as_coroutine(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    """
    Return a coroutine that awaits `awaitable`: itself, if it is one.
    """
    if inspect.iscoroutine(awaitable):
        return awaitable

    async def wrapped() -> T:
        return await awaitable

    return wrapped()


def discard(awaitable: Awaitable[Any]) -> None:
    """
    Close a coroutine that nobody will await, so that Python does not warn of it.
    """
    if inspect.iscoroutine(awaitable):
        try:
            awaitable.close()
        except (RuntimeError, ValueError):
            # It is running, or it refuses to end; neither is ours to force.
            return


def run_loop(loop: asyncio.AbstractEventLoop, running: threading.Event) -> None:
    """
    Be the background thread.
    """
    asyncio.set_event_loop(loop)
    loop.call_soon(running.set)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """
    Resolve a future of another loop.
    """

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        # That loop is closed, and so is whoever waited on it.
        return


def remaining(deadline: float | None) -> float:
    """
    Return how long to wait until the next glance at the loops: seconds, 0 or less at the deadline.
    """
    return GLANCE_SECONDS if deadline is None else min(GLANCE_SECONDS, deadline - time.monotonic())


scheduler = Scheduler()
gauge("pending", lambda: scheduler.pending)
os.register_at_fork(after_in_child=scheduler.after_fork)


def drain(timeout: float | None = None) -> int:
    """
    Wait, from a thread without a running loop, until all scheduled async handlers are done.

    Args:
        timeout: Seconds to wait at most; None waits as long as any of them can still make progress, that is
            while one of their loops runs.

    Returns:
        How many are left: 0 means that nothing is.

    Raises:
        RuntimeError: If called on a running loop; use `adrain` there.
        Exception: In strict mode what a handler raised, or an ExceptionGroup of several.
    """
    return scheduler.drain(timeout)


async def adrain(timeout: float | None = None) -> int:
    """
    Wait, on a loop, until all scheduled async handlers are done, those of other loops included.

    A handler may await it: neither itself nor what waits behind it is waited for or counted.

    Args:
        timeout: Seconds to wait at most; None as in `drain`.

    Returns:
        How many are left: 0 means that nothing is.

    Raises:
        Exception: In strict mode what a handler raised, or an ExceptionGroup of several.
    """
    return await scheduler.adrain(timeout)
