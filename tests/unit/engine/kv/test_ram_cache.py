"""Prompt states that have no slot any more."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import NEVER, NO_ADAPTERS, AdapterSet
from server.engine.prefix_cache import AUTOMATIC, MIN_TOKENS, CacheEntry, SlotState, StateCache, state_cache
from tests.support.fakes import FakeEncoder, FakeRunner
from tests.unit.engine.builders import alone, engine_over, request, run, ticking

MIB = 1 << 20


def ram_state(
    tokens: list[int], size: int = 1000, used_at: float = 0.0, adapter_set: AdapterSet = NO_ADAPTERS
) -> CacheEntry:
    return CacheEntry(SlotState(tokens, b"", adapter_set, NEVER), size, used_at)


def test_a_conversation_beyond_the_slots_comes_back_from_the_tier() -> None:
    cache = StateCache(10_000)
    cache.put(ram_state([1, 2, 3]), 0.0)
    entry, n = cache.match([1, 2, 3, 4], NO_ADAPTERS, 0)
    assert entry is not None
    assert n == 3
    assert cache.match([1, 2, 3, 4], NO_ADAPTERS, 3) == (None, 0)
    assert cache.match([1, 2, 3, 4], AdapterSet(((0, 1.0),), 0), 0) == (None, 0)


def test_a_later_turn_takes_the_place_of_an_earlier_one() -> None:
    cache = StateCache(10_000)
    cache.put(ram_state([1, 2]), 0.0)
    cache.put(ram_state([1, 2, 3]), 1.0)
    assert [e.tokens for e in cache] == [[1, 2, 3]]


def test_what_was_of_use_stays_and_the_old_goes() -> None:
    cache = StateCache(2500)
    cache.put(ram_state([1] * 9), 0.0)
    cache.put(ram_state([2] * 9), 0.0)
    cache.touch(next(e for e in cache if e.tokens[0] == 1), 10.0)
    cache.put(ram_state([3] * 9, used_at=11.0), 11.0)
    assert {e.tokens[0] for e in cache} == {1, 3}


def test_length_is_worth_what_it_takes() -> None:
    cache = StateCache(2500)
    cache.put(ram_state([1] * 90, size=1800), 0.0)
    cache.put(ram_state([2] * 30, size=600, used_at=5.0), 5.0)
    cache.put(ram_state([3] * 30, size=600, used_at=10.0), 10.0)
    assert {e.tokens[0] for e in cache} == {2, 3}


def test_a_conversation_of_many_turns_that_is_over_goes_before_a_young_one() -> None:
    cache = StateCache(2500)
    for n in range(1, 40):
        cache.put(ram_state([1] * n, used_at=float(n)), float(n))
        cache.touch(next(iter(cache)), float(n))
    cache.put(ram_state([2] * 39, used_at=100.0), 100.0)
    cache.put(ram_state([3] * 39, used_at=110.0), 110.0)
    assert {e.tokens[0] for e in cache} == {2, 3}


def test_a_state_larger_than_the_tier_is_not_kept() -> None:
    cache = StateCache(500)
    entry = ram_state([1] * 9)
    assert cache.put(entry, 0.0) == [entry]
    assert not len(cache)


def test_a_model_that_cannot_be_cut_only_takes_whole_states() -> None:
    cache = StateCache(-1)
    entry = ram_state([1, 2, 3])
    entry.can_cut = False
    cache.put(entry, 0.0)
    assert cache.match([1, 2, 9], NO_ADAPTERS, 0) == (None, 0)
    assert cache.match([1, 2, 3, 9], NO_ADAPTERS, 0)[1] == 3


def test_nothing_is_kept_where_it_is_off_or_hardly_anything_is_lost() -> None:
    assert not StateCache(0).wants(ram_state([1] * 500), 500)
    assert not StateCache(-1).wants(ram_state([1] * 500), MIN_TOKENS - 1)
    assert StateCache(-1).wants(ram_state([1] * 500), 500)


def test_the_automatic_limit_leaves_the_machine_its_memory() -> None:
    assert state_cache(AUTOMATIC, 400 * MIB).limit == 100 * MIB
    assert state_cache(AUTOMATIC, 0).limit == 8192 * MIB
    assert state_cache(16, 0).limit == 16 * MIB
    assert state_cache(-1, 0).limit < 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(200, 900)), max_size=20))
def test_the_bytes_add_up_and_keep_to_the_limit(puts: list[tuple[list[int], int]]) -> None:
    cache = StateCache(2000)
    for now, (tokens, size) in enumerate(puts):
        entry = ram_state(tokens, size, float(now))
        cache.put(entry, float(now))
        assert entry in cache
        cache.check_integrity()
        assert cache.match([*tokens, 9], NO_ADAPTERS, 0)[1] >= len(tokens)


async def test_more_conversations_than_slots_compute_their_history_once() -> None:
    for partial in (True, False):
        runner = FakeRunner(n_seq=1, n_ctx_seq=512, partial_removal=partial)
        async with engine_over(runner, clock=ticking(), cache_ram=-1) as engine:
            histories = {name: name * 100 for name in "abc"}
            for _ in range(3):
                for name, history in histories.items():
                    wanted = request(history)
                    (reply,) = await run(engine, wanted)
                    assert reply.text == alone(wanted)
                    if history != name * 100:
                        assert reply.started.n_cached >= 100
                    histories[name] = history + reply.text + "and?"


async def test_short_turns_come_back_too() -> None:
    async with engine_over(FakeRunner(n_seq=2, n_ctx_seq=512), clock=ticking(), cache_ram=-1) as engine:
        histories = {number: f"{number:03}" * 8 for number in range(24)}
        before = dict.fromkeys(histories, "")
        for _ in range(3):
            for number, history in histories.items():
                (reply,) = await run(engine, request(history))
                assert reply.started.n_cached >= len(before[number])
                before[number] = history
                histories[number] = history + reply.text + "and what then, please?"


async def test_without_the_tier_they_are_computed_anew() -> None:
    async with engine_over(FakeRunner(n_seq=1), cache_ram=0) as engine:
        await run(engine, request("a" * 100))
        await run(engine, request("b" * 100))
        (reply,) = await run(engine, request("a" * 100))
    assert reply.started.n_cached == 1


async def test_a_state_of_one_instance_is_of_use_in_another() -> None:
    async with engine_over(FakeRunner(n_seq=1), FakeRunner(n_seq=1), clock=ticking(), cache_ram=-1) as engine:
        await run(engine, request("a" * 100, id_slot=0))
        await run(engine, request("b" * 100, id_slot=0))
        (reply,) = await run(engine, request("a" * 100 + "c", id_slot=1))
        assert reply.started.n_cached == 101
        assert reply.text == alone(request("a" * 100 + "c"))
        assert engine.stats.n_ram_hits == 1
        assert engine.stats.cache_ram_states == 1


def test_a_smaller_limit_costs_the_least_valuable_at_once() -> None:
    cache = StateCache(3000)
    for token in (1, 2, 3):
        cache.put(ram_state([token] * 9, used_at=float(token)), float(token))
    assert [entry.tokens[0] for entry in cache.limit_to(1500, 4.0)] == [1, 2]
    assert (cache.size, cache.limit) == (1000, 1500)
    cache.check_integrity()


async def test_states_share_what_the_pool_leaves_and_never_more_than_their_own_setting_says() -> None:
    async with engine_over(FakeRunner(), cache_ram=1) as engine:
        for limit, expected in ((2 * MIB, MIB), (1000, 1000), (0, 0), (-1, MIB)):
            engine.limit_caches(limit)
            assert engine._ram.limit == expected


async def test_embeddings_of_media_have_a_quarter_of_it_at_most() -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder()), cache_ram=100, media_cache=1) as engine:
        assert engine._encoder is not None
        for limit, states, embeddings in ((100 * MIB, 99 * MIB, MIB), (400, 300, 100), (0, 0, 0), (-1, 100 * MIB, MIB)):
            engine.limit_caches(limit)
            assert (engine._ram.limit, engine._encoder.cache.ram_limit) == (states, embeddings)
