from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from server.engine.stats import EngineStats, Histogram
from server.metrics.collector import EngineCollector, buckets
from server.metrics.exposition import Metrics


def render(stats: EngineStats, model: str = "demo") -> str:
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: {model: stats}))
    return generate_latest(registry).decode()


def test_names_and_help_are_llama_servers():
    text = render(EngineStats(prompt_tokens=3, n_decode=2, n_busy_slots=3))
    assert (
        "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens\n"
        "# TYPE llamacpp:prompt_tokens_total counter\n"
        'llamacpp:prompt_tokens_total{model="demo"} 3.0\n'
    ) in text
    assert 'llamacpp:n_busy_slots_per_decode{model="demo"} 1.5\n' in text
    for name in (
        *("prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_total", "n_decode_total"),
        *("tokens_predicted_seconds_total", "n_tokens_max", "spec_decode_num_draft_tokens_total"),
        *("spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total", "prompt_tokens_seconds"),
        *("predicted_tokens_seconds", "requests_processing", "requests_deferred"),
    ):
        assert f'\nllamacpp:{name}{{model="demo"}} ' in text


def test_rates_are_averages_since_the_last_scrape():
    stats = EngineStats(predicted_tokens=10, predicted_seconds=2.0)
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: {"demo": stats}))

    def rate() -> float | None:
        return registry.get_sample_value("llamacpp:predicted_tokens_seconds", {"model": "demo"})

    assert rate() == 5.0
    assert rate() == 0.0
    stats.predicted_tokens, stats.predicted_seconds = 40, 3.0
    assert rate() == 30.0


def test_histograms_are_cumulative():
    histogram = Histogram()
    for seconds in (0.0004, 0.02, 500.0):
        histogram.observe(seconds)
    counts = dict(buckets(histogram))
    assert (counts["0.001"], counts["0.01"], counts["0.025"], counts["300.0"], counts["+Inf"]) == (1, 1, 2, 2, 3)


def test_a_models_name_cannot_break_the_format():
    assert 'model="a\\"b\\nc"' in render(EngineStats(), 'a"b\nc')


def test_each_application_has_its_own_registry():
    one, other = Metrics(), Metrics()
    one.count_request("/health", "GET", 200)
    assert b'path_template="/health"' in one.render("", [])[0]
    assert b'path_template="/health"' not in other.render("", [])[0]


def test_openmetrics_is_given_to_those_who_ask():
    assert Metrics().render("", [])[1].startswith("text/plain; version=0.0.4")
    body, content_type = Metrics().render("application/openmetrics-text; version=1.0.0", [])
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_the_process_is_measured():
    assert b"process_resident_memory_bytes" in Metrics().render("", [])[0]
