"""Operations on regular expressions: complements of word lists, and patterns that llguidance reads correctly."""

import re
from collections.abc import Iterable

MAX_WORD = 100  # characters: each is a level of groups in the expression
ANYTHING = "(?s:.*)"
SOMETHING = "(?s:.+)"
_END = ""  # a key of the tree: a word ends here
_UNWRITTEN = r"\x01"  # a character that no text has
_CLASS = re.compile(r"\\.|\[(?P<inside>(?:\\.|[^\]\\])+)\]", re.DOTALL)
_FROM_ZERO = re.compile(r"(?:\\(?:x00|u0000|x\{0+\}|u\{0+\}|0)|\0)-|\\p\{?C")


def none_of(words: Iterable[str]) -> str:
    """Matches whole strings, all but `words`."""
    return f"^{_all_but(_tree(words))}$"


def readable(pattern: str) -> str:
    """Return an equivalent pattern that llguidance reads correctly.

    Classes lose one control character. llguidance takes those that have all of them, but not ``"`` or a backslash, to
    have these, too, once they are written as JSON (derivre 0.3, `json_quote`).
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
