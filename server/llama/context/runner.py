"""A native context that generates: decoding, sampling and log probabilities."""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from server.engine.lora import Adapter
from server.engine.request import Adapters, SamplingParams, TokenLogprob
from server.engine.runner_api import BatchEntry, Mask, RunnerInfo
from server.errors import InternalError, NotNumbers
from server.llama.context.batch import EmbeddingBatch, padded_lengths
from server.llama.context.draft_runner import LlamaDraftRunner, LlamaMtpHeads
from server.llama.context.sequences import NativeSequences
from server.llama.library import C, fast
from server.llama.media.projector import Projector
from server.llama.sampling.candidates import Candidates, Logits, ParallelSampling, allowed_tokens
from server.llama.sampling.graph import GraphSampling
from server.llama.sampling.sampler import NativeSampler, SamplerFactory
from server.llama.threads import ComputeThreads
from server.llama.vocab import LlamaVocab
from server.llama.weights.adapters import LoadedAdapters

_HOLD_GIL_UP_TO = 1 << 16  # candidates; with more, a chain takes longer than getting the GIL back
_ROWS = 64  # into which `best_tokens` divides logits
Distribution: TypeAlias = tuple[float, tuple[TokenLogprob, ...]]
"""The log-sum-exp of an output's logits, and its most probable tokens."""
_LOWEST = -3.4028234663852886e38  # what llama-server prints for a probability of 0


class LlamaRunner(NativeSequences):
    """`server.engine.runner_api.Runner`.

    If ``info.deferred``, the device (a GPU) continues computing after `llama_decode` has returned. `decode` waits if
    there are outputs; otherwise the next decode does. ``draft`` and ``heads`` are freed with this runner.
    ``evaluation_tokens``: see `padded_lengths`; 0: no padding.
    """

    def __init__(
        self,
        context: int,
        vocab: LlamaVocab,
        info: RunnerInfo,
        *,
        n_swa: int,
        stateful: bool = False,
        threads: ComputeThreads,
        adapters: LoadedAdapters,
        draft: LlamaDraftRunner | None = None,
        heads: LlamaMtpHeads | None = None,
        encoder: Projector | None = None,
        evaluation_tokens: float = 0.0,
    ) -> None:
        super().__init__(context, info, vocab.n_tokens, n_swa, stateful=stateful)
        self._evaluation_tokens = evaluation_tokens
        self.vocab = vocab
        self.draft = draft
        self.heads = heads
        self.encoder = encoder
        self._adapters = adapters
        if heads is not None:
            heads.lock = self.lock
        self._threads = threads
        self._media = EmbeddingBatch(info.n_batch, info.n_seq, encoder.n_embd, mrope=encoder.mrope) if encoder else None
        self._samplers = SamplerFactory(vocab, info.n_ctx_seq)
        small = vocab.n_tokens <= _HOLD_GIL_UP_TO
        self._sample = fast.sampler_sample if small else C.llama_sampler_sample
        self._candidates = Candidates(vocab.n_tokens, fast.sampler_apply if small else C.llama_sampler_apply)
        self._parallel = ParallelSampling(vocab.n_tokens)
        self._graph = GraphSampling(lambda: self._context)
        self._distributions: dict[tuple[int, int], Distribution] = {}  # of the last decode, by output and top tokens
        self.load_adapter, self.free_adapter = adapters.load, adapters.free
        self._all_logits = np.empty((0, vocab.n_tokens), np.float32)  # a view of the library's logits
        self._mapped = 0, 0  # address and number of rows of the view
        self._highest: dict[int, int] = {}  # token with the highest logit, by output that was read

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode in one call. Returns False, with nothing changed, if too few cells are free. After an `InternalError`
        the caller must remove the positions of this batch, which may be in the cache.
        """
        context = self._open()
        self._outputs, self._highest = [], {}
        self._distributions.clear()
        if (threads := self._threads.change()) is not None:
            C.llama_set_n_threads(context, *threads)
        if entries and entries[0].media is not None:
            decoded = self._decode_media(entries)
        elif self._evaluation_tokens and len(entries) > 1 and self._decode_padded(entries):
            decoded = True
        else:
            decoded = self._decode_batch(self._batch, entries)
        self._threads.ended()
        if self.heads is not None and decoded:
            if entries[0].media is None:
                self.heads.follow(entries)
            else:
                for entry in entries:
                    self.heads.forget(entry.seq)
        return decoded

    def _decode_padded(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode with padding. Returns False, with nothing changed, if padding saves no time or does not fit."""
        padded = padded_lengths(entries, self._evaluation_tokens, self.info.n_ubatch)
        lengths = [len(entry.tokens) for entry in entries]
        fits = sum(padded) <= self._batch.capacity
        fits = fits and all(e.pos + n <= self.info.n_ctx_seq for e, n in zip(entries, padded, strict=True))
        if padded == lengths or not fits:
            return False
        if not self._decode_batch(self._batch, entries, padded):
            return False
        for entry, n, n_padded in zip(entries, lengths, padded, strict=True):
            if n < n_padded and not self.seq_remove(entry.seq, entry.pos + n):
                raise InternalError(f"the padding of sequence {entry.seq} was not removed")
        return True

    def _decode_media(self, entries: Sequence[BatchEntry]) -> bool:
        if self._media is None:
            raise InternalError("a model without a projector was given media")
        causal = all(entry.media is not None and entry.media.causal for entry in entries)
        sizes = {len(entry.tokens) for entry in entries}
        if not causal and (len(sizes) != 1 or sum(sizes) * len(entries) > self.info.n_ubatch):
            # the library would abort, or split a medium
            raise InternalError(f"{len(entries)} media of {sorted(sizes)} tokens can't be read all at once")
        return self._decode_batch(self._media, entries, causal=causal)

    def needs_preparation(self, params: SamplingParams) -> bool:
        return not self._samplers.is_prepared(params)

    def prepare_sampler(self, params: SamplingParams) -> None:
        self._samplers.prepare(params)

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> NativeSampler:
        """Return a new chain that has accepted the tokens of `prompt`. Raises `InvalidRequest`."""
        self._open()
        return self._samplers.build(params, prompt)

    def sample_in_graph(self, seq: int, sampler: NativeSampler | None) -> None:
        self._open()
        self._graph.attach(seq, sampler)

    def sample(self, output: int, sampler: NativeSampler) -> int:
        if sampler in self._graph:
            return self._graph.sample(self._outputs[output], sampler)
        self._logits(output)
        if sampler.lowered is not None and (best := self._highest[output]) not in sampler.lowered:
            return best
        token: int = self._sample(sampler.chain, self._context, self._outputs[output])
        return token

    def sample_together(self, wanted: Sequence[tuple[int, NativeSampler]]) -> Mapping[int, int | Exception]:
        return self._parallel.sample([one for one in wanted if one[1] not in self._graph], self._logits)

    def propose(self, output: int, sampler: NativeSampler, mask: Mask | None = None) -> int:
        if mask is None and not sampler.remembers:  # accepting the token has no effect, and the library is faster
            return self.sample(output, sampler)
        logits = self._logits(output)
        allowed = None if mask is None else allowed_tokens(mask, self.vocab.n_tokens)
        if allowed is not None and sampler.lowered is not None:
            best = int(allowed[logits[allowed].argmax()])
            if best not in sampler.lowered:
                return best
        return self._candidates.choose(sampler, logits, allowed)

    def accept(self, sampler: NativeSampler, token: int) -> None:
        self.vocab.check(token)
        fast.sampler_accept(sampler.chain, token)

    def propose_probs(self, output: int, sampler: NativeSampler, n_top: int, mask: Mask | None = None) -> TokenLogprob:
        allowed = None if mask is None else allowed_tokens(mask, self.vocab.n_tokens)
        token = self._candidates.choose(sampler, self._logits(output), allowed)
        probability, best = self._candidates.probabilities(token, n_top)
        top = tuple(TokenLogprob(t, self._plain(t), _log(p)) for t, p in best)
        return TokenLogprob(token, self._plain(token), _log(probability), top)

    def prepare_logprobs(self, wanted: Sequence[tuple[int, int]]) -> None:
        n_threads = self._parallel.n_threads(len(wanted))
        if n_threads > 1:
            found, _ = self._parallel.spread([self._distribution] * n_threads, wanted)
            pairs = zip(wanted, found, strict=True)
            self._distributions = {row: each for row, each in pairs if not isinstance(each, Exception)}

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        self.vocab.check(token)
        log_sum, top = self._distributions.get((output, n_top)) or self._distribution(output, n_top)
        return self._entry(token, self._logits(output), log_sum, top)

    def _distribution(self, output: int, n_top: int) -> Distribution:
        logits = self._logits(output)
        highest = logits[self._highest[output]]
        shifted = logits - highest
        log_sum = float(highest) + math.log(np.exp(shifted, out=shifted).sum())
        best = best_tokens(logits, min(n_top, len(logits)))
        return log_sum, tuple(self._entry(token, logits, log_sum) for token in best)

    def _entry(self, token: int, logits: Logits, log_sum: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        return TokenLogprob(token, self._plain(token), max(float(logits[token]) - log_sum, _LOWEST), top)

    def _plain(self, token: int) -> bytes:
        # llama-server prints the pieces of its probabilities without control tokens (unless started with --special)
        return self.vocab.piece(token, special=False)

    def _truncated(self, seq: int, pos: int) -> None:
        if self.heads is not None:
            self.heads.truncate(seq, pos)

    def seq_copy(self, source: int, target: int) -> None:
        super().seq_copy(source, target)
        if self.heads is not None:
            self.heads.copied(source, target)

    def use_adapters(self, adapters: Adapters) -> None:
        with self.lock:
            self._adapters.use(self._open(), adapters)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        return self._adapters.all

    def wipe(self) -> None:
        for each in (self, self.heads):  # heads store the model's hidden states; a draft model computes its own
            if each is not None:
                C.llama_memory_clear(C.llama_get_memory(each._open()), True)

    def close(self) -> None:
        if self._context is None:
            return
        with self.lock:
            self._adapters.forget(self._context)
        self._samplers.close()
        self._parallel.close()
        for drafts in (self.draft, self.heads):
            if drafts is not None:
                drafts.close()
        super().close()

    def _logits(self, output: int) -> Logits:
        """Return a view of the library's logits, valid until the next decode. Raises `NotNumbers` for logits that are
        not finite, with which samplers would read out of bounds.
        """
        context = self._open()
        if not 0 <= output < len(self._outputs):
            raise InternalError(f"output {output} of a decode with {len(self._outputs)}")
        if not self._highest:
            self._map_logits(context)
        logits: Logits = self._all_logits[output]
        if (highest := self._highest.get(output)) is None:
            highest = self._highest[output] = int(logits.argmax())
        if not math.isfinite(logits[highest]):  # `argmax` returns the first NaN
            raise NotNumbers
        return logits

    def _map_logits(self, context: int) -> None:
        """Map the logits of the last decode, if they have moved. The library stores all rows contiguously, in the order
        of the batch (`output_reorder`).
        """
        logits = fast.get_logits(context)
        if not logits:
            raise InternalError("the library has no logits for a token that asked for them")
        current = address, n = ctypes.addressof(logits.contents), len(self._outputs)
        if self._mapped != current:
            array = (ctypes.c_float * (n * self.vocab.n_tokens)).from_address(address)
            self._all_logits = np.frombuffer(memoryview(array), np.float32).reshape(n, -1)
            self._mapped = current


def best_tokens(logits: Logits, n: int) -> list[int]:
    """Return the `n` tokens with the highest logits, best first."""
    if n <= 1:
        return [int(logits.argmax())] * n
    width = len(logits) // _ROWS
    # at least `n` logits reach the `n`-th highest maximum of the columns, and few others do
    columns = logits[: _ROWS * width].reshape(_ROWS, width).max(axis=0) if n <= width else logits
    ids = (logits >= np.partition(columns, -n)[-n]).nonzero()[0]
    best: list[int] = ids[np.lexsort((ids, -logits[ids]))][:n].tolist()
    return best


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0.0 else _LOWEST
