"""Deferred tools: a tool that a conversation introduces later leaves the preceding prompt unchanged."""

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
ANTHROPIC_TOOL = {"name": "run", "description": "Runs.", "input_schema": {"type": "object"}}
DEFERRED = {**ANTHROPIC_TOOL, "name": "notes__add", "defer_loading": True}
USE = {"type": "tool_use", "id": "call_0001", "name": "run", "input": {"query": "note"}}
MOVE_TOOLS_TO_THE_END = (
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Mistral-Nemo-Instruct-2407",
)


def responses(*items: dict[str, Any]) -> Conversation:
    return parse_response(
        {"instructions": "Be brief.", "input": [HI, *items], "tools": [SEARCH, FUNCTION]}
    ).conversation


def anthropic(*messages: dict[str, Any]) -> Conversation:
    body = {"max_tokens": 9, "system": "Be brief.", "tools": [ANTHROPIC_TOOL, DEFERRED], "messages": [HI, *messages]}
    return parse_messages(body).conversation


def call_and_result(*content: dict[str, Any]) -> list[dict[str, Any]]:
    result = {"type": "tool_result", "tool_use_id": "call_0001", "content": list(content)}
    return [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}]


REFERENCE = {"type": "tool_reference", "tool_name": "notes__add"}
INTRODUCTIONS = {
    "tool_search_output": (responses(), responses(CALL, {**OUTPUT, "tools": []}), responses(CALL, OUTPUT)),
    "additional_tools": (
        responses(),
        responses(ANSWER, {"role": "developer", "content": "Note."}, HI),
        responses(ANSWER, ADDED, HI),
    ),
    "tool_reference": (
        anthropic(),
        anthropic(*call_and_result({"type": "text", "text": "x"})),
        anthropic(*call_and_result(REFERENCE)),
    ),
}
"""A first request, the next one without a new tool, and the next one with a new tool."""


NAMES = [*BUILT_IN, *TEMPLATE_NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_introducing_a_tool_keeps_the_common_prefix_of_the_prompt(name: str) -> None:
    """A few templates move a part of each prompt to its end, such as the tools of Mistral Nemo."""
    model = make_model()
    model.template = template_of(name)
    for kind in sample(INTRODUCTIONS, 3, NAMES.index(name)):
        first, without, introduced = (as_text(render(each, model).parts, "") for each in INTRODUCTIONS[kind])
        n_shared = n_common(first, without)
        assert n_common(first, introduced) >= n_shared, kind
        if name not in MOVE_TOOLS_TO_THE_END:
            assert "Add a note." in first[:n_shared], kind
        # some templates render results as JSON
        assert introduced.replace("\\", "").count('"name":"notes__add"') == 1, kind
