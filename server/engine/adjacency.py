"""Which slots running sequences should have, so that a step needs few graph evaluations: adjacent ones. Pure;
`Cells.relocate` carries a relocation out.

With separate KV streams the library evaluates together only sequences with adjacent ids and equal token counts
(llama-batch.cpp, split_equal with ``sequential``; llama-kv-cache.cpp, init_batch). Each gap between ids and each
additional length reads all weights once more: 4 sequences in slots 0, 2, 4 and 6 run at about half the speed of 4 in
slots 0 to 3. The runner pads runs of similar length (`server.llama.context.batch`).
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet

from server.engine.cache.move_budget import MoveBudget
from server.engine.runner_api import RunnerInfo
from server.engine.sequence import Phase, Sequence, Slot


def n_id_groups(ids: AbstractSet[int]) -> int:
    """Return the number of groups of consecutive ids, which is the number of evaluations for one token each."""
    return sum([seq - 1 not in ids for seq in ids])


def n_more_id_groups(seq: int, others: AbstractSet[int]) -> int:
    """Return how `seq` changes the number of groups of `others`: 1 if separate, 0 next to one, -1 between two."""
    return 1 - (seq - 1 in others) - (seq + 1 in others)


def ids_in_use(slots: Seq[Slot]) -> AbstractSet[int]:
    return {slot.id for slot in slots if not slot.idle}


def slot_price(slots: Seq[Slot], info: RunnerInfo, moves: MoveBudget) -> Callable[[Slot], tuple[float, int]]:
    """Return the price of each idle slot for `first_to_evict`.

    It is the cost of more evaluations per step in the unit of keep value: prefill tokens per second.
    """
    running = ids_in_use(slots)
    evaluation = moves.computed * _evaluation_s(info, moves) / moves.step_s if moves.step_s else 0.0

    def price(slot: Slot) -> tuple[float, int]:
        n = n_more_id_groups(slot.id, running)
        return n * evaluation, n

    return price


def relocation(
    slots: Seq[Slot], info: RunnerInfo, moves: MoveBudget, fixed: AbstractSet[int], *, is_kept: bool
) -> tuple[Slot, Slot] | None:
    """Return (source, target) of the relocation that saves the most time, or None.

    A sequence in `source` goes to the idle slot `target` so that steps need fewer evaluations. Slots in `fixed`,
    and slots requested by id, do not take part. A decoding sequence is expected to generate as many tokens again as
    it has generated, but not past its limit. The contents of `target` are lost, or moved if states are kept
    (`is_kept`). The copy takes at most half of a step, because the other sequences wait for it in addition to their
    step.
    """
    running, evaluation_s = ids_in_use(slots), _evaluation_s(info, moves)
    if not evaluation_s:
        return None
    longest_s = moves.target_s / 2 - moves.spent_s
    movable = [
        slot
        for slot in slots
        if slot.id not in fixed and not any(s and s.request.id_slot >= 0 for s in (slot.sequence, slot.last))
    ]
    targets = [(slot, moves.lost_s(len(slot.tokens), is_kept=is_kept)) for slot in movable if slot.idle]
    best, most_s = None, 0.0
    for source in movable:
        n_less, take_s = n_more_id_groups(source.id, running), moves.take_s(len(source.tokens))
        # a sequence between two others would split them, which saves nothing
        if (s := source.sequence) is None or s.phase is not Phase.DECODE or n_less < 0 or take_s > longest_s:
            continue
        others, saves_s = running - {source.id}, _steps_left(s) * evaluation_s
        for target, lost_s in targets:
            saved_s = (n_less - n_more_id_groups(target.id, others)) * saves_s - take_s - lost_s
            if saved_s > most_s:
                best, most_s = (source, target), saved_s
    return best


def _evaluation_s(info: RunnerInfo, moves: MoveBudget) -> float:
    """Return the seconds of an additional evaluation; never more than a measured step."""
    return min(info.evaluation_s, moves.step_s or math.inf)


def _steps_left(sequence: Sequence) -> int:
    n, most = len(sequence.output), sequence.ticket.request.max_tokens
    return n if most < 0 else min(n, most - n)
