"""Sampler chains as a part of the graph (``backend_sampling``): the library chooses the token where the logits are.

Attaching a chain, or taking it off, makes the library plan its graph's memory anew (llama-context.cpp, set_sampler), so
that it is done once for a request, in its slot. A chain that was attached is of use nowhere else: the library skips in
it what it has taken into the graph, and aborts where it is attached twice. So who changes the slot goes on with a copy.

What is told by the logits alone (`NotNumbers`) is told by the probabilities of what the chain has left over.
"""

import math
from collections.abc import Callable

from server.errors import InternalError, NotNumbers
from server.llama.library import C, fast
from server.llama.sampling.sampler import NativeSampler

NO_TOKEN = -1  # LLAMA_TOKEN_NULL


class GraphSampling:
    """Of one context, which `open_context` gives as long as there is one. Used by its step thread."""

    def __init__(self, open_context: Callable[[], int | None]) -> None:
        self._open_context = open_context
        self._attached: dict[int, NativeSampler] = {}  # by sequence

    def __contains__(self, sampler: NativeSampler) -> bool:
        return sampler.seq >= 0

    def attach(self, seq: int, sampler: NativeSampler | None) -> None:
        """What follows in `seq` is chosen by `sampler` in the graph, if that can be; None: by nobody there."""
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
        """The token that the graph chose for the batch's token `output`, accepted. Raises `NotNumbers`."""
        context = self._open_context()
        token: int = C.llama_get_sampled_token_ith(context, output)
        probabilities = C.llama_get_sampled_probs_ith(context, output)
        if token == NO_TOKEN:  # the device lacks an operation: what follows in the chain is the processor's
            return self._sample_rest(output, sampler)
        if not probabilities:
            raise InternalError("the library has sampled no token in its graph")
        if not math.isfinite(probabilities[0]):
            raise NotNumbers
        fast.sampler_accept(sampler.chain, token)
        return token

    def _sample_rest(self, output: int, sampler: NativeSampler) -> int:
        context = self._open_context()
        sampler.in_graph = False  # from its next token on
        logits = C.llama_get_sampled_logits_ith(context, output) or C.llama_get_logits_ith(context, output)
        if not logits or not math.isfinite(logits[0]):
            raise NotNumbers
        token: int = fast.sampler_sample(sampler.chain, context, output)
        return token
