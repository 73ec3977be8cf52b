"""Prefix matching."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import NEVER, NO_ADAPTERS, AdapterSet
from server.engine.prefix_cache import (
    CacheEntry,
    Checkpoint,
    SlotState,
    StateCache,
    common_prefix,
    longest_common,
)

TOKENS = st.lists(st.integers(0, 2), max_size=60)


@given(TOKENS, TOKENS, TOKENS)
def test_it_is_the_longest_shared_beginning(head: list[int], a: list[int], b: list[int]) -> None:
    assert common_prefix(head + a, head + b) == sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(head + a, head + b, strict=False))
    )


LORA = AdapterSet(((0, 1.0),), 0)
SETS = st.sampled_from([NO_ADAPTERS, LORA, AdapterSet(((1, 1.0),), 19), AdapterSet(scope="ada/")])


@given(
    st.lists(st.tuples(TOKENS, SETS, st.booleans()), max_size=12), TOKENS, SETS, st.integers(0, 60), st.integers(0, 60)
)
def test_cached_entries_are_searched_for_the_longest(
    kept: list[tuple[list[int], AdapterSet, bool]], prompt: list[int], wanted: AdapterSet, at_least: int, most: int
) -> None:
    """Entries that cannot be truncated have checkpoints after 8 and 32 tokens."""
    cache, most = StateCache(-1), min(most, len(prompt))
    checkpoints = (Checkpoint(8, b""), Checkpoint(32, b""))
    for tokens, adapter_set, can_cut in kept:
        cache.put(CacheEntry(SlotState(tokens, b"", adapter_set, NEVER, checkpoints), 1, 0.0, can_cut), 0.0)
    longest = max((e.reusable(min(common_prefix(prompt, e.tokens), most), wanted) for e in cache), default=0)
    found, n = cache.match(prompt, wanted, at_least, most)
    assert n == (longest if longest > at_least else 0)
    assert (found is None) == (n == 0)
    same = (common_prefix(prompt, e.tokens) for e in cache if e.adapter_set == wanted)
    assert longest_common(cache, prompt, wanted) == max(same, default=0)
    cache.match([1], wanted, -15)  # a shorter text than what is worth keeping, as `StateCache.holds` asks
