from collections.abc import Iterable
from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.chat.write import ChatWriter
from server.engine.request import Event, Progress
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import HEADER, Scripted, chunks, finished, logprob, started, text

SCRIPT: dict[str, list[Piece]] = {
    "patch": [ToolCallBegin(0, "c1", "patch"), ToolCallArguments(0, '{"input": "a')],
    "patched": [ToolCallArguments(0, 'b"}')],
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


@pytest.mark.parametrize("index", [0, 12])
@pytest.mark.parametrize("said", ["a", 'é\u2028 "\n\x00\\'])
def test_a_chunk_of_text_has_the_bytes_of_any_chunk(index: int, said: str) -> None:
    stream = writer(n=13)
    (chunk,) = stream.feed(0, text(said, index))
    assert chunk == stream._chunk(stream._choices[index], {"content": said}, {})


def test_a_reply_of_several_choices_has_the_timings_of_the_first() -> None:
    whole, stream = (writer(n=2, stream_options={"include_usage": True}) for _ in range(2))
    whole.streams = False
    for index in (1, 0):
        for each in (whole, stream):
            each.feed(0, started(index))
            each.feed(0, finished(index, n_predicted=index + 5))
    (last,) = chunks(stream.finish())
    assert last["timings"] == whole.body()["timings"]
    assert (last["timings"]["predicted_n"], last["usage"]["completion_tokens"]) == (5, 11)


def test_logprobs_without_any_text_get_a_chunk_of_their_own() -> None:
    parsed = streamed(started(), text("", logprobs=[logprob(b"z")]), finished())
    assert parsed[1]["choices"][0]["delta"] == {"content": ""}
    assert parsed[1]["choices"][0]["logprobs"]["content"][0]["token"] == "z"


def test_a_custom_tools_call_has_its_input() -> None:
    custom = [{"type": "custom", "custom": {"name": "patch"}}]
    events = (started(), text("patch"), text("patched"), finished())
    reply, stream = writer(tools=custom), writer(tools=custom)
    for event in events:
        reply.feed(0, event)
    call = {"type": "custom", "custom": {"name": "patch", "input": "ab"}, "id": "c1"}
    assert reply.body()["choices"][0]["message"]["tool_calls"] == [call]
    raw = [chunk for event in events for chunk in stream.feed(0, event)]
    assert [each for delta in deltas(chunks(raw)) for each in delta.get("tool_calls", ())] == [
        {"index": 0, **call, "custom": {"name": "patch", "input": ""}},
        {"index": 0, "custom": {"input": "a"}},
        {"index": 0, "custom": {"input": "b"}},
    ]
