"""Requests against a scripted server."""

import asyncio

import pytest

from server.bench.errors import BadReply, BenchError, Unreachable
from server.bench.probe import find_model, words_per_word
from server.bench.reply import ClientRecord
from server.bench.session import STARTED_EVENTS, Fields, ModelClient
from server.bench.target import Target
from tests.unit.bench.scripted import events, reply, scripted, text_event, usage_event

ONE_TOKEN = {"choices": [{"text": "a"}], "usage": {"prompt_tokens": 84, "completion_tokens": 1}}


async def test_fields_of_the_user_come_last_and_null_removes_one() -> None:
    async with scripted(lambda path, body: reply(ONE_TOKEN)) as server:
        session = ModelClient(server.target, "m", extra={"top_k": 1, "ignore_eos": None})
        await session.requests([session.body(["hi"], 3, stream=False)], 1)
    assert server.bodies == [{"model": "m", "prompt": "hi", "max_tokens": 3, "temperature": 0, "top_k": 1}]


async def test_a_chat_has_its_turns_as_messages() -> None:
    async with scripted(lambda path, body: events([text_event("a")], chunked=True)) as server:
        session = ModelClient(server.target, "m", chat=True)
        await session.stream(session.body(["hi", "ho", "he"], 3))
    assert server.paths == ["/v1/chat/completions"]
    assert [(m["role"], m["content"]) for m in server.bodies[0]["messages"]] == [
        ("user", "hi"),
        ("assistant", "ho"),
        ("user", "he"),
    ]


async def test_the_key_and_the_prefix_go_with_every_request() -> None:
    async with scripted(lambda path, body: reply(ONE_TOKEN)) as server:
        session = ModelClient(Target("127.0.0.1", server.port, "/openai", "secret"), "m")
        await session.requests([session.body(["hi"], 1, stream=False)], 1)
    assert server.paths == ["/openai/v1/completions"]
    assert "Authorization: Bearer secret" in server.heads[0]


@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
async def test_short_requests_share_a_connection_where_the_server_lets_them(framing: str) -> None:
    body = b'{"choices": [{"text": "a"}]}'
    framed = {
        "length": reply(body),
        "chunks": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\n" + body + b"\r\n0\r\n\r\n"],
        "close": [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 28\r\n\r\n" + body],
    }[framing]
    async with scripted(lambda path, _: framed) as server:
        session = ModelClient(server.target, "m")
        records = await session.requests([session.body(["hi"], 1, stream=False)] * 3, 1)
    assert [record.text for record in records] == ["a", "a", "a"]
    assert server.n_connections == (3 if framing == "close" else 1)


async def test_at_most_so_many_streams_run_at_once() -> None:
    running, most = 0, 0

    class Counting(ModelClient):
        async def stream(self, body: Fields, *, path: str = "") -> ClientRecord:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                return await ModelClient.stream(self, body, path=path)
            finally:
                running -= 1

    async with scripted(lambda path, body: events([text_event("a")], chunked=False)) as server:
        session = Counting(server.target, "m")
        records = await session.streams([session.body(["hi"], 1)] * 6, n_parallel=2)
    assert len(records) == 6
    assert most <= 2


async def test_the_first_failure_ends_the_others_and_is_told() -> None:
    async with scripted(lambda path, body: reply({"error": {"message": "no"}}, "500 Oops")) as server:
        session = ModelClient(server.target, "m")
        with pytest.raises(BadReply, match="500"):
            await session.streams([session.body(["hi"], 1)] * 4)


async def test_a_stream_runs_after_some_tokens_and_can_be_cut() -> None:
    stream = events([text_event("a")] * STARTED_EVENTS, chunked=True, done=False)[:-1]

    async with scripted(lambda path, body: stream, hangs_up=False) as server:
        session = ModelClient(server.target, "m")
        live = session.start(session.body(["hi"], 100))
        await asyncio.wait_for(live.running.wait(), 60)
        live.close()
        record = await live.finished()
    assert record.text == "a" * STARTED_EVENTS


async def test_a_request_without_an_answer_ends_at_its_limit() -> None:
    async with scripted(lambda path, body: [], hangs_up=False) as server:
        session = ModelClient(server.target, "m", limit_s=0.05)
        with pytest.raises(BenchError, match="did not end within"):
            await session.stream(session.body(["hi"], 1))


async def test_an_address_where_nobody_listens_is_unreachable() -> None:
    async with scripted(lambda path, body: []) as server:
        gone = server.target
    with pytest.raises(Unreachable, match=f"http://127.0.0.1:{gone.port}"):
        await find_model(gone, 60)


async def test_the_only_model_is_found_and_several_are_named() -> None:
    listed = {"data": [{"id": "a"}]}
    async with scripted(lambda path, body: reply(listed)) as server:
        assert await find_model(server.target, 60) == "a"
        listed["data"].append({"id": "b"})
        with pytest.raises(BenchError, match="--model: a, b"):
            await find_model(server.target, 60)


@pytest.mark.parametrize(("n_tokens", "words"), [(84, 1.0), (90, 1.0), (208, 0.4)])
async def test_prompts_weigh_the_same_whatever_the_tokenizer(n_tokens: int, words: float) -> None:
    said = {"choices": [{"text": "a"}], "usage": {"prompt_tokens": n_tokens, "completion_tokens": 1}}
    async with scripted(lambda path, body: reply(said)) as server:
        assert await words_per_word(ModelClient(server.target, "m")) == pytest.approx(words)


async def test_usage_at_the_end_of_a_stream_is_asked_for_and_read() -> None:
    async with scripted(lambda path, body: events([text_event("ab"), usage_event(7, 2)], chunked=True)) as server:
        session = ModelClient(server.target, "m")
        record = await session.stream(session.body(["hi"], 2))
    assert server.bodies[0]["stream_options"] == {"include_usage": True}
    assert (record.n_predicted, record.n_prompt) == (2, 7)
