"""
The commands that read a trace store, as they are used on a terminal and through a pipe, and interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import click
import pytest
import terminal
import traces
from click.testing import CliRunner
from recordings import AIRLINE, REFUNDS, ROOT, needs_airline
from traces import row, run_rows, write

from eventbus import Event, configure, parse_line, trace
from eventbus._lines import format_line
from eventbus._trace_commands import _first_line, moment
from eventbus.cli import cli
from eventbus.testing import capture


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Run each command in an empty folder, with no store named by the environment."""
    monkeypatch.delenv("EVENTBUS_TRACE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path(tmp_path):
    """Return where commands look for a store without being told."""
    return tmp_path / "eventbus.db"


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """Return a store in which everything has happened."""
    from eventbus import _settings
    from eventbus.testing import isolated

    path = tmp_path_factory.mktemp("rich") / "rich.db"
    before = _settings.settings.log
    with isolated():
        configure(log="off")
        traces.gates()
        order = traces.order_event()
        traces.filled(path, lambda: traces.everything(order))
    # Not with `configure`, to which a setting that was never given says nothing.
    _settings.settings.log = before
    for listener in _settings._listeners:
        listener(frozenset({"log"}))
    return path


def invoke(*arguments, status=0, **more):
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments], **more)
    assert status == done.exit_code, done.output
    return done


def on_terminal(*arguments, cwd, **more):
    done = terminal.run(["-m", "eventbus", *map(str, arguments)], cwd=cwd, **more)
    return done._replace(stdout=terminal.plain(done.stdout), stderr=terminal.plain(done.stderr))


def cells(line):
    return re.split(r"  +", line.strip())


class TestStore:
    """Which store is read."""

    def test_the_default_is_in_the_working_directory(self, path):
        """`./eventbus.db`."""
        write(path, run_rows("here"))
        assert "here" in invoke("runs").stdout

    def test_the_environment_names_one(self, path, tmp_path):
        """EVENTBUS_TRACE, unless `--db` says otherwise."""
        write(path, run_rows("here"))
        other, third = (
            write(tmp_path / "o.db", run_rows("other")),
            write(tmp_path / "t.db", run_rows("third")),
        )
        env = {"EVENTBUS_TRACE": str(other)}
        assert "other" in invoke("runs", env=env).stdout
        assert "third" in invoke("runs", "--db", third, env=env).stdout

    @pytest.mark.parametrize(
        "arguments",
        [["runs"], ["trace", "x"], ["tail"], ["grep", "x"], ["stats"], ["replay", "--db", "no.db"]],
    )
    def test_one_that_is_missing_or_no_store(self, path, arguments):
        """One sentence on stderr, and the status of unusable input."""
        done = invoke(*arguments, status=2)
        assert ("", 1) == (done.stdout, done.stderr.count("Error: "))
        assert "--db" in done.stderr
        path.write_bytes(b"text, not a database; and longer than a header has to be, by some way" * 9)
        done = invoke(*[path if word == "no.db" else word for word in arguments], status=2)
        assert "cannot be read as a trace store" in done.stderr

    def test_a_newer_one(self, path):
        """It says what to do."""
        write(path, run_rows("a"))
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA user_version = 99")
        for command in (["runs"], ["trace", "a"], ["grep", "x"]):
            done = invoke(*command, status=2)
            assert ("", 1) == (done.stdout, done.stderr.count("Error: "))
            assert "newer eventbus" in done.stderr

    def test_a_damaged_one(self, path):
        """It is said by whoever meets it, without a traceback."""
        write(path, [row("a", "step.started", name="x" * 5000) for _ in range(50)])
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(b"\xff" * (path.stat().st_size - 8192))
        for command in (["trace", "a"], ["stats"], ["grep", "x"]):
            assert "cannot be read as a trace store" in invoke(*command, status=2).stderr


class TestRuns:
    """`runs`."""

    def test_the_newest_first(self, path):
        """A row each, with what an operator looks for."""
        write(path, [*run_rows("old", 1000.0), *run_rows("new", 2000.5)])
        write(path, [row("scope", "step.failed", timestamp=3000.0, name="x")])
        headings, *rows = map(cells, invoke("runs").stdout.splitlines())
        assert headings[:5] == ["run", "status", "agent", "started", "seconds"]
        assert [
            ["scope", "-", "-", "1970-01-01T00:50:00.000Z", "-", "1", "1", "0", "-"],
            ["new", "completed", "sundae", "1970-01-01T00:33:20.500Z", "1.000", "8", "0", "0", "hi"],
            ["old", "completed", "sundae", "1970-01-01T00:16:40.000Z", "1.000", "8", "0", "0", "hi"],
        ] == rows

    @pytest.mark.parametrize(
        ("options", "found"),
        [
            (["--limit", "1"], ["new"]),
            (["--agent", "scout"], ["new"]),
            (["--status", "completed", "--agent", "sundae"], ["old"]),
            (["--tool", "lookup", "--until", "1970-01-01T00:20"], ["old"]),
            (["--since", "1970-01-01 00:20:00+00:00"], ["new"]),
        ],
    )
    def test_filters(self, path, options, found):
        """Each narrows what is listed."""
        write(path, [*run_rows("old", 1000.0), *run_rows("new", 2000.5, agent="scout")])
        assert found == [line.split()[0] for line in invoke("runs", *options).stdout.splitlines()[1:]]

    def test_none(self, path):
        """It says so, with the status of nothing found; JSON is an empty list."""
        write(path, [])
        assert "eventbus.db has no runs.\n" == invoke("runs", status=1).stderr
        assert "eventbus.db has no such runs.\n" == invoke("runs", "--agent", "x", status=1).stderr
        assert [] == json.loads(invoke("runs", "--json", status=1).stdout)

    def test_json(self, path):
        """All that is known of each."""
        write(path, run_rows("a", parent_id="b"))
        (run,) = json.loads(invoke("runs", "--json").stdout)
        assert ("a", "b", "completed", 8) == (
            run["correlation_id"],
            run["parent_id"],
            run["status"],
            run["events"],
        )

    def test_on_a_terminal(self, rich, tmp_path):
        """A table of its width; ids that are cut can be given to `trace`."""
        done = on_terminal("runs", "--db", rich, cwd=ROOT)
        lines = done.stdout.splitlines()
        assert terminal.WIDTH >= max(map(len, lines))
        assert any(line.startswith("rich-1 ") and "completed" in line for line in lines)
        assert any(re.search(r"Please refund \\x1b\[2J.* \d+ bad$", line) for line in lines)

    def test_on_a_narrow_terminal(self, rich, tmp_path):
        """Id and status are seen whole; what there is no room for is left out."""
        done = on_terminal("runs", "--db", rich, cwd=ROOT, COLUMNS="40")
        lines = done.stdout.splitlines()
        assert 40 >= max(map(len, lines))
        assert ["message", "Status", "Events"] == lines[2].split()
        assert any(re.fullmatch(r"rich-1 +completed +\d+", line) for line in lines)

    def test_a_time_that_is_none(self):
        """The fix is named."""
        assert "2h for two hours ago" in invoke("runs", "--since", "yesterday", status=2).stderr


class TestMoments:
    """Times as they are given."""

    @pytest.mark.parametrize(
        ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400), ("2w", 1209600)]
    )
    def test_how_long_ago(self, text, seconds):
        """A number and a unit."""
        then = moment(text)
        ago = datetime.now(UTC) - then
        assert timedelta(seconds=seconds) <= ago < timedelta(seconds=seconds + 60)

    def test_utc_unless_it_says_otherwise(self):
        """As the lines of the log are."""
        assert datetime(2026, 1, 31, tzinfo=UTC) == moment("2026-01-31")
        assert datetime(2026, 1, 31, 11, tzinfo=UTC) == moment("2026-01-31T12:00:00+01:00")

    @pytest.mark.parametrize("text", ["", "h", "2026-13-01", "999999999999w"])
    def test_what_is_none(self, text):
        """It is refused by name."""
        with pytest.raises(click.BadParameter, match="is no time"):
            moment(text)


class TestTrace:
    """`trace`."""

    def test_a_tree_with_offsets_and_durations(self, path):
        """Each part on a line, under what it happened in."""
        write(path, run_rows("a"))
        assert [
            "a  completed",
            "started 1970-01-01T00:16:40.000Z, took 1 s, 8 events",
            "hi",
            "",
            "    0.000s       1 s  sundae",
            "    0.000s    800 ms    turn 1",
            "    0.000s    500 ms      model m-1 prompt_tokens 10, completion_tokens 5, total_tokens 15",
            '    0.000s    250 ms      tool lookup {"order": "A1"}',
        ] == invoke("trace", "a").stdout.splitlines()

    def test_by_prefix_line_or_stdin(self, path):
        """Whatever was copied."""
        write(path, run_rows("refund-0001"))
        line = format_line(1000.0, "refund-0001", "TOOL OK lookup")
        assert 1 == len(
            {
                invoke("trace", "refund").stdout,
                invoke("trace", line).stdout,
                invoke("trace", "-", input=f"{line}\nmore\n").stdout,
            }
        )

    def test_what_is_unknown_or_ambiguous(self, path):
        """Nothing found is 1; an ambiguous prefix is 2 and lists whom it may mean."""
        write(path, [*run_rows("run-1"), *run_rows("run-2\n")])
        assert "no run with the id 'x'" in invoke("trace", "x", status=1).stderr
        done = invoke("trace", "run", status=2)
        assert ["  run-1", "  run-2\\n"] == done.stderr.splitlines()[1:]

    def test_refusals_failures_and_nested_runs(self, rich):
        """In words, where they happened, with reason and author; the place of an error too."""
        text = invoke("trace", "rich-1", "--db", rich).stdout
        assert re.search(r"model m-1 FAILED TimeoutError: no answer \(traces.py:\d+ in ask", text)
        assert re.search(r"tool boom FAILED \{.*\} RuntimeError: boom \\x1b\[2J\\u202e\\n<script>", text)
        assert 'tool refund DENIED {"amount": 24} refunds above 20 need a colleague, by Guard.check' in text
        assert "deny lookup would refuse, by Watch.watch, not applied" in text
        assert re.search(r"tool helper .*\n(.*\n)?.*  helper\n.*    step retrieve\n", text)
        assert re.search(r"handler failed: Broken.boom ValueError: no total", text)
        assert re.search(r"ContextCompactedEvent strategy=window before=10 after=5", text)
        assert "started from rich-1" in invoke("trace", "nested-1", "--db", rich).stdout
        assert "max-1  max_turns" in invoke("trace", "max-1", "--db", rich).stdout
        assert "turn 1 OPEN" in invoke("trace", "kill-1", "--db", rich).stdout
        assert "loop-1  no run" in invoke("trace", "loop-1", "--db", rich).stdout

    def test_payloads_in_full(self, rich):
        """What was stored of each event; texts of several lines are several lines."""
        lines = [
            line.strip() for line in invoke("trace", "fail-1", "--full", "--db", rich).stdout.splitlines()
        ]
        start = next(n for n, line in enumerate(lines) if line.startswith("InferenceFailedEvent "))
        assert ["agent: sundae", "message: fail", "error:"] == lines[start + 1 : start + 4]
        assert "traceback:" in lines
        assert 'raise KeyError("missing")' in lines
        assert re.fullmatch(r"- traces.py:\d+ in everything", lines[lines.index("frames:") + 1])

    def test_json(self, rich):
        """The run and its tree, with the events of each part."""
        told = json.loads(invoke("trace", "rich-1", "--json", "--db", rich).stdout)
        assert ("rich-1", "completed") == (told["run"]["correlation_id"], told["run"]["status"])
        turns = [child["title"] for child in told["tree"]["children"]]
        assert ["turn 1", "turn 2", "turn 3", "turn 4"] == turns
        assert "InferenceStartedEvent" == told["tree"]["start"]["event"]

    def test_on_a_terminal(self, rich, tmp_path):
        """Within its width, notes wrapped under what they are about; no control character of a payload."""
        done = terminal.run(["-m", "eventbus", "trace", "rich-1", "--db", str(rich)], cwd=ROOT)
        lines = terminal.plain(done.stdout).splitlines()
        assert terminal.WIDTH >= max(map(len, lines))
        assert any(re.search(r"│ ├ step tools", line) for line in lines)
        assert any(line.endswith('tool refund DENIED {"amount": 24}') for line in lines)
        assert "\x1b[2J" not in done.stdout
        assert "\u202e" not in done.stdout

    def test_in_full_on_a_terminal(self, rich, tmp_path):
        """Nothing of a payload moves the cursor."""
        done = terminal.run(["-m", "eventbus", "trace", "rich-1", "--full", "--db", str(rich)], cwd=ROOT)
        assert re.search("│ +metadata:", terminal.plain(done.stdout))
        assert "\x1b[2J" not in done.stdout

    def test_long_payloads_on_a_terminal(self, path):
        """Nothing of them is cut: they go on in the next line, under where they began."""
        text = " ".join(str(number) for number in range(300))
        write(path, [row("a", "step.started", name=text, span_id="s"), *run_rows("a")])
        lines = on_terminal("trace", "a", "--full", cwd=path.parent).stdout.splitlines()
        assert terminal.WIDTH >= max(map(len, lines))
        start = next(n for n, line in enumerate(lines) if "name: 0 1" in line)
        assert text in " ".join(line.strip("│ ") for line in lines[start:])

    def test_a_deep_tree_on_a_terminal(self, path):
        """What a line is about is seen, however deep it is."""
        steps = [row("a", "step.started", name=f"step-{n}", span_id=str(n)) for n in range(50)]
        write(path, [row("a", "inference.started", agent="sundae"), *steps])
        lines = on_terminal("trace", "a", cwd=path.parent).stdout.splitlines()
        assert terminal.WIDTH >= max(map(len, lines))
        assert re.fullmatch(r" +0.000s +… +└ step step-49 OPEN", lines[-1])

    def test_a_deep_tree_as_json(self, path):
        """It can be read back."""
        steps = [row("a", "step.started", name=f"step-{n}", span_id=str(n)) for n in range(1500)]
        write(path, [row("a", "inference.started", agent="sundae"), *steps])
        assert "step-1499" in str(json.loads(invoke("trace", "a", "--json").stdout)["tree"])

    @pytest.mark.parametrize("said", [b"", b"\xff\xfe\n"])
    def test_stdin_that_has_no_id(self, path, said):
        """No run is found."""
        write(path, run_rows("a"))
        assert "has no run" in invoke("trace", "-", input=said, status=1).stderr

    def test_a_closed_stdin(self, path, monkeypatch):
        """No run is found."""
        write(path, run_rows("a"))
        command = [sys.executable, "-m", "eventbus", "trace", "-"]
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, check=False
        )
        assert (1, 1) == (done.returncode, done.stderr.count("\n"))
        monkeypatch.setattr(sys, "stdin", None)
        assert "" == _first_line()

    def test_html(self, rich, tmp_path):
        """A page, told on stderr; the tree is not printed as well."""
        pytest.importorskip("jinja2", reason="the page needs it")
        done = invoke("trace", "rich-1", "--html", tmp_path / "run.html", "--db", rich)
        assert ("", f"{tmp_path / 'run.html'} written.\n") == (done.stdout, done.stderr)
        assert "refunds above 20" in (tmp_path / "run.html").read_text()
        told = invoke("trace", "rich-1", "--html", tmp_path / "run.html", "--json", "--db", rich).stdout
        assert "rich-1" == json.loads(told)["run"]["correlation_id"]

    def test_html_where_it_cannot_be_written(self, rich, tmp_path):
        """One sentence, and the status of unusable input."""
        pytest.importorskip("jinja2", reason="the page needs it")
        done = invoke("trace", "rich-1", "--html", tmp_path / "no" / "run.html", "--db", rich, status=2)
        assert "cannot be written: No such file" in done.stderr

    def test_html_without_its_library(self, rich, tmp_path, monkeypatch):
        """It says what to install."""
        monkeypatch.setitem(sys.modules, "jinja2", None)
        from eventbus import _timeline

        _timeline._template.cache_clear()
        done = invoke("trace", "rich-1", "--html", tmp_path / "run.html", "--db", rich, status=2)
        assert "jinja2" in done.stderr


class TestTail:
    """`tail`."""

    def test_the_last_events_as_lines(self, path):
        """In their order; each can be read back."""
        write(path, [*run_rows("a"), row(None, "shop.order.placed", event_name="OrderPlaced", total=9.5)])
        lines = invoke("tail", "-n", 3).stdout.splitlines()
        assert [("TURN", "DONE"), ("INF", "DONE"), ("EVENT", "OrderPlaced")] == [
            parse_line(line).words[:2] for line in lines
        ]
        assert "1970-01-01T00:16:40.000Z -------- EVENT OrderPlaced total=9.5" == lines[-1]

    def test_every_event_has_a_line(self, rich):
        """One printable line each, whatever is in it; the catalog's are those of the log."""
        lines = invoke("tail", "-n", 1000, "--db", rich).stdout.splitlines()
        with trace.open(rich) as reader:
            assert reader.stats().events == len(lines)
        words = Counter(parse_line(line).words[:2] for line in lines)
        assert 1 == words["HOOK", "FAIL"] // words["HOOK", "FAIL"]
        assert {
            ("INF", "DENY"),
            ("MAX", "TURNS"),
            ("GATE", "RETRY"),
            ("EVENT", "InferenceChunkEvent"),
        } <= set(words)
        assert all(line.isprintable() for line in lines)
        failed = next(line for line in lines if "HOOK FAIL" in line)
        assert re.search(r"on=ToolCallCompletedEvent ValueError: no total \(traces.py:\d+ in boom", failed)

    def test_json_lines(self, path):
        """One object per line."""
        write(path, run_rows("a"))
        told = [json.loads(line) for line in invoke("tail", "--json", "-n", "2").stdout.splitlines()]
        assert ["TurnCompletedEvent", "InferenceCompletedEvent"] == [event["event"] for event in told]

    def test_an_empty_store(self, path):
        """It says so; asking for none is no failure."""
        write(path, [])
        assert "eventbus.db has no events.\n" == invoke("tail", status=1).stderr
        invoke("tail", "-n", 0)

    def test_on_a_terminal(self, rich, tmp_path):
        """In colours, and no control character of a payload."""
        done = terminal.run(["-m", "eventbus", "tail", "-n", "1000", "--db", str(rich)], cwd=ROOT)
        assert "\x1b[31m" in done.stdout
        assert "\x1b[2J" not in done.stdout

    def test_following(self, path, tmp_path):
        """It waits for a store, follows it, goes on with the one that replaces it, and ends with Ctrl-C."""
        command = [sys.executable, "-u", "-m", "eventbus", "tail", "-f", "--db", str(path)]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert f"Waiting for {path} ...\n" == process.stderr.readline()
                write(path, [row("a", "step.started", name="one")])
                assert "a STEP START one\n" in process.stdout.readline()
                write(path, [row("a", "step.started", name="two")])
                assert "a STEP START two\n" in process.stdout.readline()
                for name in (path, f"{path}-wal", f"{path}-shm"):
                    os.unlink(name)
                write(path, [row("b", "step.started", name="three")])
                assert "b STEP START three\n" in process.stdout.readline()
                process.send_signal(signal.SIGINT)
                assert 130 == process.wait(30)
            finally:
                process.kill()

    @pytest.mark.parametrize("before", [0, 3])
    def test_following_begins_with_the_last(self, path, tmp_path, before):
        """`-n` of them, and then what comes; of an empty store, everything."""
        write(path, [row("a", "step.started", name=f"old{n}") for n in range(before)])
        command = [sys.executable, "-u", "-m", "eventbus", "tail", "-f", "-n", "1", "--db", str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            try:
                if before:
                    assert "a STEP START old2\n" in process.stdout.readline()
                write(path, [row("b", "step.started", name="later")])
                assert "b STEP START later\n" in process.stdout.readline()
                process.send_signal(signal.SIGINT)
                assert 130 == process.wait(30)
            finally:
                process.kill()

    def test_following_what_is_no_store(self, path):
        """It does not wait for that to change."""
        path.write_bytes(b"text, not a database; and longer than a header has to be, by some way" * 9)
        assert "cannot be read" in invoke("tail", "-f", status=2).stderr


class TestGrep:
    """`grep`."""

    def test_found_events_as_lines(self, path):
        """With their ids, for `trace`."""
        write(path, [*run_rows("a"), *run_rows("b")])
        lines = invoke("grep", '"total":12').stdout.splitlines()
        assert ["a", "b"] == [parse_line(line).cid for line in lines]
        assert invoke("trace", lines[1]).stdout.startswith("b  completed")
        assert "" == invoke("grep", "LOOKUP", status=1).output
        assert 4 == len(invoke("grep", "-i", "LOOKUP").stdout.splitlines())

    def test_json_lines(self, path):
        """One object per line."""
        write(path, run_rows("a"))
        (line,) = invoke("grep", "--json", '"total":12').stdout.splitlines()
        assert "ToolCallCompletedEvent" == json.loads(line)["event"]

    def test_an_empty_text(self, path):
        """It would be everywhere."""
        write(path, [])
        assert "TEXT is empty" in invoke("grep", "", status=2).stderr

    def test_on_a_terminal(self, rich, tmp_path):
        """Where the line does not show it, what is around it does; progress is gone at the end."""
        done = on_terminal("grep", '"delta"', "--db", rich, cwd=ROOT)
        assert "EVENT InferenceChunkEvent" in done.stdout
        assert '"chunk":{"delta":"x"}' in done.stdout
        assert "searching" in done.stderr
        assert 0 == done.status

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ('say "hi"', r'"text":{"a":"say \"hi\""}'),
            ('"text": {"a": ', r'{"text":{"a":"say '),
            ("shop.order", "EVENT Order\n"),
            ("a STEP", None),
        ],
    )
    def test_what_is_shown_around(self, path, text, shown):
        """As JSON has it; nothing, where it is no payload that has it."""
        write(path, [row("a", "shop.order", event_name="Order", text={"a": 'say "hi"'})])
        done = on_terminal("grep", text, "--db", path, cwd=ROOT)
        assert shown in done.stdout if shown else (1, "") == (done.status, done.stdout)

    def test_ctrl_c(self, path, tmp_path):
        """It ends with 130, and what was found has been shown."""
        write(path, [row("a", "step.started", name="here")])
        for _ in range(20):
            write(path, [row("b", "step.started", name="x" * 2000) for _ in range(2000)])

        def stop(process, shown):
            if "here" in shown:
                process.send_signal(signal.SIGINT)
                return True
            return False

        done = terminal.run(["-m", "eventbus", "grep", "here", "--db", str(path)], cwd=ROOT, meanwhile=stop)
        assert done.status in {0, 130}
        assert "STEP START" in terminal.plain(done.stdout)

    def test_a_reader_that_goes_away(self, rich, tmp_path):
        """Nobody is told of it."""
        command = f"{sys.executable} -m eventbus tail -n 1000 --db {rich} | head -1"
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, timeout=60, check=False)
        assert b"" == done.stderr


class TestStats:
    """`stats`."""

    def test_numbers(self, path):
        """Through a pipe in columns."""
        write(path, [*run_rows("a"), row("b", "inference.failed", timestamp=1.0), row("c", "step.started")])
        facts, tools = invoke("stats").stdout.split("\n\n")
        known = dict(map(cells, facts.splitlines()))
        assert ("2", "1", "1", "1") == (
            known["runs"],
            known["completed"],
            known["failed"],
            known["ids that no run has"],
        )
        assert ("10", "1", "ok") == (known["events"], known["failures"], known["quick check"])
        assert ("10", "5", "15") == tuple(known[f"tokens {kind}"] for kind in ("input", "output", "total"))
        assert sqlite3.sqlite_version == known["SQLite"]
        assert ["lookup", "1", "0", "250 ms", "250 ms", "250 ms", "250 ms"] == cells(tools.splitlines()[1])

    def test_losses_are_told(self, path):
        """With their reasons."""
        write(path, [])
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("INSERT INTO losses (timestamp, count, reason) VALUES (1, 7, 'queue full')")
        other.close()
        known = dict(map(cells, invoke("stats").stdout.splitlines()))
        assert ("7", "7", "-") == (known["events lost"], known["queue full"], known["first event"])

    def test_json(self, path):
        """The same, for programs."""
        write(path, [*run_rows("a"), row("c", "step.started")])
        told = json.loads(invoke("stats", "--json").stdout)
        assert {"completed": 1, "none": 1} == told["runs"]
        assert ("lookup", 0.25) == (told["tools"][0]["tool"], told["tools"][0]["p99"])

    def test_on_a_terminal(self, rich, tmp_path):
        """A table of its width."""
        done = on_terminal("stats", "--db", rich, cwd=ROOT)
        assert terminal.WIDTH >= max(map(len, done.stdout.splitlines()))
        assert "quick check" in done.stdout
        assert re.search(r"\nboom  +1  +1 ", done.stdout)

    def test_of_an_empty_store_on_a_terminal(self, path):
        """There is no table of tools."""
        done = on_terminal("stats", "--db", write(path, []), cwd=ROOT)
        assert "p95" not in done.stdout
        assert re.search(r"size +\d+\.\d [kM]B", done.stdout)

    def test_a_check_that_finds_damage(self, path):
        """What it says is shown, and the status is that of unusable input."""
        write(path, run_rows("a"))
        swaps = [("timestamp REAL NOT NULL", "timestamp REAL"), ("timestamp REAL", "timestamp REAL NOT NULL")]
        for old, new in swaps:
            with contextlib.closing(sqlite3.connect(path)) as other, other:
                other.execute("PRAGMA writable_schema = ON")
                changed = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = 'losses'"
                other.execute(changed, (old, new))
            other.close()
            with contextlib.closing(sqlite3.connect(path)) as other, other:
                if "NOT NULL" in old:
                    other.execute("INSERT INTO losses (count, reason) VALUES (1, 'x')")
            other.close()
        assert "NULL value in losses.timestamp" in invoke("stats", status=2).stdout


class TestReplay:
    """`replay` from and into stores."""

    def test_into_a_store(self, path):
        """What is replayed is stored, all of it."""
        invoke("replay", "-q", REFUNDS, "--trace", path)
        with trace.open(path) as reader:
            stats = reader.stats()
        assert ({"completed": 5}, 124, {}) == (stats.runs, stats.events, stats.losses)

    def test_from_a_store(self, path):
        """All its runs, the oldest first, or one of them; the summary is that of the first time."""
        first = invoke("replay", "-q", REFUNDS, "--trace", path).stdout
        with capture() as recorder:
            second = invoke("replay", "-q", "--db", path).stdout
        cids = [event.correlation_id for event in recorder.events]
        assert [f"refund-000{n}" for n in range(1, 6)] == list(dict.fromkeys(cids))
        assert first.split("\n\n")[1:] == second.split("\n\n")[1:]
        # There are lines in a file alone.
        assert ("lines not replayed" in first, "lines not replayed" in second) == (True, False)
        one = invoke("replay", "-q", "--db", path, "refund-0003").stdout
        assert ["runs", "1"] == one.splitlines()[0].split()
        assert ["runs", "2"] == invoke("replay", "-q", "--db", path, "--limit", 2).stdout.splitlines()[
            0
        ].split()
        assert "several" in invoke("replay", "--db", path, "refund", status=2).stderr.lower()
        invoke("replay", "--db", path, "x", status=1)

    def test_gates_judge_stored_runs(self, path, tmp_path):
        """As they judge recorded ones."""
        guard = REFUNDS.parent / "refund_guard.py"
        invoke("replay", "-q", REFUNDS, "--trace", path)
        told = [
            invoke("replay", "-q", *source, "--hooks", guard).stdout.split("\n\n")[-2:]
            for source in ([REFUNDS], ["--db", path])
        ]
        assert told[0] == told[1]

    def test_what_is_not_registered_is_counted(self, path):
        """The summary names it; that is no failure."""
        order = traces.order_event()

        def emit():
            order.emit(order_id="A1", correlation_id="a")

        traces.filled(path, emit)
        command = [sys.executable, "-m", "eventbus", "replay", "-q", "--db", str(path)]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert re.search(r"event that is not registered +left out\nOrderPlaced +1\n", shown)

    def test_the_environment_s_store_is_not_filled(self, path):
        """It names the store that is read; only `--trace` has a replay stored."""
        invoke("replay", "-q", REFUNDS, "--trace", path)
        env = {"EVENTBUS_TRACE": str(path)}
        for arguments in (["--db", path], [REFUNDS]):
            done = subprocess.run(
                [sys.executable, "-m", "eventbus", "replay", "-q", *map(str, arguments)],
                env={**os.environ, **env},
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert (0, b"") == (done.returncode, done.stderr)
            assert env["EVENTBUS_TRACE"] == str(path)
        with trace.open(path) as reader:
            assert 124 == reader.last_seq()

    def test_the_environment_is_as_before(self, path, monkeypatch):
        """Whoever calls the command in a process of his own keeps his variables."""
        monkeypatch.setenv("EVENTBUS_TRACE", str(path))
        invoke("replay", "-q", REFUNDS)
        assert str(path) == os.environ["EVENTBUS_TRACE"]
        assert not path.exists()

    def test_a_store_is_not_replayed_into_itself(self, path, tmp_path):
        """However it is named; into another it is."""
        invoke("replay", "-q", REFUNDS, "--trace", path)
        assert "twice" in invoke("replay", "--db", path, "--trace", "./eventbus.db", status=2).stderr
        (tmp_path / "link.db").symlink_to(path)
        assert "twice" in invoke("replay", "--db", path, "--trace", "link.db", status=2).stderr
        os.link(path, tmp_path / "hard.db")
        assert "twice" in invoke("replay", "--db", path, "--trace", "hard.db", status=2).stderr
        invoke("replay", "-q", "--db", path, "--trace", tmp_path / "copy.db")
        with trace.open(tmp_path / "copy.db") as reader:
            assert 124 == reader.last_seq()

    def test_a_store_given_as_a_file(self, path):
        """One sentence says how it is given."""
        write(path, run_rows("a"))
        done = invoke("replay", path, status=2)
        assert ("", 1) == (done.stdout, done.stderr.count("\n"))
        assert "--db" in done.stderr

    def test_a_stored_failure_is_no_gate_s(self, path):
        """The summary does not say that the rest of the run was left out."""
        write(path, [row("a", "inference.started"), row("a", "inference.failed", error="boom")])
        assert "gate" not in invoke("replay", "-q", "--db", path).stdout

    def test_ids_that_look_like_others(self, path, tmp_path):
        """Each run is told once, as itself."""
        ids = ["abc", " abc", '{"cid": "abc"}']
        write(path, [event for cid in ids for event in run_rows(cid)])
        invoke("replay", "-q", "--db", path, "--trace", tmp_path / "new.db")
        with trace.open(tmp_path / "new.db") as reader:
            assert dict.fromkeys(ids, 8) == {run.correlation_id: run.events for run in reader.runs()}

    def test_a_store_that_cannot_be_filled(self, path):
        """One sentence, and nothing is replayed."""
        with contextlib.closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE t (x)")
        other.close()
        with capture() as recorder:
            assert "another application" in invoke("replay", "-q", REFUNDS, "--trace", path, status=2).stderr
        assert 0 == len(recorder)

    def test_without_anything_to_replay(self):
        """It says what to give."""
        assert "give a FILE" in invoke("replay", status=2).stderr

    def test_progress_on_a_terminal(self, path, tmp_path):
        """By runs."""
        invoke("replay", "-q", REFUNDS, "--trace", path)
        done = on_terminal("replay", "-q", "--db", path, cwd=ROOT)
        assert "replaying" in done.stderr
        assert "runs: 5" in done.stderr


@needs_airline
def test_the_airline_runs_agree_everywhere(path):
    """What was replayed is what is listed, shown, found and counted, and replayed once more."""
    first = invoke("replay", "-q", AIRLINE, "--trace", path).stdout
    assert 201 == len(invoke("runs", "--limit", 1000).stdout.splitlines())
    assert 200 == len(json.loads(invoke("runs", "--limit", 1000, "--status", "completed", "--json").stdout))
    known = dict(map(cells, invoke("stats").stdout.split("\n\n")[0].splitlines()))
    assert ("200", "200", "13,708", "73") == tuple(
        known[name] for name in ("runs", "completed", "events", "failures")
    )
    tools = json.loads(invoke("stats", "--json").stdout)["tools"]
    assert (1164, 73) == (sum(tool["calls"] for tool in tools), sum(tool["failed"] for tool in tools))
    assert 73 == len(invoke("grep", "ToolCallFailedEvent").stdout.splitlines())
    lines = invoke("tail", "-n", 20000).stdout.splitlines()
    counted = Counter(parse_line(line).words[:2] for line in lines)
    assert (200, 200, 2454, 2454, 1164, 1164, 1091, 73) == (
        counted["INF", "START"],
        counted["INF", "DONE"],
        counted["TURN", "START"],
        counted["EVENT", "InferenceGeneratedEvent"],
        counted["TOOLS", "RECV"],
        counted["TOOL", "START"],
        counted["TOOL", "OK"],
        counted["TOOL", "FAIL"],
    )
    told = json.loads(invoke("trace", "airline-0-0", "--json").stdout)
    waiting, shown = [told["tree"]], 0
    while waiting:
        node = waiting.pop()
        shown += sum(node[key] is not None for key in ("start", "end")) + len(node["events"])
        waiting += node["children"]
    assert told["run"]["events"] == shown
    second = invoke("replay", "-q", "--db", path).stdout
    assert first.split("\n\n")[1:] == second.split("\n\n")[1:]


def test_an_event_of_a_user_is_an_event(path):
    """The commands know it by what is stored, not by its class."""

    class Ping(Event):
        n: int = 0

    traces.filled(path, lambda: Ping.emit(n=3, correlation_id="a"))
    assert "a EVENT Ping n=3\n" in invoke("tail").stdout
    assert "Ping n=3\n" in invoke("trace", "a").stdout
