"""
What type checkers must refuse, each on its own line: checked by tests/test_typing.py, never run.
"""

from __future__ import annotations

from eventbus import Event, Hook, ToolCallStartedEvent, on


class OrderPlaced(Event):
    order_id: str
    total: float = 0.0


class OrderShipped(Event):
    order_id: str


def fn_of_shipped(e: OrderShipped) -> None: ...


event = OrderPlaced(order_id="A1")

# A field of the wrong type.
OrderPlaced.emit(order_id=3)  # error
OrderPlaced(order_id=3)  # error
ToolCallStartedEvent.emit(tool_call="lookup")  # error

# A misspelt key, and one that is no field.
OrderPlaced.emit(order_id="A1", totl=9.5)  # error
OrderPlaced.emit(ordr_id="A1")  # error

# A required field that is missing, and an argument without a name.
OrderPlaced.emit()  # error
OrderPlaced.emit("A1")  # error
ToolCallStartedEvent.emit()  # error


async def awaited() -> None:
    await OrderPlaced.aemit(order_id=3)  # error
    await OrderPlaced.aemit(order_id="A1", totl=9.5)  # error
    await OrderPlaced.emit(order_id="A1")  # error


# @on of one event on a handler of another.
class Audit(Hook):
    @on(OrderPlaced)  # error
    def of_other(self, e: OrderShipped) -> None: ...

    @on(OrderPlaced)  # error
    async def of_other_async(self, e: OrderShipped) -> None: ...

    @on(OrderPlaced, OrderShipped)  # error
    def of_one_of_two(self, e: OrderShipped) -> None: ...

    @on(OrderPlaced)  # error
    def of_more(self, e: OrderPlaced, more: int) -> None: ...

    @on(OrderPlaced, when=lambda e: e.totl > 1)  # error
    def misspelt(self, e: OrderPlaced) -> None: ...

    @on(int)  # error
    def of_no_event(self, e: int) -> None: ...


# Subscribing a function of another event.
OrderPlaced.subscribe(fn_of_shipped)  # error
OrderPlaced.subscribe(lambda e: e.totl)  # error
OrderPlaced.subscribe(print, when=fn_of_shipped)  # error
OrderPlaced.subscribe()(fn_of_shipped)  # error

# Events are frozen, and know their fields.
event.total = 1.0  # error
event.totl  # error
