"""Prompt states that no longer have a slot, kept in RAM (llama-server's ``--cache-ram``) or on disk. Pure, but for a
lock: the instances of a model share their states.

An entry is what one slot held: tokens, the LoRA set that computed them, and the library's state of the sequence. A
request whose prompt begins with more of an entry than of any slot gets the entry loaded instead of computing it.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop
from typing import Generic, TypeVar

from server.engine.kv.cost import value
from server.engine.kv.state import NOTHING, Checkpoints, SlotState, reach
from server.engine.lora import Tuning, reusable
from server.engine.media import Spans, whole
from server.engine.prefix.hashes import PrefixHashes, PrefixIndex

MIN_TOKENS = 16
"""Fewer are computed anew; for more, `MoveCost` compares the times. A turn of a short conversation is 20 to 60."""


AUTOMATIC = -2
MIB = 1 << 20
_DEFAULT_MIB = 8192


def ram_limit(cache_ram: int, free_bytes: int) -> int:
    """Bytes from the setting in MiB: automatic is `automatic_limit`."""
    if cache_ram != AUTOMATIC:
        return cache_ram * MIB
    return automatic_limit(free_bytes)


def automatic_limit(free_bytes: int) -> int:
    """llama-server's default, or a quarter of what is free if less; 0 free = unknown."""
    return min(_DEFAULT_MIB * MIB, free_bytes // 4 or _DEFAULT_MIB * MIB)


def min_limit(one: int, other: int) -> int:
    """The smaller of two limits; a negative one is none."""
    return max(one, other) if min(one, other) < 0 else min(one, other)


@dataclass(slots=True)
class HeldBytes:
    """Bytes of distinct states, each counted once however many hold it."""

    n_bytes: int = 0
    _n_holders: dict[int, int] = field(default_factory=dict)  # by id of a state, which lives as long as it is held

    def of_new(self, states: Iterable[bytes]) -> int:
        """Bytes of those that nobody holds."""
        return sum(len(state) for state in states if id(state) not in self._n_holders)

    def add(self, states: Iterable[bytes]) -> None:
        """One more holds each of them."""
        for state in states:
            n = self._n_holders.get(id(state), 0)
            self._n_holders[id(state)] = n + 1
            self.n_bytes += 0 if n else len(state)

    def remove(self, states: Iterable[bytes]) -> None:
        """One fewer does."""
        for state in states:
            n = self._n_holders.pop(id(state)) - 1
            if n:
                self._n_holders[id(state)] = n
            else:
                self.n_bytes -= len(state)


@dataclass(eq=False, slots=True)
class KeptState:
    """One kept state, wherever its bytes are; ``size`` are these.

    ``n_exact`` and ``media``: as in `SlotState`; ``floor``: as in `Slot`; ``places``: of its checkpoints, in tokens.
    ``used_at`` makes its value; ``n_used`` counts how often it was of use since it is kept.
    """

    tokens: list[int]
    tuning: Tuning
    n_exact: int
    size: int
    used_at: float
    n_used: int = 0
    floor: int = 0
    places: tuple[int, ...] = ()
    hashes: PrefixHashes = field(default_factory=PrefixHashes)
    media: Spans = ()

    def reusable(self, n: int, wanted: Tuning) -> int:
        """How many of its first `n` tokens a sequence under `wanted` may take over."""
        n = whole(self.media, reusable(min(n, self.n_exact), self.tuning, wanted))
        return reach(n, len(self.tokens), self.floor, self.places)

    def value(self, now: float) -> float:
        """What keeping it is worth."""
        return value(len(self.tokens), now - self.used_at)


@dataclass(eq=False, slots=True)
class RamState(KeptState):
    """One whose bytes are in RAM."""

    slot_state: SlotState = NOTHING


def size_of(n_state: int, n_tokens: int, checkpoints: Checkpoints) -> int:
    """Bytes in RAM of an entry whose state has `n_state`."""
    return n_state + 8 * n_tokens + sum(len(c.state) for c in checkpoints)


def ram_state(
    saved: SlotState, used_at: float, *, can_cut: bool = True, hashes: PrefixHashes | None = None
) -> RamState:
    """`saved` as an entry; `hashes` are those of its tokens, where somebody has them."""
    return RamState(
        saved.tokens,
        saved.tuning,
        saved.n_exact,
        size_of(len(saved.state), len(saved.tokens), saved.checkpoints),
        used_at,
        floor=0 if can_cut else len(saved.tokens),
        places=tuple(c.n_tokens for c in saved.checkpoints),
        hashes=PrefixHashes() if hashes is None else hashes.copy(),
        media=saved.media,
        slot_state=saved,
    )


E = TypeVar("E", bound=KeptState)


@dataclass(slots=True)
class StateCache(Generic[E]):
    """At most `limit` bytes of states; 0 keeps nothing, negative is unbounded.

    What others hold in the same memory, checkpoints of slots and states of parked requests, counts to the limit, and
    entries give way to it. Where `limit` is 0 they have `limit_besides`. What a slot and an entry both hold counts
    twice.
    """

    limit: int
    limit_besides: int = 0
    size: int = 0  # of the entries
    besides: HeldBytes = field(default_factory=HeldBytes)
    n_hits: int = 0  # times that an entry was of use
    _entries: dict[int, E] = field(default_factory=dict)
    _index: PrefixIndex[E] = field(default_factory=PrefixIndex)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[E]:
        with self._lock:
            return iter(list(self._entries.values()))

    def __contains__(self, entry: object) -> bool:
        return id(entry) in self._entries

    @property
    def n_bytes(self) -> int:
        """In all, and what is reserved."""
        return self.size + self.besides.n_bytes

    def holds(self, tokens: Sequence[int], tuning: Tuning, hashes: PrefixHashes | None = None) -> bool:
        """Whether all of `tokens`, or almost, can be had from an entry. Here and below, `hashes` are those of the
        tokens where the caller has them."""
        return self.match(tokens, tuning, len(tokens) - MIN_TOKENS, hashes)[0] is not None

    def wants(self, tokens: Sequence[int], tuning: Tuning, n_lost: int, hashes: PrefixHashes | None = None) -> bool:
        """Whether a state of `tokens` is worth saving when all but the first ones, `n_lost` of them, go."""
        return self.limit != 0 and n_lost >= MIN_TOKENS and not self.holds(tokens, tuning, hashes)

    def fits(self, n_bytes: int) -> bool:
        """Whether an entry of so many bytes can be kept at all."""
        return self.limit < 0 or self.besides.n_bytes + n_bytes <= self.limit

    def reserve(self, n_bytes: int, now: float) -> list[E] | None:
        """Before so many bytes more are held beside the entries: those that had to give way.

        None, and nothing changed, when there is no room however many do. `release` takes it back.
        """
        with self._lock:
            if 0 <= (self.limit or self.limit_besides) < self.besides.n_bytes + n_bytes:
                return None
            evicted = self.make_room(n_bytes, now)
            self.besides.n_bytes += n_bytes
            return evicted

    def release(self, n_bytes: int) -> None:
        """What was reserved is held by name now, or not needed."""
        with self._lock:
            self.besides.n_bytes -= n_bytes

    def hold(self, states: Iterable[bytes]) -> None:
        """Somebody beside the entries holds these; see `reserve`."""
        with self._lock:
            self.besides.add(states)

    def let_go(self, states: Iterable[bytes]) -> None:
        """And does no longer."""
        with self._lock:
            self.besides.remove(states)

    def replace(self, tokens: Sequence[int], tuning: Tuning, hashes: PrefixHashes | None = None) -> list[E]:
        """Remove shorter states of the same text, as one of `tokens` is to come; who they were."""
        with self._lock:
            replaced = list(self._index.within(tokens, tuning, hashes))
            for other in replaced:
                self.remove(other)
        return replaced

    def put(self, entry: E, now: float) -> tuple[list[E], list[E]]:
        """Keep `entry`. Shorter states of the same text go, then the least valuable: these two are returned.

        One that is larger than the limit is not kept, and the only one of the second.
        """
        with self._lock:
            if not self.fits(entry.size):
                return [], [entry]
            replaced = self.replace(entry.tokens, entry.tuning, entry.hashes)
            evicted = self.make_room(entry.size, now)
            self._entries[id(entry)] = entry
            self._index.add(entry)
            self.size += entry.size
            return replaced, evicted

    def limit_to(self, limit: int, now: float) -> list[E]:
        """Another limit from now on; who had to go for it."""
        with self._lock:
            self.limit = limit
            return self.make_room(0, now)

    def make_room(self, n_bytes: int, now: float) -> list[E]:
        """Remove those of the least value for a byte until there is room for `n_bytes` more; who they were."""
        evicted: list[E] = []
        with self._lock:
            if not self._entries or not 0 <= self.limit < self.n_bytes + n_bytes:
                return evicted
            entries = list(self._entries.values())
            order = [(e.value(now) / max(e.size, 1), i) for i, e in enumerate(entries)]
            heapify(order)
            while order and 0 <= self.limit < self.n_bytes + n_bytes:
                evicted.append(entries[heappop(order)[1]])
                self.remove(evicted[-1])
        return evicted

    def match(
        self,
        prompt: Sequence[int],
        wanted: Tuning,
        at_least: int,
        hashes: PrefixHashes | None = None,
        most: int | None = None,
    ) -> tuple[E | None, int]:
        """The entry of which most can be had for `prompt`, and how much: more than `at_least` tokens, up to `most`."""
        if not self._entries:
            return None, 0
        with self._lock:
            return self._index.match(prompt, wanted, at_least, hashes, most)

    def parted(self, prompt: Sequence[int], wanted: Tuning, hashes: PrefixHashes | None = None) -> int:
        """How much of its beginning `prompt` has in common with an entry, whether that can be had or not."""
        with self._lock:
            return self._index.parted(prompt, wanted, hashes)

    def touch(self, entry: E, now: float) -> None:
        """`entry` was of use."""
        with self._lock:
            entry.used_at = now
            entry.n_used += 1
            self.n_hits += 1

    def remove(self, entry: E) -> None:
        """Forget `entry`."""
        with self._lock:
            del self._entries[id(entry)]
            self._index.remove(entry)
            self.size -= entry.size

    def check_integrity(self) -> None:
        """The bytes add up and keep to the limit; raises AssertionError."""
        with self._lock:
            assert self.size == sum(e.size for e in self._entries.values())
            assert self.limit < 0 or not self._entries or self.n_bytes <= self.limit
