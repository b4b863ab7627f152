"""
The page of a stored run: what it shows and leaves out, how it is written, and what a browser makes of it.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from eventbus import ApproveToolCallEvent, Hook, Run, ToolCall, _timeline, catalog, on, trace
from eventbus._lines import escape
from eventbus._reader import StoredEvent, StoredRun
from eventbus._timeline import PAYLOADS, SPANS, VALUE, render, write_page
from eventbus._tree import Node
from eventbus.cli import cli

STARTED = 1_769_860_800.25
CID = "0123456789abcdef0123456789abcdef"


def event(name: str, /, seq: int = 1, *, at: float = 0.0, lossy: bool = False, **payload: Any) -> StoredEvent:
    """
    Make an event as a store has it.
    """
    tool = payload.get("tool_call", {}).get("name")
    channel = vars(catalog)[name].channel if name in catalog.__all__ else f"shop.{name}"
    return StoredEvent(seq, CID, STARTED + at, channel, name, None, "airline", tool, None, lossy, payload)


def run(**fields: Any) -> StoredRun:
    """
    Make what a store keeps of a run.
    """
    given = {"status": "completed", "duration": 2.0, "message": "Book a flight", **fields}
    return StoredRun(
        **{
            "correlation_id": CID,
            "parent_id": None,
            "agent": "airline",
            "started": STARTED,
            "ended": None,
            "first_seq": 1,
            "last_seq": 9,
            "events": 9,
            "failures": 0,
            "refusals": 0,
            **given,
        }
    )


def node(kind: str, title: str, offset: float = 0.0, duration: float | None = None, **fields: Any) -> Node:
    """
    Make a part of a tree that went well, unless something else is said.
    """
    return Node(kind, title, fields.pop("status", "ok"), offset, duration, **fields)


def tree(*children: Node, **fields: Any) -> Node:
    """
    Make a run of two seconds with these parts.
    """
    return node("run", "airline", 0.0, 2.0, children=list(children), **fields)


def sample() -> Node:
    """
    Make a run with a bit of everything that can happen.
    """
    started = event(
        "InferenceStartedEvent", 1, message="Book a flight", run={"id": CID, "metadata": {"user": "mia"}}
    )
    call = {"id": "call_0", "name": "search", "input": {"to": "SEA"}}
    decision = event(
        "GateDecisionEvent", 5, by="Caps.check", action="deny", reason="over the limit", tool_call=call
    )
    edited = event("GateDecisionEvent", 6, by="Caps.limit", action="edit", field="arguments", tool_call=call)
    answer = event(
        "InferenceGeneratedEvent", 3, usage={"prompt_tokens": 1200, "output_tokens": 34, "total_tokens": 0}
    )
    error = {"type": "OSError", "text": "no route", "traceback": "Traceback:\n  here\nOSError: no route"}
    return tree(
        node(
            "turn",
            "turn 1",
            0.0,
            2.0,
            start=event("TurnStartedEvent", 2, turn=1),
            children=[
                node("model", "m-1", 0.1, 0.5, end=answer),
                node("tool", "search", 0.7, 0.00001, start=event("ToolCallStartedEvent", 4, tool_call=call)),
                node(
                    "tool",
                    "refund",
                    0.9,
                    status="denied",
                    note="over the limit, by Caps.check",
                    start=event("ToolCallDeniedEvent", 7, tool_call=call),
                    children=[
                        node(
                            "event",
                            "deny refund",
                            0.9,
                            status="denied",
                            note="over the limit, by Caps.check",
                            start=decision,
                        )
                    ],
                ),
                node("event", "edit search", 0.95, note="field arguments, by Caps.limit", start=edited),
                node(
                    "tool",
                    "book",
                    1.0,
                    1.0,
                    status="failed",
                    note="OSError: no route",
                    end=event("ToolCallFailedEvent", 8, at=2.0, error=error, tool_call=call),
                ),
                node(
                    "step",
                    "wait",
                    1.5,
                    status="open",
                    start=event("StepStartedEvent", 9, at=1.5, name="wait"),
                ),
                node(
                    "run",
                    "helper",
                    1.2,
                    0.2,
                    start=event("InferenceStartedEvent", 10, at=1.2, message="Help"),
                ),
            ],
        ),
        start=started,
        end=event("InferenceCompletedEvent", 11, at=2.0, result={"content": "Done"}),
    )


class Reading(HTMLParser):
    """
    What a page says, as text, and whether its elements are nested as HTML wants it.
    """

    VOID = frozenset({"meta", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[tuple[frozenset[str], str]] = []
        self.rows: list[str] = []
        self.feed(page)
        self.close()
        assert [] == self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "row" in (given.get("class") or "").split():
            self.rows.append(given["class"] or "")
        if tag not in self.VOID:
            self.open.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()[0]

    def handle_data(self, data: str) -> None:
        if data.strip():
            names = {name for tag, given in self.open for name in (tag, *(given.get("class") or "").split())}
            self.said.append((frozenset(names), data))

    def texts(self, *names: str) -> list[str]:
        """Return the texts inside elements of these names and classes."""
        return [text for within, text in self.said if within >= set(names)]

    @property
    def text(self) -> str:
        """All that can be read."""
        return " ".join(text.strip() for within, text in self.said if not within & {"style", "script"})


def read(root: Node, **fields: Any) -> Reading:
    """
    Make the page of a run and read it.
    """
    return Reading(render(root, run(**fields)))


def facts(page: Reading) -> dict[str, str]:
    """
    Return what the head of a page says of the run.
    """
    return dict(zip(page.texts("facts", "dt"), page.texts("facts", "dd"), strict=True))


class TestShown:
    def test_the_head_says_what_the_run_was(self) -> None:
        """
        Agent, status, message, id, start, duration and the counts of what is in the tree stand at the top.
        """
        page = read(sample(), parent_id="run-0")

        assert ["airline", "completed"] == [text for text in page.texts("h1") if text.strip()]
        assert ["Book a flight"] == page.texts("message")
        assert {
            "Correlation id": CID,
            "Started by run": "run-0",
            "Started": "2026-01-31 12:00:00.250 UTC",
            "Took": "2 s",
            "Turns": "1",
            "Model calls": "1",
            "Tool calls": "3",
            "Steps": "1",
            "Nested runs": "1",
            "Tokens": "1,200 input, 34 output",
            "Events": "9",
        } == facts(page)

    @pytest.mark.parametrize(
        ("status", "shown"),
        [
            ("failed", "failed"),
            ("denied", "denied"),
            ("max_turns", "turns used up"),
            ("running", "not ended"),
            (None, "no run's events"),
            ("paused", "paused"),
        ],
    )
    def test_every_status_has_its_words(self, status: str | None, shown: str) -> None:
        """
        The status stands beside the agent's name, also one that this version does not know.
        """
        assert shown in read(tree(), status=status).texts("h1", "badge")

    def test_what_is_not_known_is_not_shown(self) -> None:
        """
        A run without agent, message, end and tokens says nothing of them.
        """
        page = read(
            node("run", CID, status="open"), agent=None, message=None, duration=None, status="running"
        )

        assert "run" in page.texts("h1", "bdi")
        assert [] == page.texts("message")
        assert "1 µs so far" == facts(page)["Took"]
        assert "Tokens" not in facts(page)

    def test_tokens_in_all_are_shown_where_nothing_else_is_known(self) -> None:
        """
        A provider that counts them together is quoted so.
        """
        answer = event("InferenceGeneratedEvent", usage={"total_tokens": 70, "input_tokens": True})

        assert "70 total" == facts(read(tree(node("model", "m-1", 0, 1, end=answer))))["Tokens"]

    def test_problems_come_first(self) -> None:
        """
        Failures, refusals, gates' decisions and what has not ended are listed at the top, a refusal once.
        """
        page = read(sample())

        assert ["1 failed, 1 denied, 1 not ended, 1 more decision of gates"] == page.texts("glance", "h2")
        assert ["tool refund", "edit search", "tool book", "step wait"] == page.texts("glance", "a")
        assert [
            "over the limit, by Caps.check",
            "field arguments, by Caps.limit",
            "OSError: no route",
        ] == page.texts("glance", "why")

    def test_the_list_of_problems_is_bounded(self) -> None:
        """
        A run in which all fails lists the first thirty and says how many more there are.
        """
        page = read(tree(*(node("tool", f"t{n}", 0, 1, status="failed") for n in range(42))))

        assert 30 == len(page.texts("glance", "a"))
        assert ["and 12 more"] == page.texts("glance", "more")

    def test_a_run_without_problems_has_no_list(self) -> None:
        """
        Nothing stands between head and timeline when all went well.
        """
        assert [] == read(tree(node("tool", "search", 0, 1))).texts("glance")

    def test_what_is_wrong_is_said_in_words_where_it_happened(self) -> None:
        """
        A row carries the word and the reason, not a colour alone.
        """
        page = read(sample())

        assert ["denied", "denied", "gate", "failed", "not ended"] == page.texts("row", "label", "badge")
        assert [
            "over the limit, by Caps.check",
            "field arguments, by Caps.limit",
            "OSError: no route",
        ] == page.texts("row", "note")

    def test_a_row_has_its_start_and_duration(self) -> None:
        """
        Each row says when it began and how long it took.
        """
        page = read(tree(node("tool", "search", 0.75, 0.25)))

        assert ["+0", "+750 ms"] == [text for text in page.texts("row", "start") if text.startswith("+")]
        assert ["2 s", "250 ms"] == [text for text in page.texts("row", "took") if not text.startswith(",")]

    def test_payloads_are_shown_key_by_key(self) -> None:
        """
        A text stands as it is, anything else as indented JSON, and an error as its traceback.
        """
        page = read(sample())

        assert "Book a flight" in page.texts("events", "dd", "pre")
        assert json.dumps({"id": CID, "metadata": {"user": "mia"}}, indent=2) in page.texts(
            "events", "dd", "pre"
        )
        assert "Traceback:\n  here\nOSError: no route" in page.texts("events", "dd", "pre")

    def test_what_is_told_of_a_part_stands_between_its_start_and_end(self) -> None:
        """
        A part's events are shown in order, with the chunks of one answer put together.
        """
        chunks = [
            event("InferenceChunkEvent", 2 + n, at=n, chunk_content=text)
            for n, text in enumerate(("He", "llo"))
        ]
        received = event("ToolCallsReceivedEvent", 4, tool_calls=[])
        start, end = event("ModelCallStartedEvent", 1), event("InferenceGeneratedEvent", 5)
        page = read(tree(node("model", "m-1", 0, 1, start=start, end=end, events=[*chunks, received])))

        assert [
            "ModelCallStartedEvent",
            "InferenceChunkEvent",
            "ToolCallsReceivedEvent",
            "InferenceGeneratedEvent",
        ] == page.texts("events", "h3", "bdi")
        assert "Hello" in page.texts("events", "pre")
        assert "2 times, 2026-01-31T12:00:00.250Z to 2026-01-31T12:00:01.250Z" in page.texts(
            "events", "h3", "span"
        )

    def test_a_nested_run_has_its_id(self) -> None:
        """
        The start of a run within the run tells the id under which its own page is found.
        """
        assert f"2026-01-31T12:00:01.450Z · sequence 10 · run {CID}" in read(sample()).texts(
            "events", "h3", "span"
        )

    def test_what_is_lossy_says_so(self) -> None:
        """
        A payload that could not be stored whole is marked.
        """
        page = read(tree(start=event("InferenceStartedEvent", lossy=True, message="<lock>")))

        assert ["Lossy: what was emitted cannot be told from what is stored."] == page.texts("hint")

    def test_a_part_without_events_has_nothing_to_unfold(self) -> None:
        """
        A row without payloads is no control.
        """
        page = read(tree(node("turn", "turn 1", 0, 1)))

        assert 2 == len(page.rows)
        assert [] == page.texts("chart", "details")

    @pytest.mark.parametrize("text", ["<b>&amp;\"'", "a\u2028b", "\u202ecba", "\x1b[31m", "\ud800", "\x00"])
    def test_texts_are_escaped_and_unprintables_spelt_out(self, text: str) -> None:
        """
        Markup is text, and what cannot be seen is written as the log writes it.
        """
        root = tree(node("tool", text, 0, 1, note=text, status="failed", start=event(text, **{text: text})))
        page = read(root, agent=text, message=text, correlation_id=text)

        for place in (
            ("h1", "bdi"),
            ("message",),
            ("row", "title"),
            ("note",),
            ("h3", "bdi"),
            ("dt", "bdi"),
            ("pre",),
        ):
            assert escape(text) in page.texts(*place)
        assert text.isprintable() or text not in page.text

    def test_lines_and_tabs_stay(self) -> None:
        """
        A text of several lines is shown in several lines.
        """
        assert "a\n\tb" in read(tree(start=event("E", message="a\n\tb"))).texts("pre")


class TestBounds:
    def test_many_spans(self) -> None:
        """
        What is wrong is shown first, then what took time; what does not fit is counted in its place.
        """
        tools = [node("tool", f"t{n}", 0.1, 0.1) for n in range(SPANS)]
        points = [node("event", "OrderPlaced", 0.1) for n in range(500)]
        broken = node("tool", "broken", 1, 1, status="failed")
        page = read(tree(node("turn", "turn 1", 0, 2, children=[*points, *tools, broken])))

        assert SPANS == len(page.rows)
        assert "broken" in page.texts("row", "title")
        assert "OrderPlaced" not in page.texts("row", "title")
        assert ["503 of 2,503 spans, marked where they were"] == page.texts("left-out", "li")
        assert ["left out here: 500 events, 3 tool calls"] == page.texts("omitted")
        assert ["eventbus trace 0123456789abcdef0123456789abcdef --json"] == [
            "".join(page.texts("left-out", "code"))
        ]

    def test_the_command_for_all_of_it_is_quoted(self) -> None:
        """
        Whoever chose the id cannot choose what a shell does with it.
        """
        tools = [node("tool", f"t{n}", 0.1, 0.1) for n in range(SPANS)]
        page = read(tree(*tools), correlation_id="$(boom)")

        assert ["eventbus trace '$(boom)' --json"] == ["".join(page.texts("left-out", "code"))]

    def test_what_is_left_out_below_what_is_left_out(self) -> None:
        """
        What is left out below a part that is left out is counted where the page still has a place for it.
        """
        steps = [node("step", f"s{n}", 0, 1, children=[node("event", "E", 0)]) for n in range(SPANS)]
        page = read(tree(*steps))

        assert ["left out here: 1 step, 1 event", "left out here: 1 event"] == page.texts("omitted")[:2]

    def test_a_long_value_loses_its_middle(self) -> None:
        """
        Of a value that is too long, the beginning and the end are shown, and what is between is counted.
        """
        text = "a" * VALUE + "middle" + "z" * VALUE
        page = read(tree(start=event("E", message=text)))
        (shown,) = page.texts("events", "pre")

        assert shown.startswith("a" * (VALUE * 3 // 4) + "\n… 16,006 characters left out …\nz")
        assert shown.endswith("z" * (VALUE // 4))
        assert ["the middle of long values: 1"] == page.texts("left-out", "li")

    def test_many_payloads(self) -> None:
        """
        When a page is full, the payloads of failures are on it, and the others are counted.
        """
        text = "x" * VALUE
        calls = [
            node("tool", "t", 0, 1, start=event("E", n, message=text)) for n in range(PAYLOADS // VALUE + 10)
        ]
        broken = node("tool", "broken", 1, 1, status="failed", start=event("E", 9999, message="why"))
        page = read(tree(*calls, broken))

        assert "why" in page.texts("events", "pre")
        assert ["payloads of events: 10"] == page.texts("left-out", "li")
        assert ["Not on this page, which has all the payloads that it may hold."] * 10 == page.texts("hint")

    def test_long_values_are_folded_within_the_payload(self) -> None:
        """
        A value of many characters or lines says how long it is and is unfolded by itself.
        """
        page = read(tree(start=event("E", short="x" * 1000, long="x" * 1300, lines="x\n" * 30)))

        assert ["1,300 characters", "60 characters, 31 lines"] == page.texts("events", "dd", "summary")

    def test_a_value_that_json_refuses(self) -> None:
        """
        What is nested too deeply to be written is named instead.
        """
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        try:
            page = read(tree(start=event("E", data=deep)))
        finally:
            while deep:
                deep = deep.pop()

        assert ["what is stored here is too large or too deep to be shown"] == page.texts("events", "pre")

    def test_a_deep_tree(self) -> None:
        """
        However deep runs are nested, the page is well-formed and the indent ends somewhere.
        """
        root = node("step", "innermost", 0, 1)
        for _ in range(150):
            root = node("run", "agent", 0, 1, children=[root])
        page = read(root)

        assert 151 == len(page.rows)
        assert page.rows[-1].endswith("step ok d12")

    @pytest.mark.parametrize(
        ("number", "shown"),
        [
            (math.nan, "+0"),
            (-math.inf, "+0"),
            (-5.0, "+0"),
            (5e-324, "+0 µs"),
            (math.inf, "+1,157,407 d 10 h"),
            (1e308, "+1,157,407 d 10 h"),
        ],
    )
    def test_numbers_that_are_no_times(self, number: float, shown: str) -> None:
        """
        A file that somebody has written to by hand still makes a page.
        """
        page = read(tree(node("tool", "search", number, number)))

        assert ["+0", shown] == [text for text in page.texts("row", "start") if text.startswith("+")]


class TestTimes:
    @given(st.floats(min_value=1e-9, max_value=1e9))
    def test_an_axis_has_a_handful_of_round_times(self, whole: float) -> None:
        """
        Whatever a run took, its axis has four to nine ticks from 0, in order and within it.
        """
        ticks = list(_timeline._ticks(whole))
        places = [float(tick.left) for tick in ticks]

        assert 3 <= len(ticks) <= 10
        assert "0" == ticks[0].label
        assert sorted(places) == places
        assert 100.0001 >= places[-1]

    @pytest.mark.parametrize(
        ("whole", "labels"),
        [
            (0.004, ["0", "500 µs", "1 ms"]),
            (2.58, ["0", "500 ms", "1 s"]),
            (100, ["0", "15 s", "30 s"]),
            (600, ["0", "2 min", "4 min"]),
            (7200, ["0", "15 min", "30 min"]),
            (86400 * 30, ["0", "4 d", "8 d"]),
        ],
    )
    def test_ticks_are_where_a_clock_has_them(self, whole: float, labels: list[str]) -> None:
        """
        Steps are 1, 2 or 5 of a decimal unit, and those of a clock from a second up.
        """
        assert labels == [tick.label for tick in _timeline._ticks(whole)][:3]


class TestWritten:
    def test_only_its_owner_can_read_it(self, tmp_path: Path) -> None:
        """
        The page holds payloads; its mode is 0600, also where a file with another was before.
        """
        file = tmp_path / "run.html"
        file.write_text("before")
        file.chmod(0o644)
        write_page(sample(), run(), file)

        assert 0o600 == stat.S_IMODE(file.stat().st_mode)
        assert render(sample(), run()) == file.read_text(encoding="utf-8")
        assert ["run.html"] == os.listdir(tmp_path)

    def test_a_link_stays_one(self, tmp_path: Path) -> None:
        """
        What a link leads to is replaced, not the link.
        """
        (tmp_path / "pages").mkdir()
        link = tmp_path / "run.html"
        link.symlink_to(tmp_path / "pages" / "page.html")
        write_page(sample(), run(), link)

        assert link.is_symlink()
        assert link.read_text(encoding="utf-8").startswith("<!doctype html>")

    def test_a_file_is_kept_until_the_new_one_is_complete(self, tmp_path: Path) -> None:
        """
        When the disk takes no more, the earlier page is still there and nothing half-written is.
        """
        resource = pytest.importorskip("resource", reason="limits of files are a thing of Unix")
        file = tmp_path / "run.html"
        file.write_text("before")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large") as caught:
                write_page(sample(), run(), file)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert str(file) == caught.value.filename
        assert "before" == file.read_text()
        assert ["run.html"] == os.listdir(tmp_path)

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        """
        The error names the file that was asked for.
        """
        file = tmp_path / "none" / "run.html"
        with pytest.raises(FileNotFoundError) as caught:
            write_page(sample(), run(), file)

        assert str(file) == caught.value.filename

    def test_a_directory_is_no_file(self, tmp_path: Path) -> None:
        """
        A directory is left alone.
        """
        with pytest.raises(IsADirectoryError):
            write_page(sample(), run(), tmp_path)

        assert [] == os.listdir(tmp_path)

    @pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="there is no /dev/null")
    def test_a_device_is_written_to(self) -> None:
        """
        What is no regular file is not replaced by one.
        """
        write_page(sample(), run(), "/dev/null")

        assert Path("/dev/null").is_char_device()

    def test_without_jinja2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        The error names the extra to install.
        """
        monkeypatch.setitem(sys.modules, "jinja2", None)
        _timeline._template.cache_clear()

        with pytest.raises(ImportError, match=re.escape("pip install 'eventbus[cli]'")):
            render(sample(), run())


@pytest.fixture(scope="module")
def chromium():
    """
    Start one browser for all tests here.
    """
    with browser.started() as running:
        yield running


@pytest.fixture
def opened(chromium, tmp_path):
    """
    Return a function that opens the page of a run.
    """

    def open_page(root, *, change=None, fields=None, **view):
        file = tmp_path / "run.html"
        write_page(root, run(**(fields or {})), file)
        if change is not None:
            file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
        chromium.open(file, **view)
        return chromium

    return open_page


# What would run, ask for something or break out of its place, if it were anything but text.
HOSTILE = [
    "<script>pwned = 1</script>",
    "</script><script>pwned = 1</script>",
    "</style><style>* { display: none }</style>",
    "</pre></title></textarea><img src=x onerror='pwned = 1'>",
    '"><img src=https://example.invalid/a.png onerror=pwned=1>',
    "' onmouseover='pwned = 1' autofocus onfocus='pwned = 1",
    "<svg onload=pwned=1><a href=javascript:pwned=1>click</a></svg>",
    "<iframe srcdoc='<script>top.pwned = 1</script>'></iframe><object data=x></object>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'><base href=https://example.invalid/>",
    "<link rel=stylesheet href=https://example.invalid/a.css><!--",
    "javascript:pwned=1",
    "{{ 7 * 7 }}{% raw %}${pwned = 1}",
    "]]>&lt;script&gt;&#0;",
    "\u2028\u2029\u202eltr\u2066\x00\x1b[31m\ud800\ufeff",
]


def everywhere(text):
    """
    Make a run that has a text at every place that comes from outside.
    """
    hostile = event(
        text, 1, lossy=True, **{text: text, "deep": [{text: [text]}], "error": {"traceback": text}}
    )
    decision = event("GateDecisionEvent", 2, by=text, action=text, reason=text)
    return tree(
        node("tool", text, 0.1, 0.5, status="failed", note=text, start=hostile, end=decision),
        node("event", text, 0.7, note=text, start=decision),
        node(text, text, 0.8, 0.1, status=text, note=text, events=[hostile, hostile]),
        start=hostile,
    )


SHAPE = """
return [...document.querySelectorAll('*')].map(
  element => element.localName + ' ' + [...element.attributes].map(attribute => attribute.name).join(' ')
);
"""
"""All elements of a page with the names of their attributes."""

BOX = "const box = arguments[0].getBoundingClientRect(); return [box.left, box.width];"

CONTRAST = """
const channel = part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
const parts = colour => colour.match(/[0-9.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const ratio = (one, other) => {
  const [dark, bright] = [light(parts(one)), light(parts(other))].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
};
const behind = element => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if ((parts(colour)[3] ?? 1) === 1) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const low = [];
for (const element of document.querySelectorAll('body *:not(script)')) {
  const style = getComputedStyle(element);
  const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  if (own && ratio(style.color, behind(element)) < 4.5) low.push(element.outerHTML);
  const bar = element.matches('.bar, .point');
  if (bar && ratio(style.borderTopColor, behind(element.parentElement)) < 3) low.push(element.outerHTML);
}
return low;
"""
"""The elements that stand out too little."""


class TestInABrowser:
    def test_a_click_unfolds_a_payload(self, opened) -> None:
        """
        Payloads are folded at first; a click on a row unfolds its own, another folds it.
        """
        page = opened(sample())
        payload, summary = page.one("#s0 > details > .events"), page.one("#s0 > details > summary")
        seen = [payload.is_displayed()]
        for _ in range(2):
            summary.click()
            seen.append(payload.is_displayed())

        assert [False, True, False] == seen

    def test_the_keyboard_unfolds_a_payload(self, opened) -> None:
        """
        Rows are reached with Tab, and Enter and the space bar unfold and fold them.
        """
        page = opened(sample())
        payload = page.one("#s1 > details > .events")
        page.one("#unfold").send_keys("\t\t")
        focused = page.driver.switch_to.active_element
        seen = [payload.is_displayed()]
        for key in ("\n", " "):
            focused.send_keys(key)
            seen.append(payload.is_displayed())

        assert page.one("#s1 > details > summary") == focused
        assert [False, True, False] == seen

    def test_it_works_without_the_script(self, opened) -> None:
        """
        Where no script runs, rows unfold all the same, and what needs the script is not there.
        """
        page = opened(sample(), change=lambda text: re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL))
        page.one("#s0 > details > summary").click()

        assert page.one("#s0 > details > .events").is_displayed()
        assert not page.one(".controls").is_displayed()

    def test_all_can_be_unfolded_and_folded(self, opened) -> None:
        """
        One button unfolds every payload and every long value in them, and then folds them.
        """
        page = opened(tree(node("tool", "t", 0, 1, start=event("E", message="x" * 2000)), start=event("E")))
        button, counts = page.one("#unfold"), []
        for _ in range(2):
            button.click()
            counts.append((button.text, len(page.all("details[open]"))))

        assert [("Fold all", 3), ("Unfold all", 0)] == counts

    def test_rows_can_be_found(self, opened) -> None:
        """
        What is typed leaves the rows that have it, in a name, a note or a payload, and those above them.
        """
        page = opened(sample())
        page.one("#find").send_keys("NO ROUTE")

        assert ["airline", "turn 1", "book"] == [
            title.text for title in page.all(".title") if title.is_displayed()
        ]
        assert "1 of 10" == page.one("#found").text
        page.one("#find").send_keys(" to be found")
        assert page.one(".nothing").is_displayed()

    def test_problems_can_be_picked_out(self, opened) -> None:
        """
        A box leaves what failed, was refused, was changed by a gate or has not ended.
        """
        page = opened(sample())
        page.one("#problems").click()

        assert ["airline", "turn 1", "refund", "deny refund", "edit search", "book", "wait"] == [
            title.text for title in page.all(".title") if title.is_displayed()
        ]

    def test_a_problem_leads_to_its_row(self, opened) -> None:
        """
        A link in the list at the top leads to where it happened.
        """
        page = opened(sample())
        page.one(".glance a").click()

        assert ["refund"] == [title.text for title in page.all(".row:target > details > summary .title")]

    def test_hostile_texts_stay_texts(self, opened) -> None:
        """
        Wherever they stand, nothing of them runs, becomes an element or an attribute, or asks for anything.
        """
        shapes = []
        # As many words, so that the pages differ in nothing else.
        for texts in ([re.sub("[^ ]+", "x", text) for text in HOSTILE], HOSTILE):
            whole = " ".join(texts)
            fields = {
                "agent": whole,
                "message": whole,
                "status": whole,
                "parent_id": whole,
                "correlation_id": whole,
            }
            page = opened(tree(*map(everywhere, texts)), fields=fields)
            page.one("#unfold").click()
            shapes.append(page.run(SHAPE))

        assert shapes[0] == shapes[1]
        assert page.run("return typeof pwned === 'undefined'")
        assert [] == page.requests()
        assert [] == page.violations()
        assert escape(" ".join(HOSTILE)) in page.one("title").get_property("textContent")
        shown = page.run("return [...document.querySelectorAll('bdi, pre')].map(one => one.textContent)")
        assert [] == [text for text in HOSTILE if shown.count(escape(text)) < 12]

    def test_nothing_is_requested(self, opened) -> None:
        """
        The page is whole in itself, and breaks no rule of its own policy, unfolded or not.
        """
        page = opened(sample())
        page.one("#unfold").click()

        assert [] == page.requests()
        assert [] == page.violations()

    def test_its_policy_forbids_what_it_does_not_have(self, opened) -> None:
        """
        Were there markup of somebody else's on the page, the browser would neither fetch nor run it.
        """
        foreign = "<img src=https://example.invalid/a.png><script>pwned = 1</script><style>h1 {}</style>"
        page = opened(sample(), change=lambda text: text.replace("<main>", f"<main>{foreign}"))

        assert [] == page.requests()
        assert ["img-src", "script-src-elem", "style-src-elem"] == sorted(page.violations())
        assert page.run("return typeof pwned === 'undefined'")

    def test_a_request_would_be_seen(self, chromium, tmp_path) -> None:
        """
        The browser tells what a page asks for.
        """
        file = tmp_path / "asking.html"
        file.write_text("<!doctype html><title>t</title><img src=https://example.invalid/a.png>")
        chromium.open(file)

        assert ["https://example.invalid/a.png"] == chromium.requests()

    @pytest.mark.parametrize("width", [1280, 360])
    def test_bars_are_to_scale(self, opened, width: int) -> None:
        """
        A bar begins and ends where its part did, within a pixel of the axis, and what is tiny can be seen.
        """
        root = sample()
        page = opened(root, width=width)
        axis = page.run(BOX, page.one(".axis .ticks"))
        for number, (_, part) in enumerate(root.walk()):
            left, size = page.run(BOX, page.one(f"#b{number}"))
            if part.status == "open":
                assert pytest.approx(axis[1] * (2 - part.offset) / 2, abs=1.5) == size
            elif part.duration is None:
                assert pytest.approx(axis[0] + axis[1] * part.offset / 2, abs=1.5) == left + size / 2
            else:
                assert pytest.approx(axis[0] + axis[1] * part.offset / 2, abs=1.5) == left
                assert pytest.approx(max(3, axis[1] * part.duration / 2), abs=1.5) == size

    @pytest.mark.parametrize("width", [1280, 360])
    def test_ticks_are_where_their_times_are(self, opened, width: int) -> None:
        """
        The axis and the lines down from it stand where the bars are measured from.
        """
        page = opened(sample(), width=width)
        axis = page.run(BOX, page.one(".axis .ticks"))
        lines = [page.run(BOX, line)[0] for line in page.all(".grid i")]

        # Half a second each.
        assert (
            pytest.approx([axis[0] + axis[1] * n / 4 for n in range(5)], abs=1.5)
            == lines[:: (len(lines) - 1) // 4]
        )

    @pytest.mark.parametrize("width", [1280, 360])
    def test_nothing_is_wider_than_the_screen(self, opened, width: int) -> None:
        """
        Long words are broken, and nobody scrolls sideways, unfolded or not.
        """
        long = "x" * 3000
        page = opened(everywhere(long), width=width, fields={"agent": long, "message": long})
        page.one("#unfold").click()

        assert width >= page.run("return document.documentElement.scrollWidth")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_texts_and_bars_can_be_told_from_what_is_behind_them(self, opened, scheme: str) -> None:
        """
        Texts have a contrast of 4.5 to 1 at least and bars one of 3 to 1, as WCAG 2.2 wants it.
        """
        page = opened(sample(), scheme=scheme)
        page.one("#unfold").click()
        low = page.run(CONTRAST)

        assert [] == low

    def test_in_print(self, opened) -> None:
        """
        What is unfolded is printed, in the light colours, bars with their colours, without the controls.
        """
        page = opened(sample(), media="print", scheme="dark")
        page.run("document.querySelector('#s0 > details').open = true")

        assert not page.one(".controls").is_displayed()
        assert page.one("#s0 > details > .events").is_displayed()
        assert "rgb(255, 255, 255)" == page.run("return getComputedStyle(document.body).backgroundColor")
        assert {("avoid", "exact")} == {
            tuple(style)
            for style in page.run(
                "return [...document.querySelectorAll('.line')].map(line => getComputedStyle(line))"
                ".map(style => [style.breakInside, style.printColorAdjust])"
            )
        }

    def test_as_many_spans_as_there_may_be(self, opened) -> None:
        """
        A page of the largest size opens and can be searched.
        """
        page = opened(
            tree(*(node("tool", f"tool {n}", n / SPANS, 0.1, start=event("E", n=n)) for n in range(SPANS)))
        )
        page.one("#find").send_keys("tool 1234")

        assert "1 of 2000" == page.one("#found").text

    def test_the_page_of_a_real_run(self, chromium, tmp_path: Path) -> None:
        """
        What a run has emitted, the store has kept and the command has written is what can be seen.
        """

        class Guard(Hook):
            @on(ApproveToolCallEvent, when=lambda event: event.tool_call.name == "refund")
            def judge(self, event):
                event.denied = "ask first"

        def search(api_key):
            with Run(agent="helper", message="Look it up"):
                raise LookupError("no such flight")

        trace.start(tmp_path / "runs.db")
        with Run(agent="airline", message="Book a flight") as made, made.step("prepare"):
            calls = [ToolCall("call_0", "search", {"api_key": "canary"}), ToolCall("call_1", "refund")]
            made.call_tools(calls, {"search": search, "refund": dict})
        trace.stop()
        file = tmp_path / "run.html"
        arguments = ["trace", made.id, "--db", str(tmp_path / "runs.db"), "--html", str(file)]
        done = CliRunner().invoke(cli, arguments)
        chromium.open(file)

        assert (0, "") == (done.exit_code, done.stdout)
        assert ["completed"] == [badge.text for badge in chromium.all("h1 .badge")]
        assert ["airline", "prepare", "search", "helper", "refund", "deny refund"] == [
            title.text for title in chromium.all(".row .title")
        ]
        assert ["tool search", "run helper", "tool refund"] == [
            link.text for link in chromium.all(".glance a")
        ]
        assert "canary" not in file.read_text(encoding="utf-8")
