"""What type checkers accept and refuse: typing/*ok.py has no error, *bad.py one on each marked line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"
OK, BAD = sorted(HERE.glob("*ok.py")), sorted(HERE.glob("*bad.py"))
MARK = "# error"


def check(*arguments: str) -> str:
    """Run a type checker on these files, with the repository's settings, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments, *map(str, [*OK, *BAD])],
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 1 == done.returncode, done.stdout + done.stderr
    return done.stdout


def mypy(cache: Path) -> set[tuple[str, int]]:
    """Return the files and lines in which mypy finds errors."""
    told = check("mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache))
    found = [line.split(":", 3) for line in told.splitlines()]
    return {(Path(file).name, int(line)) for file, line, kind, _ in found if kind == " error"}


def pyright(_cache: Path) -> set[tuple[str, int]]:
    """Return the files and lines in which pyright finds errors."""
    told = json.loads(check("pyright", "--outputjson", "--pythonpath", sys.executable))
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in told["generalDiagnostics"]
        if one["severity"] == "error"
    }


@pytest.fixture(scope="module", params=[mypy, pyright])
def errors(request, tmp_path_factory):
    """Give the errors of one type checker."""
    pytest.importorskip(request.param.__name__)
    return request.param(tmp_path_factory.mktemp("cache"))


def test_what_is_right_is_accepted(errors):
    """Neither checker finds an error in a file of what is right."""
    names = {file.name for file in OK}

    assert set() == {(file, line) for file, line in errors if file in names}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_each_mistake_is_an_error(errors, bad):
    """Both checkers find an error on each marked line of a file of mistakes."""
    marked = {number for number, line in enumerate(bad.read_text().splitlines(), 1) if line.endswith(MARK)}

    assert marked == {line for file, line in errors if file == bad.name}


def test_only_the_named_files_are_looked_at(errors):
    """No error is found in the package itself on the way."""
    assert {bad.name for bad in BAD} == {file for file, _ in errors}
