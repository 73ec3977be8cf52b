"""GET /slots, POST /slots/{id}?action=..., /cache/reset and /cache/pin."""

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.errors import InternalError
from server.pool.saved.state_cache import StateFolder
from server.pool.saved.store import SlotFiles
from server.pool.state import Status
from tests.api.conftest import Api, GoLive, Serve, chat_request, idle, until
from tests.api.management.test_models import RECORDED_PARAMS
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader


async def test_busy_slot_lists_its_request_without_its_text(live: GoLive) -> None:
    steps = threading.Semaphore(1)
    async with live(FakeLoader(n_seq=1, steps=steps)) as server:
        reader, writer = await server.connect(chat_request(max_tokens=5, temperature=0, n_probs=0))
        await reader.readuntil(b"data: ")  # the first token; the next step waits for its permit
        (slot,) = (await server.api.client.get("/slots")).json()
        assert slot["is_processing"] is True
        assert set(slot) == {
            *("id", "n_ctx", "speculative", "is_processing", "id_task", "n_prompt_tokens", "n_checkpoints"),
            *("n_prompt_tokens_processed", "n_prompt_tokens_cache", "params", "next_token"),
        }
        assert list(slot["params"]) == list(RECORDED_PARAMS)
        assert (slot["params"]["temperature"], slot["params"]["max_tokens"]) == (0, 5)
        assert slot["next_token"][0]["n_remain"] == 5 - slot["next_token"][0]["n_decoded"]
        await server.api.expect("GET /slots?fail_on_no_slot=1", None, 503, '"message":"no slot available"')
        for _ in range(20):
            steps.release()
        await reader.readuntil(b"[DONE]")
        writer.close()


async def test_idle_slot_lists_parameters_but_no_counts_of_its_last_request(serve: Serve) -> None:
    async with serve(FakeLoader(n_seq=1)) as api:
        unused = {"id": 0, "n_ctx": 256, "speculative": False, "is_processing": False}
        assert (await api.client.get("/slots")).json() == [unused]
        await api.expect("POST /v1/completions", {"prompt": "Hi", "max_tokens": 3, "temperature": 0.25})
        await idle(api.loaded().engine)
        (slot,) = (await api.client.get("/slots")).json()
        assert not slot["is_processing"]
        assert slot["n_prompt_tokens"] == 5  # BOS, H, i, and two of three generated tokens
        assert (slot["n_prompt_tokens_processed"], slot["n_prompt_tokens_cache"]) == (0, 0)
        assert (slot["params"]["max_tokens"], slot["params"]["temperature"]) == (3, 0.25)
        assert slot["next_token"] == [{"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}]


PROMPT = "What is the capital of France? " * 4
N_PROMPT = len(PROMPT) + 1  # BOS
MODEL: Mapping[str, Any] = {"path": "demo.gguf", "load": "startup"}
LORA = {"path": "pirate.gguf", "scale": 1.0}


@pytest.fixture
def serve_slots(serve: Serve, tmp_path: Path) -> Serve:
    """Start servers with ``slot_save_path`` and one model: ``serve_slots(**model)``."""

    def start(*, n_ctx: int = 256, **model: Any) -> AbstractAsyncContextManager[Api]:
        loader = FakeLoader(n_ctx_seq=n_ctx)
        return serve(loader, server={"slot_save_path": str(tmp_path)}, models={"demo": {**MODEL, **model}})

    return start


async def complete(api: Api, slot: int, prompt: str = PROMPT, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 4, "id_slot": slot, "temperature": 0, **more}
    reply = await api.expect("POST /completion", body)
    found: dict[str, Any] = reply.json()
    return found


async def act(api: Api, slot: object, action: str, **body: Any) -> httpx.Response:
    return await api.client.post(f"/slots/{slot}?action={action}", json=body or None)


def message(reply: httpx.Response, status: int = 400) -> str:
    assert reply.status_code == status, reply.text
    found: str = reply.json()["error"]["message"]
    return found


async def save(api: Api, name: str = "a.bin", **more: Any) -> None:
    await complete(api, 1, **more)
    assert (await act(api, 1, "save", filename=name)).status_code == 200


async def test_cache_reset_drops_states_in_slots_and_ram(serve: Serve) -> None:
    async with serve(FakeLoader(n_seq=2), models={"demo": {**MODEL, "cache_ram": 64}}) as api:
        for prompt in (PROMPT, "Another one " * 10, "And a third one " * 8):  # one is offloaded to RAM
            await complete(api, -1, prompt)
        assert (await complete(api, -1))["timings"]["cache_n"] > 0
        assert (await api.client.post("/cache/reset", json={"model": "demo"})).json()["n_dropped"] > 3 * 100
        assert (await complete(api, -1))["timings"]["cache_n"] == 0
        assert (await api.client.post("/cache/reset")).json()["n_dropped"] > N_PROMPT - 1
        assert (await api.client.post("/cache/reset")).json() == {"n_dropped": 0}
        assert message(await api.client.post("/cache/reset", json={"model": 1})) == "model: must be a string"
        await complete(api, -1)
        assert "known models: demo" in message(await api.client.post("/cache/reset", json={"model": "other"}), 404)
        assert (await complete(api, -1))["timings"]["cache_n"] > 0


async def test_cache_reset_drops_states_of_an_unloaded_model_on_disk(serve: Serve, tmp_path: Path) -> None:
    disk = {"cache_disk": 1, "cache_disk_path": str(tmp_path / "states")}
    models = {"demo": {**MODEL, **disk}, "vectors": {"path": "v.gguf", "embedding": True, **disk}}
    async with serve(FakeLoader(n_seq=2), models=models, server={"models_autoload": False}) as api:
        await complete(api, -1, model="demo")
        await api.expect("POST /models/unload", {"model": "demo"})
        await until(lambda: api.pool.state("demo").status is Status.UNLOADED)
        assert any((tmp_path / "states").rglob("*.state"))
        assert (await api.client.post("/cache/reset", json={"model": "demo"})).json()["n_dropped"] > 100
        await api.expect("POST /cache/reset", {"model": "vectors"}, part={"n_dropped": 0})
        assert [state.status for state in api.pool.states()] == [Status.UNLOADED] * 2
        await api.expect("POST /models/load", {"model": "demo"})
        await until(lambda: api.pool.serves("demo"))
        assert (await complete(api, -1, model="demo"))["timings"]["cache_n"] == 0


async def test_cache_reset_removes_every_file_of_a_loaded_model_or_fails(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It includes states of other settings, and those of a disk tier that was switched off after an error."""
    model = {**MODEL, "cache_disk": 1, "cache_disk_path": str(tmp_path / "states")}

    def states() -> list[Path]:
        return list((tmp_path / "states").rglob("*.state"))

    def fails(*_: object) -> None:
        raise InternalError("the folder cannot be read")

    for settings in ({"cache_type_k": "q8_0"}, {}):
        async with serve(FakeLoader(n_seq=1), models={"demo": model | settings}) as api:
            await complete(api, 0)
    assert len(states()) == 2
    for index_fails in (False, True):
        with monkeypatch.context() as patch:
            if index_fails:
                patch.setattr(StateFolder, "index", fails)
            async with serve(FakeLoader(n_seq=1), models={"demo": model}) as api:
                with monkeypatch.context() as locked:
                    locked.setattr(SlotFiles, "remove", fails)
                    await api.expect("POST /cache/reset", {}, 500, "the folder cannot be read")
                    assert states()
                assert (await api.client.post("/cache/reset")).json()["n_dropped"] >= N_PROMPT
                assert not states()
                await complete(api, 0)


async def test_pinned_prefix_stays_cached_until_it_expires(serve: Serve) -> None:
    """Two states fit into RAM, and each `cached` call computes four other prompts first."""
    chat = {"messages": [{"role": "system", "content": "Be brief. " * 8}, {"role": "user", "content": "Hi"}]}
    others = ["Another one " * 9, "And a third one " * 8, "The fourth is here " * 7, "Then a fifth one " * 8]
    loader = FakeLoader(n_seq=1, n_ctx_seq=1000, n_state_bytes=400 << 10)
    async with serve(loader, models={"demo": {**MODEL, "n_parallel": 1, "cache_ram": 1}}) as api:

        async def cached() -> int:
            for prompt in others:
                await complete(api, -1, prompt)
            reply = (await api.client.post("/v1/chat/completions", json={**chat, "max_tokens": 1})).json()
            found: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            return found

        assert await cached() < 20
        before = time.time()
        pinned = (await api.client.post("/cache/pin", json={**chat, "ttl_s": 60})).json()
        assert pinned["object"] == "cache.pin"
        assert pinned["n_tokens"] > 80
        assert before + 59 < pinned["expires_at"] <= time.time() + 60
        assert await cached() >= pinned["n_tokens"] - 1
        assert await cached() >= pinned["n_tokens"] - 1
        assert (
            await api.client.post("/cache/pin", json={**chat, "ttl_s": 1e-6})
        ).status_code == 200  # expires immediately
        assert await cached() < 20
        assert (await api.client.post("/cache/pin", json={**chat, "ttl_s": 60})).status_code == 200
        another = {"prompt": "A prompt of its own " * 9, "ttl_s": 60}
        assert "half of cache_ram" in message(await api.client.post("/cache/pin", json=another))
        assert await cached() >= pinned["n_tokens"] - 1
        assert message(await api.client.post("/cache/pin", json={"prompt": "Hi"})).startswith("ttl_s: must be")
        await api.expect("POST /cache/pin", {"prompt": 3, "ttl_s": 60}, 400, {"error": {"code": 400}})


async def test_pin_is_refused_if_checkpoints_leave_too_little_ram(serve: Serve) -> None:
    """The state itself takes less than half of ``cache_ram``, which is the limit for pins."""
    sizes: dict[str, Any] = {"n_state_bytes": 150 << 10, "n_checkpoint_bytes": 300 << 10}
    loader = FakeLoader(n_seq=3, n_ctx_seq=1000, partial_removal=False, **sizes)
    async with serve(loader, models={"demo": {**MODEL, "n_parallel": 3, "cache_ram": 1}}) as api:
        pin = {"prompt": "A prompt of its own " * 9, "ttl_s": 60}
        await api.expect("POST /cache/pin", pin)
        await api.expect("POST /cache/pin", {**pin, "ttl_s": 1e-6})
        for slot in range(2):
            await complete(api, slot, f"{slot} {PROMPT}")
        await api.expect("POST /cache/pin", pin, 400, "was not pinned")


async def test_pin_needs_scopes_and_counts_towards_the_rate_limit(serve: Serve, tmp_path: Path) -> None:
    admin = {"scopes": ["slots", "infer", "metrics"]}
    both = {"scopes": ["slots", "infer"], "requests_per_minute": 2}
    file = key_file(tmp_path, slots={"scopes": ["slots"]}, both=both, ada={}, admin=admin)
    async with serve(models={"demo": {**MODEL, "cache_ram": 64}}, server={"keys_file": str(file)}) as api:

        async def pin(caller: str, status: int, part: str = "", **fields: Any) -> None:
            body = {"prompt": PROMPT, "ttl_s": 60, **fields}
            await api.expect("POST /cache/pin", body, status, part, bearer(caller))

        await pin("slots", 403)
        await pin("both", 403, key="ada")
        await pin("admin", 200, key="ada")
        deep: Any = "x"
        for _ in range(300):
            deep = [deep]
        await pin("admin", 400, "nested too deeply", tools=deep)
        await pin("both", 200)
        for _ in range(2):  # the refused request may have counted or not
            await api.client.post("/cache/pin", json={"prompt": PROMPT, "ttl_s": 60}, headers=bearer("both"))
        await pin("both", 429)


async def test_save_and_restore_reply_like_llama_server(serve_slots: Serve, tmp_path: Path) -> None:
    async with serve_slots() as api:
        content = await complete(api, 1)
        reply = (await act(api, 1, "save", filename="a.bin")).json()
        n_bytes = len((tmp_path / "a.bin").read_bytes())
        n_tokens = N_PROMPT + 3  # the last token of the reply was never decoded
        ms = reply["timings"].pop("save_ms")
        same = {"filename": "a.bin", "timings": {}}
        assert reply == {"id_slot": 1, "n_saved": n_tokens, "n_written": n_bytes, **same}
        assert (await act(api, 1, "erase")).json() == {"id_slot": 1, "n_erased": n_tokens}
        assert (await complete(api, 1, n_predict=0))["timings"]["cache_n"] == 0
        reply = (await act(api, 0, "restore", filename="a.bin")).json()
        assert reply["timings"].pop("restore_ms") > 0 < ms
        assert reply == {"id_slot": 0, "n_restored": n_tokens, "n_read": n_bytes, **same}
        again = await complete(api, 0)
        assert again["timings"]["cache_n"] >= N_PROMPT - 1
        assert again["content"] == content["content"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"path": "other.gguf"}, "the model differs (in the file: fake:demo.gguf, here: fake:other.gguf)"),
        ({"kv_unified": False}, "the KV cache's layout differs (in the file: 1 streams"),
        ({"lora": [LORA]}, "the LoRA set differs (in the file: none, here: fake:pir at 1)"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
async def test_restore_refuses_a_file_of_another_configuration_and_names_the_difference(
    serve_slots: Serve, changes: dict[str, Any], expected: str
) -> None:
    async with serve_slots() as api:
        await save(api)
    async with serve_slots(**changes) as api:
        refusal = message(await act(api, 0, "restore", filename="a.bin"))
        assert refusal.startswith("Unable to restore slot: it was saved elsewhere: ")
        assert expected in refusal
        assert refusal.count("differs") == 1
        assert (await act(api, 0, "erase")).json()["n_erased"] == 0


async def test_restore_needs_the_same_adapter_at_the_same_scale(serve_slots: Serve) -> None:
    async with serve_slots(lora=[LORA]) as api:
        await save(api)
        assert (await act(api, 0, "restore", filename="a.bin")).status_code == 200
        assert (await api.client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}])).json() == {"success": True}
        assert "the LoRA set differs" in message(await act(api, 0, "restore", filename="a.bin"))
    async with serve_slots() as api:
        assert "(in the file: fake:pir at 1, here: none)" in message(await act(api, 0, "restore", filename="a.bin"))
    async with serve_slots(lora=[{"path": "other.gguf", "scale": 0}, LORA]) as api:  # the same adapter under another id
        assert (await act(api, 0, "restore", filename="a.bin")).status_code == 200
        assert (await complete(api, 0))["timings"]["cache_n"] >= N_PROMPT - 1


async def test_restored_cells_are_reused_only_by_requests_with_the_same_adapters(serve_slots: Serve) -> None:
    scaled = [{"id": 0, "scale": 0.25}]
    async with serve_slots(lora=[LORA]) as api:
        await save(api, lora=scaled)
    async with serve_slots(lora=[LORA]) as api:
        cases: tuple[tuple[dict[str, Any], bool], ...] = (({"lora": scaled}, True), ({}, False))
        for fields, cached in cases:
            assert (await act(api, 1, "restore", filename="a.bin")).status_code == 200
            n = (await complete(api, 1, **fields))["timings"]["cache_n"]
            assert n >= N_PROMPT - 1 if cached else n == 0


async def test_save_and_erase_wait_until_the_slot_is_idle(live: GoLive, tmp_path: Path) -> None:
    steps = threading.Semaphore(1)
    async with live(FakeLoader(n_seq=1, steps=steps), server={"slot_save_path": str(tmp_path)}) as server:
        reader, writer = await server.connect(chat_request(max_tokens=5))
        await reader.readuntil(b"data: ")
        saving = asyncio.create_task(act(server.api, 0, "save", filename="a"))
        erasing = asyncio.create_task(act(server.api, 0, "erase"))
        await until(lambda: server.api.pool.states()[0].n_leases == 3)
        assert not saving.done()
        steps.release(20)
        await reader.readuntil(b"[DONE]")
        assert (await saving).json()["n_saved"] == (await erasing).json()["n_erased"] > 5
        writer.close()


async def test_concurrent_restores_into_one_slot_leave_one_complete_state(serve_slots: Serve) -> None:
    async with serve_slots() as api:
        prompts = [letter * 60 for letter in "abcd"]
        for prompt in prompts:
            await save(api, name=prompt[0], prompt=prompt)
        replies = await asyncio.gather(*(act(api, 2, "restore", filename=prompt[0]) for prompt in prompts * 3))
        assert {reply.status_code for reply in replies} == {200}
        cells = bytes(api.loader.loaded[0].runners[0].cells[2][1:61]).decode()
        assert cells in prompts
        await act(api, 1, "erase")
        assert (await complete(api, 2, cells, n_predict=0))["timings"]["cache_n"] == 60


async def test_slot_actions_take_the_model_from_query_or_body(serve: Serve, tmp_path: Path) -> None:
    models = {"a": {"path": "a.gguf", "load": "startup"}, "b": {"path": "b.gguf"}}
    async with serve(server={"slot_save_path": str(tmp_path)}, models=models) as api:
        assert (await api.client.post("/slots/0?action=erase&model=b")).status_code == 200
        for action in ("erase", "save"):
            unknown = await act(api, 0, action, filename="s", model="nowhere")
            assert "nowhere" in message(unknown, 404)
        assert (await act(api, 0, "save", filename="s", model="a")).status_code == 200
        refusal = message(await act(api, 0, "restore", filename="s", model="b"))
        assert "the model differs" in refusal
        assert (await act(api, 0, "restore", filename="s", model="a")).status_code == 200


async def test_restore_refuses_damaged_files_and_leaves_the_slot_unchanged(serve_slots: Serve, tmp_path: Path) -> None:
    async with serve_slots() as api:
        await save(api)
        content = (tmp_path / "a.bin").read_bytes()
        half = len(content) // 2
        for damaged, expected in (
            (content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :], "damaged"),
            (b"GGUF" + content, "no saved slot"),
            (b"", "no saved slot"),
        ):
            (tmp_path / "bad.bin").write_bytes(damaged)
            assert expected in message(await act(api, 1, "restore", filename="bad.bin"))
        assert (await complete(api, 1))["timings"]["cache_n"] >= N_PROMPT - 1
        for missing in (1, 200, 900):  # the format has no end mark: the library must refuse them
            (tmp_path / "bad.bin").write_bytes(content[:-missing])
            assert "refused by the library" in message(await act(api, 1, "restore", filename="bad.bin"))
            assert (await act(api, 1, "erase")).json()["n_erased"] == 0


async def test_invalid_slot_actions_are_refused_and_write_nothing(serve_slots: Serve, tmp_path: Path) -> None:
    async with serve_slots() as api:
        for path, body, expected in (
            ("/slots/x?action=save", b'{"filename": "a"}', "Invalid slot ID"),
            ("/slots/-1?action=erase", b"", "Invalid slot ID"),
            ("/slots/4?action=save", b'{"filename": "a"}', "Invalid slot ID"),
            ("/slots/99999999999999999999?action=erase", b"", "Invalid slot ID"),
            ("/slots/0", b"", "Invalid action"),
            ("/slots/0?action=rename", b"{}", "Invalid action"),
            ("/slots/0?action=save", b"", "the request body is empty; expected a JSON object"),
            ("/slots/0?action=save", b"[]", "the request body must be a JSON object, not an array"),
            ("/slots/0?action=save", b"{}", "filename: must be a string"),
            ("/slots/0?action=save", b'{"filename": "../a"}', "Invalid filename"),
            ("/slots/0?action=restore", b'{"filename": "/etc/passwd"}', "Invalid filename"),
            ("/slots/0?action=restore", b'{"filename": "none"}', "Unable to restore slot: there is no such file"),
            ("/slots/0?action=save", b'{"filename": "a", "model": 1}', "model: must be a string"),
        ):
            reply = await api.client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert message(reply) == expected, path
        assert os.listdir(tmp_path) == []
        tmp_path.rmdir()  # noqa: ASYNC240 (no other task runs)
        assert message(await act(api, 0, "save", filename="a"), 500).startswith("Unable to save slot: ")
        tmp_path.mkdir()  # noqa: ASYNC240
