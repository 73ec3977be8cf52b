"""What parsers give: pieces of a message, in order."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thoughts."""

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


Piece = Content | Reasoning | ToolCallBegin | ToolCallArguments


def held_back(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with, less than the whole tag."""
    for n in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-n:]):
            return n
    return 0
