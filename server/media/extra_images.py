"""Decodes WebP, AVIF and HEIC with Pillow and libheif (the extra ``pictures``). Only runs in a process of `decode`."""

import warnings
from io import BytesIO

import pi_heif
from PIL import AvifImagePlugin, Image, ImageOps, UnidentifiedImageError, WebPImagePlugin

from server.media.header import Unreadable
from server.media.messages import Json, answering
from server.sandbox.worker import Answer

_FORMATS = (WebPImagePlugin.WebPImageFile.format, AvifImagePlugin.AvifImageFile.format, "HEIF")
_BROKEN = (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, RuntimeError, OverflowError)


def answerer() -> Answer:
    pi_heif.register_heif_opener()
    pi_heif.options.DECODE_THREADS = AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.init()  # Pillow loads plugins on first use, but the sandbox then denies loading files
    Image.MAX_IMAGE_PIXELS = None  # `_pixels` checks the limit
    warnings.simplefilter("ignore")
    return answering(_pixels)


def _pixels(_: bytes, options: Json, data: bytes) -> tuple[Json, bytes]:
    """Return the first image, rotated as its EXIF data specifies, without transparency."""
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > options["pixels"]:
                most = f"at most {options['pixels']} are possible"
                raise Unreadable(f"it is an image of {width} x {height} pixels, {most}")
            shown = ImageOps.exif_transpose(image).convert("RGB")
    except _BROKEN:
        raise Unreadable("the image can't be decoded") from None
    return {"width": shown.width, "height": shown.height}, shown.tobytes()
