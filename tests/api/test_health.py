import threading

import pytest

from server.pool.state import Status
from tests.api.conftest import Serve
from tests.fakes import FakeLoader

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
TWO = {"a": {"path": "a.gguf", "load": "startup"}, "b": {"path": "b.gguf", "load": "startup"}}


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/livez", "/readyz"])
async def test_a_server_whose_model_is_loaded_is_well(client, path):
    reply = await client.get(path)
    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
    assert (await client.head(path)).status_code == 200


async def test_while_the_only_model_loads_it_says_so(serve: Serve):
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), wait=False) as api:
        for path in ("/health", "/v1/health"):
            reply = await api.client.get(path)
            assert (reply.status_code, reply.json()) == (503, LOADING)
        assert (await api.client.get("/readyz")).status_code == 503
        assert (await api.client.get("/livez")).status_code == 200
        reply = await api.client.post("/v1/completions", json={"prompt": "x"})
        assert (reply.status_code, reply.json()) == (503, LOADING)
        events = api.pool.subscribe()
        gate.set()
        async for _ in events:
            if api.pool.states()[0].status is Status.READY:
                break
        assert (await api.client.get("/health")).status_code == 200
        assert (await api.client.get("/readyz")).status_code == 200


async def test_one_failed_model_leaves_the_others_serving_and_is_named(serve: Serve):
    async with serve(FakeLoader(failing={"b": "no such file"}), models=TWO, wait=False) as api:
        await api.settled()
        assert (await api.client.get("/health")).status_code == 200
        reply = await api.client.get("/readyz")
        assert (reply.status_code, reply.json()) == (200, {"status": "ok", "failed": {"b": "no such file"}})


async def test_when_every_model_failed_the_server_is_not_ready(serve: Serve):
    async with serve(FakeLoader(failing={"a": "too big", "b": "no such file"}), models=TWO, wait=False) as api:
        await api.settled()
        reply = await api.client.get("/readyz")
        assert reply.status_code == 503
        message = reply.json()["error"]["message"]
        assert "too big" in message
        assert "no such file" in message


async def test_the_only_model_failed_is_not_well(serve: Serve):
    async with serve(FakeLoader(failing={"demo": "no such file"}), wait=False) as api:
        await api.settled()
        reply = await api.client.get("/health")
        assert reply.status_code == 503
        assert "no such file" in reply.json()["error"]["message"]


async def test_models_on_demand_do_not_delay_readiness(serve: Serve):
    async with serve(models={"a": {"path": "a.gguf", "load": "on_demand"}}) as api:
        assert (await api.client.get("/readyz")).status_code == 200
        assert (await api.client.get("/health")).status_code == 200
