"""More conversations than slots: what they compute, against slots that keep what was used last and nothing else."""

import random
from collections.abc import Iterator

import pytest

from server.engine.prefix_cache import common_prefix
from tests.support.fakes import FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run, ticking

N_SLOTS, N_CONVERSATIONS, N_TURNS = 8, 32, 6
SYSTEM = "You are a patient assistant. " * 4


def prompts() -> Iterator[tuple[int, str]]:
    """Every turn of every conversation, in an order in which a few are talking at any time; without the replies."""
    rng = random.Random(6)
    turns = [(turn + rng.uniform(0, 1.5), i, turn) for i in range(N_CONVERSATIONS) for turn in range(N_TURNS)]
    for _, i, turn in sorted(turns):
        yield i, f"question {turn} of {i}: {'what about this, and that? ' * 3}"


def computed_by_slots(texts: list[tuple[list[int], list[int]]]) -> int:
    """Prompt tokens that slots compute which share nothing: the best match if there is one, else the oldest."""
    slots: list[list[int]] = [[] for _ in range(N_SLOTS)]
    computed = 0
    for tokens, with_reply in texts:
        best = max(slots, key=lambda s: common_prefix(s, tokens))
        n = common_prefix(best, tokens)
        if n <= len(tokens) // 10:
            best = slots[0]
            n = common_prefix(best, tokens)
        slots.remove(best)
        slots.append(with_reply)
        computed += len(tokens) - n
    return computed


@pytest.mark.slow
@pytest.mark.parametrize("can_cut", [True, False])
async def test_conversations_beyond_the_slots_come_back_from_the_tier(can_cut: bool) -> None:
    histories = dict.fromkeys(range(N_CONVERSATIONS), SYSTEM)
    texts = []
    runner = FakeRunner(n_seq=N_SLOTS, n_ctx_seq=4096, partial_removal=can_cut)
    async with engine_over(runner, clock=ticking()) as engine:  # what pays does not depend on this machine
        for i, question in prompts():
            histories[i] += question
            wanted = request(histories[i])
            (reply,) = await run(engine, wanted)
            assert reply.text == alone(wanted)
            histories[i] += reply.text
            texts.append((wanted.prompt, request(histories[i]).prompt))
        computed = engine.stats.prompt_tokens
    assert computed <= 0.5 * computed_by_slots(texts)
    needed = sum(len(f"question 0 of 00: {'what about this, and that? ' * 3}") + 8 for _ in texts) + len(SYSTEM)
    assert computed <= needed * (1.1 if can_cut else 1.5)
