"""What the page shows while it is looked at: one stream of events for all of its views.

A state is made at most every `EVERY_S`, once for all who look, out of what step threads have published
(`engine.step.published`); while nobody looks nothing is made, and step threads publish nothing. Beside it comes what
changes seldom: the last requests when one has ended, the last hour at the beginning and then each sample.
Times are unix milliseconds.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from server.engine.step.published import ChoiceView, EndedChoice, InstanceView
from server.errors import QueueFull
from server.page.history import History
from server.pool.protocols import Generator, Kept
from server.pool.state import ModelState

EVERY_S = 0.4
MOST_WATCHERS = 16
MOST_STATES = 60  # of a cache, the most valuable ones
MOST_ENDED = 100
Json = dict[str, Any]


@dataclass(slots=True)
class Live:
    """Used on the event loop."""

    states: Callable[[], Sequence[ModelState]]
    history: History
    _n_watchers: int = 0
    _made_at: float = 0.0
    _state: bytes = b""
    _requests: bytes = b""
    _ended_at: float = 0.0  # of the newest request that `_requests` tells of
    _n_requests: int = 0  # changes of these
    _told: dict[tuple[str, float, int], int] = field(default_factory=dict)  # steps by model, load and instance

    def begin(self) -> None:
        """Somebody looks, until `end`. Raises `QueueFull` where too many do."""
        if self._n_watchers >= MOST_WATCHERS:
            raise QueueFull(self._n_watchers, 10)
        self._n_watchers += 1
        self._watch()

    def end(self) -> None:
        """One of them looks no longer."""
        self._n_watchers -= 1
        if not self._n_watchers:
            self._watch()
            self._told.clear()

    def _watch(self) -> None:
        for state in self.states():
            if state.loaded is not None and state.loaded.generator is not None:
                state.loaded.generator.watch(wanted=self._n_watchers > 0)

    async def events(self, stopping: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Events until the reader leaves or the server stops; `begin` comes before it, and `end` after."""
        yield _event("history", self.history.shown())
        n_samples, n_requests = self.history.n_samples, -1
        while not stopping.is_set():
            self._make()
            yield self._state
            if n_requests != self._n_requests:
                n_requests = self._n_requests
                yield self._requests
            if n_samples != self.history.n_samples:
                n_samples = self.history.n_samples
                yield _event("sample", self.history.shown()[-1])
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S - (time.monotonic() - self._made_at) % EVERY_S):
                    await stopping.wait()

    def _make(self) -> None:
        now = time.monotonic()
        if self._state and now - self._made_at < EVERY_S * 0.9:
            return
        self._made_at = now
        self._watch()  # models that were loaded meanwhile, too
        states = self.states()
        self._state = _event("state", {"at": _ms(time.time()), "models": [self._model(state) for state in states]})
        self._collect(states)

    def _model(self, state: ModelState) -> Json:
        shown: Json = {
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
            shown |= {"n_ctx": state.facts.n_ctx_seq, "n_slots": state.facts.n_slots}
        if state.loaded is not None and state.loaded.generator is not None:
            shown["engine"] = self._engine(state.loaded.generator, (state.spec.id, state.loaded.loaded_at))
        return shown

    def _engine(self, engine: Generator, key: tuple[str, float]) -> Json:
        at = _Clock(engine.now)
        views = engine.views()
        stats = engine.stats
        kept = engine.kept_states()
        return {
            "shared": [pair for view in views for pair in view.shared],
            "slots": [slot for number, view in enumerate(views) for slot in self._slots(view, number, at)],
            "waiting": [choice_object(choice, at) for view in views for choice in view.waiting],
            "n_waiting": sum(view.n_waiting for view in views),
            "steps": [self._steps(view, (*key, number), at) for number, view in enumerate(views)],
            "adapters": [{"id": a.id, "path": a.path.rpartition("/")[2], "scale": a.scale} for a in engine.adapters],
            "tiers": {name: _tier(states, engine.now) for name, states in kept.items()},
            "ram": {"bytes": stats.cache_ram_bytes, "hits": stats.n_ram_hits},
            "disk": {"bytes": stats.cache_disk_bytes, "hits": stats.n_disk_hits},
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.prompt_tokens_cached,
            "parked": stats.n_parked,
            "drafts": [stats.n_draft_tokens, stats.n_draft_accepted],
        }

    def _slots(self, view: InstanceView, number: int, at: "_Clock") -> list[Json]:
        return [
            {
                "id": slot.id,
                "instance": number,
                "phase": slot.phase,
                "tokens": slot.n_tokens,
                "adapters": slot.adapters,
                "used": at.ms(slot.last_used),
                "choice": None if slot.choice is None else choice_object(slot.choice, at),
            }
            for slot in view.slots
        ]

    def _steps(self, view: InstanceView, key: tuple[str, float, int], at: "_Clock") -> list[list[float]]:
        """Those that no state before has told of."""
        told = self._told.get(key, -1)
        if view.steps:
            self._told[key] = view.steps[-1].number
        return [
            [s.number, at.ms(s.at), round(s.seconds, 5), s.n_decode, s.n_guessed, s.n_prompt]
            for s in view.steps
            if s.number > told
        ]

    def _collect(self, states: Sequence[ModelState]) -> None:
        found: list[tuple[float, Json]] = []
        for state in states:
            if state.loaded is not None and state.loaded.generator is not None:
                at = _Clock(state.loaded.generator.now)
                found += [
                    (at.ms(one.ended_at), ended_object(one, state.spec.id, at))
                    for one in state.loaded.generator.ended()
                ]
        found.sort(key=lambda one: one[0])
        newest = found[-1][0] if found else 0.0
        if not self._requests or abs(newest - self._ended_at) > 1:  # the clocks are compared anew each time
            self._ended_at = newest
            self._n_requests += 1
            self._requests = _event("requests", [shown for _, shown in found[-MOST_ENDED:]])


class _Clock:
    """An engine's times as unix milliseconds."""

    def __init__(self, now: float) -> None:
        self._ahead = time.time() - now

    def ms(self, at: float) -> float:
        """0 stays 0: it has not come."""
        return _ms(at + self._ahead) if at else 0.0


def choice_object(choice: ChoiceView, at: _Clock) -> Json:
    """One choice of a request."""
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
        "anew": choice.anew,
        "submitted": at.ms(choice.submitted_at),
        "placed": at.ms(choice.placed_at),
        "prompt_done": at.ms(choice.prompt_done_at),
    }


def ended_object(ended: EndedChoice, model: str, at: _Clock) -> Json:
    """One that has ended."""
    shown = choice_object(ended.choice, at)
    return shown | {"model": model, "slot": ended.slot, "ended": at.ms(ended.ended_at), "outcome": ended.outcome.value}


def _tier(states: Sequence[Kept], now: float) -> Json:
    most = sorted(states, key=lambda one: one.value(now), reverse=True)[:MOST_STATES]
    shown = [[len(s.tokens), s.size, round(now - s.used_at, 1), s.n_used, s.value(now)] for s in most]
    return {"n": len(states), "bytes": sum(s.size for s in states), "states": shown}


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
