"""Fits models into memory: what a context and its model take (`breakdown`), what they would take (`Measure`), what is
free (`room`), and what is chosen so that they fit (`choose`, which is pure).

`choose` decides what the settings leave open, in llama-server's order (common/fit.cpp, common_params_fit_impl): the
full context on the devices; a smaller context, down to ``fit_ctx``; experts on the CPU, first layers first; whole
layers. In addition, ``n_ubatch`` is reduced before anything leaves a device, RAM is checked, and a model that cannot
fit is refused with the numbers instead of being killed by the kernel.

`Measure` lets the library load a model without allocating (``no_alloc``), as ``common_fit_params`` does. The library's
function for the sizes of buffers (``llama_get_memory_breakdown``, src/llama-ext.h) is C++ and returns a ``std::map``: a
red-black tree whose layout libstdc++ has kept since 2004 (bits/stl_tree.h). It is read here and freed.
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

# ---- what is chosen

Limits = Mapping[str, int]
"""Bytes by device. Devices that are not listed are unlimited."""


def fitted(spec: ModelSpec, files: ModelFiles, granted: Limits, is_loaded: Callable[[LoadParams], bool]) -> Fit:
    """Return how to load `spec` within free memory, of which it may take what is `granted` of each device. Weights for
    which `is_loaded` is true take nothing more. Raises `ModelFailed`.
    """
    native, shape = spec.native, _shape_of(spec, files.header)
    if not (_can_measure(native) and shape.n_ctx_train):
        return Fit(spec)
    with Measure(spec, files) as measure:
        if not native.fit:
            footprint = measure(native)
            _check_context_fits(spec.id, footprint)
            return Fit(spec, footprint)

        def more(candidate: LoadParams) -> Footprint:
            """Return what it takes besides weights that are loaded already."""
            found = measure(candidate)
            return without_shared(found) if is_loaded(candidate) else found

        chosen = choose(spec, shape, *_limits(native, granted), more)
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
    """Return False if tensors are split, which the library's own fit does not measure either."""
    return can_tell() and native.split_mode != "tensor"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The facts of a model's file that the choice needs."""

    n_ctx_train: int
    n_layer: int
    has_experts: bool
    n_streams: int = 1  # sequences with cells of their own
    n_ubatches: tuple[int, ...] = ()  # smaller ones that may be chosen


def holds(limits: Limits, footprint: Footprint, *, host: bool = True) -> bool:
    """Return whether it fits; without the `host`, whether it fits the other devices."""
    return all(
        taken <= limits[name] for name, taken in totals(footprint).items() if name in limits and (host or name != HOST)
    )


def choose(
    spec: ModelSpec, shape: ModelShape, ample: Limits, tight: Limits, measure: Callable[[LoadParams], Footprint]
) -> Fit:
    """Return how to load `spec` within `ample`, or at least within `tight`; otherwise raise `ModelFailed`."""
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


def _less_context(whole: LoadParams, shape: ModelShape, fits: Fits) -> tuple[LoadParams, str]:
    """Return the largest context that fits everywhere, or the least; and a note on it."""
    n_least, n_most, step = _least_context(whole, shape), whole.n_ctx, CELLS * shape.n_streams
    if n_least >= n_most:
        return whole, ""
    sizes = range(n_least // step * step, n_most, step)
    n_fit = bisect_left(sizes, True, lo=1, key=lambda n: not fits(replace(whole, n_ctx=n)))
    n_ctx = max(n_least, sizes[n_fit - 1])
    return replace(whole, n_ctx=n_ctx), f"context of {n_ctx} tokens instead of {n_most}: more does not fit"


def _least_context(native: LoadParams, shape: ModelShape) -> int:
    """Return the shortest that may be chosen."""
    return min(shape.n_ctx_train, native.fit_ctx) * shape.n_streams


def _smaller_ubatch(whole: LoadParams, shape: ModelShape, fits: Fits) -> tuple[LoadParams, str]:
    """Return fewer tokens evaluated at once if it fits then: prefill is slower, but decode is not."""
    for n_ubatch in shape.n_ubatches:
        if fits(native := replace(whole, n_ubatch=n_ubatch)):
            return native, f"n_ubatch of {n_ubatch} instead of {whole.n_ubatch}: the buffers of more do not fit"
    return whole, ""


def _can_place(native: LoadParams) -> bool:
    """Return whether the settings leave the placement open."""
    said = native.tensor_split or native.tensor_overrides or native.cpu_moe or native.n_cpu_moe or native.n_cpu_ffn
    return native.n_gpu_layers == ALL_THAT_FIT and not said


def _placed(whole: LoadParams, shape: ModelShape, fits: Fits) -> tuple[LoadParams, str]:
    """Place as much on the devices as fits: try placements with less and less on them."""
    steps = [replace(whole, n_cpu_moe=n) for n in range(1, shape.n_layer + 1) if shape.has_experts]
    experts_off = steps[-1] if steps else whole
    steps += [replace(experts_off, n_gpu_layers=n) for n in range(shape.n_layer, -1, -1)]
    # each step has less on the devices than the one before; the last one is taken in any case
    native = steps[bisect_left(steps[:-1], True, key=fits)]
    return native, _where(native, shape)


def _where(native: LoadParams, shape: ModelShape) -> str:
    if native.n_gpu_layers < 0:
        moved = f"experts of {native.n_cpu_moe} of {shape.n_layer} layers"
    else:
        moved = f"{shape.n_layer + 1 - native.n_gpu_layers} of {shape.n_layer + 1} layers"
        moved += ", and all experts," if native.n_cpu_moe else ""
    return f"{moved} on the CPU: the devices have no more room"


def _too_large(chosen: Fit, limits: Limits, *, shortened: bool) -> str:
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
    """Return the shape of a model that is loaded as `spec` says. ``n_ubatch`` bounds the length of an embedding's text
    and of a medium, and only its default is changed.
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
    """Return what a model should take, at most free memory minus ``fit_target``, and what it may take. Both are at most
    `granted`.
    """
    now = machine_memory()
    devices = [name for name in now if name != HOST]
    targets = native.fit_target * (len(devices) if len(native.fit_target) == 1 else 1)
    kept = {name: mib << 20 for name, mib in zip(devices, targets, strict=False)}
    if not devices:
        kept[HOST] = native.fit_target[0] << 20
    tight = {name: min(memory.free, granted.get(name, memory.free)) for name, memory in now.items()}
    ample = {name: min(tight[name], memory.free - kept.get(name, 0)) for name, memory in now.items()}
    return ample, tight


def _check_context_fits(model: str, footprint: Footprint) -> None:
    """Raise `ModelFailed` if the contexts need more RAM than is available; otherwise the kernel would end the process.
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


# ---- what a context and its model take

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_ROOT, _COUNT = 2, 5  # words of the map: unused, the header's color, root, leftmost, rightmost, number of nodes
_LEFT, _RIGHT, _VALUE = 2, 3, 4  # words of a node: color, parent, left, right; buffer type and three sizes
_NODE_WORDS = 8
_Map = ctypes.c_size_t * 6


class Tree(ctypes.Structure):
    """``std::map`` by value; large enough that every calling convention returns it in memory, as C++ does."""

    _fields_ = [("words", _Map)]


def can_tell() -> bool:
    """Return whether the library reports its memory: on Linux, whose builds use libstdc++."""
    return sys.platform == "linux" and hasattr(C._lib, _SYMBOL)


def breakdown(context: int, used: Sequence[str] = ()) -> dict[str, Bytes]:
    """Return the memory by device of a context and its model, on the devices `used`; empty unless `can_tell`."""
    if not can_tell():
        return {}
    tree = bind(C._lib, _SYMBOL, Tree, ctypes.c_void_p)(context)
    entries = [words[_VALUE:] for words in tree_nodes(tree, _NODE_WORDS)]
    return added({name: Bytes(*sizes)} for buffers, *sizes in entries for name in _devices(buffers, used))


def tree_nodes(tree: Tree, n_words: int) -> list[list[int]]:
    """Return the words of every node of a map whose nodes have so many, in order; the map is freed."""
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
    """Append the memory of a new context to `taken` by others over the same weights, which count with the first."""
    found = breakdown(context, [device.name for device in used_devices(native)])
    taken.append(without_weights(found) if taken else found)


def with_shared(footprint: Footprint) -> Footprint:
    """Return the footprint of a model whose weights other entries may share."""
    return {device: replace(taken, shared=taken.weights) for device, taken in footprint.items()}


def without_shared(footprint: Footprint) -> Footprint:
    """Return what an entry takes that finds its weights loaded."""
    return {device: replace(each, weights=each.weights - each.shared, shared=0) for device, each in footprint.items()}


def without_weights(footprint: Footprint) -> Footprint:
    """Return the footprint of a further context over the same weights."""
    return {device: replace(taken, weights=0) for device, taken in footprint.items()}


# ---- what they would take

_LOAD_PLAIN = 0  # enum llama_load_mode: nothing is mapped
_MOST_CELLS = 1 << 19  # the library's notes of a cell take 48 bytes, also where no buffer is allocated


class Measure:
    """Measures one specification with different parameters. Files stay open until the context manager ends."""

    def __init__(self, spec: ModelSpec, files: ModelFiles) -> None:
        self._spec = spec
        self._files = files
        self._generates = generates(files.header, spec.native)
        self._draft = spec.draft if self._generates else None
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
        if self._spec.mmproj is not None and self._media is None:
            from server.llama.media.projector import projector_memory  # libmtmd is loaded only if needed

            self._media = projector_memory(self._spec.id, self._spec.mmproj, native)
        return added([*parts, self._media or {}])

    def _target(self, spec: ModelSpec, n_instances: int) -> list[Footprint]:
        model = self._model(self._files, spec.native)
        params = [generator_params(model, spec)] if self._generates else []
        if self._generates and spec.native.mtp:
            check_heads(spec.id, self._files)
            params.append(heads_params(model, spec))
        if embeds(self._files.header, spec.native):
            params.append(embedding_params(model, spec.id, self._files.header, spec.native))
        in_graph = self._generates and spec.engine.backend_sampling
        with largest_chains(model, params[0], wanted=in_graph):
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
        start_backend(native.numa)
        params = model_params(self._spec.id, _without_vocabulary(files.header, native), files)
        params.no_alloc, params.load_mode = True, _LOAD_PLAIN
        path = bytes(files.path)
        model = _quietly(self._spec.id, lambda: C.llama_model_load_from_file(path, params))
        self._open[files.path] = placed, model
        return model


def _without_vocabulary(header: GgufHeader, native: LoadParams) -> LoadParams:
    """Make the library read no tokens (``no_vocab``): only their number changes the size of a buffer, and reading
    49,000 tokens and their merges takes four fifths of the time."""
    n_tokens, key = header.lengths.get("tokenizer.ggml.tokens", 0), "tokenizer.ggml.model"
    if not n_tokens or any(each.key == key for each in native.metadata_overrides):
        return native
    size = MetadataOverride(f"{header.architecture}.vocab_size", n_tokens)
    return replace(native, metadata_overrides=(*native.metadata_overrides, MetadataOverride(key, "no_vocab"), size))


def _of_contexts(name: str, model: int, params: list[ctypes.Structure], n_instances: int) -> list[Footprint]:
    """Return the footprint of each context; the weights count with the first one only."""
    taken = [footprint for each in params for footprint in [_of_context(name, model, each)] * n_instances]
    return [*taken[:1], *map(without_weights, taken[1:])]


def _of_context(name: str, model: int, params: ctypes.Structure) -> Footprint:
    """Extrapolate a very large context from two smaller ones: each part grows linearly."""

    def measured(n_ctx: int) -> Footprint:
        params.n_ctx = n_ctx
        context = _quietly(name, lambda: C.llama_init_from_model(model, params))
        try:
            return breakdown(context)
        finally:
            C.llama_free(context)

    step = CELLS * params.n_seq_max  # cells: a sequence's own are a multiple
    few = max(1, _MOST_CELLS // step) * step
    n_ctx = params.n_ctx or C.llama_model_n_ctx_train(model)
    if n_ctx <= 2 * few:
        return measured(params.n_ctx)
    less, more, part = measured(few), measured(2 * few), n_ctx / few - 1
    params.n_ctx = n_ctx
    found = {}
    for device, taken in more.items():
        before = less.get(device, Bytes())
        n_context = before.context + int((taken.context - before.context) * part)
        found[device] = Bytes(taken.weights, n_context, before.compute + int((taken.compute - before.compute) * part))
    return found


def _quietly(name: str, make: Callable[[], int | None]) -> int:
    """Return the result of `make`, whose log lines are dropped. Raises `ModelFailed` with the library's reason."""
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
