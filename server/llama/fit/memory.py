"""Free memory, and whether a KV cache certainly does not fit it; otherwise the kernel would kill the process."""

import ctypes
from collections.abc import Mapping

from server.errors import ModelFailed
from server.llama.devices import device_memory
from server.llama.files.gguf_header import BLOCKS, GgufHeader
from server.llama.files.roles import roles
from server.llama.fit.choose import DeviceBudget, ModelShape
from server.pool.memory import HOST, Memory
from server.pool.spec import LoadParams
from server.sandbox.memory import available_bytes, total_bytes

_GIB = 1 << 30
# caches of another shape: sliding windows, latent attention, recurrent states
_OTHER_SHAPES = ("attention.sliding_window", "attention.kv_lora_rank", "ssm.state_size", "wkv.head_size")


def check_kv_fits(
    model: str, header: GgufHeader, params: ctypes.Structure, n_ctx_train: int, *, offloaded: bool
) -> None:
    """Raises `ModelFailed` with both numbers when the cache certainly does not fit. Silent where it cannot know:
    of the memory of devices, where some are `offloaded` to."""
    if offloaded and params.offload_kqv:
        return
    per_cell = kv_bytes_per_cell(header, params.type_k, params.type_v)
    available = available_bytes()
    n_cells = params.n_ctx or n_ctx_train
    if per_cell * n_cells > available > 0:
        raise ModelFailed(
            model,
            f"the KV cache for n_ctx {n_cells} needs {per_cell * n_cells / _GIB:.1f} GiB, "
            f"{available / _GIB:.1f} GiB of memory are available: set a smaller n_ctx or a smaller cache_type_k/v",
        )


def kv_bytes_per_cell(header: GgufHeader, type_k: int, type_v: int) -> int:
    """Bytes of keys and values that one token takes in all layers, 0 where the model's cache has another shape."""
    arch = header.metadata.get("general.architecture")
    if any(f"{arch}.{key}" in header.metadata for key in _OTHER_SHAPES):
        return 0
    n_layer = header.integer(f"{arch}.block_count")
    n_head = header.integer(f"{arch}.attention.head_count")
    n_embd = header.integer(f"{arch}.embedding_length")
    if not (n_layer and n_head and n_embd):
        return 0
    heads_kv = header.metadata.get(f"{arch}.attention.head_count_kv", n_head)
    n_heads_kv = sum(map(int, heads_kv)) if isinstance(heads_kv, tuple) else int(heads_kv) * n_layer
    k_len = header.integer(f"{arch}.attention.key_length", n_embd // n_head)
    v_len = header.integer(f"{arch}.attention.value_length", n_embd // n_head)
    return _row_bytes(n_heads_kv * k_len, type_k) + _row_bytes(n_heads_kv * v_len, type_v)


def _row_bytes(n_elements: int, kind: int) -> int:
    per_block, block_bytes = BLOCKS[kind]
    return n_elements * block_bytes // per_block


def shape_of(header: GgufHeader, native: LoadParams) -> ModelShape:
    """Return the shape of a model that is loaded with these parameters."""
    arch = header.metadata.get("general.architecture")
    return ModelShape(
        n_ctx_train=header.integer(f"{arch}.context_length"),
        n_layer=header.integer(f"{arch}.block_count"),
        has_experts=header.integer(f"{arch}.expert_count") > 0,
        n_streams=1 if native.unified or not roles(header, native).generates else native.n_slots,
    )


def machine_memory() -> dict[str, Memory]:
    """Return the memory of every device that reports it, and of RAM under `HOST`."""
    found = device_memory()
    if available := available_bytes():
        found[HOST] = Memory(total_bytes(available), available)
    return found


def room(native: LoadParams, granted: Mapping[str, int]) -> DeviceBudget:
    """Return what a model may take: free memory minus ``fit_target``, at most `granted`."""
    now = machine_memory()
    devices = [name for name in now if name != HOST]
    targets = native.fit_target * (len(devices) if len(native.fit_target) == 1 else 1)
    kept = {name: mib << 20 for name, mib in zip(devices, targets, strict=False)}
    if not devices:
        kept[HOST] = native.fit_target[0] << 20
    tight = {name: min(memory.free, granted.get(name, memory.free)) for name, memory in now.items()}
    ample = {name: min(tight[name], memory.free - kept.get(name, 0)) for name, memory in now.items()}
    return DeviceBudget(ample, tight)
