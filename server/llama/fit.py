"""Fits models into memory: the memory that a context and its model use (`breakdown`) or would use (`Measure`), free
memory (`machine_memory`), and load parameters that fit (`choose`, which is pure).

`choose` decides what the settings leave open, in llama-server's order (common/fit.cpp, common_params_fit_impl): the
full context on the devices; a smaller context, down to ``fit_ctx``; experts on the CPU, first layers first; whole
layers. In addition, ``n_ubatch`` is reduced before anything leaves a device, and RAM is checked. A model that cannot
fit is rejected with the numbers, because the kernel would kill the process.

`Measure` lets the library load a model without allocating (``no_alloc``), as ``common_fit_params`` does. The library's
function for the sizes of buffers (``llama_get_memory_breakdown``, src/llama-ext.h) is C++ and returns a ``std::map``: a
red-black tree whose layout in libstdc++ is stable since 2004 (bits/stl_tree.h). It is read here and freed.
"""

import ctypes
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Self

from server.errors import ModelFailed
from server.llama.context.params import CELLS, context_params, embedding_params, generator_params, heads_params
from server.llama.devices import CPU, device_memory, device_of_buffers, split_over_several, used_devices
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.model_file import ModelFiles, check_files
from server.llama.files.roles import check_heads, embeds, generates
from server.llama.library import C, bind, collect_errors, reason, start_backend
from server.llama.sampling.graph import largest_chains
from server.llama.weights.params import model_params
from server.pool.memory import HOST, Bytes, Fit, Footprint, Memory, added, readable, totals
from server.pool.spec import ALL_THAT_FIT, DraftFile, LoadParams, MetadataOverride, ModelSpec
from server.sandbox.memory import available_bytes, total_bytes

# ---- the choice

Limits = Mapping[str, int]
"""Bytes by device. Devices that are not listed are unlimited."""


def fitted(spec: ModelSpec, files: ModelFiles, granted: Limits, is_loaded: Callable[[LoadParams], bool]) -> Fit:
    """Return how to load `spec` within free memory and within `granted`. Raises `ModelFailed`.

    Weights for which `is_loaded` returns True need no further memory.
    """
    native, shape = spec.native, _shape_of(spec, files.header)
    if not (_can_measure(native) and shape.n_ctx_train):
        return Fit(spec)
    with Measure(spec, files) as measure:
        if not native.fit:
            footprint = measure(native)
            _check_context_fits(spec.id, footprint)
            return Fit(spec, footprint)

        def additional(candidate: LoadParams) -> Footprint:
            """Return the memory that is needed besides weights that are already loaded."""
            footprint = measure(candidate)
            return without_shared(footprint) if is_loaded(candidate) else footprint

        chosen = choose(spec, shape, *_limits(native, granted), additional)
        native = chosen.spec.native
        return replace(chosen, footprint=measure(native)) if is_loaded(native) else chosen


def least(spec: ModelSpec, files: ModelFiles) -> Footprint:
    """Return the footprint with the shortest context that `fitted` may choose; empty if unknown."""
    native = spec.native
    if not _can_measure(native):
        return {}
    if native.fit and native.n_ctx == 0:
        native = replace(native, n_ctx=_least_context(native, _shape_of(spec, files.header)))
    with Measure(spec, files) as measure:
        return measure(native)


def _can_measure(native: LoadParams) -> bool:
    """Return whether memory can be predicted: not for split tensors, which the library's own fit does not measure."""
    return reports_memory() and native.split_mode != "tensor"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The facts of a model on which the choice depends."""

    n_ctx_train: int
    n_layer: int
    has_experts: bool
    n_streams: int = 1  # sequences with separate KV
    n_ubatches: tuple[int, ...] = ()  # smaller values of n_ubatch that may be chosen


def holds(limits: Limits, footprint: Footprint, *, host: bool = True) -> bool:
    """Return whether `footprint` is within `limits`; if not `host`, only on devices other than the host."""
    return all(
        taken <= limits[name] for name, taken in totals(footprint).items() if name in limits and (host or name != HOST)
    )


def choose(
    spec: ModelSpec, shape: ModelShape, ample: Limits, tight: Limits, measure: Callable[[LoadParams], Footprint]
) -> Fit:
    """Return how to load `spec` within `ample` if possible, and within `tight`. Raises `ModelFailed`."""
    given, measured, notes = spec.native, cache(measure), list[str]()

    def fits(native: LoadParams, *, host: bool) -> bool:
        return holds(ample, measured(native), host=host)

    native = replace(given, n_ctx=given.n_ctx or shape.n_ctx_train * shape.n_streams)
    for change, is_open, host in (
        (_less_context, given.n_ctx == 0, True),
        (_smaller_ubatch, True, True),
        (_placed, _can_place(given), False),
    ):
        if is_open and not fits(native, host=host):
            native, note = change(native, shape, partial(fits, host=host))
            notes += [note] if note else []
    chosen = Fit(replace(spec, native=native), measured(native), tuple(notes))
    if not holds(tight, chosen.footprint):
        raise ModelFailed(spec.id, _too_large(chosen, tight, shortened=given.n_ctx == 0))
    return chosen


Fits = Callable[[LoadParams], bool]


def _less_context(full: LoadParams, shape: ModelShape, fits: Fits) -> tuple[LoadParams, str]:
    """Return parameters with the largest context that fits, at least the shortest one; and a note."""
    n_min, n_max, step = _least_context(full, shape), full.n_ctx, CELLS * shape.n_streams
    if n_min >= n_max:
        return full, ""
    sizes = range(n_min // step * step, n_max, step)
    n_fit = bisect_left(sizes, True, lo=1, key=lambda n: not fits(replace(full, n_ctx=n)))
    n_ctx = max(n_min, sizes[n_fit - 1])
    return replace(full, n_ctx=n_ctx), f"context of {n_ctx} tokens instead of {n_max}: more does not fit"


def _least_context(native: LoadParams, shape: ModelShape) -> int:
    """Return the shortest context that may be chosen."""
    return min(shape.n_ctx_train, native.fit_ctx) * shape.n_streams


def _smaller_ubatch(full: LoadParams, shape: ModelShape, fits: Fits) -> tuple[LoadParams, str]:
    """Return parameters with a smaller ubatch if they fit, and a note. It slows down prefill, not decode."""
    for n_ubatch in shape.n_ubatches:
        if fits(native := replace(full, n_ubatch=n_ubatch)):
            return native, f"n_ubatch of {n_ubatch} instead of {full.n_ubatch}: the buffers of more do not fit"
    return full, ""


def _can_place(native: LoadParams) -> bool:
    """Return whether the settings leave the placement open."""
    cpu_options = native.tensor_overrides or native.cpu_moe or native.n_cpu_moe or native.n_cpu_ffn
    return native.n_gpu_layers == ALL_THAT_FIT and not (native.tensor_split or cpu_options)


def _placed(full: LoadParams, shape: ModelShape, fits: Fits) -> tuple[LoadParams, str]:
    """Return the placement with the most on the devices that fits, otherwise nothing on them; and a note."""
    candidates = [replace(full, n_cpu_moe=n) for n in range(1, shape.n_layer + 1) if shape.has_experts]
    without_experts = candidates[-1] if candidates else full
    candidates += [replace(without_experts, n_gpu_layers=n) for n in range(shape.n_layer, -1, -1)]
    # each has less on the devices than the one before
    native = candidates[bisect_left(candidates[:-1], True, key=fits)]
    return native, _placement_note(native, shape)


def _placement_note(native: LoadParams, shape: ModelShape) -> str:
    if native.n_gpu_layers < 0:
        moved = f"experts of {native.n_cpu_moe} of {shape.n_layer} layers"
    else:
        moved = f"{shape.n_layer + 1 - native.n_gpu_layers} of {shape.n_layer + 1} layers"
        moved += ", and all experts," if native.n_cpu_moe else ""
    return f"{moved} on the CPU: the devices have no more room"


def _too_large(chosen: Fit, limits: Limits, *, shortened: bool) -> str:
    """Return the reason why even `chosen` exceeds `limits`. `shortened`: its context was chosen automatically."""
    name = next(name for name, taken in totals(chosen.footprint).items() if taken > limits.get(name, taken))
    taken, n_ctx = chosen.footprint[name], chosen.spec.native.n_ctx
    remedy = "a smaller fit_ctx" if shortened else "a smaller n_ctx, or leave it out"
    return (
        f"it needs {readable(taken.total)} of {name} memory with a context of {n_ctx} tokens (weights "
        f"{readable(taken.weights)}, context {readable(taken.context)}, computing {readable(taken.compute)}), and "
        f"{readable(limits[name])} are left for it: set {remedy}, smaller cache_type_k/v, take a smaller "
        "quantization, or try all the same with fit: off"
    )


_UBATCHES = 256, 128


def _shape_of(spec: ModelSpec, header: GgufHeader) -> ModelShape:
    """Return the shape of a model. ``n_ubatch`` is not reduced for embedding models and media, whose length it limits,
    nor if it is configured.
    """
    native = spec.native
    is_open = native.fit_ubatch and not embeds(header, native) and spec.mmproj is None
    return ModelShape(
        n_ctx_train=header.of_model("context_length"),
        n_layer=header.of_model("block_count"),
        has_experts=header.of_model("expert_count") > 0,
        n_streams=1 if native.unified or not generates(header, native) else native.n_slots,
        n_ubatches=_UBATCHES if is_open else (),
    )


def machine_memory() -> dict[str, Memory]:
    """Return the memory of every device that reports it, and of RAM under `HOST`."""
    found = device_memory()
    if available := available_bytes():
        found[HOST] = Memory(total_bytes(available), available)
    return found


def _limits(native: LoadParams, granted: Limits) -> tuple[Limits, Limits]:
    """Return the limits of `choose`: free memory minus ``fit_target``, and free memory. Both are at most `granted`."""
    now = machine_memory()
    devices = [name for name in now if name != HOST]
    targets = native.fit_target * (len(devices) if len(native.fit_target) == 1 else 1)
    reserved = {name: mib << 20 for name, mib in zip(devices, targets, strict=False)}
    if not devices:
        reserved[HOST] = native.fit_target[0] << 20
    tight = {name: min(memory.free, granted.get(name, memory.free)) for name, memory in now.items()}
    ample = {name: min(tight[name], memory.free - reserved.get(name, 0)) for name, memory in now.items()}
    return ample, tight


def _check_context_fits(model: str, footprint: Footprint) -> None:
    """Raise `ModelFailed` if the contexts need more RAM than is available, because the kernel would kill the process.
    Weights do not count, because their pages can be read again from the file.
    """
    taken, available = footprint.get(HOST, Bytes()), available_bytes()
    needed = taken.context + taken.compute
    if needed > available > 0:
        raise ModelFailed(
            model,
            f"its context needs {readable(needed)}, {readable(available)} of memory are available: set a smaller n_ctx "
            "or a smaller cache_type_k/v",
        )


# ---- memory in use

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_ROOT, _COUNT = 2, 5  # words of the map: unused, the header's color, root, leftmost, rightmost, number of nodes
_LEFT, _RIGHT, _VALUE = 2, 3, 4  # words of a node: color, parent, left, right; buffer type and three sizes
_NODE_WORDS = 8
_Map = ctypes.c_size_t * 6


class Tree(ctypes.Structure):
    """A ``std::map`` by value. It is large enough that every calling convention returns it in memory, as C++ does."""

    _fields_ = [("words", _Map)]


def reports_memory() -> bool:
    """Return whether the library reports its memory: on Linux, where it is built with libstdc++."""
    return sys.platform == "linux" and hasattr(C._lib, _SYMBOL)


def breakdown(context: int, used: Sequence[str] = ()) -> dict[str, Bytes]:
    """Return the memory of a context and its model by device; empty unless `reports_memory`. `used`: the devices of the
    model, over which split buffers are counted.
    """
    if not reports_memory():
        return {}
    tree = bind(C._lib, _SYMBOL, Tree, ctypes.c_void_p)(context)
    entries = [words[_VALUE:] for words in tree_nodes(tree, _NODE_WORDS)]
    return added({name: Bytes(*sizes)} for buffers, *sizes in entries for name in _devices(buffers, used))


def tree_nodes(tree: Tree, n_words: int) -> list[list[int]]:
    """Return the first `n_words` of every node of a map, in order, and free the map."""
    nodes = list(_nodes(tree.words[_ROOT]))
    delete = bind(C._lib, "_ZdlPv", None, ctypes.c_void_p)  # operator delete
    found = [list((ctypes.c_size_t * n_words).from_address(node)) for node in nodes]
    for node in nodes:
        delete(node)
    assert len(found) == tree.words[_COUNT], "the library's map has another layout"
    return found


def _nodes(node: int) -> Iterator[int]:
    if node:
        words = (ctypes.c_size_t * _VALUE).from_address(node)
        yield from _nodes(words[_LEFT])
        yield node
        yield from _nodes(words[_RIGHT])


def _devices(buffer_type: int, used: Sequence[str]) -> Sequence[str]:
    if split_over_several(buffer_type):
        return used
    device = device_of_buffers(buffer_type)
    return [HOST if device is None or device.type == CPU else device.name]


def count_context(taken: list[Footprint], context: int, native: LoadParams) -> None:
    """Append the memory of a new context to `taken`, that of earlier ones. Weights count with the first context."""
    found = breakdown(context, [device.name for device in used_devices(native)])
    taken.append(without_weights(found) if taken else found)


def with_shared(footprint: Footprint) -> Footprint:
    """Return the footprint of a model whose weights other models may share."""
    return {device: replace(taken, shared=taken.weights) for device, taken in footprint.items()}


def without_shared(footprint: Footprint) -> Footprint:
    """Return the footprint of a model whose shared weights are already loaded."""
    return {device: replace(each, weights=each.weights - each.shared, shared=0) for device, each in footprint.items()}


def without_weights(footprint: Footprint) -> Footprint:
    """Return the footprint of another context of the same weights."""
    return {device: replace(taken, weights=0) for device, taken in footprint.items()}


# ---- predicted memory

_LOAD_PLAIN = 0  # enum llama_load_mode: without mmap
_MAX_MEASURED_CELLS = 1 << 19  # the library's metadata of a cell takes 48 bytes, even if no buffer is allocated


class Measure:
    """Predicts the memory of a model with different load parameters. Its files stay open until `__exit__`."""

    def __init__(self, spec: ModelSpec, files: ModelFiles) -> None:
        self._spec = spec
        self._files = files
        self._generates = generates(files.header, spec.native)
        self._draft = spec.draft if self._generates else None
        self._open: dict[Path, tuple[LoadParams, int]] = {}
        self._media: Footprint | None = None  # of the projector, the same with all parameters

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _placed, model in self._open.values():
            C.llama_model_free(model)

    def __call__(self, native: LoadParams) -> Footprint:
        """Return the footprint of all instances, with draft model and projector. Raises `ModelFailed`."""
        sets = native.devices * native.instances if len(native.devices) == 1 else native.devices
        parts: list[Footprint] = []
        counted: Counter[tuple[str, ...] | None] = Counter(sets)
        for devices, n_instances in counted.items():
            one = replace(native, devices=(devices,))
            parts += self._target_footprints(replace(self._spec, native=one), n_instances)
            if self._draft is not None:
                parts += self._draft_footprints(self._draft, one, n_instances)
        if self._spec.mmproj is not None and self._media is None:
            from server.llama.media.projector import projector_memory  # libmtmd is loaded only if needed

            self._media = projector_memory(self._spec.id, self._spec.mmproj, native)
        return added([*parts, self._media or {}])

    def _target_footprints(self, spec: ModelSpec, n_instances: int) -> list[Footprint]:
        model = self._model(self._files, spec.native)
        params = [generator_params(model, spec)] if self._generates else []
        if self._generates and spec.native.mtp:
            check_heads(spec.id, self._files)
            params.append(heads_params(model, spec))
        if embeds(self._files.header, spec.native):
            params.append(embedding_params(model, spec.id, self._files.header, spec.native))
        in_graph = self._generates and spec.engine.backend_sampling
        with largest_chains(model, params[0], wanted=in_graph):
            footprints = _context_footprints(spec.id, model, params, n_instances)
        return [with_shared(footprints[0]), *footprints[1:], adapters(spec.native, footprints[0])]

    def _draft_footprints(self, draft: DraftFile, target: LoadParams, n_instances: int) -> list[Footprint]:
        """Return the draft model's footprints. Its contexts are as large as those of the target model."""
        native = replace(draft.native, n_ctx=target.n_ctx)
        if native.devices == (None,):
            native = replace(native, devices=target.devices)
        name = f"{self._spec.id}, draft_model"
        model = self._model(check_files(name, draft.path, native.metadata_overrides), native)
        return _context_footprints(name, model, [context_params(name, native)], n_instances)

    def _model(self, files: ModelFiles, native: LoadParams) -> int:
        """Return the native model of a file, which is loaded again if another placement was measured last."""
        placed = replace(native, n_ctx=0)
        before = self._open.get(files.path)
        if before is not None and before[0] == placed:
            return before[1]
        if before is not None:
            del self._open[files.path]
            C.llama_model_free(before[1])
        start_backend(native.numa)
        params = model_params(self._spec.id, _without_vocabulary(files.header, native), files)
        params.no_alloc, params.load_mode = True, _LOAD_PLAIN
        path = bytes(files.path)
        model = _quietly(self._spec.id, lambda: C.llama_model_load_from_file(path, params))
        self._open[files.path] = placed, model
        return model


def _without_vocabulary(header: GgufHeader, native: LoadParams) -> LoadParams:
    """Return parameters with which the library reads no vocabulary (``no_vocab``). Only the number of tokens changes
    the size of a buffer, and reading 49,000 tokens and their merges takes four fifths of the time.
    """
    n_tokens, key = header.lengths.get("tokenizer.ggml.tokens", 0), "tokenizer.ggml.model"
    if not n_tokens or any(each.key == key for each in native.metadata_overrides):
        return native
    size = MetadataOverride(f"{header.architecture}.vocab_size", n_tokens)
    return replace(native, metadata_overrides=(*native.metadata_overrides, MetadataOverride(key, "no_vocab"), size))


def _context_footprints(name: str, model: int, params: list[ctypes.Structure], n_instances: int) -> list[Footprint]:
    """Return the footprint of each context. Weights count with the first one only."""
    footprints = [footprint for each in params for footprint in [_context_footprint(name, model, each)] * n_instances]
    return [*footprints[:1], *map(without_weights, footprints[1:])]


def _context_footprint(name: str, model: int, params: ctypes.Structure) -> Footprint:
    """Return the footprint of a context. Extrapolates a very large one from two smaller ones: parts grow linearly."""

    def measured(n_ctx: int) -> Footprint:
        params.n_ctx = n_ctx
        context = _quietly(name, lambda: C.llama_init_from_model(model, params))
        try:
            return breakdown(context)
        finally:
            C.llama_free(context)

    step = CELLS * params.n_seq_max  # the cells of each sequence are a multiple of CELLS
    n_small = max(1, _MAX_MEASURED_CELLS // step) * step
    n_ctx = params.n_ctx or C.llama_model_n_ctx_train(model)
    if n_ctx <= 2 * n_small:
        return measured(params.n_ctx)
    small, double, factor = measured(n_small), measured(2 * n_small), n_ctx / n_small - 1
    params.n_ctx = n_ctx
    footprint = {}
    for device, more in double.items():
        less = small.get(device, Bytes())
        context = less.context + int((more.context - less.context) * factor)
        footprint[device] = Bytes(more.weights, context, less.compute + int((more.compute - less.compute) * factor))
    return footprint


def _quietly(name: str, create: Callable[[], int | None]) -> int:
    """Return the result of `create`, whose log lines are dropped. Raises `ModelFailed` with the library's reason."""
    with collect_errors(quiet=True) as errors:
        created = create()
    if not created:
        raise ModelFailed(name, reason(errors, "the native library gave no reason"))
    return created


def adapters(native: LoadParams, target: Footprint) -> Footprint:
    """Return the memory of LoRA tensors, which are on the devices of the tensors that they modify."""
    device = max(target, key=lambda name: target[name].weights, default=HOST)
    n_bytes = sum(file.path.stat().st_size for file in native.lora if file.path.is_file())
    return {device: Bytes(weights=n_bytes)} if n_bytes else {}
