"""Figures of several rounds, as a table for people and as a document for programs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.bench.figures import Figures
from server.bench.scenarios import Scenario


@dataclass(slots=True)
class ScenarioResult:
    """What one scenario gave in each round, or why it gave nothing."""

    scenario: Scenario
    rounds: list[Figures] = field(default_factory=list)
    failure: str = ""

    def values(self, figure: str) -> list[float]:
        """Of one figure, round by round."""
        return [figures[figure] for figures in self.rounds if figure in figures]

    @property
    def figures(self) -> list[str]:
        """Names of all figures, in the order in which they came."""
        return list(dict.fromkeys(figure for figures in self.rounds for figure in figures))


def table(outcomes: Sequence[ScenarioResult]) -> str:
    """Plain text: median, and the least and the most where there were several rounds."""
    rows = [("scenario", "figure", "median", "least to most")]
    for outcome in outcomes:
        name = outcome.scenario.name
        for figure in outcome.figures:
            values = outcome.values(figure)
            span = f"{shown(min(values))} to {shown(max(values))}" if len(values) > 1 else ""
            rows.append((name, figure, shown(statistics.median(values)), span))
            name = ""
        if outcome.failure:
            rows.append((name, "not measured", outcome.failure, ""))
    widths = [max(len(row[column]) for row in rows if row[1] != "not measured") for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def document(outcomes: Sequence[ScenarioResult], **about: object) -> dict[str, Any]:
    """For programs; every round's figures."""
    return {
        **about,
        "scenarios": [
            {"name": o.scenario.name, "title": o.scenario.title, "rounds": o.rounds, "failure": o.failure or None}
            for o in outcomes
        ],
    }


def shown(value: float) -> str:
    """Three digits are enough."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
