"""GET and POST /lora-adapters, and adapters that are loaded and unloaded at runtime."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from server.engine.lora import Adapter
from server.pool.state import Status
from tests.api.conftest import Api, Serve, until
from tests.support.fakes import FakeLoader

LORA = [{"path": "pirate.gguf", "scale": 0.5}, "formal.gguf"]
MODELS = {"demo": {"path": "demo.gguf", "load": "startup", "lora": LORA}}
LISTED = [
    {"id": 0, "path": "pirate.gguf", "scale": 0.5, "task_name": "", "prompt_prefix": ""},
    {"id": 1, "path": "formal.gguf", "scale": 1.0, "task_name": "", "prompt_prefix": ""},
]


async def scales(api: Any, query: str = "") -> list[float]:
    return [adapter["scale"] for adapter in (await api.client.get(f"/lora-adapters{query}")).json()]


async def complete(api: Any, **more: Any) -> str:
    body = {"prompt": "Hello", "n_predict": 12, "temperature": 0, **more}
    reply = await api.expect("POST /completion", body)
    content: str = reply.json()["content"]
    return content


async def test_setting_scales_switches_unnamed_adapters_off(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        assert (await api.client.get("/lora-adapters")).json() == LISTED
        for body, expected in (
            ([{"id": 1, "scale": 0.25}], [0.0, 0.25]),
            ([{"id": 1, "scale": 2}, {"id": 0, "scale": -1.5}], [-1.5, 2.0]),
            ([{"id": 0, "scale": 0}], [0.0, 0.0]),
            ([], [0.0, 0.0]),
        ):
            assert (await api.client.post("/lora-adapters", json=body)).json() == {"success": True}
            assert await scales(api) == expected


async def test_set_scales_apply_to_later_requests_without_their_own(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        configured = await complete(api)
        await api.client.post("/lora-adapters", json=[{"id": 0, "scale": 0.9}])
        changed = await complete(api)
        assert len({configured, changed, await complete(api, lora=[{"id": 0, "scale": 0}])}) == 3
        assert await complete(api, lora=[{"id": 0, "scale": 0.5}, {"id": 1, "scale": 1}]) == configured
        assert await complete(api, lora=[]) == changed


INVALID_BODIES = [
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
    (b'[{"id": 2, "scale": 1}]', "no adapter has the id 2; there are adapters 0, 1"),
    (b'[{"id": -1, "scale": 1}]', "no adapter has the id -1"),
    (b'[{"id": 99999999999999999999, "scale": 1}]', "must be a whole number"),
    (b'[{"id": 1, "scale": 1}, {"id": 1, "scale": 2}]', "names an adapter twice"),
]


async def test_invalid_scales_change_nothing(serve: Serve) -> None:
    async with serve(models=MODELS) as api:
        for body, expected in INVALID_BODIES:
            await api.expect("POST /lora-adapters", body, 400, expected, headers={"Content-Type": "application/json"})
            assert await scales(api) == [0.5, 1.0], body


async def test_model_of_the_adapters_is_named_in_the_query(serve: Serve) -> None:
    models = {**MODELS, "other": {"path": "other.gguf"}}
    async with serve(models=models) as api:
        assert await scales(api, "?model=demo") == await scales(api) == [0.5, 1.0]
        assert (await api.client.get("/lora-adapters?model=other&autoload=false")).status_code == 400
        assert await scales(api, "?model=other") == []
        assert (await api.client.post("/lora-adapters?model=demo", json=[])).status_code == 200
        assert await scales(api, "?model=demo") == [0.0, 0.0]


async def test_scales_survive_sleep_but_not_unload(serve: Serve) -> None:
    models = {"demo": {**MODELS["demo"], "sleep_idle_seconds": 1}}
    async with serve(models=models) as api:
        await api.client.post("/lora-adapters", json=[{"id": 0, "scale": 0.25}])
        await until(lambda: api.pool.state("demo").status is Status.SLEEPING)
        assert await scales(api) == [0.25, 0.0]
        assert (await api.client.post("/models/unload", json={"model": "demo"})).status_code == 200
        await until(lambda: api.pool.state("demo").status is Status.UNLOADED)
        assert await scales(api) == [0.5, 1.0]


LOAD, UNLOAD = "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "adapters"
    (root / "more").mkdir(parents=True)
    for name in ("formal.gguf", "more/poet.gguf", "broken.gguf"):
        (root / name).touch()
    (root / "link.gguf").symlink_to(root / "formal.gguf")
    (root / "linked").symlink_to(root / "more")
    (root / "circle").symlink_to("circle")
    (tmp_path / "outside.gguf").touch()
    return root


async def load(api: Api, name: str, path: str = "formal.gguf", **more: Any) -> None:
    added = f"Success: LoRA adapter '{name}' added successfully."
    assert (await api.expect(LOAD, {"lora_name": name, "lora_path": path, **more})).text == added


async def unload(api: Api, name: str) -> None:
    removed = f"Success: LoRA adapter '{name}' removed successfully."
    assert (await api.expect(UNLOAD, {"lora_name": name})).text == removed


async def names(api: Api) -> dict[int, str]:
    return {each["id"]: each.get("lora_name", "") for each in (await api.client.get("/lora-adapters")).json()}


async def test_adapter_is_loaded_used_and_unloaded_at_runtime(serve: Serve, folder: Path) -> None:
    async with serve(models=MODELS, server={"lora_dir": str(folder)}) as api:
        configured = await complete(api)
        await load(api, "poet", "more/poet.gguf")
        await load(api, "formal", str(folder / "formal.gguf"))
        assert await names(api) == {0: "", 1: "", 2: "poet", 3: "formal"}
        listed = (await api.client.get("/v1/models")).json()["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [
            ("demo", None),
            ("poet", "demo"),
            ("formal", "demo"),
        ]
        assert (await api.client.get("/v1/models/poet")).json()["root"] == str(folder / "more" / "poet.gguf")
        assert await scales(api) == [0.5, 1.0, 0.0, 0.0]
        assert await complete(api) == configured
        poetic = await complete(api, lora=[{"id": 2, "scale": 1}])
        assert poetic != configured
        await unload(api, "poet")
        await api.expect("POST /completion", {"prompt": "Hello", "lora": [{"id": 2, "scale": 1}]}, 400, "the id 2")
        await load(api, "poet", "more/poet.gguf")
        assert await names(api) == {0: "", 1: "", 3: "formal", 4: "poet"}
        body = {"prompt": "Hello", "n_predict": 1, "lora": [{"id": 4, "scale": 1}]}
        assert (await api.expect("POST /completion", body)).json()["timings"]["cache_n"] == 0
        await api.expect("POST /lora-adapters", [{"id": 4, "scale": 1}])
        assert await scales(api) == [0.0, 0.0, 0.0, 1.0]
        await load(api, "poet", "formal.gguf", load_inplace=True)
        assert await names(api) == {0: "", 1: "", 3: "formal", 5: "poet"}


async def test_adapter_name_is_accepted_as_a_model_name(serve: Serve, folder: Path) -> None:
    models = {**MODELS, "other": {"path": "other.gguf"}}
    async with serve(models=models, server={"lora_dir": str(folder)}) as api:
        await load(api, "poet", model="demo")
        poetic = await complete(api, model="demo", lora=[{"id": 2, "scale": 1}])
        assert await complete(api, model="poet") == poetic != await complete(api, model="demo")
        await api.expect(UNLOAD, {"lora_name": "poet", "model": "poet"})
        await api.expect("POST /completion", {"prompt": "Hello", "model": "poet"}, 404, "poet")


async def test_adapter_cannot_have_the_name_of_a_model_or_of_another_models_adapter(serve: Serve, folder: Path) -> None:
    models = {**MODELS, "other": {"path": "other.gguf", "aliases": ["gpt-4o"]}}
    async with serve(models=models, server={"lora_dir": str(folder)}) as api:
        await load(api, "poet", model="demo")
        for name, model in (("demo", "demo"), ("demo", "other"), ("gpt-4o", "demo"), ("poet", "other")):
            body = {"lora_name": name, "lora_path": "formal.gguf", "model": model, "load_inplace": True}
            await api.expect(LOAD, body, 400, f"'{name}' is the name of a model or of another model's adapter")
        await load(api, "poet", model="poet", load_inplace=True)
        assert await names(api) == {0: "", 1: "", 3: "poet"}


async def test_request_fails_if_its_adapter_was_unloaded_while_it_waited(serve: Serve, folder: Path) -> None:
    steps = threading.Semaphore(1)
    async with serve(FakeLoader(steps=steps), server={"lora_dir": str(folder)}) as api:
        await load(api, "poet")
        running = asyncio.create_task(complete(api))
        await until(lambda: api.loaded().busy)
        await api.expect("POST /models/unload", {"model": "demo"})
        body = {"prompt": "Hello", "n_predict": 1, "model": "poet"}
        waiting = asyncio.create_task(api.expect("POST /completion", body, 404, "'poet' was unloaded meanwhile"))
        await until(lambda: "demo" in api.pool._scheduler.queue)
        steps.release(100)
        assert len(await running) == 12
        await waiting


@pytest.mark.parametrize("disconnects", [False, True])
async def test_unload_waits_for_requests_that_use_the_adapter_even_after_a_disconnect(
    serve: Serve, folder: Path, disconnects: bool
) -> None:
    steps = threading.Semaphore(1)
    async with serve(FakeLoader(steps=steps), server={"lora_dir": str(folder)}) as api:
        await load(api, "formal")
        running = asyncio.create_task(complete(api, lora=[{"id": 0, "scale": 1}]))
        await until(lambda: api.loaded().busy)
        unloading = asyncio.create_task(unload(api, "formal"))
        await until(lambda: api.loaded().engine.adapters == ())
        assert await names(api) == {}
        (runner,) = api.loader.loaded[0].runners
        assert [adapter.name for adapter in runner.adapters] == ["formal"]
        assert not unloading.done()
        if disconnects:
            unloading.cancel()
        steps.release(100)
        assert len(await running) == 12
        if not disconnects:
            await unloading
            assert runner.adapters == ()
        await until(lambda: runner.adapters == ())


async def test_scales_set_during_a_replacement_do_not_refer_to_the_freed_adapter(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(server={"lora_dir": str(folder)}) as api:
        await load(api, "formal")
        (runner,) = api.loader.loaded[0].runners
        started, proceed, original = threading.Event(), threading.Event(), runner.load_adapter

        def load_slowly(adapter: Adapter) -> Adapter:
            started.set()
            assert proceed.wait(100)
            return original(adapter)

        monkeypatch.setattr(runner, "load_adapter", load_slowly)
        replacing = asyncio.create_task(load(api, "formal", load_inplace=True))
        await until(started.is_set)
        await api.expect("POST /lora-adapters", [{"id": 0, "scale": 0.5}])
        proceed.set()
        await replacing
        assert await names(api) == {1: "formal"}


async def test_runtime_adapters_survive_sleep_with_ids_and_scales(serve: Serve, folder: Path) -> None:
    models = {"demo": {**MODELS["demo"], "sleep_idle_seconds": 1}}
    async with serve(models=models, server={"lora_dir": str(folder)}) as api:
        await load(api, "poet")
        await load(api, "formal")
        await unload(api, "poet")
        await api.expect("POST /lora-adapters", [{"id": 3, "scale": 0.25}])
        await until(lambda: api.pool.state("demo").status is Status.SLEEPING)
        assert await names(api) == {0: "", 1: "", 3: "formal"}
        assert await scales(api) == [0.0, 0.0, 0.25]


INVALID_ADAPTERS = [
    ({"lora_name": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
    ({"lora_path": "formal.gguf"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
    ({"lora_name": 1, "lora_path": "formal.gguf"}, 400, "Field 'lora_name': type must be string"),
    ({"lora_name": "x", "lora_path": "none.gguf"}, 404, "Loading lora x failed: No adapter found for none.gguf"),
    ({"lora_name": "x", "lora_path": "more"}, 404, "No adapter found for more"),
    ({"lora_name": "x", "lora_path": "../outside.gguf"}, 400, "must be a file below the folder of --lora-dir"),
    ({"lora_name": "x", "lora_path": "more/../formal.gguf"}, 400, "must be a file below the folder of --lora-dir"),
    ({"lora_name": "x", "lora_path": "/etc/passwd"}, 400, "must be a file below the folder of --lora-dir"),
    ({"lora_name": "x", "lora_path": "link.gguf"}, 400, "without links"),
    ({"lora_name": "x", "lora_path": "linked/poet.gguf"}, 400, "without links"),
    ({"lora_name": "x", "lora_path": "circle"}, 400, "without links"),
    ({"lora_name": "x", "lora_path": "a\0b"}, 404, "No adapter found"),
    ({"lora_name": "x", "lora_path": "x" * 4096}, 404, "No adapter found"),
    ({"lora_name": "x", "lora_path": "broken.gguf"}, 400, "lora_path: is no LoRA adapter"),
    ({"lora_name": "taken", "lora_path": "formal.gguf"}, 400, "The lora adapter 'taken' has already been loaded."),
]


async def test_invalid_loads_and_unloads_of_adapters_change_nothing(serve: Serve, folder: Path) -> None:
    async with serve(server={"lora_dir": str(folder)}) as api:
        await load(api, "taken")
        for body, status, expected in INVALID_ADAPTERS:
            await api.expect(LOAD, body, status, expected)
        await api.expect(UNLOAD, {"lora_name": "x"}, 404, "The lora adapter 'x' cannot be found.")
        await api.expect(UNLOAD, {}, 400, "'lora_name' needs to be provided to unload a LoRA adapter.")
        assert await names(api) == {0: "taken"}
