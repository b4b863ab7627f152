"""
A model and tools that answer by a script, for tests of a loop without a network.
"""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from ._readonly import thaw
from ._recorder import shown
from ._report import AwaitableWrapper
from .values import ModelResponse, ToolCall, ToolCallLike


class ModelRequest(NamedTuple):
    """
    One request that a ScriptedModel was sent.

    Attributes:
        messages: The messages, as they were then.
        settings: What else it was called with, by name.
    """

    messages: Any
    settings: Mapping[str, Any]


class InTurn:
    """
    Answers that a scripted tool gives one after another.

    Args:
        *answers: What `ScriptedTools` takes for a tool: results, exceptions, callables.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(shown, self.answers))})"


class Scripted(ABC):
    """
    What the model and the tools have in common: answers that must all be asked for, and no more of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beyond: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.assert_used_up()

    def assert_used_up(self) -> None:
        """
        Check that every answer was asked for, and nothing that there is no answer to.

        Raises:
            AssertionError: If not; the text says what is left over, or what was asked for in vain.
        """
        with self._lock:
            wrong = [*self._beyond, *self._left_over()]
        if wrong:
            raise AssertionError("\n".join(wrong))

    @abstractmethod
    def _left_over(self) -> Iterable[str]: ...

    def _in_vain(self, msg: str) -> AssertionError:
        # Noted as well: what a tool raises is its answer, and whoever calls a model may catch it.
        self._beyond.append(msg)
        return AssertionError(msg)


class ScriptedModel(Scripted):
    """
    A model that gives the answers of a script, one for each request; for Run, AsyncRun and other callers.

    An answer is a ModelResponse (or any object with its attributes), a text, a ToolCall or a list of them, an
    exception to raise, or a function of `(messages, **settings)` that returns or raises one of these; it may
    be async, for callers that await. Safe on any thread. As a context manager, it checks at the end of the
    block that the script is used up.

    Args:
        *answers: The script.

    Raises:
        TypeError: If something is no answer.

    Attributes:
        requests: What it was sent, in order, whether or not there was an answer.
    """

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.requests: list[ModelRequest] = []
        self._answers = deque(answer if _acts(answer) else _as_response(answer) for answer in answers)
        self._length = len(answers)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {len(self._answers)} of {self._length} answers left>"

    def __call__(self, messages: Any, /, **settings: Any) -> Any:
        """
        Give the next answer.

        Args:
            messages: What is sent; a copy is kept in `requests`.
            **settings: What else.

        Raises:
            AssertionError: If the script is used up.
            BaseException: What the script raises.
        """
        with self._lock:
            # The caller's list grows with its next turn.
            self.requests.append(ModelRequest(thaw(messages), thaw(settings)))
            if not self._answers:
                msg = (
                    f"The script of the model is used up (it had {self._length}); request "
                    f"{len(self.requests)} was: {shown(messages)}"
                )
                raise self._in_vain(msg)
            answer = self._answers.popleft()
        answer = _act(answer, messages, **settings)
        return _Response(answer) if inspect.isawaitable(answer) else _as_response(answer)

    def _left_over(self) -> Iterable[str]:
        if self._answers:
            left = "\n  ".join(map(shown, self._answers))
            yield (
                f"Answers of the model that were not asked for ({len(self._answers)} of {self._length}):"
                f"\n  {left}"
            )


class ScriptedTools(Scripted):
    """
    Tools that give the answers of a script; for `call_tools` of Run and AsyncRun.

    The answer of a tool is its result, an exception to raise, a function that is called with the arguments
    (sync, or async for AsyncRun), or `InTurn(...)` of these; all but the last answer any number of calls.
    Safe on any thread. As a context manager, it checks at the end of the block that all answers in turn
    were asked for, and no tool that the script does not have.

    Args:
        answers: The answer of each tool, by name.

    Attributes:
        calls: The calls that were executed, in order, whether or not there was an answer.
    """

    def __init__(self, answers: Mapping[str, Any], /) -> None:
        super().__init__()
        self.calls: list[ToolCall] = []
        self._answers = dict(answers)
        # Of its own: the same InTurn may be in another script.
        self._turns = {
            name: deque(answer.answers)
            for name, answer in self._answers.items()
            if isinstance(answer, InTurn)
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self._answers) or 'none'}>"

    def __call__(self, call: ToolCallLike, /) -> Any:
        """
        Answer one call.

        Args:
            call: The call, as it is to be executed.

        Raises:
            AssertionError: If the script has no answer to it. In a run, this too is an error that the tool
                answers with: `assert_used_up` raises it again.
            BaseException: What the script raises.
        """
        with self._lock:
            self.calls.append(ToolCall(call.id, call.name, thaw(call.input)))
            if call.name not in self._answers:
                known = ", ".join(self._answers) or "none"
                msg = f"The script has no tool {call.name!r}; it has: {known}."
                raise self._in_vain(msg)
            answer, turns = self._answers[call.name], self._turns.get(call.name)
            if turns is not None:
                if not turns:
                    msg = f"The script of the tool {call.name!r} is used up; asked for: {shown(call.input)}"
                    raise self._in_vain(msg)
                answer = turns.popleft()
        return _act(answer, **call.input)

    def _left_over(self) -> Iterable[str]:
        for name, turns in self._turns.items():
            if turns:
                yield f"Answers of the tool {name!r} that were not asked for: {', '.join(map(shown, turns))}"


class _Response(AwaitableWrapper):
    __slots__ = ()

    async def run(self) -> Any:
        """
        Return the response that is awaited.
        """
        return _as_response(await self.inner)


def _is_error(answer: Any) -> bool:
    if isinstance(answer, type):
        return issubclass(answer, BaseException)
    return isinstance(answer, BaseException)


def _is_response(answer: Any) -> bool:
    return hasattr(answer, "tool_calls") and hasattr(answer, "content")


def _acts(answer: Any) -> bool:
    return _is_error(answer) or (callable(answer) and not _is_response(answer))


def _act(answer: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _is_error(answer):
        raise answer
    return answer(*args, **kwargs) if _acts(answer) else answer


def _as_response(answer: Any) -> Any:
    if _is_response(answer):
        return answer
    if isinstance(answer, str):
        return ModelResponse(answer)
    given = shown(answer)
    calls: list[Any] = [*cast("Any", answer)] if isinstance(answer, (list, tuple)) else [answer]
    if calls and all(hasattr(call, "name") and hasattr(call, "input") for call in calls):
        return ModelResponse(tool_calls=calls)
    msg = (
        f"{given} is no answer of a model: give a ModelResponse, a text, a ToolCall or a list of them, "
        f"an exception, or a function that returns one of these."
    )
    raise TypeError(msg)
