"""Each example is short and does what its docstring says: what it prints, and what it logs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from eventbus import parse_line

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
LONGEST = 60


def told(example: Path) -> tuple[str, list[str] | None]:
    """Return what a docstring says is printed (its first block), and what is logged (after "Logs")."""
    paragraphs = (ast.get_docstring(ast.parse(example.read_text())) or "").split("\n\n")
    blocks = [
        (before, textwrap.dedent(block)) for before, block in pairwise(paragraphs) if block.startswith("    ")
    ]
    logged = [block.splitlines() for before, block in blocks if before.startswith("Logs")]
    return blocks[0][1] + "\n", logged[0] if logged else None


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.stem)
def example(request):
    """Give an example and what came of running it as a user does, away from any terminal."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("EVENTBUS_")}
    done = subprocess.run(
        [sys.executable, str(request.param)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    return request.param, done


def test_an_example_prints_what_it_says(example):
    """The output is the first block of the docstring, to the letter."""
    path, done = example

    assert (told(path)[0], 0) == (done.stdout, done.returncode), done.stderr


def test_an_example_logs_what_it_says(example):
    """The lines on stderr are the docstring's, after their timestamps; where it has none, they are lines."""
    path, done = example
    lines = done.stderr.splitlines()
    expected = told(path)[1]

    assert lines == [line for line in lines if parse_line(line)]
    if expected is not None:
        assert expected == [line.split(" ", 1)[1] for line in lines]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    """An example has sixty lines at most, blank ones apart."""
    assert LONGEST >= len([line for line in path.read_text().splitlines() if line.strip()])


@pytest.mark.parametrize(
    "closed", ["sys.stdin.close()", "sys.stdin = None", "sys.stdin.isatty = lambda: True"]
)
def test_an_approval_without_anybody_there(closed):
    """The approval gate refuses where stdin is closed, missing, or at its end."""
    [path] = [path for path in EXAMPLES if path.stem == "approval"]
    stdin = "import io, sys; sys.stdin = io.TextIOWrapper(io.BytesIO())"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{stdin}; {closed}; import runpy; runpy.run_path({str(path)!r}, None, '__main__')",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert "process_refund: nobody is there to approve process_refund" in done.stdout
