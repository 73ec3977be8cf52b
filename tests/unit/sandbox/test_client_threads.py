"""Threads shared by clients."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from server.sandbox.client_threads import ClientThreads


async def test_an_error_after_the_caller_was_cancelled_is_not_logged() -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    threads, may_end = ClientThreads(1, 1, "test"), threading.Event()

    def work() -> None:
        may_end.wait()
        raise ValueError("invalid request")

    caller = asyncio.create_task(threads.run("client", work))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    may_end.set()
    await threads.run("client", int)  # its turn comes after the end of `work`
    gc.collect()
    threads.shutdown()
    assert not logged
