"""
A hook that records every refund an agent makes, with the application's own logger.

Prints:

    [audit] sundae refunded via process_refund: {'order_id': 'A1', 'amount': 50}

Logs, after each timestamp:

    run-1 INF START agent=sundae
    run-1 TOOL START lookup_order id=call_0
    run-1 TOOL OK lookup_order id=call_0 data={"total": 50}
    run-1 TOOL START process_refund id=call_1
    run-1 TOOL OK process_refund id=call_1 data={"order_id": "A1", "amount": 50}
    run-1 INF DONE agent=sundae
"""

import logging
import sys
from typing import Any

from eventbus import Hook, Run, ToolCall, ToolCallCompletedEvent, on

logger = logging.getLogger("shop")


class RefundAuditHook(Hook):
    @on(ToolCallCompletedEvent)
    def audit(self, event: ToolCallCompletedEvent) -> None:
        if event.tool_call.name == "process_refund":
            logger.info("[audit] %s refunded via process_refund: %s", event.agent.name, event.result.data)


def lookup_order(order_id: str) -> dict[str, Any]:
    return {"total": 50}


def process_refund(order_id: str, amount: int) -> dict[str, Any]:
    return {"order_id": order_id, "amount": amount}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    calls = [
        ToolCall("call_0", "lookup_order", {"order_id": "A1"}),
        ToolCall("call_1", "process_refund", {"order_id": "A1", "amount": 50}),
    ]
    tools = {"lookup_order": lookup_order, "process_refund": process_refund}
    with Run(agent="sundae", message="Please refund A1.", correlation_id="run-1") as run:
        run.call_tools(calls, tools)
        run.complete("Refunded.")
