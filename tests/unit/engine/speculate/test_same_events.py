"""Whatever is guessed, every request gets the same tokens, texts, probabilities and end as without guesses."""

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.request import Event, Finished, Request, SamplingParams, Text
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run
from tests.unit.engine.speculate.fake_draft import FakeDraft, Machine

REPLIES = {"sing": "row row row your boat, row row row your boat\n  gently\nrow row row your boat, " * 2, "say": "no"}


@dataclass
class Letters:
    """A constraint: letters and blanks only, at most `left` of them; strict about being asked in order."""

    left: int
    asked: int | None = None

    def fork(self) -> "Letters":
        return Letters(self.left)

    def allows(self, token: int) -> bool:
        self.asked = token
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
        "constraint": st.just(Letters(30)),
        "spec_n_max": st.integers(0, 5),
    },
)
WANTED = st.lists(st.tuples(st.sampled_from(["sing", "say", "other", "sing" * 20]), OPTIONS), min_size=1, max_size=5)


def seen(events: list[Event]) -> dict[int, list[Any]]:
    """What a client can tell apart: not when something came, nor how it was computed."""
    found: dict[int, list[Any]] = {}
    for event in events:
        if isinstance(event, Text):
            said = found.setdefault(event.index, [])
            said.append((event.text, event.tokens, event.logprobs))
        elif isinstance(event, Finished):
            ended = (event.reason, event.stopping_word, event.n_predicted, event.truncated, event.has_new_line)
            found.setdefault(event.index, []).append((*ended, event.n_tokens))
    return found


async def everything(spec_type: str, wrong: int, unified: bool, wanted: list[Request]) -> list[dict[int, list[Any]]]:
    machine = Machine()
    runner = FakeRunner(
        n_seq=3,
        n_ctx_seq=200,
        n_cells=300 if unified else None,
        unified=unified,
        replies=None if any(r.sampling.temperature for r in wanted) else REPLIES,
        on_decode=machine.step,
    )
    runner.draft = FakeDraft(runner, wrong=wrong, on_decode=machine.draft)
    async with engine_over(runner, clock=machine, spec_type=spec_type, spec_ngram=(2, 16), cache_ram=0) as engine:
        replies = await run(engine, *wanted)
    assert [reply.error for reply in replies] == [None] * len(wanted)
    return [seen(reply.events) for reply in replies]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    WANTED,
    st.sampled_from(["lookup", "draft-simple", "lookup,draft-simple"]),
    st.integers(0, 100),
    st.booleans(),
)
def test_guesses_change_nothing_that_a_client_sees(
    wanted: list[tuple[str, dict[str, Any]]], spec_type: str, wrong: int, unified: bool
) -> None:
    def requests() -> list[Request]:
        return [request(prompt, **{**o, **_fresh(o)}) for prompt, o in wanted]

    plain = asyncio.run(everything("none", wrong, unified, requests()))
    assert asyncio.run(everything(spec_type, wrong, unified, requests())) == plain


def _fresh(options: dict[str, Any]) -> dict[str, Any]:
    return {"constraint": options["constraint"].fork()} if "constraint" in options else {}
