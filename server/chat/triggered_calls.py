"""Constraint for ``tool_choice`` auto: text is unconstrained, but a tool call must match the function's schema once the
model opens it.

If a function's parameters can't be enforced, only its name is, unless the client set ``strict``.
"""

import json
from collections.abc import Iterator, Sequence

from server.chat.conversation import Tool, Tools
from server.errors import InvalidRequest, invalid
from server.formats.chat_format import ChatFormat
from server.formats.grammar.call_grammar import Function
from server.pool.model import LoadedModel
from server.structured.grammar.limits import MAX_CALLS_CHARS
from server.structured.grammar.text_tokens import Markers
from server.structured.grammar.triggered import Rules, TriggeredConstraint, TriggeredTag

_Begun = tuple[tuple[TriggeredTag, ...], Markers | None]


def triggered_calls(
    tools: Tools, chat_format: ChatFormat, model: LoadedModel, *, shown: frozenset[int], thinking: bool
) -> TriggeredConstraint | None:
    """Return the constraint; None if no function can be enforced.

    ``shown``: control tokens that appear as text for the parser. ``thinking``: whether the prompt opened reasoning,
    which is not constrained. Raises `InvalidRequest` for a strict function that can't be enforced.
    """
    shape = [[[tool.function, tool.at, repr(tool.text)] for tool in tools.tools], sorted(tools.strict), tools.parallel]
    begun, markers = model.grammar.remembered(f"calls:{json.dumps(shape)}", lambda: _make(tools, chat_format, model))
    if markers is None:
        return None
    tool_format = chat_format.tool_format
    opening, closing = chat_format.reasoning_tags
    ends = tuple(end.encode() for end in (closing, *tool_format.breaks))
    rules = Rules(begun, markers, shown, (opening.encode(), ends), anywhere=tool_format.inline_reasoning is not None)
    return TriggeredConstraint(rules, thinking=thinking)


def blamed(tools: Tools, chat_format: ChatFormat, model: LoadedModel, error: InvalidRequest) -> InvalidRequest:
    """Return the grammar `error` of all functions with the name of the function that causes it."""
    found = next(_faults(tools, chat_format, model), None)
    return error if found is None else _named(*found, model)


def _faults(tools: Tools, chat_format: ChatFormat, model: LoadedModel) -> Iterator[tuple[Tool, InvalidRequest]]:
    """Compile each function alone and yield those that can't be enforced."""
    for tool in tools.tools:
        try:
            _compiled([tool.grammar_function], Tools(), chat_format, model)
        except InvalidRequest as error:
            yield tool, error


def _named(tool: Tool, error: InvalidRequest, model: LoadedModel) -> InvalidRequest:
    """Return the error of the parameters as a schema of their own, which names the keyword, otherwise `error`."""
    try:
        model.grammar.json_schema(tool.function["parameters"])
    except InvalidRequest as own:
        return InvalidRequest(own.message.replace("json_schema", tool.at, 1), tool.at)
    return invalid(tool.at, error.message)


def _make(tools: Tools, chat_format: ChatFormat, model: LoadedModel) -> _Begun:
    functions = [tool.grammar_function for tool in tools.tools]
    try:
        return _compiled(functions, tools, chat_format, model)
    except InvalidRequest:
        faults = list(_faults(tools, chat_format, model))
    for tool, error in faults:
        if tool.name in tools.strict:
            raise _named(tool, error, model) from error
    faulty = {tool.name for tool, _ in faults}
    kept = [
        {**function, "parameters": {"type": "object"}} if function["name"] in faulty else function
        for function in functions
    ]
    try:
        return _compiled(kept, tools, chat_format, model)
    except InvalidRequest:
        if tools.strict:
            raise
        return (), None  # a name that the markup has no place for, or too much in all


def _compiled(functions: Sequence[Function], tools: Tools, chat_format: ChatFormat, model: LoadedModel) -> _Begun:
    grammar = model.grammar
    parallel = tools.parallel is not False
    found = chat_format.call_triggers(functions, parallel=parallel, control=grammar.control_token)
    begun = tuple(
        TriggeredTag(each.text.encode(), grammar.lark(each.lark, max_chars=MAX_CALLS_CHARS), each.at_start)
        for each in found
    )
    return begun, grammar.tokens.markers([each.marker for each in begun]) if found else None
