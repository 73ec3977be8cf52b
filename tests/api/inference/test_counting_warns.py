"""What a body is answered without is named in a header, also by endpoints that only show or count its prompt."""

import httpx
import pytest

from tests.api.conftest import Serve
from tests.support.fakes import FakeLoader, FakeRunner

PARTS = [{"type": "unheard-of", "data": 1}, {"type": "text", "text": "hi"}]
CHAT = {"messages": [{"role": "user", "content": PARTS}], "max_tokens": 1}
RESPONSE = {"input": [{"type": "unheard-of"}, {"role": "user", "content": "hi"}], "max_output_tokens": 1}


@pytest.mark.parametrize(
    ("counting", "generating", "body"),
    [
        ("/apply-template", "/v1/chat/completions", CHAT),
        ("/v1/chat/completions/input_tokens", "/v1/chat/completions", CHAT),
        ("/v1/messages/count_tokens", "/v1/messages", CHAT),
        ("/v1/responses/input_tokens", "/v1/responses", RESPONSE),
    ],
)
async def test_what_is_left_out_of_a_prompt_is_named_in_the_same_header(
    client: httpx.AsyncClient, counting: str, generating: str, body: dict[str, object]
) -> None:
    counted, generated = [await client.post(path, json=body) for path in (counting, generating)]
    assert (counted.status_code, generated.status_code) == (200, 200)
    assert "unheard-of" in counted.headers["x-llamapool-warning"]
    assert counted.headers["x-llamapool-warning"] == generated.headers["x-llamapool-warning"]


HI = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "parameters": {"type": "object", "foo": 1}}
DEMO = {"path": "demo.gguf", "load": "startup", "lora": ["a.gguf"], "n_predict": 8}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
RANKER = {"path": "r.gguf", "load": "startup", "reranking": True}


@pytest.mark.parametrize(
    ("path", "body", "unknown"),
    [
        ("/v1/chat/completions", {"messages": [HI], "max_token": 3}, ["max_token"]),
        ("/v1/chat/completions", {"messages": [HI, HI | {"foo": 1}]}, ["messages[1].foo"]),
        (
            "/v1/chat/completions",
            {"messages": [HI, {"role": "user", "content": [{"type": "text", "text": "a", "foo": 1}]}]},
            ["messages[1].content[0].foo"],
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [HI],
                "tools": [{"type": "function", "function": FUNCTION | {"bar": 1}, "baz": None}],
                "stream_options": {"include_usages": True},
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"x": 1}, "y": 1}},
            },
            ["response_format.json_schema.y", "tools[0].function.bar", "stream_options.include_usages"],
        ),
        ("/v1/chat/completions", {"messages": [HI], "lora": [{"id": 0, "scale": 1, "scal": 1}]}, ["lora[0].scal"]),
        ("/v1/completions", {"prompt": {"prompt_string": "hi", "foo": 1}}, ["prompt.foo"]),
        ("/completion", {"prompt": "hi", "n_predcit": 1}, ["n_predcit"]),
        (
            "/infill",
            {"input_prefix": "", "input_suffix": "", "input_extra": [{"text": "", "fn": ""}]},
            ["input_extra[0].fn"],
        ),
        (
            "/v1/messages",
            {
                "messages": [HI | {"foo": 1, "content": [{"type": "text", "text": "a", "bar": 1}]}],
                "tools": [{"name": "f", "input_schema": {"type": "object"}, "typo": 1}],
                "system": [{"type": "text", "text": "a", "foo": 1}],
                "thinking": {"type": "disabled", "budget": 1},
                "fallbacks": [{"model": "m"}],
            },
            [
                *("fallbacks", "thinking.budget", "system[0].foo", "messages[0].foo"),
                *("messages[0].content[0].bar", "tools[0].typo"),
            ],
        ),
        (
            "/v1/responses",
            {
                "input": [HI, HI | {"content": [{"type": "input_text", "text": "a", "foo": 1}]}],
                "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"} | FUNCTION | {"bar": 1}]}],
                "reasoning": {"effort": "low", "foo": 1},
                "messages": [],
            },
            ["messages", "reasoning.foo", "input[1].content[0].foo", "tools[0].tools[0].bar"],
        ),
        ("/v1/embeddings", {"input": "a", "dimension": 3}, ["dimension"]),
        ("/embeddings", {"content": {"prompt_string": "a", "foo": 1}}, ["content.foo"]),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a", {"text": "b", "foo": 1}], "topn": 1},
            ["topn", "documents[1].foo"],
        ),
        ("/tokenize", {"content": "a", "with_piece": True}, ["with_piece"]),
        ("/detokenize", {"tokens": [1], "foo": True}, ["foo"]),
        (
            "/api/chat",
            {"messages": [HI | {"foo": 1}], "options": {"temprature": 1, "num_ctx": 9}, "stream": False, "foo": 1},
            ["foo", "options.temprature", "messages[0].foo"],
        ),
        (
            "/api/generate",
            {"prompt": "hi", "options": {"foo": 1}, "stream": False, "contxt": []},
            ["contxt", "options.foo"],
        ),
        ("/api/embed", {"input": "a", "dimension": 3, "options": {"foo": 1}}, ["dimension", "options.foo"]),
        ("/v1/conversations", {"items": [HI | {"foo": 1}], "meta": {}}, ["meta", "items[0].foo"]),
    ],
)
async def test_an_unknown_field_is_listed_by_its_path(
    serve: Serve, path: str, body: dict[str, object], unknown: list[str]
) -> None:
    hints = {"metadata": {"user_id": "u"}, "service_tier": "auto", "user": None}
    async with serve(
        FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=2048)), models={"demo": DEMO, "e": EMBED, "r": RANKER}
    ) as api:
        reply = await api.client.post(path, json={**hints, **body})
    assert reply.status_code == 200, reply.text
    said = [each for each in reply.headers["x-llamapool-warning"].split("; ") if "unknown field" in each]
    assert sorted(each.split("'")[1] for each in said) == sorted(unknown)
