"""
Reading a trace store: its runs, the events of one run or of all, search, and numbers about it.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

import attrs

from ._errors import AmbiguousRunError, TraceFileError, UnknownRunError
from ._lines import cid_itself
from ._pasted import read_pasted
from ._plain import CUT
from ._schema import identity_of, open_to_read

Progress: TypeAlias = Callable[[int, int], object]

CANDIDATES: Final = 10
"""How many ids an AmbiguousRunError names."""

PAGE: Final = 1000
"""How many rows are read at a time: between pages nothing is held that writers would have to wait for."""

STRIDE: Final = 2000
"""How many events are looked through at a time; between them Ctrl-C is heard and progress is told."""

# Those that `json` writes and a payload is stored without: after a key, or between items.
_SPACES: Final = re.compile(r"(?<=\":) |(?<=[\]}\"\deul],) (?=[\[{\"\d\-tfn])")

# What follows a prefix is before it: no text has this character, which Unicode keeps for internal use.
_LAST: Final = "\U0010ffff"

_EVENT: Final = "seq, cid, timestamp, channel, event, span_id, agent, tool, duration, lossy, payload"
_RUN: Final = (
    "cid, parent_id, agent, status, started, ended, duration, message, first_seq, last_seq, "
    "events, failures, refusals"
)
_ENDED_CALLS: Final = ("eventbus.tool_call.completed", "eventbus.tool_call.failed")
_GENERATED: Final = "eventbus.inference.generated"

# The names that providers give to one and the same number.
TOKENS: Final = {
    "input": ("input_tokens", "prompt_tokens"),
    "output": ("output_tokens", "completion_tokens"),
    "total": ("total_tokens",),
}


@attrs.frozen
class StoredEvent:
    """
    One event as it was stored.

    Attributes:
        seq: Its place in the store; grows with every commit and is never used twice.
        correlation_id: The run it belongs to, if any.
        timestamp: Wall clock, seconds since the epoch.
        channel: The dotted name of its class.
        event: The name of its class.
        span_id: What a start and its end share, if it has one.
        agent: The agent's name, if it has one.
        tool: The name of the tool that was called or judged, if any.
        duration: Seconds, if it has one.
        lossy: Whether the payload cannot be told from what was emitted: something was cut or is no JSON.
        payload: What it said, as JSON has it; secrets masked.
    """

    seq: int
    correlation_id: str | None
    timestamp: float
    channel: str
    event: str
    span_id: str | None
    agent: str | None
    tool: str | None
    duration: float | None
    lossy: bool
    payload: dict[str, Any]


@attrs.frozen
class StoredRun:
    """
    What a store knows of all events with one correlation id.

    Attributes:
        correlation_id: The id.
        parent_id: The run it was started from, if any.
        agent: The agent's name.
        status: "running", "completed", "failed", "denied" or "max_turns"; None if no run has the id.
        started: Time of the first event, seconds since the epoch.
        ended: Time of the last event that ended it, or None.
        duration: Seconds, monotonic, or None.
        message: The beginning of what it answers.
        first_seq: The place of its first event.
        last_seq: The place of its last event.
        events: How many there are.
        failures: How many of them tell of a failure.
        refusals: How many of them tell of a refusal.
    """

    correlation_id: str
    parent_id: str | None
    agent: str | None
    status: str | None
    started: float
    ended: float | None
    duration: float | None
    message: str | None
    first_seq: int
    last_seq: int
    events: int
    failures: int
    refusals: int


@attrs.frozen
class ToolStats:
    """
    How long the calls of one tool took.

    Attributes:
        tool: Its name.
        calls: How many ended.
        failed: How many of them failed.
        p50: Half of them took no longer; seconds, as the others.
        p95: Of a hundred, 95 took no longer.
        p99: Of a hundred, 99 took no longer.
        max: The longest.
    """

    tool: str
    calls: int
    failed: int
    p50: float
    p95: float
    p99: float
    max: float


@attrs.frozen
class TraceStats:
    """
    Numbers about a store.

    Attributes:
        runs: How many runs have which status; those of None are ids that no run has.
        events: How many events.
        lossy: How many of them are marked as lossy.
        failures: How many tell of a failure.
        refusals: How many tell of a refusal.
        tools: The tools, the one with the slowest calls first (by p95).
        tokens: Sums of "input", "output" and "total", of those that the models' answers tell.
        first: Time of the first event, seconds since the epoch; None without any.
        last: Time of the last event by sequence.
        size: Bytes of the file and its write-ahead log.
        losses: How many events could not be kept, by reason.
        sqlite: The version of SQLite that reads it.
        check: What SQLite's quick check says: "ok", or what is wrong.
    """

    runs: dict[str | None, int]
    events: int
    lossy: int
    failures: int
    refusals: int
    tools: Sequence[ToolStats]
    tokens: dict[str, int]
    first: float | None
    last: float | None
    size: int
    losses: dict[str, int]
    sqlite: str
    check: str


class TraceReader:
    """
    Reads one trace store, while others may be writing it; a context manager that closes it.

    Nothing is ever written to the file. A reader belongs to the thread that made it. What it yields is read
    page by page, so that a slow reader keeps no writer waiting and sees what was committed meanwhile.

    Args:
        path: The file.

    Raises:
        TraceFileError: If there is no such file, if it is no trace store, if a newer version of eventbus has
            written it, or if it cannot be read; from any method, if it turns out to be damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._identity = identity_of(str(self.path))
        self._connection = _open(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """
        Close the file; a second time changes nothing.
        """
        self._connection.close()

    def is_replaced(self) -> bool:
        """
        Tell whether the path has no file any more, or another than this reader has open.
        """
        return identity_of(str(self.path)) != self._identity

    def runs(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        tool: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        parent_id: str | None = None,
        limit: int | None = None,
    ) -> Iterator[StoredRun]:
        """
        Yield runs, the newest first.

        Args:
            agent: Those of this agent.
            status: Those with this status.
            tool: Those that called, or tried to call, this tool.
            since: Those that began at this time or later: seconds since the epoch, or a datetime.
            until: Those that began before this time.
            parent_id: Those that were started from this run.
            limit: So many at most.
        """
        where: list[str] = []
        values: list[Any] = []
        for clause, value in (
            ("agent = ?", agent),
            ("status = ?", status),
            ("parent_id = ?", parent_id),
            ("started >= ?", _seconds(since)),
            ("started < ?", _seconds(until)),
            ("EXISTS (SELECT 1 FROM events WHERE tool = ? AND cid = runs.cid)", tool),
        ):
            if value is not None:
                where.append(clause)
                values.append(_bound(value))
        left = -1 if limit is None else limit
        after: list[Any] = []
        while left:
            clauses = [*where, *(["(started, cid) < (?, ?)"] if after else [])]
            found = self._all(
                f"SELECT {_RUN} FROM runs {'WHERE ' if clauses else ''}{' AND '.join(clauses)} "  # noqa: S608 - of constants
                "ORDER BY started DESC, cid DESC LIMIT ?",
                *values,
                *after,
                PAGE if left < 0 else min(left, PAGE),
            )
            yield from map(_run, found)
            left = left if left < 0 else left - len(found)
            if len(found) < PAGE:
                return
            after = [found[-1][4], found[-1][0]]

    def find(self, text: str) -> str:
        """
        Return the id that is meant.

        Args:
            text: An id, the beginning of one, or a line of a log, as `read_pasted` takes it.

        Raises:
            UnknownRunError: If no run has such an id.
            AmbiguousRunError: If several have.
        """
        pasted = read_pasted(text)
        exact = self._first_of(pasted.ids)
        if exact is not None:
            return exact
        if pasted.beginning is None:
            msg = "This line belongs to no run: it has no id."
            raise UnknownRunError(msg)
        wanted = cid_itself(pasted.beginning)
        # What was shown, or stands in a line, may be cut.
        prefix = wanted.removesuffix(CUT)
        found = self._all(
            "SELECT cid FROM runs WHERE cid >= ? AND cid < ? ORDER BY cid LIMIT ?",
            prefix,
            prefix + _LAST,
            CANDIDATES + 1,
        )
        if not prefix or not found:
            word = self._first_of(pasted.words)
            if word is not None:
                return word
            msg = f"{self.path} has no run with the id {wanted!r}, nor one whose id begins so."
            raise UnknownRunError(msg)
        if len(found) > 1:
            ids = [row[0] for row in found[:CANDIDATES]]
            more = ", ..." if len(found) > CANDIDATES else ""
            msg = f"The ids of several runs begin with {prefix!r}: {', '.join(ids)}{more}; give more of one."
            raise AmbiguousRunError(msg, ids)
        return cast("str", found[0][0])

    def _first_of(self, ids: Sequence[str]) -> str | None:
        for cid in map(cid_itself, ids):
            for (found,) in self._all("SELECT cid FROM runs WHERE cid = ?", cid):
                return cast("str", found)
        return None

    def run(self, text: str) -> StoredRun:
        """
        Return one run; for its argument and what it raises see `find`.
        """
        cid = self.find(text)
        found = self._all(f"SELECT {_RUN} FROM runs WHERE cid = ?", cid)  # noqa: S608 - a constant
        if not found:
            msg = f"{self.path} has no run {cid!r} any more: it was removed just now."
            raise UnknownRunError(msg)
        return _run(found[0])

    def events(self, text: str, *, after: int = 0) -> Iterator[StoredEvent]:
        """
        Yield the events of one run, by sequence.

        Args:
            text: As for `find`, which is asked at once.
            after: Only those that come after this sequence number.
        """
        cid = self.find(text)
        return self._pages("cid = ? AND seq > ?", [cid], after)

    def follow(self, after: int = 0, limit: int = PAGE) -> list[StoredEvent]:
        """
        Return the next events of all runs, by sequence; what was committed later has a higher number.

        Args:
            after: The last sequence number that was seen; 0 for the beginning.
            limit: How many at most.
        """
        found = self._all(
            f"SELECT {_EVENT} FROM events WHERE seq > ? ORDER BY seq LIMIT ?",  # noqa: S608 - a constant
            after,
            limit,
        )
        return [_stored(row) for row in found]

    def last_seq(self) -> int:
        """
        Return the sequence number of the last event; 0 without any.
        """
        return int(self._all("SELECT coalesce(max(seq), 0) FROM events")[0][0])

    def tail(self, count: int) -> list[StoredEvent]:
        """
        Return the last events of all runs, by sequence.
        """
        found = self._all(f"SELECT {_EVENT} FROM events ORDER BY seq DESC LIMIT ?", count)  # noqa: S608 - a constant
        return [_stored(row) for row in reversed(found)]

    def search(
        self, text: str, *, ignore_case: bool = False, progress: Progress | None = None
    ) -> Iterator[StoredEvent]:
        """
        Yield the events with a text somewhere in what is stored of them, by sequence.

        Every event is looked at; there is no index of words. An interrupt is heard between strides.

        Args:
            text: What is looked for, as it was emitted or as a line shows it: see `spellings`.
            ignore_case: Take `a` for `A`, in ASCII.
            progress: Called now and then with how many events were looked at, and how many there are, by
                sequence numbers.
        """
        columns = ("payload", "cid", "channel", "event", "agent", "tool", "span_id")
        one = r"{} LIKE ? ESCAPE '\'" if ignore_case else "instr({}, ?)"
        tests: list[str] = []
        values: list[str] = []
        for needle in spellings(text):
            for column in columns:
                tests.append(one.format(column))
                values.append(_like(needle) if ignore_case else needle)
        first, last = self._all("SELECT coalesce(min(seq), 1), coalesce(max(seq), 0) FROM events")[0]
        for start in range(first - 1, last, STRIDE):
            end = min(start + STRIDE, last)
            found = self._all(
                f"SELECT {_EVENT} FROM events WHERE seq > ? AND seq <= ? AND ({' OR '.join(tests)}) "  # noqa: S608 - of constants
                "ORDER BY seq",
                start,
                end,
                *values,
            )
            yield from map(_stored, found)
            if progress is not None:
                progress(end - first + 1, last - first + 1)

    def export(self, text: str | None = None) -> Iterator[dict[str, Any]]:
        """
        Yield events as dicts that JSON can hold, by sequence: one run's, or all.

        Args:
            text: As for `find`; None for all events.
        """
        events = self._pages("seq > ?", [], 0) if text is None else self.events(text)
        return (as_json(event) for event in events)

    def stats(self, progress: Progress | None = None) -> TraceStats:
        """
        Return numbers about the store; all of it is read.

        Args:
            progress: As for `search`.
        """
        counted = self._all("SELECT status, count(*), sum(failures), sum(refusals) FROM runs GROUP BY status")
        first, last = self._all("SELECT min(seq), max(seq) FROM events")[0]
        events = lossy = 0
        tokens: dict[str, int] = {}
        durations: dict[str, array[float]] = {}
        failed: dict[str, int] = {}
        for start in range((first or 1) - 1, last or 0, STRIDE):
            end = min(start + STRIDE, last)
            here, lossy_here = self._all(
                "SELECT count(*), coalesce(sum(lossy), 0) FROM events WHERE seq > ? AND seq <= ?", start, end
            )[0]
            events += here
            lossy += lossy_here
            for channel, tool, duration, usage in self._all(
                "SELECT channel, tool, duration, CASE WHEN channel = ? AND json_valid(payload) "
                "THEN json_extract(payload, '$.usage') END FROM events "
                "WHERE seq > ? AND seq <= ? AND channel IN (?, ?, ?)",
                _GENERATED,
                start,
                end,
                _GENERATED,
                *_ENDED_CALLS,
            ):
                if channel in _ENDED_CALLS and tool is not None:
                    durations.setdefault(tool, array("d")).append(duration or 0.0)
                    failed[tool] = failed.get(tool, 0) + (channel == _ENDED_CALLS[1])
                elif usage is not None:
                    add_tokens(tokens, _usage(usage))
            if progress is not None:
                progress(end - first + 1, last - first + 1)
        tools = [_tool_stats(tool, taken, failed[tool]) for tool, taken in durations.items()]
        return TraceStats(
            runs={status: count for status, count, _, _ in counted},
            events=events,
            lossy=lossy,
            failures=sum(failures for _, _, failures, _ in counted),
            refusals=sum(refusals for _, _, _, refusals in counted),
            tools=sorted(tools, key=lambda tool: (-tool.p95, tool.tool)),
            tokens=tokens,
            first=self._timestamp(first),
            last=self._timestamp(last),
            size=sum(map(_size, (self.path, Path(f"{self.path}-wal")))),
            losses=dict(self._all("SELECT reason, sum(count) FROM losses GROUP BY reason ORDER BY reason")),
            sqlite=sqlite3.sqlite_version,
            check="; ".join(row[0] for row in self._all("PRAGMA quick_check(5)")),
        )

    def _timestamp(self, seq: int | None) -> float | None:
        found = self._all("SELECT timestamp FROM events WHERE seq = ?", seq)
        return found[0][0] if found else None

    def _pages(self, where: str, values: list[Any], after: int) -> Iterator[StoredEvent]:
        while True:
            found = self._all(
                f"SELECT {_EVENT} FROM events WHERE {where} ORDER BY seq LIMIT ?",  # noqa: S608 - constants
                *values,
                after,
                PAGE,
            )
            yield from map(_stored, found)
            if len(found) < PAGE:
                return
            after = found[-1][0]

    def _all(self, statement: str, *values: Any) -> list[Any]:
        with _readable(self.path):
            return self._connection.execute(statement, [_bound(value) for value in values]).fetchall()


def spellings(text: str) -> list[str]:
    """
    Return how a text may stand in a payload: as it is, as in a JSON string, and as JSON without its spaces.

    Lines show `data={"total": 12}`, and stored is `{"total":12}`.
    """
    text = _bound(text)
    return sorted({text, json.dumps(text, ensure_ascii=False)[1:-1], _SPACES.sub("", text)})


def as_json(event: StoredEvent) -> dict[str, Any]:
    """
    Return an event as a dict that JSON can hold.
    """
    return {field.name: getattr(event, field.name) for field in attrs.fields(StoredEvent)}


def _open(path: Path) -> sqlite3.Connection:
    try:
        return open_to_read(str(path))
    except TraceFileError as error:
        cannot = isinstance(error.__cause__, sqlite3.OperationalError)
        if not cannot or not os.access(path, os.R_OK):
            raise
        if _size(Path(f"{path}-wal")):
            msg = f"{error} Copy it with its -wal to a folder that can be written to, and read that."
            raise TraceFileError(msg) from error
    # In a folder that cannot be written SQLite has no place for the index of the write-ahead log. Without a
    # log there is nobody writing either, and the file can be taken as it stands.
    return open_to_read(str(path), immutable=True)


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.ProgrammingError:
        # A reader that is closed, or another thread's.
        raise
    except sqlite3.Error as error:
        msg = f"{path} cannot be read as a trace store: {error}."
        raise TraceFileError(msg) from error


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _bound(value: Any) -> Any:
    # SQLite takes no lone surrogates; they are stored as they are shown.
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _seconds(moment: float | datetime | None) -> float | None:
    return moment.timestamp() if isinstance(moment, datetime) else moment


def _stored(row: Any) -> StoredEvent:
    lossy, payload = bool(row[9]), row[10]
    try:
        told: Any = json.loads(payload)
    except (TypeError, ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        # Somebody has written to the file by hand.
        lossy, told = True, {"payload": payload}
    columns: Any = (*row[:2], _number(row[2]) or 0.0, *row[3:8], _number(row[8]))
    return StoredEvent(*columns, lossy, cast("dict[str, Any]", told))  # type: ignore[call-arg]  # nine of them


def _run(row: Any) -> StoredRun:
    started, ended, duration = map(_number, row[4:7])
    columns: Any = (*row[:4], started or 0.0, ended, duration, *row[7:])
    return StoredRun(*columns)


def _number(value: object) -> float | None:
    # Written by hand, a column may hold a text, or what JSON has no number for.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def add_tokens(tokens: dict[str, int], usage: Mapping[str, Any]) -> None:
    """
    Add to sums of tokens, by the names in `TOKENS`, what one answer of a model has used.

    Args:
        tokens: The sums so far; one that nobody tells is not in it.
        usage: What the answer says of it, in the words of any provider.
    """
    for name, keys in TOKENS.items():
        found = next((usage[key] for key in keys if type(usage.get(key)) is int), None)
        if found is not None:
            tokens[name] = tokens.get(name, 0) + found


def _usage(stored: object) -> dict[str, Any]:
    try:
        told: object = json.loads(cast("str", stored))
    except (TypeError, ValueError):
        return {}
    return cast("dict[str, Any]", told) if isinstance(told, dict) else {}


def _tool_stats(tool: str, taken: array[float], failed: int) -> ToolStats:
    ordered = sorted(taken)

    def at(percent: int) -> float:
        # The nearest rank: a duration that some call really took.
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]

    return ToolStats(tool, len(ordered), failed, at(50), at(95), at(99), ordered[-1])
