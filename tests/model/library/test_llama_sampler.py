"""The sampler chain: what it leaves over is compared with the same rules in numpy; limits, constraints, threads."""

import ctypes
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from server.engine.request import PARAMETERS, RANDOM_SEED, SAMPLERS, SamplingParams
from server.errors import InternalError, InvalidRequest, NotNumbers
from server.llama.context.runner import LlamaRunner
from server.llama.sampling import candidates as parallel_sampling
from server.llama.sampling.sampler import NativeSampler
from tests.model.native_fixtures import (
    GREEDY,
    PLAIN,
    Entry,
    generate,
    open_runner,
    prefill,
    prompt_tokens,
    raw_probabilities,
)
from tests.support.ggufs import TinyModel, gguf_file


class Watched(SamplingParams):
    """Notes which parameters a chain is made of."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        type(self).read.add(name)
        return super().__getattribute__(name)


def test_every_parameter_is_used(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.llama.sampling.sampler.check_sampling", lambda *_: None)  # it reads all of them
    Watched.read.clear()
    for params in (
        Watched(samplers=tuple(SAMPLERS)),
        Watched(samplers=("dry",), dry_multiplier=1.0),
        Watched(mirostat=1),
    ):
        runner.sampler(params, [])
    assert {*PARAMETERS, "logit_bias", "dry_sequence_breakers"} - Watched.read == {"backend_sampling"}  # the engine's


def test_a_seed_repeats_and_another_does_not(runner: LlamaRunner) -> None:
    tokens = prompt_tokens(runner.vocab)
    first = generate(runner, tokens, 30, PLAIN)
    assert first == generate(runner, tokens, 30, PLAIN, seq=2)
    assert first != generate(runner, tokens, 30, replace(PLAIN, seed=8))


def test_a_random_seed_is_reported(runner: LlamaRunner) -> None:
    seeds = {runner.sampler(replace(PLAIN, seed=RANDOM_SEED), []).seed for _ in range(5)}
    assert len(seeds) == 5
    assert RANDOM_SEED not in seeds
    assert runner.sampler(PLAIN, []).seed == 7


def test_dry_breakers_of_any_text_are_harmless(ready: LlamaRunner) -> None:
    breakers = ("é", "☃☃", "x" * 500, "", "\x00", "\ud800", "the qu", "<|im_start|>")
    params = replace(PLAIN, dry_multiplier=1.0, dry_sequence_breakers=breakers)
    for _ in range(2):  # the second one is a copy of the first
        sampler = ready.sampler(params, [1, 2, 3] * 20)
        assert 0 <= ready.sample(0, sampler) < ready.vocab.n_tokens


@pytest.mark.parametrize(
    "change",
    [
        {"mirostat": 1},
        {"mirostat": 2},
        {"samplers": ("min_p", "adaptive_p"), "adaptive_target": 0.3},
        {"typical_p": 0.5},
        {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
        {"samplers": ("top_k", "top_p", "infill", "temperature")},
        {"samplers": ()},
        {"top_k": 1, "xtc_probability": 0.9, "min_keep": 1_000_000},
    ],
)
def test_every_member_works_and_repeats_with_its_seed(runner: LlamaRunner, change: dict[str, Any]) -> None:
    params = replace(PLAIN, **change)
    tokens = prompt_tokens(runner.vocab)
    assert generate(runner, tokens, 15, params) == generate(runner, tokens, 15, params)


GREEDY_CHAINS: list[dict[str, Any]] = [
    {},
    {"temperature": -1.0, "seed": 2},
    {"ignore_eos": True},
    {"top_k": 3, "top_p": 0.2, "min_p": 0.9, "top_n_sigma": 0.5},
    {"samplers": ("temperature",)},
    {"repeat_penalty": 1.3, "repeat_last_n": 0},
    {"xtc_probability": 0.0, "typical_p": 1.0, "min_keep": 4},
]


@pytest.mark.parametrize("changes", GREEDY_CHAINS, ids=lambda changes: " ".join(changes) or "default")
@pytest.mark.parametrize("n_biased", [0, 1, 3])
def test_the_highest_logit_is_what_the_whole_chain_takes(
    ready: LlamaRunner, changes: dict[str, Any], n_biased: int
) -> None:
    *biased, best = (int(token) for token in np.argsort(-raw_probabilities(ready))[: n_biased + 1])
    params = replace(GREEDY, logit_bias=tuple((token, -100.0) for token in biased), **changes)
    short, whole = ready.sampler(params, []), ready.sampler(params, [])
    assert short.lowered is not None
    whole.lowered = None
    assert ready.sample(0, short) == ready.sample(0, whole) == best


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": float("inf")}, "top_p"),
        ({"temperature": 1e300}, "temperature"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"repeat_penalty": -1.0}, "repeat_penalty"),
        ({"repeat_penalty": 1e-45}, "repeat_penalty"),
        ({"top_k": 1 << 40}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 32}, "seed"),
        ({"mirostat": 3}, "mirostat"),
        ({"min_keep": -1}, "min_keep"),
        ({"samplers": ("top_k", "none")}, "samplers"),
        ({"logit_bias": ((400, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias"),
        ({"logit_bias": ((1, float("inf")),)}, "logit_bias"),
        ({"dry_sequence_breakers": ("a",) * 1000}, "dry_sequence_breakers"),
    ],
)
def test_impossible_parameters_name_their_field(runner: LlamaRunner, change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        runner.sampler(replace(PLAIN, **change), [])
    assert caught.value.param == param


def extreme_params() -> Iterator[SamplingParams]:
    for value in (3.4e38, -3.4e38, 1e-30, 0.0):
        for name in (
            "temperature",
            "dynatemp_range",
            "dynatemp_exponent",
            "min_p",
            "top_p",
            "typical_p",
            "mirostat_tau",
        ):
            change: dict[str, Any] = {name: value}
            yield replace(PLAIN, **change, mirostat=2 if name == "mirostat_tau" else 0)
            yield replace(PLAIN, **change, dynatemp_range=2.0) if name != "dynatemp_range" else PLAIN
        yield replace(PLAIN, mirostat=1, mirostat_tau=value, mirostat_eta=value)
        yield replace(PLAIN, samplers=("adaptive_p",), adaptive_target=value, adaptive_decay=value)
        yield replace(PLAIN, presence_penalty=value, frequency_penalty=value)
        yield replace(PLAIN, dry_multiplier=value, dry_base=max(value, 1.0), dry_allowed_length=-5)


def test_extreme_but_finite_numbers_do_not_stop_the_process(ready: LlamaRunner) -> None:
    for params in extreme_params():
        sampler = ready.sampler(params, [5] * 30)
        for _ in range(3):
            assert 0 <= ready.sample(0, sampler) < ready.vocab.n_tokens
            assert 0 <= ready.propose(0, sampler) < ready.vocab.n_tokens


def test_end_tokens_are_ignored_also_without_an_eos_token(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.vocab, "eos", -1)
    prefill(runner, 0, prompt_tokens(runner.vocab))
    sampler = runner.sampler(replace(GREEDY, ignore_eos=True, logit_bias=((runner.vocab.eot, 1000.0),)), [])
    assert runner.sample(0, sampler) not in runner.vocab.eog


def test_infill_needs_an_end_token(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the library would abort."""
    monkeypatch.setattr(runner.vocab, "eot", -1)
    runner.sampler(replace(PLAIN, samplers=("infill",)), []).close()
    monkeypatch.setattr(runner.vocab, "eos", -1)
    with pytest.raises(InvalidRequest, match="end token") as caught:
        runner.sampler(replace(PLAIN, samplers=("infill",)), [])
    assert caught.value.param == "samplers"


def test_infill_considers_the_most_probable_tokens_only(ready: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares each with each: with a vocabulary of 150,000 tokens the step thread was busy for minutes."""
    monkeypatch.setattr("server.llama.sampling.sampler.MOST_CANDIDATES", 1)
    sampler = ready.sampler(replace(PLAIN, samplers=("infill",)), [])
    assert ready.sample(0, sampler) == int(raw_probabilities(ready).argmax())


def mask_of(n_vocab: int, *tokens: int) -> bytes:
    bits = np.zeros(-(-n_vocab // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize("params", [PLAIN, SamplingParams(temperature=0.0), replace(PLAIN, mirostat=2)])
def test_a_mask_leaves_its_tokens_only(ready: LlamaRunner, params: SamplingParams) -> None:
    sampler = ready.sampler(params, [])
    before = ready.logprobs(0, 0, 400)
    mask = mask_of(ready.vocab.n_tokens, 3, 77, 399)
    assert {ready.propose(0, sampler, mask) for _ in range(50)} <= {3, 77, 399}
    assert ready.propose(0, sampler, mask_of(ready.vocab.n_tokens, 9)) == 9
    assert ready.logprobs(0, 0, 400) == before  # the context's logits are untouched


def test_under_a_mask_the_library_does_not_compare_each_candidate_with_each_bias(
    ready: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does where candidates are out of order: 100,000 of them and 65,536 biases took seconds for each token."""
    n = ready.vocab.n_tokens
    sampler = ready.sampler(replace(PLAIN, logit_bias=tuple((t, float(t == 77)) for t in range(n))), [])
    apply, sizes = ready._candidates._apply, dict[int, int]()

    def watched(member: Any, array: Any) -> None:
        sizes[ctypes.cast(member, ctypes.c_void_p).value or 0] = array._obj.size
        apply(member, array)

    monkeypatch.setattr(ready._candidates, "_apply", watched)
    found = [ready.propose(0, sampler, mask_of(n, 3, 77, 399)) for _ in range(50)]
    assert {*found} == {3, 77, 399}
    assert sizes[ctypes.cast(sampler.members[0], ctypes.c_void_p).value or 0] == n
    assert {*sizes.values()} == {n, 3}


@pytest.mark.parametrize("change", [{"typical_p": 0.5}, {"dynatemp_range": 0.9}, {"mirostat": 1}, {"mirostat": 2}])
def test_biases_of_other_tokens_do_not_change_what_is_drawn_under_a_mask(
    ready: LlamaRunner, change: dict[str, Any]
) -> None:
    """Long biases are added to the whole vocabulary: as candidates, the others switched off typical-p and mirostat."""
    mask = mask_of(n := ready.vocab.n_tokens, *(allowed := (3, 77, 399, 9)))
    params = replace(PLAIN, **change)
    unbiased = ready.sampler(params, [])
    biased = ready.sampler(replace(params, logit_bias=tuple((t, 1.0) for t in range(n) if t not in allowed)), [])
    draws = [[ready.propose(0, one, mask) for _ in range(100)] for one in (unbiased, biased)]
    assert draws[0] == draws[1]


@pytest.mark.parametrize("change", [{}, {"presence_penalty": 1.0}, {"dry_multiplier": 1.0}, {"mirostat": 2}])
def test_propose_and_accept_are_sample(runner: LlamaRunner, change: dict[str, Any]) -> None:
    params = replace(PLAIN, **change)
    tokens = prompt_tokens(runner.vocab)
    expected = generate(runner, tokens, 20, params)
    runner.seq_remove(0, 0)
    prefill(runner, 0, tokens)
    sampler = runner.sampler(params, tokens)
    out: list[int] = []
    while len(out) < 20:
        out.append(runner.propose(0, sampler))
        runner.accept(sampler, out[-1])
        assert runner.decode([Entry(0, len(tokens) + len(out) - 1, out[-1:])])
    assert out == expected


@pytest.mark.parametrize("token", [-1, 400])
def test_tokens_outside_the_vocabulary_are_not_accepted(ready: LlamaRunner, token: int) -> None:
    sampler = ready.sampler(replace(PLAIN, presence_penalty=1.0), [])
    with pytest.raises(InternalError):
        ready.accept(sampler, token)
    with pytest.raises(InternalError):
        ready.sampler(replace(PLAIN, presence_penalty=1.0), [token])


def test_a_closed_sampler_raises(ready: LlamaRunner) -> None:
    sampler: NativeSampler = ready.sampler(PLAIN, [])
    sampler.close()
    sampler.close()
    for call in (ready.sample, ready.propose):
        with pytest.raises(InternalError, match="closed"):
            call(0, sampler)
    del sampler
    gc.collect()


def test_a_large_vocabulary_gives_the_gil_away_and_the_same_tokens(gguf_folder: Path) -> None:
    params = replace(PLAIN, presence_penalty=0.5)
    with open_runner(gguf_file(gguf_folder, TinyModel(n_vocab=70_000, n_embd=32))) as runner:
        tokens = prompt_tokens(runner.vocab)
        expected = generate(runner, tokens, 5, params)
        runner.seq_remove(0, 0)
        prefill(runner, 0, tokens)
        sampler = runner.sampler(params, tokens)
        assert runner.propose(0, sampler) == expected[0]
        mask = mask_of(70_000, 5)
        assert runner.propose(0, sampler, mask) == 5


def test_probabilities_under_a_mask_are_renormalized(ready: LlamaRunner) -> None:
    p = raw_probabilities(ready)
    sampler = ready.sampler(PLAIN, [])
    entry = ready.propose_probs(0, sampler, 5, mask_of(ready.vocab.n_tokens, 10, 20))
    assert {top.id for top in entry.top} == {10, 20}
    assert np.exp(entry.logprob) == pytest.approx(p[entry.id] / (p[10] + p[20]), rel=1e-4)


PARAMS = [
    replace(PLAIN, seed=1),
    GREEDY,
    SamplingParams(temperature=1.5, seed=2),
    replace(PLAIN, seed=3, repeat_penalty=1.3),
]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaRunner]:
    """A runner on whose machine three threads are quicker than one."""
    monkeypatch.setattr(parallel_sampling, "usable_cpus", lambda: 3)
    monkeypatch.setattr(parallel_sampling, "threads_for", lambda n_chains, chain_s, handing_s, n_cpus: min(3, n_cpus))
    with open_runner(gguf_file(tmp_path, TinyModel())) as runner:
        yield runner


def _decoded(runner: LlamaRunner) -> list[list[int]]:
    tokens = prompt_tokens(runner.vocab)
    prompts = [tokens[: 3 + i] for i in range(4)]
    for seq in range(4):
        runner.seq_remove(seq, 0)
    assert runner.decode([Entry(seq, 0, prompt) for seq, prompt in enumerate(prompts)])
    return prompts


def test_the_tokens_are_those_of_one_after_the_other(large: LlamaRunner) -> None:
    prompts = _decoded(large)
    alone = [large.sampler(p, prompt) for p, prompt in zip(PARAMS, prompts, strict=True)]
    together = [large.sampler(p, prompt) for p, prompt in zip(PARAMS, prompts, strict=True)]
    first = [large.sampler(PLAIN, prompts[0]) for _ in range(2)]
    assert len(large.sample_together([(0, first[0]), (2, first[1])])) == 2  # fewer than the threads that there may be
    for _ in range(8):  # of one decode: the draws go on, and what was accepted is remembered
        wanted = [large.sample(output, sampler) for output, sampler in enumerate(alone)]
        drawn = large.sample_together(list(enumerate(together)))
        assert 1 not in drawn  # the highest logit, which needs no chain
        assert [drawn.get(o, large.sample(o, together[o]) if o not in drawn else -1) for o in range(4)] == wanted


def test_log_probabilities_change_no_estimate_of_sampling_and_take_no_candidates(large: LlamaRunner) -> None:
    _decoded(large)
    parallel = large._parallel
    before = parallel._chain_s, parallel._handing_s
    large.prepare_logprobs([(output, 5) for output in range(4)])
    assert len(large._distributions) == 4
    assert (parallel._chain_s, parallel._handing_s, parallel._scratch) == (*before, [])


def test_log_probabilities_computed_together_are_those_of_one_after_the_other(large: LlamaRunner) -> None:
    _decoded(large)
    alone = [large.logprobs(output, 7, 5) for output in range(4)]
    large._logits(2)[5] = np.nan
    large._highest = {}  # read them again
    large.prepare_logprobs([(output, 5) for output in range(4)])
    assert len(large._distributions) == 3
    with pytest.raises(NotNumbers):
        large.logprobs(2, 7, 5)
    assert [large.logprobs(output, 7, 5) for output in (0, 1, 3)] == [alone[0], alone[1], alone[3]]
    assert large.logprobs(0, 7, 2).top == alone[0].top[:2]


@pytest.mark.parametrize("bad", [{1}, {0, 1, 2, 3}])
def test_logits_that_are_no_numbers_fail_their_own_sequence(large: LlamaRunner, bad: set[int]) -> None:
    prompts = _decoded(large)
    samplers = [large.sampler(PLAIN, prompt) for prompt in prompts]
    for output in bad:
        view = large._logits(output)
        view.flags.writeable = True
        view[5] = np.nan
    large._highest = {}  # read them again
    drawn = large.sample_together(list(enumerate(samplers)))
    assert {output for output, token in drawn.items() if isinstance(token, InternalError)} == bad
    assert set(drawn) == {0, 1, 2, 3}
