"""
The trace store: every observed event, durably, in an SQLite file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, cast

from . import _stores
from ._errors import AmbiguousRunError, TraceFileError, UnknownRunError
from ._reader import StoredEvent, StoredRun, ToolStats, TraceReader, TraceStats
from ._retention import Retention

if TYPE_CHECKING:
    from ._schema import Durability

__all__ = [
    "AmbiguousRunError",
    "Retention",
    "StoredEvent",
    "StoredRun",
    "ToolStats",
    "TraceFileError",
    "TraceReader",
    "TraceStats",
    "UnknownRunError",
    "flush",
    "open",
    "start",
    "stop",
]

_DURABILITIES: Final = ("batched", "sync")


def start(
    path: str | os.PathLike[str],
    durability: Durability = "batched",
    retention: Retention | None = None,
) -> None:
    """
    Store every observed event from now on in an SQLite file, which is made at need.

    It belongs to the bus as it is now: inside `testing.isolated()`, to the one inside. A store that
    `EVENTBUS_TRACE` has opened gives way to it.

    Args:
        path: The file; its directory exists.
        durability: "batched": events are written by a thread, some milliseconds later. "sync": an emit
            returns when its event is on the disk.
        retention: What is deleted in time; None keeps everything.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `durability` is another word.
        RuntimeError: If a store is open already.
        TraceFileError: If there is no such directory, or the file is a database of another application or of
            a newer version; neither is touched. What may clear by itself, such as a full disk, is no error:
            the store goes on trying, and counts what it has to drop.
    """
    where = os.fspath(path)
    if not isinstance(cast("object", where), str):
        msg = f"`path` must be a str or a path, not {path!r}."
        raise TypeError(msg)
    if durability not in _DURABILITIES:
        msg = f"`durability` must be one of {', '.join(_DURABILITIES)}, not {durability!r}."
        raise ValueError(msg)
    if retention is not None and not isinstance(cast("object", retention), Retention):
        msg = f"`retention` must be a Retention or None, not {retention!r}."
        raise TypeError(msg)
    _stores.start(os.path.abspath(where), durability, retention, by_environment=False)


def stop() -> None:
    """
    Commit what is waiting, within five seconds, and close the store; without one, do nothing.

    What is emitted afterwards is counted, as `store_dropped`, and not stored.
    """
    _stores.stop()


def flush(timeout: float = 5.0) -> bool:
    """
    Wait until everything that was emitted so far is committed.

    Args:
        timeout: Seconds to wait at most.

    Returns:
        Whether it is, or was counted as dropped. True without a store.
    """
    entry = _stores.current()
    return entry is None or entry.store.flush(timeout)


def open(path: str | os.PathLike[str]) -> TraceReader:  # noqa: A001 - as `gzip.open` and `tarfile.open`
    """
    Open a trace store for reading, also while others are writing it.

    Args:
        path: The file.

    Returns:
        A context manager that closes it; it belongs to this thread.

    Raises:
        TraceFileError: If there is no such file, or it is no trace store, a newer one, or damaged.
    """
    return TraceReader(path)
