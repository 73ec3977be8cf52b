"""Detects the type of a file, and the size of an image, from its first bytes before it is decoded.

The content determines the type, whatever the client or the remote server declares, as in llama.cpp
(tools/mtmd/mtmd-helper.cpp).
"""

import struct
from dataclasses import dataclass
from typing import Literal

from server.media.bitmap import BitmapKind

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_SIZES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))  # SOF0..15
_JPEG_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a segment
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_UNREAD = (  # unsupported types that clients send: name, offset and magic bytes
    ("TIFF", 0, (b"II*\0", b"MM\0*")),
    ("Ogg", 0, (b"OggS",)),
    ("PDF", 0, (b"%PDF-",)),
    ("SVG", 0, (b"<svg",)),
)


FileKind = BitmapKind | Literal["video"]


class Unreadable(Exception):
    """A file that can't be read. The message is for the client."""


@dataclass(frozen=True, slots=True)
class MediaHeader:
    """``form``: PNG, JPEG, GIF, BMP, WebP, AVIF, HEIC, WAV, MP3, FLAC, MP4, Matroska or AVI. ``width`` and ``height``:
    pixels for the first four, else 0.
    """

    kind: FileKind
    form: str
    width: int = 0
    height: int = 0


def read_header(data: bytes) -> MediaHeader:
    """Return the header. Raises `Unreadable` for an unsupported type and for a file that ends before its size."""
    if data.startswith(_PNG):
        return _picture("PNG", _png_size(data))
    if data.startswith(b"\xff\xd8\xff"):
        return _picture("JPEG", _jpeg_size(data))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _picture("GIF", _unpacked("<HH", data, 6))
    if data.startswith(b"BM"):
        return _picture("BMP", _bmp_size(data))
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return MediaHeader("audio", "WAV")
    if data.startswith(b"fLaC"):
        return MediaHeader("audio", "FLAC")
    if data.startswith(b"ID3") or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return MediaHeader("audio", "MP3")
    found = _boxed(data)
    if found is not None:
        return found
    for name, at, words in _UNREAD:
        if data.startswith(words, at):
            raise Unreadable(f"it is {name}; send PNG, JPEG, GIF or BMP, WAV, MP3 or FLAC")
    raise Unreadable("it is neither PNG, JPEG, GIF or BMP nor WAV, MP3 or FLAC" if data else "it is empty")


def _boxed(data: bytes) -> MediaHeader | None:
    """Return the type of an ISO base media file, whose size may be anywhere in the file."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return MediaHeader("image", "WebP")
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return MediaHeader("video", "AVI")
    if data.startswith(b"\x1aE\xdf\xa3"):  # also WebM
        return MediaHeader("video", "Matroska")
    if data[4:8] != b"ftyp":
        return None
    if data.startswith((b"avif", b"avis"), 8) or (data.startswith(_HEIC, 8) and b"avif" in data[16:64]):
        return MediaHeader("image", "AVIF")
    return MediaHeader("image", "HEIC") if data.startswith(_HEIC, 8) else MediaHeader("video", "MP4")  # also QuickTime


def _picture(form: str, size: tuple[int, int]) -> MediaHeader:
    width, height = size
    if width <= 0 or height <= 0:
        raise Unreadable(f"it is a {form} of {width} x {height} pixels")
    return MediaHeader("image", form, width, height)


def _unpacked(form: str, data: bytes, at: int) -> tuple[int, int]:
    try:
        first, second = struct.unpack_from(form, data, at)
    except struct.error:
        raise Unreadable("it is cut off before it says how large it is") from None
    return first, second


def _png_size(data: bytes) -> tuple[int, int]:
    at = len(_PNG)
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
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            at += 1  # stb_image looks for the next marker, too
            continue
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
