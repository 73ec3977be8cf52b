"""Options of the web page."""

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator

from server.errors import ConfigError
from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, FilePath, TextList, split_list

TOOLS = (
    *("read_file", "file_glob_search", "grep_search", "exec_shell_command", "write_file", "edit_file"),
    *("get_info", "all"),
)


def _known_tools(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in TOOLS:
            raise ValueError(f"unknown tool '{name}'; known: {', '.join(TOOLS)}")
    return names


def _read_object(value: object) -> object:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"should be JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("should be a JSON object")
    return value


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the page's settings can't be read from {path}: {error}") from None


class PageSettings(SettingsModel):
    """What browsers get."""

    group: ClassVar[str] = "Web page"

    ui: Annotated[Bool, option("--ui", "--webui", env="LLAMA_ARG_UI", off=("--no-ui", "--no-webui"))] = True
    """Serve the web page at / ."""
    ui_config: Annotated[
        dict[str, Any],
        BeforeValidator(_read_object),
        option(
            *("--ui-config", "--webui-config"),
            env="LLAMA_ARG_UI_CONFIG",
            metavar="JSON",
            forms={"--ui-config-file": ("FILE", _text_of), "--webui-config-file": ("FILE", _text_of)},
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
    """What the page begins with where a browser has no settings of its own, by llama-server's names: systemMessage,
    temperature, top_p, top_k, min_p, max_tokens, theme; the others are for llama-server's own page."""
    ui_mcp_proxy: Annotated[
        Bool,
        option(
            *("--ui-mcp-proxy", "--webui-mcp-proxy"),
            env="LLAMA_ARG_UI_MCP_PROXY",
            off=("--no-ui-mcp-proxy", "--no-webui-mcp-proxy"),
        ),
    ] = False
    """/cors-proxy?url= forwards what the MCP clients of llama-server's page ask, to whatever this machine reaches."""
    tools: Annotated[
        TextList,
        AfterValidator(_known_tools),
        option("--tools", env="LLAMA_ARG_TOOLS", metavar="A,B", text=split_list),
    ] = ()
    """Tools that the page can let a model use on this machine, with all that this server may do: read_file,
    file_glob_search, grep_search, exec_shell_command, write_file, edit_file, get_info, or all. cors_origins is then
    localhost unless it is given; without an API key they are for clients of this machine."""
    agent: Annotated[Bool, option("-ag", "--agent", env="LLAMA_ARG_AGENT", off=("-no-ag", "--no-agent"))] = False
    """All tools, and ui_mcp_proxy."""
    log_bodies: Annotated[Bool, option()] = False
    """Keep the bodies of the last 100 requests and replies in memory, to be seen in the page's view of requests with a
    key that has the scope props; where there are no keys, on this machine."""
    path: Annotated[FilePath | None, option("--path", env="LLAMA_ARG_STATIC_PATH", metavar="FOLDER", is_path=True)] = (
        None
    )
    """Folder whose files are served in place of the page. Everybody may read them, also where there are API keys."""

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Of `tools` and `agent`."""
        return ("all",) if self.agent else self.tools
