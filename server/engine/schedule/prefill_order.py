"""Which prompt gets the tokens of a step that no generating slot needs. Pure.

A step's tokens go to one prompt before the next, since many short runs cost more than a long one. The order is that of
one number, in tokens, the least first: what is left to compute, so that a short prompt does not stand behind a
long one; what its client was served more than others; and less, the longer it has its slot: so none starves.
"""

from collections.abc import Callable, Iterable, Mapping

from server.engine.sequence import Sequence

WAIT_WEIGHT = 0.25
"""Of the tokens that could be computed while a prompt waits: a long one is passed by shorter ones that come within four
times of what computing it takes. In `benchmarks.simulation`, 0.1 has longer first tokens at p99, 1.0 at p50."""
PRIORITY_S = 600.0
"""A step of `priority` counts as so much waiting."""
UNSEEN_RATE = 1000.0  # prompt tokens per second, before any were computed


def in_order(
    prompts: Iterable[Sequence], rate: float, served: Callable[[str], float], inherited: Mapping[Sequence, int]
) -> list[Sequence]:
    """`prompts`, the first to be computed first, at so many tokens per second (0 = not known); of clients that were
    `served` so many.

    ``inherited``: priorities other than their own, of prompts that others wait for.
    """
    order = list(prompts)
    if len(order) < 2:
        return order
    counts = [served(s.request.client) for s in order]
    least, rate = min(counts), rate or UNSEEN_RATE
    keys = []
    for i, (s, n_served) in enumerate(zip(order, counts, strict=True)):
        waits_since = s.placed_at + PRIORITY_S * inherited.get(s, s.request.priority)
        aged = len(s.target) - s.n_computed + n_served - least + WAIT_WEIGHT * rate * waits_since
        keys.append((aged, s.ticket.submitted_at, s.index, i))
    return [order[i] for *_, i in sorted(keys)]
