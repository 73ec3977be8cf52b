"""The description of a medium in a saved slot, as libmtmd writes it (tools/mtmd/mtmd.cpp, mtmd_input_chunk_save): all
but what it looks like. It is read here, since the library would not survive every file.

::

    u64 version | u32 type (1 image, 2 audio) | u64 number of text tokens, 0
    u8 1 | u32 nx | u32 ny | u32 kind of positions | u32 image index | u32 frames in one | id | batch    or u8 0
    u8 1 | u32 number of tokens | id | batch                                                            or u8 0

An id is u64 length and bytes; a batch is u8 and u64 number of entries of 14 bytes.
"""

import struct

from server.engine.media import MediaSpan
from server.errors import InvalidRequest

VERSION = 2  # MTMD_SERIALIZATION_VERSION
_IMAGE, _AUDIO = 1, 2
_NORMAL, _MROPE, _HUNYUAN = 0, 1, 2  # mtmd_pos_type
_HEAD = struct.Struct("<QIQ")
_IMAGE_HEAD = struct.Struct("<IIIII")
_ENTRY_BYTES = 14
MOST_TOKENS = 1 << 24


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, n: int) -> bytes:
        if n > len(self._data) - self._at:
            raise InvalidRequest("it describes a medium that is cut off")
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
    def at_end(self) -> bool:
        return self._at == len(self._data)


def read_record(record: bytes, start: int, nth: dict[str, int]) -> MediaSpan:
    """The span at `start` that `record` describes; `nth` counts those of each id. Raises `InvalidRequest`."""
    reader = _Reader(record)
    version, kind, n_text = _HEAD.unpack(reader.take(_HEAD.size))
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
    if found is None or not reader.at_end or not 0 < found[0] <= MOST_TOKENS or found[1] <= 0:
        raise InvalidRequest("it describes a medium that can't be")
    n_tokens, n_pos, linear, id_ = found
    nth[id_] = nth.get(id_, -1) + 1
    return MediaSpan(start, n_tokens, n_pos, linear, id_, nth[id_], record)


def _image(reader: _Reader) -> tuple[int, int, bool, str] | None:
    """Tokens, positions, whether each token has the next one, and the id."""
    nx, ny, positions, _, n_merged = _IMAGE_HEAD.unpack(reader.take(_IMAGE_HEAD.size))
    id_, n_entries = reader.id(), reader.n_entries()
    if positions == _HUNYUAN:
        n_tokens = (nx + 1) * ny + 2
        return n_tokens, n_tokens, True, id_
    n_tokens = nx * ny * (-(-n_entries // max(n_merged, 1)))
    if positions == _MROPE:
        return n_tokens, max(nx, ny), False, id_
    return (n_tokens, n_tokens, True, id_) if positions == _NORMAL else None
