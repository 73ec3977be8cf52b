"""Lists and calls of tools, against servers of the official package and against hostile ones."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from mcp import Client

from server.mcp.config import McpRules, McpServer, read_servers
from server.mcp.connection import _logged
from server.mcp.servers import McpFault, McpServers
from server.media.hosts import AllowedHosts
from server.media.source import Media
from tests.support.mcp_server import PNG, STDIO, Tools, served

SILENT = "import sys\nfor line in sys.stdin: pass"
GARBAGE = "import sys\nprint('x' * 100000)\nprint('[]', flush=True)\nfor line in sys.stdin: print('{}', flush=True)"
ENDS = "pass"


@asynccontextmanager
async def opened(
    *, hosts: AllowedHosts | None = None, max_chars: int = 1000, **given: Any
) -> AsyncIterator[McpServers]:
    servers = McpServers(read_servers(given), hosts or AllowedHosts(), McpRules(max_chars=max_chars))
    try:
        yield servers
    finally:
        await servers.close()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_tools_are_listed_and_called(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    tools = Tools()
    async with served(tools) as url:
        entry = STDIO | {"env": {"OWN": "1"}} if transport == "stdio" else {"url": url}
        async with opened(x=entry) as servers:
            server = servers.configured["x"]
            await servers.start()
            listed = {tool.name: tool for tool in servers.tools["x"]}
            assert listed["add"].description == "Adds two numbers."
            assert listed["add"].is_read_only
            assert not listed["fail"].is_read_only
            assert listed["add"].schema["required"] == ["a", "b"]
            assert (await servers.call(server, "add", {"a": 1, "b": 2})).text == "3"
            assert (await servers.call(server, "a/b:c", {})).text == "odd"
            failed = await servers.call(server, "fail", {"why": "no bread"})
            assert failed.is_error
            assert "no bread" in failed.text
            assert (await servers.call(server, "add", {"a": "?"})).is_error
            assert (await servers.call(server, "nothing", {})).is_error
            seen = await servers.call(server, "picture", {})
            assert (seen.text, seen.images) == ("a dot", (Media("image", "image/png", source=PNG.read_bytes()),))
            huge = await servers.call(server, "huge", {"n": 3_000_000})
            assert len(huge.text) < 1100
            assert huge.text.endswith("[cut off: 2999000 more characters]")
            if transport == "stdio":
                own = [(await servers.call(server, "environment", {"name": n})).text for n in ("OWN", "LLAMA_API_KEY")]
                assert own == ["1", "unset"]


async def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    tools = Tools()
    async with served(tools) as url, opened(x={"url": url}) as servers:
        call = asyncio.create_task(servers.call(servers.configured["x"], "wait", {}))
        await tools.started.wait()
        call.cancel()
        await tools.cancelled.wait()
        assert (await servers.call(servers.configured["x"], "add", {"a": 1, "b": 2})).text == "3"
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize(
    ("program", "says"),
    [(SILENT, "no answer within"), (GARBAGE, "no answer within"), (ENDS, "onnection"), ("", "onnection")],
)
async def test_a_server_that_does_not_speak_the_protocol_is_a_fault(program: str, says: str) -> None:
    command = {"command": sys.executable, "args": ["-c", program], "timeout_ms": 1000}
    async with opened(x=command) as servers:
        for _ in range(2):  # the second time it is not started again
            with pytest.raises(McpFault, match=says):
                await servers.call(servers.configured["x"], "add", {})


async def test_a_program_that_is_missing_is_a_fault() -> None:
    async with opened(x={"command": "/nonexistent"}) as servers:
        await servers.start()
        assert servers.tools == {}
        with pytest.raises(McpFault, match="No such file"):
            await servers.call(servers.configured["x"], "add", {})


async def test_errors_are_logged_until_the_connection_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "server.mcp.connection"), _logged("x") as file:
        kept = os.dup(file.fileno())  # as a program's child may
        os.write(kept, b"one\ntwo\n")
        for _ in range(3):
            await asyncio.sleep(0)
        assert caplog.messages == ["MCP server x: one", "MCP server x: two"]
        os.write(kept, b"last\n" * 2000)
    assert caplog.messages[2:].count("MCP server x: last") > 1990  # a few are split where a part ends
    with pytest.raises(BrokenPipeError):
        os.write(kept, b"three\n")
    os.close(kept)


async def test_a_program_that_has_ended_is_started_again() -> None:
    async with opened(x=STDIO) as servers:
        server = servers.configured["x"]
        await servers.list_tools(server)
        (used,) = servers._used.values()
        writing, reading = anyio.create_memory_object_stream[Any](0)
        writing.close()  # as where the program ends
        reading.close()
        used._reading = reading
        assert (await servers.call(server, "add", {"a": 1, "b": 2})).text == "3"


async def test_a_session_that_the_server_has_ended_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.connection.Client", partial(Client, mode="legacy"))
    tools = Tools()
    async with served(tools) as url, opened(x={"url": url}) as servers:
        server = servers.configured["x"]
        assert (await servers.call(server, "add", {"a": 1, "b": 2})).text == "3"
        assert len(tools.sessions) == 1
        tools.sessions.clear()
        calls = [servers.call(server, "add", {"a": n, "b": 0}) for n in range(8)]
        assert [result.text for result in await asyncio.gather(*calls)] == [*"01234567"]
        assert len(tools.calls) == 9
        tools.sessions.clear()
        assert "add" in [tool.name for tool in await servers.list_tools(server)]


async def test_a_call_that_ran_in_an_ended_session_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.mcp.connection.Client", partial(Client, mode="legacy"))
    monkeypatch.setattr("server.mcp.connection.CLOSE_S", 0.2)
    tools = Tools()
    async with served(tools) as url, opened(x={"url": url}) as servers:
        server = servers.configured["x"]
        running = asyncio.create_task(servers.call(server, "wait", {}))
        await tools.started.wait()
        tools.started.clear()
        tools.sessions.clear()
        assert (await servers.call(server, "add", {"a": 1, "b": 2})).text == "3"
        with pytest.raises(McpFault, match="onnection"):
            await running
        assert not tools.started.is_set()


async def test_a_server_that_does_not_answer_is_not_waited_for_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("mcp.server.streamable_http.StreamableHTTPServerTransport._handle_delete_request", hang)
    monkeypatch.setattr("server.mcp.connection.Client", partial(Client, mode="legacy"))
    monkeypatch.setattr("server.mcp.connection.CLOSE_S", 0.2)
    async with served(Tools()) as url, opened(x={"url": url}) as servers:
        assert (await servers.call(servers.configured["x"], "add", {"a": 1, "b": 2})).text == "3"
        await asyncio.wait_for(servers.close(), 20)


async def test_a_program_that_hangs_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stops = "import os, signal\nfrom tests.support.mcp_server import Tools\nserver = Tools().make()\n"
    stops += "server.tool(name='stop')(lambda: os.kill(os.getpid(), signal.SIGSTOP))\nserver.run()"
    for wait in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{wait}", 0.2)
    async with opened(x={"command": sys.executable, "args": ["-c", stops], "timeout_ms": 200}) as servers:
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
    ("url", "hosts", "says"),
    [
        ("http://localhost:1/mcp", AllowedHosts(), "not among the hosts"),
        ("http://localhost:1/mcp", AllowedHosts(anywhere=True), "not of the open internet"),
        ("http://localhost:1/mcp", AllowedHosts(hosts=("localhost",)), "not of the open internet"),
        ("http://[::ffff:127.0.0.1]:1/mcp", AllowedHosts(anywhere=True), "not of the open internet"),
        ("http://169.254.169.254/mcp", AllowedHosts(anywhere=True), "not of the open internet"),
        ("http://127.0.0.1:1/mcp", AllowedHosts(hosts=("127.0.0.1",)), "can't be reached"),
    ],
)
async def test_a_requests_url_leads_to_no_inner_network(url: str, hosts: AllowedHosts, says: str) -> None:
    async with opened(hosts=hosts) as servers:
        with pytest.raises(McpFault, match=says):
            await servers.list_tools(McpServer("x", url=url, owner="somebody"))


async def test_a_requests_url_that_is_allowed_is_called_with_its_headers() -> None:
    async with served(Tools()) as url, opened(hosts=AllowedHosts(hosts=("127.0.0.1",))) as servers:
        server = McpServer("x", url=url, headers=(("Authorization", "Bearer t"),), owner="somebody")
        assert (await servers.call(server, "add", {"a": 1, "b": 2})).text == "3"


async def test_a_tool_that_the_configuration_leaves_out_is_not_called() -> None:
    async with opened(x=STDIO | {"allowed_tools": ["add"]}) as servers:
        server = servers.configured["x"]
        assert [tool.name for tool in await servers.list_tools(server)] == ["add"]
        with pytest.raises(McpFault, match="not allowed"):
            await servers.call(server, "fail", {"why": ""})


def test_the_configuration_is_cursors_json() -> None:
    given = {"mcpServers": {"a": {"command": "x", "args": ["1"], "timeout_ms": 500, "type": "stdio"}, "b": {}}}
    assert read_servers(given) == {"a": McpServer("a", "x", ("1",), timeout_s=0.5)}
    for wrong, says in (
        ({"mcpServers": []}, "should be an object"),
        ({"a": {"command": 5}}, "a.command"),
        ({"a": {"url": "ftp://x"}}, "http or https"),
        ({"a": {"command": "x", "url": "http://x"}}, "give one"),
    ):
        with pytest.raises(ValueError, match=says):
            read_servers(wrong)
