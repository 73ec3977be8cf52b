"""Sessions modelled on published traces. Texts are unique token numbers; sessions that share a prefix have equal ones.

chat      0.45 of the sessions; 16 applications with system prompts of 200 to 1,500 tokens; 3 turns on average, each of
          70 new tokens and a reply of 215; pauses of 20 s. LMSYS-Chat-1M (Zheng et al. 2023, table 1: 69.5 and 214.5
          tokens); turns between its 2.0 and ShareGPT's 3.5.
agent     0.40; 8 applications with tools of 2,000 to 5,000 tokens; 8 turns of 500 new tokens and a reply of 182; pauses
          of 2 s (the tool). Mooncake (Qin et al., FAST 2025), tool&agent trace: 8,596 tokens in, 182 out, 59% shared.
document  0.15; no shared prefix; one turn of 5,000 tokens and a reply of 343. Mooncake, conversation trace: 343 out.

Lengths are log-normal with sigma 1, about that of such traces. Applications are chosen by Zipf's law.
"""

import math
import random
from dataclasses import dataclass

SIGMA = 1.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of session; lengths are means in tokens."""

    name: str
    share: float
    n_apps: int
    system: tuple[int, int]
    turns: float
    text: int
    reply: int
    pause_s: float


KINDS = (
    Kind("chat", 0.45, 16, (200, 1500), 3.0, 70, 215, 20.0),
    Kind("agent", 0.40, 8, (2000, 5000), 8.0, 500, 182, 2.0),
    Kind("document", 0.15, 0, (0, 0), 1.0, 5000, 343, 20.0),
)


@dataclass(eq=False, slots=True)
class Session:
    """A running conversation. Its turns come from its own ``random``, independent of other sessions."""

    kind: Kind
    turns_left: int
    history: list[int]
    random: random.Random
    n_reply: int = 0


class Trace:
    """Sessions from a seed: the same in the same order for every policy."""

    def __init__(self, seed: int, n_ctx: int) -> None:
        self._seed = seed
        self._n_sessions = 0
        self._at = 1
        self._n_ctx = n_ctx
        draw = random.Random(seed)
        self._systems = {
            kind.name: [self.text(draw.randint(*kind.system)) for _ in range(kind.n_apps)] for kind in KINDS
        }

    def text(self, n: int) -> list[int]:
        """Return `n` unique tokens: one number repeated, which saves memory traffic of the CPU."""
        self._at += 1
        return [self._at] * n

    def session(self) -> Session:
        draw = random.Random(f"{self._seed} {self._n_sessions}")
        self._n_sessions += 1
        kind = draw.choices(KINDS, [k.share for k in KINDS])[0]
        turns = 1
        while draw.random() > 1 / kind.turns:
            turns += 1
        systems = self._systems[kind.name]
        system = draw.choices(systems, [1 / (i + 1) for i in range(len(systems))])[0] if systems else []
        return Session(kind, turns, list(system), draw)

    def add_turn(self, session: Session) -> bool:
        """Append the next turn to the session and set its ``n_reply``.

        Returns False if the session is over or its context is full.
        """
        if session.turns_left <= 0:
            return False
        session.turns_left -= 1
        n_text = _length(session, session.kind.text, self._n_ctx // 2)
        session.n_reply = _length(session, session.kind.reply, 2000)
        if len(session.history) + n_text + session.n_reply + 1 > self._n_ctx:
            return False
        session.history += self.text(n_text)
        return True

    def next_of(self, session: Session) -> Session:
        """Return `session` with its next turn, or a new session if it is over."""
        while not self.add_turn(session):
            session = self.session()
        return session


def pause_s(session: Session) -> float:
    """Return the seconds until the next turn or the next session of the user."""
    return session.random.expovariate(1 / session.kind.pause_s)


def _length(session: Session, mean: int, maximum: int) -> int:
    drawn = session.random.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)
    return max(4, min(int(drawn), maximum))
