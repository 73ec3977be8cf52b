"""Limits of keys: requests and tokens a minute, and requests at once. `limits` counts; used on the event loop, and
imported once a key has limits.

Requests are counted as they come, over the last minute. Tokens are known once a prompt is read and a reply written, so
whoever has used up his minute's is refused until the next begins; what runs is never cut.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from server.errors import Unavailable
from server.transport.access.cors import ReplyHeaders
from server.transport.access.keys import Key

if TYPE_CHECKING:
    from limits import RateLimitItem as Item
    from limits.storage import MemoryStorage
    from limits.strategies import RateLimiter

PLACE = "llamapool.place"
"""A key in the ASGI scope of a request that has entered: a function that leaves. Who takes it out calls it later, for
work that goes on without its client."""
_REQUESTS, _TOKENS = "requests", "tokens"
_AGAIN_S = 1  # until a place of those at once may be free


class RateLimited(Unavailable):
    """The key's limit is used up (HTTP 429)."""

    def __init__(self, what: str, limit: int, retry_after_s: int) -> None:
        super().__init__(f"this key's limit of {limit} {what} is reached, retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class Rates:
    """What each key has used lately."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock  # what `limits` has: unix seconds
        self._running: Counter[str] = Counter()

    @cached_property
    def _storage(self) -> "MemoryStorage":
        from limits.storage import MemoryStorage

        return MemoryStorage()  # starts a thread: only where somebody has limits

    @cached_property
    def _requests(self) -> "RateLimiter":
        from limits.strategies import MovingWindowRateLimiter

        return MovingWindowRateLimiter(self._storage)

    @cached_property
    def _tokens(self) -> "RateLimiter":
        from limits.strategies import FixedWindowRateLimiter

        return FixedWindowRateLimiter(self._storage)  # counts whatever it comes to

    def enter(self, key: Key) -> None:
        """A request begins; `leave` is to be called at its end. Raises `RateLimited`, and then nothing has begun."""
        limits = key.limits
        if limits.at_once and self._running[key.name] >= limits.at_once:
            raise RateLimited("requests at once", limits.at_once, _AGAIN_S)
        if limits.tokens_per_minute:
            used_up = _a_minute(limits.tokens_per_minute)
            if not self._tokens.test(used_up, _TOKENS, key.name):
                raise RateLimited("tokens a minute", limits.tokens_per_minute, self._wait_s(self._tokens, used_up, key))
        if limits.requests_per_minute:
            item = _a_minute(limits.requests_per_minute)
            if not self._requests.hit(item, _REQUESTS, key.name):
                wait_s = self._wait_s(self._requests, item, key)
                raise RateLimited("requests a minute", limits.requests_per_minute, wait_s)
        self._running[key.name] += 1

    def leave(self, key: Key) -> None:
        """A request that has entered is over."""
        self._running[key.name] -= 1
        if not self._running[key.name]:
            del self._running[key.name]

    def charge(self, key: Key, n_tokens: int) -> None:
        """So many tokens were read or written for it."""
        if key.limits.tokens_per_minute and n_tokens:
            self._tokens.hit(_a_minute(key.limits.tokens_per_minute), _TOKENS, key.name, cost=n_tokens)

    def headers(self, key: Key, *, anthropic: bool) -> ReplyHeaders:
        """What is left, in the words that OpenAI's clients know, or Anthropic's."""
        found: ReplyHeaders = []
        for what, limiter, limit in (
            (_REQUESTS, "_requests", key.limits.requests_per_minute),
            (_TOKENS, "_tokens", key.limits.tokens_per_minute),
        ):
            if not limit:
                continue
            used: RateLimiter = getattr(self, limiter)
            stats = used.get_window_stats(_a_minute(limit), what, key.name)
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


def _a_minute(limit: int) -> "Item":
    from limits import RateLimitItemPerMinute

    return RateLimitItemPerMinute(limit)


def _named(limit: int, left: int, reset: str) -> list[tuple[str, str]]:
    return [("limit", str(limit)), ("remaining", str(left)), ("reset", reset)]
