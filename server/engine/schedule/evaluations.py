"""How often a step's graph is evaluated, and which slots need the fewest evaluations. Pure.

With separate KV streams the library evaluates together only sequences with adjacent ids and equal token counts
(llama-batch.cpp, split_equal with ``sequential``; llama-kv-cache.cpp, init_batch). Each gap between ids and each
additional length reads all weights once more: 4 sequences in slots 0, 2, 4 and 6 run at about half the speed of 4 in
slots 0 to 3. So running sequences are brought together (`best_relocation`), and runs of similar length are padded
(`padded_lengths`, used by `server.llama.context.runner`).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from math import inf

from server.engine.sequence import Phase, Sequence, Slot

MAX_CANDIDATES = 8  # sources and targets of a relocation; each pair is compared


def padded_lengths(lengths: Seq[int], evaluation_tokens: float, n_ubatch: int) -> list[int]:
    """Return better lengths for runs of `lengths` tokens of consecutive sequences.

    Shorter runs are padded with tokens that are removed afterwards, where padding costs less than additional
    evaluations of `evaluation_tokens` each.
    """
    counts = Counter(lengths)
    ends = sorted(counts)
    shortest = [_shortest_of_runs(lengths, end) for end in ends]
    costs, firsts = [0.0], [0]
    for at, end in enumerate(ends):  # cheapest padding of all runs up to this length
        best, best_first, n, n_filled = inf, at, 0, 0
        for first in range(at, -1, -1):
            n_more = counts[ends[first]] * (end - ends[first])
            n += counts[ends[first]]
            n_filled += n_more
            if n_more and (n_more > evaluation_tokens * len(shortest[first + 1]) or n * end > n_ubatch):
                break
            cost = costs[first] + n_filled + evaluation_tokens * bisect_right(shortest[first], end)
            if cost < best:
                best, best_first = cost, first
        costs.append(best)
        firsts.append(best_first)
    to: dict[int, int] = {}
    at = len(ends)
    while at:
        first = firsts[at]
        to |= dict.fromkeys(ends[first:at], ends[at - 1])
        at = first
    return [to[n] for n in lengths]


def _shortest_of_runs(lengths: Seq[int], least: int) -> list[int]:
    """Return, sorted, the minimum of each run of consecutive sequences that have at least `least` tokens."""
    found: list[int] = []
    joins = False
    for n in lengths:
        if n < least:
            joins = False
        elif joins:
            found[-1] = min(found[-1], n)
        else:
            found.append(n)
            joins = True
    return sorted(found)


def batch_order(seq: int, is_longer: bool, streams: AbstractSet[int], joins: AbstractSet[int]) -> tuple[int, int]:
    """Return the sort key of a run in the batch. `is_longer`: longer than the runs of all `streams`.

    Runs are ordered by sequence, except a prompt that joins no decoding sequences: it is evaluated alone. Evaluating
    its first token with theirs would save no evaluation, would make all of them attend to as many cells as the
    prompt has, and would leave a number of tokens that is no multiple of the attention tile (`prefill`). The library
    joins a run to the one before it in the batch.
    """
    if not is_longer or seq in streams or seq in joins:
        return 1, seq
    return 0 if seq - 1 in streams else 2, seq


def n_beside(tokens: Mapping[int, int], seq: int) -> int:
    """Return how many tokens of a long run of `seq` share evaluations with its neighbours; `tokens` by sequence."""
    first = last = seq
    while first - 1 in tokens:
        first -= 1
    while last + 1 in tokens:
        last += 1
    left = {one: tokens[one] for one in range(first, last + 1) if one != seq}
    n = 0
    while left:
        one, members = min(*left, seq), []
        while one in left or one == seq:
            members.append(one)
            one += 1
        n_each = min([left[one] for one in members if one != seq], default=0)
        if not n_each:  # the rest is evaluated alone
            break
        n += n_each * (seq in members)
        for one in members:
            if one != seq:
                left[one] -= n_each
        left = {one: n for one, n in left.items() if n}
    return n


def n_runs(ids: AbstractSet[int]) -> int:
    """Return the number of runs of consecutive ids, which is the number of evaluations for one token each."""
    return sum([seq - 1 not in ids for seq in ids])


def n_more_runs(seq: int, others: AbstractSet[int]) -> int:
    """Return how `seq` changes the number of runs of `others`: 1 if separate, 0 at the end of a run, -1 between two
    runs.
    """
    return 1 - (seq - 1 in others) - (seq + 1 in others)


def between(streams: AbstractSet[int], prompts: AbstractSet[int]) -> list[int]:
    """Return those of `prompts` that join decoding sequences to one run if each takes part in the step; whole gaps
    only.
    """
    found: list[int] = []
    gap: list[int] = []
    last = None  # last id in `streams` or `gap`
    for seq in sorted(streams | prompts):
        if last is None or seq != last + 1:
            gap, last = [], None
        if seq in streams:
            found += gap
            gap, last = [], seq
        elif last is not None:  # before the first decoding sequence, nothing is joined
            gap.append(seq)
            last = seq
    return found


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
