"""Grammars of calls: for ``tool_choice`` required or one named function, and for calls that a model starts itself.

Each format describes its syntax (`tool_call_syntax`); this module converts it to Lark in llguidance's dialect.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest
from server.formats.grammar.argument_rules import argument_rule, json_member, json_space
from server.formats.grammar.lark_text import LarkText
from server.formats.tool_call_syntax import TOOL_NAME, JsonArguments, ToolCallSyntax, WholeJson

Function = Mapping[str, Any]
"""A function in OpenAI's format. ``text``: the grammar of its one parameter, `INPUT`, if it has one (`TextGrammar`)."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A text after which the output must match ``lark``."""

    text: str
    lark: str
    at_start: bool = False  # only at the start of a message
    begun: str = ""  # the suffix of ``text`` that ``lark`` includes


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Writes the calls of `functions` into one grammar, `text`.

    Each function's parameters are a separate schema, so that a ``$ref`` keeps its meaning. Raises `InvalidRequest` for
    parameters that can't be enforced.
    """

    syntax: ToolCallSyntax
    functions: Sequence[Function]
    text: LarkText
    parallel: bool

    def forced(self, answer: tuple[str, object] | None = None) -> str:
        """Return Lark whose `start` is one or more calls.

        ``answer``: the markup and the JSON Schema of an alternative reply.
        """
        text, whole = self.text, self.syntax.whole
        with _bounded_depth():
            start = self._turn() if whole is None else self._whole(whole)
        if answer is None:
            return text.whole(start)
        lead, schema = answer
        other = text.rule(f"{text.literal(lead)} %json {json.dumps(schema)}")
        return text.whole(f"{text.rule(start)} | {other}")

    def triggers(self) -> list[Trigger]:
        """Return the texts that start a call in free text, with the grammar of the rest."""
        syntax = self.syntax
        with _bounded_depth():
            marker = str(syntax.before) if syntax.by_name else (*syntax.openings, *syntax.starts)[0]
            lark = self.text.whole(self._after(marker))
        after_name = str(syntax.after_name[0])[:1]
        names = [f"{_written(each['name'], syntax)}{after_name}" for each in self.functions] if syntax.by_name else [""]
        starts = [*((each, False) for each in syntax.openings), *((each, True) for each in syntax.starts)]
        return [Trigger(f"{start}{name}", lark, at_start, name) for name in names for start, at_start in starts]

    def _turn(self) -> str:
        """Return the rule of a whole turn that contains only calls."""
        syntax, text, one = self.syntax, self.text, self._one()
        lead = ""
        if syntax.lead is not None:
            names = " | ".join(text.literal(_written(function["name"], syntax)) for function in self.functions)
            lead = f"{text.literal(syntax.lead[0])} ({names}) {text.literal(syntax.lead[1])}"
        more = self._more(one, syntax.several)
        return f"{lead} {text.literal(syntax.open)} {one}{more} {text.literal(syntax.close)}"

    def _after(self, begun: str) -> str:
        """Return the rule of the calls after the text `begun`; if the trigger has a name, from the first name on."""
        syntax, text, one = self.syntax, self.text, self._one()
        more = self._more(one, syntax.rest_of_list or bool(syntax.open))
        if syntax.open and not syntax.by_name:
            return f"{text.literal(syntax.open.removeprefix(begun))} {one}{more} {text.literal(syntax.close)}"
        return f"{self._one(begun)}{more} {text.literal(syntax.close)}"

    def _whole(self, whole: WholeJson) -> str:
        """Return the rule of calls as one JSON value, with the lexemes of ``%json``, because an answer may be JSON."""
        text = self.text
        space, key = json_space(text), text.literal(json.dumps(whole.arguments))
        calls = []
        for function in self.functions:
            name = text.literal(json.dumps(function["name"], ensure_ascii=False))
            name = json_member(text.literal('"name"'), name, text)
            arguments = json_member(key, argument_rule(JsonArguments(), function, text), text)
            calls.append(text.rule(f'"{{" {space} {name} {space} "," {space} {arguments} {space} "}}"'))
        one = f"({' | '.join(calls)})"
        if not whole.list_key:
            return one
        again = f'({space} "," {space} {one})*' if self.parallel else ""
        listed = json_member(text.literal(json.dumps(whole.list_key)), f'"[" {space} {one} {again} {space} "]"', text)
        return f'"{{" {space} {listed} {space} "}}"'

    def _one(self, begun: str = "") -> str:
        """Return the rule of one call, without the text `begun` at its start."""
        return "(" + " | ".join(self._call(function, begun) for function in self.functions) + ")"

    def _more(self, one: str, several: bool) -> str:
        return f" ({self.text.literal(self.syntax.separator)} {one})*" if self.parallel and several else ""

    def _call(self, function: Function, begun: str) -> str:
        syntax, text = self.syntax, self.text
        starts = (syntax.before,) if begun else (syntax.before, *syntax.also_before)
        before = " | ".join(text.markup(start, without=begun) for start in starts)
        after_name = " | ".join(map(text.markup, syntax.after_name))
        name, arguments = _written(function["name"], syntax), argument_rule(syntax.arguments, function, text)
        return text.rule(f"({before}) {text.literal(name)} ({after_name}) {arguments} {text.literal(syntax.after)}")


@contextmanager
def _bounded_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise InvalidRequest("tools: the parameters of a function are nested too deeply", "tools") from None


def _written(name: str, syntax: ToolCallSyntax) -> str:
    """Return a function's name as written in the syntax. Raises `InvalidRequest` if the markup can't contain it."""
    if isinstance(syntax.arguments, JsonArguments) and syntax.after_name[0][:1] == '"':
        return json.dumps(name, ensure_ascii=False)[1:-1]
    if not TOOL_NAME.fullmatch(name):
        raise InvalidRequest(
            f"tools: the name {name[:64]!r} can't be used in a tool call of this model: names have letters, digits "
            "and _ . : - /",
            "tools",
        )
    return name
