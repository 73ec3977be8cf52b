"""Tables from the JSON of `compare`.

``python -m benchmarks.report results.json`` prints them, with ``--before earlier.json`` beside what was reached there;
with ``--readme`` they replace what stands between the markers in ``benchmarks/README.md``.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.goals import GOALS, Goal
from benchmarks.compare.units import NAMES, TITLES

README = Path(__file__).with_name("README.md")
BEGIN = "<!-- results: written by benchmarks.report -->"
END = "<!-- end of results -->"
Values = dict[tuple[str, str, str], list[float]]  # (server, scenario, figure): one value per round


def collect(runs: Sequence[dict[str, Any]]) -> Values:
    """Rounds side by side, only those that both servers have where both were measured."""
    values: Values = {}
    rounds: dict[str, set[tuple[str, int]]] = {}
    for run in runs:
        rounds.setdefault(run["scenario"], set()).add((run["server"], run["round"]))
    for run in sorted(runs, key=lambda run: run["round"]):
        seen = rounds[run["scenario"]]
        if (
            len({server for server, _ in seen}) > 1
            and len({server for server, number in seen if number == run["round"]}) < 2
        ):
            continue
        for figure, value in run["metrics"].items():
            values.setdefault((run["server"], run["scenario"], figure), []).append(value)
    return values


def tables(results: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """Everything as Markdown. `before`: earlier results, whose goals are shown beside these."""
    environment, options = results["environment"], results["options"]
    values = collect(results["runs"])
    n_rounds = max((run["round"] for run in results["runs"]), default=0)
    flags = "".join(f", {name} `{options[name]}`" for name in ("flags", "llamapool flags") if options[name])
    lines = [
        f"{environment['date']}, {environment['cpu']}, {environment['cores']} cores; Llamapool {environment['commit']} "
        f"with llama-cpp-python {environment['llama_cpp_python']} against llama-server of the same libraries; "
        f"{environment['model']}, {options['threads']} threads, {options['slots']} slots, context {options['ctx']}"
        f"{'' if options['scale'] == 1 else ', scale ' + str(options['scale'])}{flags}; "
        f"{n_rounds} rounds, median (least to most). {_noise(results['runs'])}",
        "",
        *_goal_table(values, before),
        *_figure_table(values),
        *(
            f"\nNot measured: {f['unit']} of {f['server']} in round {f['round']}: {f['why']}"
            for f in results["failures"]
        ),
    ]
    return "\n".join(lines)


def _noise(runs: Sequence[dict[str, Any]]) -> str:
    shares = [run["others"] for run in runs]
    if not shares:
        return ""
    return (
        f"Other processes had {statistics.median(shares):.1%} of the processors meanwhile in the median, "
        f"{max(shares):.1%} at worst."
    )


def _goal_table(values: Values, before: dict[str, Any] | None) -> list[str]:
    earlier = None if before is None else collect(before["runs"])
    named = "" if before is None else f" reached by {before['environment']['commit']} |"
    head = [f"| scenario | figure | goal | llamapool | peer | reached | |{named}"]
    head.append("|---|---|---|--:|--:|--:|---|" + "--:|" * bool(named))
    return [*head, *(_goal_row(goal, values, earlier) for goal in GOALS), ""]


def _goal_row(goal: Goal, values: Values, earlier: Values | None) -> str:
    ours = values.get(("llamapool", goal.scenario, goal.figure), [])
    theirs = values.get(("peer", goal.scenario, goal.figure), [])
    reached = goal.reached(ours, theirs)
    judged = "not measured" if not reached else "met" if goal.met(reached) else "**not met**"
    cells = [TITLES[goal.scenario], goal.figure, goal.wanted(), _spread(ours), _spread(theirs)]
    cells += [_reached(goal, reached), judged]
    if earlier is not None:
        both = [earlier.get((server, goal.scenario, goal.figure), []) for server in ("llamapool", "peer")]
        cells.append(_reached(goal, goal.reached(*both)))
    return f"| {' | '.join(cells)} |"


def _reached(goal: Goal, reached: Sequence[float]) -> str:
    return _spread(reached, 2 if goal.kind != "value" else None)


def _figure_table(values: Values) -> list[str]:
    lines = ["| scenario | figure | llamapool | peer | ratio |", "|---|---|--:|--:|--:|"]
    for name in NAMES:
        figures = dict.fromkeys(figure for _, scenario, figure in values if scenario == name)
        for i, figure in enumerate(figures):
            ours = values.get(("llamapool", name, figure), [])
            theirs = values.get(("peer", name, figure), [])
            ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b]
            title = TITLES[name] if i == 0 else ""
            lines.append(f"| {title} | {figure} | {_spread(ours)} | {_spread(theirs)} | {_spread(ratios, 2)} |")
    return lines


def _spread(values: Sequence[float], digits: int | None = None) -> str:
    if not values:
        return ""
    if digits is None:
        digits = 2 if max(values) < 10 else 1 if max(values) < 100 else 0
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def write_readme(text: str) -> None:
    """Replace the results in the README, with the plots that lie beside it."""
    before, rest = README.read_text().split(BEGIN)
    after = rest.split(END)[1]
    plots = sorted(file.name for file in README.with_name("plots").glob("*.png"))
    pictures = "".join(f"![{name.removesuffix('.png')}](plots/{name})\n" for name in plots)
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{pictures}{END}{after}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Tables from the JSON of benchmarks.compare.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--before", type=Path, help="earlier results of compare")
    parser.add_argument("--readme", action="store_true", help="write them into benchmarks/README.md")
    chosen = parser.parse_args()
    before = json.loads(chosen.before.read_text()) if chosen.before else None
    text = tables(json.loads(chosen.results.read_text()), before)
    print(text)
    if chosen.readme:
        write_readme(text)


if __name__ == "__main__":
    main()
