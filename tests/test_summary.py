"""
The table of runs: what the events of a run, in one batch or in many, say about it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus import (
    Event,
    GateDecisionEvent,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    LoopRunFailedEvent,
    LoopRunStartedEvent,
    Message,
    ToolCall,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    TurnStartedEvent,
    _schema,
    _writer,
)
from eventbus._encode import encode
from eventbus._summary import COLUMNS, summarize
from eventbus.values import RunInfo

CID = {"correlation_id": "run-1"}
CALL = ToolCall("call_0", "refund")


class Placed(Event):
    """A user's event."""


def run_of(*events):
    """Return what one batch of events says about its one run, by column."""
    [run] = summarize(map(encode, events), 7)
    return dict(zip(COLUMNS, run, strict=True))


def test_a_run_that_has_ended():
    """Who ran, on what, since when, how long and how it ended."""
    found = run_of(
        InferenceStartedEvent(**CID, timestamp=1.0, agent="sundae", message="hello", parent_id="run-0"),
        TurnStartedEvent(**CID, timestamp=2.0, agent="sundae", turn=1),
        ToolCallFailedEvent(**CID, timestamp=2.5, tool_call=CALL, error=ValueError("no")),
        ToolCallDeniedEvent(**CID, timestamp=2.5, tool_call=CALL, reason="no"),
        InferenceCompletedEvent(**CID, timestamp=3.0, agent="sundae", result="done", duration=2.0),
    )

    assert {
        "cid": "run-1",
        "parent_id": "run-0",
        "agent": "sundae",
        "status": "completed",
        "started": 1.0,
        "updated": 3.0,
        "ended": 3.0,
        "duration": 2.0,
        "message": "hello",
        "first_seq": 7,
        "last_seq": 11,
        "events": 5,
        "failures": 1,
        "refusals": 1,
    } == found


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (InferenceStartedEvent, "running"),
        (InferenceFailedEvent, "failed"),
        (InferenceMaxTurnsReachedEvent, "max_turns"),
        (InferenceDeniedEvent, "denied"),
    ],
)
def test_how_it_ended(event, status):
    """The status is that of its last event of a run's own."""
    found = run_of(event(**CID, timestamp=1.0), TurnStartedEvent(**CID, timestamp=2.0))

    assert status == found["status"]
    assert (None if status == "running" else 1.0) == found["ended"]
    assert 2.0 == found["updated"]


def test_a_refused_run():
    """Its message and its parent are with the refusal."""
    found = run_of(InferenceDeniedEvent(**CID, message="hello", run=RunInfo("run-1", "run-0", "sundae")))

    assert ("hello", "run-0", 1) == (found["message"], found["parent_id"], found["refusals"])


def test_events_without_a_run():
    """They have an id and no status; those without an id are of no run."""
    found = run_of(
        Placed(**CID, timestamp=2.0), Placed(timestamp=3.0), GateDecisionEvent(**CID, timestamp=1.0)
    )

    assert (None, 2, 2.0, 2.0, 7, 9) == tuple(
        found[name] for name in ("status", "events", "started", "updated", "first_seq", "last_seq")
    )


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (None, None),
        ("x" * 300, "x" * 200),
        (Message("hello", "ada"), "hello"),
        (["a", {"b": 1}], '["a", {"b": 1}]'),
        (["é" * 300], '["' + "é" * 198),
        (7, "7"),
        ("", ""),
    ],
)
def test_the_message_is_a_text(message, kept):
    """Its beginning, whatever it is."""
    assert kept == run_of(InferenceStartedEvent(**CID, message=message))["message"]


EVENTS = (
    InferenceStartedEvent(**CID, timestamp=1.0, agent="sundae", message="hello", parent_id="run-0"),
    TurnStartedEvent(**CID, timestamp=2.0, agent="sundae", turn=1),
    ToolCallFailedEvent(**CID, timestamp=1.5, tool_call=CALL, error=ValueError("no")),
    Placed(correlation_id="run-2", timestamp=5.0),
    InferenceDeniedEvent(correlation_id="run-2", timestamp=6.0, message="again", agent="scout"),
    ToolCallDeniedEvent(**CID, timestamp=3.0, tool_call=CALL, reason="no"),
    InferenceCompletedEvent(**CID, timestamp=4.0, agent="sundae", result="done", duration=2.0),
    InferenceStartedEvent(**CID, timestamp=9.0, agent="scout", message="once more"),
    TurnStartedEvent(correlation_id="run-3", timestamp=1.0),
    TurnStartedEvent(correlation_id="run-3", timestamp=2.0, agent="first"),
    TurnStartedEvent(correlation_id="run-3", timestamp=0.5, agent="second"),
    InferenceStartedEvent(**CID, timestamp=9.5),
    Placed(timestamp=5.0),
)


@contextlib.contextmanager
def memory():
    """Yield a connection to a store that is in no file."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        connection.executescript(_schema.TABLES)
        yield connection


def table(connection, name):
    """Return the rows of a table, the earliest first."""
    by = "seq" if name == "events" else "first_seq"
    return [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY {by}")]


@given(st.sets(st.integers(1, len(EVENTS) - 1)))
@settings(max_examples=20)
def test_batches_add_up(cuts):
    """However the events are cut into batches, the table says the same in the end."""
    found = []
    for where in (set(), cuts):
        with memory() as connection:
            for begin, end in itertools.pairwise([0, *sorted(where), len(EVENTS)]):
                _writer._insert_events(connection, [encode(event) for event in EVENTS[begin:end]])
            found.append(table(connection, "runs"))

    assert found[0] == found[1]
    assert [
        ("run-1", "running", "scout", 1.0),
        ("run-2", "denied", "scout", 5.0),
        ("run-3", None, "first", 1.0),
    ] == [(run["cid"], run["status"], run["agent"], run["started"]) for run in found[0]]


KINDS = {
    "started": InferenceStartedEvent,
    "completed": InferenceCompletedEvent,
    "failed": InferenceFailedEvent,
    "denied": InferenceDeniedEvent,
    "turn": TurnStartedEvent,
    "tool failed": ToolCallFailedEvent,
    "tool denied": ToolCallDeniedEvent,
    "loop": LoopRunStartedEvent,
    "loop failed": LoopRunFailedEvent,
}


@st.composite
def happenings(draw):
    """Draw an event of one of three interleaved runs, whose ids are used again."""
    event_class = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    values = {"correlation_id": draw(st.sampled_from("abc")), "timestamp": float(draw(st.integers(1, 99)))}
    if issubclass(event_class, ToolCallFailedEvent | ToolCallDeniedEvent):
        values["tool_call"] = CALL
    elif issubclass(event_class, LoopRunStartedEvent | LoopRunFailedEvent):
        values["name"] = "report"
    else:
        values["agent"] = draw(st.sampled_from(["scout", "sundae"]))
    if issubclass(event_class, InferenceStartedEvent | InferenceDeniedEvent):
        values["message"] = draw(st.sampled_from(["hello", "again"]))
    return event_class(**values)


def told(events):
    """Say of the events of one run, each at once, what its row says of them one by one."""
    turns = [event for event in events if event["channel"].startswith("eventbus.inference.")]
    begun = [event for event in turns if event["event"] in {"InferenceStartedEvent", "InferenceDeniedEvent"}]
    agents = [event["agent"] for event in turns] or [e["agent"] for e in events if e["agent"]][:1]
    status = turns[-1]["channel"].rpartition(".")[2] if turns else None
    return {
        "agent": agents[-1] if agents else None,
        "status": "running" if status == "started" else status,
        "started": events[0]["timestamp"],
        "updated": max(event["timestamp"] for event in events),
        "ended": turns[-1]["timestamp"] if turns and status != "started" else None,
        "message": json.loads(begun[-1]["payload"])["message"] if begun else None,
        "first_seq": events[0]["seq"],
        "last_seq": events[-1]["seq"],
        "events": len(events),
        "failures": sum(event["channel"].endswith(".failed") for event in events),
        "refusals": sum(event["channel"].endswith(".denied") for event in events),
    }


@given(st.lists(st.lists(happenings(), max_size=8), min_size=1, max_size=4))
@settings(max_examples=25)
def test_runs_agree_with_their_events(batches):
    """Whatever happens, in whatever batches, the table of runs says what the events say."""
    with memory() as connection:
        for batch in batches:
            _writer._insert_events(connection, [encode(event) for event in batch])
        events, runs = table(connection, "events"), table(connection, "runs")

    for run in runs:
        expected = told([event for event in events if event["cid"] == run["cid"]])
        assert expected == {name: run[name] for name in expected}
    assert {event["cid"] for event in events} == {run["cid"] for run in runs}
