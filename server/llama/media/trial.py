"""Run as a program: build the graph of a projector as a load does. Where sizes in the file do not fit each other, the
library ends the process (GGML_ASSERT aborts). It imports only ctypes, which takes 20 ms.
"""

import ctypes
import os
import resource
import sys


def main(library: str, symbol: str, n_params: int, path: str) -> None:
    """`library` is the path of libmtmd, `symbol` its ``mtmd_get_memory_usage``, `n_params` the bytes of its
    parameters.
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
