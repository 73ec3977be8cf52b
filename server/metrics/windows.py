"""Throughput lately, the same for everybody who asks: no scrape ends the window of another one.

llama-server's gauges (llama.cpp tools/server/server-common.h, server_metrics::bucket) are averages since the last
scrape, whoever's that was.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from server.engine.stats import EngineStats

WINDOW_S = 15.0
"""That an average reaches back at least, as far as somebody has looked."""
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
        """Prompt and generated tokens per second of work, since the newest look that is `WINDOW_S` old or older; 0 when
        nothing ran.

        A choice's first token comes out of the prompt's last step, so it costs no time of its own and isn't counted.
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
