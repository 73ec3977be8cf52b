"""Measure the duration of a start, and which parts of a server use how much memory.

``python -m benchmarks.start --model GGUF [--rounds 5] [--json FILE]`` starts Llamapool and llama-server in turn. For
each start it records the seconds from the command to ``/health`` and to the first token, the CPU seconds until then,
and the resident memory after eight streams. Then it imports the parts of the server one after the other in a new
process, and records the seconds and the resident memory that each adds. Linux only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, describe, model, write_bytecode
from benchmarks.resources import cpu_s, resident_mb
from tests.support.peer import build, llama_server
from tests.support.real_server import RealServer, llamapool

PARTS = (
    ("Python and its standard library", "asyncio, http.client, json, logging, multiprocessing, sqlite3, ssl, uuid"),
    ("numpy", "numpy"),
    ("pydantic and pydantic-settings", "pydantic, pydantic_settings"),
    ("fastapi, starlette, uvicorn", "fastapi, starlette, uvicorn, uvicorn.config"),
    ("prometheus-client, jinja2, yaml", "prometheus_client, jinja2, yaml"),
    ("llama.cpp's libraries", "llama_cpp"),
    ("the server's modules", "server.app, server.llama.loader"),
)
"""Imports of a start, in this order. Modules that an earlier part imports count there."""
_IMPORTS = """
import json, sys, time
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
empty = resident()
found = []
for name, modules in json.loads(sys.argv[1]):
    before, start = resident(), time.perf_counter()
    for module in modules.split(", "):
        __import__(module)
    found.append({"part": name, "s": time.perf_counter() - start, "MB": resident() - before})
found[0]["MB"] += empty
print(json.dumps(found))
"""
POLL_S = 0.005
N_STREAMS, N_TOKENS = 8, 64


def measure(start: Callable[[], RealServer]) -> dict[str, float]:
    """Start a server, wait for its first token, run eight streams, and stop it. Returns the figures."""
    started = time.monotonic()
    server = start()
    try:
        server.ready_s, server.poll_s = 60, POLL_S
        server.wait_until_ready()
        ready = time.monotonic() - started
        complete(server, 1)
        figures = {"health s": ready, "first token s": time.monotonic() - started, "CPU s": cpu_s(server.process.pid)}
        with ThreadPoolExecutor(N_STREAMS) as streams:
            list(streams.map(lambda _: complete(server, N_TOKENS), range(N_STREAMS)))
        return figures | {"resident MB": resident_mb(server.process.pid)}
    finally:
        server.stop()


def complete(server: RealServer, n_tokens: int) -> None:
    """Request a completion of `n_tokens`. Raises `RuntimeError` if the server generated fewer."""
    reply = server.post("/completion", {"prompt": "Once upon a time", "n_predict": n_tokens, "ignore_eos": True})
    if reply.get("tokens_predicted") != n_tokens:
        raise RuntimeError(f"the completion has {reply.get('tokens_predicted')} tokens, expected {n_tokens}: {reply}")


def imports() -> list[dict[str, Any]]:
    """Return the seconds and the megabytes that each of `PARTS` adds to a process."""
    command = [sys.executable, "-c", _IMPORTS, json.dumps(PARTS)]
    found: list[dict[str, Any]] = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    return found


def table(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the two tables of a result."""
    runs = result["runs"]
    yield "| | Llamapool | llama-server |"
    yield "|---|--:|--:|"
    for figure, words, digits in (
        ("health s", "`/health` answers, seconds after the command", 2),
        ("first token s", "first token, seconds after the command", 2),
        ("CPU s", "CPU seconds until then", 2),
        ("resident MB", f"resident memory after {N_STREAMS} streams, MB", 0),
    ):
        cells = [f"{statistics.median(run[figure] for run in runs[name]):.{digits}f}" for name in runs]
        yield f"| {words} | {' | '.join(cells)} |"
    yield ""
    yield "| imported before a model is loaded | MB | seconds |"
    yield "|---|--:|--:|"
    for each in result["imports"]:
        yield f"| {each['part']} | {each['MB']:.0f} | {each['s']:.2f} |"
    yield f"| all | {sum(e['MB'] for e in result['imports']):.0f} | {sum(e['s'] for e in result['imports']):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of a start.")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    peer = build()
    write_bytecode()
    flags = ("-c", "8192", "-np", str(N_STREAMS))
    starts: dict[str, Callable[[], RealServer]] = {
        "llamapool": lambda: llamapool(options.model, *flags),
        "llama-server": lambda: llama_server(peer, options.model, *flags),
    }
    result: dict[str, Any] = {"environment": {**describe("benchmarks.start"), "model": model(options.model)}}
    result["runs"] = {name: [] for name in starts}
    for number in range(-1, options.rounds):  # the first start of each fills the page cache and is not counted
        for name in starts if number % 2 else reversed(starts):
            figures = measure(starts[name])
            if number >= 0:
                result["runs"][name].append(figures)
    result["imports"] = imports()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(table(result)))


if __name__ == "__main__":
    main()
