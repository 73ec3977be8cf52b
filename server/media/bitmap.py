"""A picture or a piece of sound, decoded: what a projector's preprocessing takes."""

from dataclasses import dataclass
from typing import Literal

BitmapKind = Literal["image", "audio"]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Bitmap:
    """``data``: of an image ``width`` x ``height`` pixels of three bytes, red, green and blue, row by row; of audio
    ``width`` samples of one channel, 32-bit floats at the model's sample rate, and ``height`` is 1.

    ``id``: the SHA-256 of the file's bytes in hexadecimal, as llama-server names media; of a frame of a video
    ``<hash>+<number>``. ``mergeable``: a frame that some models see together with the next one.
    """

    kind: BitmapKind
    width: int
    height: int
    data: bytes
    id: str
    mergeable: bool = False
