from typing import Any

import pytest

from server.dialects.constraints import ConstraintFields, read_shape
from server.dialects.fields import parse
from server.errors import InvalidRequest
from server.structured.response_format import ANY_OBJECT
from tests.unit.dialects.builders import FakeCompiler
from tests.unit.structured.builders import WORDS

SCHEMA = {"type": "string"}
ODD = {"properties": {"a": {"contains": {"type": "null"}}}}


def compiled(**fields: object) -> tuple[str, Any] | None:
    compiler: Any = FakeCompiler()
    shape = read_shape(parse(ConstraintFields, fields))
    made: Any = None if shape is None else shape.constraint(compiler)
    return None if made is None else (made.kind, made.source)


def wrapped(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None}, None),
        ({"grammar": ""}, None),
        ({"response_format": {"type": "json_object"}}, ("json_schema", ANY_OBJECT)),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ("json_schema", SCHEMA)),
        ({"response_format": wrapped(SCHEMA)}, ("json_schema", SCHEMA)),
        ({"response_format": wrapped({})}, ("json_schema", ANY_OBJECT)),
        ({"response_format": {"type": "json_schema"}}, ("json_schema", ANY_OBJECT)),
        ({"json_schema": SCHEMA}, ("json_schema", SCHEMA)),
        ({"json_schema": {}}, ("json_schema", ANY_OBJECT)),
        ({"json_schema": SCHEMA, "response_format": {"type": "json_object"}}, ("json_schema", SCHEMA)),
        ({"grammar": 'root ::= "a"'}, ("gbnf", 'root ::= "a"')),
    ],
)
def test_each_form_becomes_its_constraint(fields: dict[str, object], expected: object) -> None:
    assert compiled(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {"type": "sound", "x": 1}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format.json_schema"),
        ({"response_format": wrapped([1])}, "response_format.json_schema.schema"),
        ({"json_schema": [1]}, "json_schema"),
        ({"json_schema": SCHEMA, "grammar": "x"}, "grammar"),
        ({"response_format": wrapped(SCHEMA), "grammar": "x"}, "grammar"),
        ({"response_format": wrapped(SCHEMA), "json_schema": SCHEMA}, "json_schema"),
        ({"grammar": 5}, "grammar"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiled(**fields)
    assert caught.value.param == named


@pytest.mark.parametrize(
    ("form", "at"),
    [
        (wrapped(ODD), "response_format.json_schema.schema"),
        ({"type": "json_schema", "schema": ODD}, "response_format.schema"),
        ({"type": "json_object", "schema": ODD}, "response_format.schema"),
    ],
)
def test_what_no_grammar_can_keep_is_named_where_it_stands(form: dict[str, object], at: str) -> None:
    shape = read_shape(parse(ConstraintFields, {"response_format": form}))
    assert shape is not None
    with pytest.raises(InvalidRequest) as caught:
        shape.constraint(WORDS)
    assert caught.value.message.startswith(f"{at}.properties.a: the keyword 'contains'")
    assert caught.value.param == f"{at}.properties.a"
