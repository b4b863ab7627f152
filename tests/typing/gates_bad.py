"""
What type checkers must refuse of gates, each on its own line: checked by tests/test_typing.py, never run.
"""

from __future__ import annotations

from eventbus import (
    ApproveToolCallEvent,
    BeforeToolCallEvent,
    Event,
    Hook,
    ProtectedEvent,
    ToolCall,
    on,
    writable,
)


class BeforeRefundEvent(ProtectedEvent):
    order_id: str
    total: float = writable()
    cancel: bool | str = writable(default=False, sticky=True)


class Told(Event):
    name: str = ""


call = ToolCall("call_1", "process_refund")

# A misspelt key, a wrong type, a missing field, an argument without a name.
BeforeToolCallEvent.emit(tool_cal=call)  # error
BeforeToolCallEvent.emit(tool_call=call, canel=True)  # error
BeforeToolCallEvent.emit(tool_call="process_refund")  # error
BeforeToolCallEvent.emit()  # error
BeforeToolCallEvent.emit(call)  # error
BeforeRefundEvent.emit(order_id="A1", total="all")  # error
BeforeRefundEvent.emit(order_id="A1")  # error
BeforeRefundEvent(order_id="A1")  # error


async def awaited() -> None:
    await BeforeToolCallEvent.aemit(tool_cal=call)  # error
    await BeforeToolCallEvent.emit(tool_call=call)  # error


# Writing a value of the wrong type, or a name that is no field.
event = BeforeRefundEvent.emit(order_id="A1", total=9.5)
event.total = "all"  # error
event.cancel = 3.5  # error
event.cancell = "no"  # error

# A default of the wrong type, or two of them.


class Wrong(ProtectedEvent):
    count: int = writable(default="none")  # error
    lines: list[int] = writable(factory=dict[str, str])  # error
    both: int = writable(default=1, factory=int)  # error


# A handler of something else.
class Guard(Hook):
    @on(BeforeToolCallEvent)  # error
    def of_other(self, event: ApproveToolCallEvent) -> None: ...

    @on(BeforeToolCallEvent)  # error
    def of_observed(self, event: Event) -> None: ...

    @on(BeforeToolCallEvent, when=lambda e: e.canel)  # error
    def misspelt(self, event: BeforeToolCallEvent) -> None: ...


def of_approve(event: ApproveToolCallEvent) -> None: ...


BeforeToolCallEvent.subscribe(of_approve)  # error
BeforeRefundEvent.subscribe(lambda e: e.totl)  # error
