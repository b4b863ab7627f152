"""
The tables of the contract's statements and of the guarantees: each names tests by their ids, and each exists.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROW = re.compile(r"^\| (?P<section>\d+|case \d+) \| (?P<statement>(?:[^|\\]|\\.)+) \| (?P<tests>[^|]+) \|$")
TEST = re.compile(r"`(test_\w+\.py)::((?:Test\w+::)?test_\w+)`")


def rows():
    """Return the rows of the table, as they stand."""
    lines = (TESTS / "STATEMENTS.md").read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|---"))
    return [line for line in lines[start + 1 :] if line.strip()]


def place(section):
    """Return what sections are sorted by: the contract's first, then the cases."""
    return (section.startswith("case"), int(section.removeprefix("case ")))


@functools.cache
def defined_in(path):
    """Return the ids of the tests in a file, as pytest takes them below its name: methods with the class."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        prefix, inner = (f"{node.name}::", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        found |= {
            f"{prefix}{each.name}"
            for each in inner
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name.startswith("test_")
        }
    return found


@pytest.mark.parametrize("row", rows())
def test_each_row_names_tests_that_exist(row):
    """A row has a section, a statement and at least one test; every test it names is there."""
    match = ROW.match(row)
    assert match, "a row reads: | section | statement | `test_file.py::TestClass::test_name`, ... |"
    named = TEST.findall(match["tests"])
    assert named
    assert match["tests"] == ", ".join(f"`{file}::{name}`" for file, name in named)
    assert [] == [f"{file}::{name}" for file, name in named if name not in defined_in(TESTS / file)]


def test_rows_are_sorted_by_section():
    """Those of one section stand together."""
    places = [place(match["section"]) for row in rows() if (match := ROW.match(row))]
    assert sorted(places) == places


def test_no_statement_twice():
    """A statement has one row."""
    statements = [(match["section"], match["statement"]) for row in rows() if (match := ROW.match(row))]
    assert len(set(statements)) == len(statements)


def guarantees():
    """Return the rows of the guarantees, as they stand."""
    lines = (TESTS.parent / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| when ")]


@pytest.mark.parametrize("row", guarantees())
def test_each_guarantee_names_tests_that_exist(row):
    """A guarantee says when, what then, and by which tests it is shown; they are there."""
    cells = row.strip("| ").split(" | ")
    assert 3 == len(cells)
    named = TEST.findall(cells[2])
    assert named
    assert cells[2] == ", ".join(f"`{file}::{name}`" for file, name in named)
    assert [] == [f"{file}::{name}" for file, name in named if name not in defined_in(TESTS / file)]
