"""Which prompt gets a step's tokens."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.generate.text import TextStream
from server.engine.request import Request
from server.engine.schedule.prefill_order import OLDEST, PromptOrder
from server.engine.schedule.queue import Account
from server.engine.sequence import Sequence, Slot, Ticket

QUANTUM = 1000


def prompt(n: int, *, at: float = 0.0, priority: int = 0, account: Account | None = None, done: int = 0) -> Sequence:
    ticket = Ticket(Request(id="r", prompt=[1] * n, priority=priority), lambda events: None, at)
    sequence = Sequence(ticket, 0, TextStream(), ticket.request.prompt, account=account or Account())
    sequence.slot = Slot(0, tokens=[1] * done)
    return sequence


def firsts(prompts: list[Sequence], n_steps: int) -> list[Sequence]:
    order = PromptOrder(QUANTUM)
    return [order.sorted(prompts)[0] for _ in range(n_steps)]


def test_a_short_prompt_does_not_stand_behind_a_long_one() -> None:
    long, short = prompt(100_000, at=1.0), prompt(50, at=2.0)
    assert firsts([long, short], OLDEST - 1) == [short] * (OLDEST - 1)


def test_what_is_left_counts_and_not_the_whole_length() -> None:
    nearly, short = prompt(5000, at=1.0, done=4990), prompt(50, at=0.0)
    assert firsts([nearly, short], 1) == [nearly]


def test_short_prompts_without_end_do_not_starve_a_long_one() -> None:
    long = prompt(100_000, at=1.0)
    assert firsts([long, *[prompt(50, at=2.0 + i) for i in range(9)]], 4 * OLDEST).count(long) == 4


def test_priority_comes_before_length() -> None:
    long, short = prompt(5000, priority=-1, at=2.0), prompt(50, at=1.0)
    assert firsts([short, long], OLDEST) == [long] * (OLDEST - 1) + [short]


def test_a_prompt_that_an_urgent_one_waits_for_is_as_urgent() -> None:
    late, short = prompt(5000, priority=10, at=2.0), prompt(50, at=1.0)
    order = PromptOrder(QUANTUM)
    assert order.sorted([short, late], {late: -10})[0] is late
    order = PromptOrder(QUANTUM)
    assert order.sorted([short, late], {})[0] is short


def test_a_client_that_was_served_much_more_comes_later() -> None:
    greedy, modest = Account(10_000.0), Account(100.0)
    short, long = prompt(50, account=greedy), prompt(5000, at=2.0, account=modest)
    assert firsts([short, long], 1) == [long]


def test_a_small_difference_between_clients_leaves_them_equals() -> None:
    short = prompt(50, account=Account(100.0 + QUANTUM / 2))
    assert firsts([prompt(5000, account=Account(100.0)), short], 1) == [short]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sampled_from([0.0, 1.0, 2.0]),
            st.sampled_from([0, 0, 0, -1, 3]),
            st.sampled_from([0.0, QUANTUM / 2, QUANTUM, 3.0 * QUANTUM]),
        ),
        max_size=7,
    )
)
def test_priority_then_service_then_length_then_age(wanted: list[tuple[int, float, int, float]]) -> None:
    prompts = [prompt(n, at=at, priority=priority, account=Account(served)) for n, at, priority, served in wanted]
    least = min((served for *_, served in wanted), default=0.0)
    expected = sorted(
        prompts,
        key=lambda s: (
            s.request.priority,
            (s.account.served - least) // QUANTUM,
            len(s.target) - s.n_computed,
            s.ticket.submitted_at,
        ),
    )
    order = PromptOrder(QUANTUM)
    assert order.sorted(prompts) == expected
    if expected:
        oldest = min(expected, key=lambda s: s.ticket.submitted_at)
        assert order.sorted(prompts) == [oldest, *(s for s in expected if s is not oldest)]
