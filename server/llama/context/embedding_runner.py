"""A native context that embeds."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from server.engine.media import MediaInput, MediaPrompt, MediaSpan, Spans, position, runs
from server.engine.runner_api import BatchEntry, EmbedderInfo, Pooling, Vectors
from server.errors import InternalError
from server.llama.context.batch import Batch, EmbeddingBatch
from server.llama.context.sequences import NativeContext
from server.llama.files.roles import POOLINGS
from server.llama.library import C
from server.llama.media.chunks import NativeChunk
from server.llama.media.projector import Projector
from server.llama.vocab import LlamaVocab
from server.pool.spec import LoadParams


class LlamaEmbeddingRunner(NativeContext):
    """`server.engine.runner_api.EmbeddingRunner`."""

    def __init__(self, context: int, vocab: LlamaVocab, info: EmbedderInfo, encoder: Projector | None) -> None:
        super().__init__(context)
        self.vocab = vocab
        self.info = info
        self._batch = Batch(C.llama_n_batch(context), info.n_seq, vocab.n_tokens)
        self._encoder = encoder
        self._media: EmbeddingBatch | None = None
        if encoder is not None and self._memory and C.llama_get_causal_attn(context):
            self._media = EmbeddingBatch(info.n_ubatch, info.n_seq, encoder.n_embd, mrope=encoder.mrope)

    @property
    def takes_media(self) -> bool:
        return self._media is not None

    def embed(self, inputs: Sequence[Sequence[int]], on_part: Callable[[], None] = lambda: None) -> list[Vectors]:
        context = self._open()
        self._check(inputs)
        if len(inputs) == 1:
            return [self._embed_in_parts(context, inputs[0], (), on_part)]
        try:
            self._decode(self._batch, [BatchEntry(seq, 0, tokens, n_outputs=1) for seq, tokens in enumerate(inputs)])
            return self._read(context, [len(tokens) for tokens in inputs])
        finally:
            self._clear()

    def embed_media(self, prompt: MediaPrompt, on_part: Callable[[], None] = lambda: None) -> Vectors:
        context = self._open()
        if len(prompt) > self.info.n_ctx_seq:
            raise InternalError(f"an input of {len(prompt)} tokens in a context of {self.info.n_ctx_seq}")
        return self._embed_in_parts(context, prompt.tokens, prompt.spans, on_part)

    def _clear(self, *, zero: bool = False) -> None:
        if self._memory:
            C.llama_memory_clear(self._memory, zero)

    def _embed_in_parts(
        self, context: int, tokens: Sequence[int], media: Spans, on_part: Callable[[], None]
    ) -> Vectors:
        """Embed one input. A decode has at most ``n_ubatch`` tokens of text: the small cache of a sliding window would
        lose tokens of a longer one.
        """
        rows: list[Vectors] = []
        sizes: list[int] = []
        try:
            for start, end, span in runs(media, len(tokens)):
                step = self.info.n_ubatch if span is None else end - start
                for at in range(start, end, step):
                    run = BatchEntry(0, position(media, at), tokens[at : min(at + step, end)], n_outputs=1)
                    self._decode(self._batch, [run]) if span is None else self._decode_medium(run, span)
                    rows += self._read(context, [len(run.tokens)])
                    on_part()
                    sizes.append(len(run.tokens))
        finally:
            self._clear()
        return self._pooled(rows, sizes)

    def _pooled(self, rows: list[Vectors], sizes: list[int]) -> Vectors:
        """Pool the vectors of an input's parts into one."""
        if self.info.pooling is Pooling.NONE:
            return np.concatenate(rows)
        if self.info.pooling is Pooling.MEAN:
            return np.average(np.stack(rows), axis=0, weights=sizes).astype(np.float32)
        return rows[0] if self.info.pooling is Pooling.CLS else rows[-1]

    def _decode_medium(self, run: BatchEntry, span: MediaSpan) -> None:
        if self._media is None or self._encoder is None or not isinstance(span.chunk, NativeChunk):
            raise InternalError("a model without a projector was given media")
        (embeddings,) = self._encoder.encode([span.chunk])
        self._decode(self._media, [replace(run, media=MediaInput(span, embeddings, 0))], causal=span.chunk.causal)

    def _check(self, inputs: Sequence[Sequence[int]]) -> None:
        """Raise `InternalError` for inputs that `Batch` accepts but on which the library aborts."""
        info, longest = self.info, max(map(len, inputs), default=0)
        if longest > (min(info.n_ubatch, info.n_ctx_seq) if info.whole else info.n_ctx_seq):
            raise InternalError(f"an input of {longest} tokens in a context of {info.n_ctx_seq}")
        if not all(map(len, inputs)):
            raise InternalError("an input without tokens")
        if info.whole and sum(map(len, inputs)) > info.n_ubatch:
            raise InternalError(f"more than the {info.n_ubatch} tokens that can be computed at once")

    def _decode(self, batch: Batch, runs: Sequence[BatchEntry], *, causal: bool = True) -> None:
        batch.fill(runs)
        batch.want_all()
        status, why = self._decode_native(batch.native, causal=causal)
        if status != 0:
            raise InternalError(f"llama_decode returned {status}: {why}")

    def _read(self, context: int, sizes: Sequence[int]) -> list[Vectors]:
        """Return the vectors of the sequences from 0 on, which have `sizes` tokens. Waits for the device."""
        n_embd = self.info.n_embd
        if self.info.pooling is Pooling.NONE:
            rows = _copied(C.llama_get_embeddings(context), sum(sizes), n_embd)
            results = np.split(rows, np.cumsum(sizes)[:-1])
        else:
            results = [_copied(C.llama_get_embeddings_seq(context, seq), 1, n_embd) for seq in range(len(sizes))]
        if not all(np.isfinite(vectors).all() for vectors in results):
            self._clear(zero=True)  # attention also sums over removed cells, with weight 0
            raise InternalError("the model computed a vector with values that are not numbers")
        return results


def _copied(pointer: "ctypes._Pointer[ctypes.c_float]", n_rows: int, n_embd: int) -> Vectors:
    if not pointer:
        raise InternalError("the library has no vector for an input that was computed")
    return np.ctypeslib.as_array(pointer, shape=(n_rows, n_embd)).astype(np.float32, copy=True)


def embedder_info(context: int, model: int, native: LoadParams) -> EmbedderInfo:
    """Return the facts of a new context. A decode has several inputs up to the configured ``n_ubatch``. A longer input
    is computed alone, because every token costs attention over all tokens of its decode.
    """
    pooling = POOLINGS[C.llama_pooling_type(context)]
    causal = bool(C.llama_get_memory(context)) and bool(C.llama_get_causal_attn(context))
    n_ctx = C.llama_n_ctx(context)
    n_ubatch = C.llama_n_ubatch(context)
    return EmbedderInfo(
        pooling=pooling,
        n_embd=C.llama_model_n_cls_out(model) if pooling is Pooling.RANK else C.llama_model_n_embd_out(model),
        n_seq=C.llama_n_seq_max(context),
        n_pack=min(native.n_ubatch, n_ubatch),
        n_ubatch=n_ubatch,
        n_ctx_seq=min(native.n_ctx or n_ctx, n_ctx, C.llama_model_n_ctx_train(model)),
        whole=not causal or pooling in (Pooling.MEAN, Pooling.CLS),
    )
