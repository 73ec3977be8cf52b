import pytest

from server.chat.conversation import Call, Message, TextPart, Tool
from server.dialects.chat.parse import read_messages
from server.dialects.warnings import Omitted
from tests.unit.dialects.builders import tools_of

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_tools_get_llama_servers_form() -> None:
    bare = {"type": "function", "function": {"name": "g", "strict": True}}
    got = tools_of([TOOL, bare], None, None)
    assert got.tools[0].function == TOOL["function"]
    assert got.tools[1] == Tool("g", strict=True, at="tools.1.function.parameters")
    assert got.callable


def test_what_no_model_can_be_shown_is_skipped_and_told() -> None:
    omitted = Omitted()
    calls = [{"type": None, **{key: CALL[key] for key in ("id", "function")}}, {"type": "web_search", "id": "c2"}]
    given = [user([{"type": "odd"}, {"type": "text", "text": "a"}]), {"role": "assistant", "tool_calls": calls}]
    assert read_messages([*given, {"role": "assistant"}], omitted) == [
        Message("user", (TextPart("a"),)),
        Message("assistant", calls=(Call("f", "{}", "c1"),)),
        Message("assistant"),
    ]
    assert omitted.warnings() == ["parts of type 'odd' are left out", "tool calls of type 'web_search' are left out"]


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
