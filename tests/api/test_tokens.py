import httpx
import pytest

from tests.fakes import BOS


async def test_tokenize_as_recorded(client: httpx.AsyncClient) -> None:
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
    ("path", "body", "named"),
    [
        ("/tokenize", {"content": {"a": 1}}, "content"),
        ("/detokenize", {"tokens": [1, 99999]}, "tokens.1"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
async def test_a_wrong_body_is_a_400_that_names_the_field(
    client: httpx.AsyncClient, path: str, body: object, named: str
) -> None:
    reply = await client.post(path, json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", named)
