"""Reads the header of a GGUF file and checks every length: a broken file is rejected before the library reads it.

Format: ggml's docs/gguf.md; limits as in ggml/src/gguf.cpp (4 dimensions, power-of-two alignment, versions 2 and 3).
"""

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

Scalar = int | float | bool | str
MAX_STORED_ARRAY = 4096  # elements; longer arrays (vocabularies) are skipped
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_TOKENS, _TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_BYTE = 6  # enum llama_token_type
_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# elements and bytes of one block per ggml type (ggml/src/ggml.c, type_traits); a test compares them with the library
BLOCKS: Mapping[int, tuple[int, int]] = {
    **{0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292)},
    **{16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82)},
    **{23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2)},
    **{34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18)},
}

NOT_MULTIPLIED = frozenset({9, 15, 24, 25, 26, 27, 28})
"""Types without a matrix product in the library, which would call a null pointer: integers, f64, and the types of
activations, Q8_1 and Q8_K."""


class BrokenFileError(Exception):
    """The file is not a valid GGUF file, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. ``end`` is the offset after its last byte, from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    n_bytes: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The contents of a header. Arrays of more than `MAX_STORED_ARRAY` elements are only in ``lengths``. ``types`` has
    the type of each value, as ``f32``, ``string`` or ``[u32]``. ``n_bytes`` is the offset of the tensor data.
    """

    metadata: dict[str, Scalar | tuple[Scalar, ...]]
    lengths: dict[str, int]
    tensors: tuple[Tensor, ...]
    types: dict[str, str] = field(default_factory=dict)
    n_bytes: int = 0

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def of_model(self, key: str, default: int = 0) -> int:
        """Return the integer value of `key` after the architecture's prefix, as ``llama.block_count``."""
        return self.integer(f"{self.architecture}.{key}", default)

    def text(self, key: str) -> str:
        """Return a string value; "" if the key is missing or has another type."""
        value = self.metadata.get(key, "")
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int = 0) -> int:
        """Return an integer value, or `default` if the key is missing or has another type."""
        value = self.metadata.get(key, default)
        return value if isinstance(value, int) else default


def read_header(path: Path) -> GgufHeader:
    """Read and check a header. Raises `BrokenFileError` (not GGUF, truncated, invalid lengths) and OSError."""
    status = path.stat()
    return _read(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@lru_cache(64)  # a load reads each header four times, which takes 50 ms of CPU for a vocabulary of 49,000 tokens
def _read(path: Path, _identity: tuple[int, ...]) -> GgufHeader:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 24:
            raise BrokenFileError(f"{size} bytes are too few for a GGUF file")
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as view:
            return _Reader(view).header()


class _Reader:
    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._size = len(view)
        self._at = 0
        self._metadata: dict[str, Scalar | tuple[Scalar, ...]] = {}
        self._lengths: dict[str, int] = {}
        self._tokens: list[bytes] = []
        self._token_types = (0, 0)  # offset and number

    def header(self) -> GgufHeader:
        n_tensors, n_values = self._preamble()
        types: dict[str, str] = {}
        for _ in range(n_values):
            key = self._string()
            if key in types:
                raise BrokenFileError(f"key '{key}' appears twice")
            kind = self._number("I")
            if kind == _ARRAY:
                types[key] = self._array(key)
            else:
                self._metadata[key] = self._value(kind)
                types[key] = _NAMES[kind]
        self._check_vocabulary(self._metadata.get("tokenizer.ggml.model"))
        tensors, start = self._tensors(n_tensors)
        return GgufHeader(self._metadata, self._lengths, tensors, types, start)

    def _preamble(self) -> tuple[int, int]:
        """Check the preamble. Returns the numbers of tensors and of values."""
        if self._view[:4] != b"GGUF":
            raise BrokenFileError("not a GGUF file (it does not start with 'GGUF')")
        self._at = 4
        version = self._number("I")
        if version & 0xFFFF == 0:
            raise BrokenFileError("a GGUF file for machines of the other byte order")
        if version not in (2, 3):
            raise BrokenFileError(f"GGUF version {version} is not supported (2 and 3 are)")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        if n_tensors * 24 + n_values * 12 > self._size:
            raise BrokenFileError(
                f"the header promises {n_tensors} tensors and {n_values} values, more than fit the file"
            )
        return n_tensors, n_values

    def _take(self, n_bytes: int) -> int:
        """Skip `n_bytes`. Returns the offset of the first."""
        at = self._at
        if n_bytes > self._size - at:
            raise BrokenFileError(f"truncated: the header needs {n_bytes} bytes at {at}, the file ends at {self._size}")
        self._at = at + n_bytes
        return at

    def _number(self, code: str) -> int:
        width = struct.calcsize("<" + code)
        value: int = struct.unpack_from("<" + code, self._view, self._take(width))[0]
        return value

    def _string(self) -> str:
        length = self._number("Q")
        at = self._take(length)
        return self._view[at : at + length].decode("utf-8", "replace")

    def _value(self, kind: int) -> Scalar:
        if kind == _STRING:
            return self._string()
        if kind not in _FIXED:
            raise BrokenFileError(f"value type {kind} does not exist")
        return self._number(_FIXED[kind])

    def _array(self, key: str) -> str:
        """Read an array. Returns the name of its type."""
        kind, count = self._number("I"), self._number("Q")
        self._lengths[key] = count
        if kind == _STRING:
            self._skip_strings(count, self._tokens if key == _TOKENS else None)
            return "[string]"
        if kind not in _FIXED:
            raise BrokenFileError(f"'{key}': arrays of type {kind} are not supported")
        at = self._take(count * struct.calcsize("<" + _FIXED[kind]))
        if count <= MAX_STORED_ARRAY:
            self._metadata[key] = struct.unpack_from(f"<{count}{_FIXED[kind]}", self._view, at)
        if key == _TOKEN_TYPES:
            self._token_types = at, count if _FIXED[kind] in "iI" else 0
        return f"[{_NAMES[kind]}]"

    def _skip_strings(self, count: int, tokens: list[bytes] | None) -> None:
        """Skip `count` strings, and append them to `tokens` if given. Hundreds of thousands are common, so there is no
        call for each.
        """
        view, at, length_at = self._view, self._at, struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start, at = at + 8, at + 8 + length_at(view, at)[0]
                if tokens is not None and at <= self._size:
                    tokens.append(view[start:at].partition(b"\0")[0])  # the library reads up to the first zero
        except (struct.error, OverflowError):
            at = self._size + 1
        self._take(at - self._at)

    def _check_vocabulary(self, kind: object) -> None:
        """Raise `BrokenFileError` for tokens on which the library aborts (src/llama-vocab.cpp): it renames empty tokens
        and asserts that all differ.
        """
        tokens = set(self._tokens)
        if len(tokens) + max(self._tokens.count(b"") - 1, 0) < len(self._tokens):
            raise BrokenFileError(f"{_TOKENS} has the same token twice")
        at, n_types = self._token_types
        if kind == "bert" and _BYTE in struct.unpack_from(f"<{min(n_types, len(self._tokens))}i", self._view, at):
            raise BrokenFileError(f"{_TOKEN_TYPES} has a byte ({_BYTE}), which WordPiece does not know")

    def _tensors(self, count: int) -> tuple[tuple[Tensor, ...], int]:
        """Return all tensors, and the offset of their data."""
        alignment = self._metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise BrokenFileError(f"general.alignment is {alignment!r}, not a power of two")
        entries = [self._tensor() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        tensors = []
        for name, shape, kind, offset in entries:
            if offset % alignment:
                raise BrokenFileError(f"tensor '{name}' is not aligned to {alignment} bytes")
            n_bytes = _n_bytes(name, shape, kind)
            end = start + offset + n_bytes
            if end > self._size:
                raise BrokenFileError(
                    f"truncated: tensor '{name}' ends at byte {end}, the file has {self._size} "
                    "(an unfinished download?)"
                )
            tensors.append(Tensor(name, shape, kind, n_bytes, end))
        return tuple(tensors), start

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        n_dims = self._number("I")
        if not 1 <= n_dims <= MAX_DIMS:
            raise BrokenFileError(f"tensor '{name}' has {n_dims} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dims))
        return name, shape, self._number("I"), self._number("Q")


def _n_bytes(name: str, shape: tuple[int, ...], kind: int) -> int:
    if kind not in BLOCKS:
        raise BrokenFileError(f"tensor '{name}' has the unknown type {kind}; a newer llama.cpp may know it")
    per_block, block_bytes = BLOCKS[kind]
    if shape[0] % per_block or 0 in shape:
        raise BrokenFileError(f"tensor '{name}' of type {kind} cannot have the shape {shape}")
    return math.prod(shape) // per_block * block_bytes
