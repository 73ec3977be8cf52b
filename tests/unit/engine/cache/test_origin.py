"""From where a prompt's beginning came, and why the rest was computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.prefix_cache import BLOCK, CacheEntry, common_prefix
from server.engine.lora import AdapterSet
from server.engine.placement import Placement
from server.engine.sequence import Slot
from server.engine.snapshots import RecomputeReason, origin_of, shared_prefixes
from tests.unit.engine.builders import sequence

NO_ADAPTERS = AdapterSet()


def slot(number: int, tokens: list[int], adapter_set: AdapterSet = NO_ADAPTERS) -> Slot:
    made = Slot(id=number)
    made.tokens, made.adapter_set = tokens, adapter_set
    return made


@pytest.mark.parametrize(
    ("held", "n", "recompute"),
    [
        ([1, 2, 3, 4, 5], 4, "last"),
        ([1, 2, 3, 9, 9], 3, "differs"),
        ([1, 2], 2, "ends"),
        ([1, 2, 3, 9], 1, "uncut"),
    ],
)
def test_a_slot_held_the_beginning(held: list[int], n: int, recompute: RecomputeReason) -> None:
    source, other = slot(0, held), slot(1, [])
    for target, where in ((source, "slot"), (other, "copy")):
        origin = origin_of(Placement(sequence([1, 2, 3, 4, 5]), target, source, n), [source, other])
        assert origin == (where, 0, recompute)


def test_nothing_was_taken() -> None:
    prompt = [1, 2, 3, 4, 5]
    empty, near = slot(0, []), slot(1, [1, 2, 9])
    others = slot(1, [1, 2, 9], AdapterSet(scope="somebody else"))
    off, scored = sequence(prompt, cache_prompt=False), sequence(prompt, prompt_logprobs=True)
    for asked, slots, recompute in (
        (sequence(prompt), [empty], "nothing"),
        (sequence(prompt), [empty, near], "short"),
        (sequence(prompt), [empty, others], "other"),
        (off, [empty, near], "off"),
        (scored, [empty, near], "scored"),
    ):
        origin = origin_of(Placement(asked, empty, None, 0), slots)
        assert origin == ("none", -1, recompute)


def test_a_kept_state_held_it() -> None:
    stored = CacheEntry([1, 2, 3])
    origin = origin_of(Placement(sequence([1, 2, 3, 4, 5]), slot(0, []), stored, 3), [slot(0, [])])
    assert origin == ("ram", -1, "ends")


@given(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=7))
def test_the_pairs_tell_what_any_two_share(texts: list[list[int]]) -> None:
    blocks = [[token for block in text for token in [block] * BLOCK] for text in texts]
    pairs = shared_prefixes([(i, NO_ADAPTERS, tokens) for i, tokens in enumerate(blocks)])
    groups = [{i: 10**9} for i in range(len(blocks))]  # from each, what it shares at least with whom it leads to
    for _ in blocks:
        for a, b, n in pairs:
            for one, other in ((a, b), (b, a)):
                for i, most in [*groups[one].items()]:
                    groups[other][i] = max(groups[other].get(i, 0), min(n, most))
    for i, group in enumerate(groups):
        for j in range(len(blocks)):
            if i != j:
                assert group.get(j, 0) == common_prefix(blocks[i], blocks[j])


def test_a_view_compares_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(i, NO_ADAPTERS, [1] * (4 * BLOCK * (i + 1))) for i in range(20)]
    assert len(shared_prefixes(texts)) == 19
    monkeypatch.setattr("server.engine.snapshots.MAX_COMPARED", 5 * BLOCK)
    assert shared_prefixes(texts) == [(0, 1, 4 * BLOCK)]
