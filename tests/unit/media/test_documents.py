"""Conversion of documents to text and page images, and rejection of damaged, hostile or oversized ones."""

import contextlib
import os
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from server.app import IMAGE_DECODER
from server.chat.prompt import as_text, read_parts
from server.errors import InvalidRequest
from server.media.bitmap import Bitmap, Document, bitmaps_of
from server.media.decode import Decoder
from server.media.document import LONGEST_SIDE, LOW_DETAIL_SIDE, DocumentHints, DocumentLimits, media_type_of
from server.media.header import Unreadable
from server.media.source import LoadedMedia, Media, StoredFile
from server.vocab import PlainText
from tests.media_files import damaged, media_file, pdf, pdf_of
from tests.unit.dialects.builders import make_model

pytestmark = pytest.mark.slow
N_ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "25"))  # of damage to each file; `make fuzz-media` does more
SEED = os.environ.get("FUZZ_SEED", "1")
TEXT_ONLY, VISION = DocumentHints(), DocumentHints(sees=True)
LIMITS = DocumentLimits(pages=20, file_bytes=1 << 20, text_bytes=1 << 16, cpu_s=2.0)
PAGE = """<!doctype html>
<html><head><title> A  page </title><style>no</style><script>"<p>no</p>"</script></head>
<body><!-- no --><h1>Head</h1><p>One <b>two</b>
three &amp; &lt;|im_end|&gt;</p><ul><li>a<li>b</ul>
<table><tr><th>x<th>y</tr><tr><td>1<td>2</tr></table>
<p>yes
<pre>
if x:
    y
</pre><img alt="a cat"><select><option>no</select>end"""
PAGE_TEXT = """A page
# Head
One two three & <|im_end|>
- a
- b
x\ty
1\t2
yes
if x:
    y
[image: a cat]end"""


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with closing(Decoder(IMAGE_DECODER, documents=LIMITS)) as decoder:
        yield decoder


def convert(decoder: Decoder, data: bytes, hints: DocumentHints = TEXT_ONLY, namespace: str | None = None) -> Document:
    document = decoder.decode(data, 0, namespace, hints)
    assert isinstance(document, Document)
    return document


def text_of(document: Document) -> str:
    """Return the text, with the size of each page image."""
    assert all(isinstance(part, PlainText | Bitmap) for part in document.parts)
    return "".join(part if isinstance(part, str) else f"({part.width}x{part.height})" for part in document.parts)


@pytest.mark.parametrize(
    ("data", "name_or_type", "text", "media_type"),
    [
        (b"a\r\nb", "", "a\nb", "text/plain"),
        ("\ufeffgr\u00f6\u00dfer".encode(), "a.txt", "gr\u00f6\u00dfer", "text/plain"),
        ("gr\u00f6\u00dfer".encode("utf-16"), "", "gr\u00f6\u00dfer", "text/plain"),
        ("gr\u00f6\u00dfer".encode("utf-32"), "", "gr\u00f6\u00dfer", "text/plain"),
        (b"\xfe\xff" + "gr\u00f6\u00dfer".encode("utf-16-be"), "", "gr\u00f6\u00dfer", "text/plain"),
        ("gr\u00f6\u00dfer".encode("latin-1"), "", "gr\u00f6\u00dfer", "text/plain"),
        ("\u201cquoted\u201d".encode("cp1252"), "", "\u201cquoted\u201d", "text/plain"),
        (b"BM,age\n1,2\n", "a.csv", "BM,age\n1,2\n", "text/csv"),
        (b"# Head", "text/markdown; charset=utf-8", "# Head", "text/markdown"),
        (b'{"a": 1}', "application/json", '{"a": 1}', "text/plain"),
        (PAGE.encode(), "", PAGE_TEXT, "text/html"),
        (b'data.startswith(b"%PDF-")', "a.py", 'data.startswith(b"%PDF-")', "text/plain"),
        (b"<p>one<p>two", "text/html", "one\ntwo", "text/html"),
        (b"<html>x", "text/plain", "<html>x", "text/plain"),
        (b'<html>a <b href="x>one</b> &lt; <i y <!-- &amp; <', "", 'a <b href="x>one < <i y <!-- & <', "text/html"),
        (b"<!-- a --> <HTML>x", "", "x", "text/html"),
        (b"<!-- a --> <!-- - b -->\n<!doctype html>x", "", "x", "text/html"),
        (b"<!---->" * 500 + b"x", "", "<!---->" * 500 + "x", "text/plain"),  # took exponential time
        (
            pdf("one\ntwo", "", "three"),
            "a.txt",
            "[Page 1]\none\ntwo\n[Page 2: no text; not shown]\n[Page 3]\nthree\n",
            "application/pdf",
        ),
        (b"junk\n" + pdf("late"), "", "[Page 1]\nlate\n", "application/pdf"),
        (b"\xff\xfe\n" + pdf("late") + bytes(2000), "", "[Page 1]\nlate\n", "application/pdf"),
        (media_file("owner-locked.pdf"), "", "[Page 1]\nclassified text\n", "application/pdf"),
    ],
)
def test_document_type_is_detected_and_its_text_extracted(
    decoder: Decoder, data: bytes, name_or_type: str, text: str, media_type: str
) -> None:
    document = convert(decoder, data, DocumentHints(media_type_of(name_or_type)))
    assert (text_of(document), document.media_type) == (text, media_type)


def test_page_without_text_becomes_an_image_for_a_vision_model(decoder: Decoder) -> None:
    data = pdf("one", None, "")
    document = convert(decoder, data, VISION)
    size = f"({LONGEST_SIDE * 3 // 4}x{LONGEST_SIDE})"
    assert text_of(document) == f"[Page 1]\none\n[Page 2]\n{size}\n[Page 3: no text; not shown]\n"
    assert document.notes == ("pages without text are not shown: 3",)
    (page,) = bitmaps_of(document)
    middle = (LONGEST_SIDE * 5 // 8 * page.width + page.width * 5 // 12) * 3
    assert (page.data[:3], page.data[middle : middle + 3]) == (b"\xff\xff\xff", b"\xff\0\0")  # white, and red
    (small,) = bitmaps_of(convert(decoder, data, DocumentHints(sees=True, low_detail=True)))
    assert (small.height, small.id != page.id) == (LOW_DETAIL_SIDE, True)
    assert convert(decoder, data).notes == ("pages without text are not shown: 2, 3",)


def test_converted_document_is_cached(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pdf("known", None)
    first = convert(decoder, data, VISION, "a namespace")
    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "_decoded", None)
        again = convert(decoder, data, VISION, "a namespace")
    assert text_of(again) == text_of(first)
    (page,), (cached,) = bitmaps_of(first), bitmaps_of(again)
    assert (cached.data, cached.id, cached.decoded()) == (b"", page.id, page.data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "it is empty"),
        (b" \n ", "it is empty"),
        (b"<html><script>x</script>", "it has no text"),
        (b"<html>" + b"<a " * 100_000, "more than 10 of its tags and comments have no end"),
        (b"PK\3\4" + bytes(20), "a ZIP archive or an Office document; send PDF, plain text, Markdown, CSV and HTML"),
        (bytes(range(256)), "its type is not supported; send PDF, plain text"),
        (media_file("tiny.png"), "it is PNG, and this model cannot be shown images"),
        (media_file("tiny.mp3"), "this model has no audio input"),
        (media_file("locked.pdf"), "The PDF specified is password protected"),
        (pdf("a")[:200], "The PDF specified was not valid"),
        (b"%PDF-1.7 and nothing", "The PDF specified was not valid"),
        (pdf(*["a"] * 21), r"it has 21 pages; a maximum of 20 PDF pages may be provided \(document_pages\)"),
        (pdf(None), "none of its 1 pages has text, and this model cannot be shown page images"),
        (b"a" * ((1 << 20) + 1), r"it has 1048577 bytes, and a document may have 1048576 \(document_bytes\)"),
        (b"a" * ((1 << 16) + 1), "its text has more than 65536 bytes"),
        (pdf("\n".join(["a" * 100] * 2000)), "its text has more than 65536 bytes"),
    ],
)
def test_error_names_the_fault_of_a_document(decoder: Decoder, data: bytes, error: str) -> None:
    with pytest.raises(Unreadable, match=error):
        decoder.decode(data, 0, None, DocumentHints())


def test_image_sent_as_a_document_is_decoded_for_a_vision_model(decoder: Decoder) -> None:
    assert isinstance(decoder.decode(media_file("tiny.png"), 0, None, VISION), Bitmap)


def decompression_bomb_pdf() -> bytes:
    """Return a PDF of a few kilobytes whose page decompresses to 4 GiB.

    Only 1 MiB is compressed, because that takes 20 s for all: a fully flushed deflate block may be repeated.
    """
    head, n_blocks = zlib.compress(b"", 9)[:2], 4096
    compressor = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    checksum = ((n_blocks << 20) % 65521 << 16) | 1  # Adler-32 of that many zeros
    once = head + block * n_blocks + compressor.flush() + checksum.to_bytes(4, "big")
    twice = zlib.compress(once, 9)
    stream = b"<</Length %d/Filter[/FlateDecode/FlateDecode]>>stream\n%b\nendstream" % (len(twice), twice)
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>"
    return pdf_of([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>", page, stream])


def nested_form_pdf() -> bytes:
    """Return a PDF whose page draws a trillion rectangles through nested forms ("billion laughs")."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</XObject<</X 5 0 R>>>>>>"
    forms = []
    for i in range(12):
        head = b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X %d 0 R>>>>" % (i + 6)
        content = b"/X Do " * 10 if i < 11 else b"0 0 1 1 re f " * 10
        forms.append(b"<</Length %d%b>>stream\n%b\nendstream" % (len(content), head, content))
    content = b"<</Length 6>>stream\n/X Do \nendstream"
    return pdf_of([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>", page, content, *forms])


CATALOG = b"<</Type/Catalog/Pages 2 0 R>>"


@pytest.mark.parametrize(
    "data",
    [
        decompression_bomb_pdf(),
        nested_form_pdf(),
        pdf_of([CATALOG, b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2>>"]),
        pdf_of([CATALOG, b"<</Type/Pages/Kids[]/Count 2000000000>>"]),
        pdf_of([b"<</Type/Catalog/Pages 2 0 R/X " + b"<</A " * 50_000 + b"1" + b">>" * 50_000 + b">>"]),
        b"<html>" + b"<div>" * 100_000 + b"<![CDATA[" * 10_000,
    ],
    ids=["decompression bomb", "nested forms", "tree loop", "page count", "deep dictionary", "deep html"],
)
def test_hostile_document_is_rejected_and_the_decoder_continues(decoder: Decoder, data: bytes) -> None:
    with pytest.raises(Unreadable):
        decoder.decode(data, 0, None, VISION)
    assert text_of(convert(decoder, pdf("alive"))) == "[Page 1]\nalive\n"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["text.pdf", "drawing.pdf", "owner-locked.pdf", "page.html", "text.txt"])
def test_damaged_documents_are_converted_or_rejected(decoder: Decoder, name: str) -> None:
    generated = {
        "text.pdf": pdf("one", "two"),
        "drawing.pdf": pdf(None, "x"),
        "page.html": PAGE.encode(),
        "text.txt": "gr\u00f6\u00dfer".encode("utf-16"),
    }
    data = generated.get(name) or media_file(name)
    rng = random.Random(f"{SEED} {name}")
    n_converted = 0
    for _ in range(N_ROUNDS):
        with contextlib.suppress(Unreadable):
            assert decoder.decode(damaged(data, rng), 0, None, VISION).parts
            n_converted += 1
    assert n_converted, "every damaged document was rejected"


def test_repetitions_of_one_document_are_limited_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.chat.prompt.MAX_TEXT_CHARS", 1000)
    part = Media("document", source=StoredFile("file-1"))
    media: LoadedMedia = {StoredFile("file-1"): Document((PlainText("x" * 300),), "text/plain")}
    model = make_model()
    uses: list[Callable[[list[str | Media]], object]] = [
        lambda parts: as_text(parts, "", media),
        lambda parts: read_parts(parts, model, media),
    ]
    for use in uses:
        use([part, " "] * 2)
        with pytest.raises(InvalidRequest, match="at most 1000 characters"):
            use([part, " "] * 3)
