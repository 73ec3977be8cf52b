"""Decoding of images, audio and video: results, and rejection of damaged, hostile or oversized files."""

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from server.app import IMAGE_DECODER
from server.errors import InvalidRequest
from server.media.audio import resampled_length
from server.media.bitmap import Bitmap, Video, bitmaps_of
from server.media.decode import DecodeOptions, Decoder
from server.media.header import Unreadable, read_header
from server.sandbox.process import WorkLimits
from tests.media_files import (
    AUDIO_FILES,
    EXTRA_IMAGES,
    FPS,
    HEIGHT,
    IMAGES,
    N_FRAMES,
    SECONDS,
    VIDEO_WITH_AUDIO,
    VIDEOS,
    WIDTH,
    damaged,
    media_file,
    png,
    wav,
)

pytestmark = pytest.mark.slow
RATE = 16000
N_ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "25"))  # of damage to each file; `make fuzz-media` does more
SEED = os.environ.get("FUZZ_SEED", "1")


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with closing(Decoder(IMAGE_DECODER, DecodeOptions(pixels=1 << 20, seconds=60.0))) as decoder:
        yield decoder


def decoded(decoder: Decoder, data: bytes, rate: int, namespace: str | None = None) -> Bitmap:
    """Return the only bitmap of an image or audio file."""
    (bitmap,) = bitmaps_of(decoder.decode(data, rate, namespace))
    return bitmap


@pytest.mark.parametrize("name", [*IMAGES, *AUDIO_FILES])
def test_header_has_the_file_format_and_image_size(name: str) -> None:
    header = read_header(media_file(name))
    file_format = {"jpg": "jpeg"}.get(name[-3:], name.rpartition(".")[2])
    expected = ("audio", file_format, 0, 0) if name in AUDIO_FILES else ("image", file_format, WIDTH, HEIGHT)
    assert (header.kind, header.form.lower(), header.width, header.height) == expected


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "empty"),
        (b"hello, world", "neither PNG"),
        (b"II*\0" + bytes(50), "TIFF"),
        (b"%PDF-1.7", "PDF"),
        (media_file("tiny.png")[:20], "cut off"),
        (media_file("tiny.jpg")[:30], "cut off"),
        (b"\xff\xd8" + b"\xff" * (1 << 17) + media_file("tiny.jpg")[2:], "cut off"),
        (media_file("tiny.gif")[:8], "cut off"),
        (media_file("tiny.bmp")[:20], "cut off"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "without a header"),
        (png(0, 5, b""), "0 x 5"),
    ],
)
def test_unsupported_or_truncated_header_is_rejected(data: bytes, error: str) -> None:
    with pytest.raises(Unreadable, match=error):
        read_header(data)


@pytest.mark.parametrize("name", [*IMAGES, *EXTRA_IMAGES])
def test_image_is_decoded_to_rgb_with_the_hash_of_the_file(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    bitmap = decoded(decoder, data, 0)
    assert (bitmap.kind, bitmap.width, bitmap.height, len(bitmap.data)) == ("image", WIDTH, HEIGHT, WIDTH * HEIGHT * 3)
    assert bitmap.id == hashlib.sha256(data).hexdigest()
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    expected = np.stack([x * 16, y * 20, (x + y) * 9], -1)
    mean_error = np.abs(np.frombuffer(bitmap.data, np.uint8).reshape(HEIGHT, WIDTH, 3) - expected).mean()
    if name in ("tiny.png", "tiny.bmp"):
        assert mean_error == 0
    elif name in EXTRA_IMAGES and name != "tiny.webp":  # lossy formats of the same image
        assert mean_error < 8


@pytest.mark.parametrize("name", AUDIO_FILES)
def test_audio_is_decoded_to_mono_at_the_rate_of_the_model(decoder: Decoder, name: str) -> None:
    bitmap = decoded(decoder, media_file(name), RATE)
    samples = np.frombuffer(bitmap.data, np.float32)
    assert bitmap.width == len(samples)
    assert bitmap.width / RATE == pytest.approx(SECONDS, abs=0.12)  # MP3 has silence at both ends
    assert 0.3 < np.abs(samples).max() < 0.7
    spectrum = np.abs(np.fft.rfft(samples, RATE))
    assert spectrum.argmax() == pytest.approx(440, abs=5)


def test_audio_at_the_rate_of_the_model_is_not_resampled(decoder: Decoder) -> None:
    samples = np.linspace(-0.9, 0.9, 321, dtype=np.float32)
    file = wav((samples * 32767).astype("<i2").tobytes(), RATE)
    assert np.abs(np.frombuffer(decoded(decoder, file, RATE).data, np.float32) - samples).max() < 1e-4


@pytest.mark.parametrize("rate_in", [8000, 11025, 22050, 44100, 48000, 16000])
def test_resampled_length_is_proportional_to_the_rates(rate_in: int) -> None:
    assert resampled_length(RATE, rate_in, 10 * rate_in) == pytest.approx(10 * RATE, abs=1)
    assert resampled_length(RATE, rate_in, 0) == 0
    assert resampled_length(RATE, 0, 5) == 0


def test_image_with_too_many_pixels_is_rejected_by_its_header(decoder: Decoder) -> None:
    bomb = png(30_000, 30_000, bytes(3 * 10**6))
    assert len(bomb) < 10_000
    with pytest.raises(Unreadable, match=r"30000 x 30000 pixels, at most 1048576"):
        decoded(decoder, bomb, 0)


def test_decompression_bomb_with_a_small_header_is_rejected(decoder: Decoder) -> None:
    bomb = png(100, 100, bytes(50 << 20))
    limited = Decoder(IMAGE_DECODER, limits=WorkLimits(memory_bytes=16 << 20))
    with closing(limited), pytest.raises(Unreadable, match=r"can't be decoded|stopped"):
        decoded(limited, bomb, 0)
    assert decoded(decoder, media_file("tiny.png"), 0).width == WIDTH


def test_too_long_audio_is_rejected_by_its_header(decoder: Decoder) -> None:
    with pytest.raises(Unreadable, match="lasts 1000000 s"):
        decoded(decoder, wav(bytes(2_000_000), 1), RATE)
    endless = bytearray(media_file("tiny.flac"))
    endless[21:26] = b"\x0f\xff\xff\xff\xff"  # the number of samples
    with pytest.raises(Unreadable, match="lasts"):
        decoded(decoder, bytes(endless), RATE)


@pytest.mark.parametrize("samples", [[0.5], [0.5, np.nan, 0.5], [0.5, np.inf], [0.5, -1e6]])
def test_audio_that_can_not_be_embedded_is_unreadable(decoder: Decoder, samples: list[float]) -> None:
    content = np.array(samples, "<f4").tobytes()
    file = bytearray(wav(content, RATE, width=4))
    file[20:22] = b"\3\0"  # floats instead of integers
    with pytest.raises(Unreadable, match="only one sample" if len(samples) == 1 else "samples that are not numbers"):
        decoded(decoder, bytes(file), RATE)


def test_too_large_file_is_rejected_without_decoding() -> None:
    with pytest.raises(Unreadable, match="86 bytes, at most 85"):
        decoded(Decoder("nothing:here", DecodeOptions(file_bytes=85)), media_file("tiny.png"), 0)


@pytest.mark.parametrize(
    ("answerer", "limits", "error"),
    [
        ("hanging_answerer", WorkLimits(wall_s=0.3), r"stopped: it took more than 0\.3 s"),
        ("crashing_answerer", None, "or crashed"),
    ],
)
def test_hanging_or_crashing_decoder_process_raises_unreadable(
    answerer: str, limits: WorkLimits | None, error: str
) -> None:
    decoder = Decoder(f"tests.unit.media.test_decode:{answerer}", limits=limits)
    with closing(decoder), pytest.raises(Unreadable, match=error):
        decoded(decoder, media_file("tiny.png"), 0)


def hanging_answerer() -> object:
    import threading

    return lambda kind, request: threading.Event().wait()


def crashing_answerer() -> object:
    import os

    return lambda kind, request: os.abort()


@pytest.mark.parametrize("name", [*IMAGES, *AUDIO_FILES, *EXTRA_IMAGES, *VIDEOS])
def test_damaged_files_are_decoded_or_rejected(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    rng = random.Random(f"{name} {SEED}")
    errors: set[str] = set()
    for _ in range(N_ROUNDS):
        try:
            media = decoder.decode(damaged(data, rng), RATE)
        except Unreadable as error:
            errors.add(str(error))
            continue
        for bitmap in bitmaps_of(media):
            assert len(bitmap.data) == bitmap.width * bitmap.height * (3 if bitmap.kind == "image" else 4)
    assert [error for error in errors if "Error:" in error] == []  # an unhandled exception


@pytest.mark.parametrize("name", [*EXTRA_IMAGES, *VIDEOS])
def test_error_names_the_missing_extra(decoder: Decoder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.media.decode.find_spec", lambda module: None)
    extra = "video" if name in VIDEOS else "pictures"
    with pytest.raises(Unreadable, match=rf"only with its extra {extra} \(pip install 'llamapool\[{extra}\]'\)"):
        decoder.decode(media_file(name), 0)


def test_pixel_limit_applies_to_formats_of_extras() -> None:
    with closing(Decoder(IMAGE_DECODER, DecodeOptions(pixels=WIDTH * HEIGHT - 1))) as decoder:
        for name in (*EXTRA_IMAGES, *VIDEOS):
            with pytest.raises(Unreadable, match=f"{WIDTH} x {HEIGHT} pixels, at most {WIDTH * HEIGHT - 1}"):
                decoder.decode(media_file(name), 0)


@pytest.mark.parametrize("name", VIDEOS)
@pytest.mark.parametrize(("fps", "n"), [(4.0, N_FRAMES * 4 // FPS), (0.0, N_FRAMES)])
def test_video_is_decoded_to_frames_at_the_set_rate_with_timestamps(name: str, fps: float, n: int) -> None:
    with closing(Decoder(IMAGE_DECODER, DecodeOptions(fps=fps, stamp_ms=1000))) as decoder:
        video = decoder.decode(media_file(name), 0)
    assert isinstance(video, Video)
    frames = bitmaps_of(video)
    assert [(each.kind, each.width, each.height, each.of_video) for each in frames] == [("image", 16, 12, True)] * n
    red = [np.frombuffer(each.data, np.uint8).reshape(-1, 3)[:, 0].mean() for each in frames]
    assert np.allclose(red, np.linspace(red[0], red[0] + (n - 1) * 10 * FPS / (fps or FPS), n), atol=8)
    parts = [part if isinstance(part, str) else "-" for part in video.parts]
    second = ["-"] * (int(fps or FPS) - 1)
    half = ["-"] * (int(fps or FPS) // 2 - 1)
    assert parts == ["Video:", "-", "[0m0.00s]", *second, "-", "[0m1.00s]", *second, "-", "[0m2.00s]", *half]
    assert len({each.id for each in frames}) == n


def test_audio_track_of_a_video_is_reported_also_from_the_cache(decoder: Decoder) -> None:
    videos = [decoder.decode(media_file(name), 0, "own namespace") for name in (VIDEO_WITH_AUDIO, *VIDEOS)]
    cached = decoder.decode(media_file(VIDEO_WITH_AUDIO), 0, "own namespace")
    assert [isinstance(each, Video) and each.has_audio for each in (cached, *videos)] == [True, True, False, False]


def test_frame_ids_depend_on_frame_rate_and_timestamps(decoder: Decoder) -> None:
    ids = []
    for options in (DecodeOptions(fps=2), DecodeOptions(stamp_ms=0)):
        with closing(Decoder(IMAGE_DECODER, options)) as other:
            ids.append(bitmaps_of(other.decode(media_file("tiny.webm"), 0))[1].id)
    ids += [bitmaps_of(decoder.decode(media_file("tiny.webm"), 0))[1].id for _ in range(2)]
    assert ids[2] == ids[3]
    assert len(set(ids)) == 3


def test_video_with_too_many_frames_or_bytes_is_rejected() -> None:
    for options in (DecodeOptions(frames=9), DecodeOptions(video_bytes=9 * WIDTH * HEIGHT * 3)):
        decoder, error = Decoder(IMAGE_DECODER, options), r"at 4 frames a second \(video_fps\) it has more than"
        with closing(decoder), pytest.raises(Unreadable, match=error):
            decoder.decode(media_file("tiny.mp4"), 0)


def test_cached_video_is_decoded_once_for_all_its_frames(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bitmaps_of(decoder.decode(media_file("tiny.mp4"), 0, "a namespace"))
    again = decoder.decode(media_file("tiny.mp4"), 0, "a namespace")
    assert [part if isinstance(part, str) else "" for part in again.parts][:3] == ["Video:", "", "[0m0.00s]"]
    cached = bitmaps_of(again)
    assert [each.data for each in cached] == [b""] * len(first)
    assert [each.decoded() for each in cached[::-1]] == [each.data for each in first[::-1]]
    monkeypatch.setattr(Decoder, "_decoded", None)
    assert cached[3].decoded() == first[3].data


@pytest.mark.parametrize("name", ["tiny.png", "tiny.wav"])
def test_cached_file_is_decoded_again_only_on_demand(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    first = decoded(decoder, data, RATE, "a namespace")
    cached = decoded(decoder, data, RATE, "a namespace")
    assert (cached.kind, cached.width, cached.height, cached.id) == (first.kind, first.width, first.height, first.id)
    assert first.data
    assert not cached.data
    assert cached.decoded() == first.decoded() == first.data
    assert cached.decoded() is not cached.decoded()  # many cached images of one request must not hold their pixels


def test_decoded_files_are_cached_per_namespace_and_sample_rate(decoder: Decoder) -> None:
    """Otherwise the time to decode a file would show whether another client has sent it."""
    data = media_file("tiny.bmp")
    assert decoded(decoder, data, 0, "ada/").data
    assert not decoded(decoder, data, 0, "ada/").data
    for namespace in ("", "ada/salt", "bert/", None, None):
        assert decoded(decoder, data, 0, namespace).data, namespace
    audio = media_file("tiny.wav")
    assert decoded(decoder, audio, RATE, "ada/").data
    assert decoded(decoder, audio, RATE // 2, "ada/").data  # for another model


def test_cached_file_that_cannot_be_decoded_again_raises_invalid_request(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = media_file("tiny.gif")
    decoded(decoder, data, 0, "")
    cached = decoded(decoder, data, 0, "")

    def stopped(*_: object) -> Bitmap:
        raise Unreadable("decoding this GIF was stopped: no answer within 60 s")

    monkeypatch.setattr(Decoder, "_decoded", stopped)
    with pytest.raises(InvalidRequest, match="can't be read again: decoding this GIF was stopped"):
        cached.decoded()
