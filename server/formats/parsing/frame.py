"""Content with its own markup: with reasoning in any order (`frame`), or after reasoning (`answer_tags`)."""

from collections.abc import Mapping

from server.formats.calls.json_calls import JsonCalls
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import Parse, StreamParser


def frame(
    tags: tuple[str, str],
    silent: tuple[str, ...],
    calls: Mapping[str, Parse],
    *,
    breaks: tuple[str, ...] = (),
    sections: tuple[str, ...] = (),
) -> Parse:
    """Create a parser of reasoning between `tags`, content and `calls`, by their openings, in any order.

    ``silent``: markup without meaning. ``sections``: silent markup before calls. Reasoning also ends with ``breaks``.
    Calls in reasoning only count if the text ends before the reasoning does.
    """
    opening, closing = tags

    def parse(turn: StreamParser) -> Steps[None]:
        callable_ = tuple(calls) if turn.how.callable else ()
        opened = (*sections, *callable_) if turn.how.callable else ()
        marker = ""
        while True:
            if not marker:
                marker = yield from turn.content_until(opening, closing, *silent, *callable_)
            if marker == opening:
                turn.reasoning_tag(opening)
                marker = yield from turn.read_reasoning((closing, *breaks), opened, parse)
                if marker == closing:
                    turn.reasoning_tag(closing)
                    marker = ""
                continue
            if marker in callable_:
                yield from turn.attempt(marker, calls[marker](turn))
            marker = ""

    return parse


def answer_tags(opening: str, closing: str, calls: JsonCalls) -> Parse:
    """Create a parser that drops the tags of an answer, and the white space inside of them, if it begins with a tag."""

    def parse(turn: StreamParser) -> Steps[None]:
        turn.mark()
        yield from turn.spaces()
        framed = yield from turn.take(opening)
        if framed:
            turn.mark()
            yield from turn.spaces()
            turn.mark()
        turn.give_back()
        openings = calls.openings if turn.how.callable else ()
        markers = (*openings, closing) if framed else openings
        while markers:
            found = yield from turn.content_until(*markers)
            if found == closing:
                turn.drop_spaces()
                yield from turn.spaces()
            else:
                yield from turn.attempt(found, calls.calls(turn))

    return parse
