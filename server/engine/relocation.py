"""How often a step evaluates the graph, and relocations that bring running sequences together. Pure.

With separate KV streams the library evaluates together only sequences with adjacent ids and equal token counts
(llama-batch.cpp, split_equal with ``sequential``; llama-kv-cache.cpp, init_batch). Each gap between ids and each
additional length reads all weights once more: 4 sequences in slots 0, 2, 4 and 6 run at about half the speed of 4 in
slots 0 to 3. So running sequences are brought together, and the runner pads runs of similar length
(`server.llama.context.padding`).
"""

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet

from server.engine.sequence import Phase, Sequence, Slot

MAX_CANDIDATES = 8  # sources and targets of a relocation; each pair is compared


def n_runs(ids: AbstractSet[int]) -> int:
    """Return the number of runs of consecutive ids, which is the number of evaluations for one token each."""
    return sum([seq - 1 not in ids for seq in ids])


def n_more_runs(seq: int, others: AbstractSet[int]) -> int:
    """Return how `seq` changes the number of runs of `others`: 1 if separate, 0 at the end of a run, -1 between two
    runs.
    """
    return 1 - (seq - 1 in others) - (seq + 1 in others)


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
    movable = [slot for slot in slots if slot.id not in fixed and not _is_asked_for(slot)]
    sources = [  # a sequence between two others would split them, which saves nothing
        (n_less, _steps_left(s), slot)
        for slot in movable
        if (s := slot.sequence) is not None
        and s.phase is Phase.DECODE
        and (n_less := n_more_runs(slot.id, running)) >= 0
    ]
    sources.sort(key=lambda source: (-source[0], -source[1], source[2].id))
    targets = [slot for slot in movable if slot.sequence is None]
    targets.sort(key=lambda slot: (n_more_runs(slot.id, running), len(slot.tokens), slot.id))
    best, most_s = None, 0.0
    for n_less, n_steps, source in sources[:MAX_CANDIDATES]:
        others = running - {source.id}
        for target in targets[:MAX_CANDIDATES]:
            n_saved = n_less - n_more_runs(target.id, others)
            if n_saved <= 0:
                continue
            takes_s = price_s(source, target)
            saved_s = n_saved * n_steps * evaluation_s - takes_s
            if takes_s <= longest_s and saved_s > most_s:
                best, most_s = (source, target), saved_s
    return best


def _is_asked_for(slot: Slot) -> bool:
    """Return whether its holder or last holder requested this slot by id."""
    holders = (slot.sequence, slot.last)
    return any(one is not None and one.ticket.request.id_slot >= 0 for one in holders)


def _steps_left(sequence: Sequence) -> int:
    n, most = len(sequence.output), sequence.ticket.request.max_tokens
    return n if most < 0 else min(n, most - n)
