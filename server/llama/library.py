"""The loaded library: start-up, its log, and the handles that the step thread calls.

Two handles on one library. ``C`` (`ctypes.CDLL`, as llama-cpp-python defines it) gives the GIL away during the call:
for everything that computes, reads files or waits for a device. ``fast`` (`ctypes.PyDLL`) keeps it: for calls of
microseconds, where getting it back from a busy event loop would cost more than the call.
"""

import atexit
import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as _bindings

from server.errors import InternalError, ModelFailed

SWITCH_INTERVAL_S = 0.0005
"""How long a thread that returns from a long native call waits for a busy Python thread to release the GIL. Python's
default of 5 ms is several percent of a decode step.
"""
sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))

C: Any = _bindings  # their annotations describe the C types, not what ctypes takes and returns

logger = logging.getLogger("llamapool.llama")

NUMA = {"distribute": 1, "isolate": 2, "numactl": 3}  # enum ggml_numa_strategy
_LEVELS = {1: logging.DEBUG - 5, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}  # enum ggml_log_level
_CONTINUED = 5
_GENERIC = ("failed to load model", "failed to initialize the context")


class Fast:
    """Calls that keep the GIL: each takes microseconds (the samplers' for vocabularies of up to about 64k tokens)."""

    def __init__(self) -> None:
        lib = ctypes.PyDLL(C._lib._name)
        ptr, i32, f32, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_size_t
        self.get_logits = bind(lib, "llama_get_logits", ptr, ptr)
        self.get_logits_ith = bind(lib, "llama_get_logits_ith", ptr, ptr, i32)
        self.sampler_sample = bind(lib, "llama_sampler_sample", i32, ptr, ptr, i32)
        self.sampler_apply = bind(lib, "llama_sampler_apply", None, ptr, ptr)
        self.sampler_accept = bind(lib, "llama_sampler_accept", None, ptr, i32)
        self.sampler_free = bind(lib, "llama_sampler_free", None, ptr)
        self.memory_seq_rm = bind(lib, "llama_memory_seq_rm", ctypes.c_bool, ptr, i32, i32, i32)
        self.memory_seq_cp = bind(lib, "llama_memory_seq_cp", None, ptr, i32, i32, i32, i32)
        self.memory_seq_add = bind(lib, "llama_memory_seq_add", None, ptr, i32, i32, i32, i32)
        self.memory_seq_pos_min = bind(lib, "llama_memory_seq_pos_min", i32, ptr, i32)
        self.memory_seq_pos_max = bind(lib, "llama_memory_seq_pos_max", i32, ptr, i32)
        self.token_to_piece = bind(lib, "llama_token_to_piece", i32, ptr, i32, ptr, i32, i32, ctypes.c_bool)
        self.tokenize = bind(
            lib, "llama_tokenize", i32, ptr, ctypes.c_char_p, i32, ptr, i32, ctypes.c_bool, ctypes.c_bool
        )
        self.vocab_get_text = bind(lib, "llama_vocab_get_text", ctypes.c_char_p, ptr, i32)
        self.vocab_get_attr = bind(lib, "llama_vocab_get_attr", ctypes.c_int, ptr, i32)
        self.vocab_is_eog = bind(lib, "llama_vocab_is_eog", ctypes.c_bool, ptr, i32)
        self.init_dist = bind(lib, "llama_sampler_init_dist", ptr, ctypes.c_uint32)
        self.init_top_k = bind(lib, "llama_sampler_init_top_k", ptr, i32)
        self.init_top_p = bind(lib, "llama_sampler_init_top_p", ptr, f32, size)
        self.init_min_p = bind(lib, "llama_sampler_init_min_p", ptr, f32, size)
        self.init_typical = bind(lib, "llama_sampler_init_typical", ptr, f32, size)
        self.init_temp = bind(lib, "llama_sampler_init_temp", ptr, f32)
        self.init_temp_ext = bind(lib, "llama_sampler_init_temp_ext", ptr, f32, f32, f32)
        self.init_xtc = bind(lib, "llama_sampler_init_xtc", ptr, f32, f32, size, ctypes.c_uint32)
        self.init_top_n_sigma = bind(lib, "llama_sampler_init_top_n_sigma", ptr, f32)
        self.init_mirostat = bind(lib, "llama_sampler_init_mirostat", ptr, i32, ctypes.c_uint32, f32, f32, i32)
        self.init_mirostat_v2 = bind(lib, "llama_sampler_init_mirostat_v2", ptr, ctypes.c_uint32, f32, f32)
        self.init_penalties = bind(lib, "llama_sampler_init_penalties", ptr, i32, i32, f32, f32, f32)
        self.init_adaptive_p = bind(lib, "llama_sampler_init_adaptive_p", ptr, f32, f32, ctypes.c_uint32)
        self.chain_add = bind(lib, "llama_sampler_chain_add", None, ptr, ptr)


def bind(lib: ctypes.CDLL, name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    """Return a function of `lib` with its own types, independent of other declarations of the same function."""
    function = lib[name]
    function.restype = restype
    function.argtypes = argtypes
    return function


fast = Fast()


_local = threading.local()


def _on_log(level: int, text: bytes | None, _user_data: object) -> None:
    """Pass the library's log, from any thread, to `logging` in whole lines."""
    if level != _CONTINUED:
        _local.level = level
    *lines, _local.pending = (getattr(_local, "pending", "") + (text or b"").decode("utf-8", "replace")).split("\n")
    level, errors = getattr(_local, "level", 2), getattr(_local, "errors", None)
    for line in filter(None, map(str.rstrip, lines)):
        if errors is not None and level == 4:
            errors.append(line)
        quiet = getattr(_local, "quiet", False)
        logger.log(logging.DEBUG if quiet else _LEVELS.get(level, logging.DEBUG), "%s", line)


class collect_errors:  # noqa: N801 - used as a function
    """Collect the error lines that this thread's native calls log. `quiet` keeps warnings and errors out of the log,
    for calls whose outcome the caller reports. A class, because a generator is several times slower per step.
    """

    __slots__ = ("_errors", "_quiet")

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._errors: list[str] = []

    def __enter__(self) -> list[str]:
        _local.errors, _local.quiet = self._errors, self._quiet
        return self._errors

    def __exit__(self, *_: object) -> None:
        _local.errors, _local.quiet = None, False


log_callback = C.llama_log_callback(_on_log)  # the library calls it until the process ends, so it must stay referenced


@cache
def start_backend(numa: str = "") -> None:
    """Initialize the library; only the first call of each kind does something. `numa` is a process-wide choice."""
    C.llama_log_set(log_callback, None)
    atexit.register(_silence)
    load_backends(C._lib)
    C.llama_backend_init()
    if numa:
        C.llama_numa_init(NUMA[numa])


def load_backends(lib: ctypes.CDLL) -> None:
    """Load backends built as separate libraries (``GGML_BACKEND_DL``), including the best CPU variant for this machine.
    Does nothing for a build that contains its backends. Raises InternalError. llama.cpp itself searches next to
    Python's executable and in the working directory, where they are not.
    """
    n_backends = bind(lib, "ggml_backend_reg_count", ctypes.c_size_t)
    if n_backends():
        return
    folder = Path(lib._name).parent
    bind(lib, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)(bytes(folder))
    if not n_backends():
        raise InternalError(f"{folder} contains no backend that this machine can execute; reinstall llama-cpp-python")


def _silence() -> None:
    """Stop the library's log: it must not call an interpreter that is ending."""
    C.llama_log_set(C.llama_log_callback(), None)


def reason(errors: list[str], otherwise: str) -> str:
    """Return the most telling of the collected error lines, without the name of the C function that logged it."""
    telling = [line for line in errors if not line.endswith(_GENERIC)] or errors
    if not telling:
        return otherwise
    head, separator, rest = telling[-1].partition(": ")
    return rest if separator and head.isidentifier() else telling[-1]


def new_context(model: int, params: ctypes.Structure, name: str, what: str) -> int:
    """Return a new native context; blocking. Raises `ModelFailed`: `what` with the library's reason."""
    with collect_errors() as errors:
        context: int | None = C.llama_init_from_model(model, params)
    if not context:
        raise ModelFailed(name, f"{what}: {reason(errors, 'the library gave no reason')}")
    return context


def supports_gpu_offload() -> bool:
    """Return whether this build of the library can compute on a GPU that it sees."""
    return bool(C.llama_supports_gpu_offload())


def system_info() -> str:
    """Return the library's line on the instruction sets and backends that it uses."""
    return (C.llama_print_system_info() or b"").decode("utf-8", "replace")


def version() -> str:
    """Return the version of llama.cpp inside the bindings."""
    name = getattr(C._lib, "llama_version", None)
    if name is None:
        return "unknown"
    name.restype = ctypes.c_char_p
    return (name() or b"unknown").decode()
