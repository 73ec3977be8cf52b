"""Cached prompts: with several keys, what the requests of one computed is nothing to another; and states on disk."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from server.engine.cache import kv_store
from tests.api.conftest import Api, Serve
from tests.api.inference.dialects import Asked, Dialect, of_this_server
from tests.api.transport.test_keys import bearer, key_file, server
from tests.support.fakes import FakeLoader

WORDS = "what is said more than once " * 8
MESSAGES = [{"role": "user", "content": WORDS}]


async def n_cached(api: Api, name: str = "", **body: Any) -> int:
    """What the reply says of the cache, in all of its places."""
    asked = {"messages": MESSAGES, "max_tokens": 2, **body}
    reply = await api.expect("POST /v1/chat/completions", asked, headers=bearer(name) if name else None)
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
    ids=[
        "two keys",
        "one key",
        "no key",
        "of the server",
        "of a request",
        "salts",
        "salts in headers",
        "keys and salts",
    ],
)
async def test_whose_requests_share_what_was_computed(
    serve: Serve, settings: dict[str, Any], requests: list[tuple[str, dict[str, str]]], cached: list[bool]
) -> None:
    """A salt in the body counts before one in a header; both count within a key's own scope."""
    async with serve(server=settings) as api:
        found = []
        for name, salt in requests:
            api.client.headers.pop("X-Cache-Salt", None)
            api.client.headers.update({k: v for k, v in salt.items() if k.startswith("X-")})
            found.append(await n_cached(api, name, **{k: v for k, v in salt.items() if not k.startswith("X-")}) > 0)
    assert found == cached


@of_this_server
async def test_every_format_reads_the_salt(serve: Serve, dialect: Dialect) -> None:
    path, body = f"POST {dialect.path}", dialect.body(Asked(limit=2))
    async with serve() as api:
        engine = api.loaded().engine
        seen: list[str] = []
        submit = engine.submit
        engine.submit = lambda request, sink: seen.append(request.cache_scope) or submit(request, sink)  # type: ignore[method-assign,func-returns-value]
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": None}):
            await api.expect(path, body | salt)
        assert [bool(scope) for scope in seen] == [False, True, False]
        for wrong in ("", 1, ["a"]):
            await api.expect(path, body | {"cache_salt": wrong}, 400, "cache_salt")


async def test_slots_show_their_counts_to_their_key(serve: Serve, tmp_path: Path) -> None:
    file = key_file(
        tmp_path, ada={"scopes": ["infer", "slots"]}, bert={"scopes": ["slots"]}, ops={"scopes": ["slots", "metrics"]}
    )
    async with serve(server=server(file)) as api:
        await n_cached(api, "ada", temperature=0.125)

        async def shown(name: str) -> str:
            return (await api.client.get("/slots", headers=bearer(name))).text

        assert "0.125" in await shown("ada")
        assert "0.125" in await shown("ops")
        assert "0.125" not in await shown("bert")
        assert "id_task" not in await shown("bert")


async def test_saved_slots_are_their_keys_own(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    scopes = {"scopes": ["infer", "slots"]}
    file = key_file(tmp_path, ada=scopes, bert=scopes)
    async with serve(server=server(file, slot_save_path=str(folder))) as api:
        await n_cached(api, "ada", id_slot=0)

        async def act(name: str, action: str, slot: int = 0) -> httpx.Response:
            body = {"filename": "a.bin"}
            return await api.client.post(f"/slots/{slot}?action={action}", json=body, headers=bearer(name))

        for action in ("save", "erase"):
            assert (await act("bert", action)).status_code == 403
        assert (await act("ada", "save")).json()["n_saved"] > 0
        refused = await act("bert", "restore")
        assert (refused.status_code, "there is no such file" in refused.text) == (400, True)
        saved = [path for path in folder.rglob("*") if path.is_file()]
        assert [path.stat().st_mode & 0o777 for path in saved] == [0o600]
        assert saved[0].parent.stat().st_mode & 0o777 == 0o700
        assert "ada" not in str(saved[0].relative_to(folder))  # a name may hold anything
        other = saved[0].parent.parent / api.app.state.services.keys.find(b"bert").owner
        other.mkdir(mode=0o700)
        (other / "a.bin").write_bytes(saved[0].read_bytes())  # as somebody may who has the volume
        stolen = await act("bert", "restore")
        assert (stolen.status_code, "saved for another API key" in stolen.text) == (400, True)
        assert (await act("ada", "erase")).status_code == 200
        assert (await act("ada", "restore", 1)).json()["n_restored"] > 0
        assert await n_cached(api, "bert", id_slot=1) == 0
        assert (await act("ada", "restore", 1)).status_code == 200
        assert await n_cached(api, "ada", id_slot=1) > 0


async def test_a_quota_bounds_each_keys_files(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.app.MIB", 1)  # bytes
    folder, other = tmp_path / "slots", tmp_path / "size"
    for each in (folder, other):
        each.mkdir()

    async def save(api: Api, name: str, file: str) -> int:
        await n_cached(api, name, id_slot=0)
        body = {"filename": file}
        reply = await api.client.post("/slots/0?action=save", json=body, headers=bearer(name))
        assert reply.status_code == 200 or "save over an older file" in reply.text
        return reply.status_code

    async with serve(server={"slot_save_path": str(other)}) as api:
        assert await save(api, "ada", "a") == 200
    quota = int(2.5 * (other / "a").stat().st_size)
    settings = {"api_keys": ["ada", "bert"], "slot_save_path": str(folder), "slot_save_quota": quota}
    async with serve(server=settings) as api:
        assert [await save(api, "ada", file) for file in "abcd"] == [200, 200, 403, 403]
        assert await save(api, "ada", "a") == 200  # over an older one
        assert await save(api, "bert", "a") == 200  # each has his own
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(path.name for path in kept) == ["a", "a", "b"]


async def test_a_signed_folder_restores_what_it_signed_alone(serve: Serve, tmp_path: Path) -> None:
    folder, secret = tmp_path / "slots", tmp_path / "secret"
    folder.mkdir()
    body = {"filename": "a.bin"}
    wrong = "its description is not what was saved"
    one, another = "one secret of many letters", "another secret of many letters"
    for text, status, said in ((one, 200, ""), ("", 400, wrong), (another, 400, wrong), (one, 200, "")):
        secret.write_text(text)
        signs = {"slot_save_secret_file": str(secret)} if text else {}
        async with serve(server={"slot_save_path": str(folder)} | signs) as api:
            await n_cached(api, id_slot=0)
            if not (folder / "a.bin").exists():
                await api.expect("POST /slots/0?action=save", body)
                assert (folder / "a.bin").stat().st_mode & 0o777 == 0o600
            await api.expect("POST /slots/0?action=restore", body, status, said)


PROMPT = "What is the capital of France? " * 8
N_PROMPT = len(PROMPT) + 1


async def complete(api: Api, prompt: str = PROMPT) -> dict[str, Any]:
    reply = await api.expect("POST /completion", {"prompt": prompt, "n_predict": 4, "temperature": 0})
    done: dict[str, Any] = reply.json()
    return done


async def metric(api: Api, name: str) -> float:
    text = (await api.client.get("/metrics")).text
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + "{")))


def one_slot() -> FakeLoader:
    return FakeLoader(n_seq=1, n_ctx_seq=512)


async def test_a_conversation_outlives_the_application(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_store, "UNKNOWN_S", 60.0)  # that reading takes too long is for other tests
    disk = {"cache_disk": 1, "cache_disk_path": str(tmp_path / "states")}
    models = {"demo": {"path": "demo.gguf", "load": "startup", **disk}}
    answers = []
    for n_start in range(2):
        async with serve(one_slot(), server={"metrics": True}, models=models) as api:
            reply = await complete(api)
            answers.append(reply["content"])
            assert reply["tokens_cached"] == N_PROMPT + 3
            assert (reply["timings"]["cache_n"] > N_PROMPT - 20) == bool(n_start)
            assert await metric(api, "llamapool_cache_disk_hits_total") == n_start
            assert await metric(api, "llamapool_cache_disk_states") == n_start
        (file,) = (tmp_path / "states").rglob("*.state")
    assert answers[0] == answers[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 1
    file.write_bytes(content)
    async with serve(one_slot(), server={"metrics": True}, models=models) as api:
        reply = await complete(api)
        assert reply["content"] == answers[0]
        assert reply["timings"]["cache_n"] == 0


async def test_ram_is_counted_too(serve: Serve) -> None:
    models = {"demo": {"path": "demo.gguf", "load": "startup"}}
    async with serve(one_slot(), server={"metrics": True}, models=models) as api:
        await complete(api)
        await complete(api, "something else " * 10)
        assert await metric(api, "llamapool_cache_ram_states") == 1
        assert await metric(api, "llamapool_cache_ram_bytes") > N_PROMPT
        reply = await complete(api)
        assert reply["timings"]["cache_n"] == N_PROMPT - 1
        assert await metric(api, "llamapool_cache_ram_hits_total") == 1
