from typing import Any

import pytest

from server.chat.prepare import prompt_of
from server.dialects.responses.parse import ResponseRequest, parse_response
from server.errors import InvalidRequest
from server.structured.text_grammar import TextGrammar
from tests.unit.dialects.builders import make_model

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}


def read(**fields: Any) -> ResponseRequest:
    return parse_response({"input": "hi", **fields})


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, (False, 0)),
        ({"include": ["message.output_text.logprobs"]}, (True, 0)),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 4}, (True, 4)),
        ({"top_logprobs": 4}, (True, 4)),
        ({"top_logprobs": 0}, (False, 0)),
        ({"include": ["reasoning.encrypted_content"]}, (False, 0)),
    ],
)
def test_log_probabilities_come_where_they_are_asked_for(fields: dict[str, Any], wanted: tuple[Any, Any]) -> None:
    (request,) = read(**fields).generation(make_model()).requests
    assert (request.want_logprobs, request.n_probs) == wanted


def test_a_choice_among_tools_that_are_all_left_out_asks_for_nothing() -> None:
    asked = read(tools=[{"type": "web_search"}], tool_choice="required")
    assert asked.conversation.tools.choice == "auto"
    assert asked.warnings[-1].startswith("tool_choice is ignored: ")


NAMESPACE = {"type": "namespace", "name": "n", "description": "About n.", "tools": [TOOL, {**TOOL, "name": "g"}]}


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("any", ("required", "", ["f", "n__f", "n__g"])),
        ({"type": "function", "name": "g"}, ("required", "n__g", ["f", "n__f", "n__g"])),
        ({"type": "function", "name": "f", "namespace": "n"}, ("required", "n__f", ["f", "n__f", "n__g"])),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]}, ("auto", "", ["n__g"])),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "n"}]},
            ("required", "", ["n__f", "n__g"]),
        ),
        ({"type": "allowed_tools", "tools": [{"type": "web_search"}]}, ("auto", "", [])),
    ],
    ids=str,
)
def test_which_tools_may_or_must_be_called(choice: object, wanted: tuple[str, str, list[str]]) -> None:
    tools = read(tools=[TOOL, NAMESPACE, {"type": "web_search"}], tool_choice=choice).conversation.tools
    assert (tools.choice, tools.name, [tool.name for tool in tools.tools]) == wanted


def test_what_a_template_refuses_is_the_clients_input() -> None:
    model = make_model(template="{{ raise_exception('no more') }}")
    with pytest.raises(InvalidRequest, match=r"^input: .*no more") as caught:
        prompt_of(read(instructions="be brief").conversation, model)
    assert caught.value.param == "input"


def custom(**format_: object) -> dict[str, Any]:
    return {"type": "custom", "name": "patch", "description": "Edits.", "format": format_}


def test_a_custom_tools_grammar_is_kept_and_shown() -> None:
    given = custom(type="grammar", syntax="regex", definition="[ab]+")
    [tool] = read(tools=[given]).conversation.tools.tools
    assert tool.text == TextGrammar("regex", "[ab]+")
    assert tool.description == "Edits.\n\nThe input matches this regular expression:\n[ab]+"
    nested = custom(type="grammar", grammar={"syntax": "lark", "definition": 'start: "a"'})
    [chats] = read(tools=[nested]).conversation.tools.tools
    assert chats.text == TextGrammar("lark", 'start: "a"')
    [free] = read(tools=[custom(type="text")]).conversation.tools.tools
    assert (free.text, free.description) == (None, "Edits.")


@pytest.mark.parametrize(
    ("format_", "param"),
    [
        ({"type": "json"}, "type"),
        ({"type": "grammar", "syntax": "bnf", "definition": "x"}, "syntax"),
        ({"type": "grammar", "syntax": "lark"}, "definition"),
    ],
)
def test_a_wrong_format_of_a_custom_tool_is_named(format_: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tools=[custom(**format_)])
    assert caught.value.param == f"tools.0.format.{param}"
