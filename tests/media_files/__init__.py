"""Small pictures, sounds and videos (by Pillow, libheif, libsndfile and FFmpeg), and what can be made of them."""

import random
import struct
import wave
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

_FOLDER = Path(__file__).parent
IMAGE_DECODER = (
    "tiny.png",
    "tiny-gray.png",
    "tiny-palette.png",
    "tiny.jpg",
    "tiny-progressive.jpg",
    "tiny.gif",
    "tiny.bmp",
)
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


def png(width: int, height: int, pixels: bytes | None = None) -> bytes:
    """An RGB picture, black unless its pixels are given."""
    pixels, step = bytes(3 * width * height) if pixels is None else pixels, 3 * width or 1
    data = b"".join(b"\0" + pixels[at : at + step] for at in range(0, len(pixels), step))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(data, 9)) + _chunk(b"IEND", b"")


def wav(samples: bytes, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    """A sound of these samples, `width` bytes each."""
    file = BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", ""))
        sound.writeframes(samples)
    return file.getvalue()


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


def pdf(*pages: str | None) -> bytes:
    """Return a PDF. A page is lines of text, "" is a blank page, and None is one with a drawing and no text."""
    n = len(pages)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(n))
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {n}>>"]
    objects.append("<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>")
    for i, page in enumerate(pages):
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 400]/Contents {5 + 2 * i} 0 R/Resources<</Font<</F 3 0 R>>>>>>"
        )
        lines = (page or "").replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)").splitlines()
        content = "BT /F 12 Tf 14 TL 20 380 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
        if page is None:
            content = "1 0 0 rg 100 100 50 50 re f"
        objects.append(f"<</Length {len(content)}>>stream\n{content}\nendstream")
    return pdf_of([each.encode("latin-1") for each in objects])


def pdf_of(objects: Sequence[bytes]) -> bytes:
    """Return a PDF of these objects, the first of which is the catalogue."""
    found = bytearray(b"%PDF-1.7\n")
    places = []
    for number, each in enumerate(objects, 1):
        places.append(len(found))
        found += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    rows = b"".join(b"%010d 00000 n \n" % place for place in places)
    table = b"xref\n0 %d\n0000000000 65535 f \n%btrailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return bytes(found + table % (len(objects) + 1, rows, len(objects) + 1, len(found)))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
