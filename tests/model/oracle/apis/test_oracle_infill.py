"""``POST /infill``: the same prompt out of the same parts, on vocabularies with and without tokens for repositories."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, rounded
from tests.model.oracle.conftest import Start
from tests.support.ggufs import PLAIN, REPO_FIM, TinyModel, gguf_file

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
def infill(request: pytest.FixtureRequest, start: Start, gguf_folder: Path) -> Pair:
    """Both servers on a small context, so that parts have to be cut."""
    model: TinyModel = PLAIN if request.param == "file" else REPO_FIM
    flags: list[object] = ["-b", N_BATCH, "-ub", N_BATCH]
    params: dict[str, Any] = {"n_batch": N_BATCH, "n_ubatch": N_BATCH}
    return start(gguf_file(gguf_folder, model), n_ctx=N_CTX, n_parallel=1, flags=flags, params=params)


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


def test_the_demo_model_fills_a_gap(demo: Pair) -> None:
    body = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "temperature": 0}
    ours, theirs = demo.post("/infill", body)
    assert ours["content"] == theirs["content"] == "a + b"
    body = {"prompt": body["input_prefix"], "suffix": body["input_suffix"], "temperature": 0}
    assert demo.ours.post("/v1/completions", body)["choices"][0]["text"] == "a + b"
