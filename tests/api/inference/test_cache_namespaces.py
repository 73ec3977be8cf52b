"""Cache namespaces of keys and salts, ownership of saved slots, and metrics of the disk and RAM tiers."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from server.engine import kv_store
from tests.api.conftest import Api, Serve
from tests.api.inference.dialects import Dialect, Query, llamapool_dialects
from tests.api.transport.test_keys import bearer, key_file, server
from tests.support.fakes import FakeLoader

MESSAGES = [{"role": "user", "content": "what is said more than once " * 8}]


async def n_cached(api: Api, key: str = "", **fields: Any) -> int:
    """Send the same chat with this key. Return the number of cached tokens, which the reply reports twice."""
    body = {"messages": MESSAGES, "max_tokens": 2, **fields}
    reply = await api.expect("POST /v1/chat/completions", body, headers=bearer(key) if key else None)
    n = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reply.json()["timings"]["cache_n"] == n
    return int(n)


A, B, NONE = {"cache_salt": "a"}, {"cache_salt": "b"}, dict[str, Any]()
HEADER_A, HEADER_B = {"X-Cache-Salt": "a"}, {"X-Cache-Salt": "b"}
TWO_KEYS = {"api_keys": ["ada", "bert"]}


@pytest.mark.parametrize(
    ("settings", "requests", "cached"),
    [
        (TWO_KEYS, [("ada", NONE), ("bert", NONE), ("ada", NONE), ("bert", NONE)], [False, False, True, True]),
        ({"api_keys": ["ada"]}, [("ada", NONE), ("ada", NONE)], [False, True]),
        ({}, [("", NONE), ("", NONE)], [False, True]),
        ({**TWO_KEYS, "cache_scope": "server"}, [("ada", NONE), ("bert", NONE)], [False, True]),
        ({"cache_scope": "request"}, [("", NONE), ("", NONE)], [False, False]),
        ({}, [("", NONE), ("", A), ("", B), ("", A), ("", NONE)], [False, False, False, True, True]),
        ({}, [("", HEADER_A), ("", HEADER_A), ("", HEADER_B), ("", HEADER_B | A)], [False, True, False, True]),
        (TWO_KEYS, [("ada", A), ("bert", A), ("ada", A)], [False, False, True]),
    ],
    ids=["two-keys", "one-key", "no-key", "per-server", "per-request", "salts", "salt-headers", "keys-and-salts"],
)
async def test_only_requests_of_one_cache_namespace_share_prefixes(
    serve: Serve, settings: dict[str, Any], requests: list[tuple[str, dict[str, str]]], cached: list[bool]
) -> None:
    """A salt in the body overrides the header. Both subdivide the namespace of the key."""
    async with serve(server=settings) as api:
        hits = []
        for key, salt in requests:
            api.client.headers.pop("X-Cache-Salt", None)
            api.client.headers.update({k: v for k, v in salt.items() if k.startswith("X-")})
            hits.append(await n_cached(api, key, **{k: v for k, v in salt.items() if not k.startswith("X-")}) > 0)
    assert hits == cached


@llamapool_dialects
async def test_every_dialect_parses_cache_salt(serve: Serve, dialect: Dialect) -> None:
    path, body = f"POST {dialect.path}", dialect.body(Query(limit=2))
    async with serve() as api:
        engine = api.loaded().engine
        namespaces: list[str] = []
        submit = engine.submit
        engine.submit = lambda request, sink: namespaces.append(request.cache_scope) or submit(request, sink)  # type: ignore[method-assign,func-returns-value]
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": None}):
            await api.expect(path, body | salt)
        assert [bool(namespace) for namespace in namespaces] == [False, True, False]
        for invalid in ("", 1, ["a"]):
            await api.expect(path, body | {"cache_salt": invalid}, 400, "cache_salt")


async def test_slots_show_requests_only_to_their_key_and_operators(serve: Serve, tmp_path: Path) -> None:
    file = key_file(
        tmp_path, ada={"scopes": ["infer", "slots"]}, bert={"scopes": ["slots"]}, ops={"scopes": ["slots", "metrics"]}
    )
    async with serve(server=server(file)) as api:
        await n_cached(api, "ada", temperature=0.125)

        async def get_slots(key: str) -> str:
            return (await api.client.get("/slots", headers=bearer(key))).text

        assert "0.125" in await get_slots("ada")
        assert "0.125" in await get_slots("ops")
        assert "0.125" not in await get_slots("bert")
        assert "id_task" not in await get_slots("bert")


async def test_slots_and_saved_files_are_private_to_their_key(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    scopes = {"scopes": ["infer", "slots"]}
    file = key_file(tmp_path, ada=scopes, bert=scopes)
    async with serve(server=server(file, slot_save_path=str(folder))) as api:
        await n_cached(api, "ada", id_slot=0)

        async def post_slot(key: str, action: str, slot: int = 0) -> httpx.Response:
            body = {"filename": "a.bin"}
            return await api.client.post(f"/slots/{slot}?action={action}", json=body, headers=bearer(key))

        for action in ("save", "erase"):
            assert (await post_slot("bert", action)).status_code == 403
        assert (await post_slot("ada", "save")).json()["n_saved"] > 0
        refused = await post_slot("bert", "restore")
        assert (refused.status_code, "there is no such file" in refused.text) == (400, True)
        saved = [path for path in folder.rglob("*") if path.is_file()]
        assert [path.stat().st_mode & 0o777 for path in saved] == [0o600]
        assert saved[0].parent.stat().st_mode & 0o777 == 0o700
        assert "ada" not in str(saved[0].relative_to(folder))  # a key's name may contain any character
        other = saved[0].parent.parent / api.app.state.services.keys.find(b"bert").owner
        other.mkdir(mode=0o700)
        (other / "a.bin").write_bytes(saved[0].read_bytes())  # an attacker with access to the volume copies the file
        stolen = await post_slot("bert", "restore")
        assert (stolen.status_code, "saved for another API key" in stolen.text) == (400, True)
        assert (await post_slot("ada", "erase")).status_code == 200
        assert (await post_slot("ada", "restore", 1)).json()["n_restored"] > 0
        assert await n_cached(api, "bert", id_slot=1) == 0
        assert (await post_slot("ada", "restore", 1)).status_code == 200
        assert await n_cached(api, "ada", id_slot=1) > 0


async def test_slot_save_quota_limits_the_files_of_each_key(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.app.MIB", 1)  # the quota is in bytes
    folder, without_quota = tmp_path / "slots", tmp_path / "size"
    for each in (folder, without_quota):
        each.mkdir()

    async def save(api: Api, key: str, file: str) -> int:
        await n_cached(api, key, id_slot=0)
        body = {"filename": file}
        reply = await api.client.post("/slots/0?action=save", json=body, headers=bearer(key))
        assert reply.status_code == 200 or "save over an older file" in reply.text
        return reply.status_code

    async with serve(server={"slot_save_path": str(without_quota)}) as api:
        assert await save(api, "ada", "a") == 200
    quota = int(2.5 * (without_quota / "a").stat().st_size)
    settings = {"api_keys": ["ada", "bert"], "slot_save_path": str(folder), "slot_save_quota": quota}
    async with serve(server=settings) as api:
        assert [await save(api, "ada", file) for file in "abcd"] == [200, 200, 403, 403]
        assert await save(api, "ada", "a") == 200  # replaces an older file
        assert await save(api, "bert", "a") == 200
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["a", "a", "b"]


async def test_signed_slot_files_are_restored_only_with_the_same_secret(serve: Serve, tmp_path: Path) -> None:
    folder, secret = tmp_path / "slots", tmp_path / "secret"
    folder.mkdir()
    body = {"filename": "a.bin"}
    refused = "its description is not what was saved"
    one, another = "one secret of many letters", "another secret of many letters"
    for text, status, message in ((one, 200, ""), ("", 400, refused), (another, 400, refused), (one, 200, "")):
        secret.write_text(text)
        signing = {"slot_save_secret_file": str(secret)} if text else {}
        async with serve(server={"slot_save_path": str(folder)} | signing) as api:
            await n_cached(api, id_slot=0)
            if not (folder / "a.bin").exists():
                await api.expect("POST /slots/0?action=save", body)
                assert (folder / "a.bin").stat().st_mode & 0o777 == 0o600
            await api.expect("POST /slots/0?action=restore", body, status, message)


PROMPT = "What is the capital of France? " * 8
N_PROMPT = len(PROMPT) + 1
ONE_SLOT: dict[str, Any] = {"n_seq": 1, "n_ctx_seq": 512}


async def complete(api: Api, prompt: str = PROMPT) -> dict[str, Any]:
    reply = await api.expect("POST /completion", {"prompt": prompt, "n_predict": 4, "temperature": 0})
    completion: dict[str, Any] = reply.json()
    return completion


async def metric(api: Api, name: str) -> float:
    text = (await api.client.get("/metrics")).text
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + "{")))


async def test_disk_cache_is_used_after_a_restart_unless_it_is_corrupt(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_store, "UNKNOWN_S", 60.0)  # a slow disk must not prevent the hit
    disk = {"cache_disk": 1, "cache_disk_path": str(tmp_path / "states")}
    models = {"demo": {"path": "demo.gguf", "load": "startup", **disk}}
    contents = []
    for n_start in range(2):
        async with serve(FakeLoader(**ONE_SLOT), server={"metrics": True}, models=models) as api:
            reply = await complete(api)
            contents.append(reply["content"])
            assert reply["tokens_cached"] == N_PROMPT + 3
            assert (reply["timings"]["cache_n"] > N_PROMPT - 20) == bool(n_start)
            assert await metric(api, "llamapool_cache_disk_hits_total") == n_start
            assert await metric(api, "llamapool_cache_disk_states") == n_start
        (file,) = (tmp_path / "states").rglob("*.state")
    assert contents[0] == contents[1]
    corrupt = bytearray(file.read_bytes())
    corrupt[len(corrupt) // 4] ^= 1
    file.write_bytes(corrupt)
    async with serve(FakeLoader(**ONE_SLOT), server={"metrics": True}, models=models) as api:
        reply = await complete(api)
        assert reply["content"] == contents[0]
        assert reply["timings"]["cache_n"] == 0


async def test_metrics_count_states_and_hits_of_the_ram_tier(serve: Serve) -> None:
    async with serve(FakeLoader(**ONE_SLOT), server={"metrics": True}) as api:
        await complete(api)
        await complete(api, "something else " * 10)
        assert await metric(api, "llamapool_cache_ram_states") == 1
        assert await metric(api, "llamapool_cache_ram_bytes") > N_PROMPT
        reply = await complete(api)
        assert reply["timings"]["cache_n"] == N_PROMPT - 1
        assert await metric(api, "llamapool_cache_ram_hits_total") == 1
