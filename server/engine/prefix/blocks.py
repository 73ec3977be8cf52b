"""Which blocks of prompts an engine holds, as changes since it was asked last: for routers in front, which send a
request where most of its prompt is held. Pure.

A block is `BLOCK` tokens and all that comes before them; its hash is vLLM's (v1/core/kv_cache_utils.py,
hash_block_tokens with sha256_cbor): SHA-256 of the CBOR of (hash of the block before, tokens, extra keys), of which the
last eight bytes are told. Before the first block stands what PYTHONHASHSEED says, random bytes where it says nothing.
"""

import os
import secrets
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from server.engine.prefix.hashes import BLOCK

Hash = bytes


@dataclass(frozen=True, slots=True)
class HeldText:
    """What one slot or kept state holds: the first `n` of `tokens`, which is not changed while it is looked at. ``key``
    tells it from others, ``medium`` says where it is: "GPU" (cells, wherever they are), "CPU" (RAM). ``salt``: for whom
    alone it is."""

    key: Hashable
    tokens: Sequence[int]
    n: int
    medium: str
    salt: str = ""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that are held from now on, each behind the one before; ``parent`` is before the first, None at a prompt's
    beginning. Of such, ``salt`` is part of the first block's hash."""

    hashes: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    medium: str
    salt: str = ""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that are held there no longer."""

    hashes: tuple[int, ...]
    medium: str


@dataclass(frozen=True, slots=True)
class BlockReport:
    """Changes, in order; those of another ``epoch`` than before begin with nothing held."""

    epoch: str
    changes: tuple[BlocksStored | BlocksRemoved, ...]


@dataclass(slots=True)
class _Known:
    tokens: list[int]  # of whole blocks
    hashes: list[Hash]
    medium: str
    salt: str


@dataclass(slots=True)
class _Fresh:
    parent: Hash | None
    own: Hash
    tokens: tuple[int, ...]
    medium: str
    salt: str


@dataclass(slots=True)
class Blocks:
    """What was told so far. Equal blocks in several places of a medium are one."""

    epoch: str = field(default_factory=lambda: secrets.token_hex(8))
    _before_all: Hash = field(default_factory=lambda: hash_of_none(os.environ.get("PYTHONHASHSEED")))
    _known: dict[Hashable, _Known] = field(default_factory=dict)
    _n_held: dict[tuple[str, Hash], int] = field(default_factory=dict)

    def update(self, held: Iterable[HeldText]) -> BlockReport:
        """This is all that is held now."""
        before: dict[tuple[str, Hash], bool] = {}
        fresh: list[_Fresh] = []
        now: dict[Hashable, _Known] = {}
        for one in held:
            old = self._known.get(one.key)
            now[one.key] = self._follow(old, one, fresh, before)
        for key, old in self._known.items():
            if key not in now:
                self._count(old.medium, old.hashes, -1, before)
        self._known = now
        gone: dict[str, list[int]] = {}
        for (medium, block), was in before.items():
            if was and not self._n_held.get((medium, block)):
                gone.setdefault(medium, []).append(shown(block))
        stored = [
            one
            for one in fresh  # a block that is in it twice is told once
            if not before.pop((one.medium, one.own), True) and self._n_held.get((one.medium, one.own))
        ]
        removed = (BlocksRemoved(tuple(hashes), medium) for medium, hashes in gone.items())
        return BlockReport(self.epoch, (*removed, *_in_runs(stored)))

    def _follow(
        self, old: _Known | None, one: HeldText, fresh: list[_Fresh], before: dict[tuple[str, Hash], bool]
    ) -> _Known:
        n_blocks = one.n // BLOCK
        tokens = list(one.tokens[: n_blocks * BLOCK])
        kept: list[Hash] = []
        if old is not None and (old.medium, old.salt) == (one.medium, one.salt):
            if old.tokens == tokens:
                return old
            kept = old.hashes[: _n_equal(old.tokens, tokens)]
        hashes = kept.copy()
        at = hashes[-1] if hashes else None
        for i in range(len(kept), n_blocks):
            block = tuple(tokens[i * BLOCK : (i + 1) * BLOCK])
            own = block_hash(at or self._before_all, block, one.salt if i == 0 else "")
            fresh.append(_Fresh(at, own, block, one.medium, one.salt if i == 0 else ""))
            hashes.append(own)
            at = own
        self._count(one.medium, hashes[len(kept) :], 1, before)
        if old is not None:
            self._count(old.medium, old.hashes[len(kept) :], -1, before)
        return _Known(tokens, hashes, one.medium, one.salt)

    def _count(self, medium: str, hashes: Iterable[Hash], n: int, before: dict[tuple[str, Hash], bool]) -> None:
        for block in hashes:
            key = (medium, block)
            count = self._n_held.get(key, 0)
            before.setdefault(key, count > 0)
            if count + n:
                self._n_held[key] = count + n
            else:
                del self._n_held[key]


def _n_equal(old: Sequence[int], new: Sequence[int]) -> int:
    """Whole blocks that both begin with."""
    n = min(len(old), len(new)) // BLOCK
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        if old[low * BLOCK : middle * BLOCK] == new[low * BLOCK : middle * BLOCK]:
            low = middle
        else:
            high = middle - 1
    return low


def _in_runs(stored: Sequence[_Fresh]) -> list[BlocksStored]:
    runs: list[list[_Fresh]] = []
    for one in stored:
        if runs and one.parent == runs[-1][-1].own and one.medium == runs[-1][-1].medium:
            runs[-1].append(one)
        else:
            runs.append([one])
    return [
        BlocksStored(
            hashes=tuple(shown(one.own) for one in run),
            parent=None if run[0].parent is None else shown(run[0].parent),
            tokens=tuple(token for one in run for token in one.tokens),
            medium=run[0].medium,
            salt=run[0].salt,
        )
        for run in runs
    ]


def shown(block: Hash) -> int:
    """A hash as it is told."""
    return int.from_bytes(block[-8:], "big")


def hash_of_none(seed: str | None) -> Hash:
    """What stands before the first block."""
    return os.urandom(32) if seed is None else sha256(_cbor_text(seed)).digest()


def block_hash(before: Hash, tokens: Sequence[int], salt: str = "") -> Hash:
    """The hash of a block."""
    extra = _cbor_head(4, 1) + _cbor_text(salt) if salt else b"\xf6"
    written = b"".join([_cbor_head(0, token) for token in tokens])
    return sha256(b"\x83" + _cbor_head(2, len(before)) + before + _cbor_head(4, len(tokens)) + written + extra).digest()


def _cbor_text(text: str) -> bytes:
    encoded = text.encode()
    return _cbor_head(3, len(encoded)) + encoded


def _cbor_head(major: int, n: int) -> bytes:
    """The beginning of an item (RFC 8949, shortest form), which is all of a whole number (major 0)."""
    if n < 24:
        return bytes([major << 5 | n])
    for more, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if n < 1 << 8 * size:
            return bytes([major << 5 | more]) + n.to_bytes(size, "big")
    raise ValueError(n)
