"""Detects the tags around reasoning in a template, and reasoning that the prompt has opened."""

from typing import Protocol

from server.formats.parsing.pieces import Piece

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
    # Tags that a template composes or shares with other formats, by a text that only that template contains.
    ":opensource": TAGS[6],
    "<|channel|>analysis<|message|>": ("<|channel|>analysis<|message|>", "<|end|>"),
    "<|end_of_msg|>": ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    "<|tool_call:begin|>": ("<|think|>", "<|end|>"),
    "<|eom|>": (" to=self<|message|>", "<|eom|>"),
    "[BEGIN FINAL RESPONSE]": ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "</thinking>": ("<thinking>", "</thinking>"),
}


class OutputParser(Protocol):
    """Parses one choice's text."""

    def feed(self, text: str) -> list[Piece]:
        """Add a chunk and return the pieces that are final."""

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """Return the buffered pieces at the end of the text. ``cut``: the model was stopped early."""


def reasoning_tags_in(source: str) -> tuple[str, str] | None:
    """Return the tags in the template's source that separate reasoning from the reply; None for none."""
    built = next((pair for sign, pair in _BUILT.items() if sign in source), None)
    return built or next((pair for pair in TAGS if pair[1] in source), None)


def open_reasoning(prompt: str, tags: tuple[str, str]) -> str | None:
    """Return the reasoning text at the end of `prompt`; None if it ends outside of reasoning."""
    opening, closing = tags
    _, opened, begun = prompt.rpartition(opening)
    return begun if opened and closing not in begun else None
