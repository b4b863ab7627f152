"""
The names that telemetry is recorded under: those of the GenAI semantic conventions, and eventbus' own.

Source: OpenTelemetry, Semantic Conventions for Generative AI, v0.1.0, status Development;
https://github.com/open-telemetry/semantic-conventions-genai/tree/v0.1.0/docs/gen-ai. They were moved there
from the general conventions, the source of `error.type` and `exception.*` (v1.45.0, stable).
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Values of gen_ai.operation.name, and what names of spans begin with.
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
MODALITY: Final = "gen_ai.token.modality"
ERROR_TYPE: Final = "error.type"

# Opt-in: recorded with `record_content`.
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"

REQUEST_SETTINGS: Final = {
    "temperature": ("gen_ai.request.temperature", float),
    "top_p": ("gen_ai.request.top_p", float),
    "top_k": ("gen_ai.request.top_k", int),
    "max_tokens": ("gen_ai.request.max_tokens", int),
    "max_completion_tokens": ("gen_ai.request.max_tokens", int),
    "max_output_tokens": ("gen_ai.request.max_tokens", int),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", float),
    "presence_penalty": ("gen_ai.request.presence_penalty", float),
    "seed": ("gen_ai.request.seed", int),
    "stream": ("gen_ai.request.stream", bool),
}
"""What a setting of a model call is recorded as, and as what type."""

# Events, which are log records with a name.
INFERENCE_EXCEPTION: Final = "gen_ai.client.inference.exception"
TOOL_EXCEPTION: Final = "gen_ai.execute_tool.exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# Values.
FUNCTION: Final = "function"
UNKNOWN: Final = "unknown"
ERROR: Final = "error"
OTHER: Final = "_OTHER"

# Of eventbus itself: names of spans, attributes. Its events have the channels of the catalog as names.
TURN: Final = "turn"
STEP: Final = "step"
CID: Final = "eventbus.correlation_id"
PARENT_CID: Final = "eventbus.parent_correlation_id"
TURN_NUMBER: Final = "eventbus.turn"
ATTEMPT: Final = "eventbus.attempt"
STEP_NAME: Final = "eventbus.step"
OUTCOME: Final = "eventbus.outcome"
REPLAYED: Final = "eventbus.replayed"
DENIED_CALLS: Final = "eventbus.tool_calls.denied"
GATE_DECISIONS: Final = "eventbus.gate_decisions"
HANDLER_FAILURES: Final = "eventbus.handler_failures"
GATE: Final = "eventbus.gate"
BY: Final = "eventbus.by"
ACTION: Final = "eventbus.action"
FIELD: Final = "eventbus.field"
REASON: Final = "eventbus.reason"
APPLIED: Final = "eventbus.applied"
HOOK: Final = "eventbus.hook"
HANDLER: Final = "eventbus.handler"
HANDLED_EVENT: Final = "eventbus.handled_event"

_DOUBLING: Final = tuple(0.01 * 2**exponent for exponent in range(14))
_TOKENS: Final = tuple(4.0**exponent for exponent in range(14))
_CALLS: Final = tuple(2.0**exponent for exponent in range(8))


class Instrument(NamedTuple):
    """
    One metric.

    Attributes:
        name: Its name.
        unit: Its unit, in UCUM's notation.
        description: What it measures.
        boundaries: The boundaries of its buckets; None for a counter.
    """

    name: str
    unit: str
    description: str
    boundaries: tuple[float, ...] | None = None


INFERENCE_DURATION: Final = Instrument(
    "gen_ai.client.inference.duration", "s", "Duration of a model call.", _DOUBLING
)
AGENT_DURATION: Final = Instrument(
    "gen_ai.invoke_agent.duration",
    "s",
    "Duration of a run of an agent.",
    tuple(0.1 * 2**exponent for exponent in range(13)),
)
TOOL_DURATION: Final = Instrument(
    "gen_ai.execute_tool.duration", "s", "Duration of the execution of a tool.", _DOUBLING
)
INFERENCE_CALLS: Final = Instrument(
    "gen_ai.invoke_agent.inference_calls", "{inference_call}", "Model calls of a run.", _CALLS
)
TOOL_CALLS: Final = Instrument(
    "gen_ai.invoke_agent.tool_calls", "{tool_call}", "Executions of tools in a run.", _CALLS
)
CALL_INPUT_TOKENS: Final = Instrument(
    "gen_ai.client.inference.operation.input_tokens", "{token}", "Input tokens of a model call.", _TOKENS
)
CALL_OUTPUT_TOKENS: Final = Instrument(
    "gen_ai.client.inference.operation.output_tokens", "{token}", "Output tokens of a model call.", _TOKENS
)
USED: Final = {
    attribute: Instrument(f"gen_ai.client.inference.usage.{kind}", "{token}", description)
    for attribute, kind, description in (
        (INPUT_TOKENS, "input_tokens", "Input tokens used, those of caches included."),
        (OUTPUT_TOKENS, "output_tokens", "Output tokens used, those of reasoning included."),
        (CACHE_READ_TOKENS, "cache_read.input_tokens", "Input tokens read from a cache."),
        (CACHE_WRITE_TOKENS, "cache_write.input_tokens", "Input tokens written to a cache."),
        (REASONING_TOKENS, "reasoning.output_tokens", "Output tokens used for reasoning."),
    )
}
"""The counter of each count of tokens, by the attribute that has the count of one call."""
