"""
What the rows of a batch say about their runs: the rows of the table `runs`, which spare readers the events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, TypeAlias, cast

from ._encode import Row

Run: TypeAlias = list[Any]
"""The values of one run, in the order of COLUMNS."""

COLUMNS: Final = (
    "cid",
    "parent_id",
    "agent",
    "status",
    "started",
    "updated",
    "ended",
    "duration",
    "message",
    "first_seq",
    "last_seq",
    "events",
    "failures",
    "refusals",
)

MERGE: Final = """
ON CONFLICT (cid) DO UPDATE SET
    parent_id = coalesce(excluded.parent_id, parent_id),
    agent = CASE WHEN excluded.status IS NULL OR excluded.agent IS NULL
        THEN coalesce(agent, excluded.agent) ELSE excluded.agent END,
    status = coalesce(excluded.status, status),
    updated = max(updated, excluded.updated),
    ended = CASE WHEN excluded.status IS NULL THEN ended ELSE excluded.ended END,
    duration = CASE WHEN excluded.status IS NULL THEN duration ELSE excluded.duration END,
    message = coalesce(excluded.message, message),
    last_seq = excluded.last_seq,
    events = events + excluded.events,
    failures = failures + excluded.failures,
    refusals = refusals + excluded.refusals
"""
"""How what a batch says joins what is known of a run."""

MESSAGE: Final = 200
"""Characters of a run's message that are kept."""

_STATUS: Final = {
    "eventbus.inference.started": "running",
    "eventbus.inference.completed": "completed",
    "eventbus.inference.failed": "failed",
    "eventbus.inference.denied": "denied",
    "eventbus.inference.max_turns_reached": "max_turns",
}
_FAILURES: Final = frozenset(
    f"eventbus.{name}.failed"
    for name in ("handler", "inference", "loop_run", "model_call", "step", "tool_call")
)
_REFUSALS: Final = frozenset({"eventbus.inference.denied", "eventbus.tool_call.denied"})
_REMARKABLE: Final = frozenset(_STATUS) | _FAILURES | _REFUSALS

_AGENT, _STATUS_AT, _UPDATED, _LAST, _EVENTS, _FAILED, _REFUSED = map(
    COLUMNS.index, ("agent", "status", "updated", "last_seq", "events", "failures", "refusals")
)
_ENDED, _DURATION, _MESSAGE, _PARENT = map(COLUMNS.index, ("ended", "duration", "message", "parent_id"))


def summarize(rows: Iterable[Row], first: int) -> list[Run]:
    """
    Sum up the rows of one transaction.

    Args:
        rows: In the order of their sequence.
        first: The sequence of the first.

    Returns:
        One for each correlation id among them.
    """
    runs: dict[str, Run] = {}
    for seq, row in enumerate(rows, first):
        cid, timestamp, channel, agent = row[0], row[1], row[2], row[5]
        if cid is None:
            continue
        run = runs.get(cid)
        if run is None:
            run = runs[cid] = [
                cid,
                None,
                agent,
                None,
                timestamp,
                timestamp,
                None,
                None,
                None,
                seq,
                seq,
                0,
                0,
                0,
            ]
        elif run[_AGENT] is None:
            run[_AGENT] = agent
        run[_LAST] = seq
        run[_EVENTS] += 1
        run[_UPDATED] = max(run[_UPDATED], timestamp)
        if channel in _REMARKABLE:
            _remark(run, channel, row)
    return list(runs.values())


def _remark(run: Run, channel: str, row: Row) -> None:
    run[_FAILED] += channel in _FAILURES
    run[_REFUSED] += channel in _REFUSALS
    status = _STATUS.get(channel)
    if status is None:
        return
    run[_STATUS_AT] = status
    run[_AGENT] = row[5] or run[_AGENT]
    run[_ENDED], run[_DURATION] = (None, None) if status == "running" else (row[1], row[7])
    if status in {"running", "denied"}:
        payload: dict[str, Any] = json.loads(row[9])
        parent = payload.get("parent_id") or _item(payload.get("run"), "parent_id")
        run[_PARENT] = parent if isinstance(parent, str) else run[_PARENT]
        message = payload.get("message")
        text = _item(message, "text") or message
        if text is not None:
            text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            run[_MESSAGE] = text[:MESSAGE]


def _item(value: Any, key: str) -> Any:
    return cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
