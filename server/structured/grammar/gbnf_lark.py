"""Converts a GBNF syntax tree to an equivalent Lark grammar for llguidance.

llguidance's lexer takes the longest match: its own converter's ``[a-z]+ "a"`` never matches "xa". GBNF has no lexer,
so here every terminal is one character, and the Earley parser keeps all alternatives. The cost is a slower mask
(about 12 ms on average for 150,000 tokens in JSON-like grammars, similar to llama-server's), which only applies when
the model's first choice is rejected.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from server.errors import InvalidRequest
from server.structured.grammar.gbnf import MAX_CODE_POINT, Chars, Gbnf, Group, Repeat, RuleRef, Term, TokenRef
from server.structured.grammar.limits import MAX_RULE_CHAIN, Node, check_chain


def to_lark(grammar: Gbnf, token_id: Callable[[str], int | None], ends: AbstractSet[int]) -> str:
    """Lark text whose `start` is the grammar's `root`.

    `token_id` finds the token with exactly that text; `ends` are the end tokens, which ``!<...>`` never matches.
    Raises InvalidRequest for an unknown token and for rules that are nested too deeply.
    """
    return _Writer(grammar, token_id, ends).text()


class _Writer:
    def __init__(self, grammar: Gbnf, token_id: Callable[[str], int | None], ends: AbstractSet[int]) -> None:
        self._grammar = grammar
        self._token_id = token_id
        self._ends = ends
        self._names = {name: "start" if name == "root" else f"r{n}" for n, name in enumerate(grammar.rules)}
        self._rules: dict[str, str] = {}
        self._uses: dict[str, list[str]] = {}
        self._waiting: list[tuple[str, Group]] = []
        self._n_groups = 0
        self._rule = ""

    def text(self) -> str:
        self._waiting = [(self._names[name], group) for name, group in self._grammar.rules.items()]
        for rule, group in self._waiting:  # grows while it is read: see `_group`
            self._rule = rule
            self._uses[rule] = []
            self._rules[rule] = " | ".join(self._sequence(option) for option in group.options)
        nodes = {rule: Node(1, tuple(uses)) for rule, uses in self._uses.items()}
        check_chain(nodes, ["start"], MAX_RULE_CHAIN, "the grammar")
        return "".join(f"{rule}: {body}\n" for rule, body in self._rules.items())

    def _sequence(self, items: tuple[Term, ...]) -> str:
        return " ".join(map(self._item, items)) or '""'

    def _item(self, item: Term) -> str:
        match item:
            case Chars():
                return _char(item)
            case TokenRef():
                return self._token(item)
            case RuleRef():
                return self._use(self._names[item.name])
            case Group():
                return self._use(self._group(item))
            case Repeat():
                return self._repeat(item)

    def _repeat(self, item: Repeat) -> str:
        if item.high == 0:
            return '""'
        bounds = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((item.low, item.high))
        if bounds is None:
            bounds = f"{{{item.low},{'' if item.high is None else item.high}}}"
        return self._item(item.item) + bounds

    def _group(self, group: Group) -> str:
        """Write a group as its own rule, because Lark limits the depth of nested parentheses."""
        rule = f"g{self._n_groups}"
        self._n_groups += 1
        self._waiting.append((rule, group))
        return rule

    def _use(self, rule: str) -> str:
        self._uses[self._rule].append(rule)
        return rule

    def _token(self, ref: TokenRef) -> str:
        token = self._token_id(ref.what) if isinstance(ref.what, str) else ref.what
        if token is None:
            raise InvalidRequest(f"line {ref.line}: '{ref.what}' is not one token of this model's vocabulary")
        if ref.negated:
            return f"<[^{','.join(map(str, sorted({token, *self._ends})))}]>"
        return f"<[{token}]>"


def _char(chars: Chars) -> str:
    """A terminal of one character, as a Rust regex."""
    if not chars.ranges:
        return "/(?s:.)/"
    if chars.negated and _covers_all(chars.ranges):
        raise InvalidRequest("a negated character class that leaves no character")
    inside = "".join(
        f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in chars.ranges
    )
    return f"/[{'^' if chars.negated else ''}{inside}]/"


def _covers_all(ranges: tuple[tuple[int, int], ...]) -> bool:
    reached = -1
    for low, high in sorted(ranges):
        if low > reached + 1:
            return False
        reached = max(reached, high)
    return reached >= MAX_CODE_POINT
