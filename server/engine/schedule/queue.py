"""Who waits for a slot, and in which order they are looked at: in an instance, and before one has taken them. Pure,
but for locks.

Lower `priority` first, as in vLLM. Within one priority: who was parked comes back first, then the client that was
served least, and the requests of a client as they came. So a single client that sets no priority has a plain queue.
Who is passed `MOST_PASSES` times is next: one placement in so many looks at no priority. A stream of urgent requests
delays the others, and starves none but those of batch priority.

What each client was served are virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024): a client's counter grows with a prompt's tokens when it gets a slot, less what is in the cells already, and with
each token that is generated; the smallest counter is served next. What leaves before it is computed is given back. One
that comes back after a pause begins at the present virtual time, as in start-time fair queueing (Goyal et al., SIGCOMM
1996), so that nobody saves up.

Until an instance takes it, a request waits in the `ModelQueue`: the event loop adds, step threads take what they have
slots for, by the same rule, the oldest first of those that are equal in it. A request is first for the instance where
it costs least (`engine.routing`); others may take it when it has waited for as long as computing what is cached there
takes them, so that it loses at most twice of what the better choice would have cost. An instance that is alone takes
everything at once.

Who may still join (`admits`): the queue has `max_queue` places beside those of the slots, and as many again in
reserve, so that a client that has filled it keeps nobody out. Who has more than an equal share of the places is
refused when they are taken; who has less takes from the reserve. So does, up to half of it, what is more urgent than
nearly all that its own client has there. Nobody who was admitted is refused later.
"""

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING

from server.engine.request import BATCH_PRIORITY, Request

if TYPE_CHECKING:
    from server.engine.sequence import Sequence, Ticket

MOST_PASSES = 8
"""By more urgent ones here, and by those that take cells which one needs that fits less well (`cell_room`)."""
OUTPUT_WEIGHT = 2.0
"""What a generated token counts in prompt tokens; the paper's choice, and about what providers charge."""
REPLY_CELLS = 64
"""Cells that are counted for what a sequence will generate, beside those of its prompt, wherever cells are shared."""
MOST_ACCOUNTS = 4096
"""Clients that are remembered; the one that asked longest ago is forgotten first."""


class Accounts:
    """What each client of one model was served, in weighted tokens; clients have opaque names.

    Every instance counts for itself, so that step threads lose none of it though they take no lock for a token.
    """

    def __init__(self, most: int = MOST_ACCOUNTS, n_instances: int = 1) -> None:
        self._counts: OrderedDict[str, list[float]] = OrderedDict()  # who asked last at the end
        """Of each client where it began, and what each instance has served since."""
        self._most = most
        self._nothing = [0.0] * n_instances
        self._now = 0.0  # virtual: what who was last chosen for being behind was served
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def served(self, client: str) -> float:
        """So far; who is not known begins now."""
        counts = self._counts.get(client)
        return self._now if counts is None else sum(counts)

    def serve(self, client: str, n: float, instance: int = 0) -> None:
        """To be called by that instance alone."""
        counts = self._counts.get(client) or self._begin(client)
        counts[1 + instance] += n

    def _begin(self, client: str) -> list[float]:
        return self._counts.setdefault(client, [self._now, *self._nothing])

    def asks(self, client: str, *, again: bool = False) -> None:
        """`client` is seen now. When it asks `again`, with nothing waiting, what it left unused meanwhile is gone."""
        with self._lock:
            counts = self._begin(client)
            if again:
                counts[0] += max(self._now - sum(counts), 0.0)
            self._counts.move_to_end(client)
            while len(self._counts) > self._most:
                self._counts.popitem(last=False)

    def chose(self, client: str) -> None:
        """`client` was behind the others and is served now: that is the present virtual time."""
        with self._lock:
            self._now = max(self._now, self.served(client))


class Queue:
    """The queue of one instance."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._lines: dict[tuple[int, str | None], deque[Sequence]] = {}
        """By priority and client; those that were parked, of all clients, are in one line (None)."""
        self._n_placed = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> "Iterator[Sequence]":
        """Everybody, in no order of meaning."""
        for line in self._lines.values():
            yield from line

    def append(self, sequence: "Sequence") -> None:
        """A new choice: behind the others of its client and priority."""
        client = sequence.request.client
        self._accounts.asks(client, again=all(client != other for _, other in self._lines))
        self._lines.setdefault((sequence.request.priority, client), deque()).append(sequence)

    def come_back(self, sequence: "Sequence") -> None:
        """A parked choice comes back, before all others of its priority; among parked ones the oldest is first."""
        parked = self._lines.setdefault((sequence.request.priority, None), deque())
        parked.insert(sum(other.came < sequence.came for other in parked), sequence)

    def remove(self, sequence: "Sequence") -> bool:
        """Take `sequence` out; whether it was there."""
        for key in ((sequence.request.priority, None), (sequence.request.priority, sequence.request.client)):
            line = self._lines.get(key)
            if line is not None and sequence in line:
                line.remove(sequence)
                if not line:
                    del self._lines[key]
                return True
        return False

    def candidates(self, due: "Iterable[Sequence]" = ()) -> "Iterator[Sequence]":
        """In the order in which they are to be placed, `due` first; the queue must not change meanwhile."""
        first = list(due)
        yield from first
        lines, served = self._lines, self._accounts.served
        if len({priority for priority, _ in lines}) > 1 and self._n_placed % MOST_PASSES == MOST_PASSES - 1:
            live = [line[0] for (priority, _), line in lines.items() if priority < BATCH_PRIORITY]
            heads = live or [line[0] for line in lines.values()]
            head = min(heads, key=lambda head: (served(head.request.client), head.ticket.submitted_at))
            if head not in first:
                first.append(head)
                yield head

        def turn(key: tuple[int, str | None]) -> tuple[int, bool, float, float]:
            priority, client = key
            n_served = served(client) if client is not None else 0.0
            return priority, client is not None, n_served, lines[key][0].ticket.submitted_at

        for key in sorted(lines, key=turn) if len(lines) > 1 else lines:
            for sequence in lines[key]:
                if not first or sequence not in first:
                    yield sequence

    def place(self, sequence: "Sequence") -> None:
        self.remove(sequence)
        self._accounts.chose(sequence.request.client)
        self._n_placed += 1


class ModelQueue:
    """``open`` are the requests that wait or run, ``n_load`` counts their choices; both change on the event loop only,
    and so are exact there."""

    def __init__(self, n_instances: int = 1) -> None:
        self.accounts = Accounts(n_instances=n_instances)
        self.open: dict[int, Ticket] = {}
        self.n_load = 0
        self._n_instances = n_instances
        self._waiting: dict[int, Ticket] = {}
        self.n_waiting = 0  # choices of these
        self._held: defaultdict[str, int] = defaultdict(int)  # prompt tokens of those that were taken
        self._n_taken = 0
        self._closed: set[int] = set()  # instances that take no more
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    # ---- on the event loop

    def add(self, ticket: "Ticket") -> bool:
        """A new request. False, and it is not here, when nobody is left who may take it."""
        with self._lock:
            if not self._has_taker(ticket):
                return False
            self.accounts.asks(ticket.request.client)
            self._waiting[id(ticket)] = ticket
            self.n_waiting += ticket.request.n
        self.open[id(ticket)] = ticket
        self.n_load += ticket.request.n
        return True

    def left(self, ticket: "Ticket") -> None:
        """It has ended, and holds nothing any more."""
        self.n_load -= ticket.request.n
        del self.open[id(ticket)]
        with self._lock:
            self._held[ticket.request.client] -= ticket.n_to_compute
            if not self._held[ticket.request.client]:
                del self._held[ticket.request.client]

    def taken_by(self, instance: int) -> "list[Ticket]":
        """Requests that wait or run there."""
        with self._lock:
            return [t for t in self.open.values() if t.instance == instance and id(t) not in self._waiting]

    # ---- on step threads

    def take(self, instance: int, n_free: int, free_cells: Callable[[], float], now: float) -> "list[Ticket]":
        """Requests for `n_free` slots of `instance`, and all that were cancelled; they are its own from now on.

        Who finds too few of its `free_cells` is left to others for a while.
        """
        if not self._waiting:
            return []
        with self._lock:
            if self._n_instances == 1:
                return self._take(list(self._waiting.values()), instance)
            taken = self._take([ticket for ticket in self._waiting.values() if ticket.cancelled], instance)
            if n_free <= 0 or instance in self._closed:
                return taken
            cells = free_cells()
            while n_free > 0:
                ready = [t for t in self._waiting.values() if _may_be_taken(t, instance, cells) <= now]
                if not ready:
                    break
                taken += self._take([self._next(ready)], instance)
                n_free, cells = n_free - taken[-1].request.n, cells - _n_cells(taken[-1], instance)
        return taken

    def _next(self, ready: "list[Ticket]") -> "Ticket":
        blind = self._n_taken % MOST_PASSES == MOST_PASSES - 1  # as in an instance's queue

        def key(ticket: "Ticket") -> tuple[int, float, float]:
            client = ticket.request.client
            charge = self.accounts.served(client) + self._held.get(client, 0)
            return 0 if blind else ticket.request.priority, charge, ticket.submitted_at

        return min(ready, key=key)

    def _take(self, tickets: "list[Ticket]", instance: int) -> "list[Ticket]":
        for ticket in tickets:
            del self._waiting[id(ticket)]
            self.n_waiting -= ticket.request.n
            ticket.instance = instance
            self._held[ticket.request.client] += ticket.n_to_compute
            self._n_taken += 1
        return tickets

    def next_s(self, instance: int, free_cells: Callable[[], float], now: float) -> float | None:
        """Until `instance` may take one more, where it has a slot; None: there is none."""
        if not self._waiting:
            return None
        with self._lock:
            cells = free_cells()
            at = min((_may_be_taken(ticket, instance, cells) for ticket in self._waiting.values()), default=inf)
        return None if at == inf else max(at - now, 0.0)

    def late(self, instance: int, is_late: "Callable[[Ticket], bool]") -> "list[Ticket]":
        """Those that are; they are `instance`'s own from now on."""
        if not self._waiting:
            return []
        with self._lock:
            return self._take([t for t in self._waiting.values() if is_late(t)], instance)

    def close(self, instance: int) -> "list[Ticket]":
        """`instance` takes no more; those that nobody else may take are its own, and to be refused."""
        with self._lock:
            self._closed.add(instance)
            return self._take([t for t in self._waiting.values() if not self._has_taker(t)], instance)

    def expected(self, instance: int) -> "list[Ticket]":
        """Who waits, and costs least there."""
        with self._lock:
            return [ticket for ticket in self._waiting.values() if ticket.instance == instance]

    def _has_taker(self, ticket: "Ticket") -> bool:
        return any(at < inf and i not in self._closed for i, at in enumerate(ticket.ready_at))


def _may_be_taken(ticket: "Ticket", instance: int, cells: float) -> float:
    """From when on `instance` may, which has so many cells left."""
    at = ticket.ready_at[instance]
    return at if _n_cells(ticket, instance) <= cells else max(at, ticket.anyway_at)


def _n_cells(ticket: "Ticket", instance: int) -> int:
    return ticket.n_own[instance] + REPLY_CELLS * ticket.request.n


def admits(request: Request, open_: "Collection[Ticket]", n_slots: int, max_queue: int) -> bool:
    """Whether `request` may wait where `open_` wait or run already. Choices are counted, not requests."""
    n_open = sum(ticket.request.n for ticket in open_)
    places = n_slots + max_queue
    if n_open < places:
        return True
    if n_open + request.n > places + max_queue:
        return False
    clients = {request.client} | {ticket.request.client for ticket in open_}
    share = max(places // len(clients), 1)
    own = [ticket.request for ticket in open_ if ticket.request.client == request.client]
    if sum(one.n for one in own) < share:
        return True
    n_as_urgent = sum(one.n for one in own if one.priority <= request.priority)
    return n_as_urgent < share and n_open < places + max_queue // 2
