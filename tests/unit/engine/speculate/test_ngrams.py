"""llama-server's n-gram types: the sizes differ, the lookup is the same."""

import pytest

from server.engine.params import EngineParams
from server.engine.speculate.lookup import lookups
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run, ticking

KINDS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
RUN = list(range(10, 90))


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_drafts_what_followed_its_n_gram_up_to_its_longest_draft(kind: str) -> None:
    params = EngineParams(spec_type=kind)
    size, longest = params.ngram_sizes[kind]
    assert params.n_draft_max == longest
    (lookup,) = lookups(params)(256)
    lookup.extend([*RUN, 1, 2, *RUN[: size - 1]])
    assert lookup.propose(99) == []
    lookup.add(RUN[size - 1])
    following = [*RUN, 1, 2, *RUN[:size]][size:]
    assert lookup.propose(99) == following[:longest]


def test_the_first_type_that_has_a_draft_is_used() -> None:
    params = EngineParams(spec_type="ngram-simple,ngram-cache")
    assert [lookup._longest for lookup in lookups(params)(256)] == [48, 8]


@pytest.mark.parametrize("kind", KINDS)
async def test_each_type_saves_steps_and_changes_no_text(kind: str) -> None:
    verse = "row row row your boat, gently down the stream, merrily merrily " * 6
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": verse})
    async with engine_over(runner, clock=ticking(), spec_ngram_mod_n_match=12, spec_type=kind) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=300))
    assert reply.text == verse[:300]
    assert reply.finished[0].timings.draft_n_accepted > 60
    assert len(runner.batches) < 260
