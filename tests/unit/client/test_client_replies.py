"""What each call returns, from replies as llama-server writes them."""

import base64
import struct
from typing import Any

import pytest

from llamapool.client import (
    Choice,
    CompletionResponse,
    EmbeddingData,
    LoraAdapter,
    Message,
    RerankResult,
    SlotInfo,
    StopType,
    Timings,
    UnexpectedReply,
    Usage,
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


def test_a_chat_reply() -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": "{}"}}
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 17,
        "model": "tiny",
        "system_fingerprint": "b1",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}},
            {
                "index": 1,
                "finish_reason": "tool_calls",
                "message": {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            },
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11},
        "timings": TIMINGS,
    }
    response = answering(reply).client.chat.completions.create(HELLO, n=2)
    assert response == CompletionResponse(
        id="chatcmpl-1",
        object="chat.completion",
        created=17,
        model="tiny",
        choices=[
            Choice(0, Message("assistant", "Hi"), None, "stop"),
            Choice(1, Message("assistant", "", [call], "hm"), None, "tool_calls"),
        ],
        usage=Usage(5, 6, 11),
        timings=Timings(2, 3.5, 1.75, 571.4, 4, 8.0, 2.0, 500.0, 1),
        system_fingerprint="b1",
    )
    assert response.raw == reply
    assert response.choices[1].raw == reply["choices"][1]
    assert response.choices[0].stop_type is None


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


def test_a_native_reply_is_a_completion_response() -> None:
    reply = native(tokens=[7, 8])
    response = answering(reply).client.complete("x")
    assert (response.id, response.object, response.model) == ("", "text_completion", "tiny")
    assert response.created > 1_700_000_000
    assert response.choices == [Choice(0, None, "a b", "stop")]
    assert response.usage == Usage(3, 2, 5)
    assert response.timings is not None
    assert response.timings.cache_n == 1
    assert response.raw == reply
    assert response.choices[0].raw["tokens"] == [7, 8]


def test_several_prompts_are_several_choices() -> None:
    replies = [native("one"), native("two", index=1, tokens_evaluated=4, stop_type="limit")]
    response = answering(replies).client.complete(["x", "y"])
    assert [(c.index, c.text, c.finish_reason) for c in response.choices] == [(0, "one", "stop"), (1, "two", "length")]
    assert response.usage == Usage(7, 4, 11)
    assert response.timings is None
    assert response.raw == replies


def test_a_prompt_with_several_answers_counts_once() -> None:
    response = answering([native("one"), native("two")]).client.complete("x", n_cmpl=2)
    assert response.usage == Usage(3, 4, 7)


def test_a_reply_cut_down_by_response_fields_has_what_is_left() -> None:
    response = answering({"n_predict": 5, "content": "a"}).client.complete("x", response_fields=["content"])
    assert (response.choices[0].text, response.usage, response.timings, response.model) == ("a", None, None, "")
    assert response.raw["n_predict"] == 5


def test_timings_of_older_servers_lack_some_or_have_null() -> None:
    response = answering(native(timings={"prompt_n": 3, "prompt_per_second": None})).client.complete("x")
    assert response.timings == Timings(prompt_n=3)


def test_a_simple_completion_is_text_where_it_can_be() -> None:
    assert answering(native("text")).client.simple_completion("x") == "text"
    assert answering(native("")).client.simple_completion("x") == ""
    several = answering([native("one"), native("two")]).client.simple_completion("x", n_cmpl=2)
    assert isinstance(several, CompletionResponse)
    assert isinstance(answering({"model": "tiny"}).client.simple_completion("x"), CompletionResponse)


def test_infill_is_a_completion_response() -> None:
    assert answering(native("middle")).client.infill("a", "b").choices[0].text == "middle"


EMBEDDINGS = {"object": "list", "model": "bert", "usage": {"prompt_tokens": 6, "total_tokens": 6}}


def test_embeddings() -> None:
    data = [{"embedding": [0.5, 1.0], "index": 0, "object": "embedding"}, {"embedding": [2.0, 3.0], "index": 1}]
    response = answering(EMBEDDINGS | {"data": data}).client.embeddings.create(["a", "b"])
    assert response.data == [EmbeddingData(0, [0.5, 1.0], "embedding"), EmbeddingData(1, [2.0, 3.0])]
    assert (response.object, response.model, response.usage) == ("list", "bert", Usage(6, 0, 6))


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


def test_rerank_gives_each_document_back() -> None:
    reply = {
        "model": "r",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
        "results": [{"index": 1, "relevance_score": 1.5}, {"index": 0, "relevance_score": -0.5}],
    }
    response = answering(reply).client.rerank("q", ["bad", "good"], top_n=2)
    assert response.results == [RerankResult(1, 1.5, "good"), RerankResult(0, -0.5, "bad")]
    assert (response.model, response.usage) == ("r", Usage(12, 0, 12))


def test_tokens_come_as_ids_or_with_pieces() -> None:
    plain = answering({"tokens": [261, 232]}).client.tokenize("x")
    assert (plain.tokens, plain.ids, plain.pieces) == ([261, 232], [261, 232], [])
    sent = [{"id": 261, "piece": " ä"}, {"id": 232, "piece": [229]}]
    pieces = answering({"tokens": sent}).client.tokenize("x", with_pieces=True)
    assert (pieces.tokens, pieces.ids, pieces.pieces) == (sent, [261, 232], [" ä".encode(), b"\xe5"])


def test_detokenize_gives_text() -> None:
    assert answering({"content": " a"}).client.detokenize([261]) == " a"


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


def test_what_a_slot_action_reports_is_given_as_it_is() -> None:
    reply = {"id_slot": 1, "filename": "a.bin", "n_saved": 3, "n_written": 99, "timings": {"save_ms": 0.5}}
    assert answering(reply).client.slots.save(1, "a.bin") == reply


def test_lora_adapters() -> None:
    adapter = {"id": 0, "path": "a.gguf", "scale": 0.5, "task_name": "", "prompt_prefix": ""}
    found = answering([adapter]).client.lora.list()
    assert found == [LoraAdapter(0, "a.gguf", 0.5)]
    assert found[0].raw == adapter
    assert answering({"success": True}).client.lora.set_scales([]) is True
    assert answering({"success": False}).client.lora.set_scales([]) is False


def test_models() -> None:
    model = {"id": "tiny", "object": "model", "created": 17, "owned_by": "llamacpp", "meta": {"n_vocab": 512}}
    found = answering({"object": "list", "data": [model, {"id": "other"}]}).client.models.list()
    assert [entry.id for entry in found] == ["tiny", "other"]
    assert (found[0].created, found[0].owned_by, found[0].meta) == (17, "llamacpp", {"n_vocab": 512})
    assert (found[1].meta, found[1].status) == (None, None)


def test_metrics_are_text() -> None:
    assert answering("# HELP a b\na 1\n").client.metrics() == "# HELP a b\na 1\n"
