"""Short texts that a regular expression matches."""

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any

parser, sre = import_module("re._parser"), import_module("re._constants")  # not in typeshed
MAX_EXAMPLES = 50  # per pattern
# 1 precedes 0, because Python's dates, and therefore `jsonschema`, have no year 0000.
_CHARACTERS = "a1A" + "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in 'a1A"\\')
_CATEGORIES = {
    sre.CATEGORY_DIGIT: re.compile(r"\d"),
    sre.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    sre.CATEGORY_SPACE: re.compile(r"\s"),
    sre.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    sre.CATEGORY_WORD: re.compile(r"\w"),
    sre.CATEGORY_NOT_WORD: re.compile(r"\W"),
}


def examples(pattern: str) -> list[str]:
    """Return texts that match `pattern` with the fewest repetitions, one per alternative, at most `MAX_EXAMPLES`.

    Returns none for a pattern that Python cannot parse. Look-around and back-references are ignored, so not every text
    must match.
    """
    try:
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return []
    return list(dict.fromkeys(islice(_texts(list(parsed)), MAX_EXAMPLES)))


def _texts(parts: list[tuple[Any, Any]]) -> Iterator[str]:
    if not parts:
        yield ""
        return
    for first in islice(_texts_of(*parts[0]), MAX_EXAMPLES):
        for rest in _texts(parts[1:]):
            yield first + rest


def _texts_of(kind: Any, value: Any) -> Iterator[str]:
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, _, repeated = value
        for text in _texts(list(repeated)) if least else ("",):
            yield text * least
    elif kind is sre.BRANCH:
        for alternative in value[1]:
            yield from _texts(list(alternative))
    elif kind is sre.SUBPATTERN:
        yield from _texts(list(value[3]))
    elif kind is sre.LITERAL:
        yield chr(value)
    elif kind in (sre.ANY, sre.NOT_LITERAL, sre.IN):
        found = next((char for char in _CHARACTERS if _matches(char, kind, value)), None)
        if found is not None:
            yield found
    else:
        yield ""


def _matches(char: str, kind: Any, value: Any) -> bool:
    """Return whether a character matches an item of a pattern."""
    if kind is sre.IN:
        negated = value[0][0] is sre.NEGATE
        return negated != any(_matches(char, *item) for item in (value[1:] if negated else value))
    if kind is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is sre.CATEGORY:
        return _CATEGORIES[value].match(char) is not None
    if kind is sre.NOT_LITERAL:
        return bool(ord(char) != value)
    return kind is sre.ANY or bool(ord(char) == value)
