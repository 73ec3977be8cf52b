"""Sounds in a real server with a projector that hears: the samples are the library's, in chats and transcriptions."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from server.app import PICTURES
from server.llama.media.chunks import M, start_media
from server.media.bitmap import bitmaps_of
from server.media.decode import Decoder
from tests.media_files import SOUNDS, media_file
from tests.support.ggufs.projector import TinyProjector, projector_file

SOUND = media_file("tiny.wav")


@pytest.fixture(scope="module")
def ear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return projector_file(tmp_path_factory.mktemp("ear"), TinyProjector("qwen3a"))


def test_samples_are_those_of_the_library(ear: Path) -> None:
    start_media()
    params = M.mtmd_context_params_default()
    params.use_gpu, params.warmup, params.print_timings = False, False, False
    context = M.mtmd_init_from_file(str(ear).encode(), None, params)
    assert context
    decoder = Decoder(PICTURES)
    try:
        rate = M.mtmd_get_audio_sample_rate(context)
        for name in SOUNDS:
            data = media_file(name)
            held = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            options = M.mtmd_helper_init_opt_default()
            bitmap = M.mtmd_helper_bitmap_init_from_buf_wrapper(context, held, len(data), False, options).bitmap
            assert bitmap, name
            wanted = ctypes.string_at(M.mtmd_bitmap_get_data(bitmap), M.mtmd_bitmap_get_n_bytes(bitmap))
            name_of_it = M.mtmd_bitmap_get_id(bitmap)
            M.mtmd_bitmap_free(bitmap)
            (found,) = bitmaps_of(decoder.decode(data, rate))
            heard, expected = (np.frombuffer(each, np.float32) for each in (found.data, wanted))
            assert heard.shape == expected.shape, name
            # The same code compiled otherwise: resampling rounds otherwise, and an MP3 becomes 16 bits on its way.
            assert np.abs(heard - expected).max() < (1 / 32768 if name == "tiny.mp3" else 1e-6), name
            assert found.id.encode() == name_of_it
    finally:
        decoder.close()
        M.mtmd_free(context)
