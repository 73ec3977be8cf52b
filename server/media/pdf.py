"""Text and page images of PDFs, by PDFium (the library of Chrome), and the text of HTML pages.

Not for the server's process: `decode` runs it in a process with limits.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pypdfium2 as _bindings
import pypdfium2.raw as _raw_bindings

from server.media.document import HTML, check_text
from server.media.header import Unreadable
from server.media.html_text import visible_text
from server.media.messages import Json, answering
from server.sandbox.worker import Answer

_pdfium: Any = _bindings  # its types are loose
_raw: Any = _raw_bindings
_SOFT_HYPHEN = re.compile("[\x02\ufffe](?:\r?\n)?")
"""PDFium's characters for a hyphen that divides a word at the end of a line."""
_UNPRINTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
_SAMPLE = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj "
    b"4 0 obj<</Length 28>>stream\nBT /F 9 Tf 0 0 Td (a) Tj ET  \nendstream endobj "
    b"5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj trailer<</Root 1 0 R>>"
)


def answerer() -> Answer:
    """Return the function that answers in the process, with everything loaded that it needs."""
    list(_pages({"pages": 1, "text_bytes": 1 << 10, "images": 1, "side": 9, "renders": False}, _SAMPLE))
    visible_text("<p>a</p>")
    _rendered(_pdfium.PdfDocument(_SAMPLE)[0], 9)
    return answering(_extracted)


def _extracted(what: bytes, wanted: Json, data: bytes) -> tuple[Json, bytes]:
    """Return the parts of a PDF or an HTML page: texts and notes, and the sizes of images, whose pixels follow."""
    if what == HTML:
        text = _encodable(visible_text(data.decode()))
        check_text(len(text.encode()), wanted["text_bytes"])
        return {"parts": [["text", text]]}, b""
    parts: list[list[Any]] = []
    pixels: list[bytes] = []
    for kind, found in _pages(wanted, data):
        if kind == "image":
            width, height, raw = found
            pixels.append(raw)
            found = width, height  # noqa: PLW2901
        parts.append([kind, found])
    return {"parts": parts}, b"".join(pixels)


def _pages(wanted: Json, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the text of each page, or its image if it has none, and notes about pages that can't be shown."""
    max_pages, max_images, renders = wanted["pages"], wanted["images"], wanted["renders"]
    try:
        pdf = _pdfium.PdfDocument(data)
    except _pdfium.PdfiumError as error:
        if error.err_code == _raw.FPDF_ERR_PASSWORD:
            raise Unreadable("The PDF specified is password protected; send it without a password") from None
        raise Unreadable("The PDF specified was not valid: it is damaged, or cut off") from None
    n_pages = len(pdf)
    if n_pages > max_pages:
        said = f"a maximum of {max_pages} PDF pages may be provided (document_pages)"
        raise Unreadable(f"it has {n_pages} pages; {said}")
    n_text_bytes = n_images = n_shown = 0
    without_text: list[int] = []
    for number in range(1, n_pages + 1):
        text, image = _page(pdf, number, wanted["side"], renders=renders and n_images < max_images)
        if text:
            n_text_bytes += len(text.encode())
            check_text(n_text_bytes, wanted["text_bytes"])
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
    """Return a page's text, and its image if it has no text, has something drawn on it, and `renders`."""
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
    return _encodable(_UNPRINTED.sub("", text).strip())


def _encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 can't encode."""
    return text.encode(errors="replace").decode()


def _rendered(page: Any, longest_side: int) -> tuple[int, int, bytes] | None:
    """Return the page as an image whose longer side has `longest_side` pixels. None for a page that has no area."""
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
