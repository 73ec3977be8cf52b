"""Who gets a slot, and who decodes which tokens in the next step. Pure: no threads, no clock, no native calls.

A step of the instance is: `place` until nobody can be placed, `plan`, decode, `commit` (or `victim` when the
cells ran out), sample, `release` who ended.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from server.engine.kv.cost import MoveCost, least_valuable
from server.engine.kv.ram_cache import StateCache, state_cache
from server.engine.kv.state import Checkpoint
from server.engine.media import MediaInput, MediaSpan, span_at
from server.engine.params import EngineParams
from server.engine.prefix.find import Placement, Placer
from server.engine.prefix.hashes import PrefixHashes
from server.engine.request import BATCH_PRIORITY, Adapters
from server.engine.runner_api import RunnerInfo
from server.engine.schedule.cell_room import Room
from server.engine.schedule.evaluations import batch_order, best_relocation, between, n_beside, n_runs
from server.engine.schedule.prefill import StepSize, in_order, portion
from server.engine.schedule.queue import OUTPUT_WEIGHT, REPLY_CELLS, Accounts, Queue
from server.engine.sequence import Phase, Sequence, Slot

StepSharers = tuple[Adapters, int]
"""Those who share a step: a LoRA set; and one sequence, by its slot, that must decode alone, or -1."""
Guesses = Callable[[list[Sequence], int], list[list[int]]]
"""Guessed tokens for each of these generating sequences, so many in all."""
LOOKS = 32  # at sequences behind one that finds no room; each takes a search for its prefix
TURN = 0.5  # of the step time aimed at: for so long a stream may wait while other LoRA sets compute
ALONE_S = 3.0
"""Step time to stay under when no slot generates: bounds how long a cancel takes, and who comes waits. With
less, deep steps are smaller than what the library evaluates at once, and attention's tiles less full: 512 tokens took
3 s 12,000 tokens deep, on two cores (benchmarks/experiments.md)."""


@dataclass(eq=False, slots=True)
class TokenRun:
    """A run of tokens of one sequence in the step's batch; not frozen, since one is made for every token."""

    seq: int
    at: int  # tokens of the sequence before these
    tokens: list[int]
    n_outputs: int  # its last tokens that have logits: of a stream one and its guesses, of a prompt none, one or all
    sequence: Sequence
    scored: bool = False  # prompt tokens, whose logits say how probable those behind them were
    undo: Checkpoint | None = None  # to take guesses back with, where the cells can't be cut
    media: MediaInput | None = None  # what the tokens stand for

    @property
    def pos(self) -> int:
        """The position of the first one; of a medium's tokens, that of the medium's first one."""
        slot = self.sequence.slot
        return slot.pos if slot is not None and slot.media else self.at

    @property
    def guesses(self) -> list[int]:
        """What may follow its first token."""
        return self.tokens[1:] if self.n_outputs > 1 and not self.scored else []

    def next_output(self, first: int) -> int:
        """Which of the batch's outputs its next token is sampled from, when its own begin with `first`."""
        return first + self.n_outputs - 1 if self.scored else first


class Scheduler:
    """Queue, slots and budgets of one instance."""

    def __init__(
        self,
        info: RunnerInfo,
        params: EngineParams,
        accounts: Accounts | None = None,
        ram: StateCache | None = None,
        instance: int = 0,
    ) -> None:
        """Instances of a model share `accounts` and `ram`; this is the `instance`-th of them."""
        self.info = info
        self.ram = state_cache(params.cache_ram, info.free_bytes) if ram is None else ram
        self.move_cost = MoveCost(copy_s=info.copy_s, piece_s=info.piece_s)
        self.n_copies = 0  # of streams, that the next batch carries out
        self.params = params
        self.slots = [Slot(i) for i in range(info.n_seq)]
        self.placer = Placer(self.slots, self.ram, info, params, self.move_cost)
        self.room = Room(self.slots, info)
        self._accounts = Accounts() if accounts is None else accounts
        self._instance = instance
        self.waiting = Queue(self._accounts)
        sizes = min(params.min_chunk, info.n_batch), info.n_batch, info.n_ubatch
        self.step_size = StepSize(params.target_s, *sizes)
        self.step_size_alone = StepSize(ALONE_S, *sizes, size=min(info.n_ubatch, info.n_batch))
        self.spent_s = 0.0  # of this step, before its decode: on copies, and states that were moved
        self._limit = info.n_batch
        self._alone: Slot | None = None  # who had the last batch for itself
        self._turns: list[StepSharers] = []  # in order; it is the first one's now
        self._turn_s = self._last_s = 0.0  # what the steps of that took so far, and the last of them
        self.may_be_apart = False  # slots in use have changed

    def active(self) -> Iterator[Sequence]:
        return (slot.sequence for slot in self.slots if slot.sequence is not None)

    @property
    def n_active(self) -> int:
        return sum([slot.sequence is not None for slot in self.slots])

    def place(self) -> Placement | None:
        """The next waiting sequence that can have a slot, taken out of the queue."""
        if not self.waiting or self.n_active == len(self.slots):
            return None
        room = self.room
        room.measure()
        before: list[Sequence] = []  # those that don't fit
        n_looks = LOOKS
        has_live = not all(map(is_batch, self.waiting))
        for sequence in self.waiting.candidates(room.due):
            if has_live and is_batch(sequence):  # the slot is for the live request that could not be placed yet
                return None
            if before and room.full:
                return None
            if room.refuses(sequence, before):
                before.append(sequence)
                continue
            if before:
                n_looks -= 1
                if n_looks < 0:
                    return None
            placement = self.placer.find(sequence)
            if placement is None:
                continue
            if room.fits(sequence, placement.n_in_cells) and room.passes(sequence, before):
                self.waiting.place(sequence)
                return placement
            before.append(sequence)
        return None

    def preempts(self) -> Sequence | None:
        """Return the batch sequence that must give its slot to a more urgent request, None if no one waits for it.

        Of several the newest, since it has the least to lose.
        """
        if not self.waiting or self.n_active < len(self.slots) or all(map(is_batch, self.waiting)):
            return None
        return max(filter(is_batch, self.active()), key=lambda s: s.came, default=None)

    @property
    def n_free(self) -> int:
        """Return the slots that are idle or held by batch sequences, less the requests that wait for one."""
        n_live = sum(not is_batch(s) for s in self.active())
        return len(self.slots) - n_live - sum(not is_batch(s) for s in self.waiting)

    def free_cells(self) -> float:
        """Cells that are left for who comes; any number where each slot has its own, and where nobody is."""
        room = self.room
        room.measure()
        free = self.info.n_cells if room.empty and self.waiting and self.info.unified else room.free
        return free - sum(s.ticket.n_to_compute + REPLY_CELLS for s in self.waiting)

    def in_turn(self) -> list[Sequence]:
        """Who waits, in the order in which they are to be placed."""
        candidates = self.waiting.candidates(self.room.due)
        return [s for s in candidates if s.phase is Phase.WAITING and s.slot is None]

    def occupy(self, placement: Placement, now: float) -> None:
        """Record that `placement` was carried out; ``slot.tokens`` already says what its cells hold."""
        sequence, slot = placement.sequence, placement.slot
        slot.sequence, sequence.slot = sequence, slot
        self.may_be_apart = True
        slot.tuning = sequence.tuning
        slot.n_requests += 1
        self.room.placed(sequence)
        n_to_compute = len(sequence.target) - len(slot.tokens)
        self._accounts.serve(sequence.request.client, n_to_compute, self._instance)
        if sequence.n_cached < 0:
            sequence.n_cached = len(slot.tokens)
            sequence.placed_at = now
        sequence.phase = Phase.PREFILL
        sequence.marks, sequence.fetch = self.placer.marks(placement), None
        if len(slot.tokens) == len(sequence.target) and sequence.output:
            sequence.phase = Phase.DECODE

    def plan(self, guess: Guesses | None = None) -> list[TokenRun]:
        """The next batch: every generating slot's token first, with what `guess` has to add, then prompts."""
        members, decode, prefill = self._members(), Phase.DECODE, Phase.PREFILL  # looking these up is slow
        generating = [s for s in members if s.phase is decode]
        n_to_score = self.info.n_more_outputs
        if guess is not None and generating:
            n_pending = sum([1 + s.n_taken_back for s in generating])
            while n_pending > self.info.n_batch:  # they come back in another step
                n_pending -= 1 + generating.pop().n_taken_back
            room = min(min(self._limit, self.info.n_batch) - n_pending, n_to_score)
            guesses = guess(generating, room)
            entries = [
                TokenRun(s.held.id, len(s.held.tokens), [*s.pending, *more], 1 + len(more), s)
                for s, more in zip(generating, guesses, strict=True)
            ]
            n_guessed = sum(map(len, guesses))
            n_tokens = n_pending + n_guessed
            n_to_score -= n_guessed
        else:
            entries = [TokenRun(s.slot.id, len(s.slot.tokens), s.output[-1:], 1, s) for s in generating if s.slot]
            n_tokens = len(entries)
        if len(generating) == len(members):  # no prompts, as in nearly all steps; they are in their slots' order
            return entries
        others_wait = entries or (len(members) < self.n_active and any(s.phase is decode for s in self.active()))
        others_wait = others_wait or all(map(is_batch, members))  # a live request may arrive and wait for this step
        size = self.step_size.after(self.spent_s) if others_wait else self.step_size_alone.size
        # with cells of their own, prompts are evaluated by themselves: streams take nothing from the size
        budget = max(size - n_tokens if self.info.unified else size, self.params.min_chunk if entries else 1)
        most = min(self._limit, self.info.n_batch) - n_tokens
        budget = min(budget, most)
        prompts = [s for s in members if s.phase is prefill]
        streams = {} if self.info.unified else {e.seq: len(e.tokens) for e in entries}
        joins = self._joining(streams.keys(), prompts, budget // 2)
        n_joins = len(joins)
        rate = self.move_cost.computed
        for s in in_order(prompts, rate, self._accounts.served, self.placer.inherited()):
            if s.slot is None or (budget <= n_joins and s.slot.id not in joins):
                continue
            if budget <= 0:
                break
            at = len(s.slot.tokens)
            n_joins -= s.slot.id in joins
            n_most = max(budget - n_joins, 1)
            span = span_at(s.media, at) if s.media else None
            is_medium = span is not None and span.start <= at  # decoded in a batch of its own
            n_left = (span.end if span is not None and is_medium else len(s.target)) - at
            if is_medium and n_tokens:  # a step's streams are decoded before it, by themselves
                spent_s = self.spent_s + self.move_cost.step_s
                n = portion(n_left, min(n_most, self.step_size.after(spent_s)), self.info.n_ubatch, exact=True)
            else:
                n = portion(n_left, n_most, self.info.n_ubatch)
            # those that share evaluations with streams take nothing from the size
            n_more = n_beside(streams, s.slot.id) if 1 < n < n_left and s.slot.id in joins and not is_medium else 0
            end = at + min(n + n_more, most - n_joins)
            if at < s.tuning.start < end:  # an aLoRA begins to work there
                end = s.tuning.start
            end = s.next_mark(at, end)
            if span is not None:
                end = _end_with_media(span, at, end)
            scored = s.unscored and at >= s.n_scored
            if scored and is_medium:  # its last token says how probable the text behind it is
                end = end if n_to_score else at
                n_to_score -= end > at
            elif scored:
                end = min(end, at + n_to_score)
                n_to_score -= min(end, len(s.target)) - at
            elif s.unscored:  # it was parked, and what is scored is computed again
                end = min(end, s.n_scored)
            tokens = s.target[at:end]
            if not tokens:  # others have taken the outputs of this step
                continue
            # what a prompt leaves of the step so that it goes on in whole tiles is too little for another one
            budget -= n_most if n <= len(tokens) < n_left else min(len(tokens), n)
            most -= min(len(tokens), n) if is_medium else len(tokens)
            is_last = at + len(tokens) == len(s.target) and not s.output  # with output, the next token is known
            n_outputs = len(tokens) if scored and not is_medium else int(scored or is_last)
            entries.append(TokenRun(s.slot.id, at, tokens, n_outputs, s, scored))
            if span is not None and is_medium:
                entries[-1].media = _input(s, span, at)
        longest = max(streams.values(), default=self.info.n_batch)
        entries.sort(key=lambda e: batch_order(e.seq, len(e.tokens) > longest, streams.keys(), joins))
        return entries

    def relocation(self, fixed: AbstractSet[int]) -> tuple[Slot, Slot] | None:
        """Whose sequence another slot is better for, and which, as `best_relocation`; who holds a slot in
        `fixed`, or asked for a certain one, stays.

        Also while somebody waits: an idle slot that he can't have now would part streams until he can.
        """
        if not self.may_be_apart or not self.info.evaluation_s:
            return None
        active = [s for slot in self.slots if (s := slot.sequence) is not None]
        self.may_be_apart = n_runs({s.slot.id for s in active if s.slot is not None}) > 1
        if not self.may_be_apart or not _may_share_a_step(active):
            return None
        longest_s = self.params.target_s / 2 - self.spent_s  # others wait for it, beside their step
        return best_relocation(self.slots, self.placer.evaluation_s, self._relocation_s, longest_s, fixed)

    def _relocation_s(self, source: Slot, target: Slot) -> float:
        cost = self.move_cost
        seconds = min(cost.copy_s, cost.round_trip_s(len(source.tokens)))
        if n_lost := len(target.tokens):  # to RAM, or computed again some day
            seconds += cost.round_trip_s(n_lost) if self.ram.limit else cost.compute_s(n_lost)
        return seconds

    @staticmethod
    def _joining(streams: AbstractSet[int], prompts: list[Sequence], most: int) -> AbstractSet[int]:
        """At most so many slots of prompts that take part in the step with one token at least: then streams on both
        sides share an evaluation."""
        if not prompts or len(streams) < 2:
            return frozenset()
        waiting = {s.slot.id for s in prompts if s.slot is not None and not s.unscored}
        return frozenset(between(streams, waiting)[:most])

    def _members(self) -> list[Sequence]:
        """Who may be in the next batch: only one LoRA set computes a batch, so several take turns; so do suspects.

        A turn is several steps, since after a change of the set the library plans its memory anew: as many as the
        others can wait for, all their turns together (`TURN`).
        """
        active = [slot.sequence for slot in self.slots if slot.sequence is not None]
        if [s for s in active if s.encodings]:
            active = [s for s in active if not s.awaits_media]
        if [s for s in active if s.phase is Phase.PREFILL and not is_batch(s)]:
            active = [s for s in active if not is_batch(s)]
        if _may_share_a_step(active):
            return active
        sets = {_turn_of(s) for s in active}
        now = self._turns[:1]
        self._turns = [one for one in self._turns if one in sets]
        self._turns += sorted(sets.difference(self._turns))  # who is new comes last: else new ones kept others waiting
        waited_s = (self._turn_s + self._last_s) * (len(sets) - 1)
        goes_on = all(alone < 0 for _, alone in sets) and waited_s <= min(self.params.target_s, ALONE_S) * TURN
        if self._turns[:1] != now or not goes_on:
            if self._turns[:1] == now:
                self._turns.append(self._turns.pop(0))
            self._turn_s = self._last_s = 0.0
        return [s for s in active if _turn_of(s) == self._turns[0]]

    def commit(self, entries: list[TokenRun], seconds: float, *, is_seen: bool = True) -> None:
        """The batch was decoded in `seconds`, which say what it takes where that `is_seen`: its tokens are in the
        cells."""
        self._limit = self.info.n_batch
        self.spent_s = 0.0  # others got their tokens: what comes now has a step's time of its own
        self._turn_s, self._last_s = self._turn_s + seconds, seconds
        n_tokens, n_of_prompts, n_prompts, generating = 0, 0, 0, Phase.DECODE
        for entry in entries:
            sequence, tokens = entry.sequence, entry.tokens
            slot, n = sequence.slot, len(tokens)
            assert slot is not None
            slot.tokens.extend(tokens)
            if entry.media is not None and not entry.media.first:
                slot.media = (*slot.media, entry.media.span.kept)
            n_tokens += n
            if sequence.suspect and len(slot.tokens) >= sequence.suspect:
                sequence.suspect = sequence.n_faults = 0
            if sequence.phase is generating:
                sequence.n_taken_back = 0
                self._accounts.serve(sequence.request.client, OUTPUT_WEIGHT, self._instance)
                continue
            n_prompts += 1
            n_of_prompts += n
            if len(slot.tokens) == len(sequence.target):
                sequence.phase, sequence.encodings = generating, {}
        if self.info.unified:
            self._count_pieces(entries)
        n_copies, self.n_copies = self.n_copies, 0
        if not is_seen:
            return
        if n_copies:
            usual_s = max(self.move_cost.step_s, self.move_cost.compute_s(n_tokens))
            self.move_cost.observe_copies(n_copies, seconds - usual_s)
        elif not n_prompts:
            self.move_cost.observe_step(seconds)
        else:
            size = self.step_size_alone if n_prompts == len(entries) else self.step_size
            size.observe(n_tokens if self.info.unified else n_of_prompts, seconds)

    def _count_pieces(self, entries: list[TokenRun]) -> None:
        """Cells are taken in a batch's order: who is alone in two batches in a row goes on where it was."""
        alone = entries[0].sequence.slot if len(entries) == 1 else None
        if alone is not None and alone is self._alone and alone.n_pieces:
            return
        self._alone = alone
        for entry in entries:
            if entry.sequence.slot is not None:
                entry.sequence.slot.n_pieces += 1

    def victim(self, entries: list[TokenRun]) -> Slot | Sequence | None:
        """The cells ran out: which idle slot's go, or who gives up his. Where nobody else is left he can only end; but
        None, and the next batch is smaller, while that may help."""
        cached = [slot for slot in self.slots if slot.idle and slot.tokens]
        if cached:
            return least_valuable(cached)
        active, n_tokens = list(self.active()), sum(len(e.tokens) for e in entries)
        if len(active) > 1:
            victim = max(active, key=lambda s: (s.request.priority, s.came))
            self.room.ran_out(victim, n_tokens)
            return victim
        whole_media = [e for e in entries if e.media is not None and not e.media.causal]  # it can't be decoded in parts
        if whole_media or n_tokens == 1:
            return active[0]
        self._limit = n_tokens // 2
        return None

    def release(self, sequence: Sequence, now: float) -> None:
        """`sequence` has ended and gives its slot back; the cells stay as a cache."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
            if sequence.parked is not None:
                self.ram.let_go(sequence.parked.states)
        else:
            self._leave(sequence, now)
            self.room.left(ended=True)

    def _leave(self, sequence: Sequence, now: float) -> None:
        slot = sequence.held
        if sequence.phase is Phase.PREFILL:  # the rest is not computed
            n_left = len(sequence.target) - len(slot.tokens)
            self._accounts.serve(sequence.request.client, -n_left, self._instance)
        slot.sequence, sequence.slot, slot.last = None, None, sequence
        slot.last_used = now
        self.may_be_apart = True
        if not sequence.shifted:  # it holds the sequence from its beginning, whose hashes are known
            slot.hashes, sequence.hashes = sequence.hashes, PrefixHashes()
            slot.hashes.cut(len(slot.tokens))

    def park(self, sequence: Sequence, now: float) -> None:
        """Back to the head of the queue; what was generated must be in the cells again before it goes on."""
        self._leave(sequence, now)
        self.room.left(ended=False)
        sequence.target = sequence.content
        if len(sequence.output) > sequence.base_output:  # its last token is not in the cells
            del sequence.target[-1:]
        sequence.hashes, sequence.n_taken_back = PrefixHashes(), 0
        sequence.phase = Phase.WAITING
        self.waiting.come_back(sequence)

    def check_integrity(self) -> None:
        """Prove that every slot and every cell is accounted for once; raises AssertionError."""
        for slot in self.slots:
            slot.check(self.info.n_ctx_seq)
        for s in self.waiting:
            assert s.slot is None, "a waiting sequence has a slot"
            assert s.phase is Phase.WAITING, "a waiting sequence is not waiting"
        self.ram.check_integrity()


def batches(entries: list[TokenRun], n_ubatch: int) -> Iterator[list[TokenRun]]:
    """`entries` as the library decodes them, one call each: text; media that are decoded as text is; of the others as
    many of one size as are evaluated at once (llama-batch.cpp, split_equal: a longer one would be cut)."""
    if not [entry for entry in entries if entry.media is not None]:
        yield entries
        return
    text = [entry for entry in entries if entry.media is None]
    causal = [entry for entry in entries if entry.media is not None and entry.media.causal]
    others: list[list[TokenRun]] = []
    for entry in entries:
        if entry.media is not None and not entry.media.causal:
            n = len(entry.tokens)
            fits = (one for one in others if len(one[0].tokens) == n and (len(one) + 1) * n <= n_ubatch)
            found = next(fits, None)
            if found is None:
                others.append([entry])
            else:
                found.append(entry)
    for batch in (text, causal, *others):
        live = [entry for entry in batch if entry.sequence.slot is not None]  # else it ended with a batch before
        if live:
            yield live


def _end_with_media(span: MediaSpan, at: int, end: int) -> int:
    """Where a run of tokens from `at` on ends that might go up to `end`: text before the next medium `span`; of the
    medium a part, or all of it where each of its embeddings sees all."""
    if at < span.start:
        return min(end, span.start)
    return span.end if span.chunk is not None and not span.chunk.causal else min(end, span.end)


def _input(sequence: Sequence, span: MediaSpan, at: int) -> MediaInput:
    embeddings = sequence.encodings[span.start].embeddings
    assert embeddings is not None
    return MediaInput(span, embeddings, at - span.start)


def is_batch(sequence: Sequence) -> bool:
    """Return whether a sequence uses only what others leave."""
    return sequence.request.priority >= BATCH_PRIORITY


def _turn_of(sequence: Sequence) -> StepSharers:
    slot = sequence.slot
    return sequence.next_adapters, slot.id if sequence.suspect and slot is not None else -1


def _may_share_a_step(active: list[Sequence]) -> bool:
    """Whether one LoRA set computes all of them, and none must decode alone."""
    if not [s for s in active if s.suspect or s.ticket.tuning.adapters]:
        return True
    return len({_turn_of(s) for s in active}) < 2
