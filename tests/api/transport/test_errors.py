import logging
from typing import Any

import httpx
import pytest

from server import logs
from tests.api.conftest import Serve


async def test_an_unknown_path_is_llama_servers_404(client: httpx.AsyncClient) -> None:
    reply = await client.get("/nope")
    assert (reply.status_code, reply.json()) == (
        404,
        {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}},
    )
    assert reply.headers["content-type"] == "application/json; charset=utf-8"


async def test_a_wrong_method_says_which_are_right(client: httpx.AsyncClient) -> None:
    reply = await client.get("/v1/completions")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/%00", "/v1/models/%ff", "/" + "x" * 5000, "/x//", "/v1/models/..%2f..%2fetc"])
async def test_strange_paths_are_not_found(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


async def test_a_fault_of_ours_is_a_500_without_details(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as api:

        def broken() -> None:
            raise KeyError("the password")

        monkeypatch.setattr(api.pool, "states", broken)
        monkeypatch.setattr(caplog.handler, "formatter", logs.LineFormatter(logs.as_json))
        with caplog.at_level(logging.ERROR):
            reply = await api.client.get("/v1/models", headers={"Origin": "http://x.y", "X-Request-Id": "abc-1"})
        text = caplog.text
        monkeypatch.undo()
        assert reply.status_code == 500
        assert reply.json()["error"]["type"] == "server_error"
        assert "password" not in reply.text
        assert "the password" in text
        assert "abc-1" in text
        assert reply.headers["access-control-allow-origin"] == "http://x.y"
        assert reply.headers["x-request-id"] == "abc-1"


async def test_clients_are_told_not_to_ask_again_for_what_this_server_does_not_do(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/embeddings", json={"input": "x"})
    assert (reply.status_code, reply.headers["x-should-retry"]) == (501, "false")
    assert "x-should-retry" not in (await client.post("/v1/completions", json={"n": 0})).headers


async def test_every_reply_says_who_answers_and_to_which_request(client: httpx.AsyncClient) -> None:
    reply = await client.get("/health", headers={"X-Request-Id": "mine"})
    assert (reply.headers["server"], reply.headers["x-request-id"]) == ("llamapool", "mine")
    first, second = [(await client.get("/health")).headers["x-request-id"] for _ in range(2)]
    assert first != second


@pytest.mark.parametrize("given", ["a b", "x" * 129, "ü".encode().decode("latin-1"), ""])
async def test_a_request_id_that_could_spoil_the_log_is_replaced(client: httpx.AsyncClient, given: str) -> None:
    reply = await client.get("/health", headers=[(b"x-request-id", given.encode("latin-1"))])
    assert reply.headers["x-request-id"] != given


async def test_the_log_tells_status_and_duration(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "server.access"):
        await client.get("/nope%0Ainjected", headers={"X-Request-Id": "abc-2"})
        await client.get("/health")
    record: Any
    (record,) = [r for r in caplog.records if r.name == "server.access"]
    assert "GET '/nope\\ninjected' 404" in record.getMessage()
    assert (record.request, record.outcome) == ("abc-2", "http_404")
