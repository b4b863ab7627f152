"""
The pieces of a run, for loops owned by somebody else: everything around a call that the caller makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from ._drive import Done, Resume, aadvance, advance
from ._readonly import thaw
from ._steps import ModelOutcome, Perform, Raised, Script, ToolOutcome
from ._verdict import shown
from .values import ToolCall

if TYPE_CHECKING:
    from ._run import AsyncRun, RunBase


class Piece:
    """
    A part of a run around a call that the caller makes: its script waits at the call while the block runs.
    """

    _scope: AbstractContextManager[object] = nullcontext()

    def __init__(self, run: RunBase, script: Script[Any]) -> None:
        self._run = run
        self._script = script
        self._entered = False
        self._waits = False
        self._value: Any = None
        self._failure: BaseException | None = None

    def _enter(self) -> None:
        if self._entered:
            msg = f"This {type(self).__name__} was entered already; make a new one for each call."
            raise RuntimeError(msg)
        self._entered = True
        self._scope = self._run._within()
        self._scope.__enter__()

    def _leave(self) -> None:
        scope, self._scope = self._scope, nullcontext()
        scope.__exit__(None, None, None)

    def __del__(self) -> None:
        # Of one that was entered and never left, the ambient id is not to stay.
        self._leave()

    def _reached(self, reached: Perform | Done) -> None:
        # Subclasses read from it what the block, or whoever comes after it, wants to know.
        self._waits = isinstance(reached, Perform)

    def _resume(self, error: BaseException | None) -> Resume | None:
        if not self._waits:
            return None
        self._waits = False
        return partial(self._script.send, self._value if error is None else Raised(error))

    def _set(self, value: Any) -> None:
        if not self._waits:
            msg = "There is nothing to set: the block was not entered or was left, or a gate has answered."
            raise RuntimeError(msg)
        self._value = value
        self._failure = value.error if isinstance(value, Raised) else None

    def fail(self, error: BaseException) -> None:
        """
        Say that the call has failed, where no exception leaves the block: a host's callback has told of it.

        The events are those of an exception, and leaving the block raises nothing.

        Args:
            error: What it failed with.

        Raises:
            RuntimeError: If a gate has answered, or the block was left.
            TypeError: If `error` is no exception.
        """
        if not isinstance(cast("object", error), BaseException):
            text = shown(error)
            msg = (
                f"`fail` takes an exception, not {text}; pass one that says it, such as RuntimeError({text})."
            )
            raise TypeError(msg)
        self._set(Raised(error))


class PlainPiece(Piece):
    """
    A piece of a plain run, for `with`.
    """

    def __enter__(self) -> Self:
        self._enter()
        try:
            self._reached(advance(self._script, None))
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        resume = self._resume(error)
        try:
            if resume is None:
                return
            self._reached(advance(self._script, resume))
        except BaseException as raised:
            if raised is not error and raised is not self._failure:
                raise
            # The block's own goes on by itself, as it came.
            raised.__traceback__ = trace
        finally:
            del resume
            self._leave()


class AsyncPiece(Piece):
    """
    A piece of an async run, for `async with`.
    """

    async def __aenter__(self) -> Self:
        self._enter()
        try:
            self._reached(await aadvance(self._script, None))
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        resume = self._resume(error)
        try:
            if resume is None:
                return
            if isinstance(error, GeneratorExit):
                # The coroutine is being closed, and must not wait any more.
                self._reached(advance(self._script, resume))
            else:
                self._reached(await aadvance(self._script, resume))
        except BaseException as raised:
            if raised is not error and raised is not self._failure:
                raise
            raised.__traceback__ = trace
        finally:
            del resume
            self._leave()


class _ModelPiece(Piece):
    """
    What a piece around a model call knows.

    Attributes:
        messages: What to send, after the gates.
        settings: The settings to send it with, after the gates.
        answer: The answer a gate has given, so that nothing is to be called; else None.
        response: What the model call came to, after the block and the gates.
    """

    messages: Any = None
    settings: Mapping[str, Any] = {}
    answer: Any = None
    response: Any = None

    def _reached(self, reached: Perform | Done) -> None:
        super()._reached(reached)
        if isinstance(reached, Perform):
            self.messages, self.settings = thaw(reached.subject), thaw(reached.settings)
            return
        outcome: ModelOutcome = reached.value
        self.response = outcome.response
        if outcome.answered:
            self.answer = outcome.response

    def set(self, response: Any) -> None:
        """
        Say what the model answered.

        Args:
            response: A ModelResponse, or any object with its attributes; what is set last counts.

        Raises:
            RuntimeError: If a gate has answered, or the block was left.
        """
        self._set(response)


class _ToolPiece(Piece):
    """
    What a piece around a tool call knows.

    Attributes:
        call: The call as it will be executed.
        arguments: Its arguments, after the gates: plain dicts and lists of your own.
        answer: The result a gate has given, so that nothing is to be executed; else None.
        result: What the call came to, after the block and the gates.
    """

    call: ToolCall
    answer: Any = None
    result: Any = None

    def __init__(self, run: RunBase, script: Script[ToolOutcome], call: ToolCall) -> None:
        super().__init__(run, script)
        self.call = call
        self.arguments: Any = thaw(call.input)

    def _reached(self, reached: Perform | Done) -> None:
        super()._reached(reached)
        if isinstance(reached, Perform):
            self.call = reached.subject
            self.arguments = thaw(self.call.input)
            return
        outcome: ToolOutcome = reached.value
        if outcome.refused is not None:
            raise outcome.refused
        self.result = outcome.result
        if outcome.answered:
            self.answer = outcome.result

    def set(self, result: Any) -> None:
        """
        Say what the tool returned.

        Args:
            result: A ToolResult, or the data of one; what is set last counts.

        Raises:
            RuntimeError: If a gate has answered, or the block was left.
        """
        self._set(result)


class ModelCallPiece(_ModelPiece, PlainPiece):
    """
    A model call that the caller makes, in a plain run.
    """


class AsyncModelCallPiece(_ModelPiece, AsyncPiece):
    """
    A model call that the caller makes, in an async run.
    """


class ToolCallPiece(_ToolPiece, PlainPiece):
    """
    A tool call that the caller makes, in a plain run.
    """


class AsyncToolCallPiece(_ToolPiece, AsyncPiece):
    """
    A tool call that the caller makes, in an async run.
    """


class AsyncStepPiece(PlainPiece, AsyncPiece):
    """
    A named piece of work in an async run, for `with` and `async with`.
    """

    _run: AsyncRun

    def __enter__(self) -> Self:
        with self._run._owing():
            return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._run._owing():
            super().__exit__(kind, error, trace)
