"""
An approval gate that asks on the terminal, and refuses where there is none.

Without a terminal it prints:

    process_refund: nobody is there to approve process_refund
    lookup_order: {'total': 12}

On a terminal it asks `Run process_refund {'amount': 12}? [y/N]` first, and `y` lets the refund run.
"""

import sys
from typing import Any

from eventbus import ApproveToolCallEvent, Hook, Priority, Run, ToolCall, on


class Approval(Hook):
    priority = Priority.SECURITY
    tools = frozenset({"process_refund"})

    @on(ApproveToolCallEvent)
    def ask(self, event: ApproveToolCallEvent) -> None:
        name = event.tool_call.name
        if name not in self.tools:
            return
        try:
            # A daemon's stdin may be missing, or closed.
            asks = sys.stdin is not None and sys.stdin.isatty()
            said = input(f"Run {name} {dict(event.arguments)}? [y/N] ") if asks else None
        except (EOFError, ValueError):
            said = None
        if said is None:
            event.denied = f"nobody is there to approve {name}"
        elif said.strip().lower() != "y":
            event.denied = "the operator said no"


def lookup_order() -> dict[str, Any]:
    return {"total": 12}


def process_refund(amount: int) -> dict[str, Any]:
    return {"refunded": amount}


if __name__ == "__main__":
    with Run(agent="sundae", message="Refund my order") as run:
        calls = [ToolCall("call_0", "process_refund", {"amount": 12}), ToolCall("call_1", "lookup_order")]
        tools = {"lookup_order": lookup_order, "process_refund": process_refund}
        for call, result in run.call_tools(calls, tools):
            print(f"{call.name}:", result.data or result.error)
