"""What is taken of guessed tokens: also the right one that ends the reply."""

from collections.abc import Sequence as Seq
from typing import Any

import pytest

from server.engine.sequence import Sequence
from server.engine.speculate.speculation import Speculation
from tests.support.fakes import EOS, FakeRunner
from tests.unit.engine.builders import engine_over, request, run

END = chr(EOS)  # in the guesses below


@pytest.mark.parametrize(
    ("reply", "draft_tokens", "n_right", "n_accepted", "options"),
    [
        pytest.param("one", "ne" + END, 3, 3, {}, id="an end token as the last guess"),
        pytest.param(
            "one", "ne" + END + "xx", 3, 2, {}, id="an end token with guesses behind it, as llama-server counts"
        ),
        pytest.param("one", "nex", 2, 2, {}, id="an end token where another was guessed"),
        pytest.param("one", "nexx", 2, 2, {}, id="the same with one more"),
        pytest.param("one STOP two", "ne STOP two", 7, 7, {"stop": ("STOP",)}, id="a stop string"),
        pytest.param("one", "nx", 1, 1, {"stop": ("e",)}, id="a stop string where something else was guessed"),
        pytest.param("one two", "ne two", 2, 2, {"max_tokens": 3}, id="the limit"),
        pytest.param("one two", "nexxx", 2, 2, {"max_tokens": 6}, id="nothing ends there"),
    ],
)
async def test_a_right_guess_counts_also_when_it_ends_the_reply(
    monkeypatch: pytest.MonkeyPatch,
    reply: str,
    draft_tokens: str,
    n_right: int,
    n_accepted: int,
    options: dict[str, Any],
) -> None:
    tokens = [ord(c) for c in draft_tokens]

    def propose(_: Speculation, generating: Seq[Sequence], room: int) -> list[list[int]]:
        return [tokens if len(s.output) == 1 else [] for s in generating]

    monkeypatch.setattr(Speculation, "propose", propose)
    runner = FakeRunner(n_seq=1, replies={"go": reply})
    wanted = request("go", **{"max_tokens": 20} | options)
    async with engine_over(runner, spec_type="lookup") as engine:
        (got,) = await run(engine, wanted)
        assert engine.stats.n_draft_accepted == n_accepted
        cells = list(runner.cells[0])
    timings = got.finished[0].timings
    assert (timings.draft_n, timings.draft_n_accepted) == (len(tokens), n_accepted)
    said = [*reply.encode(), EOS][: got.finished[0].n_predicted]
    assert got.text == reply.partition((wanted.stop or ("\0",))[0])[0][: wanted.max_tokens]
    assert cells in (wanted.prompt + said, wanted.prompt + said[:-1])
    if 1 + n_right == len(said):
        assert cells == wanted.prompt + said, "a right guess is in the cells"
