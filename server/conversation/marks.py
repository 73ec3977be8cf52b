"""Media in a text that is rendered: each is a word there that nobody else can have written, until the text is cut.

So a user who writes the marker of a model has written text, and a template may do with a medium whatever it does with a
message's text.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from server.conversation.form import Media


@dataclass(frozen=True, slots=True)
class Marks:
    """Of one rendering. ``shown``: whether the model can be shown a medium."""

    shown: Callable[[Media], bool]
    _media: list[Media] = field(default_factory=list)
    _secret: str = field(default_factory=lambda: secrets.token_hex(12))

    def mark(self, medium: Media) -> str | None:
        """What stands for it; None for one that the model can't be shown."""
        if not self.shown(medium):
            return None
        self._media.append(medium)
        return f"__media_{self._secret}_{len(self._media) - 1}__"

    def cut(self, text: str) -> tuple[str | Media, ...]:
        """Texts and media in turn, without texts that are empty; nothing but the text where no medium is in it."""
        if not self._media:
            return (text,)
        pieces = re.split(rf"__media_{self._secret}_(\d+)__", text)
        parts = [self._media[int(piece)] if at % 2 else piece for at, piece in enumerate(pieces)]
        return tuple(part for part in parts if part != "")

    def replaced(self, text: str, marker: str) -> str:
        """`text` with `marker` for each medium, as it may be shown."""
        return as_text(self.cut(text), marker) if self._media else text


def as_text(parts: Sequence[str | Media], marker: str) -> str:
    """With `marker` for each medium."""
    return "".join(part if isinstance(part, str) else marker for part in parts)
