"""
Tests of an agent's loop and its hook, without a network: scripted model and tools, a clock that stands still.

pytest collects it; run by itself, it prints how each test went:

    test_a_large_refund_is_capped: passed
    test_a_busy_tool_is_asked_again: passed
"""

from typing import Any

from eventbus import AfterToolCallEvent, BeforeToolCallEvent, Hook, Run, ToolCall, ToolCallCompletedEvent, on
from eventbus.testing import InTurn, ScriptedModel, ScriptedTools, capture, frozen_clock, isolated


class RefundCaps(Hook):
    @on(BeforeToolCallEvent, when=lambda e: e.tool_call.name == "refund")
    def cap(self, event: BeforeToolCallEvent) -> None:
        event.arguments = {**event.arguments, "amount": min(event.arguments["amount"], 50)}

    @on(AfterToolCallEvent)
    def again(self, event: AfterToolCallEvent) -> None:
        if isinstance(event.error, TimeoutError):
            event.retry = 2.0


def ask(question: str, model: Any, tools: Any) -> str | None:
    messages = [question]
    with Run(agent="sundae", message=question) as run:
        for _ in run.turns(limit=5):
            response = run.call_model(model, messages)
            if not response.tool_calls:
                run.complete(response)
                return str(response.content)
            messages += [str(result.data) for _, result in run.call_tools(response.tool_calls, tools)]
    return None


REFUND = ToolCall("call_0", "refund", {"order_id": "A1", "amount": 80})


def test_a_large_refund_is_capped() -> None:
    with isolated(), ScriptedModel(REFUND, "Done.") as model, ScriptedTools({"refund": "ok"}) as tools:
        RefundCaps.register()
        assert ask("Refund A1.", model, tools) == "Done."
    assert [call.input["amount"] for call in tools.calls] == [50]


def test_a_busy_tool_is_asked_again() -> None:
    answers = {"refund": InTurn(TimeoutError("busy"), "ok")}
    with isolated(), frozen_clock() as clock, capture() as recorder, ScriptedTools(answers) as tools:
        RefundCaps.register()
        ask("Refund A1.", ScriptedModel(REFUND, "Done."), tools)
    assert clock.sleeps == [2.0]
    assert recorder.assert_emitted(ToolCallCompletedEvent, tool_call=tools.calls[0]).duration == 2.0


if __name__ == "__main__":
    for test in (test_a_large_refund_is_capped, test_a_busy_tool_is_asked_again):
        test()
        print(f"{test.__name__}: passed")
