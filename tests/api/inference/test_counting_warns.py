"""What a body is answered without is named in a header, also by endpoints that only show or count its prompt."""

import httpx
import pytest

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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "moderation": {"model": "m"}}),
        ("/v1/completions", {"prompt": "hi", "min_token": 3}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "fallbacks": [{"model": "m"}]}),
        ("/v1/responses", {"input": "hi", "messages": []}),
        ("/completion", {"prompt": "hi", "n_predcit": 1}),
        ("/infill", {"input_prefix": "hi", "input_sufix": "x", "input_suffix": ""}),
    ],
)
async def test_a_field_that_is_not_known_is_named(
    client: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    hints = {"max_tokens": 1, "metadata": {"user_id": "u"}, "service_tier": "auto", "user": None}
    reply = await client.post(path, json={**body, **hints})
    unknown = next(
        name for name in body if name not in ("prompt", "input", "input_prefix", "messages") or body[name] == []
    )
    assert reply.headers["x-llamapool-warning"] == f"'{unknown}' is ignored: it is not known here"
