"""
The gates of a run: what it asks before and after it acts, and obeys.

Fields made with `writable()` are the handlers' to set; a sticky one latches at its first truthy value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ._gate import ProtectedEvent, writable
from .catalog import as_agent
from .values import RunInfo, ToolCallLike

__all__ = [
    "AfterInvocationEvent",
    "AfterModelCallEvent",
    "AfterToolCallEvent",
    "ApproveToolCallEvent",
    "BeforeInvocationEvent",
    "BeforeModelCallEvent",
    "BeforeToolCallEvent",
]


class _RunGate(ProtectedEvent):
    agent: Any = attrs.field(default=None, converter=as_agent)  # pyright: ignore[reportUnknownVariableType]  # Any
    run: RunInfo | None = None


class BeforeInvocationEvent(_RunGate, channel="eventbus.invocation.before"):
    """
    A run is about to begin: rewrite its message or state, or refuse it with `cancel`.
    """

    message: Any = writable(default=None)
    state: Any = writable(default=None)
    cancel: bool | str = writable(default=False, sticky=True)


class AfterInvocationEvent(_RunGate, channel="eventbus.invocation.after"):
    """
    A run is about to end: replace its result.
    """

    reverse = True

    success: bool = True
    error: BaseException | None = None
    result: Any = writable(default=None)


class BeforeModelCallEvent(_RunGate, channel="eventbus.model_call.before"):
    """
    The model is about to be asked: rewrite messages or settings, answer with `response`, or refuse.
    """

    turn: int | None = None
    messages: Any = writable(default=None)
    tools: Any = None
    settings: Mapping[str, Any] = writable(factory=dict[str, Any])
    response: Any = writable(default=None)
    cancel: bool | str = writable(default=False, sticky=True)


class AfterModelCallEvent(_RunGate, channel="eventbus.model_call.after"):
    """
    The model has answered or raised: replace the response, or ask again with `retry` (True, or seconds).
    """

    reverse = True

    messages: Any = None
    response: Any = writable(default=None)
    error: BaseException | None = None
    attempt: int = 1
    retry: bool | float = writable(default=False)
    reason: str | None = writable(default=None)


class BeforeToolCallEvent(_RunGate, channel="eventbus.tool_call.before"):
    """
    A tool is about to be called: rewrite its arguments, answer with `result`, or refuse with `cancel`.
    """

    tool_call: ToolCallLike
    arguments: Mapping[str, Any] = writable(factory=dict[str, Any])
    result: Any = writable(default=None)
    cancel: bool | str = writable(default=False, sticky=True)


class ApproveToolCallEvent(_RunGate, channel="eventbus.tool_call.approve"):
    """
    A tool will be executed with just these arguments, unless `denied` is set.
    """

    tool_call: ToolCallLike
    arguments: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    denied: bool | str = writable(default=False, sticky=True)


class AfterToolCallEvent(_RunGate, channel="eventbus.tool_call.after"):
    """
    A tool has answered or raised: replace its result, or have it executed again with `retry`.
    """

    reverse = True

    tool_call: ToolCallLike
    arguments: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    error: BaseException | None = None
    result: Any = writable(default=None)
    attempt: int = 1
    retry: bool | float = writable(default=False)
    reason: str | None = writable(default=None)
