"""Converts `LoadParams` to the native context's parameters, and rejects values on which the library would abort."""

import ctypes
from dataclasses import dataclass
from types import MappingProxyType

from server.engine.params import LOOKUP, EngineParams
from server.errors import ModelFailed
from server.llama.library import C
from server.llama.threads import n_threads
from server.pool.spec import LoadParams, ModelSpec

CACHE_TYPES = MappingProxyType(
    {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
)  # llama.cpp common/arg.cpp, kv_cache_types
_PLAIN_TYPES = ("f32", "f16", "bf16")
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # enum llama_flash_attn_type
_ROPE_SCALING = {"": -1, "none": 0, "linear": 1, "yarn": 2}  # enum llama_rope_scaling_type
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
_MORE_LOGITS = 1 << 22
"""Numbers of logits that a batch may have for prompt tokens whose log probabilities are wanted: 16 MB of buffers, and
some milliseconds of the step that reads them; 27 tokens of a vocabulary of 152k."""
_MOST_MORE = 128


@dataclass(frozen=True, slots=True)
class Layout:
    """Slots and how they share the cells."""

    n_seq: int
    unified: bool


def layout(model: str, native: LoadParams) -> Layout:
    """Raises `ModelFailed` for a number of slots that the library refuses."""
    n_seq = native.n_slots
    if not 1 <= n_seq <= MAX_SEQUENCES:
        raise ModelFailed(model, f"n_parallel is {n_seq}, outside 1 to {MAX_SEQUENCES}")
    return Layout(n_seq, native.unified)


def more_outputs(n_vocab: int, n_seq: int, engine: EngineParams) -> int:
    """Return the outputs of a batch besides one per sequence: for drafts and prompt log probabilities. Default
    speculation uses those for prompts, so it needs no memory.
    """
    of_prompts = max(1, min(_MOST_MORE, _MORE_LOGITS // n_vocab))
    return of_prompts if engine.spec_type == LOOKUP else max(of_prompts, n_seq * engine.n_draft_max)


def stateful(model: int) -> bool:
    """Whether the model remembers by states, in some layers or all."""
    return bool(C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))


def windowed(model: int, native: LoadParams) -> bool:
    """Whether the cache drops cells that have left a sliding window."""
    return C.llama_model_n_swa(model) > 0 and not native.swa_full


def can_cut(model: int, native: LoadParams) -> bool:
    """Whether every end of a sequence can be forgotten: not with states, nor with windows that drop cells."""
    return not (windowed(model, native) or stateful(model))


def generator_params(model: int, spec: ModelSpec) -> ctypes.Structure:
    """Return the parameters of a context that generates. Raises `ModelFailed`."""
    n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
    params = context_params(spec.id, spec.native, more_outputs(n_vocab, spec.native.n_slots, spec.engine))
    if spec.engine.backend_sampling:  # the graph has a sampler for each of them
        params.n_outputs_max_per_seq = 1 + spec.engine.n_draft_max
    return params


def heads_params(model: int, spec: ModelSpec, target: int | None = None) -> ctypes.Structure:
    """Return the parameters of a context for MTP heads, besides the context `target`. Raises `ModelFailed`."""
    params = generator_params(model, spec)
    params.n_outputs_max, params.n_outputs_max_per_seq = params.n_seq_max, 1
    params.swa_full = True  # drafts can always be rolled back
    params.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
    params.ctx_other = target
    return params


def context_params(model: str, native: LoadParams, n_more_outputs: int = 0) -> ctypes.Structure:
    """Return the context parameters. All sequences together may have `n_more_outputs` outputs besides one each. Raises
    `ModelFailed`, which names the wrong setting.
    """
    shape = layout(model, native)
    _check(model, native)
    params: ctypes.Structure = C.llama_context_default_params()
    params.n_ctx = native.n_ctx
    params.n_seq_max = shape.n_seq
    params.kv_unified = shape.unified
    params.n_outputs_max = shape.n_seq + n_more_outputs
    params.n_outputs_max_per_seq = 1 + n_more_outputs
    params.n_batch = max(native.n_batch, shape.n_seq)
    params.n_ubatch = native.n_ubatch
    params.n_threads = n_threads(native.n_threads)
    params.n_threads_batch = params.n_threads if native.n_threads_batch < 0 else n_threads(native.n_threads_batch)
    params.flash_attn_type = _FLASH_ATTENTION[native.flash_attn]
    params.type_k = CACHE_TYPES[native.cache_type_k]
    params.type_v = CACHE_TYPES[native.cache_type_v]
    params.offload_kqv = native.kv_offload
    params.op_offload = native.op_offload
    params.swa_full = native.swa_full
    _rope(params, native)
    return params


def _rope(params: ctypes.Structure, native: LoadParams) -> None:
    params.rope_scaling_type = _ROPE_SCALING[native.rope_scaling]
    params.rope_freq_base = native.rope_freq_base
    # --rope-scale N is 1/N as frequency scale (llama.cpp common/arg.cpp)
    params.rope_freq_scale = 1.0 / native.rope_scale if native.rope_scale else native.rope_freq_scale
    params.yarn_orig_ctx = native.yarn_orig_ctx
    params.yarn_ext_factor = native.yarn_ext_factor
    params.yarn_attn_factor = native.yarn_attn_factor
    params.yarn_beta_slow = native.yarn_beta_slow
    params.yarn_beta_fast = native.yarn_beta_fast


def _check(model: str, native: LoadParams) -> None:
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
