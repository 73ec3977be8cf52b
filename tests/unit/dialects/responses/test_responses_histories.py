"""Generated histories of Responses: whatever an agent sends back is no error, and every text of it stays, in order."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.chat.conversation import Message
from server.dialects.responses.parse import parse_response

Item = dict[str, Any]
Made = Callable[[str], Item]
"""Makes an item that says a text."""
MEDIA = [
    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "original"},
    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
    {"type": "hologram", "depth": 3},
]


def message(role: str, kind: str) -> Made:
    key = "refusal" if kind == "refusal" else "text"
    return lambda text: {"type": "message", "role": role, "content": [{"type": kind, key: text}, *MEDIA]}


def output(kind: str) -> Made:
    return lambda text: {"type": kind, "call_id": "c", "output": [{"type": "input_text", "text": text}, *MEDIA]}


SAYS: list[Made] = [
    *(message("assistant", kind) for kind in ("output_text", "text", "refusal")),
    *(message(role, kind) for role in ("system", "developer") for kind in ("input_text", "text")),
    lambda text: {"role": "user", "content": text},
    lambda text: {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]},
    lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "encrypted_content": "x"},
    lambda text: {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": "' + text},  # cut off
    lambda text: {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": text},
    lambda text: {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": text, "status": "completed"},
    lambda text: {"type": "local_shell_call", "id": "c", "action": {"type": "exec", "command": [text], "env": None}},
    lambda text: {"type": "shell_call", "call_id": "c", "action": {"commands": [text], "timeout_ms": None}},
    lambda text: {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "update_file", "diff": text}},
    lambda text: {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": text, "error": None},
    lambda text: {"type": "mcp_call", "id": "m", "name": "f", "arguments": None, "output": None, "error": {"m": text}},
    lambda text: {"type": "code_interpreter_call", "id": "c", "code": text, "outputs": None},
    lambda text: {"type": "tool_search_call", "call_id": "c", "arguments": {"query": text}},
    lambda text: {"type": "agent_message", "author": "a", "content": [{"type": "input_text", "text": text}]},
    lambda text: {"type": "local_shell_call_output", "id": "c", "output": text},
    lambda text: {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": text, "outcome": {"type": "exit"}}],
    },
    *map(output, ("function_call_output", "custom_tool_call_output", "apply_patch_call_output", "later_call_output")),
]
SILENT: list[Item] = [
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "image_generation_call", "id": "i", "result": "AA=="},
    {"type": "file_search_call", "id": "f", "queries": ["q"], "results": None},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "compaction_trigger"},
    {"type": "mcp_list_tools", "id": "l", "tools": []},
    {"type": "mcp_approval_request", "id": "a", "name": "f", "arguments": "{}"},
    {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
    {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []},
    {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    {"type": "message", "role": "assistant", "content": None},
    {"type": "item_of_tomorrow", "payload": [1]},
    {"type": "ghost_snapshot", "ghost_commit": {}},
]


def said(found: Message) -> str:
    calls = " ".join(f"{call.name} {call.arguments}" for call in found.calls)
    return f"{found.reasoning} {found.text} {calls}"


@given(st.lists(st.integers(0, len(SAYS) + len(SILENT) - 1), max_size=12))
def test_no_history_is_refused_and_no_text_of_it_is_lost(kinds: list[int]) -> None:
    items, texts = [], []
    for number, kind in enumerate(kinds):
        if kind < len(SAYS):
            texts.append(f"text{number:02}")
            items.append(SAYS[kind](texts[-1]))
        else:
            items.append(SILENT[kind - len(SAYS)])
    asked = parse_response({"input": [*items, {"role": "user", "content": "go on"}]})
    shown = [said(found) for found in asked.conversation.messages]
    places = [next(place for place, whole in enumerate(shown) if text in whole) for text in texts]
    assert places == sorted(places)
    assert all(" ".join(shown).count(text) == 1 for text in texts)
