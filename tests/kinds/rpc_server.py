"""llama.cpp's rpc-server: ``python -m tests.kinds.rpc_server LIBRARY HOST:PORT`` offers the CPU of this machine.

It ends when its standard input is closed.
"""

import ctypes
import os
import sys
import threading

from server.llama.devices import CPU, devices

N_THREADS = 1


def main(library: str, endpoint: str) -> None:
    backend = ctypes.CDLL(library)
    offered = [device.pointer for device in devices() if device.type == CPU][:1]
    threading.Thread(target=_end_with_input, daemon=True).start()
    backend.ggml_backend_rpc_start_server.argtypes = [
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    backend.ggml_backend_rpc_start_server(endpoint.encode(), None, N_THREADS, 1, (ctypes.c_void_p * 1)(*offered))


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
