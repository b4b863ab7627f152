"""
A refund agent with a scripted model and two gates: one caps amounts, one judges what will be executed.

Prints what the agent was told about each refund, and its answer:

    refund of A1: {'order_id': 'A1', 'amount': 50}
    refund of A2: orders of test accounts are not refunded
    answer: One refund made, one refused.
"""

from typing import Any

from eventbus import (
    ApproveToolCallEvent,
    BeforeToolCallEvent,
    Hook,
    ModelResponse,
    Priority,
    Run,
    ToolCall,
    on,
)


class RefundCaps(Hook):
    @on(BeforeToolCallEvent, when=lambda e: e.tool_call.name == "process_refund")
    def cap(self, event: BeforeToolCallEvent) -> None:
        event.arguments = {**event.arguments, "amount": min(event.arguments["amount"], 50)}


class TestAccounts(Hook):
    priority = Priority.SECURITY

    @on(ApproveToolCallEvent)
    def check(self, event: ApproveToolCallEvent) -> None:
        if event.arguments.get("order_id") == "A2":
            event.denied = "orders of test accounts are not refunded"


def process_refund(**arguments: Any) -> dict[str, Any]:
    return arguments


CALLS = [
    ToolCall("call_0", "process_refund", {"order_id": "A1", "amount": 80}),
    ToolCall("call_1", "process_refund", {"order_id": "A2", "amount": 10}),
]


def model(messages: list[str]) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse(tool_calls=CALLS)
    return ModelResponse("One refund made, one refused.")


if __name__ == "__main__":
    messages = ["Refund A1 and A2, please."]
    with Run(agent="sundae", message=messages[0]) as run:
        for _ in run.turns(limit=5):
            response = run.call_model(model, messages)
            if not response.tool_calls:
                run.complete(response)
                print("answer:", response.content)
                break
            for call, result in run.call_tools(response.tool_calls, {"process_refund": process_refund}):
                print(f"refund of {call.input['order_id']}:", result.data or result.error)
                messages.append(str(result.data or result.error))
