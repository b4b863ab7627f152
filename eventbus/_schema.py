"""
The file of the trace store: its tables, its identity and version, and how it is opened, made and set aside.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from ._errors import TraceFileError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where makers of one file are not kept apart
    fcntl = None  # type: ignore[assignment]  # its absence is asked for

Durability: TypeAlias = Literal["batched", "sync"]
Identity: TypeAlias = tuple[int, int]

APPLICATION_ID: Final = 0x65766274
"""What the header of a store says it is: `evbt`."""

VERSION: Final = 1
"""The version of the tables, in the file's `user_version`."""

BUSY_SECONDS: Final = 0.25
"""How long one database call waits for another process's lock; a fork may have to wait as long."""

POLL_SECONDS: Final = 0.005

CHECKPOINT_PAGES: Final = 1_000
WAL_BYTES: Final = 16 * 1024 * 1024
"""To how much the write-ahead log is cut back once all of it is in the database."""

_MAGIC: Final = b"SQLite format 3\0"
_HEADER: Final = 100
_SUFFIXES: Final = ("-wal", "-journal")

TABLES: Final = """
CREATE TABLE events (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    cid       TEXT,
    timestamp REAL NOT NULL,
    channel   TEXT NOT NULL,
    event     TEXT NOT NULL,
    span_id   TEXT,
    agent     TEXT,
    tool      TEXT,
    duration  REAL,
    lossy     INTEGER NOT NULL,
    payload   TEXT NOT NULL
);
CREATE INDEX events_by_cid ON events (cid, seq);
CREATE INDEX events_by_tool ON events (tool, cid) WHERE tool IS NOT NULL;
CREATE TABLE runs (
    cid       TEXT PRIMARY KEY,
    parent_id TEXT,
    agent     TEXT,
    status    TEXT,
    started   REAL NOT NULL,
    updated   REAL NOT NULL,
    ended     REAL,
    duration  REAL,
    message   TEXT,
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    events    INTEGER NOT NULL,
    failures  INTEGER NOT NULL,
    refusals  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_start ON runs (started);
CREATE INDEX runs_by_agent ON runs (agent, started);
CREATE INDEX runs_by_status ON runs (status, started);
CREATE INDEX runs_by_parent ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE TABLE losses (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    timestamp REAL NOT NULL,
    count     INTEGER NOT NULL,
    reason    TEXT NOT NULL
);
"""

COLUMNS: Final = (
    "cid",
    "timestamp",
    "channel",
    "event",
    "span_id",
    "agent",
    "tool",
    "duration",
    "lossy",
    "payload",
)
"""The columns of an event that the writer gives, in the order of a row."""


class Connection(sqlite3.Connection):
    """
    The class of the connections that write; tests put one of their own here.
    """


class Opened(NamedTuple):
    """
    A store that can be written to.

    Attributes:
        connection: The connection.
        path: The file itself, no symbolic link.
        identity: Device and inode of the file, by which a replaced one is told.
        moved: Where what stood in its place has been moved to; None if nothing did.
    """

    connection: sqlite3.Connection
    path: str
    identity: Identity
    moved: str | None


def identity_of(path: str) -> Identity | None:
    """
    Return the device and inode of a file; None if it is not there.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def open_to_write(path: str, durability: Durability, *, spoilt: Identity | None = None) -> Opened:
    """
    Open a store, made anew if there is none.

    What is no database, has no bytes, or is the spoilt file, is moved aside to `<name>.corrupt-<time>`.

    Args:
        path: The absolute path of the file.
        durability: "sync" has each commit reach the disk.
        spoilt: The file that was found corrupt.

    Returns:
        The connection and what had to be done; any thread may use it, one at a time.

    Raises:
        TraceFileError: If there is something that must not be touched: a database of another application
            or of a newer version, a directory, or, behind a symbolic link, what is no store.
        OSError, sqlite3.Error: If it cannot be done now.
    """
    path, linked = os.path.realpath(path), os.path.islink(path)
    if not os.path.isdir(os.path.dirname(path)):
        msg = f"There is no directory {os.path.dirname(path)} for a trace store; make it first."
        raise TraceFileError(msg)
    with _makers_apart(os.path.dirname(path)):
        moved = _set_aside(path, spoilt, linked=linked)
        if not os.path.lexists(path):
            _make(path)
        identity = identity_of(path)
    if identity is None:
        msg = f"The trace store {path} was taken away while it was opened."
        raise FileNotFoundError(msg)
    connection = _connect(path, "rw", Connection)
    try:
        _check(connection, path)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'sync' else 'NORMAL'}")
        # What a query sorts holds payloads, and is to be in no file of its own.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}").fetchall()
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
    except BaseException:
        connection.close()
        raise
    return Opened(connection, path, identity, moved)


def open_to_read(path: str, *, immutable: bool = False) -> sqlite3.Connection:
    """
    Open a store that is there, for reading only.

    Args:
        path: The path of the file.
        immutable: Take it as it stands, without a look at its write-ahead log: nobody is writing.

    Returns:
        A connection that refuses to write; it waits five seconds for a lock.

    Raises:
        TraceFileError: If there is no file, or what is there is no trace store, or a newer one, or corrupt.
    """
    path = os.path.realpath(path)
    try:
        if not os.path.isfile(path):
            msg = (
                f"There is no trace store at {path}; a program writes one with trace.start or EVENTBUS_TRACE."
            )
            raise TraceFileError(msg)
        if os.path.getsize(path) == 0:
            msg = f"{path} is empty, and no trace store."
            raise TraceFileError(msg)
        mode = "ro&immutable=1" if immutable else "ro"
        connection = _connect(path, mode, sqlite3.Connection, timeout=5.0)
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, TraceFileError):
            raise
        msg = f"{path} cannot be read as a trace store: {error}."
        raise TraceFileError(msg) from error


def _connect(
    path: str, mode: str, factory: type[sqlite3.Connection], timeout: float = BUSY_SECONDS
) -> sqlite3.Connection:
    # Never a mode that creates: SQLite would do that with what the umask leaves.
    return sqlite3.connect(
        # Not `as_uri`, which imports at need what a process may have given up the right to read.
        f"file:///{quote(os.fsencode(Path(path).as_posix()).lstrip(b'/'), safe='/:')}?mode={mode}",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        factory=factory,
    )


def _check(connection: sqlite3.Connection, path: str) -> None:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    _check_identity(path, application, version)


def _check_identity(path: str, application: int, version: int) -> None:
    if application != APPLICATION_ID:
        msg = f"{path} is a database of another application, and no trace store; give another path."
        raise TraceFileError(msg)
    if version > VERSION:
        msg = (
            f"{path} was written by a newer eventbus (version {version} of the store, this one knows "
            f"{VERSION}); update eventbus, or give another path."
        )
        raise TraceFileError(msg)


@contextlib.contextmanager
def _makers_apart(directory: str) -> Generator[None]:
    # Two processes that make, or move aside, one file at a time would each take the other's for stale.
    if fcntl is None:  # pragma: no cover - Windows, where makers of one file are not kept apart
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    msg = f"Another process has locked the directory {directory} to make a trace store in it."
                    raise BlockingIOError(msg) from None
                time.sleep(POLL_SECONDS)
            except OSError:
                # A file system without such locks leaves it to chance.
                break
            else:
                break
        yield
    finally:
        os.close(descriptor)


def _set_aside(path: str, spoilt: Identity | None, *, linked: bool) -> str | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        msg = f"{path} is no file, and cannot be a trace store; give the path of a file."
        raise TraceFileError(msg)
    with open(path, "rb") as file:
        header = file.read(_HEADER)
    if header.startswith(_MAGIC):
        if len(header) == _HEADER:
            # Before SQLite opens it: that would write what is left in its write-ahead log into it.
            version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
            _check_identity(path, application, version)
        if (found.st_dev, found.st_ino) != spoilt:
            return None
    if linked:
        msg = f"{path} is reached by a symbolic link and is no trace store; it is left alone."
        raise TraceFileError(msg)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target, number = f"{path}.corrupt-{stamp}", 1
    while os.path.lexists(target):
        number += 1
        target = f"{path}.corrupt-{stamp}-{number}"
    os.chmod(path, 0o600)
    os.rename(path, target)
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, target + suffix)
    return target


def _make(path: str) -> None:
    # Made under another name, and whole before it has its own: nobody sees half a store.
    descriptor, temporary = tempfile.mkstemp(prefix=".eventbus-", dir=os.path.dirname(path))
    try:
        os.close(descriptor)
        # SQLite gives its other files the mode of this one, of which the umask may have left less.
        os.chmod(temporary, 0o600)
        connection = _connect(temporary, "rw", Connection)
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in TABLES.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        finally:
            connection.close()
        for suffix in ("-shm", *_SUFFIXES):
            # Of a file that was deleted: SQLite would take them for this one's.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)
        os.rename(temporary, path)
    finally:
        for suffix in ("", "-shm", *_SUFFIXES):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary + suffix)
