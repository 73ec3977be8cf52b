"""Parses calls whose arguments are JSON objects: with the name in the same object, or in the markup before it.

The name is streamed when it is complete, then the arguments as they are generated. Keys may be in any order, and the
arguments may be an object or a string that contains one.
"""

import json
import re
from functools import partial

from server.formats.calls import json_text
from server.formats.parsing.reader import NotMarkup, Steps
from server.formats.parsing.stream_parser import Parse, StreamParser

_ARGUMENTS = ("arguments", "parameters", "args")
_KNOWN = frozenset(("type", "function", "id", "index", "name", "tool_name", "tool_call_id", *_ARGUMENTS))


def calls_by_opening(
    *openings: str, close: str = "", separator: str = ",", other: Parse | None = None
) -> dict[str, Parse]:
    """Return the parser of JSON calls for each of these openings. `other`: the parser of calls that are not JSON."""
    objects = several(call_object, *openings, close=close, separators=(separator,))

    def calls(turn: StreamParser) -> Steps[None]:
        yield from turn.spaces()
        yield from objects(turn) if other is None or (yield from turn.peek()) in ("{", "[") else other(turn)

    return dict.fromkeys(openings, calls)


def several(call: Parse, *openings: str, close: str = "", separators: tuple[str, ...] = (",",)) -> Parse:
    """Return the parser of one or more calls, in a list or in sequence, each parsed by `call`.

    An opening may also precede each further call. ``close`` follows the last one.
    """

    def calls(turn: StreamParser) -> Steps[None]:
        yield from turn.spaces()
        listed = bool((yield from turn.take("[")))
        if listed:
            yield from turn.spaces()
        yield from call(turn)
        while True:
            turn.end_call()
            yield from turn.spaces()
            if close and (yield from turn.take(close)):
                return
            if listed and (yield from turn.take("]")):
                if not close:
                    return
                listed = False
                continue
            if (yield from turn.take(*separators)):
                if listed:
                    turn.certain()
                yield from turn.spaces()
                if (yield from turn.take(*openings)):
                    yield from turn.spaces()
            if (yield from turn.peek()) == "{":
                turn.certain()
            yield from call(turn)

    return calls


def named_call(header: str, ends: tuple[str, ...], after: tuple[str, ...] = ()) -> Parse:
    """Return the parser of a call after its opening, with the name in markup, then the arguments as one JSON object.

    ``header``: a regex of the text up to one of ``ends``, with the groups ``name`` and ``id``. ``after``: markup after
    the arguments, which models may omit.
    """
    pattern = re.compile(header, re.DOTALL)

    def call(turn: StreamParser) -> Steps[None]:
        text, end = yield from turn.word(*ends)
        found = pattern.fullmatch(text.strip())
        if found is None:
            raise NotMarkup
        if end == "{":
            turn.back(end)
        given = found.groupdict()
        yield from json_arguments(turn, given["name"], given.get("id") or "")
        for marker in after:
            yield from turn.skip(marker)

    return call


def call_object(turn: StreamParser, *, strict: bool = False) -> Steps[None]:
    """Parse a call. ``strict``: reject unknown keys before the call has started. Raises `NotMarkup`."""
    yield from turn.expect("{")
    name, arguments, begun = "", "", False
    while not (yield from _object_ends(turn, begun)):
        key = yield from json_text.string(turn)
        yield from turn.spaces()
        yield from turn.expect(":")
        yield from turn.spaces()
        if strict and not begun and key not in _KNOWN:
            raise NotMarkup
        first = yield from turn.peek()
        if key in ("name", "tool_name", "function") and first == '"' and not name:
            name = yield from json_text.string(turn)
            if not name or (strict and not turn.knows(name)):
                raise NotMarkup
            turn.certain()
        elif key == "function" and first == "{" and not name:
            yield from call_object(turn, strict=strict)
            begun = True
            turn.settle()
            continue
        elif key in _ARGUMENTS and first == "{" and name and not begun:
            turn.begin(name)
            begun = True
            yield from json_text.value(turn, turn.arguments)
            continue
        else:
            text = yield from json_text.collected(turn)
            if key in _ARGUMENTS:
                arguments = _as_object(text)
        if name and arguments and not begun:
            turn.begin(name)
            turn.arguments(arguments)
            begun = True
    if begun:
        turn.settle()
        return
    if not name:
        raise NotMarkup
    turn.begin(name)
    turn.arguments("{}")


strict_call = partial(call_object, strict=True)


def json_arguments(turn: StreamParser, name: str, call_id: str = "") -> Steps[None]:
    """Parse the arguments of a call: an object, or null for none. Raises `NotMarkup` for other text."""
    yield from turn.spaces()
    absent = (yield from turn.take("null")) if name.strip() else ""
    if not name.strip() or (not absent and (yield from turn.peek()) != "{"):
        raise NotMarkup
    turn.begin(name.strip(), call_id.strip())
    if absent:
        turn.arguments("{}")
    else:
        yield from json_text.value(turn, turn.arguments)
    turn.end_call()


def _object_ends(turn: StreamParser, begun: bool) -> Steps[bool]:
    """Return whether the object ends here. If the call has started (`begun`), text that is not a key also ends it."""
    yield from turn.spaces()
    if (yield from turn.take("}")):
        return True
    if (yield from turn.take(",")):
        yield from turn.spaces()
    return begun and (yield from turn.peek()) != '"'


def _as_object(text: str) -> str:
    """Return arguments as an object. A string contains their JSON text; null and "" mean no arguments."""
    if text[:1] == "{":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise NotMarkup from None
    if value is None:
        return "{}"
    if not isinstance(value, str):
        raise NotMarkup
    return json_text.encodable(value) if value.strip() not in ("", "null") else "{}"
