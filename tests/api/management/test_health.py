import threading

import pytest

from server.pool.state import Status
from tests.api.conftest import GoLive, Serve, chat_request
from tests.support.fakes import FakeLoader

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


async def test_busy_slots_are_told_from_idle_ones(live: GoLive) -> None:
    steps = threading.Semaphore(1)
    async with live(FakeLoader(n_seq=2, steps=steps)) as server:
        reader, writer = await server.connect(chat_request(max_tokens=5))
        await reader.readuntil(b"data: ")
        get = server.api.client.get
        expected = {"status": "ok", "slots_idle": 1, "slots_processing": 1}
        assert (await get("/health")).json() == expected
        assert (await get("/health?fail_on_no_slot=1")).json() == expected
        for _ in range(20):
            steps.release()
        await reader.readuntil(b"[DONE]")
        writer.close()


async def test_while_the_only_model_loads_it_says_so(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), wait=False) as api:
        for path in ("/health", "/v1/health"):
            reply = await api.client.get(path)
            assert (reply.status_code, reply.json()) == (503, LOADING)
        assert (await api.client.get("/readyz")).status_code == 503
        assert (await api.client.get("/livez")).status_code == 200
        reply = await api.client.post("/completion", json={"prompt": "x"})
        assert (reply.status_code, reply.json()) == (503, LOADING)
        await api.expect("POST /v1/completions", {"prompt": "x"}, 503, {"error": {"code": "service_unavailable"}})
        events = api.pool.subscribe()
        gate.set()
        async for _ in events:
            if api.pool.states()[0].status is Status.READY:
                break
        assert (await api.client.get("/health")).status_code == 200
        assert (await api.client.get("/readyz")).status_code == 200


async def test_a_model_whose_step_thread_has_failed_is_not_ready(serve: Serve) -> None:
    class PanicException(BaseException):
        """As a Rust library's."""

    def panics(_entries: object) -> None:
        raise PanicException("index out of bounds")

    async with serve(FakeLoader(on_decode=panics)) as api:
        assert (await api.client.get("/readyz")).status_code == 200
        await api.expect("POST /v1/completions", {"prompt": "x"}, 500)
        for path in ("/readyz", "/health"):
            await api.expect(f"GET {path}", None, 503, "index out of bounds")
        assert (await api.client.post("/v1/completions", json={"prompt": "x"})).status_code == 503


async def test_a_step_that_hangs_is_seen_by_all_who_ask_for_health(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.app.WATCHDOG_INTERVAL_S", 0.005)
    monkeypatch.setattr("server.engine.instances.JOIN_POLL_S", 0.01)
    begun, end = threading.Event(), threading.Event()

    def hang(_entries: object) -> None:
        begun.set()
        assert end.wait(60)

    async with serve(FakeLoader(on_decode=hang), server={"watchdog_s": 0.5}) as api:
        assert (await api.client.get("/livez")).status_code == 200
        reply = await api.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
        assert begun.wait(60)
        assert reply.status_code == 500
        assert "no step has ended" in reply.text
        for path in ("/livez", "/readyz", "/health"):
            assert (await api.client.get(path)).status_code == 503
        assert (await api.client.post("/v1/completions", json={"prompt": "x"})).status_code == 503
        end.set()  # so that the test can free it
