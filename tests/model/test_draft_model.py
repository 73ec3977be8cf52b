"""A real draft model beside a real model: the same tokens in fewer steps, and what does not fit is refused."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams, Text
from server.engine.runner_api import BatchEntry
from server.errors import ModelFailed
from server.llama.context.runner import LlamaRunner
from server.llama.loader import LlamaLoader
from server.llama.weights.model import LlamaWeights
from server.pool.spec import DraftFile, LoadParams, ModelSpec
from tests.model.native_fixtures import prefill, raw_logits
from tests.support.ggufs import TinyModel, gguf_file
from tests.support.real_server import ROOT
from tests.unit.engine.builders import Reply, run
from tests.unit.engine.speculate.fake_draft import Machine

DEMO, DRAFT = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-draft.gguf"
NATIVE = LoadParams(n_ctx=4096, n_parallel=4, n_threads=1, n_threads_batch=1, kv_unified=False)
GREEDY = SamplingParams(temperature=0.0)
TIE = 0.1  # of logits; a token that is wrong is lower by far more
ASKED = (
    "Tell me a story about a fox.",
    "What is the capital of France?",
    "Tell me a story about a dragon.",
    "What is the weather in Paris?",
    "Tell me a story about a lamb.",
    "Hello!",
)


def load(path: Path, draft: Path | None, native: LoadParams = NATIVE) -> LlamaWeights:
    engine = EngineParams(spec_type="draft-simple" if draft else "none", spec_draft_max=8)
    drafted = DraftFile(draft, replace(native, swa_full=True)) if draft else None
    spec = ModelSpec("demo", path, native=native, engine=engine, draft=drafted)
    return cast(LlamaWeights, LlamaLoader().load(spec, lambda _: True))


@pytest.fixture(scope="module")
def weights() -> Iterator[LlamaWeights]:
    loaded = load(DEMO, DRAFT)
    yield loaded
    loaded.close()


@pytest.fixture
def runner(weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch) -> LlamaRunner:
    """On a machine where a draft is cheap: what is decided does not depend on how busy the real one is."""
    machine, runner = Machine(), weights.runner()
    assert runner.draft is not None
    step, draft = runner.decode, runner.draft.decode

    def timed_step(entries: Sequence[BatchEntry]) -> bool:
        machine.step(entries)
        return step(entries)

    def timed_draft(entries: Sequence[BatchEntry]) -> bool:
        machine.draft(entries)
        return draft(entries)

    monkeypatch.setattr(runner, "decode", timed_step)
    monkeypatch.setattr(runner.draft, "decode", timed_draft)
    monkeypatch.setattr(runner, "machine", machine, raising=False)
    return runner


async def answers(runner: LlamaRunner, spec_type: str, requests: Sequence[Request]) -> list[Reply]:
    params = EngineParams(spec_type=spec_type, spec_draft_max=8, spec_ngrams=((3, 8),), check_integrity=True)
    engine = Engine([runner], params, asyncio.get_running_loop(), runner.machine)  # type: ignore[attr-defined]
    try:
        return await run(engine, *requests)
    finally:
        await engine.close()


def prompt(weights: LlamaWeights, said: str) -> list[int]:
    text = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    return weights.vocab.tokenize(text, add_special=True, parse_special=True)


def requests(weights: LlamaWeights, sampling: SamplingParams, **options: Any) -> list[Request]:
    return [
        Request(id=said, prompt=prompt(weights, said), sampling=sampling, max_tokens=80, **options) for said in ASKED
    ]


def token_ids(reply: Reply) -> list[int]:
    return [token for event in reply.events if isinstance(event, Text) for token in event.tokens]


def parted_by(weights: LlamaWeights, said: str, one: Reply, other: Reply) -> float:
    """How far apart the logits are of the first tokens that differ; 0 of the same text.

    Logits of a batch of another size differ by hundredths: either of two tokens that are as near may be the highest.
    """
    tokens = token_ids(one), token_ids(other)
    n = next((i for i, (a, b) in enumerate(zip(*tokens, strict=False)) if a != b), None)
    if n is None:
        assert one.text == other.text
        return 0.0
    runner = weights.runner()
    prefill(runner, 0, [*prompt(weights, said), *tokens[0][:n]])
    logits = raw_logits(runner)
    runner.close()
    return abs(logits[tokens[0][n]] - logits[tokens[1][n]])


@pytest.mark.parametrize(
    ("sampling", "spec_type"),
    [
        (GREEDY, "draft-simple"),
        (GREEDY, "lookup,draft-simple"),
        (SamplingParams(seed=7, temperature=0.7, repeat_penalty=1.2, dry_multiplier=0.8), "draft-simple"),
    ],
)
async def test_every_token_is_what_it_is_without_guesses(
    weights: LlamaWeights, runner: LlamaRunner, sampling: SamplingParams, spec_type: str
) -> None:
    guessed = await answers(runner, spec_type, requests(weights, sampling))
    plain_runner = weights.runner()
    plain_runner.machine = Machine()  # type: ignore[attr-defined]
    plain = await answers(plain_runner, "none", requests(weights, sampling))
    if sampling is GREEDY:
        for said, one, other in zip(ASKED, guessed, plain, strict=True):
            assert parted_by(weights, said, one, other) < TIE
    else:  # a draw on the border of two tokens may fall otherwise
        assert sum(a.text != b.text for a, b in zip(guessed, plain, strict=True)) <= 1
    timings = [reply.finished[0].timings for reply in guessed]
    assert sum(t.draft_n_accepted for t in timings) > 20


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (TinyModel(n_vocab=420), "the BOS token of its vocabulary is 413, the model's 393"),
        (TinyModel(arch="mamba"), "memory can't roll back rejected draft tokens"),
        (TinyModel(arch="bert"), "the type of its vocabulary is 3, the model's 2"),
    ],
)
def test_a_model_that_cannot_guess_for_another_is_refused(tmp_path: Path, draft: TinyModel, reason: str) -> None:
    target, other = gguf_file(tmp_path, TinyModel()), gguf_file(tmp_path, draft)
    with pytest.raises(ModelFailed, match=reason) as failure:
        load(target, other)
    assert str(other) in str(failure.value)
