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

_PHOTOS, _VIDEOS, _DOCUMENTS = "pictures", "video", "documents"
_EXTRAS = {
    **dict.fromkeys(("WebP", "AVIF", "HEIC"), _PHOTOS),
    **dict.fromkeys(("MP4", "Matroska", "AVI"), _VIDEOS),
}
"""Formats that an optional extra of this package decodes, by the extra's name."""
_IMPORTED = {_PHOTOS: ("PIL", "pi_heif"), _VIDEOS: ("av",)}
MAX_KNOWN, MAX_KNOWN_CHARS = 4096, 64 << 20
"""Files that are remembered: the sizes of media, some 500 bytes each, and the text of documents."""
DOCUMENT_MEMORY_BYTES = 1 << 30
"""For parsing one PDF or HTML page."""
_Key: TypeAlias = tuple[str, str, int, DocumentHints | None]  # scope, SHA-256, sample rate


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Limits per file, and how frames of a video are taken."""

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
        self._known = _Known()
        limits = limits or WorkLimits(cpu_s=20, wall_s=60.0, memory_bytes=2 << 30, answer_bytes=512 << 20)
        wall_s = max(limits.wall_s, 3 * documents.cpu_s)
        for_documents = replace(limits, cpu_s=documents.cpu_s, wall_s=wall_s, memory_bytes=DOCUMENT_MEMORY_BYTES)
        self._processes = {
            "": Processes(answerer, limits),
            _PHOTOS: Processes("server.media.photos:answerer", limits),
            _VIDEOS: Processes("server.media.video:answerer", replace(limits, cpu_s=3 * limits.cpu_s)),
            _DOCUMENTS: Processes("server.media.extract:answerer", for_documents),
        }

    def decode(
        self, data: bytes, sample_rate: int, scope: str | None = None, document: DocumentHints | None = None
    ) -> Decoded:
        """Return the image, the audio at `sample_rate` (0: the model has no audio input), the video, or the document.

        A file is only read as a document if there are hints about a `document`. A file that was decoded before in
        the same `scope` is decoded again only when its data is requested: a caller that has its embeddings does not
        request it. A scope of None disables this memory, because the timing would reveal whether other clients sent
        the same file. Raises `Unreadable`.
        """
        key = (scope or "", hashlib.sha256(data).hexdigest(), sample_rate, document)
        known = self._known.get(key) if scope is not None else None
        if known is not None:
            again = partial(self._again, data, sample_rate, document)
            return _without_data(known, again if isinstance(known, Bitmap) else cache(again))  # once for all parts
        found = self._decoded(data, sample_rate, key[1], document)
        if scope is not None:
            self._known.add(key, _without_data(found))
        return found

    def _again(self, data: bytes, sample_rate: int, document: DocumentHints | None) -> list[bytes]:
        try:
            return [each.data for each in bitmaps_of(self._decoded(data, sample_rate, "", document))]
        except Unreadable as fault:  # decoding succeeded before, so the server is overloaded
            raise InvalidRequest(f"a media file can't be read again: {fault}") from None

    def _decoded(self, data: bytes, sample_rate: int, name: str, document: DocumentHints | None) -> Decoded:
        if document is None:
            return self._medium(data, read_header(data), sample_rate, name)
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
                return self._medium(data, header, sample_rate, name)
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

    def _extracted(self, what: bytes, data: bytes, name: str, hints: DocumentHints) -> Document:
        """Extract the text of a PDF or an HTML page in a sandboxed process. Raises `Unreadable`."""
        self._check_document(len(data))
        side = LOW_DETAIL_SIDE if hints.low_detail else LONGEST_SIDE
        wanted = {**asdict(self._document_limits), "images": MAX_PAGE_IMAGES, "side": side, "renders": hints.sees}
        found, pixels = ask(self._processes[_DOCUMENTS], what, wanted, data, "reading it")
        prefix = hashlib.sha256(f"{name} {side}".encode()).hexdigest()
        parts: list[str | Bitmap] = []
        notes: list[str] = []
        at = 0
        for kind, content in found["parts"]:
            if kind == "image":
                width, height = content
                end = at + 3 * width * height
                parts.append(Bitmap("image", width, height, pixels[at:end], f"{prefix}+{len(parts)}"))
                at = end
            else:
                (notes if kind == "note" else parts).append(PlainText(content))
        if not any(isinstance(part, Bitmap) or part.strip() for part in parts):
            raise Unreadable("it has no text")
        return Document(tuple(parts), "application/pdf" if what == PDF else "text/html", notes=tuple(notes))

    def _medium(self, data: bytes, header: MediaHeader, sample_rate: int, name: str) -> Decoded:
        options = self._options
        if len(data) > options.file_bytes:
            raise Unreadable(f"it has {len(data)} bytes, at most {options.file_bytes} are possible")
        if header.width * header.height > options.pixels:
            shown = f"{header.width} x {header.height} pixels"
            raise Unreadable(f"it is a {header.form} of {shown}, at most {options.pixels} are possible")
        if header.kind == "audio" and not sample_rate:
            raise Unreadable(f"it is {header.form}, and this model hears nothing")
        extra = _EXTRAS.get(header.form, "")
        if extra and not has_extra(extra):
            raise Unreadable(
                f"it is {header.form}, which this server reads only with its extra {extra} "
                f"(pip install 'llamapool[{extra}]'); send PNG, JPEG, GIF or BMP, WAV, MP3 or FLAC"
            )
        wanted = {**asdict(options), "form": header.form, "rate": sample_rate}
        found, content = ask(self._processes[extra], KINDS[header.kind], wanted, data, f"decoding this {header.form}")
        if header.kind == "video":
            return _video(options, found, content, name)
        return Bitmap(header.kind, found["width"], found["height"], content, name)

    @property
    def at_work(self) -> list[Process]:
        return [each for some in self._processes.values() for each in some.at_work]

    def warm(self) -> None:
        """Start a process for the next file."""
        self._processes[""].warm()

    def close(self) -> None:
        for processes in self._processes.values():
            processes.close()


def has_extra(name: str) -> bool:
    return all(find_spec(module) is not None for module in _IMPORTED[name])


def reads_video() -> bool:
    """Return whether a model that sees can be shown one."""
    return has_extra(_VIDEOS)


class _Known:
    """Recently decoded files without their data. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[_Key, Decoded] = OrderedDict()
        self._n_chars = 0

    def get(self, key: _Key) -> Decoded | None:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def add(self, key: _Key, found: Decoded) -> None:
        with self._lock:
            if key in self._found:  # two requests have sent it at the same time
                return
            self._found[key] = found
            self._n_chars += _n_chars(found)
            while len(self._found) > MAX_KNOWN or self._n_chars > MAX_KNOWN_CHARS:
                self._n_chars -= _n_chars(self._found.popitem(last=False)[1])


def _n_chars(found: Decoded) -> int:
    return sum(len(part) for part in found.parts if isinstance(part, str))


def _without_data(found: Decoded, again: Callable[[], list[bytes]] | None = None) -> Decoded:
    """Return `found` without its data, and with functions that take it from `again`."""
    numbers = count()

    def stripped(part: Bitmap) -> Bitmap:
        i = next(numbers)
        return replace(part, data=b"", again=again and (lambda: again()[i]))

    if isinstance(found, Bitmap):
        return stripped(found)
    return replace(found, parts=tuple(part if isinstance(part, str) else stripped(part) for part in found.parts))


def _video(options: DecodeOptions, found: dict[str, Any], frames: bytes, name: str) -> Video:
    """Return a video in llama-server's prompt format: `Video:`, then frames, with a timestamp after the first frame of
    each interval (tools/mtmd/mtmd-helper.cpp, read_next). The name of a frame includes the sampling settings.
    """
    rate, width, height = found["rate"], found["width"], found["height"]
    n_bytes = 3 * width * height
    cut_name = hashlib.sha256(f"{name} {options.fps:g} {options.stamp_ms}".encode()).hexdigest()
    parts: list[str | Bitmap] = ["Video:"]
    next_ms = 0.0
    for i, at in enumerate(range(0, len(frames), n_bytes)):
        data = frames[at : at + n_bytes]
        parts.append(Bitmap("image", width, height, data, f"{cut_name}+{i}", of_video=True))
        ms = i / rate * 1000
        if options.stamp_ms > 0 and ms >= next_ms:
            minutes = int(ms / 60_000)
            parts.append(f"[{minutes}m{ms / 1000 - 60 * minutes:.2f}s]")
            next_ms += options.stamp_ms
    return Video(tuple(parts), found["has_audio"])
