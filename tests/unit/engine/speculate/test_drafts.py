"""Draft tokens of lookup, draft models and chance: they save steps and never change a text; what they cost and gain."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.request import Request, SamplingParams, Timings
from server.engine.runner_api import BatchEntry
from server.engine.speculate.cost import (
    FORGET_STEPS,
    GPU_TOKEN_COST,
    N_MEASUREMENTS,
    TOKEN_COST,
    DraftState,
    StepCost,
    draft_length,
)
from server.engine.speculate.lookup import CHUNK, Lookup
from server.errors import InternalError
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, alone, engine_over, request, run, ticking
from tests.unit.engine.speculate.fake_draft import FakeDraft, Machine, drafted

VERSE = "row row row your boat, " * 6


@pytest.mark.parametrize("n", [1, 3])
async def test_a_model_that_cannot_forget_a_part_guesses_with_checkpoints(
    n: int, caplog: pytest.LogCaptureFixture
) -> None:
    said = VERSE[:70] + "and merrily " + VERSE
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": said}, partial_removal=False)
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        replies = await run(engine, *(request("sing", max_tokens=150) for _ in range(n)))
        for reply in replies:
            timings = reply.finished[0].timings
            assert reply.text == said[:150]
            assert timings.draft_n > timings.draft_n_accepted > 50
    assert "computed again" not in caplog.text
    assert len(runner.batches) < 120


async def test_rejected_drafts_that_the_memory_removes_take_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    said = VERSE[:70] + "and merrily " + VERSE
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": said}, partial_removal=False, n_rollback=64)
    monkeypatch.setattr(FakeRunner, "seq_checkpoint", lambda self, seq: pytest.fail("a checkpoint"))
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=150))
    timings = reply.finished[0].timings
    assert reply.text == said[:150]
    assert timings.draft_n > timings.draft_n_accepted > 50
    n_tokens = sum(n for batch in runner.batches for _, n in batch)
    assert n_tokens == timings.prompt_n + 150 - 1 + timings.draft_n - timings.draft_n_accepted


async def test_wrong_guesses_without_a_way_back_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = VERSE[:70] + "and merrily " + VERSE
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": said}, partial_removal=False)
    monkeypatch.setattr(FakeRunner, "seq_rewind", lambda self, seq, _state, _n: not self.seq_remove(seq, 0))
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=150))
    assert reply.text == said[:150]


def over(tokens: list[int], size: int = 2) -> Lookup:
    return Lookup(tokens, size, n_more=4096)


def test_what_followed_the_same_tokens_last_is_guessed() -> None:
    lookup = over([1, 2, 3, 4, 1, 2, 9, 1, 2])
    assert lookup.propose(4) == [9, 1, 2, 9]


def test_a_text_is_followed_past_a_token_that_was_replaced() -> None:
    lookup = over([*range(10, 30), 1, 10, 11, 12, 13])
    assert lookup.propose(2) == [14, 15]
    lookup.add(99)
    assert lookup.propose(2) == [15, 16]
    lookup.add(15)
    assert lookup.propose(2) == [16, 17]


def test_a_text_is_not_followed_for_long_when_it_differs() -> None:
    lookup = over([*range(10, 30), 1, 10, 11, 12, 13])
    assert lookup.propose(2)
    for token in range(200, 204):
        lookup.add(token)
    assert lookup.propose(2) == []


def test_a_long_prompt_is_indexed_in_parts() -> None:
    lookup = over([*range(3 * CHUNK), 5, 6])
    found = [lookup.propose(1) for _ in range(5)]
    assert found == [[], [], [], [7], [7]]


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(1, 10), st.integers(1, 30))
def test_a_guess_follows_an_earlier_occurrence(tokens: list[int], size: int, part: int) -> None:
    lookup = Lookup([], size, n_more=256)
    for start in range(0, len(tokens), part):
        lookup.tokens += tokens[start : start + part]
        lookup._index()
    guess = lookup.propose(8)
    whole = tokens + guess
    joined = [whole[i : i + size + len(guess)] for i in range(len(tokens) - size)]
    assert not guess or tokens[-size:] + guess in joined


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def answers(machine: Machine, runner: FakeRunner, *wanted: Request, **params: Any) -> list[Reply]:
    async with engine_over(runner, clock=machine, spec_type="draft-simple", **params) as engine:
        return await run(engine, *wanted)


def timings(reply: Reply) -> Timings:
    return reply.finished[0].timings


async def test_what_is_always_taken_is_the_drafts_and_not_the_models(machine: Machine) -> None:
    wanted = request("hello", max_tokens=40, sampling=SamplingParams(temperature=0, ignore_eos=True))
    (reply,) = await answers(machine, drafted(machine, wrong=10), wanted, spec_synth=(1.0,) * 4)
    assert timings(reply).draft_n_accepted == timings(reply).draft_n > 20
    assert reply.text != alone(wanted)
    assert timings(reply).predicted_n == 40


async def test_the_same_seed_takes_the_same_guesses(machine: Machine) -> None:
    wanted = request("hello", max_tokens=60, sampling=SamplingParams(temperature=0, seed=7, ignore_eos=True))
    rates = 0.75, 0.7, 0.5
    first, again = await answers(machine, drafted(machine, wrong=10), wanted, replace(wanted), spec_synth=rates)
    assert (timings(first).draft_n, first.text) == (timings(again).draft_n, again.text)
    assert 0 < timings(first).draft_n_accepted < timings(first).draft_n


async def test_a_draft_model_that_is_never_right_is_left_alone(machine: Machine) -> None:
    runner = drafted(machine, wrong=100)
    wanted = request("hello", max_tokens=200)
    (reply,) = await answers(machine, runner, wanted)
    assert reply.text == alone(wanted)
    assert timings(reply).draft_n_accepted == 0
    assert timings(reply).draft_n < 40


async def test_a_long_prompt_is_read_in_parts_before_it_is_drafted_for(machine: Machine) -> None:
    runner = drafted(machine, n_ctx_seq=2048, n_batch=512)
    wanted = request("abc" * 400, max_tokens=400)
    (reply,) = await answers(machine, runner, wanted)
    assert reply.text == alone(wanted)
    assert timings(reply).draft_n_accepted > 100
    assert isinstance(runner.draft, FakeDraft)
    assert max(max(batch) for batch in runner.draft.batches) <= 64


async def test_a_long_prompt_of_a_short_answer_is_not_read_at_all(machine: Machine) -> None:
    runner = drafted(machine, n_ctx_seq=2048, n_batch=512)
    await answers(machine, runner, request("abc" * 400, max_tokens=8))
    assert isinstance(runner.draft, FakeDraft)
    assert runner.draft.batches == []


@pytest.mark.parametrize(("spec_type", "name"), [("draft-simple", "the draft model"), ("lookup", "n-gram speculation")])
async def test_drafting_that_fails_fails_no_request_and_is_logged_once_a_minute(
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
    wanted = [request(f"prompt {i}", max_tokens=50) for i in range(6)]
    said = f"{name} failed; the current requests continue without it"
    async with engine_over(runner, clock=machine, spec_type=spec_type) as engine:
        for n in (1, 2):
            replies = await run(engine, *wanted)
            assert [reply.text for reply in replies] == [alone(each) for each in wanted]
            assert [record.message for record in caplog.records] == [said] * n
            machine.wait(60.0)


async def test_a_draft_model_drafts_to_the_end_of_its_own_shorter_context(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    runner = drafted(machine, n_ctx_seq=512, replies={"sing": VERSE * 2})
    assert isinstance(runner.draft, FakeDraft)
    runner.draft.info = replace(runner.draft.info, n_ctx_seq=100)
    (reply,) = await answers(machine, runner, request("sing", max_tokens=200))
    assert reply.text == (VERSE * 2)[:200]
    assert timings(reply).draft_n_accepted > 30
    assert "the draft model failed" not in caplog.text


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"spec_n_max": 0}, 0), ({"spec_n_max": 2}, 2), ({"spec_p_min": 0.95}, 0), ({"spec_n_min": 50}, 0)],
)
async def test_a_request_bounds_its_guesses(machine: Machine, limits: dict[str, float], most: int) -> None:
    runner = drafted(machine)
    wanted = request("hello", max_tokens=60, **limits)
    (reply,) = await answers(machine, runner, wanted)
    assert reply.text == alone(wanted)
    assert max(n - 1 for batch in runner.batches[1:] for _, n in batch) == most
    assert isinstance(runner.draft, FakeDraft)
    assert bool(runner.draft.batches) == (most > 0 or "spec_p_min" in limits)  # nothing is drafted in vain


pytestmark = pytest.mark.slow

CPU = (10.0, 3.0)  # ms of a step, and of each of its tokens
GPU = (10.0, 0.05)
EVEN = (0.1, 10.0)  # every token costs the same: nothing to gain
MACHINES = {"cpu": CPU, "gpu": GPU, "even": EVEN}


def text(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ,.()=") for _ in range(n))


def edited(source: str, rng: random.Random) -> str:
    """The same with a letter in forty another one."""
    return "".join(rng.choice("ABCDEF") if rng.random() < 1 / 40 else letter for letter in source)


async def seconds(spec_type: str, step_ms: tuple[float, float], replies: dict[str, str], wrong: int = 0) -> float:
    """Machine time for all `replies` at once."""
    machine = Machine(step_ms, draft_ms=(step_ms[0] / 10, step_ms[1] / 10))
    runner = FakeRunner(n_seq=len(replies), n_ctx_seq=2048, n_batch=2048, replies=replies, on_decode=machine.step)
    runner.draft = FakeDraft(runner, wrong=wrong, on_decode=machine.draft)
    wanted = [request(prompt, max_tokens=len(reply) + 1) for prompt, reply in replies.items()]
    async with engine_over(runner, clock=machine, spec_type=spec_type, gather_ms=60_000.0) as engine:  # all at once
        found = await run(engine, *wanted)
    assert [reply.text for reply in found] == list(replies.values())
    return machine()


async def ratio(spec_type: str, step_ms: tuple[float, float], replies: dict[str, str], wrong: int = 0) -> float:
    """Above 1: faster with guesses."""
    return await seconds("none", step_ms, replies) / await seconds(spec_type, step_ms, replies, wrong)


def edits(n: int) -> dict[str, str]:
    rng = random.Random(n)
    sources = [text(rng, 200) for _ in range(n)]
    return {source: edited(source, rng) for source in sources}


def novel(n: int) -> dict[str, str]:
    rng = random.Random(n)
    return {text(rng, 150): text(rng, 300) for _ in range(n)}


@pytest.mark.parametrize(("machine", "n", "least"), [("cpu", 1, 1.8), ("cpu", 6, 1.03), ("gpu", 6, 3.5)])
async def test_copies_gain(machine: str, n: int, least: float) -> None:
    assert await ratio("lookup", MACHINES[machine], edits(n)) > least


@pytest.mark.parametrize(("machine", "n"), [("cpu", 1), ("cpu", 6), ("even", 6), ("gpu", 1)])
@pytest.mark.parametrize("spec_type", ["lookup", "lookup,draft-simple"])
async def test_where_nothing_can_be_guessed_next_to_nothing_is_lost(machine: str, n: int, spec_type: str) -> None:
    assert await ratio(spec_type, MACHINES[machine], novel(n), wrong=100) > 0.97


@pytest.mark.parametrize("spec_type", ["lookup", "draft-simple"])
async def test_where_every_token_costs_the_same_little_is_lost_with_good_guesses(spec_type: str) -> None:
    assert await ratio(spec_type, EVEN, edits(4), wrong=10) > 0.97


@pytest.mark.parametrize(("machine", "n", "least"), [("cpu", 1, 1.2), ("cpu", 6, 0.97), ("gpu", 6, 1.4)])
async def test_a_good_draft_model_gains(machine: str, n: int, least: float) -> None:
    assert await ratio("draft-simple", MACHINES[machine], novel(n), wrong=20) > least


def linear(base_s: float, token_s: float) -> StepCost:
    cost = StepCost()
    for n in (1, 2, 8, 64):
        cost.observe(n, base_s + token_s * n)
    return cost


def test_a_step_between_two_known_ones_lies_on_their_line() -> None:
    cost = linear(0.01, 0.003)
    assert cost.of(5) == pytest.approx(0.025)
    assert cost.of(100) == pytest.approx(0.31, rel=0.05)


@pytest.mark.parametrize("share", [TOKEN_COST, GPU_TOKEN_COST])
def test_what_was_not_measured_costs_no_more_than_is_assumed_of_tokens(share: float) -> None:
    cost = StepCost(share)
    cost.observe(1, 0.01)
    assert cost.of(2) == pytest.approx(0.01 * (1 + share))
    for _ in range(N_MEASUREMENTS):
        cost.observe(2, 0.025)
    assert cost.of(2) == pytest.approx(0.025)
    assert cost.of(8) == pytest.approx(0.025 + 6 * 0.01 * share)  # long drafts may pay where short ones don't


def test_steps_that_are_disturbed_now_and_then_count_little() -> None:
    cost = linear(0.01, 0.001)
    for i in range(100):
        cost.observe(8, 0.1 if i % 4 == 0 else 0.018)
        cost.observe(1, 0.05 if i % 5 == 0 else 0.011)
    assert cost.of(8) == pytest.approx(0.018, rel=0.4)
    assert cost.of(1) == pytest.approx(0.011, rel=0.4)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=30), st.integers(1, 600))
def test_what_a_step_costs_is_never_negative(seen: list[tuple[int, float]], n: int) -> None:
    cost = StepCost()
    for size, seconds in seen:
        cost.observe(size, seconds)
    assert cost.of(n) > 0


def test_a_size_that_was_not_seen_for_long_is_forgotten() -> None:
    cost = StepCost()
    cost.observe(1, 0.01)
    cost.observe(8, 5.0)
    for _ in range(N_MEASUREMENTS * FORGET_STEPS):
        cost.observe(1, 0.01)
    assert cost.of(8) < 0.1


def looking_up(tokens: list[int]) -> DraftState:
    return DraftState(16, Lookup(tokens, 2))


def test_what_the_text_suggests_is_judged_for_nothing_by_what_is_sampled() -> None:
    state = looking_up([*range(10, 60), 1, 10, 11])
    before = state.acceptance
    for token in range(12, 20):
        state.look_up(16)
        state.add(token)
    assert before < 0.5 < state.acceptance
    state.look_up(16)
    state.add(999)
    assert state.acceptance < 0.8


def per_token(base_s: float, token_s: float) -> Callable[[int, int], float]:
    return lambda n, _length: base_s + n * token_s


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.integers(0, 40),
    st.integers(0, 40),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 0.1),
)
def test_no_more_is_drafted_than_there_is_room_for(
    chances: list[float], most: int, room: int, base_s: float, token_s: float
) -> None:
    chances.sort(reverse=True)
    count, length, _ = draft_length(chances, len(chances), per_token(base_s, token_s), most, room)
    assert length <= most
    assert count * length <= room
    assert count <= len(chances)


def test_a_draft_is_longer_the_cheaper_and_the_better_it_is() -> None:
    def length(p: float, draft_s: float) -> int:
        return draft_length([p], 1, per_token(0.009, 0.001), 16, 99, lambda n: draft_s)[1]

    assert length(0.9, 0.0002) > length(0.9, 0.002) > 0
    assert length(0.9, 0.0002) > length(0.5, 0.0002)
    assert length(0.5, 0.02) == 0
