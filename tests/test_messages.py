"""
Messages, arguments and results in the form of the GenAI semantic conventions.
"""

from __future__ import annotations

import json

import pytest
import strategies
from hypothesis import given

from eventbus import Message, ModelResponse, ToolCall, configure
from eventbus._messages import LIMITS, answer, content, encodable, get, messages, text


class Hostile:
    """Raises whatever it is asked."""

    def __getattr__(self, name):
        raise ValueError(name)


def part(said):
    return {"type": "text", "content": said}


CALL = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": '{"n": 1}'}}
TOLD = {"type": "tool_call", "id": "c", "name": "lookup", "arguments": {"n": 1}}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("hi", [("user", [part("hi")])]),
        (["a", "b"], [("user", [part("a")]), ("user", [part("b")])]),
        (Message("hi", sender="me"), [("user", [part("hi")])]),
        ({"role": "system", "content": "be kind"}, [("system", [part("be kind")])]),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, [("assistant", [TOLD])]),
        ({"role": "assistant", "content": "so", "tool_calls": [CALL]}, [("assistant", [part("so"), TOLD])]),
        (
            {"role": "tool", "tool_call_id": "c", "content": "12"},
            [("tool", [{"type": "tool_call_response", "id": "c", "response": "12"}])],
        ),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": "x"}],
            },
            [("user", [part("hi"), {"type": "image_url", "image_url": "x"}])],
        ),
        ({"role": "user", "content": None}, [("user", [])]),
        ({"n": 1}, [("user", [part('{"n": 1}')])]),
        ({"role": "user", "content": [{"n": 1}, 2]}, [("user", [part('{"n": 1}'), part("2")])]),
        (12, [("user", [part("12")])]),
    ],
)
def test_what_is_sent(said, expected):
    """Texts, messages of ours and messages of OpenAI's API become messages with parts."""
    expected = [{"role": role, "parts": parts} for role, parts in expected]
    assert expected == json.loads(messages(said, "user", "messages"))


@pytest.mark.parametrize(
    ("response", "parts", "reason"),
    [
        (ModelResponse("hi", finish_reason="length"), [part("hi")], "length"),
        (ModelResponse(None, [ToolCall("c", "lookup", {"n": 1})]), [TOLD], "tool_call"),
        ("done", [part("done")], "stop"),
        ({"total": 12}, [part('{"total": 12}')], "stop"),
        pytest.param(Hostile(), [part("<test_messages.Hostile>")], "stop", id="hostile"),
    ],
)
def test_what_is_answered(response, parts, reason):
    """A response, or any result, is one message of the assistant."""
    told = json.loads(answer(response, "messages"))
    assert [{"role": "assistant", "parts": parts, "finish_reason": reason}] == told


def test_calls_that_cannot_be_iterated():
    """They are left out."""

    class Odd:
        content = "hi"
        tool_calls = 12

    assert [part("hi")] == json.loads(answer(Odd(), "messages"))[0]["parts"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"name": "lookup", "input": {"n": 1}}, {"id": None, "name": "lookup", "arguments": {"n": 1}}),
        (
            {"function": {"name": "lookup", "arguments": "{no"}},
            {"id": None, "name": "lookup", "arguments": "{no"},
        ),
        ({"name": "lookup", "arguments": "[1e999]"}, {"id": None, "name": "lookup", "arguments": "[1e999]"}),
        ("lookup", {"name": "lookup"}),
        (12, {"name": "…"}),
    ],
)
def test_calls_of_any_kind(call, expected):
    """What a call has is told, and arguments that are no JSON stay the text that they are."""
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    [told] = json.loads(messages(message, "user", "messages"))[0]["parts"]
    assert {"type": "tool_call", **expected} == told


def test_secrets_are_masked():
    """By keys at any depth, in JSON texts too."""
    call = {"function": {"name": "f", "arguments": '{"api_key": "hunter2canary"}'}}
    said = [{"role": "user", "content": "x", "tool_calls": [call], "password": "hunter2canary"}]
    assert "hunter2canary" not in messages(said, "user", "messages")
    assert '{"token": "[REDACTED]"}' == content({"token": "hunter2canary"}, "arguments")
    assert "password=[REDACTED]" == text("password=hunter2canary", "error")


def test_the_user_s_redaction_is_asked():
    """With the attribute's name as the first key."""
    paths = []
    configure(redact=lambda path, value: paths.append(path) or value)
    content({"n": [1]}, "arguments")
    assert [("arguments", "n", "0")] == paths


def test_what_is_long_is_cut():
    """A text, and all of an attribute; what is left is JSON."""
    assert LIMITS.text == len(json.loads(content("x" * 100_000, "result")))
    told = messages(["x" * 8000] * 100, "user", "messages")
    assert len(told) < 2 * LIMITS.total
    assert json.loads(told)
    assert 1024 == len(text("x" * 100_000, "error"))


def test_a_text_of_what_is_none():
    """It is its JSON; None is none."""
    assert '{"n": 1}' == text({"n": 1}, "reason")
    assert text(None, "reason") is None


def test_what_cannot_be_encoded():
    """A lone surrogate is escaped; anything else stays."""
    assert r"a\ud800é" == encodable("a\ud800é")
    assert "é" == encodable("é")


def test_an_object_that_raises_when_it_is_asked():
    """It has nothing."""
    assert get(Hostile(), "name") is None
    assert "x" == get(object(), "name", "x")


@given(strategies.json_values())
def test_anything_is_json_that_can_be_encoded(value):
    """Whatever is sent, answered or given is JSON, and UTF-8 can hold it."""
    for told in (messages(value, "user", "m"), answer(value, "m"), content(value, "m")):
        told.encode()
        json.loads(told)
