"""Guesses change nothing but the number of steps."""

import pytest

from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import engine_over, request, run, ticking

VERSE = "row row row your boat, " * 6


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
