"""Server-sent events, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapool.client.sse import Event, SseDecoder


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


def test_an_event_ends_at_a_blank_line() -> None:
    assert events(b"data: one\n\ndata: two\n\n") == data("one", "two")


def test_an_event_is_given_as_soon_as_its_blank_line_has_come() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: one\n") == []
    assert decoder.feed(b"\nda") == data("one")


def test_several_data_lines_are_one_text() -> None:
    assert events(b"data: {\ndata:   1\ndata: }\n\n") == data("{\n  1\n}")


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end_of_the_standard_is_one(end: bytes) -> None:
    assert events(end.join([b"data: one", b"data: two", b"", b"data: three", b"", b""])) == data("one\ntwo", "three")


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85"])
def test_separators_of_unicode_do_not_end_a_line(separator: str) -> None:
    assert events(f"data: a{separator}b\n\n".encode()) == data(f"a{separator}b")


def test_comments_ids_and_retries_give_nothing() -> None:
    assert events(b":\n\n: ping - now\r\n\r\nid: 7\nretry: 10\n\ndata: x\n\n") == data("x")


def test_the_space_after_the_colon_is_no_text_and_may_be_missing() -> None:
    assert events(b"data:a\n\ndata:  b\n\ndata\n\n") == data("a", " b", "")


def test_an_event_has_its_name_once() -> None:
    assert events(b"event: error\ndata: x\n\ndata: y\n\n") == [Event("error", "x"), *data("y")]


def test_a_name_without_data_is_no_event_and_is_forgotten() -> None:
    assert events(b"event: error\n\ndata: y\n\n") == data("y")


def test_the_error_field_of_older_servers_is_an_error_event() -> None:
    assert events(b'error: {"code": 500}\n\n') == [Event("error", '{"code": 500}')]


def test_a_byte_order_mark_is_skipped() -> None:
    assert events(b"\xef\xbb\xbfdata: x\n\n") == data("x")


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r"])
def test_the_last_event_may_lack_its_blank_line(tail: bytes) -> None:
    assert events(b"data: [DONE]" + tail) == data("[DONE]")


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=4),
    end=st.sampled_from(["\n", "\r", "\r\n"]),
    cuts=st.lists(st.integers(0, 80), max_size=8),
)
def test_where_chunks_are_cut_changes_nothing(texts: list[str], end: str, cuts: list[int]) -> None:
    stream = "".join(f"data: {text}{end}: ping{end}{end}" for text in texts).encode()
    assert events(stream, *(min(cut, len(stream)) for cut in cuts)) == data(*texts)
