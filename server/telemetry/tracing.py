"""Exports ended requests as OpenTelemetry spans: an HTTP span with a model span, which has one span for each stage.

Names and attributes follow OpenTelemetry's semantic conventions for HTTP and for generative AI (in development as of
2026); stages and other additions are ``llamapool.*``. OpenTelemetry's own variables configure the exporter, the
sampler and the service name (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME`` …).
Needs the extra ``llamapool[otel]``.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

from server.errors import ConfigError
from server.telemetry.record import STAGES, ModelUse, Record

logger = logging.getLogger(__name__)

CLOSE_S = 3.0
"""Longest wait for the collector at the shutdown."""
_NS = 1_000_000_000
Nanoseconds = Callable[[float], int]
METRICS_EXPORTER = "OTEL_METRICS_EXPORTER"
"""OpenTelemetry's variable for the metrics exporter. Metrics are sent only if it is ``otlp``, because a collector of
traces may not accept metrics; ``GET /metrics`` has more.
"""
_DURATION_BUCKETS = [0.01 * 2**n for n in range(14)]
_FIRST_TOKEN_BUCKETS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_FURTHER_TOKEN_BUCKETS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]


def operation_of(route: str) -> str:
    """Return the ``gen_ai.operation.name`` of a path, derived from its segments."""
    segments = {*route.strip("/").split("/")}
    if segments & {"embeddings", "embedding", "embed"}:
        return "embeddings"
    return "chat" if segments & {"chat", "messages", "responses"} else "text_completion"


def model_attributes(usage: ModelUse, operation: str) -> dict[str, AttributeValue]:
    """Return the attributes for operation and model that spans and metrics share."""
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "llamapool",
        "gen_ai.request.model": usage.model,
        "gen_ai.response.model": usage.model,
    }


class GenAiMetrics:
    """Records requests on the event loop; `provider` sends from its own thread."""

    def __init__(self, provider: MeterProvider, version: str = "") -> None:
        self._provider = provider
        meter = provider.get_meter("llamapool", version)
        self._duration, self._first, self._further = (
            meter.create_histogram(f"gen_ai.server.{name}", "s", text, explicit_bucket_boundaries_advisory=buckets)
            for name, text, buckets in (
                ("request.duration", "From a request's arrival to its reply's end", _DURATION_BUCKETS),
                ("time_to_first_token", "From a request's arrival to its first token", _FIRST_TOKEN_BUCKETS),
                ("time_per_output_token", "Time of each token after the first", _FURTHER_TOKEN_BUCKETS),
            )
        )

    def ended(self, record: Record, usage: ModelUse, operation: str) -> None:
        """Record a request. The token times are recorded only for requests without an error."""
        attributes = model_attributes(usage, operation)
        if record.error:
            self._duration.record(record.elapsed_s, attributes | {"error.type": record.error})
            return
        self._duration.record(record.elapsed_s, attributes)
        if usage.decoding_since:
            self._first.record(usage.decoding_since - record.started_at, attributes)
            n_further = usage.n_predicted / max(len(usage.reasons), 1) - 1  # per choice
            if n_further > 0:
                self._further.record(usage.decode_s / n_further, attributes)

    def close(self) -> None:
        """Send the remaining metrics. Blocks."""
        self._provider.shutdown()


def configured_metrics(resource: Resource, version: str) -> GenAiMetrics | None:
    """Return the OTLP metrics if OpenTelemetry's variables enable them, otherwise None. Raises ConfigError."""
    exporter = os.environ.get(METRICS_EXPORTER, "")
    if exporter in ("", "none"):
        return None
    if exporter != "otlp":
        raise ConfigError(f"server.otel: {METRICS_EXPORTER} is {exporter}; use otlp, or none and GET /metrics")
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return GenAiMetrics(MeterProvider([reader], resource, shutdown_on_exit=False), version)


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
        at = _clock()
        start, end = at(record.started_at), at(record.started_at + record.elapsed_s)
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

    def _model(self, record: Record, usage: ModelUse, operation: str, inside: Context, at: Nanoseconds) -> None:
        stages = list(_stages(usage))
        start = usage.began_at or record.started_at
        end = max([record.started_at + record.elapsed_s, *(started + seconds for _, started, seconds in stages)])
        span = self._tracer.start_span(
            f"{operation} {usage.model}", inside, attributes=_gen_ai(usage, operation), start_time=at(start)
        )
        if record.error:
            span.set_attribute("error.type", record.error)
            span.set_status(Status(StatusCode.ERROR, record.error))
        within = set_span_in_context(span)
        for name, started, seconds in stages:
            self._tracer.start_span(name, within, start_time=at(started)).end(at(started + seconds))
        span.end(at(end))

    def close(self) -> None:
        """Send the remaining spans and metrics. Blocks, at most for `CLOSE_S` seconds."""
        ends = [self._provider.shutdown] if self._metrics is None else [self._provider.shutdown, self._metrics.close]
        threads = [threading.Thread(target=end, name="otel-end", daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + CLOSE_S
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        if any(thread.is_alive() for thread in threads):
            logger.warning("the collector did not answer within %g s: the last spans or metrics are lost", CLOSE_S)


def _clock() -> Nanoseconds:
    """Return a function that converts `time.perf_counter` values to unix nanoseconds."""
    offset = time.time() - time.perf_counter()
    return lambda at: int((at + offset) * _NS)


def _http(record: Record, user_agent: str) -> dict[str, AttributeValue]:
    optional = {"llamapool.key.name": record.key, "error.type": record.error, "user_agent.original": user_agent}
    return {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "url.path": record.path,
        "llamapool.request.id": record.id,
        **{name: value for name, value in optional.items() if value},
    }


def _gen_ai(usage: ModelUse, operation: str) -> dict[str, AttributeValue]:
    attributes = model_attributes(usage, operation) | {
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
    return attributes


def _stages(usage: ModelUse) -> Iterator[tuple[str, float, float]]:
    """Yield each stage that the request reached, with its start (`time.perf_counter`) and duration in seconds."""
    yield "load", usage.began_at, usage.load_s
    at = usage.submitted_at
    if not at:
        return
    yield "prepare", at - usage.prepare_s, usage.prepare_s
    for name in STAGES[2:]:
        seconds: float = getattr(usage, f"{name}_s")
        if seconds or usage.decoding_since:
            yield name, at, seconds
        at += seconds


def create_tracing(version: str) -> Tracing:
    """Return the OTLP exporter that OpenTelemetry's variables configure. Raises ConfigError for another protocol.

    Raises ImportError if the exporter is not installed.
    """
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    if protocol not in ("", "http/protobuf"):
        raise ConfigError(
            f"server.otel: OTLP's protocol is {protocol}; use http/protobuf, which collectors accept, too"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    known = {SERVICE_VERSION: version}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        known[SERVICE_NAME] = "llamapool"
    resource = Resource.create(known)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider, version, configured_metrics(resource, version))
