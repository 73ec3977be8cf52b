"""Grammars of custom tools, embedded in a call's grammar as a JSON string or as text up to an end marker."""

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


def standalone(grammar: TextGrammar) -> MatcherConstraint:
    if grammar.syntax == "regex":
        return BYTES.regex(grammar.definition)
    return BYTES.lark(grammar.definition)


def mutated(text: str, rng: random.Random) -> str:
    """Return the text with up to two edits."""
    chars = list(text)
    for _ in range(rng.randint(0, 2)):
        at = rng.randint(0, len(chars))
        chars[at : at + rng.randint(0, 1)] = rng.choice(['a"', "\\", "\n", "\t", "/", "x", "1", " ", "<", "é", ""])
    return "".join(chars)


@pytest.mark.parametrize(("syntax", "definition", "texts"), GRAMMARS)
def test_embedded_grammar_matches_the_same_texts_as_standalone(syntax: str, definition: str, texts: list[str]) -> None:
    grammar, rng = text_grammar(syntax, definition), random.Random(1)
    mutants = dict.fromkeys(mutated(text, rng) for text in texts for _ in range(10))
    for text in [*texts, *mutants]:
        expected = matches(standalone(grammar), text)
        assert matches(in_json(grammar), json.dumps(text, ensure_ascii=False)) == expected, text
        for end in ("\n</value>", "</value>"):
            if end not in text + end[:-1]:
                assert matches(up_to(end, grammar), text + end) == expected, (text, end)


def random_text(constraint: MatcherConstraint, vocab: WordVocab, seed: int) -> str | None:
    """Return random tokens that the masks allow; None if the output is incomplete after 100 tokens."""
    rng, out = random.Random(seed), b""
    for _ in range(100):
        if constraint.finished:
            return out.decode()
        tokens = sorted(allowed(bytes(constraint.mask()), vocab.n_tokens) - vocab.eog)
        assert tokens, f"nothing may follow {out!r}"
        ends = [token for token in tokens if vocab.piece(token, special=False)[:1] in (b'"', b"\n", b"<", b"*")]
        token = rng.choice(ends if ends and rng.random() < 0.3 else tokens)
        assert constraint.allows(token)
        constraint.accept(token)
        out += vocab.piece(token, special=False)
    return None


@pytest.mark.parametrize(("syntax", "definition", "texts"), GRAMMARS)
def test_masks_of_an_embedded_grammar_never_lead_to_a_dead_end(syntax: str, definition: str, texts: list[str]) -> None:
    grammar, vocab = text_grammar(syntax, definition), WordVocab()
    for seed in range(10):
        text = random_text(in_json(grammar, WORDS), vocab, seed)
        assert text is None or matches(standalone(grammar), json.loads(text)), text
        text = random_text(up_to("\n</v>", grammar, WORDS), vocab, seed)
        assert text is None or matches(standalone(grammar), text.removesuffix("\n</v>")), text


def test_embedded_json_text_rejects_unicode_escapes() -> None:
    grammar = text_grammar("regex", "xé\n")
    assert matches(in_json(grammar), '"xé\\n"')
    assert not matches(in_json(grammar), '"x\\u00e9\\n"')


def test_text_that_contains_the_end_marker_is_rejected() -> None:
    grammar = text_grammar("lark", 'start: /[^!]+/ "!"')
    assert matches(up_to("</v>", grammar), "a</w!</v>")
    assert not matches(up_to("</v>", grammar), "a</v>b!</v>")


def test_constraint_is_recreated_from_its_recipe() -> None:
    recipe = in_json(text_grammar("regex", "[ab]+")).recipe
    assert matches(BYTES.recreate(recipe), '"ab"')
    assert not matches(BYTES.recreate(recipe), '"ac"')
