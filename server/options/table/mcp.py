"""Options of MCP servers: which there are, and which the requests of clients may use."""

from pathlib import Path
from typing import ClassVar

from server.errors import ConfigError
from server.mcp.config import read_servers
from server.options.table.fetching import SiteNames
from server.options.table.option import SettingsModel, option
from server.options.table.values import Int, JsonObject, TextList, split_list


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the MCP servers can't be read from {path}: {error}") from None


class McpSettings(SettingsModel):
    """MCP servers."""

    group: ClassVar[str] = "MCP"

    mcp_servers: JsonObject = option(
        {},
        "--mcp-servers-json",
        env=True,
        metavar="JSON",
        env_forms={"LLAMA_ARG_MCP_SERVERS_CONFIG": _text_of},
        forms={"--mcp-servers-config": ("FILE", _text_of)},
        secret=True,
        check=read_servers,
    )
    """MCP servers by label: command, args, env, cwd and timeout_ms of a program started with this server's permissions,
    or url and headers. Their tools are listed at /tools for the web UI, and with mcp_api for API requests. Sets
    cors_origins to localhost unless given. Needs llamapool[mcp].
    """
    mcp_api: TextList = option((), metavar="LABEL,...", text=split_list)
    """Labels of mcp_servers that /v1/responses and /v1/messages may use; * = all, empty = off. A key in the keys file
    also needs them in its mcp list.
    """
    mcp_hosts: SiteNames = option((), metavar="HOSTS")
    """Hosts of MCP servers that requests may name by URL: off, on = all public hosts, or a list as in media_fetch.
    Private networks are refused, except IP addresses listed here.
    """
    mcp_web_search: str = option("", metavar="LABEL")
    """Label of the MCP server that implements the Responses API's web_search; empty = web_search is skipped."""
    mcp_max_rounds: Int = option(16, ge=1, le=128)
    """Most rounds of tool calls within one response; then the model must answer."""
    mcp_max_s: Int = option(600, ge=1)
    """Most seconds for all tool calls of one response."""
    mcp_max_chars: Int = option(100_000, ge=1)
    """Most characters of a tool result given to the model; the rest is truncated."""
