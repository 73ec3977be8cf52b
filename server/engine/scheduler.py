"""How a batch is built: which request gets a slot, and which tokens the next step decodes. Pure: no threads, clock or
native calls.

One step: `place` until nothing can be placed or the step's time for moves is spent, `plan`, decode, `commit`, sample,
`release` ended sequences. If the decode found no cells, `Cells.free_cells` frees some, and the next step has a new
plan.

`plan` takes the next tokens of the decoding sequences whose turn it is (`_members`), with draft tokens. It then fills
the step's budget with prefill tokens, one prompt after the other (`in_prefill_order`), because many short runs cost
more than one long run. `batches` splits the runs into library calls. The budget adapts to measured step times
(`StepSize`).

On a CPU, ggml computes attention in tiles of 64 tokens; a partial tile takes as long as a full one
(ggml-cpu/common.h, GGML_FA_TILE_Q). So budgets are multiples of these tiles, and of `n_ubatch`, the tokens of one
evaluation.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import count
from math import inf

from server.engine.cache.kv_budget import KvBudget
from server.engine.cache.move_budget import MoveBudget
from server.engine.cache.prefix_cache import CacheTier, ram_tier
from server.engine.media import MediaInput, MediaSpan, span_at
from server.engine.params import PREFILL_ONLY_S, EngineParams
from server.engine.placement import Placement, Placer
from server.engine.queue import OUTPUT_WEIGHT, Queue, TokenCounters
from server.engine.request import BACKGROUND_PRIORITY, Adapters
from server.engine.runner_api import BatchEntry, RunnerInfo
from server.engine.sequence import Phase, Sequence, Slot

AGING_WEIGHT = 0.25
"""Aging: share of the tokens that could be computed while a prompt waits. Shorter prompts can delay a long one by at
most four times its own prefill time. In `benchmarks.simulation`, 0.1 gives longer times to first token at p99, 1.0 at
p50.
"""
PRIORITY_LEVEL_S = 600.0
"""Seconds of waiting that one priority level counts as."""
ASSUMED_TOKENS_PER_S = 1000.0  # prefill rate until one is measured

TILE_TOKENS = 64
STEP_TARGET_SHARE = 0.9
"""Budgets aim at this share of the target step time: the next step is deeper in its prompts, so usually slower."""
REDUCTION_FACTOR = 0.75  # a budget is reduced to at most this share of itself, so that the saving exceeds noise


def in_prefill_order(prefilling: Iterable[Sequence], rate: float, served: Callable[[str], float]) -> list[Sequence]:
    """Return `prefilling` in prefill order.

    The key is the number of tokens left to compute, so that short prompts do not wait for long ones; plus the tokens
    that the client was served more than others; plus a term that is smaller the earlier the prompt was placed, so that
    none starves.

    `rate`: prefill tokens per second (0 = unknown). `served`: tokens served per client.
    """
    order = list(prefilling)
    if len(order) < 2:
        return order
    counts = {s: served(s.request.client) for s in order}
    fewest, rate = min(counts.values()), rate or ASSUMED_TOKENS_PER_S

    def key(s: Sequence) -> tuple[float, tuple[float, int]]:
        aging_start = s.placed_at + PRIORITY_LEVEL_S * s.request.priority
        aged = len(s.target) - s.n_computed + counts[s] - fewest + AGING_WEIGHT * rate * aging_start
        return aged, s.arrival

    return sorted(order, key=key)


@dataclass(slots=True)
class StepSize:
    """Adapts the number of tokens per step, prefill and decode together.

    ``target_s`` is the step time to stay under; infinity means as large as possible.
    """

    target_s: float
    smallest: int
    largest: int
    n_ubatch: int
    size: int = 0
    _token_s: float = 0.0  # seconds per token of the last step

    def __post_init__(self) -> None:
        """Start in the middle; the first steps adapt it."""
        if self.target_s == inf:
            self.size = self.largest
        self.size = self.size or min(max(2 * TILE_TOKENS, self.smallest), self.largest)

    def left_after(self, n_tokens: float) -> int:
        """Return the budget of a step that has already used the time of `n_tokens`."""
        if self.target_s == inf or not n_tokens:
            return self.size
        return max(_whole_tiles(int(max(self.size - n_tokens, 0)), self.n_ubatch), self.smallest)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from a nearly full step and choose the next budget: at most twice the last one, or at most
        `REDUCTION_FACTOR` of it.

        Of two steps the faster one counts; the slower one may have been disturbed by other processes. A step shortened
        by `_avoiding_partial_tile` may enlarge the budget, but not reduce it.
        """
        is_full, leaves_a_tile = n_tokens * 8 >= self.size * 7, n_tokens > max(self.size - TILE_TOKENS, TILE_TOKENS)
        if self.target_s == inf or seconds <= 0 or not (is_full or leaves_a_tile):
            return
        token_s = seconds / n_tokens
        if is_full:
            token_s, self._token_s = min(token_s, self._token_s or token_s), token_s
        wanted = int(self.target_s * STEP_TARGET_SHARE / token_s)
        if wanted >= self.size:
            size = _whole_tiles(min(wanted, self.size * 2), self.n_ubatch)
            self.size = max(min(size, self.largest), self.size)
        elif is_full:
            size = _whole_tiles(min(wanted, int(self.size * REDUCTION_FACTOR)), self.n_ubatch)
            self.size = max(size, self.smallest)


def _whole_tiles(size: int, n_ubatch: int) -> int:
    return size - size % (n_ubatch if size >= n_ubatch else TILE_TOKENS if size >= TILE_TOKENS else 1)


StepGroup = tuple[Adapters, int]
"""Identifies sequences that may share a step: a LoRA set, and the slot of a quarantined sequence, or -1."""
Proposer = Callable[[list[Sequence], int], list[list[int]]]
"""Returns draft tokens for each of the decoding sequences, at most the given number in total."""
MAX_BYPASS_SEARCHES = 32  # sequences checked after one that does not fit; each check searches for a prefix
SET_WAIT_SHARE = 0.5  # share of the target step time that a sequence may wait while other LoRA sets compute


@dataclass(eq=False, slots=True)
class TokenRun(BatchEntry):
    """A run of tokens of one sequence in a step. ``n_outputs``: decode 1 plus drafts; prefill none, one or all."""

    at: int = field(kw_only=True)  # tokens of the sequence before these
    sequence: Sequence = field(kw_only=True)
    scored: bool = False  # prompt tokens whose log probabilities are wanted
    is_check: bool = False  # its logits are only read to check that its cells are finite
    undo: tuple[int, bytes] | None = None  # the checkpoint for rolling back drafts if the memory cannot be truncated

    @property
    def draft_tokens(self) -> Seq[int]:
        return self.tokens[1:] if self.n_outputs > 1 and not self.scored else []

    def next_output(self, first: int) -> int:
        """Return the batch output from which its next token is sampled, if its outputs start at `first`."""
        return first + self.n_outputs - 1 if self.scored else first


class Scheduler:
    """Queue, slots and budgets of one instance."""

    def __init__(
        self,
        info: RunnerInfo,
        params: EngineParams,
        counters: TokenCounters | None = None,
        ram: CacheTier | None = None,
    ) -> None:
        """Create the scheduler of an instance. Instances of a model share `counters` and `ram`."""
        params = params.on_device(is_gpu=info.deferred)
        self.info = info
        self.ram = ram_tier(params.cache_ram, info.free_bytes) if ram is None else ram
        self.params = params
        self.slots = [Slot(id=i) for i in range(info.n_seq)]
        self.ram.slots += self.slots
        self.move_budget = MoveBudget(self.slots, params.target_s, info.copy_s)
        self.placer = Placer(self.slots, self.ram, info, params, self.move_budget)
        self.kv_budget = KvBudget(self.slots, info)
        self._counters = TokenCounters() if counters is None else counters
        self.waiting: Queue[Sequence] = Queue(self._counters)
        sizes = min(params.min_chunk, info.n_batch), info.n_batch, info.n_ubatch
        self.step_size = StepSize(params.target_s, *sizes)
        self.step_size_prefill_only = StepSize(PREFILL_ONLY_S, *sizes, size=min(info.n_ubatch, info.n_batch))
        self._turn: StepGroup = ((), -1)  # the group whose turn it is
        self._turn_s = self._last_s = 0.0  # seconds of the current turn, and of its last step

    def active(self) -> Iterator[Sequence]:
        return (slot.sequence for slot in self.slots if slot.sequence is not None)

    @property
    def n_active(self) -> int:
        return sum([slot.sequence is not None for slot in self.slots])

    def enqueue(self, sequence: Sequence) -> None:
        client = sequence.request.client
        self._counters.record_request(client, had_none=not self.waiting.has(client))
        self.waiting.append(sequence)

    def place(self, now: float) -> Placement | None:
        """Remove the next sequence that can be placed from the queue and return its placement, or None."""
        if not self.waiting or self.n_active == len(self.slots) or self.move_budget.is_spent:
            return None
        budget = self.kv_budget
        budget.measure()
        blocked: list[Sequence] = []  # sequences that do not fit
        n_searches = 0
        has_live = not all(map(is_background, self.waiting))
        for sequence in self.waiting.candidates():
            if has_live and is_background(sequence):  # slots are reserved for live requests, also while these wait
                continue
            if not budget.allows_bypass(blocked):
                return None
            if budget.surely_lacks_cells(sequence):
                blocked.append(sequence)
                continue
            n_searches += bool(blocked)
            if n_searches > MAX_BYPASS_SEARCHES:
                return None
            placement = self.placer.find(sequence, now)
            if placement is None:
                continue
            if budget.fits(sequence, placement.n_in_cells(budget.held)):
                for one in blocked:
                    one.n_bypasses += 1
                self.waiting.place(sequence)
                self._counters.record_placement(sequence.request.client)
                return placement
            blocked.append(sequence)
        return None

    def background_victim(self) -> Sequence | None:
        """Return the background sequence to preempt for a live request that waits for its slot or its cells.

        Among several it is the newest, since that has the least to lose. None: no live request waits, or live sequences
        hold what it waits for.
        """
        background = [] if self.move_budget.is_spent else [s for s in self.active() if is_background(s)]
        is_full = self.n_active == len(self.slots)
        for live in [s for s in self.waiting if not is_background(s)] if background else []:
            wanted = self.placer.wanted_slot(live)
            is_bound = wanted is not None and not wanted.idle
            holders = [s for s in background if s.slot is wanted] if is_bound else background
            lacks = is_full or is_bound or self.kv_budget.surely_lacks_cells(live)
            if holders and lacks and self.kv_budget.may_fit_without(live, background):
                return max(holders, key=lambda s: s.arrival)
        return None

    @property
    def n_free(self) -> int:
        """The slots that are idle or held by background sequences, minus the live requests that wait for one."""
        n_live = sum(not is_background(s) for s in self.active())
        return len(self.slots) - n_live - sum(not is_background(s) for s in self.waiting)

    def occupy(self, placement: Placement, now: float) -> None:
        """Record that `placement` was executed; ``slot.tokens`` already equals the cells."""
        sequence, slot = placement.sequence, placement.slot
        slot.sequence, sequence.slot = sequence, slot
        self.placer.slots_changed = True
        slot.adapter_set = sequence.adapter_set
        slot.n_requests += 1
        self.kv_budget.changed()
        sequence.n_bypasses = 0
        n_to_compute = len(sequence.target) - len(slot.tokens)
        self._counters.serve(sequence.request.client, n_to_compute)
        if sequence.n_cached < 0:
            sequence.n_cached = len(slot.tokens)
            sequence.placed_at = now
        sequence.phase = Phase.PREFILL
        sequence.checkpoint_positions, sequence.fetch = self.placer.checkpoint_positions(placement), None
        if len(slot.tokens) == len(sequence.target) and sequence.output:
            sequence.phase = Phase.DECODE

    def plan(self, propose: Proposer | None = None) -> list[TokenRun]:
        """Return the runs of the next step: the next tokens of decoding sequences, with draft tokens from `propose`,
        then prefill tokens. `batches` splits them.
        """
        members = self._members()
        decoding = [s for s in members if s.phase is Phase.DECODE]
        runs = self._decode_runs(decoding, propose)
        if len(decoding) < len(members):  # otherwise, in nearly all steps, runs are in slot order
            prefilling = [s for s in members if s.phase is Phase.PREFILL]
            runs = in_batch_order(runs, self._prefill_runs(prefilling, runs), is_split=not self.info.unified)
        if self.info.n_rollback and self.info.unified:  # otherwise the library evaluates fewer runs together
            runs.sort(key=lambda run: len(run.tokens))
        return runs

    def _decode_runs(self, decoding: list[Sequence], propose: Proposer | None) -> list[TokenRun]:
        """Return the next token of each of `decoding`, followed by its draft tokens."""
        fitting, n_pending = decoding, sum([1 + s.n_rolled_back for s in decoding])
        while n_pending > self.info.n_batch:  # decode the others in a later step
            n_pending -= 1 + fitting[-1].n_rolled_back
            fitting = fitting[:-1]
        n_outputs = self.info.n_extra_outputs
        if any(s.unscored for s in self.active()):  # half of them are left to scored prompts
            n_outputs //= 2
        is_quarantined = bool(fitting) and fitting[0].quarantined_until > 0  # then it is alone
        max_drafts = 0 if is_quarantined else min(self.kv_budget.max_batch - n_pending, n_outputs)
        drafts = propose(fitting, max_drafts) if propose is not None and fitting else [[]] * len(fitting)
        return [
            TokenRun(s.held.id, s.held.pos, [*s.pending, *draft], 1 + len(draft), at=s.n_computed, sequence=s)
            for s, draft in zip(fitting, drafts, strict=True)
        ]

    def _prefill_budget(self, n_decode: int, *, is_live: bool) -> int:
        """Return the prefill tokens of a step that also has `n_decode` decode tokens.

        Steps are short while live sequences decode, and while only background sequences run, because a live request
        may arrive. A live prefill may be long, since background sequences do not take part in its steps (`_members`).
        """
        live = [s for s in self.active() if not is_background(s)]
        is_short = n_decode or not is_live or any(s.phase is Phase.DECODE for s in live)
        n_spent = self.move_budget.spent_s * self.move_budget.prefill_rate
        size = self.step_size.left_after(n_spent) if is_short else self.step_size_prefill_only.size
        if n_decode and self.params.max_prefill_tokens:
            return min(size, self.params.max_prefill_tokens)
        # with separate KV, prefill is evaluated separately: decode tokens do not reduce the budget
        return max(size - n_decode if self.info.unified else size, self.params.min_chunk if n_decode else 1)

    def _prefill_runs(self, prefilling: list[Sequence], decode: list[TokenRun]) -> list[TokenRun]:
        """Return the prefill runs of the step besides the `decode` runs, in the order of `in_prefill_order`.

        With separate KV, a prompt between two sequences of the step gets at least one token, so that its neighbours
        share an evaluation. Otherwise, in `benchmarks.simulation`, 64 slots generate an eighth of the tokens.
        """
        n_decode = sum([len(run.tokens) for run in decode])
        longest = self.kv_budget.max_batch - n_decode  # the budget may grow to this, to avoid a partial tile
        budget = min(self._prefill_budget(n_decode, is_live=not all(map(is_background, prefilling))), longest)
        if n_decode and self.params.max_prefill_tokens:
            longest = budget
        n_to_score = self.info.n_extra_outputs - sum([run.n_outputs - 1 for run in decode])
        bridging: set[int] = set()
        if decode and not self.info.unified:
            ids = {s.held.id for s in prefilling}
            bridging = set(sorted(self._bridging(ids, ids | {run.seq for run in decode}))[: budget // 2])
        runs: list[TokenRun] = []
        for s in in_prefill_order(prefilling, self.move_budget.prefill_rate, self._counters.served):
            if budget <= len(bridging) and s.held.id not in bridging:  # the rest is one token per bridging prompt
                continue
            bridging.discard(s.held.id)
            most = max(budget - len(bridging), 1)
            if not s.media:  # with media, runs end where a medium does
                most = _avoiding_partial_tile(most, len(s.target) - s.n_computed, longest - len(bridging))
            run = self._prefill_run(s, most, n_to_score, n_decode)
            if not run.tokens:  # no outputs are left in this step
                continue
            budget = max(budget - len(run.tokens), len(bridging))  # a run may exceed it to avoid a partial tile
            longest -= len(run.tokens)
            n_to_score -= run.n_outputs if run.scored else 0
            runs.append(run)
            if budget <= 0 or (n_decode and len(runs) == self.params.max_prefills):
                break
        return runs

    @staticmethod
    def _bridging(prefilling: AbstractSet[int], members: AbstractSet[int]) -> AbstractSet[int]:
        """Return the ids of `prefilling` slots whose neighbour ids are both in the step (`members`)."""
        return {seq for seq in prefilling if {seq - 1, seq + 1} <= members}

    def _prefill_run(self, s: Sequence, most: int, n_to_score: int, n_decode: int) -> TokenRun:
        """Return the next run of a prompt: at most `most` tokens, or a whole medium. `n_to_score`: outputs for the log
        probabilities of prompt tokens.
        """
        slot = s.held
        at = len(slot.tokens)
        span = span_at(s.media, at) if s.media else None
        is_medium = span is not None and span.start <= at  # decoded in a separate batch
        if is_medium and n_decode:  # decode tokens are decoded before it in a separate batch
            moves = self.move_budget
            most = min(most, self.step_size.left_after((moves.spent_s + moves.step_s) * moves.prefill_rate))
        if at < s.quarantined_until:
            most = min(most, s.quarantined_until - at)
        scored = s.unscored and at >= s.n_scored
        tokens = s.target[at : _run_end(s, span, at, at + most, n_to_score)]
        is_last = at + len(tokens) == len(s.target) and not s.output  # a resumed sequence already has its next token
        is_check = s.quarantined_until > 0 and not (scored or is_last)
        n_outputs = len(tokens) if scored and not is_medium else int(scored or is_last or is_check)
        media = MediaInput(span, s.encodings[span.start].result(), at - span.start) if span and is_medium else None
        return TokenRun(
            slot.id, slot.pos, tokens, n_outputs, media, at=at, sequence=s, scored=scored, is_check=is_check
        )

    def relocation(self, fixed: AbstractSet[int]) -> tuple[Slot, Slot] | None:
        """Return `Placer.relocation`, also while requests wait: an idle slot that they cannot use now would split the
        decoding sequences meanwhile.
        """
        return self.placer.relocation(fixed) if _may_share_step(list(self.active())) else None

    def _members(self) -> list[Sequence]:
        """Return the sequences of the next step.

        One LoRA set computes a step, so sets take turns. Quarantined sequences take turns, too: those of a rejected
        batch, and those whose cells may make the logits of others non-finite. Each of their runs is checked
        (`TokenRun.is_check`).

        A turn lasts several steps, because the library plans its memory again after each change of the set. The turns
        of all other sets together last at most `SET_WAIT_SHARE` of the target step time. Sets follow in order.
        """
        active = [s for slot in self.slots if (s := slot.sequence) and not (s.encodings and s.awaits_media)]
        if [s for s in active if s.phase is Phase.PREFILL and not is_background(s)]:
            active = [s for s in active if not is_background(s)]
        if _may_share_step(active):
            return active
        sets = sorted({_step_group(s) for s in active})
        wait_s = (self._turn_s + self._last_s) * (len(sets) - 1)  # of each other set, if the turn lasts another step
        longest_s = min(self.params.target_s, PREFILL_ONLY_S) * SET_WAIT_SHARE
        continues = wait_s <= longest_s and all(quarantined < 0 for _, quarantined in sets)
        if self._turn not in sets or not continues:
            self._turn = next((one for one in sets if one > self._turn), sets[0])
            self._turn_s = self._last_s = 0.0
        return [s for s in active if _step_group(s) == self._turn]

    def commit(self, runs: list[TokenRun], seconds: float, *, is_timed: bool = True) -> None:
        """Record that `runs` were decoded in `seconds`: their tokens are in the cells. If not `is_timed`, `seconds` are
        not their duration.
        """
        self.kv_budget.decoded()
        self.move_budget.spent_s = 0.0  # other sequences got their tokens; the next work has a full step's time
        self._turn_s, self._last_s = self._turn_s + seconds, seconds
        n_tokens, n_of_prompts, n_prompts, decode_phase = 0, 0, 0, Phase.DECODE
        for run in runs:
            sequence, tokens = run.sequence, run.tokens
            slot, n = sequence.slot, len(tokens)
            assert slot is not None
            slot.tokens.extend(tokens)
            if run.media is not None and not run.media.first:
                slot.media = (*slot.media, run.media.span.kept)
            n_tokens += n
            if sequence.quarantined_until and len(slot.tokens) >= sequence.quarantined_until:
                sequence.quarantined_until = 0
            if sequence.phase is decode_phase:
                sequence.n_rolled_back = 0
                self._counters.serve(sequence.request.client, OUTPUT_WEIGHT)
                continue
            n_prompts += 1
            n_of_prompts += n
            if len(slot.tokens) == len(sequence.target):
                sequence.phase, sequence.encodings = decode_phase, {}
        n_copies, self.move_budget.n_copies = self.move_budget.n_copies, 0
        if n_copies or not is_timed:
            return
        if not n_prompts:
            self.move_budget.observe_step(seconds)
        else:
            self.move_budget.observe_computed(n_of_prompts, seconds, decodes=n_prompts < len(runs))
            size = self.step_size_prefill_only if n_prompts == len(runs) else self.step_size
            size.observe(n_tokens if self.info.unified else n_of_prompts, seconds)

    def release(self, sequence: Sequence, now: float) -> None:
        """Free the slot of a sequence that has ended; its cells remain as a cache."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
            if sequence.offloaded is not None:
                self.ram.remove(sequence.offloaded)
        else:
            self._vacate_slot(sequence, now)
            self.kv_budget.ended()

    def _vacate_slot(self, sequence: Sequence, now: float) -> None:
        slot = sequence.held
        if sequence.phase is Phase.PREFILL:  # the rest will not be computed
            n_left = len(sequence.target) - len(slot.tokens)
            self._counters.serve(sequence.request.client, -n_left)
        slot.sequence, sequence.slot, slot.last = None, None, sequence
        slot.last_used = now
        self.kv_budget.changed()
        self.placer.slots_changed = True

    def requeue(self, sequence: Sequence, now: float) -> None:
        """Take the slot from a sequence and put it at the head of the queue. Its generated tokens must be in the cells
        again before it continues.
        """
        self._vacate_slot(sequence, now)
        sequence.target = sequence.content
        if len(sequence.output) > sequence.base_output:  # its last token is not in the cells
            del sequence.target[-1:]
        sequence.n_rolled_back = 0
        sequence.phase = Phase.WAITING
        self.waiting.requeue(sequence)

    def check_integrity(self) -> None:
        """Verify that every slot and cell is accounted for once. Raises AssertionError."""
        for slot in self.slots:
            slot.check(self.info.n_ctx_seq)
        for s in self.waiting:
            assert s.slot is None, "a waiting sequence has a slot"
            assert s.phase is Phase.WAITING, "a waiting sequence is not waiting"
        self.ram.check_integrity()


def in_batch_order(decode: list[TokenRun], prefill: list[TokenRun], *, is_split: bool) -> list[TokenRun]:
    """Return the runs of a step in the order of the batch: by slot id.

    With separate KV (`is_split`), the library evaluates runs with consecutive ids together, and all of them then attend
    to as many cells as the longest. So prefills longer than all `decode` runs move to the start of the batch, or to its
    end if no shorter run adjoins them on the left. Prefills between two shorter runs stay there and bridge them.
    """
    at_start, by_id, at_end = range(3)
    longest = max([len(run.tokens) for run in decode], default=0)
    is_long = {run.seq: len(run.tokens) > longest for run in (*decode, *prefill)}

    def key(run: TokenRun) -> tuple[int, int]:
        if not (is_split and decode and is_long[run.seq]):
            return by_id, run.seq
        has_left, has_right = (
            next(seq for seq in count(run.seq, step) if not is_long.get(seq)) in is_long for step in (-1, 1)
        )
        return (by_id if has_left and has_right else at_start if has_left else at_end), run.seq

    return sorted([*decode, *prefill], key=key)


def batches(runs: list[TokenRun], n_ubatch: int) -> Iterator[list[TokenRun]]:
    """Split the `runs` of a step into batches, one library call each: text, causal media, and non-causal media of equal
    size, as many as one evaluation holds (llama-batch.cpp, split_equal would cut a longer one).
    """
    if not [run for run in runs if run.media is not None]:
        yield runs
        return
    text, causal = -2, -1
    groups: dict[int, list[TokenRun]] = {text: [], causal: []}  # those of non-causal media by their size
    for run in runs:
        kind = text if run.media is None else causal if run.media.causal else len(run.tokens)
        groups.setdefault(kind, []).append(run)
    for size, group in groups.items():
        most = max(n_ubatch // size, 1) if size > 0 else len(runs)
        for start in range(0, len(group), most):
            # without sequences that ended with an earlier batch
            if live := [run for run in group[start : start + most] if run.sequence.slot is not None]:
                yield live


def _avoiding_partial_tile(most: int, left: int, longest: int) -> int:
    """Return how many of a prompt's `left` tokens to compute, about `most`, so that the last run is no partial tile.

    After 1,800 tokens, 62 tokens take 270 ms on a CPU where 64 take 170 ms: ggml computes them one by one. `longest`:
    tokens that still fit into the batch.
    """
    if not TILE_TOKENS <= most < left < most + TILE_TOKENS:
        return most
    return left if left < 2 * TILE_TOKENS and left <= longest else max(left - TILE_TOKENS, TILE_TOKENS)


def _run_end(s: Sequence, span: MediaSpan | None, at: int, end: int, n_to_score: int) -> int:
    """Return the end of a prefill run from `at`, at most `end`. It stops where an aLoRA starts, at a checkpoint,
    before the medium `span` or at its end, and after `n_to_score` outputs. A non-causal medium is always one run.
    """
    if at < s.adapter_set.start < end:
        end = s.adapter_set.start
    end = min((mark for mark in s.checkpoint_positions if at < mark < end), default=end)
    is_medium = span is not None and span.start <= at
    if span is not None:
        whole = is_medium and span.chunk is not None and not span.chunk.causal
        end = span.end if whole else min(end, span.end if is_medium else span.start)
    if not s.unscored:
        return end
    if at < s.n_scored:  # it was preempted, and scored tokens are recomputed
        return min(end, s.n_scored)
    if is_medium:  # its last token gives the log probability of the text after it
        return end if n_to_score else at
    return min(end, at + n_to_score)


def is_background(sequence: Sequence) -> bool:
    """Return whether a sequence uses only idle capacity (`BACKGROUND_PRIORITY`)."""
    return sequence.request.priority >= BACKGROUND_PRIORITY


def _step_group(sequence: Sequence) -> StepGroup:
    slot = sequence.slot
    return sequence.next_adapters, slot.id if sequence.quarantined_until and slot is not None else -1


def _may_share_step(active: list[Sequence]) -> bool:
    """Return whether all of `active` have the same LoRA set and none is quarantined."""
    if not [s for s in active if s.quarantined_until or s.ticket.adapter_set.adapters]:
        return True
    return len({_step_group(s) for s in active}) < 2
