"""The loaded library: start-up, its log, and the handles that the step thread calls.

There are two handles of one library. ``C`` (`ctypes.CDLL`, as in llama-cpp-python) releases the GIL during a call. Use
it for calls that compute, read files or wait for a device. ``fast`` (`ctypes.PyDLL`) holds the GIL. Use it for calls of
microseconds, because getting the GIL back from a busy event loop takes longer.
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

C: Any = _bindings  # the annotations of the bindings name C types, not those that ctypes accepts and returns

logger = logging.getLogger("llamapool.llama")

NUMA = {"distribute": 1, "isolate": 2, "numactl": 3}  # enum ggml_numa_strategy
_LEVELS = {1: logging.DEBUG - 5, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}  # enum ggml_log_level
_CONTINUED = 5
_GENERIC = ("failed to load model", "failed to initialize the context")


class Fast:
    """Functions of the library that hold the GIL, by name without ``llama_``. Each must take microseconds; samplers do
    for vocabularies of up to about 64k tokens. The types are those of the bindings.
    """

    def __init__(self) -> None:
        self._lib = ctypes.PyDLL(C._lib._name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        declared = getattr(C, f"llama_{name}")
        function = bind(self._lib, f"llama_{name}", declared.restype, *declared.argtypes)
        setattr(self, name, function)
        return function


def bind(lib: ctypes.CDLL, name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    """Return a function of `lib` with these types, independent of other declarations of it."""
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

    __slots__ = ("_before", "_errors", "_quiet")

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._errors: list[str] = []

    def __enter__(self) -> list[str]:
        self._before = getattr(_local, "errors", None), getattr(_local, "quiet", False)
        _local.errors, _local.quiet = self._errors, self._quiet
        return self._errors

    def __exit__(self, *_: object) -> None:
        _local.errors, _local.quiet = self._before


log_callback = C.llama_log_callback(_on_log)  # the library calls it until the process ends, so it must stay referenced


@cache
def start_backend(numa: str = "") -> None:
    """Initialize the library, once for each value of `numa`, which applies to the process."""
    C.llama_log_set(log_callback, None)
    atexit.register(_silence)
    load_backends(C._lib)
    C.llama_backend_init()
    if numa:
        C.llama_numa_init(NUMA[numa])


def load_backends(lib: ctypes.CDLL) -> None:
    """Load backends built as separate libraries (``GGML_BACKEND_DL``), including the best CPU variant for this machine,
    from the folder of `lib`. llama.cpp itself would search next to Python's executable and in the working directory.
    Does nothing if the build contains its backends. Raises InternalError.
    """
    n_backends = bind(lib, "ggml_backend_reg_count", ctypes.c_size_t)
    if n_backends():
        return
    folder = Path(lib._name).parent
    bind(lib, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)(bytes(folder))
    if not n_backends():
        raise InternalError(f"{folder} contains no backend that this machine can execute; reinstall llama-cpp-python")


def _silence() -> None:
    """Stop the library's log, which must not call into an interpreter that is shutting down."""
    C.llama_log_set(C.llama_log_callback(), None)


def reason(errors: list[str], otherwise: str) -> str:
    """Return the last collected error line that is not generic, without the name of the C function that logged it."""
    specific = [line for line in errors if not line.endswith(_GENERIC)] or errors
    if not specific:
        return otherwise
    head, separator, rest = specific[-1].partition(": ")
    return rest if separator and head.isidentifier() else specific[-1]


def new_context(model: int, params: ctypes.Structure, name: str, what: str) -> int:
    """Return a new native context. Blocks. Raises `ModelFailed` with `what` and the library's reason."""
    with collect_errors() as errors:
        context: int | None = C.llama_init_from_model(model, params)
    if not context:
        raise ModelFailed(name, f"{what}: {reason(errors, 'the library gave no reason')}")
    return context


def supports_gpu_offload() -> bool:
    """Return whether this build of the library finds a GPU to compute on."""
    return bool(C.llama_supports_gpu_offload())


def system_info() -> str:
    """Return the library's line on the instruction sets and backends that it uses."""
    return (C.llama_print_system_info() or b"").decode("utf-8", "replace")
