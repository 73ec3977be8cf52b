"""Server-sent events, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapool.client.sse import Event, SseDecoder

ENDS = ("\n", "\r", "\r\n")


def events(stream: bytes, *cuts: int) -> list[Event]:
    """What the decoder makes of `stream`, cut at `cuts`."""
    decoder = SseDecoder()
    ends = [*sorted(cuts), len(stream)]
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        found += decoder.feed(stream[start:end])
    return found + decoder.finish()


def data(*texts: str) -> list[Event]:
    return [Event("message", text) for text in texts]


def test_an_event_is_given_as_soon_as_its_blank_line_has_come() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: one\n") == []
    assert decoder.feed(b"\nda") == data("one")


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"data: one\n\ndata: two\n\n", data("one", "two")),
        (b"data: {\ndata:   1\ndata: }\n\n", data("{\n  1\n}")),
        *(
            (end.join([b"data: 1", b"data: 2", b"", b"data: 3", b"", b""]), data("1\n2", "3"))
            for end in (b"\n", b"\r", b"\r\n")
        ),
        *((f"data: a{c}b\n\n".encode(), data(f"a{c}b")) for c in "\u2028\u2029\x0b\x0c\x1c\x85"),
        (b":\n\n: ping - now\r\n\r\nid: 7\nretry: 10\n\ndata: x\n\n", data("x")),
        (b"data:a\n\ndata:  b\n\ndata\n\n", data("a", " b", "")),
        (b"event: error\ndata: x\n\ndata: y\n\n", [Event("error", "x"), *data("y")]),
        (b"event: error\n\ndata: y\n\n", data("y")),
        (b'error: {"code": 500}\n\n', [Event("error", '{"code": 500}')]),  # older servers
        (b"\xef\xbb\xbfdata: x\n\n", data("x")),
        *((b"data: [DONE]" + tail, data("[DONE]")) for tail in (b"", b"\n", b"\r")),
    ],
)
def test_events_are_those_of_the_standard(stream: bytes, found: list[Event]) -> None:
    assert events(stream) == found


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=4),
    end=st.sampled_from(ENDS),
    cuts=st.lists(st.integers(0, 80), max_size=8),
)
def test_where_chunks_are_cut_changes_nothing(texts: list[str], end: str, cuts: list[int]) -> None:
    stream = "".join(f"data: {text}{end}: ping{end}{end}" for text in texts).encode()
    assert events(stream, *(min(cut, len(stream)) for cut in cuts)) == data(*texts)
