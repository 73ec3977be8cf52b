"""Small pictures and sounds (made with Pillow and libsndfile), and what can be made of them."""

import struct
import zlib
from pathlib import Path

_FOLDER = Path(__file__).parent
PICTURES = ("tiny.png", "tiny-gray.png", "tiny-palette.png", "tiny.jpg", "tiny-progressive.jpg", "tiny.gif", "tiny.bmp")
SOUNDS = ("tiny.wav", "tiny-adpcm.wav", "tiny.mp3", "tiny.flac")
WIDTH, HEIGHT = 16, 12
"""Of the pictures."""
SECONDS = 0.1
"""Of the sounds, at 22,050 samples a second."""


def media_file(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


def png(width: int, height: int, rows: bytes | None = None) -> bytes:
    """An RGB picture; black where no rows (with a filter byte in front of each) are given."""
    data = rows if rows is not None else (b"\0" + b"\0" * 3 * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(data, 9)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
