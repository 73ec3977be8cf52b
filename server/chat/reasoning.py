"""The model's thoughts::

    <think>
    The user asks …
    </think>

    The answer.

They stand at the start of the output; the generation prompt may have opened them already. White space around them is
dropped (llama.cpp common/chat.cpp does the same).
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from server.chat.pieces import Content, Piece, Reasoning, held_back

TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
)


def thinking_tags(source: str) -> tuple[str, str]:
    """The tags that the template speaks of; ``<think>`` when it names none."""
    return next((pair for pair in TAGS if pair[1] in source), TAGS[0])


class Inner(Protocol):
    """What reads the text behind the thoughts."""

    def feed(self, text: str) -> list[Piece]: ...
    def finish(self) -> list[Piece]: ...


class _State(Enum):
    START = 0
    THINKING = 1
    AFTER = 2
    CONTENT = 3


@dataclass(slots=True)
class ReasoningParser:
    """``keep_in_content``: the thoughts, tags and all, are content too (reasoning_format deepseek-legacy)."""

    inner: Inner
    tags: tuple[str, str]
    generation_prompt: str
    keep_in_content: bool = False
    _state: _State = _State.START
    _held: str = ""
    _said: bool = False
    _queue: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin inside when the prompt has opened the thoughts."""
        opened = self.generation_prompt.rfind(self.tags[0])
        if opened >= 0 and self.tags[1] not in self.generation_prompt[opened:]:
            self._state = _State.THINKING
            if self.keep_in_content:
                self._queue.append(Content(self.tags[0]))

    def feed(self, text: str) -> list[Piece]:
        """What is certain now."""
        pieces, self._queue = self._queue, []
        if self._state is _State.CONTENT:
            return pieces + self.inner.feed(text)
        self._held += text
        if self._state is _State.START:
            pieces += self._start()
        if self._state is _State.THINKING:
            pieces += self._think()
        if self._state is _State.AFTER:
            pieces += self._after()
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back: an unfinished tag is text."""
        pieces, self._queue = self._queue, []
        held, self._held = self._held, ""
        if self._state is _State.THINKING:
            thought = held.rstrip() if self._said else held.strip()
            return pieces + self._reasoning(thought) + (self._raw(held) if self.keep_in_content else [])
        if self._state is _State.START:
            pieces += self.inner.feed(held)
        elif self._state is _State.AFTER and self.keep_in_content:
            pieces += self._raw(held)
        return pieces + self.inner.finish()

    def _start(self) -> list[Piece]:
        opening = self.tags[0]
        text = self._held.lstrip()
        if text.startswith(opening):
            raw = self._held[: len(self._held) - len(text) + len(opening)]
            self._held = text[len(opening) :]
            self._state = _State.THINKING
            return self._raw(raw)
        if not opening.startswith(text):
            held, self._held = self._held, ""
            self._state = _State.CONTENT
            return self.inner.feed(held)
        return []

    def _think(self) -> list[Piece]:
        closing = self.tags[1]
        at = self._held.find(closing)
        if at >= 0:
            thought, raw = self._held[:at], self._held[: at + len(closing)]
            self._held = self._held[at + len(closing) :]
            self._state = _State.AFTER
            return self._reasoning(thought.rstrip() if self._said else thought.strip()) + self._raw(raw)
        certain = self._held[: len(self._held) - held_back(self._held, closing)]
        thought = certain.rstrip()
        if not self._said:
            thought = thought.lstrip()
        if not thought:
            return []
        raw, self._held = self._held[: len(certain.rstrip())], self._held[len(certain.rstrip()) :]
        return self._reasoning(thought) + self._raw(raw)

    def _after(self) -> list[Piece]:
        text = self._held.lstrip()
        if not text:
            return []
        pieces = self._raw(self._held[: len(self._held) - len(text)])
        self._held = ""
        self._state = _State.CONTENT
        return pieces + self.inner.feed(text)

    def _reasoning(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._said = True
        return [Reasoning(text)]

    def _raw(self, text: str) -> list[Piece]:
        return [Content(text)] if text and self.keep_in_content else []
