"""Documents to text and page images, and an error in words for whatever is damaged, hostile or too large."""

import os
import random
import zlib
from collections.abc import Callable, Iterator

import pytest

from server.app import IMAGE_DECODER as ANSWERER
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
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "25"))  # of damage to each file; `make fuzz-media` does more
SEED = os.environ.get("FUZZ_SEED", "1")
BLIND, SEES = DocumentHints(), DocumentHints(sees=True)
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
    made = Decoder(ANSWERER, documents=LIMITS)
    yield made
    made.close()


def read(decoder: Decoder, data: bytes, hints: DocumentHints = BLIND, scope: str | None = None) -> Document:
    found = decoder.decode(data, 0, scope, hints)
    assert isinstance(found, Document)
    return found


def text_of(found: Document) -> str:
    assert all(isinstance(part, PlainText | Bitmap) for part in found.parts)
    return "".join(part if isinstance(part, str) else f"({part.width}x{part.height})" for part in found.parts)


@pytest.mark.parametrize(
    ("data", "written", "text", "media_type"),
    [
        (b"a\r\nb", "", "a\nb", "text/plain"),
        ("\ufeffgr\u00f6\u00dfer".encode(), "a.txt", "gr\u00f6\u00dfer", "text/plain"),
        ("gr\u00f6\u00dfer".encode("utf-16"), "", "gr\u00f6\u00dfer", "text/plain"),
        (b"\xfe\xff" + "gr\u00f6\u00dfer".encode("utf-16-be"), "", "gr\u00f6\u00dfer", "text/plain"),
        ("gr\u00f6\u00dfer".encode("latin-1"), "", "gr\u00f6\u00dfer", "text/plain"),
        ("\u201cquoted\u201d".encode("cp1252"), "", "\u201cquoted\u201d", "text/plain"),
        (b"BM,age\n1,2\n", "a.csv", "BM,age\n1,2\n", "text/csv"),
        (b"# Head", "text/markdown; charset=utf-8", "# Head", "text/markdown"),
        (b'{"a": 1}', "application/json", '{"a": 1}', "text/plain"),
        (PAGE.encode(), "", PAGE_TEXT, "text/html"),
        (b"<p>one<p>two", "text/html", "one\ntwo", "text/html"),
        (b"<html>x", "text/plain", "<html>x", "text/plain"),
        (b"<!-- a --> <HTML>x", "", "x", "text/html"),
        (b"<!-- a --> <!-- - b -->\n<!doctype html>x", "", "x", "text/html"),
        (b"<!---->" * 500 + b"x", "", "<!---->" * 500 + "x", "text/plain"),  # not in exponential time
        (
            pdf("one\ntwo", "", "three"),
            "a.txt",
            "[Page 1]\none\ntwo\n[Page 2: no text; not shown]\n[Page 3]\nthree\n",
            "application/pdf",
        ),
        (b"junk\n" + pdf("late"), "", "[Page 1]\nlate\n", "application/pdf"),
        (media_file("owner-locked.pdf"), "", "[Page 1]\nclassified text\n", "application/pdf"),
    ],
)
def test_a_document_is_its_text(decoder: Decoder, data: bytes, written: str, text: str, media_type: str) -> None:
    found = read(decoder, data, DocumentHints(media_type_of(written)))
    assert (text_of(found), found.media_type) == (text, media_type)


def test_a_page_without_text_is_an_image_if_the_model_sees(decoder: Decoder) -> None:
    data = pdf("one", None, "")
    seen = read(decoder, data, SEES)
    size = f"({LONGEST_SIDE * 3 // 4}x{LONGEST_SIDE})"
    assert text_of(seen) == f"[Page 1]\none\n[Page 2]\n{size}\n[Page 3: no text; not shown]\n"
    assert seen.notes == ("pages without text are not shown: 3",)
    (page,) = bitmaps_of(seen)
    middle = (LONGEST_SIDE * 5 // 8 * page.width + page.width * 5 // 12) * 3
    assert (page.data[:3], page.data[middle : middle + 3]) == (b"\xff\xff\xff", b"\xff\0\0")  # white, and red
    (small,) = bitmaps_of(read(decoder, data, DocumentHints(sees=True, low_detail=True)))
    assert (small.height, small.id != page.id) == (LOW_DETAIL_SIDE, True)
    blind = read(decoder, data)
    assert blind.notes == ("pages without text are not shown: 2, 3",)


def test_a_document_that_was_read_before_is_not_read_again(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pdf("known", None)
    first = read(decoder, data, SEES, "a scope")
    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "_decoded", None)
        again = read(decoder, data, SEES, "a scope")
    assert text_of(again) == text_of(first)
    (page,), (known,) = bitmaps_of(first), bitmaps_of(again)
    assert (known.data, known.id, known.decoded()) == (b"", page.id, page.data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b" \n ", "it is empty"),
        (b"<html><script>x</script>", "it has no text"),
        (b"PK\3\4" + bytes(20), "a ZIP archive or an Office document; send PDF, plain text, Markdown, CSV and HTML"),
        (bytes(range(256)), "its type is not supported; send PDF, plain text"),
        (media_file("tiny.png"), "it is PNG, and this model cannot be shown images"),
        (media_file("tiny.mp3"), "this model hears nothing"),
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
def test_what_is_wrong_with_a_document_is_said(decoder: Decoder, data: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        decoder.decode(data, 0, None, DocumentHints())


def test_a_document_may_be_a_medium_that_its_content_tells(decoder: Decoder) -> None:
    found = decoder.decode(media_file("tiny.png"), 0, None, SEES)
    assert isinstance(found, Bitmap)


def bomb() -> bytes:
    """Return a PDF of a few kilobytes whose page has four gigabytes.

    A fully flushed deflate block may be repeated, so only one megabyte is compressed (compressing all takes 20 s).
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


def laughs() -> bytes:
    """Return a PDF whose page draws a billion forms."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</XObject<</X 5 0 R>>>>>>"
    forms = []
    for i in range(12):
        head = b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X %d 0 R>>>>" % (i + 6)
        content = b"/X Do " * 10 if i < 11 else b"0 0 1 1 re f " * 10
        forms.append(b"<</Length %d%b>>stream\n%b\nendstream" % (len(content), head, content))
    content = b"<</Length 6>>stream\n/X Do \nendstream"
    return pdf_of([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>", page, content, *forms])


CATALOGUE = b"<</Type/Catalog/Pages 2 0 R>>"


@pytest.mark.parametrize(
    "data",
    [
        bomb(),
        laughs(),
        pdf_of([CATALOGUE, b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2>>"]),
        pdf_of([CATALOGUE, b"<</Type/Pages/Kids[]/Count 2000000000>>"]),
        pdf_of([b"<</Type/Catalog/Pages 2 0 R/X " + b"<</A " * 50_000 + b"1" + b">>" * 50_000 + b">>"]),
        b"<html>" + b"<div>" * 100_000 + b"<![CDATA[" * 10_000,
    ],
    ids=["bomb", "laughs", "tree loop", "page count", "deep dictionary", "deep html"],
)
def test_a_hostile_document_costs_its_own_process(decoder: Decoder, data: bytes) -> None:
    with pytest.raises(Unreadable):
        decoder.decode(data, 0, None, SEES)
    assert text_of(read(decoder, pdf("alive"))) == "[Page 1]\nalive\n"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["text.pdf", "drawing.pdf", "owner-locked.pdf", "page.html", "text.txt"])
def test_a_damaged_document_is_read_or_refused(decoder: Decoder, name: str) -> None:
    made = {
        "text.pdf": pdf("one", "two"),
        "drawing.pdf": pdf(None, "x"),
        "page.html": PAGE.encode(),
        "text.txt": "gr\u00f6\u00dfer".encode("utf-16"),
    }
    data = made.get(name) or media_file(name)
    rng = random.Random(f"{SEED} {name}")
    n_read = 0
    for _ in range(ROUNDS):
        try:
            found = decoder.decode(damaged(data, rng), 0, None, SEES)
        except Unreadable:
            pass
        else:
            n_read += 1
            assert found.parts
    assert n_read, "nothing of it could be read at all"


def test_a_document_is_not_repeated_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
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
