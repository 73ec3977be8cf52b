"""Limits of requests: rates of a key, request bodies in memory, and connections.

The package `limits` counts rates, in memory or in the Redis that replicas share. It is imported when the first key has
limits.

Requests are counted when they arrive, over the last minute. Tokens are counted after prefill and decode. A key that has
used up its tokens is refused until the next minute begins; running requests are never cut off.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from server.errors import Unavailable
from server.state.redis import PREFIX, Redis
from server.transport.cors import ReplyHeaders
from server.transport.keys import Key
from server.transport.options import MAX_CONNECTIONS

if TYPE_CHECKING:
    from limits import RateLimitItem as Item
    from limits.storage import MemoryStorage
    from limits.strategies import RateLimiter

Windows = Mapping[str, Any]
"""What is left of the limits of requests and tokens, and until when (`limits.WindowStats`)."""


_REQUESTS, _TOKENS = "requests", "tokens"
_AGAIN_S = 1  # Retry-After if the limit of concurrent requests is reached


class RateLimited(Unavailable):
    """A limit of the key is reached (HTTP 429)."""

    def __init__(self, what: str, limit: int, retry_after_s: int) -> None:
        super().__init__(f"this key's limit of {limit} {what} is reached, retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class Rates:
    """Counts requests and tokens per key."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        spent: Callable[[str], tuple[int, int]] = lambda _: (0, 0),
        redis: Redis | None = None,
    ) -> None:
        """`clock` returns Unix seconds. `spent` returns the tokens that a key has used today and this month (UTC).

        With `redis` the limits of a minute are those of all replicas together. While it cannot be used, and for
        concurrent requests always, each replica counts by itself.
        """
        self._clock, self._spent = clock, spent
        self._running: Counter[str] = Counter()
        self._shared = None if redis is None else SharedRates(redis, clock)
        self._charging: set[asyncio.Task[None]] = set()

    @cached_property
    def _storage(self) -> "MemoryStorage":
        from limits.storage import MemoryStorage

        return MemoryStorage()  # it starts a thread, so only if a key has limits

    @cached_property
    def _requests(self) -> "RateLimiter":
        from limits.strategies import MovingWindowRateLimiter

        return MovingWindowRateLimiter(self._storage)

    @cached_property
    def _tokens(self) -> "RateLimiter":
        from limits.strategies import FixedWindowRateLimiter

        return FixedWindowRateLimiter(self._storage)  # counts beyond the limit, too

    def enter(self, key: Key) -> None:
        """Count a request that begins; call `leave` at its end. Raises `RateLimited`, and then counts nothing.

        Call `enter_shared` after it if `is_shared`.
        """
        limits = key.limits
        if 0 < limits.max_concurrent_requests <= self._running[key.name]:
            raise RateLimited("concurrent requests", limits.max_concurrent_requests, _AGAIN_S)
        self._check_budgets(key)
        if self._shared is None:
            self._enter_windows(key)
        self._running[key.name] += 1

    @property
    def is_shared(self) -> bool:
        """Whether replicas share the limits of a minute."""
        return self._shared is not None

    async def enter_shared(self, key: Key) -> Windows | None:
        """Count a request that `enter` has admitted among those of all replicas. Return what is left for `headers`.

        Raises `RateLimited`.
        """
        if self._shared is not None:
            try:
                return await self._shared.enter(key)
            except RateLimited:
                raise
            except Unavailable:  # logged
                self._enter_windows(key)
        return None

    def _enter_windows(self, key: Key) -> None:
        limits = key.limits
        if limits.tokens_per_minute:
            used_up = _a_minute(limits.tokens_per_minute)
            if not self._tokens.test(used_up, _TOKENS, key.name):
                raise RateLimited(
                    "tokens per minute", limits.tokens_per_minute, self._wait_s(self._tokens, used_up, key)
                )
        if limits.requests_per_minute:
            item = _a_minute(limits.requests_per_minute)
            if not self._requests.hit(item, _REQUESTS, key.name):
                wait_s = self._wait_s(self._requests, item, key)
                raise RateLimited("requests per minute", limits.requests_per_minute, wait_s)

    def _check_budgets(self, key: Key) -> None:
        limits = key.limits
        if not (limits.tokens_per_day or limits.tokens_per_month):
            return
        of_day, of_month = self._spent(key.name)
        now = datetime.fromtimestamp(self._clock(), UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if 0 < limits.tokens_per_month <= of_month:
            next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
            raise RateLimited(
                "tokens per month", limits.tokens_per_month, math.ceil((next_month - now).total_seconds())
            )
        if 0 < limits.tokens_per_day <= of_day:
            tomorrow = midnight + timedelta(days=1)
            raise RateLimited("tokens per day", limits.tokens_per_day, math.ceil((tomorrow - now).total_seconds()))

    def leave(self, key: Key) -> None:
        """End the counting of a request that `enter` has counted."""
        self._running[key.name] -= 1
        if not self._running[key.name]:
            del self._running[key.name]

    def charge(self, key: Key, n_tokens: int) -> None:
        """Count tokens of a prompt or a reply."""
        if not (key.limits.tokens_per_minute and n_tokens):
            return
        if self._shared is None:
            self._charge(key, n_tokens)
        else:
            task = asyncio.create_task(self._charge_shared(self._shared, key, n_tokens), name="shared rate limits")
            self._charging.add(task)
            task.add_done_callback(self._charging.discard)

    def _charge(self, key: Key, n_tokens: int) -> None:
        self._tokens.hit(_a_minute(key.limits.tokens_per_minute), _TOKENS, key.name, cost=n_tokens)

    async def _charge_shared(self, shared: "SharedRates", key: Key, n_tokens: int) -> None:
        try:
            await shared.charge(key, n_tokens)
        except Unavailable:
            self._charge(key, n_tokens)

    def headers(self, key: Key, *, anthropic: bool, windows: Windows | None = None) -> ReplyHeaders:
        """Return reply headers with the remaining amounts, under OpenAI's names or Anthropic's.

        `windows` is what `enter_shared` returned.
        """
        found: ReplyHeaders = []
        for what, limiter, limit in (
            (_REQUESTS, "_requests", key.limits.requests_per_minute),
            (_TOKENS, "_tokens", key.limits.tokens_per_minute),
        ):
            if not limit:
                continue
            used: RateLimiter = getattr(self, limiter)
            stats = windows[what] if windows else used.get_window_stats(_a_minute(limit), what, key.name)
            left, reset_s = max(stats.remaining, 0), max(stats.reset_time - self._clock(), 0.0)
            if anthropic:
                at = datetime.fromtimestamp(math.ceil(self._clock() + reset_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                texts = {f"anthropic-ratelimit-{what}-{name}": v for name, v in _named(limit, left, at)}
            else:
                texts = {f"x-ratelimit-{name}-{what}": v for name, v in _named(limit, left, f"{math.ceil(reset_s)}s")}
            found += [(name.encode(), value.encode()) for name, value in texts.items()]
        return found

    def _wait_s(self, limiter: "RateLimiter", item: "Item", key: Key) -> int:
        what = _TOKENS if limiter is self._tokens else _REQUESTS
        return max(math.ceil(limiter.get_window_stats(item, what, key.name).reset_time - self._clock()), 1)


class SharedRates:
    """The limits of a minute, counted in Redis. Every method raises `Unavailable` while Redis cannot be used."""

    def __init__(self, redis: Redis, clock: Callable[[], float]) -> None:
        self._redis, self._clock = redis, clock

    @cached_property
    def _limiters(self) -> tuple[Any, Any]:
        """The counters of tokens and of requests."""
        from limits.aio.storage import RedisStorage
        from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

        storage = RedisStorage(
            "async+redis://",
            implementation="redispy",
            key_prefix=PREFIX + "limits",
            connection_pool=self._redis.client.connection_pool,
        )
        return FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)

    async def enter(self, key: Key) -> Windows:
        """Count a request. Return what is left. Raises `RateLimited`."""

        async def work(_: object) -> Windows:
            tokens, requests = self._limiters
            windows: dict[str, Any] = {}
            for name, limit, limiter, count in (
                (_TOKENS, key.limits.tokens_per_minute, tokens, tokens.test),
                (_REQUESTS, key.limits.requests_per_minute, requests, requests.hit),
            ):
                if limit:
                    item = _a_minute(limit)
                    is_left = await count(item, name, key.name)
                    windows[name] = await limiter.get_window_stats(item, name, key.name)
                    if not is_left:
                        raise self._refusal(name, limit, windows[name])
            return windows

        return await self._redis.call(work)

    def _refusal(self, what: str, limit: int, window: Any) -> RateLimited:
        return RateLimited(f"{what} per minute", limit, max(math.ceil(window.reset_time - self._clock()), 1))

    async def charge(self, key: Key, n_tokens: int) -> None:
        """Count tokens."""
        item = _a_minute(key.limits.tokens_per_minute)
        await self._redis.call(lambda _: self._limiters[0].hit(item, _TOKENS, key.name, cost=n_tokens))


def _a_minute(limit: int) -> "Item":
    from limits import RateLimitItemPerMinute

    return RateLimitItemPerMinute(limit)


def _named(limit: int, left: int, reset: str) -> list[tuple[str, str]]:
    return [("limit", str(limit)), ("remaining", str(left)), ("reset", reset)]


BODIES_RETRY_S = 5


class TooManyBodies(Unavailable):
    """The bodies of all requests together are over the server's limit (HTTP 503)."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the bodies of the running requests would exceed the limit of {limit} bytes, retry in {BODIES_RETRY_S} s"
        )
        self.retry_after_s = BODIES_RETRY_S


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
    def limit(self) -> int:
        """The limit for all requests together."""
        return self._memory.limit

    @property
    def n_bytes(self) -> int:
        """The bytes of this request."""
        return self._held

    def give_back(self, n_bytes: int) -> None:
        """Stop counting `n_bytes` of those that were taken."""
        self._memory.held -= n_bytes
        self._held -= n_bytes

    def release(self) -> None:
        """Stop counting all bytes of this request."""
        self.give_back(self._held)


SPARE_CONNECTIONS = 64
"""Connections above the limit whose requests get a 503 that says why. uvicorn refuses requests beyond these."""
_CONNECTIONS_RETRY_S = 1
_OTHER_DESCRIPTORS = 256  # models, files, processes, logs


class TooManyConnections(Unavailable):
    """As many requests are in progress as there may be connections (HTTP 503)."""

    def __init__(self) -> None:
        super().__init__(f"there are too many connections, retry in {_CONNECTIONS_RETRY_S} s")
        self.retry_after_s = _CONNECTIONS_RETRY_S


def connection_limit(configured: int) -> int:
    """Return the connection limit of this process; `configured` 0 = as many as file descriptors allow, up to
    `MAX_CONNECTIONS`. Raises the soft descriptor limit if that is needed and possible.
    """
    wanted = configured or MAX_CONNECTIONS
    n_descriptors = _raise_descriptor_limit(wanted + _OTHER_DESCRIPTORS)
    return min(wanted, max(n_descriptors - _OTHER_DESCRIPTORS, n_descriptors // 2))


def _raise_descriptor_limit(wanted: int) -> int:
    """Return the number of descriptors that this process may open, after raising it to `wanted` if possible."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(soft, raised)
