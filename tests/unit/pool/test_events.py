"""Events of the pool to its subscribers, and KV events about cached blocks."""

import asyncio
import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.prefix_cache import BLOCK
from server.engine.snapshots import HeldText
from server.pool.block_events import Blocks, BlocksRemoved, BlocksStored, block_hash, hash_of_none, shown
from server.pool.events import DownloadProgress, FanOut, LoadProgress, PoolEvent, StatusChanged, Subscription
from server.pool.protocols import FileProgress
from server.pool.state import Status
from server.startup_banner import show_load_progress


async def read_all(subscription: Subscription) -> list[PoolEvent]:
    """Return the events until the subscription ends."""
    return [event async for event in subscription]


async def test_slow_subscriber_loses_the_oldest_progress_but_no_status() -> None:
    fan_out = FanOut(limit=3)
    slow = fan_out.subscribe()
    loading, ready = StatusChanged("a", Status.LOADING), StatusChanged("a", Status.READY)
    fan_out.publish(loading)
    for value in (0.1, 0.2, 0.3, 0.4):
        fan_out.publish(LoadProgress("a", value))
    fan_out.publish(ready)
    slow.close()
    assert await read_all(slow) == [loading, LoadProgress("a", 0.4), ready]


async def test_close_ends_waiting_and_later_subscriptions() -> None:
    fan_out = FanOut()
    waiting = asyncio.ensure_future(read_all(fan_out.subscribe()))
    await asyncio.sleep(0)
    fan_out.close()
    assert await asyncio.wait_for(waiting, 60) == []
    assert await asyncio.wait_for(read_all(fan_out.subscribe()), 60) == []


EVENTS = st.one_of(
    st.builds(StatusChanged, st.sampled_from("abcd"), st.sampled_from(list(Status))),
    st.builds(LoadProgress, st.sampled_from("abcd"), st.floats(0, 1)),
)


@given(st.lists(EVENTS, max_size=40), st.integers(1, 8))
def test_buffer_is_bounded_and_keeps_the_latest_status_of_each_model(events: list[PoolEvent], limit: int) -> None:
    async def receive() -> list[PoolEvent]:
        fan_out = FanOut(limit)
        subscription = fan_out.subscribe()
        for event in events:
            fan_out.publish(event)
        subscription.close()
        return await read_all(subscription)

    received = asyncio.run(receive())
    models = {e.model for e in events}
    assert len(received) <= max(limit, len(models))
    for model in models:
        published = [e for e in events if isinstance(e, StatusChanged) and e.model == model]
        assert [e for e in received if isinstance(e, StatusChanged) and e.model == model][-1:] == published[-1:]


async def test_progress_of_long_loads_and_downloads_is_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    fan_out = FanOut()
    events = fan_out.subscribe()
    for percent in range(0, 100, 10):
        fan_out.publish(LoadProgress("demo", percent / 100))
    fan_out.publish(StatusChanged("demo", Status.READY))
    for done in range(4):
        fan_out.publish(DownloadProgress("other", (FileProgress("u/a", done << 20, 4 << 20),)))
    fan_out.close()
    times = itertools.count(0.0, 2.0)
    with caplog.at_level(logging.INFO):
        await show_load_progress(events, clock=lambda: next(times))
    assert caplog.messages == [
        *("loading 'demo': 30%", "loading 'demo': 60%", "loading 'demo': 90%"),
        "fetching 'other': 3 of 4 MiB",
    ]


GPU = "GPU"


def held_text(key: object, tokens: list[int], medium: str = GPU, salt: str = "") -> HeldText:
    return HeldText(key, tokens, len(tokens), medium, salt)


def test_block_hashes_equal_those_of_vllm() -> None:
    """The expected values are vLLM's sha256_cbor, computed with cbor2 under PYTHONHASHSEED=0."""
    none = hash_of_none("0")
    first = block_hash(none, range(16))
    assert first.hex() == "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c"
    second = block_hash(first, (*(10**k for k in range(10)), *range(250, 256)))
    assert second.hex() == "935725defd58995fcca7111964f9959eeadb74f3698a050ff62ada8ff162d3e9"
    salted = block_hash(none, range(16), "salt")
    assert salted.hex() == "ba548bc465821c2e9b6a60ed95bf1a7bf56d08e438e8bcd7758f29086c085ab8"
    assert hash_of_none(None) != hash_of_none(None)
    assert shown(first) == int("d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c"[-16:], 16)


def test_cache_namespaces_share_no_block_hashes() -> None:
    blocks, tokens = Blocks(), list(range(BLOCK * 2))
    a, b = blocks.update([held_text(0, tokens, salt="a"), held_text(1, tokens, salt="b")]).changes
    assert isinstance(a, BlocksStored)
    assert isinstance(b, BlocksStored)
    assert not set(a.hashes) & set(b.hashes)
    assert (a.salt, b.salt) == ("a", "b")


_TEXTS = st.lists(st.sampled_from((1, 2)), min_size=0, max_size=5).map(
    lambda parts: [token for part in parts for token in [part] * BLOCK]
)


_CACHES = st.dictionaries(st.integers(0, 3), st.tuples(_TEXTS, st.sampled_from((GPU, "CPU"))), max_size=4)


@given(st.lists(_CACHES, max_size=8))
def test_changes_are_enough_to_follow_the_cached_blocks(history: list[dict[int, tuple[list[int], str]]]) -> None:
    blocks = Blocks()
    followed: dict[str, dict[int, tuple[int, ...]]] = {GPU: {}, "CPU": {}}  # medium -> block hash -> its whole prefix
    for cached in history:
        texts = [held_text(key, tokens, medium) for key, (tokens, medium) in cached.items()]
        for change in blocks.update(texts).changes:
            prefixes = followed[change.medium]
            if isinstance(change, BlocksRemoved):
                for block in change.hashes:
                    del prefixes[block]
                continue
            prefix: tuple[int, ...] = () if change.parent is None else prefixes[change.parent]
            for i, block in enumerate(change.hashes):
                prefix += change.tokens[i * BLOCK : (i + 1) * BLOCK]
                assert block not in prefixes
                prefixes[block] = prefix
        for medium, prefixes in followed.items():
            token_lists = [tokens for tokens, where in cached.values() if where == medium]
            expected = {tuple(t[: n * BLOCK]) for t in token_lists for n in range(1, len(t) // BLOCK + 1)}
            assert set(prefixes.values()) == expected
