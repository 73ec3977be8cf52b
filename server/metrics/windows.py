"""Throughput between two scrapes (llama.cpp tools/server/server-common.h, server_metrics::bucket)."""

from dataclasses import dataclass, field

from server.engine.stats import EngineStats


@dataclass(slots=True)
class _Window:
    """The totals when the window began."""

    steps: float = 0
    seconds: float = 0.0

    def close(self, steps: float, seconds: float) -> float:
        """Steps per second since the window began, 0 when nothing ran; the next one begins."""
        n, elapsed = steps - self.steps, seconds - self.seconds
        self.steps, self.seconds = steps, seconds
        return n / elapsed if elapsed > 0 else 0.0


@dataclass(slots=True)
class _Pair:
    prompt: _Window = field(default_factory=_Window)
    predicted: _Window = field(default_factory=_Window)


class Windows:
    """One pair of windows for each model, shared by all views of the metrics."""

    def __init__(self) -> None:
        self._pairs: dict[str, _Pair] = {}

    def rates(self, model: str, stats: EngineStats) -> tuple[float, float]:
        """Prompt and generated tokens per second since the last call.

        A choice's first token comes out of the prompt's last step, so it costs no time of its own and isn't counted.
        """
        pair = self._pairs.setdefault(model, _Pair())
        gaps = stats.inter_token
        return (
            pair.prompt.close(stats.prompt_tokens, stats.prompt_seconds),
            pair.predicted.close(sum(gaps.counts), gaps.sum),
        )
