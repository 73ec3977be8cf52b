"""The array of candidates that a sampler chain works on, for the cases where `llama_sampler_sample` does not fit."""

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from server.errors import InternalError
from server.llama.library import C
from server.llama.sampling.sampler import NativeSampler

_FEW_WORDS = 24
Logits = npt.NDArray[np.float32]
_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class _Array(ctypes.Structure):
    """llama_token_data_array, with `data` as a plain address: samplers may move it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class Candidates:
    """Preallocated for a vocabulary of `n_vocab`; used by one thread."""

    def __init__(self, n_vocab: int, apply: Callable[[int, object], None]) -> None:
        self._n_vocab = n_vocab
        self._apply = apply
        self._entries = np.zeros(n_vocab, _ENTRY)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._base = self._entries.ctypes.data
        self._array = _Array()
        self._reference = ctypes.byref(self._array)

    def choose(self, sampler: NativeSampler, logits: Logits, allowed: npt.NDArray[np.int32] | None = None) -> int:
        """Run the chain without accepting; `allowed` are the only candidates, all tokens where it is None.

        Raises `InternalError` when the chain selects nothing.
        """
        n = self._n_vocab if allowed is None else len(allowed)
        entries = self._entries[:n]
        entries["id"] = self._ids if allowed is None else allowed
        entries["logit"] = logits if allowed is None else logits[allowed]
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._base, n, -1, False
        self._apply(sampler.chain, self._reference)
        if not 0 <= array.selected < array.size:
            raise InternalError("the sampler chain selected no token")
        return int(self._view()["id"][array.selected])

    def probabilities(self, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """After `choose`: the probability that the chain gave `token`, and the `n_top` best with theirs, over 0."""
        view = self._view()
        own = view["p"][view["id"] == token]
        best = np.argsort(-view["p"], kind="stable")[:n_top]
        top = [(int(view["id"][i]), float(view["p"][i])) for i in best if view["p"][i] > 0.0]
        return (float(own[0]) if len(own) else 0.0), top

    def _view(self) -> np.ndarray:
        start = (self._array.data - self._base) // _ENTRY.itemsize
        return self._entries[start : start + self._array.size]


def apply_unlocked(chain: int, array: object) -> None:
    """Run a chain without the interpreter's lock."""
    C.llama_sampler_apply(chain, ctypes.cast(array, C.llama_token_data_array_p))  # type: ignore[arg-type]


def allowed_tokens(mask: bytes | bytearray | memoryview, n_vocab: int) -> npt.NDArray[np.int32]:
    """The ids whose bit is set; `mask` has little-endian 32-bit words, the first token in the lowest bit.

    Raises `InternalError` for a mask that is too short or allows nothing.
    """
    if len(mask) * 8 < n_vocab or len(mask) % 4:
        raise InternalError(f"a token mask of {len(mask)} bytes for a vocabulary of {n_vocab}")
    words = np.frombuffer(mask, "<u4")
    # `nonzero` of booleans is four times faster
    used = (words != 0).nonzero()[0]  # most masks are sparse: unpack those words only
    if len(used) <= _FEW_WORDS:  # fewer calls into numpy, whose code is out of the caches after a decode
        few: list[int] = []
        for at, word in zip(used.tolist(), words[used].tolist(), strict=True):
            left = word
            while left:
                few.append((at << 5) + (left & -left).bit_length() - 1)
                left &= left - 1
        ids = np.array([token for token in few if token < n_vocab], np.int32)
    else:
        bits = np.unpackbits(words[used].view(np.uint8), bitorder="little").view(np.bool_).nonzero()[0]
        ids = ((used[bits >> 5] << 5) + (bits & 31)).astype(np.int32)
        if ids[-1] >= n_vocab:
            ids = ids[ids < n_vocab]
    if not len(ids):
        raise InternalError("the output's constraint allows no token")
    return ids
