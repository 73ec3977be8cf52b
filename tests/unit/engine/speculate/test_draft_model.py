"""Guesses of a draft model: they save steps, never change a text, and a fault of the draft is nobody else's."""

import logging
from collections.abc import Sequence

import pytest

from server.engine.request import Request, Timings
from server.engine.runner_api import BatchEntry
from server.errors import InternalError
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, alone, engine_over, request, run
from tests.unit.engine.speculate.fake_draft import FakeDraft, Machine, drafted


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def answers(machine: Machine, runner: FakeRunner, *wanted: Request) -> list[Reply]:
    async with engine_over(runner, clock=machine, spec_type="draft-simple") as engine:
        return await run(engine, *wanted)


def timings(reply: Reply) -> Timings:
    return reply.finished[0].timings


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


async def test_a_failing_draft_model_fails_no_request_and_is_logged_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(entries: Sequence[BatchEntry]) -> None:
        machine.draft(entries)
        if any(entry.pos > 20 for entry in entries):
            raise InternalError("llama_decode returned -3")

    runner = FakeRunner(on_decode=machine.step)
    runner.draft = FakeDraft(runner, on_decode=fail)
    wanted = [request(f"prompt {i}", max_tokens=50) for i in range(6)]
    with caplog.at_level(logging.WARNING):
        replies = await answers(machine, runner, *wanted)
    assert [reply.text for reply in replies] == [alone(each) for each in wanted]
    assert [record.message for record in caplog.records].count(
        "the draft model failed; the current requests continue without it"
    ) == 1


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
