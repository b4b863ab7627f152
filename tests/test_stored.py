"""
Stored events are events again: their values, errors and lines, and no code comes with them.
"""

from __future__ import annotations

import builtins
import sys

import pytest
import traces
from traces import row, write

from eventbus import (
    Event,
    HandlerFailedEvent,
    Message,
    ModelResponse,
    ToolCall,
    ToolCallStartedEvent,
    ToolResult,
    parse_line,
    trace,
)
from eventbus._errors import EventbusError
from eventbus._stored import StoredError, as_error, class_of, fields_of, level_of, line_of, revive


def told(kind, text="no", frames=("a.py:1 in f",)):
    return {"type": kind, "text": text, "frames": list(frames), "traceback": ""}


@pytest.fixture
def stored(tmp_path):
    """Return a function that stores a row and reads it back."""

    def make(*arguments, **payload):
        with trace.open(write(tmp_path / "runs.db", [row(*arguments, **payload)])) as reader:
            return reader.tail(1)[0]

    return make


EXCEPTIONS = [
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type)
    and issubclass(value, Exception)
    and not issubclass(value, BaseExceptionGroup)
    and name == value.__name__
]


class TestErrors:
    """Exceptions."""

    @pytest.mark.parametrize("name", EXCEPTIONS)
    def test_built_in_ones_are_theirs(self, name):
        """For `isinstance`; the text is what it was, whatever the class makes of its arguments."""
        error = as_error(told(f"builtins.{name}", "what\nit said"))
        assert isinstance(error, getattr(builtins, name))
        assert isinstance(error, EventbusError)
        assert (name, "what\nit said", ("a.py:1 in f",)) == (type(error).__name__, str(error), error.frames)

    @pytest.mark.parametrize(
        "name",
        [
            "asyncio.exceptions.CancelledError",
            "builtins.KeyboardInterrupt",
            "os.system",
            "no.such.<x>",
            "",
            "\x00",
        ],
    )
    def test_no_other_is_looked_up(self, name):
        """Neither imported, nor one that would end the program."""
        before = set(sys.modules)
        error = as_error(told(name))
        assert type(error).__mro__[1] is StoredError
        assert isinstance(error, RuntimeError)
        assert before == set(sys.modules)

    @pytest.mark.parametrize("value", [None, "text", {}, {"type": "x"}, [1]])
    def test_what_is_no_error(self, value):
        """It stays what it is."""
        assert value == as_error(value)


class TestValues:
    """Values of the catalog."""

    def test_they_are_told_by_their_keys(self):
        """With what is in them."""
        call = {"id": "c1", "name": "look", "input": {"n": 1}}
        answer = {
            "content": "x",
            "tool_calls": [call],
            "model": "m",
            "usage": None,
            "finish_reason": None,
            "raw": None,
        }
        assert ToolCall("c1", "look", {"n": 1}) == revive(call)
        assert ModelResponse("x", [ToolCall("c1", "look", {"n": 1})], "m") == revive(answer)
        assert ToolResult({"a": 1}) == revive({"data": {"a": 1}, "error": None})
        assert "no" == str(revive({"data": None, "error": told("builtins.ValueError")}).error)
        said = {"text": "hi", "sender": None, "subject": None, "thread": None}
        assert Message("hi") == revive(said)
        assert {"id": 1} == revive({"id": 1})

    def test_a_users_payload_stays_as_it_is(self, stored):
        """Only errors in it are errors again."""

        class Placed(Event, channel="shop.placed"):
            call: object = None
            error: object = None

        call = {"id": "c1", "name": "look", "input": {}}
        event = stored("a", "shop.placed", event_name="Placed", call=call, error=told("builtins.KeyError"))
        fields = fields_of(event, class_of(event))
        assert call == fields["call"]
        assert isinstance(fields["error"], KeyError)

    def test_the_event_that_a_handler_failed_on(self, stored):
        """It says which it was, and nothing else of it is known."""
        about = {
            "event": "ToolCallStartedEvent",
            "channel": "eventbus.tool_call.started",
            "correlation_id": "a",
            "span_id": "s",
        }
        event = stored("a", "handler.failed", event=about)
        failed = fields_of(event, HandlerFailedEvent)["event"]
        assert (ToolCallStartedEvent, "a", "s", None) == (
            type(failed),
            failed.correlation_id,
            failed.span_id,
            failed.tool_call,
        )

    def test_a_gate_is_no_class_for_an_event(self, stored):
        """Whoever has written that."""
        event = stored("a", "tool_call.before", event_name="BeforeToolCallEvent")
        assert class_of(event) is None


class TestLines:
    """Lines of stored events."""

    @pytest.mark.parametrize(
        ("channel", "payload", "line", "level"),
        [
            ("turn.started", {"agent": "a", "turn": 1}, "TURN START agent=a turn=1", "debug"),
            (
                "inference.failed",
                {"error": told("builtins.KeyError")},
                "INF FAIL KeyError: no (a.py:1 in f)",
                "error",
            ),
            ("step.failed", {"name": "x", "error": "text"}, "STEP FAIL x text", "error"),
            ("tool_call.started", {}, "EVENT ToolCallStartedEvent", "info"),
            (
                "gate.decision",
                {"gate": "BeforeInvocationEvent", "action": "deny", "by": "G.x"},
                "GATE DENY run by=G.x",
                "warning",
            ),
            ("gate.decision", {"action": "error", "by": "G.x"}, 'GATE ERROR "" by=G.x', "error"),
            (
                "handler.failed",
                {"handler": "A.b", "event": {"event": "Order"}},
                "HOOK FAIL A.b on=Order",
                "error",
            ),
            (
                "inference.generated",
                {"turn": 1, "model": "m", "response": {}, "duration": 0.00047864100088190753, "span_id": "s"},
                "EVENT InferenceGeneratedEvent turn=1 model=m duration=0.000479",
                "info",
            ),
        ],
    )
    def test_as_in_the_log(self, stored, channel, payload, line, level):
        """And one for each that has none there."""
        event = stored("a", channel, **payload)
        assert f"1970-01-01T00:16:40.000Z a {line}" == line_of(event)
        assert level == level_of(event)

    def test_any_payload_is_one_line(self, stored):
        """It can be read back, whatever is in it."""
        event = stored(
            traces.HOSTILE, "shop.x", event_name=traces.HOSTILE, **{traces.HOSTILE: traces.HOSTILE}
        )
        line = line_of(event)
        assert line.isprintable()
        assert (traces.HOSTILE, ("EVENT", traces.HOSTILE)) == (parse_line(line).cid, parse_line(line).words)
