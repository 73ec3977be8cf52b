"""The requests of a model that no instance has taken yet. Pure, but for a lock: the event loop adds, step threads take.

An instance takes what it has slots for: the most urgent, then those of the client that was served least, then the
oldest. A request is first for the instance where it costs least; others may take it when it has waited for as long as
computing what is cached there takes them, so that it loses at most twice of what the better choice would have cost. An
instance that is alone takes everything at once.

Who may still join (`admits`): the queue has `max_queue` places beside those of the slots, and as many again in reserve,
so that a client that has filled it keeps nobody out. Who has more than an equal share of the places is refused when
they are taken; who has less takes from the reserve. So does, up to half of it, what is more urgent than nearly all that
its own client has there. Nobody who was admitted is refused later.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from math import inf

from server.engine.request import Request
from server.engine.schedule.cell_room import RESERVE
from server.engine.schedule.queue import MOST_PASSES, Account, Accounts
from server.engine.sequence import Ticket


class ModelQueue:
    """``open`` are the requests that wait or run, ``n_load`` counts their choices; both change on the event loop only,
    and so are exact there."""

    def __init__(self, n_instances: int = 1) -> None:
        self.accounts = Accounts()
        self.open: dict[int, Ticket] = {}
        self.n_load = 0
        self._n_instances = n_instances
        self._waiting: dict[int, Ticket] = {}
        self.n_waiting = 0  # choices of these
        self._held: defaultdict[Account, int] = defaultdict(int)  # prompt tokens of those that were taken
        self._n_taken = 0
        self._closed: set[int] = set()  # instances that take no more
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    # ---- on the event loop

    def add(self, ticket: Ticket) -> bool:
        """A new request. False, and it is not here, when nobody is left who may take it."""
        with self._lock:
            if not self._has_taker(ticket):
                return False
            ticket.account = self.accounts.of(ticket.request.client)
            self._waiting[id(ticket)] = ticket
            self.n_waiting += ticket.request.n
        self.open[id(ticket)] = ticket
        self.n_load += ticket.request.n
        return True

    def left(self, ticket: Ticket) -> None:
        """It has ended, and holds nothing any more."""
        self.n_load -= ticket.request.n
        del self.open[id(ticket)]
        with self._lock:
            self._held[ticket.account] -= ticket.n_to_compute
            if not self._held[ticket.account]:
                del self._held[ticket.account]

    def taken_by(self, instance: int) -> list[Ticket]:
        """Requests that wait or run there."""
        return [ticket for ticket in self.open.values() if ticket.taken and ticket.instance == instance]

    # ---- on step threads

    def take(self, instance: int, n_free: int, free_cells: Callable[[], float], now: float) -> list[Ticket]:
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

    def _next(self, ready: list[Ticket]) -> Ticket:
        blind = self._n_taken % MOST_PASSES == MOST_PASSES - 1  # as in an instance's queue

        def key(ticket: Ticket) -> tuple[int, float, float]:
            account = ticket.account
            charge = account.served + self._held.get(account, 0)
            return 0 if blind else ticket.request.priority, charge, ticket.submitted_at

        return min(ready, key=key)

    def _take(self, tickets: list[Ticket], instance: int) -> list[Ticket]:
        for ticket in tickets:
            del self._waiting[id(ticket)]
            self.n_waiting -= ticket.request.n
            ticket.instance, ticket.taken = instance, True
            self._held[ticket.account] += ticket.n_to_compute
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

    def late(self, instance: int, before: float) -> list[Ticket]:
        """Those that came `before` then; they are `instance`'s own from now on."""
        if not self._waiting:
            return []
        with self._lock:
            return self._take([t for t in self._waiting.values() if t.submitted_at <= before], instance)

    def close(self, instance: int) -> list[Ticket]:
        """`instance` takes no more; those that nobody else may take are its own, and to be refused."""
        with self._lock:
            self._closed.add(instance)
            return self._take([t for t in self._waiting.values() if not self._has_taker(t)], instance)

    def expected(self, instance: int) -> list[Ticket]:
        """Who waits, and costs least there."""
        with self._lock:
            return [ticket for ticket in self._waiting.values() if ticket.instance == instance]

    def _has_taker(self, ticket: Ticket) -> bool:
        return any(at < inf and i not in self._closed for i, at in enumerate(ticket.route.ready_at))


def _may_be_taken(ticket: Ticket, instance: int, cells: float) -> float:
    """From when on `instance` may, which has so many cells left."""
    at = ticket.route.ready_at[instance]
    return at if _n_cells(ticket, instance) <= cells else max(at, ticket.route.anyway_at)


def _n_cells(ticket: Ticket, instance: int) -> int:
    return ticket.route.n_own[instance] + RESERVE * ticket.request.n


def admits(request: Request, open_: Collection[Ticket], n_slots: int, max_queue: int) -> bool:
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
