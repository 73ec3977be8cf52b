"""Sampler chains in the compute graph (``backend_sampling``): the device that has the logits samples.

Attaching or detaching a chain makes the library plan its graph's memory again (llama-context.cpp, set_sampler), so it
is done once per request. An attached chain cannot be used outside the graph: the library skips its parts in the graph,
and aborts if the chain is attached twice. A sequence that changes its slot continues with a copy. Non-finite logits
(`NotNumbers`) are detected by the probabilities after the chain.
"""

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.errors import InternalError, NotNumbers
from server.llama.library import C, fast
from server.llama.sampling.sampler import MAX_CANDIDATES, NativeSampler, new_chain

NO_TOKEN = -1  # LLAMA_TOKEN_NULL
_MAX_BIASES = 64  # for ignored end tokens and suppressed tokens


class GraphSampling:
    """The graph samplers of one context. Only its step thread may call it."""

    def __init__(self, open_context: Callable[[], int | None]) -> None:
        self._open_context = open_context
        self._attached: dict[int, NativeSampler] = {}  # by sequence

    def __contains__(self, sampler: NativeSampler) -> bool:
        return sampler.seq >= 0

    def attach(self, seq: int, sampler: NativeSampler | None) -> None:
        """Sample `seq` with `sampler` in the graph if possible. None: detach the current one."""
        current = self._attached.get(seq)
        if current is sampler and (sampler is None or sampler.in_graph):
            return
        if current is not None:
            self._detach(current)
            current.renew()
        if sampler is None or not sampler.in_graph:
            return
        if sampler.seq >= 0:  # its sequence has moved to another slot
            self._detach(sampler)
            sampler.renew()
        if not C.llama_set_sampler(self._open_context(), seq, sampler.chain):  # unsupported, as with split tensors
            sampler.in_graph = False
            return
        self._attached[seq] = sampler
        sampler.seq, sampler.on_close = seq, self._detach

    def _detach(self, sampler: NativeSampler) -> None:
        seq, sampler.seq, sampler.on_close = sampler.seq, -1, None
        del self._attached[seq]
        context = self._open_context()
        if context is not None:
            C.llama_set_sampler(context, seq, None)

    def sample(self, output: int, sampler: NativeSampler) -> int:
        """Return the token that the graph sampled at the index `output` of the batch, and accept it. Raises
        `NotNumbers`.
        """
        context = self._open_context()
        token: int = C.llama_get_sampled_token_ith(context, output)
        probabilities = C.llama_get_sampled_probs_ith(context, output)
        if token == NO_TOKEN:  # the device lacks an operation, so the CPU runs the rest of the chain
            sampler.in_graph = False  # for the next tokens
            logits = C.llama_get_sampled_logits_ith(context, output) or C.llama_get_logits_ith(context, output)
            if not logits or not math.isfinite(logits[0]):
                raise NotNumbers
            return int(fast.sampler_sample(sampler.chain, context, output))
        if not probabilities:
            raise InternalError("the library has sampled no token in its graph")
        if not math.isfinite(probabilities[0]):
            raise NotNumbers
        fast.sampler_accept(sampler.chain, token)
        return token


@contextmanager
def largest_chains(model: int, params: ctypes.Structure, *, wanted: bool) -> Iterator[None]:
    """Make a context of `model` that is created with `params` reserve memory for the largest chain of every sequence.

    If memory is short, creating the context fails; otherwise a request's chain could make the library abort. Call
    `detach_all` before the context is used. Does nothing unless `wanted`.
    """
    if not wanted:
        yield
        return
    n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
    biases = (C.llama_logit_bias * _MAX_BIASES)(*[(token % n_vocab, 0.5) for token in range(_MAX_BIASES)])
    chains = [new_chain() for _ in range(params.n_seq_max)]
    for chain in chains:
        for member in (
            C.llama_sampler_init_logit_bias(n_vocab, _MAX_BIASES, biases),
            *(fast.sampler_init_top_k(MAX_CANDIDATES), fast.sampler_init_top_p(0.95, 0)),
            *(fast.sampler_init_min_p(0.05, 0), fast.sampler_init_temp_ext(0.8, 0.0, 1.0), fast.sampler_init_dist(0)),
        ):
            fast.sampler_chain_add(chain, member)
    configs = (C.llama_sampler_seq_config * len(chains))()
    for seq, chain in enumerate(chains):
        configs[seq].seq_id = seq
        configs[seq].sampler = ctypes.cast(chain, ctypes.c_void_p)
    params.samplers = configs
    params.n_samplers = len(chains)
    try:
        yield
    finally:
        params.samplers, params.n_samplers = None, 0
        for chain in chains:
            fast.sampler_free(chain)


def detach_all(context: int, n_seq: int) -> None:
    """Detach the chains of all sequences from a context, which then outputs logits."""
    for seq in range(n_seq):
        C.llama_set_sampler(context, seq, None)
