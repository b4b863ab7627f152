"""
A loop owned by somebody else, instrumented with the pieces of a run: its own code makes the calls.

Prints what the framework got back, and where a gate answered in a tool's place:

    search: 2 hits for 'ice cream'
    price: from the cache
    done after 2 calls
"""

from typing import Any

from eventbus import BeforeToolCallEvent, Hook, ModelResponse, Run, ToolCall, ToolCallRefused, on


class PriceCache(Hook):
    @on(BeforeToolCallEvent, when=lambda e: e.tool_call.name == "price")
    def answer(self, event: BeforeToolCallEvent) -> None:
        event.result = "from the cache"


class Framework:
    """A framework with a loop of its own, which calls back for each model and tool call."""

    def run(self, on_model: Any, on_tool: Any) -> str:
        def ask(prompt: str) -> list[str]:
            return ["search", "price"]

        plan = on_model("find ice cream", ask)
        for name in plan:
            print(f"{name}:", on_tool(name, lambda query="ice cream": f"2 hits for {query!r}"))
        return f"done after {len(plan)} calls"


if __name__ == "__main__":
    with Run(agent="framework") as run:

        def around_model(prompt: str, ask: Any) -> list[str]:
            with run.model_call([prompt], model="m-1") as call:
                plan: list[str] = ask(call.messages[0])
                call.set(ModelResponse(content=plan))
            return plan

        def around_tool(name: str, execute: Any) -> Any:
            try:
                with run.tool_call(ToolCall("", name)) as call:
                    if call.answer is None:
                        call.set(execute(**call.arguments))
                return call.result.data
            except ToolCallRefused as refused:
                return refused.reason

        outcome = Framework().run(around_model, around_tool)
        run.complete(outcome)
        print(outcome)
