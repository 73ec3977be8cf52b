from collections.abc import Iterable
from typing import Any

from server.dialects.chat.parse import parse_chat
from server.dialects.chat.write import ChatWriter
from server.engine.request import Event, Progress
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import HEADER, Scripted, chunks, finished, logprob, started, text

SCRIPT: dict[str, list[Piece]] = {
    "call": [ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, '{"a"')],
    "args": [ToolCallArguments(0, ":1}")],
    "patch": [ToolCallBegin(1, "c2", "patch"), ToolCallArguments(1, '{"input": "a')],
    "patched": [ToolCallArguments(1, '\\nb"}')],
    "raw": [ToolCallBegin(2, "c3", "patch"), ToolCallArguments(2, "*** x")],
}


class ScriptedParser(Scripted):
    SCRIPT = SCRIPT


def writer(**fields: Any) -> ChatWriter:
    return ChatWriter(parse_chat({"messages": [{"role": "user", "content": "Hi"}], **fields}), HEADER, ScriptedParser)


def streamed(*events: Event) -> list[dict[str, Any]]:
    stream = writer()
    raw = [chunk for event in events for chunk in stream.feed(0, event)] + stream.finish()
    assert raw[-1] == b"data: [DONE]\n\n"
    return chunks(raw)


def deltas(parsed: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in parsed for choice in chunk["choices"]]


def test_progress_comes_with_the_role_once() -> None:
    parsed = streamed(Progress(0, 10, 2, 2, 0.0), Progress(0, 10, 2, 10, 3.0), started(), text("a"), finished())
    assert deltas(parsed) == [{"role": "assistant", "content": ""}, {"content": ""}, {"content": "a"}, {}]
    assert parsed[1]["prompt_progress"] == {"total": 10, "cache": 2, "processed": 10, "time_ms": 3}
    assert parsed[1]["timings"]["prompt_n"] == 8


def test_the_first_content_is_null_where_a_tool_may_be_called() -> None:
    """Vercel's AI SDK begins a text part at any other content."""
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    for fields, content in ((tools, None), (tools | {"tool_choice": "none"}, "")):
        assert deltas(chunks(writer(**fields).feed(0, started()))) == [{"role": "assistant", "content": content}]


def test_logprobs_without_any_text_get_a_chunk_of_their_own() -> None:
    parsed = streamed(started(), text("", logprobs=[logprob(b"z")]), finished())
    assert parsed[1]["choices"][0]["delta"] == {"content": ""}
    assert parsed[1]["choices"][0]["logprobs"]["content"][0]["token"] == "z"


def test_a_custom_tools_call_has_its_input_as_it_was_meant() -> None:
    custom = [{"type": "custom", "custom": {"name": "patch"}}]
    events = (started(), text("call"), text("args"), text("patch"), text("patched"), text("raw"), finished())
    reply, stream = writer(tools=custom), writer(tools=custom)
    for event in events:
        reply.feed(0, event)
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}, "id": "c1"},
        {"type": "custom", "custom": {"name": "patch", "input": "a\nb"}, "id": "c2"},
        {"type": "custom", "custom": {"name": "patch", "input": "*** x"}, "id": "c3"},
    ]
    assert reply.body()["choices"][0]["message"]["tool_calls"] == calls
    raw = [chunk for event in events for chunk in stream.feed(0, event)]
    inputs = {1: "", 2: ""}
    for delta in deltas(chunks(raw)):
        for call in delta.get("tool_calls", ()):
            assert "function" not in call or call["index"] == 0
            if "custom" in call:
                assert call["custom"]["input"] or "id" in call
                inputs[call["index"]] += call["custom"]["input"]
    assert inputs == {1: "a\nb", 2: "*** x"}
