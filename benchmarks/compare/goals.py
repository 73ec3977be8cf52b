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
    Goal("rate", "requests/s", "ratio", 1.0, at_least=True),
    Goal("embeddings", "texts/s", "ratio", 1.0, at_least=True),
    Goal("prefix", "TTFT p50 ms", "ratio", 0.2),
    Goal("prefix", "TTFT max ms", "ratio", 0.15),
    Goal("long", "longest gap ms", "ratio", 0.1),
    Goal("long", "TTFT of the long prompt ms", "ratio", 1.15),
    Goal("contended", "tok/s", "ratio", 3.0, at_least=True),
    Goal("contended-yielding", "tok/s", "ratio", 1.0, at_least=True),
    Goal("constrained", "tok/s", "ratio", 2.0, at_least=True),
    Goal("constrained", "TTFT p50 ms", "ratio", 1.1),
    Goal("media", "TTFT of a new picture ms", "ratio", 1.05),
    Goal("media", "TTFT of one known in another slot ms", "ratio", 0.3),
    Goal("media", "TTFT of a second turn ms", "ratio", 0.3),
    Goal("media", "TTFT of a second turn behind 4 screens ms", "ratio", 0.3),
    Goal("media", "TTFT max of 8 with one picture ms", "ratio", 0.25),
    Goal("media", "gap beside a picture to that beside a text", "value", 1.2),
    Goal("half", "tok/s", "ratio", 1.0, at_least=True),
    Goal("left", "tok/s", "ratio", 1.5, at_least=True),
    Goal("left", "of 4 alone", "value", 0.97, at_least=True),
    *(Goal("partial", f"{n} of 8: tok/s", "ratio", 1.0, at_least=True) for n in range(1, 8)),
    Goal("real-one", "tok/s", "ratio", 1.0, at_least=True),
    Goal("real-slots", "tok/s", "ratio", 1.0, at_least=True),
    Goal("real-constrained", "tok/s", "ratio", 1.0, at_least=True),
    Goal("real-constrained", "TTFT p50 ms", "ratio", 1.1),
    Goal("real-edit", "tok/s", "ratio", 1.8, at_least=True),
    Goal("real-quote", "tok/s", "ratio", 1.8, at_least=True),
    Goal("real-other", "tok/s", "ratio", 0.98, at_least=True),
    Goal("inside", "us a waiter and step", "value", 50.0),
    Goal("inside", "us a token", "value", 60.0),
    Goal("inside", "ms a request", "value", 1.5),
    Goal("conversations", "prompt tokens computed", "ratio", 0.5),
    Goal("rest", "start s", "difference", 1.5),
    Goal("rest", "idle CPU %", "value", 0.5),
    Goal("rest", "peak MB", "difference", 120.0),
    Goal("steady", "growth MB", "value", 10.0),
)
