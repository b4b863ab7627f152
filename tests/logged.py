"""
What several test modules need to look at log lines: a live EventLogger, its lines, errors with known frames.
"""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from typing import Any

from eventbus import EventLogger

NOON = 1769860800.25
STAMP = "2026-01-31T12:00:00.250Z"
CID = "4bf92f3577b34da6a3ce929d0e0e4736"
AT = {"timestamp": NOON, "correlation_id": CID}
HEAD = f"{STAMP} {CID} "

FRAMES = "(tools.py:9 in run < agent.py:30 in act < app.py:4 in main)"
_FILES = [("tools.py", 9, "run"), ("agent.py", 30, "act"), ("app.py", 4, "main")]

SECRET = "hunter2canary"


def _stack():
    inner: Any = None
    for file, line, name in _FILES:
        before = "\n" * (line - 2)
        body = "raise error" if inner is None else "inner(error)"
        code = compile(f"{before}def {name}(error):\n {body}\n", file, "exec")
        scope: dict[str, Any] = {"inner": inner}
        exec(code, scope)
        inner = scope[name]
    return inner


raise_in_tools = _stack()
"""Raises its argument in tools.py:9, called from agent.py:30, called from app.py:4."""


def raised(error: BaseException) -> BaseException:
    """Return the error once it was raised, so that its line ends in FRAMES."""
    with contextlib.suppress(type(error)):
        raise_in_tools(error)
    return error


@contextlib.contextmanager
def stderr_lines():
    """Make EventLogger live and yield a list that has, afterwards, what was written to stderr, by line."""
    EventLogger.register()
    found: list[str] = []
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        yield found
    # Not splitlines, which would split at what must not be in a line.
    *lines, rest = stream.getvalue().split("\n")
    assert "" == rest
    found += lines


def lines_of(emit) -> list[str]:
    """Return the lines that a function's emits write to stderr."""
    with stderr_lines() as found:
        emit()
    return found


def line_of(event) -> str:
    """Return the one line of an event."""
    [line] = lines_of(event.publish)
    return line


class Records(logging.Handler):
    """Keeps the records it handles."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def stdlib_logger(*handlers: logging.Handler) -> logging.Logger:
    """Return a logger of its own that nobody else knows."""
    logger = logging.Logger("app", logging.DEBUG)
    for handler in handlers:
        logger.addHandler(handler)
    return logger


def run(code: str, /, *, env: dict[str, str] | None = None, **options: Any) -> Any:
    """Run Python code in a process of its own, without what EVENTBUS_LOG this one may have."""
    import os

    merged = {key: value for key, value in os.environ.items() if key != "EVENTBUS_LOG"} | (env or {})
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(
        [sys.executable, "-c", code], env=merged, text=True, timeout=60, check=False, **options
    )
