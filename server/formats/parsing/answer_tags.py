"""Answers that stand in tags of their own, behind the thoughts, and calls beside or in them."""

from dataclasses import dataclass

from server.formats.calls.json_calls import JsonCalls
from server.formats.parsing.reader import Steps
from server.formats.parsing.turn import Turn


@dataclass(frozen=True, slots=True)
class AnswerTags:
    """The tags, and white space at their insides, mean nothing where an answer begins with the opening one."""

    opening: str
    closing: str
    calls: JsonCalls

    def parse(self, turn: Turn) -> Steps[None]:
        """A format's generator."""
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
