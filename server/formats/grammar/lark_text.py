"""Writes Lark text rule by rule. Control tokens are named by id."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from server.errors import InvalidRequest
from server.formats.tool_call_syntax import Markup, parts
from server.structured.grammar.schema.language import NOTHING
from server.structured.text_grammar import LIMITED, TextGrammar

ControlToken = Callable[[str], int | None]
"""Returns the id of the control token with that text, which a grammar must name by its id; None for plain text."""

MAX_UNORDERED = 64  # members in any order: one bit each
MAX_JOINED_CHARS = 200_000  # of keywords next to alternatives, because they are copied into each alternative
ANY_TEXT = "(?s:.*)"


class LarkText:
    """Collects rules and terminals without duplicates. ``tags`` are texts that may be control tokens."""

    def __init__(self, control: ControlToken | None = None, tags: Sequence[str] = ()) -> None:
        self._lines: dict[str, str] = {}
        self._loops: list[str] = []
        self._n_reserved = self._n_open = 0
        self._n_joined = 0
        self._unordered: dict[tuple[object, ...], str] = {}
        found = {tag: control(tag) for tag in tags} if control is not None else {}
        self._tags = {tag: token for tag, token in found.items() if token is not None}
        longest_first = sorted(self._tags, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if self._tags else None

    def rule(self, body: str) -> str:
        """Return the name of a rule with that body."""
        return self._lines.setdefault(body, f"r{len(self._lines)}")

    def terminal(self, body: str, name: str = "T") -> str:
        """Return the name of a terminal with that body. The number of the terminal follows ``name``."""
        return self._lines.setdefault(body, f"{name}{len(self._lines)}")

    def reserved(self) -> str:
        """Return the name of a rule that `define` defines later, so that it can be recursive."""
        self._n_reserved += 1
        return f"l{self._n_reserved}"

    @contextmanager
    def alternatives(self) -> Iterator[None]:
        """Within the block, a text with limits may be impossible, because there are other values."""
        self._n_open += 1
        try:
            yield
        finally:
            self._n_open -= 1

    def define(self, name: str, body: str) -> None:
        """Give a reserved name its body."""
        self._loops.append(f"{name}: {body}\n")

    def count_joined(self, n_chars: int) -> None:
        """Count characters of schemas that are repeated. Raises `InvalidRequest` if the grammar gets too many."""
        self._n_joined += n_chars
        if self._n_joined > MAX_JOINED_CHARS:
            raise InvalidRequest("tools: the parameters have too many alternatives", "tools")

    def in_any_order(self, members: Sequence[tuple[str, bool]], end: str, separator: str = "", other: str = "") -> str:
        """Return a rule for these rules at most once each, with the required ones, followed by `end`.

        ``other`` may occur any number of times. The rule's parameter has a bit for each member that has occurred
        (llguidance's parametric grammars). If there are more members than bits, they have a fixed order, without
        `other`.
        """
        if not 2 <= len(members) <= MAX_UNORDERED:
            return self._in_order(members, end, separator)
        written = (*members, end, separator, other)
        if written in self._unordered:
            return self._unordered[written]
        ordered = sorted(members, key=lambda member: not member[1])
        n_needed = sum(needed for _, needed in ordered)
        done = f" %if is_ones([0:{n_needed}])" if n_needed else ""
        first, later = self.reserved(), self.reserved()
        choices = [
            (f"{rule} {later}::set_bit({bit})", f" %if bit_clear({bit})") for bit, (rule, _) in enumerate(ordered)
        ]
        if other:
            choices.append((f"{other} {later}::_", ""))
        self.define(f"{first}::_", " | ".join([f"{end}{done}", *(body for body, _ in choices)]))
        following = (f"{separator} {body}{clear}" for body, clear in choices)
        self.define(f"{later}::_", " | ".join([f"{end}{done}", *following]))
        self._unordered[written] = f"{first}::0x0"
        return self._unordered[written]

    def _in_order(self, members: Sequence[tuple[str, bool]], end: str, separator: str) -> str:
        first, later = end, end
        # From the last to the first: what may follow at the start, and after a member.
        for rule, needed in reversed(members):
            first, later = (
                self.rule(f"{rule} {later}" + ("" if needed else f" | {first}")),
                self.rule(f"{separator} {rule} {later}" + ("" if needed else f" | {later}")),
            )
        return first

    def grammar_text_until(self, grammar: TextGrammar, end: str, *, never: Sequence[str] = ()) -> str:
        """Return a rule like `text_until` for a text of that grammar."""
        first, *rest = self._pieces(end)
        if not first.startswith('"'):  # a control token, which no text contains
            return f"{grammar.up_to('', never)} {self.literal(end)}"
        forbidden = (*never, *([] if rest else [end]))
        return f"{grammar.up_to(json.loads(first), forbidden)} {self.literal(end)}"

    def whole(self, start: str) -> str:
        """Return the grammar with that `start`."""
        lines = (f"{name}: {body}\n" for body, name in self._lines.items())
        return "".join([f"start: {start}\n", *lines, *self._loops])

    def literal(self, text: str) -> str:
        """Return the rule of exactly that text."""
        return " ".join(self._pieces(text)) or '""'

    def markup(self, markup: Markup, *, without: str = "") -> str:
        """Return the rule of markup, without the prefix `without`."""
        found = []
        for part in parts(markup):
            found.append(
                f"/{part.pattern}/" if isinstance(part, re.Pattern) else self.literal(part.removeprefix(without))
            )
            without = ""
        return " ".join(found)

    def text_until(self, end: str, *limits: str, never: Sequence[str] = (), empty: bool = True) -> str:
        """Return a rule for text that ends with the first ``end``, inclusive.

        ``limits``: regexes that the whole text matches. ``never``: what the text does not contain. ``empty``:
        whether the limits match the empty text.
        """
        body = " & ".join(f"/{limit}/" for limit in limits or (ANY_TEXT,))
        without = "".join(f" & ~/{ANY_TEXT}{escaped(text)}{ANY_TEXT}/" for text in never)
        is_limited = not self._n_open and (len(limits) > 1 or NOTHING in body)
        pieces, name = self._pieces(end), LIMITED if is_limited else "T"
        if len(pieces) == 1 and pieces[0].startswith('"'):
            # One terminal that contains the end only at its end, because llguidance's lexer takes the longest match.
            return self.terminal(f"(({body}) {pieces[0]}) & ~/{ANY_TEXT}{escaped(end)}(?s:.+)/{without}", name)
        lead = pieces.pop(0) if pieces[0].startswith('"') else ""
        is_optional = empty and not lead
        body = f"(({body}) {lead}) & ~/{ANY_TEXT}{escaped(end)}{ANY_TEXT}/{without} & /(?s:.+)/"
        text = self.terminal(body, "T" if is_optional else name)
        return f"{text}{'?' if is_optional else ''} {' '.join(pieces)}"

    def _pieces(self, text: str) -> list[str]:
        parts = self._split.split(text) if self._split is not None else [text]
        return [f"<[{self._tags[part]}]>" if part in self._tags else json.dumps(part) for part in parts if part]


def escaped(text: str) -> str:
    """Escape text for a regex between slashes."""
    return "".join(f"\\x{{{ord(char):x}}}" if not char.isalnum() or ord(char) > 127 else char for char in text)
