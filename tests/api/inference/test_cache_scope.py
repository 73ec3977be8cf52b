"""Cached prompts: with several keys, what the requests of one computed is nothing to another; and states on disk."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from server.engine import disk_cache
from tests.api.conftest import Api, Serve
from tests.api.transport.test_keys import bearer, key_file, server
from tests.support.fakes import FakeLoader, FakeRunner

WORDS = "what is said more than once " * 8
MESSAGES = [{"role": "user", "content": WORDS}]


async def n_cached(api: Api, name: str = "", **body: Any) -> int:
    """What the reply says of the cache, in all of its places."""
    asked = {"messages": MESSAGES, "max_tokens": 2, **body}
    reply = await api.client.post("/v1/chat/completions", json=asked, headers=bearer(name) if name else None)
    assert reply.status_code == 200, reply.text
    n = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reply.json()["timings"]["cache_n"] == n
    return int(n)


async def test_several_keys_share_nothing(serve: Serve, tmp_path: Path) -> None:
    async with serve(server=server(key_file(tmp_path, ada={}, bert={}))) as api:
        assert [await n_cached(api, name) > 0 for name in ("ada", "bert", "ada", "bert")] == [False, False, True, True]


@pytest.mark.parametrize(
    "settings", [{"api_keys": ["ada"]}, {}, {"api_keys": ["ada", "bert"], "cache_scope": "server"}]
)
async def test_one_key_or_none_shares_all_as_does_the_setting(serve: Serve, settings: dict[str, Any]) -> None:
    async with serve(server=settings) as api:
        names = settings.get("api_keys", [""])
        assert [await n_cached(api, name) > 0 for name in (names[0], names[-1])] == [False, True]


async def test_keys_of_llama_servers_kind_count_too(serve: Serve) -> None:
    async with serve(server={"api_keys": ["ada", "bert"]}) as api:
        assert [await n_cached(api, name) > 0 for name in ("ada", "bert", "ada")] == [False, False, True]


async def test_each_request_for_itself(serve: Serve) -> None:
    async with serve(server={"cache_scope": "request"}) as api:
        assert [await n_cached(api), await n_cached(api)] == [0, 0]


async def test_a_salt_keeps_a_conversation_to_those_who_know_it(serve: Serve) -> None:
    async with serve() as api:
        salts: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}, {}]
        assert [await n_cached(api, **salt) > 0 for salt in salts] == [False, False, False, True, True]


async def test_a_salt_may_be_a_header_and_the_bodys_counts_before_it(serve: Serve) -> None:
    async with serve() as api:
        found = []
        for header, body in (("a", {}), ("a", {}), ("b", {}), ("b", {"cache_salt": "a"})):
            api.client.headers["X-Cache-Salt"] = header
            found.append(await n_cached(api, **body) > 0)
        assert found == [False, True, False, True]


async def test_a_salt_is_within_the_keys_own(serve: Serve) -> None:
    async with serve(server={"api_keys": ["ada", "bert"]}) as api:
        assert [await n_cached(api, name, cache_salt="a") > 0 for name in ("ada", "bert", "ada")] == [
            False,
            False,
            True,
        ]


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": WORDS}),
    ("/v1/responses", {"input": WORDS}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}),
    ("/completion", {"prompt": WORDS}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_every_format_reads_the_salt(serve: Serve, path: str, body: dict[str, Any]) -> None:
    def cached(reply: httpx.Response) -> int:
        assert reply.status_code == 200, reply.text
        told = reply.json()
        usage = told.get("usage", {})
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        return int(details.get("cached_tokens", usage.get("cache_read_input_tokens", told.get("tokens_cached", 0))))

    async with serve() as api:
        engine = api.loaded().engine
        seen: list[str] = []
        submit = engine.submit
        engine.submit = lambda request, sink: seen.append(request.cache_scope) or submit(request, sink)  # type: ignore[method-assign,func-returns-value]
        limit = {"max_output_tokens": 2} if path == "/v1/responses" else {"max_tokens": 2}
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": None}):
            cached(await api.client.post(path, json=body | limit | salt))
        assert [bool(scope) for scope in seen] == [False, True, False]
        for wrong in ("", 1, ["a"]):
            reply = await api.client.post(path, json=body | limit | {"cache_salt": wrong})
            assert reply.status_code == 400
            assert "cache_salt" in reply.text


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


async def test_without_several_keys_files_lie_where_they_always_did(serve: Serve, tmp_path: Path) -> None:
    async with serve(server={"slot_save_path": str(tmp_path)}) as api:
        await n_cached(api, id_slot=0)
        await api.client.post("/slots/0?action=save", json={"filename": "a.bin"})
        assert (tmp_path / "a.bin").stat().st_mode & 0o777 == 0o600


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
    statuses = []
    for text in ("one secret of many letters", "", "another secret of many letters", "one secret of many letters"):
        secret.write_text(text)
        signs = {"slot_save_secret_file": str(secret)} if text else {}
        async with serve(server={"slot_save_path": str(folder)} | signs) as api:
            await n_cached(api, id_slot=0)
            if not (folder / "a.bin").exists():
                assert (await api.client.post("/slots/0?action=save", json=body)).status_code == 200
            reply = await api.client.post("/slots/0?action=restore", json=body)
            statuses.append(reply.status_code)
            assert reply.status_code == 200 or "its description is not what was saved" in reply.text
    assert statuses == [200, 400, 400, 200]


PROMPT = "What is the capital of France? " * 8
N_PROMPT = len(PROMPT) + 1


async def complete(api: Api, prompt: str = PROMPT) -> dict[str, Any]:
    reply = await api.client.post("/completion", json={"prompt": prompt, "n_predict": 4, "temperature": 0})
    assert reply.status_code == 200, reply.text
    done: dict[str, Any] = reply.json()
    return done


async def metric(api: Api, name: str) -> float:
    text = (await api.client.get("/metrics")).text
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + "{")))


def one_slot() -> FakeLoader:
    return FakeLoader(runner=lambda: FakeRunner(n_seq=1, n_ctx_seq=512))


async def test_a_conversation_outlives_the_application(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "UNKNOWN_S", 60.0)  # that reading takes too long is for other tests
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
