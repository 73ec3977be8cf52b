"""The data the scheduler works on: a sequence is one choice of a request, a slot is where its cells are."""

from dataclasses import dataclass, field
from enum import Enum

from server.engine.protocols import Sampler
from server.engine.request import Constraint, Request, Sink, Timings
from server.engine.text import TextStream


@dataclass(eq=False, slots=True)
class Ticket:
    """A submitted request: where its events go, and whether anybody still wants them."""

    request: Request
    sink: Sink
    submitted_at: float
    n_open: int = 0  # choices that have not ended
    cancelled: bool = False


class Phase(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"  # for a slot
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice of a request.

    ``target`` is what must be in the cells before the next token can be sampled: the prompt, and after a
    parking what was generated since. ``saved`` is the state of a parked sequence.
    """

    ticket: Ticket
    index: int
    text: TextStream
    target: list[int]
    phase: Phase = Phase.WAITING
    slot: "Slot | None" = None
    output: list[int] = field(default_factory=list)
    sampler: Sampler | None = None
    constraint: Constraint | None = None
    saved: bytes | None = None
    saved_tokens: list[int] = field(default_factory=list)
    n_faults: int = 0  # refused batches that it was in and had to be computed anew after
    n_cached: int = -1  # prompt tokens that needed no computing; -1 until the first placement
    placed_at: float = 0.0
    prompt_done_at: float = 0.0
    last_token_at: float = 0.0

    @property
    def request(self) -> Request:
        """The request that this is a choice of."""
        return self.ticket.request

    @property
    def n_computed(self) -> int:
        """Tokens of this sequence that are in cells."""
        return len(self.slot.tokens) if self.slot is not None else 0

    def timings(self, now: float) -> Timings:
        """Counts and milliseconds up to `now`, as llama-server counts them (server-context.cpp, get_timings)."""
        started = self.prompt_done_at or now
        return Timings(
            cache_n=max(self.n_cached, 0),
            prompt_n=len(self.request.prompt) - max(self.n_cached, 0),
            prompt_ms=(started - self.placed_at) * 1e3,
            predicted_n=len(self.output),
            predicted_ms=max(now - started, 1e-6) * 1e3 if self.output else 0.0,
        )


@dataclass(eq=False, slots=True)
class Slot:
    """One native sequence. ``tokens`` are exactly the tokens in its cells, also when nobody holds it.

    ``n_shared`` of them lie in cells that another slot held when they were copied (unified KV only).
    """

    id: int
    tokens: list[int] = field(default_factory=list)
    sequence: Sequence | None = None
    last_used: float = 0.0
    n_shared: int = 0
    n_requests: int = 0

    @property
    def idle(self) -> bool:
        """Nobody holds it; its cells are a cache."""
        return self.sequence is None
