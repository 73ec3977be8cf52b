"""Rate limits and token budgets of keys, and their headers, with a stepped clock."""

from types import SimpleNamespace
from typing import Any

import pytest

from server.telemetry.record import reason_of
from server.transport.keys import Key, hash_of
from server.transport.limits import RateLimited, Rates
from tests.unit.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1_800_000_000.0)  # 2027-01-15 08:00 UTC
    for module in ("limits.storage.memory", "limits.storage.base", "limits.strategies"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(time=made), raising=False)
    return made


def key(name: str = "ada", **limits: Any) -> Key:
    return Key(name=name, hash=hash_of(name), **limits)


async def test_requests_per_minute_and_concurrent_requests_are_limited(clock: Clock) -> None:
    rates, ada = Rates(clock), key(requests_per_minute=2, max_concurrent_requests=1)
    for _ in range(2):
        async with rates.counted(ada):
            with pytest.raises(RateLimited, match="1 concurrent requests is reached, retry in 1 s") as refused:
                await rates.enter(ada)
            assert reason_of(refused.value) == "rate_limited_concurrent_requests"
        clock.now += 10
    for _ in range(2):  # a refused request does not count
        with pytest.raises(RateLimited, match="limit of 2 requests per minute is reached, retry in 40 s") as refused:
            await rates.enter(ada)
        assert reason_of(refused.value) == "rate_limited_requests_per_minute"
    await rates.enter(key("bert", requests_per_minute=2))
    clock.now += 41
    await rates.enter(ada)


async def test_key_over_its_token_limit_is_refused_until_the_window_ends(clock: Clock) -> None:
    rates, ada = Rates(clock), key(tokens_per_minute=100)
    for n_tokens in (99, 500):
        await rates.enter(ada)
        rates.charge(ada, n_tokens)
    clock.now += 20
    with pytest.raises(RateLimited, match="100 tokens per minute is reached, retry in 40 s"):
        await rates.enter(ada)
    clock.now += 41
    await rates.enter(ada)


@pytest.mark.parametrize(
    ("spent", "period"), [((9, 9), ""), ((10, 19), "day.* 57600 s"), ((1, 20), "month.* 1440000 s")]
)
async def test_budgets_are_reset_with_the_day_and_the_month(clock: Clock, spent: tuple[int, int], period: str) -> None:
    rates, ada = Rates(clock, lambda _: spent), key(tokens_per_day=10, tokens_per_month=20)
    if not period:
        await rates.enter(ada)
        return
    with pytest.raises(RateLimited, match=f"tokens per {period}") as refused:
        await rates.enter(ada)
    budget, wait = (b"10", b"57600s") if period.startswith("day") else (b"20", b"1440000s")
    assert [value for _, value in rates.headers(refused.value.windows, anthropic=False)] == [budget, b"0", wait]


async def test_remaining_limits_are_sent_in_openai_and_anthropic_headers(clock: Clock) -> None:
    rates, ada = Rates(clock), key(requests_per_minute=5, tokens_per_minute=100)
    rates.charge(ada, 30)
    clock.now += 15
    windows = await rates.enter(ada)
    headers = [b"5", b"4", b"60s", b"100", b"70", b"45s"]
    assert [value for _, value in rates.headers(windows, anthropic=False)] == headers
    found = dict(rates.headers(windows, anthropic=True))
    assert found[b"anthropic-ratelimit-tokens-reset"] == b"2027-01-15T08:01:00Z"
    assert found[b"anthropic-ratelimit-requests-remaining"] == b"4"
