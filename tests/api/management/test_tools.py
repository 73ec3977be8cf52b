"""``--tools`` and tools of MCP servers under /tools: access, results, and the end of their processes."""

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest

from server.app import cors_origins
from server.web.tools.catalogue import SHELL, PageTools
from tests.api.conftest import Serve, make_settings, until
from tests.api.streams import posting
from tests.api.transport.test_keys import bearer, key_file
from tests.support.mcp_server import Tools, served

ALL = {"tools": "all"}


async def call_tool(client: httpx.AsyncClient, tool: str, params: object, **headers: str) -> httpx.Response:
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post("/tools", json={"tool": tool, "params": params}, headers=renamed)


async def test_tools_run_in_the_folder_of_the_header(serve: Serve, tmp_path: Path) -> None:
    async with serve(server=ALL) as api:
        listed = (await api.client.get("/tools")).json()
        writing = {tool["tool"] for tool in listed if tool["permissions"]["write"]}
        assert writing == {"exec_shell_command", "write_file", "edit_file"}
        assert (await api.client.get("/page/config")).json()["tools"] is True
        folder = {"x_tool_cwd": str(tmp_path)}
        await call_tool(api.client, "write_file", {"path": "a.txt", "content": "hello\n", "cwd": "/nowhere"}, **folder)
        assert (tmp_path / "a.txt").read_text() == "hello\n"
        reply = await call_tool(api.client, "exec_shell_command", {"command": "cat a.txt; exit 3"}, **folder)
        assert reply.json() == {"plain_text_response": "hello\n\n[exit code: 3]"}
        raw = await call_tool(api.client, "read_file", {"path": "a.txt"}, x_resp_type="base64", **folder)
        assert raw.json() == {"base64": "aGVsbG8K", "size_bytes": 6}
        missing = await call_tool(api.client, "read_file", {"path": "a.txt"}, x_tool_cwd=str(tmp_path / "gone"))
        assert "can't work" in missing.json()["error"]


async def test_command_is_limited_and_does_not_see_api_keys(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    async with serve(server=ALL) as api:
        params = {"command": "echo $LLAMA_API_KEY; yes | head -c 100000", "max_output_size": 5}
        result = (await call_tool(api.client, "exec_shell_command", params)).json()
        assert result["plain_text_response"] == "\ny\ny\n\n[output truncated]\n[exit code: 0]"
        params = {"command": "echo a; sleep 1000", "timeout": 0}
        result = (await call_tool(api.client, "exec_shell_command", params)).json()
        assert result["plain_text_response"].endswith("[exit code: -9] [exit due to timed out]")


async def test_command_ends_when_its_client_disconnects(serve: Serve, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with serve(server=ALL) as api:
        command = f"echo $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 1000"
        async with posting(api.app, "/tools", {"tool": "exec_shell_command", "params": {"command": command}}):
            await until(pid.exists)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


async def test_cancelled_command_ends_while_it_writes_output(tmp_path: Path) -> None:
    started = tmp_path / "started"
    params = {"command": f"touch {started}; exec yes", "timeout": 100}
    task = asyncio.create_task(PageTools([SHELL]).call(SHELL, params, {}, lambda _: True))
    await until(started.exists)
    task.cancel()
    await asyncio.wait((task,), timeout=60)
    assert task.cancelled()


@pytest.mark.parametrize("command", ["yes", "setsid -w sleep 120"])
async def test_command_with_endless_output_ends_at_its_timeout(serve: Serve, command: str) -> None:
    async with serve(server=ALL) as api, asyncio.timeout(60):
        result = (await call_tool(api.client, "exec_shell_command", {"command": command, "timeout": 1})).json()
        assert result["plain_text_response"].endswith("[exit code: -9] [exit due to timed out]")


async def test_streamed_command_sends_output_as_it_is_written(serve: Serve) -> None:
    async with serve(server=ALL) as api:
        body = {"tool": "exec_shell_command", "params": {"command": "echo hello"}, "stream": True}
        reply = await api.client.post("/tools", json=body)
        events = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: ")]
        assert events == [{"chunk": "hello\n"}, {"chunk": "\n[exit code: 0]"}, {"done": True}]


async def test_tools_refuse_cross_origin_requests(serve: Serve) -> None:
    async with serve(server=ALL) as api:
        foreign = await call_tool(api.client, "get_info", {}, Origin="http://evil.example")
        assert foreign.status_code == 403
        for origin, allowed in (("http://localhost:8080", True), ("http://evil.example", False)):
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            reply = await api.client.options("/completions", headers=headers)
            assert ("access-control-allow-origin" in reply.headers) is allowed


@pytest.mark.parametrize(
    ("server", "origins"),
    [
        ({}, "*"),
        ({"tools": "get_info"}, "localhost"),
        ({"agent": True}, "localhost"),
        ({"agent": True, "cors_origins": "*"}, "*"),
        ({"agent": True, "closed": True, "api_keys": ["a"]}, ""),
    ],
)
def test_cors_origins_default_to_localhost_with_tools(server: dict[str, object], origins: str) -> None:
    assert cors_origins(make_settings(server=server).server) == origins


async def test_tools_include_those_of_mcp_servers(serve: Serve) -> None:
    async with served(Tools()) as url:
        known = {"calc": {"url": url}, "bad": {"command": "/nonexistent"}}
        async with serve(server={"mcp_servers": known}) as api:
            listed = {tool["tool"]: tool for tool in (await api.client.get("/tools")).json()}
            assert (listed["calc_add"]["type"], listed["calc_add"]["definition"]["type"]) == ("mcp", "function")
            assert not any(name.startswith("bad_") for name in listed)
            assert (await api.client.get("/page/config")).json()["tools"] is True
            assert (await call_tool(api.client, "calc_add", {"a": 1, "b": 2})).json() == {"plain_text_response": "3"}
            assert "no bread" in (await call_tool(api.client, "calc_fail", {"why": "no bread"})).json()["error"]
            assert (await call_tool(api.client, "calc_nothing", {})).status_code == 404
            assert (await call_tool(api.client, "read_file", {"path": "/etc/hosts"})).status_code == 404
        assert cors_origins(make_settings({"mcp_servers": known}).server) == "localhost"


async def test_key_uses_only_the_mcp_servers_in_its_list(serve: Serve, tmp_path: Path) -> None:
    entries = {name: {"scopes": ["infer", "props"], "mcp": [name]} for name in ("calc", "other")}
    keys = key_file(tmp_path, **entries)
    async with (
        served(Tools()) as url,
        serve(server={"mcp_servers": {"calc": {"url": url}}, "keys_file": str(keys)}) as api,
    ):
        for key, status in (("calc", 200), ("other", 404)):
            listed = (await api.client.get("/tools", headers=bearer(key))).json()
            assert any(tool["tool"] == "calc_add" for tool in listed) is (status == 200)
            call = {"tool": "calc_add", "params": {"a": 1, "b": 2}}
            await api.expect("POST /tools", call, status, headers=bearer(key))
