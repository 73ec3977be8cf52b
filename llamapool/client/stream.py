"""A streamed reply: an iterator of dicts that owns its connection."""

import json
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self

import httpx

from llamapool.client.errors import RequestTimedOut, ServerUnreachable, UnexpectedReply, api_error
from llamapool.client.sse import Event, SseDecoder

DONE = "[DONE]"  # the last event of OpenAI's streams; llama-server's native streams have none


class EventStream(Iterator[dict[str, Any]]):
    """An iterator of the stream's events as dicts.

    The server stops generating when the connection closes: at the end of a ``with`` block, by `close`, or when the
    stream is garbage collected. Raises `ApiError` for an error in the stream, `ServerUnreachable` if the connection
    breaks, and `UnexpectedReply` for an event that this API does not have.
    """

    def __init__(self, response: httpx.Response) -> None:
        """Wrap `response`, whose body must be unread."""
        self._events = _objects(response)
        self._closed = weakref.finalize(self, response.close)
        self._closed.atexit = False

    def __next__(self) -> dict[str, Any]:
        return next(self._events)

    def close(self) -> None:
        """Close the connection and end the iterator. May be called several times."""
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
            done = done or event.data == DONE  # the rest is read and dropped, so that the connection can be reused
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
        value = json.loads(event.data)
    except ValueError:
        if event.name == "error":
            raise api_error(None, event.data) from None
        raise UnexpectedReply("an event of the stream is not JSON, or was cut", event.data) from None
    if event.name == "error" or (isinstance(value, dict) and value.get("error")):
        raise api_error(None, value)
    if not isinstance(value, dict):
        raise UnexpectedReply("an event of the stream is not a JSON object", value)
    return value


@contextmanager
def connection_errors() -> Iterator[None]:
    """Convert httpx's request errors to `RequestTimedOut` or `ServerUnreachable`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise RequestTimedOut(_message(error)) from error
    except httpx.RequestError as error:
        raise ServerUnreachable(_message(error)) from error


def _message(error: httpx.RequestError) -> str:
    """Return the error's message with its URL, because httpx often has only a class name."""
    return f"{error.request.method} {error.request.url}: {str(error) or type(error).__name__}"
