"""
A terminal for tests: runs a program on a pseudo-terminal and returns what it wrote there.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

pty = pytest.importorskip("pty", reason="pseudo-terminals are a thing of Unix")

WIDTH = 80


class Done(NamedTuple):
    """
    What became of a program: its exit status, and what it wrote where.
    """

    status: int
    stdout: str
    stderr: str


def run(
    arguments: Sequence[str],
    *,
    cwd: Path,
    terminals: Sequence[str] = ("stdout", "stderr"),
    stdin: IO[Any] | int = subprocess.DEVNULL,
    meanwhile: Callable[[subprocess.Popen[bytes], str], bool] | None = None,
    **environment: str,
) -> Done:
    """
    Run Python with arguments, some of its streams being terminals of 80 columns, the others pipes.

    Args:
        arguments: What follows `python`.
        cwd: Where to run it.
        terminals: The streams that are terminals.
        stdin: Where it reads.
        meanwhile: Called with the process and what the first terminal (or else stdout) has shown so far,
            until it says True.
        **environment: Variables to set.

    """
    reading: dict[str, int] = {}
    writing: dict[str, int] = {}
    for name in ("stdout", "stderr"):
        reading[name], writing[name] = pty.openpty() if name in terminals else os.pipe()
    known = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "50"}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdin=stdin,
        env={**known, **environment},
        **writing,
    )
    for descriptor in writing.values():
        os.close(descriptor)
    shown = dict.fromkeys(reading, b"")
    watched = next(iter(terminals), "stdout")

    def tell() -> bool:
        # A read may end within a character.
        return meanwhile is not None and meanwhile(process, shown[watched].decode(errors="ignore"))

    try:
        _read_all(reading, shown, tell)
        status = process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for descriptor in reading.values():
            os.close(descriptor)
    return Done(status, *(shown[name].decode().replace("\r\n", "\n") for name in ("stdout", "stderr")))


def _read_all(reading: dict[str, int], shown: dict[str, bytes], meanwhile: Callable[[], bool]) -> None:
    with selectors.DefaultSelector() as selector:
        for name, descriptor in reading.items():
            selector.register(descriptor, selectors.EVENT_READ, name)
        told = False
        while selector.get_map():
            ready = selector.select(60)
            if not ready:
                return
            for key, _ in ready:
                try:
                    data = os.read(key.fd, 65536)
                except OSError:
                    # How a terminal tells that the program has let go of it.
                    data = b""
                shown[key.data] += data
                if not data:
                    selector.unregister(key.fd)
            told = told or meanwhile()


def plain(text: str) -> str:
    """
    Return text without colours and cursor movements.
    """
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
