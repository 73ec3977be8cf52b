"""What a body is answered without is named in a header, also by endpoints that only show or count its prompt."""

from typing import Any

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
DEMO = {"path": "demo.gguf", "load": "startup", "n_predict": 8}
EMBED = {"path": "e.gguf", "load": "startup", "embedding": True, "pooling": "mean"}
RANKER = {"path": "r.gguf", "load": "startup", "reranking": True}


UNKNOWN: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "/v1/chat/completions",
        {"messages": [HI], "max_token": 3, "stream_options": {"include_usages": True}},
        ["max_token", "stream_options.include_usages"],
    ),
    ("/completion", {"prompt": "hi", "n_predcit": 1}, ["n_predcit"]),
    ("/infill", {"input_prefix": "", "input_suffix": "", "input_extr": []}, ["input_extr"]),
    (
        "/v1/messages",
        {"messages": [HI], "thinking": {"type": "disabled", "budget": 1}, "fallbacks": [{"model": "m"}]},
        ["fallbacks", "thinking.budget"],
    ),
    (
        "/v1/responses",
        {"input": [HI], "reasoning": {"effort": "low", "foo": 1}, "messages": []},
        ["messages", "reasoning.foo"],
    ),
    ("/v1/embeddings", {"input": "a", "dimension": 3}, ["dimension"]),
    ("/v1/rerank", {"query": "q", "documents": ["a"], "topn": 1}, ["topn"]),
    ("/tokenize", {"content": "a", "with_piece": True}, ["with_piece"]),
    ("/detokenize", {"tokens": [1], "foo": True}, ["foo"]),
    (
        "/api/chat",
        {"messages": [HI], "options": {"temprature": 1, "num_ctx": 9}, "stream": False, "foo": 1},
        ["foo", "options.temprature"],
    ),
    ("/api/embed", {"input": "a", "dimension": 3}, ["dimension"]),
    ("/v1/conversations", {"items": [HI], "meta": {}}, ["meta"]),
]


async def test_an_unknown_field_is_listed_by_its_path(serve: Serve) -> None:
    hints = {"metadata": {"user_id": "u"}, "service_tier": "auto", "user": None}
    models = {"demo": DEMO, "e": EMBED, "r": RANKER}
    async with serve(FakeLoader(runner=lambda: FakeRunner(n_ctx_seq=2048)), models=models) as api:
        for path, body, unknown in UNKNOWN:
            reply = await api.client.post(path, json={**hints, **body})
            assert reply.status_code == 200, reply.text
            said = [each for each in reply.headers["x-llamapool-warning"].split("; ") if "unknown field" in each]
            assert sorted(each.split("'")[1] for each in said) == sorted(unknown), path
