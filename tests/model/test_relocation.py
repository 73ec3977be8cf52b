"""Relocation to another slot, padding, and sequences with non-finite values do not change the tokens of others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from server.engine.kv_store import Cells
from server.engine.params import EngineParams
from server.engine.request import Adapters, Request
from server.engine.runner_api import BatchEntry
from server.engine.scheduler import Scheduler
from server.engine.sequence import Phase, Sequence, Ticket
from server.errors import InternalError
from server.llama.context.runner import LlamaRunner
from server.llama.sampling.sampler import NativeSampler
from server.pool.spec import ScaledFile
from tests.model.native_fixtures import F32, GREEDY, engine_on, generate, load, open_runner, prompt_tokens
from tests.support.ggufs import MODELS, gguf_file
from tests.support.real_server import ROOT
from tests.unit.engine.builders import run

N = 24
TEXTS = ("the quick brown fox jumps over the lazy dog " * 3, "while the other animals", "of the forest come together")


@pytest.fixture(scope="module", params=["no-template", "hybrid", "recurrent", "sliding-window"])
def runner(request: pytest.FixtureRequest, gguf_folder: Path) -> Iterator[LlamaRunner]:
    path = gguf_file(gguf_folder, MODELS[request.param])
    with open_runner(path, n_ctx=2048, n_parallel=4, kv_unified=False, warmup=True, **F32) as opened:
        yield opened


def step(scheduler: Scheduler, cells: Cells, runner: LlamaRunner) -> None:
    """Run one step: sample a greedy token for each decoding sequence, or prefill a part of its prompt."""
    entries = scheduler.plan()
    assert runner.decode(entries)
    scheduler.commit(entries, 0.01)
    cells.decoded(entries)
    for output, sequence in enumerate(e.sequence for e in entries if e.n_outputs):
        sequence.output.append(runner.sample(output, cast(NativeSampler, sequence.sampler)))
    scheduler.check_integrity()


@pytest.mark.parametrize("copies", [True, False], ids=["copied", "recomputed"])
def test_a_relocated_sequence_continues_with_the_same_tokens(runner: LlamaRunner, copies: bool) -> None:
    prompts = [prompt_tokens(runner.vocab, text) for text in TEXTS]
    expected = [generate(runner, prompt, N, seq=3) for prompt in prompts]
    runner.seq_remove(3, 0)
    scheduler = Scheduler(runner.info, EngineParams(cache_ram=0))
    cells = Cells(runner, scheduler, lambda: 0.0)
    running = []
    for prompt in prompts:
        sequence = Sequence(Ticket(Request(id="", prompt=prompt), lambda events: None, 0.0), 0)
        sequence.sampler = runner.sampler(GREEDY, prompt)
        scheduler.waiting.append(sequence)
        placement = scheduler.place(0.0)
        assert placement is not None
        cells.prepare(placement, 0.0)
        scheduler.occupy(placement, 0.0)
        running.append(sequence)
    while len(running[2].output) < N // 2:
        step(scheduler, cells, runner)
    scheduler.release(running[1], 1.0)
    running[1].phase = Phase.ENDED
    scheduler.move_budget.copy_s = 0.0 if copies else 60.0
    cells.relocate(scheduler.slots[2], scheduler.slots[1], 1.0)
    assert running[2].slot is scheduler.slots[1]
    assert not scheduler.slots[2].tokens
    for _ in range(N):
        step(scheduler, cells, runner)
    for sequence, text in ((running[0], expected[0]), (running[2], expected[2])):
        assert sequence.output[:N] == text
        scheduler.release(sequence, 2.0)
    for sequence in running:
        sequence.sampler.close()  # type: ignore[union-attr]
    for slot in scheduler.slots:
        cells.clear(slot)


# padding is used only if the memory can be truncated
@pytest.mark.parametrize("runner", ["no-template"], indirect=True)
def test_padded_sequences_generate_the_same_tokens(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adjacent sequences of 5, 7 and 4 tokens are padded to 7."""
    assert runner.info.can_cut
    monkeypatch.setattr(runner, "_evaluation_tokens", 9.0)  # a measured cost, which no parameter sets
    prompts = [prompt_tokens(runner.vocab, TEXTS[0])[:n] for n in (5, 7, 4)]
    expected = [generate(runner, prompt, N, seq=3) for prompt in prompts]
    runner.seq_remove(3, 0)
    samplers = [runner.sampler(GREEDY, prompt) for prompt in prompts]
    try:
        assert runner.decode([BatchEntry(seq, 0, prompt, n_outputs=1) for seq, prompt in enumerate(prompts)])
        assert runner._batch.native.n_tokens == 21
        output = [[runner.sample(seq, samplers[seq])] for seq in range(3)]
        for n in range(N - 1):
            assert runner.decode([BatchEntry(seq, len(prompts[seq]) + n, output[seq][-1:], True) for seq in range(3)])
            for seq in range(3):
                output[seq].append(runner.sample(seq, samplers[seq]))
        assert output == expected
    finally:
        for seq, sampler in enumerate(samplers):
            sampler.close()
            runner.seq_remove(seq, 0)


def test_the_cost_of_evaluations_and_copies_is_measured_at_load(runner: LlamaRunner) -> None:
    assert runner.info.evaluation_s >= 0.0
    assert runner.info.copy_s >= 0.0
    assert runner.info.evaluation_s + runner.info.copy_s > 0.0


DEMO, PIRATE = (ROOT / "models" / name for name in ("demo.gguf", "demo-lora.gguf"))
TEXT = "What is 2 plus 3?\n2 plus 3 is 5.\n" * 30
"""The most probable next token leads by 2000 to 1, so rounding does not change the reply."""
OVERFLOWING = ((0, 1e5),)  # an adapter scale at which logits are not finite


@pytest.mark.parametrize(("kv_unified", "flash_attn"), [(False, "on"), (True, "off")])
async def test_non_finite_values_of_one_sequence_do_not_change_others(kv_unified: bool, flash_attn: str) -> None:
    lora = ScaledFile(PIRATE, 0.0)
    native: dict[str, Any] = {"n_ctx": 2048, "n_parallel": 2, "kv_unified": kv_unified, "flash_attn": flash_attn}
    weights = load(DEMO, lora=(lora,), **native)

    def request(n_tokens: int, adapters: Adapters = ()) -> Request:
        tokens = prompt_tokens(weights.vocab, TEXT)[:n_tokens]
        return Request(f"{n_tokens}", tokens, GREEDY, max_tokens=8, adapters=adapters)

    async with engine_on(weights, EngineParams(check_integrity=True)) as engine:
        for n in (40, 300):
            (alone,) = await run(engine, request(n))
            bad, concurrent = await run(engine, request(90, OVERFLOWING), request(n))
            (after,) = await run(engine, request(n))
            assert isinstance(bad.error, InternalError)
            assert [reply.error for reply in (alone, concurrent, after)] == [None] * 3
            assert concurrent.text == after.text == alone.text
