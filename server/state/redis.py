"""The Redis server that replicas share, and what happens while it cannot be used.

The package `redis` is an extra, imported only if a URL is configured.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from server.errors import ConfigError, Unavailable

T = TypeVar("T")
logger = logging.getLogger(__name__)

SCHEMES = ("redis://", "rediss://", "unix://")
PREFIX = "llamapool:"
"""The start of every key."""
TIMEOUT_S = 2.0
RETRY_S = 2.0
"""After a failed call, calls fail at once for so many seconds, so that requests do not wait for a dead server."""
_DEGRADED = (
    "each replica counts rate limits by itself, responses are not stored, conversations and files cannot be used, "
    "streams are resumed only through the replica that generates them, and usage is kept in memory"
)


class Redis:
    """A pool of connections to one server. Used on the event loop."""

    def __init__(self, url: str) -> None:
        """Read `url`, whose scheme is one of `SCHEMES`. Nothing is connected yet. Raises `ConfigError`."""
        try:
            from redis import exceptions
            from redis.asyncio import Redis as Client
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise ConfigError(
                "server.state: a redis:// URL needs the package redis; pip install 'llamapool[redis]'"
            ) from None
        self._outages = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError, OSError)
        self._refusals = exceptions.RedisError
        try:
            # One retry, as the server may have restarted and closed the connection, but none after a timeout.
            self.client: Any = Client.from_url(
                url,
                protocol=2,  # the shape of some replies depends on it
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 1, (exceptions.ConnectionError,)),
            )
        except ValueError as error:
            raise ConfigError(f"server.state: {error}") from None
        parts = urlsplit(url)
        self._place = parts.netloc.rpartition("@")[2] or parts.path  # without credentials
        self._is_up = True
        self._retry_at = 0.0

    async def call(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return what `work` returns for the client. Raises `Unavailable`; the log says when it begins and ends."""
        if time.monotonic() < self._retry_at:
            raise self._unavailable()
        try:
            found = await work(self.client)
        except self._outages as error:
            self._retry_at = time.monotonic() + RETRY_S
            if self._is_up:
                self._is_up = False
                logger.error("Redis at %s cannot be used (%s): until it is back, %s", self._place, error, _DEGRADED)
            raise self._unavailable() from None
        except self._refusals as error:  # fails this call only: the server answers others
            logger.error("Redis at %s refused a command: %s", self._place, error)
            raise self._unavailable() from None
        if not self._is_up:
            self._is_up = True
            logger.warning("Redis at %s can be used again", self._place)
        return found

    async def do(self, command: str, *args: Any, **options: Any) -> Any:
        """Return the reply to one of the client's commands. Raises `Unavailable`."""
        return await self.call(lambda client: getattr(client, command)(*args, **options))

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"the server's state in Redis at {self._place} cannot be used now; retry later")

    async def close(self) -> None:
        await self.client.aclose()
