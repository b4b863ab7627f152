"""
Runs as OpenTelemetry spans, metrics and events, against the real SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gzip
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import strategies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logged import CID, NOON, SECRET, stderr_lines
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode
from recordings import AIRLINE, needs_airline

import eventbus
from eventbus import (
    AsyncRun,
    GateDecisionEvent,
    HandlerFailedEvent,
    Hook,
    InferenceCompletedEvent,
    InferenceDeniedEvent,
    InferenceFailedEvent,
    InferenceGeneratedEvent,
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    Message,
    ModelCallFailedEvent,
    ModelCallStartedEvent,
    ModelResponse,
    Run,
    RunRefused,
    StepCompletedEvent,
    StepFailedEvent,
    StepStartedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolCallDeniedEvent,
    ToolCallFailedEvent,
    ToolCallStartedEvent,
    ToolResult,
    TurnCompletedEvent,
    TurnStartedEvent,
    configure,
    correlation,
    on,
    stats,
)
from eventbus import _semconv as names
from eventbus._context import replaying
from eventbus._records import read_records
from eventbus._replay import replay_record
from eventbus.gates import ApproveToolCallEvent, BeforeInvocationEvent, BeforeModelCallEvent
from eventbus.otel import CorrelationIdGenerator, TelemetryHook

try:
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter
except ImportError:  # before 1.39
    from opentelemetry.sdk._logs.export import InMemoryLogExporter as InMemoryLogRecordExporter

ROOT = Path(__file__).parents[1]
AT = {"correlation_id": CID, "timestamp": NOON}
START = int(NOON * 1e9)


class Telemetry:
    """A live hook with providers of its own, and what these were given."""

    def __init__(self, *, sampler=None, generator=None, name="Recorded", **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.traces = TracerProvider(sampler=sampler, id_generator=generator)
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.logs = InMemoryLogRecordExporter()
        logger_provider = LoggerProvider(shutdown_on_exit=False)
        logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.logs))
        providers = {
            "tracer_provider": self.traces,
            "meter_provider": MeterProvider([self.reader], shutdown_on_exit=False),
            "logger_provider": logger_provider,
        }
        made: list[TelemetryHook] = []

        def remember(self: TelemetryHook) -> None:
            made.append(self)
            TelemetryHook.__init__(self)

        self.made = made
        self.hook = type(name, (TelemetryHook,), {"__init__": remember, **providers, **options})

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Any:
        [span] = self.named(name)
        return span

    def events(self, name: str | None = None) -> list[Any]:
        records = [data.log_record for data in self.logs.get_finished_logs()]
        return [record for record in records if name in {None, record.event_name}]

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else data.resource_metrics[0].scope_metrics
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def tree(self) -> Any:
        """Return the names of spans, each with those under it."""

        def under(parent: int | None) -> list[Any]:
            found = [span for span in self.spans if (span.parent and span.parent.span_id) == parent]
            found.sort(key=lambda span: (span.start_time, span.name))
            return [
                (span.name, *under(span.context.span_id)) if under(span.context.span_id) else span.name
                for span in found
            ]

        return under(None)

    @property
    def kept(self) -> int:
        return sum(len(hook._spans) for hook in self.made)


@pytest.fixture
def telemetry():
    """Give a hook that records no content."""
    return Telemetry()


def answer(*calls: ToolCall, **more: Any) -> ModelResponse:
    return ModelResponse(None if calls else "ok", list(calls), **more)


def converse(run: Run, *responses: ModelResponse, tools: Any = None, **options: Any) -> None:
    """Play a run whose model answers so, one response a turn."""
    for response, _ in zip(responses, run.turns(), strict=False):
        run.call_model(lambda _, **__: response, ["hi"], model="m-1")
        run.call_tools(response.tool_calls, tools or (lambda _: 1), **options)
    run.complete(responses[-1])


class TestTree:
    def test_one_run_one_trace(self, telemetry):
        """Run, turn, model call and tool calls, each under what it belongs to."""
        with Run(agent="sundae") as run:
            converse(run, answer(ToolCall("c", "lookup"), ToolCall("c", "lookup")), answer())
        calls = ["chat m-1", "execute_tool lookup", "execute_tool lookup"]
        assert [("invoke_agent sundae", ("turn", *calls), ("turn", "chat m-1"))] == telemetry.tree()
        assert 1 == len({span.context.trace_id for span in telemetry.spans})
        assert 0 == telemetry.kept

    def test_kinds(self, telemetry):
        """A model is asked over there; the rest happens here."""
        with Run(agent="sundae") as run, run.step("plan"):
            converse(run, answer(ToolCall("c", "lookup")))
        kinds = {span.name: span.kind for span in telemetry.spans}
        assert SpanKind.CLIENT == kinds.pop("chat m-1")
        assert {SpanKind.INTERNAL} == set(kinds.values())

    def test_without_turns(self, telemetry):
        """Calls outside of any turn are under the run, or the step they are made in."""
        with Run(agent="sundae") as run:
            run.call_model(lambda _, **__: answer(), [])
            with run.step("plan"):
                run.call_tools([ToolCall("c", "lookup")], lambda _: 1)
        expected = [("invoke_agent sundae", "chat", ("step plan", "execute_tool lookup"))]
        assert expected == telemetry.tree()

    def test_parallel_calls(self, telemetry):
        """Calls on several threads are beside each other, and what happens in one is under it."""

        def work(call):
            with run.step(call.name):
                return 1

        with Run(agent="sundae") as run:
            converse(run, answer(ToolCall("c", "a"), ToolCall("c", "b")), tools=work, parallel=2)
        [(_, (_, _, *calls))] = telemetry.tree()
        assert [("execute_tool a", "step a"), ("execute_tool b", "step b")] == sorted(calls)

    def test_a_nested_run(self, telemetry):
        """It is under the call that started it, on whichever thread, in the same trace, with its own id."""

        def ask(call):
            with Run(agent=call.name) as inner:
                converse(inner, answer())
                return 1

        with Run(agent="sundae") as run:
            converse(run, answer(ToolCall("c", "a"), ToolCall("c", "b")), tools=ask, parallel=2)
        [(_, (_, _, *calls))] = telemetry.tree()
        inner = ("turn", "chat m-1")
        expected = [(f"execute_tool {n}", (f"invoke_agent {n}", inner)) for n in "ab"]
        assert expected == sorted(calls)
        assert 1 == len({span.context.trace_id for span in telemetry.spans})
        assert run.id == telemetry.one("invoke_agent a").attributes[names.PARENT_CID]
        assert run.id != telemetry.one("invoke_agent a").attributes[names.CID]

    def test_a_nested_run_of_the_same_id(self, telemetry):
        """Two runs may share an id: the one inside ends without the other, and what each does is under it."""
        with Run(agent="outer", correlation_id="r") as run, run.step("ask"):
            with Run(agent="inner", correlation_id="r") as inner:
                converse(inner, answer())
            converse(run, answer())
        turn = ("turn", "chat m-1")
        assert [("invoke_agent outer", ("step ask", ("invoke_agent inner", turn), turn))] == telemetry.tree()
        assert 0 == telemetry.kept

    def test_a_nested_run_in_an_async_run(self, telemetry):
        """Tasks as well: each nested run is under the call in its task."""

        async def ask(call):
            async with AsyncRun(agent=call.name) as inner:
                await inner.call_model(lambda _, **__: answer(), [])
            return 1

        async def main():
            async with AsyncRun(agent="sundae") as run:
                await run.call_tools([ToolCall("c", "a"), ToolCall("c", "b")], ask, parallel=2)

        asyncio.run(main())
        [(_, *calls)] = telemetry.tree()
        expected = [(f"execute_tool {n}", (f"invoke_agent {n}", "chat")) for n in "ab"]
        assert expected == sorted(calls)

    def test_a_nested_run_without_context(self, telemetry):
        """On a thread that has no context, the id of the parent leads to what it is doing just then."""
        with Run(agent="sundae", correlation_id="r") as run:
            for _ in run.turns(limit=1):
                nested = {"parent_id": "r", "correlation_id": "n", "span_id": "1", "agent": "inner"}
                emit = threading.Thread(target=InferenceStartedEvent.emit, kwargs=nested)
                emit.start()
                emit.join()
                InferenceCompletedEvent.emit(correlation_id="n", span_id="1")
                run.complete()
        assert [("invoke_agent sundae", ("turn", "invoke_agent inner"))] == telemetry.tree()

    def test_two_runs_at_once(self, telemetry):
        """Runs that take turns on one thread are two traces, and nothing of one is in the other."""
        one, two = Run.begin(agent="one"), Run.begin(agent="two")
        for run in (one, two):
            run.call_model(lambda _, **__: answer(), [], model="m-1")
        for run in (one, two):
            with run.tool_call(ToolCall("c", "lookup")) as called:
                called.set(1)
        one.end()
        two.end()
        each = ("chat m-1", "execute_tool lookup")
        assert [("invoke_agent one", *each), ("invoke_agent two", *each)] == sorted(telemetry.tree())
        assert 2 == len({span.context.trace_id for span in telemetry.spans})

    def test_calls_that_overlap_on_one_thread(self, telemetry):
        """Calls of one tool that share an id are beside each other, each from its own start to its end."""
        InferenceStartedEvent.emit(agent="sundae", span_id="0" * 16, **AT)
        call = ToolCall("call_0", "lookup")
        for second, key in enumerate("abc"):
            at = {**AT, "timestamp": NOON + second}
            ToolCallStartedEvent.emit(tool_call=call, span_id=key * 16, **at)
        # Neither the one that began first, nor the one that began last.
        for key, seconds in {"b": 4.0, "a": 8.0, "c": 16.0}.items():
            ToolCallCompletedEvent.emit(tool_call=call, span_id=key * 16, duration=seconds, **AT)
        InferenceCompletedEvent.emit(span_id="0" * 16, duration=20.0, **AT)
        assert [("invoke_agent sundae", *["execute_tool lookup"] * 3)] == telemetry.tree()
        assert [(1, 5), (0, 8), (2, 18)] == [
            ((span.start_time - START) / 1e9, (span.end_time - START) / 1e9)
            for span in telemetry.named("execute_tool lookup")
        ]

    def test_the_application_s_span_is_the_parent(self, telemetry):
        """A span that is active where the run begins is around it, and still the active one inside."""
        seen = []
        with telemetry.traces.get_tracer("app").start_as_current_span("request") as request:
            with Run(agent="sundae") as run:
                run.call_tools([ToolCall("c", "lookup")], lambda _: seen.append(trace.get_current_span()))
            seen.append(trace.get_current_span())
        assert [("request", ("invoke_agent sundae", "execute_tool lookup"))] == telemetry.tree()
        assert [request, request] == seen

    def test_what_a_tool_does_under_its_call(self, telemetry):
        """Spans that it makes in the hook's context are under the call's, on whichever thread it runs."""
        tracer = telemetry.traces.get_tracer("app")

        def query(call):
            with tracer.start_as_current_span(f"query {call.name}", telemetry.hook.current_context()):
                return 1

        with Run(agent="sundae") as run:
            run.call_tools([ToolCall("c", "a"), ToolCall("c", "b")], query, parallel=2)
        [(_, *calls)] = telemetry.tree()
        assert [("execute_tool a", "query a"), ("execute_tool b", "query b")] == sorted(calls)

    def test_the_context_where_nothing_is_open(self, telemetry):
        """It is OpenTelemetry's current one: before the first run, and after a run."""
        with telemetry.traces.get_tracer("app").start_as_current_span("request"):
            now = context.get_current()
            assert now == telemetry.hook.current_context()
            with Run(agent="sundae"):
                inside = trace.get_current_span(telemetry.hook.current_context())
            assert now == telemetry.hook.current_context()
        assert telemetry.one("invoke_agent sundae").context == inside.get_span_context()

    def test_the_context_of_one_hook_of_several(self, telemetry):
        """Each has its own; what they have in common stands for one of them."""
        other = Telemetry(name="Other")
        with Run(agent="sundae"):
            hooks = TelemetryHook, telemetry.hook, other.hook
            ids = [trace.get_current_span(hook.current_context()).get_span_context() for hook in hooks]
        spans = [one.one("invoke_agent sundae").context for one in (telemetry, other)]
        assert ids[1:] == spans
        assert ids[0] in spans

    def test_an_unregistered_hook_has_no_context(self, telemetry):
        """What is open in it is nobody's any more."""
        with Run(agent="sundae"):
            telemetry.hook.unregister()
            assert context.get_current() == telemetry.hook.current_context()

    def test_two_hooks(self, telemetry):
        """Each records for itself."""
        other = Telemetry(name="Other")
        with Run(agent="sundae") as run:
            converse(run, answer(ToolCall("c", "lookup")))
        assert telemetry.tree() == other.tree()
        assert 4 == len(other.spans)


class TestAttributes:
    def test_of_a_run(self, telemetry):
        """Operation, agent, conversation, id and how it ended."""
        with Run(agent="sundae", message=Message("hi", thread="t-1"), correlation_id=CID) as run:
            run.complete()
        expected = {
            names.OPERATION_NAME: "invoke_agent",
            names.AGENT_NAME: "sundae",
            names.CONVERSATION_ID: "t-1",
            names.CID: CID,
            names.OUTCOME: "completed",
        }
        assert expected == dict(telemetry.one("invoke_agent sundae").attributes)

    def test_of_a_model_call(self):
        """What was asked for, what answered, why it stopped, what it used."""
        telemetry = Telemetry(provider_name="openai")
        usage = {"prompt_tokens": 10, "completion_tokens": 3}
        response = ModelResponse("ok", model="m-1-0613", finish_reason="stop", usage=usage)
        with Run(agent="sundae", message=Message("hi", thread="t-1"), correlation_id=CID) as run:
            run.call_model(lambda _, **__: response, ["hi"], model="m-1", temperature=0.5, max_tokens=100)
        expected = {
            names.OPERATION_NAME: "chat",
            names.PROVIDER_NAME: "openai",
            names.CONVERSATION_ID: "t-1",
            names.REQUEST_MODEL: "m-1",
            names.RESPONSE_MODEL: "m-1-0613",
            names.FINISH_REASONS: ("stop",),
            names.INPUT_TOKENS: 10,
            names.OUTPUT_TOKENS: 3,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.max_tokens": 100,
            names.ATTEMPT: 1,
            names.CID: CID,
        }
        assert expected == dict(telemetry.one("chat m-1").attributes)

    def test_of_a_tool_call(self, telemetry):
        """The tool and the call's id; neither arguments nor result."""
        with Run(agent="sundae", correlation_id=CID) as run:
            run.call_tools([ToolCall("call_0", "lookup", {"order": 1})], lambda _: 1)
        expected = {
            names.OPERATION_NAME: "execute_tool",
            names.TOOL_TYPE: "function",
            names.TOOL_NAME: "lookup",
            names.TOOL_CALL_ID: "call_0",
            names.AGENT_NAME: "sundae",
            names.CID: CID,
        }
        assert expected == dict(telemetry.one("execute_tool lookup").attributes)

    def test_of_turns_and_steps(self, telemetry):
        """A turn's number and a step's name; the names of spans are few."""
        with Run(agent="sundae", correlation_id=CID) as run, run.step("plan"):
            converse(run, answer())
        assert {names.TURN_NUMBER: 1, names.CID: CID} == dict(telemetry.one("turn").attributes)
        assert {names.STEP_NAME: "plan", names.CID: CID} == dict(telemetry.one("step plan").attributes)

    def test_each_attempt_is_a_span(self, telemetry):
        """A model call that is retried is two spans, numbered."""

        class Again(Hook):
            @on(eventbus.AfterModelCallEvent)
            def retry(self, event):
                event.retry = event.attempt == 1

        with Run(agent="sundae") as run:
            run.call_model(lambda _, **__: answer(), [], model="m-1")
        assert [1, 2] == [span.attributes[names.ATTEMPT] for span in telemetry.named("chat m-1")]

    def test_without_names(self, telemetry):
        """What has no name, number or error leaves it out."""
        InferenceStartedEvent.emit(span_id="0", **AT)
        TurnStartedEvent.emit(span_id="1", turn="first", **AT)
        TurnCompletedEvent.emit(span_id="1", **AT)
        ModelCallStartedEvent.emit(span_id="1", **AT)
        ModelCallFailedEvent.emit(span_id="1", **AT)
        ToolCallStartedEvent.emit(tool_call=None, span_id="1", **AT)
        ToolCallFailedEvent.emit(tool_call=None, span_id="1", **AT)
        StepStartedEvent.emit(span_id="1", **AT)
        StepFailedEvent.emit(span_id="1", **AT)
        InferenceFailedEvent.emit(span_id="0", **AT)
        assert [("invoke_agent", "chat", "execute_tool", "step", "turn")] == telemetry.tree()
        for name in ("invoke_agent", "chat", "execute_tool", "step"):
            assert "_OTHER" == telemetry.one(name).attributes[names.ERROR_TYPE]
            assert telemetry.one(name).status.description is None

    def test_values_that_may_do_anything(self, telemetry):
        """An error that cannot be compared and an id that cannot be looked up lose no span."""

        class Uncomparable(Exception):
            def __eq__(self, other):
                raise AssertionError("compared")

        InferenceStartedEvent.emit(agent="sundae", parent_id=["p"], span_id="0", **AT)
        ToolCallStartedEvent.emit(tool_call=ToolCall("c", "lookup"), span_id="1", **AT)
        ToolCallFailedEvent.emit(
            tool_call=ToolCall("c", "lookup"), error=Uncomparable("no"), span_id="1", **AT
        )
        InferenceFailedEvent.emit(error=Uncomparable("no"), span_id="0", **AT)
        assert [("invoke_agent sundae", "execute_tool lookup")] == telemetry.tree()
        assert "no" == telemetry.one("execute_tool lookup").status.description

    def test_sampling_sees_what_it_needs(self):
        """What the conventions call sampling-relevant is there when the span is started."""
        seen = {}

        class Seeing(Sampler):
            def should_sample(
                self, parent_context, trace_id, name, kind=None, attributes=None, *rest, **more
            ):
                seen[name] = dict(attributes)
                return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

            def get_description(self):
                return "seeing"

        Telemetry(sampler=Seeing(), provider_name="openai")
        with Run(agent="sundae") as run:
            converse(run, answer(ToolCall("c", "lookup")))
        operation = {names.OPERATION_NAME: "chat", names.PROVIDER_NAME: "openai", names.REQUEST_MODEL: "m-1"}
        assert operation.items() <= seen["chat m-1"].items()
        assert "sundae" == seen["invoke_agent sundae"][names.AGENT_NAME]
        assert "lookup" == seen["execute_tool lookup"][names.TOOL_NAME]
        assert all(attributes[names.CID] == run.id for attributes in seen.values())

    def test_what_is_not_sampled(self):
        """It is counted in the metrics, is no span, and leaves nothing."""
        telemetry = Telemetry(sampler=ALWAYS_OFF, record_content=True)
        with Run(agent="sundae", message="hi") as run:
            converse(run, answer(ToolCall("c", "lookup"), usage={"input_tokens": 1}))
            with contextlib.suppress(OSError):
                run.call_model(raise_it(OSError("no")), [], model="m-1")
        assert [] == telemetry.spans
        assert names.AGENT_DURATION.name in telemetry.metrics()
        assert 0 == telemetry.kept


class TestScope:
    def test_names_the_library(self, telemetry):
        """Spans, metrics and events say that eventbus has made them, and which version."""
        with Run(agent="sundae") as run:
            run.call_tools([ToolCall("c", "lookup")], raise_it(ValueError("no")))
        scopes = [span.instrumentation_scope for span in telemetry.spans]
        scopes += [data.instrumentation_scope for data in telemetry.logs.get_finished_logs()]
        scopes += [one.scope for one in telemetry.reader.get_metrics_data().resource_metrics[0].scope_metrics]
        assert {("eventbus", version("eventbus"))} == {(scope.name, scope.version) for scope in scopes}

    def test_of_a_copy_of_the_source(self, telemetry, monkeypatch):
        """Where the package is not installed, there is no version, and all the rest."""

        def fail(name):
            raise PackageNotFoundError(name)

        monkeypatch.setattr("eventbus.otel.version", fail)
        with Run(agent="sundae"):
            pass
        scope = telemetry.one("invoke_agent sundae").instrumentation_scope
        assert ("eventbus", None) == (scope.name, scope.version or None)


def raise_it(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


class TestFailures:
    def test_of_a_tool(self, telemetry):
        """The span has the error's class and text; the run goes on."""
        with Run(agent="sundae") as run:
            run.call_tools([ToolCall("c", "lookup")], raise_it(ValueError("no such order")))
        span = telemetry.one("execute_tool lookup")
        assert (StatusCode.ERROR, "no such order") == (span.status.status_code, span.status.description)
        assert "ValueError" == span.attributes[names.ERROR_TYPE]
        assert StatusCode.UNSET == telemetry.one("invoke_agent sundae").status.status_code

    def test_a_tool_s_answer_that_is_an_error(self, telemetry):
        """A result with an error is one, although nothing was raised."""
        with Run(agent="sundae") as run:
            run.call_tools([ToolCall("c", "lookup")], lambda _: ToolResult(error="no such order"))
        span = telemetry.one("execute_tool lookup")
        assert (StatusCode.ERROR, "no such order") == (span.status.status_code, span.status.description)
        assert "_OTHER" == span.attributes[names.ERROR_TYPE]

    def test_of_a_model(self, telemetry):
        """Its span has the error, and so has the run's, which it ends."""
        with pytest.raises(json.JSONDecodeError), Run(agent="sundae") as run:
            run.call_model(raise_it(json.JSONDecodeError("no", "", 0)), [], model="m-1")
        for name in ("chat m-1", "invoke_agent sundae"):
            assert "json.decoder.JSONDecodeError" == telemetry.one(name).attributes[names.ERROR_TYPE]
        assert ("error",) == telemetry.one("chat m-1").attributes[names.FINISH_REASONS]
        assert "failed" == telemetry.one("invoke_agent sundae").attributes[names.OUTCOME]

    def test_of_a_step(self, telemetry):
        """A step has the error that went through it."""
        with pytest.raises(KeyError), Run(agent="sundae") as run, run.step("plan"):
            raise KeyError("a")
        assert "KeyError" == telemetry.one("step plan").attributes[names.ERROR_TYPE]

    def test_turns_used_up(self, telemetry):
        """That is no error, and said."""
        with Run(agent="sundae") as run:
            for _ in run.turns(limit=1):
                pass
        span = telemetry.one("invoke_agent sundae")
        assert ("max_turns", StatusCode.UNSET) == (span.attributes[names.OUTCOME], span.status.status_code)

    def test_exceptions_are_events(self, telemetry):
        """What a model or tool raised is an event in its span, with text and place, redacted."""
        with contextlib.suppress(OSError), Run(agent="sundae", correlation_id=CID) as run:
            run.call_tools([ToolCall("c", "lookup")], raise_it(ValueError(f"password={SECRET}")))
            run.call_model(raise_it(OSError("no")), [], model="m-1")
        tool, model = telemetry.events()
        assert ["gen_ai.execute_tool.exception", "gen_ai.client.inference.exception"] == [
            tool.event_name,
            model.event_name,
        ]
        assert ("WARN", START > 0) == (tool.severity_text, True)
        assert telemetry.one("execute_tool lookup").context.span_id == tool.span_id
        assert "password=[REDACTED]" == tool.attributes["exception.message"]
        assert "test_otel.py" in tool.attributes["exception.stacktrace"]
        assert (CID, "lookup") == (tool.attributes[names.CID], tool.attributes[names.TOOL_NAME])
        assert "OSError" == model.attributes["exception.type"]

    def test_no_span_events(self, telemetry):
        """The span event interface is being deprecated, and not used."""
        with Run(agent="sundae") as run:
            run.call_tools([ToolCall("c", "lookup")], raise_it(ValueError("no")))
        assert [] == [event for span in telemetry.spans for event in span.events]


class TestTimes:
    def test_are_the_events_own(self, telemetry):
        """A span starts at its start's timestamp and lasts its end's duration, whatever the clock did."""
        InferenceStartedEvent.emit(agent="sundae", span_id="0", **AT)
        InferenceCompletedEvent.emit(span_id="0", correlation_id=CID, timestamp=NOON - 3600, duration=1.5)
        span = telemetry.one("invoke_agent sundae")
        assert (START, START + 1_500_000_000) == (span.start_time, span.end_time)

    def test_without_a_duration(self, telemetry):
        """The end's timestamp counts, unless it is before the start."""
        for later, key in ((2.5, "1"), (-3600, "2")):
            InferenceStartedEvent.emit(agent=key, span_id=key, **AT)
            InferenceCompletedEvent.emit(span_id=key, correlation_id=CID, timestamp=NOON + later)
        ends = [telemetry.one(f"invoke_agent {key}").end_time for key in "12"]
        assert [int((NOON + 2.5) * 1e9), START] == ends

    @pytest.mark.parametrize("timestamp", [float("nan"), float("inf"), -1.0, 1e300])
    def test_that_cannot_be(self, telemetry, timestamp):
        """A timestamp or duration that is none does no harm."""
        InferenceStartedEvent.emit(agent="sundae", span_id="0", correlation_id=CID, timestamp=timestamp)
        InferenceCompletedEvent.emit(span_id="0", correlation_id=CID, timestamp=timestamp, duration=timestamp)
        span = telemetry.one("invoke_agent sundae")
        assert span.end_time == span.start_time > START


class TestStartsAndEnds:
    def test_ends_without_a_start(self, telemetry):
        """They are harmless, with and without ids."""
        call = ToolCall("c", "lookup")
        for at in (AT, {}):
            TurnCompletedEvent.emit(span_id="1", **at)
            StepFailedEvent.emit(span_id="1", **at)
            ModelCallFailedEvent.emit(span_id="1", **at)
            InferenceGeneratedEvent.emit(span_id="1", **at)
            ToolCallCompletedEvent.emit(tool_call=call, span_id="1", **at)
            InferenceMaxTurnsReachedEvent.emit(span_id="1", **at)
            InferenceCompletedEvent.emit(**at)
        assert ([], [], 0) == (telemetry.spans, telemetry.events(), telemetry.kept)

    def test_starts_without_an_id(self, telemetry):
        """What belongs to no run is recorded nowhere."""
        InferenceStartedEvent.emit(agent="sundae", span_id="1")
        StepStartedEvent.emit(name="plan", span_id="1")
        assert 0 == telemetry.kept

    def test_what_is_open_is_closed_with_the_run(self, telemetry):
        """A start without an end is closed when its run ends, with a status that says so."""
        InferenceStartedEvent.emit(agent="sundae", span_id="0", **AT)
        TurnStartedEvent.emit(span_id="1", **AT)
        ToolCallStartedEvent.emit(tool_call=ToolCall("c", "lookup"), span_id="2", **AT)
        InferenceCompletedEvent.emit(span_id="0", correlation_id=CID, timestamp=NOON + 1)
        assert [("invoke_agent sundae", ("turn", "execute_tool lookup"))] == telemetry.tree()
        span = telemetry.one("execute_tool lookup")
        assert (StatusCode.ERROR, "the run ended before this did") == (
            span.status.status_code,
            span.status.description,
        )
        assert START + 1_000_000_000 == span.end_time
        assert 0 == telemetry.kept

    def test_a_run_whose_start_nobody_told(self, telemetry):
        """Its spans are recorded all the same, and closed when it ends."""
        StepStartedEvent.emit(name="plan", span_id="1", **AT)
        ToolCallStartedEvent.emit(tool_call=ToolCall("c", "lookup"), span_id="2", **AT)
        StepStartedEvent.emit(name="more", span_id="3", **AT)
        StepCompletedEvent.emit(name="plan", span_id="1", **AT)
        InferenceCompletedEvent.emit(span_id="0", **AT)
        assert ["execute_tool lookup", "step more", "step plan"] == sorted(s.name for s in telemetry.spans)
        assert 0 == telemetry.kept

    def test_a_run_that_began_before_the_hook(self):
        """It is not recorded, not even in pieces; nor is one that had to make room."""
        with Run(agent="before") as run, run.step("plan"):
            telemetry = Telemetry(stateful_capacity=1)
            converse(run, answer(ToolCall("c", "lookup")))
        assert ([], 0) == (telemetry.spans, telemetry.kept)
        with stderr_lines(), Run(agent="outer", correlation_id="a") as outer:
            with Run(agent="inner", correlation_id="b") as inner:
                converse(inner, answer())
            converse(outer, answer())
        assert [("invoke_agent outer", ("invoke_agent inner", ("turn", "chat m-1")))] == telemetry.tree()
        assert 0 == telemetry.kept

    def test_the_same_start_twice(self, telemetry):
        """The first is closed, and the second has the end."""
        for _ in range(2):
            InferenceStartedEvent.emit(agent="sundae", span_id="0", **AT)
        InferenceCompletedEvent.emit(span_id="0", **AT)
        first, second = telemetry.named("invoke_agent sundae")
        assert "another one was started with the same span_id" == first.status.description
        assert "completed" == second.attributes[names.OUTCOME]
        assert 0 == telemetry.kept

    def test_a_start_that_comes_after_the_end(self, telemetry):
        """A span whose run ends while it is being started is closed at once."""
        InferenceStartedEvent.emit(agent="sundae", span_id="0", **AT)
        [hook] = telemetry.made
        place = hook._spans.around

        def ends_meanwhile(cid, kind):
            found = place(cid, kind)
            InferenceCompletedEvent.emit(span_id="0", **AT)
            return found

        hook._spans.around = ends_meanwhile
        StepStartedEvent.emit(name="late", span_id="1", **AT)
        assert "the run ended before this did" == telemetry.one("step late").status.description
        assert 0 == telemetry.kept

    def test_begun_and_ended_elsewhere(self, telemetry, caplog):
        """A run that another thread or task ends logs no error, and leaves nothing."""

        async def main():
            run = AsyncRun(agent="task")
            entered = asyncio.Event()

            async def work():
                async with run:
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await entered.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

        asyncio.run(main())
        run = Run.begin(agent="thread")
        ender = threading.Thread(target=run.end)
        ender.start()
        ender.join()

        def generate():
            with Run(agent="generator"):
                yield

        generator = generate()
        # A generator that is suspended in a scope leaves it to its caller, which the next test must not be.
        contextvars.copy_context().run(next, generator)
        closer = threading.Thread(target=generator.close)
        closer.start()
        closer.join()
        assert {"task", "thread", "generator"} == {s.name.split()[1] for s in telemetry.spans}
        assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert 0 == telemetry.kept


class TestBounds:
    def test_ten_thousand_runs_leave_nothing(self):
        """Whatever way they end."""
        telemetry = Telemetry(sampler=ALWAYS_OFF, meter_provider=NoOpMeterProvider())
        for number in range(10_000):
            at = {"correlation_id": f"run-{number}"}
            InferenceStartedEvent.emit(span_id="0", **at)
            if number % 10 == 0:
                StepStartedEvent.emit(span_id="1", **at)
            InferenceFailedEvent.emit(span_id="0", **at)
        [hook] = telemetry.made
        assert 0 == telemetry.kept
        assert {} == hook._spans._by_cid
        assert hook._spans._current.get() is None

    def test_runs_that_never_end(self):
        """At most so many are kept as the hook is told; the first makes room, with a line and a counter."""
        telemetry = Telemetry(stateful_capacity=2)
        before = stats()["evicted"]
        with stderr_lines() as lines:
            configure(level="warning")
            for number in range(3):
                InferenceStartedEvent.emit(agent=f"{number}", span_id="0", correlation_id=f"run-{number}")
        span = telemetry.one("invoke_agent 0")
        assert "dropped to make room: too many were open" == span.status.description
        assert 1 == stats()["evicted"] - before
        [line] = lines
        assert "run-0 HOOK EVICT Recorded capacity=2" in line

    def test_spans_that_never_end(self):
        """Nor are more kept of one run."""
        telemetry = Telemetry(stateful_capacity=2)
        InferenceStartedEvent.emit(agent="sundae", span_id="0", **AT)
        for number in range(5):
            StepStartedEvent.emit(name=f"{number}", span_id=f"{number}", **AT)
        assert ["step 0", "step 1", "step 2"] == [span.name for span in telemetry.spans]

    def test_providers_that_come_and_go(self, endpoint):
        """Starting and stopping an exporter a hundred times leaves no thread and no file descriptor."""

        def once():
            traces = TracerProvider(shutdown_on_exit=False)
            traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint.url + "/v1/traces")))
            hook = type("Once", (TelemetryHook,), {"tracer_provider": traces})
            with Run(agent="sundae"):
                pass
            hook.unregister()
            traces.shutdown()

        once()
        threads, files = threading.active_count(), len(os.listdir("/dev/fd"))
        for _ in range(100):
            once()
        assert 101 == len(endpoint.bodies)
        # The endpoint may still be closing its end of the last connections; left open, there were a hundred.
        assert threads + 10 > threading.active_count()
        assert files + 10 > len(os.listdir("/dev/fd"))


class TestMetrics:
    def test_of_a_run(self, telemetry):
        """Durations, calls and tokens, with the buckets of the conventions."""
        usage = {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 50}
        with Run(agent="sundae") as run:
            converse(run, answer(ToolCall("c", "lookup"), usage=usage), answer(usage=usage))
        metrics = telemetry.metrics()
        points = {name: metric.data.data_points for name, metric in metrics.items()}
        assert 2 == points[names.INFERENCE_DURATION.name][0].count
        assert 1 == points[names.TOOL_DURATION.name][0].count
        assert [2, 1] == [points[one.name][0].sum for one in (names.INFERENCE_CALLS, names.TOOL_CALLS)]
        used = {
            key: points[names.USED[key].name][0].value for key in names.USED if names.USED[key].name in points
        }
        assert {names.INPUT_TOKENS: 300, names.OUTPUT_TOKENS: 40, names.CACHE_READ_TOKENS: 100} == used
        assert 300 == points[names.CALL_INPUT_TOKENS.name][0].sum
        span = telemetry.one("invoke_agent sundae")
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(
            points[names.AGENT_DURATION.name][0].sum
        )
        for one in (
            names.INFERENCE_DURATION,
            names.AGENT_DURATION,
            names.INFERENCE_CALLS,
            names.CALL_INPUT_TOKENS,
        ):
            assert one.boundaries == points[one.name][0].explicit_bounds
            assert one.unit == metrics[one.name].unit

    def test_their_attributes_are_few(self, telemetry):
        """No id is an attribute of a metric."""
        with contextlib.suppress(OSError), Run(agent="sundae") as run:
            run.call_tools([ToolCall("c", "lookup")], raise_it(ValueError("no")))
            run.call_model(raise_it(OSError("no")), [], model="m-1")
        points = {name: m.data.data_points[0].attributes for name, m in telemetry.metrics().items()}
        assert {
            names.OPERATION_NAME: "chat",
            names.PROVIDER_NAME: "unknown",
            names.REQUEST_MODEL: "m-1",
            names.ERROR_TYPE: "OSError",
        } == dict(points[names.INFERENCE_DURATION.name])
        assert {
            names.TOOL_NAME: "lookup",
            names.TOOL_TYPE: "function",
            names.AGENT_NAME: "sundae",
            names.ERROR_TYPE: "ValueError",
        } == dict(points[names.TOOL_DURATION.name])
        assert {names.AGENT_NAME: "sundae", names.ERROR_TYPE: "OSError"} == dict(
            points[names.AGENT_DURATION.name]
        )


class TestEvents:
    def test_a_refused_run(self, telemetry):
        """It has no span, and an event with its author and reason."""

        class Guard(Hook):
            @on(BeforeInvocationEvent)
            def check(self, event):
                event.cancel = "not today"

        with pytest.raises(RunRefused), Run(agent="sundae", correlation_id=CID):
            pass
        [event] = telemetry.events("eventbus.inference.denied")
        expected = {
            names.AGENT_NAME: "sundae",
            names.BY: "Guard.check",
            names.REASON: "not today",
            names.CID: CID,
        }
        assert expected == dict(event.attributes)
        assert ([], 0) == (telemetry.spans, telemetry.kept)

    def test_a_refused_call(self, telemetry):
        """It is an event in the span of its turn, and is counted on the run's."""

        class Guard(Hook):
            @on(ApproveToolCallEvent)
            def check(self, event):
                event.denied = f"token={SECRET}"

        with Run(agent="sundae") as run:
            converse(run, answer(ToolCall("call_0", "refund")))
        [event] = telemetry.events("eventbus.tool_call.denied")
        assert telemetry.one("turn").context.span_id == event.span_id
        assert ("token=[REDACTED]", "WARN") == (event.attributes[names.REASON], event.severity_text)
        assert ("refund", "call_0") == (
            event.attributes[names.TOOL_NAME],
            event.attributes[names.TOOL_CALL_ID],
        )
        attributes = telemetry.one("invoke_agent sundae").attributes
        assert (1, 1) == (attributes[names.DENIED_CALLS], attributes[names.GATE_DECISIONS])
        assert [] == telemetry.named("execute_tool refund")

    @pytest.mark.parametrize(
        ("action", "severity"), [("edit", "INFO"), ("deny", "WARN"), ("error", "ERROR"), (None, "INFO")]
    )
    def test_a_decision(self, telemetry, action, severity):
        """Who decided what where, and whether it counted."""
        with Run(agent="sundae") as run:
            run.emit(GateDecisionEvent, gate="G", by="H.h", action=action, field="arguments", applied=False)
        [event] = telemetry.events("eventbus.gate.decision")
        assert severity == event.severity_text
        assert ("G", "H.h", False) == tuple(
            event.attributes[key] for key in (names.GATE, names.BY, names.APPLIED)
        )

    def test_a_failed_handler(self, telemetry):
        """Hook, handler and error; what it was handling is named, and never looked into."""

        class Payload:
            def __repr__(self):
                raise AssertionError("looked into")

        class Broken(Hook):
            @on(StepStartedEvent)
            def fail(self, event):
                raise ValueError("no")

        with Run(agent="sundae") as run:
            run.emit(StepStartedEvent, name="plan", payload=Payload())
        [event] = telemetry.events("eventbus.handler.failed")
        told = {key: event.attributes[key] for key in (names.HOOK, names.HANDLER, names.HANDLED_EVENT)}
        assert {
            names.HOOK: "Broken",
            names.HANDLER: "Broken.fail",
            names.HANDLED_EVENT: "StepStartedEvent",
        } == told
        assert "ValueError" == event.attributes["exception.type"]
        assert 1 == telemetry.one("invoke_agent sundae").attributes[names.HANDLER_FAILURES]

    def test_outside_of_any_run(self, telemetry):
        """What has no run is told all the same, in no span."""
        HandlerFailedEvent.emit(hook="H", handler="H.h", error=ValueError("no"))
        GateDecisionEvent.emit(gate="G", correlation_id="nobody")
        assert [0, 0] == [event.span_id or 0 for event in telemetry.events()]
        assert 0 == telemetry.kept


class TestContent:
    def test_is_not_recorded_unasked(self, telemetry):
        """Neither messages nor arguments nor results are anywhere."""
        with Run(agent="sundae", message="my words") as run:
            converse(run, answer(ToolCall("c", "lookup", {"a": "my words"})), tools=lambda _: "my words")
            run.complete("my words")
        assert "my words" not in str([span.to_json() for span in telemetry.spans])

    def test_in_the_conventions_form(self):
        """Messages with their parts, arguments and results, as JSON."""
        telemetry = Telemetry(record_content=True)
        with Run(agent="sundae", message="hi") as run:
            converse(run, answer(ToolCall("c", "lookup", {"a": 1})), tools=lambda _: {"total": 12})
            run.complete("done")
        attributes = {span.name: span.attributes for span in telemetry.spans}
        hi = {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
        call = {"type": "tool_call", "id": "c", "name": "lookup", "arguments": {"a": 1}}
        done = {"type": "text", "content": "done"}

        def read(span, key):
            return json.loads(attributes[span][key])

        assert (
            [hi]
            == read("invoke_agent sundae", names.INPUT_MESSAGES)
            == read("chat m-1", names.INPUT_MESSAGES)
        )
        assert [{"role": "assistant", "parts": [call], "finish_reason": "tool_call"}] == read(
            "chat m-1", names.OUTPUT_MESSAGES
        )
        assert {"a": 1} == read("execute_tool lookup", names.TOOL_CALL_ARGUMENTS)
        assert {"total": 12} == read("execute_tool lookup", names.TOOL_CALL_RESULT)
        assert [{"role": "assistant", "parts": [done], "finish_reason": "stop"}] == read(
            "invoke_agent sundae", names.OUTPUT_MESSAGES
        )

    def test_a_tool_that_gave_no_result_of_ours(self):
        """Any object is a result."""
        telemetry = Telemetry(record_content=True)
        InferenceStartedEvent.emit(span_id="0", **AT)
        ToolCallStartedEvent.emit(tool_call=ToolCall("c", "lookup"), span_id="1", **AT)
        ToolCallCompletedEvent.emit(tool_call=ToolCall("c", "lookup"), result=[1], span_id="1", **AT)
        assert "[1]" == telemetry.one("execute_tool lookup").attributes[names.TOOL_CALL_RESULT]

    def test_redaction_is_the_user_s(self):
        """`configure(redact=...)` decides here as well."""
        configure(redact=lambda path, value: "gone" if value == "hi" else value)
        telemetry = Telemetry(record_content=True)
        with Run(agent="sundae", message="hi") as run:
            run.complete("hi")
        assert "gone" in telemetry.one("invoke_agent sundae").attributes[names.INPUT_MESSAGES]


def play_with_secret() -> None:
    """Emit a run with a secret in every place that one may come from."""
    password = {"password": SECRET, "deep": [{"api_key": SECRET}], "text": json.dumps({"token": SECRET})}
    url = f"https://example.org/?access_token={SECRET}"

    class Guard(Hook):
        @on(ApproveToolCallEvent, when=lambda event: event.tool_call.name == "refund")
        def check(self, event):
            event.denied = f"Authorization: Bearer {SECRET}"

        @on(BeforeModelCallEvent)
        def look(self, event):
            event.settings = {**event.settings, "api_key": SECRET}

    class Broken(Hook):
        @on(ToolCallCompletedEvent)
        def fail(self, event):
            raise ValueError(f"password={SECRET}")

    def tool(call):
        if call.name == "fail":
            raise ValueError(url)
        return password

    response = ModelResponse(
        json.dumps(password),
        [ToolCall("c", name, password) for name in ("a", "fail", "refund")],
        raw=password,
    )
    with contextlib.suppress(OSError), Run(agent="sundae", message=url, metadata=password) as run:
        with contextlib.suppress(KeyError), run.step(url):
            raise KeyError(f"secret: {SECRET}")
        run.call_model(lambda _, **__: response, [{"role": "user", "content": url, **password}], model="m-1")
        run.call_tools(response.tool_calls, tool)
        run.complete(password)
        raise OSError(f"cookie={SECRET}")


class Endpoint(HTTPServer):
    """A collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Receiver)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Receiver(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint():
    """Give a collector on this machine."""
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("record_content", [False, True])
def test_over_the_wire(endpoint, record_content):
    """What a collector gets by OTLP is the run, whole, and no secret of it."""
    traces = TracerProvider(shutdown_on_exit=False)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint.url + "/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint.url + "/v1/metrics"))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    logs = LoggerProvider(shutdown_on_exit=False)
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint.url + "/v1/logs")))

    class Exported(TelemetryHook):
        tracer_provider = traces
        meter_provider = meters
        logger_provider = logs

    Exported.record_content = record_content
    play_with_secret()
    for provider in (traces, meters, logs):
        provider.shutdown()
    kinds = {
        "/v1/traces": ExportTraceServiceRequest,
        "/v1/metrics": ExportMetricsServiceRequest,
        "/v1/logs": ExportLogsServiceRequest,
    }
    told = {path: kinds[path].FromString(body) for path, body in endpoint.bodies}
    assert set(kinds) == set(told)
    spans = [s for r in told["/v1/traces"].resource_spans for scope in r.scope_spans for s in scope.spans]
    assert Counter(["chat m-1", "execute_tool a", "execute_tool fail"]) <= Counter(s.name for s in spans)
    root = next(span for span in spans if span.name == "invoke_agent sundae")
    assert {root.span_id} == {span.parent_span_id for span in spans if span is not root}
    assert {root.trace_id} == {span.trace_id for span in spans}
    assert not any(SECRET.encode() in body for _, body in endpoint.bodies)
    assert record_content == any(b"gen_ai.input.messages" in body for _, body in endpoint.bodies)


@needs_airline
def test_two_hundred_recorded_runs():
    """200 traces, 2,454 model calls, 1,164 tool calls, 73 of them errors; and the parents form the tree."""
    telemetry = Telemetry()
    with AIRLINE.open("rb") as stream:
        for record in read_records(stream):
            replay_record(record)
    spans = telemetry.spans
    by_id = {span.context.span_id: span for span in spans}
    operations = Counter(span.attributes.get(names.OPERATION_NAME) for span in spans)
    tools = [span for span in spans if span.attributes.get(names.OPERATION_NAME) == "execute_tool"]
    assert 200 == len({span.context.trace_id for span in spans})
    assert {"invoke_agent": 200, "chat": 2454, "execute_tool": 1164, None: operations[None]} == operations
    assert 73 == sum(span.status.status_code is StatusCode.ERROR for span in tools)
    around = {"chat": "turn", "execute_tool": "turn", "turn": "invoke_agent"}
    for span in spans:
        kind = span.name.split()[0]
        if kind == "invoke_agent":
            assert span.parent is None
        else:
            parent = by_id[span.parent.span_id]
            assert around[kind] == parent.name.split()[0]
            assert span.context.trace_id == parent.context.trace_id
            assert span.attributes[names.CID] == parent.attributes[names.CID]
    assert 0 == telemetry.kept


def test_a_replay_is_marked_and_not_measured(telemetry):
    """Spans and events of a replay say so, and its durations and tokens are in no metric."""

    class Broken(Hook):
        @on(TurnStartedEvent)
        def fail(self, event):
            raise ValueError("no")

    with replaying(), Run(agent="sundae") as run:
        converse(run, answer(usage={"input_tokens": 10}))
    assert all(span.attributes[names.REPLAYED] for span in telemetry.spans)
    assert [True] == [event.attributes[names.REPLAYED] for event in telemetry.events()]
    assert 10 == telemetry.one("chat m-1").attributes[names.INPUT_TOKENS]
    assert {} == telemetry.metrics()


class TestGenerator:
    def test_the_run_s_id_is_the_trace_s(self):
        """One id for the log, the store and the tracing backend."""
        telemetry = Telemetry(generator=CorrelationIdGenerator())
        with Run(agent="sundae") as run:
            converse(run, answer())
        assert {run.id} == {f"{span.context.trace_id:032x}" for span in telemetry.spans}
        assert not any(span.context.trace_flags & 2 for span in telemetry.spans)

    @pytest.mark.parametrize("cid", ["run-1", "0" * 32, CID.upper(), "é" * 32])
    def test_an_id_that_is_no_trace_id(self, cid):
        """The trace has a random one, and the attribute the run's."""
        telemetry = Telemetry(generator=CorrelationIdGenerator())
        with Run(agent="sundae", correlation_id=cid):
            pass
        span = telemetry.one("invoke_agent sundae")
        assert span.context.trace_id
        assert cid == span.attributes[names.CID]

    def test_spans_of_the_application(self):
        """Their traces have random ids, in a run as outside."""
        telemetry = Telemetry(generator=CorrelationIdGenerator())
        with correlation(CID), Run(agent="sundae"):
            telemetry.traces.get_tracer("app").start_span("query").end()
        assert CID != f"{telemetry.one('query').context.trace_id:032x}"
        assert CID == f"{telemetry.one('invoke_agent sundae').context.trace_id:032x}"


class TestSettings:
    def test_it_ships_abstract(self):
        """Nothing is recorded before there is a subclass."""
        done = run_code("import eventbus.otel\nprint(eventbus.hooks().get('TelemetryHook').state)")
        assert "abstract\n" == done.stdout

    def test_a_misspelt_setting(self):
        """A TypeError names the nearest."""
        with pytest.raises(TypeError, match="Did you mean `record_content`"):
            type("Misspelt", (TelemetryHook,), {"record_contents": True})

    @pytest.mark.parametrize(
        ("name", "what"),
        [
            ("tracer_provider", "a TracerProvider or None"),
            ("meter_provider", "a MeterProvider or None"),
            ("logger_provider", "a LoggerProvider or None"),
            ("record_content", "True or False"),
            ("provider_name", "a string"),
        ],
    )
    def test_a_setting_of_the_wrong_type(self, name, what):
        """A TypeError says what it must be."""
        with pytest.raises(TypeError, match=f"Wrong.{name} must be {what}, not 1"):
            type("Wrong", (TelemetryHook,), {name: 1})


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done


PLAY = """
from eventbus import *
from eventbus.otel import TelemetryHook

configure(log=None)
made = []

class Telemetry(TelemetryHook):
    record_content = True

    def __init__(self):
        super().__init__()
        made.append(self)

def play():
    call = ToolCall("c", "lookup")
    with Run(agent="sundae", message="hi") as run, run.step("plan"):
        for _ in run.turns(limit=1):
            run.emit(GateDecisionEvent, gate="G")
            run.emit(ToolCallDeniedEvent, tool_call=call)
            run.call_model(lambda messages, **settings: ModelResponse("ok"), [], model="m-1")
            run.call_tools([call], lambda call: 1)
    InferenceDeniedEvent.emit(correlation_id="r")
    HandlerFailedEvent.emit(error=ValueError("no"))
"""


class TestProcesses:
    def test_without_a_provider(self):
        """Nothing is said, nothing is kept, not even while a run goes on, and no thread is started."""
        done = run_code(
            PLAY
            + """
import threading
with Run(agent="sundae") as run, run.step("plan"):
    print(len(made[0]._spans))
play()
print(len(made[0]._spans), threading.active_count())
"""
        )
        assert "0\n0 1\n" == done.stdout

    def test_the_global_provider(self):
        """It counts, also when it is set after the first event."""
        done = run_code(
            PLAY
            + """
play()
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
play()
print([span.name for span in exporter.get_finished_spans()])
"""
        )
        expected = ["chat m-1", "execute_tool lookup", "turn", "step plan", "invoke_agent sundae"]
        assert f"{expected}\n" == done.stdout

    def test_without_the_extra(self):
        """The ImportError names it."""
        done = run_code(
            """
import sys
sys.modules["opentelemetry"] = None
try:
    import eventbus.otel
except ImportError as error:
    print(error, error.name)
"""
        )
        expected = (
            "eventbus.otel needs OpenTelemetry; install it with: pip install 'eventbus[otel]' eventbus.otel\n"
        )
        assert expected == done.stdout

    def test_a_module_that_is_missing_for_another_reason(self):
        """It is not taken for the extra."""
        done = run_code(
            """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "opentelemetry.sdk.trace.id_generator":
            raise ModuleNotFoundError("no", name="yaml")
sys.meta_path.insert(0, Finder())
try:
    import eventbus.otel
except ModuleNotFoundError as error:
    print(error.name)
"""
        )
        assert "yaml\n" == done.stdout


KINDS = {
    "turn": (TurnStartedEvent, TurnCompletedEvent),
    "step": (StepStartedEvent, StepCompletedEvent),
    "model": (ModelCallStartedEvent, InferenceGeneratedEvent),
    "tool": (ToolCallStartedEvent, ToolCallFailedEvent),
    "run": (InferenceStartedEvent, InferenceCompletedEvent),
}
TOLD = st.tuples(
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 1),
    st.sampled_from(["r", "s"]),
    st.sampled_from([None, "0", "1", "2"]),
)


@given(st.lists(TOLD, max_size=40))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_is_told(told):
    """However starts and ends of two runs are mixed: each span ends once, and its parent is there."""
    with eventbus.testing.isolated():
        telemetry = Telemetry()
        started = 0
        for kind, which, cid, key in told:
            started += which == 0
            event_class = KINDS[kind][which]
            more = {"tool_call": ToolCall("c", "lookup")} if kind == "tool" else {}
            event_class.emit(correlation_id=cid, span_id=key, timestamp=NOON, **more)
        for run in [run for hook in telemetry.made for run in list(hook._spans._runs)]:
            InferenceCompletedEvent.emit(correlation_id=run.cid, span_id=run.key, timestamp=NOON)
        spans = {span.context.span_id: span for span in telemetry.spans}
        assert (started, 0) == (len(telemetry.spans), telemetry.kept)
        assert started == len(spans)
        for span in spans.values():
            parent = span.parent and spans[span.parent.span_id]
            assert parent is None or span.context.trace_id == parent.context.trace_id


@given(st.data())
@settings(max_examples=15)
def test_whatever_is_in_it(data):
    """Whatever names, ids, messages, settings, usage and errors are, the run can be exported."""
    value = strategies.json_values(max_leaves=5)
    text = strategies.text()
    with eventbus.testing.isolated():
        telemetry = Telemetry(record_content=True)
        at = {"correlation_id": data.draw(text.filter(bool)), "span_id": "1"}
        call = ToolCall(data.draw(text), data.draw(text), data.draw(strategies.json_objects(max_leaves=5)))
        error = ValueError(data.draw(text))
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            InferenceStartedEvent.emit(agent=data.draw(text), message=data.draw(value), **at)
            StepStartedEvent.emit(name=data.draw(text), **at)
            ModelCallStartedEvent.emit(model=data.draw(text), attempt=data.draw(st.integers()), **at)
            ToolCallStartedEvent.emit(tool_call=call, **at)
            GateDecisionEvent.emit(gate=data.draw(text), reason=data.draw(value), tool_call=call, **at)
            ToolCallDeniedEvent.emit(tool_call=call, reason=data.draw(text), **at)
            InferenceDeniedEvent.emit(reason=data.draw(text), correlation_id="x")
            ToolCallFailedEvent.emit(tool_call=call, error=error, duration=data.draw(st.floats()), **at)
            InferenceGeneratedEvent.emit(
                request=data.draw(value),
                response=ModelResponse(data.draw(value), data.draw(value), finish_reason=data.draw(text)),
                settings={"temperature": data.draw(value), "seed": data.draw(st.integers())},
                usage={"input_tokens": data.draw(value), "prompt_tokens_details": data.draw(value)},
                **at,
            )
            InferenceFailedEvent.emit(error=error, **at)
        assert "" == stderr.getvalue()
        assert 4 == len(telemetry.spans)
        assert encode_spans(telemetry.spans).SerializeToString()
        assert encode_logs(telemetry.logs.get_finished_logs()).SerializeToString()
