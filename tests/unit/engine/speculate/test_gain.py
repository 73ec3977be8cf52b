"""What guessing gains and may lose, on machines of which the cost of a step is known."""

import random

import pytest

from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run
from tests.unit.engine.speculate.fake_draft import FakeDraft, Machine

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
