"""The file format of saved slots: llama.cpp's sequence state file, followed by checkpoints and a verified description.

::

    u32 'ggsq' | u32 version | u32 number of words | words | state        as llama_state_seq_save_file writes it
    the states of the checkpoints, if there are any
    JSON: Description, with a hash of all of the above
    magic | u32 format | u32 bytes of the JSON | u64 bytes before it | hash of the JSON and these numbers

The words are llama-server's packed tokens (tools/server/server-common.cpp, server_tokens::serialize)::

    -1 | version | number of tokens | tokens, -1 for each of a medium | number of media | their positions
    for each medium: number of bytes | the bytes that `read_record` parses

llama-server reads such a file and ignores the bytes after the state. It is one file, so that one rename creates or
replaces it (docs/adr/0006). Hashes are BLAKE2b, which detects any changed byte. llama-server's own files end with the
state (`read_foreign`); older ones have a plain list of tokens as words.
"""

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Annotated, BinaryIO, ClassVar

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from server.engine.cache.prefix_cache import CacheEntry, new_bytes
from server.engine.lora import NEVER, AdapterSet
from server.engine.media import MediaSpan, Spans, media_tokens
from server.errors import InternalError, InvalidRequest

VERSION = 2  # MTMD_SERIALIZATION_VERSION
_IMAGE, _AUDIO = 1, 2
_NORMAL, _MROPE, _HUNYUAN = 0, 1, 2  # mtmd_pos_type
_RECORD_HEAD = struct.Struct("<QIQ")
_IMAGE_HEAD = struct.Struct("<IIIII")
_ENTRY_BYTES = 14
MAX_TOKENS = 1 << 24


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, n: int) -> bytes:
        if n > len(self._data) - self._at:
            raise InvalidRequest("its media are truncated")
        self._at += n
        return self._data[self._at - n : self._at]

    def number(self, code: str) -> int:
        found: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return found

    def id(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def n_entries(self) -> int:
        self.take(1)
        n = self.number("Q")
        self.take(n * _ENTRY_BYTES)
        return n

    @property
    def rest(self) -> bytes:
        return self._data[self._at :]


def read_record(record: bytes, start: int, nth: dict[str, int]) -> MediaSpan:
    """Return the span at `start` that `record` describes; `nth` counts the spans of each id. Raises `InvalidRequest`.

    libmtmd writes the record (tools/mtmd/mtmd.cpp, mtmd_input_chunk_save): the description of a medium without its
    content. It is parsed in Python, because the library crashes on some invalid records::

        u64 version | u32 type (1 image, 2 audio) | u64 number of text tokens, 0
        u8 1 | u32 nx | u32 ny | u32 kind of positions | u32 image index | u32 frames in one | id | batch    or u8 0
        u8 1 | u32 number of tokens | id | batch                                                            or u8 0

    An id is u64 length and bytes; a batch is u8 and u64 number of entries of 14 bytes.
    """
    reader = _Reader(record)
    version, kind, n_text = _RECORD_HEAD.unpack(reader.take(_RECORD_HEAD.size))
    if version != VERSION:
        raise InvalidRequest(f"its media are described in the version {version}, this llama.cpp reads {VERSION}")
    found = None
    if n_text == 0 and reader.number("B"):
        found = _image(reader)
    if n_text == 0 and reader.number("B"):
        n_tokens = reader.number("I")
        id_, _ = reader.id(), reader.n_entries()
        found = (n_tokens, n_tokens, True, id_) if kind == _AUDIO and found is None else None
    elif kind != _IMAGE:
        found = None
    if found is None or reader.rest or not 0 < found[0] <= MAX_TOKENS or found[1] <= 0:
        raise InvalidRequest("its description of a medium is invalid")
    n_tokens, n_pos, linear, id_ = found
    nth[id_] = nth.get(id_, -1) + 1
    return MediaSpan(start, n_tokens, n_pos, linear, id_, nth[id_], record)


def _image(reader: _Reader) -> tuple[int, int, bool, str] | None:
    """Return the tokens, the positions, whether each token has the next position, and the id."""
    nx, ny, positions, _, n_merged = _IMAGE_HEAD.unpack(reader.take(_IMAGE_HEAD.size))
    id_, n_entries = reader.id(), reader.n_entries()
    if positions == _HUNYUAN:
        n_tokens = (nx + 1) * ny + 2
        return n_tokens, n_tokens, True, id_
    n_tokens = nx * ny * (-(-n_entries // max(n_merged, 1)))
    if positions == _MROPE:
        return n_tokens, max(nx, ny), False, id_
    return (n_tokens, n_tokens, True, id_) if positions == _NORMAL else None


STATE_MAGIC, STATE_VERSION = 0x67677371, 3  # llama.h, LLAMA_STATE_SEQ_MAGIC and _VERSION
PACKED_VERSION = 1  # server-common.cpp, SERVER_TOKENS_STATE_VERSION
DATA_PREFIX = struct.pack("<I", 0xAF143CD8)
"""The start of the result of llama_state_seq_get_data, before the sequence's number (llama-context.cpp, io_magic). The
library's own files have neither."""
FORMAT = 1
MAX_DESCRIPTION_BYTES = 1 << 20
_MAGIC = b"LLPSLOT\0"
_HEAD = struct.Struct("<III")
_PACKED = struct.Struct("<iII")
_FOOT = struct.Struct("<8sIIQ")
_DIGEST_BYTES = 32
_PREFIX_BYTES = len(DATA_PREFIX) + 4
_PACKED_MARK = struct.pack("<i", -1)  # the first of packed words, which is no token

SavedTokens = tuple[list[int], Spans]
"""Tokens, and the media that the negative ones represent."""
_Count = Annotated[int, Field(ge=0)]
LoraSet = tuple[tuple[str, FiniteFloat], ...]
"""Sorted (hash of an adapter's content, scale), as ids and paths differ between machines."""


@dataclass(frozen=True, slots=True)
class Description:
    """Everything that a saved slot's cells depend on; ``media``: the fingerprint of the projector if they hold media.

    ``lora`` computed the cells from ``lora_start`` on. ``lora_for_all`` was the default set at that time. ``n_exact``
    as in `CacheEntry`; None = all.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    origin: Mapping[str, str | int]
    lora: LoraSet
    lora_start: _Count | None
    lora_for_all: LoraSet
    n_tokens: _Count
    n_exact: _Count | None
    checkpoints: tuple[tuple[_Count, _Count], ...]  # tokens before each, bytes of its state
    scope: str  # `engine.cache.scope`
    media: str
    blake2b: str = ""  # of the content; set by `encode`


def encode(saved: CacheEntry, description: Description, secret: bytes = b"") -> Iterator[bytes | memoryview]:
    """Yield the parts of the file without copying the state. The key `secret` (`signing_key`) signs the file."""
    if not saved.state.startswith(DATA_PREFIX):
        raise InternalError("the library returned a state in an unknown format")
    state = memoryview(saved.state)[_PREFIX_BYTES:]
    words = _words(saved.tokens, saved.media)
    start = _HEAD.pack(STATE_MAGIC, STATE_VERSION, len(words) // 4) + words
    content = _blake2b()
    n_bytes = 0
    parts: list[bytes | memoryview] = [start, state, *saved.checkpoints.values()]
    for part in parts:
        content.update(part)
        n_bytes += len(part)
        yield part
    text = json.dumps(asdict(replace(description, blake2b=content.hexdigest())), sort_keys=True).encode()
    end = text + _FOOT.pack(_MAGIC, FORMAT, len(text), n_bytes)
    yield end + _end_digest(end, secret)


@dataclass(frozen=True, slots=True)
class Opened:
    """A file whose description was verified, and whose content was not read yet."""

    file: BinaryIO
    description: Description
    n_bytes: int  # of the content

    def read(self, n_vocab: int, adapter_set: AdapterSet, *, states: bool = True) -> CacheEntry:
        """Return the content as an entry of `adapter_set`, with states as llama_state_seq_get_data returns them.
        Without `states`, only the tokens are read, which may be corrupt.

        Raises `InvalidRequest` if any byte was changed, or if a token is not in the vocabulary.
        """
        found = self.description
        self.file.seek(0)
        head = self.file.read(_HEAD.size)
        magic, version, n_words = _HEAD.unpack(head)
        words = self.file.read(4 * min(n_words, (self.n_bytes - len(head)) // 4))
        state, parts = b"", [b""] * len(found.checkpoints)
        if states:
            n_state = self.n_bytes - len(head) - len(words) - sum(size for _, size in found.checkpoints)
            if n_state < 0:
                raise InvalidRequest("it is damaged: its checkpoints are larger than it is")
            state = _read(self.file, n_state, DATA_PREFIX + bytes(4))
            parts = [_read(self.file, size) for _, size in found.checkpoints]
            content = _blake2b()
            every: list[bytes | memoryview] = [head, words, memoryview(state)[_PREFIX_BYTES:], *parts]
            for part in every:
                content.update(part)
            if content.hexdigest() != found.blake2b:
                raise InvalidRequest("it is damaged: its content is not what was saved")
            if (magic, version) != (STATE_MAGIC, STATE_VERSION):
                raise InvalidRequest(f"its state has the version {version}, this llama.cpp reads {STATE_VERSION}")
        tokens, media = _parse_words(words, found.n_tokens, n_vocab)
        checkpoints = {n: part for (n, _), part in zip(found.checkpoints, parts, strict=True)}
        n_exact = NEVER if found.n_exact is None else found.n_exact
        return CacheEntry(tokens, adapter_set, n_exact, checkpoints, media, state=state)


def open_saved(file: BinaryIO, size: int, secret: bytes = b"") -> Opened:
    """Read the description of a file of `size` bytes. If `secret` is not empty, it must have signed the file.

    Raises `InvalidRequest` with the reason.
    """
    if size < _HEAD.size or struct.unpack("<I", file.read(4))[0] != STATE_MAGIC:
        raise InvalidRequest("it is no saved slot")
    end = _end(file, size)
    if not end:
        raise InvalidRequest("it is truncated: Llamapool's part at its end is missing")
    _, version, n_text, n_content = _FOOT.unpack_from(end)
    if n_text > MAX_DESCRIPTION_BYTES or n_content < _HEAD.size or n_content + n_text + len(end) != size:
        raise InvalidRequest(f"it is truncated or damaged: it has {size} bytes")
    file.seek(n_content)
    text = file.read(n_text)
    if not hmac.compare_digest(_end_digest(text + end[: _FOOT.size], secret), end[_FOOT.size :]):
        unsigned = ", or was not signed with this server's secret" if secret else ""
        raise InvalidRequest(f"it is damaged: its description is not what was saved{unsigned}")
    if version != FORMAT:
        raise InvalidRequest(f"it has the format {version}, this Llamapool reads {FORMAT}")
    try:
        description = _reader().validate_json(text)
    except ValidationError as error:
        raise InvalidRequest(f"its description cannot be read: {error.errors()[0]['msg']}") from None
    positions = [n_tokens for n_tokens, _ in description.checkpoints]
    if positions != sorted(set(positions)) or not all(0 < n <= description.n_tokens for n in positions):
        raise InvalidRequest("its description cannot be read: its checkpoints are not in order")
    return Opened(file, description, n_content)


@cache
def _reader() -> TypeAdapter[Description]:
    return TypeAdapter(Description)


def signing_key(secret: bytes) -> bytes:
    """Return the key for `encode` and `open_saved` from a secret of any length; keyed BLAKE2b is a MAC (RFC 7693)."""
    return hashlib.blake2b(secret, digest_size=_DIGEST_BYTES, person=b"llamapool slots").digest()


def _end_digest(end: bytes, secret: bytes) -> bytes:
    return hashlib.blake2b(end, digest_size=_DIGEST_BYTES, key=secret).digest()


def read_foreign(file: BinaryIO, size: int, n_vocab: int) -> tuple[SavedTokens, bytes] | None:
    """Return the tokens, media and state of a file that llama-server wrote; None for files of Llamapool and others.

    A file of Llamapool whose tokens another program has replaced by a plain list is read as llama-server reads it.

    Nothing proves that the file is complete, or to which model it belongs: the library checks the first when it reads
    the state, and the caller is responsible for the second. Raises `InvalidRequest`.
    """
    if size < _HEAD.size + 4:
        return None
    magic, version, n_words = _HEAD.unpack(file.read(_HEAD.size))
    words = file.read(4 * min(n_words, (size - _HEAD.size) // 4))
    packed = words[:4] == _PACKED_MARK
    end = _end(file, size)
    described = _FOOT.unpack_from(end)[2] + len(end) if end else 0  # bytes of a description, which is no longer valid
    if magic != STATE_MAGIC or (packed and described):
        return None
    if version != STATE_VERSION:
        raise InvalidRequest(f"its state has the version {version}, this llama.cpp reads {STATE_VERSION}")
    n_state = size - _HEAD.size - 4 * n_words - described
    if n_state < 0:
        raise InvalidRequest(f"it is truncated: it has {size} bytes")
    if not packed:
        words = _PACKED.pack(-1, PACKED_VERSION, n_words) + words + bytes(4)
    n_tokens = struct.unpack_from("<I", words, _PACKED.size - 4)[0] if len(words) >= _PACKED.size else 0
    text = _parse_words(words, n_tokens, n_vocab)
    file.seek(_HEAD.size + 4 * n_words)
    return text, _read(file, n_state, DATA_PREFIX + bytes(4))


def _read(file: BinaryIO, n: int, prefix: bytes = b"") -> bytes:
    """Return `prefix` and the next `n` bytes, read without a copy. Raises `InvalidRequest` if the file is shorter."""
    data, view = new_bytes(len(prefix) + n)
    view[: len(prefix)] = prefix
    at = len(prefix)
    while at < len(data):
        n_read = file.readinto(view[at:])  # type: ignore[attr-defined]
        if not n_read:
            raise InvalidRequest(f"it is truncated: {len(data) - at} bytes are missing")
        at += n_read
    return data


def _end(file: BinaryIO, size: int) -> bytes:
    """Return the numbers and the hash at the end of a file that `encode` wrote; b"" for other files."""
    end_bytes = _FOOT.size + _DIGEST_BYTES
    file.seek(max(size - end_bytes, 0))
    end = file.read(end_bytes)
    return end if len(end) == end_bytes and end.startswith(_MAGIC) else b""


def _words(tokens: list[int], media: Spans) -> bytes:
    """Return tokens and media packed like llama-server's."""
    n = len(tokens)
    plain = tokens if not media else [max(token, -1) for token in tokens]
    words = struct.pack(f"<{_PACKED.size}s{n}iI", _PACKED.pack(-1, PACKED_VERSION, n), *plain, len(media))
    words += struct.pack(f"<{len(media)}I", *(span.start for span in media))
    words += b"".join(struct.pack("<I", len(span.record)) + span.record for span in media)
    return words + bytes(-len(words) % 4)


def _parse_words(words: bytes, n_tokens: int, n_vocab: int) -> SavedTokens:
    """Return the tokens and media of packed words. Raises `InvalidRequest`."""
    if len(words) < _PACKED.size + 4 or _PACKED.unpack_from(words) != (-1, PACKED_VERSION, n_tokens):
        raise InvalidRequest("its tokens are not written as llama-server writes them")
    at = _PACKED.size + 4 * n_tokens
    if len(words) < at + 4:
        raise InvalidRequest("its tokens are truncated")
    tokens = list(struct.unpack_from(f"<{n_tokens}i", words, _PACKED.size))
    media = _media(words, at)
    for span in media:
        if tokens[span.start : span.end] != [-1] * span.n_tokens:
            raise InvalidRequest("it has a medium where its tokens have none")
        tokens[span.start : span.end] = media_tokens(span.id, span.nth, span.n_tokens)
    n_media = sum(span.n_tokens for span in media)
    if tokens and (max(tokens) >= n_vocab or -1 in tokens or sum(token < 0 for token in tokens) != n_media):
        raise InvalidRequest("it has tokens outside the model's vocabulary")
    return tokens, media


def _media(words: bytes, at: int) -> Spans:
    """Return the media in packed words, which start at `at`, after the tokens. Raises `InvalidRequest`."""
    reader = _Reader(words[at:])
    starts = [reader.number("I") for _ in range(reader.number("I"))]
    nth: dict[str, int] = {}
    media = [read_record(reader.take(reader.number("I")), start, nth) for start in starts]
    if len(reader.rest) >= 4 or any(reader.rest):
        raise InvalidRequest("it has other content than tokens and media")
    if any(one.end > other.start for one, other in pairwise(media)):
        raise InvalidRequest("its media overlap")
    return tuple(media)


def _blake2b() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)
