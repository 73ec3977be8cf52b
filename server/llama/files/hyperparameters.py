"""Values of a header that the library divides by, allocates from or asserts without looking: a wrong one would end the
process (src/llama-model.cpp, load_hparams; GGML_ASSERT calls abort)."""

import math
from pathlib import Path

from server.errors import ModelFailed
from server.llama.files.gguf_header import GgufHeader

_MOST_LAYERS, _MOST_EXPERTS = 512, 1024  # src/llama-hparams.h
_MOST_HEADS = (
    1 << 16
) - 1  # and elements of one: the library multiplies both in 32 bits, and a product that has wrapped fits
_OF_HEADS = (
    "head_count",
    "head_count_kv",
    *(f"{of}_length{kind}" for of in ("key", "value") for kind in ("", "_mla", "_swa")),
)
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_TWICE_AS_WIDE = ("jamba", "granitehybrid")
_FORGET_ONE_EXPERT = ("hunyuan-dense", "hunyuan_vl")  # they count a single expert as none, used or not


def check_hyperparameters(model: str, path: Path, header: GgufHeader, architecture: str) -> None:
    """Raises `ModelFailed` that names the key."""
    problem = (
        _out_of_range(header, architecture)
        or _bad_experts(header, architecture)
        or _bad_attention(header, architecture)
        or _bad_states(header, architecture)
        or _no_vocabulary(header)
    )
    if problem:
        raise ModelFailed(model, f"{path}: {problem}")


def _out_of_range(header: GgufHeader, architecture: str) -> str | None:
    for key, low, high in (
        ("block_count", 1, _MOST_LAYERS),
        ("expert_count", 0, _MOST_EXPERTS),
        ("nextn_predict_layers", 0, header.integer(f"{architecture}.block_count")),
        ("attention.sliding_window", 0, 1 << 30),
        ("embedding_length", 1, 1 << 24),
        ("context_length", 1, (1 << 31) - 1),
        ("rope.dimension_count", 2, _head_size(header, architecture)),
        *((f"attention.{key}", 0, _MOST_HEADS) for key in _OF_HEADS),
    ):
        full = f"{architecture}.{key}"
        value = header.metadata.get(full)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int) and not low <= each <= high:
                return f"{full} is {each}, outside {low} to {high}"
    return None


def _bad_experts(header: GgufHeader, architecture: str) -> str | None:
    n_expert = header.integer(f"{architecture}.expert_count")
    if architecture in _FORGET_ONE_EXPERT and n_expert <= 1:
        n_expert = n_used = 0
    else:
        n_used = _experts_used(header, architecture)
    if not min(n_expert, 1) <= n_used <= n_expert:
        return f"{architecture}.expert_used_count is {n_used}, outside {min(n_expert, 1)} to {n_expert}"
    key = f"{architecture}.expert_group_count"
    n_groups = header.integer(key)
    if not 0 <= n_groups <= max(n_expert - 1, 0) or (n_groups > 1 and n_expert % n_groups):
        return f"{key} is {n_groups}; {n_expert} experts can't be in as many groups"
    used_key = f"{architecture}.expert_group_used_count"
    n_groups_used = header.integer(used_key)
    if n_groups > 1 and not 0 < n_groups_used < n_groups:
        return f"{used_key} is {n_groups_used}, outside 1 to {n_groups - 1}"
    return None


def _experts_used(header: GgufHeader, architecture: str) -> int:
    """Return the largest number of experts used in a layer; 0 if the header does not say, as the library reads it."""
    value = header.metadata.get(f"{architecture}.expert_used_count", 0)
    layers = value if isinstance(value, tuple) else (value,)
    counts = [count for count in layers if isinstance(count, int)]
    return next((count for count in counts if count < 0), max(counts, default=0))


def _bad_attention(header: GgufHeader, architecture: str) -> str | None:
    if header.integer(f"{architecture}.rope.dimension_count") % 2:
        return f"{architecture}.rope.dimension_count is odd"
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = header.metadata.get(f"{architecture}.{key}", 0.0)
        if not isinstance(epsilon, float) or not 0.0 <= epsilon < math.inf:
            return f"{architecture}.{key} is {epsilon}, not a small positive number"
    scaling = header.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALING:
        return f"{architecture}.rope.scaling.type is '{scaling}', none of {', '.join(_ROPE_SCALING)}"
    window = f"{architecture}.attention.sliding_window"
    if header.integer(window) and header.integer(f"{window}_pattern") == 1:
        return f"{window}_pattern is 1: no layer would have the window"
    return None


def _bad_states(header: GgufHeader, architecture: str) -> str | None:
    """src/models/jamba.cpp, granite-hybrid.cpp."""
    n_embd, key = header.integer(f"{architecture}.embedding_length"), f"{architecture}.ssm.inner_size"
    if architecture in _TWICE_AS_WIDE and header.integer(key) != 2 * n_embd:
        return f"{key} is {header.integer(key)}, not twice the embedding's {n_embd}"
    return None


def _no_vocabulary(header: GgufHeader) -> str | None:
    """Whether the file has no vocabulary. The library loads it and aborts at the first token (src/llama-vocab.cpp)."""
    kind = header.metadata.get("tokenizer.ggml.model")
    return f"tokenizer.ggml.model is '{kind}': a file without a vocabulary" if kind in ("none", "no_vocab") else None


def _head_size(header: GgufHeader, architecture: str) -> int:
    """Return the largest number of rotated elements; 65536 if the header does not say."""
    n_head = header.integer(f"{architecture}.attention.head_count")
    divided = header.integer(f"{architecture}.embedding_length") // n_head if n_head else 1 << 16
    return max(divided, header.integer(f"{architecture}.attention.key_length"))
