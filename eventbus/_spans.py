"""
Which spans are open, and under which of them a new one belongs.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

RUN: Final = "run"
TURN: Final = "turn"
STEP: Final = "step"
MODEL: Final = "model"
TOOL: Final = "tool"

# What may lie around what. Calls that overlap in one thread lie beside each other, not in each other.
_AROUND: Final = {
    TURN: frozenset({RUN, STEP}),
    STEP: frozenset({RUN, TURN, STEP, MODEL, TOOL}),
    MODEL: frozenset({RUN, TURN, STEP}),
    TOOL: frozenset({RUN, TURN, STEP}),
}

_NEAR: Final = 64
"""How many open spans a look around passes: whatever is further out is found by its run's id."""

_tables: weakref.WeakSet[OpenSpans] = weakref.WeakSet()


class Node:
    """
    One open span.

    Attributes:
        cid: The id of its run.
        key: Its `span_id`; None for a run that nobody has told to have started.
        kind: What it is the span of.
        span: The span; None for such a run.
        start: When it started; nanoseconds since the epoch.
        known: What its end needs of what its start said.
        run: The node of its run, itself for a run; None once it is closed.
        outer: What was current where it was started.
        inner: Of a run: what is open in it, in the order of the starts.
        turn: Of a run: its current turn.
        counts: Of a run: how many of each kind there were in it, and of what else is counted.
    """

    __slots__ = (
        "__weakref__",
        "cid",
        "counts",
        "inner",
        "key",
        "kind",
        "known",
        "outer",
        "run",
        "span",
        "start",
        "turn",
    )

    def __init__(self, cid: str, key: str | None, kind: str) -> None:
        self.cid = cid
        self.key = key
        self.kind = kind
        self.span: Any = None
        self.start = 0
        self.known: dict[str, Any] = {}
        self.run: Node | None = self if kind == RUN else None
        self.outer: Node | None = None
        self.inner: dict[tuple[str, str | None], Node] = {}
        self.turn: Node | None = None
        self.counts: dict[str, int] = {}


class OpenSpans:
    """
    The open spans of one hook, by run and `span_id`; safe on any thread.

    Which one is current is a context variable that is only ever set, never reset, so that spans may be closed
    in another thread or task than the one they were opened in.
    """

    def __init__(self) -> None:
        # By kind as well: a call that was given the `span_id` of its run must not end it.
        self._nodes: dict[tuple[str, str, str | None], Node] = {}
        self._runs: dict[Node, None] = {}
        self._by_cid: dict[str, list[Node]] = {}
        self._current: ContextVar[Node | None] = ContextVar("eventbus_span", default=None)
        # Re-entrant: a finalizer may emit wherever Python collects garbage.
        self._lock = threading.RLock()
        _tables.add(self)

    def __len__(self) -> int:
        return len(self._nodes) + len(self._runs)

    def knows(self, cid: str | None) -> bool:
        """
        Tell whether something is open in a run.
        """
        return cid in self._by_cid

    def around_run(self, cid: str, parent_id: str | None) -> Node | None:
        """
        Return what a new run was started in: a call, turn or step of its parent, or of a run of the same id.
        """
        if self.knows(cid) or self.knows(parent_id):
            for node in self._enclosing():
                if node.cid in {cid, parent_id}:
                    return node
        return None if parent_id is None else self._innermost(parent_id)

    def around(self, cid: str, kind: str) -> Node | None:
        """
        Return what a new span of a run belongs under; None if nothing is known of the run.
        """
        for node in self._enclosing():
            if node.cid == cid and node.kind in _AROUND[kind]:
                # A turn that was started in another thread or task is around what happens here as well.
                return node if node.turn is None or kind == TURN else node.turn
        return self._innermost(cid, kind)

    def current(self, cid: str) -> Node | None:
        """
        Return what something that happens in a run happens in.
        """
        for node in self._enclosing():
            if node.cid == cid:
                return node
        return self._innermost(cid)

    def here(self) -> Node | None:
        """
        Return what is open around this thread or task; None if nothing is.
        """
        return next(self._enclosing(), None)

    def open(self, node: Node, parent: Node | None, capacity: int) -> tuple[list[Node], list[Node]]:
        """
        Put a new node in, and make it the current one of this thread or task.

        Args:
            node: The node, with its span.
            parent: What `around` has returned.
            capacity: How many runs may be open, and how many spans in one run.

        Returns:
            What is closed by that, the inner before the outer: whatever had the same key, or the node itself
            if its run has ended meanwhile; and what had to make room.
        """
        evicted: list[Node] = []
        with self._lock:
            closed = self._take(self._nodes.get((node.cid, node.kind, node.key)))
            if node.kind == RUN:
                self._add_run(node)
            elif parent is not None and parent.run is None:
                return [*closed, node], evicted
            else:
                run = None if parent is None else parent.run
                if run is None or run.cid != node.cid:
                    run = Node(node.cid, None, RUN)
                    self._add_run(run)
                self._add(node, run)
                if len(run.inner) > capacity:
                    evicted += self._take(next(iter(run.inner.values())))
            self._nodes[node.cid, node.kind, node.key] = node
            if len(self._runs) > capacity:
                evicted += self._take(next(iter(self._runs)))
        outer = self.here()
        if outer is not None:
            # The chain must not grow for as long as somebody opens the next one before the last one ends.
            outer.outer = _open_from(outer.outer)
        node.outer = outer
        self._current.set(node)
        return closed, evicted

    def close(self, cid: str, kind: str, key: str | None) -> Node | None:
        """
        Take out what is open in a run, and return it; None if it is not.
        """
        if not self.knows(cid):
            return None
        with self._lock:
            return next(iter(self._take(self._nodes.get((cid, kind, key)))), None)

    def close_run(self, cid: str, key: str | None) -> list[Node]:
        """
        Take out a run and whatever is open in it.

        Args:
            cid: Its id.
            key: Its `span_id`; None for the latest of that id.

        Returns:
            The nodes that have spans, the inner before the outer.
        """
        if not self.knows(cid):
            return []
        with self._lock:
            run = self._nodes.get((cid, RUN, key))
            if run is None:
                latest = next(reversed(self._by_cid.get(cid, ())), None)
                run = latest if latest is not None and None in {key, latest.key} else None
            return self._take(run)

    def count(self, node: Node | None, what: str) -> None:
        """
        Count one more of something in the run of a node.
        """
        run = None if node is None else node.run
        if run is not None:
            with self._lock:
                run.counts[what] = run.counts.get(what, 0) + 1

    def _add_run(self, run: Node) -> None:
        self._runs[run] = None
        self._by_cid.setdefault(run.cid, []).append(run)

    def _add(self, node: Node, run: Node) -> None:
        node.run = run
        run.inner[node.kind, node.key] = node
        run.counts[node.kind] = run.counts.get(node.kind, 0) + 1
        if node.kind == TURN:
            run.turn = node

    def _take(self, node: Node | None) -> list[Node]:
        if node is None:
            return []
        taken = [*reversed(node.inner.values()), node]
        run = node.run
        if run is None or run is node:
            self._remove_run(node)
        else:
            run.inner.pop((node.kind, node.key), None)
            if run.turn is node:
                run.turn = None
            if run.span is None and not run.inner:
                self._remove_run(run)
        for one in taken:
            self._nodes.pop((one.cid, one.kind, one.key), None)
            one.run = None
            if self._current.get() is one:
                self._current.set(_open_from(one.outer))
        node.inner = {}
        return [one for one in taken if one.span is not None]

    def _remove_run(self, run: Node) -> None:
        self._runs.pop(run, None)
        run.run = run.turn = None
        siblings = self._by_cid[run.cid]
        siblings.remove(run)
        if not siblings:
            del self._by_cid[run.cid]

    def _enclosing(self) -> Iterator[Node]:
        node = _open_from(self._current.get())
        for _ in range(_NEAR):
            if node is None:
                return
            yield node
            outer = _open_from(node.outer)
            node.outer = outer
            node = outer

    def _innermost(self, cid: str, kind: str = STEP) -> Node | None:
        with self._lock:
            run = next(reversed(self._by_cid.get(cid, ())), None)
            return run if run is None or run.turn is None or kind == TURN else run.turn

    def _after_fork(self) -> None:  # pragma: no cover - in a forked child, which ends without a report
        self._lock = threading.RLock()


def _open_from(node: Node | None) -> Node | None:
    while node is not None and node.run is None:
        node = node.outer
    return node


def _after_fork() -> None:  # pragma: no cover - in a forked child, which ends without a report
    # A thread that held the lock stayed in the parent.
    for table in _tables:
        table._after_fork()


os.register_at_fork(after_in_child=_after_fork)
