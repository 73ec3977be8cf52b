"""Tools of Responses that the client or an MCP server executes: the model sees functions, the client gets typed items.

Replies and events are validated against the types of OpenAI's SDK.
"""

from collections.abc import Iterable, Sequence
from typing import Any

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
from server.engine.request import Event
from server.errors import InvalidRequest
from server.formats.parsing.pieces import Piece, ToolCallArguments, ToolCallBegin
from server.mcp.config import McpServer
from server.mcp.servers import McpServers, McpTool
from tests.unit.dialects.builders import ScriptedParser, finished, started, text

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


def parsed(**fields: Any) -> ResponseRequest:
    return parse_response({"input": "hi", **fields})


def writer(request: ResponseRequest, name: str, arguments: str) -> ResponseWriter:
    """Return the writer of a reply in which a model calls `name` in two pieces; then a text follows."""
    script: dict[str, list[Piece]] = {
        "call": [ToolCallBegin(0, "c1", name), ToolCallArguments(0, arguments[:9])],
        "rest": [ToolCallArguments(0, arguments[9:])],
    }
    fields = {**FIELDS, "tools": request.shown_tools}
    return ResponseWriter(request, fields, lambda: ScriptedParser(script))


EVENTS: Sequence[Event] = (started(), text("call"), text("rest"), text("done"), finished())


def call_item(request: ResponseRequest, name: str, arguments: str) -> dict[str, Any]:
    """Return the item of the call in a whole reply."""
    reply = writer(request, name, arguments)
    for event in EVENTS:
        reply.feed(0, event)
    body = orjson.loads(orjson.dumps(reply.body()))
    TypeAdapter(Response).validate_python(body)
    item: dict[str, Any] = body["output"][0]
    TypeAdapter(ResponseOutputItem).validate_python(item)
    return item


def streamed(request: ResponseRequest, name: str, arguments: str) -> list[dict[str, Any]]:
    stream = writer(request, name, arguments)
    raw = [chunk for event in EVENTS for chunk in stream.feed(0, event)] + stream.finish()
    events = [orjson.loads(each.split(b"\ndata: ")[1]) for each in raw]
    for event in events:
        EVENT.validate_python(event)
    return events


@pytest.mark.parametrize("name", CALLS)
def test_a_call_becomes_the_items_of_its_type_and_is_parsed_back_unchanged(name: str) -> None:
    request = parsed(tools=TOOLS)
    arguments, members = CALLS[name]
    written = orjson.dumps(arguments).decode()
    item = call_item(request, name, written)
    assert item == {
        "id": item["id"],
        "type": RESPONSES[name].call,
        "status": "completed",
        "call_id": "c1",
        **members,
    }
    assert item["id"].startswith(RESPONSES[name].prefix)
    events = streamed(request, name, written)
    added, done = (
        next(each["item"] for each in events if each["type"] == f"response.output_item.{state}")
        for state in ("added", "done")
    )
    assert {**done, "id": ""} == {**item, "id": ""}
    assert (added["type"], added["status"], added["id"]) == (item["type"], "in_progress", done["id"])
    assert done == events[-1]["response"]["output"][0]
    message = parsed(tools=TOOLS, input=[{"role": "user", "content": "hi"}, item]).conversation.messages[1]
    assert [(call.name, orjson.loads(call.arguments), call.id) for call in message.calls] == [(name, arguments, "c1")]


def test_each_command_of_a_shell_call_has_its_own_events() -> None:
    stream = streamed(parsed(tools=TOOLS), "shell", '{"commands": ["ls", "pwd"]}')
    events = [event for event in stream if "shell_call_command" in event["type"]]
    assert [(event["type"].rpartition(".")[2], event["command_index"]) for event in events] == [
        (kind, number) for number in (0, 1) for kind in ("added", "delta", "done")
    ]
    assert [event["command"] for event in events if event["type"].endswith("done")] == ["ls", "pwd"]


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
def test_tools_that_only_the_providers_servers_execute_are_dropped(tool: dict[str, Any], where: str) -> None:
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
    request = parsed(**fields)
    assert [found.name for found in request.conversation.tools.tools] == ["f"]
    assert request.warnings
    for warning in (each for each in request.warnings if "unknown field" not in each):
        assert f"tools of type '{tool['type']}' are left out: only the provider's servers execute them" in warning


def test_a_call_of_the_computer_preview_has_one_action() -> None:
    tool = {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"}
    item = call_item(parsed(tools=[tool]), "computer", '{"action": {"type": "wait"}}')
    assert item.items() >= {"type": "computer_call", "action": {"type": "wait"}}.items()
    message = parsed(input=[{"role": "user", "content": "hi"}, item]).conversation.messages[1]
    assert message.calls == (Call("computer", '{"action": {"type": "wait"}}', "c1"),)


def server_tools(tools: list[Any], names: Iterable[str]) -> ServerTools:
    """Return the MCP tools of a body whose servers have tools of one letter, those of one server in each of `names`."""
    servers = read_mcp(tools, "", [])
    for server, letters in zip(servers, names, strict=True):
        server.server, server.tools = McpServer(server.label), tuple(McpTool(name, "", {}) for name in letters)
    return ServerTools(McpServers(), servers, tools)


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
def test_tool_choice_may_name_an_mcp_server(choice: Any, names: list[str], mode: str, required: str) -> None:
    tools = [{"type": "mcp", "server_label": "x", "server_url": "https://x.example"}, {"type": "function", "name": "f"}]
    body = {"input": "hi", "tools": tools, "tool_choice": choice}
    found = parse_response(body, mcp=server_tools(tools, ["ab"])).conversation.tools
    assert ([tool.name for tool in found.tools], found.choice, found.name) == (names, mode, required)


MCP_SERVERS = {"x": "abc", "y.": "a", "y_": "ac"}  # label: names of tools


@pytest.mark.parametrize(
    ("choice", "required"),
    [
        ({"type": "mcp", "server_label": "x", "name": "a"}, "x__a_2"),  # the model knows the client's function as x__a
        ({"type": "mcp", "server_label": "y_", "name": "a"}, "y___a_2"),  # the model knows tool a of y. as y___a
        ({"type": "mcp", "server_label": "", "name": "b"}, None),
        ({"type": "function", "name": "a"}, "n__a"),
        ({"type": "function", "name": "b"}, "x__b"),
        ({"type": "function", "name": "c"}, None),  # two servers have it
    ],
)
def test_tool_choice_resolves_a_name_that_several_tools_have(choice: Any, required: str | None) -> None:
    own: list[Any] = [{"type": "function", "name": "x__a"}]
    own.append({"type": "namespace", "name": "n", "description": "", "tools": [{"type": "function", "name": "a"}]})
    servers = ({"type": "mcp", "server_label": label, "server_url": "https://x.example"} for label in MCP_SERVERS)
    tools = [*own, *servers]
    body, mcp = {"input": "hi", "tools": tools, "tool_choice": choice}, server_tools(tools, MCP_SERVERS.values())
    if required is None:
        with pytest.raises(InvalidRequest, match="tool"):
            parse_response(body, mcp=mcp)
    else:
        assert parse_response(body, mcp=mcp).conversation.tools.name == required


class CountingDict(dict[str, Any]):
    """A dict that counts membership tests."""

    n_lookups = 0

    def __contains__(self, name: object) -> bool:
        CountingDict.n_lookups += 1
        return super().__contains__(name)


class CountingTools(ServerTools):
    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, CountingDict() if name == "tools" else value)


def test_numbering_tools_of_the_same_name_takes_linear_time() -> None:
    (server,) = read_mcp([{"type": "mcp", "server_label": "x", "server_url": "https://x.example"}], "", [])
    server.server, server.tools = McpServer("x"), (McpTool("a", "", {}),) * 500
    tools = CountingTools(McpServers(), [server]).tools
    assert list(tools)[:3] == ["x__a", "x__a_2", "x__a_3"]
    assert CountingDict.n_lookups < 5 * len(tools) == 5 * 500
