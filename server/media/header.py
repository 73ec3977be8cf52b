"""Detects the type of a file, and the size of an image, from its first bytes before it is decoded.

The content determines the type, whatever the client or the remote server declares, as in llama.cpp
(tools/mtmd/mtmd-helper.cpp).
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from server.media.bitmap import BitmapKind

_JPEG_SIZES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))  # SOF0..15
_JPEG_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a segment
_MAX_JPEG_MARKERS = 1 << 16  # before the size, to bound the time; real files have a few hundred
_HEIC = rb"(?:hei[cxms]|hev[cx]|m[is]f1)"


FileKind = BitmapKind | Literal["video"]


class Unreadable(Exception):
    """A file can't be read. The message is for the client."""


@dataclass(frozen=True, slots=True)
class MediaHeader:
    """The type of a file, and the size of some images.

    ``form``: PNG, JPEG, GIF, BMP, WebP, AVIF, HEIC, WAV, MP3, FLAC, MP4, Matroska or AVI. ``width`` and ``height``:
    pixels for the first four, otherwise 0.
    """

    kind: FileKind
    form: str
    width: int = 0
    height: int = 0


def _unpacked(form: str, data: bytes, at: int) -> tuple[int, int]:
    try:
        first, second = struct.unpack_from(form, data, at)
    except struct.error:
        raise Unreadable("it is cut off before it says how large it is") from None
    return first, second


def _png_size(data: bytes) -> tuple[int, int]:
    at = 8
    if data[at + 4 : at + 8] == b"CgBI":  # Apple's chunk before the header
        at += 12 + _unpacked(">II", data, at)[0]
    if data[at + 4 : at + 8] != b"IHDR":
        raise Unreadable("it is a PNG without a header")
    return _unpacked(">II", data, at + 8)


def _bmp_size(data: bytes) -> tuple[int, int]:
    header_size, _ = _unpacked("<II", data, 14)
    if header_size == 12:  # OS/2's
        return _unpacked("<HH", data, 18)
    width, height = _unpacked("<ii", data, 18)
    return width, abs(height)  # a negative height means that rows start at the top


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MAX_JPEG_MARKERS):
        at = data.find(0xFF, at)  # like stb_image, search for the next marker
        if not 0 <= at <= len(data) - 4:
            break
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _JPEG_SIZES:
            height, width = _unpacked(">HH", data, at + 5)
            return width, height
        elif marker in _JPEG_ALONE or marker == 0:
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4]))
    raise Unreadable("it is cut off before it says how large it is")


_FORMS: tuple[tuple[str, FileKind, bytes, Callable[[bytes], tuple[int, int]] | None], ...] = (
    ("PNG", "image", rb"\x89PNG\r\n\x1a\n", _png_size),
    ("JPEG", "image", rb"\xff\xd8\xff", _jpeg_size),
    ("GIF", "image", rb"GIF8[79]a", lambda data: _unpacked("<HH", data, 6)),
    ("BMP", "image", rb"BM", _bmp_size),
    ("WAV", "audio", rb"RIFF.{4}WAVE", None),
    ("FLAC", "audio", rb"fLaC", None),
    ("MP3", "audio", rb"ID3|\xff[\xe0-\xff]", None),
    ("WebP", "image", rb"RIFF.{4}WEBP", None),
    ("AVI", "video", rb"RIFF.{4}AVI ", None),
    ("Matroska", "video", rb"\x1aE\xdf\xa3", None),  # also WebM
    ("AVIF", "image", rb".{4}ftyp(?:avi[fs]|%b.{4,48}avif)" % _HEIC, None),
    ("HEIC", "image", rb".{4}ftyp%b" % _HEIC, None),
    ("MP4", "video", rb".{4}ftyp", None),  # also QuickTime
)
"""Names, kinds, patterns of the first bytes, and size functions. The size of an ISO media file may be anywhere in it.
"""
_UNSUPPORTED = (("TIFF", rb"II\*\0|MM\0\*"), ("Ogg", rb"OggS"), ("PDF", rb"%PDF-"), ("SVG", rb"<svg"))
"""Unsupported types that clients send."""


def read_header(data: bytes) -> MediaHeader:
    """Return the header. Raises `Unreadable` for an unsupported type and for a file that ends before its size."""
    for form, kind, pattern, size in _FORMS:
        if re.match(pattern, data, re.DOTALL):
            width, height = (0, 0) if size is None else size(data)
            if size is not None and (width <= 0 or height <= 0):
                raise Unreadable(f"it is a {form} of {width} x {height} pixels")
            return MediaHeader(kind, form, width, height)
    for name, pattern in _UNSUPPORTED:
        if re.match(pattern, data):
            raise Unreadable(f"it is {name}; send PNG, JPEG, GIF or BMP, WAV, MP3 or FLAC")
    raise Unreadable("it is neither PNG, JPEG, GIF or BMP nor WAV, MP3 or FLAC" if data else "it is empty")
