"""GET and POST /lora-adapters."""

from typing import Any

from server.pool.state import Status
from tests.api.conftest import Serve, until

LORA = [{"path": "pirate.gguf", "scale": 0.5}, "formal.gguf"]
MODELS = {"demo": {"path": "demo.gguf", "load": "startup", "lora": LORA}}
SHOWN = [
    {"id": 0, "path": "pirate.gguf", "scale": 0.5, "task_name": "", "prompt_prefix": ""},
    {"id": 1, "path": "formal.gguf", "scale": 1.0, "task_name": "", "prompt_prefix": ""},
]


async def scales(api: Any, query: str = "") -> list[float]:
    return [adapter["scale"] for adapter in (await api.client.get(f"/lora-adapters{query}")).json()]


async def text(api: Any, **more: Any) -> str:
    body = {"prompt": "Hello", "n_predict": 12, "temperature": 0, **more}
    reply = await api.expect("POST /completion", body)
    content: str = reply.json()["content"]
    return content


async def test_adapters_are_shown_as_llama_server_shows_them(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        assert (await api.client.get("/lora-adapters")).json() == SHOWN


async def test_adapters_that_are_not_named_are_switched_off(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        for body, expected in (
            ([{"id": 1, "scale": 0.25}], [0.0, 0.25]),
            ([{"id": 1, "scale": 2}, {"id": 0, "scale": -1.5}], [-1.5, 2.0]),
            ([{"id": 0, "scale": 0}], [0.0, 0.0]),
            ([], [0.0, 0.0]),
        ):
            assert (await api.client.post("/lora-adapters", json=body)).json() == {"success": True}
            assert await scales(api) == expected


async def test_what_is_set_holds_for_later_requests_unless_they_say_otherwise(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        configured = await text(api)
        await api.client.post("/lora-adapters", json=[{"id": 0, "scale": 0.9}])
        changed = await text(api)
        assert len({configured, changed, await text(api, lora=[{"id": 0, "scale": 0}])}) == 3
        assert await text(api, lora=[{"id": 0, "scale": 0.5}, {"id": 1, "scale": 1}]) == configured
        assert await text(api, lora=[]) == changed


MISTAKES = [
    (b"{}", "Request body must be an array"),
    (b'"x"', "Request body must be an array"),
    (b"", "the request body is empty; expected a JSON array"),
    (b"[", "the request body is not valid JSON"),
    (b"[1]", "Field '0'"),
    (b"[{}]", "Field '0.id': is required"),
    (b'[{"id": 0}]', "Field '0.scale': is required"),
    (b'[{"id": "0", "scale": 1}]', "Field '0.id': type must be number"),
    (b'[{"id": true, "scale": 1}]', "Field '0.id': type must be number"),
    (b'[{"id": 0.5, "scale": 1}]', "Field '0.id': must be a whole number"),
    (b'[{"id": 0, "scale": "1"}]', "Field '0.scale': type must be number"),
    (b'[{"id": 0, "scale": null}]', "Field '0.scale': is required"),
    (b'[{"id": 0, "scale": 1e300}]', "Field '0.scale': must be less than or equal to 100"),
    (b'[{"id": 2, "scale": 1}]', "no adapter has the id 2; there are adapters 0 to 1"),
    (b'[{"id": -1, "scale": 1}]', "no adapter has the id -1"),
    (b'[{"id": 99999999999999999999, "scale": 1}]', "must be a whole number"),
    (b'[{"id": 1, "scale": 1}, {"id": 1, "scale": 2}]', "names an adapter twice"),
]


async def test_mistakes_change_nothing(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        for body, expected in MISTAKES:
            await api.expect("POST /lora-adapters", body, 400, expected, headers={"Content-Type": "application/json"})
            assert await scales(api) == [0.5, 1.0], body


async def test_one_of_several_models_is_named_in_the_query(serve: Serve) -> None:
    models = {**MODELS, "other": {"path": "other.gguf"}}
    async with serve(models=models) as api:
        assert await scales(api, "?model=demo") == await scales(api) == [0.5, 1.0]
        assert (await api.client.get("/lora-adapters?model=other&autoload=false")).status_code == 400
        assert await scales(api, "?model=other") == []
        assert (await api.client.post("/lora-adapters?model=demo", json=[])).status_code == 200
        assert await scales(api, "?model=demo") == [0.0, 0.0]


async def test_scales_outlast_a_sleep_but_not_an_unload(serve: Serve) -> None:
    models = {"demo": {**MODELS["demo"], "sleep_idle_seconds": 1}}
    async with serve(models=models) as api:
        await api.client.post("/lora-adapters", json=[{"id": 0, "scale": 0.25}])
        await until(lambda: api.pool.state("demo").status is Status.SLEEPING)
        assert await scales(api) == [0.25, 0.0]
        assert (await api.client.post("/models/unload", json={"model": "demo"})).status_code == 200
        await until(lambda: api.pool.state("demo").status is Status.UNLOADED)
        assert await scales(api) == [0.5, 1.0]
