"""How long step threads wait for requests that arrive together, on an event loop whose turns and clock a test moves."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from server.engine.arrivals import QUIET_TURNS, Arrivals

LONGEST_S = 4.0


class Handle:
    """A callback that may be cancelled, and when it is due."""

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """What `Arrivals` uses of an event loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self._handles: list[Handle] = []

    @property
    def n_callbacks(self) -> int:
        return sum(not handle.cancelled for handle in self._handles)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        return self.call_later(0.0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        self._handles.append(Handle(self.now + delay_s, callback))
        return self._handles[-1]

    def turn(self) -> None:
        """Call what is due."""
        due = [handle for handle in self._handles if handle.due <= self.now]
        self._handles = [handle for handle in self._handles if handle.due > self.now]
        for handle in due:
            if not handle.cancelled:
                handle.callback()


class Waiting:
    """The arrivals of a model with `n_slots` slots, and how often step threads were woken."""

    def __init__(self, n_slots: int = 8, last_step_s: float = 0.0) -> None:
        self.loop, self.n_open, self.n_wakes = Loop(), 0, 0
        is_full = lambda: self.n_open >= n_slots  # noqa: E731
        self.arrivals = Arrivals(cast(Any, self.loop), LONGEST_S, lambda: last_step_s, is_full, self._wake)

    def _wake(self) -> None:
        self.n_wakes += 1

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


def test_requests_of_neighbouring_turns_are_waited_for_together() -> None:
    waiting = Waiting()
    for _ in range(5):
        waiting.arrive()
        for _ in range(QUIET_TURNS - 1):
            waiting.loop.turn()
    assert waiting.n_wakes == 0
    waiting.loop.turn()
    assert waiting.n_wakes == 1
    assert (waiting.arrivals.expected, waiting.loop.n_callbacks) == (False, 0)


def test_requests_that_arrive_in_every_turn_are_not_waited_for_any_longer() -> None:
    waiting = Waiting(n_slots=1000)
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
    assert (waiting.n_wakes, waiting.arrivals.expected, waiting.loop.n_callbacks) == (1, False, 0)


@pytest.mark.parametrize("last_step_s", [0.0, 1000.0])
def test_full_slots_end_the_wait_and_leave_no_callback(last_step_s: float) -> None:
    waiting = Waiting(n_slots=2, last_step_s=last_step_s)
    waiting.arrive()
    waiting.arrive()
    assert (waiting.n_wakes, waiting.arrivals.expected, waiting.loop.n_callbacks) == (1, False, 0)


@pytest.mark.parametrize(("last_step_s", "first_turn_s"), [(50.0, 1.0), (1000.0, LONGEST_S)])
def test_the_first_turn_comes_after_a_share_of_the_last_step(last_step_s: float, first_turn_s: float) -> None:
    waiting = Waiting(last_step_s=last_step_s)
    waiting.arrive()
    waiting.loop.now = first_turn_s - 0.1
    for _ in range(2 * QUIET_TURNS):
        waiting.loop.turn()
    assert waiting.n_wakes == 0
    waiting.loop.now = first_turn_s
    assert waiting.turns_until_woken() == QUIET_TURNS


def test_a_request_in_preparation_is_waited_for() -> None:
    waiting = Waiting()
    with waiting.arrivals.preparing():
        assert waiting.arrivals.expected
    assert waiting.turns_until_woken() == QUIET_TURNS
    assert not waiting.arrivals.expected


def test_a_request_in_preparation_is_not_waited_for_while_all_slots_are_taken() -> None:
    waiting = Waiting(n_slots=2)
    with waiting.arrivals.preparing():
        waiting.arrive(2)
        assert not waiting.arrivals.expected
        waiting.n_open = 1
        assert waiting.arrivals.expected


def test_slots_whose_replies_the_event_loop_has_not_seen_are_not_taken() -> None:
    waiting = Waiting(n_slots=2)
    waiting.arrive(2)
    waiting.arrivals.replied()
    assert waiting.arrivals.expected


def test_requests_that_follow_replies_are_waited_for_from_the_moment_they_are_sent() -> None:
    waiting = Waiting()
    waiting.arrivals.replied()
    assert waiting.arrivals.expected
    waiting.arrivals.expect()  # the event loop has seen them
    assert waiting.turns_until_woken() == QUIET_TURNS
    assert not waiting.arrivals.expected
