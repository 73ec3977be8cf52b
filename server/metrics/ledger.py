"""Totals per model that never decrease, although a model's statistics restart with each load."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from server.engine.stats import EngineStats, combined, ended


class Counted(Protocol):
    """A loaded model, as far as the ledger reads it."""

    @property
    def stats(self) -> EngineStats:
        """Totals since the load; readable after the engine was closed, too."""


@dataclass(slots=True)
class _Account:
    """One model: the sum of its earlier loads, and the engine that counts now."""

    past: EngineStats = field(default_factory=EngineStats)
    engine: Counted | None = None


class Ledger:
    """Sums the statistics of all loads of each model."""

    def __init__(self) -> None:
        self._counters: dict[str, _Account] = {}

    def note(self, engines: Mapping[str, Counted | None]) -> None:
        """Begin to count new engines, and add up those that are gone. Call it on each change of a model's status, and
        before `totals`.
        """
        for model, engine in engines.items():
            account = self._counters.setdefault(model, _Account())
            if account.engine is engine:
                continue
            if account.engine is not None:
                account.past = combined(account.past, ended(account.engine.stats))
            account.engine = engine

    def totals(self) -> dict[str, EngineStats]:
        """Return the stats by model id over all loads; gauges are those of the current load."""
        return {
            model: combined(account.past, account.engine.stats) if account.engine else account.past
            for model, account in self._counters.items()
        }
