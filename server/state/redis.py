"""The connection to the Redis server that replicas share, and the handling of its outages.

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
"""The prefix of all keys."""
TIMEOUT_S = 2.0
RETRY_S = 2.0
"""Seconds after a failed call in which calls fail immediately, so that requests do not wait for an outage to end."""
_DEGRADED = (
    "each replica counts rate limits by itself, responses are not stored, conversations and files cannot be used, "
    "streams are resumed only through the replica that generates them, and usage is kept in memory"
)


class Redis:
    """A pool of connections to one server, used on the event loop."""

    def __init__(self, url: str) -> None:
        """Parse `url`, whose scheme is one of `SCHEMES`, without a connection. Raises `ConfigError`."""
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
            # One retry, since a restarted server has closed the connection, but none after a timeout.
            self.client: Any = Client.from_url(
                url,
                protocol=2,  # the types of some replies depend on it
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=Retry(NoBackoff(), 1, (exceptions.ConnectionError,)),
            )
        except ValueError as error:
            raise ConfigError(f"server.state: {error}") from None
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2] or parts.path  # without credentials
        self._is_up = True
        self._retry_at = 0.0

    async def call(self, command: Callable[[Any], Awaitable[T]]) -> T:
        """Return ``command(client)``. Raises `Unavailable`. Log the start and the end of an outage."""
        if time.monotonic() < self._retry_at:
            raise self._unavailable()
        try:
            result = await command(self.client)
        except self._outages as error:
            self._retry_at = time.monotonic() + RETRY_S
            if self._is_up:
                self._is_up = False
                logger.error("Redis at %s cannot be used (%s): until it is back, %s", self._host, error, _DEGRADED)
            raise self._unavailable() from None
        except self._refusals as error:  # the server still answers other calls
            logger.error("Redis at %s refused a command: %s", self._host, error)
            raise self._unavailable() from None
        if not self._is_up:
            self._is_up = True
            logger.warning("Redis at %s can be used again", self._host)
        return result

    async def do(self, command: str, *args: Any, **options: Any) -> Any:
        """Return the reply to a command of the client. Raises `Unavailable`."""
        return await self.call(lambda client: getattr(client, command)(*args, **options))

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"the server's state in Redis at {self._host} cannot be used now; retry later")

    async def close(self) -> None:
        await self.client.aclose()
