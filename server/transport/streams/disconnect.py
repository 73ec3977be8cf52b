"""Work for a client that may go away before it is done."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

T = TypeVar("T")


class Watch:
    """While it is entered, the client's disconnect ends the task that entered it: by `ClientDisconnect`.

    The body must have been read before. It costs one task; a group of tasks around the work would cost three times
    that, which a request of one token would notice.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._reason: Exception | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._n_cancels = task, task.cancelling()
        self._listening = asyncio.create_task(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._listening.cancel()
        # as asyncio.timeout does it: whoever else has cancelled the task comes first
        reason = self._reason
        if reason is not None and self._task.uncancel() <= self._n_cancels and kind is asyncio.CancelledError:
            raise reason from error

    def interrupt(self, reason: Exception) -> None:
        """End the work with `reason`, too; not from within it. Of several reasons the first one counts."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientDisconnect())


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, cancelled when the client disconnects. For replies that are not streams; read the
    body before. Raises `ClientDisconnect` after `work` has ended; the gateway ends such a request quietly.
    """
    with Watch(request.receive):
        return await work
