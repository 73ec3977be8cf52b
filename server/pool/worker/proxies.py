"""The server's proxies of the engines and the media reader in a worker."""

import asyncio
import contextlib
import itertools
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from server.engine.embedding import check_input
from server.engine.lora import Adapter, check_adapters, default_set, rescaled
from server.engine.media import MediaPrompt
from server.engine.request import Adapters, Event, Failed, Finished, Request, SamplingParams, Sink, State
from server.engine.runner_api import Vectors
from server.engine.sequence import Ticket
from server.engine.snapshots import ChoiceView, InstanceView, SlotSnapshot, TierView
from server.engine.stats import EngineStats
from server.errors import InvalidRequest, LlamapoolError
from server.media.bitmap import Bitmap
from server.pool.block_events import BlockReport
from server.pool.worker.messages import EmbedderFacts, EngineStatus, GeneratorFacts, ReaderFacts, RemoteChunk

if TYPE_CHECKING:
    from server.pool.worker.parent import WorkerProcess

CLOSE_S = 60.0
"""Seconds for saving prompt states after requests were drained."""


class EngineProxy:
    """Common methods of both engines' proxies. ``stats``: the last received totals of the worker's engine."""

    hangs = False
    """Always False: a process that hangs is killed."""
    failure = ""

    def __init__(self, process: "WorkerProcess", n_slots: int, n_ctx_seq: int, name: str) -> None:
        self.process = process
        self.n_slots, self.n_ctx_seq = n_slots, n_ctx_seq
        self.stats = EngineStats()
        self._name = name
        self._status: EngineStatus | None = None
        self._recent: dict[str, Request] = {}  # by id: running requests, and those of a slot's last use
        self._n_preparing = 0

    @property
    def serves(self) -> bool:
        """Whether the process runs."""
        return not self.process.ended.done()

    def update(self, status: EngineStatus) -> None:
        self._status, self.stats = status, status.stats

    def slots(self) -> list[SlotSnapshot]:
        """Return the last received state of every slot."""
        if self._status is None:
            return [SlotSnapshot(i, self.n_ctx_seq) for i in range(self.n_slots)]
        pairs = zip(self._status.slots, self._status.requests, strict=True)
        return [replace(slot, request=self._recent.get(id_)) for slot, id_ in pairs]

    def process_ended(self) -> None:
        self._status = None

    def check_progress(self, limit_s: float) -> None:
        """Do nothing: `WorkerProcess.check_progress` checks both engines."""

    async def _drain(self, drain_s: float) -> None:
        """Give running requests of the worker's engine `drain_s` seconds; the caller fails the rest."""
        await self.process.begin_close()
        with contextlib.suppress(TimeoutError, LlamapoolError):
            async with asyncio.timeout(drain_s + CLOSE_S):
                await self.process.call("close", self._name, drain_s)

    async def in_worker(self, function: str, *arguments: object) -> Any:
        """Call a function of the worker. Raises its errors, and `WorkerProcess.ended_error`."""
        self._check_open()
        return await self.process.call(function, *arguments)

    def _check_open(self) -> None:
        if self.process.closing or not self.serves:
            raise self.process.ended_error()

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Mark the preparation of a request, for which step threads wait briefly, so that it joins the next batch."""
        self._n_preparing += 1
        if self._n_preparing == 1:
            self.process.notify("preparing", self._name, True)
        try:
            yield
        finally:
            self._n_preparing -= 1
            if self._n_preparing == 0:
                self.process.notify("preparing", self._name, False)


@dataclass(eq=False, slots=True)
class _SentTicket(Ticket):
    """A running request. ``number``: in messages; ``n_open``: choices that have not ended."""

    n_open: int = 0
    number: int = 0


class IsolatedEngine(EngineProxy):
    """`server.pool.model.Generator` of a worker. Methods without a docstring have one in `Engine`."""

    def __init__(self, process: "WorkerProcess", facts: GeneratorFacts) -> None:
        self._bounds, self.n_slots_each, self.adapters = facts
        super().__init__(process, self._bounds.n_slots, self._bounds.n_ctx_seq, "generator")
        self._numbers = itertools.count(1)
        self._open: dict[int, _SentTicket] = {}
        self._views: Sequence[InstanceView] = ()
        self._ended: Sequence[ChoiceView] = ()
        self._cached: Mapping[str, TierView] = {"ram": TierView(0, 0, ())}

    @property
    def busy(self) -> bool:
        return bool(self._open) or (self._status is not None and self._status.busy)

    # ---- requests

    def needs_preparation(self, params: SamplingParams) -> bool:
        """Return False: the worker prepares samplers before it submits a request."""
        return False

    def prepare_sampler(self, params: SamplingParams) -> None:
        """Do nothing."""

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Queue `request`; `sink` receives its events. Raises errors that the server can detect; others are the first
        event.
        """
        self._check_open()
        self._bounds.check(request)
        if request.adapters is not None:
            check_adapters(request.adapters, self.adapters)
        if not request.arrived_at:
            request = replace(request, arrived_at=self.now)
        ticket = _SentTicket(request, sink, request.arrived_at, n_open=request.n, number=next(self._numbers))
        self._open[ticket.number] = ticket
        self._recent[request.id] = request
        self.process.submit(ticket.number, request)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        ticket.cancelled = State.CANCELLED
        if isinstance(ticket, _SentTicket) and self._open.pop(ticket.number, None) is not None:
            self.process.notify("cancel", ticket.number)

    def receive(self, batch: Mapping[int, list[Event]]) -> None:
        for number, events in batch.items():
            found = self._open.get(number)
            if found is None:
                continue
            for event in events:
                if type(event) is Finished:
                    found.n_open -= 1
                elif type(event) is Failed:
                    found.n_open = 0
            if not found.n_open:
                del self._open[number]
            found.sink(events)

    def update(self, status: EngineStatus) -> None:
        super().update(status)
        if len(self._recent) > 4 * self.n_slots + len(self._open):
            in_use = {ticket.request.id for ticket in self._open.values()} | set(status.requests)
            self._recent = {id_: request for id_, request in self._recent.items() if id_ in in_use}

    def process_ended(self) -> None:
        """Fail all requests. Callers retry those of which their clients have received nothing."""
        super().process_ended()
        self._fail_all()

    def _fail_all(self) -> None:
        tickets, self._open = self._open, {}
        for ticket in tickets.values():
            ticket.sink([Failed(self.process.ended_error())])

    async def close(self, drain_s: float = 0.0) -> None:
        """Give running requests `drain_s` seconds, then fail them. The worker saves prompt states."""
        try:
            await self._drain(drain_s)
        finally:  # also if a step hangs
            self._fail_all()
        self._status = None

    # ---- views

    def watch(self, *, wanted: bool) -> None:
        self.process.notify("watch", wanted)

    def show(self, views: Sequence[InstanceView], ended: Sequence[ChoiceView], cached: Mapping[str, TierView]) -> None:
        self._views, self._ended, self._cached = views, ended, cached

    def views(self) -> Sequence[InstanceView]:
        return self._views

    def ended(self) -> Sequence[ChoiceView]:
        return self._ended

    def cached_states(self) -> Mapping[str, TierView]:
        return self._cached

    @property
    def now(self) -> float:
        """The clock of views and of ``arrived_at``, which all processes of the system share."""
        return time.perf_counter()

    # ---- settings and slots

    def set_adapter_scales(self, scales: Adapters) -> None:
        """Set the LoRA scales of later requests that set none. Raises `InvalidRequest`."""
        self.adapters = rescaled(self.adapters, scales)
        self.process.notify("set_adapter_scales", scales)

    def _use_adapters(self, adapters: tuple[Adapter, ...]) -> None:
        current = {adapter.id: adapter.scale for adapter in self.adapters}  # may have changed since the worker's reply
        self.adapters = tuple(replace(adapter, scale=current.get(adapter.id, adapter.scale)) for adapter in adapters)
        self.process.notify("set_adapter_scales", default_set(self.adapters))

    async def load_adapter(self, name: str, path: str, in_place: bool) -> None:
        self._use_adapters(await self.in_worker("generator", "load_adapter", name, path, in_place))

    async def unload_adapter(self, name: str) -> None:
        self._use_adapters(await self.in_worker("generator", "unload_adapter", name))

    def limit_caches(self, n_bytes: int) -> None:
        self.process.notify("generator", "limit_caches", n_bytes)

    async def erase_slot(self, id_slot: int, owner: str = "") -> int:
        return int(await self.in_worker("generator", "erase_slot", id_slot, owner))

    async def reset_cache(self) -> int:
        return int(await self.in_worker("generator", "reset_cache"))

    async def block_changes(self) -> BlockReport:
        return cast(BlockReport, await self.in_worker("generator", "block_changes"))


class IsolatedEmbedder(EngineProxy):
    """`server.pool.model.Embedder` of a worker. Methods without a docstring have one in `EmbeddingEngine`."""

    def __init__(self, process: "WorkerProcess", facts: EmbedderFacts, n_vocab: int) -> None:
        self.info, n_slots, self._takes_media = facts
        super().__init__(process, n_slots, self.info.n_ctx_seq, "embedder")
        self._n_vocab = n_vocab
        self._jobs: set[asyncio.Task[list[Vectors]]] = set()

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def submit(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> asyncio.Future[list[Vectors]]:
        """Queue a request. The future returns the vectors of each input, or raises `ModelEnded`. Cancel it to cancel
        the request.
        """
        self._check_open()
        if not inputs:
            raise InvalidRequest('"input" must not be empty', "input")
        for one in inputs:
            prompt = one if isinstance(one, MediaPrompt) else MediaPrompt(list(one))
            check_input(prompt, self.info, self._n_vocab, media=self._takes_media)
        job = asyncio.get_running_loop().create_task(self._embed(inputs))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    async def _embed(self, inputs: Sequence[Sequence[int] | MediaPrompt]) -> list[Vectors]:
        found = await self.process.call("embed", inputs)
        return [np.frombuffer(data, np.float32).reshape(shape) for shape, data in found]

    async def close(self, drain_s: float = 0.0) -> None:
        await self._drain(drain_s)
        if self._jobs:
            await asyncio.wait(self._jobs)


class IsolatedReader:
    """`server.pool.protocols.MediaReader` of a worker, which stores the tokenized media. Methods block."""

    def __init__(self, process: "WorkerProcess", facts: ReaderFacts) -> None:
        self._process = process
        self.kinds, self.marker, self.sample_rate, self.fingerprint = facts

    def tokenize(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> MediaPrompt:
        process = self._process
        tokens, spans = process.in_thread(process.call("tokenize", list(parts), add_special, parse_special))
        found = []
        for span, number, key, causal in spans:
            chunk = RemoteChunk(number, key, causal)
            weakref.finalize(chunk, process.notify, "release_chunk", number).atexit = False
            found.append(replace(span, chunk=chunk))
        return MediaPrompt(tokens, tuple(found))

    def count(self, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> int:
        process = self._process
        return int(process.in_thread(process.call("count", list(parts), add_special, parse_special)))
