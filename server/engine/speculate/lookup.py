"""Drafts from the text so far. Pure, except that `read_counts` reads files.

| type | draft (all but the first as llama.cpp common/ngram-map.cpp, ngram-mod.cpp, ngram-cache.cpp) |
|---|---|
| `lookup` | what followed the same tokens before; on by default where it pays: code edits, quotes, structured data |
| `ngram-simple` | what followed the last occurrence of the last ``size_n`` tokens, up to ``size_m`` |
| `ngram-map-k` | the same, no longer than was accepted after these tokens before |
| `ngram-map-k4v` | what followed them most often, if at least twice as often as all alternatives |
| `ngram-mod` | token by token, from a table of what follows ``n_match`` tokens in the texts of all requests |
| `ngram-cache` | token by token, from counts of what followed the last one to four tokens, here and in files |

How many draft tokens are verified is decided by their cost, as for every draft.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from server.engine.params import LOOKUP, EngineParams
from server.errors import ConfigError

CHUNK = 2048
"""Most tokens indexed at once (half a millisecond), so that a long prompt delays nobody."""
_MOST_COMPARED = 32  # context compared when two places match
_MOST_APART = 3  # differing tokens after which a text is no longer followed
_FEW = 12  # from here on numpy is faster
_MOST_ENTRIES = 1 << 18  # entries of a table: 1 MiB
_MOST_PLACES = 64  # occurrences of an n-gram that are checked
_MOST_VALUES = 4  # continuations of an n-gram (COMMON_NGRAM_MAX_VALUES)
_POOL_ENTRIES = 1 << 22
_POOL_FULL = 0.25  # fill level at which the table is cleared
_LOW, _LOW_TIMES = 0.25, 5  # acceptance rate and number of times after which the table is cleared
_POOL_CHUNK = 32  # output tokens entered at once
_CACHE_SIZES = range(1, 5)
_STATIC_SIZE = 2
_CACHE_GUESS = 8
_LAX = (
    (2, 66),
    (2, 50),
    (1, 50),
    (1, 50),
)  # by size: least occurrences, least percentage of the most frequent follower
_STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))

Counts = dict[tuple[int, ...], dict[int, int]]
"""How often each token followed an n-gram."""


@dataclass(slots=True)
class TextSource(ABC):
    """Drafts from a sequence's tokens, of which the first ``n_indexed`` are indexed. All methods must be fast."""

    MAY_LACK: ClassVar[int] = 0
    """Number of trailing tokens that need not be indexed for a draft."""

    tokens: list[int] = field(default_factory=list)
    n_indexed: int = 0

    @property
    def _lacks(self) -> bool:
        return len(self.tokens) - self.n_indexed > self.MAY_LACK

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens`, to be indexed later."""
        self.tokens.extend(tokens)

    def add(self, token: int) -> None:
        """Append a sampled token."""
        self.tokens.append(token)

    def catch_up(self, most: int = CHUNK) -> int:
        """Index up to `most` tokens; return how many."""
        start, stop = self.n_indexed, min(len(self.tokens), self.n_indexed + most)
        self._index(start, stop)
        self.n_indexed = stop
        return stop - start

    def propose(self, most: int) -> list[int]:
        """Return at most `most` draft tokens; none if nothing matches or the text is not indexed yet."""
        if self._lacks:
            self.catch_up()
        return [] if self._lacks else self._propose(most)

    @abstractmethod
    def _propose(self, most: int) -> list[int]:
        """As `propose`, for an indexed text."""

    @abstractmethod
    def _index(self, start: int, stop: int) -> None:
        """Index what follows the tokens from `start` to `stop`."""

    def record_accepted(self, n_checked: int, n_right: int) -> None:  # noqa: B027 - `NgramMap` and `NgramMod` learn from it
        """Record that `n_checked` tokens of the last draft were verified and the first `n_right` accepted."""


class Ends:
    """Where n-grams of `size` tokens ended last, in a hash table of 4 bytes per entry (a dict takes 130).

    A later n-gram with the same hash replaces an earlier one; readers compare tokens.
    """

    def __init__(self, size: int, n_text: int) -> None:
        self.size = size
        n_entries = min(1 << (2 * n_text).bit_length(), _MOST_ENTRIES)
        self._mask = n_entries - 1
        self._table: NDArray[np.int32] = np.zeros(n_entries, np.int32)
        self._entries = memoryview(self._table.data)  # a view for single entries: five times faster

    def add(self, tokens: list[int], start: int, stop: int) -> None:
        """Enter the n-grams that end before positions `start` to `stop`."""
        size = self.size
        start = max(start, size)
        if stop - start < _FEW:
            for end in range(start, stop):
                self._entries[hash(tuple(tokens[end - size : end])) & self._mask] = end
            return
        runs = zip(*(tokens[start - size + i : stop - size + i] for i in range(size)), strict=True)
        hashes = np.fromiter(map(hash, runs), np.int64, stop - start)
        self._table[hashes & self._mask] = np.arange(start, stop, dtype=np.int32)

    def find(self, tokens: list[int]) -> int:
        """Return where the last `size` tokens ended before; 0 if never."""
        last = tokens[-self.size :]
        if len(last) < self.size:
            return 0
        end: int = self._entries[hash(tuple(last)) & self._mask]
        return end if end and tokens[end - self.size : end] == last else 0


class Lookup(TextSource):
    """`lookup`: n-grams of `size` tokens of a text of about `n_text` tokens; for a longer text the last ones."""

    def __init__(self, size: int, n_text: int) -> None:
        super().__init__()
        self._ends = Ends(size, n_text)
        self._follows = 0  # next position in the text that the last draft came from; 0 = none
        self._n_apart = 0  # tokens that differed since then

    def add(self, token: int) -> None:
        """Append a sampled token. If the followed text has another one here, it may be a replacement."""
        if self._follows:
            same = self.tokens[self._follows] == token
            self._follows += 1
            self._n_apart = 0 if same else self._n_apart + 1
            if self._n_apart > _MOST_APART:
                self._follows = 0
        self.tokens.append(token)

    def _index(self, start: int, stop: int) -> None:
        self._ends.add(self.tokens, start, stop)

    def _propose(self, most: int) -> list[int]:
        tokens = self.tokens
        at = self._ends.find(tokens)
        if not at and not self._follows:
            return []
        if not at or (self._follows and self._matching(self._follows) >= self._matching(at)):
            at = self._follows
        self._follows = at
        if tokens[at - 1] == tokens[-1]:
            self._n_apart = 0
        period = len(tokens) - at
        found = tokens[at : at + most]
        while len(found) < most:  # the draft reaches its own start: a period continues
            found += found[-period:][: most - len(found)]
        return found

    def _matching(self, at: int) -> int:
        """Return how many tokens before `at` equal those before the end, within a limit."""
        tokens, end, n = self.tokens, len(self.tokens), 0
        while n < min(at, _MOST_COMPARED) and tokens[at - 1 - n] == tokens[end - 1 - n]:
            n += 1
        return n


class NgramSimple(TextSource):
    """The `ngram-simple` type."""

    def __init__(self, size_n: int, size_m: int, n_text: int) -> None:
        super().__init__()
        self._n, self._m = size_n, size_m
        self._ends = Ends(size_n, n_text)

    def _index(self, start: int, stop: int) -> None:
        self._ends.add(self.tokens, start, stop)

    def _propose(self, most: int) -> list[int]:
        """Return at least ``size_n`` tokens if `most` allows it."""
        tokens = self.tokens
        if len(tokens) <= self._n + self._m + 2:
            return []
        at = self._ends.find(tokens)
        n = min(self._m, len(tokens) - 1 - at)
        return tokens[at : at + min(n, most)] if at and n >= self._n else []


class NgramMap(TextSource):
    """The `ngram-map-k` type; with ``min_hits`` the `ngram-map-k4v` type, which requires so many occurrences."""

    def __init__(self, size_n: int, size_m: int, min_hits: int = 0) -> None:
        super().__init__()
        self._n, self._m, self._min_hits = size_n, size_m, min_hits
        self._places: dict[int, list[int]] = {}  # where n-grams of ``size_n`` tokens ended, by hash
        self._hits: Counter[tuple[int, ...]] = Counter()  # drafts made after an n-gram
        self._limits: dict[tuple[tuple[int, ...], ...], int] = {}  # tokens accepted the last time
        self._guessed: tuple[tuple[int, ...], ...] = ()

    def _index(self, start: int, stop: int) -> None:
        tokens, n = self.tokens, self._n
        for end in range(max(start, n), stop):
            places = self._places.setdefault(hash(tuple(tokens[end - n : end])), [])
            places.append(end)
            if len(places) > _MOST_PLACES:
                del places[0]

    def _propose(self, most: int) -> list[int]:
        """Return what followed, if all ``size_m`` tokens of it are known."""
        tokens, n, m = self.tokens, self._n, self._m
        self._guessed = ()
        if len(tokens) <= 2 * n + m:
            return []
        last = tuple(tokens[-n:])
        known = len(tokens) - 2 - m
        found = self._places.get(hash(last), ())
        ends = [end for end in found if end < known and tuple(tokens[end - n : end]) == last]
        if not ends:
            return []
        self._hits[last] += 1
        value = self._value(ends) if self._min_hits else tuple(tokens[ends[-1] : ends[-1] + m])
        if not value or self._hits[last] < self._min_hits:
            return []
        self._guessed = (last, value) if self._min_hits else (last,)
        return list(value[: min(self._limits.get(self._guessed, m), most)])

    def _value(self, ends: Sequence[int]) -> tuple[int, ...]:
        counts: Counter[tuple[int, ...]] = Counter()
        for end in ends:
            value = tuple(self.tokens[end : end + self._m])
            if value in counts or len(counts) < _MOST_VALUES:
                counts[value] += 1
        value, n = counts.most_common(1)[0]
        others = counts.total() - n
        return value if n >= 2 * others else ()

    def record_accepted(self, n_checked: int, n_right: int) -> None:
        """Limit the next draft after the same tokens to what was accepted."""
        if self._guessed and n_right < n_checked:
            self._limits[self._guessed] = n_right


class HashTable:
    """What followed n-grams of ``n`` tokens in any text, by hash without verification."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._next: NDArray[np.int32] = np.zeros(_POOL_ENTRIES, np.int32)  # token + 1; 0 = none
        self._n_used = 0

    def add(self, tokens: Sequence[int], start: int, stop: int) -> None:
        """Enter the tokens from `start` to `stop` by those before them."""
        for at in range(max(start, self.n), stop):
            place = hash(tuple(tokens[at - self.n : at])) % _POOL_ENTRIES
            self._n_used += not self._next[place]
            self._next[place] = tokens[at] + 1

    def get(self, run: Sequence[int]) -> int:
        """Return the token that followed; -1 if unknown."""
        return int(self._next[hash(tuple(run)) % _POOL_ENTRIES]) - 1

    @property
    def full(self) -> bool:
        """Whether new entries would overwrite too many others."""
        return self._n_used > _POOL_FULL * _POOL_ENTRIES

    def renew(self) -> None:
        """Clear the table."""
        self._next[:] = 0
        self._n_used = 0


class NgramMod(TextSource):
    """The `ngram-mod` type. The table is shared by all texts; sampled tokens are entered in chunks."""

    MAY_LACK = _POOL_CHUNK

    def __init__(self, pool: HashTable, n_min: int, n_max: int) -> None:
        super().__init__()
        if pool.full:
            pool.renew()
        self._pool, self._n_min, self._n_max = pool, n_min, n_max
        self._n_low = 0

    def _index(self, start: int, stop: int) -> None:
        self._pool.add(self.tokens, start, stop)

    def _propose(self, most: int) -> list[int]:
        """Return at least ``n_min`` tokens if `most` allows it."""
        n = self._pool.n
        if len(self.tokens) < n:
            return []
        run = self.tokens[-n:]
        while len(run) < n + self._n_max and (token := self._pool.get(run[-n:])) >= 0:
            run.append(token)
        return run[n : n + most] if len(run) >= n + self._n_min else []

    def record_accepted(self, n_checked: int, n_right: int) -> None:
        """Clear a table whose drafts are repeatedly wrong."""
        self._n_low = self._n_low + 1 if n_right < _LOW * n_checked else 0
        if self._n_low >= _LOW_TIMES:
            self._pool.renew()
            self._n_low = 0


class NgramCache(TextSource):
    """The `ngram-cache` type: counts of this text, then of a ``dynamic`` file, both weighted by a ``static`` file."""

    def __init__(self, static: Mapping[tuple[int, ...], dict[int, int]], dynamic: Counts) -> None:
        super().__init__()
        self._static, self._dynamic = static, dynamic
        self._own: Counts = {}

    def _index(self, start: int, stop: int) -> None:
        tokens, own = self.tokens, self._own
        for at in range(start, stop):
            for size in _CACHE_SIZES:
                if at >= size:
                    counts = own.setdefault(tuple(tokens[at - size : at]), {})
                    counts[tokens[at]] = counts.get(tokens[at], 0) + 1

    def _propose(self, most: int) -> list[int]:
        """Return at most eight tokens, as llama-server."""
        if len(self.tokens) < _STATIC_SIZE:
            return []
        run = self.tokens[-_CACHE_SIZES[-1] :]
        n = len(run)
        while len(run) - n < min(most, _CACHE_GUESS):
            static = self._static.get(tuple(run[-_STATIC_SIZE:]), {})
            token = _likeliest(self._own, run, static, _LAX)
            if token < 0:
                token = _likeliest(self._dynamic, run, static, _STRICT)
            if token < 0:
                token = _enough(static, {}, *_LAX[_STATIC_SIZE - 1])
            if token < 0:
                break
            run.append(token)
        return run[n:]


def sources(params: EngineParams) -> Callable[[int, bool], tuple[TextSource, ...]]:
    """Return a factory of a sequence's sources, given its expected number of tokens and whether it may use shared
    tables.

    Raises `ConfigError` for a lookup cache that cannot be read.
    """
    kinds = params.spec_type.split(",")
    makers: list[tuple[Callable[[int], TextSource], bool]] = []  # with a flag: learns from all sequences
    if LOOKUP in kinds:
        makers.append((lambda n_text: Lookup(params.spec_lookup_size, n_text), False))
    if "ngram-simple" in kinds:
        n, m = params.spec_ngram_simple_size_n, params.spec_ngram_simple_size_m
        makers.append((partial(NgramSimple, n, m), False))
    if "ngram-map-k" in kinds:
        makers.append((lambda _: NgramMap(params.spec_ngram_map_k_size_n, params.spec_ngram_map_k_size_m), False))
    if "ngram-map-k4v" in kinds:
        sizes = params.spec_ngram_map_k4v_size_n, params.spec_ngram_map_k4v_size_m
        makers.append((lambda _: NgramMap(*sizes, params.spec_ngram_map_k4v_min_hits), False))
    if "ngram-mod" in kinds:
        pool = HashTable(params.spec_ngram_mod_n_match)
        makers.append((lambda _: NgramMod(pool, params.spec_ngram_mod_n_min, params.spec_ngram_mod_n_max), True))
    if "ngram-cache" in kinds:
        static, dynamic = read_counts(params.lookup_cache_static), read_counts(params.lookup_cache_dynamic)
        makers.append((lambda _: NgramCache(static, dynamic), False))
    return lambda n_text, shares: tuple(make(n_text) for make, learns in makers if shares or not learns)


def _likeliest(counts: Counts, run: Sequence[int], static: Mapping[int, int], needed: Sequence[tuple[int, int]]) -> int:
    """Return the token after the longest suffix of `run` that occurred often enough and clearly enough; -1 if none."""
    for size in reversed(_CACHE_SIZES):
        if size <= len(run):
            token = _enough(counts.get(tuple(run[-size:]), {}), static, *needed[size - 1])
            if token >= 0:
                return token
    return -1


def _enough(counts: Mapping[int, int], static: Mapping[int, int], least: int, percent: int) -> int:
    total = sum(counts.values())
    if not counts or total < least:
        return -1
    best = max(counts, key=lambda token: counts[token] * (100 * static[token] if token in static else 1))
    return best if 100 * counts[best] >= percent * total else -1


def read_counts(path: Path | None) -> Counts:
    """Read a file of llama.cpp's `llama-lookup-create` (common_ngram_cache_save): n-grams of up to four tokens padded
    with -1, the number of followers, and each follower with its count, all 32 bits.

    Raises `ConfigError` for another file.
    """
    if path is None:
        return {}
    try:
        numbers = np.fromfile(path, np.dtype("<i4")).tolist()
    except OSError as error:
        raise ConfigError(f"the lookup cache {path} can't be read: {error.strerror}") from None
    counts: Counts = {}
    at = 0
    while at < len(numbers):
        run, n = tuple(token for token in numbers[at : at + 4] if token >= 0), numbers[at + 4 : at + 5]
        end = at + 5 + 2 * (n[0] if n else 0)
        if not run or not n or n[0] < 1 or end > len(numbers):
            raise ConfigError(f"the lookup cache {path} is damaged, or no file of llama-lookup-create")
        counts[run] = dict(zip(numbers[at + 5 : end : 2], numbers[at + 6 : end : 2], strict=True))
        at = end
    return counts
