"""`format`: each that the specification names is enforced, every other one is an annotation."""

import json
import warnings

import pytest
from jsonschema import Draft202012Validator

from server.structured.grammar.schema.formats import FORMATS
from tests.unit.structured.builders import BYTES, WORDS, WordVocab, matches, walk
from tests.unit.structured.test_json_schema import ALLOWED


def test_every_format_has_a_case() -> None:
    cases = {case["schema"]["format"] for case in ALLOWED if case["schema"].keys() == {"type", "format"}}
    assert cases == FORMATS.keys()


@pytest.mark.parametrize(
    ("label", "n", "is_host"), [("a" * 63, 1, True), ("a" * 64, 1, False), ("a" * 49, 5, True), ("a" * 50, 5, False)]
)
def test_the_labels_of_a_hostname_and_all_of_it_are_bounded(label: str, n: int, is_host: bool) -> None:
    assert _takes({"type": "string", "format": "hostname"}, ".".join([label] * n)) is is_host


def _takes(schema: object, text: str) -> bool:
    return matches(BYTES.json_schema(schema), json.dumps(text, ensure_ascii=False))


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_model_writes_under_a_format_conforms(name: str) -> None:
    constraint = WORDS.json_schema({"type": "string", "format": name, "maxLength": 200})
    for seed in range(4):
        text = json.loads(walk(constraint.fork(), WordVocab(), seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's `re` warns of what may change its meaning
            assert Draft202012Validator.FORMAT_CHECKER.conforms(text, name), text
    assert matches(BYTES.json_schema({"format": name}), "5")  # it says nothing of other types


@pytest.mark.parametrize("name", ["password", "int32", "color", "", "Date"])
def test_another_format_is_an_annotation(name: str) -> None:
    assert _takes({"type": "string", "format": name}, "x")
