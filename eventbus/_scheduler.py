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
import importlib
import inspect
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from ._context import running_loop, scope_loop
from ._counters import counters, gauge
from ._depth import hook_name, level_var
from ._errors import LoopClosedError, PendingLimitError
from ._report import AwaitableWrapper, notice, report_failure
from ._settings import settings
from ._stateful import end_run, is_kept

if TYPE_CHECKING:
    from ._registry import Receiver

T = TypeVar("T")
Waiter: TypeAlias = "tuple[Delivery | None, asyncio.AbstractEventLoop, asyncio.Future[None]]"

EXIT_DRAIN_SECONDS: Final = 5.0
"""How long the interpreter's exit waits for pending deliveries, in all."""

CANCEL_SECONDS: Final = 1.0
"""How long the background loop waits at exit for the tasks that it has cancelled."""

FULL_WAIT_SECONDS: Final = 1.0
"""How long an emit from a thread waits for room among the pending deliveries."""

FINALIZE_PRIORITY: Final = 100
"""The place among the finalizers of a multiprocessing child; the library's own have at most 15."""

NAMED_LEFT: Final = 5
"""How many handlers the line at exit names."""

NEEDED_FRAMES: Final = 20
"""How many calls deep it goes, at most, from a delivery being noted to its loop having it."""

GLANCE_SECONDS: Final = 0.1
"""How often a waiting drain looks for loops that were stopped or closed, since these wake nobody."""

MAX_KEPT_ERRORS: Final = 1000
"""How many errors of strict mode wait for a drain."""


delivery_var: contextvars.ContextVar[Delivery | None] = contextvars.ContextVar(
    "eventbus_delivery", default=None
)
"""The delivery that this code is part of, on whatever task or thread of its own."""


class Delivery:
    """
    One async handler's run for one event.
    """

    __slots__ = (
        "awaitable",
        "context",
        "done",
        "event",
        "followers",
        "key",
        "loop",
        "lost",
        "receiver",
        "started",
        "task",
    )

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
        self.context.run(delivery_var.set, self)
        self.task: asyncio.Task[Any] | None = None
        self.followers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.started = False
        self.done = False
        self.lost = False

    def fail(self, error: Exception) -> None:
        """
        Report an error of this delivery, in the context of its emitter.
        """
        over = self.event.ends_run and not is_kept(self.event.correlation_id)
        try:
            self.context.run(
                report_failure,
                hook=hook_name(self.receiver),
                handler=self.receiver.name,
                event=self.event,
                error=error,
                key=self.receiver.target,
            )
        finally:
            if over:
                # The run has ended before; a stateful hook that hears of the failure begins nothing anew.
                end_run(self.event.correlation_id)

    def discard(self) -> None:
        """
        Make sure that what will never be awaited says nothing about it.
        """
        if self.task is not None and not self.task.done():
            silence(self.task)
            discard(cast("Coroutine[Any, Any, Any]", self.task.get_coro()))
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
        self._waiters: list[Waiter] = []
        self._draining: list[Delivery] = []
        self._errors: deque[BaseException] = deque(maxlen=MAX_KEPT_ERRORS)
        self._background: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._exit_registered = False
        self._finalizes = False
        self._exit_seconds = EXIT_DRAIN_SECONDS
        self._exited = False
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
        try:
            needs_stack(NEEDED_FRAMES)
        except RecursionError:
            # Before anything is noted: half a delivery would be pending for ever.
            discard(awaitable)
            raise
        here = running_loop()
        if self._pending:
            self._reap()
        loop = here
        if loop is None and not self._is_too_late():
            try:
                loop = scope_loop() or self._background_loop()
            except Exception as error:
                # There is no thread or no loop to be had.
                self._drop(awaitable, event, receiver, error)
                return
        if loop is None:
            msg = (
                f"The interpreter is exiting: {type(event).__name__} was not delivered to {receiver.name}. "
                "Emit before, or handle it in a plain function."
            )
            self._drop(awaitable, event, receiver, LoopClosedError(msg))
            return
        cid = event.correlation_id
        delivery = Delivery(awaitable, event, receiver, loop, None if cid is None else (receiver.serial, cid))
        with self._changed:
            accepted = self._has_room() or (here is None and self._wait_for_room())
            if accepted:
                self._register_exit()
                self._pending[delivery] = None
                self._loops[loop] += 1
                chain = self._chains.setdefault(delivery.key, deque()) if delivery.key is not None else None
                if chain is not None:
                    chain.append(delivery)
                # Not by the chain's length: a signal handler or a finalizer may emit between any two lines.
                delivery.started = chain is None or chain[0] is delivery
        if not accepted:
            msg = (
                f"{settings.max_pending} async deliveries are pending; that of {type(event).__name__} to "
                f"{receiver.name} was dropped. Let the handler do less, or configure(max_pending=...)."
            )
            self._drop(awaitable, event, receiver, PendingLimitError(msg))
        elif delivery.started:
            self._start(delivery)

    def _start(self, delivery: Delivery | None) -> None:
        # A loop: on a closed event loop each delivery of a long chain is lost in its turn.
        while delivery is not None:
            if running_loop() is delivery.loop:
                self._start_here(delivery)
                return
            try:
                delivery.loop.call_soon_threadsafe(self._start_here, delivery)
                return
            except RuntimeError:
                delivery = self._lost(delivery)

    def _start_here(self, delivery: Delivery) -> None:
        if delivery.done:
            return
        coroutine = as_coroutine(delivery.awaitable)
        try:
            delivery.task = delivery.loop.create_task(coroutine, context=delivery.context)
        except Exception as error:
            # A task factory of the application's own.
            discard(coroutine)
            discard(delivery.awaitable)
            self._fail(delivery, error)
            self._start(self._forget(delivery))
            return
        delivery.task.add_done_callback(lambda task: self._finished(delivery, task))

    def _finished(self, delivery: Delivery, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._start(self._lost(delivery))
            return
        error = task.exception()
        try:
            if isinstance(error, Exception):
                if settings.strict:
                    error.add_note(
                        f"raised by {delivery.receiver.name}, for {type(delivery.event).__qualname__}"
                    )
                self._fail(delivery, error)
            elif error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
                # Those two come out of the loop itself.
                self.keep(error)
        finally:
            # Whoever listens to failures may be interrupted; the delivery is over all the same.
            self._start(self._forget(delivery))

    def _fail(self, delivery: Delivery, error: Exception) -> None:
        if settings.strict:
            self.keep(error)
        else:
            delivery.fail(error)

    def keep(self, error: BaseException) -> None:
        """
        Keep an error for the next drain to raise.
        """
        self._errors.append(error)

    def _forget(self, delivery: Delivery) -> Delivery | None:
        # Returns the delivery whose turn it is now.
        following: Delivery | None = None
        with self._lock:
            if delivery.done:
                return None
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
            self._tell_waiters()
            for loop, future in delivery.followers:
                wake(loop, future)
        return following

    async def in_turn(self, awaitable: Awaitable[Any], receiver: Receiver, event: Any) -> None:
        """
        Await a handler behind what is scheduled for it already from the same run.

        So an awaited emit comes after the plain ones before it. Not one that a handler awaits: that handler
        may be what it would wait for.
        """
        try:
            await self._turn((receiver.serial, event.correlation_id))
        except BaseException:
            discard(awaitable)
            raise
        await awaitable

    async def _turn(self, key: Hashable) -> None:
        chain = self._chains.get(key)
        if not chain or delivery_var.get() is not None:
            return
        last, here = chain[-1], asyncio.get_running_loop()
        # Looked at again now and then, as in drain: a loop that stops wakes nobody.
        while not last.done and last.loop.is_running():
            with self._lock:
                future: asyncio.Future[None] = here.create_future()
                last.followers.append((here, future))
            await asyncio.wait([future], timeout=GLANCE_SECONDS)

    def _tell_waiters(self) -> None:
        if not self._pending or self._waiting_for_room or self._draining:
            self._changed.notify_all()
        for own, loop, future in self._waiters:
            if not self._left(own):
                wake(loop, future)

    def _lost(self, delivery: Delivery) -> Delivery | None:
        with self._lock:
            if delivery.lost or delivery.done:
                return None
            delivery.lost = True
        return self._lose(delivery)

    def _lose(self, delivery: Delivery) -> Delivery | None:
        delivery.discard()
        counters.dropped += 1
        msg = (
            f"{delivery.receiver.name} was cancelled before it had handled {type(delivery.event).__name__}: "
            "its event loop closed, or its task was cancelled. `await adrain()` before the loop ends."
        )
        try:
            self._fail(delivery, LoopClosedError(msg))
        except BaseException:
            self._start(self._forget(delivery))
            raise
        return self._forget(delivery)

    def _reap(self) -> None:
        # A loop that is closed with deliveries in its queue tells nobody.
        with self._lock:
            closed = {loop for loop in list(self._loops) if loop.is_closed()}
            if not closed:
                return
            gone = [one for one in list(self._pending) if one.loop in closed and not one.lost]
            for delivery in gone:
                delivery.lost = True
        # All were marked first: what hears of one loss may schedule, and so come here again.
        for delivery in gone:
            self._start(self._lose(delivery))

    def _has_room(self) -> bool:
        return len(self._pending) < settings.max_pending

    def _wait_for_room(self) -> bool:
        self._waiting_for_room += 1
        try:
            return self._changed.wait_for(self._has_room, FULL_WAIT_SECONDS)
        finally:
            self._waiting_for_room -= 1

    def _drop(self, awaitable: Awaitable[Any], event: Any, receiver: Receiver, error: Exception) -> None:
        discard(awaitable)
        counters.dropped += 1
        if settings.strict:
            self.keep(error)
        else:
            report_failure(
                hook=hook_name(receiver), handler=receiver.name, event=event, error=error, key=receiver.target
            )

    def _background_loop(self) -> asyncio.AbstractEventLoop | None:
        with self._lock:
            if self._background is not None and self._background.is_running():
                return self._background
            if self._exited or sys.is_finalizing():
                return None
            loop = asyncio.new_event_loop()
            running = threading.Event()
            thread = threading.Thread(target=run_loop, args=(loop, running), name="eventbus", daemon=True)
            try:
                thread.start()
            except BaseException:
                loop.close()
                raise
            running.wait()
            self._background, self._thread = loop, thread
            self._register_exit()
            return loop

    def run(self, awaitable: Awaitable[T]) -> T:
        """
        Run `awaitable` on the background loop, in the caller's context, and wait for what it returns.

        The caller must not be on a running loop, which would wait for itself.
        """
        try:
            loop = self._background_loop()
        except BaseException:
            discard(awaitable)
            raise
        if loop is None:
            discard(awaitable)
            msg = "The interpreter is exiting, and no loop can be started any more to await a handler."
            raise LoopClosedError(msg)

        async def outcome() -> tuple[T | None, BaseException | None]:
            # Not raised on the loop, which would turn some exceptions into others, and be ended by some.
            try:
                return await awaitable, None
            except BaseException as error:
                return None, error

        future = asyncio.run_coroutine_threadsafe(outcome(), loop)
        try:
            result, error = future.result()
        except BaseException:
            future.cancel()
            raise
        if error is not None:
            raise error
        return cast("T", result)

    def drain(self, timeout: float | None = None) -> int:
        """
        Wait until no async delivery is pending; see `eventbus.drain`.
        """
        if running_loop() is not None:
            msg = "drain() would block the running event loop; use `await adrain()` there."
            raise RuntimeError(msg)
        deadline = None if timeout is None else time.monotonic() + timeout
        own = self._enter_drain()
        try:
            while True:
                self._reap()
                with self._changed:
                    left = self._left(own)
                    glance = remaining(deadline)
                    if not left or glance <= 0 or not any(loop.is_running() for loop in list(self._loops)):
                        break
                    self._changed.wait(glance)
        finally:
            self._leave_drain(own)
        self._raise_errors()
        return left

    async def adrain(self, timeout: float | None = None) -> int:
        """
        Wait on a loop until no async delivery is pending; see `eventbus.adrain`.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else time.monotonic() + timeout
        own = self._enter_drain()
        try:
            while True:
                self._reap()
                with self._lock:
                    left = self._left(own)
                    glance = remaining(deadline)
                    if not left or glance <= 0 or not any(loop.is_running() for loop in list(self._loops)):
                        break
                    future: asyncio.Future[None] = loop.create_future()
                    waiter = (own, loop, future)
                    self._waiters.append(waiter)
                try:
                    await asyncio.wait([future], timeout=glance)
                finally:
                    with self._lock:
                        self._waiters.remove(waiter)
        finally:
            self._leave_drain(own)
        self._raise_errors()
        return left

    def _enter_drain(self) -> Delivery | None:
        own = delivery_var.get()
        if own is None or own.done:
            return None
        with self._lock:
            self._draining.append(own)
            self._tell_waiters()
        return own

    def _leave_drain(self, own: Delivery | None) -> None:
        if own is not None:
            with self._lock:
                self._draining.remove(own)

    def _left(self, own: Delivery | None) -> int:
        # A handler that waits for the others must not wait for itself, nor for what waits behind it; nor for
        # another that waits for it.
        if own is None:
            return len(self._pending)
        waiting = {delivery for delivery in self._draining if not delivery.done}
        return len(self._pending) - sum(1 if d.key is None else len(self._chains[d.key]) for d in waiting)

    def _raise_errors(self) -> None:
        with self._lock:
            errors = list(self._errors)
            self._errors.clear()
        # No task is left that it could end, so it goes to whoever waits for the tasks.
        for error in errors:
            if not isinstance(error, Exception):
                errors.remove(error)
                self._errors.extend(errors)
                raise error
        if errors:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup("async handlers failed", errors)

    def _is_too_late(self) -> bool:
        # Exit functions that are registered while they run are never called. They run when the main thread
        # is at its end, and no longer waits for others in `threading._shutdown`.
        main = threading.main_thread()
        if self._exit_registered or main.is_alive():
            return False
        frame = sys._current_frames().get(main.ident or 0)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        return frame is None or frame.f_code is not threading._shutdown.__code__  # type: ignore[attr-defined]  # CPython's own

    def _register_exit(self) -> None:
        if not self._exit_registered:
            self._exit_registered = True
            atexit.register(self.close)
            try:
                # Earlier than atexit, while there is the executor that resolves a host's name: what is
                # registered last is called first.
                importlib.import_module("concurrent.futures.thread")
                threading._register_atexit(self.drain_at_exit)  # type: ignore[attr-defined]  # CPython's own
            except (AttributeError, RuntimeError):
                # Another Python, or threads are being ended already; `close` waits as well.
                pass
        if not self._finalizes:
            self._finalizes = True
            process = sys.modules.get("multiprocessing.process")
            if process is not None and process.parent_process() is not None:
                # A child of multiprocessing may end without exit functions. Before the finalizers of queues,
                # which handlers may put into.
                util = importlib.import_module("multiprocessing.util")
                util.Finalize(None, self.close, exitpriority=FINALIZE_PRIORITY)

    def drain_at_exit(self) -> None:
        """
        Wait for what is pending, within what is left of the time for it; never raises.
        """
        if running_loop() is not None:
            return
        started = time.monotonic()
        try:
            self.drain(max(self._exit_seconds, 0.0))
        except BaseException as error:
            notice("error", ("HOOK", "FAIL"), ("hook", "drain"), error=error)
        self._exit_seconds -= time.monotonic() - started

    def close(self) -> None:
        """
        Wait a bounded time for what is pending, say what is left, and end the background thread for good.
        """
        self.drain_at_exit()
        with self._lock:
            self._exited = True
            left = list(self._pending)
            loop, thread = self._background, self._thread
            self._background = self._thread = None
            for delivery in left:
                self._forget(delivery)
        if left:
            counters.dropped += len(left)
            names = list(dict.fromkeys(delivery.receiver.name for delivery in left))[:NAMED_LEFT]
            notice("warning", ("HOOK", "LEFT"), ("hook", names[0]), pending=len(left), handlers=names)
        if loop is not None and thread is not None and loop.is_running():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(2 * CANCEL_SECONDS)
        for delivery in left:
            if delivery.loop.is_running():
                silence(delivery.task)
            else:
                delivery.discard()

    def after_fork(self) -> None:
        """
        Start empty in a forked child: what was pending belongs to the parent, and its threads stayed there.
        """
        inherited = [*self._of_parent, *self._pending]
        for delivery in inherited:
            silence(delivery.task)
            if delivery.task is None:
                discard(delivery.awaitable)
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


def needs_stack(frames: int) -> None:
    """
    Raise RecursionError unless there is room on the stack for so many frames.
    """
    if frames:
        needs_stack(frames - 1)


def discard(awaitable: Awaitable[Any]) -> None:
    """
    Close a coroutine that nobody will await, so that Python does not warn of it.
    """
    while isinstance(awaitable, AwaitableWrapper):
        awaitable = awaitable.inner
    if inspect.iscoroutine(awaitable):
        try:
            awaitable.close()
        except Exception:
            # It is running, or does not end cleanly; its loss is told in any case.
            return


def silence(task: asyncio.Task[Any] | None) -> None:
    """
    Have asyncio say nothing of a task that never ends with its loop: the bus says it.
    """
    if task is not None:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather does


def run_loop(loop: asyncio.AbstractEventLoop, running: threading.Event) -> None:
    """
    Be the background thread.
    """
    asyncio.set_event_loop(loop)
    loop.call_soon(running.set)
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit) as error:
            # One handler's; the deliveries of the others go on.
            scheduler.keep(error)
        else:
            break
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_SECONDS))
    for task in tasks:
        silence(task)
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
        BaseException: What a handler raised that is no Exception, such as SystemExit on the background loop.
    """
    return scheduler.drain(timeout)


async def adrain(timeout: float | None = None) -> int:
    """
    Wait, on a loop, until all scheduled async handlers are done, those of other loops included.

    A handler may await it: neither itself nor what waits behind it is waited for or counted, nor are other
    handlers that wait like this.

    Args:
        timeout: Seconds to wait at most; None as in `drain`.

    Returns:
        How many are left: 0 means that nothing is.

    Raises:
        Exception: In strict mode what a handler raised, or an ExceptionGroup of several.
        BaseException: As `drain` does.
    """
    return await scheduler.adrain(timeout)
