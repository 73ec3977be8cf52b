"""The data of the scheduler: a sequence is one choice of a request; a slot is one native sequence with its KV cells."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum

from server.engine.cache.prefix_cache import CachedPrefix, CacheEntry, Fetch
from server.engine.lora import NO_ADAPTERS, AdapterSet
from server.engine.media import Encoding, Spans, below, check_spans, position, span_at
from server.engine.request import Adapters, Request, Sink, State, Timings
from server.engine.runner_api import Sampler
from server.engine.speculate.cost import DraftState
from server.engine.text import TextStream
from server.structured.constraint import Constraint


@dataclass(eq=False, slots=True)
class Ticket:
    """A submitted request and its event sink. ``cancelled``: the state in which its choices end at the next step; its
    sink gets no more events.

    ``submitted_at`` is the time of the first submission. ``waits_since`` is the time when it was queued here; the two
    differ if the request was retried after its worker process ended.
    """

    request: Request
    sink: Sink
    submitted_at: float
    adapter_set: AdapterSet = NO_ADAPTERS
    cancelled: State | None = None
    choices: list["Sequence"] = field(default_factory=list)  # while an instance runs it
    ended: bool = False  # all choices have ended
    instance: int = 0  # the preferred instance; once it is `taken`, the one that took it from the `ModelQueue`
    taken: bool = False
    waits_since: float = 0.0

    @property
    def arrival(self) -> tuple[float, int]:
        """Sort key: an earlier arrival is smaller."""
        return self.submitted_at, 0


class Phase(Enum):
    """The life cycle of a sequence."""

    WAITING = "waiting"  # for a slot
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice of a request.

    ``target`` is what must be in the KV cells before the next token can be sampled: the prompt, and after a
    preemption also the tokens generated before it. ``base`` is the prompt, or the tokens that a context shift has kept;
    the output from ``base_output`` on follows it.
    """

    ticket: Ticket
    index: int
    request: Request = field(init=False)  # the ticket's
    target: list[int] = field(init=False)
    base: list[int] = field(init=False)
    media: Spans = field(init=False)  # in ``content``
    text: TextStream = field(init=False)
    phase: Phase = Phase.WAITING
    slot: "Slot | None" = None
    output: list[int] = field(default_factory=list)
    sampler: Sampler | None = None
    constraint: Constraint | None = None
    base_output: int = 0
    draft_state: DraftState = field(default_factory=DraftState)
    n_rolled_back: int = 0  # accepted tokens that a rollback removed: they are decoded again before the newest one
    n_draft: int = 0
    n_draft_accepted: int = 0
    offloaded: CacheEntry | None = None  # its KV state after it was preempted, reserved in RAM until it resumes
    fetch: Fetch | None = None  # the disk read that it waits for
    awaited: "tuple[Sequence, int] | None" = None  # what prefills its prefix, and how many tokens
    checkpoint_positions: tuple[int, ...] = ()  # places in ``target`` at which a step ends and a checkpoint is made
    encodings: dict[int, Encoding] = field(default_factory=dict)  # of media that are not in the cells, by span start
    n_faults: int = 0  # recomputations after faults, since its last progress
    quarantined_until: int = 0  # until so many tokens are computed, it is alone in its steps, and no run goes past this
    n_bypasses: int = 0  # requests placed before it although it waited for cells
    n_scored: int = 0  # prompt tokens whose logits were read for ``prompt_logprobs``
    n_cached: int = -1  # cached prompt tokens; -1 until the first placement
    origin: tuple[str, int, str] = "", -1, ""  # source of the cached tokens (`snapshots.origin_of`)
    placed_at: float = 0.0
    placement_s: float = 0.0  # time to copy or load the cached prefix
    prompt_done_at: float = 0.0
    last_token_at: float = 0.0

    def __post_init__(self) -> None:
        """Start with the request's prompt."""
        request = self.request = self.ticket.request
        self.target = self.base = request.prompt
        self.media = request.media
        self.text = TextStream(request.stop, request.n_indent, self.index)

    @property
    def held(self) -> "Slot":
        """Return its slot. Requires that it has one."""
        assert self.slot is not None
        return self.slot

    @property
    def adapter_set(self) -> AdapterSet:
        return self.ticket.adapter_set

    @property
    def shifted(self) -> bool:
        """Whether a context shift has dropped a part of its text."""
        return self.base is not self.request.prompt

    @property
    def arrival(self) -> tuple[float, int]:
        """Sort key, as `Ticket.arrival`."""
        return self.ticket.submitted_at, self.index

    @property
    def next_adapters(self) -> Adapters:
        """The LoRA set that computes its next token."""
        return self.ticket.adapter_set.at(self.n_computed)

    @property
    def content(self) -> list[int]:
        """All tokens that are or will be in the cells, including the last output token."""
        return self.base + self.output[self.base_output :]

    @property
    def n_computed(self) -> int:
        """The number of its tokens in KV cells."""
        return len(self.slot.tokens) if self.slot is not None else 0

    @property
    def awaits_media(self) -> bool:
        """Whether it cannot continue until a medium is encoded. If that fails, `Requests.receive` ends it."""
        span = span_at(self.media, self.n_computed)
        if not self.encodings or span is None or span.start > self.n_computed:
            return False
        encoding = self.encodings[span.start]
        return not encoding.done() or encoding.exception() is not None

    @property
    def pending(self) -> list[int]:
        """Output tokens that are not in the cells yet."""
        return self.output[-1 - self.n_rolled_back :]

    @property
    def unscored(self) -> bool:
        """Whether log probabilities of some prompt tokens are still wanted."""
        request = self.request
        return request.prompt_logprobs and not self.index and self.n_scored < len(request.prompt)

    @property
    def n_reusable(self) -> int:
        """The largest number of ``target`` tokens to reuse from a cache. Tokens whose logits are wanted must be
        decoded.
        """
        n = len(self.target) - 1
        return min(n, self.n_scored) if self.unscored else n

    def timings(self, now: float) -> Timings:
        """Return token counts and milliseconds up to `now`, counted as in llama-server (server-context.cpp,
        get_timings).
        """
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
class Slot(CachedPrefix):
    """One native sequence. ``tokens`` always equals the contents of its KV cells, also while it is idle.

    The cells of the first ``n_shared`` tokens are shared with the slot ``shares_with`` (unified KV only).
    """

    id: int = 0
    sequence: Sequence | None = None
    n_shared: int = 0
    shares_with: "Slot | None" = None
    n_requests: int = 0
    last: Sequence | None = None  # the last holder, for GET /slots
    written_for_others: Sequence | None = None  # the last sequence whose state was written for other processes

    @property
    def idle(self) -> bool:
        """Whether no sequence holds it; its cells are then a cache."""
        return self.sequence is None

    @property
    def ends_inside(self) -> bool:
        """Whether its last medium is incomplete."""
        return bool(self.media) and self.media[-1].end > len(self.tokens)

    @property
    def pos(self) -> int:
        """The position of its next token; inside a medium, the position of the medium's first token."""
        return position(self.media, len(self.tokens)) if self.media else len(self.tokens)

    def check(self, n_ctx: int) -> None:
        """Verify that it holds at most `n_ctx` tokens and agrees with its sequence. Raises AssertionError."""
        assert len(self.tokens) <= n_ctx, f"slot {self.id} holds more than its context"
        check_spans(self.media, self.tokens)
        n_other = 0 if self.shares_with is None else len(self.shares_with.tokens)
        assert 0 <= self.n_shared <= min(len(self.tokens), n_other), f"slot {self.id} shares more than is held"
        assert all(0 < n <= len(self.tokens) for n in self.checkpoints), f"slot {self.id}: checkpoints"
        s = self.sequence
        if s is None:
            return
        assert self.adapter_set == s.adapter_set, f"slot {self.id} has another LoRA set than its sequence"
        assert s.slot is self, f"slot {self.id} and its sequence disagree"  # so no sequence holds two slots
        assert s.phase in (Phase.PREFILL, Phase.DECODE), f"a {s.phase.value} sequence holds slot {self.id}"
        assert self.tokens == s.content[: len(self.tokens)], f"slot {self.id} holds other tokens than its sequence"
        assert self.media == below(s.media, len(self.tokens)), f"slot {self.id} holds other media than its sequence"


def first_to_evict(slots: Seq[Slot]) -> Slot:
    """Return an empty slot, otherwise the one with the lowest keep value, among equals the one unused for longest."""
    now = max(slot.last_used for slot in slots)
    return min(slots, key=lambda slot: (slot.keep_value(now), slot.last_used, slot.id))


def log_fields(*requests: Request | None) -> dict[str, str]:
    """Return the structured-log fields that identify `requests`, for ``extra`` of `logging`."""
    ids = dict.fromkeys(request.log_id or request.id for request in requests if request is not None)
    return {"request": ",".join(ids)} if ids else {}
