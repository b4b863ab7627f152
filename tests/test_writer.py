"""
A store at work in one process: batches, bounds, waiting, and what happens when its database fails.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import sys
import threading

import pytest
import stored
from logged import stderr_lines
from stored import Counted

from eventbus import Event, InferenceStartedEvent, _encode, _schema, _writer, stats
from eventbus._errors import TraceFileError
from eventbus._retention import Retention
from eventbus._writer import Store

fcntl = pytest.importorskip("fcntl", reason="the lock of a directory is POSIX")


@pytest.fixture
def path(tmp_path):
    """Return where the store is."""
    return str(tmp_path / "runs.db")


@pytest.fixture
def make(path):
    """Return a function that makes a store, which is closed after the test."""
    made = []

    def make(durability="batched", retention=None):
        store = Store(path, durability, retention, lambda _store: None)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()
    assert [] == stored.writers()


def fill(store, *numbers):
    """Have a store record events with numbers."""
    for number in numbers:
        store.record(Counted(number=number))


def dropped():
    """Return how many events were not kept, so far."""
    return stats()["store_dropped"]


def test_what_is_recorded_is_written_in_order(make, path):
    """Sequence is the order of the emits."""
    store = make()
    fill(store, *range(2_500))

    assert store.flush(stored.PATIENCE)
    assert list(range(2_500)) == stored.numbers(path)
    assert list(range(1, 2_501)) == [row["seq"] for row in stored.rows(path)]


def test_no_thread_before_there_is_something_to_write(make):
    """A store that is open and idle costs a file, and no thread."""
    store = make()
    store.open()

    assert [] == stored.writers()
    assert store.flush(0.0)


def test_what_waits_is_told(make, monkeypatch):
    """The number of events in the queue, until they are committed."""
    store = make()
    monkeypatch.setattr(store, "_wake", lambda: None)
    fill(store, 1, 2, 3)
    assert 3 == store.pending()
    monkeypatch.undo()

    assert store.flush(stored.PATIENCE)
    assert 0 == store.pending()


def test_a_full_batch_does_not_wait(make, path, monkeypatch):
    """A thousand rows are written at once, however long the writer would wait for more."""
    monkeypatch.setattr(_writer, "BATCH_SECONDS", 3600.0)
    store = make()
    store.open()

    fill(store, 0)
    stored.eventually(lambda: store._wake_at == _writer.BATCH_ROWS or not store.pending())
    fill(store, *range(1, 2 * _writer.BATCH_ROWS))

    stored.eventually(lambda: len(stored.numbers(path)) >= _writer.BATCH_ROWS)


def test_a_flush_does_not_wait_for_the_batch(make, path, monkeypatch):
    """Whoever waits is served at once."""
    monkeypatch.setattr(_writer, "BATCH_SECONDS", 3600.0)
    store = make()
    fill(store, 1)

    assert store.flush(stored.PATIENCE)
    assert [1] == stored.numbers(path)


def test_a_flush_that_takes_too_long(make, monkeypatch):
    """It says so, and what waits is written all the same."""
    held = threading.Event()
    stored.faulty(monkeypatch, lambda sql: held.wait(stored.PATIENCE) if sql == "COMMIT" else None)
    store = make()
    fill(store, 1)

    assert not store.flush(0.01)
    held.set()
    assert store.flush(stored.PATIENCE)


@pytest.mark.parametrize("bound", ["MAX_ROWS", "MAX_CHARACTERS"])
def test_the_queue_is_bounded(make, path, monkeypatch, bound):
    """In events and in characters; what is beyond is counted here and in the file."""
    size = len(json.dumps({"who": "", "number": 1}, separators=(",", ":")))
    monkeypatch.setattr(_writer, bound, 10 if bound == "MAX_ROWS" else 10 * size)
    before = dropped()
    store = make()
    monkeypatch.setattr(store, "_wake", lambda: None)
    fill(store, *([1] * 15))
    monkeypatch.setattr(store, "_wake", lambda: Store._wake(store))

    assert 5 == dropped() - before
    assert store.flush(stored.PATIENCE)
    assert 10 == len(stored.numbers(path))
    assert [(5, "the queue was full")] == stored.query(path, "SELECT count, reason FROM losses")
    fill(store, 1)
    assert store.flush(stored.PATIENCE)
    assert 11 == len(stored.numbers(path))
    assert 1 == len(stored.query(path, "SELECT * FROM losses"))


def test_the_bounds_are_those_that_are_promised():
    """Events and characters in the queue; seconds for a lock, an emit, an end, and between two lines."""
    assert (100_000, 64 * 2**20) == (_writer.MAX_ROWS, _writer.MAX_CHARACTERS)
    seconds = (_writer.PATIENCE, _writer.SYNC_SECONDS, _writer.STOP_SECONDS, _writer.MINUTE)
    assert (2.0, 5.0, 5.0, 60.0) == seconds


def test_what_the_queue_drops_is_said(make, monkeypatch):
    """Once a minute, with the number."""
    monkeypatch.setattr(_writer, "MAX_ROWS", 1)
    with stderr_lines() as lines:
        store = make()
        for _ in range(2):
            monkeypatch.setattr(store, "_wake", lambda: None)
            fill(store, 1, 2, 3)
            monkeypatch.setattr(store, "_wake", lambda: Store._wake(store))
            assert store.flush(stored.PATIENCE)

    [line] = lines
    assert f"TRACE DROP {store.path} dropped=2" in line


def test_an_event_that_makes_no_row(make, monkeypatch):
    """It is counted; nothing is raised."""

    def fail(_event):
        raise RecursionError

    monkeypatch.setattr(_writer, "encode", fail)
    before = dropped()

    fill(make(), 1)

    assert 1 == dropped() - before


def test_what_is_no_exception_goes_through(make, monkeypatch):
    """An interrupt in the middle of an emit reaches the program."""

    def interrupt(_event):
        raise KeyboardInterrupt

    monkeypatch.setattr(_writer, "encode", interrupt)

    with pytest.raises(KeyboardInterrupt):
        fill(make(), 1)


def test_sync_returns_after_the_commit(make, path):
    """Whoever has emitted finds the event in the file."""
    store = make("sync")

    for number in range(5):
        fill(store, number)
        assert list(range(number + 1)) == stored.numbers(path)


def test_sync_commits_for_many_at_once(make, path, monkeypatch):
    """Events of many threads share a commit, and each waits for its own."""
    commits = []
    stored.faulty(monkeypatch, lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    store = make("sync")
    seen = []

    def emit(who):
        for number in range(20):
            store.record(Counted(who=who, number=number))
        seen.append(stored.numbers(path, who) == list(range(20)))

    threads = [threading.Thread(target=emit, args=(f"t{index}",)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [True] * 6 == seen
    assert len(commits) <= 121


def test_sync_does_not_wait_for_what_fails(make, path, monkeypatch):
    """The emit returns when its commit has failed; the event is written when it can be."""
    stored.impatient(monkeypatch)
    failing = [True]

    def fault(sql):
        if failing and sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")

    stored.faulty(monkeypatch, fault)
    store = make("sync")
    fill(store, 1, 2)

    assert 2 == store.pending()
    failing.clear()
    fill(store, 3)
    assert store.flush(stored.PATIENCE)
    assert [1, 2, 3] == stored.numbers(path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ended_is_started_again(make, path, monkeypatch):
    """What is no Exception may end the writer's thread; the next event starts another."""
    ending = [True]

    def fault(sql):
        if ending and sql == "COMMIT":
            ending.clear()
            raise SystemExit

    stored.faulty(monkeypatch, fault)
    store = make()
    fill(store, 1)
    stored.eventually(lambda: not ending and not stored.writers())
    fill(store, 2)

    assert store.flush(stored.PATIENCE)
    assert [1, 2] == stored.numbers(path)


def test_a_thread_that_cannot_be_started(make, path, monkeypatch):
    """The event waits; the next one, or the store's end, writes it."""

    def fail(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        store = make()
        fill(store, 1, 2)
        assert 2 == store.pending()
        store.close()

    assert [1, 2] == stored.numbers(path)
    assert store.flush(0.0)


def test_a_signal_in_the_middle_of_an_emit(make, path):
    """Its handler may emit as well, and what it emits is stored."""
    store = make()
    emitted = itertools.count()
    before = signal.signal(
        signal.SIGALRM, lambda *_: store.record(Counted(who="signal", number=next(emitted)))
    )
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        fill(store, *range(3_000))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert store.flush(stored.PATIENCE)
    assert list(range(3_000)) == stored.numbers(path)
    assert list(range(next(emitted))) == sorted(stored.numbers(path, "signal"))


def test_a_finalizer_on_the_writers_thread(make, path, monkeypatch):
    """What it emits is written; it does not wait for the thread that it is on."""
    store = make("sync")
    found = []

    def fault(sql):
        if sql == "COMMIT" and not found:
            fill(store, 2)
            found.append(store.flush(stored.PATIENCE))

    stored.faulty(monkeypatch, fault)
    fill(store, 1)

    assert store.flush(stored.PATIENCE)
    assert [False] == found
    assert [1, 2] == stored.numbers(path)


def test_after_the_end_events_are_counted(make, path):
    """They are not written, and nothing is raised."""
    store = make()
    fill(store, 1)
    store.close()
    store.close()
    before = dropped()

    fill(store, 2, 3)

    assert 2 == dropped() - before
    assert [1] == stored.numbers(path)
    assert store.flush(0.0)


def test_emitting_while_it_ends(make, path):
    """Every event is written or counted, whatever its thread is doing when the store ends."""
    store = make()
    before = dropped()
    going = threading.Event()
    sent = []

    def emit():
        for number in range(3_000):
            fill(store, number)
            going.set()
        sent.append(3_000)

    threads = [threading.Thread(target=emit) for _ in range(3)]
    for thread in threads:
        thread.start()
    going.wait(stored.PATIENCE)
    store.close()
    for thread in threads:
        thread.join()

    assert sum(sent) == len(stored.numbers(path)) + dropped() - before


def test_a_flush_that_meets_the_end(make):
    """It says that nothing is left, or that something was."""
    store = make()
    fill(store, 1)
    assert store.flush(stored.PATIENCE)
    store._finished = True
    store._queue.append(_encode.encode(Counted()))

    assert not store.flush(0.0)
    store._finished = False
    assert store.flush(stored.PATIENCE)


def test_an_end_while_the_thread_is_started(make, path, monkeypatch):
    """It waits for the thread that another one is just starting."""
    store = make()
    start = threading.Thread.start
    ending = threading.Thread(target=store.close)

    def late(thread):
        if thread.name == "eventbus-trace":
            start(ending)
            stored.eventually(lambda: store._closed)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", late)
        fill(store, 1)
    ending.join()

    assert [1] == stored.numbers(path)


def test_an_emit_that_meets_the_end(make, monkeypatch):
    """What comes into the queue when nobody empties it any more is counted."""
    store = make()
    monkeypatch.setattr(store, "_wake", lambda: setattr(store, "_finished", True))
    before = dropped()

    fill(store, 1)

    assert 1 == dropped() - before


def test_an_end_without_a_thread_that_is_interrupted(make, path, monkeypatch):
    """What it has not written is written by the next call."""
    interrupted = []

    def fault(sql):
        if sql == "COMMIT" and not interrupted:
            interrupted.append(sql)
            raise KeyboardInterrupt

    store = make()
    store.open()
    stored.faulty(monkeypatch, fault)
    store._let_go()
    monkeypatch.setattr(store, "_wake", lambda: None)
    fill(store, 1, 2)
    with pytest.raises(KeyboardInterrupt):
        store.close()

    store.close()

    assert [1, 2] == stored.numbers(path)


def test_an_end_on_the_writers_thread(make, path, monkeypatch):
    """A finalizer there may end the store: it does not wait for its own thread."""
    store = make()
    stored.faulty(monkeypatch, lambda sql: store.close() if sql == "COMMIT" else None)
    fill(store, 1)

    stored.eventually(lambda: not stored.writers())
    assert [1] == stored.numbers(path)


@pytest.mark.parametrize("bound", ["MAX_BATCH_ROWS", "MAX_BATCH_CHARACTERS"])
def test_a_writer_that_is_behind(make, path, monkeypatch, bound):
    """A transaction takes a bounded number of rows, and of characters."""
    size = len(_encode.encode(Counted(number=10))[_writer.PAYLOAD])
    monkeypatch.setattr(_writer, bound, 10 if bound == "MAX_BATCH_ROWS" else 10 * size)
    commits = []
    stored.faulty(monkeypatch, lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    store = make()
    with monkeypatch.context() as patch:
        patch.setattr(store, "_wake", lambda: None)
        fill(store, *range(95))

    assert store.flush(stored.PATIENCE)
    assert list(range(95)) == stored.numbers(path)
    assert len(commits) >= 10


def test_a_database_of_few_variables(make, path, monkeypatch):
    """Before its version 3.32, SQLite took 999 in one statement."""

    class Old(_schema.Connection):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)

    monkeypatch.setattr(_schema, "Connection", Old)
    store = make()
    for number in range(300):
        store.record(Counted(number=number, correlation_id=str(number)))

    assert store.flush(stored.PATIENCE)
    assert list(range(300)) == stored.numbers(path)
    assert stored.is_sound(path)


def test_a_waiting_flush_is_let_go_at_the_end(make, monkeypatch):
    """A marker that nobody will reach is released."""
    store = make()
    monkeypatch.setattr(store, "_wake", lambda: setattr(store, "_finished", True))
    store._queue.append(_encode.encode(Counted()))

    assert not store.flush(stored.PATIENCE)


def test_every_call_of_the_database_fails_once(tmp_path, monkeypatch):
    """Whichever it is: nothing is lost, nothing twice, and the writer lives."""
    stored.impatient(monkeypatch)
    calls = [0, 0]

    def fault(_sql):
        calls[0] += 1
        if calls[0] == calls[1]:
            raise sqlite3.OperationalError("injected")

    stored.faulty(monkeypatch, fault)
    while calls[0] >= calls[1]:
        calls[:] = [0, calls[1] + 1]
        path = str(tmp_path / f"{calls[1]}.db")
        store = Store(path, "batched", Retention(max_age=3600, max_size=10**9), lambda _store: None)
        with contextlib.suppress(sqlite3.Error):
            store.open()
        fill(store, *range(10))
        assert store.flush(stored.PATIENCE)
        store.record(InferenceStartedEvent(correlation_id="run-1"))
        store.close()
        assert list(range(10)) == stored.numbers(path)
        assert 1 == len(stored.runs(path))
        assert stored.is_sound(path)
    assert calls[1] > 30
    assert 0 == len([name for name in os.listdir(tmp_path) if name.startswith(".")])


def test_a_database_that_fails_again_and_again(make, path, monkeypatch):
    """Within a minute that is told once, and its end once."""
    stored.impatient(monkeypatch)
    failing = []

    def fault(sql):
        if failing and sql == "BEGIN IMMEDIATE":
            raise sqlite3.OperationalError("disk I/O error")

    stored.faulty(monkeypatch, fault)
    with stderr_lines() as lines:
        store = make()
        for number in range(5):
            failing.append(number)
            fill(store, number)
            stored.eventually(lambda: store._has_failed)
            failing.clear()
            assert store.flush(stored.PATIENCE)
            stored.eventually(lambda: not store._has_failed)
        store.close()

    assert list(range(5)) == stored.numbers(path)
    assert ["TRACE FAIL", "TRACE OK"] == [" ".join(line.split()[2:4]) for line in lines]


def test_a_database_that_always_fails(make, monkeypatch):
    """The run goes on, one line a minute says so, the queue stays bounded, and the store still ends."""
    stored.impatient(monkeypatch)
    monkeypatch.setattr(_writer, "MAX_ROWS", 10)
    attempts = []

    def fault(sql):
        attempts.append(sql)
        raise sqlite3.OperationalError("disk I/O error")

    stored.faulty(monkeypatch, fault)
    before = dropped()
    with stderr_lines() as lines:
        store = make()
        store.open()
        fill(store, 0)
        stored.eventually(lambda: len(attempts) > 10)
        fill(store, *range(50))
        store.close(0.05)

    # The thread may count its last batch after the end's time is over.
    stored.eventually(lambda: 51 == dropped() - before)
    [line] = lines
    assert f"TRACE FAIL {store.path} OperationalError: disk I/O error" in line


def test_what_was_dropped_meanwhile_is_said_and_stored(make, path, monkeypatch):
    """When it clears, the writer catches up and says so."""
    stored.impatient(monkeypatch)
    monkeypatch.setattr(_writer, "MAX_ROWS", 10)
    failing = [True]

    def fault(sql):
        if failing and sql == "BEGIN IMMEDIATE":
            raise sqlite3.OperationalError("database or disk is full")

    stored.faulty(monkeypatch, fault)
    with stderr_lines() as lines:
        store = make()
        fill(store, 0)
        stored.eventually(lambda: store._has_failed)
        fill(store, *range(1, 50))
        lost = store._lost
        failing.clear()
        assert store.flush(stored.PATIENCE)
        stored.eventually(lambda: not store._has_failed)
        store.close()

    assert [(lost, "OperationalError: database or disk is full")] == stored.query(
        path, "SELECT count, reason FROM losses"
    )
    assert list(range(50 - lost)) == stored.numbers(path)
    assert f"TRACE OK {path} dropped={lost}" in lines[1]


@pytest.mark.parametrize("error", [sqlite3.IntegrityError, sqlite3.DataError, OverflowError])
def test_rows_that_can_never_be_written(make, path, monkeypatch, error):
    """They are dropped and counted; what comes after them is written."""
    stored.impatient(monkeypatch)
    failing = [True]

    def fault(sql):
        if failing and sql.startswith("INSERT INTO events"):
            failing.clear()
            raise error("never")

    stored.faulty(monkeypatch, fault)
    before = dropped()
    store = make()
    fill(store, 1)
    stored.eventually(lambda: dropped() - before == 1)
    fill(store, 2)

    assert store.flush(stored.PATIENCE)
    assert [2] == stored.numbers(path)


def test_a_lock_held_by_another(make, path, monkeypatch):
    """The run goes on, it is said once, and what waited is written when the lock is let go."""
    stored.impatient(monkeypatch)
    with stderr_lines() as lines:
        store = make()
        store.open()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            fill(store, *range(5))
            stored.eventually(lambda: store._has_failed)
            assert not store.flush(0.02)
            other.execute("COMMIT")
        assert store.flush(stored.PATIENCE)
        stored.eventually(lambda: not store._has_failed)
        store.close()

    assert list(range(5)) == stored.numbers(path)
    assert ["TRACE FAIL", "TRACE OK"] == [" ".join(line.split()[2:4]) for line in lines]
    assert "database is locked" in lines[0]


@contextlib.contextmanager
def transaction(path):
    """Hold the lock of the database."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("COMMIT")


@contextlib.contextmanager
def directory(path):
    """Hold the lock under which a store is made."""
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


@pytest.mark.parametrize("held", [transaction, directory])
def test_a_lock_held_for_a_moment_is_no_failure(make, path, held):
    """Four processes open and write one file, and wait for each other."""
    with stderr_lines() as lines:
        store = make()
        store.open()
        store._let_go()
        with held(path):
            fill(store, 1)
            stored.eventually(lambda: store._failed_at is not None)
        assert store.flush(stored.PATIENCE)
        store.close()

    assert [] == lines


def test_a_piece_of_the_retention_that_fails(make, path, monkeypatch):
    """The next one that does not fail ends it: what is written later is waited for as before."""
    stored.impatient(monkeypatch)
    monkeypatch.setattr("eventbus._retention.SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(_writer, "TICK_SECONDS", 0.01)
    failing = [True]

    def fault(sql):
        if failing and sql.startswith("DELETE FROM losses"):
            raise sqlite3.OperationalError("disk I/O error")

    stored.faulty(monkeypatch, fault)
    with stderr_lines() as lines:
        store = make("sync", Retention(max_age=3600))
        fill(store, 1)
        stored.eventually(lambda: store._has_failed)
        failing.clear()
        stored.eventually(lambda: not store._has_failed)
        store.close()

    assert ["TRACE FAIL", "TRACE OK"] == [" ".join(line.split()[2:4]) for line in lines]


def test_a_full_disk(make, path, monkeypatch):
    """A limit of pages stands in for it; when it is lifted, the rest is written."""
    stored.impatient(monkeypatch)
    full = ["PRAGMA max_page_count = 20"]

    class Small(_schema.Connection):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for sql in full:
                super().execute(sql).fetchall()

    monkeypatch.setattr(_schema, "Connection", Small)
    store = make()
    for number in range(200):
        store.record(Counted(who="x" * 1000, number=number))
    stored.eventually(lambda: store._has_failed)
    assert not store.flush(0.02)
    assert "full" in store._reason
    full.clear()

    assert store.flush(stored.PATIENCE)
    assert list(range(200)) == stored.numbers(path, "x" * 1000)
    assert stored.is_sound(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(
    make, path, tmp_path, monkeypatch
):  # pragma: no cover - not as root
    """The store goes on trying, and catches up when it may."""
    stored.impatient(monkeypatch)
    tmp_path.chmod(0o500)
    try:
        store = make()
        store.open()
        fill(store, 1)
        stored.eventually(lambda: store._has_failed)
    finally:
        tmp_path.chmod(0o700)
    assert store.flush(stored.PATIENCE)
    assert [1] == stored.numbers(path)


def test_a_file_that_is_emptied(make, path):
    """What is left of it is moved aside with the next batch, and a new one is made."""
    store = make()
    for number in range(300):
        store.record(Counted(who="x" * 500, number=number))
    assert store.flush(stored.PATIENCE)
    os.truncate(path, 0)
    with stderr_lines() as lines:
        fill(store, 1)
        assert store.flush(stored.PATIENCE)
        store.close()

    assert [1] == stored.numbers(path)
    assert stored.is_sound(path)
    assert f"TRACE MOVED {path} to={path}.corrupt-" in lines[0]


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_file_taken_away(make, path, replaced):
    """It is noticed with the next batch, and a new one is made."""
    store = make()
    fill(store, 1)
    assert store.flush(stored.PATIENCE)
    os.unlink(path)
    if replaced:
        _schema.open_to_write(path, "batched").connection.close()

    fill(store, 2)

    assert store.flush(stored.PATIENCE)
    assert [2] == stored.numbers(path)
    assert stored.is_sound(path)


def test_a_directory_taken_away(make, tmp_path, monkeypatch):
    """The store waits for it to be there again."""
    stored.impatient(monkeypatch)
    inner = tmp_path / "inner"
    inner.mkdir()
    store = Store(str(inner / "runs.db"), "batched", None, lambda _store: None)
    fill(store, 1)
    assert store.flush(stored.PATIENCE)
    for name in os.listdir(inner):
        os.unlink(inner / name)
    inner.rmdir()
    fill(store, 2)
    stored.eventually(lambda: store._has_failed)
    inner.mkdir()

    assert store.flush(stored.PATIENCE)
    assert [2] == stored.numbers(inner / "runs.db")
    store.close()


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_corrupt_file(make, path, tmp_path, monkeypatch, when):
    """It is moved aside, a new one is made, and it is said once; nothing that waits is lost."""
    stored.impatient(monkeypatch)
    with stderr_lines() as lines:
        store = make()
        first = Store(path, "batched", None, lambda _store: None) if when == "before" else store
        for number in range(300):
            first.record(Counted(who="x" * 500, number=number))
        assert first.flush(stored.PATIENCE)
        if first is not store:
            first.close()
        stored.query(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        with open(path, "r+b") as file:
            file.seek(4096)
            file.write(os.urandom(os.path.getsize(path) - 4096))
        if first is store:
            with store._database:
                store._let_go()
        fill(store, 1, 2, 3)
        assert store.flush(stored.PATIENCE)
        store.close()

    assert [1, 2, 3] == stored.numbers(path)
    [moved] = [
        name for name in os.listdir(tmp_path) if ".corrupt-" in name and not name.endswith(("-wal", "-shm"))
    ]
    assert [line for line in lines if f"TRACE MOVED {path} to={tmp_path / moved}" in line]
    assert 1 == len([line for line in lines if "TRACE FAIL" in line])


def test_a_spoilt_file_is_said_at_the_start(make, path, tmp_path):
    """It is moved aside by whatever opens the store first."""
    (tmp_path / "runs.db").write_bytes(b"")
    with stderr_lines() as lines:
        make().open()

    [line] = lines
    assert f"TRACE MOVED {path} to={path}.corrupt-" in line


def test_a_newer_file_that_appears(make, path, monkeypatch):
    """It is never written to; what waits is kept, within bounds, for when it is gone."""
    stored.impatient(monkeypatch)
    store = make()
    fill(store, 1)
    assert store.flush(stored.PATIENCE)
    os.unlink(path)
    _schema.open_to_write(path, "batched").connection.close()
    stored.query(path, "PRAGMA user_version = 2")
    fill(store, 2)
    stored.eventually(lambda: store._has_failed)

    assert [] == stored.rows(path)
    os.unlink(path)
    assert store.flush(stored.PATIENCE)
    assert [2] == stored.numbers(path)


def test_a_file_that_must_not_be_touched_is_told_at_once(make, path):
    """Opening says so."""
    stored.query(path, "CREATE TABLE accounts (name)")

    with pytest.raises(TraceFileError):
        make().open()


def test_what_may_clear_is_no_error_at_the_start(make, path, monkeypatch):
    """A file that cannot be opened now is tried again with the first event."""
    stored.impatient(monkeypatch)
    failing = [True]

    def fault(_sql):
        if failing:
            raise sqlite3.OperationalError("disk I/O error")

    stored.faulty(monkeypatch, fault)
    store = make()
    store.open()
    failing.clear()
    fill(store, 1)

    assert store.flush(stored.PATIENCE)
    assert [1] == stored.numbers(path)


def test_a_failure_outside_the_database(make, path, monkeypatch):
    """Whatever fails on the writer's thread, it lives on."""
    stored.impatient(monkeypatch)
    store = make()
    failing = [True]

    def take():
        if failing:
            failing.clear()
            raise MemoryError
        Store._take(store)

    monkeypatch.setattr(store, "_take", take)
    fill(store, 1)

    assert store.flush(stored.PATIENCE)
    assert [1] == stored.numbers(path)


def test_the_log_is_cut_back(make, path, monkeypatch):
    """A write-ahead log that readers have kept from being reused does not grow for ever."""
    monkeypatch.setattr(_writer, "WAL_LIMIT", 10_000)
    monkeypatch.setattr(_writer, "WAL_CHECK_SECONDS", 0.0)
    store = make()
    for number in range(100):
        store.record(Counted(who="x" * 1000, number=number))
    assert store.flush(stored.PATIENCE)
    fill(store, 1)
    assert store.flush(stored.PATIENCE)

    stored.eventually(lambda: os.path.getsize(path + "-wal") < 10_000)
    os.unlink(path + "-wal")
    fill(store, 1)
    assert store.flush(stored.PATIENCE)


def test_retention_is_the_writers_work(make, path, monkeypatch):
    """It deletes between batches, and while there are none."""
    monkeypatch.setattr("eventbus._retention.CHUNK_EVENTS", 10)
    first = Store(path, "batched", None, lambda _store: None)
    for number in range(100):
        first.record(Counted(number=number, timestamp=1.0))
    first.close()

    store = make(retention=Retention(max_age=3600))
    fill(store, 7)

    assert store.flush(stored.PATIENCE)
    stored.eventually(lambda: stored.numbers(path) == [7])


def test_a_fork_leaves_the_child_nothing_of_the_queue(make, path):
    """What was waiting is the parent's."""
    store = make()
    fill(store, 1)
    assert store.flush(stored.PATIENCE)
    store.before_fork()
    assert store._opened is None
    store.after_fork_in_parent()
    fill(store, 2)
    assert store.flush(stored.PATIENCE)

    child = Store(path, "batched", None, lambda _store: None)
    child._queue.append(_encode.encode(Counted(number=3)))
    child.before_fork()
    child.after_fork_in_child()
    assert child.flush(0.0)
    fill(child, 4)
    child.close()

    assert [1, 2, 4] == stored.numbers(path)


def test_a_store_that_has_ended_stays_so_in_a_child(make):
    """A child of a process that has closed its store counts as the parent does."""
    store = make()
    store.close()
    store.before_fork()
    store.after_fork_in_child()
    before = dropped()

    fill(store, 1)

    assert 1 == dropped() - before


class Held:
    """An object whose finalizer emits."""

    def __init__(self, store):
        self.store = store

    def __del__(self):
        self.store.record(Counted(who="finalizer"))


def test_a_finalizer_in_the_middle_of_an_emit(make, path):
    """A collection may run it anywhere."""
    store = make()

    class Note(Event):
        held: object = None

    for _ in range(200):
        store.record(Note(held=Held(store)))

    assert store.flush(stored.PATIENCE)
    stored.eventually(lambda: store.flush(1.0) and 200 == len(stored.numbers(path, "finalizer")))
    assert sys.getrefcount(store) > 0
