"""Guesses from the text so far, and that they change nothing but the number of steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.lookup import Lookup
from server.engine.request import SamplingParams
from tests.fakes import FakeRunner
from tests.unit.engine.builders import Reply, engine_over, request, run

VERSE = "row row row your boat, " * 6


def test_what_followed_the_same_tokens_last_is_guessed() -> None:
    lookup = Lookup(2, 8)
    lookup.extend([1, 2, 3, 4, 1, 2, 9, 1, 2])
    assert lookup.draft(8) == [9, 1, 2, 9]
    lookup.extend([5])
    assert lookup.draft(8) == []


def test_drafts_grow_with_success_and_shrink_with_misses() -> None:
    lookup = Lookup(1, 8)
    lookup.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1])
    assert len(lookup.draft(100)) == 4
    lookup.judge(4, 4)
    assert len(lookup.draft(100)) == 8
    assert len(lookup.draft(3)) == 3
    lookup.judge(8, 2)
    assert len(lookup.draft(100)) == 3


def test_useless_guesses_pause_for_longer_and_longer() -> None:
    lookup = Lookup(1, 4)
    lookup.extend([1, 1, 1, 1])
    skipped = []
    for _ in range(8):
        n = 0
        while not lookup.draft(4):
            n += 1
        skipped.append(n)
        lookup.judge(1, 0)
    assert skipped == [0, 1, 2, 4, 8, 16, 32, 64]


@given(st.lists(st.integers(0, 3), max_size=50), st.integers(1, 3))
def test_a_guess_follows_an_earlier_occurrence(tokens: list[int], size: int) -> None:
    lookup = Lookup(size, 8)
    lookup.extend(tokens)
    draft = lookup.draft(8)
    whole = tokens + draft
    joined = [whole[i : i + size + len(draft)] for i in range(len(tokens) - size)]
    assert not draft or tokens[-size:] + draft in joined


async def both(*, stop: tuple[str, ...] = (), sampling: SamplingParams | None = None, n: int = 1) -> list[list[Reply]]:
    """The same requests with and without guesses."""
    found = []
    for spec_type in ("none", "ngram-simple"):
        runner = FakeRunner(n_ctx_seq=512, replies=None if sampling else {"sing": VERSE})
        wanted = [request("sing", max_tokens=100, stop=stop, n=n, sampling=sampling or SamplingParams(temperature=0))]
        async with engine_over(runner, spec_type=spec_type) as engine:
            found.append(await run(engine, *wanted, request("other", max_tokens=30)))

    return found


async def test_repeating_text_takes_fewer_steps_and_is_the_same() -> None:
    plain, guessed = await both()
    assert plain[0].text == guessed[0].text == VERSE[:100]
    assert plain[1].text == guessed[1].text
    timings = guessed[0].finished[0].timings
    assert timings.draft_n_accepted > 50
    assert timings.predicted_n == 100
    assert plain[0].finished[0].timings.draft_n == 0
    assert plain[0].finished[0].n_tokens == guessed[0].finished[0].n_tokens


@pytest.mark.parametrize("stop", [("boat, row row",), ("w row your b",)])
async def test_a_stop_within_a_guess_ends_the_text_there(stop: tuple[str, ...]) -> None:
    plain, guessed = await both(stop=stop)
    assert plain[0].text == guessed[0].text
    assert plain[0].finished[0].n_predicted == guessed[0].finished[0].n_predicted


async def test_seeds_and_choices_give_what_they_give_without_guesses() -> None:
    plain, guessed = await both(sampling=SamplingParams(seed=5), n=3)
    assert plain[0].texts == guessed[0].texts


async def test_a_conversation_goes_on_from_cells_that_were_guessed() -> None:
    runner = FakeRunner(n_seq=1, n_ctx_seq=512, replies={"sing": VERSE})
    async with engine_over(runner, spec_type="ngram-simple") as engine:
        (first,) = await run(engine, request("sing", max_tokens=60))
        (second,) = await run(engine, request("sing" + first.text + "!", max_tokens=5))
        assert second.started.n_cached == 1 + 4 + 59
        assert runner.cells[0][: 1 + 4 + 60] == request("sing" + first.text).prompt


async def test_a_model_that_cannot_forget_a_part_does_not_guess() -> None:
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": VERSE}, partial_removal=False)
    async with engine_over(runner, spec_type="ngram-simple") as engine:
        (reply,) = await run(engine, request("sing", max_tokens=100))
    assert reply.text == VERSE[:100]
    assert reply.finished[0].timings.draft_n == 0


async def test_a_slot_does_not_keep_the_index_of_its_last_request() -> None:
    async with engine_over(FakeRunner(n_seq=1), spec_type="ngram-simple") as engine:
        await run(engine, request("abc"))
        (slot,) = engine._instances[0].scheduler.slots
        assert slot.last is not None
        assert slot.last.lookup is None
