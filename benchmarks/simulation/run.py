"""One simulation: sessions send requests to the engine's scheduler on the simulated machine, which records the waits.

It is a closed loop. Each of a fixed number of users waits for a reply, pauses, and sends the next turn; a new session
replaces a finished one. A slower engine therefore gets fewer requests, and no queue grows without limit.
"""

import contextlib
import heapq
import math
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from benchmarks.simulation.disk import Worker, disk_cache
from benchmarks.simulation.machine import Machine, machine
from benchmarks.simulation.policy import Policy
from benchmarks.simulation.trace import Session, Trace, pause_s
from server.engine.cache.disk_cache import wait_s
from server.engine.cache.prefix_cache import MIB, CacheEntry
from server.engine.kv_store import Cells
from server.engine.request import Request
from server.engine.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Ticket

PEOPLE = 3  # users per slot

Client = Callable[[int], str]
"""Returns the client id of a user."""
Arrivals = list[tuple[float, int, Session]]
"""A heap of next requests: time, user, session."""


def _one_client(_number: int) -> str:
    return ""


@dataclass(slots=True)
class Results:
    """Waits that clients saw, in seconds, and counts."""

    first_token: "array[float]" = field(default_factory=lambda: array("d"))
    gap: "array[float]" = field(default_factory=lambda: array("d"))  # per step with decoding sequences
    users: "array[int]" = field(default_factory=lambda: array("l"))  # of each first token
    streams: "array[int]" = field(default_factory=lambda: array("l"))  # decoding sequences of each gap
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_steps: int = 0
    n_batch: int = 0  # tokens of all steps
    n_evaluations: int = 0  # of decoding sequences, in all steps
    n_relocations: int = 0
    n_disk_reads: int = 0  # read states
    n_disk_hits: int = 0  # read states that a request used
    n_saves: int = 0  # offloaded states
    n_loads: int = 0  # loaded states
    moved_s: float = 0.0
    simulated_s: float = 0.0
    real_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were cached."""
        return self.n_cached / max(self.n_prompt, 1)

    def first_token_s(self, q: float, people: range | None = None) -> float:
        """Return a quantile of the time to the first token, of all users or of a range."""
        times = np.frombuffer(self.first_token)
        if people is not None:
            users = np.array(self.users)
            times = times[(users >= people.start) & (users < people.stop)]
        return float(np.quantile(times, q))

    def gap_s(self, q: float) -> float:
        """Return a quantile of the inter-token latency."""
        gaps, weights = np.frombuffer(self.gap), np.array(self.streams)
        order = np.argsort(gaps)
        reached = np.cumsum(weights[order])
        return float(gaps[order][np.searchsorted(reached, q * reached[-1])])


class Simulation:
    """``n_slots`` slots under `policy`, with ``people`` users per slot."""

    def __init__(
        self,
        policy: Policy,
        n_slots: int,
        seed: int = 1,
        *,
        people: int = PEOPLE,
        client: Client = _one_client,
        arrivals: Arrivals | None = None,
        replies: Iterator[int] | None = None,
    ) -> None:
        """With `arrivals`, the simulation is one of several replicas; the caller calls `take` and `step`."""
        self.machine: Machine = machine(n_slots, is_pinned=policy.is_pinned)
        self.scheduler: Scheduler = policy.scheduler(self.machine.info)
        self.machine.slots = self.scheduler.slots
        self.cells = Cells(self.machine.as_runner(), self.scheduler, lambda: self.machine.now)
        self._workers: list[Worker] = []  # of the disk tier; the last one reads
        if policy.disk_mib:
            disk, *self._workers = disk_cache(policy.disk_mib * MIB, lambda: self.machine.now)
            self.scheduler.placer.disk, self.scheduler.ram.spill = disk, disk.put
        self.results = Results()
        self._client = client
        self._trace = Trace(seed, self.machine.info.n_ctx_seq)
        self._arrivals: Arrivals = [] if arrivals is None else arrivals
        self._sessions: dict[int, Session] = {}  # by user, with a running request
        self._replies = replies or count(1 << 30)  # unique tokens of replies
        self._ending: defaultdict[int, set[int]] = defaultdict(set)  # users that get their last token, by step
        self._step_ended = 0.0
        for i in range(people * n_slots if arrivals is None else 0):
            session = self._trace.session()
            heapq.heappush(self._arrivals, (pause_s(session), i, session))

    def run(self, n_requests: int) -> Results:
        """Run until `n_requests` had their first token, or the user interrupts it."""
        started = time.process_time()
        with contextlib.suppress(KeyboardInterrupt):
            while len(self.results.first_token) < n_requests:
                self._receive()
                self.step()
        self.results.n_evaluations = self.machine.n_evaluations
        self.results.n_saves, self.results.n_loads = self.machine.n_saves, self.machine.n_loads
        self.results.simulated_s, self.results.moved_s = self.machine.now, self.machine.moved_s
        self.results.n_disk_reads = sum(reader.n_states for reader in self._workers[-1:])
        self.results.real_s = time.process_time() - started
        return self.results

    def _receive(self) -> None:
        arrivals, now = self._arrivals, self.machine.now
        while arrivals and arrivals[0][0] <= now:
            at, number, session = heapq.heappop(arrivals)
            self.take(at, number, self._trace.next_of(session))

    def take(self, at: float, number: int, session: Session) -> None:
        """Enqueue the next request of a user."""
        request = Request(id="", prompt=session.history.copy(), client=self._client(number))
        sequence = Sequence(Ticket(request, _discard, at), number)
        self._sessions[number] = session
        self.scheduler.enqueue(sequence)

    @property
    def n_requests(self) -> int:
        """Waiting and running requests."""
        return len(self.scheduler.waiting) + self.scheduler.n_active

    def rest_until(self, at: float) -> None:
        """Advance the clock to `at`."""
        self.machine.now = self._step_ended = max(self.machine.now, at)

    def step(self) -> None:
        scheduler, cells, clock = self.scheduler, self.cells, self.machine
        for worker in self._workers:
            worker.settle()
        while (placement := scheduler.place(clock.now)) is not None:
            self.results.n_disk_hits += (
                isinstance(placement.source, CacheEntry) and placement.source not in scheduler.ram
            )
            cells.prepare(placement, clock.now)
            scheduler.occupy(placement, clock.now)
        cells.start_reading()
        while (slots := scheduler.relocation(frozenset())) is not None:
            cells.relocate(*slots, clock.now)
            self.results.n_relocations += 1
        entries = scheduler.plan()
        if not entries:
            self.rest_until(self._next_event())
            scheduler.move_budget.spent_s = 0.0
            return
        prompts = [e for e in entries if e.sequence.phase is Phase.PREFILL]
        n_streams = len(entries) - len(prompts)
        seconds = clock.decode(entries, prompts)
        n_prompt = sum(len(e.tokens) for e in prompts)
        self._record(n_streams, n_prompt)
        scheduler.commit(entries, seconds)
        self._sample(entries, prompts)

    def _next_event(self) -> float:
        """Return the time of the next request, disk read or timeout of a wait for the disk."""
        left_s = wait_s(self.scheduler.waiting, self.machine.now)
        given_up_at = math.inf if left_s is None else self.machine.now + left_s
        return min(self._arrivals[0][0], given_up_at, *(reader.next_at for reader in self._workers[-1:]))

    def _record(self, n_streams: int, n_prompt: int) -> None:
        """Record the gap between this step and the last for decoding sequences."""
        results, now = self.results, self.machine.now
        if n_streams:
            results.gap.append(now - self._step_ended)
            results.streams.append(n_streams)
        results.n_steps += 1
        results.n_batch += n_streams + n_prompt
        self._step_ended = now

    def _sample(self, entries: list[TokenRun], prompts: list[TokenRun]) -> None:
        """Sample first tokens and end finished replies.

        Every decoding sequence is in every step, so the last step of a reply is known at its first token.
        """
        ending, now, n_steps = self._ending.pop(self.results.n_steps, ()), self.machine.now, self.results.n_steps
        if ending:
            for sequence in [e.sequence for e in entries if e.sequence.index in ending]:
                self._end(sequence, now)
        for entry in prompts:
            if not entry.n_outputs:
                continue
            sequence, n_reply = entry.sequence, self._sessions[entry.sequence.index].n_reply
            self.results.first_token.append(now - sequence.ticket.submitted_at)
            self.results.users.append(sequence.index)
            self.results.n_prompt += len(sequence.target)
            self.results.n_cached += sequence.n_cached
            sequence.output += [next(self._replies)] * n_reply
            if n_reply > 1:
                self._ending[n_steps + n_reply - 1].add(sequence.index)
            else:
                self._end(sequence, now)

    def _end(self, sequence: Sequence, now: float) -> None:
        self.scheduler.release(sequence, now)
        sequence.phase = Phase.ENDED
        self.results.n_output += len(sequence.output)
        session = self._sessions.pop(sequence.index)
        session.history += sequence.output
        heapq.heappush(self._arrivals, (now + pause_s(session), sequence.index, session))


def _discard(_events: object) -> None:
    """Discard events."""
