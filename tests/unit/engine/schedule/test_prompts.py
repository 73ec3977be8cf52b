"""Which prompt gets a step's tokens."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.scheduler import WAIT_WEIGHT
from server.engine.scheduler import in_order as ordered
from server.engine.sequence import Sequence, Slot
from tests.unit.engine.builders import sequence

RATE = 1000.0


def prompt(n: int, *, at: float = 0.0, priority: int = 0, served: float = 0.0, done: int = 0) -> Sequence:
    """A prompt that has had its slot since `at`; its client, whose name says so, was `served` so much."""
    made = sequence([1] * n, at=at, slot=Slot(0, tokens=[1] * done), priority=priority, client=str(served))
    made.placed_at = at
    return made


def in_order(prompts: list[Sequence], rate: float, inherited: dict[Sequence, int] | None = None) -> list[Sequence]:
    return ordered(prompts, rate, float, inherited or {})


def test_a_short_prompt_does_not_stand_behind_a_long_one() -> None:
    long, short = prompt(100_000, at=1.0), prompt(50, at=2.0)
    assert in_order([long, short], RATE) == [short, long]


def test_short_prompts_without_end_do_not_starve_a_long_one() -> None:
    """They pass it for four times as long as computing it takes, and no longer."""
    long = prompt(10_000, at=0.0)
    passes_s = 10_000 / RATE / WAIT_WEIGHT
    assert in_order([long, prompt(50, at=passes_s * 0.9)], RATE)[0] is not long
    assert in_order([long, prompt(50, at=passes_s * 1.1)], RATE)[0] is long


def test_priority_comes_before_length() -> None:
    long, short = prompt(5000, priority=-1, at=2.0), prompt(50, at=1.0)
    assert in_order([short, long], RATE)[0] is long
    assert in_order([short, long], 0.0)[0] is long, "also before any prompt was computed"


def test_a_prompt_that_an_urgent_one_waits_for_is_as_urgent() -> None:
    late, short = prompt(5000, priority=10, at=2.0), prompt(50, at=1.0)
    assert in_order([short, late], RATE, {late: -10})[0] is late
    assert in_order([short, late], RATE, {})[0] is short


def test_a_client_that_was_served_much_more_comes_later() -> None:
    short, long = prompt(50, served=10_000.0), prompt(5000, served=100.0)
    assert in_order([short, long], RATE)[0] is long


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5000),
            st.floats(0.0, 1e5),
            st.sampled_from([0, 0, 0, -1, 3]),
            st.floats(0.0, 1e6),
        ),
        max_size=7,
    ),
    st.floats(0.0, 1e5),
)
def test_nobody_passes_who_is_older_shorter_more_urgent_and_whose_client_was_served_less(
    wanted: list[tuple[int, float, int, float]], rate: float
) -> None:
    prompts = [prompt(n, at=at, priority=priority, served=served) for n, at, priority, served in wanted]
    order = in_order(prompts, rate)
    assert sorted(map(id, order)) == sorted(map(id, prompts))
    for i, first in enumerate(order):
        for later in order[i + 1 :]:
            assert not all(
                (
                    later.placed_at < first.placed_at,
                    len(later.target) < len(first.target),
                    later.request.priority < first.request.priority,
                    float(later.request.client) < float(first.request.client),
                )
            )
