"""
What several test modules need of trace stores: what is in a file, faults in its database, processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from eventbus import Event, _schema, _writer

PATIENCE = 30.0
"""Seconds that a store may take for what it does in milliseconds; a test that needs them all has hung."""


class Counted(Event):
    """An event with a number."""

    who: str = ""
    number: int = 0


def query(path: Any, sql: str, *values: Any) -> list[Any]:
    """Return what a query finds in a file, with a connection of its own that is closed again."""
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        return connection.execute(sql, values).fetchall()


def rows(path: Any) -> list[dict[str, Any]]:
    """Return the events of a store, by sequence, each as a dict with its payload decoded."""
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute("SELECT * FROM events ORDER BY seq")]
    return [{**row, "payload": json.loads(row["payload"])} for row in found]


def numbers(path: Any, who: str = "") -> list[int]:
    """Return the numbers of the Counted events, by sequence, of one emitter."""
    payloads = [row["payload"] for row in rows(path)]
    return [payload["number"] for payload in payloads if payload.get("who") == who]


def runs(path: Any) -> list[dict[str, Any]]:
    """Return the runs of a store, by their first sequence."""
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM runs ORDER BY first_seq")]


def is_sound(path: Any) -> bool:
    """Tell whether SQLite finds nothing wrong with a file, and its table of runs agrees with its events."""
    checked = query(path, "PRAGMA integrity_check") == [("ok",)]
    counted = query(path, "SELECT cid, count(*) FROM events WHERE cid IS NOT NULL GROUP BY cid ORDER BY cid")
    return checked and counted == query(path, "SELECT cid, events FROM runs ORDER BY cid")


def eventually(condition) -> None:
    """Wait until a condition holds, which other threads or processes bring about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.002)


def writers() -> list[threading.Thread]:
    """Return the threads that write stores."""
    return [thread for thread in threading.enumerate() if thread.name == "eventbus-trace"]


def descriptors() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def impatient(monkeypatch) -> None:
    """Let stores try again soon after a failure, and call it one soon."""
    monkeypatch.setattr(_writer, "RETRY_SECONDS", 0.002)
    monkeypatch.setattr(_writer, "MAX_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(_writer, "PATIENCE", 0.0)
    monkeypatch.setattr(_schema, "BUSY_SECONDS", 0.01)


def faulty(monkeypatch, fault) -> None:
    """Have `fault(sql)` called before each call of the database, which may raise in its place."""

    class Faulty(_schema.Connection):
        def execute(self, sql, *values):
            fault(sql)
            return super().execute(sql, *values)

        def rollback(self):
            fault("ROLLBACK")
            super().rollback()

        def close(self):
            try:
                fault("close")
            finally:
                super().close()

    monkeypatch.setattr(_schema, "Connection", Faulty)


PRELUDE = """
import os, sys, threading, time
from eventbus import *
from eventbus import trace
configure(log=None)

class Counted(Event):
    who: str = ""
    number: int = 0

"""


def start(code: str, *arguments: Any, env: dict[str, str] | None = None, **options: Any) -> Any:
    """Start a process that runs code behind PRELUDE, with `sys.argv[1:]` as given."""
    merged = {key: value for key, value in os.environ.items() if not key.startswith("EVENTBUS_")} | (
        env or {}
    )
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + code, *map(str, arguments)],
        env=merged,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process: Any) -> tuple[int, str, str]:
    """Wait for a process, and return its exit status and what it wrote."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def run(code: str, *arguments: Any, **options: Any) -> tuple[int, str, str]:
    """Run code in a process of its own."""
    return finish(start(code, *arguments, **options))


def program(directory: Path, code: str) -> Path:
    """Write a program to a file, for what a process of multiprocessing must be able to import."""
    path = directory / "program.py"
    path.write_text(PRELUDE + code, encoding="utf-8")
    return path
