"""The access log, the audit log, and the request id in other log lines."""

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
    """Return the JSON log lines of a logger so far."""
    as_json = logs.LineFormatter(logs.as_json)
    found: list[tuple[str, dict[str, Any]]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.name, json.loads(as_json.format(record))))

    handler = Collector()
    logging.getLogger("server").addHandler(handler)
    with caplog.at_level(logging.INFO, "server"):
        yield lambda name: [line for logger, line in found if logger == name]
    logging.getLogger("server").removeHandler(handler)


async def test_access_log_has_times_tokens_and_cache_source_of_a_chat(serve: Serve, lines: Lines) -> None:
    async with serve(FakeLoader(n_seq=1)) as api:
        for stream in (False, True):
            body = CHAT | {"stream": stream}
            assert (
                await api.client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "a-1"})
            ).is_success
        for line in lines("server.access"):
            assert line["msg"].startswith("POST '/v1/chat/completions' 200 ")
            assert (line["request"], line["model"], line["slot"]) == ("a-1", "demo", "0")
            assert (line["predicted"], line["finish"], line["outcome"]) == (3, "limit", "done")
            times = [line[f"{name}_ms"] for name in ("load", "prepare", "queue", "prefill", "decode")]
            assert min(times) >= 0
        first, second = lines("server.access")
        assert first["prompt"] == second["prompt"] > second["cached"] > first["cached"] == 0
        assert (first["source"], first["recompute"]) == ("none", "nothing")
        assert (second["source"], second["recompute"]) == ("slot", "last")


async def test_access_log_sums_the_tokens_of_all_choices(serve: Serve, lines: Lines) -> None:
    async with serve(FakeLoader(n_seq=2)) as api:
        reply = await api.client.post("/v1/chat/completions", json=CHAT | {"n": 2})
        (line,) = lines("server.access")
        used = reply.json()["usage"]
        assert (line["prompt"], line["predicted"]) == (used["prompt_tokens"], used["completion_tokens"])
        assert (line["finish"], sorted(line["slot"].split(","))) == ("limit,limit", ["0", "1"])


async def test_access_log_names_the_key_of_accepted_and_refused_requests(
    serve: Serve, lines: Lines, tmp_path: Path
) -> None:
    async with serve(server=server(key_file(tmp_path, ada={}))) as api:
        for headers in (bearer("ada"), bearer("wrong"), {}):
            await api.client.post("/v1/chat/completions", json=CHAT, headers=headers)
        await api.expect("POST /lora-adapters", [], 403, headers=bearer("ada"))
        ada, wrong, none, forbidden = lines("server.access")
        assert (ada["key"], ada["outcome"], forbidden["key"]) == ("ada", "done", "ada")
        assert (wrong["outcome"], wrong["key"]) == ("authentication_failed", plain_key("wrong").name)
        assert (none["outcome"], none.get("key")) == ("authentication_failed", None)
        assert "wrong" not in json.dumps([*lines("server.access"), *lines("server.transport.middleware")])


async def test_audit_log_has_key_and_model_of_each_change(serve: Serve, lines: Lines) -> None:
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
        await api.expect("POST /tools", {"tool": "x"}, 403, headers=right)
        unload, load, delete, reload, reset, pin, proxy, tool = lines("server.audit")
    assert unload["msg"] == "POST '/models/unload' 200"
    assert (unload["key"], unload["model"], unload["outcome"]) == (plain_key("right").name, "demo", "done")
    assert (load["key"], load["outcome"], load.get("model")) == (plain_key("wrong").name, "authentication_failed", None)
    assert (delete["msg"].split()[:2], delete["model"]) == (["DELETE", "'/api/delete'"], "other")
    assert reload["query"] == "reload=1"
    assert reset["model"] == short("demo" * 100)
    assert (pin["model"], pin["outcome"]) == ("demo", "invalid_request")
    assert proxy["query"] == "url=http://127.0.0.1:1/mcp?token=****"
    assert (proxy["outcome"], tool["outcome"]) == ("feature_disabled", "feature_disabled")


async def test_audit_log_has_the_key_of_a_request_to_the_wrong_port(serve: Serve, lines: Lines) -> None:
    async with serve(server={"api_keys": ["right"], "admin_port": 8081}) as api:
        await api.expect("POST /models/unload", {"model": "demo"}, 404, headers=bearer("right"))
    (unload,) = lines("server.audit")
    assert (unload["key"], unload["outcome"]) == (plain_key("right").name, "not_found")


async def test_access_log_marks_a_disconnect_as_cut_off(live: GoLive, lines: Lines) -> None:
    gate = threading.Semaphore(1)
    async with live(FakeLoader(n_seq=2, steps=gate)) as running:
        reader, writer = await running.connect(chat_request(max_tokens=50))
        await reader.readuntil(b"}\n\n")
        writer.close()
        await writer.wait_closed()
        await until(lambda: lines("server.access"))
        (line,) = lines("server.access")
        assert (line["outcome"], line["finish"]) == ("cut off", "cancelled")
        assert line["prompt"] > 0
        gate.release(1000)


async def test_access_log_separates_waiting_for_a_slot_from_prefill_before_the_first_token(
    live: GoLive, lines: Lines
) -> None:
    steps = threading.Semaphore(0)
    async with live(FakeLoader(n_seq=1, steps=steps)) as running:
        engine = running.api.loaded().engine
        _, placed = await running.connect(chat_request())
        await until(lambda: engine.stats.n_processing)
        _, queued = await running.connect(chat_request())
        await until(lambda: engine.stats.n_deferred)
        for writer in (queued, placed):
            writer.close()
            await until(lambda: lines("server.access"))
        await until(lambda: len(lines("server.access")) == 2)
        steps.release(1000)
        await until(lambda: sum(engine.stats.queue_time.counts) == 2)
        in_queue, in_slot = lines("server.access")
        assert (in_queue["queue_ms"] > 0, in_queue["prefill_ms"]) == (True, 0)
        assert in_slot["prefill_ms"] > 0


async def test_engine_log_lines_have_the_request_id(serve: Serve, lines: Lines) -> None:
    class FailingRunner(FakeRunner):
        def decode(self, entries: Any) -> bool:
            raise InternalError("no")

    async with serve(FakeLoader(runner=lambda: FailingRunner(n_seq=1))) as api:
        await api.expect("POST /v1/chat/completions", CHAT, 500, headers={"X-Request-Id": "a-7"})
        assert [line["request"] for line in lines("server.engine.loop")] == ["a-7"]
        assert lines("server.access")[0]["outcome"] == "internal_error"
        assert lines("server.access")[0]["finish"] == "failed"


async def test_access_log_names_the_model_that_could_not_be_loaded(serve: Serve, lines: Lines) -> None:
    models = {name: {"path": f"{name}.gguf"} for name in ("a", "b")}
    async with serve(FakeLoader(failing={"b": "no"}), models=models) as api:
        await api.expect("POST /v1/chat/completions", CHAT | {"model": "b"}, 503)
        await api.expect("POST /v1/chat/completions", CHAT | {"model": "c"}, 404)
        failed, unknown = lines("server.access")
        assert (failed["model"], failed["outcome"], failed["load_ms"] > 0) == ("b", "model_failed", True)
        assert "model" not in unknown


async def test_access_log_has_the_error_of_a_failed_stream(serve: Serve, lines: Lines) -> None:
    class FailsLater(FakeRunner):
        n_decoded = 0

        def decode(self, entries: Any) -> bool:
            self.n_decoded += 1
            if self.n_decoded > 2:
                raise InternalError("no")
            return super().decode(entries)

    async with serve(FakeLoader(runner=lambda: FailsLater(n_seq=1))) as api:
        await api.expect("POST /v1/chat/completions", CHAT | {"stream": True})
        (line,) = lines("server.access")
        assert (line["outcome"], line["finish"]) == ("internal_error", "failed")
