"""
What type checkers must accept, and what they must know: checked by tests/test_typing.py, never run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, assert_type

import attrs

import eventbus
from eventbus import (
    Event,
    EventLogger,
    Hook,
    HookInfo,
    InferenceStartedEvent,
    ParsedLine,
    Priority,
    Subscription,
    ToolCall,
    ToolCallCompletedEvent,
    ToolResult,
    on,
)
from eventbus.testing import capture, isolated, strict


class OrderPlaced(Event):
    order_id: str
    total: float = 0.0
    tags: list[str] = attrs.field(factory=list[str])


class OrderShipped(Event, channel="shop.order.shipped"):
    order_id: str


@attrs.frozen
class OrderPaid(Event):
    order_id: str


class E3(Event):
    pass


class E4(Event):
    pass


class E5(Event):
    pass


class E6(Event):
    pass


class E7(Event):
    pass


class E8(Event):
    pass


# Events are typed by their fields.
event = OrderPlaced(order_id="A1", total=9.5, correlation_id="c1", timestamp=0.0)
assert_type(event.order_id, str)
assert_type(event.total, float)
assert_type(event.tags, list[str])
assert_type(event.correlation_id, str | None)
assert_type(event.timestamp, float)
assert_type(event.payload, Mapping[str, Any])
assert_type(event["order_id"], Any)
assert_type(event.get("order_id"), Any)
assert_type(event.log_line(), str | None)
assert_type(OrderPlaced.channel, str)
assert_type(event.channel, str)
assert_type(OrderPlaced.has_receivers(), bool)
assert_type(OrderPlaced.ends_run, bool)
OrderPlaced.signal.connect(print)


# Emitting takes the constructor's arguments.
OrderPlaced.emit(order_id="A1")
OrderPlaced.emit(order_id="A1", total=9, tags=["new"], correlation_id="c1", timestamp=0.0)
OrderPaid.emit(order_id="A1")
event.publish()


def emit_with_raw_keys(**raw: Any) -> None:
    OrderPlaced.emit(order_id="A1", **raw)


async def emit_and_await() -> None:
    await OrderPlaced.aemit(order_id="A1", total=9.5)
    await event.apublish()


# Subscribing tells the function's event, and leaves its name callable.
assert_type(OrderPlaced.subscribe(lambda e: e), Subscription[[OrderPlaced], OrderPlaced])
assert_type(OrderPlaced.subscribe(lambda e: e.order_id), Subscription[[OrderPlaced], str])
OrderPlaced.subscribe(lambda e: e.order_id.upper(), when=lambda e: e.total > 1, priority=Priority.SECURITY)
OrderPlaced.subscribe(print)
assert_type(Event.subscribe(lambda e: e), Subscription[[Event], Event])


def note(e: OrderPlaced) -> int:
    return len(e.order_id)


def note_any(e: Event) -> None:
    pass


assert_type(OrderPlaced.subscribe(note), Subscription[[OrderPlaced], int])
assert_type(OrderPlaced.subscribe(note)(event), int)
OrderPlaced.subscribe(note_any)
OrderPlaced.subscribe(note, weak=True).cancel()
with OrderPlaced.subscribe(note, correlation_id="c1") as subscription:
    assert_type(subscription, Subscription[[OrderPlaced], int])
    assert_type(subscription.active, bool)


@OrderPlaced.subscribe
def decorated(e: OrderPlaced) -> int:
    return 1


@OrderPlaced.subscribe(priority=7, when=lambda e: e.total > 1)
def decorated_with_arguments(e: OrderPlaced) -> int:
    return 1


@OrderPlaced.subscribe()
async def decorated_async(e: OrderPlaced) -> int:
    return 1


assert_type(decorated(event), int)
assert_type(decorated_with_arguments(event), int)


# A handler takes the event, a base of it, or nothing; sync or async.
class Audit(Hook):
    stateful = True
    priority = Priority.BUSINESS

    @on(OrderPlaced)
    def one(self, e: OrderPlaced) -> int:
        return 1

    @on(OrderPlaced, when=lambda e: e.total > 1, priority=7)
    def one_filtered(self, e: OrderPlaced) -> None: ...

    @on(OrderPlaced)
    def of_base(self, e: Event) -> None: ...

    @on(OrderPlaced)
    def without(self) -> None: ...

    @on(OrderPlaced)
    async def one_async(self, e: OrderPlaced) -> None: ...

    @on(OrderPlaced, OrderShipped)
    async def without_async(self) -> None: ...

    @on(OrderPlaced, OrderShipped, when=lambda e: e.order_id != "A1")
    def two(self, e: OrderPlaced | OrderShipped) -> None:
        assert_type(e, OrderPlaced | OrderShipped)

    @on(OrderPlaced, OrderShipped, E3)
    def three(self, e: OrderPlaced | OrderShipped | E3) -> None: ...

    @on(OrderPlaced, OrderShipped, E3, E4)
    def four(self, e: OrderPlaced | OrderShipped | E3 | E4) -> None: ...

    @on(OrderPlaced, OrderShipped, E3, E4, E5)
    def five(self, e: OrderPlaced | OrderShipped | E3 | E4 | E5) -> None: ...

    @on(OrderPlaced, OrderShipped, E3, E4, E5, E6)
    def six(self, e: OrderPlaced | OrderShipped | E3 | E4 | E5 | E6) -> None: ...

    @on(OrderPlaced, OrderShipped, E3, E4, E5, E6, E7)
    def seven(self, e: OrderPlaced | OrderShipped | E3 | E4 | E5 | E6 | E7) -> None: ...

    @on(OrderPlaced, OrderShipped, E3, E4, E5, E6, E7, E8)
    def eight(self, e: OrderPlaced | OrderShipped | E3 | E4 | E5 | E6 | E7 | E8) -> None: ...

    @on(OrderPlaced, OrderShipped, E3, E4, E5, E6, E7, E8)
    def eight_of_base(self, e: Event) -> None: ...

    @on(OrderPlaced)
    @on(OrderShipped)
    def twice(self, e: OrderPlaced | OrderShipped) -> None: ...


assert_type(Audit().one(event), int)
assert_type(Audit().without(), None)
Audit.unregister()
Audit.register()


# The catalog's events know their readers, and any object with the attributes serves as a value.
class Scoop:
    name = "sundae"


@attrs.frozen
class MyCall:
    id: str
    name: str
    input: dict[str, Any]


InferenceStartedEvent.emit(agent="sundae")
InferenceStartedEvent.emit(agent=Scoop(), message="hello")
ToolCallCompletedEvent.emit(tool_call=ToolCall("1", "look", {"a": 1}), result=ToolResult({"total": 12}))
ToolCallCompletedEvent.emit(tool_call=MyCall("1", "look", {}), result={"total": 12}, duration=0.5)
assert_type(
    ToolCallCompletedEvent.subscribe(lambda e: e.tool_call.name), Subscription[[ToolCallCompletedEvent], str]
)


class QuietLogger(EventLogger):
    @on(Event)
    def write(self, event: Event) -> None:
        super().write(event)


# Everything else that one calls.
with eventbus.correlation() as cid, eventbus.correlation("c1", parent="c0"):
    assert_type(cid, str)
assert_type(eventbus.current_correlation_id(), str | None)
assert_type(eventbus.carry_context(note)(event), int)
assert_type(eventbus.drain(1.0), int)
assert_type(eventbus.stats(), dict[str, int])
assert_type(eventbus.parse_line("x"), ParsedLine)
assert_type(eventbus.hooks().get("Audit"), HookInfo | None)
assert_type([info.name for info in eventbus.hooks()], list[str])
eventbus.configure(log=None, level="debug", log_data=False, redact=lambda path, value: value)
eventbus.configure(log="json", strict=True, slow_handler=0.5)

with isolated(), strict(), capture(OrderPlaced) as recorder:
    assert_type(recorder.assert_emitted(OrderPlaced, order_id="A1"), OrderPlaced)


async def wait() -> None:
    assert_type(await eventbus.adrain(1.0), int)
    assert_type(await decorated_async(event), int)
    assert_type(await Audit().one_async(event), None)


def awaitable(e: OrderPlaced) -> Awaitable[None]:
    return emit_and_await()


OrderPlaced.subscribe(awaitable)
