"""`format`: each that the specification names is enforced, every other one is an annotation."""

import json
import warnings

import pytest
from jsonschema import Draft202012Validator

from server.structured.grammar.schema.formats import FORMATS
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, matches, walk

EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2024-02-29", "2000-02-29", "1999-12-31", "0004-02-29"],
        ["2023-02-29", "1900-02-29", "2023-02-30", "2023-04-31", "2023-13-01", "0000-01-01", "23-01-01", "2023-1-1"],
    ),
    "date-time": (
        ["2024-02-29T23:59:59Z", "1990-01-02t00:00:00.25+01:30"],
        ["2023-02-29T00:00:00Z", "2023-01-01T24:00:00Z", "2023-01-01T00:00:00", "2023-01-01 00:00:00Z"],
    ),
    "time": (["08:30:06Z", "23:59:59.9-08:00"], ["08:30:06", "24:00:00Z", "08:60:00Z", "8:30:06Z"]),
    "duration": (["P1Y2M3D", "PT36H", "P2W", "P1DT12H"], ["P", "PT", "P1", "1D", "P1D2H", "P1W2D", "P1H"]),
    "email": (
        ["joe.bloggs@example.com", "te~st@a-b.org"],
        ["2962", "a@b@c", ".a@b.c", "a.@b.c", "a..b@c.d", "a@-b.c"],
    ),
    "hostname": (
        ["localhost", "www.example.com", "h0stn4me", "a" * 63, ".".join(["a" * 49] * 5)],
        ["", ".", "a.", "-a", "a-", "a_b", "a b", "a" * 64, ".".join(["a" * 50] * 5), "xn--X"],
    ),
    "idn-email": (["실례@실례.테스트", "joe@example.com"], ["2962", "é", "a@\u3000.b", "a@b@c"]),
    "idn-hostname": (["실례.테스트", "bücher.example", "www.example.com"], ["-a", "〮실례", "a\u3000b", "Ä.de", "☃.net"]),
    "ipv4": (
        ["192.168.0.1", "0.0.0.0", "255.255.255.255"],
        ["256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "0x7f.0.0.1"],
    ),
    "ipv6": (
        ["::1", "::", "1:2:3:4:5:6:7:8", "fe80::a:b", "::ffff:192.168.0.1", "1::8"],
        ["12345::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "::1::", "::ffff:256.1.1.1", "fe80::a%eth1", ":1"],
    ),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "urn:a:b"],
        ["not-an-iri", "/relative", "http://a b", "\\\\a\\b", ":", ""],
    ),
    "iri-reference": (["http://ƒøø.ßår/", "âππ", "#ƒrägmênt", ""], ["\\\\a\\b", "#ƒräg\\mênt", "://", "a b"]),
    "json-pointer": (["", "/foo/0", "/a~1b/c~0d", "//"], ["foo", "/~", "/~2", "#/a"]),
    "regex": (
        ["^[a-z0-9_]{3,16}$", r"\d{4}-\d{2}", "(?:a|b(c)*)+?$", "[^/]+\\.(js|ts)x?", "", "a{2}", "[\\w.-]+@[^@]+"],
        ["[", "*", "\\", "(", ")", "a{3,2}", "a**", "[z-a]", "[]", "^*", "(?<n", "Invalid regex pattern ["],
    ),
    "relative-json-pointer": (["0", "1/foo", "2#", "10/a~1b"], ["/foo", "-1/foo", "01/a", "0##", "1a", ""]),
    "uri": (
        ["http://a.b/c?d=e#f", "mailto:a@b.c", "ldap://[2001:db8::7]/c=GB?one", "urn:x"],
        ["//a/b", "a", "://", "http:// a", "http://a/{b}", ":a", "1http://a", "http://[::1", "http://a/%2"],
    ),
    "uri-reference": (
        ["http://a.b/c", "//a/b", "/a/b", "a/b:c", "#f", "?q", "", "./a:b"],
        ["://", "Invalid URI Reference :", "\\\\a", "#a\\b", "invalid Id", "a[b]", "%"],
    ),
    "uri-template": (
        ["http://a/{b}/{c:1}{?q*,r}", "", "{+path}/here", "a%20b"],
        ["http://a/{", "{}", "}", "{a", "{a b}", "a b", "{=a}", "{a:0}", "%"],
    ),
    "uuid": (
        ["2EB8AA08-aa98-11ea-B4AA-73B441D16380", "00000000-0000-0000-0000-000000000000"],
        [
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
            "2eb8aa08aa9811eab4aa73b441d16380",
            "zeb8aa08-aa98-11ea-b4aa-73b441d16380",
        ],
    ),
}


def test_every_format_has_examples() -> None:
    assert EXAMPLES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_format_of_the_specification_is_enforced(name: str) -> None:
    valid, invalid = EXAMPLES[name]
    schema = {"type": "string", "format": name}
    refused = [text for text in valid if not _takes(schema, text)]
    accepted = [text for text in invalid if _takes(schema, text)]
    assert (refused, accepted) == ([], [])
    assert matches(BYTES.json_schema({"format": name}), "5")  # it says nothing of other types


def _takes(schema: object, text: str) -> bool:
    return matches(BYTES.json_schema(schema), json.dumps(text, ensure_ascii=False))


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_model_writes_under_a_format_conforms(name: str) -> None:
    constraint = WORDS.json_schema({"type": "string", "format": name, "maxLength": 200})
    for seed in range(4):
        text = json.loads(walk(constraint.fork(), WordVocab(), seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's `re` warns of what may change its meaning
            assert Draft202012Validator.FORMAT_CHECKER.conforms(text, name), text


def test_older_drafts_have_the_same_formats() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "string", "format": "iri"}
    assert not _takes(schema, "not-an-iri")


def test_a_format_holds_beside_patterns_lengths_and_named_values() -> None:
    schema = {"format": "uri-reference", "pattern": "^a", "maxLength": 3}
    assert [_takes(schema, text) for text in ("a/b", "a b", "b/a", "a/bc")] == [True, False, False, False]
    schema = {"format": "date", "enum": ["2023-02-29", "2024-02-29"]}
    assert [_takes(schema, text) for text in ("2024-02-29", "2023-02-29")] == [True, False]


def test_an_email_may_have_a_pattern_and_a_length_of_its_own() -> None:
    schema = {
        "format": "email",
        "pattern": r"^\w+([.-]?\w+)*@\w+([.-]?\w+)*(\.\w{2,3})+$",
        "maxLength": 255,
        "minLength": 3,
    }
    assert [_takes(schema, text) for text in ("joe@example.com", "joe@example")] == [True, False]


@pytest.mark.parametrize("name", ["password", "int32", "color", "", "Date"])
def test_another_format_is_an_annotation(name: str) -> None:
    assert _takes({"type": "string", "format": name}, "x")
