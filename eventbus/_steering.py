"""
SteeringHook: a judge of the user's says of each tool call whether it goes ahead.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, cast

import attrs

from ._context import carry_context
from ._drive import cancel
from ._event import Event
from ._hook import is_abstract, on
from ._policy import (
    Locked,
    PolicyHook,
    Recent,
    flag,
    function,
    listed,
    misfit,
    names,
    number,
    optional,
    report,
    setting,
    text,
    warn,
)
from ._priority import Priority
from ._report import AwaitableWrapper
from ._retrying import is_blank
from ._verdict import name_of, shown, text_of
from .gates import AfterModelCallEvent, ApproveToolCallEvent
from .values import ModelResponse, RunInfo, ToolCall

Gate: TypeAlias = ApproveToolCallEvent | AfterModelCallEvent
Action: TypeAlias = Literal["proceed", "guide", "interrupt", "deny"]

_DECISIONS: Final = 1000
_CALLS: Final = 20
_RUNS: Final = 10_000
_OVERDUE: Final = 8
_LONGEST: Final = 1000

APPROVAL: Final = "REQUIRES APPROVAL: "
"""How a refusal begins that a person may lift."""


@attrs.frozen
class SteeringRequest:
    """
    What a judge is asked.

    Attributes:
        policy: The hook's policy.
        tool_call: The call, with the arguments as they will be executed; None where a response is judged.
        response: The model's response; None where a call is judged.
        run: The run, with its agent, message and metadata; None outside of one.
        calls: The last calls of the run that came this far before, refused ones too, the oldest first.
    """

    policy: str
    tool_call: ToolCall | None
    response: Any
    run: RunInfo | None
    calls: Sequence[ToolCall]

    @property
    def arguments(self) -> Mapping[str, Any]:
        """
        The arguments as they will be executed; empty where a response is judged.
        """
        return {} if self.tool_call is None else self.tool_call.input


@attrs.frozen
class SteeringDecision:
    """
    What a steering hook has decided, and why.

    Attributes:
        action: "proceed", "guide", "interrupt", or "deny" because the judge failed.
        reason: The judge's words, or the hook's; None if it gave none.
        tool: The name of the tool; None for a response.
        call_id: The id of the call.
        correlation_id: The run.
        error: How the judge failed; None if it did not.
    """

    action: Action
    reason: str | None
    tool: str | None
    call_id: str | None
    correlation_id: str | None
    error: str | None = None


class RecentCalls(Locked):
    """
    The last calls of each run, until its end. Every method is safe to call from any thread.
    """

    __slots__ = ("by_run",)

    def __init__(self) -> None:
        super().__init__()
        self.by_run: OrderedDict[str, deque[ToolCall]] = OrderedDict()

    def get(self, cid: str | None) -> tuple[ToolCall, ...]:
        """
        Return the calls of a run, the oldest first; none for what belongs to no run.
        """
        with self._lock:
            return tuple(self.by_run.get(cid, ())) if cid is not None else ()

    def add(self, cid: str | None, call: ToolCall) -> tuple[ToolCall, ...]:
        """
        Add a call, and return those before it. Beyond 10,000 runs the one that called least recently goes.
        """
        if cid is None:
            return ()
        with self._lock:
            calls = self.by_run.pop(cid, None) or deque(maxlen=_CALLS)
            before = tuple(calls)
            calls.append(call)
            self.by_run[cid] = calls
            if len(self.by_run) > _RUNS:
                self.by_run.popitem(last=False)
        return before

    def forget(self, cid: str | None) -> None:
        """
        Let go of a run.
        """
        with self._lock:
            self.by_run.pop(cid or "", None)


class Threads(Locked):
    """
    Runs what may take too long on a thread of its own, and lets go of it when its time is up.

    A thread cannot be stopped: it goes on by itself, and what it comes to is ignored. Once eight are left to
    themselves, no more are begun until some of them end.
    """

    __slots__ = ("_overdue",)

    def __init__(self) -> None:
        super().__init__()
        self._overdue: list[threading.Thread] = []

    def run(self, call: Callable[[], Any], seconds: float) -> Any:
        """
        Return what `call` returns, in the caller's context.

        Raises:
            TimeoutError: If it takes longer than `seconds`, or if too many others still do.
            BaseException: What it raises.
        """
        if self._left() >= _OVERDUE:
            msg = f"{_OVERDUE} earlier calls of the judge have not returned yet, and it is not asked again."
            raise TimeoutError(msg)
        done: list[tuple[Any, BaseException | None]] = []

        def work() -> None:
            try:
                done.append((call(), None))
            except BaseException as error:
                done.append((None, error))

        thread = threading.Thread(target=carry_context(work), name="eventbus-judge", daemon=True)
        thread.start()
        try:
            thread.join(min(seconds, threading.TIMEOUT_MAX))
        finally:
            if not done:
                with self._lock:
                    self._overdue.append(thread)
        if not done:
            raise _too_long(seconds)
        result, error = done[0]
        try:
            if error is not None:
                raise error
            return result
        finally:
            # The traceback keeps this frame, which must not keep it in turn.
            done.clear()
            del error

    def _left(self) -> int:
        with self._lock:
            self._overdue = [thread for thread in self._overdue if thread.is_alive()]
            return len(self._overdue)


asking: ContextVar[tuple[type, ...]] = ContextVar("eventbus_asking", default=())
"""The hooks whose judges are being asked here, so that none is asked about what it does itself."""


class Answering(AwaitableWrapper):
    """
    Awaits what an async judge returned, and does as it says.
    """

    __slots__ = ("event", "hook")

    def __init__(self, inner: Awaitable[Any], hook: SteeringHook, event: Gate) -> None:
        super().__init__(inner)
        self.hook = hook
        self.event = event

    async def run(self) -> None:
        """
        Await the judge, in a task that is let go of when its time is up.
        """
        try:
            answer = await self._answer()
        except Exception as error:
            self.hook._failed(self.event, error)
        else:
            self.hook._finish(self.event, answer)

    async def _answer(self) -> Any:
        seconds = self.hook.judge_timeout
        token = asking.set((*asking.get(), type(self.hook)))
        try:
            task = asyncio.ensure_future(self.inner)
        finally:
            asking.reset(token)
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            if not task.done():
                task.add_done_callback(_ignore)
                cancel([task])
        if not task.done():
            raise _too_long(seconds)
        if task.cancelled():
            msg = "the judge was cancelled"
            raise RuntimeError(msg)
        return task.result()


def _ignore(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _too_long(seconds: float | None) -> TimeoutError:
    return TimeoutError(f"the judge took longer than {seconds:g} s")


def is_async(judge: Callable[..., Any]) -> bool:
    """
    Tell whether a judge is an async function, a partial of one, or an object that is called like one.
    """
    return inspect.iscoroutinefunction(judge) or inspect.iscoroutinefunction(type(judge).__call__)


class Verdict(NamedTuple):
    """
    What a judge has answered.
    """

    action: Action
    words: str | None


def verdict_of(answer: object) -> Verdict:
    """
    Return what a judge's answer means.

    Raises:
        TypeError: If it means nothing.
    """
    parts = _parts(answer)
    if 1 <= len(parts) <= 2 and all(isinstance(part, str) for part in parts):
        action = parts[0].strip().lower()
        words = parts[1] if parts[1:] and parts[1].strip() else None
        if action in ("proceed", "interrupt") or (action == "guide" and words is not None):
            return Verdict(cast("Action", action), words)
    msg = (
        f"the judge answered {shown(answer)[:_LONGEST]}; it must answer "
        '"proceed", ("guide", words) or ("interrupt", reason).'
    )
    raise TypeError(msg)


def _parts(answer: object) -> Sequence[Any]:
    if isinstance(answer, str):
        return (answer,)
    return cast("Sequence[Any]", answer) if isinstance(answer, (list, tuple)) else ()


def _flag_or_names(where: str, value: Any) -> bool | frozenset[str]:
    if isinstance(value, bool):
        return value
    if listed(value) is None:
        misfit(where, 'True, False or a collection of names, as in {"shell"}', value)
    return names(where, value)


def _handler_of(event: Gate) -> str:
    return "steer" if isinstance(event, ApproveToolCallEvent) else "steer_response"


def _subject_of(event: Gate) -> str:
    return name_of(event.tool_call) if isinstance(event, ApproveToolCallEvent) else "this response"


def _withhold(event: AfterModelCallEvent, text: str, *, again: bool) -> None:
    # Whether or not the retry is granted, what was said does not get out.
    said = event.response
    event.response = ModelResponse(
        text, model=getattr(said, "model", None), usage=getattr(said, "usage", None)
    )
    if again:
        event.retry = event.retry or True
        event.reason = text


class SteeringHook(PolicyHook):
    """
    Ask a judge of yours about each tool call: it goes ahead, is refused with advice, or waits for a person.

    A judge is advice: what it has not understood, it lets pass. `interrupt_tools` is structure: it asks none.

    A judge is a function of a `SteeringRequest`, sync or async. It answers "proceed", ("guide", words) or
    ("interrupt", reason). One that raises, takes too long or answers anything else has failed, and the call
    is refused, unless `fail_open` is True.

    An async judge is awaited; under a plain Run on the background loop, and on a running loop only under
    AsyncRun. A sync one runs on a thread of its own, with the caller's context, while the caller waits.
    """

    abstract = True
    priority = Priority.SECURITY

    judge: Any = setting(None, optional(function), arguments=("request",))
    """Who is asked; without one, only `interrupt_tools` count."""

    policy: ClassVar[str] = setting("", text)
    """What the judge is to go by, in words."""

    interrupt_tools: ClassVar[Any] = setting((), names)
    """Tools that always need a person's approval; the judge is not asked."""

    judge_tools: ClassVar[Any] = setting(default=True, check=_flag_or_names)
    """Whether tool calls are judged, or the names of those tools that are."""

    judge_responses: ClassVar[bool] = setting(default=False, check=flag)
    """Whether what the model says is judged, too."""

    fail_open: ClassVar[bool] = setting(default=False, check=flag)
    """Whether a call goes ahead when the judge fails."""

    judge_timeout: ClassVar[float | None] = setting(30.0, optional(number(0.001, "seconds")))
    """Seconds a judge may take; None: as long as it likes, a sync one then on the caller's thread."""

    _decisions: ClassVar[Recent[SteeringDecision]]
    _calls: ClassVar[RecentCalls]
    _threads: ClassVar[Threads]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls._decisions, cls._calls, cls._threads = Recent(_DECISIONS), RecentCalls(), Threads()
        super().__init_subclass__(**kwargs)

    @classmethod
    def _settled(cls) -> None:
        if cls.judge is not None or is_abstract(cls):
            return
        for name in ("policy", "judge_responses"):
            if getattr(cls, name):
                msg = (
                    f"{cls.__qualname__}.{name} needs a `judge` to go by it; without one, nothing is judged."
                )
                raise TypeError(msg)
        if not cls.interrupt_tools:
            msg = f"{cls.__qualname__} has neither a `judge` nor `interrupt_tools`, and would steer nothing."
            raise TypeError(msg)

    @classmethod
    def decisions(cls) -> tuple[SteeringDecision, ...]:
        """
        Return the last 1,000 decisions of this hook, the oldest first. Safe to call from any thread.
        """
        return cls._decisions.all()

    @on(ApproveToolCallEvent)
    def steer(self, event: ApproveToolCallEvent) -> Awaitable[None] | None:
        """
        Judge a tool call, with the arguments as they will be executed.
        """
        call = ToolCall(str(event.tool_call.id), name_of(event.tool_call), event.arguments)
        calls = self._calls.add(event.correlation_id, call)
        if event.denied:
            return None
        if call.name in self.interrupt_tools:
            self._apply(event, "interrupt", None)
        elif self.judge is not None and (self.judge_tools is True or call.name in (self.judge_tools or ())):
            return self._judge(event, SteeringRequest(self.policy, call, None, event.run, calls))
        return None

    @on(AfterModelCallEvent)
    def steer_response(self, event: AfterModelCallEvent) -> Awaitable[None] | None:
        """
        Judge what the model says; its tool calls are judged one by one when they come.
        """
        response = event.response
        if not self.judge_responses or self.judge is None or is_blank(getattr(response, "content", None)):
            return None
        calls = self._calls.get(event.correlation_id)
        return self._judge(event, SteeringRequest(self.policy, None, response, event.run, calls))

    @classmethod
    def _accepts_in__forget(cls, event_class: type[Event]) -> bool:
        return event_class.ends_run

    @on(Event)
    def _forget(self, event: Event) -> None:
        self._calls.forget(event.correlation_id)

    def _judge(self, event: Gate, request: SteeringRequest) -> Awaitable[None] | None:
        try:
            answer = self._ask(request)
        except Exception as error:
            self._failed(event, error)
            return None
        if inspect.isawaitable(answer):
            return Answering(answer, self, event)
        self._finish(event, answer)
        return None

    def _ask(self, request: SteeringRequest) -> Any:
        cls = type(self)
        if cls in asking.get():
            msg = f"{cls.__qualname__} cannot judge what its own judge does."
            raise RuntimeError(msg)
        token = asking.set((*asking.get(), cls))
        try:
            judge: Callable[[SteeringRequest], Any] = self.judge
            if self.judge_timeout is None or is_async(judge):
                return judge(request)
            return self._threads.run(lambda: judge(request), self.judge_timeout)
        finally:
            asking.reset(token)

    def _finish(self, event: Gate, answer: object) -> None:
        try:
            action, words = verdict_of(answer)
        except TypeError as error:
            self._failed(event, error)
        else:
            self._apply(event, action, words)

    def _failed(self, event: Gate, error: Exception) -> None:
        handler = _handler_of(event)
        report(self, handler, event, error)
        said = f"{type(error).__name__}: {text_of(error)}"[:_LONGEST]
        reason = f"the judge failed ({type(error).__name__})"
        if self.fail_open:
            self._note(event, "proceed", reason, said)
            warn(self, handler, event, f"{reason}, and fail_open lets it pass")
        else:
            self._apply(event, "deny", reason, said)

    def _apply(self, event: Gate, action: Action, words: str | None, error: str | None = None) -> None:
        reason = words
        if action == "interrupt":
            reason = APPROVAL + (words or f"{_subject_of(event)} needs a person's approval")
        if action == "deny":
            reason = f"{_subject_of(event)} is held back: {words}"
        if action != "proceed" and reason is not None:
            if isinstance(event, ApproveToolCallEvent):
                event.denied = reason
            else:
                _withhold(event, reason, again=action == "guide")
        self._note(event, action, words if action == "proceed" else reason, error)

    def _note(self, event: Gate, action: Action, reason: str | None, error: str | None) -> None:
        call = event.tool_call if isinstance(event, ApproveToolCallEvent) else None
        self._decisions.add(
            SteeringDecision(
                action=action,
                reason=None if reason is None else reason[:_LONGEST],
                tool=None if call is None else name_of(call),
                call_id=None if call is None else str(call.id),
                correlation_id=event.correlation_id,
                error=error,
            )
        )
