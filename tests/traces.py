"""
Trace stores for tests: filled row by row, or by runs in which everything happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import recordings

from eventbus import (
    AfterModelCallEvent,
    ApproveToolCallEvent,
    BeforeInvocationEvent,
    BeforeToolCallEvent,
    Event,
    Hook,
    LoopRunEnqueuedEvent,
    Message,
    ModelResponse,
    Run,
    RunRefused,
    ToolCall,
    ToolCallCompletedEvent,
    ToolResult,
    _schema,
    _summary,
    on,
    trace,
)
from eventbus._encode import Row
from eventbus._records import read_records
from eventbus._replay import replay_record

HOSTILE = "\x1b[2J\u202e\n<script>"


def row(cid: str | None, channel: str, *, timestamp: float = 1000.0, **payload: Any) -> Row:
    """Return the row of an event as the writer makes it; `channel` of the catalog without `eventbus.`."""
    call = payload.get("tool_call")
    if not channel.startswith("shop."):
        channel = f"eventbus.{channel}"
    name = "".join(part.title() for part in channel.replace("_", ".").split(".")[1:]) + "Event"
    return (
        cid,
        timestamp,
        channel,
        payload.pop("event_name", name),
        payload.get("span_id"),
        payload.get("agent"),
        call.get("name") if isinstance(call, dict) else None,
        payload.get("duration"),
        0,
        json.dumps(payload, ensure_ascii=False, separators=(",", ":")),
    )


def write(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows to a store, made at need, in one transaction."""
    rows = list(rows)
    connection = _schema.open_to_write(str(path), "batched").connection
    try:
        connection.execute("BEGIN IMMEDIATE")
        first = connection.execute("SELECT coalesce(max(seq), 0) + 1 FROM events").fetchone()[0]
        connection.executemany(
            f"INSERT INTO events ({', '.join(_schema.COLUMNS)}) VALUES ({', '.join('?' * 10)})", rows
        )
        columns = ", ".join(_summary.COLUMNS)
        values = ", ".join("?" * len(_summary.COLUMNS))
        connection.executemany(
            f"INSERT INTO runs ({columns}) VALUES ({values}) {_summary.MERGE}",
            _summary.summarize(rows, first),
        )
        connection.execute("COMMIT")
    finally:
        connection.close()
    return path


def run_rows(cid: str, start: float = 1000.0, agent: str = "sundae", **started: Any) -> list[Row]:
    """Return the rows of a small run: one turn, one answer of the model, one call of a tool."""
    call = {"id": "c1", "name": "lookup", "input": {"order": "A1"}}
    said: dict[str, Any] = {"agent": agent, "timestamp": start}
    turn = {**said, "turn": 1, "span_id": f"t-{cid}"}
    model = {**said, "turn": 1, "model": "m-1", "attempt": 1, "span_id": f"m-{cid}"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return [
        row(cid, "inference.started", **said, span_id=f"i-{cid}", **{"message": "hi", **started}),
        row(cid, "turn.started", **turn),
        row(cid, "model_call.started", **model),
        row(cid, "inference.generated", **model, usage=usage, duration=0.5),
        row(cid, "tool_call.started", **said, tool_call=call, span_id=f"c-{cid}"),
        row(
            cid,
            "tool_call.completed",
            **said,
            tool_call=call,
            result={"data": {"total": 12}, "error": None},
            span_id=f"c-{cid}",
            duration=0.25,
        ),
        row(cid, "turn.completed", **turn, duration=0.8),
        row(cid, "inference.completed", **said, span_id=f"i-{cid}", message="hi", duration=1.0),
    ]


def filled(path: Path, emit: Any) -> Path:
    """Call a function while a store at a path is open."""
    trace.start(path)
    try:
        emit()
        assert trace.flush(30)
    finally:
        trace.stop()
    return path


def airline() -> None:
    """Replay the recorded airline runs, no faster than they are stored."""
    with recordings.AIRLINE.open("rb") as stream:
        for record in read_records(stream):
            replay_record(record)  # type: ignore[arg-type]  # there are no problems in it
            assert trace.flush(30)


def order_event() -> type[Event]:
    """Define a user's event."""

    class OrderPlaced(Event, channel="shop.order.placed"):
        order_id: str
        total: float = 0.0

    return OrderPlaced


def gates() -> None:
    """Define hooks that edit, answer, refuse, retry, only watch, and fail."""

    class Guard(Hook):
        @on(ApproveToolCallEvent, when=lambda event: event.tool_call.name == "refund")
        def check(self, event):
            if event.arguments["amount"] > 20:
                event.denied = "refunds above 20 need a colleague"

    class Caps(Hook):
        @on(BeforeToolCallEvent, when=lambda event: event.tool_call.name == "lookup")
        def limit(self, event):
            event.arguments = {**event.arguments, "limit": 10 * len(event.arguments)}

    class Cache(Hook):
        @on(BeforeToolCallEvent, when=lambda event: event.tool_call.name == "cached")
        def answer(self, event):
            event.result = ToolResult({"hit": True})

    class Stop(Hook):
        @on(BeforeToolCallEvent, when=lambda event: event.tool_call.name == "forbidden")
        def stop(self, event):
            event.cancel = "never"

    class Again(Hook):
        @on(AfterModelCallEvent)
        def retry(self, event):
            if event.error is not None:
                event.retry = 0.001
                event.reason = "transient"

    class Watch(Hook):
        shadow = True

        @on(BeforeToolCallEvent, when=lambda event: event.tool_call.name != "slow")
        def watch(self, event):
            event.cancel = "would refuse"

    class Prompt(Hook):
        @on(BeforeInvocationEvent)
        def prompt(self, event):
            if event.message == "forbidden":
                event.cancel = "too long"

    class Broken(Hook):
        @on(ToolCallCompletedEvent, when=lambda event: event.tool_call.name == "lookup")
        def boom(self, event):
            raise ValueError("no total")


def model(*answers: Any) -> Any:
    """Return a model that gives these answers, or raises them."""
    given = iter(answers)

    def ask(messages, **settings):
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def calls(*names: str, **arguments: Any) -> ModelResponse:
    """Return an answer that asks for tools; their ids repeat."""
    asked = [ToolCall("c1", name, arguments or {"n": number}) for number, name in enumerate(names)]
    return ModelResponse("", asked, "m-1", {"input_tokens": 100, "output_tokens": 20})


def boom(**_arguments: Any) -> None:
    """Fail."""
    raise RuntimeError(f"boom {HOSTILE}")


def helper(**_arguments: Any) -> str:
    """Run another agent."""
    with Run(agent="helper", message="a part of it", correlation_id="nested-1") as run:
        with run.step("retrieve"):
            pass
        run.call_model(model(ModelResponse("here")), ["q"], model="m-2")
        run.complete("found")
    return "helped"


def tools() -> dict[str, Any]:
    """Return tools by name."""
    return {
        "lookup": lambda **_: {"total": 12},
        "refund": lambda **_: None,
        "cached": boom,
        "forbidden": boom,
        "boom": boom,
        "helper": helper,
        "slow": lambda n: time.sleep(0.03 * (3 - n)),
    }


def everything(order: Any) -> None:
    """
    Have all happen that can happen to a run.

    Args:
        order: A user's event.
    """
    answers = model(
        TimeoutError("no answer"),
        calls("lookup", "boom", "cached", "forbidden", "helper"),
        calls("refund", amount=24),
        calls("slow", "slow", "slow"),
        ModelResponse("bye"),
    )
    message = Message(f"Please refund {HOSTILE}", sender="ann")
    with Run("sundae", message, metadata={"user": 7}, correlation_id="rich-1") as run:
        for turn in run.turns(limit=10):
            run.chunk({"delta": "x"}, "hel")
            answer = run.call_model(answers, ["hi", turn], model="m-1", temperature=0)
            if not answer.tool_calls:
                run.complete(answer)
                break
            with run.step("tools"):
                run.call_tools(answer.tool_calls, tools(), parallel=3 if turn == 3 else 1)
            run.compacted("window", 10, 5)
            run.emit(order, order_id=HOSTILE, total=9.5)
    with Run("sundae", "loop", correlation_id="max-1") as run:
        asks = model(calls("lookup"), calls("lookup"))
        for _ in run.turns(limit=2):
            run.call_tools(run.call_model(asks, ["x"]).tool_calls, tools())
    try:
        with Run("sundae", "fail", correlation_id="fail-1") as run, run.step("work"):
            raise KeyError("missing")
    except KeyError:
        pass
    try:
        with Run("sundae", "forbidden", correlation_id="deny-1"):
            pass
    except RunRefused:
        pass
    open_run = Run.begin("sundae", "killed", correlation_id="kill-1")
    next(open_run.turns())
    LoopRunEnqueuedEvent.emit(name="morning", agent_name="Scout", correlation_id="loop-1")
    order.emit(order_id="alone", correlation_id=HOSTILE)
    order.emit(order_id="none")
