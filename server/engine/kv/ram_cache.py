"""The RAM tier: states of sequences that lost their slot (llama-server's ``--cache-ram``); also the index of the disk
tier. Pure, except for a lock, because the instances of a model share it.

An entry is what one slot held: tokens, their adapter set, and the library's state. A prompt that shares more tokens
with an entry than with any slot loads the entry instead of recomputing.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop
from typing import TYPE_CHECKING

from server.engine.kv.cost import eviction_priority
from server.engine.kv.state import Checkpoints, SlotState, reach
from server.engine.lora import AdapterSet, reusable
from server.engine.media import whole
from server.engine.prefix.hashes import PrefixHashes, PrefixIndex

if TYPE_CHECKING:  # import cycle with `sequence`
    from server.engine.sequence import Slot

MIN_TOKENS = 16
"""Shorter prefixes are recomputed; for longer ones `MoveCost` compares times. A short conversation turn has 20 to 60
tokens. Also the least gain for which another source (copy, entry, wait) is chosen.
"""


AUTOMATIC = -2
MIB = 1 << 20
_DEFAULT_MIB = 8192


def min_limit(one: int, other: int) -> int:
    """Return the smaller of two limits; a negative one is unlimited."""
    return max(one, other) if min(one, other) < 0 else min(one, other)


@dataclass(eq=False, slots=True)
class CacheEntry:
    """A cached KV state without a slot: in RAM, or on disk in the file ``name``, in which case ``saved`` has no bytes.

    ``size`` in bytes. ``can_cut``: it can be truncated anywhere; otherwise it is usable whole and at its
    checkpoints. ``used_at`` determines its eviction priority; ``n_used`` counts uses.
    """

    saved: SlotState
    size: int
    used_at: float
    can_cut: bool = True
    name: str = ""
    n_used: int = 0
    hashes: PrefixHashes = field(default_factory=PrefixHashes)

    @property
    def tokens(self) -> list[int]:
        return self.saved.tokens

    @property
    def adapter_set(self) -> AdapterSet:
        return self.saved.adapter_set

    def reusable(self, n: int, wanted: AdapterSet) -> int:
        """Return how many of its first `n` tokens a sequence with adapter set `wanted` may reuse."""
        saved = self.saved
        n = whole(saved.media, reusable(min(n, saved.n_exact), saved.adapter_set, wanted))
        floor = 0 if self.can_cut else len(saved.tokens)
        return reach(n, len(saved.tokens), floor, [c.n_tokens for c in saved.checkpoints])

    def eviction_priority(self, now: float) -> float:
        """Return the value of keeping it."""
        return eviction_priority(len(self.tokens), now - self.used_at)


def size_of(n_state: int, n_tokens: int, checkpoints: Checkpoints) -> int:
    """Return the RAM size in bytes of an entry whose state has `n_state` bytes."""
    return n_state + 8 * n_tokens + sum(len(c.state) for c in checkpoints)


def in_ram(saved: SlotState, used_at: float, *, can_cut: bool = True, hashes: PrefixHashes | None = None) -> CacheEntry:
    """Return `saved` as a RAM entry; `hashes` of its tokens, if available."""
    size = size_of(len(saved.state), len(saved.tokens), saved.checkpoints)
    known = PrefixHashes() if hashes is None else hashes.copy()
    return CacheEntry(saved, size, used_at, can_cut, hashes=known)


@dataclass(slots=True)
class StateCache:
    """Cached states of at most `limit` bytes; 0 = none, negative = unlimited.

    Slot checkpoints and preempted states live in the same memory, count towards the limit, and displace entries. If
    `limit` is 0 they get `limit_besides`. There a state counts once however many holders it has; a state held by a
    slot and an entry counts twice.
    """

    limit: int
    limit_besides: int = 0
    size: int = 0  # bytes of the entries
    n_beside: int = 0  # bytes of other holders
    n_hits: int = 0  # entries used
    _entries: dict[int, CacheEntry] = field(default_factory=dict)
    _holders: Counter[int] = field(default_factory=Counter)  # by id of a state, which stays alive while it is held
    _index: PrefixIndex = field(default_factory=PrefixIndex)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CacheEntry]:
        with self._lock:
            return iter(list(self._entries.values()))

    def __contains__(self, entry: object) -> bool:
        return id(entry) in self._entries

    @property
    def n_bytes(self) -> int:
        return self.size + self.n_beside

    def holds(self, one: "Slot | CacheEntry") -> bool:
        """Whether nearly all of its tokens are available from an entry."""
        return self.match(one.tokens, one.adapter_set, len(one.tokens) - MIN_TOKENS, one.hashes)[0] is not None

    def wants(self, one: "Slot | CacheEntry", n_lost: int) -> bool:
        """Whether to save its state when all but its first tokens, `n_lost` of them, are removed."""
        return self.limit != 0 and n_lost >= MIN_TOKENS and not self.holds(one)

    @property
    def most_beside(self) -> int:
        """Bytes available to other holders; negative = unlimited."""
        return self.limit or self.limit_besides

    def fits(self, n_bytes: int) -> bool:
        """Whether an entry of `n_bytes` can be stored at all."""
        return self.limit < 0 or self.n_beside + n_bytes <= self.limit

    def has_room_beside(self, n_bytes: int) -> bool:
        """Whether `n_bytes` more can be held besides the entries if these are evicted as needed."""
        return not 0 <= self.most_beside < self.n_beside + n_bytes

    def make_room_beside(self, n_bytes: int, now: float) -> list[CacheEntry] | None:
        """Evict entries for `n_bytes` more held besides them; return the evicted ones. None, with nothing changed, if
        there is no room.
        """
        return self.make_room(n_bytes, now) if self.has_room_beside(n_bytes) else None

    def hold(self, states: Collection[bytes], now: float) -> list[CacheEntry] | None:
        """Hold `states` besides the entries; otherwise as `make_room_beside`."""
        with self._lock:
            n_new = sum(len(state) for state in states if id(state) not in self._holders)
            evicted = self.make_room_beside(n_new, now)
            if evicted is not None:
                self._holders.update(map(id, states))
                self.n_beside += n_new
            return evicted

    def let_go(self, states: Iterable[bytes]) -> None:
        """Release held `states`."""
        with self._lock:
            for state in states:
                self._holders[id(state)] -= 1
                if not self._holders[id(state)]:
                    del self._holders[id(state)]
                    self.n_beside -= len(state)

    def replace(self, one: "Slot | CacheEntry") -> list[CacheEntry]:
        """Remove and return shorter entries of the same text before storing it."""
        with self._lock:
            replaced = self._index.within(one.tokens, one.adapter_set, one.hashes)
            for other in replaced:
                self.remove(other)
        return replaced

    def put(self, entry: CacheEntry, now: float) -> list[CacheEntry]:
        """Store `entry`, replacing shorter entries of the same text; return the other entries evicted for it.

        An entry above the limit is not stored and is returned alone.
        """
        with self._lock:
            if not self.fits(entry.size):
                return [entry]
            self.replace(entry)
            evicted = self.make_room(entry.size, now)
            self._entries[id(entry)] = entry
            self._index.add(entry)
            self.size += entry.size
            return evicted

    def limit_to(self, limit: int, now: float) -> list[CacheEntry]:
        """Set a new limit; return the evicted entries."""
        with self._lock:
            self.limit = limit
            return self.make_room(0, now)

    def make_room(self, n_bytes: int, now: float) -> list[CacheEntry]:
        """Evict entries with the lowest eviction priority per byte until `n_bytes` more fit; return them."""
        evicted: list[CacheEntry] = []
        with self._lock:
            if not self._entries or not 0 <= self.limit < self.n_bytes + n_bytes:
                return evicted
            entries = list(self._entries.values())
            order = [(e.eviction_priority(now) / max(e.size, 1), i) for i, e in enumerate(entries)]
            heapify(order)
            while order and 0 <= self.limit < self.n_bytes + n_bytes:
                evicted.append(entries[heappop(order)[1]])
                self.remove(evicted[-1])
        return evicted

    def match(
        self,
        prompt: Sequence[int],
        wanted: AdapterSet,
        at_least: int,
        hashes: PrefixHashes | None = None,
        most: int | None = None,
    ) -> tuple[CacheEntry | None, int]:
        """Return the entry with the most reusable tokens for `prompt`, more than `at_least` and at most `most`, and
        that number.

        `hashes`: of the prompt, if available; the same below.
        """
        if not self._entries:
            return None, 0
        with self._lock:
            return self._index.match(prompt, wanted, at_least, hashes, most)

    def divergence(self, prompt: Sequence[int], wanted: AdapterSet, hashes: PrefixHashes | None = None) -> int:
        """Return the longest prefix that `prompt` shares with an entry, whether it can be reused or not."""
        with self._lock:
            return self._index.divergence(prompt, wanted, hashes)

    def touch(self, entry: CacheEntry, now: float) -> None:
        with self._lock:
            entry.used_at = now
            entry.n_used += 1
            self.n_hits += 1

    def remove(self, entry: CacheEntry) -> None:
        """Remove `entry` if present."""
        with self._lock:
            if self._entries.pop(id(entry), None) is not None:
                self._index.remove(entry)
                self.size -= entry.size

    def check_integrity(self) -> None:
        """Verify that the bytes add up and respect the limit. Raises AssertionError."""
        with self._lock:
            assert self.size == sum(e.size for e in self._entries.values())
            assert self.limit < 0 or not self._entries or self.n_bytes <= self.limit


def state_cache(mib: int, free_bytes: int) -> StateCache:
    """Return a cache of `mib` MiB; `AUTOMATIC` is llama-server's default or a quarter of free memory if less.
    `free_bytes` 0 = unknown.
    """
    automatic = min(_DEFAULT_MIB * MIB, free_bytes // 4 or _DEFAULT_MIB * MIB)
    return StateCache(automatic if mib == AUTOMATIC else mib * MIB, automatic)
