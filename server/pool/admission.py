"""Memory admission: the memory of models, the limit of a load, and the rest for caches. See `MemoryAdmission`."""

import logging
from collections.abc import Hashable, Iterable, Mapping

from server.errors import LlamapoolError, ModelFailed
from server.pool.entry import Entry
from server.pool.loading import InThread
from server.pool.memory import Budget, Fit, Footprint, Memory, needed, readable, totals, without
from server.pool.protocols import Loader
from server.pool.spec import ModelSpec
from server.pool.state import OCCUPYING
from server.pool.worker.loaders import Loaders

log = logging.getLogger(__name__)


class MemoryAdmission:
    """Counts the memory of the machine and its devices. `policy` decides by its numbers: an entry's ``need``, which is
    known after its measurement, and ``taken``.
    """

    def __init__(self, limit: Budget, entries: Mapping[str, Entry], loaders: Loaders, in_thread: InThread) -> None:
        self.limit = limit
        self.budget: Mapping[str, int] = {}  # bytes by device, known once the first model was measured
        self._entries = entries
        self._loaders = loaders
        self._in_thread = in_thread

    async def measure(self, entry: Entry) -> None:
        """Measure the minimum memory of a model, unless its files are the same as before. A model that cannot be
        measured counts as empty. Raises `ModelFailed` for a file that cannot be loaded.
        """
        stamps = await self._in_thread(entry.spec.stamps)
        if stamps != entry.stamps:
            entry.stamps, entry.measured, entry.fit = stamps, None, None
        if entry.measured is None:
            loader = self._loaders.of(entry.spec)
            least: Footprint = {}
            try:
                least, memory = await self._in_thread(lambda: _read_footprint(loader, entry.spec))
            finally:
                if least:
                    self._loaders.keep(entry.spec, loader)
                else:
                    self._loaders.abandon(loader)
            self._share(entry, Fit(entry.spec, least))
            self.budget = self.budget or (self.limit.limits(memory) if memory else {})
            entry.measured = needed(entry.spec, least, self.budget)
        entry.compared = True

    def _share(self, entry: Entry, fit: Fit) -> None:
        """Record the key of the weights that a model may share, and their bytes."""
        spec = fit.spec
        file = next(iter(entry.stamps), None) or spec.path  # links to a file share its weights
        entry.weights = None if self._loaders.isolates(spec) else (file, spec.native.weights)
        entry.shared = {device: taken.shared for device, taken in fit.footprint.items()}

    def shared(self) -> dict[str, Mapping[str, int]]:
        """Return by model the bytes of its weights that count for another model, which shares and has loaded them."""
        found: dict[str, Mapping[str, int]] = {}
        seen: set[Hashable] = {None}
        entries = sorted(
            self._entries.values(),
            # The bytes count for the entry that is unloaded last: unloading another one frees none of them.
            key=lambda e: (e.status in OCCUPYING, not e.leaving, e.pinned, not e.idle, e.last_used),
            reverse=True,
        )
        for entry in entries:
            if entry.weights in seen and entry.weights is not None:
                found[entry.id] = entry.shared
            elif entry.status in OCCUPYING and not entry.leaving:
                seen.add(entry.weights)
        return found

    def granted(self, entry: Entry, later: Iterable[str]) -> Mapping[str, int]:
        """Return the bytes that `entry` may take: free memory minus the needs of `later` queued models."""
        shared = self.shared()
        others = [without(self._entries[model].need(self.budget) or {}, shared.get(model, {})) for model in later]
        need, taken = without(entry.need(self.budget) or {}, shared.get(entry.id, {})), self.taken()
        free = {device: n - taken.get(device, 0) for device, n in self.budget.items()}
        spared = {device: n - sum(other.get(device, 0) for other in others) for device, n in free.items()}
        return {device: max(0, min(n, max(spared[device], need.get(device, 0)))) for device, n in free.items()}

    def reserve(self, entry: Entry, granted: Mapping[str, int]) -> None:
        """Record that a load takes what it needs, at most the `granted` bytes, so that no model is unloaded
        for one that never fits.
        """
        self._take(entry, entry.need(self.budget) or {}, granted)

    def _take(self, entry: Entry, taken: Mapping[str, int], granted: Mapping[str, int]) -> None:
        others = self.shared().get(entry.id, {})
        entry.taken = {device: min(n, granted.get(device, n) + others.get(device, 0)) for device, n in taken.items()}

    def fitted(self, entry: Entry, fit: Fit, granted: Mapping[str, int]) -> None:
        """Record how much of the `granted` memory a load takes."""
        self._share(entry, fit)
        self._take(entry, totals(fit.footprint), granted)
        entry.fitting = False

    def loaded(self, entry: Entry, measured: Mapping[str, int]) -> None:
        """Record the bytes that a loaded model takes. A model without ``fit`` keeps the granted bytes."""
        if not (entry.taken and measured and entry.spec.native.fit):
            return
        for device, n in measured.items():
            if n > 1.1 * (expected := entry.taken.get(device, n)):
                log.warning(
                    "model '%s' took %s of %s, %s were expected; a smaller `memory` leaves room for that",
                    *(entry.id, readable(n), device, readable(expected)),
                )
        entry.taken = measured

    def taken(self) -> dict[str, int]:
        """Return the bytes by device of all models in memory or being loaded."""
        found: dict[str, int] = {}
        shared = self.shared()
        for entry in self._entries.values():
            if entry.status in OCCUPYING:
                taken = without(entry.held, shared.get(entry.id, {}))
                found |= {device: found.get(device, 0) + n for device, n in taken.items()}
        return found

    def share_caches(self) -> None:
        """Divide the memory that models leave free among the caches of generating models."""
        engines = [e.loaded.generator for e in self._entries.values() if e.loaded is not None and e.loaded.generator]
        n_bytes = self.limit.for_caches(self.budget, self.taken())
        for engine in engines:
            engine.limit_caches(n_bytes // len(engines) if n_bytes >= 0 else n_bytes)


def _read_footprint(loader: Loader, spec: ModelSpec) -> tuple[Footprint, Mapping[str, Memory]]:
    memory: Mapping[str, Memory] = {}
    try:
        try:
            memory = loader.memory()
            return loader.least(spec), memory
        except LlamapoolError:
            loader.describe(spec)  # raises ModelFailed if the file cannot be loaded
    except ModelFailed:
        raise
    except Exception:  # no retry: requests for the model would wait forever
        log.exception("model '%s' could not be measured; this is a bug, please report it", spec.id)
    return {}, memory
