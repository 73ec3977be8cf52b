"""Chooses what the settings leave open so that a model fits the free memory: context size and placement. Pure:
`measure` says what a choice takes.

The order is llama-server's (common/fit.cpp, common_params_fit_impl): the full context on the devices; a smaller
context, down to ``fit_ctx``; experts on the CPU, first layers first; whole layers. In addition RAM is checked, and a
model that cannot fit is refused with the numbers instead of being killed by the kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from server.errors import ModelFailed
from server.pool.memory import HOST, Footprint, readable, totals
from server.pool.spec import ALL_THAT_FIT, LoadParams

Measured = Callable[[LoadParams], Footprint]
_CELLS = 256  # a context is made of so many, or a multiple


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The facts of a model's file that the choice needs."""

    n_ctx_train: int
    n_layer: int
    has_experts: bool
    n_streams: int = 1  # sequences with cells of their own


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """Bytes of each device: the preferred limit, and the hard limit if nothing else can be chosen. Devices that are not
    listed are unlimited.
    """

    ample: Mapping[str, int]
    tight: Mapping[str, int]


def holds(room: Mapping[str, int], footprint: Footprint, *, host: bool = True) -> bool:
    """Return whether it fits; without the `host`, whether it fits the other devices."""
    return all(
        taken <= room[name] for name, taken in totals(footprint).items() if name in room and (host or name != HOST)
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """The chosen parameters, what they take, and the reasons, one line each."""

    native: LoadParams
    footprint: Footprint
    notes: tuple[str, ...] = ()


def choose(model: str, native: LoadParams, shape: ModelShape, room: DeviceBudget, measure: Measured) -> Fitted:
    """Raises `ModelFailed` when not even the least fits."""
    whole = replace(native, n_ctx=native.n_ctx or shape.n_ctx_train * shape.n_streams)
    chosen = Fitted(whole, measure(whole))
    if holds(room.ample, chosen.footprint):
        return chosen
    if native.n_ctx == 0:
        chosen = _less_context(whole, shape, room, measure)
    if _can_place(native) and not holds(room.ample, chosen.footprint, host=False):
        chosen = _placed(chosen, shape, room, measure)
    if not holds(room.tight, chosen.footprint):
        raise ModelFailed(model, _too_large(chosen, room, shortened=native.n_ctx == 0))
    return chosen


def _less_context(whole: LoadParams, shape: ModelShape, room: DeviceBudget, measure: Measured) -> Fitted:
    """Return the largest context that fits everywhere: estimated by linear interpolation, confirmed by measuring."""
    n_least, n_most = least_context(whole, shape), whole.n_ctx
    least, most = measure(replace(whole, n_ctx=n_least)), measure(whole)
    step, part = _CELLS * shape.n_streams, _part_that_fits(totals(least), totals(most), room.ample)
    n_ctx = n_least + int((n_most - n_least) * part) // step * step
    while n_ctx > n_least:
        native = replace(whole, n_ctx=n_ctx)
        footprint = measure(native)
        if holds(room.ample, footprint):
            return Fitted(native, footprint, (_shortened(native, n_most),))
        n_ctx = max(n_least, min(n_ctx - step, int(n_ctx * 0.97) // step * step))
    native = replace(whole, n_ctx=n_least)
    return Fitted(native, least, (_shortened(native, n_most),) if n_least < n_most else ())


def least_context(native: LoadParams, shape: ModelShape) -> int:
    """Return the shortest that may be chosen."""
    return min(shape.n_ctx_train, native.fit_ctx) * shape.n_streams


def _part_that_fits(least: Mapping[str, int], most: Mapping[str, int], room: Mapping[str, int]) -> float:
    """Return the fraction of the way from least to most that fits, 0 to 1."""
    parts = [
        (room[name] - least.get(name, 0)) / (most[name] - least.get(name, 0))
        for name in most
        if name in room and most[name] > least.get(name, 0)
    ]
    return max(0.0, min([1.0, *parts]))


def _shortened(native: LoadParams, n_most: int) -> str:
    return f"context of {native.n_ctx} tokens instead of {n_most}: more does not fit"


def _can_place(native: LoadParams) -> bool:
    """Return whether the settings leave the placement open."""
    said = native.tensor_split or native.tensor_overrides or native.cpu_moe or native.n_cpu_moe or native.n_cpu_ffn
    return native.n_gpu_layers == ALL_THAT_FIT and not said


def _placed(chosen: Fitted, shape: ModelShape, room: DeviceBudget, measure: Measured) -> Fitted:
    """Place as much on the devices as fits: try placements with less and less on them."""
    steps = [replace(chosen.native, n_cpu_moe=n) for n in range(1, shape.n_layer + 1) if shape.has_experts]
    experts_off = steps[-1] if steps else chosen.native
    steps += [replace(experts_off, n_gpu_layers=n) for n in range(shape.n_layer, -1, -1)]
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        if holds(room.ample, measure(steps[middle]), host=False):
            high = middle
        else:
            low = middle + 1
    native = steps[low]
    return Fitted(native, measure(native), (*chosen.notes, _where(native, shape)))


def _where(native: LoadParams, shape: ModelShape) -> str:
    if native.n_gpu_layers < 0:
        moved = f"experts of {native.n_cpu_moe} of {shape.n_layer} layers"
    else:
        moved = f"{shape.n_layer + 1 - native.n_gpu_layers} of {shape.n_layer + 1} layers"
        moved += ", and all experts," if native.n_cpu_moe else ""
    return f"{moved} on the CPU: the devices have no more room"


def _too_large(chosen: Fitted, room: DeviceBudget, *, shortened: bool) -> str:
    name = next(name for name, taken in totals(chosen.footprint).items() if taken > room.tight.get(name, taken))
    taken = chosen.footprint[name]
    remedy = "a smaller fit_ctx" if shortened else "a smaller n_ctx, or leave it out"
    return (
        f"it needs {readable(taken.total)} of {name} memory with a context of {chosen.native.n_ctx} tokens (weights "
        f"{readable(taken.weights)}, context {readable(taken.context)}, computing {readable(taken.compute)}), and "
        f"{readable(room.tight[name])} are left for it: set {remedy}, smaller cache_type_k/v, take a smaller "
        "quantization, or try all the same with fit: off"
    )
