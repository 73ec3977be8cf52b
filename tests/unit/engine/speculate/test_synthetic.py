"""Guesses that are taken by chance: what a benchmark asks for is what it gets, the same every time."""

from dataclasses import replace

import pytest

from server.engine.request import Request, SamplingParams, Timings
from server.engine.speculate.cost import conditional, rates_of_length
from tests.unit.engine.builders import alone, engine_over, request, run
from tests.unit.engine.speculate.fake_draft import Machine, drafted


async def answer(rates: tuple[float, ...], *wanted: Request) -> list[tuple[str, Timings]]:
    machine = Machine()
    params = {"spec_type": "draft-simple", "spec_draft_max": len(rates), "spec_synth": rates}
    async with engine_over(drafted(machine, wrong=10), clock=machine, **params) as engine:
        replies = [(await run(engine, each))[0] for each in wanted]
    return [(reply.text, reply.finished[0].timings) for reply in replies]


async def test_what_is_always_taken_is_the_drafts_and_not_the_models() -> None:
    wanted = replace(request("hello", max_tokens=40), sampling=SamplingParams(temperature=0, ignore_eos=True))
    ((text, timings),) = await answer((1.0,) * 4, wanted)
    assert timings.draft_n_accepted == timings.draft_n > 20
    assert text != alone(wanted)
    assert timings.predicted_n == 40


async def test_the_same_seed_takes_the_same_guesses() -> None:
    sampling = SamplingParams(temperature=0, seed=7, ignore_eos=True)
    wanted = replace(request("hello", max_tokens=60), sampling=sampling)
    first, again = await answer((0.75, 0.5, 0.25), wanted, replace(wanted, id="again"))
    assert (first[1].draft_n, first[1].draft_n_accepted) == (again[1].draft_n, again[1].draft_n_accepted)
    assert 0 < first[1].draft_n_accepted < first[1].draft_n


@pytest.mark.parametrize(("length", "rates"), [(1.0, (0, 0, 0)), (4.0, (1, 1, 1))])
def test_the_shortest_and_the_longest_step(length: float, rates: tuple[float, ...]) -> None:
    assert rates_of_length(length, 3) == rates


@pytest.mark.parametrize("length", [1.5, 2.0, 3.9])
def test_a_step_has_the_length_that_was_asked_for(length: float) -> None:
    rates = rates_of_length(length, 3)
    assert 1 + sum(rates) == pytest.approx(length)
    assert conditional(rates) == pytest.approx([rates[0]] * 3)
