"""Extracts text and page images of PDFs with PDFium (Chrome's library), and the visible text of HTML pages.

Scripts, styles, metadata and comments are not visible. Only runs in a process of `decode` with limits, because a
hostile page can take quadratic time.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pypdfium2 as _bindings
import pypdfium2.raw as _raw_bindings

from server.media.document import HTML, check_text
from server.media.header import Unreadable
from server.media.messages import Json, answering
from server.sandbox.worker import Answer

_pdfium: Any = _bindings  # its types are incomplete
_raw: Any = _raw_bindings
_SOFT_HYPHEN = re.compile("[\x02\ufffe](?:\r?\n)?")
"""PDFium's characters for a hyphen that divides a word at the end of a line."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
_SAMPLE = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj "
    b"4 0 obj<</Length 28>>stream\nBT /F 9 Tf 0 0 Td (a) Tj ET  \nendstream endobj "
    b"5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj trailer<</Root 1 0 R>>"
)
_INVISIBLE = frozenset(
    "script style template noscript svg math iframe object canvas audio video select datalist textarea".split()  # noqa: SIM905
)
_BLOCKS = frozenset(
    "address article aside blockquote body br caption dd details dialog div dl dt fieldset figcaption figure footer "  # noqa: SIM905
    "form h1 h2 h3 h4 h5 h6 head header hr li main nav ol p pre section summary table title tr ul".split()
)
_PREFIXES = {"li": "- ", **{f"h{level}": "#" * level + " " for level in range(1, 7)}}
_MAX_OPEN_TAGS = 10
"""Tags and comments without an end, which are text. The parser reads the rest of the page for each of them."""
_SPACES = re.compile(r"[ \t\r\n\f]+")
_CELL_SPACES = re.compile(r" *(\t| ) *")


def answerer() -> Answer:
    """Return the request handler of the process, after loading everything that it needs."""
    list(_pages({"pages": 1, "text_bytes": 1 << 10, "images": 1, "side": 9, "renders": False}, _SAMPLE))
    visible_text("<p>a</p>")
    _rendered(_pdfium.PdfDocument(_SAMPLE)[0], 9)
    return answering(_extracted)


def _extracted(kind: bytes, options: Json, data: bytes) -> tuple[Json, bytes]:
    """Return the parts of a PDF or an HTML page: texts and notes, and the sizes of images, whose pixels follow."""
    if kind == HTML:
        text = _encodable(visible_text(data.decode()))
        check_text(len(text.encode()), options["text_bytes"])
        return {"parts": [["text", text]]}, b""
    parts: list[list[Any]] = []
    pixels: list[bytes] = []
    for part_kind, found in _pages(options, data):
        if part_kind == "image":
            width, height, raw = found
            pixels.append(raw)
            found = width, height  # noqa: PLW2901
        parts.append([part_kind, found])
    return {"parts": parts}, b"".join(pixels)


def _pages(options: Json, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the text of each page, or its image if it has none, and notes about pages that can't be shown."""
    max_pages, max_images, renders = options["pages"], options["images"], options["renders"]
    try:
        pdf = _pdfium.PdfDocument(data)
    except _pdfium.PdfiumError as error:
        if error.err_code == _raw.FPDF_ERR_PASSWORD:
            raise Unreadable("The PDF specified is password protected; send it without a password") from None
        raise Unreadable("The PDF specified was not valid: it is damaged, or cut off") from None
    n_pages = len(pdf)
    if n_pages > max_pages:
        limit = f"a maximum of {max_pages} PDF pages may be provided (document_pages)"
        raise Unreadable(f"it has {n_pages} pages; {limit}")
    n_text_bytes = n_images = n_shown = 0
    without_text: list[int] = []
    for number in range(1, n_pages + 1):
        text, image = _page(pdf, number, options["side"], renders=renders and n_images < max_images)
        if text:
            n_text_bytes += len(text.encode())
            check_text(n_text_bytes, options["text_bytes"])
            yield "text", f"[Page {number}]\n{text}\n"
        elif image is not None:
            n_images += 1
            yield "text", f"[Page {number}]\n"
            yield "image", image
            yield "text", "\n"
        else:
            without_text.append(number)
            yield "text", f"[Page {number}: no text; not shown]\n"
        n_shown += bool(text) or image is not None
    if not n_shown:
        reason = "and nothing that can be shown" if renders else "and this model cannot be shown page images"
        raise Unreadable(f"none of its {n_pages} pages has text, {reason}")
    if without_text:
        yield "note", f"pages without text are not shown: {', '.join(map(str, without_text))}"


def _page(pdf: Any, number: int, longest_side: int, *, renders: bool) -> tuple[str, tuple[int, int, bytes] | None]:
    """Return a page's text. If it has none, contains drawings and `renders` is set, also return its image."""
    try:
        with closing(pdf[number - 1]) as page:
            with closing(page.get_textpage()) as textpage:
                text = _cleaned(textpage.get_text_range())
            if text or not renders or not _raw.FPDFPage_CountObjects(page):
                return text, None
            return "", _rendered(page, longest_side)
    except _pdfium.PdfiumError:
        raise Unreadable(f"The PDF specified was not valid: its page {number} can't be read") from None


def _cleaned(text: str) -> str:
    text = _SOFT_HYPHEN.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _encodable(_UNPRINTABLE.sub("", text).strip())


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 can't encode."""
    return text.encode(errors="replace").decode()


def _rendered(page: Any, longest_side: int) -> tuple[int, int, bytes] | None:
    """Return the page as an image whose longer side has `longest_side` pixels; None for a page without an area."""
    width, height = page.get_size()
    if not (width > 0 and height > 0):
        return None
    scale = longest_side / max(width, height)
    if min(width, height) * scale < 1:
        return None
    bitmap = page.render(scale=scale, rev_byteorder=True, may_draw_forms=False)
    pixels = bitmap.to_numpy()
    if pixels.ndim == 2:  # a gray page
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    return bitmap.width, bitmap.height, np.ascontiguousarray(pixels[:, :, :3]).tobytes()


def visible_text(page: str) -> str:
    """Return the visible text: a line for each block, tabs between table cells, ``#`` before headings."""
    reader = _Reader()
    reader.feed(page)
    n_open = 0
    while reader.rawdata.startswith("<"):  # of a tag or comment without an end
        n_open += 1
        if n_open > _MAX_OPEN_TAGS:
            raise Unreadable(f"more than {_MAX_OPEN_TAGS} of its tags and comments have no end")
        rest, reader.rawdata = reader.rawdata[1:], ""
        reader.handle_data("<")
        reader.feed(rest)
    reader.close()
    reader.end_line()
    return "\n".join(reader.lines)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._parts: list[str] = []  # of the current line
        self._prefix = ""
        self._invisible = ""  # the open invisible element
        self._is_pre = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._invisible:
            return
        if tag in _INVISIBLE:
            self._invisible = tag
        elif tag in ("td", "th"):
            self._parts.append("\t")
        elif tag in _BLOCKS:
            self.end_line()
            self._prefix = _PREFIXES.get(tag, self._prefix)
            self._is_pre = self._is_pre or tag == "pre"
        elif tag == "img" and (alt := dict(attrs).get("alt")):
            self.handle_data(f"[image: {alt}]")

    def handle_endtag(self, tag: str) -> None:
        if self._invisible:
            self._invisible = "" if tag == self._invisible else self._invisible
        elif tag in _BLOCKS:
            self.end_line()
            self._is_pre = self._is_pre and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self._invisible:
            return
        if not self._is_pre:
            self._parts.append(_SPACES.sub(" ", data))
            return
        *lines, last = data.split("\n")
        for line in lines:
            self._parts.append(line)
            self.end_line()
        self._parts.append(last)

    def end_line(self) -> None:
        """Add the current line, unless it is empty."""
        line, self._parts = "".join(self._parts), []
        line = line.rstrip() if self._is_pre else _CELL_SPACES.sub(r"\1", line).strip()
        if line:
            self.lines.append(self._prefix + line)
            self._prefix = ""
