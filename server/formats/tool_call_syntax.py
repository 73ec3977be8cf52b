"""How a format writes calls, for grammars that hold a model to it. Each file under `families` describes its own.

A call is ``before``, the name, ``behind``, the arguments, ``after``; calls stand between ``open`` and ``close`` with
``joint`` between them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Markup: TypeAlias = str | tuple["str | re.Pattern[str]", ...]
"""Text; in a tuple also patterns, for ids and counters."""
TOOL_NAME = re.compile(r"[\w.:/\-]+")
"""A tool's name in syntax without quotes around it. Grammars write what this matches, and parsers read it."""


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """Arguments as one JSON object, kept to the schema by ``%json``."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """One argument at a time: ``before``, key, ``behind``, value, ``after``; ``joint`` separates them.

    Strings are text up to ``after``, other values are JSON. ``behind_json``: replaces ``behind`` before JSON, if the
    format has types. ``end`` closes the arguments. ``never``: other texts that end a string, so that no string may
    contain them.
    """

    before: str
    behind: Markup
    after: str
    joint: str = ""
    end: str = ""
    behind_json: Markup | None = None
    never: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Keywords:
    """Python's keyword arguments, ``city="Paris", days=3``, with JSON's or Python's literals. ``end`` follows them."""

    end: str = ")"


@dataclass(frozen=True, slots=True)
class Braces:
    """``{city:"Paris",hours:[8,12]}``: bare keys, and ``quote`` around texts."""

    quote: str


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements with ``prefix`` before each tag, ``<city>Paris</city>``, and ``<item>`` for list items. ``end`` closes
    the arguments.
    """

    prefix: str
    end: str


Arguments = JsonArguments | Parameters | Keywords | Braces | Elements


@dataclass(frozen=True, slots=True)
class WholeJson:
    """Forced calls are one JSON value: under the key ``list_key`` a list of calls, without one a single call."""

    arguments: str
    list_key: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """See above. ``behind`` has one text, or several of which a model may choose.

    ``lead``: what stands in front of the name of a function, and behind it, that a forced turn begins with.
    ``also_before``: what a forced call may begin with instead.
    ``several``: False where one turn holds one call.
    ``whole``: how forced calls look where nothing tells them from a JSON answer but their keys.

    In free text a call begins with ``trigger``, which ``open`` and ``before`` begin with; ``triggers`` are other texts
    behind which the same follows. ``by_name``: the function's name is a part of the trigger (``before``, or one of
    ``triggers``, the name, and one character), since what is in front of it may be anything. ``at_start``: only at the
    beginning of a message; for those in ``elsewhere`` the other way round. ``rest_of_list``: further calls follow
    without a trigger of their own, up to ``close``.
    """

    before: Markup
    behind: tuple[Markup, ...]
    after: str = ""
    open: str = ""
    close: str = ""
    joint: str = ""
    arguments: Arguments = field(default_factory=JsonArguments)
    also_before: tuple[str, ...] = ()
    several: bool = True
    lead: tuple[str, str] | None = None
    whole: WholeJson | None = None
    trigger: str = ""
    triggers: tuple[str, ...] = ()
    by_name: bool = False
    at_start: bool = False
    elsewhere: tuple[str, ...] = ()
    rest_of_list: bool = False

    def stands_in(self, text: str, name: str, *, space: str = r"\s*") -> bool:
        """Return whether a text contains the start of a call of that function; `space` is a regex for whitespace."""
        behind = "|".join(_pattern(each, space) for each in self.behind)
        call = rf"{_pattern(self.before, space)}{re.escape(name)}(?:{behind})"
        return re.search(rf"{_pattern(self.open, space)}\s*{call}", text) is not None

    @property
    def beginnings(self) -> Sequence[tuple[str, bool]]:
        """Return the triggers without a name, and whether each only counts at the start."""
        first = self.trigger or (self.before if isinstance(self.before, str) else "")
        here, elsewhere = (first, *self.triggers), self.elsewhere
        return [(text, self.at_start) for text in here] + [(text, not self.at_start) for text in elsewhere]


def _pattern(markup: Markup, space: str) -> str:
    """A regex of that markup; "" for `space` leaves its own."""
    found = []
    for part in parts(markup):
        if isinstance(part, re.Pattern):
            found.append(f"(?:{part.pattern})")
        else:
            found.append(space.join(map(re.escape, re.split(r"\s+", part) if space else [part])))
    return "".join(found)


def parts(markup: Markup) -> tuple["str | re.Pattern[str]", ...]:
    """Markup as a tuple."""
    return (markup,) if isinstance(markup, str) else markup


def json_calls(open: str, close: str = "", *, key: str = "arguments", **options: Any) -> ToolCallSyntax:  # noqa: A002
    """Return the syntax of ``{"name": ..., "arguments": {...}}`` with a tag before and after each call."""
    given: dict[str, Any] = {"trigger": open.strip(), **options}
    return ToolCallSyntax(f'{open}{{"name": "', (f'", "{key}": ',), f"}}{close}", **given)


def json_list(open: str, close: str = "", *, key: str = "arguments", **options: Any) -> ToolCallSyntax:  # noqa: A002
    """Return the syntax of a JSON list of such objects."""
    given: dict[str, Any] = {
        "open": f"{open}[",
        "close": f"]{close}",
        "joint": ", ",
        "trigger": open,
        "rest_of_list": True,
        **options,
    }
    return ToolCallSyntax('{"name": "', (f'", "{key}": ',), "}", **given)


def python_list(open: str, close: str, *, joint: str = ", ", **options: Any) -> ToolCallSyntax:  # noqa: A002
    """Return the syntax of consecutive Python calls, ``get_weather(city="Paris")``."""
    given: dict[str, Any] = {
        "open": open,
        "close": close,
        "joint": joint,
        "arguments": Keywords(),
        "trigger": open,
        "rest_of_list": True,
        **options,
    }
    return ToolCallSyntax("", ("(",), **given)
