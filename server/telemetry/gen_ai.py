"""OpenTelemetry's conventions for generative AI: operation names, and histograms of request duration, time to first
token and time per output token (in development as of 2026).
"""

import os

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AttributeValue

from server.errors import ConfigError
from server.telemetry.record import Record, Usage

WANTED = "OTEL_METRICS_EXPORTER"
"""OpenTelemetry's variable for the metrics exporter. Nothing is sent unless it is ``otlp``: a collector of traces may
not accept metrics, and ``GET /metrics`` has more.
"""
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/api/chat": "chat",
    "/v1/embeddings": "embeddings",
    "/embedding": "embeddings",
    "/embeddings": "embeddings",
    "/api/embed": "embeddings",
}
_OTHER = "text_completion"
_DURATIONS = [0.01 * 2**n for n in range(14)]
_FIRST = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_FURTHER = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]


def operation_of(path: str) -> str:
    """Return the operation of a route's path without the server's prefix."""
    return _OPERATIONS.get(path, _OTHER)


def called(usage: Usage, operation: str) -> dict[str, AttributeValue]:
    """Return the attributes for a request's operation and model, which spans and metrics share."""
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
            meter.create_histogram(f"gen_ai.server.{name}", "s", says, explicit_bucket_boundaries_advisory=bounds)
            for name, says, bounds in (
                ("request.duration", "From a request's arrival to its reply's end", _DURATIONS),
                ("time_to_first_token", "From a request's arrival to its first token", _FIRST),
                ("time_per_output_token", "Time of each token after the first", _FURTHER),
            )
        )

    def ended(self, record: Record, usage: Usage, operation: str) -> None:
        """Count a request; the time of tokens only where nothing failed."""
        attributes = called(usage, operation)
        if record.error:
            self._duration.record(record.elapsed_s, attributes | {"error.type": record.error})
            return
        self._duration.record(record.elapsed_s, attributes)
        if usage.decoding_since:
            self._first.record(usage.decoding_since - record.started_at, attributes)
            n_further = usage.n_predicted / max(len(usage.reasons), 1) - 1  # of a choice
            if n_further > 0:
                self._further.record(usage.decode_s / n_further, attributes)

    def close(self) -> None:
        """Send the remaining metrics. Blocks."""
        self._provider.shutdown()


def wanted_metrics(resource: Resource, version: str) -> GenAiMetrics | None:
    """Return the OTLP metrics that OpenTelemetry's variables configure; None if they don't. Raises ConfigError."""
    wanted = os.environ.get(WANTED, "")
    if wanted in ("", "none"):
        return None
    if wanted != "otlp":
        raise ConfigError(f"server.otel: {WANTED} is {wanted}; use otlp, or none and GET /metrics")
    return GenAiMetrics(MeterProvider([PeriodicExportingMetricReader(_exporter())], resource), version)


def _exporter() -> MetricExporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise ConfigError(f"server.otel: {error}; pip install 'llamapool[otel]'") from None
    exporter: MetricExporter = OTLPMetricExporter()
    return exporter
