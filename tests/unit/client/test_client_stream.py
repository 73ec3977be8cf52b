"""Streamed replies: chunks, errors and connections; server-sent events, cut anywhere."""

import gc
import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapool.client import ApiError, BadRequest, EventStream, RequestTimedOut, ServerUnreachable, UnexpectedReply
from llamapool.client.sse import Event, SseDecoder
from tests.unit.client.answers import Asked, answering, served_by, streaming

HELLO = [{"role": "user", "content": "Hello"}]


def chunk(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def chat(asked: Asked) -> EventStream:
    return asked.client.chat.completions.create(HELLO, stream=True)


def test_a_chat_stream_is_its_chunks_without_the_done_mark() -> None:
    asked, body = streaming(chunk({"n": 1}), b": ping\n\n", chunk({"n": 2}), b"data: [DONE]\n\n")
    assert list(chat(asked)) == [{"n": 1}, {"n": 2}]
    assert body.closed
    assert asked.body["stream"] is True


def test_a_native_stream_ends_without_a_done_mark() -> None:
    asked, body = streaming(chunk({"content": "a", "stop": False}), chunk({"content": "", "stop": True}))
    assert [event["stop"] for event in asked.client.complete("x", stream=True)] == [False, True]
    assert body.closed


def test_the_rest_after_the_done_mark_is_read_so_that_the_connection_can_be_used_again() -> None:
    asked, body = streaming(b"data: [DONE]\n\n", b": bye\n\n", b"")
    assert list(chat(asked)) == []
    assert body.n_read == 3


def test_chunks_are_given_as_they_come_and_leaving_a_with_block_closes_the_connection() -> None:
    asked, body = streaming(chunk({"n": 1}), chunk({"n": 2}))
    with chat(asked) as stream:
        assert next(stream) == {"n": 1}
        assert body.n_read == 1
        assert not body.closed
    assert body.closed


def test_a_stream_is_not_compressed_and_asks_for_events() -> None:
    asked, _ = streaming(b"")
    list(chat(asked))
    assert asked.last.headers["accept-encoding"] == "identity"
    assert asked.last.headers["connection"] == "close"
    assert asked.last.headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "out of use"])
@pytest.mark.parametrize("n_read", [0, 1])
def test_a_stream_that_is_closed_or_out_of_use_closes_its_connection(n_read: int, closes: bool) -> None:
    asked, body = streaming(chunk({"n": 1}), chunk({"n": 2}))
    stream = chat(asked)
    for _ in range(n_read):
        next(stream)
    assert not body.closed
    if closes:
        stream.close()
        stream.close()
        assert list(stream) == []
    else:
        del stream
        gc.collect()
    assert (body.closed, body.n_read) == (True, n_read)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"code": 400, "message": "too long", "type": "invalid_request_error"}}\n\n',
        b'event: error\ndata: {"code": 400, "message": "too long", "type": "invalid_request_error"}\n\n',
        b'error: {"code": 400, "message": "too long", "type": "invalid_request_error"}\n\n',
    ],
    ids=["in a chunk", "as an event", "as a field, before 2025"],
)
def test_an_error_in_a_stream_is_raised(event: bytes) -> None:
    asked, body = streaming(chunk({"n": 1}), event, chunk({"n": 2}))
    stream = chat(asked)
    assert next(stream) == {"n": 1}
    with pytest.raises(BadRequest) as raised:
        next(stream)
    assert (raised.value.status, raised.value.message) == (400, "too long")
    assert raised.value.type == "invalid_request_error"
    assert body.closed


@pytest.mark.parametrize("event", [b'data: {"error": "broken"}\n\n', b"event: error\ndata: broken\n\n"])
def test_an_error_that_is_only_text_is_a_500(event: bytes) -> None:
    asked, _ = streaming(event)
    with pytest.raises(ApiError) as raised:
        list(chat(asked))
    assert (raised.value.status, raised.value.message) == (500, "broken")


def test_a_chunk_whose_error_is_null_is_a_chunk() -> None:
    asked, _ = streaming(chunk({"n": 1, "error": None}))
    assert list(chat(asked)) == [{"n": 1, "error": None}]


@pytest.mark.parametrize("event", [b'data: {"n": 1', b"data: [1]\n\n", b"data: hello\n\n"])
def test_an_event_that_is_no_object_or_was_cut_is_unexpected(event: bytes) -> None:
    asked, body = streaming(event)
    with pytest.raises(UnexpectedReply):
        list(chat(asked))
    assert body.closed


def test_a_refused_stream_raises_before_it_is_read() -> None:
    asked = answering({"error": {"code": 400, "message": "no", "type": "invalid_request_error"}}, 400)
    with pytest.raises(BadRequest, match="no"):
        chat(asked)


def test_a_reply_that_is_no_stream_is_unexpected() -> None:
    asked, body = streaming(b'{"choices": []}', content_type="application/json")
    with pytest.raises(UnexpectedReply, match="did not stream") as raised:
        chat(asked)
    assert raised.value.body == '{"choices": []}'
    assert body.closed


@pytest.mark.parametrize(
    ("broken", "expected"),
    [(httpx.RemoteProtocolError("peer closed"), ServerUnreachable), (httpx.ReadTimeout("slow"), RequestTimedOut)],
)
def test_a_stream_that_breaks_off_says_so(broken: httpx.RequestError, expected: type[Exception]) -> None:
    class Breaking(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield chunk({"n": 1})
            raise broken

    headers = {"content-type": "text/event-stream; charset=utf-8"}
    stream = chat(served_by(lambda _: httpx.Response(200, headers=headers, stream=Breaking())))
    assert next(stream) == {"n": 1}
    with pytest.raises(expected, match=str(broken)):
        next(stream)


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
