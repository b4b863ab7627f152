"""
What a trace store deletes in time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from datetime import timedelta

import pytest
import stored

from eventbus import (
    Event,
    InferenceCompletedEvent,
    InferenceStartedEvent,
    _retention,
    _schema,
    _writer,
)
from eventbus._encode import encode
from eventbus._retention import Retention, Sweeper

HOUR = 3600.0


class Noted(Event):
    """An event of some size."""

    text: str = ""


@pytest.fixture
def connection(tmp_path):
    """Return a connection to an empty store at runs.db."""
    opened = _schema.open_to_write(str(tmp_path / "runs.db"), "batched")
    with contextlib.closing(opened.connection) as connection:
        yield connection


def put(connection, *events):
    """Store events as the writer does."""
    _writer._insert_events(connection, [encode(event) for event in events])


def run(cid, age, *, ended=True, events=1, text=""):
    """Return the events of a run whose last one is so many hours old; it began an hour earlier."""
    now = time.time() - age * HOUR
    at = {"correlation_id": cid}
    yield InferenceStartedEvent(**at, timestamp=now - HOUR, message=cid)
    for _ in range(events):
        yield Noted(**at, timestamp=now, text=text)
    if ended:
        yield InferenceCompletedEvent(**at, timestamp=now)


def sweep(connection, retention):
    """Sweep until nothing is left to be done; return how many pieces that took."""
    sweeper = Sweeper(retention)
    pieces = 0
    while sweeper.is_due(0.0):
        sweeper.sweep(connection, 1.0)
        pieces += 1
    return pieces


def left(connection):
    """Return the ids in both tables, which must agree."""
    events = {cid for (cid,) in connection.execute("SELECT DISTINCT cid FROM events WHERE cid IS NOT NULL")}
    assert events == {cid for (cid,) in connection.execute("SELECT cid FROM runs")}
    return sorted(events)


@pytest.mark.parametrize("age", [2 * HOUR, timedelta(hours=2)])
def test_by_age(connection, age):
    """A run goes when its last event is older, whole; one that has begun before and goes on stays."""
    put(
        connection,
        *run("old", 3),
        *run("older", 5, ended=False),
        *run("late", 1.5),
        *run("open", 1, ended=False),
    )

    sweep(connection, Retention(max_age=age))

    assert ["late", "open"] == left(connection)


def test_events_without_a_run_go_by_their_own_age(connection):
    """As do the notes of what was lost."""
    for age in (3, 1):
        then = time.time() - age * HOUR
        put(connection, Noted(timestamp=then, text=str(age)))
        connection.execute("INSERT INTO losses (timestamp, count, reason) VALUES (?, ?, '')", (then, age))

    sweep(connection, Retention(max_age=2 * HOUR))

    assert [('{"text":"1"}',)] == connection.execute("SELECT payload FROM events").fetchall()
    assert [(1,)] == connection.execute("SELECT count FROM losses").fetchall()


def test_a_large_run_goes_in_pieces(connection, monkeypatch):
    """No transaction deletes more than a few events; the run is listed until its last piece."""
    monkeypatch.setattr(_retention, "CHUNK_EVENTS", 10)
    put(connection, *run("old", 3, events=95), *run("new", 1))
    sweeper = Sweeper(Retention(max_age=2 * HOUR))

    sweeper.sweep(connection, 1.0)

    assert sweeper.has_more
    assert ["new", "old"] == left(connection)
    assert 97 - 10 + 3 == connection.execute("SELECT count(*) FROM events").fetchone()[0]
    while sweeper.is_due(0.0):
        sweeper.sweep(connection, 1.0)
    assert ["new"] == left(connection)


def test_many_small_runs_go_in_pieces(connection, monkeypatch):
    """The number of runs in a piece is bounded, too."""
    monkeypatch.setattr(_retention, "CHUNK_EVENTS", 10)
    for number in range(30):
        put(connection, *run(f"old-{number}", 3, events=0))

    assert 1 < sweep(connection, Retention(max_age=2 * HOUR))
    assert [] == left(connection)


def test_by_size(tmp_path, connection):
    """The oldest runs go until the file has the size; it becomes shorter on the disk."""
    text = "x" * 1000
    for number in range(100):
        put(connection, *run(f"run-{number:03}", 200 - number, events=10, text=text))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    path = tmp_path / "runs.db"
    assert os.path.getsize(path) > 1_000_000

    sweep(connection, Retention(max_size=500_000))

    assert os.path.getsize(path) <= 500_000
    kept = left(connection)
    assert 10 < len(kept) < 100
    assert kept == [f"run-{number:03}" for number in range(100 - len(kept), 100)]
    assert stored.is_sound(path)


def test_an_open_run_does_not_go_for_its_size(connection):
    """Nor does one that has been silent for less than the age."""
    put(connection, *run("open", 3, ended=False, events=100, text="x" * 1000), *run("ended", 2))

    sweep(connection, Retention(max_size=50_000))
    assert ["open"] == left(connection)
    sweep(connection, Retention(max_size=50_000, max_age=4 * HOUR))
    assert ["open"] == left(connection)


def test_a_run_that_never_ended_goes_after_a_day(connection):
    """It is open no longer."""
    put(connection, *run("left", 25, ended=False, events=100, text="x" * 1000))

    sweep(connection, Retention(max_size=50_000))

    assert [] == left(connection)


def test_events_without_a_run_go_by_size(connection):
    """They go with the runs of their time, or alone."""
    put(connection, *[Noted(text="x" * 1000) for _ in range(100)])
    put(connection, *run("run", 1, events=10, text="x" * 1000), Noted(text="last"))

    sweep(connection, Retention(max_size=100_000))
    assert ["run"] == left(connection)
    assert 13 <= connection.execute("SELECT count(*) FROM events").fetchone()[0] <= 100
    connection.execute("UPDATE runs SET ended = NULL")
    sweep(connection, Retention(max_size=1))
    assert ["run"] == left(connection)
    assert 12 == connection.execute("SELECT count(*) FROM events").fetchone()[0]


def test_a_number_is_never_used_twice(connection):
    """The events that come when nothing is left go on behind what was deleted, and their run knows it."""
    put(connection, *run("old", 3))

    sweep(connection, Retention(max_age=2 * HOUR))
    put(connection, *run("new", 1))

    assert [(4,), (5,), (6,)] == connection.execute("SELECT seq FROM events ORDER BY seq").fetchall()
    assert [("new", 4, 6)] == connection.execute("SELECT cid, first_seq, last_seq FROM runs").fetchall()


def test_nothing_is_done_without_need(connection):
    """A store within its bounds is left as it is."""
    put(connection, *run("run", 1))

    assert 1 == sweep(connection, Retention(max_age=2 * HOUR, max_size=10_000_000))
    assert 1 == sweep(connection, Retention())
    assert ["run"] == left(connection)


def test_a_piece_that_fails_changes_nothing(connection):
    """It is due again later."""
    put(connection, *run("old", 3))
    connection.execute("CREATE TRIGGER no BEFORE DELETE ON runs BEGIN SELECT raise(ABORT, 'no'); END")
    sweeper = Sweeper(Retention(max_age=2 * HOUR))

    with pytest.raises(sqlite3.IntegrityError):
        sweeper.sweep(connection, 1.0)

    assert not sweeper.is_due(2.0)
    assert sweeper.is_due(20.0)
    assert ["old"] == left(connection)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_age": "1d"}, TypeError, "`max_age` must be seconds, a timedelta or None, not '1d'"),
        ({"max_age": True}, TypeError, "max_age"),
        ({"max_size": 1.5}, TypeError, "`max_size` must be a number of bytes or None, not 1.5"),
        ({"max_size": True}, TypeError, "max_size"),
        ({"max_age": 0}, ValueError, "more than 0, not 0 and None"),
        ({"max_age": timedelta(days=-1)}, ValueError, "more than 0"),
        ({"max_size": 0}, ValueError, "more than 0"),
    ],
)
def test_what_means_nothing(options, error, words):
    """It is told when it is said."""
    with pytest.raises(error, match=words):
        Retention(**options)
