"""
Messages of a model, and arguments and results of tools, in the form of the GenAI semantic conventions.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import islice
from typing import Any, Final, cast

from ._plain import CUT, Limits, plain
from ._redact import default_redact
from ._settings import settings

LIMITS: Final = Limits(depth=16, nodes=2000, text=8192, total=65_536)
"""How much of a value is recorded: of one text, and of all of one attribute."""

_SHORT: Final = Limits(depth=4, nodes=32, text=1024, total=1024)
_CALLS: Final = 256


def get(value: Any, name: str, default: Any = None) -> Any:
    """
    Read an attribute of an object that may do anything when it is asked.
    """
    try:
        return getattr(value, name, default)
    except Exception:
        return None


def text(value: object, name: str) -> str | None:
    """
    Return a name, a reason or an error's text as it may leave the process.

    Args:
        value: Anything.
        name: The key it is redacted under.

    Returns:
        A text that can be encoded, redacted and at most 1,024 characters long; None for None.
    """
    if value is None:
        return None
    copy = plain(value, redact=settings.redact or default_redact, path=(name,), limits=_SHORT).value
    return encodable(copy if isinstance(copy, str) else json.dumps(copy, ensure_ascii=False))


def encodable(value: str) -> str:
    """
    Return a text in which what UTF-8 cannot hold, lone surrogates, is escaped: an exporter would fail on it.
    """
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def content(value: object, name: str) -> str:
    """
    Return arguments or a result of a tool as JSON, redacted and bounded.
    """
    return _dumps(_plain(value, name))


def messages(value: object, role: str, name: str) -> str:
    """
    Return what was sent to a model or an agent as JSON, redacted and bounded.

    Args:
        value: Messages as `{"role": ..., "content": ...}` or as texts; one message or a list of them.
        role: The role of a message that tells none.
        name: The key they are redacted under.
    """
    return _dumps([_message(one, role) for one in _listed(_plain(value, name))])


def answer(response: object, name: str) -> str:
    """
    Return what a model or an agent has answered as JSON: one message, redacted and bounded.
    """
    said, calls = get(response, "content"), _calls(response)
    told = {"content": said, "tool_calls": calls} if calls or said is not None else response
    message = _message(_plain(told, name), "assistant")
    reason = text(get(response, "finish_reason"), name) or ("tool_call" if calls else "stop")
    return _dumps([{**message, "finish_reason": reason}])


def _calls(response: object) -> list[dict[str, Any]]:
    try:
        calls: list[Any] = list(islice(get(response, "tool_calls") or (), _CALLS))
    except Exception:
        return []
    return [{"id": get(call, "id"), "name": get(call, "name"), "input": get(call, "input")} for call in calls]


def _plain(value: object, name: str) -> Any:
    return plain(value, redact=settings.redact or default_redact, path=(name,), limits=LIMITS).value


def _dumps(value: Any) -> str:
    return encodable(json.dumps(value, ensure_ascii=False))


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value  # pyright: ignore[reportUnknownVariableType]  # of anything
    return [value]


def _message(message: Any, role: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        return {"role": role, "parts": [_part(message)]}
    fields = cast("dict[str, Any]", message)
    said, calls = fields.get("content", fields.get("text")), fields.get("tool_calls")
    role = fields["role"] if isinstance(fields.get("role"), str) else role
    if role == "tool":
        parts = [{"type": "tool_call_response", "id": fields.get("tool_call_id"), "response": said}]
    elif said is None and not calls:
        parts = [] if "content" in fields else [_part(fields)]
    else:
        parts = [_part(one) for one in _listed(said) if one]
        parts += [_call(call) for call in _listed(calls) if call]
    return {"role": role, "parts": parts}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, dict):
        fields = cast("dict[str, Any]", part)
        if fields.get("type") == "text":
            return {"type": "text", "content": fields.get("content", fields.get("text"))}
        if isinstance(fields.get("type"), str):
            return fields
    return {
        "type": "text",
        "content": part if isinstance(part, str) else json.dumps(part, ensure_ascii=False),
    }


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        # What was too much is said in its place.
        return {"type": "tool_call", "name": call if isinstance(call, str) else CUT}
    fields = cast("dict[str, Any]", call)
    function = fields.get("function")
    asked = cast("dict[str, Any]", function) if isinstance(function, dict) else fields
    arguments = asked.get("arguments", asked.get("input"))
    if isinstance(arguments, str):
        # Models write what is no JSON, or what only Python takes for it; and what is too long was cut.
        with suppress(ValueError, RecursionError):
            parsed = json.loads(arguments)
            json.dumps(parsed, allow_nan=False)
            arguments = parsed
    return {"type": "tool_call", "id": fields.get("id"), "name": asked.get("name"), "arguments": arguments}
