"""
The order of a run's events, written once, for plain and async runs and for the pieces alike.

Most functions here are scripts: generators that yield what is to be done next and are sent what came of it.
They neither call a tool nor wait; whoever drives them does, on a thread or on a loop. A plain run tells its
events and asks its gates at once, and an async run yields that, too, to be awaited. The functions that are no
scripts are the short way of what nobody hears: they note a start or an end, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from . import _clock
from ._audience import Audience
from ._context import new_span_id
from ._errors import ModelCallRefused, RunEndedError, RunRefused, ToolCallRefused
from ._gate import RAISED, ProtectedEvent
from ._readonly import ReadOnlyDict, is_flat, thaw
from ._stateful import end_run
from ._steps import (
    Abandoned,
    Ask,
    ModelOutcome,
    Perform,
    Quiet,
    Raised,
    Script,
    Tell,
    ToolOutcome,
    Wait,
    carried,
    original,
    passed,
    performed,
)
from ._verdict import author_of, decision, name_of, refusal_of, seconds_of, settings_of, text_of, was_written
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
from .values import ModelResponse, ToolCall, ToolCallLike, ToolResult

if TYPE_CHECKING:
    from ._event import Event
    from ._run import RunBase

_BEGIN: Final = Audience(BeforeInvocationEvent, InferenceStartedEvent)
_TOOL_CALL: Final = Audience(
    BeforeToolCallEvent,
    ApproveToolCallEvent,
    ToolCallStartedEvent,
    AfterToolCallEvent,
    ToolCallCompletedEvent,
    ToolCallFailedEvent,
)
_END: Final = Audience(
    AfterInvocationEvent,
    InferenceCompletedEvent,
    InferenceFailedEvent,
    InferenceMaxTurnsReachedEvent,
)

_NOTHING: Final = cast("Script[Any]", iter(()))
"""A script with nothing left to do; what it returns is None."""

_NOT_YET: Final = object()
_NO_SETTINGS: Final[Mapping[str, Any]] = {}

T = TypeVar("T")


def tell(run: RunBase, event_class: type[Event], /, **fields: Any) -> Script[None]:
    """
    Emit an event of the run, unless it has ended.
    """
    # Noted first, and only then looked whether the run is over: who ends it does the reverse, so that one of
    # the two sees the other.
    ticket = run._telling.begin()
    try:
        if not run._over:
            todo = run._told(event_class, {"run": run.info, "correlation_id": run.id, **fields})
            if todo is not None:
                yield from _rest(todo)
    finally:
        run._telling.end(ticket)


def _rest(todo: Tell | Ask | Raised) -> Script[None]:
    passed(todo if isinstance(todo, Raised) else (yield todo))


def heard(run: RunBase, event_class: type[Event]) -> bool:
    """
    Tell whether an event is to be told: somebody hears it, or earlier ones of the run are waited for first.
    """
    return event_class.has_receivers() or bool(run._owed)


def judge(run: RunBase, gate: ProtectedEvent | None, *, may_retry: bool = False) -> Script[bool]:
    """
    Let a gate's handlers judge, and emit what they have decided; after the run's end nothing is judged.

    Returns:
        True if they have written anything, else something false: what was not written to is as it was built.

    Raises:
        RunEndedError: If the run has ended: what the gate would have judged must not happen, or not get out.
        Exception: What a handler raised.
    """
    if gate is None:
        return _NOTHING
    if run._over:
        if isinstance(gate, (AfterModelCallEvent, AfterToolCallEvent)):
            raise unjudged(run, gate) from gate.error
        raise run._too_late()
    todo = run._asked(gate)
    if todo is None and not gate.edits:
        return _NOTHING
    return _judged(run, gate, todo, may_retry=may_retry)


def _judged(
    run: RunBase, gate: ProtectedEvent, todo: Ask | Raised | None, *, may_retry: bool
) -> Script[bool]:
    try:
        if todo is not None:
            yield from _rest(todo)
    except BaseException as error:
        try:
            yield from _decided(run, gate, may_retry=may_retry)
        except Exception as raised:
            mention(error, raised)
        raise
    finally:
        # What is raised keeps this frame in its traceback, which must not keep it in turn.
        del todo
    if not gate.edits:
        return False
    yield from _decided(run, gate, may_retry=may_retry)
    return True


def unjudged(run: RunBase, gate: AfterModelCallEvent | AfterToolCallEvent) -> RunEndedError:
    """
    Return the error of a call that outlived its run, and whose outcome no After-gate can judge any more.
    """
    call = gate.get("tool_call")
    what = "the model call" if call is None else f"the tool call {call.name!r} ({call.id})"
    name = type(gate).__name__
    return RunEndedError(f"{run!r} has ended; what {what} came to is held back: {name} can judge no more.")


def _decided(run: RunBase, gate: ProtectedEvent, *, may_retry: bool) -> Script[None]:
    failure: Exception | None = None
    for edit in gate.edits:
        fields = decision(gate, edit, may_retry=may_retry)
        if fields is not None:
            try:
                yield from tell(run, GateDecisionEvent, **fields)
            except Exception as raised:
                if failure is None:
                    failure = raised
                else:
                    mention(failure, raised)
    if failure is not None:
        raise failure


def mention(error: BaseException, other: BaseException) -> None:
    """
    Add to an error that goes on what was raised meanwhile, and cannot go on as well.
    """
    other = original(other)
    original(error).add_note(f"meanwhile: {type(other).__name__}: {text_of(other)}")


def begins_alone(run: RunBase) -> bool:
    """
    Open a run that nobody judges and whose beginning nobody hears, and tell whether it was one.
    """
    if run._owed or not _BEGIN.is_empty():
        return False
    run._open_up()
    return True


def ends_alone(run: RunBase) -> bool:
    """
    Close a run in which all is done, and whose end nobody hears, and tell whether it was one.
    """
    if run._opened or run._owed or run._telling.tickets or not _END.is_empty():
        return False
    run._over = True
    if run._telling.tickets:
        # Somebody has begun to tell something just now: that is waited for first.
        run._over = False
        return False
    end_run(run.id)
    return True


def begin(run: RunBase) -> Script[None]:
    """
    Open a run: BeforeInvocation, then InferenceStarted or InferenceDenied.
    """
    yield from admit(run)
    run._open_up()
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
        if run._closes():
            goes_on = yield from end(run, error=original(error))
            if goes_on is not None:
                raise carried(goes_on) from error
        raise


def admit(run: RunBase) -> Script[None]:
    """
    Ask whether a run may begin: BeforeInvocation, and InferenceDenied where it is refused.

    Raises:
        RunRefused: If it is.
        Exception: What a gate raised, which refuses it too.
    """
    if not BeforeInvocationEvent.has_receivers():
        return
    gate = BeforeInvocationEvent._build(
        agent=run.agent, run=run.info, correlation_id=run.id, message=run.message, state=run.state
    )
    try:
        written = yield from judge(run, gate)
    except BaseException as error:
        denied = {"message": run.message, "reason": text_of(original(error)), "by": author_of(gate, RAISED)}
        try:
            yield from _last(run, InferenceDeniedEvent, denied)
        except Exception as raised:
            mention(error, raised)
        raise
    if not written:
        return
    refused = refusal_of(gate, "cancel")
    if refused is not None:
        reason, by = refused
        yield from deny_run(run, reason, by)
        raise RunRefused(reason, by)
    if was_written(gate, "message"):
        run._accept_message(thaw(gate.message))
    if was_written(gate, "state"):
        run.state = thaw(gate.state)


def deny_run(run: RunBase, reason: str | None, by: str | None) -> Script[None]:
    """
    Tell that a run was refused, after which nothing is told of it.
    """
    yield from _last(run, InferenceDeniedEvent, {"message": run.message, "reason": reason, "by": by})


def _last(run: RunBase, event_class: type[CatalogEvent], fields: dict[str, Any]) -> Script[None]:
    # Nothing is told of a run after its terminal, not even what the terminal's own handlers do.
    run._over = True
    told = {**fields, "agent": run.agent, "run": run.info, "correlation_id": run.id}
    try:
        if run._telling.tickets:
            passed((yield Quiet(run)))
    finally:
        # Though nobody may hear it: what stateful hooks keep for the run ends with it.
        todo = run._told(event_class, told)
        if todo is not None:
            yield from _rest(todo)


def end(
    run: RunBase, *, error: BaseException | None = None, max_turns: bool = False
) -> Script[BaseException | None]:
    """
    Close a run: what is still open, AfterInvocation, and exactly one terminal, whatever is raised meanwhile.

    Returns:
        What was raised meanwhile and is to go on: an interrupt in any case, the first exception if the run
        itself had not failed.
    """
    failure = error
    meanwhile: list[BaseException] = []
    if run._telling.tickets:
        yield from _quiet(run, meanwhile)
    for span in reversed(list(run._opened)):
        # An end that somebody else is telling takes its start from `opened`; what is around it waits for it.
        if run._telling.tickets:
            yield from _quiet(run, meanwhile)
        failure = next(iter(meanwhile), None) if failure is None else failure
        reason = RunEndedError("the run ended before this did") if failure is None else failure
        try:
            yield from close(run, span, reason)
        except BaseException as raised:
            meanwhile.append(original(raised))
    failure = next(iter(meanwhile), None) if failure is None else failure
    if AfterInvocationEvent.has_receivers():
        gate = AfterInvocationEvent._build(
            agent=run.agent,
            run=run.info,
            correlation_id=run.id,
            success=failure is None and not max_turns,
            error=failure,
            result=run.result,
        )
        try:
            if (yield from judge(run, gate)) and was_written(gate, "result"):
                run.result = gate.result
        except BaseException as raised:
            meanwhile.append(original(raised))
            failure = original(raised) if failure is None else failure
    told = {"duration": _clock.monotonic() - run._started, "span_id": run.span_id}
    event_class: type[CatalogEvent] = InferenceCompletedEvent
    if failure is not None:
        event_class = InferenceFailedEvent
        told |= {"message": run.message, "error": failure}
    elif max_turns:
        event_class = InferenceMaxTurnsReachedEvent
        told |= {"turn": run.turn, "tool_calls": run._pending_calls}
    else:
        told |= {"message": run.message, "result": run.result}
    try:
        yield from _last(run, event_class, told)
    except BaseException as raised:
        meanwhile.append(original(raised))
    return _goes_on(error, meanwhile) if meanwhile else None


def _quiet(run: RunBase, meanwhile: list[BaseException]) -> Script[None]:
    try:
        passed((yield Quiet(run)))
    except BaseException as raised:
        meanwhile.append(original(raised))


def _goes_on(error: BaseException | None, meanwhile: list[BaseException]) -> BaseException | None:
    interrupts = [raised for raised in meanwhile if not isinstance(raised, Exception)]
    first = next(iter(interrupts or meanwhile), None)
    goes_on = first if error is None or interrupts else None
    kept = error if goes_on is None else goes_on
    for raised in meanwhile:
        if kept is not None and raised is not kept and raised is not error:
            mention(kept, raised)
    return goes_on


def start(
    run: RunBase,
    event_class: type[CatalogEvent],
    ends_with: type[CatalogEvent],
    fields: dict[str, Any],
    *,
    fails: bool = True,
) -> Script[object]:
    """
    Emit a start, and return what its end is told with.

    Args:
        run: The run.
        event_class: The start.
        ends_with: The event that ends it if it raises, or the run ends first.
        fields: What both say.
        fails: Whether `ends_with` has an error.

    Raises:
        RunEndedError: If the run has ended, or is about to.
        BaseException: What an observer raised; the end is told by then.
    """
    if not heard(run, event_class):
        return note(run, ends_with, fields, fails=fails)
    # As in `tell`: whoever ends the run waits for this, or is seen here.
    ticket = run._telling.begin()
    try:
        told = {"run": run.info, "correlation_id": run.id, **fields, "span_id": new_span_id()}
        span = note(run, ends_with, told, fails=fails)
        try:
            todo = run._told(event_class, told)
            if todo is not None:
                yield from _rest(todo)
        except BaseException as error:
            yield from fail(run, span, error)
            raise
    finally:
        run._telling.end(ticket)
    return span


def note(
    run: RunBase, ends_with: type[CatalogEvent], fields: dict[str, Any], *, fails: bool = True
) -> object:
    """
    Note a start, heard or not, as one that has no end yet, and return what its end is told with.

    Raises:
        RunEndedError: If the run has ended, or is about to.
    """
    run._must_be_open()
    span = object()
    run._opened[span] = (ends_with, fields, _clock.monotonic(), fails)
    return span


def close(
    run: RunBase,
    span: object,
    error: BaseException | None = None,
    ends_with: type[CatalogEvent] | None = None,
    **fields: Any,
) -> Script[None]:
    """
    Emit the end of a start: by default its failure; nothing if it has its end already.
    """
    if ends_with is not None and not heard(run, ends_with):
        run._opened.pop(span, None)
        return
    ticket = run._telling.begin()
    try:
        # From here on it is this end that is told, and a terminal waits for it.
        opened = None if run._over else run._opened.pop(span, None)
        if opened is not None:
            event_class, known, started, fails = opened
            told = {
                "run": run.info,
                "correlation_id": run.id,
                **known,
                **fields,
                "duration": _clock.monotonic() - started,
            }
            if "span_id" not in known:
                # Nobody has heard the start.
                told["span_id"] = new_span_id()
            if ends_with is None and fails:
                told["error"] = error
            todo = run._told(ends_with or event_class, told)
            if todo is not None:
                yield from _rest(todo)
    finally:
        run._telling.end(ticket)


def fail(
    run: RunBase,
    span: object,
    error: BaseException,
    ends_with: type[CatalogEvent] | None = None,
    **fields: Any,
) -> Script[None]:
    """
    Emit an end while `error` goes on, which no observer's exception may replace.
    """
    try:
        yield from close(run, span, original(error), ends_with, **fields)
    except Exception as raised:
        mention(error, raised)


def as_call(run: RunBase, call: ToolCallLike) -> ToolCall:
    """
    Return a call as a ToolCall of ours, with an id.
    """
    if type(call) is ToolCall and call.id and type(call.input) is ReadOnlyDict:
        return call
    arguments = as_arguments(call.input)
    if isinstance(call, ToolCall) and call.id and arguments is call.input:
        return call
    return ToolCall(str(call.id) if call.id else run._next_call_id(), name_of(call), arguments)


def as_arguments(value: Any) -> Any:
    """
    Return arguments as a dict, if they are a mapping or None; else as they are, for the tool to refuse.
    """
    if value is None:
        return {}
    if isinstance(value, ReadOnlyDict) or not isinstance(value, Mapping):
        return cast("Any", value)
    return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # of anything


def as_result(value: Any) -> Any:
    """
    Return what a tool returned as a result: as it is, if it has the attributes of one.
    """
    try:
        is_one = hasattr(value, "data") and hasattr(value, "error")
    except Exception:
        # What else it does when it is looked at is the tool's answer, not the run's failure.
        is_one = False
    return value if is_one else ToolResult(value)


def call_tool(run: RunBase, call: ToolCall, *, max_retries: int, first: int = 1) -> Script[ToolOutcome]:
    """
    Call one tool: before, approve, start, execute, after, end.

    Yields `Perform(call, {})`, the call carrying the arguments to execute, as often as gates have it retried.
    The first attempt has the number `first`.
    """
    judged = yield from judge_tool(run, call)
    if isinstance(judged, ToolOutcome):
        return judged
    common = {"agent": run.agent, "tool_call": judged}
    span = yield from start(run, ToolCallStartedEvent, ToolCallFailedEvent, common)
    return (yield from execute_tool(run, judged, span, max_retries, first))


def note_tool(run: RunBase, call: ToolCall) -> object:
    """
    Note the start of a plain run's tool call that nobody judges or hears; where somebody does, do nothing.

    Returns:
        What its end is told with; None where nothing was noted.
    """
    if not _TOOL_CALL.is_empty():
        return None
    return note(run, ToolCallFailedEvent, {"agent": run.agent, "tool_call": call})


def close_tool(run: RunBase, span: object) -> bool:
    """
    Note that a tool call is over, and return True; False if somebody has come meanwhile who judges or hears.
    """
    if not _TOOL_CALL.is_empty():
        return False
    run._opened.pop(span, None)
    return True


def execute_tool(
    run: RunBase, call: ToolCall, span: object, max_retries: int, first: int = 1, done: Any = _NOT_YET
) -> Script[ToolOutcome]:
    """
    Execute a tool call that has started, or go on after its first execution: after, end.

    Args:
        run: The run.
        call: What is executed.
        span: What its end is told with.
        max_retries: How often gates may have it retried.
        first: The number of the first attempt.
        done: What came of it, if it was made already.
    """
    error: Exception | None = None
    result: Any = None
    executed = False
    try:
        attempt = first - 1
        while True:
            attempt += 1
            executed, error, result = False, None, None
            if done is _NOT_YET:
                run._must_be_open()
                try:
                    done = yield Perform(call, _NO_SETTINGS)
                except GeneratorExit:
                    raise Abandoned from None
            returned, error = performed(done)
            done = _NOT_YET
            executed = True
            if error is None:
                result = as_result(returned)
            if not AfterToolCallEvent.has_receivers():
                break
            after = AfterToolCallEvent._build(
                agent=run.agent,
                run=run.info,
                correlation_id=run.id,
                tool_call=call,
                arguments=call.input,
                error=error,
                result=result,
                attempt=attempt,
            )
            may_retry = attempt <= max_retries
            if not (yield from judge(run, after, may_retry=may_retry)):
                break
            if not after.retry or not may_retry:
                result = None if after.result is None else as_result(after.result)
                break
            passed((yield Wait(seconds_of(after))))
    except Abandoned:
        raise
    except BaseException as raised:
        # What the tool did is done, and told; what no gate has passed is not.
        if executed and error is None:
            yield from fail(run, span, raised, ToolCallCompletedEvent)
        else:
            yield from fail(run, span, error or raised)
        raise
    if error is not None:
        yield from close(run, span, error)
        return ToolOutcome(ToolResult(error=text_of(error)) if result is None else result)
    result = ToolResult() if result is None else result
    yield from close(run, span, None, ToolCallCompletedEvent, result=result)
    return ToolOutcome(result)


def judge_tool(run: RunBase, call: ToolCall, *, approve: bool = True) -> Script[ToolCall | ToolOutcome]:
    """
    Ask the gates before a tool call: the call as it may be executed, or what it came to without that.

    Args:
        run: The run.
        call: What is asked for.
        approve: Whether it is about to be executed, for the Approve-gates to judge.
    """
    run._must_be_open()
    asked = call
    if BeforeToolCallEvent.has_receivers():
        before = BeforeToolCallEvent._build(
            agent=run.agent, run=run.info, correlation_id=run.id, tool_call=call, arguments=call.input
        )
        if (yield from judge(run, before)):
            refused = refusal_of(before, "cancel")
            if refused is not None:
                return (yield from deny_tool(run, call, *refused))
            if was_written(before, "arguments"):
                call = ToolCall(call.id, call.name, as_arguments(before.arguments))
            if before.result is not None:
                by = author_of(before, "result")
                return (yield from answer_tool(run, call, as_result(before.result), by))
    if approve and ApproveToolCallEvent.has_receivers():
        # Of its own, all the way down: what is judged now is what will be executed, whoever else still holds
        # a dict of the model's or a gate's.
        if not is_flat(call.input):
            call = ToolCall(call.id, call.name, thaw(call.input))
        last = ApproveToolCallEvent._build(
            agent=run.agent, run=run.info, correlation_id=run.id, tool_call=asked, arguments=call.input
        )
        if (yield from judge(run, last)):
            refused = refusal_of(last, "denied")
            if refused is not None:
                return (yield from deny_tool(run, call, *refused))
    return call


def deny_tool(run: RunBase, call: ToolCall, reason: str, by: str | None) -> Script[ToolOutcome]:
    """
    Tell that a tool call was refused.
    """
    yield from tell(run, ToolCallDeniedEvent, agent=run.agent, tool_call=call, reason=reason, by=by)
    return ToolOutcome(ToolResult(error=reason), refused=ToolCallRefused(reason, by))


def answer_tool(run: RunBase, call: ToolCall, result: Any, by: str | None) -> Script[ToolOutcome]:
    """
    Tell that a tool call was answered by a gate: after, end.
    """
    ended = {
        "agent": run.agent,
        "tool_call": call,
        "answered_by": by,
        "span_id": new_span_id(),
        "duration": 0.0,
    }
    after = None
    if AfterToolCallEvent.has_receivers():
        after = AfterToolCallEvent._build(
            agent=run.agent,
            run=run.info,
            correlation_id=run.id,
            tool_call=call,
            arguments=call.input,
            result=result,
        )
    try:
        yield from judge(run, after)
    except BaseException:
        yield from tell(run, ToolCallCompletedEvent, **ended)
        raise
    if after is not None:
        result = as_result(after.result)
    yield from tell(run, ToolCallCompletedEvent, **ended, result=result)
    return ToolOutcome(result, answered=True)


def call_model(
    run: RunBase,
    messages: Any,
    *,
    tools: Any,
    model: str | None,
    settings: Mapping[str, Any],
    max_retries: int,
    first: int = 1,
) -> Script[ModelOutcome]:
    """
    Ask the model: before, start, call, after, end; and again from the top, as often as gates have it retried.

    Yields `Perform(messages, settings)`. The first attempt has the number `first`.
    """
    attempt = first - 1
    while True:
        attempt += 1
        run._must_be_open()
        sent, options = messages, settings
        if BeforeModelCallEvent.has_receivers():
            before = BeforeModelCallEvent._build(
                agent=run.agent,
                run=run.info,
                correlation_id=run.id,
                turn=run._turn_or_none,
                messages=messages,
                tools=tools,
                settings=settings,
            )
            if (yield from judge(run, before)):
                refused = refusal_of(before, "cancel")
                if refused is not None:
                    raise ModelCallRefused(*refused)
                # What no gate has written stays the caller's own.
                sent = before.messages if was_written(before, "messages") else messages
                options = settings_of(before) if was_written(before, "settings") else settings
                if before.response is not None:
                    return (yield from _answer_model(run, sent, before.response, model, options, attempt))
        name = options.get("model", model)
        outcome = yield from _attempt_model(run, sent, name, options, attempt, max_retries)
        if isinstance(outcome, ModelOutcome):
            if outcome.error is None:
                yield from _received(run, outcome.response)
            return outcome
        passed((yield outcome))


def _generated(
    run: RunBase, sent: Any, response: Any, model: str | None, options: Mapping[str, Any], attempt: int
) -> dict[str, Any]:
    return {
        "agent": run.agent,
        "turn": run._turn_or_none,
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
    after = None
    if AfterModelCallEvent.has_receivers():
        after = AfterModelCallEvent._build(
            agent=run.agent,
            run=run.info,
            correlation_id=run.id,
            messages=sent,
            response=response,
            attempt=attempt,
        )
    span = {"duration": 0.0, "span_id": new_span_id()}
    try:
        yield from judge(run, after)
    except BaseException:
        told = _generated(run, sent, None, model, options, attempt)
        yield from tell(run, InferenceGeneratedEvent, **told, **span)
        raise
    if after is not None:
        # None would look as if nobody had answered, and the model were to be called.
        response = ModelResponse() if after.response is None else after.response
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
    common = {"agent": run.agent, "turn": run._turn_or_none, "model": model, "attempt": attempt}
    span = yield from start(run, ModelCallStartedEvent, ModelCallFailedEvent, common)
    error: Exception | None = None
    response: Any = None
    answered = False
    wait: Wait | None = None
    try:
        run._must_be_open()
        try:
            done = yield Perform(sent, options)
        except GeneratorExit:
            raise Abandoned from None
        response, error = performed(done)
        answered = error is None
        if AfterModelCallEvent.has_receivers():
            after = AfterModelCallEvent._build(
                agent=run.agent,
                run=run.info,
                correlation_id=run.id,
                messages=sent,
                response=response,
                error=error,
                attempt=attempt,
            )
            may_retry = attempt <= max_retries
            if (yield from judge(run, after, may_retry=may_retry)):
                if was_written(after, "response"):
                    response = after.response
                if after.retry and may_retry:
                    wait = Wait(seconds_of(after))
    except Abandoned:
        raise
    except BaseException as raised:
        if answered:
            told = _generated(run, sent, None, model, options, attempt)
            yield from fail(run, span, raised, InferenceGeneratedEvent, **told)
        else:
            yield from fail(run, span, error or raised)
        raise
    if error is None:
        told = _generated(run, sent, response, model, options, attempt)
        yield from close(run, span, None, InferenceGeneratedEvent, **told)
    else:
        yield from close(run, span, error)
    if wait is not None:
        return wait
    return ModelOutcome(response, error=error if response is None else None)


def _received(run: RunBase, response: Any) -> Script[None]:
    calls: Sequence[ToolCallLike] = list(getattr(response, "tool_calls", None) or ())
    run._pending_calls = calls
    if calls:
        yield from tell(run, ToolCallsReceivedEvent, agent=run.agent, tool_calls=calls)


def step(run: RunBase, name: str) -> Script[None]:
    """
    Do a named piece of work: start, the work (`Perform`), end.
    """
    span = yield from start(run, StepStartedEvent, StepFailedEvent, {"name": name})
    try:
        try:
            done = yield Perform(None, {})
        except GeneratorExit:
            raise Abandoned from None
        _, error = performed(done)
    except Abandoned:
        raise
    except BaseException as raised:
        yield from fail(run, span, raised)
        raise
    if error is None:
        yield from close(run, span, None, StepCompletedEvent)
    else:
        yield from fail(run, span, error)
