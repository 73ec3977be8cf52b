"""Guesses on memories that can't be cut: the same tokens as without, whatever was guessed wrong where."""

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.engine.sequence import Sequence
from server.engine.speculate.speculation import Speculation
from server.llama.loader import LlamaLoader
from server.llama.weights.model import LlamaWeights
from server.pool.spec import LoadParams, ModelSpec
from tests.model.test_draft_model import token_ids
from tests.support.ggufs import PLAIN, TinyModel, gguf_file
from tests.support.ggufs.catalogue import HYBRID, RECURRENT, SLIDING_WINDOW
from tests.unit.engine.builders import Reply, run

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
N_TOKENS = 90
PROMPTS = ([5, 9, 300, 17] * 5, [*range(20, 180, 3)], [*range(60, 390)])
ENGINE = EngineParams(spec_type="lookup", check_integrity=True, cache_ram=0)


def load(path: Path, *, unified: bool) -> LlamaWeights:
    native = LoadParams(
        n_ctx=3 * 640,
        n_parallel=3,
        n_ubatch=64,
        n_threads=1,
        n_threads_batch=1,
        kv_unified=unified,
        flash_attn="off",
        cache_type_k="f32",
        cache_type_v="f32",
    )
    spec = ModelSpec("tiny", path, native=native, engine=ENGINE)
    return cast(LlamaWeights, LlamaLoader().load(spec, lambda _: True))


async def answers(weights: LlamaWeights, n: int, spec_type: str) -> tuple[list[Reply], int]:
    """Replies to the first `n` prompts, and the steps that they took."""
    engine = Engine([weights.runner()], replace(ENGINE, spec_type=spec_type), asyncio.get_running_loop())
    try:
        wanted = [Request(f"{i}", PROMPTS[i], sampling=GREEDY, max_tokens=N_TOKENS) for i in range(n)]
        replies = await run(engine, *wanted)
        return replies, engine.stats.n_decode
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("model", "n", "unified"),
    [(PLAIN, 3, False), (RECURRENT, 3, True), (HYBRID, 1, False), (HYBRID, 3, True), (SLIDING_WINDOW, 3, False)],
    ids=lambda value: value.arch if isinstance(value, TinyModel) else str(value),
)
async def test_what_is_guessed_changes_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: TinyModel, n: int, *, unified: bool
) -> None:
    weights = load(gguf_file(tmp_path, model), unified=unified)
    plain, n_plain = await answers(weights, n, "none")
    said = {f"{i}": token_ids(reply) for i, reply in enumerate(plain)}

    def propose(_: Speculation, generating: Seq[Sequence], room: int) -> list[list[int]]:
        """What will be said, but for a token that is wrong in most guesses."""
        guesses = []
        for sequence in generating:
            at = len(sequence.output)
            most = 0 if sequence.n_rolled_back else min(1 + at % 9, room // len(generating), N_TOKENS - at - 1)
            tokens = said[sequence.request.id][at : at + max(most, 0)]
            guesses.append([token ^ 1 if i == at % 6 else token for i, token in enumerate(tokens)])
        return guesses

    monkeypatch.setattr(Speculation, "propose", propose)
    guessed, n_drafted = await answers(weights, n, "lookup")
    weights.close()
    for one, other in zip(plain, guessed, strict=True):
        assert token_ids(one) == token_ids(other)
        timings = other.finished[0].timings
        assert timings.draft_n > timings.draft_n_accepted > N_TOKENS // 4
    assert n_drafted < 0.8 * n_plain
