"""What a slot holds, as values that live outside of its cells: its whole state, and checkpoints inside of it. Pure.

Where a model's memory can't be cut (recurrent, hybrid, sliding window), a sequence can only be continued from its end;
a checkpoint is a further place to continue from. They are made while a prompt is computed, where another prompt is
likely to part from it: at the ends of turns, where one parted before, and shortly before the prompt's end, since the
next turn often renders what follows there in another way.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from server.engine.lora import Tuning
from server.engine.media import Spans

BEFORE_END = 4
"""Tokens before a prompt's end, as llama-server (server-context.cpp, checkpoint_offsets): an assistant's header."""
MIN_GAP = 16  # tokens; checkpoints that are nearer to each other are not worth their bytes
MIN_PROMPT = 32  # tokens; less is computed anew


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``state`` brings back what can't be cut, as it was behind the first ``n_tokens`` tokens."""

    n_tokens: int
    state: bytes


Checkpoints = tuple[Checkpoint, ...]
"""In the order of their places."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """``state`` are the library's own bytes of the sequence (llama_state_seq_get_data), ``tokens`` what is in it.

    ``n_exact`` of the tokens lie in cells that a fresh computation would give, too; a context shift or
    ``n_cache_reuse`` leaves others. ``media``: what negative tokens stand for.
    """

    tokens: list[int]
    state: bytes
    tuning: Tuning
    n_exact: int
    checkpoints: Checkpoints = ()
    media: Spans = ()

    @property
    def without_bytes(self) -> "SlotState":
        """What is known of it where the bytes are elsewhere."""
        return replace(self, state=b"", checkpoints=tuple(Checkpoint(c.n_tokens, b"") for c in self.checkpoints))

    @property
    def states(self) -> list[bytes]:
        """All that is bytes of the library's."""
        return [self.state, *(c.state for c in self.checkpoints)]


def reach(n: int, n_tokens: int, floor: int, places: Iterable[int]) -> int:
    """The most of the first `n` tokens that a sequence of `n_tokens` can be brought back to.

    `floor` is the least number of tokens that it can be cut to without a checkpoint, `places` are those of these.
    """
    if n >= floor:
        return min(n, n_tokens)
    return max((place for place in places if place <= n), default=0)


def added(checkpoints: Checkpoints, new: Checkpoint, most: int, most_bytes: int) -> Checkpoints:
    """With `new` in its place; while others are too many, or all too large (negative: none are), the one of them goes
    that is nearest behind another one."""
    places = {c.n_tokens: c for c in (*checkpoints, new)}
    kept = [places[n] for n in sorted(places)]
    while len(kept) > 1 and (len(kept) > most or 0 <= most_bytes < sum(len(c.state) for c in kept)):
        before = [0, *(c.n_tokens for c in kept[:-1])]
        gaps = [(c.n_tokens - at, c.n_tokens) for c, at in zip(kept, before, strict=True) if c is not new]
        kept = [c for c in kept if c.n_tokens != min(gaps)[1]]
    return tuple(kept)


def up_to(checkpoints: Checkpoints, n: int) -> Checkpoints:
    """Those that are still true when only the first `n` tokens are left."""
    return tuple(c for c in checkpoints if c.n_tokens <= n)


def marks(
    prompt: Sequence[int], start: int, turn_ends: Iterable[int], spacing: int, parted: int = 0
) -> tuple[int, ...]:
    """Where to make checkpoints while `prompt` is computed from `start` on, ascending.

    `turn_ends` are the tokens that end a turn; `parted` is where an earlier prompt parted from this one. The first
    turn's end (the system prompt's), the last one's and the prompt's get one; others `spacing` tokens apart.
    """
    n = len(prompt)
    if n < MIN_PROMPT:
        return ()
    wanted = set(turn_ends)
    ends = [i for i in range(1, n) if prompt[i - 1] in wanted] if wanted else []
    sure = sorted({*ends[:1], *ends[-1:], parted, n - BEFORE_END})
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


# As CPython's C API allows: a bytes object may be written to before anybody else sees it.
_uninitialized = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))


def new_bytes(n: int) -> tuple[bytes, memoryview]:
    """`n` bytes, and a view to write all of them through before anybody sees them; it is valid as long as they are.

    So a state is written once, where it stays: a copy of gigabytes would hold the GIL for as long as it takes. Raises
    MemoryError.
    """
    if not n:
        return b"", memoryview(bytearray())
    made: bytes = _uninitialized(None, n)
    return made, memoryview((ctypes.c_ubyte * n).from_address(_address(made))).cast("B")
