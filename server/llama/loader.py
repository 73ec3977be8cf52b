"""Loads a model's weights through the native library."""

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle

from server.engine.runner_api import EmbeddingRunner, Runner
from server.errors import ModelFailed
from server.llama import fit
from server.llama.devices import add_remote_devices, offloads
from server.llama.files.description import describe, media_kinds
from server.llama.files.model_file import ModelFiles, check_files
from server.llama.files.roles import check_heads, generates
from server.llama.library import C, collect_errors, logger, reason, start_backend, supports_gpu_offload
from server.llama.media.projector import Projector
from server.llama.threads import bound
from server.llama.vocab import LlamaVocab
from server.llama.weights.model import DraftWeights, LlamaWeights
from server.llama.weights.native import NativeModel, identity
from server.llama.weights.params import check_computable, model_params
from server.media.bitmap import BitmapKind
from server.pool.memory import Fit, Footprint, Memory, added
from server.pool.protocols import ModelInfo, Weights
from server.pool.spec import DraftFile, LoadParams, ModelSpec

OnProgress = Callable[[float], bool]


class WeightsByInstance:
    """`server.pool.protocols.Weights` of instances on different devices, with one load of the file per device set."""

    def __init__(self, by_instance: Sequence[LlamaWeights]) -> None:
        """`by_instance`: the weights of each instance; instances on the same devices share them."""
        self._loaded = list(dict.fromkeys(by_instance))
        first = by_instance[0]
        self.info, self.vocab, self.media = first.info, first.vocab, first.media
        self._runners, self._embedders = cycle(by_instance), cycle(by_instance)

    def runner(self) -> Runner:
        """Return the context of the next instance, with the weights on its devices."""
        return next(self._runners).runner()

    def embedding_runner(self) -> EmbeddingRunner:
        return next(self._embedders).embedding_runner()

    def footprint(self) -> Footprint:
        return added(weights.footprint() for weights in self._loaded)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for weights in self._loaded:
                stack.callback(weights.close)


def _part_of(progress: OnProgress, part: int, n_parts: int) -> OnProgress:
    """Return a callback that reports the progress of one of `n_parts` equal parts to `progress`."""
    return lambda fraction: progress((part + fraction) / n_parts)


class LlamaLoader:
    """`server.pool.protocols.Loader`. Models of the same file with the same load parameters share the weights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[Hashable, NativeModel] = {}  # loaded, or being loaded

    def load(self, spec: ModelSpec, progress: OnProgress) -> Weights:
        """Load the weights of each distinct device set, one after another. Thread-safe."""
        spec = bound(spec)
        loaded: dict[tuple[str, ...] | None, LlamaWeights] = {}
        distinct, media = list(dict.fromkeys(spec.native.devices)), None
        with contextlib.ExitStack() as undo:
            for i, devices in enumerate(distinct):
                one = replace(spec, native=replace(spec.native, devices=(devices,)))
                weights = self._load(one, _part_of(progress, i, len(distinct)), media)
                undo.callback(weights.close)
                loaded[devices], media = weights, weights.media
            undo.pop_all()
        return weights if len(loaded) == 1 else WeightsByInstance([loaded[devices] for devices in spec.native.devices])

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        files = check_files(spec.id, spec.path, spec.native.metadata_overrides)
        return fit.fitted(spec, files, granted or {}, lambda native: self._is_loaded(files, native))

    def _is_loaded(self, files: ModelFiles, native: LoadParams) -> bool:
        """Return whether the weights are loaded on all device sets."""
        wanted = {identity(files, replace(native, devices=(devices,))) for devices in native.devices}
        with self._lock:
            return wanted <= self._models.keys()

    def _load(self, spec: ModelSpec, progress: OnProgress, media: Projector | None) -> LlamaWeights:
        """Load the weights on the first device set. `media`: the projector that an earlier set has loaded, if any."""
        files = check_files(spec.id, spec.path, spec.native.metadata_overrides)
        if spec.native.mtp:
            check_heads(spec.id, files)
        key, draft = identity(files, spec.native), None
        with self._lock:
            native = self._models.setdefault(key, NativeModel(files))
            native.n_users += 1
        try:
            with native.making:  # waits while another thread loads it
                if not native.pointer:
                    native.pointer = _open(spec.id, files, spec.native, progress)
            if spec.draft is not None and generates(files.header, spec.native):
                draft = _draft(spec.id, spec.draft, spec.native, native.pointer, progress)
            return LlamaWeights(native, partial(self._release, key), spec, draft, media)
        except BaseException:
            if draft is not None:
                draft.close()
            self._release(key)
            raise

    def _release(self, key: Hashable) -> None:
        """Free a native model after its last user has released it."""
        with self._lock:
            native = self._models[key]
            native.n_users -= 1
            if native.n_users:
                return
            del self._models[key]
        if native.pointer:
            C.llama_model_free(native.pointer)

    def least(self, spec: ModelSpec) -> Footprint:
        return fit.least(spec, check_files(spec.id, spec.path, spec.native.metadata_overrides))

    def uses_devices(self, spec: ModelSpec) -> bool:
        return offloads(spec.native)

    def memory(self) -> Mapping[str, Memory]:
        return fit.machine_memory()

    def vocabulary(self, spec: ModelSpec) -> "FileVocabulary":
        return FileVocabulary(spec)

    def describe(self, spec: ModelSpec) -> ModelInfo:
        return describe(spec, check_files(spec.id, spec.path, spec.native.metadata_overrides))

    def media_kinds(self, spec: ModelSpec) -> frozenset[BitmapKind]:
        return media_kinds(spec)


class FileVocabulary:
    """`server.pool.protocols.Vocabulary` of a file, without its weights."""

    def __init__(self, spec: ModelSpec) -> None:
        # No parameter may name a device: another process uses them, and a query can block forever.
        overrides, numa = spec.native.metadata_overrides, spec.native.numa
        native = LoadParams(devices=((),), n_gpu_layers=0, metadata_overrides=overrides, numa=numa)
        files = check_files(spec.id, spec.path, overrides)
        self._model: int | None = (model := _open(spec.id, files, native, vocab_only=True))
        self.vocab = LlamaVocab(model)

    def close(self) -> None:
        """Free the vocabulary. Idempotent."""
        model, self._model = self._model, None
        self.vocab.close()
        if model is not None:
            C.llama_model_free(model)


def open_loader(remote: tuple[str, ...] = ()) -> LlamaLoader:
    """Return the loader of a process. `remote`: ``host:port`` of rpc-servers to use. Raises ConfigError."""
    if remote:
        add_remote_devices(remote)
    supports_gpu_offload()  # finds the devices now, because that would block the event loop later
    return LlamaLoader()


def _open(
    name: str,
    files: ModelFiles,
    native: LoadParams,
    progress: OnProgress = lambda _: True,
    *,
    vocab_only: bool = False,
) -> int:
    """Load a native model, which the caller frees. Raises `ModelFailed`."""
    start_backend(native.numa)
    params = model_params(name, native.weights, files)
    if not vocab_only:
        check_computable(name, native, files)
    if native.n_gpu_layers > 0 and not offloads(native):
        logger.warning("model '%s': n_gpu_layers is ignored: no GPU is used", name)
    stopped = False

    def on_progress(fraction: float, _user_data: object) -> bool:
        nonlocal stopped
        try:
            stopped = not progress(fraction)
        except BaseException:  # noqa: BLE001 - ctypes would drop it and return an arbitrary result
            logger.exception("model '%s': reporting the load's progress failed, please report it", name)
            stopped = True
        return not stopped

    callback = C.llama_progress_callback(on_progress)  # must stay referenced during the load
    params.progress_callback, params.vocab_only = callback, vocab_only
    with collect_errors(quiet=vocab_only) as errors:
        model: int | None = C.llama_model_load_from_file(bytes(files.path), params)
    if not model:
        why = f"{files.path}: {reason(errors, 'the native library gave no reason')}"
        raise ModelFailed(name, "the load was stopped" if stopped else why)
    return model


def _draft(name: str, file: DraftFile, native: LoadParams, target: int, progress: OnProgress) -> DraftWeights:
    """Load the draft model, by default on the devices of its `target`. Reports no progress."""
    if file.native.devices == (None,):
        file = replace(file, native=replace(file.native, devices=native.devices))
    files = check_files(name, file.path, file.native.metadata_overrides)
    model = _open(name, files, file.native, lambda _: progress(1.0))
    try:
        return DraftWeights(model, name, file, target)
    except BaseException:
        C.llama_model_free(model)
        raise
