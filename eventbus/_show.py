"""
What the commands print: plain columns through a pipe, tables on a terminal, JSON where it is asked for.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ._lines import escape
from ._plain import CUT

Row: TypeAlias = Sequence[str]

_BAD: Final = frozenset({"lines not replayed", "failed", "times"})
"""What is red unless it is 0."""

_NAME: Final = 40
_LONG_NAME: Final = 64
"""The same, where only one number follows."""

_FACT: Final = 18
_FACT_NUMBER: Final = 9
"""Room for the names of single numbers, and for the numbers, so that where they stand is always the same."""

_PLACE: Final = 36


class Counts(NamedTuple):
    """
    Names and their numbers.

    Attributes:
        headings: One of the name, then one of each number.
        rows: A name and its numbers, each.
    """

    headings: Row
    rows: Sequence[tuple[str, Sequence[int]]]


def is_terminal(stream: Any) -> bool:
    """
    Tell whether a stream is a terminal; None, which Python has for a closed one, is none.
    """
    # Not rich's own opinion, which FORCE_COLOR changes: through a pipe the output is plain.
    return stream is not None and stream.isatty()


def show_json(value: object) -> None:
    """
    Print a value as JSON.
    """
    write(json.dumps(value, indent=2))


def show_json_line(value: object) -> None:
    """
    Print a value as JSON on one line.
    """
    write(json.dumps(value))


def show_columns(rows: Sequence[Row], numbers: int = 0) -> None:
    """
    Print rows as plain text, one a line.

    Args:
        rows: The cells, headings first.
        numbers: How many of the last columns are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if index >= len(row) - numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        write("  ".join(cells).rstrip())


def show_counts(facts: Mapping[str, float], tables: Sequence[Counts]) -> None:
    """
    Print single numbers by name, then tables of numbers; a table without rows is left out.
    """
    tables = [table for table in tables if table.rows]
    if is_terminal(sys.stdout):
        draw(_facts(facts), *map(_counts, tables))
        return
    show_columns(
        [(name.ljust(_FACT), _number(number).rjust(_FACT_NUMBER)) for name, number in facts.items()], 1
    )
    for headings, rows in tables:
        write("")
        cells = [(_name(name, len(numbers)), *map(_number, numbers)) for name, numbers in rows]
        show_columns([headings, *cells], len(headings) - 1)


def show_note(text: str) -> None:
    """
    Print a sentence, apart from what stands above it.
    """
    write("")
    write(text)


def _facts(facts: Mapping[str, float]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=_FACT)
    grid.add_column(justify="right", min_width=_FACT_NUMBER)
    for name, number in facts.items():
        grid.add_row(Text(name), _figure(name, number, "bold"))
    return grid


def _counts(counts: Counts) -> Table:
    table = new_table()
    table.add_column(counts.headings[0], no_wrap=True, min_width=30)
    for heading in counts.headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, numbers in counts.rows:
        table.add_row(Text(_name(name, len(numbers))), *map(_figure, counts.headings[1:], numbers))
    return table


def _figure(heading: str, number: float, style: str = "") -> Text:
    return Text(_number(number, ","), "bold red" if heading in _BAD and number else style)


def _number(number: float, comma: str = "") -> str:
    return f"{number:{comma}.2f}" if isinstance(number, float) else f"{number:{comma}}"


def _name(name: str, numbers: int) -> str:
    name, room = escape(name), _NAME if numbers > 1 else _LONG_NAME
    return name if len(name) <= room else name[: room - 1] + CUT


def show_events(rows: Sequence[Mapping[str, Any]]) -> None:
    """
    Print the rows of `eventbus events`.
    """
    if is_terminal(sys.stdout):
        events = _event_table("Event", [row for row in rows if row["kind"] == "event"])
        gates = _event_table("Gate", [row for row in rows if row["kind"] == "gate"])
        notes = "All have correlation_id, timestamp and run too. * writable, ! latches once set."
        draw(events, gates, Text(notes, "dim"))
        return
    show_columns(
        [
            ("event", "channel", "ends_run", "level", "line", "readers"),
            *(
                (
                    row["event"],
                    row["channel"],
                    "yes" if row["ends_run"] else "no",
                    row["level"] or "-",
                    row["line"] or "-",
                    ",".join(_marked(row)),
                )
                for row in rows
            ),
        ]
    )


def _event_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table()
    table.add_column(f"{title}\nchannel: eventbus. +", no_wrap=True, width=29)
    table.add_column("Readers", ratio=1)
    table.add_column("Line\nlevel" if title == "Event" else "", no_wrap=True, width=18)
    for row in rows:
        level = ", ".join(
            filter(
                None, ("" if row["level"] is None else row["level"], "ends run" if row["ends_run"] else "")
            )
        )
        table.add_row(
            Text.assemble((row["event"], "bold"), "\n", (row["channel"].removeprefix("eventbus."), "dim")),
            Text(", ".join(_marked(row))),
            Text.assemble(row["line"] or "", "\n", (level, "dim")),
        )
    return table


def _marked(row: Mapping[str, Any]) -> list[str]:
    return [
        name + ("*" if name in row["writable"] else "") + ("!" if name in row["sticky"] else "")
        for name in row["readers"]
    ]


def show_hooks(rows: Sequence[Mapping[str, Any]]) -> None:
    """
    Print the rows of `eventbus hooks`.
    """
    if is_terminal(sys.stdout):
        draw(_hook_table(rows))
        return
    show_columns(
        [
            ("hook", "state", "priority", "events", "defined"),
            *(
                (
                    row["hook"],
                    row["state"],
                    str(row["priority"]),
                    ",".join(row["events"]) or "-",
                    _place(row),
                )
                for row in rows
            ),
        ]
    )


def _hook_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table()
    table.add_column("Hook\ndefined", no_wrap=True)
    table.add_column("State", no_wrap=True)
    table.add_column("Priority", justify="right", no_wrap=True)
    table.add_column("Events", no_wrap=True)
    for row in rows:
        place = _place(row).removeprefix(os.getcwd() + os.sep)
        if len(place) > _PLACE:
            # From the first whole name that fits, or what there is room for of a long one.
            place = place[-_PLACE + 1 :]
            place = CUT + (place[place.index(os.sep) :] if os.sep in place else place)
        table.add_row(
            Text.assemble((_name(row["hook"], 2), "bold"), "\n", (place, "dim")),
            Text(row["state"], "green" if row["state"] == "live" else "yellow"),
            Text(str(row["priority"])),
            Text("\n".join(row["events"])),
        )
    return table


def _place(row: Mapping[str, Any]) -> str:
    return "-" if row["file"] is None else f"{row['file']}:{row['line']}"


def new_table() -> Table:
    """
    Return an empty table as all commands have it.
    """
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


def draw(*things: object) -> None:
    """
    Print things of rich's on a terminal, an empty line before each.
    """
    console = Console(file=sys.stdout, force_terminal=True, highlight=False)
    with _writing():
        for thing in things:
            console.print()
            console.print(thing)


def write(line: str) -> None:
    """
    Print one line.

    Raises:
        BrokenPipeError: If whoever reads it has gone.
        click.ClickException: If stdout takes no more, such as on a full disk.
    """
    # click's, because it leaves a closed stdout alone, and flushes: a broken pipe is met here, not at exit.
    with _writing():
        click.echo(line)


@contextmanager
def _writing() -> Generator[None]:
    # A closed pipe is click's to end quietly; of a full disk it would show the traceback.
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is still buffered would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        msg = f"stdout took no more: {error.strerror}"
        raise click.ClickException(msg) from error


@contextmanager
def progress(
    size: int | None, done: Callable[[], int], runs: Callable[[], int]
) -> Generator[Callable[[], None]]:
    """
    Show on stderr how far a replay is, if stderr is a terminal; it is gone afterwards.

    What is written to stderr meanwhile appears above the bar, as it is.

    Args:
        size: How much there is; None if nobody knows.
        done: Asked how much of it was replayed.
        runs: Asked how many runs were replayed.

    Yields:
        A function to call when there is something new to show.
    """
    if not is_terminal(sys.stderr):
        yield lambda: None
        return
    columns = (
        TextColumn("replaying"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("runs: {task.fields[runs]:,}"),
        TimeElapsedColumn(),
    )
    with bar(*columns) as shown:
        task = shown.add_task("", total=size, runs=0)

        def advance() -> None:
            shown.update(task, completed=None if size is None else done(), runs=runs())

        yield advance


def bar(*columns: ProgressColumn) -> Progress:
    """
    Return a bar on stderr, a terminal, for a `with` block; it is gone afterwards.

    Args:
        columns: What it is made of.
    """
    # With soft wrap, rich leaves the lines that it moves above the bar as they are.
    console = Console(stderr=True, force_terminal=True, soft_wrap=True)
    return Progress(*columns, console=console, transient=True, redirect_stdout=is_terminal(sys.stdout))
