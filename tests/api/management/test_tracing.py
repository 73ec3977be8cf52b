"""Spans and metrics of requests, as OpenTelemetry's in-memory exporters receive them."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from server.cli.command_line import main
from server.errors import ConfigError
from server.telemetry.tracing import METRICS_EXPORTER, GenAiMetrics, Tracing, configured_metrics, operation_of
from tests.api.conftest import Serve, make_settings
from tests.support.fakes import FakeLoader

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "ignore_eos": True}
STAGES = ["load", "prepare", "queue", "placement", "prefill", "decode"]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Collect the spans of all applications that the test starts."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("server.app.tracing_of", lambda _: Tracing(provider))
    return exporter


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    found = {span.name: span for span in spans.get_finished_spans()}
    assert len(found) == len(spans.get_finished_spans())
    return found


def children(found: Sequence[ReadableSpan], parent: ReadableSpan) -> list[str]:
    return [s.name for s in found if s.parent is not None and s.parent.span_id == parent.context.span_id]


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_request_has_a_span_for_each_stage(
    serve: Serve, spans: InMemorySpanExporter, *, stream: bool
) -> None:
    async with serve(FakeLoader(n_seq=1)) as api:
        body = CHAT | {"stream": stream}
        parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Id": "a-1"}
        assert (await api.client.post("/v1/chat/completions", json=body, headers=parent)).status_code == 200
        found = by_name(spans)
        http, model = found["POST /v1/chat/completions"], found["chat demo"]
        assert f"{http.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
        assert http.parent is not None
        assert (f"{http.parent.span_id:016x}", http.kind) == ("b7ad6b7169203331", SpanKind.SERVER)
        assert http.attributes is not None
        assert http.attributes["http.response.status_code"] == 200
        assert http.attributes["llamapool.request.id"] == "a-1"
        assert children(spans.get_finished_spans(), http) == ["chat demo"]
        assert children(spans.get_finished_spans(), model) == STAGES
        attributes = dict(model.attributes or {})
        assert attributes["gen_ai.operation.name"] == "chat"
        assert attributes["gen_ai.request.model"] == "demo"
        assert attributes["gen_ai.usage.output_tokens"] == 3
        assert attributes["gen_ai.response.finish_reasons"] == ("limit",)
        assert int(str(attributes["gen_ai.usage.input_tokens"])) > 0
        for span in found.values():
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time
            assert span.status.status_code is StatusCode.UNSET


async def test_embeddings_have_a_span_for_computing(serve: Serve, spans: InMemorySpanExporter) -> None:
    async with serve(models={"e": {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}}) as api:
        await api.expect("POST /v1/embeddings", {"input": "hi"})
        model = by_name(spans)["embeddings e"]
        assert children(spans.get_finished_spans(), model) == ["load", "prepare", "prefill"]


async def test_refused_request_has_a_span_with_its_error_type(serve: Serve, spans: InMemorySpanExporter) -> None:
    async with serve(server={"api_prefix": "/llm"}) as api:
        await api.client.post("/llm/v1/completions", json={"prompt": "x" * 999})
        found = by_name(spans)
        http = found["POST /v1/completions"]
        assert http.attributes is not None
        assert (http.attributes["error.type"], http.attributes["http.response.status_code"]) == (
            "context_exceeded",
            400,
        )
        assert http.status.status_code is StatusCode.UNSET  # OpenTelemetry: a 4xx is not a server error
        assert found["text_completion demo"].status.status_code is StatusCode.ERROR


async def test_health_checks_have_no_span(serve: Serve, spans: InMemorySpanExporter) -> None:
    async with serve() as api:
        await api.client.get("/health")
        await api.client.get("/nowhere")
        assert list(by_name(spans)) == ["GET unmatched"]


def points(reader: InMemoryMetricReader) -> dict[tuple[str, str], HistogramDataPoint]:
    """Return the points by metric name, without ``gen_ai.server.``, and by error type, or operation without error."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [m for each in data.resource_metrics for scope in each.scope_metrics for m in scope.metrics]
    found = {}
    for metric, point in [(m, point) for m in metrics for point in m.data.data_points]:
        assert isinstance(point, HistogramDataPoint)
        attributes = dict(point.attributes or {})
        assert (metric.unit, attributes["gen_ai.request.model"]) == ("s", "demo")
        label = attributes.get("error.type", attributes["gen_ai.operation.name"])
        found[metric.name.removeprefix("gen_ai.server."), str(label)] = point
    return found


async def test_metrics_follow_the_gen_ai_conventions(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    metrics = GenAiMetrics(MeterProvider([reader], shutdown_on_exit=False))
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr("server.app.tracing_of", lambda _: Tracing(provider, metrics=metrics))
    async with serve(FakeLoader(n_seq=1)) as api:
        assert (await api.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await api.client.post("/v1/completions", json={"prompt": "x" * 999})).status_code == 400
        await api.client.get("/health")
        found = points(reader)
    names = ("request.duration", "time_to_first_token", "time_per_output_token")
    assert found.keys() == {*((name, "chat") for name in names), ("request.duration", "context_exceeded")}
    assert {point.count for point in found.values()} == {1}
    assert found["time_to_first_token", "chat"].sum <= found["request.duration", "chat"].sum


def test_a_silent_collector_delays_the_shutdown_only_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.telemetry.tracing.CLOSE_S", 0.01)
    answer, ended = threading.Event(), list[str]()

    def silent(name: str) -> None:
        answer.wait(5)
        ended.append(name)

    provider, metrics = TracerProvider(shutdown_on_exit=False), MeterProvider(shutdown_on_exit=False)
    monkeypatch.setattr(provider, "shutdown", lambda: silent("spans"))
    monkeypatch.setattr(metrics, "shutdown", lambda: silent("metrics"))
    Tracing(provider, metrics=GenAiMetrics(metrics)).close()
    assert ended == []
    answer.set()


def test_metrics_exporter_accepts_only_otlp_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for none in ("", "none"):
        monkeypatch.setenv(METRICS_EXPORTER, none)
        assert configured_metrics(Resource({}), "1") is None
    monkeypatch.setenv(METRICS_EXPORTER, "console")
    with pytest.raises(ConfigError, match="use otlp"):
        configured_metrics(Resource({}), "1")


def test_unusable_otel_setup_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from server.app import create_app

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="use http/protobuf"):
        create_app(make_settings(server={"otel": True}), loader=FakeLoader())
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"llamapool\[otel\]"):
        create_app(make_settings(server={"otel": True}), loader=FakeLoader())


def test_unusable_otel_setup_ends_the_start_before_models_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("server.logs.configure", lambda _: None)
    monkeypatch.setattr("server.model_pool.open_pool", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert main(["serve", "-m", str(tmp_path / "m.gguf"), "--port", "0", "--otel"]) == 2
    assert "use http/protobuf" in capsys.readouterr().err


@pytest.mark.slow
def test_telemetry_packages_are_not_imported_by_default() -> None:
    code = (
        "import sys; from server.app import create_app; from tests.api.conftest import make_settings; "
        "from tests.support.fakes import FakeLoader; create_app(make_settings(), loader=FakeLoader()); "
        "print(sys.modules.keys() & {'opentelemetry.sdk', 'server.telemetry.tracing', 'zmq', 'msgpack'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("route", "operation"),
    [
        *((f"{root}/chat/completions", "chat") for root in ("", "/v1")),
        *((f"{root}/responses", "chat") for root in ("", "/v1")),
        *(("/v1/messages", "chat"), ("/api/chat", "chat")),
        *((path, "embeddings") for path in ("/v1/embeddings", "/embedding", "/embeddings", "/api/embed")),
        *((path, "text_completion") for path in ("/completion", "/v1/completions", "/infill", "/api/generate")),
    ],
)
def test_operation_is_derived_from_the_route(route: str, operation: str) -> None:
    assert operation_of(route) == operation
