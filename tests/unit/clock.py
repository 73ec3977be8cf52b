"""A clock that tests step."""


class Clock:
    """Replaces ``time.monotonic`` or ``time.time``. Tests set `now`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
