"""How long step threads wait for requests that arrive together: `Arrivals` with an event loop that tests drive."""

import asyncio
from collections.abc import Iterator

import pytest

from server.engine.arrivals import QUIET_TURNS, Arrivals

LONGEST_S = 4.0


class Loop(asyncio.SelectorEventLoop):
    """An event loop that a test turns by hand, with a clock that the test sets."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def turn(self) -> None:
        """Run the callbacks that are due."""
        self.stop()
        self.run_forever()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Model:
    """The `Arrivals` of a model with `n_slots` slots; counts the calls that wake its step threads."""

    def __init__(self, loop: Loop, n_slots: int = 8, last_step_s: float = 0.0) -> None:
        self.loop, self.n_open, self.n_wakes = loop, 0, 0
        is_full = lambda: self.n_open >= n_slots  # noqa: E731
        self.arrivals = Arrivals(loop, LONGEST_S, lambda: last_step_s, is_full, self._wake)

    def _wake(self) -> None:
        self.n_wakes += 1

    def woke_once(self) -> bool:
        """Return whether step threads were woken exactly once, and no callback is left, now or later."""
        self.loop.now += 2 * LONGEST_S
        for _ in range(2 * QUIET_TURNS):
            self.loop.turn()
        return self.n_wakes == 1 and not self.arrivals.expected

    def arrive(self, n: int = 1) -> None:
        self.n_open += n
        self.arrivals.expect()

    def turns_until_woken(self) -> int:
        """Turn the event loop until step threads are woken; return the number of turns."""
        before = self.n_wakes
        for n in range(1000):
            if self.n_wakes > before:
                return n
            assert self.arrivals.expected
            self.loop.turn()
        raise AssertionError("no step thread was woken")


def test_each_arrival_prolongs_the_wait(loop: Loop) -> None:
    model = Model(loop)
    for _ in range(5):
        model.arrive()
        for _ in range(QUIET_TURNS - 1):
            model.loop.turn()
    assert model.n_wakes == 0
    model.loop.turn()
    assert model.n_wakes == 1
    assert model.woke_once()


def test_arrivals_in_every_turn_do_not_prolong_the_wait_past_its_limit(loop: Loop) -> None:
    model = Model(loop, n_slots=1000)
    for now in (0.0, 1.0, 2.0, 3.0, 3.9):
        model.loop.now = now
        for _ in range(QUIET_TURNS):
            model.arrive()
            model.loop.turn()
    assert model.n_wakes == 0
    model.loop.now = LONGEST_S
    for _ in range(QUIET_TURNS - 1):
        model.arrive()
        model.loop.turn()
    assert model.n_wakes == 1
    assert model.woke_once()


@pytest.mark.parametrize("last_step_s", [0.0, 1000.0])
def test_wait_ends_when_requests_fill_all_slots(loop: Loop, last_step_s: float) -> None:
    model = Model(loop, n_slots=2, last_step_s=last_step_s)
    model.arrive()
    model.arrive()
    assert model.n_wakes == 1
    assert model.woke_once()


@pytest.mark.parametrize(("last_step_s", "first_turn_s"), [(50.0, 1.0), (1000.0, LONGEST_S)])
def test_first_turn_runs_after_a_share_of_the_last_step(loop: Loop, last_step_s: float, first_turn_s: float) -> None:
    model = Model(loop, last_step_s=last_step_s)
    model.arrive()
    model.loop.now = first_turn_s - 0.1
    for _ in range(2 * QUIET_TURNS):
        model.loop.turn()
    assert model.n_wakes == 0
    model.loop.now = first_turn_s
    assert model.turns_until_woken() == QUIET_TURNS


def test_request_in_preparation_is_expected(loop: Loop) -> None:
    model = Model(loop)
    with model.arrivals.preparing():
        assert model.arrivals.expected
    assert model.turns_until_woken() == QUIET_TURNS
    assert not model.arrivals.expected


def test_request_in_preparation_is_not_expected_while_all_slots_are_taken(loop: Loop) -> None:
    model = Model(loop, n_slots=2)
    with model.arrivals.preparing():
        model.arrive(2)
        assert not model.arrivals.expected
        model.n_open = 1
        assert model.arrivals.expected


def test_follow_ups_are_expected_as_soon_as_replies_are_sent(loop: Loop) -> None:
    model = Model(loop, n_slots=2)
    model.arrive(2)
    model.arrivals.replied()
    assert model.arrivals.expected, "before the event loop knows that both slots are free"
    model.n_open = 0
    model.arrivals.expect()  # the event loop has processed the replies
    assert model.turns_until_woken() == QUIET_TURNS
    assert not model.arrivals.expected
