"""
What a trace store deletes in time: by age and by size, whole runs, the oldest first.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

import attrs

if TYPE_CHECKING:
    import sqlite3

SWEEP_SECONDS: Final = 10.0
"""How often the writer looks for what is to be deleted."""

CHUNK_EVENTS: Final = 1_000
CHUNK_RUNS: Final = 100
CHUNK_PAGES: Final = 500
"""How much one transaction deletes, and gives back to the file system: events wait meanwhile, and forks."""

OPEN_SECONDS: Final = 86_400.0
"""How long after its last event a run without an end counts as open, where no age is given."""


def _seconds(value: float | timedelta | None) -> float | None:
    return value.total_seconds() if isinstance(value, timedelta) else value


@attrs.frozen
class Retention:
    """
    Say what a trace store deletes in time; the writer's thread does it, in small pieces.

    Args:
        max_age: Seconds, or a timedelta, that a run is kept after its last event; None for ever.
        max_size: Bytes that the database may have, its write-ahead log apart; beyond it the oldest runs go,
            but none that is still open: without an end, and with an event within `max_age` or a day. None for
            any size.

    Raises:
        TypeError: If one has another type.
        ValueError: If one is not more than 0.
    """

    max_age: float | timedelta | None = None
    max_size: int | None = None

    def __attrs_post_init__(self) -> None:
        age, size = cast("object", _seconds(self.max_age)), cast("object", self.max_size)
        if age is not None and (not isinstance(age, int | float) or isinstance(age, bool)):
            msg = f"`max_age` must be seconds, a timedelta or None, not {self.max_age!r}."
            raise TypeError(msg)
        if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
            msg = f"`max_size` must be a number of bytes or None, not {self.max_size!r}."
            raise TypeError(msg)
        if (age is not None and not age > 0) or (size is not None and size <= 0):
            msg = f"`max_age` and `max_size` must be more than 0, not {self.max_age!r} and {self.max_size!r}."
            raise ValueError(msg)

    @property
    def seconds(self) -> float | None:
        """
        The age in seconds.
        """
        return _seconds(self.max_age)


class Sweeper:
    """
    Deletes, piece by piece, what a retention says.

    Attributes:
        has_more: Whether the last piece has left some.
    """

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._due_at = 0.0
        # The run that a piece has begun to delete: it goes whole.
        self._begun: str | None = None
        self._has_shrunk = False
        self.has_more = False

    def is_due(self, now: float) -> bool:
        """
        Tell whether it is time for a piece.

        Args:
            now: Monotonic seconds.
        """
        return self.has_more or now >= self._due_at

    def sweep(self, connection: sqlite3.Connection, now: float) -> None:
        """
        Delete one piece, in a transaction of its own, and give free pages back.

        Args:
            connection: To the store.
            now: Monotonic seconds.

        Raises:
            sqlite3.Error: If it could not be done; it is due again later.
        """
        self._due_at, self.has_more = now + SWEEP_SECONDS, False
        connection.execute("BEGIN IMMEDIATE")
        try:
            more = self._delete(connection, time.time())
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
        if _pragma(connection, "freelist_count"):
            # `execute` would take one step of it on Python 3.11, and free one page.
            connection.executescript(f"PRAGMA incremental_vacuum({CHUNK_PAGES})")
            more = more or _pragma(connection, "freelist_count") > 0
            self._has_shrunk = True
        if self._has_shrunk and not more:
            # The file itself becomes shorter with a checkpoint only.
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._has_shrunk = False
        self.has_more = more

    def _delete(self, connection: sqlite3.Connection, wall: float) -> bool:
        age, size = self._retention.seconds, self._retention.max_size
        budget = CHUNK_EVENTS
        if self._begun is not None:
            budget -= self._delete_runs(connection, "cid = ?", (self._begun,), budget)
        if age is not None:
            before = wall - age
            connection.execute("DELETE FROM losses WHERE timestamp < ?", (before,))
            budget -= _delete_events(connection, "cid IS NULL AND timestamp < ?", (before,), budget)
            budget -= self._delete_runs(connection, "started < ? AND updated < ?", (before, before), budget)
        if size is not None and budget > 0 and _used(connection) > size:
            oldest = connection.execute("SELECT first_seq FROM runs ORDER BY started LIMIT 1").fetchone()
            until: int = 2**62 if oldest is None else oldest[0]
            budget -= _delete_events(connection, "cid IS NULL AND seq < ?", (until,), budget)
            if _used(connection) <= size:
                return True
            stale = wall - (OPEN_SECONDS if age is None else age)
            budget -= self._delete_runs(
                connection, "ended IS NOT NULL OR updated < ?", (stale,), budget, size
            )
            if budget == CHUNK_EVENTS:
                budget -= _delete_events(connection, "cid IS NULL AND seq < ?", (2**62,), budget)
            return budget < CHUNK_EVENTS
        return budget <= 0 or self._begun is not None

    def _delete_runs(
        self,
        connection: sqlite3.Connection,
        which: str,
        values: tuple[str | float, ...],
        budget: int,
        size: int = 0,
    ) -> int:
        found = connection.execute(
            f"SELECT cid FROM runs WHERE {which} ORDER BY started LIMIT {CHUNK_RUNS}",  # noqa: S608 - our own words
            values,
        ).fetchall()
        left = budget
        for (cid,) in found:
            if left <= 0 or _used(connection) <= size:
                break
            deleted = _delete_events(connection, "cid = ?", (cid,), left)
            self._begun = None if deleted < left else cid
            if self._begun is None:
                connection.execute("DELETE FROM runs WHERE cid = ?", (cid,))
            left -= max(deleted, 1)
        return budget - left


def _delete_events(
    connection: sqlite3.Connection, which: str, values: tuple[str | float, ...], limit: int
) -> int:
    return connection.execute(
        f"DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE {which} ORDER BY seq LIMIT {limit})",  # noqa: S608 - as above
        values,
    ).rowcount


def _used(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
