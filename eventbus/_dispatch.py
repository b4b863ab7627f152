"""
The delivery loop, and its awaiting twin. Nothing else in the package loops over handlers.

What an error or a result means is the event root's matter, told by four private methods of the event:
`_failed`, `_returned`, `_refused` and `_settled`.
"""

from __future__ import annotations

import inspect
import sys
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from ._context import correlation
from ._counters import counters
from ._depth import OVERFLOW, enter, leave, loop_codes, refusal, settle, trips
from ._scheduler import scheduler

if TYPE_CHECKING:
    from ._registry import Plan

_COROUTINE: Any = CoroutineType


def deliver(plan: Plan, event: Any) -> None:
    """
    Call the handlers of a plan, in order, on this thread; what they raise is the event's own matter.

    Args:
        plan: Who is called.
        event: An instance of an event class.

    Raises:
        Exception: What `_failed` raised, or has collected by the end.
        BaseException: At once, whatever else a handler raised.
    """
    if trips:
        refused = refusal(event)
        if refused is not None:
            event._refused(refused)
            return
    errors: list[Exception] | None = None
    receivers = plan.receivers
    receiver: Any = None
    try:
        for call in plan:
            try:
                if receivers is None:
                    when, call, receiver = call  # noqa: PLW2901 - one more name costs each handler time
                    if when is not None and not when(event):
                        continue
                result = call(event)
                if result is not None:
                    event._returned(receiver if receivers is None else receivers[id(call)], result)
            except Exception as error:
                if error.__class__ is RecursionError:
                    # Without a call: there may be no stack left for one.
                    trips[OVERFLOW] = error
                try:
                    if receivers is not None:
                        receiver = receivers[id(call)]
                    errors = event._failed(receiver, error, errors)
                except RecursionError:  # pragma: no cover - nor has a tracer room here
                    if not event._fails_open:
                        raise
                    counters.failures += 1
    finally:
        if trips:
            try:
                errors = event._settled(settle(sys._getframe()), errors)
            except RecursionError:  # pragma: no cover - nor has a tracer room here
                if not event._fails_open:
                    raise
                counters.failures += 1
    if errors is not None:
        raise_all(errors)


async def adeliver(plan: Plan, event: Any) -> None:
    """
    Call the handlers of a plan, in order, and await each that returns an awaitable, on the running loop.

    The rest is as in `deliver`.
    """
    if trips:
        refused = refusal(event)
        if refused is not None:
            event._refused(refused)
            return
    errors: list[Exception] | None = None
    level = enter(event)
    try:
        for when, call, receiver in plan.in_order():
            level.receiver = receiver
            try:
                if when is None or when(event):
                    result = call(event)
                    # What nearly all of them return is told without being looked at more closely.
                    if result is not None and (type(result) is _COROUTINE or inspect.isawaitable(result)):
                        if scheduler._pending and level.parent is None and event._fails_open:
                            await scheduler.in_turn(result, receiver, event)
                        else:
                            await result
            except Exception as error:
                if error.__class__ is RecursionError:
                    trips[OVERFLOW] = error
                try:
                    errors = event._failed(receiver, error, errors)
                except RecursionError:  # pragma: no cover - nor has a tracer room here
                    if not event._fails_open:
                        raise
                    counters.failures += 1
    finally:
        try:
            errors = event._settled(leave(level), errors)
            if trips:
                errors = event._settled(settle(sys._getframe()), errors)
        except RecursionError:  # pragma: no cover - nor has a tracer room here
            if not event._fails_open:
                raise
            counters.failures += 1
    if errors is not None:
        raise_all(errors)


loop_codes.update((deliver.__code__, adeliver.__code__))


def deliver_within(plan: Plan, event: Any) -> None:
    """
    Deliver inside the scope of the event's own correlation id, so that its handlers' emits carry it.
    """
    with scope_of(event):
        deliver(plan, event)


async def adeliver_within(plan: Plan, event: Any) -> None:
    """
    Deliver and await inside the scope of the event's own correlation id.
    """
    with scope_of(event):
        await adeliver(plan, event)


def scope_of(event: Any) -> correlation:
    """
    Return a scope for the handlers of an event; its id is the event's run's, so no run may take it over.
    """
    cid = event.correlation_id
    if not isinstance(cid, str):
        name = type(event).__qualname__
        msg = f"{name}: `correlation_id` must be a str or None, not {cid!r}; pass str(correlation_id)."
        raise TypeError(msg)
    scope = correlation(cid)
    scope.adopted = True
    return scope


def raise_all(errors: list[Exception]) -> None:
    """
    Raise the single error, or an ExceptionGroup of several.
    """
    if len(errors) == 1:
        raise errors[0]
    msg = "several handlers failed"
    raise ExceptionGroup(msg, errors)
