"""The last hour in numbers, for the page: a sample of every engine's totals each `EVERY_S`, kept in memory."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from server.engine.stats import EngineStats, Histogram
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


@dataclass(frozen=True, slots=True)
class _Totals:
    """Totals of one engine at the last sample."""

    first_token: tuple[int, ...] = ()
    gap: tuple[int, ...] = ()
    n_generated: int = 0
    n_prompt: int = 0
    n_cached: int = 0

    @classmethod
    def of(cls, stats: EngineStats) -> "_Totals":
        first, gap = tuple(stats.time_to_first_token.counts), tuple(stats.inter_token.counts)
        return cls(first, gap, stats.predicted_tokens, stats.prompt_tokens, stats.prompt_tokens_cached)

    def since(self, before: "_Totals") -> "_Totals":
        return _Totals(
            _less(self.first_token, before.first_token),
            _less(self.gap, before.gap),
            self.n_generated - before.n_generated,
            self.n_prompt - before.n_prompt,
            self.n_cached - before.n_cached,
        )

    def __add__(self, other: "_Totals") -> "_Totals":
        return _Totals(
            _more(self.first_token, other.first_token),
            _more(self.gap, other.gap),
            self.n_generated + other.n_generated,
            self.n_prompt + other.n_prompt,
            self.n_cached + other.n_cached,
        )


class History:
    """Samples of the last hour. Used on the event loop."""

    def __init__(self, states: Callable[[], Sequence[ModelState]], clock: Callable[[], float] = time.time) -> None:
        self._states = states
        self._clock = clock
        self._before: dict[tuple[str, float], _Totals] = {}  # by model and when it was loaded
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
        now, totals, stats = self._clock(), {}, EngineStats()
        memory = ram = disk = running = waiting = 0
        for state in self._states():
            if state.loaded is None:
                continue
            stats = state.loaded.stats
            totals[state.spec.id, state.loaded.loaded_at] = _Totals.of(stats)
            running, waiting = running + stats.n_processing, waiting + stats.n_deferred
            ram, disk = ram + stats.cache_ram_bytes, disk + stats.cache_disk_bytes
            if state.facts is not None:
                memory += sum(taken.total for taken in state.facts.footprint.values())
        new = sum((has.since(self._before.get(key, _Totals())) for key, has in totals.items()), _Totals())
        elapsed = max(now - self._sampled_at, 1e-3)
        self._before, self._sampled_at = totals, now
        n_prompt = new.n_prompt + new.n_cached
        self.n_samples += 1
        self.samples.append(
            Sample(
                at=round(now, 1),
                first_token=quantiles(new.first_token),
                gap=quantiles(new.gap),
                generated_per_s=new.n_generated / elapsed,
                prompt_per_s=new.n_prompt / elapsed,
                hit_rate=new.n_cached / n_prompt if n_prompt else None,
                running=running,
                waiting=waiting,
                memory=memory,
                ram_cache=ram,
                disk_cache=disk,
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


def _less(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True)) if b else a


def _more(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True)) if a and b else a or b
