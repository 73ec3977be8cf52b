"""Tests of `LlamaCppClient` that pass on any compatible server.

`test_llamacpp_client` runs them on Llamapool, `tests/model/oracle/test_client.py` on llama-server. The fixture
``client`` must connect to a server of the class's ``MODEL`` with the alias `ALIAS`.
"""

import math
from dataclasses import replace
from typing import Any

import pytest

from llamapool.client import BadRequest, CompletionResponse, LlamaCppClient, NotSupported, StopType
from tests.support.closeness import same_vectors
from tests.support.ggufs import BERT, BERT_RERANKER, EMBED_NONE, REPO_FIM
from tests.support.waiting import wait_until

N_SLOTS, N_CTX = 4, 65_536
LONG = 16_000  # tokens within a slot's context; long enough that clients disconnect before the end
GENERATOR = replace(REPO_FIM, n_ctx=N_CTX // N_SLOTS)
ALIAS = "tiny"
PROMPT = "the quick brown fox"
HELLO = [{"role": "user", "content": "hello"}]
ONLY_ASCII = [[token, False] for token in range(128, 256)]  # random weights would generate incomplete characters
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "repeat_penalty": 1.0}


def n_generated(client: LlamaCppClient) -> float:
    """Return the number of tokens that the server has generated since its start."""
    lines = client.metrics().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("llamacpp:tokens_predicted_total"))


def n_generated_when_idle(client: LlamaCppClient) -> float:
    """Wait until all slots are idle; return the number of tokens that the server has generated since its start."""
    wait_until(lambda: not any(slot.is_processing for slot in client.slots.list()), "all slots are idle")
    return n_generated(client)


class GeneratingContract:
    """A generating model: a server with slots, metrics, props, a LoRA at scale 1 and a folder for saved slots."""

    MODEL = GENERATOR

    def test_health_is_ok(self, client: LlamaCppClient) -> None:
        assert client.health().status == "ok"
        assert client.is_ready()
        assert client.wait_until_ready(timeout=100.0, poll_interval=0.1)

    def test_properties_can_be_read_and_set(self, client: LlamaCppClient) -> None:
        assert client.props()["total_slots"] == N_SLOTS
        assert client.set_props()["success"] is True

    def test_metrics_count_generated_tokens(self, client: LlamaCppClient) -> None:
        client.complete(PROMPT, 5, **GREEDY)
        assert n_generated(client) >= 5

    def test_models_are_listed_with_metadata(self, client: LlamaCppClient) -> None:
        (model,) = client.models.list()
        assert (model.id, model.object) == (ALIAS, "model")
        assert model.meta is not None
        assert model.meta["n_embd"] == 64

    def test_a_chat_and_its_stream_have_the_same_text(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "max_tokens": 12, "logit_bias": ONLY_ASCII}
        whole = client.chat.completions.create(HELLO, **options)
        choice = whole.choices[0]
        assert choice.message is not None
        assert (choice.message.role, choice.finish_reason, choice.text) == ("assistant", "length", None)
        assert whole.object == "chat.completion"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + 12
        assert whole.timings is not None
        assert whole.timings.predicted_n == 12
        assert whole.timings.predicted_per_second > 0
        chunks = list(client.chat_completion(HELLO, stream=True, **options))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == choice.message.content

    def test_a_chat_has_n_choices(self, client: LlamaCppClient) -> None:
        whole = client.chat.completions.create(HELLO, n=3, max_tokens=3, seed=7, ignore_eos=True)
        assert [choice.index for choice in whole.choices] == [0, 1, 2]

    def test_a_chat_returns_logprobs(self, client: LlamaCppClient) -> None:
        whole = client.chat_completion(HELLO, max_tokens=3, logprobs=True, top_logprobs=2, **GREEDY)
        assert len(whole.choices[0].raw["logprobs"]["content"]) == 3

    def test_a_completion_and_its_stream_have_the_same_text(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "n_predict": 12, "logit_bias": ONLY_ASCII}
        whole = client.complete(PROMPT, return_tokens=True, **options)
        choice = whole.choices[0]
        assert (whole.object, whole.model) == ("text_completion", ALIAS)
        assert (choice.finish_reason, choice.stop_type, choice.message) == ("length", StopType.LIMIT, None)
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == len(client.tokenize(PROMPT, add_special=True).ids)
        assert whole.usage.completion_tokens == 12
        assert whole.timings is not None
        assert whole.timings.predicted_n == 12
        assert len(whole.raw["tokens"]) == 12
        assert whole.raw["generation_settings"]["n_predict"] == 12
        *chunks, last = client.complete(PROMPT, stream=True, **options)
        assert "".join(chunk["content"] for chunk in [*chunks, last]) == choice.text
        assert (last["stop"], last["stop_type"]) == (True, "limit")
        assert client.simple_completion(PROMPT, **options) == choice.text

    def test_a_stop_string_ends_a_completion(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "n_predict": 30, "logit_bias": ONLY_ASCII}
        text = client.complete(PROMPT, **options).choices[0].text
        assert text is not None
        choice = client.complete(PROMPT, stop=[text[8:11]], **options).choices[0]
        assert choice.text == text[: text.index(text[8:11])]
        assert (choice.finish_reason, choice.stop_type) == ("stop", StopType.WORD)

    def test_prompts_may_be_text_tokens_mixed_or_several(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "n_predict": 4, "logit_bias": ONLY_ASCII}
        one = client.simple_completion(PROMPT, **options)
        tokens = client.tokenize(PROMPT, add_special=True).ids
        assert client.complete(tokens, **options).choices[0].text == one
        mixed: list[str | int] = [PROMPT, 300, " fox"]
        assert client.complete(mixed, **options).usage is not None
        both = client.complete([PROMPT, "another"], **options)
        assert [choice.index for choice in both.choices] == [0, 1]
        assert both.choices[0].text == one
        assert both.usage is not None
        assert both.usage.completion_tokens == 8

    def test_n_cmpl_returns_several_choices(self, client: LlamaCppClient) -> None:
        whole = client.complete(PROMPT, 4, n_cmpl=2, **GREEDY)
        assert len(whole.choices) == 2
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == len(client.tokenize(PROMPT, add_special=True).ids)
        assert isinstance(client.simple_completion(PROMPT, n_predict=4, n_cmpl=2), CompletionResponse)

    def test_a_completion_applies_llama_servers_options(self, client: LlamaCppClient) -> None:
        whole = client.complete(
            PROMPT, 6, n_probs=2, grammar='root ::= "ab" [0-9]+', samplers=["top_k", "temperature"], id_slot=2, seed=5
        )
        assert whole.choices[0].text is not None
        assert whole.choices[0].text.startswith("ab")
        assert len(whole.raw["completion_probabilities"][0]["top_logprobs"]) == 2
        assert whole.raw["id_slot"] == 2
        assert whole.raw["generation_settings"]["samplers"] == ["top_k", "temperature"]

    def test_response_fields_select_the_fields_of_a_reply(self, client: LlamaCppClient) -> None:
        whole = client.complete(PROMPT, 3, response_fields=["content", "generation_settings/n_predict"], **GREEDY)
        assert whole.raw == {"content": whole.choices[0].text, "generation_settings/n_predict": 3}
        assert (whole.usage, whole.timings) == (None, None)

    def test_infill_and_its_stream_have_the_same_text(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "n_predict": 6, "logit_bias": ONLY_ASCII}
        extra = [{"filename": "other.py", "text": "x = 1\n"}]
        whole = client.infill("def f(", "return 1", extra, "a", **options)
        assert whole.choices[0].stop_type == StopType.LIMIT
        chunks = client.infill("def f(", "return 1", extra, "a", stream=True, **options)
        assert "".join(chunk["content"] for chunk in chunks) == whole.choices[0].text

    def test_closing_a_stream_cancels_the_request(self, client: LlamaCppClient) -> None:
        before = n_generated(client)
        with client.complete(PROMPT, n_predict=LONG, stream=True, **GREEDY) as stream:
            next(stream)
        assert n_generated_when_idle(client) - before < LONG

    def test_breaking_out_of_a_stream_cancels_the_request(self, client: LlamaCppClient) -> None:
        before = n_generated(client)
        for chunk in client.chat.completions.create(HELLO, max_tokens=LONG, stream=True, **GREEDY):
            if chunk["choices"][0]["delta"].get("content"):
                break
        assert n_generated_when_idle(client) - before < LONG

    def test_tokenize_and_detokenize_are_inverse(self, client: LlamaCppClient) -> None:
        text = "the fox é"
        plain = client.tokenize(text)
        assert client.detokenize(plain.ids) == text
        pieces = client.tokenize(text, with_pieces=True)
        assert pieces.ids == plain.ids
        assert b"".join(pieces.pieces).decode().strip() == text
        assert len(client.tokenize(text, add_special=True).ids) == len(plain.ids) + 1

    def test_slots_are_listed(self, client: LlamaCppClient) -> None:
        client.complete(PROMPT, 3, id_slot=1, **GREEDY)
        slots = client.slots.list(fail_on_no_slot=True)
        assert [slot.id for slot in slots] == list(range(N_SLOTS))
        assert not any(slot.is_processing for slot in slots)
        assert all(slot.n_ctx >= N_CTX // N_SLOTS for slot in slots)
        assert slots[1].n_predict == 3

    def test_a_slot_is_saved_erased_and_restored(self, client: LlamaCppClient) -> None:
        client.complete("one two three four five six", 4, id_slot=0, **GREEDY)
        saved = client.slots.save(0, "client.bin")
        assert (saved["id_slot"], saved["filename"]) == (0, "client.bin")
        assert client.slots.erase(0)["n_erased"] == saved["n_saved"]
        restored = client.slots.restore(3, "client.bin")
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again = client.complete("one two three four five six", 4, id_slot=3, **GREEDY)
        assert again.timings is not None
        assert again.timings.cache_n > 0

    def test_lora_scales_change_the_generated_text(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "n_predict": 8, "logit_bias": ONLY_ASCII}
        (adapter,) = client.lora.list()
        assert (adapter.id, adapter.scale) == (0, 1.0)
        assert adapter.path.endswith(".gguf")
        with_adapter = client.simple_completion(PROMPT, **options)
        try:
            assert client.lora.set_scales([{"id": 0, "scale": 0.0}])
            assert client.lora.list()[0].scale == 0.0
            assert client.simple_completion(PROMPT, **options) != with_adapter
        finally:
            client.lora.set_scales([{"id": 0, "scale": 1.0}])
        assert client.simple_completion(PROMPT, lora=[{"id": 0, "scale": 0.0}], **options) != with_adapter
        assert client.simple_completion(PROMPT, **options) == with_adapter

    def test_invalid_fields_raise_bad_request(self, client: LlamaCppClient) -> None:
        with pytest.raises(BadRequest) as raised:
            client.complete(PROMPT, 3, grammar="root ::= (")
        assert raised.value.type == "invalid_request_error"
        with pytest.raises(BadRequest):
            client.slots.save(0, "../client.bin")

    @pytest.mark.parametrize("stream", [False, True])
    def test_the_error_for_a_too_long_prompt_has_its_length(self, client: LlamaCppClient, stream: bool) -> None:
        with pytest.raises(BadRequest) as raised:
            client.complete([300] * (N_CTX + 1), 3, stream=stream)
        assert raised.value.type == "exceed_context_size_error"
        assert raised.value.body["error"]["n_prompt_tokens"] == N_CTX + 1

    def test_openai_completions_and_their_stream_have_the_same_text(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "max_tokens": 6, "logit_bias": ONLY_ASCII}
        whole = client.completions.create(PROMPT, **options)
        assert whole.object == "text_completion"
        chunks = list(client.completions.create(PROMPT, stream=True, **options))
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == whole.choices[0].text

    def test_anthropic_messages_and_their_stream_have_the_same_text(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "max_tokens": 6, "logit_bias": ONLY_ASCII, "system": "be brief"}
        whole = client.messages.create(HELLO, **options)
        assert (whole.stop_reason, whole.output_tokens) == ("max_tokens", 6)
        assert whole.text
        events = list(client.messages.create(HELLO, stream=True, **options))
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(delta.get("text", "") for delta in deltas) == whole.text
        assert client.messages.count_tokens(HELLO, system="be brief") > client.messages.count_tokens(HELLO)

    def test_responses_and_their_stream_have_the_same_text(self, client: LlamaCppClient) -> None:
        options: dict[str, Any] = {**GREEDY, "max_output_tokens": 6, "logit_bias": ONLY_ASCII}
        whole = client.responses.create("hello", **options)
        assert whole.output_tokens == 6
        assert whole.output_text
        events = list(client.responses.create("hello", stream=True, **options))
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text

    def test_a_chat_can_be_rendered_and_its_tokens_counted(self, client: LlamaCppClient) -> None:
        prompt = client.chat.render(HELLO)
        assert "hello" in prompt
        assert client.chat.input_tokens(HELLO) == len(client.tokenize(prompt, add_special=True).ids)

    def test_embeddings_and_rerank_are_not_supported(self, client: LlamaCppClient) -> None:
        with pytest.raises(NotSupported):
            client.embeddings.create("a")
        with pytest.raises(NotSupported):
            client.embed("a")
        with pytest.raises(NotSupported):
            client.rerank("a", ["b"])


class EmbeddingContract:
    """A pooling embedding model."""

    MODEL = BERT

    def test_openai_embeddings_are_equal_in_both_encodings(self, client: LlamaCppClient) -> None:
        texts = ["a quick fox", "another text"]
        plain = client.embeddings.create(texts)
        assert [entry.index for entry in plain.data] == [0, 1]
        assert all(len(entry.embedding) == 64 for entry in plain.data)
        assert plain.usage is not None
        assert plain.usage.prompt_tokens == plain.usage.total_tokens > 4
        packed = client.embeddings.create(texts, encoding_format="base64")
        for a, b in zip(plain.data, packed.data, strict=True):
            assert same_vectors(b.embedding, a.embedding)

    def test_native_embeddings_apply_the_requested_norm(self, client: LlamaCppClient) -> None:
        (unit,), (plain,) = client.embed("a quick fox"), client.embed("a quick fox", embd_normalize=-1)
        length = math.hypot(*plain)
        assert math.hypot(*unit) == pytest.approx(1.0, abs=1e-3)
        assert same_vectors(unit, [value / length for value in plain])
        assert len(client.embed(["a", "b", "c"])) == 3


class PerTokenContract:
    """An embedding model without pooling."""

    MODEL = EMBED_NONE

    def test_each_token_has_a_vector(self, client: LlamaCppClient) -> None:
        n_tokens = len(client.tokenize(PROMPT, add_special=True).ids)
        assert [len(vector) for vector in client.embed(PROMPT)] == [64] * n_tokens

    def test_openai_embeddings_need_pooling(self, client: LlamaCppClient) -> None:
        with pytest.raises(BadRequest, match=r"[Pp]ooling"):
            client.embeddings.create(PROMPT)


class RankingContract:
    """A reranker."""

    MODEL = BERT_RERANKER

    def test_documents_are_sorted_by_score(self, client: LlamaCppClient) -> None:
        documents = ["a quick fox", "two words", "something else again"]
        everything = client.rerank("a fox", documents)
        assert sorted(result.index for result in everything.results) == [0, 1, 2]
        scores = [result.relevance_score for result in everything.results]
        assert scores == sorted(scores, reverse=True)
        assert all(result.document == documents[result.index] for result in everything.results)
        assert client.rerank("a fox", documents, top_n=1).results[0].index == everything.results[0].index
