"""From `LoadParams` to the native model's parameters."""

import ctypes
import logging

from server.errors import ModelFailed
from server.llama.devices import device_array, offloads
from server.llama.files.metadata_overrides import metadata_array
from server.llama.files.model_file import ModelFiles
from server.llama.library import C
from server.llama.weights.tensor_placement import override_array, without_match
from server.pool.spec import LoadParams

logger = logging.getLogger("llamapool.llama")

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}  # enum llama_split_mode
LAZY_MODES = {"off": 0, "auto": 1, "on": 2}  # enum llama_lazy_mode
_LOAD_AUTO, _LOAD_PLAIN, _LOAD_MLOCK, _LOAD_MMAP_MLOCK = -1, 0, 2, 3  # enum llama_load_mode


def model_params(model: str, native: LoadParams, files: ModelFiles) -> ctypes.Structure:
    """For the first set of devices. What it points to is referenced by it: ctypes keeps what a field was set to.

    Raises `ModelFailed` naming the setting that cannot be.
    """
    params: ctypes.Structure = C.llama_model_default_params()
    params.n_gpu_layers = native.n_gpu_layers if native.n_gpu_layers >= 0 else -1
    _place(params, model, native, files)
    params.no_host = native.no_host
    params.load_mtp = native.mtp
    if native.metadata_overrides:
        params.kv_overrides = metadata_array(native.metadata_overrides)
    params.split_mode = SPLIT_MODES[native.split_mode]
    params.main_gpu = native.main_gpu
    params.load_mode = _load_mode(native)
    params.check_tensors = native.check_tensors
    params.use_extra_bufts = native.repack
    params.lazy_mode = LAZY_MODES[native.lazy_mode]
    if native.tensor_split:
        most = C.LLAMA_MAX_DEVICES
        if len(native.tensor_split) > most:
            raise ModelFailed(model, f"tensor_split has {len(native.tensor_split)} parts, at most {most} are possible")
        # the library reads it during the load only, and `params` keeps it referenced until then
        params.tensor_split = (ctypes.c_float * most)(*native.tensor_split)
    return params


def warn_of_no_effect(model: str, native: LoadParams, files: ModelFiles) -> None:
    """Log which settings do nothing on this machine, or with this file."""
    if native.n_gpu_layers > 0 and not offloads(native):
        why = "device is none" if native.devices[0] == () else "this build of llama.cpp sees no GPU"
        logger.warning("model '%s': n_gpu_layers is ignored, %s", model, why)
    for setting in without_match(native, files):
        logger.warning("model '%s': %s has no effect: no tensor's name has a match", model, setting)


def _place(params: ctypes.Structure, model: str, native: LoadParams, files: ModelFiles) -> None:
    names = native.devices[0]
    if names is not None:
        try:
            params.devices = ctypes.cast(device_array(names), ctypes.c_void_p)
        except ValueError as error:
            raise ModelFailed(model, f"device: {error}") from None
    try:
        overrides = override_array(native, files)
    except ValueError as error:
        raise ModelFailed(model, f"override_tensor: {error}") from None
    if overrides is not None:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)


def _load_mode(native: LoadParams) -> int:
    if native.mlock:
        return _LOAD_MMAP_MLOCK if native.mmap else _LOAD_MLOCK
    return _LOAD_AUTO if native.mmap else _LOAD_PLAIN
