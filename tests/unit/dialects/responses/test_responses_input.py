from typing import Any

import pytest

from server.chat.conversation import Message, TextPart, template_messages
from server.dialects.responses import input as responses_input
from server.dialects.responses.input import History, read_input
from server.errors import InvalidRequest
from server.media.source import Media, MediaUrl, StoredFile


def output_text(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": content}


def messages(*items: object) -> list[Message]:
    return read_input(list(items)).messages


def read(*items: object) -> list[dict[str, Any]]:
    return template_messages(messages(*items))


def test_a_reference_stands_for_the_item_of_a_stored_response() -> None:
    stored = History(referenced={"msg_1": output_text("so")})
    reference = {"type": "item_reference", "id": "msg_1"}
    assert read_input([reference], stored).messages == [Message("assistant", "so")]
    with pytest.raises(InvalidRequest, match="msg_1' not found"):
        read(reference)


def told(message: Message) -> tuple[str, Any]:
    """What a message says in short: its calls, or its role and text."""
    return (
        ("calls", [(call.name, call.arguments, call.id) for call in message.calls])
        if message.calls
        else (
            message.role,
            message.text,
        )
    )


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (
            {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}"},
            ("calls", [("n__f", "{}", "c")]),
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 'a"b'},
            ("calls", [("f", '{"input": "a\\"b"}', "c")]),
        ),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "42"}, ("tool", "42")),
        (
            {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "user": None}},
            ("calls", [("local_shell", '{"command": ["ls"]}', "c")]),
        ),
        ({"type": "local_shell_call_output", "id": "c", "output": "x"}, ("tool", "x")),
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            ("calls", [("shell", '{"commands": ["ls"]}', "c")]),
        ),
        (
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "x", "stderr": ""}]},
            ("tool", '[{"stdout":"x","stderr":""}]'),
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "x"}},
            ("calls", [("apply_patch", '{"type": "delete_file", "path": "x", "diff": ""}', "c")]),
        ),
        ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "ok"}, ("tool", "ok")),
        (
            {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "q"}},
            ("calls", [("tool_search", '{"query": "q"}', "c")]),
        ),
        ({"type": "agent_message", "content": [{"type": "input_text", "text": "hi"}]}, ("user", "hi")),
        ({"type": "note", "role": "developer", "content": "hi"}, ("developer", "hi")),
        (
            {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
            ("tool", "[image: not shown, this model takes none]"),
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_calls_of_any_kind_and_their_outputs_stand_in_the_conversation(
    item: dict[str, Any], wanted: tuple[str, Any]
) -> None:
    [message] = messages(item)
    assert told(message) == wanted


def test_what_a_server_has_called_itself_is_a_call_and_its_result() -> None:
    mcp = {"type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": "{}", "output": "42"}
    code = {"type": "code_interpreter_call", "id": "c", "code": "1", "outputs": [{"type": "logs", "logs": "2"}]}
    assert [told(message) for message in messages(mcp, code)] == [
        ("calls", [("s__f", "{}", "m")]),
        ("tool", "42"),
        ("calls", [("code_interpreter", '{"code":"1"}', "c")]),
        ("tool", "2"),
    ]


def test_parts_are_texts_media_and_documents() -> None:
    data = "data:application/pdf;base64,AA=="
    parts = [
        {"type": "text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_file", "filename": "n.pdf", "file_data": data, "detail": "low"},
        {"type": "input_file", "file_url": "https://a.example/b.csv"},
        {"type": "input_file", "file_id": "file-2"},
        {"type": "input_file"},
        {"type": "sketch", "strokes": []},
    ]
    found = read_input([{"role": "user", "content": parts}])
    assert found.messages[0].parts == (
        TextPart("a"),
        Media("image", at="input.0.content.1.type", source=MediaUrl("data:image/png;base64,AA==")),
        Media("image", at="input.0.content.2.type", source=StoredFile("file-1")),
        Media("document", "n.pdf", "input.0.content.3.file_data", MediaUrl(data, "n.pdf", low_detail=True)),
        Media("document", "b.csv", "input.0.content.4.file_url", MediaUrl("https://a.example/b.csv", "b.csv")),
        Media("document", "", "input.0.content.5.file_id", StoredFile("file-2")),
        Media("document", "", "input.0.content.6"),
    )
    assert found.warnings == ["parts of type 'sketch' are left out"]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"status": "completed"}, "completed"),
        ({"status": "failed", "output": "no such file"}, "failed\nno such file"),
    ],
)
def test_the_output_of_a_patch_may_be_its_status(item: dict[str, Any], text: str) -> None:
    [message] = messages({"type": "apply_patch_call_output", "call_id": "c", **item})
    assert told(message) == ("tool", text)


def test_a_conversation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_input, "MAX_MESSAGES", 2)
    before = History([{"role": "user", "content": "x"}])
    read_input([{"role": "user", "content": "x"}], before)
    with pytest.raises(InvalidRequest, match="at most 2"):
        read_input([{"role": "user", "content": "x"}] * 2, before)
