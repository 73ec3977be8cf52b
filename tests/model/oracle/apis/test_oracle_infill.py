"""``POST /infill``: the same prompt out of the same parts, on vocabularies with and without tokens for repositories."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, rounded
from tests.model.oracle.conftest import start_pair
from tests.support.ggufs import NO_FIM, PLAIN, REPO_FIM, TinyModel, gguf_file
from tests.support.real_server import llamapool

N_CTX, N_BATCH = 512, 256
GREEDY = {"temperature": 0, "n_predict": 6, "ignore_eos": True, "logit_bias": ONLY_ASCII, "cache_prompt": False}
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
def infill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers on a small context, so that parts have to be cut."""
    model: TinyModel = PLAIN if request.param == "file" else REPO_FIM
    flags: list[object] = ["-b", N_BATCH, "-ub", N_BATCH]
    params: dict[str, Any] = {"n_batch": N_BATCH, "n_ubatch": N_BATCH}
    with ExitStack() as stack:
        path = gguf_file(tmp_path_factory.mktemp("gguf"), model)
        yield start_pair(stack, path, n_ctx=N_CTX, n_parallel=1, flags=flags, params=params)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: str(parts)[:60])
def test_the_prompt_is_the_same(infill: Pair, parts: dict[str, Any]) -> None:
    ours, theirs = infill.post("/infill", {**GREEDY, **parts})
    assert {name: ours[name] for name in SHOWN} == {name: theirs[name] for name in SHOWN}
    assert rounded(ours["generation_settings"]) == rounded(theirs["generation_settings"])
    assert list(ours) == list(theirs)


def test_a_stream_is_the_same(infill: Pair) -> None:
    ours, theirs = infill.native_events("/infill", {**GREEDY, **PARTS[0]})
    assert [(event["content"], event["tokens"]) for event in ours] == [
        (event["content"], event["tokens"]) for event in theirs
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"input_extra": 5},
        {"input_extra": [5]},
        {"input_extra": [{}]},
        {"input_extra": [{"filename": "ok"}]},
        {"input_extra": [{"filename": 123, "text": "abc"}]},
        {"input_extra": [{"filename": 123, "text": 456}]},
        {"n_indent": -1},
    ],
    ids=str,
)
def test_errors_have_llama_servers_words(infill: Pair, body: dict[str, Any]) -> None:
    ours, theirs = infill.request("POST", "/infill", {"input_prefix": "a", "input_suffix": "b", **body})
    assert ours.status == theirs.status == 400
    assert ours.json()["error"]["message"] == theirs.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [{}, {"input_prefix": "a"}, {"input_suffix": "a"}, {"input_prefix": 5, "input_suffix": ""}]
)
def test_what_is_missing_is_a_clients_mistake(infill: Pair, body: dict[str, Any]) -> None:
    ours, theirs = infill.request("POST", "/infill", body)
    assert ours.status == theirs.status == 400
    assert ours.json()["error"]["type"] == theirs.json()["error"]["type"]


def test_the_suffix_comes_first_where_asked_for(tmp_path: Path) -> None:
    """The oracle has no such option: the prompt is compared with its text."""
    with llamapool(gguf_file(tmp_path, PLAIN), "-c", str(N_CTX), "-t", "1", "--spm-infill") as ours:
        reply = ours.post("/infill", {**GREEDY, "input_prefix": "the fox", "input_suffix": " dog"})
        prompt = "<|fim_suffix|> dog<|fim_prefix|>the fox<|fim_middle|>"
        plain = ours.post("/completion", {**GREEDY, "prompt": prompt})
    assert (reply["prompt"], reply["content"]) == (plain["prompt"], plain["content"])


def test_a_model_without_the_tokens_says_so(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = start_pair(stack, gguf_file(tmp_path, NO_FIM), n_ctx=N_CTX, n_parallel=1)
        ours, theirs = pair.request("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"})
        assert ours.status == theirs.status == 501
        assert ours.json() == theirs.json()
        refused = pair.ours.request("POST", "/v1/completions", {"prompt": "a", "suffix": "b"})
        assert refused.status == 400
        assert "suffix" in refused.json()["error"]["message"]


def test_the_demo_model_fills_a_gap(demo: Pair) -> None:
    body = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "temperature": 0}
    ours, theirs = demo.post("/infill", body)
    assert ours["content"] == theirs["content"] == "a + b"
    body = {"prompt": body["input_prefix"], "suffix": body["input_suffix"], "temperature": 0}
    assert demo.ours.post("/v1/completions", body)["choices"][0]["text"] == "a + b"
