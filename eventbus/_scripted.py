"""
A model and tools that answer by a script, for tests of a loop without a network.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from ._readonly import _rebuild
from ._recorder import is_equal, shown
from ._report import AwaitableWrapper
from .values import ModelResponse, ToolCall, ToolCallLike


class ModelRequest(NamedTuple):
    """
    One request that a ScriptedModel was sent.

    Attributes:
        messages: The messages, as they were then: dicts, lists and tuples are copied, and objects that equal
            their copy; of any other object it is the object itself.
        settings: What else it was called with, by name.
    """

    messages: Any
    settings: Mapping[str, Any]


class InTurn:
    """
    Answers that a scripted tool gives one after another.

    Args:
        *answers: What `ScriptedTools` takes for a tool: results, exceptions, callables.

    Raises:
        TypeError: If one of them is an InTurn.
    """

    def __init__(self, *answers: Any) -> None:
        for answer in answers:
            if isinstance(answer, InTurn):
                msg = f"An InTurn cannot hold another: write its answers out in place of {shown(answer)}."
                raise TypeError(msg)
        self.answers = answers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(shown, self.answers))})"


class Scripted(ABC):
    """
    What the model and the tools have in common: answers that must all be asked for, and no more of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong: list[tuple[str, AssertionError]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        if error is None:
            self.assert_used_up()
            return
        texts = self._complaints(but=error)
        if texts:
            # It may be what the script beside this one complains of. Some errors take no notes.
            with contextlib.suppress(Exception):
                error.add_note("\n".join(texts))

    def assert_used_up(self) -> None:
        """
        Check that every answer was asked for, and nothing that there is no answer to.

        Raises:
            AssertionError: If not; the text says what is left over, or what was asked for in vain. Also if a
                function of the script has raised an AssertionError: a run makes a tool's answer of it.
        """
        __tracebackhide__ = True
        texts = self._complaints()
        if texts:
            cause = self._wrong[0][1] if self._wrong else None
            raise AssertionError("\n".join(texts)) from cause

    @abstractmethod
    def _left_over(self) -> Iterable[str]: ...

    def _complaints(self, but: BaseException | None = None) -> list[str]:
        with self._lock:
            return [*(text for text, error in self._wrong if error is not but), *self._left_over()]

    def _in_vain(self, msg: str) -> AssertionError:
        # Noted as well: what a tool raises is its answer, and whoever calls a model may catch it.
        error = AssertionError(msg)
        self._wrong.append((msg, error))
        return error

    def _has_failed(self, whose: str, error: AssertionError) -> None:
        self._wrong.append((f"The function of {whose} has failed an assertion: {error}", error))

    def _act(
        self, whose: str, answer: Any, finish: Callable[[Any], Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        # Return what becomes of the answer, or of what it returns if it is a function.
        if _acts(answer) and not _is_error(answer):
            try:
                answer = answer(*args, **kwargs)
            except AssertionError as error:
                self._has_failed(whose, error)
                raise
            if inspect.isawaitable(answer):
                return _Awaited(answer, self, whose, finish)
        return finish(_raised(answer))


class ScriptedModel(Scripted):
    """
    A model that gives the answers of a script, one for each request; for Run, AsyncRun and other callers.

    An answer is a ModelResponse (or any object with its attributes), a text, a ToolCall or a list of them, an
    exception to raise, or a function of `(messages, **settings)` that returns or raises one of these; it may
    be async, for callers that await. An exception that it returns is raised. Safe on any thread. As a context
    manager, it checks at the end of the block that the script is used up.

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
        self._answers = deque(map(_checked, answers))
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
        __tracebackhide__ = True
        with self._lock:
            # The caller's list grows with its next turn.
            self.requests.append(ModelRequest(_as_now(messages), _as_now(settings)))
            if not self._answers:
                msg = (
                    f"The script of the model is used up (it had {self._length}); request "
                    f"{len(self.requests)} was: {shown(messages)}"
                )
                raise self._in_vain(msg)
            answer = self._answers.popleft()
        return self._act("the model", answer, _as_response, messages, **settings)

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
    An exception that a function returns is raised. Safe on any thread. As a context manager, it checks at the
    end of the block that all answers in turn were asked for, no tool that the script does not have, and that
    no function of the script has failed an assertion.

    Args:
        answers: The answer of each tool, by name: what `dict` takes.

    Raises:
        TypeError: If it is something else.

    Attributes:
        calls: The calls that were executed, in order, whether or not there was an answer.
    """

    def __init__(self, answers: Mapping[str, Any], /) -> None:
        super().__init__()
        self.calls: list[ToolCall] = []
        self._answers = _by_name(answers)
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
            TypeError: If its arguments are none that a function could be called with.
            BaseException: What the script raises.
        """
        __tracebackhide__ = True
        with self._lock:
            self.calls.append(ToolCall(call.id, call.name, _as_now(call.input)))
            if call.name not in self._answers:
                known = ", ".join(self._answers) or "none"
                msg = f"The script has no tool {call.name!r}; it has: {known}."
                raise self._in_vain(msg)
            _check_arguments(call)
            answer, turns = self._answers[call.name], self._turns.get(call.name)
            if turns is not None:
                if not turns:
                    msg = f"The script of the tool {call.name!r} is used up; asked for: {shown(call.input)}"
                    raise self._in_vain(msg)
                answer = turns.popleft()
        return self._act(f"the tool {call.name!r}", answer, _same, **call.input)

    def _left_over(self) -> Iterable[str]:
        for name, turns in self._turns.items():
            if turns:
                yield f"Answers of the tool {name!r} that were not asked for: {', '.join(map(shown, turns))}"


class _Awaited(AwaitableWrapper):
    """
    What an async function of a script returned.
    """

    __slots__ = ("finish", "script", "whose")

    def __init__(
        self, inner: Awaitable[Any], script: Scripted, whose: str, finish: Callable[[Any], Any]
    ) -> None:
        super().__init__(inner)
        self.script = script
        self.whose = whose
        self.finish = finish

    async def run(self) -> Any:
        """
        Return what becomes of the answer that is awaited.
        """
        try:
            answer = await self.inner
        except AssertionError as error:
            self.script._has_failed(self.whose, error)
            raise
        return self.finish(_raised(answer))


def _as_now(value: Any) -> Any:
    # The caller's list grows with its next turn, and whoever reads it later may change what is in it.
    return _rebuild(value, _copied, {})


def _copied(leaf: Any) -> Any:
    # A lock or a client may be among it; and what does not equal its copy could not be compared any more.
    try:
        copied = copy.deepcopy(leaf)
        return copied if is_equal(copied, leaf) else leaf
    except Exception:
        return leaf


def _same(answer: Any) -> Any:
    return answer


def _is_error(answer: Any) -> bool:
    if isinstance(answer, type):
        return issubclass(answer, BaseException)
    return isinstance(answer, BaseException)


def _raised(answer: Any) -> Any:
    if _is_error(answer):
        raise answer
    return answer


def _is_response(answer: Any) -> bool:
    return hasattr(answer, "tool_calls") and hasattr(answer, "content")


def _acts(answer: Any) -> bool:
    return _is_error(answer) or (callable(answer) and not _is_response(answer))


def _checked(answer: Any) -> Any:
    # What a model's script has, as it is kept.
    if _acts(answer):
        return answer
    several = answer.answers if isinstance(answer, InTurn) else answer
    if isinstance(several, (list, tuple)):
        each = cast("Sequence[Any]", several)
        if isinstance(answer, InTurn) or any(isinstance(one, str) or _is_response(one) for one in each):
            msg = (
                f"{shown(answer)} is no answer of a model, which gives its answers one after another anyway: "
                f"write ScriptedModel({', '.join(map(shown, each))})."
            )
            raise TypeError(msg)
    return _as_response(answer)


def _by_name(answers: Any) -> dict[str, Any]:
    given = shown(answers)
    try:
        pairs: list[Any] = [*cast("Any", answers).items()] if isinstance(answers, Mapping) else [*answers]
        if all(isinstance(name, str) for name, _ in pairs) and not any(
            isinstance(pair, str) for pair in pairs
        ):
            return dict(pairs)
    except (TypeError, ValueError):
        pass
    msg = (
        f"ScriptedTools needs the answer of each tool by its name, as in "
        f"ScriptedTools({{'refund': 'done'}}), not {given}."
    )
    raise TypeError(msg)


def _check_arguments(call: ToolCallLike) -> None:
    # Also where the answer is a constant: no real tool could be called so.
    if not isinstance(cast("object", call.input), Mapping):
        msg = f"The arguments of {call.name!r} must be a mapping, not {shown(call.input)}."
        raise TypeError(msg)
    if not all(isinstance(cast("object", name), str) for name in call.input):
        msg = f"The arguments of {call.name!r} must have names for keys, not {shown(call.input)}."
        raise TypeError(msg)


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
