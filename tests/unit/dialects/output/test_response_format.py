"""Response formats: their fields, and the constraints of chats. The parser must read each text that is allowed."""

from pathlib import Path
from typing import Any

import pytest

from server.chat.conversation import Tools
from server.dialects.constraints import ConstraintFields, read_response_format
from server.dialects.fields import parse
from server.errors import InvalidRequest
from server.structured.constraint import Constraint
from server.structured.response_format import ANY_OBJECT
from tests.support.yaml_text import loaded
from tests.unit.dialects.builders import RESPONSE_FORMAT, TOOL, accepts, constraint_for, make_model, parse_tools
from tests.unit.formats.parsing import ParsedMessage, parse_text
from tests.unit.structured.builders import WORDS

SCHEMA = {"type": "string"}
UNENFORCEABLE = {"properties": {"a": {"contains": {"type": "null"}}}}


def format_of(**fields: object) -> tuple[str, Any] | None:
    found = read_response_format(parse(ConstraintFields, fields))
    return None if found is None else (found.kind, found.value)


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
def test_each_field_becomes_a_response_format(fields: dict[str, object], expected: object) -> None:
    assert format_of(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"json_schema": SCHEMA, "grammar": "x"}, "grammar"),
        ({"response_format": wrapped(SCHEMA), "grammar": "x"}, "grammar"),
        ({"response_format": wrapped(SCHEMA), "json_schema": SCHEMA}, "json_schema"),
        ({"grammar": 5}, "grammar"),
    ],
)
def test_two_constraints_and_wrong_types_are_rejected(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        format_of(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("response_format", "at"),
    [
        (wrapped(UNENFORCEABLE), "response_format.json_schema.schema"),
        ({"type": "json_schema", "schema": UNENFORCEABLE}, "response_format.schema"),
        ({"type": "json_object", "schema": UNENFORCEABLE}, "response_format.schema"),
    ],
)
def test_an_unenforceable_keyword_is_named_with_its_path(response_format: dict[str, object], at: str) -> None:
    found = read_response_format(parse(ConstraintFields, {"response_format": response_format}))
    assert found is not None
    with pytest.raises(InvalidRequest) as caught:
        found.constraint(WORDS)
    assert caught.value.message.startswith(f"{at}.properties.a: the keyword 'contains'")
    assert caught.value.param == f"{at}.properties.a"


REPLIES = loaded(Path(__file__).with_name("replies.yaml"))
PARTS = ("prompt", "reasoning", "lead", "call")
assert all(reply.keys() <= {*PARTS} for reply in REPLIES.values())
EACH_TEMPLATE = pytest.mark.parametrize(
    ("tags", *PARTS),
    [pytest.param(tags, *(reply.get(part, "") for part in PARTS), id=tags) for tags, reply in REPLIES.items()],
)
AUTO, REQUIRED = (parse_tools([TOOL], choice) for choice in ("auto", "required"))
HERMES, HARMONY = "<tool_call></tool_call><think></think>", "<|channel|>analysis<|message|>"
ANSWER = '{"b": 1}'
INVALID_ANSWER = '{"b": 2}'


def model_of(tags: str) -> Any:
    return make_model(template="{{ messages }}{{ tools }}{# " + tags + " #}", compiles=True)


def constraint_of(tags: str, prompt: str, tools: Tools, **fields: Any) -> Constraint | None:
    return constraint_for(model_of(tags), prompt, tools=tools, **fields)


def parsed(tags: str, prompt: str, text: str) -> ParsedMessage:
    functions = [tool.function for tool in AUTO.tools]
    return parse_text(model_of(tags).template.chat_format().parser(functions, generation_prompt=prompt), text)


@EACH_TEMPLATE
def test_the_answer_after_reasoning_must_match_the_schema(
    tags: str, prompt: str, reasoning: str, lead: str, call: str
) -> None:
    for tools in (Tools(), AUTO):
        rejected = [reasoning + lead + INVALID_ANSWER, *([reasoning + ANSWER] if lead else [])]
        for text, is_valid in ((reasoning + lead + ANSWER, True), *((text, False) for text in rejected)):
            constraint = constraint_of(tags, prompt, tools, response_format=RESPONSE_FORMAT)
            assert accepts(constraint, text) is is_valid
    found = parsed(tags, prompt, reasoning + lead + ANSWER)
    assert (found.content, found.reasoning) == (ANSWER, "Hm." if reasoning else "")


@EACH_TEMPLATE
def test_a_call_may_replace_the_answer_and_is_enforced_if_required(
    tags: str, prompt: str, reasoning: str, lead: str, call: str
) -> None:
    text = reasoning + call
    assert accepts(constraint_of(tags, prompt, AUTO, response_format=RESPONSE_FORMAT), text)
    assert accepts(constraint_of(tags, prompt, REQUIRED), text)
    assert not accepts(constraint_of(tags, prompt, REQUIRED), text.replace("5", '"5"'))
    assert not accepts(constraint_of(tags, prompt, REQUIRED), reasoning + lead + "Hello")
    found = parsed(tags, prompt, text)
    assert (found.calls, found.content, found.reasoning) == ([("f", '{"a": 5}')], "", "Hm." if reasoning else "")


def test_a_grammar_applies_from_the_first_token_unless_the_format_frames_answers() -> None:
    grammar = 'root ::= "<think>a</think>b" | "yes"'
    for text, is_valid in (("<think>a</think>b", True), ("yes", True), ("<think>c</think>yes", False)):
        assert accepts(constraint_of(HERMES, "assistant\n", Tools(), grammar=grammar), text) is is_valid
    text = REPLIES[HARMONY]["reasoning"] + REPLIES[HARMONY]["lead"] + "yes"
    assert accepts(constraint_of(HARMONY, "<|start|>assistant", Tools(), grammar=grammar), text)


def test_reasoning_that_stays_in_the_content_can_not_precede_the_answer() -> None:
    constraint = constraint_of(HERMES, "assistant\n", Tools(), reasoning_format="none", response_format=RESPONSE_FORMAT)
    assert not accepts(constraint, "<think>a</think>" + ANSWER)


@pytest.mark.parametrize("tags", [HERMES, HARMONY])
@pytest.mark.parametrize("tools", [Tools(), AUTO], ids=["without tools", "with tools"])
@pytest.mark.parametrize(
    ("prefilled", "text", "is_valid"),
    [
        ('{"b":', " 1}", True),
        ('{"b":', ' {"b": 1}', False),
        (ANSWER, "", True),
        (ANSWER, ANSWER, False),
        ("```json\n", ANSWER, True),  # text that no valid answer starts with is not constrained
    ],
)
def test_the_reply_must_complete_a_prefilled_answer(
    tags: str, tools: Tools, prefilled: str, text: str, is_valid: bool
) -> None:
    options: dict[str, Any] = {"opens_turn": False, "response_format": RESPONSE_FORMAT}
    constraint = constraint_of(tags, prefilled, tools, prefilled=prefilled, **options)
    assert accepts(constraint, text) is is_valid


def test_a_prefilled_answer_over_64_kib_is_rejected() -> None:
    options: dict[str, Any] = {"opens_turn": False, "response_format": RESPONSE_FORMAT}
    with pytest.raises(InvalidRequest, match="at most 65536") as caught:
        constraint_of("<think></think>", "", Tools(), prefilled=" " * 65537, **options)
    assert caught.value.param == "messages"
