"""Operations on regular expressions: complements of word lists, patterns without look-aheads, and patterns that
llguidance reads correctly.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

MAX_WORD = 100  # characters: each is a level of groups in the expression
MAX_CHARS = 10_000  # of a pattern whose look-aheads are rewritten
MAX_LOOK_AHEADS = 16  # of one pattern, each alternative of a negative one by itself
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
_CHAR = r"(?:\\[wWsSdDtnr]|\\[^a-zA-Z0-9]|\[(?!\^\])(?:[^\]\\\[]|\\[wWsSdDtnr]|\\[^a-zA-Z0-9])+\]|[^\\\[\](){}|*+?^$.])"
_AT_START = re.compile(rf"(?P<chars>(?:{_CHAR})+)(?P<count>[*+])?(?P<end>\$)?", re.DOTALL)
_LITERAL = r"(\\[^a-zA-Z0-9\n]|[^\\\[\](){}|*+?^$.\n])"
_ANYWHERE = re.compile(rf"\.\*\??{_LITERAL}{_LITERAL}")


def none_of(words: Iterable[str]) -> str:
    """Matches whole strings, all but `words`."""
    return f"^{_all_but(_tree(words))}$"


def _syntax(pattern: str) -> Iterator[tuple[int, str]]:
    """Yield the characters that are neither escaped nor in a class, and their places."""
    escaped = in_class = False
    for at, char in enumerate(pattern):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield at, char


def without_look_aheads(pattern: str) -> list[str]:
    """Return patterns that match together what `pattern` matches: its rest, and one for each look-ahead after ``^``.

    A negative look-ahead holds alternatives of these forms: at most `MAX_WORD` characters or classes, also with ``$``;
    ``.*XY`` with two literal characters; ``\\s*$``. Others stay in the first pattern, as those with a count do.
    """
    rest, others = pattern[1:], list[str]()
    if not pattern.startswith(("^(?=", "^(?!")) or len(pattern) > MAX_CHARS or len(alternatives(pattern)) > 1:
        return [pattern]
    while rest.startswith(("(?=", "(?!")):
        inner, *after = alternatives(rest, ")")
        found = [_requiring(inner[3:])] if rest[2] == "=" else list(map(_refusing, alternatives(inner[3:])))
        has_count = bool(after) and after[0].startswith(("*", "+", "?", "{"))
        if "" in found or not after or has_count or len(others) + len(found) > MAX_LOOK_AHEADS:
            break
        others += found
        rest = ")".join(after)
    return [f"^{rest}", *others]


def alternatives(pattern: str, end: str = "|") -> list[str]:
    """Split a pattern at each `end` outside of its groups."""
    depth, cuts = 0, [-1]
    for at, char in _syntax(pattern):
        depth += (char == "(") - (char == ")")
        if char == end and not depth:
            cuts.append(at)
    return [pattern[start + 1 : at] for start, at in pairwise([*cuts, len(pattern)])]


def _requiring(pattern: str) -> str:
    """Return a pattern of the texts that begin with a match of `pattern`. Its ``$`` is at the end, where it has one."""
    at_end = pattern.endswith("$") and not alternatives(pattern, "$")[-1] and len(alternatives(pattern)) == 1
    return f"^(?:{pattern[:-1]})$" if at_end else f"^(?:{pattern})"


def _refusing(pattern: str) -> str:
    """Return a pattern of the texts that do not begin with a match of `pattern`, "" if it is not supported."""
    if found := _ANYWHERE.fullmatch(pattern):
        first, last = (_char(char[-1]) for char in found.groups())
        some = first if first == last else f"{first}+"
        return f"^(?:[^{first}\\n]|{some}[^{first}{last}\\n])*(?:{some})?(?:\\n{ANYTHING})?$"
    found = _AT_START.fullmatch(pattern)
    chars = [] if found is None else re.findall(_CHAR, found["chars"], re.DOTALL)
    if found is None or len(chars) > MAX_WORD or (found["count"] and not (len(chars) == 1 and found["end"])):
        return ""
    others = list(map(_other, chars))
    if found["count"]:
        return others[0] if found["count"] == "*" else f"^(?:{ANYTHING}{others[0]}{ANYTHING})?$"
    rest = SOMETHING if found["end"] else ""
    for char, other in zip(reversed(chars), reversed(others), strict=True):
        rest = f"(?:{other}{ANYTHING}{f'|{char}{rest}' if rest else ''})?"
    return f"^{rest}$"


def _other(char: str) -> str:
    """Return the class of all characters besides those of a class, or besides a character or an escape."""
    if char[0] != "[":
        return f"[^{char}]"
    if char[1] != "^":
        return f"[^{char[1:]}"
    return rf"[\{char[2:]}" if char[2] == "^" else f"[{char[2:]}"


def readable(pattern: str) -> str:
    """Return an equivalent pattern that llguidance reads correctly and at less cost."""
    return _without_outer_counts(_without_all_controls(pattern))


def _without_outer_counts(pattern: str) -> str:
    """Return the pattern with no more of its first and last character class than a match needs.

    Without anchors ``[a-z]{1,255}`` matches wherever ``[a-z]`` does. Only a bare class or escape is shortened.
    """
    if any(char in "|()" for _, char in _syntax(pattern)):
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
