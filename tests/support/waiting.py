"""Wait for conditions without an event."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, within_s: float = 180.0, poll_s: float = 0.02) -> None:
    """Poll until `condition` holds. Raises AssertionError with `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(poll_s)
