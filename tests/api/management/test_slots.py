import threading

import httpx

from tests.api.conftest import GoLive, Serve, chat_request, idle
from tests.api.management.test_props import RECORDED_PARAMS
from tests.support.fakes import FakeLoader, FakeRunner


async def test_idle_slots_are_listed(client: httpx.AsyncClient) -> None:
    reply = await client.get("/slots")
    assert reply.json() == [{"id": i, "n_ctx": 256, "speculative": False, "is_processing": False} for i in range(4)]


async def test_a_busy_slot_shows_its_request_but_not_its_text(live: GoLive) -> None:
    steps = threading.Semaphore(1)
    loader = FakeLoader(runner=lambda: FakeRunner(n_seq=1, steps=steps))
    async with live(loader) as server:
        reader, writer = await server.connect(chat_request(max_tokens=5, temperature=0, n_probs=0))
        await reader.readuntil(b"data: ")  # the first token has come; the next step waits for its permit
        (slot,) = (await server.api.client.get("/slots")).json()
        assert slot["is_processing"] is True
        assert set(slot) == {
            *("id", "n_ctx", "speculative", "is_processing", "id_task", "n_prompt_tokens", "n_checkpoints"),
            *("n_prompt_tokens_processed", "n_prompt_tokens_cache", "params", "next_token"),
        }
        assert list(slot["params"]) == list(RECORDED_PARAMS)
        assert (slot["params"]["temperature"], slot["params"]["max_tokens"]) == (0, 5)
        assert slot["next_token"][0]["n_remain"] == 5 - slot["next_token"][0]["n_decoded"]
        reply = await server.api.client.get("/slots?fail_on_no_slot=1")
        assert (reply.status_code, reply.json()["error"]["message"]) == (503, "no slot available")
        for _ in range(20):
            steps.release()
        await reader.readuntil(b"[DONE]")
        writer.close()


async def test_an_idle_slot_keeps_its_last_requests_parameters_and_none_of_its_counts(serve: Serve) -> None:
    async with serve(FakeLoader(runner=lambda: FakeRunner(n_seq=1))) as api:
        body = {"prompt": "Hi", "max_tokens": 3, "temperature": 0.25}
        assert (await api.client.post("/v1/completions", json=body)).status_code == 200
        loaded = api.pool.states()[0].loaded
        assert loaded is not None
        await idle(loaded.engine)
        (slot,) = (await api.client.get("/slots")).json()
        assert (slot["is_processing"], slot["n_prompt_tokens"]) == (False, 5)  # BOS, H, i, and two of three
        assert (slot["n_prompt_tokens_processed"], slot["n_prompt_tokens_cache"]) == (0, 0)
        assert (slot["params"]["max_tokens"], slot["params"]["temperature"]) == (3, 0.25)
        assert slot["next_token"] == [{"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}]
