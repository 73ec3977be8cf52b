"""Guesses change nothing but the number of steps."""

import pytest

from server.engine.request import SamplingParams
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import Reply, engine_over, request, run, ticking

VERSE = "row row row your boat, " * 6


async def both(*, stop: tuple[str, ...] = (), sampling: SamplingParams | None = None, n: int = 1) -> list[list[Reply]]:
    """The same requests with and without guesses."""
    found = []
    for spec_type in ("none", "lookup"):
        runner = FakeRunner(n_ctx_seq=512, replies=None if sampling else {"sing": VERSE})
        wanted = [request("sing", max_tokens=100, stop=stop, n=n, sampling=sampling or SamplingParams(temperature=0))]
        async with engine_over(runner, spec_type=spec_type, clock=ticking()) as engine:
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
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        (first,) = await run(engine, request("sing", max_tokens=60))
        (second,) = await run(engine, request("sing" + first.text + "!", max_tokens=5))
        assert second.started.n_cached == 1 + 4 + 59
        assert runner.cells[0][: 1 + 4 + 60] == request("sing" + first.text).prompt


@pytest.mark.parametrize("n", [1, 3])
async def test_a_model_that_cannot_forget_a_part_guesses_with_checkpoints(
    n: int, caplog: pytest.LogCaptureFixture
) -> None:
    said = VERSE[:70] + "and merrily " + VERSE
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": said}, partial_removal=False)
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        replies = await run(engine, *(request("sing", max_tokens=150) for _ in range(n)))
        for reply in replies:
            timings = reply.finished[0].timings
            assert reply.text == said[:150]
            assert timings.draft_n > timings.draft_n_accepted > 50
    assert "computed again" not in caplog.text
    assert len(runner.batches) < 120


async def test_wrong_guesses_without_a_way_back_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = VERSE[:70] + "and merrily " + VERSE
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": said}, partial_removal=False)
    monkeypatch.setattr(FakeRunner, "seq_rewind", lambda self, seq, _state, _n: not self.seq_remove(seq, 0))
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=150))
    assert reply.text == said[:150]


async def test_a_text_that_ends_within_wrong_guesses_without_a_way_back_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = FakeRunner(n_ctx_seq=512, replies={"sing": VERSE}, partial_removal=False)
    monkeypatch.setattr(FakeRunner, "seq_rewind", lambda self, seq, _state, _n: not self.seq_remove(seq, 0))
    async with engine_over(runner, spec_type="lookup", clock=ticking()) as engine:
        (reply,) = await run(engine, request("sing", max_tokens=130, stop=(VERSE[45:85],)))
        assert (reply.error, reply.text) == (None, VERSE[:22])
        timings = reply.finished[0].timings
        assert timings.draft_n > timings.draft_n_accepted > 0
        (again,) = await run(engine, request("sing", max_tokens=20))
        assert again.text == VERSE[:20]


async def test_a_slot_does_not_keep_the_index_of_its_last_request() -> None:
    async with engine_over(FakeRunner(n_seq=1), spec_type="lookup", clock=ticking()) as engine:
        await run(engine, request("abc"))
        (slot,) = engine._instances[0].scheduler.slots
        assert slot.last is not None
        assert slot.last.draft_state is None
