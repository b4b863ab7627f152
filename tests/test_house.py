"""
Rules of the house that no linter knows.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "eventbus"
SOURCES = [path for place in (PACKAGE, ROOT / "examples") for path in sorted(place.glob("*.py"))]

IGNORE = re.compile(r"# (?:noqa|type: ignore|pyright: |pragma: )")
WITH_REASON = re.compile(
    r"(?:noqa: [A-Z0-9, ]+ - |(?:ignore|pyright: ignore)\[[^\]]+\]  # |pragma: no \w+ - )\w"
)


def unexplained(source: str) -> list[str]:
    """
    Return the lines that silence a tool without saying why.
    """
    return [line for line in source.splitlines() if IGNORE.search(line) and not WITH_REASON.search(line)]


@pytest.mark.skipif(not PACKAGE.is_dir(), reason="there is no checkout beside these tests")
def test_every_ignore_carries_its_reason() -> None:
    """
    Whoever silences a linter, a type checker or the coverage says why on the same line.
    """
    lines = {path.name: found for path in SOURCES if (found := unexplained(path.read_text(encoding="utf-8")))}

    assert {} == lines


def test_an_ignore_without_a_reason_is_found() -> None:
    """
    A code is no reason.
    """
    bare = [
        "x = 1  # noqa: E501",
        "x = 1  # type: ignore[misc]",
        "x = 1  # pragma: no cover",
        "x = 1  # noqa",
    ]
    told = ["x = 1  # noqa: E501 - a table", "x = 1  # type: ignore[misc]  # made by attrs"]

    assert bare == unexplained("\n".join([*bare, *told]))
