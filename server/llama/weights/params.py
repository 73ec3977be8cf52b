"""Converts `LoadParams` to the native model's parameters, and buffer types for tensors
(``llama_model_params.tensor_buft_overrides``).

The library compiles those patterns itself; `tensor_patterns` has verified that they mean the same here. The library
aborts if a context cannot compute with a tensor in its buffer, so such overrides are rejected here.
"""

import ctypes
import re

from server.errors import ModelFailed
from server.llama.devices import (
    buffer_types,
    check_buffer_types,
    cpu_buffer_type,
    device_array,
    offloads,
    used_devices,
)
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.model_file import ModelFiles, metadata_array
from server.llama.library import C
from server.pool.spec import LoadParams, TensorOverride
from server.pool.tensor_patterns import compiled

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # llama.cpp common/common.h, LLM_FFN_EXPS_REGEX
DENSE = r"\.ffn_(up|down|gate)\."  # LLM_FFN_DENSE_REGEX
_LOOKED_UP = re.compile(r"(token_embd|position_embd|token_types|per_layer_token_embd)\b")  # LLM_TENSOR_LAYER_INPUT
_F32 = 0  # enum ggml_type
_NORM_OR_BIAS = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?.*(?:norm(?:_\w+)?\.weight|\.bias)")


class _Override(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


def overrides(native: LoadParams, header: GgufHeader) -> list[TensorOverride]:
    """Return all overrides by precedence. Omits missing layers, because each override is a regex match per tensor."""
    n_layer = header.of_model("block_count")
    all_overrides = [*native.tensor_overrides, *([TensorOverride(EXPERTS, "CPU")] if native.cpu_moe else [])]
    for n, pattern in ((native.n_cpu_moe, EXPERTS), (native.n_cpu_ffn, DENSE)):
        all_overrides += [TensorOverride(rf"blk\.{layer}{pattern}", "CPU") for layer in range(min(n, n_layer))]
    return all_overrides


def override_array(native: LoadParams, files: ModelFiles) -> "ctypes.Array[_Override] | None":
    """Return the native array, terminated by an empty entry; None without overrides. Raises ValueError."""
    wanted = overrides(native, files.header)
    if not wanted:
        return None
    check_buffer_types([each.buffer_type for each in wanted])
    known, in_ram, used = buffer_types(), cpu_buffer_type(), used_devices(native)
    for each in wanted:
        device, pointer = known[each.buffer_type]
        if pointer != in_ram and device not in used:
            raise ValueError(f"'{each.buffer_type}' belongs to {device.name}, which is not among the model's devices")
    _check_lookups(wanted, [tensor.name for tensor in files.tensors])
    entries = [_Override(each.pattern.encode(), known[each.buffer_type][1]) for each in wanted]
    return (_Override * (len(entries) + 1))(*entries, _Override(None, None))


def _check_lookups(wanted: list[TensorOverride], names: list[str]) -> None:
    """Raise ValueError if a tensor whose rows are looked up leaves the CPU: devices can do that for few types only."""
    for name in filter(_LOOKED_UP.match, names):
        first = next((each for each in wanted if compiled(each.pattern).search(name)), None)
        if first is not None and first.buffer_type != "CPU":
            raise ValueError(
                f"'{first.pattern}' puts {name} on {first.buffer_type}, and it must stay on the CPU; "
                f"write {name}=CPU before it"
            )


def check_computable(model: str, native: LoadParams, files: ModelFiles) -> None:
    """Raise `ModelFailed` if a norm or bias of a layer on the CPU is not F32: the library would abort
    (ggml-cpu/binary-ops.cpp).
    """
    n_layer = files.header.of_model("block_count")
    n_offloaded = (native.n_gpu_layers if native.n_gpu_layers >= 0 else n_layer + 1) if offloads(native) else 0
    for path, header in files.parts:
        for tensor in header.tensors:
            found = _NORM_OR_BIAS.fullmatch(tensor.name) if tensor.type != _F32 else None
            if found and int(found["layer"] or n_layer) <= n_layer - n_offloaded:
                raise ModelFailed(
                    model,
                    f"{path}: the tensor '{tensor.name}' is of type {tensor.type}, with which no CPU computes; convert "
                    "the file again with norms and biases as F32, or compute this layer on a GPU",
                )


SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}  # enum llama_split_mode
LAZY_MODES = {"off": 0, "auto": 1, "on": 2}  # enum llama_lazy_mode
_LOAD_MODES = {(False, False): 0, (False, True): -1, (True, False): 2, (True, True): 3}
"""Members of enum llama_load_mode for ``mlock`` and ``mmap``."""


def model_params(model: str, native: LoadParams, files: ModelFiles) -> ctypes.Structure:
    """Return the parameters for the first device set. They hold references to their arrays. Raises `ModelFailed`."""
    params: ctypes.Structure = C.llama_model_default_params()
    params.n_gpu_layers = native.n_gpu_layers if native.n_gpu_layers >= 0 else -1
    names = native.devices[0]
    if names is not None:
        try:
            params.devices = ctypes.cast(device_array(names), ctypes.c_void_p)
        except ValueError as error:
            raise ModelFailed(model, f"device: {error}") from None
    try:
        overrides = override_array(native, files)
    except ValueError as error:
        raise ModelFailed(model, f"override_tensor: {error}") from None
    if overrides is not None:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    params.no_host = native.no_host
    params.load_mtp = native.mtp
    if native.metadata_overrides:
        params.kv_overrides = metadata_array(native.metadata_overrides)
    params.split_mode = SPLIT_MODES[native.split_mode]
    params.main_gpu = native.main_gpu
    params.load_mode = _LOAD_MODES[native.mlock, native.mmap]
    params.check_tensors = native.check_tensors
    params.use_extra_bufts = native.repack
    params.lazy_mode = LAZY_MODES[native.lazy_mode]
    if native.tensor_split:
        n_max = C.LLAMA_MAX_DEVICES
        if len(native.tensor_split) > n_max:
            raise ModelFailed(model, f"tensor_split has {len(native.tensor_split)} parts, at most {n_max} are possible")
        # the library reads it only during the load, until when `params` references it
        params.tensor_split = (ctypes.c_float * n_max)(*native.tensor_split)
    return params
