"""A prompt with media, tokenized by the library: chunks of text tokens, and of media to encode."""

import atexit
import ctypes
import hashlib
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from typing import Any

import llama_cpp.mtmd_cpp as _bindings
import numpy as np
from numpy.typing import NDArray

from server.errors import InternalError, InvalidRequest
from server.llama.library import C, collect_errors, log_callback, reason
from server.llama.vocab import needs_deep_stack, with_deep_stack
from server.media.bitmap import MAX_SAMPLE, Bitmap
from server.vocab import PlainText

M: Any = _bindings  # the annotations of the bindings name C types, not those that ctypes accepts and returns

TEXT, IMAGE, AUDIO = M.MTMD_INPUT_CHUNK_TYPE_TEXT, M.MTMD_INPUT_CHUNK_TYPE_IMAGE, M.MTMD_INPUT_CHUNK_TYPE_AUDIO


@cache
def start_media() -> None:
    """Send the log of libmtmd to `logging`. Only the first call has an effect."""
    M.mtmd_helper_log_set(log_callback, None)
    atexit.register(lambda: M.mtmd_helper_log_set(C.llama_log_callback(), None))


Positions = NDArray[np.int32]
_NO_TOKENS = "the library gave no tokens for a medium"


class NativeChunk:
    """A medium, or a slice of one: `server.engine.media.MediaChunk`."""

    def __init__(self, owner: "Chunks", index: int, nth: int, *, causal: bool, salt: bytes) -> None:
        """`index`: in `owner`, which has the memory. `nth`: index among the slices of its medium. `salt`: everything on
        which embeddings depend besides the medium.
        """
        self._owner, self._index = owner, index
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
            raise InternalError(_NO_TOKENS)
        self.key = hashlib.blake2b(b"%b%d\0%b" % (salt, nth, self.record), digest_size=32).digest()

    def preprocessed(self, context: int) -> int:
        """Return the native chunk to encode, preprocessed now if it was not yet. Not thread-safe. Raises
        `InvalidRequest`.
        """
        return self._owner.preprocessed(context, self._index, self._part)

    def positions(self, first: int) -> Positions:
        """Return the M-RoPE coordinates of each token, [4, n_tokens], in the order of mtmd-helper-common.h
        (set_position_mrope_2d and _1d). `first`: position of the first token.
        """
        if self.is_audio:
            return np.tile(np.arange(first, first + self.n_tokens, dtype=np.int32), (4, 1))
        coordinates = (M.mtmd_decoder_pos * self.n_tokens)()
        tokens = M.mtmd_input_chunk_get_tokens_image(self.pointer)
        M.mtmd_helper_image_get_decoder_pos(tokens, first, coordinates)
        rows = np.frombuffer(coordinates, np.uint32).reshape(self.n_tokens, 4)
        return np.ascontiguousarray(rows[:, (0, 2, 1, 3)].T).astype(np.int32)


class Chunks:
    """The result of `mtmd_tokenize_from_parts`. Bitmaps without data are counted by their size, not preprocessed."""

    def __init__(self, context: int, parts: Sequence[str | Bitmap], *, add_special: bool, parse_special: bool) -> None:
        """Tokenize. Raises `InvalidRequest` for a medium that cannot be preprocessed."""
        self._add_special, self._parse_special = add_special, parse_special
        self._lazy = {i: part for i, part in enumerate(parts) if isinstance(part, Bitmap) and not part.data}
        self._parts = [part if isinstance(part, str) else replace(part, data=b"") for part in parts if self._lazy]
        self._with_data: dict[int, Chunks] = {}  # by index of the part
        pointer = M.mtmd_input_chunks_init()
        if not pointer:
            raise InternalError("libmtmd has no memory for a prompt")
        self._pointer: int = pointer
        weakref.finalize(self, M.mtmd_input_chunks_free, pointer)
        with ExitStack() as stack:
            native = [_native_part(i, part, parse_special, stack) for i, part in enumerate(parts)]
            array = (ctypes.POINTER(M.mtmd_input_part) * len(native))(*map(ctypes.pointer, native))
            call = partial(_tokenize, context, pointer, array, len(parts), add_special)
            is_deep = any(needs_deep_stack(part.encode("utf-8", "replace")) for part in parts if isinstance(part, str))
            errors = with_deep_stack(call) if is_deep else call()
        if errors is not None:
            raise InvalidRequest(f"a medium can't be read: {reason(errors, 'the library gave no reason')}")

    def __len__(self) -> int:
        return int(M.mtmd_input_chunks_size(self._pointer))

    @property
    def n_tokens(self) -> int:
        """Tokens of text and media."""
        return int(M.mtmd_helper_get_n_tokens(self._pointer))

    def pointer(self, index: int) -> int:
        """Return the native pointer to a chunk."""
        return int(M.mtmd_input_chunks_get(self._pointer, index))

    def preprocessed(self, context: int, index: int, part: int) -> int:
        """Return the native pointer to the chunk `index`, preprocessed with the data of its `part`."""
        if part not in self._lazy:
            return self.pointer(index)
        chunks = self._with_data.get(part)
        if chunks is None:  # tokenize the whole prompt, because a chunk may depend on the number of tokens before it
            parts = list(self._parts)
            for i in (part, part + 1) if self._lazy[part].of_video else (part,):  # some models encode pairs of frames
                if i in self._lazy:
                    parts[i] = replace(self._lazy[i], data=self._lazy[i].decoded())
            chunks = Chunks(context, parts, add_special=self._add_special, parse_special=self._parse_special)
            if len(chunks) != len(self):
                raise InternalError("libmtmd makes more of a medium than of its size")
            self._with_data[part] = chunks
        return chunks.pointer(index)

    def read(self, context: int, salt: bytes) -> Iterator[list[int] | NativeChunk]:
        """Yield the tokens of each text, and media, in order."""
        last, nth = None, 0
        for i in range(len(self)):
            chunk = self.pointer(i)
            if M.mtmd_input_chunk_get_type(chunk) == TEXT:
                yield _text_tokens(chunk)
                continue
            name = M.mtmd_input_chunk_get_id(chunk)
            nth = nth + 1 if name == last else 0
            last = name
            causal = not M.mtmd_decode_use_non_causal(context, chunk)
            yield NativeChunk(self, i, nth, causal=causal, salt=salt)


def _tokenize(*arguments: Any) -> list[str] | None:
    """Tokenize in this thread, whose errors are collected; return them if it failed, otherwise None."""
    with collect_errors(quiet=True) as errors:
        return errors if M.mtmd_tokenize_from_parts(*arguments) else None


def _native_part(index: int, part: str | Bitmap, parse_special: bool, stack: ExitStack) -> ctypes.Structure:
    """Return the native form of a part, which the library copies. `stack` frees it."""
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
    # the index distinguishes slices of one medium from repetitions of it
    M.mtmd_bitmap_set_id(pointer, f"{index}/{part.id}".encode())
    M.mtmd_bitmap_set_mergeable(pointer, part.of_video)
    one.bitmap = pointer
    return one


def _pointer_to(data: bytes, kind: type[Any]) -> Any:
    return np.frombuffer(data, np.uint8).ctypes.data_as(ctypes.POINTER(kind)) if data else None


def _check(bitmap: Bitmap, sized: bool, n_bytes: int) -> None:
    """Check that the data have `n_bytes`, which the library reads, and are not empty, which it asserts."""
    if not sized:
        raise InvalidRequest(f"{bitmap.kind} of {bitmap.width} x {bitmap.height} holds nothing to read")
    if bitmap.data and len(bitmap.data) != n_bytes:
        raise InternalError(f"a bitmap of {len(bitmap.data)} bytes, {n_bytes} were promised")


def _check_samples(samples: NDArray[np.float32]) -> None:
    """Raise `InvalidRequest` for samples that are not finite or far too large. Their embeddings would not be finite,
    and could corrupt cells of other sequences.
    """
    if not (samples.min() > -MAX_SAMPLE and samples.max() < MAX_SAMPLE):  # also rejects NaN
        raise InvalidRequest(f"audio has samples that are not numbers from {-MAX_SAMPLE:g} to {MAX_SAMPLE:g}")


def _text_tokens(chunk: int) -> list[int]:
    n = ctypes.c_size_t()
    tokens = M.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
    return list(tokens[: n.value]) if n.value else []


def _record(chunk: int) -> bytes:
    """Return the library's serialization of a chunk."""
    n = ctypes.c_size_t()
    if M.mtmd_input_chunk_save(chunk, None, 0, ctypes.byref(n)) != 0:
        raise InternalError(_NO_TOKENS)
    buffer = ctypes.create_string_buffer(n.value)
    if M.mtmd_input_chunk_save(chunk, buffer, n.value, None) != 0:
        raise InternalError(_NO_TOKENS)
    return buffer.raw


def _renamed(record: bytes, name: bytes, own: bytes) -> bytes:
    """Return a chunk's serialization with the bitmap's `own` id instead of its `name` during tokenization. Both are
    stored as length and bytes (mtmd.cpp, mtmd_serialization).
    """
    before, after = (struct.pack("<Q", len(each)) + each for each in (name, own))
    if record.count(before) != 1:
        raise InternalError("libmtmd describes a medium in an unknown form")
    return record.replace(before, after)
