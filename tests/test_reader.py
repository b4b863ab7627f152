"""
What can be asked of a trace store, also while it is written, and what is said of a file that is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import traces
from traces import row, run_rows, write

from eventbus import EventbusError, trace
from eventbus._lines import format_line
from eventbus._reader import CANDIDATES, PAGE, STRIDE
from eventbus.trace import AmbiguousRunError, TraceFileError, UnknownRunError

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
import million_events


@pytest.fixture
def path(tmp_path):
    """Return where the store is."""
    return tmp_path / "runs.db"


def ids(runs):
    return [run.correlation_id for run in runs]


class TestRuns:
    """The runs of a store."""

    @pytest.fixture
    def reader(self, path):
        """Return a reader of three runs and an id without one."""
        write(path, run_rows("old", 1000.0))
        write(path, run_rows("new", 3000.0, agent="scout", parent_id="old"))
        refund = {"id": "c1", "name": "refund", "input": {}}
        write(
            path,
            [
                row("mid", "inference.started", timestamp=2000.0, agent="sundae", message="hi"),
                row("mid", "tool_call.denied", timestamp=2001.0, tool_call=refund, reason="no", by="Guard.x"),
                row("mid", "inference.failed", timestamp=2002.0, agent="sundae", duration=2.0),
                row("scope", "handler.failed", timestamp=500.0, handler="Audit.note"),
            ],
        )
        with trace.open(path) as reader:
            yield reader

    def test_the_newest_comes_first(self, reader):
        """By the time of their first event."""
        assert ["new", "mid", "old", "scope"] == ids(reader.runs())
        assert ["new", "mid"] == ids(reader.runs(limit=2))
        assert [] == ids(reader.runs(limit=0))

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({"agent": "sundae"}, ["mid", "old"]),
            ({"status": "failed"}, ["mid"]),
            ({"tool": "lookup"}, ["new", "old"]),
            ({"tool": "refund"}, ["mid"]),
            ({"tool": "look"}, []),
            ({"since": 2000.0}, ["new", "mid"]),
            ({"until": datetime.fromtimestamp(2000, UTC)}, ["old", "scope"]),
            ({"parent_id": "old"}, ["new"]),
            ({"agent": "sundae", "tool": "lookup", "since": 0}, ["old"]),
        ],
    )
    def test_filters_narrow(self, reader, filters, expected):
        """Each alone, and together; a tool that was refused counts."""
        assert expected == ids(reader.runs(**filters))

    def test_a_run_is_summed_up(self, reader):
        """Status, times, counts, and the beginning of its message."""
        run = reader.run("mid")
        assert ("failed", 2000.0, 2002.0, 2.0) == (run.status, run.started, run.ended, run.duration)
        assert ("sundae", "hi", None) == (run.agent, run.message, run.parent_id)
        assert (3, 1, 1) == (run.events, run.failures, run.refusals)
        assert reader.run("scope").status is None

    def test_more_than_a_page(self, path):
        """Pages join without a gap, also among runs of one time."""
        write(path, [row(f"r{n:05}", "step.started", timestamp=float(n // 7)) for n in range(2 * PAGE + 5)])
        with trace.open(path) as reader:
            assert [f"r{n:05}" for n in reversed(range(2 * PAGE + 5))] == ids(reader.runs())
            assert PAGE + 3 == len(ids(reader.runs(limit=PAGE + 3)))


class TestFind:
    """Which run is meant."""

    @pytest.fixture
    def reader(self, path):
        """Return a reader of runs whose ids begin alike."""
        write(path, [row(cid, "step.started") for cid in ("abc", "abcd", "abx", "b c", "größe", "\u0431")])
        with trace.open(path) as reader:
            yield reader

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("abc", "abc"),
            (" abcd\n", "abcd"),
            ("abx", "abx"),
            ("ab…", None),
            ("abcd…", "abcd"),
            ("gr", "größe"),
            ("b", "b c"),
            (format_line(1000.0, "b c", "TOOL OK lookup"), "b c"),
            (format_line(1000.0, "abc", "INF START") + "\n", "abc"),
            (json.dumps({"event": "x", "cid": "abx"}), "abx"),
        ],
    )
    def test_an_id_a_prefix_or_a_line(self, reader, text, expected):
        """An id that is also the beginning of another is that id; a cut one is a prefix."""
        if expected is None:
            with pytest.raises(AmbiguousRunError):
                reader.find(text)
        else:
            assert expected == reader.find(text)

    @pytest.mark.parametrize("text", ["", "…", "zz", "abce", "{", "[1]", '{"cid": 3}', "\ud800"])
    def test_what_no_run_has(self, reader, text):
        """The error names the file and what was asked for."""
        with pytest.raises(UnknownRunError, match=r"runs\.db has no run with the id"):
            reader.find(text)

    def test_a_line_without_an_id(self, reader):
        """It belongs to no run."""
        with pytest.raises(UnknownRunError, match="no id"):
            reader.find(format_line(1.0, None, "ORDER PLACED"))

    @pytest.mark.parametrize(
        "text", ["12:00 INFO [cid=abx] INF START", f"web-1 | {format_line(1.0, 'abx', 'INF START')}"]
    )
    def test_a_line_of_a_collector(self, reader, text):
        """Its id is found among what stands around it."""
        assert "abx" == reader.find(text)

    @pytest.mark.parametrize("cid", [" abc", "abc ", "\tabc", '{"cid": "abc"}', '"abc"', "abc…", "abc x\n"])
    def test_an_id_that_looks_like_another(self, path, cid):
        """An id that is there as it stands is meant, whatever else it might mean."""
        write(path, [row(one, "step.started") for one in ("abc", cid)])
        with trace.open(path) as reader:
            assert cid == reader.find(cid)
            assert [cid] == [event.correlation_id for event in reader.events(cid)]

    def test_an_ambiguous_prefix_names_candidates(self, reader):
        """In their order; the error is a LookupError too."""
        with pytest.raises(AmbiguousRunError, match="abc, abcd, abx") as caught:
            reader.find("ab")
        assert ("abc", "abcd", "abx") == caught.value.candidates
        assert isinstance(caught.value, LookupError)

    def test_of_many_candidates_some_are_named(self, path):
        """The text says that there are more."""
        write(path, [row(f"r{n:02}", "step.started") for n in range(CANDIDATES + 5)])
        with trace.open(path) as reader, pytest.raises(AmbiguousRunError, match=r"r09, \.\.\.; ") as caught:
            reader.find("r")
        assert CANDIDATES == len(caught.value.candidates)

    def test_half_a_surrogate_pair(self, path):
        """An id that SQLite cannot hold is found as it was emitted, and as it is shown."""

        def emit():
            traces.order_event().emit(order_id="A1", correlation_id="\ud800")

        with trace.open(traces.filled(path, emit)) as reader:
            assert reader.find("\\ud800") == reader.find("\ud800") == "\\ud800"

    def test_a_very_long_id(self, path):
        """It is stored cut, and found as it was emitted."""
        cid = "x" * 1000

        def emit():
            traces.order_event().emit(order_id="A1", correlation_id=cid)

        with trace.open(traces.filled(path, emit)) as reader:
            assert reader.find(cid).startswith("xxx")

    def test_a_run_that_was_just_removed(self, reader):
        """Between finding and reading it may be deleted."""
        reader.find = lambda text: "gone"
        with pytest.raises(UnknownRunError, match="any more"):
            reader.run("gone")


class TestEvents:
    """The events of a store."""

    def test_those_of_one_run_by_sequence(self, path):
        """Never by time; `after` is a cursor."""
        write(path, [row("a", "step.started", timestamp=time, name=str(time)) for time in (3.0, 1.0, 2.0)])
        write(path, run_rows("b"))
        with trace.open(path) as reader:
            events = list(reader.events("a"))
            assert ["3.0", "1.0", "2.0"] == [event.payload["name"] for event in events]
            assert events[1:] == list(reader.events("a", after=events[0].seq))

    def test_columns_and_payload(self, path):
        """What the store has of an event, as the event had it."""
        with trace.open(write(path, run_rows("a"))) as reader:
            event = next(event for event in reader.events("a") if event.tool)
        assert ("eventbus.tool_call.started", "ToolCallStartedEvent") == (event.channel, event.event)
        assert ("a", "sundae", "lookup", "c-a") == (
            event.correlation_id,
            event.agent,
            event.tool,
            event.span_id,
        )
        assert {"order": "A1"} == event.payload["tool_call"]["input"]
        assert (None, False) == (event.duration, event.lossy)

    def test_an_unknown_run_is_told_at_once(self, path):
        """Not when the first event is asked for."""
        with trace.open(write(path, run_rows("a"))) as reader, pytest.raises(UnknownRunError):
            reader.events("zz")

    def test_following_by_sequence(self, path):
        """All events of all runs, from a cursor, a bounded number at a time."""
        write(path, run_rows("a"))
        with trace.open(path) as reader:
            first = reader.follow(limit=3)
            rest = reader.follow(first[-1].seq)
            assert list(range(1, 9)) == [event.seq for event in first + rest]
            assert [] == reader.follow(reader.last_seq())
            write(path, run_rows("b"))
            assert {"b"} == {event.correlation_id for event in reader.follow(8)}
            assert [15, 16] == [event.seq for event in reader.tail(2)]

    def test_many_pages(self, path):
        """They join without a gap."""
        write(path, [row("a", "step.started", name=str(n)) for n in range(2 * PAGE + 1)])
        with trace.open(path) as reader:
            assert list(map(str, range(2 * PAGE + 1))) == [e.payload["name"] for e in reader.events("a")]

    def test_no_reader_keeps_writers_waiting(self, path):
        """Between two events another connection can do what needs the file for itself."""
        write(path, run_rows("a"))
        with trace.open(path) as reader:
            events = reader.events("a")
            next(events)
            other = sqlite3.connect(path, timeout=0)
            assert (0, 0, 0) == other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            other.close()
            assert 7 == len(list(events))

    @pytest.mark.parametrize("payload", ["nothing", "[1]", b"\x00", '{"a": 1'])
    def test_a_payload_that_somebody_else_has_written(self, path, payload):
        """What is no JSON object is shown as it is, and marked."""
        write(path, run_rows("a"))
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE events SET payload = ?", (payload,))
        other.close()
        with trace.open(path) as reader:
            event = reader.follow(limit=1)[0]
        assert ({"payload": payload}, True) == (event.payload, event.lossy)

    @pytest.mark.parametrize("number", ["'soon'", "9e999", "x'00'"])
    def test_a_number_that_somebody_else_has_written(self, path, number):
        """There is none."""
        write(path, run_rows("a"))
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute(f"UPDATE events SET timestamp = {number}, duration = {number}")
            other.execute(f"UPDATE runs SET started = {number}, ended = {number}, duration = {number}")
        with trace.open(path) as reader:
            (run,) = reader.runs()
            assert (0.0, None, None) == (run.started, run.ended, run.duration)
            assert run == reader.run("a")
            assert {(0.0, None)} == {(event.timestamp, event.duration) for event in reader.events("a")}

    def test_export(self, path):
        """Of one run or all, as dicts that JSON can hold."""
        write(path, [*run_rows("a"), *run_rows("b"), row(None, "step.started", name="x")])
        with trace.open(path) as reader:
            everything = [json.loads(json.dumps(one)) for one in reader.export()]
            assert 17 == len(everything)
            assert everything[8:16] == list(reader.export("b"))
        assert ["seq", "correlation_id", "timestamp", "channel", "event"] == list(everything[0])[:5]


class TestSearch:
    """Looking for a text."""

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("lookup", [5, 6]),
            ("LOOKUP", []),
            ('{"total":12}', [6]),
            ('{"total": 12}', [6]),
            ('{"data": {"total": 12}, "error": null}', [6]),
            ('say "hello"', [9]),
            ("größe\n", [9]),
            ("100%", [9]),
            ("a_b", [9]),
            ("shop.order", [9]),
            ("b", [9]),
            ("nosuch", []),
        ],
    )
    def test_it_is_found_where_it_stands(self, path, text, found):
        """In keys and values, ids and names, as it was emitted; nothing in it is a pattern."""
        note = row(None, "shop.order", event_name="Order", text='say "hello" größe\n100% a_b')
        with trace.open(write(path, [*run_rows("x-1"), note])) as reader:
            assert found == [event.seq for event in reader.search(text) if text != "b" or event.seq == 9]

    def test_case_can_be_ignored(self, path):
        """Of ASCII letters; % and _ and backslashes stay what they are."""
        with trace.open(write(path, [*run_rows("a"), row("b", "step.started", name="50%_\\")])) as reader:
            assert [5, 6] == [event.seq for event in reader.search("LOOKUP", ignore_case=True)]
            assert [9] == [event.seq for event in reader.search("50%_\\", ignore_case=True)]
            assert [] == list(reader.search("L_OKUP", ignore_case=True))

    def test_progress_is_told(self, path):
        """By sequence numbers, to the end."""
        write(path, [row("a", "step.started") for _ in range(2 * STRIDE + 1)])
        told = []
        with trace.open(path) as reader:
            assert [] == list(reader.search("nosuch", progress=lambda *numbers: told.append(numbers)))
        total = 2 * STRIDE + 1
        assert [(STRIDE, total), (2 * STRIDE, total), (total, total)] == told

    def test_an_interrupt_is_heard(self, path):
        """Between two strides; what was found until then was yielded."""
        write(path, [row("a", "step.started") for _ in range(STRIDE + 1)])

        def stop(*_numbers):
            raise KeyboardInterrupt

        with trace.open(path) as reader, pytest.raises(KeyboardInterrupt):
            list(reader.search("nosuch", progress=stop))

    def test_an_empty_store(self, path):
        """There is nothing to look at."""
        with trace.open(write(path, [])) as reader:
            assert [] == list(reader.search("x"))


class TestStats:
    """Numbers about a store."""

    def test_counts(self, path):
        """Runs by status, events, failures, refusals, losses, times, and the check."""
        write(path, [*run_rows("a"), *run_rows("b", 2000.0)])
        write(path, [row("c", "inference.denied", timestamp=1500.0, agent="x"), row("d", "handler.failed")])
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.executemany(
                "INSERT INTO losses (timestamp, count, reason) VALUES (1, ?, ?)",
                [(2, "full"), (3, "full"), (1, "encoding")],
            )
        other.close()
        with trace.open(path) as reader:
            stats = reader.stats()
        assert {"completed": 2, "denied": 1, None: 1} == stats.runs
        assert (18, 1, 1, 0) == (stats.events, stats.failures, stats.refusals, stats.lossy)
        assert {"full": 5, "encoding": 1} == stats.losses
        assert (1000.0, 1000.0) == (stats.first, stats.last)
        assert ("ok", sqlite3.sqlite_version) == (stats.check, stats.sqlite)

    def test_tools_with_percentiles(self, path):
        """Nearest ranks, durations that calls really took; the slowest by the 95th first."""
        slow = {"id": "c", "name": "slow", "input": {}}
        quick = {"id": "c", "name": "quick", "input": {}}
        done = [row("a", "tool_call.completed", tool_call=slow, duration=n / 10) for n in range(1, 100)]
        done += [
            row("a", "tool_call.failed", tool_call=slow, duration=10.0),
            row("a", "tool_call.completed", tool_call=quick),
            row("a", "tool_call.started", tool_call=quick),
        ]
        with trace.open(write(path, done)) as reader:
            first, second = reader.stats().tools
        assert ("slow", 100, 1) == (first.tool, first.calls, first.failed)
        assert (5.0, 9.5, 9.9, 10.0) == (first.p50, first.p95, first.p99, first.max)
        assert ("quick", 1, 0, 0.0, 0.0) == (second.tool, second.calls, second.failed, second.p50, second.max)

    @pytest.mark.parametrize(
        ("usages", "expected"),
        [
            ([{"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}] * 2, (6, 8, 14)),
            ([{"input_tokens": 3, "output_tokens": 4}, {"prompt_tokens": 1}], (4, 4, None)),
            ([None, "many", [1], {"prompt_tokens": "3"}, {}, {"prompt_tokens": True}], (None, None, None)),
        ],
    )
    def test_tokens(self, path, usages, expected):
        """As providers name them; what is no number is not counted."""
        write(path, [row("a", "inference.generated", usage=usage) for usage in usages])
        with trace.open(path) as reader:
            tokens = reader.stats().tokens
        assert expected == tuple(tokens.get(name) for name in ("input", "output", "total"))

    def test_the_write_ahead_log_counts(self, path):
        """What is not in the file yet is on the disk as well."""
        write(path, run_rows("a"))
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE events SET lossy = 1")
            other.commit()
            log = Path(f"{path}-wal").stat().st_size
            with trace.open(path) as reader:
                assert log > 0
                assert path.stat().st_size + log == reader.stats().size
        other.close()

    def test_progress_is_told(self, path):
        """To the end."""
        told = []
        with trace.open(write(path, run_rows("a"))) as reader:
            reader.stats(lambda *numbers: told.append(numbers))
        assert [(8, 8)] == told

    def test_an_empty_store(self, path):
        """Zeros, and no times."""
        with trace.open(write(path, [])) as reader:
            stats = reader.stats()
        assert ({}, 0, [], {}, None, None) == (
            stats.runs,
            stats.events,
            stats.tools,
            stats.tokens,
            stats.first,
            stats.last,
        )


class TestFiles:
    """What is no store, and where stores may be."""

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "There is no trace store"),
            (b"", "empty"),
            (b"no database at all, but a text that is longer than a header " * 20, "cannot be read"),
        ],
    )
    def test_what_is_no_store(self, path, content, said):
        """One error, which is an OSError too, and names the file."""
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TraceFileError, match=said) as caught:
            trace.open(path)
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, OSError)
        assert isinstance(caught.value, EventbusError)

    def test_a_folder_is_no_store(self, tmp_path):
        """Nothing is opened."""
        with pytest.raises(TraceFileError, match="no trace store"):
            trace.open(tmp_path)

    def test_somebody_elses_database(self, path):
        """It is not taken for one, whatever its tables are called."""
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE events (seq)")
        other.close()
        with pytest.raises(TraceFileError, match="another application"):
            trace.open(path)

    def test_a_newer_store(self, path):
        """It says what to do."""
        write(path, [])
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("PRAGMA user_version = 99")
        other.close()
        with pytest.raises(TraceFileError, match="newer"):
            trace.open(path)

    def test_damage_that_is_met_later(self, path):
        """What was opened and then turns out to be damaged is one error as well."""
        write(path, [row("a", "step.started", name="x" * 5000) for _ in range(50)])
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(b"\xff" * (path.stat().st_size - 8192))
        with trace.open(path) as reader, pytest.raises(TraceFileError, match="cannot be read as a trace"):
            list(reader.events("a"))

    def test_a_closed_reader(self, path):
        """Closing twice is fine; asking it is a mistake of the program's."""
        with trace.open(write(path, [])) as reader:
            reader.close()
        with pytest.raises(sqlite3.ProgrammingError):
            reader.follow()

    def test_nothing_is_written(self, path):
        """The connection refuses to."""
        with (
            trace.open(write(path, run_rows("a"))) as reader,
            pytest.raises(TraceFileError, match="readonly"),
        ):
            reader._all("DELETE FROM events")

    def test_a_replaced_file_is_told(self, path):
        """Deleted, or another in its place."""
        with trace.open(write(path, run_rows("a"))) as reader:
            assert not reader.is_replaced()
            path.unlink()
            assert reader.is_replaced()
            write(path, run_rows("b"))
            assert reader.is_replaced()

    @pytest.fixture
    def sealed(self, tmp_path):
        """Return a function that closes a folder to everybody who would write in it."""
        folder = tmp_path / "sealed"
        folder.mkdir()
        user = os.geteuid() if hasattr(os, "geteuid") else None
        if user is None:
            pytest.skip("folders that cannot be written to are a thing of Unix")

        def seal():
            for name in [folder, *folder.iterdir()]:
                name.chmod(0o555 if name.is_dir() else 0o444)
            for parent in folder.parents:
                if (
                    user == 0
                    and parent.stat().st_uid == 0
                    and str(parent).startswith(str(tmp_path.parents[2]))
                ):
                    parent.chmod(parent.stat().st_mode | 0o055)
            if user == 0:
                os.seteuid(65534)

        yield folder, seal
        if user == 0:
            os.seteuid(0)
        folder.chmod(0o755)

    def test_in_a_folder_that_cannot_be_written_to(self, sealed):
        """A store that nobody is writing is read as it stands."""
        folder, seal = sealed
        write(folder / "runs.db", run_rows("a"))
        seal()
        with trace.open(folder / "runs.db") as reader:
            assert 8 == len(list(reader.events("a")))

    def test_a_log_in_a_folder_that_cannot_be_written_to(self, sealed, path):
        """What is still in the log would be missing: it says what to do."""
        folder, seal = sealed
        write(path, run_rows("a"))
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("UPDATE events SET lossy = 1")
            other.commit()
            for name in (path, f"{path}-wal"):
                shutil.copy(name, folder)
        other.close()
        seal()
        with pytest.raises(TraceFileError, match=r"Copy it with its -wal"):
            trace.open(folder / "runs.db")

    def test_a_file_that_may_not_be_read(self, sealed):
        """It is an error of its own."""
        folder, seal = sealed
        write(folder / "runs.db", run_rows("a"))
        seal()
        if os.geteuid() == 65534:
            os.seteuid(0)
            (folder / "runs.db").chmod(0)
            os.seteuid(65534)
        else:
            (folder / "runs.db").chmod(0)
        with pytest.raises(TraceFileError, match="unable to open"):
            trace.open(folder / "runs.db")


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """Return a store of some thousand events, with what is known of its tables."""
    path = million_events.build(tmp_path_factory.mktemp("big") / "runs.db", 5000)
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("ANALYZE")
    other.close()
    return path


class TestPlans:
    """What SQLite does for a question: no scan of the events."""

    @pytest.mark.parametrize("analyzed", [True, False])
    @pytest.mark.parametrize(
        ("asked", "search"),
        [
            (lambda r, cid: list(r.events(cid)), "SEARCH events USING INDEX events_by_cid (cid=? AND"),
            (lambda r, cid: r.find(cid[:9]), "SEARCH runs USING PRIMARY KEY (cid>? AND cid<?)"),
            (lambda r, cid: r.run(cid), "SEARCH runs USING PRIMARY KEY (cid=?)"),
            (lambda r, cid: list(r.runs(limit=20)), "SCAN runs USING INDEX runs_by_start"),
            (lambda r, cid: list(r.runs(agent="scout", limit=20)), "USING INDEX runs_by_agent (agent=?"),
            (lambda r, cid: list(r.runs(status="failed", limit=20)), "USING INDEX runs_by_status (status=?"),
            (lambda r, cid: list(r.runs(tool="refund", limit=20)), "events_by_tool (tool=? AND cid=?)"),
            (lambda r, cid: list(r.runs(since=1.0, until=2.0)), "USING INDEX runs_by_start (started>?"),
            (lambda r, cid: list(r.runs(parent_id=cid)), "USING INDEX runs_by_parent (parent_id=?"),
            (lambda r, cid: r.follow(5), "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)"),
        ],
        ids=["trace", "prefix", "run", "runs", "agent", "status", "tool", "since", "parent", "follow"],
    )
    def test_no_scan_of_the_events(self, big, tmp_path, analyzed, asked, search):
        """Whether or not SQLite knows how the values are spread."""
        path = big
        if not analyzed:
            path = million_events.build(tmp_path / "runs.db", 500)
        with trace.open(path) as reader:
            cid = reader.follow(limit=1)[0].correlation_id
            done = []
            run = reader._all
            reader._all = lambda statement, *values: (
                done.append((statement, values)) or run(statement, *values)
            )
            asked(reader, cid)
            plans = [
                plan[3]
                for statement, values in done
                for plan in run(f"EXPLAIN QUERY PLAN {statement}", *values)
            ]
        assert any(search in plan for plan in plans), plans
        assert [] == [plan for plan in plans if plan.startswith("SCAN") and "runs USING INDEX" not in plan]
