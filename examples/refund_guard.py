"""
A guard to be tried on yesterday's runs before it goes live.

Run by itself it judges two calls and prints what came of them:

    refund of 9.5: done
    refund of 24.0: refunds above 20 need a colleague

`eventbus replay examples/refunds.jsonl --hooks examples/refund_guard.py` tells what it would have refused in
recorded runs. With `shadow = True` in its body it is live, and only watches.
"""

from eventbus import ApproveToolCallEvent, Hook, Priority, Run, ToolCall, on


class RefundGuard(Hook):
    priority = Priority.SECURITY
    limit = 20

    @on(ApproveToolCallEvent, when=lambda event: event.tool_call.name == "process_refund")
    def check(self, event: ApproveToolCallEvent) -> None:
        if event.arguments["amount"] > self.limit:
            event.denied = f"refunds above {self.limit} need a colleague"


def process_refund(amount: float) -> str:
    return "done"


if __name__ == "__main__":
    with Run(agent="sundae") as run:
        calls = [ToolCall(f"call_{n}", "process_refund", {"amount": a}) for n, a in enumerate((9.5, 24.0))]
        for call, result in run.call_tools(calls, {"process_refund": process_refund}):
            print(f"refund of {call.input['amount']}:", result.data or result.error)
