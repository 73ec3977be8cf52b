"""The complement of a regular expression, as one without look-around.

The expression is a JSON Schema pattern: it is searched for in the text, and `^` and `$` match the start and the end
of the text (ECMA 262 without flags). It is converted to an automaton whose states are sets of positions in the
expression; the automaton's complement is converted back by state elimination (Brzozowski and McCluskey, 1963).
Escapes that differ between dialects (``\\d``, ``\\w``, ``\\s``, ``\\p{L}``) count as all characters that any dialect
includes, so the complement excludes all of them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

MAX_PLACES = 600  # of an expression, its repetitions written out
MAX_STATES = 150
MAX_WORK = 5_000_000  # ways looked at, for all expressions of a document: a second
_TO_READ = 2000  # maximum number of these units, except for the length
MAX_CHARS = 8000  # of the complement
MAX_LEVELS = 60  # of groups in it; each is up to four levels to llguidance's reader, which takes 250
_LAST = 0x10FFFF
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]{1,3})(?:(,)([0-9]{1,3})?)?\}")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_PROPERTY = re.compile(r"[pP]\{[^{}]*\}")
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "0": 0}
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")

Ranges = tuple[tuple[int, int], ...]
"""Code points from one to another, both included: in order, apart from each other."""

ALL: Ranges = ((0, _LAST),)
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_WHITE: Ranges = ((9, 13), (32, 32))
_SEPARATORS = (28, 31)  # white space to Python
_BEYOND_ASCII = (0x80, _LAST)
_SURROGATES = (0xD800, 0xDFFF)  # no characters, and no ends of a range of some


class Complements:
    """Of the patterns of one document: each once, and no more of them than `MAX_WORK` lets."""

    def __init__(self) -> None:
        self._left = MAX_WORK
        self._found: dict[str, str | None] = {}

    def of(self, pattern: str) -> str | None:
        """Return a pattern for whole texts that do not contain `pattern`; None if it is unsupported or too large.

        The result may match fewer texts, and is "" if there are none.
        """
        if pattern not in self._found:
            try:
                self._spend(_TO_READ + 10 * len(pattern))
                reader = _Reader(pattern, self._spend)
                start, end = reader.whole()
                self._found[pattern] = _expression(*_states(reader.places, start, end, self._spend), self._spend)
            except _Unreadable:
                self._found[pattern] = None
        return self._found[pattern]

    def _spend(self, n_units: int) -> None:
        self._left -= n_units
        if self._left < 0:
            raise _Unreadable


class _Unreadable(Exception):
    """An unsupported expression."""


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def _others(ranges: Ranges) -> Ranges:
    found: list[tuple[int, int]] = []
    next_low = 0
    for low, high in ranges:
        if low > next_low:
            found.append((next_low, low - 1))
        next_low = high + 1
    return (*found, (next_low, _LAST)) if next_low <= _LAST else tuple(found)


@dataclass(slots=True)
class _Place:
    """``on``: where to go by a character of some ranges; ``free``: without one; ``^`` and ``$``: at the text's ends."""

    on: list[tuple[Ranges, int]] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    at_beginning: list[int] = field(default_factory=list)
    at_end: list[int] = field(default_factory=list)


class _Reader:
    """An expression as places and ways between them (Thompson, 1968)."""

    def __init__(self, pattern: str, spend: "_Spend") -> None:
        self._text = pattern
        self._spend = spend
        self._at = 0
        self._level = 0
        self.places: list[_Place] = []

    def whole(self) -> tuple[int, int]:
        """Where it begins and ends."""
        ends = self._alternatives()
        if self._at < len(self._text):
            raise _Unreadable
        return ends

    def _place(self) -> int:
        if len(self.places) == MAX_PLACES:
            raise _Unreadable
        self.places.append(_Place())
        return len(self.places) - 1

    def _free(self, start: int, end: int) -> None:
        self.places[start].free.append(end)

    def _alternatives(self) -> tuple[int, int]:
        start, end = self._place(), self._place()
        while True:
            first, last = self._sequence()
            self._free(start, first)
            self._free(last, end)
            if not self._take("|"):
                return start, end

    def _sequence(self) -> tuple[int, int]:
        start = end = self._place()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            first, last = self._repeated()
            self._free(end, first)
            end = last
        return start, end

    def _repeated(self) -> tuple[int, int]:
        begin = self._at
        one = self._atom()
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None:
            return one
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(match[0], (int(match[1] or 0), None))
        if match[1]:
            most = int(match[3]) if match[3] else None if match[2] else least
            if most is not None and most < least:
                raise _Unreadable
        after = match.end()
        if self._text[after : after + 1] == "?":  # whether few or many are tried first does not matter here
            after += 1
        start = end = self._place()
        for n in range(max(least + 1 if most is None else most, 0)):
            self._spend(10 * (after - begin))
            self._at = begin
            first, last = self._atom()
            self._free(end, first)
            following = self._place()
            self._free(last, following)
            if n >= least:
                self._free(end, following)
                if most is None:
                    self._free(last, first)
            end = following
        self._at = after
        if _QUANTIFIER.match(self._text, self._at):
            raise _Unreadable
        return start, end

    def _atom(self) -> tuple[int, int]:
        char = self._text[self._at]
        if char == "(":
            return self._group()
        self._at += 1
        start, end = self._place(), self._place()
        if char == "^":
            self.places[start].at_beginning.append(end)
        elif char == "$":
            self.places[start].at_end.append(end)
        elif char == "[":
            self.places[start].on.append((self._class(), end))
        elif char == ".":
            self.places[start].on.append((_others(((10, 10),)), end))
        elif char in "*+?{":
            raise _Unreadable
        else:
            self.places[start].on.append((self._escaped()[1] if char == "\\" else _just(char), end))
        return start, end

    def _group(self) -> tuple[int, int]:
        self._at += 1
        if self._take("?") and not self._take(":"):
            raise _Unreadable
        self._level += 1
        if self._level > 30:
            raise _Unreadable
        ends = self._alternatives()
        self._level -= 1
        if not self._take(")"):
            raise _Unreadable
        return ends

    def _class(self) -> Ranges:
        """Parse the part after the bracket: every character that any dialect includes."""
        negated = self._take("^")
        if self._text[self._at : self._at + 1] == "]":
            raise _Unreadable  # a class of nothing, or one with a bracket
        least: list[tuple[int, int]] = []
        most: list[tuple[int, int]] = []
        while not self._take("]"):
            sure, perhaps = self._member()
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last, _ = self._member()
                if not (_is_one(sure) and _is_one(last)) or last[0][0] < sure[0][0]:
                    raise _Unreadable
                sure = perhaps = ((sure[0][0], last[0][0]),)
            least += sure
            most += perhaps
        return _others(_joined(least)) if negated else _joined(most)

    def _member(self) -> tuple[Ranges, Ranges]:
        char = self._text[self._at : self._at + 1]
        if char in ("", "[") or self._text[self._at : self._at + 2] in ("&&", "--", "~~"):
            raise _Unreadable  # sets of sets, where a dialect has them
        self._at += 1
        return self._escaped(inside=True) if char == "\\" else (_just(char), _just(char))

    def _escaped(self, *, inside: bool = False) -> tuple[Ranges, Ranges]:
        """Parse the part after the backslash: the characters of every dialect, and those of some."""
        found = _HEX.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
            code = int(found[1] or found[2] or found[3], 16)
            if code > _LAST or 0xD800 <= code < 0xE000:
                raise _Unreadable
            return ((code, code),), ((code, code),)
        found = _PROPERTY.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
            return (), ALL
        char = self._text[self._at : self._at + 1]
        self._at += 1
        kinds = {"d": _DIGITS, "w": _WORD, "s": _WHITE}
        if char.lower() in kinds:
            sure = kinds[char.lower()]
            perhaps = _joined((*sure, _BEYOND_ASCII, *([_SEPARATORS] if sure is _WHITE else [])))
            return (sure, perhaps) if char in kinds else (_others(perhaps), _others(sure))
        if char == "0" and self._text[self._at : self._at + 1].isdigit():
            raise _Unreadable  # octal, to some
        if char in _CONTROLS or (char == "b" and inside):
            code = _CONTROLS.get(char, 8)
            return ((code, code),), ((code, code),)
        if char in _SYNTAX or (char and not char.isalnum() and ord(char) < 0x80):
            return _just(char), _just(char)
        raise _Unreadable

    def _take(self, char: str) -> bool:
        taken = self._text[self._at : self._at + 1] == char
        self._at += taken
        return taken


def _just(char: str) -> Ranges:
    return ((ord(char), ord(char)),)


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


_State = frozenset[int]


_Spend = Callable[[int], None]


def _states(places: list[_Place], start: int, end: int, spend: _Spend) -> tuple[list[dict[int, Ranges]], list[bool]]:
    """The complement's automaton: for each state where to go by which characters, and whether the text may end there.

    The first is where it begins. Texts in which the expression has been found are in no state.
    """

    def closed(begun: Iterable[int], *, beginning: bool = False, ending: bool = False) -> set[int]:
        found = set(begun)
        waiting = list(found)
        while waiting:
            place = places[waiting.pop()]
            following = place.free + place.at_beginning * beginning + place.at_end * ending
            waiting += [each for each in following if each not in found]
            found.update(following)
        spend(len(found))
        return found

    def kept(found: set[int]) -> _State:
        return frozenset(each for each in found if each == end or places[each].on or places[each].at_end)

    anywhere = closed([start])
    first = kept(closed([start], beginning=True))
    ends = [end not in closed([start], beginning=True, ending=True)]
    if end in first:
        raise _Unreadable  # it is found in every text
    numbers: dict[_State, int] = {}
    ways: list[dict[int, Ranges]] = [{}]
    waiting = [(0, first)]
    while waiting:
        number, state = waiting.pop()
        for target, ranges in _steps(places, state, spend).items():
            following = kept(closed(target) | anywhere)
            if end in following:
                continue
            if following not in numbers:
                if len(ways) == MAX_STATES:
                    raise _Unreadable
                numbers[following] = len(ways)
                ways.append({})
                ends.append(end not in closed(following, ending=True))
                waiting.append((numbers[following], following))
            into = numbers[following]
            ways[number][into] = _joined((*ways[number].get(into, ()), *ranges))
    return ways, ends


def _steps(places: list[_Place], state: _State, spend: _Spend) -> dict[_State, list[tuple[int, int]]]:
    """Where the places of a state lead by which characters."""
    on = [(low, high, target) for place in state for ranges, target in places[place].on for low, high in ranges]
    cuts = sorted({0, _LAST + 1, *(low for low, _, _ in on), *(high + 1 for _, high, _ in on)})
    spend(len(cuts) * len(on))
    found: dict[_State, list[tuple[int, int]]] = {}
    for low, after in pairwise(cuts):
        target = frozenset(target for first, last, target in on if first <= low <= last)
        found.setdefault(target, []).append((low, after - 1))
    return found


def _expression(ways: list[dict[int, Ranges]], ends: list[bool], spend: _Spend) -> str | None:
    """Of an automaton, anchored; "" where it takes nothing."""
    final = len(ways)
    out: list[dict[int, str]] = [{into: _class(ranges) for into, ranges in each.items()} for each in ways]
    for each, may_end in zip(out, ends, strict=True):
        if may_end:
            each[final] = ""
    left = set(range(1, final))
    while left:
        spend(len(left) ** 2)
        into = {number: [n for n in (0, *left) if n != number and number in out[n]] for number in left}
        number = min(left, key=lambda each: (len(into[each]) * len(out[each].keys() - {each}), each))
        left.remove(number)
        around = out[number].pop(number, None)
        loop = "" if around is None else f"(?:{around})*"
        for source in into[number]:
            before = out[source].pop(number)
            for target, behind in out[number].items():
                out[source][target] = _either(f"{before}{loop}{behind}", out[source].get(target))
        if sum(len(text) for n in (0, *left) for text in out[n].values()) > MAX_CHARS:
            return None
    found = out[0].get(final)
    if found is None:
        return ""
    return f"^{found}$" if _levels(found) <= MAX_LEVELS else None


def _levels(expression: str) -> int:
    """Return the nesting depth of groups; a parenthesis in a class doesn't count."""
    return max(accumulate((char == "(") - (char == ")") for char in expression), default=0)


def _either(text: str, other: str | None) -> str:
    if other is None or text == other:
        return text
    if not text or not other:
        return f"(?:{text or other})?"
    return f"(?:{other}|{text})"


def _class(ranges: Ranges) -> str:
    if ranges == ALL:
        return "(?s:.)"
    others = _others(_joined((*ranges, _SURROGATES)))
    if not others:
        return "(?s:.)"
    own = _others(_joined((*others, _SURROGATES)))
    if not own:
        raise _Unreadable
    shorter, sign = (others, "^") if len(others) < len(own) else (own, "")
    return f"[{sign}{''.join(_range(low, high) for low, high in shorter)}]"


def _range(low: int, high: int) -> str:
    return f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}"
