"""
The frozen values that the events of the catalog carry, and protocols for objects that may stand in for them.

Dicts and lists in a value are read-only copies of what it was made of: still a `dict` and a `list` to whoever
reads them, and a TypeError to whoever writes. Values are compared by value; they can be copied, pickled and
matched by position. All of it is safe on any thread.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from ._readonly import ReadOnlyDict, ReadOnlyList, freeze

__all__ = [
    "Agent",
    "AgentLike",
    "Message",
    "ModelResponse",
    "ModelResponseLike",
    "RunInfo",
    "ToolCall",
    "ToolCallLike",
    "ToolResult",
    "ToolResultLike",
]


class AgentLike(Protocol):
    """Describe what may stand in for an `Agent`: any object with a name."""

    @property
    def name(self) -> str:
        """The agent's name, as the log shows it."""
        ...


class ToolCallLike(Protocol):
    """Describe what may stand in for a `ToolCall`."""

    @property
    def id(self) -> str:
        """The id that the model gave the call; models repeat them within a run."""
        ...

    @property
    def name(self) -> str:
        """The tool's name."""
        ...

    @property
    def input(self) -> Mapping[str, Any]:
        """The arguments, by name."""
        ...


class ToolResultLike(Protocol):
    """Describe what may stand in for a `ToolResult`."""

    @property
    def data(self) -> Any:
        """What the tool answered."""
        ...

    @property
    def error(self) -> Any:
        """What went wrong; None if nothing did."""
        ...


class ModelResponseLike(Protocol):
    """Describe what may stand in for a `ModelResponse`."""

    @property
    def content(self) -> Any:
        """What the model said: its text, or a list of parts."""
        ...

    @property
    def tool_calls(self) -> Sequence[ToolCallLike] | None:
        """The calls the model asks for; empty or None if there are none."""
        ...


class Agent(str):
    """
    Name an agent: a string that also has a `name`, like the agent objects it stands in for.

    Example:
        >>> agent = Agent("sundae")
        >>> agent == agent.name == "sundae"
        True

    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name as a plain string."""
        return str(self)


class _Value:
    # Written once here: generating these methods for each class doubles what its import costs.
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash((type(self), *_fields(self).values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in _fields(self).items())
        return f"{type(self).__name__}({fields})"

    def __deepcopy__(self, memo: dict[int, Any]) -> _Value:
        # A deep copy of a read-only dict is a plain one: through the constructor, it becomes read-only again.
        return type(self)(**copy.deepcopy(_fields(self), memo))


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in value.__attrs_attrs__}


def _read_only(_cls: type, fields: list[Any]) -> list[attrs.Attribute[Any]]:
    # Here and not as `converter=` of each field: pyright fits no class with a converter to a protocol.
    return [field.evolve(converter=freeze) for field in fields]


_NOTHING: Mapping[str, Any] = ReadOnlyDict()
_NO_CALLS: Sequence[ToolCallLike] = ReadOnlyList()


@attrs.frozen(eq=False, repr=False, field_transformer=_read_only)
class ToolCall(_Value):
    """
    Record one call of a tool that the model asks for.

    Args:
        id: The model's id for it; an empty one is replaced by the run.
        name: The tool's name.
        input: The arguments, by name.

    """

    id: str
    name: str
    input: Mapping[str, Any] = _NOTHING


@attrs.frozen(eq=False, repr=False, field_transformer=_read_only)
class ToolResult(_Value):
    """
    Record what came of a call of a tool.

    Args:
        data: What the tool answered.
        error: What went wrong, an exception or a text; None if nothing did.

    """

    data: Any = None
    error: Any = None

    @property
    def success(self) -> bool:
        """True if there is no error."""
        return self.error is None


@attrs.frozen(eq=False, repr=False, field_transformer=_read_only)
class ModelResponse(_Value):
    """
    Record one answer of the model.

    Args:
        content: Its text, or a list of parts.
        tool_calls: The calls it asks for; empty if there are none.
        model: The model's name.
        usage: The tokens used, as the provider counts them.
        finish_reason: Why the model stopped, in the provider's words.
        raw: The provider's own response.

    """

    content: Any = None
    tool_calls: Sequence[ToolCallLike] = _NO_CALLS
    model: str | None = None
    usage: Any = None
    finish_reason: str | None = None
    raw: Any = None


@attrs.frozen(eq=False, repr=False, field_transformer=_read_only)
class Message(_Value):
    """
    Record the message that a run answers.

    Args:
        text: What it says.
        sender: Whom it is from.
        subject: What it is about.
        thread: The conversation it belongs to.

    """

    text: str
    sender: Any = None
    subject: str | None = None
    thread: Any = None


@attrs.frozen(eq=False, repr=False, field_transformer=_read_only)
class RunInfo(_Value):
    """
    Describe the run that an event belongs to; every event emitted by a `Run` carries it as `run`.

    Args:
        id: The run's id, which is the correlation id of its events.
        parent_id: The id of the run it was started from, if any.
        agent: The agent that runs.
        message: The message it answers.
        metadata: What the caller said about the run.

    """

    id: str
    parent_id: str | None = None
    agent: AgentLike | None = None
    message: Any = None
    metadata: Mapping[str, Any] = _NOTHING
