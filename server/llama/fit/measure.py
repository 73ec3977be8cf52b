"""Measures what a model would take of each device's memory: the library loads it without allocating (``no_alloc``), as
``common_fit_params`` does, and reports the size of each buffer. Reads the header only.
"""

import ctypes
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Self

from server.errors import ModelFailed
from server.llama.context.params import context_params, embedding_params, generator_params, heads_params
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.model_file import ModelFiles, check_files, read_gguf
from server.llama.files.roles import check_heads, roles
from server.llama.fit.memory import breakdown, with_shared, without_weights
from server.llama.library import C, collect_errors, reason, start_backend
from server.llama.sampling.graph import largest_chains
from server.llama.weights.params import model_params
from server.pool.memory import HOST, Bytes, Footprint, added
from server.pool.spec import DraftFile, LoadParams, MetadataOverride, ModelSpec

_LOAD_PLAIN = 0  # enum llama_load_mode: nothing is mapped
_MOST_CELLS = 1 << 19  # the library's notes of a cell take 48 bytes, also where no buffer is allocated


class Measure:
    """Measures one specification with different parameters. A context manager. Each file stays open between
    measurements that differ only in their contexts.
    """

    def __init__(self, spec: ModelSpec, files: ModelFiles, draft: DraftFile | None) -> None:
        """`draft`: where the specification's is loaded."""
        self._spec = spec
        self._files = files
        self._draft = draft
        self._open: dict[Path, tuple[LoadParams, int]] = {}
        self._media: Footprint | None = None  # the projector, which no parameter that is chosen changes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _placed, model in self._open.values():
            C.llama_model_free(model)

    def __call__(self, native: LoadParams) -> Footprint:
        """Return the footprint of all instances on their devices, with the draft model. Raises `ModelFailed`."""
        sets = native.devices * native.instances if len(native.devices) == 1 else native.devices
        parts: list[Footprint] = []
        counted: Counter[tuple[str, ...] | None] = Counter(sets)
        for devices, n_instances in counted.items():
            one = replace(native, devices=(devices,))
            parts += self._target(replace(self._spec, native=one), n_instances)
            if self._draft is not None:
                parts += self._guesser(self._draft, one, n_instances)
        if self._media is None:
            self._media = self._projector(native)
        return added([*parts, self._media])

    def _projector(self, native: LoadParams) -> Footprint:
        name, path = self._spec.id, self._spec.mmproj
        if path is None:
            return {}
        from server.llama.media.projector import projector_memory  # libmtmd is loaded only if needed

        read_gguf(name, path)
        return projector_memory(name, path, native)

    def _target(self, spec: ModelSpec, n_instances: int) -> list[Footprint]:
        what, model = roles(self._files.header, spec.native), self._model(self._files, spec.native)
        params = [generator_params(model, spec)] if what.generates else []
        if what.generates and spec.native.mtp:
            check_heads(spec.id, self._files)
            params.append(heads_params(model, spec))
        if what.embeds:
            params.append(embedding_params(model, spec.id, self._files.header, spec.native))
        with largest_chains(model, params[0]) if what.generates and spec.engine.backend_sampling else nullcontext():
            taken = _of_contexts(spec.id, model, params, n_instances)
        return [with_shared(taken[0]), *taken[1:], adapters(spec.native, taken[0])]

    def _guesser(self, draft: DraftFile, target: LoadParams, n_instances: int) -> list[Footprint]:
        """Return the draft model's footprints; its contexts are as large as the target's."""
        native = replace(draft.native, n_ctx=target.n_ctx)
        if native.devices == (None,):
            native = replace(native, devices=target.devices)
        name = f"{self._spec.id}, draft_model"
        model = self._model(check_files(name, draft.path, native.metadata_overrides), native)
        return _of_contexts(name, model, [context_params(name, native)], n_instances)

    def _model(self, files: ModelFiles, native: LoadParams) -> int:
        placed = replace(native, n_ctx=0)
        before = self._open.get(files.path)
        if before is not None and before[0] == placed:
            return before[1]
        if before is not None:
            del self._open[files.path]
            C.llama_model_free(before[1])
        model = _opened(self._spec.id, files, native)
        self._open[files.path] = placed, model
        return model


def _opened(name: str, files: ModelFiles, native: LoadParams) -> int:
    start_backend(native.numa)
    params = model_params(name, _without_vocabulary(files.header, native), files)
    params.no_alloc, params.load_mode = True, _LOAD_PLAIN
    model: int | None = _quietly(name, lambda: C.llama_model_load_from_file(str(files.path).encode(), params))
    assert model is not None
    return model


def _without_vocabulary(header: GgufHeader, native: LoadParams) -> LoadParams:
    """Make the library read no tokens (``no_vocab``): only their number changes the size of a buffer, and reading
    49,000 tokens and their merges takes four fifths of the time."""
    n_tokens, key = header.lengths.get("tokenizer.ggml.tokens", 0), "tokenizer.ggml.model"
    if not n_tokens or any(each.key == key for each in native.metadata_overrides):
        return native
    size = MetadataOverride(f"{header.metadata['general.architecture']}.vocab_size", n_tokens)
    return replace(native, metadata_overrides=(*native.metadata_overrides, MetadataOverride(key, "no_vocab"), size))


def _of_contexts(name: str, model: int, params: list[ctypes.Structure], n_instances: int) -> list[Footprint]:
    """Return the footprint of each context; the weights count with the first one only."""
    taken = [footprint for each in params for footprint in [_of_context(name, model, each)] * n_instances]
    return [*taken[:1], *map(without_weights, taken[1:])]


def _of_context(name: str, model: int, params: ctypes.Structure) -> Footprint:
    """Extrapolate a very large context from two smaller ones: each part grows linearly."""
    step = 256 * params.n_seq_max  # cells: a sequence's own are a multiple of 256
    few = max(1, _MOST_CELLS // step) * step
    n_ctx = params.n_ctx or C.llama_model_n_ctx_train(model)
    if n_ctx <= 2 * few:
        return _of_small_context(name, model, params)
    params.n_ctx = few
    less = _of_small_context(name, model, params)
    params.n_ctx = 2 * few
    more = _of_small_context(name, model, params)
    params.n_ctx = n_ctx
    return {device: _along(less.get(device, Bytes()), taken, n_ctx / few - 1) for device, taken in more.items()}


def _along(less: Bytes, more: Bytes, part: float) -> Bytes:
    """Interpolate between `less` (0) and `more` (1)."""
    context = less.context + int((more.context - less.context) * part)
    return Bytes(more.weights, context, less.compute + int((more.compute - less.compute) * part))


def _of_small_context(name: str, model: int, params: ctypes.Structure) -> Footprint:
    context = _quietly(name, lambda: C.llama_init_from_model(model, params))
    try:
        return breakdown(context)
    finally:
        C.llama_free(context)


def _quietly(name: str, make: Callable[[], int | None]) -> int:
    """Return the result of `make`. Its log lines become the reason of a failure, otherwise they are dropped. Raises
    `ModelFailed`.
    """
    with collect_errors(quiet=True) as errors:
        made = make()
    if not made:
        raise ModelFailed(name, reason(errors, "the native library gave no reason"))
    return made


def adapters(native: LoadParams, target: Footprint) -> Footprint:
    """Return the memory of LoRA tensors, which lie with the tensors they modify."""
    device = max(target, key=lambda name: target[name].weights, default=HOST)
    n_bytes = sum(file.path.stat().st_size for file in native.lora if file.path.is_file())
    return {device: Bytes(weights=n_bytes)} if n_bytes else {}
