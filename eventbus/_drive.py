"""
Driving the scripts of `_order`, on a thread or on a loop, and calling the tools and models they ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import attrs

from . import _clock
from ._readonly import thaw
from ._scheduler import Delivery, delivery_var, discard, scheduler
from ._steps import Ask, Carried, Perform, Quiet, Raised, Script, Step, Tell, Wait
from ._verdict import shown
from .values import ToolCall, ToolResult

T = TypeVar("T")

# What tools return as a rule; nobody could await it.
_PLAIN: Final = frozenset({type(None), bool, dict, float, int, list, str, ToolResult})

Model: TypeAlias = Callable[..., Any]
# The values are callables; mypy joins the types of several functions to none that a Callable accepts.
Tools: TypeAlias = Mapping[str, Any] | Callable[[ToolCall], Any]


class Performer(Protocol):
    """
    Does what a script's Perform asks for.
    """

    def __call__(self, step: Perform, /) -> Any:
        """
        Call the tool or the model.
        """


class Done(NamedTuple):
    """
    The end of a script, with what it returned.
    """

    value: Any


Resume: TypeAlias = Callable[[], Step]


def nothing_to_perform(step: Perform, /) -> Any:
    """
    Stand where a script has nothing to perform.
    """
    raise NotImplementedError(repr(step))


def advance(script: Script[Any], resume: Resume | None) -> Perform | Done:
    """
    Drive a script on this thread to its next Perform, or to its end.

    Args:
        script: What to do.
        resume: Sets the script going again: the `send` that answers its Perform; None to begin.
    """
    try:
        todo = next(script) if resume is None else resume()
        while not isinstance(todo, Perform):
            try:
                done = do(todo)
            except BaseException as error:
                done = Raised(error)
            todo = script.send(done)
        return todo
    except StopIteration as stop:
        return Done(stop.value)
    except Carried as carried:
        stopped = carried.error
    finally:
        # What is raised keeps this frame in its traceback, which must not keep it in turn.
        resume = done = None
    try:
        raise stopped
    finally:
        del stopped


def do(todo: Tell | Ask | Wait | Quiet) -> Any:
    """
    Do one step of a script on this thread.
    """
    if isinstance(todo, Tell):
        return todo.event_class.emit(**todo.fields)
    if isinstance(todo, Ask):
        return todo.gate.publish()
    if isinstance(todo, Quiet):
        return todo.run._wait_for_others()
    _clock.sleep(todo.seconds)
    return None


def drive(script: Script[T], perform: Performer = nothing_to_perform, resume: Resume | None = None) -> T:
    """
    Drive a script on this thread to its end.
    """
    todo: Any = None
    done: Any = None
    try:
        todo = next(script) if resume is None else resume()
        while True:
            try:
                done = perform(todo) if isinstance(todo, Perform) else do(todo)
            except BaseException as error:
                done = Raised(error)
            todo = script.send(done)
    except StopIteration as stop:
        # Into no variable: an outcome may have an error, in whose traceback is this frame.
        return stop.value  # type: ignore[no-any-return]  # of the script's own type
    except Carried as carried:
        stopped = carried.error
    finally:
        # As in `advance`.
        resume = todo = done = None
    try:
        raise stopped
    finally:
        del stopped


async def aadvance(script: Script[Any], resume: Resume | None) -> Perform | Done:
    """
    Drive a script on the running loop to its next Perform, or to its end.
    """
    try:
        todo = next(script) if resume is None else resume()
        while not isinstance(todo, Perform):
            try:
                done = await ado(todo)
            except GeneratorExit as error:
                # The coroutine is being closed and must not wait any more: the rest goes without.
                return advance(script, partial(script.send, Raised(error)))
            except BaseException as error:
                done = Raised(as_raised(error))
            todo = script.send(done)
        return todo
    except StopIteration as stop:
        return Done(stop.value)
    except Carried as carried:
        stopped = carried.error
    finally:
        resume = done = None
    try:
        raise stopped
    finally:
        del stopped


def as_raised(error: BaseException) -> BaseException:
    """
    Return an error that came out of a coroutine as it was raised there: it lets no StopIteration pass.
    """
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, StopIteration):
        return cause
    return error


async def ado(todo: Tell | Ask | Wait | Quiet) -> Any:
    """
    Do one step of a script on the running loop.
    """
    if isinstance(todo, Tell):
        if todo.run._owed:
            try:
                await settle(todo.run._owed)
            except BaseException:
                # It is told whatever comes; an end that is not would be missing for ever.
                todo.event_class.emit(**todo.fields)
                raise
        return await todo.event_class.aemit(**todo.fields)
    if isinstance(todo, Ask):
        return await todo.gate.apublish()
    if isinstance(todo, Quiet):
        return await todo.run._await_others()
    await _clock.asleep(todo.seconds)
    return None


async def settle(owed: list[Delivery]) -> None:
    """
    Wait for what a run on this loop has emitted without waiting, so that its handlers see events in order.

    Args:
        owed: The deliveries; those that are done are taken out. A handler that itself does something in the
            run waits for none.
    """
    loop = asyncio.get_running_loop()
    own = delivery_var.get()
    while own is None or own.done:
        owed[:] = [delivery for delivery in owed if not delivery.done and delivery.loop is loop]
        tasks = {task for delivery in owed if (task := _task_ahead_of(delivery)) is not None}
        if not tasks:
            return
        await asyncio.wait(tasks)


def _task_ahead_of(delivery: Delivery) -> asyncio.Task[Any] | None:
    # One without a task of its own stands behind another of its handler.
    chain = None if delivery.key is None else scheduler._chains.get(delivery.key)
    ahead = chain[0] if chain else delivery
    return ahead.task if ahead.loop is delivery.loop else None


def newest() -> Delivery | None:
    """
    Return the delivery that was scheduled last, of those that are pending.
    """
    if not scheduler.pending:
        return None
    with scheduler._lock:
        return next(reversed(scheduler._pending), None)


def scheduled_since(last: Delivery | None, cid: str) -> list[Delivery]:
    """
    Return the pending deliveries of one run that were scheduled after `last`, in order.
    """
    found: list[Delivery] = []
    if scheduler.pending:
        with scheduler._lock:
            for delivery in reversed(scheduler._pending):
                if delivery is last:
                    break
                if delivery.event.correlation_id == cid:
                    found.append(delivery)
    return found[::-1]


async def adrive(script: Script[T], perform: Performer = nothing_to_perform) -> T:
    """
    Drive a script on the running loop to its end, awaiting what is awaitable.
    """
    resume: Resume | None = None
    reached: Perform | Done | None = None
    try:
        while True:
            reached = await aadvance(script, resume)
            if isinstance(reached, Done):
                return cast("T", reached.value)
            try:
                done = perform(reached)
                if inspect.isawaitable(done):
                    done = await done
            except GeneratorExit as error:
                return drive(script, perform, partial(script.send, Raised(error)))
            except BaseException as error:
                resume = partial(script.send, Raised(error))
            else:
                resume = partial(script.send, done)
    finally:
        resume = reached = done = None


def execute(tools: Tools, call: ToolCall) -> Any:
    """
    Execute a tool call: by name from a mapping, or through one callable; the arguments are the tool's own.
    """
    arguments = thaw(call.input)
    if type(tools) is not dict and not isinstance(tools, Mapping):
        plain = attrs.evolve(call)
        # A tool receives a plain dict of its own, to do with as it likes.
        object.__setattr__(plain, "input", arguments)
        return tools(plain)
    named: Any = tools  # pyright: ignore[reportUnknownVariableType]  # it narrows what is said to be Any
    tool = named.get(call.name)
    if not callable(tool) and call.name in named:
        msg = f"The tool {call.name!r} is not callable: {shown(tool)}."
        raise TypeError(msg)
    if tool is None:
        known = ", ".join(str(name) for name, other in named.items() if callable(other))
        msg = f"There is no tool {call.name!r}; there are: {known or 'none'}."
        raise LookupError(msg)
    if not isinstance(arguments, dict):
        msg = f"The arguments of {call.name!r} must be a mapping, not {arguments!r}."
        raise TypeError(msg)
    try:
        return tool(**arguments)
    except TypeError:
        if all(isinstance(name, str) for name in cast("dict[object, object]", arguments)):
            raise
        msg = f"The arguments of {call.name!r} must have names for keys, not {arguments!r}."
        raise TypeError(msg) from None


def tool_performer(tools: Tools) -> Performer:
    """
    Return what executes tool calls.
    """
    return lambda step: execute(tools, step.subject)


def model_performer(call: Model, messages: Any, settings: Mapping[str, Any]) -> Performer:
    """
    Return what asks the model, with the caller's own messages and settings where no gate has rewritten them.
    """

    def perform(step: Perform, /) -> Any:
        sent = messages if step.subject is messages else thaw(step.subject)
        return call(sent, **(settings if step.settings is settings else thaw(step.settings)))

    return perform


def refuse_awaitable(done: T) -> T:
    """
    Return what a tool or model has returned to a plain run, unless it would have to be awaited.

    Raises:
        TypeError: If it would.
    """
    if type(done) not in _PLAIN and inspect.isawaitable(done):
        discard(done)
        msg = "A plain Run cannot await an async tool or model; use AsyncRun."
        raise TypeError(msg)
    return done


def refuse_awaitables(perform: Performer) -> Performer:
    """
    Have a plain run say that it cannot await what it was given.
    """
    return lambda step: refuse_awaitable(perform(step))


def raise_together(errors: Sequence[BaseException]) -> None:
    """
    Raise the single error, a group of several, or nothing; an interrupt comes first, and alone.
    """
    if not errors:
        return
    interrupts = [error for error in errors if not isinstance(error, Exception)]
    if interrupts or len(errors) == 1:
        raise [*interrupts, *errors][0]
    msg = "several tool calls failed"
    raise BaseExceptionGroup(msg, errors)


async def together(
    one: Callable[[ToolCall], Awaitable[Any]], calls: Sequence[ToolCall], parallel: int
) -> list[Any]:
    """
    Call tools in tasks of their own, a limited number at a time, and return their results in order.

    A call whose own task is cancelled has that for a result. After any other failure no further call begins,
    and what runs is waited for, or cancelled if it was an interrupt.
    """
    room = asyncio.Semaphore(parallel)
    errors: list[BaseException] = []

    async def in_turn(number: int, call: ToolCall) -> Any:
        async with room:
            try:
                return None if errors else await one(call)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                # Not out of the task: asyncio would stop its loop for an interrupt, and nothing would end.
                errors.append(error)
                if not isinstance(error, Exception):
                    cancel([*tasks[:number], *tasks[number + 1 :]])
                return None

    tasks = [asyncio.ensure_future(in_turn(number, call)) for number, call in enumerate(calls)]
    try:
        await asyncio.wait(tasks)
    except GeneratorExit:
        # The coroutine is being closed and must not wait any more.
        cancel(tasks)
        raise
    except BaseException:
        cancel(tasks)
        await asyncio.wait(tasks)
        raise
    raise_together(errors)
    return [ToolResult(error="cancelled") if task.cancelled() else task.result() for task in tasks]


def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """
    Cancel tasks, perhaps after the end of their loop.
    """
    for task in tasks:
        with contextlib.suppress(RuntimeError):
            task.cancel()
