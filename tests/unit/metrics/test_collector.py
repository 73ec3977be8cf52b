"""Metrics of engines, their counters after an unload, and rates over time windows."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from server.engine.stats import EngineStats, combined
from server.metrics.collector import WINDOW_S, EngineCollector, Ledger, Windows
from server.metrics.exposition import Metrics
from tests.unit.clock import Clock


@dataclass
class Engine:
    """The part of an engine that the ledger reads."""

    stats: EngineStats


def render(stats: EngineStats) -> str:
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: {"demo": stats}, Windows()))
    return generate_latest(registry).decode()


def test_accepted_draft_tokens_are_counted_by_position() -> None:
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


def test_n_tokens_max_is_a_counter_except_in_openmetrics() -> None:
    engines = {"demo": Engine(EngineStats(n_tokens_max=9))}
    metrics = Metrics()
    metrics.ledger.note(engines)
    text = metrics.render("")[0]
    assert b"# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 9\n" in text
    assert b'# TYPE llamapool_n_tokens_max counter\nllamapool_n_tokens_max{model="demo"} 9\n' in text
    text = metrics.render("application/openmetrics-text; version=1.0.0")[0]
    assert b"# TYPE llamacpp:n_tokens_max gauge\n" in text


def test_whole_numbers_have_no_decimal_point() -> None:
    metrics = Metrics()
    metrics.ledger.note({"demo": Engine(EngineStats(prompt_tokens=120, n_decode=2, n_busy_slots=3))})
    for text in (metrics.render("", "demo")[0], metrics.render("")[0]):
        assert b"\nllamacpp:prompt_tokens_total 120\n" in text
        assert b"\nllamacpp:requests_processing 0\n" in text
        assert b"\nllamacpp:n_busy_slots_per_decode 1.5\n" in text


def stats(tokens: int, gaps: tuple[float, ...] = ()) -> EngineStats:
    found = EngineStats(prompt_tokens=tokens, prompt_seconds=tokens / 20)
    for gap in gaps:
        found.inter_token.observe(gap)
    return found


def test_concurrent_scrapes_get_the_same_rates() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    for second in range(40):
        clock.now = 1000.0 + second
        for _ in range(3):  # scrapers
            rates = windows.rates("demo", stats(40, (0.25, 0.25)))
            assert rates == ((20.0, 4.0) if second < WINDOW_S else (0.0, 0.0))


def test_rate_after_a_pause_covers_the_whole_pause() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    windows.rates("demo", stats(40))
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 20.0
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 0.0


def test_used_budget_of_a_key_is_dropped_in_a_new_month() -> None:
    spent = {"ada": (5, 9)}
    metrics = Metrics(spent=lambda: spent)
    assert b'llamapool_key_budget_used_tokens{key="ada",period="month"} 9\n' in metrics.render("")[0]
    spent.clear()  # as in a new month
    assert b'key="ada"' not in metrics.render("")[0]


def test_counters_of_an_unloaded_model_stay_and_its_gauges_are_zero() -> None:
    ledger = Ledger()
    ledger.note({"demo": Engine(EngineStats(prompt_tokens=120, cache_ram_bytes=5))})
    ledger.note({"other": Engine(EngineStats(prompt_tokens=1))})
    unloaded = ledger.totals()["demo"]
    assert (unloaded.prompt_tokens, unloaded.cache_ram_bytes) == (120, 0)
