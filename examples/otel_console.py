"""
A run as OpenTelemetry spans, printed when it has ended, each below what it belongs to.

    invoke_agent sundae
      turn
        chat m-1
        execute_tool lookup_order
        execute_tool lookup_order: ERROR no such order
      turn
        chat m-1

It needs the extra: `pip install 'eventbus[otel]'`.
"""

from typing import Any

# First, because it says what to install where OpenTelemetry is missing.
from eventbus.otel import TelemetryHook  # isort: skip

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus import ModelResponse, Run, ToolCall, configure

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))


class Telemetry(TelemetryHook):
    tracer_provider = provider


def model(messages: list[str], **settings: Any) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse("Your order costs 12.")
    return ModelResponse(tool_calls=[ToolCall("", "lookup_order", {"order": n}) for n in ("A1", "A2")])


def lookup_order(order: str) -> dict[str, int]:
    if order != "A1":
        raise LookupError("no such order")
    return {"total": 12}


def show(spans: tuple[ReadableSpan, ...], parent: int | None = None, depth: int = 0) -> None:
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        context = span.get_span_context()
        if context and (span.parent and span.parent.span_id) == parent:
            failed = "" if span.status.is_unset else f": ERROR {span.status.description}"
            print(f"{'  ' * depth}{span.name}{failed}")
            show(spans, context.span_id, depth + 1)


configure(log=None)
messages = ["What do A1 and A2 cost?"]
with Run(agent="sundae", message=messages[0]) as run:
    for _ in run.turns(limit=5):
        response = run.call_model(model, messages, model="m-1")
        if not response.tool_calls:
            run.complete(response)
            break
        results = run.call_tools(response.tool_calls, {"lookup_order": lookup_order})
        messages += [str(result.data) for _, result in results]
show(exporter.get_finished_spans())
