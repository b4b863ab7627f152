"""
A judge that advises, and a list that asks nobody.

It prints:

    lookup_order: {'total': 12}
    send_email: Look the address up first; do not guess it.
    delete_account: REQUIRES APPROVAL: delete_account needs a person's approval
    interrupt delete_account

A real judge would ask a small model, with `request.policy` and the call in its prompt.
"""

from typing import Any

from eventbus import Run, ToolCall
from eventbus.policies import SteeringHook, SteeringRequest


class Steering(SteeringHook):
    policy = "Write only to addresses that were looked up in this run."
    interrupt_tools = frozenset({"delete_account"})

    def judge(self, request: SteeringRequest) -> str | tuple[str, str]:
        if request.tool_call is None or request.tool_call.name != "send_email":
            return "proceed"
        if any(call.name == "lookup_address" for call in request.calls):
            return "proceed"
        return "guide", "Look the address up first; do not guess it."


def execute(call: ToolCall) -> dict[str, Any]:
    return {"total": 12}


if __name__ == "__main__":
    with Run(agent="sundae", message="Close my account, and tell me so") as run:
        calls = [
            ToolCall("call_0", "lookup_order", {"order_id": "A1"}),
            ToolCall("call_1", "send_email", {"to": "mia@example.com"}),
            ToolCall("call_2", "delete_account"),
        ]
        for call, result in run.call_tools(calls, execute):
            print(f"{call.name}:", result.error or result.data)
    last = Steering.decisions()[-1]
    print(last.action, last.tool)
