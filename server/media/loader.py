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
from server.sandbox.client_threads import ClientThreads
from server.sandbox.process import Process

log = logging.getLogger(__name__)

MAX_FILES = 256
"""Files of one request; llama-server has no limit."""
MAX_LINKS = 32
"""Files of one request that are fetched."""
MAX_DECODED_BYTES = 1 << 30
"""Decoded bytes of all files of a request."""
MAX_HELD_BYTES = 2 << 30
"""Decoded bytes of all requests that are still in use."""
_MAX_CONCURRENT = 4  # files of one request that are fetched or decoded at the same time
_MAX_OF_CLIENT = 2  # files of one client, and as many of its documents, that are decoded at the same time
_DATA = "data:"
_DATA_TYPES = ("data:image/", "data:video/", "data:audio/")
_FAILED = "Failed to load image or audio file"  # llama-server's words
_DOCUMENT_FAILED = "Failed to read the document"


@dataclass(frozen=True, slots=True)
class MediaSupport:
    """The media types that a model accepts, and the sample rate of its audio input; 0 without audio input."""

    kinds: frozenset[BitmapKind] = frozenset()
    sample_rate: int = 0


async def no_stored_files(_: str) -> FileContent | None:
    """Return None, for clients without uploaded files."""
    return None


class MediaLoader:
    """Loads the media of requests. Runs on the event loop."""

    def __init__(self, decoder: Decoder, sites: AllowedHosts) -> None:
        self._decoder, self._sites = decoder, sites
        self._memory = _MemoryUse()
        self._threads: Executor = ThreadPoolExecutor(2, thread_name_prefix="media")  # for hashes and base64
        self._decoding = ClientThreads(2 * _MAX_OF_CLIENT, _MAX_OF_CLIENT, "media-decode")
        self._reading = ClientThreads(2 * _MAX_OF_CLIENT, _MAX_OF_CLIENT, "documents")

    async def load(
        self,
        media: Iterable[Media],
        support: MediaSupport,
        scope: str | None = None,
        stored: StoredFiles = no_stored_files,
        client: str = "",
    ) -> LoadedMedia:
        """Return each distinct source of `media`, decoded for a model with that `support`.

        Unreadable optional sources are omitted. ``scope``: see `Decoder.decode`. ``stored``: returns the client's
        uploaded files. Files of one `client` are decoded in its turn. Raises `InvalidRequest`, and `QueueFull` if
        decoded media of other requests use the memory.
        """
        loop = asyncio.get_running_loop()
        sources = await loop.run_in_executor(self._threads, _within_limits, media)  # hashing long texts takes time
        limit, n_bytes = asyncio.Semaphore(_MAX_CONCURRENT), 0  # so that other requests make progress

        async def one(source: Source, part: Media) -> Decoded | None:
            nonlocal n_bytes
            async with limit:
                decoded = await self._one(source, part, support, scope, stored, client)
            n_bytes += 0 if decoded is None else n_bytes_of(decoded)
            if n_bytes > MAX_DECODED_BYTES:  # before the rest is decoded
                reason = f"the media of a request may have at most {MAX_DECODED_BYTES} bytes after decoding"
                raise InvalidRequest(reason)
            return decoded

        try:
            async with asyncio.TaskGroup() as group:  # the first failure cancels the others
                tasks = {source: group.create_task(one(source, part)) for source, part in sources.items()}
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return {source: decoded for source, task in tasks.items() if (decoded := task.result()) is not None}

    @property
    def at_work(self) -> list[Process]:
        return self._decoder.at_work

    def warm(self) -> None:
        """Start a decoding process in the background, because a loaded model accepts media."""
        self._threads.submit(self._decoder.warm)

    def close(self) -> None:
        for threads in (self._threads, self._decoding, self._reading):
            threads.shutdown(wait=False, cancel_futures=True)
        self._decoder.close()

    async def _one(
        self, source: Source, part: Media, support: MediaSupport, scope: str | None, stored: StoredFiles, client: str
    ) -> Decoded | None:
        """Load one file. Return None if it is optional and can't be read. Raises `InvalidRequest` for others."""
        may_be_document = part.kind == "document"
        try:
            file = await self._file(source, stored, any_type=may_be_document)
            hints = _hints(source, file.name, support) if may_be_document else None
            decode = partial(self._decode, file.data, support.sample_rate, scope, hints)
            decoded = await (self._reading if may_be_document else self._decoding).run(client, decode)
            return replace(decoded, name=file.name) if isinstance(decoded, Document) else decoded
        except Unreadable as fault:
            message = f"{part.at}: {_DOCUMENT_FAILED if may_be_document else _FAILED}: {fault}"
            if not part.optional:
                raise InvalidRequest(message, part.at) from None
            log.info("left out of a prompt: %s", message)
            return None

    def _decode(self, data: bytes, sample_rate: int, scope: str | None, document: DocumentHints | None) -> Decoded:
        self._memory.check()
        decoded = self._decoder.decode(data, sample_rate, scope, document)
        for bitmap in bitmaps_of(decoded):
            self._memory.add(bitmap)
        return decoded

    async def _file(self, source: Source, stored: StoredFiles, *, any_type: bool) -> FileContent:
        """Return the bytes, and the name of a stored file. Raises `Unreadable`."""
        if isinstance(source, bytes):
            return FileContent(source, "")
        if isinstance(source, StoredFile):
            file = await stored(source.id)
            if file is None:
                raise Unreadable(f"No such File object: {short(source.id)}")
            return file
        if _is_fetched(source):
            from server.media.fetch import MediaFetcher  # imports httpcore2, which most servers do not need

            return FileContent(await MediaFetcher(self._sites).fetch(source.url), "")
        loop = asyncio.get_running_loop()
        data = await loop.run_in_executor(self._threads, partial(inline, source.url, any_type=any_type))
        return FileContent(data, "")


def _hints(source: Source, stored_name: str, support: MediaSupport) -> DocumentHints:
    """Return the request's description of a document."""
    name = stored_name
    if isinstance(source, MediaUrl):
        declared = source.url[len(_DATA) :].partition(",")[0] if source.url.startswith(_DATA) else ""
        name = declared if media_type_of(declared) else source.name
    low_detail = isinstance(source, MediaUrl | StoredFile) and source.low_detail
    return DocumentHints(media_type_of(name), "image" in support.kinds, low_detail)


class _MemoryUse:
    """Counts the decoded bytes that are still in use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a bitmap may be garbage-collected while its thread holds the lock
        self._n_bytes = 0

    def check(self) -> None:
        """Raise `QueueFull` if the limit is reached."""
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
    """Raise `InvalidRequest` if a prompt contains more media than a request may send. Repetitions count."""
    if len(bitmaps) > MAX_FILES:
        raise InvalidRequest(f"a prompt may show at most {MAX_FILES} files, this one shows {len(bitmaps)}")
    if sum(len(each.data) for each in bitmaps) > MAX_DECODED_BYTES:
        raise InvalidRequest(f"the media of a prompt may have at most {MAX_DECODED_BYTES} bytes after decoding")


def inline(url: str, *, any_type: bool = False) -> bytes:
    """Return the file in a ``data:`` URL or in plain base64 (tools/server/server-common.cpp, handle_media).

    ``any_type``: allow types besides image, audio and video. Raises `Unreadable`, with llama-server's messages.
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
        data = base64.b64decode(_padded("".join(text.split())), validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data:
        raise Unreadable("Invalid base64 value")
    return data


def _padded(text: str) -> str:
    """Return standard base64, because some clients omit the padding or use the URL-safe alphabet."""
    text = text.rstrip("=").replace("-", "+").replace("_", "/")
    return text + "=" * (-len(text) % 4)


def _is_fetched(source: Source) -> bool:
    return isinstance(source, MediaUrl) and source.url.startswith(("http", "file://"))


def _within_limits(media: Iterable[Media]) -> dict[Source, Media]:
    """Return each distinct source, which is only optional if all its parts are.

    Above the limit, the oldest optional sources are omitted. Raises `InvalidRequest` if that is not enough.
    """
    parts: dict[Source, Media] = {}
    for part in media:
        if part.source is not None and (part.source not in parts or not part.optional):
            parts[part.source] = part
    _omit_optional(parts, list(parts), MAX_FILES, "files")
    _omit_optional(parts, [source for source in parts if _is_fetched(source)], MAX_LINKS, "addresses of files")
    return parts


def _omit_optional(parts: dict[Source, Media], sources: Sequence[Source], limit: int, name: str) -> None:
    n_over = len(sources) - limit
    optional = [source for source in sources if parts[source].optional]
    if n_over > len(optional):
        raise InvalidRequest(f"a request may have at most {limit} {name}, this one has {len(sources)}")
    for source in optional[: max(n_over, 0)]:
        del parts[source]
