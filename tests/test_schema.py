"""
The file of a trace store: how it is made, opened, and what is left alone.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading

import pytest
import stored

from eventbus import _schema
from eventbus._errors import TraceFileError

fcntl = pytest.importorskip("fcntl", reason="the lock of a directory is POSIX")


@pytest.fixture
def path(tmp_path):
    """Return where a store may be."""
    return str(tmp_path / "runs.db")


def opened(path, durability="batched", **options):
    """Open a store for writing, close it, and return what was told of it."""
    found = _schema.open_to_write(path, durability, **options)
    found.connection.close()
    return found


def put(path, sql, *values):
    """Change a database with a connection of its own."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(sql, values)
        connection.commit()


def modes(directory):
    """Return the permissions of all files in a directory."""
    return {stat.S_IMODE(os.stat(one).st_mode) for one in os.scandir(directory)}


def test_it_says_what_it_is(path):
    """The header has the store's application id and version."""
    opened(path)

    assert [(0x65766274,)] == stored.query(path, "PRAGMA application_id")
    assert [(1,)] == stored.query(path, "PRAGMA user_version")


def test_it_has_its_tables(path):
    """Events, runs and losses, and a way back to the file system for what is deleted."""
    opened(path)

    tables = stored.query(
        path, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    )
    assert [("events",), ("runs",), ("losses",)] == tables
    assert [("wal",)] == stored.query(path, "PRAGMA journal_mode")
    assert [(2,)] == stored.query(path, "PRAGMA auto_vacuum")


@pytest.mark.parametrize(("durability", "level"), [("batched", 1), ("sync", 2)])
def test_how_a_commit_reaches_the_disk(path, durability, level):
    """With "sync" each commit is on the disk, otherwise each checkpoint."""
    found = _schema.open_to_write(path, durability)

    assert (level,) == found.connection.execute("PRAGMA synchronous").fetchone()
    found.connection.close()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_nobody_else_may_read_it(tmp_path, path, mask):
    """All files of a store have the mode 0600, whatever the umask."""
    before = os.umask(mask)
    try:
        found = _schema.open_to_write(path, "batched")
        found.connection.execute("INSERT INTO losses (timestamp, count, reason) VALUES (1, 1, '')")
    finally:
        os.umask(before)

    assert {"runs.db", "runs.db-wal", "runs.db-shm"} == set(os.listdir(tmp_path))
    assert {0o600} == modes(tmp_path)
    found.connection.close()


def test_nothing_else_is_left(tmp_path, path):
    """Neither a lock file nor the name under which it was made."""
    opened(path)

    assert ["runs.db"] == os.listdir(tmp_path)


def test_one_that_could_not_be_made_leaves_nothing(tmp_path, path, monkeypatch):
    """Half a store is never seen, and nothing of it stays."""

    def fault(sql):
        if "INDEX" in sql:
            raise sqlite3.OperationalError("no room")

    stored.faulty(monkeypatch, fault)
    with pytest.raises(sqlite3.OperationalError, match="no room"):
        _schema.open_to_write(path, "batched")

    assert [] == os.listdir(tmp_path)


def test_one_that_is_there_is_kept(path):
    """Opening a store again changes nothing in it."""
    first = opened(path)
    put(path, "INSERT INTO losses (timestamp, count, reason) VALUES (1, 2, 'full')")

    again = opened(path)

    assert first.identity == again.identity
    assert again.moved is None
    assert [(2, "full")] == stored.query(path, "SELECT count, reason FROM losses")


@pytest.mark.parametrize("content", [b"", b"not a database\n" * 100, b"SQLite"])
def test_what_is_no_database_is_moved_aside(tmp_path, path, content):
    """A file without bytes, or of another kind, is kept under another name, and a store is made."""
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o644)

    moved = opened(path).moved

    assert moved.startswith(path + ".corrupt-20")
    with open(moved, "rb") as file:
        assert content == file.read()
    assert {0o600} == modes(tmp_path)
    assert [] == stored.rows(path)


def test_what_is_moved_aside_does_not_replace_what_was(path):
    """Two in one second get two names."""
    moved = set()
    for content in (b"one", b"two", b"three"):
        with open(path, "wb") as file:
            file.write(content)
        moved.add(opened(path).moved)
        os.unlink(path)

    assert 3 == len(moved)


def test_a_corrupt_store_is_moved_with_its_log(path):
    """What a store's write-ahead log holds can be salvaged with it."""
    identity = opened(path).identity
    for suffix in ("-wal", "-journal"):
        with open(path + suffix, "w") as file:
            file.write("log")

    moved = opened(path, spoilt=identity).moved

    assert os.path.exists(moved + "-wal")
    assert os.path.exists(moved + "-journal")
    assert identity != opened(path).identity


def test_a_good_file_in_the_place_of_a_corrupt_one_is_kept(path):
    """Another process has moved the corrupt one aside already."""
    opened(path)

    assert opened(path, spoilt=(0, 0)).moved is None


def test_a_corrupt_database_of_another_application_is_left_alone(path):
    """Its header says whose it is."""
    put(path, "PRAGMA application_id = 7")
    put(path, "CREATE TABLE accounts (name)")

    with pytest.raises(TraceFileError, match="another application"):
        _schema.open_to_write(path, "batched", spoilt=_schema.identity_of(path))


@pytest.mark.parametrize(("application", "words"), [(7, "another application"), (0x65766274, "newer")])
def test_the_log_of_what_is_not_ours_is_left_alone(tmp_path, path, application, words):
    """SQLite would write it into the database when that is opened and closed again, and delete it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute("PRAGMA user_version = 2")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE accounts (name)")
        left = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)

    with pytest.raises(TraceFileError, match=words):
        _schema.open_to_write(path, "batched")

    assert left == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_header_that_breaks_off(path):
    """It is for SQLite to say that this is no database; then it is moved aside."""
    with open(path, "wb") as file:
        file.write(b"SQLite format 3\0")

    with pytest.raises(sqlite3.DatabaseError):
        _schema.open_to_write(path, "batched")

    assert opened(path, spoilt=_schema.identity_of(path)).moved is not None
    assert stored.is_sound(path)


def test_a_stale_log_is_not_taken_for_its_own(path):
    """The log of a file that was deleted does not reach the new one."""
    for suffix in ("-wal", "-shm", "-journal"):
        with open(path + suffix, "w") as file:
            file.write("of a file that is gone")

    opened(path)

    assert stored.is_sound(path)
    assert not os.path.exists(path + "-journal")


def test_a_newer_one_is_never_written_to(path):
    """The error names both versions and the fix."""
    opened(path)
    put(path, "PRAGMA user_version = 2")
    with open(path, "rb") as file:
        before = file.read()

    with pytest.raises(
        TraceFileError, match=r"newer eventbus \(version 2 of the store, this one knows 1\); update"
    ):
        _schema.open_to_write(path, "batched")

    with open(path, "rb") as file:
        assert before == file.read()


@pytest.mark.parametrize("sql", ["PRAGMA application_id = 7", "CREATE TABLE accounts (name)"])
def test_a_database_of_another_application_is_never_touched(path, sql):
    """The error says so; the file keeps its bytes."""
    put(path, sql)
    put(path, "CREATE TABLE more (name)")
    with open(path, "rb") as file:
        before = file.read()

    with pytest.raises(TraceFileError, match="a database of another application, and no trace store"):
        _schema.open_to_write(path, "batched")

    with open(path, "rb") as file:
        assert before == file.read()


def test_a_directory(tmp_path):
    """A directory is no place for a store."""
    with pytest.raises(TraceFileError, match="is no file"):
        _schema.open_to_write(str(tmp_path), "batched")


def test_no_directory(tmp_path):
    """A path that leads nowhere is told with the fix."""
    with pytest.raises(TraceFileError, match=r"no directory .*nowhere.* make it first"):
        _schema.open_to_write(str(tmp_path / "nowhere" / "runs.db"), "batched")


def test_a_file_in_the_place_of_the_directory(tmp_path):
    """It is no directory either."""
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "runs.db")

    assert _schema.identity_of(path) is None
    with pytest.raises(TraceFileError, match="no directory"):
        _schema.open_to_write(path, "batched")


def test_a_symbolic_link_leads_to_the_store(tmp_path, path):
    """A link may point to a store, and to where one is to be made."""
    link = tmp_path / "link.db"
    link.symlink_to("runs.db")

    first = opened(str(link))
    again = opened(str(link))

    assert path == first.path
    assert first.identity == again.identity
    assert link.is_symlink()
    assert {0o600} == modes(tmp_path)


def test_what_a_link_leads_to_is_not_moved(tmp_path, path):
    """Whoever may put a link there could have any file of ours moved away."""
    (tmp_path / "diary.txt").write_text("dear diary")
    os.symlink("diary.txt", path)

    with pytest.raises(TraceFileError, match="symbolic link and is no trace store; it is left alone"):
        _schema.open_to_write(path, "batched")

    assert "dear diary" == (tmp_path / "diary.txt").read_text()


def test_makers_keep_apart(tmp_path, path, monkeypatch):
    """While another process makes a store in the directory, it is waited for, and not for ever."""
    monkeypatch.setattr(_schema, "BUSY_SECONDS", 0.02)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    with pytest.raises(BlockingIOError, match=f"Another process has locked the directory {tmp_path}"):
        _schema.open_to_write(path, "batched")
    os.close(descriptor)

    assert opened(path).moved is None


def test_a_file_system_without_locks(path, monkeypatch):
    """A store is made without them."""

    def refuse(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)

    assert opened(path).moved is None


def test_many_make_one(path):
    """Eight threads open one store that is not there: they get the same one."""
    found = []
    barrier = threading.Barrier(8)

    def make():
        barrier.wait()
        found.append(opened(path).identity)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 8 == len(found)
    assert 1 == len(set(found))


def test_one_that_is_taken_away_at_once(path, monkeypatch):
    """It is an error that may clear, and not one of the file."""
    monkeypatch.setattr(_schema, "_make", lambda _path: None)

    with pytest.raises(FileNotFoundError, match="taken away"):
        _schema.open_to_write(path, "batched")


def test_reading_one(path):
    """A connection for reading sees what is there, and cannot write."""
    opened(path)
    put(path, "INSERT INTO losses (timestamp, count, reason) VALUES (1, 2, 'full')")

    with contextlib.closing(_schema.open_to_read(path)) as connection:
        assert [(2,)] == connection.execute("SELECT count FROM losses").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM losses")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "There is no trace store at .*; a program writes one with trace.start or EVENTBUS_TRACE"),
        (b"", "is empty"),
        (b"not a database\n" * 100, "cannot be read as a trace store"),
    ],
)
def test_reading_what_is_none(tmp_path, path, content, words):
    """The error says what is there; nothing is made or moved."""
    if content is not None:
        with open(path, "wb") as file:
            file.write(content)
    before = os.listdir(tmp_path)

    with pytest.raises(TraceFileError, match=words):
        _schema.open_to_read(path)

    assert before == os.listdir(tmp_path)


def test_reading_a_newer_one(path):
    """It is refused: its tables may mean something else."""
    opened(path)
    put(path, "PRAGMA user_version = 2")

    with pytest.raises(TraceFileError, match="newer"):
        _schema.open_to_read(path)
