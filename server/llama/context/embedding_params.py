"""The parameters of a context that embeds, and which models can have one."""

import ctypes
from dataclasses import dataclass, replace

from server.engine.runner_api import Pooling
from server.errors import ModelFailed
from server.llama.context.params import context_params, stateful
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.roles import POOLING_TYPES, is_encoder, pooling_of, roles
from server.llama.library import C
from server.pool.spec import AUTO_SLOTS, LoadParams

AUTO_INPUTS = 64
"""Inputs of one decode where ``n_parallel`` is automatic: they share one cache, so that each costs its tokens only."""
_MOST_LOGITS = 1 << 27
"""A decoder computes logits for each token of a batch even if nobody wants them: twice 512 MiB at this number. A larger
batch must be requested with ``n_ubatch``.
"""
_CELLS = 256  # a context is made of so many, or a multiple
_SPLITTABLE = (Pooling.NONE, Pooling.LAST, Pooling.RANK)
_HEAD, _HEAD_OUTPUT = "cls", "cls.output.weight"


def embedding_params(model: int, name: str, header: GgufHeader, native: LoadParams) -> ctypes.Structure:
    """Raises `ModelFailed` naming the setting that cannot be.

    One unified cache: separate ones would have inputs of different lengths cut at the same lengths, and a part of an
    input has another mean. An input that must be computed whole may have ``n_batch`` tokens, which makes that the
    physical batch size, too; llama-server keeps 512 and lowers the other to it.
    """
    pooling = pooling_of(header, native)
    if pooling is Pooling.RANK:
        _check_ranks(name, header, C.llama_model_get_vocab(model))
    params = context_params(name, native)
    params.embeddings = True
    params.pooling_type = POOLING_TYPES[pooling]
    params.kv_unified = True
    params.n_outputs_max = 0  # every token is one
    params.n_seq_max = n_seq = _n_seq(model, header, native, pooling)
    n_ctx = native.n_ctx or C.llama_model_n_ctx_train(model)
    if is_encoder(header):
        sizes = _encoder_sizes(native, n_ctx, n_seq)
    else:
        n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
        sizes = _decoder_sizes(native, n_ctx, n_seq, n_vocab, whole=_whole(header, pooling))
        if pooling is Pooling.NONE and roles(header, native).generates:  # it has cells of its own for what it generates
            sizes = replace(sizes, n_ctx=max(min(sizes.n_ctx, sizes.n_batch), sizes.n_ubatch))
    params.n_ctx, params.n_batch, params.n_ubatch = sizes.n_ctx, sizes.n_batch, sizes.n_ubatch
    return params


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Tokens."""

    n_ctx: int
    n_batch: int
    n_ubatch: int


def _encoder_sizes(native: LoadParams, n_ctx: int, n_seq: int) -> _Sizes:
    """Encoders have no KV cells: the context size only limits the length of an input and what the library tries
    first.
    """
    n_batch = _multiple(max(native.n_batch, native.n_ubatch), n_seq)
    fits = _multiple(n_ctx, _CELLS) % n_seq == 0
    return _Sizes(n_ctx if fits else max(n_ctx, n_batch), n_batch, n_batch)


def _decoder_sizes(native: LoadParams, n_ctx: int, n_seq: int, n_vocab: int, *, whole: bool) -> _Sizes:
    """Limit the cells to one computation if an input must not be split."""
    n_batch, n_ubatch = max(native.n_batch, native.n_ubatch), native.n_ubatch
    if whole:
        n_batch = n_ubatch = max(n_ubatch, min(n_batch, _MOST_LOGITS // n_vocab))
        n_ctx = min(n_ctx, n_batch)
    n_ubatch = _multiple(min(n_ubatch, n_ctx), n_seq)
    return _Sizes(max(n_ctx, n_ubatch), max(n_batch, n_ubatch), n_ubatch)


def _multiple(n: int, of: int) -> int:
    """The next multiple. The library tries its graph with as many tokens of each sequence, rounded up, but with the
    outputs of the number before, which an average over them does not survive (llama-context.cpp, graph_reserve)."""
    return -(-n // of) * of


def _n_seq(model: int, header: GgufHeader, native: LoadParams, pooling: Pooling) -> int:
    if pooling is Pooling.RANK and not _has_tensor(header, _HEAD_OUTPUT):
        # such a head gives more numbers than the library reads back for a sequence, so all but the first would be off
        return 1
    if native.n_parallel > 0:
        return native.n_parallel
    return AUTO_SLOTS if stateful(model) else AUTO_INPUTS


def _whole(header: GgufHeader, pooling: Pooling) -> bool:
    """Whether an input has to be computed at once (tools/server/server-context.cpp, can_split)."""
    causal = header.metadata.get(f"{header.metadata.get('general.architecture')}.attention.causal", True)
    return is_encoder(header) or not causal or pooling not in _SPLITTABLE


def _check_ranks(name: str, header: GgufHeader, vocab: int) -> None:
    if header.integer("split.count") <= 1 and not any(t.name.startswith(_HEAD) for t in header.tensors):
        raise ModelFailed(name, "pooling 'rank' needs a classification head, and the file has none; use a reranker")
    if C.llama_vocab_get_add_eos(vocab) and C.llama_vocab_eos(vocab) == C.llama_vocab_sep(vocab) == -1:
        raise ModelFailed(name, "the vocabulary has neither an EOS nor a SEP token, so it cannot rerank")


def _has_tensor(header: GgufHeader, name: str) -> bool:
    return header.integer("split.count") > 1 or any(tensor.name == name for tensor in header.tensors)
