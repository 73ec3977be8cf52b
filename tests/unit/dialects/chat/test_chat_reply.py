"""Whole and streamed chat replies, written from scripted engine events."""

from collections.abc import Iterable
from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.chat.write import ChatWriter
from server.engine.request import Event, Progress, TokenLogprob
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import HEADER, ScriptedParser, chunks, finished, started, text

SCRIPT: dict[str, list[Piece]] = {
    "call": [ToolCallBegin(0, "c1", "patch"), ToolCallArguments(0, '{"input": "a')],
    "rest": [ToolCallArguments(0, 'b"}')],
}


def writer(**fields: Any) -> ChatWriter:
    request = parse_chat({"messages": [{"role": "user", "content": "Hi"}], **fields})
    return ChatWriter(request, HEADER, lambda: ScriptedParser(SCRIPT))


def streamed(*events: Event, **fields: Any) -> list[dict[str, Any]]:
    stream = writer(**fields)
    raw = [chunk for event in events for chunk in stream.feed(0, event)] + stream.finish()
    assert raw[-1] == b"data: [DONE]\n\n"
    return chunks(raw)


def deltas(parsed: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in parsed for choice in chunk["choices"]]


def test_the_first_progress_chunk_has_the_role() -> None:
    parsed = streamed(Progress(0, 10, 2, 2, 0.0), Progress(0, 10, 2, 10, 3.0), started(), text("a"), finished())
    assert deltas(parsed) == [{"role": "assistant", "content": ""}, {"content": ""}, {"content": "a"}, {}]
    assert parsed[1]["prompt_progress"] == {"total": 10, "cache": 2, "processed": 10, "time_ms": 3}
    assert parsed[1]["timings"]["prompt_n"] == 8


def test_the_first_content_is_null_if_the_model_may_call_a_tool() -> None:
    """Vercel's AI SDK starts a text part for any other content."""
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    for fields, content in ((tools, None), (tools | {"tool_choice": "none"}, "")):
        assert deltas(chunks(writer(**fields).feed(0, started()))) == [{"role": "assistant", "content": content}]


@pytest.mark.parametrize("index", [0, 12])
@pytest.mark.parametrize("content", ["a", 'é\u2028 "\n\x00\\'])
def test_the_fast_path_for_text_writes_the_same_bytes_as_any_chunk(index: int, content: str) -> None:
    """Uses the private `_chunk`, because a stream never writes plain text with it."""
    stream = writer(n=13)
    (chunk,) = stream.feed(0, text(content, index))
    assert chunk == stream._chunk(stream._choices[index], {"content": content}, {})


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


def test_logprobs_of_tokens_without_text_get_their_own_chunk() -> None:
    parsed = streamed(started(), text("", logprobs=[TokenLogprob(1, b"z", -0.5)]), finished())
    assert parsed[1]["choices"][0]["delta"] == {"content": ""}
    assert parsed[1]["choices"][0]["logprobs"]["content"][0]["token"] == "z"


def test_a_custom_tool_call_has_its_input() -> None:
    custom = [{"type": "custom", "custom": {"name": "patch"}}]
    events = (started(), text("call"), text("rest"), finished())
    reply = writer(tools=custom)
    for event in events:
        reply.feed(0, event)
    call = {"type": "custom", "custom": {"name": "patch", "input": "ab"}, "id": "c1"}
    assert reply.body()["choices"][0]["message"]["tool_calls"] == [call]
    parsed = streamed(*events, tools=custom)
    assert [each for delta in deltas(parsed) for each in delta.get("tool_calls", ())] == [
        {"index": 0, **call, "custom": {"name": "patch", "input": ""}},
        {"index": 0, "custom": {"input": "a"}},
        {"index": 0, "custom": {"input": "b"}},
    ]
