"""
Guardrails that refuse a tool and an attack, and redact personal data.

It prints:

    shell: the tool 'shell' is blocked
    find: arguments.text matches 'sql_injection'
    note: {'saved': 'call [REDACTED:phone] or [REDACTED:email]'}
    blocked_tool block tool
    sql_injection block arguments.text
    email redact arguments.text
    phone redact arguments.text
"""

from typing import Any

from eventbus import Run, ToolCall
from eventbus.policies import GuardrailsHook


class Guardrails(GuardrailsHook):
    block_tools = frozenset({"shell"})


def execute(call: ToolCall) -> dict[str, Any]:
    return {"saved": call.input["text"]}


if __name__ == "__main__":
    with Run(agent="sundae", message="Find Mia, and make a note of her number") as run:
        calls = [
            ToolCall("call_0", "shell", {"command": "ls"}),
            ToolCall("call_1", "find", {"text": "Mia' or '1'='1"}),
            ToolCall("call_2", "note", {"text": "call +1 415 555 2671 or mia@example.com"}),
        ]
        for call, result in run.call_tools(calls, execute):
            print(f"{call.name}:", result.error or result.data)
    for violation in Guardrails.violations():
        print(violation.rule, violation.action, violation.where)
