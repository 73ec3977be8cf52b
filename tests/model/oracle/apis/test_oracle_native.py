"""``/completion``, ``/infill`` and the streams of all APIs: tokens, probabilities and settings as llama-server's."""

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


def compare(mine: dict[str, Any], other: dict[str, Any]) -> None:
    """Field by field: equal but for timings and for log probabilities' last digits."""
    assert list(mine) == list(other)
    assert set(mine["timings"]) == set(other["timings"])
    for name in other.keys() - VOLATILE - {"completion_probabilities"}:
        assert rounded(mine[name]) == rounded(other[name]), name
    for name in ("cache_n", "prompt_n", "predicted_n"):
        assert mine["timings"][name] == other["timings"][name], name
    compare_probabilities(mine, other)


def compare_probabilities(mine: dict[str, Any], other: dict[str, Any]) -> None:
    pairs = zip(mine.get("completion_probabilities", []), other.get("completion_probabilities", []), strict=True)
    for ours, theirs in pairs:
        value, top = ("prob", "top_probs") if "prob" in theirs else ("logprob", "top_logprobs")
        assert list(ours) == list(theirs)
        for one, two in zip([ours, *ours[top]], [theirs, *theirs[top]], strict=True):
            assert (one["id"], one["token"], one["bytes"]) == (two["id"], two["token"], two["bytes"])
            assert one[value] == pytest.approx(two[value], abs=LOGPROB_SPREAD)


@pytest.mark.parametrize("fields", SAMPLERS, ids=lambda fields: str(fields)[:60])
def test_probabilities_after_sampling_are_the_same(pair: Pair, fields: dict[str, Any]) -> None:
    body = {**PROMPT, "temperature": 0.9, "seed": 7, "n_predict": 12, "n_probs": 4, "post_sampling_probs": True}
    ours, theirs = pair.post("/completion", {**body, "logit_bias": ONLY_ASCII, **fields})
    compare(ours, theirs)


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
def test_the_whole_object_is_the_same(pair: Pair, fields: dict[str, Any]) -> None:
    ours, theirs = pair.post("/completion", {**GREEDY, **fields})
    compare(ours, theirs)


@pytest.mark.parametrize(
    "constraint",
    [{"grammar": 'root ::= "yes" | "no"'}, {"json_schema": {"enum": ["on", "off"]}}, {"json_schema": {"type": "null"}}],
    ids=str,
)
def test_constrained_text_is_the_same(pair: Pair, constraint: dict[str, Any]) -> None:
    """llama-server samples an end token behind it, which Llamapool knows to be the only one that may come."""
    ours, theirs = pair.post("/completion", {**GREEDY, "ignore_eos": False, **constraint})
    for name in ("content", "stop_type", "tokens_evaluated", "prompt"):
        assert ours[name] == theirs[name]
    assert ours["generation_settings"]["grammar"] == theirs["generation_settings"]["grammar"]
    assert ours["tokens"] == theirs["tokens"][:-1]


def test_the_end_of_a_text_is_one_of_its_tokens(pair: Pair) -> None:
    body = {**GREEDY, "ignore_eos": False, "n_predict": 200, "logit_bias": [*ONLY_ASCII, ["</s>", 2.0]]}
    ours, theirs = pair.post("/completion", {**body, "prompt": "the lazy dog", "n_probs": 1, "stop": ["zzz"]})
    assert theirs["stop_type"] == "eos"
    assert ours["tokens"] == theirs["tokens"]
    assert theirs["completion_probabilities"][-1]["token"] == ""
    compare(ours, theirs)


def test_several_prompts_and_choices_are_an_array(pair: Pair) -> None:
    prompts = ["the fox", [300, 301], [5, "x"], {"prompt_string": "dog"}]
    for fields in ({"prompt": prompts}, {"n_cmpl": 2}, {"prompt": ["a", "b"], "n": 2}):
        ours, theirs = pair.post("/completion", {**GREEDY, "n_predict": 6, **fields})
        assert [reply["index"] for reply in ours] == list(range(len(theirs)))
        for mine, other in zip(ours, theirs, strict=True):
            compare({**mine, "timings": other["timings"]}, other)


@pytest.mark.parametrize(
    "fields",
    [
        ["content", "generation_settings/n_predict", "tokens"],
        ["nope", "content/x", "generation_settings", "", "a/b/c"],
        ["stop", "stop", "generation_settings/speculative.types", "generation_settings/lora"],
        [],
    ],
)
def test_response_fields_are_picked_the_same_way(pair: Pair, fields: list[str]) -> None:
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
def test_a_stream_is_the_same_event_by_event(pair: Pair, fields: dict[str, Any]) -> None:
    ours, theirs = pair.native_events("/completion", {**GREEDY, **fields})
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert list(mine) == list(other)
        for name in other.keys() - VOLATILE - {"completion_probabilities"}:
            assert rounded(mine[name]) == rounded(other[name]), name
        assert set(mine.get("timings", {})) == set(other.get("timings", {}))
        compare_probabilities(mine, other)


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
"""OpenAI's first chat delta has ``"content": ""``; llama-server's has null, which clients that require a string
do not take."""


def bare(event: dict[str, Any]) -> list[Any]:
    """Return an event's choices without log probabilities, whose last digits differ."""
    return [{name: value for name, value in choice.items() if name != "logprobs"} for choice in event["choices"]]


@pytest.mark.parametrize(
    "fields",
    [{}, {"timings_per_token": True}, {"logprobs": True, "top_logprobs": 2}, {"logprobs": True, **INCLUDE_USAGE}],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_openais_streams_are_the_same_event_by_event(pair: Pair, path: str, fields: dict[str, Any]) -> None:
    """Except the first delta of a chat. The usage of a completion has an event of its own only if asked for."""
    ours, theirs = pair.events(path, {**CHAT_GREEDY, "prompt": "the quick brown", "messages": HELLO, **fields})
    if "stream_options" in fields:
        assert ours[-1]["choices"] == []
        assert ours[-1]["usage"] == theirs[-1]["usage"]
        if path != CHAT:  # llama-server puts it into the last event with a choice, asked or not
            *ours, end = ours
            del theirs[-1]["usage"]
            assert theirs[-1].pop("timings").keys() == end["timings"].keys()
    first = 1 if path == CHAT else 0
    if first:
        assert shape_differences(ours[0], theirs[0]) == {FIRST_CONTENT}
    assert [bare(event) for event in ours[first:]] == [bare(event) for event in theirs[first:]]
    for mine, other in zip(ours[first:], theirs[first:], strict=True):
        assert shape_differences(mine, other) == set()


def test_bytes_that_are_no_text_are_streamed_as_replacement_characters(pair: Pair) -> None:
    """As many of them as the JSON library likes; and Llamapool's stream ends with the same text as its reply."""
    body = {**CHAT_GREEDY, "prompt": "the quick brown", "max_tokens": 40, "logit_bias": []}
    ours, theirs = (
        "".join(event["choices"][0]["text"] for event in events) for events in pair.events("/v1/completions", body)
    )
    assert "\ufffd" in ours
    assert re.sub("\ufffd+", "", ours) == re.sub("\ufffd+", "", theirs)
    assert pair.ours.post("/v1/completions", body)["choices"][0]["text"] == ours


@pytest.mark.parametrize("stop", [["e"], ["he", "qu"], ["never said"], ["t", "th"]], ids=str)
def test_stop_strings_cut_the_stream_at_the_same_place(pair: Pair, stop: list[str]) -> None:
    body = {**CHAT_GREEDY, "prompt": "the quick brown", "max_tokens": 60, "stop": stop}
    ours, theirs = pair.events("/v1/completions", body)
    texts = ["".join(event["choices"][0]["text"] for event in events) for events in (ours, theirs)]
    assert texts[0] == texts[1]
    assert ours[-1]["choices"][0]["finish_reason"] == theirs[-1]["choices"][0]["finish_reason"]


N_CTX, N_BATCH = 512, 256
INFILL_GREEDY = {"temperature": 0, "n_predict": 6, "ignore_eos": True, "logit_bias": ONLY_ASCII, "cache_prompt": False}
SHOWN = ("content", "prompt", "tokens_evaluated", "tokens_predicted", "stop_type")
PARTS: list[dict[str, Any]] = [
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
    """Both servers on a small context, so that parts have to be cut."""
    model: TinyModel = PLAIN if request.param == "file" else REPO_FIM
    flags: list[object] = ["-b", N_BATCH, "-ub", N_BATCH]
    params: dict[str, Any] = {"n_batch": N_BATCH, "n_ubatch": N_BATCH}
    return start(gguf_file(gguf_folder, model), n_ctx=N_CTX, n_parallel=1, flags=flags, params=params)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: str(parts)[:60])
def test_the_prompt_is_the_same(infill: Pair, parts: dict[str, Any]) -> None:
    ours, theirs = infill.post("/infill", {**INFILL_GREEDY, **parts})
    assert {name: ours[name] for name in SHOWN} == {name: theirs[name] for name in SHOWN}
    assert rounded(ours["generation_settings"]) == rounded(theirs["generation_settings"])
    assert list(ours) == list(theirs)


def test_a_stream_is_the_same(infill: Pair) -> None:
    ours, theirs = infill.native_events("/infill", {**INFILL_GREEDY, **PARTS[0]})
    assert [(event["content"], event["tokens"]) for event in ours] == [
        (event["content"], event["tokens"]) for event in theirs
    ]


def test_the_demo_model_fills_a_gap(demo: Pair) -> None:
    body = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "temperature": 0}
    ours, theirs = demo.post("/infill", body)
    assert ours["content"] == theirs["content"] == "a + b"
    body = {"prompt": body["input_prefix"], "suffix": body["input_suffix"], "temperature": 0}
    assert demo.ours.post("/v1/completions", body)["choices"][0]["text"] == "a + b"
