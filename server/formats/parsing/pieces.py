"""The parsers' output: parts of a message in order."""

from dataclasses import dataclass


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
