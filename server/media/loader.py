"""Loads a request's media for a model: fetches or decodes base64, then decodes the file."""

import asyncio
import base64
import binascii
import logging
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from server.errors import InvalidRequest, QueueFull, short
from server.media.bitmap import Bitmap, BitmapKind, Decoded, Document, bitmaps_of, n_bytes_of
from server.media.decode import Decoder
from server.media.document import DocumentHints, media_type_of
from server.media.header import Unreadable
from server.media.hosts import AllowedHosts
from server.media.source import FileContent, LoadedMedia, Media, MediaUrl, Source, StoredFile, StoredFiles
from server.sandbox.process import Process

log = logging.getLogger(__name__)

MAX_FILES = 256
"""Of one request; llama-server has no limit."""
MAX_LINKS = 32
"""Of those the ones that are fetched."""
MAX_DECODED_BYTES = 1 << 30
"""Of all files of a request together."""
MAX_HELD_BYTES = 2 << 30
"""Of all requests together, decoded and not yet taken by a model."""
_AT_ONCE = 4  # fetched or decoded for one request
_DATA = "data:"
_DATA_TYPES = ("data:image/", "data:video/", "data:audio/")
_FAILED = "Failed to load image or audio file"  # llama-server's words
_DOCUMENT_FAILED = "Failed to read the document"


@dataclass(frozen=True, slots=True)
class MediaSupport:
    """The media types that a model accepts, and the sample rate of audio; 0 for a model that hears none."""

    kinds: frozenset[BitmapKind] = frozenset()
    sample_rate: int = 0


async def no_stored_files(_: str) -> FileContent | None:
    """Return None: the client has uploaded nothing."""
    return None


class MediaLoader:
    """Reads the media of requests; on the event loop. Decoding is other threads' wait for other processes' work."""

    def __init__(self, decoder: Decoder, sites: AllowedHosts) -> None:
        self._decoder, self._sites = decoder, sites
        self._held = _Held()
        self._threads: Executor = ThreadPoolExecutor(2, thread_name_prefix="media")

    async def load(
        self,
        media: Iterable[Media],
        support: MediaSupport,
        scope: str | None = None,
        stored: StoredFiles = no_stored_files,
    ) -> LoadedMedia:
        """Return the sources of `media`, decoded for a model with that `support`; equal ones once, and without spare
        ones that can't be had. `scope`: see `Decoder.decode`. `stored` gets the client's uploaded files.

        Raises `InvalidRequest`, and `QueueFull` where those of others leave no room.
        """
        loop = asyncio.get_running_loop()
        wanted = await loop.run_in_executor(self._threads, _within_limits, media)  # hashing long texts takes its time
        turns, n_bytes = asyncio.Semaphore(_AT_ONCE), 0  # few files at once, so that other requests make progress

        async def one(source: Source, medium: Media) -> Decoded | None:
            nonlocal n_bytes
            async with turns:
                found = await self._one(source, medium, support, scope, stored)
            n_bytes += 0 if found is None else n_bytes_of(found)
            if n_bytes > MAX_DECODED_BYTES:  # before the rest is decoded
                reason = f"the media of a request may have at most {MAX_DECODED_BYTES} bytes after decoding"
                raise InvalidRequest(reason)
            return found

        try:
            async with asyncio.TaskGroup() as tasks:  # the first that fails ends the others
                found = {source: tasks.create_task(one(source, medium)) for source, medium in wanted.items()}
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return {source: decoded for source, task in found.items() if (decoded := task.result()) is not None}

    @property
    def at_work(self) -> list[Process]:
        return self._decoder.at_work

    def warm(self) -> None:
        """Start a decoding process in the background, because a loaded model accepts media."""
        self._threads.submit(self._decoder.warm)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._decoder.close()

    async def _one(
        self, source: Source, wanted: Media, support: MediaSupport, scope: str | None, stored: StoredFiles
    ) -> Decoded | None:
        """Load one file. Return None for a spare one that can't be read. Raises `InvalidRequest` for others."""
        may_be_document = wanted.kind == "document"
        try:
            file = await self._file(source, stored, any_type=may_be_document)
            hints = _hints(source, file.name, support) if may_be_document else None
            decode = partial(self._decode, file.data, support.sample_rate, scope, hints)
            found = await asyncio.get_running_loop().run_in_executor(self._threads, decode)
            return replace(found, name=file.name) if isinstance(found, Document) else found
        except Unreadable as fault:
            message = f"{wanted.at}: {_DOCUMENT_FAILED if may_be_document else _FAILED}: {fault}"
            if not wanted.spare:
                raise InvalidRequest(message, wanted.at) from None
            log.info("left out of a prompt: %s", message)
            return None

    def _decode(self, data: bytes, sample_rate: int, scope: str | None, document: DocumentHints | None) -> Decoded:
        self._held.check()
        found = self._decoder.decode(data, sample_rate, scope, document)
        for bitmap in bitmaps_of(found):
            self._held.add(bitmap)
        return found

    async def _file(self, source: Source, stored: StoredFiles, *, any_type: bool) -> FileContent:
        """Get the bytes, and the name of a stored file. Raises `Unreadable`."""
        if isinstance(source, bytes):
            return FileContent(source, "")
        if isinstance(source, StoredFile):
            found = await stored(source.id)
            if found is None:
                raise Unreadable(f"No such File object: {short(source.id)}")
            return found
        if _is_fetched(source):
            from server.media.fetch import MediaFetcher  # with httpcore2: most servers fetch nothing

            return FileContent(await MediaFetcher(self._sites).fetch(source.url), "")
        loop = asyncio.get_running_loop()
        data = await loop.run_in_executor(self._threads, partial(inline, source.url, any_type=any_type))
        return FileContent(data, "")


def _hints(source: Source, stored_name: str, support: MediaSupport) -> DocumentHints:
    """Return what the request says about a document before its bytes are read."""
    written = stored_name
    if isinstance(source, MediaUrl):
        declared = source.url[len(_DATA) :].partition(",")[0] if source.url.startswith(_DATA) else ""
        written = declared if media_type_of(declared) else source.name
    low_detail = isinstance(source, MediaUrl | StoredFile) and source.low_detail
    return DocumentHints(media_type_of(written), "image" in support.kinds, low_detail)


class _Held:
    """How much is decoded and still in use. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # bitmaps go wherever the interpreter happens to be
        self._n_bytes = 0

    def check(self) -> None:
        """Raises `QueueFull`."""
        if self._n_bytes >= MAX_HELD_BYTES:
            raise QueueFull("the memory for decoded media is in use by other requests", 1, "media_full")

    def add(self, bitmap: Bitmap) -> None:
        """Count the bytes of `bitmap` until it is garbage-collected."""
        self._count(len(bitmap.data))
        weakref.finalize(bitmap, self._count, -len(bitmap.data)).atexit = False

    def _count(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes += n_bytes


def check_shown(bitmaps: Sequence[Bitmap]) -> None:
    """Raise `InvalidRequest` if one prompt contains more media than a request may send. A part that the prompt repeats
    is copied each time.
    """
    if len(bitmaps) > MAX_FILES:
        raise InvalidRequest(f"a prompt may show at most {MAX_FILES} files, this one shows {len(bitmaps)}")
    if sum(len(each.data) for each in bitmaps) > MAX_DECODED_BYTES:
        raise InvalidRequest(f"the media of a prompt may have at most {MAX_DECODED_BYTES} bytes after decoding")


def inline(url: str, *, any_type: bool = False) -> bytes:
    """Return the file in a ``data:`` URL, or in base64 alone (tools/server/server-common.cpp, handle_media).

    `any_type`: whether the URL may have another type than an image's, audio's or video's. Raises `Unreadable`, in
    llama-server's words where it has some.
    """
    text = url
    if url.startswith(_DATA):
        head, comma, text = url.partition(",")
        if not comma or "," in text:
            raise Unreadable("Invalid uri-encoded base64 value")
        if not any_type and not head.startswith(_DATA_TYPES):
            raise Unreadable(f"Invalid uri format: {head[:80]}")
        if not head.endswith("base64"):
            raise Unreadable("uri must be base64 encoded")
    try:
        found = base64.b64decode(_padded("".join(text.split())), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise Unreadable("Invalid base64 value")
    return found


def _padded(text: str) -> str:
    """Some clients leave the end out, and others use the alphabet of addresses."""
    text = text.rstrip("=").replace("-", "+").replace("_", "/")
    return text + "=" * (-len(text) % 4)


def _is_fetched(source: Source) -> bool:
    return isinstance(source, MediaUrl) and source.url.startswith(("http", "file://"))


def _within_limits(media: Iterable[Media]) -> dict[Source, Media]:
    """Return each distinct source, as required if any of its uses is. Above the limit, the oldest spare sources are
    dropped. Raises `InvalidRequest`.
    """
    wanted: dict[Source, Media] = {}
    for each in media:
        if each.source is not None and (each.source not in wanted or not each.spare):
            wanted[each.source] = each
    _leave_out(wanted, list(wanted), MAX_FILES, "files")
    _leave_out(wanted, [source for source in wanted if _is_fetched(source)], MAX_LINKS, "addresses of files")
    return wanted


def _leave_out(wanted: dict[Source, Media], found: Sequence[Source], most: int, what: str) -> None:
    n_over = len(found) - most
    spare = [source for source in found if wanted[source].spare]
    if n_over > len(spare):
        raise InvalidRequest(f"a request may have at most {most} {what}, this one has {len(found)}")
    for source in spare[: max(n_over, 0)]:
        del wanted[source]
