r"""A regex of texts, read as the regex of the same texts inside a JSON string.

Quotes, backslashes, new lines, tabs and their like stand there as a backslash and a character (``\"``, ``\\``, ``\n``,
...), every other character as itself; those beyond ASCII as ``\u00e9``, too, where a literal or a class that has all of
them says so (models that learned Python's JSON write them). Control characters without a short form can't stand there.
So the closing quote is a part of no text, and what follows a backslash tells each character from any other.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from server.errors import InvalidRequest

MAX_GROUPS = 100
MAX_OPTIONAL = 200
"""Maximum number of consecutive optional parts in a text that may start with an escape; the output grows quadratically
with it.
"""
_MAX_DIGITS = 9  # of a number of repetitions
SHORT_FORMS = {ord(char): short for char, short in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)}
_ASCII = 127
_LAST = 0x10FFFF
SPECIAL = frozenset([*range(32), *SHORT_FORMS])
_SPECIALS = r'"\\\x00-\x1f'
_WHITE = frozenset(map(ord, "\t\n\v\f\r"))
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_POSIX: dict[str, frozenset[int]] = {
    "space": _WHITE,
    "cntrl": frozenset(range(32)),
    "punct": frozenset(map(ord, '"\\')),
    "graph": frozenset(map(ord, '"\\')),
    "print": frozenset(map(ord, '"\\')),
    "ascii": SPECIAL,
    "blank": frozenset([9]),
    **dict.fromkeys(("alnum", "alpha", "digit", "lower", "upper", "word", "xdigit"), frozenset()),
}
_NO_CHARACTERS = {"b": "word boundaries", "B": "word boundaries", "A": "anchors", "z": "anchors", "Z": "anchors"}
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})")
_GROUP = re.compile(r"\?(?:P?<[A-Za-z_]\w*>|(?P<flags>[a-zA-Z]*(?:-[a-zA-Z]+)?)(?P<end>[:)]))")
_PROPERTY = re.compile(r"[pP](?:\{(\^?)([A-Za-z_]+)\}|([A-Z]))")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]{1,6})\}")
_NOT_BETWEEN = re.compile(r"(\\.)|/|\n", re.DOTALL)
_POSIX_CLASS = re.compile(r"\[:(\^?)([a-z]+):\]")


@dataclass(frozen=True, slots=True)
class EscapedChar:
    """One character: plain ones by a regex, "" for none, and what stands behind the backslash of the others.

    ``unicode``: a regex of what else may stand behind one, ``u00e9``.
    """

    plain: str
    escapes: str = ""
    unicode: str = ""

    @property
    def behind_backslash(self) -> str:
        """Return a regex of everything that may follow the backslash."""
        letters = f"[{re.escape(self.escapes)}]" if self.escapes else ""
        return _any_of(letters, self.unicode)


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Row(Generic[T_co]):
    """A sequence."""

    parts: tuple[T_co, ...]


@dataclass(frozen=True, slots=True)
class OneOf(Generic[T_co]):
    """One of them."""

    options: tuple[T_co, ...]


@dataclass(frozen=True, slots=True)
class Times(Generic[T_co]):
    """``most`` None: any number."""

    of: T_co
    least: int
    most: int | None


Regex: TypeAlias = EscapedChar | Row["Regex"] | OneOf["Regex"] | Times["Regex"]
NOTHING: Row[Regex] = Row(())
_BEYOND_ASCII = (
    r"u(?:00[89a-fA-F]|0[1-9a-fA-F][0-9a-fA-F]|[1-9a-ce-fA-CE-F][0-9a-fA-F]{2}|[dD][0-7][0-9a-fA-F])[0-9a-fA-F]"
)
_PAIR = r"u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ALL_BEYOND_ASCII = f"(?:{_BEYOND_ASCII}|{_PAIR})"


def without_anchors(regex: str) -> str:
    """Return the regex without leading ``^`` and trailing ``$``, since it always matches a whole text."""
    regex = regex.removeprefix("^")
    ends = regex.endswith("$") and (len(regex) - len(regex[:-1].rstrip("\\"))) % 2 == 1
    return regex[:-1] if ends else regex


def between_slashes(regex: str) -> str:
    """The same regex as Lark takes it, between slashes and on one line."""
    return _NOT_BETWEEN.sub(lambda found: found[1] or ("\\n" if found[0] == "\n" else "\\/"), regex)


def escaped_text(text: str, *, folded: bool) -> Regex:
    """Exactly that text; ``folded``: in any case."""
    return Row(tuple(_character(ord(char), folded) for char in text))


def escaped_regex(regex: str, flags: str = "") -> Regex:
    """Return the regex of the JSON forms. Raises `InvalidRequest` for a regex without such a form, such as one with
    inner anchors.
    """
    return _Reader(regex, flags).whole()


def written(node: Regex) -> str:
    """As a regex, between slashes."""
    match node:
        case EscapedChar(plain):
            return _any_of(plain, rf"\\{node.behind_backslash}" if node.behind_backslash else "")
        case Row(parts):
            return "".join(map(written, parts))
        case OneOf(options):
            return "(?:" + "|".join(map(written, options)) + ")"
        case Times(of, least, most):
            return f"(?:{written(of)}){{{least},{'' if most is None else most}}}"


def behind_backslash(node: Regex) -> Regex | None:
    """Return what may follow a backslash that starts the text; None if it can't start with one."""
    match node:
        case EscapedChar():
            return EscapedChar(node.behind_backslash) if node.behind_backslash else None
        case OneOf(options):
            found = [rest for rest in map(behind_backslash, options) if rest is not None]
            return OneOf(tuple(found)) if found else None
        case Times(of, least, most):
            rest = behind_backslash(of)
            if rest is None or most == 0:
                return None
            return Row((rest, Times(of, max(least - 1, 0), None if most is None else most - 1)))
        case Row(parts):
            ways: list[Regex] = []
            for number, part in enumerate(parts):
                rest = behind_backslash(part)
                if rest is not None:
                    ways.append(Row((rest, *parts[number + 1 :])))
                if len(ways) > MAX_OPTIONAL:
                    raise InvalidRequest(f"more than {MAX_OPTIONAL} parts in a row of a regex may be empty")
                if not may_be_empty(part):
                    break
            return OneOf(tuple(ways)) if ways else None


def may_be_empty(node: Regex) -> bool:
    """Whether no text matches, too."""
    match node:
        case EscapedChar():
            return False
        case Row(parts):
            return all(map(may_be_empty, parts))
        case OneOf(options):
            return any(map(may_be_empty, options))
        case Times(of, least):
            return least == 0 or may_be_empty(of)


@dataclass(frozen=True, slots=True)
class _Class:
    """The special characters of a class, and whether it has none (``narrow``) or all (``wide``) of the non-ASCII ones.
    ``kind``: the escape that it is, such as ``\\s``.
    """

    specials: frozenset[int] = frozenset()
    narrow: bool = True
    wide: bool = False
    kind: str = ""

    def __post_init__(self) -> None:
        if self.wide:
            object.__setattr__(self, "narrow", False)

    def with_(self, other: "_Class") -> "_Class":
        opposites = len(self.kind) == len(other.kind) == 2 and self.kind != other.kind
        opposites = opposites and self.kind.lower() == other.kind.lower()
        wide = self.wide or other.wide or opposites
        kind = other.kind or self.kind
        return _Class(self.specials | other.specials, self.narrow and other.narrow, wide, kind)

    def without(self, other: "_Class") -> "_Class":
        narrow = self.narrow or other.wide
        return _Class(self.specials - other.specials, narrow, self.wide and other.narrow)

    def inverse(self) -> "_Class":
        return _Class(SPECIAL - self.specials, self.wide, self.narrow)


class _Reader:
    """Reads a regex construct by construct (syntax: docs.rs/regex)."""

    def __init__(self, regex: str, flags: str) -> None:
        if "x" in flags:
            raise InvalidRequest("the flag x of a regex can't be enforced in a tool's input")
        self._text = regex
        self._pos = 0
        self._dot_all = "s" in flags
        self._folds = "i" in flags
        self._level = 0

    def whole(self) -> Regex:
        """Parse the whole regex. Anchors around it are redundant."""
        self._pos = int(self._text.startswith("^"))
        found = self._alternatives()
        if self._pos < len(self._text):
            raise self._wrong("a parenthesis without its other one")
        return found

    def _alternatives(self) -> Regex:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else OneOf(tuple(options))

    def _sequence(self) -> Regex:
        parts: list[Regex] = []
        while self._pos < len(self._text) and self._text[self._pos] not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _repeated(self, node: Regex) -> Regex:
        match = _QUANTIFIER.match(self._text, self._pos)
        if match is None:
            return node
        self._pos = match.end()
        if _QUANTIFIER.match(self._text, self._pos):
            raise self._wrong("lazy and possessive quantifiers")
        signs: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
        if match[0] in signs:
            return Times(node, *signs[match[0]])
        least, comma, most = match[0][1:-1].partition(",")
        if max(len(least), len(most)) > _MAX_DIGITS:
            raise self._wrong("so many repetitions")
        return Times(node, int(least), int(most) if most else None if comma else int(least))

    def _atom(self) -> Regex:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                start = self._pos - 1
                found = self._class()
                return self._characters(self._text[start : self._pos], found.specials, wide=found.wide)
            case ".":
                class_, specials = (r"[\s\S]", SPECIAL) if self._dot_all else (r"[^\n]", SPECIAL - {10})
                return self._characters(class_, specials, wide=True)
            case "\\":
                return self._escape()
            case "$" if self._pos == len(self._text):
                return NOTHING
            case "^" | "$":
                raise self._wrong("anchors")
            case "*" | "+" | "?":
                raise self._wrong("a quantifier of nothing")
        return _character(ord(char), self._folds)

    def _group(self) -> Regex:
        dot_all, folds = self._dot_all, self._folds
        if self._peek() == "?":
            match = _GROUP.match(self._text, self._pos)
            if match is None:
                raise self._wrong("look-around")
            self._pos = match.end()
            if match["flags"] is not None:
                self._set(match["flags"])
                if match["end"] == ")":  # they hold up to the end of the group around
                    return NOTHING
        self._level += 1
        if self._level > MAX_GROUPS:
            raise InvalidRequest(f"a regex nests groups deeper than {MAX_GROUPS} levels")
        inside = self._alternatives()
        self._level -= 1
        if not self._take(")"):
            raise self._wrong("a parenthesis without its other one")
        self._dot_all, self._folds = dot_all, folds
        return inside

    def _set(self, flags: str) -> None:
        on, _, off = flags.partition("-")
        if set(on + off) - set("imsu"):
            raise self._wrong(f"the flags {flags}")
        self._dot_all = (self._dot_all or "s" in on) and "s" not in off
        self._folds = (self._folds or "i" in on) and "i" not in off

    def _escape(self) -> Regex:
        """Parse the part after a backslash, outside of a class."""
        if self._peek() in _NO_CHARACTERS:
            raise self._wrong(_NO_CHARACTERS[self._peek()])
        start = self._pos - 1
        code, specials = self._escaped()
        if code is not None:
            return _character(code, self._folds)
        return self._characters(self._text[start : self._pos], specials)

    def _escaped(self) -> tuple[int | None, frozenset[int]]:
        """One character, or None and those of a kind that are special."""
        found = _HEX.match(self._text, self._pos) or _PROPERTY.match(self._text, self._pos)
        if found is not None:
            self._pos = found.end()
            if found.re is _HEX:
                code = int(next(filter(None, found.groups())), 16)
                if code > _LAST or 0xD800 <= code < 0xE000:
                    raise self._wrong(f"\\{found[0]}, which is no character,")
                return code, frozenset()
            return None, _of_category(found[2] or found[3], (found[0][0] == "P") != bool(found[1]))
        char = self._next()
        match char:
            case "d" | "w":
                return None, frozenset()
            case "D" | "W":
                return None, SPECIAL
            case "s":
                return None, _WHITE
            case "S":
                return None, SPECIAL - _WHITE
        if char in _CONTROLS:
            return ord(_CONTROLS[char]), frozenset()
        if char.isalnum():
            raise self._wrong(f"\\{char}")
        return ord(char), frozenset()

    def _class(self) -> "_Class":
        """Parse the part after the opening bracket, up to the closing one."""
        self._level += 1
        if self._level > MAX_GROUPS:
            raise InvalidRequest(f"a regex nests classes deeper than {MAX_GROUPS} levels")
        negated = self._take("^")
        kept, found = _Class(SPECIAL, wide=True), _Class()
        first = True
        while first or self._peek() != "]":
            if self._pos >= len(self._text):
                raise self._wrong("a bracket without its other one")
            if self._text.startswith(("--", "~~"), self._pos) and not first:
                raise self._wrong("differences of classes")
            if self._text.startswith("&&", self._pos):
                self._pos += 2
                kept, found = kept.without(found.inverse()), _Class()
                continue
            found = found.with_(self._class_item())
            first = False
        self._pos += 1
        self._level -= 1
        inside = kept.without(found.inverse())
        return inside.inverse() if negated else inside

    def _class_item(self) -> "_Class":
        posix = _POSIX_CLASS.match(self._text, self._pos)
        if posix is not None:
            self._pos = posix.end()
            if posix[2] not in _POSIX:
                raise self._wrong(posix[0])
            found = _Class(_POSIX[posix[2]])
            return found.inverse() if posix[1] else found
        if self._take("["):
            return self._class()
        start = self._pos
        code, specials = self._class_character()
        if code is None:
            return _Class(specials, narrow=False, kind=self._text[start : self._pos])
        last: int | None = code
        if self._peek() == "-" and self._text[self._pos + 1 : self._pos + 2] not in ("]", "-", ""):
            self._pos += 1
            last, _ = self._class_character()
        if last is None:
            raise self._wrong("a range without an end")
        inside = SPECIAL & frozenset(range(code, min(last, _ASCII) + 1))
        return _Class(inside, narrow=last <= _ASCII, wide=code <= _ASCII + 1 and last >= _LAST)

    def _class_character(self) -> tuple[int | None, frozenset[int]]:
        char = self._next()
        if char != "\\":
            return ord(char), frozenset()
        if self._peek() == "b":
            raise self._wrong("\\b")
        return self._escaped()

    def _characters(self, class_: str, specials: frozenset[int], *, wide: bool = False) -> Regex:
        """Those of a class; ``wide``: whether all beyond ASCII are among them."""
        plain = f"[{between_slashes(class_)}&&[^{_SPECIALS}]]"
        letters = "".join(SHORT_FORMS[code] for code in SHORT_FORMS if code in specials)
        return EscapedChar(
            f"(?i:{plain})" if self._folds else plain, letters, _ALL_BEYOND_ASCII if wide and not self._folds else ""
        )

    def _peek(self) -> str:
        return self._text[self._pos : self._pos + 1]

    def _next(self) -> str:
        if self._pos >= len(self._text):
            raise self._wrong("an end in the middle")
        self._pos += 1
        return self._text[self._pos - 1]

    def _take(self, char: str) -> bool:
        found = self._peek() == char
        self._pos += found
        return found

    def _wrong(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"{what} in a regex can't be enforced in a tool's input (at character {self._pos})")


def _any_of(first: str, second: str) -> str:
    return f"(?:{first}|{second})" if first and second else first or second


def _as_escape(code: int) -> str:
    """Return the regex of what follows the backslash of a non-ASCII character."""
    units = chr(code).encode("utf-16-be").hex()
    parts = (units[at : at + 4] for at in range(0, len(units), 4))
    return r"\\".join("u" + "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in part) for part in parts)


def _character(code: int, folded: bool) -> EscapedChar:
    if code in SHORT_FORMS:
        return EscapedChar("", SHORT_FORMS[code])
    if code in SPECIAL:
        raise InvalidRequest(f"the control character {code} can't stand in a tool's input")
    char = f"\\x{{{code:x}}}"
    if folded:
        return EscapedChar(f"(?i:{char})")
    return EscapedChar(char, unicode=_as_escape(code) if code > _ASCII and not 0xD800 <= code < 0xE000 else "")


def _of_category(name: str, negated: bool) -> frozenset[int]:
    known: Callable[[str], bool] = {
        "alphabetic": lambda _: False,
        "whitespace": lambda char: ord(char) in _WHITE,
        "any": lambda _: True,
    }.get(name.lower().replace("_", ""), lambda char: unicodedata.category(char).startswith(name))
    if len(name) > 2 and name.lower().replace("_", "") not in ("alphabetic", "whitespace", "any"):
        known = _long_category(name)
    inside = frozenset(code for code in SPECIAL if known(chr(code)))
    return SPECIAL - inside if negated else inside


def _long_category(name: str) -> Callable[[str], bool]:
    """Scripts and the long names of letters, numbers and marks have none of the special characters."""
    plain = name.lower().replace("_", "")
    if plain in ("punctuation", "otherpunctuation"):
        return lambda char: char in '"\\'
    if plain in ("other", "control", "cntrl", "ascii"):
        return lambda char: plain == "ascii" or ord(char) < 32
    return lambda _: False


def n_parts(regex: Regex, most: int) -> int:
    """How many parts it has in all, counted up to about `most`."""
    level, found = [regex], 0
    while level and found < most:
        found += 1
        match level.pop():
            case Row(parts) | OneOf(parts):
                level += parts
            case Times(of):
                level.append(of)
    return found


def holds(regex: Regex, has: Callable[[EscapedChar], bool]) -> bool:
    """Return whether a text may contain a character for which `has` is true."""
    match regex:
        case EscapedChar():
            return has(regex)
        case Row(parts) | OneOf(parts):
            return any(holds(part, has) for part in parts)
        case Times(of, _, most):
            return most != 0 and holds(of, has)


def may_grow(regex: Regex, has: Callable[[EscapedChar], bool]) -> bool:
    """Return whether a text may continue with such a character, that is, whether one may follow its first."""
    match regex:
        case EscapedChar():
            return False
        case Row(parts):
            return any(may_grow(part, has) for part in parts) or any(holds(part, has) for part in parts[1:])
        case OneOf(options):
            return any(may_grow(option, has) for option in options)
        case Times(of, _, most):
            return may_grow(of, has) or (most != 0 and most != 1 and holds(of, has))
