"""Hashes that stay with a text are those that would be computed anew."""

from hypothesis import given
from hypothesis import strategies as st

from server.engine.lora import NO_ADAPTERS, AdapterSet
from server.engine.prefix_cache import BLOCK, PrefixHashes, common_prefix

LORA = AdapterSet(((0, 1.0),), 0)


def fresh(tokens: list[int], adapter_set: AdapterSet = NO_ADAPTERS) -> list[int]:
    return list(PrefixHashes().upto(len(tokens) // BLOCK, tokens, adapter_set))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.sampled_from([NO_ADAPTERS, LORA])), max_size=12))
def test_a_text_that_grows_and_is_cut_keeps_true_hashes(changes: list[tuple[int, int, AdapterSet]]) -> None:
    tokens: list[int] = []
    hashes = PrefixHashes()
    for at, (n_kept, n_more, adapter_set) in enumerate(changes):
        n = min(n_kept, len(tokens))
        del tokens[n:]
        hashes.cut(n)
        tokens += range(1000 * at, 1000 * at + n_more)
        assert hashes.fits(tokens, adapter_set)
        assert hashes.upto(len(tokens) // BLOCK, tokens, adapter_set) == fresh(tokens, adapter_set)


def test_as_much_is_hashed_as_is_asked_for() -> None:
    tokens = list(range(10 * BLOCK))
    hashes = PrefixHashes()
    assert hashes.upto(3, tokens, NO_ADAPTERS) == fresh(tokens)[:4]
    assert hashes.upto(2, tokens, NO_ADAPTERS)[:3] == fresh(tokens)[:3]
    assert hashes.upto(10, tokens, NO_ADAPTERS) == fresh(tokens)


def test_what_computes_the_first_token_is_part_of_every_hash() -> None:
    tokens = list(range(BLOCK))
    assert not set(fresh(tokens, NO_ADAPTERS)) & set(fresh(tokens, LORA))


def test_a_copy_goes_its_own_way() -> None:
    tokens = list(range(2 * BLOCK))
    hashes = PrefixHashes()
    hashes.upto(2, tokens, NO_ADAPTERS)
    copy = hashes.copy()
    hashes.cut(0)
    assert copy.upto(2, tokens, NO_ADAPTERS) == fresh(tokens)


def test_another_text_is_told_from_what_was_hashed() -> None:
    hashes = PrefixHashes()
    hashes.upto(1, list(range(BLOCK)), NO_ADAPTERS)
    assert not hashes.fits(list(range(1, BLOCK + 1)), NO_ADAPTERS)
    assert not hashes.fits([], NO_ADAPTERS)
    hashes.forget()
    assert hashes.fits(list(range(1, BLOCK + 1)), NO_ADAPTERS)


@given(st.lists(st.integers(0, 3), max_size=200), st.lists(st.integers(0, 3), max_size=200), st.integers(0, 200))
def test_what_two_texts_share_is_found_in_whole_blocks(a: list[int], b: list[int], n: int) -> None:
    b = a[:n] + b
    ours, theirs = PrefixHashes(), PrefixHashes()
    ours.upto(len(a) // BLOCK, a, NO_ADAPTERS)
    theirs.upto(len(b) // BLOCK, b, NO_ADAPTERS)
    assert ours.shared(theirs) == theirs.shared(ours) == common_prefix(a, b) // BLOCK * BLOCK


def test_what_was_not_hashed_is_not_shared() -> None:
    text = list(range(100))
    ours, theirs = PrefixHashes(), PrefixHashes()
    ours.upto(6, text, NO_ADAPTERS)
    assert ours.shared(theirs) == 0
    theirs.upto(2, text, NO_ADAPTERS)
    assert ours.shared(theirs) == 2 * BLOCK
