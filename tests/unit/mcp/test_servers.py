"""Listing and calling MCP tools, on servers of the official package and on broken programs."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import orjson
import pytest
from mcp import Client
from starlette.responses import Response

from server.mcp.config import McpRules, McpServer, read_servers
from server.mcp.connection import _logged
from server.mcp.servers import Json, McpFault, McpServers
from server.media.hosts import AllowedHosts
from server.media.source import Media
from tests.support.mcp_server import PNG, STDIO, Tools, served


@asynccontextmanager
async def mcp_servers(*, hosts: AllowedHosts | None = None, **configured: Any) -> AsyncIterator[McpServers]:
    servers = McpServers(read_servers(configured), hosts or AllowedHosts(), McpRules(max_chars=1000))
    try:
        yield servers
    finally:
        await servers.close()


async def call_add(servers: McpServers, a: int = 1) -> str:
    """Return the result of the tool ``add`` with 2 as its second number."""
    return (await servers.call(servers.configured["x"], "add", {"a": a, "b": 2})).text


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a version of MCP with sessions."""
    monkeypatch.setattr("server.mcp.connection.Client", partial(Client, mode="legacy"))


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_tools_are_listed_and_called(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    tools = Tools()
    async with served(tools) as url:
        entry = STDIO | {"env": {"OWN": "1"}} if transport == "stdio" else {"url": url}
        async with mcp_servers(x=entry) as servers:
            server = servers.configured["x"]
            await servers.start()
            listed = {tool.name: tool for tool in servers.tools["x"]}
            assert listed["add"].description == "Adds two numbers."
            assert listed["add"].is_read_only
            assert not listed["fail"].is_read_only
            assert listed["add"].schema["required"] == ["a", "b"]
            assert await call_add(servers) == "3"
            assert (await servers.call(server, "a/b:c", {})).text == "odd"
            failed = await servers.call(server, "fail", {"why": "no bread"})
            assert failed.is_error
            assert "no bread" in failed.text
            assert (await servers.call(server, "add", {"a": "?"})).is_error
            assert (await servers.call(server, "nothing", {})).is_error
            image = await servers.call(server, "image", {})
            assert (image.text, image.images) == ("a dot", (Media("image", "image/png", source=PNG.read_bytes()),))
            assert listed["pay"].schema["properties"]["amount"]["maximum"] == pytest.approx(2**256)
            orjson.dumps(listed["pay"].schema)
            assert (await servers.call(server, "pay", {"amount": 1})).text == f'{{"paid":{2**256}}}'
            huge = await servers.call(server, "huge", {"n": 3_000_000})
            assert len(huge.text) < 1100
            assert huge.text.endswith("[cut off: 2999000 more characters]")
            if transport == "stdio":
                own = [(await servers.call(server, "environment", {"name": n})).text for n in ("OWN", "LLAMA_API_KEY")]
                assert own == ["1", "unset"]


async def test_cancelling_a_call_cancels_it_at_the_server() -> None:
    tools = Tools()
    async with served(tools) as url, mcp_servers(x={"url": url}) as servers:
        call = asyncio.create_task(servers.call(servers.configured["x"], "wait", {}))
        await tools.started.wait()
        call.cancel()
        await tools.cancelled.wait()
        assert await call_add(servers) == "3"
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("for line in sys.stdin: pass", "no answer within"),
        ("print('x' * 100000)\nprint('[]')\nfor line in sys.stdin: print('{}', flush=True)", "no answer within"),
        ("pass", "onnection"),
    ],
    ids=["silent", "other output", "exits"],
)
async def test_program_that_does_not_speak_mcp_raises_a_fault(program: str, message: str) -> None:
    command = {"command": sys.executable, "args": ["-c", f"import sys\n{program}"], "timeout_ms": 1000}
    async with mcp_servers(x=command) as servers:
        for _ in range(2):  # the second call does not start it again
            with pytest.raises(McpFault, match=message):
                await servers.call(servers.configured["x"], "add", {})


ECHO = """
import json, sys
results = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = results.get(message["method"])
        body = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
"""


def program_with(result: Json, **tool: Any) -> Json:
    """Return the entry of a program whose only tool is ``add``, with that result."""
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    listed = {"tools": [{"name": "add", "inputSchema": {"type": "object"}, **tool}]}
    results = {"initialize": start, "tools/list": listed, "tools/call": result}
    return {"command": sys.executable, "args": ["-c", ECHO, json.dumps(results)]}


@pytest.mark.parametrize("block", [0, {"type": "text", "text": "x"}], ids=["invalid", "valid"])
async def test_result_with_too_many_values_is_a_fault(block: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.connection.MAX_VALUES", 1000)
    async with mcp_servers(x=program_with({"content": [block] * 1000})) as servers:
        with pytest.raises(McpFault, match="more than 1000 values"):
            await call_add(servers)
    values = {"content": [], "structuredContent": {"a": [0] * 1000}}
    async with mcp_servers(x=program_with(values)) as servers:
        assert "0,0" in await call_add(servers)


async def test_results_are_not_validated_against_output_schemas() -> None:
    """The package would do it on the event loop, which a pattern can block for ever."""
    pattern = {"type": "object", "properties": {"a": {"pattern": "^a$"}}}
    result = {"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": "b"}}
    async with mcp_servers(x=program_with(result, outputSchema=pattern)) as servers:
        assert await call_add(servers) == "x"


RPC_ERROR = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "no such tool"}}'


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (401, b'{"error": "unauthorized"}', ("HTTP status 401", "http", 401)),
        (404, b"", ("HTTP status 404", "http", 404)),
        (503, b"<html>", ("HTTP status 503", "http", 503)),
        (400, RPC_ERROR, ("no such tool", "protocol", -32602)),
    ],
)
async def test_fault_has_the_http_status(status: int, body: bytes, fault: tuple[Any, ...], is_open: bool) -> None:
    tools = Tools()
    async with served(tools) as url, mcp_servers(x={"url": url}) as servers:
        if is_open:
            await call_add(servers)
        tools.refusal = Response(body, status, media_type="application/json")
        with pytest.raises(McpFault) as raised:
            await call_add(servers)
        assert (raised.value.message, raised.value.kind, raised.value.code) == fault
        if is_open:
            tools.refusal = None
            assert await call_add(servers) == "3"


async def test_missing_program_raises_a_fault() -> None:
    async with mcp_servers(x={"command": "/nonexistent"}) as servers:
        await servers.start()
        assert servers.tools == {}
        with pytest.raises(McpFault, match="No such file"):
            await servers.call(servers.configured["x"], "add", {})


async def test_stderr_of_a_program_is_logged_until_the_connection_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "server.mcp.connection"), _logged("x") as file:
        duplicate = os.dup(file.fileno())  # a child of the program may have one
        os.write(duplicate, b"one\ntwo\n")
        for _ in range(3):
            await asyncio.sleep(0)
        assert caplog.messages == ["MCP server x: one", "MCP server x: two"]
        os.write(duplicate, b"last\n" * 2000)
    assert caplog.messages[2:].count("MCP server x: last") > 1990  # a few are split between two reads
    with pytest.raises(BrokenPipeError):
        os.write(duplicate, b"three\n")
    os.close(duplicate)


async def test_program_that_has_exited_is_started_again() -> None:
    async with mcp_servers(x=STDIO) as servers:
        await servers.list_tools(servers.configured["x"])
        (connection,) = servers._connections.values()
        send, receive = anyio.create_memory_object_stream[Any](0)
        send.close()  # the state of a connection whose program has exited
        receive.close()
        connection._incoming = receive
        assert await call_add(servers) == "3"


@pytest.mark.usefixtures("sessions")
async def test_session_that_the_server_has_ended_is_opened_again() -> None:
    tools = Tools()
    async with served(tools) as url, mcp_servers(x={"url": url}) as servers:
        assert await call_add(servers) == "3"
        assert len(tools.sessions) == 1
        tools.sessions.clear()
        assert await asyncio.gather(*(call_add(servers, a) for a in range(8))) == [*"23456789"]
        assert len(tools.calls) == 9
        tools.sessions.clear()
        assert "add" in [tool.name for tool in await servers.list_tools(servers.configured["x"])]


@pytest.mark.usefixtures("sessions")
async def test_running_call_of_an_ended_session_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.connection.CLOSE_S", 0.2)
    tools = Tools()
    async with served(tools) as url, mcp_servers(x={"url": url}) as servers:
        running = asyncio.create_task(servers.call(servers.configured["x"], "wait", {}))
        await tools.started.wait()
        tools.started.clear()
        tools.sessions.clear()
        assert await call_add(servers) == "3"
        with pytest.raises(McpFault, match="onnection"):
            await running
        assert not tools.started.is_set()


@pytest.mark.usefixtures("sessions")
async def test_close_does_not_wait_for_a_server_that_does_not_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("mcp.server.streamable_http.StreamableHTTPServerTransport._handle_delete_request", hang)
    monkeypatch.setattr("server.mcp.connection.CLOSE_S", 0.2)
    async with served(Tools()) as url, mcp_servers(x={"url": url}) as servers:
        assert await call_add(servers) == "3"
        await asyncio.wait_for(servers.close(), 20)


async def test_program_that_hangs_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, signal\nfrom tests.support.mcp_server import Tools\nserver = Tools().make()\n"
    program += "server.tool(name='stop')(lambda: os.kill(os.getpid(), signal.SIGSTOP))\nserver.run()"
    for timeout in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{timeout}", 0.2)
    async with mcp_servers(x={"command": sys.executable, "args": ["-c", program], "timeout_ms": 200}) as servers:
        server = servers.configured["x"]
        await servers.list_tools(server)
        with monkeypatch.context() as patched:
            patched.setattr("server.mcp.servers.LIST_TIMEOUT_S", 0.2)
            with pytest.raises(McpFault, match="no answer"):
                await servers.call(server, "stop", {})
            with pytest.raises(McpFault, match="no answer"):
                await servers.list_tools(server)
        assert "add" in [tool.name for tool in await servers.list_tools(server)]


@pytest.mark.parametrize(
    ("url", "hosts", "message"),
    [
        ("http://localhost:1/mcp", AllowedHosts(), "not among the hosts"),
        ("http://localhost:1/mcp", AllowedHosts(anywhere=True), "not of the open internet"),
        ("http://localhost:1/mcp", AllowedHosts(hosts=("localhost",)), "not of the open internet"),
        ("http://[::ffff:127.0.0.1]:1/mcp", AllowedHosts(anywhere=True), "not of the open internet"),
        ("http://169.254.169.254/mcp", AllowedHosts(anywhere=True), "not of the open internet"),
        ("http://127.0.0.1:1/mcp", AllowedHosts(hosts=("127.0.0.1",)), "can't be reached"),
    ],
)
async def test_urls_of_requests_cannot_reach_internal_networks(url: str, hosts: AllowedHosts, message: str) -> None:
    async with mcp_servers(hosts=hosts) as servers:
        with pytest.raises(McpFault, match=message):
            await servers.list_tools(McpServer("x", url=url, owner="somebody"))


async def test_allowed_url_of_a_request_is_called_with_its_headers() -> None:
    async with served(Tools()) as url, mcp_servers(hosts=AllowedHosts(hosts=("127.0.0.1",))) as servers:
        server = McpServer("x", url=url, headers=(("Authorization", "Bearer t"),), owner="somebody")
        assert (await servers.call(server, "add", {"a": 1, "b": 2})).text == "3"


async def test_tools_outside_allowed_tools_are_neither_listed_nor_called() -> None:
    async with mcp_servers(x=STDIO | {"allowed_tools": ["add"]}) as servers:
        server = servers.configured["x"]
        assert [tool.name for tool in await servers.list_tools(server)] == ["add"]
        with pytest.raises(McpFault, match="not allowed"):
            await servers.call(server, "fail", {"why": ""})


def test_configuration_in_cursors_format_is_read() -> None:
    config = {"mcpServers": {"a": {"command": "x", "args": ["1"], "timeout_ms": 500, "type": "stdio"}, "b": {}}}
    assert read_servers(config) == {"a": McpServer("a", "x", ("1",), timeout_s=0.5)}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mcpServers": []}, "should be an object"),
        ({"a": {"command": 5}}, "a.command"),
        ({"a": {"url": "ftp://x"}}, "http or https"),
        ({"a": {"command": "x", "url": "http://x"}}, "give one"),
    ],
)
def test_invalid_configurations_are_rejected(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_servers(config)
