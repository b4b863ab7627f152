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
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

from ._errors import EmitLoopError
from ._report import report_failure

MIN_LEVELS: Final = 32
"""As many nested emits on an exhausted stack have exhausted it."""

FEW_LEVELS: Final = 8
"""As many have if none of them failed further from the stack's end than the widest of them reaches."""

MIN_SHARE: Final = 4
"""Fewer have, if besides they hold the stack's fourth part or more."""

MAX_OVERFLOWS: Final = 3
"""Fewer still have, if they reach the stack's end as often as this: in an app that left them little room."""

SLACK: Final = 8
"""How many frames further than the widest level the failing one may have reached."""

MAX_AWAITED_LEVELS: Final = 64

MIN_RECURSION: Final = 3
"""An awaited emit inside as many of its own class is part of a recursion."""

MAX_RECURSIONS: Final = 10_000
"""
How many of those may run at one time below one emit. Handlers that gather several emits each go on in
breadth, and would double the work at each level long before one of them is too deep.
"""

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
    An outermost emit below which the stack has run out; once it has an error, no emit below is let through.

    Attributes:
        root: The frame of that emit, if it is the outermost on its stack.
        frames: The frames of the chain when it was cut, which tell at once that the root is below.
        classes: The event classes of the chain.
        overflows: How often the stack has run out so far.
        event, hook, handler, error: The report.
    """

    __slots__ = ("classes", "error", "event", "frames", "handler", "hook", "overflows", "root")

    def __init__(self, root: FrameType | None) -> None:
        self.root = root
        self.frames: set[FrameType] = set() if root is None else {root}
        self.classes: set[type] = set()
        self.overflows = 0
        self.error: EmitLoopError | None = None
        self.event: Any = None
        self.hook: str | None = None
        self.handler = "emit"

    def cut(self, links: list[tuple[Any, Any]]) -> None:
        """
        Stop the chain of the nested (event, receiver) pairs, outermost first.
        """
        self.classes = {type(event) for event, _ in links}
        self.event, receiver = links[-1]
        if receiver is not None:
            self.hook, self.handler = hook_name(receiver), receiver.name
        self.error = EmitLoopError(describe(links))

    def report(self) -> None:
        """
        Say it, once.
        """
        if self.error is not None:
            report_failure(hook=self.hook, handler=self.handler, event=self.event, error=self.error)


class Level:
    """
    One awaited emit that others may be nested in; only those that still run count.

    Attributes:
        event: What it delivers, while it runs.
        receiver: Whose turn it is.
        parent: The nearest awaited emit around it.
        outer: What `level_var` was before.
        active: Whether it still runs.
        recursions: How many emits below it are part of a recursion and still run.
        counted: The level that counts this one among its recursions.
    """

    __slots__ = ("active", "counted", "event", "outer", "parent", "receiver", "recursions")

    def __init__(self, event: Any, parent: Level | None, outer: Level | None) -> None:
        self.event = event
        self.receiver: Any = None
        self.parent = parent
        self.outer = outer
        self.active = True
        self.recursions = 0
        self.counted: Level | None = None


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


class _Stack:
    """
    The delivery loops on a stack, innermost first, the frames they span, and the widest gap between two.
    """

    __slots__ = ("loops", "span", "widest")

    def __init__(self, frame: FrameType | None) -> None:
        self.loops: list[FrameType] = []
        self.span = self.widest = 0
        depth = 0
        while frame is not None:
            depth += 1
            if frame.f_code in loop_codes:
                if self.loops:
                    self.widest = max(self.widest, depth - self.span)
                self.loops.append(frame)
                self.span = depth
            frame = frame.f_back

    def is_exhausted_by_levels(self, error: RecursionError) -> bool:
        """
        Tell whether the levels, rather than what the innermost of them called, have used up the stack.
        """
        levels = len(self.loops)
        if levels >= MIN_LEVELS:
            return True
        if levels < FEW_LEVELS and (levels < 3 or self.span * MIN_SHARE < sys.getrecursionlimit()):
            return False
        return self.ends_at_a_level(error)

    def ends_at_a_level(self, error: RecursionError) -> bool:
        """
        Tell whether the next level, rather than a recursion of a handler's own, found no more room.
        """
        below = 0
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            below += 1
            trace = trace.tb_next
        return len(self.loops) > 1 and below <= self.widest + SLACK


def _link(frame: FrameType) -> tuple[Any, Any]:
    names = frame.f_locals
    receivers = names.get("receivers")
    if receivers is None or "call" not in names:
        return names["event"], names.get("receiver")
    return names["event"], receivers[id(names["call"])]


def _active_levels() -> Iterator[Level]:
    # The awaited emits around this place that still run, innermost first.
    level = level_var.get()
    while level is not None:
        if level.active:
            yield level
        level = level.parent


def is_loop(error: Exception) -> bool:
    """
    Look into what a handler has raised: trip the emits around it if they are what has exhausted the stack.

    Called only while `trips` is not empty.

    Returns:
        Whether it is a matter of emits without end, so that the error needs no report of its own.
    """
    if error.__class__ is RecursionError:
        return _overflowed(error, _Stack(sys._getframe(1)))
    if isinstance(error, EmitLoopError):
        return any(isinstance(trip, Trip) and trip.error is error for trip in list(trips.values()))
    return False


def _overflowed(error: Any, stack: _Stack) -> bool:
    # The mark is taken away last: where this itself overflows, it stays for an emit with more room.
    outermost = None
    for level in _active_levels():
        outermost = level
    key: Any = threading.get_ident() if outermost is None else outermost
    trip: Trip | None = trips.get(key)
    if trip is None or trip.error is None:
        cut = stack.is_exhausted_by_levels(error)
        if not cut and stack.ends_at_a_level(error):
            if trip is None:
                trip = trips[key] = Trip(stack.loops[-1] if outermost is None else None)
            trip.overflows += 1
            cut = trip.overflows >= MAX_OVERFLOWS
        if cut:
            if trip is None:
                trip = Trip(stack.loops[-1] if outermost is None else None)
            trip.cut([_link(frame) for frame in reversed(stack.loops)])
            if trip.root is not None:
                trip.frames.update(stack.loops)
            trips[key] = trip
    if trips.get(OVERFLOW) is error:
        trips.pop(OVERFLOW, None)
    return trip is not None and trip.error is not None


def _look_at_mark() -> None:
    # Whose it is, is told by the delivery loops that its stack and ours have in common.
    error: RecursionError | None = trips.get(OVERFLOW)
    if error is None or error.__traceback__ is None:
        trips.pop(OVERFLOW, None)
        return
    theirs = _Stack(error.__traceback__.tb_frame).loops
    mine = _Stack(sys._getframe(1))
    if any(frame in theirs for frame in mine.loops):
        _overflowed(error, mine)
    elif (
        not any(frame in theirs for top in sys._current_frames().values() for frame in _Stack(top).loops)
        and trips.get(OVERFLOW) is error
    ):
        trips.pop(OVERFLOW, None)


def refusal(event: Any) -> EmitLoopError | None:
    """
    Tell whether an emit must be refused because it is nested in a chain that was cut.

    Let through are the reports of failures, and an event that ends its run, unless that is itself what is
    emitted without end.

    Called only while `trips` is not empty.
    """
    if OVERFLOW in trips:
        _look_at_mark()
    if event._is_report:
        return None
    trip = _trip_around()
    if trip is None or trip.error is None:
        return None
    if event.ends_run and type(event) not in trip.classes and not _is_inside_its_like(event, trip):
        return None
    return trip.error


def _trip_around() -> Trip | None:
    # The trip that this place is below.
    ident = threading.get_ident()
    trip: Trip | None = trips.get(ident)
    if trip is not None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame in trip.frames:
                return trip
            frame = frame.f_back
        del trips[ident]
        trip.report()
    for level in _active_levels():
        if level in trips:
            found: Trip = trips[level]
            return found
    return None


def _is_inside_its_like(event: Any, trip: Trip) -> bool:
    # Among what was let through since the chain was cut.
    if any(type(level.event) is type(event) for level in _active_levels()):
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame not in trip.frames:
        if frame.f_code in loop_codes:
            other = frame.f_locals["event"]
            if other is not event and type(other) is type(event):
                return True
        frame = frame.f_back
    return False


def settle(frame: FrameType) -> Trip | None:
    """
    Return the trip of which `frame` is the outermost emit, now that this emit returns.
    """
    if OVERFLOW in trips:
        _look_at_mark()
    ident = threading.get_ident()
    trip: Trip | None = trips.get(ident)
    if trip is None or trip.root is not frame:
        return None
    del trips[ident]
    trip.root = None
    trip.frames.clear()
    return None if trip.error is None else trip


def enter(event: Any) -> Level:
    """
    Begin an awaited emit inside what awaited emits run around it; trip the outermost if that is too much.
    """
    outer = level_var.get()
    if outer is None:
        # Nothing around it, as nearly always.
        level = Level(event, None, None)
        level_var.set(level)
        return level
    around = list(_active_levels())
    level = Level(event, around[0] if around else None, outer)
    level_var.set(level)
    too_deep = len(around) >= MAX_AWAITED_LEVELS
    if sum(type(one.event) is type(event) for one in around) >= MIN_RECURSION:
        level.counted = around[-1]
        level.counted.recursions += 1
        too_deep = too_deep or level.counted.recursions > MAX_RECURSIONS
    if too_deep and not any(one in trips for one in around):
        trip = trips[around[-1]] = Trip(None)
        trip.cut([(one.event, one.receiver) for one in [*around[::-1], level]])
    return level


def leave(level: Level) -> Trip | None:
    """
    End an awaited emit, and return its trip if it is the outermost of a chain that was cut.
    """
    level.active = False
    # A task that outlives the emit keeps the level, and should keep no more than that.
    level.event = level.receiver = None
    if level.counted is not None:
        level.counted.recursions -= 1
        level.counted = None
    while level.parent is not None and not level.parent.active:
        level.parent = level.parent.parent
    if level_var.get() is level:
        level_var.set(level.outer)
    level.outer = None
    trip: Trip | None = trips.pop(level, None) if trips else None
    return None if trip is None or trip.error is None else trip
