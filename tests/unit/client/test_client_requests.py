"""What each call sends."""

import inspect
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llamapool.client import LlamaCppClient
from tests.unit.client.answers import Asked, answering, served_by

CHAT: dict[str, Any] = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}]}
NATIVE: dict[str, Any] = {"content": "Hi", "stop_type": "eos"}
HELLO = [{"role": "user", "content": "Hello"}]


def sent_defaults(method: Callable[..., object]) -> dict[str, object]:
    """The defaults of a method's parameters that are not None."""
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p.default for p in parameters if p.default not in (None, inspect.Parameter.empty)}


def test_a_chat_sends_its_defaults_and_leaves_none_out() -> None:
    asked = answering(CHAT)
    asked.client.chat.completions.create(HELLO)
    assert (asked.last.method, asked.last.url.path) == ("POST", "/v1/chat/completions")
    assert asked.body == sent_defaults(asked.client.chat.create) | {"messages": HELLO}
    assert asked.body["model"] == "gpt-codex-5.3"
    assert asked.body["repeat_penalty"] == 1.1
    assert "max_tokens" not in asked.body


def test_a_completion_sends_its_defaults_and_leaves_none_out() -> None:
    asked = answering(NATIVE)
    asked.client.complete("Once")
    assert (asked.last.method, asked.last.url.path) == ("POST", "/completion")
    expected = sent_defaults(asked.client.complete) | {"prompt": "Once"}
    assert expected.pop("dry_penalty_last_n") == -1  # which llama-server refuses
    assert asked.body == expected
    assert not asked.body.keys() & {"grammar", "json_schema", "stop", "samplers", "self", "kwargs"}


def test_a_dry_window_that_is_chosen_is_sent() -> None:
    asked = answering(NATIVE)
    asked.client.complete("Once", dry_penalty_last_n=0)
    assert asked.body["dry_penalty_last_n"] == 0


def test_further_arguments_are_fields_of_the_body() -> None:
    asked = answering(NATIVE)
    asked.client.complete("Once", 5, n_keep=3, lora=[{"id": 0, "scale": 1.0}], top_n_sigma=None)
    assert asked.body["n_predict"] == 5
    assert asked.body["n_keep"] == 3
    assert asked.body["lora"] == [{"id": 0, "scale": 1.0}]
    assert "top_n_sigma" not in asked.body
    assert "kwargs" not in asked.body


def test_chat_completion_is_create() -> None:
    asked = answering(CHAT)
    asked.client.chat_completion(HELLO, max_tokens=3, thinking_budget_tokens=5)
    through = asked.body
    asked.client.chat.completions.create(HELLO, max_tokens=3, thinking_budget_tokens=5)
    assert through == asked.body


def test_infill_leaves_sampling_to_the_server() -> None:
    asked = answering(NATIVE)
    extra = [{"filename": "a.py", "text": "x = 1"}]
    asked.client.infill("def f(", "return 1", extra, n_predict=9)
    assert (asked.last.method, asked.last.url.path) == ("POST", "/infill")
    assert asked.body == {
        "input_prefix": "def f(",
        "input_suffix": "return 1",
        "input_extra": extra,
        "stream": False,
        "n_predict": 9,
    }


Call = Callable[[LlamaCppClient], object]
CALLS: list[tuple[Call, object, str, str, object]] = [
    (lambda c: c.embeddings.create("a", dimensions=8), {"data": []}, "POST", "/v1/embeddings",
     {"input": "a", "model": "text-embedding-ada-002", "encoding_format": "float", "dimensions": 8}),
    (lambda c: c.embed(["a", "b"]), [], "POST", "/embedding", {"content": ["a", "b"], "embd_normalize": 2}),
    (lambda c: c.rerank("q", ["d"]), {"results": []}, "POST", "/v1/rerank", {"query": "q", "documents": ["d"]}),
    (lambda c: c.tokenize("a"), {"tokens": []}, "POST", "/tokenize",
     {"content": "a", "add_special": False, "parse_special": True, "with_pieces": False}),
    (lambda c: c.detokenize([1]), {"content": ""}, "POST", "/detokenize", {"tokens": [1]}),
    (lambda c: c.slots.list(), [], "GET", "/slots", None),
    (lambda c: c.slots.list(fail_on_no_slot=True), [], "GET", "/slots?fail_on_no_slot=1", None),
    (lambda c: c.slots.save(2, "a.bin"), {}, "POST", "/slots/2?action=save", {"filename": "a.bin"}),
    (lambda c: c.slots.restore(2, "a.bin"), {}, "POST", "/slots/2?action=restore", {"filename": "a.bin"}),
    (lambda c: c.slots.erase(2), {}, "POST", "/slots/2?action=erase", {}),
    (lambda c: c.lora.list(), [], "GET", "/lora-adapters", None),
    (lambda c: c.lora.set_scales([{"id": 0, "scale": 0.5}]), {"success": True}, "POST", "/lora-adapters",
     [{"id": 0, "scale": 0.5}]),
    (lambda c: c.models.list(), {"data": []}, "GET", "/v1/models", None),
    (lambda c: c.models.load("m"), {"success": True}, "POST", "/models/load", {"model": "m"}),
    (lambda c: c.models.unload("m"), {"success": True}, "POST", "/models/unload", {"model": "m"}),
    (lambda c: c.models.download("o/m:Q8_0"), {"success": True}, "POST", "/models", {"model": "o/m:Q8_0"}),
    (lambda c: c.models.remove("o/m"), {"success": True}, "DELETE", "/models?model=o%2Fm", None),
    (lambda c: c.health(), {"status": "ok"}, "GET", "/health", None),
    (lambda c: c.props(), {}, "GET", "/props", None),
    (lambda c: c.set_props(chat_template="x"), {}, "POST", "/props", {"chat_template": "x"}),
    (lambda c: c.metrics(), "", "GET", "/metrics", None),
]  # fmt: skip


@pytest.mark.parametrize(("call", "reply", "method", "path", "body"), CALLS, ids=[f"{c[2]} {c[3]}" for c in CALLS])
def test_each_call_has_its_path_and_body(call: Call, reply: object, method: str, path: str, body: object) -> None:
    asked = answering(reply)
    call(asked.client)
    assert (asked.last.method, str(asked.last.url)) == (method, f"http://server.test{path}")
    assert (asked.body if asked.last.content else None) == body


@pytest.mark.parametrize("base_url", ["http://server.test/some/prefix", "http://server.test/some/prefix/"])
def test_a_base_url_may_have_a_path(base_url: str) -> None:
    asked = answering({"data": []}, base_url=base_url)
    asked.client.models.list()
    assert str(asked.last.url) == "http://server.test/some/prefix/v1/models"


def test_a_key_is_a_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def answer(_: object, request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"data": []})

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    with LlamaCppClient("http://server.test/v", "sk-1", timeout=3.0) as client:
        client.models.list()
    with LlamaCppClient() as client:
        client.models.list()
    assert seen[0].headers["authorization"] == "Bearer sk-1"
    assert str(seen[0].url) == "http://server.test/v/v1/models"
    assert set(seen[0].extensions["timeout"].values()) == {3.0}
    assert "authorization" not in seen[1].headers
    assert str(seen[1].url) == "http://127.0.0.1:8080/v1/models"
    assert set(seen[1].extensions["timeout"].values()) == {600.0}


def test_a_client_of_one_model_names_it_where_a_call_names_none() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"tokens": [], "data": [], "success": True, "choices": []})

    asked = served_by(answer)
    small = Asked(asked.client.for_model("small"), asked.requests)
    small.client.tokenize("x")
    assert small.body["model"] == "small"
    small.client.lora.set_scales([])
    assert (small.body, small.last.url.params["model"]) == ([], "small")
    small.client.props()
    assert small.last.url.params["model"] == "small"
    small.client.chat_completion(HELLO)
    assert small.body["model"] == "small"
    small.client.embeddings.create("x")
    assert small.body["model"] == "small"
    small.client.chat_completion(HELLO, model="large")
    assert small.body["model"] == "large"
    asked.client.tokenize("x")
    assert "model" not in asked.body
