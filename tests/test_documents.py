"""
README, docs and CHANGELOG: every snippet runs, every link leads somewhere, every list is complete.
"""

import ast
import doctest
import functools
import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
import run_document

import eventbus
from eventbus import catalog

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [README, CHANGELOG, *DOCS]

LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")


def named(path: Path) -> str:
    """
    Name a document as tests do.
    """
    return path.relative_to(ROOT).as_posix()


@functools.cache
def outcomes(path: Path) -> dict[int, str | None]:
    """
    Run a document once, whichever of its blocks is asked for first.
    """
    # A reader has neither settings of ours nor options of a test run around his own.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("EVENTBUS_", "PYTEST_"))
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(run_document.__file__)), str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return {outcome["line"]: outcome["problem"] for outcome in json.loads(done.stdout)}


BLOCKS = [
    pytest.param(path, example.line, id=f"{named(path)}:{example.line}")
    for path in (README, *DOCS)
    for example in run_document.blocks(path, None)
]


@pytest.mark.parametrize(("path", "line"), BLOCKS)
def test_a_snippet_does_what_the_document_says(path: Path, line: int) -> None:
    """
    A snippet runs, after those before it, and writes what the document shows.
    """
    problem = outcomes(path)[line]

    assert problem is None, problem


def test_what_differs_is_told() -> None:
    """
    The comparison passes over times and generated ids, and over nothing else.
    """
    line = "2026-01-31T12:00:00.250Z 0123456789abcdef0123456789abcdef INF START agent=sundae"
    other = "2027-01-31T12:00:00.251Z f123456789abcdef0123456789abcdef INF START agent=sundae"

    assert run_document.differs(line, other) is None
    assert run_document.differs(f"{line}\n...\nend", f"{other}\na\nb\nend") is None
    assert run_document.differs(line, other.replace("START", "DONE")) is not None
    assert run_document.differs(line, f"{other}\nmore") is not None


MODULES = ["eventbus", *(f"eventbus.{module.name}" for module in pkgutil.iter_modules(eventbus.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_hold(name: str) -> None:
    """
    What a docstring shows after `>>>` is what comes out.
    """
    pytest.importorskip(name, reason="its extra is not installed", exc_type=ImportError)

    assert doctest.testmod(importlib.import_module(name)).failed == 0


def prose(path: Path) -> str:
    """
    Return a document without its code blocks.
    """
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """
    Return the anchors that a renderer gives the headings of a document.
    """
    headings = HEADING.findall(prose(path))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_to_what_is_there(path: Path) -> None:
    """
    A link within the project names a file that exists, and a heading that the file has.
    """
    broken: list[str] = []
    for link in LINK.findall(CODE.sub("", prose(path))):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = path if not file else (path.parent / file).resolve()
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert [] == broken


def test_every_document_is_reachable_from_the_readme() -> None:
    """
    README links to every page of the docs.
    """
    linked = {link.partition("#")[0] for link in LINK.findall(prose(README))}

    assert {named(path) for path in DOCS} <= linked


@pytest.mark.parametrize("name", ["main", "test"])
def test_ci_runs_the_commands_of_the_readme(name: str) -> None:
    """
    CI takes each of the two commands from README, where it stands on one line.
    """
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    shown = subprocess.run(
        [ROOT / ".ci" / "readme-command", name], capture_output=True, text=True, check=True
    ).stdout.strip()

    assert f"<!-- {name}-command -->\n```sh\n{shown}\n```\n" in README.read_text(encoding="utf-8")
    assert f".ci/readme-command {name}" in script
    assert shown not in script


def rows(path: Path, heading: str, column: int = 0) -> dict[str, list[str]]:
    """
    Return the cells of the tables under a heading, by the code in one of them; a row may have several.
    """
    text = path.read_text(encoding="utf-8")
    start = re.search(rf"^#+ {re.escape(heading)} *$", text, re.MULTILINE)
    assert start is not None, f"{named(path)} has no heading {heading!r}"
    section = re.split(r"^#{1,6} ", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    found: dict[str, list[str]] = {}
    for row in section.splitlines():
        if row.startswith("| "):
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            for name in re.findall(r"`([^`]+)`", cells[column]):
                found[name] = cells
    return found


@pytest.mark.parametrize("path", [README, ROOT / "docs" / "configuration.md"], ids=named)
def test_the_configuration_table_is_complete(path: Path) -> None:
    """
    The table has a row for each option of `configure`, and no other.
    """
    options = inspect.signature(eventbus.configure).parameters

    assert set(options) == set(rows(path, "Configuration"))


def test_the_catalog_table_is_complete() -> None:
    """
    The table has a row for each event of the catalog, with its channel and its readers.
    """
    expected: dict[str, tuple[str, list[str]]] = {}
    for name in catalog.__all__:
        cls: Any = getattr(catalog, name)
        readers = [f.name for f in attrs.fields(cls) if f.name not in {"correlation_id", "timestamp", "run"}]
        expected[name] = (cls.channel, sorted(readers))
    table = {
        name: (cells[1].strip("`"), sorted(re.findall(r"`([^`]+)`", cells[2])))
        for name, cells in rows(ROOT / "docs" / "events.md", "The catalog").items()
    }

    assert expected == table


def test_the_catalog_table_marks_what_ends_a_run() -> None:
    """
    The rows of the events that end a run carry a dagger, and no others do.
    """
    ending = {name for name in catalog.__all__ if getattr(catalog, name).ends_run}
    table = rows(ROOT / "docs" / "events.md", "The catalog")

    assert ending == {name for name, cells in table.items() if "†" in cells[0]}


def lines_of(path: Path, heading: str) -> dict[str, tuple[str, str]]:
    """
    Return the log lines in a table, with the event and the level of each.
    """
    table = rows(path, heading)
    return {line: (cells[1].strip("`"), cells[2]) for line, cells in table.items()}


def test_the_grammar_table_is_complete() -> None:
    """
    The table has a line for each event that writes one, beginning with its words and at its level.
    """
    expected: set[tuple[str, str, str]] = set()
    samples = {
        "agent": "sundae",
        "tool_call": eventbus.ToolCall("call_0", "lookup_order"),
        "name": "fetch",
    }
    for name in catalog.__all__:
        cls: Any = getattr(catalog, name)
        fields = {field.name for field in attrs.fields(cls)}
        event = cls(**{key: value for key, value in samples.items() if key in fields})
        level = event._level() if hasattr(event, "_level") else cls.log_level
        if cls.log_line is not eventbus.Event.log_line:
            expected.add((" ".join(event._line().words), name, level))
    table = {
        (" ".join(eventbus.parse_line(f"1970-01-01T00:00:00.000Z run-1 {line}").words[:2]), event, level)
        for line, (event, level) in lines_of(ROOT / "docs" / "logging.md", "The line").items()
    }

    assert set() == expected - table


def test_the_readme_has_no_line_of_its_own() -> None:
    """
    Each line in README's table is one of the whole grammar's.
    """
    whole = lines_of(ROOT / "docs" / "logging.md", "The line")

    assert lines_of(README, "The log").items() <= whole.items()


def modules_in_order() -> list[str]:
    """
    Return the modules as the architecture's table has them, from the foundations up.
    """
    return list(rows(ROOT / "docs" / "architecture.md", "Architecture", column=1))


def imports_of(path: Path) -> set[str]:
    """
    Return the modules of the package that a module imports when it runs, at the top or later.
    """
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
        waiting += ast.iter_child_nodes(node)
    return found


def test_imports_point_the_way_the_architecture_says() -> None:
    """
    The architecture's table has every module, and none imports one that stands after it.
    """
    package = Path(eventbus.__file__).parent
    order = modules_in_order()
    present = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    upwards = {
        name: sorted(above)
        for index, name in enumerate(order)
        if (above := imports_of(package / f"{name}.py") - set(order[:index]))
    }

    assert present == set(order)
    assert {} == upwards


def test_every_public_name_is_documented() -> None:
    """
    README or docs say something about each name that can be imported from `eventbus`.
    """
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in (README, *DOCS))))

    assert set() == set(eventbus.__all__) - words


def test_the_changelog_has_this_version() -> None:
    """
    The version that is built has its section in the CHANGELOG.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert re.search(rf"^## \[{re.escape(project['version'])}\]", CHANGELOG.read_text(encoding="utf-8"), re.M)
