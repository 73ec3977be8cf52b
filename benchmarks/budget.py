"""What Python costs per token, by part: the server in this process, streams read by another one.

All is CPU time of the two threads that serve (`time.thread_time`), so that neighbours on the machine change it less
than the clock on the wall: caches and cores are still shared. One run counts only what the library does (decode,
sampling), which gives the sum; another one every part. What the counting itself costs is measured and taken out.

"Engine plus HTTP" is both threads without decode and native sampling: the goal is 60 us per token at 8 slots.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.budget_parts import EVERY_PART, NATIVE, Part, Threads
from benchmarks.in_process import serving

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_MODEL = ROOT / "models" / "demo.gguf"
_CLIENT = """
import json, socket, sys, threading
port, n, n_tokens, name = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
def one(i):
    body = json.dumps({"model": "m", "stream": True, "max_tokens": n_tokens, "ignore_eos": True, "seed": i,
                       "messages": [{"role": "user", "content": f"{name} {i}: tell me of it"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\n"
    head += f"Content-Length: {len(body)}\\r\\n\\r\\n"
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(head.encode() + body)
        seen = b""
        while b"[DONE]" not in seen[-64:] and (part := s.recv(1 << 16)):
            seen += part
    assert b" 200 " in seen[:20], seen[:300]
threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
[t.start() for t in threads], [t.join() for t in threads]
"""


@dataclass(slots=True)
class Burst:
    """CPU seconds of streams that ran together, by part; of both threads in all."""

    n_tokens: int
    n_steps: int
    loop_s: float
    step_s: float
    parts: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def us(self, seconds: float) -> float:
        """Microseconds per token."""
        return seconds / self.n_tokens * 1e6


async def _serve(model: Path, n_slots: int, n_tokens: int, parts: list[Part], bursts: int) -> list[Burst]:
    words = ["-m", str(model), "-a", "m", "-np", str(n_slots), "-c", str(n_slots * 1024), "-t", "1", "--port", "0"]
    with Threads(parts) as threads:
        async with serving(words) as port:
            found = [await _burst(threads, port, n_slots, n_tokens, f"burst {i}") for i in range(bursts + 1)]
    return found[1:]  # the first one warms everything up


async def _burst(threads: Threads, port: int, n_slots: int, n_tokens: int, name: str) -> Burst:
    threads.reset()
    loop_began = time.thread_time()
    arguments = ["-c", _CLIENT, str(port), str(n_slots), str(n_tokens), name]
    client = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    loop_began = time.thread_time()  # starting a process is not serving
    assert await client.wait() == 0
    loop_s = time.thread_time() - loop_began
    n = n_slots * n_tokens
    return Burst(n, threads.n_steps, loop_s, threads.step_s, threads.seconds(), threads.calls())


def table(bare: list[Burst], detailed: list[Burst]) -> str:
    """Markdown."""
    least = min(bare, key=lambda b: b.loop_s + b.step_s)
    fine = min(detailed, key=lambda b: b.loop_s + b.step_s)
    native = sum(least.parts[name] for name in NATIVE)
    lines = ["| thread | part | us per token | us per step | calls per token |", "|---|---|--:|--:|--:|"]
    counted = {"step": 0.0, "loop": 0.0}
    for part in EVERY_PART:
        seconds, calls = fine.parts[part.name], fine.calls[part.name]
        counted[part.thread] += seconds
        lines.append(
            f"| {part.thread} | {part.name} | {fine.us(seconds):.1f} | {seconds / fine.n_steps * 1e6:.0f} "
            f"| {calls / fine.n_tokens:.2f} |"
        )
    for thread, total in (("step", least.step_s), ("loop", least.loop_s)):
        rest = max(total - counted[thread], 0.0)
        lines.append(f"| {thread} | the rest | {least.us(rest):.1f} | {rest / least.n_steps * 1e6:.0f} | |")
    engine, http = least.step_s - native, least.loop_s
    lines.append(f"| step | **engine, without decode and sampling** | **{least.us(engine):.1f}** | | |")
    lines.append(f"| loop | **HTTP** | **{least.us(http):.1f}** | | |")
    lines.append(f"| both | **engine plus HTTP** | **{least.us(engine + http):.1f}** | | |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--bursts", type=int, default=3, help="the best one counts")
    arguments = parser.parse_args()
    given = (arguments.model, arguments.slots, arguments.tokens)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as uvicorn chooses it
        bare = runner.run(_serve(*given, [part for part in EVERY_PART if part.name in NATIVE], arguments.bursts))
        detailed = runner.run(_serve(*given, EVERY_PART, arguments.bursts))
    print(table(bare, detailed))


if __name__ == "__main__":
    main()
