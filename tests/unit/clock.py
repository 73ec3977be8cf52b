"""Time that passes when a test says so."""


class Clock:
    """In place of ``time.monotonic`` or ``time.time``; `now` is set."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
