"""The parsers' output: parts of a message in order."""

from dataclasses import dataclass, replace


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
    runs: list[list[Piece]] = []
    for piece in pieces:
        if runs and type(runs[-1][0]) is type(piece) and not isinstance(piece, ToolCallBegin):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return [_one(run) for run in runs]


def _one(run: list[Piece]) -> Piece:
    first = run[0]
    if len(run) == 1 or isinstance(first, ToolCallBegin):
        return first
    return replace(first, text="".join(piece.text for piece in run if not isinstance(piece, ToolCallBegin)))
