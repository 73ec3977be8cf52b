"""What speculation knows of one sequence."""

from dataclasses import dataclass, field

from server.engine.speculation.chances import Own
from server.engine.speculation.guess import NOTHING, Guess
from server.engine.speculation.lookup import Lookup


@dataclass(eq=False, slots=True)
class Speculating:
    """``most`` tokens at once. ``guess`` is what was put into the step that is under way, at ``cost_s`` more seconds;
    a ``trial`` is made to see whether guessing pays again."""

    most: int
    lookup: Lookup | None
    own: Own = field(default_factory=Own)
    guess: Guess = NOTHING
    cost_s: float = 0.0
    trial: bool = False

    def extend(self, token: int) -> None:
        """`token` was sampled."""
        if self.lookup is not None:
            self.lookup.extend((token,))
