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


def test_what_was_counted_between_the_last_look_and_the_unload_is_kept() -> None:
    ledger, running = Ledger(), engine()
    ledger.note({"a": running})
    running.stats.predicted_tokens = 50
    running.stats.queue_time.observe(0.2)
    ledger.note({"a": None})
    assert ledger.totals()["a"].predicted_tokens == 50
    assert sum(ledger.totals()["a"].queue_time.counts) == 1


def test_a_reload_that_was_never_seen_empty_counts_both_engines() -> None:
    ledger = Ledger()
    ledger.note({"a": engine(n_decode=1)})
    ledger.note({"a": engine(n_decode=2)})
    assert ledger.totals()["a"].n_decode == 3


def test_a_model_that_was_never_loaded_has_zeros() -> None:
    ledger = Ledger()
    ledger.note({"a": None})
    assert ledger.totals() == {"a": EngineStats()}
