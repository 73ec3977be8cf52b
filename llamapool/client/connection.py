"""What httpx raises, in the client's own words."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from llamapool.client.errors import RequestTimedOut, ServerUnreachable


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
