"""``--tools``: who may use them, and what their processes do."""

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


async def use(client: httpx.AsyncClient, tool: str, params: object, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post("/tools", json={"tool": tool, "params": params}, headers=named)


async def test_tools_work_in_the_folder_that_the_header_names(serve: Serve, tmp_path: Path) -> None:
    async with serve(server=ALL) as api:
        shown = (await api.client.get("/tools")).json()
        assert {one["tool"] for one in shown if one["permissions"]["write"]} == {
            *("exec_shell_command", "write_file", "edit_file")
        }
        assert (await api.client.get("/page/config")).json()["tools"] is True
        here = {"x_tool_cwd": str(tmp_path)}
        await use(api.client, "write_file", {"path": "a.txt", "content": "hello\n", "cwd": "/nowhere"}, **here)
        assert (tmp_path / "a.txt").read_text() == "hello\n"
        said = await use(api.client, "exec_shell_command", {"command": "cat a.txt; exit 3"}, **here)
        assert said.json() == {"plain_text_response": "hello\n\n[exit code: 3]"}
        raw = await use(api.client, "read_file", {"path": "a.txt"}, x_resp_type="base64", **here)
        assert raw.json() == {"base64": "aGVsbG8K", "size_bytes": 6}
        gone = await use(api.client, "read_file", {"path": "a.txt"}, x_tool_cwd=str(tmp_path / "gone"))
        assert "can't work" in gone.json()["error"]


async def test_a_command_has_bounds_and_none_of_the_servers_keys(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    async with serve(server=ALL) as api:
        params = {"command": "echo $LLAMA_API_KEY; yes | head -c 100000", "max_output_size": 5}
        said = (await use(api.client, "exec_shell_command", params)).json()["plain_text_response"]
        assert said == "\ny\ny\n\n[output truncated]\n[exit code: 0]"
        said = (await use(api.client, "exec_shell_command", {"command": "echo a; sleep 1000", "timeout": 0})).json()
        assert said["plain_text_response"].endswith("[exit code: -9] [exit due to timed out]")


async def test_a_command_ends_when_its_client_disconnects(serve: Serve, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with serve(server=ALL) as api:
        command = f"echo $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 1000"
        async with posting(api.app, "/tools", {"tool": "exec_shell_command", "params": {"command": command}}):
            await until(pid.exists)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


async def test_a_command_with_output_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    params = {"command": f"touch {begun}; exec yes", "timeout": 100}
    task = asyncio.create_task(PageTools([SHELL]).call(SHELL, params, {}, lambda _: True))
    await until(begun.exists)
    task.cancel()
    await asyncio.wait((task,), timeout=60)
    assert task.cancelled()


@pytest.mark.parametrize("command", ["yes", "setsid -w sleep 120"])
async def test_a_command_ends_whose_output_does_not(serve: Serve, command: str) -> None:
    async with serve(server=ALL) as api, asyncio.timeout(60):
        said = (await use(api.client, "exec_shell_command", {"command": command, "timeout": 1})).json()
        assert said["plain_text_response"].endswith("[exit code: -9] [exit due to timed out]")


async def test_output_comes_as_it_is_written(serve: Serve) -> None:
    async with serve(server=ALL) as api:
        body = {"tool": "exec_shell_command", "params": {"command": "echo hello"}, "stream": True}
        reply = await api.client.post("/tools", json=body)
        events = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: ")]
        assert events == [{"chunk": "hello\n"}, {"chunk": "\n[exit code: 0]"}, {"done": True}]


async def test_pages_of_others_use_no_tools(serve: Serve) -> None:
    async with serve(server=ALL) as api:
        foreign = await use(api.client, "get_info", {}, Origin="http://evil.example")
        assert foreign.status_code == 403
        for origin, allowed in (("http://localhost:8080", True), ("http://evil.example", False)):
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            reply = await api.client.options("/completions", headers=asked)
            assert ("access-control-allow-origin" in reply.headers) is allowed


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        ({}, "*"),
        ({"tools": "get_info"}, "localhost"),
        ({"agent": True}, "localhost"),
        ({"agent": True, "cors_origins": "*"}, "*"),
        ({"agent": True, "closed": True, "api_keys": ["a"]}, ""),
    ],
)
def test_with_tools_only_this_machines_pages_may_call_unless_others_are_named(
    given: dict[str, object], origins: str
) -> None:
    assert cors_origins(make_settings(server=given).server) == origins


async def test_tools_of_mcp_servers_are_among_them(serve: Serve) -> None:
    async with served(Tools()) as url:
        known = {"calc": {"url": url}, "bad": {"command": "/nonexistent"}}
        async with serve(server={"mcp_servers": known}) as api:
            shown = {one["tool"]: one for one in (await api.client.get("/tools")).json()}
            assert (shown["calc_add"]["type"], shown["calc_add"]["definition"]["type"]) == ("mcp", "function")
            assert not any(name.startswith("bad_") for name in shown)
            assert (await api.client.get("/page/config")).json()["tools"] is True
            assert (await use(api.client, "calc_add", {"a": 1, "b": 2})).json() == {"plain_text_response": "3"}
            assert "no bread" in (await use(api.client, "calc_fail", {"why": "no bread"})).json()["error"]
            assert (await use(api.client, "calc_nothing", {})).status_code == 404
            assert (await use(api.client, "read_file", {"path": "/etc/hosts"})).status_code == 404
        assert cors_origins(make_settings({"mcp_servers": known}).server) == "localhost"


async def test_a_key_uses_only_the_mcp_servers_in_its_list(serve: Serve, tmp_path: Path) -> None:
    entries = {name: {"scopes": ["infer", "props"], "mcp": [name]} for name in ("calc", "other")}
    keys = key_file(tmp_path, **entries)
    async with (
        served(Tools()) as url,
        serve(server={"mcp_servers": {"calc": {"url": url}}, "keys_file": str(keys)}) as api,
    ):
        for key, status in (("calc", 200), ("other", 404)):
            listed = (await api.client.get("/tools", headers=bearer(key))).json()
            assert any(one["tool"] == "calc_add" for one in listed) is (status == 200)
            called = {"tool": "calc_add", "params": {"a": 1, "b": 2}}
            await api.expect("POST /tools", called, status, headers=bearer(key))
