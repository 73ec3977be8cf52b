"""Detects the call format of a template: renders a call and parses it back.

The template renders a call with a known name and known arguments. The formats whose parsers return the call are
candidates. Parsers also accept related formats, so candidates are ranked. The criteria are, in this order: The turn has
the format's own markup. The parser returns two calls next to text. The template's source has the format's texts. The
format has no markup around replies. If no parser returns the call, only the texts in the source decide.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from os.path import commonprefix
from typing import Any

from server.formats import BY_NAME, FORMATS, GENERIC, recognised
from server.formats.chat_format import ChatFormat
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin

TemplateMessage = Mapping[str, Any]
"""A message in the form that templates expect."""
Render = Callable[[Sequence[TemplateMessage], bool], str]
"""Returns the prompt of messages, with or without the start of the assistant's turn; "" if the template rejects them.
"""

NAME, ARGUMENTS = "find_place", {"city": "Paris7351", "days": 3}
_OTHER = {"city": "Rome7351", "days": 4}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "d"}, "days": {"type": "integer", "description": "d"}},
    "required": ["city", "days"],
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": NAME, "description": "d", "parameters": _SCHEMA}}
"""The tool in the prompts of a `Render`."""
_TEXT = "I look it up."


@dataclass(frozen=True, slots=True)
class _RenderedTurn:
    """A rendered assistant turn. ``opening``: the part of the turn that is in the prompt."""

    text: str
    opening: str
    calls: Sequence[tuple[str, Any]]


def recognise(render: Render, source: str, name: str, *, shows_tools: bool, shows_calls: bool) -> ChatFormat:
    """Return the chat format of that name; for auto the one that the template's renderings and source show."""
    by_signs = ChatFormat.of(recognised(source, name), source)
    if name in BY_NAME:
        return by_signs
    turns = _rendered_turns(render) if shows_calls else []
    ranked = [(_rank(each, turns), each) for each in (ChatFormat.of(each, source) for each in FORMATS)] if turns else []
    candidates = [(rank, chat_format) for rank, chat_format in ranked if rank]
    if candidates:
        _, found = max(candidates, key=lambda each: each[0])
        syntaxes, shown = found.tool_format.syntaxes, turns[0].text
        exact = (each for each in syntaxes if each.occurs_in(shown, NAME, space=""))
        near = (each for each in syntaxes if each.occurs_in(shown, NAME))
        return replace(found, tool_call_syntax=next(chain(exact, near), found.tool_call_syntax))
    if shows_calls:
        return replace(by_signs, doubt="no parser reads the tool calls that it renders")
    if shows_tools and by_signs.tool_format is GENERIC:
        return replace(by_signs, doubt="it renders tools but no calls, and nothing in it shows how they are written")
    return by_signs


def _rendered_turns(render: Render) -> list[_RenderedTurn]:
    """Return turns with one call, and with two calls after a text; [] if the template has no calls."""
    user = {"role": "user", "content": "hi"}
    without, prompt = render([user], False), render([user], True)
    turns = []
    for given, text in (([ARGUMENTS], ""), ([ARGUMENTS, _OTHER], _TEXT)):
        functions = [{"name": NAME, "arguments": json.dumps(arguments)} for arguments in given]
        calls = [{"id": f"call0000{n}", "type": "function", "function": each} for n, each in enumerate(functions, 1)]
        results = [{"role": "tool", "content": "r", "name": NAME, "tool_call_id": call["id"]} for call in calls]
        whole = render([user, {"role": "assistant", "content": text, "tool_calls": calls}, *results], False)
        opening = prompt[n_common(without, prompt) :] if prompt and whole.startswith(prompt) else ""
        turn = whole[n_common(prompt if opening else without, whole) :]
        if all(str(arguments["city"]) in turn for arguments in given):
            turns.append(_RenderedTurn(turn, opening, [(NAME, arguments) for arguments in given]))
    return turns


def _rank(chat_format: ChatFormat, turns: Sequence[_RenderedTurn]) -> tuple[bool | int, ...]:
    """Return how well a format fits the turns, to be compared; () if its parser does not return their calls."""
    n_read = 0
    for turn in turns:
        parser = chat_format.parser([TOOL["function"]], generation_prompt=turn.opening)
        n_read += _calls([*parser.feed(turn.text), *parser.finish()]) == turn.calls
    if not n_read:
        return ()
    tool_format = chat_format.tool_format
    # Whether the format's own markup, as in its grammar, surrounds the name.
    writes = any(each.occurs_in(turns[0].text, NAME) for each in tool_format.syntaxes)
    return writes, n_read, tool_format.matches(chat_format.source), not tool_format.framed


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


def n_common(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return len(commonprefix((one, other)))  # noqa: RUF071 - of texts
