"""A model's engines, whose other halves are in its process: `server.pool.protocols.Generator` and `Embedder`."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from server.engine.embedding import check_input
from server.engine.kv.state import SlotState
from server.engine.lora import Adapter, check_adapters, rescaled
from server.engine.media import MediaPrompt, Spans
from server.engine.params import EngineParams
from server.engine.prefix.blocks import BlockReport
from server.engine.request import Adapters, Event, Failed, Finished, Request, Sink
from server.engine.runner_api import EmbedderInfo, Vectors
from server.engine.sequence import Ticket
from server.engine.stats import EngineStats, combined
from server.engine.stats import ended as without_gauges
from server.engine.step.snapshots import ChoiceView, InstanceView, SlotSnapshot, TierView
from server.errors import InvalidRequest, LlamapoolError, ModelEnded, QueueFull, ShuttingDown
from server.pool.worker.codec import are_known
from server.pool.worker.facts import EmbedderFacts, EngineStatus, GeneratorFacts
from server.pool.worker.supervisor import WorkerSupervisor

LEAST_LIMIT_S = 2.0
"""A process at work says what it does every half second."""
CLOSE_S = 60.0
"""For prompt states to be saved, once requests have ended."""


class _Half:
    """What both engines have in common."""

    def __init__(self, supervisor: WorkerSupervisor, n_slots: int, n_ctx_seq: int, which: str) -> None:
        self.supervisor = supervisor
        self.n_slots, self.n_ctx_seq = n_slots, n_ctx_seq
        self.hangs = False  # it can be killed
        self._which = which
        self._closing = False
        self._past, self._stats = EngineStats(), EngineStats()
        self._told: EngineStatus | None = None
        self._n_begun = 0  # requests that this process was given
        self._n_preparing = 0
        self._heartbeats: list[tuple[int, float, int]] = []  # seen last, since when, and in how many looks

    @property
    def failure(self) -> str:
        """Why there is no process that serves."""
        return "" if self._closing else self.supervisor.down

    @property
    def serves(self) -> bool:
        """Whether there is one."""
        return not self.supervisor.down

    @property
    def stats(self) -> EngineStats:
        """Totals since the load, of all processes."""
        total = combined(self._past, self._stats)
        if self.is_first:
            total.n_restarts = self.supervisor.n_restarts
        return total

    @property
    def is_first(self) -> bool:
        """Of the two, the one that says what is the process' own."""
        return self._which == "generator" or self.supervisor.generator is None

    @property
    def at_work(self) -> bool:
        """Whether the process has what to do, as far as is known."""
        told = self._told
        return bool(self._n_begun) if told is None else told.busy or told.n_begun != self._n_begun

    def told(self, told: EngineStatus) -> None:
        """What the other half does."""
        self._told, self._stats = told, told.stats

    def lost(self, reason: str) -> None:
        """The process is gone."""
        del reason
        self._past, self._stats = combined(self._past, without_gauges(self._stats)), EngineStats()
        self._told, self._n_begun, self._heartbeats = None, 0, []

    def begins(self) -> None:
        """It is there again."""
        if self._n_preparing:
            self.supervisor.post("preparing", self._which, True)

    def check_progress(self, limit_s: float) -> None:
        """To be called now and then: a process whose steps don't go on is killed, and so started again."""
        if self.is_first:
            self.supervisor.check_progress(limit_s)
        told, now = self._told, time.monotonic()
        if told is None or not self.supervisor.up:
            return
        if len(self._heartbeats) != len(told.heartbeats):
            self._heartbeats = [(-1, now, 0)] * len(told.heartbeats)
        for i, (heartbeat, at_rest) in enumerate(told.heartbeats):
            seen, since, looks = self._heartbeats[i]
            if at_rest or heartbeat != seen:
                self._heartbeats[i] = heartbeat, now, 0
            elif now - since >= max(limit_s, LEAST_LIMIT_S) and looks > 1:
                self.supervisor.kill(f"no step has ended for {now - since:.0f} s")
                return
            else:
                self._heartbeats[i] = heartbeat, since, looks + 1

    async def _drained(self, drain_s: float) -> None:
        """The process' half has `drain_s` seconds for what runs; what is left then is to fail."""
        self._closing = True
        if self.supervisor.up:
            with contextlib.suppress(TimeoutError, LlamapoolError):
                async with asyncio.timeout(drain_s + CLOSE_S):
                    await self.supervisor.call("close", self._which, drain_s)
        self.supervisor.stop_waiting(ShuttingDown("model"))

    def _check_open(self) -> None:
        """Raises `ShuttingDown`, or `Unavailable` where it would take long."""
        if self._closing:
            raise ShuttingDown("model")
        self.supervisor.check_soon()

    def _check_known(self, media: Spans) -> None:
        """Raises `ModelEnded` where the process that has read these media is gone."""
        if media and not (self.supervisor.up and are_known(media, self.supervisor.n_restarts)):
            raise ModelEnded(
                f"model '{self.supervisor.name}' was started again while the request was prepared; ask again"
            )

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Around the preparation of a request: the step threads give it a moment to join the next batch."""
        self._n_preparing += 1
        if self._n_preparing == 1:
            self.supervisor.post("preparing", self._which, True)
        try:
            yield
        finally:
            self._n_preparing -= 1
            if self._n_preparing == 0:
                self.supervisor.post("preparing", self._which, False)


@dataclass(eq=False, slots=True)
class _Open:
    """A request that has not ended. ``heard``: something of it was said."""

    number: int
    ticket: Ticket
    n_open: int
    sent: bool = False
    heard: bool = False


class IsolatedEngine(_Half):
    """`server.pool.protocols.Generator`."""

    def __init__(self, supervisor: WorkerSupervisor, facts: GeneratorFacts, params: EngineParams) -> None:
        super().__init__(supervisor, facts.bounds.n_slots, facts.bounds.n_ctx_seq, "generator")
        self.n_slots_each = facts.n_slots_each
        self.adapters: tuple[Adapter, ...] = facts.adapters
        self._bounds, self._params = facts.bounds, params
        self._numbers = count(1)
        self._open: dict[int, _Open] = {}
        self._by_ticket: dict[int, _Open] = {}
        self._shown: dict[int, Request] = {}  # by number: what slots may show
        self._ram = -1
        self._watched = False
        self._views: Sequence[InstanceView] = ()
        self._ended: Sequence[ChoiceView] = ()
        self._kept: Mapping[str, TierView] = {"ram": TierView(0, 0, ())}
        supervisor.generator = self
        supervisor.shown = self._show

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._open) or self.at_work

    # ---- requests

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Queue `request`; its events go to `sink`. Raises what can be said at once; else it is the first event."""
        self._check_open()
        self._bounds.check(request)
        self._check_known(request.media)
        if request.adapters is not None:
            check_adapters(request.adapters, self.adapters)
        if (
            self.supervisor.down
            and not request.asked_again
            and len(self._open) >= self._params.max_queue + self.n_slots
        ):
            raise QueueFull(len(self._open), 10)
        request.arrived_at = request.arrived_at or self.now  # which is the other half's clock, too
        ticket = Ticket(request, sink, request.arrived_at, n_open=request.n)
        found = _Open(next(self._numbers), ticket, request.n)
        self._open[found.number] = self._by_ticket[id(ticket)] = found
        self._send(found)
        return ticket

    def _send(self, found: _Open) -> None:
        if self.supervisor.up:
            self._n_begun += 1
            found.sent = True
            self._shown[found.number] = found.ticket.request
            self.supervisor.submit(found.number, found.ticket.request)

    def cancel(self, ticket: Ticket) -> None:
        """Stop a request; its slots are free by the next step. Harmless when it has ended."""
        ticket.cancelled = True
        found = self._by_ticket.get(id(ticket))
        if found is not None:
            self._forget(found)
            self.supervisor.post("cancel", found.number)

    def _forget(self, found: _Open) -> None:
        del self._open[found.number], self._by_ticket[id(found.ticket)]

    def events(self, batch: Mapping[int, list[Event]]) -> None:
        """What steps have said."""
        for number, events in batch.items():
            found = self._open.get(number)
            if found is None:
                continue
            found.heard = True
            for event in events:
                if type(event) is Finished:
                    found.n_open -= 1
                elif type(event) is Failed:
                    found.n_open = 0
            if not found.n_open:
                self._forget(found)
            found.ticket.sink(events)

    # ---- the process

    def told(self, told: EngineStatus) -> None:
        """What the other half does."""
        super().told(told)
        if len(self._shown) > 4 * self.n_slots + len(self._open):
            kept = self._open.keys() | set(told.requests)
            self._shown = {number: request for number, request in self._shown.items() if number in kept}

    def lost(self, reason: str) -> None:
        """What has said nothing yet is asked once more, all else ends: who asked may still do so, where nobody was
        told what came."""
        super().lost(reason)
        self._views, self._shown = (), {}
        for found in list(self._open.values()):
            request = found.ticket.request
            if found.heard or request.media or (found.sent and request.asked_again):
                said = f"the model has ended: {reason}; it is loaded again"
                self._fail(found, ModelEnded(said, asked_again=request.asked_again))
            else:
                request.asked_again |= found.sent
                found.sent = False

    def begins(self) -> None:
        """It is there again, as it was."""
        super().begins()
        self.supervisor.post("adapters", tuple((a.id, a.scale) for a in self.adapters if a.scale))
        self.supervisor.post("ram", self._ram)
        if self._watched:
            self.supervisor.post("watch", True)
        for found in list(self._open.values()):
            found.number = self._renumbered(found)
            self._send(found)

    def _renumbered(self, found: _Open) -> int:
        number = next(self._numbers)
        self._open[number] = self._open.pop(found.number)
        return number

    def gave_up(self, error: LlamapoolError) -> None:
        """It could not be started."""
        for found in list(self._open.values()):
            self._fail(found, error)

    def _fail(self, found: _Open, error: LlamapoolError) -> None:
        self._forget(found)
        found.ticket.sink([Failed(error)])

    async def close(self, drain_s: float = 0.0) -> None:
        """Give running requests `drain_s` seconds, then fail them; prompt states are saved."""
        try:
            await self._drained(drain_s)
        finally:  # also where a step hangs
            self.gave_up(ShuttingDown("model"))
        self._n_begun, self._told = 0, self._told and replace(self._told, busy=False, n_begun=0)

    # ---- looking

    def slots(self) -> list[SlotSnapshot]:
        """What every slot did a moment ago."""
        if self._told is None:
            return [SlotSnapshot(i, self.n_ctx_seq) for i in range(self.n_slots)]
        pairs = zip(self._told.slots, self._told.requests, strict=True)
        return [replace(slot, request=self._shown.get(number)) for slot, number in pairs]

    def watch(self, *, wanted: bool) -> None:
        """Have it tell what it does, or no longer."""
        if wanted is not self._watched:
            self._watched = wanted
            self.supervisor.post("watch", wanted)

    def _show(
        self,
        views: Sequence[InstanceView],
        gone: Sequence[ChoiceView],
        kept: Mapping[str, TierView],
    ) -> None:
        self._views, self._ended, self._kept = views, gone, kept

    def views(self) -> Sequence[InstanceView]:
        """What each instance published last."""
        return self._views

    def ended(self) -> Sequence[ChoiceView]:
        """The choices that ended last."""
        return self._ended

    def cached_states(self) -> Mapping[str, TierView]:
        """The prompt states that have no slot, by where they are."""
        return self._kept

    @property
    def now(self) -> float:
        """The clock of views: the system's, which is the same in all of its processes."""
        return time.perf_counter()

    def check_integrity(self) -> None:
        """Nothing is open."""
        assert not self._open, "a request is open"
        assert not self._by_ticket, "a ticket is kept"

    # ---- settings and slots

    def set_adapter_scales(self, scales: Adapters) -> None:
        """The LoRA set of requests that come from now on and ask for none. Raises `InvalidRequest`."""
        self.adapters = rescaled(self.adapters, scales)
        self.supervisor.post("adapters", scales)

    def limit_caches(self, n_bytes: int) -> None:
        """Keep at most so many bytes of prompt states and embeddings from now on. Safe in any thread."""
        self._ram = n_bytes
        self.supervisor.post_soon("ram", n_bytes)

    async def block_changes(self) -> BlockReport:
        """What has come and gone since it was asked last."""
        found = await self.supervisor.call("blocks")
        assert isinstance(found, BlockReport)
        return found

    async def save_slot(self, id_slot: int, owner: str = "") -> SlotState:
        """What the slot holds, once it is idle."""
        self._check_slot(id_slot)
        saved = await self.supervisor.call("save", id_slot, owner)
        assert isinstance(saved, SlotState)
        return saved

    async def restore_slot(self, id_slot: int, saved: SlotState) -> None:
        """Replace what the slot holds, once it is idle. Raises `InvalidRequest`."""
        self._check_slot(id_slot)
        await self.supervisor.call("restore", id_slot, saved)

    async def erase_slot(self, id_slot: int, owner: str = "") -> int:
        """Forget what the slot holds, once it is idle; the number of its tokens."""
        self._check_slot(id_slot)
        return int(await self.supervisor.call("erase", id_slot, owner))

    def _check_slot(self, id_slot: int) -> None:
        self._check_open()
        self._bounds.check_slot(id_slot)


class IsolatedEmbedder(_Half):
    """`server.pool.protocols.Embedder`."""

    def __init__(self, supervisor: WorkerSupervisor, facts: EmbedderFacts, n_vocab: int) -> None:
        super().__init__(supervisor, facts.n_slots, facts.info.n_ctx_seq, "embedder")
        self.info: EmbedderInfo = facts.info
        self._takes_media, self._n_vocab = facts.takes_media, n_vocab
        self._jobs: set[asyncio.Task[list[Vectors]]] = set()
        supervisor.embedder = self

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._jobs)

    def submit(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> asyncio.Future[list[Vectors]]:
        """Queue a request; the future has the vectors of each input, or `ModelEnded`. Cancelling it frees its place."""
        self._check_open()
        if not inputs:
            raise InvalidRequest('"input" must not be empty', "input")
        for one in inputs:
            prompt = one if isinstance(one, MediaPrompt) else MediaPrompt(list(one))
            check_input(prompt, self.info, self._n_vocab, media=self._takes_media)
            self._check_known(prompt.spans)
        job = asyncio.get_running_loop().create_task(self._embed(inputs))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    async def _embed(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> list[Vectors]:
        await self.supervisor.there()
        self._n_begun += 1
        for one in inputs:
            if isinstance(one, MediaPrompt):
                self._check_known(one.spans)
        found = await self.supervisor.call("embed", inputs)
        return [np.frombuffer(raw, np.float32).reshape(shape) for shape, raw in found]

    def slots(self) -> list[SlotSnapshot]:
        """One for each input that the instances' decodes can carry."""
        if self._told is None:
            return [SlotSnapshot(i, self.n_ctx_seq) for i in range(self.n_slots)]
        return list(self._told.slots)

    def check_integrity(self) -> None:
        """Nothing is open."""
        assert not self._jobs, "a request is open"

    async def close(self, drain_s: float = 0.0) -> None:
        """Give running requests `drain_s` seconds, then fail them."""
        await self._drained(drain_s)
        if self._jobs:
            await asyncio.wait(self._jobs)
