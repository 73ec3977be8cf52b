"""What a JSON Schema costs per token, beside llama-server, with a vocabulary of 151,936 tokens.

``python -m benchmarks.schemas.speed [--rounds 5] [--tokens 64]``

A network of random weights that is small enough to be nothing beside its vocabulary answers the same requests on both
servers, in alternation: under schemas that refuse nearly every sampled token, under one that refuses hardly any, and
under one as an agent sends it. The cost is the time per token less that of a request without a schema right before;
once by the server's own clock (``timings.predicted_ms``), once in CPU time of its process, which a busy machine leaves
alone. See ``benchmarks/experiments.md``.
"""

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.make_gguf import Shape, write_gguf
from tests.support.peer import build, llama_server
from tests.support.real_server import RealServer, llamapool

MODEL = Path(__file__).parents[1] / "models" / "bench-vocab-152k.gguf"
SHAPE = Shape(n_layer=2, n_embd=128, n_head=2, n_head_kv=1, n_ff=256, n_vocab=151_936)
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
    """Seconds of CPU that a process has used, all threads together."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")  # nanoseconds on a CPU, of each thread
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def ask(server: RealServer, fields: Mapping[str, Any], n_tokens: int, seed: int) -> tuple[float, float]:
    """Microseconds per token: by the server's clock, and in CPU time of its process, prompt included."""
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
    """The cost of every case on every server in turn, each beside a request without a schema; one round warms up."""
    found: Figures = {}
    for number in range(rounds + 1):
        for case in CASES:
            for name, server in servers.items():
                base = ask(server, FREE, n_tokens, number)
                wall, cpu = ask(server, CASES[case], n_tokens, number)
                if number:
                    found.setdefault((name, case), []).append((wall - base[0], cpu - base[1]))
                    found.setdefault((name, "no schema, in all"), []).append(base)
    return found


def report(found: Figures) -> str:
    lines = [
        "| schema | clock | Llamapool, µs a token | llama-server, µs a token | ratio |",
        "|---|---|--:|--:|--:|",
    ]
    for case in ("no schema, in all", *CASES):
        for which, clock in enumerate(("wall", "CPU")):
            ours, theirs = (median(each[which] for each in found[name, case]) for name in ("llamapool", "peer"))
            ratio = f"{theirs / ours:.1f}" if ours > 0 < theirs else "-"
            lines.append(f"| {case} | {clock} | {ours:.0f} | {theirs:.0f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of a JSON Schema per token, beside llama-server.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    chosen = parser.parse_args()
    if not MODEL.exists():
        MODEL.parent.mkdir(exist_ok=True)
        write_gguf(MODEL, SHAPE)
    flags = ("-c", "1024", "-np", "1", "-t", "1")
    with ExitStack() as stack:
        servers = {
            "llamapool": stack.enter_context(llamapool(MODEL, *flags)),
            "peer": stack.enter_context(llama_server(build(), MODEL, *flags)),
        }
        print(report(measure(servers, chosen.rounds, chosen.tokens)))


if __name__ == "__main__":
    main()
