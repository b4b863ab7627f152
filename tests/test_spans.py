"""
Which spans are open, and under which of them a new one belongs.
"""

from __future__ import annotations

import contextvars
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus._spans import MODEL, RUN, STEP, TOOL, TURN, Node, OpenSpans


def opened(spans, kind, key="1", cid="r", capacity=100):
    """Open a node where it belongs, and return it."""
    node = Node(cid, key, kind)
    node.span = f"{kind} {key}"
    parent = spans.around_run(cid, None) if kind == RUN else spans.around(cid, kind)
    spans.open(node, parent, capacity)
    return node


@pytest.fixture
def spans():
    """Give an empty table."""
    return OpenSpans()


@pytest.mark.parametrize(
    ("around", "kind", "expected"),
    [
        ([RUN], TURN, RUN),
        ([RUN, TURN], TURN, RUN),
        ([RUN, STEP], TURN, STEP),
        ([RUN, TURN], MODEL, TURN),
        ([RUN, TURN, MODEL], TOOL, TURN),
        ([RUN, TURN, TOOL], TOOL, TURN),
        ([RUN, TURN, TOOL], STEP, TOOL),
        ([RUN, TURN, STEP], TOOL, STEP),
        ([RUN, TURN, MODEL], STEP, MODEL),
        ([RUN, TURN, TOOL, STEP], MODEL, STEP),
    ],
)
def test_what_lies_in_what(spans, around, kind, expected):
    """Calls lie beside each other; turns, steps and runs are around them."""
    for one in around:
        opened(spans, one)
    assert expected == spans.around("r", kind).kind


def test_a_turn_of_another_thread(spans):
    """A turn that was begun elsewhere is around what happens here, but for another turn."""
    run = opened(spans, RUN)
    elsewhere = threading.Thread(target=opened, args=(spans, TURN))
    elsewhere.start()
    elsewhere.join()
    assert TURN == spans.around("r", TOOL).kind
    assert run is spans.around("r", TURN)
    spans.close("r", TURN, "1")
    assert run is spans.around("r", TOOL)


def test_without_context(spans):
    """Where nothing is current, the latest run of the id is, with its turn."""

    def look():
        return spans.around("r", TOOL), spans.around("r", TURN), spans.current("r"), spans.around("x", TOOL)

    run = opened(spans, RUN)
    assert (run, run, run, None) == contextvars.Context().run(look)
    turn = opened(spans, TURN)
    assert (turn, run, turn, None) == contextvars.Context().run(look)


def test_runs_that_take_turns_on_one_thread(spans):
    """What is current of another run is passed over, for calls as for runs."""
    one = opened(spans, RUN, cid="one")
    opened(spans, RUN, cid="two")
    assert one is spans.around("one", TOOL)
    assert one is spans.around_run("three", "one")
    assert one is spans.current("one")
    assert spans.around_run("three", None) is None


def test_nobody_s_run(spans):
    """What is open in a run whose start nobody told is closed with it, and it goes with the last of them."""
    first, second = opened(spans, STEP, "1"), opened(spans, STEP, "2")
    assert spans.knows("r")
    assert [second, first] == spans.close_run("r", "any")
    opened(spans, STEP, "3")
    spans.close("r", STEP, "3")
    assert not spans.knows("r")
    assert 0 == len(spans)


def test_another_run_s_end(spans):
    """The end of a run that is not open closes no other of its id."""
    run = opened(spans, RUN, "1")
    assert [] == spans.close_run("r", "2")
    assert [run] == spans.close_run("r", None)
    assert [] == spans.close_run("r", None)


def test_a_key_is_of_one_kind(spans):
    """A call that was given its run's `span_id` does not end it."""
    run, tool = opened(spans, RUN), opened(spans, TOOL)
    assert tool is spans.close("r", TOOL, "1")
    assert run is spans.current("r")


def test_counts_are_of_the_run_that_it_is_in(spans):
    """Each node counts on its own run; on one that has ended, nothing."""
    outer, _ = opened(spans, RUN, "1"), opened(spans, TOOL, "1")
    inner, tool = opened(spans, RUN, "2"), opened(spans, TOOL, "2")
    spans.count(tool, "denied")
    assert {TOOL: 1, "denied": 1} == inner.counts
    assert {TOOL: 1} == outer.counts
    spans.close_run("r", "2")
    spans.count(tool, "denied")
    spans.count(None, "denied")
    assert {TOOL: 1, "denied": 1} == inner.counts


def test_an_overlapping_chain_does_not_grow(spans):
    """Opening the next before the last is closed, without end, keeps no closed ones."""
    opened(spans, RUN)
    for number in range(100):
        opened(spans, STEP, f"{number}")
        if number:
            spans.close("r", STEP, f"{number - 1}")
    node, length = spans._current.get(), 0
    while node is not None:
        node, length = node.outer, length + 1
    assert length < 5


def test_many_runs_begun_in_one_place(spans):
    """A look around passes few of them, whichever is asked for, and finds what is too far out by its id."""
    runs = [opened(spans, RUN, cid=f"{number}", capacity=200) for number in range(200)]
    seen = []
    enclosing = spans._enclosing
    spans._enclosing = lambda: (seen.append(node) or node for node in enclosing())
    assert [runs[0]] * 2 == [spans.around("0", TOOL), spans.current("0")]
    assert [runs[-1]] * 2 == [spans.around("199", TOOL), spans.current("199")]
    assert runs[0] is spans.around_run("new", "0")
    assert len(seen) < len(runs)
    seen.clear()
    assert spans.around_run("new", "nobody") is None
    assert [] == seen


def test_many_that_were_closed_elsewhere(spans):
    """They are passed over once."""
    run = opened(spans, RUN)
    steps = [opened(spans, STEP, f"{number}") for number in range(50)]
    last = opened(spans, STEP, "last")
    closer = threading.Thread(target=lambda: [spans.close("r", STEP, step.key) for step in steps])
    closer.start()
    closer.join()
    assert spans.around("x", STEP) is None
    assert run is last.outer


def test_what_is_closed_elsewhere_is_not_current_here(spans):
    """The thread in which it was opened goes on with what was around it."""
    run, step = opened(spans, RUN), opened(spans, STEP)
    elsewhere = threading.Thread(target=spans.close, args=("r", STEP, "1"))
    elsewhere.start()
    elsewhere.join()
    assert step is spans._current.get()
    assert run is spans.current("r")
    assert run is opened(spans, STEP, "2").outer


def test_many_threads(spans):
    """Eight threads that open and close in the same runs leave nothing."""

    def work(thread):
        for number in range(200):
            cid = f"run-{number % 3}"
            opened(spans, RUN, f"{thread}", cid)
            opened(spans, TURN, f"{thread}", cid)
            opened(spans, TOOL, f"{thread}.{number}", cid)
            spans.close(cid, TOOL, f"{thread}.{number}")
            spans.close_run(cid, f"{thread}")
        for number in range(3):
            spans.close_run(f"run-{number}", None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        spans.close_run(f"run-{number}", None)
    assert ({}, {}, {}) == (spans._nodes, spans._runs, spans._by_cid)


OPERATIONS = st.tuples(
    st.sampled_from(["open", "close"]),
    st.sampled_from([RUN, TURN, STEP, MODEL, TOOL]),
    st.sampled_from(["r", "s"]),
    st.sampled_from(["1", "2"]),
    st.integers(0, 2),
)


@given(st.lists(OPERATIONS, max_size=60), st.integers(1, 3))
def test_each_node_is_taken_out_once(operations, capacity):
    """Wherever nodes are opened and closed, each comes out once, and no more are kept than may be."""
    spans = OpenSpans()
    contexts = [contextvars.Context() for _ in range(3)]
    put, taken = [], []
    for what, kind, cid, key, where in operations:
        if what == "open":
            node = Node(cid, key, kind)
            node.span = object()
            context = contexts[where]
            parent = (
                context.run(spans.around_run, cid, None)
                if kind == RUN
                else context.run(spans.around, cid, kind)
            )
            assert parent is None or parent.run is not None
            put.append(node)
            closed, evicted = context.run(spans.open, node, parent, capacity)
            taken += [*closed, *evicted]
        elif kind == RUN:
            taken += contexts[where].run(spans.close_run, cid, key)
        else:
            taken += filter(None, [contexts[where].run(spans.close, cid, kind, key)])
        assert len(spans._runs) <= capacity
        assert all(len(run.inner) <= capacity for run in spans._runs)
    for run in list(spans._runs):
        taken += spans.close_run(run.cid, run.key)
    assert sorted(map(id, put)) == sorted(map(id, taken))
    assert ({}, {}, {}) == (spans._nodes, spans._runs, spans._by_cid)
