"""
What type checkers must accept of gates, and what they must know: checked by tests/test_typing.py, never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from eventbus import (
    AfterToolCallEvent,
    ApproveToolCallEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    Edit,
    Hook,
    Priority,
    ProtectedEvent,
    Subscription,
    ToolCall,
    on,
    writable,
)


class BeforeRefundEvent(ProtectedEvent, channel="shop.refund.before"):
    order_id: str
    total: float = writable()
    note: str = writable(default="")
    lines: list[int] = writable(factory=list[int])
    cancel: bool | str = writable(default=False, sticky=True)


class BeforeDearRefundEvent(BeforeRefundEvent):
    limit: float = writable(default=100.0)


class AfterRefundEvent(ProtectedEvent):
    reverse = True

    result: Any = writable(default=None)


call = ToolCall("call_1", "process_refund", {"total": 12})

# Asking: what is returned is the event.
assert_type(BeforeToolCallEvent.emit(tool_call=call), BeforeToolCallEvent)
assert_type(BeforeToolCallEvent.emit(tool_call=call, arguments={"total": 12}).cancel, bool | str)
assert_type(BeforeRefundEvent.emit(order_id="A1", total=9.5), BeforeRefundEvent)
assert_type(BeforeRefundEvent(order_id="A1", total=9.5, correlation_id="run-1").publish(), BeforeRefundEvent)
assert_type(BeforeDearRefundEvent.emit(order_id="A1", total=9.5, limit=1.0).total, float)
raw: dict[str, Any] = {"note": "raw"}
BeforeToolCallEvent.emit(tool_call=call, **raw)


async def awaited() -> None:
    assert_type(await BeforeToolCallEvent.aemit(tool_call=call), BeforeToolCallEvent)
    assert_type(await BeforeRefundEvent(order_id="A1", total=9.5).apublish(), BeforeRefundEvent)


# Reading, and writing what is writable.
event = BeforeToolCallEvent.emit(tool_call=call)
assert_type(event.arguments, Mapping[str, Any])
assert_type(event.edits, tuple[Edit, ...])
assert_type(event.edits[0].handler, str | None)
assert_type(event.edits[0].applied, bool)
event.arguments = {**event.arguments, "limit": 10}
event.result = {"total": 0}
event.cancel = "not today"
event.cancel = True
BeforeRefundEvent.emit(order_id="A1", total=9.5).lines = [1, 2]

# A checker does not know which fields are writable: this is left to the AttributeError when it runs.
event.tool_call = call


# Handlers of gates, sync and async.
class Caps(Hook):
    priority = Priority.SECURITY

    @on(BeforeToolCallEvent, when=lambda e: e.tool_call.name == "process_refund")
    def limit(self, event: BeforeToolCallEvent) -> None:
        event.arguments = {**event.arguments, "limit": 10}

    @on(ApproveToolCallEvent)
    async def approve(self, event: ApproveToolCallEvent) -> None:
        event.denied = "not today"

    @on(BeforeToolCallEvent, BeforeModelCallEvent)
    def both(self, event: BeforeToolCallEvent | BeforeModelCallEvent) -> None:
        event.cancel = "no"

    @on(BeforeDearRefundEvent)
    def of_base(self, event: BeforeRefundEvent) -> None: ...

    @on(AfterToolCallEvent)
    def nothing(self) -> None: ...


class Watching(Hook):
    shadow = True

    @on(AfterRefundEvent)
    def check(self, event: AfterRefundEvent) -> None:
        event.result = None


# Subscribing knows the event.
assert_type(
    BeforeRefundEvent.subscribe(lambda e: e.total, priority=Priority.BUSINESS),
    Subscription[[BeforeRefundEvent], float],
)
BeforeRefundEvent.subscribe(lambda e: None, when=lambda e: e.total > 1, correlation_id="run-1", weak=False)


@BeforeToolCallEvent.subscribe
def function(event: BeforeToolCallEvent) -> None:
    event.cancel = "no"


@ApproveToolCallEvent.subscribe(priority=Priority.SECURITY)
async def ask(event: ApproveToolCallEvent) -> None:
    event.denied = "no"


def every(event: ProtectedEvent) -> None: ...


ProtectedEvent.subscribe(every)
BeforeToolCallEvent.subscribe(every)
