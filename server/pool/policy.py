"""Decisions of the pool: which models are loaded, and which are unloaded for them. Pure; time is an argument.

Each model takes one place (``models_max``), and bytes of the devices in the budget (``memory``). Other devices are
ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log2
from operator import attrgetter

from server.pool.state import LOADABLE, OCCUPYING, Status

Amounts = Mapping[str, int]
_PLACES = "places"
MEASURING_S = 5.0
"""Others wait this long for a queued model that is not measured yet, so that the memory can be divided among all."""
HALF_LIFE_S = 300.0
"""After this time, a use of a model counts half as much as a new one."""
MIN_LOAD_S = 0.1
"""Shorter load times are noise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts of one model for a decision. Times are seconds of the pool's clock; bytes are by device."""

    id: str
    status: Status
    idle: bool = True  # no lease, and the engine does nothing
    last_used: float = 0.0
    uses: float = -inf  # as `used_again` counts them
    load_s: float = 0.0  # duration of its last load
    leaving: bool = False  # draining, or its load is being cancelled: its place becomes free
    giving_way: bool = False  # gets no new leases
    pinned: bool = False  # is never evicted and never gives way
    taken: Amounts = field(default_factory=dict)  # bytes that it takes
    need: Amounts | None = field(default_factory=dict)  # bytes that it takes at least; None = not known yet
    fitting: bool = False  # its load may still take all free memory
    without_request: bool = False  # no request that may load it waits, so no other model is unloaded for it


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids of models to load and to unload."""

    load: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # queued without a request, and do not fit with the others
    evict: tuple[str, ...] = ()
    give_way: frozenset[str] = frozenset()  # ready models that get no new leases for now


def decide(
    models: Sequence[Candidate],
    queue: Mapping[str, float],
    *,
    models_max: int,
    now: float,
    patience_s: float,
    budget: Amounts | None = None,
) -> Decision:
    """Decide on the `queue`: model -> time since which it waits, in the order of arrival.

    Idle models are unloaded, never leased ones. If bytes are missing, models with the lowest `value` go first. If only
    a place is missing, the least recently used model goes, as ``models_max`` in llama.cpp
    (tools/server/server-models.cpp, server_lru_sched::tick). No more models are unloaded than necessary, and none for a
    model that would not fit anyway.

    Steady traffic cannot block others forever: if the first model has waited for `patience_s` and every model is busy,
    those that would be unloaded if idle get no new leases. With a `budget`, one load starts at a time, since it may
    take all free memory. A model whose size is unknown after `MEASURING_S` (a slow disk) is skipped.
    """
    plan = _Plan(models, models_max, budget or {})
    plan.relieve()
    queued = [m for m in map(plan.by_id.__getitem__, queue) if m.status in LOADABLE or m.leaving]
    if not any(m.need is None and now - queue[m.id] < MEASURING_S for m in queued):
        for model in queued:
            if model.need is not None:
                plan.serve(model, impatient=now - queue[model.id] >= patience_s)
    return plan.decision()


class _Plan:
    """Builds a decision. `serve` is called for queued models in the order of arrival."""

    def __init__(self, models: Sequence[Candidate], models_max: int, budget: Amounts) -> None:
        self.by_id = {model.id: model for model in models}
        self._budget = budget
        self._limits = {**budget, _PLACES: models_max} if models_max > 0 else dict(budget)
        self._held = [m for m in models if m.status in OCCUPYING]
        self._free = _minus(self._limits, *map(_held_by, self._held))  # before any model is unloaded
        self._is_loading = any(m.fitting for m in models)
        self._is_blocked = False  # an earlier model of the queue does not fit
        self._load, self._left_out = list[str](), list[str]()
        self._leave, self._reserved = list[Candidate](), list[Amounts]()

    def relieve(self) -> None:
        """Unload idle models if one took more than predicted, except a single one that exceeds the budget alone."""
        if any(n < 0 for n in self._available().values()):
            idle = _in_order([m for m in self._can_leave() if m.idle], value)[:-1]
            chosen = _fewest(idle, {}, self._available())
            self._leave += idle if chosen is None else chosen

    def serve(self, model: Candidate, *, impatient: bool) -> None:
        """Load a model, or unload others for it. What it needs is reserved."""
        need = self._need(model)
        fits = _fits(need, self._available())
        if model.without_request and not fits:
            if not self._is_loading:  # the running load may take less than it was granted
                self._left_out.append(model.id)
            return
        if not fits:
            impatient = impatient and not self._is_blocked
            self._leave += _leaving_for(need, self._available(), self._can_leave(), impatient=impatient)
            self._is_blocked = True
        elif model.status in LOADABLE and not self._is_loading and _fits(need, self._free):
            self._load.append(model.id)
            self._is_loading = bool(self._budget)
            self._free = _minus(self._free, need)
        self._reserved.append(need)

    def decision(self) -> Decision:
        evict, give_way = [m.id for m in self._leave if m.idle], [m.id for m in self._leave if not m.idle]
        return Decision(tuple(self._load), tuple(self._left_out), tuple(evict), frozenset(give_way))

    def _available(self) -> Amounts:
        """Return what is free after the chosen models are unloaded, without the needs of earlier queued models."""
        stay = [m for m in self._held if not m.leaving and m not in self._leave]
        return _minus(self._limits, *map(_held_by, stay), *self._reserved)

    def _can_leave(self) -> list[Candidate]:
        ready = [m for m in self._held if m.status is Status.READY and not m.leaving and not m.pinned]
        return [m for m in ready if m not in self._leave]

    def _need(self, model: Candidate) -> Amounts:
        """Return a place and the bytes of devices in the budget; no bytes if the model can never fit, so that its load
        fails with the reason.
        """
        need = {device: n for device, n in (model.need or {}).items() if device in self._budget}
        most = _minus(self._budget, *(m.taken for m in self._held if m.pinned))
        return {_PLACES: 1} if any(n > most[device] for device, n in need.items()) else {**need, _PLACES: 1}


def _leaving_for(
    need: Amounts, available: Amounts, can_leave: Sequence[Candidate], *, impatient: bool
) -> Sequence[Candidate]:
    """Return idle models to unload, and busy ones that already give way. If `impatient`, other busy models give way."""
    cost = value if any(key != _PLACES for key in _missing(need, available)) else attrgetter("last_used")
    order = _in_order(can_leave, cost)
    idle, busy = [m for m in order if m.idle], [m for m in order if not m.idle]
    already = [m for m in busy if m.giving_way]
    chosen = _fewest([*idle, *already], need, available)
    if chosen is None and impatient and not already:
        chosen = _fewest([*idle, *busy], need, available)
    return chosen or ()


def _held_by(model: Candidate) -> dict[str, int]:
    return {**model.taken, _PLACES: 1}


def _minus(free: Amounts, *taken: Amounts) -> Amounts:
    return {key: n - sum(one.get(key, 0) for one in taken) for key, n in free.items()}


def _fits(need: Amounts, free: Amounts) -> bool:
    return all(need.get(key, 0) <= n for key, n in free.items() if need.get(key, 0))


def _fewest(order: Sequence[Candidate], need: Amounts, free: Amounts) -> list[Candidate] | None:
    """Return the models to unload for `need`: the first of `order` that take something missing, minus unnecessary
    ones. None if all together are not enough.
    """
    missing = _missing(need, free)
    chosen: list[Candidate] = []
    for model in order:
        if not _still_missing(missing, chosen):
            break
        if any(_held_by(model).get(key, 0) for key in _still_missing(missing, chosen)):
            chosen.append(model)
    if _still_missing(missing, chosen):
        return None
    for model in reversed(list(chosen)):
        others = [each for each in chosen if each is not model]
        if not _still_missing(missing, others):
            chosen = others
    return chosen


def _missing(need: Amounts, free: Amounts) -> Amounts:
    return {key: need.get(key, 0) - n for key, n in free.items() if need.get(key, 0) > n or n < 0}


def _still_missing(missing: Amounts, chosen: Sequence[Candidate]) -> list[str]:
    """Return the keys of `missing` of which the chosen models take too little."""
    return [key for key, n in missing.items() if n > sum(_held_by(m).get(key, 0) for m in chosen)]


def used_again(uses: float, now: float) -> float:
    """Return the updated use score, the binary logarithm of a count. A use weighs half as much as one `HALF_LIFE_S`
    later, so recency and frequency are one number without aging (Lee et al., LRFU, 2001).
    """
    new = now / HALF_LIFE_S
    low, high = sorted((uses, new))
    return high + log2(1 + 2 ** (low - high))


def value(model: Candidate) -> float:
    """Return the value per byte as a binary logarithm: the expected seconds of loading saved, by recency and frequency
    of use (as GreedyDual-Size-Frequency, Cherkasova 1998).
    """
    uses = max(model.uses, model.last_used / HALF_LIFE_S)  # ``uses`` counts the start of a use, which may be long
    return uses + log2(max(model.load_s, MIN_LOAD_S)) - log2(max(sum(model.taken.values()), 1))


def _in_order(models: Sequence[Candidate], cost: Callable[[Candidate], float]) -> list[Candidate]:
    """Return the models in the order of unloading; those that already give way are first."""
    return sorted(models, key=lambda m: (not m.giving_way, cost(m), m.id))
