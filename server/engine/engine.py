"""The engine of one model: several instances with one queue. Runs on the event loop, except where stated."""

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import PurePath
from typing import TypeVar

from server.engine import snapshots
from server.engine.cache.disk_cache import DiskCache, StateFiles
from server.engine.cache.prefix_cache import MIB, CachedPrefix, CacheEntry, ram_tier
from server.engine.cache.scope import owner_of
from server.engine.encode import EmbeddingCache, EmbeddingFiles, Encoder
from server.engine.instances import Instances, has_failed
from server.engine.kv_store import Cells
from server.engine.loop import ANY_SLOT, Instance
from server.engine.lora import MAX_ADAPTERS, Adapter, adapter_set, default_set, rescaled
from server.engine.params import EngineParams
from server.engine.queue import has_place, preferred_instance
from server.engine.request import Adapters, Bounds, Request, SamplingParams, Sink, State
from server.engine.runner_api import Runner
from server.engine.sequence import Slot, Ticket
from server.engine.snapshots import CachedText, ChoiceView, HeldText, InstanceView, SlotSnapshot, TierView
from server.engine.stats import EngineStats
from server.engine.tickets import ModelQueue, Outlet
from server.errors import (
    InternalError,
    InvalidRequest,
    ModelFailed,
    NotFound,
    PermissionDenied,
    TooLate,
    request_queue_full,
)

T = TypeVar("T")
EXPIRY_CHECK_S = 0.1
"""Interval between checks for expired requests."""
RETRY_LATER_S = 5


class Engine(Instances[Instance]):
    """Queues requests, of which each instance takes as many as it has slots for."""

    def __init__(
        self,
        runners: Sequence[Runner],
        params: EngineParams,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
        outlet: Outlet | None = None,
    ) -> None:
        """Start the instances. `outlet`, if set, gets the events of steps. The sinks of requests then only get events
        that no step emits, such as a timeout.
        """
        info, projector = runners[0].info, runners[0].encoder
        super().__init__(params, info.n_seq, loop, clock)
        self.vocab = runners[0].vocab
        self.n_ctx_seq = info.n_ctx_seq
        self.adapters = runners[0].adapters
        self._changing_adapters, self._resetting = asyncio.Lock(), asyncio.Lock()
        self._next_adapter = 1 + max([adapter.id for adapter in self.adapters], default=-1)  # ids are never reused
        self._encoder = Encoder(projector, EmbeddingCache(params.media_cache * MIB)) if projector else None
        self._disk: DiskCache | None = None
        self._tiers: dict[str, TierView] = {}
        self._tiers_at = 0.0
        self._tier_texts: list[CachedText] = []  # of the entries in `_tiers`
        self._queue = ModelQueue(loop, len(runners), info.n_seq, self._wake_all, self._on_ended, outlet)
        self._limits = params.queue_timeout_s or params.first_token_timeout_s or params.request_timeout_s
        self._expires = False  # whether `_expire` is scheduled
        self._ram = ram_tier(params.cache_ram, info.free_bytes)  # instances share their states
        instances = [
            Instance(runner, params, self._queue, self._ram, i, clock, self._arrivals, self._encoder)
            for i, runner in enumerate(runners)
        ]
        self._start(instances)
        self.bounds = Bounds(self.vocab.n_tokens, info.n_ctx_seq, self.n_slots, info.n_ubatch, projector is not None)

    async def use_disk(self, files: StateFiles) -> None:
        """Use `files` as the disk tier. Call it before the first request. Returns when the index is loaded."""
        can_cut = self._instances[0].runner.info.can_cut
        self._disk = DiskCache(files, self.params.cache_disk * MIB, self._clock, self._wake_all, can_cut=can_cut)
        self._ram.spill = self._disk.put
        for instance in self._instances:
            instance.scheduler.placer.disk = self._disk
        await asyncio.wrap_future(self._disk.ready)

    async def keep_media(self, files: EmbeddingFiles) -> None:
        """Also store embeddings of media in `files`. Call it before the first request."""
        if self._encoder is not None:
            await asyncio.to_thread(self._encoder.cache.use_disk, files)

    def limit_caches(self, n_bytes: int) -> None:
        """Limit the RAM of all caches to `n_bytes` (-1 = configured limits): a quarter for media embeddings, the rest
        for KV states. Excess states go to disk or are dropped. Thread-safe.
        """
        if self._encoder is not None:
            media_bytes = self._encoder.cache.limit_ram_to(n_bytes // 4 if n_bytes > 0 else n_bytes)
            n_bytes = max(n_bytes - media_bytes, 0) if n_bytes >= 0 else n_bytes
        self._ram.limit_to(n_bytes, self._clock())

    async def close(self, drain_s: float = 0.0) -> None:
        """Refuse new requests, give running ones `drain_s` seconds, then fail them and free the contexts.

        With a disk tier, cached states in RAM are saved there, also when a step or the media encoder hangs. A caller
        that cannot wait for a hung thread cancels this.
        """
        try:
            try:
                await super().close(drain_s)
            finally:
                if self._encoder is not None:
                    self._encoder.stop()
            if self._encoder is not None and not await self._wait_ended(self._encoder.join):
                raise InternalError("the media encoder hangs, so that the model's memory can't be freed")
        finally:
            if self._disk is not None:
                await asyncio.to_thread(self._disk.close)

    @property
    def stats(self) -> EngineStats:
        total = super().stats
        total.n_deferred += self._queue.n_waiting
        total.cache_ram_bytes, total.cache_ram_states = self._ram.n_bytes, len(self._ram)
        total.n_ram_hits, total.n_ram_evictions = self._ram.n_hits, self._ram.n_evictions
        if self._disk is not None:
            total.cache_disk_bytes, total.cache_disk_states = self._disk.index.n_bytes, len(self._disk.index)
            total.n_disk_hits, total.n_disk_evictions = self._disk.index.n_hits, self._disk.index.n_evictions
            total.n_disk_dropped = self._disk.n_dropped
        for instance in self._instances:
            if not instance.failure:
                total.n_processing += instance.scheduler.n_active
                total.n_deferred += len(instance.scheduler.waiting)
            total.kv_cells += instance.runner.info.n_cells
            for slot in list(instance.scheduler.slots):
                n_own = max(len(slot.tokens) - slot.n_shared, 0)
                total.kv_cells_running += n_own if slot.sequence is not None else 0
                total.kv_cells_cached += min(n_own, slot.n_exact) if slot.sequence is None else 0
        if self.adapters:
            running = {id(s.ticket) for i in self._instances for slot in i.scheduler.slots if (s := slot.sequence)}
            tickets = list(self._queue.open.values())
            total.adapters_running = self._adapter_names(t for t in tickets if id(t) in running)
            total.adapters_waiting = self._adapter_names(t for t in tickets if id(t) not in running)
        if self._encoder is not None:
            total.n_media_encoded, total.n_media_hits = self._encoder.n_encoded, self._encoder.cache.n_hits
            total.media_cache_bytes = self._encoder.cache.size
        return total

    def needs_preparation(self, params: SamplingParams) -> bool:
        """Return whether `prepare_sampler` should run before a request with `params` is submitted."""
        return any(instance.runner.needs_preparation(params) for instance in self._instances)

    def prepare_sampler(self, params: SamplingParams) -> None:
        """Compute what step threads need to sample with `params`, so that they do not. Blocks; for any thread while the
        model is leased. Raises `InvalidRequest`.
        """
        for instance in self._instances:
            instance.runner.prepare_sampler(params)

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Queue `request`; its events go to `sink` on the event loop.

        Raises `ContextExceeded`, `InvalidRequest`, `Unavailable`, or `InternalError` for a failed instance; nothing was
        queued then.
        """
        self._check_open()
        self.bounds.check(request)
        wanted = default_set(self.adapters) if request.adapters is None else request.adapters
        computed_by = adapter_set(wanted, self.adapters, request.prompt, request.cache_scope)
        max_queue = len(self._instances) * self.params.max_queue
        is_full = self.n_load >= self.n_slots + max_queue
        if is_full and not has_place(request, self._queue.open.values(), self.n_slots, max_queue):
            raise request_queue_full(self.n_load - self.n_slots, self._retry_after_s())
        now = self._clock()
        ticket = Ticket(request, sink, request.arrived_at or now, computed_by, waits_since=now)
        has_limits = self._limits or request.first_token_timeout_s or request.request_timeout_s
        if has_limits and (missed := _missed_limit(ticket, self.params, now)):
            raise TooLate(missed, RETRY_LATER_S)
        if request.id_slot >= 0:
            ticket.instance = request.id_slot // self.n_slots_each
        elif len(self._instances) > 1:
            slots = {i: one.scheduler.slots for i, one in enumerate(self._instances) if not one.failure}
            ticket.instance = preferred_instance(ticket, self._queue.open.values(), slots)
        if not self._queue.add(ticket):  # the requested instance has failed
            raise has_failed(self._instances[ticket.instance].failure)
        self._arrivals.expect()  # others may follow it
        if has_limits and not self._expires:
            self._expires = True
            self._loop.call_later(EXPIRY_CHECK_S, self._expire)
        return ticket

    @property
    def n_load(self) -> int:
        """Choices that wait or run; exact on the event loop."""
        return self._queue.n_load

    def cancel(self, ticket: Ticket) -> None:
        """Stop a request; its slots are free at the next step. Does nothing after its end."""
        ticket.cancelled = ticket.cancelled or State.CANCELLED
        self._wake_all()

    def _expire(self) -> None:
        """End requests that exceed their time limits. Check again until no requests are open."""
        now = self._clock()
        for ticket in list(self._queue.open.values()):
            missed = _missed_limit(ticket, self.params, now)
            if missed and not (ticket.ended or ticket.cancelled):
                self._queue.fail(ticket, TooLate(missed, RETRY_LATER_S))
                self._wake_all()
        self._expires = self.busy
        if self._expires:
            self._loop.call_later(EXPIRY_CHECK_S, self._expire)

    def slots(self) -> list[SlotSnapshot]:
        """Return a snapshot of every slot; slot ids are consecutive across instances."""
        return [
            slot
            for instance in self._instances
            for slot in instance.snapshots.slots(self.n_ctx_seq, instance.spec_type)
        ]

    def watch(self, *, wanted: bool) -> None:
        """Start or stop recording steps and making views."""
        for instance in self._instances:
            instance.snapshots.watched = wanted

    def views(self) -> list[InstanceView]:
        """Return a view of each instance that is watched (`watch`)."""
        return [
            instance.snapshots.view(self._queue.expected(i), self._tier_texts)
            for i, instance in enumerate(self._instances)
            if instance.snapshots.watched
        ]

    def ended(self) -> list[ChoiceView]:
        """Return the last choices that ended, in the order of their ends."""
        found = [one for instance in self._instances for one in instance.snapshots.ended.copy()]
        return sorted(found, key=attrgetter("ended_at"))

    def held_texts(self) -> Iterator[HeldText]:
        """Iterate over the cached texts that the base model computed, each up to its first medium."""
        slots = [((i, slot.id), slot) for i, one in enumerate(self._instances) for slot in one.scheduler.slots]
        held: list[tuple[Hashable, CachedPrefix]] = [*slots, *((id(entry), entry) for entry in self._ram)]
        for key, one in held:
            is_slot, media, adapter_set = isinstance(one, Slot), one.media, one.adapter_set
            n_plain = min(adapter_set.start, one.n_exact, media[0].start if media else one.n_exact)
            tokens = one.tokens.copy() if is_slot else one.tokens  # one atomic copy: the step thread may append
            yield HeldText(key, tokens, min(n_plain, len(tokens)), "GPU" if is_slot else "CPU", adapter_set.scope)

    def _adapter_names(self, tickets: Iterable[Ticket]) -> frozenset[str]:
        ids = {id_ for ticket in tickets for id_, _ in ticket.adapter_set.adapters}
        return frozenset(a.name or PurePath(a.path).stem for a in self.adapters if a.id in ids)

    def cached_states(self) -> dict[str, TierView]:
        """Return the tiers "ram" and, if configured, "disk". The result is reused for `MAX_AGE_S` seconds; views show
        the same entries in their prefix trees.
        """
        now = self._clock()
        if not self._tiers or now - self._tiers_at >= snapshots.MAX_AGE_S:
            caches = {"ram": self._ram} | ({} if self._disk is None else {"disk": self._disk.index})
            found = {name: snapshots.tier_view(cache, now) for name, cache in caches.items()}
            self._tiers_at, self._tiers = now, {name: view for name, (view, _) in found.items()}
            self._tier_texts = [text for _, texts in found.values() for text in texts]
        return self._tiers

    @property
    def now(self) -> float:
        """The engine's clock, which all views use."""
        return self._clock()

    def set_adapter_scales(self, scales: Adapters) -> None:
        """Set the default LoRA scales for new requests; omitted adapters get 0.

        Raises `InvalidRequest` for an unknown adapter.
        """
        self.adapters = rescaled(self.adapters, scales)

    async def load_adapter(self, name: str, path: str, in_place: bool) -> tuple[Adapter, ...]:
        """Load a LoRA adapter with scale 0 while requests run; return all adapters. With `in_place`, it replaces an
        adapter of that name, which is unloaded as by `unload_adapter`.

        Raises `InvalidRequest` if the name is taken or the file does not fit the model; nothing has changed then.
        """
        async with self._changing_adapters:
            before = [adapter for adapter in self.adapters if adapter.name == name]
            if before and not in_place:
                raise InvalidRequest(
                    f"The lora adapter '{name}' has already been loaded. "
                    "If you want to load the adapter in place, set 'load_inplace' to True.",
                    "lora_name",
                )
            if len(self.adapters) >= MAX_ADAPTERS:
                raise InvalidRequest(f"the model has {len(self.adapters)} adapters; unload one", "lora_name")
            wanted = Adapter(self._next_adapter, path, 0.0, name=name)
            self._next_adapter += 1
            try:
                loaded = await asyncio.to_thread(lambda: [one.runner.load_adapter(wanted) for one in self._instances])
            except BaseException as error:
                await self._free_adapter(wanted.id)
                if isinstance(error, ModelFailed):
                    raise InvalidRequest(f"lora_path: {error.reason.removeprefix(f'{path}: ')}", "lora_path") from None
                raise
            self.adapters = (*self.adapters, loaded[0])
            if before:
                await self._remove_adapter(before[0])
            return self.adapters

    async def unload_adapter(self, name: str) -> tuple[Adapter, ...]:
        """Unload an adapter that was loaded by `load_adapter`; return the others. New requests cannot use it from now
        on. Waits for the requests that use it. Raises `NotFound`.
        """
        async with self._changing_adapters:
            for adapter in self.adapters:
                if name and adapter.name == name:
                    await self._remove_adapter(adapter)
                    return self.adapters
            raise NotFound(f"The lora adapter '{name}' cannot be found.")

    async def _remove_adapter(self, adapter: Adapter) -> None:
        def uses(one: Ticket | CachedPrefix) -> bool:
            return adapter.id in dict(one.adapter_set.adapters)

        self.adapters = tuple(each for each in self.adapters if each.id != adapter.id)
        await self._until(lambda: not any(map(uses, self._queue.open.values())))
        await self._free_adapter(adapter.id)
        await self._between_steps(lambda cells: cells.clear_idle(uses))
        for entry in filter(uses, self._ram):
            self._ram.remove(entry)

    async def _free_adapter(self, id_: int) -> None:
        """Free an adapter of every instance, also if the caller is cancelled meanwhile."""

        def free() -> None:
            for instance in self._instances:
                instance.runner.free_adapter(id_)

        await asyncio.to_thread(free)

    async def save_slot(self, id_slot: int, owner: str = "") -> CacheEntry:
        """Return the state of a slot once it is idle. Raises `InvalidRequest` for an unknown slot and
        `PermissionDenied` if its contents belong to another owner.
        """
        return await self._command(id_slot, lambda cells, slot, now: cells.save(_check_owner(slot, owner)))

    async def restore_slot(self, id_slot: int, saved: CacheEntry) -> None:
        """Replace the contents of a slot once it is idle.

        Raises `InvalidRequest` if the state does not fit or the library rejects it; the slot is empty then.
        """
        await self._command(id_slot, lambda cells, slot, now: cells.restore(slot, saved, now))

    async def erase_slot(self, id_slot: int, owner: str = "") -> int:
        """Clear a slot once it is idle; return the number of its tokens. Raises as `save_slot`."""
        return await self._command(id_slot, lambda cells, slot, now: cells.clear(_check_owner(slot, owner)))

    async def reset_cache(self) -> int:
        """Drop every cached KV state in slots, in RAM and on disk; return the number of dropped tokens.

        No later request reuses what a busy slot holds now. RAM and disk accept no states until this is done.
        """
        async with self._resetting:
            self._check_open()
            self._accept_states(wanted=False)
            try:
                n_tokens = sum(len(entry.tokens) for entry in self._ram.remove_all())
                if self._disk is not None:
                    n_tokens += await asyncio.wrap_future(self._disk.drop_all())
                return n_tokens + sum(await self._between_steps(lambda cells: cells.drop_all()))
            finally:
                self._accept_states(wanted=True)

    def _accept_states(self, *, wanted: bool) -> None:
        self._ram.offloads = wanted and self.params.cache_ram != 0
        if self._disk is not None:
            self._disk.accepts = wanted

    async def _between_steps(self, work: Callable[[Cells], T]) -> list[T]:
        """Execute `work` before the next step of each instance, also if its slots are busy; return the results."""
        self._check_open()  # an instance that has ended executes no commands
        working = [instance for instance in self._instances if not instance.failure]
        commands = [instance.command(ANY_SLOT, lambda cells, *_: work(cells)) for instance in working]
        await asyncio.gather(*map(asyncio.wrap_future, commands), return_exceptions=True)
        return [command.result() for command in commands]

    async def _command(self, id_slot: int, work: Callable[[Cells, Slot, float], T]) -> T:
        self._check_open()
        self.bounds.check_slot(id_slot)
        instance = self._instances[id_slot // self.n_slots_each]
        return await asyncio.wrap_future(instance.command(id_slot % self.n_slots_each, work))

    def check_integrity(self) -> None:
        """Verify that no slot, sequence or cell is lost. Only meaningful while idle. Raises AssertionError."""
        for instance in self._instances:
            instance.scheduler.check_integrity()


def _missed_limit(ticket: Ticket, params: EngineParams, now: float) -> str:
    """Return the message of the time limit that `ticket` has exceeded; "" if none."""
    request, waited_s = ticket.request, now - ticket.submitted_at
    total_s = _shorter(params.request_timeout_s, request.request_timeout_s)
    has_begun = any(choice.output for choice in ticket.choices)
    token_s = 0.0 if has_begun else _shorter(params.first_token_timeout_s, request.first_token_timeout_s)
    if 0 < total_s <= waited_s:
        return f"the request was not done within {total_s:g} s"
    has_slot = any(choice.n_cached >= 0 for choice in ticket.choices)
    if not has_slot and 0 < params.queue_timeout_s <= now - ticket.waits_since:
        return f"no slot was free within {params.queue_timeout_s:g} s"
    return f"there was no first token within {token_s:g} s" if 0 < token_s <= waited_s else ""


def _shorter(one_s: float, other_s: float) -> float:
    """Return the shorter of two time limits; 0 = no limit."""
    return min(one_s, other_s) or max(one_s, other_s)


def _check_owner(slot: Slot, owner: str) -> Slot:
    """Return `slot`. Raises `PermissionDenied` if its contents belong to another owner."""
    if slot.tokens and owner_of(slot.adapter_set.scope) != owner:
        raise PermissionDenied("the slot holds what was computed for another API key")
    return slot
