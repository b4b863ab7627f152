"""
The command line: `replay`, `events` and `hooks`, as they are used, and as they are interrupted.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import attrs
import pytest
import recordings
import terminal
from click.testing import CliRunner
from recordings import AIRLINE, REFUNDS, ROOT, assistant, call, lines, needs_airline, record, tool, user

from eventbus import Event, Hook, TurnStartedEvent, catalog, gates, on, parse_line
from eventbus.cli import AFTER_A_REFUSAL, cli
from eventbus.gates import BeforeToolCallEvent
from eventbus.testing import capture

AUDIT = """
from eventbus import Hook, ToolCallCompletedEvent, is_replaying, on

print("imported", is_replaying())

class RefundAuditHook(Hook):
    @on(ToolCallCompletedEvent, when=lambda event: event.tool_call.name == "process_refund")
    def audit(self, event):
        print(event.agent.name, event.result.data["refund_id"], is_replaying())
"""

AIRLINE_COUNTS = {
    "InferenceStartedEvent": 200,
    "InferenceGeneratedEvent": 2454,
    "InferenceCompletedEvent": 200,
    "TurnStartedEvent": 2454,
    "TurnCompletedEvent": 2454,
    "ModelCallStartedEvent": 2454,
    "ToolCallsReceivedEvent": 1164,
    "ToolCallStartedEvent": 1164,
    "ToolCallCompletedEvent": 1091,
    "ToolCallFailedEvent": 73,
}


@pytest.fixture(autouse=True)
def imports(monkeypatch):
    """Forget afterwards what a command has imported, and where from."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def recorded(tmp_path):
    """Return a function that writes a file of recorded runs."""

    def write(data, name="runs.jsonl"):
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return write


def invoke(*arguments, status=0):
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert status == done.exit_code, done.output
    return done


def program(*arguments, **options):
    """Run `python -m eventbus`."""
    return subprocess.run(
        [sys.executable, "-m", "eventbus", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
        **options,
    )


def tables(text):
    """Return the blocks of a summary, each as a dict of its rows."""
    blocks = [[re.split(r"  +", line) for line in block.splitlines()] for block in text.strip().split("\n\n")]
    return [{name: cells for name, *cells in block} for block in blocks]


class TestSummary:
    """What a replay prints at its end."""

    def test_it_counts_runs_events_and_tools(self):
        """Runs, events by type in the order of a run, tools by their calls, with failures."""
        done = invoke("replay", REFUNDS)
        facts, events, tools = tables(done.stdout)
        assert (["5"], ["0"], ["124"]) == (facts["runs"], facts["lines not replayed"], facts["events"])
        assert ["seconds", "events per second"] == list(facts)[3:]
        assert {
            "event": ["count"],
            "InferenceStartedEvent": ["5"],
            "InferenceGeneratedEvent": ["19"],
            "InferenceCompletedEvent": ["5"],
            "TurnStartedEvent": ["19"],
            "TurnCompletedEvent": ["19"],
            "ModelCallStartedEvent": ["19"],
            "ToolCallsReceivedEvent": ["12"],
            "ToolCallStartedEvent": ["13"],
            "ToolCallCompletedEvent": ["10"],
            "ToolCallFailedEvent": ["3"],
        } == events
        assert {
            "tool": ["calls", "failed"],
            "lookup_order": ["6", "1"],
            "process_refund": ["5", "2"],
            "send_email": ["1", "0"],
            "transfer_to_human": ["1", "0"],
        } == tools
        assert "" == done.stderr

    def test_without_tools_there_is_no_table_of_them(self, recorded):
        """A table without rows is left out."""
        facts, events = tables(invoke("replay", recorded(lines(record(user())))).stdout)
        assert ["2"] == facts["events"]
        assert ["event", "InferenceStartedEvent", "InferenceCompletedEvent"] == list(events)

    def test_an_empty_file_has_no_runs(self, recorded):
        """Nothing to replay is no failure."""
        (facts,) = tables(invoke("replay", recorded(b"")).stdout)
        assert (["0"], ["0"]) == (facts["runs"], facts["events per second"])

    def test_events_of_others_count_too(self, recorded):
        """What a hook emits is an event like any other, listed after those of the catalog."""

        class Ping(Event):
            pass

        class Echo(Hook):
            @on(TurnStartedEvent)
            async def ping(self):
                Ping.emit()

        _, events = tables(invoke("replay", recorded(lines(record(assistant())))).stdout)
        assert ("Ping", ["1"]) == list(events.items())[-1]

    def test_handlers_that_raise_are_listed(self, recorded):
        """Also when no lines are written, a hook that does not work is seen."""

        class Broken(Hook):
            @on(TurnStartedEvent)
            def boom(self):
                raise ValueError("boom")

        done = invoke("replay", recorded(lines(record(assistant(), assistant()))), "--quiet")
        _, events, broken = tables(done.stdout)
        assert ["2"] == events["HandlerFailedEvent"]
        assert {"handler that raised": ["times"], "Broken.boom": ["2"]} == broken

    def test_hostile_names_do_not_reach_the_terminal(self, recorded):
        """Names are escaped, and cut where they are too long for their column."""
        names = ["\x1b[31mred\n", "x" * 100, "\ud800"]
        data = lines(record(assistant(*map(call, names)), tool(), tool(), tool()))
        shown = tables(invoke("replay", recorded(data)).stdout)[2]
        assert ["tool", "\\x1b[31mred\\n", "x" * 39 + "…", "\\ud800"] == list(shown)

    def test_a_narrow_encoding_is_no_failure(self, recorded):
        """What stdout cannot encode is escaped."""
        data = lines(record(assistant(call("größe 大")), tool()))
        done = program("replay", "-q", recorded(data), env={**os.environ, "PYTHONIOENCODING": "latin-1"})
        assert 0 == done.returncode
        assert "größe \\u5927" in done.stdout.decode("latin-1")


class TestInput:
    """Where runs come from."""

    def test_gzipped_files_are_read(self, recorded):
        """Whatever their name."""
        facts = tables(invoke("replay", recorded(gzip.compress(REFUNDS.read_bytes()))).stdout)[0]
        assert ["5"] == facts["runs"]

    def test_a_dash_reads_stdin(self):
        """A file or a pipe, gzipped or not."""
        for data in (REFUNDS.read_bytes(), gzip.compress(REFUNDS.read_bytes())):
            assert ["5"] == tables(program("replay", "-q", "-", input=data).stdout.decode())[0]["runs"]
        with REFUNDS.open() as stdin:
            assert ["5"] == tables(program("replay", "-q", "-", stdin=stdin).stdout.decode())[0]["runs"]

    def test_a_closed_stdin_is_an_error(self):
        """One sentence, and the status of wrong usage."""
        command = f"exec {sys.executable} -m eventbus replay - <&-"
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, timeout=60, check=False)
        assert (2, b"") == (done.returncode, done.stdout)
        assert b"Error: - cannot be opened: Bad file descriptor\n" == done.stderr

    def test_a_file_that_does_not_exist_is_an_error(self):
        """The status is that of wrong usage."""
        assert "'nosuch.jsonl' does not exist" in invoke("replay", "nosuch.jsonl", status=2).stderr

    def test_a_limit_stops_after_that_many_runs(self, recorded):
        """Lines that could not be replayed do not count, and what comes after the last run is not read."""
        path = recorded(b"oops\n" + lines(record(), record()) + b"oops\n")
        facts = tables(invoke("replay", path, "--limit", 2, status=1).stdout)[0]
        assert (["2"], ["1"]) == (facts["runs"], facts["lines not replayed"])
        assert "not in the range" in invoke("replay", path, "--limit", 0, status=2).stderr


class TestProblems:
    """What cannot be replayed is told with its line number."""

    def test_the_rest_is_replayed(self, recorded):
        """File, line and reason go to stderr, the count to the summary, and the exit status is 1."""
        path = recorded(lines(record()) + b"oops\n" + lines(record(tool()), {"id": "x"}, record()))
        done = invoke("replay", path, status=1)
        assert [
            f"{path}:2: no JSON: Expecting value at column 1",
            f"{path}:3: message 1 (tool): answers no call; every call before it has its answer",
            f"{path}:4: the record lacks `messages`",
        ] == done.stderr.splitlines()
        facts = tables(done.stdout)[0]
        assert (["2"], ["3"]) == (facts["runs"], facts["lines not replayed"])

    def test_nothing_of_a_record_that_does_not_fit_is_emitted(self, recorded):
        """A record is understood as a whole before its first event."""
        with capture() as recorder:
            invoke("replay", recorded(lines(record(user(), assistant(), tool()))), status=1)
        assert 0 == len(recorder)

    def test_a_cut_file_is_told(self, recorded):
        """What came before the cut is replayed."""
        path = recorded(gzip.compress(REFUNDS.read_bytes())[:-9])
        done = invoke("replay", path, status=1)
        assert ["5"] == tables(done.stdout)[0]["runs"]
        assert f"{path}:6: the file cannot be read on: " in done.stderr

    def test_stdin_has_a_name(self):
        """A line of stdin is told as such, also when only the summary is wanted."""
        done = program("replay", "-q", "-", input=b"\xff\n")
        assert (1, b"<stdin>:1: not UTF-8: byte 0xff at 1\n") == (done.returncode, done.stderr)

    def test_a_reason_is_one_printable_line(self, recorded):
        """Whatever the name of the file."""
        path = recorded(b"oops\n", "a\n\x1b[31m.jsonl")
        assert 1 == len(invoke("replay", path, status=1).stderr.splitlines())
        assert "\x1b" not in invoke("replay", path, status=1).stderr


class TestLines:
    """A replay writes the lines of its runs to stderr, unless it is to be quiet."""

    def test_lines_go_to_stderr_and_the_summary_to_stdout(self):
        """Each line can be read back; its id is that of the record."""
        done = program("replay", REFUNDS)
        parsed = [parse_line(line) for line in done.stderr.decode().splitlines()]
        assert [f"refund-000{n}" for n in range(1, 6)] == list(dict.fromkeys(line.cid for line in parsed))
        assert ("TOOL", "FAIL", "process_refund") == parsed[14].words
        assert (
            "ToolError: Error: amount 48.0 exceeds the refundable balance 24.0 of order A1002"
            == parsed[14].error
        )
        assert done.stdout.startswith(b"runs ")

    def test_quiet_writes_none(self):
        """Only the summary is left."""
        done = program("replay", REFUNDS, "--quiet")
        assert (0, b"") == (done.returncode, done.stderr)
        assert done.stdout.startswith(b"runs ")

    @needs_airline
    def test_the_airline_runs_have_the_counts_they_must_have(self):
        """By the summary of a quiet replay, and by the lines of a loud one, read back."""
        done = program("replay", AIRLINE, "--quiet")
        facts, events, tools = tables(done.stdout.decode())
        assert (0, b"") == (done.returncode, done.stderr)
        assert ["200"] == facts["runs"]
        assert {"event": ["count"], **{name: [str(n)] for name, n in AIRLINE_COUNTS.items()}} == events
        assert 1164 == sum(int(cells[0]) for cells in list(tools.values())[1:])
        assert 73 == sum(int(cells[1]) for cells in list(tools.values())[1:])

        loud = program("replay", AIRLINE)
        parsed = [parse_line(line) for line in loud.stderr.decode().splitlines()]
        assert {
            ("INF", "START"): 200,
            ("INF", "DONE"): 200,
            ("TOOLS", "RECV"): 1164,
            ("TOOL", "START"): 1164,
            ("TOOL", "OK"): 1091,
            ("TOOL", "FAIL"): 73,
        } == Counter(line.words[:2] for line in parsed)
        assert 200 == len({line.cid for line in parsed})


class TestHooksOption:
    """Hooks are imported before the first run."""

    def test_a_file_of_hooks_sees_the_runs(self, tmp_path):
        """It is imported, and called, while `is_replaying()` is true."""
        path = tmp_path / "audit.py"
        path.write_text(AUDIT)
        done = invoke("replay", REFUNDS, "--hooks", path)
        assert [
            "imported True",
            "sundae R-5001 True",
            "sundae R-5002 True",
            "sundae R-5003 True",
        ] == done.stdout.splitlines()[:4]

    def test_a_module_is_found_where_the_command_is_given(self, tmp_path, monkeypatch):
        """The working directory is searched first; the option may be repeated."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "audit_one.py").write_text(AUDIT)
        (tmp_path / "audit_two.py").write_text(AUDIT)
        done = invoke("replay", REFUNDS, "--hooks", "audit_one", "--hooks", "audit_two")
        assert 6 == done.stdout.count("sundae R-")
        assert 1 == sys.path.count(str(tmp_path))

    def test_a_failing_import_is_one_error(self, tmp_path):
        """What failed and where, the status of wrong usage, and nothing is replayed."""
        path = tmp_path / "bad.py"
        path.write_text("def boom():\n    raise ValueError('no')\nboom()\n")
        done = invoke("replay", REFUNDS, "--hooks", path, status=2)
        assert "" == done.stdout
        first, *frames = done.stderr.splitlines()
        assert f"Error: --hooks {path} failed to import: ValueError: no" == first
        assert f'  File "{path}", line 2, in boom' in frames

    def test_what_a_module_configures_does_not_undo_quiet(self, tmp_path):
        """The command has the last word."""
        path = tmp_path / "loud.py"
        path.write_text("import eventbus\neventbus.configure(log='stderr')\n")
        assert b"" == program("replay", REFUNDS, "-q", "--hooks", path).stderr


class TestGates:
    """What gates decided is summed up."""

    def test_decisions_are_listed_with_their_reasons(self, recorded):
        """Who decided what, how often, and why; the most frequent reasons are named, the others counted."""

        class Guard(Hook):
            shadow = True

            @on(BeforeToolCallEvent)
            def check(self, event):
                event.cancel = f"over {event.arguments['n'] % 7}"

        calls = [call("refund", {"n": n}) for n in range(8)]
        data = lines(record(assistant(*calls), *(tool() for _ in calls)))
        done = invoke("replay", recorded(data))
        *_, decisions, _note = done.stdout.strip().split("\n\n")
        assert [
            ["gate decision", "count"],
            ["Guard.check deny refund, not applied", "8"],
            ["  over 0", "2"],
            ["  over 1", "1"],
            ["  over 2", "1"],
            ["  over 3", "1"],
            ["  over 4", "1"],
            ["  other reasons", "2"],
        ] == [re.split(r"(?<=\w)  +", line) for line in decisions.splitlines()]
        assert done.stdout.endswith(f"\n\n{AFTER_A_REFUSAL}\n")

    @pytest.mark.parametrize(("runs", "told"), [(1, "1 run ended"), (2, "2 runs ended")])
    def test_runs_that_a_failing_gate_ends_are_told(self, recorded, runs, told):
        """The summary says that their rest was not replayed."""

        class Broken(Hook):
            @on(BeforeToolCallEvent)
            def judge(self, event):
                raise ValueError

        data = lines(*(record(assistant(call("look")), tool()) for _ in range(runs)))
        done = invoke("replay", "-q", recorded(data))
        assert f"{told} where a gate failed; the rest was not replayed." == done.stdout.splitlines()[-1]

    def test_without_a_refusal_there_is_no_note(self, recorded):
        """An edit changes nothing of what a replay tells."""

        class Caps(Hook):
            @on(BeforeToolCallEvent)
            def limit(self, event):
                event.arguments = {**event.arguments, "limit": 10}

        done = invoke("replay", recorded(lines(record(assistant(call("look")), tool()))))
        assert {"gate decision": ["count"], "Caps.limit edit look": ["1"]} == tables(done.stdout)[-1]


class TestInterrupts:
    """Ctrl-C and a reader that goes away."""

    def test_ctrl_c_shows_the_summary_so_far(self, recorded):
        """The exit status is that of an interrupted program."""

        class Stop(Hook):
            @on(TurnStartedEvent, when=lambda event: event.correlation_id == "second")
            def stop(self):
                raise KeyboardInterrupt

        path = recorded(lines(record(assistant()), record(assistant(), id="second"), record()))
        done = invoke("replay", path, status=130)
        facts, events = tables(done.stdout)
        assert (["2"], ["1"]) == (facts["runs"], events["InferenceCompletedEvent"])
        assert "Interrupted; this is what was replayed so far.\n" == done.stderr

    def test_ctrl_c_while_hooks_are_imported(self, tmp_path):
        """The summary is one of nothing."""
        path = tmp_path / "slow.py"
        path.write_text("raise KeyboardInterrupt\n")
        (facts,) = tables(invoke("replay", REFUNDS, "--hooks", path, status=130).stdout)
        assert (["0"], ["0.00"]) == (facts["runs"], facts["seconds"])

    def test_a_signal_ends_a_program_that_waits_for_input(self):
        """Ctrl-C at a terminal, while a pipe has nothing to read."""
        with subprocess.Popen(
            [sys.executable, "-m", "eventbus", "replay", "-"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            process.stdin.write(REFUNDS.read_bytes().splitlines(keepends=True)[3])
            process.stdin.flush()
            first = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        assert b"refund-0004 INF START" in first
        assert 130 == process.returncode
        assert ["1"] == tables(out.decode())[0]["runs"]

    def test_a_reader_that_goes_away_is_no_traceback(self):
        """`eventbus replay ... | head` is quiet."""
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "eventbus", "replay", "-q", str(REFUNDS)],
                cwd=ROOT,
                stdout=writing,
                stderr=subprocess.PIPE,
                timeout=60,
                check=False,
            )
        finally:
            os.close(writing)
        assert (1, b"") == (done.returncode, done.stderr)

    def test_closed_streams_are_no_failure(self):
        """Without stdout there is nobody to tell; without stderr there are no lines."""
        command = f"exec {sys.executable} -m eventbus replay examples/refunds.jsonl >&- 2>&-"
        done = subprocess.run(["sh", "-c", command], cwd=ROOT, timeout=60, check=False)
        assert 0 == done.returncode

    def test_async_handlers_are_waited_for(self, recorded):
        """What they emit is in the summary."""
        import asyncio

        class Later(Event):
            pass

        class Slow(Hook):
            @on(TurnStartedEvent)
            async def tell(self):
                for _ in range(100):
                    await asyncio.sleep(0)
                Later.emit()

        _, events = tables(invoke("replay", recorded(lines(record(assistant(), assistant())))).stdout)
        assert ["2"] == events["Later"]


class TestEvents:
    """`eventbus events` lists the catalog."""

    def test_every_event_and_gate_is_listed(self):
        """Derived from the catalog, in the order of its definition."""
        rows = json.loads(invoke("events", "--json").stdout)
        assert {*catalog.__all__, *gates.__all__} == {row["event"] for row in rows}
        assert ["InferenceStartedEvent", "InferenceGeneratedEvent"] == [row["event"] for row in rows[:2]]
        for row in rows:
            cls = getattr(catalog, row["event"], None) or getattr(gates, row["event"])
            fields = [field.name for field in attrs.fields(cls)]
            assert cls.channel == row["channel"]
            assert cls.ends_run == row["ends_run"]
            assert ["correlation_id", "run", "timestamp"] == sorted(set(fields) - set(row["readers"]))

    def test_a_row_tells_the_line(self):
        """What the line begins with, and its level; for gates, what can be written."""
        rows = {row["event"]: row for row in json.loads(invoke("events", "--json").stdout)}
        assert ("TOOL FAIL", "error") == (
            rows["ToolCallFailedEvent"]["line"],
            rows["ToolCallFailedEvent"]["level"],
        )
        assert (None, None) == (
            rows["InferenceChunkEvent"]["line"],
            rows["InferenceChunkEvent"]["level"],
        )
        assert ("GATE ...", None) == (rows["GateDecisionEvent"]["line"], rows["GateDecisionEvent"]["level"])
        assert {
            "event": "BeforeToolCallEvent",
            "kind": "gate",
            "channel": "eventbus.tool_call.before",
            "readers": ["agent", "tool_call", "arguments", "result", "cancel"],
            "writable": ["arguments", "result", "cancel"],
            "sticky": ["cancel"],
            "ends_run": False,
            "line": None,
            "level": None,
        } == rows["BeforeToolCallEvent"]

    def test_through_a_pipe_a_row_is_a_line(self):
        """Plain text in columns."""
        rows = [re.split(r"  +", line) for line in invoke("events").stdout.splitlines()]
        assert ["event", "channel", "ends_run", "level", "line", "readers"] == rows[0]
        assert [
            "InferenceFailedEvent",
            "eventbus.inference.failed",
            "yes",
            "error",
            "INF FAIL",
            "agent,message,error,duration,span_id",
        ] in rows
        assert [
            "ApproveToolCallEvent",
            "eventbus.tool_call.approve",
            "no",
            "-",
            "-",
            "agent,tool_call,arguments,denied*!",
        ] in rows
        assert 1 + len(catalog.__all__) + len(gates.__all__) == len(rows)

    def test_an_event_that_says_nothing_today_has_no_line(self, monkeypatch):
        """A class of the catalog whose lines are None is listed without one."""

        class MuteEvent(catalog.CatalogEvent, channel="eventbus.mute"):
            pass

        monkeypatch.setattr(catalog, "MuteEvent", MuteEvent, raising=False)
        monkeypatch.setattr(catalog, "__all__", [*catalog.__all__, "MuteEvent"])
        rows = {row["event"]: row for row in json.loads(invoke("events", "--json").stdout)}
        assert (None, None) == (rows["MuteEvent"]["line"], rows["MuteEvent"]["level"])


class TestHooks:
    """`eventbus hooks` lists what is registered."""

    def test_the_logger_is_there(self):
        """With nothing imported, the bus has one hook."""
        rows = json.loads(program("hooks", "--json").stdout)
        assert [("EventLogger", "eventbus._logger", "live", 150, ["Event"])] == [
            (row["hook"], row["module"], row["state"], row["priority"], row["events"]) for row in rows
        ]
        assert rows[0]["file"].endswith("_logger.py")

    def test_the_hooks_of_a_module_are_listed(self, tmp_path, monkeypatch):
        """In the order of delivery, with state, priority, events and place."""
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "my_hooks.py"
        path.write_text(
            "from eventbus import *\n"
            "class Base(Hook):\n"
            "    @on(TurnStartedEvent, TurnCompletedEvent)\n"
            "    def tell(self): ...\n"
            "class First(Base):\n"
            "    priority = Priority.SECURITY\n"
            "class Empty(Hook): ...\n"
        )
        for name in ("my_hooks", "my_hooks.py"):
            assert [
                ["hook", "state", "priority", "events", "defined"],
                ["First", "live", "50", "TurnStartedEvent,TurnCompletedEvent", f"{path}:5"],
                ["Base", "retired", "300", "TurnStartedEvent,TurnCompletedEvent", f"{path}:2"],
                ["Empty", "live", "300", "-", f"{path}:7"],
            ] == [re.split(r"  +", line) for line in invoke("hooks", name).stdout.splitlines()]

    def test_without_hooks_only_the_headings_are_there(self):
        """An empty bus has an empty list."""
        assert 1 == len(invoke("hooks").stdout.splitlines())
        assert [] == json.loads(invoke("hooks", "--json").stdout)

    def test_a_class_made_of_a_text_has_no_place(self):
        """Where no file is known, there is a dash."""
        exec("from eventbus import Hook\nclass Made(Hook): ...", {"__name__": "nowhere"})
        row = invoke("hooks").stdout.splitlines()[-1]
        assert "Made" == row.split()[0]

    def test_a_module_that_fails_is_an_error(self):
        """The status is that of wrong usage."""
        done = invoke("hooks", "nosuch", status=2)
        assert "Error: MODULE nosuch failed to import: ModuleNotFoundError" in done.stderr


class TestTerminal:
    """On a terminal there are tables, and a bar while runs are replayed."""

    def test_the_summary_is_a_table_of_its_width(self):
        """Numbers are grouped, no row is longer than the terminal, and the bar is gone."""
        done = terminal.run(["-m", "eventbus", "replay", "-q", str(REFUNDS)], cwd=ROOT)
        shown = terminal.plain(done.stdout)
        assert 0 == done.status
        assert re.search(r"^runs +5$", shown, re.M)
        assert re.search(r"^ ?process_refund +5 +2 *$", shown, re.M)
        assert terminal.WIDTH >= max(map(len, shown.splitlines()))
        assert "replaying" in terminal.plain(done.stderr)
        assert done.stderr.rstrip("\n").endswith(("\x1b[?25h", "\x1b[2K"))

    @needs_airline
    def test_large_numbers_are_grouped(self):
        """As people write them."""
        done = terminal.run(["-m", "eventbus", "replay", "-q", str(AIRLINE)], cwd=ROOT)
        assert re.search(r"^ ?TurnCompletedEvent +2,454 *$", terminal.plain(done.stdout), re.M)

    def test_lines_stay_whole_above_the_bar(self):
        """Long lines are not broken: each can be read back from the terminal."""
        done = terminal.run(["-m", "eventbus", "replay", str(REFUNDS)], cwd=ROOT, terminals=["stderr"])
        shown = terminal.plain(done.stderr).replace("\r", "\n").splitlines()
        parsed = [parse_line(line) for line in shown if "refund-000" in line]
        piped = program("replay", REFUNDS).stderr.decode().splitlines()
        assert [parse_line(line)[1:] for line in piped] == [line[1:] for line in parsed]

    def test_the_bar_shows_how_far_it_is(self):
        """From a pipe, whose end nobody knows, it shows the runs."""
        reading, writing = os.pipe()

        def feed(_process, shown):
            if "runs: 1" in terminal.plain(shown):
                os.close(writing)
                return True
            return False

        os.write(writing, lines(record(user())))
        with open(reading, "rb") as stdin:
            done = terminal.run(
                ["-m", "eventbus", "replay", "-q", "-"],
                cwd=ROOT,
                terminals=["stderr"],
                stdin=stdin,
                meanwhile=feed,
            )
        assert 0 == done.status
        assert ["1"] == tables(done.stdout)[0]["runs"]

    def test_through_a_pipe_there_are_no_colours(self):
        """Also when the environment asks for them."""
        done = terminal.run(
            ["-m", "eventbus", "replay", str(REFUNDS)], cwd=ROOT, terminals=[], FORCE_COLOR="1"
        )
        assert "\x1b" not in done.stdout + done.stderr

    def test_a_problem_is_told_above_the_bar(self, recorded):
        """On a line of its own."""
        path = recorded(b"oops\n" + lines(record()))
        done = terminal.run(["-m", "eventbus", "replay", "-q", path], cwd=ROOT)
        assert 1 == done.status
        assert f"{path}:1: no JSON: Expecting value at column 1" in terminal.plain(done.stderr)
        assert re.search(r"^lines not replayed +1$", terminal.plain(done.stdout), re.M)

    @pytest.mark.parametrize("command", ["events", "hooks"])
    def test_the_lists_are_tables(self, command):
        """No row is longer than the terminal, and no word is cut."""
        done = terminal.run(["-m", "eventbus", command], cwd=ROOT)
        shown = terminal.plain(done.stdout)
        assert terminal.WIDTH >= max(map(len, shown.splitlines()))
        assert "…" not in shown.replace("…" + os.sep, "")
        assert ("InferenceMaxTurnsReachedEvent" if command == "events" else "EventLogger") in shown

    def test_a_long_place_keeps_its_end(self, tmp_path):
        """The file and the line are what one looks for."""
        folder = tmp_path / ("deep" * 20)
        folder.mkdir()
        (folder / "far.py").write_text(AUDIT)
        done = terminal.run(["-m", "eventbus", "hooks", str(folder / "far.py")], cwd=ROOT)
        assert re.search(r"…\S*far\.py:6", terminal.plain(done.stdout))


def test_help_is_there_for_every_command():
    """Each command says what it does, and `-h` will do."""
    assert {"events", "hooks", "replay"} <= set(cli.commands)
    for command in cli.commands:
        assert invoke(command, "-h").stdout.startswith("Usage: ")
    assert "…" not in invoke("--help").stdout
    assert "..." not in invoke("--help").stdout.partition("Commands:")[2]


def test_the_version_is_told():
    """A report of a fault can say which version it is about."""
    assert f"eventbus, version {importlib.metadata.version('eventbus')}\n" == invoke("--version").stdout


def test_recordings_are_found():
    """The tests read the example that the project ships."""
    assert recordings.REFUNDS.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", [["events"], ["replay", "-q", str(REFUNDS)]], ids=["events", "replay"])
def test_a_full_disk_is_one_sentence(command):
    """What stdout does not take is said on stderr; the exit status is 1."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "eventbus", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=60,
            check=False,
        )
    assert (1, "Error: stdout took no more: No space left on device\n") == (done.returncode, done.stderr)
