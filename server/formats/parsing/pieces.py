"""The parsers' output: parts of a message in order."""

from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call of the function `name` begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More JSON text of the arguments of call `index`."""

    index: int
    text: str


Piece = ContentText | Reasoning | ToolCallBegin | ToolCallArguments


def joined(pieces: list[Piece]) -> list[Piece]:
    """Join adjacent pieces of the same type."""
    if len(pieces) < 2:
        return pieces
    found: list[Piece] = []
    for kind, run in groupby(pieces, type):
        same = list(run)
        if kind is ToolCallBegin or len(same) == 1:
            found += same
        else:
            text = "".join([piece.text for piece in same])  # type: ignore[union-attr]
            found.append(replace(same[0], text=text))  # type: ignore[arg-type]
    return found
