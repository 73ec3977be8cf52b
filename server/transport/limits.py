"""Limits of requests: rates of a key, request bodies in memory, and connections.

The package `limits` counts rates, in memory or in the Redis that replicas share. It is imported when the first key has
limits.

Requests are counted when they arrive, over the last minute. Tokens are counted after prefill and decode. A key that has
used up its tokens is refused until the next minute starts; running requests continue.
"""

import asyncio
import math
import resource
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from server.errors import Unavailable
from server.state.redis import PREFIX, Redis
from server.transport.cors import ReplyHeaders
from server.transport.keys import Key
from server.transport.options import MAX_CONNECTIONS

if TYPE_CHECKING:
    from limits import RateLimitItem as Item

T = TypeVar("T")
Limiters = Mapping[str, Any]
"""The counters of requests and of tokens."""


class Window(NamedTuple):
    """A limit, the remaining amount, and the Unix time at which it is reset."""

    limit: int
    remaining: int
    reset_time: float


Windows = Mapping[str, Window]
"""The windows of the limits of requests and tokens."""


_REQUESTS, _TOKENS = "requests", "tokens"
_CONCURRENT_RETRY_S = 1  # Retry-After if the limit of concurrent requests is reached


class RateLimited(Unavailable):
    """A limit of the key is reached (HTTP 429). The `outcome` in logs and metrics names the `unit`."""

    def __init__(self, unit: str, limit: int, retry_after_s: float, windows: Windows | None = None) -> None:
        self.windows: Windows = windows or {}
        self.outcome = f"rate_limited_{unit.replace(' ', '_')}"
        super().__init__(f"this key's limit of {limit} {unit} is reached", max(math.ceil(retry_after_s), 1))


class Rates:
    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        spent: Callable[[str], tuple[int, int]] = lambda _: (0, 0),
        redis: Redis | None = None,
    ) -> None:
        """`clock` returns Unix seconds. `spent` returns the tokens that a key has used today and this month (UTC).

        With `redis` all replicas share the limits per minute. Each replica counts concurrent requests by itself, and
        everything while Redis is not available.
        """
        self._clock, self._spent, self._redis = clock, spent, redis
        self._running: Counter[str] = Counter()
        self._charging: set[asyncio.Task[object]] = set()

    @cached_property
    def _local(self) -> Limiters:
        from limits import strategies
        from limits.storage import MemoryStorage

        return _limiters(strategies, MemoryStorage())

    @cached_property
    def _shared(self) -> Limiters:
        from limits.aio import strategies
        from limits.aio.storage import RedisStorage

        assert self._redis is not None
        pool = self._redis.client.connection_pool
        prefix = PREFIX + "limits"
        storage = RedisStorage("async+redis://", implementation="redispy", key_prefix=prefix, connection_pool=pool)
        return _limiters(strategies, storage)

    async def _count(self, work: Callable[[Limiters], Awaitable[T]]) -> T:
        if self._redis is not None:
            try:
                return await self._redis.call(lambda _: work(self._shared))
            except RateLimited:
                raise
            except Unavailable:  # logged
                pass
        return await work(self._local)

    async def enter(self, key: Key) -> Windows:
        """Count a new request; call `leave` at its end. Returns the remaining amounts for `headers`.

        Raises `RateLimited`; then nothing is counted.
        """
        limit = key.max_concurrent_requests
        if 0 < limit <= self._running[key.name]:
            raise RateLimited("concurrent requests", limit, _CONCURRENT_RETRY_S)
        self.check_budgets(key)
        self._running[key.name] += 1
        try:
            return await self._count(lambda limiters: self._enter_windows(limiters, key)) if key.is_limited else {}
        except BaseException:
            self.leave(key)
            raise

    async def _enter_windows(self, limiters: Limiters, key: Key) -> Windows:
        windows: dict[str, Window] = {}
        for unit, limit in ((_TOKENS, key.tokens_per_minute), (_REQUESTS, key.requests_per_minute)):
            if limit:
                limiter, item = limiters[unit], _per_minute(limit)
                is_free = await _awaited((limiter.hit if unit == _REQUESTS else limiter.test)(item, unit, key.name))
                stats = await _awaited(limiter.get_window_stats(item, unit, key.name))
                windows[unit] = window = Window(limit, stats.remaining, stats.reset_time)
                if not is_free:
                    raise RateLimited(f"{unit} per minute", limit, window.reset_time - self._clock(), windows)
        return windows

    def check_budgets(self, key: Key) -> None:
        """Raise `RateLimited` if the key has used up its tokens of this day or month."""
        if not (key.tokens_per_day or key.tokens_per_month):
            return
        spent_today, spent_this_month = self._spent(key.name)
        now = datetime.fromtimestamp(self._clock(), UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        tomorrow = midnight + timedelta(days=1)
        next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        for period, budget, spent, end in (
            ("month", key.tokens_per_month, spent_this_month, next_month),
            ("day", key.tokens_per_day, spent_today, tomorrow),
        ):
            if 0 < budget <= spent:
                windows = {_TOKENS: Window(budget, 0, end.timestamp())}
                raise RateLimited(f"tokens per {period}", budget, (end - now).total_seconds(), windows)

    def leave(self, key: Key) -> None:
        """Stop counting a concurrent request that `enter` counted."""
        self._running[key.name] -= 1
        if not self._running[key.name]:
            del self._running[key.name]

    @asynccontextmanager
    async def counted(self, key: Key) -> AsyncGenerator[None, None]:
        """Count a request that the server makes for a client while the context lasts. Raises `RateLimited`."""
        await self.enter(key)
        try:
            yield
        finally:
            self.leave(key)

    def charge(self, key: Key, n_tokens: int) -> None:
        """Count tokens against the limit per minute."""
        if not (key.tokens_per_minute and n_tokens):
            return
        item = _per_minute(key.tokens_per_minute)
        if self._redis is None:
            self._local[_TOKENS].hit(item, _TOKENS, key.name, cost=n_tokens)
            return
        counting = self._count(lambda limiters: _awaited(limiters[_TOKENS].hit(item, _TOKENS, key.name, cost=n_tokens)))
        task: asyncio.Task[object] = asyncio.create_task(counting, name="rate limits")
        self._charging.add(task)
        task.add_done_callback(self._charging.discard)

    def headers(self, windows: Windows, *, anthropic: bool) -> ReplyHeaders:
        """Return reply headers with the remaining amounts of `enter`, under OpenAI's names or Anthropic's."""
        found: ReplyHeaders = []
        for unit, window in sorted(windows.items()):
            reset_s = max(window.reset_time - self._clock(), 0.0)
            reset = f"{math.ceil(reset_s)}s"
            if anthropic:
                reset = datetime.fromtimestamp(math.ceil(self._clock() + reset_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            values = {"limit": str(window.limit), "remaining": str(max(window.remaining, 0)), "reset": reset}
            for name, value in values.items():
                header = f"anthropic-ratelimit-{unit}-{name}" if anthropic else f"x-ratelimit-{name}-{unit}"
                found.append((header.encode(), value.encode()))
        return found


def _limiters(strategies: Any, storage: Any) -> Limiters:
    # Only a fixed window counts beyond the limit.
    return {_REQUESTS: strategies.MovingWindowRateLimiter(storage), _TOKENS: strategies.FixedWindowRateLimiter(storage)}


async def _awaited(found: Any) -> Any:
    """Return the result of a limiter. Only the limiters for Redis are asynchronous."""
    return await found if isawaitable(found) else found


def _per_minute(limit: int) -> "Item":
    from limits import RateLimitItemPerMinute

    return RateLimitItemPerMinute(limit)


class TooManyBodies(Unavailable):
    """The bodies of all requests together are over the server's limit (HTTP 503)."""


SPARE_CONNECTIONS = 64
"""Connections above the limit whose requests get an explained 503. uvicorn itself refuses requests beyond these."""
_OTHER_DESCRIPTORS = 256  # models, files, processes, logs


class TooManyConnections(Unavailable):
    """The number of requests in progress has reached the connection limit (HTTP 503)."""


def connection_limit(configured: int) -> int:
    """Return the connection limit of this process; `configured` 0 = as many as file descriptors allow, up to
    `MAX_CONNECTIONS`. Raises the soft descriptor limit if that is needed and possible.
    """
    limit = configured or MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limit
    needed = limit + _OTHER_DESCRIPTORS
    needed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    n_descriptors = max(soft, needed)
    return min(limit, max(n_descriptors - _OTHER_DESCRIPTORS, n_descriptors // 2))
