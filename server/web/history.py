"""The last hour in numbers, for the page: a sample of every engine's totals each `EVERY_S`, kept in memory."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce

from server.engine.stats import EngineStats, Histogram, combined
from server.metrics.collector import Ledger
from server.pool.state import ModelState

EVERY_S = 10.0
KEPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The seconds before ``at`` (unix seconds), summed over all models; None where there was no activity.

    ``first_token`` and ``gap``: median and 95th percentile in seconds, at the resolution of the histogram's buckets.
    ``hit_rate``: fraction of prompt tokens from a cache. ``memory``: bytes of the loaded models.
    """

    at: float
    first_token: tuple[float, float] | None
    gap: tuple[float, float] | None
    generated_per_s: float
    prompt_per_s: float
    hit_rate: float | None
    running: int
    waiting: int
    memory: int
    ram_cache: int
    disk_cache: int


class History:
    """Samples of the last hour. Used on the event loop."""

    def __init__(self, states: Callable[[], Sequence[ModelState]], clock: Callable[[], float] = time.time) -> None:
        self._states = states
        self._clock = clock
        self._ledger = Ledger()
        self._before = EngineStats()
        self._sampled_at = clock()
        self.samples: deque[Sample] = deque(maxlen=int(KEPT_S / EVERY_S))
        self.n_samples = 0

    async def keep(self) -> None:
        """Take samples until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.sample()

    def sample(self) -> None:
        """Add the activity since the last sample."""
        now, states = self._clock(), self._states()
        self._ledger.note({state.spec.id: state.loaded for state in states})
        stats, before = reduce(combined, self._ledger.totals().values(), EngineStats()), self._before
        loaded = [state.facts for state in states if state.loaded is not None and state.facts is not None]
        n_prompt = stats.prompt_tokens - before.prompt_tokens
        n_cached = stats.prompt_tokens_cached - before.prompt_tokens_cached
        elapsed = max(now - self._sampled_at, 1e-3)
        self._before, self._sampled_at = stats, now
        self.n_samples += 1
        self.samples.append(
            Sample(
                at=round(now, 1),
                first_token=quantiles(_since(stats.time_to_first_token, before.time_to_first_token)),
                gap=quantiles(_since(stats.inter_token, before.inter_token)),
                generated_per_s=(stats.predicted_tokens - before.predicted_tokens) / elapsed,
                prompt_per_s=n_prompt / elapsed,
                hit_rate=n_cached / (n_prompt + n_cached) if n_prompt + n_cached else None,
                running=stats.n_processing,
                waiting=stats.n_deferred,
                memory=sum(taken.total for facts in loaded for taken in facts.footprint.values()),
                ram_cache=stats.cache_ram_bytes,
                disk_cache=stats.cache_disk_bytes,
            )
        )

    def shown(self) -> list[dict[str, object]]:
        """Return all samples, the oldest first."""
        return [asdict(sample) for sample in self.samples]


def quantiles(counts: Sequence[int], wanted: Iterable[float] = (0.5, 0.95)) -> tuple[float, float] | None:
    """Return two quantiles of a histogram, interpolated within the engine's bounds; None if it is empty."""
    n = sum(counts)
    if not n:
        return None
    first, second = (_quantile(counts, n * part) for part in wanted)
    return first, second


def _quantile(counts: Sequence[int], rank: float) -> float:
    bounds, below, low = Histogram().bounds, 0, 0.0
    for count, high in zip(counts, bounds, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below, low = below + count, high
    return low


def _since(now: Histogram, before: Histogram) -> list[int]:
    return [a - b for a, b in zip(now.counts, before.counts, strict=True)]
