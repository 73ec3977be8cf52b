"""Files to pixels and samples: what the library makes of them, and an end to whatever is broken, hostile or huge."""

import hashlib
import os
import pickle
import random
import wave
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest

from server.app import PICTURES as ANSWERER
from server.confined.process import Limits
from server.errors import InvalidRequest
from server.media.bitmap import Bitmap
from server.media.decode import Bounds, Decoder
from server.media.header import Unreadable, read_header
from server.media.sound import resampled_length
from tests.media_files import HEIGHT, PICTURES, SECONDS, SOUNDS, WIDTH, damaged, media_file, png

RATE = 16000
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "25"))  # of damage to each file; `make fuzz-media` does more


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    made = Decoder(ANSWERER, Bounds(pixels=1 << 20, seconds=60.0))
    yield made
    made.close()


@pytest.mark.parametrize("name", PICTURES)
def test_the_size_of_a_picture_is_known_before_it_is_decoded(name: str) -> None:
    header = read_header(media_file(name))
    assert (header.kind, header.width, header.height) == ("image", WIDTH, HEIGHT)


@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_is_told_by_its_content(name: str) -> None:
    header = read_header(media_file(name))
    assert (header.kind, header.form.lower()) == ("audio", name.rpartition(".")[2])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"hello, world", "neither PNG"),
        (media_file("tiny.webp"), "WebP"),
        (b"\0\0\0\x18ftypmp42" + bytes(50), "a video"),
        (b"%PDF-1.7", "PDF"),
        (media_file("tiny.png")[:20], "cut off"),
        (media_file("tiny.jpg")[:30], "cut off"),
        (media_file("tiny.gif")[:8], "cut off"),
        (media_file("tiny.bmp")[:20], "cut off"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "without a header"),
        (png(0, 5, b""), "0 x 5"),
    ],
)
def test_what_is_no_picture_and_no_sound_says_so(data: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read_header(data)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_decoded_to_rgb_and_named_by_its_bytes(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    found = decoder.decode(data, 0)
    assert (found.kind, found.width, found.height, len(found.data)) == ("image", WIDTH, HEIGHT, WIDTH * HEIGHT * 3)
    assert found.id == hashlib.sha256(data).hexdigest()
    if name in ("tiny.png", "tiny.bmp"):  # nothing is lost in these
        y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
        assert np.array_equal(
            np.frombuffer(found.data, np.uint8).reshape(HEIGHT, WIDTH, 3),
            np.stack([x * 16, y * 20, (x + y) * 9], -1).astype(np.uint8),
        )


@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_is_decoded_to_one_channel_at_the_models_rate(decoder: Decoder, name: str) -> None:
    found = decoder.decode(media_file(name), RATE)
    heard = np.frombuffer(found.data, np.float32)
    assert found.width == len(heard)
    assert found.width / RATE == pytest.approx(SECONDS, abs=0.12)  # MP3 has silence at both ends
    assert 0.3 < np.abs(heard).max() < 0.7
    spectrum = np.abs(np.fft.rfft(heard, RATE))
    assert spectrum.argmax() == pytest.approx(440, abs=5)


def test_a_sound_at_the_models_rate_is_not_touched(decoder: Decoder) -> None:
    wanted = np.linspace(-0.9, 0.9, 321, dtype=np.float32)
    found = np.frombuffer(decoder.decode(wav((wanted * 32767).astype("<i2").tobytes(), RATE), RATE).data, np.float32)
    assert np.abs(found - wanted).max() < 1e-4


def test_a_model_that_hears_nothing_is_given_no_sound(decoder: Decoder) -> None:
    with pytest.raises(Unreadable, match="hears nothing"):
        decoder.decode(media_file("tiny.wav"), 0)


@pytest.mark.parametrize("rate_in", [8000, 11025, 22050, 44100, 48000, 16000])
def test_as_many_samples_come_out_as_the_rates_say(rate_in: int) -> None:
    assert resampled_length(RATE, rate_in, 10 * rate_in) == pytest.approx(10 * RATE, abs=1)
    assert resampled_length(RATE, rate_in, 0) == 0
    assert resampled_length(RATE, 0, 5) == 0


def test_a_bomb_of_pixels_is_refused_by_its_header(decoder: Decoder) -> None:
    bomb = png(30_000, 30_000, bytes(3 * 10**6))
    assert len(bomb) < 10_000
    with pytest.raises(Unreadable, match=r"30000 x 30000 pixels, at most 1048576"):
        decoder.decode(bomb, 0)


def test_a_bomb_of_data_behind_a_small_header_ends(decoder: Decoder) -> None:
    bomb = png(100, 100, bytes(50 << 20))
    narrow = Decoder(ANSWERER, limits=Limits(memory_bytes=16 << 20))
    with pytest.raises(Unreadable, match=r"can't be decoded|stopped"):
        narrow.decode(bomb, 0)
    narrow.close()
    assert decoder.decode(media_file("tiny.png"), 0).width == WIDTH


def test_a_sound_that_lasts_too_long_is_refused_by_its_header(decoder: Decoder) -> None:
    with pytest.raises(Unreadable, match="lasts 1000000 s"):
        decoder.decode(wav(bytes(2_000_000), 1), RATE)
    endless = bytearray(media_file("tiny.flac"))
    endless[21:26] = b"\x0f\xff\xff\xff\xff"  # the number of samples
    with pytest.raises(Unreadable, match="lasts"):
        decoder.decode(bytes(endless), RATE)


def test_a_file_that_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(Unreadable, match="86 bytes, at most 85"):
        Decoder("nothing:here", Bounds(file_bytes=85)).decode(media_file("tiny.png"), 0)


def test_work_that_does_not_end_is_stopped() -> None:
    decoder = Decoder("tests.unit.media.test_decode:sleepers", limits=Limits(wall_s=0.3))
    with pytest.raises(Unreadable, match=r"stopped: it took more than 0\.3 s"):
        decoder.decode(media_file("tiny.png"), 0)
    decoder.close()


def test_a_crash_is_an_answer() -> None:
    decoder = Decoder("tests.unit.media.test_decode:crashers")
    with pytest.raises(Unreadable, match="or crashed"):
        decoder.decode(media_file("tiny.png"), 0)
    decoder.close()


def sleepers() -> object:
    import threading

    return lambda what, request: threading.Event().wait()


def crashers() -> object:
    import os

    return lambda what, request: os.abort()


@pytest.mark.parametrize("name", [*PICTURES, *SOUNDS, "tiny.webp"])
def test_damaged_files_are_read_or_refused(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    rng = random.Random(f"{name} 1")
    for _ in range(ROUNDS):
        try:
            found = decoder.decode(damaged(data, rng), RATE)
        except Unreadable:
            continue
        assert len(found.data) == found.width * found.height * (3 if found.kind == "image" else 4)


def wav(data: bytes, rate: int) -> bytes:
    """16 bits, one channel."""
    file = BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(data)
    return file.getvalue()


@pytest.mark.parametrize("name", ["tiny.png", "tiny.wav"])
def test_what_was_decoded_before_is_decoded_again_when_somebody_asks(decoder: Decoder, name: str) -> None:
    data = media_file(name)
    first = decoder.decode(data, RATE, "a scope")
    again = decoder.decode(data, RATE, "a scope")
    assert (again.kind, again.width, again.height, again.id) == (first.kind, first.width, first.height, first.id)
    assert first.data
    assert not again.data
    assert again.decoded() == first.decoded() == first.data
    assert pickle.loads(pickle.dumps(again)) == first


def test_how_long_decoding_takes_tells_nobody_of_others(decoder: Decoder) -> None:
    data = media_file("tiny.bmp")
    assert decoder.decode(data, 0, "ada/").data
    assert not decoder.decode(data, 0, "ada/").data
    for scope in ("", "ada/salt", "bert/", None, None):
        assert decoder.decode(data, 0, scope).data, scope
    wav = media_file("tiny.wav")
    assert decoder.decode(wav, RATE, "ada/").data
    assert decoder.decode(wav, RATE // 2, "ada/").data  # for another model


def test_a_file_that_can_be_read_no_more_is_a_clients_error(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_file("tiny.gif")
    decoder.decode(data, 0, "")
    known = decoder.decode(data, 0, "")

    def stopped(*_: object) -> Bitmap:
        raise Unreadable("decoding this GIF was stopped: no answer within 60 s")

    monkeypatch.setattr(Decoder, "_decoded", stopped)
    with pytest.raises(InvalidRequest, match="can't be read again: decoding this GIF was stopped"):
        known.decoded()
