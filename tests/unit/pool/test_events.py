"""Events of the pool, and of the blocks that its caches hold."""

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


def changed(model: str, status: Status = Status.READY) -> StatusChanged:
    return StatusChanged(model, status)


async def rest(subscription: Subscription) -> list[PoolEvent]:
    subscription.close()
    return [event async for event in subscription]


async def test_a_slow_subscriber_loses_the_oldest_progress_but_no_status() -> None:
    fan_out = FanOut(limit=3)
    slow = fan_out.subscribe()
    fan_out.publish(changed("a", Status.LOADING))
    for value in (0.1, 0.2, 0.3, 0.4):
        fan_out.publish(LoadProgress("a", value))
    fan_out.publish(changed("a"))
    assert await rest(slow) == [changed("a", Status.LOADING), LoadProgress("a", 0.4), changed("a")]


async def test_closing_ends_listeners_that_wait_and_those_that_come_later() -> None:
    fan_out = FanOut()
    events = fan_out.subscribe()
    waiting = asyncio.ensure_future(rest_of(events))
    await asyncio.sleep(0)
    fan_out.close()
    assert await asyncio.wait_for(waiting, 60) == []
    assert await asyncio.wait_for(rest_of(fan_out.subscribe()), 60) == []


async def rest_of(events: Subscription) -> list[PoolEvent]:
    return [event async for event in events]


EVENTS = st.one_of(
    st.builds(changed, st.sampled_from("abcd"), st.sampled_from(list(Status))),
    st.builds(LoadProgress, st.sampled_from("abcd"), st.floats(0, 1)),
)


@given(st.lists(EVENTS, max_size=40), st.integers(1, 8))
def test_the_buffer_is_bounded_and_keeps_each_latest_status(events: list[PoolEvent], limit: int) -> None:
    async def received() -> list[PoolEvent]:
        fan_out = FanOut(limit)
        subscription = fan_out.subscribe()
        for event in events:
            fan_out.publish(event)
        return await rest(subscription)

    got = asyncio.run(received())
    models = {e.model for e in events}
    assert len(got) <= max(limit, len(models))
    for model in models:
        said = [e for e in events if isinstance(e, StatusChanged) and e.model == model]
        heard = [e for e in got if isinstance(e, StatusChanged) and e.model == model]
        assert heard[-1:] == said[-1:]


async def test_long_loads_and_downloads_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
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


def held(key: object, tokens: list[int], medium: str = GPU, salt: str = "", n: int | None = None) -> HeldText:
    return HeldText(key, tokens, len(tokens) if n is None else n, medium, salt)


def test_hashes_are_vllms() -> None:
    """sha256_cbor of vLLM, computed with cbor2, under PYTHONHASHSEED=0."""
    none = hash_of_none("0")
    first = block_hash(none, range(16))
    assert first.hex() == "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c"
    second = block_hash(first, (*(10**k for k in range(10)), *range(250, 256)))
    assert second.hex() == "935725defd58995fcca7111964f9959eeadb74f3698a050ff62ada8ff162d3e9"
    salted = block_hash(none, range(16), "salt")
    assert salted.hex() == "ba548bc465821c2e9b6a60ed95bf1a7bf56d08e438e8bcd7758f29086c085ab8"
    assert hash_of_none(None) != hash_of_none(None)
    assert shown(first) == int("d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c"[-16:], 16)


def test_scopes_have_blocks_of_their_own() -> None:
    blocks, tokens = Blocks(), list(range(BLOCK * 2))
    ours, theirs = blocks.update([held(0, tokens, salt="a"), held(1, tokens, salt="b")]).changes
    assert isinstance(ours, BlocksStored)
    assert isinstance(theirs, BlocksStored)
    assert not set(ours.hashes) & set(theirs.hashes)
    assert (ours.salt, theirs.salt) == ("a", "b")


_TEXTS = st.lists(st.sampled_from((1, 2)), min_size=0, max_size=5).map(
    lambda parts: [token for part in parts for token in [part] * BLOCK]
)


_HELD = st.dictionaries(st.integers(0, 3), st.tuples(_TEXTS, st.sampled_from((GPU, "CPU"))), max_size=4)


@given(st.lists(_HELD, max_size=8))
def test_who_follows_the_changes_knows_what_is_held(history: list[dict[int, tuple[list[int], str]]]) -> None:
    blocks = Blocks()
    known: dict[str, dict[int, tuple[int, ...]]] = {GPU: {}, "CPU": {}}  # by hash the whole text up to there
    for now in history:
        for change in blocks.update([held(key, tokens, medium) for key, (tokens, medium) in now.items()]).changes:
            of = known[change.medium]
            if isinstance(change, BlocksRemoved):
                for block in change.hashes:
                    del of[block]
                continue
            text: tuple[int, ...] = () if change.parent is None else of[change.parent]
            for i, block in enumerate(change.hashes):
                text += change.tokens[i * BLOCK : (i + 1) * BLOCK]
                assert block not in of
                of[block] = text
        for medium, of in known.items():
            texts = [tokens for tokens, where in now.values() if where == medium]
            assert set(of.values()) == {tuple(t[: n * BLOCK]) for t in texts for n in range(1, len(t) // BLOCK + 1)}
