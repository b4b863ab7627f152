"""
Emitting without end: found, cut short, and reported once.

A plain emit is not counted: that would cost every emit for the sake of one that never comes. The interpreter
counts already, and raises RecursionError; here the frames on the stack tell whether emits nest in it. An
awaited emit counts its levels, since a task that a handler starts and awaits has a stack of its own.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Final

from ._errors import EmitLoopError
from ._report import report_failure

MIN_LEVELS: Final = 32
"""As many nested emits on an exhausted stack have exhausted it."""

MIN_SHARE: Final = 4
"""Fewer have, if their handlers go so deep that they hold the stack's fourth part or more."""

MAX_AWAITED_LEVELS: Final = 64

SHOWN_LINKS: Final = 4
"""How many links of the chain the error shows at each end."""

OVERFLOW: Final = "overflow"

trips: dict[Any, Any] = {}
"""
What is wrong just now; empty almost always, and the only thing that a plain emit looks at.

Under OVERFLOW the RecursionError that a delivery loop has just caught: put there without a call, for there
may be no stack left for one. Under a thread's ident, or a Level, the Trip that stops its emits.
"""

loop_codes: set[CodeType] = set()
"""The code of the delivery loops, whose frames are the levels of nesting."""


class Trip:
    """
    A chain of emits that was cut: under its root no further emit is let through.
    """

    __slots__ = ("error", "event", "handler", "hook", "root")

    def __init__(self, root: FrameType | None, links: list[tuple[Any, Any]]) -> None:
        self.root = root
        event, receiver = links[-1]
        self.event = event
        self.hook: str | None = None if receiver is None else hook_name(receiver)
        self.handler: str = "emit" if receiver is None else receiver.name
        self.error = EmitLoopError(describe(links))

    def report(self) -> None:
        """
        Say it, once.
        """
        report_failure(hook=self.hook, handler=self.handler, event=self.event, error=self.error)


class Level:
    """
    One awaited emit that others may be nested in; only those that still run count.
    """

    __slots__ = ("active", "depth", "event", "parent", "root")

    def __init__(self, event: Any, parent: Level | None) -> None:
        self.event = event
        self.parent = parent
        self.active = True
        self.depth: int = 1 if parent is None else parent.depth + 1
        self.root: Level = self if parent is None else parent.root


level_var: contextvars.ContextVar[Level | None] = contextvars.ContextVar("eventbus_level", default=None)


def hook_name(receiver: Any) -> str | None:
    """
    Return the name of the hook that a receiver belongs to.
    """
    return None if receiver.hook is None else str(receiver.hook.cls.__name__)


def describe(links: list[tuple[Any, Any]]) -> str:
    """
    Return the text of an EmitLoopError for the nested (event, receiver) pairs, outermost first.
    """
    steps = [
        type(event).__name__ + ("" if receiver is None else f" -> {receiver.name}")
        for event, receiver in links
    ]
    if len(steps) > 2 * SHOWN_LINKS:
        hidden = len(steps) - 2 * SHOWN_LINKS
        steps = [*steps[:SHOWN_LINKS], f"... {hidden} more ...", *steps[-SHOWN_LINKS:]]
    return (
        f"Handlers emit without end; stopped {len(links)} levels deep: {' -> '.join(steps)}. "
        "Let one of them stop emitting, or subscribe it with a `when=` that ends the chain."
    )


def _own_levels() -> tuple[list[FrameType], int]:
    # The frames of the delivery loops on this stack, innermost first, and how many frames they span.
    loops: list[FrameType] = []
    depth = span = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        depth += 1
        if frame.f_code in loop_codes:
            loops.append(frame)
            span = depth
        frame = frame.f_back
    return loops, span


def _link(frame: FrameType) -> tuple[Any, Any]:
    names = frame.f_locals
    return names["event"], names.get("receiver")


def overflowed() -> bool:
    """
    Look into the RecursionError that was just caught: trip the emits of this thread if they nest in it.

    Returns:
        Whether it was, or already is, a matter of emits, so that the error needs no report of its own.
    """
    # The mark is taken away last: where this itself overflows, it stays for an emit with more room.
    ident = threading.get_ident()
    nested = ident in trips
    if not nested:
        frames, span = _own_levels()
        deep = len(frames) > 1 and span * MIN_SHARE >= sys.getrecursionlimit()
        nested = deep or len(frames) >= MIN_LEVELS
        if nested:
            trips[ident] = Trip(frames[-1], [_link(frame) for frame in reversed(frames)])
    trips.pop(OVERFLOW, None)
    return nested


def refusal(event: Any) -> EmitLoopError | None:
    """
    Tell whether an emit must be refused because it is nested in a chain that was cut.

    Called only while `trips` is not empty.
    """
    if OVERFLOW in trips:
        overflowed()
    if event.ends_run:
        return None
    ident = threading.get_ident()
    trip: Trip | None = trips.get(ident)
    if trip is not None:
        if trip.root in _own_levels()[0]:
            return trip.error
        del trips[ident]
        trip.report()
    level = level_var.get()
    if level is not None and level.root.active:
        trip = trips.get(level.root)
        if trip is not None:
            return trip.error
    return None


def settle(frame: FrameType) -> Trip | None:
    """
    Return the trip of which `frame` is the outermost emit, now that this emit returns.
    """
    if OVERFLOW in trips:
        overflowed()
    ident = threading.get_ident()
    trip: Trip | None = trips.get(ident)
    if trip is None or trip.root is not frame:
        return None
    del trips[ident]
    trip.root = None
    return trip


def enter(event: Any) -> Level:
    """
    Begin an awaited emit inside whatever awaited emit runs around it; trip the outermost if that is too deep.
    """
    parent = level_var.get()
    while parent is not None and not parent.active:
        parent = parent.parent
    level = Level(event, parent)
    if level.depth > MAX_AWAITED_LEVELS and level.root not in trips:
        links: list[tuple[Any, Any]] = []
        one: Level | None = level
        while one is not None:
            links.append((one.event, None))
            one = one.parent
        trips[level.root] = Trip(None, links[::-1])
    return level


def leave(level: Level) -> Trip | None:
    """
    End an awaited emit, and return its trip if it is the outermost of a chain that was cut.
    """
    level.active = False
    level.parent = None
    trip: Trip | None = trips.pop(level, None) if trips else None
    return trip
