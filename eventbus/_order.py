"""
The order of a run's events, written once, for plain and async runs and for the pieces alike.

Each function here is a script: a generator that yields what is to be done next and is sent what came of it.
It neither calls a tool nor waits; whoever drives it does, on a thread or on a loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ._context import new_span_id
from ._errors import ModelCallRefused, RunEndedError, RunRefused, ToolCallRefused
from ._gate import RAISED, Edit, ProtectedEvent, build
from ._readonly import freeze
from .catalog import (
    CatalogEvent,
    GateDecisionEvent,
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
    ToolCallsReceivedEvent,
    ToolCallStartedEvent,
)
from .gates import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    ApproveToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
)
from .values import ToolCall, ToolCallLike, ToolResult

if TYPE_CHECKING:
    from ._event import Event
    from ._run import RunBase

T = TypeVar("T")
G = TypeVar("G", bound=ProtectedEvent)

STICKY: Final = ("cancel", "denied")
ANSWERS: Final = ("result", "response")


class Tell(NamedTuple):
    """
    Emit an observed event.
    """

    event_class: type[Event]
    fields: dict[str, Any]


class Ask(NamedTuple):
    """
    Let the handlers of a gate judge.
    """

    gate: ProtectedEvent


class Perform(NamedTuple):
    """
    Call the tool or the model; what it returns or raises is sent back.
    """

    subject: Any
    settings: Mapping[str, Any]


class Wait(NamedTuple):
    """
    Wait, in seconds.
    """

    seconds: float


class Opened(NamedTuple):
    """
    A start that has no end yet, and the event that ends it if the run ends first.
    """

    event_class: type[CatalogEvent]
    fields: dict[str, Any]
    started: float
    fails: bool


class ToolOutcome(NamedTuple):
    """
    What came of a tool call: a result, always; and whether it was refused, or answered by a gate.
    """

    result: Any
    refused: ToolCallRefused | None = None
    answered: bool = False


class ModelOutcome(NamedTuple):
    """
    What came of asking the model.
    """

    response: Any
    answered: bool = False


Step: TypeAlias = Tell | Ask | Perform | Wait
Script: TypeAlias = Generator[Step, Any, T]


def tell(run: RunBase, event_class: type[CatalogEvent], **fields: Any) -> Script[None]:
    """
    Emit an event of the run, unless it has ended.
    """
    if not run.over:
        yield Tell(event_class, {**fields, "run": run.info, "correlation_id": run.id})


def make(run: RunBase, gate_class: type[G], **fields: Any) -> G | None:
    """
    Build a gate, if anybody judges there.
    """
    if not gate_class.has_receivers():
        return None
    return build(gate_class, {**fields, "agent": run.agent, "run": run.info, "correlation_id": run.id})


def judge(run: RunBase, gate: ProtectedEvent | None, *, may_retry: bool = False) -> Script[None]:
    """
    Let a gate's handlers judge, and emit what they have decided.
    """
    if gate is None or (run.over and gate.reverse):
        return
    run.must_be_open()
    try:
        yield Ask(gate)
    finally:
        for edit in gate.edits:
            fields = decision(gate, edit, may_retry=may_retry)
            if fields is not None:
                yield from tell(run, GateDecisionEvent, **fields)


def decision(gate: ProtectedEvent, edit: Edit, *, may_retry: bool) -> dict[str, Any] | None:
    """
    Return what an edit means as a GateDecisionEvent; None if it means nothing by itself.
    """
    action, applied, reason = "edit", edit.applied, None
    if edit.field == RAISED:
        action, reason = "error", text_of(edit.new)
    elif edit.field in STICKY:
        if edit.new:
            action, reason = "deny", reason_of(edit.new, edit.handler)
        elif not edit.old:
            return None
    elif edit.field == "retry":
        if not edit.new:
            return None
        action, applied = "retry", edit.applied and may_retry
        reasons = [e.new for e in gate.edits if e.field == "reason" and e.handler == edit.handler]
        reason = reasons[-1] if reasons else None
    elif edit.field == "reason" and "retry" in gate._writable:
        return None
    elif edit.field in ANSWERS and not gate.reverse:
        action = "answer"
    return {
        "gate": type(gate).__name__,
        "by": edit.handler,
        "action": action,
        "field": edit.field if edit.field != RAISED else None,
        "reason": reason,
        "applied": applied,
        "tool_call": gate.get("tool_call"),
    }


def text_of(error: BaseException) -> str:
    """
    Return an error's own text, or its name if it has none; never fails.
    """
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def reason_of(verdict: object, by: str | None) -> str:
    """
    Return the reason of a refusal: the gate's own words, or who refused.
    """
    return verdict if isinstance(verdict, str) else f"refused by {by or 'a gate'}"


def author_of(gate: ProtectedEvent, field: str) -> str | None:
    """
    Return the handler whose writing to a field is in force, or who raised.
    """
    applied = [edit for edit in gate.edits if edit.applied and edit.field == field]
    if field in STICKY:
        applied = [edit for edit in applied if edit.new][:1]
    return applied[-1].handler if applied else None


def was_written(gate: ProtectedEvent, field: str) -> bool:
    """
    Tell whether a handler has set a field.
    """
    return any(edit.applied and edit.field == field for edit in gate.edits)


def refusal_of(gate: ProtectedEvent, field: str) -> tuple[str, str | None] | None:
    """
    Return the reason and the author of a gate's refusal, or None if it let the action pass.
    """
    verdict = getattr(gate, field)
    if not verdict:
        return None
    by = author_of(gate, field)
    return reason_of(verdict, by), by


def seconds_of(retry: object) -> float:
    """
    Return how long to wait before a retry.

    Raises:
        TypeError: If a gate wrote something that is neither a bool nor a number of seconds.
    """
    if retry is True:
        return 0.0
    if isinstance(retry, (int, float)) and math.isfinite(retry) and retry >= 0:
        return float(retry)
    msg = f"`retry` must be True or the seconds to wait first, not {retry!r}."
    raise TypeError(msg)


def begin(run: RunBase) -> Script[None]:
    """
    Open a run: BeforeInvocation, then InferenceStarted or InferenceDenied.
    """
    gate = make(run, BeforeInvocationEvent, message=run.message, state=run.state)
    if gate is not None:
        try:
            yield from judge(run, gate)
        except BaseException as error:
            denied = {"message": run.message, "reason": text_of(error), "by": author_of(gate, RAISED)}
            yield from _last(run, InferenceDeniedEvent, denied)
            raise
        refused = refusal_of(gate, "cancel")
        if refused is not None:
            reason, by = refused
            yield from _last(run, InferenceDeniedEvent, {"message": run.message, "reason": reason, "by": by})
            raise RunRefused(reason, by)
        run.accept(gate.message, gate.state)
    run.started = time.monotonic()
    try:
        yield from tell(
            run,
            InferenceStartedEvent,
            agent=run.agent,
            message=run.message,
            parent_id=run.parent_id,
            span_id=run.span_id,
        )
    except BaseException as error:
        yield from end(run, error=error)
        raise


def _last(run: RunBase, event_class: type[CatalogEvent], fields: dict[str, Any]) -> Script[None]:
    # Nothing is told of a run after its terminal, not even what the terminal's own handlers do.
    run.over = True
    yield Tell(event_class, {**fields, "agent": run.agent, "run": run.info, "correlation_id": run.id})


def end(
    run: RunBase, *, error: BaseException | None = None, max_turns: bool = False
) -> Script[BaseException | None]:
    """
    Close a run: what is still open, AfterInvocation, and exactly one terminal, whatever is raised meanwhile.

    Returns:
        What a gate or an observer raised meanwhile, if the run itself had not failed.
    """
    failure = error
    for span_id in reversed(list(run.opened)):
        try:
            yield from close(run, span_id, failure or RunEndedError("the run ended before this did"))
        except BaseException as raised:
            failure = failure or raised
    gate = make(
        run, AfterInvocationEvent, success=failure is None and not max_turns, error=failure, result=run.result
    )
    if gate is not None:
        try:
            yield from judge(run, gate)
        except BaseException as raised:
            failure = failure or raised
        else:
            run.result = gate.result
    common = {"duration": time.monotonic() - run.started, "span_id": run.span_id}
    if failure is not None:
        yield from _last(run, InferenceFailedEvent, {"message": run.message, "error": failure, **common})
    elif max_turns:
        calls = {"turn": run.turn, "tool_calls": run.pending_calls}
        yield from _last(run, InferenceMaxTurnsReachedEvent, {**calls, **common})
    else:
        yield from _last(
            run, InferenceCompletedEvent, {"message": run.message, "result": run.result, **common}
        )
    return failure if error is None else None


def open_span(
    run: RunBase, ends_with: type[CatalogEvent], fields: dict[str, Any], *, fails: bool = True
) -> str:
    """
    Note a start, with the event that ends it if the run ends first; return its new span id.
    """
    span_id = new_span_id()
    run.opened[span_id] = Opened(ends_with, {**fields, "span_id": span_id}, time.monotonic(), fails)
    return span_id


def close(
    run: RunBase,
    span_id: str,
    error: BaseException | None = None,
    ends_with: type[CatalogEvent] | None = None,
    **fields: Any,
) -> Script[None]:
    """
    Emit the end of a start: by default its failure; nothing if it has its end already.
    """
    opened = run.opened.pop(span_id, None)
    if opened is None:
        return
    event_class, known, started, fails = opened
    told = {**known, **fields, "duration": time.monotonic() - started}
    if ends_with is None and fails:
        told["error"] = error
    yield from tell(run, ends_with or event_class, **told)


def as_call(run: RunBase, call: ToolCallLike) -> ToolCall:
    """
    Return a call as a ToolCall of ours, with an id.
    """
    if isinstance(call, ToolCall) and call.id:
        return call
    arguments: Any = call.input
    return ToolCall(
        str(call.id) if call.id else run.next_call_id(),
        str(call.name),
        freeze({} if arguments is None else arguments),
    )


def as_result(value: Any) -> Any:
    """
    Return what a tool returned as a result: as it is, if it has the attributes of one.
    """
    return value if hasattr(value, "data") and hasattr(value, "error") else ToolResult(value)


def call_tool(run: RunBase, call: ToolCall, *, max_retries: int) -> Script[ToolOutcome]:
    """
    Call one tool: before, approve, start, execute, after, end.

    Yields `Perform(call, {})`, the call carrying the arguments to execute, as often as gates have it retried.
    """
    run.must_be_open()
    before = make(run, BeforeToolCallEvent, tool_call=call, arguments=call.input)
    asked = call
    if before is not None:
        yield from judge(run, before)
        refused = refusal_of(before, "cancel")
        if refused is not None:
            return (yield from _deny(run, call, *refused))
        if was_written(before, "arguments"):
            call = ToolCall(call.id, call.name, before.arguments)
        if before.result is not None:
            by = author_of(before, "result")
            return (yield from _answer_tool(run, call, as_result(before.result), by))
    approve = make(run, ApproveToolCallEvent, tool_call=asked, arguments=call.input)
    if approve is not None:
        yield from judge(run, approve)
        refused = refusal_of(approve, "denied")
        if refused is not None:
            return (yield from _deny(run, call, *refused))
    return (yield from _execute_tool(run, call, max_retries))


def _deny(run: RunBase, call: ToolCall, reason: str, by: str | None) -> Script[ToolOutcome]:
    yield from tell(run, ToolCallDeniedEvent, agent=run.agent, tool_call=call, reason=reason, by=by)
    return ToolOutcome(ToolResult(error=reason), refused=ToolCallRefused(reason, by))


def _answer_tool(run: RunBase, call: ToolCall, result: Any, by: str | None) -> Script[ToolOutcome]:
    ended = {
        "agent": run.agent,
        "tool_call": call,
        "answered_by": by,
        "span_id": new_span_id(),
        "duration": 0.0,
    }
    after = make(run, AfterToolCallEvent, tool_call=call, arguments=call.input, result=result)
    try:
        yield from judge(run, after)
    except BaseException:
        yield from tell(run, ToolCallCompletedEvent, **ended)
        raise
    if after is not None:
        result = as_result(after.result)
    yield from tell(run, ToolCallCompletedEvent, **ended, result=result)
    return ToolOutcome(result, answered=True)


def _execute_tool(run: RunBase, call: ToolCall, max_retries: int) -> Script[ToolOutcome]:
    common = {"agent": run.agent, "tool_call": call}
    span_id = open_span(run, ToolCallFailedEvent, common)
    error: Exception | None = None
    result: Any = None
    executed = False
    try:
        yield from tell(run, ToolCallStartedEvent, **common, span_id=span_id)
        attempt = 0
        while True:
            attempt += 1
            run.must_be_open()
            executed, error, result = False, None, None
            try:
                result = as_result((yield Perform(call, {})))
            except Exception as raised:
                error = raised
            executed = True
            after = make(
                run,
                AfterToolCallEvent,
                tool_call=call,
                arguments=call.input,
                error=error,
                result=result,
                attempt=attempt,
            )
            if after is None:
                break
            may_retry = attempt <= max_retries
            yield from judge(run, after, may_retry=may_retry)
            if not after.retry or not may_retry:
                result = None if after.result is None else as_result(after.result)
                break
            yield Wait(seconds_of(after.retry))
    except BaseException as raised:
        # What the tool did is done, and told; what no gate has passed is not.
        if executed and error is None:
            yield from close(run, span_id, None, ToolCallCompletedEvent)
        else:
            yield from close(run, span_id, error or raised)
        raise
    if error is not None:
        yield from close(run, span_id, error)
        return ToolOutcome(ToolResult(error=text_of(error)) if result is None else result)
    result = ToolResult() if result is None else result
    yield from close(run, span_id, None, ToolCallCompletedEvent, result=result)
    return ToolOutcome(result)


def call_model(
    run: RunBase,
    messages: Any,
    *,
    tools: Any,
    model: str | None,
    settings: Mapping[str, Any],
    max_retries: int,
) -> Script[ModelOutcome]:
    """
    Ask the model: before, start, call, after, end; and again from the top, as often as gates have it retried.

    Yields `Perform(messages, settings)`.
    """
    attempt = 0
    while True:
        attempt += 1
        run.must_be_open()
        sent, options = messages, settings
        before = make(
            run,
            BeforeModelCallEvent,
            turn=run.turn_or_none,
            messages=messages,
            tools=tools,
            settings=settings,
        )
        if before is not None:
            yield from judge(run, before)
            refused = refusal_of(before, "cancel")
            if refused is not None:
                raise ModelCallRefused(*refused)
            sent, options = before.messages, before.settings
            if before.response is not None:
                return (yield from _answer_model(run, sent, before.response, model, options, attempt))
        outcome = yield from _attempt_model(run, sent, model, options, attempt, max_retries)
        if isinstance(outcome, ModelOutcome):
            yield from _received(run, outcome.response)
            return outcome
        yield outcome


def _generated(
    run: RunBase, sent: Any, response: Any, model: str | None, options: Mapping[str, Any], attempt: int
) -> dict[str, Any]:
    return {
        "agent": run.agent,
        "turn": run.turn_or_none,
        "request": sent,
        "response": response,
        "model": getattr(response, "model", None) or model,
        "settings": options,
        "usage": getattr(response, "usage", None),
        "attempt": attempt,
    }


def _answer_model(
    run: RunBase, sent: Any, response: Any, model: str | None, options: Mapping[str, Any], attempt: int
) -> Script[ModelOutcome]:
    after = make(run, AfterModelCallEvent, messages=sent, response=response, attempt=attempt)
    span = {"duration": 0.0, "span_id": new_span_id()}
    try:
        yield from judge(run, after)
    except BaseException:
        told = _generated(run, sent, None, model, options, attempt)
        yield from tell(run, InferenceGeneratedEvent, **told, **span)
        raise
    if after is not None:
        response = after.response
    yield from tell(
        run, InferenceGeneratedEvent, **_generated(run, sent, response, model, options, attempt), **span
    )
    yield from _received(run, response)
    return ModelOutcome(response, answered=True)


def _attempt_model(
    run: RunBase,
    sent: Any,
    model: str | None,
    options: Mapping[str, Any],
    attempt: int,
    max_retries: int,
) -> Script[ModelOutcome | Wait]:
    common = {"agent": run.agent, "turn": run.turn_or_none, "model": model, "attempt": attempt}
    span_id = open_span(run, ModelCallFailedEvent, common)
    error: Exception | None = None
    response: Any = None
    answered = False
    wait: Wait | None = None
    try:
        yield from tell(run, ModelCallStartedEvent, **common, span_id=span_id)
        run.must_be_open()
        try:
            response = yield Perform(sent, options)
        except Exception as raised:
            error = raised
        answered = error is None
        after = make(run, AfterModelCallEvent, messages=sent, response=response, error=error, attempt=attempt)
        if after is not None:
            may_retry = attempt <= max_retries
            yield from judge(run, after, may_retry=may_retry)
            response = after.response
            if after.retry and may_retry:
                wait = Wait(seconds_of(after.retry))
    except BaseException as raised:
        if answered:
            told = _generated(run, sent, None, model, options, attempt)
            yield from close(run, span_id, None, InferenceGeneratedEvent, **told)
        else:
            yield from close(run, span_id, error or raised)
        raise
    if error is None:
        told = _generated(run, sent, response, model, options, attempt)
        yield from close(run, span_id, None, InferenceGeneratedEvent, **told)
    else:
        yield from close(run, span_id, error)
    if wait is not None:
        return wait
    if error is not None and response is None:
        raise error
    return ModelOutcome(response)


def _received(run: RunBase, response: Any) -> Script[None]:
    calls: Sequence[ToolCallLike] = list(getattr(response, "tool_calls", None) or ())
    run.pending_calls = calls
    if calls:
        yield from tell(run, ToolCallsReceivedEvent, agent=run.agent, tool_calls=calls)


def step(run: RunBase, name: str) -> Script[None]:
    """
    Do a named piece of work: start, the work (`Perform`), end.
    """
    run.must_be_open()
    span_id = open_span(run, StepFailedEvent, {"name": name})
    try:
        yield from tell(run, StepStartedEvent, name=name, span_id=span_id)
        yield Perform(None, {})
    except BaseException as error:
        yield from close(run, span_id, error)
        raise
    yield from close(run, span_id, None, StepCompletedEvent)
