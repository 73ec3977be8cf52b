"""The media loader: decodes each file of a request once, within limits, and omits optional files."""

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

SUPPORT = MediaSupport(frozenset({"image"}))


def image(source: Source | None, at: str = "here", *, optional: bool = False) -> Media:
    return Media("image", at=at, source=source, optional=optional)


class RecordingDecoder(Decoder):
    """Records the files and returns a bitmap for each, without decoding."""

    def __init__(self) -> None:
        self.decoded: list[bytes] = []
        self.gate, self.started = threading.Event(), threading.Semaphore(0)  # of files that start with "slow"
        self.large = bytes(1000)

    def decode(
        self, data: bytes, sample_rate: int, scope: str | None = None, document: DocumentHints | None = None
    ) -> Bitmap:
        if data.startswith(b"slow"):
            self.started.release()
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
async def decoder() -> RecordingDecoder:
    return RecordingDecoder()


@pytest.fixture
async def media_loader(decoder: RecordingDecoder) -> AsyncIterator[MediaLoader]:
    loader = MediaLoader(decoder, AllowedHosts())
    yield loader
    decoder.gate.set()
    loader.close()


def data_url(data: bytes) -> MediaUrl:
    return MediaUrl(f"data:image/png;base64,{base64.b64encode(data).decode()}")


async def test_repeated_files_are_decoded_once(media_loader: MediaLoader, decoder: RecordingDecoder) -> None:
    media = await media_loader.load(
        [image(data_url(b"a")), image(b"b"), image(data_url(b"a")), image(None), image(b"b")], SUPPORT
    )
    assert sorted(decoder.decoded) == [b"a", b"b"]
    assert set(media) == {data_url(b"a"), b"b"}


async def test_error_names_the_path_of_an_unreadable_file(media_loader: MediaLoader) -> None:
    with pytest.raises(InvalidRequest, match=r"^x: Failed to load image or audio file: it is bad$") as caught:
        await media_loader.load([image(data_url(b"bad"), "x")], SUPPORT)
    assert caught.value.param == "x"


async def test_files_and_urls_of_a_request_are_limited(media_loader: MediaLoader) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MAX_FILES} files"):
        await media_loader.load([image(str(n).encode()) for n in range(MAX_FILES + 1)], SUPPORT)
    with pytest.raises(InvalidRequest, match=f"at most {MAX_LINKS} addresses"):
        await media_loader.load([image(MediaUrl(f"http://a/{n}")) for n in range(MAX_LINKS + 1)], SUPPORT)


async def test_decoding_stops_when_the_files_of_a_request_exceed_the_size_limit(
    media_loader: MediaLoader, decoder: RecordingDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.media.loader.MAX_DECODED_BYTES", 2500)
    with pytest.raises(InvalidRequest, match="2500 bytes after decoding"):
        await media_loader.load([image(b"large%d" % n) for n in range(100)], SUPPORT)
    assert len(decoder.decoded) < 20


async def test_decoded_bytes_of_all_requests_are_limited_and_released(
    media_loader: MediaLoader, decoder: RecordingDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.media.loader.MAX_HELD_BYTES", 2000)
    held = [await media_loader.load([image(b"large%d" % n)], SUPPORT) for n in range(2)]
    with pytest.raises(QueueFull, match="retry in 1 s") as caught:
        await media_loader.load([image(b"another", optional=True)], SUPPORT)
    assert caught.value.outcome == "media_full"
    assert len(decoder.decoded) == 2
    del held[0]
    async with asyncio.timeout(60):
        while len(decoder.decoded) == 2:  # the decoding threads may still hold their bitmaps, without an event to await
            with contextlib.suppress(QueueFull):
                await media_loader.load([image(b"another")], SUPPORT)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", "Invalid base64 value"),
        ("a", "Invalid base64 value"),
        ("hello world!", "Invalid base64 value"),
        ("data:image/png;base64", "Invalid uri-encoded base64 value"),
        ("data:text/plain;base64,aGk=", "Invalid uri format: data:text/plain;base64"),
        ("data:image/png,aGk=", "uri must be base64 encoded"),
    ],
)
def test_invalid_data_urls_have_the_errors_of_llama_server(url: str, error: str) -> None:
    with pytest.raises(Unreadable, match=error):
        inline(url)


async def test_unreadable_optional_file_is_omitted(media_loader: MediaLoader) -> None:
    optional, required = image(b"bad", optional=True), image(b"good")
    assert list(await media_loader.load([optional, required], SUPPORT)) == [b"good"]
    with pytest.raises(InvalidRequest, match="it is bad"):
        await media_loader.load([optional, image(b"bad")], SUPPORT)


async def test_oldest_optional_files_are_omitted_beyond_the_limit(media_loader: MediaLoader) -> None:
    old = [image(b"%d" % n, optional=True) for n in range(MAX_FILES)]
    media = await media_loader.load([*old, image(b"new")], SUPPORT)
    assert list(media) == [*(b"%d" % n for n in range(1, MAX_FILES)), b"new"]


async def test_slow_files_of_one_client_delay_neither_its_images_nor_other_clients(
    media_loader: MediaLoader, decoder: RecordingDecoder
) -> None:
    documents = [Media("document", at="here", source=b"slow %d" % n) for n in range(8)]
    slow = asyncio.create_task(media_loader.load(documents, SUPPORT, client="a"))
    async with asyncio.timeout(60):
        await asyncio.to_thread(decoder.started.acquire)
        await media_loader.load([Media("document", at="here", source=b"quick")], SUPPORT, client="b")
        await media_loader.load([image(b"quick image")], SUPPORT, client="a")
        slow.cancel()  # its threads are still busy
        again = asyncio.create_task(media_loader.load(documents, SUPPORT, client="a"))
        await media_loader.load([Media("document", at="here", source=b"another")], SUPPORT, client="b")
        assert decoder.decoded == [b"quick", b"quick image", b"another"]
        decoder.gate.set()
        assert len(await again) == len(documents)
