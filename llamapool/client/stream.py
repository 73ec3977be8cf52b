"""A streamed reply: an iterator of dicts that owns its connection."""

import json
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self

import httpx

from llamapool.client.errors import RequestTimedOut, ServerUnreachable, UnexpectedReply, api_error
from llamapool.client.sse import Event, SseDecoder

DONE = "[DONE]"  # the last event of OpenAI's streams; llama-server's own end without one


class EventStream(Iterator[dict[str, Any]]):
    """Each event of the stream as a dict.

    The server stops generating when the connection closes: at the end of a ``with`` block, with `close`, or when
    nothing refers to the stream any more. Raises `ApiError` for an error that the server sends in the stream,
    `ServerUnreachable` when the connection breaks and `UnexpectedReply` for what is no event of this API.
    """

    def __init__(self, response: httpx.Response) -> None:
        """Wrap `response`, whose body has not been read."""
        self._events = _objects(response)
        self._closed = weakref.finalize(self, response.close)
        self._closed.atexit = False

    def __next__(self) -> dict[str, Any]:
        return next(self._events)

    def close(self) -> None:
        """Close the connection; the iterator is then at its end. May be called twice."""
        self._events.close()
        self._closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _objects(response: httpx.Response) -> Generator[dict[str, Any], None, None]:
    """Yield the JSON object of each event, up to `DONE` or the end."""
    try:
        done = False
        for event in _events(response):
            done = done or event.data == DONE  # what follows is read and dropped, so that the connection can be reused
            if not done:
                yield _object(event)
    finally:
        response.close()


def _events(response: httpx.Response) -> Iterator[Event]:
    """Yield the events of the body."""
    decoder = SseDecoder()
    with connection_errors():
        for chunk in response.iter_bytes():
            yield from decoder.feed(chunk)
    yield from decoder.finish()


def _object(event: Event) -> dict[str, Any]:
    """Return the event's JSON. Raises the error that it contains."""
    try:
        found = json.loads(event.data)
    except ValueError:
        if event.name == "error":
            raise api_error(None, event.data) from None
        raise UnexpectedReply("an event of the stream is not JSON, or was cut", event.data) from None
    if event.name == "error" or (isinstance(found, dict) and found.get("error")):
        raise api_error(None, found)
    if not isinstance(found, dict):
        raise UnexpectedReply("an event of the stream is not a JSON object", found)
    return found


@contextmanager
def connection_errors() -> Iterator[None]:
    """Turn httpx's errors of a request into `RequestTimedOut` or `ServerUnreachable`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise RequestTimedOut(_words(error)) from error
    except httpx.RequestError as error:
        raise ServerUnreachable(_words(error)) from error


def _words(error: httpx.RequestError) -> str:
    """Return the error with its URL, because httpx often gives only a name."""
    return f"{error.request.method} {error.request.url}: {str(error) or type(error).__name__}"
