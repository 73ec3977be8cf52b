import json
from pathlib import Path

import httpx
import pytest

from server.pool.state import Status
from tests.api.conftest import Serve
from tests.api.management.test_models import TWO
from tests.support.fakes import CHATML

RECORDED_KEYS = {
    *("default_generation_settings", "total_slots", "model_alias", "model_ftype", "model_path", "modalities"),
    *("media_marker", "endpoint_slots", "endpoint_props", "endpoint_metrics", "ui", "ui_settings"),
    *("chat_template", "chat_template_caps", "bos_token", "eos_token", "build_info", "is_sleeping"),
    *("cors_proxy_enabled", "memory"),
}
RECORDED_PARAMS = json.loads((Path(__file__).parent / "recorded_params.json").read_text())


async def test_the_only_models_properties_have_llama_servers_keys(client: httpx.AsyncClient) -> None:
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


async def test_the_default_sampling_is_llama_servers(client: httpx.AsyncClient) -> None:
    params = (await client.get("/props")).json()["default_generation_settings"]["params"]
    assert list(params) == list(RECORDED_PARAMS)
    random_seed = {"seed": 0xFFFFFFFF}
    assert {k: round(v, 6) if isinstance(v, float) else v for k, v in params.items()} == RECORDED_PARAMS | random_seed


async def test_with_several_models_and_none_named_the_server_describes_itself(serve: Serve) -> None:
    async with serve(models=TWO, server={"models_max": 3}) as api:
        props = (await api.client.get("/props")).json()
        assert (props["role"], props["max_instances"], props["models_autoload"]) == ("router", 3, True)


async def test_the_one_model_that_generates_is_described_as_one_of_several(serve: Serve) -> None:
    models = {"demo": {"path": "d.gguf", "load": "startup"}, "embed": {"path": "e.gguf", "embedding": True}}
    async with serve(models=models, server={"models_max": 3}) as api:
        shown = (await api.client.get("/props")).json()
        assert (shown["role"], shown["max_instances"], shown["models_autoload"]) == ("router", 3, True)
        assert (shown["model_alias"], shown["total_slots"]) == ("demo", 4)
        assert "role" not in (await api.client.get("/props?model=demo")).json()


async def test_a_named_model_is_loaded_for_its_properties(serve: Serve) -> None:
    async with serve(models=TWO) as api:
        assert (await api.client.get("/props?model=b")).json()["model_alias"] == "b"
        assert api.pool.state("b").status is Status.READY


async def test_autoload_false_loads_nothing(serve: Serve) -> None:
    async with serve(models=TWO) as api:
        reply = await api.client.get("/props?model=b&autoload=false")
        assert (reply.status_code, reply.json()["error"]["message"]) == (400, "model is not loaded")
        assert api.pool.state("b").status is Status.UNLOADED


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/completion", {"prompt": "Hi"}),
        ("/tokenize", {"content": "Hi"}),
        ("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/api/generate", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
async def test_no_request_loads_a_model_against_its_will(serve: Serve, path: str, body: dict[str, object]) -> None:
    async with serve(models=TWO) as api:
        reply = await api.client.post(f"{path}?autoload=false", json={"model": "b", "max_tokens": 1, **body})
        assert reply.status_code == 400, reply.text
        assert "model is not loaded" in reply.text
        assert api.pool.state("b").status is Status.UNLOADED


async def test_a_server_that_loads_nothing_by_itself_says_so_unless_asked_to(serve: Serve) -> None:
    async with serve(models=TWO, server={"models_autoload": False}) as api:
        assert (await api.client.get("/props?model=b")).status_code == 400
        assert (await api.client.get("/props?model=b&autoload=1")).status_code == 200


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


async def test_the_templates_capabilities_have_llama_cpps_names(client: httpx.AsyncClient) -> None:
    caps = (await client.get("/props")).json()["chat_template_caps"]
    assert {name.removeprefix("supports_") for name, value in caps.items() if value} == {
        *("string_content", "system_role"),
    }
    assert len(caps) == 10


async def test_without_the_flag_properties_cannot_be_changed(client: httpx.AsyncClient) -> None:
    reply = await client.post("/props", json={})
    assert (reply.status_code, reply.json()["error"]) == (
        501,
        {
            "code": 501,
            "message": "This server does not support changing global properties. Start it with `--props`",
            "type": "not_supported_error",
        },
    )


@pytest.mark.parametrize("body", [b"", b"{}", b'{"model": "demo"}'])
async def test_with_the_flag_there_is_nothing_to_change_yet(serve: Serve, body: bytes) -> None:
    async with serve(server={"props": True}) as api:
        reply = await api.client.post("/props", content=body, headers={"Content-Type": "application/json"})
        assert (reply.status_code, reply.json()) == (200, {"success": True})
        assert (await api.client.get("/props")).json()["endpoint_props"] is True


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"chat_template": "x"}, "chat_template: is not a property that can be changed"),
        ({"model": 1}, "model: must be a string"),
    ],
)
async def test_a_property_that_cannot_be_changed_is_refused_by_name(
    serve: Serve, body: dict[str, object], message: str
) -> None:
    async with serve(server={"props": True}) as api:
        reply = await api.client.post("/props", json=body)
        assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)


async def test_a_change_of_an_unknown_models_properties_is_a_404(serve: Serve) -> None:
    async with serve(models=TWO, server={"props": True}) as api:
        assert (await api.client.post("/props", json={"model": "nope"})).status_code == 404
        assert (await api.client.post("/props", json={"model": "b"})).status_code == 200
        assert api.pool.state("b").status is Status.UNLOADED
