"""What is aimed at: Llamapool's figures against the peer's in the same run, scenario by scenario."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["ratio", "difference", "value"]


@dataclass(frozen=True, slots=True)
class Goal:
    """``limit`` is for the quotient of both servers' figures, for their difference, or for Llamapool's own."""

    scenario: str
    figure: str
    kind: Kind
    limit: float
    at_least: bool = False

    def reached(self, ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
        """What the limit is compared with, round by round."""
        if self.kind == "value":
            return list(ours)
        pairs = zip(ours, theirs, strict=False)
        return [a / b for a, b in pairs if b] if self.kind == "ratio" else [a - b for a, b in pairs]

    def met(self, reached: Sequence[float]) -> bool:
        """By the median."""
        middle = statistics.median(reached)
        return middle >= self.limit if self.at_least else middle <= self.limit

    def wanted(self) -> str:
        """In words."""
        bound = "at least" if self.at_least else "at most"
        return {
            "ratio": f"{bound} {self.limit:g} of the peer's",
            "difference": f"{bound} {self.limit:g} above the peer's",
            "value": f"{bound} {self.limit:g}",
        }[self.kind]


GOALS = (
    Goal("one", "tok/s", "ratio", 1.0, at_least=True),
    Goal("slots", "tok/s", "ratio", 1.0, at_least=True),
    Goal("prefix", "TTFT p50 ms", "ratio", 0.2),
    Goal("prefix", "TTFT max ms", "ratio", 0.15),
    Goal("long", "longest gap ms", "ratio", 0.1),
    Goal("long", "TTFT of the long prompt ms", "ratio", 1.15),
    Goal("conversations", "prompt tokens computed", "ratio", 0.5),
    Goal("rate", "requests/s", "ratio", 1.0, at_least=True),
    Goal("contended", "tok/s", "ratio", 3.0, at_least=True),
    Goal("rest", "start s", "difference", 1.5),
    Goal("rest", "idle CPU %", "value", 0.5),
    Goal("rest", "peak MB", "difference", 120.0),
    Goal("steady", "growth MB", "value", 10.0),
)
