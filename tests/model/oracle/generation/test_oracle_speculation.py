"""A draft model beside both servers: what their replies, slots and metrics say of guesses."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.model.oracle.comparison import Pair, shape_differences
from tests.model.oracle.conftest import WAIT_QUIETLY, start_pair
from tests.support.ggufs import TinyModel, gguf_file
from tests.support.oracle import oracle
from tests.support.real_server import ROOT, RealServer, llamapool

DEMO, DRAFT = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-draft.gguf"
N_CTX = 2048
STORY = {
    "prompt": "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n",
    "temperature": 0,
    "n_predict": 300,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Both servers with the default model and its draft, which each has guessed with."""
    params: dict[str, str | list[str]] = {
        "speculative.draft.mparams.path": str(DRAFT),
        "speculative.types": ["draft-simple"],
    }
    flags = ("-c", str(N_CTX), "-np", "1", "-t", "1", "--metrics", "--slots", "-md", str(DRAFT))
    with ExitStack() as stack:
        theirs = oracle(DEMO, n_ctx=N_CTX, n_threads=1, params=params, environment=WAIT_QUIETLY)
        stack.callback(theirs.stop)
        theirs.wait_until_ready()
        assert guesses(theirs)
        for _ in range(5):
            with llamapool(DEMO, *flags, environment=WAIT_QUIETLY) as ours:
                if guesses(ours):
                    yield Pair(ours, theirs)
                    return
        raise AssertionError("no server of five has guessed anything")


def guesses(server: RealServer) -> bool:
    """Whether something is guessed in one of ten stories.

    Ours guesses where it pays, or to see: a process whose first guess others held up takes guesses to be slow for long.
    """
    return any(server.post("/completion", STORY)["timings"].get("draft_n") for _ in range(10))


def test_the_timings_count_guesses(pair: Pair) -> None:
    ours, theirs = pair.post("/completion", STORY)
    guesses = {"draft_n", "draft_n_accepted"}
    assert guesses <= set(theirs["timings"])
    assert shape_differences(ours, theirs) <= {f"-timings.{name}" for name in guesses}
    assert ours["generation_settings"]["speculative.types"] == theirs["generation_settings"]["speculative.types"]


def test_slots_and_props_say_that_they_guess(pair: Pair) -> None:
    ours, theirs = pair.get("/slots")
    assert ours[0]["speculative"] is theirs[0]["speculative"] is True
    assert ours[0]["params"]["speculative.types"] == theirs[0]["params"]["speculative.types"]
    ours, theirs = pair.get("/props")  # there it is always "none"
    assert ours["default_generation_settings"]["params"]["speculative.types"] == "draft-simple"
    assert theirs["default_generation_settings"]["params"]["speculative.types"] == "none"


def test_the_metrics_of_guesses_have_the_same_names(pair: Pair) -> None:
    ours, theirs = (
        {
            line.split("{")[0].split(" ")[0]: line
            for line in server.request("GET", "/metrics").body.decode().splitlines()
            if line.startswith("llamacpp:spec_decode_")
        }
        for server in (pair.ours, pair.theirs)
    )
    assert set(ours) == set(theirs)
    position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    assert all('position="' in lines[position] for lines in (ours, theirs))


def test_texts_that_repeat_are_the_same_with_guesses_that_nobody_asked_for(tmp_path: Path) -> None:
    """Whether something is guessed depends on what this machine's steps cost; what is said does not."""
    prompts = ("na na na na hey hey hey " * 12, "one two three, one two three, one two " * 8, "x " * 100)
    with ExitStack() as stack:
        pair = start_pair(stack, gguf_file(tmp_path, TinyModel()), flags=("--spec-type", "auto"))
        for prompt in prompts:
            body = {"prompt": prompt, "temperature": 0, "n_predict": 120, "ignore_eos": True, "return_tokens": True}
            ours, theirs = pair.post("/completion", body)
            assert ours["tokens"] == theirs["tokens"]
            assert ours["generation_settings"]["speculative.types"] == "none"
