import asyncio
import threading

import httpx
import pytest

from tests.api.conftest import Api, Serve
from tests.api.streams import events, posting
from tests.support.fakes import FakeLoader, FakeRunner

URL = "/v1/completions"


def scripted(reply: str = "there") -> FakeLoader:
    return FakeLoader(replies={"Hi": reply})


async def test_a_completion_has_its_text_usage_and_timings(serve: Serve) -> None:
    async with serve(scripted()) as api:
        reply = (await api.client.post(URL, json={"prompt": "Hi", "model": "gpt-4o-mini"})).json()
    assert reply["choices"] == [{"text": "there", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert reply["model"] == "demo"
    assert reply["usage"] == {
        "completion_tokens": 6,
        "prompt_tokens": 3,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert reply["timings"]["predicted_n"] == 6


async def test_stop_strings_of_the_settings_are_for_requests_that_name_none(serve: Serve) -> None:
    model = {"path": "demo.gguf", "load": "startup", "reverse_prompt": [" tw"]}
    async with serve(scripted("one two three"), models={"demo": model}) as api:
        for body, text in (({}, "one"), ({"stop": []}, "one"), ({"stop": [" th"]}, "one two")):
            reply = await api.client.post(URL, json={"prompt": "Hi", **body})
            assert reply.json()["choices"][0]["text"] == text


async def test_a_seed_repeats_a_text(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi", "max_tokens": 8, "seed": 5}
    texts = [
        (await client.post(URL, json=body | extra)).json()["choices"][0]["text"] for extra in ({}, {}, {"seed": 6})
    ]
    assert texts[0] == texts[1] != texts[2]


async def test_a_batch_of_prompts_with_n_choices_is_numbered_through(client: httpx.AsyncClient) -> None:
    body = {"prompt": ["a", [98], ["c", 100]], "n": 2, "max_tokens": 2, "seed": 1}
    reply = (await client.post(URL, json=body)).json()
    assert [c["index"] for c in reply["choices"]] == list(range(6))
    assert reply["usage"]["completion_tokens"] == 12
    alone = (await client.post(URL, json=body | {"prompt": [98]})).json()
    assert [c["text"] for c in reply["choices"][2:4]] == [c["text"] for c in alone["choices"]]


async def test_a_batch_streams_all_its_choices(client: httpx.AsyncClient) -> None:
    body = {
        "prompt": ["a", "b"],
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    parsed = events((await client.post(URL, json=body)).text)
    ends = [c["choices"][0]["index"] for c in parsed if c["choices"] and c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1]
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"]["completion_tokens"] == 4


async def test_echo_puts_the_prompt_in_front(serve: Serve) -> None:
    async with serve(scripted()) as api:
        body = {"prompt": "Hi", "echo": True}
        whole = (await api.client.post(URL, json=body)).json()
        streamed = events((await api.client.post(URL, json=body | {"stream": True})).text)
    assert whole["choices"][0]["text"] == "Hithere"
    assert "".join(c["choices"][0]["text"] for c in streamed) == "Hithere"


async def test_logprobs_have_llama_servers_shape(client: httpx.AsyncClient) -> None:
    reply = (await client.post(URL, json={"prompt": "Hi", "max_tokens": 2, "logprobs": 2})).json()
    content = reply["choices"][0]["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in content] == [2, 2]
    assert list(content[0]) == ["id", "token", "bytes", "logprob", "top_logprobs"]


async def test_logprobs_that_are_a_number_have_openais_lists_beside(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi", "max_tokens": 3, "logprobs": 2}
    choice = (await client.post(URL, json=body)).json()["choices"][0]
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"] == [0, 1, 2]
    assert lists["token_logprobs"] == [entry["logprob"] for entry in lists["content"]]
    assert all(len(top) in (2, 3) for top in lists["top_logprobs"])
    streamed = events((await client.post(URL, json=body | {"stream": True})).text)
    parts = [part["choices"][0]["logprobs"] for part in streamed if part["choices"][0]["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset", "content"):
        assert [entry for part in parts for entry in part[name]] == lists[name]
    for own in ({"logprobs": True}, {"n_probs": 2}):
        reply = (await client.post(URL, json={"prompt": "Hi", "max_tokens": 1, **own})).json()
        assert list(reply["choices"][0]["logprobs"]) == ["content"]


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
async def test_an_echo_with_logprobs_scores_the_prompt(client: httpx.AsyncClient, max_tokens: int) -> None:
    """As lm-evaluation-harness asks for it: tokens, several prompts, one token more than the prompt's."""
    prompts = ["a prompt that is longer than a step's outputs", "Hi"]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0}
    await client.post(URL, json={"prompt": prompts[0], "max_tokens": 1})
    whole = (await client.post(URL, json=body)).json()
    streamed = events((await client.post(URL, json=body | {"stream": True})).text)
    for choice, prompt in zip(whole["choices"], prompts, strict=True):
        lists = choice["logprobs"]
        assert choice["text"].startswith(prompt)
        assert len(choice["text"]) == len(prompt) + max_tokens
        assert len(lists["tokens"]) == 1 + len(prompt) + max_tokens  # the vocabulary adds one
        assert lists["text_offset"] == [0, *range(len(prompt) + max_tokens)]
        assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
        for logprob, top in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
            assert logprob in top.values()
            assert -2.0 <= logprob <= max(top.values()) == -0.1
        assert len(lists["content"]) == max_tokens
        parts = [c["choices"][0]["logprobs"] for c in streamed if c["choices"][0]["index"] == choice["index"]]
        assert [t for part in parts if part for t in part["token_logprobs"]] == lists["token_logprobs"]
    assert whole["usage"]["prompt_tokens"] == sum(len(prompt) + 1 for prompt in prompts)
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_every_choice_has_its_prompts_log_probabilities(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi there", "echo": True, "logprobs": 0, "max_tokens": 2, "n": 2, "best_of": 3, "seed": 1}
    one, two = (await client.post(URL, json=body)).json()["choices"]
    assert one["logprobs"]["token_logprobs"][:9] == two["logprobs"]["token_logprobs"][:9]
    assert [len(top) for top in one["logprobs"]["top_logprobs"][1:]] == [1] * 10


async def test_a_prompt_past_the_context_is_a_400_with_both_counts(client: httpx.AsyncClient) -> None:
    for stream in (False, True):
        reply = await client.post(URL, json={"prompt": "x" * 300, "stream": stream})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["type"] == "exceed_context_size_error"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (301, 256)


async def test_one_prompt_too_long_stops_the_whole_batch(api: Api) -> None:
    reply = await api.client.post(URL, json={"prompt": ["short", "x" * 300]})
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "exceed_context_size_error"


async def test_an_unknown_model_is_a_404_before_anything_is_prepared(serve: Serve) -> None:
    models = {name: {"path": f"{name}.gguf", "load": "on_demand"} for name in ("one", "two")}
    async with serve(models=models) as api:
        reply = await api.client.post(URL, json={"prompt": "Hi", "model": "three"})
    assert reply.status_code == 404
    assert "one, two" in reply.json()["error"]["message"]
    assert api.loader.loaded == []


async def test_a_wrong_body_loads_no_model(serve: Serve) -> None:
    models = {"one": {"path": "one.gguf", "load": "on_demand"}}
    async with serve(models=models) as api:
        reply = await api.client.post(URL, json={"prompt": 5})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"
    assert api.loader.loaded == []


async def test_the_best_of_several_choices_is_shown(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi", "best_of": 3, "n": 2, "max_tokens": 3, "seed": 1}
    reply = (await client.post(URL, json=body)).json()
    every = (await client.post(URL, json={**body, "n": 3})).json()
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    assert {c["text"] for c in reply["choices"]} <= {c["text"] for c in every["choices"]}
    assert reply["choices"][0]["logprobs"] is None
    assert reply["usage"]["completion_tokens"] == 9


async def test_a_suffix_is_filled_up_to(serve: Serve) -> None:
    async with serve(FakeLoader(replies={"\x03": "middle"})) as api:
        reply = await api.client.post(URL, json={"prompt": "before", "suffix": "behind"})
    assert reply.json()["choices"][0]["text"] == "middle"
    async with serve(FakeLoader(fim="none")) as api:
        reply = await api.client.post(URL, json={"prompt": "before", "suffix": "behind"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "suffix")


async def test_probabilities_after_sampling_have_a_shape_of_their_own(client: httpx.AsyncClient) -> None:
    body = {"prompt": "Hi", "max_tokens": 1, "logprobs": 2, "post_sampling_probs": True}
    whole = (await client.post(URL, json=body)).json()["choices"][0]["logprobs"]["content"]
    streamed = events((await client.post(URL, json={**body, "stream": True})).text)
    for (token,) in (whole, streamed[0]["choices"][0]["logprobs"]["content"]):
        assert list(token) == ["id", "token", "bytes", "prob", "top_probs"]
        assert 0 < token["prob"] <= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_fields_of_older_servers_are_named_in_a_header(client: httpx.AsyncClient, stream: bool) -> None:
    reply = await client.post(URL, json={"prompt": "Hi", "max_tokens": 1, "tfs_z": 0.5, "stream": stream})
    assert reply.status_code == 200
    assert reply.headers["x-llamapool-warning"].startswith("tfs_z is ignored")


def held_back(n_steps: int) -> tuple[FakeRunner, threading.Semaphore, asyncio.Event]:
    """A runner that does `n_steps` until the semaphore lets it on, and an event for the one it stops at."""
    steps, stopped = threading.Semaphore(n_steps), asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(_: object) -> None:
        if len(runner.batches) == n_steps - 1:
            loop.call_soon_threadsafe(stopped.set)

    runner = FakeRunner(steps=steps, on_decode=tell)
    return runner, steps, stopped


async def test_a_disconnect_in_the_middle_of_a_prompt_frees_its_slot(serve: Serve) -> None:
    runner, steps, stopped = held_back(1)
    async with serve(FakeLoader(runner=lambda: runner)) as api:
        async with posting(api.app, URL, {"prompt": "x" * 250, "stream": True}) as exchange:
            await stopped.wait()
            exchange.disconnect()
            await asyncio.wait([exchange.task])
        steps.release(10_000)
    assert exchange.messages.empty()
    assert len(runner.samplers[0].accepted) == 251, "only the prompt was seen"


async def test_each_event_is_a_chunk_of_its_own(serve: Serve) -> None:
    async with (
        serve(scripted("abc")) as api,
        posting(api.app, URL, {"prompt": "Hi", "stream": True}) as exchange,
    ):
        assert await exchange.start() == 200
        parts = [part async for part in exchange.chunks()]
    assert all(part.startswith(b"data: ") and part.endswith(b"\n\n") and part.count(b"\n") == 2 for part in parts)
    assert parts[-1] == b"data: [DONE]\n\n"
