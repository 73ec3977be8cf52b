"""Tool types whose calls the client executes: shown as functions, returned as the items that OpenAI's SDK expects."""

from collections.abc import Sequence
from typing import Any, ClassVar

import orjson
import pytest
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from server.chat.conversation import Call
from server.dialects.mcp import ServerTools
from server.dialects.responses.parse import ResponseRequest, parse_response
from server.dialects.responses.tools import read_mcp
from server.dialects.responses.write import ResponseWriter
from server.dialects.tool_types import RESPONSES
from server.engine.request import Event, FinishReason
from server.errors import InvalidRequest
from server.formats.parsing.pieces import ContentText, Piece, ToolCallArguments, ToolCallBegin
from server.mcp.config import McpServer
from server.mcp.servers import McpServers, McpTool
from tests.unit.dialects.builders import Scripted, finished, started, text

SEARCH_PARAMETERS = {"type": "object", "properties": {"goal": {"type": "string"}}, "required": ["goal"]}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": SEARCH_PARAMETERS}
TOOLS = [
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local", "skills": [{"name": "pdf", "path": "/s", "description": "d"}]}},
    {"type": "apply_patch"},
    SEARCH,
    {"type": "computer"},
]
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local_shell": (
        {"command": ["ls", "-l"], "timeout_ms": 5},
        {"action": {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 5}},
    ),
    "shell": (
        {"commands": ["ls", "pwd"]},
        {"action": {"commands": ["ls", "pwd"]}, "environment": {"type": "local"}},
    ),
    "apply_patch": (
        {"type": "create_file", "path": "a.py", "diff": "+1\n"},
        {"operation": {"type": "create_file", "path": "a.py", "diff": "+1\n"}},
    ),
    "tool_search": ({"goal": "größer"}, {"execution": "client", "arguments": {"goal": "größer"}}),
    "computer": (
        {"actions": [{"type": "click", "x": 1, "y": 2, "button": "left"}]},
        {"actions": [{"type": "click", "x": 1, "y": 2, "button": "left"}], "pending_safety_checks": []},
    ),
}
FIELDS = {"id": "resp_1", "created_at": 1, "model": "demo", "parallel_tool_calls": True, "tool_choice": "auto"}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def read(**fields: Any) -> ResponseRequest:
    return parse_response({"input": "hi", **fields})


def writer(asked: ResponseRequest, name: str, arguments: str) -> ResponseWriter:
    """Of a call that a model writes in two pieces, followed by a text."""

    class Parser(Scripted):
        SCRIPT: ClassVar[dict[str, list[Piece]]] = {
            "call": [ToolCallBegin(0, "c1", name), ToolCallArguments(0, arguments[:9])],
            "more": [ToolCallArguments(0, arguments[9:])],
            "text": [ContentText("done")],
        }

    return ResponseWriter(asked, {**FIELDS, "tools": asked.shown_tools}, Parser)


def feeds(reason: FinishReason) -> Sequence[Event]:
    rest = () if reason is FinishReason.LIMIT else (text("text"),)
    return (started(), text("call"), text("more"), *rest, finished(reason=reason))


def whole(asked: ResponseRequest, name: str, arguments: str, reason: FinishReason = FinishReason.EOS) -> dict[str, Any]:
    reply = writer(asked, name, arguments)
    for event in feeds(reason):
        reply.feed(0, event)
    body = orjson.loads(orjson.dumps(reply.body()))
    TypeAdapter(Response).validate_python(body)
    item: dict[str, Any] = body["output"][0]
    TypeAdapter(ResponseOutputItem).validate_python(item)
    return item


def streamed(
    asked: ResponseRequest, name: str, arguments: str, reason: FinishReason = FinishReason.EOS
) -> list[dict[str, Any]]:
    stream = writer(asked, name, arguments)
    raw = [chunk for event in feeds(reason) for chunk in stream.feed(0, event)] + stream.finish()
    events = [orjson.loads(each.split(b"\ndata: ")[1]) for each in raw]
    for event in events:
        EVENT.validate_python(event)
    return events


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_the_item_that_the_client_expects_and_goes_back_as_it_was(name: str) -> None:
    asked = read(tools=TOOLS)
    arguments, members = CALLS[name]
    written = orjson.dumps(arguments).decode()
    item = whole(asked, name, written)
    assert item == {
        "id": item["id"],
        "type": RESPONSES[name].call,
        "status": "completed",
        "call_id": "c1",
        **members,
    }
    assert item["id"].startswith(RESPONSES[name].prefix)
    events = streamed(asked, name, written)
    added, done = (
        next(each["item"] for each in events if each["type"] == f"response.output_item.{state}")
        for state in ("added", "done")
    )
    assert {**done, "id": ""} == {**item, "id": ""}
    assert (added["type"], added["status"], added["id"]) == (item["type"], "in_progress", done["id"])
    assert done == events[-1]["response"]["output"][0]
    back = read(tools=TOOLS, input=[{"role": "user", "content": "hi"}, item]).conversation.messages[1]
    assert [(call.name, orjson.loads(call.arguments), call.id) for call in back.calls] == [(name, arguments, "c1")]


def test_a_shells_commands_have_events_of_their_own() -> None:
    asked = read(tools=TOOLS)
    events = streamed(asked, "shell", '{"commands": ["ls", "pwd"]}')
    told = [event for event in events if "shell_call_command" in event["type"]]
    assert [(event["type"].rpartition(".")[2], event["command_index"]) for event in told] == [
        (kind, number) for number in (0, 1) for kind in ("added", "delta", "done")
    ]
    assert [event["command"] for event in told if event["type"].endswith("done")] == ["ls", "pwd"]


@pytest.mark.parametrize(
    "tool",
    [
        *(
            {"type": kind}
            for kind in ("web_search", "web_search_preview_2025_03_11", "file_search", "image_generation")
        ),
        *({"type": kind} for kind in ("code_interpreter", "programmatic_tool_calling", "tool_search")),
        {"type": "tool_search", "execution": "server"},
        {"type": "shell", "environment": {"type": "container_auto"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["tools", "additional_tools", "tool_search_output", "namespace", "allowed_tools"])
def test_what_only_the_providers_servers_execute_is_left_out_wherever_it_is(tool: dict[str, Any], where: str) -> None:
    own = {"type": "function", "name": "f"}
    fields: dict[str, Any] = {"tools": [own]}
    match where:
        case "tools":
            fields["tools"] = [own, tool]
        case "namespace":
            fields["tools"] = [own, {"type": "namespace", "name": "n", "description": "", "tools": [tool]}]
        case "allowed_tools":
            fields["tools"] = [own, tool]
            fields["tool_choice"] = {"type": "allowed_tools", "mode": "auto", "tools": [own, tool]}
        case _:
            item = {"type": where, "role": "developer", "call_id": "c", "tools": [tool]}
            fields["input"] = [{"role": "user", "content": "hi"}, item]
    asked = read(**fields)
    assert [found.name for found in asked.conversation.tools.tools] == ["f"]
    assert asked.warnings
    for warning in (each for each in asked.warnings if "unknown field" not in each):
        assert f"tools of type '{tool['type']}' are left out: only the provider's servers execute them" in warning


def test_the_preview_of_the_computer_has_one_action() -> None:
    asked = read(
        tools=[{"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"}]
    )
    item = whole(asked, "computer", '{"action": {"type": "wait"}}')
    assert item.items() >= {"type": "computer_call", "action": {"type": "wait"}}.items()
    back = read(input=[{"role": "user", "content": "hi"}, item]).conversation.messages[1]
    assert back.calls == (Call("computer", '{"action": {"type": "wait"}}', "c1"),)


@pytest.mark.parametrize(
    ("choice", "names", "mode", "required"),
    [
        ({"type": "mcp", "server_label": "x"}, ["x__a", "x__b"], "required", ""),
        ({"type": "mcp", "server_label": "x", "name": "a"}, ["x__a", "x__b", "f"], "required", "x__a"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x", "name": "b"}]},
            *(["x__b"], "auto", ""),
        ),
    ],
)
def test_a_choice_may_name_an_mcp_server(choice: Any, names: list[str], mode: str, required: str) -> None:
    given = [{"type": "mcp", "server_label": "x", "server_url": "https://x.example"}, {"type": "function", "name": "f"}]
    (server,) = read_mcp(given, "", [])
    server.server, server.tools = McpServer("x"), (McpTool("a", "", {}), McpTool("b", "", {}))
    tools = ServerTools(McpServers(), [server], given)
    found = parse_response({"input": "hi", "tools": given, "tool_choice": choice}, mcp=tools).conversation.tools
    assert ([tool.name for tool in found.tools], found.choice, found.name) == (names, mode, required)


LABELS = {"x": ("a", "b", "c"), "y.": ("a",), "y_": ("a", "c")}  # of MCP servers, with their tools


@pytest.mark.parametrize(
    ("choice", "required"),
    [
        ({"type": "mcp", "server_label": "x", "name": "a"}, "x__a_2"),  # the model's name of the client's is x__a
        ({"type": "mcp", "server_label": "y_", "name": "a"}, "y___a_2"),  # so is that of y.'s a
        ({"type": "mcp", "server_label": "", "name": "b"}, None),
        ({"type": "function", "name": "a"}, "n__a"),
        ({"type": "function", "name": "b"}, "x__b"),
        ({"type": "function", "name": "c"}, None),  # of two servers
    ],
)
def test_a_choice_of_a_name_that_several_tools_have(choice: Any, required: str | None) -> None:
    own: list[Any] = [{"type": "function", "name": "x__a"}]
    own.append({"type": "namespace", "name": "n", "description": "", "tools": [{"type": "function", "name": "a"}]})
    given = [*own, *({"type": "mcp", "server_label": label, "server_url": "https://x.example"} for label in LABELS)]
    servers = read_mcp(given, "", [])
    for server, names in zip(servers, LABELS.values(), strict=True):
        server.server, server.tools = McpServer(server.label), tuple(McpTool(name, "", {}) for name in names)
    tools = ServerTools(McpServers(), servers, given)
    body = {"input": "hi", "tools": given, "tool_choice": choice}
    if required is None:
        with pytest.raises(InvalidRequest, match="tool"):
            parse_response(body, mcp=tools)
    else:
        assert parse_response(body, mcp=tools).conversation.tools.name == required


class Looked(dict[str, Any]):
    """Tools by name that count how often a name is looked for."""

    n_looks = 0

    def __contains__(self, name: object) -> bool:
        Looked.n_looks += 1
        return super().__contains__(name)


class CountedTools(ServerTools):
    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, Looked() if name == "tools" else value)


def test_tools_of_one_name_are_numbered_in_time_in_proportion() -> None:
    (server,) = read_mcp([{"type": "mcp", "server_label": "x", "server_url": "https://x.example"}], "", [])
    server.server, server.tools = McpServer("x"), (McpTool("a", "", {}),) * 500
    tools = CountedTools(McpServers(), [server]).tools
    assert list(tools)[:3] == ["x__a", "x__a_2", "x__a_3"]
    assert Looked.n_looks < 5 * len(tools) == 5 * 500
