"""Measure sampling of all slots' tokens of a step, sequentially and on several cores.

`python -m benchmarks.sampling` applies llama-server's default chain to random logits, without a model. It prints the
lowest median of several rounds, since other processes only make them longer.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from server.llama.context.runner import best_tokens
from server.llama.library import C, fast
from server.llama.sampling.candidates import Candidates, Logits, ParallelSampling, threads_for
from server.llama.sampling.sampler import NativeSampler, new_chain


def default_chain(seed: int) -> NativeSampler:
    """Return llama-server's default chain without penalties."""
    chain = NativeSampler(new_chain(), seed, remembers=False)
    members = (
        fast.sampler_init_top_k(40),
        fast.sampler_init_typical(1.0, 0),
        fast.sampler_init_top_p(0.95, 0),
        fast.sampler_init_min_p(0.05, 0),
        fast.sampler_init_temp_ext(0.8, 0.0, 1.0),
        fast.sampler_init_dist(seed),
    )
    for member in members:
        fast.sampler_chain_add(chain.chain, member)
    return chain


def median_ms(step: Callable[[], object], n_steps: int, n_rounds: int) -> float:
    def timed() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    return min(statistics.median(timed() for _ in range(n_steps)) for _ in range(n_rounds)) * 1e3


def _sample_sequentially(candidates: Candidates, samplers: Sequence[tuple[NativeSampler, Logits]]) -> None:
    for sampler, logits in samplers:
        candidates.choose(sampler, logits)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_000, 70_000, 152_000, 262_000])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    random = np.random.default_rng(1)
    print("| vocabulary | one after the other, ms a step | on several cores, ms a step | chosen | 20 best, ms a row |")
    print("|--:|--:|--:|--:|--:|")
    for n_vocab in args.vocabularies:
        chains = [default_chain(seed) for seed in range(args.slots)]
        logits: list[Logits] = [random.normal(0, 3, n_vocab).astype(np.float32) for _ in chains]
        samplers = list(zip(chains, logits, strict=True))
        one, several = Candidates(n_vocab, C.llama_sampler_apply), ParallelSampling(n_vocab)
        alone = median_ms(partial(_sample_sequentially, one, samplers), args.steps, args.rounds)
        parallel = [
            (median_ms(partial(several.choose, samplers, n), args.steps, args.rounds), n)
            for n in range(2, several.n_cpus + 1)
        ]
        several.close()
        n_chosen = threads_for(args.slots, several._chain_s, several._handing_s, several.n_cpus)
        best_ms, n = min(parallel, default=(alone, 1))
        best = median_ms(partial(best_tokens, logits[0], 20), args.steps, args.rounds)
        print(f"| {n_vocab:,} | {alone:.2f} | {best_ms:.2f} ({n} threads) | {n_chosen} | {best:.3f} |", flush=True)


if __name__ == "__main__":
    main()
