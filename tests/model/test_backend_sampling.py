"""Tokens that are chosen in the graph are those that are chosen on the processor, whatever else goes on."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from server.engine.engine import Engine
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.errors import NotNumbers
from server.llama.files.model_file import check_files
from server.llama.fit.measure import Measure
from server.llama.fit.memory import breakdown
from server.llama.loader import LlamaLoader
from server.llama.sampling.sampler import NativeSampler
from server.llama.weights.model import LlamaWeights
from server.pool.memory import HOST
from server.pool.spec import LoadParams, ModelSpec
from tests.model.native_fixtures import Entry
from tests.model.test_draft_model import token_ids
from tests.support.ggufs import PLAIN, gguf_file
from tests.support.ggufs.catalogue import HYBRID
from tests.unit.engine.builders import Reply, run

ENGINE = EngineParams(backend_sampling=True, check_integrity=True)
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, backend_sampling=True)
SEEDED = SamplingParams(seed=6, top_k=2, ignore_eos=True, backend_sampling=True)  # of two, rounding decides hardly ever
PROMPTS = ([5, 9, 300, 17] * 5, [*range(20, 180, 3)], [*range(60, 200)], [7, 8])


def load(path: Path, engine: EngineParams = ENGINE, **native: Any) -> LlamaWeights:
    params: dict[str, Any] = {
        "n_ctx": 4 * 512,
        "n_parallel": 4,
        "n_threads": 1,
        "n_threads_batch": 1,
        "flash_attn": "off",
        "cache_type_k": "f32",
        "cache_type_v": "f32",
    }
    spec = ModelSpec("tiny", path, native=LoadParams(**(params | native)), engine=engine)
    return cast(LlamaWeights, LlamaLoader().load(spec, lambda _: True))


@asynccontextmanager
async def engine_on(path: Path, params: EngineParams = ENGINE, **native: Any) -> AsyncIterator[Engine]:
    weights = load(path, params, **native)
    engine = Engine([weights.runner()], params, asyncio.get_running_loop())
    try:
        yield engine
        engine.check_integrity()
        assert not engine._instances[0].runner._graph._attached  # type: ignore[attr-defined]
    finally:
        await engine.close()
        weights.close()


def asked(i: int, sampling: SamplingParams, **options: Any) -> Request:
    return Request(f"{i}", PROMPTS[i], sampling=sampling, max_tokens=options.pop("max_tokens", 24), **options)


def tokens_of(replies: list[Reply]) -> list[list[int]]:
    assert not [reply.error for reply in replies if reply.error]
    return [token_ids(reply) for reply in replies]


@pytest.fixture
def in_graph(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many tokens the graph has chosen."""
    from server.llama.sampling.graph import GraphSampling

    counts: Counter[str] = Counter()
    sample = GraphSampling.sample

    def counted(self: GraphSampling, output: int, sampler: NativeSampler) -> int:
        counts["tokens"] += 1
        return sample(self, output, sampler)

    monkeypatch.setattr(GraphSampling, "sample", counted)
    return counts


@pytest.mark.parametrize("unified", [False, True], ids=["separate", "unified"])
@pytest.mark.parametrize("spec_type", ["none", "lookup"])
@pytest.mark.parametrize("model", [PLAIN, HYBRID], ids=["plain", "hybrid"])
async def test_greedy_replies_are_the_same(
    tmp_path: Path, in_graph: Counter[str], model: Any, spec_type: str, *, unified: bool
) -> None:
    params = replace(ENGINE, spec_type=spec_type)
    async with engine_on(gguf_file(tmp_path, model), params, kv_unified=unified) as engine:
        plain = await run(engine, *(asked(i, replace(GREEDY, backend_sampling=False)) for i in range(4)))
        assert not in_graph["tokens"]
        chosen = await run(engine, *(asked(i, GREEDY) for i in range(4)))
        assert in_graph["tokens"] == 4 * 24
        assert tokens_of(chosen) == tokens_of(plain)


async def test_a_seed_repeats_in_every_slot_beside_others_that_need_their_logits(
    tmp_path: Path, in_graph: Counter[str]
) -> None:
    async with engine_on(gguf_file(tmp_path, PLAIN)) as engine:
        alone = tokens_of(await run(engine, asked(0, SEEDED)))
        n = in_graph["tokens"]
        together = await run(
            engine,
            *(asked(1, SEEDED, n_probs=2), asked(2, replace(SEEDED, typical_p=0.5)), asked(0, SEEDED, id_slot=2)),
            asked(3, replace(SEEDED, repeat_penalty=1.5)),
        )
        assert in_graph["tokens"] == 2 * n, "log probabilities, typical-p and penalties are the processor's"
        assert tokens_of(together)[2:3] == alone
        assert together[0].error is None


async def test_who_leaves_or_is_parked_leaves_no_chain_behind(tmp_path: Path) -> None:
    """Cells for one and a half of them: they are parked, and come back in other slots."""
    native: dict[str, Any] = {"kv_unified": True, "n_ctx": 320}
    async with engine_on(gguf_file(tmp_path, PLAIN), **native) as engine:
        wanted = [asked(i % 4, SEEDED, max_tokens=100) for i in range(6)]
        alone = [tokens_of(await run(engine, one))[0] for one in wanted[:4]]
        replies = await run(engine, *wanted)
        assert engine.stats.n_preempted
        assert tokens_of(replies)[:4] == alone
        seen = asyncio.Event()
        ticket = engine.submit(asked(0, SEEDED, max_tokens=250), lambda _: seen.set())
        await seen.wait()
        engine.cancel(ticket)
        await engine.wait_idle()


def test_draws_follow_the_distribution(tmp_path: Path) -> None:
    weights = load(gguf_file(tmp_path, PLAIN))
    runner = weights.runner()
    prompt = [5, 9, 300, 17]
    assert runner.decode([Entry(0, 0, prompt)])
    best = runner.logprobs(0, 0, 4).top
    p = np.exp([one.logprob for one in best])
    p /= p.sum()
    sampler = runner.sampler(replace(SEEDED, temperature=1.0, top_k=4, top_p=1.0, min_p=0.0), prompt)
    runner.sample_in_graph(0, sampler)
    counts: Counter[int] = Counter()
    n = 800
    for _ in range(n):
        assert runner.seq_remove(0, len(prompt) - 1)
        assert runner.decode([Entry(0, len(prompt) - 1, prompt[-1:])])
        counts[runner.sample(0, sampler)] += 1
    assert set(counts) <= {one.id for one in best}
    found = np.array([counts[one.id] / n for one in best])
    assert np.abs(found - p).max() < 0.1  # five deviations
    sampler.close()
    runner.close()
    weights.close()


def test_logits_that_are_no_numbers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load(gguf_file(tmp_path, PLAIN))
    runner = weights.runner()
    sampler = runner.sampler(SEEDED, [5])
    runner.sample_in_graph(0, sampler)
    assert runner.decode([Entry(0, 0, [5])])
    monkeypatch.setattr("server.llama.sampling.graph.C.llama_get_sampled_probs_ith", lambda *_: [float("nan")])
    with pytest.raises(NotNumbers):
        runner.sample(0, sampler)
    runner.close()
    sampler.close()  # after its context
    weights.close()


def test_what_a_device_can_do_no_further_the_processor_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typical-p has no form for a graph: the library takes in what stands before it, as where a device lacks an
    operation."""
    weights = load(gguf_file(tmp_path, PLAIN))
    runner = weights.runner()
    asked = replace(SEEDED, typical_p=0.9, top_k=40)
    plain = runner.sampler(asked, [5])
    monkeypatch.setattr("server.llama.sampling.sampler._fits_a_graph", lambda *_: True)
    sampler = runner.sampler(asked, [5])
    runner.sample_in_graph(0, sampler)
    assert runner.decode([Entry(0, 0, [5])])
    token = runner.sample(0, sampler)
    runner.sample_in_graph(0, sampler)
    assert sampler.seq < 0  # from the next token on it is the processor's
    assert runner.seq_remove(0, 0)
    assert runner.decode([Entry(0, 0, [5])])
    assert runner.sample(0, plain) == token
    sampler.close()
    plain.close()
    runner.close()
    weights.close()


@pytest.mark.parametrize(
    "change",
    [
        {"typical_p": 0.9},
        {"xtc_probability": 0.5},
        {"top_n_sigma": 1.0},
        {"mirostat": 2},
        {"dry_multiplier": 1.0},
        {"frequency_penalty": 0.5},
        {"min_keep": 2},
        {"min_p": 1.0},
        {"top_k": 1 << 30},
        {"top_k": 0},
        {"samplers": ("temperature", "top_k")},
        {"samplers": ("top_k", "top_k")},
        {"samplers": ("adaptive_p",)},
        {"temperature": 1e-9},
        {"dynatemp_range": 0.5},
        {"logit_bias": ((5, 3e38),)},
    ],
)
def test_what_has_no_form_for_a_graph_stays_on_the_processor(tmp_path: Path, change: dict[str, Any]) -> None:
    weights = load(gguf_file(tmp_path, PLAIN))
    runner = weights.runner()
    sampler = runner.sampler(replace(SEEDED, **change), [5])
    runner.sample_in_graph(0, sampler)
    assert sampler.seq < 0
    assert runner.decode([Entry(0, 0, [5])])
    assert runner.sample(0, sampler) >= 0
    sampler.close()
    runner.close()
    weights.close()


def test_a_chain_goes_on_in_another_slot_and_on_the_processor(tmp_path: Path) -> None:
    weights = load(gguf_file(tmp_path, PLAIN))
    runner = weights.runner()
    sampling = replace(SEEDED, temperature=1.5, top_k=3)

    def draws(places: list[tuple[int, bool]]) -> list[int]:
        sampler = runner.sampler(sampling, [5])
        found = []
        for seq, in_graph in places:
            runner.sample_in_graph(seq, sampler if in_graph else None)
            runner.seq_remove(seq, 0)
            assert runner.decode([Entry(seq, 0, [5, 9])])
            assert sampler.seq == (seq if in_graph else -1)
            found.append(runner.sample(0, sampler))
        sampler.close()
        return found

    there = draws([(0, False)] * 24)
    assert len(set(there)) == 3
    assert draws([(0, True)] * 24) == there
    assert draws([(0, True)] * 8 + [(3, True)] * 4 + [(1, True)] * 4 + [(1, False)] * 4 + [(2, True)] * 4) == there
    runner.close()
    weights.close()


@pytest.mark.parametrize("spec_type", ["none", "ngram-simple"])
def test_a_context_has_room_for_the_largest_chain_from_the_beginning(tmp_path: Path, spec_type: str) -> None:
    """Where a request's chain finds no memory, the library ends the process."""
    path, params = gguf_file(tmp_path, PLAIN), replace(ENGINE, spec_type=spec_type, spec_ngrams=((12, 48),))
    weights, without = load(path, params), load(path, replace(params, backend_sampling=False))
    runner, plain = weights.runner(), without.runner()
    taken = weights.footprint()[HOST].compute
    assert taken > without.footprint()[HOST].compute
    with Measure(weights._spec, check_files("tiny", path), None) as measured:
        assert measured(weights._spec.native)[HOST].compute == taken
    drawn = SamplingParams(top_k=256, backend_sampling=True)
    for sampling in (GREEDY, SEEDED, drawn, replace(drawn, ignore_eos=True), replace(GREEDY, top_k=0)):
        samplers = [runner.sampler(sampling, [5]) for _ in range(4)]
        for seq, sampler in enumerate(samplers):
            runner.sample_in_graph(seq, sampler)
        assert runner.decode([Entry(0, 0, [5, 9])])
        assert breakdown(runner._open())[HOST].compute <= taken
        for sampler in samplers:
            sampler.close()
        runner.seq_remove(0, 0)
    for each in (runner, plain, weights, without):
        each.close()
