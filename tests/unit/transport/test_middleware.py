import asyncio
import logging

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.transport.keys import KeyStore
from server.transport.limits import Rates
from server.transport.middleware import Middleware
from server.transport.options import HttpOptions


async def test_error_after_a_finished_reply_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("done")(scope, receive, send)
        raise KeyError("the reason")

    middleware = Middleware(
        app, HttpOptions(), asyncio.Event(), lambda _: None, is_page=lambda _: False, keys=KeyStore(), rates=Rates()
    )
    with caplog.at_level(logging.ERROR):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(middleware), base_url="http://test") as client:
            assert (await client.get("/health")).text == "done"
    assert "the reason" in caplog.text
