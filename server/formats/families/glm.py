"""Formats with keys and values in tags, which differ in their tags."""

from dataclasses import dataclass

from server.formats.calls.json_calls import JsonCalls, json_arguments, json_or
from server.formats.calls.parameters import Argument, typed_call
from server.formats.parameter_schema import NOT_STRING, STRING
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import StreamParser, anywhere
from server.formats.tool_call_syntax import TOOL_NAME, Parameters, ToolCallSyntax, json_calls
from server.formats.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class GlmCalls:
    """``prefix`` and ``suffix``: in every tag (see `HUNYUAN`, `LONGCAT`). ``sections``: whether there may be
    meaningless tags around all calls.
    """

    suffix: str = ""
    prefix: str = ""
    sections: bool = False

    def tag(self, name: str) -> str:
        """Return a tag with its prefix and suffix."""
        return f"<{'/' if name[0] == '/' else ''}{self.prefix}{name.removeprefix('/')}{self.suffix}>"

    def form(self, *, section: bool, line: str = "\n") -> ToolCallSyntax:
        """Return the syntax for grammars. ``section``: there are tags around all calls, and one after each name.
        ``line`` ends each line.
        """
        tag = self.tag
        return ToolCallSyntax(
            tag("tool_call"),
            (f"{tag('tool_sep')}{line}" if section else line,),
            open=f"{tag('tool_calls')}\n" if section else "",
            close=f"\n{tag('/tool_calls')}" if section else "",
            joint="\n",
            arguments=Parameters(
                tag("arg_key"), f"{tag('/arg_key')}{line}{tag('arg_value')}", tag("/arg_value"), line, tag("/tool_call")
            ),
            trigger=tag("tool_calls" if section else "tool_call"),
            rest_of_list=section,
        )

    def parse(self, turn: StreamParser) -> Steps[None]:
        """Parse calls at any position; the tags around all of them are dropped."""
        around = (self.tag("tool_calls"), self.tag("/tool_calls")) if self.sections else ()
        return anywhere(self.call, self.tag("tool_call"), silent=around)(turn)

    def call(self, turn: StreamParser) -> Steps[None]:
        """Parse a call after the opening. Raises `NotMarkup`."""
        yield from turn.spaces()
        name = yield from turn.match(TOOL_NAME)
        yield from turn.spaces()
        yield from turn.take(self.tag("tool_sep"), ">")
        yield from turn.spaces()
        if (yield from turn.peek()) == "{":
            yield from json_arguments(turn, name)
            yield from turn.spaces()
            if (yield from turn.take(self.tag("/tool_call"))):
                turn.mark()
            return
        first = yield from turn.expect(self.tag("arg_key"), self.tag("/tool_call"))
        if not name:
            raise NotMarkup
        turn.back(first)
        yield from typed_call(turn, name, lambda: self._argument(turn))

    def _argument(self, turn: StreamParser) -> Steps[Argument | None]:
        yield from turn.spaces()
        if (yield from turn.expect(self.tag("arg_key"), self.tag("/tool_call"))) == self.tag("/tool_call"):
            return None
        key, _ = yield from turn.word(self.tag("/arg_key"))
        yield from turn.spaces()
        types = None
        if (yield from turn.expect(self.tag("arg_value"), self.tag("arg_type"))) == self.tag("arg_type"):
            given, _ = yield from turn.word(self.tag("/arg_type"))
            types = STRING if given.strip() in ("string", "str") else NOT_STRING
            yield from turn.spaces()
            yield from turn.expect(self.tag("arg_value"))
        return Argument(key.strip(), (self.tag("/arg_value"),), types)


GLM = ToolFormat(
    name="glm",
    parse=GlmCalls().parse,
    recognised_by=(("<arg_key>", "<arg_value>"),),
    tags=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    forced=GlmCalls().form(section=False),
    variants=(("<tool_call>{function-name}<arg_key>", GlmCalls().form(section=False, line="")),),
)
"""GLM 4.5 to 4.7, Ling 3, Spark, Laguna: keys and values in tags, with new lines between them or without::

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    <arg_key>days</arg_key>
    <arg_value>3</arg_value>
    </tool_call>

Strings have no quotes, everything else is JSON: only the schema distinguishes "3" from 3. GLM 5.3 Flash sometimes
writes all of them as one JSON object after the name (``get_weather>{"city": "Paris"}``).
"""

_ARGUMENT = ("arg_key", "/arg_key", "arg_value", "/arg_value")
_HUNYUAN = GlmCalls(":opensource", sections=True)
HUNYUAN = ToolFormat(
    name="hunyuan",
    parse=_HUNYUAN.parse,
    recognised_by=((":opensource", "<arg_key"),),
    tags=tuple(map(_HUNYUAN.tag, ("tool_calls", "/tool_calls", "tool_call", "/tool_call", "tool_sep", *_ARGUMENT))),
    forced=_HUNYUAN.form(section=True),
)
"""Hunyuan 3: a suffix in every tag and a section around all calls::

<tool_calls:opensource>
<tool_call:opensource>get_weather<tool_sep:opensource>
<arg_key:opensource>city</arg_key:opensource>
<arg_value:opensource>Paris</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
"""

_K2 = GlmCalls(prefix="ifm|", sections=True)
K2_HORIZON = ToolFormat(
    name="k2-horizon",
    parse=_K2.parse,
    recognised_by=(("<ifm|tool_call>",),),
    tags=tuple(
        map(
            _K2.tag,
            ("tool_calls", "/tool_calls", "tool_call", "/tool_call", "arg_type", "/arg_type", *_ARGUMENT),
        )
    ),
    forced=_K2.form(section=False),
)
"""K2 Horizon: a prefix in every tag, sometimes with the values' types, in a section::

<ifm|tool_calls>
<ifm|tool_call>get_weather
<ifm|arg_key>city</ifm|arg_key>
<ifm|arg_type>string</ifm|arg_type>
<ifm|arg_value>Paris</ifm|arg_value>
</ifm|tool_call>
</ifm|tool_calls>
"""

_LONGCAT, _LONGCAT_END = "<longcat_tool_call>", "</longcat_tool_call>"
_LONGCAT_KEYS = GlmCalls(prefix="longcat_")
LONGCAT = ToolFormat(
    name="longcat",
    parse=anywhere(json_or(JsonCalls((_LONGCAT,), _LONGCAT_END), _LONGCAT_KEYS.call), _LONGCAT),
    recognised_by=((_LONGCAT,),),
    tags=(_LONGCAT, _LONGCAT_END, *map(_LONGCAT_KEYS.tag, _ARGUMENT)),
    forced=json_calls(f"{_LONGCAT}\n", f"\n{_LONGCAT_END}", joint="\n"),
    variants=(("<longcat_arg_key>", _LONGCAT_KEYS.form(section=False)),),
)
"""LongCat Flash: JSON in its own tags, or, in newer models, GLM's keys and values with a prefix::

<longcat_tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</longcat_tool_call>

<longcat_tool_call>get_weather
<longcat_arg_key>city</longcat_arg_key>
<longcat_arg_value>Paris</longcat_arg_value>
</longcat_tool_call>
"""
