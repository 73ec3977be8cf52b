"""What a slot holds, as values outside its cells: its whole state, and checkpoints inside it. Pure.

If a model's memory cannot be truncated (recurrent, hybrid, sliding window), a sequence can only be continued from
its end or from a checkpoint. Checkpoints are created during prefill where another prompt is likely to diverge: at
the ends of turns, where an earlier prompt diverged, and shortly before the prompt's end, because the next turn often
renders what follows differently.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from server.engine.lora import AdapterSet
from server.engine.media import Spans

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
