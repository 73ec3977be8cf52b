"""Is the server up, and waiting until it is."""

from collections.abc import Callable

import httpx
import pytest

from llamapool.client import HealthStatus, ServerUnreachable, server_state
from tests.unit.client.answers import answering, served_by


class Clock:
    """Time that passes in `sleep` only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(server_state, "time", found)
    return found


def loading() -> httpx.Response:
    return httpx.Response(503, json={"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}})


def ready() -> httpx.Response:
    return httpx.Response(200, json={"status": "ok"})


def refused() -> httpx.Response:
    raise httpx.ConnectError("refused")


def in_turn(*answers: Callable[[], httpx.Response]) -> Callable[[httpx.Request], httpx.Response]:
    """A server that gives these answers, the last one for ever."""
    left = list(answers)
    return lambda _: (left.pop(0) if len(left) > 1 else left[0])()


def test_a_server_that_is_up() -> None:
    assert answering({"status": "ok"}).client.health() == HealthStatus("ok")
    counts = {"status": "ok", "slots_idle": 3, "slots_processing": 1}
    assert answering(counts).client.health() == HealthStatus("ok", 3, 1)
    assert answering({"status": "ok"}).client.is_ready()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, "loading"),
        (503, {"status": "loading model"}, "loading"),
        (503, {"error": {"code": 503, "message": "model 'a' failed to load: no memory"}}, "error"),
        (503, {"status": "no slot available", "slots_idle": 0, "slots_processing": 2}, "error"),
        (500, {"error": {"message": "Loading model"}}, "error"),
        (502, "<html>Bad Gateway</html>", "error"),
        (401, {"error": {"code": 401, "message": "Invalid API Key"}}, "error"),
    ],
)
def test_a_server_that_is_not(status: int, body: object, expected: str) -> None:
    health = answering(body, status).client.health()
    assert health.status == expected
    assert health.raw == body
    assert not answering(body, status).client.is_ready()


def test_old_servers_count_their_slots_in_an_error_too() -> None:
    health = answering({"status": "no slot available", "slots_idle": 0, "slots_processing": 2}, 503).client.health()
    assert (health.slots_idle, health.slots_processing) == (0, 2)


def test_no_server_is_not_ready_and_has_no_health() -> None:
    asked = served_by(in_turn(refused))
    assert not asked.client.is_ready()
    with pytest.raises(ServerUnreachable):
        asked.client.health()


def test_waiting_goes_on_until_the_server_is_ready(clock: Clock) -> None:
    asked = served_by(in_turn(refused, loading, ready))
    assert asked.client.wait_until_ready(timeout=10.0, poll_interval=0.5)
    assert clock.slept == [0.5, 0.5]


def test_waiting_ends_with_its_time(clock: Clock) -> None:
    asked = served_by(in_turn(loading))
    assert not asked.client.wait_until_ready(timeout=1.2, poll_interval=0.5)
    assert clock.slept == pytest.approx([0.5, 0.5, 0.2])
    assert len(asked.requests) == 4


def test_a_server_is_asked_at_least_once(clock: Clock) -> None:
    assert served_by(in_turn(ready)).client.wait_until_ready(timeout=0.0)
    assert not served_by(in_turn(loading)).client.wait_until_ready(timeout=0.0)
    assert clock.slept == []


def test_a_server_that_hangs_does_not_outlast_the_wait(clock: Clock) -> None:
    asked = served_by(in_turn(ready))
    asked.client.wait_until_ready(timeout=7.0, poll_interval=0.5)
    assert set(asked.last.extensions["timeout"].values()) == {7.0}
