"""Content with its own markup: with reasoning in any order (`Frame`), or after reasoning (`AnswerTags`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server.formats.calls.json_calls import JsonCalls
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser


@dataclass(frozen=True, slots=True)
class Frame:
    """``tags``: tags around reasoning. ``silent``: markup without meaning. ``calls``: openings and their parsers.
    ``sections``: silent markup before calls. Reasoning also ends with ``breaks``. Calls in reasoning only count if
    the text ends before the reasoning does.
    """

    tags: tuple[str, str]
    silent: tuple[str, ...]
    calls: Mapping[str, Callable[[StreamParser], Steps[None]]]
    breaks: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()

    def parse(self, turn: StreamParser) -> Steps[None]:
        """Parse an output."""
        opening, closing = self.tags
        calls = tuple(self.calls) if turn.how.callable else ()
        opened = (*self.sections, *calls) if turn.how.callable else ()
        marker = ""
        while True:
            if not marker:
                marker = yield from turn.content_until(opening, closing, *self.silent, *calls)
            if marker == opening:
                turn.reasoning_tag(opening)
                marker = yield from turn.read_reasoning((closing, *self.breaks), opened, self.parse)
                if marker == closing:
                    turn.reasoning_tag(closing)
                    marker = ""
                continue
            if marker in calls:
                yield from turn.attempt(marker, self.calls[marker](turn))
            marker = ""


@dataclass(frozen=True, slots=True)
class AnswerTags:
    """Drops the tags of an answer, and the white space inside of them, if it begins with the opening tag."""

    opening: str
    closing: str
    calls: JsonCalls

    def parse(self, turn: StreamParser) -> Steps[None]:
        """Parse an output."""
        turn.mark()
        yield from turn.spaces()
        framed = yield from turn.take(self.opening)
        if framed:
            turn.mark()
            yield from turn.spaces()
            turn.mark()
        turn.give_back()
        openings = self.calls.openings if turn.how.callable else ()
        markers = (*openings, self.closing) if framed else openings
        while markers:
            found = yield from turn.content_until(*markers)
            if found == self.closing:
                turn.drop_spaces()
                yield from turn.spaces()
            else:
                yield from turn.attempt(found, self.calls.calls(turn))
