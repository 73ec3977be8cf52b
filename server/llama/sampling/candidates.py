"""The array of candidates that a sampler chain works on, where `llama_sampler_sample` does not fit, and chains of
several sequences in parallel where that is faster.

The library runs a chain without the GIL: 0.3 ms for 150,000 candidates, 0.07 ms for 32,000. Distributing chains
costs time per thread; both are measured continuously. Log probabilities are computed in the same threads.
"""

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from server.errors import InternalError
from server.llama.library import C, fast
from server.llama.sampling.sampler import NativeSampler
from server.llama.threads import usable_cpus

_FEW_WORDS = 24
Logits = npt.NDArray[np.float32]
_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class Candidates:
    """Preallocated for a vocabulary of `n_vocab`; used by one thread."""

    def __init__(self, n_vocab: int, apply: Callable[[int, object], None]) -> None:
        self._n_vocab = n_vocab
        self._apply = apply
        self._entries = np.zeros(n_vocab, _ENTRY)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._base = self._entries.ctypes.data
        self._first = self._entries.ctypes.data_as(C.llama_token_data_p)
        self._array = C.llama_token_data_array()
        self._reference = ctypes.byref(self._array)

    def choose(self, sampler: NativeSampler, logits: Logits, allowed: npt.NDArray[np.int32] | None = None) -> int:
        """Run the chain without accepting, over the `allowed` tokens (None: all). Raises `InternalError`."""
        members = [sampler.chain]
        if allowed is not None and sampler.n_biases * len(allowed) > self._n_vocab:
            # the library compares each candidate that is not in its place in the vocabulary with each bias
            biases, *members = sampler.members
            self._run([biases], logits, None)
            logits = self._entries["logit"].copy()
        array = self._run(members, logits, allowed)
        if not 0 <= array.selected < array.size:
            raise InternalError("the sampler chain selected no token")
        return int(self._view()["id"][array.selected])

    def _run(self, members: list[int], logits: Logits, allowed: npt.NDArray[np.int32] | None) -> Any:
        n = self._n_vocab if allowed is None else len(allowed)
        entries = self._entries[:n]
        entries["id"] = self._ids if allowed is None else allowed
        entries["logit"] = logits if allowed is None else logits[allowed]
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._first, n, -1, False
        for member in members:
            self._apply(member, self._reference)
        return array

    def probabilities(self, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """After `choose`: the probability that the chain gave `token`, and the `n_top` best with theirs, over 0."""
        view = self._view()
        own = view["p"][view["id"] == token]
        best = np.argsort(-view["p"], kind="stable")[:n_top]
        top = [(int(view["id"][i]), float(view["p"][i])) for i in best if view["p"][i] > 0.0]
        return (float(own[0]) if len(own) else 0.0), top

    def _view(self) -> np.ndarray:
        """Return the candidates that the chain has left; samplers may move the start."""
        start = (ctypes.addressof(self._array.data.contents) - self._base) // _ENTRY.itemsize
        return self._entries[start : start + self._array.size]


def allowed_tokens(mask: bytes | bytearray | memoryview, n_vocab: int) -> npt.NDArray[np.int32]:
    """Return the ids whose bit is set; `mask` has little-endian 32-bit words, the first token in the lowest bit. Raises
    `InternalError` for a mask that is too short or allows nothing.
    """
    if len(mask) * 8 < n_vocab or len(mask) % 4:
        raise InternalError(f"a token mask of {len(mask)} bytes for a vocabulary of {n_vocab}")
    words = np.frombuffer(mask, "<u4")
    # `nonzero` of booleans is four times faster
    used = (words != 0).nonzero()[0]  # most masks are sparse: unpack those words only
    if len(used) <= _FEW_WORDS:  # fewer calls into numpy, whose code is out of the caches after a decode
        few: list[int] = []
        for at, word in zip(used.tolist(), words[used].tolist(), strict=True):
            left = word
            while left:
                few.append((at << 5) + (left & -left).bit_length() - 1)
                left &= left - 1
        ids = np.array([token for token in few if token < n_vocab], np.int32)
    else:
        bits = np.unpackbits(words[used].view(np.uint8), bitorder="little").view(np.bool_).nonzero()[0]
        ids = ((used[bits >> 5] << 5) + (bits & 31)).astype(np.int32)
        if ids[-1] >= n_vocab:
            ids = ids[ids < n_vocab]
    if not len(ids):
        raise InternalError("the output's constraint allows no token")
    return ids


CANDIDATE_S = 2.4e-9
"""Assumed seconds per candidate before the first measurement (benchmarks/experiments.md)."""
HANDING_S = 100e-6
"""The same of handing work to one more thread and waiting for it."""
_NEW = 0.1  # weight of a new measurement
_MOST_THREADS = 64

Draw = tuple[NativeSampler, Logits]
R = TypeVar("R")


def threads_for(n_chains: int, chain_s: float, handing_s: float, n_cpus: int) -> int:
    """Return how many threads end `n_chains` first: n of them take ``n_chains * chain_s / n + n * handing_s``."""
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
        """Do `Runner.sample_together`. Greedy chains are left out."""
        chains = [(output, sampler) for output, sampler in wanted if sampler.lowered is None]
        if (n_threads := self.n_threads(len(chains))) < 2:
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

    def n_threads(self, n_rows: int) -> int:
        """Return how many threads end the chains of `n_rows` first."""
        return threads_for(n_rows, self._chain_s, self._handing_s, self.n_cpus) if n_rows > 1 else 1

    def choose(self, wanted: Sequence[Draw], n_threads: int) -> list[int | Exception]:
        """Sample without accepting; return each chain's token or its error."""
        n = max(1, min(n_threads, len(wanted)))
        while len(self._scratch) < n:
            self._scratch.append(Candidates(self._n_vocab, C.llama_sampler_apply))
        began = time.perf_counter()
        chosen, parts_s = self.spread([scratch.choose for scratch in self._scratch[:n]], wanted)
        if n > 1:
            self._learn(time.perf_counter() - began, parts_s, len(wanted))
        return chosen

    def spread(
        self, works: Sequence[Callable[..., R]], rows: Sequence[tuple[Any, ...]]
    ) -> tuple[list[R | Exception], list[float]]:
        """Call each of `works` in its own thread with every n-th of `rows` as arguments. Return results or errors, and
        the CPU seconds of each thread.
        """
        n = len(works)
        others = [self._threads.submit(_run, works[i], rows[i::n]) for i in range(1, n)]
        parts = [_run(works[0], rows[::n]), *(other.result() for other in others)]
        return [parts[i % n][0][i // n] for i in range(len(rows))], [seconds for _, seconds in parts]

    def _learn(self, took_s: float, parts_s: Sequence[float], n_chains: int) -> None:
        self._chain_s += _NEW * (sum(parts_s) / n_chains - self._chain_s)
        handing_s = max(took_s - max(parts_s), 1e-6) / (len(parts_s) - 1)
        self._handing_s += _NEW * (handing_s - self._handing_s)

    def close(self) -> None:
        """End the threads."""
        if "_threads" in self.__dict__:  # used
            self._threads.shutdown()


def _run(work: Callable[..., R], rows: Sequence[tuple[Any, ...]]) -> tuple[list[R | Exception], float]:
    """Return the results of `work` or its errors, and the CPU seconds in total."""
    done: list[R | Exception] = []
    began = time.thread_time()
    for row in rows:
        try:
            done.append(work(*row))
        except Exception as error:  # noqa: BLE001 - it is the sequence's own; raised where it is sampled
            done.append(error)
    return done, time.thread_time() - began
