"""The table of ``llamapool fit``: memory of a model without loading it, and the contexts that would fit."""

from collections.abc import Mapping
from dataclasses import replace

from server.errors import ModelFailed
from server.pool.memory import Budget, Footprint, Memory, readable, totals
from server.pool.protocols import Loader
from server.pool.spec import ModelSpec

_HEAD = ("", "weights", "context", "computing", "together", "free", "models may take")
_SHORTEST = 4096


def fit_table(loader: Loader, spec: ModelSpec, budget: Budget) -> tuple[list[str], bool]:
    """Return the lines of a model that may use the whole `budget`, and whether it fits. Blocking."""
    title = f"{spec.id}: {spec.path}" if spec.id != str(spec.path) else spec.id
    memory = loader.memory()
    limits = budget.limits(memory)
    try:
        fit = loader.fit(spec, limits)
    except ModelFailed as error:
        return [title, f"  can't be loaded: {error.reason}", *_others(loader, spec, limits)], False
    native = fit.spec.native
    cells = f"{native.n_ctx} tokens of context" if native.n_ctx else "the context that the model was trained for"
    slots = f"{native.n_slots} slot{'s' * (native.n_slots > 1)}"
    shared = " that share them" if native.unified and native.n_slots > 1 else ""
    instances = f", {native.instances} times" if native.instances > 1 else ""
    lines = [title, f"  {cells} for {slots}{shared}{instances}"]
    lines += [f"  {note}" for note in fit.notes]
    if not fit.footprint:
        return [*lines, "  its memory cannot be measured on this system"], True
    return [*lines, *_devices(fit.footprint, memory, limits), *_others(loader, spec, limits)], True


def _devices(footprint: Footprint, memory: Mapping[str, Memory], limits: Mapping[str, int]) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEAD]
    for name, taken in footprint.items():
        sizes = (taken.weights, taken.context, taken.compute, taken.total)
        free = readable(memory[name].free) if name in memory else "?"
        rows.append((name, *map(readable, sizes), free, readable(limits[name]) if name in limits else "?"))
    return _aligned(rows)


def _others(loader: Loader, spec: ModelSpec, limits: Mapping[str, int]) -> list[str]:
    """Return the memory of other context lengths with all layers on devices; [] for an unreadable file."""
    try:
        info, native = loader.describe(spec), spec.native
    except ModelFailed:
        return []
    if not (info.generates and info.n_ctx_train):
        return []
    streams = 1 if native.unified else native.n_slots
    lengths = [n for n in (_SHORTEST << i for i in range(20)) if n < info.n_ctx_train] + [info.n_ctx_train]
    rows = list[tuple[str, ...]]()
    available = {name: min(now.free, limits.get(name, now.free)) for name, now in loader.memory().items()}
    for n_ctx in dict.fromkeys(n * streams for n in lengths):
        footprint = loader.fit(replace(spec, native=replace(native, n_ctx=n_ctx, fit=False))).footprint
        if not footprint:
            return []
        fits = all(taken <= available.get(name, taken) for name, taken in totals(footprint).items())
        sizes = ", ".join(f"{readable(taken)} of {name}" for name, taken in totals(footprint).items() if taken)
        rows.append((str(n_ctx), sizes, "fits" if fits else "does not fit"))
    return ["  other contexts, with all layers on the devices chosen:", *_aligned(rows)]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["    " + "  ".join(f"{cell:>{n}}" for cell, n in zip(row, widths, strict=True)) for row in rows]
