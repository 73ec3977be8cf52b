"""Draw ``benchmarks/plots/*.png`` from the raw JSON in ``benchmarks/results``. `benchmarks.report` calls it.

Each file contains the SHA-256 of its JSON, which a test compares. Needs matplotlib: ``pip install llamapool[bench]``.
"""

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
from benchmarks.compare.units import ARMS, TITLES
from benchmarks.results import COMPARE, OVERLOAD, SOAK, Values, collect, load, sha256

FOLDER = Path(__file__).with_name("plots")
COLOURS = {"llamapool": "#2a6f97", "llamapool-plain": "#8ecae6", "peer": "#c9ada7", "peer-ngram": "#9a8c98"}


def goals(values: Values) -> None:
    """Draw each ratio relative to its goal. Goals are met above 1, "at most" goals as well as "at least" ones."""
    rows = []
    for goal in GOALS:
        llamapool, peer = (values.get((arm, goal.scenario, goal.figure), []) for arm in ("llamapool", "peer"))
        reached = goal.reached(llamapool, peer)
        if goal.kind == "ratio" and reached:
            margins = [r / goal.limit if goal.at_least else goal.limit / r for r in reached]
            rows.append((f"{goal.scenario}: {goal.figure}\n{goal.description()}", margins))
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


def bars(values: Values, name: str, title: str, unit: str, groups: Sequence[tuple[str, str, str]]) -> None:
    """Draw the arms with these figures next to each other. `groups` are (scenario, figure, label)."""
    arms = [arm for arm in COLOURS if any((arm, s, f) in values for s, f, _ in groups)]
    figure, axes = plt.subplots(figsize=(10, 3.8))
    scale = 1e-3 if unit == "s" else 1.0  # waiting times are measured in milliseconds
    width = 0.8 / len(arms)
    for i, arm in enumerate(arms):
        series = [[scale * value for value in values.get((arm, s, f), [])] for s, f, _ in groups]
        _bars_of(axes, arm, series, i * width, width)
    places = [at + width * (len(arms) - 1) / 2 for at in range(len(groups))]
    axes.set_xticks(places, [label for _, _, label in groups], fontsize=8)
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8)
    _save(figure, name)


def _bars_of(axes: Axes, arm: str, series: Sequence[Sequence[float]], offset: float, width: float) -> None:
    measured = [(at, values) for at, values in enumerate(series) if values]
    middles = [statistics.median(values) for _, values in measured]
    low = [m - min(values) for m, (_, values) in zip(middles, measured, strict=True)]
    high = [max(values) - m for m, (_, values) in zip(middles, measured, strict=True)]
    places = [at + offset for at, _ in measured]
    label, colour = ARMS[arm].title, COLOURS[arm]
    drawn = axes.bar(places, middles, width, yerr=[low, high], label=label, color=colour, capsize=2)
    axes.bar_label(drawn, fmt="%.3g", fontsize=6, padding=2)


def _save(figure: Any, name: str, file: Path = COMPARE) -> None:
    FOLDER.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=110, metadata={"Software": None, "Source": sha256(file)})
    plt.close(figure)


def draw(results: dict[str, Any]) -> None:
    """Draw the plots of a run of `compare`, first those of the trained model."""
    values = collect(results["runs"])
    goals(values)
    rates = [
        ("real-one", "tok/s", "SmolLM2:\none stream"),
        ("real-slots", "tok/s", "SmolLM2:\n8 streams"),
        ("real-constrained", "tok/s", "SmolLM2:\nJSON schema"),
        ("real-edit", "tok/s", "SmolLM2:\nfile edited"),
        ("real-quote", "tok/s", "SmolLM2:\ntext repeated"),
        ("real-other", "tok/s", "SmolLM2:\nstories"),
        ("one", "tok/s", "random:\none stream"),
        ("slots", "tok/s", "random:\n8 streams"),
        ("contended", "tok/s", "random: 8,\none core busy"),
        ("constrained", "tok/s", "random:\nJSON schema"),
    ]
    bars(values, "rates", "Tokens per second (more is better)", "tok/s", rates)
    waits = [
        ("prefix", "TTFT p50 ms", "shared prefix,\nfirst token p50"),
        ("prefix", "TTFT max ms", "shared prefix,\nfirst token max"),
        ("long", "longest gap ms", "long prompt,\nothers' gap"),
        ("long", "TTFT of the long prompt ms", "long prompt,\nfirst token"),
    ]
    bars(values, "waits", "Waiting times, random weights (less is better)", "s", waits)
    counted = [
        (name, name.replace("prompt tokens", "").strip() or "all")
        for name in ("prompt tokens", "prompt tokens computed")
    ]
    of_prompts = [("conversations", figure, f"prompt tokens,\n{label}") for figure, label in counted]
    bars(values, "conversations", TITLES["conversations"], "tokens", of_prompts)


def draw_endurance(result: dict[str, Any], name: str, file: Path) -> None:
    """Draw memory, descriptors and waits over a run of `endurance`."""
    figure, (memory, descriptors, waits) = plt.subplots(3, 1, figsize=(8, 7), sharex=True)
    samples = result["samples"]
    at = [sample["at_s"] for sample in samples]
    memory.plot(at, [s["rss_mib"] for s in samples], color="#2a6f97", label="memory")
    memory.plot(at, [s["rss_mib"] - s["cached_mib"] for s in samples], color="#e76f51", label="without cached prompts")
    memory.legend(fontsize=8)
    memory.set_ylabel("memory, MiB")
    memory.set_ylim(bottom=0)
    descriptors.plot(at, [s["n_descriptors"] for s in samples], color="#2a6f97", label="descriptors")
    descriptors.plot(at, [s["n_threads"] for s in samples], color="#e76f51", label="threads")
    descriptors.legend(fontsize=8)
    firsts = result["first_token_ms"]
    waits.scatter([t for t, _ in firsts], [ms for _, ms in firsts], s=3, label="first token")
    waits.plot(at, [s["health_ms"] for s in samples], color="#e76f51", linewidth=1, label="/health")
    waits.set_yscale("log")
    waits.set_ylabel("ms")
    waits.set_xlabel("seconds")
    waits.legend(fontsize=8)
    _save(figure, name, file)


def draw_all() -> None:
    """Draw the plots of each JSON that exists."""
    if compared := load(COMPARE):
        draw(compared)
    for file in (OVERLOAD, SOAK):
        if result := load(file):
            draw_endurance(result, file.stem, file)
