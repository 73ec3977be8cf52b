"""Metrics of engines, and rates over time windows."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from server.engine.stats import EngineStats, combined
from server.metrics.collector import WINDOW_S, EngineCollector, Ledger, Windows
from server.metrics.exposition import Metrics
from tests.unit.clock import Clock


@dataclass
class Engine:
    """An engine as far as the ledger looks."""

    stats: EngineStats


def render(stats: EngineStats) -> str:
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: {"demo": stats}, Windows()))
    return generate_latest(registry).decode()


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


def test_the_peak_is_a_counter_as_in_llama_server_where_the_format_allows_it() -> None:
    ledger_of_one = {"demo": Engine(EngineStats(n_tokens_max=9))}
    metrics = Metrics()
    metrics.ledger.note(ledger_of_one)
    text = metrics.render("")[0]
    assert b"# TYPE llamacpp:n_tokens_max counter\nllamacpp:n_tokens_max 9\n" in text
    assert b'# TYPE llamapool_n_tokens_max counter\nllamapool_n_tokens_max{model="demo"} 9\n' in text
    text = metrics.render("application/openmetrics-text; version=1.0.0")[0]
    assert b"# TYPE llamacpp:n_tokens_max gauge\n" in text


def test_whole_numbers_have_no_decimal_point_as_in_llama_server() -> None:
    metrics = Metrics()
    metrics.ledger.note({"demo": Engine(EngineStats(prompt_tokens=120, n_decode=2, n_busy_slots=3))})
    for text in (metrics.render("", "demo")[0], metrics.render("")[0]):
        assert b"\nllamacpp:prompt_tokens_total 120\n" in text
        assert b"\nllamacpp:requests_processing 0\n" in text
        assert b"\nllamacpp:n_busy_slots_per_decode 1.5\n" in text


def stats(tokens: int, gaps: tuple[float, ...] = ()) -> EngineStats:
    made = EngineStats(prompt_tokens=tokens, prompt_seconds=tokens / 20)
    for gap in gaps:
        made.inter_token.observe(gap)
    return made


def test_looks_take_nothing_from_each_other() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    for second in range(40):
        clock.now = 1000.0 + second
        for _ in range(3):  # scrapers
            rates = windows.rates("demo", stats(40, (0.25, 0.25)))
            assert rates == ((20.0, 4.0) if second < WINDOW_S else (0.0, 0.0))


def test_a_pause_between_looks_is_one_window() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    windows.rates("demo", stats(40))
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 20.0
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 0.0


def test_the_budget_of_a_key_is_used_in_no_month_but_its_own() -> None:
    spent = {"ada": (5, 9)}
    metrics = Metrics(spent=lambda: spent)
    assert b'llamapool_key_budget_used_tokens{key="ada",period="month"} 9\n' in metrics.render("")[0]
    spent.clear()  # as in a new month
    assert b'key="ada"' not in metrics.render("")[0]


def test_a_model_that_is_gone_is_released_and_its_counts_stay() -> None:
    ledger = Ledger()
    ledger.note({"demo": Engine(EngineStats(prompt_tokens=120, cache_ram_bytes=5))})
    ledger.note({"other": Engine(EngineStats(prompt_tokens=1))})
    gone = ledger.totals()["demo"]
    assert (gone.prompt_tokens, gone.cache_ram_bytes) == (120, 0)
