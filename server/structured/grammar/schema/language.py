"""Operations on regular expressions: complements of word lists, and patterns that llguidance reads correctly."""

import re
from collections.abc import Iterable, Iterator

MAX_WORD = 100  # characters: each is a level of groups in the expression
ANYTHING = "(?s:.*)"
SOMETHING = "(?s:.+)"
_END = ""  # a key of the tree: a word ends here
_UNWRITTEN = r"\x01"  # a character that no text has
_CLASS = re.compile(r"\\.|\[(?P<inside>(?:\\.|[^\]\\])+)\]", re.DOTALL)
_FROM_ZERO = re.compile(r"(?:\\(?:x00|u0000|x\{0+\}|u\{0+\}|0)|\0)-|\\p\{?C")
_ATOM = r"(?P<atom>\[(?:[^\]\\]|\\.)+\]|\\[wWdDsS]|\.)"
_COUNT = r"(?P<count>[*+?]|\{(?P<least>\d{1,4})(?:,\d*)?\})\??"
_BEFORE = r"(?P<before>(?:\\.|\[(?:[^\]\\]|\\.)+\]|[^\\\[])*?)"
_COUNTED_AT_END = re.compile(rf"{_BEFORE}{_ATOM}{_COUNT}(?P<after>)", re.DOTALL)
_COUNTED_AT_START = re.compile(rf"(?P<before>){_ATOM}{_COUNT}(?P<after>.*)", re.DOTALL)


def none_of(words: Iterable[str]) -> str:
    """Matches whole strings, all but `words`."""
    return f"^{_all_but(_tree(words))}$"


def _syntax(pattern: str) -> Iterator[str]:
    """Yield the characters that are neither escaped nor in a class."""
    escaped = in_class = False
    for char in pattern:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield char


def readable(pattern: str) -> str:
    """Return an equivalent pattern that llguidance reads correctly and at less cost."""
    return _without_outer_counts(_without_all_controls(pattern))


def _without_outer_counts(pattern: str) -> str:
    """Return the pattern with no more of its first and last character class than a match needs.

    Without anchors ``[a-z]{1,255}`` matches wherever ``[a-z]`` does. Only a bare class or escape is shortened.
    """
    if any(char in "|()" for char in _syntax(pattern)):
        return pattern
    for expression in (_COUNTED_AT_END, _COUNTED_AT_START):
        found = expression.fullmatch(pattern)
        if found is not None:
            least = int(found["least"] or (found["count"] == "+"))
            kept = "" if least == 0 else found["atom"] if least == 1 else f"{found['atom']}{{{least}}}"
            pattern = found["before"] + kept + found["after"]
    return pattern


def _without_all_controls(pattern: str) -> str:
    """Return the pattern without one control character in its classes: those that have all, but not ``"`` or a
    backslash, are taken by llguidance to have these, too, once they are written as JSON (derivre 0.3, `json_quote`).
    """
    return _CLASS.sub(_without_control, pattern)


def _without_control(found: re.Match[str]) -> str:
    inside = found["inside"]
    if inside is None:
        return found[0]
    if inside.startswith("^"):
        return f"[^{_UNWRITTEN}{chr(92) if inside.startswith('^-') else ''}{inside[1:]}]"
    return f"[{found[0]}&&[^{_UNWRITTEN}]]" if _FROM_ZERO.search(inside) else found[0]


_Tree = dict[str, "_Tree"]


def _tree(words: Iterable[str]) -> _Tree:
    root: _Tree = {}
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[_END] = {}
    return root


def _all_but(node: _Tree) -> str:
    """Return a pattern for what may follow without completing a word."""
    chars = sorted(key for key in node if key != _END)
    ends = _END in node
    if not chars:
        return SOMETHING if ends else ANYTHING
    branches = [f"[^{''.join(map(_char, chars))}]{ANYTHING}"]
    branches += [f"{_char(char)}{_all_but(node[char])}" for char in chars]
    return f"(?:{'|'.join(branches)}){'' if ends else '?'}"


def _char(char: str) -> str:
    return char if char.isalnum() or ord(char) > 127 else f"\\x{ord(char):02x}"
