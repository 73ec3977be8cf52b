from dataclasses import dataclass
from typing import Any

from server.engine.stats import EngineStats
from server.metrics.ledger import Ledger


@dataclass
class Engine:
    """An engine as far as the ledger looks."""

    stats: EngineStats


def engine(**values: Any) -> Engine:
    return Engine(EngineStats(**values))


def test_totals_go_on_when_a_model_is_loaded_again() -> None:
    ledger = Ledger()
    ledger.note({"a": engine(prompt_tokens=3, n_tokens_max=9)})
    ledger.note({"a": None})
    assert ledger.totals()["a"].prompt_tokens == 3
    ledger.note({"a": engine(prompt_tokens=4, n_tokens_max=5)})
    assert ledger.totals()["a"].prompt_tokens == 7
    assert ledger.totals()["a"].n_tokens_max == 9


def test_what_was_counted_between_the_last_look_and_the_unload_is_kept() -> None:
    ledger, running = Ledger(), engine()
    ledger.note({"a": running})
    running.stats.predicted_tokens = 50
    running.stats.queue_time.observe(0.2)
    ledger.note({"a": None})
    assert ledger.totals()["a"].predicted_tokens == 50
    assert sum(ledger.totals()["a"].queue_time.counts) == 1


def test_gauges_are_of_the_present_load_only() -> None:
    ledger = Ledger()
    ledger.note({"a": engine(n_processing=2, n_deferred=3)})
    assert ledger.totals()["a"].n_processing == 2
    ledger.note({"a": None})
    assert (ledger.totals()["a"].n_processing, ledger.totals()["a"].n_deferred) == (0, 0)


def test_a_reload_that_was_never_seen_empty_counts_both_engines() -> None:
    ledger = Ledger()
    ledger.note({"a": engine(n_decode=1)})
    ledger.note({"a": engine(n_decode=2)})
    assert ledger.totals()["a"].n_decode == 3


def test_a_model_that_was_never_loaded_has_zeros() -> None:
    ledger = Ledger()
    ledger.note({"a": None})
    assert ledger.totals() == {"a": EngineStats()}


def test_histograms_add_up() -> None:
    first, second = engine(), engine()
    first.stats.request_duration.observe(0.3)
    second.stats.request_duration.observe(400.0)
    ledger = Ledger()
    ledger.note({"a": first})
    ledger.note({"a": second})
    total = ledger.totals()["a"].request_duration
    assert (sum(total.counts), total.counts[-1], total.sum) == (2, 1, 400.3)
