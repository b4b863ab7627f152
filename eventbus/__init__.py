"""
A decorator-driven, in-process event bus for agents: observers fail open, gates fail closed.
"""

from ._channels import find
from ._context import (
    carry_context,
    correlation,
    current_correlation_id,
    is_replaying,
    new_correlation_id,
)
from ._counters import stats
from ._discover import discover
from ._errors import (
    DiscoveryError,
    EmitLoopError,
    EventbusError,
    HandlerLockTimeoutError,
    LoopClosedError,
    PendingLimitError,
    UnknownChannelError,
)
from ._event import Event
from ._hook import Hook, HookInfo, hooks, on
from ._lines import ParsedLine, parse_line
from ._logger import EventLogger
from ._priority import Priority
from ._redact import default_redact
from ._scheduler import adrain, drain
from ._settings import configure
from ._subscribe import Subscription
from .catalog import (
    ContextCompactedEvent,
    GateDecisionEvent,
    HandlerFailedEvent,
    InferenceChunkEvent,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    LoopRunCompletedEvent,
    LoopRunEnqueuedEvent,
    LoopRunFailedEvent,
    LoopRunStartedEvent,
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
    TurnCompletedEvent,
    TurnStartedEvent,
)
from .values import Agent, Message, ModelResponse, RunInfo, ToolCall, ToolResult

__all__ = [
    "Agent",
    "ContextCompactedEvent",
    "DiscoveryError",
    "EmitLoopError",
    "Event",
    "EventLogger",
    "EventbusError",
    "GateDecisionEvent",
    "HandlerFailedEvent",
    "HandlerLockTimeoutError",
    "Hook",
    "HookInfo",
    "InferenceChunkEvent",
    "InferenceCompletedEvent",
    "InferenceDeniedEvent",
    "InferenceFailedEvent",
    "InferenceGeneratedEvent",
    "InferenceMaxTurnsReachedEvent",
    "InferenceStartedEvent",
    "LoopClosedError",
    "LoopRunCompletedEvent",
    "LoopRunEnqueuedEvent",
    "LoopRunFailedEvent",
    "LoopRunStartedEvent",
    "Message",
    "ModelCallFailedEvent",
    "ModelCallStartedEvent",
    "ModelResponse",
    "ParsedLine",
    "PendingLimitError",
    "Priority",
    "RunInfo",
    "StepCompletedEvent",
    "StepFailedEvent",
    "StepStartedEvent",
    "Subscription",
    "ToolCall",
    "ToolCallCompletedEvent",
    "ToolCallDeniedEvent",
    "ToolCallFailedEvent",
    "ToolCallStartedEvent",
    "ToolCallsReceivedEvent",
    "ToolResult",
    "TurnCompletedEvent",
    "TurnStartedEvent",
    "UnknownChannelError",
    "adrain",
    "carry_context",
    "configure",
    "correlation",
    "current_correlation_id",
    "default_redact",
    "discover",
    "drain",
    "find",
    "hooks",
    "is_replaying",
    "new_correlation_id",
    "on",
    "parse_line",
    "stats",
]
