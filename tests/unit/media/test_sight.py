"""From what a request says to what a model is shown."""

import asyncio
import base64
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from server.errors import InvalidRequest, QueueFull
from server.media.bitmap import Bitmap
from server.media.decode import Decoder
from server.media.document import DocumentHints
from server.media.header import Unreadable
from server.media.hosts import AllowedHosts
from server.media.loader import MAX_FILES, MAX_LINKS, MediaLoader, MediaSupport, inline
from server.media.source import Media, MediaUrl, Source

READER = MediaSupport(frozenset({"image"}))


def shown(source: Source | None, at: str = "here", *, spare: bool = False) -> Media:
    return Media("image", at=at, source=source, spare=spare)


class Counting(Decoder):
    """Decodes nothing; remembers what it was given."""

    def __init__(self) -> None:
        self.decoded: list[bytes] = []
        self.gate = threading.Event()
        self.large = bytes(1000)
        self.gate.set()

    def decode(
        self, data: bytes, sample_rate: int, scope: str | None = None, document: DocumentHints | None = None
    ) -> Bitmap:
        assert self.gate.wait(100)
        self.decoded.append(data)
        if data.startswith(b"large"):
            return Bitmap("image", 1, 1, self.large, "large")
        if data == b"bad":
            raise Unreadable("it is bad")
        return Bitmap("image", 1, 1, b"rgb", str(len(self.decoded)))

    def warm(self) -> None:
        self.decoded.append(b"warm")

    def close(self) -> None:
        self.decoded.append(b"closed")


@pytest.fixture
async def decoder() -> Counting:
    return Counting()


@pytest.fixture
async def media_loader(decoder: Counting) -> AsyncIterator[MediaLoader]:
    made = MediaLoader(decoder, AllowedHosts())
    yield made
    decoder.gate.set()
    made.close()


def as_url(data: bytes) -> MediaUrl:
    return MediaUrl(f"data:image/png;base64,{base64.b64encode(data).decode()}")


async def test_what_is_the_same_is_decoded_once(media_loader: MediaLoader, decoder: Counting) -> None:
    media = await media_loader.load(
        [shown(as_url(b"a")), shown(b"b"), shown(as_url(b"a")), shown(None), shown(b"b")], READER
    )
    assert sorted(decoder.decoded) == [b"a", b"b"]
    assert set(media) == {as_url(b"a"), b"b"}


async def test_the_first_that_can_not_be_read_is_named(media_loader: MediaLoader) -> None:
    with pytest.raises(InvalidRequest, match=r"^x: Failed to load image or audio file: it is bad$") as caught:
        await media_loader.load([shown(as_url(b"bad"), "x")], READER)
    assert caught.value.param == "x"


async def test_a_request_has_so_many_files_and_addresses_and_no_more(media_loader: MediaLoader) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MAX_FILES} files"):
        await media_loader.load([shown(str(n).encode()) for n in range(MAX_FILES + 1)], READER)
    with pytest.raises(InvalidRequest, match=f"at most {MAX_LINKS} addresses"):
        await media_loader.load([shown(MediaUrl(f"http://a/{n}")) for n in range(MAX_LINKS + 1)], READER)


async def test_what_all_take_together_is_counted_before_the_rest_is_decoded(
    media_loader: MediaLoader, decoder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.media.loader.MAX_DECODED_BYTES", 2500)
    with pytest.raises(InvalidRequest, match="2500 bytes after decoding"):
        await media_loader.load([shown(b"large%d" % n) for n in range(100)], READER)
    assert len(decoder.decoded) < 20


async def test_what_all_requests_take_together_is_bounded_and_given_back(
    media_loader: MediaLoader, decoder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.media.loader.MAX_HELD_BYTES", 2000)
    held = [await media_loader.load([shown(b"large%d" % n)], READER) for n in range(2)]
    with pytest.raises(QueueFull, match="retry in 1 s") as refused:
        await media_loader.load([shown(b"another", spare=True)], READER)
    assert refused.value.outcome == "media_full"
    assert len(decoder.decoded) == 2
    del held[0]
    async with asyncio.timeout(60):
        while len(decoder.decoded) == 2:  # the threads that decoded may still hold theirs, and say nothing
            with contextlib.suppress(QueueFull):
                await media_loader.load([shown(b"another")], READER)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "Invalid base64 value"),
        ("a", "Invalid base64 value"),
        ("hello world!", "Invalid base64 value"),
        ("data:image/png;base64", "Invalid uri-encoded base64 value"),
        ("data:text/plain;base64,aGk=", "Invalid uri format: data:text/plain;base64"),
        ("data:image/png,aGk=", "uri must be base64 encoded"),
    ],
)
def test_what_is_no_file_says_so_in_llama_servers_words(url: str, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        inline(url)


async def test_what_may_be_left_out_is_where_it_can_not_be_had(media_loader: MediaLoader) -> None:
    lost, kept = shown(b"bad", spare=True), shown(b"good")
    assert list(await media_loader.load([lost, kept], READER)) == [b"good"]
    with pytest.raises(InvalidRequest, match="it is bad"):
        await media_loader.load([lost, shown(b"bad")], READER)


async def test_beyond_the_limit_the_oldest_that_may_be_left_out_are(media_loader: MediaLoader) -> None:
    old = [shown(b"%d" % n, spare=True) for n in range(MAX_FILES)]
    media = await media_loader.load([*old, shown(b"new")], READER)
    assert list(media) == [*(b"%d" % n for n in range(1, MAX_FILES)), b"new"]
