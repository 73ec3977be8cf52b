"""Constrained sequences that share steps, and log probabilities of prompt tokens. Uses fake runners."""

import json
from typing import Any

import pytest

from server.engine.request import PromptLogprobs, Request, SamplingParams, Started, TokenLogprob
from server.errors import InvalidRequest
from server.structured.grammar.matcher import MatcherConstraint
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, engine_over, expected_text, request, run
from tests.unit.structured.builders import BYTES

POINT = r'\{"x":[0-9]{1,2},"name":"[a-z]{0,5}"\}'
SAMPLED = SamplingParams(temperature=1.0, seed=5)


def constrained(n_requests: int, **options: Any) -> list[Request]:
    options = {"sampling": SAMPLED, "max_tokens": 60} | options
    return [request(f"prompt {i}", constraint=BYTES.regex(POINT), **options) for i in range(n_requests)]


async def run_separately(requests: list[Request]) -> list[Reply]:
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
async def test_constrained_requests_reply_the_same_together_and_alone(options: dict[str, Any]) -> None:
    async with engine_over(FakeRunner(n_seq=8)) as engine:
        together = await run(engine, *constrained(4, **options))
    separate = await run_separately(constrained(4, **options))
    assert [reply.texts for reply in together] == [reply.texts for reply in separate]
    assert all(set(json.loads(text)) == {"x", "name"} for reply in together for text in reply.texts.values())
    for both in zip(together, separate, strict=True):
        probs = [[event.logprobs for event in each.events if hasattr(event, "logprobs")] for each in both]
        assert sorted(map(repr, probs[0])) == sorted(map(repr, probs[1]))


class NoVowels:
    """A constraint whose mask depends on the vowel that it rejected last, as that of a constraint with triggers."""

    finished = False

    def __init__(self) -> None:
        self._rejected = -1

    def fork(self) -> "NoVowels":
        return NoVowels()

    def allows(self, token: int) -> bool:
        self._rejected = token if token in b"aeiou" else -1
        return self._rejected < 0

    def mask(self) -> bytes:
        return bytes(0 if 8 * at <= self._rejected < 8 * at + 8 else 255 for at in range(64))

    def masked_by(self) -> None:
        return None

    def accept(self, token: int) -> None:
        assert token not in b"aeiou"


async def test_reporting_masked_tokens_does_not_change_the_mask_of_the_sampled_token() -> None:
    options = {"sampling": SAMPLED, "max_tokens": 60, "n_probs": 2, "n_forbidden": 1}
    async with engine_over(FakeRunner(n_seq=2)) as engine:
        replies = await run(engine, *(request(f"prompt {i}", constraint=NoVowels(), **options) for i in range(2)))
    assert [reply.error for reply in replies] == [None, None]
    assert not set("".join(reply.text for reply in replies)) & set("aeiou")


async def test_broken_constraint_fails_only_its_own_request() -> None:
    requests = constrained(3)
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
        *constrained_replies, one, two = await run(engine, *constrained(2), *free)
    assert [one.text, two.text] == [expected_text(each) for each in free]
    assert all(json.loads(reply.text) for reply in constrained_replies)


TEXT = "a prompt that is longer than the outputs of a step"


def scored(prompt: str, **options: object) -> Request:
    """Return a request for the log probabilities of its prompt tokens and one reply token."""
    options = {"prompt_logprobs": True, "want_logprobs": True, "n_probs": 1, "max_tokens": 1} | options
    return request(prompt, **options)


def prompt_logprobs(reply: Reply) -> list[TokenLogprob | None]:
    assert reply.error is None
    return [token for event in reply.events if isinstance(event, PromptLogprobs) for token in event.tokens]


def expected_logprobs(req: Request) -> list[TokenLogprob | None]:
    """Return what the fake model computes for each prompt token from the tokens before it."""
    runner = FakeRunner(n_seq=1, n_ctx_seq=10**6)
    tokens: list[TokenLogprob | None] = []
    for n in range(1, len(req.prompt)):
        runner.outputs = [runner._next(runner.vocab.detokenize(req.prompt[:n]))]
        tokens.append(runner.logprobs(0, req.prompt[n], req.n_probs))
    return tokens


@pytest.mark.parametrize("n_extra_outputs", [1, 7, 1000])
async def test_every_prompt_token_except_the_first_gets_a_logprob(n_extra_outputs: int) -> None:
    runner = FakeRunner(n_extra_outputs=n_extra_outputs)
    async with engine_over(runner) as engine:
        (reply,) = await run(engine, scored(TEXT))
    assert prompt_logprobs(reply) == expected_logprobs(scored(TEXT))
    assert max(n for batch in runner.batches for _, n in batch) <= max(n_extra_outputs, 1)
    kinds = [type(event) for event in reply.events]
    assert kinds.index(Started) > max(i for i, kind in enumerate(kinds) if kind is PromptLogprobs)
    assert reply.finished[0].n_predicted == 1


@pytest.mark.parametrize("max_tokens", [0, 5])
async def test_only_the_first_choice_computes_prompt_logprobs(max_tokens: int) -> None:
    async with engine_over(FakeRunner(n_seq=3, n_extra_outputs=8)) as engine:
        (reply,) = await run(engine, scored(TEXT, n=3, max_tokens=max_tokens))
    assert prompt_logprobs(reply) == expected_logprobs(scored(TEXT))
    assert {event.index for event in reply.events if isinstance(event, PromptLogprobs)} == {0}
    assert [reply.finished[i].n_predicted for i in range(3)] == [max_tokens] * 3


async def test_prompt_preempted_during_prefill_gets_each_logprob_once() -> None:
    """The unified cells run out while the younger request is prefilled; it is preempted and resumes."""
    runner = FakeRunner(n_seq=2, n_ctx_seq=320, n_cells=320, unified=True, n_extra_outputs=1)
    long = scored("p" * 180)
    async with engine_over(runner) as engine:
        first, second = await run(engine, request("first", max_tokens=300), long)
        assert engine.stats.n_preempted > 0
    assert first.finished[0].n_predicted == 300
    assert prompt_logprobs(second) == expected_logprobs(long)
