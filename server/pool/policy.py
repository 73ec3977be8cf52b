"""Decisions of the pool: which models load, and which are unloaded for them. Pure; time is an argument.

Models hold and need amounts: one place each (``models_max``), and bytes of each device in the budget (``memory``).
Other devices are ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log2
from operator import attrgetter

from server.pool.state import LOADABLE, OCCUPYING, Status

Amounts = Mapping[str, int]
_PLACES = "places"
MEASURING_S = 5.0
"""So long a model that is not measured yet holds up the others, so that all are given their share."""
HALF_LIFE_S = 300.0
"""After which a use of a model counts half as much as a new one."""
LEAST_LOAD_S = 0.1
"""Shorter load times are noise."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts of one model for a decision. Times are seconds on the pool's clock; bytes are by device."""

    id: str
    status: Status
    idle: bool = True  # no lease, and the engine does nothing
    last_used: float = 0.0
    uses: float = -inf  # as `used_again` counts them
    load_s: float = 0.0  # what its last load took
    leaving: bool = False  # draining, or its load is being cancelled: its place becomes free by itself
    giving_way: bool = False
    pinned: bool = False  # never evicted, never gives way
    taken: Amounts = field(default_factory=dict)  # bytes that it holds
    need: Amounts | None = field(default_factory=dict)  # bytes that it takes at least; None = not known yet
    fitting: bool = False  # being loaded, and how much it takes is being decided: it may be all that is free
    without_request: bool = False  # no request that may load it waits: no other model is unloaded for it


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    load: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # loads without a request that do not fit with the others
    evict: tuple[str, ...] = ()
    give_way: frozenset[str] = frozenset()  # ready models that take no new lease for now


def decide(
    models: Sequence[Candidate],
    queue: Mapping[str, float],
    *,
    models_max: int,
    now: float,
    patience_s: float,
    budget: Amounts | None = None,
) -> Decision:
    """Decide on the `queue`: since when each wanted model waits, in the order of arrival.

    Unload idle models, never leased ones. If bytes are short, models with the lowest `value` go first; if only a place
    is short, the least recently used one, as ``models_max`` in llama.cpp (tools/server/server-models.cpp,
    server_lru_sched::tick). No more models are unloaded than necessary, and none for a model that would not fit anyway.

    Steady traffic cannot block others forever: if the first waiter has waited for `patience_s` and every model is
    busy, those that would be unloaded if idle take no new leases. With a `budget` one load starts at a time, since it
    may take all free memory. A model whose size is unknown after `MEASURING_S` (a slow disk) is passed.
    """
    plan = _Plan(models, models_max, budget or {})
    plan.relieve()
    asking = [m for m in map(plan.by_id.__getitem__, queue) if m.status in LOADABLE or m.leaving]
    if not any(m.need is None and now - queue[m.id] < MEASURING_S for m in asking):
        for model in asking:
            if model.need is not None:
                plan.serve(model, impatient=now - queue[model.id] >= patience_s)
    return plan.decision()


class _Plan:
    """A decision in the making. `serve` is called in the order of arrival."""

    def __init__(self, models: Sequence[Candidate], models_max: int, budget: Amounts) -> None:
        self.by_id = {model.id: model for model in models}
        self._budget = budget
        self._limits = {**budget, _PLACES: models_max} if models_max > 0 else dict(budget)
        self._held = [m for m in models if m.status in OCCUPYING]
        self._free = _less(self._limits, *map(_holds, self._held))  # now, before anything leaves
        self._is_loading = any(m.fitting for m in models)
        self._is_short = False  # a model before in the queue finds no room
        self._load, self._left_out = list[str](), list[str]()
        self._leave, self._promised = list[Candidate](), list[Amounts]()

    def relieve(self) -> None:
        """Unload idle models if one took more than predicted; one that is too large alone stays."""
        if any(n < 0 for n in self._room().values()):
            idle = _in_order([m for m in self._can_leave() if m.idle], value)[:-1]
            chosen = _least(idle, {}, self._room())
            self._leave += idle if chosen is None else chosen

    def serve(self, model: Candidate, *, impatient: bool) -> None:
        """Load a model, or unload others for it; it keeps the room that it gets."""
        need = self._need(model)
        fits = _fits(need, self._room())
        if model.without_request and not fits:
            if not self._is_loading:  # that one may take less than it was given
                self._left_out.append(model.id)
            return
        if not fits:
            impatient = impatient and not self._is_short
            self._leave += _leaving_for(need, self._room(), self._can_leave(), impatient=impatient)
            self._is_short = True
        elif model.status in LOADABLE and not self._is_loading and _fits(need, self._free):
            self._load.append(model.id)
            self._is_loading = bool(self._budget)
            self._free = _less(self._free, need)
        self._promised.append(need)

    def decision(self) -> Decision:
        evict, give_way = [m.id for m in self._leave if m.idle], [m.id for m in self._leave if not m.idle]
        return Decision(tuple(self._load), tuple(self._left_out), tuple(evict), frozenset(give_way))

    def _room(self) -> Amounts:
        """Return what is free once those that leave have left, and is not promised to an earlier one of the queue."""
        stay = [m for m in self._held if not m.leaving and m not in self._leave]
        return _less(self._limits, *map(_holds, stay), *self._promised)

    def _can_leave(self) -> list[Candidate]:
        ready = [m for m in self._held if m.status is Status.READY and not m.leaving and not m.pinned]
        return [m for m in ready if m not in self._leave]

    def _need(self, model: Candidate) -> Amounts:
        """Return a place, and the bytes of devices in the budget; none where it can never fit: its load fails with the
        reason.
        """
        need = {device: n for device, n in (model.need or {}).items() if device in self._budget}
        most = _less(self._budget, *(m.taken for m in self._held if m.pinned))
        return {_PLACES: 1} if any(n > most[device] for device, n in need.items()) else {**need, _PLACES: 1}


def _leaving_for(
    need: Amounts, room: Amounts, can_leave: Sequence[Candidate], *, impatient: bool
) -> Sequence[Candidate]:
    """Return idle models to unload. Busy ones that already drain continue, and others start for an impatient queue."""
    cost = value if any(key != _PLACES for key in _lack(need, room)) else attrgetter("last_used")
    order = _in_order(can_leave, cost)
    idle, busy = [m for m in order if m.idle], [m for m in order if not m.idle]
    already = [m for m in busy if m.giving_way]
    chosen = _least([*idle, *already], need, room)
    if chosen is None and impatient and not already:
        chosen = _least([*idle, *busy], need, room)
    return chosen or ()


def _holds(model: Candidate) -> dict[str, int]:
    return {**model.taken, _PLACES: 1}


def _less(free: Amounts, *taken: Amounts) -> Amounts:
    return {key: n - sum(one.get(key, 0) for one in taken) for key, n in free.items()}


def _fits(need: Amounts, free: Amounts) -> bool:
    return all(need.get(key, 0) <= n for key, n in free.items() if need.get(key, 0))


def _least(order: Sequence[Candidate], need: Amounts, free: Amounts) -> list[Candidate] | None:
    """Return the models to unload for `need`: the first of `order` that hold what is short, minus unnecessary ones;
    None if all together are too few.
    """
    lack = _lack(need, free)
    chosen: list[Candidate] = []
    for model in order:
        if not _short(lack, chosen):
            break
        if any(_holds(model).get(key, 0) for key in _short(lack, chosen)):
            chosen.append(model)
    if _short(lack, chosen):
        return None
    for model in reversed(list(chosen)):
        others = [each for each in chosen if each is not model]
        if not _short(lack, others):
            chosen = others
    return chosen


def _lack(need: Amounts, free: Amounts) -> Amounts:
    return {key: need.get(key, 0) - n for key, n in free.items() if need.get(key, 0) > n or n < 0}


def _short(lack: Amounts, chosen: Sequence[Candidate]) -> list[str]:
    return [key for key, n in lack.items() if n > sum(_holds(m).get(key, 0) for m in chosen)]


def used_again(uses: float, now: float) -> float:
    """Return the updated use score, the binary logarithm of a count. A use weighs half as much as one `HALF_LIFE_S`
    later, so recency and frequency are one number without aging (Lee et al., LRFU, 2001).
    """
    new = now / HALF_LIFE_S
    low, high = sorted((uses, new))
    return high + log2(1 + 2 ** (low - high))


def value(model: Candidate) -> float:
    """Return the value per byte as a binary logarithm: expected seconds of loading saved, by recency and frequency of
    use (as GreedyDual-Size-Frequency, Cherkasova 1998).
    """
    uses = max(model.uses, model.last_used / HALF_LIFE_S)  # a long one ends later than it begins
    return uses + log2(max(model.load_s, LEAST_LOAD_S)) - log2(max(sum(model.taken.values()), 1))


def _in_order(models: Sequence[Candidate], cost: Callable[[Candidate], float]) -> list[Candidate]:
    """Return the order of unloading; models that already drain are first."""
    return sorted(models, key=lambda m: (not m.giving_way, cost(m), m.id))
