"""Lists, loads and properties of models in llama-server's shape."""

import json
import threading
from pathlib import Path

import httpx

from server.pool.events import Subscription
from server.pool.state import Status
from tests.api.conftest import Api, GoLive, Live, Serve, until
from tests.support.fakes import CHATML, FakeLoader

DEMO, B = "[demo]\nmodel = demo.gguf\nload-on-startup = true\n", "[b]\nmodel = b.gguf\n"
DEMO_ARGS = ["llamapool", "--load", "startup", "--model", "demo.gguf"]
TWO = {
    "org/a:Q8": {"path": "a.gguf", "load": "startup", "aliases": ["first"], "tags": ["small"]},
    "b": {"path": "b.gguf", "load": "on_demand"},
}


async def test_the_list_has_llama_servers_shape(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert body["models"] == [
        {
            "name": "demo",
            "model": "demo",
            "modified_at": "",
            "size": "",
            "digest": "",
            "type": "model",
            "description": "",
            "tags": [""],
            "capabilities": ["completion"],
            "parameters": "",
            "details": {
                "parent_model": "",
                "format": "gguf",
                "family": "",
                "families": [""],
                "parameter_size": "",
                "quantization_level": "",
            },
        }
    ]
    (model,) = body["data"]
    assert isinstance(model.pop("created"), int)
    assert model == {
        "id": "demo",
        "aliases": ["demo", "gpt-4o-mini"],
        "tags": [],
        "object": "model",
        "owned_by": "llamacpp",
        "status": {
            "value": "loaded",
            "args": DEMO_ARGS,
            "preset": DEMO,
        },
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "source": "preset",
        "can_remove": False,
        "meta": {
            "vocab_type": 2,
            "n_vocab": 260,
            "n_ctx": 256,
            "n_ctx_train": 4096,
            "n_embd": 8,
            "n_params": 1000,
            "size": 4000,
            "ftype": "all F32",
            "memory": {"devices": {"CPU": {"weights": 4000, "context": 0, "compute": 0}}, "notes": []},
        },
    }


async def test_a_model_is_loaded_and_unloaded(serve: Serve) -> None:
    async with serve(models=TWO) as api:
        with api.pool.subscribe() as events:
            await api.expect("POST /models/load", {"model": "b"}, 200, {"success": True})
            await reached(api, events, "b", Status.READY)
            reply = await api.client.post("/models/load", json={"model": "b"})
            assert (reply.status_code, reply.json()["error"]["message"]) == (400, "model is already running")
            await api.expect("POST /models/unload", {"model": "b"}, 200, {"success": True})
            await reached(api, events, "b", Status.UNLOADED)
            reply = await api.client.post("/models/unload", json={"model": "b"})
            assert (reply.status_code, reply.json()["error"]["message"]) == (400, "model is not running")


async def test_progress_is_shown_while_a_model_loads(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), wait=False) as api:
        with api.pool.subscribe() as events:
            while api.pool.states()[0].progress != 0.5:
                await anext(events)
            status = (await api.client.get("/models")).json()["data"][0]["status"]
            gate.set()
            await reached(api, events, "demo", Status.READY)
        progress = {"stages": ["text_model"], "current": "text_model", "value": 0.5}
        assert status == {
            "value": "loading",
            "args": DEMO_ARGS,
            "preset": DEMO,
            "progress": progress,
        }


async def test_events_tell_of_a_load_as_it_happens(live: GoLive) -> None:
    async with live(models=TWO) as server, server.api.client.stream("GET", "/models/sse") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        await server.api.client.post("/models/load", json={"model": "b"})
        seen = []
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if seen[-1]["data"]["status"] == "loaded":
                    break
        assert {(e["model"], e["event"]) for e in seen} == {("b", "model_status")}
        assert seen[0]["data"] == {"status": "loading"}
        progress = {"stages": ["text_model"], "current": "text_model", "value": 1.0}
        assert {"status": "loading", "progress": progress} in [e["data"] for e in seen]
        assert seen[-1]["data"]["info"]["meta"]["n_vocab"] == 260


async def test_a_listener_that_leaves_is_forgotten(live: GoLive) -> None:
    async with live() as server:
        async with server.api.client.stream("GET", "/models/sse"):
            assert len(listeners(server)) == 3  # the metrics and the log of loads listen, too
        await until(lambda: len(listeners(server)) == 2)


def listeners(server: Live) -> list[Subscription]:
    return [each for each in server.api.pool._fan_out._subscriptions if not each.closed]


async def reached(api: Api, events: Subscription, model: str, status: Status) -> None:
    """Wait until the model has this status."""
    while api.pool.state(model).status is not status:
        await anext(events)


async def test_who_finds_no_room_for_a_model_is_told_when_to_come_back(serve: Serve) -> None:
    async with serve(models=TWO, server={"models_max": 1, "models_wait_s": 0.05}) as api:
        with await api.pool.acquire("first"):
            reply = await api.client.post("/v1/completions", json={"model": "b", "prompt": "Hi"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "10")
        assert "model 'b' waited 0 s for memory; the other models are busy" in reply.json()["error"]["message"]


RECORDED_KEYS = {
    *("default_generation_settings", "total_slots", "model_alias", "model_ftype", "model_path", "modalities"),
    *("media_marker", "endpoint_slots", "endpoint_props", "endpoint_metrics", "ui", "ui_settings"),
    *("chat_template", "chat_template_caps", "bos_token", "eos_token", "build_info", "is_sleeping"),
    *("cors_proxy_enabled", "memory"),
}
RECORDED_PARAMS = json.loads((Path(__file__).parent / "recorded_params.json").read_text())


async def test_the_only_models_properties_are_llama_servers(
    client: httpx.AsyncClient,
) -> None:
    reply = await client.get("/props")
    assert reply.status_code == 200
    props = reply.json()
    assert set(props) == RECORDED_KEYS
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert (props["total_slots"], props["model_alias"], props["model_ftype"]) == (4, "demo", "all F32")
    assert (props["bos_token"], props["eos_token"], props["chat_template"]) == ("<s>", "</s>", CHATML)
    assert props["model_path"].endswith("demo.gguf")
    assert props["is_sleeping"] is False
    assert (props["endpoint_slots"], props["endpoint_metrics"]) == (True, False)
    supported = {name for name, value in props["chat_template_caps"].items() if value}
    assert supported == {"supports_string_content", "supports_system_role"}
    assert len(props["chat_template_caps"]) == 10
    params = props["default_generation_settings"]["params"]
    assert list(params) == list(RECORDED_PARAMS)
    random_seed = {"seed": 0xFFFFFFFF}
    assert {k: round(v, 6) if isinstance(v, float) else v for k, v in params.items()} == RECORDED_PARAMS | random_seed


async def test_a_sleeping_model_is_not_woken(serve: Serve) -> None:
    models = {"demo": {"path": "demo.gguf", "load": "startup", "sleep_idle_seconds": 1}}
    async with serve(models=models) as api:
        with api.pool.subscribe() as events:
            while api.pool.states()[0].status is not Status.SLEEPING:
                await anext(events)
        assert (await api.client.get("/props")).json()["is_sleeping"] is True
        assert [s["is_processing"] for s in (await api.client.get("/slots")).json()] == [False] * 4
        assert (await api.client.get("/models")).json()["data"][0]["status"]["value"] == "sleeping"
        assert api.pool.states()[0].status is Status.SLEEPING
