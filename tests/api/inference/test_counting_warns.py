"""Endpoints that show or count a prompt leave out what the one that generates leaves out, and say so as well."""

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
