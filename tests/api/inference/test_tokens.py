import httpx
import pytest

from tests.support.fakes import BOS


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
    ("body", "n_special"),
    [
        ({"prompt": "hé"}, 1),
        ({"prompt": "hé", "add_special_tokens": False}, 0),
        ({"content": "hé", "add_special_tokens": True}, 1),
        ({"content": "hé", "prompt": "other"}, 0),
    ],
)
async def test_vllms_names_are_read(client: httpx.AsyncClient, body: dict[str, object], n_special: int) -> None:
    tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
    assert tokens == [BOS] * n_special + [104, 195, 169]


async def test_a_tokenizer_says_what_harnesses_need_beside_its_tokens(client: httpx.AsyncClient) -> None:
    info = (await client.get("/tokenizer_info")).json()
    props = (await client.get("/props")).json()
    assert [info[name] for name in ("bos_token", "eos_token", "chat_template")] == [
        props[name] for name in ("bos_token", "eos_token", "chat_template")
    ]
    assert info["model_max_length"] == props["default_generation_settings"]["n_ctx"]
    assert (await client.get("/tokenizer_info", params={"model": "demo"})).json() == info
