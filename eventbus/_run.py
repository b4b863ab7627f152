"""
Run and AsyncRun: the emitting side, which keeps the books of events around an agent's loop.

What is emitted when stands in `_order`; here it is driven, on a thread or on a loop.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

from . import _clock
from ._context import correlation, correlation_id_var, new_correlation_id, new_span_id, scope_var
from ._drive import (
    Model,
    Tools,
    adrive,
    drive,
    execute,
    model_performer,
    newest,
    raise_together,
    refuse_awaitable,
    refuse_awaitables,
    scheduled_since,
    together,
    tool_performer,
)
from ._errors import RunEndedError
from ._event import Event
from ._gate import ProtectedEvent, build
from ._order import (
    as_call,
    as_result,
    begin,
    begins_alone,
    call_model,
    call_tool,
    close,
    close_tool,
    end,
    ends_alone,
    execute_tool,
    judge,
    note_tool,
    start,
    step,
    tell,
)
from ._pieces import (
    AsyncModelCallPiece,
    AsyncStepPiece,
    AsyncToolCallPiece,
    ModelCallPiece,
    PlainPiece,
    ToolCallPiece,
)
from ._readonly import freeze
from ._scheduler import Delivery
from ._steps import Ask, ModelOutcome, Opened, Raised, Script, Tell
from ._telling import Telling
from ._turns import Turns
from .catalog import (
    ContextCompactedEvent,
    InferenceChunkEvent,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
    as_agent,
)
from .values import RunInfo, ToolCall, ToolCallLike

T = TypeVar("T")
P = ParamSpec("P")

DEFAULT_RETRIES = 5

THE_RUN_S_OWN: Final = (
    InferenceStartedEvent,
    InferenceDeniedEvent,
    InferenceCompletedEvent,
    InferenceFailedEvent,
    InferenceMaxTurnsReachedEvent,
)
"""The events that say how a run begins and ends."""

_WITHIN: Final = nullcontext()

_NO_METADATA: Final = freeze({})

_adopting = threading.Lock()


class RunBase:
    """
    What plain and async runs have in common: identity, what is open, turns.

    Args:
        agent: A name, or any object with a `name`.
        message: What the run answers.
        metadata: What the caller wants every event to say of the run.
        state: What the BeforeInvocation gates may rewrite besides the message.
        correlation_id: The run's id. Without it the first run in a `correlation` scope takes the scope's,
            any other a new one.
        max_retries: How often gates may have one call retried.
    """

    # What each run sets as it goes.
    parent_id: str | None = None
    _started = 0.0
    _over = False
    _told_message: Any = None
    _begun = False
    _open = False
    _ending = False
    _scope: correlation | None = None

    def __init__(
        self,
        agent: Any = None,
        message: Any = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Any = None,
        correlation_id: str | None = None,
        max_retries: int = DEFAULT_RETRIES,
    ) -> None:
        self.agent: Any = as_agent(agent)
        self.message: Any = message
        self.state: Any = state
        self.result: Any = None
        self.turn = 0
        self.max_retries = max_retries
        self.id: str = correlation_id or ""
        self._opened: dict[object, Opened] = {}
        self._pending_calls: Sequence[ToolCallLike] = ()
        self._telling = Telling()
        self._owed: list[Delivery] = []
        self._metadata: Mapping[str, Any] = freeze(metadata) if metadata else _NO_METADATA
        self._info: RunInfo | None = None
        self._span_id: str | None = None
        self._completed = False
        self._out_of_turns = False
        self._open_turn: object = None
        self._calls_named = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "ended" if self._over else "running" if self._begun else "new"
        return f"<{type(self).__name__} {self.id or 'without id'} agent={self.agent} {state}>"

    @property
    def metadata(self) -> Mapping[str, Any]:
        """
        What the caller said of the run, read-only.
        """
        return self._metadata

    @property
    def info(self) -> RunInfo:
        """
        What every event of the run says of it.
        """
        info = self._info
        if info is None:
            info = RunInfo(self.id, self.parent_id, self.agent, self._told_message, self._metadata)
            # Before the run has begun it has no id that it could keep.
            if self._begun:
                self._info = info
        return info

    @property
    def span_id(self) -> str:
        """
        The id that the run's start and its terminal share.
        """
        span_id = self._span_id
        if span_id is None:
            with self._lock:
                span_id = self._span_id = self._span_id or new_span_id()
        return span_id

    @property
    def _turn_or_none(self) -> int | None:
        """
        The number of the current turn, from 1; None outside of any.
        """
        return self.turn or None

    def complete(self, result: Any = None) -> None:
        """
        Note that the run has reached its result; its terminal event follows when the block is left.

        Args:
            result: What InferenceCompleted will carry, after the AfterInvocation gates.
        """
        self.result = result
        self._completed = True

    def turns(self, limit: int | None = None) -> Turns:
        """
        Iterate over the turns of the run, numbered from 1, with TurnStarted and TurnCompleted around each.

        Args:
            limit: How many turns there may be; when they are used up the run ends with MaxTurnsReached,
                unless `complete` is called, in a turn or after them. None for no limit.

        Returns:
            An iterator for a plain `for` loop, in plain and async runs alike.

        Raises:
            ValueError: If `limit` is negative.
        """
        if limit is not None and limit < 0:
            msg = f"`limit` must be 0 or more turns, not {limit!r}."
            raise ValueError(msg)
        self._out_of_turns = False
        return Turns(self, limit)

    def chunk(self, chunk: Any = None, content: str | None = None, *, thread: Any = None) -> None:
        """
        Emit InferenceChunk: a piece of a streamed answer.

        Args:
            chunk: The piece as the provider sent it.
            content: Its decoded text.
            thread: The conversation it belongs to.
        """
        self._tell(
            tell(
                self, InferenceChunkEvent, agent=self.agent, thread=thread, chunk=chunk, chunk_content=content
            )
        )

    def compacted(
        self,
        strategy: str | None = None,
        before: Any = None,
        after: Any = None,
        *,
        duration: float | None = None,
    ) -> None:
        """
        Emit ContextCompacted: the messages were shortened.

        Args:
            strategy: What shortened them.
            before: What the strategy measures, before; as a rule a number of messages or tokens.
            after: The same, after.
            duration: How long it took, in seconds.
        """
        self._tell(
            tell(
                self,
                ContextCompactedEvent,
                agent=self.agent,
                strategy=strategy,
                before=before,
                after=after,
                duration=duration,
            )
        )

    def emit(self, event_class: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """
        Emit an event of your own as one of this run: with its id, and `run` among its payload.

        Args:
            event_class: An event class; of a gate, the decisions are told as those of the run's own gates.
            *args: None: every field has a name.
            **kwargs: The event's fields.

        Returns:
            The event, if it is a gate; None for an observed event, which is not told after the run's end.

        Raises:
            RunEndedError: If the run has ended, and nobody can judge the gate any more.
            TypeError: If it is an event that begins or ends a run.
            Exception: What a gate's handler raised.
        """
        gate = self._own_gate(event_class, args, kwargs)
        self._tell(self._own(event_class, gate, kwargs))
        return cast("T | None", gate)

    def _own_gate(
        self, event_class: Any, args: tuple[Any, ...], fields: dict[str, Any]
    ) -> ProtectedEvent | None:
        if args:
            msg = f"{event_class.__name__} takes keyword arguments only."
            raise TypeError(msg)
        if issubclass(event_class, THE_RUN_S_OWN):
            msg = (
                f"{event_class.__name__} is told by the run itself; to end it, call `complete` and leave its "
                f"block, or `end` where it was begun with `begin`."
            )
            raise TypeError(msg)
        self._must_have_opened()
        if issubclass(event_class, Event):
            return None
        if self._over:
            raise self._too_late()
        gate: ProtectedEvent = build(event_class, {"correlation_id": self.id, "run": self.info, **fields})
        return gate

    def _own(self, event_class: Any, gate: ProtectedEvent | None, fields: dict[str, Any]) -> Script[Any]:
        if gate is not None:
            return judge(self, gate, may_retry=True)
        return tell(self, event_class, **fields)

    def _tell(self, script: Script[Any]) -> None:
        self._must_have_opened()
        drive(script)

    def _told(self, event_class: type[Event], fields: dict[str, Any]) -> Tell | Raised | None:
        """
        Return the step of a script that emits an event of the run.

        Args:
            event_class: The event's class.
            fields: The event's, `run` and `correlation_id` among them.

        Returns:
            The step; or, where it need not be awaited, what it came to: None, or what was raised.
        """
        return Tell(self, event_class, fields)

    def _asked(self, gate: ProtectedEvent) -> Ask | Raised | None:
        """
        Return the step of a script that lets the handlers of a gate judge, or what it came to.
        """
        return Ask(gate)

    def _accept_message(self, message: Any) -> None:
        """
        Take over what the BeforeInvocation gates have made of the message.
        """
        self.message = message
        self._told_message = freeze(message)
        self._info = None

    def _open_up(self) -> None:
        """
        Let things begin in the run: no gate has refused it.
        """
        self._started = _clock.monotonic()
        self._open = True

    def _closes(self) -> bool:
        """
        Tell whoever comes first that it is he who ends the run; nothing can begin in it from now on.
        """
        with self._lock:
            if self._ending or not self._open:
                return False
            self._ending = True
            return True

    def _must_be_open(self) -> None:
        """
        Raise unless the run has begun and not ended: nothing may begin that no gate has judged.
        """
        if self._open and not self._ending:
            return
        if self._ending or self._over:
            raise self._too_late()
        self._must_have_opened()

    def _must_have_opened(self) -> None:
        if not self._open and not self._over:
            self._must_have_begun()
            msg = f"{self!r} is still being judged by its gates; nothing can begin or be told in it yet."
            raise RuntimeError(msg)

    def _must_have_begun(self) -> None:
        if not self._begun:
            msg = f"{self!r} has not begun; enter it with `with`, or make it with `begin`."
            raise RuntimeError(msg)

    def _too_late(self) -> RunEndedError:
        """
        Return the error of what comes too late.
        """
        return RunEndedError(f"{self!r} has ended; nothing can begin in it any more.")

    def _wait_for_others(self) -> None:
        """
        Wait, a bounded time, until other threads have told what they are just telling of the run.
        """
        self._telling.wait()

    async def _await_others(self) -> None:
        """
        Wait so on the running loop, for its other tasks too.
        """
        await self._telling.await_others()

    def _next_call_id(self) -> str:
        """
        Return an id for a tool call that has none.
        """
        with self._lock:
            self._calls_named += 1
            return f"call_{self._calls_named}"

    def _next_turn(self, *, last: bool) -> None:
        """
        End the current turn and begin the next; or, after the last, note that the turns are used up.
        """
        self._end_turn()
        if self._over:
            return
        if last:
            self._out_of_turns = True
            return
        self.turn += 1
        fields = {"agent": self.agent, "turn": self.turn}
        self._tell(self._start_turn(fields))

    def _start_turn(self, fields: dict[str, Any]) -> Script[None]:
        self._open_turn = yield from start(self, TurnStartedEvent, TurnCompletedEvent, fields, fails=False)

    def _end_turn(self) -> None:
        """
        End the current turn, if there is one.
        """
        span, self._open_turn = self._open_turn, None
        if span is not None:
            self._tell(close(self, span))

    def _start(self) -> None:
        if self._begun:
            msg = f"{self!r} was begun already; make a new run."
            raise RuntimeError(msg)
        self._begun = True
        scope, current = scope_var.get(), correlation_id_var.get()
        if self.message is not None:
            self._told_message = freeze(self.message)
        if scope is not None:
            with _adopting:
                if not scope.adopted and self.id in ("", scope.cid):
                    scope.adopted = True
                    self.id, self.parent_id = scope.cid, scope.parent
                    return
        self.id = self.id or new_correlation_id()
        self.parent_id = current if current != self.id else None

    def _open_scope(self) -> None:
        self._scope = correlation(self.id, self.parent_id)
        self._scope.adopted = True
        self._scope.__enter__()

    def _within(self) -> AbstractContextManager[object]:
        """
        Return what makes this run's the ambient id, for what is called in it; nothing, where it is already.
        """
        scope = scope_var.get()
        if scope is not None and scope.adopted and scope.cid == self.id:
            return _WITHIN
        scope = correlation(self.id, self.parent_id)
        scope.adopted = True
        return scope

    def _close_scope(self) -> None:
        if self._scope is not None:
            self._scope.__exit__(None, None, None)
            self._scope = None

    def _closing(self, error: BaseException | None, *, max_turns: bool) -> Script[BaseException | None]:
        return end(self, error=error, max_turns=max_turns or (self._out_of_turns and not self._completed))

    def _ends_with(self, result: Any) -> bool:
        # Whether it is this `end` that ends the run; a later one changes nothing.
        if not self._open and not self._over:
            self._must_have_begun()
            msg = f"{self!r} is still being judged by its gates; a gate refuses it with `cancel`."
            raise RuntimeError(msg)
        closes = self._closes()
        if closes and result is not None:
            self.result = result
        return closes

    def _model_script(
        self,
        messages: Any,
        tools: Any,
        model: str | None,
        settings: Mapping[str, Any],
        max_retries: int,
    ) -> Script[ModelOutcome]:
        return call_model(
            self, messages, tools=tools, model=model, settings=settings, max_retries=max_retries
        )


class Run(RunBase):
    """
    One run of an agent: a context manager that emits its events around the loop inside.

    The block's end is the run's: InferenceCompleted after `complete`, or without a result where the block
    ends or breaks without it; InferenceMaxTurnsReached when the turns are used up; InferenceFailed for any
    exception, which goes on.

    Args:
        agent: A name, or any object with a `name`.
        message: What the run answers.
        metadata: What the caller wants every event to say of the run.
        state: What the BeforeInvocation gates may rewrite besides the message.
        correlation_id: The run's id. Without it the first run in a `correlation` scope takes the scope's,
            any other a new one.
        max_retries: How often gates may have one call retried.

    Raises:
        RunRefused: From entering, if a gate refuses the run.
    """

    def _told(self, event_class: type[Event], fields: dict[str, Any]) -> Raised | None:
        """
        Emit an event of the run at once.
        """
        try:
            event_class.emit(**fields)
        except BaseException as error:
            return Raised(error)
        return None

    def _asked(self, gate: ProtectedEvent) -> Raised | None:
        """
        Let the handlers of a gate judge at once.
        """
        try:
            gate.publish()
        except BaseException as error:
            return Raised(error)
        return None

    def __enter__(self) -> Self:
        self._start()
        self._open_scope()
        try:
            if not begins_alone(self):
                drive(begin(self))
        except BaseException:
            self._close_scope()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._closes() and not ends_alone(self):
                self._finish(error)
        finally:
            self._close_scope()

    def _finish(self, error: BaseException | None, *, max_turns: bool = False) -> None:
        raised = drive(self._closing(error, max_turns=max_turns))
        if raised is not None:
            raise raised

    @classmethod
    def begin(
        cls,
        agent: Any = None,
        message: Any = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Any = None,
        correlation_id: str | None = None,
        max_retries: int = DEFAULT_RETRIES,
    ) -> Self:
        """
        Begin a run that `end` will end, from this or another thread or task; for hosts that only call back.

        The ambient id is the run's in its tools, models and pieces only: what such a host emits elsewhere
        should go through `run.emit`.

        Args:
            agent: As for the class.
            message: As for the class.
            metadata: As for the class.
            state: As for the class.
            correlation_id: As for the class.
            max_retries: As for the class.

        Raises:
            RunRefused: If a gate refuses the run.
        """
        run = cls(
            agent,
            message,
            metadata=metadata,
            state=state,
            correlation_id=correlation_id,
            max_retries=max_retries,
        )
        run._start()
        drive(begin(run))
        return run

    def end(self, result: Any = None, error: BaseException | None = None, *, max_turns: bool = False) -> None:
        """
        End a run begun with `begin`; once: later calls change nothing. What is still open is closed first.

        What other threads are telling of the run just then is waited for, for 1 s at most in all; what takes
        its observers longer may reach the later of them after the terminal.

        Args:
            result: What the run came to.
            error: What it failed with.
            max_turns: Whether its turns were used up.

        Raises:
            Exception: What an AfterInvocation gate raised.
        """
        if self._ends_with(result):
            self._finish(error, max_turns=max_turns)

    def call_model(
        self,
        call: Model,
        messages: Any,
        /,
        *,
        tools: Any = None,
        model: str | None = None,
        **settings: Any,
    ) -> Any:
        """
        Ask the model, through its gates, with its events.

        Args:
            call: A callable of `(messages, **settings)`; `tools` and `model` are among the settings if given.
            messages: What to send.
            tools: The tool schemas to offer.
            model: The model's name.
            **settings: What else the callable takes; gates may rewrite these.

        Returns:
            The response: a ModelResponse, or any object with its attributes.

        Raises:
            ModelCallRefused: If a gate refuses.
            Exception: What the model raised, after its events.
        """
        given = model_settings(tools, model, settings)
        script = self._model_script(messages, tools, model, given, self.max_retries)
        with self._within():
            return response_of(drive(script, refuse_awaitables(model_performer(call, messages, given))))

    def model_call(
        self, messages: Any, /, *, tools: Any = None, model: str | None = None, **settings: Any
    ) -> ModelCallPiece:
        """
        Do everything around a model call that you make yourself, in a `with` block.

        Args:
            messages: What to send, for the gates to judge.
            tools: The tool schemas to offer.
            model: The model's name.
            **settings: What else is sent.

        Returns:
            A context manager with `messages`, `settings`, `answer` and `set(response)`.

        Raises:
            ModelCallRefused: From entering, if a gate refuses.
        """
        given = model_settings(tools, model, settings)
        return ModelCallPiece(self, self._model_script(messages, tools, model, given, 0))

    def call_tools(
        self, calls: Iterable[ToolCallLike], tools: Tools, *, parallel: int = 1
    ) -> list[tuple[ToolCall, Any]]:
        """
        Call tools, each through its gates, with its events; all of them before it returns.

        Args:
            calls: ToolCalls, or objects with their attributes; one without id gets one.
            tools: A mapping of names to callables that take the arguments as keywords, or one callable of the
                call. They receive plain dicts and lists of their own.
            parallel: How many threads to use, with the context carried; 1 for this one.

        Returns:
            Pairs of call and result, in the order of the calls. What a tool raises, and why it was refused,
            is the `error` of its result.

        Raises:
            Exception: What a gate raised; an ExceptionGroup where several calls met one.
        """
        ours = [as_call(self, call) for call in calls]
        with self._within():
            if parallel <= 1 or len(ours) <= 1:
                return [(call, self._call_tool(call, tools)) for call in ours]
            from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

            with ThreadPoolExecutor(min(parallel, len(ours)), thread_name_prefix="eventbus-tool") as pool:
                futures = [
                    pool.submit(contextvars.copy_context().run, self._call_tool, call, tools) for call in ours
                ]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:
                    # After a gate's failure, or an interrupt, what has not begun does not begin any more.
                    for future in futures:
                        future.cancel()
        errors = [error for f in futures if not f.cancelled() and (error := f.exception()) is not None]
        raise_together(errors)
        return [(call, future.result()) for call, future in zip(ours, futures, strict=True)]

    def _call_tool(self, call: ToolCall, tools: Tools) -> Any:
        span = note_tool(self, call)
        if span is None:
            script = call_tool(self, call, max_retries=self.max_retries)
            return drive(script, refuse_awaitables(tool_performer(tools))).result
        done: Any = None
        try:
            try:
                done = refuse_awaitable(execute(tools, call))
            except BaseException as error:
                done = Raised(error)
            else:
                if close_tool(self, span):
                    return as_result(done)
            script = execute_tool(self, call, span, self.max_retries, done=done)
            return drive(script, refuse_awaitables(tool_performer(tools))).result
        finally:
            # What is raised keeps this frame in its traceback, which must not keep it in turn.
            del done

    def tool_call(self, call: ToolCallLike, /) -> ToolCallPiece:
        """
        Do everything around a tool call that you make yourself, in a `with` block.

        Args:
            call: A ToolCall, or an object with its attributes.

        Returns:
            A context manager with `arguments`, `answer` and `set(result)`.

        Raises:
            ToolCallRefused: From entering, if a gate refuses.
        """
        ours = as_call(self, call)
        return ToolCallPiece(self, call_tool(self, ours, max_retries=0), ours)

    def step(self, name: str) -> PlainPiece:
        """
        Emit the events of a named piece of work around a `with` block.

        Args:
            name: What the step is called.
        """
        return PlainPiece(self, step(self, name))


class AsyncRun(RunBase):
    """
    The twin of Run for async code: `async with AsyncRun(...) as run`.

    Handlers are awaited in their order; models and tools may be sync or async, sync ones run on the loop's
    thread. The arguments are those of Run.

    Raises:
        RunRefused: From entering, if a gate refuses the run.
    """

    async def __aenter__(self) -> Self:
        self._start()
        self._open_scope()
        try:
            if not begins_alone(self):
                await adrive(begin(self))
        except BaseException:
            self._close_scope()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._closes() and not ends_alone(self):
                await self._finish(error)
        finally:
            self._close_scope()

    async def _finish(self, error: BaseException | None, *, max_turns: bool = False) -> None:
        script = self._closing(error, max_turns=max_turns)
        # A coroutine that is being closed must not wait any more.
        raised = drive(script) if isinstance(error, GeneratorExit) else await adrive(script)
        if raised is not None:
            raise raised

    @contextmanager
    def _owing(self) -> Generator[None]:
        """
        Note the async handlers that are scheduled inside, for the next that is awaited to come after them.
        """
        last = newest()
        try:
            yield
        finally:
            self._owed += scheduled_since(last, self.id)

    def _tell(self, script: Script[Any]) -> None:
        with self._owing():
            super()._tell(script)

    @classmethod
    async def begin(
        cls,
        agent: Any = None,
        message: Any = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Any = None,
        correlation_id: str | None = None,
        max_retries: int = DEFAULT_RETRIES,
    ) -> Self:
        """
        Begin a run that `end` will end, from this or another task; see `Run.begin`.
        """
        run = cls(
            agent,
            message,
            metadata=metadata,
            state=state,
            correlation_id=correlation_id,
            max_retries=max_retries,
        )
        run._start()
        await adrive(begin(run))
        return run

    async def end(
        self, result: Any = None, error: BaseException | None = None, *, max_turns: bool = False
    ) -> None:
        """
        End a run begun with `begin`, once; see `Run.end`. What other tasks are telling is waited for as well.
        """
        if self._ends_with(result):
            await self._finish(error, max_turns=max_turns)

    async def aemit(self, event_class: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """
        Emit an event of your own as one of this run, awaiting its handlers; see `emit`.
        """
        gate = self._own_gate(event_class, args, kwargs)
        await adrive(self._own(event_class, gate, kwargs))
        return cast("T | None", gate)

    async def call_model(
        self,
        call: Model,
        messages: Any,
        /,
        *,
        tools: Any = None,
        model: str | None = None,
        **settings: Any,
    ) -> Any:
        """
        Ask the model, sync or async, through its gates, with its events; see `Run.call_model`.
        """
        given = model_settings(tools, model, settings)
        script = self._model_script(messages, tools, model, given, self.max_retries)
        with self._within():
            return response_of(await adrive(script, model_performer(call, messages, given)))

    def model_call(
        self, messages: Any, /, *, tools: Any = None, model: str | None = None, **settings: Any
    ) -> AsyncModelCallPiece:
        """
        Do everything around a model call of your own, in an `async with` block; see `Run.model_call`.
        """
        given = model_settings(tools, model, settings)
        return AsyncModelCallPiece(self, self._model_script(messages, tools, model, given, 0))

    async def call_tools(
        self, calls: Iterable[ToolCallLike], tools: Tools, *, parallel: int = 1
    ) -> list[tuple[ToolCall, Any]]:
        """
        Call tools, sync or async, each through its gates, with its events; see `Run.call_tools`.

        Args:
            calls: ToolCalls, or objects with their attributes; one without id gets one.
            tools: A mapping of names to callables, or one callable of the call.
            parallel: How many tasks to use; 1 for this one. A call whose own task is cancelled fails, and its
                siblings go on; when the caller is cancelled, all are.

        Returns:
            Pairs of call and result, in the order of the calls.
        """
        perform = tool_performer(tools)
        ours = [as_call(self, call) for call in calls]

        async def one(call: ToolCall) -> Any:
            return (await adrive(call_tool(self, call, max_retries=self.max_retries), perform)).result

        with self._within():
            if parallel <= 1 or not ours:
                return [(call, await one(call)) for call in ours]
            return list(zip(ours, await together(one, ours, parallel), strict=True))

    def tool_call(self, call: ToolCallLike, /) -> AsyncToolCallPiece:
        """
        Do everything around a tool call of your own, in an `async with` block; see `Run.tool_call`.
        """
        ours = as_call(self, call)
        return AsyncToolCallPiece(self, call_tool(self, ours, max_retries=0), ours)

    def step(self, name: str) -> AsyncStepPiece:
        """
        Emit the events of a named piece of work around a `with` or `async with` block.
        """
        return AsyncStepPiece(self, step(self, name))


def model_settings(tools: Any, model: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return what a model callable is given besides the messages.
    """
    given = dict(settings)
    if tools is not None:
        given["tools"] = tools
    if model is not None:
        given["model"] = model
    return given


def response_of(outcome: ModelOutcome) -> Any:
    """
    Return the model's response, or raise its error.
    """
    if outcome.error is None:
        return outcome.response
    try:
        raise outcome.error
    finally:
        del outcome
