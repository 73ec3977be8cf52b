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
    """MCP servers by label: command, args, env, cwd and timeout_ms of a program that is started with this server's
    rights, or url and headers. Their tools are at /tools for the page; with mcp_api also for requests. cors_origins is
    then localhost unless it is given. Needs llamapool[mcp]."""
    mcp_api: TextList = option((), metavar="LABEL,...", text=split_list)
    """Labels of mcp_servers that requests to /v1/responses and /v1/messages may use; * = all, none = off. A key of a
    keys file also needs them in its own mcp list."""
    mcp_hosts: SiteNames = option((), metavar="HOSTS")
    """Hosts of MCP servers that such requests may name by URL: off (an empty list), on for all of the open internet, or
    hosts as in media_fetch. Inner networks are out of reach unless an IP address is listed itself."""
    mcp_web_search: str = option("", metavar="LABEL")
    """The one of mcp_servers whose tools stand for the Responses API's web_search; empty = web_search is left out."""
    mcp_max_rounds: Int = option(16, ge=1, le=128)
    """Most times that one response may call tools of MCP servers and continue; then the model must answer."""
    mcp_max_s: Int = option(600, ge=1)
    """Most seconds that the calls of one response may take together."""
    mcp_max_chars: Int = option(100_000, ge=1)
    """Most characters of one tool's result that the model is given; the rest is cut off."""
