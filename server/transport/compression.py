"""gzip for replies to clients that ask for it. Event streams pass untouched, chunk by chunk."""

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

MIN_BYTES = 1024
_THREAD_BYTES = 16 * 1024  # longer ones are compressed in a thread: these take up to 0.8 ms
_LEVEL = 3  # at 9 text and vectors are 4% smaller, and text takes more than twice as long


class Compression:
    """Compresses replies with Starlette's middleware, which knows what must not be compressed."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._gzip = GZipMiddleware(
            app, minimum_size=MIN_BYTES, compresslevel=_LEVEL, thread_minimum_size=_THREAD_BYTES
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of any kind."""
        wanted = scope["type"] == "http" and wants_gzip(scope["headers"])
        await (self._gzip if wanted else self._plain)(scope, receive, send)


def wants_gzip(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether Accept-Encoding names gzip with a weight above 0 (RFC 9110, 12.5.3); ``*`` alone asks for nothing."""
    accepted = b",".join(value for name, value in headers if name == b"accept-encoding")
    for entry in accepted.lower().split(b","):
        coding, _, parameters = entry.partition(b";")
        if coding.strip() == b"gzip":
            return not _is_zero(parameters.replace(b" ", b""))
    return False


def _is_zero(weight: bytes) -> bool:
    return weight.startswith(b"q=0") and not weight.removeprefix(b"q=0").strip(b".0")
