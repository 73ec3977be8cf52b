"""Cached prefixes as values: states of sequences, checkpoints inside them, prefix hashes and index, and the RAM tier
(llama-server's ``--cache-ram``). Pure, except for a lock, because the instances of a model share the RAM tier.

Tokens are hashed in blocks, each hash including the previous one, so equal prefixes have equal hashes. Matches found
by hash are verified token by token, so collisions change nothing (docs/adr/0002).

If a model's memory cannot be truncated (recurrent, hybrid, sliding window), a sequence can only be continued from
its end or from a checkpoint. Checkpoints are created during prefill where another prompt is likely to diverge: at
the ends of turns, where an earlier prompt diverged, and shortly before the prompt's end, because the next turn often
renders what follows differently.
"""

import ctypes
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop
from typing import Protocol

from server.engine.lora import AdapterSet, reusable
from server.engine.media import Spans, whole

BEFORE_END = 4
"""Tokens before a prompt's end, as llama-server (server-context.cpp, checkpoint_offsets): an assistant header."""
MIN_GAP = 16  # tokens; closer checkpoints save too little
MIN_PROMPT = 32  # tokens; shorter prompts are recomputed


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``state`` restores the part that cannot be truncated, as it was after the first ``n_tokens`` tokens."""

    n_tokens: int
    state: bytes


Checkpoints = tuple[Checkpoint, ...]
"""In ascending order of ``n_tokens``."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """``state`` is the library's bytes of the sequence (llama_state_seq_get_data) for ``tokens``.

    The first ``n_exact`` tokens are what a fresh prefill would give; a context shift or ``n_cache_reuse`` leaves
    others. ``media`` describes negative tokens.
    """

    tokens: list[int]
    state: bytes
    adapter_set: AdapterSet
    n_exact: int
    checkpoints: Checkpoints = ()
    media: Spans = ()

    @property
    def without_bytes(self) -> "SlotState":
        """A copy without the bytes, for an index of files."""
        return replace(self, state=b"", checkpoints=tuple(Checkpoint(c.n_tokens, b"") for c in self.checkpoints))

    @property
    def states(self) -> list[bytes]:
        """All byte strings of the library."""
        return [self.state, *(c.state for c in self.checkpoints)]


def reach(n: int, n_tokens: int, floor: int, places: Iterable[int]) -> int:
    """Return the rollback point: the most of the first `n` tokens to which a sequence of `n_tokens` can be brought
    back.

    `floor` is the least number of tokens reachable without a checkpoint; `places` are the checkpoints.
    """
    if n >= floor:
        return min(n, n_tokens)
    return max((place for place in places if place <= n), default=0)


def added(checkpoints: Checkpoints, new: Checkpoint, most: int, most_bytes: int) -> Checkpoints:
    """Return `checkpoints` with `new`. While there are too many, or too many bytes (negative: unlimited), drop the one
    closest after another one.
    """
    places = {c.n_tokens: c for c in (*checkpoints, new)}
    kept = [places[n] for n in sorted(places)]
    while len(kept) > 1 and (len(kept) > most or 0 <= most_bytes < sum(len(c.state) for c in kept)):
        before = [0, *(c.n_tokens for c in kept[:-1])]
        gaps = [(c.n_tokens - at, c.n_tokens) for c, at in zip(kept, before, strict=True) if c is not new]
        kept = [c for c in kept if c.n_tokens != min(gaps)[1]]
    return tuple(kept)


def up_to(checkpoints: Checkpoints, n: int) -> Checkpoints:
    """Return the checkpoints that remain valid if only the first `n` tokens are left."""
    return tuple(c for c in checkpoints if c.n_tokens <= n)


def checkpoint_positions(
    prompt: Sequence[int], start: int, turn_ends: Iterable[int], spacing: int, divergence: int = 0
) -> tuple[int, ...]:
    """Return where to create checkpoints while `prompt` is prefilled from `start`, ascending.

    `turn_ends` are the tokens that end a turn; `divergence` is where an earlier prompt diverged. The ends of the
    first turn (system prompt), of the last turn and of the prompt get one; others are `spacing` tokens apart.
    """
    n = len(prompt)
    if n < MIN_PROMPT:
        return ()
    wanted = set(turn_ends)
    ends = [i for i in range(1, n) if prompt[i - 1] in wanted] if wanted else []
    sure = sorted({*ends[:1], *ends[-1:], divergence, n - BEFORE_END})
    found: list[int] = []
    for at in sure:
        if start + MIN_GAP <= at < n and (not found or at - found[-1] >= MIN_GAP):
            found.append(at)
    last = start
    for at in ends if ends else range(spacing or n, n, spacing or n):
        if at - last >= max(spacing, MIN_GAP) and all(abs(at - other) >= MIN_GAP for other in found):
            found.append(at)
            last = at
    return tuple(sorted(found))


# CPython's C API allows writing to a bytes object that nobody else has seen.
_uninitialized = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


def new_bytes(n: int) -> tuple[bytes, memoryview]:
    """Return `n` uninitialised bytes, and a view to write all of them before anybody else sees them.

    So a state is written once, in place; a copy of gigabytes would hold the GIL. Raises MemoryError.
    """
    if not n:
        return b"", memoryview(bytearray())
    made: bytes = _uninitialized(None, n)
    return made, memoryview((ctypes.c_ubyte * n).from_address(_address(made))).cast("B")


BLOCK = 16  # tokens


def _none(adapter_set: AdapterSet) -> int:
    """Return the hash of the empty prefix."""
    return hash((adapter_set.scope, adapter_set.at(0)))


class PrefixHashes:
    """The block hashes of one text that may grow or be truncated, computed on demand.

    Code that changes hashed tokens must call `cut` or `forget`; appending needs no call.
    """

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: list[int] = []

    def upto(self, n_blocks: int, tokens: Sequence[int], adapter_set: AdapterSet) -> list[int]:
        """Return at least the hashes of the first `n_blocks` blocks of `tokens`, after that of the empty prefix.

        The adapter set and namespace are part of the empty prefix's hash. The returned list is internal: read only.
        """
        hashes, none = self._hashes, _none(adapter_set)
        if not hashes or hashes[0] != none:
            hashes[:] = [none]
        n_known = len(hashes) - 1
        if n_known < n_blocks:
            at = hashes[-1]
            further = iter(tokens[n_known * BLOCK : n_blocks * BLOCK])
            for block in zip(*[further] * BLOCK, strict=True):  # the fastest way to form blocks
                at = hash((at, block))
                hashes.append(at)
        return hashes

    def shared(self, other: "PrefixHashes") -> int:
        """Return the common prefix in tokens, in whole blocks, as far as both are hashed. Compares hashes only; another
        thread may change `other` meanwhile, so it is an estimate.
        """
        try:
            return max(n_equal(self._hashes, other._hashes) - 1, 0) * BLOCK
        except IndexError:  # it was truncated meanwhile
            return 0

    def cut(self, n_tokens: int) -> None:
        """Keep the hashes of the first `n_tokens` tokens."""
        del self._hashes[n_tokens // BLOCK + 1 :]

    def forget(self) -> None:
        """Drop all hashes."""
        self._hashes = []

    def fits(self, tokens: Sequence[int], adapter_set: AdapterSet) -> bool:
        """Whether the hashes are correct for `tokens`; for tests."""
        known = self._hashes
        if not known or known[0] != _none(adapter_set):  # nothing is hashed, or it will be recomputed
            return True
        return known == PrefixHashes().upto(len(tokens) // BLOCK, tokens, adapter_set)[: len(known)]

    def copy(self) -> "PrefixHashes":
        other = PrefixHashes()
        other._hashes = self._hashes.copy()
        return other


def n_equal(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of common leading hashes. Each covers everything before it, so a binary search suffices."""
    return bisect_left(range(min(len(a), len(b))), True, key=lambda at: a[at] != b[at])


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of leading tokens that `a` and `b` share.

    Most pairs differ early, so the compared stretch doubles; list slices compare at C speed.
    """
    limit = min(len(a), len(b))
    done, step = 0, 8
    while done < limit:
        end = min(done + step, limit)
        if a[done:end] == b[done:end]:
            done, step = end, step * 2
            continue
        while end - done > 1:
            middle = (done + end) // 2
            if a[done:middle] == b[done:middle]:
                done = middle
            else:
                end = middle
        return done
    return limit


MOST = 16  # entries that one lookup compares


class PrefixIndex:
    """Entries by the hash of each of their whole-block prefixes, including the empty one."""

    def __init__(self) -> None:
        self._begins: dict[int, dict[int, CacheEntry]] = {}  # by identity, in insertion order
        self._ends: dict[int, dict[int, CacheEntry]] = {}  # by the last hash

    def add(self, entry: "CacheEntry") -> None:
        """Add `entry`, whose tokens must not change any more."""
        hashes, key, begins = self._hashes(entry), id(entry), self._begins
        for each in hashes:
            if each in begins:
                begins[each][key] = entry
            else:
                begins[each] = {key: entry}
        self._ends.setdefault(hashes[-1], {})[key] = entry

    def remove(self, entry: "CacheEntry") -> None:
        hashes, key = self._hashes(entry), id(entry)
        for where, at in ((self._begins, hashes), (self._ends, hashes[-1:])):
            for each in at:
                del where[each][key]
                if not where[each]:
                    del where[each]

    @staticmethod
    def _hashes(entry: "CacheEntry") -> list[int]:
        n_blocks = len(entry.tokens) // BLOCK
        return entry.hashes.upto(n_blocks, entry.tokens, entry.adapter_set)[: n_blocks + 1]

    def _deepest(
        self, tokens: Sequence[int], adapter_set: AdapterSet, hashes: PrefixHashes | None, most: int
    ) -> list[int]:
        """Return the hashes of the longest prefix, within the first `most` tokens, that some entry shares."""
        known, n_blocks = hashes or PrefixHashes(), most // BLOCK
        low, step = 0, 8
        while True:
            high = min(low + step, n_blocks + 1)
            found = known.upto(high - 1, tokens, adapter_set)
            at = bisect_left(found, True, low, high, key=lambda each: each not in self._begins)
            if at < high or high > n_blocks:
                return found[:at]
            low, step = high, step * 2

    def match(
        self,
        prompt: Sequence[int],
        wanted: AdapterSet,
        at_least: int,
        hashes: PrefixHashes | None = None,
        most: int | None = None,
    ) -> "tuple[CacheEntry | None, int]":
        """Return the entry with the most reusable tokens, more than `at_least` and at most `most`, and that number.

        May miss up to a block of tokens if more than `MOST` entries share a prefix. `hashes`: of the prompt, if
        available.
        """
        best: CacheEntry | None = None
        longest = at_least
        most = len(prompt) if most is None else most
        seen: set[int] = set()
        path = self._deepest(prompt, wanted, hashes, most)
        for n_blocks in range(len(path) - 1, -1, -1):
            if longest >= (n_blocks + 1) * BLOCK or len(seen) >= MOST:  # no shorter prefix can be better
                break
            members = self._begins[path[n_blocks]]
            if len(members) == len(seen):  # entries sharing more were already compared
                continue
            for entry in reversed(members.values()):  # newest first
                if id(entry) in seen:
                    continue
                seen.add(id(entry))
                n = entry.reusable(min(_in_common(prompt, entry.tokens, n_blocks), most), wanted)
                if n > longest:
                    best, longest = entry, n
                if len(seen) >= MOST:
                    break
        if best is None or common_prefix(prompt, best.tokens) < longest:  # the latter: a hash collision
            return None, 0
        return best, longest

    def divergence(self, prompt: Sequence[int], wanted: AdapterSet, hashes: PrefixHashes | None = None) -> int:
        """Return the length of the longest prefix that `prompt` shares with some entry, accurate to one block."""
        path = self._deepest(prompt, wanted, hashes, len(prompt))
        entries = list(self._begins[path[-1]].values())[-MOST:] if path else []
        return max((_in_common(prompt, entry.tokens, len(path) - 1) for entry in entries), default=0)

    def within(
        self, tokens: Sequence[int], adapter_set: AdapterSet, hashes: PrefixHashes | None = None
    ) -> "list[CacheEntry]":
        """Return the entries with the same adapter set that are equal to `tokens` or a prefix of them."""
        path = self._deepest(tokens, adapter_set, hashes, len(tokens))
        ending = [
            entry for each in path for entry in self._ends.get(each, {}).values() if entry.adapter_set == adapter_set
        ]
        return [e for e in ending if len(e.tokens) <= len(tokens) and common_prefix(e.tokens, tokens) == len(e.tokens)]


def _in_common(a: Sequence[int], b: Sequence[int], n_blocks: int) -> int:
    """Return the `common_prefix` of texts that share exactly `n_blocks` blocks by their hashes."""
    start, end = n_blocks * BLOCK, (n_blocks + 1) * BLOCK
    return start + common_prefix(a[start:end], b[start:end])


MIN_TOKENS = 16
"""Shorter prefixes are recomputed; for longer ones `MoveCost` compares times. A short conversation turn has 20 to 60
tokens. Also the least gain for which another source (copy, entry, wait) is chosen.
"""


class Held(Protocol):
    """What a slot or a cache entry holds."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def adapter_set(self) -> AdapterSet: ...
    @property
    def hashes(self) -> PrefixHashes: ...


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


@dataclass(eq=False, slots=True)
class Fetch:
    """A disk read that a sequence waits for: ``n`` tokens of ``entry``. ``future`` is None until its turn."""

    entry: CacheEntry
    n: int
    future: Future[CacheEntry | None] | None = None
    wait_until: float = 0.0
    given_up: bool = False

    @property
    def pending(self) -> bool:
        """Whether it may still arrive."""
        return not self.given_up and (self.future is None or not self.future.done())

    @property
    def found(self) -> CacheEntry | None:
        """The state, once it was read."""
        if self.given_up or self.future is None or not self.future.done() or self.future.cancelled():
            return None
        return self.future.result()


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

    def holds(self, one: Held) -> bool:
        """Whether nearly all of its tokens are available from an entry."""
        return self.match(one.tokens, one.adapter_set, len(one.tokens) - MIN_TOKENS, one.hashes)[0] is not None

    def wants(self, one: Held, n_lost: int) -> bool:
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

    def replace(self, one: Held) -> list[CacheEntry]:
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


def eviction_priority(n_tokens: int, idle_s: float) -> float:
    """Return the value of keeping a cache of `n_tokens`: its length over the time since its last use.

    The number of uses does not count: in `benchmarks.simulation`, counting uses keeps finished conversations and
    gives fewer hits.
    """
    return n_tokens / (1.0 + max(idle_s, 0.0))
