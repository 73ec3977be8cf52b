"""Decodes WebP, AVIF and HEIC with Pillow and libheif (the extra ``pictures``). Only runs in a process of `decode`."""

import warnings
from io import BytesIO

import pi_heif
from PIL import AvifImagePlugin, Image, ImageOps, UnidentifiedImageError, WebPImagePlugin

from server.media.decode import PHOTO_WANTED, SIZE, UNREADABLE
from server.media.header import Unreadable
from server.sandbox.worker import Answer

_FORMATS = (WebPImagePlugin.WebPImageFile.format, AvifImagePlugin.AvifImageFile.format, "HEIF")
_BROKEN = (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError, RuntimeError, OverflowError)


def answerer() -> Answer:
    """Return the request handler of a decoder process."""
    pi_heif.register_heif_opener()
    pi_heif.options.DECODE_THREADS = AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.init()  # Pillow loads its parts when they are first needed, which is too late here
    Image.MAX_IMAGE_PIXELS = None  # `pixels` gets the limit
    warnings.simplefilter("ignore")
    return _answer


def _answer(what: bytes, request: bytes) -> tuple[bytes, bytes]:
    (max_pixels,) = PHOTO_WANTED.unpack_from(request)
    try:
        width, height, found = _pixels(request[PHOTO_WANTED.size :], max_pixels)
    except Unreadable as fault:
        return UNREADABLE, str(fault).encode()
    return what, SIZE.pack(width, height) + found


def _pixels(data: bytes, max_pixels: int) -> tuple[int, int, bytes]:
    """Return the first image, rotated as its EXIF data specifies, without transparency."""
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise Unreadable(f"it is an image of {width} x {height} pixels, at most {max_pixels} are possible")
            shown = ImageOps.exif_transpose(image).convert("RGB")
    except _BROKEN:
        raise Unreadable("the image can't be decoded") from None
    return shown.width, shown.height, shown.tobytes()
