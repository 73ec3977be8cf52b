"""Measure the CPU time of Python per token, per request and per waiting request. The server runs in this process.

``python -m benchmarks.budget [--only tokens|requests|waiters] [--figures]`` prints tables by part, or the sums as JSON.

All figures are CPU times of threads, as counted by the kernel. Other processes change them less than wall time, though
they share caches and cores. One run measures only the library (decode, sampling), for the sums; another one measures
every part. The cost of measuring is measured, too, and subtracted.

Per token: chat streams in all slots. "Engine plus HTTP" is both threads without decode and native sampling; the goal is
60 us. Per request: chats of one token over persistent connections, not streamed. "Python" is all threads and the
template sandboxes, without decode and native sampling; the goal is 1,500 us. Per waiter: see `waiters`.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.budget.parts import NATIVE, REQUEST_PARTS, TOKEN_PARTS, Part, Threads
from benchmarks.budget.waiters import N_TOKENS, N_WAITERS, measure
from benchmarks.environment import DEMO
from benchmarks.in_process import serving
from benchmarks.resources import cpu_of_children_s, cpu_of_threads_s

_CLIENT = """
import http.client, json, sys
from concurrent.futures import ThreadPoolExecutor
port, n, n_requests, n_tokens, name = (*map(int, sys.argv[1:5]), sys.argv[5])
def one(i):
    c = http.client.HTTPConnection("127.0.0.1", port)
    for k in range(n_requests):
        body = json.dumps({"model": "m", "stream": n_tokens > 1, "max_tokens": n_tokens, "ignore_eos": True, "seed": i,
                           "messages": [{"role": "user", "content": f"{name} {i} {k}: tell me of it"}]})
        c.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        reply = c.getresponse()
        while reply.read1(1 << 16):
            pass
        reply.read()
        assert reply.status == 200, reply.status
with ThreadPoolExecutor(n) as threads:
    list(threads.map(one, range(n)))
"""
_THREADS = {"llamapool-step": "step", "MainThread": "loop", "prepare": "prepare"}


@dataclass(frozen=True, slots=True)
class Work:
    """``n_slots`` parallel clients, each with ``n_requests`` of ``n_tokens``. Costs are per ``unit``."""

    unit: str
    n_slots: int
    n_requests: int
    n_tokens: int

    @property
    def n(self) -> int:
        """The number of units."""
        return self.n_slots * self.n_requests * self.n_tokens


@dataclass(frozen=True, slots=True)
class Burst:
    """CPU seconds by thread ("processes": the template sandboxes) and by part."""

    threads: dict[str, float]
    parts: dict[str, float]
    calls: dict[str, int]
    n_steps: int

    @property
    def total(self) -> float:
        return sum(self.threads.values())

    @property
    def native(self) -> float:
        return sum(self.parts[part.name] for part in NATIVE)


async def _serve(model: Path, work: Work, parts: list[Part], bursts: int) -> Burst:
    n_slots = str(work.n_slots)
    flags = ["-m", str(model), "-a", "m", "-np", n_slots, "-c", str(work.n_slots * 1024), "-t", "1", "--port", "0"]
    with Threads(parts) as threads:
        async with serving(flags) as port:
            results = [await _burst(threads, port, work, f"burst {i}") for i in range(bursts + 1)]
    return min(results[1:], key=lambda burst: burst.total)  # the first one is a warm-up


async def _burst(threads: Threads, port: int, work: Work, name: str) -> Burst:
    arguments = ["-c", _CLIENT, *map(str, (port, work.n_slots, work.n_requests, work.n_tokens)), name]
    client = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    before = _cpu_s(client.pid)  # excludes the start of the client
    threads.reset()
    assert await client.wait() == 0
    spent = {name: s - before.get(name, 0.0) for name, s in _cpu_s(client.pid).items()}
    return Burst(spent, threads.seconds(), threads.calls(), threads.n_steps)


def _cpu_s(client: int) -> dict[str, float]:
    spent = {"loop": 0.0, "prepare": 0.0, "step": 0.0, "other threads": 0.0}
    for name, seconds in cpu_of_threads_s():
        thread = next((short for long, short in _THREADS.items() if name.startswith(long)), "other threads")
        spent[thread] += seconds
    return spent | {"processes": sum(s for pid, s in cpu_of_children_s() if pid != client)}


def sums(work: Work, bare: Burst) -> dict[str, float]:
    if work.unit == "token":
        return {"us a token": 1e6 * (bare.threads["loop"] + bare.threads["step"] - bare.native) / work.n}
    return {"ms a request": 1e3 * (bare.total - bare.native) / work.n}


def table(work: Work, parts: Iterable[Part], bare: Burst, detailed: Burst) -> str:
    """Return a Markdown table: the parts of the `detailed` burst, and each thread's other time in the `bare` one."""
    lines = [f"| thread | part | us per {work.unit} | calls per {work.unit} |", "|---|---|--:|--:|"]
    counted: dict[str, float] = {}
    for part in parts:
        seconds = detailed.parts[part.name]
        counted[part.thread] = counted.get(part.thread, 0.0) + seconds
        us, calls = seconds / work.n * 1e6, detailed.calls[part.name] / work.n
        lines.append(f"| {part.thread} | {part.name} | {us:.1f} | {calls:.2f} |")
    for thread, total in bare.threads.items():
        rest = max(total - counted.get(thread, 0.0), 0.0) / work.n * 1e6
        if rest >= 0.1:
            lines.append(f"| {thread} | {'the rest' if thread in counted else 'all'} | {rest:.1f} | |")
    python = bare.total - bare.native
    shown = {"the library": bare.native, "**Python**": python}
    if work.unit == "token":
        http = bare.threads["loop"]
        engine = bare.threads["step"] - bare.native
        shown |= {"engine, without decode and sampling": engine, "HTTP": http, "**engine plus HTTP**": engine + http}
    lines += [f"| all | {name} | {seconds / work.n * 1e6:.1f} | |" for name, seconds in shown.items()]
    lines.append(f"| all | steps | | {bare.n_steps / work.n:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200, help="per stream")
    parser.add_argument("--requests", type=int, default=100, help="per client, of one token each")
    parser.add_argument("--bursts", type=int, default=3, help="repetitions; the best one counts")
    parser.add_argument("--only", choices=("tokens", "requests", "waiters"))
    parser.add_argument("--figures", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    kinds = [(Work("token", options.slots, 1, options.tokens), TOKEN_PARTS)]
    kinds += [(Work("request", options.slots, options.requests, 1), REQUEST_PARTS)]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in uvicorn
        for work, parts in kinds:
            if options.only in (None, f"{work.unit}s"):
                bare = runner.run(_serve(options.model, work, NATIVE, options.bursts))
                figures |= sums(work, bare)
                if not options.figures:
                    detailed = runner.run(_serve(options.model, work, parts, options.bursts))
                    print(table(work, parts, bare, detailed), end="\n\n", flush=True)
    if options.only in (None, "waiters"):
        found = asyncio.run(measure(N_TOKENS, N_WAITERS))
        figures["us a waiter and step"] = found.us
        if not options.figures:
            print("| waiters | tokens | steps | us a waiter and step |\n|--:|--:|--:|--:|")
            print(f"| {N_WAITERS} | {N_TOKENS:,} | {found.n_steps} | {found.us:.1f} |")
    if options.figures:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
