"""Drafts of a draft model or of MTP heads, and the tokens in the draft context. Used only by the step thread."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from server.engine.cache.prefix_cache import common_prefix
from server.engine.runner_api import BatchEntry, DraftRunner, MtpHeads
from server.engine.sequence import Sequence
from server.engine.speculate.cost import GPU_TOKEN_COST, TOKEN_COST, StepCost

_MIN_COPIED = 32  # additional tokens for which a slot copies the cells of another
MAX_MISSING = 16  # tokens that may be missing when a draft starts: tokens since the last draft, or a short prompt
MIN_CHUNK = 32  # smallest prefill chunk
_RECENT_TOKENS = 256  # last tokens of a slot that may have changed since its last draft: more than the longest draft


class DraftModel:
    """The context of a draft model, or MTP `heads`, whose cells change with those of their model, so that they need no
    prefill.

    ``cost``: cost of one more token for a number of drafts. ``token_s``: seconds per prefill token, 0.0 before the
    first.
    """

    def __init__(
        self, runner: DraftRunner, ends: frozenset[int], clock: Callable[[], float], heads: MtpHeads | None = None
    ) -> None:
        """Create the draft context. `ends`: tokens that end a text."""
        self.name = "the draft model" if heads is None else "the model's MTP heads"
        self.cost = StepCost(GPU_TOKEN_COST if runner.info.deferred else TOKEN_COST)
        self.token_s = 0.0
        self.n_ctx_seq = runner.info.n_ctx_seq
        self._n_batch = runner.info.n_batch
        self._runner, self._heads = runner, heads
        self._ends = ends
        self._clock = clock
        self._held: list[list[int]] = [[] for _ in range(runner.info.n_seq)]  # tokens in the cells of each slot
        self._owners: list[Sequence | None] = [None for _ in self._held]
        self._missing: dict[int, list[int]] = {}  # by slot

    def ready(self, wanted: Seq[Sequence], *, prefills_all: bool = False) -> tuple[list[Sequence], list[Sequence]]:
        """Return the sequences for which a draft can start now, and those whose text must be prefilled before
        (`prefill`). `prefills_all`: prefill it now.
        """
        ready, not_ready, room = [], [], self._n_batch
        self._missing = {}
        for sequence in wanted:
            missing = self._missing[sequence.held.id] = self._missing_tokens(sequence)
            while prefills_all and len(missing) > MAX_MISSING and self.prefill(sequence, self._n_batch):
                pass
            if len(missing) > MAX_MISSING:
                not_ready.append(sequence)
            elif 0 < len(missing) <= room:
                ready.append(sequence)
                room -= len(missing)
        return ready, not_ready

    def n_missing(self, sequence: Sequence) -> int:
        """Return the tokens to prefill for a sequence that is not `ready`."""
        return len(self._missing[sequence.held.id])

    def prefill(self, sequence: Sequence, most: int) -> bool:
        """Prefill at most `most` of the missing tokens, except the last one. Return False if there is no room."""
        missing = self._missing[sequence.held.id]
        n, started = min(most, len(missing) - 1, self._n_batch), self._clock()
        if not self._decode([self._entry(sequence, n, n_outputs=0)]):
            return False
        del missing[:n]
        self.token_s += (0.3 if self.token_s else 1.0) * ((self._clock() - started) / n - self.token_s)
        return True

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return drafts for sequences that are `ready`; `wanted` has their largest lengths. The first decode also
        prefills the tokens accepted since their last drafts.
        """
        drafts: dict[Sequence, list[int]] = {sequence: [] for sequence in wanted}
        entries = {sequence: self._entry(sequence, self.n_missing(sequence), n_outputs=1) for sequence in wanted}
        try:
            while entries:
                started = self._clock()
                if not self._decode(list(entries.values())):
                    break
                self.cost.observe(len(entries), self._clock() - started)
                before, entries = entries, {}
                for output, (sequence, entry) in enumerate(before.items()):
                    draft = drafts[sequence]
                    if self._extend(draft, output, sequence) and len(draft) < wanted[sequence]:
                        entries[sequence] = BatchEntry(entry.seq, entry.pos + len(entry.tokens), draft[-1:], 1)
        finally:
            if self._heads is not None:
                self._heads.end_draft([sequence.held.id for sequence in wanted])
        return drafts

    def _extend(self, draft: list[int], output: int, sequence: Sequence) -> bool:
        """Append the most probable token to `draft`. Return False if it ends the text or is too improbable."""
        token, p = self._runner.best(output)
        is_end = token in self._ends and not sequence.request.sampling.ignore_eos
        if is_end or p < sequence.draft_state.p_min:
            return False
        draft.append(token)
        return True

    def clear(self, sequences: Seq[Sequence]) -> None:
        """Remove the cells of `sequences` after a failed decode."""
        for sequence in sequences:
            if self._heads is None and sequence.slot is not None:
                self._runner.seq_remove(sequence.slot.id, 0)
                self._held[sequence.slot.id], self._owners[sequence.slot.id] = [], None

    def _entry(self, sequence: Sequence, n: int, *, n_outputs: int) -> BatchEntry:
        """Return the batch entry of the first `n` missing tokens."""
        missing = self._missing[sequence.held.id]
        at = sequence.n_computed + len(sequence.pending) - len(missing)
        return BatchEntry(sequence.held.id, at, missing[:n], n_outputs)

    def _missing_tokens(self, sequence: Sequence) -> list[int]:
        """Return the tokens of the decoding `sequence` that are not in the cells yet; other tokens are removed."""
        slot, pending = sequence.held, sequence.pending
        if self._heads is not None:  # the hidden state is unknown if it was loaded from RAM, until the next decode
            return pending if self._heads.ready(slot.id, slot.pos) else []
        held, text = self._held[slot.id], slot.tokens
        start = max(len(held) - _RECENT_TOKENS, 0)
        n = start + common_prefix(held[start:], [*text[start:], *pending])
        if self._owners[slot.id] is not sequence or (start and n < start + MAX_MISSING):  # or its context was shifted
            n = self._reuse_prefix(slot.id, text)
            self._owners[slot.id] = sequence
        # the last token is decoded again if it was a draft token and removed
        n = min(n, len(text) + len(pending) - 1)
        self._truncate(slot.id, n)
        return [*text[n:], *pending[max(n - len(text), 0) :]]

    def _reuse_prefix(self, seq: int, text: list[int]) -> int:
        """Return the number of leading tokens of `text` in the cells of `seq`, after copying them from another sequence
        if that has considerably more.
        """
        best, source = max((common_prefix(held, text), i) for i, held in enumerate(self._held))
        own = common_prefix(self._held[seq], text)
        if best < own + _MIN_COPIED:
            return own
        self._truncate(seq, 0)
        self._runner.seq_copy(source, seq)
        self._held[seq] = list(self._held[source])
        return best

    def _truncate(self, seq: int, n: int) -> None:
        """Truncate the cells of `seq` to `n` tokens."""
        held = self._held[seq]
        if n < len(held):
            self._runner.seq_remove(seq, n)
            del held[n:]

    def _decode(self, entries: Seq[BatchEntry]) -> bool:
        """Decode; return False if there is no room, even after clearing slots that wait for no draft."""
        if self._heads is not None:
            return self._heads.decode(entries)
        while not self._runner.decode(entries):
            others = [seq for seq, held in enumerate(self._held) if held and seq not in self._missing]
            if not others:
                return False
            for seq in others:
                self._truncate(seq, 0)
        for entry in entries:
            self._held[entry.seq] += entry.tokens
        return True
