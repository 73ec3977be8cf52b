"""The input of a custom tool, out of the arguments of the function that it is for the model: ``{"input": "..."}``.

It is given on as it comes, without its escapes.
"""

import json
import re

import pydantic_core

from server.formats.grammar.text_argument import INPUT

_OPENING = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^\\"]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB]..\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL
)
"""Characters and whole escapes, pairs of surrogates together, up to the closing quote."""


class CustomInput:
    """Feed it the arguments' text. ``text``: what the input is so far."""

    __slots__ = ("_begun", "_closed", "_held", "_texts")

    def __init__(self) -> None:
        self._held = ""
        self._begun = False
        self._closed = False
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._texts)

    def feed(self, arguments: str) -> str:
        """More of the arguments; what more that is of the input."""
        if self._closed:
            return ""
        self._held += arguments
        if not self._begun:
            opened = _OPENING.match(self._held)
            if opened is None:
                return ""
            self._begun, self._held = True, self._held[opened.end() :]
        found = _WHOLE.match(self._held)
        end = 0 if found is None else found.end()
        self._closed = self._held[end : end + 1] == '"'
        return self._add(self._held[:end], self._held[end:])

    def finish(self, arguments: str) -> str:
        """All of the `arguments` are there: the input where they were written in another way, or the text as it is."""
        if self._begun:
            return ""
        try:
            given = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
        except ValueError:
            given = None
        value = given.get(INPUT) if isinstance(given, dict) else None
        text = value if isinstance(value, str) else arguments
        self._begun = self._closed = True
        self._texts = [text]
        return text

    def _add(self, written: str, held: str) -> str:
        self._held = held
        try:
            text = str(json.loads(f'"{written}"', strict=False))
        except ValueError:
            text = written  # an escape that JSON does not have
        self._texts.append(text)
        return text


def custom_input(arguments: str) -> str:
    """The input of a call that is complete."""
    given = CustomInput()
    return given.feed(arguments) + given.finish(arguments)


def input_arguments(text: str) -> str:
    """The arguments of a call with that input, as the model has written them."""
    return json.dumps({INPUT: text}, ensure_ascii=False)
