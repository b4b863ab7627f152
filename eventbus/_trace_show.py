"""
What the commands that read a trace store print: a tree, lines, tables; escaped, and plain through a pipe.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ._durations import show_seconds
from ._lines import escape, stamp
from ._plain import CUT
from ._reader import Progress as Told
from ._reader import StoredEvent, StoredRun, TraceStats, spellings
from ._show import bar, draw, is_terminal, new_table, show_columns, write
from ._stored import as_dict, as_list, level_of, line_of, summary_of
from ._tree import Node

_ID: Final = 17
_LEAST: Final = 12
"""How much of an id a narrow terminal has room for at least."""

_AGENT: Final = 12
_CALL: Final = 120
_CONTEXT: Final = 30
_DISPENSABLE: Final = (1, 2, 3)
"""The columns of runs that are left out of a narrow terminal, in this order: agent, start, duration."""

_ROOM: Final = 24
"""How many columns a line of a tree has at least for what follows its guides."""

_STYLES: Final[Mapping[str | None, str]] = {
    "completed": "green",
    "ok": "",
    "failed": "bold red",
    "denied": "yellow",
    "max_turns": "yellow",
    "running": "cyan",
    "open": "cyan",
    "error": "red",
    "warning": "yellow",
    "debug": "dim",
}
_WORDS: Final[Mapping[str, str]] = {
    "failed": "FAILED",
    "denied": "DENIED",
    "max_turns": "MAX TURNS",
    "open": "OPEN",
}


def show_runs(runs: Sequence[StoredRun]) -> None:
    """
    Print runs, one a row.
    """
    if not is_terminal(sys.stdout):
        names = ("run", "status", "agent", "started", "seconds", "events", "failed", "refused", "message")
        show_columns([names, *map(_plain_run, runs)])
        return
    rows = [_row(run) for run in runs]
    grid = new_table()
    headings = ("Status", "Agent", "Started (UTC)", "Took", "Events")
    widths = [max(len(heading), *(len(row[place]) for row in rows)) for place, heading in enumerate(headings)]
    # What is left of the line: rich would take from all columns alike.
    shown = list(range(len(headings)))
    room = Console(file=sys.stdout).width - sum(width + 3 for width in widths)
    for place in _DISPENSABLE:
        if room < _LEAST:
            shown.remove(place)
            room += widths[place] + 3
    grid.add_column("Run\nmessage", width=max(_LEAST, room), no_wrap=True, overflow="ellipsis")
    for place in shown:
        right = headings[place] in {"Took", "Events"}
        grid.add_column(
            headings[place], width=widths[place], no_wrap=True, justify="right" if right else "left"
        )
    for run, row in zip(runs, rows, strict=True):
        bad = run.failures + run.refusals
        message = f"\n{escape(run.message)}" if run.message else ""
        status, *facts, events = row
        cells = [
            Text(status, _STYLES.get(run.status, "")),
            *map(Text, facts),
            Text.assemble(events, (f"\n{bad:,} bad" if bad else "", "bold red")),
        ]
        grid.add_row(
            Text.assemble((_short(run.correlation_id), "bold"), (message, "dim")),
            *(cells[place] for place in shown),
        )
    draw(grid)


def _row(run: StoredRun) -> tuple[str, str, str, str, str]:
    return (
        run.status or "-",
        _cut(escape(run.agent or "-"), _AGENT),
        stamp(run.started)[5:19].replace("T", " "),
        "-" if run.duration is None else show_seconds(run.duration),
        f"{run.events:,}",
    )


def _plain_run(run: StoredRun) -> tuple[str, ...]:
    return (
        escape(run.correlation_id),
        run.status or "-",
        escape(run.agent or "-"),
        stamp(run.started),
        "-" if run.duration is None else f"{run.duration:.3f}",
        str(run.events),
        str(run.failures),
        str(run.refusals),
        escape(run.message or "-"),
    )


def _short(cid: str) -> str:
    # `find` takes it as it is shown, ellipsis and all.
    text = escape(cid)
    return text if len(text) <= _ID else text[: _ID - 1] + CUT


def show_trace(root: Node, run: StoredRun, *, full: bool) -> None:
    """
    Print the tree of a run: at the left when each part began and how long it took.

    Args:
        root: The tree.
        run: What the store says of the whole.
        full: Whether to print what was stored of each event, under its part.
    """
    page = _Page()
    status = run.status or "no run"
    facts = [
        f"started {stamp(run.started)}",
        *([f"took {show_seconds(run.duration)}"] if run.duration is not None else []),
        f"{run.events:,} event{'' if run.events == 1 else 's'}",
        *([f"{run.failures:,} failed"] if run.failures else []),
        *([f"{run.refusals:,} refused"] if run.refusals else []),
    ]
    page.put((escape(run.correlation_id), "bold"), "  ", (status, _STYLES.get(run.status, "")))
    page.put((", ".join(facts), "dim"))
    if run.parent_id is not None:
        page.put((f"started from {escape(run.parent_id)}", "dim"))
    if run.message and not full:
        page.put(escape(run.message))
    page.put("")
    for guides, node in _guided(root):
        _show_node(page, guides, node, full=full)


def _guided(root: Node) -> Iterator[tuple[tuple[str, str], Node]]:
    # With each node what stands before its own line, and before what follows under it.
    waiting: list[tuple[str, str, Node]] = [("", "", root)]
    while waiting:
        first, below, node = waiting.pop()
        yield (first, below), node
        last = len(node.children) - 1
        for place, child in reversed(list(enumerate(node.children))):
            end = place == last
            waiting.append((below + ("└ " if end else "├ "), below + ("  " if end else "│ "), child))


def _show_node(page: _Page, guides: tuple[str, str], node: Node, *, full: bool) -> None:
    first, below = guides
    if not page.terminal:
        first = below = "  " * (len(first) // 2)
    took = "" if node.duration is None else show_seconds(node.duration)
    style = _STYLES.get(node.status, "")
    word = _WORDS.get(node.status, "")
    label = "" if node.kind in {"turn", "event", "run", node.title} else f"{node.kind} "
    left = f"{node.offset:>9.3f}s {took:>9}  "
    if page.terminal:
        # Of a deep tree what is nearest: a line is to have room for what it is about.
        room = max(2, page.width - len(left) - _ROOM)
        first, below = (_last(guide, room) for guide in (first, below))
    parts: list[Any] = [(left, "dim"), (first, "dim"), (label, "dim"), (escape(node.title), style or "bold")]
    if node.kind == "event":
        parts[-1] = (escape(node.title), style or "dim")
    if word and node.kind != "event":
        parts += [" ", (word, style)]
    about = _about(node)
    if about:
        parts += [" ", (about, "dim")]
    margin = " " * len(left)
    mark = "│ " if node.children and page.terminal else "  "
    if not page.terminal:
        page.put(*parts, *([f" {note}"] if (note := _note(node)) else []))
    else:
        page.put(*parts)
        if note := _note(node):
            page.hang((margin + below + mark, "dim"), (note, style))
    if full:
        for event in (node.start, *node.events, node.end):
            if event is not None:
                _show_payload(page, margin + below + mark, event)


def _about(node: Node) -> str:
    if node.kind == "tool" and (call := as_dict(_said(node, "tool_call"))):
        return _cut(escape(json.dumps(call.get("input"), ensure_ascii=False)), _CALL)
    if node.kind == "model" and node.end is not None:
        usage = as_dict(node.end.payload.get("usage"))
        numbers = [f"{key} {value:,}" for key, value in usage.items() if type(value) is int]
        return _cut(escape(", ".join(numbers)), _CALL)
    if node.kind == "event" and node.start is not None and node.note is None:
        return _cut(summary_of(node.start), _CALL)
    return ""


def _said(node: Node, key: str) -> Any:
    event = node.start or node.end
    return None if event is None else event.payload.get(key)


def _note(node: Node) -> str:
    if node.note is None:
        return ""
    event = node.end or node.start
    error = as_dict(None if event is None else event.payload.get("error"))
    frames = list(map(str, as_list(error.get("frames"))))
    where = f" ({' < '.join(frames)})" if frames else ""
    return escape(node.note + where)


def _show_payload(page: _Page, margin: str, event: StoredEvent) -> None:
    page.put(
        (margin, "dim"), (f"{escape(event.event)} {stamp(event.timestamp)} seq={event.seq}", "italic dim")
    )
    for line in _laid_out(event.payload, 1):
        page.hang((margin, "dim"), (line, ""))


def _laid_out(value: Any, depth: int) -> Iterator[str]:
    # A text of several lines, such as a traceback, is read as such and not as JSON has it.
    indent = "  " * depth
    named = [("-", item) for item in as_list(value)]
    for name, item in named or [(f"{escape(key)}:", item) for key, item in as_dict(value).items()]:
        if isinstance(item, str) and "\n" in item.strip("\n"):
            yield f"{indent}{name}"
            yield from (f"{indent}  {escape(line)}" for line in item.strip("\n").split("\n"))
        elif isinstance(item, dict | list) and item:
            yield f"{indent}{name}"
            yield from _laid_out(item, depth + 1)
        elif item is not None:
            text = item if isinstance(item, str) else json.dumps(item)
            yield f"{indent}{name} {escape(text)}"


class _Page:
    """
    Where the lines of a tree go: to a terminal with colours, notes wrapped; to a pipe plain, one line each.
    """

    def __init__(self) -> None:
        self.terminal = is_terminal(sys.stdout)
        self._console = Console(file=sys.stdout, force_terminal=True, highlight=False)
        self.width = self._console.width

    def put(self, *parts: Any) -> None:
        """
        Print one line; on a terminal it is cut at the width.
        """
        text = Text.assemble(*parts)
        if self.terminal:
            with self._console.capture() as captured:
                self._console.print(text, no_wrap=True, overflow="ellipsis")
            write(captured.get().rstrip("\n"))
        else:
            write(text.plain.rstrip())

    def hang(self, margin: tuple[str, str], note: tuple[str, str]) -> None:
        """
        Print a text under a margin: on a terminal on as many lines as it takes.
        """
        if not self.terminal:
            self.put(margin, note)
            return
        room = max(1, self._console.width - len(margin[0]))
        for line in Text(*note).wrap(self._console, room):
            self.put(margin, line)


def _last(text: str, room: int) -> str:
    return text if len(text) <= room else CUT + text[len(text) - room + 1 :]


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + CUT


def show_event(event: StoredEvent, found: str | None = None) -> None:
    """
    Print an event as a line of the log.

    Args:
        event: The event.
        found: What was looked for; on a terminal, where the line does not show it, what is around it does.
    """
    line = line_of(event)
    if not is_terminal(sys.stdout):
        write(line)
        return
    head, cid, rest = (*line.split(" ", 2), "", "")[:3]
    text = Text.assemble((head, "dim"), " ", (cid, "cyan"), " ", (rest, _STYLES.get(level_of(event), "")))
    _put_whole(text, found)
    if found is not None and found.lower() not in line.lower() and (excerpt := _around(event, found)):
        _put_whole(Text(f"    {excerpt}", "dim"), found)


def _put_whole(text: Text, found: str | None) -> None:
    if found:
        text.highlight_words([escape(found)], "bold reverse", case_sensitive=False)
    console = Console(file=sys.stdout, force_terminal=True, highlight=False)
    with console.capture() as captured:
        console.print(text, soft_wrap=True)
    write(captured.get().rstrip("\n"))


def _around(event: StoredEvent, found: str) -> str:
    stored = json.dumps(event.payload, ensure_ascii=False, separators=(",", ":"))
    for wanted in spellings(found):
        place = re.search(re.escape(wanted), stored, re.IGNORECASE)
        if place is not None:
            start, end = max(0, place.start() - _CONTEXT), place.end() + _CONTEXT
            before, after = CUT if start else "", CUT if end < len(stored) else ""
            return escape(f"{before}{stored[start:end]}{after}")
    return ""


def show_stats(stats: TraceStats) -> None:
    """
    Print the numbers of a store.
    """
    runs = sum(count for status, count in stats.runs.items() if status is not None)
    facts: list[tuple[str, str, bool]] = [("runs", f"{runs:,}", False)]
    for status in ("completed", "running", "failed", "denied", "max_turns"):
        if stats.runs.get(status):
            facts.append((f"  {status}", f"{stats.runs[status]:,}", status == "failed"))
    if stats.runs.get(None):
        facts.append(("ids that no run has", f"{stats.runs[None]:,}", False))
    facts += [
        ("events", f"{stats.events:,}", False),
        ("  failures", f"{stats.failures:,}", stats.failures > 0),
        ("  refusals", f"{stats.refusals:,}", False),
        ("  lossy", f"{stats.lossy:,}", False),
        ("events lost", f"{sum(stats.losses.values()):,}", bool(stats.losses)),
        *((f"  {escape(reason)}", f"{count:,}", True) for reason, count in stats.losses.items()),
        *((f"tokens {name}", f"{count:,}", False) for name, count in stats.tokens.items()),
        ("first event", "-" if stats.first is None else stamp(stats.first), False),
        ("last event", "-" if stats.last is None else stamp(stats.last), False),
        ("size", _bytes(stats.size), False),
        ("SQLite", stats.sqlite, False),
        ("quick check", escape(stats.check), stats.check != "ok"),
    ]
    headings = ("tool", "calls", "failed", "p50", "p95", "p99", "max")
    rows = [
        (
            _cut(escape(tool.tool), 30),
            f"{tool.calls:,}",
            f"{tool.failed:,}",
            *map(show_seconds, (tool.p50, tool.p95, tool.p99, tool.max)),
        )
        for tool in stats.tools
    ]
    if not is_terminal(sys.stdout):
        show_columns([(name, value) for name, value, _ in facts])
        if rows:
            write("")
            show_columns([headings, *rows], len(headings) - 1)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value, bad in facts:
        grid.add_row(Text(name), Text(value, "bold red" if bad else "bold"))
    things: list[object] = [grid]
    if rows:
        tools = new_table()
        for place, heading in enumerate(headings):
            tools.add_column(heading, no_wrap=True, justify="right" if place else "left")
        for row in rows:
            cells = [Text(cell) for cell in row]
            cells[2].style = "bold red" if row[2] != "0" else ""
            tools.add_row(*cells)
        things.append(tools)
    draw(*things)


def _bytes(size: int) -> str:
    unit, factor = ("GB", 1e9) if size >= 1e9 else ("MB", 1e6) if size >= 1e6 else ("kB", 1e3)
    return f"{size / factor:.1f} {unit}"


@contextmanager
def reading_progress(what: str) -> Generator[Told | None]:
    """
    Show on stderr how much of a store was read, if stderr is a terminal; it is gone afterwards.

    Args:
        what: What is being done, such as "searching".

    Yields:
        What to call with how much was read, and of how much; None where nobody would see it.
    """
    if not is_terminal(sys.stderr):
        yield None
        return
    with bar(TextColumn(what), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()) as shown:
        task = shown.add_task("", total=None)

        def tell(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        yield tell
