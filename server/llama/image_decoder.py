"""Decode images and audio in the processes of `server.media.decode`.

libmtmd decodes images, so a model receives the same pixels as in llama-server.
"""

import ctypes
from typing import Any

import llama_cpp.llama_cpp as _llama
import llama_cpp.mtmd_cpp as _bindings

from server.media.audio import samples
from server.media.header import Unreadable
from server.media.messages import IMAGE, Json, answering
from server.sandbox.worker import Answer

_mtmd: Any = _bindings
_silence = _llama.llama_log_callback(lambda level, text, data: None)  # a client's broken file is not for the log


def answerer() -> Answer:
    """Return the request handler of a decoder process."""
    _mtmd.mtmd_helper_log_set(_silence, None)
    return answering(_decoded)


def _decoded(kind: bytes, options: Json, data: bytes) -> tuple[Json, bytes]:
    """Return the size and the pixels of an image, or the number of samples and the samples of audio."""
    if kind == IMAGE:
        width, height, decoded = _pixels(data)
    else:
        decoded = samples(data, options["form"], options["rate"], options["seconds"])
        width, height = len(decoded) // 4, 1
    return {"width": width, "height": height}, decoded


def _pixels(data: bytes) -> tuple[int, int, bytes]:
    """Return width, height, and the RGB bytes of an image. Raises `Unreadable`."""
    result = _mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(
        None,
        (ctypes.c_uint8 * len(data)).from_buffer_copy(data),
        len(data),
        False,
        _mtmd.mtmd_helper_init_opt_default(),
    )
    bitmap = result.bitmap
    if not bitmap:
        raise Unreadable("the image can't be decoded")
    try:
        n_bytes = _mtmd.mtmd_bitmap_get_n_bytes(bitmap)
        width, height = _mtmd.mtmd_bitmap_get_nx(bitmap), _mtmd.mtmd_bitmap_get_ny(bitmap)
        if n_bytes != width * height * 3:
            raise Unreadable("the image can't be decoded")
        return width, height, ctypes.string_at(_mtmd.mtmd_bitmap_get_data(bitmap), n_bytes)
    finally:
        _mtmd.mtmd_bitmap_free(bitmap)
