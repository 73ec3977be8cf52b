"""How long step threads wait for requests that arrive together, on an event loop whose turns and clock a test moves."""

import asyncio
from collections.abc import Iterator

import pytest

from server.engine.arrivals import QUIET_TURNS, Arrivals

LONGEST_S = 4.0


class Loop(asyncio.SelectorEventLoop):
    """An event loop that a test turns, and whose clock it moves."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def turn(self) -> None:
        """Call what is due."""
        self.stop()
        self.run_forever()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Waiting:
    """The arrivals of a model with `n_slots` slots, and how often step threads were woken."""

    def __init__(self, loop: Loop, n_slots: int = 8, last_step_s: float = 0.0) -> None:
        self.loop, self.n_open, self.n_wakes = loop, 0, 0
        is_full = lambda: self.n_open >= n_slots  # noqa: E731
        self.arrivals = Arrivals(loop, LONGEST_S, lambda: last_step_s, is_full, self._wake)

    def _wake(self) -> None:
        self.n_wakes += 1

    def is_over(self) -> bool:
        """Return whether they were woken once, and nothing more is due, now or later."""
        self.loop.now += 2 * LONGEST_S
        for _ in range(2 * QUIET_TURNS):
            self.loop.turn()
        return self.n_wakes == 1 and not self.arrivals.expected

    def arrive(self, n: int = 1) -> None:
        self.n_open += n
        self.arrivals.expect()

    def turns_until_woken(self) -> int:
        """Return how many turns it takes."""
        before = self.n_wakes
        for n in range(1000):
            if self.n_wakes > before:
                return n
            assert self.arrivals.expected
            self.loop.turn()
        raise AssertionError("nobody was woken")


def test_requests_of_neighbouring_turns_are_waited_for_together(loop: Loop) -> None:
    waiting = Waiting(loop)
    for _ in range(5):
        waiting.arrive()
        for _ in range(QUIET_TURNS - 1):
            waiting.loop.turn()
    assert waiting.n_wakes == 0
    waiting.loop.turn()
    assert waiting.n_wakes == 1
    assert waiting.is_over()


def test_requests_that_arrive_in_every_turn_are_not_waited_for_any_longer(loop: Loop) -> None:
    waiting = Waiting(loop, n_slots=1000)
    for now in (0.0, 1.0, 2.0, 3.0, 3.9):
        waiting.loop.now = now
        for _ in range(QUIET_TURNS):
            waiting.arrive()
            waiting.loop.turn()
    assert waiting.n_wakes == 0
    waiting.loop.now = LONGEST_S
    for _ in range(QUIET_TURNS - 1):
        waiting.arrive()
        waiting.loop.turn()
    assert waiting.n_wakes == 1
    assert waiting.is_over()


@pytest.mark.parametrize("last_step_s", [0.0, 1000.0])
def test_full_slots_end_the_wait_and_leave_no_callback(loop: Loop, last_step_s: float) -> None:
    waiting = Waiting(loop, n_slots=2, last_step_s=last_step_s)
    waiting.arrive()
    waiting.arrive()
    assert waiting.n_wakes == 1
    assert waiting.is_over()


@pytest.mark.parametrize(("last_step_s", "first_turn_s"), [(50.0, 1.0), (1000.0, LONGEST_S)])
def test_the_first_turn_comes_after_a_share_of_the_last_step(
    loop: Loop, last_step_s: float, first_turn_s: float
) -> None:
    waiting = Waiting(loop, last_step_s=last_step_s)
    waiting.arrive()
    waiting.loop.now = first_turn_s - 0.1
    for _ in range(2 * QUIET_TURNS):
        waiting.loop.turn()
    assert waiting.n_wakes == 0
    waiting.loop.now = first_turn_s
    assert waiting.turns_until_woken() == QUIET_TURNS


def test_a_request_in_preparation_is_waited_for(loop: Loop) -> None:
    waiting = Waiting(loop)
    with waiting.arrivals.preparing():
        assert waiting.arrivals.expected
    assert waiting.turns_until_woken() == QUIET_TURNS
    assert not waiting.arrivals.expected


def test_a_request_in_preparation_is_not_waited_for_while_all_slots_are_taken(loop: Loop) -> None:
    waiting = Waiting(loop, n_slots=2)
    with waiting.arrivals.preparing():
        waiting.arrive(2)
        assert not waiting.arrivals.expected
        waiting.n_open = 1
        assert waiting.arrivals.expected


def test_requests_that_follow_replies_are_waited_for_from_the_moment_they_are_sent(loop: Loop) -> None:
    waiting = Waiting(loop, n_slots=2)
    waiting.arrive(2)
    waiting.arrivals.replied()
    assert waiting.arrivals.expected, "the event loop has not seen that both slots are free"
    waiting.n_open = 0
    waiting.arrivals.expect()  # now it has
    assert waiting.turns_until_woken() == QUIET_TURNS
    assert not waiting.arrivals.expected
