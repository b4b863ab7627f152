"""
The tree of a stored run: its turns, model calls, tool calls and steps, nested as they happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias, cast

import attrs

from ._reader import StoredEvent, StoredRun, TraceReader
from ._stored import as_dict, call_key
from .catalog import subject_of_gate

Nested: TypeAlias = Callable[[str], Iterable[tuple[StoredRun, Iterable[StoredEvent]]]]

MAX_NODES: Final = 50_000
"""How many nodes a tree has at most; what comes after them is counted in the note of its root."""

MAX_DEPTH: Final = 30
"""How many runs deep runs are nested in a tree; what the deepest has below it is counted in its note."""

MAX_LEVELS: Final = 60
"""How deep parts are nested in a tree; deeper ones stand beside each other. Readers of JSON have a limit."""

_STARTS: Final = {
    "inference.started": "run",
    "turn.started": "turn",
    "model_call.started": "model",
    "tool_call.started": "tool",
    "step.started": "step",
}
_ENDS: Final = {
    "inference.completed": ("run", "ok"),
    "inference.failed": ("run", "failed"),
    "inference.max_turns_reached": ("run", "max_turns"),
    "turn.completed": ("turn", "ok"),
    "inference.generated": ("model", "ok"),
    "model_call.failed": ("model", "failed"),
    "tool_call.completed": ("tool", "ok"),
    "tool_call.failed": ("tool", "failed"),
    "step.completed": ("step", "ok"),
    "step.failed": ("step", "failed"),
}
_REFUSALS: Final = {"inference.denied": "run", "tool_call.denied": "tool"}
_PART_OF: Final = frozenset({"tool_calls.received", "inference.chunk"})
_PREFIX: Final = "eventbus."


@attrs.define(eq=False)
class Node:
    """
    A part of a run that took time, or a point in it.

    Attributes:
        kind: "run", "turn", "model", "tool" or "step"; "event" for a point in time.
        title: Its name: an agent's, a model's, a tool's; nothing in it is escaped.
        status: "ok", "failed", "denied", "max_turns", or "open" without an end.
        offset: Seconds from the first event of the whole tree, by the wall clock.
        duration: Seconds, monotonic; None without an end, or for a point.
        note: An error's text, a refusal's reason and author, or None.
        start: The event that begins it; None if only its end is stored.
        end: The event that ends it, or None.
        events: What else is told of it and is no node: chunks, the calls that the model asked for.
        children: What happened in it, in order.
    """

    kind: str
    title: str
    status: str
    offset: float
    duration: float | None = None
    note: str | None = None
    start: StoredEvent | None = None
    end: StoredEvent | None = None
    events: list[StoredEvent] = attrs.field(factory=list[StoredEvent])
    children: list[Node] = attrs.field(factory=list["Node"])

    def walk(self) -> Iterator[tuple[int, Node]]:
        """
        Yield this node and all below it with their depths, each before what happened in it.
        """
        waiting: list[tuple[int, Node]] = [(0, self)]
        while waiting:
            depth, node = waiting.pop()
            yield depth, node
            waiting += [(depth + 1, child) for child in reversed(node.children)]


def tree_of(reader: TraceReader, text: str) -> Node:
    """
    Return the tree of one run of a store, with the runs that were started in it.

    Args:
        reader: The store.
        text: As for `TraceReader.find`.

    Raises:
        UnknownRunError: If no run has the id.
        AmbiguousRunError: If several have ids that begin so.
    """
    run = reader.run(text)

    def nested(cid: str) -> Iterator[tuple[StoredRun, Iterable[StoredEvent]]]:
        children = reader.runs(parent_id=cid, limit=MAX_NODES)
        for child in sorted(children, key=lambda child: child.first_seq):
            yield child, reader.events(child.correlation_id)

    return build(run, reader.events(run.correlation_id), nested)


def build(run: StoredRun, events: Iterable[StoredEvent], nested: Nested = lambda _: ()) -> Node:
    """
    Make the tree of a run.

    A call hangs under the turn or step that is open when it starts, a step under whatever is; what outlives
    the part that it hangs under is moved up. A nested run hangs under the part of its parent that was opened
    last, of those that were open at the nested run's first event.

    Args:
        run: The run.
        events: Its events, by sequence.
        nested: Called with a run's id, returns the runs that were started in it, each with its events.

    Returns:
        The root, of the kind "run". Runs, depth and size are bounded; a cycle of parents ends.
    """
    return _Builder(nested, run.started).build(run, events)


class _Builder:
    """
    What is known of a whole tree while it is built.
    """

    def __init__(self, nested: Nested, started: float) -> None:
        self.nested = nested
        self.started = started
        self.room = MAX_NODES
        self.seen: set[str] = set()

    def build(self, run: StoredRun, events: Iterable[StoredEvent], depth: int = 0, level: int = 0) -> Node:
        self.seen.add(run.correlation_id)
        below = iter(self.nested(run.correlation_id))
        one = _OneRun(self, run, level)
        left_out = runs_left_out = 0
        child = next(below, None)
        for event in events:
            while child is not None and child[0].first_seq < event.seq:
                runs_left_out += self._is_left_out(one, child, depth)
                child = next(below, None)
            if self.room > 0:
                one.add(event)
            else:
                left_out += 1
        while child is not None:
            runs_left_out += self._is_left_out(one, child, depth)
            child = next(below, None)
        notes = [] if one.root.note is None else [one.root.note]
        if left_out:
            notes.append(f"{left_out:,} more events are not shown")
        if runs_left_out:
            notes.append(f"{runs_left_out:,} run{'s' if runs_left_out > 1 else ''} started from it not shown")
        one.root.note = ", ".join(notes) or None
        return one.root

    def _is_left_out(
        self, parent: _OneRun, child: tuple[StoredRun, Iterable[StoredEvent]], depth: int
    ) -> bool:
        run, events = child
        if run.correlation_id in self.seen:
            return False
        if self.room <= 0 or depth == MAX_DEPTH:
            return True
        self.room -= 1
        above = parent.innermost()
        above.children.append(self.build(run, events, depth + 1, parent.level_of(above) + 1))
        return False


class _OneRun:
    """
    What is known of one run after some of its events.
    """

    def __init__(self, builder: _Builder, run: StoredRun, level: int) -> None:
        self._builder = builder
        # Under an id that no run ever had, such as a scope's, nothing is left open.
        status = "ok" if run.status is None else "open"
        self.root = Node("run", run.agent or run.correlation_id, status, self._offset(run.started))
        self._runs = 0
        # By span id, in the order of their starts: each with what it hangs under.
        self._open: dict[str, tuple[Node, Node]] = {}
        # Those of them that more may hang under, and how deep each is.
        self._parents: dict[str, int] = {}
        self._level = level
        # Decisions about a call come before its start.
        self._decided: dict[tuple[str, str], list[tuple[Node, Node]]] = {}

    def innermost(self, *kinds: str) -> Node:
        """
        Return the part that was opened last of those that are open, of some kinds only if they are given.
        """
        for node, _ in self._innermost_first():
            if not kinds or node.kind in kinds:
                return node
        return self.root

    def level_of(self, parent: Node) -> int:
        """
        Return how deep in the whole tree one is that more may hang under.
        """
        span_id = None if parent.start is None else parent.start.span_id
        return self._parents.get(span_id or "", self._level)

    def _innermost_first(self) -> Iterator[tuple[Node, Node]]:
        return (self._open[span_id] for span_id in reversed(self._parents))

    def add(self, event: StoredEvent) -> None:
        """
        Take in the next event.
        """
        name = event.channel.removeprefix(_PREFIX) if event.channel.startswith(_PREFIX) else ""
        if name in _STARTS:
            self._start(event, _STARTS[name])
        elif name in _ENDS:
            self._end(event, *_ENDS[name])
        elif name in _REFUSALS:
            self._refuse(event, _REFUSALS[name])
        elif name in _PART_OF:
            self.innermost("turn", "model").events.append(event)
        else:
            self._point(event, name)

    def _offset(self, timestamp: float) -> float:
        return max(0.0, timestamp - self._builder.started)

    def _node(self, event: StoredEvent, kind: str, status: str, parent: Node) -> Node:
        self._builder.room -= 1
        node = Node(kind, _title(kind, event), status, self._offset(event.timestamp), start=event)
        parent.children.append(node)
        return node

    def _run(self, event: StoredEvent) -> Node:
        # A store that was filled twice with one recorded run has two under its id.
        self._runs += 1
        if self._runs == 1:
            self.root.start = event
            return self.root
        return self._node(event, "run", "open", self.root)

    def _start(self, event: StoredEvent, kind: str) -> None:
        if kind == "run":
            node = parent = self._run(event)
        else:
            parent = self._parent(kind)
            node = self._node(event, kind, "open", parent)
            if kind == "tool":
                self._take_decisions(event, node)
        if event.span_id is not None:
            level = self.level_of(parent) + 1
            self._open[event.span_id] = (node, parent)
            if level < MAX_LEVELS:
                self._parents[event.span_id] = level

    def _parent(self, kind: str) -> Node:
        if kind == "step":
            return self.innermost()
        for node, parent in self._innermost_first():
            # A step that a tool takes has none of the calls that run beside the tool.
            if node.kind in {"run", "turn"} or (node.kind == "step" and parent.kind != "tool"):
                return node
        return self.root

    def _end(self, event: StoredEvent, kind: str, status: str) -> None:
        node, parent = self._open.pop(event.span_id or "", (None, self.root))
        self._parents.pop(event.span_id or "", None)
        if node is None and kind == "run" and self.root.end is None:
            node = self.root
        if node is None:
            # Answered by a gate, or told by somebody who tells no starts.
            node = self._node(event, kind, status, self._parent(kind))
            node.offset = max(0.0, node.offset - (event.duration or 0.0))
            node.start = None
            if kind == "tool":
                self._take_decisions(event, node)
        elif node is not parent:
            self._move_up(node, parent)
        node.status, node.end, node.duration = status, event, event.duration
        node.note = _note(event)
        if kind == "model" and node.title == "model":
            node.title = _title(kind, event)

    def _move_up(self, ended: Node, parent: Node) -> None:
        for span_id, (node, above) in self._open.items():
            if above is ended:
                ended.children.remove(node)
                parent.children.append(node)
                self._open[span_id] = (node, parent)

    def _refuse(self, event: StoredEvent, kind: str) -> None:
        if kind == "run":
            node = self._run(event)
        else:
            node = self._node(event, kind, "denied", self._parent(kind))
            self._take_decisions(event, node)
        node.status, node.note = "denied", _note(event)

    def _point(self, event: StoredEvent, name: str) -> None:
        status = "ok"
        parent = self.innermost()
        call = None
        if name == "gate.decision":
            if event.payload.get("applied") is not False:
                status = {"deny": "denied", "error": "failed"}.get(str(event.payload.get("action")), "ok")
            call = call_key(event)
            parent = self._called(call) or self.innermost("turn", "step")
        elif name in {"handler.failed", "loop_run.failed"}:
            status = "failed"
        node = self._node(event, "event", status, parent)
        node.note = _note(event)
        if call is not None and parent.kind != "tool":
            self._decided.setdefault(call, []).append((parent, node))

    def _called(self, call: tuple[str, str] | None) -> Node | None:
        tools = (node for node, _ in reversed(self._open.values()) if node.kind == "tool")
        return next((node for node in tools if call is not None and call == _key_of(node)), None)

    def _take_decisions(self, event: StoredEvent, node: Node) -> None:
        call = call_key(event)
        for above, decision in self._decided.pop(call, ()) if call is not None else ():
            above.children.remove(decision)
            node.children.append(decision)


def _key_of(node: Node) -> tuple[str, str] | None:
    return None if node.start is None else call_key(node.start)


def _title(kind: str, event: StoredEvent) -> str:
    payload = event.payload
    if kind == "run":
        return event.agent or event.correlation_id or "run"
    if kind == "turn":
        return f"turn {payload.get('turn')}" if payload.get("turn") is not None else "turn"
    if kind == "model":
        return str(payload.get("model") or "model")
    if kind == "tool":
        return event.tool or "tool"
    if kind == "step":
        return str(payload.get("name") or "step")
    if event.channel == "eventbus.gate.decision":
        subject = event.tool or str(subject_of_gate(payload.get("gate")) or "")
        return f"{payload.get('action') or 'decision'} {subject}".rstrip()
    if event.channel == "eventbus.handler.failed":
        return f"handler failed: {payload.get('handler')}"
    return event.event


def _note(event: StoredEvent) -> str | None:
    payload = event.payload
    parts: list[str] = []
    error = payload.get("error")
    if isinstance(error, dict):
        told = as_dict(cast("object", error))
        name = str(told.get("type") or "").rpartition(".")[2]
        parts.append(": ".join(part for part in (name, str(told.get("text") or "")) if part))
    elif error is not None:
        parts.append(str(error))
    if payload.get("reason") is not None:
        parts.append(str(payload["reason"]))
    if payload.get("field") is not None and not parts:
        parts.append(f"field {payload['field']}")
    if payload.get("by") is not None:
        parts.append(f"by {payload['by']}")
    if payload.get("answered_by") is not None:
        parts.append(f"answered by {payload['answered_by']}")
    if payload.get("applied") is False:
        parts.append("not applied")
    return ", ".join(parts) or None
