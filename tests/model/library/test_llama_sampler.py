"""Sampler chains: every parameter, greedy sampling, token masks, parallel sampling and rejected values.

They use the logits of a tiny native model.
"""

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
from server.llama.library import C, fast
from server.llama.sampling import candidates as parallel_sampling
from server.llama.sampling import sampler as sampler_module
from server.llama.sampling.sampler import NativeSampler
from tests.model.native_fixtures import (
    GREEDY,
    UNTRUNCATED,
    Entry,
    all_probabilities,
    generate,
    open_runner,
    prefill,
    prompt_tokens,
)
from tests.support.ggufs import TinyModel, gguf_file


class RecordingParams(SamplingParams):
    """Records which parameters are read."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        type(self).read.add(name)
        return super().__getattribute__(name)


def test_chains_use_every_sampling_parameter(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.llama.sampling.sampler.check_sampling", lambda *_: None)  # it reads all of them
    RecordingParams.read.clear()
    for params in (
        RecordingParams(samplers=tuple(SAMPLERS)),
        RecordingParams(samplers=("dry",), dry_multiplier=1.0),
        RecordingParams(mirostat=1),
    ):
        runner.sampler(params, [])
    unused = {*PARAMETERS, "logit_bias", "dry_sequence_breakers"} - RecordingParams.read
    assert unused == {"backend_sampling"}  # the engine uses it


def test_the_same_seed_gives_the_same_tokens_and_another_does_not(runner: LlamaRunner) -> None:
    tokens = prompt_tokens(runner.vocab)
    first = generate(runner, tokens, 30, UNTRUNCATED)
    assert first == generate(runner, tokens, 30, UNTRUNCATED, seq=2)
    assert first != generate(runner, tokens, 30, replace(UNTRUNCATED, seed=8))


def test_a_random_seed_is_reported(runner: LlamaRunner) -> None:
    seeds = {runner.sampler(replace(UNTRUNCATED, seed=RANDOM_SEED), []).seed for _ in range(5)}
    assert len(seeds) == 5
    assert RANDOM_SEED not in seeds
    assert runner.sampler(UNTRUNCATED, []).seed == 7


def test_accepts_any_text_as_a_dry_sequence_breaker(prefilled: LlamaRunner) -> None:
    breakers = ("é", "☃☃", "x" * 500, "", "\x00", "\ud800", "the qu", "<|im_start|>")
    params = replace(UNTRUNCATED, dry_multiplier=1.0, dry_sequence_breakers=breakers)
    for _ in range(2):  # the second one is a copy of the first
        sampler = prefilled.sampler(params, [1, 2, 3] * 20)
        assert 0 <= prefilled.sample(0, sampler) < prefilled.vocab.n_tokens


def test_a_dry_sampler_is_built_once_before_its_sequences_begin(
    runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(UNTRUNCATED, dry_multiplier=1.0, dry_sequence_breakers=("once",))
    runner.prepare_sampler(params)
    monkeypatch.setattr("server.llama.sampling.sampler.C.llama_sampler_init_dry", None)
    runner.prepare_sampler(params)
    for _ in range(2):
        runner.sampler(params, []).close()


def test_cached_dry_samplers_are_limited_by_their_matches(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = (replace(UNTRUNCATED, dry_multiplier=m, dry_sequence_breakers=("em",)) for m in (1.0, 2.0, 3.0))
    runner.prepare_sampler(first)
    assert not runner.needs_preparation(first)
    n_matches = sum(runner.vocab.piece(token).endswith(b"e") for token in range(runner.vocab.n_tokens))
    monkeypatch.setattr(sampler_module, "_CACHED_WORK", 2 * n_matches + 9)
    for params in others:
        runner.prepare_sampler(params)
    assert [runner.needs_preparation(each) for each in (first, *others)] == [True, False, False]


def test_a_dry_sampler_that_leaves_the_cache_is_not_freed_while_it_is_copied(
    runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(UNTRUNCATED, dry_multiplier=4.0)
    freed, free, clone = list[int](), fast.sampler_free, C.llama_sampler_clone

    def checked_free(chain: int) -> None:
        freed.append(chain)
        free(chain)

    def checked_clone(chain: int) -> int:
        assert chain not in freed
        copy: int = clone(chain)
        return copy

    monkeypatch.setattr(sampler_module, "_CACHED_DRY", 0)
    monkeypatch.setattr(fast, "sampler_free", checked_free)
    monkeypatch.setattr(C, "llama_sampler_clone", checked_clone)
    runner.sampler(params, []).close()
    assert len(freed) == 2


def test_rejects_dry_sequence_breakers_that_match_too_many_tokens(
    runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_matches = sum(runner.vocab.piece(token).endswith(b"e") for token in range(runner.vocab.n_tokens))
    params = replace(UNTRUNCATED, dry_multiplier=1.0, dry_sequence_breakers=("e\u2603", "e\u2603"))
    monkeypatch.setattr(sampler_module, "_MAX_BREAKER_WORK", n_matches)
    runner.prepare_sampler(params)  # the repeated one costs nothing
    monkeypatch.setattr(sampler_module, "_MAX_BREAKER_WORK", n_matches - 1)
    with pytest.raises(InvalidRequest, match="too many tokens") as caught:
        runner.prepare_sampler(replace(params, dry_base=2.0))
    assert caught.value.param == "dry_sequence_breakers"


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
def test_every_sampler_repeats_its_tokens_with_the_same_seed(runner: LlamaRunner, change: dict[str, Any]) -> None:
    params = replace(UNTRUNCATED, **change)
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
def test_greedy_sampling_without_the_chain_gives_the_same_token(
    prefilled: LlamaRunner, changes: dict[str, Any], n_biased: int
) -> None:
    *biased, best = (int(token) for token in np.argsort(-all_probabilities(prefilled))[: n_biased + 1])
    params = replace(GREEDY, logit_bias=tuple((token, -100.0) for token in biased), **changes)
    shortcut, chain = prefilled.sampler(params, []), prefilled.sampler(params, [])
    assert shortcut.lowered is not None
    chain.lowered = None
    assert prefilled.sample(0, shortcut) == prefilled.sample(0, chain) == best


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
def test_rejects_invalid_parameters_with_their_name(runner: LlamaRunner, change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        runner.sampler(replace(UNTRUNCATED, **change), [])
    assert caught.value.param == param


def extreme_params() -> Iterator[SamplingParams]:
    names = ("temperature", "dynatemp_range", "dynatemp_exponent", "min_p", "top_p", "typical_p", "mirostat_tau")
    for value in (3.4e38, -3.4e38, 1e-30, 0.0):
        for name in names:
            change: dict[str, Any] = {name: value}
            yield replace(UNTRUNCATED, **change, mirostat=2 if name == "mirostat_tau" else 0)
            yield replace(UNTRUNCATED, **change, dynatemp_range=2.0) if name != "dynatemp_range" else UNTRUNCATED
        yield replace(UNTRUNCATED, mirostat=1, mirostat_tau=value, mirostat_eta=value)
        yield replace(UNTRUNCATED, samplers=("adaptive_p",), adaptive_target=value, adaptive_decay=value)
        yield replace(UNTRUNCATED, presence_penalty=value, frequency_penalty=value)
        yield replace(UNTRUNCATED, dry_multiplier=value, dry_base=max(value, 1.0), dry_allowed_length=-5)


def test_extreme_finite_parameters_give_valid_tokens(prefilled: LlamaRunner) -> None:
    for params in extreme_params():
        sampler = prefilled.sampler(params, [5] * 30)
        for _ in range(3):
            assert 0 <= prefilled.sample(0, sampler) < prefilled.vocab.n_tokens
            assert 0 <= prefilled.propose(0, sampler) < prefilled.vocab.n_tokens


def test_ignore_eos_suppresses_all_end_tokens_of_a_vocabulary_without_eos(
    runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.vocab, "eos", -1)
    prefill(runner, 0, prompt_tokens(runner.vocab))
    sampler = runner.sampler(replace(GREEDY, ignore_eos=True, logit_bias=((runner.vocab.eot, 1000.0),)), [])
    assert runner.sample(0, sampler) not in runner.vocab.eog


def test_rejects_the_infill_sampler_for_a_vocabulary_without_end_tokens(
    runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would abort."""
    monkeypatch.setattr(runner.vocab, "eot", -1)
    runner.sampler(replace(UNTRUNCATED, samplers=("infill",)), []).close()
    monkeypatch.setattr(runner.vocab, "eos", -1)
    with pytest.raises(InvalidRequest, match="end token") as caught:
        runner.sampler(replace(UNTRUNCATED, samplers=("infill",)), [])
    assert caught.value.param == "samplers"


def test_infill_considers_the_most_probable_tokens_only(
    prefilled: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares all pairs of candidates, which took minutes for a vocabulary of 150,000 tokens."""
    monkeypatch.setattr("server.llama.sampling.sampler.MAX_CANDIDATES", 1)
    sampler = prefilled.sampler(replace(UNTRUNCATED, samplers=("infill",)), [])
    assert prefilled.sample(0, sampler) == int(all_probabilities(prefilled).argmax())


def mask_of(n_vocab: int, *tokens: int) -> bytes:
    bits = np.zeros(-(-n_vocab // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize("params", [UNTRUNCATED, SamplingParams(temperature=0.0), replace(UNTRUNCATED, mirostat=2)])
def test_only_tokens_of_the_mask_are_sampled(prefilled: LlamaRunner, params: SamplingParams) -> None:
    sampler = prefilled.sampler(params, [])
    before = prefilled.logprobs(0, 0, 400)
    mask = mask_of(prefilled.vocab.n_tokens, 3, 77, 399)
    assert {prefilled.propose(0, sampler, mask) for _ in range(50)} <= {3, 77, 399}
    assert prefilled.propose(0, sampler, mask_of(prefilled.vocab.n_tokens, 9)) == 9
    assert prefilled.logprobs(0, 0, 400) == before  # the logits of the context are unchanged


def test_long_biases_are_applied_to_the_vocabulary_before_the_mask(
    prefilled: LlamaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library compares masked candidates with each bias: 100,000 and 65,536 of them took seconds per token."""
    n = prefilled.vocab.n_tokens
    sampler = prefilled.sampler(replace(UNTRUNCATED, logit_bias=tuple((t, float(t == 77)) for t in range(n))), [])
    apply, sizes = prefilled._candidates._apply, dict[int, int]()

    def recorded(member: Any, array: Any) -> None:
        sizes[ctypes.cast(member, ctypes.c_void_p).value or 0] = array._obj.size
        apply(member, array)

    monkeypatch.setattr(prefilled._candidates, "_apply", recorded)
    assert {prefilled.propose(0, sampler, mask_of(n, 3, 77, 399)) for _ in range(50)} == {3, 77, 399}
    assert sizes[ctypes.cast(sampler.members[0], ctypes.c_void_p).value or 0] == n
    assert {*sizes.values()} == {n, 3}


@pytest.mark.parametrize("change", [{"typical_p": 0.5}, {"dynatemp_range": 0.9}, {"mirostat": 1}, {"mirostat": 2}])
def test_biases_of_masked_tokens_do_not_change_the_sampled_tokens(
    prefilled: LlamaRunner, change: dict[str, Any]
) -> None:
    """When masked tokens with a bias stayed candidates, typical-p and mirostat had no effect."""
    mask = mask_of(n := prefilled.vocab.n_tokens, *(allowed := (3, 77, 399, 9)))
    params = replace(UNTRUNCATED, **change)
    unbiased = prefilled.sampler(params, [])
    biased = prefilled.sampler(replace(params, logit_bias=tuple((t, 1.0) for t in range(n) if t not in allowed)), [])
    draws = [[prefilled.propose(0, one, mask) for _ in range(100)] for one in (unbiased, biased)]
    assert draws[0] == draws[1]


@pytest.mark.parametrize("change", [{}, {"presence_penalty": 1.0}, {"dry_multiplier": 1.0}, {"mirostat": 2}])
def test_propose_and_accept_give_the_tokens_of_sample(runner: LlamaRunner, change: dict[str, Any]) -> None:
    params = replace(UNTRUNCATED, **change)
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
def test_rejects_tokens_outside_the_vocabulary(prefilled: LlamaRunner, token: int) -> None:
    sampler = prefilled.sampler(replace(UNTRUNCATED, presence_penalty=1.0), [])
    with pytest.raises(InternalError):
        prefilled.accept(sampler, token)
    with pytest.raises(InternalError):
        prefilled.sampler(replace(UNTRUNCATED, presence_penalty=1.0), [token])


def test_a_closed_sampler_raises(prefilled: LlamaRunner) -> None:
    sampler: NativeSampler = prefilled.sampler(UNTRUNCATED, [])
    sampler.close()
    sampler.close()
    for call in (prefilled.sample, prefilled.propose):
        with pytest.raises(InternalError, match="closed"):
            call(0, sampler)
    del sampler
    gc.collect()


def test_a_large_vocabulary_is_sampled_without_the_gil(gguf_folder: Path) -> None:
    """The calls that release the GIL give the same tokens in `sample` and `propose`."""
    params = replace(UNTRUNCATED, presence_penalty=0.5)
    with open_runner(gguf_file(gguf_folder, TinyModel(n_vocab=70_000, n_embd=32))) as runner:
        tokens = prompt_tokens(runner.vocab)
        expected = generate(runner, tokens, 5, params)
        runner.seq_remove(0, 0)
        prefill(runner, 0, tokens)
        sampler = runner.sampler(params, tokens)
        assert runner.propose(0, sampler) == expected[0]
        mask = mask_of(70_000, 5)
        assert runner.propose(0, sampler, mask) == 5


def test_probabilities_under_a_mask_are_renormalized(prefilled: LlamaRunner) -> None:
    p = all_probabilities(prefilled)
    sampler = prefilled.sampler(UNTRUNCATED, [])
    entry = prefilled.propose_probs(0, sampler, 5, mask_of(prefilled.vocab.n_tokens, 10, 20))
    assert {top.id for top in entry.top} == {10, 20}
    assert np.exp(entry.logprob) == pytest.approx(p[entry.id] / (p[10] + p[20]), rel=1e-4)


PARAMS = [
    replace(UNTRUNCATED, seed=1),
    GREEDY,
    SamplingParams(temperature=1.5, seed=2),
    replace(UNTRUNCATED, seed=3, repeat_penalty=1.3),
]


@pytest.fixture
def parallel_runner(gguf_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlamaRunner]:
    """A runner that samples in three threads."""
    monkeypatch.setattr(parallel_sampling, "usable_cpus", lambda: 3)
    monkeypatch.setattr(parallel_sampling, "threads_for", lambda n_chains, chain_s, handing_s, n_cpus: min(3, n_cpus))
    with open_runner(gguf_file(gguf_folder)) as runner:
        yield runner


def decode_prompts(runner: LlamaRunner) -> list[list[int]]:
    """Decode four prompts in one batch. Returns them."""
    tokens = prompt_tokens(runner.vocab)
    prompts = [tokens[: 3 + i] for i in range(4)]
    for seq in range(4):
        runner.seq_remove(seq, 0)
    assert runner.decode([Entry(seq, 0, prompt) for seq, prompt in enumerate(prompts)])
    return prompts


def test_parallel_sampling_gives_the_tokens_of_sequential_sampling(parallel_runner: LlamaRunner) -> None:
    prompts = decode_prompts(parallel_runner)
    sequential, parallel = (
        [parallel_runner.sampler(p, prompt) for p, prompt in zip(PARAMS, prompts, strict=True)] for _ in range(2)
    )
    first = [parallel_runner.sampler(UNTRUNCATED, prompts[0]) for _ in range(2)]
    assert len(parallel_runner.sample_together([(0, first[0]), (2, first[1])])) == 2  # fewer chains than threads
    for _ in range(8):  # random state and accepted tokens continue, although all use the same logits
        expected = [parallel_runner.sample(output, sampler) for output, sampler in enumerate(sequential)]
        tokens = dict(parallel_runner.sample_together(list(enumerate(parallel))))
        assert 1 not in tokens  # greedy sampling needs no chain
        tokens[1] = parallel_runner.sample(1, parallel[1])
        assert [tokens[output] for output in range(4)] == expected


def test_log_probabilities_do_not_change_the_cost_estimates_of_sampling(parallel_runner: LlamaRunner) -> None:
    decode_prompts(parallel_runner)
    parallel = parallel_runner._parallel
    before = parallel._chain_s, parallel._handing_s
    parallel_runner.prepare_logprobs([(output, 5) for output in range(4)])
    assert len(parallel_runner._distributions) == 4
    assert (parallel._chain_s, parallel._handing_s, parallel._scratch) == (*before, [])


def test_parallel_log_probabilities_are_those_of_sequential_ones(parallel_runner: LlamaRunner) -> None:
    decode_prompts(parallel_runner)
    alone = [parallel_runner.logprobs(output, 7, 5) for output in range(4)]
    parallel_runner._logits(2)[5] = np.nan
    parallel_runner._highest = {}  # read them again
    parallel_runner.prepare_logprobs([(output, 5) for output in range(4)])
    assert len(parallel_runner._distributions) == 3
    with pytest.raises(NotNumbers):
        parallel_runner.logprobs(2, 7, 5)
    assert [parallel_runner.logprobs(output, 7, 5) for output in (0, 1, 3)] == [alone[0], alone[1], alone[3]]
    assert parallel_runner.logprobs(0, 7, 2).top == alone[0].top[:2]


@pytest.mark.parametrize("bad", [{1}, {0, 1, 2, 3}])
def test_non_finite_logits_fail_only_their_own_sequence(parallel_runner: LlamaRunner, bad: set[int]) -> None:
    prompts = decode_prompts(parallel_runner)
    samplers = [parallel_runner.sampler(UNTRUNCATED, prompt) for prompt in prompts]
    for output in bad:
        view = parallel_runner._logits(output)
        view.flags.writeable = True
        view[5] = np.nan
    parallel_runner._highest = {}  # read them again
    tokens = parallel_runner.sample_together(list(enumerate(samplers)))
    assert {output for output, token in tokens.items() if isinstance(token, InternalError)} == bad
    assert set(tokens) == {0, 1, 2, 3}
