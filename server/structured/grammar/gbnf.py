"""Converts GBNF to Lark for llguidance (llama.cpp grammars/README.md, src/llama-grammar.cpp: llama_grammar_parser).

llguidance's lexer takes the longest match: its own converter's ``[a-z]+ "a"`` never matches "xa". GBNF has no lexer,
so here every terminal is one character, and the Earley parser keeps all alternatives. The cost is a slower mask
(about 12 ms on average for 150,000 tokens in JSON-like grammars, similar to llama-server's), which only applies when
the model's first choice is rejected.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NoReturn

from server.errors import InvalidRequest
from server.structured.grammar.limits import (
    MAX_GBNF_ITEMS,
    MAX_REPETITIONS,
    MAX_TEXT_CHARS,
)

_MAX_CODE_POINT = 0x10FFFF
_MAX_GROUP_DEPTH = 100
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*+)*+")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*+)*+")
_NAME = re.compile(r"[a-zA-Z0-9_-]++")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_CLASS = re.compile(r"\[(\^?)((?:[^\]\\]|\\.)*+)\]", re.DOTALL)
_CHAR = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[nrt\\\"\[\]-])|[^\\]", re.DOTALL)
_TOKEN = re.compile(r"(!?)<([^>\n]*+)>")
_TOKEN_ID = re.compile(r"\[([0-9]{1,10})\]")
_REPETITION = re.compile(r"[*+?]|\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_SUFFIXES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_BOUNDS = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}


def to_lark(text: str, token_id: Callable[[str], int | None], ends: AbstractSet[int]) -> str:
    """Return Lark whose `start` is the grammar's `root`.

    ``token_id``: finds the token with exactly that text. ``ends``: the end tokens, which ``!<...>`` never matches.
    Raises `InvalidRequest` that names the line and the construct.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"the grammar has {len(text)} characters, {MAX_TEXT_CHARS} are allowed")
    return _Converter(text, token_id, ends).lark()


class _Converter:
    """Parses the text once and writes each rule as Lark. A group becomes a rule, because Lark limits nesting."""

    def __init__(self, text: str, token_id: Callable[[str], int | None], ends: AbstractSet[int]) -> None:
        self._text = text
        self._token_id = token_id
        self._ends = ends
        self._pos = 0
        self._names: dict[str, str] = {}  # Lark's name of each rule of the text
        self._rules: dict[str, str] = {}
        self._references: list[tuple[str, int]] = []  # the name of a rule and the position of its use
        self._n_groups = 0
        self._n_items = 0

    def lark(self) -> str:
        """Convert the text."""
        self._take(_LINES)
        while self._pos < len(self._text):
            self._definition()
        if not self._rules:
            raise InvalidRequest("the grammar has no rules")
        if "start" not in self._rules:
            raise InvalidRequest("the grammar has no 'root' rule")
        for name, start in self._references:
            if self._names[name] not in self._rules:
                self._pos = start
                self._fail(f"rule '{name}' is not defined")
        return "".join(f"{rule}: {body}\n" for rule, body in self._rules.items())

    def _fail(self, message: str) -> NoReturn:
        line = self._text.count("\n", 0, self._pos) + 1
        found = self._text[self._pos : self._pos + 20].split("\n")[0]
        raise InvalidRequest(f"line {line}: {message}" + (f", found {found!r}" if found else ""))

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Consume a match at the current position."""
        found = pattern.match(self._text, self._pos)
        if found is not None:
            self._pos = found.end()
        return found

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._pos):
            return False
        self._pos += len(text)
        return True

    def _definition(self) -> None:
        found = self._take(_NAME)
        if found is None:
            self._fail("expected a rule name")
        self._take(_SPACE)
        if not self._takes("::="):
            self._fail(f"expected '::=' after '{found[0]}'")
        self._take(_LINES)
        rule = self._rule_name(found[0])
        if rule in self._rules:
            self._fail(f"rule '{found[0]}' is defined twice")
        self._define(rule, depth=0)
        if self._text[self._pos : self._pos + 1] not in ("", "\r", "\n"):
            self._fail("expected the end of the rule")
        self._take(_LINES)

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
        while self._takes("|"):
            self._take(_LINES)
            options.append(self._sequence(depth))
        self._rules[rule] = " | ".join(options)

    def _sequence(self, depth: int) -> str:
        items: list[str] = []
        space = _LINES if depth else _SPACE
        while (item := self._item(depth)) is not None:
            self._n_items += len(item)
            if self._n_items > MAX_GBNF_ITEMS:
                self._fail(f"the grammar has more than {MAX_GBNF_ITEMS} characters, classes and references")
            self._take(space)
            items += self._repeated(item)
            self._take(space)
        return " ".join(items) or '""'

    def _item(self, depth: int) -> list[str] | None:
        """Read one item, or a literal's characters; None at the end of the sequence."""
        start = self._pos
        if (found := self._take(_NAME)) is not None:
            self._references.append((found[0], start))
            return [self._rule_name(found[0])]
        if (found := self._take(_LITERAL)) is not None:
            return [_terminal([(code, code)]) for code in map(self._code, self._chars(found[1]))]
        if (found := self._take(_CLASS)) is not None:
            return [self._char_class(found[2], negated=bool(found[1]))]
        if (found := self._take(_TOKEN)) is not None:
            return [self._token(found[2], negated=bool(found[1]))]
        if self._takes("."):
            return ["/(?s:.)/"]
        if self._takes("("):
            return [self._group(depth)]
        if self._text.startswith(('"', "[", "<", "!"), self._pos):
            self._fail("a string, a character class or a token has no end")
        return None

    def _group(self, depth: int) -> str:
        opened = self._text.count("\n", 0, self._pos) + 1
        self._take(_LINES)
        rule = self._group_name()
        self._define(rule, depth + 1)
        if not self._takes(")"):
            self._fail(f"expected ')' for the '(' of line {opened}")
        return rule

    def _chars(self, text: str) -> list[str]:
        """Split the inside of a literal or class into characters and escapes."""
        chars: list[str] = []
        at = 0
        while at < len(text):
            found = _CHAR.match(text, at)
            if found is None:
                self._fail(f"unknown escape {text[at : at + 2]!r}")
            chars.append(found[0])
            at = found.end()
        return chars

    def _code(self, char: str) -> int:
        if char[0] != "\\":
            return ord(char)
        if char[1] not in "xuU":
            return ord(_ESCAPES.get(char[1], char[1]))
        code = int(char[2:], 16)
        if code > _MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            self._fail(f"'{char}' is not a character")
        return code

    def _char_class(self, inside: str, *, negated: bool) -> str:
        chars = self._chars(inside)
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(chars):
            is_range = chars[at + 1 : at + 2] == ["-"] and at + 2 < len(chars)
            low, high = self._code(chars[at]), self._code(chars[at + 2 if is_range else at])
            if high < low:
                self._fail(f"the range {chr(low)!r}-{chr(high)!r} is empty")
            ranges.append((low, high))
            at += 3 if is_range else 1
        if not ranges:
            return "/(?s:.)/" if negated else self._fail("an empty character class matches nothing")
        if negated and _covers_all(ranges):
            raise InvalidRequest("a negated character class that leaves no character")
        return _terminal(ranges, negated=negated)

    def _token(self, text: str, *, negated: bool) -> str:
        """Return a token: ``<text>`` or ``<[id]>``, or ``!<...>`` for any other token."""
        numbered = _TOKEN_ID.fullmatch(text)
        if numbered is None and text.startswith("["):
            self._fail(f"'<{text}>' is not a token id like <[1000]>")
        token = self._token_id(f"<{text}>") if numbered is None else int(numbered[1])
        if token is None:
            self._fail(f"'<{text}>' is not one token of this model's vocabulary")
        return f"<[^{','.join(map(str, sorted({token, *self._ends})))}]>" if negated else f"<[{token}]>"

    def _repeated(self, item: list[str]) -> list[str]:
        """Read a repetition after an item; without one, return the item."""
        found = self._take(_REPETITION)
        if found is None:
            return item if not self._text.startswith("{", self._pos) else self._fail("expected a repetition like {1,2}")
        low, high = _SUFFIXES[found[0]] if found[0] in _SUFFIXES else self._counts(found)
        self._take(_SPACE)
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
        least, comma, most = found.groups()
        if any(len(digits) > 6 or int(digits) > MAX_REPETITIONS for digits in (least, most) if digits):
            self._fail(f"a repetition of more than {MAX_REPETITIONS}")
        low = int(least)
        high = int(most) if most else None if comma else low
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
