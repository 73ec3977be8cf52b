"""Plots from the JSON of `compare`: ``python -m benchmarks.plots results.json`` writes ``benchmarks/plots/*.png``.

Needs matplotlib: ``pip install llamapool[bench]``.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.compare.goals import GOALS
from benchmarks.compare.units import TITLES
from benchmarks.report import Values, collect

FOLDER = Path(__file__).with_name("plots")
COLOURS = {"llamapool": "#2a6f97", "peer": "#c9ada7"}
_WIDTH = 0.38  # of a bar


def goals(values: Values) -> None:
    """How near each ratio is to its goal; beyond 1 is met, for "at most" goals as for "at least" ones."""
    rows = []
    for goal in GOALS:
        ours = values.get(("llamapool", goal.scenario, goal.figure), [])
        reached = goal.reached(ours, values.get(("peer", goal.scenario, goal.figure), []))
        if goal.kind == "ratio" and reached:
            margins = [r / goal.limit if goal.at_least else goal.limit / r for r in reached]
            rows.append((f"{goal.scenario}: {goal.figure}\n{goal.wanted()}", margins))
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(rows) + 1.2))
    middles = [statistics.median(margins) for _, margins in rows]
    spread = [[m - min(margins) for m, (_, margins) in zip(middles, rows, strict=True)]]
    spread.append([max(margins) - m for m, (_, margins) in zip(middles, rows, strict=True)])
    colours = ["#2a9d8f" if middle >= 1 else "#e76f51" for middle in middles]
    axes.barh(range(len(rows)), middles, xerr=spread, color=colours, ecolor="#444444", capsize=3)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        ticks(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", which="both", labelsize=8)
    axes.set_xlabel("times the goal (1 = met; median, least and most of the rounds)")
    _save(figure, "goals")


def bars(values: Values, name: str, title: str, unit: str, wanted: Sequence[tuple[str, str, str]]) -> None:
    """Both servers side by side; `wanted` are (scenario, figure, label)."""
    known = [(s, f, label) for s, f, label in wanted if ("llamapool", s, f) in values]
    if not known:
        return
    figure, axes = plt.subplots(figsize=(8, 3.6))
    scale = 1e-3 if unit == "s" else 1.0  # waiting times are measured in milliseconds
    for i, server in enumerate(COLOURS):
        series = [[scale * value for value in values.get((server, s, f), [])] for s, f, _ in known]
        _bars_of(axes, server, series, i)
    axes.set_xticks([at + _WIDTH / 2 for at in range(len(known))], [label for _, _, label in known], fontsize=8)
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=10)
    axes.legend()
    _save(figure, name)


def _bars_of(axes: Axes, server: str, series: Sequence[Sequence[float]], at: int) -> None:
    middles = [statistics.median(values) if values else 0.0 for values in series]
    low = [m - min(values) if values else 0.0 for m, values in zip(middles, series, strict=True)]
    high = [max(values) - m if values else 0.0 for m, values in zip(middles, series, strict=True)]
    places = [i + at * _WIDTH for i in range(len(series))]
    drawn = axes.bar(places, middles, _WIDTH, yerr=[low, high], label=server, color=COLOURS[server], capsize=3)
    axes.bar_label(drawn, fmt="%.3g", fontsize=7, padding=2)


def _save(figure: Any, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw(results: dict[str, Any]) -> None:
    """Every plot that the results have figures for."""
    values = collect(results["runs"])
    goals(values)
    rates = [("one", "tok/s", "one stream"), ("slots", "tok/s", "8 streams")]
    rates += [
        ("contended", "tok/s", "8 streams,\none core busy"),
        ("constrained", "tok/s", "JSON schema,\n150k tokens"),
    ]
    bars(values, "rates", "Tokens per second (more is better)", "tok/s", rates)
    waits = [("prefix", "TTFT p50 ms", "shared prefix,\nfirst token p50")]
    waits += [
        ("prefix", "TTFT max ms", "shared prefix,\nfirst token max"),
        ("long", "longest gap ms", "long prompt,\nothers' gap"),
    ]
    waits += [
        ("long", "TTFT of the long prompt ms", "long prompt,\nfirst token"),
        ("context", "TTFT p50 ms", "12k tokens,\nfirst token"),
    ]
    bars(values, "waits", "Waiting times (less is better)", "s", waits)
    bars(
        values,
        "conversations",
        TITLES["conversations"],
        "tokens",
        [
            ("conversations", "prompt tokens", "prompt tokens"),
            ("conversations", "prompt tokens computed", "really computed"),
        ],
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Plots from the JSON of benchmarks.compare.")
    parser.add_argument("results", type=Path)
    draw(json.loads(parser.parse_args().results.read_text()))


if __name__ == "__main__":
    main()
