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


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wanted model, in order of arrival; all callers of one model share a place."""

    id: str
    since: float
    at_start: bool = False  # only the settings want it: nobody leaves for it


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    load: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # startup loads that do not fit with the others
    evict: tuple[str, ...] = ()
    give_way: frozenset[str] = frozenset()  # ready models that take no new lease for now


def decide(
    models: Sequence[Candidate],
    queue: Sequence[Waiting],
    *,
    models_max: int,
    now: float,
    patience_s: float,
    budget: Amounts | None = None,
) -> Decision:
    """Decide in the order of arrival; unload idle models, never leased ones. If bytes are short, models with the
    lowest `value` go first; if only a place is short, the least recently used one, as ``models_max`` in llama.cpp
    (tools/server/server-models.cpp, server_lru_sched::tick). No more models are unloaded than necessary, and none
    for a model that would not fit anyway.

    Steady traffic cannot block others forever: if the first waiter has waited for `patience_s` and every model is
    busy, those that would be unloaded if idle take no new leases. With a `budget` one load starts at a time, since it
    may take all free memory. A model whose size is unknown after `MEASURING_S` (a slow disk) is passed.
    """
    budget = budget or {}
    limits = {**budget, _PLACES: models_max} if models_max > 0 else dict(budget)
    by_id = {m.id: m for m in models}
    held = [m for m in models if m.status in OCCUPYING]
    can_leave = [m for m in held if m.status is Status.READY and not m.leaving and not m.pinned]
    most = {device: n - sum(m.taken.get(device, 0) for m in held if m.pinned) for device, n in budget.items()}
    free = _less(limits, *map(_holds, held))
    load, left_out = list[str](), list[str]()
    leave, promised = list[Candidate](), list[Amounts]()
    is_loading = any(m.fitting for m in models)

    def room() -> Amounts:
        """Return what is free once those that leave have left, and is not promised to an earlier one of the queue."""
        stay = [m for m in held if not m.leaving and m not in leave]
        return _less(limits, *map(_holds, stay), *promised)

    if any(n < 0 for n in room().values()):  # a model took more than predicted
        idle = _in_order([m for m in can_leave if m.idle], value)[:-1]  # one that is too large alone stays
        chosen = _least(idle, {}, room())
        leave += idle if chosen is None else chosen
    asking = [w for w in queue if by_id[w.id].status in LOADABLE or by_id[w.id].leaving]
    unknown = [w for w in asking if by_id[w.id].need is None]
    is_measuring = any(now - w.since < MEASURING_S for w in unknown)
    n_short = 0
    for waiting in () if is_measuring else [w for w in asking if w not in unknown]:
        model = by_id[waiting.id]
        need = {device: n for device, n in (model.need or {}).items() if device in budget}
        if any(n > most[device] for device, n in need.items()):
            need = {}  # it can never fit: its load fails with the reason
        need[_PLACES] = 1
        fits = _fits(need, room())
        if fits and model.status in LOADABLE and not is_loading and _fits(need, free):
            load.append(model.id)
            is_loading = bool(budget)
            free = _less(free, need)
        elif waiting.at_start and not fits:
            if not is_loading:  # that one may take less than it was given
                left_out.append(model.id)
            continue
        elif not fits:
            impatient = n_short == 0 and now - waiting.since >= patience_s
            leave += _leaving_for(need, room(), [m for m in can_leave if m not in leave], impatient=impatient)
            n_short += 1
        promised.append(need)
    evict, give_way = [m.id for m in leave if m.idle], [m.id for m in leave if not m.idle]
    return Decision(tuple(load), tuple(left_out), tuple(evict), frozenset(give_way))


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
