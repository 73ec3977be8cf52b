"""``POST /completion``, ``/completions``, ``/infill`` over the fake model."""

import json
import threading
from typing import Any

import httpx
import pytest

from server.engine.lora import Adapter
from tests.api.conftest import Api, Serve
from tests.api.streams import native_events, posting
from tests.support.fakes import FakeLoader

URL = "/completion"
GREEDY = {"prompt": "Hi", "temperature": 0, "n_predict": 4}


def scripted(reply: str = "there", **of: Any) -> FakeLoader:
    return FakeLoader(replies={"Hi": reply}, **of)


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_a_completion_is_one_object(serve: Serve, path: str) -> None:
    async with serve(scripted("one\ntwo")) as api:
        asked = {"prompt": "Hi", "model": "gpt-4o-mini", "return_tokens": True}
        body = (await api.client.post(path, json=asked)).json()
    assert (body["content"], body["stop_type"], body["has_new_line"]) == ("one\ntwo", "eos", True)
    assert (body["prompt"], body["model"], body["index"], body["stop"]) == ("<s>Hi", "demo", 0, True)
    assert body["tokens"] == [*b"one\ntwo", 257]
    assert (body["tokens_evaluated"], body["tokens_predicted"], body["tokens_cached"]) == (3, 8, 10)
    assert (body["timings"]["prompt_n"], body["timings"]["predicted_n"]) == (3, 8)
    assert "completion_probabilities" not in body


async def test_fields_of_a_request_have_their_effect(serve: Serve) -> None:
    indented = {"content": "    a\n    b\n", "stop_type": "limit"}
    async with serve(scripted("    a\n    b\nc")) as api:
        await api.expect(f"POST {URL}", {"prompt": "Hi", "n_indent": 4}, 200, indented)
        for fields, part in (
            (
                {"n_predict": -1, "ignore_eos": True},
                {"stop_type": "limit", "truncated": True, "tokens_evaluated": 3, "tokens_predicted": 253},
            ),
            ({"id_slot": 2}, {"id_slot": 2}),
            ({"id_slot": 0}, {"id_slot": 0}),
            ({"generation_prompt": "<think>"}, {"generation_settings": {"generation_prompt": "<think>"}}),
        ):
            await api.expect(f"POST {URL}", {**GREEDY, "prompt": "Ho", **fields}, 200, part)


async def test_a_stop_string_is_named_and_its_tokens_are_counted(serve: Serve) -> None:
    asked = {"prompt": "Hi", "stop": [" tw", "x"], "return_tokens": True, "n_probs": 1}
    shown = {"content": "one", "stop_type": "word", "stopping_word": " tw", "tokens": list(b"one tw")}
    async with serve(scripted("one two three")) as api:
        part = {**shown, "generation_settings": {"stop": [" tw", "x"]}}
        body = (await api.expect(f"POST {URL}", asked, 200, part)).json()
    assert [p["token"] for p in body["completion_probabilities"]] == ["o", "n", "e"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_context_without_samplers_in_its_graph_says_that_it_has_none(api: Api, stream: bool) -> None:
    wanted = {**GREEDY, "stream": stream, "backend_sampling": True}
    reply = await api.expect(f"POST {URL}", wanted)
    assert reply.headers["x-llamapool-warning"].startswith("backend_sampling is ignored")
    for plain in (False, None):
        reply = await api.client.post(URL, json={**wanted, "backend_sampling": plain})
        assert "x-llamapool-warning" not in reply.headers


async def test_nothing_to_predict_puts_the_prompt_into_the_cache(api: Api) -> None:
    body = (await api.client.post(URL, json={**GREEDY, "n_predict": 0})).json()
    assert (body["content"], body["tokens_predicted"], body["tokens_cached"]) == ("", 0, 3)
    again = (await api.client.post(URL, json=GREEDY)).json()
    assert again["timings"]["cache_n"] == 2


async def test_several_prompts_are_an_array(client: httpx.AsyncClient) -> None:
    prompts: list[Any] = ["a", [98], ["c", 100], {"prompt_string": "e"}]
    replies = (await client.post(URL, json={**GREEDY, "prompt": prompts, "n_cmpl": 2})).json()
    assert [(r["index"], r["prompt"]) for r in replies] == [
        (2 * i + k, text) for i, text in enumerate(["<s>a", "b", "<s>cd", "<s>e"]) for k in (0, 1)
    ]
    alone = (await client.post(URL, json={**GREEDY, "prompt": [98]})).json()
    assert replies[2]["content"] == alone["content"]


async def test_several_prompts_are_told_apart_in_a_stream(client: httpx.AsyncClient) -> None:
    body = {**GREEDY, "prompt": ["a", "b"], "stream": True, "n": 2}
    parts = native_events((await client.post(URL, json=body)).text)
    texts = {i: "".join(p["content"] for p in parts if p["index"] == i) for i in range(4)}
    whole = (await client.post(URL, json={**body, "stream": False})).json()
    assert texts == {r["index"]: r["content"] for r in whole}
    assert sorted(p["index"] for p in parts if p["stop"]) == [0, 1, 2, 3]


async def test_response_fields_are_taken_out_of_the_object(client: httpx.AsyncClient) -> None:
    fields = ["content", "generation_settings/n_predict", "nope", "timings/nope"]
    body = {**GREEDY, "response_fields": fields}
    shown = (await client.post(URL, json=body)).json()
    assert list(shown) == ["content", "generation_settings/n_predict"]
    assert shown["generation_settings/n_predict"] == 4
    last = native_events((await client.post(URL, json={**body, "stream": True})).text)[-1]
    assert list(last) == ["content", "generation_settings/n_predict"]


async def test_probabilities_have_ids_bytes_and_alternatives(client: httpx.AsyncClient) -> None:
    body = {**GREEDY, "n_probs": 2}
    whole = (await client.post(URL, json=body)).json()["completion_probabilities"]
    parts = native_events((await client.post(URL, json={**body, "stream": True})).text)
    assert whole == [p for part in parts[:-1] for p in part["completion_probabilities"]]
    assert list(whole[0]) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert len(whole) == 4
    assert [len(token["top_logprobs"]) for token in whole] == [2] * 4


async def test_probabilities_after_sampling_are_no_logarithms(client: httpx.AsyncClient) -> None:
    body = {**GREEDY, "n_probs": 2, "post_sampling_probs": True}
    (token, *_) = (await client.post(URL, json=body)).json()["completion_probabilities"]
    assert list(token) == ["id", "token", "bytes", "prob", "top_probs"]
    assert token["prob"] == token["top_probs"][0]["prob"] == 1.0


async def test_timings_and_progress_come_where_asked_for(client: httpx.AsyncClient) -> None:
    body = {**GREEDY, "prompt": "x" * 200, "stream": True, "timings_per_token": True, "return_progress": True}
    parts = native_events((await client.post(URL, json=body)).text)
    progress = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    assert [step["processed"] for step in progress] == sorted({step["processed"] for step in progress})
    assert progress[-1]["processed"] == progress[-1]["total"] == 201
    assert all("timings" in part for part in parts)
    plain = native_events((await client.post(URL, json={**GREEDY, "stream": True})).text)
    assert not any("timings" in part or "prompt_progress" in part for part in plain[:-1])


async def test_a_request_may_have_adapters_of_its_own(serve: Serve) -> None:
    adapters = (Adapter(0, "zero.gguf", 0.0), Adapter(1, "one.gguf", 0.0))
    async with serve(FakeLoader(adapters=adapters)) as api:
        plain = (await api.client.post(URL, json=GREEDY)).json()
        tuned = (await api.client.post(URL, json={**GREEDY, "lora": [{"id": 1, "scale": 0.5}]})).json()
        off = (await api.client.post(URL, json={**GREEDY, "lora": [{"id": 1, "scale": 0}]})).json()
        wrong = {**GREEDY, "lora": [{"id": 2, "scale": 1}]}
        await api.expect(f"POST {URL}", wrong, 400, {"error": {"param": "lora"}})
    assert tuned["content"] != plain["content"] == off["content"]
    assert tuned["generation_settings"]["lora"] == [{"id": 1, "scale": 0.5}]
    assert off["generation_settings"]["lora"] == [{"id": 1, "scale": 0.0}]


@pytest.mark.parametrize("stream", [False, True])
async def test_fields_of_older_servers_are_taken_and_named(client: httpx.AsyncClient, stream: bool) -> None:
    old = {"tfs_z": 0.9, "penalize_nl": False, "system_prompt": "S", "image_data": [{"data": "", "id": 1}]}
    reply = await client.post(URL, json={**GREEDY, **old, "samplers": "kfypmt", "stream": stream})
    assert reply.status_code == 200
    said = reply.headers["x-llamapool-warning"].split("; ")
    named = ["image_data", "system_prompt", "penalize_nl", "tfs_z", "tfs_z"]
    assert sorted(line.split()[0] for line in said) == sorted(named)
    whole = native_events(reply.text)[-1] if stream else reply.json()
    assert whole["prompt"] == "<s>Hi"
    assert whole["generation_settings"]["samplers"] == ["top_k", "typ_p", "top_p", "min_p", "temperature"]


async def test_pings_come_as_often_as_the_request_asks(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(steps=steps), server={"sse_ping_interval": 3600}) as api:
        body = {**GREEDY, "n_predict": 1, "stream": True, "sse_ping_interval": 1}
        async with posting(api.app, URL, body) as exchange:
            assert await exchange.start() == 200
            assert await exchange.chunk() == b":\n\n"
            steps.release(1000)
            assert b'"stop":true' in b"".join([part async for part in exchange.chunks()])


async def test_infill_writes_what_is_between(serve: Serve) -> None:
    body = {"input_prefix": "before", "input_suffix": "after", "prompt": "x"}
    async with serve(FakeLoader(replies={"\x02after\x03": "middle"})) as api:
        whole = {"content": "middle", "prompt": "<s>\x01beforex\x02after\x03"}
        await api.expect("POST /infill", body, 200, whole)
        parts = native_events((await api.client.post("/infill", json={**body, "stream": True})).text)
    assert "".join(part["content"] for part in parts) == "middle"
    async with serve(models={"demo": {"path": "demo.gguf", "load": "startup", "spm_infill": True}}) as api:
        suffix_first = {"prompt": "<s>\x02after\x01before\x03"}
        await api.expect("POST /infill", {**body, "prompt": "", "n_predict": 1}, 200, suffix_first)


async def test_infill_needs_a_model_that_learned_it(serve: Serve) -> None:
    missing = "".join(f"{part} token is missing. " for part in ("prefix", "suffix", "middle"))
    error = {"code": 501, "message": f"Infill is not supported by this model: {missing}", "type": "not_supported_error"}
    async with serve(FakeLoader(fim="none")) as api:
        await api.expect("POST /infill", {"input_prefix": "a", "input_suffix": "b"}, 501, {"error": error})


async def test_what_a_reply_can_hold_is_bounded(api: Api) -> None:
    body = {"prompt": ["a"] * 8, "n": 4, "n_probs": 1000, "n_predict": 200}
    for path in ("/completion", "/v1/completions"):
        await api.expect(f"POST {path}", body, 400, {"error": {"param": "n_probs"}})
    await api.expect("POST /completion", {**body, "n_probs": 20, "n_predict": 2})
    biased = {"prompt": ["a"] * 5, "n_predict": 1, "logit_bias": [[i % 200, 1.0] for i in range(65536)]}
    await api.expect("POST /completion", biased, 400, ({"error": {"param": "logit_bias"}}, "327680 tokens"))
    await api.expect("POST /completion", biased | {"prompt": "a"})


CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}


async def test_a_chat_tells_its_prompt_its_raw_text_and_its_settings(client: httpx.AsyncClient) -> None:
    body = {**HI, "verbose": True, "temperature": 0.25, "return_tokens": True}
    reply = (await client.post(CHAT, json=body)).json()
    told = reply["__verbose"]
    shown = (await client.post("/apply-template", json=HI)).json()["prompt"]
    assert told["prompt"] == "<s>" + shown
    assert told["content"] == reply["choices"][0]["message"]["content"]
    assert len(told["tokens"]) == told["tokens_predicted"] == 4
    assert told["generation_settings"]["temperature"] == 0.25
    assert told["generation_settings"]["generation_prompt"] == "<|im_start|>assistant\n"
    assert told["stop_type"] == "limit"
    several = {"prompt": ["Hi", "Ho"], "n": 2, "max_tokens": 2, "ignore_eos": True, "verbose": True}
    reply = (await client.post("/v1/completions", json=several)).json()
    assert len(reply["choices"]) == 4
    assert reply["__verbose"]["content"] == reply["choices"][0]["text"]


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), ("/v1/completions", {"prompt": "Hi", "max_tokens": 4})])
async def test_a_stream_tells_it_once_at_the_end(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    text = (await client.post(path, json={**body, "stream": True, "verbose": True})).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    (told,) = [event["__verbose"] for event in events if "__verbose" in event]
    assert (told["stop"], told["tokens_predicted"]) == (True, 4)
    assert "Hi" in told["prompt"]


async def test_the_server_may_be_verbose_unless_a_request_says_otherwise(serve: Serve) -> None:
    async with serve(FakeLoader(), server={"verbosity": 10}) as api:
        assert "__verbose" in (await api.client.post(CHAT, json=HI)).json()
        assert "__verbose" not in (await api.client.post(CHAT, json={**HI, "verbose": False})).json()
        native = (await api.client.post("/completion", json={"prompt": "Hi", "n_predict": 1})).json()
        assert "__verbose" not in native
        assert native["generation_settings"]["generation_prompt"] == ""
