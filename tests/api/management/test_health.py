import threading

import pytest

from server.pool.state import Status
from tests.api.conftest import GoLive, Serve, chat_request
from tests.support.fakes import FakeLoader

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


async def test_health_counts_idle_and_busy_slots(live: GoLive) -> None:
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


async def test_server_is_unavailable_while_its_only_model_loads(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), wait=False) as api:
        for path in ("/health", "/v1/health"):
            assert (await api.expect(f"GET {path}", None, 503)).json() == LOADING
        await api.expect("GET /readyz", None, 503)
        await api.expect("GET /livez")
        await api.expect("POST /completion", {"prompt": "x"}, 503, LOADING)
        await api.expect("POST /v1/completions", {"prompt": "x"}, 503, {"error": {"code": "service_unavailable"}})
        events = api.pool.subscribe()
        gate.set()
        async for _ in events:
            if api.pool.states()[0].status is Status.READY:
                break
        for path in ("/health", "/readyz"):
            await api.expect(f"GET {path}")


async def test_server_is_not_ready_after_its_step_thread_failed(serve: Serve) -> None:
    class PanicException(BaseException):
        """The base class of a Rust panic, which is no `Exception`."""

    def panics(_entries: object) -> None:
        raise PanicException("index out of bounds")

    async with serve(FakeLoader(on_decode=panics)) as api:
        await api.expect("GET /readyz")
        await api.expect("POST /v1/completions", {"prompt": "x"}, 500)
        for path in ("/readyz", "/health"):
            await api.expect(f"GET {path}", None, 503, "index out of bounds")
        await api.expect("POST /v1/completions", {"prompt": "x"}, 503)


async def test_hanging_step_fails_all_health_endpoints(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.app.WATCHDOG_INTERVAL_S", 0.005)
    monkeypatch.setattr("server.engine.instances.JOIN_POLL_S", 0.01)
    started, end = threading.Event(), threading.Event()

    def hang(_entries: object) -> None:
        started.set()
        assert end.wait(60)

    async with serve(FakeLoader(on_decode=hang), server={"watchdog_s": 0.5}) as api:
        await api.expect("GET /livez")
        await api.expect("POST /v1/completions", {"prompt": "x", "max_tokens": 2}, 500, "no step has ended")
        assert started.is_set()
        for path in ("/livez", "/readyz", "/health"):
            await api.expect(f"GET {path}", None, 503)
        await api.expect("POST /v1/completions", {"prompt": "x"}, 503)
        end.set()  # otherwise the step thread never ends
