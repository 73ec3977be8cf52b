"""Sampler chains of several sequences at a time.

A chain over 150,000 candidates takes a third of a millisecond, and the library runs it without the interpreter's lock.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from server.errors import InternalError
from server.llama.candidates import Candidates, Logits, apply_unlocked
from server.llama.library import fast
from server.llama.sampler import NativeSampler
from server.llama.threads import usable_cpus

MOST_THREADS = 4  # more than that, and handing out takes as long as the chains of the usual number of slots

Wanted = tuple[NativeSampler, Logits]


class ParallelSampling:
    """Threads that begin with the first use, on the cores of the thread that uses them first."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._scratch: list[Candidates] = []
        self._threads = ThreadPoolExecutor(MOST_THREADS - 1, thread_name_prefix="sample")

    @cached_property
    def n_threads(self) -> int:
        """How many compute, the caller among them: not more than it has processors when it asks first."""
        return min(MOST_THREADS, usable_cpus())

    def sample(
        self, wanted: Sequence[tuple[int, NativeSampler]], logits_of: Callable[[int], Logits]
    ) -> dict[int, int | Exception]:
        """Select and accept: by output the token, or why there is none. Empty where one after the other is as fast:
        with one thread or one chain, and without those that only take the highest logit."""
        chains = [(output, sampler) for output, sampler in wanted if sampler.lowered is None]
        if len(chains) < 2 or self.n_threads < 2:
            return {}
        drawn: dict[int, int | Exception] = {}
        ready: list[tuple[int, NativeSampler, Logits]] = []
        for output, sampler in chains:
            try:
                ready.append((output, sampler, logits_of(output)))
            except InternalError as error:  # the sequence's own; raised where it is sampled
                drawn[output] = error
        chosen = self.choose([(sampler, logits) for _, sampler, logits in ready])
        for (output, sampler, _), token in zip(ready, chosen, strict=True):
            drawn[output] = token
            if isinstance(token, int):
                fast.sampler_accept(sampler.chain, token)
        return drawn

    def choose(self, wanted: Sequence[Wanted]) -> list[int | Exception]:
        """For each chain what it selects, not yet accepted; or why it selects nothing."""
        n = max(1, min(self.n_threads, len(wanted)))
        while len(self._scratch) < n:
            self._scratch.append(Candidates(self._n_vocab, apply_unlocked))
        others = [self._threads.submit(_run, self._scratch[i], wanted[i::n]) for i in range(1, n)]
        parts = [_run(self._scratch[0], wanted[::n]), *(other.result() for other in others)]
        return [parts[i % n][i // n] for i in range(len(wanted))]

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


def _run(scratch: Candidates, wanted: Sequence[Wanted]) -> list[int | Exception]:
    chosen: list[int | Exception] = []
    for sampler, logits in wanted:
        try:
            chosen.append(scratch.choose(sampler, logits))
        except Exception as error:  # noqa: BLE001 - it is the sequence's own; raised where it is sampled
            chosen.append(error)
    return chosen
