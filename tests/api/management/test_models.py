"""GET /models, loads and unloads, /models/sse and /props in llama-server's format."""

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
TWO_MODELS = {
    "org/a:Q8": {"path": "a.gguf", "load": "startup", "aliases": ["first"], "tags": ["small"]},
    "b": {"path": "b.gguf", "load": "on_demand"},
}


async def test_model_list_has_the_format_of_llama_server(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    (ollama_model,) = body["models"]
    details = ollama_model.pop("details")
    empty = dict.fromkeys(("modified_at", "size", "digest", "description", "parameters"), "")
    names = {"name": "demo", "model": "demo", "type": "model", "tags": [""], "capabilities": ["completion"]}
    assert ollama_model == names | empty
    empty = dict.fromkeys(("parent_model", "family", "parameter_size", "quantization_level"), "")
    assert details == {"format": "gguf", "families": [""], **empty}
    (model,) = body["data"]
    assert isinstance(model.pop("created"), int)
    assert model == {
        "id": "demo",
        "aliases": ["demo", "gpt-4o-mini"],
        "tags": [],
        "object": "model",
        "owned_by": "llamacpp",
        "status": {"value": "loaded", "args": DEMO_ARGS, "preset": DEMO},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "source": "preset",
        "can_remove": False,
        "meta": {
            **{"vocab_type": 2, "n_vocab": 260, "n_ctx": 256, "n_ctx_train": 4096, "n_embd": 8},
            **{"n_params": 1000, "size": 4000, "ftype": "all F32"},
            "memory": {"devices": {"CPU": {"weights": 4000, "context": 0, "compute": 0}}, "notes": []},
        },
    }


async def test_model_in_a_folder_whose_name_is_not_utf_8_is_listed(serve: Serve) -> None:
    models = {"demo": {"path": "bad\udcff/m.gguf", "load": "startup"}}
    async with serve(models=models, server={"metrics": True}) as api:
        for path in ("/v1/models", "/api/tags", "/api/ps", "/metrics"):
            await api.expect(f"GET {path}")
        await api.expect("GET /models", None, 200, "bad\ufffd/m.gguf")
        await api.expect("GET /props", None, 200, {"model_path": "bad\ufffd/m.gguf"})


async def test_load_and_unload_of_a_model(serve: Serve) -> None:
    async with serve(models=TWO_MODELS) as api:
        with api.pool.subscribe() as events:
            await api.expect("POST /models/load", {"model": "b"}, 200, {"success": True})
            await until_status(api, events, "b", Status.READY)
            await api.expect("POST /models/load", {"model": "b"}, 400, '"message":"model is already running"')
            await api.expect("POST /models/unload", {"model": "b"}, 200, {"success": True})
            await until_status(api, events, "b", Status.UNLOADED)
            await api.expect("POST /models/unload", {"model": "b"}, 400, '"message":"model is not running"')


async def test_model_list_has_the_progress_of_a_load(serve: Serve) -> None:
    gate = threading.Event()
    async with serve(FakeLoader(gate=gate), wait=False) as api:
        with api.pool.subscribe() as events:
            while api.pool.states()[0].progress != 0.5:
                await anext(events)
            status = (await api.client.get("/models")).json()["data"][0]["status"]
            gate.set()
            await until_status(api, events, "demo", Status.READY)
        progress = {"stages": ["text_model"], "current": "text_model", "value": 0.5}
        assert status == {"value": "loading", "args": DEMO_ARGS, "preset": DEMO, "progress": progress}


async def test_sse_reports_status_and_progress_of_a_load(live: GoLive) -> None:
    async with live(models=TWO_MODELS) as server, server.api.client.stream("GET", "/models/sse") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        await server.api.client.post("/models/load", json={"model": "b"})
        events = []
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if events[-1]["data"]["status"] == "loaded":
                    break
        assert {(e["model"], e["event"]) for e in events} == {("b", "model_status")}
        assert events[0]["data"] == {"status": "loading"}
        progress = {"stages": ["text_model"], "current": "text_model", "value": 1.0}
        assert {"status": "loading", "progress": progress} in [e["data"] for e in events]
        assert events[-1]["data"]["info"]["meta"]["n_vocab"] == 260


async def test_disconnected_sse_client_is_unsubscribed(live: GoLive) -> None:
    async with live() as server:
        async with server.api.client.stream("GET", "/models/sse"):
            assert len(subscriptions(server)) == 3  # the other two are the metrics and the log of loads
        await until(lambda: len(subscriptions(server)) == 2)


def subscriptions(server: Live) -> list[Subscription]:
    return [each for each in server.api.pool._fan_out._subscriptions if not each.closed]


async def until_status(api: Api, events: Subscription, model: str, status: Status) -> None:
    """Wait for `status` of `model`."""
    while api.pool.state(model).status is not status:
        await anext(events)


async def test_load_that_finds_no_free_memory_is_refused_with_retry_after(serve: Serve) -> None:
    async with serve(models=TWO_MODELS, server={"models_max": 1, "models_wait_s": 0.05}) as api:
        with await api.pool.acquire("first"):
            message = "model 'b' waited 0 s for memory; the other models are busy"
            reply = await api.expect("POST /v1/completions", {"model": "b", "prompt": "Hi"}, 503, message)
        assert reply.headers["retry-after"] == "10"


RECORDED_KEYS = {
    *("default_generation_settings", "total_slots", "model_alias", "model_ftype", "model_path", "modalities"),
    *("media_marker", "endpoint_slots", "endpoint_props", "endpoint_metrics", "ui", "ui_settings"),
    *("chat_template", "chat_template_caps", "bos_token", "eos_token", "build_info", "is_sleeping"),
    *("cors_proxy_enabled", "memory"),
}
RECORDED_PARAMS = json.loads((Path(__file__).parent / "recorded_params.json").read_text())


async def test_props_have_the_keys_and_parameters_of_llama_server(client: httpx.AsyncClient) -> None:
    props = (await client.get("/props")).json()
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


async def test_props_slots_and_models_do_not_wake_a_sleeping_model(serve: Serve) -> None:
    models = {"demo": {"path": "demo.gguf", "load": "startup", "sleep_idle_seconds": 1}}
    async with serve(models=models) as api:
        with api.pool.subscribe() as events:
            while api.pool.states()[0].status is not Status.SLEEPING:
                await anext(events)
        assert (await api.client.get("/props")).json()["is_sleeping"] is True
        assert [s["is_processing"] for s in (await api.client.get("/slots")).json()] == [False] * 4
        assert (await api.client.get("/models")).json()["data"][0]["status"]["value"] == "sleeping"
        assert api.pool.states()[0].status is Status.SLEEPING
