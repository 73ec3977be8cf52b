"""Patterns that trigger a grammar: llama-server's, in RE2's syntax.

llama.cpp src/llama-grammar.cpp, llama_grammar_trigger_pattern::find. There they are std::regex, whose time has no
bound; RE2's is linear in the text, so that it has no look-around and no back references.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import re2

_MAX_SIZE = 1000  # instructions of all patterns together: 30 ms a token at worst, on a text of `LONGEST`
LONGEST = 16_384
"""Bytes of text that patterns are looked for in; of a longer one its end."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Looked for in a text's bytes."""

    regexes: tuple[Any, ...] = ()

    @classmethod
    def compiled(cls, patterns: Sequence[str]) -> "Patterns":
        """Raises ValueError for what is no pattern, or too large."""
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
            raise ValueError(f"the patterns are too large: {size} instructions of RE2's, where {_MAX_SIZE} may be")
        return cls(tuple(made))

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has the patterns' texts; so they come to a model's own process."""
        return Patterns.compiled, ([pattern.pattern.decode() for pattern in self.regexes],)

    def __bool__(self) -> bool:
        return bool(self.regexes)

    def begun(self, text: bytes) -> int:
        """Where what triggers begins: a match's first group that has caught anything, else the match. -1: nowhere."""
        for pattern in self.regexes:
            if (match := pattern.search(text)) is not None:
                caught = (
                    match.start(group)
                    for group in range(1, pattern.groups + 1)
                    if match.end(group) > match.start(group)
                )
                return int(next(caught, match.start()))
        return -1
