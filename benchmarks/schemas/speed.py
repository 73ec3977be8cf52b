"""Measure the cost of a JSON Schema per token in Llamapool and llama-server, with a vocabulary of 151,936 tokens.

``python -m benchmarks.schemas.speed [--rounds 5] [--tokens 64]``

A tiny network with random weights gets the same requests on both servers alternately, so that sampling dominates. The
schemas reject nearly every sampled token, hardly any, or are those of an agent. The cost is the time per token minus
that of a preceding request without a schema. It is measured by the server (``timings.predicted_ms``) and as CPU time of
its process, which other processes hardly change. See ``benchmarks/experiments.md``.
"""

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.make_gguf import Dimensions, write_gguf
from tests.support.peer import build, llama_server
from tests.support.real_server import RealServer, llamapool

MODEL = Path(__file__).parents[1] / "models" / "bench-vocab-152k.gguf"
SHAPE = Dimensions(n_layer=2, n_embd=128, n_head=2, n_head_kv=1, n_ff=256, n_vocab=151_936)
WORDS = ["north", "east", "south", "west", "up", "down", "left", "right"]
AGENT = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 8, "maxLength": 40},
        "mode": {"enum": ["read", "write", "append"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9999}, "minItems": 20},
    },
    "required": ["path", "mode", "lines"],
    "additionalProperties": False,
}
SENTENCES = [f"{first} {second} {third}" for first in WORDS for second in WORDS for third in WORDS]
CODE = {"type": "string", "pattern": "^([A-Z]{2,3}-[0-9]{4,6}(/[a-f0-9]{8})?, ){40}$"}
FREE: Mapping[str, Any] = {"ignore_eos": True}
CASES: Mapping[str, Mapping[str, Any]] = {
    "refused": {"json_schema": {"type": "array", "items": {"enum": WORDS}, "minItems": 64}},
    "refused, 512 sentences": {"json_schema": {"type": "array", "items": {"enum": SENTENCES}, "minItems": 64}},
    "refused, pattern": {"json_schema": CODE},
    "allowed": {"json_schema": {"type": "string", "minLength": 2000}},
    "agent": {"json_schema": AGENT},
}
PROMPT = "The list of directions:"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")  # nanoseconds on a CPU, by thread
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def cost_per_token(server: RealServer, fields: Mapping[str, Any], n_tokens: int, seed: int) -> tuple[float, float]:
    """Return the microseconds per token: as measured by the server, and in CPU time of its process with the prompt."""
    body = {"prompt": PROMPT, "n_predict": n_tokens, "seed": seed, "cache_prompt": False, **fields}
    before = cpu_s(server.process.pid)
    reply = server.request("POST", "/completion", body, timeout_s=600)
    used = cpu_s(server.process.pid) - before
    assert reply.status == 200, reply.body[:500]
    answer = reply.json()
    n = answer["timings"]["predicted_n"]
    return answer["timings"]["predicted_ms"] * 1e3 / n, used * 1e6 / n


Figures = dict[tuple[str, str], list[tuple[float, float]]]


def measure(servers: Mapping[str, RealServer], rounds: int, n_tokens: int) -> Figures:
    """Measure each case on each server, each after a request without a schema. The first round is a warm-up."""
    figures: Figures = {}
    for number in range(rounds + 1):
        for case in CASES:
            for name, server in servers.items():
                base = cost_per_token(server, FREE, n_tokens, number)
                wall, cpu = cost_per_token(server, CASES[case], n_tokens, number)
                if number:
                    figures.setdefault((name, case), []).append((wall - base[0], cpu - base[1]))
                    figures.setdefault((name, "no schema, in all"), []).append(base)
    return figures


def report(figures: Figures) -> str:
    lines = [
        "| schema | clock | Llamapool, µs a token | llama-server, µs a token | ratio |",
        "|---|---|--:|--:|--:|",
    ]
    for case in ("no schema, in all", *CASES):
        for which, clock in enumerate(("wall", "CPU")):
            own, peer = (median(each[which] for each in figures[name, case]) for name in ("llamapool", "peer"))
            ratio = f"{peer / own:.1f}" if own > 0 < peer else "-"
            lines.append(f"| {case} | {clock} | {own:.0f} | {peer:.0f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a JSON Schema per token in both servers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    if not MODEL.exists():
        MODEL.parent.mkdir(exist_ok=True)
        write_gguf(MODEL, SHAPE)
    flags = ("-c", "1024", "-np", "1", "-t", "1")
    with ExitStack() as stack:
        servers = {
            "llamapool": stack.enter_context(llamapool(MODEL, *flags)),
            "peer": stack.enter_context(llama_server(build(), MODEL, *flags)),
        }
        print(report(measure(servers, options.rounds, options.tokens)))


if __name__ == "__main__":
    main()
