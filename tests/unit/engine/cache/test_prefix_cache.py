"""Prefix search and its reported source, the RAM tier, and checkpoints of sequences that cannot be truncated."""

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.prefix_cache import (
    AUTOMATIC,
    BLOCK,
    CacheEntry,
    CacheTier,
    Checkpoints,
    added,
    checkpoint_positions,
    common_prefix,
    longest_match,
    ram_tier,
)
from server.engine.lora import NEVER, NO_ADAPTERS, AdapterSet
from server.engine.placement import Placement
from server.engine.request import Request
from server.engine.sequence import Slot
from server.engine.snapshots import RecomputeReason, origin_of, shared_prefixes
from tests.support.fakes import FakeEncoder, FakeRunner, FakeVocab
from tests.unit.engine.builders import GREEDY, engine_over, expected_text, request, run, sequence

TOKENS = st.lists(st.integers(0, 2), max_size=60)


@given(TOKENS, TOKENS, TOKENS)
def test_common_prefix_equals_a_token_by_token_comparison(head: list[int], a: list[int], b: list[int]) -> None:
    assert common_prefix(head + a, head + b) == sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(head + a, head + b, strict=False))
    )


LORA = AdapterSet(((0, 1.0),), 0)
SETS = st.sampled_from([NO_ADAPTERS, LORA, AdapterSet(((1, 1.0),), 19), AdapterSet(scope="ada/")])


@given(
    st.lists(st.tuples(TOKENS, SETS, st.booleans()), max_size=12), TOKENS, SETS, st.integers(0, 60), st.integers(0, 60)
)
def test_match_returns_the_entry_with_the_longest_reusable_prefix(
    entries: list[tuple[list[int], AdapterSet, bool]], prompt: list[int], wanted: AdapterSet, at_least: int, most: int
) -> None:
    """Each entry: tokens, adapter set, and whether it can be truncated. Otherwise it has checkpoints at 8 and 32."""
    cache, most = CacheTier(-1), min(most, len(prompt))
    checkpoints = {8: b"", 32: b""}
    for tokens, adapter_set, can_cut in entries:
        cache.put(CacheEntry(tokens, adapter_set, NEVER, checkpoints, floor=0 if can_cut else len(tokens)), 0.0)
    longest = max((e.reusable(min(common_prefix(prompt, e.tokens), most), wanted) for e in cache), default=0)
    found, n = cache.match(prompt, wanted, at_least, most)
    assert n == (longest if longest > at_least else 0)
    assert (found is None) == (n == 0)
    cache.match([1], wanted, -15)  # a negative minimum, as `CacheTier.holds` passes for a short text


def test_search_does_not_end_at_entries_without_exact_tokens() -> None:
    inexact = [CacheEntry([1] * 40, n_exact=0) for _ in range(100)]
    exact = CacheEntry([1] * 30)
    assert longest_match([*inexact, exact], [1] * 50, NO_ADAPTERS, 0, 50) == (exact, 30)


MIB = 1 << 20


def ram_state(
    tokens: list[int], size: int = 1000, used_at: float = 0.0, adapter_set: AdapterSet = NO_ADAPTERS
) -> CacheEntry:
    return CacheEntry(tokens, adapter_set, size=size, last_used=used_at)


def test_full_tier_evicts_the_entry_with_the_lowest_keep_value_per_byte() -> None:
    cache = CacheTier(2500)
    cache.put(ram_state([1] * 90, size=1800), 0.0)
    cache.put(ram_state([2] * 30, size=600, used_at=5.0), 5.0)
    cache.put(ram_state([3] * 30, size=600, used_at=10.0), 10.0)
    assert {e.tokens[0] for e in cache} == {2, 3}


def test_new_entry_is_compared_only_with_entries_that_may_be_a_prefix_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, system, compared = CacheTier(-1), [1] * 50, list[int]()
    for i in range(2, 100):
        cache.put(ram_state([*system, i]), 0.0)

    def record_comparison(a: list[int], b: list[int]) -> int:
        compared.append(a[-1])
        return common_prefix(a, b)

    monkeypatch.setattr("server.engine.cache.prefix_cache.common_prefix", record_comparison)
    replaced = cache.put(ram_state([*system, 7, 8]), 0.0)
    assert [entry.tokens for entry in replaced] == [[*system, 7]]
    assert compared == [7]


def test_pinned_entries_count_towards_the_limit_until_they_expire() -> None:
    cache = CacheTier(1000)
    assert cache.pin(ram_state([1] * 9, size=500), until=60.0, now=0.0)
    larger, spilled = ram_state([2] * 9, size=600), list[CacheEntry]()
    cache.spill = spilled.append
    cache.put(larger, 1.0)
    assert spilled == [larger]
    assert not cache.reserve(ram_state([3] * 9, size=600), 1.0)
    cache.put(larger, 61.0)
    assert larger in cache
    assert cache.n_bytes == 600


@pytest.mark.parametrize(("adapter_set", "fits"), [(NO_ADAPTERS, True), (LORA, False)])
def test_prefix_pinned_again_counts_once_per_adapter_set(adapter_set: AdapterSet, fits: bool) -> None:
    """Pinned entries may take half of the limit."""
    cache = CacheTier(1000)
    assert cache.pin(ram_state([1] * 9, size=400), until=60.0, now=0.0)
    assert cache.pin(ram_state([1] * 9, size=400, adapter_set=adapter_set), until=90.0, now=1.0) is fits
    assert cache.n_bytes == 400


def test_automatic_limit_is_at_most_a_quarter_of_free_memory() -> None:
    assert ram_tier(AUTOMATIC, 400 * MIB).limit == 100 * MIB
    assert ram_tier(AUTOMATIC, 0).limit == 8192 * MIB
    assert ram_tier(16, 0).limit == 16 * MIB
    assert ram_tier(-1, 0).limit < 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(200, 900)), max_size=20))
def test_put_finds_room_within_the_limit(puts: list[tuple[list[int], int]]) -> None:
    cache = CacheTier(2000)
    for now, (tokens, size) in enumerate(puts):
        entry = ram_state(tokens, size, float(now))
        cache.put(entry, float(now))
        assert entry in cache
        cache.check_integrity()
        assert cache.match([*tokens, 9], NO_ADAPTERS, 0)[1] >= len(tokens)


def test_checkpoints_shared_by_a_slot_and_its_entry_count_once() -> None:
    slot, checkpoints = Slot(tokens=[1] * 9, checkpoints={8: bytes(500)}), {8: bytes(500)}
    cache = CacheTier(1000, slots=[slot])
    other = CacheEntry([2] * 9, checkpoints=checkpoints, state=bytes(300))
    cache.put(other, 0.0)
    assert other not in cache  # with checkpoints of its own it does not fit
    entry = CacheEntry(slot.tokens, checkpoints=slot.checkpoints, state=bytes(300))
    assert cache.fits(300 + 8 * 9, 0.0)
    cache.put(entry, 0.0)
    assert entry in cache
    assert cache.n_bytes == entry.size
    cache.remove(entry)
    assert cache.n_bytes == 500


def test_evicting_an_entry_does_not_free_checkpoints_that_a_slot_shares() -> None:
    slot = Slot(tokens=[1] * 9, checkpoints={8: bytes(500)})
    cache = CacheTier(1300, slots=[slot])
    shared, other = CacheEntry(slot.tokens, checkpoints=slot.checkpoints), ram_state([2] * 99, size=300)
    cache.put(other, 1.0)
    cache.put(shared, 0.0)
    assert cache.make_room(600, 2.0)
    assert not list(cache)
    assert not cache.make_room(801, 2.0)


def test_reserved_state_is_neither_matched_nor_removed_with_all() -> None:
    cache = CacheTier(1000)
    reserved, other = ram_state([1] * 20, size=300), ram_state([1] * 9, size=300)
    assert cache.reserve(reserved, 0.0)
    cache.put(other, 0.0)
    assert cache.match([1] * 20, NO_ADAPTERS, 0) == (other, 9)
    assert cache.remove_all() == [other]
    assert (list(cache), cache.n_bytes) == ([reserved], 300)


async def test_media_embeddings_get_at_most_a_quarter_of_the_ram_limit() -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder()), cache_ram=100, media_cache=1) as engine:
        assert engine._encoder is not None
        for limit, states, embeddings in ((100 * MIB, 99 * MIB, MIB), (400, 300, 100), (0, 0, 0), (-1, 100 * MIB, MIB)):
            engine.limit_caches(limit)
            assert (engine._ram.limit, engine._encoder.cache.ram_limit) == (states, embeddings)


def checkpoints(*positions: int) -> Checkpoints:
    return {n: bytes(10) for n in positions}


@pytest.mark.parametrize(
    ("n_common", "floor", "n_reusable"),
    [(300, 250, 250), (240, 230, 240), (229, 230, 200), (200, 250, 200), (99, 250, 0), (99, 0, 99)],
    ids=["whole", "above the floor", "at a checkpoint", "equal to a checkpoint", "before all checkpoints", "no floor"],
)
def test_prefix_below_the_floor_is_reusable_up_to_a_checkpoint(n_common: int, floor: int, n_reusable: int) -> None:
    entry = CacheEntry([1] * 250, checkpoints=checkpoints(100, 200) if floor else {}, floor=floor)
    assert entry.reusable(n_common, NO_ADAPTERS) == n_reusable


def test_surplus_checkpoint_closest_after_another_is_dropped() -> None:
    before = checkpoints(100, 130, 300)
    assert list(added(before, 400, b"", 3, 1000)) == [100, 300, 400]
    assert list(added(before, 310, b"", 3, 1000)) == [100, 300, 310]
    assert list(added(before, 130, b"new", 3, 1000)) == [100, 130, 300]


def test_new_checkpoint_is_stored_although_it_exceeds_the_limit_of_bytes() -> None:
    assert list(added(checkpoints(100, 200), 500, bytes(30), 32, 20)) == [500]


END = 7


def prompt(*turns: int) -> list[int]:
    """Return a prompt with turns of so many tokens, each with its end token, and the header of the reply."""
    return [t for n in turns for t in [1] * (n - 1) + [END]] + [2] * 6


@pytest.mark.parametrize(("spacing", "positions"), [(8192, (50, 650)), (250, (50, 350, 650)), (0, (50, 150, 350, 650))])
def test_checkpoints_of_turns_include_the_first_and_the_last(spacing: int, positions: tuple[int, ...]) -> None:
    assert checkpoint_positions(prompt(50, 100, 200, 300), 0, {END}, spacing) == positions


@pytest.mark.parametrize(
    ("start", "spacing", "divergence", "positions"),
    [(0, 0, 0, (996,)), (0, 400, 0, (400, 800, 996)), (0, 8192, 600, (600, 996)), (590, 8192, 600, (996,))],
)
def test_checkpoints_without_turn_ends(start: int, spacing: int, divergence: int, positions: tuple[int, ...]) -> None:
    assert checkpoint_positions([1] * 1000, start, {END}, spacing, divergence) == positions


def chat(text: str) -> Request:
    """Return a request whose prompt is `text` with the special tokens of a chat template."""
    tokens = FakeVocab().tokenize(text, add_special=True, parse_special=True)
    return Request("chat", tokens, GREEDY, max_tokens=8)


@pytest.mark.parametrize("unified", [True, False])
async def test_changed_last_turns_and_shared_system_prompts_continue_from_checkpoints(unified: bool) -> None:
    system = "<|im_start|>system\n" + "be brief. " * 12 + "<|im_end|>"
    runner = FakeRunner(n_seq=3, n_ctx_seq=1024, partial_removal=False, unified=unified)
    async with engine_over(runner) as engine:
        for question in ("one", "two", "three", "four"):
            prompt = chat(system + question * 10)
            (first,) = await run(engine, prompt)
            assert first.text == expected_text(prompt)
            changed = chat(system + question * 10 + "<|im_end|> as another text" + "x" * 20)
            (second,) = await run(engine, changed)
            assert second.text == expected_text(changed)
            assert second.started.n_cached >= len(prompt.prompt) - 4
            if question != "one":
                assert first.started.n_cached == len(chat(system).prompt)


async def test_simultaneous_prompts_wait_for_a_checkpoint_where_they_diverge() -> None:
    runner = FakeRunner(n_seq=4, n_ctx_seq=1024, partial_removal=False)
    prompts = [request("a" * 300 + end * 30) for end in "bcde"]
    async with engine_over(runner) as engine:
        replies = await run(engine, *prompts)
    assert [r.text for r in replies] == [expected_text(p) for p in prompts]
    assert sorted(r.started.n_cached for r in replies) == [0, 301, 301, 301]


PROMPT = [1, 2, 3, 4, 5]


def slot(number: int, tokens: list[int], adapter_set: AdapterSet = NO_ADAPTERS) -> Slot:
    return Slot(id=number, tokens=tokens, adapter_set=adapter_set)


@pytest.mark.parametrize(
    ("held", "n", "recompute"),
    [([1, 2, 3, 4, 5], 4, "last"), ([1, 2, 3, 9, 9], 3, "differs"), ([1, 2], 2, "ends"), ([1, 2, 3, 9], 1, "uncut")],
)
def test_origin_names_the_slot_that_held_the_prefix(held: list[int], n: int, recompute: RecomputeReason) -> None:
    source, other = slot(0, held), slot(1, [])
    for target, kind in ((source, "slot"), (other, "copy")):
        origin = origin_of(Placement(sequence(PROMPT), target, source, n), [source, other])
        assert origin == (kind, 0, recompute)


@pytest.mark.parametrize(
    ("fields", "others", "recompute"),
    [
        ({}, [], "nothing"),
        ({}, [slot(1, [1, 2, 9])], "short"),
        ({}, [slot(1, [1, 2, 9], AdapterSet(scope="another"))], "other"),
        ({"cache_prompt": False}, [slot(1, [1, 2, 9])], "off"),
        ({"prompt_logprobs": True}, [slot(1, [1, 2, 9])], "scored"),
    ],
)
def test_origin_without_a_cached_prefix_says_why(
    fields: dict[str, Any], others: list[Slot], recompute: RecomputeReason
) -> None:
    empty = slot(0, [])
    origin = origin_of(Placement(sequence(PROMPT, **fields), empty, None, 0), [empty, *others])
    assert origin == ("none", -1, recompute)


def test_origin_of_a_prefix_loaded_from_ram() -> None:
    empty = slot(0, [])
    origin = origin_of(Placement(sequence(PROMPT), empty, CacheEntry([1, 2, 3]), 3), [empty])
    assert origin == ("ram", -1, "ends")


@given(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=7))
def test_shared_prefixes_are_a_forest_that_gives_the_common_prefix_of_any_two_texts(texts: list[list[int]]) -> None:
    """The common prefix of two texts is the minimum on the path between them."""
    blocks = [[token for block in text for token in [block] * BLOCK] for text in texts]
    pairs = shared_prefixes([(i, NO_ADAPTERS, tokens) for i, tokens in enumerate(blocks)])
    shared = [{i: 10**9} for i in range(len(blocks))]  # for each text: the minimum on the path to each other text
    for _ in blocks:
        for a, b, n in pairs:
            for one, other in ((a, b), (b, a)):
                for i, shortest in [*shared[one].items()]:
                    shared[other][i] = max(shared[other].get(i, 0), min(n, shortest))
    for i, by_text in enumerate(shared):
        for j in range(len(blocks)):
            if i != j:
                assert by_text.get(j, 0) == common_prefix(blocks[i], blocks[j])


def test_shared_prefixes_compare_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(i, NO_ADAPTERS, [1] * (4 * BLOCK * (i + 1))) for i in range(20)]
    assert len(shared_prefixes(texts)) == 19
    monkeypatch.setattr("server.engine.snapshots.MAX_COMPARED", 5 * BLOCK)
    assert shared_prefixes(texts) == [(0, 1, 4 * BLOCK)]
