"""Speculation with n-gram lookup, draft models and synthetic acceptance: same texts in fewer steps, and how much it
gains or costs on simulated machines. Uses fake runners.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams, Timings
from server.engine.runner_api import BatchEntry
from server.engine.speculate.cost import (
    EXPIRY_STEPS,
    GPU_TOKEN_COST,
    N_MEASUREMENTS,
    TOKEN_COST,
    DraftState,
    StepCost,
    draft_length,
    log_tokens,
)
from server.engine.speculate.lookup import CHUNK, Lookup
from server.engine.speculate.speculation import speculation
from server.errors import InternalError
from tests.support.fakes import FakeRunner, evaluations
from tests.unit.engine.builders import Reply, engine_over, expected_text, request, run, ticking_clock
from tests.unit.engine.speculate.fake_draft import FakeDraft, Machine, runner_with_draft

VERSE = "row row row your boat, " * 6
SONG = VERSE[:70] + "and merrily " + VERSE


@pytest.mark.parametrize("n", [1, 3])
async def test_model_without_truncation_rolls_back_to_checkpoints(n: int, caplog: pytest.LogCaptureFixture) -> None:
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": SONG}, partial_removal=False)
    async with engine_over(runner, spec_type="lookup", clock=ticking_clock()) as engine:
        replies = await run(engine, *(request("sing", max_tokens=150) for _ in range(n)))
        for reply in replies:
            timings = reply.finished[0].timings
            assert reply.text == SONG[:150]
            assert timings.draft_n > timings.draft_n_accepted > 50
    assert "recomputing" not in caplog.text
    assert len(runner.batches) < 120


async def test_drafts_within_n_rollback_need_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": SONG}, partial_removal=False, n_rollback=64)
    monkeypatch.setattr(FakeRunner, "seq_checkpoint", lambda self, seq: pytest.fail("a checkpoint"))
    async with engine_over(runner, spec_type="lookup", clock=ticking_clock()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=150))
    timings = reply.finished[0].timings
    assert reply.text == SONG[:150]
    assert timings.draft_n > timings.draft_n_accepted > 50
    n_tokens = sum(n for batch in runner.batches for _, n in batch)
    assert n_tokens == timings.prompt_n + 150 - 1 + timings.draft_n - timings.draft_n_accepted


async def test_sequence_is_recomputed_if_its_checkpoint_cannot_be_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": SONG}, partial_removal=False)
    monkeypatch.setattr(FakeRunner, "seq_rewind", lambda self, seq, _state, _n: not self.seq_remove(seq, 0))
    async with engine_over(runner, spec_type="lookup", clock=ticking_clock()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=150))
    assert reply.text == SONG[:150]


# ---- n-gram lookup


def lookup_in(tokens: list[int]) -> Lookup:
    return Lookup(tokens, 2, n_more=4096)


def test_lookup_proposes_what_followed_the_last_occurrence() -> None:
    lookup = lookup_in([1, 2, 3, 4, 1, 2, 9, 1, 2])
    assert lookup.propose(4) == [9, 1, 2, 9]


def test_lookup_follows_a_text_past_a_replaced_token() -> None:
    lookup = lookup_in([*range(10, 30), 1, 10, 11, 12, 13])
    assert lookup.propose(2) == [14, 15]
    lookup.add(99)
    assert lookup.propose(2) == [15, 16]
    lookup.add(15)
    assert lookup.propose(2) == [16, 17]


def test_lookup_stops_following_a_text_after_several_different_tokens() -> None:
    lookup = lookup_in([*range(10, 30), 1, 10, 11, 12, 13])
    assert lookup.propose(2)
    for token in range(200, 204):
        lookup.add(token)
    assert lookup.propose(2) == []


def test_long_prompt_is_indexed_in_chunks() -> None:
    lookup = lookup_in([*range(3 * CHUNK), 5, 6])
    assert [lookup.propose(1) for _ in range(5)] == [[], [], [], [7], [7]]


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(1, 10), st.integers(1, 30))
def test_proposed_tokens_followed_the_same_n_gram_before(tokens: list[int], size: int, chunk: int) -> None:
    lookup = Lookup([], size, n_more=256)
    for start in range(0, len(tokens), chunk):
        lookup.tokens += tokens[start : start + chunk]
        lookup._index()
    draft = lookup.propose(8)
    text = tokens + draft
    earlier = [text[i : i + size + len(draft)] for i in range(len(tokens) - size)]
    assert not draft or tokens[-size:] + draft in earlier


# ---- draft models and synthetic acceptance


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def run_with_draft(machine: Machine, runner: FakeRunner, *requests: Request, **params: Any) -> list[Reply]:
    async with engine_over(runner, clock=machine, spec_type="draft-simple", **params) as engine:
        return await run(engine, *requests)


def timings(reply: Reply) -> Timings:
    return reply.finished[0].timings


async def test_synthetic_rate_of_1_accepts_every_draft_token(machine: Machine) -> None:
    req = request("hello", max_tokens=40, sampling=SamplingParams(temperature=0, ignore_eos=True))
    (reply,) = await run_with_draft(machine, runner_with_draft(machine, wrong=10), req, spec_synth=(1.0,) * 4)
    assert timings(reply).draft_n_accepted == timings(reply).draft_n > 20
    assert reply.text != expected_text(req)
    assert timings(reply).predicted_n == 40


async def test_synthetic_acceptance_depends_only_on_the_seed(machine: Machine) -> None:
    req = request("hello", max_tokens=60, sampling=SamplingParams(temperature=0, seed=7, ignore_eos=True))
    rates = 0.75, 0.7, 0.5
    first, again = await run_with_draft(
        machine, runner_with_draft(machine, wrong=10), req, replace(req), spec_synth=rates
    )
    assert (timings(first).draft_n, first.text) == (timings(again).draft_n, again.text)
    assert 0 < timings(first).draft_n_accepted < timings(first).draft_n


async def test_draft_model_whose_tokens_are_all_rejected_is_soon_used_no_more(machine: Machine) -> None:
    runner = runner_with_draft(machine, wrong=100)
    req = request("hello", max_tokens=200)
    (reply,) = await run_with_draft(machine, runner, req)
    assert reply.text == expected_text(req)
    assert timings(reply).draft_n_accepted == 0
    assert timings(reply).draft_n < 40


async def test_draft_model_prefills_a_long_prompt_in_chunks(machine: Machine) -> None:
    runner = runner_with_draft(machine, n_ctx_seq=2048, n_batch=512)
    req = request("abc" * 400, max_tokens=400)
    (reply,) = await run_with_draft(machine, runner, req)
    assert reply.text == expected_text(req)
    assert timings(reply).draft_n_accepted > 100
    assert isinstance(runner.draft, FakeDraft)
    assert max(max(batch) for batch in runner.draft.batches) <= 64


async def test_draft_model_does_not_prefill_a_long_prompt_for_a_short_reply(machine: Machine) -> None:
    runner = runner_with_draft(machine, n_ctx_seq=2048, n_batch=512)
    await run_with_draft(machine, runner, request("abc" * 400, max_tokens=8))
    assert isinstance(runner.draft, FakeDraft)
    assert runner.draft.batches == []


@pytest.mark.parametrize(("spec_type", "name"), [("draft-simple", "the draft model"), ("lookup", "n-gram speculation")])
async def test_speculation_fault_fails_no_request_and_is_logged_once_a_minute(
    spec_type: str, name: str, machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(entries: Sequence[BatchEntry]) -> None:
        machine.draft(entries)
        if any(entry.pos > 20 for entry in entries):
            raise InternalError("llama_decode returned -3")

    runner = FakeRunner(on_decode=machine.step)
    if spec_type == "draft-simple":
        runner.draft = FakeDraft(runner, on_decode=fail)
    else:
        monkeypatch.setattr(Lookup, "propose", lambda self, most: 1 // 0)
    requests = [request(f"prompt {i}", max_tokens=50) for i in range(6)]
    message = f"{name} failed; the current requests continue without it"
    async with engine_over(runner, clock=machine, spec_type=spec_type) as engine:
        for n in (1, 2):
            replies = await run(engine, *requests)
            assert [reply.text for reply in replies] == [expected_text(each) for each in requests]
            assert [record.message for record in caplog.records] == [message] * n
            machine.wait(60.0)


async def test_draft_model_drafts_to_the_end_of_its_context(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    runner = runner_with_draft(machine, n_ctx_seq=512, replies={"sing": VERSE * 2})
    assert isinstance(runner.draft, FakeDraft)
    runner.draft.info = replace(runner.draft.info, n_ctx_seq=100)
    (reply,) = await run_with_draft(machine, runner, request("sing", max_tokens=200))
    assert reply.text == (VERSE * 2)[:200]
    assert timings(reply).draft_n_accepted > 30
    assert "the draft model failed" not in caplog.text


@pytest.mark.parametrize(
    ("limits", "longest"),
    [({"spec_n_max": 0}, 0), ({"spec_n_max": 2}, 2), ({"spec_p_min": 0.95}, 0), ({"spec_n_min": 50}, 0)],
)
async def test_request_fields_limit_its_drafts(machine: Machine, limits: dict[str, float], longest: int) -> None:
    runner = runner_with_draft(machine)
    req = request("hello", max_tokens=60, **limits)
    (reply,) = await run_with_draft(machine, runner, req)
    assert reply.text == expected_text(req)
    assert max(n - 1 for batch in runner.batches[1:] for _, n in batch) == longest
    assert isinstance(runner.draft, FakeDraft)
    assert bool(runner.draft.batches) == (longest > 0 or "spec_p_min" in limits)  # otherwise no draft is computed


# ---- gain on simulated machines

pytestmark = pytest.mark.slow

MACHINES = {  # ms of a step, and of each of its tokens
    "cpu": (10.0, 3.0),
    "gpu": (10.0, 0.05),
    "even": (0.1, 10.0),  # every token costs the same: speculation cannot gain
}


def random_text(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ,.()=") for _ in range(n))


def edited(source: str, rng: random.Random) -> str:
    """Return `source` with about one letter in forty replaced."""
    return "".join(rng.choice("ABCDEF") if rng.random() < 1 / 40 else letter for letter in source)


async def seconds(spec_type: str, step_ms: tuple[float, float], replies: dict[str, str], wrong: int = 0) -> float:
    """Return the machine time to generate all `replies`, by prompt, simultaneously."""
    machine = Machine(step_ms, draft_ms=(step_ms[0] / 10, step_ms[1] / 10))
    runner = FakeRunner(n_seq=len(replies), n_ctx_seq=2048, n_batch=2048, replies=replies, on_decode=machine.step)
    runner.info = replace(runner.info, deferred=step_ms == MACHINES["gpu"])
    runner.draft = FakeDraft(runner, wrong=wrong, on_decode=machine.draft)
    requests = [request(prompt, max_tokens=len(reply) + 1) for prompt, reply in replies.items()]
    async with engine_over(runner, clock=machine, spec_type=spec_type, gather_ms=60_000.0) as engine:
        found = await run(engine, *requests)
    assert [reply.text for reply in found] == list(replies.values())
    return machine()


async def speedup(spec_type: str, machine: str, replies: dict[str, str], wrong: int = 0) -> float:
    step_ms = MACHINES[machine]
    return await seconds("none", step_ms, replies) / await seconds(spec_type, step_ms, replies, wrong)


def edits(n: int) -> dict[str, str]:
    """Return replies that repeat their prompt with edits."""
    rng = random.Random(n)
    sources = [random_text(rng, 200) for _ in range(n)]
    return {source: edited(source, rng) for source in sources}


def unrelated(n: int) -> dict[str, str]:
    """Return replies that have nothing in common with their prompts."""
    rng = random.Random(n)
    return {random_text(rng, 150): random_text(rng, 300) for _ in range(n)}


@pytest.mark.parametrize(("machine", "n", "smallest"), [("cpu", 1, 1.8), ("cpu", 6, 1.03), ("gpu", 6, 3.5)])
async def test_lookup_speeds_up_edits_of_the_prompt(machine: str, n: int, smallest: float) -> None:
    assert await speedup("lookup", machine, edits(n)) > smallest


def quotes(seed: int) -> dict[str, str]:
    """Return a reply of new text between quotes of 10 to 50 letters of its prompt."""
    rng = random.Random(seed)
    source, reply = random_text(rng, 400), ""
    while len(reply) < 260:
        at = rng.randrange(350)
        reply += random_text(rng, rng.randrange(4, 24)) + source[at : at + rng.randrange(10, 50)]
    return {source: reply}


async def test_lookup_speeds_up_short_quotes_of_the_prompt() -> None:
    """A long match tells at once that more tokens follow; a rate of the recent tokens (1.27) needs several more."""
    assert statistics.mean([await speedup("lookup", "cpu", quotes(seed)) for seed in range(4)]) > 1.33


@pytest.mark.parametrize(("machine", "n"), [("cpu", 1), ("cpu", 6), ("even", 6), ("gpu", 1)])
@pytest.mark.parametrize("spec_type", ["lookup", "lookup,draft-simple"])
async def test_speculation_without_acceptance_costs_at_most_3_percent(machine: str, n: int, spec_type: str) -> None:
    assert await speedup(spec_type, machine, unrelated(n), wrong=100) > 0.97


@pytest.mark.parametrize("spec_type", ["lookup", "draft-simple"])
async def test_speculation_costs_at_most_3_percent_if_every_token_costs_the_same(spec_type: str) -> None:
    assert await speedup(spec_type, "even", edits(4), wrong=10) > 0.97


@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9)), st.integers(1, 4))
def test_evaluations_of_a_step_are_those_of_the_library(slots: set[int], others: set[int], length: int) -> None:
    runner, drafting = FakeRunner(n_seq=10), sorted(slots & others)
    speculating = speculation(EngineParams(spec_type="lookup"), runner, lambda: 0.0)
    assert speculating is not None
    found = speculating._evaluations(sorted(slots), drafting)
    runs = [(slot, 1 + length * (slot in drafting)) for slot in sorted(slots)]
    assert len(found) == evaluations(runs, n_ubatch=512)
    assert sum(n + n_drafts * length for n, n_drafts in found) == sum(n for _, n in runs)


async def test_drafts_of_some_slots_do_not_slow_down_the_others() -> None:
    """With separate KV, drafts of every slot take one evaluation, drafts of some slots another one."""
    rng = random.Random(8)
    texts = [(random_text(rng, 9) * 7)[:60] if i < 4 else random_text(rng, 60) for i in range(8)]
    assert await speedup("lookup", "cpu", {random_text(rng, 20): text for text in texts}) > 0.995


@pytest.mark.parametrize(("machine", "n", "smallest"), [("cpu", 1, 1.2), ("cpu", 6, 0.97), ("gpu", 6, 1.4)])
async def test_accurate_draft_model_speeds_up_replies(machine: str, n: int, smallest: float) -> None:
    assert await speedup("draft-simple", machine, unrelated(n), wrong=20) > smallest


# ---- cost and length of drafts


def linear(base_s: float, token_s: float) -> StepCost:
    cost = StepCost()
    for n in (1, 2, 8, 64):
        cost.observe(n, base_s + token_s * n)
    return cost


def test_step_cost_is_interpolated_between_measured_sizes() -> None:
    cost = linear(0.01, 0.003)
    assert cost.of(5) == pytest.approx(0.025)
    assert cost.of(100) == pytest.approx(0.31, rel=0.05)


@pytest.mark.parametrize("share", [TOKEN_COST, GPU_TOKEN_COST])
def test_further_tokens_cost_at_most_the_assumed_share_until_measured(share: float) -> None:
    cost = StepCost(share)
    cost.observe(1, 0.01)
    assert cost.of(2) == pytest.approx(0.01 * (1 + share))
    for _ in range(N_MEASUREMENTS):
        cost.observe(2, 0.025)
    assert cost.of(2) == pytest.approx(0.025)
    assert cost.of(8) == pytest.approx(0.025 + 6 * 0.01 * share)  # long drafts may pay where short ones do not


def test_occasional_slow_steps_hardly_change_the_step_cost() -> None:
    cost = linear(0.01, 0.001)
    for i in range(100):
        cost.observe(8, 0.1 if i % 4 == 0 else 0.018)
        cost.observe(1, 0.05 if i % 5 == 0 else 0.011)
    assert cost.of(8) == pytest.approx(0.018, rel=0.4)
    assert cost.of(1) == pytest.approx(0.011, rel=0.4)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=30), st.integers(1, 600))
def test_step_cost_is_always_positive(measured: list[tuple[int, float]], n: int) -> None:
    cost = StepCost()
    for size, seconds in measured:
        cost.observe(size, seconds)
    assert cost.of(n) > 0


def test_measurements_of_a_size_that_no_longer_occurs_expire() -> None:
    cost = StepCost()
    cost.observe(1, 0.01)
    cost.observe(8, 5.0)
    for _ in range(N_MEASUREMENTS * EXPIRY_STEPS):
        cost.observe(1, 0.01)
    assert cost.of(8) < 0.1


def test_acceptance_of_text_drafts_is_measured_by_length_of_the_match_although_none_is_verified() -> None:
    state = DraftState(16, Lookup([*range(10, 60), 1, 10, 11], 2))
    state.look_up(16)
    first, *_, last = state.rates
    assert first < 0.5 < last
    for token in range(12, 20):
        state.look_up(16)
        state.add(token)
    state.look_up(16)
    assert state.n_matching == 10
    longer = state.rates[0]
    assert longer > first
    state.add(999)
    state.look_up(16)
    assert state.n_matching == 0
    assert state.rates[0] < 0.5
    assert state.text_rates[(10).bit_length()] < longer


def per_token(base_s: float, token_s: float) -> Callable[[int, int], float]:
    return lambda count, length: base_s + count * length * token_s


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.integers(0, 40),
    st.integers(0, 40),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 0.1),
)
def test_draft_length_stays_within_both_limits(
    chances: list[float], most: int, room: int, base_s: float, token_s: float
) -> None:
    gains = [log_tokens([chance] * most) for chance in sorted(chances, reverse=True)]
    count, length, _ = draft_length(gains, len(chances), per_token(base_s, token_s), most, room)
    assert length <= most
    assert count * length <= room
    assert count <= len(chances)


def test_drafts_are_longer_if_they_are_cheaper_or_accepted_more_often() -> None:
    def length(p: float, draft_s: float) -> int:
        return draft_length([log_tokens([p] * 16)], 1, per_token(0.009, 0.001), 16, 99, lambda n: draft_s)[1]

    assert length(0.9, 0.0002) > length(0.9, 0.002) > 0
    assert length(0.9, 0.0002) > length(0.5, 0.0002)
    assert length(0.5, 0.02) == 0
