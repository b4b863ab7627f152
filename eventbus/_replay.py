"""
Telling a recorded run as the events that it would have emitted, and counting what is delivered.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import NamedTuple, Self

import attrs

from ._context import replaying
from ._errors import ModelCallRefused, ToolCallRefused
from ._event import Event
from ._records import Call, Record, Turn
from ._run import Run
from .catalog import (
    GateDecisionEvent,
    HandlerFailedEvent,
    InferenceDeniedEvent,
    InferenceGeneratedEvent,
    InferenceStartedEvent,
    ToolCallFailedEvent,
    ToolCallStartedEvent,
)
from .gates import AfterModelCallEvent, BeforeModelCallEvent

FIRST = -(2**31)
"""The priority of what counts: it sees an event before any handler can raise."""


MAX_REASONS = 100
"""How many different reasons are kept for one handler's decisions of one kind."""


def replay_record(record: Record) -> None:
    """
    Send a recorded run through a Run of the same id; `is_replaying()` is true meanwhile.

    What the record says is what model and tools return. Gates judge it as they would have judged the run, and
    what they do is told; after a refusal the record goes on as it was recorded. A gate that raises ends the
    run. The events have the time of their emission, and durations that say nothing of the recorded run.
    Handlers run on the calling thread; a BaseException ends the replay where it stands.

    Args:
        record: The run.
    """
    run = Run(record.agent, record.message, metadata=record.metadata, correlation_id=record.id)
    try:
        with replaying(), run:
            for turn, _ in zip(record.turns, run.turns(), strict=False):
                _replay_turn(record, turn, run)
            run.complete(record.result)
    except Exception:
        return


def _replay_turn(record: Record, turn: Turn, run: Run) -> None:
    # Messages are put together only for those who look at them: a run's add up to its length squared.
    lookers = (InferenceGeneratedEvent, BeforeModelCallEvent, AfterModelCallEvent)
    request = record.request(turn) if any(looker.has_receivers() for looker in lookers) else ()
    with suppress(ModelCallRefused), run.model_call(request, model=record.model) as asked:
        if asked.answer is None:
            asked.set(turn.response)
    for call in turn.calls:
        _replay_call(call, run)


def _replay_call(call: Call, run: Run) -> None:
    with suppress(ToolCallRefused), run.tool_call(call.tool_call) as called:
        if called.answer is None and call.result.success:
            called.set(call.result)
        elif called.answer is None:
            called.fail(call.result.error)


@attrs.define
class ToolCount:
    """
    How often one tool was called.

    Attributes:
        calls: Starts.
        failed: How many of them ended in failure.
    """

    calls: int = 0
    failed: int = 0


@attrs.define
class Decisions:
    """
    How often one handler decided one thing about one tool, the model or the run.

    Attributes:
        count: How often.
        reasons: How often with which reason; of many different ones only the first are kept.
    """

    count: int = 0
    reasons: Counter[str] = attrs.field(factory=Counter[str])


class Decided(NamedTuple):
    """
    What a gate did: who, what, to which tool (or "model", "run"), and whether it counted.
    """

    by: str
    action: str
    subject: str
    applied: bool


class Summary:
    """
    Counts, between entering and leaving it, what the bus delivers, whoever emits it on whichever thread.

    Attributes:
        events: How many of each class, in the order in which they were first met.
        tools: How many calls of each tool, by name.
        failed_handlers: How often each handler raised, by name.
        decisions: What gates did.
        seconds: How long it has counted; monotonic seconds.
    """

    def __init__(self) -> None:
        self.events: Counter[type[Event]] = Counter()
        self.tools: dict[str, ToolCount] = {}
        self.failed_handlers: Counter[str] = Counter()
        self.decisions: dict[Decided, Decisions] = {}
        self._lock = threading.Lock()
        self._started: float | None = None
        self._stopped: float | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._open.enter_context(Event.subscribe(self.count, priority=FIRST))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = time.monotonic()
        self._open.close()

    def count(self, event: Event) -> None:
        """
        Count one event.
        """
        with self._lock:
            self.events[type(event)] += 1
            if isinstance(event, (ToolCallStartedEvent, ToolCallFailedEvent)):
                tool = self.tools.setdefault(str(event.tool_call.name), ToolCount())
                if isinstance(event, ToolCallStartedEvent):
                    tool.calls += 1
                else:
                    tool.failed += 1
            elif isinstance(event, HandlerFailedEvent):
                self.failed_handlers[str(event.handler)] += 1
            elif isinstance(event, GateDecisionEvent):
                self._decide(event)

    def _decide(self, event: GateDecisionEvent) -> None:
        decided = Decided(str(event.by), str(event.action), str(event._subject()), event.applied is not False)
        decisions = self.decisions.setdefault(decided, Decisions())
        decisions.count += 1
        reason = event.reason
        if reason and (reason in decisions.reasons or len(decisions.reasons) < MAX_REASONS):
            decisions.reasons[reason] += 1

    @property
    def runs(self) -> int:
        """
        How many runs began or were refused.
        """
        return self.events[InferenceStartedEvent] + self.events[InferenceDeniedEvent]

    @property
    def total(self) -> int:
        """
        How many events there were.
        """
        return self.events.total()

    @property
    def seconds(self) -> float:
        """
        How long it has counted.
        """
        if self._started is None:
            return 0.0
        return (time.monotonic() if self._stopped is None else self._stopped) - self._started

    @property
    def rate(self) -> float:
        """
        Events per second; 0 if there were none.
        """
        return self.total / self.seconds if self.total else 0.0
