"""
The writing half of the trace store: a bounded queue, one thread that empties it into SQLite, and what becomes of
both when the database fails, the process forks or ends.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import importlib
import math
import os
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from . import _registry, _schema
from ._counters import counters
from ._encode import Row, encode
from ._errors import TraceFileError
from ._event import Event
from ._report import notice
from ._retention import Retention, Sweeper
from ._schema import COLUMNS, SUMMARIZE, Durability, Opened

NAME: Final = "trace"
"""The store's name among the resources of a registry's state, and what its receivers have in common."""

BATCH_ROWS: Final = 1_000
BATCH_SECONDS: Final = 0.005
"""How long the writer waits for more rows after the first; fewer seconds when there are BATCH_ROWS."""

MAX_BATCH_ROWS: Final = 8_192
"""How many rows one transaction takes when the writer is behind."""

MAX_ROWS: Final = 100_000
MAX_BYTES: Final = 64 * 1024 * 1024
"""What may wait in the queue; an event beyond either is dropped and counted."""

RETRY_SECONDS: Final = 0.1
MAX_RETRY_SECONDS: Final = 1.0
"""How long the writer waits after a failure before it tries again; doubled each time, up to the latter."""

PATIENCE: Final = 2.0
"""How long another's lock is waited for before it is called a failure."""

MINUTE: Final = 60.0
SYNC_SECONDS: Final = 5.0
"""How long an emit waits for its commit, with durability "sync"."""

STOP_SECONDS: Final = 5.0
"""How long the end of a store, or of the process, waits for what is in the queue."""

TICK_SECONDS: Final = 10.0
"""How often retention is looked after while there is nothing to write."""

FINALIZE_PRIORITY: Final = 90
"""The place among the finalizers of a multiprocessing child: after the bus's own, whose handlers may emit."""

FIRST: Final = -(2**30)
"""The priority of the store: before handlers that emit themselves, so that its order is that of the emits."""

_PIECES: Final = tuple(2**power for power in range(11, -1, -1))
_NEVER: Final = sys.maxsize

_Item: TypeAlias = "Row | Marker"


class Marker:
    """
    A place in the queue that somebody waits for.

    Attributes:
        patient: Whether it waits until what is before it is written, through failures.
        written: Whether it was.
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
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, timeout: float) -> bool:
        """
        Wait, and tell whether what is before it is written.
        """
        self._lock.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
        return self.written


class Store:
    """
    One trace store of this process.

    Args:
        path: The absolute path of its file.
        durability: "batched", or "sync", with which an emit returns after its commit.
        retention: What is deleted in time.
    """

    def __init__(self, path: str, durability: Durability, retention: Retention | None) -> None:
        self.path = path
        self.sync = durability == "sync"
        self._durability: Durability = durability
        self._retention = retention
        self.receiver = _registry.Receiver(
            self.record, name="eventbus.trace", target=NAME, order=(_registry.next_order(), 0), priority=FIRST
        )
        self._reset()

    def _reset(self) -> None:
        self._queue: deque[_Item] = deque()
        self._bytes_in = self._bytes_out = 0
        # The queue's length at which an emit wakes the writer.
        self._wake_at = 1
        self._signal = _thread.allocate_lock()
        self._signal.acquire()
        self._starting = _thread.allocate_lock()
        self._thread: threading.Thread | None = None
        # Held by the writer while it works on the database, and over a fork.
        self._database = _thread.allocate_lock()
        self._opened: Opened | None = None
        self._sweeper = None if self._retention is None else Sweeper(self._retention)
        self._batch: list[Row] = []
        self._markers: list[Marker] = []
        self._deadline = math.inf
        self._closed = False
        self._finished = False
        self._lost = 0
        self._told_lost = 0
        self._failing_since: float | None = None
        self._said_at = -math.inf
        self._strikes = 0

    def open(self) -> None:
        """
        Open the file, so that what cannot be used is told at once.

        Raises:
            TraceFileError: If it must not be touched. What may clear by itself is left to the writer.
        """
        with self._database:
            try:
                self._open()
            except TraceFileError:
                raise
            except (OSError, sqlite3.Error) as error:
                failure: Exception = error
            else:
                return
        self._fail(failure)

    # ---- emitting threads ----

    def record(self, event: Any) -> None:
        """
        Take an event into the queue, on the emitting thread; with durability "sync" wait for its commit.

        What cannot be taken is counted. No Exception is raised.
        """
        try:
            if self._closed:
                self._drop(1)
                return
            row = encode(event)
            queue = self._queue
            waiting = len(queue)
            size = len(row[9])
            if waiting >= MAX_ROWS or self._bytes_in - self._bytes_out + size > MAX_BYTES:
                self._drop(1)
                return
            # One step of the interpreter each, as everything here that several threads do at once.
            self._bytes_in += size
            queue.append(row)
            if self.sync:
                marker = Marker(patient=False)
                queue.append(marker)
                self._wake()
                marker.wait(SYNC_SECONDS)
            elif waiting >= self._wake_at - 1:
                self._wake()
            if self._finished:
                self._discard()
        except Exception:
            self._drop(1)

    def flush(self, timeout: float) -> bool:
        """
        Wait until what is in the queue is written; see `trace.flush`.
        """
        if self._thread is threading.current_thread() or self._finished:
            return False
        if self._thread is None and not self._queue:
            return True
        marker = Marker(patient=True)
        self._queue.append(marker)
        self._wake()
        return marker.wait(timeout)

    def pending(self) -> int:
        """
        Return how many events wait to be written.
        """
        return len(self._queue) + len(self._batch)

    def close(self, timeout: float = STOP_SECONDS) -> None:
        """
        Write what is in the queue, within a time, and end the thread; what is left is dropped and counted.
        """
        if self._closed:
            return
        self._deadline = time.monotonic() + timeout
        self._closed = True
        if self._queue or self._batch or self._thread is not None:
            self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout + 2 * BUSY_MARGIN)
        self._finished = True
        self._discard()
        if thread is None:
            with self._database:
                self._let_go()

    def _drop(self, count: int) -> None:
        counters.store_dropped += count
        self._lost += count

    def _discard(self) -> None:
        # The queue of a store whose writer is gone.
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
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="eventbus-trace", daemon=True)
                    thread.start()
                    self._thread = thread
                    exits.enter(self)
            except BaseException:
                self._wake_at = 1
                raise
            finally:
                self._starting.release()
        with contextlib.suppress(RuntimeError):
            self._signal.release()

    # ---- the writer's thread ----

    def _run(self) -> None:
        while True:
            try:
                self._await_rows()
                self._take()
                self._write()
                if self._closed and not self._batch and not self._queue:
                    break
            except Exception as error:
                # Nothing here is expected; the thread has to live.
                self._fail(error)
                self._pause()
            if self._closed and time.monotonic() > self._deadline:
                break
        self._finished = True
        self._drop(len(self._batch))
        for marker in self._markers:
            marker.reached(written=False)
        self._batch, self._markers = [], []
        self._discard()
        with self._database:
            self._let_go()

    def _await_rows(self) -> None:
        if self._batch or self._markers:
            return
        if not self._queue:
            self._wake_at = 1
            if not self._queue and not self._closed:
                self._signal.acquire(timeout=TICK_SECONDS)
        if not self._closed and not self.sync and len(self._queue) < BATCH_ROWS:
            self._wake_at = BATCH_ROWS
            if len(self._queue) < BATCH_ROWS:
                self._signal.acquire(timeout=BATCH_SECONDS)
        self._wake_at = _NEVER

    def _take(self) -> None:
        queue, batch = self._queue, self._batch
        while len(batch) < MAX_BATCH_ROWS:
            try:
                item = queue.popleft()
            except IndexError:
                return
            if isinstance(item, Marker):
                self._markers.append(item)
            else:
                batch.append(item)

    def _write(self) -> None:
        try:
            with self._database:
                if self._batch:
                    self._open()
                    self._insert()
                    self._done()
        except Exception as error:
            self._fail(error)
            self._pause()
            return
        for marker in self._markers:
            marker.reached(written=True)
        self._markers.clear()

    def _done(self) -> None:
        self._bytes_out += sum([len(row[9]) for row in self._batch])
        self._batch.clear()

    def _insert(self) -> None:
        assert self._opened is not None
        connection = self._opened.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            last = connection.execute("SELECT max(seq) FROM events").fetchone()[0] or 0
            position = 0
            for size in _pieces(len(self._batch)):
                piece = self._batch[position : position + size]
                connection.execute(_insert_of(size), [value for row in piece for value in row])
                position += size
            connection.execute(SUMMARIZE, (last,))
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            raise

    def _open(self) -> None:
        if self._opened is not None:
            if _schema.identity_of(self.path) == self._opened.identity:
                return
            self._let_go()
        self._opened = _schema.open_to_write(self.path, self._durability)

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(sqlite3.Error):
                opened.connection.close()

    def _fail(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._said_at >= MINUTE:
            self._said_at = now
            notice("error", ("TRACE", "FAIL"), ("store", self.path), error=error)

    def _pause(self) -> None:
        self._signal.acquire(timeout=RETRY_SECONDS)


BUSY_MARGIN: Final = 2 * _schema.BUSY_SECONDS


def _pieces(count: int) -> Iterator[int]:
    for size in _PIECES:
        while count >= size:
            yield size
            count -= size


def _insert_of(size: int) -> str:
    row = f"({', '.join('?' * len(COLUMNS))})"
    return f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES {', '.join([row] * size)}"


class _Exits:
    def enter(self, store: Store) -> None:
        atexit.register(store.close)


exits = _Exits()
