"""Structures of outputs: content with its own markup, with reasoning in any order (`frame`) or after reasoning
(`answer_tags`), and calls that start a message (`call_first`).
"""

from collections.abc import Mapping

from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import Parse, StreamParser


def frame(
    tags: tuple[str, str],
    silent: tuple[str, ...],
    calls: Mapping[str, Parse],
    *,
    breaks: tuple[str, ...] = (),
    openings: tuple[str, ...],
) -> Parse:
    """Create a parser of reasoning between `tags`, content and `calls`, by their openings, in any order.

    ``silent``: markup without meaning. Reasoning also ends with ``breaks``. Calls in reasoning, which begin with one of
    ``openings``, only count if the text ends before the reasoning does.
    """
    opening, closing = tags

    def parse(turn: StreamParser) -> Steps[None]:
        callable_ = tuple(calls) if turn.how.callable else ()
        opened = openings if turn.how.callable else ()
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


def answer_tags(opening: str, closing: str, calls: Mapping[str, Parse]) -> Parse:
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
        openings = tuple(calls) if turn.how.callable else ()
        markers = (*openings, closing) if framed else openings
        while markers:
            found = yield from turn.content_until(*markers)
            if found == closing:
                turn.drop_spaces()
                yield from turn.spaces()
            else:
                yield from turn.attempt(found, calls[found](turn))

    return parse


def call_first(first: str, calls: Parse, rest: Parse) -> Parse:
    """Create a parser of `calls` that start a message with the character `first`; `rest` parses all that follows."""

    def parse(turn: StreamParser) -> Steps[None]:
        turn.mark()
        yield from turn.spaces()
        turn.give_back()
        if (yield from turn.peek()) == first:
            yield from turn.attempt("", calls(turn), doubtful=True)
        yield from rest(turn)

    return parse
