"""GBNF: the language of a grammar is llama.cpp's, and a mistake is named with its line."""

import contextlib
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import InvalidRequest
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, allowed, matches

JSON = r"""
# a small JSON
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null")
object ::= "{" ws ( string ":" ws value ws ( "," ws string ":" ws value ws )* )? "}"
array  ::= "[" ws ( value ws ("," ws value ws)* )? "]"   # trailing comment
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\""
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
        ('root ::= [a-z]+ "a"', ["xa", "aaa"], ["x", "a", "xab"]),
        ('root ::= ("ab" | "a") ("bc" | "c")', ["abbc", "abc", "ac"], ["ab"]),
        ('root ::= "x"{2,3}', ["xx", "xxx"], ["x", "xxxx"]),
        ('root ::= "ab"{2}', ["abab"], ["ab", "ababab", "abb"]),
        ('root ::= "x"{2,}', ["xx", "xxxxx"], ["x"]),
        ('root ::= "x"{0,0} "y"', ["y"], ["xy"]),
        ('root ::= "a"? "b"* "c"+', ["c", "abbc", "bcc"], ["ab", "aac"]),
        ("root ::= [^a-c\\n]+", ["xyz é"], ["a", "x\n"]),
        ("root ::= [a\\]\\-\\\\]+", ["a]-\\"], ["b"]),
        ("root ::= [a-]+", ["-a-"], ["b"]),
        ('root ::= "\\x41\\u00e9\\U0001F600\\t\\""', ['Aé😀\t"'], ["A"]),
        ("root ::= [ぁ-ゟ]+", ["ひらがな"], ["a"]),
        ("root ::= .", ["a", "\n", "é"], ["", "ab"]),
        ("root ::= x-y_1\nx-y_1 ::= y\ny ::= [0-9]", ["7"], ["77"]),
        ('root ::= "a" |\n  "b" # or b\n\n\nz ::= "z"', ["a", "b"], ["z"]),
        ('root ::= ( "a"\n "b"\n | "c" )+', ["abc"], ["a"]),
        ('root ::= e\ne ::= e "+" t | t\nt ::= [0-9]+ | "(" e ")"', ["1+(22+3)", "7"], ["1+", "(1"]),
        ('root ::= "" | "a"', ["", "a"], ["aa"]),
        ('root::="a"\r\n', ["a"], ["b"]),
        (JSON, ['{"a": [1, -2.5e3, true], "b\\n": {}}', "{}"], ["[]", "{a}", '{"a": 1,}']),
    ],
)
def test_a_grammar_matches_exactly_its_language(grammar: str, yes: list[str], no: list[str]) -> None:
    compiled = BYTES.gbnf(grammar)
    for text in yes:
        assert matches(compiled.fork(), text), text
    for text in no:
        assert not matches(compiled.fork(), text), text


_EXPRESSION = st.recursive(
    st.sampled_from(['"a"', '"ab"', '"b"', "[ab]", "[^a]", '""']),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' '.join(parts)})"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"({pair[0]}){pair[1]}"),
        inner.map(lambda part: f"({part}){{1,2}}"),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(_EXPRESSION)
def test_it_agrees_with_python_regular_expressions(expression: str) -> None:
    pattern = re.compile(expression.replace('"', ""), re.VERBOSE)
    try:
        compiled = BYTES.gbnf(f"root ::= {expression}")
    except InvalidRequest as error:
        pytest.fail(error.message)
    for text in map("".join, itertools.chain.from_iterable(itertools.product("ab", repeat=n) for n in range(5))):
        assert matches(compiled.fork(), text) == bool(pattern.fullmatch(text)), text


def test_tokens_can_be_named_by_text_and_by_id_and_excluded() -> None:
    vocab = WordVocab()
    tool = vocab.bos + 3
    constraint = WORDS.gbnf(f'root ::= <tool> "x" !<[{tool}]> <[120]>')
    assert allowed(constraint.mask(), vocab.n_tokens) == {tool}
    constraint.accept(tool)
    constraint.accept(ord("x"))
    assert not constraint.allows(tool)
    assert not constraint.allows(vocab.eos)
    assert constraint.allows(vocab.words.index(b"hello"))
    constraint.accept(vocab.words.index(b"hello"))
    assert constraint.allows(120)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "no rules"),
        ('x ::= "a"', "no 'root' rule"),
        ('root = "a"', "line 1: expected '::=' after 'root'"),
        ('root ::= "a"\n\nb ::= c', "line 3: rule 'c' is not defined"),
        ('root ::= "a', "line 1: the string of line 1 has no closing"),
        ("root ::= [a-", "character class of line 1 has no closing"),
        ('root ::= "a"\n  [b', "line 2: expected a rule name"),
        ('root ::= ("a"\n | ("b")', "expected ')' for the '(' of line 1"),
        ('root ::= "a" )', "expected the end of the rule"),
        ('root ::= "a"{3,1}', "repetition {3,1} is empty"),
        ('root ::= "a"{99999}', "more than 2000"),
        ('root ::= "a"**', "needs parentheses"),
        ("root ::= [z-a]", "range 'z'-'a' is empty"),
        ('root ::= "\\q"', "unknown escape '\\q'"),
        ('root ::= "\\u12"', "expected 4 hex digits"),
        ('root ::= "\\uD800"', "is not a character"),
        ("root ::= <nope>", "'<nope>' is not one token"),
        ("root ::= <[x]>", "is not a token id"),
        ('root ::= "a"\nroot ::= "b"', "rule 'root' is defined twice"),
        ("root ::= root", "no output matches"),
        ("root ::= []", "matches nothing"),
    ],
)
def test_a_mistake_is_named_with_its_line(grammar: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match="failed to parse grammar: ") as caught:
        BYTES.gbnf(grammar)
    assert caught.value.param == "grammar"
    assert message in caught.value.message


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "root ::= " + '"abcdefghij" ' * 5000,
        "root ::= " + "a" * 300_000,
    ],
)
def test_a_hostile_grammar_is_refused(grammar: str) -> None:
    with pytest.raises(InvalidRequest):
        BYTES.gbnf(grammar)


@settings(max_examples=200, deadline=None)
@given(st.text('ro:=t"ab()[]{}|*+?^-\\x<>!#. \n019,', max_size=40))
def test_any_text_compiles_or_is_an_invalid_request(text: str) -> None:
    for grammar in (text, f"root ::= {text}"):
        with contextlib.suppress(InvalidRequest):
            BYTES.gbnf(grammar)
