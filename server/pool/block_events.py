"""Changes of the prompt blocks that an engine has cached, for routers that send requests to the longest cached prefix.
Pure.

A block is `BLOCK` tokens and everything before them. Its hash is vLLM's (v1/core/kv_cache_utils.py,
hash_block_tokens with sha256_cbor): SHA-256 of the CBOR of (previous hash, tokens, extra keys), of which the last
eight bytes are reported. The hash before the first block depends on PYTHONHASHSEED, or is random if that is unset.
"""

import os
import secrets
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from server.engine.cache.prefix_cache import BLOCK, common_prefix
from server.engine.engine import Engine
from server.engine.snapshots import HeldText

Hash = bytes


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Consecutive blocks that are now cached. ``parent`` precedes the first; None at a prompt's start, where ``salt``
    is part of the first hash.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    medium: str
    salt: str = ""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that are no longer cached in ``medium``, in any order."""

    hashes: tuple[int, ...]
    medium: str


@dataclass(frozen=True, slots=True)
class BlockReport:
    """Changes in order. At the start of a new ``epoch``, nothing is cached."""

    epoch: str
    changes: tuple[BlocksStored | BlocksRemoved, ...]


@dataclass(slots=True)
class Blocks:
    """The reported blocks. Equal blocks of several slots in a medium count once."""

    epoch: str = field(default_factory=lambda: secrets.token_hex(8))
    _root_hash: Hash = field(default_factory=lambda: hash_of_none(os.environ.get("PYTHONHASHSEED")))
    _known: dict[Hashable, tuple[HeldText, list[Hash]]] = field(default_factory=dict)  # whole blocks
    _held: defaultdict[str, set[Hash]] = field(default_factory=lambda: defaultdict(set))  # by medium

    def update(self, held: Iterable[HeldText]) -> BlockReport:
        """Return the changes since the last call, given everything that is cached now."""
        before, self._held = self._held, defaultdict(set)
        fresh: list[tuple[Hash, BlocksStored]] = []
        self._known = {one.key: self._blocks_of(one, fresh) for one in held}
        for one, hashes in self._known.values():
            self._held[one.medium].update(hashes)
        removed = [
            BlocksRemoved(tuple(map(shown, evicted)), medium)
            for medium, had in before.items()
            if (evicted := had - self._held[medium])
        ]
        stored = []
        for own, block in fresh:
            if own not in before[block.medium]:
                before[block.medium].add(own)  # report a block once, even if two slots have it
                stored.append(block)
        return BlockReport(self.epoch, (*removed, *_merged(stored)))

    def _blocks_of(self, one: HeldText, fresh: list[tuple[Hash, BlocksStored]]) -> tuple[HeldText, list[Hash]]:
        """Return the whole blocks of a text and their hashes; append new ones to `fresh`."""
        n_blocks = one.n // BLOCK
        now = replace(one, tokens=list(one.tokens[: n_blocks * BLOCK]))
        old, hashes = self._known.get(one.key, (now, []))
        if (old.medium, old.salt) != (one.medium, one.salt):
            hashes = []
        elif hashes and old.tokens == now.tokens:
            return old, hashes
        hashes = hashes[: common_prefix(old.tokens, now.tokens) // BLOCK]
        for i in range(len(hashes), n_blocks):
            at, salt = (hashes[-1], "") if hashes else (None, one.salt)
            block = tuple(now.tokens[i * BLOCK : (i + 1) * BLOCK])
            hashes.append(block_hash(at or self._root_hash, block, salt))
            parent = None if at is None else shown(at)
            fresh.append((hashes[-1], BlocksStored((shown(hashes[-1]),), parent, block, one.medium, salt)))
        return now, hashes


def _merged(stored: Iterable[BlocksStored]) -> list[BlocksStored]:
    """Merge consecutive blocks."""
    runs: list[list[BlocksStored]] = []
    for one in stored:
        if runs and (one.parent, one.medium) == (runs[-1][-1].hashes[0], runs[-1][-1].medium):
            runs[-1].append(one)
        else:
            runs.append([one])
    return [
        replace(run[0], hashes=tuple(one.hashes[0] for one in run), tokens=tuple(t for one in run for t in one.tokens))
        for run in runs
    ]


def shown(block: Hash) -> int:
    """Return a hash as it is reported."""
    return int.from_bytes(block[-8:], "big")


def hash_of_none(seed: str | None) -> Hash:
    """Return the hash before the first block."""
    return os.urandom(32) if seed is None else sha256(_cbor_text(seed)).digest()


def block_hash(before: Hash, tokens: Sequence[int], salt: str = "") -> Hash:
    extra = _cbor_head(4, 1) + _cbor_text(salt) if salt else b"\xf6"
    written = b"".join([_cbor_head(0, token) for token in tokens])
    return sha256(b"\x83" + _cbor_head(2, len(before)) + before + _cbor_head(4, len(tokens)) + written + extra).digest()


def _cbor_text(text: str) -> bytes:
    encoded = text.encode()
    return _cbor_head(3, len(encoded)) + encoded


def _cbor_head(major: int, n: int) -> bytes:
    """Return the head of a CBOR item (RFC 8949, shortest form). An integer (major 0) has nothing else."""
    if n < 24:
        return bytes([major << 5 | n])
    for more, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if n < 1 << 8 * size:
            return bytes([major << 5 | more]) + n.to_bytes(size, "big")
    raise ValueError(n)


class ReportingEngine(Engine):
    """An engine that reports the changes of its cached blocks."""

    _blocks: Blocks | None = None

    async def block_changes(self) -> BlockReport:
        """Return the prompt blocks stored and removed, in slots and RAM, since the last call. For a single caller."""
        self._blocks = self._blocks or Blocks()
        return self._blocks.update(self.held_texts())
