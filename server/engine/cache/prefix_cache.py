"""Cached prefixes as values: states of sequences, checkpoints inside them, the search for a prefix, and the RAM tier
(llama-server's ``--cache-ram``). Pure, except for a lock, because the instances of a model share the RAM tier.

If a model's memory cannot be truncated (recurrent, hybrid, sliding window), a sequence can only continue from its end
or from a checkpoint. Checkpoints are created during prefill where another prompt is likely to diverge: at the ends of
turns, where an earlier prompt diverged, and shortly before the prompt's end. There the next turn is often rendered
differently.
"""

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from operator import attrgetter
from typing import TypeVar

from server.engine.lora import NEVER, NO_ADAPTERS, AdapterSet, n_valid
from server.engine.media import Spans, whole

BEFORE_END = 4
"""Distance of the last checkpoint from a prompt's end, which is an assistant header. As in llama-server
(server-context.cpp, checkpoint_offsets).
"""
MIN_TOKENS = 16
"""Shorter prefixes are recomputed; for longer ones `MoveBudget` compares times. A short conversation turn has 20 to 60
tokens. Also the smallest gain for which a prefix is copied or awaited, and the smallest distance of two checkpoints.
"""
MIN_PROMPT = 32  # tokens; shorter prompts get no checkpoint


Checkpoints = Mapping[int, bytes]
"""By number of tokens, ascending: the bytes that restore the part that cannot be truncated to its state after these
tokens. Never changed in place, since entries and slots share it.
"""


def added(checkpoints: Checkpoints, n_tokens: int, state: bytes, max_count: int, max_bytes: int) -> Checkpoints:
    """Return `checkpoints` with a new one. While there are too many, or too many bytes (negative: unlimited), drop the
    one closest after another one.
    """
    found = dict(sorted({**checkpoints, n_tokens: state}.items()))
    while len(found) > 1 and (len(found) > max_count or 0 <= max_bytes < n_bytes_of(found)):
        del found[min((n - before, n) for before, n in pairwise([0, *found]) if n != n_tokens)[1]]
    return found


def n_bytes_of(checkpoints: Checkpoints) -> int:
    return sum(map(len, checkpoints.values()))


def up_to(checkpoints: Checkpoints, n: int) -> Checkpoints:
    """Return the checkpoints that remain valid if only the first `n` tokens are left."""
    return {place: state for place, state in checkpoints.items() if place <= n}


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
    end_tokens = set(turn_ends)
    ends = [i for i in range(1, n) if prompt[i - 1] in end_tokens] if end_tokens else []
    always = sorted({*ends[:1], *ends[-1:], divergence, n - BEFORE_END})
    found: list[int] = []
    for at in always:
        if start + MIN_TOKENS <= at < n and (not found or at - found[-1] >= MIN_TOKENS):
            found.append(at)
    last = start
    for at in ends if ends else range(spacing or n, n, spacing or n):
        if at - last >= max(spacing, MIN_TOKENS) and all(abs(at - other) >= MIN_TOKENS for other in found):
            found.append(at)
            last = at
    return tuple(sorted(found))


# CPython's C API allows writing to a bytes object before it is shared.
_uninitialized = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


def new_bytes(n: int) -> tuple[bytes, memoryview]:
    """Return `n` uninitialised bytes, and a view through which all of them must be written before they are shared.

    So a state is written once, in place; a copy of gigabytes would hold the GIL. Raises MemoryError.
    """
    if not n:
        return b"", memoryview(bytearray())
    made: bytes = _uninitialized(None, n)
    return made, memoryview((ctypes.c_ubyte * n).from_address(_address(made))).cast("B")


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of leading tokens that `a` and `b` share.

    Most pairs differ early, so the first compared slice is short. The next one is twice as long after equal slices, and
    half as long after different ones. List slices compare at C speed.
    """
    limit = min(len(a), len(b))
    done, step = 0, 8
    while done < limit:
        end = min(done + step, limit)
        if a[done:end] == b[done:end]:
            done, step = end, step * 2
        else:
            limit, step = end - 1, max((end - done) // 2, 1)
    return done


BLOCK = 16  # tokens: the unit of events about cached prefixes, and of views of them
MAX_NOT_REUSABLE = 16  # longer prefixes that are not reusable, after which a search ends


@dataclass(eq=False, slots=True)
class CachedPrefix:
    """The contents of a slot's cells or of a cached state, and how much of them another sequence may reuse.

    ``media`` are the media spans that begin in ``tokens``; a slot's last one may be incomplete. The cells of the first
    ``n_exact`` tokens are those of a fresh prefill under ``adapter_set``; a context shift or ``n_cache_reuse`` leaves
    approximate ones after them. ``floor``: it can be truncated to this many tokens or more; to fewer only at a
    checkpoint.
    """

    tokens: list[int] = field(default_factory=list)
    adapter_set: AdapterSet = NO_ADAPTERS
    n_exact: int = NEVER
    checkpoints: Checkpoints = field(default_factory=dict)
    media: Spans = ()
    floor: int = 0
    last_used: float = 0.0

    def reusable(self, n: int, wanted: AdapterSet) -> int:
        """Return how many of its first `n` tokens a sequence with the adapter set `wanted` may reuse."""
        n = whole(self.media, n_valid(min(n, self.n_exact), self.adapter_set, wanted))
        if n >= self.floor:
            return min(n, len(self.tokens))
        return max((place for place in self.checkpoints if place <= n), default=0)

    def keep_value(self, now: float) -> float:
        """Return the value of keeping it: its exact tokens over the time since its last use. The lowest is evicted
        first.

        The number of uses does not count: in `benchmarks.simulation`, counting uses keeps finished conversations and
        gives fewer hits.
        """
        return min(len(self.tokens), self.n_exact) / (1.0 + max(now - self.last_used, 0.0))


H = TypeVar("H", bound=CachedPrefix)


def longest_match(
    prefixes: Iterable[H], prompt: Sequence[int], wanted: AdapterSet, at_least: int, most: int
) -> tuple[H | None, int]:
    """Return the entry of `prefixes` with the most reusable tokens of `prompt`, and their number.

    It is more than `at_least` and at most `most`. Slots, RAM and disk are all searched by this. Comparing a single
    token excludes most of them, so thousands take less than a millisecond.
    """
    best, longest, n_not_reusable = None, max(at_least, 0), 0
    if longest >= most:
        return None, 0
    following = prompt[longest]
    for one in prefixes:
        tokens = one.tokens
        if len(tokens) <= longest or tokens[longest] != following or one.n_exact <= longest:
            continue
        common = min(common_prefix(prompt, tokens), most)
        n = one.reusable(common, wanted)
        if n > longest:
            best, longest = one, n
            if n >= most:
                break
            following = prompt[n]
        elif common > longest:
            n_not_reusable += 1
            if n_not_reusable >= MAX_NOT_REUSABLE:
                break
    return best, longest if best is not None else 0


AUTOMATIC = -2
MIB = 1 << 20
_DEFAULT_MIB = 8192


@dataclass(eq=False, slots=True)
class CacheEntry(CachedPrefix):
    """A cached KV state without a slot: in RAM, or on disk in the file ``name``, in which case it has no bytes.

    ``state`` is the library's bytes of the sequence (llama_state_seq_get_data). ``size`` is in bytes, by default of the
    RAM that it takes. ``n_used`` counts uses. It is not evicted before ``pinned_until``. `inf`: a preempted sequence
    will resume from it, and no other sequence may.
    """

    state: bytes = b""
    size: int = 0
    name: str = ""
    n_used: int = 0
    pinned_until: float = -inf

    def __post_init__(self) -> None:
        self.size = self.size or size_of(len(self.state), len(self.tokens), self.checkpoints)

    def in_file(self, name: str, size: int) -> "CacheEntry":
        """Return the index entry of the file `name` of `size` bytes that contains its state."""
        checkpoints = dict.fromkeys(self.checkpoints, b"")
        return replace(self, checkpoints=checkpoints, state=b"", size=size, name=name, n_used=0, pinned_until=-inf)


@dataclass(eq=False, slots=True)
class Fetch:
    """A disk read that a sequence waits for until ``wait_until``: ``n`` tokens of ``entry``.

    ``future`` is None until `start_reading`. Its result is None if the file is damaged.
    """

    entry: CacheEntry
    n: int
    future: Future[CacheEntry | None] | None = None
    wait_until: float = 0.0

    def pending(self, now: float) -> bool:
        return self.future is None or (now < self.wait_until and not self.future.done())

    @property
    def found(self) -> CacheEntry | None:
        if self.future is None or not self.future.done() or self.future.cancelled():
            return None
        return self.future.result()


def size_of(n_state: int, n_tokens: int, checkpoints: Checkpoints) -> int:
    """Return the RAM size in bytes of an entry whose state has `n_state` bytes."""
    return n_state + 8 * n_tokens + n_bytes_of(checkpoints)


@dataclass(slots=True)
class CacheTier:
    """Entries of at most `limit` bytes (negative = unlimited): the RAM tier, or the index of the disk tier.

    The checkpoints of ``slots`` use the same memory. They count towards the limit, and entries are evicted for them. A
    checkpoint shared by several slots and entries counts once. If not ``offloads`` (also during a reset), only
    checkpoints and states of preempted sequences are added. ``spill`` receives entries that are evicted or do not fit.
    """

    limit: int
    offloads: bool = True
    n_hits: int = 0  # entries used
    n_evictions: int = 0
    slots: list[CachedPrefix] = field(default_factory=list)
    _entries: dict[int, CacheEntry] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    spill: Callable[[CacheEntry], None] = lambda entry: None
    _own_limit: int = field(init=False)

    def __post_init__(self) -> None:
        self._own_limit = self.limit

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CacheEntry]:
        with self._lock:
            return iter(list(self._entries.values()))

    def __contains__(self, entry: object) -> bool:
        return id(entry) in self._entries

    @property
    def n_bytes(self) -> int:
        """Bytes of the entries and of the slots' checkpoints."""
        return self._n_bytes_with(list(self))

    def _n_bytes_with(self, entries: Sequence[CacheEntry]) -> int:
        """Return the bytes of `entries` and of the slots' checkpoints that none of them has."""
        states = {id(state): len(state) for slot in self.slots for state in slot.checkpoints.values()}
        for entry in entries if states else ():
            for state in entry.checkpoints.values():
                states.pop(id(state), None)
        return sum([entry.size for entry in entries]) + sum(states.values())

    def holds(self, one: CachedPrefix) -> bool:
        """Return whether nearly all of its reusable tokens are available from an entry."""
        n = min(len(one.tokens), one.n_exact)
        return self.match(one.tokens, one.adapter_set, n - MIN_TOKENS, n)[0] is not None

    def _n_over(self, n_bytes: int, *entries: CacheEntry) -> int:
        """Return by how many bytes `entries`, the slots' checkpoints and `n_bytes` exceed the limit."""
        return self._n_bytes_with(entries) + n_bytes - self.limit if self.limit >= 0 else 0

    def fits(self, n_bytes: int, now: float, *new: CacheEntry) -> bool:
        """Return whether `n_bytes` and the `new` entries fit if others are evicted as needed."""
        return self._n_over(n_bytes, *(entry for entry in self if entry.pinned_until > now), *new) <= 0

    def make_room(self, n_bytes: int, now: float, *new: CacheEntry) -> bool:
        """Evict entries with the lowest keep value per byte until `n_bytes` and the `new` entries fit. Return False,
        with nothing changed, if they cannot.
        """
        with self._lock:
            has_room = self.fits(n_bytes, now, *new)
            if has_room:
                self._evict(n_bytes, now, *new)
            return has_room

    def _evict(self, n_bytes: int, now: float, *new: CacheEntry) -> None:
        n_over = self._n_over(n_bytes, *self, *new)
        for entry in sorted(self._evictable(now), key=lambda e: e.keep_value(now) / max(e.size, 1)):
            if n_over <= 0 and (n_over := self._n_over(n_bytes, *self, *new)) <= 0:  # slots may share checkpoints
                return
            n_over -= entry.size
            self.n_evictions += 1
            self.remove(entry)
            self.spill(entry)

    def _evictable(self, now: float) -> list[CacheEntry]:
        return [entry for entry in self._entries.values() if entry.pinned_until <= now]

    def limit_to(self, n_bytes: int, now: float) -> None:
        """Limit the tier to `n_bytes`, at most its configured limit; negative: the configured limit. Pinned entries
        stay.
        """
        with self._lock:
            self.limit = min([limit for limit in (n_bytes, self._own_limit) if limit >= 0], default=-1)
            self._evict(0, now)

    def remove_shorter(self, one: CachedPrefix, now: float) -> list[CacheEntry]:
        """Remove and return the entries whose tokens are a prefix of those of `one`, except pinned ones."""
        with self._lock:
            replaced = [
                entry
                for entry in self._evictable(now)
                if (n := len(entry.tokens)) <= len(one.tokens)
                and entry.adapter_set == one.adapter_set
                and entry.tokens[-1:] == one.tokens[n - 1 : n]  # most differ here already
                and common_prefix(entry.tokens, one.tokens) == n
            ]
            for other in replaced:
                self.remove(other)
        return replaced

    def put(self, entry: CacheEntry, now: float, until: float = -inf) -> list[CacheEntry]:
        """Store `entry`; return the shorter entries of the same text, which it replaces. Spill it if it does not fit
        next to the pinned entries.
        """
        with self._lock:
            if not (self.offloads and self.fits(0, now, entry)):
                self.spill(entry)
                return []
            replaced = self.remove_shorter(entry, now)
            self.reserve(entry, now, until)
            return replaced

    def reserve(self, entry: CacheEntry, now: float, until: float = inf) -> bool:
        """Store `entry`, not evicted before `until`. Return False, with nothing stored, if there is no room."""
        with self._lock:
            has_room = self.make_room(0, now, entry)
            if has_room:
                entry.pinned_until = until
                self._entries[id(entry)] = entry
            return has_room

    def pin(self, entry: CacheEntry, until: float, now: float) -> bool:
        """Store `entry` and do not evict it before `until`. Return False, with nothing changed, if pinned entries would
        take more than half of the limit; states of preempted sequences do not count.
        """
        with self._lock:
            pinned = [e for e in self._entries.values() if now < e.pinned_until < inf]
            same = [e for e in pinned if e.tokens == entry.tokens and e.adapter_set == entry.adapter_set]
            n_replaced, n_pinned = sum(e.size for e in same), sum(e.size for e in pinned) + entry.size
            has_room = self.offloads and self.fits(-n_replaced, now, entry)
            if not has_room or 0 <= self.limit < 2 * (n_pinned - n_replaced):
                return False
            for other in same:
                self.remove(other)
            self.put(entry, now, until)
        return True

    def _unreserved(self) -> list[CacheEntry]:
        return [entry for entry in self if entry.pinned_until < inf]

    def match(
        self, prompt: Sequence[int], wanted: AdapterSet, at_least: int, most: int | None = None
    ) -> tuple[CacheEntry | None, int]:
        """Return the `longest_match` among the entries that no preempted sequence has reserved; among equals the
        smallest, which is loaded fastest.
        """
        smallest_first = sorted(self._unreserved(), key=attrgetter("size"))
        return longest_match(smallest_first, prompt, wanted, at_least, len(prompt) if most is None else most)

    def touch(self, entry: CacheEntry, now: float) -> None:
        with self._lock:
            entry.last_used = now
            entry.n_used += 1
            self.n_hits += 1

    def remove(self, entry: CacheEntry) -> None:
        with self._lock:
            self._entries.pop(id(entry), None)

    def remove_all(self) -> list[CacheEntry]:
        """Remove and return all entries except those of preempted sequences."""
        with self._lock:
            removed = self._unreserved()
            for entry in removed:
                self.remove(entry)
        return removed

    def check_integrity(self) -> None:
        """Verify that the bytes respect the limit. Raises AssertionError."""
        with self._lock:
            is_pinned = all(entry.pinned_until > -inf for entry in self)
            assert self.limit < 0 or is_pinned or self.n_bytes <= self.limit


def ram_tier(mib: int, free_bytes: int) -> CacheTier:
    """Return the RAM tier of `mib` MiB. `AUTOMATIC`: llama-server's default, or a quarter of free memory if less (0 =
    unknown). 0 turns offloading off; checkpoints and preempted sequences then get the automatic limit.
    """
    automatic = min(_DEFAULT_MIB * MIB, free_bytes // 4 or _DEFAULT_MIB * MIB)
    return CacheTier(automatic if mib in (AUTOMATIC, 0) else mib * MIB, offloads=mib != 0)
