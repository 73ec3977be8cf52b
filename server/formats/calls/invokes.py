"""Calls as ``invoke`` elements with ``parameter`` elements, what MiniMax M2, DeepSeek 3.2 and Muse share::

<invoke name="get_weather">
<parameter name="city">Paris</parameter>
<parameter name="days">3</parameter>
</invoke>
"""

import re
from dataclasses import dataclass

from server.formats.calls.typed import Argument, typed_call
from server.formats.parameter_schema import NOT_STRING, STRING
from server.formats.parsing.reader import Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere

_IS_STRING = re.compile(r'\s*string="(true|false)"')


@dataclass(frozen=True, slots=True)
class Invokes:
    """``blocks``: tags around all calls. ``prefix``: before each element's name. If parameters have an attribute
    ``string``, it determines whether the value is a string.
    """

    blocks: tuple[str, ...]
    prefix: str = ""

    @property
    def openings(self) -> tuple[str, ...]:
        """The tags of the blocks."""
        return tuple(f"<{self.prefix}{name}>" for name in self.blocks)

    def parse(self, turn: StreamParser) -> Steps[None]:
        """A format's generator."""
        return anywhere(self.calls, *self.openings)(turn)

    def calls(self, turn: StreamParser) -> Steps[None]:
        """Parse the calls after a block's opening tag. Raises `NotMarkup`."""
        invoke = f'<{self.prefix}invoke name="'
        closings = tuple(f"</{self.prefix}{name}>" for name in self.blocks)
        yield from turn.spaces()
        yield from turn.expect(invoke)
        while True:
            turn.certain()
            name, _ = yield from turn.word('">')
            yield from typed_call(turn, name, lambda: self.argument(turn))
            turn.end_call()
            yield from turn.spaces()
            if (yield from turn.expect(invoke, *closings)) in closings:
                return

    def argument(self, turn: StreamParser) -> Steps[Argument | None]:
        """Parse the next parameter; None after the last one. Raises `NotMarkup`."""
        parameter, closing = f'<{self.prefix}parameter name="', f"</{self.prefix}invoke>"
        yield from turn.spaces()
        if (yield from turn.expect(parameter, closing)) == closing:
            return None
        key, _ = yield from turn.word('"')
        attributes, _ = yield from turn.word(">")
        said = _IS_STRING.match(attributes)
        types = None if said is None else STRING if said[1] == "true" else NOT_STRING
        return Argument(key, (f"</{self.prefix}parameter>",), types)
