"""Small pictures, sounds and videos (by Pillow, libheif, libsndfile and FFmpeg), and what can be made of them."""

import random
import struct
import zlib
from pathlib import Path

_FOLDER = Path(__file__).parent
PICTURES = ("tiny.png", "tiny-gray.png", "tiny-palette.png", "tiny.jpg", "tiny-progressive.jpg", "tiny.gif", "tiny.bmp")
PHOTOS = ("tiny.webp", "tiny.avif", "tiny.heic")
"""Pictures of the extra of that name."""
VIDEOS = ("tiny.mp4", "tiny.webm")
SOUNDING_VIDEO = "tiny-sounding.webm"
"""One with sound, and other frames."""
SOUNDS = ("tiny.wav", "tiny-adpcm.wav", "tiny.mp3", "tiny.flac")
WIDTH, HEIGHT = 16, 12
"""Of the pictures and the videos."""
N_FRAMES, FPS = 20, 8
"""Of the videos: the red of the i-th frame is 10 i, its green 128."""
SECONDS = 0.1
"""Of the sounds, at 22,050 samples a second."""


def media_file(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


def png(width: int, height: int, rows: bytes | None = None) -> bytes:
    """An RGB picture; black where no rows (with a filter byte in front of each) are given."""
    data = rows if rows is not None else (b"\0" + b"\0" * 3 * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(data, 9)) + _chunk(b"IEND", b"")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """With a few bytes changed, cut off, doubled, or numbers set to their extremes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(max(1, len(found)))
        match rng.randrange(5):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at + rng.randrange(64) :]
            case 2:
                found[at:at] = found[at : at + rng.randrange(256)]
            case 3:
                size = rng.choice((1, 2, 4))
                found[at : at + size] = rng.choice((b"\xff", b"\0", b"\x7f", b"\x80")) * size
            case 4:
                found[at : at + 4] = struct.pack(rng.choice("<>") + "I", rng.randrange(1 << 32))
    return bytes(found)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
