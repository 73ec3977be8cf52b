"""Parses reasoning at the start of the output::

    <think>
    The user asks …
    </think>

    The answer.

The generation prompt may have opened it already. Whitespace around it is dropped, as in llama.cpp's common/chat.cpp.
Formats with reasoning at any position parse it themselves (`frame`).
"""

from typing import Protocol

from server.formats.parsing.pieces import Piece
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import LaterReasoning, Parse, StreamParser

TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<ifm|think>", "</ifm|think>"),
    ("[unused16]", "[unused17]"),
)
_BUILT = {
    # Tags that a template composes or shares with others, by a text that only that template contains.
    ":opensource": TAGS[6],
    "<|channel|>analysis<|message|>": ("<|channel|>analysis<|message|>", "<|end|>"),
    "<|end_of_msg|>": ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    "<|tool_call:begin|>": ("<|think|>", "<|end|>"),
    "<|eom|>": (" to=self<|message|>", "<|eom|>"),
    "[BEGIN FINAL RESPONSE]": ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "</thinking>": ("<thinking>", "</thinking>"),
}


def reasoning_tags_of(source: str) -> tuple[str, str]:
    """Return the reasoning tags in the template's source, by default ``<think>``."""
    return _named(source) or TAGS[0]


def has_reasoning_tags(source: str) -> bool:
    """Return whether the template contains reasoning tags, which separate reasoning from the reply."""
    return _named(source) is not None


def open_reasoning(prompt: str, tags: tuple[str, str]) -> str | None:
    """Return the reasoning text at the end of `prompt`; None if it ends outside of reasoning."""
    opening, closing = tags
    _, opened, begun = prompt.rpartition(opening)
    return begun if opened and closing not in begun else None


def _named(source: str) -> tuple[str, str] | None:
    built = next((pair for sign, pair in _BUILT.items() if sign in source), None)
    return built or next((pair for pair in TAGS if pair[1] in source), None)


class OutputParser(Protocol):
    """Parses one choice's text."""

    def feed(self, text: str) -> list[Piece]:
        """Add a chunk and return the pieces that can't change any more."""

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return the buffered pieces at the end of the text. ``cut``: the model was stopped early."""


def reasoning_first(
    parse: Parse, tags: tuple[str, str], *, opened: bool, closed: bool, openings: tuple[str, ...], primer: str
) -> Parse:
    """Create a generator that parses reasoning at the start, and the rest with `parse`.

    ``opened``, ``closed``: whether the generation prompt ends inside of reasoning, or contains the closing tag.
    ``openings``: markup of calls: in reasoning that never ends they are calls. ``primer``: the end of the prompt, which
    `parse` must have read.
    """
    opening, closing = tags

    def both(turn: StreamParser) -> Steps[None]:
        tag, expects_more = opening, opened or closed
        if not opened:
            turn.mark()
            yield from turn.spaces()
            tag = (yield from turn.take(opening)) and turn.settle()
        if tag:
            if turn.how.separate_reasoning or not opened:  # text that is left as it came has no tag of the prompt's
                turn.reasoning_tag(tag)
            turn.reasoning_tag((yield from turn.read_reasoning((closing,), openings, parse)))
            turn.mark()
            yield from turn.spaces()
            space, expects_more = turn.settle(), True
            if turn.how.reasoning_in_content:
                turn.content(space)
        if expects_more and turn.how.separate_reasoning and not turn.how.reasoning_in_content:
            turn.later = LaterReasoning(tags, openings, parse)
        turn.text = primer + turn.settle() + turn.text
        yield from parse(turn)

    return both
