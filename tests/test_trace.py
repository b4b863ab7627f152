"""
The public face of the trace store.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import stored
from stored import Counted

from eventbus import Run, ToolCall, trace
from eventbus._errors import TraceFileError

DOCUMENT = Path(__file__).parent.parent / "docs" / "trace-store.md"


def test_a_run_is_stored(tmp_path):
    """Its events, in order, and its row."""
    trace.start(tmp_path / "runs.db")
    with Run(agent="sundae", message="hello") as run:
        run.call_tools([ToolCall("call_0", "add", {"a": 1})], {"add": lambda a: a + 1})
        run.complete("done")
    trace.stop()

    assert [
        "InferenceStartedEvent",
        "ToolCallStartedEvent",
        "ToolCallCompletedEvent",
        "InferenceCompletedEvent",
    ] == [row["event"] for row in stored.rows(tmp_path / "runs.db")]
    [one] = stored.runs(tmp_path / "runs.db")
    assert (run.id, "sundae", "completed", "hello", 4) == tuple(
        one[name] for name in ("cid", "agent", "status", "message", "events")
    )


def test_a_path_is_one_of_its_time(tmp_path, monkeypatch):
    """A relative path is meant from where the program is when it starts the store."""
    monkeypatch.chdir(tmp_path)
    trace.start("runs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Counted.emit(number=1)
    trace.stop()

    assert [1] == stored.numbers(tmp_path / "runs.db")


def test_sync(tmp_path):
    """With durability "sync" an event is in the file when its emit returns."""
    trace.start(tmp_path / "runs.db", durability="sync")
    Counted.emit(number=1)

    assert [1] == stored.numbers(tmp_path / "runs.db")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((b"runs.db",), TypeError, "`path` must be a str or a path, not b'runs.db'"),
        ((7,), TypeError, "os.PathLike object, not int"),
        (("runs.db", "always"), ValueError, "`durability` must be one of batched, sync, not 'always'"),
        (("runs.db", "sync", 7), TypeError, "`retention` must be a Retention or None, not 7"),
        (("nowhere/runs.db",), TraceFileError, "no directory"),
    ],
)
def test_what_means_nothing(tmp_path, monkeypatch, arguments, error, words):
    """It is told at the start, and no store is open then."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(error, match=words):
        trace.start(*arguments)

    assert not Counted.has_receivers()


@pytest.mark.skipif(not DOCUMENT.exists(), reason="there is no checkout beside these tests")
def test_the_queries_of_the_documents_run(tmp_path):
    """Plain SQL finds what the page says it finds."""
    trace.start(tmp_path / "runs.db")
    with Run(agent="sundae", message="hello", correlation_id="run-1") as run:
        run.call_tools([ToolCall("call_0", "add", {"a": 1})], {"add": lambda a: a + 1})
    trace.stop()
    queries = re.findall(
        r"^```sql\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )

    found = [stored.query(tmp_path / "runs.db", sql) for sql in queries]

    assert [4, 1, 0, 0] == [len(rows) for rows in found]
    assert ("add", 1) == found[1][0][:2]


def test_without_a_store():
    """Stopping and flushing do nothing."""
    trace.stop()

    assert trace.flush()
