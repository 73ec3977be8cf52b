from math import inf, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.pool.policy import HALF_LIFE_S, Candidate, Decision, decide, used_again, value
from server.pool.state import LOADABLE, OCCUPYING, Status

PATIENCE_S = 10.0


def ready(model: str, last_used: float = 0.0, **changes: object) -> Candidate:
    return Candidate(model, Status.READY, last_used=last_used, **changes)  # type: ignore[arg-type]


def unloaded(*ids: str) -> list[Candidate]:
    return [Candidate(model, Status.UNLOADED) for model in ids]


def test_a_busy_model_gives_way_only_to_a_queue_that_lost_its_patience() -> None:
    models = [ready("a", 3, idle=False), ready("b", 1, idle=False), *unloaded("x")]

    def at(now: float) -> frozenset[str]:
        return decide(models, {"x": 0.0}, models_max=2, now=now, patience_s=PATIENCE_S).give_way

    assert at(9.9) == frozenset()
    assert at(10) == {"b"}


def test_a_model_without_a_request_that_finds_no_room_is_left_out_once_the_others_are_loaded() -> None:
    loading = Candidate("a", Status.LOADING, taken={"CPU": 60}, fitting=True)

    def decided(other: Candidate, *, without_request: bool, now: float = 0) -> Decision:
        wanted = Candidate("x", Status.UNLOADED, need={"CPU": 60}, without_request=without_request)
        return decide([other, wanted], {"x": 0}, models_max=0, now=now, patience_s=PATIENCE_S, budget={"CPU": 100})

    assert decided(loading, without_request=True) == Decision()
    assert decided(ready("a", taken={"CPU": 60}), without_request=True, now=99) == Decision(left_out=("x",))
    assert decided(ready("a", taken={"CPU": 60}), without_request=False).evict == ("a",)


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
    wanted = draw(st.permutations(models))[: draw(st.integers(0, len(models)))]
    return models, {m.id: draw(TIMES) for m in wanted}, models_max


@given(pools(), TIMES)
def test_any_decision_keeps_the_rules(pool: tuple[list[Candidate], dict[str, float], int], now: float) -> None:
    models, waiting, models_max = pool
    by_id = {m.id: m for m in models}
    decision = decide(models, waiting, models_max=models_max, now=now, patience_s=PATIENCE_S)
    held = sum(m.status in OCCUPYING for m in models)

    loadable = [id_ for id_ in waiting if by_id[id_].status in LOADABLE]
    assert list(decision.load) == loadable[: len(decision.load)], "loads out of turn"
    assert not models_max or held + len(decision.load) <= models_max
    for model in decision.evict:
        assert by_id[model].idle
        assert by_id[model].status is Status.READY
    for model in decision.give_way:
        assert not by_id[model].idle
        assert by_id[model].status is Status.READY
    spared = [m for m in models if m.status is Status.READY and m.idle and m.id not in decision.evict]
    for model in decision.evict:
        older = [m for m in spared if m.last_used < by_id[model].last_used]
        assert by_id[model].giving_way or not older, "not the least recently used"
    short = bool(loadable[len(decision.load) :])
    leaving = any(m.leaving for m in models)
    assert not short or spared == [] or leaving or decision.evict, "waits beside an idle model"
    if not loadable and not any(by_id[id_].leaving for id_ in waiting):
        assert not decision.evict
        assert not decision.give_way


def sized(model: str, size: int, load_s: float, *used_at: float, **changes: object) -> Candidate:
    uses = -inf
    for when in used_at:
        uses = used_again(uses, when)
    taken = {"CPU": size}
    return ready(model, max(used_at), uses=uses, load_s=load_s, taken=taken, **changes)


def evicted(models: list[Candidate], need: int, room: int, *, models_max: int = 0) -> tuple[str, ...]:
    wanted = Candidate("x", Status.UNLOADED, need={"CPU": need})
    limits = {"models_max": models_max, "now": 0, "patience_s": PATIENCE_S}
    return decide([*models, wanted], {"x": 0.0}, budget={"CPU": room}, **limits).evict  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cheap", "dear"),
    [
        (sized("cheap", 100, 5, 50), sized("dear", 100, 60, 40)),  # takes long to load again
        (sized("cheap", 100, 5, 50), sized("dear", 100, 5, 10, 20, 30, 40)),  # used often
        (sized("cheap", 100, 5, 40), sized("dear", 100, 5, 50)),  # used lately
        (sized("cheap", 100, 5, 50), sized("dear", 50, 5, 40)),  # as much worth, in half the room
    ],
    ids=["cost", "frequency", "recency", "size"],
)
def test_where_bytes_are_short_the_least_valuable_leaves(cheap: Candidate, dear: Candidate) -> None:
    for models in ([cheap, dear], [dear, cheap]):
        assert evicted(models, need=50, room=sum(m.taken["CPU"] for m in models)) == ("cheap",)


@st.composite
def loaded(draw: st.DrawFn) -> list[Candidate]:
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


@given(loaded(), st.integers(1, 120), st.integers(0, 40))
def test_nobody_leaves_whom_less_valuable_ones_could_spare_it(models: list[Candidate], need: int, free: int) -> None:
    room = sum(m.taken["CPU"] for m in models) + free
    gone = evicted(models, need, room)
    size = {m.id: m.taken["CPU"] for m in models}
    able = [m for m in models if m.idle and not m.pinned]
    assert set(gone) <= {m.id for m in able}
    enough = free + sum(size[m.id] for m in able) >= need > free
    assert bool(gone) == enough
    if gone:
        assert free + sum(size[model] for model in gone) >= need
        assert all(free + sum(size[other] for other in gone if other != model) < need for model in gone), "too many"
        dearest = max(value(m) for m in able if m.id in gone)
        assert free + sum(size[m.id] for m in able if value(m) < dearest) < need


def test_a_use_counts_half_as_much_as_one_a_half_life_later() -> None:
    uses = -inf
    for when in (0.0, 0.0, HALF_LIFE_S, HALF_LIFE_S):
        uses = used_again(uses, when)
    assert uses == pytest.approx(log2(1 + 1 + 2 + 2))
