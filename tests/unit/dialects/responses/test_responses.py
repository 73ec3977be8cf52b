"""Whole and streamed responses, written from scripted engine events; histories and limits of bodies.

Replies and events are validated against the types of OpenAI's SDK.
"""

from typing import Any

import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from server.chat.conversation import Message
from server.chat.prompt import render
from server.dialects.responses import input as responses_input
from server.dialects.responses.input import History
from server.dialects.responses.parse import parse_response
from server.dialects.responses.write import ResponseWriter
from server.engine.request import Event, Progress
from server.errors import InvalidRequest
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import ScriptedParser, finished, make_model, started, text

REQUEST = parse_response({"input": "Hi", "tools": [{"type": "custom", "name": "patch"}]})
FIELDS = {"id": "resp_1", "created_at": 1, "model": "demo", "parallel_tool_calls": True, "tools": []}
FIELDS |= {"tool_choice": "auto"}


def split(chunk: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in chunk.split(b"\n\n") if event]


SCRIPT: dict[str, list[Piece]] = {
    "call": [ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, '{"a"')],
    "arguments": [ToolCallArguments(0, ":1}")],
    "second": [ToolCallBegin(1, "c2", "g"), ToolCallArguments(1, "{}")],
    "patch": [ToolCallBegin(0, "c1", "patch"), ToolCallArguments(0, '{"input": "a')],
    "patch rest": [ToolCallArguments(0, 'b"}')],
}
TWO_CALLS = (started(), text("hi "), text("call"), text("arguments"), text("\n"), text("second"), finished())


def writer(prefill: str = "") -> ResponseWriter:
    return ResponseWriter(REQUEST, FIELDS, lambda: ScriptedParser(SCRIPT), prefill)


def whole(*events: Event, prefill: str = "") -> dict[str, Any]:
    reply = writer(prefill)
    for event in events:
        reply.feed(0, event)
    body: dict[str, Any] = orjson.loads(orjson.dumps(reply.body()))
    Response.model_validate(body)
    return body


def parsed(raw: list[bytes]) -> list[dict[str, Any]]:
    """Parse events. Each must be whole, named by its type, numbered from 0, and valid for the official client."""
    events = []
    for number, event in enumerate(raw):
        name, data, *rest = event.split(b"\n")
        assert rest == [b"", b""]
        body = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + body["type"].encode()
        assert body["sequence_number"] == number
        if body["type"] != "keepalive" and "context_length_exceeded" not in str(body):  # the SDK has no types for these
            TypeAdapter(ResponseStreamEvent).validate_python(body)
        events.append(body)
    return events


def streamed(*events: Event, prefill: str = "") -> list[dict[str, Any]]:
    stream = writer(prefill)
    return parsed([chunk for event in events for chunk in stream.feed(0, event)] + stream.finish())


def test_a_text_has_openais_events_in_their_order() -> None:
    events = streamed(started(), text("Hello "), text("there"), finished())
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[2]["item"]["content"] == []
    assert events[3]["part"]["text"] == ""
    assert (events[6]["text"], events[7]["part"]["text"]) == ("Hello there", "Hello there")
    assert {event["item_id"] for event in events[3:8]} == {events[2]["item"]["id"]}


def test_white_space_between_calls_is_dropped_and_before_text_is_kept() -> None:
    assert [item["type"] for item in whole(*TWO_CALLS)["output"]] == ["message", "function_call", "function_call"]
    [item] = whole(started(), text("\n"), text(" a"), finished())["output"]
    assert item["content"][0]["text"] == "\n a"
    [item] = whole(started(), text(" "), finished())["output"]
    assert item["content"][0]["text"] == " "


def test_prefilled_content_is_part_of_the_message() -> None:
    events = started(), text(" there"), finished()
    assert whole(*events, prefill="Hello")["output"][0]["content"][0]["text"] == "Hello there"
    stream = streamed(*events, prefill="Hello")
    assert [event["delta"] for event in stream if "delta" in event] == ["Hello", " there"]


def test_events_have_llama_servers_progress_and_timings() -> None:
    events = streamed(Progress(0, 10, 2, 6, 5.0), started(), text("x", timed=True), finished())
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.in_progress",
        "response.in_progress",
    ]
    assert events[2]["prompt_progress"] == {"total": 10, "cache": 2, "processed": 6, "time_ms": 5}
    assert events[5]["type"] == "response.output_text.delta"
    assert "predicted_per_second" in events[5]["timings"]
    assert events[-1]["timings"]["predicted_n"] == 3


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (500, "server_error", "server_error"),
        (503, "unavailable_error", "server_error"),
        (429, "unavailable_error", "rate_limit_exceeded"),
        (400, "invalid_request_error", "invalid_prompt"),
        (400, "exceed_context_size_error", "context_length_exceeded"),
    ],
)
def test_a_failed_stream_ends_with_its_error(status: int, kind: str, code: str) -> None:
    stream = writer()
    raw = stream.feed(0, started()) + stream.feed(0, text("Hel"))
    events = parsed([*raw, *split(stream.failure(status, {"error": {"message": "went wrong", "type": kind}}))])
    assert (events[-2]["type"], events[-2]["code"], events[-2]["message"]) == ("error", code, "went wrong")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": code, "message": "went wrong"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_stream_that_fails_before_its_first_event_has_the_first_events() -> None:
    stream = writer()
    events = parsed(split(stream.failure(500, {"error": {"message": "gone"}})))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]


def test_a_custom_tool_call_has_its_input() -> None:
    events = (started(), text("patch"), text("patch rest"), finished())
    [item] = whole(*events)["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "ab")
    input_events = [event for event in streamed(*events) if "custom_tool_call_input" in event["type"]]
    assert [event.get("delta") for event in input_events] == ["a", "b", None]
    assert input_events[-1]["input"] == "ab"


def test_the_first_ping_is_preceded_by_the_first_events() -> None:
    stream = writer()
    events = parsed([*split(stream.ping()), stream.ping(), *stream.feed(0, started())])
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "keepalive"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]


def test_an_error_of_the_template_names_the_input_field() -> None:
    model = make_model(template="{{ raise_exception('no more') }}")
    with pytest.raises(InvalidRequest, match=r"^input: .*no more") as caught:
        render(parse_response({"input": "hi", "instructions": "be brief"}).conversation, model)
    assert caught.value.param == "input"


def test_an_item_reference_is_replaced_by_the_stored_item() -> None:
    content = [{"type": "output_text", "text": "so", "annotations": []}]
    item = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": content}
    references: list[Any] = [{"type": "item_reference", "id": "msg_1"}]
    conversation = parse_response({"input": references}, History(referenced={"msg_1": item})).conversation
    assert conversation.messages == (Message("assistant", "so"),)
    with pytest.raises(InvalidRequest, match="two references"):
        parse_response({"input": references * 2}, History(referenced={"msg_1": item}))


def test_a_conversation_has_a_maximum_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_input, "MAX_MESSAGES", 2)
    items = [{"role": "user", "content": "x"}]
    parse_response({"input": items}, History(items))
    with pytest.raises(InvalidRequest, match="at most 2"):
        parse_response({"input": items * 2}, History(items))


def test_functions_of_all_namespaces_count_toward_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.dialects.tools.MAX_FUNCTIONS", 3)
    functions = [{"type": "function", "name": name} for name in "fg"]
    spaces = [{"type": "namespace", "name": name, "tools": functions} for name in "ab"]
    parse_response({"input": "hi", "tools": spaces[:1]})
    with pytest.raises(InvalidRequest, match="at most 3 functions"):
        parse_response({"input": "hi", "tools": spaces})


def test_secrets_of_ignored_mcp_servers_are_not_returned() -> None:
    tool = {"type": "mcp", "server_label": "x", "authorization": "SECRET", "headers": {"X-Key": "SECRET"}}
    for url, origin in (("https://x.example/p?key=SECRET", "https://x.example"), ("http://[SECRET", None), ("", "")):
        [shown] = parse_response({"input": "hi", "tools": [{**tool, "server_url": url}]}).shown_tools
        assert shown == {"type": "mcp", "server_label": "x", "server_url": origin, "headers": None}
    space = {"type": "namespace", "name": "n", "description": "", "tools": [tool]}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "additional_tools", "role": "developer", "tools": [tool]},
        {"type": "tool_search_output", "execution": "client", "call_id": None, "tools": [tool, space]},
    ]
    request = parse_response({"input": items, "tools": [space]})
    assert "SECRET" not in repr([request.shown_tools, request.input_items])
