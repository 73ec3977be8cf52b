"""Options of the web page."""

from pathlib import Path
from typing import ClassVar

from server.errors import ConfigError
from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, FilePath, JsonObject, TextList, split_list

TOOLS = (
    *("read_file", "file_glob_search", "grep_search", "exec_shell_command", "write_file", "edit_file"),
    *("get_info", "all"),
)


def _known_tool(name: str) -> None:
    if name not in TOOLS:
        raise ValueError(f"unknown tool '{name}'; known: {', '.join(TOOLS)}")


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the page's settings can't be read from {path}: {error}") from None


class PageSettings(SettingsModel):
    """What browsers get."""

    group: ClassVar[str] = "Web page"

    ui: Bool = option(True, "--ui --webui", env=True, off=("--no-ui", "--no-webui"))
    """Serve the web page at / ."""
    ui_config: JsonObject = option(
        {},
        "--ui-config --webui-config",
        env=True,
        metavar="JSON",
        env_forms={"LLAMA_ARG_UI_CONFIG_FILE": _text_of},
        forms={"--ui-config-file": ("FILE", _text_of), "--webui-config-file": ("FILE", _text_of)},
    )
    """What the page begins with where a browser has no settings of its own, by llama-server's names: systemMessage,
    temperature, top_p, top_k, min_p, max_tokens, theme; the others are for llama-server's own page."""
    ui_mcp_proxy: Bool = option(
        False, "--ui-mcp-proxy --webui-mcp-proxy", env=True, off=("--no-ui-mcp-proxy", "--no-webui-mcp-proxy")
    )
    """/cors-proxy?url= forwards what the MCP clients of llama-server's page ask, to whatever this machine reaches."""
    tools: TextList = option((), "--tools", env=True, metavar="A,B", text=split_list, check=_known_tool)
    """Tools that the page can let a model use on this machine, with all that this server may do: read_file,
    file_glob_search, grep_search, exec_shell_command, write_file, edit_file, get_info, or all. cors_origins is then
    localhost unless it is given; without an API key they are for clients of this machine."""
    agent: Bool = option(False, "-ag --agent", env=True, off=("-no-ag", "--no-agent"))
    """All tools, and ui_mcp_proxy."""
    log_bodies: Bool = option(False)
    """Keep the bodies of the last 100 requests and replies in memory, to be seen in the page's view of requests with a
    key that has the scope props; where there are no keys, on this machine."""
    path: FilePath | None = option(None, "--path", env="LLAMA_ARG_STATIC_PATH", metavar="FOLDER")
    """Folder whose files are served in place of the page. Everybody may read them, also where there are API keys."""

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Of `tools` and `agent`."""
        return ("all",) if self.agent else self.tools
