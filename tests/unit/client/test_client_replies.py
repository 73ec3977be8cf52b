"""What each call returns, from replies as llama-server writes them."""

import base64
import struct
from typing import Any

import pytest

from llamapool.client import (
    Choice,
    CompletionResponse,
    SlotInfo,
    StopType,
    Timings,
    UnexpectedReply,
)
from tests.unit.client.answers import answering

HELLO = [{"role": "user", "content": "Hello"}]
TIMINGS = {
    "cache_n": 1, "prompt_n": 2, "prompt_ms": 3.5, "prompt_per_token_ms": 1.75, "prompt_per_second": 571.4,
    "predicted_n": 4, "predicted_ms": 8.0, "predicted_per_token_ms": 2.0, "predicted_per_second": 500.0,
}  # fmt: skip


def native(content: str = "a b", **fields: object) -> dict[str, Any]:
    """A native reply of llama-server with `fields` changed."""
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "id_slot": 1,
        "stop": True,
        "model": "tiny",
        "tokens_predicted": 2,
        "tokens_evaluated": 3,
        "stop_type": "eos",
        "stopping_word": "",
        "tokens_cached": 4,
        "truncated": False,
        "timings": TIMINGS,
        **fields,
    }


def test_a_chat_reply_of_another_server_may_lack_almost_everything() -> None:
    response = answering({"choices": [{}]}).client.chat_completion(HELLO)
    assert response == CompletionResponse("", "chat.completion", 0, "", [Choice(0)])


@pytest.mark.parametrize(
    ("stop_type", "kind", "finish_reason"),
    [
        ("eos", StopType.EOS, "stop"),
        ("word", StopType.WORD, "stop"),
        ("limit", StopType.LIMIT, "length"),
        ("none", StopType.NONE, None),
        ("new", None, None),
        (None, None, None),
    ],
)
def test_a_native_reply_ends_for_a_reason(stop_type: str | None, kind: StopType | None, finish_reason: str) -> None:
    choice = answering(native(stop_type=stop_type)).client.complete("x").choices[0]
    assert (choice.stop_type, choice.finish_reason) == (kind, finish_reason)


def test_a_reply_cut_down_by_response_fields_has_what_is_left() -> None:
    response = answering({"n_predict": 5, "content": "a"}).client.complete("x", response_fields=["content"])
    assert (response.choices[0].text, response.usage, response.timings, response.model) == ("a", None, None, "")
    assert response.raw["n_predict"] == 5


def test_timings_of_older_servers_lack_some_or_have_null() -> None:
    response = answering(native(timings={"prompt_n": 3, "prompt_per_second": None})).client.complete("x")
    assert response.timings == Timings(prompt_n=3)


EMBEDDINGS = {"object": "list", "model": "bert", "usage": {"prompt_tokens": 6, "total_tokens": 6}}


def test_base64_embeddings_are_decoded() -> None:
    encoded = base64.b64encode(struct.pack("<2f", 0.5, -1.0)).decode()
    reply = EMBEDDINGS | {"data": [{"embedding": encoded, "index": 0, "encoding_format": "base64"}]}
    response = answering(reply).client.embeddings.create("a", encoding_format="base64")
    assert response.data[0].embedding == [0.5, -1.0]
    assert response.raw["data"][0]["embedding"] == encoded


@pytest.mark.parametrize("embedding", [None, 1.0, "%%%", base64.b64encode(b"12345").decode()])
def test_an_embedding_that_is_none_is_unexpected(embedding: object) -> None:
    with pytest.raises(UnexpectedReply):
        answering({"data": [{"embedding": embedding}]}).client.embeddings.create("a")


@pytest.mark.parametrize(
    ("reply", "vectors"),
    [
        ([{"index": 0, "embedding": [[1.0, 2.0]]}], [[1.0, 2.0]]),
        ([{"index": 1, "embedding": [[2.0]]}, {"index": 0, "embedding": [[1.0]]}], [[1.0], [2.0]]),
        ([{"index": 0, "embedding": [[1.0], [2.0], [3.0]]}], [[1.0], [2.0], [3.0]]),
        ({"embedding": [1.0, 2.0]}, [[1.0, 2.0]]),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [2.0]}], [[1.0], [2.0]]),
    ],
    ids=["pooled", "out of order", "a vector for each token", "before 2025", "before 2025, several"],
)
def test_native_embeddings_of_every_shape_are_vectors(reply: object, vectors: list[list[float]]) -> None:
    assert answering(reply).client.embed("a") == vectors


@pytest.mark.parametrize("reply", [[{"index": 0}], [{"index": 0, "embedding": []}], [1.0], "x"])
def test_native_embeddings_of_no_shape_are_unexpected(reply: object) -> None:
    with pytest.raises(UnexpectedReply):
        answering(reply).client.embed("a")


def test_tokens_come_as_ids_or_with_pieces() -> None:
    plain = answering({"tokens": [261, 232]}).client.tokenize("x")
    assert (plain.tokens, plain.ids, plain.pieces) == ([261, 232], [261, 232], [])
    sent = [{"id": 261, "piece": " ä"}, {"id": 232, "piece": [229]}]
    pieces = answering({"tokens": sent}).client.tokenize("x", with_pieces=True)
    assert (pieces.tokens, pieces.ids, pieces.pieces) == (sent, [261, 232], [" ä".encode(), b"\xe5"])


def test_slots_may_lack_fields_or_have_more() -> None:
    slots = [
        {"id": 0, "n_ctx": 256, "speculative": False, "is_processing": False},
        {"id": 1, "n_ctx": 256, "is_processing": True, "params": {"n_predict": 9}, "prompt": "a", "later": 1},
        {"id": 2, "state": 1, "n_predict": 5, "n_ctx": 256, "params": None},
    ]
    found = answering(slots).client.slots.list()
    assert found == [
        SlotInfo(0, False, 256),
        SlotInfo(1, True, 256, 9, {"n_predict": 9}, "a"),
        SlotInfo(2, True, 256, 5),
    ]
    assert found[1].raw["later"] == 1
