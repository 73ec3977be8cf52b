"""``POST /completion``: the same tokens, probabilities, counts, settings and words as llama-server's."""

import json
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, rounded, shape_differences
from tests.support.closeness import LOGPROB_SPREAD

PROMPT = {"prompt": "the quick brown fox", "cache_prompt": False, "return_tokens": True}
GREEDY = {**PROMPT, "temperature": 0, "n_predict": 24, "ignore_eos": True, "logit_bias": ONLY_ASCII}
VOLATILE = {"timings", "id_slot"}
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": -3},
    {"top_k": 1, "temperature": 5},
    {"top_k": 5},
    {"top_k": -7, "top_p": 0.5},
    {"top_p": 3.0, "min_p": -1},
    {"min_p": 0.3},
    {"typical_p": 0.4},
    {"top_n_sigma": 0.8},
    {"xtc_probability": 0.7, "xtc_threshold": 0.02},
    {"xtc_probability": 9, "xtc_threshold": 0.05},
    {"dynatemp_range": 0.7, "dynatemp_exponent": 1.4},
    {"repeat_penalty": 1.5, "repeat_last_n": 8},
    {"presence_penalty": 1.1, "frequency_penalty": 0.6},
    {"repeat_last_n": 0, "repeat_penalty": 1.9},
    {"dry_multiplier": 1.2, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 40},
    {"dry_multiplier": 1.2, "dry_base": 0.3, "dry_sequence_breakers": ["e", " t"]},
    {"mirostat": 1, "mirostat_tau": 3.0},
    {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.3},
    {"mirostat": 7},
    {"samplers": ["adaptive_p"], "adaptive_target": 0.3, "adaptive_decay": 0.5},
    {"samplers": ["top_k", "top_p", "temperature"], "top_p": 0.6},
    {"samplers": ["temperature", "top_k", "top_k"], "top_k": 4},
    {"samplers": "kpt", "top_p": 0.7},
    {"samplers": []},
    {"min_keep": 4, "top_p": 0.01},
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


@pytest.mark.parametrize("seed", [1, 4242])
@pytest.mark.parametrize("fields", SAMPLERS, ids=lambda fields: str(fields)[:60])
def test_sampled_tokens_and_probabilities_are_the_same(pair: Pair, fields: dict[str, Any], seed: int) -> None:
    body = {**PROMPT, "temperature": 1.0, "seed": seed, "n_predict": 14, "n_probs": 3, "logit_bias": ONLY_ASCII}
    ours, theirs = pair.post("/completion", {**body, **fields})
    compare(ours, theirs)


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


def test_a_slot_keeps_its_prompt(pair: Pair) -> None:
    body = {**GREEDY, "cache_prompt": True, "id_slot": 3, "prompt": "one slot of its own"}
    pair.post("/completion", body)
    ours, theirs = pair.post("/completion", body)
    compare(ours, theirs)
    assert ours["id_slot"] == theirs["id_slot"] == 3


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


@pytest.mark.parametrize("n_indent", [1, 2, 4, 5])
@pytest.mark.parametrize("text", ["a\\n    b\\n  c\\nd\\n", "    a\\n\\n    b", "a\\n\\tb\\n c"])
def test_a_line_indented_too_little_ends_the_text_at_the_same_place(pair: Pair, text: str, n_indent: int) -> None:
    body = {**GREEDY, "ignore_eos": False, "n_predict": 60, "n_indent": n_indent, "grammar": f'root ::= "{text}"'}
    ours, theirs = pair.post("/completion", body)
    for name in ("content", "stop_type", "has_new_line"):
        assert ours[name] == theirs[name]


def test_an_empty_stop_string_stops_nothing(pair: Pair) -> None:
    """In llama-server it stops everything."""
    ours, theirs = pair.post("/completion", {**GREEDY, "stop": ["", "never said"]})
    assert (ours["tokens_predicted"], theirs["tokens_predicted"]) == (24, 1)
    assert ours["generation_settings"]["stop"] == ["never said"]


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


def test_a_stream_has_the_token_that_ends_the_text(pair: Pair) -> None:
    body = {**GREEDY, "ignore_eos": False, "n_predict": 200, "logit_bias": [*ONLY_ASCII, ["</s>", 2.0]]}
    ours, theirs = pair.native_events("/completion", {**body, "prompt": "the lazy dog"})
    shown = [[(event["content"], event["tokens"], event["stop"]) for event in events] for events in (ours, theirs)]
    assert shown[0] == shown[1]


def test_progress_counts_the_same(pair: Pair) -> None:
    """llama-server gives a token 0 with it."""
    body = {**GREEDY, "prompt": "the dog " * 30, "return_progress": True}
    ours, theirs = ([e for e in events if "prompt_progress" in e] for events in pair.native_events("/completion", body))
    for mine, other in zip(ours, theirs, strict=True):
        assert list(mine) == list(other)
        assert (mine["tokens"], other["tokens"]) == ([], [0])
        assert shape_differences(mine["prompt_progress"], other["prompt_progress"]) == set()
        for name in ("total", "cache", "processed"):
            assert mine["prompt_progress"][name] == other["prompt_progress"][name]


def test_choices_of_several_prompts_are_told_apart_in_a_stream(pair: Pair) -> None:
    body = {**GREEDY, "prompt": ["the fox", "the dog"], "n_cmpl": 2, "n_predict": 5}
    texts = [
        {i: "".join(event["content"] for event in events if event and event["index"] == i) for i in range(4)}
        for events in pair.native_events("/completion", body)  # llama-server's has a null where a prompt begins
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": "hot"},
        {"top_k": "many"},
        {"top_p": []},
        {"n_predict": "5"},
        {"n_predict": -2},
        {"n_predict": None, "max_tokens": -5},
        {"n_keep": -5},
        {"n_keep": {}},
        {"n_discard": -1},
        {"n_indent": -1},
        {"n_cache_reuse": -1},
        {"n_cmpl": 0},
        {"t_max_predict_ms": -2},
        {"sse_ping_interval": -2},
        {"dry_allowed_length": -1},
        {"min_keep": -1},
        {"adaptive_decay": 1.0},
        {"adaptive_decay": -0.5},
        {"dry_sequence_breakers": []},
        {"dry_sequence_breakers": "x"},
        {"stream": "yes"},
        {"cache_prompt": 1},
        {"return_tokens": "yes"},
        {"post_sampling_probs": 1},
        {"timings_per_token": []},
        {"ignore_eos": "x"},
        {"seed": "x"},
        {"lora": 5},
        {"lora": {"id": 0}},
        {"mirostat": "1"},
        {"n_probs": "1"},
        {"prompt": 5},
        {"prompt": {"x": 1}},
        {"prompt": ["a", {}]},
    ],
    ids=str,
)
def test_errors_have_llama_servers_words(pair: Pair, field: dict[str, Any]) -> None:
    """Without the JSON library's own number of an error."""
    ours, theirs = pair.request("POST", "/completion", {"prompt": "x", "n_predict": 1, **field})
    assert (ours.status, theirs.status) == (400, 400), (ours.body[:300], theirs.body[:300])
    mine, other = ours.json()["error"], theirs.json()["error"]
    expected = other["message"].replace("[json.exception.type_error.302] ", "")
    if "n_cmpl" in field:  # choices above the number of slots run in turns here
        expected = expected.replace("value <= 8", "value <= 128")
    assert mine["message"] == expected
    assert (mine["code"], mine["type"]) == (other["code"], other["type"])


@pytest.mark.parametrize(
    ("fields", "reference"),
    [
        ({"stop": 5}, 200),
        ({"samplers": 5}, 200),
        ({"samplers": ["nonsense"]}, 200),
        ({"logit_bias": 5}, 200),
        ({"logit_bias": [[99999, 1]]}, 200),
        ({"grammar": 5}, 200),
        ({"response_fields": "content"}, 200),
        ({"lora": [{"id": 7, "scale": 1}]}, 200),
        ({"id_slot": "a"}, 200),
        ({"n_predict": 1.5}, 200),
        ({"top_k": True}, 200),
        ({"n_probs": 100000}, 200),
    ],
    ids=str,
)
def test_a_mistake_that_the_reference_lets_pass_is_named(pair: Pair, fields: dict[str, Any], reference: int) -> None:
    ours, theirs = pair.request("POST", "/completion", {"prompt": "x", "n_predict": 1, **fields})
    assert (ours.status, theirs.status) == (400, reference), (ours.body[:300], theirs.body[:300])
    assert ours.json()["error"]["param"] == next(iter(fields))


def test_nothing_to_predict_is_nothing_predicted(pair: Pair) -> None:
    """As llama-server's README says; the server itself predicts one token."""
    ours, theirs = pair.post("/completion", {**GREEDY, "n_predict": 0})
    assert (ours["tokens_predicted"], theirs["tokens_predicted"]) == (0, 1)
    assert ours["stop_type"] == theirs["stop_type"] == "limit"


def test_a_window_of_minus_one_is_still_the_whole_context(pair: Pair) -> None:
    """As in llama-server of 2024."""
    ours, theirs = pair.request("POST", "/completion", {**GREEDY, "repeat_last_n": -1, "repeat_penalty": 1.3})
    assert (ours.status, theirs.status) == (200, 400)
    whole = pair.theirs.post("/completion", {**GREEDY, "repeat_last_n": 1024, "repeat_penalty": 1.3})
    assert ours.json()["tokens"] == whole["tokens"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_probabilities_after_sampling_in_openais_formats(pair: Pair, path: str) -> None:
    body = {
        **GREEDY,
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 1.0,
        "seed": 5,
        "max_tokens": 5,
        "logprobs": True if "chat" in path else 3,
        "post_sampling_probs": True,
    }
    body |= {"top_logprobs": 3} if "chat" in path else {}
    ours, theirs = (reply["choices"][0]["logprobs"]["content"] for reply in pair.post(path, body))
    compare_probabilities({"completion_probabilities": ours}, {"completion_probabilities": theirs})


def test_best_of_shows_the_likeliest_choice(pair: Pair) -> None:
    """OpenAI's, which llama-server does not have."""
    body = {"prompt": "the quick", "seed": 3, "max_tokens": 8, "logprobs": 0, "logit_bias": ONLY_ASCII}
    every = pair.ours.post("/v1/completions", {**body, "n": 4})["choices"]

    def mean(choice: dict[str, Any]) -> float:
        values: list[float] = [token["logprob"] for token in choice["logprobs"]["content"]]
        return sum(values) / len(values)

    best = pair.ours.post("/v1/completions", {**body, "n": 2, "best_of": 4})
    ranked = sorted(every, key=mean, reverse=True)
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in ranked[:2]]
    assert best["usage"]["completion_tokens"] == 32
