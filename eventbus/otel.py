"""
OpenTelemetry: one run, one trace; needs the extra `otel`.

Spans, metrics and events follow the GenAI semantic conventions; their names stand in `_semconv`.
"""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakValueDictionary

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry._logs import SeverityNumber, get_logger_provider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    _msg = "eventbus.otel needs OpenTelemetry; install it with: pip install 'eventbus[otel]'"
    raise ImportError(_msg, name="eventbus.otel") from error

from . import _registry
from . import _semconv as names
from ._attributes import (
    agent_name,
    call_names,
    duration,
    error_text,
    error_type,
    exception,
    nanoseconds,
    only,
    request_settings,
    tokens,
    told,
    whole,
)
from ._context import is_replaying
from ._counters import counters
from ._hook import on
from ._messages import answer, content, get, messages, text
from ._policy import Check, PolicyHook, flag, misfit, setting
from ._policy import text as words
from ._priority import Priority
from ._report import notice
from ._settings import settings
from ._spans import MODEL, RUN, STEP, TOOL, TURN, Node, OpenSpans
from .catalog import (
    GateDecisionEvent,
    HandlerFailedEvent,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    ModelCallFailedEvent,
    ModelCallStartedEvent,
    StepCompletedEvent,
    StepFailedEvent,
    StepStartedEvent,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallStartedEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["CorrelationIdGenerator", "TelemetryHook"]

_SCOPE: Final = "eventbus"
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_OF_THE_API: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")
_LEFT_OPEN: Final = "the run ended before this did"
_AGAIN: Final = "another one was started with the same span_id"
_EVICTED: Final = "dropped to make room: too many were open"

_COUNTED: Final = (names.DENIED_CALLS, names.GATE_DECISIONS, names.HANDLER_FAILURES)

# Weak: what is open in a hook is not kept once it is unregistered.
_hooks: Final[WeakValueDictionary[type[TelemetryHook], TelemetryHook]] = WeakValueDictionary()

_trace_id: ContextVar[int | None] = ContextVar("eventbus_trace_id", default=None)


class CorrelationIdGenerator(RandomIdGenerator):
    """
    Make a run's correlation id the id of its trace: `TracerProvider(id_generator=CorrelationIdGenerator())`.

    That concerns traces that a run begins, if its id is 32 lowercase hex digits, as those are that the bus
    makes. All other ids are random.
    """

    def generate_trace_id(self) -> int:
        """
        Return the id of the run that begins on this thread just now; outside of that a random one.
        """
        return _trace_id.get() or super().generate_trace_id()

    def is_trace_id_random(self) -> bool:
        """
        Return False: an application may give a run any id.
        """
        return False


def _provider(method: str, kind: str) -> Check:
    def check(where: str, value: Any) -> Any:
        if value is not None and not callable(getattr(value, method, None)):
            misfit(where, f"a {kind} or None", value)
        return value

    return check


class TelemetryHook(PolicyHook):
    """
    Record runs as OpenTelemetry spans, metrics and events. A subclass with its settings goes live.

    Nothing is attached to OpenTelemetry's context: spans find their parents by the ids of events and by where
    they are emitted. Handlers run on the emitting thread; exporting is the providers' matter.
    """

    abstract = True
    shared = True
    priority = Priority.OBSERVABILITY

    tracer_provider: ClassVar[TracerProvider | None] = setting(
        None, _provider("get_tracer", "TracerProvider")
    )
    """Where spans go; None for the global one."""

    meter_provider: ClassVar[MeterProvider | None] = setting(None, _provider("get_meter", "MeterProvider"))
    """Where metrics go; None for the global one."""

    logger_provider: ClassVar[LoggerProvider | None] = setting(
        None, _provider("get_logger", "LoggerProvider")
    )
    """Where events go; None for the global one."""

    record_content: ClassVar[bool] = setting(False, flag)
    """Whether messages, arguments and results are recorded, redacted and cut."""

    provider_name: ClassVar[str] = setting(names.UNKNOWN, words)
    """Who serves the models: what `gen_ai.provider.name` says."""

    def __init__(self) -> None:
        traces, meters, logs = self._providers()
        scope = (_SCOPE, _version())
        self._tracer = traces.get_tracer(*scope)
        self._logger = logs.get_logger(*scope)
        self._meter = meters.get_meter(*scope)
        self._spans = OpenSpans()
        _hooks[type(self)] = self
        self._off = True
        self._look()
        self._inference_duration = self._histogram(names.INFERENCE_DURATION)
        self._agent_duration = self._histogram(names.AGENT_DURATION)
        self._tool_duration = self._histogram(names.TOOL_DURATION)
        self._calls = {
            MODEL: self._histogram(names.INFERENCE_CALLS),
            TOOL: self._histogram(names.TOOL_CALLS),
        }
        self._call_tokens = {
            names.INPUT_TOKENS: self._histogram(names.CALL_INPUT_TOKENS),
            names.OUTPUT_TOKENS: self._histogram(names.CALL_OUTPUT_TOKENS),
        }
        self._used = {
            attribute: self._meter.create_counter(one.name, one.unit, one.description)
            for attribute, one in names.USED.items()
        }

    @classmethod
    def current_context(cls) -> Context:
        """
        Return OpenTelemetry's current context with the innermost open span around this thread or task in it.

        What a tool, model or step makes with it, or while it attaches it, is under the span of its call. The
        span is one of this hook or of those that specialise it, so `TelemetryHook` stands for the only one.

        Returns:
            The context; the current one where this thread or task is in no run that is recorded.
        """
        live = [
            one.cls for one in list(_registry.state.hooks.values()) if one.live and issubclass(one.cls, cls)
        ]
        for hook in map(_hooks.get, live):
            node = None if hook is None else hook._spans.here()
            around = None if node is None else _context(node)
            if around is not None:
                return around
        return context.get_current()

    def _histogram(self, one: names.Instrument) -> metrics.Histogram:
        return self._meter.create_histogram(
            one.name, one.unit, one.description, explicit_bucket_boundaries_advisory=one.boundaries
        )

    def _providers(self) -> tuple[TracerProvider, MeterProvider, LoggerProvider]:
        return (
            trace.get_tracer_provider() if self.tracer_provider is None else self.tracer_provider,
            metrics.get_meter_provider() if self.meter_provider is None else self.meter_provider,
            get_logger_provider() if self.logger_provider is None else self.logger_provider,
        )

    @on(InferenceStartedEvent)
    def start_run(self, event: InferenceStartedEvent) -> None:
        """
        Start the span of a run: in the call that it was started from, if there is one.
        """
        cid = event.correlation_id
        if cid is None or (self._look() and not self._spans.knows(cid)):
            return
        agent = agent_name(event)
        attributes = {
            names.OPERATION_NAME: names.INVOKE_AGENT,
            names.AGENT_NAME: agent,
            names.CONVERSATION_ID: _conversation(event.message),
            names.PARENT_CID: text(event.parent_id, "parent_id"),
        }
        node = Node(cid, event.span_id, RUN)
        parent = self._spans.around_run(cid, event.parent_id if isinstance(event.parent_id, str) else None)
        self._start(node, parent, event, _named(names.INVOKE_AGENT, agent), attributes)
        if self.record_content and event.message is not None and _records(node):
            said = messages(event.message, "user", names.INPUT_MESSAGES)
            node.span.set_attribute(names.INPUT_MESSAGES, said)

    @on(TurnStartedEvent)
    def start_turn(self, event: TurnStartedEvent) -> None:
        """
        Start the span of a turn.
        """
        cid = self._run_of(event)
        if cid is not None:
            self._start_in_run(cid, TURN, event, names.TURN, {names.TURN_NUMBER: whole(event.turn)})

    @on(StepStartedEvent)
    def start_step(self, event: StepStartedEvent) -> None:
        """
        Start the span of a step.
        """
        cid = self._run_of(event)
        if cid is not None:
            name = text(event.name, "name")
            self._start_in_run(cid, STEP, event, _named(names.STEP, name), {names.STEP_NAME: name})

    @on(ModelCallStartedEvent)
    def start_model_call(self, event: ModelCallStartedEvent) -> None:
        """
        Start the span of one attempt at a model call.
        """
        cid = self._run_of(event)
        if cid is None:
            return
        model = text(event.model, "model")
        attributes = {
            names.OPERATION_NAME: names.CHAT,
            names.PROVIDER_NAME: self.provider_name,
            names.REQUEST_MODEL: model,
            names.CONVERSATION_ID: _conversation(get(event.run, "message")),
            names.ATTEMPT: whole(event.attempt),
        }
        self._start_in_run(cid, MODEL, event, _named(names.CHAT, model), attributes)

    @on(ToolCallStartedEvent)
    def start_tool_call(self, event: ToolCallStartedEvent) -> None:
        """
        Start the span of the execution of a tool.
        """
        cid = self._run_of(event)
        if cid is None:
            return
        called = call_names(event.tool_call)
        attributes = {
            names.OPERATION_NAME: names.EXECUTE_TOOL,
            names.TOOL_TYPE: names.FUNCTION,
            names.AGENT_NAME: agent_name(event),
            **called,
        }
        name = _named(names.EXECUTE_TOOL, called[names.TOOL_NAME])
        node = self._start_in_run(cid, TOOL, event, name, attributes)
        if self.record_content and _records(node):
            arguments = content(get(event.tool_call, "input"), names.TOOL_CALL_ARGUMENTS)
            node.span.set_attribute(names.TOOL_CALL_ARGUMENTS, arguments)

    @on(TurnCompletedEvent)
    def end_turn(self, event: TurnCompletedEvent) -> None:
        """
        End the span of a turn.
        """
        self._end_in_run(TURN, event)

    @on(StepCompletedEvent, StepFailedEvent)
    def end_step(self, event: StepCompletedEvent | StepFailedEvent) -> None:
        """
        End the span of a step.
        """
        self._end_in_run(STEP, event, _error(event) if isinstance(event, StepFailedEvent) else None)

    @on(ModelCallFailedEvent)
    def end_failed_model_call(self, event: ModelCallFailedEvent) -> None:
        """
        End the span of a model call that raised, and say so in an event.
        """
        error = _error(event)
        node = self._close(MODEL, event)
        if node is None:
            return
        if _records(node):
            node.span.set_attribute(names.FINISH_REASONS, (names.ERROR,))
        seconds = self._end(node, event, error)
        known = only(node.known, names.OPERATION_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL)
        self._record(self._inference_duration, seconds, known | {names.ERROR_TYPE: error_type(error)}, node)
        self._tell_exception(names.INFERENCE_EXCEPTION, event, error, node)
        node.span = None

    @on(InferenceGeneratedEvent)
    def end_model_call(self, event: InferenceGeneratedEvent) -> None:
        """
        End the span of a model call that has answered.
        """
        node = self._close(MODEL, event)
        if node is None:
            return
        response = event.response
        model = text(get(response, "model"), "model")
        used = tokens(event.usage)
        if _records(node):
            reason = text(get(response, "finish_reason"), "finish_reason")
            attributes = {
                names.RESPONSE_MODEL: model,
                names.RESPONSE_ID: text(get(response, "id"), "id"),
                names.FINISH_REASONS: None if reason is None else (reason,),
                **used,
                **request_settings(event.settings),
            }
            if self.record_content:
                attributes[names.INPUT_MESSAGES] = messages(event.request, "user", names.INPUT_MESSAGES)
                attributes[names.OUTPUT_MESSAGES] = answer(response, names.OUTPUT_MESSAGES)
            node.span.set_attributes(told(attributes))
        seconds = self._end(node, event)
        known = only(node.known, names.OPERATION_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL)
        known |= told({names.RESPONSE_MODEL: model})
        self._record(self._inference_duration, seconds, known, node)
        for attribute, count in used.items():
            if not node.known.get(names.REPLAYED):
                self._used[attribute].add(count, known | {names.MODALITY: names.UNKNOWN})
            if attribute in self._call_tokens:
                self._record(self._call_tokens[attribute], count, known, node)
        node.span = None

    @on(ToolCallCompletedEvent, ToolCallFailedEvent)
    def end_tool_call(self, event: ToolCallCompletedEvent | ToolCallFailedEvent) -> None:
        """
        End the span of the execution of a tool.
        """
        node = self._close(TOOL, event)
        if node is None:
            return
        if isinstance(event, ToolCallFailedEvent):
            error = _error(event)
        else:
            result = event.result
            error = get(result, "error")
            if self.record_content and _records(node):
                data = content(get(result, "data", result), names.TOOL_CALL_RESULT)
                node.span.set_attribute(names.TOOL_CALL_RESULT, data)
        seconds = self._end(node, event, error)
        known = only(node.known, names.TOOL_NAME, names.TOOL_TYPE, names.AGENT_NAME)
        if error is not None:
            known[names.ERROR_TYPE] = error_type(error)
        self._record(self._tool_duration, seconds, known, node)
        if isinstance(event, ToolCallFailedEvent):
            self._tell_exception(names.TOOL_EXCEPTION, event, error, node)
        node.span = None

    @on(InferenceCompletedEvent, InferenceFailedEvent, InferenceMaxTurnsReachedEvent)
    def end_run(
        self, event: InferenceCompletedEvent | InferenceFailedEvent | InferenceMaxTurnsReachedEvent
    ) -> None:
        """
        End the span of a run, and of whatever is still open in it.
        """
        if event.correlation_id is None:
            return
        nodes = self._spans.close_run(event.correlation_id, event.span_id)
        end = nanoseconds(event.timestamp)
        for node in nodes:
            if node.kind == RUN:
                self._end_run(node, event)
            else:
                self._abandon(node, _LEFT_OPEN, end)

    def _end_run(
        self,
        node: Node,
        event: InferenceCompletedEvent | InferenceFailedEvent | InferenceMaxTurnsReachedEvent,
    ) -> None:
        error: Any = None
        outcome = "max_turns"
        attributes: dict[str, Any] = only(node.counts, *_COUNTED)
        if isinstance(event, InferenceFailedEvent):
            outcome, error = "failed", _error(event)
        elif isinstance(event, InferenceCompletedEvent):
            outcome = "completed"
            if self.record_content and _records(node) and event.result is not None:
                attributes[names.OUTPUT_MESSAGES] = answer(event.result, names.OUTPUT_MESSAGES)
        node.span.set_attributes({**attributes, names.OUTCOME: outcome})
        seconds = self._end(node, event, error)
        known = only(node.known, names.AGENT_NAME)
        for kind, histogram in self._calls.items():
            self._record(histogram, node.counts.get(kind, 0), known, node)
        if error is not None:
            known[names.ERROR_TYPE] = error_type(error)
        self._record(self._agent_duration, seconds, known, node)
        node.span = None

    @on(InferenceDeniedEvent)
    def tell_denied_run(self, event: InferenceDeniedEvent) -> None:
        """
        Tell in an event that a run was refused; it has no span.
        """
        if not self._look():
            reason = {names.BY: text(event.by, "by"), names.REASON: text(event.reason, "reason")}
            self._tell(event, SeverityNumber.WARN, {names.AGENT_NAME: agent_name(event), **reason})

    @on(ToolCallDeniedEvent)
    def tell_denied_call(self, event: ToolCallDeniedEvent) -> None:
        """
        Tell in an event that a tool call was refused; it has no span.
        """
        if not self._look():
            reason = {names.BY: text(event.by, "by"), names.REASON: text(event.reason, "reason")}
            attributes = {names.AGENT_NAME: agent_name(event), **call_names(event.tool_call), **reason}
            self._tell(event, SeverityNumber.WARN, attributes, names.DENIED_CALLS)

    @on(GateDecisionEvent)
    def tell_decision(self, event: GateDecisionEvent) -> None:
        """
        Tell in an event what a gate has decided.
        """
        if self._look():
            return
        attributes = {
            names.GATE: text(event.gate, "gate"),
            names.BY: text(event.by, "by"),
            names.ACTION: text(event.action, "action"),
            names.FIELD: text(event.field, "field"),
            names.REASON: text(event.reason, "reason"),
            names.APPLIED: event.applied if isinstance(event.applied, bool) else None,
            **call_names(event.tool_call),
        }
        severity = {"deny": SeverityNumber.WARN, "error": SeverityNumber.ERROR}.get(
            str(attributes[names.ACTION]), SeverityNumber.INFO
        )
        self._tell(event, severity, attributes, names.GATE_DECISIONS)

    @on(HandlerFailedEvent)
    def tell_failed_handler(self, event: HandlerFailedEvent) -> None:
        """
        Tell in an event that a handler has raised; of what it was handling, only what that was.
        """
        if self._look():
            return
        attributes = {
            names.HOOK: text(event.hook, "hook"),
            names.HANDLER: text(event.handler, "handler"),
            names.HANDLED_EVENT: text(type(event.event).__name__, "event"),
            **exception(event.error),
        }
        self._tell(event, SeverityNumber.ERROR, attributes, names.HANDLER_FAILURES)

    def _run_of(self, event: Any) -> str | None:
        # None for what is not recorded.
        cid: str | None = event.correlation_id
        if cid is None or self._spans.knows(cid):
            return cid
        # A `Run` has told its start. One that is not known began before there was a provider, or made room:
        # pieces of it would be traces of their own, and make room in turn.
        return None if self._off or event.run is not None else cid

    def _look(self) -> bool:
        # The API's own providers record nothing; for them, nothing is prepared and nothing kept. A global one
        # is set once, and is asked for once a run until then: that takes too long for every event.
        if self._off:
            self._off = all(type(one).__module__.startswith(_OF_THE_API) for one in self._providers())
        return self._off

    def _start_in_run(self, cid: str, kind: str, event: Any, name: str, attributes: dict[str, Any]) -> Node:
        node = Node(cid, event.span_id, kind)
        self._start(node, self._spans.around(cid, kind), event, name, attributes)
        return node

    def _start(
        self, node: Node, parent: Node | None, event: Any, name: str, attributes: dict[str, Any]
    ) -> None:
        attributes[names.CID] = text(node.cid, "cid")
        if is_replaying():
            attributes[names.REPLAYED] = True
        node.known = told(attributes)
        started = nanoseconds(event.timestamp)
        node.start = time.time_ns() if started is None else started
        around = None if parent is None else _context(parent)
        kind = SpanKind.CLIENT if node.kind == MODEL else SpanKind.INTERNAL
        token = _trace_id.set(int(node.cid, 16) if _TRACE_ID.fullmatch(node.cid) else None)
        try:
            node.span = self._tracer.start_span(
                name, around, kind=kind, attributes=node.known, start_time=node.start
            )
        finally:
            _trace_id.reset(token)
        hook = type(self)
        capacity = hook.stateful_capacity or settings.stateful_capacity
        closed, evicted = self._spans.open(node, parent, capacity)
        for one in closed:
            self._abandon(one, _LEFT_OPEN if one is node else _AGAIN, node.start)
        for one in evicted:
            self._abandon(one, _EVICTED, node.start)
            if one.kind == RUN:
                counters.evicted += 1
                notice(
                    "warning",
                    ("HOOK", "EVICT"),
                    ("hook", hook.__qualname__),
                    correlation_id=one.cid,
                    capacity=capacity,
                )

    def _close(self, kind: str, event: Any) -> Node | None:
        cid = event.correlation_id
        return None if cid is None else self._spans.close(cid, kind, event.span_id)

    def _end_in_run(self, kind: str, event: Any, error: Any = None) -> None:
        node = self._close(kind, event)
        if node is not None:
            self._end(node, event, error)
            node.span = None

    def _end(self, node: Node, event: Any, error: Any = None) -> float:
        # Its duration was measured; a clock that was set meanwhile must not change it.
        seconds = duration(event.duration)
        end = nanoseconds(event.timestamp) if seconds is None else node.start + int(seconds * 1e9)
        end = node.start if end is None else max(end, node.start)
        if error is not None:
            node.span.set_attribute(names.ERROR_TYPE, error_type(error))
            node.span.set_status(
                Status(StatusCode.ERROR, None if error is names.OTHER else error_text(error))
            )
        node.span.end(end)
        return (end - node.start) / 1e9 if seconds is None else seconds

    def _abandon(self, node: Node, why: str, end: int | None) -> None:
        node.span.set_attribute(names.ERROR_TYPE, names.OTHER)
        node.span.set_status(Status(StatusCode.ERROR, why))
        node.span.end(max(node.start, end or 0))
        node.span = None

    def _record(
        self, histogram: metrics.Histogram, value: float, attributes: Mapping[str, Any], node: Node
    ) -> None:
        # How long a replay takes says nothing of the run that was recorded.
        if not node.known.get(names.REPLAYED):
            histogram.record(value, attributes, context=_context(node))

    def _tell_exception(self, name: str, event: Any, error: Any, node: Node) -> None:
        attributes = {
            **only(node.known, names.OPERATION_NAME, names.REQUEST_MODEL, names.TOOL_NAME),
            **exception(error),
        }
        self._emit(name, event, SeverityNumber.WARN, attributes, node)

    def _tell(
        self, event: Any, severity: SeverityNumber, attributes: dict[str, Any], counted: str | None = None
    ) -> None:
        cid = event.correlation_id
        node = None if cid is None else self._spans.current(cid)
        if counted is not None:
            self._spans.count(node, counted)
        self._emit(event.channel, event, severity, attributes, node)

    def _emit(
        self, name: str, event: Any, severity: SeverityNumber, attributes: dict[str, Any], node: Node | None
    ) -> None:
        attributes[names.CID] = text(event.correlation_id, "cid")
        if is_replaying():
            attributes[names.REPLAYED] = True
        self._logger.emit(
            timestamp=nanoseconds(event.timestamp),
            context=None if node is None else _context(node),
            severity_number=severity,
            severity_text=severity.name,
            attributes=told(attributes),
            event_name=name,
        )


def _error(event: Any) -> Any:
    # A failure that nobody gave an error is one all the same.
    return names.OTHER if event.error is None else event.error


def _version() -> str | None:
    try:
        return version(_SCOPE)
    except PackageNotFoundError:
        # A copy of the source, in a bundle or on the path, says none.
        return None


def _conversation(message: Any) -> str | None:
    return text(get(message, "thread"), "thread")


def _context(node: Node) -> Context | None:
    span = node.span
    return None if span is None else trace.set_span_in_context(span)


def _records(node: Node) -> bool:
    return bool(node.span.is_recording())


def _named(operation: str, what: str | None) -> str:
    return f"{operation} {what}" if what else operation
