"""Waiting requests: their order, the instance that each prefers, and admission. Pure, except for a lock.

Lower `priority` first, as in vLLM. Within a priority: preempted sequences, then the client that was served least,
then requests of a client in order of arrival. A single client without priorities therefore has a plain queue. One
placement in `MAX_BYPASSES` ignores priority, so urgent requests delay others but starve none, except background
requests.

Fairness uses virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). A
client's counter grows by the prompt tokens to compute when a request gets a slot, and by each generated token. The
client with the smallest counter is served next. Tokens that are not computed after all are refunded. A client that
returns after a pause starts at the current virtual time, as in start-time fair queueing (Goyal et al., SIGCOMM 1996),
so it accumulates no credit.

Admission (`has_place`): the queue has `max_queue` places besides the slots, and as many again in reserve. So a
client that has filled the queue keeps no other client out. When all places are taken, a client above an equal share is
refused, and a client below it uses the reserve. A request that is more urgent than nearly all others of its client may
use half of the reserve. An admitted request is never refused later.
"""

import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Generic, TypeVar

from server.engine.cache.prefix_cache import CachedPrefix, longest_match
from server.engine.request import BACKGROUND_PRIORITY, Request
from server.engine.sequence import Phase, Sequence, Slot, Ticket

MAX_BYPASSES = 8
"""How often a waiting request may be bypassed: by more urgent requests here, and by requests that take cells it needs
(`kv_budget`).
"""
OUTPUT_WEIGHT = 2.0
"""Weight of a generated token in prompt tokens: the paper's choice, and about what providers charge."""
REPLY_CELLS = 64
"""Cells reserved for the output of a sequence where cells are shared, besides those of its prompt."""
MAX_CLIENTS = 4096
"""Clients whose counters are stored; the least recent one is dropped first."""


class TokenCounters:
    """Virtual token counters per client of one model, in weighted tokens. Clients have opaque names. Thread-safe."""

    def __init__(self, max_clients: int = MAX_CLIENTS) -> None:
        self._counts: OrderedDict[str, float] = OrderedDict()  # least recent client first
        self._max_clients = max_clients
        self._now = 0.0  # virtual time: the counter of the last client that was chosen
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def served(self, client: str) -> float:
        """Return a client's counter; an unknown client has the current virtual time."""
        return self._counts.get(client, self._now)

    def serve(self, client: str, n: float) -> None:
        with self._lock:
            self._counts[client] = self._counts.get(client, self._now) + n

    def record_request(self, client: str, *, had_none: bool = False) -> None:
        """Record a request of `client`. `had_none`: none of its requests was waiting, so unused credit is dropped."""
        with self._lock:
            count = self._counts.pop(client, self._now)
            self._counts[client] = max(count, self._now) if had_none else count
            while len(self._counts) > self._max_clients:
                self._counts.popitem(last=False)

    def record_placement(self, client: str) -> None:
        """Record that the next slot went to `client`, whose counter is now the virtual time."""
        with self._lock:
            self._now = max(self._now, self.served(client))


W = TypeVar("W", Ticket, Sequence)


class Queue(Generic[W]):
    """Requests that wait for an instance, or their choices that wait for a slot of it, in one order."""

    def __init__(self, counters: TokenCounters) -> None:
        self._counters = counters
        self.lines: dict[tuple[int, str | None], deque[W]] = {}
        """By priority and client, none empty; preempted sequences of all clients share one line (None)."""
        self._n_bypasses = 0  # placements since the last one that priority did not decide

    def __len__(self) -> int:
        return sum(map(len, self.lines.values()))

    def __bool__(self) -> bool:
        return bool(self.lines)  # called in every step

    def __iter__(self) -> Iterator[W]:
        """Iterate over a copy of all entries, in no particular order. Thread-safe: the copy is made in C."""
        return iter(list(chain.from_iterable(list(self.lines.values()))))

    def has(self, client: str) -> bool:
        """Return whether an entry of `client` waits that was never placed."""
        return any(client == other for _, other in self.lines)

    def append(self, new: W) -> None:
        """Add `new` after the others of its client and priority."""
        self.lines.setdefault((new.request.priority, new.request.client), deque()).append(new)

    def requeue(self, preempted: W) -> None:
        """Add a preempted choice before all others of its priority; among preempted ones the oldest is first."""
        line = self.lines.setdefault((preempted.request.priority, None), deque())
        line.insert(sum(other.arrival < preempted.arrival for other in line), preempted)

    def remove(self, one: W) -> bool:
        """Remove `one`; return whether it was queued."""
        for key in ((one.request.priority, None), (one.request.priority, one.request.client)):
            line = self.lines.get(key)
            if line is not None and one in line:
                line.remove(one)
                if not line:
                    del self.lines[key]
                return True
        return False

    def candidates(self) -> Iterator[W]:
        """Iterate in placement order. The queue must not change meanwhile."""
        lines, order = self.lines, self._order_without_priority if self.ignores_priority else self._order
        for key in sorted(lines, key=order) if len(lines) > 1 else lines:
            yield from lines[key]

    def _order(self, key: tuple[int, str | None]) -> tuple[int, bool, float, tuple[float, int]]:
        priority, client = key
        n_served = self._counters.served(client) if client is not None else 0.0
        return priority, client is not None, n_served, self.lines[key][0].arrival

    def _order_without_priority(self, key: tuple[int, str | None]) -> tuple[bool, float, tuple[float, int]]:
        """Sort key of a line if all priorities except the background's were equal."""
        first = self.lines[key][0]
        return key[0] >= BACKGROUND_PRIORITY, self._counters.served(first.request.client), first.arrival

    @property
    def ignores_priority(self) -> bool:
        """Whether priority does not decide the next placement."""
        return self._n_bypasses >= MAX_BYPASSES - 1 and len({priority for priority, _ in self.lines}) > 1

    def place(self, one: W) -> None:
        """Remove `one`, which is placed now, and count bypasses."""
        lines, priorities = self.lines, {priority for priority, _ in self.lines}
        ignored_priority = self.ignores_priority and one.request.priority > min(priorities)
        if len(priorities) < 2 or ignored_priority or one is lines[min(lines, key=self._order_without_priority)][0]:
            self._n_bypasses = 0
        else:
            self._n_bypasses += 1
        self.remove(one)


LOAD_TOKENS = 64
"""Cost of a request that waits or runs in an instance for another one there, in prompt tokens."""
HINT_TOKENS = 3 * LOAD_TOKENS
"""The instance of a cache key is preferred if it costs at most so much more than the cheapest one."""
MAX_COMPARED = 64  # requests of an instance whose prompts are compared with a new one


def preferred_instance(ticket: Ticket, open_: Collection[Ticket], slots: Mapping[int, list[Slot]]) -> int:
    """Return the instance, a key of `slots`, where `ticket` is expected to cost least, in prompt tokens.

    The cost is twice its uncached tokens, which also delay others, plus the prefill before it, plus a share of each
    step for every request there. A prefix counts as cached if a slot holds it or if one of `open_` computes it there.
    RAM and disk do not count, because instances share them. The step threads may change the slots meanwhile.
    """
    request, costs = ticket.request, {}
    for i, own_slots in slots.items():
        others = [other for other in open_ if other.instance == i]
        computed = [CachedPrefix(other.request.prompt, other.adapter_set) for other in others[-MAX_COMPARED:]]
        n_known = max(
            longest_match(prefixes, request.prompt, ticket.adapter_set, 0, len(request.prompt))[1]
            for prefixes in (own_slots, computed)
        )
        n_own = len(request.prompt) - (n_known if request.cache_prompt else 0)
        prefills = (s for slot in own_slots if (s := slot.sequence) is not None and s.phase is Phase.PREFILL)
        n_before = sum(max(len(s.target) - s.n_computed, 0) for s in prefills)
        costs[i] = 2 * n_own + n_before + LOAD_TOKENS * sum(other.request.n for other in others)
    best = min(costs, key=lambda i: (costs[i], i))
    if request.cache_key:  # the key's hash selects an instance, so nothing is stored
        hinted = list(costs)[zlib.crc32(f"{request.client}\0{request.cache_key}".encode()) % len(costs)]
        best = hinted if costs[hinted] - costs[best] <= HINT_TOKENS else best
    return best


def has_place(request: Request, open_: Collection[Ticket], n_slots: int, max_queue: int) -> bool:
    """Return whether `request` may be queued when `open_` wait or run already. Counts choices, not requests."""
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
