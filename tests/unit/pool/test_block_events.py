from hypothesis import given
from hypothesis import strategies as st

from server.engine.cache.prefix_cache import BLOCK
from server.engine.snapshots import HeldText
from server.pool.block_events import (
    Blocks,
    BlocksRemoved,
    BlocksStored,
    block_hash,
    hash_of_none,
    shown,
)

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
