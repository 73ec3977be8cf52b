"""How often a step's graph is evaluated, and which slots it is best for sequences to run in. Pure.

With separate KV streams the library evaluates together only sequences whose ids follow one another, as many tokens of
each (llama-batch.cpp, split_equal with ``sequential``; llama-kv-cache.cpp, init_batch). Each gap between ids, and each
further length, reads all weights once more: 4 streams in slots 0, 2, 4 and 6 run at about half the speed of 4 in slots
0 to 3, and prompts of 4 to 7 tokens take four evaluations. So running sequences are brought together
(`best_relocation`), and runs of nearly one length are filled up to it (`filled`, used by
`server.llama.context.runner`).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from math import inf

from server.engine.sequence import Phase, Sequence, Slot

MOST_LOOKED_AT = 8  # sources and targets of a relocation; each pair of them is compared


def filled(lengths: Seq[int], evaluation_tokens: float, n_ubatch: int) -> list[int]:
    """Lengths that runs of `lengths` tokens of consecutive sequences are better evaluated with: shorter ones are filled
    up with tokens that are forgotten again, where these take less time than further evaluations, each as dear as
    `evaluation_tokens`: of those that are longer than others, one for each gap between them, too."""
    counts = Counter(lengths)
    ends = sorted(counts)
    shortest = [_shortest_of_runs(lengths, end) for end in ends]
    costs, firsts = [0.0], [0]
    for at, end in enumerate(ends):  # all that are no longer than this, at the least cost
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
    """Of each run of consecutive sequences with so many tokens the least number, in order: up to this one they are
    evaluated together."""
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
    """Where a run stands in a batch; `is_longer`: than those of all `streams`.

    By its sequence, but that a prompt which joins no streams is evaluated by itself: its first token with theirs would
    save no evaluation, let all of them attend to as many cells as the prompt has, and what is left of it would no
    longer be a whole number of the tiles that attention is computed in (`prefill`). The library joins a run to one
    before it in the batch.
    """
    if not is_longer or seq in streams or seq in joins:
        return 1, seq
    return 0 if seq - 1 in streams else 2, seq


def n_beside(tokens: Mapping[int, int], seq: int) -> int:
    """How many tokens of a long run of `seq` share evaluations with those of its neighbours, `tokens` by sequence."""
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
        if not n_each:  # it is evaluated by itself now
            break
        n += n_each * (seq in members)
        for one in members:
            if one != seq:
                left[one] -= n_each
        left = {one: n for one, n in left.items() if n}
    return n


def n_runs(ids: AbstractSet[int]) -> int:
    """Runs of consecutive ids: evaluations of one token each."""
    return sum([seq - 1 not in ids for seq in ids])


def n_more_runs(seq: int, others: AbstractSet[int]) -> int:
    """What `seq` adds to the runs of `others`: 1 by itself, 0 at a run's end, -1 between two that it joins."""
    return 1 - (seq - 1 in others) - (seq + 1 in others)


def between(streams: AbstractSet[int], prompts: AbstractSet[int]) -> list[int]:
    """Those of `prompts` that join streams to one run, if each of them takes part in the step: whole gaps of them."""
    found: list[int] = []
    gap: list[int] = []
    last = None  # of `streams` or `gap`
    for seq in sorted(streams | prompts):
        if last is None or seq != last + 1:
            gap, last = [], None
        if seq in streams:
            found += gap
            gap, last = [], seq
        elif last is not None:  # before the first stream, nothing is joined
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
    """From which slot to which idle one a sequence is best brought, so that steps need fewer evaluations, if that saves
    more than its price; no slot of `fixed` has a part in it, and none that somebody asks for by its id.

    A stream is expected to go on for as long as it has gone on, but not past its limit. Nobody is held up for more than
    `longest_s`.
    """
    running = {slot.id for slot in slots if slot.sequence is not None}
    if n_runs(running) < 2:
        return None
    sources = [  # who stands between two others parts them when he goes, so that nothing is saved
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
    for n_runs_more, n_steps_less, _, source in sources[:MOST_LOOKED_AT]:
        others = running - {source.id}
        for *_, target in targets[:MOST_LOOKED_AT]:
            n_saved = -n_runs_more - n_more_runs(target.id, others)
            if n_saved <= 0:
                continue
            takes_s = price_s(source, target)
            saved_s = n_saved * -n_steps_less * evaluation_s - takes_s
            if takes_s <= longest_s and saved_s > most_s:
                best, most_s = (source, target), saved_s
    return best


def _is_asked_for(slot: Slot) -> bool:
    """Whether who holds it, or who held it last, wanted this slot and no other."""
    holders = (slot.sequence, slot.last)
    return any(one is not None and one.ticket.request.id_slot >= 0 for one in holders)


def _steps_left(sequence: Sequence) -> int:
    n, most = len(sequence.output), sequence.ticket.request.max_tokens
    return n if most < 0 else min(n, most - n)
