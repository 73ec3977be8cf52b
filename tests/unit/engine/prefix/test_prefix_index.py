"""The index of kept states finds what comparing with each of them would find."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import NEVER, NO_ADAPTERS, AdapterSet
from server.engine.prefix_cache import (
    BLOCK,
    MOST,
    CacheEntry,
    Checkpoint,
    PrefixHashes,
    PrefixIndex,
    SlotState,
    common_prefix,
)

LORA = AdapterSet(((0, 1.0),), 0)
HALF = BLOCK // 2


def entry(
    tokens: list[int], adapter_set: AdapterSet = NO_ADAPTERS, can_cut: bool = True, places: tuple[int, ...] = ()
) -> CacheEntry:
    checkpoints = tuple(Checkpoint(place, b"") for place in places)
    return CacheEntry(SlotState(tokens, b"", adapter_set, NEVER, checkpoints), 1, 0.0, can_cut)


def text(*parts: int) -> list[int]:
    """Half a block of each number."""
    return [part for part in parts for _ in range(HALF)]


texts = st.lists(st.integers(0, 2), min_size=0, max_size=9).map(lambda parts: text(*parts))
tunings = st.sampled_from([NO_ADAPTERS, LORA, AdapterSet(((1, 1.0),), BLOCK + 3)])
entries = st.builds(
    lambda tokens, adapter_set, can_cut: entry(tokens or [1], adapter_set, can_cut, (HALF, 2 * BLOCK)),
    texts,
    tunings,
    st.booleans(),
)


def index_of(kept: list[CacheEntry], gone: list[int]) -> PrefixIndex:
    """Of `kept`; those at the places `gone` have left it again, and the list, too."""
    index = PrefixIndex()
    for e in kept:
        index.add(e)
    for i in sorted(set(gone), reverse=True):
        if i < len(kept):
            index.remove(kept.pop(i))
    return index


@given(st.lists(entries, max_size=12), st.lists(st.integers(0, 11), max_size=4), texts, tunings, st.integers(0, 100))
def test_it_finds_the_longest(
    kept: list[CacheEntry], gone: list[int], prompt: list[int], wanted: AdapterSet, n: int
) -> None:
    index = index_of(kept, gone)
    same_start = [e for e in kept if e.adapter_set.at(0) == wanted.at(0)]
    longest = max((e.reusable(common_prefix(prompt, e.tokens), wanted) for e in same_start), default=0)
    found, length = index.match(prompt, wanted, n)
    assert length == (longest if longest > n else 0)
    assert found is None or found.reusable(common_prefix(prompt, found.tokens), wanted) == length
    within = {id(e) for e in index.within(prompt, wanted)}
    assert within == {id(e) for e in kept if e.adapter_set == wanted and e.tokens == prompt[: len(e.tokens)]}


def test_many_with_the_same_beginning_cost_a_bounded_look_up() -> None:
    index = PrefixIndex()
    system = list(range(10 * BLOCK))
    for i in range(1000):
        index.add(entry([*system, *[i + 5000] * BLOCK]))
    found, n = index.match([*system, *[5500] * BLOCK, 7], NO_ADAPTERS, 0)
    assert found is not None
    assert n == 11 * BLOCK
    found, n = index.match([*system, 7], NO_ADAPTERS, 0)
    assert found is not None
    assert n == 10 * BLOCK
    assert index.divergence([*system, 7], NO_ADAPTERS) == 10 * BLOCK
    assert MOST < 1000


def test_the_first_turns_of_many_short_conversations_are_told_apart() -> None:
    index = PrefixIndex()
    turns = [entry([*range(100 * i, 100 * i + 25)]) for i in range(4 * MOST)]
    for turn in turns:
        index.add(turn)
    for turn in turns:
        assert index.match([*turn.tokens, 7, 7, 7], NO_ADAPTERS, 0) == (turn, 25)


def test_nothing_is_left_of_what_was_removed() -> None:
    index = PrefixIndex()
    one, other = entry(text(1, 1, 1)), entry(text(1, 1, 2))
    index.add(one)
    index.add(other)
    index.remove(one)
    index.remove(other)
    assert index.match(text(1, 1, 1), NO_ADAPTERS, 0) == (None, 0)
    assert not index._begins
    assert not index._ends


@given(st.lists(entries, max_size=6), texts, tunings, st.integers(0, 5 * BLOCK))
def test_a_prompt_of_which_not_all_may_be_reused_is_one_that_is_shorter(
    kept: list[CacheEntry], prompt: list[int], wanted: AdapterSet, most: int
) -> None:
    index = PrefixIndex()
    for e in kept:
        index.add(e)
    most = min(most, len(prompt))
    assert index.match(prompt, wanted, 0, most=most) == index.match(prompt[:most], wanted, 0)


@given(st.lists(st.tuples(texts, tunings), max_size=6), texts, tunings)
def test_hashes_that_a_prompt_has_already_change_nothing(
    kept: list[tuple[list[int], AdapterSet]], prompt: list[int], wanted: AdapterSet
) -> None:
    index = PrefixIndex()
    for tokens, adapter_set in kept:
        index.add(entry(tokens, adapter_set))
    hashes = PrefixHashes()
    for n in range(len(prompt) + 1):  # a prompt that grows
        assert index.match(prompt[:n], wanted, 0, hashes) == index.match(prompt[:n], wanted, 0)
        assert index.divergence(prompt[:n], wanted, hashes) == index.divergence(prompt[:n], wanted)
