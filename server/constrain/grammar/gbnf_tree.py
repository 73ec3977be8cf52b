"""What a GBNF grammar is made of. A string literal is its characters, one after the other."""

from dataclasses import dataclass, field

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
