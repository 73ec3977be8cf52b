"""Clients' grammars of texts inside other grammars: the same texts, in a JSON string or up to an end."""

import json
import random
from functools import cache

import llguidance
import pytest

from server.errors import InvalidRequest
from server.structured.grammar.embedded import lark_tree
from server.structured.grammar.embedded.json_escapes import between_slashes
from server.structured.grammar.embedded.text_grammar import TextGrammar, ended, in_json

BYTES = llguidance.LLTokenizer("byte")
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
    ("lark", 'start: "a"i /[^b]*/s? ("x".."z")~2..3 [b]\nb: "q" | \n  | "\\"" "\\n"', ["Axy", 'Acc\nyzz"\n', "axyzq"]),
    ("lark", 'start: (a | b){2}\na: /x*/\nb: "\\n"+ | "\\""?', ["xx", "x\n", "\n\n", 'x"', "\n\n\n", ""]),
    ("regex", r'^[\w\s"]+\d{2,3}$', ['a b"\n12', "ab1", "\t123"]),
    ("regex", r'(?i:ab\n)c[^"\d]*|\\[\]\\\-"/]+', ["AB\nc", "ab\ncx\né", '\\]"/-', "AB\\nc"]),
    ("regex", r"\S+ \D \W[[:space:][:alpha:]]\p{L}?\P{L}", ['a" " \\\tb\\', "aa b -a1"]),
    ("regex", "SELECT .+ FROM [a-z/]+", ["SELECT a<b FROM x/y", 'SELECT " FROM </v']),
]


@cache
def compiled(lark: str) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(BYTES, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), (lark, matcher.get_error())
    return matcher


def matches(lark: str, text: str) -> bool:
    matcher = compiled(lark).deep_copy()
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def lark_of(grammar: TextGrammar) -> str:
    """The grammar by itself."""
    if grammar.syntax == "lark":
        return grammar.definition
    return f"start: /{between_slashes(grammar.definition.removeprefix('^').removesuffix('$'))}/"


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
    grammar = TextGrammar("lark" if syntax == "lark" else "regex", definition)
    own, chance = lark_of(grammar), random.Random(1)
    inside = in_json(grammar, "g")
    places: list[tuple[str, str | None]] = [(f'start: "\\"" {inside.start} "\\""\n{inside.lines}', None)]
    end: str | None
    for end in ("\n</value>", "</value>"):
        up_to = ended(grammar, "g", end, [end])
        places.append((f"start: {up_to.start}\n{up_to.lines}", end))
    tried = dict.fromkeys(variants(text, chance) for text in texts for _ in range(40))
    for text in [*texts, *tried]:
        wanted = matches(own, text)
        for lark, end in places:
            if end is None:
                assert matches(lark, json.dumps(text, ensure_ascii=False)) == wanted, (text, lark)
            elif end not in text + end[:-1]:
                assert matches(lark, text + end) == wanted, (text, end, lark)


def test_a_character_stands_in_json_in_one_way_only() -> None:
    inside = in_json(TextGrammar("regex", r"(?s:.)"), "g")
    lark = f'start: "\\"" {inside.start} "\\""\n{inside.lines}'
    assert matches(lark, '"\\n"')
    assert not matches(lark, '"\\u000a"')
    assert not matches(lark, '"\\u0001"')


@pytest.mark.parametrize(
    ("regex", "escaped"),
    [
        (".+", True),
        ("[^a]+", True),
        (r"[\s\S]+", True),
        ("[^[:alpha:]é]+", False),
        (r"\w+", False),
        (r"[^\d]+", False),
        ("[a-zé]+", False),
        ("é—😀", True),
        (r"[\x{80}-\x{10ffff}]+", True),
    ],
)
def test_characters_beyond_ascii_may_be_escaped_where_all_of_them_may_come(regex: str, escaped: bool) -> None:
    inside = in_json(TextGrammar("lark", f'start: /{regex}/ "\\n"?'), "g")
    lark = f'start: "\\"" {inside.start} "\\""\n{inside.lines}'
    assert matches(lark, json.dumps("é—😀")) == escaped
    assert matches(lark, json.dumps("é—😀\n")) == escaped
    assert not matches(lark, '"\\ud83d"')


def test_a_text_with_an_end_in_it_is_kept_out() -> None:
    up_to = ended(TextGrammar("lark", 'start: /[^!]+/ "!"'), "g", "</v>", ["</v>"])
    lark = f"start: {up_to.start}\n{up_to.lines}"
    assert matches(lark, "a</w!</v>")
    assert not matches(lark, "a</v>b!</v>")


@pytest.mark.parametrize("name", lark_tree.COMMON)
def test_imported_terminals_are_llguidances(name: str) -> None:
    texts = ["1", "-1", "+1.5", "1.", "1e5", ".5", "1.e-3", "ab", "Ab_1", "_x", "  \t", "\n", "\r\n", "\r", '"a\\"b"']
    texts += [
        '"a\nb"',
        '"a\\\nb"',
        "#x",
        "//x\n",
        "//x",
        "/* a\n* */",
        "/**/",
        "/***/",
        "/* */ */",
        "--x",
        "\f",
        "é",
        "e5",
    ]
    theirs, ours = f"%import common.{name}\nstart: {name}\n", f"start: /{between_slashes(lark_tree.COMMON[name])}/\n"
    assert [matches(ours, text) for text in texts] == [matches(theirs, text) for text in texts]


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("", "no rule 'start'"),
        ("start: a", "no 'a'"),
        ("start: %json {}", "%json can't be enforced"),
        ("start: <think>", "can't be read"),
        ('start: "a"\nstart: "b"', "line 2: 'start' is defined twice"),
        ('start[lazy]: "a"', "attributes"),
        ('start: A\nA.2: "a"', "priorities"),
        ('start: ("a"', "can't be read"),
        ("start: " + "(" * 101 + '"a"' + ")" * 101, "nested too deeply"),
        ("%import python.NAME\nstart: NAME", "can't be imported"),
        ("%declare A\nstart: A", "%declare"),
        ("start: /(?=a)b/", "look-around"),
        (r"start: /\bab/", "word boundaries"),
        ("start: /a*?/", "lazy"),
        ("start: /a^b/", "anchors"),
        ('start: a\na: a "x"', "matches no text"),
        ('start: A\nA: "x" A', "can't use 'A'"),
        ("start: A\nA: b\nb: /x/", "can't use 'b'"),
        ('start: "x"~101 a\na: "y"', "more than 100 repetitions"),
        ("start: " + '"a" ' * 201, "more than 200 parts"),
        (
            "start: A\n" + "".join(f"{'A' * n}: {'A' * n}A {'A' * n}A\n" for n in range(1, 40)) + f'{"A" * 40}: "x"',
            "too large",
        ),
        ('start: "x"~3..2', "at least 3 and at most 2 repetitions"),
        (r"start: /\UFFFFFFFF/", "no character"),
        ("start: " + " | ".join(f'"{n}"' for n in range(9000)), "characters"),
        ("start: " + "a|" * 10_000 + 'a\na: "x"', "more than 10000 parts"),
        (f"start: A\nA: {'B ' * 200}\nB: {'C ' * 200}\nC: {'/x/ ' * 200}", "too large"),
        ("start: A+\nA: /" + '[a"]?' * 2000 + "/", "may be empty"),
        ("start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(400)) + 'a400: "x"', "nested too deeply"),
    ],
    ids=lambda value: value[:30],
)
def test_what_can_not_be_enforced_is_said(definition: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said.replace("(", r"\(")):
        in_json(TextGrammar("lark", definition), "g")


@pytest.mark.parametrize(
    "definition",
    [
        "(a",
        "a)",
        "[a",
        "a{2}{3}",
        "\\",
        "(?x) a",
        "[a--b]",
        "*a",
        "a\\z",
        "[[:nothing:]]",
        r"\x{110000}",
        r"\UFFFFFFFF",
        r"[a-\x{FFFFFF}]",
        r"\x{d800}",
        "a{1%s}" % ("0" * 5000),
    ],
)
def test_a_regex_that_can_not_be_enforced_is_said(definition: str) -> None:
    with pytest.raises(InvalidRequest, match="can't be enforced in a tool's input"):
        TextGrammar("regex", definition).checked()


def test_what_is_written_grows_with_the_grammar() -> None:
    """Many parts in a row, equal ones and ones repeated, are rules of a few parts."""
    for definition in (
        "start: " + f"({'a ' * 200})" * 40 + '\na: "x" | /"?/',
        'start: ((((a~100)~100)~100)~100)~100\na: "x" | /"?/',
        'start: ((a~0..100)~0..100)~0..100\na: "x" | /"?/',
        "start: a0\n" + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(60)) + 'a60: "x"',
        "start: A0\n" + "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(9)) + 'A9: "x"',
    ):
        assert len(in_json(TextGrammar("lark", definition), "g").lines) < 250_000
    doubled = "start: A0\n" + "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(60)) + 'A60: "x"'
    assert len(ended(TextGrammar("lark", doubled), "g", "", ("<",)).lines) < 20_000
    with pytest.raises(InvalidRequest, match="too many ways to end"):
        ended(TextGrammar("lark", "start: " + f"({'A ' * 200})" * 10 + "\nA: /x*/"), "g", "</x>")
