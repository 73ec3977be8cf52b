"""Drafts of a draft model or of MTP heads: for which sequences, how long, and when prompts are prefilled for them.

Used by the step thread only.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import expm1
from typing import TypeAlias

from server.engine.cache.prefix_cache import common_prefix
from server.engine.runner_api import BatchEntry, DraftRunner, MtpHeads
from server.engine.sequence import Sequence
from server.engine.speculate.cost import LEAST, SURE, UNSEEN, DraftLength, DraftState, StepCost, draft_length

log = logging.getLogger(__name__)

StepSeconds: TypeAlias = Callable[[int], float]
"""The seconds of a step of so many tokens."""
_TAKEN_OVER = 32  # additional tokens for which a slot copies another slot's cells
NEAR = 16  # tokens that may be missing when a draft starts: tokens since the last draft, or a short prompt
MIN_CHUNK = 32  # smallest prefill chunk
_CHUNK_SHARE = 0.5  # largest share of a step's time for prefill
_ANSWER = 128  # assumed tokens of a reply
_UNSEEN_SHARE = 0.15  # initial cost of a draft step, as a share of the model's step
_READING = 0.1  # initial cost of a prefill token, as a share of a decode token
_RECOVERS = 1 / 256  # recovery towards `UNSEEN` per step without a draft, so that it is tried again
_FIRST = 2  # tokens of the first draft, whose cost is unknown


@dataclass(eq=False, slots=True)
class Draft:
    """A draft for `sequence` of at most `most` tokens. ``missing`` are the tokens before it that are not in the draft
    model's cells.
    """

    sequence: Sequence
    state: DraftState
    most: int
    tokens: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    @property
    def acceptance(self) -> float:
        """Probability that a draft token is accepted."""
        return min(max(self.state.draft_acceptance, LEAST), SURE)

    def entry(self, n: int, *, n_outputs: int) -> BatchEntry:
        """Return the batch entry of the first `n` missing tokens."""
        sequence = self.sequence
        at = sequence.n_computed + len(sequence.pending) - len(self.missing)
        return BatchEntry(sequence.held.id, at, self.missing[:n], n_outputs)


@dataclass(slots=True)
class _ReadText:
    """``tokens`` are in the cells; the first `n_same` are known to equal those of `owner` while its `base` is
    unchanged.
    """

    tokens: list[int] = field(default_factory=list)
    owner: Sequence | None = None
    base: list[int] = field(default_factory=list)
    n_same: int = 0


class DraftCells:
    """What a draft model's context holds for each slot."""

    def __init__(self, runner: DraftRunner) -> None:
        self.info = runner.info
        self.best = runner.best
        self._runner = runner
        self._held = [_ReadText() for _ in range(runner.info.n_seq)]

    def missing(self, sequence: Sequence) -> list[int]:
        """Return the tokens of the decoding `sequence` that are not in the cells yet; other tokens are removed."""
        slot = sequence.held
        held, text, pending = self._held[slot.id], slot.tokens, sequence.pending
        if held.owner is sequence and held.base is sequence.base:
            n = held.n_same + common_prefix(held.tokens[held.n_same :], [*text[held.n_same :], *pending])
        else:
            n = self._take_over(slot.id, text)
            held.owner, held.base = sequence, sequence.base
        # the last token is decoded again if it was a draft token and removed
        self._cut(slot.id, min(n, len(text) + len(pending) - 1))
        held.n_same = min(len(held.tokens), len(text))
        n = len(held.tokens)
        return [*text[n:], *pending[max(n - len(text), 0) :]]

    def _take_over(self, seq: int, text: list[int]) -> int:
        """Return the prefix of `text` in the cells of `seq`, copied from another sequence if that has considerably
        more.
        """
        held = self._held[seq]
        own = common_prefix(held.tokens, text)
        others = [(common_prefix(other.tokens, text), i) for i, other in enumerate(self._held) if i != seq]
        best, source = max(others, default=(0, seq))
        if best < own + _TAKEN_OVER:
            return own
        self._cut(seq, 0)
        self._runner.seq_copy(source, seq)
        held.tokens = list(self._held[source].tokens)
        return best

    def _cut(self, seq: int, n: int) -> None:
        held = self._held[seq]
        if n >= len(held.tokens):
            return
        if n and not self._runner.seq_remove(seq, n):
            n = 0
        if not n:
            self._runner.seq_remove(seq, 0)
        del held.tokens[n:]
        held.n_same = min(held.n_same, n)

    def forget(self, sequences: Seq[Sequence]) -> None:
        """Remove the cells of `sequences` after a failed decode."""
        for sequence in sequences:
            if sequence.slot is not None:
                self._runner.seq_remove(sequence.slot.id, 0)
                self._held[sequence.slot.id] = _ReadText()

    def decode(self, entries: Seq[BatchEntry], kept: AbstractSet[int] = frozenset()) -> bool:
        """Decode; return False if there is no room. Cells of other slots are evicted, except those in `kept`."""
        needed = {entry.seq for entry in entries} | kept
        while not self._runner.decode(entries):
            others = [seq for seq, held in enumerate(self._held) if held.tokens and seq not in needed]
            if not others:
                return False
            for seq in others:
                self._cut(seq, 0)
        for entry in entries:
            self._held[entry.seq].tokens += entry.tokens
        return True

    def end_draft(self, seqs: Seq[int]) -> None:
        """Do nothing: `missing` removes draft tokens later."""


class MtpProposer:
    """As `DraftCells`, for MTP heads, which follow the model: nothing has to be prefilled."""

    def __init__(self, heads: MtpHeads) -> None:
        self.info = heads.info
        self.best, self.end_draft = heads.best, heads.end_draft
        self._heads = heads

    def missing(self, sequence: Sequence) -> list[int]:
        """Return the pending tokens; none if the hidden state before them is unknown (state loaded from RAM), which the
        model's next decode provides.
        """
        slot = sequence.held
        return sequence.pending if self._heads.ready(slot.id, slot.pos) else []

    def decode(self, entries: Seq[BatchEntry], kept: AbstractSet[int] = frozenset()) -> bool:
        """Decode; return False if there is no room."""
        return self._heads.decode(entries)

    def forget(self, sequences: Seq[Sequence]) -> None:
        """Do nothing: the heads follow the model."""


@dataclass(eq=False)
class Drafting:
    """Decides draft lengths from the draft model's cost and acceptance rate."""

    _cells: DraftCells | MtpProposer
    _ends: frozenset[int]  # tokens that end a text
    _clock: Callable[[], float]
    _cost: StepCost = field(default_factory=StepCost)  # of one more token for so many drafts
    _read_s: float = 0.0  # seconds per prefill token
    _said_failure: bool = False

    def propose(self, wanted: Seq[Draft], n_tokens: int, room: int, step_s: StepSeconds | None) -> None:
        """Add tokens, `room` in all, to the drafts in `wanted` for which they pay in a step of `n_tokens` otherwise.
        With `step_s` None, to all at full length, for reproducible benchmarks.

        Never fails: after an error the affected sequences get no more drafts, which is logged once.
        """
        try:
            near, far = self._sorted(wanted, reads_all=step_s is None)
            if step_s is not None:
                if far:
                    self._read_ahead(far[0], near, len(near) + len(far), n_tokens, step_s)
                near = self._bounded(near, n_tokens, room, step_s)
            self._grow(near)
            for draft in near:
                if step_s is not None and len(draft.tokens) < draft.state.least_drafted:
                    draft.tokens = []
        except Exception as error:  # a draft must never fail a request
            if not self._said_failure:
                log.warning("the draft model failed; the current requests continue without it", exc_info=error)
                self._said_failure = True
            for draft in wanted:
                draft.tokens, draft.state.most_drafted = [], 0
            self._cells.forget([draft.sequence for draft in wanted])

    def _sorted(self, wanted: Seq[Draft], *, reads_all: bool) -> tuple[list[Draft], list[Draft]]:
        """Return the drafts that can start now, most promising first, and those whose text must be prefilled first.
        `reads_all`: prefill it at once.
        """
        near, far, room = [], [], self._cells.info.n_batch
        for draft in wanted:
            draft.state.draft_acceptance += _RECOVERS * (UNSEEN - draft.state.draft_acceptance)
            draft.most = min(draft.most, self._cells.info.n_ctx_seq - draft.sequence.n_computed - 2)
            if draft.most < 1:
                continue
            draft.missing = self._cells.missing(draft.sequence)
            while reads_all and len(draft.missing) > NEAR and self._read(draft, self._cells.info.n_batch):
                pass
            if len(draft.missing) > NEAR:
                far.append(draft)
            elif 0 < len(draft.missing) <= room:
                near.append(draft)
                room -= len(draft.missing)
        near.sort(key=lambda draft: -draft.state.draft_acceptance)
        return near, far

    def _read(self, draft: Draft, most: int, kept: AbstractSet[int] = frozenset()) -> bool:
        """Prefill up to `most` of the missing tokens, except the last one. Return False if there is no room."""
        n = min(most, len(draft.missing) - 1)
        if not self._cells.decode([draft.entry(n, n_outputs=0)], kept):
            return False
        del draft.missing[:n]
        return True

    def _read_ahead(self, draft: Draft, near: Seq[Draft], n: int, n_tokens: int, step_s: StepSeconds) -> None:
        """Prefill a part of a long text if the rest of the reply is expected to repay it and there is room besides
        `near`.

        The estimate assumes drafts for all `n` sequences, which makes each cheaper.
        """
        n_missing, base_s = len(draft.missing), step_s(n_tokens)
        read_s = self._read_s or _READING * _UNSEEN_SHARE * base_s / n_tokens
        chances, room = [draft.acceptance] * n, n * draft.most
        chosen = draft_length(chances, n_tokens, step_s, draft.most, room, self._draft_s(base_s))
        request, n_out = draft.sequence.request, len(draft.sequence.output)
        left = max(_ANSWER - n_out, _ANSWER // 4)
        if request.max_tokens >= 0:
            left = min(left, request.max_tokens - n_out)
        if not chosen.count or left * base_s * -expm1(-chosen.gain / n) <= n_missing * read_s:
            return
        chunk = min(max(MIN_CHUNK, int(_CHUNK_SHARE * base_s / read_s)), n_missing - 1, self._cells.info.n_batch)
        started = self._clock()
        if self._read(draft, chunk, {other.sequence.held.id for other in near}):
            self._read_s += (0.3 if self._read_s else 1.0) * ((self._clock() - started) / chunk - self._read_s)

    def _draft_s(self, base_s: float) -> Callable[[int], float]:
        return self._cost.of if self._cost.of(1) else lambda count: _UNSEEN_SHARE * base_s

    def _bounded(self, near: list[Draft], n_tokens: int, room: int, step_s: StepSeconds) -> list[Draft]:
        """Return the leading drafts that pay, with their lengths set.

        The cost of a draft is unknown before the first one, so that one is always made.
        """
        if not near:
            return []
        chosen = DraftLength(1, max(_FIRST, near[0].state.least_drafted))
        if self._cost.of(1):
            chances, most = [draft.acceptance for draft in near], max(draft.most for draft in near)
            chosen = draft_length(chances, n_tokens, step_s, most, room, self._draft_s(step_s(n_tokens)))
        for draft in near[: chosen.count]:
            draft.most = min(draft.most, max(chosen.length, draft.state.least_drafted), room // chosen.count)
        return near[: chosen.count]

    def _grow(self, drafts: Seq[Draft]) -> None:
        """Decode one token per draft and round; the first round also prefills the tokens accepted since the last
        draft.
        """
        entries = [draft.entry(len(draft.missing), n_outputs=1) for draft in drafts]
        seqs = [entry.seq for entry in entries]
        try:
            while entries:
                started = self._clock()
                if not self._cells.decode(entries):
                    break
                self._cost.observe(len(entries), self._clock() - started)
                drafts, entries = self._going_on(drafts, entries)
        finally:
            self._cells.end_draft(seqs)

    def _going_on(self, drafts: Seq[Draft], entries: Seq[BatchEntry]) -> tuple[list[Draft], list[BatchEntry]]:
        going, following = [], []
        for output, (draft, entry) in enumerate(zip(drafts, entries, strict=True)):
            token, p = self._cells.best(output)
            is_end = token in self._ends and not draft.sequence.request.sampling.ignore_eos
            if p < draft.state.p_min or is_end:
                continue
            draft.tokens.append(token)
            if len(draft.tokens) < draft.most:
                going.append(draft)
                following.append(BatchEntry(entry.seq, entry.pos + len(entry.tokens), [token], 1))
        return going, following
