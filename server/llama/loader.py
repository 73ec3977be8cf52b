"""Loads a model's weights through the native library."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from server.engine.runner_api import EmbeddingRunner, Runner
from server.errors import InternalError, ModelFailed
from server.llama import fit
from server.llama.devices import add_remote_devices, offloads
from server.llama.files.description import describe, media_kinds
from server.llama.files.model_file import ModelFiles, check_files
from server.llama.files.roles import check_heads, roles
from server.llama.library import C, collect_errors, logger, reason, start_backend, supports_gpu_offload
from server.llama.threads import bound
from server.llama.vocab import LlamaVocab
from server.llama.weights.model import DraftWeights, LlamaWeights
from server.llama.weights.native import NativeModels
from server.llama.weights.params import check_computable, model_params
from server.media.bitmap import BitmapKind
from server.pool.memory import Fit, Footprint, Memory, added
from server.pool.protocols import ModelInfo, Weights
from server.pool.spec import DraftFile, LoadParams, ModelSpec

OnProgress = Callable[[float], bool]


class WeightsByInstance:
    """`server.pool.protocols.Weights` over several loads of one file. ``places`` maps instances to loads. Facts and
    vocabulary are equal in all; those of the first are shown.
    """

    def __init__(self, loaded: Sequence[Weights], places: Sequence[int]) -> None:
        self._loaded = loaded
        self.info, self.vocab, self.media = loaded[0].info, loaded[0].vocab, loaded[0].media
        by_instance = [loaded[place] for place in places]
        self._runners, self._embedders = cycle(by_instance), cycle(by_instance)

    def runner(self) -> Runner:
        """Return the next instance's context, over the weights on its devices; blocking. Raises `ModelFailed`."""
        return next(self._runners).runner()

    def embedding_runner(self) -> EmbeddingRunner:
        """Return a context that embeds, like `runner`."""
        return next(self._embedders).embedding_runner()

    def footprint(self) -> Footprint:
        """Return the footprint of all sets."""
        return added(weights.footprint() for weights in self._loaded)

    def close(self) -> None:
        """Free all of them; every runner must be closed before."""
        with contextlib.ExitStack() as stack:
            for weights in self._loaded:
                stack.callback(weights.close)


def _share(progress: OnProgress, part: int, n_parts: int) -> OnProgress:
    return lambda fraction: progress((part + fraction) / n_parts)


class LlamaLoader:
    """`server.pool.protocols.Loader` over the native library. Entries that load the same file in the same way share the
    weights.
    """

    def __init__(self) -> None:
        self._models = NativeModels()

    def load(self, spec: ModelSpec, progress: OnProgress) -> Weights:
        """Blocking; several models may be loaded at the same time, each in its own thread. Weights are loaded once per
        distinct set of devices, one after the other, and report equal shares of the progress.

        Raises `ModelFailed` with the reason: a missing, broken or truncated file, an unsupported architecture,
        too little memory, or a load that `progress` stopped by returning False.
        """
        spec = bound(spec)
        wanted = spec.native.devices
        distinct = list(dict.fromkeys(wanted))
        with contextlib.ExitStack() as undo:
            loaded: list[LlamaWeights] = []
            for i, devices in enumerate(distinct):
                one = replace(spec, native=replace(spec.native, devices=(devices,)))
                loaded.append(self._load(one, _share(progress, i, len(distinct)), loaded[0] if loaded else None))
                undo.callback(loaded[-1].close)
            undo.pop_all()
        return loaded[0] if len(loaded) == 1 else WeightsByInstance(loaded, [distinct.index(some) for some in wanted])

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        """Blocking: a read of the header and the vocabulary, or a few. Raises `ModelFailed`."""
        files = check_files(spec.id, spec.path, spec.native.metadata_overrides)
        return fit.fitted(spec, files, granted or {}, lambda native: self._holds(files, native))

    def _holds(self, files: ModelFiles, native: LoadParams) -> bool:
        """Return whether all of these weights are loaded."""
        return all(self._models.holds(files, replace(native, devices=(devices,))) for devices in set(native.devices))

    def _load(self, spec: ModelSpec, progress: OnProgress, first: LlamaWeights | None) -> LlamaWeights:
        """Load on the first set of devices. The `first` load's projector serves the other sets, too."""
        files = check_files(spec.id, spec.path, spec.native.metadata_overrides)
        if spec.native.mtp:
            check_heads(spec.id, files)
        native = self._models.open(files, spec.native, lambda: _open(spec.id, files, spec.native, progress))
        draft: DraftWeights | None = None
        try:
            if spec.draft is not None and roles(files.header, spec.native).generates:
                draft = _draft(spec.id, spec.draft, spec.native, native.loaded, progress)
            return LlamaWeights(native, self._models.close, spec, draft, first.media if first is not None else None)
        except BaseException:
            if draft is not None:
                draft.close()
            self._models.close(native)
            raise

    def least(self, spec: ModelSpec) -> Footprint:
        """Return the footprint with the shortest context that `fit` may choose."""
        return fit.least(spec, check_files(spec.id, spec.path, spec.native.metadata_overrides))

    def uses_devices(self, spec: ModelSpec) -> bool:
        """Return whether something besides the CPU computes the model."""
        return offloads(spec.native)

    def memory(self) -> Mapping[str, Memory]:
        return fit.machine_memory()

    def vocabulary(self, spec: ModelSpec) -> "FileVocabulary":
        """Return the vocabulary, reading only what precedes the tensors. Blocks. Raises `ModelFailed`."""
        return FileVocabulary(spec)

    def describe(self, spec: ModelSpec) -> ModelInfo:
        """Blocking. Raises `ModelFailed` for a missing, broken or truncated file."""
        return describe(spec)

    def media_kinds(self, spec: ModelSpec) -> frozenset[BitmapKind]:
        """Return the supported media by the header of the projector's file."""
        return media_kinds(spec)


class FileVocabulary:
    """`server.pool.protocols.Vocabulary` of a file."""

    def __init__(self, spec: ModelSpec) -> None:
        # Nothing that names a device: another process has them, and asking one can wait for ever.
        given = spec.native
        native = LoadParams(devices=((),), n_gpu_layers=0, metadata_overrides=given.metadata_overrides, numa=given.numa)
        files = check_files(spec.id, spec.path, given.metadata_overrides)
        self._model: int | None = (model := _open(spec.id, files, native, vocab_only=True))
        self.vocab = LlamaVocab(model)

    def close(self) -> None:
        """Free it; once is enough."""
        model, self._model = self._model, None
        self.vocab.close()
        if model is not None:
            C.llama_model_free(model)


def open_loader(remote: tuple[str, ...] = ()) -> LlamaLoader:
    """Return the loader of a process, with the devices of these machines. Raises ConfigError."""
    if remote:
        add_remote_devices(remote)
    supports_gpu_offload()  # finds the devices, which takes a moment: not on the event loop later
    return LlamaLoader()


def _open(
    name: str,
    files: ModelFiles,
    native: LoadParams,
    progress: OnProgress = lambda _: True,
    *,
    vocab_only: bool = False,
) -> int:
    """Return the native model, which the caller frees. Raises `ModelFailed`."""
    start_backend(native.numa)
    params = model_params(name, native.weights, files)
    if not vocab_only:
        check_computable(name, native, files)
    if native.n_gpu_layers > 0 and not offloads(native):
        logger.warning("model '%s': n_gpu_layers is ignored: no GPU is used", name)
    stopped, failures = False, list[BaseException]()

    def on_progress(fraction: float, _user_data: object) -> bool:
        nonlocal stopped
        try:
            stopped = not progress(fraction)
        except BaseException as error:  # noqa: BLE001 - ctypes would swallow it; raised again below
            stopped = True
            failures.append(error)
        return not stopped

    callback = C.llama_progress_callback(on_progress)  # must stay referenced as long as the load runs
    params.progress_callback, params.vocab_only = callback, vocab_only
    with collect_errors(quiet=vocab_only) as errors:
        model: int | None = C.llama_model_load_from_file(bytes(files.path), params)
    if failures:
        raise InternalError("reporting the load's progress failed") from failures[0]
    if not model:
        why = f"{files.path}: {reason(errors, 'the native library gave no reason')}"
        raise ModelFailed(name, "the load was stopped" if stopped else why)
    return model


def _draft(name: str, file: DraftFile, native: LoadParams, target: int, progress: OnProgress) -> DraftWeights:
    """Load the draft model on the devices of its `target`, unless configured; its load is short and reports no
    progress.
    """
    if file.native.devices == (None,):
        file = replace(file, native=replace(file.native, devices=native.devices))
    files = check_files(name, file.path, file.native.metadata_overrides)
    model = _open(name, files, file.native, lambda _: progress(1.0))
    try:
        return DraftWeights(model, name, file, target)
    except BaseException:
        C.llama_model_free(model)
        raise
