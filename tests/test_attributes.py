"""
What telemetry reads of values that may be anything.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from eventbus import Agent, ToolCall
from eventbus import _semconv as names
from eventbus._attributes import (
    agent_name,
    call_names,
    duration,
    error_text,
    error_type,
    exception,
    nanoseconds,
    only,
    request_settings,
    tokens,
    told,
    whole,
)


class OurError(Exception):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1_500_000_000),
        (0, None),
        (-1.0, None),
        (1e300, None),
        (10**400, None),
        ("1", None),
        (None, None),
    ],
)
def test_a_time(value, expected):
    """It is after 1970 and before what 64 bits hold, or is none."""
    assert expected == nanoseconds(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (0.0, 0.0),
        (-1.0, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        ("1", None),
    ],
)
def test_a_duration(value, expected):
    """It is a number that is not negative and not without end, or is none."""
    assert expected == duration(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1), (-(2**63), -(2**63)), (2**63, None), (True, None), (1.0, None), ("1", None)],
)
def test_a_whole_number(value, expected):
    """It fits into 64 bits, or is left out."""
    assert expected == whole(value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), "ValueError"),
        (OurError(), "test_attributes.OurError"),
        ("x", "_OTHER"),
        (None, "_OTHER"),
    ],
)
def test_the_type_of_an_error(error, expected):
    """It is the class, with its module unless it is built in."""
    assert expected == error_type(error)


def test_the_text_of_an_error():
    """It is what the error says, redacted; of a text, the text."""
    assert "token=[REDACTED]" == error_text(ValueError("token=hunter2canary"))
    assert "x" == error_text("x")


def test_an_exception_that_was_never_raised():
    """It has no place."""
    expected = {names.EXCEPTION_TYPE: "ValueError", names.EXCEPTION_MESSAGE: "x"}
    assert expected == told(exception(ValueError("x")))


def test_names():
    """Agents and calls have names, or none."""
    assert "sundae" == agent_name(SimpleNamespace(agent=Agent("sundae")))
    assert agent_name(SimpleNamespace(agent=None)) is None
    assert {names.TOOL_NAME: "lookup", names.TOOL_CALL_ID: "c"} == call_names(ToolCall("c", "lookup"))
    assert {"a": 1} == only({"a": 1, "b": 2}, "a", "c")


def test_settings_of_a_model_call():
    """Those that the conventions know, if they are what they should be."""
    options = {
        "temperature": 1,
        "top_p": "high",
        "max_completion_tokens": 100,
        "seed": 2**70,
        "stream": True,
        "presence_penalty": False,
        "other": 1,
    }
    expected = {
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.stream": True,
    }
    assert expected == told(request_settings(options))
    assert {} == request_settings(None)
    assert {} == told(request_settings({"stream": False, "temperature": 1e300}))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 10, "output_tokens": 3}, (10, 3)),
        (SimpleNamespace(prompt_tokens=10, completion_tokens=3), (10, 3)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            (10, 3, 4, None, 2),
        ),
        (
            SimpleNamespace(
                input_tokens=10,
                output_tokens=3,
                input_tokens_details=SimpleNamespace(cached_tokens=4),
                output_tokens_details=SimpleNamespace(reasoning_tokens=2),
            ),
            (10, 3, 4, None, 2),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 3,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 5,
            },
            (115, 3, 100, 5),
        ),
        ({"input_tokens": -1, "output_tokens": "3"}, ()),
        (None, ()),
        (12, ()),
    ],
)
def test_counts_of_tokens(usage, expected):
    """Those of the APIs of OpenAI and Anthropic, caches included in the input."""
    keys = (
        names.INPUT_TOKENS,
        names.OUTPUT_TOKENS,
        names.CACHE_READ_TOKENS,
        names.CACHE_WRITE_TOKENS,
        names.REASONING_TOKENS,
    )
    assert told(dict(zip(keys, expected, strict=False))) == tokens(usage)


@given(
    st.one_of(
        strategies.json_values(), st.dictionaries(st.sampled_from(["input_tokens", "seed"]), st.integers())
    )
)
def test_anything_can_be_read(value):
    """Whatever it is, nothing raises, and numbers fit into 64 bits."""
    for read in (*tokens(value).values(), *told(request_settings(value)).values()):
        assert -(2**63) <= read < 2**63
    nanoseconds(value)
    duration(value)
    error_text(value)
