"""
GuardrailsHook: what its rules refuse, redact and let pass, in runs as users write them.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import re
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from recordings import AIRLINE, ROOT, needs_airline

from eventbus import (
    AfterToolCallEvent,
    ApproveToolCallEvent,
    AsyncRun,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    GateDecisionEvent,
    HandlerFailedEvent,
    Hook,
    InferenceDeniedEvent,
    Message,
    ModelCallRefused,
    ModelResponse,
    Priority,
    Run,
    RunRefused,
    ToolCall,
    ToolCallDeniedEvent,
    ToolResult,
    _texts,
    hooks,
    on,
)
from eventbus.policies import (
    DEFAULT_BLOCKED_PATTERNS,
    DEFAULT_PII_PATTERNS,
    Detector,
    GuardrailsHook,
)
from eventbus.testing import capture


class ToolName(str, enum.Enum):  # noqa: UP042 - a StrEnum is its own name, and this is not
    """Names of tools as a caller may keep them."""

    SHELL = "shell"


ATTACK = "x; cat /etc/passwd"
CARD = "4111 1111 1111 1111"


async def find_later(text):
    """Be a detector that nothing waits for."""


def execute(name="send", arguments=None, *, answer="sent", tools=None):
    """Call one tool in a run of its own; return its result, and the arguments it was executed with."""
    executed = []

    def tool(**given):
        executed.append(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Run("sundae", correlation_id="run-1") as run:
        [(_, result)] = run.call_tools(
            [ToolCall("call_0", name, arguments or {})], {name: tool, **(tools or {})}
        )
    return result, executed


def ask(messages, run_message=None):
    """Ask a model in a run of its own; return the message of the run, and what the model was sent."""
    sent = []

    def model(messages):
        sent.append(messages)
        return ModelResponse("hello")

    with Run("sundae", run_message, correlation_id="run-1") as run:
        run.call_model(model, messages)
        return run.message, sent[0]


class TestTools:
    """Tools that are never executed."""

    def test_a_blocked_tool_is_refused(self):
        """The tool is not executed, and the reason is its answer."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

        with capture(ToolCallDeniedEvent) as recorder:
            result, executed = execute("shell", {"command": "ls"})
        assert ("the tool 'shell' is blocked", []) == (result.error, executed)
        recorder.assert_emitted(ToolCallDeniedEvent, by="Guardrails.check")
        [violation] = Guardrails.violations()
        assert ("blocked_tool", "block", "shell", "run-1") == (
            violation.rule,
            violation.action,
            violation.tool,
            violation.correlation_id,
        )

    @pytest.mark.parametrize(
        "asked", [ToolCall("", ToolName.SHELL), SimpleNamespace(id="", name=ToolName.SHELL, input={})]
    )
    @pytest.mark.parametrize("tools", [{"shell": lambda: "executed"}, lambda call: "executed"])
    def test_a_blocked_tool_by_its_name_in_an_enum(self, asked, tools):
        """A name that finds the tool is a name that is blocked, whatever `str` makes of it."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

        with Run("sundae") as run:
            [(_, result)] = run.call_tools([asked], tools)
        assert "the tool 'shell' is blocked" == result.error
        assert ["shell"] == [violation.tool for violation in Guardrails.violations()]

    def test_other_tools_go_ahead(self):
        """What is not blocked is executed as it was asked for."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

        assert (ToolResult("sent"), [{"text": "hi"}]) == execute("send", {"text": "hi"})
        assert () == Guardrails.violations()

    @pytest.mark.parametrize(("name", "executed"), [("send", [{}]), ("shell", [])])
    def test_only_tools_of_the_allowlist(self, name, executed):
        """A tool that the list does not name is refused."""

        class Guardrails(GuardrailsHook):
            allow_only_tools = ["send"]

        assert executed == execute(name)[1]
        assert len(Guardrails.violations()) == 1 - len(executed)

    def test_an_empty_allowlist_allows_nothing(self):
        """None is no list; an empty one is."""

        class Guardrails(GuardrailsHook):
            allow_only_tools = ()

        assert "the tool 'send' is not allowed" == execute("send")[0].error

    def test_a_blocked_tool_that_somebody_answers_for(self):
        """A tool that is not executed is not refused either."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

        class Mock(Hook):
            @on(BeforeToolCallEvent)
            def answer(self, event):
                event.result = "mocked"

        result, executed = execute("shell")
        assert ("mocked", []) == (result.data, executed)
        assert () == Guardrails.violations()

    def test_a_list_may_be_set_later(self):
        """A setting that is assigned to the class counts from then on."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

        Guardrails.block_tools = {"send"}
        assert [] == execute("send")[1]
        Guardrails.blocked_patterns = {"word": "nightshade"}
        assert [] == execute("other", {"a": "nightshade"})[1]

    @needs_airline
    def test_recorded_runs_lose_just_the_blocked_calls(self, tmp_path):
        """A replay of the recorded runs refuses the calls of the blocked tool and nothing else."""
        guard = tmp_path / "guard.py"
        guard.write_text(
            "from eventbus.policies import GuardrailsHook\n\n\n"
            'class Guardrails(GuardrailsHook):\n    block_tools = {"cancel_reservation"}\n'
        )
        done = subprocess.run(
            [sys.executable, "-m", "eventbus", "replay", str(AIRLINE), "--hooks", str(guard)],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            timeout=120,
        )
        assert [["Guardrails.check", "deny", "cancel_reservation", "69"]] == [
            line.split() for line in done.stdout.splitlines() if " deny " in line
        ]
        assert re.search(r"^ToolCallDeniedEvent +69$", done.stdout, re.MULTILINE)
        assert 200 == int(re.search(r"^InferenceCompletedEvent +(\d+)$", done.stdout, re.MULTILINE)[1])


class TestArguments:
    """Arguments of tool calls: redacted before, judged as they will be executed."""

    def test_personal_data_is_redacted_at_any_depth(self):
        """Values, keys, tuples, JSON texts and numbers are redacted, and nothing else changes."""

        class Guardrails(GuardrailsHook):
            pass

        arguments = {
            "note": "mail mia@example.com",
            "deep": [{"list": ["call +1 415 555 2671", 5]}],
            "mia@example.com": True,
            "card": 4111111111111111,
            "json": '{"line": "a\\nmia@example.com", "card": 4111111111111111}',
            "order": "1234567890",
        }
        _, [executed] = execute("send", arguments)
        assert executed == {
            "note": "mail [REDACTED:email]",
            "deep": [{"list": ["call [REDACTED:phone]", 5]}],
            "[REDACTED:email]": True,
            "card": "[REDACTED:credit_card]",
            "json": '{"line": "a\\n[REDACTED:email]", "card": "[REDACTED:credit_card]"}',
            "order": "1234567890",
        }
        assert {"email": 3, "phone": 1, "credit_card": 2} == {
            violation.rule: violation.count for violation in Guardrails.violations()
        }

    def test_only_the_kinds_that_are_to_be_redacted(self):
        """A kind with another action stays where it is."""

        class Guardrails(GuardrailsHook):
            action_overrides = {"email": "warn"}

        _, [executed] = execute("send", {"note": f"mia@example.com {CARD}"})
        assert {"note": "mia@example.com [REDACTED:credit_card]"} == executed

    def test_an_attack_is_refused(self):
        """What matches a blocked pattern is not executed; the reason names place and rule, not the text."""

        class Guardrails(GuardrailsHook):
            pass

        result, executed = execute("query", {"where": {"name": "' or '1'='1"}})
        assert [] == executed
        assert "arguments.where.name matches 'sql_injection'" == result.error

    def test_several_finds_are_one_refusal(self):
        """The reason names the first, and how many more there are."""

        class Guardrails(GuardrailsHook):
            default_action = "block"

        result, _ = execute("query", {"a": "' or '1'='1", "b": "mia@example.com"})
        assert "arguments.a matches 'sql_injection' (and 1 more)" == result.error

    def test_what_is_written_later_is_judged(self):
        """An attack that another gate puts in after the guardrails is refused, too."""

        class Guardrails(GuardrailsHook):
            pass

        class Late(Hook):
            @on(BeforeToolCallEvent)
            def rewrite(self, event):
                event.arguments = {"path": "../../etc/passwd"}

        assert [] == execute("read", {"path": "notes.txt"})[1]

    def test_what_is_written_later_is_redacted(self):
        """Personal data that another gate puts in after the guardrails is redacted, too."""

        class Guardrails(GuardrailsHook):
            pass

        class Late(Hook):
            @on(BeforeToolCallEvent)
            def rewrite(self, event):
                event.arguments = {"to": "mia@example.com"}

        assert [{"to": "[REDACTED:email]"}] == execute("send", {"to": "all"})[1]

    def test_what_is_written_last_of_all_is_refused(self):
        """Personal data that comes after the last look cannot be redacted any more."""

        class Guardrails(GuardrailsHook):
            pass

        class Last(Hook):
            priority = 2**40

            @on(BeforeToolCallEvent)
            def rewrite(self, event):
                event.arguments = {"to": "mia@example.com"}

        result, executed = execute("send", {"to": "all"})
        assert [] == executed
        assert "arguments.to matches 'email', after it was redacted" == result.error

    def test_a_retry_executes_what_was_judged(self):
        """Neither the tool nor the model's own dict can change what is executed again."""

        class Guardrails(GuardrailsHook):
            pass

        class Again(Hook):
            @on(AfterToolCallEvent)
            def again(self, event):
                event.retry = event.attempt < 3

        executed = []
        asked = {"note": ["fine"]}

        def tool(note):
            executed.append(list(note))
            note.append("' or 1=1--")
            asked["note"].append("mia@example.com")
            return "ok"

        with Run("sundae") as run:
            run.call_tools([ToolCall("call_0", "save", asked)], {"save": tool})
        assert [["fine"]] * 3 == executed

    def test_a_call_that_was_refused_already(self):
        """A cancelled call is not looked at again at the end."""

        class Guardrails(GuardrailsHook):
            pass

        class First(Hook):
            priority = 0

            @on(BeforeToolCallEvent, priority=200)
            def cancel(self, event):
                event.arguments = {"to": "mia@example.com"}
                event.cancel = "no"

        assert "no" == execute("send")[0].error
        assert () == Guardrails.violations()


class TestPrompts:
    """The message of a run, and what the model is sent."""

    def test_an_attack_in_the_prompt_refuses_the_run(self):
        """The run is refused with the reason, by the handler; its block is not entered."""

        class Guardrails(GuardrailsHook):
            pass

        with capture(InferenceDeniedEvent) as recorder:
            with pytest.raises(RunRefused, match="message matches 'shell_injection'") as refused:
                with Run("sundae", "x; cat /etc/passwd"):
                    pytest.fail("entered")
        assert "Guardrails.prompt" == refused.value.by
        recorder.assert_emitted(InferenceDeniedEvent, by="Guardrails.prompt")

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("I am mia@example.com", "I am [REDACTED:email]"),
            (
                Message("I am mia@example.com", subject=CARD),
                Message("I am [REDACTED:email]", subject="[REDACTED:credit_card]"),
            ),
            ([{"text": "mia@example.com"}], [{"text": "[REDACTED:email]"}]),
            ("cats & dogs", "cats & dogs"),
            (None, None),
        ],
    )
    def test_the_prompt_is_redacted(self, message, expected):
        """The run's own message is what the gate has made of it."""

        class Guardrails(GuardrailsHook):
            pass

        with Run("sundae", message) as run:
            assert expected == run.message

    def test_a_prompt_rewritten_later_is_judged(self):
        """What another gate makes of the message is judged, and redacted, at the end."""

        class Guardrails(GuardrailsHook):
            pass

        class Late(Hook):
            text = "mia@example.com"

            @on(BeforeInvocationEvent)
            def rewrite(self, event):
                event.message = Late.text

        with Run("sundae", "hi") as run:
            assert "[REDACTED:email]" == run.message
        Late.text = "<script>alert(1)</script>"
        with pytest.raises(RunRefused) as refused, Run("sundae", "hi"):
            pytest.fail("entered")
        assert "Guardrails.final_prompt" == refused.value.by

    def test_a_refusal_stands(self):
        """A run that was refused at first is not judged again at the end."""

        class Guardrails(GuardrailsHook):
            pass

        class Late(Hook):
            @on(BeforeInvocationEvent)
            def rewrite(self, event):
                event.message = "harmless"

        with pytest.raises(RunRefused), Run("sundae", "' or 1=1--"):
            pytest.fail("entered")
        assert 1 == len(Guardrails.violations())

    def test_messages_are_redacted_for_the_model(self):
        """All of them, whoever they are from; the caller's own list stays as it is."""

        class Guardrails(GuardrailsHook):
            pass

        messages = [
            {"role": "system", "content": "You help mia@example.com."},
            {"role": "user", "content": [{"type": "text", "text": f"card {CARD}"}]},
            {"role": "assistant", "tool_calls": [{"function": {"arguments": '{"to": "mia@example.com"}'}}]},
            {"role": "tool", "content": '{"email": "mia@example.com"}'},
            Message("from mia@example.com"),
            "plain mia@example.com",
        ]
        _, sent = ask(messages)
        assert sent == [
            {"role": "system", "content": "You help [REDACTED:email]."},
            {"role": "user", "content": [{"type": "text", "text": "card [REDACTED:credit_card]"}]},
            {"role": "assistant", "tool_calls": [{"function": {"arguments": '{"to": "[REDACTED:email]"}'}}]},
            {"role": "tool", "content": '{"email": "[REDACTED:email]"}'},
            Message("from [REDACTED:email]"),
            "plain [REDACTED:email]",
        ]
        assert "You help mia@example.com." == messages[0]["content"]

    def test_harmless_messages_are_the_callers_own(self):
        """Without a find nothing is rewritten, and nothing decided."""

        class Guardrails(GuardrailsHook):
            pass

        messages = [{"role": "user", "content": "hi"}]
        with capture(GateDecisionEvent) as recorder:
            assert messages is ask(messages)[1]
        recorder.assert_not_emitted(GateDecisionEvent)

    def test_a_prompt_that_is_no_list(self):
        """A model may be sent a plain text."""

        class Guardrails(GuardrailsHook):
            pass

        assert "I am [REDACTED:email]" == ask("I am mia@example.com")[1]

    @pytest.mark.parametrize(
        ("role", "is_refused"),
        [("user", True), (None, True), ("system", False), ("developer", False), ("assistant", False)],
    )
    def test_whose_message_is_judged(self, role, is_refused):
        """Instructions may speak of attacks; a user's message may not be one."""

        class Guardrails(GuardrailsHook):
            pass

        messages = [{"role": role, "content": "refuse things like ' or 1=1-- please"}]
        if is_refused:
            with pytest.raises(ModelCallRefused, match=r"messages\[0\].content matches 'sql_injection'"):
                ask(messages)
        else:
            assert messages == ask(messages)[1]

    @pytest.mark.parametrize(
        ("message", "is_refused"),
        [
            ({"role": "model", "parts": [{"text": ATTACK}]}, False),
            ({"type": "function_call_output", "output": ATTACK}, False),
            ({"type": "function_call", "arguments": ATTACK}, False),
            ({"type": "reasoning", "summary": [ATTACK]}, False),
            ({"type": "message", "role": "user", "content": ATTACK}, True),
            (SimpleNamespace(type="ai", content=ATTACK), False),
            (SimpleNamespace(type="human", content=ATTACK), True),
            (SimpleNamespace(type=5, content=ATTACK), True),
            ({"role": "user", "content": [{"type": "tool_result", "content": ATTACK}]}, False),
            ({"role": "user", "content": [{"type": "tool_result"}, {"type": "text", "text": ATTACK}]}, True),
            ({"role": "user", "name": ATTACK, "content": [{"type": "tool_result"}]}, True),
        ],
    )
    def test_whose_message_it_is_in_the_forms_of_providers(self, message, is_refused):
        """A role has other names, a type may stand for it, and a tool's answer may come with the user."""

        class Guardrails(GuardrailsHook):
            pass

        if is_refused:
            with pytest.raises(ModelCallRefused, match="shell_injection"):
                ask([message])
        else:
            assert [message] == ask([message])[1]

    def test_a_tools_answer_with_the_user_is_redacted(self):
        """The message keeps its form, and the list of the caller is left as it is."""

        class Guardrails(GuardrailsHook):
            pass

        parts = [{"type": "tool_result", "content": "mia@example.com"}, {"type": "text", "text": "thanks"}]
        _, [sent] = ask([{"role": "user", "content": parts}])
        expected = [{"type": "tool_result", "content": "[REDACTED:email]"}, parts[1]]
        assert {"role": "user", "content": expected} == sent
        assert "mia@example.com" == parts[0]["content"]

    def test_a_tools_message_is_judged_as_a_result(self):
        """Code that a tool has read is no attack; what a rule of one's own forbids is a find."""

        class Guardrails(GuardrailsHook):
            blocked_patterns = {**DEFAULT_BLOCKED_PATTERNS, "project": r"Nightshade"}

        code = {"role": "tool", "content": "cd x; cat /etc/passwd"}
        assert [code] == ask([code])[1]
        with pytest.raises(ModelCallRefused):
            ask([{"role": "tool", "content": "about Nightshade"}])

    def test_messages_rewritten_later_are_judged(self):
        """What another gate makes of the messages is judged, and redacted, at the end."""

        class Guardrails(GuardrailsHook):
            pass

        class Late(Hook):
            text = "mia@example.com"

            @on(BeforeModelCallEvent)
            def rewrite(self, event):
                event.messages = [*event.messages, {"role": "user", "content": Late.text}]

        assert "[REDACTED:email]" == ask([])[1][0]["content"]
        Late.text = "' or 1=1--"
        with pytest.raises(ModelCallRefused) as refused:
            ask([])
        assert "Guardrails.final_messages" == refused.value.by

    def test_an_object_that_is_changed_later_is_judged(self):
        """What is the same object need not be the same text any more."""

        class Guardrails(GuardrailsHook):
            pass

        class Late(Hook):
            @on(BeforeInvocationEvent)
            def rewrite(self, event):
                if event.message is not None:
                    event.message.text = ATTACK

            @on(BeforeModelCallEvent)
            def rewrite_messages(self, event):
                event.messages[0].text = ATTACK

        with pytest.raises(RunRefused) as refused:
            ask([], SimpleNamespace(text="hi"))
        assert "Guardrails.final_prompt" == refused.value.by
        with pytest.raises(ModelCallRefused) as refused:
            ask([SimpleNamespace(text="hi")])
        assert "Guardrails.final_messages" == refused.value.by

    @pytest.mark.parametrize("size", [10, 11])
    def test_a_prompt_may_be_so_long(self, size):
        """One of just the length passes, a longer one is refused."""

        class Guardrails(GuardrailsHook):
            max_prompt_length = 10

        if size == 10:
            ask([{"content": "a"}], "a" * size)
        else:
            with pytest.raises(RunRefused, match="message has 11 characters, and 10 are allowed"):
                ask([], "a" * size)

    @pytest.mark.parametrize("form", [str, lambda text: {"role": "user", "content": text}])
    def test_what_is_too_long_is_not_looked_through(self, form):
        """It is refused before anything is searched for in it."""
        asked = []

        class Guardrails(GuardrailsHook):
            max_prompt_length = 20
            pii_patterns = {"name": lambda text: asked.append(text) or ()}

        with pytest.raises(ModelCallRefused, match=r"messages\[0\] has \d+ characters, and 20 are allowed"):
            ask([form("a" * 21)])
        assert [] == asked

    def test_a_message_may_be_so_long(self):
        """Each message of a user counts by itself, keys and all; instructions and results do not."""

        class Guardrails(GuardrailsHook):
            max_prompt_length = 20

        ask([{"role": "system", "content": "a" * 99}, {"role": "tool", "content": "a" * 99}])
        with pytest.raises(ModelCallRefused, match=r"messages\[0\] has 41 characters"):
            ask([{"role": "user", "content": "a" * 26}])

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("a" * 30, "a" * 20),
            (Message("a" * 30), Message("a" * 20)),
            ({"content": "a" * 30}, {"content": "a" * 20}),
            (
                {"content": ["a" * 15, {"text": "b" * 15}, {"image": "c"}, {"text": "d"}, 5]},
                {"content": ["a" * 15, {"text": "b" * 5}, {"image": "c"}, {"text": ""}, 5]},
            ),
            ({"content": {"a": "a" * 20}}, '{"content": {"a": "a'),
            (["a" * 30], '["' + "a" * 18),
        ],
    )
    def test_a_prompt_is_cut(self, message, expected):
        """With the action "redact", what is too long is cut."""

        class Guardrails(GuardrailsHook):
            max_prompt_length = 20
            action_overrides = {"max_prompt_length": "redact"}

        with Run("sundae", message) as run:
            assert expected == run.message

    def test_no_length_is_too_long(self):
        """None switches a limit off."""

        class Guardrails(GuardrailsHook):
            max_prompt_length = None
            max_tool_result_length = None

        ask([{"content": "a" * 200_000}], "a" * 200_000)
        execute(answer="a" * 200_000)
        assert () == Guardrails.violations()


class TestResults:
    """What tools have answered."""

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ({"email": "mia@example.com"}, {"email": "[REDACTED:email]"}),
            ('{"email": "mia@example.com"}', '{"email": "[REDACTED:email]"}'),
            (["ok"], ["ok"]),
            (None, None),
        ],
    )
    def test_a_result_is_redacted(self, answer, expected):
        """Neither the model nor an observer sees personal data of a result."""

        class Guardrails(GuardrailsHook):
            pass

        assert ToolResult(expected) == execute(answer=answer)[0]

    def test_an_error_is_redacted(self):
        """The text of a tool's error is its answer, and is redacted."""

        class Guardrails(GuardrailsHook):
            pass

        result, _ = execute(answer=ValueError("no such user: mia@example.com"))
        assert "no such user: [REDACTED:email]" == result.error

    def test_an_error_without_a_find_stays(self):
        """Nothing is written where nothing is found."""

        class Guardrails(GuardrailsHook):
            pass

        with capture(GateDecisionEvent) as recorder:
            assert "boom" == execute(answer=ValueError("boom"))[0].error
        recorder.assert_not_emitted(GateDecisionEvent)

    def test_a_result_of_a_gate_is_redacted(self):
        """Whoever answers in a tool's place is judged like the tool."""

        class Guardrails(GuardrailsHook):
            pass

        class Mock(Hook):
            @on(BeforeToolCallEvent)
            def answer(self, event):
                event.result = {"email": "mia@example.com"}

        assert {"email": "[REDACTED:email]"} == execute()[0].data

    def test_a_result_that_another_gate_took_away(self):
        """Where there is neither a result nor an error, there is nothing to judge."""

        class Guardrails(GuardrailsHook):
            pass

        class Nothing(Hook):
            @on(AfterToolCallEvent)
            def take(self, event):
                event.result = None

        assert ToolResult() == execute(answer="mia@example.com")[0]
        assert () == Guardrails.violations()

    def test_objects_in_the_place_of_ours(self):
        """A result or a message of the caller's own class is redacted like one of ours."""

        class Guardrails(GuardrailsHook):
            pass

        class Thing:
            def __init__(self, **attributes):
                self.__dict__.update(attributes)

        result, _ = execute(answer=Thing(data={"email": "mia@example.com"}, error=None))
        assert {"email": "[REDACTED:email]"} == result.data
        _, [sent] = ask([Thing(role="user", content="mia@example.com")])
        assert ("user", "[REDACTED:email]") == (sent.role, sent.content)

    def test_a_blocked_result_is_withheld(self):
        """The tool has been executed; its answer is the refusal, and the run goes on."""

        class Guardrails(GuardrailsHook):
            blocked_patterns = {"project": "Nightshade"}

        result, executed = execute(answer={"title": "Nightshade"})
        assert [{}] == executed
        assert ToolResult(error="withheld: result.data.title matches 'project'") == result

    @pytest.mark.parametrize(
        ("action", "expected"),
        [
            ("warn", ToolResult("a" * 11)),
            ("allow", ToolResult("a" * 11)),
            ("redact", ToolResult("a" * 10)),
            ("block", ToolResult(error="withheld: result has 11 characters, and 10 are allowed")),
        ],
    )
    def test_a_result_that_is_too_long(self, action, expected):
        """It is warned of, let pass, cut or withheld, as the action says."""

        class Guardrails(GuardrailsHook):
            max_tool_result_length = 10
            action_overrides = {"max_tool_result_length": action}

        assert expected == execute(answer="a" * 11)[0]
        assert [action] == [violation.action for violation in Guardrails.violations()]

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [({"a": "b" * 20}, ToolResult('{"a": "bbb')), (ValueError("a" * 11), ToolResult(error="a" * 10))],
    )
    def test_any_result_is_cut(self, answer, expected):
        """Of structured data its JSON is cut, as the model reads it; of an error its text."""

        class Guardrails(GuardrailsHook):
            max_tool_result_length = 10
            action_overrides = {"max_tool_result_length": "redact"}

        assert expected == execute(answer=answer)[0]


class TestActions:
    """What is done about a rule."""

    @pytest.mark.parametrize(
        ("action", "executed"),
        [
            ("block", []),
            ("warn", [{"a": "mia@example.com"}]),
            ("redact", [{"a": "[REDACTED:email]"}]),
            ("allow", [{"a": "mia@example.com"}]),
        ],
    )
    @pytest.mark.parametrize("setting", ["default_action", "action_overrides"])
    def test_each_action(self, setting, action, executed):
        """A rule does what the settings say, and each find is a violation."""
        value = action if setting == "default_action" else {"email": action}

        class Guardrails(GuardrailsHook):
            locals()[setting] = value

        assert executed == execute("send", {"a": "mia@example.com"})[1]
        assert [("email", action)] == [(v.rule, v.action) for v in Guardrails.violations()]

    def test_an_override_wins(self):
        """The action of one rule is its own, whatever the default is."""

        class Guardrails(GuardrailsHook):
            default_action = "block"
            action_overrides = {"email": "redact"}

        assert [{"a": "[REDACTED:email]"}] == execute("send", {"a": "mia@example.com"})[1]

    def test_a_warning_is_a_decision(self):
        """What is let pass is told as a GateDecisionEvent with the action "warn"."""

        class Guardrails(GuardrailsHook):
            default_action = "warn"

        with capture(GateDecisionEvent) as recorder:
            assert [{"a": "x; rm -rf /"}] == execute("send", {"a": "x; rm -rf /"})[1]
        [decision] = recorder.events
        assert ("ApproveToolCallEvent", "Guardrails.check", "warn", "run-1", True) == (
            decision.gate,
            decision.by,
            decision.action,
            decision.correlation_id,
            decision.applied,
        )
        assert "arguments.a matches 'shell_injection'" == decision.reason

    def test_the_default_does_not_reach_lists_of_tools(self):
        """A blocklist is structure: only an override that names it makes less of it."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}
            default_action = "allow"

        assert [] == execute("shell")[1]

    @pytest.mark.parametrize("rule", ["blocked_tool", "tool_not_allowed"])
    def test_a_list_of_tools_may_be_watched(self, rule):
        """An override that names the rule lets the call pass, with a warning."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"} if rule == "blocked_tool" else ()
            allow_only_tools = {"send"} if rule == "tool_not_allowed" else None
            action_overrides = {rule: "warn"}

        assert [{}] == execute("shell")[1]
        assert [(rule, "warn")] == [(v.rule, v.action) for v in Guardrails.violations()]

    def test_a_shadow_judges_and_does_nothing(self):
        """What a shadow would refuse or redact is recorded and goes ahead."""

        class Guardrails(GuardrailsHook):
            shadow = True
            block_tools = {"send"}
            action_overrides = {"phone": "warn"}

        with capture(GateDecisionEvent) as recorder:
            arguments = {"a": "mia@example.com +1 415 555 2671"}
            assert [arguments] == execute("send", arguments)[1]
        assert {False} == {decision.applied for decision in recorder.events}
        assert 2 <= len(Guardrails.violations())


class TestPatterns:
    """Patterns and detectors of one's own."""

    def test_a_setting_replaces_the_defaults(self):
        """Only what is named is looked for."""

        class Guardrails(GuardrailsHook):
            pii_patterns = {"order": r"\bA\d{4}\b"}
            blocked_patterns = {}

        _, executed = execute("send", {"a": "A1234 mia@example.com ' or 1=1--"})
        assert [{"a": "[REDACTED:order] mia@example.com ' or 1=1--"}] == executed

    def test_a_compiled_pattern_keeps_its_flags(self):
        """A pattern may be compiled already."""

        class Guardrails(GuardrailsHook):
            pii_patterns = {"name": re.compile("mia", re.IGNORECASE)}

        assert [{"a": "[REDACTED:name]"}] == execute("send", {"a": "MIA"})[1]

    def test_a_function_is_a_detector(self):
        """A callable is asked about every text, and again each time."""
        asked = []

        def names(text):
            asked.append(text)
            start = text.find("Mia")
            return [(start, start + 3)] if start >= 0 else []

        class Guardrails(GuardrailsHook):
            pii_patterns = {"name": names}

        assert [{"a": "[REDACTED:name] & Bob"}] == execute("send", {"a": "Mia & Bob"})[1]
        assert "Mia & Bob" in asked
        execute("send", {"a": "nobody"})
        execute("send", {"a": "nobody"})
        assert 4 == asked.count("nobody")

    def test_a_detector_has_its_places(self):
        """One that is for results only is asked about results only."""

        class Guardrails(GuardrailsHook):
            pii_patterns = {"word": Detector(lambda text: [(0, 1)], where={"result"}, stable=True)}

        result, executed = execute("send", {"a": "b"}, answer="cd")
        assert ([{"a": "b"}], "[REDACTED:word]d") == (executed, result.data)

    def test_spans_that_overlap_are_one(self):
        """No piece of either is left, and the first one's name stands there."""

        class Guardrails(GuardrailsHook):
            pii_patterns = {"one": "abc", "two": "cde", "three": "f"}

        assert [{"a": "[REDACTED:one][REDACTED:three]"}] == execute("send", {"a": "abcdef"})[1]

    def test_a_mask_is_not_masked_again(self):
        """A pattern that matches its own mask finds nothing in it, at whatever gate."""

        class Guardrails(GuardrailsHook):
            pii_patterns = {"email": "(?i)email|redacted"}

        assert [{"a": "[REDACTED:email] me"}] == execute("send", {"a": "email me"})[1]
        assert [{"a": "[REDACTED:email] [REDACTED:email]"}] == execute(
            "send", {"a": "[REDACTED:email] email"}
        )[1]

    @pytest.mark.parametrize("text", ["; cat /etc/passwd", "' OR 1=1--", "<script>alert(1)</script>"])
    def test_who_writes_a_mask_hides_nothing_in_it(self, text):
        """What looks like a mask, and has no name of a rule in it, is text like any other."""

        class Guardrails(GuardrailsHook):
            pass

        result, executed = execute("send", {"a": f"[REDACTED:{text}]"})
        assert ([], False) == (executed, result.success)
        _, executed = execute("send", {"a": "[REDACTED:mia@example.com]"})
        assert [{"a": "[REDACTED:[REDACTED:email]]"}] == executed

    def test_a_mask_of_another_hook_is_not_masked_again(self):
        """What the defaults have masked is left by rules that would find something in it."""

        class Guardrails(GuardrailsHook):
            pass

        class Words(GuardrailsHook):
            pii_patterns = {"word": r"email|REDACTED"}

        assert [{"a": "[REDACTED:word]: [REDACTED:email]"}] == execute(
            "send", {"a": "email: mia@example.com"}
        )[1]

    def test_many_masks_and_finds_in_one_text(self):
        """Each find is held against one mask, not against all: otherwise this would take minutes."""

        class Guardrails(GuardrailsHook):
            max_tool_result_length = None

        result, _ = execute(answer="[REDACTED:email] a@b.co " * 20_000)
        assert "[REDACTED:email] [REDACTED:email] " * 20_000 == result.data

    def test_a_detector_that_breaks_refuses(self):
        """The call is refused, the failure reported, and the run goes on."""

        def broken(text):
            raise RuntimeError("boom")

        class Guardrails(GuardrailsHook):
            pii_patterns = {"broken": broken}

        with capture(HandlerFailedEvent) as recorder:
            result, executed = execute("send", {"a": "b"})
        assert ([], "the guardrails failed (RuntimeError)") == (executed, result.error)
        assert "Guardrails.arguments" == recorder.events[0].handler

    def test_a_broken_guardrail_withholds_results_and_prompts(self):
        """Nothing passes unjudged: neither a prompt, nor messages, nor a result."""

        def broken(text):
            raise RuntimeError("boom")

        class Guardrails(GuardrailsHook):
            pii_patterns = {"broken": Detector(broken, where={"result"})}

        assert "withheld: the guardrails failed (RuntimeError)" == execute(answer="x")[0].error
        Guardrails.pii_patterns = {"broken": broken}
        with pytest.raises(RunRefused, match="the guardrails failed"):
            ask([], "x")
        with pytest.raises(ModelCallRefused, match="the guardrails failed"):
            ask(["x"])

    def test_what_cannot_be_looked_through_is_refused(self, monkeypatch):
        """Beyond a bound nothing is passed over: it is refused, as the rule `too_large`."""
        monkeypatch.setattr(_texts, "MAX_CHARACTERS", 10)

        class Guardrails(GuardrailsHook):
            default_action = "allow"

        assert execute("send", {"a": "b" * 11})[0].error.startswith("arguments holds more text")
        assert execute(answer="b" * 11)[0].error.startswith("withheld: result holds more text")
        assert ["too_large", "too_large"] == [violation.rule for violation in Guardrails.violations()]


class TestViolations:
    """What is kept of what was found."""

    def test_an_excerpt_has_no_personal_data(self):
        """It shows what is around the find, with personal data and secrets masked, and is short."""

        class Guardrails(GuardrailsHook):
            pass

        text = f"password=hunter2 mia@example.com {CARD} " + "x" * 200
        execute("send", {"a": text})
        [email, card] = Guardrails.violations()
        assert "password=[REDACTED] [REDACTED:email] [REDACTED:credit_card] " == email.excerpt
        assert "ACTED] [REDACTED:email] [REDACTED:credit_card] xxxxxxxxxxxxxxxxxxxxxxx" == card.excerpt

    def test_an_excerpt_of_an_attack(self):
        """An attack is shown, so that somebody can judge the rule."""

        class Guardrails(GuardrailsHook):
            pass

        execute("send", {"a": "report.pdf; rm -rf / to mia@example.com"})
        excerpts = {violation.rule: violation.excerpt for violation in Guardrails.violations()}
        assert excerpts["shell_injection"] == "report.pdf; rm -rf / to [REDACTED:email]"

    def test_they_are_bounded(self):
        """Ten thousand runs leave the last thousand."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

        for number in range(10_000):
            ApproveToolCallEvent.emit(
                tool_call=ToolCall("call_0", "shell"), arguments={}, correlation_id=f"run-{number}"
            )
        kept = Guardrails.violations()
        assert [f"run-{number}" for number in range(9_000, 10_000)] == [v.correlation_id for v in kept]
        Guardrails.clear_violations()
        assert () == Guardrails.violations()

    def test_each_hook_has_its_own(self):
        """Two guardrails do not share what they found."""

        class Tools(GuardrailsHook):
            block_tools = {"shell"}

        class Words(GuardrailsHook):
            blocked_patterns = {"word": "nightshade"}

        execute("shell", {"a": "nightshade"})
        assert ["blocked_tool"] == [violation.rule for violation in Tools.violations()]
        assert ["word"] == [violation.rule for violation in Words.violations()]

    def test_runs_at_once_share_nothing(self):
        """Each of many runs in threads gets its own arguments redacted, and its own violations."""

        class Guardrails(GuardrailsHook):
            pass

        seen = {}

        def one(number):
            def tool(to):
                seen[number] = to

            with Run("sundae", correlation_id=f"run-{number}") as run:
                arguments = {"to": f"{number} user{number}@example.com"}
                run.call_tools([ToolCall("call_0", "send", arguments)], {"send": tool})

        threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {number: f"{number} [REDACTED:email]" for number in range(20)} == seen
        assert {f"run-{number}" for number in range(20)} == {
            v.correlation_id for v in Guardrails.violations()
        }

    def test_async_runs(self):
        """An AsyncRun is guarded alike."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

        async def main():
            async with AsyncRun("sundae", "I am mia@example.com") as run:
                calls = [ToolCall("call_0", "shell"), ToolCall("call_1", "send", {"to": "mia@example.com"})]
                pairs = await run.call_tools(calls, {"shell": str, "send": lambda to: to})
                return run.message, [result.data or result.error for _, result in pairs]

        assert ("I am [REDACTED:email]", ["the tool 'shell' is blocked", "[REDACTED:email]"]) == asyncio.run(
            main()
        )

    @pytest.mark.parametrize("form", ["method", "function", "static"])
    def test_on_violation_is_told(self, form):
        """It is called with each violation, given as a method or as a function."""
        told = []

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}
            if form == "method":

                def on_violation(self, violation):
                    told.append(violation)

            elif form == "function":
                on_violation = functools.partial(list.append, told)
            else:
                on_violation = told.append

        execute("shell")
        assert list(Guardrails.violations()) == told

    def test_on_violation_that_raises_changes_nothing(self):
        """The refusal stands, and the failure is reported."""

        class Guardrails(GuardrailsHook):
            block_tools = {"shell"}

            def on_violation(self, violation):
                raise RuntimeError("boom")

        with capture(HandlerFailedEvent) as recorder:
            result, executed = execute("shell")
        assert ([], "the tool 'shell' is blocked") == (executed, result.error)
        assert ["Guardrails.on_violation"] == [event.handler for event in recorder.events]


class TestSettings:
    """What the settings may be."""

    def test_it_ships_abstract(self):
        """Nothing is guarded until a subclass says what."""
        assert "live" not in {info.state for info in hooks() if info.cls is GuardrailsHook}
        with pytest.raises(TypeError, match="abstract"):
            GuardrailsHook.register()

    def test_it_comes_first(self):
        """Its place is that of security, whichever hook was defined first."""

        class Guardrails(GuardrailsHook):
            pass

        assert Priority.SECURITY == hooks().get("Guardrails").priority

    def test_a_misspelt_setting_names_the_nearest(self):
        """A setting that there is not is a TypeError."""
        with pytest.raises(TypeError, match="Did you mean `block_tools`"):

            class Guardrails(GuardrailsHook):
                blocked_tools = {"shell"}

    @pytest.mark.parametrize(
        ("setting", "value", "error"),
        [
            ("block_tools", "shell", "a collection of names"),
            ("allow_only_tools", {"a": 1}, "a collection of names"),
            ("blocked_patterns", ["a"], "a mapping of names to patterns"),
            ("blocked_patterns", {1: "a"}, "names as its keys"),
            ("blocked_patterns", {"": "a"}, "names as its keys"),
            ("blocked_patterns", {"a": ""}, r"blocked_patterns\['a'\] is empty, and would find nothing"),
            ("blocked_patterns", {"a": "("}, r"blocked_patterns\['a'\] is no regular expression"),
            ("blocked_patterns", {"a": re.compile(b"a")}, "not of bytes"),
            ("blocked_patterns", {"a": find_later}, "a plain function: nothing waits for an async one"),
            (
                "pii_patterns",
                {"a": Detector(r"\d")},
                "a Detector of a function; a regular expression stands by",
            ),
            ("pii_patterns", {"a": Detector(find_later)}, "a plain function: nothing waits for an async one"),
            ("blocked_patterns", {"a": 5}, "a regular expression, a Detector, or a function"),
            ("blocked_patterns", {"a": "(a+)+$"}, "could take too long .*possessive"),
            ("blocked_patterns", {"blocked_tool": "a"}, "'blocked_tool', which there is already"),
            ("pii_patterns", {"sql_injection": "a"}, "'sql_injection' in both"),
            ("max_prompt_length", 0, "an int of at least 1"),
            ("max_tool_result_length", "5", "an int of at least 1"),
            ("default_action", "mask", 'one of "block"'),
            ("default_action", ["block"], 'one of "block"'),
            ("action_overrides", ["email"], "a mapping of rules to actions"),
            ("action_overrides", {"email": "mask"}, r"action_overrides\['email'\] must be one of"),
            ("action_overrides", {"emial": "warn"}, "no rule 'emial'. Did you mean 'email'"),
            ("action_overrides", {5: "warn"}, "no rule 5"),
            ("action_overrides", {"blocked_tool": "redact"}, "'blocked_tool' cannot be 'redact'"),
            ("action_overrides", {"too_large": "allow"}, "'too_large' cannot be 'allow'"),
            ("on_violation", 5, "a function"),
        ],
    )
    def test_a_value_that_does_not_fit(self, setting, value, error):
        """It is an error of the class statement, which names setting and fix; the class does not go live."""
        with pytest.raises((TypeError, ValueError), match=error):

            class Guardrails(GuardrailsHook):
                locals()[setting] = value

        assert hooks().get("Guardrails") is None

    def test_on_violation_is_no_coroutine_function(self):
        """Nothing would wait for it."""
        with pytest.raises(TypeError, match="must be a plain function"):

            class Guardrails(GuardrailsHook):
                async def on_violation(self, violation): ...

    @pytest.mark.parametrize(
        "source",
        [
            r"[\w.]+@[\w.-]+\.\w{2,}",
            r"foo.*bar.*",
            r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Z|a-z]{2,}\b",
            r"(?:\d{1,3}\.){3}\d{1,3}",
            r"(?:[a-z]++\.)++",
        ],
    )
    def test_ordinary_patterns_are_accepted(self, source):
        """What people write for addresses and words is within the bound."""

        class Guardrails(GuardrailsHook):
            blocked_patterns = {"a": source}

        assert {"a"} == set(Guardrails.blocked_patterns)

    def test_the_defaults_may_be_extended(self):
        """They are there to be taken over, and stay as they are."""

        class Guardrails(GuardrailsHook):
            blocked_patterns = {**DEFAULT_BLOCKED_PATTERNS, "word": "nightshade"}
            pii_patterns = {**DEFAULT_PII_PATTERNS, "order": r"A\d{4}"}

        assert "word" not in GuardrailsHook.blocked_patterns
        assert [] == execute("send", {"a": "nightshade"})[1]

    def test_another_attrs_class_with_a_text_is_cut(self):
        """Objects of one's own with a `text` are cut like a Message."""

        @attrs.frozen
        class Note:
            text: Any

        class Guardrails(GuardrailsHook):
            max_prompt_length = 3
            action_overrides = {"max_prompt_length": "redact"}

        with Run("sundae", Note("abcdef")) as run:
            assert Note("abc") == run.message
