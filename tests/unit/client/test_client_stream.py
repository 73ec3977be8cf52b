"""Streams of the Python client: chunks, errors, closed connections, and server-sent events split at any byte."""

import gc
import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapool.client import ApiError, BadRequest, EventStream, RequestTimedOut, ServerUnreachable, UnexpectedReply
from llamapool.client.sse import Event, SseDecoder
from tests.unit.client.answers import FakeServer, answering, served_by, streaming

HELLO = [{"role": "user", "content": "Hello"}]


def chunk(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def chat_stream(server: FakeServer) -> EventStream:
    return server.client.chat.completions.create(HELLO, stream=True)


def test_chat_stream_yields_its_chunks_without_the_done_event() -> None:
    server, body = streaming(chunk({"n": 1}), b": ping\n\n", chunk({"n": 2}), b"data: [DONE]\n\n")
    assert list(chat_stream(server)) == [{"n": 1}, {"n": 2}]
    assert body.closed
    assert server.body["stream"] is True


def test_native_stream_ends_without_a_done_event() -> None:
    server, body = streaming(chunk({"content": "a", "stop": False}), chunk({"content": "", "stop": True}))
    assert [event["stop"] for event in server.client.complete("x", stream=True)] == [False, True]
    assert body.closed


def test_stream_is_read_to_its_end_after_the_done_event() -> None:
    server, body = streaming(b"data: [DONE]\n\n", b": bye\n\n", b"")
    assert list(chat_stream(server)) == []
    assert body.n_read == 3


def test_chunks_are_yielded_on_arrival_and_the_with_block_closes_the_connection() -> None:
    server, body = streaming(chunk({"n": 1}), chunk({"n": 2}))
    with chat_stream(server) as stream:
        assert next(stream) == {"n": 1}
        assert body.n_read == 1
        assert not body.closed
    assert body.closed


def test_stream_request_disables_compression_and_accepts_events() -> None:
    server, _ = streaming(b"")
    list(chat_stream(server))
    assert server.last.headers["accept-encoding"] == "identity"
    assert server.last.headers["connection"] == "close"
    assert server.last.headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "garbage collected"])
@pytest.mark.parametrize("n_read", [0, 1])
def test_closing_or_dropping_a_stream_closes_its_connection(n_read: int, closes: bool) -> None:
    server, body = streaming(chunk({"n": 1}), chunk({"n": 2}))
    stream = chat_stream(server)
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
    ids=["error object in a chunk", "error event", "error field, before 2025"],
)
def test_errors_in_a_stream_are_raised(event: bytes) -> None:
    server, body = streaming(chunk({"n": 1}), event, chunk({"n": 2}))
    stream = chat_stream(server)
    assert next(stream) == {"n": 1}
    with pytest.raises(BadRequest) as raised:
        next(stream)
    assert (raised.value.status, raised.value.message) == (400, "too long")
    assert raised.value.type == "invalid_request_error"
    assert body.closed


@pytest.mark.parametrize("event", [b'data: {"error": "broken"}\n\n', b"event: error\ndata: broken\n\n"])
def test_error_without_a_code_is_a_500(event: bytes) -> None:
    server, _ = streaming(event)
    with pytest.raises(ApiError) as raised:
        list(chat_stream(server))
    assert (raised.value.status, raised.value.message) == (500, "broken")


def test_chunk_with_a_null_error_is_no_error() -> None:
    server, _ = streaming(chunk({"n": 1, "error": None}))
    assert list(chat_stream(server)) == [{"n": 1, "error": None}]


@pytest.mark.parametrize("event", [b'data: {"n": 1', b"data: [1]\n\n", b"data: hello\n\n"])
def test_truncated_and_non_object_events_raise_unexpected_reply(event: bytes) -> None:
    server, body = streaming(event)
    with pytest.raises(UnexpectedReply):
        list(chat_stream(server))
    assert body.closed


def test_error_status_of_a_stream_request_raises_at_once() -> None:
    server = answering({"error": {"code": 400, "message": "no", "type": "invalid_request_error"}}, 400)
    with pytest.raises(BadRequest, match="no"):
        chat_stream(server)


def test_reply_that_is_not_an_event_stream_raises_unexpected_reply() -> None:
    server, body = streaming(b'{"choices": []}', content_type="application/json")
    with pytest.raises(UnexpectedReply, match="did not stream") as raised:
        chat_stream(server)
    assert raised.value.body == '{"choices": []}'
    assert body.closed


@pytest.mark.parametrize(
    ("error", "expected"),
    [(httpx.RemoteProtocolError("peer closed"), ServerUnreachable), (httpx.ReadTimeout("slow"), RequestTimedOut)],
)
def test_connection_errors_inside_a_stream_are_raised(error: httpx.RequestError, expected: type[Exception]) -> None:
    class Breaking(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield chunk({"n": 1})
            raise error

    headers = {"content-type": "text/event-stream; charset=utf-8"}
    stream = chat_stream(served_by(lambda _: httpx.Response(200, headers=headers, stream=Breaking())))
    assert next(stream) == {"n": 1}
    with pytest.raises(expected, match=str(error)):
        next(stream)


ENDS = ("\n", "\r", "\r\n")


def events(stream: bytes, *splits: int) -> list[Event]:
    """Decode `stream`, fed in parts that end at `splits`."""
    decoder = SseDecoder()
    ends = [*sorted(splits), len(stream)]
    decoded = []
    for start, end in zip([0, *ends], ends, strict=False):
        decoded += decoder.feed(stream[start:end])
    return decoded + decoder.finish()


def data(*texts: str) -> list[Event]:
    return [Event("message", text) for text in texts]


def test_event_is_returned_once_its_blank_line_arrives() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: one\n") == []
    assert decoder.feed(b"\nda") == data("one")


@pytest.mark.parametrize(
    ("stream", "expected"),
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
def test_events_are_decoded_as_in_the_html_standard(stream: bytes, expected: list[Event]) -> None:
    assert events(stream) == expected


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=4),
    end=st.sampled_from(ENDS),
    splits=st.lists(st.integers(0, 80), max_size=8),
)
def test_events_do_not_depend_on_where_chunks_are_split(texts: list[str], end: str, splits: list[int]) -> None:
    stream = "".join(f"data: {text}{end}: ping{end}{end}" for text in texts).encode()
    assert events(stream, *(min(split, len(stream)) for split in splits)) == data(*texts)
