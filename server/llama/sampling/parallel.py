"""Samples several sequences in parallel where that is faster.

The library runs a chain without the GIL: 0.3 ms for 150,000 candidates, 0.07 ms for 32,000. Distributing chains
costs time per thread; both are measured continuously.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from server.errors import InternalError
from server.llama.library import fast
from server.llama.sampling.candidates import Candidates, Logits, apply_unlocked
from server.llama.sampling.sampler import NativeSampler
from server.llama.threads import usable_cpus

CANDIDATE_S = 2.4e-9
"""Assumed seconds per candidate before the first measurement (benchmarks/experiments.md)."""
HANDING_S = 100e-6
"""The same of handing work to one more thread and waiting for it."""
_NEW = 0.1  # weight of a new measurement
_MOST_THREADS = 64

Draw = tuple[NativeSampler, Logits]


def threads_for(n_chains: int, chain_s: float, handing_s: float, n_cpus: int) -> int:
    """How many threads have `n_chains` done soonest: n of them take ``n_chains * chain_s / n + n * handing_s``."""
    best = math.sqrt(n_chains * chain_s / handing_s)
    return max(1, min(int(best), n_chains, n_cpus))


class ParallelSampling:
    """Threads that begin with the first use, on the cores of the thread that uses them first."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._scratch: list[Candidates] = []
        self._chain_s = n_vocab * CANDIDATE_S
        self._handing_s = HANDING_S

    @cached_property
    def n_cpus(self) -> int:
        """Number of CPUs that may compute, read at first use."""
        return min(_MOST_THREADS, usable_cpus())

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(self.n_cpus - 1, 1), thread_name_prefix="sample")

    def sample(
        self, wanted: Sequence[tuple[int, NativeSampler]], logits_of: Callable[[int], Logits]
    ) -> dict[int, int | Exception]:
        """Sample and accept; return each output's token or its error. Empty if sequential sampling is as fast; greedy
        chains are left out.
        """
        chains = [(output, sampler) for output, sampler in wanted if sampler.lowered is None]
        n_threads = threads_for(len(chains), self._chain_s, self._handing_s, self.n_cpus) if len(chains) > 1 else 1
        if n_threads < 2:
            self._handing_s += 0.01 * (HANDING_S - self._handing_s)  # one bad measurement is not for ever
            return {}
        drawn: dict[int, int | Exception] = {}
        ready: list[tuple[int, NativeSampler, Logits]] = []
        for output, sampler in chains:
            try:
                ready.append((output, sampler, logits_of(output)))
            except InternalError as error:  # the sequence's own; raised where it is sampled
                drawn[output] = error
        chosen = self.choose([(sampler, logits) for _, sampler, logits in ready], n_threads)
        for (output, sampler, _), token in zip(ready, chosen, strict=True):
            drawn[output] = token
            if isinstance(token, int):
                fast.sampler_accept(sampler.chain, token)
        return drawn

    def choose(self, wanted: Sequence[Draw], n_threads: int) -> list[int | Exception]:
        """Sample without accepting; return each chain's token or its error."""
        n = max(1, min(n_threads, len(wanted)))
        while len(self._scratch) < n:
            self._scratch.append(Candidates(self._n_vocab, apply_unlocked))
        began = time.perf_counter()
        others = [self._threads.submit(_run, self._scratch[i], wanted[i::n]) for i in range(1, n)]
        parts = [_run(self._scratch[0], wanted[::n]), *(other.result() for other in others)]
        if n > 1:
            self._learn(time.perf_counter() - began, [seconds for _, seconds in parts], len(wanted))
        return [parts[i % n][0][i // n] for i in range(len(wanted))]

    def _learn(self, took_s: float, parts_s: Sequence[float], n_chains: int) -> None:
        self._chain_s += _NEW * (sum(parts_s) / n_chains - self._chain_s)
        handing_s = max(took_s - max(parts_s), 1e-6) / (len(parts_s) - 1)
        self._handing_s += _NEW * (handing_s - self._handing_s)

    def close(self) -> None:
        """End the threads."""
        if "_threads" in self.__dict__:  # used
            self._threads.shutdown()


def _run(scratch: Candidates, wanted: Sequence[Draw]) -> tuple[list[int | Exception], float]:
    """Run the chains; return their tokens, and the CPU seconds in total."""
    chosen: list[int | Exception] = []
    began = time.thread_time()
    for sampler, logits in wanted:
        try:
            chosen.append(scratch.choose(sampler, logits))
        except Exception as error:  # noqa: BLE001 - it is the sequence's own; raised where it is sampled
            chosen.append(error)
    return chosen, time.thread_time() - began
