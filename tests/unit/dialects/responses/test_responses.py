"""Bodies of responses, and the same events as a whole response and as a stream."""

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
from tests.unit.dialects.builders import Scripted, finished, make_model, started, text

ASKED = parse_response({"input": "Hi", "tools": [{"type": "custom", "name": "patch"}]})
FIELDS = {"id": "resp_1", "created_at": 1, "model": "demo", "parallel_tool_calls": True, "tools": []}
FIELDS |= {"tool_choice": "auto"}


def split(chunk: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in chunk.split(b"\n\n") if event]


SCRIPT: dict[str, list[Piece]] = {
    "call": [ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, '{"a"')],
    "args": [ToolCallArguments(0, ":1}")],
    "second": [ToolCallBegin(1, "c2", "g"), ToolCallArguments(1, "{}")],
    "patch": [ToolCallBegin(0, "c1", "patch"), ToolCallArguments(0, '{"input": "a')],
    "patched": [ToolCallArguments(0, 'b"}')],
}
CALLED = (started(), text("hi "), text("call"), text("args"), text("\n"), text("second"), finished())


class ScriptedParser(Scripted):
    SCRIPT = SCRIPT


def whole(*events: Event, prefill: str = "") -> dict[str, Any]:
    reply = ResponseWriter(ASKED, FIELDS, ScriptedParser, prefill)
    for event in events:
        reply.feed(0, event)
    body: dict[str, Any] = orjson.loads(orjson.dumps(reply.body()))
    Response.model_validate(body)
    return body


def parsed(raw: list[bytes]) -> list[dict[str, Any]]:
    """The events, each one whole, its name in both places, numbered from 0, and as the official client reads it."""
    events = []
    for number, event in enumerate(raw):
        name, data, *rest = event.split(b"\n")
        assert rest == [b"", b""]
        body = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + body["type"].encode()
        assert body["sequence_number"] == number
        if body["type"] != "keepalive" and "context_length_exceeded" not in str(body):  # no types of theirs
            TypeAdapter(ResponseStreamEvent).validate_python(body)
        events.append(body)
    return events


def streamed(*events: Event, prefill: str = "") -> list[dict[str, Any]]:
    stream = ResponseWriter(ASKED, FIELDS, ScriptedParser, prefill)
    return parsed([chunk for event in events for chunk in stream.feed(0, event)] + stream.finish())


def test_the_events_of_a_text_come_in_openais_order() -> None:
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


def test_white_space_between_items_is_no_message_and_in_front_of_text_it_stays() -> None:
    assert [item["type"] for item in whole(*CALLED)["output"]] == ["message", "function_call", "function_call"]
    [item] = whole(started(), text("\n"), text(" a"), finished())["output"]
    assert item["content"][0]["text"] == "\n a"
    [item] = whole(started(), text(" "), finished())["output"]
    assert item["content"][0]["text"] == " "


def test_content_that_the_prompt_began_is_a_part_of_the_message() -> None:
    events = started(), text(" there"), finished()
    assert whole(*events, prefill="Hello")["output"][0]["content"][0]["text"] == "Hello there"
    stream = streamed(*events, prefill="Hello")
    assert [event["delta"] for event in stream if "delta" in event] == ["Hello", " there"]


def test_progress_and_timings_stand_beside_the_fields() -> None:
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
def test_a_stream_that_fails_says_so(status: int, kind: str, code: str) -> None:
    stream = ResponseWriter(ASKED, FIELDS, ScriptedParser)
    raw = stream.feed(0, started()) + stream.feed(0, text("Hel"))
    events = parsed([*raw, *split(stream.failure(status, {"error": {"message": "went wrong", "type": kind}}))])
    assert (events[-2]["type"], events[-2]["code"], events[-2]["message"]) == ("error", code, "went wrong")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": code, "message": "went wrong"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_stream_that_fails_before_its_first_event_begins_all_the_same() -> None:
    stream = ResponseWriter(ASKED, FIELDS, ScriptedParser)
    events = parsed(split(stream.failure(500, {"error": {"message": "gone"}})))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]


def test_a_custom_tools_call_has_its_input() -> None:
    events = (started(), text("patch"), text("patched"), finished())
    [item] = whole(*events)["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "ab")
    of_input = [event for event in streamed(*events) if "custom_tool_call_input" in event["type"]]
    assert [event.get("delta") for event in of_input] == ["a", "b", None]
    assert of_input[-1]["input"] == "ab"


def test_a_ping_is_an_event_behind_the_first_ones() -> None:
    stream = ResponseWriter(ASKED, FIELDS, ScriptedParser)
    begun = [event + b"\n\n" for event in stream.ping().split(b"\n\n")[:-1]]
    events = parsed([*begun, stream.ping(), *stream.feed(0, started())])
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "keepalive"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]


def test_what_a_template_refuses_is_the_clients_input() -> None:
    model = make_model(template="{{ raise_exception('no more') }}")
    with pytest.raises(InvalidRequest, match=r"^input: .*no more") as caught:
        render(parse_response({"input": "hi", "instructions": "be brief"}).conversation, model)
    assert caught.value.param == "input"


def test_a_reference_stands_for_the_item_of_a_stored_response() -> None:
    content = [{"type": "output_text", "text": "so", "annotations": []}]
    item = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": content}
    asked = {"input": [{"type": "item_reference", "id": "msg_1"}]}
    found = parse_response(asked, History(referenced={"msg_1": item})).conversation
    assert found.messages == (Message("assistant", "so"),)
    with pytest.raises(InvalidRequest, match="two references"):
        parse_response({"input": asked["input"] * 2}, History(referenced={"msg_1": item}))


def test_a_conversation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_input, "MAX_MESSAGES", 2)
    said = [{"role": "user", "content": "x"}]
    parse_response({"input": said}, History(said))
    with pytest.raises(InvalidRequest, match="at most 2"):
        parse_response({"input": said * 2}, History(said))


def test_namespaces_do_not_evade_the_limit_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.dialects.tools.MAX_FUNCTIONS", 3)
    functions = [{"type": "function", "name": name} for name in "fg"]
    spaces = [{"type": "namespace", "name": name, "tools": functions} for name in "ab"]
    parse_response({"input": "hi", "tools": spaces[:1]})
    with pytest.raises(InvalidRequest, match="at most 3 functions"):
        parse_response({"input": "hi", "tools": spaces})


def test_secrets_of_an_mcp_server_that_is_left_out_are_not_repeated() -> None:
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
    parsed = parse_response({"input": items, "tools": [space]})
    assert "SECRET" not in repr([parsed.shown_tools, parsed.input_items])
