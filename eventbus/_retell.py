"""
Telling a stored run again: its events in their order, through a Run of its own, with live gates judging anew.

What was executed is judged again, and what a live gate refuses or answers is left out from there on. What was
refused or answered then stays so unless a live gate decides otherwise, for nobody knows what the tool would
have answered. A decision of a gate is told as it was, unless the handler that made it is live and is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from . import _registry, gates
from ._context import correlation, replaying
from ._drive import Done, Resume, advance, drive
from ._errors import ModelCallRefused
from ._order import (
    admit,
    answer_tool,
    as_call,
    as_result,
    begin,
    call_model,
    call_tool,
    close,
    deny_run,
    deny_tool,
    end,
    judge_tool,
    step,
    tell,
)
from ._reader import StoredEvent
from ._registry import topic_of
from ._run import Run
from ._settings import settings
from ._steps import Raised, Script, ToolOutcome, Wait
from ._stored import StoredError, as_dict, as_error, call_key, class_of, fields_of, revive
from .catalog import (
    CatalogEvent,
    GateDecisionEvent,
    InferenceGeneratedEvent,
    ModelCallFailedEvent,
    ModelCallStartedEvent,
    StepFailedEvent,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallStartedEvent,
)
from .gates import AfterToolCallEvent, BeforeInvocationEvent, BeforeToolCallEvent
from .values import ToolCall

T = TypeVar("T")
Call = tuple[str, str]

_GATES: Final[dict[str, Any]] = {name: getattr(gates, name) for name in gates.__all__}
_VERDICTS: Final = ("deny", "answer")
_AFTER_CALLS: Final = ("AfterModelCallEvent", "AfterToolCallEvent")
_NOT_AGAIN: Final = frozenset(
    {
        # What the model was to be sent is not stored where it was not asked.
        ("BeforeModelCallEvent", "deny"),
        ("BeforeModelCallEvent", "answer"),
        # Nor what a tool came to before its last attempt.
        ("AfterToolCallEvent", "retry"),
        # Nothing follows that could be judged, or what follows was kept back.
        *((gate, "error") for gate in _GATES if "Call" in gate),
    }
)
"""The decisions that are told as they were, whoever is live."""


class _Open(NamedTuple):
    """
    A start that was told again and waits for its end.

    Attributes:
        span: What its end is told with.
        script: What goes on when the end is known.
    """

    span: object
    script: Script[Any]


def retell(events: Sequence[StoredEvent], skipped: Counter[str]) -> None:
    """
    Send the events of one correlation id through the bus; `is_replaying()` is true meanwhile.

    They have new times, durations and span ids. Events outside of a run are told as they were. A gate that
    raises ends its run. A run whose end is not stored is told without one. Handlers run on the calling
    thread; a BaseException ends it where it stands.

    Args:
        events: All of them, by sequence.
        skipped: Counts the events that could not be told by the name of their class: it is not registered,
            or takes other fields.
    """
    with replaying(), ExitStack() as scope:
        retelling = _Retelling(events, skipped, scope)
        for event in events:
            retelling.tell(event)


class _Retelling:
    """
    What is known after some of the events.
    """

    def __init__(self, events: Sequence[StoredEvent], skipped: Counter[str], scope: ExitStack) -> None:
        self._calls = _model_calls(events)
        self._attempts = _tool_attempts(events)
        # Handlers that raised where they are not asked again, each with its gate.
        self._broke = {
            (event.payload.get("by"), str(event.payload.get("gate")))
            for event in events
            if event.channel == GateDecisionEvent.channel and _is_final(event)
        }
        self._skipped = skipped
        self._scope = scope
        self._run: Run | None = None
        # A run that live gates have refused or ended: its events are left out until another begins.
        self._is_cut = False
        self._begin_anew()
        self._how: dict[str, Callable[[StoredEvent, Run], object]] = {
            "eventbus.inference.completed": self._complete,
            "eventbus.inference.failed": self._fail,
            "eventbus.inference.max_turns_reached": self._use_up_turns,
            "eventbus.turn.started": self._start_turn,
            "eventbus.turn.completed": self._end_turn,
            "eventbus.model_call.started": self._start_model,
            "eventbus.model_call.failed": self._end_model,
            "eventbus.inference.generated": self._end_model,
            "eventbus.tool_calls.received": self._receive,
            "eventbus.tool_call.started": self._start_tool,
            "eventbus.tool_call.completed": self._end_tool,
            "eventbus.tool_call.failed": self._end_tool,
            "eventbus.tool_call.denied": self._deny_tool,
            "eventbus.step.started": self._start_step,
            "eventbus.step.completed": self._end_step,
            "eventbus.step.failed": self._end_step,
        }

    def _begin_anew(self) -> None:
        self._scope.close()
        self._run = None
        self._is_cut = False
        # By the stored span id; None is a call that a live gate has refused or answered.
        self._opened: dict[str | None, _Open | None] = {}
        self._turn: str | None = None
        # The next attempt at the model, where a live gate has asked for it.
        self._retried: _Open | None = None
        # How many ToolCallsReceived were told already, by those who told the model's answer.
        self._received = 0
        self._refused: set[Call | None] = set()
        self._decided_at: dict[Call | None, str] = {}
        self._held: dict[Call | None, list[StoredEvent]] = {}
        # The call as it was before live gates edited it; None where one that is not live did.
        self._before_edits: dict[Call | None, StoredEvent | None] = {}
        # Whose After-gates raised then; None is the model's.
        self._raised_after: set[Call | None] = set()

    def tell(self, event: StoredEvent) -> None:
        """
        Tell the next event, or what live gates make of it.
        """
        try:
            if event.channel == "eventbus.inference.started":
                self._begin(event)
            elif event.channel == "eventbus.inference.denied":
                self._deny(event)
            elif event.channel == "eventbus.gate.decision":
                self._decide(event)
            elif event.channel == "eventbus.handler.failed":
                self._fail_handler(event)
            elif not self._is_cut:
                how = self._how.get(event.channel)
                if self._run is None or how is None:
                    self._as_it_was(event)
                else:
                    how(event, self._run)
        except Exception as error:
            # A live gate has raised, or an observer where failures are strict.
            run, self._run, self._is_cut = self._run, None, True
            if run is not None and run._closes():
                drive(end(run, error=error))

    def _as_it_was(self, event: StoredEvent) -> None:
        cls = class_of(event)
        if cls is None:
            self._skipped[event.event] += 1
            return
        fields: dict[str, Any] = fields_of(event, cls)
        try:
            if self._run is None:
                fields["correlation_id"] = event.correlation_id
                cls.emit(**fields)
            else:
                drive(tell(self._run, cls, **fields))
        except Exception:
            if settings.strict:
                raise
            self._skipped[event.event] += 1

    def _new_run(self, event: StoredEvent) -> Run:
        self._begin_anew()
        info = as_dict(event.payload.get("run"))
        parent = event.payload.get("parent_id", info.get("parent_id"))
        self._scope.enter_context(correlation(event.correlation_id, parent=parent))
        run = Run(
            event.agent,
            revive(event.payload.get("message")),
            metadata=as_dict(info.get("metadata")),
            correlation_id=event.correlation_id,
        )
        run._start()
        return run

    def _begin(self, event: StoredEvent) -> None:
        run = self._new_run(event)
        drive(begin(run))
        self._run = run

    def _deny(self, event: StoredEvent) -> None:
        held = self._held.pop(None, [])
        run = self._new_run(event)
        drive(admit(run))
        for decision in held:
            self._as_it_was(decision)
        drive(deny_run(run, event.payload.get("reason"), event.payload.get("by")))
        self._is_cut = True

    def _complete(self, event: StoredEvent, run: Run) -> None:
        self._end(run, result=revive(event.payload.get("result")))

    def _fail(self, event: StoredEvent, run: Run) -> None:
        self._end(run, error=_error_of(event))

    def _use_up_turns(self, event: StoredEvent, run: Run) -> None:
        run._pending_calls = revive(event.payload.get("tool_calls")) or ()
        self._end(run, max_turns=True)

    def _end(self, run: Run, **how: Any) -> None:
        self._run = None
        with suppress(Exception):
            # What AfterInvocation gates raise is told by then.
            run.end(**how)
        self._scope.close()

    def _start_turn(self, event: StoredEvent, run: Run) -> None:
        number = event.payload.get("turn")
        if not isinstance(number, int):
            self._as_it_was(event)
            return
        run.turn = number - 1
        run._next_turn(last=False)
        self._turn = event.span_id

    def _end_turn(self, event: StoredEvent, run: Run) -> None:
        if event.span_id != self._turn:
            self._as_it_was(event)
            return
        run._end_turn()
        self._turn = None

    def _start_model(self, event: StoredEvent, run: Run) -> None:
        if self._retried is not None:
            self._opened[event.span_id], self._retried = self._retried, None
            return
        call = self._calls[event.seq]
        answer = {} if call.answer is None else call.answer.payload
        given = as_dict(answer.get("settings"))
        script = _unhurried(
            call_model(
                run,
                answer.get("request", ()),
                tools=given.get("tools"),
                model=event.payload.get("model"),
                settings=given,
                max_retries=call.attempts - 1,
                first=_attempt(event),
            )
        )
        self._opened[event.span_id] = None
        with suppress(ModelCallRefused):
            self._opened[event.span_id] = self._asked(run, script)
        if self._opened[event.span_id] is None and _calls_in(answer):
            self._received += 1

    def _asked(self, run: Run, script: Script[Any], resume: Resume | None = None) -> _Open | None:
        if isinstance(advance(script, resume), Done):
            return None
        return _Open(next(reversed(run._opened)), script)

    def _end_model(self, event: StoredEvent, run: Run) -> None:
        if event.span_id not in self._opened:
            self._as_it_was(event)
            return
        opened = self._opened.pop(event.span_id)
        if opened is None:
            return
        failed = event.channel == ModelCallFailedEvent.channel
        response = event.payload.get("response")
        if self._was_held_back(None) or (response is None and not failed):
            self._close(event, run, opened, InferenceGeneratedEvent)
            return
        outcome = Raised(_error_of(event)) if failed else revive(response)
        self._retried = self._asked(run, opened.script, partial(opened.script.send, outcome))
        if not failed and self._retried is None and _calls_in(event.payload):
            self._received += 1

    def _close(self, event: StoredEvent, run: Run, opened: _Open, ends_with: type[CatalogEvent]) -> None:
        # A gate that raised after the call kept back what it came to, so there is nothing to judge.
        cls = ends_with if event.channel == ends_with.channel else None
        fields = {} if cls is None else fields_of(event, cls)
        for name in ("duration", "error", "span_id"):
            fields.pop(name, None)
        opened.script.close()
        drive(close(run, opened.span, _error_of(event), cls, **fields))

    def _was_held_back(self, call: Call | None) -> bool:
        if call not in self._raised_after:
            return False
        self._raised_after.discard(call)
        return True

    def _receive(self, event: StoredEvent, run: Run) -> None:
        if self._received:
            self._received -= 1
            return
        run._pending_calls = revive(event.payload.get("tool_calls")) or ()
        self._as_it_was(event)

    def _start_tool(self, event: StoredEvent, run: Run) -> None:
        self._held.pop(call_key(event), None)
        last = self._attempts[event.seq]
        script = call_tool(run, self._call_of(event, run), max_retries=0, first=last)
        self._opened[event.span_id] = self._asked(run, script)
        if self._opened[event.span_id] is None:
            self._refused.add(call_key(event))
        else:
            self._refused.discard(call_key(event))

    def _call_of(self, event: StoredEvent, run: Run) -> ToolCall:
        told = as_dict((self._before_edits.pop(call_key(event), None) or event).payload.get("tool_call"))
        call = ToolCall(str(told.get("id") or ""), str(told.get("name") or ""), told.get("input") or {})
        return as_call(run, call)

    def _end_tool(self, event: StoredEvent, run: Run) -> None:
        result = event.payload.get("result")
        if event.span_id not in self._opened:
            if event.payload.get("answered_by") is None or result is None:
                self._as_it_was(event)
            else:
                self._decide_again(event, run, approve=False)
            return
        opened = self._opened.pop(event.span_id)
        if opened is None:
            return
        failed = event.channel == ToolCallFailedEvent.channel
        if self._was_held_back(call_key(event)) or (result is None and not failed):
            self._close(event, run, opened, ToolCallCompletedEvent)
            return
        outcome = Raised(_error_of(event)) if failed else revive(result)
        advance(opened.script, partial(opened.script.send, outcome))

    def _deny_tool(self, event: StoredEvent, run: Run) -> None:
        at = self._decided_at.get(call_key(event))
        self._decide_again(event, run, approve=at != BeforeToolCallEvent.__name__)

    def _decide_again(self, event: StoredEvent, run: Run, *, approve: bool) -> None:
        judged = drive(judge_tool(run, self._call_of(event, run), approve=approve))
        held = self._held.pop(call_key(event), [])
        if isinstance(judged, ToolOutcome):
            return
        for decision in held:
            self._as_it_was(decision)
        payload = event.payload
        if event.channel == ToolCallDeniedEvent.channel:
            drive(deny_tool(run, judged, payload.get("reason", ""), payload.get("by")))
        else:
            result = as_result(revive(payload.get("result")))
            drive(answer_tool(run, judged, result, payload.get("answered_by")))

    def _start_step(self, event: StoredEvent, run: Run) -> None:
        self._opened[event.span_id] = self._asked(run, step(run, event.payload.get("name", "")))

    def _end_step(self, event: StoredEvent, _run: Run) -> None:
        opened = self._opened.pop(event.span_id, None)
        if opened is None:
            self._as_it_was(event)
            return
        failed = event.channel == StepFailedEvent.channel
        outcome = Raised(_error_of(event)) if failed else None
        advance(opened.script, partial(opened.script.send, outcome))

    def _decide(self, event: StoredEvent) -> None:
        gate, action = str(event.payload.get("gate")), event.payload.get("action")
        call = call_key(event)
        if self._is_cut and gate != BeforeInvocationEvent.__name__:
            return
        if call in self._refused and gate == AfterToolCallEvent.__name__:
            return
        if action == "error" and gate in _AFTER_CALLS and _is_final(event):
            self._raised_after.add(call)
        if action in _VERDICTS:
            self._decided_at[call] = gate
        again = self._is_asked_again(event, gate)
        if action == "edit" and gate == BeforeToolCallEvent.__name__:
            self._before_edits[call] = self._before_edits.get(call, event) if again else None
        if not again:
            self._as_it_was(event)
        elif action in _VERDICTS:
            self._held.setdefault(call, []).append(event)

    def _is_asked_again(self, event: StoredEvent, gate: str) -> bool:
        if _is_final(event) or gate not in _GATES:
            return False
        return _is_live(_GATES[gate], event.payload.get("by"), event.correlation_id)

    def _fail_handler(self, event: StoredEvent) -> None:
        handler = event.payload.get("handler")
        cls = _registry.state.channels.get(str(as_dict(event.payload.get("event")).get("channel")))
        asked_again = cls is not None and (handler, cls.__name__) not in self._broke
        if not self._is_cut and not (asked_again and _is_live(cls, handler, event.correlation_id)):
            self._as_it_was(event)


class _ModelCall:
    """
    What is known from the whole run of one call of the model, which may have several attempts.
    """

    def __init__(self) -> None:
        self.attempts = 1
        self.answer: StoredEvent | None = None


def _model_calls(events: Sequence[StoredEvent]) -> dict[int, _ModelCall]:
    # By the sequence numbers of their starts.
    calls: dict[int, _ModelCall] = {}
    by_span: dict[str | None, _ModelCall] = {}
    last: tuple[int, _ModelCall] | None = None
    for event in events:
        if event.channel == ModelCallStartedEvent.channel:
            attempt = _attempt(event)
            call = last[1] if last is not None and attempt == last[0] + 1 else _ModelCall()
            call.attempts = attempt
            last = attempt, call
            calls[event.seq] = by_span[event.span_id] = call
        elif event.channel == InferenceGeneratedEvent.channel and event.span_id in by_span:
            by_span[event.span_id].answer = event
    return calls


def _tool_attempts(events: Sequence[StoredEvent]) -> Counter[int]:
    # By the sequence numbers of their starts, how often each was executed; what the last came to is stored.
    attempts: Counter[int] = Counter()
    started: dict[Call | None, int] = {}
    for event in events:
        if event.channel == ToolCallStartedEvent.channel:
            started[call_key(event)] = event.seq
            attempts[event.seq] = 1
        elif event.channel == GateDecisionEvent.channel and call_key(event) in started and _is_final(event):
            attempts[started[call_key(event)]] += event.payload.get("action") == "retry"
    return attempts


def _is_final(decision: StoredEvent) -> bool:
    # A shadow that raised changed nothing, and what it judged came to pass; so did what was not made again.
    payload = decision.payload
    if payload.get("action") in {"error", "retry"} and payload.get("applied") is False:
        return False
    return (str(payload.get("gate")), str(payload.get("action"))) in _NOT_AGAIN


def _attempt(event: StoredEvent) -> int:
    attempt = event.payload.get("attempt")
    return attempt if isinstance(attempt, int) else 1


def _calls_in(payload: Mapping[str, Any]) -> bool:
    return bool(as_dict(payload.get("response")).get("tool_calls"))


def _error_of(event: StoredEvent) -> BaseException:
    error = as_error(event.payload.get("error"))
    return error if isinstance(error, BaseException) else StoredError(str(error))


def _is_live(cls: Any, handler: object, cid: str | None) -> bool:
    return any(receiver.name == handler for _, _, receiver in topic_of(cls).plan_for(cid).in_order())


def _unhurried(script: Script[T]) -> Script[T]:
    # A gate's wait before it asks the model again is not worth waiting for.
    try:
        todo = next(script)
        while True:
            todo = script.send(None if isinstance(todo, Wait) else (yield todo))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # of the script's own type
