"""Clients' grammars of texts inside the grammar of a call: the same texts, in a JSON string or up to an end marker."""

import json
import random

import pytest

from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.limits import MAX_CALLS_CHARS
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.text_grammar import TextGrammar
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, allowed, matches

PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
update_hunk: "*** Update File: " filename LF (change_context | change_line)+
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF

%import common.LF
"""
SUM = 'start: sum\nsum: term (("+" | "-") term)*\nterm: NUMBER | "(" sum ")"\n%import common (NUMBER, WS)\n%ignore WS\n'
GRAMMARS = [
    ("lark", PATCH, ['*** Begin Patch\n*** Add File: a\n+x"y\\\n*** End Patch\n']),
    ("lark", PATCH, ["*** Begin Patch\n*** Update File: ü.py\n@@ def\n-a\tb\n+</value>c\n*** End Patch"]),
    ("lark", SUM, ["1 + 2", "(1.5e3-4) ", "1 +", "1\n+\t2\n"]),
    ("lark", "start: /.+/", ["abc", 'a"b', "a\nb", "a</value>b", "x\\", "", "x</v"]),
    ("lark", 'start: (a | b){2}\na: /x*/\nb: "\\n"+ | "\\""?', ["xx", "x\n", "\n\n", 'x"', "\n\n\n", ""]),
    ("regex", r'^[\w\s"]+\d{2,3}$', ['a b"\n12', "ab1", "\t123"]),
    ("regex", r"\S+ \D \W[[:space:][:alpha:]]\p{L}?\P{L}", ['a" " \\\tb\\', "aa b -a1"]),
    ("regex", "SELECT .+ FROM [a-z/]+", ["SELECT a<b FROM x/y", 'SELECT " FROM </v']),
]


def text_grammar(syntax: str, definition: str) -> TextGrammar:
    return TextGrammar("lark" if syntax == "lark" else "regex", definition)


def in_json(grammar: TextGrammar, compiler: GrammarCompiler = BYTES) -> MatcherConstraint:
    return compiler.lark(f'start: "\\"" {grammar.in_json()} "\\""', max_chars=MAX_CALLS_CHARS)


def up_to(end: str, grammar: TextGrammar, compiler: GrammarCompiler = BYTES) -> MatcherConstraint:
    return compiler.lark(f"start: {grammar.up_to(end, [end])} {json.dumps(end)}", max_chars=MAX_CALLS_CHARS)


def alone(grammar: TextGrammar) -> MatcherConstraint:
    if grammar.syntax == "regex":
        return BYTES.regex(grammar.definition)
    return BYTES.lark(grammar.definition)


def variants(text: str, chance: random.Random) -> str:
    """The text with a character or two changed."""
    chars = list(text)
    for _ in range(chance.randint(0, 2)):
        place = chance.randint(0, len(chars))
        chars[place : place + chance.randint(0, 1)] = chance.choice(
            ['a"', "\\", "\n", "\t", "/", "x", "1", " ", "<", "é", ""]
        )
    return "".join(chars)


@pytest.mark.parametrize(("syntax", "definition", "texts"), GRAMMARS)
def test_the_same_texts_match(syntax: str, definition: str, texts: list[str]) -> None:
    grammar, chance = text_grammar(syntax, definition), random.Random(1)
    tried = dict.fromkeys(variants(text, chance) for text in texts for _ in range(10))
    for text in [*texts, *tried]:
        wanted = matches(alone(grammar), text)
        assert matches(in_json(grammar), json.dumps(text, ensure_ascii=False)) == wanted, text
        for end in ("\n</value>", "</value>"):
            if end not in text + end[:-1]:
                assert matches(up_to(end, grammar), text + end) == wanted, (text, end)


def walked(made: MatcherConstraint, vocab: WordVocab, seed: int) -> str | None:
    """Return random tokens by the masks, None for an output that is not complete after 100 of them."""
    chance, out = random.Random(seed), b""
    for _ in range(100):
        if made.finished:
            return out.decode()
        tokens = sorted(allowed(bytes(made.mask()), vocab.n_tokens) - vocab.eog)
        assert tokens, f"nothing may follow {out!r}"
        ends = [token for token in tokens if vocab.piece(token, special=False)[:1] in (b'"', b"\n", b"<", b"*")]
        token = chance.choice(ends if ends and chance.random() < 0.3 else tokens)
        assert made.allows(token)
        made.accept(token)
        out += vocab.piece(token, special=False)
    return None


@pytest.mark.parametrize(("syntax", "definition", "texts"), GRAMMARS)
def test_masks_never_lead_to_a_dead_end(syntax: str, definition: str, texts: list[str]) -> None:
    grammar, vocab = text_grammar(syntax, definition), WordVocab()
    for seed in range(10):
        written = walked(in_json(grammar, WORDS), vocab, seed)
        assert written is None or matches(alone(grammar), json.loads(written)), written
        written = walked(up_to("\n</v>", grammar, WORDS), vocab, seed)
        assert written is None or matches(alone(grammar), written.removesuffix("\n</v>")), written


def test_characters_are_not_escaped_by_their_code_points() -> None:
    grammar = text_grammar("regex", "xé\n")
    assert matches(in_json(grammar), '"xé\\n"')
    assert not matches(in_json(grammar), '"x\\u00e9\\n"')


def test_a_text_with_an_end_in_it_is_kept_out() -> None:
    grammar = text_grammar("lark", 'start: /[^!]+/ "!"')
    assert matches(up_to("</v>", grammar), "a</w!</v>")
    assert not matches(up_to("</v>", grammar), "a</v>b!</v>")


def test_a_constraint_can_be_made_again_from_its_recipe() -> None:
    made = in_json(text_grammar("regex", "[ab]+"))
    assert matches(BYTES.recreate(made.recipe), '"ab"')
    assert not matches(BYTES.recreate(made.recipe), '"ac"')
