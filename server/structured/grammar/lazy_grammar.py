"""A grammar that applies from a trigger to the end: llama-server's lazy grammars.

The grammar includes the trigger (llama.cpp src/llama-grammar.cpp, llama_grammar_accept_impl). Unlike llama.cpp,
tokens that the grammar rejects after a trigger are not sampled, instead of failing the request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import re2

from server.structured.grammar.matcher import MatcherConstraint

MAX_CHECKED = 4096  # tokens of a mask where a pattern decides, which takes microseconds for each
_MAX_SIZE = 1000  # instructions of all patterns together: 30 ms a token at worst, on a text of `LONGEST`
LONGEST = 16_384
"""Bytes of text that patterns are looked for in; of a longer one its end."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns that trigger, looked for in a text's bytes (llama_grammar_trigger_pattern::find).

    There they are std::regex, whose time has no bound; RE2's is linear in the text, so that it has no look-around and
    no back references.
    """

    regexes: tuple[Any, ...] = ()

    @classmethod
    def compiled(cls, patterns: Sequence[str]) -> "Patterns":
        """Compile the patterns. Raises ValueError for an invalid or too large pattern."""
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1  # bytes, as there: text may end inside of a character
        options.log_errors = False
        made, size = [], 0
        for pattern in patterns:
            try:
                made.append(re2.compile(pattern.encode(), options))
            except re2.error as error:
                (reason,) = error.args
                said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
                raise ValueError(f"pattern {pattern!r}: {said} (the syntax is RE2's)") from None
            size += made[-1].programsize
        if size > _MAX_SIZE:
            raise ValueError(f"the patterns are too large: {size} RE2 instructions, at most {_MAX_SIZE} are allowed")
        return cls(tuple(made))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the patterns' texts, to send them to a model's worker process."""
        return Patterns.compiled, ([pattern.pattern.decode() for pattern in self.regexes],)

    def __bool__(self) -> bool:
        return bool(self.regexes)

    def begun(self, text: bytes) -> int:
        """Return where the grammar starts: a match's first non-empty group, else the match. -1: no match."""
        for pattern in self.regexes:
            if (match := pattern.search(text)) is not None:
                caught = (
                    match.start(group)
                    for group in range(1, pattern.groups + 1)
                    if match.end(group) > match.start(group)
                )
                return int(next(caught, match.start()))
        return -1


@dataclass(frozen=True, slots=True)
class LazyGrammar:
    """A grammar and what it starts with: texts at any position, tokens, and patterns."""

    constraint: MatcherConstraint
    texts: tuple[bytes, ...]
    tokens: frozenset[int]
    patterns: Patterns = field(default_factory=Patterns)

    def begun(self, text: bytes) -> bytes | None:
        """Return `text` from the first trigger on; None before a trigger."""
        found = [at for at in (*(text.find(trigger) for trigger in self.texts), self.patterns.begun(text)) if at >= 0]
        return text[min(found) :] if found else None

    @property
    def n_seen(self) -> int:
        """Return how many bytes before a token may belong to a pattern."""
        return LONGEST if self.patterns else 0

    def end_of_pattern(self, tail: bytes, piece: bytes) -> int | None:
        """Return the byte of `piece` that a pattern ends with after `tail`; None for none."""
        ends = range(1, len(piece) + 1) if self.patterns else ()
        return next((piece[end - 1] for end in ends if self.patterns.begun(tail + piece[:end]) >= 0), None)
