"""Texts of a tool's arguments in the Lark grammar of a call."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LIMITED = "LIMITED"
"""The start of the names of terminals that must match some text, because a call could not be completed otherwise."""


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """A client's grammar that a whole text must match."""

    syntax: Literal["lark", "regex"]
    definition: str

    def in_json(self) -> str:
        """Return the Lark element for such a text inside a JSON string, without the quotes."""
        return self._element(escaped=True, end='"', never=['"'])

    def up_to(self, end: str, never: Sequence[str]) -> str:
        """Return the Lark element for such a text without escapes, before `end` ("": before a control token).

        ``never``: texts that it must not contain. If it includes `end`, the first occurrence of `end` ends the text.
        """
        return self._element(end=end, never=list(never))

    def _element(self, **where: object) -> str:
        return f"%text {json.dumps({'syntax': self.syntax, 'definition': self.definition, **where})}"
