"""The search for a prefix and its origin, the RAM tier, and checkpoints of sequences that cannot be truncated."""

from itertools import takewhile

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
from tests.unit.engine.builders import GREEDY, alone, engine_over, request, run, sequence

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
    cache, most = CacheTier(-1), min(most, len(prompt))
    checkpoints = {8: b"", 32: b""}
    for tokens, adapter_set, can_cut in kept:
        cache.put(CacheEntry(tokens, adapter_set, NEVER, checkpoints, floor=0 if can_cut else len(tokens)), 0.0)
    longest = max((e.reusable(min(common_prefix(prompt, e.tokens), most), wanted) for e in cache), default=0)
    found, n = cache.match(prompt, wanted, at_least, most)
    assert n == (longest if longest > at_least else 0)
    assert (found is None) == (n == 0)
    cache.match([1], wanted, -15)  # a shorter text than what is worth keeping, as `CacheTier.holds` asks


def test_prefixes_that_nobody_may_reuse_do_not_end_a_search() -> None:
    marked = [CacheEntry([1] * 40, n_exact=0) for _ in range(100)]
    good = CacheEntry([1] * 30)
    assert longest_match([*marked, good], [1] * 50, NO_ADAPTERS, 0, 50) == (good, 30)


MIB = 1 << 20


def ram_state(
    tokens: list[int], size: int = 1000, used_at: float = 0.0, adapter_set: AdapterSet = NO_ADAPTERS
) -> CacheEntry:
    return CacheEntry(tokens, adapter_set, size=size, last_used=used_at)


def test_length_is_worth_what_it_takes() -> None:
    cache = CacheTier(2500)
    cache.put(ram_state([1] * 90, size=1800), 0.0)
    cache.put(ram_state([2] * 30, size=600, used_at=5.0), 5.0)
    cache.put(ram_state([3] * 30, size=600, used_at=10.0), 10.0)
    assert {e.tokens[0] for e in cache} == {2, 3}


def test_a_new_entry_is_compared_with_those_only_that_may_be_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, system, compared = CacheTier(-1), [1] * 50, list[int]()
    for i in range(2, 100):
        cache.put(ram_state([*system, i]), 0.0)

    def counted(a: list[int], b: list[int]) -> int:
        compared.append(a[-1])
        return common_prefix(a, b)

    monkeypatch.setattr("server.engine.cache.prefix_cache.common_prefix", counted)
    replaced = cache.put(ram_state([*system, 7, 8]), 0.0)
    assert [entry.tokens for entry in replaced] == [[*system, 7]]
    assert compared == [7]


def test_kept_states_and_others_stay_within_the_limit() -> None:
    cache = CacheTier(1000)
    assert cache.pin(ram_state([1] * 9, size=500), until=60.0, now=0.0)
    larger, spilled = ram_state([2] * 9, size=600), list[CacheEntry]()
    cache.spill = spilled.append
    cache.put(larger, 1.0)
    assert spilled == [larger]
    assert not cache.reserve(ram_state([3] * 9, size=600), 1.0)
    cache.put(larger, 61.0)
    assert larger in cache
    assert cache.size == 600


@pytest.mark.parametrize(("other", "kept"), [(NO_ADAPTERS, True), (LORA, False)])
def test_a_prompt_that_is_kept_again_counts_once_with_each_set_of_adapters(other: AdapterSet, kept: bool) -> None:
    """Half of the limit is for such entries."""
    cache = CacheTier(1000)
    assert cache.pin(ram_state([1] * 9, size=400), until=60.0, now=0.0)
    assert cache.pin(ram_state([1] * 9, size=400, adapter_set=other), until=90.0, now=1.0) is kept
    assert cache.size == 400


def test_the_automatic_limit_leaves_the_machine_its_memory() -> None:
    assert ram_tier(AUTOMATIC, 400 * MIB).limit == 100 * MIB
    assert ram_tier(AUTOMATIC, 0).limit == 8192 * MIB
    assert ram_tier(16, 0).limit == 16 * MIB
    assert ram_tier(-1, 0).limit < 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(200, 900)), max_size=20))
def test_the_bytes_add_up_and_keep_to_the_limit(puts: list[tuple[list[int], int]]) -> None:
    cache = CacheTier(2000)
    for now, (tokens, size) in enumerate(puts):
        entry = ram_state(tokens, size, float(now))
        cache.put(entry, float(now))
        assert entry in cache
        cache.check_integrity()
        assert cache.match([*tokens, 9], NO_ADAPTERS, 0)[1] >= len(tokens)


def test_checkpoints_of_a_slot_that_is_offloaded_count_once() -> None:
    slot, checkpoints = Slot(tokens=[1] * 9, checkpoints={8: bytes(500)}), {8: bytes(500)}
    cache = CacheTier(1000, slots=[slot])
    other = CacheEntry([2] * 9, checkpoints=checkpoints, state=bytes(300))
    cache.put(other, 0.0)
    assert other not in cache  # there is no room for both
    entry = CacheEntry(slot.tokens, checkpoints=slot.checkpoints, state=bytes(300))
    assert cache.fits(300 + 8 * 9, 0.0)
    cache.put(entry, 0.0)
    assert entry in cache
    assert cache.n_bytes == entry.size
    cache.remove(entry)
    assert cache.n_bytes == 500


def test_what_slots_share_with_entries_is_not_freed_with_these() -> None:
    slot = Slot(tokens=[1] * 9, checkpoints={8: bytes(500)})
    cache = CacheTier(1300, slots=[slot])
    shared, other = CacheEntry(slot.tokens, checkpoints=slot.checkpoints), ram_state([2] * 99, size=300)
    cache.put(other, 1.0)
    cache.put(shared, 0.0)
    assert cache.make_room(600, 2.0)
    assert not list(cache)
    assert not cache.make_room(801, 2.0)


def test_a_reserved_state_is_for_its_sequence_only() -> None:
    cache = CacheTier(1000)
    reserved, other = ram_state([1] * 20, size=300), ram_state([1] * 9, size=300)
    assert cache.reserve(reserved, 0.0)
    cache.put(other, 0.0)
    assert cache.match([1] * 20, NO_ADAPTERS, 0) == (other, 9)
    assert cache.remove_all() == [other]
    assert (list(cache), cache.size) == ([reserved], 300)


async def test_embeddings_of_media_have_a_quarter_of_it_at_most() -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder()), cache_ram=100, media_cache=1) as engine:
        assert engine._encoder is not None
        for limit, states, embeddings in ((100 * MIB, 99 * MIB, MIB), (400, 300, 100), (0, 0, 0), (-1, 100 * MIB, MIB)):
            engine.limit_caches(limit)
            assert (engine._ram.limit, engine._encoder.cache.ram_limit) == (states, embeddings)


END = 7


def checkpoints(*places: int) -> Checkpoints:
    return {n: bytes(10) for n in places}


def test_a_sequence_is_cut_where_it_can_be_and_else_at_a_checkpoint() -> None:
    def reach(n: int, floor: int) -> int:
        kept = CacheEntry([1] * 250, checkpoints=checkpoints(100, 200) if floor else {}, floor=floor)
        return kept.reusable(n, NO_ADAPTERS)

    assert reach(300, 250) == 250  # goes on from its end
    assert reach(240, 230) == 240  # still inside the window
    assert reach(229, 230) == 200
    assert reach(200, 250) == 200
    assert reach(99, 250) == 0
    assert reach(99, 0) == 99  # memory that can be cut anywhere


def test_when_there_are_too_many_the_one_goes_that_saves_least() -> None:
    kept = checkpoints(100, 130, 300)
    assert list(added(kept, 400, b"", 3, 1000)) == [100, 300, 400]
    assert list(added(kept, 310, b"", 3, 1000)) == [100, 300, 310]
    assert list(added(kept, 130, b"new", 3, 1000)) == [100, 130, 300]


def test_one_checkpoint_is_kept_however_small_a_slots_part_is() -> None:
    assert list(added(checkpoints(100, 200), 500, bytes(30), 32, 20)) == [500]


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
