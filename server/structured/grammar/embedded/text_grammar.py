"""A client's grammar of a text (OpenAI's custom tools: Lark or a regex) as rules of a larger Lark grammar.

It may stand there in a JSON string (`in_json`), or as it is, up to an end (`ended`). Both have to do with llguidance's
lexer, which takes the longest match and never goes back:

- In JSON an escape is two characters. A terminal that could go on with one (a line, ``/.*/``) is past the backslash
  before it shows that the escape belongs to the next one (the new line behind it). So each rule is there in up to four
  versions: from where to where it goes, at a character's beginning or behind a backslash that the terminal before took.
- A text that could go on with its end would swallow it. So no terminal holds the end, and those that could go on like
  it are there twice where the text may stop: alone, and with the end behind them as one terminal. (Only a grammar that
  spells the end over several terminals, ``"<" "/" NAME ">"``, can still write it; a parser then reads up to there.)
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from server.errors import InvalidRequest
from server.structured.grammar.embedded import json_escapes as escapes
from server.structured.grammar.embedded import lark_tree as tree
from server.structured.grammar.embedded.json_escapes import Regex, between_slashes, without_anchors

if TYPE_CHECKING:  # it takes its time to import
    from llguidance import LLTokenizer

MAX_COPIES = 100
"""Of a part of a rule that is repeated a bounded number of times in JSON."""
MAX_TERMINAL_PARTS = 50_000
"""Of all terminals, where each is written out with those that it uses."""
MAX_ENDINGS_CHARS = 1024 * 1024
"""Of the ways to write a text with its end, one for each part that it may stop with."""
_ANY = "(?s:.*)"
_BOTH = (False, True)


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """A grammar that a whole text must match."""

    syntax: Literal["lark", "regex"]
    definition: str

    def checked(self) -> tree.Grammar:
        """The grammar read. Raises `InvalidRequest`."""
        if self.syntax == "lark":
            return tree.parsed(self.definition)
        if len(self.definition) > tree.MAX_CHARS:
            raise InvalidRequest(f"the regex has {len(self.definition)} characters, {tree.MAX_CHARS} are allowed")
        regex = without_anchors(self.definition)
        escapes.escaped_regex(regex)
        return tree.Grammar({"start": tree.Pattern(regex)})


@dataclass(frozen=True, slots=True)
class Embedded:
    """The rule that a text is, and the lines that define it."""

    start: str
    lines: str


def in_json(grammar: TextGrammar, tag: str) -> Embedded:
    """Write the text's rules inside a JSON string, without quotes.

    ``tag``: lower-case prefix that no other names have. Raises `InvalidRequest`, as does `ended`, for a grammar that
    can't be enforced.
    """
    return _bounded(lambda: _InJson(grammar.checked(), tag).embedded())


def ended(grammar: TextGrammar, tag: str, end: str, never: Sequence[str] = ()) -> Embedded:
    """Write the rules of the text followed by `end` ("" for none). ``never``: what the text must not contain, such as
    the end itself.
    """
    return _bounded(lambda: _Ended(grammar.checked(), tag, end, never).embedded())


def _bounded(make: Callable[[], Embedded]) -> Embedded:
    try:
        return make()
    except RecursionError:
        raise InvalidRequest("the grammar is nested too deeply") from None


class _Names:
    """Assigns names to rules. A rule has its name before it is complete, so that it may be recursive."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._names: dict[object, str] = {}
        self._lines: dict[str, str] = {}

    def rule(self, key: object, body: Callable[[], str]) -> str:
        return self._named(key, body, f"{self._tag}r")

    def terminal(self, body: str) -> str:
        return self.defined(body, lambda: body)

    def defined(self, key: object, body: Callable[[], str]) -> str:
        """`rule` for a terminal."""
        return self._named(key, body, f"{self._tag.upper()}T")

    def lines(self) -> str:
        return "".join(f"{name}: {body}\n" for name, body in self._lines.items())

    def _named(self, key: object, body: Callable[[], str], prefix: str) -> str:
        if key not in self._names:
            name = self._names[key] = f"{prefix}{len(self._names)}"
            self._lines[name] = ""
            self._lines[name] = body()
        return self._names[key]


class _Terminals:
    """Terminals as regexes of their JSON forms, those that they use written into them."""

    def __init__(self, definitions: Mapping[str, tree.Node]) -> None:
        self._definitions = definitions
        self._regexes: dict[tree.Node, Regex] = {}
        self._empty: dict[tree.Node, bool] = {}
        self._n_parts = 0

    def regex(self, node: tree.Node) -> Regex:
        if node not in self._regexes:
            self._regexes[node] = self._made(node, frozenset())
        return self._regexes[node]

    def may_be_empty(self, node: tree.Node) -> bool:
        if node not in self._empty:
            self._empty[node] = escapes.may_be_empty(self.regex(node))
        return self._empty[node]

    def _made(self, node: tree.Node, within: frozenset[str]) -> Regex:
        self._count(1)
        match node:
            case tree.Literal(text, folded):
                self._count(len(text))
                return escapes.escaped_text(text, folded=folded)
            case tree.Pattern(regex, flags):
                self._count(len(regex))
                return escapes.escaped_regex(regex, flags)
            case tree.Name(name):
                if name in within or not node.is_terminal:
                    raise InvalidRequest(f"a terminal of the grammar can't use {name[:64]!r}")
                return self._made(self._definitions[name], within | {name})
            case escapes.Row(parts):
                return escapes.Row(tuple(self._made(part, within) for part in parts))
            case escapes.OneOf(options):
                return escapes.OneOf(tuple(self._made(option, within) for option in options))
            case escapes.Times(of, least, most):
                return escapes.Times(self._made(of, within), least, most)

    def _count(self, number: int) -> None:
        self._n_parts += number
        if self._n_parts > MAX_TERMINAL_PARTS:
            raise InvalidRequest("the terminals of the grammar, with those that they use, are too large")


Way = tuple[bool, bool]
"""Whether a text starts, and whether it ends, after a backslash."""
_STAYS: frozenset[Way] = frozenset({(False, False), (True, True)})


class _InJson:
    def __init__(self, grammar: tree.Grammar, tag: str) -> None:
        self._definitions = tree.spaced(grammar).definitions
        self._names = _Names(tag)
        self._terminals = _Terminals(self._definitions)
        self._leaves: dict[tuple[tree.Node, Way], str] = {}
        self._leaf_ways: dict[tree.Node, frozenset[Way]] = {}
        self._node_ways: dict[int, frozenset[Way]] = {}  # by `id` of the nodes in the definitions
        self._ways: Mapping[str, frozenset[Way]] = {}
        self._ways = tree.settled(self._definitions, frozenset[Way](), self._ways_by)
        for definition in (node for name, node in self._definitions.items() if not tree.is_terminal(name)):
            for node in reversed(list(tree.parts_of(definition))):  # inner nodes first
                self._node_ways[id(node)] = self._ways_of(node)

    def embedded(self) -> Embedded:
        start = tree.Name("start")
        if (False, False) not in self._ways_of(start):
            raise InvalidRequest("the grammar matches no text")
        return Embedded(self._use(start, (False, False)), self._names.lines())

    def _ways_by(self, name: str, found: Mapping[str, frozenset[Way]]) -> frozenset[Way]:
        """Return the ways of a rule, as far as `found` determines them."""
        self._ways = found
        return frozenset() if tree.is_terminal(name) else self._ways_of(self._definitions[name])

    def _ways_of(self, node: tree.Node) -> frozenset[Way]:
        known = self._node_ways.get(id(node))
        if known is not None:
            return known
        match node:
            case tree.Name(name) if not node.is_terminal:
                return self._ways[name]
            case tree.Literal() | tree.Pattern() | tree.Name():
                if node not in self._leaf_ways:
                    self._leaf_ways[node] = self._ways_of_leaf(node)
                return self._leaf_ways[node]
            case escapes.Row(parts):
                ways = _STAYS
                for part in parts:
                    ways = _joined(ways, self._ways_of(part))
                return ways
            case escapes.OneOf(options):
                return frozenset[Way]().union(*map(self._ways_of, options))
            case escapes.Times(of, least, most):
                return _repeated(self._ways_of(of), least, most)

    def _ways_of_leaf(self, node: tree.Node) -> frozenset[Way]:
        found = set(_STAYS) if self._terminals.may_be_empty(node) else set()
        goes_on = escapes.behind_backslash(self._terminals.regex(node)) is not None
        return frozenset(found | {(begun, ends) for begun in _BOTH for ends in _BOTH if goes_on or not begun})

    def _use(self, node: tree.Node, way: Way) -> str:
        """The node where it goes that way, which it does."""
        match node:
            case tree.Name(name) if not node.is_terminal:
                return self._names.rule((name, way), lambda: self._use(self._definitions[name], way))
            case tree.Literal() | tree.Pattern() | tree.Name():
                if (node, way) not in self._leaves:
                    self._leaves[node, way] = self._leaf(node, way)
                return self._leaves[node, way]
            case escapes.Row(parts):
                return self._row(parts, way)
            case escapes.OneOf(options):
                return _one_of(self._use(option, way) for option in options if way in self._ways_of(option))
            case escapes.Times():
                return self._copies(node, way)

    def _leaf(self, node: tree.Node, way: Way) -> str:
        begun, ends = way
        regex = self._terminals.regex(node)
        rest = escapes.behind_backslash(regex) if begun else regex
        behind = r"\\" if ends else ""
        options = []
        if rest is not None:
            if escapes.n_parts(rest, MAX_TERMINAL_PARTS) >= MAX_TERMINAL_PARTS:
                raise InvalidRequest("a terminal of the grammar is too large")
            text = escapes.written(rest) + behind
            options.append(self._names.terminal(f"/{text}/") if text else '""')
        if begun and ends and self._terminals.may_be_empty(node):
            options.append('""')
        return _one_of(options)

    def _row(self, parts: tuple[tree.Node, ...], way: Way) -> str:
        """In halves, so that many parts do not nest as deeply, and equal halves are one rule."""
        if not parts:
            return '""'
        if len(parts) == 1:
            return self._use(parts[0], way)
        begun, ends = way
        middle = len(parts) // 2
        halves = [half[0] if len(half) == 1 else escapes.Row(half) for half in (parts[:middle], parts[middle:])]
        ways = [self._ways_of(half) for half in halves]
        options = []
        for between in _BOTH:
            if (begun, between) in ways[0] and (between, ends) in ways[1]:
                options.append(f"{self._part(halves[0], (begun, between))} {self._part(halves[1], (between, ends))}")
        return _one_of(options)

    def _part(self, node: tree.Node, way: Way) -> str:
        if isinstance(node, escapes.Row | escapes.OneOf | escapes.Times):
            return self._names.rule(("part", node, way), lambda: self._use(node, way))
        return self._use(node, way)

    def _copies(self, node: escapes.Times[tree.Node], way: Way) -> str:
        if node.least > MAX_COPIES or (node.most or 0) > MAX_COPIES:
            raise InvalidRequest(f"more than {MAX_COPIES} repetitions in a rule can't be enforced in a tool's input")
        if node.most is None and node.least == 0:
            return self._any_number(node, way)
        if node.most is None:
            return self._row((*[node.of] * node.least, escapes.Times(node.of, 0, None)), way)
        if node.least or node.most == 0:
            more = escapes.Times(node.of, 0, node.most - node.least)
            return self._row((*[node.of] * node.least, *([more] if more.most else [])), way)
        if node.most == 1:
            options = [self._use(node.of, way)] if way in self._ways_of(node.of) else []
            return _one_of([*options, *(['""'] if way in _STAYS else [])])
        half = (node.most + 1) // 2
        rest = escapes.Times(node.of, 0, node.most - half)
        counts = (escapes.Times(node.of, 0, half - 1), escapes.Row((*[node.of] * half, rest)))
        return _one_of(self._part(count, way) for count in counts if way in self._ways_of(count))

    def _any_number(self, node: escapes.Times[tree.Node], way: Way) -> str:
        def body() -> str:
            begun, ends = way
            options = ['""'] if way in _STAYS else []
            for between in _BOTH:
                if (begun, between) in self._ways_of(node) and (between, ends) in self._ways_of(node.of):
                    options.append(f"{self._any_number(node, (begun, between))} {self._use(node.of, (between, ends))}")
            return _one_of(options)

        return self._names.rule(("any number", node, way), body)


def _joined(first: Iterable[Way], second: Iterable[Way]) -> frozenset[Way]:
    then = list(second)
    return frozenset((begun, ends) for begun, middle in first for between, ends in then if middle == between)


def _repeated(ways: frozenset[Way], least: int, most: int | None) -> frozenset[Way]:
    found = _STAYS
    for _ in range(min(least, MAX_COPIES)):
        found = _joined(found, ways)
    for _ in range(len(_BOTH) ** 2 if most is None else min(most - least, MAX_COPIES)):
        found |= _joined(found, ways)
    return found


def _one_of(options: Iterable[str]) -> str:
    unique = list(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else f"({' | '.join(unique)})"


class _Ended:
    def __init__(self, grammar: tree.Grammar, tag: str, end: str, never: Sequence[str]) -> None:
        grammar = tree.spaced(grammar)
        self._definitions = grammar.definitions
        self._terminals = _Terminals(grammar.definitions)
        self._names = _Names(tag)
        self._end = end
        self._held: dict[escapes.EscapedChar, bool] = {}
        self._without = "".join(f" & ~/{_ANY}{_exactly(text)}{_ANY}/" for text in never)
        self._once = f" & ~/{_ANY}{_exactly(end)}(?s:.+)/" if end in never else ""
        self._n_chars = 0  # of endings
        self._empty = tree.nullable(grammar, self._terminals.may_be_empty)

    def embedded(self) -> Embedded:
        start = tree.Name("start")
        if not self._end:
            return Embedded(self._use(start), self._names.lines())
        options = [*self._ended(start), *([json.dumps(self._end)] if self._may_be_empty(start) else [])]
        return Embedded(self._names.rule("", lambda: " | ".join(options)), self._names.lines())

    def _use(self, node: tree.Node) -> str:
        match node:
            case tree.Name(name) if not node.is_terminal:
                return self._names.rule(name, lambda: self._use(self._definitions[name]))
            case tree.Literal() | tree.Pattern() | tree.Name():
                return self._leaf(node)
            case escapes.Row(parts):
                return " ".join(f"({self._use(part)})" for part in parts) or '""'
            case escapes.OneOf(options):
                return " | ".join(f"({self._use(option)})" for option in options)
            case escapes.Times(of):
                return f"({self._use(of)}){_times(node)}"

    def _leaf(self, node: tree.Node) -> str:
        return self._names.terminal(f"({self._terminal(node)}){self._without}")

    def _terminal(self, node: tree.Node) -> str:
        match node:
            case tree.Literal(text, folded):
                return json.dumps(text) + ("i" if folded else "")
            case tree.Pattern(regex, flags):
                return f"/{between_slashes(regex)}/{flags}" if regex else '""'
            case tree.Name(name):
                if not node.is_terminal:
                    raise InvalidRequest(f"a terminal of the grammar can't use the rule {name[:64]!r}")
                return self._names.defined(("terminal", name), lambda: f"({self._terminal(self._definitions[name])})")
            case escapes.Row(parts):
                return " ".join(f"({self._terminal(part)})" for part in parts) or '""'
            case escapes.OneOf(options):
                return " | ".join(f"({self._terminal(option)})" for option in options)
            case escapes.Times(of):
                return f"({self._terminal(of)}){_times(node)}"

    def _ended(self, node: tree.Node) -> Iterator[str]:
        """Return rules for the non-empty matches of a node, with its last terminal joined with the end."""
        match node:
            case tree.Name(name) if not node.is_terminal:
                yield self._names.rule((name,), lambda: " | ".join(self._ended(self._definitions[name])) or '""')
            case tree.Literal() | tree.Pattern() | tree.Name():
                end, leaf = json.dumps(self._end), self._leaf(node)
                if escapes.may_grow(self._terminals.regex(node), self._goes_on):
                    yield self._names.terminal(f"(({leaf}) {end}){self._once}")
                else:
                    yield f"{leaf} {end}"
            case escapes.Row(parts):
                for number in reversed(range(len(parts))):
                    before = " ".join(f"({self._use(part)})" for part in parts[:number])
                    for last in self._ended(parts[number]):
                        yield self._counted(f"{before} ({last})")
                    if not self._may_be_empty(parts[number]):
                        return
            case escapes.OneOf(options):
                for option in options:
                    yield from self._ended(option)
            case escapes.Times(of, least, most):
                fewer = escapes.Times(of, max(least - 1, 0), None if most is None else most - 1)
                before = f"({self._use(of)}){_times(fewer)} " if fewer.most != 0 else ""
                for last in self._ended(of) if most != 0 else ():
                    yield self._counted(f"{before}({last})")

    def _goes_on(self, chars: escapes.EscapedChar) -> bool:
        """Return whether a text may continue with one of them at the position where the end starts."""
        if chars not in self._held:
            self._held[chars] = _contains(chars, self._end[0])
        return self._held[chars]

    def _may_be_empty(self, node: tree.Node) -> bool:
        return tree.matches_nothing(node, self._empty.__contains__, self._terminals.may_be_empty)

    def _counted(self, ending: str) -> str:
        self._n_chars += len(ending)
        if self._n_chars > MAX_ENDINGS_CHARS:
            raise InvalidRequest("the grammar has too many ways to end")
        return ending


def _contains(chars: escapes.EscapedChar, char: str) -> bool:
    """Whether `char` is one of them."""
    if ord(char) in escapes.SPECIAL:
        return escapes.SHORT_FORMS.get(ord(char), "none") in chars.escapes
    if not chars.plain:
        return False
    from llguidance import LLMatcher

    tokenizer = _bytes()
    matcher = LLMatcher(tokenizer, f"start: /{chars.plain}/", log_level=0)
    tokens = tokenizer.tokenize_str(char)
    return matcher.try_consume_tokens(tokens) == len(tokens)


@cache
def _bytes() -> "LLTokenizer":
    """A vocabulary of bytes."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _exactly(text: str) -> str:
    return "".join(f"\\x{{{ord(char):x}}}" for char in text)


def _times(node: escapes.Times[tree.Node]) -> str:
    signs = {(0, 1): "?", (0, None): "*", (1, None): "+"}
    return signs.get((node.least, node.most)) or f"{{{node.least},{'' if node.most is None else node.most}}}"
