"""Who waits for a slot, and in which order they are looked at. Pure.

Lower `priority` first, as in vLLM. Within one priority: who was parked comes back first, then the client that was
served least, and the requests of a client as they came. So a single client that sets no priority has a plain queue.
Who is passed `MOST_PASSES` times is next: one placement in so many looks at no priority. A stream of urgent requests
delays the others, and starves none.

What each client was served are virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024): a client's counter grows with the tokens computed for it, and the smallest counter is served next. One that comes
back after a pause begins at the present virtual time, as in start-time fair queueing (Goyal et al., SIGCOMM 1996), so
that nobody saves up.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a sequence has an account
    from server.engine.sequence import Sequence

MOST_PASSES = 8
"""By more urgent ones here, and by those that take cells which one needs that fits less well (`cell_room`)."""
OUTPUT_WEIGHT = 2.0
"""What a generated token counts in prompt tokens; the paper's choice, and about what providers charge."""
MOST_ACCOUNTS = 4096
"""Clients that are remembered; the one that asked longest ago is forgotten first."""


@dataclass(eq=False, slots=True)
class Account:
    """One client: ``served`` in weighted tokens."""

    served: float = 0.0


class Accounts:
    """The clients of one model, by opaque names. Of what two step threads count at once a token may be lost."""

    def __init__(self, most: int = MOST_ACCOUNTS) -> None:
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._most = most
        self._now = 0.0  # virtual: the counter of who was last chosen for being behind
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, client: str) -> Account:
        """The account of `client`, seen now."""
        with self._lock:
            account = self._accounts.get(client)
            if account is None:
                account = self._accounts[client] = Account(self._now)
                if len(self._accounts) > self._most:
                    self._accounts.popitem(last=False)
            self._accounts.move_to_end(client)
        return account

    def catch_up(self, account: Account) -> None:
        """`account` asks again, with nothing waiting: what it left unused meanwhile is gone."""
        account.served = max(account.served, self._now)

    def chose(self, account: Account) -> None:
        """`account` was behind the others and is served now: that is the present virtual time."""
        self._now = max(self._now, account.served)


Charge = Callable[[Account], float]
"""What a client was served, and what its slots have yet to compute; in weighted tokens."""


class Queue:
    """The queue of one instance."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._parked: dict[int, deque[Sequence]] = {}
        self._lines: dict[int, dict[Account, deque[Sequence]]] = {}
        self._n = 0
        self._n_placed = 0

    def __len__(self) -> int:
        return self._n

    def __contains__(self, sequence: object) -> bool:
        return any(sequence is one for one in self)

    def __iter__(self) -> "Iterator[Sequence]":
        """Everybody; parked ones first, otherwise in no order of meaning."""
        for parked in self._parked.values():
            yield from parked
        for lines in self._lines.values():
            for line in lines.values():
                yield from line

    def append(self, sequence: "Sequence") -> None:
        """A new choice: behind the others of its client and priority."""
        account = sequence.account = self._accounts.of(sequence.request.client)
        if not any(account in lines for lines in self._lines.values()):
            self._accounts.catch_up(account)
        lines = self._lines.setdefault(sequence.request.priority, {})
        lines.setdefault(account, deque()).append(sequence)
        self._n += 1

    def appendleft(self, sequence: "Sequence") -> None:
        """A parked choice comes back, before all others of its priority; among parked ones the oldest is first."""
        parked = self._parked.setdefault(sequence.request.priority, deque())
        age = (sequence.ticket.submitted_at, sequence.index)
        place = sum((other.ticket.submitted_at, other.index) < age for other in parked)
        parked.insert(place, sequence)
        self._n += 1

    def remove(self, sequence: "Sequence") -> bool:
        """Take `sequence` out; whether it was there."""
        priority, account = sequence.request.priority, sequence.account
        parked, lines = self._parked.get(priority), self._lines.get(priority, {})
        if parked is not None and sequence in parked:
            parked.remove(sequence)
            if not parked:
                del self._parked[priority]
        elif account in lines and sequence in lines[account]:
            lines[account].remove(sequence)
            if not lines[account]:
                del lines[account]
            if not lines:
                del self._lines[priority]
        else:
            return False
        self._n -= 1
        return True

    def candidates(self, charge: Charge, due: "Iterable[Sequence]" = ()) -> "Iterator[Sequence]":
        """In the order in which they are to be placed, `due` first; the queue must not change meanwhile."""
        first = list(due)
        yield from first
        priorities = sorted({*self._parked, *self._lines})
        if len(priorities) > 1 and self._n_placed % MOST_PASSES == MOST_PASSES - 1:
            heads = [parked[0] for parked in self._parked.values()]
            heads += [line[0] for lines in self._lines.values() for line in lines.values()]
            head = min(heads, key=lambda head: (charge(head.account), head.ticket.submitted_at))
            if head not in first:
                first.append(head)
                yield head
        for sequence in self._in_order(priorities, charge):
            if not first or sequence not in first:
                yield sequence

    def _in_order(self, priorities: list[int], charge: Charge) -> "Iterator[Sequence]":
        for priority in priorities:
            yield from self._parked.get(priority, ())
            lines = self._lines.get(priority, {})
            if len(lines) == 1:
                yield from next(iter(lines.values()))
                continue
            for account in sorted(lines, key=lambda one: (charge(one), lines[one][0].ticket.submitted_at)):
                yield from lines[account]

    def place(self, sequence: "Sequence") -> None:
        """`sequence` gets a slot now."""
        self.remove(sequence)
        self._accounts.chose(sequence.account)
        self._n_placed += 1
