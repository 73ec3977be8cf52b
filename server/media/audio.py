"""Decodes WAV, MP3 and FLAC to mono samples with miniaudio, like libmtmd (tools/mtmd/mtmd-helper.cpp,
decode_audio_from_buf). The number of samples follows from the file's header; missing ones are silence.

libmtmd's own decoder needs a loaded projector. Only runs in a process of `decode`.
"""

from typing import Any

import miniaudio as _bindings
import numpy as np

from server.media.bitmap import MAX_SAMPLE
from server.media.header import Unreadable

_STEP = 1 << 16  # samples at a time
_FLOAT_BYTES = 4
_miniaudio: Any = _bindings  # it has no types
_lib, _ffi = _miniaudio.lib, _miniaudio.ffi
_INFOS = {"WAV": _miniaudio.wav_get_info, "MP3": _miniaudio.mp3_get_info, "FLAC": _miniaudio.flac_get_info}


def samples(data: bytes, form: str, rate: int, max_seconds: float) -> bytes:
    """Return little-endian 32-bit floats at that sample rate. Raises `Unreadable`."""
    try:
        info = _INFOS[form](data)
    except (_miniaudio.MiniaudioError, ZeroDivisionError):
        raise Unreadable(f"it is not a valid {form}") from None
    if info.num_frames > max_seconds * info.sample_rate:
        raise Unreadable(f"it lasts {info.num_frames / info.sample_rate:.0f} s, at most {max_seconds:g} are possible")
    n_samples = resampled_length(rate, info.sample_rate, info.num_frames)
    if not n_samples:
        raise Unreadable("it is silent: there is no sample in it")
    if n_samples == 1:
        raise Unreadable("it has only one sample")
    decoded = _read(data, rate, n_samples)
    values = np.frombuffer(decoded, np.float32)
    if not (values.min() > -MAX_SAMPLE and values.max() < MAX_SAMPLE):  # also rejects NaN
        raise Unreadable(f"it has samples that are not numbers from {-MAX_SAMPLE:g} to {MAX_SAMPLE:g}")
    return decoded


def resampled_length(rate_out: int, rate_in: int, n_in: int) -> int:
    """Return the number of samples that miniaudio produces from `n_in` (ma_calculate_frame_count_after_resampling)."""
    if not (rate_in and n_in):
        return 0
    if rate_in == rate_out:
        return n_in
    n_out = n_in * rate_out // rate_in
    needed = n_out * (rate_in % rate_out) + n_out * (rate_in // rate_out) // rate_out
    return n_out + 1 if needed <= n_in else n_out


def _read(data: bytes, rate: int, n_samples: int) -> bytes:
    config = _lib.ma_decoder_config_init(_miniaudio.SampleFormat.FLOAT32.value, 1, rate)
    decoder = _ffi.new("ma_decoder *")
    source = _ffi.from_buffer(data)  # keep a reference: the decoder reads from it
    if _lib.ma_decoder_init_memory(source, len(data), _ffi.addressof(config), decoder) != _lib.MA_SUCCESS:
        raise Unreadable("its audio can't be decoded")
    try:
        output = bytearray(n_samples * _FLOAT_BYTES)
        start, n_done = _ffi.from_buffer(output), 0
        n_read = _ffi.new("ma_uint64 *")
        while n_done < n_samples:
            n = min(_STEP, n_samples - n_done)
            result = _lib.ma_decoder_read_pcm_frames(decoder, start + n_done * _FLOAT_BYTES, n, n_read)
            if result != _lib.MA_SUCCESS or not n_read[0]:
                break
            n_done += n_read[0]
    finally:
        _lib.ma_decoder_uninit(decoder)
    if not n_done:
        raise Unreadable("its audio can't be decoded")
    return bytes(output)
