"""Checks the files of a model before the native library opens them, and identifies their contents.

The library divides by some values of a header, allocates memory by them or asserts on them. A wrong value ends the
process (src/llama-model.cpp, load_hparams; GGML_ASSERT aborts).
"""

import ctypes
import hashlib
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from server.errors import ModelFailed
from server.llama.files.gguf_header import BLOCKS, NOT_MULTIPLIED, BrokenFileError, GgufHeader, Tensor, read_header
from server.llama.library import C
from server.pool.spec import MetadataOverride

SAMPLE_BYTES = 256
_DIGEST_BYTES = 16
_SPLIT = re.compile(r"^(?P<prefix>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The path and header of a model's first file, and the same of all ``parts``, which the library finds by name."""

    path: Path
    header: GgufHeader
    parts: tuple[tuple[Path, GgufHeader], ...]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of all parts."""
        return [tensor for _, header in self.parts for tensor in header.tensors]


def check_files(model: str, path: Path, overrides: Sequence[MetadataOverride] = ()) -> ModelFiles:
    """Read and check every part's header, with `overrides` in the first. Raises `ModelFailed`."""
    header = _with_overrides(model, read_gguf(model, path), overrides)
    count = header.integer("split.count")
    others = _other_parts(model, path, header, count) if count > 1 else []
    if not header.architecture:
        raise ModelFailed(model, f"{path}: the file names no architecture (general.architecture)")
    if problem := _problem(header):
        raise ModelFailed(model, f"{path}: {problem}")
    parts = ((path, header), *others)
    for part, part_header in parts:
        if problem := bad_tensor(part_header):
            raise ModelFailed(model, f"{part}: {problem}")
    return ModelFiles(path, header, parts)


def read_gguf(model: str, path: Path) -> GgufHeader:
    """Return the header of one file. Raises `ModelFailed` that names it."""
    try:
        if path.is_dir():
            raise ModelFailed(model, f"{path} is a folder, not a GGUF file")
        return read_header(path)
    except FileNotFoundError:
        raise ModelFailed(model, f"{path} does not exist") from None
    except PermissionError:
        raise ModelFailed(model, f"{path} cannot be read (permissions)") from None
    except OSError as error:
        raise ModelFailed(model, f"{path} cannot be read: {error.strerror or error}") from error
    except BrokenFileError as error:
        raise ModelFailed(model, f"{path}: {error}") from error


def _other_parts(model: str, path: Path, header: GgufHeader, count: int) -> list[tuple[Path, GgufHeader]]:
    """Return the path and header of each part of a split model, except the first. Raises `ModelFailed`."""
    name = _SPLIT.match(path.name)
    if name is None:
        raise ModelFailed(model, f"{path}: one of {count} parts, but it is not named <name>-00001-of-{count:05d}.gguf")
    if header.integer("split.no") != 0 or int(name["no"]) != 1:
        first = f"{name['prefix']}-00001-of-{name['count']}.gguf"
        raise ModelFailed(model, f"{path} is not the first of {count} parts; the path must name {first}")
    parts = [path.with_name(f"{name['prefix']}-{no:05d}-of-{count:05d}.gguf") for no in range(2, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelFailed(model, f"{path}: of {count} parts, {len(missing)} are missing: {', '.join(missing[:5])}")
    return [(part, read_gguf(model, part)) for part in parts]


def fingerprint(files: Iterable[tuple[Path, GgufHeader]], overrides: Sequence[object] = ()) -> str:
    """Return a hash of headers (metadata, vocabulary, tensors), `overrides` of their values, file sizes, and the end of
    every tensor, where fine-tunes differ. File names and paths do not count.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path, header in files:
        with path.open("rb") as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            digest.update(size.to_bytes(8, "little"))
            digest.update(os.pread(descriptor, header.n_bytes, 0))
            for tensor in header.tensors:
                start = max(tensor.end - SAMPLE_BYTES, header.n_bytes)
                digest.update(os.pread(descriptor, tensor.end - start, start))
    if overrides:
        digest.update(repr(overrides).encode())
    return digest.hexdigest()


_MAX_LAYERS, _MAX_EXPERTS = 512, 1024  # src/llama-hparams.h
_MAX_HEADS = 0xFFFF  # also of a head's size: the library multiplies both in 32 bits and does not detect an overflow
_HEAD_KEYS = (
    "head_count",
    "head_count_kv",
    *(f"{of}_length{kind}" for of in ("key", "value") for kind in ("", "_mla", "_swa")),
)
_EXPERT_TABLE = "ffn_gate_tid2eid"  # integers: experts by token; the only other integer tensor is a draft model's d2t
_ROPE_SCALING = ("none", "linear", "yarn", "longrope")
_TWICE_AS_WIDE = ("jamba", "granitehybrid")  # src/models/jamba.cpp, granite-hybrid.cpp
_WIDER = ("deepseek4", "gemma4-assistant", "qwen4exp")
_SQUARE = frozenset(
    {
        *("arctic", "baichuan", "bert", "bitnet", "chameleon", "codeshell", "cohere2", "command-r", "deepseek"),
        *("dream", "eurobert", "grok", "internlm2", "jamba", "jina-bert-v2", "jina-bert-v3", "lfm2", "lfm2moe"),
        *("llada-moe", "nemotron", "nomic-bert", "nomic-bert-moe", "olmo", "olmo2", "olmoe", "orion", "phi2"),
        *("phi3", "phimoe", "plamo", "qwen2", "qwen2moe", "qwen2vl", "stablelm", "starcoder2", "xverse"),
    }
)
"""Architectures whose queries have the size of an embedding, whatever the heads (src/models: create_tensor_qkv)."""
_PROJECTION = "dense_2_out.weight"  # of embeddings, in lfm2
_IGNORE_ONE_EXPERT = ("hunyuan-dense", "hunyuan_vl")  # architectures that treat a single expert as none


def _problem(header: GgufHeader) -> str | None:
    """Return the key and the problem of the first wrong value in a header; None if there is none."""
    kind = header.metadata.get("tokenizer.ggml.model")
    if kind in ("none", "no_vocab"):  # the library loads it, but aborts at the first token (src/llama-vocab.cpp)
        return f"tokenizer.ggml.model is '{kind}': a file without a vocabulary"
    checks = (_out_of_range, _bad_experts, _bad_attention, _bad_widths)
    return next(filter(None, (check(header) for check in checks)), None)


def bad_tensor(header: GgufHeader) -> str | None:
    """Return the name and type of the first tensor whose type makes the library abort during computation; None if there
    is none (ggml-cpu.c, type_traits_cpu; binary-ops.cpp).
    """
    for tensor in header.tensors:
        is_table = tensor.name == "d2t" or _EXPERT_TABLE in tensor.name
        if tensor.type in NOT_MULTIPLIED and not is_table:
            return f"the tensor '{tensor.name}' is of type {tensor.type}, which is not for computing"
        if len(tensor.shape) == 1 and BLOCKS[tensor.type][0] > 1:
            return f"the tensor '{tensor.name}' is a single row of the quantized type {tensor.type}"
    return None


def _out_of_range(header: GgufHeader) -> str | None:
    for key, low, high in (
        ("block_count", 1, _MAX_LAYERS),
        ("expert_count", 0, _MAX_EXPERTS),
        ("nextn_predict_layers", 0, header.of_model("block_count")),
        ("attention.sliding_window", 0, 1 << 30),
        ("embedding_length", 1, 1 << 24),
        ("context_length", 1, (1 << 31) - 1),
        ("rope.dimension_count", 2, _head_size(header)),
        ("rope.dimension_count_swa", 2, header.of_model("attention.key_length_swa") or _head_size(header)),
        *((f"attention.{key}", 0, _MAX_HEADS) for key in _HEAD_KEYS),
    ):
        full = f"{header.architecture}.{key}"
        value = header.metadata.get(full)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int) and not low <= each <= high:
                return f"{full} is {each}, outside {low} to {high}"
    return None


def _bad_experts(header: GgufHeader) -> str | None:
    n_expert = header.of_model("expert_count")
    if header.architecture in _IGNORE_ONE_EXPERT and n_expert <= 1:
        n_expert = n_used = 0
    else:
        n_used = _experts_used(header)
    if not min(n_expert, 1) <= n_used <= n_expert:
        return f"{header.architecture}.expert_used_count is {n_used}, outside {min(n_expert, 1)} to {n_expert}"
    key = f"{header.architecture}.expert_group_count"
    n_groups = header.integer(key)
    if not 0 <= n_groups <= max(n_expert - 1, 0) or (n_groups > 1 and n_expert % n_groups):
        return f"{key} is {n_groups}; {n_expert} experts can't be in as many groups"
    used_key = f"{header.architecture}.expert_group_used_count"
    n_groups_used = header.integer(used_key)
    if n_groups > 1 and not 0 < n_groups_used < n_groups:
        return f"{used_key} is {n_groups_used}, outside 1 to {n_groups - 1}"
    return None


def _experts_used(header: GgufHeader) -> int:
    """Return the largest number of experts used in a layer; 0, as in the library, if the header has none."""
    value = header.metadata.get(f"{header.architecture}.expert_used_count", 0)
    layers = value if isinstance(value, tuple) else (value,)
    counts = [count for count in layers if isinstance(count, int)]
    return next((count for count in counts if count < 0), max(counts, default=0))


def _bad_attention(header: GgufHeader) -> str | None:
    for key in ("rope.dimension_count", "rope.dimension_count_swa"):
        if header.of_model(key) % 2:
            return f"{header.architecture}.{key} is odd"
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = header.metadata.get(f"{header.architecture}.{key}", 0.0)
        if not isinstance(epsilon, float) or not 0.0 <= epsilon < math.inf:
            return f"{header.architecture}.{key} is {epsilon}, not a small positive number"
    scaling = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    if isinstance(scaling, str) and scaling not in _ROPE_SCALING:
        return f"{header.architecture}.rope.scaling.type is '{scaling}', none of {', '.join(_ROPE_SCALING)}"
    window = f"{header.architecture}.attention.sliding_window"
    pattern = header.metadata.get(f"{window}_pattern")
    if header.integer(window) and (pattern == 1 or (isinstance(pattern, tuple) and not any(pattern))):
        return f"{window}_pattern is {pattern}: no layer would have the window"
    return None


def _bad_widths(header: GgufHeader) -> str | None:
    """Return the size that does not match the embedding's, if any: of all heads, recurrent states, or the output
    (n_embd_out). A context reads n_embd_out values even if the model computes fewer.
    """
    kind, n_embd = header.architecture, header.of_model("embedding_length")
    n_heads = header.of_model("attention.head_count")
    size = header.of_model("attention.key_length") or n_embd // max(n_heads, 1)
    if kind in _SQUARE and n_heads and n_heads * size != n_embd:
        return f"{kind}.attention.head_count is {n_heads}: so many heads of {size} are not the embedding's {n_embd}"
    n_inner = header.of_model("ssm.inner_size")
    if kind in _TWICE_AS_WIDE and n_inner != 2 * n_embd:
        return f"{kind}.ssm.inner_size is {n_inner}, not twice the embedding's {n_embd}"
    n_out = header.of_model("embedding_length_out")
    is_wider = kind in _WIDER or any(tensor.name == _PROJECTION for tensor in header.tensors)
    if n_out > n_embd and not is_wider:
        return f"{kind}.embedding_length_out is {n_out}, more than the {n_embd} values of an embedding"
    return None


def _head_size(header: GgufHeader) -> int:
    """Return the largest valid number of rotated elements; 65536 if the header has no number of heads."""
    n_head = header.of_model("attention.head_count")
    divided = header.of_model("embedding_length") // n_head if n_head else 1 << 16
    return max(divided, header.of_model("attention.key_length"))


_OVERRIDES: dict[type, tuple[int, str, tuple[str, ...]]] = {
    int: (0, "val_i64", ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")),
    float: (1, "val_f64", ("f32", "f64")),
    bool: (2, "val_bool", ("bool",)),
    str: (3, "val_str", ("string",)),
}
"""For each Python type of an override: enum llama_model_kv_override_type, the member for the value, and the GGUF types
that it can replace."""
_MAX_INT = (1 << 31) - 1  # the library stores integers in 32 bits and truncates others


def _with_overrides(model: str, header: GgufHeader, overrides: Sequence[MetadataOverride]) -> GgufHeader:
    """Return `header` with `overrides`. Raises `ModelFailed` if a value has another type than in the file, because the
    library would ignore the override.
    """
    for each in overrides:
        kind, in_file = type(each.value), header.types.get(each.key)
        if in_file is not None and in_file not in _OVERRIDES[kind][2]:
            raise ModelFailed(model, f"override_kv: '{each.key}' is of type {in_file} in the file, not {kind.__name__}")
        if kind is int and in_file is not None and in_file.startswith("u") and int(each.value) < 0:
            raise ModelFailed(model, f"override_kv: '{each.key}' is {each.value}, less than 0")
        if kind is int and not -_MAX_INT <= int(each.value) <= _MAX_INT:
            raise ModelFailed(model, f"override_kv: '{each.key}' is {each.value}, more than 32 bits")
    return replace(header, metadata={**header.metadata, **{each.key: each.value for each in overrides}})


def metadata_array(overrides: Sequence[MetadataOverride]) -> "ctypes.Array[ctypes.Structure]":
    """Return the native array, terminated by an entry with an empty key."""
    array = (C.llama_model_kv_override * (len(overrides) + 1))()
    for entry, each in zip(array, overrides, strict=False):
        entry.key = each.key.encode()
        entry.tag, member, _ = _OVERRIDES[type(each.value)]
        setattr(entry.value, member, each.value.encode() if isinstance(each.value, str) else each.value)
    result: ctypes.Array[ctypes.Structure] = array
    return result
