"""Converts GBNF to Lark for llguidance (llama.cpp grammars/README.md, src/llama-grammar.cpp: llama_grammar_parser).

llguidance's lexer takes the longest match: its own converter's ``[a-z]+ "a"`` never matches "xa". GBNF has no lexer,
so here every terminal is one character, and the Earley parser keeps all alternatives. The cost is a slower mask
(about 12 ms on average for 150,000 tokens in JSON-like grammars, similar to llama-server's), which only applies when
the model's first choice is rejected.
"""

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
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_SUFFIXES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
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
        self._line = 1
        self._names: dict[str, str] = {}  # Lark's name of each rule of the text
        self._rules: dict[str, str] = {}
        self._references: list[tuple[str, int]] = []  # the name of a rule and the line of its use
        self._n_groups = 0
        self._n_items = 0

    def lark(self) -> str:
        """Convert the text."""
        self._space(newlines=True)
        while self._peek():
            self._definition()
        if not self._rules:
            raise InvalidRequest("the grammar has no rules")
        if "start" not in self._rules:
            raise InvalidRequest("the grammar has no 'root' rule")
        for name, line in self._references:
            if self._names[name] not in self._rules:
                raise InvalidRequest(f"line {line}: rule '{name}' is not defined")
        return "".join(f"{rule}: {body}\n" for rule, body in self._rules.items())

    def _fail(self, message: str) -> NoReturn:
        found = self._text[self._pos : self._pos + 20].split("\n")[0]
        raise InvalidRequest(f"line {self._line}: {message}" + (f", found {found!r}" if found else ""))

    def _peek(self, n: int = 1) -> str:
        return self._text[self._pos : self._pos + n]

    def _take(self, n: int = 1) -> str:
        taken = self._text[self._pos : self._pos + n]
        self._pos += n
        self._line += taken.count("\n")
        return taken

    def _space(self, newlines: bool) -> None:
        while char := self._peek():
            if char == "#":
                while self._peek() not in ("", "\r", "\n"):
                    self._take()
            elif char in " \t" or (newlines and char in "\r\n"):
                self._take()
            else:
                return

    def _definition(self) -> None:
        name = self._name("a rule name")
        self._space(newlines=False)
        if self._peek(3) != "::=":
            self._fail(f"expected '::=' after '{name}'")
        self._take(3)
        self._space(newlines=True)
        rule = self._rule_name(name)
        if rule in self._rules:
            self._fail(f"rule '{name}' is defined twice")
        self._define(rule, depth=0)
        if self._peek() not in ("", "\r", "\n"):
            self._fail("expected the end of the rule")
        self._space(newlines=True)

    def _name(self, what: str) -> str:
        start = self._pos
        while _is_word(self._peek()):
            self._take()
        if self._pos == start:
            self._fail(f"expected {what}")
        return self._text[start : self._pos]

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
        while self._peek() == "|":
            self._take()
            self._space(newlines=True)
            options.append(self._sequence(depth))
        self._rules[rule] = " | ".join(options)

    def _sequence(self, depth: int) -> str:
        items: list[str] = []
        while (item := self._item(depth)) is not None:
            self._n_items += len(item)
            if self._n_items > MAX_GBNF_ITEMS:
                self._fail(f"the grammar has more than {MAX_GBNF_ITEMS} characters, classes and references")
            self._space(newlines=depth > 0)
            items += self._repeated(item)
            self._space(newlines=depth > 0)
        return " ".join(items) or '""'

    def _item(self, depth: int) -> list[str] | None:
        """Read one item, or a literal's characters; None at the end of the sequence."""
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return [self._char_class()]
        if char == ".":
            self._take()
            return ["/(?s:.)/"]
        if char == "(":
            return [self._group(depth)]
        if char == "<" or self._peek(2) == "!<":
            return [self._token()]
        if _is_word(char):
            name = self._name("a rule name")
            self._references.append((name, self._line))
            return [self._rule_name(name)]
        return None

    def _group(self, depth: int) -> str:
        opened = self._line
        self._take()
        self._space(newlines=True)
        rule = self._group_name()
        self._define(rule, depth + 1)
        if self._peek() != ")":
            self._fail(f"expected ')' for the '(' of line {opened}")
        self._take()
        return rule

    def _literal(self) -> list[str]:
        opened = self._line
        self._take()
        chars: list[str] = []
        while self._peek() != '"':
            if not self._peek():
                self._fail(f'the string of line {opened} has no closing "')
            code = self._char()
            chars.append(_terminal([(code, code)]))
        self._take()
        return chars

    def _char_class(self) -> str:
        opened = self._line
        self._take()
        negated = self._peek() == "^"
        if negated:
            self._take()
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            if not self._peek():
                self._fail(f"the character class of line {opened} has no closing ]")
            low = high = self._char()
            if self._peek() == "-" and self._peek(2) != "-]":
                self._take()
                if not self._peek():
                    self._fail(f"the character class of line {opened} has no closing ]")
                high = self._char()
            if high < low:
                self._fail(f"the range {chr(low)!r}-{chr(high)!r} is empty")
            ranges.append((low, high))
        self._take()
        if not ranges:
            return "/(?s:.)/" if negated else self._fail("an empty character class matches nothing")
        if negated and _covers_all(ranges):
            raise InvalidRequest("a negated character class that leaves no character")
        return _terminal(ranges, negated=negated)

    def _char(self) -> int:
        char = self._take()
        if char != "\\":
            return ord(char)
        kind = self._take()
        if kind in _ESCAPES and kind:
            return ord(_ESCAPES[kind])
        digits = _HEX_DIGITS.get(kind)
        if digits is None:
            self._fail(f"unknown escape '\\{kind}'")
        text = self._peek(digits)
        if len(text) < digits or any(digit not in "0123456789abcdefABCDEF" for digit in text):
            self._fail(f"expected {digits} hex digits after '\\{kind}'")
        self._take(digits)
        code = int(text, 16)
        if code > _MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            self._fail(f"'\\{kind}{text}' is not a character")
        return code

    def _token(self) -> str:
        """Read a token: ``<text>`` or ``<[id]>``, or ``!<...>`` for any other token."""
        negated = self._peek() == "!"
        self._take(2 if negated else 1)
        end = self._text.find(">", self._pos)
        newline = self._text.find("\n", self._pos)
        if end < 0 or 0 <= newline < end:
            self._fail("expected '>' at the token's end")
        text = self._take(end - self._pos)
        self._take()
        token: int | None
        if not text.startswith("["):
            token = self._token_id(f"<{text}>")
        elif text.endswith("]") and text[1:-1].isdecimal() and len(text) <= 12:
            token = int(text[1:-1])
        else:
            self._fail(f"'<{text}>' is not a token id like <[1000]>")
        if token is None:
            raise InvalidRequest(f"line {self._line}: '<{text}>' is not one token of this model's vocabulary")
        return f"<[^{','.join(map(str, sorted({token, *self._ends})))}]>" if negated else f"<[{token}]>"

    def _repeated(self, item: list[str]) -> list[str]:
        """Read a repetition after an item; without one, return the item."""
        char = self._peek()
        if char in _SUFFIXES:
            self._take()
            low, high = _SUFFIXES[char]
        elif char == "{":
            low, high = self._counts()
        else:
            return item
        self._space(newlines=False)
        if (char := self._peek()) and char in "*+?{":
            self._fail("a repetition of a repetition needs parentheses")
        if high == 0:
            return []
        if len(item) != 1:
            rule = self._group_name()
            self._rules[rule] = " ".join(item) or '""'
            item = [rule]
        return [item[0] + _BOUNDS.get((low, high), f"{{{low},{'' if high is None else high}}}")]

    def _counts(self) -> tuple[int, int | None]:
        self._take()
        self._space(newlines=True)
        low = self._count()
        high: int | None = low
        if self._peek() == ",":
            self._take()
            self._space(newlines=True)
            high = None if self._peek() == "}" else self._count()
        if self._peek() != "}":
            self._fail("expected '}' at the end of a repetition")
        self._take()
        if high is not None and high < low:
            self._fail(f"the repetition {{{low},{high}}} is empty")
        return low, high

    def _count(self) -> int:
        start = self._pos
        while self._peek().isdecimal():
            self._take()
        digits = self._text[start : self._pos]
        if not digits:
            self._fail("expected a number in a repetition")
        if len(digits) > 6 or int(digits) > MAX_REPETITIONS:
            self._fail(f"a repetition of more than {MAX_REPETITIONS}")
        self._space(newlines=True)
        return int(digits)


def _is_word(char: str) -> bool:
    return char != "" and char.isascii() and (char.isalnum() or char in "-_")


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
