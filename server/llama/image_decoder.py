"""Decodes images and audio for the processes of `server.media.decode`. The library (libmtmd) decodes images with
stb_image, so a model receives the same pixels as in llama-server.
"""

import ctypes
from typing import Any

import llama_cpp.llama_cpp as _llama
import llama_cpp.mtmd_cpp as _bindings

from server.media.header import Unreadable
from server.media.messages import IMAGE, Json, answering
from server.media.sound import samples
from server.sandbox.worker import Answer

_mtmd: Any = _bindings
_silence = _llama.llama_log_callback(lambda level, text, data: None)  # what is wrong with a client's file is its affair


def answerer() -> Answer:
    """Return the request handler of a decoder process."""
    _mtmd.mtmd_helper_log_set(_silence, None)
    return answering(_decoded)


def _decoded(what: bytes, wanted: Json, data: bytes) -> tuple[Json, bytes]:
    if what == IMAGE:
        width, height, found = _pixels(data)
    else:
        found = samples(data, wanted["form"], wanted["rate"], wanted["seconds"])
        width, height = len(found) // 4, 1
    return {"width": width, "height": height}, found


def _pixels(data: bytes) -> tuple[int, int, bytes]:
    """Width, height, and red, green and blue of each pixel. Raises `Unreadable`."""
    found = _mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(
        None,
        (ctypes.c_uint8 * len(data)).from_buffer_copy(data),
        len(data),
        False,
        _mtmd.mtmd_helper_init_opt_default(),
    )
    if not found.bitmap:
        raise Unreadable("the image can't be decoded")
    try:
        n_bytes = _mtmd.mtmd_bitmap_get_n_bytes(found.bitmap)
        width, height = _mtmd.mtmd_bitmap_get_nx(found.bitmap), _mtmd.mtmd_bitmap_get_ny(found.bitmap)
        if n_bytes != width * height * 3:
            raise Unreadable("the image can't be decoded")
        return width, height, ctypes.string_at(_mtmd.mtmd_bitmap_get_data(found.bitmap), n_bytes)
    finally:
        _mtmd.mtmd_bitmap_free(found.bitmap)
