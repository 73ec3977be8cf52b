"""Options of the web UI."""

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
    """The web UI and its tools."""

    group: ClassVar[str] = "Web page"

    ui: Bool = option(True, "--ui --webui", env=True, off=("--no-ui", "--no-webui"))
    """Serve the web UI at / ."""
    ui_config: JsonObject = option(
        {},
        "--ui-config --webui-config",
        env=True,
        metavar="JSON",
        env_forms={"LLAMA_ARG_UI_CONFIG_FILE": _text_of},
        forms={"--ui-config-file": ("FILE", _text_of), "--webui-config-file": ("FILE", _text_of)},
    )
    """Default settings of the web UI as JSON, with llama-server's names: systemMessage, temperature, top_p, top_k,
    min_p, max_tokens, theme. Others apply to llama-server's own UI only.
    """
    ui_mcp_proxy: Bool = option(
        False, "--ui-mcp-proxy --webui-mcp-proxy", env=True, off=("--no-ui-mcp-proxy", "--no-webui-mcp-proxy")
    )
    """Serve /cors-proxy?url=, which forwards requests of llama-server's UI to MCP servers at any address this machine
    reaches.
    """
    tools: TextList = option((), "--tools", env=True, metavar="A,B", text=split_list, check=_known_tool)
    """Built-in tools that a model may run on this machine through the web UI, with the server's permissions: read_file,
    file_glob_search, grep_search, exec_shell_command, write_file, edit_file, get_info, or all. Sets cors_origins to
    localhost unless given; without an API key only clients on this machine may use them.
    """
    agent: Bool = option(False, "-ag --agent", env=True, off=("-no-ag", "--no-agent"))
    """Enable all tools and ui_mcp_proxy."""
    log_bodies: Bool = option(False)
    """Keep the bodies of the last 100 requests and replies in memory for the web UI's request view. Needs a key with
    scope props; without keys, a client on this machine.
    """
    path: FilePath | None = option(None, "--path", env="LLAMA_ARG_STATIC_PATH", metavar="FOLDER")
    """Folder of files to serve instead of the web UI. Everybody may read them, even if there are API keys."""

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """Of `tools` and `agent`."""
        return ("all",) if self.agent else self.tools
