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

from benchmarks.scenarios import HIGHER_IS_BETTER, SCENARIOS, Scenario

README = Path(__file__).with_name("README.md")
BEGIN = "<!-- results: written by benchmarks.report -->"
END = "<!-- end of results -->"
Values = dict[tuple[str, str, str], list[float]]  # (server, scenario, metric): one value per round


def collect(runs: Sequence[dict[str, Any]]) -> Values:
    """Rounds side by side."""
    values: Values = {}
    for run in runs:
        for metric, value in run["metrics"].items():
            values.setdefault((run["server"], run["scenario"], metric), []).append(value)
    return values


def bare_ratio(bare: dict[str, dict[str, float]], bound: str) -> float | None:
    """Llamapool's library against the oracle's, at what limits a scenario; None when not measured."""
    if not {"llamapool", "oracle"} <= bare.keys():
        return None
    return bare["llamapool"][bound] / bare["oracle"][bound]


def tables(results: dict[str, Any]) -> str:
    """Everything as Markdown."""
    environment = results["environment"]
    options = results["options"]
    lines = [
        f"{environment['date']}, {environment['cpu']}, {environment['cores']} cores; Llamapool with "
        f"llama-cpp-python {environment['llama_cpp_python']} against xllamacpp {environment['xllamacpp']}; "
        f"{environment['model']}, {options['threads']} threads, {options['slots']} slots, "
        f"context {options['ctx']}; {results['rounds']} rounds, median (least to most).",
        "",
        *_bare_table(results["bare"]),
        *_scenario_table(results),
    ]
    return "\n".join(lines)


def _bare_table(bare: dict[str, dict[str, float]]) -> list[str]:
    if not bare:
        return []
    names = sorted(bare)
    bounds = list(bare[names[0]])
    head = [f"| bare library, tok/s | {' | '.join(names)} | ratio |", "|---|" + "--:|" * (len(names) + 1)]
    rows = []
    for bound in bounds:
        ratio = bare_ratio(bare, bound)
        figures = " | ".join(f"{bare[name][bound]:.1f}" for name in names)
        rows.append(f"| {bound} | {figures} | {'' if ratio is None else f'{ratio:.2f}'} |")
    return [*head, *rows, ""]


def _scenario_table(results: dict[str, Any]) -> list[str]:
    values = collect(results["runs"])
    lines = ["| scenario | figure | llamapool | oracle | ratio | corrected |", "|---|---|--:|--:|--:|--:|"]
    for scenario in SCENARIOS:
        metrics = dict.fromkeys(metric for _, name, metric in values if name == scenario.name)
        for i, metric in enumerate(metrics):
            title = scenario.title if i == 0 else ""
            ours = values.get(("llamapool", scenario.name, metric), [])
            theirs = values.get(("oracle", scenario.name, metric), [])
            ratios = _ratios(ours, theirs, scenario, metric, results["bare"])
            lines.append(f"| {title} | {metric} | {_spread(ours)} | {_spread(theirs)} | {ratios} |")
    return lines


def _ratios(
    ours: Sequence[float],
    theirs: Sequence[float],
    scenario: Scenario,
    metric: str,
    bare: dict[str, dict[str, float]],
) -> str:
    """Llamapool / oracle per round, median and spread; then divided by what the libraries differ in."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b]
    library = bare_ratio(bare, scenario.bound)
    if not ratios:
        return " | "
    if library is None or metric == "computed share":
        return f"{_spread(ratios, 2)} | "
    corrected = [r / library if metric in HIGHER_IS_BETTER else r * library for r in ratios]
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
    """Replace the results in the README."""
    before, rest = README.read_text().split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


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
