"""docs/tool-formats.md, from what the parsers make of the recorded outputs; run as a module to write it anew."""

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
from tests.unit.formats.reading import Read, every_character, parser, read
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
  that names the keyword; with auto only the function's name is enforced then, unless it is `strict`. Arguments may
  have any order, each once. Members keep the schema's order inside JSON arguments, and in objects with `anyOf` and
  similar keywords or with more than 64 members.
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
_NO_DAYS = {**PARAMETERS, "properties": {**PARAMETERS["properties"], "days": {"type": "string"}}}


def descriptions() -> dict[str, str]:
    """Return the text below each format's constant."""
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
    for made, text in pairwise(ast.parse(source).body):
        match made, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = said
    return found


def page() -> str:
    """The whole page."""
    texts = descriptions()
    rows = "".join(_row(form, texts[form.name]) for form in formats.FORMATS)
    examples = "".join(f"\n## {form.name}\n{_examples(form.name)}" for form in formats.FORMATS)
    return f"{_HEAD}{rows}\n{_TYPES}{_types()}\n# Outputs and what they mean\n{examples}"


def _types() -> str:
    rows = ["| Type | Function and its parameters | Call | Output |", "|---|---|---|---|"]
    own = [(f"`{kind}`", row, row.call, row.output) for kind, row in RESPONSES.items()]
    claudes = [(_versions(kind), row, "tool_use", "tool_result") for kind, row in ANTHROPIC.items()]
    for kind, row, call, output in (*own, *claudes):
        rows.append(f"| {kind} | `{row.name}`: {_parameters(row)} | `{call}` | `{output}` |")
    for kind, toolset in TOOLSETS.items():
        members = ", ".join(f"`{name}`" for name in toolset.functions)
        rows.append(f"| `{kind}` | `{toolset.name}__...`: {members} | `tool_use` | `tool_result` |")
    left_out = ", ".join(f"`{kind}`" for kind in SERVERS)
    rows += ["", f"Left out, since only the provider's servers execute them, in any version: {left_out}."]
    return "\n".join(rows) + "\n"


def _versions(kind: str) -> str:
    return f"`{kind}`" if kind[-1].isdigit() else f"`{kind}_...`"


def _parameters(row: ToolType) -> str:
    if row.open:
        return "those of the request"
    return ", ".join(f"`{name}`" for name in row.parameters["properties"])


def _row(form: ToolFormat, told_of: str) -> str:
    own = [recorded for recorded in RECORDED if recorded.format == form.name]
    meant = [_read(recorded) for recorded in own]
    models = told_of.partition(":")[0].replace("\n", " ")
    cells = (
        f"`{form.name}`",
        models,
        _yes(any(found.calls for found in meant)),
        _yes(any(len(found.calls) > 1 for found in meant)),
        "own" if any(found.reasoning for found in meant) and form.inline_reasoning else _tags(form.name),
        "stream" if _streams(own) else "whole",
        "schema" if any(_typed_by_schema(recorded) for recorded in own) else "format",
        _enforced(form.syntax.arguments),
        _yes(bool(form.leads)),
        " or ".join(" + ".join(f"`{_cell(sign)}`" for sign in group) for group in form.signs) or "nothing else",
    )
    return f"| {' | '.join(cells)} |\n"


def _examples(name: str) -> str:
    return "".join(
        f"\n````text\n{recorded.text.rstrip()}\n````\n\n{_meaning(_read(recorded))}\n"
        for recorded in RECORDED
        if recorded.format == name
    )


def _meaning(found: Read) -> str:
    parts = [("reasoning", found.reasoning), ("content", found.content)]
    said = [f"- {kind}: `{text}`" for kind, text in parts if text]
    return "\n".join(said + [f"- call: `{name}` `{arguments}`" for name, arguments in found.calls])


def _read(recorded: Recorded, cuts: Any = (), **options: Any) -> Read:
    return read(parser(recorded.format, sign=recorded.sign, prompt=recorded.prompt, **options), recorded.text, cuts)


def _tags(name: str) -> str:
    return "template's" if read(parser(name, sign="</think>"), "<think>Hm.</think>Yes.").reasoning == "Hm." else ""


def _streams(own: list[Recorded]) -> bool:
    """Whether a part of a string is there before its end."""
    for recorded in own:
        if "Paris" in recorded.text:
            made = parser(recorded.format, sign=recorded.sign, prompt=recorded.prompt)
            found = Read()
            begun = recorded.text[: recorded.text.index("Paris") + 3]
            for char in begun:
                found.take(made.feed(char))
            if found.calls and found.calls[-1][1].endswith("Par"):
                return True
    return False


def _typed_by_schema(recorded: Recorded) -> bool:
    """Whether a number becomes text when the schema says so."""
    found = _read(recorded, every_character(recorded.text), tools=(tool("get_weather", _NO_DAYS),))
    return any(json.loads(arguments).get("days") == "3" for _, arguments in found.calls)


def _enforced(arguments: Arguments) -> str:
    match arguments:
        case JsonArguments():
            return "any"
        case Braces() | Elements():
            return "nested"
    return "each"


def _yes(fact: bool) -> str:
    return "yes" if fact else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
