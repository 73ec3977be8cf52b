"""Threads whose jobs wait for sandboxed processes, shared by clients."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class ClientThreads(ThreadPoolExecutor):
    """`n` threads, of which a client occupies at most `n_of_client`, so that one with slow jobs leaves some to others.

    `run` is used on the event loop.
    """

    def __init__(self, n: int, n_of_client: int, name: str) -> None:
        super().__init__(n, thread_name_prefix=name)
        self._n_of_client = n_of_client
        self._by_client: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(
        self, client: str, work: Callable[[], T], submitted: Callable[[Future[Any]], object] = lambda _: None
    ) -> T:
        """Return the result of `work`, which occupies its client's thread to its end even if the caller is cancelled.

        `submitted` receives the future of `work`. Work that has not begun is cancelled with the caller.
        """
        own = self._by_client.setdefault(client, asyncio.Semaphore(self._n_of_client))
        await own.acquire()
        running = self.submit(work)
        submitted(running)
        ended = asyncio.wrap_future(running)

        def release(ended: asyncio.Future[T]) -> None:
            own.release()
            if not ended.cancelled():
                ended.exception()  # otherwise asyncio logs the error of a cancelled caller's work

        ended.add_done_callback(release)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            running.cancel()
            raise
