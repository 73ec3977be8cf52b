"""Pad runs of similar length so that the library evaluates them together.

With separate KV streams the library evaluates together only adjacent sequences with equal token counts
(llama-batch.cpp, split_equal with ``sequential``). Each additional length in a group of adjacent sequences reads all
weights once more. A shorter run is padded with tokens that the runner removes afterwards, where that costs less.
"""

from collections.abc import Sequence

from server.engine.runner_api import BatchEntry


def padded_lengths(entries: Sequence[BatchEntry], evaluation_tokens: float, n_ubatch: int) -> list[int]:
    """Return the number of tokens with which each of `entries` is decoded, at least its own.

    Only entries with outputs are padded: the others continue in the next step.
    `evaluation_tokens`: tokens that take as long as one additional evaluation.
    """
    lengths = [len(entry.tokens) for entry in entries]
    start = 0
    for end in range(1, len(entries) + 1):
        if end == len(entries) or entries[end].seq != entries[end - 1].seq + 1:
            group = [i for i in range(start, end) if entries[i].n_outputs]
            for i, n in zip(group, _padded([lengths[i] for i in group], evaluation_tokens, n_ubatch), strict=True):
                lengths[i] = n
            start = end
    return lengths


def _padded(lengths: list[int], evaluation_tokens: float, n_ubatch: int) -> list[int]:
    """Return `lengths` of adjacent sequences, some raised to a longer one.

    From the longest down, each target takes as many of the shorter lengths as lowers the cost most.
    """
    target = max(lengths, default=0)
    while target:
        best, best_floor, best_cost = lengths, target, sum(lengths) + evaluation_tokens * n_evaluations(lengths)
        for floor in sorted({n for n in lengths if n < target}, reverse=True):
            raised = [target if floor <= n < target else n for n in lengths]
            if raised.count(target) * target > n_ubatch:
                break
            cost = sum(raised) + evaluation_tokens * n_evaluations(raised)
            if cost < best_cost:
                best, best_floor, best_cost = raised, floor, cost
        lengths, target = best, max([n for n in lengths if n < best_floor], default=0)
    return lengths


def n_evaluations(lengths: Sequence[int]) -> int:
    """Return the number of evaluations of adjacent sequences with these token counts.

    The first evaluation takes the shortest count of tokens of all sequences. Those with tokens left form smaller
    groups, which are evaluated the same way.
    """
    n, levels = 0, list[int]()  # `levels`: token counts at which the groups around the current sequence begin
    for length in lengths:
        while levels and levels[-1] > length:
            levels.pop()
        if not levels or levels[-1] < length:
            levels.append(length)
            n += 1
    return n
