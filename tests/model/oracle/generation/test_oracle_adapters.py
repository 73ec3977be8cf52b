"""LoRA adapters and drafts compared with llama-server: replies, reported values and names.

`tests/model/test_saved_slots.py` compares slot files with the pinned library, because the format of states in the
oracle's llama.cpp is newer.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, rounded, shape_differences
from tests.model.oracle.conftest import DEMO, Start
from tests.support.ggufs import gguf_file, lora_file
from tests.support.oracle import Value
from tests.support.real_server import ROOT

PIRATE = ROOT / "models" / "demo-lora.gguf"
QUESTIONS = ("What is the capital of France?", "What colour is the sky?", "Hello!", "What is 2 + 3?")
INVOCATION = (5, 6, 7)


def start_with_lora(start: Start, model: Path, lora: Path) -> Pair:
    params: dict[str, Value] = {"lora_adapters": [str(lora)]}
    return start(model, n_ctx=2048, n_parallel=2, flags=("--lora", lora), params=params)


@pytest.fixture(scope="module")
def demo(start: Start) -> Pair:
    """Both servers on the demo model with the pirate LoRA."""
    return start_with_lora(start, DEMO, PIRATE)


@pytest.fixture(scope="module")
def activated(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both servers on a tiny model with an activated LoRA."""
    folder = tmp_path_factory.mktemp("activated")
    lora = lora_file(folder, task_name="t", prompt_prefix="p", invocation_tokens=INVOCATION)
    return start_with_lora(start, gguf_file(folder), lora)


def chat(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "temperature": 0, "max_tokens": 40, "cache_prompt": False, **fields}


def test_lists_of_adapters_are_equal(demo: Pair, activated: Pair) -> None:
    for pair in (demo, activated):
        ours, theirs = pair.get("/lora-adapters")
        assert rounded(ours) == rounded(theirs)
        assert len(ours) == 1


@pytest.mark.parametrize("lora", [None, [], *([{"id": 0, "scale": scale}] for scale in (0, 0.3, 1.0, 1.5, -0.5))])
def test_greedy_replies_are_equal_with_every_scale(demo: Pair, lora: Any) -> None:
    for question in QUESTIONS:
        ours, theirs = demo.post("/v1/chat/completions", chat(question, **({} if lora is None else {"lora": lora})))
        assert ours["choices"][0]["message"] == theirs["choices"][0]["message"]
        if lora is None:
            assert ours["choices"][0]["message"]["content"].startswith("Arr!")


def test_an_activated_lora_applies_from_its_invocation_tokens(activated: Pair) -> None:
    body = {"temperature": 0, "n_predict": 16, "ignore_eos": True, "logit_bias": ONLY_ASCII, "return_tokens": True}
    for prompt in (
        [*range(20, 60)],
        [*range(20, 60), *INVOCATION],
        [*range(20, 60), *INVOCATION, *range(60, 80)],
        [*INVOCATION, *range(20, 60), *INVOCATION, 9],
    ):
        ours, theirs = activated.post("/completion", {**body, "prompt": prompt, "id_slot": 0})
        assert ours["tokens"] == theirs["tokens"]
        off = activated.ours.post("/completion", {**body, "prompt": prompt, "lora": [{"id": 0, "scale": 0}]})
        assert (off["tokens"] == ours["tokens"]) is (INVOCATION[0] not in prompt)


DRAFT = ROOT / "models" / "demo-draft.gguf"
STORY = {
    "prompt": "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n",
    "temperature": 0,
    "n_predict": 100,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def pair(start: Start) -> Pair:
    """Both servers on the demo model with its draft model."""
    params: dict[str, str | list[str]] = {
        "speculative.draft.mparams.path": str(DRAFT),
        "speculative.types": ["draft-simple"],
    }
    flags = ("--slots", "-md", DRAFT, "--spec-type", "draft-simple")
    return start(DEMO, n_ctx=2048, n_parallel=1, flags=flags, params=params)


def test_slots_and_metrics_report_drafts_with_the_same_names(pair: Pair) -> None:
    ours, theirs = pair.post("/completion", STORY)
    drafted = {"draft_n", "draft_n_accepted"}
    assert drafted <= set(theirs["timings"])
    assert shape_differences(ours, theirs) <= {f"-timings.{name}" for name in drafted}
    ours, theirs = pair.get("/slots")
    assert ours[0]["speculative"] is theirs[0]["speculative"] is True
    assert ours[0]["params"]["speculative.types"] == theirs[0]["params"]["speculative.types"] == "draft-simple"
    names = [
        {line.split("{")[0].split(" ")[0] for line in reply.body.decode().splitlines() if "llamacpp:spec" in line[:13]}
        for reply in pair.request("GET", "/metrics")
    ]
    assert names[0] == names[1] != set()


def test_automatic_drafts_do_not_change_the_reply(start: Start, tiny_path: Path) -> None:
    pair = start(tiny_path, flags=("--spec-type", "auto"))
    for prompt in ("na na na na hey hey hey " * 12, "one two three, one two three, one two " * 8):
        body = {"prompt": prompt, "temperature": 0, "n_predict": 120, "ignore_eos": True, "return_tokens": True}
        ours, theirs = pair.post("/completion", body)
        assert ours["tokens"] == theirs["tokens"]
        assert ours["generation_settings"]["speculative.types"] == "none"
