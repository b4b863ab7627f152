"""
One trace store being written: a bounded queue, the thread that empties it into SQLite, and what it does when
the database fails.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, cast

from . import _schema, _summary
from ._counters import counters
from ._encode import Row, encode
from ._errors import TraceFileError
from ._report import notice
from ._retention import Retention, Sweeper
from ._schema import COLUMNS, Durability, Opened

BATCH_ROWS: Final = 1_000
BATCH_SECONDS: Final = 0.005
"""How long the writer waits for more rows after the first; fewer seconds once there are BATCH_ROWS."""

MAX_BATCH_ROWS: Final = 8_192
MAX_BATCH_CHARACTERS: Final = 4 * 1024 * 1024
"""How much one transaction takes when the writer is behind, in rows and in characters of their payloads, but
for the last one's: SQLite copies what it is given, and a fork waits meanwhile."""

MAX_ROWS: Final = 100_000
MAX_CHARACTERS: Final = 64 * 1024 * 1024
"""What may wait in the queue, in rows and in characters of their payloads; beyond either, events go lost."""

RETRY_SECONDS: Final = 0.05
MAX_RETRY_SECONDS: Final = 1.0
"""How long the writer waits after a failure before it tries again: doubled each time, up to the latter."""

PATIENCE: Final = 2.0
"""How long another's lock is waited for before it is called a failure."""

MINUTE: Final = 60.0

SYNC_SECONDS: Final = 5.0
"""How long an emit waits for its commit, with durability "sync"."""

STOP_SECONDS: Final = 5.0
"""How long the end of a store, or of the process, waits for what is in the queue."""

TICK_SECONDS: Final = 10.0
"""How long the writer sleeps when there is nothing to do."""

WAL_CHECK_SECONDS: Final = 1.0
WAL_LIMIT: Final = 4 * _schema.WAL_BYTES
"""A write-ahead log of more bytes than this, which readers have kept from being reused, is cut back."""

_PIECES: Final = tuple(2**power for power in range(11, -1, -1))
PAYLOAD: Final = 9
"""Where a row has its payload."""
_NEVER: Final = sys.maxsize

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_SPOILT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_Item: TypeAlias = "Row | Marker"


class Marker:
    """
    A place in the queue that somebody waits for.

    Args:
        patient: Whether to wait on when a commit fails, for the attempts after it.
    """

    __slots__ = ("_lock", "patient", "written")

    def __init__(self, *, patient: bool) -> None:
        self.patient = patient
        self.written = False
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def reached(self, *, written: bool) -> None:
        """
        Let whoever waits go on.
        """
        self.written = written
        self._lock.release()

    def wait(self, timeout: float) -> bool:
        """
        Wait, in seconds, and tell whether all that stood before it is written.
        """
        self._lock.acquire(timeout=max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        return self.written


class Store:
    """
    One trace store of this process.

    Emitting threads share with the writer only what one step of the interpreter changes, and no lock: an
    event may be emitted by a signal's handler or a finalizer, in the middle of another one's emit.

    Args:
        path: The absolute path of its file.
        durability: "batched", or "sync", with which an emit returns after its commit.
        retention: What is deleted in time; None keeps everything.
        on_thread: Called when the writer's thread has been started, in each process that starts one.
    """

    def __init__(
        self,
        path: str,
        durability: Durability,
        retention: Retention | None,
        on_thread: Callable[[Store], object],
    ) -> None:
        self.path = path
        self._durability: Durability = durability
        self._is_sync = durability == "sync"
        self._retention = retention
        self._on_thread = on_thread
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        # As in a new process: also what a forked child starts with.
        self._queue: deque[_Item] = deque()
        self._taken_in = self._taken_out = 0
        # The length of the queue from which on an emit wakes the writer.
        self._wake_at = 1
        self._signal = _thread.allocate_lock()
        self._signal.acquire()
        # Taken by whoever starts the thread, and for as long as there is one.
        self._vacant = _thread.allocate_lock()
        self._thread: threading.Thread | None = None
        # Released when the thread has done its last.
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        # Held while somebody works on the database, and over a fork. Re-entrant, for a signal's handler that
        # forks.
        self._database = threading.RLock()
        self._opened: Opened | None = None
        self._sweeper = None if self._retention is None else Sweeper(self._retention)
        self._batch: list[Row] = []
        self._batch_characters = 0
        self._markers: list[Marker] = []
        self._deadline = math.inf
        self._finished = self._closed
        self._lost = self._lost_written = self._lost_said = 0
        self._reason = "the queue was full"
        self._failed_at: float | None = None
        self._retry_seconds = RETRY_SECONDS
        self._said_at = -math.inf
        self._has_failed = self._failure_said = False
        self._strikes = 0
        self._identity: _schema.Identity | None = None
        self._spoilt: _schema.Identity | None = None
        self._moved: str | None = None
        self._wal_checked = 0.0

    def open(self) -> None:
        """
        Open the file, so that what can never be used is told at once.

        Raises:
            TraceFileError: If it must not be touched. What may clear by itself is left to the writer.
        """
        with self._database:
            try:
                self._open()
            except TraceFileError:
                raise
            except (OSError, sqlite3.Error) as error:
                failure: Exception | None = error
            else:
                failure = None
        if failure is None:
            self._recover()
        else:
            self._fail(failure)

    # On the emitting threads.

    def record(self, event: Any) -> None:
        """
        Take an event into the queue; with durability "sync", wait until it is committed.

        Runs on the emitting thread. What cannot be taken is counted; no Exception is raised.
        """
        try:
            if self._closed:
                self._drop(1)
                return
            row = encode(event)
            queue = self._queue
            waiting = len(queue)
            size = len(row[PAYLOAD])
            if (
                waiting + len(self._batch) >= MAX_ROWS
                or self._taken_in - self._taken_out + size > MAX_CHARACTERS
            ):
                self._drop(1)
                return
            self._taken_in += size
            queue.append(row)
        except Exception:
            self._drop(1)
            return
        try:
            if self._is_sync:
                self._wait_for_commit()
            elif waiting >= self._wake_at - 1:
                self._wake()
            if self._finished:
                self._discard()
        except Exception as error:
            # It is in the queue: a thread that could not be started is tried again at the next event.
            self._reason = type(error).__name__

    def _wait_for_commit(self) -> None:
        if self._has_failed or self._thread is threading.current_thread():
            # Nobody knows for how long; or a finalizer emits, and would wait for itself.
            self._wake()
            return
        marker = Marker(patient=False)
        self._queue.append(marker)
        self._wake()
        marker.wait(SYNC_SECONDS)

    def flush(self, timeout: float) -> bool:
        """
        Wait until what is in the queue is committed.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether it is.
        """
        if self._thread is threading.current_thread():
            return False
        if self._finished or (self._thread is None and not self.pending()):
            return not self.pending()
        marker = Marker(patient=True)
        self._queue.append(marker)
        self._wake()
        if self._finished:
            self._discard()
        return marker.wait(timeout)

    def pending(self) -> int:
        """
        Return how many events wait to be committed, about.
        """
        return len(self._queue) + len(self._batch)

    def close(self, timeout: float = STOP_SECONDS) -> None:
        """
        Commit what is in the queue, within a time, and end the thread; what is left is dropped and counted.

        What is emitted afterwards is counted. A call that was interrupted can be made again.
        """
        if self._finished:
            return
        if not self._closed:
            self._deadline = time.monotonic() + timeout
            self._closed = True
        if self._vacant.acquire(blocking=False):
            # No thread was needed, or none can be started any more.
            try:
                self._run()
            except BaseException:
                self._vacant.release()
                raise
        else:
            self._wake()
            left = max(0.0, self._deadline - time.monotonic()) + 4 * _schema.BUSY_SECONDS
            # Not `join` alone: another thread may just be starting it.
            if self._thread is not threading.current_thread() and self._ended.acquire(timeout=left):
                self._ended.release()
                cast("threading.Thread", self._thread).join()
        self._finished = True
        self._discard()

    def _drop(self, count: int) -> None:
        counters.store_dropped += count
        self._lost += count

    def _discard(self) -> None:
        # The queue of a store whose thread is gone.
        while True:
            try:
                item = self._queue.popleft()
            except IndexError:
                return
            if isinstance(item, Marker):
                item.reached(written=False)
            else:
                self._drop(1)

    def _wake(self) -> None:
        self._wake_at = _NEVER
        if self._vacant.acquire(blocking=False):
            try:
                threading.Thread(target=self._live, name="eventbus-trace", daemon=True).start()
            except BaseException:
                self._leave()
                raise
            self._on_thread(self)
        with contextlib.suppress(RuntimeError):
            # It is released already: the writer is about to wake.
            self._signal.release()

    # Around a fork.

    def before_fork(self) -> None:
        """
        Wait for the transaction under way, close the file, and keep the writer from it over the fork.

        A connection that a child inherits would, when it is closed there, take the parent's files away.
        """
        self._database.acquire()
        self._let_go()

    def after_fork_in_parent(self) -> None:
        """
        Let the writer go on; it opens the file again when it has something to write.
        """
        self._database.release()

    def after_fork_in_child(self) -> None:
        """
        Begin anew: what waited belongs to the parent, whose thread has stayed there.
        """
        self._begin()

    # On the writer's thread.

    def _live(self) -> None:
        self._thread = threading.current_thread()
        try:
            self._run()
        finally:
            if self._closed:
                self._ended.release()
            else:
                # Ended by what is no Exception, such as a SystemExit in a finalizer.
                self._leave()

    def _leave(self) -> None:
        self._thread, self._wake_at = None, 1
        self._vacant.release()

    def _run(self) -> None:
        while True:
            try:
                self._await_rows()
                self._take()
                self._write()
                self._tend()
            except Exception as error:
                # Whatever it is, the thread has to live on.
                self._fail(error)
                self._pause()
            if self._closed and (not self.pending() or time.monotonic() >= self._deadline):
                break
        self._finished = True
        self._drop(len(self._batch))
        self._batch.clear()
        self._release_markers(written=False)
        self._discard()
        with self._database:
            self._let_go()

    def _await_rows(self) -> None:
        if self._batch or self._markers:
            return
        if not self._queue:
            self._wake_at = 1
            if not self._queue and not self._closed:
                busy = self._sweeper is not None and self._sweeper.has_more
                self._signal.acquire(timeout=BATCH_SECONDS if busy else TICK_SECONDS)
        if self._queue and not self._closed and not self._is_sync:
            self._wake_at = BATCH_ROWS
            if len(self._queue) < BATCH_ROWS:
                self._signal.acquire(timeout=BATCH_SECONDS)
        self._wake_at = _NEVER

    def _take(self) -> None:
        queue, batch = self._queue, self._batch
        while len(batch) < MAX_BATCH_ROWS and self._batch_characters < MAX_BATCH_CHARACTERS:
            try:
                item = queue.popleft()
            except IndexError:
                return
            if isinstance(item, Marker):
                self._markers.append(item)
            else:
                self._batch_characters += len(item[PAYLOAD])
                batch.append(item)

    def _write(self) -> None:
        if not self._batch:
            self._release_markers(written=True)
            return
        try:
            with self._database:
                self._open()
                self._insert()
                self._forget_batch()
        except Exception as error:
            if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | ValueError | OverflowError):
                # It would fail again: nothing behind it is to wait for it.
                self._drop(len(self._batch))
                self._forget_batch()
            self._fail(error)
            if self._has_failed:
                self._release_markers(written=False, patient=False)
            self._pause()
            return
        self._release_markers(written=True)
        self._recover()

    def _insert(self) -> None:
        connection = cast("Opened", self._opened).connection
        lost, reason = self._lost - self._lost_written, self._reason
        connection.execute("BEGIN IMMEDIATE")
        try:
            _insert_events(connection, self._batch)
            if lost:
                connection.execute(
                    "INSERT INTO losses (timestamp, count, reason) VALUES (?, ?, ?)",
                    (time.time(), lost, reason),
                )
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            raise
        self._lost_written += lost

    def _forget_batch(self) -> None:
        self._taken_out += self._batch_characters
        self._batch_characters = 0
        self._batch.clear()

    def _release_markers(self, *, written: bool, patient: bool = True) -> None:
        left: list[Marker] = []
        for marker in self._markers:
            if marker.patient and not patient:
                left.append(marker)
            else:
                marker.reached(written=written)
        self._markers = left

    def _tend(self) -> None:
        """Do what is due besides writing, a bounded piece of it."""
        now = time.monotonic()
        sweeper = self._sweeper
        with self._database:
            if self._opened is not None and now - self._wal_checked >= WAL_CHECK_SECONDS:
                self._wal_checked = now
                with contextlib.suppress(OSError):
                    if os.stat(self._opened.path + "-wal").st_size > WAL_LIMIT:
                        self._opened.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if sweeper is None or self._closed or not sweeper.is_due(now):
                return
            self._open()
            sweeper.sweep(cast("Opened", self._opened).connection, now)
        if not self._batch:
            # An earlier piece may have failed.
            self._recover()

    def _open(self) -> None:
        """Open the file if it is not, or no longer the one at its path."""
        if self._opened is not None:
            found = _schema.identity_of(self.path)
            if found == self._opened.identity:
                if os.path.getsize(self.path):
                    return
                # Somebody has emptied it. Closing it may write some pages again, which are no database.
                self._spoilt = found
            self._let_go()
        self._identity = _schema.identity_of(self.path)
        self._opened = _schema.open_to_write(self.path, self._durability, spoilt=self._spoilt)
        self._identity, self._spoilt = self._opened.identity, None
        self._moved = self._opened.moved or self._moved

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(sqlite3.Error):
                opened.connection.close()

    def _fail(self, error: Exception) -> None:
        now = time.monotonic()
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        is_busy = code in _BUSY or isinstance(error, BlockingIOError)
        with self._database:
            if code in _SPOILT:
                # Once more with a new connection, before it is believed.
                self._strikes += 1
                if self._strikes > 1:
                    self._spoilt = self._identity
            if not is_busy:
                self._let_go()
        if self._failed_at is None:
            self._failed_at = now
        if is_busy and now - self._failed_at < PATIENCE:
            return
        self._has_failed = True
        self._reason = f"{type(error).__name__}: {error}"
        if now - self._said_at >= MINUTE:
            self._said_at, self._failure_said = now, True
            notice("error", ("TRACE", "FAIL"), ("store", self.path), error=error, **self._dropped())

    def _recover(self) -> None:
        self._failed_at, self._retry_seconds, self._strikes = None, RETRY_SECONDS, 0
        moved, self._moved = self._moved, None
        if moved is not None:
            notice("warning", ("TRACE", "MOVED"), ("store", self.path), to=moved)
        self._has_failed = False
        if self._failure_said:
            # Not of one that nobody was told of: a disk may fail and be well again many times a minute.
            self._failure_said = False
            notice("info", ("TRACE", "OK"), ("store", self.path), **self._dropped())
        elif self._lost > self._lost_said and time.monotonic() - self._said_at >= MINUTE:
            self._said_at = time.monotonic()
            notice("warning", ("TRACE", "DROP"), ("store", self.path), **self._dropped())

    def _dropped(self) -> dict[str, Any]:
        dropped, self._lost_said = self._lost - self._lost_said, self._lost
        return {"dropped": dropped} if dropped else {}

    def _pause(self) -> None:
        self._signal.acquire(timeout=max(0.0, min(self._retry_seconds, self._deadline - time.monotonic())))
        self._retry_seconds = min(2 * self._retry_seconds, MAX_RETRY_SECONDS)


def _insert_events(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    # Not the largest `seq` in the table: after what a retention has deleted, SQLite goes on behind it.
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    last: int = 0 if found is None else found[0]
    _insert_all(connection, "events", rows)
    _insert_all(connection, "runs", _summary.summarize(rows, last + 1))


def _pieces(count: int, largest: int) -> Iterator[int]:
    # Powers of two, so that a few prepared statements serve any number of rows.
    for size in _PIECES:
        while size <= largest and count >= size:
            yield size
            count -= size


def _insert_all(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    # One statement for many rows: each gives the interpreter's lock away, and has to wait for it afterwards,
    # as long as busy threads keep it.
    if not rows:
        return
    done = 0
    largest = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(rows[0])
    for size in _pieces(len(rows), largest):
        connection.execute(
            _insertion(table, size), [value for row in rows[done : done + size] for value in row]
        )
        done += size


@cache
def _insertion(table: str, size: int) -> str:
    columns, merge = (COLUMNS, "") if table == "events" else (_summary.COLUMNS, _summary.MERGE)
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * size)}{merge}"  # noqa: S608 - our own names
