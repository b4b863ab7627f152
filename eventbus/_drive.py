"""
Driving the scripts of `_order`, on a thread or on a loop, and calling the tools and models they ask for.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import attrs

from ._order import Ask, Perform, Script, Step, Tell, Wait
from ._readonly import thaw
from ._scheduler import discard
from .values import ToolCall, ToolResult

T = TypeVar("T")

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


def advance(script: Script[Any], resume: Resume) -> Perform | Done:
    """
    Drive a script on this thread to its next Perform, or to its end.

    Args:
        script: What to do.
        resume: Sets the script going: its first `next`, or the `send` or `throw` that answers its Perform.
    """
    try:
        todo = resume()
        while not isinstance(todo, Perform):
            try:
                done = do(todo)
            except BaseException as error:
                todo = script.throw(error)
            else:
                todo = script.send(done)
    except StopIteration as stop:
        return Done(stop.value)
    return todo


def do(todo: Tell | Ask | Wait) -> Any:
    """
    Do one step of a script on this thread.
    """
    if isinstance(todo, Tell):
        return todo.event_class.emit(**todo.fields)
    if isinstance(todo, Ask):
        return todo.gate.publish()
    time.sleep(todo.seconds)
    return None


def drive(script: Script[T], perform: Performer = nothing_to_perform, resume: Resume | None = None) -> T:
    """
    Drive a script on this thread to its end.
    """
    resume = resume or partial(next, script)
    while True:
        reached = advance(script, resume)
        if isinstance(reached, Done):
            return cast("T", reached.value)
        resume = answer(script, perform, reached)


def answer(script: Script[Any], perform: Performer, asked: Perform) -> Resume:
    """
    Perform what a script asks for, and return what sends the outcome back.
    """
    try:
        done = perform(asked)
    except BaseException as error:
        return partial(script.throw, error)
    return partial(script.send, done)


async def aadvance(script: Script[Any], resume: Resume) -> Perform | Done:
    """
    Drive a script on the running loop to its next Perform, or to its end.
    """
    try:
        todo = resume()
        while not isinstance(todo, Perform):
            try:
                done = await ado(todo)
            except GeneratorExit as error:
                # The coroutine is being closed and must not wait any more: the rest goes without.
                return advance(script, partial(script.throw, error))
            except BaseException as error:
                todo = script.throw(error)
            else:
                todo = script.send(done)
    except StopIteration as stop:
        return Done(stop.value)
    return todo


async def ado(todo: Tell | Ask | Wait) -> Any:
    """
    Do one step of a script on the running loop.
    """
    if isinstance(todo, Tell):
        return await todo.event_class.aemit(**todo.fields)
    if isinstance(todo, Ask):
        return await todo.gate.apublish()
    await asyncio.sleep(todo.seconds)
    return None


async def adrive(script: Script[T], perform: Performer = nothing_to_perform) -> T:
    """
    Drive a script on the running loop to its end, awaiting what is awaitable.
    """
    resume: Resume = partial(next, script)
    while True:
        reached = await aadvance(script, resume)
        if isinstance(reached, Done):
            return cast("T", reached.value)
        try:
            done = perform(reached)
            if inspect.isawaitable(done):
                done = await done
        except GeneratorExit as error:
            return drive(script, perform, partial(script.throw, error))
        except BaseException as error:
            resume = partial(script.throw, error)
        else:
            resume = partial(script.send, done)


def tool_performer(tools: Tools) -> Performer:
    """
    Return what executes tool calls: by name from a mapping, or through one callable.
    """

    def perform(step: Perform, /) -> Any:
        call: ToolCall = step.subject
        arguments = thaw(call.input)
        if not isinstance(tools, Mapping):
            plain = attrs.evolve(call)
            # A tool receives a plain dict of its own, to do with as it likes.
            object.__setattr__(plain, "input", arguments)
            return tools(plain)
        named = cast("Any", tools)
        tool = named.get(call.name)
        if tool is None:
            msg = f"There is no tool {call.name!r}; there are: {', '.join(map(str, named)) or 'none'}."
            raise LookupError(msg)
        if not isinstance(arguments, dict):
            msg = f"The arguments of {call.name!r} must be a mapping, not {arguments!r}."
            raise TypeError(msg)
        return tool(**arguments)

    return perform


def model_performer(call: Model, messages: Any, settings: Mapping[str, Any]) -> Performer:
    """
    Return what asks the model, with the caller's own messages and settings where no gate has rewritten them.
    """

    def perform(step: Perform, /) -> Any:
        sent = messages if step.subject is messages else thaw(step.subject)
        return call(sent, **(settings if step.settings is settings else thaw(step.settings)))

    return perform


def refuse_awaitables(perform: Performer) -> Performer:
    """
    Have a plain run say that it cannot await what it was given.
    """

    def plain(step: Perform, /) -> Any:
        done = perform(step)
        if inspect.isawaitable(done):
            discard(done)
            msg = "A plain Run cannot await an async tool or model; use AsyncRun."
            raise TypeError(msg)
        return done

    return plain


def raise_together(errors: Sequence[BaseException]) -> None:
    """
    Raise the single error, a group of several, or nothing.
    """
    if not errors:
        return
    if len(errors) == 1:
        raise errors[0]
    msg = "several tool calls failed"
    raise BaseExceptionGroup(msg, errors)


async def together(
    one: Callable[[ToolCall], Awaitable[Any]], calls: Sequence[ToolCall], parallel: int
) -> list[Any]:
    """
    Call tools in tasks of their own, a limited number at a time, and return their results in order.
    """
    room = asyncio.Semaphore(parallel)
    failed = False

    async def in_turn(call: ToolCall) -> Any:
        nonlocal failed
        async with room:
            if failed:
                return None
            try:
                return await one(call)
            except Exception:
                failed = True
                raise

    tasks = [asyncio.ensure_future(in_turn(call)) for call in calls]
    try:
        await asyncio.wait(tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    raise_together(errors)
    return [ToolResult(error="cancelled") if task.cancelled() else task.result() for task in tasks]
