"""Small images, audio files and videos (by Pillow, libheif, libsndfile and FFmpeg), and builders of media files."""

import random
import struct
import wave
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

_FOLDER = Path(__file__).parent
IMAGES = (
    "tiny.png",
    "tiny-gray.png",
    "tiny-palette.png",
    "tiny.jpg",
    "tiny-progressive.jpg",
    "tiny.gif",
    "tiny.bmp",
)
EXTRA_IMAGES = ("tiny.webp", "tiny.avif", "tiny.heic")
"""Images that need Llamapool's extra `pictures`."""
VIDEOS = ("tiny.mp4", "tiny.webm")
VIDEO_WITH_AUDIO = "tiny-audio.webm"
"""A video with an audio track; its frames differ from those of `VIDEOS`."""
AUDIO_FILES = ("tiny.wav", "tiny-adpcm.wav", "tiny.mp3", "tiny.flac")
WIDTH, HEIGHT = 16, 12
"""Size of images and videos in pixels."""
N_FRAMES, FPS = 20, 8
"""Of `VIDEOS`. Frame i has red 10 i and green 128."""
SECONDS = 0.1
"""Duration of audio files, which have 22,050 samples per second."""


def media_file(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


def png(width: int, height: int, pixels: bytes | None = None) -> bytes:
    """Return an RGB image, black by default."""
    pixels, step = bytes(3 * width * height) if pixels is None else pixels, 3 * width or 1
    data = b"".join(b"\0" + pixels[at : at + step] for at in range(0, len(pixels), step))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(data, 9)) + _chunk(b"IEND", b"")


def wav(samples: bytes, rate: int = 16_000, channels: int = 1, width: int = 2) -> bytes:
    """Return a WAV file with these samples of `width` bytes."""
    file = BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setparams((channels, width, rate, 0, "NONE", ""))
        audio.writeframes(samples)
    return file.getvalue()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the file with some bytes changed or repeated, its end removed, or numbers set to extremes."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(max(1, len(result)))
        match rng.randrange(5):
            case 0:
                result[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del result[at + rng.randrange(64) :]
            case 2:
                result[at:at] = result[at : at + rng.randrange(256)]
            case 3:
                size = rng.choice((1, 2, 4))
                result[at : at + size] = rng.choice((b"\xff", b"\0", b"\x7f", b"\x80")) * size
            case 4:
                result[at : at + 4] = struct.pack(rng.choice("<>") + "I", rng.randrange(1 << 32))
    return bytes(result)


def pdf(*pages: str | None) -> bytes:
    """Return a PDF with these pages: lines of text, "" for a blank page, None for a drawing without text."""
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
    """Return a PDF of these objects; the first one is the catalog."""
    file = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, each in enumerate(objects, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    rows = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    table = b"xref\n0 %d\n0000000000 65535 f \n%btrailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return bytes(file + table % (len(objects) + 1, rows, len(objects) + 1, len(file)))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
