"""LoRA adapters: checked against the model's tensors, then loaded.

The library reports most mistakes in its log. It aborts on a metadata value of an unexpected type, and in the
first decode on shapes that do not multiply (llama-adapter.cpp; llama-graph.cpp, build_lora_mm). Those are checked
here. An adapter is freed with its model.
"""

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.engine.lora import Adapter
from server.errors import ModelFailed
from server.llama.files.gguf_header import BLOCKS, GgufHeader, Tensor
from server.llama.files.model_file import ModelFiles, fingerprint, read_gguf
from server.llama.library import C, collect_errors, reason
from server.pool.spec import LoadParams, ScaledFile

TensorShape = tuple[int, ...]
_ALPHA, _INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"
_TYPES = {
    "general.type": "string",
    "general.architecture": "string",
    "adapter.type": "string",
    _ALPHA: "f32",
    _INVOCATION: "[u32]",
}
_NOT_MULTIPLIED = frozenset({24, 25, 26, 27, 28})  # integers and f64
_LOOKED_UP = "token_embd.weight"  # its rows are picked, so a and b change places
_UNUSED = "_norm.weight"  # llama.cpp leaves them out


@dataclass(frozen=True, slots=True)
class NativeAdapter:
    """A loaded adapter: its description, the library's pointer, and a hash of its file."""

    adapter: Adapter
    pointer: int
    fingerprint: str


def load_adapters(model: int, name: str, files: ModelFiles, native: LoadParams) -> tuple[NativeAdapter, ...]:
    """Return all of ``native.lora``, their places as ids. Before any context is made: the library sizes graphs by them.

    Raises `ModelFailed` that names the file.
    """
    shapes = {tensor.name: _padded(tensor) for _, header in files.parts for tensor in header.tensors}
    n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
    loaded = []
    for id_, file in enumerate(native.lora):
        header = read_gguf(name, file.path)
        problem = _problem(header, str(files.header.metadata["general.architecture"]), shapes, n_vocab)
        if problem:
            raise ModelFailed(name, f"{file.path}: {problem}")
        adapter = _adapter(id_, file, header, applied=not native.lora_init_without_apply)
        loaded.append(NativeAdapter(adapter, _load(model, name, file), fingerprint([(file.path, header)])))
    return tuple(loaded)


def apply_configured(context: int, model: str, loaded: Sequence[NativeAdapter]) -> None:
    """Make `context` compute with the scales of the configuration. Raises `ModelFailed` when the library refuses."""
    used = [native for native in loaded if native.adapter.scale != 0.0]
    if not used:
        return
    pointer = ctypes.POINTER(ctypes.c_void_p)
    pointers = (pointer * len(used))(*(ctypes.cast(native.pointer, pointer) for native in used))
    scales = (ctypes.c_float * len(used))(*(native.adapter.scale for native in used))
    if C.llama_set_adapters_lora(context, pointers, len(used), scales) != 0:
        raise ModelFailed(model, f"the library refused {', '.join(native.adapter.path for native in used)}")


def _load(model: int, name: str, file: ScaledFile) -> int:
    with collect_errors() as errors:
        pointer = ctypes.cast(C.llama_adapter_lora_init(model, os.fsencode(file.path)), ctypes.c_void_p).value
    if not pointer:
        raise ModelFailed(name, f"{file.path}: {reason(errors, 'the library gave no reason')}")
    return pointer


def _adapter(id_: int, file: ScaledFile, header: GgufHeader, *, applied: bool) -> Adapter:
    invocation = header.metadata.get(_INVOCATION, ())
    return Adapter(
        id=id_,
        path=str(file.path),
        scale=file.scale if applied else 0.0,
        task_name=_text(header, "adapter.lora.task_name"),
        prompt_prefix=_text(header, "adapter.lora.prompt_prefix"),
        alora_invocation_tokens=tuple(map(int, invocation)) if isinstance(invocation, tuple) else (),
    )


def _text(header: GgufHeader, key: str) -> str:
    value = header.metadata.get(key, "")
    return value if isinstance(value, str) else ""


def _problem(header: GgufHeader, architecture: str, shapes: Mapping[str, TensorShape], n_vocab: int) -> str:
    """Return why the library cannot take this adapter for this model; "" when it can."""
    for key, wanted in _TYPES.items():
        found = header.types.get(key, wanted)
        if found != wanted:
            return f"{key} is of type {found}, not {wanted}"
    kind, adapter_type = _text(header, "general.type"), _text(header, "adapter.type")
    if kind != "adapter" or adapter_type != "lora":
        return f"is no LoRA adapter (general.type is '{kind}', adapter.type '{adapter_type}')"
    made_for = _text(header, "general.architecture")
    if made_for != architecture:
        return f"is an adapter for the architecture '{made_for}', the model's is '{architecture}'"
    if not math.isfinite(float(str(header.metadata.get(_ALPHA, 0.0)))):
        return f"{_ALPHA} is not a finite number"
    return _invocation_problem(header, n_vocab) or _tensor_problem(header, shapes)


def _invocation_problem(header: GgufHeader, n_vocab: int) -> str:
    if _INVOCATION not in header.types:
        return ""
    tokens = header.metadata.get(_INVOCATION)
    if not isinstance(tokens, tuple):
        return f"{_INVOCATION} has {header.lengths[_INVOCATION]} tokens"
    outside = [token for token in tokens if int(token) >= n_vocab]
    return f"{_INVOCATION} has the token {outside[0]}, the vocabulary ends at {n_vocab - 1}" if outside else ""


def _tensor_problem(header: GgufHeader, shapes: Mapping[str, TensorShape]) -> str:
    pairs: dict[str, dict[str, Tensor]] = {}
    for tensor in header.tensors:
        stem, dot, part = tensor.name.rpartition(".")
        if dot and part in ("lora_a", "lora_b"):
            pairs.setdefault(stem, {})[part] = tensor
        elif not tensor.name.endswith(_UNUSED):
            return f"the tensor '{tensor.name}' is no part of a LoRA adapter"
        if tensor.type in _NOT_MULTIPLIED or tensor.type not in BLOCKS:
            return f"the tensor '{tensor.name}' is of type {tensor.type}, which is not for multiplying"
    for stem, pair in pairs.items():
        if len(pair) < 2:
            return f"'{stem}' has a {next(iter(pair))}, but not the other part"
        if stem not in shapes:
            return f"the model has no tensor '{stem}'; the adapter was made for another model"
        if not _multiplies(stem, shapes[stem], _padded(pair["lora_a"]), _padded(pair["lora_b"])):
            return f"'{stem}' has another shape than the model's; the adapter was made for another model"
    return ""


def _multiplies(stem: str, base: TensorShape, a: TensorShape, b: TensorShape) -> bool:
    """Return whether b * a has the shape of `base`; GGUF names the row's length first."""
    if stem.endswith(_LOOKED_UP):
        return (base[0], base[1], a[0]) == (b[1], a[1], b[0]) and a[2:] == b[2:] == base[2:]
    return (base[0], base[1], a[1]) == (a[0], b[1], b[0]) and a[2:] == b[2:] == base[2:]


def _padded(tensor: Tensor) -> TensorShape:
    return tensor.shape + (1,) * (4 - len(tensor.shape))
