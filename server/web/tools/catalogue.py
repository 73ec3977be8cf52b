"""The tools of the web UI as GET /tools lists them: the built-in ones that are enabled (``tools.json``), and those of
the configured MCP servers, as llama-server has them (``--mcp-servers-json``).
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from importlib import resources
from typing import Any

import orjson

from server.errors import InvalidRequest, NotFound, short, short_json
from server.mcp.config import McpServer
from server.mcp.servers import McpFault, McpServers, McpTool

logger = logging.getLogger(__name__)
SHELL, EVERY = "exec_shell_command", "all"
Json = dict[str, Any]
MayCall = Callable[[str], bool]


@cache
def all_tools() -> dict[str, Json]:
    """Return the definition of each tool by its name: title, description, JSON Schema of its parameters."""
    tools = orjson.loads(resources.files(__package__).joinpath("tools.json").read_bytes())
    return {tool["tool"]: tool for tool in tools}


def _shown(name: str, title: str, kind: str, description: str, parameters: Json, *, writes: bool = False) -> Json:
    """Return a tool as llama-server's web UI reads it. ``definition`` has OpenAI's format."""
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
    """The enabled built-in tools, `names`, or all if ``all`` is one of them, and those of MCP `servers`."""

    def __init__(self, names: Sequence[str] = (), servers: McpServers | None = None) -> None:
        known = all_tools() if names else {}
        self._on = {name: tool for name, tool in known.items() if EVERY in names or name in names}
        self._servers = servers or McpServers()

    def __bool__(self) -> bool:
        return bool(self._on or self._servers.configured)

    def shown(self, may_call: MayCall = lambda _: True) -> list[Json]:
        """Return all tools that a client may call. `may_call` tells whether it may use the MCP server of a label."""
        own = [
            _shown(name, tool["title"], "server", tool["description"], tool["parameters"], writes=tool["writes"])
            for name, tool in self._on.items()
        ]
        others = self._of_servers(may_call).items()
        return own + [_shown(name, name, "mcp", tool.description, dict(tool.schema)) for name, (_, tool) in others]

    def _of_servers(self, may_call: MayCall) -> dict[str, tuple[McpServer, McpTool]]:
        """Return the tools of MCP servers by the names that the web UI uses, ``LABEL_TOOL``."""
        found: dict[str, tuple[McpServer, McpTool]] = {}
        for label, tools in self._servers.tools.items():
            for tool in tools:
                name = f"{label}_{tool.name}"
                if name in self._on or name in found:
                    logger.warning("the MCP tool %s is skipped: another tool has its name", name)
                else:
                    found[name] = self._servers.configured[label], tool
        return {name: each for name, each in found.items() if may_call(each[0].label)}

    def of_server(self, name: str, may_call: MayCall) -> Callable[[Json], Coroutine[Any, Any, Json]] | None:
        """Return the function that calls an MCP server's tool: it takes the parameters, and returns the result's text
        or an ``error``. None if there is no such tool.
        """
        found = self._of_servers(may_call).get(name)
        if found is None:
            return None
        server, tool = found

        async def call(params: Json) -> Json:
            try:
                result = await self._servers.call(server, tool.name, params)
            except McpFault as fault:
                return {"error": fault.message}
            if result.is_error:
                return {"error": result.text or "MCP tool returned an error"}
            return {"plain_text_response": result.text}

        return call

    def check(self, name: str, params: Json, *, stream: bool) -> None:
        """Raise `NotFound` unless the tool is on, and `InvalidRequest` unless `params` match its schema."""
        tool = self._on.get(name)
        if tool is None:
            raise NotFound(f'unknown tool "{short(name)}"')
        if stream and name != SHELL:
            raise NotFound(f'tool "{name}" does not support stream = true')
        from jsonschema import Draft202012Validator, validators  # takes a while to import

        types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # not 2.0
        strict = validators.extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
        for error in strict(tool["parameters"]).iter_errors(params):
            at = ".".join(map(str, ("params", *error.absolute_path)))
            message = error.message.replace(repr(error.instance), short_json(error.instance), 1)
            raise InvalidRequest(f"{at}: {short(message)}", at)
