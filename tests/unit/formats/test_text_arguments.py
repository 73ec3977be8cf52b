"""Texts that a client's grammar describes, in the calls of every format: what it allows is read as a text of it."""

import json
import random
import re

import llguidance
import pytest

from server.formats import FORMATS
from server.formats.grammar.call_grammar import calls_lark
from server.formats.parsing.pieces import Piece, ToolCallArguments
from server.formats.parsing.stream_parser import Parser, Reading
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat
from server.structured.grammar.embedded.text_grammar import TextGrammar

BYTES = llguidance.LLTokenizer("byte")
PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
END = "!"
LINES = TextGrammar(
    "lark", 'start: (SIGN | line | "é")+ "!"\nSIGN: "x" | "<" | "\\"" | "\\\\"\nline: /[^!]{0,3}/ "\\n"'
)
SIGNS = TextGrammar("regex", r'[a<"\\\n]{1,20}!?')
FORMS = [(form, calls) for form in FORMATS for calls in (form.forced, *(found for _, found in form.variants))]


def walked(lark: str, chance: random.Random) -> str:
    """A text of the grammar, byte by byte by chance, for preference such as markup and JSON have."""
    matcher = llguidance.LLMatcher(BYTES, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
    out = bytearray()
    while not matcher.is_error() and not (matcher.is_accepting() and chance.random() < 0.5):
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> (byte % 8) & 1]
        if matcher.is_accepting() and not allowed:
            break
        liked = [byte for byte in allowed if byte in (b"!" if len(out) > 200 else b'!<"\\\n/ax\xc3')]
        assert allowed, bytes(out)
        out.append(chance.choice(liked or allowed))
        assert matcher.consume_token(out[-1])
    assert matcher.is_accepting(), matcher.get_error()
    return out.decode(errors="replace")


def arguments_of(form: ToolFormat, text: str) -> str:
    reading = Reading(functions={"patch": PARAMETERS})
    parser = Parser(form.parse, reading, primer=">>>" if form.name == "functionary-v3.2" else "")
    pieces: list[Piece] = [piece for char in text for piece in parser.feed(char)]
    pieces += parser.finish()
    return "".join(piece.text for piece in pieces if isinstance(piece, ToolCallArguments))


@pytest.mark.parametrize(("form", "calls"), FORMS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("grammar", [LINES, SIGNS], ids=["lark", "regex"])
def test_every_call_that_is_allowed_is_read_as_a_text_of_the_grammar(
    form: ToolFormat, calls: ToolCallSyntax, grammar: TextGrammar
) -> None:
    function = {"name": "patch", "description": "", "parameters": PARAMETERS, "text": grammar}
    lark = calls_lark(calls, [function], parallel=False, tags=form.tags)
    wanted = re.compile(r"[^!]*!" if grammar is LINES else r'[a<"\\\n]{1,20}!?')
    for seed in range(3):
        text = walked(lark, random.Random(seed))
        assert wanted.fullmatch(json.loads(arguments_of(form, text))["input"]), text
