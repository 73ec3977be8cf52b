"""Decoded images, audio and video: the input of a multimodal projector."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

BitmapKind = Literal["image", "audio"]
MAX_SAMPLE = 1e6
"""Limit of audio samples; full scale is 1. The embeddings of larger ones might not be finite."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Bitmap:
    """A decoded image or audio file, or a video frame.

    ``data`` of an image: ``width`` x ``height`` pixels of three bytes, red, green and blue, row by row. ``data`` of
    audio: ``width`` mono samples, 32-bit floats at the model's sample rate; ``height`` is 1. ``id``: the SHA-256 of the
    file in hexadecimal, as in llama-server. ``again``: decodes the file again if ``data`` is empty because the file is
    cached; blocking, raises `InvalidRequest`. ``of_video``: a frame, of which some models encode two together.
    """

    kind: BitmapKind
    width: int
    height: int
    data: bytes
    id: str
    of_video: bool = False
    again: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)

    @property
    def parts(self) -> tuple["str | Bitmap", ...]:
        return (self,)

    def decoded(self) -> bytes:
        """Return ``data``, decoded again if necessary; empty for a bitmap of which only the size is known."""
        return self.data if self.data or self.again is None else self.again()


@dataclass(frozen=True, slots=True)
class Video:
    parts: tuple[str | Bitmap, ...]  # of the prompt: frames with timestamps between them
    has_audio: bool = False  # an audio track, which is ignored


@dataclass(frozen=True, slots=True)
class Document:
    """A document's text in pieces (`PlainText`), with images of pages without text."""

    parts: tuple[str | Bitmap, ...]
    media_type: str  # one of a fixed set
    name: str = ""  # of a stored file
    notes: tuple[str, ...] = ()  # parts of the document that are not shown, for the client


Decoded: TypeAlias = Bitmap | Video | Document
"""A decoded file."""


def n_bytes_of(decoded: Decoded) -> int:
    """Return the number of bytes of pixels, samples and text."""
    return sum(len(part) if isinstance(part, str) else len(part.data) for part in decoded.parts)


def bitmaps_of(decoded: Decoded) -> list[Bitmap]:
    return [part for part in decoded.parts if isinstance(part, Bitmap)]
