"""Constraints of bodies, and of chats in formats with markup: what they let pass, the parser reads."""

from pathlib import Path
from typing import Any

import pytest

from server.chat.conversation import Tools
from server.dialects.constraints import ConstraintFields, read_shape
from server.dialects.fields import parse
from server.errors import InvalidRequest
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.response_format import ANY_OBJECT
from tests.support.yaml_text import loaded
from tests.unit.dialects.builders import answer_of, make_model
from tests.unit.dialects.chat.test_chat_output import FORMAT, accepts, choosing
from tests.unit.formats.reading import Read, read
from tests.unit.structured.builders import WORDS

SCHEMA = {"type": "string"}
ODD = {"properties": {"a": {"contains": {"type": "null"}}}}


def shape_of(**fields: object) -> tuple[str, Any] | None:
    shape = read_shape(parse(ConstraintFields, fields))
    return None if shape is None else (shape.kind, shape.value)


def wrapped(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None}, None),
        ({"grammar": ""}, None),
        ({"response_format": {"type": "json_object"}}, ("schema", ANY_OBJECT)),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, ("schema", SCHEMA)),
        ({"response_format": wrapped(SCHEMA)}, ("schema", SCHEMA)),
        ({"response_format": wrapped({})}, ("schema", ANY_OBJECT)),
        ({"response_format": {"type": "json_schema"}}, ("schema", ANY_OBJECT)),
        ({"json_schema": SCHEMA}, ("schema", SCHEMA)),
        ({"json_schema": {}}, ("schema", ANY_OBJECT)),
        ({"json_schema": SCHEMA, "response_format": {"type": "json_object"}}, ("schema", SCHEMA)),
        ({"grammar": 'root ::= "a"'}, ("gbnf", 'root ::= "a"')),
    ],
)
def test_each_form_becomes_its_constraint(fields: dict[str, object], expected: object) -> None:
    assert shape_of(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"json_schema": SCHEMA, "grammar": "x"}, "grammar"),
        ({"response_format": wrapped(SCHEMA), "grammar": "x"}, "grammar"),
        ({"response_format": wrapped(SCHEMA), "json_schema": SCHEMA}, "json_schema"),
        ({"grammar": 5}, "grammar"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        shape_of(**fields)
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


TURNS = loaded(Path(__file__).with_name("turns.yaml"))
PARTS = ("prompt", "reasoning", "lead", "call")
assert all(turn.keys() <= {*PARTS} for turn in TURNS.values())
CASES = [pytest.param(signs, *(turn.get(part, "") for part in PARTS), id=signs) for signs, turn in TURNS.items()]
ANSWER = '{"b": 1}'
OTHER = '{"b": 2}'


def model_of(signs: str) -> Any:
    model: Any = make_model(template="{{ messages }}{{ tools }}{# " + signs + " #}")
    model.grammar = GrammarCompiler(model.vocab)
    return model


def made(signs: str, prompt: str, tools: Tools, **fields: Any) -> Constraint | None:
    return answer_of(model_of(signs), prompt, tools=tools, **fields)


def said(signs: str, prompt: str, text: str) -> Read:
    functions = [tool.function for tool in choosing("auto").tools]
    return read(model_of(signs).template.chat_format().parser(functions, generation_prompt=prompt), text)


@pytest.mark.parametrize(("signs", "prompt", "thoughts", "lead", "call"), CASES)
def test_a_schema_holds_behind_thoughts_and_markup(
    signs: str, prompt: str, thoughts: str, lead: str, call: str
) -> None:
    for tools in (Tools(), choosing("auto")):
        answer = made(signs, prompt, tools, response_format=FORMAT)
        assert accepts(answer, thoughts + lead + ANSWER)
        assert not accepts(made(signs, prompt, tools, response_format=FORMAT), thoughts + lead + OTHER)
        if lead:
            assert not accepts(made(signs, prompt, tools, response_format=FORMAT), thoughts + ANSWER)
    found = said(signs, prompt, thoughts + lead + ANSWER)
    assert (found.content, found.reasoning) == (ANSWER, "Hm." if thoughts else "")


@pytest.mark.parametrize(("signs", "prompt", "thoughts", "lead", "call"), CASES)
def test_a_call_may_come_instead_or_must(signs: str, prompt: str, thoughts: str, lead: str, call: str) -> None:
    text = thoughts + call
    assert accepts(made(signs, prompt, choosing("auto"), response_format=FORMAT), text)
    assert accepts(made(signs, prompt, choosing("required")), text)
    assert not accepts(made(signs, prompt, choosing("required")), text.replace("5", '"5"'))
    assert not accepts(made(signs, prompt, choosing("required")), thoughts + lead + "Hello")
    found = said(signs, prompt, text)
    assert (found.calls, found.content, found.reasoning) == ([("f", '{"a": 5}')], "", "Hm." if thoughts else "")


def test_a_grammar_of_ones_own_holds_from_the_first_token_on_where_an_answer_has_no_markup() -> None:
    plain, framed = "<tool_call></tool_call><think></think>", "<|channel|>analysis<|message|>"
    grammar = 'root ::= "<think>a</think>b" | "yes"'
    for text, fits in (("<think>a</think>b", True), ("yes", True), ("<think>c</think>yes", False)):
        assert accepts(made(plain, "assistant\n", Tools(), grammar=grammar), text) is fits
    text = TURNS[framed]["reasoning"] + TURNS[framed]["lead"] + "yes"
    assert accepts(made(framed, "<|start|>assistant", Tools(), grammar=grammar), text)


def test_where_thoughts_stay_in_the_content_none_come_before_a_schema() -> None:
    model = model_of("<tool_call></tool_call><think></think>")
    answer = answer_of(model, "assistant\n", reasoning_format="none", response_format=FORMAT)
    assert not accepts(answer, "<think>a</think>" + ANSWER)


@pytest.mark.parametrize("signs", ["<tool_call></tool_call><think></think>", "<|channel|>analysis<|message|>"])
def test_a_json_text_that_the_prompt_has_begun_is_gone_on_with(signs: str) -> None:
    for tools in (Tools(), choosing("auto")):
        for begun, rest, fits in (
            ('{"b":', " 1}", True),
            ('{"b":', ' {"b": 1}', False),
            (ANSWER, "", True),
            (ANSWER, ANSWER, False),
            ("```json\n", ANSWER, True),  # what is no beginning of it is none of its business
        ):
            answer = answer_of(
                model_of(signs), begun, tools=tools, opens=False, prefilled=begun, response_format=FORMAT
            )
            assert accepts(answer, rest) is fits


def test_a_very_long_beginning_is_refused() -> None:
    model = model_of("<think></think>")
    with pytest.raises(InvalidRequest, match="at most 65536") as caught:
        answer_of(model, opens=False, prefilled=" " * 65537, response_format=FORMAT)
    assert caught.value.param == "messages"
