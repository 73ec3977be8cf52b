"""Where a long text is cut behind special tokens."""

from hypothesis import given
from hypothesis import strategies as st

from server.llama.vocab import MIN_PIECE_BYTES, SpecialTexts

FILL = b"x" * MIN_PIECE_BYTES


def pieces(raw: bytes, *texts: bytes) -> list[bytes]:
    return list(SpecialTexts(texts).pieces(raw))


def test_a_special_text_that_another_overlaps_is_no_place_to_cut() -> None:
    for raw, rival in ((b"<end><", b"><"), (b"<<end>", b"<<"), (b"<end>", b"end"), (b"a<end>b", b"a<end>b")):
        assert pieces(FILL + raw + FILL, b"<end>", rival) in ([FILL + raw + FILL], [FILL + b"a<end>b", FILL])


def test_runs_of_a_text_that_overlaps_itself_are_not_cut() -> None:
    assert pieces(FILL + b"aaa" + FILL, b"aa") == [FILL + b"aaa" + FILL]
    assert pieces(FILL + b"aa" + FILL, b"aa") == [FILL + b"aa", FILL]


@given(st.lists(st.sampled_from([b"<a>", b"<", b">", b"a", FILL]), max_size=40), st.sets(st.binary(max_size=3)))
def test_no_byte_is_lost(parts: list[bytes], texts: set[bytes]) -> None:
    raw = b"".join(parts)
    assert b"".join(pieces(raw, b"<a>", *texts)) == raw
