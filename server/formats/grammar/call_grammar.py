"""Grammars of calls: for ``tool_choice`` required or one named function, and for calls that a model starts itself.

Each format describes its syntax (`tool_call_syntax`); this module converts it to Lark in llguidance's dialect.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest
from server.formats.grammar.argument_rules import argument_rule, json_member, json_space, text_argument_rule
from server.formats.grammar.lark_text import ControlToken, LarkText
from server.formats.grammar.nested_rules import nested_rule
from server.formats.tool_call_syntax import (
    TOOL_NAME,
    Arguments,
    Braces,
    Elements,
    JsonArguments,
    ToolCallSyntax,
    WholeJson,
)

Function = Mapping[str, Any]
"""A function in OpenAI's format. ``text``: the grammar of its one parameter, `INPUT`, if it has one (`TextGrammar`)."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """After ``text``, only what ``lark`` describes is allowed. ``at_start``: only at the start of a message."""

    text: str
    lark: str
    at_start: bool = False


def calls_lark(
    form: ToolCallSyntax,
    functions: Sequence[Function],
    *,
    parallel: bool,
    control: ControlToken | None = None,
    tags: Sequence[str] = (),
    answer: tuple[str, object] | None = None,
) -> str:
    """Return Lark whose `start` is one or more calls of these functions.

    ``answer``: the markup and the JSON Schema of an alternative reply. Each function's parameters are a separate
    schema, so that a ``$ref`` keeps its meaning. ``tags``: texts that may be control tokens. Raises `InvalidRequest`
    for parameters that can't be enforced.
    """
    text = LarkText(control, tags)
    try:
        if form.whole is not None:
            calls = _whole(form.whole, functions, text, parallel=parallel)
        else:
            calls = _calls(form, functions, text, parallel=parallel and form.several)
            calls = f"{_lead(form, functions, text)} {calls}"
    except RecursionError:
        raise InvalidRequest("tools: the parameters of a function are nested too deeply", "tools") from None
    if answer is None:
        return text.whole(calls)
    lead, schema = answer
    other = text.rule(f"{text.literal(lead)} %json {json.dumps(schema)}")
    return text.whole(f"{text.rule(calls)} | {other}")


def triggers(
    form: ToolCallSyntax,
    functions: Sequence[Function],
    *,
    parallel: bool,
    control: ControlToken | None = None,
    tags: Sequence[str] = (),
) -> list[Trigger]:
    """Return the texts that start a call in free text, with the grammars of the rest. Raises `InvalidRequest`."""
    try:
        if form.by_name:
            found = [_named(form, function, functions, control, tags, parallel) for function in functions]
            return [trigger for each in found for trigger in each]
        text = LarkText(control, tags)
        first, _ = form.all_triggers[0]
        calls = _calls(form, functions, text, parallel=parallel and form.rest_of_list, begun=first)
        lark = text.whole(calls)
    except RecursionError:
        raise InvalidRequest("tools: the parameters of a function are nested too deeply", "tools") from None
    return [Trigger(begun, lark, at_start) for begun, at_start in form.all_triggers]


def _named(
    form: ToolCallSyntax,
    function: Function,
    functions: Sequence[Function],
    control: ControlToken | None,
    tags: Sequence[str],
    parallel: bool,
) -> list[Trigger]:
    """Return the triggers with this function's name and the next character."""
    after_name = form.after_name[0]
    assert isinstance(after_name, str)
    text = LarkText(control, tags)
    rest = text.literal(after_name[1:])
    call = f"{rest} {_arguments(form, function, text)} {text.literal(form.after)}"
    if form.rest_of_list:
        more = _alternatives(form, functions, text)
        again = f" ({text.literal(form.joint)} {more})*" if parallel and form.several else ""
        call = f"{call}{again} {text.literal(form.close)}"
    lark = text.whole(call)
    name = _written(function["name"], form)
    return [Trigger(f"{begun}{name}{after_name[0]}", lark, at_start) for begun, at_start in form.all_triggers]


def _calls(
    form: ToolCallSyntax, functions: Sequence[Function], text: LarkText, *, parallel: bool, begun: str = ""
) -> str:
    """Return the rule of all calls with their surrounding markup, without the text ``begun`` at its start."""
    one = _alternatives(form, functions, text)
    again = f" ({text.literal(form.joint)} {one})*" if parallel else ""
    if not begun:
        return f"{text.literal(form.open)} {one}{again} {text.literal(form.close)}"
    if form.open:
        return f"{text.literal(form.open.removeprefix(begun))} {one}{again} {text.literal(form.close)}"
    return f"{_alternatives(form, functions, text, begun=begun)}{again} {text.literal(form.close)}"


def _alternatives(form: ToolCallSyntax, functions: Sequence[Function], text: LarkText, *, begun: str = "") -> str:
    rules = [_call(form, function, text, begun) for function in functions]
    return "(" + " | ".join(rules) + ")"


def _call(form: ToolCallSyntax, function: Function, text: LarkText, begun: str) -> str:
    name = _written(function["name"], form)
    starts = (form.before,) if begun else (form.before, *form.also_before)
    before = " | ".join(text.markup(start, without=begun) for start in starts)
    after_name = " | ".join(map(text.markup, form.after_name))
    arguments = _arguments(form, function, text)
    return text.rule(f"({before}) {text.literal(name)} ({after_name}) {arguments} {text.literal(form.after)}")


def _lead(form: ToolCallSyntax, functions: Sequence[Function], text: LarkText) -> str:
    if form.lead is None:
        return ""
    names = " | ".join(text.literal(_written(function["name"], form)) for function in functions)
    return f"{text.literal(form.lead[0])} ({names}) {text.literal(form.lead[1])}"


def _whole(whole: WholeJson, functions: Sequence[Function], text: LarkText, *, parallel: bool) -> str:
    """Return the rule of calls as one JSON value, in the lexemes of ``%json``, so that an answer may be one, too."""
    space, key = json_space(text), text.literal(json.dumps(whole.arguments))
    calls = []
    for function in functions:
        name = json_member(text.literal('"name"'), text.literal(json.dumps(function["name"], ensure_ascii=False)), text)
        arguments = json_member(key, _arguments_of(JsonArguments(), function, text), text)
        calls.append(text.rule(f'"{{" {space} {name} {space} "," {space} {arguments} {space} "}}"'))
    one = f"({' | '.join(calls)})"
    if not whole.list_key:
        return one
    again = f'({space} "," {space} {one})*' if parallel else ""
    listed = json_member(text.literal(json.dumps(whole.list_key)), f'"[" {space} {one} {again} {space} "]"', text)
    return f'"{{" {space} {listed} {space} "}}"'


def _arguments(form: ToolCallSyntax, function: Function, text: LarkText) -> str:
    return _arguments_of(form.arguments, function, text)


def _arguments_of(arguments: Arguments, function: Function, text: LarkText) -> str:
    grammar = function.get("text")
    if grammar is not None:
        return text_argument_rule(arguments, grammar, text)
    if isinstance(arguments, Braces | Elements):
        return nested_rule(arguments, function, text)
    return argument_rule(arguments, function, text)


def _written(name: str, form: ToolCallSyntax) -> str:
    """Return a function's name as written in the syntax. Raises `InvalidRequest` if the markup can't contain it."""
    if isinstance(form.arguments, JsonArguments) and form.after_name[0][:1] == '"':
        return json.dumps(name, ensure_ascii=False)[1:-1]
    if not TOOL_NAME.fullmatch(name):
        raise InvalidRequest(
            f"tools: the name {name[:64]!r} can't be used in a tool call of this model: names have letters, digits "
            "and _ . : - /",
            "tools",
        )
    return name


def loosened(function: Function) -> Function:
    """Return the function with unconstrained parameters; a parameter's own grammar is kept."""
    return {**function, "parameters": {"type": "object"}}
