import json
from pathlib import Path

import httpx

from server.pool.state import Status
from tests.api.conftest import Serve
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
