"""llama-server's own API over a fake model: /completion, /infill, and its `verbose` field in OpenAI's endpoints."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from server.engine.lora import Adapter
from tests.api.conftest import MODELS, Api, Serve
from tests.api.streams import native_events, posting
from tests.support.fakes import FakeLoader

URL = "/completion"
GREEDY = {"prompt": "Hi", "temperature": 0, "n_predict": 4}


def scripted(reply: str) -> FakeLoader:
    return FakeLoader(replies={"Hi": reply})


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_completion_has_llama_servers_fields(serve: Serve, path: str) -> None:
    async with serve(scripted("one\ntwo")) as api:
        body = {"prompt": "Hi", "model": "gpt-4o-mini", "return_tokens": True}
        reply = (await api.client.post(path, json=body)).json()
    assert (reply["content"], reply["stop_type"], reply["has_new_line"]) == ("one\ntwo", "eos", True)
    assert (reply["prompt"], reply["model"], reply["index"], reply["stop"]) == ("<s>Hi", "demo", 0, True)
    assert reply["tokens"] == [*b"one\ntwo", 257]
    assert (reply["tokens_evaluated"], reply["tokens_predicted"], reply["tokens_cached"]) == (3, 8, 10)
    assert (reply["timings"]["prompt_n"], reply["timings"]["predicted_n"]) == (3, 8)
    assert "completion_probabilities" not in reply


async def test_request_fields_take_effect(serve: Serve) -> None:
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


@pytest.mark.parametrize("n", [1, 2])
async def test_a_dry_sampler_is_prepared_outside_of_the_step_thread(serve: Serve, n: int) -> None:
    """It takes seconds with many sequence breakers. `FakeRunner` fails otherwise."""
    async with serve(scripted("one")) as api:
        await api.expect(f"POST {URL}", {"prompt": "Hi", "dry_multiplier": 1.0, "seed": 5, "n_cmpl": n}, part="one")


async def test_a_prepared_dry_sampler_does_not_wait_for_long_texts_of_other_requests(serve: Serve) -> None:
    async with serve(scripted("one")) as api:
        body, unblock = {"prompt": "Hi", "dry_multiplier": 1.0}, threading.Event()
        await api.expect(f"POST {URL}", body, part="one")
        api.app.state.services.prepare_long.submit(unblock.wait, 60)
        try:
            async with asyncio.timeout(30):
                await api.expect(f"POST {URL}", body, part="one")
        finally:
            unblock.set()


async def test_reply_names_the_stop_string_and_includes_its_tokens(serve: Serve) -> None:
    body = {"prompt": "Hi", "stop": [" tw", "x"], "return_tokens": True, "n_probs": 1}
    fields = {"content": "one", "stop_type": "word", "stopping_word": " tw", "tokens": list(b"one tw")}
    async with serve(scripted("one two three")) as api:
        part = {**fields, "generation_settings": {"stop": [" tw", "x"]}}
        reply = (await api.expect(f"POST {URL}", body, 200, part)).json()
    assert [p["token"] for p in reply["completion_probabilities"]] == ["o", "n", "e"]


@pytest.mark.parametrize("stream", [False, True])
async def test_unsupported_backend_sampling_is_ignored_with_a_warning(api: Api, stream: bool) -> None:
    for value, is_ignored in ((True, True), (False, False), (None, False)):
        reply = await api.expect(f"POST {URL}", {**GREEDY, "stream": stream, "backend_sampling": value})
        warning = reply.headers.get("x-llamapool-warning", "")
        assert warning.startswith("backend_sampling is ignored") if is_ignored else warning == ""


async def test_n_predict_0_only_caches_the_prompt(api: Api) -> None:
    body = (await api.client.post(URL, json={**GREEDY, "n_predict": 0})).json()
    assert (body["content"], body["tokens_predicted"], body["tokens_cached"]) == ("", 0, 3)
    again = (await api.client.post(URL, json=GREEDY)).json()
    assert again["timings"]["cache_n"] == 2


async def test_several_prompts_have_numbered_choices(client: httpx.AsyncClient) -> None:
    body = {**GREEDY, "prompt": ["a", [98], ["c", 100], {"prompt_string": "e"}], "n_cmpl": 2}
    replies = (await client.post(URL, json=body)).json()
    assert [(r["index"], r["prompt"]) for r in replies] == [
        (2 * i + k, text) for i, text in enumerate(["<s>a", "b", "<s>cd", "<s>e"]) for k in (0, 1)
    ]
    alone = (await client.post(URL, json={**GREEDY, "prompt": [98]})).json()
    assert replies[2]["content"] == alone["content"]
    parts = native_events((await client.post(URL, json={**body, "stream": True})).text)
    texts = {i: "".join(p["content"] for p in parts if p["index"] == i) for i in range(8)}
    assert texts == {r["index"]: r["content"] for r in replies}
    assert sorted(p["index"] for p in parts if p["stop"]) == list(range(8))


@pytest.mark.parametrize(("seed", "seeds"), [(7, [7, 8]), (-1, [2**32 - 1] * 2)])
async def test_choices_show_their_own_seeds(client: httpx.AsyncClient, seed: int, seeds: list[int]) -> None:
    replies = (await client.post(URL, json={"prompt": "a", "n_predict": 1, "n": 2, "seed": seed})).json()
    assert [reply["generation_settings"]["seed"] for reply in replies] == seeds


async def test_more_prompts_than_an_idle_server_queues_are_refused(serve: Serve) -> None:
    models = {"demo": {"path": "a.gguf", "max_queue": 4}}
    async with serve(FakeLoader(), models=models) as api:
        parts = ({"error": {"param": "prompt"}}, "max_queue")
        await api.expect(f"POST {URL}", {**GREEDY, "prompt": ["a"] * 64}, 400, parts)
        await api.expect(f"POST {URL}", {**GREEDY, "prompt": ["a"] * 5})
        await api.expect(f"POST {URL}", {**GREEDY, "prompt": "a", "n": 64})


async def test_response_fields_selects_the_fields_of_the_reply(client: httpx.AsyncClient) -> None:
    fields = ["content", "generation_settings/n_predict", "nope", "timings/nope"]
    body = {**GREEDY, "response_fields": fields}
    reply = (await client.post(URL, json=body)).json()
    assert list(reply) == ["content", "generation_settings/n_predict"]
    assert reply["generation_settings/n_predict"] == 4
    last = native_events((await client.post(URL, json={**body, "stream": True})).text)[-1]
    assert list(last) == ["content", "generation_settings/n_predict"]


async def test_n_probs_returns_alternatives_as_logprobs_or_probabilities(client: httpx.AsyncClient) -> None:
    body = {**GREEDY, "n_probs": 2}
    whole = (await client.post(URL, json=body)).json()["completion_probabilities"]
    parts = native_events((await client.post(URL, json={**body, "stream": True})).text)
    assert whole == [p for part in parts[:-1] for p in part["completion_probabilities"]]
    assert list(whole[0]) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert [len(token["top_logprobs"]) for token in whole] == [2] * 4
    sampled = (await client.post(URL, json={**body, "post_sampling_probs": True})).json()
    token = sampled["completion_probabilities"][0]
    assert list(token) == ["id", "token", "bytes", "prob", "top_probs"]
    assert token["prob"] == token["top_probs"][0]["prob"] == 1.0


async def test_timings_and_prompt_progress_are_streamed_on_request(client: httpx.AsyncClient) -> None:
    body = {**GREEDY, "prompt": "x" * 200, "stream": True, "timings_per_token": True, "return_progress": True}
    parts = native_events((await client.post(URL, json=body)).text)
    progress = [part["prompt_progress"] for part in parts if "prompt_progress" in part]
    assert [step["processed"] for step in progress] == sorted({step["processed"] for step in progress})
    assert progress[-1]["processed"] == progress[-1]["total"] == 201
    assert all("timings" in part for part in parts)
    plain = native_events((await client.post(URL, json={**GREEDY, "stream": True})).text)
    assert not any("timings" in part or "prompt_progress" in part for part in plain[:-1])


async def test_request_selects_lora_adapters_and_scales(serve: Serve) -> None:
    adapters = (Adapter(0, "zero.gguf", 0.0), Adapter(1, "one.gguf", 0.0))
    async with serve(FakeLoader(adapters=adapters)) as api:
        plain = (await api.client.post(URL, json=GREEDY)).json()
        adapted = (await api.client.post(URL, json={**GREEDY, "lora": [{"id": 1, "scale": 0.5}]})).json()
        off = (await api.client.post(URL, json={**GREEDY, "lora": [{"id": 1, "scale": 0}]})).json()
        unknown = {**GREEDY, "lora": [{"id": 2, "scale": 1}]}
        await api.expect(f"POST {URL}", unknown, 400, {"error": {"param": "lora"}})
    assert adapted["content"] != plain["content"] == off["content"]
    assert adapted["generation_settings"]["lora"] == [{"id": 1, "scale": 0.5}]
    assert off["generation_settings"]["lora"] == [{"id": 1, "scale": 0.0}]


@pytest.mark.parametrize("stream", [False, True])
async def test_obsolete_fields_are_ignored_with_a_warning(client: httpx.AsyncClient, stream: bool) -> None:
    old = {"tfs_z": 0.9, "penalize_nl": False, "system_prompt": "S", "image_data": [{"data": "", "id": 1}]}
    reply = await client.post(URL, json={**GREEDY, **old, "samplers": "kfypmt", "stream": stream})
    assert reply.status_code == 200
    warnings = reply.headers["x-llamapool-warning"].split("; ")
    ignored = ["image_data", "system_prompt", "penalize_nl", "tfs_z", "tfs_z"]
    assert sorted(warning.split()[0] for warning in warnings) == sorted(ignored)
    whole = native_events(reply.text)[-1] if stream else reply.json()
    assert whole["prompt"] == "<s>Hi"
    assert whole["generation_settings"]["samplers"] == ["top_k", "typ_p", "top_p", "min_p", "temperature"]


async def test_request_sets_the_sse_ping_interval(serve: Serve) -> None:
    steps = threading.Semaphore(0)
    async with serve(FakeLoader(steps=steps), server={"sse_ping_interval": 3600}) as api:
        body = {**GREEDY, "n_predict": 1, "stream": True, "sse_ping_interval": 1}
        async with posting(api.app, URL, body) as exchange:
            assert await exchange.start() == 200
            assert await exchange.chunk() == b":\n\n"
            steps.release(1000)
            assert b'"stop":true' in b"".join([part async for part in exchange.chunks()])


async def test_infill_completes_the_text_between_prefix_and_suffix(serve: Serve) -> None:
    body = {"input_prefix": "before", "input_suffix": "after", "prompt": "x"}
    async with serve(FakeLoader(replies={"\x02after\x03": "middle"})) as api:
        whole = {"content": "middle", "prompt": "<s>\x01beforex\x02after\x03"}
        await api.expect("POST /infill", body, 200, whole)
        parts = native_events((await api.client.post("/infill", json={**body, "stream": True})).text)
    assert "".join(part["content"] for part in parts) == "middle"
    async with serve(models={"demo": {"path": "demo.gguf", "load": "startup", "spm_infill": True}}) as api:
        suffix_first = {"prompt": "<s>\x02after\x01before\x03"}
        await api.expect("POST /infill", {**body, "prompt": "", "n_predict": 1}, 200, suffix_first)


async def test_infill_without_fim_tokens_is_a_501(serve: Serve) -> None:
    missing = "".join(f"{part} token is missing. " for part in ("prefix", "suffix", "middle"))
    error = {"code": 501, "message": f"Infill is not supported by this model: {missing}", "type": "not_supported_error"}
    async with serve(FakeLoader(fim="none")) as api:
        await api.expect("POST /infill", {"input_prefix": "a", "input_suffix": "b"}, 501, {"error": error})


async def test_size_of_probabilities_and_logit_bias_is_limited(api: Api) -> None:
    body = {"prompt": ["a"] * 8, "n": 4, "n_probs": 1000, "n_predict": 200}
    for path in ("/completion", "/v1/completions"):
        await api.expect(f"POST {path}", body, 400, {"error": {"param": "n_probs"}})
    await api.expect("POST /completion", {**body, "n_probs": 20, "n_predict": 2})
    biased = {"prompt": ["a"] * 5, "n_predict": 1, "logit_bias": [[i % 200, 1.0] for i in range(65536)]}
    await api.expect("POST /completion", biased, 400, ({"error": {"param": "logit_bias"}}, "327680 tokens"))
    await api.expect("POST /completion", biased | {"prompt": "a"})
    long = {"prompt": ["a"] * 40, "n_predict": 1, "generation_prompt": "a" * (1 << 20)}
    await api.expect("POST /completion", long, 400, "generation_settings of 40 choices")
    await api.expect("POST /completion", long | {"prompt": "a"})


CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}


async def test_verbose_chat_returns_prompt_raw_text_and_settings(client: httpx.AsyncClient) -> None:
    body = {**HI, "verbose": True, "temperature": 0.25, "return_tokens": True}
    reply = (await client.post(CHAT, json=body)).json()
    verbose = reply["__verbose"]
    prompt = (await client.post("/apply-template", json=HI)).json()["prompt"]
    assert verbose["prompt"] == "<s>" + prompt
    assert verbose["content"] == reply["choices"][0]["message"]["content"]
    assert len(verbose["tokens"]) == verbose["tokens_predicted"] == 4
    assert verbose["generation_settings"]["temperature"] == 0.25
    assert verbose["generation_settings"]["generation_prompt"] == "<|im_start|>assistant\n"
    assert verbose["stop_type"] == "limit"
    several = {"prompt": ["Hi", "Ho"], "n": 2, "max_tokens": 2, "ignore_eos": True, "verbose": True}
    reply = (await client.post("/v1/completions", json=several)).json()
    assert len(reply["choices"]) == 4
    assert reply["__verbose"]["content"] == reply["choices"][0]["text"]


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), ("/v1/completions", {"prompt": "Hi", "max_tokens": 4})])
async def test_verbose_stream_returns_the_verbose_object_once_at_the_end(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    text = (await client.post(path, json={**body, "stream": True, "verbose": True})).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    (verbose,) = [event["__verbose"] for event in events if "__verbose" in event]
    assert (verbose["stop"], verbose["tokens_predicted"]) == (True, 4)
    assert "Hi" in verbose["prompt"]


@pytest.mark.parametrize(
    ("constraint", "shown"),
    [
        ({"grammar": 'root ::= "ab"'}, 'root ::= "ab"'),
        ({"json_schema": {"type": "null"}}, '%llguidance {}\nstart: %json {"type":"null"}'),
    ],
)
async def test_settings_show_the_models_default_grammar_and_reasoning_format(
    serve: Serve, constraint: dict[str, Any], shown: str
) -> None:
    models = {"demo": {**MODELS["demo"], **constraint, "reasoning_format": "deepseek-legacy"}}
    verbose = {"max_tokens": 9, "verbose": True}
    async with serve(FakeLoader(n_ctx_seq=4096), models=models) as api:
        for path, body in ((URL, {"prompt": "Hi"}), ("/v1/completions", {"prompt": "Hi"}), (CHAT, {**HI, "tools": []})):
            reply = await api.expect(f"POST {path}", {**body, **verbose})
            settings = reply.json().get("__verbose", reply.json())["generation_settings"]
            assert (settings["grammar"], settings["reasoning_format"]) == (shown, "deepseek-legacy"), path
        tool = {"type": "function", "function": {"name": "f"}}
        reply = await api.expect(f"POST {CHAT}", {**HI, **verbose, "tools": [tool], "reasoning_format": "none"})
        settings = reply.json()["__verbose"]["generation_settings"]
        assert (settings["grammar"], settings["reasoning_format"]) == ("", "none")  # the grammar does not apply


async def test_verbosity_option_is_the_default_of_the_verbose_field(serve: Serve) -> None:
    async with serve(FakeLoader(), server={"verbosity": 10}) as api:
        assert "__verbose" in (await api.client.post(CHAT, json=HI)).json()
        assert "__verbose" not in (await api.client.post(CHAT, json={**HI, "verbose": False})).json()
        native = (await api.client.post("/completion", json={"prompt": "Hi", "n_predict": 1})).json()
        assert "__verbose" not in native
        assert native["generation_settings"]["generation_prompt"] == ""
