"""How much of each device's memory a context and its model take, as the library counts its own buffers.

The library's function for it (``llama_get_memory_breakdown``, src/llama-ext.h) is C++ and returns a ``std::map``: a red
and black tree whose layout libstdc++ has kept since 2004 (bits/stl_tree.h). It is read here, and given back.
"""

import ctypes
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from server.llama.devices import CPU, device_of_buffers, split_over_several
from server.llama.library import C, bind
from server.pool.memory import HOST, Bytes, Footprint, added

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_ROOT, _COUNT = 2, 5  # words of the map: unused, the header's color, root, leftmost, rightmost, number of nodes
_LEFT, _RIGHT, _VALUE = 2, 3, 4  # words of a node: color, parent, left, right; buffer type and three sizes
_NODE_WORDS = 8
_Map = ctypes.c_size_t * 6


class Tree(ctypes.Structure):
    """``std::map`` by value; large enough that every calling convention returns it in memory, as C++ does."""

    _fields_ = [("words", _Map)]


def can_tell() -> bool:
    """Whether the library reports its memory: on Linux, whose builds use libstdc++."""
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
    """The words of every node of a map whose nodes have so many, in order; the map is freed."""
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
        """A new context."""
        taken = breakdown(context, self._used)
        with self._lock:
            self._contexts.append(without_weights(taken) if self._contexts else taken)

    def footprint(self) -> dict[str, Bytes]:
        """All together."""
        with self._lock:
            return added(self._contexts)


def without_weights(footprint: Footprint) -> Footprint:
    """Return the footprint of a further context over the same weights."""
    return {device: replace(taken, weights=0) for device, taken in footprint.items()}
