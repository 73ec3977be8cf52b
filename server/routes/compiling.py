"""Whose grammar is compiled next: a few at a time, by turns of clients, so that one client can't delay all others."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from server.errors import TooLate

N_AT_ONCE = 2
WAIT_S = 30.0
RETRY_S = 5


@dataclass(slots=True)
class Compiling:
    """``threads``: where turns do their work. A client that waits is served before those that were served later.

    Used on the event loop.
    """

    n_free: int = N_AT_ONCE
    wait_s: float = WAIT_S
    threads: Executor = field(default_factory=lambda: ThreadPoolExecutor(N_AT_ONCE, thread_name_prefix="compile"))
    _waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)
    _served_at: dict[str, float] = field(default_factory=dict)

    @property
    def n_waiting(self) -> int:
        """How many wait for their turn."""
        return sum(map(len, self._waiting.values()))

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn of `client`. Raises `TooLate` after ``wait_s`` seconds."""
        if self.n_free and not self._waiting:
            self.n_free -= 1
        else:
            await self._wait(client)
        self._served_at[client] = time.monotonic()
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, client: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            async with asyncio.timeout(self.wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # the turn came at the same moment
            else:
                self._leave(client, turn)
            if isinstance(error, TimeoutError):
                said = f"other clients' grammars are compiled first: this one waited for {self.wait_s:.0f} s"
                raise TooLate(said, RETRY_S) from None
            raise

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting[client]
        turns.remove(turn)
        if not turns:
            del self._waiting[client]

    def _pass_on(self) -> None:
        """Give the turn to the client that was served least recently."""
        if not self._waiting:
            self.n_free += 1
            self._served_at.clear()
            return
        client = min(self._waiting, key=lambda each: self._served_at.get(each, 0.0))
        turn = self._waiting[client][0]
        self._leave(client, turn)
        self._served_at[client] = time.monotonic()
        turn.set_result(None)
