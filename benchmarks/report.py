"""Write the measured figures of the documentation from the raw JSON in ``benchmarks/results``.

``python -m benchmarks.report`` replaces the text between the markers ``<!-- measured: NAME -->`` and ``<!-- end -->``
in the pages of `PAGES`, and draws the plots again. A test compares the pages with the JSON. If a measurement is
missing, the page says "Not measured yet".

``python -m benchmarks.report FILE`` prints the tables of any JSON of `compare`, with ``--before EARLIER`` next to those
of an earlier one.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.goals import EQUAL, GOALS, Goal
from benchmarks.compare.units import ARMS, NAMES, REGULAR, SERVERS, SPECULATION, TITLES, UNITS
from benchmarks.environment import ROOT
from benchmarks.results import (
    COMPARE,
    OVERLOAD,
    SOAK,
    START,
    WRK,
    MissingRowError,
    Values,
    collect,
    load,
    median,
    provenance,
    ratios,
    require,
    spread,
)

_LLAMAPOOL, _PEER = SERVERS
HIGHER_IS_BETTER = frozenset({"tok/s", "prompt tok/s", "requests/s", "texts/s"})
HEADLINE: tuple[tuple[str, str, str], ...] = (
    ("real-one", "tok/s", "one stream"),
    ("real-slots", "tok/s", "8 streams"),
    ("real-constrained", "tok/s", "output held to a JSON Schema"),
    ("real-edit", "tok/s", "a file written again with an edit"),
    ("real-quote", "tok/s", "a text repeated"),
    ("real-other", "tok/s", "stories, which repeat nothing"),
    ("one", "tok/s", "one stream"),
    ("slots", "tok/s", "8 streams"),
    ("constrained", "tok/s", "output held to a JSON Schema, vocabulary of 150,000 tokens"),
    ("rate", "requests/s", "chats of one token, 8 clients"),
    ("embeddings", "texts/s", "256 short texts to vectors"),
    ("prefix", "TTFT p50 ms", "first token of 8 cold requests that share 700 words"),
    ("long", "longest gap ms", "longest gap of 3 streams while a prompt of 1,500 words is computed"),
    ("long", "TTFT of the long prompt ms", "first token of that prompt"),
    ("media", "TTFT of a new image ms", "first token after a new image"),
    ("media", "TTFT of one cached in another slot ms", "first token after an image that is cached in another slot"),
)
"""Scenario, figure and label of the rows in docs/comparison.md, first those of the trained model."""
README_SCENARIOS = frozenset(
    ("real-one", "real-slots", "real-constrained", "real-edit", "real-other", "rate", "prefix", "long")
)
"""The scenarios of `HEADLINE` in README.md."""
_MODELS = {"trained": "SmolLM2-135M", "random": "random weights", "large": "random weights"}
_MARKED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(results: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """Return all figures of one JSON as Markdown, with the goals reached by an earlier one, `before`.

    Raises `MissingRowError` if the run is complete but lacks a row of one of its scenarios.
    """
    environment, options = results["environment"], results["options"]
    values = collect(results["runs"])
    if results["complete"]:
        require(values, rows(results["scenarios"], tuple(environment["arms"])))
    n_rounds = max((run["round"] for run in results["runs"]), default=0)
    flags = "".join(f", {name} `{options[name]}`" for name in ("flags", "llamapool flags") if options[name])
    scale = "" if options["scale"] == 1 else f", scale {options['scale']}"
    lines = [
        f"`{environment['command']}`: {provenance(environment)}. Models: {_models(environment)}. "
        f"{options['threads']} threads, {options['slots']} slots, context {options['ctx']}{scale}{flags}; "
        f"{n_rounds} round{'s' * (n_rounds != 1)}, median (least to most). "
        f"{_noise(results['runs'])}",
        "",
        *_goal_table(results["scenarios"], values, before),
        *_arms_table(values),
        *_figure_table(values),
        *(f"\nNot measured: {f['unit']} in round {f['round']}: {f['why']}" for f in results["failures"]),
    ]
    return "\n".join(lines)


def rows(scenarios: Sequence[str], arms: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows that a run of `scenarios` with `arms` must have."""
    for goal in GOALS:
        for arm in (_LLAMAPOOL,) if goal.kind == "value" else SERVERS:
            if goal.scenario in scenarios and arm in arms:
                yield arm, goal.scenario, goal.figure
    for unit in UNITS:
        for arm in unit.also:
            for name in unit.measured_by(arm):
                if name in scenarios and arm in arms:
                    yield arm, name, _main_figure(name)


def _main_figure(scenario: str) -> str:
    return "requests/s" if scenario == "rate" else "tok/s"


def _models(environment: dict[str, Any]) -> str:
    labels = {"trained": "trained", "random": "random weights", "large": "random weights, large vocabulary"}
    return "; ".join(f"{labels[kind]}: {name}" for kind, name in environment["models"].items())


def _noise(runs: Sequence[dict[str, Any]]) -> str:
    shares = sorted(run["others"] for run in runs)
    if not shares:
        return ""
    middle, most = shares[len(shares) // 2], shares[-1]
    return f"Other processes had {middle:.1%} of the CPU meanwhile in the median, {most:.1%} at most."


def _goal_table(scenarios: Sequence[str], values: Values, before: dict[str, Any] | None) -> list[str]:
    earlier = None if before is None else collect(before["runs"])
    named = "" if before is None else f" reached by {before['environment']['commit']} |"
    head = [f"| scenario | figure | goal | Llamapool | llama-server | reached | |{named}"]
    head.append("|---|---|---|--:|--:|--:|---|" + "--:|" * bool(named))
    return [*head, *(_goal_row(goal, values, earlier) for goal in GOALS if goal.scenario in scenarios), ""]


def _goal_row(goal: Goal, values: Values, earlier: Values | None) -> str:
    llamapool, peer = (values.get((arm, goal.scenario, goal.figure), []) for arm in SERVERS)
    reached = goal.reached(llamapool, peer)
    verdict = goal.verdict(reached) if reached else "not measured"
    cells = [TITLES[goal.scenario], goal.figure, goal.description(), spread(llamapool), spread(peer)]
    cells += [_reached(goal, reached), f"**{verdict}**" if verdict == "not met" else verdict]
    if earlier is not None:
        both = [earlier.get((arm, goal.scenario, goal.figure), []) for arm in SERVERS]
        cells.append(_reached(goal, goal.reached(*both)))
    return f"| {' | '.join(cells)} |"


def _reached(goal: Goal, reached: Sequence[float]) -> str:
    return spread(reached, 2 if goal.kind != "value" else None)


def _arms_table(values: Values) -> list[str]:
    """Return the table of each server with and without speculation, and of the null server."""
    names = [
        name for name in NAMES if any((arm, name, _main_figure(name)) in values for arm in ARMS if arm not in SERVERS)
    ]
    if not names:
        return []
    lines = [
        f"| scenario | figure | {' | '.join(arm.title for arm in ARMS.values())} |",
        "|---|---|" + "--:|" * len(ARMS),
    ]
    for name in names:
        figure = _main_figure(name)
        cells = [spread(values.get((arm, name, figure), [])) for arm in ARMS]
        lines.append(f"| {TITLES[name]} | {figure} | {' | '.join(cells)} |")
    return [*lines, ""]


def _figure_table(values: Values) -> list[str]:
    lines = ["| scenario | figure | Llamapool | llama-server | ratio |", "|---|---|--:|--:|--:|"]
    for name in NAMES:
        figures = dict.fromkeys(figure for arm, scenario, figure in values if scenario == name and arm in SERVERS)
        for i, figure in enumerate(figures):
            llamapool, peer = (values.get((arm, name, figure), []) for arm in SERVERS)
            ratio = [a / b for a, b in zip(llamapool, peer, strict=False) if b]
            title = TITLES[name] if i == 0 else ""
            lines.append(f"| {title} | {figure} | {spread(llamapool)} | {spread(peer)} | {spread(ratio, 2)} |")
    return lines


# ---- the blocks of the pages


def _measured(file: Path, command: str, render: Callable[[dict[str, Any]], str]) -> str:
    result = load(file)
    return render(result) if result is not None else f"Not measured yet on this version: run `{command}`."


def _page_values(results: dict[str, Any]) -> Values:
    """Return the values of a run. Raises `MissingRowError` if it lacks a regular row."""
    values = collect(results["runs"])
    require(values, rows(REGULAR, tuple(ARMS)))
    return values


def _all_figures() -> str:
    plots = "\n".join(f"![{name}](plots/{name}.png)" for name in ("rates", "waits", "conversations", "goals"))

    def render(results: dict[str, Any]) -> str:
        _page_values(results)
        return f"{tables(results)}\n\n{plots}"

    return _measured(COMPARE, "make bench", render)


def _headline() -> str:
    def render(results: dict[str, Any]) -> str:
        values = _page_values(results)
        columns = (_LLAMAPOOL, _PEER, *SPECULATION)
        lines = [
            f"| model | | {' | '.join(ARMS[arm].title for arm in columns)} | ratio |",
            "|---|---|" + "--:|" * (len(columns) + 1),
        ]
        for scenario, figure, label in HEADLINE:
            if scenario not in README_SCENARIOS:
                continue
            cells = [median(found) if (found := values.get((arm, scenario, figure))) else "" for arm in columns]
            cells += [median(ratios(values, scenario, figure), 2)]
            lines.append(f"| {_model_of(scenario)} | {label}, {figure.rpartition(' ')[2]} | {' | '.join(cells)} |")
        n_rounds = max(run["round"] for run in results["runs"])
        rounds = f"{n_rounds} round{'s' * (n_rounds != 1)}"
        source = f"Medians of {rounds} by `make bench` ([raw JSON](benchmarks/results/compare.json))"
        explanation = (
            "*ratio* is Llamapool's figure divided by that of llama-server, which uses the same llama.cpp libraries: "
            "above 1 is better for rates, below 1 for times."
        )
        where = f"Measured on {provenance(results['environment'])}; models: {_models(results['environment'])}."
        return "\n".join([*lines, "", f"{source}; {explanation} {where}"])

    return _measured(COMPARE, "make bench", render)


def _model_of(scenario: str) -> str:
    return next(_MODELS[unit.model] for unit in UNITS if scenario in unit.names)


def _ahead() -> str:
    """Return the figures in which Llamapool is ahead of llama-server, equal, or slower."""

    def render(results: dict[str, Any]) -> str:
        values = _page_values(results)
        found: dict[str, list[str]] = {"ahead": [], "equal": [], "slower": []}
        for scenario, figure, label in HEADLINE:
            ratio = float(median(ratios(values, scenario, figure), 4))
            gain = ratio if figure in HIGHER_IS_BETTER else 1 / ratio
            state = "equal" if abs(gain - 1) <= EQUAL else "ahead" if gain > 1 else "slower"
            found[state].append(f"{label} ({_model_of(scenario)}): {gain:.2f}")
        heads = {
            "ahead": "Llamapool is ahead",
            "equal": f"Equal, within {EQUAL:.0%}",
            "slower": "llama-server is ahead",
        }
        lines = [f"- {heads[state]}: {'; '.join(rows) or 'nowhere in this run'}." for state, rows in found.items()]
        return "\n".join(
            [*lines, "", f"Above 1 Llamapool is better. `make bench`, {provenance(results['environment'])}."]
        )

    return _measured(COMPARE, "make bench", render)


def _endurance(file: Path, command: str) -> str:
    from benchmarks.endurance import rows as figures

    def render(result: dict[str, Any]) -> str:
        environment = result["environment"]
        lines = ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in figures(result))]
        where = f"`{environment['command']}`: {provenance(environment)}; model {environment['model']}."
        plot = f"![memory, descriptors and waits](../benchmarks/plots/{file.stem}.png)"
        return "\n".join([*lines, "", where, "", plot])

    return _measured(file, command, render)


def _start() -> str:
    from benchmarks.start import table

    def render(result: dict[str, Any]) -> str:
        environment = result["environment"]
        where = f"Medians of `{environment['command']}`: {provenance(environment)}; model {environment['model']}."
        return "\n".join([*table(result), "", where])

    return _measured(START, "make bench-start", render)


def _wrk() -> str:
    from benchmarks.wrk import Run, table

    def render(result: dict[str, Any]) -> str:
        where = f"Medians of `{result['environment']['command']}`: {provenance(result['environment'])}."
        return "\n".join([table([Run(**run) for run in result["runs"]]), "", where])

    return _measured(WRK, "make bench-wrk", render)


BLOCKS: dict[str, Callable[[], str]] = {
    "all": _all_figures,
    "headline": _headline,
    "ahead": _ahead,
    "overload": lambda: _endurance(OVERLOAD, "make overload"),
    "soak": lambda: _endurance(SOAK, "make soak"),
    "start": _start,
    "wrk": _wrk,
}
PAGES = tuple(
    ROOT / name
    for name in ("README.md", "docs/comparison.md", "docs/memory.md", "docs/reliability.md", "benchmarks/README.md")
)


def written(page: Path) -> str:
    """Return the page's text with all blocks generated from the JSON.

    Raises `MissingRowError`, and `KeyError` for an unknown block.
    """
    return _MARKED.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", page.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures of the documentation, from the raw JSON.")
    parser.add_argument("results", type=Path, nargs="?", help="only print the tables of this JSON of compare")
    parser.add_argument("--before", type=Path, help="earlier results of compare")
    options = parser.parse_args()
    try:
        if options.results:
            print(tables(load(options.results) or {}, load(options.before) if options.before else None))
            return
        for page, text in [(page, written(page)) for page in PAGES]:
            page.write_text(text)
    except MissingRowError as error:
        sys.exit(str(error))
    from benchmarks.plots import draw_all  # needs matplotlib

    draw_all()


if __name__ == "__main__":
    main()
