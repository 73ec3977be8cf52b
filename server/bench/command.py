"""``llamapool bench``: the scenarios against any OpenAI-compatible address.

The exit status is 0, or that of `server.bench.errors`; 2 for a wrong option. A scenario that a server can't do is
reported, the others are measured all the same, and the exit status is then 1.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tqdm import tqdm

from server.bench.errors import BenchError, Unreachable
from server.bench.figures import Figures
from server.bench.probe import find_model, prepare
from server.bench.scenarios import SCENARIOS, Scenario, Setting, named, run
from server.bench.session import ModelClient
from server.bench.target import parse_target

OK, WRONG = 0, 2


@dataclass(slots=True)
class ScenarioResult:
    """What one scenario gave in each round, or why it gave nothing."""

    scenario: Scenario
    rounds: list[Figures] = field(default_factory=list)
    failure: str = ""

    def values(self, figure: str) -> list[float]:
        """Return one figure of each round."""
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
    """Return every round's figures as a JSON object."""
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


def main(words: Sequence[str]) -> int:
    """Run the command; the exit status."""
    chosen = _parse(words)
    if chosen.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:14} {scenario.title}{' (only when named)' if scenario.extra else ''}")
        return OK
    try:
        _check_writable(chosen.json)
        scenarios = _scenarios(chosen)
        session, words_per_word, changes = prepare(_session(chosen))
        for change in changes:
            print(f"llamapool bench: asking {change}", file=sys.stderr)
        outcomes = measure(session, scenarios, _setting(chosen, words_per_word), chosen.rounds, quiet=chosen.quiet)
        _write(outcomes, chosen, session)
    except BenchError as error:
        print(f"llamapool bench: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    return BenchError.status if any(outcome.failure for outcome in outcomes) else OK


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="llamapool bench", description="Measure an OpenAI-compatible server as its clients see it."
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="http[s]://host[:port][/path] (%(default)s)")
    parser.add_argument("--model", default="", help="model to measure; needed if the server has several")
    parser.add_argument(
        "--api-key", default=os.environ.get("OPENAI_API_KEY", ""), help="API key; default: the variable OPENAI_API_KEY"
    )
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    parser.add_argument("--chat", action="store_true", help="use /v1/chat/completions instead of /v1/completions")
    parser.add_argument(
        "--scenario", default="", metavar="A,B", help="some of --list (default: all but those 'only when named')"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument("--rounds", type=number, default=1, help="times that each scenario runs (%(default)s)")
    parser.add_argument(
        "--parallel", type=number, default=8, help="concurrent clients; the number of slots of the server (%(default)s)"
    )
    parser.add_argument(
        "--scale", type=factor, default=1.0, help="factor for prompt lengths and request counts; 0.2 = a quick run"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of the prompts; default: random")
    parser.add_argument(
        "--body", type=_object, default={}, metavar="JSON", help="fields added to every request; null removes one"
    )
    parser.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="seconds per request (%(default)s)")
    parser.add_argument("--json", default="", metavar="FILE", help="write all figures to a file; - = standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    return parser.parse_args(list(words))


def _session(chosen: argparse.Namespace) -> ModelClient:
    target = parse_target(chosen.url, chosen.api_key, insecure=chosen.insecure)
    model = chosen.model or asyncio.run(find_model(target, chosen.timeout))
    return ModelClient(target, model, chosen.chat, chosen.body, chosen.timeout)


def _scenarios(chosen: argparse.Namespace) -> list[Scenario]:
    if chosen.scenario:
        return named(chosen.scenario)
    local = parse_target(chosen.url).local
    return [scenario for scenario in SCENARIOS if not scenario.extra and (local or not scenario.local)]


def _setting(chosen: argparse.Namespace, words_per_word: float) -> Setting:
    seed = int.from_bytes(os.urandom(4), "big") if chosen.seed is None else chosen.seed
    return Setting(seed, chosen.parallel, chosen.scale, words_per_word)


def measure(
    session: ModelClient, scenarios: Sequence[Scenario], setting: Setting, n_rounds: int, *, quiet: bool = False
) -> list[ScenarioResult]:
    """Every scenario once in each round. Raises `Unreachable` when the server is gone."""
    outcomes = [ScenarioResult(scenario) for scenario in scenarios]
    with tqdm(total=n_rounds * len(scenarios), unit="run", disable=quiet or None, file=sys.stderr, leave=False) as bar:
        for n in range(n_rounds):
            for outcome in outcomes:
                bar.set_description(f"round {n + 1}/{n_rounds} {outcome.scenario.name}")
                _measure_one(outcome, session, replace(setting, seed=setting.seed + n))
                bar.update()
    return outcomes


def _measure_one(outcome: ScenarioResult, session: ModelClient, setting: Setting) -> None:
    if outcome.failure:
        return
    try:
        outcome.rounds.append(run(outcome.scenario, session, setting))
    except Unreachable:
        raise
    except BenchError as error:
        outcome.failure = str(error)


def _write(outcomes: Sequence[ScenarioResult], chosen: argparse.Namespace, session: ModelClient) -> None:
    about = {
        "url": session.target.url,
        "model": session.model,
        "api": session.path,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "parallel": chosen.parallel,
        "scale": chosen.scale,
    }
    text = json.dumps(document(outcomes, **about), indent=1)
    if chosen.json == "-":
        print(text)
        return
    print(table(outcomes))
    if chosen.json:
        try:
            with open(chosen.json, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise BenchError(f"--json {chosen.json}: {error.strerror}") from error


def _check_writable(path: str) -> None:
    """Before minutes of measuring, not behind them."""
    if path not in ("", "-"):
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            raise BenchError(f"--json {path}: {error.strerror}") from error


def number(text: str) -> int:
    value = int(text)
    if not 0 < value <= 10_000:
        raise argparse.ArgumentTypeError(f"{value} is not between 1 and 10000")
    return value


def factor(text: str) -> float:
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time")
    return value


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value
