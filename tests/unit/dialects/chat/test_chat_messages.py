import pytest

from server.chat.conversation import Call, Message, TextPart, Tool, template_messages
from server.dialects.chat.parse import read_messages, read_tools
from server.errors import InvalidRequest
from tests.unit.dialects.builders import tools_of

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_messages_keep_what_templates_may_read_and_nothing_else() -> None:
    given = [{"role": "tool", "content": "x", "tool_call_id": "c1", "name": "f", "extra": 1, "reasoning_content": None}]
    assert template_messages(read_messages(given)) == [
        {"role": "tool", "content": "x", "tool_call_id": "c1", "name": "f"}
    ]


def test_tools_get_llama_servers_form() -> None:
    bare = {"type": "function", "function": {"name": "g", "strict": True}}
    got = tools_of([TOOL, bare], None, None)
    assert got.tools[0].function == TOOL["function"]
    assert got.tools[1] == Tool("g", strict=True, at="tools.1.function.parameters")
    assert got.callable


def test_what_no_model_can_be_shown_is_skipped_and_told() -> None:
    warnings: list[str] = []
    calls = [{"type": None, **{key: CALL[key] for key in ("id", "function")}}, {"type": "web_search", "id": "c2"}]
    given = [user([{"type": "odd"}, {"type": "text", "text": "a"}]), {"role": "assistant", "tool_calls": calls}]
    assert read_messages([*given, {"role": "assistant"}], warnings) == [
        Message("user", (TextPart("a"),)),
        Message("assistant", calls=(Call("f", "{}", "c1"),)),
        Message("assistant"),
    ]
    assert warnings == ["parts of type 'odd' are left out", "tool calls of type 'web_search' are left out"]


@pytest.mark.parametrize(
    ("arguments", "shown"), [(None, "{}"), ({"a": 1}, '{"a":1}'), ([1], "[1]"), ('{"a', '{"a'), ("", "")]
)
def test_arguments_that_a_model_wrote_are_taken_as_they_are(arguments: object, shown: str) -> None:
    given = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert read_messages([given])[0].calls == (Call("f", shown),)


@pytest.mark.parametrize(
    ("parts", "thoughts"),
    [
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}], "hm"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}], "hm"),
        ([{"type": "reasoning", "text": "h"}, {"type": "reasoning", "text": "m"}], "hm"),
        ([{"type": "redacted_thinking", "data": "x"}], ""),
    ],
)
def test_thoughts_may_be_parts_of_the_content(parts: object, thoughts: str) -> None:
    assert read_messages([{"role": "assistant", "content": parts}])[0].reasoning == thoughts
    listed = {"role": "assistant", "content": "a", "reasoning_content": [{"type": "text", "text": "hm"}]}
    assert read_messages([listed])[0].reasoning == "hm"


PATCH = {"type": "custom", "custom": {"name": "patch", "description": "d"}}


def test_tools_that_no_model_can_use_are_skipped_and_told() -> None:
    warnings: list[str] = []
    found = read_tools([TOOL, {"type": "web_search"}, PATCH], None, None, warnings)
    assert [tool.name for tool in found.tools.tools] == ["f", "patch"]
    assert found.custom == {"patch"}
    assert warnings == ["tools of type 'web_search' are left out: only the provider's servers execute them"]
    only = read_tools([{"type": "web_search"}], "required", None, warnings)
    assert (only.tools.choice, only.tools.callable) == ("auto", False)


@pytest.mark.parametrize(
    ("entry", "where"),
    [({"type": "function", "function": {"name": "g"}}, ".function.name"), ({"type": "function"}, ".name"), ("f", "")],
)
def test_a_tool_that_is_allowed_but_not_there_is_an_error(entry: object, where: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"tools": [TOOL, entry]}}
    with pytest.raises(InvalidRequest) as caught:
        tools_of([TOOL, PATCH], choice)
    assert caught.value.param == "tool_choice.allowed_tools.tools.1" + where
