"""Operations on regular expressions without look-around: complements of word lists, and patterns with look-ahead."""

import re
from collections.abc import Iterable, Iterator

from server.structured.grammar.schema.complement import Complements

MAX_PATTERN = 60_000  # characters of one that has look-aheads
MAX_WORD = 100  # characters: each is a level of groups in the expression
ANYTHING = "(?s:.*)"
SOMETHING = "(?s:.+)"
_END = ""  # a key of the tree: a word ends here
_LOOK_AHEAD = re.compile(r"\(\?[!=]")
_UNWRITTEN = r"\x01"  # a character that no text has
_CLASS = re.compile(r"\\.|\[(?P<inside>(?:\\.|[^\]\\])+)\]", re.DOTALL)
_FROM_ZERO = re.compile(r"(?:\\(?:x00|u0000|x\{0+\}|u\{0+\}|0)|\0)-|\\p\{?C")
_ATOM = r"(?P<atom>\[(?:[^\]\\]|\\.)+\]|\\[wWdDsS]|\.)"
_COUNT = r"(?P<count>[*+?]|\{(?P<least>\d{1,4})(?:,\d*)?\})\??"
_BEFORE = r"(?P<before>(?:\\.|\[(?:[^\]\\]|\\.)+\]|[^\\\[])*?)"
_COUNTED_AT_END = re.compile(rf"{_BEFORE}{_ATOM}{_COUNT}(?P<after>)", re.DOTALL)
_COUNTED_AT_START = re.compile(rf"(?P<before>){_ATOM}{_COUNT}(?P<after>.*)", re.DOTALL)
_REPEATS = ("*", "+", "{")
_LITERAL = r"(?:[A-Za-z0-9 _:;,/@#%&=~'\"<>!-]|\\[^\w\s])+"
_WORDS = re.compile(rf"{_LITERAL}(?:\|{_LITERAL})*(?:\.\*)?")


def none_of(words: Iterable[str]) -> str:
    """Matches whole strings, all but `words`."""
    return f"^{_all_but(_tree(words), prefixes=False)}$"


def without_prefix(words: Iterable[str]) -> str:
    """Matches whole strings that begin with none of `words`, of which none is empty."""
    return f"^{_all_but(_tree(words), prefixes=True)}$"


def split_look_aheads(pattern: str, complements: Complements) -> list[str] | None:
    """Split a pattern that starts with look-aheads, such as ``^(?!x)``, ``^((?=x)`` or ``(?!^x)``, into patterns
    without look-ahead.

    A text that matches all of them matches the pattern. None for every other pattern, and if a look-ahead can't be
    expressed.
    """
    if len(pattern) > MAX_PATTERN:
        return None
    anchored = pattern.startswith("^")
    opened = "(" if _LOOK_AHEAD.match(pattern, 2) and pattern.startswith("^(") else ""
    at = anchored + len(opened)
    found: list[str | None] = []
    while _LOOK_AHEAD.match(pattern, at):
        end = _closing(pattern, at)
        found.append(_said_by(pattern[at + 2], pattern[at + 3 : end], complements, anchored=anchored))
        at = end + 1
    rest = pattern[at:]
    if not found or None in found or _has_look_around(rest) or rest.startswith(_REPEATS):
        return None
    if not _concerns_all(pattern, at, len(opened)):
        return None
    return [f"{'^' if anchored else ''}{opened}{rest}", *(each for each in found if each)]


def _said_by(sign: str, inside: str, complements: Complements, *, anchored: bool) -> str | None:
    """Return a pattern for a look-ahead; "" if it has no effect."""
    if _has_look_around(inside):
        return None
    if sign == "=":
        return f"^(?:{inside})" if anchored else None
    if anchored and _WORDS.fullmatch(inside):
        words = [re.sub(r"\\(.)", r"\1", word) for word in inside.removesuffix(".*").split("|")]
        return without_prefix(words) if max(map(len, words)) <= MAX_WORD else None
    if not anchored and not inside.startswith("^"):
        return None
    # Without an anchor this is stricter than necessary: a later position could satisfy the look-ahead.
    return complements.of(f"^(?:{inside})" if anchored else inside) or None


def _has_look_around(pattern: str) -> bool:
    return "(?" in pattern.replace("(?:", "")


def _closing(pattern: str, at: int) -> int:
    """Where the group ends that begins there, or the pattern."""
    level = 0
    for place, char in _syntax(pattern, at):
        level += (char == "(") - (char == ")")
        if level == 0:
            return place
    return len(pattern)


def _syntax(pattern: str, at: int) -> Iterator[tuple[int, str]]:
    """The characters that are neither escaped nor in a class."""
    escaped = in_class = False
    for place in range(at, len(pattern)):
        char = pattern[place]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield place, char


def _concerns_all(pattern: str, at: int, level: int) -> bool:
    """Return whether the look-aheads before `at` apply to the whole pattern: there is no ``|`` next to them, and none
    of these groups repeats.
    """
    lowest = level
    for place, char in _syntax(pattern, at):
        level += (char == "(") - (char == ")")
        if char == "|" and level <= lowest:
            return False
        if level < lowest:
            lowest = level
            if pattern.startswith(_REPEATS, place + 1):
                return False
    return True


def readable(pattern: str) -> str:
    """Return an equivalent pattern that llguidance reads correctly and at less cost."""
    return _without_outer_counts(_without_all_controls(pattern))


def _without_outer_counts(pattern: str) -> str:
    """Return the pattern with no more of its first and last character class than a match needs.

    Without anchors ``[a-z]{1,255}`` matches wherever ``[a-z]`` does. Only a bare class or escape is shortened.
    """
    if any(char in "|()" for _, char in _syntax(pattern, 0)):
        return pattern
    for expression in (_COUNTED_AT_END, _COUNTED_AT_START):
        found = expression.fullmatch(pattern)
        if found is not None:
            least = int(found["least"] or (found["count"] == "+"))
            kept = "" if least == 0 else found["atom"] if least == 1 else f"{found['atom']}{{{least}}}"
            pattern = found["before"] + kept + found["after"]
    return pattern


def _without_all_controls(pattern: str) -> str:
    """The pattern without one control character in its classes: those that have all, but not ``"`` or a backslash, are
    taken by llguidance to have these, too, once they are written as JSON (derivre 0.3, `json_quote`).
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


def _all_but(node: _Tree, *, prefixes: bool) -> str:
    """Return a pattern for what may follow. With `prefixes`, nothing may follow a word; otherwise only a word's end is
    excluded.
    """
    chars = sorted(key for key in node if key != _END)
    ends = _END in node
    if not chars:
        return SOMETHING if ends else ANYTHING
    branches = [f"[^{''.join(map(_char, chars))}]{ANYTHING}"]
    for char in chars:
        below = node[char]
        if not (prefixes and _END in below):
            branches.append(f"{_char(char)}{_all_but(below, prefixes=prefixes)}")
    return f"(?:{'|'.join(branches)}){'' if ends else '?'}"


def _char(char: str) -> str:
    return char if char.isalnum() or ord(char) > 127 else f"\\x{ord(char):02x}"
