"""The syntax of a format's calls, for grammars that constrain a model to it.

A call is ``before``, the name, ``after_name``, the arguments, ``after``. Calls are between ``open`` and ``close`` with
``separator`` between them.
"""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Markup: TypeAlias = str | tuple["str | re.Pattern[str]", ...]
"""Text; in a tuple also patterns, for ids and counters."""
TOOL_NAME = re.compile(r"[\w.:/\-]+")
"""The tool names that grammars and parsers accept in syntax without quotes around the name."""


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """Arguments as one JSON object."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """One argument at a time: ``before``, key, ``before_value``, value, ``after``; ``separator`` separates them.

    Strings are text up to ``after``, other values are JSON. ``end`` closes the arguments.
    """

    before: str
    before_value: Markup
    after: str
    separator: str = ""
    end: str = ""
    before_json_value: Markup | None = None  # before JSON, if the format has types
    never: tuple[str, ...] = ()  # other texts that end a string, so that no string may contain them
    verbatim: tuple[str, str] | None = None  # for parsers: tags around values that are always strings


@dataclass(frozen=True, slots=True)
class Keywords:
    """Python's keyword arguments, ``city="Paris", days=3)``, with JSON's or Python's literals."""


@dataclass(frozen=True, slots=True)
class Braces:
    """``{city:"Paris",hours:[8,12]}``: keys without quotes, and ``quote`` around strings."""

    quote: str


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements, ``<city>Paris</city>``, and ``<item>`` for list items."""

    prefix: str  # before each tag
    end: str  # closes the arguments


Arguments = JsonArguments | Parameters | Keywords | Braces | Elements


@dataclass(frozen=True, slots=True)
class WholeJson:
    """Forced calls as one JSON value: a list of calls under the key ``list_key``, or a single call without it."""

    arguments: str
    list_key: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """The syntax of calls, as described in this module.

    In free text, a call starts with one of ``openings`` or, at the start of a message, one of ``starts``.
    """

    before: Markup
    after_name: tuple[Markup, ...]  # one text, or alternatives
    after: str = ""
    open: str = ""
    close: str = ""
    separator: str = ""
    arguments: Arguments = field(default_factory=JsonArguments)
    also_before: tuple[str, ...] = ()  # instead of ``before`` at the start of a forced call
    several: bool = True  # one turn may contain several calls
    lead: tuple[str, str] | None = None  # around a function's name at the start of a forced turn
    whole: WholeJson | None = None  # of forced calls, if only their keys distinguish them from a JSON answer
    openings: tuple[str, ...] = ()  # by default the tag at the start of ``open`` or ``before``
    starts: tuple[str, ...] = ()
    by_name: bool = False  # append the function's name and one more character to both, which are ambiguous otherwise
    rest_of_list: bool = False  # further calls follow without an opening, as they do after ``open``
    closing: str = ""  # the tag after calls, for recognition and parsing; by default from these fields

    def __post_init__(self) -> None:
        if not self.openings and not self.starts:
            opening = self.open or self.before
            assert isinstance(opening, str)
            object.__setattr__(self, "openings", (opening.removesuffix('{"name": "').strip().rstrip("["),))
        if not self.closing:
            ends = (self.close, self.after, getattr(self.arguments, "end", ""))
            found = (end.lstrip(" \n]}").rstrip() for end in ends)
            object.__setattr__(self, "closing", next(filter(None, found), ""))

    def occurs_in(self, text: str, name: str, *, space: str = r"\s*") -> bool:
        """Return whether a text contains the start of a call of that function; `space` is a regex for whitespace."""
        after_name = "|".join(_pattern(each, space) for each in self.after_name)
        call = rf"{_pattern(self.before, space)}{re.escape(name)}(?:{after_name})"
        return re.search(rf"{_pattern(self.open, space)}\s*{call}", text) is not None


def _pattern(markup: Markup, space: str) -> str:
    """Return a regex of the markup; `space` "" keeps its white space."""
    found = []
    for part in parts(markup):
        if isinstance(part, re.Pattern):
            found.append(f"(?:{part.pattern})")
        else:
            found.append(space.join(map(re.escape, re.split(r"\s+", part) if space else [part])))
    return "".join(found)


def parts(markup: Markup) -> tuple["str | re.Pattern[str]", ...]:
    return (markup,) if isinstance(markup, str) else markup


def json_calls(open: str, close: str = "", *, key: str = "arguments", **options: Any) -> ToolCallSyntax:  # noqa: A002
    """Return the syntax of ``{"name": ..., "arguments": {...}}`` with a tag before and after each call."""
    return ToolCallSyntax(f'{open}{{"name": "', (f'", "{key}": ',), f"}}{close}", **options)


def json_list(open: str, close: str = "", **options: Any) -> ToolCallSyntax:  # noqa: A002
    """Return the syntax of a JSON list of such objects."""
    return ToolCallSyntax('{"name": "', ('", "arguments": ',), "}", f"{open}[", f"]{close}", ", ", **options)


def python_list(open: str, close: str, *, separator: str = ", ", **options: Any) -> ToolCallSyntax:  # noqa: A002
    """Return the syntax of consecutive Python calls, ``get_weather(city="Paris")``."""
    return ToolCallSyntax("", ("(",), "", open, close, separator, Keywords(), **options)
