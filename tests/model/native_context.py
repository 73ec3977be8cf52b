"""The library's own context over one file, for what `LlamaRunner` doesn't reach: embeddings, adapters, plain facts."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from server.llama.library import C, start_backend

Vector = npt.NDArray[np.float32]
N_CTX = 256


@dataclass(frozen=True, slots=True)
class NativeContext:
    """A model and a context of one sequence; freed at the end of `native_context`."""

    model: Any
    context: Any

    @property
    def vocab(self) -> Any:
        return C.llama_model_get_vocab(self.model)

    @property
    def memory(self) -> Any:
        """None for a model that keeps nothing between two batches."""
        return C.llama_get_memory(self.context)

    def tokenize(self, text: str) -> list[int]:
        """With the tokens that the vocabulary adds at the ends, special ones read as such."""
        tokens = (C.llama_token * N_CTX)()
        n = C.llama_tokenize(self.vocab, text.encode(), len(text.encode()), tokens, N_CTX, True, True)
        assert n >= 0
        return list(tokens[:n])

    def compute(self, tokens: Sequence[int], start: int = 0) -> None:
        """Decode `tokens` from position `start` on, with an output for each."""
        batch = C.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 1
            batch.seq_id[i][0] = 0
        status = C.llama_decode(self.context, batch)
        C.llama_batch_free(batch)
        assert status == 0

    def logits(self, tokens: Sequence[int]) -> Vector:
        """After the last of `tokens`, decoded from the beginning."""
        C.llama_memory_clear(self.memory, True)
        self.compute(tokens)
        return _copied(C.llama_get_logits_ith(self.context, -1), C.llama_vocab_n_tokens(self.vocab))

    def embedding(self, text: str, token: int | None = None) -> Vector:
        """The pooled vector of `text` (the scores, where pooling is ``rank``), or that of one of its tokens."""
        if self.memory is not None:
            C.llama_memory_clear(self.memory, True)
        self.compute(self.tokenize(text))
        pooling = C.llama_pooling_type(self.context)
        size = C.llama_model_n_cls_out(self.model) if pooling == 4 else C.llama_model_n_embd(self.model)
        if token is not None:
            return _copied(C.llama_get_embeddings_ith(self.context, token), size)
        return _copied(C.llama_get_embeddings_seq(self.context, 0), size)

    def remove(self, start: int) -> bool:
        """Forget positions from `start` on."""
        return bool(C.llama_memory_seq_rm(self.memory, 0, start, -1))


@contextmanager
def native_context(path: Path, *, embeddings: bool = False, **params: object) -> Iterator[NativeContext]:
    """A context with 256 cells and one thread; `params` are further fields of ``llama_context_params``."""
    start_backend()
    model = C.llama_model_load_from_file(str(path).encode(), C.llama_model_default_params())
    assert model, path
    chosen = C.llama_context_default_params()
    chosen.n_ctx, chosen.n_batch, chosen.n_threads, chosen.n_threads_batch = N_CTX, N_CTX, 1, 1
    chosen.embeddings = embeddings
    for name, value in params.items():
        setattr(chosen, name, value)
    context = C.llama_init_from_model(model, chosen)
    assert context, path
    try:
        yield NativeContext(model, context)
    finally:
        C.llama_free(context)
        C.llama_model_free(model)


def _copied(address: Any, size: int) -> Vector:
    assert address, "the library has no such output"
    return np.array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float * size)).contents, np.float32)
