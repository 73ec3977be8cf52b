"""Detects the call format of a template: renders a call and parses it back.

A call with a known name and known arguments is rendered by the template. The formats whose parsers return the call
are candidates. Parsers also accept related formats, so candidates are ranked: first by whether their own markup is
in the turn. Then it counts whether they parse two calls next to text, then the texts in the template's source. Among
equals, the absence of markup around replies decides. If no parser returns the call, only the texts in the source do.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from server.formats import BY_NAME, FORMATS, GENERIC, recognised
from server.formats.chat_format import ChatFormat
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from server.formats.parsing.reasoning import has_reasoning_tags, reasoning_tags_of
from server.formats.parsing.stream_parser import Reading
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

TemplateMessage = Mapping[str, Any]
"""A message as templates read it."""
Render = Callable[[Sequence[TemplateMessage], bool], str]
"""Returns the prompt of these messages, with or without the start of the assistant's turn; "" if the template rejects
them.
"""

NAME, ARGUMENTS = "find_place", {"city": "Paris7351", "days": 3}
_OTHER = {"city": "Rome7351", "days": 4}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "d"}, "days": {"type": "integer", "description": "d"}},
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": NAME, "description": "d", "parameters": _SCHEMA}}
"""The tool in the prompts of a `Render`."""
_TEXT = "I look it up."


@dataclass(frozen=True, slots=True)
class RenderedTurn:
    """A rendered assistant turn. ``opening``: the part in the prompt."""

    text: str
    opening: str
    n_calls: int


def recognise(render: Render, source: str, name: str, *, shows_tools: bool, shows_calls: bool) -> ChatFormat:
    """Return the chat format of that name; for auto the one that the template's renderings and source show."""
    tags, named = reasoning_tags_of(source), has_reasoning_tags(source)

    def chat_format(tool_format: ToolFormat, tool_call_syntax: ToolCallSyntax, doubt: str = "") -> ChatFormat:
        return ChatFormat(tool_format, tool_call_syntax, source, tool_format.inline_reasoning or tags, named, doubt)

    by_signs = recognised(source, name)
    if name in BY_NAME:
        return chat_format(by_signs, by_signs.tool_call_syntax(source))
    turns = rendered_turns(render) if shows_calls else []
    tool_format = by_rendering(FORMATS, turns, source)
    if tool_format is not None:
        exactly = [each for each in tool_format.call_forms if each.occurs_in(turns[0].text, NAME, space="")]
        shown = (each for each in (*exactly, *tool_format.call_forms) if each.occurs_in(turns[0].text, NAME))
        return chat_format(tool_format, next(shown, tool_format.tool_call_syntax(source)))
    doubt = ""
    if shows_calls:
        doubt = "no parser reads the tool calls that it renders"
    elif shows_tools and by_signs is GENERIC:
        doubt = "it renders tools but no calls, and nothing in it shows how they are written"
    return chat_format(by_signs, by_signs.tool_call_syntax(source), doubt)


def rendered_turns(render: Render) -> list[RenderedTurn]:
    """Return turns with one call, and with two calls after a text; [] if the template has no calls."""
    user = {"role": "user", "content": "hi"}
    without, asked = render([user], False), render([user], True)
    made = []
    for calls, text in (([ARGUMENTS], ""), ([ARGUMENTS, _OTHER], _TEXT)):
        whole = render([user, _assistant(calls, text), *_results(len(calls))], False)
        opening = asked[n_common(without, asked) :] if asked and whole.startswith(asked) else ""
        turn = whole[n_common(asked if opening else without, whole) :]
        if all(str(given["city"]) in turn for given in calls):
            made.append(RenderedTurn(turn, opening, len(calls)))
    return made


def by_rendering(forms: Sequence[ToolFormat], turns: Sequence[RenderedTurn], source: str) -> ToolFormat | None:
    """Return the format whose parser returns the calls of the turns; None if there is none."""
    best: tuple[tuple[bool | int, ...], ToolFormat] | None = None
    for tool_format in forms:
        n_read = sum(_reads(tool_format, turn, source) for turn in turns)
        if not n_read:
            continue
        rank = (_writes(tool_format, turns[0].text), n_read, tool_format.matches(source), not tool_format.framed)
        if best is None or rank > best[0]:
            best = rank, tool_format
    return None if best is None else best[1]


def _reads(tool_format: ToolFormat, turn: RenderedTurn, source: str) -> bool:
    how = Reading(functions={NAME: _SCHEMA})
    parser = tool_format.reader(how, tool_format.inline_reasoning or reasoning_tags_of(source), turn.opening)
    pieces = [*parser.feed(turn.text), *parser.finish()]
    return _calls(pieces) == [(NAME, ARGUMENTS), (NAME, _OTHER)][: turn.n_calls]


def _calls(pieces: Sequence[Piece]) -> list[tuple[str, Any]]:
    found: list[tuple[str, list[str]]] = []
    for piece in pieces:
        if isinstance(piece, ToolCallBegin):
            found.append((piece.name, []))
        elif isinstance(piece, ToolCallArguments):
            found[-1][1].append(piece.text)
    try:
        return [(name, json.loads("".join(parts))) for name, parts in found]
    except ValueError:
        return []


def _writes(tool_format: ToolFormat, text: str) -> bool:
    """Return whether the format's own markup, as in its grammar, surrounds the name in that turn."""
    return any(each.occurs_in(text, NAME) for each in tool_format.call_forms)


def _assistant(calls: Sequence[Mapping[str, Any]], text: str) -> TemplateMessage:
    listed = [
        {"id": f"call0000{n}", "type": "function", "function": {"name": NAME, "arguments": json.dumps(given)}}
        for n, given in enumerate(calls, 1)
    ]
    return {"role": "assistant", "content": text, "tool_calls": listed}


def _results(n_calls: int) -> list[TemplateMessage]:
    return [
        {"role": "tool", "content": "r", "name": NAME, "tool_call_id": f"call0000{n}"} for n in range(1, n_calls + 1)
    ]


def n_common(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return len(commonprefix((one, other)))  # noqa: RUF071 - of texts
