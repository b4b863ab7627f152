"""
Telling a recorded run as the events that it would have emitted, and counting what is delivered.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

import attrs

from ._context import correlation, new_span_id, replaying
from ._event import Event
from ._records import Call, Record, Turn
from ._subscribe import Subscription
from .catalog import (
    HandlerFailedEvent,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceGeneratedEvent,
    InferenceStartedEvent,
    ModelCallStartedEvent,
    ToolCallCompletedEvent,
    ToolCallFailedEvent,
    ToolCallsReceivedEvent,
    ToolCallStartedEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)
from .values import Agent, RunInfo

FIRST = -(2**31)
"""The priority of what counts: it sees an event before any handler can raise."""


def replay_record(record: Record) -> None:
    """
    Emit what a recorded run would have emitted, under its own id; `is_replaying()` is true meanwhile.

    The events have the time of their emission and no durations, for records tell neither. Handlers run on the
    calling thread; what they raise is reported as ever, and a BaseException ends the replay where it stands.

    Args:
        record: The run.
    """
    run = RunInfo(
        id=record.id,
        agent=Agent(record.agent),
        message=record.message,
        metadata=record.metadata,
    )
    span_id = new_span_id()
    with replaying(), correlation(record.id):
        InferenceStartedEvent.emit(agent=run.agent, message=run.message, span_id=span_id, run=run)
        for turn in record.turns:
            _replay_turn(record, turn, run)
        InferenceCompletedEvent.emit(
            agent=run.agent, message=run.message, result=record.result, span_id=span_id, run=run
        )


def _replay_turn(record: Record, turn: Turn, run: RunInfo) -> None:
    agent, span_id, model_span_id = run.agent, new_span_id(), new_span_id()
    TurnStartedEvent.emit(agent=agent, turn=turn.number, span_id=span_id, run=run)
    ModelCallStartedEvent.emit(
        agent=agent, turn=turn.number, model=record.model, attempt=1, span_id=model_span_id, run=run
    )
    if InferenceGeneratedEvent.has_receivers():
        InferenceGeneratedEvent.emit(
            agent=agent,
            turn=turn.number,
            request=record.request(turn),
            response=turn.response,
            model=record.model,
            usage=turn.response.usage,
            attempt=1,
            span_id=model_span_id,
            run=run,
        )
    if turn.calls:
        ToolCallsReceivedEvent.emit(agent=agent, tool_calls=turn.response.tool_calls, run=run)
    for call in turn.calls:
        _replay_call(call, run)
    TurnCompletedEvent.emit(agent=agent, turn=turn.number, span_id=span_id, run=run)


def _replay_call(call: Call, run: RunInfo) -> None:
    agent, span_id = run.agent, new_span_id()
    ToolCallStartedEvent.emit(agent=agent, tool_call=call.tool_call, span_id=span_id, run=run)
    if call.result.success:
        ToolCallCompletedEvent.emit(
            agent=agent, tool_call=call.tool_call, result=call.result, span_id=span_id, run=run
        )
    else:
        ToolCallFailedEvent.emit(
            agent=agent, tool_call=call.tool_call, error=call.result.error, span_id=span_id, run=run
        )


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


class Summary:
    """
    Counts, between entering and leaving it, what the bus delivers, whoever emits it on whichever thread.

    Attributes:
        events: How many of each class, in the order in which they were first met.
        tools: How many calls of each tool, by name.
        failed_handlers: How often each handler raised, by name.
        seconds: How long it has counted; monotonic seconds.
    """

    def __init__(self) -> None:
        self.events: Counter[type[Event]] = Counter()
        self.tools: dict[str, ToolCount] = {}
        self.failed_handlers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._started: float | None = None
        self._stopped: float | None = None
        self._subscription: Subscription[[Event], None] | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._subscription = Event.subscribe(self.count, priority=FIRST)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = time.monotonic()
        if self._subscription is not None:
            self._subscription.cancel()

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
