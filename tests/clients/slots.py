"""Watching a server's slots from outside."""

import time
from collections.abc import Callable

from tests.support.real_server import RealServer

DEADLINE_S = 100.0  # for a failure; an answer takes milliseconds
POLL_S = 0.01


def busy_slots(server: RealServer) -> int:
    """How many slots work right now."""
    return sum(slot["is_processing"] for slot in server.get("/slots"))


def metric(server: RealServer, name: str) -> float:
    """The sum over models of one of `/metrics`."""
    lines = server.request("GET", "/metrics").body.decode().splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
    assert values, f"no metric {name}"
    return sum(values)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds; fails with `what` after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(POLL_S)
