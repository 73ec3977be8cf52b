"""Speculation never changes a request's tokens, text, probabilities or end. Uses a fake draft model that errs often."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.request import Event, Finished, Request, SamplingParams, Text
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run
from tests.unit.engine.speculate.fake_draft import FakeDraft, Machine

REPLIES = {"sing": "row row row your boat, row row row your boat\n  gently\nrow row row your boat, " * 2, "say": "no"}


@dataclass
class LettersOnly:
    """A constraint: at most `left` letters and blanks. Asserts that no token follows the last one."""

    left: int

    def fork(self) -> "LettersOnly":
        return LettersOnly(self.left)

    def allows(self, token: int) -> bool:
        return chr(token).isalpha() or chr(token) == " "

    def mask(self) -> bytes:
        bits = bytearray(40)
        for token in (*b"abcdefghijklmnopqrstuvwxyz", 32):
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def masked_by(self) -> None:
        return None

    def accept(self, token: int) -> None:
        assert self.left > 0, "a token after the last one"
        self.left -= 1

    @property
    def finished(self) -> bool:
        return self.left == 0


OPTIONS = st.fixed_dictionaries(
    {"max_tokens": st.integers(0, 90)},
    optional={
        "stop": st.sampled_from([("boat, row",), ("w row y",), ("zz", "\n")]),
        "n": st.integers(1, 2),
        "n_probs": st.just(2),
        "want_logprobs": st.just(True),
        "post_sampling_probs": st.just(True),
        "n_indent": st.just(2),
        "sampling": st.sampled_from([SamplingParams(seed=5), SamplingParams(temperature=0, ignore_eos=True)]),
        "constraint": st.just(LettersOnly(30)),
        "spec_n_max": st.integers(0, 5),
    },
)
REQUESTS = st.lists(st.tuples(st.sampled_from(["sing", "say", "other", "sing" * 20]), OPTIONS), min_size=1, max_size=5)


def output_of(events: list[Event]) -> dict[int, list[Any]]:
    """Return what a client gets for each choice, without times and draft counts."""
    found: dict[int, list[Any]] = {}
    for event in events:
        if isinstance(event, Text):
            found.setdefault(event.index, []).append((event.text, event.tokens, event.logprobs))
        elif isinstance(event, Finished):
            ended = (event.reason, event.stopping_word, event.n_predicted, event.truncated, event.has_new_line)
            found.setdefault(event.index, []).append((*ended, event.n_tokens))
    return found


async def outputs(spec_type: str, wrong: int, unified: bool, requests: list[Request]) -> list[dict[int, list[Any]]]:
    machine = Machine()
    runner = FakeRunner(
        n_seq=3,
        n_ctx_seq=200,
        n_cells=300 if unified else None,
        unified=unified,
        replies=None if any(r.sampling.temperature for r in requests) else REPLIES,
        on_decode=machine.step,
    )
    runner.draft = FakeDraft(runner, wrong=wrong, on_decode=machine.draft)
    async with engine_over(runner, clock=machine, spec_type=spec_type, spec_ngram=(2, 16), cache_ram=0) as engine:
        replies = await run(engine, *requests)
    assert [reply.error for reply in replies] == [None] * len(requests)
    return [output_of(reply.events) for reply in replies]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    REQUESTS,
    st.sampled_from(["lookup", "draft-simple", "lookup,draft-simple"]),
    st.integers(0, 100),
    st.booleans(),
)
def test_output_is_the_same_with_and_without_draft_tokens(
    draws: list[tuple[str, dict[str, Any]]], spec_type: str, wrong: int, unified: bool
) -> None:
    def requests() -> list[Request]:
        made = [request(prompt, **options) for prompt, options in draws]
        return [replace(r, constraint=r.constraint and r.constraint.fork()) for r in made]

    without_drafts = asyncio.run(outputs("none", wrong, unified, requests()))
    assert asyncio.run(outputs(spec_type, wrong, unified, requests())) == without_drafts
