"""Tools that a conversation introduces later leave the prompt before that place as it was, for every template."""

from typing import Any

import pytest

from server.chat.conversation import Conversation
from server.chat.prompt import as_text, render
from server.dialects.messages.parse import parse_messages
from server.dialects.responses.parse import parse_response
from server.formats.recognition import n_common
from tests.support.downloads import TEMPLATE_NAMES
from tests.support.sampling import sample
from tests.unit.dialects.builders import make_model
from tests.unit.templates.corpus import BUILT_IN, template_of

SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": {"type": "object"}}
FUNCTION = {"type": "function", "name": "run", "description": "Runs.", "parameters": {"type": "object"}}
FOUND = {"type": "namespace", "name": "notes", "description": "", "tools": [{**FUNCTION, "name": "add"}]}
HI = {"role": "user", "content": "Add a note."}
CALL = {"type": "tool_search_call", "call_id": "call_0001", "execution": "client", "arguments": {"query": "note"}}
OUTPUT = {"type": "tool_search_output", "call_id": "call_0001", "execution": "client", "tools": [FOUND]}
ANSWER = {"role": "assistant", "content": "Which note?"}
ADDED = {"type": "additional_tools", "role": "developer", "tools": [FOUND]}
CLAUDES = {"name": "run", "description": "Runs.", "input_schema": {"type": "object"}}
LATER = {**CLAUDES, "name": "notes__add", "defer_loading": True}
USE = {"type": "tool_use", "id": "call_0001", "name": "run", "input": {"query": "note"}}
MOVING = (
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Mistral-Nemo-Instruct-2407",
)


def responses(*items: dict[str, Any]) -> Conversation:
    return parse_response(
        {"instructions": "Be brief.", "input": [HI, *items], "tools": [SEARCH, FUNCTION]}
    ).conversation


def anthropic(*messages: dict[str, Any]) -> Conversation:
    body = {"max_tokens": 9, "system": "Be brief.", "tools": [CLAUDES, LATER], "messages": [HI, *messages]}
    return parse_messages(body).conversation


def turn(*content: dict[str, Any]) -> list[dict[str, Any]]:
    result = {"type": "tool_result", "tool_use_id": "call_0001", "content": list(content)}
    return [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}]


REFERENCE = {"type": "tool_reference", "tool_name": "notes__add"}
WAYS = {
    "tool_search_output": (responses(), responses(CALL, {**OUTPUT, "tools": []}), responses(CALL, OUTPUT)),
    "additional_tools": (
        responses(),
        responses(ANSWER, {"role": "developer", "content": "Note."}, HI),
        responses(ANSWER, ADDED, HI),
    ),
    "tool_reference": (anthropic(), anthropic(*turn({"type": "text", "text": "x"})), anthropic(*turn(REFERENCE))),
}
"""The first request, the next one without a new tool, and the next one with it."""


NAMES = [*BUILT_IN, *TEMPLATE_NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_goes_on_from_the_one_before_as_if_no_tool_had_been_introduced(name: str) -> None:
    """A few templates move a part of each prompt to its end, such as the tools of Mistral Nemo."""
    model = make_model()
    model.template = template_of(name)
    for way in sample(WAYS, 3, NAMES.index(name)):
        first, without, introduced = (as_text(render(one, model).parts, "") for one in WAYS[way])
        shared = n_common(first, without)
        assert n_common(first, introduced) >= shared, way
        if name not in MOVING:
            assert "Add a note." in first[:shared], way
        assert introduced.replace("\\", "").count('"name":"notes__add"') == 1, way  # some write results as JSON
