"""
The page of a stored run: one HTML file with a timeline to scale and the payloads to unfold; needs jinja2.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import shlex
import stat
import tempfile
from collections import Counter
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import attrs

from ._durations import show_seconds, sound_seconds
from ._lines import escape, stamp
from ._plain import CUT
from ._reader import add_tokens
from ._stored import as_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jinja2 import Template

    from ._reader import StoredEvent, StoredRun
    from ._tree import Node

SPANS: Final = 2000
"""How many spans are shown; a browser lays out that many at once, and nobody reads more."""

VALUE: Final = 16_000
"""How many characters of one value of a payload are shown, three quarters of them from its beginning."""

PAYLOADS: Final = 4_000_000
"""How many characters of payloads are shown in all."""

_FOLDED: Final = 1_200
_FOLDED_LINES: Final = 24
_NOTE: Final = 300
_TITLE: Final = 120
_PROBLEMS: Final = 30
_DEEPEST: Final = 12
"""How many levels are told apart by their indent."""

_SHORTEST: Final = 1e-6

_TICKS: Final = 8
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)

_STATUSES: Final[Mapping[str | None, tuple[str, str]]] = {
    "completed": ("completed", "ok"),
    "failed": ("failed", "failed"),
    "denied": ("denied", "denied"),
    "max_turns": ("turns used up", "max_turns"),
    "running": ("not ended", "open"),
    None: ("no run's events", "gate"),
}
_BADGES: Final[Mapping[str, str]] = {
    "failed": "failed",
    "denied": "denied",
    "max_turns": "turns used up",
    "open": "not ended",
}
_NAMES: Final = {"model": "model call", "tool": "tool call"}
_DECISION: Final = "eventbus.gate.decision"
_ANSWER: Final = "eventbus.inference.generated"
_CHUNK: Final = "eventbus.inference.chunk"


class _Value(NamedTuple):
    key: str
    text: str
    folded: str
    literal: bool


class _Event(NamedTuple):
    name: str
    about: str
    values: Sequence[_Value]
    hint: str


class _Tick(NamedTuple):
    left: str
    label: str


class _Shape(NamedTuple):
    shape: str
    name: str


@attrs.define(eq=False)
class _Row:
    """
    One span as the page shows it.

    Attributes:
        node: What it is about.
        parent: The row that it stands under.
        number: Its place on the page.
        depth: How far it is indented.
        up: How many lists end after it.
        down: A list of its own begins after it.
        left_out: What is not shown under it, counted by kind.
        left: Where its bar begins, in hundredths of the whole time.
        width: How long its bar is, likewise.
    """

    node: Node
    parent: _Row | None
    level: int
    kept: bool = False
    number: int = 0
    up: int = 0
    down: bool = False
    left: str = "0"
    width: str = "0"
    events: Sequence[_Event] = ()
    left_out: Counter[str] = attrs.field(factory=Counter[str])

    @property
    def depth(self) -> int:
        return min(self.level, _DEEPEST)

    @property
    def kind(self) -> str:
        return self.node.kind

    @property
    def status(self) -> str:
        return self.node.status

    @property
    def point(self) -> bool:
        return self.node.duration is None and self.status != "open"

    @property
    def decision(self) -> bool:
        """A gate's decision is what it tells."""
        return self.node.start is not None and self.node.start.channel == _DECISION

    @property
    def problem(self) -> bool:
        return self.status != "ok" or self.decision

    @property
    def listed(self) -> bool:
        """It is told above the timeline; a refusal once, by the call and not by the decision as well."""
        told = self.decision and self.parent is not None and self.parent.status == self.status
        return self.problem and self.parent is not None and not (told and self.status == "denied")

    @property
    def badge(self) -> str:
        return _BADGES.get(self.status, "gate" if self.decision else "")

    @property
    def tone(self) -> str:
        return self.status if self.status in _BADGES else "gate"

    @property
    def kind_word(self) -> str:
        return "" if self.kind in {"event", self.node.title.partition(" ")[0]} else self.kind

    @property
    def title(self) -> str:
        return _cut(self.node.title, _TITLE)

    @property
    def kind_and_title(self) -> str:
        return f"{self.kind_word} {self.title}".strip()

    @property
    def note(self) -> str:
        """A decision says nothing again that the call says which it is about."""
        note = self.node.note or ""
        return "" if self.parent is not None and note == self.parent.node.note else _cut(note, _NOTE)

    @property
    def start(self) -> str:
        return f"+{show_seconds(self.node.offset)}" if sound_seconds(self.node.offset) else "+0"

    @property
    def took(self) -> str:
        return "" if self.node.duration is None else show_seconds(self.node.duration)

    @property
    def omitted(self) -> str:
        return f"left out here: {_list(self.left_out)}" if self.left_out else ""


def write_page(root: Node, run: StoredRun, file: str | os.PathLike[str]) -> None:
    """
    Write the page of a run, readable by its owner alone: it has the payloads in it.

    A file that exists is replaced when the new one is complete, and not before. What is no regular file, such
    as a pipe, is written to.

    Args:
        root: The tree of the run.
        run: What the store keeps of it.
        file: Where to write.

    Raises:
        ImportError: jinja2 is not installed.
        OSError: The file cannot be written; `filename` is the one that was asked for.
    """
    page = render(root, run).encode()
    try:
        _replace(os.path.realpath(file), page)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(file)) from error


def _replace(path: str, content: bytes) -> None:
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        regular = True
    if not regular:
        with open(path, "wb") as stream:
            stream.write(content)
        return
    descriptor, beside = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".eventbus-", suffix=".html")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def render(root: Node, run: StoredRun) -> str:
    """
    Return the page of a run as HTML.

    It asks for nothing from anywhere, and what is in the run is text in it: escaped by the template, control
    characters and those that turn the direction of text spelt out. At most 2,000 spans and 4,000,000
    characters of payloads are shown, failures, refusals and gates' decisions first; the page says what was
    left out.

    Args:
        root: The tree of the run.
        run: What the store keeps of it.

    Returns:
        The page.

    Raises:
        ImportError: jinja2 is not installed.
    """
    template = _template()
    rows, everything = _rows(root)
    whole = _whole(everything)
    for row in rows:
        _place(row, whole)
    cut = _fill(rows)
    problems = [row for row in rows if row.listed]
    status, tone = _STATUSES.get(run.status, (run.status or "", "gate"))
    return template.render(
        agent=run.agent or "run",
        cid=run.correlation_id,
        # Who chose it may have thought of whoever pastes the command.
        quoted_cid=shlex.quote(run.correlation_id),
        status=status,
        tone=tone,
        message=run.message,
        facts=list(_facts(run, everything, whole)),
        left_out=list(_left_out(rows, everything, cut)),
        glance=_glance(everything),
        problems=problems[:_PROBLEMS],
        more_problems=f"{more:,}" if (more := sum(row.listed for row in everything) - _PROBLEMS) > 0 else "",
        legend=_legend(rows),
        ticks=list(_ticks(whole)),
        rows=rows,
    )


@cache
def _template() -> Template:
    try:
        from jinja2 import Environment, StrictUndefined
    except ModuleNotFoundError as error:
        msg = "the page of a run needs jinja2; install it with: pip install 'eventbus[cli]'"
        raise ImportError(msg, name="eventbus._timeline") from error
    environment = Environment(
        autoescape=True, finalize=_printable, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["digest"] = _digest
    source = files(__name__.rpartition(".")[0]).joinpath("_timeline.html").read_text(encoding="utf-8")
    return environment.from_string(source)


def _printable(value: Any) -> Any:
    # The template's own text is marked as markup; everything else that it shows passes through here.
    if type(value) is not str or value.isprintable():
        return value
    return re.sub(r"[^\n\t]+", lambda found: escape(found[0]), value)


def _digest(source: str) -> str:
    # What the page's policy lets run: exactly this text.
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def _rows(root: Node) -> tuple[list[_Row], list[_Row]]:
    everything: list[_Row] = []
    waiting: list[tuple[Node, _Row | None]] = [(root, None)]
    while waiting:
        node, parent = waiting.pop()
        row = _Row(node, parent, 0 if parent is None else parent.level + 1)
        everything.append(row)
        waiting += ((child, row) for child in reversed(node.children))
    shown = _choose(everything)
    for number, row in enumerate(shown):
        row.number = number
    for row, following in zip(shown, [*shown[1:], None], strict=True):
        level = 0 if following is None else following.level
        row.down = level > row.level
        row.up = max(0, row.level - level)
    for row in everything:
        if not row.kept:
            above = cast("_Row", row.parent)
            while not above.kept:
                above = cast("_Row", above.parent)
            above.left_out[row.kind] += 1
    return shown, everything


def _choose(rows: Sequence[_Row]) -> list[_Row]:
    # What is wrong comes first, then what took time, then points; the higher ones of each before the deeper.
    left = SPANS
    for row in sorted(rows, key=lambda row: (not row.problem, row.point, row.level)):
        chain: list[_Row] = []
        above: _Row | None = row
        while above is not None and not above.kept:
            chain.append(above)
            above = above.parent
        if len(chain) > left:
            break
        left -= len(chain)
        for one in chain:
            one.kept = True
    return [row for row in rows if row.kept]


def _whole(rows: Iterable[_Row]) -> float:
    ends = [sound_seconds(row.node.offset) + sound_seconds(row.node.duration) for row in rows]
    return max([_SHORTEST, *ends])


def _place(row: _Row, whole: float) -> None:
    start = sound_seconds(row.node.offset)
    end = whole if row.status == "open" else start + sound_seconds(row.node.duration)
    row.left, row.width = _percent(start / whole), _percent((end - start) / whole)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.4f}"


def _ticks(whole: float) -> Iterator[_Tick]:
    step = _step(whole / _TICKS)
    for index in range(math.floor(whole / step * 1.000001) + 1):
        yield _Tick(_percent(index * step / whole), show_seconds(index * step) if index else "0")


def _step(least: float) -> float:
    if least > 1:
        return next((step for step in _STEPS if step >= least), math.ceil(least / 86400) * 86400)
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * 0.999999)


def _fill(rows: Sequence[_Row]) -> Counter[str]:
    cut: Counter[str] = Counter()
    left = PAYLOADS
    for row in sorted(rows, key=lambda row: (not row.problem, row.number)):
        events: list[_Event] = []
        for group in _groups(row.node):
            values: list[_Value] = []
            hint = ""
            if left <= 0:
                cut["payloads"] += len(group)
                hint = "Not on this page, which has all the payloads that it may hold."
            else:
                for key, value in _payload(group).items():
                    text, whole = _text(value)
                    cut["values"] += len(text) < whole
                    left -= len(text)
                    literal = value is None or isinstance(value, (bool, int, float))
                    values.append(_Value(_cut(key, _TITLE), text, _folded(text, whole), literal))
            if values and any(event.lossy for event in group):
                hint = "Lossy: what was emitted cannot be told from what is stored."
            events.append(_Event(group[0].event, _about(group, row), values, hint))
        row.events = events
    return cut


def _events(node: Node) -> list[StoredEvent]:
    events = {event.seq: event for event in (node.start, *node.events, node.end) if event is not None}
    return list(events.values())


def _groups(node: Node) -> Iterator[list[StoredEvent]]:
    for channel, events in groupby(_events(node), lambda event: event.channel):
        if channel == _CHUNK:
            yield list(events)
        else:
            yield from ([event] for event in events)


def _payload(group: Sequence[StoredEvent]) -> Mapping[str, Any]:
    if len(group) == 1:
        return group[0].payload
    # Nobody unfolds a thousand chunks to read one answer.
    return {"chunk_content": "".join(str(event.payload.get("chunk_content") or "") for event in group)}


def _about(group: Sequence[StoredEvent], row: _Row) -> str:
    first, last = group[0], group[-1]
    if len(group) > 1:
        return f"{len(group):,} times, {stamp(first.timestamp)} to {stamp(last.timestamp)}"
    nested = row.kind == "run" and row.parent is not None
    return (
        f"{stamp(first.timestamp)} · sequence {first.seq}{f' · run {first.correlation_id}' if nested else ''}"
    )


def _text(value: Any) -> tuple[str, int]:
    traceback = as_dict(value).get("traceback")
    if isinstance(traceback, str):
        # That of an error says all that there is, in lines.
        value = traceback
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return "what is stored here is too large or too deep to be shown", 0
    if len(text) <= VALUE:
        return text, len(text)
    head = VALUE * 3 // 4
    note = f"\n{CUT} {len(text) - VALUE:,} characters left out {CUT}\n"
    return f"{text[:head]}{note}{text[head - VALUE :]}", len(text)


def _folded(text: str, whole: int) -> str:
    lines = text.count("\n") + 1
    if len(text) <= _FOLDED and lines <= _FOLDED_LINES:
        return ""
    return f"{whole:,} characters, {lines:,} lines" if lines > 1 else f"{whole:,} characters"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + CUT


def _facts(run: StoredRun, rows: Sequence[_Row], whole: float) -> Iterator[tuple[str, str, bool]]:
    yield "Correlation id", run.correlation_id, True
    if run.parent_id is not None:
        yield "Started by run", run.parent_id, True
    yield "Started", stamp(run.started).replace("T", " ").replace("Z", " UTC"), False
    yield (
        "Took",
        f"{show_seconds(whole)} so far" if run.duration is None else show_seconds(run.duration),
        False,
    )
    kinds = Counter(row.kind for row in rows)
    for kind, name in (
        ("turn", "Turns"),
        ("model", "Model calls"),
        ("tool", "Tool calls"),
        ("step", "Steps"),
    ):
        if kinds[kind]:
            yield name, f"{kinds[kind]:,}", False
    if kinds["run"] > 1:
        yield "Nested runs", f"{kinds['run'] - 1:,}", False
    tokens = _tokens(rows)
    if tokens:
        yield "Tokens", ", ".join(f"{number:,} {name}" for name, number in tokens.items()), False
    yield "Events", f"{run.events:,}", False


def _tokens(rows: Iterable[_Row]) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for event in [event for row in rows for event in _events(row.node) if event.channel == _ANSWER]:
        add_tokens(tokens, as_dict(event.payload.get("usage")))
    if tokens["input"] or tokens["output"]:
        # Not everybody tells it, so that it need not be the sum of these.
        del tokens["total"]
    return +tokens


def _glance(rows: Iterable[_Row]) -> str:
    below = [row for row in rows if row.listed]
    statuses = Counter(row.status for row in below)
    counts = [
        (statuses["failed"], "failed"),
        (statuses["denied"], "denied"),
        (statuses["max_turns"], "ended with their turns used up"),
        (statuses["open"], "not ended"),
        (statuses["ok"], f"more decision{'' if statuses['ok'] == 1 else 's'} of gates"),
    ]
    return ", ".join(f"{number:,} {name}" for number, name in counts if number)


def _legend(rows: Sequence[_Row]) -> list[_Shape]:
    kinds, statuses = {row.kind for row in rows}, {row.status for row in rows}
    shapes = [
        _Shape(f"bar {kind}", kind) for kind in ("run", "turn", "model", "tool", "step") if kind in kinds
    ]
    if "event" in kinds:
        shapes.append(_Shape("point event", "a point in time"))
    return shapes + [_Shape(f"bar tool {key}", name) for key, name in _BADGES.items() if key in statuses]


def _left_out(rows: Sequence[_Row], everything: Sequence[_Row], cut: Counter[str]) -> Iterator[str]:
    if len(rows) < len(everything):
        yield f"{len(everything) - len(rows):,} of {len(everything):,} spans, marked where they were"
    if cut["values"]:
        yield f"the middle of long values: {cut['values']:,}"
    if cut["payloads"]:
        yield f"payloads of events: {cut['payloads']:,}"


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{number:,} {_NAMES.get(kind, kind)}{'' if number == 1 else 's'}" for kind, number in counts.items()
    )
