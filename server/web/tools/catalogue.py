"""The tools of the web UI: the enabled built-in ones (``tools.json``), and those of the configured MCP servers, as in
llama-server (``--mcp-servers-json``).

Each call of a built-in tool runs in a process: a shell for commands, this interpreter for the rest. It has the server's
permissions, but no API keys in its environment. At the time limit or when the client disconnects, the process and all
its children are killed.
"""

import asyncio
import codecs
import json
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from server.errors import InvalidRequest, NotFound, NotSupported, short, short_json
from server.mcp.config import McpServer
from server.mcp.servers import McpFault, McpServers, McpTool
from server.sandbox.process import public_environment

logger = logging.getLogger(__name__)
SHELL, EVERY = "exec_shell_command", "all"
Json = dict[str, Any]
MayCall = Callable[[str], bool]
WORK_S = 30.0
MAX_SHELL_S = 60
MAX_OUTPUT_BYTES = 16 * 1024
_MAX_REPLY_BYTES = 64 << 20
_READ_BYTES = 4096
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from server.web.tools.work import main; main()"


@cache
def all_tools() -> dict[str, Json]:
    """Return the definition of each tool by its name: title, description, JSON Schema of its parameters."""
    tools = orjson.loads(resources.files(__package__).joinpath("tools.json").read_bytes())
    return {tool["tool"]: tool for tool in tools}


def _tool_object(name: str, title: str, kind: str, description: str, parameters: Json, *, writes: bool = False) -> Json:
    """Return a tool in the format of llama-server's web UI. ``definition`` has OpenAI's format."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {
        "display_name": title,
        "tool": name,
        "type": kind,
        "permissions": {"write": writes},
        "uses_cwd": kind == "server",
        "definition": {"type": "function", "function": function},
    }


class PageTools:
    """The built-in tools in `names`, all if ``all`` is one of them, and the tools of MCP `servers`."""

    def __init__(self, names: Sequence[str] = (), servers: McpServers | None = None) -> None:
        known = all_tools() if names else {}
        self._enabled = {name: tool for name, tool in known.items() if EVERY in names or name in names}
        self._servers = servers or McpServers()

    def __bool__(self) -> bool:
        return bool(self._enabled or self._servers.configured)

    def shown(self, may_call: MayCall = lambda _: True) -> list[Json]:
        """Return all tools that a client may call. `may_call`: whether it may use the MCP server with a label."""
        built_in = [
            _tool_object(name, tool["title"], "server", tool["description"], tool["parameters"], writes=tool["writes"])
            for name, tool in self._enabled.items()
        ]
        of_servers = [
            _tool_object(name, name, "mcp", tool.description, dict(tool.schema))
            for name, (_, tool) in self._of_servers(may_call).items()
        ]
        return built_in + of_servers

    def _of_servers(self, may_call: MayCall) -> dict[str, tuple[McpServer, McpTool]]:
        """Return the tools of MCP servers by the names that the web UI uses, ``LABEL_TOOL``."""
        found: dict[str, tuple[McpServer, McpTool]] = {}
        for label, tools in self._servers.tools.items():
            for tool in tools:
                name = f"{label}_{tool.name}"
                if name in self._enabled or name in found:
                    logger.warning("the MCP tool %s is skipped: another tool has its name", name)
                else:
                    found[name] = self._servers.configured[label], tool
        return {name: each for name, each in found.items() if may_call(each[0].label)}

    async def call(self, name: str, params: Json, headers: Mapping[str, str], may_call: MayCall) -> Json:
        """Return the reply of a tool: its result, or an ``error`` if it fails. Raises like `check`."""
        if found := self._of_servers(may_call).get(name):
            server, tool = found
            try:
                result = await self._servers.call(server, tool.name, params)
            except McpFault as fault:
                return {"error": fault.message}
            if result.is_error:
                return {"error": result.text or "MCP tool returned an error"}
            return {"plain_text_response": result.text}
        self.check(name, params)
        folder = _folder(headers)
        if name != SHELL:
            return await _work(name, params | {"resp_type": headers.get("x-resp-type", "")}, folder)
        async with aclosing(_shell(params, folder)) as texts:
            return {"plain_text_response": "".join([text async for text in texts])}

    def stream(self, name: str, params: Json, headers: Mapping[str, str]) -> AsyncGenerator[Json, None]:
        """Return the events of a tool that streams its output. Raises like `check`."""
        self.check(name, params, stream=True)
        folder = _folder(headers)

        async def events() -> AsyncGenerator[Json, None]:
            async with aclosing(_shell(params, folder)) as texts:
                async for text in texts:
                    yield {"chunk": text}
            yield {"done": True}

        return events()

    def check(self, name: str, params: Json, *, stream: bool = False) -> None:
        """Raise `NotFound` unless the tool is enabled, and `InvalidRequest` unless `params` match its schema."""
        tool = self._enabled.get(name)
        if tool is None:
            raise NotFound(f'unknown tool "{short(name)}"')
        if stream and name != SHELL:
            raise NotFound(f'tool "{name}" does not support stream = true')
        from jsonschema import Draft202012Validator, validators  # slow to import

        # JSON Schema would accept 2.0 as an integer.
        types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
        strict = validators.extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
        for error in strict(tool["parameters"]).iter_errors(params):
            at = ".".join(map(str, ("params", *error.absolute_path)))
            message = error.message.replace(repr(error.instance), short_json(error.instance), 1)
            raise InvalidRequest(f"{at}: {short(message)}", at)


def _folder(headers: Mapping[str, str]) -> Path | None:
    """Return the folder for relative paths that a request names. Raises `NotSupported` for another machine."""
    if headers.get("x-tool-runtime"):
        raise NotSupported("x-tool-runtime: tools run on this machine only")
    return Path(headers["x-tool-cwd"]) if headers.get("x-tool-cwd") else None


@asynccontextmanager
async def program(*arguments: str, env: dict[str, str] | None = None, **more: Any) -> AsyncGenerator[Process, None]:
    """Start a program in its own session, without the server's secrets in its environment. At the end, kill it and its
    children. Raises OSError and ValueError if it cannot be started.
    """
    env = public_environment() | (env or {})
    process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE, env=env, start_new_session=True, **more)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads its own process group
        pipes: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
        for number in (1, 2):  # `wait` also waits for their end, which unread output or a child's own session delays
            if pipe := pipes.get_pipe_transport(number):
                pipe.close()
        await process.wait()


async def _work(tool: str, params: Json, folder: Path | None) -> Json:
    """Return the reply of `server.web.tools.work`, or an ``error`` if its process fails."""
    request = json.dumps({"tool": tool, "params": params}).encode()
    arguments = (sys.executable, "-I", "-B", "-c", _BOOT, *map(os.path.abspath, sys.path))
    started = program(*arguments, stdin=PIPE, stderr=DEVNULL, cwd=folder, limit=_MAX_REPLY_BYTES)
    try:
        async with started as process, asyncio.timeout(WORK_S):
            output, _ = await process.communicate(request)
        reply: Json = json.loads(output)
        return reply
    except TimeoutError:
        return {"error": f"took more than {WORK_S:.0f} seconds"}
    except OSError as error:
        return {"error": f"can't work in {folder}: {error.strerror}"}
    except ValueError:
        return {"error": "took more memory than it may"}


async def _shell(params: Json, folder: Path | None) -> AsyncGenerator[str, None]:
    """Yield a command's output as it is produced, then its exit code in llama-server's format."""
    deadline = time.monotonic() + min(max(params.get("timeout", 10), 0), MAX_SHELL_S)
    remaining = min(max(params.get("max_output_size", MAX_OUTPUT_BYTES), 0), MAX_OUTPUT_BYTES)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    truncated = timed_out = False
    try:
        async with program("sh", "-c", params["command"], stdin=DEVNULL, stderr=STDOUT, cwd=folder) as process:
            assert process.stdout is not None
            try:
                chunk = b"-"
                while chunk:  # `wait_for` would lose a cancellation if there is output
                    async with asyncio.timeout(deadline - time.monotonic()):
                        chunk = await process.stdout.read(_READ_BYTES)
                    if text := decoder.decode(chunk[:remaining]):
                        yield text
                    truncated, remaining = truncated or len(chunk) > remaining, max(remaining - len(chunk), 0)
                async with asyncio.timeout(deadline - time.monotonic()):
                    await process.wait()
            except TimeoutError:
                timed_out = True
    except (OSError, ValueError) as error:
        yield f"failed to spawn process: {error}\n[exit code: -1]"
        return
    tail = "\n[output truncated]" if truncated else decoder.decode(b"", final=True)
    yield f"{tail}\n[exit code: {process.returncode}]{' [exit due to timed out]' if timed_out else ''}"
