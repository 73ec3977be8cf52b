"""A prompt with media as the library tokenizes it: chunks of text, and media to be encoded."""

import atexit
import ctypes
import hashlib
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import llama_cpp.mtmd_cpp as _bindings
import numpy as np
from numpy.typing import NDArray

from server.errors import InternalError, InvalidRequest
from server.llama.library import C, collect_errors, log_callback, reason
from server.media.bitmap import Bitmap
from server.vocab import PlainText

M: Any = _bindings  # their annotations describe the C types, not what ctypes takes and returns

TEXT, IMAGE, AUDIO = M.MTMD_INPUT_CHUNK_TYPE_TEXT, M.MTMD_INPUT_CHUNK_TYPE_IMAGE, M.MTMD_INPUT_CHUNK_TYPE_AUDIO


@cache
def start_media() -> None:
    """Only the first call does something."""
    M.mtmd_helper_log_set(log_callback, None)
    atexit.register(lambda: M.mtmd_helper_log_set(C.llama_log_callback(), None))


Positions = NDArray[np.int32]
_LOUDEST = 1e6  # full scale is 1
_NO_NUMBERS = "the library gave no tokens for a medium"


class NativeChunk:
    """One medium, or a slice of one; `server.engine.media.MediaChunk`."""

    def __init__(self, owner: "Chunks", index: int, place: int, *, causal: bool, salt: bytes) -> None:
        """``place``: index among the slices of its medium. ``salt``: what embeddings depend on besides the medium."""
        self._owner, self._index = owner, index  # in whose memory it lies, and where
        self.pointer = pointer = owner.pointer(index)
        self.causal = causal
        self.is_audio = M.mtmd_input_chunk_get_type(pointer) == AUDIO
        self.n_tokens: int = M.mtmd_input_chunk_get_n_tokens(pointer)
        self.n_pos: int = M.mtmd_input_chunk_get_n_pos(pointer)
        name: bytes = M.mtmd_input_chunk_get_id(pointer) or b""
        part, _, own = name.partition(b"/")
        self._part, self.id = int(part), own.decode("utf-8", "replace")
        self.record = _renamed(_record(pointer), name, own)
        if self.n_tokens <= 0 or self.n_pos <= 0:
            raise InternalError(_NO_NUMBERS)
        self.key = hashlib.blake2b(b"%b%d\0%b" % (salt, place, self.record), digest_size=32).digest()

    def preprocessed(self, context: int) -> int:
        """Return the data to encode, preprocessed now if need be. Raises `InvalidRequest`. One encoder at a time."""
        return self._owner.preprocessed(context, self._index, self._part)

    def positions(self, first: int) -> Positions:
        """Return each token's M-RoPE coordinates, [4, n_tokens], if the first token is at `first` (order as in
        mtmd-helper-common.h, set_position_mrope_2d and _1d).
        """
        if self.is_audio:
            return np.tile(np.arange(first, first + self.n_tokens, dtype=np.int32), (4, 1))
        places = (M.mtmd_decoder_pos * self.n_tokens)()
        tokens = M.mtmd_input_chunk_get_tokens_image(self.pointer)
        M.mtmd_helper_image_get_decoder_pos(tokens, first, places)
        found = np.frombuffer(places, np.uint32).reshape(self.n_tokens, 4)
        return np.ascontiguousarray(found[:, (0, 2, 1, 3)].T).astype(np.int32)


class Chunks:
    """The result of `mtmd_tokenize_from_parts`. Bitmaps without data are counted by their size, not preprocessed."""

    def __init__(self, context: int, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> None:
        """Raises `InvalidRequest` for a medium that preprocessing refuses."""
        self._add_special, self._parse_special = add_special, parse_special
        self._later = {i: part for i, part in enumerate(parts) if isinstance(part, Bitmap) and not part.data}
        self._parts = [part if isinstance(part, str) else replace(part, data=b"") for part in parts if self._later]
        self._with_data: dict[int, Chunks] = {}  # by part
        pointer = M.mtmd_input_chunks_init()
        if not pointer:
            raise InternalError("libmtmd has no memory for a prompt")
        self._pointer: int = pointer
        weakref.finalize(self, M.mtmd_input_chunks_free, pointer)
        with ExitStack() as stack, collect_errors(quiet=True) as errors:
            native = [_native_part(i, part, parse_special, stack) for i, part in enumerate(parts)]
            array = (ctypes.POINTER(M.mtmd_input_part) * len(native))(*map(ctypes.pointer, native))
            status = M.mtmd_tokenize_from_parts(context, pointer, array, len(parts), add_special)
        if status != 0:
            raise InvalidRequest(f"a medium can't be read: {reason(errors, 'the library gave no reason')}")

    def __len__(self) -> int:
        return int(M.mtmd_input_chunks_size(self._pointer))

    @property
    def n_tokens(self) -> int:
        """Of text and media."""
        return int(M.mtmd_helper_get_n_tokens(self._pointer))

    def pointer(self, index: int) -> int:
        """Return the pointer to the chunk."""
        return int(M.mtmd_input_chunks_get(self._pointer, index))

    def preprocessed(self, context: int, index: int, part: int) -> int:
        """Return the pointer of chunk `index`, preprocessed with the data of its part."""
        if part not in self._later:
            return self.pointer(index)
        found = self._with_data.get(part)
        if found is None:  # the whole prompt, since what a medium becomes may depend on how many tokens precede it
            parts = list(self._parts)
            for i in (part, part + 1) if self._later[part].of_video else (part,):  # some models take two as one
                if i in self._later:
                    parts[i] = replace(self._later[i], data=self._later[i].decoded())
            found = Chunks(context, parts, add_special=self._add_special, parse_special=self._parse_special)
            if len(found) != len(self):
                raise InternalError("libmtmd makes more of a medium than of its size")
            self._with_data[part] = found
        return found.pointer(index)

    def read(self, context: int, salt: bytes) -> Iterator[list[int] | NativeChunk]:
        """Yield the tokens of text, and media, in order."""
        last, place = None, 0
        for i in range(len(self)):
            chunk = self.pointer(i)
            if M.mtmd_input_chunk_get_type(chunk) == TEXT:
                yield _text_tokens(chunk)
                continue
            name = M.mtmd_input_chunk_get_id(chunk)
            place = place + 1 if name == last else 0
            last = name
            causal = not M.mtmd_decode_use_non_causal(context, chunk)
            yield NativeChunk(self, i, place, causal=causal, salt=salt)


def _native_part(index: int, part: str | Bitmap, parse_special: bool, stack: ExitStack) -> ctypes.Structure:
    """Return a part for the library, which copies it. `stack` frees it."""
    one: ctypes.Structure = M.mtmd_input_part()
    if isinstance(part, str):
        raw = part.encode("utf-8", "replace")
        text = M.mtmd_input_text(raw, len(raw), False, parse_special and not isinstance(part, PlainText))
        one.text = ctypes.pointer(text)
        return one
    if part.kind == "audio":
        _check(part, part.width > 1 and part.height == 1, 4 * part.width)
        if part.data:
            _check_samples(np.frombuffer(part.data, np.float32))
        pointer = M.mtmd_bitmap_init_from_audio(part.width, _pointer_to(part.data, ctypes.c_float))
    else:
        _check(part, part.width > 0 and part.height > 0, 3 * part.width * part.height)
        pointer = M.mtmd_bitmap_init(part.width, part.height, _pointer_to(part.data, ctypes.c_uint8))
    if not pointer:
        raise InternalError("libmtmd has no memory for a medium")
    stack.callback(M.mtmd_bitmap_free, pointer)
    # its index among the parts distinguishes slices of one medium from a repetition of it
    M.mtmd_bitmap_set_id(pointer, f"{index}/{part.id}".encode())
    M.mtmd_bitmap_set_mergeable(pointer, part.of_video)
    one.bitmap = pointer
    return one


def _pointer_to(data: bytes, kind: type[Any]) -> Any:
    return np.frombuffer(data, np.uint8).ctypes.data_as(ctypes.POINTER(kind)) if data else None


def _check(bitmap: Bitmap, sized: bool, n_bytes: int) -> None:
    """Check that the size matches the data: the library reads as many bytes and asserts that there are some."""
    if not sized:
        raise InvalidRequest(f"{bitmap.kind} of {bitmap.width} x {bitmap.height} holds nothing to read")
    if bitmap.data and len(bitmap.data) != n_bytes:
        raise InternalError(f"a bitmap of {len(bitmap.data)} bytes, {n_bytes} were promised")


def _check_samples(samples: NDArray[np.float32]) -> None:
    """Reject samples that are not finite or far outside any loudness: their embeddings would not be finite and could
    corrupt other cells. Raises `InvalidRequest`.
    """
    if not (samples.min() > -_LOUDEST and samples.max() < _LOUDEST):  # false of NaN, too
        raise InvalidRequest(f"audio has samples that are not numbers from {-_LOUDEST:g} to {_LOUDEST:g}")


def _text_tokens(chunk: int) -> list[int]:
    n = ctypes.c_size_t()
    tokens = M.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
    return list(tokens[: n.value]) if n.value else []


def _record(chunk: int) -> bytes:
    n = ctypes.c_size_t()
    if M.mtmd_input_chunk_save(chunk, None, 0, ctypes.byref(n)) != 0:
        raise InternalError(_NO_NUMBERS)
    buffer = ctypes.create_string_buffer(n.value)
    if M.mtmd_input_chunk_save(chunk, buffer, n.value, None) != 0:
        raise InternalError(_NO_NUMBERS)
    return buffer.raw


def _renamed(record: bytes, name: bytes, own: bytes) -> bytes:
    """Return a chunk's description with the bitmap's `own` id in place of its `name` during tokenization (mtmd.cpp,
    mtmd_serialization: length and bytes).
    """
    before, after = (struct.pack("<Q", len(each)) + each for each in (name, own))
    if record.count(before) != 1:
        raise InternalError("libmtmd describes a medium in an unknown form")
    return record.replace(before, after)
