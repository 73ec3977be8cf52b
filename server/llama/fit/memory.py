"""Memory: what is free, and how much a context and its model take, as the library counts its own buffers.

The library's function for the latter (``llama_get_memory_breakdown``, src/llama-ext.h) is C++ and returns a
``std::map``: a red-black tree whose layout libstdc++ has kept since 2004 (bits/stl_tree.h). It is read here and freed.
"""

import ctypes
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from server.errors import ModelFailed
from server.llama.devices import CPU, device_memory, device_of_buffers, split_over_several
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.roles import roles
from server.llama.fit.choose import DeviceBudget, ModelShape
from server.llama.library import C, bind
from server.pool.memory import HOST, Bytes, Footprint, Memory, added, readable
from server.pool.spec import LoadParams
from server.sandbox.memory import available_bytes, total_bytes

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_ROOT, _COUNT = 2, 5  # words of the map: unused, the header's color, root, leftmost, rightmost, number of nodes
_LEFT, _RIGHT, _VALUE = 2, 3, 4  # words of a node: color, parent, left, right; buffer type and three sizes
_NODE_WORDS = 8
_Map = ctypes.c_size_t * 6


class Tree(ctypes.Structure):
    """``std::map`` by value; large enough that every calling convention returns it in memory, as C++ does."""

    _fields_ = [("words", _Map)]


def can_tell() -> bool:
    """Return whether the library reports its memory: on Linux, whose builds use libstdc++."""
    return sys.platform == "linux" and hasattr(C._lib, _SYMBOL)


def breakdown(context: int, used: Sequence[str] = ()) -> dict[str, Bytes]:
    """Return the memory by device of the model (counted once) and of this context, computed on these devices besides
    the CPU. Empty if `can_tell` is false.
    """
    if not can_tell():
        return {}
    tree = bind(C._lib, _SYMBOL, Tree, ctypes.c_void_p)(context)
    entries = [words[_VALUE:] for words in tree_nodes(tree, _NODE_WORDS)]
    return added({name: Bytes(*sizes)} for buffers, *sizes in entries for name in _devices(buffers, used))


def tree_nodes(tree: Tree, n_words: int) -> list[list[int]]:
    """Return the words of every node of a map whose nodes have so many, in order; the map is freed."""
    nodes = list(_nodes(tree.words[_ROOT]))
    delete = bind(C._lib, "_ZdlPv", None, ctypes.c_void_p)  # operator delete
    found = [_words(node, n_words) for node in nodes]
    for node in nodes:
        delete(node)
    assert len(found) == tree.words[_COUNT], "the library's map has another layout"
    return found


def _words(node: int, n_words: int) -> list[int]:
    return list((ctypes.c_size_t * n_words).from_address(node))


def _nodes(node: int) -> Iterator[int]:
    if node:
        words = _words(node, _VALUE)
        yield from _nodes(words[_LEFT])
        yield node
        yield from _nodes(words[_RIGHT])


def _devices(buffer_type: int, used: Sequence[str]) -> Sequence[str]:
    if split_over_several(buffer_type):
        return used
    device = device_of_buffers(buffer_type)
    return [HOST if device is None or device.type == CPU else device.name]


class Taken:
    """The memory that the contexts of one model and its weights take. Contexts are added from several threads."""

    def __init__(self, used: Sequence[str]) -> None:
        """Create it for the devices `used` besides the CPU."""
        self._used = used
        self._lock = threading.Lock()
        self._contexts: list[Footprint] = []

    def count(self, context: int) -> None:
        """Add the memory of a new context."""
        taken = breakdown(context, self._used)
        with self._lock:
            self._contexts.append(without_weights(taken) if self._contexts else taken)

    def footprint(self) -> dict[str, Bytes]:
        """Return the sum of all contexts."""
        with self._lock:
            return added(self._contexts)


def with_shared(footprint: Footprint) -> Footprint:
    """Return the footprint of a model whose weights other entries may share."""
    return {device: replace(taken, shared=taken.weights) for device, taken in footprint.items()}


def without_shared(footprint: Footprint) -> Footprint:
    """Return what an entry takes that finds its weights loaded."""
    return {device: replace(each, weights=each.weights - each.shared, shared=0) for device, each in footprint.items()}


def without_weights(footprint: Footprint) -> Footprint:
    """Return the footprint of a further context over the same weights."""
    return {device: replace(taken, weights=0) for device, taken in footprint.items()}


def check_context_fits(model: str, footprint: Footprint) -> None:
    """Raise `ModelFailed` if the contexts need more RAM than is available; otherwise the kernel would end the process.
    Weights do not count, because their pages can be read again from the file.
    """
    taken, available = footprint.get(HOST, Bytes()), available_bytes()
    needed = taken.context + taken.compute
    if needed > available > 0:
        raise ModelFailed(
            model,
            f"its context needs {readable(needed)}, {readable(available)} of memory are available: set a smaller n_ctx "
            "or a smaller cache_type_k/v",
        )


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
