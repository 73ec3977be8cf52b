"""The server's proxies of a worker's engines and media reader."""

import asyncio
import contextlib
import itertools
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from server.engine.embedding import check_input
from server.engine.lora import Adapter, check_adapters, default_set, rescaled
from server.engine.media import MediaPrompt, Spans
from server.engine.params import EngineParams
from server.engine.request import Adapters, Event, Failed, Finished, Request, Sink
from server.engine.runner_api import Vectors
from server.engine.sequence import Ticket
from server.engine.snapshots import ChoiceView, InstanceView, SlotSnapshot, TierView
from server.engine.stats import EngineStats, combined
from server.engine.stats import ended as without_gauges
from server.errors import InvalidRequest, LlamapoolError, ModelEnded, ShuttingDown, request_queue_full
from server.media.bitmap import Bitmap
from server.pool.block_events import BlockReport
from server.pool.worker.messages import EmbedderFacts, EngineStatus, LoadedFacts, ReaderFacts, RemoteChunk

if TYPE_CHECKING:
    from server.pool.worker.parent import WorkerSupervisor

CLOSE_S = 60.0
"""Seconds for saving prompt states after the requests have ended."""


class EngineProxy:
    """What the proxies of both engines have in common."""

    def __init__(self, supervisor: "WorkerSupervisor", n_slots: int, n_ctx_seq: int, name: str) -> None:
        self.supervisor = supervisor
        self.n_slots, self.n_ctx_seq = n_slots, n_ctx_seq
        self.hangs = False  # it can be killed
        self._name = name
        self._closing = False
        self._past, self._stats = EngineStats(), EngineStats()
        self._status: EngineStatus | None = None
        self._shown: dict[str, Request] = {}  # requests that slots may show, by id
        self._n_preparing = 0

    @property
    def failure(self) -> str:
        """Why no process serves, "" otherwise."""
        return "" if self._closing else self.supervisor.down

    @property
    def serves(self) -> bool:
        """Whether a process serves."""
        return not self.supervisor.down

    @property
    def stats(self) -> EngineStats:
        """Totals of all processes since the load."""
        total = combined(self._past, self._stats)
        if self.is_first:
            total.n_restarts = self.supervisor.n_restarts
        return total

    @property
    def is_first(self) -> bool:
        """Whether this engine of the two reports what concerns the process."""
        return self._name == "generator" or self.supervisor.generator is None

    def update(self, status: EngineStatus) -> None:
        """Receive the status of the worker's engine."""
        self._status, self._stats = status, status.stats

    def slots(self) -> list[SlotSnapshot]:
        """Return the last known state of every slot."""
        if self._status is None:
            return [SlotSnapshot(i, self.n_ctx_seq) for i in range(self.n_slots)]
        pairs = zip(self._status.slots, self._status.requests, strict=True)
        return [replace(slot, request=self._shown.get(id_)) for slot, id_ in pairs]

    def process_lost(self, _reason: str) -> None:
        """Handle the end of the process, which will be restarted."""
        self._past, self._stats = combined(self._past, without_gauges(self._stats)), EngineStats()
        self._status = None

    def check_progress(self, limit_s: float) -> None:
        """Kill a process that is silent, or whose steps do not advance. Called periodically."""
        if self.is_first:
            self.supervisor.check_progress(limit_s)

    async def _drain(self, drain_s: float) -> None:
        """Give running requests of the worker's engine `drain_s` seconds; the caller fails what is left."""
        self._closing = True
        await self.supervisor.end_frozen()
        if self.supervisor.up:
            with contextlib.suppress(TimeoutError, LlamapoolError):
                async with asyncio.timeout(drain_s + CLOSE_S):
                    await self.supervisor.call("close", self._name, drain_s)
        self.supervisor.stop_waiting(ShuttingDown("model"))

    async def in_worker(self, function: str, *arguments: object) -> Any:
        """Call a function of the worker. Raises what it raises there, `ShuttingDown`, or `Unavailable`."""
        self._check_open()
        return await self.supervisor.call(function, *arguments)

    def _check_open(self) -> None:
        """Raises `ShuttingDown`, or `Unavailable` if no process will be started soon."""
        if self._closing:
            raise ShuttingDown("model")
        self.supervisor.check_soon()

    def _check_known(self, media: Spans) -> None:
        """Raises `ModelEnded` if the process that has tokenized `media` is gone."""
        supervisor = self.supervisor
        chunks = [span.chunk for span in media]
        known = all(isinstance(each, RemoteChunk) and each.generation == supervisor.n_restarts for each in chunks)
        if chunks and not (supervisor.up and known):
            raise ModelEnded(f"model '{supervisor.name}' was restarted while the request was prepared; try again")

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Surround the preparation of a request: step threads give it a moment to join the next batch."""
        self._n_preparing += 1
        self.supervisor.keep("preparing", self._name, True)
        try:
            yield
        finally:
            self._n_preparing -= 1
            if self._n_preparing == 0:
                self.supervisor.keep("preparing", self._name, False)


@dataclass(eq=False, slots=True)
class _SentTicket(Ticket):
    """A request that has not ended. ``number``: of the current attempt. ``answered``: it has had an event."""

    number: int = 0
    sent: bool = False
    answered: bool = False


class IsolatedEngine(EngineProxy):
    """`server.pool.model.Generator` of a worker."""

    def __init__(self, supervisor: "WorkerSupervisor", facts: LoadedFacts, params: EngineParams) -> None:
        assert facts.bounds is not None
        super().__init__(supervisor, facts.bounds.n_slots, facts.bounds.n_ctx_seq, "generator")
        self.n_slots_each = facts.n_slots_each
        self.adapters: tuple[Adapter, ...] = facts.adapters
        self._bounds, self._params = facts.bounds, params
        self._numbers = itertools.count(1)
        self._open: dict[int, _SentTicket] = {}
        self._views: Sequence[InstanceView] = ()
        self._ended: Sequence[ChoiceView] = ()
        self._cached: Mapping[str, TierView] = {"ram": TierView(0, 0, ())}

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._open) or (self._status is not None and self._status.busy)

    # ---- requests

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Queue `request`; its events go to `sink`. Raises errors that the server can detect; all others are the first
        event.
        """
        self._check_open()
        self._bounds.check(request)
        self._check_known(request.media)
        if request.adapters is not None:
            check_adapters(request.adapters, self.adapters)
        full = len(self._open) >= self._params.max_queue + self.n_slots
        if self.supervisor.down and full and not request.asked_again:
            raise request_queue_full(len(self._open), 10)
        if not request.arrived_at:
            request = replace(request, arrived_at=self.now)
        ticket = _SentTicket(request, sink, request.arrived_at, n_open=request.n)
        self._send(ticket)
        return ticket

    def _send(self, ticket: _SentTicket) -> None:
        ticket.number = next(self._numbers)
        self._open[ticket.number] = ticket
        if self.supervisor.up:
            ticket.sent = True
            self._shown[ticket.request.id] = ticket.request
            self.supervisor.submit(ticket.number, ticket.request)

    def cancel(self, ticket: Ticket) -> None:
        """Stop a request; its slots are free by the next step. Ignored when it has ended."""
        ticket.cancelled = True
        if isinstance(ticket, _SentTicket) and self._open.pop(ticket.number, None) is not None:
            self.supervisor.notify("cancel", ticket.number)

    def receive(self, batch: Mapping[int, list[Event]]) -> None:
        """Receive the events of steps, by request number."""
        for number, events in batch.items():
            found = self._open.get(number)
            if found is None:
                continue
            found.answered = True
            for event in events:
                if type(event) is Finished:
                    found.n_open -= 1
                elif type(event) is Failed:
                    found.n_open = 0
            if not found.n_open:
                del self._open[number]
            found.sink(events)

    # ---- the process

    def update(self, status: EngineStatus) -> None:
        """Receive the status of the worker's engine."""
        super().update(status)
        if len(self._shown) > 4 * self.n_slots + len(self._open):
            kept = {ticket.request.id for ticket in self._open.values()} | set(status.requests)
            self._shown = {id_: request for id_, request in self._shown.items() if id_ in kept}

    def process_lost(self, reason: str) -> None:
        """Retry requests without events once; fail all others. The caller retries those of which its client has seen
        nothing.
        """
        super().process_lost(reason)
        self._views, self._shown = (), {}
        for found in list(self._open.values()):
            request = found.request
            if found.answered or request.media or (found.sent and request.asked_again):
                said = f"the model has ended: {reason}; it is loaded again"
                self._fail(found, ModelEnded(said, asked_again=request.asked_again))
            else:
                if found.sent:
                    found.request = replace(request, asked_again=True)
                found.sent = False

    def process_started(self) -> None:
        """Send the waiting requests to a new process."""
        for found in list(self._open.values()):
            del self._open[found.number]
            self._send(found)

    def fail_all(self, error: LlamapoolError) -> None:
        """Fail all requests with `error`."""
        for found in list(self._open.values()):
            self._fail(found, error)

    def _fail(self, found: _SentTicket, error: LlamapoolError) -> None:
        del self._open[found.number]
        found.sink([Failed(error)])

    async def close(self, drain_s: float = 0.0) -> None:
        """Give running requests `drain_s` seconds, then fail them; prompt states are saved."""
        try:
            await self._drain(drain_s)
        finally:  # also if a step hangs
            self.fail_all(ShuttingDown("model"))
        self._status = None

    # ---- views

    def watch(self, *, wanted: bool) -> None:
        """Start or stop the publication of views."""
        self.supervisor.keep("watch", wanted)

    def show(self, views: Sequence[InstanceView], ended: Sequence[ChoiceView], cached: Mapping[str, TierView]) -> None:
        """Receive views of the worker's engine."""
        self._views, self._ended, self._cached = views, ended, cached

    def views(self) -> Sequence[InstanceView]:
        """Return the last view of each instance."""
        return self._views

    def ended(self) -> Sequence[ChoiceView]:
        """Return the choices that ended last."""
        return self._ended

    def cached_states(self) -> Mapping[str, TierView]:
        """Return the cached prompt states without a slot, by tier."""
        return self._cached

    @property
    def now(self) -> float:
        """The clock of views and of ``arrived_at``: the same in all processes of the system."""
        return time.perf_counter()

    # ---- settings and slots

    def set_adapter_scales(self, scales: Adapters) -> None:
        """Set the LoRA scales of later requests that set none. Raises `InvalidRequest`."""
        self.adapters = rescaled(self.adapters, scales)
        self.supervisor.keep("set_adapter_scales", scales)

    def _use_adapters(self, adapters: tuple[Adapter, ...]) -> None:
        now = {adapter.id: adapter.scale for adapter in self.adapters}  # maybe set after the worker has answered
        self.adapters = tuple(replace(adapter, scale=now.get(adapter.id, adapter.scale)) for adapter in adapters)
        self.supervisor.use_adapters(adapters)
        self.supervisor.keep("set_adapter_scales", default_set(self.adapters))

    async def load_adapter(self, name: str, path: str, in_place: bool) -> None:
        """Load a LoRA adapter in the worker, see `Engine.load_adapter`."""
        self._use_adapters(await self.in_worker("load_adapter", name, path, in_place))

    async def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter of the worker, see `Engine.unload_adapter`."""
        self._use_adapters(await self.in_worker("unload_adapter", name))

    def limit_caches(self, n_bytes: int) -> None:
        """Limit the RAM for prompt states and embeddings. Thread-safe."""
        self.supervisor.keep("limit_caches", n_bytes)

    async def erase_slot(self, id_slot: int, owner: str = "") -> int:
        """Clear a slot of the worker, see `Engine.erase_slot`."""
        return int(await self.in_worker("erase_slot", id_slot, owner))

    async def reset_cache(self) -> int:
        """Drop the worker's cached KV states, see `Engine.reset_cache`."""
        return int(await self.in_worker("reset_cache"))

    async def block_changes(self) -> BlockReport:
        """Return the worker's changes, see `ReportingEngine.block_changes`."""
        report: BlockReport = await self.in_worker("block_changes")
        return report


class IsolatedEmbedder(EngineProxy):
    """`server.pool.model.Embedder` of a worker."""

    def __init__(self, supervisor: "WorkerSupervisor", facts: EmbedderFacts, n_vocab: int) -> None:
        self.info, n_slots, self._takes_media = facts
        super().__init__(supervisor, n_slots, self.info.n_ctx_seq, "embedder")
        self._n_vocab = n_vocab
        self._jobs: set[asyncio.Task[list[Vectors]]] = set()

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._jobs)

    def submit(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> asyncio.Future[list[Vectors]]:
        """Queue a request; the future has the vectors of each input, or raises `ModelEnded`. Cancelling it cancels the
        request.
        """
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
        await self.supervisor.wait_up()
        for one in inputs:
            if isinstance(one, MediaPrompt):
                self._check_known(one.spans)
        found = await self.supervisor.call("embed", inputs)
        return [np.frombuffer(data, np.float32).reshape(shape) for shape, data in found]

    async def close(self, drain_s: float = 0.0) -> None:
        """Give running requests `drain_s` seconds, then fail them."""
        await self._drain(drain_s)
        if self._jobs:
            await asyncio.wait(self._jobs)


class IsolatedReader:
    """`server.pool.protocols.MediaReader` of a worker, which keeps the tokenized media."""

    def __init__(self, supervisor: "WorkerSupervisor", facts: ReaderFacts) -> None:
        self._supervisor = supervisor
        self.kinds, self.marker, self.sample_rate, self.fingerprint = facts

    async def ready(self) -> None:
        """Wait until a process serves."""
        await self._supervisor.wait_up()

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        """Return a prompt of texts and media; blocking."""
        supervisor, generation = self._supervisor, self._supervisor.n_restarts
        tokens, spans = supervisor.in_thread(supervisor.call("tokenize", list(parts), add_special, parse_special))
        found = []
        for span, number, key, causal in spans:
            chunk = RemoteChunk(number, generation, key, causal)
            weakref.finalize(chunk, self._forget, number, generation).atexit = False
            found.append(replace(span, chunk=chunk))
        return MediaPrompt(tokens, tuple(found))

    def _forget(self, number: int, generation: int) -> None:
        """Release a chunk of the worker. Thread-safe."""
        if generation == self._supervisor.n_restarts:
            self._supervisor.notify("release_chunk", number)

    def count(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> int:
        """Return the number of tokens that `tokenize` would return; blocking."""
        supervisor = self._supervisor
        return int(supervisor.in_thread(supervisor.call("count", list(parts), add_special, parse_special)))
