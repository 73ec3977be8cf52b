"""Tables from the JSON of `compare`.

``python -m benchmarks.report results.json`` prints them; with ``--readme`` they replace what stands between the markers
in ``benchmarks/README.md``.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import GOALS, Goal
from benchmarks.units import NAMES, TITLES
from server.bench.figures import HIGHER_IS_BETTER

README = Path(__file__).with_name("README.md")
BEGIN = "<!-- results: written by benchmarks.report -->"
END = "<!-- end of results -->"
BOUNDS = {  # which bare speed of the library limits a scenario
    "one": "decode-1",
    "slots": "decode-slots",
    "prefix": "prompt",
    "long": "prompt",
    "rate": "prompt",
    "context": "prompt",
}
_TIMED = (" ms", "/s")  # figures that the library's speed has a part in
Values = dict[tuple[str, str, str], list[float]]  # (server, scenario, figure): one value per round
Bare = dict[str, dict[str, float]]


def collect(runs: Sequence[dict[str, Any]]) -> Values:
    """Rounds side by side, only those that both servers have where both were measured."""
    values: Values = {}
    rounds: dict[str, set[tuple[str, int]]] = {}
    for run in runs:
        rounds.setdefault(run["scenario"], set()).add((run["server"], run["round"]))
    both = len({run["server"] for run in runs}) > 1
    for run in sorted(runs, key=lambda run: run["round"]):
        seen = rounds[run["scenario"]]
        if both and len({server for server, number in seen if number == run["round"]}) < 2:
            continue
        for figure, value in run["metrics"].items():
            values.setdefault((run["server"], run["scenario"], figure), []).append(value)
    return values


def tables(results: dict[str, Any]) -> str:
    """Everything as Markdown."""
    environment, options = results["environment"], results["options"]
    values = collect(results["runs"])
    n_rounds = max((run["round"] for run in results["runs"]), default=0)
    lines = [
        f"{environment['date']}, {environment['cpu']}, {environment['cores']} cores; Llamapool with "
        f"llama-cpp-python {environment['llama_cpp_python']} against xllamacpp {environment['xllamacpp']}; "
        f"{environment['model']}, {options['threads']} threads, {options['slots']} slots, context {options['ctx']}"
        f"{'' if options['scale'] == 1 else ', scale ' + str(options['scale'])}; "
        f"{n_rounds} rounds, median (least to most). {_noise(results['noise'])}",
        "",
        *_goal_table(values),
        *_bare_table(results["bare"]),
        *_figure_table(values, results["bare"]),
        *(
            f"\nNot measured: {f['unit']} of {f['server']} in round {f['round']}: {f['why']}"
            for f in results["failures"]
        ),
    ]
    return "\n".join(lines)


def _noise(noise: Sequence[dict[str, Any]]) -> str:
    times = [time for entry in noise for time in entry["loop_ms"]]
    if not times:
        return ""
    return (
        f"A loop of Python on each core, timed before each server, took {min(times):.0f} ms at best, "
        f"{statistics.median(times):.0f} in the median, {max(times):.0f} at worst: equal on a quiet machine."
    )


def _goal_table(values: Values) -> list[str]:
    head = ["| scenario | figure | goal | llamapool | peer | reached | |", "|---|---|---|--:|--:|--:|---|"]
    return [*head, *(_goal_row(goal, values) for goal in GOALS), ""]


def _goal_row(goal: Goal, values: Values) -> str:
    ours = values.get(("llamapool", goal.scenario, goal.figure), [])
    theirs = values.get(("peer", goal.scenario, goal.figure), [])
    reached = goal.reached(ours, theirs)
    judged = "not measured" if not reached else "met" if goal.met(reached) else "**not met**"
    shown = _spread(reached, 2 if goal.kind != "value" else None)
    cells = (TITLES[goal.scenario], goal.figure, goal.wanted(), _spread(ours), _spread(theirs), shown, judged)
    return f"| {' | '.join(cells)} |"


def bare_ratio(bare: Bare, bound: str) -> float | None:
    """Llamapool's library against the peer's, at what limits a scenario; None when not measured."""
    if not {"llamapool", "peer"} <= bare.keys():
        return None
    return bare["llamapool"][bound] / bare["peer"][bound]


def _bare_table(bare: Bare) -> list[str]:
    if not bare:
        return []
    names = sorted(bare)
    head = [f"| bare library, tok/s | {' | '.join(names)} | ratio |", "|---|" + "--:|" * (len(names) + 1)]
    rows = []
    for bound in bare[names[0]]:
        ratio = bare_ratio(bare, bound)
        figures = " | ".join(f"{bare[name][bound]:.1f}" for name in names)
        rows.append(f"| {bound} | {figures} | {'' if ratio is None else f'{ratio:.2f}'} |")
    return [*head, *rows, ""]


def _figure_table(values: Values, bare: Bare) -> list[str]:
    lines = ["| scenario | figure | llamapool | peer | ratio | corrected |", "|---|---|--:|--:|--:|--:|"]
    for name in NAMES:
        figures = dict.fromkeys(figure for _, scenario, figure in values if scenario == name)
        for i, figure in enumerate(figures):
            ours = values.get(("llamapool", name, figure), [])
            theirs = values.get(("peer", name, figure), [])
            title = TITLES[name] if i == 0 else ""
            ratios = _ratios(ours, theirs, name, figure, bare)
            lines.append(f"| {title} | {figure} | {_spread(ours)} | {_spread(theirs)} | {ratios} |")
    return lines


def _ratios(ours: Sequence[float], theirs: Sequence[float], name: str, figure: str, bare: Bare) -> str:
    """Llamapool / peer per round, median and spread; then without what the libraries differ in."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b]
    if not ratios:
        return " | "
    library = bare_ratio(bare, BOUNDS[name]) if name in BOUNDS and figure.endswith(_TIMED) else None
    if library is None:
        return f"{_spread(ratios, 2)} | "
    corrected = [r / library if figure in HIGHER_IS_BETTER else r * library for r in ratios]
    return f"{_spread(ratios, 2)} | {statistics.median(corrected):.2f}"


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
    parser.add_argument("--readme", action="store_true", help="write them into benchmarks/README.md")
    chosen = parser.parse_args()
    text = tables(json.loads(chosen.results.read_text()))
    print(text)
    if chosen.readme:
        write_readme(text)


if __name__ == "__main__":
    main()
