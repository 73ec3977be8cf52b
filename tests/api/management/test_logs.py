"""One line a request, and what is logged meanwhile says which one it is about."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server import logs
from server.errors import InternalError, short
from server.transport.keys import plain_key
from tests.api.conftest import GoLive, Serve, chat_request, until
from tests.api.transport.test_keys import bearer, key_file, server
from tests.support.fakes import FakeLoader, FakeRunner

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "ignore_eos": True}
Lines = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    """What was logged under a name so far, as the JSON that a server writes."""
    as_json = logs.LineFormatter(logs.as_json)
    found: list[tuple[str, dict[str, Any]]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.name, json.loads(as_json.format(record))))

    handler = Kept()
    logging.getLogger("server").addHandler(handler)
    with caplog.at_level(logging.INFO, "server"):
        yield lambda name: [line for logger, line in found if logger == name]
    logging.getLogger("server").removeHandler(handler)


async def test_a_chats_line_says_what_it_took(serve: Serve, lines: Lines) -> None:
    async with serve(FakeLoader(n_seq=1)) as api:
        for stream in (False, True):
            body = CHAT | {"stream": stream}
            assert (
                await api.client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "a-1"})
            ).is_success
        for said in lines("server.access"):
            assert said["msg"].startswith("POST '/v1/chat/completions' 200 ")
            assert (said["request"], said["model"], said["slot"]) == ("a-1", "demo", "0")
            assert (said["predicted"], said["finish"], said["outcome"]) == (3, "limit", "done")
            times = [said[f"{name}_ms"] for name in ("load", "prepare", "queue", "prefill", "decode")]
            assert min(times) >= 0
        first, second = lines("server.access")
        assert first["prompt"] == second["prompt"] > second["cached"] > first["cached"] == 0
        assert (first["source"], first["recompute"]) == ("none", "nothing")
        assert (second["source"], second["recompute"]) == ("slot", "last")


async def test_choices_are_counted_together(serve: Serve, lines: Lines) -> None:
    async with serve(FakeLoader(n_seq=2)) as api:
        reply = await api.client.post("/v1/chat/completions", json=CHAT | {"n": 2})
        (said,) = lines("server.access")
        used = reply.json()["usage"]
        assert (said["prompt"], said["predicted"]) == (used["prompt_tokens"], used["completion_tokens"])
        assert (said["finish"], sorted(said["slot"].split(","))) == ("limit,limit", ["0", "1"])


async def test_who_asks_and_who_is_refused_is_named(serve: Serve, lines: Lines, tmp_path: Path) -> None:
    async with serve(server=server(key_file(tmp_path, ada={}))) as api:
        for headers in (bearer("ada"), bearer("wrong"), {}):
            await api.client.post("/v1/chat/completions", json=CHAT, headers=headers)
        await api.expect("POST /lora-adapters", [], 403, headers=bearer("ada"))
        ada, wrong, none, forbidden = lines("server.access")
        assert (ada["key"], ada["outcome"], forbidden["key"]) == ("ada", "done", "ada")
        assert (wrong["outcome"], wrong["key"]) == ("authentication_failed", plain_key("wrong").name)
        assert (none["outcome"], none.get("key")) == ("authentication_failed", None)
        assert "wrong" not in json.dumps([*lines("server.access"), *lines("server.transport.middleware")])


async def test_the_audit_log_names_who_changed_which_model(serve: Serve, lines: Lines) -> None:
    async with serve(server={"api_keys": ["right"]}) as api:
        right, wrong = map(bearer, ("right", "wrong"))
        assert (await api.client.post("/models/unload", json={"model": "demo"}, headers=right)).is_success
        assert (await api.client.post("/models/load", json={"model": "demo"}, headers=wrong)).status_code == 401
        await api.client.request("DELETE", "/api/delete", json={"model": "other"}, headers=right)
        await api.client.get("/models?reload=1", headers=right)
        await api.client.post("/cache/reset", json={"model": "demo" * 100}, headers=right)
        await api.client.post("/cache/pin", json={"model": "demo", "ttl_s": 0}, headers=right)
        await api.client.get("/cors-proxy", params={"url": "http://127.0.0.1:1/mcp?token=secret"}, headers=right)
        for path in ("/slots", "/models", "/props", "/no/such/path"):
            await api.client.get(path, headers=right)
        await api.client.post("/v1/chat/completions", json=CHAT, headers=right)
        unload, load, delete, reload, reset, pin, proxy = lines("server.audit")
    assert unload["msg"] == "POST '/models/unload' 200"
    assert (unload["key"], unload["model"], unload["outcome"]) == (plain_key("right").name, "demo", "done")
    assert (load["key"], load["outcome"], load.get("model")) == (plain_key("wrong").name, "authentication_failed", None)
    assert (delete["msg"].split()[:2], delete["model"]) == (["DELETE", "'/api/delete'"], "other")
    assert reload["query"] == "reload=1"
    assert reset["model"] == short("demo" * 100)
    assert (pin["model"], pin["outcome"]) == ("demo", "invalid_request")
    assert proxy["query"] == "url=http://127.0.0.1:1/mcp?token=****"


async def test_a_client_that_leaves(live: GoLive, lines: Lines) -> None:
    gate = threading.Semaphore(1)
    async with live(FakeLoader(n_seq=2, steps=gate)) as running:
        reader, writer = await running.connect(chat_request(max_tokens=50))
        await reader.readuntil(b"}\n\n")
        writer.close()
        await writer.wait_closed()
        await until(lambda: lines("server.access"))
        (said,) = lines("server.access")
        assert (said["outcome"], said["finish"]) == ("cut off", "cancelled")
        assert said["prompt"] > 0
        gate.release(1000)


async def test_the_engines_lines_name_the_request(serve: Serve, lines: Lines) -> None:
    class Broken(FakeRunner):
        def decode(self, entries: Any) -> bool:
            raise InternalError("no")

    async with serve(FakeLoader(runner=lambda: Broken(n_seq=1))) as api:
        await api.expect("POST /v1/chat/completions", CHAT, 500, headers={"X-Request-Id": "a-7"})
        assert [said["request"] for said in lines("server.engine.loop")] == ["a-7"]
        assert lines("server.access")[0]["outcome"] == "internal_error"
        assert lines("server.access")[0]["finish"] == "failed"


async def test_a_broken_stream_has_its_reason(serve: Serve, lines: Lines) -> None:
    class Breaks(FakeRunner):
        n_decoded = 0

        def decode(self, entries: Any) -> bool:
            self.n_decoded += 1
            if self.n_decoded > 2:
                raise InternalError("no")
            return super().decode(entries)

    async with serve(FakeLoader(runner=lambda: Breaks(n_seq=1))) as api:
        await api.expect("POST /v1/chat/completions", CHAT | {"stream": True})
        (said,) = lines("server.access")
        assert (said["outcome"], said["finish"]) == ("internal_error", "failed")
