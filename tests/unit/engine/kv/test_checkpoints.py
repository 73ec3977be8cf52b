"""Places to come back to, inside of a sequence that can't be cut."""

import pytest

from server.engine.prefix_cache import Checkpoint, added, checkpoint_positions, reach
from server.engine.request import Request
from tests.support.fakes import FakeRunner, FakeVocab
from tests.unit.engine.builders import GREEDY, alone, engine_over, request, run

END = 7


def checkpoints(*places: int, size: int = 10) -> tuple[Checkpoint, ...]:
    return tuple(Checkpoint(n, bytes(size)) for n in places)


def places(kept: tuple[Checkpoint, ...]) -> list[int]:
    return [c.n_tokens for c in kept]


def test_a_sequence_is_cut_where_it_can_be_and_else_at_a_checkpoint() -> None:
    kept = (100, 200)
    assert reach(300, 250, 250, kept) == 250  # goes on from its end
    assert reach(240, 250, 230, kept) == 240  # still inside the window
    assert reach(229, 250, 230, kept) == 200
    assert reach(200, 250, 250, kept) == 200
    assert reach(99, 250, 250, kept) == 0
    assert reach(99, 250, 0, ()) == 99  # memory that can be cut anywhere


def test_when_there_are_too_many_the_one_goes_that_saves_least() -> None:
    kept = checkpoints(100, 130, 300)
    assert places(added(kept, Checkpoint(400, b""), 3, 1000)) == [100, 300, 400]
    assert places(added(kept, Checkpoint(310, b""), 3, 1000)) == [100, 300, 310]
    assert places(added(kept, Checkpoint(130, b"new"), 3, 1000)) == [100, 130, 300]


def test_one_checkpoint_is_kept_however_small_a_slots_part_is() -> None:
    assert places(added(checkpoints(100, 200), Checkpoint(500, bytes(30)), 32, 20)) == [500]


def chat(text: str) -> Request:
    """A request whose tokens have the special ones of a chat."""
    tokens = FakeVocab().tokenize(text, add_special=True, parse_special=True)
    return Request("chat", tokens, GREEDY, max_tokens=8)


def prompt(*turns: int) -> list[int]:
    """Turns of so many tokens, each with its end token, and the header of the reply."""
    return [t for n in turns for t in [1] * (n - 1) + [END]] + [2] * 6


def test_the_system_prompt_and_the_last_turn_get_one() -> None:
    assert checkpoint_positions(prompt(50, 100, 200, 300), 0, {END}, 8192) == (50, 650)


def test_turns_between_them_get_one_where_they_are_far_enough_apart() -> None:
    assert checkpoint_positions(prompt(50, 100, 200, 300), 0, {END}, 250) == (50, 350, 650)
    assert checkpoint_positions(prompt(50, 100, 200, 300), 0, {END}, 0) == (50, 150, 350, 650)


def test_text_without_turns_gets_one_before_its_end_and_where_another_parted() -> None:
    assert checkpoint_positions([1] * 1000, 0, {END}, 0) == (996,)
    assert checkpoint_positions([1] * 1000, 0, {END}, 400) == (400, 800, 996)
    assert checkpoint_positions([1] * 1000, 0, {END}, 8192, divergence=600) == (600, 996)
    assert checkpoint_positions([1] * 1000, 590, {END}, 8192, divergence=600) == (996,)


@pytest.mark.parametrize("unified", [True, False])
async def test_regenerated_turns_and_shared_system_prompts_come_from_checkpoints(unified: bool) -> None:
    system = "<|im_start|>system\n" + "be brief. " * 12 + "<|im_end|>"
    runner = FakeRunner(n_seq=3, n_ctx_seq=1024, partial_removal=False, unified=unified)
    async with engine_over(runner) as engine:
        for ask in ("one", "two", "three", "four"):
            prompt = chat(system + ask * 10)
            (first,) = await run(engine, prompt)
            assert first.text == alone(prompt)
            changed = chat(system + ask * 10 + "<|im_end|> as another text" + "x" * 20)
            (second,) = await run(engine, changed)
            assert second.text == alone(changed)
            assert second.started.n_cached >= len(prompt.prompt) - 4
            if ask != "one":
                assert first.started.n_cached == len(chat(system).prompt)


async def test_twins_wait_for_the_place_where_they_part() -> None:
    runner = FakeRunner(n_seq=4, n_ctx_seq=1024, partial_removal=False)
    prompts = [request("a" * 300 + end * 30) for end in "bcde"]
    async with engine_over(runner) as engine:
        replies = await run(engine, *prompts)
    assert [r.text for r in replies] == [alone(p) for p in prompts]
    assert sorted(r.started.n_cached for r in replies) == [0, 301, 301, 301]
