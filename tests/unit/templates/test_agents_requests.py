"""Whole requests as agents make them, read by their wire format and rendered by every template: no text is lost.

The shapes are those of Claude Code 2.1 and Codex 0.169 in a session that has called tools; the texts are needles.
"""

from typing import Any

import pytest

from server.chat.conversation import Conversation
from server.chat.prepare import prompt_of
from server.dialects.messages.parse import parse_messages
from server.dialects.responses.parse import parse_response
from tests.support.downloads import TEMPLATE_NAMES
from tests.unit.dialects.builders import make_model
from tests.unit.templates.corpus import BUILT_IN, template_of

pytestmark = pytest.mark.slow

TEXTS = [f"needle{letter}" for letter in "ABCDEFGHPQKL"]
A, B, C, D, E, F, G, H, P, Q, K, L = TEXTS
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
READ = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "limit": {"type": ["integer", "null"]}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
}
CLAUDE_CODE = {
    "model": "m",
    "max_tokens": 10,
    "system": [{"type": "text", "text": A, "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": B}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": C}, {"type": "text", "text": D}]},
        {"role": "system", "content": E},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "So.", "signature": "s"},
                {"type": "text", "text": F},
                {"type": "tool_use", "id": "toolu_01A", "name": "Read", "input": {"file_path": G}},
                {"type": "tool_use", "id": "toolu_01B", "name": "Read", "input": {"file_path": H}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_01A",
                    "content": [{"type": "text", "text": P}, {"type": "image", "source": PNG}],
                },
                {"type": "tool_result", "tool_use_id": "toolu_01B", "content": Q, "is_error": True},
                {"type": "text", "text": K},
            ],
        },
        {"role": "system", "content": L},
    ],
    "tools": [READ],
}
SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}


def _message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


CODEX = {
    "model": "m",
    "instructions": A,
    "store": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "tools": [SHELL, {"type": "web_search"}],
    "parallel_tool_calls": True,
    "input": [
        _message("developer", B),
        _message("developer", C),
        _message("user", D),
        _message("user", E),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "So."}]},
        _message("assistant", F),
        {"type": "function_call", "call_id": "call_a", "name": "shell", "arguments": f'{{"command": ["ls", "{G}'},
        {"type": "function_call", "call_id": "call_b", "name": "shell", "arguments": f'{{"command": ["{H}"]}}'},
        {"type": "function_call_output", "call_id": "call_a", "output": P},
        {"type": "function_call_output", "call_id": "call_b", "output": Q},
        _message("user", K),
        _message("developer", L),
    ],
}


def claude_code() -> Conversation:
    return parse_messages(CLAUDE_CODE).conversation


def codex() -> Conversation:
    return parse_response(CODEX).conversation


@pytest.mark.parametrize("name", [*TEMPLATE_NAMES, *BUILT_IN])
def test_no_text_is_lost(name: str) -> None:
    model = make_model()
    model.template = template_of(name)
    for read in (claude_code, codex):
        prompt = prompt_of(read(), model).rendered.text
        told = [text for text in TEXTS if text not in (P, Q)]
        places = [prompt.find(text) for text in told]
        assert -1 not in places, (read, told[places.index(-1)])
        in_order = [place for text, place in zip(told, places, strict=True) if text != F]
        assert in_order == sorted(in_order)
        assert prompt.find(E) < prompt.find(F) < prompt.find(K)  # beside the calls, before or after them
        for call, result in ((G, P), (H, Q)):
            assert prompt.find(call) < prompt.find(result) < prompt.find(K)
