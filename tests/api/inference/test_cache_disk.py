"""Prompt states on disk, from the configuration to the reply: they outlive the application."""

from pathlib import Path
from typing import Any

import pytest

from server.engine import disk_cache
from tests.api.conftest import Api, Serve
from tests.support.fakes import FakeLoader, FakeRunner

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
