"""Generates docs/tool-formats.md from the parsed sample outputs. Run as a module to update the page."""

import ast
import importlib
import inspect
import json
import pkgutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from server import formats
from server.dialects.tool_types import ANTHROPIC, RESPONSES, SERVERS, TOOLSETS, ToolType
from server.formats import families
from server.formats.tool_call_syntax import Arguments, Braces, Elements, JsonArguments
from server.formats.tool_format import ToolFormat
from tests.unit.formats.parsing import ParsedMessage, every_character, make_parser, parse_text
from tests.unit.formats.recorded import PARAMETERS, RECORDED, Recorded, tool

PAGE = Path(__file__).parents[3] / "docs" / "tool-formats.md"
_HEAD = """# Formats of tool calls and reasoning

`python -m tests.unit.formats.format_table` generates this page from the outputs below and the parsers in
`server/formats/families/`. A test fails when the page is stale.

The server recognises a model's format at load: it renders a call with the chat template, and the format whose parser
reads the call is used. If the template renders no calls, or no parser reads them (the log says so), texts in the
template decide: the first row whose texts all occur. A model's option `tool_format` sets the format by name; a built-in
template brings the format of its models. Everything streams: a call's name and arguments are sent as they are
generated, in any split of the text. Text that turns out not to be a call stays in `content`.

- **Parallel**: several calls in one message. Clients that send `parallel_tool_calls: false` get the first one.
- **Reasoning**: *own* markup of the format, or the *template's* tags (`<think>` by default).
- **Arguments**: *stream* in deltas; if all arguments are text, only strings stream, other types are sent complete.
- **Types**: from the *format* itself, or from the parameters' *schema* if the format has only text.
- **Enforced**: with `tool_choice` required or named, and with auto for each call that the model starts, a grammar
  enforces the function's name and schema: *any* schema that can be enforced; *each* parameter separately, if the
  object has no `anyOf`, `allOf`, `minProperties` and similar keywords; or *nested*, the notation's own grammar,
  without `oneOf`, `allOf`, `not`, `if`, `uniqueItems` and similar keywords. A schema that cannot be enforced is a 400
  that names the keyword; with auto only the function's name is enforced then, unless it is `strict`. With *each*,
  `oneOf` of a text counts as `anyOf`; limits of a text with several types or an `enum` that cannot be enforced are
  ignored. If the types are the schema's, also with MiniMax M3, the other types of such a text have no limits.
  Arguments may have any order, each once. Members keep the schema's order inside JSON arguments, and in objects with
  `anyOf` and similar keywords or with more than 64 members.
- **Framed**: an answer has markup before it. A schema or grammar applies after that markup, and
  `continue_final_message` writes it. In all formats they apply after reasoning.

Markup of calls inside reasoning is text. If reasoning never ends, it is read as calls at the end of the text. If a
template knows no tools, the system message describes them, calls have the format's syntax, and results are text.

| Format | Models | Calls | Parallel | Reasoning | Arguments | Types | Enforced | Framed | Recognised by |
|---|---|---|---|---|---|---|---|---|---|
"""
_TYPES = """# Tool types of the APIs

A model sees functions only. This table shows the function for each tool type of OpenAI's Responses and Anthropic's
Messages, and the items that the client receives and returns. The client executes all of them: `shell` if its
`environment` is omitted or `local`, `tool_search` if its `execution` is `client`. In Responses, a call that a limit
truncated, or whose arguments do not fit, has no effect: no command, no change, no action. `file_upload` and
`javascript_exec` of the browser must be enabled in `configs`.

"""
_TEXT_DAYS = {**PARAMETERS, "properties": {**PARAMETERS["properties"], "days": {"type": "string"}}}


def descriptions() -> dict[str, str]:
    """Return the docstring below each format's constant."""
    found = {}
    for info in pkgutil.walk_packages(families.__path__, f"{families.__name__}."):
        module = importlib.import_module(info.name)
        below = _texts_below(inspect.getsource(module))
        for name, value in vars(module).items():
            if isinstance(value, ToolFormat):
                found[value.name] = below[name]
    return found


def _texts_below(source: str) -> dict[str, str]:
    found = {}
    for statement, following in pairwise(ast.parse(source).body):
        match statement, following:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found


def page() -> str:
    """Return the whole page."""
    texts = descriptions()
    rows = "".join(_row(tool_format, texts[tool_format.name]) for tool_format in formats.FORMATS)
    examples = "".join(f"\n## {each.name}\n{_examples(each.name)}" for each in formats.FORMATS)
    return f"{_HEAD}{rows}\n{_TYPES}{_types()}\n# Outputs and what they mean\n{examples}"


def _types() -> str:
    rows = ["| Type | Function and its parameters | Call | Output |", "|---|---|---|---|"]
    openai = [(f"`{kind}`", row, row.call, row.output) for kind, row in RESPONSES.items()]
    anthropic = [(_versions(kind), row, "tool_use", "tool_result") for kind, row in ANTHROPIC.items()]
    for kind, row, call, output in (*openai, *anthropic):
        rows.append(f"| {kind} | `{row.name}`: {_parameters(row)} | `{call}` | `{output}` |")
    for kind, toolset in TOOLSETS.items():
        members = ", ".join(f"`{name}`" for name in toolset.functions)
        rows.append(f"| `{kind}` | `{toolset.name}__...`: {members} | `tool_use` | `tool_result` |")
    skipped = ", ".join(f"`{kind}`" for kind in SERVERS)
    rows += ["", f"Skipped in any version, because only the provider's servers execute them: {skipped}."]
    return "\n".join(rows) + "\n"


def _versions(kind: str) -> str:
    return f"`{kind}`" if kind[-1].isdigit() else f"`{kind}_...`"


def _parameters(row: ToolType) -> str:
    if row.open:
        return "those of the request"
    return ", ".join(f"`{name}`" for name in row.parameters["properties"])


def _row(tool_format: ToolFormat, description: str) -> str:
    samples = [recorded for recorded in RECORDED if recorded.format == tool_format.name]
    messages = [_parse(recorded) for recorded in samples]
    models = description.partition(":")[0].replace("\n", " ")
    own_reasoning = tool_format.inline_reasoning and any(message.reasoning for message in messages)
    signs = (" + ".join(f"`{_cell(sign)}`" for sign in group) for group in tool_format.signs)
    cells = (
        f"`{tool_format.name}`",
        models,
        _yes(any(message.calls for message in messages)),
        _yes(any(len(message.calls) > 1 for message in messages)),
        "own" if own_reasoning else _tags(tool_format.name),
        "stream" if _streams(samples) else "whole",
        "schema" if any(_typed_by_schema(recorded) for recorded in samples) else "format",
        _enforced(tool_format.syntax.arguments),
        _yes(bool(tool_format.leads)),
        " or ".join(signs) or "nothing else",
    )
    return f"| {' | '.join(cells)} |\n"


def _examples(name: str) -> str:
    return "".join(
        f"\n````text\n{recorded.text.rstrip()}\n````\n\n{_bullets(_parse(recorded))}\n"
        for recorded in RECORDED
        if recorded.format == name
    )


def _bullets(message: ParsedMessage) -> str:
    parts = [("reasoning", message.reasoning), ("content", message.content)]
    texts = [f"- {kind}: `{text}`" for kind, text in parts if text]
    return "\n".join(texts + [f"- call: `{name}` `{arguments}`" for name, arguments in message.calls])


def _parse(recorded: Recorded, splits: Any = (), **options: Any) -> ParsedMessage:
    parser = make_parser(recorded.format, template=recorded.template, prompt=recorded.prompt, **options)
    return parse_text(parser, recorded.text, splits)


def _tags(name: str) -> str:
    parser = make_parser(name, template="</think>")
    return "template's" if parse_text(parser, "<think>Hm.</think>Yes.").reasoning == "Hm." else ""


def _streams(samples: list[Recorded]) -> bool:
    """Return whether a part of a string argument is emitted before the string ends."""
    for recorded in samples:
        if "Paris" in recorded.text:
            parser = make_parser(recorded.format, template=recorded.template, prompt=recorded.prompt)
            message = ParsedMessage()
            for char in recorded.text[: recorded.text.index("Paris") + 3]:
                message.add(parser.feed(char))
            if message.calls and message.calls[-1][1].endswith("Par"):
                return True
    return False


def _typed_by_schema(recorded: Recorded) -> bool:
    """Return whether a number becomes text when the schema asks for a string."""
    message = _parse(recorded, every_character(recorded.text), tools=(tool("get_weather", _TEXT_DAYS),))
    return any(json.loads(arguments).get("days") == "3" for _, arguments in message.calls)


def _enforced(arguments: Arguments) -> str:
    match arguments:
        case JsonArguments():
            return "any"
        case Braces() | Elements():
            return "nested"
    return "each"


def _yes(holds: bool) -> str:
    return "yes" if holds else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
