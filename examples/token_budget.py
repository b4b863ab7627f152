"""
A stateful hook: one instance per run, gone when the run ends, so that runs at the same time do not mix.

Prints:

    [run] scout used 1 tools
    [run] sundae used 2 tools

Logs, after each timestamp:

    run-1 INF START agent=sundae
    run-2 INF START agent=scout
    run-1 TOOL OK lookup_order id=call_0
    run-2 TOOL OK search id=call_0
    run-1 TOOL OK send_email id=call_1
    run-2 INF DONE agent=scout
    run-1 INF DONE agent=sundae
"""

from eventbus import (
    Hook,
    InferenceCompletedEvent,
    InferenceStartedEvent,
    Priority,
    ToolCall,
    ToolCallCompletedEvent,
    on,
)


class TokenBudgetHook(Hook):
    stateful = True
    priority = Priority.BUSINESS

    @on(InferenceStartedEvent)
    def reset(self) -> None:
        self.tools = 0

    @on(ToolCallCompletedEvent, when=lambda e: e.tool_call.name != "think")
    def count(self) -> None:
        self.tools += 1

    @on(InferenceCompletedEvent)
    def tell(self, event: InferenceCompletedEvent) -> None:
        print(f"[run] {event.agent.name} used {self.tools} tools")


if __name__ == "__main__":
    InferenceStartedEvent.emit(agent="sundae", correlation_id="run-1")
    InferenceStartedEvent.emit(agent="scout", correlation_id="run-2")
    for cid, call in [
        ("run-1", ToolCall("call_0", "lookup_order")),
        ("run-2", ToolCall("call_0", "search")),
        ("run-1", ToolCall("call_1", "send_email")),
    ]:
        ToolCallCompletedEvent.emit(tool_call=call, correlation_id=cid)
    InferenceCompletedEvent.emit(agent="scout", correlation_id="run-2")
    InferenceCompletedEvent.emit(agent="sundae", correlation_id="run-1")
