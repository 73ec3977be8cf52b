"""Requests that arrive together share a batch: step threads that have nothing to run wait for more of them.

Clients whose replies end in one batch send their next requests within a few turns of the event loop. If the first of
these were decoded immediately, the others would form a second group, and the two groups would alternate. But a step
with four requests costs nearly as much as one with eight.

A wait begins when a request arrives, and when a request that generates ends. It ends, and the step threads are woken,
when the open requests fill all slots, or after `QUIET_TURNS` turns of the event loop without a new request. A request
that arrives more than ``gather_ms`` after the start does not prolong it. The first turn follows after `STEP_SHARE` of
the duration of the last step.

A step thread that is awake because it has just sent replies waits at most ``gather_ms`` (`StepThread._gather`), also
for requests in preparation. A request that arrives while others run does not wait: it joins the next step.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

STEP_SHARE = 0.02
QUIET_TURNS = 12


class Arrivals:
    """Tracks whether more requests of a model are expected. Runs on the event loop, except `expected` and `replied`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        longest_s: float,
        last_step_s: Callable[[], float],
        is_full: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        """Prolong a wait for at most `longest_s` seconds. `last_step_s` returns the seconds of the last step, `is_full`
        whether the open requests fill all slots; `wake` wakes the step threads.
        """
        self._loop, self._longest_s = loop, longest_s
        self._last_step_s, self._is_full, self._wake = last_step_s, is_full, wake
        self._n_preparing = 0
        self._n_turns = 0  # left in the wait
        self._prolonged_until = 0.0  # on the event loop's clock
        self._next: asyncio.Handle | None = None  # the next turn of the wait; None = no wait
        self._has_replied = False

    @property
    def expected(self) -> bool:
        """Whether a step thread that has nothing to run should wait."""
        if self._has_replied:  # the requests that have ended still count as open
            return True
        return self._next is not None or (self._n_preparing > 0 and not self._is_full())

    def replied(self) -> None:
        """Record that replies are on their way to the event loop, which will `expect` requests that follow them."""
        self._has_replied = True

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Context manager around the preparation of a request."""
        self._n_preparing += 1
        try:
            yield
        finally:
            self._n_preparing -= 1
            self.expect()

    def expect(self) -> None:
        """Begin or prolong the wait, after a request has arrived or ended."""
        self._has_replied = False
        now = self._loop.time()
        if self._is_full():
            self._end()
        elif self._next is None:
            self._n_turns, self._prolonged_until = QUIET_TURNS, now + self._longest_s
            self._next = self._loop.call_later(min(STEP_SHARE * self._last_step_s(), self._longest_s), self._turn)
        elif now < self._prolonged_until:
            self._n_turns = QUIET_TURNS

    def _turn(self) -> None:
        self._n_turns -= 1
        if self._n_turns and not self._is_full():
            self._next = self._loop.call_soon(self._turn)
        else:
            self._end()

    def _end(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._wake()
