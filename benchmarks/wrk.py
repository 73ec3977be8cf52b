"""Measure requests per second with wrk, a C client whose CPU time does not distort the comparison.

``python -m benchmarks.wrk [--model FILE] [--rounds 5] [--seconds 5] [--json FILE]`` starts Llamapool, llama-server and
a null server, which shows the client's own limit. Each round runs wrk with 8 connections against one server after the
other; the other two are idle. Needs wrk (Debian's package of that name).

Two loads: completions of one token over kept connections, and streams of 16 tokens. Each request has its own prompt.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.compare.__main__ import machine_of
from benchmarks.compare.__main__ import parse as parse_machine
from benchmarks.compare.units import ARMS, Unit, started

SERVERS = ("llamapool", "peer", "null")
UNIT = Unit("wrk", (), servers=SERVERS)
N_CONNECTIONS = 8
SCRIPT = """
local n = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
function request()
  n = n + 1
  return wrk.format(nil, "/v1/completions", nil,
    '{"prompt": "Request ' .. n .. ' of many", "max_tokens": %d, "temperature": 0, "stream": %s}')
end
"""
LOADS = {"1 token": SCRIPT % (1, "false"), "16 tokens, streamed": SCRIPT % (16, "true")}


class WrkError(Exception):
    """wrk is missing, or its output has no rate."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of wrk. Latencies are of whole replies, in milliseconds."""

    server: str
    load: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int


def run_wrk(server: str, load: str, port: int, seconds: int) -> Run:
    """Run wrk against a port on this machine. Raises `WrkError`."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(LOADS[load])
        script.flush()
        command = ["wrk", "-t1", f"-c{N_CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", script.name]
        try:
            output = subprocess.run(
                [*command, f"http://127.0.0.1:{port}"], check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        except FileNotFoundError:
            raise WrkError("wrk is not installed: apt-get install wrk") from None
    return parse_output(server, load, output)


def parse_output(server: str, load: str, output: str) -> Run:
    """Read wrk's output. Raises `WrkError`."""
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    latencies = {n: _ms(value, unit) for n, value, unit in re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)", output)}
    if rate is None or len(latencies) < 2:
        raise WrkError(f"wrk printed no rate:\n{output}")
    errors = sum(map(int, re.findall(r"(?:Non-2xx or 3xx responses: |connect |read |write |timeout )(\d+)", output)))
    return Run(server, load, float(rate[1]), latencies["50"], latencies["99"], errors)


def _ms(value: str, unit: str) -> float:
    return float(value) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def measure(chosen: argparse.Namespace, rounds: int, seconds: int) -> Iterator[Run]:
    """Run every load against every server, `rounds` times after a warm-up."""
    machine = machine_of(chosen)
    with ExitStack() as up:
        ports = {name: up.enter_context(started(name, UNIT, machine))[0].port for name in SERVERS}
        for load in LOADS:
            for number in range(rounds + 1):
                for name in SERVERS if number % 2 else reversed(SERVERS):
                    run = run_wrk(name, load, ports[name], seconds if number else 1)
                    if number:
                        yield run


def table(runs: Sequence[Run]) -> str:
    """Return medians of all rounds as Markdown, with the ratio to llama-server."""
    rows = ["| load | server | requests/s | ratio | p50 ms | p99 ms | errors |", "|---|---|--:|--:|--:|--:|--:|"]
    for load in LOADS:
        by_server = {name: [run for run in runs if (run.server, run.load) == (name, load)] for name in SERVERS}
        rates = {name: statistics.median(run.requests_per_s for run in each) for name, each in by_server.items()}
        for name, each in by_server.items():
            p50, p99 = (statistics.median(getattr(run, field) for run in each) for field in ("p50_ms", "p99_ms"))
            ratio = f"{rates[name] / rates['peer']:.2f}" if name == "llamapool" else ""
            errors = sum(run.errors for run in each)
            rows.append(
                f"| {load} | {ARMS[name].title} | {rates[name]:.0f} | {ratio} | {p50:.1f} | {p99:.1f} | {errors} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrk", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="of each run")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    own, rest = parser.parse_known_args()
    chosen = parse_machine(rest)
    runs = list(measure(chosen, own.rounds, own.seconds))
    print(table(runs))
    if own.json is not None:
        described: dict[str, Any] = {"environment": environment.describe("benchmarks.wrk")}
        own.json.write_text(json.dumps(described | {"runs": [vars_of(run) for run in runs]}, indent=1) + "\n")


def vars_of(run: Run) -> dict[str, Any]:
    """Return a run's fields for JSON."""
    return {name: getattr(run, name) for name in Run.__slots__}


if __name__ == "__main__":
    main()
