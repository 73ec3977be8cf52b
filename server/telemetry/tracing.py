"""Exports requests as OpenTelemetry spans when they end: an HTTP span, with a model span, with one span per stage.

Names and attributes follow OpenTelemetry's semantic conventions for HTTP and for generative AI (in development as of
2026); stages and other additions are ``llamapool.*``. OpenTelemetry's own variables configure the exporter, the
sampler and the service name (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME`` …).
Needs the extra ``llamapool[otel]``.
"""

import os
import time
from collections.abc import Iterator

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from server.errors import ConfigError
from server.telemetry.gen_ai import GenAiMetrics, called, operation_of, wanted_metrics
from server.telemetry.record import Record, Usage

_NS = 1_000_000_000


class Tracing:
    """Use on the event loop. A span processor of `provider` sends spans from its own thread."""

    def __init__(self, provider: TracerProvider, version: str = "", metrics: GenAiMetrics | None = None) -> None:
        self._provider = provider
        self._metrics = metrics
        self._tracer = provider.get_tracer("llamapool", version)

    def ended(self, record: Record) -> None:
        """Export a request, except polled endpoints."""
        if record.polled:
            return
        operation = operation_of(record.route)
        if self._metrics is not None and record.usage is not None and record.usage.model:
            self._metrics.ended(record, record.usage, operation)
        at = _Clock()
        start, end = at.ns(record.started_at), at.ns(record.started_at + record.elapsed_s)
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in record.headers.items()}
        span = self._tracer.start_span(
            f"{record.method} {record.route}",
            propagate.extract(known),
            SpanKind.SERVER,
            _http(record, known.get("user-agent", "")),
            start_time=start,
        )
        if span.is_recording():
            if record.status >= 500 or (record.error and record.status < 400):  # it failed after the response started
                span.set_status(Status(StatusCode.ERROR, record.error))
            if record.usage is not None and record.usage.model:
                self._model(record, record.usage, operation, set_span_in_context(span), at)
        span.end(end)

    def _model(self, record: Record, usage: Usage, operation: str, inside: Context, at: "_Clock") -> None:
        stages = list(_stages(usage))
        start = usage.began_at or record.started_at
        end = max([record.started_at + record.elapsed_s, *(begun + took for _, begun, took in stages)])
        span = self._tracer.start_span(
            f"{operation} {usage.model}", inside, attributes=_gen_ai(usage, operation), start_time=at.ns(start)
        )
        if record.error:
            span.set_attribute("error.type", record.error)
            span.set_status(Status(StatusCode.ERROR, record.error))
        within = set_span_in_context(span)
        for name, begun, took in stages:
            self._tracer.start_span(name, within, start_time=at.ns(begun)).end(at.ns(begun + took))
        span.end(at.ns(end))

    def close(self) -> None:
        """Send the remaining spans. Blocks."""
        self._provider.shutdown()
        if self._metrics is not None:
            self._metrics.close()


class _Clock:
    """`time.perf_counter` as unix nanoseconds."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.perf_counter()

    def ns(self, at: float) -> int:
        return int((at + self._ahead) * _NS)


def _http(record: Record, user_agent: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "url.path": record.path,
        "llamapool.request.id": record.id,
    }
    if record.key:
        attributes["llamapool.key.name"] = record.key
    if record.error:
        attributes["error.type"] = record.error
    if user_agent:
        attributes["user_agent.original"] = user_agent
    return attributes


def _gen_ai(usage: Usage, operation: str) -> dict[str, AttributeValue]:
    attributes = called(usage, operation) | {
        "gen_ai.usage.input_tokens": usage.n_prompt,
        "gen_ai.usage.cache_read.input_tokens": usage.n_cached,
        "gen_ai.usage.output_tokens": usage.n_predicted,
    }
    if usage.reasons:
        attributes["gen_ai.response.finish_reasons"] = usage.reasons
    if usage.slots:
        attributes["llamapool.slots"] = usage.slots
    if usage.n_draft:
        attributes |= {"llamapool.draft_tokens": usage.n_draft, "llamapool.accepted_tokens": usage.n_draft_accepted}
        # deprecated names
        attributes |= {
            "llamapool.guessed_tokens": usage.n_draft,
            "llamapool.guessed_right_tokens": usage.n_draft_accepted,
        }
    return attributes


def _stages(usage: Usage) -> Iterator[tuple[str, float, float]]:
    """Return each stage with its start (`time.perf_counter`) and duration in seconds, without the stages that the
    request did not reach.
    """
    yield "load", usage.began_at, usage.load_s
    at = usage.submitted_at
    if not at:
        return
    yield "prepare", at - usage.prepare_s, usage.prepare_s
    if not usage.decoding_since:
        return
    for name, took in (
        ("queue", usage.queue_s),
        ("placement", usage.placement_s),
        ("prefill", usage.prefill_s),
        ("decode", usage.decode_s),
    ):
        yield name, at, took
        at += took


def exporting(version: str) -> Tracing:
    """Return the OTLP exporter that OpenTelemetry's variables configure. Raises ConfigError if the exporter is not
    installed.
    """
    known = {SERVICE_VERSION: version}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        known[SERVICE_NAME] = "llamapool"
    resource = Resource.create(known)
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return Tracing(provider, version, wanted_metrics(resource, version))


def _exporter() -> SpanExporter:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    if protocol not in ("", "http/protobuf"):
        raise ConfigError(f"server.otel: OTLP's protocol is {protocol}; use http/protobuf, which collectors take, too")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(f"server.otel: {error}; pip install 'llamapool[otel]'") from None
    exporter: SpanExporter = OTLPSpanExporter()
    return exporter
