"""
The commands that read a trace store: `runs`, `trace`, `tail`, `grep` and `stats`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click

from ._errors import AmbiguousRunError, TraceFileError, UnknownRunError
from ._lines import escape
from ._reader import StoredEvent, TraceReader, as_json
from ._show import show_json, show_json_line
from ._timeline import write_page
from ._trace_show import reading_progress, show_event, show_runs, show_stats, show_trace
from ._tree import Node, tree_of

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C: 128 and the number of SIGINT."""

NOTHING_FOUND: Final = 1
UNUSABLE: Final = 2

DEFAULT_STORE: Final = "eventbus.db"

POLL: Final = 0.2
"""Seconds between two looks of `tail -f` at a store that had nothing new."""

_AGO: Final = re.compile(r"(\d+)([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_STATUSES: Final = ("running", "completed", "failed", "denied", "max_turns")


class Unusable(click.ClickException):
    """
    What a command was given cannot be used.
    """

    exit_code = UNUSABLE


class _NothingFound(click.ClickException):
    """
    There is nothing that a command could show.
    """

    exit_code = NOTHING_FOUND


def moment(text: str) -> datetime:
    """
    Read a time: ISO 8601, in UTC unless it says otherwise, or how long ago it was, such as `2h`.
    """
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is no time; write 2026-01-31T12:00:00 (UTC), or 2h for two hours ago."
        raise click.BadParameter(msg) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def store_option(command: F) -> F:
    """
    Give a command the option `--db`.
    """
    option = click.option(
        "--db",
        "path",
        envvar="EVENTBUS_TRACE",
        default=DEFAULT_STORE,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"The trace store; without it what EVENTBUS_TRACE names, or else ./{DEFAULT_STORE}.",
    )
    return option(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
json_lines_option = click.option("--json", "lines", is_flag=True, help="Write one JSON object per line.")


@contextmanager
def reading(path: Path) -> Generator[TraceReader]:
    """
    Open a store for a command, and turn what can be wrong into its exit status.
    """
    try:
        with TraceReader(path) as reader:
            yield reader
    except TraceFileError as error:
        hint = "" if path.exists() else " Name another with --db."
        raise Unusable(escape(str(error)) + hint) from error
    except UnknownRunError as error:
        raise _NothingFound(escape(str(error))) from error
    except AmbiguousRunError as error:
        ids = "".join(f"\n  {escape(cid)}" for cid in error.candidates)
        msg = f"Several runs have an id that begins so; give more of one, such as:{ids}"
        raise Unusable(msg) from error


@contextmanager
def interruptible() -> Generator[None]:
    """
    End a command with 130 after Ctrl-C, silently: it has shown what it has found.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.get_current_context().exit(INTERRUPTED)


@click.command()
@store_option
@click.option("--agent", metavar="NAME", help="Runs of this agent.")
@click.option("--status", type=click.Choice(_STATUSES), help="Runs with this status.")
@click.option("--tool", metavar="NAME", help="Runs that called this tool, or tried to.")
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Runs that began then or later: 2026-01-31T12:00 (UTC), or 2h.",
)
@click.option("--until", type=moment, metavar="TIME", help="Runs that began before.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="At most N runs."
)
@json_option
def runs(path: Path, as_json: bool, limit: int, **filters: Any) -> None:
    """
    List the runs of a trace store, the newest first.

    The exit status is 1 if there are none.
    """
    with interruptible(), reading(path) as reader:
        found = list(reader.runs(**filters, limit=limit))
    if as_json:
        show_json([attrs.asdict(run) for run in found])
    elif found:
        show_runs(found)
    if not found:
        _say_nothing_found(f"{path} has no such runs." if any(filters.values()) else f"{path} has no runs.")


@click.command()
@click.argument("run")
@store_option
@click.option("--full", is_flag=True, help="Show what was stored of each event.")
@json_option
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page with a timeline, for any browser.",
)
def trace(run: str, path: Path, full: bool, as_json: bool, html: Path | None) -> None:
    """
    Show one run as a tree.

    RUN is an id, the beginning of one, or a whole line of the log; with - it is read from stdin. At the left
    stands when each part began, from the run's first event, and how long it took.
    """
    text = _first_line() if run == "-" else run
    with interruptible(), reading(path) as reader:
        found = reader.run(text)
        root = tree_of(reader, found.correlation_id)
    if html is not None:
        _write_page(root, found, html)
    if as_json:
        show_json({"run": attrs.asdict(found), "tree": _as_tree(root)})
    elif html is None:
        show_trace(root, found, full=full)


def _first_line() -> str:
    # Python has none where stdin is closed, and bytes that are no text are in no id.
    return "" if sys.stdin is None else sys.stdin.buffer.readline().decode(errors="replace")


def _write_page(root: Node, run: Any, html: Path) -> None:
    try:
        write_page(root, run, html)
    except ImportError as error:
        msg = "--html needs jinja2; install it with: pip install 'eventbus[cli]'"
        raise Unusable(msg) from error
    except OSError as error:
        msg = f"{escape(str(html))} cannot be written: {error.strerror}"
        raise Unusable(msg) from error
    click.echo(f"{escape(str(html))} written.", err=True)


def _as_tree(root: Node) -> dict[str, Any]:
    # By hand and not by recursion: runs nest in runs.
    made: dict[int, dict[str, Any]] = {}
    nodes = [node for _, node in root.walk()]
    for node in reversed(nodes):
        made[id(node)] = {
            "kind": node.kind,
            "title": node.title,
            "status": node.status,
            "offset": node.offset,
            "duration": node.duration,
            "note": node.note,
            "start": None if node.start is None else as_json(node.start),
            "end": None if node.end is None else as_json(node.end),
            "events": [as_json(event) for event in node.events],
            "children": [made[id(child)] for child in node.children],
        }
    return made[id(root)]


@click.command()
@store_option
@click.option(
    "-n", "count", type=click.IntRange(min=0), default=10, show_default=True, help="So many events."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is stored from now on, until Ctrl-C.")
@json_lines_option
def tail(path: Path, count: int, follow: bool, lines: bool) -> None:
    """
    Show the last events of a trace store, as lines of the log.

    With -f it waits for a store that is not there yet, and goes on with the new one if it is replaced.
    """
    with interruptible():
        if follow:
            _follow(path, count, _shower(lines))
        with reading(path) as reader:
            found = reader.tail(count)
        for event in found:
            _shower(lines)(event)
        if not found and count:
            _say_nothing_found(f"{path} has no events.")


def _shower(lines: bool) -> Callable[[StoredEvent], None]:
    return (lambda event: show_json_line(as_json(event))) if lines else show_event


def _follow(path: Path, count: int, show: Callable[[StoredEvent], None]) -> None:
    last: int | None = None
    if not path.exists():
        click.echo(f"Waiting for {escape(str(path))} ...", err=True)
        # Of the one that will be there, everything is new.
        last = 0
    while True:
        if not path.exists():
            time.sleep(POLL)
            continue
        with reading(path) as reader:
            if last is None:
                found = reader.tail(count)
                last = reader.last_seq() if not found else found[-1].seq
            else:
                found = []
            while found or not reader.is_replaced():
                for event in found:
                    show(event)
                    last = event.seq
                found = reader.follow(last)
                if not found:
                    time.sleep(POLL)
        last = 0


@click.command()
@click.argument("text")
@store_option
@click.option("-i", "--ignore-case", is_flag=True, help="Take a for A, in ASCII.")
@json_lines_option
def grep(text: str, path: Path, ignore_case: bool, lines: bool) -> None:
    """
    Find the events that have TEXT in them.

    It may stand anywhere in what is stored of an event. They are shown as lines of the log, which can be
    given to `trace`. Every event of the store is looked at. The exit status is 1 if nothing was found, and
    130 after Ctrl-C.
    """
    if not text:
        msg = "TEXT is empty; `tail` shows everything."
        raise Unusable(msg)
    with interruptible(), reading(path) as reader, reading_progress("searching") as progress:
        events = reader.search(text, ignore_case=ignore_case, progress=progress)
        first = next(events, None)
        for event in () if first is None else chain([first], events):
            show_json_line(as_json(event)) if lines else show_event(event, text)
    if first is None:
        click.get_current_context().exit(NOTHING_FOUND)


@click.command()
@store_option
@json_option
def stats(path: Path, as_json: bool) -> None:
    """
    Count what is in a trace store, and check the file.

    The exit status is 2 if the check finds damage.
    """
    with interruptible(), reading(path) as reader, reading_progress("reading") as progress:
        found = reader.stats(progress)
    if as_json:
        told = attrs.asdict(found)
        told["runs"] = {status or "none": count for status, count in found.runs.items()}
        show_json(told)
    else:
        show_stats(found)
    if found.check != "ok":
        click.get_current_context().exit(UNUSABLE)


def _say_nothing_found(text: str) -> None:
    click.echo(escape(text), err=True)
    click.get_current_context().exit(NOTHING_FOUND)
