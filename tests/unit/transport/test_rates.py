from types import SimpleNamespace

import pytest

from server.transport.keys import Key, KeyLimits
from server.transport.limits import RateLimited, Rates
from tests.unit.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1_800_000_000.0)
    for module in ("limits.storage.memory", "limits.storage.base", "limits.strategies"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(time=made), raising=False)
    return made


def key(name: str = "ada", **limits: int) -> Key:
    return Key(name, name.encode(), limits=KeyLimits(**limits))


def test_requests_of_the_last_minute_are_counted(clock: Clock) -> None:
    rates, ada = Rates(clock), key(requests_per_minute=2)
    for _ in range(2):
        rates.enter(ada)
        rates.leave(ada)
        clock.now += 10
    with pytest.raises(RateLimited, match="limit of 2 requests per minute is reached, retry in 40 s") as refused:
        rates.enter(ada)
    assert refused.value.retry_after_s == 40
    rates.enter(key("bert", requests_per_minute=2))  # others have their own
    clock.now += 41
    rates.enter(ada)


def test_who_has_used_up_his_tokens_waits_for_the_next_minute(clock: Clock) -> None:
    rates, ada = Rates(clock), key(tokens_per_minute=100)
    rates.enter(ada)
    rates.charge(ada, 99)
    rates.enter(ada)
    rates.charge(ada, 500)
    clock.now += 20
    with pytest.raises(RateLimited, match="100 tokens per minute is reached, retry in 40 s"):
        rates.enter(ada)
    clock.now += 41
    rates.enter(ada)


def test_so_many_requests_at_once(clock: Clock) -> None:
    rates, ada = Rates(clock), key(max_concurrent_requests=2)
    rates.enter(ada)
    rates.enter(ada)
    with pytest.raises(RateLimited, match="2 concurrent requests is reached, retry in 1 s"):
        rates.enter(ada)
    rates.leave(ada)
    rates.enter(ada)


def test_a_refused_request_takes_no_place(clock: Clock) -> None:
    rates, ada = Rates(clock), key(max_concurrent_requests=1, requests_per_minute=1)
    rates.enter(ada)
    rates.leave(ada)
    with pytest.raises(RateLimited, match="requests per minute"):
        rates.enter(ada)
    clock.now += 61
    rates.enter(ada)


def test_what_is_left_is_said_in_the_words_of_either_api(clock: Clock) -> None:
    rates, ada = Rates(clock), key(requests_per_minute=5, tokens_per_minute=100)
    rates.enter(ada)
    rates.charge(ada, 30)
    clock.now += 15
    assert dict(rates.headers(ada, anthropic=False)) == {
        b"x-ratelimit-limit-requests": b"5",
        b"x-ratelimit-remaining-requests": b"4",
        b"x-ratelimit-reset-requests": b"45s",
        b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"70",
        b"x-ratelimit-reset-tokens": b"45s",
    }
    assert dict(rates.headers(ada, anthropic=True)) == {
        b"anthropic-ratelimit-requests-limit": b"5",
        b"anthropic-ratelimit-requests-remaining": b"4",
        b"anthropic-ratelimit-requests-reset": b"2027-01-15T08:01:00Z",
        b"anthropic-ratelimit-tokens-limit": b"100",
        b"anthropic-ratelimit-tokens-remaining": b"70",
        b"anthropic-ratelimit-tokens-reset": b"2027-01-15T08:01:00Z",
    }
