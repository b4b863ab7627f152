"""
Recorded runs for tests: by hand, and as a hypothesis strategy.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import strategies
from hypothesis import strategies as st

from eventbus._records import read_records

ROOT = Path(__file__).parents[1]
REFUNDS = ROOT / "examples" / "refunds.jsonl"
AIRLINE = ROOT.parent / "shared" / "data" / "airline_runs.jsonl.gz"

needs_airline = pytest.mark.skipif(
    not AIRLINE.exists(), reason="the recorded airline runs are no part of the project, and not here"
)


def user(text: Any = "Hi") -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def call(name: str = "lookup", arguments: Any = "{}", call_id: str = "call_0") -> dict[str, Any]:
    """Return a call of a tool, as a message of the assistant has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], content: Any = None, **more: Any) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls) or None, **more}


def tool(content: Any = "ok", call_id: str = "call_0") -> dict[str, Any]:
    """Return an answer of a tool."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def record(*messages: Any, **more: Any) -> dict[str, Any]:
    """Return a record."""
    return {"id": "run-1", "agent": "sundae", "model": "m-1", "messages": list(messages), **more}


def lines(*records: Any) -> bytes:
    """Return records as JSON lines."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)


def read(data: bytes, **options: Any) -> list[Any]:
    """Return what is read of a file with this content."""
    return list(read_records(io.BufferedReader(io.BytesIO(data)), **options))


# Small pools: what texts and JSON may hold is tested where it is read, and drawing it anew is slow.
NAMES = st.sampled_from(["look", "", "a\nb", "\x1b[31m", "\ud800", "größe"])
ARGUMENTS = st.sampled_from(["", "{}", '{"n": [1, {"x": null}]}', "[1]", '{"n": 1'])
ANSWERS = st.sampled_from(["", "ok", "Error", "Error: \u2028", '{"total": 12}', "null", "23.0", "NaN"])
SAID = st.none() | NAMES


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return a message of the assistant with the answers to its calls, whose ids repeat."""
    ids = draw(st.lists(st.sampled_from(["call_0", "call_1", ""]), max_size=3))
    calls = [call(draw(NAMES), draw(ARGUMENTS), call_id) for call_id in ids]
    return [assistant(*calls, content=draw(SAID)), *(tool(draw(ANSWERS), call_id) for call_id in ids)]


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """Return a record that fits, of any texts; it may lack the last answers."""
    said = st.sampled_from(["system", "developer", "user"])
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 3))):
        messages += [{"role": role, "content": draw(NAMES)} for role in draw(st.lists(said, max_size=1))]
        messages += draw(turns())
    while messages and messages[-1]["role"] == "tool" and draw(st.booleans()):
        messages.pop()
    return record(*messages, id=draw(strategies.text(min_size=1)), agent=draw(NAMES))
