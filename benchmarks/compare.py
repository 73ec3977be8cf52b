"""Llamapool against llama-server: the same model, threads, context and slots, in turn and alternating.

``python -m benchmarks.compare [--model x.gguf] [--rounds 3] [--scenario one,slots] [--json results.json]``

Every round starts one server, runs the scenarios on it, stops it, and does the same with the other, so that neither
shares the machine with the other. A round that would not fit the budget is not started. See ``benchmarks/README.md``.
"""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.bare_library import libraries, measure_apart
from benchmarks.client import run_apart
from benchmarks.make_gguf import SHAPES, write_gguf
from benchmarks.report import tables
from benchmarks.scenarios import SCENARIOS, Scenario, Setting, words
from tests.oracle import oracle
from tests.real_server import RealServer, llamapool

SERVERS = ("llamapool", "oracle")
SCENARIO_TIMEOUT_S = 300.0
DEFAULT_MODEL = Path(__file__).with_name("models") / "bench-135m.gguf"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare Llamapool with llama-server.")
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a GGUF; the default is made if missing")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--ctx", type=int, default=20480, help="tokens of all slots together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", default="", help="comma-separated; all of " + ",".join(s.name for s in SCENARIOS))
    parser.add_argument("--scale", type=float, default=1.0, help="of output lengths and request counts")
    parser.add_argument("--budget-s", type=float, default=600.0, help="start no round that would end after this")
    parser.add_argument("--only", choices=SERVERS, help="one server alone")
    parser.add_argument("--no-bare", action="store_true", help="do not measure the libraries by themselves")
    parser.add_argument("--llamapool-flags", default="", help="more flags for Llamapool, separated by spaces")
    parser.add_argument("--json", type=Path, help="write everything here, for benchmarks.report")
    chosen = parser.parse_args(argv)
    names = chosen.scenario.split(",") if chosen.scenario else [s.name for s in SCENARIOS]
    unknown = set(names) - {s.name for s in SCENARIOS}
    if unknown:
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    chosen.scenarios = [s for s in SCENARIOS if s.name in names]
    chosen.servers = [chosen.only] if chosen.only else list(SERVERS)
    chosen.model = chosen.model.resolve()
    return chosen


def start(name: str, chosen: argparse.Namespace) -> RealServer:
    """One of the two servers, with the same settings."""
    if name == "oracle":
        return oracle(chosen.model, n_ctx=chosen.ctx, n_parallel=chosen.slots, n_threads=chosen.threads)
    flags = ["-c", chosen.ctx, "-np", chosen.slots, "-t", chosen.threads, *chosen.llamapool_flags.split()]
    return llamapool(chosen.model, *map(str, flags))


def run_scenario(server: RealServer, scenario: Scenario, setting: Setting) -> dict[str, float]:
    """Figures of one scenario on a server that runs."""
    records = run_apart(scenario.job(setting), SCENARIO_TIMEOUT_S)
    return scenario.metrics(records)


def run_round(name: str, number: int, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Start a server, run every scenario once, stop it."""
    runs = []
    with start(name, chosen) as server:
        setting = Setting(server.port, chosen.slots, seed=number, scale=chosen.scale)
        setting = replace(setting, words_per_token=_words_per_token(server))
        server.post("/v1/completions", {"prompt": words(8, Random(0)), "max_tokens": 4, "ignore_eos": True})
        for scenario in chosen.scenarios:
            metrics = run_scenario(server, scenario, setting)
            figures = ", ".join(f"{metric} {value:.1f}" for metric, value in metrics.items())
            print(f"round {number} {name:9} {scenario.name:6} {figures}", file=sys.stderr, flush=True)
            runs.append({"round": number, "server": name, "scenario": scenario.name, "metrics": metrics})
    return runs


def _words_per_token(server: RealServer) -> float:
    n_words = 64
    reply = server.post("/tokenize", {"content": words(n_words, Random(0))})
    return n_words / len(reply["tokens"])


def measure_bare(chosen: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Both libraries by themselves, alternating, the better of two runs each."""
    speeds: dict[str, dict[str, float]] = {}
    for _ in range(2):
        for name in chosen.servers:
            library = libraries()[name]
            one = measure_apart(library, chosen.model, chosen.threads, 1, 48, 512)
            many = measure_apart(library, chosen.model, chosen.threads, chosen.slots, 24, 16)
            found = {"decode-1": one.decode, "decode-slots": many.decode, "prompt": one.prompt}
            best = speeds.setdefault(name, found)
            speeds[name] = {bound: max(best[bound], found[bound]) for bound in found}
    return speeds


def environment(chosen: argparse.Namespace) -> dict[str, Any]:
    """What a reader of the figures must know."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "model": f"{chosen.model.name} ({chosen.model.stat().st_size / 1e6:.0f} MB)",
        "llama_cpp_python": _version("llama-cpp-python"),
        "xllamacpp": _version("xllamacpp"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def compare(chosen: argparse.Namespace) -> dict[str, Any]:
    """Run everything; the result is what ``--json`` holds."""
    began = time.monotonic()
    result: dict[str, Any] = {
        "environment": environment(chosen),
        "options": {"threads": chosen.threads, "slots": chosen.slots, "ctx": chosen.ctx, "scale": chosen.scale},
        "bare": {} if chosen.no_bare else measure_bare(chosen),
        "runs": [],
        "rounds": 0,
    }
    longest = 0.0
    for number in range(1, chosen.rounds + 1):
        if time.monotonic() - began + longest > chosen.budget_s:
            print(f"round {number} would not fit {chosen.budget_s:.0f} s", file=sys.stderr)
            break
        round_began = time.monotonic()
        for name in chosen.servers:
            result["runs"] += run_round(name, number, chosen)
        result["rounds"] = number
        longest = max(longest, time.monotonic() - round_began)
    return result


def main() -> None:
    """Command line."""
    chosen = parse()
    if chosen.model == DEFAULT_MODEL and not DEFAULT_MODEL.exists():
        DEFAULT_MODEL.parent.mkdir(exist_ok=True)
        write_gguf(DEFAULT_MODEL, SHAPES["135m"])
    result = compare(chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1))
    print(tables(result))


if __name__ == "__main__":
    main()
