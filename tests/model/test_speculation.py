"""Speculation over real models: a draft model, MTP heads and lookup give the same tokens in fewer steps.

Whatever was drafted wrong, on memories that can be cut and on those that can't; what does not fit is refused.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.engine.runner_api import BatchEntry
from server.engine.sequence import Sequence as Generating
from server.engine.speculate.speculation import Speculation
from server.errors import ModelFailed
from server.llama.context.draft_runner import READ, LlamaMtpHeads
from server.llama.context.runner import LlamaRunner
from server.llama.loader import LlamaLoader
from server.llama.weights.model import LlamaWeights
from server.pool.spec import DraftFile, LoadParams, ModelSpec
from tests.model.native_fixtures import F32, prefill, raw_logits
from tests.support.ggufs import HYBRID, PLAIN, RECURRENT, SLIDING_WINDOW, TinyModel, gguf_file
from tests.support.real_server import ROOT
from tests.unit.engine.builders import Reply, run
from tests.unit.engine.speculate.fake_draft import Machine

DEMO, DRAFT = ROOT / "models" / "demo.gguf", ROOT / "models" / "demo-draft.gguf"
NATIVE = LoadParams(n_ctx=3 * 640, n_parallel=3, n_ubatch=64, n_threads=1, n_threads_batch=1, kv_unified=False)
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
PROMPTS = ([5, 9, 300, 17] * 5, [*range(20, 180, 3)], [*range(60, 390)])


def load(path: Path, native: LoadParams = NATIVE, draft: Path | None = None, **engine: Any) -> LlamaWeights:
    drafted = DraftFile(draft, replace(native, swa_full=True)) if draft else None
    spec = ModelSpec("demo", path, native=native, engine=EngineParams(**engine), draft=drafted)
    return cast(LlamaWeights, LlamaLoader().load(spec, lambda _: True))


def timed(runner: LlamaRunner, machine: Machine) -> None:
    """Decode on a machine where a draft is cheap: what is decided does not depend on how busy the real one is."""
    for each, count in ((runner, machine.step), (runner.draft or runner.heads, machine.draft)):
        if each is not None:

            def decode(entries: Sequence[BatchEntry], count: Any = count, decode: Any = each.decode) -> Any:
                count(entries)
                return decode(entries)

            each.decode = decode  # type: ignore[method-assign]


async def answers(
    runner: LlamaRunner, requests: Sequence[Request], machine: Machine | None = None, **params: Any
) -> tuple[list[Reply], int]:
    """Return replies and the number of steps that they took."""
    if machine is not None:
        timed(runner, machine)
    given = EngineParams(check_integrity=True, **params)
    timer: dict[str, Any] = {} if machine is None else {"clock": machine}
    engine = Engine([runner], given, asyncio.get_running_loop(), **timer)
    try:
        return await run(engine, *requests), engine.stats.n_decode
    finally:
        await engine.close()


def numbered(n: int, n_tokens: int) -> list[Request]:
    """Return greedy requests for the first `n` prompts."""
    greedy = replace(GREEDY, ignore_eos=True)
    return [Request(f"{i}", PROMPTS[i], sampling=greedy, max_tokens=n_tokens) for i in range(n)]


# ---- a draft model


@pytest.fixture(scope="module")
def weights() -> Iterator[LlamaWeights]:
    native = replace(NATIVE, n_ctx=4096, n_parallel=4, n_ubatch=LoadParams().n_ubatch)
    loaded = load(DEMO, native, DRAFT, spec_type="draft-simple", spec_draft_max=8)
    yield loaded
    loaded.close()


def prompt(weights: LlamaWeights, said: str) -> list[int]:
    text = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    return weights.vocab.tokenize(text, add_special=True, parse_special=True)


def parted_by(weights: LlamaWeights, said: str, one: Reply, other: Reply) -> float:
    """How far apart the logits are of the first tokens that differ; 0 of the same text.

    Logits of a batch of another size differ by hundredths: either of two tokens that are as near may be the highest.
    """
    tokens = one.tokens, other.tokens
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
async def test_every_token_is_what_it_is_without_a_draft(
    weights: LlamaWeights, sampling: SamplingParams, spec_type: str
) -> None:
    asked = [Request(said, prompt(weights, said), sampling=sampling, max_tokens=80) for said in ASKED]
    params: dict[str, Any] = {"spec_draft_max": 8, "spec_ngram": (3, 8)}
    drafted, _ = await answers(weights.runner(), asked, Machine(), spec_type=spec_type, **params)
    plain, _ = await answers(weights.runner(), asked, Machine(), spec_type="none", **params)
    if sampling is GREEDY:
        for said, one, other in zip(ASKED, drafted, plain, strict=True):
            assert parted_by(weights, said, one, other) < TIE
    else:  # a draw on the border of two tokens may fall otherwise
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
def test_a_model_that_cannot_draft_for_another_is_refused(tmp_path: Path, draft: TinyModel, reason: str) -> None:
    target, other = gguf_file(tmp_path, TinyModel()), gguf_file(tmp_path, draft)
    with pytest.raises(ModelFailed, match=reason) as failure:
        load(target, draft=other, spec_type="draft-simple")
    assert str(other) in str(failure.value)


# ---- wrong drafts


@pytest.mark.parametrize(
    ("model", "n", "unified"),
    [(PLAIN, 3, False), (RECURRENT, 3, True), (HYBRID, 1, False), (HYBRID, 3, True), (SLIDING_WINDOW, 3, False)],
    ids=lambda value: value.arch if isinstance(value, TinyModel) else str(value),
)
async def test_rejected_tokens_change_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: TinyModel, n: int, *, unified: bool
) -> None:
    n_tokens = 90
    weights = load(
        gguf_file(tmp_path, model), replace(NATIVE, kv_unified=unified, **F32), spec_type="lookup", cache_ram=0
    )
    plain, n_plain = await answers(weights.runner(), numbered(n, n_tokens), spec_type="none", cache_ram=0)
    said = {f"{i}": reply.tokens for i, reply in enumerate(plain)}

    def propose(_: Speculation, generating: Sequence[Generating], room: int) -> list[list[int]]:
        """Propose what will be said, except for a token that is wrong in most drafts."""
        drafts = []
        for sequence in generating:
            at = len(sequence.output)
            most = 0 if sequence.n_rolled_back else min(1 + at % 9, room // len(generating), n_tokens - at - 1)
            tokens = said[sequence.request.id][at : at + max(most, 0)]
            drafts.append([token ^ 1 if i == at % 6 else token for i, token in enumerate(tokens)])
        return drafts

    monkeypatch.setattr(Speculation, "propose", propose)
    drafted, n_drafted = await answers(weights.runner(), numbered(n, n_tokens), spec_type="lookup", cache_ram=0)
    weights.close()
    for one, other in zip(plain, drafted, strict=True):
        assert one.tokens == other.tokens
        timings = other.finished[0].timings
        assert timings.draft_n > timings.draft_n_accepted > n_tokens // 4
    assert n_drafted < 0.8 * n_plain


# ---- MTP heads


HEADS = TinyModel(arch="glm4moe", n_nextn=1, depth=0.01)  # its heads are right about every other time
HYBRID_HEADS = TinyModel(arch="qwen35", n_nextn=1, depth=0.01)  # the layers below its heads can't be cut
MTP: dict[str, Any] = {"spec_type": "draft-mtp", "spec_draft_max": 4}


def with_heads(folder: Path, model: TinyModel = HEADS, *, unified: bool = False) -> LlamaWeights:
    native = replace(NATIVE, kv_unified=unified, mtp=True)
    return load(gguf_file(folder, model), native, check_integrity=True, **MTP)


@pytest.mark.parametrize(
    ("model", "n", "unified"), [(HEADS, 1, False), (HEADS, 3, True), (HYBRID_HEADS, 3, False)], ids=["1", "3", "hybrid"]
)
async def test_heads_change_no_token_and_save_steps(tmp_path: Path, model: TinyModel, n: int, *, unified: bool) -> None:
    n_tokens, machine = 60, ((10.0, 0.1), (0.2, 0.02))
    plain = load(gguf_file(tmp_path, model), replace(NATIVE, kv_unified=unified, mtp=False), spec_type="none")
    drafting = with_heads(tmp_path, model, unified=unified)
    said, n_plain = await answers(plain.runner(), numbered(n, n_tokens), Machine(*machine), spec_type="none")
    again, n_drafting = await answers(drafting.runner(), numbered(n, n_tokens), Machine(*machine), **MTP)
    assert [reply.tokens for reply in again] == [reply.tokens for reply in said]
    timings = [reply.finished[0].timings for reply in again]
    n_drafted, n_right = sum(t.draft_n for t in timings), sum(t.draft_n_accepted for t in timings)
    assert n_drafted > n_right > n * n_tokens // 8
    assert n_drafting < 0.9 * n_plain
    plain.close()
    drafting.close()


def heads_of(runner: LlamaRunner) -> LlamaMtpHeads:
    assert runner.heads is not None
    return runner.heads


def drafts(runner: LlamaRunner, seq: int, pos: int, token: int, n: int = 3) -> list[int]:
    heads, found = heads_of(runner), []
    for i in range(n):
        assert heads.decode([BatchEntry(seq, pos + i, [token], n_outputs=1)])
        token, _ = heads.best(0)
        found.append(token)
    heads.end_draft([seq])
    return found


def test_a_copy_drafts_as_its_source_and_a_cut_as_if_nothing_had_been_behind(tmp_path: Path) -> None:
    weights = with_heads(tmp_path)
    runner = weights.runner()
    heads, tokens = heads_of(runner), [*range(60, 60 + READ + 20)]
    n = len(tokens)
    prefill(runner, 0, tokens)
    expected = drafts(runner, 0, n, 77)
    assert drafts(runner, 0, n, 77) == expected  # they were rolled back
    runner.seq_copy(0, 1)
    assert heads.ready(1, n)
    assert drafts(runner, 1, n, 77) == expected
    prefill(runner, 2, tokens[:-4])
    shorter = drafts(runner, 2, n - 4, 78)
    runner.seq_remove(1, n - 4)
    assert heads.ready(1, n - 4)
    assert drafts(runner, 1, n - 4, 78) == shorter
    runner.close()
    weights.close()


def next_logits(
    runner: LlamaRunner, seq: int, tokens: Sequence[int], pos: int, n_rejected: int = 0
) -> npt.NDArray[np.float64]:
    """Decode `tokens` at `pos`, after as many rejected drafts; return the logits after the last one."""
    if n_rejected:
        assert runner.decode([BatchEntry(seq, pos, [tokens[0], *range(200, 200 + n_rejected)], n_outputs=1)])
        assert runner.seq_remove(seq, pos + 1)
        assert not runner.seq_remove(seq, pos)  # the states of one decode serve once
        tokens, pos = tokens[1:], pos + 1
    assert runner.decode([BatchEntry(seq, pos, tokens, n_outputs=1)])
    return np.array(raw_logits(runner))


def test_a_recurrent_state_is_rolled_back_behind_the_last_decode_only(tmp_path: Path) -> None:
    weights = with_heads(tmp_path, HYBRID_HEADS)
    runner, text = weights.runner(), [*range(60, 100)]
    n = len(text)
    assert runner.info.n_rollback == 3
    for seq in range(2):
        prefill(runner, seq, text)
    expected = next_logits(runner, 0, [77, 78], n)
    assert abs(next_logits(runner, 1, [77, 78], n, n_rejected=3) - expected).max() < TIE
    for n_rejected, other in ((4, 1), (3, 0)):  # more than states are kept, and states of an earlier decode
        tokens = [79, *range(200, 200 + n_rejected)]
        runner.seq_remove(1, 0)
        prefill(runner, 1, text)
        assert runner.decode([BatchEntry(1, n, tokens, n_outputs=1)])
        if other != 1:
            assert runner.decode([BatchEntry(0, n + 2, [79], n_outputs=1)])
        assert not runner.seq_remove(1, n + 1)
    runner.close()
    weights.close()


@pytest.mark.parametrize("way", ["copy", "state", "checkpoint"])
def test_what_is_taken_from_a_rolled_back_sequence_is_rolled_back(tmp_path: Path, way: str) -> None:
    weights = with_heads(tmp_path, HYBRID_HEADS)
    runner, text = weights.runner(), [*range(60, 100)]
    n = len(text)
    for seq in range(2):
        prefill(runner, seq, text)
    expected = next_logits(runner, 0, [77, 78], n)
    assert runner.decode([BatchEntry(1, n, [77, 200, 201], n_outputs=1)])
    assert runner.seq_remove(1, n + 1)
    target = 1 if way == "checkpoint" else 2
    if way == "copy":
        runner.seq_copy(1, 2)
    elif way == "state":
        assert runner.seq_load(2, runner.seq_save(1), n + 1)
    else:
        checkpoint = runner.seq_checkpoint(1)
        assert runner.decode([BatchEntry(1, n + 1, [202], n_outputs=1)])
        assert runner.seq_rewind(1, checkpoint, n + 1)
    for seq in {1, target}:
        assert abs(next_logits(runner, seq, [78], n + 1) - expected).max() < TIE
    runner.close()
    weights.close()


def test_a_file_without_heads_says_so(tmp_path: Path) -> None:
    for model in (replace(HEADS, n_nextn=0), TinyModel()):
        with pytest.raises(ModelFailed, match="no MTP heads"):
            with_heads(tmp_path, model)
