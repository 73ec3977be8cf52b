"""Anthropic's messages: arguments, replies whole and streamed, tool types whose calls the client executes."""

from collections.abc import Callable, Sequence
from typing import Any

import anthropic.types as sdk
import anthropic.types.beta as beta
import orjson
import pytest
from anthropic.types.beta.beta_memory_tool_20250818_command import BetaMemoryTool20250818Command
from pydantic import TypeAdapter

from server.dialects.common import Header
from server.dialects.errors import anthropic_error
from server.dialects.messages.parse import MessagesRequest, MessageTools, parse_messages, read_conversation
from server.dialects.messages.write import MessageWriter
from server.dialects.tool_types import ANTHROPIC
from server.engine.request import Event, FinishReason
from server.errors import InvalidRequest
from server.formats.arguments import object_text
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import Scripted, Turns, finished, started, text


def test_an_unknown_model_is_told_in_the_words_that_claude_code_looks_for() -> None:
    given = {"error": {"code": 404, "message": "model 'x' not found", "type": "x", "param": "model"}}
    assert anthropic_error(404, given)["error"]["message"] == "model: model 'x' not found"


@pytest.mark.parametrize("depth", [100, 400, 1020])
def test_arguments_may_be_nested_more_deeply_than_orjson_writes(depth: int) -> None:
    """Python 3.11 writes fewer levels than later versions: the deepest may be refused."""
    text = '{"a":["é",' * (depth // 2) + "null" + "]}" * (depth // 2)
    block = {"type": "tool_use", "id": "c1", "name": "look", "input": orjson.loads(text)}
    try:
        [message] = parse_messages({"messages": [{"role": "assistant", "content": [block]}]}).conversation.messages
    except InvalidRequest as error:
        if depth < 1020 or "nested too deeply" not in str(error):
            raise
    else:
        assert message.calls[0].arguments == text


HEADER = Header("demo", "msg_1", 1700000000)
SHOWN, HIDDEN = {"type": "enabled"}, {"type": "enabled", "display": "omitted"}


def run(reason: FinishReason = FinishReason.EOS, n_texts: int = 1, word: str = "") -> list[Event]:
    end = finished(reason=reason, n_cached=2, stopping_word=word)
    return [started(n_cached=2), *[text("x")] * n_texts, end]


def whole(script: Callable[[], Turns], events: Sequence[Event], **fields: Any) -> Any:
    reply = MessageWriter(parse_messages({"messages": [], **fields}), HEADER, script)
    for event in events:
        reply.feed(0, event)
    return orjson.loads(orjson.dumps(reply.body()))


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a": "b', "", '{"a" 1}', "[1", "null"])
@pytest.mark.parametrize(
    "before", [[], [ContentText("So.")], [Reasoning("Hm.")], [Reasoning("Hm."), ContentText("So.")]]
)
def test_whatever_a_model_writes_can_be_sent_back(before: list[Piece], arguments: str, show: bool) -> None:
    pieces = [*before, ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, arguments)]
    content = whole(lambda: Turns(pieces), run(FinishReason.LIMIT), thinking=SHOWN if show else HIDDEN)["content"]
    warnings: list[str] = []
    [message] = read_conversation(None, [{"role": "assistant", "content": content}], warnings, MessageTools())
    assert warnings == []
    assert message.reasoning == "".join(piece.text for piece in before if isinstance(piece, Reasoning) and show)
    said = "".join(piece.text for piece in before if isinstance(piece, ContentText))
    assert message.text.startswith(said)
    assert message.calls or message.text.endswith(arguments)  # what is no call stands in the text


@pytest.mark.parametrize(
    ("written", "read"),
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
def test_arguments_are_read_as_they_were_written_or_up_to_where_they_were_cut_off(written: str, read: bytes) -> None:
    assert object_text(written, whole=True).encode() == read


WHOLE: tuple[TypeAdapter[Any], ...] = (TypeAdapter(sdk.Message), TypeAdapter(beta.BetaMessage))
EVENTS: tuple[TypeAdapter[Any], ...] = (
    TypeAdapter(sdk.RawMessageStreamEvent),
    TypeAdapter(beta.BetaRawMessageStreamEvent),
)
BLOCK: TypeAdapter[Any] = TypeAdapter(sdk.ContentBlock)
TYPES = {
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
VALUES: dict[str, Any] = {"string": "x", "integer": 1, "boolean": True}


def read(**fields: Any) -> MessagesRequest:
    return parse_messages({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields})


def said(asked: MessagesRequest, name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The block of a call, in one message and as the stream begins and ends it."""

    class Parser(Scripted):
        def feed(self, _: str) -> list[Piece]:
            return [ToolCallBegin(0, "toolu_1", name), ToolCallArguments(0, orjson.dumps(arguments).decode())]

    events: list[Event] = [started(), text("call"), finished()]
    header = Header("demo", "msg_1")
    reply, stream = MessageWriter(asked, header, Parser), MessageWriter(asked, header, Parser)
    raw: list[bytes] = []
    for event in events:
        reply.feed(0, event)
        raw += stream.feed(0, event)
    message = orjson.loads(orjson.dumps(reply.body()))
    for adapter in WHOLE:
        adapter.validate_python(message)
    parts = [orjson.loads(each.split(b"\ndata: ")[1]) for each in raw]
    for part in parts:
        for adapter in EVENTS:
            adapter.validate_python(part)
    [begun] = [part["content_block"] for part in parts if part["type"] == "content_block_start"]
    written = "".join(part["delta"]["partial_json"] for part in parts if part["type"] == "content_block_delta")
    return [message["content"][0], {**begun, "input": orjson.loads(written)}]


def example(schema: dict[str, Any]) -> Any:
    """A value that has every member."""
    if "anyOf" in schema:
        return example(schema["anyOf"][0])
    if schema.get("enum"):
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: example(member) for name, member in schema["properties"].items()}
        case "array":
            return [example(schema["items"])] * schema.get("minItems", 1)
    return VALUES[schema["type"]]


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_is_a_function_with_its_parameters_and_its_calls_have_its_name(kind: str) -> None:
    name = TYPES[kind]
    tool = {"type": kind, "name": name, "display_width_px": 640, "display_height_px": 480, "cache_control": None}
    asked = read(tools=[tool])
    [shown] = asked.conversation.tools.tools
    assert (shown.name, asked.warnings) == (name, [])
    for block in said(asked, name, example(dict(shown.parameters))):
        BLOCK.validate_python(block)
        assert (block["type"], block["name"]) == ("tool_use", name)
        assert "toolset_name" not in block


def test_versions_differ_in_what_they_can() -> None:
    def commands(kind: str, member: str, **more: Any) -> list[str]:
        [tool] = read(tools=[{"type": kind, "name": "t", **more}]).conversation.tools.tools
        found: list[str] = tool.parameters["properties"][member]["enum"]
        return found

    assert "undo_edit" in commands("text_editor_20250124", "command")
    assert "undo_edit" not in commands("text_editor_20250728", "command")
    assert "undo_edit" not in commands("text_editor_20991231", "command")
    assert "scroll" not in commands("computer_20241022", "action")
    assert "zoom" not in commands("computer_20251124", "action")
    assert "zoom" in commands("computer_20251124", "action", enable_zoom=True)
    [sized] = read(tools=[{"type": "computer_20251124", "name": "c", "display_width_px": 640}]).conversation.tools.tools
    assert "640 pixels" in sized.description


def test_the_memory_tools_commands_are_the_sdks() -> None:
    known = TypeAdapter(BetaMemoryTool20250818Command).json_schema()["$defs"].values()
    members = ANTHROPIC["memory"].parameters["properties"]
    assert {each["properties"]["command"]["const"] for each in known} == set(members["command"]["enum"])
    assert {name for each in known for name in each["properties"]} == set(members)


def test_a_toolsets_members_are_switched_and_deferred_one_by_one() -> None:
    browser = {"type": "browser_toolset_20260801"}
    names = [tool.name for tool in read(tools=[browser]).conversation.tools.tools]
    assert "browser__navigate" in names
    assert "browser__javascript_exec" not in names
    configs = {"javascript_exec": {"enabled": True}, "navigate": {"enabled": False}, "find": {"defer_loading": True}}
    names = [tool.name for tool in read(tools=[{**browser, "configs": configs}]).conversation.tools.tools]
    assert "browser__javascript_exec" in names
    assert not {"browser__navigate", "browser__find"} & set(names)


def test_references_do_not_repeat_a_definition_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
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
