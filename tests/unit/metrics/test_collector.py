import re
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from server.engine.stats import EngineStats, Histogram, combined
from server.metrics.collector import EngineCollector, buckets
from server.metrics.exposition import Metrics
from server.metrics.windows import Windows
from server.telemetry.record import Record


@dataclass
class Engine:
    """An engine as far as the ledger looks."""

    stats: EngineStats


def render(stats: EngineStats, model: str = "demo") -> str:
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: {model: stats}, Windows()))
    return generate_latest(registry).decode()


def test_names_and_help_are_llama_servers() -> None:
    text = render(EngineStats(prompt_tokens=3, n_decode=2, n_busy_slots=3))
    for prefix, label in (("llamacpp:", ""), ("llamapool_", '{model="demo"}')):
        assert (
            f"# HELP {prefix}prompt_tokens_total Number of prompt tokens processed, excluding cached tokens\n"
            f"# TYPE {prefix}prompt_tokens_total counter\n"
            f"{prefix}prompt_tokens_total{label} 3.0\n"
        ) in text
    assert "llamacpp:n_busy_slots_per_decode 1.5\n" in text
    for name in (
        *("prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_total", "n_decode_total"),
        *("tokens_predicted_seconds_total", "n_tokens_max", "spec_decode_num_draft_tokens_total"),
        *("spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total", "prompt_tokens_seconds"),
        *("predicted_tokens_seconds", "requests_processing", "requests_deferred"),
    ):
        assert f"\nllamacpp:{name} " in text
        assert f'\nllamapool_{name}{{model="demo"}} ' in text


def test_drafts_are_counted_by_position_once_there_are_any() -> None:
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    stats = EngineStats()
    assert name not in render(stats)
    stats.add_draft(3, 2)
    stats.add_draft(2, 1)
    text = render(stats)
    assert f"# HELP {name} Accepted tokens per draft position\n# TYPE {name} counter\n" in text
    found = [line.split()[1] for line in text.splitlines() if line.startswith(name)]
    assert found == ["2.0", "1.0", "0.0"]
    assert combined(stats, EngineStats(accepted_at=[1])).accepted_at == [3, 1, 0]
    assert f'{name}{{position="1"}} 1.0\n' in text
    assert 'llamapool_spec_decode_num_accepted_tokens_per_pos_total{model="demo",position="1"} 1.0\n' in text


def test_histograms_are_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.0004, 0.02, 500.0):
        histogram.observe(seconds)
    counts = dict(buckets(histogram))
    assert (counts["0.001"], counts["0.01"], counts["0.025"], counts["300.0"], counts["+Inf"]) == (1, 1, 2, 2, 3)


def test_a_models_name_cannot_break_the_format() -> None:
    assert 'model="a\\"b\\nc"' in render(EngineStats(), 'a"b\nc')


def test_each_application_has_its_own_registry() -> None:
    one, other = Metrics(), Metrics()
    one.ended(Record("1", "GET", "/health", route="/health", status=200))
    assert b'path_template="/health"' in one.render("")[0]
    assert b'path_template="/health"' not in other.render("")[0]


def test_the_peak_is_a_counter_as_in_llama_server_where_the_format_allows_it() -> None:
    ledger_of_one = {"demo": Engine(EngineStats(n_tokens_max=9))}
    metrics = Metrics()
    metrics._ledger.note(ledger_of_one)
    text = metrics.render("")[0]
    assert b"# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 9\n" in text
    assert b'# TYPE llamapool_n_tokens_max counter\nllamapool_n_tokens_max{model="demo"} 9\n' in text
    text = metrics.render("application/openmetrics-text; version=1.0.0")[0]
    assert b"# TYPE llamacpp:n_tokens_max gauge\n" in text


def test_whole_numbers_have_no_decimal_point_as_in_llama_server() -> None:
    metrics = Metrics()
    metrics._ledger.note({"demo": Engine(EngineStats(prompt_tokens=120, n_decode=2, n_busy_slots=3))})
    for text in (metrics.render("", "demo")[0], metrics.render("")[0]):
        assert b"\nllamacpp:prompt_tokens_total 120\n" in text
        assert b"\nllamacpp:requests_processing 0\n" in text
        assert b"\nllamacpp:n_busy_slots_per_decode 1.5\n" in text


def test_openmetrics_is_given_to_those_who_ask() -> None:
    assert Metrics().render("")[1].startswith("text/plain; version=0.0.4")
    body, content_type = Metrics().render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_the_process_is_measured() -> None:
    assert b"process_resident_memory_bytes" in Metrics().render("")[0]


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=1.0.0",
        "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.6,text/plain;version=0.0.4;q=0.3",
        "text/plain;version=1.0.0;escaping=underscores",
    ],
)
def test_names_are_the_same_in_every_format(accept: str) -> None:
    """Prometheus asks for OpenMetrics first."""

    def names(text: bytes) -> set[bytes]:
        return {re.split(rb"[ {]", line)[0] for line in text.splitlines() if not line.startswith(b"#")}

    metrics = Metrics()
    metrics._ledger.note({"demo": Engine(EngineStats())})
    plain, asked = metrics.render("")[0], metrics.render(accept)[0]
    assert names(plain) == names(asked)
    assert b"llamacpp:n_decode_total" in names(asked)
