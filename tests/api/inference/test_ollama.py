"""Ollama's API over a fake model. Replies are validated by the types of Ollama's official client."""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import orjson
import pytest

from tests.api.conftest import Api, Serve, until
from tests.api.scripted import TURN, answering
from tests.api.streams import posting, set_short_pings
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader
from tests.support.tools import tool

DEMO = {"path": "demo.gguf", "aliases": ["gpt-4o-mini"], "load": "startup"}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
BOTH = {"demo": DEMO, "embedder": EMBED}


async def post(api: Api, path: str, **body: object) -> Any:
    return (await api.expect(f"POST {path}", body)).json()


def is_loaded(api: Api, model: str) -> bool:
    return api.pool.state(model).loaded is not None


# ---- models


async def test_clients_find_the_server_and_a_recent_version(api: Api) -> None:
    await api.expect("HEAD /")
    version = (await api.expect("GET /api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13)  # editors refuse earlier versions


async def test_tags_lists_every_configured_model(serve: Serve) -> None:
    models = {**BOTH, "other": {"path": "other.gguf"}}
    async with serve(models=models) as api:
        tags = (await api.expect("GET /api/tags")).json()
    listed = ollama.ListResponse.model_validate(tags)
    assert [model.model for model in listed.models] == ["demo", "embedder", "other"]
    assert all(len(model.digest or "") == 64 for model in listed.models)
    details = listed.models[0].details
    assert details is not None
    assert (details.family, details.parameter_size, details.quantization_level) == ("fake", "1.00K", "F32")
    capabilities = [set(model["capabilities"]) for model in tags["models"]]
    assert capabilities == [{"completion", "insert"}, {"embedding"}, {"completion"}]


async def test_ps_lists_loaded_models_with_their_expiry(serve: Serve) -> None:
    models = {"demo": DEMO | {"sleep_idle_seconds": 60}, "pinned": DEMO | {"aliases": []}, "other": {"path": "o.gguf"}}
    async with serve(models=models) as api:
        running = ollama.ProcessResponse.model_validate((await api.expect("GET /api/ps")).json()).models
    assert [model.model for model in running] == ["pinned", "demo"]
    pinned, sleeping = (model.expires_at for model in running)
    assert pinned is not None
    assert sleeping is not None
    assert pinned.year > sleeping.year + 200
    assert running[0].context_length == 256


@pytest.mark.parametrize("name", ["demo", "demo:latest", "gpt-4o-mini", "gpt-4o-mini:latest"])
async def test_show_accepts_ids_aliases_and_the_latest_tag(serve: Serve, name: str) -> None:
    async with serve(models=BOTH) as api:
        info = ollama.ShowResponse.model_validate(await post(api, "/api/show", model=name))
        legacy = await post(api, "/api/show", name=name)
    assert "<|im_start|>" in (info.template or "")
    assert info.modelinfo == {"general.architecture": "fake", "general.parameter_count": 1000}
    assert info.capabilities == ["completion", "insert"]
    details = {"parent_model": "", "format": "gguf", "family": "fake", "families": ["fake"]}
    assert legacy["details"] == details | {"parameter_size": "1.00K", "quantization_level": "F32"}


async def test_show_reads_the_file_without_loading_the_model(serve: Serve) -> None:
    models = {**BOTH, "other": {"path": "other.gguf", "chat_template": "chatml"}, "gone": {"path": "gone.gguf"}}
    failed = {"error": "model 'gone' failed to load: gone.gguf does not exist"}
    async with serve(FakeLoader(failing={"gone": "gone.gguf does not exist"}), models=models) as api:
        info = await post(api, "/api/show", model="other")
        assert info == await post(api, "/api/show", model="other")
        await api.expect("POST /api/show", {"model": "gone"}, 503, failed)
        assert not is_loaded(api, "other")
    assert info["capabilities"] == ["completion", "tools"]
    assert info["model_info"]["general.parameter_count"] == 1000
    assert "<tool_call>" in info["template"]


async def test_show_includes_system_prompt_and_parameters(serve: Serve) -> None:
    settings = {"system_prompt": "Be brief.", "reverse_prompt": ['"\n', "é"], "n_predict": 7, "top_k": 3}
    async with serve(models={"demo": {"path": "demo.gguf", **settings}}) as api:
        info = await post(api, "/api/show", model="demo")
    assert info["system"] == "Be brief."
    lines = [f"{'num_predict':<30} 7", f"{'stop':<30} " + r'"\"\n"', f'{"stop":<30} "é"']
    assert info["parameters"].splitlines()[-3:] == lines
    assert f"{'top_k':<30} 3" in info["parameters"]
    assert 'FROM demo\nSYSTEM """Be brief."""\nPARAMETER ' in info["modelfile"]
    assert 'PARAMETER stop "\\"\\n"\n' in info["modelfile"]


# ---- embeddings


async def test_embed_normalizes_and_legacy_embeddings_does_not(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        body = await post(api, "/api/embed", model="embedder", input=["ab", "c"])
        one = await post(api, "/api/embed", model="embedder:latest", input="ab")
        legacy = await post(api, "/api/embeddings", model="embedder", prompt="ab")
        assert await post(api, "/api/embeddings", model="embedder", prompt="") == {"embedding": []}
    reply = ollama.EmbedResponse.model_validate(body)
    assert np.linalg.norm(np.array(reply.embeddings), axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert one["embeddings"] == body["embeddings"][:1]
    assert (one["model"], reply.prompt_eval_count) == ("embedder:latest", 5)
    assert body["total_duration"] >= body["load_duration"] >= 0
    vector = np.array(ollama.EmbeddingsResponse.model_validate(legacy).embedding)
    assert np.linalg.norm(vector) != pytest.approx(1, abs=1e-5)
    assert vector / np.linalg.norm(vector) == pytest.approx(one["embeddings"][0], abs=1e-5)


async def test_embed_supports_dimensions_and_truncate(serve: Serve) -> None:
    path, body = "POST /api/embed", {"model": "embedder", "input": "x" * 5000}
    async with serve(models=BOTH) as api:
        short = await post(api, "/api/embed", model="embedder", input="ab", dimensions=2)
        long = (await api.expect(path, body)).json()
        await api.expect(path, body | {"truncate": False}, 400, "5001 tokens")
        await api.expect(path, body | {"dimensions": 5}, 400, "4")
    assert np.shape(short["embeddings"]) == (1, 2)
    assert np.linalg.norm(short["embeddings"][0]) == pytest.approx(1, abs=1e-5)
    assert 0 < long["prompt_eval_count"] < 5000


# ---- keep_alive of embeddings


async def test_embed_without_input_loads_the_model_for_keep_alive(serve: Serve) -> None:
    async with serve(models={"demo": DEMO, "embedder": EMBED | {"load": "on_demand"}}) as api:
        assert (await post(api, "/api/embed", model="embedder", keep_alive="1h30m"))["embeddings"] == []
        assert is_loaded(api, "embedder")
        assert 5300 < (api.pool.state("embedder").sleeps_in_s or 0) <= 5400
        await post(api, "/api/embed", model="embedder", input="a", keep_alive=-1)
        assert api.pool.state("embedder").sleeps_in_s is None


async def test_keep_alive_0_unloads_the_model_after_the_request(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        await post(api, "/api/embed", model="embedder", input="a", keep_alive=0)
        await until(lambda: not is_loaded(api, "embedder"))
        assert is_loaded(api, "demo")
        await post(api, "/api/embed", model="embedder", input="a")
        assert api.pool.state("embedder").sleeps_in_s is None  # the earlier keep_alive does not apply to the next load


# ---- chat and generate

CHAT, GENERATE = "/api/chat", "/api/generate"
HI = {"role": "user", "content": "Hi"}
LOOK = tool("look", {"at": {"type": "string"}}, function={"description": "Look somewhere"})
REASONING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def model(template: str = "") -> dict[str, Any]:
    """Return the settings of one model."""
    return {"demo": {"path": "demo.gguf", "load": "startup"} | ({"chat_template": template} if template else {})}


async def generate(api: Api, path: str = CHAT, **body: Any) -> Any:
    """Send a request without streaming. Return the validated reply."""
    reply = await api.expect(f"POST {path}", {"model": "demo", "stream": False, **body})
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    (ollama.ChatResponse if path == CHAT else ollama.GenerateResponse).model_validate(reply.json())
    return reply.json()


async def stream(api: Api, path: str = CHAT, **body: Any) -> list[Any]:
    """Send a request, which streams by default. Return the validated lines."""
    reply = await api.expect(f"POST {path}", {"model": "demo", **body})
    assert reply.headers["content-type"].split(";")[0] == "application/x-ndjson"
    lines = [orjson.loads(line) for line in reply.text.splitlines()]
    for line in lines:
        (ollama.ChatResponse if path == CHAT else ollama.GenerateResponse).model_validate(line)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines


async def test_tool_results_without_ids_are_matched_to_their_calls(serve: Serve) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]"
        "{% endfor %}{% if m.tool_call_id %}<{{ m.tool_call_id }} {{ m.name }}>{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    functions = ({"name": "look", "arguments": {"at": "sky"}}, {"name": "hear", "arguments": {}})
    history = [
        *(HI, {"role": "assistant", "content": "", "tool_calls": [{"function": each} for each in functions]}),
        {"role": "tool", "content": "birds", "tool_name": "hear"},
        {"role": "tool", "content": "blue"},
    ]
    rendered = (
        '[call_0 look {"at": "sky"}][call_1 hear {}]<|im_end|>\n'
        "<|im_start|>tool\nbirds<call_1 hear><|im_end|>\n<|im_start|>tool\nblue<call_0 look>"
    )
    replies: dict[str, Any] = {rendered: "I see."}
    async with serve(answering(replies), models=model(template)) as api:
        assert (await generate(api, messages=history))["message"]["content"] == "I see."


async def test_think_separates_or_disables_reasoning(serve: Serve) -> None:
    replies: dict[str, Any] = {"Hi": "<think>Hm.</think>Hello", "Hush": "<think>Hm.</think>Hello"}
    async with serve(answering(replies), models=model(REASONING_TEMPLATE)) as api:
        lines = await stream(api, messages=[HI], think=True)
        high = await generate(api, messages=[HI], think="high")
        text = await generate(api, GENERATE, prompt="Hi", think=True)
        off = await generate(api, messages=[HI], think=False, options={"num_predict": 3})
    for field, streamed in (("thinking", "Hm."), ("content", "Hello")):
        assert "".join(line["message"].get(field, "") for line in lines) == streamed
    assert high["message"] == {"role": "assistant", "content": "Hello", "thinking": "Hm."}
    assert (text["thinking"], text["response"]) == ("Hm.", "Hello")
    assert off["prompt_eval_count"] > high["prompt_eval_count"]  # the template adds an empty reasoning block


async def test_think_for_a_model_without_reasoning_is_a_400(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello"}), models=model()) as api:
        body = {"model": "demo", "messages": [HI], "think": True}
        await api.expect(f"POST {CHAT}", body, 400, "'demo' does not support thinking")
        assert (await generate(api, messages=[HI], think=False))["message"]["content"] == "Hello"


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_format_constrains_the_reply(serve: Serve, path: str) -> None:
    prompt = {"messages": [HI]} if path == CHAT else {"prompt": "Hi"}

    def text_of(reply: Any) -> str:
        text: str = reply["message"]["content"] if path == CHAT else reply["response"]
        return text

    async with serve(answering({"Hi": "no JSON at all"}), models=model()) as api:
        assert text_of(await generate(api, path, **prompt, format={"enum": ["yes"]})) == '"yes"'
        assert text_of(await generate(api, path, **prompt, format="json", options={"num_predict": 9})).startswith("{")
        assert text_of(await generate(api, path, **prompt, format="")) == "no JSON at all"
        raw = await generate(api, GENERATE, raw=True, prompt="Hi", format={"enum": ["yes"]})
        assert raw["response"] == '"yes"'


async def test_generate_renders_a_user_turn_unless_raw(serve: Serve) -> None:
    replies = {
        f"<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi{TURN}": "Yes",
        f"<s><|im_start|>user\nHi{TURN}": "Hello",
        "<s>Once": " upon",
    }
    async with serve(FakeLoader(n_ctx_seq=512, replies=replies), models=model()) as api:
        plain = await generate(api, GENERATE, prompt="Hi")
        system = await generate(api, GENERATE, prompt="Hi", system="Be brief")
        raw = await generate(api, GENERATE, prompt="Once", raw=True)
        streamed = await stream(api, GENERATE, prompt="Once", raw=True)
    assert (plain["response"], system["response"], raw["response"]) == ("Hello", "Yes", " upon")
    assert "".join(line["response"] for line in streamed) == " upon"
    assert "context" not in raw


async def test_generate_continues_the_returned_context(serve: Serve) -> None:
    replies = {f"Hi{TURN}": "Hello", f"Hi{TURN}Hello</s><|im_start|>user\nAgain{TURN}": "Hello again"}
    async with serve(FakeLoader(n_ctx_seq=512, replies=replies), models=model()) as api:
        first = await generate(api, GENERATE, prompt="Hi")
        second = await generate(api, GENERATE, prompt="Again", context=first["context"])
        await api.expect(f"POST {GENERATE}", {"prompt": "Hi", "context": [1, 99999]}, 400, "context.1:")
    assert second["response"] == "Hello again"
    assert second["context"][: len(first["context"])] == first["context"]


async def test_suffix_requires_a_model_with_fim_tokens(serve: Serve) -> None:
    body = {"prompt": "def ", "suffix": " end"}
    async with serve(FakeLoader(n_ctx_seq=512, replies={"\x01def \x02 end\x03": "f()"}), models=model()) as api:
        assert (await generate(api, GENERATE, **body))["response"] == "f()"
    async with serve(FakeLoader(fim="none"), models=model()) as api:
        await api.expect(f"POST {GENERATE}", body, 400, "suffix")


@pytest.mark.parametrize(("limit", "content"), [(None, "Hel"), (4, "Hell"), (-1, "Hello"), (-2, "Hello")])
async def test_num_predict_overrides_the_models_limit(serve: Serve, limit: int | None, content: str) -> None:
    async with serve(answering({"Hi": "Hello"}), models={"demo": model()["demo"] | {"n_predict": 3}}) as api:
        reply = await generate(api, messages=[HI], options={"num_predict": limit})
    assert reply["message"]["content"] == content


async def test_logprobs_are_in_streams_and_plain_replies(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello"}), models=model()) as api:
        lines = await stream(api, messages=[HI], logprobs=True, top_logprobs=2)
        reply = await generate(api, GENERATE, prompt="Hi", logprobs=True)
    entries = [entry for line in lines for entry in line.get("logprobs", ())]
    assert "".join(entry["token"] for entry in entries) == "Hello"
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)
    assert set(entries[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    assert [entry["top_logprobs"] for entry in reply["logprobs"]] == [[]] * 5


async def test_request_without_prompt_loads_or_unloads_the_model(serve: Serve) -> None:
    models = {"demo": {"path": "demo.gguf", "load": "startup"}, "other": {"path": "other.gguf"}}
    async with serve(models=models) as api:
        unloaded = await api.client.post(GENERATE, json={"model": "other", "keep_alive": 0})
        assert unloaded.json()["done_reason"] == "unload"
        assert not is_loaded(api, "other"), "loaded only to be unloaded"
        loaded = await api.client.post(CHAT, json={"model": "other", "messages": [], "keep_alive": "10m"})
        assert loaded.json()["done_reason"] == "load"
        assert loaded.json()["message"] == {"role": "assistant", "content": ""}
        assert (api.pool.state("other").sleeps_in_s or 0) > 500
        unloaded = await api.client.post(CHAT, json={"model": "other", "keep_alive": "0"})
        assert unloaded.json()["done_reason"] == "unload"
        await until(lambda: not is_loaded(api, "other"))
        await generate(api, messages=[HI], options={"num_predict": 1}, keep_alive=0)
        await until(lambda: not is_loaded(api, "demo"))


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_cross_origin_keep_alive_is_ignored_with_a_warning(serve: Serve, path: str) -> None:
    async with serve() as api:
        reply = await api.expect(f"POST {path}", {"keep_alive": 0}, headers={"Origin": "https://evil.example"})
        assert reply.headers["x-llamapool-warning"] == "keep_alive: needs a key that may load and unload models"
        assert api.pool.state("demo").sleeps_in_s is None


async def test_keep_alive_requires_the_models_scope(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, ada={}, ops={"scopes": ["infer", "models"]})
    async with serve(server={"keys_file": str(file)}) as api:
        for name, done_reason in (("ada", "load"), ("ops", "unload")):
            reply = await api.client.post(CHAT, json={"model": "demo", "keep_alive": 0}, headers=bearer(name))
            assert reply.json()["done_reason"] == done_reason
            assert ("x-llamapool-warning" in reply.headers) is (name == "ada")
        await until(lambda: not is_loaded(api, "demo"))


async def test_options_and_tools_without_effect_are_listed_in_the_warning_header(serve: Serve) -> None:
    options = {"num_ctx": 8192, "num_gpu": None, "mood": 1, "tfs_z": 0.5, "min_p": 0.1}
    tools = [{"type": "web_search"}, {"function": LOOK["function"]}]
    body = {"model": "demo", "messages": [HI], "options": options, "shift": True, "tools": tools, "stream": False}
    async with serve(answering({"Hi": "Hello"}), models=model("chatml")) as api:
        warning = (await api.expect(f"POST {CHAT}", body, 200, '"Hello"')).headers["x-llamapool-warning"]
    ignored = ("options.num_ctx is", "'options.mood' is ignored", "options.tfs_z is ignored: llama.cpp", "shift is")
    assert [part for part in (*ignored, "web_search") if part not in warning] == []
    assert not {"min_p", "num_gpu"} & set(re.findall(r"\w+", warning))


async def test_ndjson_streams_contain_no_pings(serve: Serve) -> None:
    """Clients parse each line as JSON and fail at an empty one."""
    gate = threading.Event()
    body = {"model": "demo", "messages": [HI]}
    loader = FakeLoader(gate=gate, replies={f"Hi{TURN}": "Hello"})
    async with serve(loader, models={"demo": {"path": "demo.gguf"}}) as api:
        set_short_pings(api)
        async with (
            posting(api.app, CHAT, body) as stream,
            posting(api.app, "/v1/chat/completions", body | {"stream": True}) as openai_stream,
        ):
            assert await openai_stream.start() == 200
            assert [await openai_stream.chunk() for _ in range(3)] == [b":\n\n"] * 3
            gate.set()
            assert await stream.start() == 200
            lines = b"".join([part async for part in stream.chunks()]).splitlines()
    assert all(orjson.loads(line) for line in lines)
