"""Formats with keys and values in tags, which differ in their tags."""

import re

from server.formats.calls.json_calls import JsonCalls, json_or
from server.formats.calls.parameters import ParameterCalls, parameter_calls
from server.formats.parsing.stream_parser import anywhere
from server.formats.tool_call_syntax import Parameters, ToolCallSyntax, json_calls
from server.formats.tool_format import ToolFormat

_TAGS = ("tool_call", "/tool_call", "arg_key", "/arg_key", "arg_value", "/arg_value")
_SECTION = ("tool_calls", "/tool_calls")


def _tags(*names: str, prefix: str = "", suffix: str = "") -> tuple[str, ...]:
    return tuple(f"<{'/' if name[0] == '/' else ''}{prefix}{name.removeprefix('/')}{suffix}>" for name in names)


def _calls(prefix: str = "", suffix: str = "", *, sections: bool = False) -> ParameterCalls:
    """Return the parser of calls with `prefix` and `suffix` in every tag. ``sections``: tags around all calls."""
    _, _, _, key_end, value, _ = _tags(*_TAGS, prefix=prefix, suffix=suffix)
    before_type, after_type, separator = _tags("arg_type", "/arg_type", "tool_sep", prefix=prefix, suffix=suffix)
    return parameter_calls(
        _syntax(prefix, suffix),
        name_end=(separator, ">"),
        key_end=(key_end, value),
        silent=_tags(*_SECTION, prefix=prefix, suffix=suffix) if sections else (),
        type_in=re.compile(rf"\s*{re.escape(before_type)}\s*(\w+)\s*{re.escape(after_type)}"),
        bare_name=True,
    )


def _syntax(prefix: str = "", suffix: str = "", *, section: bool = False, line: str = "\n") -> ToolCallSyntax:
    """Return the syntax for grammars. ``section``: there are tags around all calls, and one after each name. ``line``
    ends each line.
    """
    opening, end, key, key_end, value, value_end = _tags(*_TAGS, prefix=prefix, suffix=suffix)
    before, after, separator = _tags(*_SECTION, "tool_sep", prefix=prefix, suffix=suffix)
    return ToolCallSyntax(
        opening,
        (f"{separator}{line}" if section else line,),
        open=f"{before}\n" if section else "",
        close=f"\n{after}" if section else "",
        joint="\n",
        arguments=Parameters(key, f"{key_end}{line}{value}", value_end, line, end),
        trigger=before if section else opening,
        rest_of_list=section,
    )


GLM = ToolFormat(
    name="glm",
    parse=_calls().parse,
    recognised_by=(("<arg_key>", "<arg_value>"),),
    tags=_tags(*_TAGS),
    forced=_syntax(),
    variants=(("<tool_call>{function-name}<arg_key>", _syntax(line="")),),
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

_OPENSOURCE = ":opensource"
HUNYUAN = ToolFormat(
    name="hunyuan",
    parse=_calls(suffix=_OPENSOURCE, sections=True).parse,
    recognised_by=((_OPENSOURCE, "<arg_key"),),
    tags=_tags(*_SECTION, *_TAGS, "tool_sep", suffix=_OPENSOURCE),
    forced=_syntax(suffix=_OPENSOURCE, section=True),
)
"""Hunyuan 3: a suffix in every tag and a section around all calls::

<tool_calls:opensource>
<tool_call:opensource>get_weather<tool_sep:opensource>
<arg_key:opensource>city</arg_key:opensource>
<arg_value:opensource>Paris</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
"""

_IFM = "ifm|"
K2_HORIZON = ToolFormat(
    name="k2-horizon",
    parse=_calls(_IFM, sections=True).parse,
    recognised_by=(("<ifm|tool_call>",),),
    tags=_tags(*_SECTION, *_TAGS, "arg_type", "/arg_type", prefix=_IFM),
    forced=_syntax(_IFM),
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

_LONGCAT = "longcat_"
_OPEN, _CLOSE, *_ARGUMENT = _tags(*_TAGS, prefix=_LONGCAT)
LONGCAT = ToolFormat(
    name="longcat",
    parse=anywhere(json_or(JsonCalls((_OPEN,), _CLOSE), _calls(_LONGCAT).calls), _OPEN),
    recognised_by=((_OPEN,),),
    tags=(_OPEN, _CLOSE, *_ARGUMENT),
    forced=json_calls(f"{_OPEN}\n", f"\n{_CLOSE}", joint="\n"),
    variants=(("<longcat_arg_key>", _syntax(_LONGCAT)),),
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
