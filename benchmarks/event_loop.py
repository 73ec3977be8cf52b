"""Measure how long rendering, tokenizing and compiling of schemas block the event loop.

``python -m benchmarks.event_loop [--model demo.gguf] [--rounds 5] [--only "20 MB"]``

The server runs in this process, with eight streams of another process. A timer of one millisecond on its event loop
records its delays, which also delay the tokens of all clients. Meanwhile, requests arrive that need much work before
their first token and are in no cache. The wall time of a gap includes other threads (GIL) and processes; the CPU time
of the loop's thread in it is reported, too.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks.environment import DEMO
from benchmarks.in_process import serving

BEAT_S = 0.001
N_STREAMS = 8
_STREAMS = """
import http.client, json, sys, threading
def one(i):
    while True:
        c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
        body = json.dumps({"prompt": f"{i}", "n_predict": 500, "stream": True, "ignore_eos": True})
        c.request("POST", "/completion", body, {"Content-Type": "application/json"})
        reply = c.getresponse()
        while reply.read1(65536):
            pass
        c.close()
for i in range(int(sys.argv[2])):
    threading.Thread(target=one, args=(i,)).start()
"""
_CLIENT = """
import http.client, signal, sys, time
content = sys.stdin.buffer.read()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
began = time.perf_counter()
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
c.request("POST", sys.argv[2], content, {"Content-Type": "application/json"})
reply = c.getresponse()
reply.read()
print(reply.status, time.perf_counter() - began, flush=True)
"""
Body = dict[str, Any]
Work = Callable[[str], tuple[str, Body]]
"""Returns the path and body of a request that contains a new word."""


def _long_chat(n: int, word: str) -> tuple[str, Body]:
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"Message {i} about {word}."} for i in range(n - 1)]
    return "/v1/chat/completions", {"messages": [*turns, {"role": "user", "content": word}], "max_tokens": 1}


def _agent(n: int, word: str) -> tuple[str, Body]:
    parameters = {f"{word}_{i}": {"type": "string", "description": f"The {i}th"} for i in range(8)}
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    tools = [
        {"type": "function", "function": {"name": f"tool_{i}", "description": "A tool of many", "parameters": schema}}
        for i in range(n)
    ]
    body = {"messages": [{"role": "user", "content": word}], "tools": tools, "tool_choice": "required"}
    return "/v1/chat/completions", {**body, "max_tokens": 1}


def _text(path: str, field_: str, n_bytes: int, word: str) -> tuple[str, Body]:
    return path, {field_: f"{word} goes far. " * (n_bytes // (len(word) + 11)), "n_predict": 1}


def _schema(n: int, word: str) -> tuple[str, Body]:
    kinds: list[Mapping[str, Any]] = [
        {"type": "string", "pattern": f"^{word}[a-z]{{3,40}}$"},
        {"type": "integer", "minimum": 3, "maximum": 77777},
        {"type": "array", "items": {"enum": [f"{word} {i}" for i in range(40)]}, "maxItems": 12},
        {"type": "string", "format": "date-time"},
    ]
    properties = {f"{word}_{i}": kinds[i % len(kinds)] for i in range(n)}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return "/completion", {"prompt": word, "n_predict": 1, "json_schema": schema}


def _image(path: str, field_: str, n_bytes: int, word: str) -> tuple[str, Body]:
    data = {"type": "input_image", "image_url": f"data:image/png;base64,{word}{'A' * n_bytes}"}
    items = [{"role": "user", "content": [data]}, {"role": "user", "content": word}]
    return path, {field_: items} | ({"max_output_tokens": 1} if field_ == "input" else {})


def _batch(n_bytes: int, word: str) -> tuple[str, Body]:
    text = f"{word} goes far. " * 100
    messages = [{"role": "user", "content": text}]
    params = {"model": "demo", "max_tokens": 1, "messages": messages}
    requests = [{"custom_id": str(n), "params": params} for n in range(n_bytes // len(text))]
    return "/v1/messages/batches", {"requests": requests}


WORK: Mapping[str, Work] = {
    "streams alone": lambda word: ("/completion", {"prompt": word, "n_predict": 1}),
    "chat of 6,000 messages": partial(_long_chat, 6000),
    "chat with 64 tools": partial(_agent, 64),
    "prompt of 1 MB": partial(_text, "/completion", "prompt", 1 << 20),
    "/tokenize of 8 MB": partial(_text, "/tokenize", "content", 8 << 20),
    "schema of 12 properties": partial(_schema, 12),
    "schema of 400 properties": partial(_schema, 400),
    "stored response with 20 MB": partial(_image, "/v1/responses", "input", 20 << 20),
    "conversation items of 20 MB": partial(_image, "/v1/conversations", "items", 20 << 20),
    "message batch of 20 MB": partial(_batch, 20 << 20),
}


@dataclass(slots=True)
class Heartbeat:
    """A timer on the event loop. A gap is its delay and the CPU time of the thread since the last beat, in seconds."""

    loop: asyncio.AbstractEventLoop
    gaps: list[tuple[float, float]] = field(default_factory=list)
    _at: float = 0.0
    _cpu: float = 0.0
    _handle: asyncio.TimerHandle | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run the timer during the block."""
        self.gaps = []
        self._at, self._cpu = time.perf_counter(), time.thread_time()
        self._handle = self.loop.call_later(BEAT_S, self._beat)
        try:
            yield
        finally:
            self._handle.cancel()

    def _beat(self) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        self.gaps.append((max(now - self._at - BEAT_S, 0.0), cpu - self._cpu))
        self._at, self._cpu = now, cpu
        self._handle = self.loop.call_later(BEAT_S, self._beat)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A request's status and duration, and its longest gap and the most CPU time of the loop in a gap."""

    status: int
    duration_s: float
    gap_ms: float
    cpu_ms: float


async def _measure_request(heartbeat: Heartbeat, port: int, work: Work, word: str) -> Measurement:
    path, body = work(word)
    content = json.dumps(body).encode()
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLIENT, str(port), path, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(content)
    client.stdin.write_eof()
    await client.stdout.readline()  # the client has the body, so this script does no more work on the loop
    with heartbeat():
        client.send_signal(signal.SIGUSR1)
        status, duration_s = (await client.stdout.readline()).split()
    await client.wait()
    gap, cpu = (1e3 * max(column) for column in zip(*heartbeat.gaps, strict=True))
    return Measurement(int(status), float(duration_s), gap, cpu)


async def measure(model: Path, rounds: int, works: Mapping[str, Work]) -> dict[str, list[Measurement]]:
    """Measure each kind of work in turn, `rounds` times after a warm-up."""
    flags = ["-m", str(model), "-np", str(N_STREAMS + 1), "-c", str((N_STREAMS + 1) * 1024), "-t", "1", "--port", "0"]
    flags += ["--state", "memory"]
    results: dict[str, list[Measurement]] = {name: [] for name in works}
    async with serving(flags) as port:
        streams = await asyncio.create_subprocess_exec(sys.executable, "-c", _STREAMS, str(port), str(N_STREAMS))
        heartbeat = Heartbeat(asyncio.get_running_loop())
        try:
            for number in range(rounds + 1):
                for kind, (name, work) in enumerate(works.items()):
                    measurement = await _measure_request(heartbeat, port, work, f"w{number}k{kind}x")
                    if number:
                        results[name].append(measurement)
        finally:
            streams.kill()
            await streams.wait()
    return results


def table(results: Mapping[str, list[Measurement]]) -> str:
    lines = [
        "| request | status | ms | longest gap, ms: median | worst | of the loop's own, ms: median | worst |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for name, ones in results.items():
        statuses = ", ".join(sorted({str(one.status) for one in ones}))
        gaps, cpus = [one.gap_ms for one in ones], [one.cpu_ms for one in ones]
        duration_ms = 1e3 * median(one.duration_s for one in ones)
        lines.append(
            f"| {name} | {statuses} | {duration_ms:.0f} | {median(gaps):.1f} | {max(gaps):.1f} "
            f"| {median(cpus):.1f} | {max(cpus):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_loop", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="measure requests whose name contains this")
    arguments = parser.parse_args()
    works = {name: work for name, work in WORK.items() if arguments.only in name}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in uvicorn
        print(table(runner.run(measure(arguments.model, arguments.rounds, works))))


if __name__ == "__main__":
    main()
