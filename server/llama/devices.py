"""The devices that the library can compute on (ggml-backend.h), by the names used in settings."""

import ctypes
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import ConfigError
from server.llama.library import C, bind, start_backend, supports_gpu_offload
from server.pool.memory import Memory
from server.pool.spec import LoadParams

CPU, GPU, _INTEGRATED = 0, 1, 2  # enum ggml_backend_dev_type
_MIB = 1 << 20
_CONNECT_S = 10.0

_PTR, _SIZE, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_count = bind(C._lib, "ggml_backend_dev_count", _SIZE)
_get = bind(C._lib, "ggml_backend_dev_get", _PTR, _SIZE)
_name = bind(C._lib, "ggml_backend_dev_name", _TEXT, _PTR)
_description = bind(C._lib, "ggml_backend_dev_description", _TEXT, _PTR)
_type = bind(C._lib, "ggml_backend_dev_type", ctypes.c_int, _PTR)
_memory = bind(C._lib, "ggml_backend_dev_memory", None, _PTR, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE))
_buffer_type = bind(C._lib, "ggml_backend_dev_buffer_type", _PTR, _PTR)
_buffer_type_name = bind(C._lib, "ggml_backend_buft_name", _TEXT, _PTR)
_is_host = bind(C._lib, "ggml_backend_buft_is_host", ctypes.c_bool, _PTR)
_device_of = bind(C._lib, "ggml_backend_buft_get_device", _PTR, _PTR)
registry_by_name = bind(C._lib, "ggml_backend_reg_by_name", _PTR, _TEXT)
procedure_address = bind(C._lib, "ggml_backend_reg_get_proc_address", _PTR, _PTR, _TEXT)
_register = bind(C._lib, "ggml_backend_register", None, _PTR)
_load_all = bind(C._lib, "ggml_backend_load_all", None)
cpu_buffer_type = bind(C._lib, "ggml_backend_cpu_buffer_type", _PTR)
"""Return the buffer type of plain RAM."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. ``pointer`` is the library's, valid until the process ends."""

    name: str
    type: int
    pointer: int


def devices() -> list[Device]:
    """Return all devices, CPUs included, in the library's order."""
    start_backend()
    pointers = [_get(i) for i in range(_count())]
    return [Device(_name(pointer).decode(), _type(pointer), pointer) for pointer in pointers]


def add_remote_devices(endpoints: Sequence[str]) -> None:
    """Add the devices of llama.cpp ``rpc-server`` machines (``host:port``), which count as GPUs (llama.cpp
    common/arg.cpp, add_rpc_devices). Raises ConfigError. The library ends the process if such a machine stops
    answering while in use.
    """
    start_backend()
    registry = registry_by_name(b"RPC")
    if not registry:
        _load_all()  # GGML_BACKEND_PATH may name the library of the RPC backend
        registry = registry_by_name(b"RPC")
    if not registry:
        raise ConfigError(
            "server.rpc: this build of llama.cpp has no RPC backend: install llama-cpp-python with "
            'CMAKE_ARGS="-DGGML_RPC=on", or name its library in GGML_BACKEND_PATH'
        )
    add = ctypes.CFUNCTYPE(_PTR, _TEXT)(procedure_address(registry, b"ggml_backend_rpc_add_server"))
    for endpoint in endpoints:
        _check_reachable(endpoint)
        server = add(endpoint.encode())
        if not server:
            raise ConfigError(f"server.rpc: no rpc-server answers at {endpoint}")
        _register(server)


def _check_reachable(endpoint: str) -> None:
    """Raise ConfigError if no connection can be opened, because the library would end the process."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"server.rpc: no rpc-server answers at {endpoint}: {error.strerror or error}") from None


def find_devices(names: Sequence[str]) -> list[Device]:
    """Return the devices with these names, ignoring case (common/arg.cpp, parse_device_list). Raises ValueError."""
    known = devices()
    by_name = {device.name.lower(): device for device in known}
    found = []
    for name in names:
        device = by_name.get(name.lower())
        if device is None:
            raise ValueError(f"'{name}' is no device of this machine and build; {_choices(known)}")
        if device.type == CPU:
            raise ValueError(f"'{name}' is the CPU, to which nothing is offloaded; {_choices(known)}")
        found.append(device)
    return found


def _choices(known: list[Device]) -> str:
    names = [device.name for device in known if device.type != CPU]
    return f"known: {', '.join(names)}, none" if names else "only the CPU exists here: write none"


def device_list() -> str:
    """Return the output of ``--list-devices``, as llama-server (common_print_available_devices)."""
    lines = ["Available devices:", *(_line(device) for device in devices() if device.type != CPU)]
    return "\n".join(lines if len(lines) > 1 else [*lines, "  (none)"]) + "\n"


def _line(device: Device) -> str:
    memory = _memory_of(device)
    description = _description(device.pointer).decode("utf-8", "replace")
    return f"  {device.name}: {description} ({memory.total // _MIB} MiB, {memory.free // _MIB} MiB free)"


def _memory_of(device: Device) -> Memory:
    free, total = _SIZE(), _SIZE()
    _memory(device.pointer, ctypes.byref(free), ctypes.byref(total))
    return Memory(total.value, free.value)


def device_memory() -> dict[str, Memory]:
    """Return the memory of every device that reports its own, by name."""
    found = {device.name: _memory_of(device) for device in devices() if device.type in (GPU, _INTEGRATED)}
    return {name: memory for name, memory in found.items() if memory.total}


def device_of_buffers(buffer_type: int) -> Device | None:
    """Return the device of a buffer type; None for plain RAM and for types on several (`split_over_several`)."""
    if _is_host(buffer_type):
        return None
    pointer = _device_of(buffer_type)
    return next((device for device in devices() if device.pointer == pointer), None)


def split_over_several(buffer_type: int) -> bool:
    """Return whether buffers of a type are split equally over all devices of a model, as those of ``split_mode:
    tensor`` (ggml/src/ggml-backend-meta.cpp, which does not list the devices).
    """
    name: bytes = _buffer_type_name(buffer_type)
    return name.startswith(b"Meta(")


def used_devices(native: LoadParams) -> list[Device]:
    """Return the devices that compute a model besides the CPU (src/llama.cpp, llama_prepare_model_devices)."""
    available = [device for device in devices() if device.type != CPU]
    names = native.devices[0]
    if names is None:
        used = [device for device in available if device.type == GPU] or available
    else:
        by_name = {device.name.lower(): device for device in available}
        used = [by_name[name.lower()] for name in names if name.lower() in by_name]
    return used[native.main_gpu : native.main_gpu + 1] if native.split_mode == "none" else used


def buffer_types() -> dict[str, tuple[Device, int]]:
    """Return the device and the library's pointer of each buffer type for tensors, by name."""
    types = {}
    for device in devices():
        if pointer := _buffer_type(device.pointer):
            types[_buffer_type_name(pointer).decode()] = device, pointer
    return types


def check_buffer_types(names: Sequence[str]) -> None:
    """Raise ValueError for a buffer type that does not exist, with the names of those that do."""
    known = buffer_types()
    for name in names:
        if name not in known:
            raise ValueError(f"'{name}' is no buffer type of this machine and build; known: {', '.join(sorted(known))}")


def offloads(native: LoadParams) -> bool:
    """Return whether a device other than the CPU computes a model with these parameters."""
    return supports_gpu_offload() and native.devices[0] != ()


def device_array(names: Sequence[str]) -> "ctypes.Array[ctypes.c_void_p]":
    """Return ``llama_model_params.devices``. Keep a reference until the model is loaded. Raises ValueError."""
    pointers = [device.pointer for device in find_devices(names)]
    return (_PTR * (len(pointers) + 1))(*pointers, None)
