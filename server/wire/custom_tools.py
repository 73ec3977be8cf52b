"""OpenAI's custom tools, in chat and Responses: a text instead of arguments, which a grammar may describe.

The model sees a function of one text. Its grammar (Lark or a regex) is shown to it and always enforced, or refused: no
call reaches a client that its grammar does not match (but for one that a limit cut off).
"""

from collections.abc import Mapping
from typing import Any, Literal

from server.constrain.grammar.text_grammar import TextGrammar
from server.conversation.form import Tool
from server.errors import InvalidRequest
from server.formats.grammar.text_argument import INPUT
from server.wire.fields import wrong_type

_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
_LANGUAGES: dict[str, Literal["lark", "regex"]] = {"lark": "lark", "regex": "regex"}
_NAMES = {"lark": "Lark grammar", "regex": "regular expression"}


def custom_tool(name: str, description: str, given: object, path: str) -> Tool:
    """The function of a tool whose ``format`` is `given`, at `path`. Raises `InvalidRequest`."""
    grammar = _grammar(given, path)
    if grammar is None:
        return Tool(name, description, _PARAMETERS, at=path)
    told = f"The {INPUT} matches this {_NAMES[grammar.syntax]}:\n{grammar.definition}"
    return Tool(name, f"{description}\n\n{told}".strip(), _PARAMETERS, at=path, text=grammar)


def _grammar(given: object, path: str) -> TextGrammar | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise wrong_type(path, "an object", given)
    match given.get("type"):
        case "text":
            return None
        case "grammar":
            inner = given.get("grammar", given)  # a chat's form has one more level
            inner, path = (inner, f"{path}.grammar") if inner is not given else (given, path)
        case _:
            raise InvalidRequest(f'{path}.type: must be "text" or "grammar"', f"{path}.type")
    if not isinstance(inner, dict):
        raise wrong_type(path, "an object", inner)
    syntax, definition = inner.get("syntax"), inner.get("definition")
    if not isinstance(syntax, str) or syntax not in _LANGUAGES:
        raise InvalidRequest(f'{path}.syntax: must be "lark" or "regex"', f"{path}.syntax")
    if not isinstance(definition, str) or not definition:
        raise wrong_type(f"{path}.definition", "a grammar", definition)
    grammar = TextGrammar(_LANGUAGES[syntax], definition)
    try:
        grammar.checked()
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}.definition: {error.message}", f"{path}.definition") from None
    return grammar
