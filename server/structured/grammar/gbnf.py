"""GBNF text to a syntax tree (llama.cpp grammars/README.md and src/llama-grammar.cpp, `llama_grammar_parser`).

A string literal is its characters, one after the other. Errors name the line and the construct. Rule references are
checked here too.
"""

from dataclasses import dataclass, field
from typing import NoReturn

from server.errors import InvalidRequest
from server.structured.grammar.limits import MAX_GBNF_ITEMS, MAX_REPETITIONS, MAX_TEXT_CHARS

MAX_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Chars:
    """One character: in (or, negated, outside) inclusive ranges of code points."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class TokenRef:
    """One token by its id or by its whole text; negated: any other token."""

    what: int | str
    negated: bool
    line: int


@dataclass(frozen=True, slots=True)
class RuleRef:
    """Another rule."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """`item` at least `low` and at most `high` times; None = without end."""

    item: "Term"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """Alternatives, each a sequence."""

    options: tuple[tuple["Term", ...], ...]


Term = Chars | TokenRef | RuleRef | Repeat | Group


@dataclass(slots=True)
class Gbnf:
    """Rules by name, in the order of the text; `root` is the start."""

    rules: dict[str, Group] = field(default_factory=dict)


_MAX_GROUP_DEPTH = 100
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_SUFFIXES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def parse_gbnf(text: str) -> Gbnf:
    """Raise InvalidRequest naming line and construct for text that is not a grammar with a `root`."""
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidRequest(f"the grammar has {len(text)} characters, {MAX_TEXT_CHARS} are allowed")
    parser = _Parser(text)
    grammar = parser.grammar()
    if not grammar.rules:
        raise InvalidRequest("the grammar has no rules")
    if "root" not in grammar.rules:
        raise InvalidRequest("the grammar has no 'root' rule")
    for ref in parser.references:
        if ref.name not in grammar.rules:
            raise InvalidRequest(f"line {ref.line}: rule '{ref.name}' is not defined")
    return grammar


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.line = 1
        self.references: list[RuleRef] = []
        self.n_items = 0

    def fail(self, message: str) -> NoReturn:
        found = self.text[self.pos : self.pos + 20].split("\n")[0]
        raise InvalidRequest(f"line {self.line}: {message}" + (f", found {found!r}" if found else ""))

    def peek(self, n: int = 1) -> str:
        return self.text[self.pos : self.pos + n]

    def take(self, n: int = 1) -> str:
        taken = self.text[self.pos : self.pos + n]
        self.pos += n
        self.line += taken.count("\n")
        return taken

    def space(self, newlines: bool) -> None:
        while char := self.peek():
            if char == "#":
                while self.peek() not in ("", "\r", "\n"):
                    self.take()
            elif char in " \t" or (newlines and char in "\r\n"):
                self.take()
            else:
                return

    def grammar(self) -> Gbnf:
        grammar = Gbnf()
        self.space(newlines=True)
        while self.peek():
            name = self.name("a rule name")
            self.space(newlines=False)
            if self.peek(3) != "::=":
                self.fail(f"expected '::=' after '{name}'")
            self.take(3)
            self.space(newlines=True)
            if name in grammar.rules:
                self.fail(f"rule '{name}' is defined twice")
            grammar.rules[name] = self.alternatives(depth=0)
            if self.peek() not in ("", "\r", "\n"):
                self.fail("expected the end of the rule")
            self.space(newlines=True)
        return grammar

    def name(self, what: str) -> str:
        start = self.pos
        while _is_word(self.peek()):
            self.take()
        if self.pos == start:
            self.fail(f"expected {what}")
        return self.text[start : self.pos]

    def alternatives(self, depth: int) -> Group:
        if depth > _MAX_GROUP_DEPTH:
            self.fail(f"groups nested deeper than {_MAX_GROUP_DEPTH}")
        options = [self.sequence(depth)]
        while self.peek() == "|":
            self.take()
            self.space(newlines=True)
            options.append(self.sequence(depth))
        return Group(tuple(options))

    def sequence(self, depth: int) -> tuple[Term, ...]:
        items: list[Term] = []
        while True:
            item = self.item(depth)
            if item is None:
                return tuple(items)
            self.n_items += len(item)
            if self.n_items > MAX_GBNF_ITEMS:
                self.fail(f"the grammar has more than {MAX_GBNF_ITEMS} characters, classes and references")
            self.space(newlines=depth > 0)
            unit: Term = item[0] if len(item) == 1 else Group((item,))
            repeated = self.repeated(unit)
            items += item if repeated is unit else (repeated,)
            self.space(newlines=depth > 0)

    def item(self, depth: int) -> tuple[Term, ...] | None:
        """One item, or a literal's characters; None at the sequence's end."""
        char = self.peek()
        if char == '"':
            return self.literal()
        if char == "[":
            return (self.char_class(),)
        if char == ".":
            self.take()
            return (Chars((), negated=True),)
        if char == "(":
            return (self.group(depth),)
        if char == "<" or self.peek(2) == "!<":
            return (self.token(),)
        if _is_word(char):
            ref = RuleRef(self.name("a rule name"), self.line)
            self.references.append(ref)
            return (ref,)
        return None

    def group(self, depth: int) -> Group:
        opened = self.line
        self.take()
        self.space(newlines=True)
        group = self.alternatives(depth + 1)
        if self.peek() != ")":
            self.fail(f"expected ')' for the '(' of line {opened}")
        self.take()
        return group

    def literal(self) -> tuple[Term, ...]:
        opened = self.line
        self.take()
        chars: list[Term] = []
        while self.peek() != '"':
            if not self.peek():
                self.fail(f'the string of line {opened} has no closing "')
            code = self.char()
            chars.append(Chars(((code, code),)))
        self.take()
        return tuple(chars)

    def char_class(self) -> Chars:
        opened = self.line
        self.take()
        negated = self.peek() == "^"
        if negated:
            self.take()
        ranges: list[tuple[int, int]] = []
        while self.peek() != "]":
            if not self.peek():
                self.fail(f"the character class of line {opened} has no closing ]")
            low = high = self.char()
            if self.peek() == "-" and self.peek(2) != "-]":
                self.take()
                if not self.peek():
                    self.fail(f"the character class of line {opened} has no closing ]")
                high = self.char()
            if high < low:
                self.fail(f"the range {chr(low)!r}-{chr(high)!r} is empty")
            ranges.append((low, high))
        self.take()
        if not ranges and not negated:
            self.fail("an empty character class matches nothing")
        return Chars(tuple(ranges), negated)

    def char(self) -> int:
        char = self.take()
        if char != "\\":
            return ord(char)
        kind = self.take()
        if kind in _ESCAPES and kind:
            return ord(_ESCAPES[kind])
        digits = _HEX_DIGITS.get(kind)
        if digits is None:
            self.fail(f"unknown escape '\\{kind}'")
        text = self.peek(digits)
        if len(text) < digits or any(digit not in "0123456789abcdefABCDEF" for digit in text):
            self.fail(f"expected {digits} hex digits after '\\{kind}'")
        self.take(digits)
        code = int(text, 16)
        if code > MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            self.fail(f"'\\{kind}{text}' is not a character")
        return code

    def token(self) -> TokenRef:
        negated = self.peek() == "!"
        self.take(2 if negated else 1)
        line = self.line
        end = self.text.find(">", self.pos)
        newline = self.text.find("\n", self.pos)
        if end < 0 or 0 <= newline < end:
            self.fail("expected '>' at the token's end")
        text = self.take(end - self.pos)
        self.take()
        if not text.startswith("["):
            return TokenRef(f"<{text}>", negated, line)
        if not (text.endswith("]") and text[1:-1].isdecimal() and len(text) <= 12):
            self.fail(f"'<{text}>' is not a token id like <[1000]>")
        return TokenRef(int(text[1:-1]), negated, line)

    def repeated(self, item: Term) -> Term:
        char = self.peek()
        if char in _SUFFIXES:
            self.take()
            return self.repeated_again(Repeat(item, *_SUFFIXES[char]))
        if char != "{":
            return item
        self.take()
        self.space(newlines=True)
        low = self.count()
        high: int | None = low
        if self.peek() == ",":
            self.take()
            self.space(newlines=True)
            high = None if self.peek() == "}" else self.count()
        if self.peek() != "}":
            self.fail("expected '}' at the end of a repetition")
        self.take()
        if high is not None and high < low:
            self.fail(f"the repetition {{{low},{high}}} is empty")
        return self.repeated_again(Repeat(item, low, high))

    def repeated_again(self, item: Repeat) -> Term:
        self.space(newlines=False)
        char = self.peek()
        if char and char in "*+?{":
            self.fail("a repetition of a repetition needs parentheses")
        return item

    def count(self) -> int:
        start = self.pos
        while self.peek().isdecimal():
            self.take()
        digits = self.text[start : self.pos]
        if not digits:
            self.fail("expected a number in a repetition")
        if len(digits) > 6 or int(digits) > MAX_REPETITIONS:
            self.fail(f"a repetition of more than {MAX_REPETITIONS}")
        self.space(newlines=True)
        return int(digits)


def _is_word(char: str) -> bool:
    return char != "" and char.isascii() and (char.isalnum() or char in "-_")
