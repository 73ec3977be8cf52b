"""Prompt states that no longer have a slot, kept in RAM (llama-server's ``--cache-ram``) or on disk. Pure, but for a
lock: the instances of a model share their states.

An entry is what one slot held: tokens, the LoRA set that computed them, and the library's state of the sequence. A
request whose prompt begins with more of an entry than of any slot gets the entry loaded instead of computing it.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop
from typing import TYPE_CHECKING

from server.engine.kv.cost import value
from server.engine.kv.state import Checkpoints, SlotState, reach
from server.engine.lora import Tuning, reusable
from server.engine.media import whole
from server.engine.prefix.hashes import PrefixHashes, PrefixIndex

if TYPE_CHECKING:  # a sequence knows what is fetched for it from such a cache
    from server.engine.sequence import Slot

MIN_TOKENS = 16
"""Fewer are computed anew; for more, `MoveCost` compares the times. A turn of a short conversation is 20 to 60. Fewer
more are not worth another source either: a copy of a slot, a kept state, a wait."""


AUTOMATIC = -2
MIB = 1 << 20
_DEFAULT_MIB = 8192


def min_limit(one: int, other: int) -> int:
    """The smaller of two limits; a negative one is none."""
    return max(one, other) if min(one, other) < 0 else min(one, other)


@dataclass(eq=False, slots=True)
class KeptState:
    """What a slot held, kept without one: in RAM, or in the file ``name``; then ``saved`` has no bytes.

    ``size`` is what it takes there, in bytes. It can be cut anywhere (``can_cut``), or is of use whole and at its
    checkpoints. ``used_at`` makes its value; ``n_used`` counts how often it was of use since it is kept.
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
    def tuning(self) -> Tuning:
        return self.saved.tuning

    def reusable(self, n: int, wanted: Tuning) -> int:
        """How many of its first `n` tokens a sequence under `wanted` may take over."""
        saved = self.saved
        n = whole(saved.media, reusable(min(n, saved.n_exact), saved.tuning, wanted))
        floor = 0 if self.can_cut else len(saved.tokens)
        return reach(n, len(saved.tokens), floor, [c.n_tokens for c in saved.checkpoints])

    def value(self, now: float) -> float:
        """What keeping it is good for."""
        return value(len(self.tokens), now - self.used_at)


def size_of(n_state: int, n_tokens: int, checkpoints: Checkpoints) -> int:
    """Bytes in RAM of an entry whose state has `n_state`."""
    return n_state + 8 * n_tokens + sum(len(c.state) for c in checkpoints)


def in_ram(saved: SlotState, used_at: float, *, can_cut: bool = True, hashes: PrefixHashes | None = None) -> KeptState:
    """`saved` as an entry; `hashes` are those of its tokens, where somebody has them."""
    size = size_of(len(saved.state), len(saved.tokens), saved.checkpoints)
    known = PrefixHashes() if hashes is None else hashes.copy()
    return KeptState(saved, size, used_at, can_cut, hashes=known)


@dataclass(slots=True)
class StateCache:
    """At most `limit` bytes of states; 0 keeps nothing, negative is unbounded.

    What others hold in the same memory, checkpoints of slots and states of parked requests, counts to the limit, and
    entries give way to it. Where `limit` is 0 they have `limit_besides`. There a state counts once however many hold
    it; what a slot and an entry both hold counts twice.
    """

    limit: int
    limit_besides: int = 0
    size: int = 0  # of the entries
    n_beside: int = 0  # bytes that others hold
    n_hits: int = 0  # times that an entry was of use
    _entries: dict[int, KeptState] = field(default_factory=dict)
    _holders: Counter[int] = field(default_factory=Counter)  # by id of a state, which lives as long as it is held
    _index: PrefixIndex = field(default_factory=PrefixIndex)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[KeptState]:
        with self._lock:
            return iter(list(self._entries.values()))

    def __contains__(self, entry: object) -> bool:
        return id(entry) in self._entries

    @property
    def n_bytes(self) -> int:
        return self.size + self.n_beside

    def holds(self, one: "Slot | KeptState") -> bool:
        """Whether all of its tokens, or almost, can be had from an entry."""
        return self.match(one.tokens, one.tuning, len(one.tokens) - MIN_TOKENS, one.hashes)[0] is not None

    def wants(self, one: "Slot | KeptState", n_lost: int) -> bool:
        """Whether its state is worth saving when all but the first tokens, `n_lost` of them, go."""
        return self.limit != 0 and n_lost >= MIN_TOKENS and not self.holds(one)

    @property
    def most_beside(self) -> int:
        """Bytes that others may hold; negative: any."""
        return self.limit or self.limit_besides

    def fits(self, n_bytes: int) -> bool:
        """Whether an entry of so many bytes can be kept at all."""
        return self.limit < 0 or self.n_beside + n_bytes <= self.limit

    def has_room_beside(self, n_bytes: int) -> bool:
        """Whether so many bytes more can be held beside the entries, however many of these give way."""
        return not 0 <= self.most_beside < self.n_beside + n_bytes

    def make_room_beside(self, n_bytes: int, now: float) -> list[KeptState] | None:
        """Before so many bytes more are held there: those that had to give way. None, and nothing changed: no room."""
        return self.make_room(n_bytes, now) if self.has_room_beside(n_bytes) else None

    def hold(self, states: Collection[bytes], now: float) -> list[KeptState] | None:
        """Somebody beside the entries holds these from now on; else as `make_room_beside`."""
        with self._lock:
            n_new = sum(len(state) for state in states if id(state) not in self._holders)
            evicted = self.make_room_beside(n_new, now)
            if evicted is not None:
                self._holders.update(map(id, states))
                self.n_beside += n_new
            return evicted

    def let_go(self, states: Iterable[bytes]) -> None:
        """And does no longer."""
        with self._lock:
            for state in states:
                self._holders[id(state)] -= 1
                if not self._holders[id(state)]:
                    del self._holders[id(state)]
                    self.n_beside -= len(state)

    def replace(self, one: "Slot | KeptState") -> list[KeptState]:
        """Remove shorter states of the same text, as its own is to come; who they were."""
        with self._lock:
            replaced = self._index.within(one.tokens, one.tuning, one.hashes)
            for other in replaced:
                self.remove(other)
        return replaced

    def put(self, entry: KeptState, now: float) -> list[KeptState]:
        """Keep `entry` in the place of shorter states of the same text; who of the others had to go for it.

        One that is larger than the limit is not kept, and the only one of these.
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

    def limit_to(self, limit: int, now: float) -> list[KeptState]:
        """Another limit from now on; who had to go for it."""
        with self._lock:
            self.limit = limit
            return self.make_room(0, now)

    def make_room(self, n_bytes: int, now: float) -> list[KeptState]:
        """Remove those of the least value for a byte until there is room for `n_bytes` more; who they were."""
        evicted: list[KeptState] = []
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
    ) -> tuple[KeptState | None, int]:
        """The entry of which most can be had for `prompt`, and how much: more than `at_least` tokens, up to `most`.

        Here and below, `hashes` are those of the prompt where the caller has them.
        """
        if not self._entries:
            return None, 0
        with self._lock:
            return self._index.match(prompt, wanted, at_least, hashes, most)

    def parted(self, prompt: Sequence[int], wanted: Tuning, hashes: PrefixHashes | None = None) -> int:
        """How much of its beginning `prompt` has in common with an entry, whether that can be had or not."""
        with self._lock:
            return self._index.parted(prompt, wanted, hashes)

    def touch(self, entry: KeptState, now: float) -> None:
        with self._lock:
            entry.used_at = now
            entry.n_used += 1
            self.n_hits += 1

    def remove(self, entry: KeptState) -> None:
        """Forget `entry`, if it is here."""
        with self._lock:
            if self._entries.pop(id(entry), None) is not None:
                self._index.remove(entry)
                self.size -= entry.size

    def check_integrity(self) -> None:
        """The bytes add up and keep to the limit; raises AssertionError."""
        with self._lock:
            assert self.size == sum(e.size for e in self._entries.values())
            assert self.limit < 0 or not self._entries or self.n_bytes <= self.limit


def state_cache(mib: int, free_bytes: int) -> StateCache:
    """Of so many MiB; `AUTOMATIC` is llama-server's default, or a quarter of what is free if less. 0 free = unknown."""
    automatic = min(_DEFAULT_MIB * MIB, free_bytes // 4 or _DEFAULT_MIB * MIB)
    return StateCache(automatic if mib == AUTOMATIC else mib * MIB, automatic)
