"""A model's own heads that guess: the same tokens in fewer steps, whatever becomes of the sequences meanwhile."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.engine.runner_api import BatchEntry
from server.errors import ModelFailed
from server.llama.context.batch import Run
from server.llama.context.draft_runner import READ, LlamaMtpHeads
from server.llama.context.runner import LlamaRunner
from server.llama.loader import LlamaLoader
from server.llama.weights.model import LlamaWeights
from server.pool.spec import LoadParams, ModelSpec
from tests.model.native_fixtures import prefill
from tests.model.test_draft_model import token_ids
from tests.support.ggufs import TinyModel, gguf_file
from tests.unit.engine.builders import Reply, run
from tests.unit.engine.speculate.fake_draft import Machine

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
PROMPTS = ([5, 9, 300, 17] * 5, [*range(20, 180, 3)], [*range(60, 390)])
N_TOKENS = 60
HEADS = TinyModel(arch="glm4moe", n_nextn=1, depth=0.01)  # its heads are right about every other time

HYBRID_HEADS = TinyModel(arch="qwen35", n_nextn=1, depth=0.01)  # the layers behind which they stand can't be cut


def load(folder: Path, model: TinyModel = HEADS, *, unified: bool = False, mtp: bool = True) -> LlamaWeights:
    native = LoadParams(
        n_ctx=3 * 640, n_parallel=3, n_ubatch=64, n_threads=1, n_threads_batch=1, kv_unified=unified, mtp=mtp
    )
    engine = EngineParams(spec_type="draft-mtp" if mtp else "none", spec_draft_max=4, check_integrity=True)
    spec = ModelSpec("tiny", gguf_file(folder, model), native=native, engine=engine)
    return cast(LlamaWeights, LlamaLoader().load(spec, lambda _: True))


def heads_of(runner: LlamaRunner) -> LlamaMtpHeads:
    assert runner.heads is not None
    return runner.heads


async def answers(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch, *requests: Request) -> tuple[list[Reply], int]:
    """Replies, on a machine where a guess is cheap, and the steps that they took."""
    machine, step = Machine((10.0, 0.1), (0.2, 0.02)), runner.decode
    params = EngineParams(spec_type="none", check_integrity=True)

    def timed_step(entries: Sequence[BatchEntry]) -> bool:
        machine.step(entries)
        return step(entries)

    monkeypatch.setattr(runner, "decode", timed_step)
    if runner.heads is not None:
        guess = runner.heads.decode

        def timed_guess(entries: Sequence[BatchEntry]) -> bool:
            machine.draft(entries)
            return guess(entries)

        monkeypatch.setattr(runner.heads, "decode", timed_guess)
        params = replace(params, spec_type="draft-mtp", spec_draft_max=4)
    engine = Engine([runner], params, asyncio.get_running_loop(), machine)
    try:
        return await run(engine, *requests), engine.stats.n_decode
    finally:
        await engine.close()


def requests(n: int) -> list[Request]:
    return [Request(f"{i}", PROMPTS[i], sampling=GREEDY, max_tokens=N_TOKENS) for i in range(n)]


@pytest.mark.parametrize(
    ("model", "n", "unified"), [(HEADS, 1, False), (HEADS, 3, True), (HYBRID_HEADS, 3, False)], ids=["1", "3", "hybrid"]
)
async def test_heads_change_no_token_and_save_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: TinyModel, n: int, *, unified: bool
) -> None:
    plain = load(tmp_path, model, unified=unified, mtp=False)
    guessing = load(tmp_path, model, unified=unified)
    said, n_plain = await answers(plain.runner(), monkeypatch, *requests(n))
    again, n_guessing = await answers(guessing.runner(), monkeypatch, *requests(n))
    assert [token_ids(reply) for reply in again] == [token_ids(reply) for reply in said]
    timings = [reply.finished[0].timings for reply in again]
    n_drafted, n_right = sum(t.draft_n for t in timings), sum(t.draft_n_accepted for t in timings)
    assert n_drafted > n_right > n * N_TOKENS // 8
    assert n_guessing < 0.9 * n_plain
    plain.close()
    guessing.close()


def guesses(runner: LlamaRunner, seq: int, pos: int, token: int, n: int = 3) -> list[int]:
    heads, found = heads_of(runner), []
    for i in range(n):
        assert heads.decode([Run(seq, pos + i, [token], n_outputs=1)])
        token, _ = heads.best(0)
        found.append(token)
    heads.end_draft([seq])
    return found


def test_a_copy_guesses_as_its_source_and_a_cut_as_if_nothing_had_been_behind(tmp_path: Path) -> None:
    weights = load(tmp_path)
    runner = weights.runner()
    heads, prompt = heads_of(runner), [*range(60, 60 + READ + 20)]
    n = len(prompt)
    prefill(runner, 0, prompt)
    expected = guesses(runner, 0, n, 77)
    assert guesses(runner, 0, n, 77) == expected  # they were taken back
    runner.seq_copy(0, 1)
    assert heads.ready(1, n)
    assert guesses(runner, 1, n, 77) == expected
    prefill(runner, 2, prompt[:-4])
    shorter = guesses(runner, 2, n - 4, 78)
    runner.seq_remove(1, n - 4)
    assert heads.ready(1, n - 4)
    assert guesses(runner, 1, n - 4, 78) == shorter
    runner.close()
    weights.close()


def test_a_file_without_heads_says_so(tmp_path: Path) -> None:
    for model in (replace(HEADS, n_nextn=0), TinyModel()):
        with pytest.raises(ModelFailed, match="no MTP heads"):
            load(tmp_path, model)
