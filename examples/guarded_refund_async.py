"""
The guarded refund agent in asyncio: an async gate, and two tools at once.

Prints the answers of both tools, in the order of the calls, then who refused the third:

    lookup_order: {'order_id': 'A1', 'total': 12}
    lookup_customer: {'name': 'Mia'}
    process_refund: refused: more than the order's total
"""

import asyncio
from typing import Any

from eventbus import ApproveToolCallEvent, AsyncRun, Hook, Priority, ToolCall, on

both_are_running = asyncio.Event()


class RefundLimit(Hook):
    priority = Priority.SECURITY

    @on(ApproveToolCallEvent, when=lambda e: e.tool_call.name == "process_refund")
    async def check(self, event: ApproveToolCallEvent) -> None:
        total = await total_of(event.arguments["order_id"])
        if event.arguments["amount"] > total:
            event.denied = "refused: more than the order's total"


async def total_of(order_id: str) -> int:
    await asyncio.sleep(0)
    return 12


async def lookup_order(order_id: str) -> dict[str, Any]:
    await both_are_running.wait()
    return {"order_id": order_id, "total": await total_of(order_id)}


async def lookup_customer() -> dict[str, Any]:
    both_are_running.set()
    return {"name": "Mia"}


def process_refund(order_id: str, amount: int) -> str:
    return f"refunded {amount}"


TOOLS = {tool.__name__: tool for tool in (lookup_order, lookup_customer, process_refund)}


async def main() -> None:
    lookups = [ToolCall("call_0", "lookup_order", {"order_id": "A1"}), ToolCall("call_1", "lookup_customer")]
    refund = ToolCall("call_2", "process_refund", {"order_id": "A1", "amount": 80})
    async with AsyncRun(agent="sundae", message="Refund 80 for A1") as run:
        for call, result in await run.call_tools(lookups, TOOLS, parallel=2):
            print(f"{call.name}: {result.data}")
        for call, result in await run.call_tools([refund], TOOLS):
            print(f"{call.name}: {result.error}")


if __name__ == "__main__":
    asyncio.run(main())
