"""The same request to Llamapool and to llama-server: the same tokens, texts and counts come back."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, steady
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.real_server import RealServer

PROMPTS = [
    "the quick brown fox",
    "hello world this is a test of the server",
    "0123456789",
    "x",
    "naïve café — 日本語 🙂",
    "line one\nline two\n\n  indented",
    "the " * 200,
]
CHATS = [
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is the forest?"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three 日本"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "parts "}, {"type": "text", "text": "of text"}]}],
]
GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "logit_bias": ONLY_ASCII}


def token_ids(choice: dict[str, Any]) -> list[int]:
    return [entry["id"] for entry in choice["logprobs"]["content"]]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_completions_have_the_same_tokens(pair: Pair, prompt: str) -> None:
    ours, theirs = pair.post("/v1/completions", {**GREEDY, "prompt": prompt, "logprobs": 1, "cache_prompt": False})
    assert token_ids(ours["choices"][0]) == token_ids(theirs["choices"][0])
    assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]
    assert ours["usage"] == theirs["usage"]
    assert ours["choices"][0]["finish_reason"] == theirs["choices"][0]["finish_reason"]


@pytest.mark.parametrize("messages", CHATS)
def test_greedy_chats_are_the_same(pair: Pair, messages: list[dict[str, Any]]) -> None:
    ours, theirs = pair.post("/v1/chat/completions", {**GREEDY, "messages": messages, "cache_prompt": False})
    assert steady(ours) == steady(theirs)


def test_a_continued_message_is_whole_in_a_reply_and_new_in_a_stream(pair: Pair) -> None:
    messages = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "the animals of"}]
    ours, theirs = pair.post("/v1/chat/completions", {**GREEDY, "messages": messages})
    assert ours["choices"] == theirs["choices"]
    mine, other = pair.events("/v1/chat/completions", {**GREEDY, "messages": messages})
    assert [event["choices"] for event in mine[1:]] == [event["choices"] for event in other[1:]]


def test_a_model_that_ends_by_itself_stops_at_the_same_token(pair: Pair) -> None:
    body = {"temperature": 0, "max_tokens": 200, "logit_bias": [*ONLY_ASCII, ["</s>", 2.0]]}
    ours, theirs = pair.post("/v1/completions", {**body, "prompt": "the lazy dog"})
    assert theirs["choices"][0]["finish_reason"] == "stop"
    assert steady(ours)["choices"] == steady(theirs)["choices"]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [5, 6, 7, 300]},
        {"prompt": ["the fox", 300, 301, " and"]},
        {"prompt": "the fox", "repeat_penalty": 1.4, "repeat_last_n": 16},
        {"prompt": "the fox", "presence_penalty": 0.7, "frequency_penalty": 0.9},
        {"prompt": "the fox", "dry_multiplier": 2.0, "dry_allowed_length": 1},
        {"prompt": "the fox", "logit_bias": {"300": 4} | {str(token): -100 for token in range(128, 256)}},
        {"prompt": "the fox", "logit_bias": [*ONLY_ASCII, [302, 6.5], [" the", False]]},
        {"prompt": "the fox", "stop": ["e"]},
        {"prompt": "the fox", "max_tokens": 1},
        {"prompt": "the fox", "min_tokens": 3, "n_predict": 5, "unknown_field": 1},
        {"prompt": "the fox", "top_k": 1, "temperature": 2.0},
        {"prompt": "the fox", "samplers": ["top_k"], "top_k": 1, "temperature": 1.0},
        {"prompt": "the <|im_end|> fox"},
    ],
    ids=lambda fields: ",".join(str(value)[:30] for value in itertools.chain(*fields.items())),
)
def test_what_a_field_does_to_greedy_output_is_the_same(pair: Pair, fields: dict[str, Any]) -> None:
    ours, theirs = pair.post("/v1/completions", {**GREEDY, "cache_prompt": False, **fields})
    by_index = [sorted(reply["choices"], key=lambda choice: choice["index"]) for reply in (ours, theirs)]
    assert by_index[0] == by_index[1]
    assert ours["usage"] == theirs["usage"]


@pytest.mark.parametrize(
    "fields",
    [{"prompt": [[5, 6, 7], [300, 301]]}, {"prompt": ["the fox", "the dog"]}, {"prompt": "the fox", "n": 2}],
    ids=str,
)
def test_several_choices_are_the_same_and_all_are_counted(pair: Pair, fields: dict[str, Any]) -> None:
    """llama-server's ``usage`` counts the first choice only."""
    ours, theirs = pair.post("/v1/completions", {**GREEDY, "cache_prompt": False, **fields})
    by_index = [sorted(reply["choices"], key=lambda choice: choice["index"]) for reply in (ours, theirs)]
    assert by_index[0] == by_index[1]
    assert ours["usage"]["completion_tokens"] == 2 * theirs["usage"]["completion_tokens"]


SAMPLED = [
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.0, "typical_p": 0.5},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 1.0, "top_n_sigma": 1.0},
    {"temperature": 1.0, "dynatemp_range": 0.5, "dynatemp_exponent": 1.2},
    {"mirostat": 1},
    {"mirostat": 2, "mirostat_tau": 4.0},
    {"temperature": 1.0, "samplers": ["temperature", "top_p"], "top_p": 0.7},
]


@pytest.mark.parametrize("seed", [1, 42])
@pytest.mark.parametrize("fields", SAMPLED, ids=str)
def test_the_same_seed_gives_the_same_text(pair: Pair, fields: dict[str, Any], seed: int) -> None:
    """Both sample with the library's own chain and its mt19937."""
    body = {"prompt": "the quick", "seed": seed, "max_tokens": 24, "ignore_eos": True, "cache_prompt": False}
    ours, theirs = pair.post("/v1/completions", {**body, **fields})
    assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]


def test_log_probabilities_agree(pair: Pair) -> None:
    ours, theirs = pair.post(
        "/v1/chat/completions", {**GREEDY, "messages": CHATS[0], "logprobs": True, "top_logprobs": 5}
    )
    for mine, other in zip(*(reply["choices"][0]["logprobs"]["content"] for reply in (ours, theirs)), strict=True):
        assert mine["id"] == other["id"]
        assert mine["token"] == other["token"]
        assert mine["bytes"] == other["bytes"]
        assert mine["logprob"] == pytest.approx(other["logprob"], abs=LOGPROB_SPREAD)
        assert [top["id"] for top in mine["top_logprobs"]] == [top["id"] for top in other["top_logprobs"]]
        assert [top["logprob"] for top in mine["top_logprobs"]] == pytest.approx(
            [top["logprob"] for top in other["top_logprobs"]], abs=LOGPROB_SPREAD
        )


def test_the_cache_counts_the_same_tokens(pair: Pair) -> None:
    body = {**GREEDY, "prompt": "count the tokens that the server has seen before", "max_tokens": 4}
    pair.post("/v1/completions", body)
    ours, theirs = pair.post("/v1/completions", body)
    assert ours["usage"] == theirs["usage"]
    assert ours["timings"]["cache_n"] == theirs["timings"]["cache_n"]
    assert ours["timings"]["prompt_n"] == theirs["timings"]["prompt_n"]
    assert ours["timings"]["predicted_n"] == theirs["timings"]["predicted_n"]


def test_eight_streams_at_once_say_what_each_says_alone(pair: Pair) -> None:
    bodies = [{**GREEDY, "prompt": f"stream {i}: " + PROMPTS[i % len(PROMPTS)]} for i in range(8)]

    def text(server: RealServer, body: dict[str, Any]) -> str:
        *events, done = server.events("/v1/completions", {**body, "stream": True, "cache_prompt": False})
        assert done == "[DONE]"
        return "".join(json.loads(event)["choices"][0]["text"] for event in events)

    alone = [text(pair.ours, body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as together:
        assert list(together.map(lambda body: text(pair.ours, body), bodies)) == alone
    assert alone == [text(pair.theirs, body) for body in bodies]
