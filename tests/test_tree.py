"""
The tree of a stored run: what hangs under what, and what keeps it bounded.
"""

from __future__ import annotations

import pytest
import traces
from traces import row, run_rows, write

from eventbus import _tree, trace
from eventbus._tree import tree_of


@pytest.fixture
def path(tmp_path):
    """Return where the store is."""
    return tmp_path / "runs.db"


def outline(path, cid="a"):
    """Return the tree of a run as indented titles, with the status of what is not "ok"."""
    with trace.open(path) as reader:
        root = tree_of(reader, cid)
    return [
        "  " * depth + node.title + ("" if node.status == "ok" else f" {node.status}")
        for depth, node in root.walk()
    ]


def started(cid="a", **more):
    return row(cid, "inference.started", agent="sundae", span_id=f"i-{cid}", **more)


def span(kind, name, *, end=None, at=1000.0, **more):
    """Return the start of a part, or its end."""
    said = {
        "turn": {"turn": name},
        "step": {"name": name},
        "model_call": {"model": name},
        "tool_call": {"tool_call": {"id": "c1", "name": name, "input": {}}},
    }[kind]
    channel = f"{kind}.{end or 'started'}" if end != "generated" else "inference.generated"
    return row("a", channel, timestamp=at, span_id=f"{kind}-{name}", **said, **more)


class TestNesting:
    """What hangs under what."""

    def test_a_run(self, path):
        """Turns in it, calls in their turn."""
        write(path, run_rows("a"))
        assert ["sundae", "  turn 1", "    m-1", "    lookup"] == outline(path)

    def test_steps_around_and_within(self, path):
        """A step holds what happens in it; one that a tool takes is the tool's."""
        write(
            path,
            [
                started(),
                span("step", "all"),
                span("turn", 1),
                span("step", "prepare"),
                span("model_call", "m-1"),
                span("model_call", "m-1", end="generated"),
                span("step", "prepare", end="completed"),
                span("tool_call", "search"),
                span("step", "fetch"),
                span("tool_call", "beside"),
                span("step", "fetch", end="failed"),
                span("tool_call", "beside", end="completed"),
                span("tool_call", "search", end="failed"),
                span("turn", 1, end="completed"),
                span("step", "all", end="completed"),
            ],
        )
        assert [
            "sundae open",
            "  all",
            "    turn 1",
            "      prepare",
            "        m-1",
            "      search failed",
            "        fetch failed",
            "      beside",
        ] == outline(path)

    def test_what_outlives_its_part_is_moved_up(self, path):
        """Steps that overlap stand side by side."""
        write(
            path,
            [
                started(),
                span("step", "one"),
                span("step", "two"),
                span("step", "one", end="completed"),
                span("step", "two", end="completed"),
            ],
        )
        assert ["sundae open", "  one", "  two"] == outline(path)

    def test_decisions_stand_with_their_call(self, path):
        """Those before it, those after it, and those of a call that shares its id."""
        call = {"id": "c1", "name": "refund", "input": {}}
        decided = {"tool_call": call, "by": "Guard.x"}
        write(
            path,
            [
                started(),
                span("turn", 1),
                row("a", "gate.decision", gate="BeforeToolCallEvent", action="edit", **decided),
                span("tool_call", "refund"),
                row("a", "gate.decision", gate="AfterToolCallEvent", action="error", **decided),
                span("tool_call", "refund", end="completed"),
                row("a", "gate.decision", gate="ApproveToolCallEvent", action="deny", **decided),
                row("a", "tool_call.denied", tool_call=call, reason="no", by="Guard.x"),
                row("a", "gate.decision", gate="BeforeToolCallEvent", action="answer", **decided),
                row("a", "tool_call.completed", tool_call=call, answered_by="Guard.x", span_id="new"),
                row("a", "gate.decision", gate="AfterModelCallEvent", action="retry", applied=False),
                row("a", "gate.decision", gate="Mine", action=None),
            ],
        )
        assert [
            "sundae open",
            "  turn 1 open",
            "    refund",
            "      edit refund",
            "      error refund failed",
            "    refund denied",
            "      deny refund denied",
            "    refund",
            "      answer refund",
            "    retry model",
            "    decision Mine",
        ] == outline(path)

    def test_a_nested_run_hangs_where_it_was_started(self, path):
        """Under what was open just then, also if nothing comes after it."""
        write(path, [started(), span("turn", 1), span("tool_call", "helper")])
        write(path, run_rows("b", agent="helper", parent_id="a"))
        write(path, [span("tool_call", "helper", end="completed")])
        write(path, run_rows("c", agent="last", parent_id="a"))
        assert [
            "sundae open",
            "  turn 1 open",
            "    helper",
            "      helper",
            "        turn 1",
            "          m-1",
            "          lookup",
            "    last",
            "      turn 1",
            "        m-1",
            "        lookup",
        ] == outline(path)

    def test_several_runs_under_one_id(self, path):
        """The later ones hang under the first."""
        write(path, [*run_rows("a"), *run_rows("a")])
        assert ["sundae", "  turn 1", "    m-1", "    lookup", "  sundae", "    turn 1"] == outline(path)[:6]

    def test_an_id_that_no_run_has(self, path):
        """What happened under it stands in order; nothing is open."""
        write(
            path, [row("a", "loop_run.failed", name="x"), row("a", "shop.order.placed", event_name="Order")]
        )
        assert ["a", "  LoopRunFailedEvent failed", "  Order"] == outline(path)

    def test_ends_without_starts(self, path):
        """They are there, and say how long it took."""
        write(path, [row("a", "loop_run.enqueued", name="x")])
        write(path, [span("tool_call", "look", end="failed", at=1005.0, duration=2.0)])
        write(path, [row("a", "inference.failed", agent="sundae"), row("a", "turn.completed")])
        with trace.open(path) as reader:
            root = tree_of(reader, "a")
        _, tool, turn = root.children
        assert ("look", 3.0, 2.0, None) == (tool.title, tool.offset, tool.duration, tool.start)
        assert ("failed", "turn") == (root.status, turn.title)

    def test_a_run_that_was_refused(self, path):
        """Its root is."""
        write(path, [row("a", "inference.denied", agent="sundae", reason="no", by="Guard.x")])
        assert ["sundae denied"] == outline(path)


class TestNodes:
    """What a node says."""

    def test_times_and_events(self, path):
        """Offsets from the first event, durations, and the events that it is made of."""
        write(
            path,
            [
                started(),
                span("turn", 1, at=1001.0),
                row("a", "inference.chunk", chunk_content="x"),
                row("a", "tool_calls.received", tool_calls=[]),
                span("turn", 1, end="completed", at=999.0, duration=0.5),
            ],
        )
        with trace.open(path) as reader:
            (turn,) = tree_of(reader, "a").children
        assert (1.0, 0.5) == (turn.offset, turn.duration)
        assert ("TurnStartedEvent", "TurnCompletedEvent") == (turn.start.event, turn.end.event)
        assert ["InferenceChunkEvent", "ToolCallsReceivedEvent"] == [event.event for event in turn.events]

    @pytest.mark.parametrize(
        ("payload", "note"),
        [
            ({"error": {"type": "builtins.ValueError", "text": "no"}}, "ValueError: no"),
            ({"error": {"type": "", "text": ""}}, None),
            ({"error": "text"}, "text"),
            ({"reason": "why", "by": "Guard.x"}, "why, by Guard.x"),
            ({"field": "arguments", "by": "Caps.x"}, "field arguments, by Caps.x"),
            ({"answered_by": "Cache.x", "applied": False}, "answered by Cache.x, not applied"),
            ({}, None),
        ],
    )
    def test_notes(self, path, payload, note):
        """Errors, reasons, authors."""
        write(path, [row("a", "handler.failed", handler="A.b", **payload)])
        with trace.open(path) as reader:
            assert note == tree_of(reader, "a").children[0].note

    def test_names_that_are_missing(self, path):
        """The kind stands in for them."""
        names = ("turn.started", "model_call.started", "tool_call.started", "step.started")
        write(path, [row("a", name) for name in names])
        with trace.open(path) as reader:
            nodes = [node.title for _, node in tree_of(reader, "a").walk()]
        assert ["a", "turn", "model", "tool", "step"] == nodes

    def test_a_model_is_named_by_its_answer(self, path):
        """Where its start did not know."""
        write(
            path,
            [span("model_call", None), row("a", "inference.generated", span_id="model_call-None", model="m")],
        )
        assert ["a", "  m"] == outline(path)


class TestBounds:
    """However much is stored."""

    def test_of_many_events_some_are_not_shown(self, path, monkeypatch):
        """How many is said at the root."""
        monkeypatch.setattr(_tree, "MAX_NODES", 3)
        write(path, [row("a", "step.started", span_id=str(n)) for n in range(5)])
        write(path, run_rows("b", parent_id="a"))
        with trace.open(path) as reader:
            root = tree_of(reader, "a")
        note = "2 more events are not shown, 1 run started from it not shown"
        assert (4, note) == (len(list(root.walk())), root.note)
        write(path, [row("a", "inference.failed", error="boom")])
        monkeypatch.setattr(_tree, "MAX_NODES", 5)
        with trace.open(path) as reader:
            assert tree_of(reader, "a").note.startswith("1 more events are not shown")

    def test_a_cycle_of_parents_ends(self, path):
        """Each run is there once."""
        write(path, [started("a", parent_id="b"), started("b", parent_id="a")])
        assert ["sundae open", "  sundae open"] == outline(path)

    def test_runs_nested_very_deep(self, path, monkeypatch):
        """To a depth; the deepest tells how many were started from it, those apart that stand elsewhere."""
        monkeypatch.setattr(_tree, "MAX_DEPTH", 2)
        write(path, [started(str(n), parent_id=None if n == 0 else str(n - 1)) for n in range(5)])
        write(path, [started("5", parent_id="2")])
        with trace.open(path) as reader:
            notes = [node.note for _, node in tree_of(reader, "0").walk()]
        assert [None, None, "2 runs started from it not shown"] == notes

    def test_parts_nested_very_deep(self, path):
        """Beyond a depth they stand beside each other, and each has its own end."""
        steps = [row("a", "step.started", span_id=str(n), name=str(n)) for n in range(500)]
        ends = [row("a", "step.completed", span_id=str(n), name=str(n)) for n in reversed(range(500))]
        write(path, [*steps, *ends])
        with trace.open(path) as reader:
            found = list(tree_of(reader, "a").walk())
        assert [str(n) for n in range(500)] == [node.title for _, node in found[1:]]
        assert {"ok"} == {node.status for _, node in found}
        assert _tree.MAX_LEVELS == max(depth for depth, _ in found)

    def test_parts_in_nested_runs(self, path):
        """Their depth adds up."""
        for n in range(4):
            parent = {} if n == 0 else {"parent_id": str(n - 1)}
            steps = [row(str(n), "step.started", span_id=f"{n}-{step}") for step in range(50)]
            write(path, [row(str(n), "inference.started", span_id=f"i-{n}", **parent), *steps])
        with trace.open(path) as reader:
            found = list(tree_of(reader, "0").walk())
        assert 4 * 51 == len(found)
        assert _tree.MAX_LEVELS + 3 >= max(depth for depth, _ in found)

    def test_a_deep_tree_is_walked(self, path):
        """Without recursion."""
        write(path, [row("a", "step.started", span_id=str(n), name="x") for n in range(3000)])
        assert 3001 == len(outline(path))


def test_everything(path):
    """Each event of a run is in its tree once, as a start, an end or within."""
    traces.gates()
    order = traces.order_event()
    traces.filled(path, lambda: traces.everything(order))
    with trace.open(path) as reader:
        for run in reader.runs():
            root = tree_of(reader, run.correlation_id)
            shown = [
                event.seq
                for _, node in root.walk()
                for event in (node.start, node.end, *node.events)
                if event is not None and event.correlation_id == run.correlation_id
            ]
            assert [event.seq for event in reader.events(run.correlation_id)] == sorted(shown)
