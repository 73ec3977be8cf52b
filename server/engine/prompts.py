"""Which prompt gets the tokens of a step that no generating slot needs. Pure.

A step's tokens go to one prompt before the next, since many short runs cost more than a long one. Lower `priority`
comes first, then the client that was served less by more than a batch, then the prompt with the least left to compute:
a short one does not stand behind a long one. One step in `OLDEST` begins with the oldest instead: none starves.
"""

from collections.abc import Iterable

from server.engine.sequence import Sequence

OLDEST = 2


class PromptOrder:
    """The order of one instance; ``quantum`` weighted tokens of difference leave two clients equals."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._n_steps = 0

    def sorted(self, prompts: Iterable[Sequence]) -> list[Sequence]:
        """`prompts`, the first to be computed first; called once for each step."""
        order = list(prompts)
        if len(order) < 2:
            return order
        least, quantum = min([s.account.served for s in order]), self._quantum
        keys = [
            (
                s.ticket.request.priority,
                (s.account.served - least) // quantum,
                len(s.target) - (len(s.slot.tokens) if s.slot is not None else 0),
                s.ticket.submitted_at,
                s.index,
                i,
            )
            for i, s in enumerate(order)
        ]
        keys.sort()  # faster than with a function for the key
        order = [order[key[-1]] for key in keys]
        self._n_steps += 1
        if self._n_steps % OLDEST == 0:
            oldest = min(order, key=lambda s: (s.ticket.submitted_at, s.index))
            order.remove(oldest)
            order.insert(0, oldest)
        return order
