"""Converts `LoadParams` to the native context's parameters, and rejects values on which the library would abort."""

import ctypes
import logging

from server.engine.params import LOOKUP, EngineParams
from server.engine.runner_api import Pooling, RunnerInfo
from server.errors import ModelFailed
from server.llama.devices import offloads
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.roles import POOLINGS, generates, is_encoder, pooling_of
from server.llama.library import C
from server.llama.threads import n_threads
from server.pool.spec import AUTO_SLOTS, LoadParams, ModelSpec
from server.sandbox.memory import available_bytes

CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
"""llama.cpp common/arg.cpp, kv_cache_types."""
log = logging.getLogger(__name__)

_PLAIN_TYPES = ("f32", "f16", "bf16")
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # enum llama_flash_attn_type
_ROPE_SCALING = {"": -1, "none": 0, "linear": 1, "yarn": 2}  # enum llama_rope_scaling_type
_SAME_NAMES = (  # in `LoadParams` and llama_context_params
    *("n_ctx", "n_ubatch", "op_offload", "swa_full", "rope_freq_base", "yarn_orig_ctx"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
)
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
_SCORED_TOKENS, _LARGE_VOCABULARY = 64, 1 << 15
"""Prompt tokens of a batch that may have log probabilities: a tile of ggml's attention; two tiles below this size of a
vocabulary. On a CPU the first request for them allocates their logits: 68 MB for 152k tokens.
"""
AUTO_INPUTS = 64
"""Inputs of one decode if ``n_parallel`` is automatic. They share one KV cache, so each costs only its tokens."""
_MAX_LOGITS = 1 << 27
"""Logits of one decode. A decoder computes them for each token even if they are not used: 1 GiB at this number. Larger
batches must be requested with ``n_ubatch``.
"""
# With more slots, llama_memory_recurrent::find_slot may move a sequence's cell after its states were saved, and does
# not move the saved ones: a rollback would read another sequence's state.
_ROLLBACK_SLOTS = 2
_ROLLBACK_STATES = 3
"""Further recurrent states of each sequence, to roll back rejected drafts of MTP heads: the default of llama-server's
``--spec-draft-n-max``. Longer drafts need a checkpoint.
"""
CELLS = 256  # the size of a context is a multiple
_SPLITTABLE = (Pooling.NONE, Pooling.LAST, Pooling.RANK)
_HEAD, _HEAD_OUTPUT = "cls", "cls.output.weight"


def more_outputs(n_vocab: int, n_seq: int, engine: EngineParams) -> int:
    """Return the outputs of a batch besides one per sequence, for drafts and prompt log probabilities. Default
    speculation uses those for prompts, so it needs no memory.
    """
    n_scored = _SCORED_TOKENS * (2 if n_vocab <= _LARGE_VOCABULARY else 1)
    return n_scored if engine.spec_type == LOOKUP else max(n_scored, n_seq * engine.n_draft_max)


def stateful(model: int) -> bool:
    """Return whether the model is recurrent or hybrid."""
    return bool(C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))


def windowed(model: int, native: LoadParams) -> bool:
    """Return whether the KV cache drops cells outside a sliding window."""
    return C.llama_model_n_swa(model) > 0 and not native.swa_full


def generator_params(model: int, spec: ModelSpec) -> ctypes.Structure:
    """Return the parameters of a context that generates. Raises `ModelFailed`."""
    n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
    params = context_params(spec.id, spec.native, more_outputs(n_vocab, spec.native.n_slots, spec.engine))
    if spec.engine.backend_sampling:  # the graph has a sampler for each output
        params.n_outputs_max_per_seq = 1 + spec.engine.n_draft_max
    if spec.native.mtp and spec.native.n_slots <= _ROLLBACK_SLOTS and not windowed(model, spec.native):
        n_ubatch = min(params.n_ubatch, params.n_batch)  # otherwise split_equal aborts (llama-batch.cpp)
        params.n_rs_seq = max(min(spec.engine.spec_draft_max, _ROLLBACK_STATES, n_ubatch - 2), 0)
    return params


def heads_params(model: int, spec: ModelSpec, target: int | None = None) -> ctypes.Structure:
    """Return the parameters of a context for the MTP heads of the context `target`. Raises `ModelFailed`."""
    params = generator_params(model, spec)
    params.n_outputs_max, params.n_outputs_max_per_seq = params.n_seq_max, 1
    params.swa_full, params.n_rs_seq = True, 0  # drafts can always be rolled back
    params.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
    params.ctx_other = target
    return params


def runner_info(context: int, model: int, params: ctypes.Structure, native: LoadParams) -> RunnerInfo:
    """Return the facts of a new context with `params`.

    With the small cache of a sliding window, a decode has at most one ubatch. To check whether a batch fits, the
    library places its ubatches one after another. It does not restore the older tokens that it drops for later ones
    (llama-kv-cache.cpp, prepare and apply_ubatch).
    """
    # as llama-server's n_ctx_slot(): at most the training context, which YaRN may have raised
    n_train, n_ctx = C.llama_model_n_ctx_train(model), C.llama_n_ctx(context)
    n_ctx_seq = min(C.llama_n_ctx_seq(context), n_train)
    n_seq, unified = int(params.n_seq_max), bool(params.kv_unified)
    if n_ctx >= (n_train + CELLS) * n_seq:
        log.warning(
            "the model was trained for %d tokens, so of a context of %d tokens its slots use %d; lower -c, or choose "
            "another model",
            *(n_train, n_ctx, n_train * n_seq),
        )
    n_ctx_seq = min(n_ctx_seq, native.n_ctx_slot or n_ctx_seq)
    n_batch, n_ubatch = C.llama_n_batch(context), C.llama_n_ubatch(context)
    return RunnerInfo(
        n_seq=n_seq,
        n_ctx_seq=n_ctx_seq,
        n_cells=n_ctx if unified else n_ctx_seq * n_seq,
        n_batch=max(min(n_batch, n_ubatch), n_seq) if windowed(model, native) else n_batch,
        n_ubatch=n_ubatch,
        unified=unified,
        can_shift=bool(C.llama_memory_can_shift(C.llama_get_memory(context))),
        can_cut=not (windowed(model, native) or stateful(model)),
        n_rollback=C.llama_n_rs_seq(context),
        n_extra_outputs=int(params.n_outputs_max) - n_seq,
        free_bytes=available_bytes(),
        deferred=offloads(native),
    )


def context_params(model: str, native: LoadParams, n_extra_outputs: int = 0) -> ctypes.Structure:
    """Return the parameters of a context. `n_extra_outputs`: besides one for each sequence. Raises `ModelFailed`."""
    _check(model, native)
    n_seq = native.n_slots
    params: ctypes.Structure = C.llama_context_default_params()
    for name in _SAME_NAMES:
        setattr(params, name, getattr(native, name))
    params.n_seq_max = n_seq
    params.kv_unified = native.unified
    params.n_outputs_max = n_seq + n_extra_outputs
    params.n_outputs_max_per_seq = 1 + n_extra_outputs
    params.n_batch = max(native.n_batch, n_seq)
    params.n_threads = n_threads(native.n_threads)
    params.n_threads_batch = params.n_threads if native.n_threads_batch < 0 else n_threads(native.n_threads_batch)
    params.flash_attn_type = FLASH_ATTENTION[native.flash_attn]
    params.type_k = CACHE_TYPES[native.cache_type_k]
    params.type_v = CACHE_TYPES[native.cache_type_v]
    params.offload_kqv = native.kv_offload
    params.rope_scaling_type = _ROPE_SCALING[native.rope_scaling]
    # --rope-scale N is 1/N as frequency scale (llama.cpp common/arg.cpp)
    params.rope_freq_scale = 1.0 / native.rope_scale if native.rope_scale else native.rope_freq_scale
    return params


def _check(model: str, native: LoadParams) -> None:
    if not 1 <= native.n_slots <= MAX_SEQUENCES:
        raise ModelFailed(model, f"n_parallel is {native.n_slots}, outside 1 to {MAX_SEQUENCES}")
    for name, value, low in (
        ("n_ctx", native.n_ctx, 0),
        ("n_batch", native.n_batch, 1),
        ("n_ubatch", native.n_ubatch, 1),
        ("yarn_orig_ctx", native.yarn_orig_ctx, 0),
    ):
        if not low <= value < 1 << 31:
            raise ModelFailed(model, f"{name} is {value}, it must be {low} to {(1 << 31) - 1}")
    if native.rope_scale < 0:
        raise ModelFailed(model, f"rope_scale is {native.rope_scale}, it must be positive")
    for name, kind in (("cache_type_k", native.cache_type_k), ("cache_type_v", native.cache_type_v)):
        if kind not in CACHE_TYPES:
            raise ModelFailed(model, f"{name} is '{kind}', not one of {', '.join(CACHE_TYPES)}")
    if native.cache_type_v not in _PLAIN_TYPES and native.flash_attn == "off":
        raise ModelFailed(
            model,
            f"cache_type_v is '{native.cache_type_v}', which needs flash attention: "
            "set flash_attn to auto or on, or cache_type_v to f16",
        )


def embedding_params(model: int, name: str, header: GgufHeader, native: LoadParams) -> ctypes.Structure:
    """Return the parameters of a context that embeds. Raises `ModelFailed`.

    KV is unified: with separate KV the library splits inputs of different lengths, and a part has another mean. An
    input that must not be split may have ``n_batch`` tokens, so ``n_ubatch`` is raised to that; llama-server instead
    lowers ``n_batch`` to an ``n_ubatch`` of 512.
    """
    pooling = pooling_of(header, native)
    if pooling is Pooling.RANK:
        _check_ranks(name, header, C.llama_model_get_vocab(model))
    params = context_params(name, native)
    params.embeddings = True
    params.pooling_type = POOLINGS.index(pooling)
    params.kv_unified = True
    params.n_outputs_max = 0  # every token is an output
    params.n_seq_max = n_seq = _n_seq(model, header, native, pooling)
    n_ctx = native.n_ctx or C.llama_model_n_ctx_train(model)
    if is_encoder(header):
        n_ctx, n_batch, n_ubatch = _encoder_sizes(native, n_ctx, n_seq)
    else:
        n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
        n_ctx, n_batch, n_ubatch = _decoder_sizes(native, n_ctx, n_seq, n_vocab, whole=_whole(header, pooling))
        if pooling is Pooling.NONE and generates(header, native):  # another context has the cells for generation
            n_ctx = max(min(n_ctx, n_batch), n_ubatch)
    params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_ubatch
    return params


def _encoder_sizes(native: LoadParams, n_ctx: int, n_seq: int) -> tuple[int, int, int]:
    """Return n_ctx, n_batch and n_ubatch. Encoders have no cells: n_ctx limits an input and the reserved graph."""
    n_batch = _multiple(max(native.n_batch, native.n_ubatch), n_seq)
    fits = _multiple(n_ctx, CELLS) % n_seq == 0
    return n_ctx if fits else max(n_ctx, n_batch), n_batch, n_batch


def _decoder_sizes(native: LoadParams, n_ctx: int, n_seq: int, n_vocab: int, *, whole: bool) -> tuple[int, int, int]:
    """Return n_ctx, n_batch and n_ubatch. `whole`: an input must not be split, so one ubatch has all cells."""
    n_batch, n_ubatch = max(native.n_batch, native.n_ubatch), native.n_ubatch
    if whole:
        n_batch = n_ubatch = max(n_ubatch, min(n_batch, _MAX_LOGITS // n_vocab))
        n_ctx = min(n_ctx, n_batch)
    n_ubatch = _multiple(min(n_ubatch, n_ctx), n_seq)
    return max(n_ctx, n_ubatch), max(n_batch, n_ubatch), n_ubatch


def _multiple(n: int, of: int) -> int:
    """Return the next multiple of `of`, without which mean pooling aborts. The library reserves its graph for a number
    of tokens that is rounded up to a multiple of the sequences, and for the outputs of the number before
    (llama-context.cpp, graph_reserve).
    """
    return -(-n // of) * of


def _n_seq(model: int, header: GgufHeader, native: LoadParams, pooling: Pooling) -> int:
    if pooling is Pooling.RANK and not _has_tensor(header, _HEAD_OUTPUT):
        # the library reads fewer numbers per sequence than this head computes: all but the first would be wrong
        return 1
    if native.n_parallel > 0:
        return native.n_parallel
    return AUTO_SLOTS if stateful(model) else AUTO_INPUTS


def _whole(header: GgufHeader, pooling: Pooling) -> bool:
    """Return whether an input must not be split (tools/server/server-context.cpp, can_split)."""
    causal = header.metadata.get(f"{header.architecture}.attention.causal", True)
    return is_encoder(header) or not causal or pooling not in _SPLITTABLE


def _check_ranks(name: str, header: GgufHeader, vocab: int) -> None:
    if not _has_tensor(header, _HEAD):
        raise ModelFailed(name, "pooling 'rank' needs a classification head, and the file has none; use a reranker")
    if C.llama_vocab_get_add_eos(vocab) and C.llama_vocab_eos(vocab) == C.llama_vocab_sep(vocab) == -1:
        raise ModelFailed(name, "the vocabulary has neither an EOS nor a SEP token, so it cannot rerank")


def _has_tensor(header: GgufHeader, prefix: str) -> bool:
    return header.integer("split.count") > 1 or any(tensor.name.startswith(prefix) for tensor in header.tensors)
