"""The formats of tool calls and reasoning.

A format is data (`tool_format`). The syntax of its calls (`tool_call_syntax`) determines their parser, which reads
text in chunks (`parsing`, `calls`), their grammars (`grammar`) and examples (`written`). `parameter_schema` answers
what parsers and grammars need from a function's schema. `recognition` detects a template's format and creates its
`chat_format`.

The first format that matches a template is used. So a format whose markup is a part of another one's follows it in its
file, or is in a later file: `HERMES` is the last of those with <tool_call>.
"""

from server.formats.families import json_objects, messages, named_json, nested, parameters, python
from server.formats.tool_format import ToolFormat

GENERIC = json_objects.GENERIC
FORMATS = tuple(
    value
    for family in (messages, nested, parameters, named_json, python, json_objects)
    for value in vars(family).values()
    if isinstance(value, ToolFormat)
)
BY_NAME = {tool_format.name: tool_format for tool_format in FORMATS}


def recognised(source: str, name: str = "auto") -> ToolFormat:
    """Return the format of that name; for auto the first one that matches the template's source, or `GENERIC`."""
    return BY_NAME.get(name) or next((tool_format for tool_format in FORMATS if tool_format.matches(source)), GENERIC)
