"""The text that a reader of an HTML page sees: no scripts, styles, metadata, comments or hidden elements.

Not for the server's process: parsing a hostile page can take quadratic time.
"""

import re
from html.parser import HTMLParser

_UNSEEN = frozenset(
    "script style template noscript head svg math iframe object canvas audio video select datalist textarea".split()  # noqa: SIM905
)
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())  # noqa: SIM905
_OPTIONAL_END = frozenset(("p", "li", "dt", "dd", "tr", "td", "th", "option", "thead", "tbody", "tfoot"))
"""Elements that the next one of the same name ends."""
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure "  # noqa: SIM905
    "footer form h1 h2 h3 h4 h5 h6 header hgroup hr html li main menu nav ol p pre section summary table tbody tfoot "
    "thead title tr ul".split()
)
_CELLS = frozenset(("td", "th"))
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\r\n\f]+")


def visible_text(page: str) -> str:
    """Return the visible text: a line for each block, tabs between table cells, ``#`` before headings."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.text()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._hidden: list[str] = []  # a hidden element and those that are open in it
        self._n_pre = 0
        self._pre_begins = False
        self._title: list[str] | None = None

    def text(self) -> str:
        """Return the extracted text."""
        self._end_line()
        return "\n".join(self._lines).strip("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden and not self._shows_again(tag):
            return
        if tag not in _VOID and (tag in _UNSEEN or _is_hidden(attrs)):
            self._hidden = [tag]
            return
        if tag in _CELLS and any(self._line):
            self._line.append("\t")
        if tag == "br" or tag in _BLOCKS:
            self._end_line()
        if tag == "li":
            self._prefix = "- "
        self._prefix = _HEADINGS.get(tag, self._prefix)
        self._n_pre += tag == "pre"
        self._pre_begins = tag == "pre"
        if tag == "img":
            alt = dict(attrs).get("alt")
            if alt:
                self.handle_data(f"[image: {alt}]")

    def _shows_again(self, tag: str) -> bool:
        """Return whether the start of `tag` ends the hidden element; otherwise the new element is inside it."""
        hidden = self._hidden[0]
        if tag == "title" and hidden == "head":
            self._title = []
        ends = (tag == "body" and hidden == "head") or (
            tag == hidden and len(self._hidden) == 1 and tag in _OPTIONAL_END
        )
        if ends:
            self._hidden = []
        elif tag not in _VOID:
            self._hidden.append(tag)
        return ends

    def handle_endtag(self, tag: str) -> None:
        if self._title is not None and tag == "title":
            title, self._title = _SPACES.sub(" ", "".join(self._title)).strip(), None
            if title:
                self._lines += [title, ""]
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
            return
        if self._hidden:
            if self._hidden[0] not in _OPTIONAL_END:
                return
            self._hidden = []  # the end of an element around it
        self._n_pre -= tag == "pre" and self._n_pre > 0
        if tag in _BLOCKS:
            self._end_line()
            if (tag == "p" or tag in _HEADINGS) and self._lines and self._lines[-1]:
                self._lines.append("")

    def handle_data(self, data: str) -> None:
        if self._title is not None:
            self._title.append(data)
        if self._hidden:
            return
        if self._n_pre:
            first, *rest = data.removeprefix("\n" if self._pre_begins else "").split("\n")
            self._pre_begins = False
            self._line.append(first)
            for line in rest:
                self._end_line(keeps_spaces=True)
                self._line.append(line)
            return
        self._line.append(_SPACES.sub(" ", data))

    def _end_line(self, *, keeps_spaces: bool = False) -> None:
        line = "".join(self._line)
        self._line = []
        if not (keeps_spaces or self._n_pre):
            line = re.sub(" {2,}", " ", line).strip()
            line = "\t".join(cell.strip() for cell in line.split("\t"))
        if line.strip() or keeps_spaces:
            self._lines.append(self._prefix + line.rstrip())
            self._prefix = ""


def _is_hidden(attrs: list[tuple[str, str | None]]) -> bool:
    return any(
        name == "hidden"
        or (name == "aria-hidden" and value == "true")
        or (name == "style" and value is not None and _HIDDEN_STYLE.search(value) is not None)
        for name, value in attrs
    )
