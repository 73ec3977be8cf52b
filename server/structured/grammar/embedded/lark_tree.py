"""Parses a client's Lark grammar, to be rewritten inside another grammar.

It supports the subset that OpenAI accepts for tools (standard Lark without priorities, templates and look-around).
llguidance's extensions (``%json``, attributes, ``<tokens>``) only have a meaning for a whole output, so they are
rejected by name.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from server.errors import InvalidRequest
from server.structured.grammar.embedded.json_escapes import OneOf, Row, Times

T = TypeVar("T")
MAX_CHARS = 32 * 1024
MAX_DEFINITIONS = 500
MAX_NODES = 10_000  # of all rules and terminals; each is looked at several times
MAX_GROUPS = 100
MAX_PARTS = 200
"""Maximum length of one sequence in a rule or a terminal; the output grows quadratically with it."""
MAX_SIGNS = 4
"""Maximum number of consecutive `?`, `*`, `+` operators."""
COMMON = {  # Lark's own terminals (lark/grammars/common.lark), as llguidance has them
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[a-fA-F0-9]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "_EXP": r"[eE][+-]?[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+)",
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[A-Za-z]",
    "WORD": r"[A-Za-z]+",
    "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
    "SQL_COMMENT": r"--[^\n]*",
}


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly that text, in any case where it is ``folded``."""

    text: str
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regex in Rust's syntax with its flags."""

    regex: str
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Name:
    """A rule, or in capitals a terminal."""

    name: str

    @property
    def is_terminal(self) -> bool:
        """Whether it is one."""
        return is_terminal(self.name)


Node: TypeAlias = Literal | Pattern | Name | Row["Node"] | OneOf["Node"] | Times["Node"]


@dataclass(slots=True)
class Grammar:
    """Rules and terminals by name, and the texts that are ignored between terminals."""

    definitions: dict[str, Node] = field(default_factory=dict)
    ignored: list[Node] = field(default_factory=list)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


_TOKENS = re.compile(
    r"""
    (?P<skip>[ \t\r]+ | //[^\n]* | \#[^\n]*)
  | (?P<newline>\n)
  | (?P<directive>%[a-z_]+)
  | (?P<string>"(?:\\.|[^"\\\n])*"i?)
  | (?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)
  | (?P<range>\.\.)
  | (?P<arrow>->)
  | (?P<number>[0-9]+)
  | (?P<name>[?!]?[A-Za-z_][A-Za-z0-9_-]*)
  | (?P<sign>[:|()\[\]{}?*+~,.])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_IGNORED = "%ignore"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b", "v": "\v", "a": "\a", "0": "\0"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)


def is_terminal(name: str) -> bool:
    """Whether the name is a terminal's: in capitals."""
    return name.lstrip("_")[:1].isupper()


def parsed(text: str) -> Grammar:
    """Parse the grammar with its ``start``. Raises `InvalidRequest` with the line of the error."""
    if len(text) > MAX_CHARS:
        raise InvalidRequest(f"the grammar has {len(text)} characters, {MAX_CHARS} are allowed")
    grammar = _Parser(list(_tokens(text))).grammar()
    if "start" not in grammar.definitions:
        raise InvalidRequest("the grammar has no rule 'start'")
    _check_names(grammar)
    return grammar


def spaced(grammar: Grammar) -> Grammar:
    """Return an equivalent grammar without ``%ignore``: ignored text may follow each terminal of a rule."""
    if not grammar.ignored:
        return grammar
    definitions: dict[str, Node] = {_IGNORED: Times(OneOf(tuple(grammar.ignored)), 0, None)}

    def with_space(node: Node) -> Node:
        match node:
            case Literal() | Pattern():
                return Row((node, Name(_IGNORED)))
            case Name():
                return Row((node, Name(_IGNORED))) if node.is_terminal else node
            case Row(parts):
                return Row(tuple(map(with_space, parts)))
            case OneOf(options):
                return OneOf(tuple(map(with_space, options)))
            case Times(of, least, most):
                return Times(with_space(of), least, most)

    for name, node in grammar.definitions.items():
        definitions[name] = node if is_terminal(name) else with_space(node)
    return Grammar(definitions)


def parts_of(node: Node) -> Iterator[Node]:
    """A node and all in it."""
    level = [node]
    while level:
        node = level.pop()
        yield node
        match node:
            case Row(parts) | OneOf(parts):
                level += parts
            case Times(of):
                level.append(of)


def _check_names(grammar: Grammar) -> None:
    number = 0
    for node in [*grammar.definitions.values(), *grammar.ignored]:
        for part in parts_of(node):
            number += 1
            if number > MAX_NODES:
                raise InvalidRequest(f"the grammar has more than {MAX_NODES} parts")
            if isinstance(part, Name) and part.name not in grammar.definitions:
                raise InvalidRequest(f"the grammar has no {part.name[:64]!r}")


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKENS.finditer(text):
        kind = match.lastgroup or ""
        if kind == "newline":
            line += 1
        if kind == "skip":
            continue
        yield _Token(kind, match.group(), line)
    yield _Token("newline", "\n", line)
    yield _Token("end", "", line)


class _Parser:
    """Recursive descent; groups are bounded, so that it ends long before the interpreter's stack does."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._pos = 0
        self._level = 0
        self._grammar = Grammar()

    def grammar(self) -> Grammar:
        while not self._take("end"):
            if not self._take("newline"):
                self._statement()
        return self._grammar

    def _statement(self) -> None:
        token = self._next()
        if token.kind == "directive":
            self._directive(token)
            return
        if token.kind != "name":
            raise _unread(token)
        if self._peek() in ("[", "{", "."):
            raise InvalidRequest(
                f"line {token.line}: attributes, templates and priorities can't be enforced in a tool's input"
            )
        self._expect(":")
        self._define(token.text.lstrip("?!"), self._choice(), token.line)

    def _define(self, name: str, node: Node, line: int) -> None:
        if name in self._grammar.definitions:
            raise InvalidRequest(f"line {line}: {name[:64]!r} is defined twice")
        if len(self._grammar.definitions) == MAX_DEFINITIONS:
            raise InvalidRequest(f"the grammar has more than {MAX_DEFINITIONS} rules and terminals")
        self._grammar.definitions[name] = node

    def _directive(self, token: _Token) -> None:
        match token.text:
            case "%ignore":
                self._grammar.ignored.append(self._choice())
            case "%import":
                self._import(token)
            case _:
                raise InvalidRequest(f"line {token.line}: {token.text[:64]} can't be enforced in a tool's input")

    def _import(self, token: _Token) -> None:
        path = [self._next().text]
        while self._take("sign", "."):
            path.append(self._next().text)
        if self._take("sign", "("):
            names = [self._next().text]
            while self._take("sign", ","):
                names.append(self._next().text)
            self._expect(")")
            imported = [(name, name) for name in names]
            source = path
        else:
            *source, name = path
            imported = [(name, self._next().text if self._take("arrow") else name)]
        for name, here in imported:
            if source != ["common"] or name not in COMMON:
                raise InvalidRequest(f"line {token.line}: {'.'.join([*source, name])[:64]} can't be imported")
            self._define(here, Pattern(COMMON[name]), token.line)

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._more_options():
            options.append(self._sequence())
        return options[0] if len(options) == 1 else OneOf(tuple(options))

    def _more_options(self) -> bool:
        """Return whether a `|` follows, which may start a new line."""
        start = self._pos
        while self._take("newline"):
            pass
        if self._take("sign", "|"):
            while self._take("newline"):
                pass
            return True
        self._pos = start
        return False

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while True:
            token = self._token
            if token.kind == "newline" and self._level:
                self._pos += 1
            elif token.kind == "arrow":
                self._pos += 1
                self._next()
            elif token.kind in ("string", "regex", "name") or token.text in ("(", "["):
                parts.append(self._repeated())
                if len(parts) > MAX_PARTS:
                    raise InvalidRequest(f"line {token.line}: more than {MAX_PARTS} parts in a row")
            else:
                return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _repeated(self) -> Node:
        node = self._atom()
        for _ in range(MAX_SIGNS):
            if self._peek() not in ("?", "*", "+", "~", "{"):
                break
            node = self._repeat(node, self._next())
        return node

    def _repeat(self, node: Node, token: _Token) -> Node:
        match token.text:
            case "?":
                return Times(node, 0, 1)
            case "*":
                return Times(node, 0, None)
            case "+":
                return Times(node, 1, None)
            case "~":
                least = self._number()
                most: int | None = self._number() if self._take("range") else least
            case _:
                most = least = self._number()
                if self._take("sign", ","):
                    most = None if self._peek() == "}" else self._number()
                self._expect("}")
        if most is not None and most < least:
            raise InvalidRequest(f"line {token.line}: at least {least} and at most {most} repetitions")
        return Times(node, least, most)

    def _atom(self) -> Node:
        token = self._next()
        match token.kind:
            case "string" if self._take("range"):
                return _range(token, self._next())
            case "string":
                text, _, flag = token.text.rpartition('"')
                return Literal(_unescaped(text[1:]), bool(flag))
            case "regex":
                regex, _, flags = token.text.rpartition("/")
                return Pattern(regex[1:], flags)
            case "name":
                return Name(token.text)
        self._level += 1
        if self._level > MAX_GROUPS:
            raise InvalidRequest(f"line {token.line}: groups are nested too deeply, {MAX_GROUPS} levels are allowed")
        inside = self._choice()
        while self._take("newline"):
            pass
        self._level -= 1
        self._expect(")" if token.text == "(" else "]")
        return inside if token.text == "(" else Times(inside, 0, 1)

    def _number(self) -> int:
        token = self._next()
        if token.kind != "number":
            raise _unread(token)
        return int(token.text[:9])

    @property
    def _token(self) -> _Token:
        return self._tokens[min(self._pos, len(self._tokens) - 1)]

    def _peek(self) -> str:
        return self._token.text

    def _next(self) -> _Token:
        token = self._token
        self._pos += 1
        return token

    def _take(self, kind: str, text: str = "") -> bool:
        token = self._token
        found = token.kind == kind and (not text or token.text == text)
        self._pos += found
        return found

    def _expect(self, sign: str) -> None:
        token = self._next()
        if token.text != sign:
            raise _unread(token)


def _range(first: _Token, last: _Token) -> Node:
    ends = [_unescaped(token.text.strip('"')) for token in (first, last)]
    if last.kind != "string" or any(len(end) != 1 for end in ends):
        raise _unread(last)
    return Pattern("[" + "-".join(f"\\x{{{ord(end):x}}}" for end in ends) + "]")


def _unescaped(text: str) -> str:
    def char(match: "re.Match[str]") -> str:
        digits = match[1] or match[2]
        return chr(int(digits, 16)) if digits else _ESCAPES.get(match[3], match[3])

    return _ESCAPE.sub(char, text)


def _unread(token: _Token) -> InvalidRequest:
    shown = "the end" if token.kind in ("newline", "end") else json.dumps(token.text[:32])
    return InvalidRequest(f"line {token.line} of the grammar: {shown} can't be read here")


def settled(definitions: Mapping[str, Node], nothing: T, value: Callable[[str, Mapping[str, T]], T]) -> dict[str, T]:
    """The least values of all names, each of which follows from those that its definition uses."""
    users: dict[str, set[str]] = {name: set() for name in definitions}
    for name, node in definitions.items():
        for part in parts_of(node):
            if isinstance(part, Name):
                users[part.name].add(name)
    found = dict.fromkeys(definitions, nothing)
    waiting = dict.fromkeys(reversed(list(definitions)))
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        now = value(name, found)
        if now != found[name]:
            found[name] = now
            waiting.update(dict.fromkeys(users[name]))
    return found


def nullable(grammar: Grammar, empty: Callable[[Pattern], bool]) -> frozenset[str]:
    """Return the rules and terminals that match the empty text; ``empty`` decides it for a regex."""

    def is_nullable(name: str, found: Mapping[str, bool]) -> bool:
        return matches_nothing(grammar.definitions[name], lambda used: found[used], empty)

    found = settled(grammar.definitions, False, is_nullable)
    return frozenset(name for name, yes in found.items() if yes)


def matches_nothing(node: Node, nothing: Callable[[str], bool], empty: Callable[[Pattern], bool]) -> bool:
    """Return whether a node matches the empty text, given ``nothing`` for names and ``empty`` for regexes."""
    match node:
        case Literal(text):
            return not text
        case Pattern():
            return empty(node)
        case Name(name):
            return nothing(name)
        case Row(parts):
            return all(matches_nothing(part, nothing, empty) for part in parts)
        case OneOf(options):
            return any(matches_nothing(option, nothing, empty) for option in options)
        case Times(of, least):
            return least == 0 or matches_nothing(of, nothing, empty)
