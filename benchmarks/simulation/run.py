"""One simulation: sessions ask, the engine's scheduler decides, the machine's clock moves; what clients see is kept.

Closed loop: a fixed number of people, each of whom waits for a reply, pauses, and asks on; when a session is over, the
next one takes its place. So an engine that is slower is asked less, and no queue grows without an end.
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
from server.engine.cache.kv_store import Cells
from server.engine.cache.prefix_cache import MIB, CacheEntry
from server.engine.request import Request
from server.engine.scheduler import Scheduler, TokenRun
from server.engine.sequence import Phase, Sequence, Ticket

PEOPLE = 3  # for each slot

Client = Callable[[int], str]
"""The client that a person asks as."""
Asking = list[tuple[float, int, Session]]
"""When who asks next, in what session: a heap."""


def _one(_number: int) -> str:
    return ""


@dataclass(slots=True)
class Seen:
    """What clients saw, in seconds and tokens."""

    first_token: "array[float]" = field(default_factory=lambda: array("d"))
    gap: "array[float]" = field(default_factory=lambda: array("d"))  # of each step with streams
    who: "array[int]" = field(default_factory=lambda: array("l"))  # waited for each of these first tokens
    streams: "array[int]" = field(default_factory=lambda: array("l"))  # that waited this long
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    n_steps: int = 0
    n_batch: int = 0  # tokens of all steps
    n_evaluations: int = 0  # of streams, in all steps
    n_relocations: int = 0
    n_disk_reads: int = 0  # of states
    n_disk_hits: int = 0  # of them, those that came in time for somebody
    n_saves: int = 0  # states out of the cells
    n_loads: int = 0  # and back
    moved_s: float = 0.0
    simulated_s: float = 0.0
    real_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that needed no computing."""
        return self.n_cached / max(self.n_prompt, 1)

    def first_token_s(self, q: float, people: range | None = None) -> float:
        """Quantile of the time to the first token, of all or of some people."""
        times = np.frombuffer(self.first_token)
        if people is not None:
            who = np.array(self.who)
            times = times[(who >= people.start) & (who < people.stop)]
        return float(np.quantile(times, q))

    def gap_s(self, q: float) -> float:
        """Quantile of the time between two tokens of a stream."""
        gaps, weights = np.frombuffer(self.gap), np.array(self.streams)
        order = np.argsort(gaps)
        reached = np.cumsum(weights[order])
        return float(gaps[order][np.searchsorted(reached, q * reached[-1])])


class Simulation:
    """``n_slots`` slots under `policy`, until `n_requests` were answered."""

    def __init__(
        self,
        policy: Policy,
        n_slots: int,
        seed: int = 1,
        *,
        people: int = PEOPLE,
        client: Client = _one,
        asking: Asking | None = None,
        replies: Iterator[int] | None = None,
    ) -> None:
        """With `asking` it is one of several: somebody else draws from there, and has these take and step."""
        self.machine: Machine = machine(n_slots, is_pinned=policy.is_pinned)
        self.scheduler: Scheduler = policy.scheduler(self.machine.info)
        self.machine.slots = self.scheduler.slots
        self.cells = Cells(self.machine.as_runner(), self.scheduler, lambda: self.machine.now)
        self._workers: list[Worker] = []  # of the disk; the last one reads
        if policy.disk_mib:
            disk, *self._workers = disk_cache(policy.disk_mib * MIB, lambda: self.machine.now)
            self.scheduler.placer.disk, self.scheduler.ram.spill = disk, disk.put
        self.seen = Seen()
        self._client = client
        self._trace = Trace(seed, self.machine.info.n_ctx_seq)
        self._asking: Asking = [] if asking is None else asking
        self._sessions: dict[int, Session] = {}  # whose last turn is being answered
        self._replies = replies or count(1 << 30)  # numbers that nobody else generates
        self._ending: defaultdict[int, set[int]] = defaultdict(set)  # who gets the last token in which step
        self._step_ended = 0.0
        for i in range(people * n_slots if asking is None else 0):
            session = self._trace.session()
            heapq.heappush(self._asking, (pause_s(session), i, session))

    def run(self, n_requests: int) -> Seen:
        """Go on until so many requests had their first token, or the user interrupts it."""
        started = time.process_time()
        with contextlib.suppress(KeyboardInterrupt):
            while len(self.seen.first_token) < n_requests:
                self._receive()
                self.step()
        self.seen.n_evaluations = self.machine.n_evaluations
        self.seen.n_saves, self.seen.n_loads = self.machine.n_saves, self.machine.n_loads
        self.seen.simulated_s, self.seen.moved_s = self.machine.now, self.machine.moved_s
        self.seen.n_disk_reads = sum(reader.n_states for reader in self._workers[-1:])
        self.seen.real_s = time.process_time() - started
        return self.seen

    def _receive(self) -> None:
        asking, now = self._asking, self.machine.now
        while asking and asking[0][0] <= now:
            at, number, session = heapq.heappop(asking)
            self.take(at, number, self._trace.next_of(session))

    def take(self, at: float, number: int, session: Session) -> None:
        """The next request of a person."""
        request = Request(id="", prompt=session.history.copy(), client=self._client(number))
        sequence = Sequence(Ticket(request, _nobody, at), number)
        self._sessions[number] = session
        self.scheduler.enqueue(sequence)

    @property
    def n_requests(self) -> int:
        """That wait or run here."""
        return len(self.scheduler.waiting) + self.scheduler.n_active

    def rest_until(self, at: float) -> None:
        """Nothing happens before."""
        self.machine.now = self._step_ended = max(self.machine.now, at)

    def step(self) -> None:
        scheduler, cells, clock = self.scheduler, self.cells, self.machine
        for worker in self._workers:
            worker.settle()
        while (placement := scheduler.place(clock.now)) is not None:
            self.seen.n_disk_hits += isinstance(placement.source, CacheEntry) and placement.source not in scheduler.ram
            cells.prepare(placement, clock.now)
            scheduler.occupy(placement, clock.now)
        cells.start_reading()
        while (slots := scheduler.relocation(frozenset())) is not None:
            cells.relocate(*slots, clock.now)
            self.seen.n_relocations += 1
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
        """When somebody asks, or no longer waits for the disk."""
        left_s = wait_s(self.scheduler.waiting, self.machine.now)
        given_up_at = math.inf if left_s is None else self.machine.now + left_s
        return min(self._asking[0][0], given_up_at, *(reader.next_at for reader in self._workers[-1:]))

    def _record(self, n_streams: int, n_prompt: int) -> None:
        """Who generates in this step waited for it since the last one."""
        seen, now = self.seen, self.machine.now
        if n_streams:
            seen.gap.append(now - self._step_ended)
            seen.streams.append(n_streams)
        seen.n_steps += 1
        seen.n_batch += n_streams + n_prompt
        self._step_ended = now

    def _sample(self, entries: list[TokenRun], prompts: list[TokenRun]) -> None:
        """A reply is known with its first token, and every stream is in every step: who ends now was known then."""
        ending, now, n_steps = self._ending.pop(self.seen.n_steps, ()), self.machine.now, self.seen.n_steps
        if ending:
            for sequence in [e.sequence for e in entries if e.sequence.index in ending]:
                self._end(sequence, now)
        for entry in prompts:
            if not entry.n_outputs:
                continue
            sequence, n_reply = entry.sequence, self._sessions[entry.sequence.index].n_reply
            self.seen.first_token.append(now - sequence.ticket.submitted_at)
            self.seen.who.append(sequence.index)
            self.seen.n_prompt += len(sequence.target)
            self.seen.n_cached += sequence.n_cached
            sequence.output += [next(self._replies)] * n_reply
            if n_reply > 1:
                self._ending[n_steps + n_reply - 1].add(sequence.index)
            else:
                self._end(sequence, now)

    def _end(self, sequence: Sequence, now: float) -> None:
        self.scheduler.release(sequence, now)
        sequence.phase = Phase.ENDED
        self.seen.n_output += len(sequence.output)
        session = self._sessions.pop(sequence.index)
        session.history += sequence.output
        heapq.heappush(self._asking, (now + pause_s(session), sequence.index, session))


def _nobody(_events: object) -> None:
    """Where events go that nobody reads."""
