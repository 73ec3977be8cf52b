"""Predicted costs: moving a state between cells and RAM compared with recomputing, and how often a step evaluates the
graph. Pure; times are arguments.

With separate KV streams the library evaluates together only sequences with adjacent ids and equal token counts
(llama-batch.cpp, split_equal with ``sequential``; llama-kv-cache.cpp, init_batch). Each gap between ids and each
additional length reads all weights once more: 4 sequences in slots 0, 2, 4 and 6 run at about half the speed of 4 in
slots 0 to 3. So running sequences are brought together (`best_relocation`),
and the runner pads runs of similar length (`server.llama.context.padding`).
"""

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from server.engine.sequence import Phase, Sequence, Slot

NEGLIGIBLE_S = 0.005  # faster moves are always made
ASSUMED_RATE = 500e6  # bytes per second before the first measurement: a slow machine
ASSUMED_BYTES = 128 << 10  # KV bytes per token before the first measurement: an 8 B model
MIN_SAMPLE_TOKENS = 256  # smaller states do not show bytes per token: a recurrent state has a constant part
FEW_PIECES = 16  # with more pieces the time does not show the bandwidth


@dataclass(slots=True)
class MoveCost:
    """What was measured on this machine with this model; 0 = not measured yet."""

    computed: float = 0.0  # prompt tokens per second
    bandwidth: float = 0.0  # bytes per second between cells and RAM
    bytes_per_token: float = 0.0  # of the last state with enough tokens
    step_s: float = 0.0  # of a step that only decodes, moving average
    copy_s: float = 0.0  # of a copy between separate streams, measured at load; 0 = unknown, or copies are free
    piece_s: float = 0.0
    """Seconds per contiguous piece of cells besides its bytes: the library copies each piece of each layer separately.
    """

    def observe_computed(self, n_tokens: int, seconds: float) -> None:
        """Record a prefill."""
        self.computed = _mean(self.computed, n_tokens, seconds)

    def observe_step(self, seconds: float) -> None:
        """Record the duration of a step that only decodes."""
        self.step_s += (seconds - self.step_s) / 8 if self.step_s else seconds

    def observe_move(self, n_tokens: int, n_bytes: int, seconds: float, n_pieces: int = 1) -> None:
        """Record that a state whose cells lie in `n_pieces` pieces was saved or loaded."""
        if n_tokens >= MIN_SAMPLE_TOKENS or not self.bytes_per_token:
            self.bytes_per_token = n_bytes / n_tokens
        if n_pieces < FEW_PIECES:
            self.bandwidth = _mean(self.bandwidth, n_bytes, seconds)
            return
        seen_s = max(seconds - n_bytes / (self.bandwidth or ASSUMED_RATE), 0.0) / n_pieces
        self.piece_s += (seen_s - self.piece_s) / 2

    def move_s(self, n_bytes: int, n_pieces: int = 1) -> float:
        """Return the predicted seconds to save or load a state; conservative before the first measurement."""
        return n_bytes / (self.bandwidth or ASSUMED_RATE) + max(n_pieces - 1, 0) * self.piece_s

    def round_trip_s(self, n_tokens: int, n_pieces: int = 1) -> float:
        """Return the predicted seconds to save and load `n_tokens`."""
        n_bytes = int(n_tokens * (self.bytes_per_token or ASSUMED_BYTES))
        return self.move_s(n_bytes, n_pieces) + self.move_s(n_bytes)

    def state_is_quicker(self, n_held: int, target_s: float) -> bool:
        """Whether moving the state of `n_held` tokens is faster than copying the whole stream, and shorter than a
        step.
        """
        return self.round_trip_s(n_held) < min(self.copy_s, target_s)

    def copy_pays(self, n_tokens: int, n_held: int, target_s: float) -> bool:
        """Whether taking over a stream of `n_held` tokens is faster than computing `n_tokens`."""
        compute_s = self.compute_s(n_tokens)
        take_s = self.round_trip_s(n_held) if self.state_is_quicker(n_held, target_s) else self.copy_s
        return not compute_s or take_s < compute_s

    def compute_s(self, n_tokens: int) -> float:
        """Return the predicted seconds to prefill `n_tokens`; 0 = unknown."""
        return n_tokens / self.computed if self.computed else 0.0

    def pays(self, n_tokens: int, n_lost: int, n_pieces: int = 1) -> bool:
        """Whether saving `n_tokens` and loading them once is faster than recomputing `n_lost`."""
        compute_s = self.compute_s(n_lost)
        if not (compute_s and self.bytes_per_token):
            return True
        return self.round_trip_s(n_tokens, n_pieces) < max(compute_s, NEGLIGIBLE_S)


def _mean(rate: float, units: float, seconds: float) -> float:
    """Return a moving average of a rate."""
    seen = units / seconds if units > 0 and seconds > 0 else rate
    return rate + (seen - rate) / 4 if rate else seen


MAX_CANDIDATES = 8  # sources and targets of a relocation; each pair is compared


def n_runs(ids: AbstractSet[int]) -> int:
    """Return the number of runs of consecutive ids, which is the number of evaluations for one token each."""
    return sum([seq - 1 not in ids for seq in ids])


def n_more_runs(seq: int, others: AbstractSet[int]) -> int:
    """Return how `seq` changes the number of runs of `others`: 1 if separate, 0 at the end of a run, -1 between two
    runs.
    """
    return 1 - (seq - 1 in others) - (seq + 1 in others)


def between(prompts: AbstractSet[int], members: AbstractSet[int]) -> AbstractSet[int]:
    """Return those of `prompts` with a neighbour of `members` on both sides: they join the neighbours to one run."""
    return {seq for seq in prompts if {seq - 1, seq + 1} <= members}


def best_relocation(
    slots: Collection[Slot],
    evaluation_s: float,
    price_s: Callable[[Slot, Slot], float],
    longest_s: float,
    fixed: AbstractSet[int],
) -> tuple[Slot, Slot] | None:
    """Return (source, target) of the relocation that saves the most time, or None.

    A sequence in `source` moves to the idle slot `target` so that steps need fewer evaluations. Slots in `fixed`,
    and slots requested by id, do not take part. A decoding sequence is expected to generate as many tokens again as
    it has generated, but not past its limit. No relocation takes longer than `longest_s`.
    """
    running = {slot.id for slot in slots if slot.sequence is not None}
    if n_runs(running) < 2:
        return None
    sources = [  # a sequence between two others would split them, which saves nothing
        (-n_less, -_steps_left(s), slot.id, slot)
        for slot in slots
        if (s := slot.sequence) is not None
        and (n_less := n_more_runs(slot.id, running)) >= 0
        and s.phase is Phase.DECODE
        and slot.id not in fixed
        and not _is_asked_for(slot)
    ]
    targets = [
        (n_more_runs(slot.id, running), len(slot.tokens), slot.id, slot)
        for slot in slots
        if slot.sequence is None and slot.id not in fixed and not _is_asked_for(slot)
    ]
    sources.sort()
    targets.sort()
    best, most_s = None, 0.0
    for n_runs_more, n_steps_less, _, source in sources[:MAX_CANDIDATES]:
        others = running - {source.id}
        for *_, target in targets[:MAX_CANDIDATES]:
            n_saved = -n_runs_more - n_more_runs(target.id, others)
            if n_saved <= 0:
                continue
            takes_s = price_s(source, target)
            saved_s = n_saved * -n_steps_less * evaluation_s - takes_s
            if takes_s <= longest_s and saved_s > most_s:
                best, most_s = (source, target), saved_s
    return best


def _is_asked_for(slot: Slot) -> bool:
    """Whether its holder or last holder requested this slot by id."""
    holders = (slot.sequence, slot.last)
    return any(one is not None and one.ticket.request.id_slot >= 0 for one in holders)


def _steps_left(sequence: Sequence) -> int:
    n, most = len(sequence.output), sequence.ticket.request.max_tokens
    return n if most < 0 else min(n, most - n)
