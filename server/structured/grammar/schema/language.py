"""Operations on regular expressions: complements of word lists, removal of look-aheads, and patterns that llguidance
parses correctly.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

MAX_WORD = 100  # characters: each adds a level of groups to the expression
MAX_CHARS = 10_000  # of a pattern whose look-aheads are rewritten
MAX_LOOK_AHEADS = 16  # of one pattern; each alternative of a negative one counts
ANYTHING = "(?s:.*)"
SOMETHING = "(?s:.+)"
NOTHING = r"[^\s\S]"
_END = ""  # a key of the tree: a word ends here
_UNUSED_CHAR = r"\x01"  # a character that does not occur in texts
_HEX = "[0-9a-fA-F]"
_ESCAPE = rf"\\(?:x(?P<x>{_HEX}{{2}})|u(?P<u>{_HEX}{{4}})|[xu]\{{(?P<long>{_HEX}+)\}}|.)"
CONTROL = r"[\x00-\x07\x0b\x0e-\x1f\x7f]"  # characters without a short escape in JSON
_ESCAPE_OR_CONTROL = re.compile(rf"{_ESCAPE}|{CONTROL}", re.DOTALL)
_ONLY_CONTROLS = re.compile(rf"(?:{CONTROL}-?)+")
_CLASS = re.compile(rf"{_ESCAPE}|\[(?P<inside>(?:\\.|[^\]\\])*)\]", re.DOTALL)
_AS_RUST = {"[]": NOTHING, "[^]": rf"[^{_UNUSED_CHAR}]"}  # what Rust reads like these classes of ECMA 262
_OPERATOR = re.compile(r"(?<!\\)(?:\\\\)*\[|&&|--|~~")
_OPERATORS = frozenset("[&-~")
_RANGE = re.compile(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
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
    """Return a pattern that matches all whole strings except `words`."""
    return f"^{_all_but(_tree(words))}$"


def _syntax(pattern: str) -> Iterator[tuple[int, str]]:
    """Yield the position of each character that is neither escaped nor in a class, and the character."""
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
    """Return patterns that together match the same as `pattern`: its rest and one for each look-ahead at its start.

    A negative look-ahead may have alternatives of these forms: at most `MAX_WORD` characters or classes, also with
    ``$``; ``.*XY`` with two literal characters; ``\\s*$``. Other look-aheads, and those with a count, stay in the first
    pattern.
    """
    rest, others = pattern[1:], list[str]()
    if not pattern.startswith(("^(?=", "^(?!")) or len(pattern) > MAX_CHARS or len(alternatives(pattern)) > 1:
        return [pattern]
    while rest.startswith(("(?=", "(?!")):
        inner, *after = alternatives(rest, ")")
        found = (
            [_starting_with(inner[3:])] if rest[2] == "=" else list(map(_not_starting_with, alternatives(inner[3:])))
        )
        has_count = bool(after) and after[0].startswith(("*", "+", "?", "{"))
        if "" in found or not after or has_count or len(others) + len(found) > MAX_LOOK_AHEADS:
            break
        others += found
        rest = ")".join(after)
    return [f"^{rest}", *others]


def alternatives(pattern: str, end: str = "|") -> list[str]:
    """Split a pattern at each `end` outside of its groups."""
    depth, splits = 0, [-1]
    for at, char in _syntax(pattern):
        depth += (char == "(") - (char == ")")
        if char == end and not depth:
            splits.append(at)
    return [pattern[start + 1 : at] for start, at in pairwise([*splits, len(pattern)])]


def _starting_with(pattern: str) -> str:
    """Return a pattern of the texts that start with a match of `pattern`, which may only have ``$`` at its end."""
    at_end = pattern.endswith("$") and not alternatives(pattern, "$")[-1] and len(alternatives(pattern)) == 1
    return f"^(?:{pattern[:-1]})$" if at_end else f"^(?:{pattern})"


def _not_starting_with(pattern: str) -> str:
    """Return a pattern of the texts that do not start with a match of `pattern`; "" if it is not supported."""
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
    """Return the complement of a character class, a character or an escape, as a class."""
    if char[0] != "[":
        return f"[^{char}]"
    if char[1] != "^":
        return f"[^{char[1:]}"
    return rf"[\{char[2:]}" if char[2] == "^" else f"[{char[2:]}"


def readable(pattern: str) -> str:
    """Return an equivalent pattern that llguidance parses correctly and at less cost."""
    return _without_outer_counts(_replaced(pattern, _readable))


def without_operators(pattern: str) -> str:
    """Return the pattern with classes that Rust reads like ECMA 262."""
    return _replaced(pattern, lambda found: f"[{_without_operators(found['inside'])}]" if found["inside"] else found[0])


def _replaced(pattern: str, change: Callable[[re.Match[str]], str]) -> str:
    """Return the pattern with each escape and class changed, and those that ECMA 262 alone has replaced."""
    return _CLASS.sub(lambda found: _AS_RUST.get(found[0]) or change(found), pattern)


def _without_outer_counts(pattern: str) -> str:
    """Return the pattern with its first and last character class repeated only as often as a match needs.

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


def _readable(found: re.Match[str]) -> str:
    """Return an escape or a class as llguidance should read it.

    A control character is literal where a match needs it, and only there: `json_schema` then allows its JSON escape,
    without which llguidance omits it from the text (`json_quote` of derivre 0.3).
    """
    if found["inside"] is None:
        return _literal(found)
    inside = found["inside"]
    if inside.startswith("^"):
        inside = _ESCAPE_OR_CONTROL.sub(_escaped, inside)
    elif _ONLY_CONTROLS.fullmatch(literal := _ESCAPE_OR_CONTROL.sub(_literal, inside)):
        inside = literal
    return _without_control(_without_operators(inside))


def _literal(found: re.Match[str]) -> str:
    code = found["x"] or found["u"] or found["long"] or ("b" if found[0] == r"\v" else "")
    char = chr(int(code, 16)) if code and int(code, 16) < 128 else ""
    return char if re.fullmatch(CONTROL, char) else found[0]


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0][0] == "\\" else f"\\x{ord(found[0]):02x}"


def _without_operators(inside: str) -> str:
    """Return the inside of a class with escapes where Rust, unlike ECMA 262, has operators and nested classes."""
    if not _OPERATOR.search(inside):
        return inside
    negation = "^" if inside[0] == "^" else ""
    return negation + _RANGE.sub(
        lambda found: "-".join(f"\\{char}" if char in _OPERATORS else char for char in found.groups() if char),
        inside[len(negation) :],
    )


def _without_control(inside: str) -> str:
    """Return the class with one control character removed.

    llguidance adds ``"`` and the backslash to a class that contains all control characters when it converts the class
    to JSON (derivre 0.3, `json_quote`).
    """
    if inside.startswith("^"):
        return f"[^{_UNUSED_CHAR}{chr(92) if inside.startswith('^-') else ''}{inside[1:]}]"
    return f"[[{inside}]&&[^{_UNUSED_CHAR}]]" if _FROM_ZERO.search(inside) else f"[{inside}]"


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
    """Return a pattern of the texts after this node that do not complete a word."""
    chars = sorted(key for key in node if key != _END)
    ends = _END in node
    if not chars:
        return SOMETHING if ends else ANYTHING
    branches = [f"[^{''.join(map(_char, chars))}]{ANYTHING}"]
    branches += [f"{_char(char)}{_all_but(node[char])}" for char in chars]
    return f"(?:{'|'.join(branches)}){'' if ends else '?'}"


def _char(char: str) -> str:
    return char if char.isalnum() or ord(char) > 127 else f"\\x{ord(char):02x}"
