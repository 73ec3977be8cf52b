"""The candidates of a sampler chain, where `llama_sampler_sample` cannot be used, and chains of several sequences in
parallel if that is faster.

The library runs a chain without the GIL: 0.3 ms for 150,000 candidates, 0.07 ms for 32,000. Handing chains to a thread
costs time, too; both times are measured continuously. Log probabilities are computed in the same threads.
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
    """The preallocated array of candidates (``llama_token_data_array``) of one thread."""

    def __init__(self, n_vocab: int, apply: Callable[[int, object], None]) -> None:
        """`apply`: ``llama_sampler_apply``, with or without the GIL."""
        self._n_vocab = n_vocab
        self._apply = apply
        self._entries = np.zeros(n_vocab, _ENTRY)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._base = self._entries.ctypes.data
        self._first = self._entries.ctypes.data_as(C.llama_token_data_p)
        self._array = C.llama_token_data_array()
        self._reference = ctypes.byref(self._array)

    def choose(self, sampler: NativeSampler, logits: Logits, allowed: npt.NDArray[np.int32] | None = None) -> int:
        """Run the chain over the `allowed` tokens (None: all). Returns a token, which is not accepted.

        Raises `InternalError` if the chain selects none.
        """
        members = [sampler.chain]
        if allowed is not None and sampler.n_biases * len(allowed) > self._n_vocab:
            # first to the whole vocabulary: the library compares a candidate that is not at its id with each bias
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
        """Return the probability of `token` after the chain of the last `choose`, and the `n_top` best tokens with
        theirs. Omits tokens with probability 0.
        """
        view = self._view()
        probability = view["p"][view["id"] == token]
        best = np.argsort(-view["p"], kind="stable")[:n_top]
        top = [(int(view["id"][i]), float(view["p"][i])) for i in best if view["p"][i] > 0.0]
        return (float(probability[0]) if len(probability) else 0.0), top

    def _view(self) -> np.ndarray:
        """Return the candidates after the chain. Samplers may move the start of the array."""
        start = (ctypes.addressof(self._array.data.contents) - self._base) // _ENTRY.itemsize
        return self._entries[start : start + self._array.size]


def allowed_tokens(mask: bytes | bytearray | memoryview, n_vocab: int) -> npt.NDArray[np.int32]:
    """Return the ids of the bits that are set in `mask`: little-endian 32-bit words with the first token in the lowest
    bit. Raises `InternalError` for a mask that is too short or has no bit set.
    """
    if len(mask) * 8 < n_vocab or len(mask) % 4:
        raise InternalError(f"a token mask of {len(mask)} bytes for a vocabulary of {n_vocab}")
    words = np.frombuffer(mask, "<u4")
    used = (words != 0).nonzero()[0]  # `nonzero` of booleans is four times faster; most masks are sparse
    if len(used) <= _FEW_WORDS:  # without calls of numpy, whose code is not in the CPU's caches after a decode
        tokens: list[int] = []
        for at, word in zip(used.tolist(), words[used].tolist(), strict=True):
            rest = word
            while rest:
                tokens.append((at << 5) + (rest & -rest).bit_length() - 1)
                rest &= rest - 1
        ids = np.array([token for token in tokens if token < n_vocab], np.int32)
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
"""Assumed seconds to hand work to another thread and to wait for it."""
_NEW_WEIGHT = 0.1  # of a new measurement in the moving average
_MAX_THREADS = 64

Draw = tuple[NativeSampler, Logits]
R = TypeVar("R")


def threads_for(n_chains: int, chain_s: float, handing_s: float, n_cpus: int) -> int:
    """Return the quickest number of threads for `n_chains`: n take ``n_chains * chain_s / n + n * handing_s``."""
    best = math.sqrt(n_chains * chain_s / handing_s)
    return max(1, min(int(best), n_chains, n_cpus))


class ParallelSampling:
    """Runs sampler chains in several threads, which start on first use and have the CPUs of the calling thread."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._scratch: list[Candidates] = []
        self._chain_s = n_vocab * CANDIDATE_S
        self._handing_s = HANDING_S

    @cached_property
    def n_cpus(self) -> int:
        """Number of usable CPUs at first use."""
        return min(_MAX_THREADS, usable_cpus())

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(self.n_cpus - 1, 1), thread_name_prefix="sample")

    def sample(
        self, wanted: Sequence[tuple[int, NativeSampler]], logits_of: Callable[[int], Logits]
    ) -> dict[int, int | Exception]:
        """Implement `Runner.sample_together`, which omits greedy chains. Returns {} if one thread is quicker."""
        chains = [(output, sampler) for output, sampler in wanted if sampler.lowered is None]
        if (n_threads := self.n_threads(len(chains))) < 2:
            self._handing_s += 0.01 * (HANDING_S - self._handing_s)  # recovers from a bad measurement
            return {}
        results: dict[int, int | Exception] = {}
        rows: list[tuple[int, NativeSampler, Logits]] = []
        for output, sampler in chains:
            try:
                rows.append((output, sampler, logits_of(output)))
            except InternalError as error:  # raised when this sequence is sampled
                results[output] = error
        chosen = self.choose([(sampler, logits) for _, sampler, logits in rows], n_threads)
        for (output, sampler, _), token in zip(rows, chosen, strict=True):
            results[output] = token
            if isinstance(token, int):
                fast.sampler_accept(sampler.chain, token)
        return results

    def n_threads(self, n_rows: int) -> int:
        """Return the quickest number of threads for `n_rows` chains."""
        return threads_for(n_rows, self._chain_s, self._handing_s, self.n_cpus) if n_rows > 1 else 1

    def choose(self, wanted: Sequence[Draw], n_threads: int) -> list[int | Exception]:
        """Run chains in parallel. Returns each chain's token, which is not accepted, or its error."""
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
        """Call each of the n `works` in its own thread, with every n-th of `rows` as arguments. Returns the result or
        error of each row, and the CPU seconds of each thread.
        """
        n = len(works)
        others = [self._threads.submit(_run, works[i], rows[i::n]) for i in range(1, n)]
        parts = [_run(works[0], rows[::n]), *(other.result() for other in others)]
        return [parts[i % n][0][i // n] for i in range(len(rows))], [seconds for _, seconds in parts]

    def _learn(self, took_s: float, parts_s: Sequence[float], n_chains: int) -> None:
        self._chain_s += _NEW_WEIGHT * (sum(parts_s) / n_chains - self._chain_s)
        handing_s = max(took_s - max(parts_s), 1e-6) / (len(parts_s) - 1)
        self._handing_s += _NEW_WEIGHT * (handing_s - self._handing_s)

    def close(self) -> None:
        """Stop the threads."""
        if "_threads" in self.__dict__:  # the cached property was used
            self._threads.shutdown()


def _run(work: Callable[..., R], rows: Sequence[tuple[Any, ...]]) -> tuple[list[R | Exception], float]:
    """Return the result or error of `work` for each of `rows`, and the total CPU seconds."""
    results: list[R | Exception] = []
    began = time.thread_time()
    for row in rows:
        try:
            results.append(work(*row))
        except Exception as error:  # noqa: BLE001 - raised when this sequence is sampled
            results.append(error)
    return results, time.thread_time() - began
