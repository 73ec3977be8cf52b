"""Chooses what the settings leave open so that a model fits the memory there is: the length of the context, and what is
computed where. Pure: `measure` says what a choice takes.

The order is llama-server's (common/fit.cpp, common_params_fit_impl): the whole context on the devices; less context,
down to ``fit_ctx``; experts on the processor, from the first layer on; whole layers. Beyond it the machine's own memory
is looked at, too, and a model that has no room at all is refused with the numbers instead of by the system.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from server.errors import ModelFailed
from server.pool.footprint import HOST, Footprint, readable, totals
from server.pool.spec import ALL_THAT_FIT, LoadParams

Measured = Callable[[LoadParams], Footprint]
_CELLS = 256  # a context is made of so many, or a multiple


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the choice needs to know of a model's file."""

    n_ctx_train: int
    n_layer: int
    has_experts: bool
    n_streams: int = 1  # sequences with cells of their own


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """Bytes of each device: what a model should take at most, and what it may where nothing else is left to choose. A
    device that is not named has as much as anybody needs."""

    ample: Mapping[str, int]
    tight: Mapping[str, int]


def holds(room: Mapping[str, int], footprint: Footprint, *, host: bool = True) -> bool:
    """Whether it fits; without the `host`, whether it fits the other devices."""
    return all(
        taken <= room[name] for name, taken in totals(footprint).items() if name in room and (host or name != HOST)
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """Parameters with everything chosen, what they take, and why, in a line each."""

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
    """As much as fits everywhere: a straight line between least and most tells about where, a measurement whether."""
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
    """The shortest that may be chosen."""
    return min(shape.n_ctx_train, native.fit_ctx) * shape.n_streams


def _part_that_fits(least: Mapping[str, int], most: Mapping[str, int], room: Mapping[str, int]) -> float:
    """Of the way from least to most, 0 to 1."""
    parts = [
        (room[name] - least.get(name, 0)) / (most[name] - least.get(name, 0))
        for name in most
        if name in room and most[name] > least.get(name, 0)
    ]
    return max(0.0, min([1.0, *parts]))


def _shortened(native: LoadParams, n_most: int) -> str:
    return f"context of {native.n_ctx} tokens instead of {n_most}: more does not fit"


def _can_place(native: LoadParams) -> bool:
    """Whether the settings leave open what is computed where."""
    said = native.tensor_split or native.tensor_overrides or native.cpu_moe or native.n_cpu_moe or native.n_cpu_ffn
    return native.n_gpu_layers == ALL_THAT_FIT and not said


def _placed(chosen: Fitted, shape: ModelShape, room: DeviceBudget, measure: Measured) -> Fitted:
    """As much on the devices as they hold: the first of a row of placements, each with less on them, that fits."""
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
    return f"{moved} on the processor: the devices have no more room"


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
