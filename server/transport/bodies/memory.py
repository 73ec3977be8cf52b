"""Limits the bytes of request bodies in memory. A body is held until its request ends: `transport.gateway` creates and
releases each request's share, `transport.bodies.read` adds bytes as they arrive.
"""

from server.errors import Unavailable

BODY_SHARE = "llamapool.body_share"
"""The key of a request's `BodyShare` in its ASGI scope."""
RETRY_AFTER_S = 5


class TooManyBodies(Unavailable):
    """The bodies of all requests together are over the server's limit (HTTP 503)."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the bodies of the running requests would exceed the limit of {limit} bytes, retry in {RETRY_AFTER_S} s"
        )
        self.retry_after_s = RETRY_AFTER_S


class BodyMemory:
    """The bytes of all requests. Used on the event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> "BodyShare":
        """A new request's part, empty."""
        return BodyShare(self)


class BodyShare:
    """One request's part of the memory."""

    __slots__ = ("_held", "_memory")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._held = 0

    def take(self, n_bytes: int) -> None:
        """Count received bytes. Raises `TooManyBodies`; earlier bytes stay counted until `release`."""
        memory = self._memory
        if memory.held + n_bytes > memory.limit:
            raise TooManyBodies(memory.limit)
        memory.held += n_bytes
        self._held += n_bytes

    @property
    def n_bytes(self) -> int:
        """Of this request."""
        return self._held

    def release(self) -> None:
        """Give back all that was taken."""
        self._memory.held -= self._held
        self._held = 0
