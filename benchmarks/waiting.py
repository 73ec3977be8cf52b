"""How compute threads should wait, and how many of them should compute, with and without a neighbour.

``python -m benchmarks.waiting MODEL.gguf [--spins 2000,100000,passive] [--blocks 12]``

libgomp reads its waiting policy once, so each is a process of its own; within one, a neighbour that keeps a core busy
comes and goes, and blocks of steps with all threads and with one fewer take turns, so that what else happens there
meets both alike. Besides the medians it prints in how many pairs fewer threads were the faster: a policy that adapts
their number has to win there, and nowhere else.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from server.bench.neighbour import busy_core

Pairs = dict[tuple[int, bool], list[tuple[float, float]]]  # (sequences, busy): tok/s with all threads, with one fewer
_STEPS = {1: 16, 8: 6}  # of a block, by the number of sequences: about a third of a second each
PASSIVE = "passive"


def measure(model: Path, n_threads: int, n_blocks: int) -> Pairs:
    """Under the waiting policy of this process."""
    from benchmarks.bare_decode import Entry  # loads the library, which reads the policy
    from server.llama.library import C
    from server.llama.loader import LlamaLoader
    from server.pool.spec import LoadParams, ModelSpec

    native = LoadParams(n_ctx=512 * max(_STEPS), n_parallel=max(_STEPS), n_threads=n_threads)
    weights = LlamaLoader().load(ModelSpec("bench", model, native=native), lambda _fraction: True)
    runner = weights.runner()

    def rate(n_seq: int, threads: int) -> float:
        C.llama_set_n_threads(runner._context, threads, threads)
        for seq in range(n_seq):
            runner.clear(seq)
        runner.decode([Entry(seq, 0, (7,)) for seq in range(n_seq)])
        began = time.perf_counter()
        for pos in range(1, _STEPS[n_seq] + 1):
            runner.decode([Entry(seq, pos, (7 + pos,)) for seq in range(n_seq)])
        return n_seq * _STEPS[n_seq] / (time.perf_counter() - began)

    pairs: Pairs = {}
    for block in range(n_blocks):
        for busy in (False, True):
            with busy_core() if busy else nullcontext():
                for n_seq in _STEPS:
                    order = (n_threads, n_threads - 1) if block % 2 else (n_threads - 1, n_threads)
                    rates = {threads: rate(n_seq, threads) for threads in order}
                    pairs.setdefault((n_seq, busy), []).append((rates[n_threads], rates[n_threads - 1]))
    runner.close()
    weights.close()
    return pairs


def rows(policy: str, pairs: Pairs) -> list[str]:
    """A line of Markdown for each situation."""
    lines = []
    for (n_seq, busy), measured in pairs.items():
        full, fewer = (statistics.median(values) for values in zip(*measured, strict=True))
        won = sum(few > all_ for all_, few in measured)
        core = "one core busy" if busy else "quiet"
        lines.append(f"| {policy} | {n_seq} | {core} | {full:.1f} | {fewer:.1f} | {won} of {len(measured)} |")
    return lines


def run_apart(policy: str, words: Sequence[str]) -> str:
    """The lines of one policy, from a process of its own."""
    chosen = {"OMP_WAIT_POLICY": policy} if policy == PASSIVE else {"GOMP_SPINCOUNT": policy}
    command = [sys.executable, "-m", "benchmarks.waiting", *words, "--here", policy]
    root = Path(__file__).parents[1]
    return subprocess.run(
        command, env={**os.environ, **chosen}, cwd=root, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Waiting policies and thread counts, with and without a neighbour.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--spins", default=f"2000,100000,{PASSIVE}", help="values of GOMP_SPINCOUNT, and 'passive'")
    parser.add_argument("--here", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.threads < 2:
        parser.error("needs two threads or more")
    if chosen.here:
        print("\n".join(rows(chosen.here, measure(chosen.model, chosen.threads, chosen.blocks))))
        return
    print(f"| waiting | sequences | machine | tok/s, {chosen.threads} threads | {chosen.threads - 1} | fewer won |")
    print("|---|--:|---|--:|--:|--:|", flush=True)
    words = [str(chosen.model.resolve()), "--threads", str(chosen.threads), "--blocks", str(chosen.blocks)]
    for policy in chosen.spins.split(","):
        print(run_apart(policy, words), end="", flush=True)


if __name__ == "__main__":
    main()
