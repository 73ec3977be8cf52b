"""/tokenize, /detokenize and token counts; ignored blocks and unknown fields in the warning header."""

from typing import Any

import httpx
import pytest

from tests.api.conftest import Api, Serve
from tests.support.fakes import BOS, IM_END, IM_START, FakeLoader, FakeVocab


async def test_tokenize_with_pieces_returns_bytes_for_partial_characters(client: httpx.AsyncClient) -> None:
    reply = await client.post("/tokenize", json={"content": "hé", "with_pieces": True, "model": "anything"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.json() == {
        "tokens": [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    }


async def test_tokenize_and_detokenize_are_inverse(client: httpx.AsyncClient) -> None:
    tokens = (await client.post("/tokenize", json={"content": "hé<s>", "add_special": True})).json()["tokens"]
    assert tokens[0] == BOS
    assert (await client.post("/detokenize", json={"tokens": tokens})).json() == {"content": "<s>hé<s>"}


@pytest.mark.parametrize(
    ("body", "n_special"),
    [
        ({"prompt": "hé"}, 1),
        ({"prompt": "hé", "add_special_tokens": False}, 0),
        ({"content": "hé", "add_special_tokens": True}, 1),
        ({"content": "hé", "prompt": "other"}, 0),
    ],
)
async def test_tokenize_accepts_vllms_field_names(api: Api, body: dict[str, object], n_special: int) -> None:
    await api.expect("POST /tokenize", body, 200, {"tokens": [BOS] * n_special + [104, 195, 169]})


LONG = "x" * 100_000
MESSAGES = [{"role": "user", "content": LONG}]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("POST /v1/chat/completions", {"messages": MESSAGES}),
        ("POST /v1/completions", {"prompt": [1, LONG]}),
        ("POST /completion", {"prompt": ["a", LONG]}),
        ("POST /v1/responses", {"input": LONG, "store": False}),
        ("POST /api/generate", {"model": "demo", "prompt": LONG, "raw": True}),
    ],
)
async def test_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    api: Api, monkeypatch: pytest.MonkeyPatch, endpoint: str, body: dict[str, object]
) -> None:
    original = FakeVocab.tokenize

    def tokenize(vocab: FakeVocab, text: str, **options: bool) -> list[int]:
        assert LONG not in text
        return original(vocab, text, **options)

    monkeypatch.setattr(FakeVocab, "tokenize", tokenize)
    await api.expect(endpoint, body, 400, "tokens) exceeds the available context size")


async def test_truncation_auto_drops_an_item_that_cannot_fit(api: Api) -> None:
    items = [*MESSAGES, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    body = {"input": items, "truncation": "auto", "store": False, "max_output_tokens": 2}
    await api.expect("POST /v1/responses", body, 200)
    assert len((await api.expect("POST /tokenize", {"content": LONG}, 200)).json()["tokens"]) == len(LONG)


async def test_tokenizer_info_agrees_with_props(client: httpx.AsyncClient) -> None:
    info = (await client.get("/tokenizer_info")).json()
    props = (await client.get("/props")).json()
    assert [info[name] for name in ("bos_token", "eos_token", "chat_template")] == [
        props[name] for name in ("bos_token", "eos_token", "chat_template")
    ]
    assert info["model_max_length"] == props["default_generation_settings"]["n_ctx"]
    assert (await client.get("/tokenizer_info", params={"model": "demo"})).json() == info


HI = [{"role": "user", "content": "Hi"}]
PROMPT = [BOS, IM_START, *b"user\nHi", IM_END, *b"\n", IM_START, *b"assistant\n"]


async def test_input_tokens_counts_prompts_longer_than_the_context(serve: Serve) -> None:
    path = "/v1/chat/completions/input_tokens"
    models = {name: {"path": f"{name}.gguf", "load": "on_demand"} for name in ("a", "b")}
    count = {"input_tokens": len(PROMPT), "object": "response.input_tokens"}
    async with serve(models=models) as api:
        await api.expect(f"POST {path}", {"messages": HI, "model": "b", "max_tokens": 5, "stream": True}, 200, count)
        long = [{"role": "user", "content": "x" * 1000}]
        await api.expect(f"POST {path}", {"messages": long, "model": "b"}, 200, {"input_tokens": 998 + len(PROMPT)})
        await api.expect(f"POST {path}", {"messages": HI, "model": "c"}, 404)


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
async def test_counting_and_generating_return_the_same_warning(
    client: httpx.AsyncClient, counting: str, generating: str, body: dict[str, object]
) -> None:
    counted, generated = [await client.post(path, json=body) for path in (counting, generating)]
    assert (counted.status_code, generated.status_code) == (200, 200)
    assert "unheard-of" in counted.headers["x-llamapool-warning"]
    assert counted.headers["x-llamapool-warning"] == generated.headers["x-llamapool-warning"]


USER = {"role": "user", "content": "hi"}
DEMO = {"path": "demo.gguf", "load": "startup", "n_predict": 8}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
RANKER = {"path": "r.gguf", "load": "startup", "reranking": True}
UNKNOWN: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "/v1/chat/completions",
        {"messages": [USER], "max_token": 3, "stream_options": {"include_usages": True}},
        ["max_token", "stream_options.include_usages"],
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [USER | {"foo": 1, "content": [{"type": "text", "text": "a", "bar": 1}]}],
            "tools": [{"type": "function", "function": {"name": "f", "paramters": {}}}],
        },
        ["messages.0.foo", "messages.0.content.0.bar", "tools.0.function.paramters"],
    ),
    (
        "/v1/chat/completions",
        {"messages": [USER], "response_format": {"type": "text", "json_schema": {"yy": 1}, "zz": 1}},
        ["response_format.json_schema.yy", "response_format.zz"],
    ),
    ("/completion", {"prompt": "hi", "n_predcit": 1}, ["n_predcit"]),
    ("/infill", {"input_prefix": "", "input_suffix": "", "input_extr": []}, ["input_extr"]),
    (
        "/v1/messages",
        {
            "messages": [USER],
            "system": [{"type": "text", "text": "a", "foo": 1}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}, "typo": 1}],
            "thinking": {"type": "disabled", "budget": 1},
            "fallbacks": [{"model": "m"}],
        },
        ["fallbacks", "thinking.budget", "system.0.foo", "tools.0.typo"],
    ),
    (
        "/v1/responses",
        {"input": [USER | {"foo": 1}], "reasoning": {"effort": "low", "foo": 1}, "messages": []},
        ["messages", "reasoning.foo", "input.0.foo"],
    ),
    ("/v1/embeddings", {"input": "a", "dimension": 3}, ["dimension"]),
    ("/v1/rerank", {"query": "q", "documents": ["a"], "topn": 1}, ["topn"]),
    ("/tokenize", {"content": "a", "with_piece": True}, ["with_piece"]),
    ("/detokenize", {"tokens": [1], "foo": True}, ["foo"]),
    (
        "/api/chat",
        {"messages": [USER], "options": {"temprature": 1, "num_ctx": 9}, "stream": False, "foo": 1},
        ["foo", "options.temprature"],
    ),
    ("/api/embed", {"input": "a", "dimension": 3}, ["dimension"]),
    ("/v1/conversations", {"items": [USER], "meta": {}}, ["meta"]),
]


async def test_unknown_fields_are_listed_by_their_paths(serve: Serve) -> None:
    known = {"metadata": {"user_id": "u"}, "service_tier": "auto", "user": None}
    models = {"demo": DEMO, "e": EMBED, "r": RANKER}
    async with serve(FakeLoader(n_ctx_seq=2048), models=models) as api:
        for path, body, unknown in UNKNOWN:
            reply = await api.expect(f"POST {path}", {**known, **body})
            warnings = reply.headers["x-llamapool-warning"].split("; ")
            paths = [warning.split("'")[1] for warning in warnings if "unknown field" in warning]
            assert sorted(paths) == sorted(unknown), path
