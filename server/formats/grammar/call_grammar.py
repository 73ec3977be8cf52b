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
    """After ``text``, only what ``lark`` describes is allowed."""

    text: str
    lark: str
    at_start: bool = False  # only at the start of a message
    begun: str = ""  # the end of ``text`` that ``lark`` describes, too


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Writes the calls of `functions` into one grammar, `text`.

    Each function's parameters are a separate schema, so that a ``$ref`` keeps its meaning. Raises `InvalidRequest` for
    parameters that can't be enforced.
    """

    form: ToolCallSyntax
    functions: Sequence[Function]
    text: LarkText
    parallel: bool

    def forced(self, answer: tuple[str, object] | None = None) -> str:
        """Return Lark whose `start` is one or more calls.

        ``answer``: the markup and the JSON Schema of an alternative reply.
        """
        text, whole = self.text, self.form.whole
        with _bounded_depth():
            start = self._turn() if whole is None else self._whole(whole)
        if answer is None:
            return text.whole(start)
        lead, schema = answer
        other = text.rule(f"{text.literal(lead)} %json {json.dumps(schema)}")
        return text.whole(f"{text.rule(start)} | {other}")

    def triggers(self) -> list[Trigger]:
        """Return the texts that start a call in free text, with the grammar of the rest."""
        form = self.form
        with _bounded_depth():
            lark = self.text.whole(self._after(str(form.before) if form.by_name else (*form.openings, *form.starts)[0]))
        after_name = str(form.after_name[0])[:1]
        names = [f"{_written(each['name'], form)}{after_name}" for each in self.functions] if form.by_name else [""]
        starts = [*((each, False) for each in form.openings), *((each, True) for each in form.starts)]
        return [Trigger(f"{start}{name}", lark, at_start, name) for name in names for start, at_start in starts]

    def _turn(self) -> str:
        """Return the rule of a turn with calls only, from its first markup on."""
        form, text, one = self.form, self.text, self._one()
        lead = ""
        if form.lead is not None:
            names = " | ".join(text.literal(_written(function["name"], form)) for function in self.functions)
            lead = f"{text.literal(form.lead[0])} ({names}) {text.literal(form.lead[1])}"
        more = self._more(one, form.several)
        return f"{lead} {text.literal(form.open)} {one}{more} {text.literal(form.close)}"

    def _after(self, begun: str) -> str:
        """Return the rule of the calls after the text `begun`, of those by name from the first name on."""
        form, text, one = self.form, self.text, self._one()
        more = self._more(one, form.rest_of_list or bool(form.open))
        if form.open and not form.by_name:
            return f"{text.literal(form.open.removeprefix(begun))} {one}{more} {text.literal(form.close)}"
        return f"{self._one(begun)}{more} {text.literal(form.close)}"

    def _whole(self, whole: WholeJson) -> str:
        """Return the rule of calls as one JSON value, in the lexemes of ``%json``, since an answer may be one, too."""
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
        return f" ({self.text.literal(self.form.joint)} {one})*" if self.parallel and several else ""

    def _call(self, function: Function, begun: str) -> str:
        form, text = self.form, self.text
        starts = (form.before,) if begun else (form.before, *form.also_before)
        before = " | ".join(text.markup(start, without=begun) for start in starts)
        after_name = " | ".join(map(text.markup, form.after_name))
        name, arguments = _written(function["name"], form), argument_rule(form.arguments, function, text)
        return text.rule(f"({before}) {text.literal(name)} ({after_name}) {arguments} {text.literal(form.after)}")


@contextmanager
def _bounded_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise InvalidRequest("tools: the parameters of a function are nested too deeply", "tools") from None


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
