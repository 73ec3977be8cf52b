"""``/completion``, ``/infill`` and OpenAI's streams compared with llama-server: tokens, probabilities, settings."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, rounded, shape_differences
from tests.model.oracle.conftest import CHAT, Start
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.ggufs import PLAIN, REPO_FIM, TinyModel, gguf_file

PROMPT = {"prompt": "the quick brown fox", "cache_prompt": False, "return_tokens": True}
GREEDY = {**PROMPT, "temperature": 0, "n_predict": 24, "ignore_eos": True, "logit_bias": ONLY_ASCII}
VOLATILE = {"timings", "id_slot"}
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": -3},
    {"top_k": 1, "temperature": 5},
    {"top_k": -7, "top_p": 0.5},
    {"top_p": 3.0, "min_p": -1},
    {"xtc_probability": 0.7, "xtc_threshold": 0.02},
    {"xtc_probability": 9, "xtc_threshold": 0.05},
    {"repeat_last_n": 0, "repeat_penalty": 1.9},
    {"dry_multiplier": 1.2, "dry_base": 0.3, "dry_sequence_breakers": ["e", " t"]},
    {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.3},
    {"mirostat": 7},
    {"samplers": ["adaptive_p"], "adaptive_target": 0.3, "adaptive_decay": 0.5},
    {"samplers": ["temperature", "top_k", "top_k"], "top_k": 4},
    {"samplers": []},
    {"samplers": ["infill"]},
    {"logit_bias": {"300": 5, " the": False, "301": -2.5, **{str(token): False for token, _ in ONLY_ASCII}}},
    {"logit_bias": [*ONLY_ASCII, [300, 4], ["fox", -3], [302, False]]},
]


def check_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that two replies are equal except for durations and rounding."""
    assert set(ours["timings"]) == set(theirs["timings"])
    for name in ("cache_n", "prompt_n", "predicted_n"):
        assert ours["timings"][name] == theirs["timings"][name], name
    check_fields(ours, theirs)


def check_fields(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that the fields of two replies or events are equal except for timings and rounding."""
    assert list(ours) == list(theirs)
    for name in theirs.keys() - VOLATILE - {"completion_probabilities"}:
        assert rounded(ours[name]) == rounded(theirs[name]), name
    entries = zip(ours.get("completion_probabilities", []), theirs.get("completion_probabilities", []), strict=True)
    for mine, other in entries:
        value, top = ("prob", "top_probs") if "prob" in other else ("logprob", "top_logprobs")
        assert list(mine) == list(other)
        for one, two in zip([mine, *mine[top]], [other, *other[top]], strict=True):
            assert (one["id"], one["token"], one["bytes"]) == (two["id"], two["token"], two["bytes"])
            assert one[value] == pytest.approx(two[value], abs=LOGPROB_SPREAD)


@pytest.mark.parametrize("fields", SAMPLERS, ids=lambda fields: str(fields)[:60])
def test_replies_with_post_sampling_probabilities_are_equal(pair: Pair, fields: dict[str, Any]) -> None:
    body = {**PROMPT, "temperature": 0.9, "seed": 7, "n_predict": 12, "n_probs": 4, "post_sampling_probs": True}
    ours, theirs = pair.post("/completion", {**body, "logit_bias": ONLY_ASCII, **fields})
    check_equal(ours, theirs)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "hello world"},
        {"prompt": [5, 6, 7, 300]},
        {"prompt": [5, "mixed", 300, " text"]},
        {"prompt": ["mixed", 300]},
        {"prompt": {"prompt_string": "an object"}},
        {"prompt": {"prompt_string": ["of tokens", 300]}},
        {"prompt": "naïve café <|im_end|> 日本"},
        {"prompt": "x " * 400},
        {"prompt": ""},
        {"n_predict": 1},
        {"n_predict": -1, "stop": ["e", "o"]},
        {"n_predict": -1, "prompt": "x " * 450},
        {"max_tokens": 3},
        {"n_predict": 4, "max_tokens": 9},
        {"n_indent": 3, "n_keep": 5, "n_discard": 2, "t_max_predict_ms": 60000},
        {"min_keep": 2, "timings_per_token": True, "n_probs": 0},
        {"stop": "he"},
        {"stop": []},
        {"stop": ["never said"]},
        {"grammar": 'root ::= "yes" | "no"', "n_predict": 1},
        {"response_format": {"type": "json_object"}},
        {"unknown": {"field": 1}},
        {"lora": []},
        {"reasoning_format": "none"},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_greedy_replies_are_equal(pair: Pair, fields: dict[str, Any]) -> None:
    ours, theirs = pair.post("/completion", {**GREEDY, **fields})
    check_equal(ours, theirs)


@pytest.mark.parametrize(
    "constraint",
    [{"grammar": 'root ::= "yes" | "no"'}, {"json_schema": {"enum": ["on", "off"]}}, {"json_schema": {"type": "null"}}],
    ids=str,
)
def test_constrained_replies_are_equal_without_the_end_token(pair: Pair, constraint: dict[str, Any]) -> None:
    """llama-server samples an end token. Llamapool ends when only an end token can follow."""
    ours, theirs = pair.post("/completion", {**GREEDY, "ignore_eos": False, **constraint})
    for name in ("content", "stop_type", "tokens_evaluated", "prompt"):
        assert ours[name] == theirs[name]
    assert ours["generation_settings"]["grammar"] == theirs["generation_settings"]["grammar"]
    assert ours["tokens"] == theirs["tokens"][:-1]


def test_the_tokens_of_a_reply_include_its_end_token(pair: Pair) -> None:
    body = {**GREEDY, "ignore_eos": False, "n_predict": 200, "logit_bias": [*ONLY_ASCII, ["</s>", 2.0]]}
    ours, theirs = pair.post("/completion", {**body, "prompt": "the lazy dog", "n_probs": 1, "stop": ["zzz"]})
    assert theirs["stop_type"] == "eos"
    assert ours["tokens"] == theirs["tokens"]
    assert theirs["completion_probabilities"][-1]["token"] == ""
    check_equal(ours, theirs)


def test_several_prompts_or_choices_give_an_array_of_replies(pair: Pair) -> None:
    prompts = ["the fox", [300, 301], [5, "x"], {"prompt_string": "dog"}]
    for fields in ({"prompt": prompts}, {"n_cmpl": 2}, {"prompt": ["a", "b"], "n": 2}):
        ours, theirs = pair.post("/completion", {**GREEDY, "n_predict": 6, **fields})
        assert [reply["index"] for reply in ours] == list(range(len(theirs)))
        for mine, other in zip(ours, theirs, strict=True):
            check_equal({**mine, "timings": other["timings"]}, other)


@pytest.mark.parametrize(
    "fields",
    [
        ["content", "generation_settings/n_predict", "tokens"],
        ["nope", "content/x", "generation_settings", "", "a/b/c"],
        ["stop", "stop", "generation_settings/speculative.types", "generation_settings/lora"],
        [],
    ],
)
def test_response_fields_select_the_same_fields(pair: Pair, fields: list[str]) -> None:
    ours, theirs = pair.post("/completion", {**GREEDY, "n_predict": 3, "response_fields": fields})
    assert list(ours) == list(theirs)
    if fields:
        assert rounded(ours) == rounded(theirs)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_probs": 2},
        {"n_probs": 2, "post_sampling_probs": True, "temperature": 0.9, "seed": 3},
        {"timings_per_token": True},
        {"response_fields": ["content", "stop_type"]},
        {"stop": ["never said"]},
    ],
    ids=str,
)
def test_events_of_native_streams_are_equal(pair: Pair, fields: dict[str, Any]) -> None:
    ours, theirs = pair.native_events("/completion", {**GREEDY, **fields})
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        check_fields(mine, other)
        assert set(mine.get("timings", {})) == set(other.get("timings", {}))


CHAT_GREEDY = {
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "cache_prompt": False,
    "logit_bias": ONLY_ASCII,
}
INCLUDE_USAGE = {"stream_options": {"include_usage": True}}
HELLO = [{"role": "user", "content": "hello"}]
FIRST_CONTENT = "choices.0.delta.content: string/null"
"""OpenAI's first chat delta has ``"content": ""``. That of llama-server has null, which some clients reject."""


def choices(event: dict[str, Any]) -> list[Any]:
    """Return an event's choices without log probabilities, which are rounded differently."""
    return [{name: value for name, value in choice.items() if name != "logprobs"} for choice in event["choices"]]


@pytest.mark.parametrize(
    "fields",
    [{}, {"timings_per_token": True}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, **INCLUDE_USAGE}],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_events_of_openais_streams_are_equal(pair: Pair, path: str, fields: dict[str, Any]) -> None:
    """Except the first delta of a chat, and the usage of a completion, which has its own event only on request."""
    ours, theirs = pair.events(path, {**CHAT_GREEDY, "prompt": "the quick brown", "messages": HELLO, **fields})
    if "stream_options" in fields:
        assert ours[-1]["choices"] == []
        assert ours[-1]["usage"] == theirs[-1]["usage"]
        if path != CHAT:  # llama-server always adds it to the last event with a choice
            *ours, end = ours
            del theirs[-1]["usage"]
            assert theirs[-1].pop("timings").keys() == end["timings"].keys()
    first = 1 if path == CHAT else 0
    if first:
        assert shape_differences(ours[0], theirs[0]) == {FIRST_CONTENT}
    assert list(map(choices, ours[first:])) == list(map(choices, theirs[first:]))
    for mine, other in zip(ours[first:], theirs[first:], strict=True):
        assert shape_differences(mine, other) == set()


def test_invalid_utf8_is_streamed_as_replacement_characters(pair: Pair) -> None:
    """Their number differs between JSON libraries. The text of Llamapool's stream equals that of its reply."""
    body = {**CHAT_GREEDY, "prompt": "the quick brown", "max_tokens": 40, "logit_bias": []}
    ours, theirs = (
        "".join(event["choices"][0]["text"] for event in events) for events in pair.events("/v1/completions", body)
    )
    assert "\ufffd" in ours
    assert re.sub("\ufffd+", "", ours) == re.sub("\ufffd+", "", theirs)
    assert pair.ours.post("/v1/completions", body)["choices"][0]["text"] == ours


@pytest.mark.parametrize("stop", [["e"], ["he", "qu"], ["never said"], ["t", "th"]], ids=str)
def test_stop_strings_end_a_stream_with_the_same_text(pair: Pair, stop: list[str]) -> None:
    body = {**CHAT_GREEDY, "prompt": "the quick brown", "max_tokens": 60, "stop": stop}
    ours, theirs = pair.events("/v1/completions", body)
    texts = ["".join(event["choices"][0]["text"] for event in events) for events in (ours, theirs)]
    assert texts[0] == texts[1]
    assert ours[-1]["choices"][0]["finish_reason"] == theirs[-1]["choices"][0]["finish_reason"]


N_CTX, N_BATCH = 512, 256
INFILL_GREEDY = {"temperature": 0, "n_predict": 6, "ignore_eos": True, "logit_bias": ONLY_ASCII, "cache_prompt": False}
INFILL_BODIES: list[dict[str, Any]] = [
    {"input_prefix": "the quick ", "input_suffix": " dog"},
    {"input_prefix": "", "input_suffix": ""},
    {"input_prefix": "the ", "input_suffix": " end", "prompt": "quick"},
    {"input_prefix": "<|im_end|>", "input_suffix": "<|fim_middle|>", "prompt": "<|im_end|>"},
    {"input_prefix": [300, "x"], "input_suffix": [5, 6]},
    {"input_prefix": "the fox " * 100, "input_suffix": "over " * 100},
    {"input_prefix": "the fox " * 100, "input_suffix": "over " * 100, "prompt": "a b c " * 5},
    {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "one file\n", "filename": "one.py"}]},
    {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "no name"}, {"text": "", "filename": ""}]},
    {"input_prefix": "a " * 90, "input_suffix": "b " * 90, "input_extra": [{"text": "long " * 300, "filename": "l"}]},
    {"input_prefix": "a", "input_suffix": "b", "input_extra": []},
]


@pytest.fixture(scope="module", params=["file", "repo"])
def infill(request: pytest.FixtureRequest, start: Start, gguf_folder: Path) -> Pair:
    """Both servers with a small context, so that long parts are truncated."""
    model: TinyModel = PLAIN if request.param == "file" else REPO_FIM
    flags: list[object] = ["-b", N_BATCH, "-ub", N_BATCH]
    params: dict[str, Any] = {"n_batch": N_BATCH, "n_ubatch": N_BATCH}
    return start(gguf_file(gguf_folder, model), n_ctx=N_CTX, n_parallel=1, flags=flags, params=params)


@pytest.mark.parametrize("body", INFILL_BODIES, ids=lambda body: str(body)[:60])
def test_infill_prompts_and_replies_are_equal(infill: Pair, body: dict[str, Any]) -> None:
    ours, theirs = infill.post("/infill", {**INFILL_GREEDY, **body})
    for name in ("content", "prompt", "tokens_evaluated", "tokens_predicted", "stop_type"):
        assert ours[name] == theirs[name], name
    assert rounded(ours["generation_settings"]) == rounded(theirs["generation_settings"])
    assert list(ours) == list(theirs)


def test_events_of_an_infill_stream_are_equal(infill: Pair) -> None:
    streams = infill.native_events("/infill", {**INFILL_GREEDY, **INFILL_BODIES[0]})
    ours, theirs = ([(event["content"], event["tokens"]) for event in events] for events in streams)
    assert ours == theirs


def test_the_demo_model_completes_a_function(demo: Pair) -> None:
    body = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "temperature": 0}
    ours, theirs = demo.post("/infill", body)
    assert ours["content"] == theirs["content"] == "a + b"
    body = {"prompt": body["input_prefix"], "suffix": body["input_suffix"], "temperature": 0}
    assert demo.ours.post("/v1/completions", body)["choices"][0]["text"] == "a + b"
