"""libmtmd, loaded with the first projector; its log goes where the library's goes."""

import atexit
from functools import cache
from typing import Any

import llama_cpp.mtmd_cpp as _bindings

from server.llama.library import C, log_callback

M: Any = _bindings  # their annotations describe the C types, not what ctypes takes and returns

TEXT, IMAGE, AUDIO = M.MTMD_INPUT_CHUNK_TYPE_TEXT, M.MTMD_INPUT_CHUNK_TYPE_IMAGE, M.MTMD_INPUT_CHUNK_TYPE_AUDIO


@cache
def start_media() -> None:
    """Only the first call does something."""
    M.mtmd_helper_log_set(log_callback, None)
    atexit.register(lambda: M.mtmd_helper_log_set(C.llama_log_callback(), None))
