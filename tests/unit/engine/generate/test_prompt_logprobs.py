"""Log probabilities of prompt tokens: each once and in order, whatever else happens to their sequence."""

import pytest

from server.engine.request import PromptLogprobs, Request, Started, TokenLogprob
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, engine_over, request, run

TEXT = "a prompt that is longer than the outputs of a step"


def scored(prompt: str, **options: object) -> Request:
    options = {"prompt_logprobs": True, "want_logprobs": True, "n_probs": 1, "max_tokens": 1} | options
    return request(prompt, **options)


def found(reply: Reply) -> list[TokenLogprob | None]:
    assert reply.error is None
    return [token for event in reply.events if isinstance(event, PromptLogprobs) for token in event.tokens]


def expected(req: Request) -> list[TokenLogprob | None]:
    """What the fake model gives each token after those before it."""
    runner = FakeRunner(n_seq=1, n_ctx_seq=10**6)
    tokens: list[TokenLogprob | None] = []
    for n in range(1, len(req.prompt)):
        runner.outputs = [runner._next(runner.vocab.detokenize(req.prompt[:n]))]
        tokens.append(runner.logprobs(0, req.prompt[n], req.n_probs))
    return tokens


@pytest.mark.parametrize("n_more_outputs", [1, 7, 1000])
async def test_every_token_but_the_first_has_one_given_those_before_it(n_more_outputs: int) -> None:
    runner = FakeRunner(n_more_outputs=n_more_outputs)
    async with engine_over(runner) as engine:
        (reply,) = await run(engine, scored(TEXT))
    assert found(reply) == expected(scored(TEXT))
    assert max(n for batch in runner.batches for _, n in batch) <= max(n_more_outputs, 1)
    kinds = [type(event) for event in reply.events]
    assert kinds.index(Started) > max(i for i, kind in enumerate(kinds) if kind is PromptLogprobs)
    assert reply.finished[0].n_predicted == 1


@pytest.mark.parametrize("max_tokens", [0, 5])
async def test_the_first_choice_alone_computes_them(max_tokens: int) -> None:
    async with engine_over(FakeRunner(n_seq=3, n_more_outputs=8)) as engine:
        (reply,) = await run(engine, scored(TEXT, n=3, max_tokens=max_tokens))
    assert found(reply) == expected(scored(TEXT))
    assert {event.index for event in reply.events if isinstance(event, PromptLogprobs)} == {0}
    assert [reply.finished[i].n_predicted for i in range(3)] == [max_tokens] * 3


async def test_what_was_scored_before_a_preemption_is_not_scored_again() -> None:
    """Unified cells run out: the younger one is preempted in the middle of its prompt and comes back."""
    runner = FakeRunner(n_seq=2, n_ctx_seq=320, n_cells=320, unified=True, n_more_outputs=1)
    long = scored("p" * 180)
    async with engine_over(runner) as engine:
        first, second = await run(engine, request("first", max_tokens=300), long)
        assert engine.stats.n_preempted > 0
    assert first.finished[0].n_predicted == 300
    assert found(second) == expected(long)
