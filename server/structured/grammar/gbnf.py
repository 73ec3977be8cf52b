"""Converts GBNF to Lark for llguidance (llama.cpp grammars/README.md, src/llama-grammar.cpp: llama_grammar_parser).

llguidance's lexer takes the longest match: its own converter's ``[a-z]+ "a"`` never matches "xa". GBNF has no lexer,
so here every terminal is one character, and the Earley parser keeps all alternatives. The cost is a slower mask:
about 12 ms on average for 150,000 tokens in JSON-like grammars, similar to llama-server. A mask is only computed when
the model's first choice is rejected.
"""

import functools
import re
from typing import NoReturn

from server.errors import InvalidRequest
from server.structured.grammar.limits import MAX_GBNF_ITEMS, MAX_REPETITIONS, MAX_TEXT_CHARS
from server.structured.grammar.tokenizer import TokenTable

_MAX_CODE_POINT = 0x10FFFF
_MAX_GROUP_DEPTH = 100
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_SUFFIXES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_BOUNDS = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
_ANY_CHAR = "/(?s:.)/"

_SPACE = re.compile(r"(?:[ \t]|\#[^\r\n]*+)*+")
_LINES = re.compile(r"(?:[ \t\r\n]|\#[^\r\n]*+)*+")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_TOKEN = re.compile(r"<([^>\n]*)>")
_TOKEN_ID = re.compile(r"\[([0-9]{1,10})\]")
_REPETITION = re.compile(
    rf"\{{{_LINES.pattern}([0-9]+){_LINES.pattern}(?:(,){_LINES.pattern}([0-9]*){_LINES.pattern})?\}}|[*+?]"
)


def to_lark(text: str, table: TokenTable) -> str:
    """Return Lark whose `start` is the grammar's `root`.

    ``table``: the tokens; ``!<...>`` matches no end token. Raises `InvalidRequest` with the line and the construct.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"the grammar has {len(text)} characters, {MAX_TEXT_CHARS} are allowed")
    return _Converter(text, table).lark()


class _Converter:
    """Parses the text once and writes each rule as Lark. A group becomes a rule, because Lark limits nesting."""

    def __init__(self, text: str, table: TokenTable) -> None:
        self._text = text
        self._token_id, self._ends = functools.cache(table.token_id), table.ends
        self._pos = 0
        self._names: dict[str, str] = {}  # Lark's name of each GBNF rule
        self._rules: dict[str, str] = {}
        self._references: list[tuple[str, int]] = []  # the name of a rule and the position of its use
        self._n_groups = 0
        self._n_items = 0

    def lark(self) -> str:
        self._match(_LINES)
        while self._pos < len(self._text):
            self._definition()
        if not self._rules:
            raise InvalidRequest("the grammar has no rules")
        if "start" not in self._rules:
            raise InvalidRequest("the grammar has no 'root' rule")
        for name, pos in self._references:
            if self._names[name] not in self._rules:
                raise InvalidRequest(f"line {self._line(pos)}: rule '{name}' is not defined")
        return "".join(f"{rule}: {body}\n" for rule, body in self._rules.items())

    def _line(self, pos: int) -> int:
        return self._text.count("\n", 0, pos) + 1

    def _fail(self, message: str) -> NoReturn:
        found = self._text[self._pos : self._pos + 20].split("\n")[0]
        raise InvalidRequest(f"line {self._line(self._pos)}: {message}" + (f", found {found!r}" if found else ""))

    def _take(self, text: str) -> bool:
        """Consume that text if it is next."""
        found = self._text.startswith(text, self._pos)
        self._pos += len(text) * found
        return found

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Consume and return what matches next."""
        found = pattern.match(self._text, self._pos)
        if found is not None:
            self._pos = found.end()
        return found

    def _definition(self) -> None:
        found = self._match(_NAME) or self._fail("expected a rule name")
        name = found[0]
        self._match(_SPACE)
        if not self._take("::="):
            self._fail(f"expected '::=' after '{name}'")
        self._match(_LINES)
        rule = self._rule_name(name)
        if rule in self._rules:
            self._fail(f"rule '{name}' is defined twice")
        self._define(rule, depth=0)
        if self._text[self._pos : self._pos + 1] not in ("", "\r", "\n"):
            self._fail("expected the end of the rule")
        self._match(_LINES)

    def _rule_name(self, name: str) -> str:
        return self._names.setdefault(name, "start" if name == "root" else f"r{len(self._names)}")

    def _group_name(self) -> str:
        self._n_groups += 1
        return f"g{self._n_groups}"

    def _define(self, rule: str, depth: int) -> None:
        """Read alternatives as the body of a rule."""
        if depth > _MAX_GROUP_DEPTH:
            self._fail(f"groups nested deeper than {_MAX_GROUP_DEPTH}")
        options = [self._sequence(depth)]
        while self._take("|"):
            self._match(_LINES)
            options.append(self._sequence(depth))
        self._rules[rule] = " | ".join(options)

    def _sequence(self, depth: int) -> str:
        space = _LINES if depth else _SPACE
        items: list[str] = []
        while (item := self._item(depth)) is not None:
            self._n_items += len(item)
            if self._n_items > MAX_GBNF_ITEMS:
                self._fail(f"the grammar has more than {MAX_GBNF_ITEMS} characters, classes and references")
            self._match(space)
            items += self._repeated(item)
            self._match(space)
        return " ".join(items) or '""'

    def _item(self, depth: int) -> list[str] | None:
        """Read one item, or a literal's characters; None at the end of the sequence."""
        opened = self._pos
        if self._take('"'):
            chars: list[str] = []
            while not self._take('"'):
                code = self._char(opened, 'string of line {} has no closing "')
                chars.append(_terminal([(code, code)]))
            return chars
        if self._take("["):
            return [self._char_class(opened)]
        if self._take("."):
            return [_ANY_CHAR]
        if self._take("("):
            return [self._group(depth, opened)]
        if self._text.startswith(("<", "!<"), opened):
            return [self._token()]
        found = self._match(_NAME)
        if found is None:
            return None
        self._references.append((found[0], opened))
        return [self._rule_name(found[0])]

    def _group(self, depth: int, opened: int) -> str:
        self._match(_LINES)
        rule = self._group_name()
        self._define(rule, depth + 1)
        if not self._take(")"):
            self._fail(f"expected ')' for the '(' of line {self._line(opened)}")
        return rule

    def _char_class(self, opened: int) -> str:
        unclosed = "character class of line {} has no closing ]"
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = high = self._char(opened, unclosed)
            if not self._text.startswith("-]", self._pos) and self._take("-"):
                high = self._char(opened, unclosed)
            if high < low:
                self._fail(f"the range {chr(low)!r}-{chr(high)!r} is empty")
            ranges.append((low, high))
        if not ranges:
            return _ANY_CHAR if negated else self._fail("an empty character class matches nothing")
        if negated and _covers_all(ranges):
            raise InvalidRequest("a negated character class that leaves no character")
        return _terminal(ranges, negated=negated)

    def _char(self, opened: int, unclosed: str) -> int:
        """Read a character or an escape. ``unclosed``: the error if the text ends; `opened`: where the item started."""
        char = self._text[self._pos : self._pos + 1]
        if not char:
            self._fail(f"the {unclosed.format(self._line(opened))}")
        self._pos += 1
        if char != "\\":
            return ord(char)
        kind = self._text[self._pos : self._pos + 1]
        self._pos += len(kind)
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        n_digits = _HEX_DIGITS.get(kind) or self._fail(f"unknown escape '\\{kind}'")
        digits = self._match(re.compile(f"[0-9a-fA-F]{{{n_digits}}}"))
        if digits is None:
            self._fail(f"expected {n_digits} hex digits after '\\{kind}'")
        code = int(digits[0], 16)
        if code > _MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            self._fail(f"'\\{kind}{digits[0]}' is not a character")
        return code

    def _token(self) -> str:
        """Read a token: ``<text>`` or ``<[id]>``, or ``!<...>`` for any other token."""
        negated = self._take("!")
        text = self._match(_TOKEN) or self._fail("expected '>' at the token's end")
        token: int | None
        if not text[1].startswith("["):
            token = self._token_id(text[0])
        elif number := _TOKEN_ID.fullmatch(text[1]):
            token = int(number[1])
        else:
            self._fail(f"'{text[0]}' is not a token id like <[1000]>")
        if token is None:
            raise InvalidRequest(
                f"line {self._line(self._pos)}: '{text[0]}' is not one token of this model's vocabulary"
            )
        return f"<[^{','.join(map(str, sorted({token, *self._ends})))}]>" if negated else f"<[{token}]>"

    def _repeated(self, item: list[str]) -> list[str]:
        """Read a repetition after an item; without one, return the item."""
        found = self._match(_REPETITION)
        if found is None:
            return self._fail("expected a repetition like {2,5}") if self._take("{") else item
        low, high = self._counts(found)
        self._match(_SPACE)
        if self._text.startswith(("*", "+", "?", "{"), self._pos):
            self._fail("a repetition of a repetition needs parentheses")
        if high == 0:
            return []
        if len(item) != 1:
            rule = self._group_name()
            self._rules[rule] = " ".join(item) or '""'
            item = [rule]
        return [item[0] + _BOUNDS.get((low, high), f"{{{low},{'' if high is None else high}}}")]

    def _counts(self, found: re.Match[str]) -> tuple[int, int | None]:
        """Return the minimum and the maximum of repetitions; None for no maximum."""
        if found[0] in _SUFFIXES:
            return _SUFFIXES[found[0]]
        least, comma, most = found.groups()
        if any(len(digits or "") > 6 or int(digits or 0) > MAX_REPETITIONS for digits in (least, most)):
            self._fail(f"a repetition of more than {MAX_REPETITIONS}")
        low = int(least)
        high = low if not comma else int(most) if most else None
        if high is not None and high < low:
            self._fail(f"the repetition {{{low},{high}}} is empty")
        return low, high


def _terminal(ranges: list[tuple[int, int]], *, negated: bool = False) -> str:
    """Return a terminal of one character, as a Rust regex."""
    inside = "".join(f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges)
    return f"/[{'^' if negated else ''}{inside}]/"


def _covers_all(ranges: list[tuple[int, int]]) -> bool:
    reached = -1
    for low, high in sorted(ranges):
        if low > reached + 1:
            return False
        reached = max(reached, high)
    return reached >= _MAX_CODE_POINT
