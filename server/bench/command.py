"""``llamapool bench``: the scenarios against any OpenAI-compatible URL.

The exit status is 0, that of a `server.bench.client.BenchError`, or 2 for a wrong option. A scenario that the server
does not support is reported, the others are measured, and the exit status is 1.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tqdm import tqdm

from server.bench.client import FAILED, UNKNOWN_MODEL, UNREACHABLE, BenchError, ModelClient, Target, parse_target
from server.bench.scenarios import SCENARIOS, Figures, Scenario, Setting, run, words_per_word


@dataclass(slots=True)
class ScenarioResult:
    """The figures of a scenario by round, or the reason why it was not measured."""

    scenario: Scenario
    rounds: list[Figures] = field(default_factory=list)
    failure: str = ""


def table(results: Sequence[ScenarioResult]) -> str:
    """Return a plain text table with medians, and ranges if there are several rounds."""
    rows = [("scenario", "figure", "median", "least to most")]
    for result in results:
        name = result.scenario.name
        for figure in dict.fromkeys(figure for figures in result.rounds for figure in figures):
            values = [figures[figure] for figures in result.rounds if figure in figures]
            span = f"{rounded(min(values))} to {rounded(max(values))}" if len(values) > 1 else ""
            rows.append((name, figure, rounded(statistics.median(values)), span))
            name = ""
        if result.failure:
            rows.append((name, "not measured", result.failure, ""))
    widths = [max(len(row[column]) for row in rows if row[1] != "not measured") for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def rounded(value: float) -> str:
    """Return `value` with three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def main(argv: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    options = _parse(argv)
    if options.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:14} {scenario.title}")
        return 0
    try:
        if options.json not in ("", "-"):
            _write(options.json, "a", "")  # fails before the measurement, if it fails
        target = parse_target(options.url, options.api_key, insecure=options.insecure)
        scenarios = _scenarios(options.scenario, target)
        model = options.model or asyncio.run(_only_model(target, options.timeout))
        client = ModelClient(target, model, options.chat, options.body, options.timeout)
        setting = Setting(options.seed, options.parallel, options.scale, asyncio.run(words_per_word(client)))
        results = measure(client, scenarios, setting, options.rounds, quiet=options.quiet)
        report = {"url": target.url, "model": model, "api": client.path, "parallel": options.parallel}
        report |= {"scale": options.scale, "date": datetime.now(UTC).isoformat(timespec="seconds")}
        report["scenarios"] = [
            {"name": r.scenario.name, "rounds": r.rounds, "failure": r.failure or None} for r in results
        ]
        text = json.dumps(report, indent=1)
        print(text if options.json == "-" else table(results))
        if options.json not in ("", "-"):
            _write(options.json, "w", text + "\n")
    except BenchError as error:
        print(f"llamapool bench: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    return FAILED if any(result.failure for result in results) else 0


def measure(
    client: ModelClient, scenarios: Sequence[Scenario], setting: Setting, n_rounds: int, *, quiet: bool = False
) -> list[ScenarioResult]:
    """Measure each scenario once per round. Raises `BenchError` if the server can't be reached."""
    results = [ScenarioResult(scenario) for scenario in scenarios]
    with tqdm(total=n_rounds * len(scenarios), unit="run", disable=quiet or None, file=sys.stderr, leave=False) as bar:
        for n in range(n_rounds):
            for result in results:
                bar.set_description(f"round {n + 1}/{n_rounds} {result.scenario.name}")
                try:
                    if not result.failure:
                        result.rounds.append(run(result.scenario, client, replace(setting, seed=setting.seed + n)))
                except BenchError as error:
                    if error.status == UNREACHABLE:
                        raise
                    result.failure = str(error)
                bar.update()
    return results


async def _only_model(target: Target, limit_s: float) -> str:
    """Return the only model of the server. Raises `BenchError` with the names if there are several."""
    listed, _ = await ModelClient(target, limit_s=limit_s).exchange("GET", "/v1/models")
    data = listed.get("data")
    entries = data if isinstance(data, list) else []
    names = [str(entry["id"]) for entry in entries if isinstance(entry, dict) and "id" in entry]
    if len(names) != 1:
        names = names or ["it lists none"]
        raise BenchError(f"name one of the server's models with --model: {', '.join(names)}", UNKNOWN_MODEL)
    return names[0]


def _scenarios(names: str, target: Target) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if not names:
        return [scenario for scenario in SCENARIOS if target.local or not scenario.local]
    selected = known.keys() if names == "all" else {name.strip() for name in names.split(",")}
    if unknown := selected - known.keys():
        raise BenchError(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [scenario for name, scenario in known.items() if name in selected]


def _write(path: str, mode: str, text: str) -> None:
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BenchError(f"--json {path}: {error.strerror}") from error


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="llamapool bench",
        description="Measure prefix sharing, stalls and contention of an OpenAI-compatible server.",
    )
    number, seed = _within(int, 1, 10_000), int.from_bytes(os.urandom(4), "big")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="http[s]://host[:port][/path] (%(default)s)")
    parser.add_argument("--model", default="", help="model to measure; needed if the server has several")
    parser.add_argument(
        "--api-key", default=os.environ.get("OPENAI_API_KEY", ""), help="API key; default: the variable OPENAI_API_KEY"
    )
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    parser.add_argument("--chat", action="store_true", help="use /v1/chat/completions instead of /v1/completions")
    parser.add_argument("--scenario", default="", metavar="A,B", help="some of --list (default: all)")
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument("--rounds", type=number, default=1, help="times that each scenario runs (%(default)s)")
    parser.add_argument(
        "--parallel", type=number, default=8, help="concurrent clients; the number of slots of the server (%(default)s)"
    )
    parser.add_argument(
        "--scale",
        type=_within(float, 1e-6, 100),
        default=1.0,
        help="factor for prompt lengths and request counts; 0.2 = a quick run",
    )
    parser.add_argument("--seed", type=int, default=seed, help="seed of the prompts; default: random")
    parser.add_argument(
        "--body", type=_object, default={}, metavar="JSON", help="fields added to every request; null removes one"
    )
    parser.add_argument(
        "--timeout",
        type=_within(float, 1e-3, 1e9),
        default=600.0,
        metavar="S",
        help="seconds per request (%(default)s)",
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write all figures to a file; - = standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    return parser.parse_args(list(argv))


def _within(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low:g} and {high:g}")
        return value

    return number


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value
