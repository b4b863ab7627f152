"""
The events that a run of an agent emits, in the order in which a run meets them.

Readers default to None. A start and its end carry the same `span_id`; times are wall clock seconds, durations
monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, cast

import attrs

from ._event import Event
from ._frames import UNPRINTABLE
from ._lines import Line, body
from ._redact import default_redact
from ._report import listeners
from ._settings import settings
from .values import Agent, RunInfo, ToolCall, ToolCallLike, ToolResult

__all__ = [
    "ContextCompactedEvent",
    "GateDecisionEvent",
    "HandlerFailedEvent",
    "InferenceChunkEvent",
    "InferenceCompletedEvent",
    "InferenceDeniedEvent",
    "InferenceFailedEvent",
    "InferenceGeneratedEvent",
    "InferenceMaxTurnsReachedEvent",
    "InferenceStartedEvent",
    "LoopRunCompletedEvent",
    "LoopRunEnqueuedEvent",
    "LoopRunFailedEvent",
    "LoopRunStartedEvent",
    "ModelCallFailedEvent",
    "ModelCallStartedEvent",
    "StepCompletedEvent",
    "StepFailedEvent",
    "StepStartedEvent",
    "ToolCallCompletedEvent",
    "ToolCallDeniedEvent",
    "ToolCallFailedEvent",
    "ToolCallStartedEvent",
    "ToolCallsReceivedEvent",
    "TurnCompletedEvent",
    "TurnStartedEvent",
]

_ACTIONS: Final = ("edit", "answer", "deny", "retry", "warn", "error")

# A line has room for fewer.
_SHOWN_CALLS: Final = 256


def as_agent(agent: Any) -> Any:
    """
    Make an Agent of a plain name; leave any other object as it is.
    """
    return Agent(agent) if agent.__class__ is str else agent


def _read(value: Any, name: str, default: Any = None) -> Any:
    # Objects that stand in for ours may do anything when they are asked, and the line is to be written.
    try:
        return getattr(value, name, default)
    except Exception:
        return UNPRINTABLE


def _names(calls: Any) -> Any:
    # An iterator would be used up by looking at it.
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        return calls
    try:
        return [_read(call, "name", call) for call in islice(cast("Any", calls), _SHOWN_CALLS)]
    except Exception:
        return UNPRINTABLE


class CatalogEvent(Event):
    """
    What all events of the catalog have in common: the run they belong to, and a line in the log.
    """

    run: RunInfo | None = None

    def _line(self) -> Line | None:
        """
        Return the parts of the event's line; None for no line.
        """
        return None

    def log_line(self) -> str | None:
        """
        Return the event's line, redacted, without timestamp and id; None for no line.
        """
        line = self._line()
        return None if line is None else body(line, settings.redact or default_redact)


class _AgentEvent(CatalogEvent):
    agent: Any = attrs.field(default=None, converter=as_agent)  # pyright: ignore[reportUnknownVariableType]  # Any

    def _fields(self, **fields: Any) -> dict[str, Any]:
        return {"agent": _read(self.agent, "name", self.agent), **fields}


class InferenceStartedEvent(_AgentEvent, channel="eventbus.inference.started"):
    """
    A run begins.
    """

    message: Any = None
    parent_id: str | None = None
    span_id: str | None = None

    def _line(self) -> Line:
        return Line(("INF", "START"), None, self._fields(), None)


class InferenceGeneratedEvent(_AgentEvent, channel="eventbus.inference.generated"):
    """
    The model has answered: what was sent, what came back, what it cost.
    """

    turn: int | None = None
    request: Any = None
    response: Any = None
    model: str | None = None
    settings: Mapping[str, Any] | None = None
    usage: Any = None
    attempt: int | None = None
    duration: float | None = None
    span_id: str | None = None

    log_line = Event.log_line


class InferenceCompletedEvent(_AgentEvent, channel="eventbus.inference.completed"):
    """
    A run ends well.
    """

    ends_run = True

    message: Any = None
    result: Any = None
    duration: float | None = None
    span_id: str | None = None

    def _line(self) -> Line:
        return Line(("INF", "DONE"), None, self._fields(), None)


class InferenceFailedEvent(_AgentEvent, channel="eventbus.inference.failed"):
    """
    A run ends with an exception, cancellation and interrupts included.
    """

    ends_run = True
    log_level = "error"

    message: Any = None
    error: BaseException | None = None
    duration: float | None = None
    span_id: str | None = None

    def _line(self) -> Line:
        return Line(("INF", "FAIL"), None, self._fields(), self.error)


class InferenceMaxTurnsReachedEvent(_AgentEvent, channel="eventbus.inference.max_turns_reached"):
    """
    A run ends because its turns are used up; `tool_calls` are those left pending.
    """

    ends_run = True
    log_level = "warning"

    turn: int | None = None
    tool_calls: Sequence[ToolCallLike] | None = None
    duration: float | None = None
    span_id: str | None = None

    def _line(self) -> Line:
        fields = {"turn": self.turn, "pending": _names(self.tool_calls)}
        return Line(("MAX", "TURNS"), None, fields, None)


class InferenceDeniedEvent(_AgentEvent, channel="eventbus.inference.denied"):
    """
    A run was refused before it began.
    """

    ends_run = True
    log_level = "warning"

    message: Any = None
    reason: str | None = None
    by: str | None = None

    def _line(self) -> Line:
        return Line(("INF", "DENY"), None, self._fields(by=self.by, reason=self.reason), None)


class InferenceChunkEvent(_AgentEvent, channel="eventbus.inference.chunk"):
    """
    A piece of a streamed answer; `chunk_content` is its decoded text.
    """

    thread: Any = None
    chunk: Any = None
    chunk_content: str | None = None

    log_line = Event.log_line


class _TurnEvent(_AgentEvent):
    log_level = "debug"

    turn: int | None = None
    duration: float | None = None
    span_id: str | None = None

    def _turn_line(self, verb: str) -> Line:
        return Line(("TURN", verb), None, self._fields(turn=self.turn), None)


class TurnStartedEvent(_TurnEvent, channel="eventbus.turn.started"):
    """
    A turn begins, one model answer and what it leads to; turns count from 1.
    """

    def _line(self) -> Line:
        return self._turn_line("START")


class TurnCompletedEvent(_TurnEvent, channel="eventbus.turn.completed"):
    """
    A turn ends.
    """

    def _line(self) -> Line:
        return self._turn_line("DONE")


class _ModelCallEvent(_AgentEvent):
    turn: int | None = None
    model: str | None = None
    attempt: int | None = None
    error: BaseException | None = None
    duration: float | None = None
    span_id: str | None = None


class ModelCallStartedEvent(_ModelCallEvent, channel="eventbus.model_call.started"):
    """
    One attempt at asking the model begins.
    """

    log_level = "debug"

    def _line(self) -> Line:
        fields = self._fields(model=self.model, turn=self.turn, attempt=self.attempt)
        return Line(("MODEL", "START"), None, fields, None)


class ModelCallFailedEvent(_ModelCallEvent, channel="eventbus.model_call.failed"):
    """
    One attempt at asking the model raised.
    """

    log_level = "error"

    def _line(self) -> Line:
        return Line(("MODEL", "FAIL"), None, self._fields(), self.error)


class ToolCallsReceivedEvent(_AgentEvent, channel="eventbus.tool_calls.received"):
    """
    The model asks for one or more tools.
    """

    tool_calls: Sequence[ToolCallLike] | None = None

    def _line(self) -> Line:
        names: Any = [] if self.tool_calls is None else _names(self.tool_calls)
        return Line(("TOOLS", "RECV"), ("tools", names), {}, None)


class _ToolCallEvent(_AgentEvent):
    tool_call: ToolCallLike

    def _tool_line(self, verb: str, error: BaseException | None = None, **fields: Any) -> Line:
        call = self.tool_call
        if type(call) is ToolCall:
            name, call_id = call.name, call.id
        else:
            name, call_id = _read(call, "name", call), _read(call, "id")
        return Line(("TOOL", verb), ("tool", name), {"id": call_id, **fields}, error)


class ToolCallStartedEvent(_ToolCallEvent, channel="eventbus.tool_call.started"):
    """
    A tool is about to be executed.
    """

    span_id: str | None = None

    def _line(self) -> Line:
        return self._tool_line("START")


class ToolCallCompletedEvent(_ToolCallEvent, channel="eventbus.tool_call.completed"):
    """
    A tool has answered, or `answered_by` has in its place.
    """

    result: Any = None
    answered_by: str | None = None
    duration: float | None = None
    span_id: str | None = None

    def _line(self) -> Line:
        result = self.result
        if not settings.log_data or result is None:
            return self._tool_line("OK")
        data = result.data if type(result) is ToolResult else _read(result, "data", result)
        return self._tool_line("OK", data=data)


class ToolCallFailedEvent(_ToolCallEvent, channel="eventbus.tool_call.failed"):
    """
    A tool has raised; to the run that is an answer, not a crash.
    """

    log_level = "error"

    error: BaseException | None = None
    duration: float | None = None
    span_id: str | None = None

    def _line(self) -> Line:
        return self._tool_line("FAIL", self.error)


class ToolCallDeniedEvent(_ToolCallEvent, channel="eventbus.tool_call.denied"):
    """
    A gate has refused a tool call, which was never executed.
    """

    log_level = "warning"

    reason: str | None = None
    by: str | None = None

    def _line(self) -> Line:
        return self._tool_line("DENY", by=self.by, reason=self.reason)


class GateDecisionEvent(CatalogEvent, channel="eventbus.gate.decision"):
    """
    A gate has edited, answered, refused, asked for a retry, warned or failed.

    `gate` is the name of the gate's event class, `by` the handler, `action` one of "edit", "answer", "deny",
    "retry", "warn", "error"; `applied` is False for what changed nothing: written by a shadow hook, after a
    refusal that stands, or a retry that was not granted.
    """

    gate: str | None = None
    by: str | None = None
    action: str | None = None
    field: str | None = None
    reason: str | None = None
    applied: bool | None = None
    tool_call: ToolCallLike | None = None

    # The highest that one may have; see `_level`.
    log_level: ClassVar[str] = "error"

    def _level(self) -> str:
        """
        Return the level of this one's line.
        """
        return {"DENY": "warning", "ERROR": "error"}.get(self._verb(), "info")

    def _verb(self) -> str:
        action: object = self.action
        return action.upper() if isinstance(action, str) and action in _ACTIONS else "EDIT"

    def _line(self) -> Line:
        call = self.tool_call
        verb = self._verb()
        fields = {
            "id": _read(call, "id"),
            "by": self.by,
            "field": self.field if verb == "EDIT" else None,
            "reason": self.reason,
            "applied": False if self.applied is False else None,
        }
        return Line(("GATE", verb), ("subject", self._subject()), fields, None)

    def _subject(self) -> Any:
        call = self.tool_call
        return subject_of_gate(self.gate) if call is None else _read(call, "name", call)


def subject_of_gate(gate: Any) -> Any:
    """
    Return what a gate judges, by the name of its class: "model", "run", "tool"; of any other, the name.
    """
    for part, subject in (("Model", "model"), ("Invocation", "run"), ("Tool", "tool")):
        if isinstance(gate, str) and part in gate:
            return subject
    return gate


class _StepEvent(CatalogEvent):
    name: str | None = None
    error: BaseException | None = None
    duration: float | None = None
    span_id: str | None = None

    def _step_line(self, verb: str) -> Line:
        return Line(("STEP", verb), ("step", self.name), {}, self.error)


class StepStartedEvent(_StepEvent, channel="eventbus.step.started"):
    """
    A middleware layer, or any named piece of work, begins.
    """

    log_level = "debug"

    def _line(self) -> Line:
        return self._step_line("START")


class StepCompletedEvent(_StepEvent, channel="eventbus.step.completed"):
    """
    A named piece of work ends well.
    """

    log_level = "debug"

    def _line(self) -> Line:
        return self._step_line("DONE")


class StepFailedEvent(_StepEvent, channel="eventbus.step.failed"):
    """
    A named piece of work ends with an exception.
    """

    log_level = "error"

    def _line(self) -> Line:
        return self._step_line("FAIL")


class ContextCompactedEvent(CatalogEvent, channel="eventbus.context.compacted"):
    """
    The messages were shortened; `before` and `after` are what the strategy measures, as a rule their number.
    """

    log_level = "debug"

    agent: Any = attrs.field(default=None, converter=as_agent)  # pyright: ignore[reportUnknownVariableType]  # Any
    strategy: str | None = None
    before: Any = None
    after: Any = None
    duration: float | None = None

    def _line(self) -> Line:
        numbers = {
            key: value
            for key, value in (("before", self.before), ("after", self.after))
            if isinstance(value, int)
        }
        fields = {"agent": _read(self.agent, "name", self.agent), "strategy": self.strategy, **numbers}
        return Line(("CONTEXT", "COMPACTED"), None, fields, None)


class _LoopRunEvent(CatalogEvent):
    name: str | None = None
    agent_name: str | None = None

    def _loop_line(self, verb: str, error: BaseException | None = None) -> Line:
        return Line(("LOOP", verb), ("loop", self.name), {"agent": self.agent_name}, error)


class LoopRunEnqueuedEvent(_LoopRunEvent, channel="eventbus.loop_run.enqueued"):
    """
    A scheduled run is enqueued.
    """

    def _line(self) -> Line:
        return self._loop_line("PENDING")


class LoopRunStartedEvent(_LoopRunEvent, channel="eventbus.loop_run.started"):
    """
    A scheduled run begins.
    """

    def _line(self) -> Line:
        return self._loop_line("START")


class LoopRunCompletedEvent(_LoopRunEvent, channel="eventbus.loop_run.completed"):
    """
    A scheduled run ends well.
    """

    ends_run = True

    error: BaseException | None = None
    duration: float | None = None

    def _line(self) -> Line:
        return self._loop_line("DONE")


class LoopRunFailedEvent(_LoopRunEvent, channel="eventbus.loop_run.failed"):
    """
    A scheduled run ends with an exception.
    """

    ends_run = True
    log_level = "error"

    error: BaseException | None = None
    duration: float | None = None

    def _line(self) -> Line:
        return self._loop_line("FAIL", self.error)


class HandlerFailedEvent(CatalogEvent, channel="eventbus.handler.failed"):
    """
    A handler has raised; emitted every time, for every handler.

    `hook` is the name of the hook class, None for a function; `handler` names the handler as lines do
    (`RefundAuditHook.audit`); `event` is what it was handling. A failure while this event is delivered is
    counted and not reported again.
    """

    log_level = "error"
    _is_report = True

    hook: str | None = None
    handler: str | None = None
    event: Any = None
    error: BaseException | None = None

    def _line(self) -> Line:
        what = None if self.event is None else type(self.event).__name__
        return Line(("HOOK", "FAIL"), ("hook", self.handler), {"on": what}, self.error)


def _announce_failure(*, hook: str | None, handler: str, event: Any, error: BaseException) -> None:
    HandlerFailedEvent.emit(
        hook=hook,
        handler=handler,
        event=event,
        error=error,
        run=event.get("run"),
        correlation_id=event.correlation_id,
    )


listeners.failure = _announce_failure
