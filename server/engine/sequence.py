"""The data the scheduler works on: a sequence is one choice of a request, a slot is where its cells are."""

import math
from dataclasses import dataclass, field
from enum import Enum

from server.constrain.constraint import Constraint
from server.engine.encode import Encoding
from server.engine.generate.text import TextStream
from server.engine.kv.cost import value
from server.engine.kv.disk_cache import Fetch
from server.engine.kv.state import Checkpoints, SlotState, reach
from server.engine.lora import BARE, NEVER, Tuning, reusable
from server.engine.media import Spans, below, check_spans, position, span_at, whole
from server.engine.prefix.hashes import PrefixHashes
from server.engine.request import Adapters, Request, Sink, Timings
from server.engine.runner_api import Sampler
from server.engine.speculate.cost import Speculating


@dataclass(eq=False, slots=True)
class Ticket:
    """A submitted request: where its events go, and whether anybody still wants them.

    ``submitted_at`` is when it came first; for one that was asked of a process that has ended, before it got in line
    here, which is ``waits_since``.

    Each instance may take it from its time in ``ready_at`` on (never: infinity), and where it finds too few cells not
    before ``anyway_at``; it is expected to compute ``n_own`` prompt tokens.
    """

    request: Request
    sink: Sink
    submitted_at: float
    n_open: int = 0  # choices that have not ended
    tuning: Tuning = BARE
    cancelled: bool = False
    ready_at: tuple[float, ...] = (-math.inf,)
    anyway_at: float = -math.inf
    n_own: tuple[int, ...] = (0,)
    instance: int = 0  # where it costs least; who took it, once it does not wait in the `ModelQueue`
    hashes: PrefixHashes = field(default_factory=PrefixHashes)  # of the prompt, as far as the event loop asked for it
    waits_since: float = 0.0

    @property
    def n_to_compute(self) -> int:
        """Prompt tokens, as was estimated when it came."""
        return self.n_own[self.instance]


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
    parking what was generated since. ``base`` is the prompt, or
    what a context shift left, and the output from ``base_output`` on follows it.
    """

    ticket: Ticket
    index: int
    target: list[int] = field(default_factory=list)  # at first the prompt
    request: Request = field(init=False)  # the ticket's
    text: TextStream = field(init=False)
    phase: Phase = Phase.WAITING
    slot: "Slot | None" = None
    output: list[int] = field(default_factory=list)
    sampler: Sampler | None = None
    constraint: Constraint | None = None
    base: list[int] = field(default_factory=list)
    base_output: int = 0
    speculating: Speculating | None = None
    n_taken_back: int = 0  # tokens before its newest one that left the cells with wrong guesses, and come back
    n_draft: int = 0
    n_draft_accepted: int = 0
    parked: SlotState | None = None  # what its cells held when it lost its slot
    fetch: Fetch | None = None  # what it waits for from disk
    marks: tuple[int, ...] = ()  # places in ``target`` at which a step ends and a checkpoint is made
    hashes: PrefixHashes = field(default_factory=PrefixHashes)  # of ``target``
    media: Spans = ()  # in ``content``
    encodings: dict[int, Encoding] = field(default_factory=dict)  # of those that are not in the cells, by their start
    n_faults: int = 0  # refused batches that it was in and had to be computed anew after
    suspect: int = 0  # until so many of its tokens are computed, it decodes alone: it may be the one at fault
    anew: bool = False  # nothing that is kept is of use to it: its logits were no numbers, and that may be why
    n_needed: int = 0  # cells, when it was looked at last
    looked_at: int = -1  # see `Room`, as the next one
    n_passes: int = 0
    n_scored: int = 0  # prompt tokens whose logits were read for ``prompt_logprobs``
    n_cached: int = -1  # prompt tokens that needed no computing; -1 until the first placement
    origin: tuple[str, int, str] = "", -1, ""  # from where these came (`prefix.find.origin_of`)
    placed_at: float = 0.0
    placement_s: float = 0.0  # that bringing its cells to the prompt's beginning took
    prompt_done_at: float = 0.0
    last_token_at: float = 0.0

    def __post_init__(self) -> None:
        """Begin with the prompt."""
        request = self.request = self.ticket.request
        self.target = self.target or request.prompt
        self.base = self.base or self.target
        self.text = TextStream(request.stop, request.n_indent, self.index)
        self.media = self.media or request.media

    @property
    def held(self) -> "Slot":
        """Its slot, where it is known to have one."""
        assert self.slot is not None
        return self.slot

    @property
    def tuning(self) -> Tuning:
        return self.ticket.tuning

    @property
    def shifted(self) -> bool:
        """Whether a context shift has dropped a part of its text."""
        return self.base is not self.request.prompt

    @property
    def came(self) -> tuple[float, int]:
        """When: less for who came earlier."""
        return self.ticket.submitted_at, self.index

    @property
    def next_adapters(self) -> Adapters:
        """The LoRA set that its next token needs."""
        return self.ticket.tuning.at(self.n_computed)

    @property
    def content(self) -> list[int]:
        """Every token that is in the cells or to come there, the last one of the output included."""
        return self.base + self.output[self.base_output :]

    @property
    def n_computed(self) -> int:
        """Tokens of this sequence that are in cells."""
        return len(self.slot.tokens) if self.slot is not None else 0

    @property
    def awaits_media(self) -> bool:
        """Whether it can't go on before a medium is encoded."""
        if not self.encodings or self.phase is not Phase.PREFILL:
            return False
        span = span_at(self.media, self.n_computed)
        if span is None or span.start > self.n_computed:
            return False
        return not self.encodings[span.start].done

    @property
    def pending(self) -> list[int]:
        """What of its output is not in the cells yet."""
        return self.output[-1 - self.n_taken_back :]

    @property
    def unscored(self) -> bool:
        """Whether logits of its prompt's tokens are still to be read."""
        request = self.request
        return request.prompt_logprobs and not self.index and self.n_scored < len(request.prompt)

    @property
    def n_reusable(self) -> int:
        """The most tokens of ``target`` that may come from a cache: whose logits are wanted is decoded."""
        if self.anew:
            return 0
        n = len(self.target) - 1
        return min(n, self.n_scored) if self.unscored else n

    def next_mark(self, start: int, end: int) -> int:
        """Where a run of its tokens from `start` on has to end, at `end` or before."""
        return min((mark for mark in self.marks if start < mark < end), default=end)

    def timings(self, now: float) -> Timings:
        """Counts and milliseconds up to `now`, as llama-server counts them (server-context.cpp, get_timings)."""
        started = self.prompt_done_at or now
        return Timings(
            cache_n=max(self.n_cached, 0),
            prompt_n=len(self.request.prompt) - max(self.n_cached, 0),
            prompt_ms=(started - self.placed_at) * 1e3,
            predicted_n=len(self.output),
            predicted_ms=max(now - started, 1e-6) * 1e3 if self.output else 0.0,
            draft_n=self.n_draft,
            draft_n_accepted=self.n_draft_accepted,
        )


@dataclass(eq=False, slots=True)
class Slot:
    """One native sequence. ``tokens`` are exactly the tokens in its cells, also when nobody holds it; ``media`` are the
    spans that begin in them, of which the last one may be incomplete.

    The first ``n_shared`` of them lie in cells that ``shares_with`` holds, too (unified KV only); the first
    ``n_exact`` are what a fresh computation under ``tuning`` would give, those behind were moved.
    """

    id: int
    tokens: list[int] = field(default_factory=list)
    media: Spans = ()
    sequence: Sequence | None = None
    last_used: float = 0.0
    n_shared: int = 0
    shares_with: "Slot | None" = None  # whose copy it is
    n_pieces: int = 0  # contiguous ones of its unified cells, at most; 0 = not counted
    n_requests: int = 0
    tuning: Tuning = BARE
    n_exact: int = NEVER
    floor: int = 0  # it can be cut to so many tokens and more; to fewer only at a checkpoint
    checkpoints: Checkpoints = ()
    hashes: PrefixHashes = field(default_factory=PrefixHashes)  # of ``tokens``
    last: Sequence | None = None  # who held it last, for GET /slots
    offered: Sequence | None = None  # the last one whose cells were written for other processes

    @property
    def idle(self) -> bool:
        """Nobody holds it; its cells are a cache."""
        return self.sequence is None

    @property
    def ends_inside(self) -> bool:
        """Whether its last medium is incomplete."""
        return bool(self.media) and self.media[-1].end > len(self.tokens)

    @property
    def pos(self) -> int:
        """The position of its next token; inside of a medium, that of the medium's first one."""
        return position(self.media, len(self.tokens)) if self.media else len(self.tokens)

    def value(self, now: float) -> float:
        """What keeping its content is good for."""
        return value(len(self.tokens), now - self.last_used)

    def check(self, n_ctx: int) -> None:
        """That it holds at most `n_ctx` tokens, and what its sequence says; raises AssertionError."""
        assert len(self.tokens) <= n_ctx, f"slot {self.id} holds more than its context"
        assert self.hashes.fits(self.tokens, self.tuning), f"slot {self.id} has another text's hashes"
        check_spans(self.media, self.tokens)
        n_there = 0 if self.shares_with is None else len(self.shares_with.tokens)
        assert 0 <= self.n_shared <= min(len(self.tokens), n_there), f"slot {self.id} shares more than is held"
        assert all(0 < c.n_tokens <= len(self.tokens) for c in self.checkpoints), f"slot {self.id}: checkpoints"
        s = self.sequence
        if s is None:
            return
        assert self.tuning == s.tuning, f"slot {self.id} has another LoRA set than its sequence"
        assert s.slot is self, f"slot {self.id} and its sequence disagree"  # so no sequence holds two
        assert s.phase in (Phase.PREFILL, Phase.DECODE), f"a {s.phase.value} sequence holds slot {self.id}"
        assert self.tokens == s.content[: len(self.tokens)], f"slot {self.id} holds other tokens than its sequence"
        assert self.media == below(s.media, len(self.tokens)), f"slot {self.id} holds other media than its sequence"

    def reusable(self, n: int, wanted: Tuning) -> int:
        """How many of its first `n` tokens a sequence under `wanted` may take over."""
        n = reusable(min(n, self.n_exact), self.tuning, wanted)
        if self.media:
            n = whole(self.media, n)
        return n if not self.floor else reach(n, len(self.tokens), self.floor, [c.n_tokens for c in self.checkpoints])


def log_fields(*requests: Request | None) -> dict[str, str]:
    """What a line of the log says that is about `requests`; for ``extra`` of `logging`."""
    ids = dict.fromkeys(request.log_id or request.id for request in requests if request is not None)
    return {"request": ",".join(ids)} if ids else {}
