"""Buffer types for single tensors: ``llama_model_params.tensor_buft_overrides``.

The library compiles the patterns itself; `tensor_patterns` has seen that they mean the same here. It does not look at
whether a context can compute with a tensor where it was put, and ends the process when none can: that is refused here.
"""

import ctypes
import re
from collections.abc import Iterable

from server.llama.devices import buffer_types, check_buffer_types, processor_buffer_type, used_devices
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.model_file import ModelFiles
from server.pool.spec import LoadParams, TensorOverride
from server.pool.tensor_patterns import compiled

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # llama.cpp common/common.h, LLM_FFN_EXPS_REGEX
DENSE = r"\.ffn_(up|down|gate)\."  # LLM_FFN_DENSE_REGEX
_LOOKED_UP = re.compile(r"(token_embd|position_embd|token_types|per_layer_token_embd)\b")  # LLM_TENSOR_LAYER_INPUT


class _Override(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


def overrides(native: LoadParams, header: GgufHeader) -> list[TensorOverride]:
    """All of them, in the order in which they count."""
    return [each for _, group in _by_setting(native, header) for each in group]


def _by_setting(native: LoadParams, header: GgufHeader) -> list[tuple[str, list[TensorOverride]]]:
    """What each setting asks for. Layers that the model does not have are left out: the library compiles every pattern
    for every tensor."""
    n_layer = header.integer(f"{header.metadata.get('general.architecture')}.block_count")
    found = [(f"override_tensor {each.pattern}", [each]) for each in native.tensor_overrides]
    if native.cpu_moe:
        found.append(("cpu_moe", [TensorOverride(EXPERTS, "CPU")]))
    for name, n, pattern in (("n_cpu_moe", native.n_cpu_moe, EXPERTS), ("n_cpu_ffn", native.n_cpu_ffn, DENSE)):
        if n:
            layers = range(min(n, n_layer))
            found.append((name, [TensorOverride(rf"blk\.{layer}{pattern}", "CPU") for layer in layers]))
    return found


def override_array(native: LoadParams, files: ModelFiles) -> "ctypes.Array[_Override] | None":
    """What the library gets, ended by an empty entry, and None without any; must be referenced until the model is
    loaded. Raises ValueError."""
    wanted = overrides(native, files.header)
    if not wanted:
        return None
    check_buffer_types([each.buffer_type for each in wanted])
    known, processor, used = buffer_types(), processor_buffer_type(), used_devices(native)
    for each in wanted:
        device, pointer = known[each.buffer_type]
        if pointer != processor and device not in used:
            raise ValueError(f"'{each.buffer_type}' belongs to {device.name}, which is not among the model's devices")
    _refuse_lookups(wanted, tensor_names(files))
    entries = [_Override(each.pattern.encode(), known[each.buffer_type][1]) for each in wanted]
    return (_Override * (len(entries) + 1))(*entries, _Override(None, None))


def tensor_names(files: ModelFiles) -> list[str]:
    """Of all parts."""
    return [tensor.name for _, header in files.parts for tensor in header.tensors]


def without_match(native: LoadParams, files: ModelFiles) -> list[str]:
    """Settings of which no tensor's name has a match."""
    names = tensor_names(files)
    return [setting for setting, wanted in _by_setting(native, files.header) if not _any_match(wanted, names)]


def _any_match(wanted: Iterable[TensorOverride], names: list[str]) -> bool:
    searches = [compiled(each.pattern).search for each in wanted]
    return any(search(name) for search in searches for name in names)


def _refuse_lookups(wanted: list[TensorOverride], names: list[str]) -> None:
    """Rows of these tensors are looked up, which devices can do for few types only."""
    for name in filter(_LOOKED_UP.match, names):
        first = next((each for each in wanted if compiled(each.pattern).search(name)), None)
        if first is not None and first.buffer_type != "CPU":
            raise ValueError(
                f"'{first.pattern}' puts {name} on {first.buffer_type}, and it must stay on the processor; "
                f"write {name}=CPU before it"
            )
