"""Decisions of the pool's policy: loads, evictions and the order of models in the queue."""

from math import inf, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.pool.policy import HALF_LIFE_S, Candidate, Decision, decide, used_again, value
from server.pool.state import LOADABLE, OCCUPYING, Status

PATIENCE_S = 10.0


def ready(model: str, last_used: float = 0.0, **changes: object) -> Candidate:
    return Candidate(model, Status.READY, last_used=last_used, **changes)  # type: ignore[arg-type]


def test_busy_model_gives_way_only_after_patience_s() -> None:
    models = [ready("a", 3, idle=False), ready("b", 1, idle=False), Candidate("x", Status.UNLOADED)]

    def giving_way(now: float) -> frozenset[str]:
        return decide(models, {"x": 0.0}, models_max=2, now=now, patience_s=PATIENCE_S).give_way

    assert giving_way(9.9) == frozenset()
    assert giving_way(10) == {"b"}


def test_model_without_a_request_is_skipped_if_it_does_not_fit_with_the_loaded_ones() -> None:
    loading, loaded = Candidate("a", Status.LOADING, taken={"CPU": 60}, fitting=True), ready("a", taken={"CPU": 60})

    def decision(other: Candidate, *, without_request: bool, now: float = 0) -> Decision:
        queued = Candidate("x", Status.UNLOADED, need={"CPU": 60}, without_request=without_request)
        return decide([other, queued], {"x": 0}, models_max=0, now=now, patience_s=PATIENCE_S, budget={"CPU": 100})

    assert decision(loading, without_request=True) == Decision()
    assert decision(loaded, without_request=True, now=99) == Decision(left_out=("x",))
    assert decision(loaded, without_request=False).evict == ("a",)


TIMES = st.floats(0, 100)


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, float], int]:
    models_max = draw(st.integers(0, 4))
    models: list[Candidate] = []
    for i in range(draw(st.integers(1, 6))):
        full = models_max and sum(m.status in OCCUPYING for m in models) >= models_max
        status = draw(st.sampled_from(sorted(LOADABLE if full else Status)))
        draining = status is Status.DRAINING
        models.append(
            Candidate(
                f"m{i}",
                status,
                idle=draw(st.booleans()),
                last_used=draw(TIMES),
                leaving=draining or (status is Status.LOADING and draw(st.booleans())),
                giving_way=status is Status.READY and draw(st.booleans()),
            )
        )
    queued = draw(st.permutations(models))[: draw(st.integers(0, len(models)))]
    return models, {m.id: draw(TIMES) for m in queued}, models_max


@given(pools(), TIMES)
def test_decisions_satisfy_all_invariants(pool: tuple[list[Candidate], dict[str, float], int], now: float) -> None:
    models, queue, models_max = pool
    by_id = {m.id: m for m in models}
    decision = decide(models, queue, models_max=models_max, now=now, patience_s=PATIENCE_S)
    n_occupied = sum(m.status in OCCUPYING for m in models)

    loadable = [id_ for id_ in queue if by_id[id_].status in LOADABLE]
    assert list(decision.load) == loadable[: len(decision.load)], "not in the order of the queue"
    assert not models_max or n_occupied + len(decision.load) <= models_max
    for model in decision.evict:
        assert by_id[model].idle
        assert by_id[model].status is Status.READY
    for model in decision.give_way:
        assert not by_id[model].idle
        assert by_id[model].status is Status.READY
    idle = [m for m in models if m.status is Status.READY and m.idle and m.id not in decision.evict]
    for model in decision.evict:
        older = [m for m in idle if m.last_used < by_id[model].last_used]
        assert by_id[model].giving_way or not older, "not the least recently used"
    still_queued = bool(loadable[len(decision.load) :])
    leaving = any(m.leaving for m in models)
    assert not still_queued or idle == [] or leaving or decision.evict, "an idle model is not evicted"
    if not loadable and not any(by_id[id_].leaving for id_ in queue):
        assert not decision.evict
        assert not decision.give_way


def sized(model: str, size: int, load_s: float, *used_at: float, **changes: object) -> Candidate:
    uses = -inf
    for when in used_at:
        uses = used_again(uses, when)
    taken = {"CPU": size}
    return ready(model, max(used_at), uses=uses, load_s=load_s, taken=taken, **changes)


def evicted(models: list[Candidate], need: int, budget: int) -> tuple[str, ...]:
    """Return the models that are evicted for one that needs `need` bytes."""
    queued = Candidate("x", Status.UNLOADED, need={"CPU": need})
    limits = {"CPU": budget}
    return decide([*models, queued], {"x": 0.0}, models_max=0, now=0, patience_s=PATIENCE_S, budget=limits).evict


@pytest.mark.parametrize(
    ("cheap", "dear"),
    [
        (sized("cheap", 100, 5, 50), sized("dear", 100, 60, 40)),  # takes longer to load again
        (sized("cheap", 100, 5, 50), sized("dear", 100, 5, 10, 20, 30, 40)),  # more uses
        (sized("cheap", 100, 5, 40), sized("dear", 100, 5, 50)),  # used later
        (sized("cheap", 100, 5, 50), sized("dear", 50, 5, 40)),  # the same value in half the bytes
    ],
    ids=["cost", "frequency", "recency", "size"],
)
def test_least_valuable_model_is_evicted_for_bytes(cheap: Candidate, dear: Candidate) -> None:
    for models in ([cheap, dear], [dear, cheap]):
        assert evicted(models, need=50, budget=sum(m.taken["CPU"] for m in models)) == ("cheap",)


@st.composite
def loaded_models(draw: st.DrawFn) -> list[Candidate]:
    return [
        sized(
            f"m{i}",
            draw(st.integers(1, 50)),
            draw(st.floats(0, 100)),
            *draw(st.lists(st.floats(0, 5e3), min_size=1, max_size=4)),
            pinned=draw(st.booleans()),
            idle=draw(st.booleans()),
        )
        for i in range(draw(st.integers(1, 8)))
    ]


@given(loaded_models(), st.integers(1, 120), st.integers(0, 40))
def test_eviction_is_minimal_and_takes_the_least_valuable_models(models: list[Candidate], need: int, free: int) -> None:
    size = {m.id: m.taken["CPU"] for m in models}
    found = evicted(models, need, sum(size.values()) + free)
    evictable = [m for m in models if m.idle and not m.pinned]
    assert set(found) <= {m.id for m in evictable}
    enough = free + sum(size[m.id] for m in evictable) >= need > free
    assert bool(found) == enough
    if found:
        assert free + sum(size[model] for model in found) >= need
        assert all(free + sum(size[other] for other in found if other != model) < need for model in found), "too many"
        highest = max(value(m) for m in evictable if m.id in found)
        assert free + sum(size[m.id] for m in evictable if value(m) < highest) < need


def test_use_counts_half_as_much_as_one_a_half_life_later() -> None:
    uses = -inf
    for when in (0.0, 0.0, HALF_LIFE_S, HALF_LIFE_S):
        uses = used_again(uses, when)
    assert uses == pytest.approx(log2(1 + 1 + 2 + 2))
