"""A program that builds the graph of a projector like a load. If sizes in the file do not match, the library ends the
process (GGML_ASSERT aborts). It imports almost nothing, so it starts in 20 ms.
"""

import ctypes
import os
import resource
import sys


def main(library: str, symbol: str, n_params: int, path: str) -> None:
    """Build the graph. `library`: path of libmtmd. `symbol`: name of its function ``mtmd_get_memory_usage``.
    `n_params`: size of its parameters in bytes. `path`: file of the projector.
    """

    class Params(ctypes.Structure):
        _fields_ = (("use_gpu", ctypes.c_bool), ("others", ctypes.c_char * (n_params - 1)))

    class Tree(ctypes.Structure):
        _fields_ = (("words", ctypes.c_void_p * 6),)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lib = ctypes.CDLL(library)
    if not lib.ggml_backend_reg_count():  # see `library.load_backends`
        lib.ggml_backend_load_all_from_path(os.fsencode(os.path.dirname(library)))
    lib.mtmd_context_params_default.restype = Params
    params = lib.mtmd_context_params_default()
    params.use_gpu = False
    measure = lib[symbol]
    measure.restype = Tree
    measure(os.fsencode(path), params)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
