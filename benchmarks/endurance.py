"""Overload a server with many clients, some of which are slow, send garbage or disconnect, and look for leaks.

``python -m benchmarks.endurance [--seconds 600] [--clients 500] [--bad 0.33] [--slots 4] [--json F]``

``make overload`` runs 500 clients for ten minutes; ``make soak`` runs as many as the server can serve for half an hour.
Well-behaved clients send one request after the other. After 429 or 503 they wait for ``Retry-After``. Each second, the
memory, descriptors and threads of all server processes and the time of ``/health`` are recorded.

Well-behaved clients may get no status except 200, 429 and 503. At the end, all slots must be free, and descriptors must
be as many as before. Memory without cached prompts in RAM must not grow. `growth_mib` defines growth, and
`MAX_GROWTH_MIB` how much of it may be noise.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environment import DEMO, describe, model
from benchmarks.resources import with_children
from tests.support.real_server import RealServer, llamapool

RETRY_STATUSES = (429, 503)
REPLY_S = 300.0  # the time limit of a well-behaved client for a reply
WORDS = ["one", "river", "stone", "bridge", "green", "seven", "walks", "under", "light", "again", "because", "winter"]
CACHED = "llamapool_cache_ram_bytes"
MAX_GROWTH_MIB = 4.0
"""Growth over the second half of a run that may be noise. A run of half an hour without leaks grew by at most 3 MiB
after its first 150 s. A leak of 20 MiB per hour, which is 5 MiB in 15 minutes, exceeds both."""
MAX_GROWTH_MIB_PER_H = 12.0
"""The same for runs of more than 40 minutes, whose second half is longer."""
N_INTERVALS = 30
SLACK_DESCRIPTORS = 16


@dataclass(slots=True)
class Sample:
    """Memory, descriptors and threads of all server processes, the RAM tier's size, and the time of ``/health``."""

    at_s: float
    rss_mib: float
    cached_mib: float
    n_descriptors: int
    n_threads: int
    health_ms: float


@dataclass(slots=True)
class Results:
    started_at: float
    seconds: float  # of load
    samples: list[Sample] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)  # of well-behaved clients
    bad: Counter[str] = field(default_factory=Counter)  # misbehaving clients by kind and outcome
    first_token_ms: list[tuple[float, float]] = field(default_factory=list)  # second of the request, and its TTFT
    faults: list[str] = field(default_factory=list)
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """The server, the end of the load, and the results."""

    port: int
    ends_at: float
    results: Results

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.ends_at


def chat(random_: random.Random, *, stream: bool, max_tokens: int) -> bytes:
    """Return a chat request with a shared system prompt and random words."""
    text = " ".join(random_.choices(WORDS, k=random_.choice((4, 30, 120))))
    shared = "You are careful. " * random_.choice((1, 10))
    messages = [{"role": "system", "content": shared}, {"role": "user", "content": text}]
    return post_request({"messages": messages, "stream": stream, "max_tokens": max_tokens})


def post_request(body: object) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + content


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the server. Resets the connection at the end of the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    try:
        yield reader, writer
    finally:
        with suppress(OSError):
            writer.transport.abort()


# ---- well-behaved clients


async def well_behaved(target: Target, random_: random.Random) -> None:
    """Send one request after the other, and read each reply to its end."""
    while not target.over:
        sent_at = time.monotonic()
        try:
            wait_s = await asyncio.wait_for(_send_chat(target, random_, sent_at), REPLY_S)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            target.results.statuses["broken"] += 1
            at_s = sent_at - target.results.started_at
            target.results.faults.append(f"{at_s:.1f} s: {type(error).__name__} {error}"[:200])
            wait_s = 1.0
        await asyncio.sleep(wait_s * random_.uniform(1.0, 1.5))


async def _send_chat(target: Target, random_: random.Random, sent_at: float) -> float:
    """Send a chat and read its reply. Returns the seconds to wait before the next request."""
    results, stream = target.results, random_.random() < 0.7
    async with connected(target) as (reader, writer):
        writer.write(chat(random_, stream=stream, max_tokens=random_.choice((4, 16, 48))))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        results.statuses[str(status)] += 1
        if status in RETRY_STATUSES:
            wait_s = head.partition("retry-after: ")[2].partition("\r\n")[0]
            if not wait_s.isdecimal():
                results.faults.append(f"a {status} without Retry-After")
            return min(float(wait_s or 1), 30.0)
        if status != 200:
            results.faults.append(f"status {status}: {(await reader.read(300))!r}")
            return 1.0
        reply = await reader.readuntil(b"}") if stream else b""
        results.first_token_ms.append((sent_at - results.started_at, (time.monotonic() - sent_at) * 1e3))
        while chunk := await reader.read():
            reply += chunk
        if stream and b"data: [DONE]" not in reply:
            results.faults.append(f"a stream ends with {reply[-200:]!r}")
        results.n_tokens += reply.count(b'"delta"') if stream else 1
        return 0.0


# ---- misbehaving clients


async def slow_reader(target: Target, random_: random.Random) -> None:
    async with connected(target) as (reader, writer):
        writer.write(chat(random_, stream=True, max_tokens=200))
        with suppress(TimeoutError):
            for _ in range(random_.randrange(5, 60)):
                if target.over or not await asyncio.wait_for(reader.read(1), 20):
                    break
                await asyncio.sleep(0.5)


async def slow_sender(target: Target, random_: random.Random) -> None:
    async with connected(target) as (_, writer):
        for byte in chat(random_, stream=True, max_tokens=4)[: random_.randrange(20, 400)]:
            if target.over:
                break
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.2)


async def gone_before_the_reply(target: Target, random_: random.Random) -> None:
    async with connected(target) as (_, writer):
        writer.write(chat(random_, stream=random_.random() < 0.5, max_tokens=100))
        await writer.drain()
        await asyncio.sleep(random_.uniform(0, 0.5))


async def gone_in_the_middle(target: Target, random_: random.Random) -> None:
    async with connected(target) as (reader, writer):
        writer.write(chat(random_, stream=True, max_tokens=200))
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(random_.randrange(200, 2000)), 20)


async def half_a_body(target: Target, random_: random.Random) -> None:
    async with connected(target) as (_, writer):
        whole = chat(random_, stream=True, max_tokens=4)
        writer.write(whole[: len(whole) - random_.randrange(1, 50)])
        await writer.drain()
        await asyncio.sleep(random_.uniform(0, 10))


async def garbage(target: Target, random_: random.Random) -> None:
    async with connected(target) as (reader, writer):
        writer.write(random_.randbytes(random_.randrange(1, 5000)))
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(500), 5)


async def wrong_json(target: Target, random_: random.Random) -> None:
    async with connected(target) as (reader, writer):
        writer.write(
            post_request(
                random_.choice((b"{", b"[]", b'{"messages": 5}', b'{"messages": [{"role": "x"}]}', b"\xff" * 99))
            )
        )
        reply = await asyncio.wait_for(reader.read(300), 60)
        if b" 500 " in reply[:40]:
            target.results.faults.append(f"wrong JSON: {reply!r}")


async def silent(target: Target, random_: random.Random) -> None:
    async with connected(target):
        await asyncio.sleep(random_.uniform(1, 30))


KINDS: tuple[Callable[[Target, random.Random], Awaitable[None]], ...] = (
    *(slow_reader, slow_sender, gone_before_the_reply, gone_in_the_middle, half_a_body, garbage, wrong_json, silent),
)


async def misbehaving(target: Target, random_: random.Random) -> None:
    """Misbehave in one random way after the other."""
    while not target.over:
        kind = random_.choice(KINDS)
        try:
            await kind(target, random_)
            target.results.bad[kind.__name__] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            target.results.bad[f"{kind.__name__}, cut off"] += 1
        await asyncio.sleep(random_.uniform(0, 0.5))


# ---- resources


def of_processes(pid: int) -> tuple[float, int, int]:
    """Return resident MiB, descriptors and threads of a server and its child processes. Linux only.

    Shared mappings count in each process.
    """
    memory, n_descriptors, n_threads = 0.0, 0, 0
    for each in with_children(pid):
        proc = Path(f"/proc/{each}")
        with suppress(OSError, KeyError):  # the process has just exited
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            n_open = sum(1 for _ in (proc / "fd").iterdir())
            memory += int(status["VmRSS"].split()[0]) / 1024
            n_descriptors += n_open
            n_threads += int(status["Threads"])
    return memory, n_descriptors, n_threads


async def get(target: Target, path: str) -> bytes:
    """Return the head and body of a reply, or nothing after a failure."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with connected(target) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return await asyncio.wait_for(reader.read(), 30)
    return b""


async def cached_mib(target: Target, before: float) -> float:
    """Return the size of the RAM tier from the metrics, or `before` without a reply."""
    lines = (await get(target, "/metrics")).decode("latin-1").splitlines()
    sizes = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(CACHED)]
    return sum(sizes) / 2**20 if sizes else before


async def watch(target: Target, pid: int) -> None:
    """Record a sample per second until cancelled."""
    cached = 0.0
    while True:
        started = time.monotonic()
        reply = await get(target, "/health")
        health_ms = (time.monotonic() - started) * 1e3
        if reply and not reply.startswith(b"HTTP/1.1 200"):
            target.results.faults.append(f"/health: {reply[:80]!r}")
        cached = await cached_mib(target, cached)
        rss, n_descriptors, n_threads = of_processes(pid)
        at_s = started - target.results.started_at
        target.results.samples.append(Sample(at_s, rss, cached, n_descriptors, n_threads, health_ms))
        await asyncio.sleep(max(1 - (time.monotonic() - started), 0))


async def load(server: RealServer, options: argparse.Namespace) -> Results:
    """Run all clients for ``--seconds``, and record samples until 5 s after their end."""
    now = time.monotonic()
    target = Target(server.port, now + options.seconds, Results(now, options.seconds))
    seeds = random.Random(options.seed)
    watching = asyncio.create_task(watch(target, server.process.pid))
    await asyncio.sleep(2)
    n_bad = round(options.clients * options.bad)
    async with asyncio.TaskGroup() as clients:
        for number in range(options.clients):
            kind = misbehaving if number < n_bad else well_behaved
            clients.create_task(kind(target, random.Random(seeds.random())))
    await asyncio.sleep(5)
    watching.cancel()
    return target.results


def free_slots(server: RealServer, within_s: float = 60.0) -> int:
    """Wait until all slots are idle. Returns the number of idle slots, at the latest after `within_s`."""
    ends_at = time.monotonic() + within_s
    while True:
        slots = server.get("/slots")
        n_idle = sum(not slot["is_processing"] for slot in slots)
        if n_idle == len(slots) or time.monotonic() > ends_at:
            return n_idle
        time.sleep(0.2)


def growth_mib(results: Results) -> float:
    """Return the growth of memory without the RAM tier over the second half of the load.

    The first half warms up: the allocator's arenas, compiled templates and thread pools fill. The growth is the rise of
    a line fitted (least squares) to the lowest sample of each of `N_INTERVALS` intervals. Running requests raise single
    samples; only a leak raises the lowest ones. Samples after the load do not count.
    """
    half = results.seconds / 2
    lows: dict[int, float] = {}
    for sample in results.samples:
        if half <= sample.at_s < results.seconds:
            number = int((sample.at_s - half) / half * N_INTERVALS)
            lows[number] = min(lows.get(number, math.inf), sample.rss_mib - sample.cached_mib)
    slope, _ = statistics.linear_regression(list(lows), list(lows.values()))
    return slope * N_INTERVALS


def verdict(results: Results, n_slots: int, n_free: int) -> list[str]:
    """Return the problems of a run."""
    problems = list(results.faults)
    if n_free != n_slots:
        problems.append(f"{n_slots - n_free} of {n_slots} slots are still in use")
    growth, limit = growth_mib(results), max(MAX_GROWTH_MIB, MAX_GROWTH_MIB_PER_H * results.seconds / 2 / 3600)
    if growth > limit:
        problems.append(
            f"memory without the cache grows by {growth:.1f} MiB in the second half; {limit:.1f} may be noise"
        )
    first, last = results.samples[0], results.samples[-1]
    if last.n_descriptors > first.n_descriptors + SLACK_DESCRIPTORS:
        problems.append(f"descriptors rise from {first.n_descriptors} to {last.n_descriptors}")
    return problems


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run (`as_json`) as table rows."""
    samples, seconds = result["samples"], result["options"]["seconds"]
    rss = [s["rss_mib"] for s in samples]
    uncached = [s["rss_mib"] - s["cached_mib"] for s in samples]
    waits = sorted(ms for _, ms in result["first_token_ms"]) or [0.0]
    health = sorted(s["health_ms"] for s in samples)

    def at(values: list[float], share: float) -> float:
        return values[min(int(len(values) * share), len(values) - 1)]

    return [
        (
            "replies to well-behaved clients",
            ", ".join(f"{n} × {status}" for status, n in sorted(result["statuses"].items())),
        ),
        ("faults", f"{len(result['faults'])}"),
        ("events and replies a second", f"{result['n_tokens'] / seconds:.0f}"),
        ("first token, ms", f"median {at(waits, 0.5):.0f}, 99% {at(waits, 0.99):.0f}, most {waits[-1]:.0f}"),
        ("`/health`, ms", f"median {at(health, 0.5):.0f}, 99% {at(health, 0.99):.0f}, most {health[-1]:.0f}"),
        ("memory, MiB", f"{rss[0]:.0f} at first, at most {max(rss):.0f}, {rss[-1]:.0f} at rest"),
        ("of that cached prompts, MiB", f"at most {max(s['cached_mib'] for s in samples):.0f}"),
        (
            "memory without them, MiB",
            f"{uncached[0]:.0f} at first, at most {max(uncached):.0f}, {uncached[-1]:.0f} at rest",
        ),
        ("growth in the second half, MiB", f"{result['growth_mib']:+.1f}"),
        ("descriptors", _range([s["n_descriptors"] for s in samples])),
        ("threads", _range([s["n_threads"] for s in samples])),
        ("misbehaving clients", ", ".join(f"{n} × {kind}" for kind, n in sorted(result["unsound"].items()))),
        ("free slots at the end", f"{result['n_free']} of {result['options']['slots']}"),
    ]


def _range(values: list[int]) -> str:
    return f"{values[0]} at first, at most {max(values)}, {values[-1]} at rest"


def as_json(results: Results, options: argparse.Namespace, n_free: int, described: dict[str, Any]) -> dict[str, Any]:
    """Return a run as JSON; `described` is its environment (`environment.describe`)."""
    samples = [{name: round(value, 1) for name, value in asdict(sample).items()} for sample in results.samples]
    return {
        "environment": described | {"model": model(options.model)},
        "options": {name: getattr(options, name) for name in ("seconds", "clients", "bad", "slots", "queue", "seed")},
        "n_free": n_free,
        "growth_mib": round(growth_mib(results), 1),
        "n_tokens": results.n_tokens,
        "samples": samples,
        "first_token_ms": [[round(value, 1) for value in pair] for pair in results.first_token_ms],
        "statuses": dict(results.statuses),
        "unsound": dict(results.bad),
        "faults": results.faults,
    }


def main() -> int:
    """Return 0 if there are no problems."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--bad", type=float, default=0.33, help="share of misbehaving clients")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--queue", type=int, default=46, help="requests that may wait")
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write raw figures for benchmarks.report")
    options = parser.parse_args()
    described = describe("benchmarks.endurance")
    flags = ["--parallel", str(options.slots), "--max-queue", str(options.queue), "-c", str(2048 * options.slots)]
    flags += ["--cache-ram", "100", "--metrics"]
    with llamapool(options.model, *flags) as server:
        results = asyncio.run(load(server, options))
        n_free = free_slots(server)
    problems = verdict(results, options.slots, n_free)
    result = as_json(results, options, n_free, described)
    print("\n".join(f"{name:32} {text}" for name, text in rows(result)))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    for problem, n in Counter(problems).most_common(20):
        print("WRONG:", n, "x", problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
