"""Which prompt gets the tokens of a step that no generating slot needs. Pure.

A step's tokens go to one prompt before the next, since many short runs cost more than a long one. Lower `priority`
comes first (also that of one who waits for a prompt's beginning), then the client that was served less by more than a
batch, then the prompt with the least left to compute: a short one does not stand behind a long one. One step in
`OLDEST` begins with the oldest instead: none starves.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter

from server.engine.sequence import Sequence

OLDEST = 2


class PromptOrder:
    """The order of one instance; ``quantum`` weighted tokens of difference leave two clients equals."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._n_steps = 0

    def sorted(self, prompts: Iterable[Sequence], inherited: Mapping[Sequence, int] | None = None) -> list[Sequence]:
        """`prompts`, the first to be computed first; called once for each step.

        ``inherited``: priorities other than their own, of prompts that others wait for.
        """
        order = list(prompts)
        if len(order) < 2:
            return order
        urgency = self._urgency(order, inherited)
        keys = [
            (
                len(s.target) - len(s.slot.tokens) if s.slot is not None else len(s.target),
                s.ticket.submitted_at,
                s.index,
                i,
            )
            for i, s in enumerate(order)
        ]
        if urgency is None:
            keys.sort()
        else:
            keys = [key for _, key in sorted(zip(urgency, keys, strict=True))]
        order = [order[i] for _, _, _, i in keys]
        self._n_steps += 1
        if self._n_steps % OLDEST == 0:
            oldest = order[keys.index(min(keys, key=itemgetter(1, 2)))]
            order.remove(oldest)
            order.insert(0, oldest)
        return order

    def _urgency(
        self, prompts: list[Sequence], inherited: Mapping[Sequence, int] | None
    ) -> list[tuple[int, float]] | None:
        """What comes before lengths and ages; None where it is the same for all, as mostly: that sorts much faster."""
        priorities, served = [s.ticket.request.priority for s in prompts], [s.account.served for s in prompts]
        if inherited:
            priorities = [inherited.get(s, s.ticket.request.priority) for s in prompts]
        least = min(served)
        if min(priorities) == max(priorities) and max(served) - least < self._quantum:
            return None
        return [(priority, (n - least) // self._quantum) for priority, n in zip(priorities, served, strict=True)]
