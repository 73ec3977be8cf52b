"""Prompt states that have no slot any more."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import NEVER, NO_ADAPTERS, AdapterSet
from server.engine.prefix_cache import AUTOMATIC, CacheEntry, SlotState, StateCache, state_cache
from tests.support.fakes import FakeEncoder, FakeRunner
from tests.unit.engine.builders import engine_over

MIB = 1 << 20


def ram_state(
    tokens: list[int], size: int = 1000, used_at: float = 0.0, adapter_set: AdapterSet = NO_ADAPTERS
) -> CacheEntry:
    return CacheEntry(SlotState(tokens, b"", adapter_set, NEVER), size, used_at)


def test_length_is_worth_what_it_takes() -> None:
    cache = StateCache(2500)
    cache.put(ram_state([1] * 90, size=1800), 0.0)
    cache.put(ram_state([2] * 30, size=600, used_at=5.0), 5.0)
    cache.put(ram_state([3] * 30, size=600, used_at=10.0), 10.0)
    assert {e.tokens[0] for e in cache} == {2, 3}


def test_kept_states_and_others_stay_within_the_limit() -> None:
    cache = StateCache(1000)
    assert cache.keep(ram_state([1] * 9, size=500), until=60.0, now=0.0) == []
    larger = ram_state([2] * 9, size=600)
    assert cache.put(larger, 1.0) == [larger]
    assert cache.hold([b"x" * 600], 1.0) is None
    assert cache.put(larger, 61.0) != [larger]
    assert cache.size == 600


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


async def test_embeddings_of_media_have_a_quarter_of_it_at_most() -> None:
    async with engine_over(FakeRunner(encoder=FakeEncoder()), cache_ram=100, media_cache=1) as engine:
        assert engine._encoder is not None
        for limit, states, embeddings in ((100 * MIB, 99 * MIB, MIB), (400, 300, 100), (0, 0, 0), (-1, 100 * MIB, MIB)):
            engine.limit_caches(limit)
            assert (engine._ram.limit, engine._encoder.cache.ram_limit) == (states, embeddings)
