"""Totals per model that never go backwards, although a model's statistics begin anew with each load."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol

from server.engine.stats import EngineStats, Histogram
from server.pool.state import ModelState

_PEAKS = frozenset({"n_tokens_max"})
_GAUGES = frozenset({"n_processing", "n_deferred"})


class Counted(Protocol):
    """What the ledger needs of an engine."""

    @property
    def stats(self) -> EngineStats:
        """Totals since the load; readable after the engine was closed, too."""


@dataclass(slots=True)
class _Account:
    """One model: the sum of its earlier loads, and the engine that counts now."""

    past: EngineStats = field(default_factory=EngineStats)
    engine: Counted | None = None


class Ledger:
    """Remembers every engine it was shown. It must be shown each load once while it lasts: see `observe`."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def observe(self, states: Iterable[ModelState]) -> None:
        """Look at the pool: begin to count new engines, and add up those that are gone.

        To be called on each change of a model's status, and before `totals`.
        """
        self.note({s.spec.id: s.loaded.engine if s.loaded else None for s in states})

    def note(self, engines: Mapping[str, Counted | None]) -> None:
        """The same, by model id."""
        for model, engine in engines.items():
            account = self._accounts.setdefault(model, _Account())
            if account.engine is engine:
                continue
            if account.engine is not None:
                account.past = total(account.past, account.engine.stats, running=False)
            account.engine = engine

    def totals(self) -> dict[str, EngineStats]:
        """By model id, over all loads; gauges are of the present one."""
        return {
            model: total(account.past, account.engine.stats) if account.engine else account.past
            for model, account in self._accounts.items()
        }


def total(past: EngineStats, present: EngineStats, *, running: bool = True) -> EngineStats:
    """The sum of two. Gauges come from `present`, or are 0 when its engine no longer runs."""
    result = EngineStats()
    for f in fields(EngineStats):
        old, new = getattr(past, f.name), getattr(present, f.name)
        setattr(result, f.name, _combine(f.name, old, new, running=running))
    return result


def _combine(name: str, old: float | Histogram, new: float | Histogram, *, running: bool) -> float | Histogram:
    if isinstance(old, Histogram) and isinstance(new, Histogram):
        counts = [a + b for a, b in zip(old.counts, new.counts, strict=True)]
        return Histogram(bounds=new.bounds, counts=counts, sum=old.sum + new.sum)
    assert isinstance(old, int | float)
    assert isinstance(new, int | float)
    if name in _GAUGES:
        return new if running else 0
    return max(old, new) if name in _PEAKS else old + new
