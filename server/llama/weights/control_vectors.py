"""Control vectors: a direction per layer, which is added to the layer's output (llama.cpp common/common.cpp,
common_control_vector_load). Several are scaled and summed. In this format layer 0 has no direction.
"""

import ctypes
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.errors import ModelFailed
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.model_file import fingerprint, read_gguf
from server.llama.library import C, collect_errors, reason
from server.pool.spec import LoadParams, ScaledFile

Floats = npt.NDArray[np.float32]
_F32 = 0
_DIRECTION = re.compile(r"direction\.([1-9]\d{0,4})")


@dataclass(frozen=True, slots=True, eq=False)
class ControlVector:
    """``rows[i]`` is the direction of layer i + 1. It applies to layers ``first`` to ``last``."""

    rows: Floats
    first: int
    last: int
    fingerprint: str  # of the files, their scales and the layers

    def apply(self, context: int, model: str) -> None:
        """Set it in `context`. Raises `ModelFailed` if the library rejects it."""
        n_embd = self.rows.shape[1]
        data = self.rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        with collect_errors() as errors:
            status = C.llama_set_adapter_cvec(context, data, self.rows.size, n_embd, self.first, self.last)
        if status != 0:
            raise ModelFailed(model, f"the control vectors were refused: {reason(errors, 'no reason given')}")


def read_control_vectors(name: str, native: LoadParams, n_embd: int, n_layer: int) -> ControlVector | None:
    """Return the sum of ``native.control_vectors``; None without any. Raises `ModelFailed` that names the file."""
    if not native.control_vectors:
        return None
    first, last = native.control_vector_layer_range or (0, 0)
    first, last = first if first > 0 else 1, last if last > 0 else n_layer
    rows = np.zeros((n_layer, n_embd), np.float32)
    parts = []
    for file in native.control_vectors:
        header = read_gguf(name, file.path)
        _add(rows, name, file, header)
        parts.append(f"{fingerprint([(file.path, header)])}*{file.scale!r}")
    if not np.isfinite(rows).all():
        paths = ", ".join(str(file.path) for file in native.control_vectors)
        raise ModelFailed(name, f"the sum of the control vectors {paths} is not finite")
    return ControlVector(rows, first, last, f"{'+'.join(sorted(parts))}@{first}-{last}")


def _add(rows: Floats, name: str, file: ScaledFile, header: GgufHeader) -> None:
    """Add the scaled directions of a file to `rows`. Raises `ModelFailed` that names the file."""
    n_layer, n_embd = rows.shape
    if not header.tensors:
        raise ModelFailed(name, f"{file.path}: is no control vector, it has no tensors")
    for tensor in header.tensors:
        match = _DIRECTION.fullmatch(tensor.name)
        if match is None:
            raise ModelFailed(name, f"{file.path}: is no control vector: '{tensor.name}' is not a layer's direction")
        if tensor.type != _F32 or any(extent != 1 for extent in tensor.shape[1:]):
            raise ModelFailed(name, f"{file.path}: '{tensor.name}' is not one row of F32")
        if tensor.shape[0] != n_embd:
            raise ModelFailed(name, f"{file.path}: '{tensor.name}' has {tensor.shape[0]} numbers, the model {n_embd}")
        layer = int(match[1])
        if layer <= n_layer:  # directions of missing layers are ignored
            content = np.fromfile(file.path, "<f4", n_embd, offset=tensor.end - 4 * n_embd)
            rows[layer - 1] += content * np.float32(file.scale)
