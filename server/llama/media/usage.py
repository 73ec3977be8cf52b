"""How much of each device's memory a projector takes: the library prepares it without allocating (``no_alloc``).

The function (mtmd.h, mtmd_get_memory_usage) is C++ and returns a ``std::map``, which is read as in `fit.breakdown`.
"""

import ctypes
import sys
from pathlib import Path

from server.llama.devices import CPU, devices
from server.llama.files.model_file import read_gguf
from server.llama.fit.breakdown import Tree, tree_nodes
from server.llama.library import bind
from server.llama.media.bindings import M, start_media
from server.llama.media.projector import check_is_projector, projector_params
from server.pool.memory import HOST, Bytes, Footprint, added
from server.pool.spec import LoadParams

_SYMBOL = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_NODE_WORDS = 6  # color, parent, left, right; device and bytes


def projector_memory(name: str, path: Path | None, native: LoadParams) -> Footprint:
    """Return the memory of the projector at `path`; empty without one, or if the library does not know. Raises
    `ModelFailed`.
    """
    library = M._libmtmd
    if path is None or sys.platform != "linux" or not hasattr(library, _SYMBOL):
        return {}
    check_is_projector(name, path, read_gguf(name, path))
    start_media()
    params = projector_params(name, native, "<__media__>")
    measure = bind(library, _SYMBOL, Tree, ctypes.c_char_p, M.mtmd_context_params)
    names = {device.pointer: HOST if device.type == CPU else device.name for device in devices()}
    entries = [words[-2:] for words in tree_nodes(measure(str(path).encode(), params), _NODE_WORDS)]
    return added({names.get(device, HOST): Bytes(weights=n_bytes)} for device, n_bytes in entries)
