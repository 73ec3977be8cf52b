"""Prompt states that no longer have a slot, kept in RAM (llama-server's ``--cache-ram``). Pure: bytes in, bytes out.

An entry is what one slot held: tokens, the LoRA set that computed them, and the library's state of the sequence. A
request whose prompt begins with more of an entry than of any slot gets the entry loaded instead of computing it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from server.engine.adapters import Tuning, reusable
from server.engine.checkpoints import Checkpoints, reach
from server.engine.prefix import common_prefix

MIN_TOKENS = 64
"""A shorter state is computed anew: saving and loading would cost about as much."""


AUTOMATIC = -2
_MIB = 1 << 20
_DEFAULT_MIB = 8192


def tier_limit(cache_ram: int, free_bytes: int) -> int:
    """Bytes from the setting in MiB: automatic is llama-server's default, or a quarter of what is free if less."""
    if cache_ram != AUTOMATIC:
        return cache_ram * _MIB
    return min(_DEFAULT_MIB * _MIB, free_bytes // 4 or _DEFAULT_MIB * _MIB)


@dataclass(eq=False, slots=True)
class Stored:
    """One kept state. ``n_exact``: as in `SlotState`; ``floor`` and ``checkpoints``: as in `Slot`.

    ``used_at`` and ``n_used`` make its value.
    """

    tokens: list[int]
    tuning: Tuning
    n_exact: int
    state: bytes
    used_at: float
    n_used: int = 0
    floor: int = 0
    checkpoints: Checkpoints = ()

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.state) + 8 * len(self.tokens) + sum(len(c.state) for c in self.checkpoints)

    def reusable(self, n: int, wanted: Tuning) -> int:
        """How many of its first `n` tokens a sequence under `wanted` may take over."""
        n = reusable(min(n, self.n_exact), self.tuning, wanted)
        return reach(n, len(self.tokens), self.floor, self.checkpoints)

    def value(self, now: float) -> float:
        """What keeping it is worth: tokens saved, by how often and how lately it was of use."""
        return len(self.tokens) * (1 + self.n_used) / (1.0 + max(now - self.used_at, 0.0))


@dataclass(slots=True)
class Tier:
    """At most `limit` bytes of states; 0 keeps nothing, negative is unbounded."""

    limit: int
    size: int = 0
    _entries: list[Stored] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Stored]:
        return iter(self._entries)

    def wants(self, tokens: Sequence[int], tuning: Tuning, n_lost: int) -> bool:
        """Whether a state of `tokens` is worth saving when all but the first ones, `n_lost` of them, go."""
        if self.limit == 0 or n_lost < MIN_TOKENS:
            return False
        n = len(tokens)
        return not any(
            e.tuning == tuning and common_prefix(tokens, e.tokens) == n and e.reusable(n, tuning) > n - MIN_TOKENS
            for e in self._entries
        )

    def put(self, entry: Stored, now: float) -> bool:
        """Keep `entry`; shorter states of the same text go, then the least valuable. False when it is too large."""
        if 0 <= self.limit < entry.size:
            return False
        for other in [e for e in self._entries if e.tuning == entry.tuning]:
            if common_prefix(other.tokens, entry.tokens) == len(other.tokens):
                entry.n_used = max(entry.n_used, other.n_used)
                self.remove(other)
        self._entries.append(entry)
        self.size += entry.size
        while 0 <= self.limit < self.size:
            self.remove(min((e for e in self._entries if e is not entry), key=lambda e: e.value(now)))
        return True

    def match(self, prompt: Sequence[int], wanted: Tuning, at_least: int) -> tuple[Stored | None, int]:
        """The entry that most of `prompt` can be taken from, and how much: more than `at_least` tokens."""
        best: Stored | None = None
        longest = at_least
        for entry in self._entries:
            n = entry.reusable(common_prefix(prompt, entry.tokens), wanted)
            if n > longest:
                best, longest = entry, n
        return best, longest if best is not None else 0

    def touch(self, entry: Stored, now: float) -> None:
        """`entry` was of use."""
        entry.used_at = now
        entry.n_used += 1

    def remove(self, entry: Stored) -> None:
        """Forget `entry`."""
        self._entries.remove(entry)
        self.size -= entry.size

    def check_integrity(self) -> None:
        """The bytes add up and keep to the limit; raises AssertionError."""
        assert self.size == sum(e.size for e in self._entries)
        assert self.limit < 0 or self.size <= self.limit
