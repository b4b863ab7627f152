"""
Which trace store is open: one for each state of the bus, or that of the environment; what they leave behind.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sqlite3
import threading
import weakref

import pytest
import stored
from logged import stderr_lines
from stored import Counted

from eventbus import Event, InferenceGeneratedEvent, _registry, _stores, stats, trace
from eventbus.testing import isolated


@pytest.fixture
def path(tmp_path):
    """Return where the store is."""
    return str(tmp_path / "runs.db")


@pytest.fixture
def environment(path, monkeypatch):
    """Have the environment name a store, as if the package had just been imported."""
    monkeypatch.setenv("EVENTBUS_TRACE", path)
    autostart = _stores.Autostart()
    receiver = _stores.receiver(autostart.record, accepts=lambda _event_class: bool(_stores.named()))
    _registry.signal_of(Event).connect(receiver, weak=False)


def test_a_store_receives_every_observed_event(path):
    """Those that nobody else listens to are built for it."""
    trace.start(path)

    assert InferenceGeneratedEvent.has_receivers()
    Counted.emit(number=1)
    assert trace.flush()
    assert [1] == stored.numbers(path)


def test_it_comes_before_handlers_that_emit(path):
    """Its order is that of the emits, whatever the priority of who answers with another event."""
    trace.start(path)

    def answer(event):
        if event.number < 3:
            Counted.emit(number=event.number + 1)

    with Counted.subscribe(answer, priority=-1000):
        Counted.emit(number=1)
    assert trace.flush()

    assert [1, 2, 3] == stored.numbers(path)


def test_a_second_store_is_refused(tmp_path, path):
    """The error names the one that is open, and the fix."""
    trace.start(path)

    with pytest.raises(RuntimeError, match=r"open already, at .*runs.db; call `trace.stop\(\)` first"):
        trace.start(tmp_path / "other.db")

    assert not (tmp_path / "other.db").exists()


def test_one_after_the_other(tmp_path, path):
    """Each has the events of its time; those in between are counted."""
    before = stats()["store_dropped"]
    trace.start(path)
    Counted.emit(number=1)
    trace.stop()
    Counted.emit(number=2)
    trace.start(tmp_path / "other.db")
    Counted.emit(number=3)
    trace.stop()

    assert [1] == stored.numbers(path)
    assert [3] == stored.numbers(tmp_path / "other.db")
    assert 1 == stats()["store_dropped"] - before


def test_a_store_inside_isolation_belongs_to_it(tmp_path, path):
    """The outer one is silent inside, the inner one is written and closed at the end."""
    trace.start(path)
    Counted.emit(number=1)
    with isolated():
        Counted.emit(number=2)
        trace.stop()
        trace.start(tmp_path / "inner.db")
        Counted.emit(number=3)
    Counted.emit(number=4)
    assert trace.flush()

    assert [1, 4] == stored.numbers(path)
    assert [3] == stored.numbers(tmp_path / "inner.db")
    assert 1 == len(stored.writers())


def test_a_hundred_times_leave_nothing_behind(path):
    """No thread, no open file, no exit function, no store."""
    trace.start(path)
    trace.stop()
    gc.collect()

    def resources():
        exits = atexit._ncallbacks(), len(weakref.finalize._registry)
        return threading.active_count(), stored.descriptors(), *exits

    before = resources()

    for number in range(100):
        trace.start(path)
        Counted.emit(number=number)
        trace.stop()
    gc.collect()

    assert before == resources()
    assert list(range(100)) == stored.numbers(path)
    assert 1 >= len([one for one in gc.get_objects() if issubclass(type(one), _stores.Entry)])


def test_what_waits_is_counted(path, monkeypatch):
    """`stats` tells how many events are not committed yet."""
    assert 0 == stats()["store_pending"]
    trace.start(path)
    with monkeypatch.context() as patch:
        patch.setattr(_stores.current().store, "_wake", lambda: None)
        Counted.emit(number=1)
        assert 1 == stats()["store_pending"]
    assert trace.flush()

    assert 0 == stats()["store_pending"]


def test_the_environment_names_one(environment, path):
    """It is opened at the first event, and has that event."""
    assert not os.path.exists(path)

    Counted.emit(number=1)
    Counted.emit(number=2)

    assert trace.flush()
    assert [1, 2] == stored.numbers(path)


def test_eight_threads_have_the_first_event(environment, path):
    """One store comes of it, with every event once."""
    barrier = threading.Barrier(8)

    def emit(number):
        barrier.wait()
        Counted.emit(number=number)

    threads = [threading.Thread(target=emit, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert trace.flush()
    assert list(range(8)) == sorted(stored.numbers(path))


def test_an_empty_name_is_none(environment, monkeypatch):
    """Then nobody listens."""
    monkeypatch.setenv("EVENTBUS_TRACE", " ")

    assert not Counted.has_receivers()


def test_the_program_goes_before_the_environment(environment, tmp_path, path):
    """Before or after the first event, `start` decides where the store is."""
    trace.start(tmp_path / "mine.db")
    Counted.emit(number=1)
    trace.stop()

    assert [1] == stored.numbers(tmp_path / "mine.db")
    assert not os.path.exists(path)


def test_the_store_of_the_environment_gives_way(environment, tmp_path, path):
    """What it had is in its file."""
    Counted.emit(number=1)
    trace.start(tmp_path / "mine.db")
    Counted.emit(number=2)
    trace.stop()

    assert [1] == stored.numbers(path)
    assert [2] == stored.numbers(tmp_path / "mine.db")


def test_one_that_cannot_be_used_is_said_once(environment, path):
    """Its events are counted, the run goes on, and a store of the program's own can be opened."""
    stored.query(path, "CREATE TABLE accounts (name)")
    before = stats()["store_dropped"]
    with stderr_lines() as lines:
        for number in range(3):
            Counted.emit(number=number)

    assert 3 == stats()["store_dropped"] - before
    [line] = lines
    assert f"TRACE FAIL {path} TraceFileError: {path} is a database of another application" in line
    trace.start(path + ".mine")
    Counted.emit(number=3)
    assert trace.flush()
    assert [3] == stored.numbers(path + ".mine")


def test_an_interrupt_while_it_ends(path):
    """A Ctrl-C reaches the program; the end of the process, or another call, waits again."""

    def interrupt():
        stored.eventually(lambda: store._closed)
        os.kill(os.getpid(), signal.SIGINT)

    trace.start(path)
    Counted.emit(number=1)
    store = _stores.current().store
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        Counted.emit(number=2)
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            trace.stop()
        interrupting.join()
        other.execute("COMMIT")

    trace.stop()

    assert [1, 2] == stored.numbers(path)
    assert [] == _stores._entries
    assert [] == stored.writers()


def test_one_fork_at_a_time(path):
    """What one has stopped, another would let go; and none is in the middle of a start."""
    trace.start(path)
    held = []

    _stores._before_fork()
    other = threading.Thread(target=lambda: held.append(not _stores._lock.acquire(blocking=False)))
    other.start()
    other.join()
    _stores._after_fork_in_parent()

    assert [True] == held
    trace.stop()


def test_a_fork_in_a_fork(path):
    """A signal's handler may fork while another fork waits; each lets go what it has stopped."""
    trace.start(path)
    Counted.emit(number=1)
    assert trace.flush()
    store = _stores.current().store

    _stores._before_fork()
    _stores._before_fork()
    _stores._after_fork_in_parent()
    Counted.emit(number=2)
    assert not store.flush(0.02)
    _stores._after_fork_in_parent()

    assert trace.flush()
    assert [1, 2] == stored.numbers(path)


def test_a_fork_waits_for_each_store(path, monkeypatch):
    """What is done around a fork is done with every open store, and undone."""
    trace.start(path)
    Counted.emit(number=1)
    assert trace.flush()
    before = _stores._lock
    monkeypatch.setattr(_stores, "_lock", before)

    _stores._before_fork()
    assert _stores.current().store._opened is None
    _stores._after_fork_in_parent()
    Counted.emit(number=2)
    assert trace.flush()
    trace.stop()
    trace.start(path)
    _stores._before_fork()
    _stores._after_fork_in_child()
    Counted.emit(number=3)
    trace.stop()

    assert [1, 2, 3] == stored.numbers(path)
    assert before is not _stores._lock
    # This is the parent as well, whose other threads go on with the lock that the fork has held.
    before.release()
