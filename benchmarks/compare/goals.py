"""Goals by scenario: limits for Llamapool's figures relative to llama-server's of the same run."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["ratio", "difference", "value"]
EQUAL = 0.03
"""A median this close to its limit, after two rounds or more, is neither met nor missed: the machine varies as much."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for the ratio of both servers' figures, for their difference, or for Llamapool's figure (``kind``)."""

    scenario: str
    figure: str
    kind: Kind
    limit: float
    at_least: bool = False

    def reached(self, llamapool: Sequence[float], peer: Sequence[float]) -> list[float]:
        """Return the value of each round that is compared with the limit."""
        if self.kind == "value":
            return list(llamapool)
        pairs = zip(llamapool, peer, strict=False)
        return [a / b for a, b in pairs if b] if self.kind == "ratio" else [a - b for a, b in pairs]

    def verdict(self, reached: Sequence[float]) -> str:
        """Return "met", "equal" (`EQUAL`) or "not met" for the median of the rounds."""
        middle = statistics.median(reached)
        if len(reached) > 1 and abs(middle / self.limit - 1) <= EQUAL:
            return "equal"
        return "met" if (middle >= self.limit if self.at_least else middle <= self.limit) else "not met"

    def description(self) -> str:
        bound = "at least" if self.at_least else "at most"
        return {
            "ratio": f"{bound} {self.limit:g} of llama-server's",
            "difference": f"{bound} {self.limit:g} above llama-server's",
            "value": f"{bound} {self.limit:g}",
        }[self.kind]


def _at_least(limit: float, kind: Kind = "ratio") -> tuple[Kind, float, bool]:
    return kind, limit, True


def _at_most(limit: float, kind: Kind = "ratio") -> tuple[Kind, float, bool]:
    return kind, limit, False


# Limits by scenario and figure, the trained model first.
_LIMITS = {
    "real-one": {"tok/s": _at_least(1.0)},
    "real-slots": {"tok/s": _at_least(1.0)},
    "real-constrained": {"tok/s": _at_least(1.0), "TTFT p50 ms": _at_most(1.1)},
    "real-edit": {"tok/s": _at_least(1.8)},
    "real-quote": {"tok/s": _at_least(1.8)},
    "real-other": {"tok/s": _at_least(0.98)},
    "one": {"tok/s": _at_least(1.0)},
    "slots": {"tok/s": _at_least(1.0)},
    "rate": {"requests/s": _at_least(1.0)},
    "embeddings": {"texts/s": _at_least(1.0)},
    "prefix": {"TTFT p50 ms": _at_most(0.2), "TTFT max ms": _at_most(0.15)},
    "long": {"longest gap ms": _at_most(0.1), "TTFT of the long prompt ms": _at_most(1.15)},
    "contended": {"tok/s": _at_least(3.0)},
    "contended-yielding": {"tok/s": _at_least(1.0)},
    "constrained": {"tok/s": _at_least(2.0), "TTFT p50 ms": _at_most(1.1)},
    "media": {
        "TTFT of a new image ms": _at_most(1.05),
        "TTFT of one cached in another slot ms": _at_most(0.3),
        "TTFT of a second turn ms": _at_most(0.3),
        "TTFT of a second turn after 4 screens ms": _at_most(0.3),
        "TTFT max of 8 with one image ms": _at_most(0.25),
        "gap with an image to gap with a text": _at_most(1.2, "value"),
    },
    "half": {"tok/s": _at_least(1.0)},
    "left": {"tok/s": _at_least(1.5), "of 4 alone": _at_least(0.97, "value")},
    "partial": {f"{n} of 8: tok/s": _at_least(1.0) for n in range(1, 8)},
    "inside": {
        "us a waiter and step": _at_most(50.0, "value"),
        "us a token": _at_most(60.0, "value"),
        "ms a request": _at_most(1.5, "value"),
    },
    "conversations": {"prompt tokens computed": _at_most(0.5)},
    "rest": {
        "start s": _at_most(1.5, "difference"),
        "idle CPU %": _at_most(0.5, "value"),
        "peak MB": _at_most(120.0, "difference"),
    },
    "steady": {"growth MB": _at_most(10.0, "value")},
}
GOALS = tuple(
    Goal(scenario, figure, *limit) for scenario, figures in _LIMITS.items() for figure, limit in figures.items()
)
