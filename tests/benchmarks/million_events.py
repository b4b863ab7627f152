"""
Builds a store of a million events, and tells how long the commands that look for something in it take.

    python tests/benchmarks/million_events.py [FILE [EVENTS]]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import traces

from eventbus import trace
from eventbus._encode import Row

EVENTS = 1_000_000
TOOLS = ("lookup", "refund", "search", "send", "think")
AGENTS = ("sundae", "scout", "clerk")


def rows(run: int) -> Iterator[Row]:
    """Yield the rows of one run of ten turns, each with a call of a tool."""
    cid, agent = f"{run * 2654435761 % 2**32:08x}{run:024x}", AGENTS[run % 3]
    start = 1_700_000_000.0 + run * 10
    said = {"agent": agent, "timestamp": start}
    request = [{"role": "user", "content": f"Where is order A{run}?"}]
    yield traces.row(cid, "inference.started", **said, span_id="i", message=request[0]["content"])
    for turn in range(1, 11):
        told = {**said, "turn": turn, "span_id": f"t{turn}"}
        model = {**said, "turn": turn, "model": "m-1", "attempt": 1, "span_id": f"m{turn}"}
        call = {"id": f"c{turn}", "name": TOOLS[(run + turn) % len(TOOLS)], "input": {"order": f"A{run}"}}
        usage = {"input_tokens": 100 + turn, "output_tokens": 20}
        tool = {**said, "tool_call": call, "span_id": f"c{turn}"}
        yield traces.row(cid, "turn.started", **told)
        yield traces.row(cid, "model_call.started", **model)
        yield traces.row(cid, "inference.generated", **model, request=request, usage=usage, duration=0.5)
        yield traces.row(cid, "tool_calls.received", **said, tool_calls=[call])
        yield traces.row(cid, "tool_call.started", **tool)
        if (run + turn) % 50:
            result = {"data": {"total": turn}, "error": None}
            yield traces.row(cid, "tool_call.completed", **tool, result=result, duration=turn / 100)
        else:
            error = {"type": "builtins.RuntimeError", "text": "boom", "frames": [], "traceback": ""}
            yield traces.row(cid, "tool_call.failed", **tool, error=error, duration=turn / 100)
        yield traces.row(cid, "turn.completed", **told, duration=0.6)
    yield traces.row(cid, "inference.completed", **said, span_id="i", duration=7.5)


def build(path: Path, events: int) -> Path:
    """
    Build a store with at least so many events.

    Args:
        path: The file.
        events: How many.
    """
    made = run = 0
    while made < events:
        batch: list[Row] = []
        while len(batch) < 50_000 and made + len(batch) < events:
            batch += rows(run)
            run += 1
        traces.write(path, batch)
        made += len(batch)
    return path


def main() -> None:
    """Build, ask, and tell."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "million.db"
    if not path.exists():
        started = time.perf_counter()
        build(path, int(sys.argv[2]) if len(sys.argv) > 2 else EVENTS)
        print(f"built in {time.perf_counter() - started:.1f} s, {os.path.getsize(path) / 1e6:.0f} MB")
    with trace.open(path) as reader:
        middle = reader.follow(reader.last_seq() // 2, 1)[0].correlation_id or ""
        asked: dict[str, Callable[[], object]] = {
            "trace ID": lambda: list(reader.events(middle)),
            "a prefix": lambda: reader.find(middle[:9]),
            "runs": lambda: list(reader.runs(limit=20)),
            "runs --agent": lambda: list(reader.runs(agent="scout", limit=20)),
            "runs --status": lambda: list(reader.runs(status="failed", limit=20)),
            "runs --tool": lambda: list(reader.runs(tool="refund", limit=20)),
            "runs --tool (unknown)": lambda: list(reader.runs(tool="nosuch", limit=20)),
            "runs --since": lambda: list(reader.runs(since=1_700_000_000.0, until=1_700_010_000.0, limit=20)),
            "tail": lambda: reader.tail(10),
            "grep (not there)": lambda: list(reader.search("not in any payload")),
            "stats": reader.stats,
        }
        for name, ask in asked.items():
            started = time.perf_counter()
            ask()
            print(f"{name:24}{(time.perf_counter() - started) * 1000:12.1f} ms")
        print(json.dumps(reader.stats().runs))


if __name__ == "__main__":
    main()
