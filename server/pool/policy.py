"""Pure decisions of the pool: who loads, who is evicted, who gives way, who sleeps. Time is passed in.

What models hold and want are amounts: one place each (``models_max``), and bytes of each device that has a budget
(``memory``). A device that is in no budget is not looked at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log2

from server.pool.state import LOADABLE, OCCUPYING, Status

Amounts = Mapping[str, int]
_PLACES = "places"
MEASURING_S = 5.0
"""So long a model that is not measured yet holds up the others, so that all are given their share."""
HALF_LIFE_S = 300.0
"""After which a use of a model counts half as much as a new one."""
LEAST_LOAD_S = 0.1
"""Below it what a load takes is chance."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a decision needs to know of one model. Times are seconds on the pool's clock; bytes are by device."""

    id: str
    status: Status
    idle: bool = True  # no lease, and the engine does nothing
    last_used: float = 0.0
    uses: float = -inf  # as `used_again` counts them
    load_s: float = 0.0  # what its last load took
    leaving: bool = False  # draining, or its load is being cancelled: its place becomes free by itself
    giving_way: bool = False
    sleep_idle_s: float = -1.0  # negative = never; 0 = as soon as it is idle
    pinned: bool = False  # never evicted, never gives way
    taken: Amounts = field(default_factory=dict)  # bytes that it holds
    need: Amounts | None = field(default_factory=dict)  # bytes that it takes at least; None = not known yet
    fitting: bool = False  # being loaded, and how much it takes is being decided: it may be all that is free


@dataclass(frozen=True, slots=True)
class Waiting:
    """A model that somebody wants, in order of arrival; all callers of one model share one place."""

    id: str
    since: float
    at_start: bool = False  # only the settings want it: nobody leaves for it


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    load: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # loads of the start that find no room beside the others of the start
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
    """First come, first served; idle models leave; none leaves under a lease.

    Where bytes are short those of least `value` leave first; where only a place is, the least recently used one, as
    ``models_max`` means in llama.cpp (tools/server/server-models.cpp, server_lru_sched::tick). No more are evicted than
    are needed beyond what is free or becoming free, and none for one that even then would not fit. When the first that
    is short has waited for `patience_s` and every model is busy, those that would leave if they were idle take no new
    lease, so that steady traffic on one model cannot keep another out for ever.

    With a `budget` (bytes by device) one load is begun at a time, since it may take all that is free. A model whose
    needs are not known after `MEASURING_S` (a slow disk) is passed until they are.
    """
    return _Deciding(models, models_max, budget or {}).decided(queue, now, patience_s)


class _Deciding:
    def __init__(self, models: Sequence[Candidate], models_max: int, budget: Amounts) -> None:
        self._by_id = {m.id: m for m in models}
        self._budget = budget
        limits = {**budget, _PLACES: models_max} if models_max > 0 else dict(budget)
        held = [m for m in models if m.status in OCCUPYING]
        self._free = _without(limits, held)
        self._future = _without(limits, [m for m in held if not m.leaving])  # once those that leave have left
        self._most = {d: n - sum(m.taken.get(d, 0) for m in held if m.pinned) for d, n in budget.items()}
        self._one_at_a_time = bool(budget)
        self._busy_loading = any(m.fitting for m in models)
        stayers = [m for m in held if m.status is Status.READY and not m.leaving and not m.pinned]
        self._idle = [m for m in stayers if m.idle]
        self._busy = [m for m in stayers if not m.idle]
        self._load: list[str] = []
        self._left_out: list[str] = []
        self._evict: list[str] = []
        self._give_way: list[str] = []

    def decided(self, queue: Sequence[Waiting], now: float, patience_s: float) -> Decision:
        self._give_back()
        asking = [w for w in queue if self._by_id[w.id].status in LOADABLE or self._by_id[w.id].leaving]
        unknown = [w for w in asking if self._by_id[w.id].need is None]
        if any(now - w.since < MEASURING_S for w in unknown):
            return self._decision()
        n_short = 0
        for waiting in (w for w in asking if w not in unknown):
            model = self._by_id[waiting.id]
            need = self._need(model)
            may_load = model.status in LOADABLE and not self._busy_loading
            if may_load and _fits(need, self._free) and _fits(need, self._future):
                self._load.append(model.id)
                self._busy_loading = self._one_at_a_time
                self._free = _minus(self._free, need)
            elif waiting.at_start and not _fits(need, self._future):
                if not self._busy_loading:  # that one may take less than it was given
                    self._left_out.append(model.id)
                continue
            elif not _fits(need, self._future):
                impatient = n_short == 0 and now - waiting.since >= patience_s
                self._make_room(need, impatient=impatient)
                n_short += 1
            self._future = _minus(self._future, need)  # who comes later takes nothing of it
        return self._decision()

    def _decision(self) -> Decision:
        return Decision(tuple(self._load), tuple(self._left_out), tuple(self._evict), frozenset(self._give_way))

    def _need(self, model: Candidate) -> Amounts:
        """One that never fits asks for a place alone: its load fails, and says why."""
        need = {device: n for device, n in (model.need or {}).items() if device in self._budget}
        hopeless = any(n > self._most[device] for device, n in need.items())
        return {_PLACES: 1} if hopeless else {**need, _PLACES: 1}

    def _give_back(self) -> None:
        """A model took more than was thought: idle ones make good for it, as far as they can."""
        if not all(n >= 0 for n in self._future.values()):
            others = _in_order(self._idle, value)[:-1]  # one that is too large alone stays
            chosen = _least(others, {}, self._future)
            self._leave(others if chosen is None else chosen)

    def _make_room(self, need: Amounts, *, impatient: bool) -> None:
        """Idle ones leave; busy ones that already give way go on doing so while they are needed, and others begin to
        for an impatient queue."""
        worth = value if any(key != _PLACES for key in _lack(need, self._future)) else _last_used
        idle, busy = _in_order(self._idle, worth), _in_order(self._busy, worth)
        already = [m for m in busy if m.giving_way]
        chosen = _least([*idle, *already], need, self._future)
        if chosen is None and impatient and not already:
            chosen = _least([*idle, *busy], need, self._future)
        self._leave(chosen or [])

    def _leave(self, chosen: list[Candidate]) -> None:
        for model in chosen:
            if model.idle:
                self._idle.remove(model)
                self._evict.append(model.id)
            else:
                self._busy.remove(model)
                self._give_way.append(model.id)
            self._future = _plus(self._future, model)


def _holds(model: Candidate) -> dict[str, int]:
    return {**model.taken, _PLACES: 1}


def _without(limits: Amounts, held: Sequence[Candidate]) -> Amounts:
    return {key: n - sum(_holds(m).get(key, 0) for m in held) for key, n in limits.items()}


def _minus(free: Amounts, need: Amounts) -> Amounts:
    return {key: n - need.get(key, 0) for key, n in free.items()}


def _plus(free: Amounts, model: Candidate) -> Amounts:
    return {key: n + _holds(model).get(key, 0) for key, n in free.items()}


def _fits(need: Amounts, free: Amounts) -> bool:
    return all(need.get(key, 0) <= n for key, n in free.items() if need.get(key, 0))


def _least(order: Sequence[Candidate], need: Amounts, free: Amounts) -> list[Candidate] | None:
    """Whom it takes for `need` to fit: the first of `order` that hold what is short, less those that the others make
    unnecessary; None when all together are too few."""
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
    """What is known of a model's uses, with one more: the binary logarithm of their number, a use weighing half as much
    as one that is `HALF_LIFE_S` younger. So recency and frequency are one number that need not be aged (Lee et al.,
    LRFU, 2001)."""
    new = now / HALF_LIFE_S
    low, high = sorted((uses, new))
    return high + log2(1 + 2 ** (low - high))


def value(model: Candidate) -> float:
    """What a byte is worth that it holds, as a binary logarithm: seconds of loading that it is expected to spare, by
    how often and how lately the model was used (as GreedyDual-Size-Frequency, Cherkasova 1998)."""
    uses = max(model.uses, model.last_used / HALF_LIFE_S)  # a long one ends later than it begins
    return uses + log2(max(model.load_s, LEAST_LOAD_S)) - log2(max(sum(model.taken.values()), 1))


def _in_order(models: Sequence[Candidate], worth: Callable[[Candidate], float]) -> list[Candidate]:
    """Who leaves first; a model that already gives way comes before all others."""
    return sorted(models, key=lambda m: (not m.giving_way, worth(m), m.id))


def _last_used(model: Candidate) -> float:
    return model.last_used


def overdue(models: Iterable[Candidate], now: float) -> list[str]:
    """The ready models that have idled for their ``sleep_idle_s`` or longer."""
    return [m.id for m in models if _sleeps(m) and m.idle and m.last_used + m.sleep_idle_s <= now]


def next_sleep(models: Iterable[Candidate], now: float) -> float | None:
    """The earliest time at which `overdue` may have an answer, if nothing is loaded until then; None = never."""
    due = [(m.last_used if m.idle else now) + m.sleep_idle_s for m in models if _sleeps(m)]
    return min(due, default=None)


def _sleeps(model: Candidate) -> bool:
    return model.status is Status.READY and model.sleep_idle_s >= 0
