"""
From an event to a row: what is recorded, masked, cut and marked.
"""

from __future__ import annotations

import json
import math
import socket
import threading
from collections import OrderedDict
from datetime import date
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import SECRET, raised

from eventbus import (
    Agent,
    BeforeToolCallEvent,
    Event,
    GateDecisionEvent,
    HandlerFailedEvent,
    InferenceCompletedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceStartedEvent,
    Message,
    ModelResponse,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallFailedEvent,
    ToolCallsReceivedEvent,
    ToolResult,
    TurnStartedEvent,
    _encode,
    configure,
)
from eventbus._plain import Limits, plain
from eventbus._redact import default_redact
from eventbus._schema import COLUMNS
from eventbus.values import RunInfo

RUN = RunInfo("run-1", "run-0", Agent("sundae"), "hello", {"user": 7})


class Anything(Event):
    """An event with a value of any kind."""

    value: Any = None


@attrs.frozen
class Slotted(Event):
    """An event whose class attrs has rebuilt, with slots."""

    value: Any = None


@pytest.fixture(autouse=True, params=["fast", "standard"])
def library(request, monkeypatch):
    """Encode with the fast library where there is one, and with the standard one."""
    if request.param == "standard":
        monkeypatch.setattr(_encode, "_fast_dumps", None)
    elif _encode._fast_dumps is None:
        pytest.skip("orjson is not installed")


def columns(event) -> dict[str, Any]:
    """Return the row of an event by column."""
    return dict(zip(COLUMNS, _encode.encode(event), strict=True))


def payload(event) -> dict[str, Any]:
    """Return the payload of an event's row, decoded."""
    found: dict[str, Any] = json.loads(columns(event)["payload"])
    return found


def value(of) -> Any:
    """Return what becomes of a value in an event."""
    return payload(Anything(value=of))["value"]


def is_lossy(of) -> bool:
    """Tell whether the row of an event with this value is marked."""
    return columns(Anything(value=of))["lossy"] == 1


def test_a_row_says_what_happened():
    """Its columns are those that people look for."""
    event = ToolCallCompletedEvent(
        correlation_id="run-1",
        timestamp=12.5,
        run=RUN,
        agent="sundae",
        tool_call=ToolCall("call_0", "lookup_order", {"order_id": "A1"}),
        result=ToolResult({"total": 12}),
        duration=0.25,
        span_id="00f067aa0ba902b7",
    )

    assert {
        "cid": "run-1",
        "timestamp": 12.5,
        "channel": "eventbus.tool_call.completed",
        "event": "ToolCallCompletedEvent",
        "span_id": "00f067aa0ba902b7",
        "agent": "sundae",
        "tool": "lookup_order",
        "duration": 0.25,
        "lossy": 0,
        "payload": (
            '{"agent":"sundae","tool_call":{"id":"call_0","name":"lookup_order","input":{"order_id":"A1"}},'
            '"result":{"data":{"total":12},"error":null},"answered_by":null,"duration":0.25,'
            '"span_id":"00f067aa0ba902b7"}'
        ),
    } == columns(event)


def test_a_users_event():
    """Its fields, and the raw keys given to emit; columns are empty where it has no such thing."""
    found = []
    with Anything.subscribe(found.append):
        Anything.emit(value=1, note="two", agent="sundae", run=RUN)
        Anything.emit(value={1}, note="two", run=RUN)

    assert {"value": [1], "note": "two"} == payload(found[1])
    row = columns(found[0])
    assert {"value": 1, "note": "two", "agent": "sundae"} == json.loads(row["payload"])
    assert (None, "sundae", None, None) == (row["cid"], row["agent"], row["tool"], row["duration"])


@pytest.mark.parametrize("duration", [10**400, float("nan"), True, "long"])
def test_a_duration_that_is_none(duration):
    """It is in the payload, and not in the column."""
    row = columns(ToolCallCompletedEvent(tool_call=ToolCall("c", "lookup"), duration=duration))

    assert row["duration"] is None
    assert "duration" in json.loads(row["payload"])


def test_a_class_with_slots():
    """Its fields are found where attrs has put them."""
    assert {"value": [1]} == payload(Slotted(value=[1]))
    assert {"value": date(2026, 1, 31).isoformat()} == payload(Slotted(value=date(2026, 1, 31)))


def test_the_run_is_told_once():
    """What is known of a run is with the event that starts it, and with no other."""
    start = InferenceStartedEvent(agent="sundae", message="hello", run=RUN)

    assert {"id", "parent_id", "agent", "message", "metadata"} == set(payload(start)["run"])
    assert {"user": 7} == payload(start)["run"]["metadata"]
    assert "run" not in payload(TurnStartedEvent(agent="sundae", turn=1, run=RUN))
    assert "run" not in payload(InferenceCompletedEvent(agent="sundae", result={1}, run=RUN))


@pytest.mark.parametrize("agent", ["sundae", Agent("sundae"), SimpleNamespace(name="sundae", secret="x")])
def test_an_agent_is_its_name(agent):
    """Whatever object it is."""
    row = columns(TurnStartedEvent(agent=agent))

    assert "sundae" == row["agent"]
    assert "sundae" == json.loads(row["payload"])["agent"]


class Odd:
    """An agent without a name that could be read, and a call without an input."""

    id = "call_0"

    @property
    def name(self):
        raise RuntimeError("no name")


def test_an_agent_without_a_name():
    """It is told as any object is."""
    row = columns(TurnStartedEvent(agent=Odd()))

    assert row["agent"].startswith("<")
    assert 1 == row["lossy"]


def test_objects_that_stand_in():
    """A call and a result of other classes are read by their attributes."""
    call = SimpleNamespace(
        id="call_0", name="lookup_order", input={"order_id": "A1"}, client=threading.Lock()
    )
    result = SimpleNamespace(data=[1], error=None, session=threading.Lock())

    row = columns(ToolCallCompletedEvent(tool_call=call, result=result))

    assert "lookup_order" == row["tool"]
    found = json.loads(row["payload"])
    assert {"id": "call_0", "name": "lookup_order", "input": {"order_id": "A1"}} == found["tool_call"]
    assert {"data": [1], "error": None} == found["result"]
    assert 0 == row["lossy"]


def test_a_list_of_objects_that_stand_in():
    """Each call of a list is read by its attributes."""
    calls = [SimpleNamespace(id="call_0", name="lookup_order", input={}, client=1), ToolCall("call_1", "x")]

    found = payload(ToolCallsReceivedEvent(tool_calls=calls))["tool_calls"]

    assert [
        {"id": "call_0", "name": "lookup_order", "input": {}},
        {"id": "call_1", "name": "x", "input": {}},
    ] == found


def test_one_that_does_not_stand_in():
    """What lacks an attribute is told as any object is."""
    row = columns(ToolCallCompletedEvent(tool_call=Odd(), result=Odd()))

    assert row["tool"] is None
    assert 1 == row["lossy"]


def test_the_tool_of_a_decision():
    """What a gate has decided about a call is found by its tool."""
    row = columns(GateDecisionEvent(gate="BeforeToolCallEvent", tool_call=ToolCall("call_0", "refund")))

    assert "refund" == row["tool"]


def test_the_values_of_the_catalog():
    """They are read by their fields, wherever they stand."""
    response = ModelResponse(
        "hi", [ToolCall("c", "t", {"a": 1})], "m-1", {"input_tokens": 3}, "stop", {"id": 1}
    )

    for raw, mark in ((response, 0), ([response, {1, 2}], 1)):
        row = columns(InferenceGeneratedEvent(response=raw, request=[Message("hello", "ada")]))
        found = json.loads(row["payload"])
        first = found["response"][0] if mark else found["response"]
        assert {"content", "tool_calls", "model", "usage", "finish_reason", "raw"} == set(first)
        assert [{"id": "c", "name": "t", "input": {"a": 1}}] == first["tool_calls"]
        assert {"text": "hello", "sender": "ada", "subject": None, "thread": None} == found["request"][0]
        assert mark == row["lossy"]


def test_an_event_inside_an_event_is_named():
    """What a failed handler was handling may be ungated: none of its data is repeated."""
    inner = BeforeToolCallEvent(
        correlation_id="run-1",
        tool_call=ToolCall("call_0", "refund", {"iban": "DE00"}),
        arguments={"iban": "DE00"},
    )

    row = columns(HandlerFailedEvent(hook="H", handler="H.x", event=inner, error=ValueError("no")))

    assert "DE00" not in row["payload"]
    assert {
        "event": "BeforeToolCallEvent",
        "channel": BeforeToolCallEvent.channel,
        "correlation_id": "run-1",
        "span_id": None,
    } == json.loads(row["payload"])["event"]


def test_an_error():
    """Its type, text, frames and traceback."""
    error = payload(ToolCallFailedEvent(tool_call=ToolCall("c", "t"), error=raised(RuntimeError("boom"))))[
        "error"
    ]

    assert "builtins.RuntimeError" == error["type"]
    assert "boom" == error["text"]
    assert ["tools.py:9 in run", "agent.py:30 in act", "app.py:4 in main"] == error["frames"]
    assert error["traceback"].startswith("Traceback (most recent call last):\n")
    assert error["traceback"].endswith('File "tools.py", line 9, in run\nRuntimeError: boom\n')


def test_an_error_of_a_result():
    """An error that a tool has answered with is told as one."""
    result = ToolResult(None, ValueError("no"))

    row = columns(ToolCallCompletedEvent(tool_call=ToolCall("c", "t"), result=result))

    assert "no" == json.loads(row["payload"])["result"]["error"]["text"]
    assert 0 == row["lossy"]


def test_what_led_to_an_error():
    """Causes and contexts stand before it, as Python shows them."""

    def fail(how):
        try:
            try:
                raise KeyError("first")
            except KeyError as first:
                if how == "cause":
                    raise ValueError("second") from first
                if how == "none":
                    raise ValueError("second") from None
                raise ValueError("second")
        except ValueError as second:
            return payload(InferenceFailedEvent(error=second))["error"]["traceback"]

    assert fail("cause").index("first") < fail("cause").index("direct cause") < fail("cause").index("second")
    assert "During handling" in fail("context")
    assert "first" not in fail("none").replace('KeyError("first")', "")


def test_a_long_chain_of_errors_is_bounded():
    """Ten thousand contexts, or one that is its own, end."""
    error = ValueError("last")
    inner = error
    for _ in range(10_000):
        inner.__context__ = ValueError("earlier")
        inner = inner.__context__
    inner.__context__ = error

    found = payload(InferenceFailedEvent(error=error))["error"]["traceback"]

    assert 7 == found.count("earlier")


class Unprintable(Exception):
    """An error that cannot tell its text."""

    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_that_cannot_be_printed():
    """It is told all the same."""
    found = payload(InferenceFailedEvent(error=raised(Unprintable())))["error"]

    assert "<unprintable>" == found["text"]
    assert "Unprintable: <unprintable>" in found["traceback"]


def test_a_traceback_that_cannot_be_read(monkeypatch):
    """What cannot be read is left out, and the error is told."""

    def fail(*_, **__):
        raise RuntimeError("no lines")

    monkeypatch.setattr(_encode.traceback.StackSummary, "extract", fail)

    assert ("no", "…\n") == tuple(
        payload(InferenceFailedEvent(error=ValueError("no")))["error"][key] for key in ("text", "traceback")
    )


def deep(levels):
    """Return a list in a list in a list."""
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


class Cyclic(dict):
    """A dict of a class of its own, that holds itself."""

    def __init__(self):
        self["self"] = self


STRANGE = {
    "a large integer": (2**70, False),
    "one that has no end": (2**5000, True),
    "no number": (math.nan, True),
    "infinity": (-math.inf, True),
    "bytes": (b"abc", True),
    "half of a pair": ("a\ud800b", True),
    "half of a pair as key": ({"\udc00": 1}, True),
    "a null": ("a\x00b", False),
    "depth": (deep(5_000), True),
    "a set": ({3, 1, 2}, True),
    "a class": (Anything, True),
    "a function": (deep, True),
    "a lock": (threading.Lock(), True),
    "a cycle": (Cyclic(), True),
    "a tuple": ((1, (2,)), False),
    "a date": (date(2026, 1, 31), False),
    "an ordered dict": (OrderedDict(a=1), False),
    "a number as key": ({1: 2}, True),
    "a long text": ("x" * 100_000, True),
    "a text that fits": ("x" * 20_000, False),
    "many": (list(range(5_000)), False),
    "too many": (list(range(20_000)), True),
    "many keys": ({str(number): number for number in range(3_000)}, False),
    "a long key": ({"k" * 300: 1}, False),
    "nothing": (None, False),
    "a flag": ([True, False], False),
    "an agent": ([Agent("sundae")], False),
}


@pytest.mark.parametrize(("strange", "lossy"), STRANGE.values(), ids=STRANGE.keys())
def test_strange_values_are_stored(strange, lossy):
    """Each gives valid JSON, and is marked where it cannot be told from it."""
    event = Anything(value=strange)
    row = columns(event)

    assert {"value"} == set(json.loads(row["payload"]))
    row["payload"].encode()
    assert lossy == (row["lossy"] == 1)


def test_a_socket():
    """An object of the operating system is named, not copied."""
    with socket.socket() as one:
        assert "<socket.socket>" == value(one)


def test_what_comes_back():
    """JSON gives back what it can hold."""
    for one in (2**70, "a\x00b", [1, [2]], {"a": {"b": None}}, 1.5, True, "\U0001f600", 'a\tb"c\\d'):
        assert one == value(one)
    assert "a\\ud800b" == value("a\ud800b")


@given(
    st.dictionaries(strategies.text(max_size=8), strategies.json_values(), max_size=4),
    strategies.containers(),
)
@settings(max_examples=60)
def test_any_payload_is_valid_json(keys, contained):
    """Whatever is emitted is stored as a JSON object that SQLite takes as a text."""
    event = Anything(value=contained)
    event.__dict__["_extra"] = {f"x{key}": one for key, one in keys.items()}
    for library in {_encode._fast_dumps, None}:
        before, _encode._fast_dumps = _encode._fast_dumps, library
        try:
            row = columns(event)
        finally:
            _encode._fast_dumps = before
        assert isinstance(json.loads(row["payload"]), dict)
        row["payload"].encode()


@given(strategies.json_values())
@settings(max_examples=100)
def test_a_field_is_copied_as_any_value_is(one):
    """Fields and raw keys are masked and bounded together, and each as `plain` would do it."""
    event = Anything(value=one)
    event.__dict__["_extra"] = {"raw": one}

    found, _ = _encode._payload(event, _encode._shape(Anything), default_redact)

    assert plain({"raw": one, "value": one}).value == found


def test_what_changes_later_is_not_recorded():
    """A row is made when the event is emitted."""
    items = {"list": [1]}
    row = columns(Anything(value=items))
    items["list"].append(2)

    assert {"value": {"list": [1]}} == json.loads(row["payload"])


CANARY = {
    "a named key": {"password": SECRET},
    "a key above": {"credentials": {"list": [SECRET]}},
    "a nested key": {"a": [{"api_key": SECRET}]},
    "a number under a named key": {"a": {"token": [1, SECRET]}},
    "a JSON text": json.dumps({"a": {"session_id": SECRET}}),
    "a text": f"login failed: password={SECRET}",
    "a URL": f"https://example.org/?q=1&access_token={SECRET}",
    "userinfo": f"https://ada:{SECRET}@example.org/",
    "a header": {"headers": f"Authorization: Bearer {SECRET}"},
    "a set of texts": {f"token={SECRET}"},
    "a key that holds one": {f"password={SECRET}": 1},
    "a key of two words": {"pass_wd": SECRET},
    "a list under a named key": {"token": [SECRET]},
    "a long text": f"{'x' * 20_000} password={SECRET}",
    "bytes": {"secret": SECRET.encode()},
    "an object": SimpleNamespace(password=SECRET),
    "an error": RuntimeError(f"password={SECRET}"),
    "an error with JSON": RuntimeError(json.dumps({"password": SECRET})),
}


@pytest.mark.parametrize("canary", CANARY.values(), ids=CANARY.keys())
def test_no_secret_is_in_a_row(canary):
    """Redaction comes before anything is encoded."""
    for event in (
        Anything(value=canary),
        Anything(value=raised(canary) if isinstance(canary, Exception) else [canary, {1}]),
        ToolCallCompletedEvent(tool_call=ToolCall("c", "t", {"q": canary}), result=ToolResult(canary)),
    ):
        assert SECRET not in repr(_encode.encode(event))


class Login(Event):
    """An event with a field that names a secret."""

    password: Any
    user: str = "ada"


@pytest.mark.parametrize("secret", [SECRET, [SECRET], {"a": SECRET}, SECRET.encode()])
def test_a_field_that_names_a_secret(secret):
    """What it holds is masked, and numbers are not."""
    assert SECRET not in repr(_encode.encode(Login(password=secret)))
    assert {"password": 7, "user": "ada"} == payload(Login(password=7))
    assert {"password": None, "user": "ada"} == payload(Login(password=None))


def test_a_redaction_of_ones_own():
    """It is asked about every value, errors' texts and tracebacks included."""
    asked = []

    def redact(path, one):
        asked.append(path)
        return one.replace("canary", "bird") if isinstance(one, str) else one

    configure(redact=redact)

    row = _encode.encode(Anything(value={"a": SECRET}))
    error = _encode.encode(Anything(value=raised(ValueError(SECRET))))

    assert "hunter2bird" in repr(row)
    assert SECRET not in repr((row, error))
    assert {("value", "a"), ("value", "text"), ("value", "traceback")} <= set(asked)


@pytest.mark.parametrize("moment", [math.nan, math.inf, "noon", None])
def test_a_time_that_is_none(moment):
    """A timestamp without a meaning is the time of the row, and marked."""
    row = columns(Anything(value=1, timestamp=moment))

    assert math.isfinite(row["timestamp"])
    assert 1 == row["lossy"]


def test_a_time_in_whole_seconds():
    """An int is a time as well."""
    row = columns(Anything(value=1, timestamp=12))

    assert (12.0, 0) == (row["timestamp"], row["lossy"])


@pytest.mark.parametrize(
    ("cid", "kept"),
    [
        ("run-1", "run-1"),
        ("überlauf", "überlauf"),
        ("a\ud800", "a\\ud800"),
        ("x" * 300, "x" * 255 + "…"),
        (7, "7"),
    ],
)
def test_an_id_is_kept_as_the_log_shows_it(cid, kept):
    """An id that is no plain text is the one that a line has."""
    assert kept == columns(Anything(value=1, correlation_id=cid))["cid"]


def test_names_are_cut_in_their_columns():
    """A name of any length is a column of a bounded one."""
    row = columns(TurnStartedEvent(agent="x" * 300))
    odd = columns(TurnStartedEvent(agent="ü\ud800"))

    assert "x" * 255 + "…" == row["agent"]
    assert "ü\\ud800" == odd["agent"]
    assert columns(Anything(value=1, correlation_id="c"))["agent"] is None


def test_at_the_end_of_the_stack(monkeypatch):
    """Where there is no stack left, a row says which event it was."""

    def fail(*_, **__):
        raise RecursionError

    monkeypatch.setattr(_encode.Walk, "walk", fail)
    row = columns(Anything(value={1}))

    assert ("Anything", "{}", 1) == (row["event"], row["payload"], row["lossy"])


def test_raw_keys_for_which_there_is_no_room(monkeypatch):
    """What is kept of all fields together is bounded, and what is left out is marked."""
    monkeypatch.setattr(_encode, "LIMITS", Limits(nodes=2))
    event = Anything(value=[1, 2])
    event.__dict__["_extra"] = {"raw": 1}

    row = columns(event)

    assert {"value": [1, 2], "…": "…"} == json.loads(row["payload"])
    assert 1 == row["lossy"]


def test_without_the_fast_library(monkeypatch):
    """The standard library does."""

    def missing(_name):
        raise ImportError

    monkeypatch.setattr(_encode.importlib, "import_module", missing)

    assert _encode._find_orjson() is None


def test_a_key_that_is_a_field_already():
    """Of two values of one name, one is kept, and it is no error."""
    event = Anything(value=1)
    event.__dict__["_extra"] = {"value": 2}

    assert {"value"} == set(payload(event))
