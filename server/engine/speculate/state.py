"""What speculation knows of one sequence."""

from dataclasses import dataclass, field
from random import Random

from server.engine.speculate.chances import Own
from server.engine.speculate.guess import NOTHING, Guess
from server.engine.speculate.lookup import Lookup


@dataclass(eq=False, slots=True)
class Speculating:
    """At most ``most`` tokens are guessed from the text, ``most_drafted`` and no fewer than ``least_drafted`` by a
    draft model, which stops at a token less probable than ``p_min``.

    ``guess`` is what was put into the step that is under way, at ``cost_s`` more seconds, and ``drafted`` says by whom;
    a ``trial`` is made to see whether guessing pays again.
    """

    most: int
    lookup: Lookup | None = None
    most_drafted: int = 0
    least_drafted: int = 0
    p_min: float = 0.0
    own: Own = field(default_factory=Own)
    own_drafted: Own = field(default_factory=Own)
    guess: Guess = NOTHING
    drafted: bool = False
    cost_s: float = 0.0
    trial: bool = False
    dice: Random | None = None  # by which guesses are taken, where that is left to chance (`synthetic`)

    def extend(self, token: int) -> None:
        """`token` was sampled."""
        if self.lookup is not None:
            self.lookup.add(token)
