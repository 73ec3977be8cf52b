"""Speculative decoding with native models: drafts give the same tokens in fewer steps; unusable drafters are rejected.

The drafters are a draft model, MTP heads and lookup; the memories are of every kind, whether they can be truncated or
not.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.engine.runner_api import BatchEntry
from server.engine.sequence import Sequence as Decoding
from server.engine.speculate.speculation import Speculation
from server.errors import InternalError, ModelFailed
from server.llama.context.draft_runner import READ, LlamaMtpHeads
from server.llama.context.runner import LlamaRunner
from server.llama.loader import LlamaLoader
from server.llama.weights.model import LlamaWeights
from server.pool.spec import DraftFile, LoadParams, ModelSpec
from tests.model.native_fixtures import F32, all_logprobs, prefill
from tests.support.ggufs import HYBRID, PLAIN, RECURRENT, SLIDING_WINDOW, TinyModel, gguf_file
from tests.support.real_server import ROOT
from tests.unit.engine.builders import Reply, run
from tests.unit.engine.speculate.fake_draft import Machine

DEMO, DRAFT = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-draft.gguf"
NATIVE = LoadParams(n_ctx=3 * 640, n_parallel=3, n_ubatch=64, n_threads=1, n_threads_batch=1, kv_unified=False)
GREEDY = SamplingParams(temperature=0.0)
TIE = 0.1  # difference of logits; that of a wrong token is far larger
QUESTIONS = (
    "Tell me a story about a fox.",
    "What is the capital of France?",
    "Tell me a story about a dragon.",
    "What is the weather in Paris?",
    "Tell me a story about a lamb.",
    "Hello!",
)
PROMPTS = ([5, 9, 300, 17] * 5, [*range(20, 180, 3)], [*range(60, 390)])


def load(path: Path, native: LoadParams = NATIVE, draft: Path | None = None, **engine: Any) -> LlamaWeights:
    file = DraftFile(draft, replace(native, swa_full=True)) if draft else None
    spec = ModelSpec("demo", path, native=native, engine=EngineParams(**engine), draft=file)
    return cast(LlamaWeights, LlamaLoader().load(spec, lambda _: True))


def simulate_costs(runner: LlamaRunner, machine: Machine) -> None:
    """Make decodes advance the clock of `machine`, so that decisions do not depend on the load of the real one."""
    for each, count in ((runner, machine.step), (runner.draft or runner.heads, machine.draft)):
        if each is not None:

            def decode(entries: Sequence[BatchEntry], count: Any = count, decode: Any = each.decode) -> Any:
                count(entries)
                return decode(entries)

            each.decode = decode  # type: ignore[method-assign]


async def run_on(
    runner: LlamaRunner, requests: Sequence[Request], machine: Machine | None = None, **params: Any
) -> tuple[list[Reply], int]:
    """Run requests on a new engine. Returns the replies and the number of steps. `params`: of `EngineParams`."""
    clock: dict[str, Any] = {} if machine is None else {"clock": machine}
    if machine is not None:
        simulate_costs(runner, machine)
    engine = Engine([runner], EngineParams(check_integrity=True, **params), asyncio.get_running_loop(), **clock)
    try:
        return await run(engine, *requests), engine.stats.n_decode
    finally:
        await engine.close()


def greedy_requests(n: int, n_tokens: int) -> list[Request]:
    """Return requests for the first `n` prompts, whose ids are their indices."""
    greedy = replace(GREEDY, ignore_eos=True)
    return [Request(f"{i}", PROMPTS[i], sampling=greedy, max_tokens=n_tokens) for i in range(n)]


# ---- a draft model


@pytest.fixture(scope="module")
def weights() -> Iterator[LlamaWeights]:
    native = replace(NATIVE, n_ctx=4096, n_parallel=4, n_ubatch=LoadParams().n_ubatch)
    loaded = load(DEMO, native, DRAFT, spec_type="draft-simple", spec_draft_max=8)
    yield loaded
    loaded.close()


def prompt(weights: LlamaWeights, question: str) -> list[int]:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return weights.vocab.tokenize(text, add_special=True, parse_special=True)


def logit_gap(weights: LlamaWeights, question: str, one: Reply, other: Reply) -> float:
    """Return the difference between the logits of the first tokens that differ; 0 for the same text.

    The size of a batch changes logits by hundredths, so either of two tokens with a smaller gap may be the highest.
    """
    tokens = one.tokens, other.tokens
    n = next((i for i, (a, b) in enumerate(zip(*tokens, strict=False)) if a != b), None)
    if n is None:
        assert one.text == other.text
        return 0.0
    runner = weights.runner()
    prefill(runner, 0, [*prompt(weights, question), *tokens[0][:n]])
    logits = all_logprobs(runner)
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
async def test_a_draft_model_does_not_change_the_reply(
    weights: LlamaWeights, sampling: SamplingParams, spec_type: str
) -> None:
    requests = [Request(text, prompt(weights, text), sampling=sampling, max_tokens=80) for text in QUESTIONS]
    params: dict[str, Any] = {"spec_draft_max": 8, "spec_ngram": (3, 8)}
    drafted, _ = await run_on(weights.runner(), requests, Machine(), spec_type=spec_type, **params)
    plain, _ = await run_on(weights.runner(), requests, Machine(), spec_type="none", **params)
    if sampling is GREEDY:
        for question, one, other in zip(QUESTIONS, drafted, plain, strict=True):
            assert logit_gap(weights, question, one, other) < TIE
    else:  # rounding may change a draw at the border of two tokens
        assert sum(a.text != b.text for a, b in zip(drafted, plain, strict=True)) <= 1
    assert sum(reply.finished[0].timings.draft_n_accepted for reply in drafted) > 20


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (TinyModel(n_vocab=420), "the BOS token of its vocabulary is 413, the model's 393"),
        (TinyModel(arch="mamba"), "memory can't roll back rejected draft tokens"),
        (TinyModel(arch="bert"), "the type of its vocabulary is 3, the model's 2"),
    ],
)
def test_rejects_an_incompatible_draft_model(tmp_path: Path, draft: TinyModel, reason: str) -> None:
    target, other = gguf_file(tmp_path, TinyModel()), gguf_file(tmp_path, draft)
    with pytest.raises(ModelFailed, match=reason) as failure:
        load(target, draft=other, spec_type="draft-simple")
    assert str(other) in str(failure.value)


# ---- rejected drafts


@pytest.mark.parametrize(
    ("model", "n", "unified"),
    [(PLAIN, 3, False), (RECURRENT, 3, True), (HYBRID, 1, False), (HYBRID, 3, True), (SLIDING_WINDOW, 3, False)],
    ids=lambda value: value.arch if isinstance(value, TinyModel) else str(value),
)
async def test_rejected_draft_tokens_do_not_change_the_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: TinyModel, n: int, *, unified: bool
) -> None:
    n_tokens = 90
    weights = load(
        gguf_file(tmp_path, model), replace(NATIVE, kv_unified=unified, **F32), spec_type="lookup", cache_ram=0
    )
    plain, n_plain = await run_on(weights.runner(), greedy_requests(n, n_tokens), spec_type="none", cache_ram=0)
    replies = {f"{i}": reply.tokens for i, reply in enumerate(plain)}

    def propose(_: Speculation, decoding: Sequence[Decoding], n_free: int) -> list[list[int]]:
        """Draft the known reply, with one wrong token in most drafts."""
        drafts = []
        for sequence in decoding:
            at = len(sequence.output)
            n = 0 if sequence.n_rolled_back else min(1 + at % 9, n_free // len(decoding), n_tokens - at - 1)
            tokens = replies[sequence.request.id][at : at + max(n, 0)]
            drafts.append([token ^ 1 if i == at % 6 else token for i, token in enumerate(tokens)])
        return drafts

    monkeypatch.setattr(Speculation, "propose", propose)
    drafted, n_drafted = await run_on(weights.runner(), greedy_requests(n, n_tokens), spec_type="lookup", cache_ram=0)
    weights.close()
    for one, other in zip(plain, drafted, strict=True):
        assert one.tokens == other.tokens
        timings = other.finished[0].timings
        assert timings.draft_n > timings.draft_n_accepted > n_tokens // 4
    assert n_drafted < 0.8 * n_plain


# ---- MTP heads


HEADS = TinyModel(arch="glm4moe", n_nextn=1, depth=0.01)  # acceptance rate of about one half
HYBRID_HEADS = TinyModel(arch="qwen35", n_nextn=1, depth=0.01)  # its memory cannot be truncated
MTP: dict[str, Any] = {"spec_type": "draft-mtp", "spec_draft_max": 4}


def load_heads(
    folder: Path, model: TinyModel = HEADS, *, unified: bool = False, n_slots: int = 3, **native_params: Any
) -> LlamaWeights:
    native = replace(NATIVE, kv_unified=unified, mtp=True, n_parallel=n_slots, **native_params)
    return load(gguf_file(folder, model), native, check_integrity=True, **MTP)


@pytest.fixture
def runner(gguf_folder: Path, request: pytest.FixtureRequest) -> Iterator[LlamaRunner]:
    """A runner with MTP heads of the parametrized model; saved recurrent states need at most two slots."""
    n_slots = 2 if request.param is HYBRID_HEADS else 3
    with (
        closing(load_heads(gguf_folder, request.param, n_slots=n_slots)) as weights,
        closing(weights.runner()) as opened,
    ):
        yield opened


@pytest.mark.parametrize(
    ("model", "n", "unified"), [(HEADS, 1, False), (HEADS, 3, True), (HYBRID_HEADS, 2, False)], ids=["1", "3", "hybrid"]
)
async def test_mtp_heads_save_steps_and_do_not_change_the_reply(
    tmp_path: Path, model: TinyModel, n: int, *, unified: bool
) -> None:
    n_tokens, costs_ms = 60, ((10.0, 0.1), (0.2, 0.02))
    plain = load(gguf_file(tmp_path, model), replace(NATIVE, kv_unified=unified, mtp=False), spec_type="none")
    drafting = load_heads(tmp_path, model, unified=unified, n_slots=max(n, 2))
    requests, machine = greedy_requests(n, n_tokens), partial(Machine, *costs_ms, unified=unified)
    expected, n_steps = await run_on(plain.runner(), requests, machine(), spec_type="none")
    replies, n_drafting_steps = await run_on(drafting.runner(), requests, machine(), **MTP)
    assert [reply.tokens for reply in replies] == [reply.tokens for reply in expected]
    timings = [reply.finished[0].timings for reply in replies]
    n_drafted, n_accepted = sum(t.draft_n for t in timings), sum(t.draft_n_accepted for t in timings)
    assert n_drafted > n_accepted > n * n_tokens // 8
    assert n_drafting_steps < 0.9 * n_steps
    plain.close()
    drafting.close()


def heads_of(runner: LlamaRunner) -> LlamaMtpHeads:
    assert runner.heads is not None
    return runner.heads


def draft(runner: LlamaRunner, seq: int, pos: int, token: int, n: int = 3) -> list[int]:
    """Return `n` draft tokens of the heads after `token` at `pos`, which are then rolled back."""
    heads, tokens = heads_of(runner), []
    for i in range(n):
        assert heads.decode([BatchEntry(seq, pos + i, [token], n_outputs=1)])
        token, _ = heads.best(0)
        tokens.append(token)
    heads.end_draft([seq])
    return tokens


@pytest.mark.parametrize("runner", [HEADS], ids=["glm4moe"], indirect=True)
def test_mtp_heads_follow_copies_and_truncations_of_a_sequence(runner: LlamaRunner) -> None:
    heads, tokens = heads_of(runner), [*range(60, 60 + READ + 20)]
    n = len(tokens)
    prefill(runner, 0, tokens)
    expected = draft(runner, 0, n, 77)
    assert draft(runner, 0, n, 77) == expected  # the first draft was rolled back
    runner.seq_copy(0, 1)
    assert heads.ready(1, n)
    assert draft(runner, 1, n, 77) == expected
    prefill(runner, 2, tokens[:-4])
    shorter = draft(runner, 2, n - 4, 78)
    runner.seq_remove(1, n - 4)
    assert heads.ready(1, n - 4)
    assert draft(runner, 1, n - 4, 78) == shorter


def test_a_wipe_zeroes_the_cells_of_mtp_heads(gguf_folder: Path) -> None:
    """The heads store the model's hidden states, also ones that are not numbers, which later sums may include."""
    with (
        closing(load_heads(gguf_folder, flash_attn="off")) as weights,
        closing(weights.runner()) as runner,
    ):
        prefill(runner, 0, [*range(60, 80)])
        expected = draft(runner, 0, 20, 77)
        runner.seq_remove(0, 0)
        prefill(runner, 0, [*range(60, 90)])
        states = heads_of(runner)._sequences[0].states  # private: no small model computes such states
        assert states is not None
        states[:] = np.nan
        with pytest.raises(InternalError, match="not numbers"):
            draft(runner, 0, 30, 77)
        runner.seq_remove(0, 0)
        runner.wipe()
        prefill(runner, 0, [*range(60, 80)])
        assert draft(runner, 0, 20, 77) == expected


def next_logits(
    runner: LlamaRunner, seq: int, tokens: Sequence[int], pos: int, n_rejected: int = 0
) -> npt.NDArray[np.float64]:
    """Decode `tokens` at `pos`, first with `n_rejected` draft tokens that are rolled back. Returns the logits."""
    if n_rejected:
        assert runner.decode([BatchEntry(seq, pos, [tokens[0], *range(200, 200 + n_rejected)], n_outputs=1)])
        assert runner.seq_remove(seq, pos + 1)
        assert not runner.seq_remove(seq, pos)  # the saved states can be used once
        tokens, pos = tokens[1:], pos + 1
    assert runner.decode([BatchEntry(seq, pos, tokens, n_outputs=1)])
    return np.array(all_logprobs(runner))


@pytest.mark.parametrize("runner", [HYBRID_HEADS], ids=["qwen35"], indirect=True)
def test_a_recurrent_state_rolls_back_tokens_of_the_last_decode_only(runner: LlamaRunner) -> None:
    text = [*range(60, 100)]
    n = len(text)
    assert runner.info.n_rollback == 3
    for seq in range(2):
        prefill(runner, seq, text)
    expected = next_logits(runner, 0, [77, 78], n)
    assert abs(next_logits(runner, 1, [77, 78], n, n_rejected=3) - expected).max() < TIE
    for n_rejected, later_decode in ((4, False), (3, True)):  # too many tokens; states of an earlier decode
        tokens = [79, *range(200, 200 + n_rejected)]
        runner.seq_remove(1, 0)
        prefill(runner, 1, text)
        assert runner.decode([BatchEntry(1, n, tokens, n_outputs=1)])
        if later_decode:
            assert runner.decode([BatchEntry(0, n + 2, [79], n_outputs=1)])
        assert not runner.seq_remove(1, n + 1)


@pytest.mark.parametrize("kind", ["copy", "state", "checkpoint"])
@pytest.mark.parametrize("runner", [HYBRID_HEADS], ids=["qwen35"], indirect=True)
def test_copies_states_and_checkpoints_omit_rolled_back_tokens(runner: LlamaRunner, kind: str) -> None:
    text = [*range(60, 100)]
    n = len(text)
    for seq in range(2):
        prefill(runner, seq, text)
    expected = next_logits(runner, 0, [77, 78], n)
    assert runner.decode([BatchEntry(1, n, [77, 200, 201], n_outputs=1)])
    assert runner.seq_remove(1, n + 1)
    target = 1 if kind == "checkpoint" else 0
    runner.seq_remove(0, 0)
    if kind == "copy":
        runner.seq_copy(1, 0)
    elif kind == "state":
        assert runner.seq_load(0, runner.seq_save(1), n + 1)
    else:
        checkpoint = runner.seq_checkpoint(1)
        assert runner.decode([BatchEntry(1, n + 1, [202], n_outputs=1)])
        assert runner.seq_rewind(1, checkpoint, n + 1)
    for seq in {1, target}:
        assert abs(next_logits(runner, seq, [78], n + 1) - expected).max() < TIE


def test_recurrent_states_are_not_rolled_back_with_more_than_two_slots(gguf_folder: Path) -> None:
    """llama.cpp moves cells between the parts of a decode without their saved states, and a rollback reads others."""
    with closing(load_heads(gguf_folder, HYBRID_HEADS, unified=True)) as weights, closing(weights.runner()) as runner:
        assert runner.info.n_rollback == 0


def test_rejects_draft_mtp_for_a_file_without_heads(tmp_path: Path) -> None:
    for model in (replace(HEADS, n_nextn=0), TinyModel()):
        with pytest.raises(ModelFailed, match="no MTP heads"):
            load_heads(tmp_path, model)
