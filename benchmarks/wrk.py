"""Measure requests per second with C clients, whose CPU time does not distort the comparison.

``python -m benchmarks.wrk [--model FILE] [--rounds 5] [--seconds 5] [--json FILE]`` starts Llamapool, llama-server
and a null server, which shows the client's own limit. Each round runs the client with 8 connections against one server
after the other while the other two are idle. The models are one of 135 million parameters (or FILE) and the demo model,
whose steps take little longer than a server's own work. Needs wrk and ab (Debian's wrk and apache2-utils).

There are four loads: completions of one token over persistent connections, the same over HTTP/1.0 (ab, one prompt),
streams of 16 tokens, and streams of 8 to 24 tokens. Streams of equal length that start together stay in step, so their
prompts are computed in one batch; those of different lengths do not. Except with ab, all prompts differ.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from benchmarks.compare.__main__ import machine_of
from benchmarks.compare.__main__ import parse as parse_machine
from benchmarks.compare.units import ARMS, Unit, started
from benchmarks.environment import DEMO, describe

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
    '{"prompt": "Request ' .. n .. ' of many", "max_tokens": ' .. %s .. ', "temperature": 0, "stream": %s}')
end
"""
HTTP_1_0 = "1 token, HTTP/1.0"
LOADS = {
    "1 token": SCRIPT % ("1", "false"),
    HTTP_1_0: '{"prompt": "Request 1 of many", "max_tokens": 1, "temperature": 0}',
    "16 tokens, streamed": SCRIPT % ("16", "true"),
    "8 to 24 tokens, streamed": SCRIPT % ("(8 + n * 7 % 17)", "true"),
}


class WrkError(Exception):
    """wrk or ab is missing, or its output has no rate."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a client. Latencies are of whole replies, in milliseconds."""

    model: str
    server: str
    load: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int


def run_client(model: str, server: str, load: str, port: int, seconds: int) -> Run:
    """Run a load against a loopback port. Raises `WrkError`."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(LOADS[load])
        file.flush()
        if load == HTTP_1_0:
            body = ["-p", file.name, "-T", "application/json"]
            command = ["ab", "-q", "-k", f"-c{N_CONNECTIONS}", f"-t{seconds}", "-n1000000", *body]
            command.append(f"{url}/v1/completions")
        else:
            limits = [f"-c{N_CONNECTIONS}", f"-d{seconds}s", "--timeout", "60s"]  # a reply after 2 s is no error
            command = ["wrk", "-t1", *limits, "--latency", "-s", file.name, url]
        try:
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except FileNotFoundError as error:
            raise WrkError(f"{error.filename} is not installed: apt-get install wrk apache2-utils") from None
    return parse_output(model, server, load, output)


def parse_output(model: str, server: str, load: str, output: str) -> Run:
    """Read the output of wrk or ab. Raises `WrkError`."""
    rate = re.search(r"Requests(?:/sec| per second):\s+([\d.]+)", output)
    latencies = {n: _ms(value, unit or "ms") for n, value, unit in re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s|)", output)}
    if rate is None or len(latencies) < 2:
        raise WrkError(f"the client printed no rate:\n{output}")
    failed = r"(?:Non-2xx or 3xx responses: +|Non-2xx responses: +|connect |read |write |timeout )(\d+)"
    return Run(
        model, server, load, float(rate[1]), latencies["50"], latencies["99"], sum(map(int, re.findall(failed, output)))
    )


def _ms(value: str, unit: str) -> float:
    return float(value) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def measure(options: argparse.Namespace, rounds: int, seconds: int) -> Iterator[Run]:
    """Run every load against every server with each model, `rounds` times after a warm-up."""
    for file in (options.model, DEMO):
        machine = machine_of(argparse.Namespace(**vars(options) | {"model": file}))
        model = machine.models["random"].name
        with ExitStack() as stack:
            ports = {name: stack.enter_context(started(name, UNIT, machine))[0].port for name in SERVERS}
            for load in LOADS:
                for number in range(rounds + 1):
                    for name in SERVERS if number % 2 else reversed(SERVERS):
                        if (name, load) == ("null", HTTP_1_0):
                            continue  # it closes HTTP/1.0 connections
                        run = run_client(model, name, load, ports[name], seconds if number else 1)
                        if number:
                            yield run


def table(runs: Sequence[Run]) -> str:
    """Return medians of all rounds as Markdown, with the ratio to llama-server."""
    rows = [
        "| model | load | server | requests/s | ratio | p50 ms | p99 ms | errors |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for model, load in product(dict.fromkeys(run.model for run in runs), LOADS):
        by_server = {
            name: [run for run in runs if (run.model, run.server, run.load) == (model, name, load)] for name in SERVERS
        }
        rates = {
            name: statistics.median(run.requests_per_s for run in each) for name, each in by_server.items() if each
        }
        for name in [name for name in SERVERS if by_server[name]]:
            each = by_server[name]
            p50, p99 = (statistics.median(getattr(run, field) for run in each) for field in ("p50_ms", "p99_ms"))
            ratio = f"{rates[name] / rates['peer']:.2f}" if name == "llamapool" else ""
            figures = f"{rates[name]:.0f} | {ratio} | {p50:.1f} | {p99:.1f} | {sum(run.errors for run in each)}"
            rows.append(f"| {model} | {load} | {ARMS[name].title} | {figures} |")
    return "\n".join(rows)


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wrk", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="duration of each run")
    parser.add_argument("--json", type=Path, help="write the raw figures here")
    own, rest = parser.parse_known_args()
    options = parse_machine(rest)
    runs = list(measure(options, own.rounds, own.seconds))
    print(table(runs))
    if own.json is not None:
        result = {"environment": describe("benchmarks.wrk"), "runs": list(map(asdict, runs))}
        own.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
