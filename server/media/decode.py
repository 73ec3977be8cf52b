"""Decodes files in sandboxed processes (`server.sandbox`), because the decoders are C code that parses untrusted data.

If a decoder crashes, hangs or exceeds its time limit, only that file fails.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import count
from typing import Any, TypeAlias

from server.errors import InvalidRequest
from server.media.bitmap import Bitmap, Decoded, Document, Video, bitmaps_of
from server.media.document import (
    HTML,
    LONGEST_SIDE,
    LOW_DETAIL_SIDE,
    MAX_PAGE_IMAGES,
    PDF,
    DocumentHints,
    DocumentLimits,
    check_text,
    is_html,
    is_pdf,
    legacy_text,
    unicode_text,
    unsupported,
)
from server.media.header import MediaHeader, Unreadable, read_header
from server.media.messages import KINDS, ask
from server.sandbox.process import Process, Processes, WorkLimits
from server.vocab import PlainText

_IMAGES, _VIDEOS, _DOCUMENTS = "pictures", "video", "documents"
_EXTRAS = {
    **dict.fromkeys(("WebP", "AVIF", "HEIC"), _IMAGES),
    **dict.fromkeys(("MP4", "Matroska", "AVI"), _VIDEOS),
}
"""The extra of this package that decodes a format."""
_MODULES = {_IMAGES: ("PIL", "pi_heif"), _VIDEOS: ("av",)}
MAX_CACHED, MAX_CACHED_CHARS = 4096, 64 << 20
"""Limits of the cache of decoded files: it has the sizes of media, about 500 bytes each, and the text of documents."""
DOCUMENT_MEMORY_BYTES = 1 << 30
"""For parsing one PDF or HTML page."""
_Key: TypeAlias = tuple[str, str, int, DocumentHints | None]  # cache namespace, SHA-256, sample rate, hints


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Limits per file, and how video frames are sampled."""

    pixels: int = 1 << 25  # of an image
    seconds: float = 1800.0  # of audio
    frames: int = 256  # of a video
    video_bytes: int = 480 << 20  # of its frames
    file_bytes: int = 64 << 20  # of the encoded file
    fps: float = 4.0  # frames per second, 0 = all
    stamp_ms: int = 5000  # between two timestamps, 0 = none


class Decoder:
    """Decodes files. Methods block and are thread-safe.

    ``answerer``: name of the function that creates the request handler of a process for images and audio.
    """

    def __init__(
        self,
        answerer: str,
        options: DecodeOptions = DecodeOptions(),
        limits: WorkLimits | None = None,
        documents: DocumentLimits | None = None,
    ) -> None:
        documents = documents or DocumentLimits()
        self._options, self._document_limits = options, documents
        self._cache = _Cache()
        limits = limits or WorkLimits(cpu_s=20, wall_s=60.0, memory_bytes=2 << 30, answer_bytes=512 << 20)
        wall_s = max(limits.wall_s, 3 * documents.cpu_s)
        for_documents = replace(limits, cpu_s=documents.cpu_s, wall_s=wall_s, memory_bytes=DOCUMENT_MEMORY_BYTES)
        self._processes = {
            "": Processes(answerer, limits),
            _IMAGES: Processes("server.media.extra_images:answerer", limits),
            _VIDEOS: Processes("server.media.video:answerer", replace(limits, cpu_s=3 * limits.cpu_s)),
            _DOCUMENTS: Processes("server.media.extract:answerer", for_documents),
        }

    def decode(
        self, data: bytes, sample_rate: int, scope: str | None = None, document: DocumentHints | None = None
    ) -> Decoded:
        """Return the image, the audio at `sample_rate` (0: the model has no audio input), the video, or the document.

        A file may only be a document if there are hints about a `document`. A file that was decoded before in the
        cache namespace `scope` is only decoded again when its data is requested. Callers with cached embeddings do not
        request it. A scope of None disables the cache, because the timing would reveal whether another client has sent
        the same file. Raises `Unreadable`.
        """
        key = (scope or "", hashlib.sha256(data).hexdigest(), sample_rate, document)
        cached = self._cache.get(key) if scope is not None else None
        if cached is not None:
            again = partial(self._again, data, sample_rate, document)
            return _without_data(cached, again if isinstance(cached, Bitmap) else cache(again))  # once for all parts
        decoded = self._decoded(data, sample_rate, key[1], document)
        if scope is not None:
            self._cache.add(key, _without_data(decoded))
        return decoded

    def _again(self, data: bytes, sample_rate: int, document: DocumentHints | None) -> list[bytes]:
        try:
            return [each.data for each in bitmaps_of(self._decoded(data, sample_rate, "", document))]
        except Unreadable as fault:  # decoding succeeded before, so the server must be overloaded
            raise InvalidRequest(f"a media file can't be read again: {fault}") from None

    def _decoded(self, data: bytes, sample_rate: int, name: str, document: DocumentHints | None) -> Decoded:
        if document is None:
            return self._decoded_media(data, read_header(data), sample_rate, name)
        if is_pdf(data):
            return self._extracted(PDF, data, name, document)
        text = unicode_text(data)
        if text is None:
            try:
                header = read_header(data)
            except Unreadable:
                text = legacy_text(data)
                if text is None:
                    raise unsupported(data) from None
            else:
                if header.kind != "audio" and not document.sees:
                    raise Unreadable(f"it is {header.form}, and this model cannot be shown images")
                return self._decoded_media(data, header, sample_rate, name)
        if not text.strip():
            raise Unreadable("it is empty")
        self._check_document(len(data))
        if is_html(text, document.media_type):
            return self._extracted(HTML, text.encode(), name, document)
        check_text(len(data), self._document_limits.text_bytes)
        return Document((PlainText(text),), document.media_type or "text/plain")

    def _check_document(self, n_bytes: int) -> None:
        most = self._document_limits.file_bytes
        if n_bytes > most:
            raise Unreadable(f"it has {n_bytes} bytes, and a document may have {most} (document_bytes)")

    def _extracted(self, kind: bytes, data: bytes, name: str, hints: DocumentHints) -> Document:
        """Extract the text of a PDF or an HTML page in a sandboxed process. Raises `Unreadable`."""
        self._check_document(len(data))
        side = LOW_DETAIL_SIDE if hints.low_detail else LONGEST_SIDE
        options = {**asdict(self._document_limits), "images": MAX_PAGE_IMAGES, "side": side, "renders": hints.sees}
        found, pixels = ask(self._processes[_DOCUMENTS], kind, options, data, "reading it")
        prefix = hashlib.sha256(f"{name} {side}".encode()).hexdigest()
        parts: list[str | Bitmap] = []
        notes: list[str] = []
        at = 0
        for part_kind, content in found["parts"]:
            if part_kind == "image":
                width, height = content
                end = at + 3 * width * height
                parts.append(Bitmap("image", width, height, pixels[at:end], f"{prefix}+{len(parts)}"))
                at = end
            else:
                (notes if part_kind == "note" else parts).append(PlainText(content))
        if not any(isinstance(part, Bitmap) or part.strip() for part in parts):
            raise Unreadable("it has no text")
        return Document(tuple(parts), "application/pdf" if kind == PDF else "text/html", notes=tuple(notes))

    def _decoded_media(self, data: bytes, header: MediaHeader, sample_rate: int, name: str) -> Decoded:
        options = self._options
        if len(data) > options.file_bytes:
            raise Unreadable(f"it has {len(data)} bytes, at most {options.file_bytes} are possible")
        if header.width * header.height > options.pixels:
            shown = f"{header.width} x {header.height} pixels"
            raise Unreadable(f"it is a {header.form} of {shown}, at most {options.pixels} are possible")
        if header.kind == "audio" and not sample_rate:
            raise Unreadable(f"it is {header.form}, and this model has no audio input")
        extra = _EXTRAS.get(header.form, "")
        if extra and not has_extra(extra):
            raise Unreadable(
                f"it is {header.form}, which this server reads only with its extra {extra} "
                f"(pip install 'llamapool[{extra}]'); send PNG, JPEG, GIF or BMP, WAV, MP3 or FLAC"
            )
        request = {**asdict(options), "form": header.form, "rate": sample_rate}
        found, content = ask(self._processes[extra], KINDS[header.kind], request, data, f"decoding this {header.form}")
        if header.kind == "video":
            return _video(options, found, content, name)
        return Bitmap(header.kind, found["width"], found["height"], content, name)

    @property
    def at_work(self) -> list[Process]:
        return [process for group in self._processes.values() for process in group.at_work]

    def warm(self) -> None:
        """Start a process for the next file."""
        self._processes[""].warm()

    def close(self) -> None:
        for processes in self._processes.values():
            processes.close()


def has_extra(name: str) -> bool:
    return all(find_spec(module) is not None for module in _MODULES[name])


def reads_video() -> bool:
    """Return whether this server can decode videos."""
    return has_extra(_VIDEOS)


class _Cache:
    """The most recently used decoded files, without their data. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[_Key, Decoded] = OrderedDict()
        self._n_chars = 0

    def get(self, key: _Key) -> Decoded | None:
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
            return self._files.get(key)

    def add(self, key: _Key, decoded: Decoded) -> None:
        with self._lock:
            if key in self._files:  # another request sent it at the same time
                return
            self._files[key] = decoded
            self._n_chars += _n_chars(decoded)
            while len(self._files) > MAX_CACHED or self._n_chars > MAX_CACHED_CHARS:
                self._n_chars -= _n_chars(self._files.popitem(last=False)[1])


def _n_chars(decoded: Decoded) -> int:
    return sum(len(part) for part in decoded.parts if isinstance(part, str))


def _without_data(decoded: Decoded, again: Callable[[], list[bytes]] | None = None) -> Decoded:
    """Return the file without its data. ``again``: returns the data of all its bitmaps."""
    numbers = count()

    def stripped(part: Bitmap) -> Bitmap:
        i = next(numbers)
        return replace(part, data=b"", again=again and (lambda: again()[i]))

    if isinstance(decoded, Bitmap):
        return stripped(decoded)
    return replace(decoded, parts=tuple(part if isinstance(part, str) else stripped(part) for part in decoded.parts))


def _video(options: DecodeOptions, found: dict[str, Any], frames: bytes, name: str) -> Video:
    """Return a video in llama-server's prompt format: `Video:`, then frames, with a timestamp after the first frame of
    each interval (tools/mtmd/mtmd-helper.cpp, read_next). The id of a frame depends on the sampling options.
    """
    rate, width, height = found["rate"], found["width"], found["height"]
    n_bytes = 3 * width * height
    prefix = hashlib.sha256(f"{name} {options.fps:g} {options.stamp_ms}".encode()).hexdigest()
    parts: list[str | Bitmap] = ["Video:"]
    next_ms = 0.0
    for i, at in enumerate(range(0, len(frames), n_bytes)):
        data = frames[at : at + n_bytes]
        parts.append(Bitmap("image", width, height, data, f"{prefix}+{i}", of_video=True))
        ms = i / rate * 1000
        if options.stamp_ms > 0 and ms >= next_ms:
            minutes = int(ms / 60_000)
            parts.append(f"[{minutes}m{ms / 1000 - 60 * minutes:.2f}s]")
            next_ms += options.stamp_ms
    return Video(tuple(parts), found["has_audio"])
