"""Texts that a client's grammar describes, in the calls of every format: what it allows is read as a text of it."""

import json
import random
import re

import pytest

from server.formats import FORMATS
from server.formats.grammar.call_grammar import calls_lark
from server.formats.grammar.lark_text import LarkText
from server.formats.parsing.pieces import Piece, ToolCallArguments
from server.formats.parsing.stream_parser import Reading, StreamParser
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat
from server.structured.grammar.limits import MAX_CALLS_CHARS
from server.structured.text_grammar import TextGrammar
from tests.unit.structured.builders import BYTES

PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
END = "!"
LINES = TextGrammar(
    "lark", 'start: (SIGN | line | "é")+ "!"\nSIGN: "x" | "<" | "\\"" | "\\\\"\nline: /[^!]{0,3}/ "\\n"'
)
SIGNS = TextGrammar("regex", r'[a<"\\\n]{1,20}!?')
FORMS = [(form, calls) for form in FORMATS for calls in (form.syntax, *(found for _, found in form.variants))]


def walked(lark: str, chance: random.Random) -> str:
    """A text of the grammar, byte by byte by chance, for preference such as markup and JSON have."""
    made, out = BYTES.lark(lark, max_chars=MAX_CALLS_CHARS), bytearray()
    while not (made.complete and chance.random() < 0.5):
        mask = bytes(made.mask())
        choices = [byte for byte in range(256) if mask[byte // 8] >> (byte % 8) & 1]
        if made.complete and not choices:
            break
        liked = [byte for byte in choices if byte in (b"!" if len(out) > 200 else b'!<"\\\n/ax\xc3')]
        assert choices, bytes(out)
        out.append(chance.choice(liked or choices))
        assert made.allows(out[-1])
        made.accept(out[-1])
    return out.decode(errors="replace")


def arguments_of(form: ToolFormat, text: str) -> str:
    reading = Reading(functions={"patch": PARAMETERS})
    parser = StreamParser(form.parse, reading, primer=">>>" if form.name == "functionary-v3.2" else "")
    pieces: list[Piece] = [piece for char in text for piece in parser.feed(char)]
    pieces += parser.finish()
    return "".join(piece.text for piece in pieces if isinstance(piece, ToolCallArguments))


@pytest.mark.parametrize(("form", "calls"), FORMS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("grammar", [LINES, SIGNS], ids=["lark", "regex"])
def test_every_call_that_is_allowed_is_read_as_a_text_of_the_grammar(
    form: ToolFormat, calls: ToolCallSyntax, grammar: TextGrammar
) -> None:
    function = {"name": "patch", "description": "", "parameters": PARAMETERS, "text": grammar}
    lark = calls_lark(calls, [function], LarkText(), parallel=False)
    wanted = re.compile(r"[^!]*!" if grammar is LINES else r'[a<"\\\n]{1,20}!?')
    for seed in range(3):
        text = walked(lark, random.Random(seed))
        assert wanted.fullmatch(json.loads(arguments_of(form, text))["input"]), text
