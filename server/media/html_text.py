"""The visible text of an HTML page: no scripts, styles, metadata or comments.

Not for the server's process: parsing a hostile page can take quadratic time.
"""

import re
from html.parser import HTMLParser

_UNSEEN = frozenset(
    "script style template noscript svg math iframe object canvas audio video select datalist textarea".split()  # noqa: SIM905
)
_BLOCKS = frozenset(
    "address article aside blockquote body br caption dd details dialog div dl dt fieldset figcaption figure footer "  # noqa: SIM905
    "form h1 h2 h3 h4 h5 h6 head header hr li main nav ol p pre section summary table title tr ul".split()
)
_PREFIXES = {"li": "- ", **{f"h{level}": "#" * level + " " for level in range(1, 7)}}
_SPACES = re.compile(r"[ \t\r\n\f]+")
_CELL_SPACES = re.compile(r" *(\t| ) *")


def visible_text(page: str) -> str:
    """Return the visible text: a line for each block, tabs between table cells, ``#`` before headings."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    reader.end_line()
    return "\n".join(reader.lines)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._parts: list[str] = []  # of the current line
        self._prefix = ""
        self._unseen = ""  # the open element whose content is not visible
        self._is_pre = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen:
            return
        if tag in _UNSEEN:
            self._unseen = tag
        elif tag in ("td", "th"):
            self._parts.append("\t")
        elif tag in _BLOCKS:
            self.end_line()
            self._prefix = _PREFIXES.get(tag, self._prefix)
            self._is_pre = self._is_pre or tag == "pre"
        elif tag == "img" and (alt := dict(attrs).get("alt")):
            self.handle_data(f"[image: {alt}]")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            self._unseen = "" if tag == self._unseen else self._unseen
        elif tag in _BLOCKS:
            self.end_line()
            self._is_pre = self._is_pre and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self._unseen:
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
