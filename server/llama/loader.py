"""Loads a model's weights through the native library."""

import ctypes
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from server.errors import InternalError, ModelFailed
from server.llama.device_sets import load_by_devices
from server.llama.devices import device_array, offloads
from server.llama.draft_weights import DraftWeights
from server.llama.library import C, collect_errors, reason, start_backend
from server.llama.model_file import ModelFiles, check_files
from server.llama.roles import roles
from server.llama.threads import bound
from server.llama.weights import LlamaWeights
from server.pool.protocols import Weights
from server.pool.spec import DraftFile, LoadParams, ModelSpec

logger = logging.getLogger("llamapool.llama")

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}  # enum llama_split_mode
_LOAD_AUTO, _LOAD_PLAIN, _LOAD_MLOCK, _LOAD_MMAP_MLOCK = -1, 0, 2, 3  # enum llama_load_mode


class LlamaLoader:
    """`server.pool.protocols.Loader` over the native library."""

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> Weights:
        """Blocking; several models may be loaded at the same time, each in its own thread.

        Raises `ModelFailed` with the reason: a missing, broken or truncated file, an unsupported architecture,
        too little memory, or a load that `progress` stopped by returning False.
        """
        return load_by_devices(bound(spec), _load, progress)


def _load(spec: ModelSpec, progress: Callable[[float], bool]) -> LlamaWeights:
    """As `LlamaLoader.load`, on the first set of devices."""
    model, files = _open(spec.id, spec.path, spec.native, progress)
    draft: DraftWeights | None = None
    try:
        if spec.draft is not None and roles(files.header, spec.native).generates:
            draft = _draft(spec.id, _beside(spec.draft, spec.native), model, progress)
        return LlamaWeights(model, spec, files, draft)
    except BaseException:
        if draft is not None:
            draft.close()
        C.llama_model_free(model)
        raise


def _beside(file: DraftFile, target: LoadParams) -> DraftFile:
    """A draft model computes where its target does, unless it is told where."""
    devices = target.devices if file.native.devices == (None,) else file.native.devices
    return replace(file, native=replace(file.native, devices=devices))


def _open(name: str, path: Path, native: LoadParams, progress: Callable[[float], bool]) -> tuple[int, ModelFiles]:
    """The native model, which the caller frees. Raises `ModelFailed`."""
    files = check_files(name, path)
    start_backend(native.numa)
    report = _Progress(progress)
    params = _model_params(name, native)
    params.progress_callback = report.callback
    with collect_errors() as errors:
        model = C.llama_model_load_from_file(str(files.path).encode(), params)
    report.raise_failure()
    if not model:
        stopped = "the load was stopped" if report.stopped else reason(errors, "the native library gave no reason")
        raise ModelFailed(name, stopped if report.stopped else f"{path}: {stopped}")
    return model, files


def _draft(name: str, file: DraftFile, target: int, progress: Callable[[float], bool]) -> DraftWeights:
    """The draft model; its load is short beside the other one's and reports no progress of its own."""
    model, files = _open(name, file.path, file.native, lambda _: progress(1.0))
    try:
        return DraftWeights(model, name, file, files, target)
    except BaseException:
        C.llama_model_free(model)
        raise


class _Progress:
    """Carries the library's progress calls; must stay referenced as long as the load runs."""

    def __init__(self, report: Callable[[float], bool]) -> None:
        self._report = report
        self._failure: BaseException | None = None
        self.stopped = False
        self.callback = C.llama_progress_callback(self._on_progress)

    def _on_progress(self, fraction: float, _user_data: object) -> bool:
        try:
            self.stopped = not self._report(fraction)
        except BaseException as error:  # noqa: BLE001 - ctypes would swallow it; raise_failure raises it again
            self._failure = error
            self.stopped = True
        return not self.stopped

    def raise_failure(self) -> None:
        """Raise what the caller's own progress function raised."""
        if self._failure is not None:
            raise InternalError("reporting the load's progress failed") from self._failure


def _model_params(model: str, native: LoadParams) -> ctypes.Structure:
    params: ctypes.Structure = C.llama_model_default_params()
    params.n_gpu_layers = native.n_gpu_layers if native.n_gpu_layers >= 0 else -1
    names = native.devices[0]
    if native.n_gpu_layers > 0 and not offloads(native):
        why = "device is none" if names == () else "this build of llama.cpp sees no GPU"
        logger.warning("model '%s': n_gpu_layers is ignored, %s", model, why)
    if names is not None:
        try:
            # the library reads the array during the load only, and `params` keeps it referenced until then
            params.devices = ctypes.cast(device_array(names), ctypes.c_void_p)
        except ValueError as error:
            raise ModelFailed(model, f"device: {error}") from None
    params.split_mode = SPLIT_MODES[native.split_mode]
    params.main_gpu = native.main_gpu
    params.load_mode = _load_mode(native)
    params.check_tensors = native.check_tensors
    if native.tensor_split:
        most = C.LLAMA_MAX_DEVICES
        if len(native.tensor_split) > most:
            raise ModelFailed(model, f"tensor_split has {len(native.tensor_split)} parts, at most {most} are possible")
        # the library reads it during the load only, and `params` keeps it referenced until then
        params.tensor_split = (ctypes.c_float * most)(*native.tensor_split)
    return params


def _load_mode(native: LoadParams) -> int:
    if native.mlock:
        return _LOAD_MMAP_MLOCK if native.mmap else _LOAD_MLOCK
    return _LOAD_AUTO if native.mmap else _LOAD_PLAIN
