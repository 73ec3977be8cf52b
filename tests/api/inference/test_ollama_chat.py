"""Ollama's chat and generate over a fake model: lines and whole replies, calls, thoughts, structure, mistakes."""

import threading
from pathlib import Path
from typing import Any

import ollama
import orjson
import pytest

from tests.api.conftest import Api, GoLive, Serve, until
from tests.api.scripted import TURN, answering
from tests.api.transport.test_keys import bearer, key_file
from tests.support.fakes import FakeLoader, FakeRunner

CHAT, GENERATE = "/api/chat", "/api/generate"
HI = {"role": "user", "content": "Hi"}
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look somewhere",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
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
    reply = await api.client.post(path, json={"model": "demo", "stream": False, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    (ollama.ChatResponse if path == CHAT else ollama.GenerateResponse).model_validate(reply.json())
    return reply.json()


async def lines(api: Api, path: str = CHAT, **body: Any) -> list[Any]:
    """The lines of a stream, which is what nobody has to ask for; each is one that the official client takes."""
    reply = await api.client.post(path, json={"model": "demo", **body})
    assert reply.status_code == 200, reply.text
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
    history = [
        HI,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"function": {"name": "look", "arguments": {"at": "sky"}}},
                {"function": {"name": "hear", "arguments": {}}},
            ],
        },
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
        reply = await api.client.post(CHAT, json={"model": "demo", "messages": [HI], "think": True})
        assert (await whole(api, messages=[HI], think=False))["message"]["content"] == "Hello"
    assert reply.status_code == 400
    assert "'demo' does not support thinking" in reply.json()["error"]


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
    loader = FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=512, replies=said))
    async with serve(loader, models=model()) as api:
        plain = await whole(api, GENERATE, prompt="Hi")
        system = await whole(api, GENERATE, prompt="Hi", system="Be brief")
        raw = await whole(api, GENERATE, prompt="Once", raw=True)
        streamed = await lines(api, GENERATE, prompt="Once", raw=True)
    assert (plain["response"], system["response"], raw["response"]) == ("Hello", "Yes", " upon")
    assert "".join(line["response"] for line in streamed) == " upon"
    assert "context" not in raw


async def test_a_context_carries_a_talk_on(serve: Serve) -> None:
    said = {f"Hi{TURN}": "Hello", f"Hi{TURN}Hello</s><|im_start|>user\nAgain{TURN}": "Hello again"}
    loader = FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=512, replies=said))
    async with serve(loader, models=model()) as api:
        first = await whole(api, GENERATE, prompt="Hi")
        second = await whole(api, GENERATE, prompt="Again", context=first["context"])
        wrong = await api.client.post(GENERATE, json={"prompt": "Hi", "context": [1, 99999]})
    assert second["response"] == "Hello again"
    assert second["context"][: len(first["context"])] == first["context"]
    assert (wrong.status_code, wrong.json()["error"].split(":")[0]) == (400, "context.1")


async def test_a_suffix_fills_the_gap(serve: Serve) -> None:
    said = {"\x01def \x02 end\x03": "f()"}
    loader = FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=512, replies=said))
    async with serve(loader, models=model()) as api:
        assert (await whole(api, GENERATE, prompt="def ", suffix=" end"))["response"] == "f()"
    async with serve(FakeLoader(fim="none"), models=model()) as api:
        reply = await api.client.post(GENERATE, json={"prompt": "def ", "suffix": " end"})
    assert (reply.status_code, "suffix" in reply.json()["error"]) == (400, True)


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
        reply = await api.client.post(path, json={"keep_alive": 0}, headers={"Origin": "https://evil.example"})
        assert reply.status_code == 200
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
    async with serve(answering({"Hi": "Hello"}), models=model()) as api:
        body = {"messages": [HI], "options": {"num_ctx": 8192, "mood": 1, "tfs_z": 0.5, "min_p": 0.1}, "shift": True}
        reply = await api.client.post(CHAT, json={"model": "demo", **body})
    warning = reply.headers["x-llamapool-warning"]
    for part in (
        "num_ctx: are set where",
        "'options.mood' is ignored",
        "options.tfs_z is ignored: llama.cpp",
        "shift: is",
    ):
        assert part in warning
    assert "min_p" not in warning


async def test_tools_that_no_model_can_use_are_left_out_with_a_warning(serve: Serve) -> None:
    async with serve(answering({"Hi": "Hello"}), models=model("chatml")) as api:
        tools = [{"type": "web_search"}, {"function": LOOK["function"]}]
        reply = await api.client.post(CHAT, json={"model": "demo", "messages": [HI], "tools": tools, "stream": False})
    assert reply.json()["message"]["content"] == "Hello"
    assert "web_search" in reply.headers["x-llamapool-warning"]


async def test_nothing_is_sent_while_nothing_is_said(live: GoLive) -> None:
    """No pings: an empty line is none that clients could read."""
    gate = threading.Semaphore(0)
    loader = FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=512, replies={f"Hi{TURN}": "Hello"}, steps=gate))
    async with live(loader, server={"sse_ping_interval": 1}, models=model()) as server:
        gate.release(1000)
        reply = await server.api.client.post(CHAT, json={"model": "demo", "messages": [HI]})
        assert all(orjson.loads(line) for line in reply.text.split("\n")[:-1])
