"""Documents of requests: their types, limits and plain text.

Plain text, Markdown and CSV are decoded here. PDF and HTML are parsed in a separate process (`extract`), because a
hostile file can make a parser crash, loop or take all memory.
"""

import codecs
import re
from dataclasses import dataclass

from server.media.header import Unreadable

PDF, HTML = b"p", b"h"
SUPPORTED = "PDF, plain text, Markdown, CSV and HTML"
MAX_PAGE_IMAGES = 64
"""Pages of one document that are shown as images."""
LONGEST_SIDE, LOW_DETAIL_SIDE = 1568, 768
"""Pixels of a page image's longer side; the second one with ``detail: "low"``."""
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, with which it starts
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BINARY = re.compile(r"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that text does not contain. Logs have ESC, and manuals have form feeds."""
_HTML_START = re.compile(r"\s*+(?:<!--(?:(?!-->).)*+-->\s*+)*+<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
"""Possessive quantifiers make matching linear. With backtracking, 40 comments without a page after them took
exponential time.
"""
_PDF_START_BYTES = 1024
"""The header may follow other bytes (ISO 32000-1, annex H.3, note 13)."""
_HTML_START_CHARS = 4096
_TYPES = {
    **dict.fromkeys(("html", "htm", "xhtml", "text/html", "application/xhtml+xml"), "text/html"),
    **dict.fromkeys(("md", "markdown", "text/markdown", "text/x-markdown"), "text/markdown"),
    **dict.fromkeys(("csv", "text/csv", "application/csv"), "text/csv"),
    **dict.fromkeys(("txt", "text/plain"), "text/plain"),
}
"""Media types by file extension and by media type."""


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Limits of one document: ``pages`` of a PDF, ``file_bytes``, ``text_bytes`` of its text, ``cpu_s`` to parse it."""

    pages: int = 500
    file_bytes: int = 32 << 20
    text_bytes: int = 8 << 20
    cpu_s: float = 20.0


@dataclass(frozen=True, slots=True)
class DocumentHints:
    """A request's description of a document."""

    media_type: str = ""  # one of a fixed set; "" if the client does not specify it
    sees: bool = False  # the model accepts page images
    low_detail: bool = False  # page images are scaled down


def media_type_of(name: str) -> str:
    """Return the media type for a client's media type or file name; "" if it is unknown.

    The result is one of a fixed set, so that a client can't inject text into the prompt with it.
    """
    name = name.partition(";")[0].strip().lower()
    return _TYPES.get(name) or _TYPES.get(name.rpartition(".")[2], "")


def is_pdf(data: bytes) -> bool:
    """Return whether `data` starts with a PDF's header or has it later. Text that only mentions it is no PDF."""
    start = data[:_PDF_START_BYTES]
    if b"%PDF-" not in start or start.lstrip(codecs.BOM_UTF8 + b" \t\r\n\f\0").startswith(b"%PDF-"):
        return b"%PDF-" in start
    return b"startxref" in data[-_PDF_START_BYTES:] or unicode_text(data) is None


def unicode_text(data: bytes) -> str | None:
    """Decode UTF-8, UTF-16 and UTF-32 with a byte order mark, and UTF-8 without one. Return None for anything else."""
    encoding = next((codec for bom, codec in _BOMS if data.startswith(bom)), "utf-8")
    try:
        return _text(data.decode(encoding))
    except UnicodeDecodeError:
        return None


def legacy_text(data: bytes) -> str | None:
    """Decode Windows-1252, which the web also uses for "Latin-1" (WHATWG Encoding). Return None for binary data."""
    try:
        return _text(data.decode("cp1252"))
    except UnicodeDecodeError:
        return _text(data.decode("latin-1"))


def _text(decoded: str) -> str | None:
    return None if _BINARY.search(decoded) else decoded.replace("\r\n", "\n").replace("\r", "\n")


def is_html(text: str, media_type: str) -> bool:
    """Return whether `text` is HTML: by the client's media type or, if there is none, by its first characters."""
    if media_type:
        return media_type == "text/html"
    return _HTML_START.match(text[:_HTML_START_CHARS]) is not None


def unsupported(data: bytes) -> Unreadable:
    """Return the error for a file that is neither a document nor a supported media type."""
    if not data:
        return Unreadable("it is empty")
    what = "it is a ZIP archive or an Office document" if data.startswith(b"PK\3\4") else "its type is not supported"
    return Unreadable(f"{what}; send {SUPPORTED}, or an image, audio or video")


def check_text(n_bytes: int, most: int) -> None:
    """Raise `Unreadable` for more bytes of text than a document may have."""
    if n_bytes > most:
        raise Unreadable(f"its text has more than {most} bytes")
