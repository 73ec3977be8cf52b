"""Calls whose arguments have bare keys and a token for quotes, what Gemma 4 and FunctionGemma share::

call:get_weather{city:<|"|>Paris<|"|>,days:3,units:[<|"|>C<|"|>]}
"""

import json
import re
from dataclasses import dataclass

from server.formats.calls.json_text import SCALARS, escaped
from server.formats.parsing.reader import EndOfText, NotMarkup, Steps
from server.formats.parsing.turn import Turn

_SCALAR = re.compile(r"[^,\]}]*")
_KEY = re.compile(r"[^:,\]}]*")
_NAME = re.compile(r"[\w.:\-]*")
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class BraceCalls:
    """``close`` stands behind a call, ``quote`` around texts."""

    close: str
    quote: str

    def call(self, turn: Turn) -> Steps[None]:
        """Behind the opening: the name, the arguments, and what closes them. Raises `NotMarkup`."""
        name = yield from turn.match(_NAME)
        if not name or (yield from turn.peek()) != "{":
            raise NotMarkup
        turn.begin(name)
        yield from self._value(turn, 0)
        turn.mark()
        yield from turn.spaces()
        if not (yield from turn.take(self.close)):
            raise NotMarkup

    def _value(self, turn: Turn, depth: int) -> Steps[None]:
        """Write the value that comes next as JSON."""
        yield from turn.spaces()
        first = yield from turn.peek()
        if first and first in "{[" and depth < _MAX_DEPTH:
            yield from self._items(turn, turn.consume(1), depth + 1)
        elif (yield from turn.take(self.quote)):
            turn.arguments('"')
            yield from turn.until((self.quote,), lambda text: turn.arguments(escaped(text)))
            turn.arguments('"')
        else:
            text = (yield from turn.match(_SCALAR, limit=None)).strip()
            turn.arguments(text if SCALARS.fullmatch(text) else json.dumps(text, ensure_ascii=False))

    def _items(self, turn: Turn, opening: str, depth: int) -> Steps[None]:
        """Behind the opening of an object or a list, its end included."""
        closing, joint = ("}" if opening == "{" else "]"), opening
        while True:
            yield from turn.spaces()
            if (yield from turn.take(closing)):
                break
            turn.arguments(joint)
            joint = ", "
            if opening == "{":
                quoted = yield from turn.take(self.quote)
                key = (yield from turn.match(_KEY, limit=None)).strip()
                turn.arguments(json.dumps(key.removesuffix(self.quote) if quoted else key, ensure_ascii=False) + ": ")
                yield from turn.take(":")
            yield from self._value(turn, depth)
            yield from turn.spaces()
            if not (yield from turn.take(",")) and (yield from turn.peek()) != closing:
                if not turn.text:
                    raise EndOfText
                turn.content(turn.consume(1))
        turn.arguments(opening + closing if joint == opening else closing)
