"""Recent throughput, which is the same for every scraper: a scrape does not reset another scraper's window.

llama-server's gauges (llama.cpp tools/server/server-common.h, server_metrics::bucket) average since the last scrape
by anyone.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from server.engine.stats import EngineStats

WINDOW_S = 15.0
"""Minimum length of the averaging window, if there was a scrape that long ago."""
_APART_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """Totals of tokens, and of the seconds that they took."""

    at: float = -math.inf
    prompt: float = 0.0
    prompt_s: float = 0.0
    predicted: float = 0.0
    predicted_s: float = 0.0


class Windows:
    """Of each model by its name. Used on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[str, deque[_Sample]] = {}

    def rates(self, model: str, stats: EngineStats) -> tuple[float, float]:
        """Return prompt and generated tokens per second of computation, since the latest scrape that is at least
        `WINDOW_S` old; 0 if nothing ran.

        A choice's first token comes from the prompt's last step, so it takes no time of its own and isn't counted.
        """
        gaps, at = stats.inter_token, self._clock()
        now = _Sample(at, stats.prompt_tokens, stats.prompt_seconds, sum(gaps.counts), gaps.sum)
        samples = self._samples.setdefault(model, deque((_Sample(),)))
        while len(samples) > 1 and at - samples[1].at >= WINDOW_S:
            samples.popleft()
        before = samples[0]
        if at - samples[-1].at >= _APART_S:
            samples.append(now)
        return (
            _rate(now.prompt - before.prompt, now.prompt_s - before.prompt_s),
            _rate(now.predicted - before.predicted, now.predicted_s - before.predicted_s),
        )


def _rate(n: float, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0
