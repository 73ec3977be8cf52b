"""A server that gets many times what it can do, from clients of which a part is slow, broken or gone.

``python -m benchmarks.endurance [--seconds 600] [--clients 500] [--bad 0.33] [--slots 4] [--json F]``

``make overload`` is ten minutes of 500 clients, ``make soak`` half an hour of as many as the server can serve. Sound
clients ask, wait for the end and ask again; told to come back (429, 503) they do after ``Retry-After``. Every second
memory, descriptors and threads of all of the server's processes are read from the system, and how long ``/health``
takes is noted. Nothing but 429 and 503 may come to sound clients; at the end every slot is free, and descriptors are
where they were. What prompt states in RAM take is the cache's, which fills up to its limit however late; memory beside
it may not grow: `growth_mib` says what counts as growth, and `MOST_GROWTH_MIB` how much of it may be noise.
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

TELL_BACK = (429, 503)
PATIENCE_S = 300.0  # of a sound client, for the next bytes
WORDS = ["one", "river", "stone", "bridge", "green", "seven", "walks", "under", "light", "again", "because", "winter"]
CACHED = "llamapool_cache_ram_bytes"
MOST_GROWTH_MIB = 4.0
"""Growth over the second half of a run that may be noise. The sound half hour of 2026-11-22 grew by at most 3 MiB after
its first 150 s, so that a leak of 20 MiB an hour (5 MiB in the second quarter of an hour) is above both."""
MOST_GROWTH_MIB_PER_H = 12.0
"""The same for runs of more than 40 minutes, whose second half is longer."""
N_LOWS = 30
SLACK_DESCRIPTORS = 16


@dataclass(slots=True)
class Sample:
    """What the system says of the server's processes, what it says itself of prompt states in RAM, and how long
    ``/health`` took."""

    at_s: float
    rss_mib: float
    cached_mib: float
    n_descriptors: int
    n_threads: int
    health_ms: float


@dataclass(slots=True)
class Seen:
    began: float
    seconds: float  # for which clients ask
    samples: list[Sample] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)  # to sound clients
    bad: Counter[str] = field(default_factory=Counter)  # what became of the others, by kind
    first_token_ms: list[tuple[float, float]] = field(default_factory=list)  # when asked, and how long it took
    faults: list[str] = field(default_factory=list)
    n_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and until when it is asked."""

    port: int
    ends_at: float
    seen: Seen

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.ends_at


def chat(random_: random.Random, *, stream: bool, max_tokens: int) -> bytes:
    """A request for a chat: a beginning that many share, and words of its own."""
    text = " ".join(random_.choices(WORDS, k=random_.choice((4, 30, 120))))
    shared = "You are careful. " * random_.choice((1, 10))
    messages = [{"role": "system", "content": shared}, {"role": "user", "content": text}]
    return posted({"messages": messages, "stream": stream, "max_tokens": max_tokens})


def posted(body: object) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + content


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the server; leaving the block resets the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    try:
        yield reader, writer
    finally:
        with suppress(OSError):
            writer.transport.abort()


# ---- sound clients


async def sound(target: Target, random_: random.Random) -> None:
    """Ask, read to the end, ask again."""
    while not target.over:
        asked_at = time.monotonic()
        try:
            wait_s = await asyncio.wait_for(_ask(target, random_, asked_at), PATIENCE_S)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            target.seen.statuses["broken"] += 1
            target.seen.faults.append(f"{asked_at - target.seen.began:.1f} s: {type(error).__name__} {error}"[:200])
            wait_s = 1.0
        await asyncio.sleep(wait_s * random_.uniform(1.0, 1.5))


async def _ask(target: Target, random_: random.Random, asked_at: float) -> float:
    """One request; how long to wait before the next."""
    seen, stream = target.seen, random_.random() < 0.7
    async with connected(target) as (reader, writer):
        writer.write(chat(random_, stream=stream, max_tokens=random_.choice((4, 16, 48))))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        seen.statuses[str(status)] += 1
        if status in TELL_BACK:
            wait_s = head.partition("retry-after: ")[2].partition("\r\n")[0]
            if not wait_s.isdecimal():
                seen.faults.append(f"a {status} without Retry-After")
            return min(float(wait_s or 1), 30.0)
        if status != 200:
            seen.faults.append(f"status {status}: {(await reader.read(300))!r}")
            return 1.0
        began = await reader.readuntil(b"}") if stream else b""
        seen.first_token_ms.append((asked_at - seen.began, (time.monotonic() - asked_at) * 1e3))
        rest = began + await reader.read()
        while chunk := await reader.read():
            rest += chunk
        if stream and b"data: [DONE]" not in rest:
            seen.faults.append(f"a stream ends with {rest[-200:]!r}")
        seen.n_tokens += rest.count(b'"delta"') if stream else 1
        return 0.0


# ---- the others


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
            posted(random_.choice((b"{", b"[]", b'{"messages": 5}', b'{"messages": [{"role": "x"}]}', b"\xff" * 99)))
        )
        reply = await asyncio.wait_for(reader.read(300), 60)
        if b" 500 " in reply[:40]:
            target.seen.faults.append(f"wrong JSON: {reply!r}")


async def silent(target: Target, random_: random.Random) -> None:
    async with connected(target):
        await asyncio.sleep(random_.uniform(1, 30))


KINDS: tuple[Callable[[Target, random.Random], Awaitable[None]], ...] = (
    *(slow_reader, slow_sender, gone_before_the_reply, gone_in_the_middle, half_a_body, garbage, wrong_json, silent),
)


async def unsound(target: Target, random_: random.Random) -> None:
    """One kind of misbehaviour after the other."""
    while not target.over:
        kind = random_.choice(KINDS)
        try:
            await kind(target, random_)
            target.seen.bad[kind.__name__] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            target.seen.bad[f"{kind.__name__}, cut off"] += 1
        await asyncio.sleep(random_.uniform(0, 0.5))


# ---- what is watched


def of_processes(pid: int) -> tuple[float, int, int]:
    """Resident MiB, descriptors and threads of a server and of all that it has started: a model's own process, those
    that render templates. What several have mapped counts in each. (Linux)"""
    memory, n_descriptors, n_threads = 0.0, 0, 0
    for each in with_children(pid):
        proc = Path(f"/proc/{each}")
        with suppress(OSError, KeyError):  # it has just ended: then it has no memory either
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            found = (
                int(status["VmRSS"].split()[0]) / 1024,
                sum(1 for _ in (proc / "fd").iterdir()),
                int(status["Threads"]),
            )
            memory, n_descriptors, n_threads = memory + found[0], n_descriptors + found[1], n_threads + found[2]
    return memory, n_descriptors, n_threads


async def got(target: Target, path: str) -> bytes:
    """A reply's head and body; nothing where there was none in time."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with connected(target) as (reader, writer):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return await asyncio.wait_for(reader.read(), 30)
    return b""


async def cached_mib(target: Target, before: float) -> float:
    """What states of prompts take in RAM; as `before` where the server does not say."""
    lines = (await got(target, "/metrics")).decode("latin-1").splitlines()
    sizes = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(CACHED)]
    return sum(sizes) / 2**20 if sizes else before


async def watch(target: Target, pid: int) -> None:
    """A sample a second, until this is cancelled."""
    cached = 0.0
    while True:
        began = time.monotonic()
        reply = await got(target, "/health")
        took_ms = (time.monotonic() - began) * 1e3
        if reply and not reply.startswith(b"HTTP/1.1 200"):
            target.seen.faults.append(f"/health: {reply[:80]!r}")
        cached = await cached_mib(target, cached)
        rss, n_descriptors, n_threads = of_processes(pid)
        at_s = began - target.seen.began
        target.seen.samples.append(Sample(at_s, rss, cached, n_descriptors, n_threads, took_ms))
        await asyncio.sleep(max(1 - (time.monotonic() - began), 0))


async def load(server: RealServer, options: argparse.Namespace) -> Seen:
    """Let all clients at the server for as long as was asked for, and look on until it has come to rest."""
    now = time.monotonic()
    target = Target(server.port, now + options.seconds, Seen(now, options.seconds))
    seeds = random.Random(options.seed)
    watching = asyncio.create_task(watch(target, server.process.pid))
    await asyncio.sleep(2)
    n_bad = round(options.clients * options.bad)
    async with asyncio.TaskGroup() as clients:
        for number in range(options.clients):
            kind = unsound if number < n_bad else sound
            clients.create_task(kind(target, random.Random(seeds.random())))
    await asyncio.sleep(5)
    watching.cancel()
    return target.seen


def free_slots(server: RealServer, within_s: float = 60.0) -> int:
    """How many slots are idle, once all are or time is up."""
    ends_at = time.monotonic() + within_s
    while True:
        slots = server.get("/slots")
        n_idle = sum(not slot["is_processing"] for slot in slots)
        if n_idle == len(slots) or time.monotonic() > ends_at:
            return n_idle
        time.sleep(0.2)


def growth_mib(seen: Seen) -> float:
    """Return by how much memory beside the cache rises over the second half of the load.

    The first half warms up: the allocator's arenas, compiled templates and pools of threads fill. The rise is that of a
    line fitted (least squares) to the lowest sample of each of `N_LOWS` intervals: requests take memory that they give
    back, a leak raises the lowest value too. Samples after the load has ended do not count.
    """
    half = seen.seconds / 2
    lows: dict[int, float] = {}
    for sample in seen.samples:
        if half <= sample.at_s < seen.seconds:
            number = int((sample.at_s - half) / half * N_LOWS)
            lows[number] = min(lows.get(number, math.inf), sample.rss_mib - sample.cached_mib)
    slope, _ = statistics.linear_regression(list(lows), list(lows.values()))
    return slope * N_LOWS


def verdict(seen: Seen, n_slots: int, n_free: int) -> list[str]:
    """What is not as it should be."""
    wrong = list(seen.faults)
    if n_free != n_slots:
        wrong.append(f"{n_slots - n_free} of {n_slots} slots are still taken")
    growth, most = growth_mib(seen), max(MOST_GROWTH_MIB, MOST_GROWTH_MIB_PER_H * seen.seconds / 2 / 3600)
    if growth > most:
        wrong.append(f"memory beside the cache grows by {growth:.1f} MiB in the second half; {most:.1f} may be noise")
    first, last = seen.samples[0], seen.samples[-1]
    if last.n_descriptors > first.n_descriptors + SLACK_DESCRIPTORS:
        wrong.append(f"descriptors go from {first.n_descriptors} to {last.n_descriptors}")
    return wrong


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run (`written`), for people."""
    samples, seconds = result["samples"], result["options"]["seconds"]
    rss = [s["rss_mib"] for s in samples]
    beside = [s["rss_mib"] - s["cached_mib"] for s in samples]
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
        ("memory without them, MiB", f"{beside[0]:.0f} at first, at most {max(beside):.0f}, {beside[-1]:.0f} at rest"),
        ("growth in the second half, MiB", f"{result['growth_mib']:+.1f}"),
        ("descriptors", _path([s["n_descriptors"] for s in samples])),
        ("threads", _path([s["n_threads"] for s in samples])),
        ("misbehaving clients", ", ".join(f"{n} × {kind}" for kind, n in sorted(result["unsound"].items()))),
        ("free slots at the end", f"{result['n_free']} of {result['options']['slots']}"),
    ]


def _path(values: list[int]) -> str:
    return f"{values[0]} at first, at most {max(values)}, {values[-1]} at rest"


def written(seen: Seen, options: argparse.Namespace, n_free: int, described: dict[str, Any]) -> dict[str, Any]:
    """Return a run as JSON; `described` is its environment (`environment.describe`)."""
    samples = [{name: round(value, 1) for name, value in asdict(sample).items()} for sample in seen.samples]
    return {
        "environment": described | {"model": model(options.model)},
        "options": {name: getattr(options, name) for name in ("seconds", "clients", "bad", "slots", "queue", "seed")},
        "n_free": n_free,
        "growth_mib": round(growth_mib(seen), 1),
        "n_tokens": seen.n_tokens,
        "samples": samples,
        "first_token_ms": [[round(value, 1) for value in pair] for pair in seen.first_token_ms],
        "statuses": dict(seen.statuses),
        "unsound": dict(seen.bad),
        "faults": seen.faults,
    }


def main() -> int:
    """0 where all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--bad", type=float, default=0.33, help="share of slow, broken and vanishing clients")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--queue", type=int, default=46, help="requests that may wait, so ten times the slots in all")
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="raw figures; benchmarks.report makes tables and plots of them")
    options = parser.parse_args()
    described = describe("benchmarks.endurance")
    flags = (
        "--parallel",
        str(options.slots),
        "--max-queue",
        str(options.queue),
        "-c",
        str(2048 * options.slots),
        "--cache-ram",
        "100",
        "--metrics",
    )
    with llamapool(options.model, *flags) as server:
        seen = asyncio.run(load(server, options))
        n_free = free_slots(server)
    wrong = verdict(seen, options.slots, n_free)
    result = written(seen, options, n_free, described)
    print("\n".join(f"{name:32} {text}" for name, text in rows(result)))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    for line in Counter(wrong).most_common(20):
        print("WRONG:", line[1], "x", line[0], file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
