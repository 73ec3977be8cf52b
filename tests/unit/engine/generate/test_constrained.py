"""Several constrained sequences in a step: what each gets is what it gets alone, and they share the cost of masks."""

import json
from typing import Any

import pytest

from server.engine.request import Request, SamplingParams
from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, engine_over, request, run
from tests.unit.structured.builders import BYTES

POINT = r'\{"x":[0-9]{1,2},"name":"[a-z]{0,5}"\}'


def wanted(n_requests: int, **options: Any) -> list[Request]:
    sampling = SamplingParams(temperature=1.0, seed=5)
    options = {"sampling": sampling, "max_tokens": 60} | options
    return [request(f"prompt {i}", constraint=BYTES.regex(POINT), **options) for i in range(n_requests)]


async def alone(requests: list[Request]) -> list[Reply]:
    replies = []
    for each in requests:
        async with engine_over(FakeRunner(n_seq=1)) as engine:
            replies += await run(engine, each)
    return replies


@pytest.mark.parametrize(
    "options",
    [{}, {"n_probs": 2}, {"n_probs": 2, "post_sampling_probs": True}, {"n": 2}],
    ids=["plain", "logprobs", "probs after sampling", "two choices"],
)
async def test_together_each_says_what_it_says_alone(options: dict[str, Any]) -> None:
    async with engine_over(FakeRunner(n_seq=8)) as engine:
        together = await run(engine, *wanted(4, **options))
    apart = await alone(wanted(4, **options))
    assert [reply.texts for reply in together] == [reply.texts for reply in apart]
    assert all(set(json.loads(text)) == {"x", "name"} for reply in together for text in reply.texts.values())
    for both in zip(together, apart, strict=True):
        probs = [[event.logprobs for event in each.events if hasattr(event, "logprobs")] for each in both]
        assert sorted(map(repr, probs[0])) == sorted(map(repr, probs[1]))


async def test_one_that_cannot_go_on_fails_alone() -> None:
    requests = wanted(3)
    broken = requests[1].constraint
    assert isinstance(broken, MatcherConstraint)
    with pytest.raises(InvalidRequest):
        broken.accept(ord("x"))
    async with engine_over(FakeRunner(n_seq=4)) as engine:
        first, second, third = await run(engine, *requests)
    assert isinstance(second.error, InvalidRequest)
    assert all(json.loads(reply.text) for reply in (first, third))


async def test_constrained_and_free_requests_share_steps() -> None:
    free = [request(f"free {i}", max_tokens=20) for i in range(2)]
    async with engine_over(FakeRunner(n_seq=4)) as engine:
        *shaped, one, two = await run(engine, *wanted(2), *free)
    (one_alone, two_alone) = await alone([request(f"free {i}", max_tokens=20) for i in range(2)])
    assert (one.text, two.text) == (one_alone.text, two_alone.text)
    assert all(json.loads(reply.text) for reply in shaped)
