"""Sampler chains in the compute graph (``backend_sampling``): the library samples where the logits are.

Attaching or detaching a chain makes the library plan its graph's memory again (llama-context.cpp, set_sampler), so
it is done once per request. An attached chain cannot be used elsewhere: the library skips the parts in the graph,
and aborts if it is attached twice. A sequence that changes its slot continues with a copy. Non-finite logits
(`NotNumbers`) are detected by the probabilities after the chain.
"""

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.errors import InternalError, NotNumbers
from server.llama.library import C, fast
from server.llama.sampling.sampler import MOST_CANDIDATES, NativeSampler, new_chain

NO_TOKEN = -1  # LLAMA_TOKEN_NULL
_MOST_BIASES = 64  # tokens that end a text, or are never said


class GraphSampling:
    """The graph samplers of one context. Used by its step thread."""

    def __init__(self, open_context: Callable[[], int | None]) -> None:
        self._open_context = open_context
        self._attached: dict[int, NativeSampler] = {}  # by sequence

    def __contains__(self, sampler: NativeSampler) -> bool:
        return sampler.seq >= 0

    def attach(self, seq: int, sampler: NativeSampler | None) -> None:
        """Sample `seq` with `sampler` in the graph if possible; None: detach."""
        now = self._attached.get(seq)
        if now is sampler and (sampler is None or sampler.in_graph):
            return
        if now is not None:
            self._detach(now)
            now.renew()
        if sampler is None or not sampler.in_graph:
            return
        if sampler.seq >= 0:  # its sequence has got another slot
            self._detach(sampler)
            sampler.renew()
        if not C.llama_set_sampler(self._open_context(), seq, sampler.chain):  # several devices share each layer
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
        """Return the token that the graph chose for the batch's token `output`, accepted. Raises `NotNumbers`."""
        context = self._open_context()
        token: int = C.llama_get_sampled_token_ith(context, output)
        probabilities = C.llama_get_sampled_probs_ith(context, output)
        if token == NO_TOKEN:  # the device lacks an operation: the CPU runs the rest of the chain
            sampler.in_graph = False  # from its next token on
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
    """Let a context of `model` with `params` be created with the largest chain for every sequence. Missing memory is
    reported then; if a request's chain finds none, the library ends the process. Call `take_off` on a context that is
    used later. Does nothing unless `wanted`.
    """
    if not wanted:
        yield
        return
    n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
    biases = (C.llama_logit_bias * _MOST_BIASES)(*[(token % n_vocab, 0.5) for token in range(_MOST_BIASES)])
    chains = [new_chain() for _ in range(params.n_seq_max)]
    for chain in chains:
        for member in (
            C.llama_sampler_init_logit_bias(n_vocab, _MOST_BIASES, biases),
            *(fast.sampler_init_top_k(MOST_CANDIDATES), fast.sampler_init_top_p(0.95, 0)),
            *(fast.sampler_init_min_p(0.05, 0), fast.sampler_init_temp_ext(0.8, 0.0, 1.0), fast.sampler_init_dist(0)),
        ):
            fast.sampler_chain_add(chain, member)
    of_sequences = (C.llama_sampler_seq_config * len(chains))()
    for seq, chain in enumerate(chains):
        of_sequences[seq].seq_id = seq
        of_sequences[seq].sampler = ctypes.cast(chain, ctypes.c_void_p)
    params.samplers = of_sequences
    params.n_samplers = len(chains)
    try:
        yield
    finally:
        params.samplers, params.n_samplers = None, 0
        for chain in chains:
            fast.sampler_free(chain)


def take_off(context: int, n_seq: int) -> None:
    """Remove the largest chains from the context: its sequences have their logits again."""
    for seq in range(n_seq):
        C.llama_set_sampler(context, seq, None)
