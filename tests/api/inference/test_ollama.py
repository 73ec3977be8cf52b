"""Ollama's API over a fake model; every reply is one that the official client's own types take."""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import orjson
import pytest

from tests.api.conftest import Api, GoLive, Serve, until
from tests.api.scripted import TURN, answering
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader
from tests.support.tools import tool

DEMO = {"path": "demo.gguf", "aliases": ["gpt-4o-mini"], "load": "startup"}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
BOTH = {"demo": DEMO, "embedder": EMBED}


async def get(api: Api, path: str) -> Any:
    return (await api.expect(f"GET {path}")).json()


async def post(api: Api, path: str, **body: object) -> Any:
    return (await api.expect(f"POST {path}", body)).json()


def loaded(api: Api, model: str) -> bool:
    return api.pool.state(model).loaded is not None


# ---- models


async def test_what_a_client_looks_for_before_anything_else(api: Api) -> None:
    await api.expect("HEAD /")
    version = (await get(api, "/api/version"))["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13)  # editors refuse older ones


async def test_every_configured_model_is_listed(serve: Serve) -> None:
    models = {**BOTH, "other": {"path": "other.gguf"}}
    async with serve(models=models) as api:
        listed = ollama.ListResponse.model_validate(await get(api, "/api/tags"))
        raw = (await get(api, "/api/tags"))["models"]
    assert [model.model for model in listed.models] == ["demo", "embedder", "other"]
    assert all(len(model.digest or "") == 64 for model in listed.models)
    details = listed.models[0].details
    assert details is not None
    assert (details.family, details.parameter_size, details.quantization_level) == ("fake", "1.00K", "F32")
    assert [set(model["capabilities"]) for model in raw] == [
        {"completion", "insert"},
        {"embedding"},
        {"completion"},
    ]


async def test_only_models_in_memory_run_and_say_until_when(serve: Serve) -> None:
    models = {"demo": DEMO | {"sleep_idle_seconds": 60}, "stays": DEMO | {"aliases": []}, "other": {"path": "o.gguf"}}
    async with serve(models=models) as api:
        running = ollama.ProcessResponse.model_validate(await get(api, "/api/ps")).models
    assert [model.model for model in running] == ["stays", "demo"]
    stays, sleeps = (model.expires_at for model in running)
    assert stays is not None
    assert sleeps is not None
    assert stays.year > sleeps.year + 200
    assert running[0].context_length == 256


@pytest.mark.parametrize("name", ["demo", "demo:latest", "gpt-4o-mini", "gpt-4o-mini:latest"])
async def test_a_model_is_shown_by_every_name_it_has(serve: Serve, name: str) -> None:
    async with serve(models=BOTH) as api:
        shown = ollama.ShowResponse.model_validate(await post(api, "/api/show", model=name))
        old = await post(api, "/api/show", name=name)
    assert "<|im_start|>" in (shown.template or "")
    assert shown.modelinfo == {"general.architecture": "fake", "general.parameter_count": 1000}
    assert shown.capabilities == ["completion", "insert"]
    details = {"parent_model": "", "format": "gguf", "family": "fake", "families": ["fake"]}
    assert old["details"] == details | {"parameter_size": "1.00K", "quantization_level": "F32"}


async def test_showing_loads_nothing_and_reads_the_file(serve: Serve) -> None:
    models = {**BOTH, "other": {"path": "other.gguf", "chat_template": "chatml"}, "gone": {"path": "gone.gguf"}}
    failed = {"error": "model 'gone' failed to load: gone.gguf does not exist"}
    async with serve(FakeLoader(failing={"gone": "gone.gguf does not exist"}), models=models) as api:
        shown = await post(api, "/api/show", model="other")
        assert shown == await post(api, "/api/show", model="other")
        await api.expect("POST /api/show", {"model": "gone"}, 503, failed)
        assert not loaded(api, "other")
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["model_info"]["general.parameter_count"] == 1000
    assert "<tool_call>" in shown["template"]


async def test_a_model_is_shown_with_its_system_prompt_and_parameters(serve: Serve) -> None:
    settings = {"system_prompt": "Be brief.", "reverse_prompt": ['"\n', "é"], "n_predict": 7, "top_k": 3}
    async with serve(models={"demo": {"path": "demo.gguf", **settings}}) as api:
        shown = await post(api, "/api/show", model="demo")
    assert shown["system"] == "Be brief."
    lines = [f"{'num_predict':<30} 7", f"{'stop':<30} " + r'"\"\n"', f'{"stop":<30} "é"']
    assert shown["parameters"].splitlines()[-3:] == lines
    assert f"{'top_k':<30} 3" in shown["parameters"]
    assert 'FROM demo\nSYSTEM """Be brief."""\nPARAMETER ' in shown["modelfile"]
    assert 'PARAMETER stop "\\"\\n"\n' in shown["modelfile"]


# ---- vectors


async def test_vectors_have_the_length_of_one_and_counts(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        body = await post(api, "/api/embed", model="embedder", input=["ab", "c"])
        one = await post(api, "/api/embed", model="embedder:latest", input="ab")
        old = await post(api, "/api/embeddings", model="embedder", prompt="ab")
        assert await post(api, "/api/embeddings", model="embedder", prompt="") == {"embedding": []}
    reply = ollama.EmbedResponse.model_validate(body)
    assert np.linalg.norm(np.array(reply.embeddings), axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert one["embeddings"] == body["embeddings"][:1]
    assert (one["model"], reply.prompt_eval_count) == ("embedder:latest", 5)
    assert body["total_duration"] >= body["load_duration"] >= 0
    vector = np.array(ollama.EmbeddingsResponse.model_validate(old).embedding)
    assert vector / np.linalg.norm(vector) == pytest.approx(one["embeddings"][0], abs=1e-5)  # the older one's as it is


async def test_vectors_can_be_shorter_and_texts_are_cut_unless_they_may_not_be(serve: Serve) -> None:
    path, body = "POST /api/embed", {"model": "embedder", "input": "x" * 5000}
    async with serve(models=BOTH) as api:
        short = await post(api, "/api/embed", model="embedder", input="ab", dimensions=2)
        long = (await api.expect(path, body)).json()
        await api.expect(path, body | {"truncate": False}, 400, "5001 tokens")
        await api.expect(path, body | {"dimensions": 5}, 400, "4")
    assert np.shape(short["embeddings"]) == (1, 2)
    assert np.linalg.norm(short["embeddings"][0]) == pytest.approx(1, abs=1e-5)
    assert 0 < long["prompt_eval_count"] < 5000


# ---- how long a model stays


async def test_nothing_to_embed_loads_the_model_and_keeps_it(serve: Serve) -> None:
    async with serve(models={"demo": DEMO, "embedder": EMBED | {"load": "on_demand"}}) as api:
        assert (await post(api, "/api/embed", model="embedder", keep_alive="1h30m"))["embeddings"] == []
        assert loaded(api, "embedder")
        assert 5300 < (api.pool.state("embedder").sleeps_in_s or 0) <= 5400
        await post(api, "/api/embed", model="embedder", input="a", keep_alive=-1)
        assert api.pool.state("embedder").sleeps_in_s is None


async def test_a_model_is_freed_behind_the_request_that_wants_it(serve: Serve) -> None:
    async with serve(models=BOTH) as api:
        await post(api, "/api/embed", model="embedder", input="a", keep_alive=0)
        await until(lambda: not loaded(api, "embedder"))
        assert loaded(api, "demo")
        await post(api, "/api/embed", model="embedder", input="a")
        assert api.pool.state("embedder").sleeps_in_s is None  # what was wanted has ended with the model's stay


CHAT, GENERATE = "/api/chat", "/api/generate"
HI = {"role": "user", "content": "Hi"}
LOOK = tool("look", {"at": {"type": "string"}}, function={"description": "Look somewhere"})
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def model(template: str = "") -> dict[str, Any]:
    return {"demo": {"path": "demo.gguf", "load": "startup"} | ({"chat_template": template} if template else {})}


async def whole(api: Api, path: str = CHAT, **body: Any) -> Any:
    reply = await api.expect(f"POST {path}", {"model": "demo", "stream": False, **body})
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    (ollama.ChatResponse if path == CHAT else ollama.GenerateResponse).model_validate(reply.json())
    return reply.json()


async def lines(api: Api, path: str = CHAT, **body: Any) -> list[Any]:
    """The lines of a stream, which is what nobody has to ask for; each is one that the official client takes."""
    reply = await api.expect(f"POST {path}", {"model": "demo", **body})
    assert reply.headers["content-type"].split(";")[0] == "application/x-ndjson"
    found = [orjson.loads(line) for line in reply.text.splitlines()]
    for line in found:
        (ollama.ChatResponse if path == CHAT else ollama.GenerateResponse).model_validate(line)
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    return found


def content(found: list[Any]) -> str:
    return "".join(line["message"]["content"] for line in found)


async def test_results_of_tools_find_their_calls_without_ids(serve: Serve) -> None:
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
    shown = (
        '[call_0 look {"at": "sky"}][call_1 hear {}]<|im_end|>\n'
        "<|im_start|>tool\nbirds<call_1 hear><|im_end|>\n<|im_start|>tool\nblue<call_0 look>"
    )
    replies: dict[str, Any] = {shown: "I see."}
    async with serve(answering(replies), models=model(template)) as api:
        assert (await whole(api, messages=history))["message"]["content"] == "I see."


async def test_thoughts_are_told_from_the_answer_and_can_be_switched_off(serve: Serve) -> None:
    replies: dict[str, Any] = {"Hi": "<think>Hm.</think>Hello", "Hush": "<think>Hm.</think>Hello"}
    async with serve(answering(replies), models=model(THINKS)) as api:
        found = await lines(api, messages=[HI], think=True)
        high = await whole(api, messages=[HI], think="high")
        text = await whole(api, GENERATE, prompt="Hi", think=True)
        off = await whole(api, messages=[HI], think=False, options={"num_predict": 3})
    thoughts = "".join(line["message"].get("thinking", "") for line in found)
    assert (thoughts, content(found)) == ("Hm.", "Hello")
    assert high["message"] == {"role": "assistant", "content": "Hello", "thinking": "Hm."}
    assert (text["thinking"], text["response"]) == ("Hm.", "Hello")
    assert off["prompt_eval_count"] > high["prompt_eval_count"]  # the template closes the thoughts


async def test_a_model_that_cannot_think_says_so(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello"}), models=model()) as api:
        thinking = {"model": "demo", "messages": [HI], "think": True}
        await api.expect(f"POST {CHAT}", thinking, 400, "'demo' does not support thinking")
        assert (await whole(api, messages=[HI], think=False))["message"]["content"] == "Hello"


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_a_format_is_enforced(serve: Serve, path: str) -> None:
    asked = {"messages": [HI]} if path == CHAT else {"prompt": "Hi"}

    def said(reply: Any) -> str:
        text: str = reply["message"]["content"] if path == CHAT else reply["response"]
        return text

    async with serve(answering({"Hi": "no JSON at all"}), models=model()) as api:
        assert said(await whole(api, path, **asked, format={"enum": ["yes"]})) == '"yes"'
        assert said(await whole(api, path, **asked, format="json", options={"num_predict": 9})).startswith("{")
        assert said(await whole(api, path, **asked, format="")) == "no JSON at all"
        raw = await whole(api, GENERATE, raw=True, prompt="Hi", format={"enum": ["yes"]})
        assert raw["response"] == '"yes"'


async def test_generate_is_a_users_message_with_a_system_prompt_before_it(serve: Serve) -> None:
    said = {
        f"<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi{TURN}": "Yes",
        f"<s><|im_start|>user\nHi{TURN}": "Hello",
        "<s>Once": " upon",
    }
    async with serve(FakeLoader(n_ctx_seq=512, replies=said), models=model()) as api:
        plain = await whole(api, GENERATE, prompt="Hi")
        system = await whole(api, GENERATE, prompt="Hi", system="Be brief")
        raw = await whole(api, GENERATE, prompt="Once", raw=True)
        streamed = await lines(api, GENERATE, prompt="Once", raw=True)
    assert (plain["response"], system["response"], raw["response"]) == ("Hello", "Yes", " upon")
    assert "".join(line["response"] for line in streamed) == " upon"
    assert "context" not in raw


async def test_a_context_carries_a_talk_on(serve: Serve) -> None:
    said = {f"Hi{TURN}": "Hello", f"Hi{TURN}Hello</s><|im_start|>user\nAgain{TURN}": "Hello again"}
    async with serve(FakeLoader(n_ctx_seq=512, replies=said), models=model()) as api:
        first = await whole(api, GENERATE, prompt="Hi")
        second = await whole(api, GENERATE, prompt="Again", context=first["context"])
        await api.expect(f"POST {GENERATE}", {"prompt": "Hi", "context": [1, 99999]}, 400, "context.1:")
    assert second["response"] == "Hello again"
    assert second["context"][: len(first["context"])] == first["context"]


async def test_a_suffix_fills_the_gap(serve: Serve) -> None:
    asked = {"prompt": "def ", "suffix": " end"}
    async with serve(FakeLoader(n_ctx_seq=512, replies={"\x01def \x02 end\x03": "f()"}), models=model()) as api:
        assert (await whole(api, GENERATE, **asked))["response"] == "f()"
    async with serve(FakeLoader(fim="none"), models=model()) as api:
        await api.expect(f"POST {GENERATE}", asked, 400, "suffix")


async def test_log_probabilities_come_with_the_lines_and_with_the_whole(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello"}), models=model()) as api:
        found = await lines(api, messages=[HI], logprobs=True, top_logprobs=2)
        reply = await whole(api, GENERATE, prompt="Hi", logprobs=True)
    entries = [entry for line in found for entry in line.get("logprobs", ())]
    assert "".join(entry["token"] for entry in entries) == "Hello"
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)
    assert set(entries[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    assert [entry["top_logprobs"] for entry in reply["logprobs"]] == [[]] * 5


async def test_nothing_to_say_loads_and_frees(serve: Serve) -> None:
    models = {"demo": {"path": "demo.gguf", "load": "startup"}, "other": {"path": "other.gguf"}}
    async with serve(models=models) as api:
        freed = await api.client.post(GENERATE, json={"model": "other", "keep_alive": 0})
        assert freed.json()["done_reason"] == "unload"
        assert api.pool.state("other").loaded is None  # it was not loaded to be freed
        loaded = await api.client.post(CHAT, json={"model": "other", "messages": [], "keep_alive": "10m"})
        assert loaded.json()["done_reason"] == "load"
        assert loaded.json()["message"] == {"role": "assistant", "content": ""}
        assert (api.pool.state("other").sleeps_in_s or 0) > 500
        gone = await api.client.post(CHAT, json={"model": "other", "keep_alive": "0"})
        assert gone.json()["done_reason"] == "unload"
        await until(lambda: api.pool.state("other").loaded is None)
        await whole(api, messages=[HI], options={"num_predict": 1}, keep_alive=0)
        await until(lambda: api.pool.state("demo").loaded is None)


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_a_page_of_another_site_frees_no_model(serve: Serve, path: str) -> None:
    async with serve() as api:
        reply = await api.expect(f"POST {path}", {"keep_alive": 0}, headers={"Origin": "https://evil.example"})
        assert reply.headers["x-llamapool-warning"] == "keep_alive: needs a key that may load and unload models"
        assert api.pool.state("demo").sleeps_in_s is None


async def test_keep_alive_is_for_keys_that_may_load(serve: Serve, tmp_path: Path) -> None:
    file = key_file(tmp_path, ada={}, ops={"scopes": ["infer", "models"]})
    async with serve(server={"keys_file": str(file)}) as api:
        for name, done in (("ada", "load"), ("ops", "unload")):
            reply = await api.client.post(CHAT, json={"model": "demo", "keep_alive": 0}, headers=bearer(name))
            assert reply.json()["done_reason"] == done
            assert ("x-llamapool-warning" in reply.headers) is (name == "ada")
        await until(lambda: api.pool.state("demo").loaded is None)


async def test_what_has_no_effect_is_named_in_a_header(serve: Serve) -> None:
    """Options of a load or of older versions, and tools that no model can use."""
    options = {"num_ctx": 8192, "num_gpu": None, "mood": 1, "tfs_z": 0.5, "min_p": 0.1}
    tools = [{"type": "web_search"}, {"function": LOOK["function"]}]
    body = {"model": "demo", "messages": [HI], "options": options, "shift": True, "tools": tools, "stream": False}
    async with serve(answering({"Hi": "Hello"}), models=model("chatml")) as api:
        warning = (await api.expect(f"POST {CHAT}", body, 200, '"Hello"')).headers["x-llamapool-warning"]
    said = ("options.num_ctx is", "'options.mood' is ignored", "options.tfs_z is ignored: llama.cpp", "shift is")
    assert [part for part in (*said, "web_search") if part not in warning] == []
    assert not {"min_p", "num_gpu"} & set(re.findall(r"\w+", warning))


async def test_nothing_is_sent_while_nothing_is_said(live: GoLive) -> None:
    """No pings: an empty line is none that clients could read."""
    gate = threading.Semaphore(0)
    loader = FakeLoader(n_ctx_seq=512, replies={f"Hi{TURN}": "Hello"}, steps=gate)
    async with live(loader, server={"sse_ping_interval": 1}, models=model()) as server:
        gate.release(1000)
        reply = await server.api.client.post(CHAT, json={"model": "demo", "messages": [HI]})
        assert all(orjson.loads(line) for line in reply.text.split("\n")[:-1])
