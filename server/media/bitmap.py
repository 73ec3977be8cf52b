"""Decoded images, audio and video: the input of a multimodal projector."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

BitmapKind = Literal["image", "audio"]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Bitmap:
    """``data``: of an image ``width`` x ``height`` pixels of three bytes, red, green and blue, row by row; of audio
    ``width`` samples of one channel, 32-bit floats at the model's sample rate, and ``height`` is 1.

    ``id``: the SHA-256 of the file's bytes in hexadecimal, as llama-server names media. ``again``: of a file that has
    been decoded before, and has no ``data`` here: how to get it; blocking, raises `InvalidRequest`.
    ``of_video``: it is a video's, of which some models take two together.
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
        """``data``, now at the latest; empty of a bitmap that is nothing but its size."""
        return self.data if self.data or self.again is None else self.again()


@dataclass(frozen=True, slots=True)
class Video:
    parts: tuple[str | Bitmap, ...]  # of its prompt: frames with timestamps between them
    has_audio: bool = False  # an audio track, which is ignored


@dataclass(frozen=True, slots=True)
class Document:
    """A document's text in pieces (`PlainText`), with images of the pages that have no text."""

    parts: tuple[str | Bitmap, ...]
    media_type: str  # one of a fixed set
    name: str = ""  # of a stored file
    notes: tuple[str, ...] = ()  # what of the document is not shown, for the client


Decoded: TypeAlias = Bitmap | Video | Document
"""What a file becomes."""


def n_bytes_of(found: Decoded) -> int:
    """Return the bytes of pixels, samples and text in `found`."""
    return sum(len(part) if isinstance(part, str) else len(part.data) for part in found.parts)


def bitmaps_of(found: Decoded) -> list[Bitmap]:
    return [part for part in found.parts if isinstance(part, Bitmap)]
