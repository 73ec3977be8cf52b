"""Anthropic's Messages: call arguments, and the tool types whose calls the client executes.

Replies and events are validated against the types of Anthropic's SDK.
"""

from collections.abc import Sequence
from typing import Any

import anthropic.types as sdk
import anthropic.types.beta as beta
import orjson
import pytest
from anthropic.types.beta.beta_memory_tool_20250818_command import BetaMemoryTool20250818Command
from pydantic import TypeAdapter

from server.dialects.errors import anthropic_error
from server.dialects.messages.parse import MessagesRequest, MessageTools, parse_messages, read_conversation
from server.dialects.messages.write import MessageWriter
from server.dialects.tool_types import ANTHROPIC
from server.engine.request import FinishReason
from server.errors import InvalidRequest
from server.formats.arguments import object_text
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import HEADER, SequenceParser, finished, started, text


def test_the_error_for_an_unknown_model_is_the_one_that_claude_code_detects() -> None:
    error = {"error": {"code": 404, "message": "model 'x' not found", "type": "x", "param": "model"}}
    assert anthropic_error(404, error)["error"]["message"] == "model: model 'x' not found"


@pytest.mark.parametrize("depth", [100, 400, 1020])
def test_arguments_may_be_nested_deeper_than_orjson_serializes(depth: int) -> None:
    """Python 3.11 serializes fewer levels than later versions, so the deepest may be rejected."""
    text = '{"a":["é",' * (depth // 2) + "null" + "]}" * (depth // 2)
    block = {"type": "tool_use", "id": "c1", "name": "look", "input": orjson.loads(text)}
    try:
        [message] = parse_messages({"messages": [{"role": "assistant", "content": [block]}]}).conversation.messages
    except InvalidRequest as error:
        if depth < 1020 or "nested too deeply" not in str(error):
            raise
    else:
        assert message.calls[0].arguments == text


VISIBLE, OMITTED = {"type": "enabled"}, {"type": "enabled", "display": "omitted"}


def content_of(pieces: Sequence[Piece], **fields: Any) -> list[dict[str, Any]]:
    """Return the content of a reply that is truncated after `pieces`."""
    reply = MessageWriter(parse_messages({"messages": [], **fields}), HEADER, lambda: SequenceParser(pieces))
    for event in (started(n_cached=2), text("x"), finished(reason=FinishReason.LIMIT, n_cached=2)):
        reply.feed(0, event)
    content: list[dict[str, Any]] = orjson.loads(orjson.dumps(reply.body()))["content"]
    return content


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a": "b', "", '{"a" 1}', "[1", "null"])
@pytest.mark.parametrize(
    "before", [[], [ContentText("So.")], [Reasoning("Hm.")], [Reasoning("Hm."), ContentText("So.")]]
)
def test_every_content_block_is_accepted_in_the_next_request(before: list[Piece], arguments: str, show: bool) -> None:
    pieces = [*before, ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, arguments)]
    content = content_of(pieces, thinking=VISIBLE if show else OMITTED)
    warnings: list[str] = []
    [message] = read_conversation(None, [{"role": "assistant", "content": content}], warnings, MessageTools())
    assert warnings == []
    assert message.reasoning == "".join(piece.text for piece in before if isinstance(piece, Reasoning) and show)
    assert message.text.startswith("".join(piece.text for piece in before if isinstance(piece, ContentText)))
    assert message.calls or message.text.endswith(arguments)  # an invalid call is text


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("", b"{}"),
        (" \n", b"{}"),
        ('{"a": 1}', b'{"a": 1}'),
        ('{"n": 123456789012345678901234567890}', b'{"n": 123456789012345678901234567890}'),
        ('{"city": "Paris", "cou', b'{"city":"Paris"}'),
        ('{"a": [1, {"b": 2}', b'{"a":[1,{"b":2}]}'),
        ('{"a": [1, {"b": 2', b'{"a":[1,{}]}'),
        ('{"a": true, "n": -1', b'{"a":true}'),
        ('{"n": 0.', b"{}"),
        ('{"n": 123456789012345678901234567890, ', b'{"n":123456789012345678901234567890}'),
        ('{"n": 1e400, ', b'{"n":null}'),
        ('{"a" 1}', b'{"arguments":"{\\"a\\" 1}"}'),
        ("[1]", b'{"arguments":[1]}'),
        ("[1", b'{"arguments":[1]}'),
        ("null", b"{}"),
        ('{"a": "\\ud800"}', b'{"arguments":"{\\"a\\": \\"\\\\ud800\\"}"}'),
        ('{"a": 01}', b'{"arguments":"{\\"a\\": 01}"}'),
        ('{"a": {]', b'{"arguments":"{\\"a\\": {]"}'),
        ("[" * 500 + "]" * 500, b'{"arguments":"%b"}' % (b"[" * 500 + b"]" * 500)),
        ('{"a": NaN}', b'{"a":null}'),
        ("[" * 5000, b'{"arguments":"%b"}' % (b"[" * 5000)),
    ],
)
def test_truncated_and_invalid_arguments_become_an_object(written: str, arguments: bytes) -> None:
    assert object_text(written, whole=True).encode() == arguments


MESSAGE: tuple[TypeAdapter[Any], ...] = (TypeAdapter(sdk.Message), TypeAdapter(beta.BetaMessage))
EVENTS: tuple[TypeAdapter[Any], ...] = (
    TypeAdapter(sdk.RawMessageStreamEvent),
    TypeAdapter(beta.BetaRawMessageStreamEvent),
)
BLOCK: TypeAdapter[Any] = TypeAdapter(sdk.ContentBlock)
TOOL_TYPES = {
    "bash_20241022": "bash",
    "bash_20250124": "bash",
    "text_editor_20241022": "str_replace_editor",
    "text_editor_20250124": "str_replace_editor",
    "text_editor_20250429": "str_replace_based_edit_tool",
    "text_editor_20250728": "str_replace_based_edit_tool",
    "memory_20250818": "memory",
    "computer_20241022": "computer",
    "computer_20250124": "computer",
    "computer_20251124": "computer",
}
EXAMPLES: dict[str, Any] = {"string": "x", "integer": 1, "boolean": True}


def parsed(**fields: Any) -> MessagesRequest:
    return parse_messages({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields})


def call_blocks(request: MessagesRequest, name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the block of a call, in a whole reply and in a stream."""
    call: list[Piece] = [ToolCallBegin(0, "toolu_1", name), ToolCallArguments(0, orjson.dumps(arguments).decode())]
    reply, stream = (MessageWriter(request, HEADER, lambda: SequenceParser(call)) for _ in range(2))
    raw: list[bytes] = []
    for event in (started(), text("call"), finished()):
        reply.feed(0, event)
        raw += stream.feed(0, event)
    message = orjson.loads(orjson.dumps(reply.body()))
    for adapter in MESSAGE:
        adapter.validate_python(message)
    events = [orjson.loads(each.split(b"\ndata: ")[1]) for each in raw]
    for event in events:
        for adapter in EVENTS:
            adapter.validate_python(event)
    [block] = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    written = "".join(event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta")
    return [message["content"][0], {**block, "input": orjson.loads(written)}]


def example(schema: dict[str, Any]) -> Any:
    """Return a value of `schema` that has every member."""
    if "anyOf" in schema:
        return example(schema["anyOf"][0])
    if schema.get("enum"):
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: example(member) for name, member in schema["properties"].items()}
        case "array":
            return [example(schema["items"])] * schema.get("minItems", 1)
    return EXAMPLES[schema["type"]]


@pytest.mark.parametrize("kind", TOOL_TYPES)
def test_each_tool_type_is_a_function_whose_calls_are_tool_use_blocks(kind: str) -> None:
    name = TOOL_TYPES[kind]
    tool = {"type": kind, "name": name, "display_width_px": 640, "display_height_px": 480, "cache_control": None}
    request = parsed(tools=[tool])
    [function] = request.conversation.tools.tools
    assert (function.name, request.warnings) == (name, [])
    for block in call_blocks(request, name, example(dict(function.parameters))):
        BLOCK.validate_python(block)
        assert (block["type"], block["name"]) == ("tool_use", name)
        assert "toolset_name" not in block


def test_versions_of_a_tool_type_have_their_own_commands() -> None:
    def commands(kind: str, member: str, **options: Any) -> list[str]:
        [tool] = parsed(tools=[{"type": kind, "name": "t", **options}]).conversation.tools.tools
        names: list[str] = tool.parameters["properties"][member]["enum"]
        return names

    assert "undo_edit" in commands("text_editor_20250124", "command")
    assert "undo_edit" not in commands("text_editor_20250728", "command")
    assert "undo_edit" not in commands("text_editor_20991231", "command")
    assert "scroll" not in commands("computer_20241022", "action")
    assert "zoom" not in commands("computer_20251124", "action")
    assert "zoom" in commands("computer_20251124", "action", enable_zoom=True)
    tool = {"type": "computer_20251124", "name": "c", "display_width_px": 640}
    [computer] = parsed(tools=[tool]).conversation.tools.tools
    assert "640 pixels" in computer.description


def test_the_memory_tool_has_the_commands_of_the_sdk() -> None:
    known = TypeAdapter(BetaMemoryTool20250818Command).json_schema()["$defs"].values()
    members = ANTHROPIC["memory"].parameters["properties"]
    assert {each["properties"]["command"]["const"] for each in known} == set(members["command"]["enum"])
    assert {name for each in known for name in each["properties"]} == set(members)


def test_each_tool_of_a_toolset_can_be_enabled_disabled_and_deferred() -> None:
    browser = {"type": "browser_toolset_20260801"}
    names = [tool.name for tool in parsed(tools=[browser]).conversation.tools.tools]
    assert "browser__navigate" in names
    assert "browser__javascript_exec" not in names
    configs = {"javascript_exec": {"enabled": True}, "navigate": {"enabled": False}, "find": {"defer_loading": True}}
    names = [tool.name for tool in parsed(tools=[{**browser, "configs": configs}]).conversation.tools.tools]
    assert "browser__javascript_exec" in names
    assert not {"browser__navigate", "browser__find"} & set(names)


def test_tool_references_have_a_limit_of_characters_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.dialects.tools.MAX_DEFINED_CHARS", 1000)
    tools = [{"name": "f", "description": "d" * 300, "input_schema": {}, "defer_loading": True}]
    use, reference = {"type": "tool_use", "id": "c", "name": "g"}, {"type": "tool_reference", "tool_name": "f"}

    def referring(n: int) -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": "c", "content": [reference] * n}
        messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return {"max_tokens": 9, "tools": tools, "messages": messages}

    parse_messages(referring(2))
    with pytest.raises(InvalidRequest, match="at most 1000 characters"):
        parse_messages(referring(3))
