"""The web UI's live data: one event stream for all of its views, and the last hour in numbers.

A state is built at most every `INTERVAL_S`, once for all readers, from snapshots of the engines (`engine.snapshots`).
Without readers nothing is built, and step threads record no steps. The interval grows with the number of running
choices, so that the cost to each stays the same. Other events are sent on change: finished requests, cached prompt
states, and the samples of the last hour, first all and then each new one. Times are unix milliseconds.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import itemgetter
from typing import Any, TypeAlias

import orjson

from server.engine.snapshots import ChoiceView, InstanceView, TierView
from server.engine.stats import EngineStats, Histogram, combined
from server.errors import QueueFull
from server.metrics.collector import Ledger
from server.pool.model import Generator
from server.pool.state import ModelState

SAMPLE_S = 10.0
HISTORY_S = 3600.0
INTERVAL_S = 0.4
INTERVAL_PER_CHOICE_S = 0.02  # added to the interval for each running choice
MAX_WATCHERS = 16
MAX_ENDED = 100
Json = dict[str, Any]
Load: TypeAlias = tuple[str, float]  # a model and the time of its load
Milliseconds: TypeAlias = Callable[[float], float]


class History:
    """The samples of the last hour. Used on the event loop.

    Each describes the interval before ``at`` (unix seconds), summed over all models; None = no activity.
    ``first_token`` and ``gap``: median and 95th percentile in seconds, at the resolution of the histogram's buckets.
    ``hit_rate``: fraction of prompt tokens from a cache. ``memory``: bytes of the loaded models.

    `ledger`: the ledger of the metrics, which releases a model as soon as it is unloaded.
    """

    def __init__(self, states: Callable[[], Sequence[ModelState]], ledger: Ledger) -> None:
        self._states, self._ledger = states, ledger
        self._before = EngineStats()
        self._sampled_at = time.time()
        self.samples: deque[Json] = deque(maxlen=int(HISTORY_S / SAMPLE_S))
        self.latest = b""  # the event of the last sample

    def sample(self) -> None:
        """Add the activity since the last sample. Call it every `SAMPLE_S` seconds."""
        now, states = time.time(), self._states()
        self._ledger.note({state.spec.id: state.loaded for state in states})
        stats, before = reduce(combined, self._ledger.totals().values(), EngineStats()), self._before
        loaded = [state.facts for state in states if state.loaded is not None and state.facts is not None]
        n_prompt = stats.prompt_tokens - before.prompt_tokens
        n_cached = stats.prompt_tokens_cached - before.prompt_tokens_cached
        elapsed = max(now - self._sampled_at, 1e-3)
        self._before, self._sampled_at = stats, now
        self.samples.append(
            {
                "at": round(now, 1),
                "first_token": quantiles(_since(stats.time_to_first_token, before.time_to_first_token)),
                "gap": quantiles(_since(stats.inter_token, before.inter_token)),
                "generated_per_s": (stats.predicted_tokens - before.predicted_tokens) / elapsed,
                "prompt_per_s": n_prompt / elapsed,
                "hit_rate": n_cached / (n_prompt + n_cached) if n_prompt + n_cached else None,
                "running": stats.n_processing,
                "waiting": stats.n_deferred,
                "memory": sum(taken.total for facts in loaded for taken in facts.footprint.values()),
                "ram_cache": stats.cache_ram_bytes,
                "disk_cache": stats.cache_disk_bytes,
            }
        )
        self.latest = _event("sample", self.samples[-1])


def quantiles(counts: Sequence[int]) -> tuple[float, float] | None:
    """Return median and 95th percentile of a histogram, interpolated within the engine's bounds; None if empty."""
    n = sum(counts)
    return (_quantile(counts, n * 0.5), _quantile(counts, n * 0.95)) if n else None


def _quantile(counts: Sequence[int], rank: float) -> float:
    bounds, below, low = Histogram().bounds, 0, 0.0
    for count, high in zip(counts, bounds, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below, low = below + count, high
    return low


def _since(now: Histogram, before: Histogram) -> list[int]:
    return [a - b for a, b in zip(now.counts, before.counts, strict=True)]


@dataclass(slots=True)
class Live:
    """Builds the events for all readers. Used on the event loop."""

    states: Callable[[], Sequence[ModelState]]
    history: History
    _n_watchers: int = 0
    _built_at: float = 0.0
    _interval_s: float = 0.0
    _state: bytes = b""
    _requests: bytes = b""
    _ended: Collection[object] = ()  # keys of the requests in `_requests`
    _tiers: bytes = b""
    _cached: dict[Load, Mapping[str, TierView]] = field(default_factory=dict)  # the states in `_tiers`
    _last_steps: dict[tuple[str, float, int], int] = field(default_factory=dict)  # sent, by model, load and instance

    def begin(self) -> None:
        """Register a reader until `end`. Raises `QueueFull` at the reader limit."""
        if self._n_watchers >= MAX_WATCHERS:
            raise QueueFull(f"{MAX_WATCHERS} readers watch, and no more are possible", 10, "web_ui_full")
        self._n_watchers += 1
        self._watch()

    def end(self) -> None:
        self._n_watchers -= 1
        if not self._n_watchers:
            self._watch()
            self._last_steps.clear()

    def _watch(self) -> dict[Load, Generator]:
        """Enable snapshots of all loaded engines while there are readers. Returns the engines."""
        loaded = [state.loaded for state in self.states() if state.loaded is not None]
        engines = {(each.spec.id, each.loaded_at): each.generator for each in loaded if each.generator is not None}
        for engine in engines.values():
            engine.watch(wanted=self._n_watchers > 0)
        return engines

    async def events(self, stopping: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Yield events until the reader disconnects or the server stops. Call `begin` before it and `end` after it."""
        yield _event("history", list(self.history.samples))
        sent = (b"", self.history.latest, b"", b"")
        while not stopping.is_set():
            self._build()
            current = (self._state, self.history.latest, self._requests, self._tiers)
            if changed := b"".join([new for new, old in zip(current, sent, strict=True) if new is not old]):
                yield changed
            sent = current
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._built_at + self._interval_s - time.monotonic(), 0.001)):
                    await stopping.wait()

    def _build(self) -> None:
        now = time.monotonic()
        if self._state and now - self._built_at < self._interval_s * 0.9:
            return
        self._built_at = now
        engines = self._watch()  # also enables snapshots of newly loaded models
        states = self.states()
        self._interval_s = INTERVAL_S + INTERVAL_PER_CHOICE_S * sum(state.n_leases for state in states)
        self._state = _event("state", {"at": _ms(time.time()), "models": [self._model(state) for state in states]})
        self._collect(engines)
        cached = {load: engine.cached_states() for load, engine in engines.items()}
        if cached != self._cached:
            self._cached = cached
            self._tiers = _event("tiers", {load[0]: _tiers(tiers, engines[load]) for load, tiers in cached.items()})

    def _model(self, state: ModelState) -> Json:
        described: Json = {
            "id": state.spec.id,
            "status": state.status.value,
            "progress": state.progress,
            "failure": state.failure,
            "leases": state.n_leases,
            "waiting": state.n_waiting,
            "sleeps_in_s": state.sleeps_in_s,
            "pinned": state.pinned,
        }
        if state.facts is not None:
            described |= {"n_ctx": state.facts.n_ctx_seq, "n_slots": state.facts.n_slots}
        if state.loaded is not None and state.loaded.generator is not None:
            described["engine"] = self._engine(state.loaded.generator, (state.spec.id, state.loaded.loaded_at))
        return described

    def _engine(self, engine: Generator, key: tuple[str, float]) -> Json:
        at = _clock(engine.now)
        views = engine.views()
        stats = engine.stats
        return {
            "shared": [pair for view in views for pair in view.shared],
            "slots": self._slots(engine, at),
            "waiting": [choice_object(choice, at) for view in views for choice in view.waiting],
            "n_waiting": sum(view.n_waiting for view in views),
            "steps": [self._steps(view, (*key, number), at) for number, view in enumerate(views)],
            "adapters": [{"id": a.id, "path": a.path.rpartition("/")[2], "scale": a.scale} for a in engine.adapters],
            "ram": {"bytes": stats.cache_ram_bytes, "hits": stats.n_ram_hits},
            "disk": {"bytes": stats.cache_disk_bytes, "hits": stats.n_disk_hits},
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.prompt_tokens_cached,
            "preempted": stats.n_preempted,
            "drafts": [stats.n_draft_tokens, stats.n_draft_accepted],
        }

    def _slots(self, engine: Generator, at: Milliseconds) -> list[Json]:
        return [
            {
                "id": slot.id,
                "instance": slot.id // engine.n_slots_each,
                "phase": slot.phase,
                "tokens": slot.n_tokens,
                "adapters": slot.adapters,
                "used": at(slot.last_used),
                "choice": choice_object(slot.choice, at) if slot.choice is not None and slot.is_processing else None,
            }
            for slot in engine.slots()
        ]

    def _steps(self, view: InstanceView, key: tuple[str, float, int], at: Milliseconds) -> list[list[float]]:
        """Return the steps since the previous state."""
        known = self._last_steps.get(key, -1)
        if view.steps:
            self._last_steps[key] = view.steps[-1][0]
        return [
            [number, at(ended), round(seconds, 5), *n_tokens]
            for number, ended, seconds, *n_tokens in view.steps
            if number > known
        ]

    def _collect(self, engines: Mapping[Load, Generator]) -> None:
        ended = {(*load, view.request, view.index): view for load, engine in engines.items() for view in engine.ended()}
        if ended.keys() == set(self._ended) and self._requests:
            return
        self._ended = ended.keys()
        clocks = {load: _clock(engine.now) for load, engine in engines.items()}
        described = [
            choice_object(view, at) | {"model": model, "slot": view.slot, "ended": at(view.ended_at)}
            for (model, loaded_at, *_), view in ended.items()
            for at in (clocks[model, loaded_at],)
        ]
        self._requests = _event("requests", sorted(described, key=itemgetter("ended"))[-MAX_ENDED:])


def _clock(now: float) -> Milliseconds:
    """Return a function from an engine's times, where `now` is the current one, to unix milliseconds. 0 stays 0."""
    offset = time.time() - now
    return lambda at: _ms(at + offset) if at else 0.0


def choice_object(choice: ChoiceView, at: Milliseconds) -> Json:
    return {
        "request": choice.request,
        "log": choice.log_id,
        "index": choice.index,
        "priority": choice.priority,
        "prompt": choice.n_prompt,
        "cached": choice.n_cached,
        "predicted": choice.n_predicted,
        "max": choice.max_tokens,
        "source": [choice.source, choice.source_slot],
        "recompute": choice.recompute,
        "submitted": at(choice.submitted_at),
        "placed": at(choice.placed_at),
        "begun": at(choice.placed_at + choice.placement_s),
        "prompt_done": at(choice.prompt_done_at),
        "outcome": choice.state,
    }


def _tiers(tiers: Mapping[str, TierView], engine: Generator) -> Json:
    at = _clock(engine.now)
    return {
        name: {
            "n": tier.n,
            "bytes": tier.n_bytes,
            "states": [
                [-number, n_tokens, size, at(used), n_used, round(priority, 3)]
                for number, n_tokens, size, used, n_used, priority in tier.states
            ],
        }
        for name, tier in tiers.items()
    }


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
