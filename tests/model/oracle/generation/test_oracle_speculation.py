"""A draft model in both servers: the names in slots, properties and metrics. Drafts depend on the CPU."""

from pathlib import Path

import pytest

from tests.model.oracle.comparison import Pair, shape_differences
from tests.model.oracle.conftest import DEMO, Start
from tests.support.real_server import ROOT

DRAFT = ROOT / "models" / "demo-draft.gguf"
STORY = {
    "prompt": "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n",
    "temperature": 0,
    "n_predict": 100,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def pair(start: Start) -> Pair:
    """Both servers with the default model and its draft."""
    params: dict[str, str | list[str]] = {
        "speculative.draft.mparams.path": str(DRAFT),
        "speculative.types": ["draft-simple"],
    }
    flags = ("--slots", "-md", DRAFT, "--spec-type", "draft-simple")
    return start(DEMO, n_ctx=2048, n_parallel=1, flags=flags, params=params)


def test_slots_properties_and_metrics_have_the_same_names(pair: Pair) -> None:
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


def test_drafts_from_the_text_change_no_token(start: Start, tiny_path: Path) -> None:
    pair = start(tiny_path, flags=("--spec-type", "auto"))
    for prompt in ("na na na na hey hey hey " * 12, "one two three, one two three, one two " * 8):
        body = {"prompt": prompt, "temperature": 0, "n_predict": 120, "ignore_eos": True, "return_tokens": True}
        ours, theirs = pair.post("/completion", body)
        assert ours["tokens"] == theirs["tokens"]
        assert ours["generation_settings"]["speculative.types"] == "none"
