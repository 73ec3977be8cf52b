import asyncio
import json
import logging
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from server import logs
from server.errors import QueueFull
from server.telemetry.record import Record
from server.transport.admission import admission_of
from server.transport.keys import KeyStore, plain_key
from server.transport.middleware import CLIENT_GONE, Middleware
from server.transport.options import HttpOptions


class Recorder:
    """A connection to a gateway around `app`."""

    def __init__(self, app: Any, keys: tuple[str, ...] = (), **options: Any) -> None:
        self.counted: list[tuple[str, str, int]] = []
        self.sent: list[Message] = []
        self.draining = asyncio.Event()
        ring = KeyStore(map(plain_key, keys))
        self.gateway = Middleware(app, HttpOptions(**options), self.draining, self._count, keys=ring)

    async def request(self, method: str = "GET", path: str = "/v1/models", **headers: str) -> None:
        raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        await self.gateway(scope, self.receive, self.send)

    async def receive(self) -> Message:
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def _count(self, record: Record) -> None:
        self.counted.append((record.route, record.method, record.status))

    @property
    def status(self) -> int:
        return cast(int, self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


def raising(error: Exception, *, after: str = "") -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if after:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if after == "all":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        raise error

    return app


async def test_what_escapes_the_application_is_answered() -> None:
    connection = Recorder(raising(KeyError("secret")))
    await connection.request(origin="http://x.y")
    assert connection.status == 500
    assert b"secret" not in connection.sent[1]["body"]
    assert connection.headers[b"access-control-allow-origin"] == b"http://x.y"


async def test_errors_of_the_tree_keep_their_status_and_headers() -> None:
    connection = Recorder(raising(QueueFull(3, 9)))
    await connection.request()
    assert (connection.status, connection.headers[b"retry-after"]) == (429, b"9")


async def test_a_fault_in_the_middle_of_a_reply_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    connection = Recorder(raising(KeyError("x"), after="head"))
    with caplog.at_level(logging.ERROR):
        await connection.request()
    assert len(connection.sent) == 1
    assert "in the middle of its reply" in caplog.text


async def test_a_fault_after_the_reply_is_logged_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Recorder(raising(KeyError("x"), after="all"))
    monkeypatch.setattr(caplog.handler, "formatter", logs.LineFormatter(logs.as_json))
    with caplog.at_level(logging.ERROR):
        await connection.request(x_request_id="r-2")
    assert len(connection.sent) == 2
    said = json.loads(caplog.text)
    assert (said["msg"], said["request"]) == ("a request failed: KeyError", "r-2")


async def test_a_client_that_left_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    connection = Recorder(raising(ClientDisconnect()))
    with caplog.at_level(logging.WARNING):
        await connection.request("POST")
    assert (connection.sent, caplog.text) == ([], "")
    assert connection.counted == [("unmatched", "POST", CLIENT_GONE)]


async def test_a_cancelled_request_is_still_counted() -> None:
    started = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        await asyncio.Event().wait()

    connection = Recorder(app)
    running = asyncio.create_task(connection.request())
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert connection.counted == [("/v1/models", "GET", CLIENT_GONE)]


async def test_a_head_is_the_get_without_its_body() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["method"])
        await PlainTextResponse("hello")(scope, receive, send)

    connection = Recorder(app)
    await connection.request("HEAD")
    assert seen == ["GET"]
    assert (connection.status, connection.headers[b"content-length"]) == (200, b"5")
    assert [m["body"] for m in connection.sent[1:]] == [b""]
    assert connection.counted == [("/v1/models", "HEAD", 200)]


async def test_a_refused_key_is_logged_without_the_key(caplog: pytest.LogCaptureFixture) -> None:
    connection = Recorder(PlainTextResponse("hello"), keys=("right",))
    with caplog.at_level(logging.WARNING):
        await connection.request(path="/v1/models\nx", authorization="Bearer wrong", x_request_id="r-3")
    assert connection.status == 401
    assert "no valid API key from a local socket for '/v1/models\\nx'" in caplog.text
    assert "wrong" not in caplog.text
    (record,) = caplog.records
    assert cast(Any, record).key == plain_key("wrong").name


async def test_bodies_are_given_back_when_their_request_ends_however_it_ends() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        admission_of(scope).body.take(100)
        raise KeyError("x")

    connection = Recorder(app, max_bodies_bytes=100)
    for _ in range(2):
        await connection.request("POST")
        assert connection.sent.pop(0)["status"] == 500
        connection.sent.clear()


async def test_while_draining_the_application_is_not_asked() -> None:
    connection = Recorder(raising(AssertionError("asked")))
    connection.draining.set()
    await connection.request()
    assert connection.status == 503


async def test_other_kinds_of_connections_pass_untouched() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    connection = Recorder(app, keys=("k",))
    await connection.gateway({"type": "lifespan"}, connection.receive, connection.send)
    assert seen == ["lifespan"]
