"""Files to pixels and samples: what the library makes of them, and an end to whatever is broken, hostile or huge."""

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from server.app import IMAGE_DECODER as ANSWERER
from server.errors import InvalidRequest
from server.media.bitmap import Bitmap, Video, bitmaps_of
from server.media.decode import DecodeOptions, Decoder
from server.media.header import Unreadable, read_header
from server.media.sound import resampled_length
from server.sandbox.process import WorkLimits
from tests.media_files import (
    FPS,
    HEIGHT,
    IMAGE_DECODER,
    N_FRAMES,
    PHOTOS,
    SECONDS,
    SOUNDING_VIDEO,
    SOUNDS,
    VIDEOS,
    WIDTH,
    damaged,
    media_file,
    png,
    wav,
)

pytestmark = pytest.mark.slow
RATE = 16000
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "25"))  # of damage to each file; `make fuzz-media` does more
SEED = os.environ.get("FUZZ_SEED", "1")


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with closing(Decoder(ANSWERER, DecodeOptions(pixels=1 << 20, seconds=60.0))) as made:
        yield made


def decoded(decoder: Decoder, data: bytes, rate: int, scope: str | None = None) -> Bitmap:
    """What is one picture or sound."""
    (found,) = bitmaps_of(decoder.decode(data, rate, scope))
    return found


@pytest.mark.parametrize("name", [*IMAGE_DECODER, *SOUNDS])
def test_the_content_tells_a_file_and_the_size_of_a_picture_before_it_is_decoded(name: str) -> None:
    header = read_header(media_file(name))
    form = {"jpg": "jpeg"}.get(name[-3:], name.rpartition(".")[2])
    expected = ("audio", form, 0, 0) if name in SOUNDS else ("image", form, WIDTH, HEIGHT)
    assert (header.kind, header.form.lower(), header.width, header.height) == expected


@pytest.mark.parametrize(
    ("data", "said"),
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
def test_what_is_no_picture_and_no_sound_says_so(data: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read_header(data)


@pytest.mark.parametrize("name", [*IMAGE_DECODER, *PHOTOS])
def test_a_picture_is_decoded_to_rgb_and_named_by_its_bytes(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    found = decoded(decoder, data, 0)
    assert (found.kind, found.width, found.height, len(found.data)) == ("image", WIDTH, HEIGHT, WIDTH * HEIGHT * 3)
    assert found.id == hashlib.sha256(data).hexdigest()
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    wanted = np.stack([x * 16, y * 20, (x + y) * 9], -1)
    lost = np.abs(np.frombuffer(found.data, np.uint8).reshape(HEIGHT, WIDTH, 3) - wanted).mean()
    if name in ("tiny.png", "tiny.bmp"):
        assert lost == 0
    elif name in PHOTOS and name != "tiny.webp":  # the same picture as the others, but for what is lost
        assert lost < 8


@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_is_decoded_to_one_channel_at_the_models_rate(decoder: Decoder, name: str) -> None:
    found = decoded(decoder, media_file(name), RATE)
    heard = np.frombuffer(found.data, np.float32)
    assert found.width == len(heard)
    assert found.width / RATE == pytest.approx(SECONDS, abs=0.12)  # MP3 has silence at both ends
    assert 0.3 < np.abs(heard).max() < 0.7
    spectrum = np.abs(np.fft.rfft(heard, RATE))
    assert spectrum.argmax() == pytest.approx(440, abs=5)


def test_a_sound_at_the_models_rate_is_not_touched(decoder: Decoder) -> None:
    wanted = np.linspace(-0.9, 0.9, 321, dtype=np.float32)
    found = np.frombuffer(decoded(decoder, wav((wanted * 32767).astype("<i2").tobytes(), RATE), RATE).data, np.float32)
    assert np.abs(found - wanted).max() < 1e-4


@pytest.mark.parametrize("rate_in", [8000, 11025, 22050, 44100, 48000, 16000])
def test_as_many_samples_come_out_as_the_rates_say(rate_in: int) -> None:
    assert resampled_length(RATE, rate_in, 10 * rate_in) == pytest.approx(10 * RATE, abs=1)
    assert resampled_length(RATE, rate_in, 0) == 0
    assert resampled_length(RATE, 0, 5) == 0


def test_a_bomb_of_pixels_is_refused_by_its_header(decoder: Decoder) -> None:
    bomb = png(30_000, 30_000, bytes(3 * 10**6))
    assert len(bomb) < 10_000
    with pytest.raises(Unreadable, match=r"30000 x 30000 pixels, at most 1048576"):
        decoded(decoder, bomb, 0)


def test_a_bomb_of_data_behind_a_small_header_ends(decoder: Decoder) -> None:
    bomb = png(100, 100, bytes(50 << 20))
    narrow = Decoder(ANSWERER, limits=WorkLimits(memory_bytes=16 << 20))
    with closing(narrow), pytest.raises(Unreadable, match=r"can't be decoded|stopped"):
        decoded(narrow, bomb, 0)
    assert decoded(decoder, media_file("tiny.png"), 0).width == WIDTH


def test_a_sound_that_lasts_too_long_is_refused_by_its_header(decoder: Decoder) -> None:
    with pytest.raises(Unreadable, match="lasts 1000000 s"):
        decoded(decoder, wav(bytes(2_000_000), 1), RATE)
    endless = bytearray(media_file("tiny.flac"))
    endless[21:26] = b"\x0f\xff\xff\xff\xff"  # the number of samples
    with pytest.raises(Unreadable, match="lasts"):
        decoded(decoder, bytes(endless), RATE)


def test_a_file_that_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(Unreadable, match="86 bytes, at most 85"):
        decoded(Decoder("nothing:here", DecodeOptions(file_bytes=85)), media_file("tiny.png"), 0)


@pytest.mark.parametrize(
    ("work", "limits", "said"),
    [("sleepers", WorkLimits(wall_s=0.3), r"stopped: it took more than 0\.3 s"), ("crashers", None, "or crashed")],
)
def test_work_that_does_not_end_or_crashes_is_an_answer(work: str, limits: WorkLimits | None, said: str) -> None:
    decoder = Decoder(f"tests.unit.media.test_decode:{work}", limits=limits)
    with closing(decoder), pytest.raises(Unreadable, match=said):
        decoded(decoder, media_file("tiny.png"), 0)


def sleepers() -> object:
    import threading

    return lambda what, request: threading.Event().wait()


def crashers() -> object:
    import os

    return lambda what, request: os.abort()


@pytest.mark.parametrize("name", [*IMAGE_DECODER, *SOUNDS, *PHOTOS, *VIDEOS])
def test_damaged_files_are_read_or_refused(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    rng = random.Random(f"{name} {SEED}")
    said: set[str] = set()
    for _ in range(ROUNDS):
        try:
            found = decoder.decode(damaged(data, rng), RATE)
        except Unreadable as fault:
            said.add(str(fault))
            continue
        for each in bitmaps_of(found):
            assert len(each.data) == each.width * each.height * (3 if each.kind == "image" else 4)
    assert [fault for fault in said if "Error:" in fault] == []  # an exception that nobody has thought of


@pytest.mark.parametrize("name", [*PHOTOS, *VIDEOS])
def test_without_its_extra_a_file_is_refused_by_name(
    decoder: Decoder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.media.decode.find_spec", lambda module: None)
    extra = "video" if name in VIDEOS else "pictures"
    with pytest.raises(Unreadable, match=rf"only with its extra {extra} \(pip install 'llamapool\[{extra}\]'\)"):
        decoder.decode(media_file(name), 0)


def test_a_large_picture_of_the_extra_is_refused_before_it_is_decoded() -> None:
    with closing(Decoder(ANSWERER, DecodeOptions(pixels=WIDTH * HEIGHT - 1))) as few:
        for name in (*PHOTOS, *VIDEOS):
            with pytest.raises(Unreadable, match=f"{WIDTH} x {HEIGHT} pixels, at most {WIDTH * HEIGHT - 1}"):
                few.decode(media_file(name), 0)


@pytest.mark.parametrize("name", VIDEOS)
@pytest.mark.parametrize(("fps", "n"), [(4.0, N_FRAMES * 4 // FPS), (0.0, N_FRAMES)])
def test_a_video_is_so_many_frames_a_second_and_their_times(name: str, fps: float, n: int) -> None:
    with closing(Decoder(ANSWERER, DecodeOptions(fps=fps, stamp_ms=1000))) as decoder:
        video = decoder.decode(media_file(name), 0)
    assert isinstance(video, Video)
    frames = bitmaps_of(video)
    assert [(each.kind, each.width, each.height, each.of_video) for each in frames] == [("image", 16, 12, True)] * n
    red = [np.frombuffer(each.data, np.uint8).reshape(-1, 3)[:, 0].mean() for each in frames]
    assert np.allclose(red, np.linspace(red[0], red[0] + (n - 1) * 10 * FPS / (fps or FPS), n), atol=8)
    told = [part if isinstance(part, str) else "-" for part in video.parts]
    second = ["-"] * (int(fps or FPS) - 1)
    half = ["-"] * (int(fps or FPS) // 2 - 1)
    assert told == ["Video:", "-", "[0m0.00s]", *second, "-", "[0m1.00s]", *second, "-", "[0m2.00s]", *half]
    assert len({each.id for each in frames}) == n


def test_it_is_known_that_a_video_has_sound(decoder: Decoder) -> None:
    found = [decoder.decode(media_file(name), 0, "a scope of its own") for name in (SOUNDING_VIDEO, *VIDEOS)]
    again = decoder.decode(media_file(SOUNDING_VIDEO), 0, "a scope of its own")
    assert [isinstance(each, Video) and each.has_audio for each in (again, *found)] == [True, True, False, False]


def test_frames_are_named_by_how_the_video_was_cut(decoder: Decoder) -> None:
    ids = []
    for options in (DecodeOptions(fps=2), DecodeOptions(stamp_ms=0)):
        with closing(Decoder(ANSWERER, options)) as other:
            ids.append(bitmaps_of(other.decode(media_file("tiny.webm"), 0))[1].id)
    ids += [bitmaps_of(decoder.decode(media_file("tiny.webm"), 0))[1].id for _ in range(2)]
    assert ids[2] == ids[3]
    assert len(set(ids)) == 3


def test_a_video_of_too_many_frames_is_refused() -> None:
    for bounds in (DecodeOptions(frames=9), DecodeOptions(video_bytes=9 * WIDTH * HEIGHT * 3)):
        decoder, said = Decoder(ANSWERER, bounds), r"at 4 frames a second \(video_fps\) it has more than"
        with closing(decoder), pytest.raises(Unreadable, match=said):
            decoder.decode(media_file("tiny.mp4"), 0)


def test_a_video_that_was_decoded_before_is_decoded_once_for_all_its_frames(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bitmaps_of(decoder.decode(media_file("tiny.mp4"), 0, "a scope"))
    again = decoder.decode(media_file("tiny.mp4"), 0, "a scope")
    assert [part if isinstance(part, str) else "" for part in again.parts][:3] == ["Video:", "", "[0m0.00s]"]
    known = bitmaps_of(again)
    assert [each.data for each in known] == [b""] * len(first)
    assert [each.decoded() for each in known[::-1]] == [each.data for each in first[::-1]]
    monkeypatch.setattr(Decoder, "_decoded", None)
    assert known[3].decoded() == first[3].data


@pytest.mark.parametrize("name", ["tiny.png", "tiny.wav"])
def test_what_was_decoded_before_is_decoded_again_when_somebody_asks(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    first = decoded(decoder, data, RATE, "a scope")
    again = decoded(decoder, data, RATE, "a scope")
    assert (again.kind, again.width, again.height, again.id) == (first.kind, first.width, first.height, first.id)
    assert first.data
    assert not again.data
    assert again.decoded() == first.decoded() == first.data
    assert again.decoded() is not again.decoded()  # a request of many known images holds the pixels of none


def test_how_long_decoding_takes_tells_nobody_of_others(decoder: Decoder) -> None:
    data = media_file("tiny.bmp")
    assert decoded(decoder, data, 0, "ada/").data
    assert not decoded(decoder, data, 0, "ada/").data
    for scope in ("", "ada/salt", "bert/", None, None):
        assert decoded(decoder, data, 0, scope).data, scope
    sound = media_file("tiny.wav")
    assert decoded(decoder, sound, RATE, "ada/").data
    assert decoded(decoder, sound, RATE // 2, "ada/").data  # for another model


def test_a_file_that_can_be_read_no_more_is_a_clients_error(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_file("tiny.gif")
    decoded(decoder, data, 0, "")
    known = decoded(decoder, data, 0, "")

    def stopped(*_: object) -> Bitmap:
        raise Unreadable("decoding this GIF was stopped: no answer within 60 s")

    monkeypatch.setattr(Decoder, "_decoded", stopped)
    with pytest.raises(InvalidRequest, match="can't be read again: decoding this GIF was stopped"):
        known.decoded()
