"""Backend sampling: the compute graph samples the same tokens as the CPU, with native models."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.errors import NotNumbers
from server.llama.context.runner import LlamaRunner
from server.llama.files.model_file import check_files
from server.llama.fit import Measure, breakdown
from server.llama.sampling.graph import GraphSampling
from server.llama.sampling.sampler import NativeSampler
from server.pool.memory import HOST
from tests.model.native_fixtures import F32, Entry, engine_on, load, open_runner
from tests.support.ggufs import HYBRID, PLAIN, TinyModel, gguf_file
from tests.unit.engine.builders import Reply, run

ENGINE = EngineParams(backend_sampling=True, check_integrity=True)
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, backend_sampling=True)
SEEDED = SamplingParams(seed=6, top_k=2, ignore_eos=True, backend_sampling=True)  # rounding matters rarely
PROMPTS = ([5, 9, 300, 17] * 5, [*range(20, 180, 3)], [*range(60, 200)], [7, 8])
NATIVE: dict[str, Any] = {"n_ctx": 2048, "n_threads_batch": 1, **F32}


@pytest.fixture
def runner(gguf_folder: Path) -> Iterator[LlamaRunner]:
    with open_runner(gguf_file(gguf_folder, PLAIN), engine=ENGINE, **NATIVE) as opened:
        yield opened


def request(i: int, sampling: SamplingParams, max_tokens: int = 24) -> Request:
    return Request(f"{i}", PROMPTS[i], sampling=sampling, max_tokens=max_tokens)


def tokens_of(replies: list[Reply]) -> list[list[int]]:
    assert not [reply.error for reply in replies if reply.error]
    return [reply.tokens for reply in replies]


@pytest.fixture
def in_graph(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the tokens that the graph samples."""
    counts: Counter[str] = Counter()
    sample = GraphSampling.sample

    def counted(self: GraphSampling, output: int, sampler: NativeSampler) -> int:
        counts["tokens"] += 1
        return sample(self, output, sampler)

    monkeypatch.setattr(GraphSampling, "sample", counted)
    return counts


@pytest.mark.parametrize(("model", "spec_type", "unified"), [(PLAIN, "lookup", False), (HYBRID, "none", True)])
async def test_greedy_tokens_are_those_of_the_cpu(
    gguf_folder: Path, in_graph: Counter[str], model: TinyModel, spec_type: str, *, unified: bool
) -> None:
    params = replace(ENGINE, spec_type=spec_type)
    weights = load(gguf_file(gguf_folder, model), engine=params, **NATIVE, kv_unified=unified)
    async with engine_on(weights, params) as engine:
        plain = await run(engine, *(request(i, replace(GREEDY, backend_sampling=False)) for i in range(4)))
        assert not in_graph["tokens"]
        graph = await run(engine, *(request(i, GREEDY) for i in range(4)))
        assert in_graph["tokens"] == 4 * 24
        assert tokens_of(graph) == tokens_of(plain)


async def test_preempted_sequences_resume_with_the_same_tokens(gguf_folder: Path, in_graph: Counter[str]) -> None:
    """The cells hold one and a half sequences. A sequence that is cancelled at the end leaves no sampler chain."""
    weights = load(gguf_file(gguf_folder, PLAIN), engine=ENGINE, **{**NATIVE, "n_ctx": 320}, kv_unified=True)
    async with engine_on(weights, ENGINE) as engine:
        requests = [request(i % 4, SEEDED, max_tokens=100) for i in range(6)]
        alone = [tokens_of(await run(engine, one))[0] for one in requests[:4]]
        replies = await run(engine, *requests)
        assert engine.stats.n_preempted
        assert in_graph["tokens"]
        assert tokens_of(replies)[:4] == alone
        started = asyncio.Event()
        ticket = engine.submit(request(0, SEEDED, max_tokens=250), lambda _: started.set())
        await started.wait()
        engine.cancel(ticket)
        await engine.wait_idle()


def test_non_finite_probabilities_raise_not_numbers(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = runner.sampler(SEEDED, [5])
    runner.sample_in_graph(0, sampler)
    assert runner.decode([Entry(0, 0, [5])])
    monkeypatch.setattr("server.llama.sampling.graph.C.llama_get_sampled_probs_ith", lambda *_: [float("nan")])
    with pytest.raises(NotNumbers):
        runner.sample(0, sampler)
    runner.close()
    sampler.close()  # a sampler may be closed after its context


def test_the_cpu_completes_a_chain_that_the_graph_cannot(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typical-p has no graph form: the graph runs the samplers before it, as on a device that lacks an operation."""
    params = replace(SEEDED, typical_p=0.9, top_k=40)
    plain = runner.sampler(params, [5])
    monkeypatch.setattr("server.llama.sampling.sampler._fits_a_graph", lambda *_: True)
    sampler = runner.sampler(params, [5])
    runner.sample_in_graph(0, sampler)
    assert runner.decode([Entry(0, 0, [5])])
    token = runner.sample(0, sampler)
    runner.sample_in_graph(0, sampler)
    assert sampler.seq < 0  # the CPU samples from the next token on
    assert runner.seq_remove(0, 0)
    assert runner.decode([Entry(0, 0, [5])])
    assert runner.sample(0, plain) == token
    sampler.close()
    plain.close()


def test_samplers_without_a_graph_form_run_on_the_cpu(runner: LlamaRunner) -> None:
    changes: list[dict[str, Any]] = [
        *({"typical_p": 0.9}, {"xtc_probability": 0.5}, {"top_n_sigma": 1.0}, {"mirostat": 2}, {"dry_multiplier": 1.0}),
        *({"frequency_penalty": 0.5}, {"min_keep": 2}, {"min_p": 1.0}, {"top_k": 1 << 30}, {"top_k": 0}),
        *({"samplers": ("temperature", "top_k")}, {"samplers": ("top_k", "top_k")}, {"samplers": ("adaptive_p",)}),
        *({"temperature": 1e-9}, {"dynatemp_range": 0.5}, {"logit_bias": ((5, 3e38),)}),
    ]
    for change in changes:
        sampler = runner.sampler(replace(SEEDED, **change), [5])
        runner.sample_in_graph(0, sampler)
        assert sampler.seq < 0, change
        runner.seq_remove(0, 0)
        assert runner.decode([Entry(0, 0, [5])])
        assert runner.sample(0, sampler) >= 0
        sampler.close()


def test_a_chain_keeps_its_random_state_across_slots_and_on_the_cpu(runner: LlamaRunner) -> None:
    def draws(steps: list[tuple[int, bool]]) -> list[int]:
        """Sample a token for each step: a sequence, and whether the graph samples."""
        sampler = runner.sampler(replace(SEEDED, temperature=1.5, top_k=3), [5])
        tokens = []
        for seq, in_graph in steps:
            runner.sample_in_graph(seq, sampler if in_graph else None)
            runner.seq_remove(seq, 0)
            assert runner.decode([Entry(seq, 0, [5, 9])])
            assert sampler.seq == (seq if in_graph else -1)
            tokens.append(runner.sample(0, sampler))
        sampler.close()
        return tokens

    on_cpu = draws([(0, False)] * 24)
    assert len(set(on_cpu)) == 3
    assert draws([(0, True)] * 8 + [(3, True)] * 4 + [(1, True)] * 4 + [(1, False)] * 4 + [(2, True)] * 4) == on_cpu


def test_a_context_reserves_memory_for_the_largest_chain(gguf_folder: Path) -> None:
    """The library aborts if it cannot allocate the chain of a request."""
    path, params = gguf_file(gguf_folder, PLAIN), replace(ENGINE, spec_type="ngram-simple", spec_ngram=(12, 48))
    weights, without = (load(path, engine=each, **NATIVE) for each in (params, replace(params, backend_sampling=False)))
    runner, plain = weights.runner(), without.runner()
    reserved = weights.footprint()[HOST].compute
    assert reserved > without.footprint()[HOST].compute
    with Measure(weights._spec, check_files("tiny", path)) as measure:
        assert measure(weights._spec.native)[HOST].compute == reserved
    top_k = SamplingParams(top_k=256, backend_sampling=True)
    for sampling in (GREEDY, SEEDED, top_k, replace(top_k, ignore_eos=True), replace(GREEDY, top_k=0)):
        samplers = [runner.sampler(sampling, [5]) for _ in range(4)]
        for seq, sampler in enumerate(samplers):
            runner.sample_in_graph(seq, sampler)
        assert runner.decode([Entry(0, 0, [5, 9])])
        assert breakdown(runner._open())[HOST].compute <= reserved
        for sampler in samplers:
            sampler.close()
        runner.seq_remove(0, 0)
    for each in (runner, plain, weights, without):
        each.close()
